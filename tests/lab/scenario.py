"""A program for the tests: build a laboratory in the sandbox, open each requested path twice, print what was obtained as JSON.

python -m tests.lab.scenario REQUEST_JSON PATH...
"""

from __future__ import annotations

import json
import sys
from typing import Any

from howfar.engine.messages import LoadJob, Sysbench
from howfar.engine.process import run_load
from howfar.lab import sandbox
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory


def _trial(laboratory: Lab, path: str, request: LabRequest) -> dict[str, Any]:
    with laboratory.stage({"path": path}) as stage:
        job = LoadJob(
            target=stage.target,
            user=stage.user,
            password=stage.password,
            database=stage.database,
            workload=Sysbench(tables=request.tables, table_size=request.table_size),
            connections=2,
            seed=1,
            warmup_ns=200_000_000,
            measure_ns=500_000_000,
            observe=stage.observe,
        )
        outcome = run_load(job, stage.client)
        obtained = stage.obtained(outcome.ready.receipt.model_dump())
        return {
            "path": path,
            "session": outcome.ready.receipt.model_dump(),
            "transactions": outcome.finished.transactions,
            "roles": sorted({use.role for use in outcome.finished.cpu if use.cpu_ns > 0}),
            "receipt": obtained.receipt,
            "violations": obtained.violations,
        }


def main() -> int:
    if not sandbox.inside():
        return sandbox.run_inside()
    request = LabRequest(**json.loads(sys.argv[1]), paths=tuple(sys.argv[2:]))
    with open_laboratory(request) as laboratory:
        trials = [_trial(laboratory, path, request) for path in sys.argv[2:] for _ in range(2)]
        print(json.dumps({"environment": laboratory.environment(), "server": laboratory.server(), "trials": trials}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
