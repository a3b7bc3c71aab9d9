"""Which trial is next, and when the run ends. These are pure functions of plan, seed and trials, so a resumed run continues the same
way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from howfar.analysis.plateau import paused_arms
from howfar.errors import NotARunFile
from howfar.other_programs import MAX_LOST_SHARE, MAX_REPEATS
from howfar.plan.cells import block_order
from howfar.plan.estimate import CONFIRMATION_BLOCKS, NEW_LINK_NS, REPORT_NS, trial_cost_ns
from howfar.plan.factor import Level
from howfar.plan.factors import has_fault, offered_per_s
from howfar.plan.quantities import MAX_BUDGET_NS
from howfar.plan.types import MAX_BLOCKS, Plan, Timing
from howfar.plan.workload import Unit
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import blocks_needed, half_width, judge_ratio
from howfar.stats.trials import (
    FigureReader,
    TrialTable,
    is_good,
    median_latency_ns,
    operations_in,
    p99_ms,
    trial_table,
)
from howfar.store.records import (
    CONFIRMATION_BLOCK,
    Arm,
    ArmRole,
    Run,
    StopReason,
    Trial,
    TrialStatus,
    confirmation_part,
    ends_attempt,
    is_repeated,
    plan_part,
    spoiled_attempts,
)

ATTEMPTS_PER_BLOCK = 3
"""Maximum number of attempts at a block. After a void trial the block is measured again from its start. The last attempt continues to
the block's end even so; if it has a void trial, the whole block is left out (see `store.records.left_out_trials`)."""

MAX_CONSECUTIVE_VOIDS = 6
"""The run ends after this many void trials of one arm in a row: the cause will not go away by itself."""


@dataclass(frozen=True)
class Slot:
    """Position of one arm in an attempt at a block."""

    block: int
    position: int
    attempt: int
    arm: str
    repetition: int = 0
    """How often the trial in this place was disturbed by other programs before."""


def remaining_slots(run: Run, block: int, target: float) -> Iterator[Slot]:
    """Slots of `block` that are not measured yet and whose arm is not paused, in the block's order.

    A void trial ends an attempt at the block at once: otherwise arms that are void more often than others would be measured at
    different times. A trial that other programs disturbed does not, because they disturb all arms alike: it is measured again in its
    place, at most `MAX_REPEATS` times.

    A paused arm keeps its position in the order, so that the others' positions do not depend on it. The trials of the block itself
    pause no arm. Raises NotARunFile.
    """
    confirming = block >= CONFIRMATION_BLOCK
    # Without the block's own trials: how many of them are disturbed may change which earlier ones are left out.
    earlier = run.model_copy(update={"trials": tuple(trial for trial in run.trials if trial.block < block)})
    part = confirmation_part(run) if confirming else plan_part(earlier)
    order = block_order(part.info.seed, block, tuple(arm.name for arm in part.info.arms))
    tried = [trial for trial in run.trials if trial.block == block]
    if any(not 0 <= trial.position < len(order) or order[trial.position] != trial.arm for trial in tried):
        raise NotARunFile(
            f"block {block} of the run file is not in the order that its seed gives",
            "It was changed by hand or by another version; begin a new run.",
        )
    attempt = max((trial.attempt for trial in tried), default=0)
    this_attempt = [trial for trial in tried if trial.attempt == attempt]
    if attempt + 1 < ATTEMPTS_PER_BLOCK and any(map(ends_attempt, this_attempt)):
        attempt, this_attempt = attempt + 1, []
    disturbed = Counter(trial.position for trial in this_attempt if is_repeated(trial))
    done = {trial.position for trial in this_attempt if not is_repeated(trial)}
    done |= {position for position, count in disturbed.items() if count > MAX_REPEATS}
    paused = frozenset[str]() if confirming else paused_arms(part, block, target)
    for position, arm in enumerate(order):
        if position not in done and arm not in paused:
            yield Slot(block, position, attempt, arm, disturbed[position])


def blocks_done(run: Run, target: float) -> int:
    """Number of the plan's blocks that are complete, counted from the first.

    A block is also done once a later block has trials. A different target would have paused other arms in it, but it is not completed
    later.
    """
    last = max((trial.block for trial in run.trials if trial.block < CONFIRMATION_BLOCK), default=None)
    if last is None:
        return 0
    return last if any(remaining_slots(run, last, target)) else last + 1


