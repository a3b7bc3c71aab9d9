"""A load job on a stage, its sessions as the cell asks for them."""

from __future__ import annotations

from howfar.engine.messages import (
    Compression,
    LoadJob,
    Session,
    Workload,
)
from howfar.lab.client_tls import client_tls
from howfar.lab.stage import Stage, Trust
from howfar.plan.sessions import SessionAsked, session_asked
from howfar.plan.types import Plan
from howfar.store.records import Arm


def load_job(plan: Plan, arm: Arm, stage: Stage, seed: int, workload: Workload) -> LoadJob:
    return LoadJob(
        target=stage.target,
        user=stage.user,
        password=stage.password,
        database=stage.database,
        session=session_of(session_asked(arm.factors), stage.trust),
        workload=workload,
        connections=int(arm.factors["threads"]),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=stage.observe,
    )


def session_of(asked: SessionAsked, trust: Trust | None) -> Session:
    assert asked.tls is None or trust is not None, "a stage for an encrypted cell has a server with a certificate"
    return Session(
        tls=client_tls(asked, trust),
        compression=Compression(algorithm=asked.algorithm, level=asked.level) if asked.algorithm else None,
        connect="per_transaction" if asked.per_transaction else "persistent",
    )
