"""The engine's job of one arm on a staged path: a file for each kind of workload."""

from __future__ import annotations

from howfar.conduct.jobs.keys import keys_job
from howfar.conduct.jobs.pages import page_job
from howfar.conduct.jobs.statements import statements_job
from howfar.engine.messages import LoadJob, PageJob
from howfar.lab.stage import Stage
from howfar.plan.types import Plan
from howfar.results.records import Arm

__all__ = ["job_of"]


def job_of(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob | PageJob:
    """Stores of keys are filled first. Raises LabError, EngineError."""
    match plan.workload.kind:
        case "page":
            return page_job(plan, arm, stage, seed)
        case "key_value":
            return keys_job(plan, arm, stage, seed)
        case _:
            return statements_job(plan, arm, stage, seed)
