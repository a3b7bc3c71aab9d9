"""Which trial is next, and when the run ends. Pure functions of plan, seed and trials, so a resumed run continues unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from howfar.analysis.plateau import resting
from howfar.errors import NotARunFile
from howfar.plan.cells import block_order
from howfar.plan.estimate import CONFIRMATION_BLOCKS, NEW_LINK_NS, REPORT_NS, trial_cost_ns
from howfar.plan.factors import breaks, offered_per_s
from howfar.plan.quantities import MOST_BUDGET_NS
from howfar.plan.types import MOST_BLOCKS, Plan, Timing
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import blocks_needed, half_width, judge_ratio
from howfar.stats.trials import (
    TrialTable,
    Unit,
    Value,
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
    CrashRecord,
    FactorValue,
    Run,
    StopReason,
    Trial,
    TrialStatus,
    confirmation_part,
    plan_part,
)

ATTEMPTS_PER_BLOCK = 3
"""Maximum number of attempts at a block: one with a void trial is measured again from its start. The last attempt continues to the
block's end; if it has a void trial, all of it is left out, see `store.records.left_out`."""

VOIDS_IN_A_ROW = 6
"""Void trials of one arm in a row after which the run ends: the cause will not go away by itself."""


@dataclass(frozen=True)
class Slot:
    """Position of one arm in an attempt at a block."""

    block: int
    position: int
    attempt: int
    arm: str


def places_left(run: Run, block: int, target: float) -> Iterator[Slot]:
    """Slots of `block` that are not measured yet and whose arm does not rest, in the block's order.

    A void trial ends an attempt at the block at once: otherwise arms that are void more often than others would be measured at
    different times. A resting arm keeps its position in the order, so that the others' positions do not depend on it.
    Raises NotARunFile.
    """
    confirming = block >= CONFIRMATION_BLOCK
    part = confirmation_part(run) if confirming else plan_part(run)
    order = block_order(part.info.seed, block, tuple(arm.name for arm in part.info.arms))
    tried = [trial for trial in run.trials if trial.block == block]
    if any(not 0 <= trial.position < len(order) or order[trial.position] != trial.arm for trial in tried):
        raise NotARunFile(
            f"block {block} of the run file is not in the order that its seed gives",
            "It was changed by hand or by another version; begin a new run.",
        )
    attempt = max((trial.attempt for trial in tried), default=0)
    here = [trial for trial in tried if trial.attempt == attempt]
    if attempt + 1 < ATTEMPTS_PER_BLOCK and any(trial.status is TrialStatus.VOID for trial in here):
        attempt, here = attempt + 1, []
    done = {trial.position for trial in here}
    rest = frozenset[str]() if confirming else resting(part, block, target)
    for position, arm in enumerate(order):
        if position not in done and arm not in rest:
            yield Slot(block, position, attempt, arm)


def blocks_done(run: Run, target: float) -> int:
    """Number of the plan's blocks, from the first, that have nothing left to measure.

    A block with later trials is done: with a different target different arms would have rested in it, but it is not completed later.
    """
    last = max((trial.block for trial in plan_part(run).trials), default=None)
    if last is None:
        return 0
    return last if any(places_left(run, last, target)) else last + 1


def voids_in_a_row(trials: Sequence[Trial], arm: str) -> int:
    """Void trials of `arm` since its last good one."""
    count = 0
    for trial in reversed([trial for trial in trials if trial.arm == arm]):
        if trial.status is TrialStatus.OK:
            break
        count += 1
    return count


@dataclass(frozen=True)
class OwnFigure:
    """The figure of one arm alone that is shown to the user: its throughput, at a given rate its response time, or the loss by its
    faults."""

    value: float
    unit: str
    """`queries/s`, `ms p99`, `commits lost`."""


def own_figure(
    factors: Mapping[str, FactorValue], trials: Sequence[Trial], unit: Unit, figure: str = ""
) -> OwnFigure | None:
    """The median over the good trials of one arm; for faults the sum. `figure`: the quantile by which the arm is compared, if any.
    None: no good trial."""
    faults = [trial.fault for trial in trials if trial.status is TrialStatus.OK and trial.fault is not None]
    if faults:
        lost = [fault.lost if isinstance(fault, CrashRecord) else fault.unprotected for fault in faults]
        what = "lost" if isinstance(faults[0], CrashRecord) else "unprotected"
        return OwnFigure(sum(lost), f"commits {what}")
    good = [trial.measured for trial in trials if is_good(trial) and trial.measured is not None]
    if not good:
        return None
    if offered_per_s(factors) is None:
        return OwnFigure(median(operations_in(each, unit) * 1e9 / each.elapsed_ns for each in good), f"{unit}/s")
    tails = [each for each in map(p99_ms, good) if each is not None]
    if figure != "p50" and len(tails) == len(good):
        return OwnFigure(median(tails), "ms p99")
    middles = [each for each in map(median_latency_ns, good) if each is not None]
    return OwnFigure(median(middles) / 1e6, "ms p50") if middles else None


