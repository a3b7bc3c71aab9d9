"""Tables of a plan with several factors, as text: the grid of throughputs, limits, predictions, economics. Terminal, Markdown and page
lay the same tables out, so that they never disagree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from howfar.analysis.findings import (
    CompressionRow,
    Confirmation,
    Curve,
    EncryptionTried,
    Prediction,
    ThreadsPoint,
    WhatIf,
)
from howfar.analysis.summary import CellSummary, Summary
from howfar.bottleneck.confirmation import is_refuted
from howfar.report import figures, limit_words
from howfar.report.figures import tps
from howfar.report.grid import Grid, grid
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import half_width_text
from howfar.units import format_rate_bps

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


def _heads(table: Grid) -> tuple[Head, ...]:
    """What the columns share first, what tells neighbours apart last."""
    return tuple(
        (" ".join(column[:-1]), column[-1]) if len(column) > 1 else ("", "".join(column)) for column in table.columns
    )


def _matrix(title: str, summary: Summary, text: Callable[[CellSummary], str], *notes: str) -> Table:
    table = grid(summary)
    rows = tuple(
        (row, *(text(cell) if cell else figures.UNKNOWN for cell in cells))
        for row, cells in zip(table.rows, table.cells, strict=True)
    )
    return Table(title, ((table.row_head, ""), *_heads(table)), rows, tuple(note for note in notes if note))


def throughput(summary: Summary) -> Table:
    """Transactions a second of each cell with the letter of its limit."""
    widths = [width for cell in figures.shown_cells(summary) if (width := _half_width(cell.qps)) is not None]
    said = (
        f"95 % intervals: half-widths up to {half_width_text(max(widths))}."
        if widths
        else "No intervals: too few blocks."
    )

    def text(cell: CellSummary) -> str:
        return f"{figures.number(tps(cell).value)} {limit_words.letter(cell.limit)}".rstrip()

    legend = limit_words.legend(summary)
    table = _matrix("Transactions a second", summary, text, f"{legend} {said}".strip())
    if not legend:
        return table
    # Letters stand below each other: a cell without one is as wide as the others.
    padded = tuple(
        (row[0], *(cell if cell[-1:].isalpha() or cell[-1:] in "!?" else f"{cell}  " for cell in row[1:]))
        for row in table.rows
    )
    return Table(table.title, table.head, padded, table.notes)


def _half_width(estimate: Estimate) -> float | None:
    """Of a mean, whose interval may reach below zero when trials are few."""
    if estimate.low is None or estimate.high is None or not estimate.value:
        return None
    return (estimate.high - estimate.low) / 2 / estimate.value


def latency(summary: Summary) -> Table:
    return _matrix(
        "Milliseconds a transaction: median / 99 %",
        summary,
        lambda cell: f"{figures.number(cell.latency_ms.p50)} / {figures.number(cell.latency_ms.p99)}",
        "Closed loop: more connections than the limit needs only wait.",
    )


def limits(summary: Summary) -> Table | None:
    """One row a group of cells with the same limit, with the evidence of the fastest of them."""
    found = limit_words.groups(summary)
    if not found:
        return None
    rows = tuple(
        (
            group.where,
            limit_words.name(group.limit.resource),
            group.limit.confidence,
            "; ".join(group.limit.evidence),
            group.limit.would_change or figures.UNKNOWN,
            group.limit.would_not or figures.UNKNOWN,
        )
        for group in found
    )
    head = single("cells", "limit", "confidence", "evidence", "would change it", "would not")
    return Table("What limits each cell", head, rows, ("Evidence is of the fastest cell of its line.",))


def predictions(summary: Summary) -> Table | None:
    """How well the model describes each curve, and how well it foresaw it from others."""
    curves = summary.scaling.curves if summary.scaling else ()
    rows = []
    bases: dict[str, list[str]] = {}
    for curve in curves:
        for kind, found in (("foreseen", curve.foreign), ("described", curve.own)):
            if found is not None:
                rows.append((curve.name, kind, *_errors(found)))
        if curve.foreign is not None:
            bases.setdefault(curve.foreign.basis, []).append(curve.name)
    if not rows:
        return None
    head = (
        ("curve", ""),
        ("model", ""),
        ("knee", "N*"),
        ("plateau", "txn/s"),
        ("plateau", "error"),
        ("mean", "error"),
        ("worst", "error"),
    )
    foreseen = [f"Foreseen, {'; '.join(names)}: {basis}." for basis, names in bases.items()]
    described = (
        "Described: fitted on the curve's own ends; its error, the low end not counted, says only whether the shape is right."
        if any(curve.own for curve in curves)
        else ""
    )
    return Table("What the model said", head, tuple(rows), tuple(note for note in (*foreseen, described) if note))


def _errors(found: Prediction) -> tuple[str, str, str, str, str]:
    return (
        figures.number(found.knee),
        figures.number(found.plateau_tps),
        share(found.plateau_error, signed=True),
        share(found.mean_error),
        share(found.worst_error),
    )


def published(summary: Summary) -> Table | None:
    """Their transactions a second beside ours; each also as a share of its own largest, which is what can be compared."""
    curves = [curve for curve in summary.scaling.curves if curve.published] if summary.scaling else []
    rows = []
    for curve in curves:
        most = max(point.tps.value for point in curve.points)
        theirs = max((point.published_tps or 0.0 for point in curve.points), default=0.0)
        for point in curve.points:
            if point.published_tps is not None:
                rows.append(
                    (
                        curve.name,
                        str(point.threads),
                        figures.number(point.tps.value),
                        f"{point.tps.value / most:.2f}",
                        published_tps(curve, point),
                        f"{point.published_tps / theirs:.2f}",
                    )
                )
    if not rows:
        return None
    head = single("curve", "connections", "ours/s", "of its largest", "published/s", "of its largest")
    sources = sorted({curve.published for curve in curves if curve.published})
    notes = [f"Published: {'; '.join(sources)}. Not our measurement."]
    if any(curve.published_differs for curve in curves):
        notes.append(
            "Theirs is another workload than this run's: compare where the curves bend, not transactions a second."
        )
    return Table("Published beside ours", head, tuple(rows), tuple(notes))


def published_tps(curve: Curve, point: ThreadsPoint) -> str:
    """Nothing where theirs are transactions of another kind."""
    return figures.number(None if curve.published_differs else point.published_tps)


def compression(summary: Summary) -> Table | None:
    found = summary.compression
    if found is None or not found.rows:
        return None
    rates = list(dict.fromkeys(tried.rate_bps for row in found.rows for tried in row.measured))
    head = (
        ("data and", "algorithm"),
        ("bytes", "of before"),
        ("CPU ns/B", "client+server"),
        ("pays", "below"),
        *((f"x at {format_rate_bps(bps)}" if bps else "x, no link", "[95 %] (model)") for bps in rates),
    )
    rows = tuple(
        (
            f"{row.content}, {row.algorithm}",
            f"{row.ratio_to_client:.2f}",
            f"{figures.number(row.client_ns_per_byte)}+{figures.number(row.server_ns_per_byte)}",
            pays_below(row),
            *(_tried(row, bps) for bps in rates),
        )
        for row in found.rows
    )
    advice: dict[str, list[str]] = {}
    for row in found.rows:
        if row.level_advice:
            advice.setdefault(row.level_advice, []).append(f"{row.algorithm} on {row.content}")
    advised = [f"{', '.join(names)}: {text.rstrip('.')}." for text, names in advice.items()]
    missed = any(tried.agrees is False and not tried.invalid for row in found.rows for tried in row.measured)
    said = ("! the model said better where it was worse, or the other way round.",) if missed else ()
    return Table("What compression costs and saves", head, rows, (found.says, *said, *advised))


NOT_VALID = " not valid"
"""Behind a ratio of which one side is about other programs or errors."""


def _tried(row: CompressionRow, bps: float | None) -> str:
    tried = next((tried for tried in row.measured if tried.rate_bps == bps), None)
    if tried is None:
        return figures.UNKNOWN
    mark = NOT_VALID if tried.invalid else " !" if tried.agrees is False else ""
    return f"{figures.ratio(tried.ratio)} ({_model(tried.predicted)}){mark}"


def _model(predicted: float | None) -> str:
    return figures.UNKNOWN if predicted is None else f"{predicted:.2f}"


def pays_below(row: CompressionRow) -> str:
    """The break-even; or that it pays nowhere, everywhere, or cannot be told."""
    if not row.resolved:
        return "not resolved"
    if row.everywhere:
        return "all tried"
    return rate(row.break_even_bps) if row.break_even_bps else "never"


def encryption(summary: Summary) -> Table | None:
    found = summary.encryption
    if found is None or not found.rows:
        return None
    persistent = _ends([row.persistent for row in found.rows])
    churned = _ends([row.per_transaction for row in found.rows])
    rows = tuple(
        (
            row.version,
            figures.UNKNOWN if row.connect_us is None else f"{row.connect_us:,.0f}",
            figures.UNKNOWN if row.connect_turns is None else f"{row.connect_turns:+.2g}",
            figures.UNKNOWN if row.byte_ns is None else f"{row.byte_ns:.2f}",
            "unknown" if row.resumed is None else "yes" if row.resumed else "no",
            *(_encrypted(row.persistent, threads) for threads in persistent),
            *(_encrypted(row.per_transaction, threads) for threads in churned),
        )
        for row in found.rows
    )
    head = (
        ("version", ""),
        ("CPU µs", "a connect"),
        ("turns", "a connect"),
        ("CPU ns", "a byte"),
        ("resumed", ""),
        *(("x persistent", f"at {threads}") for threads in persistent),
        *(("x connect/txn", f"at {threads}") for threads in churned),
    )
    note = (
        "All beyond the same cell without TLS, both ends together; x: throughput over its, at the least and the most connections "
        "(by the model, from other numbers of them)."
    )
    return Table("What encryption costs", head, rows, (found.says, note))


def _ends(rows: Sequence[Sequence[EncryptionTried]]) -> list[int]:
    """The least and the most connections of each row: one that lacks them all would seem not to have been measured."""
    counts = [[found.threads for found in tried] for tried in rows if tried]
    return sorted({end for each in counts for end in (min(each), max(each))})


def _encrypted(tried: Sequence[EncryptionTried], threads: int) -> str:
    found = next((found for found in tried if found.threads == threads), None)
    if found is None:
        return figures.UNKNOWN
    return f"{figures.ratio(found.ratio)} ({_model(found.predicted)}){NOT_VALID if found.invalid else ''}"


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


def what_if(summary: Summary) -> Table | None:
    """A few settings, worked out with the same model as the page's sliders."""
    base = summary.what_if
    if base is None or not base.worked:
        return None
    own = base.worked[0].answer.tps
    rows = tuple(
        (
            rate(worked.settings.rate_bps) if worked.settings.rate_bps else "no link",
            f"{worked.settings.rtt_s * 1e3:.3g} ms",
            str(worked.settings.threads),
            "on" if worked.settings.tls else "off",
            "a transaction" if worked.settings.connect_each else "persistent",
            worked.settings.compression,
            figures.number(worked.answer.tps),
            f"x {worked.answer.tps / own:.2f}",
            worked.answer.limits,
        )
        for worked in base.worked
    )
    head = single("link", "RTT", "connections", "TLS", "connect", "compression", "model/s", "of the first", "limit")
    return Table("What if", head, rows, (f"From {base.arm}: {model_beside_measured(base)}",))


def model_beside_measured(base: WhatIf) -> str:
    """The model's error where it was fitted, said once: every other answer is compared with the model's own there."""
    own = base.worked[0].answer.tps
    return (
        f"{figures.number(base.tps)} transactions a second measured, {figures.number(own)} by the model at the same settings"
        f" ({share(own / base.tps - 1, signed=True)}: its error there). What a change is worth is said over the model's own figure."
    )


def interval(estimate: Estimate) -> str:
    """`92.6 ± 1.4`."""
    return f"{figures.number(estimate.value)} {figures.plus_minus(estimate)}"
