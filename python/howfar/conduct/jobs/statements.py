"""A job of SQL: sysbench's workloads, and single-row inserts."""

from __future__ import annotations

from howfar.conduct.jobs.session import session_of
from howfar.engine.inserts import SINGLE_ROW_INSERTS
from howfar.engine.messages import LoadJob, Sysbench, Workload
from howfar.lab.stage import Stage
from howfar.plan.sessions import session_asked
from howfar.plan.types import Plan
from howfar.results.records import Arm


def statements_job(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob:
    return LoadJob(
        target=stage.target,
        user=stage.user,
        password=stage.password,
        database=stage.database,
        session=session_of(session_asked(arm.factors), stage.trust),
        workload=_workload(plan),
        connections=int(arm.factors["threads"]),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=stage.observe,
    )


def _workload(plan: Plan) -> Workload:
    if plan.workload.kind == "single_row_inserts":
        return SINGLE_ROW_INSERTS
    tables = {"tables": plan.data.tables, "table_size": plan.data.table_size}
    return Sysbench.model_validate(plan.workload.model_dump() | tables)