@dataclass(frozen=True)
class ArmStanding:
    """Results of one arm so far."""

    arm: str
    role: ArmRole
    own: OwnFigure | None
    """None: no good trial yet."""
    over: str | None
    """The arm that it is compared with. None: for the baseline, its path at a given rate, and arms that do not keep up."""
    ratio: Estimate | None
    """Ratio to `over`, of `figure`. None: no common block yet."""
    half_width: float | None
    """Half-width of the ratio's interval, as a share. None: no interval yet."""
    blocks_needed: int | None
    """Blocks in all that the target needs at the present scatter. None: unknown or out of reach."""
    blocks: int = 0
    """Blocks in which both the arm and the baseline were measured."""
    rests: bool = False
    """Whether the arm, deep on a plateau, is not measured in the next block. See `analysis/plateau.py`."""
    figure: str = ""
    """What is compared: `p99`, `p50`, or throughput if empty."""
    keeps_up: bool = True
    """Whether it answers as many transactions as are due. A closed loop does by definition."""


@dataclass(frozen=True)
class Standing:
    """A run so far: what the live table shows and the rule decides on."""

    arms: tuple[ArmStanding, ...]
    blocks: int
    left_out: int = 0
    """Blocks in which each attempt had a void trial."""

    @property
    def compared(self) -> list[ArmStanding]:
        """Arms with headline ratios and the A/A arm, resting ones included."""
        return [arm for arm in self.arms if arm.role in (ArmRole.DUPLICATE, ArmRole.CONTENDER) and arm.over is not None]

    def narrow_enough(self, target: float) -> bool:
        """Whether every arm that is compared has an interval whose half-width is at most `target`."""
        widths = [arm.half_width for arm in self.compared]
        return bool(widths) and all(width is not None and width <= target for width in widths)

    @property
    def places(self) -> int:
        """Number of trials of the next block."""
        return sum(not arm.rests for arm in self.arms)

    def blocks_expected(self, timing: Timing) -> int:
        """Blocks in all, by the present scatter, before the time budget is considered."""
        compared = self.compared
        if not compared or any(arm.blocks_needed is None for arm in compared):
            return timing.max_blocks
        most = max((arm.blocks_needed or 0 for arm in compared if not arm.rests), default=0)
        # Resting arms with a wide interval are measured again when all others are done.
        after = max((max((arm.blocks_needed or 0) - arm.blocks, 0) for arm in compared if arm.rests), default=0)
        return min(timing.max_blocks, max(timing.min_blocks, most + after))


def standing(run: Run, blocks: int, target: float) -> Standing:
    """The state of a run after `blocks` blocks."""
    table = trial_table(run)
    rest = resting(run, blocks, target)
    arms = []
    for arm in run.info.arms:
        over, figure = _compared(table, arm)
        ratios = [] if over is None else table.block_ratios(arm.name, over.name, _VALUES.get(figure))
        judged = judge_ratio(ratios) if ratios else None
        if breaks(arm.factors):
            judged = None  # crashes are counted, block by block: no width shows that there are enough
        needed = None if judged is None or judged.sd_log is None else blocks_needed(judged.sd_log, target)
        arms.append(
            ArmStanding(
                arm=arm.name,
                role=arm.role,
                own=own_figure(arm.factors, list(table.trials[arm.name].values()), table.unit, figure),
                over=None if over is None else over.name,
                ratio=None if judged is None else judged.quoted,
                half_width=None if judged is None else half_width(judged.quoted),
                blocks_needed=needed,
                blocks=len(ratios),
                rests=arm.name in rest,
                figure=figure,
                keeps_up=table.sustains(arm),
            )
        )
    return Standing(tuple(arms), blocks, _blocks_left_out(run, blocks))


_VALUES: Mapping[str, Value] = {"p99": p99_ms, "p50": median_latency_ns}


def _compared(table: TrialTable, arm: Arm) -> tuple[Arm | None, str]:
    """The arm that `arm` is compared with, and the figure: throughput (empty); at a given rate the p99, or the p50 if a trial of
    either has too few transactions. None: not compared, for example because one does not keep up with its rate."""
    over = table.compared(arm)
    if over is None or offered_per_s(arm.factors) is None:
        return over, ""
    trials = [*table.measured(arm.name), *table.measured(over.name)]
    sustained = table.sustains(arm) and table.sustains(over)
    return over if sustained else None, "p99" if all(map(p99_ms, trials)) else "p50"


