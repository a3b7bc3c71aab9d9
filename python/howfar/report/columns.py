"""The one table of a report as columns of text, before anyone decides how to lay it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from howfar.analysis.summary import CellSummary, Summary
from howfar.analysis.workload_line import ONE
from howfar.report.figures import (
    UNKNOWN,
    baseline_name,
    cpu_parts,
    cpu_point,
    cpu_total,
    limits,
    number,
    plus_minus,
    point,
    ratio,
    reading,
    shown_cells,
    whole,
)

Text = Callable[[CellSummary], str]


@dataclass(frozen=True)
class Line:
    """One figure of every arm, with a label of its own: what a narrow layout shows as a line."""

    label: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """One column: a two-line head and two lines a cell (the second may be empty); and the same, line by line."""

    head: tuple[str, str]
    cells: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]
    left: bool = False


class _Maker:
    def __init__(self, cells: list[CellSummary]) -> None:
        self.cells = cells

    def column(self, head: tuple[str, str], upper: Text, lower: Text | None, *lines: tuple[str, Text]) -> Column:
        pairs = tuple((upper(cell), lower(cell) if lower else "") for cell in self.cells)
        spelt = tuple(Line(label, tuple(text(cell) for cell in self.cells)) for label, text in lines)
        return Column(head, pairs, spelt, left=head[0] == "path")


def columns(summary: Summary) -> list[Column]:
    """First the arms, then what was measured of each."""
    maker, base = _Maker(shown_cells(summary)), baseline_name(summary)
    found = [
        maker.column(("path", ""), _arm, None, ("path", _arm)),
        maker.column(
            (f"{summary.asked}/s", ""),
            _qps,
            _qps_width,
            (f"{summary.asked} per second", _qps),
            ("  95 % interval", _qps_width),
        ),
        maker.column(
            (f"of {base}", "[95 % interval]"),
            lambda cell: ratio(cell.ratio),
            reading,
            (f"of {base}", lambda cell: point(cell.ratio)),
            ("  95 % interval", lambda cell: limits(cell.ratio)),
            ("  reads as", reading),
        ),
        *_latency(maker),
        maker.column(
            (f"CPU µs/{ONE[summary.asked]} (x)", _cpu_head(maker.cells)),
            lambda cell: f"{_cpu(cell)} ({cpu_point(cell)})",
            cpu_parts,
            (f"CPU µs/{ONE[summary.asked]}", _cpu),
            (f" {_cpu_head(maker.cells)}", cpu_parts),
            (f"CPU x {base}", cpu_point),
            ("  95 % interval", lambda cell: limits(cell.cpu_ratio)),
        ),
        maker.column(("turns", "/txn"), _turns, None, ("turns/txn", _turns)),
        maker.column(("bytes/txn", "out, in"), _out_comma, _in, ("bytes/txn out", _out), ("          in", _in)),
    ]
    if any(cell.published for cell in maker.cells):
        found.append(
            maker.column(
                ("published", ""),
                _published,
                _published_qps,
                ("published", _published),
                ("  queries/s", _published_qps),
            )
        )
    return found


def _latency(maker: _Maker) -> list[Column]:
    return [
        maker.column(
            (name, "ms/txn" if name == "p50" else ""),
            lambda cell, name=name: number(getattr(cell.latency_ms, name)),  # type: ignore[misc]
            None,
            (f"{name} ms/txn", lambda cell, name=name: number(getattr(cell.latency_ms, name))),  # type: ignore[misc]
        )
        for name in ("p50", "p95", "p99")
    ]


def _arm(cell: CellSummary) -> str:
    return cell.arm


def _qps(cell: CellSummary) -> str:
    return number(cell.qps.value)


def _qps_width(cell: CellSummary) -> str:
    return plus_minus(cell.qps)


def _cpu(cell: CellSummary) -> str:
    return number(cpu_total(cell))


def _turns(cell: CellSummary) -> str:
    """Counts a transaction are mostly whole: `29`, else `29.4`."""
    turns = cell.turns_per_txn
    return f"{turns:.0f}" if abs(turns - round(turns)) < 0.05 else f"{turns:.1f}"


def _out(cell: CellSummary) -> str:
    return whole(cell.bytes_per_txn.to_server)


def _out_comma(cell: CellSummary) -> str:
    return _out(cell) + ","


def _in(cell: CellSummary) -> str:
    return whole(cell.bytes_per_txn.to_client)


def _published(cell: CellSummary) -> str:
    if cell.published is None:
        return UNKNOWN
    return "1" if cell.published.ratio == 1 else f"{cell.published.ratio:.2f}"


def _published_qps(cell: CellSummary) -> str:
    return f"{cell.published.qps:,.0f}/s" if cell.published else ""


def _cpu_head(cells: list[CellSummary]) -> str:
    """What the summands of the CPU column are."""
    return "client+server" + ("+fwd" if any(cell.cpu_us_per_query.forwarder for cell in cells) else "")
