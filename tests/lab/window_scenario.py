"""A program for the tests: one load on each asked path of a laboratory, its window and its link's counters as JSON.

python -m tests.lab.window_scenario LAB_REQUEST_JSON LOAD_JSON PATH...   LOAD_JSON: connections, measure_ns, workload, and `rmem`: the
receive buffer of the client's host, in bytes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from howfar.engine.messages import Finished, LoadJob, Measuring, Sysbench
from howfar.engine.process import Event, run_load
from howfar.lab import sandbox
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory
from howfar.lab.window import WindowWatch


def _trial(laboratory: Lab, path: str, load: dict[str, Any]) -> dict[str, Any]:
    with laboratory.stage({"path": path, "threads": load["connections"]}) as stage:
        request = laboratory.request
        if "rmem" in load:
            laboratory.client_host.write_sysctl("net/ipv4/tcp_rmem", " ".join([str(load["rmem"])] * 3))
        job = LoadJob(
            target=stage.target,
            user=stage.user,
            password=stage.password,
            database=stage.database,
            workload=Sysbench(tables=request.tables, table_size=request.table_size, **load["workload"]),
            connections=load["connections"],
            seed=1,
            warmup_ns=300_000_000,
            measure_ns=load["measure_ns"],
            observe=stage.observe,
        )
        watches: list[WindowWatch] = []
        stats = []

        def hear(event: Event) -> None:
            if isinstance(event, Measuring):
                watches.append(stage.watch(job.measure_ns))
                stats.append(stage.link and stage.link.counters())
            elif isinstance(event, Finished):
                stats.append(stage.link and stage.link.counters())

        outcome = run_load(job, stage.client, hear)
        window = watches[0].finish()
        obtained = stage.obtained(outcome.ready.receipt.model_dump())
        return {
            "path": path,
            "window": None if window is None else window.model_dump(mode="json"),
            "finished": outcome.finished.model_dump(mode="json", exclude={"histograms"}),
            "link": [found and found.model_dump(mode="json") for found in stats],
            "cost_ns": watches[0].cost_ns,
            "violations": obtained.violations,
        }


def main() -> int:
    if not sandbox.inside():
        return sandbox.run_inside()
    request = LabRequest(**json.loads(sys.argv[1]), paths=tuple(sys.argv[3:]))
    with open_laboratory(request) as laboratory:
        trials = [_trial(laboratory, path, json.loads(sys.argv[2])) for path in sys.argv[3:]]
        print(json.dumps({"fsync": laboratory.environment()["data_fsync_ns"], "trials": trials}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
