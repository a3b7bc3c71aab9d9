"""Others' figures for a path with a hop, next to the same ratio of ours; never mixed with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from howfar.analysis.published import PublishedCell, published_sets
from howfar.plan.factors import CONNECT, FACTORS, level_of, offered_per_s
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import judge_ratio
from howfar.stats.trials import TrialTable
from howfar.store.records import Arm

PLAN = "hops"
"""Name of the plan that repeats what was published."""


class HopElsewhere(Part):
    """Ratio of the throughputs of two paths."""

    path: str
    over: str
    connect: str
    """How both connect."""
    theirs: float
    ours: Estimate
    source: str
    setup: str


def published_hops(table: TrialTable, arms: Sequence[Arm]) -> tuple[HopElsewhere, ...]:
    """Published ratios of which this run has both cells, in a closed loop. `arms`: those with one number of clients."""
    info = table.run.info
    looped = [arm for arm in arms if offered_per_s(arm.factors) is None]
    workload: Mapping[str, object] = info.plan["workload"]
    found = []
    for entry in published_sets():
        if entry.plan != PLAN or entry.differs(workload, info.server_kind):
            continue
        (base,) = (cell for cell in entry.cells if cell.factors == entry.baseline)
        reference = _arm_of(base, looped)
        for cell in entry.cells:
            arm = _arm_of(cell, looped)
            if cell is base or arm is None or reference is None or not cell.tps or not base.tps:
                continue
            if ratios := table.block_ratios(arm.name, reference.name):
                found.append(
                    HopElsewhere(
                        path=str(arm.factors["path"]),
                        over=str(reference.factors["path"]),
                        connect=CONNECT.of(arm.factors),
                        theirs=cell.tps / base.tps,
                        ours=judge_ratio(ratios).quoted,
                        source=entry.source,
                        setup=entry.setup,
                    )
                )
    return tuple(found)


def _arm_of(cell: PublishedCell, arms: Sequence[Arm]) -> Arm | None:
    return next((arm for arm in arms if all(_level(arm, name) == level for name, level in cell.factors.items())), None)


def _level(arm: Arm, name: str) -> object:
    return level_of(arm.factors, name) if name in FACTORS else None
