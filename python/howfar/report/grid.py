"""The cells of a plan with several factors as a grid: rows for one factor (connections if they vary), columns for the others.
Renderers draw it; this module only arranges the cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.plan.factor import Factor, Level
from howfar.plan.factors import FACTORS, PATH, level_of
from howfar.store.records import ArmRole

MIN_GRID_ARMS = 6
"""Number of arms beyond which a grid is used, because a reader no longer compares them one by one."""


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
    return len(_compared_cells(summary)) > MIN_GRID_ARMS and len(_varied_factors(_compared_cells(summary))) > 1


def _compared_cells(summary: Summary) -> list[CellSummary]:
    return [cell for cell in summary.cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]


def _levels(cells: list[CellSummary], factor: str) -> list[Level | None]:
    return list(dict.fromkeys(level_of(cell.factors, factor) for cell in cells))


def _varied_factors(cells: list[CellSummary]) -> list[Factor[Any]]:
    """Factors with several levels, except link factors that only distinguish loopback from a link, as the path does."""
    varied = []
    for factor in sorted(FACTORS.values(), key=lambda factor: factor.column_depth):
        levels = _levels(cells, factor.name)
        if len(levels) > 1 and (None not in levels or len(levels) > 2):
            varied.append(factor)
    return varied


def level_text(factor: Factor[Any], value: Level | None) -> str:
    """A level as text that fits into a column heading; empty if the factor does not apply."""
    return "" if value is None else (factor.short_label or factor.label)(value)


def arrange_grid(summary: Summary) -> Grid:
    """The grid of a run's cells. Rows and columns are in the order of the arms, numbers ascending."""
    cells = _compared_cells(summary)
    varied = _varied_factors(cells)
    row = next((factor for factor in FACTORS.values() if factor.prefers_rows and factor in varied), None) or max(
        varied, key=lambda factor: len(_levels(cells, factor.name)), default=PATH
    )
    others = [factor for factor in varied if factor is not row]
    rows = _levels(cells, row.name)
    if all(isinstance(value, int | float) for value in rows):
        rows.sort(key=lambda value: float(value or 0))
    cells_by_levels = {
        (level_of(cell.factors, row.name), tuple(level_of(cell.factors, factor.name) for factor in others)): cell
        for cell in cells
    }
    columns = list(dict.fromkeys(key[1] for key in cells_by_levels))
    columns.sort(key=lambda levels: _column_order(cells, others, levels))
    return Grid(
        row_head=row.heading or row.name,
        rows=tuple(level_text(row, value) for value in rows),
        columns=tuple(
            tuple(text for factor, value in zip(others, levels, strict=True) if (text := level_text(factor, value)))
            for levels in columns
        ),
        cells=tuple(tuple(cells_by_levels.get((value, levels)) for levels in columns) for value in rows),
    )


def _column_order(
    cells: list[CellSummary], factors: list[Factor[Any]], levels: tuple[Level | None, ...]
) -> list[float]:
    """Sort key of a column: numbers by size, words by first appearance."""
    keys = []
    for factor, value in zip(factors, levels, strict=True):
        factor_levels = _levels(cells, factor.name)
        numeric = all(isinstance(other, int | float | None) for other in factor_levels)
        keys.append(float(value or 0) if numeric and not isinstance(value, str) else float(factor_levels.index(value)))
    return keys
