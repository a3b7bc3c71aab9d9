"""The engine's job of one arm on a staged path: a file for each kind of workload."""

from __future__ import annotations

from howfar.engine.messages import LoadJob, PageJob
from howfar.lab.stage import Stage
from howfar.plan.types import Plan
from howfar.plan.workload import READS_ONLY
from howfar.runner.jobs.keys import keys_job
from howfar.runner.jobs.pages import page_job
from howfar.runner.jobs.statements import statements_job
from howfar.store.records import Arm

__all__ = ["commits_each", "job_of"]


def job_of(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob | PageJob:
    """Stores of keys are filled and applications proven first; the stage's account begins after that. Raises LabError,
    EngineError."""
    if plan.workload.kind not in ("page", "key_value"):
        return statements_job(plan, arm, stage, seed)
    job = page_job(plan, arm, stage, seed) if plan.workload.kind == "page" else keys_job(plan, arm, stage, seed)
    stage.loading()
    return job


def commits_each(plan: Plan) -> int:
    """How often a transaction of SQL has something to commit."""
    return 0 if plan.workload.kind in READS_ONLY else 1
