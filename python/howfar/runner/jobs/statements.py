"""A job of SQL: sysbench's workloads, and single-row inserts."""

from __future__ import annotations

from howfar.engine.inserts import SINGLE_ROW_INSERTS
from howfar.engine.messages import (
    LoadJob,
    Sysbench,
    Workload,
)
from howfar.lab.stage import Stage
from howfar.plan.types import Plan
from howfar.runner.jobs.session import load_job
from howfar.store.records import Arm


def statements_job(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob:
    return load_job(plan, arm, stage, seed, _workload(plan))


def _workload(plan: Plan) -> Workload:
    if plan.workload.kind == "single_row_inserts":
        return SINGLE_ROW_INSERTS
    tables = {"tables": plan.data.tables, "table_size": plan.data.table_size}
    return Sysbench.model_validate(plan.workload.model_dump() | tables)
