"""A program for the tests: a load on each requested path; prints its window and its link's counters as JSON.

python -m tests.lab.window_scenario LAB_REQUEST_JSON LOAD_JSON PATH...   LOAD_JSON: connections, measure_ns, workload, and optionally
`rmem` (bytes of the receive buffers of the client's host). Without a path: the calibrated link and its state after bulk transfers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from howfar.contract.messages import Event, Measuring, Sysbench
from howfar.contract.violation import sentences
from howfar.engine.run_load import run_load
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory
from howfar.lab.window import LabWindowWatch
from tests.lab.scenario_programs import make_load_job, run_in_sandbox


def _trial(laboratory: Lab, path: str, load: dict[str, Any]) -> dict[str, Any]:
    rtt = {"rtt_ns": load["rtt_ns"]} if "rtt_ns" in load else {}
    with laboratory.trial_environment({"path": path, "threads": load["connections"], **rtt}) as environment:
        request = laboratory.request
        if "rmem" in load:
            laboratory.client_host.write_sysctl("net/ipv4/tcp_rmem", " ".join([str(load["rmem"])] * 3))
        workload = Sysbench(tables=request.tables, table_size=request.table_size, **load["workload"])
        times = {"warmup_ns": 300_000_000, "measure_ns": load["measure_ns"]}
        job = make_load_job(environment, workload, connections=load["connections"], **times)
        watches: list[LabWindowWatch] = []
        stats = []

        def snapshot() -> Mapping[str, int]:
            """Also reads the link's counters; called right after the window's files were read."""
            stats.append(environment.link and environment.link.counters())
            assert environment.targets is not None
            return environment.targets.snapshot()

        def on_event(event: Event) -> None:
            if isinstance(event, Measuring):
                assert environment.targets is not None
                watches.append(LabWindowWatch(replace(environment.targets, snapshot=snapshot), job.measure_ns))

        outcome = run_load(job, environment.client, on_event)
        window = watches[0].finish()
        collected = environment.collect_receipt(outcome.ready.receipt)
        return {
            "path": path,
            "window": None if window is None else window.model_dump(mode="json"),
            "finished": outcome.finished.model_dump(mode="json", exclude={"histograms"}),
            "link": [counters and counters.model_dump(mode="json") for counters in stats],
            "violations": sentences(collected.violations),
        }


def _at_rest(request: LabRequest) -> dict[str, Any]:
    """RTT probes of the calibrated link with bulk transfers between them, and the CPUs of the link's threads."""
    with open_laboratory(request) as laboratory:
        link = laboratory.link
        assert link is not None and link.pid is not None
        probes = []
        for round_ in range(_PROBES):
            probes.append(link.ping().p50_ns)
            link.goodput("to_server" if round_ % 2 else "to_client")
        tasks = {
            (task / "comm").read_text().strip(): sorted(os.sched_getaffinity(int(task.name)))
            for task in Path(f"/proc/{link.pid}/task").iterdir()
        }
        shares = {"client": sorted(laboratory.shares.client), "server": sorted(laboratory.shares.server)}
        return {"calibrated": link.calibration.rtt_p50_ns, "probes": probes, "tasks": tasks, "shares": shares}


_PROBES = 6


def main() -> None:
    if not sys.argv[3:]:
        print(json.dumps(_at_rest(LabRequest(**json.loads(sys.argv[1]), server="none", paths=("remote",)))))
        return
    request = LabRequest(**json.loads(sys.argv[1]), paths=tuple(sys.argv[3:]))
    with open_laboratory(request) as laboratory:
        trials = [_trial(laboratory, path, json.loads(sys.argv[2])) for path in sys.argv[3:]]
        print(json.dumps({"fsync": laboratory.environment().as_json()["data_fsync_ns"], "trials": trials}))


if __name__ == "__main__":
    run_in_sandbox(main)
