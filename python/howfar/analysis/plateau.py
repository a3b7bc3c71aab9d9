"""Plateaus, where throughput no longer grows with connections, and arms that therefore need no further block. No I/O.

The saturated end of a curve takes as much time as the rest and only repeats the same result. So an arm in the middle of a plateau
is paused: its time goes to blocks for the other arms. It keeps its interval, and no narrower one is claimed for it. `bottleneck/`
finds the resource that makes the plateau; `runner/stopping.py` decides when a run ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from howfar.plan.factors import THREADS, has_fault, offered_per_s
from howfar.stats.intervals import MIN_BLOCKS, half_width, judge_ratio
from howfar.stats.trials import TrialTable, group_by_other_factors, trial_table
from howfar.store.records import Arm, ArmRole, Run

AGREEMENT = 0.03
"""Two levels agree if the whole interval of their ratio is within this share of 1: then they are practically equal. That an
interval includes 1 would not show this, because a wide one always does."""
MIN_LEVELS = 3
"""Minimum number of levels in a plateau. Fewer may agree by chance, and none could be paused, because a plateau's ends never are."""


def curves(arms: Sequence[Arm]) -> tuple[tuple[Arm, ...], ...]:
    """Arms that differ only in connections, ascending. The A/A arm repeats the baseline and is not a separate level."""
    levels = [arm for arm in arms if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER) and "threads" in arm.factors]
    return tuple(
        tuple(sorted(curve, key=_threads))
        for curve in group_by_other_factors(levels, lambda arm: arm.factors, "threads")
    )


def plateaus(table: TrialTable) -> tuple[tuple[Arm, ...], ...]:
    """The plateaus of all curves: at least `MIN_LEVELS` consecutive levels of which any two agree. Each extends as far to the right
    as possible. On a slow slope plateaus overlap; the ends of each then count as ends for both."""
    sequences: list[tuple[Arm, ...]] = []
    for curve in curves(table.run.info.arms):
        levels_so_far: list[Arm] = []
        for arm in curve:
            if all(_agree(table, arm, other) for other in levels_so_far):
                levels_so_far.append(arm)
                continue
            sequences.append(tuple(levels_so_far))
            # This level starts the next sequence, together with the levels just before it that agree with it.
            levels_so_far = _tail_agreeing_with(table, levels_so_far, arm)
        sequences.append(tuple(levels_so_far))
    return tuple(levels for levels in sequences if len(levels) >= MIN_LEVELS)


def paused_arms(run: Run, block: int, target: float) -> frozenset[str]:
    """Names of the arms that are not measured in `block`, according to the trials of the blocks before it.

    All levels of a plateau are paused except its first and last. The baseline, its duplicate and a single connection are never
    paused. Once the intervals of all other arms are as narrow as `target`, paused arms with wider intervals are measured again, so
    that a run does not count as narrow enough only because wide intervals were left out.
    """
    table = trial_table(run.model_copy(update={"trials": tuple(t for t in run.trials if t.block < block)}))
    if table.blocks < MIN_BLOCKS:
        return frozenset()
    plateau_levels = plateaus(table)
    ends = {arm.name for levels in plateau_levels for arm in (levels[0], levels[-1])}
    candidates = {arm.name for levels in plateau_levels for arm in levels[1:-1] if _can_be_paused(table, arm)} - ends
    if not candidates:
        return frozenset()
    roles = (ArmRole.DUPLICATE, ArmRole.CONTENDER)
    compared = (arm for arm in run.info.arms if arm.role in roles and offered_per_s(arm.factors) is None)
    too_wide = {arm.name for arm in compared if not _is_narrow(table, arm, target)}
    return frozenset(candidates if too_wide - candidates else candidates - too_wide)


def _threads(arm: Arm) -> int:
    return THREADS.level_in(arm.factors)


def _can_be_paused(table: TrialTable, arm: Arm) -> bool:
    """Whether an arm may be paused. The model and the cycle need the arm with one connection; ratios and the noise floor need the
    baseline. If an operation is composite, each number in progress is a separate question."""
    has_given_rate = offered_per_s(arm.factors) is not None  # the plan sets its throughput, so it has no plateau
    return (
        arm.role is ArmRole.CONTENDER
        and _threads(arm) > 1
        and not has_fault(arm.factors)
        and not (table.operation.is_composite or has_given_rate)
    )


def _agree(table: TrialTable, first: Arm, second: Arm) -> bool:
    ratios = table.block_ratios(first.name, second.name)
    if len(ratios) < MIN_BLOCKS:
        return False
    reported = judge_ratio(ratios).reported
    if reported.low is None or reported.high is None:
        return False
    return reported.low >= 1 / (1 + AGREEMENT) and reported.high <= 1 + AGREEMENT


def _tail_agreeing_with(table: TrialTable, levels_so_far: Sequence[Arm], arm: Arm) -> list[Arm]:
    levels = [arm]
    for other in reversed(levels_so_far):
        if not _agree(table, arm, other):
            break
        levels.insert(0, other)
    return levels


def _is_narrow(table: TrialTable, arm: Arm, target: float) -> bool:
    reference = table.compared_reference(arm)
    ratios = [] if reference is None else table.block_ratios(arm.name, reference.name)
    width = half_width(judge_ratio(ratios).reported) if ratios else None
    return width is not None and width <= target


def saturated_arms(run: Run, target: float) -> frozenset[str]:
    """Arms that were paused in the last block of a run."""
    last = max((trial.block for trial in run.trials), default=0)
    return paused_arms(run, last, target) - {trial.arm for trial in run.trials if trial.block == last}


def complete_blocks(table: TrialTable, target: float) -> int:
    """Number of blocks in which every arm that was not paused has a good trial."""
    names = {arm.name for arm in table.run.info.arms}
    blocks = set().union(*(set(good_trials) for good_trials in table.good.values()))

    def is_complete(block: int) -> bool:
        missing = {name for name in names if block not in table.good[name]}
        return not missing or missing <= paused_arms(table.run, block, target)

    return sum(map(is_complete, blocks))
