"""The cells of a plan with several factors as a grid: rows of one factor (connections where they vary), columns of the others.
Text reports print it, the page shows it instead of one card an arm. Not here: how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.plan.factors import FACTORS, ORDINARY
from howfar.store.records import ArmRole, FactorValue

MANY = 6
"""Number of arms beyond which they are not read one by one."""

COLUMNS = ("server", "placement", "path", "rtt_ns", "rate_bps", "content", "tls", "connect", "compression")
"""Order of head columns: these first, then all other factors; the one compared most is last."""
LAST = ("fault", "replication", "threads")

ROWS = ("threads", "compression")
"""Factors for rows: the first of these that varies, else the factor with most levels."""

HEADS = {
    "threads": "connections",
    "rtt_ns": "RTT",
    "rate_bps": "link",
    "replica_rtt_ns": "replica RTT",
    "replica_rate_bps": "replica link",
    "replica_tls": "replication",
    "replica_compression": "replication",
    "wait_for": "waits for",
}


@dataclass(frozen=True)
class Grid:
    """`cells[row][column]`; None: no such cell, or one without a good trial."""

    row_head: str
    rows: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    """Levels of each column, one text for each factor that varies."""
    cells: tuple[tuple[CellSummary | None, ...], ...]

    def column(self, index: int) -> list[CellSummary]:
        return [row[index] for row in self.cells if row[index] is not None]  # type: ignore[misc]


def is_grid(summary: Summary) -> bool:
    """Whether the arms are many and differ in more than one factor."""
    return len(_compared(summary)) > MANY and len(_varied(_compared(summary))) > 1


def _compared(summary: Summary) -> list[CellSummary]:
    return [cell for cell in summary.cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]


def level(cell: CellSummary, factor: str) -> FactorValue | None:
    """The level of a cell in a factor; an ordinary level need not be written into the cell."""
    return cell.factors.get(factor, ORDINARY.get(factor))


def _levels(cells: list[CellSummary], factor: str) -> list[FactorValue | None]:
    return list(dict.fromkeys(level(cell, factor) for cell in cells))


def _varied(cells: list[CellSummary]) -> list[str]:
    """Factors with several levels, without a link's factor that only distinguishes loopback from a link, as the path does."""
    found = []
    others = [name for name in FACTORS if name not in (*COLUMNS, *LAST)]
    for factor in (*COLUMNS, *others, *LAST):
        levels = _levels(cells, factor)
        if len(levels) > 1 and (None not in levels or len(levels) > 2):
            found.append(factor)
    return found


_SHORT: dict[tuple[str, object], str] = {
    ("connect", "per-transaction"): "connect/txn",
    ("compression", "off"): "none",
    ("replication", "none"): "no replica",
    ("fault", "none"): "no fault",
}
_BARE = ("threads", "replication", "fault", "content")
"""Factors whose levels need no name in a column of them."""


def level_text(factor: str, value: FactorValue | None) -> str:
    """A level as short as a column's head requires; empty where the factor has no meaning."""
    if value is None:
        return ""
    if factor in _BARE or (factor, value) in _SHORT:
        return _SHORT.get((factor, value), str(value))
    label = FACTORS[factor].label(value) if factor in FACTORS else str(value)
    return label.removeprefix("replica link ").removeprefix("replica ").removeprefix("replication ")


def grid(summary: Summary) -> Grid:
    """Rows and columns in the order of the arms, numbers ascending."""
    cells = _compared(summary)
    varied = _varied(cells)
    row = next((factor for factor in ROWS if factor in varied), None) or max(
        varied, key=lambda factor: len(_levels(cells, factor)), default="path"
    )
    others = [factor for factor in varied if factor != row]
    rows = _levels(cells, row)
    if all(isinstance(value, int | float) for value in rows):
        rows.sort(key=lambda value: float(value or 0))
    places = {(level(cell, row), tuple(level(cell, factor) for factor in others)): cell for cell in cells}
    columns = list(dict.fromkeys(place[1] for place in places))
    columns.sort(key=lambda levels: _order(cells, others, levels))
    return Grid(
        row_head=HEADS.get(row, row),
        rows=tuple(level_text(row, value) for value in rows),
        columns=tuple(
            tuple(text for factor, value in zip(others, levels, strict=True) if (text := level_text(factor, value)))
            for levels in columns
        ),
        cells=tuple(tuple(places.get((value, levels)) for levels in columns) for value in rows),
    )


def _order(cells: list[CellSummary], factors: list[str], levels: tuple[FactorValue | None, ...]) -> list[float]:
    """Sort key of a column: numbers by size, words by first appearance."""
    found = []
    for factor, value in zip(factors, levels, strict=True):
        known = _levels(cells, factor)
        numeric = all(isinstance(other, int | float | None) for other in known)
        found.append(float(value or 0) if numeric and not isinstance(value, str) else float(known.index(value)))
    return found
