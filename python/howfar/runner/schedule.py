"""What is to be measured next, as a pure function of the plan's arms and target, the seed and the trials so far.

So a run that was cut off continues by the same reckoning: nothing else is remembered, not even which arms rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from howfar.analysis.plateau import resting
from howfar.errors import NotARunFile
from howfar.plan.cells import block_order
from howfar.store.parts import confirmation_part, plan_part
from howfar.store.records import CONFIRMATION_BLOCK, Run, Trial, TrialStatus

ATTEMPTS_PER_PLACE = 2
"""A place in a block whose trial was void is tried once more; then the block goes on without it."""

VOIDS_IN_A_ROW = 6
"""So many void trials of one arm, without a good one between: what is wrong will not pass by itself."""


@dataclass(frozen=True)
class Place:
    """One arm's turn in a block."""

    block: int
    position: int
    attempt: int
    arm: str


def places_left(run: Run, block: int, target: float) -> Iterator[Place]:
    """Places of `block` that have no good trial, attempts left and an arm that does not rest, in the block's order.

    A resting arm keeps its place in the order, so that the others have the same ones with and without it. Raises NotARunFile.
    """
    confirming = block >= CONFIRMATION_BLOCK
    part = confirmation_part(run) if confirming else plan_part(run)
    order = block_order(part.info.seed, block, tuple(arm.name for arm in part.info.arms))
    rest = frozenset[str]() if confirming else resting(part, block, target)
    for position, arm in enumerate(order):
        tried = [trial for trial in part.trials if trial.block == block and trial.position == position]
        if any(trial.arm != arm for trial in tried):
            raise NotARunFile(
                f"block {block} of the run file is not in the order that its seed gives",
                "It was changed by hand or by another version; begin a new run.",
            )
        if arm in rest:
            continue
        if len(tried) < ATTEMPTS_PER_PLACE and all(trial.status is TrialStatus.VOID for trial in tried):
            yield Place(block, position, len(tried), arm)


def blocks_done(run: Run, target: float) -> int:
    """How many of the plan's blocks, from the first, have nothing left to measure.

    What comes after a block ended it: with another target other arms would have rested in it, and they are not measured later.
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
