"""Which limits are put to the test after a plan's blocks, by changing what, and what came out. Pure.

Each is a pair of arms, one as it was and one with one thing changed, measured in the same blocks: what the machine
does meanwhile happens to both. Not here: the change that suits a limit (`intervention.py`), and the measuring (`conduct/confirm.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from howfar.analysis.findings import Confirmation, Intervention, Limit, Unconfirmed
from howfar.analysis.plateau import curves
from howfar.analysis.summary import CellSummary, Summary
from howfar.analysis.trials import TrialTable, qps, trial_table
from howfar.bottleneck.intervention import intervention
from howfar.plan.estimate import CONFIRMED_LIMITS
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import judge_ratio
from howfar.store import events
from howfar.store.records import Arm, ArmRole, Run

LEAST_APART = 1.1
"""Predictions with and without the limit that are closer than this cannot be told apart in so few blocks."""


@dataclass(frozen=True)
class Choice:
    """What is to be done after the plan's blocks."""

    asked: tuple[Intervention, ...]
    refused: tuple[Unconfirmed, ...]


def choose(summary: Summary, arms: Sequence[Arm]) -> Choice:
    """Of each curve the arm with the highest throughput: there its limit binds most. A resource that none before it had goes first."""
    cells = {cell.arm: cell for cell in summary.cells}
    tops = [top for curve in curves(arms) if (top := _top(cells[arm.name] for arm in curve if arm.name in cells))]
    asked: list[Intervention] = []
    refused: list[Unconfirmed] = []
    for cell, limit in _by_novelty(tops):
        found = intervention(cell, limit, summary)
        if isinstance(found, str):
            refused.append(Unconfirmed(arm=cell.arm, resource=limit.resource, why=found))
        elif abs(math.log(found.predicted / found.otherwise)) < math.log(LEAST_APART):
            why = f"{found.changed} would change too little to be seen: the next limit is near"
            refused.append(Unconfirmed(arm=cell.arm, resource=limit.resource, why=why))
        elif len(asked) < CONFIRMED_LIMITS:
            asked.append(found)
    return Choice(tuple(asked), tuple(refused))


def pair(chosen: Intervention, arms: Sequence[Arm]) -> tuple[Arm, Arm]:
    """The arm once more, and changed."""
    before = next(arm for arm in arms if arm.name == chosen.arm)
    same, changed = _names(chosen)
    return (
        Arm(name=same, role=ArmRole.CONFIRMATION, factors=before.factors),
        Arm(name=changed, role=ArmRole.CONFIRMATION, factors=chosen.factors),
    )


def confirmations(part: Run) -> tuple[Confirmation, ...]:
    """What came out. `part`: the confirmation's part of a run (`results/parts.py`)."""
    table = trial_table(part)
    found = []
    for chosen in _asked(part):
        ratios = _ratios(table, chosen)
        if ratios:
            measured = judge_ratio(ratios).quoted
            found.append(
                Confirmation(
                    arm=chosen.arm,
                    resource=chosen.resource,
                    changed=chosen.changed,
                    predicted=chosen.predicted,
                    otherwise=chosen.otherwise,
                    rules_out=chosen.rules_out,
                    measured=measured,
                    confirmed=is_nearer(measured, chosen.predicted, chosen.otherwise),
                    blocks=len(ratios),
                )
            )
    return tuple(found)


def unconfirmed(part: Run) -> tuple[Unconfirmed, ...]:
    """What could not be put to the test, and what was to be and was not measured."""
    begun = events.confirmation(part.events)
    if begun is None:
        return ()
    table = trial_table(part)
    missed = [
        Unconfirmed(arm=chosen.arm, resource=chosen.resource, why="no block in which both were measured")
        for chosen in _asked(part)
        if not _ratios(table, chosen)
    ]
    return (*(Unconfirmed.model_validate(refused) for refused in begun.refused), *missed)


def is_nearer(measured: Estimate, predicted: float, otherwise: float) -> bool:
    """The whole interval lies on the prediction's side of the middle, on a scale of ratios."""
    if measured.low is None or measured.high is None:
        return False
    middle = math.sqrt(predicted * otherwise)
    return measured.low > middle if predicted > otherwise else measured.high < middle


def is_refuted(found: Confirmation) -> bool:
    """The interval lies on the other side of the middle, or holds what was expected otherwise and not what was predicted."""
    measured, otherwise = found.measured, found.otherwise
    if found.confirmed or measured.low is None or measured.high is None:
        return False
    if is_nearer(measured, otherwise, found.predicted):
        return True
    return measured.low <= otherwise <= measured.high and not measured.low <= found.predicted <= measured.high


def _ratios(table: TrialTable, chosen: Intervention) -> list[float]:
    same, changed = _names(chosen)
    return table.block_ratios(changed, same, qps)


def _asked(part: Run) -> tuple[Intervention, ...]:
    begun = events.confirmation(part.events)
    return () if begun is None else tuple(Intervention.model_validate(asked) for asked in begun.asked)


def _names(chosen: Intervention) -> tuple[str, str]:
    return f"{chosen.arm} [as it was]", f"{chosen.arm} [{chosen.changed}]"


def _top(cells: Iterable[CellSummary]) -> CellSummary | None:
    return max(cells, key=lambda cell: cell.qps.value, default=None)


def _by_novelty(tops: Sequence[CellSummary]) -> list[tuple[CellSummary, Limit]]:
    limits = [(cell, cell.limit) for cell in tops if cell.limit is not None]
    seen = [limit.resource for _, limit in limits]
    again = [resource in seen[:place] for place, resource in enumerate(seen)]
    return [pair for _, pair in sorted(zip(again, limits, strict=True), key=lambda item: item[0])]
