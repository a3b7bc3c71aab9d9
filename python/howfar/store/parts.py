"""A run in two: what the plan asked, and what confirmed the limits that were then named. Neither sees the other."""

from __future__ import annotations

from howfar.store.records import Arm, ArmRole, Run


def plan_part(run: Run) -> Run:
    """The run as if nothing had been confirmed."""
    return _part(run, tuple(arm for arm in run.info.arms if arm.role is not ArmRole.CONFIRMATION))


def confirmation_part(run: Run) -> Run:
    """The confirmation's arms and trials only."""
    return _part(run, tuple(arm for arm in run.info.arms if arm.role is ArmRole.CONFIRMATION))


def _part(run: Run, arms: tuple[Arm, ...]) -> Run:
    if arms == run.info.arms:
        return run
    names = {arm.name for arm in arms}
    return run.model_copy(
        update={
            "info": run.info.model_copy(update={"arms": arms}),
            "trials": tuple(trial for trial in run.trials if trial.arm in names),
        }
    )
