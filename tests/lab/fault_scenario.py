"""A program for the tests: crashes and fallbacks of replica sets in the sandbox; prints each record as a line of JSON.

python -m tests.lab.fault_scenario SERVER RTT_NS CASE_JSON...   A case: `settings`, `fault`, `after_ns`; optionally `planted` (a
client's log gets a false entry), `statement` (for the primary before the load), `failover_ns`; for a fallback `timeout_ms`, `away_ns`
and `measure_ns`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from howfar.contract.messages import LoadJob, UnixTarget
from howfar.engine.acknowledged import HEADER, RECORD, KeyOutcome
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.errors import HowfarError
from howfar.experiments.replication.fault.crash import FAULTS, FaultContext, run_crash
from howfar.experiments.replication.fault.fallback import run_fallback
from howfar.experiments.replication.lab import ReplicaSet, ReplicaSetContext, ReplicationSpec, open_replica_set
from howfar.experiments.replication.lab.links import EmulatedReplicationLink
from howfar.lab.servers import DATABASE, USER, Tables
from howfar.lab.servers.program import Program
from tests.acknowledged_scenario import INSERTS
from tests.lab.replication_scenario import run_cases
from tests.lab.scenario_programs import run_in_sandbox

TABLES = Tables(1, 1000)
THREADS = 8
PLANTED = 2**40
WARMUP_NS = 300_000_000


def _run_case(
    context: ReplicaSetContext, links: Sequence[EmulatedReplicationLink], program: Program, case: Mapping[str, Any]
) -> dict[str, Any]:
    began = time.monotonic()
    try:
        with open_replica_set(context, links, program, TABLES, ReplicationSpec(**case["settings"])) as replica_set:
            replica_set.primary.write(*INSERTS.prepare, timeout_s=replica_set.timeout_s)
            replica_set.wait_until_caught_up(replica_set.replicas[0])
            if "statement" in case:
                replica_set.primary.execute(case["statement"], replica_set.timeout_s)
            return _run_fault(replica_set, context, case) | {"seconds": round(time.monotonic() - began, 1)}
    except HowfarError as error:
        return {"error": [type(error).__name__, error.message]}


def _run_fault(replica_set: ReplicaSet, context: ReplicaSetContext, case: Mapping[str, Any]) -> dict[str, Any]:
    def measure(job: LoadJob, launcher: Launcher, on_event: Any) -> LoadOutcome:
        outcome = run_load(job, launcher, on_event)
        if case.get("planted") and job.acknowledged is not None:
            plant(Path(job.acknowledged))
        return outcome

    fault_context = FaultContext(
        replica_set=replica_set,
        launcher=context.network.server.launcher(context.shares.client),
        rtt_ns=replica_set.links[0].prepare_load().p50_ns,
        measure=measure,
        on_event=lambda event: None,
    )
    job = LoadJob(
        target=UnixTarget(path=str(replica_set.primary.server.socket)),
        user=USER,
        password=replica_set.primary.server.password,
        database=DATABASE,
        workload=INSERTS,
        connections=case.get("threads", THREADS),
        seed=1,
        warmup_ns=WARMUP_NS,
        measure_ns=case.get("measure_ns", 10**9),
    )
    if case["fault"] == "replica-leaves":
        fallback = run_fallback(fault_context, job, case.get("timeout_ms"), case["after_ns"], case["away_ns"])
        return {"record": fallback.record.model_dump(), "transactions": fallback.outcome.finished.transactions}
    fault = FAULTS[case["fault"]]
    fault = fault.model_copy(update={"failover_ns": case.get("failover_ns", fault.failover_ns)})
    with patch.dict(FAULTS, {case["fault"]: fault}):
        crashed = run_crash(fault_context, job, case["fault"], case["after_ns"])
    return {"record": crashed.record.model_dump(), "transactions": crashed.outcome.finished.transactions}


def plant(log: Path) -> None:
    """Add a false acknowledged commit to a client's log, and adjust the totals of its closing record."""
    header, records = log.read_bytes()[: HEADER.size], np.fromfile(log, RECORD, offset=HEADER.size)
    false_entry, closing = records[-2:-1].copy(), records[-1:].copy()
    false_entry["key"], false_entry["fate"] = PLANTED, KeyOutcome.ACKNOWLEDGED
    false_entry["sent_ns"] = false_entry["ended_ns"] = records["ended_ns"][:-1].max()
    closing["key"] += 1
    closing["sent_ns"] += 1
    log.write_bytes(header + records[:-1].tobytes() + false_entry.tobytes() + closing.tobytes())


if __name__ == "__main__":
    run_in_sandbox(lambda: run_cases(_run_case, connections=64))