def _blocks_left_out(run: Run, blocks: int) -> int:
    if not run.info.whole_blocks:
        return 0
    ends = {(trial.block, trial.attempt) for trial in run.trials if trial.status is TrialStatus.VOID}
    return sum((block, ATTEMPTS_PER_BLOCK - 1) in ends for block in range(blocks))


@dataclass(frozen=True)
class Budget:
    """The time of a whole command. `used` counts from its start and includes what earlier sessions of the run measured."""

    total_ns: int

    @property
    def measuring_ns(self) -> int:
        """Measuring time left when the report's time is reserved."""
        return self.total_ns - min(REPORT_NS, self.total_ns // 10)

    def is_over(self, used_ns: int) -> bool:
        return used_ns >= self.measuring_ns

    def allows(self, used_ns: int, more_ns: int) -> bool:
        return used_ns + more_ns <= self.measuring_ns


@dataclass(frozen=True)
class Forecast:
    """The probable end of a run: by its scatter, its time budget or the cap on blocks, whichever ends it first."""

    blocks: int
    """Blocks in all, those done included."""
    left_ns: int
    """Time until the last of them is measured."""


def forecast(timing: Timing, now: Standing, done_here: float, used_ns: int, block_ns: int) -> Forecast:
    """Forecast by the rules of `why_stop`. `done_here`: the share of the present block that is measured."""
    left_ns = Budget(timing.time_budget_ns).measuring_ns - used_ns
    fitting = max(int(left_ns / max(block_ns, 1) + done_here), 0)
    # A block that has begun is completed, and so is the first.
    allowed = now.blocks + max(fitting, 1 if done_here or not now.blocks else 0)
    blocks = min(max(now.blocks_expected(timing), now.blocks), allowed)
    return Forecast(blocks, max(int((blocks - now.blocks - done_here) * block_ns), 0))


def block_cost_ns(plan: Plan, places: int, trials: Sequence[Trial]) -> int:
    """Forecast for `places` trials: each takes the median of `trials`, or without any the plan's estimate."""
    taken = [trial.ended_unix_ns - trial.started_unix_ns for trial in trials]
    trial_ns = int(median(taken)) if taken else trial_cost_ns(plan)
    return places * max(trial_ns, 0)


def confirmation_cost_ns(plan: Plan, arms: Sequence[str], trials: Sequence[Trial]) -> int:
    """Forecast of confirming the limits of these arms in a laboratory just opened: no link is calibrated yet."""
    of_arms = ([trial for trial in trials if trial.arm == arm] for arm in arms)
    return sum(block_cost_ns(plan, 2 * CONFIRMATION_BLOCKS, own) + 2 * NEW_LINK_NS for own in of_arms)


def why_stop(timing: Timing, now: Standing, used_ns: int, next_block_ns: int) -> StopReason | None:
    """Why to stop after a block. None: one more block. The first block is never refused for time."""
    if now.blocks >= timing.min_blocks and now.narrow_enough(timing.target_half_width):
        return StopReason.WIDTH
    if now.blocks >= timing.max_blocks:
        return StopReason.BLOCKS
    if now.blocks >= 1 and not Budget(timing.time_budget_ns).allows(used_ns, next_block_ns):
        return StopReason.TIME
    return None


@dataclass(frozen=True)
class Extension:
    """Options of `howfar resume` for this session."""

    time_ns: int | None = None
    """Time that the session may take, its laboratory and report included."""
    target: float | None = None
    """Target half-width as a share."""
    confirm: bool = False
    """Whether to test the limits when the plan's blocks are done, or at once if they are."""

    only_confirms: bool = False
    """Whether to do only that: a run that has ended gets no more of the plan's blocks, however much time is left."""

    @property
    def measures_on(self) -> bool:
        """Whether the plan's own blocks are requested, not only their confirmation."""
        return not self.confirm and self != Extension()

    def applied(self, timing: Timing, used_ns: int, blocks: int) -> Timing:
        """The run's timing from now on. `used_ns`: used by earlier sessions; a reached cap on blocks is lifted."""
        changed: dict[str, int | float] = {}
        if self.time_ns is not None:
            changed["time_budget_ns"] = min(used_ns + self.time_ns, MOST_BUDGET_NS)
        if self.target is not None:
            changed["target_half_width"] = self.target
        if changed and blocks >= timing.max_blocks and not self.confirm:
            changed["max_blocks"] = MOST_BLOCKS
        if self.confirm:
            changed["confirm"] = True
        return timing.model_copy(update=changed)
