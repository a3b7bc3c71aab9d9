"""Limits that were put to the test and did not hold: what the answer, the cells and the advice then still say of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.findings import Confirmation
from howfar.analysis.summary import CellSummary
from howfar.bottleneck.confirmation import is_refuted
from howfar.stats.intervals import interval_text


def refuted(tested: Sequence[Confirmation]) -> dict[str, Confirmation]:
    """By arm."""
    return {found.arm: found for found in tested if is_refuted(found)}


def doubted(cells: Sequence[CellSummary], tested: Sequence[Confirmation]) -> tuple[CellSummary, ...]:
    """The cells, a refuted limit with what refuted it and little confidence."""
    found = refuted(tested)
    return tuple(_doubted(cell, found[cell.arm]) if _is_of(cell, found) else cell for cell in cells)


def unadvised(cells: Sequence[CellSummary], tested: Sequence[Confirmation]) -> tuple[CellSummary, ...]:
    """The cells, a refuted limit taken off: nothing is advised on its ground."""
    found = refuted(tested)
    return tuple(cell.model_copy(update={"limit": None}) if _is_of(cell, found) else cell for cell in cells)


def refuted_sentence(cells: Sequence[CellSummary], tested: Sequence[Confirmation]) -> str:
    """What an answer that names limits has to add; empty where every test was passed, or showed nothing."""
    found = refuted(tested)
    parts = [f"the limit named at {cell.arm}: {_came_out(found[cell.arm])}" for cell in cells if _is_of(cell, found)]
    return f"Put to the test and refuted: {'; '.join(parts)}." if parts else ""


def _is_of(cell: CellSummary, found: dict[str, Confirmation]) -> bool:
    """A limit that is named otherwise now than when it was tested is another one."""
    return cell.limit is not None and cell.arm in found and found[cell.arm].resource is cell.limit.resource


def _doubted(cell: CellSummary, found: Confirmation) -> CellSummary:
    assert cell.limit is not None, "a cell without a limit has none to doubt"
    said = f"refuted when put to the test: {_came_out(found)}"
    changed = {"confidence": "low", "says": f"{cell.limit.says}; {said}", "evidence": (*cell.limit.evidence, said)}
    changed |= {"would_change": "", "would_not": ""}  # they follow from the limit
    return cell.model_copy(update={"limit": cell.limit.model_copy(update=changed)})


def _came_out(found: Confirmation) -> str:
    return f"{found.changed} gave x {interval_text(found.measured)}, not x {found.predicted:.2f}"
