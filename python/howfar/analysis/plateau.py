"""Plateaus, where throughput no longer grows with connections, and arms that therefore need no further block. Pure.

A saturated tail takes as much time as the rest of a curve and only repeats the same result. An arm deep on a plateau rests: its time
goes to blocks for the other arms. It keeps its interval; nothing narrower is claimed for it. Not here: which resource makes the
plateau (`bottleneck/`), and when a run ends (`runner/stopping.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from howfar.plan.factors import NO_PAGE, breaks, offered_per_s
from howfar.stats.intervals import MIN_BLOCKS, half_width, judge_ratio
from howfar.stats.trials import TrialTable, alike, trial_table
from howfar.store.records import Arm, ArmRole, Run

AGREEMENT = 0.03
"""Two levels agree if the whole interval of their ratio is within this share of 1, which shows that they are practically equal. That
an interval includes 1 does not show it; a wide one always does."""
LEVELS = 3
"""Minimum number of levels in a plateau. Fewer may agree by chance, and would leave none to rest, because its ends never rest."""
BLOCKS = MIN_BLOCKS
"""Minimum number of blocks that two levels must have in common, as an interval needs them."""


def curves(arms: Sequence[Arm]) -> tuple[tuple[Arm, ...], ...]:
    """Arms that differ only in connections, ascending. The A/A arm repeats the baseline and is not a separate level."""
    levels = [arm for arm in arms if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER) and "threads" in arm.factors]
    return tuple(tuple(sorted(curve, key=_threads)) for curve in alike(levels, lambda arm: arm.factors, "threads"))


def plateaus(table: TrialTable) -> tuple[tuple[Arm, ...], ...]:
    """Sequences of at least `LEVELS` consecutive levels of a curve in which any two agree, extended from the left as far as possible.
    On a slow slope they overlap; the ends of each then count as ends for both."""
    found: list[tuple[Arm, ...]] = []
    for curve in curves(table.run.info.arms):
        begun: list[Arm] = []
        for arm in curve:
            if all(_agree(table, arm, other) for other in begun):
                begun.append(arm)
                continue
            found.append(tuple(begun))
            # The level that did not fit may begin the next sequence, with the levels before it that it agrees with.
            begun = _tail_agreeing(table, begun, arm)
        found.append(tuple(begun))
    return tuple(levels for levels in found if len(levels) >= LEVELS)


def resting(run: Run, block: int, target: float) -> frozenset[str]:
    """Names of the arms that are not measured in `block`, according to the trials of the blocks before it.

    All levels of a plateau rest except its first and last; the baseline, its duplicate and a single connection never rest. Once every
    arm that does not rest is as narrow as `target`, those resting arms that are not are measured again, so that a run does not count
    as narrow enough only because of what it left out.
    """
    table = trial_table(run.model_copy(update={"trials": tuple(t for t in run.trials if t.block < block)}))
    if table.blocks < BLOCKS:
        return frozenset()
    flat = plateaus(table)
    ends = {arm.name for levels in flat for arm in (levels[0], levels[-1])}
    inside = {arm.name for levels in flat for arm in levels[1:-1] if _may_rest(arm)} - ends
    if not inside:
        return frozenset()
    roles = (ArmRole.DUPLICATE, ArmRole.CONTENDER)
    compared = (arm for arm in run.info.arms if arm.role in roles and offered_per_s(arm.factors) is None)
    wide = {arm.name for arm in compared if not _is_narrow(table, arm, target)}
    return frozenset(inside if wide - inside else inside - wide)


def _threads(arm: Arm) -> int:
    return int(arm.factors["threads"])


def _may_rest(arm: Arm) -> bool:
    """Whether an arm may rest. The model and the cycle budget need the arm with one connection; ratios and the noise floor need the
    baseline. For pages, each number in flight is a separate question."""
    paged = arm.factors.get("page", NO_PAGE) != NO_PAGE
    paced = offered_per_s(arm.factors) is not None  # its throughput is given, so it shows no plateau
    return arm.role is ArmRole.CONTENDER and _threads(arm) > 1 and not breaks(arm.factors) and not (paged or paced)


def _agree(table: TrialTable, one: Arm, other: Arm) -> bool:
    ratios = table.block_ratios(one.name, other.name)
    if len(ratios) < BLOCKS:
        return False
    quoted = judge_ratio(ratios).quoted
    if quoted.low is None or quoted.high is None:
        return False
    return quoted.low >= 1 / (1 + AGREEMENT) and quoted.high <= 1 + AGREEMENT


def _tail_agreeing(table: TrialTable, begun: Sequence[Arm], arm: Arm) -> list[Arm]:
    kept = [arm]
    for other in reversed(begun):
        if not _agree(table, arm, other):
            break
        kept.insert(0, other)
    return kept


def _is_narrow(table: TrialTable, arm: Arm, target: float) -> bool:
    reference = table.compared(arm)
    ratios = [] if reference is None else table.block_ratios(arm.name, reference.name)
    width = half_width(judge_ratio(ratios).quoted) if ratios else None
    return width is not None and width <= target


def settled(run: Run, target: float) -> frozenset[str]:
    """Arms that rested in the last block of a run."""
    last = max((trial.block for trial in run.trials), default=0)
    return resting(run, last, target) - {trial.arm for trial in run.trials if trial.block == last}


def complete_blocks(table: TrialTable, target: float) -> int:
    """Blocks in which every arm that did not rest has a good trial."""
    names = {arm.name for arm in table.run.info.arms}
    blocks = set().union(*(set(good) for good in table.good.values()))

    def missing(block: int) -> set[str]:
        return {name for name in names if block not in table.good[name]}

    return sum(
        not absent or absent <= resting(table.run, block, target) for block in blocks for absent in [missing(block)]
    )
