"""The engine's job of one arm on a staged path: a file for each kind of workload."""

from __future__ import annotations

from howfar.conduct.jobs.keys import keys_job
from howfar.conduct.jobs.pages import page_job
from howfar.conduct.jobs.statements import statements_job
from howfar.engine.messages import LoadJob, PageJob
from howfar.lab.stage import Stage
from howfar.plan.types import Plan
from howfar.plan.workload import NOT_A_COMMIT
from howfar.results.records import Arm

__all__ = ["commits_each", "job_of"]


def job_of(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob | PageJob:
    """Stores of keys are filled first. Raises LabError, EngineError."""
    match plan.workload.kind:
        case "page":
            return page_job(plan, arm, stage, seed)
        case "key_value":
            return keys_job(plan, arm, stage, seed)
        case _:
            return statements_job(plan, arm, stage, seed)


def commits_each(plan: Plan, arm: Arm) -> int:
    """How often a transaction, or a page, of the arm has something to commit."""
    if plan.workload.kind == "page":
        shape = plan.pages[str(arm.factors["page"])]
        return shape.rounds if shape.index_updates else 0
    return 0 if plan.workload.kind in NOT_A_COMMIT else 1
