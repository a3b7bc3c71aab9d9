"""Helpers for the findings of several experiments: cells to compare, ratios between them, and where a cell was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from howfar.analysis.cells import CellSummary, Metric
from howfar.analysis.summary import RunEvidence
from howfar.model.resource import NOT_THE_PATH
from howfar.paths import is_direct
from howfar.plan.factor import Level
from howfar.plan.factors import FACTORS, PATH, RATE_BPS, level_of
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution
from howfar.stats.trials import group_by_other_factors
from howfar.store.records import ArmRole
from howfar.units import spoken_rate


def compared_cells(evidence: RunEvidence, *varied: str) -> list[CellSummary]:
    """The baseline and the contenders. Empty if none of these factors varies, because then another experiment answers."""
    main_cells = [cell for cell in evidence.cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    varies = any(len({level_of(cell.factors, name) for cell in main_cells} - {None}) > 1 for name in varied)
    return main_cells if varies else []


def compare(
    evidence: RunEvidence, cell: CellSummary, reference: CellSummary
) -> tuple[Estimate, Resolution | None] | None:
    """Ratio of the throughputs of two cells, paired by block, and what it shows: nothing (None) if one of the cells does not describe
    the path. None: no block has both."""
    compared = evidence.floors.ratio(evidence.table, cell.arm, reference.arm)
    if compared is None:
        return None
    ratio, resolution = compared
    describe_path = all(each.limit is None or each.limit.resource not in NOT_THE_PATH for each in (cell, reference))
    return ratio, resolution if describe_path else None


def resolved_cpu_ratio(evidence: RunEvidence, cell: CellSummary, reference: CellSummary) -> Estimate | None:
    """Ratio of the CPU times per operation of two cells, paired by block. None: unknown, or not resolved."""
    compared = evidence.floors.ratio(evidence.table, cell.arm, reference.arm, Metric.CPU)
    return compared[0] if compared and compared[1].is_difference else None


def groups_by_other_factors(cells: Sequence[CellSummary], without: str) -> list[list[CellSummary]]:
    """Cells that differ in nothing but one factor, in the order of the plan."""
    return group_by_other_factors(cells, lambda cell: cell.factors, without)


def groups_with_factor_off(cells: Sequence[CellSummary], factor: str) -> list[tuple[CellSummary, list[CellSummary]]]:
    """Each cell with the factor off, and the otherwise equal cells with it on."""
    groups = []
    for group in groups_by_other_factors(cells, factor):
        off_cell = next((cell for cell in group if level_of(cell.factors, factor) == "off"), None)
        others = [cell for cell in group if cell is not off_cell]
        if off_cell is not None and others:
            groups.append((off_cell, others))
    return groups


def location_text(factors: Mapping[str, Level]) -> str:
    """Where a cell was measured: `at 1 Gb/s`, `over the network`; without a link `on the socket`, `on the loopback` or `here`."""
    rate = RATE_BPS.level_or_none(factors)
    if isinstance(rate, int | float):
        return f"at {spoken_rate(rate)}"
    path = PATH.level_or_none(factors)
    if is_direct(path, 1, by_socket=True):
        return "on the socket"
    if is_direct(path, 2, by_socket=False):
        return "over the network"
    return "on the loopback" if is_direct(path, 1, by_socket=False) else "here"


def locations(cells: Sequence[CellSummary], *ignored: str) -> list[str]:
    """Where each cell was measured. Cells of one place that differ in another factor than `ignored` are told apart by its level."""
    by_location: dict[str, list[CellSummary]] = {}
    for cell in cells:
        by_location.setdefault(location_text(cell.factors), []).append(cell)

    def locate(cell: CellSummary) -> str:
        location = location_text(cell.factors)
        varied = [
            factor
            for name, factor in FACTORS.items()
            if name not in ignored and len({level_of(other.factors, name) for other in by_location[location]}) > 1
        ]
        levels = [
            factor.label(level) for factor in varied if (level := level_of(cell.factors, factor.name)) is not None
        ]
        return ", ".join([location, *levels])

    return [locate(cell) for cell in cells]
