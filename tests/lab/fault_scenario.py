"""A program for the tests: crashes and fallbacks of pairs in the sandbox; prints each record as a line of JSON.

python -m tests.lab.fault_scenario SERVER RTT_NS CASE_JSON...   A case: `settings`, `fault`, `after_ns`; `planted`: a client's log
contains a false entry; `told`: a statement for the primary before the load; `failover_ns`; of a fallback `timeout_ms`, `away_ns` and
`measure_ns`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from howfar.contract.messages import LoadJob, UnixTarget
from howfar.engine.acknowledged import HEADER, RECORD, KeyOutcome
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.errors import HowfarError
from howfar.lab.replication import ReplicaSet, ReplicaSetContext, ReplicationSpec, open_replica_set
from howfar.lab.replication.links import EmulatedReplicationLink
from howfar.lab.servers import DATABASE, USER, Tables
from howfar.lab.servers.program import Program
from howfar.runner.fault.crash import FAULTS, FaultContext, run_crash
from howfar.runner.fault.fallback import run_fallback
from tests.acknowledged_scenario import INSERTS
from tests.lab.programs import in_sandbox
from tests.lab.replication_scenario import over_wires

TABLES = Tables(1, 1000)
THREADS = 8
PLANTED = 2**40
WARMUP_NS = 300_000_000


def _case(
    context: ReplicaSetContext, links: Sequence[EmulatedReplicationLink], program: Program, case: Mapping[str, Any]
) -> dict[str, Any]:
    began = time.monotonic()
    try:
        with open_replica_set(context, links, program, TABLES, ReplicationSpec(**case["settings"])) as replica_set:
            replica_set.primary.write(*INSERTS.prepare, timeout_s=replica_set.timeout_s)
            replica_set.await_caught_up(replica_set.replicas[0])
            if "told" in case:
                replica_set.primary.tell(case["told"], replica_set.timeout_s)
            return _broken(replica_set, context, case) | {"seconds": round(time.monotonic() - began, 1)}
    except HowfarError as error:
        return {"error": [type(error).__name__, error.message]}


def _broken(replica_set: ReplicaSet, context: ReplicaSetContext, case: Mapping[str, Any]) -> dict[str, Any]:
    def measure(job: LoadJob, launcher: Launcher, on_event: Any) -> LoadOutcome:
        outcome = run_load(job, launcher, on_event)
        if case.get("planted") and job.acknowledged is not None:
            plant(Path(job.acknowledged))
        return outcome

    where = FaultContext(
        replica_set=replica_set,
        launcher=context.network.server.launcher(context.shares.client),
        rtt_ns=replica_set.links[0].begin().p50_ns,
        measure=measure,
        on_event=lambda event: None,
    )
    job = LoadJob(
        target=UnixTarget(path=str(replica_set.primary.server.socket)),
        user=USER,
        password=account_password(replica_set),
        database=DATABASE,
        workload=INSERTS,
        connections=case.get("threads", THREADS),
        seed=1,
        warmup_ns=WARMUP_NS,
        measure_ns=case.get("measure_ns", 10**9),
    )
    if case["fault"] == "replica-leaves":
        fallen = run_fallback(where, job, case.get("timeout_ms"), case["after_ns"], case["away_ns"])
        return {"record": fallen.record.model_dump(), "transactions": fallen.outcome.finished.transactions}
    done = FAULTS[case["fault"]]
    done = replace(done, failover_ns=case.get("failover_ns", done.failover_ns))
    with patch.dict(FAULTS, {case["fault"]: done}):
        crashed = run_crash(where, job, case["fault"], case["after_ns"])
    return {"record": crashed.record.model_dump(), "transactions": crashed.outcome.finished.transactions}


def account_password(replica_set: ReplicaSet) -> str:
    return replica_set.primary.server.password


def plant(log: Path) -> None:
    """Add a commit that a client falsely logs as acknowledged; the closing record's totals are adjusted to match."""
    head, records = log.read_bytes()[: HEADER.size], np.fromfile(log, RECORD, offset=HEADER.size)
    liar, closing = records[-2:-1].copy(), records[-1:].copy()
    liar["key"], liar["fate"] = PLANTED, KeyOutcome.ACKNOWLEDGED
    liar["sent_ns"] = liar["ended_ns"] = records["ended_ns"][:-1].max()
    closing["key"] += 1
    closing["sent_ns"] += 1
    log.write_bytes(head + records[:-1].tobytes() + liar.tobytes() + closing.tobytes())


if __name__ == "__main__":
    in_sandbox(lambda: over_wires(_case, connections=64))