def consecutive_voids(trials: Sequence[Trial], arm: str) -> int:
    """Number of void trials of `arm` since its last good trial, not counting those that are repeated."""
    count = 0
    for trial in reversed([trial for trial in trials if trial.arm == arm and not is_repeated(trial)]):
        if trial.status is TrialStatus.OK:
            break
        count += 1
    return count


@dataclass(frozen=True)
class OwnFigure:
    """One arm's own figure, as shown to the user: its throughput; its response time if its load has a given rate; or the commits lost
    by its faults."""

    value: float
    unit: str
    """`queries/s`, `ms p99`, `commits lost`."""


def own_figure(factors: Mapping[str, Level], trials: Sequence[Trial], unit: Unit, figure: str = "") -> OwnFigure | None:
    """The median over the good trials of one arm; for faults, the sum. `figure`: the quantile by which the arm is compared, if any.
    None: no good trial."""
    faults = [trial.fault for trial in trials if trial.status is TrialStatus.OK and trial.fault is not None]
    if faults:
        return OwnFigure(sum(fault.total for fault in faults), faults[0].total_unit)
    good = [trial.measured for trial in trials if is_good(trial) and trial.measured is not None]
    if not good:
        return None
    if offered_per_s(factors) is None:
        return OwnFigure(
            median(operations_in(measured, unit) * 1e9 / measured.elapsed_ns for measured in good), f"{unit}/s"
        )
    p99s = [measured for measured in map(p99_ms, good) if measured is not None]
    if figure != "p50" and len(p99s) == len(good):
        return OwnFigure(median(p99s), "ms p99")
    medians = [measured for measured in map(median_latency_ns, good) if measured is not None]
    return OwnFigure(median(medians) / 1e6, "ms p50") if medians else None


@dataclass(frozen=True)
class ArmProgress:
    """Results of one arm so far."""

    arm: str
    role: ArmRole
    own: OwnFigure | None
    """None: no good trial yet."""
    reference: str | None
    """Name of the arm that it is compared with. None: for the baseline, its path at a given rate, and arms that do not keep up."""
    ratio: Estimate | None
    """Ratio to `reference`, of `figure`. None: no common block yet."""
    half_width: float | None
    """Half-width of the ratio's interval, as a share. None: no interval yet."""
    blocks_needed: int | None
    """Total number of blocks that the target needs at the present scatter. None: unknown or out of reach."""
    blocks: int = 0
    """Blocks in which both the arm and the baseline were measured."""
    is_paused: bool = False
    """Whether the arm is paused: not measured in the next block, because its throughput is saturated. See `analysis/plateau.py`."""
    figure: str = ""
    """What is compared: `p99`, `p50`, or throughput if empty."""
    keeps_up: bool = True
    """Whether the arm answers as many transactions as are due. In a closed loop it does by definition."""


@dataclass(frozen=True)
class RunProgress:
    """A run so far, as the live table shows it and the stopping rule uses it."""

    arms: tuple[ArmProgress, ...]
    blocks: int
    left_out: int = 0
    """Number of blocks in which each attempt had a void trial."""

    @property
    def compared(self) -> list[ArmProgress]:
        """Arms with headline ratios and the A/A arm, paused ones included."""
        return [
            arm for arm in self.arms if arm.role in (ArmRole.DUPLICATE, ArmRole.CONTENDER) and arm.reference is not None
        ]

    def is_narrow_enough(self, target: float) -> bool:
        """Whether every arm that is compared has an interval whose half-width is at most `target`."""
        widths = [arm.half_width for arm in self.compared]
        return bool(widths) and all(width is not None and width <= target for width in widths)

    @property
    def slots(self) -> int:
        """Number of trials of the next block."""
        return sum(not arm.is_paused for arm in self.arms)

    def blocks_expected(self, timing: Timing) -> int:
        """Total number of blocks, by the present scatter, without considering the time budget."""
        compared = self.compared
        if not compared or any(arm.blocks_needed is None for arm in compared):
            return timing.max_blocks
        active_blocks = max((arm.blocks_needed or 0 for arm in compared if not arm.is_paused), default=0)
        # Paused arms with a wide interval are measured again when all others are done.
        paused_blocks = max(
            (max((arm.blocks_needed or 0) - arm.blocks, 0) for arm in compared if arm.is_paused), default=0
        )
        return min(timing.max_blocks, max(timing.min_blocks, active_blocks + paused_blocks))


