"""What the baseline can do at most: measured before a run whose loads are shares of it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from howfar.errors import LabError
from howfar.plan.factors import CLOSED
from howfar.plan.fitting import closed_loop, needs_capacity, with_capacity
from howfar.plan.types import Plan
from howfar.runner.stopping import Slot
from howfar.runner.trial import Instruments, run_trial
from howfar.store.records import Arm, ArmRole
from howfar.testbed import Testbed

TRIALS = 3
TRIED = 6
"""Void trials included."""


def with_rates(
    plan: Plan, seed: int, laboratory: Testbed, instruments: Instruments, say: Callable[[str], None]
) -> tuple[Plan, dict[str, Any]]:
    """The plan with every load as a rate, and how the capacity was found, for the run file. Raises LabError.

    The capacity is the median of a few trials of the baseline in a closed loop. It only sets the rates: what each cell is compared
    with is measured in its own block.
    """
    if not needs_capacity(plan):
        return plan, {}
    cell = closed_loop(plan)
    arm = Arm(name=cell.name, role=ArmRole.BASELINE, factors=dict(cell.factors))
    rates: list[float] = []
    reason = ""
    for number in range(TRIED):
        trial = run_trial(
            number, Slot(0, 0, number, arm.name), arm, plan, seed, laboratory, instruments, lambda event: None
        )
        if trial.measured is not None and trial.void_reason is None:
            rates.append(trial.measured.transactions * 1e9 / trial.measured.elapsed_ns)
        reason = trial.void_reason or reason
        if len(rates) == TRIALS:
            break
    if not rates:
        raise LabError(
            f"the capacity of {arm.name} could not be measured: {TRIED} trials were void, the last because: {reason}",
            "Mend the cause, or give rates instead of shares: --load 300/s.",
        )
    per_s = median(rates)
    rated = with_capacity(plan, per_s)
    loads = ", ".join(level for level in rated.factors.load if level != CLOSED)
    say(f"capacity of the baseline ({arm.name}): {per_s:,.0f} transactions/s; loads: {loads}")
    return rated, {"capacity": {"arm": arm.name, "per_s": per_s, "trials": rates}}
