"""Tables of a plan with several factors, as text: the grid of throughputs, limits, predictions, economics. Terminal, Markdown and page
lay the same tables out, so that they never disagree."""

from __future__ import annotations

from dataclasses import dataclass

from howfar.analysis.findings import (
    Confirmation,
)
from howfar.analysis.summary import Summary
from howfar.bottleneck.confirmation import is_refuted
from howfar.report import figures, limit_words

Head = tuple[str, str]
"""A head of two lines; the second may be empty."""


@dataclass(frozen=True)
class Table:
    """The first column names the row. `notes` are sentences below it."""

    title: str
    head: tuple[Head, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def single(*heads: str) -> tuple[Head, ...]:
    return tuple((head, "") for head in heads)


def share(value: float | None, signed: bool = False) -> str:
    """`3.4 %`, `-1.2 %`."""
    if value is None:
        return figures.UNKNOWN
    return f"{value * 100:{'+' if signed else ''}.1f} %"


def rate(bps: float | None) -> str:
    """`0.27 Gb/s`, `640 Mb/s`."""
    if bps is None:
        return figures.UNKNOWN
    return f"{bps / 1e9:.3g} Gb/s" if bps >= 1e9 else f"{bps / 1e6:.3g} Mb/s"


def confirmations(summary: Summary) -> Table | None:
    """Something was changed that tells: did throughput move as said?"""
    if not summary.confirmations:
        return None
    rows = tuple(
        (
            found.arm,
            limit_words.name(found.resource),
            found.changed,
            f"x {found.predicted:.2f}",
            f"x {figures.ratio(found.measured)}",
            outcome(found),
            str(found.blocks),
        )
        for found in summary.confirmations
    )
    head = single("cell", "limit", "changed", "model", "measured [95 %]", "", "blocks")
    return Table("The limits, put to the test", head, rows)


def outcome(found: Confirmation) -> str:
    """An interval that holds the middle between both expectations shows neither. Where not the resource itself was changed, what came
    out as said rules another limit out and shows no more."""
    if found.confirmed:
        return f"rules out {found.rules_out}" if found.rules_out else "confirmed"
    return "NOT confirmed" if is_refuted(found) else "not shown either way"


def confirmation_lines(summary: Summary) -> list[str]:
    """The same as sentences, for a narrow place."""
    return [
        f"{found.arm} ({limit_words.name(found.resource)}): {found.changed}; the model said x {found.predicted:.2f}, measured "
        f"x {figures.ratio(found.measured)} in {found.blocks} blocks: {outcome(found)}."
        for found in summary.confirmations
    ]