def run_progress(run: Run, blocks: int, target: float) -> RunProgress:
    """The state of a run after `blocks` blocks."""
    table = trial_table(run)
    paused = paused_arms(run, blocks, target)
    arms = []
    for arm in run.info.arms:
        reference, figure = _reference_and_figure(table, arm)
        ratios = [] if reference is None else table.block_ratios(arm.name, reference.name, _FIGURE_VALUES.get(figure))
        judged = judge_ratio(ratios) if ratios else None
        if has_fault(arm.factors):
            judged = None  # crashes are counted: no interval's width shows that there are enough of them
        needed_blocks = None if judged is None or judged.sd_log is None else blocks_needed(judged.sd_log, target)
        arms.append(
            ArmProgress(
                arm=arm.name,
                role=arm.role,
                own=own_figure(arm.factors, list(table.trials[arm.name].values()), table.unit, figure),
                reference=None if reference is None else reference.name,
                ratio=None if judged is None else judged.reported,
                half_width=None if judged is None else half_width(judged.reported),
                blocks_needed=needed_blocks,
                blocks=len(ratios),
                is_paused=arm.name in paused,
                figure=figure,
                keeps_up=table.keeps_up(arm),
            )
        )
    return RunProgress(tuple(arms), blocks, _count_blocks_left_out(run, blocks))


_FIGURE_VALUES: Mapping[str, FigureReader] = {"p99": p99_ms, "p50": median_latency_ns}


def _reference_and_figure(table: TrialTable, arm: Arm) -> tuple[Arm | None, str]:
    """The arm that `arm` is compared with, and the figure. The figure is throughput (an empty string); at a given rate it is the p99,
    or the p50 if a trial of either arm has too few transactions. None: not compared, for example because one of the arms does not
    keep up with its rate."""
    reference = table.compared_reference(arm)
    if reference is None or offered_per_s(arm.factors) is None:
        return reference, ""
    trials = [*table.measured(arm.name), *table.measured(reference.name)]
    sustained = table.keeps_up(arm) and table.keeps_up(reference)
    return reference if sustained else None, "p99" if all(map(p99_ms, trials)) else "p50"


def _count_blocks_left_out(run: Run, blocks: int) -> int:
    if not run.info.whole_blocks:
        return 0
    spoiled = spoiled_attempts(run)
    return sum((block, ATTEMPTS_PER_BLOCK - 1) in spoiled for block in range(blocks))


@dataclass(frozen=True)
class Budget:
    """The time budget of a whole command. Used time counts from the command's start, and includes earlier sessions of the run."""

    total_ns: int

    @property
    def measuring_ns(self) -> int:
        """Time for measuring: the total without the time reserved for the report."""
        return self.total_ns - min(REPORT_NS, self.total_ns // 10)

    def is_over(self, used_ns: int) -> bool:
        return used_ns >= self.measuring_ns

    def allows(self, used_ns: int, more_ns: int) -> bool:
        return used_ns + more_ns <= self.measuring_ns


MAX_OVERTIME_SHARE = 0.6
"""Maximum time, as a share of the time budget, by which waits and repeated trials may exceed it: a quick run may take 8 minutes."""


def lost_ns(trials: Sequence[Trial]) -> int:
    """Time that waits and disturbed trials have taken."""
    return sum(
        trial.ended_unix_ns - trial.started_unix_ns
        if is_repeated(trial)
        else 0
        if trial.receipt.quiet is None
        else trial.receipt.quiet.waited_ns
        for trial in trials
    )


def max_lost_ns(timing: Timing) -> int:
    """Maximum time that waits for other programs and repeated trials may take in a run. Without overtime, the same part of the budget
    remains for trials that count."""
    share = MAX_LOST_SHARE if timing.may_overrun else MAX_LOST_SHARE - MAX_OVERTIME_SHARE
    return int(share * timing.time_budget_ns)


def overtime_ns(timing: Timing, trials: Sequence[Trial]) -> int:
    """Time by which the run may exceed its budget, because other programs took it."""
    return min(lost_ns(trials), max_overtime_ns(timing))


def max_overtime_ns(timing: Timing) -> int:
    """Maximum time by which the run may ever exceed its budget."""
    return int(MAX_OVERTIME_SHARE * timing.time_budget_ns) if timing.may_overrun else 0


@dataclass(frozen=True)
class Forecast:
    """The probable end of a run: by its scatter, its time budget or the cap on blocks, whichever ends it first."""

    blocks: int
    """Total number of blocks, including those that are done."""
    remaining_ns: int
    """Time until the last of them is measured."""


def forecast(timing: Timing, progress: RunProgress, done_share: float, used_ns: int, block_ns: int) -> Forecast:
    """Forecast by the rules of `why_stop`. `done_share`: the share of the present block that is measured."""
    remaining_ns = Budget(timing.time_budget_ns).measuring_ns - used_ns
    fitting = max(int(remaining_ns / max(block_ns, 1) + done_share), 0)
    # A block that has begun is completed, and the first block is always measured.
    allowed = progress.blocks + max(fitting, 1 if done_share or not progress.blocks else 0)
    blocks = min(max(progress.blocks_expected(timing), progress.blocks), allowed)
    return Forecast(blocks, max(int((blocks - progress.blocks - done_share) * block_ns), 0))


def block_cost_ns(plan: Plan, slots: int, trials: Sequence[Trial]) -> int:
    """Estimated time of `slots` trials, without that for other programs: each takes the median time of `trials`, or the plan's
    estimate if there are none."""
    counting = [trial for trial in trials if not is_repeated(trial)]
    durations_ns = [trial.ended_unix_ns - trial.started_unix_ns - lost_ns([trial]) for trial in counting]
    trial_ns = int(median(durations_ns)) if durations_ns else trial_cost_ns(plan)
    return slots * max(trial_ns, 0)


def confirmation_cost_ns(plan: Plan, arms: Sequence[str], trials: Sequence[Trial]) -> int:
    """Estimated time to confirm the limits of these arms in a newly opened laboratory, in which no link is calibrated yet."""
    trials_by_arm = ([trial for trial in trials if trial.arm == arm] for arm in arms)
    return sum(
        block_cost_ns(plan, 2 * CONFIRMATION_BLOCKS, arm_trials) + 2 * NEW_LINK_NS for arm_trials in trials_by_arm
    )


def why_stop(timing: Timing, progress: RunProgress, used_ns: int, next_block_ns: int) -> StopReason | None:
    """The reason to stop after a block. None: measure one more block. The first block is measured whatever its time."""
    if progress.blocks >= timing.min_blocks and progress.is_narrow_enough(timing.target_half_width):
        return StopReason.WIDTH
    if progress.blocks >= timing.max_blocks:
        return StopReason.BLOCKS
    if progress.blocks >= 1 and not Budget(timing.time_budget_ns).allows(used_ns, next_block_ns):
        return StopReason.TIME
    return None


@dataclass(frozen=True)
class Extension:
    """Options of `howfar resume` for this session."""

    time_ns: int | None = None
    """Time that the session may take, including its laboratory and its report."""
    target: float | None = None
    """Target half-width as a share."""
    confirm: bool = False
    """Whether to test the limits when the plan's blocks are done, or at once if they are."""

    only_confirms: bool = False
    """Whether to do only the confirmation: a run that has ended gets no more of the plan's blocks, however much time is left."""

    @property
    def wants_more_blocks(self) -> bool:
        """Whether the plan's own blocks are requested, not only their confirmation."""
        return not self.confirm and self != Extension()

    def extended_timing(self, timing: Timing, used_ns: int, blocks: int) -> Timing:
        """The run's timing from now on. `used_ns`: time used by earlier sessions. If the maximum number of blocks is reached, it is
        raised."""
        changed: dict[str, int | float] = {}
        if self.time_ns is not None:
            changed["time_budget_ns"] = min(used_ns + self.time_ns, MAX_BUDGET_NS)
            changed["may_overrun"] = False
        if self.target is not None:
            changed["target_half_width"] = self.target
        if changed and blocks >= timing.max_blocks and not self.confirm:
            changed["max_blocks"] = MAX_BLOCKS
        if self.confirm:
            changed["confirm"] = True
        return timing.model_copy(update=changed)
