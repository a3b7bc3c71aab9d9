"""A program for the tests: build a laboratory in the sandbox, open each requested path twice, print what was obtained as JSON.

python -m tests.lab.scenario REQUEST_JSON PATH...

A path may be JSON instead: the levels of a cell, and `kind` of a workload other than oltp_read_only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from howfar.engine.messages import LoadJob, Sysbench
from howfar.engine.process import run_load
from howfar.lab import sandbox
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory
from howfar.paths import find_path
from howfar.plan.sessions import session_spec
from howfar.runner.jobs import session_of
from howfar.testbed import LoadFacts


def _trial(laboratory: Lab, cell: dict[str, Any], request: LabRequest) -> dict[str, Any]:
    factors = {name: level for name, level in cell.items() if name != "kind"}
    kind = cell.get("kind", "oltp_read_only")
    with laboratory.stage(factors) as stage:
        job = LoadJob(
            protocol=stage.protocol,
            session=session_of(session_spec(factors), stage.trust),
            target=stage.target,
            user=stage.user,
            password=stage.password,
            database=stage.database,
            workload=Sysbench(
                kind=kind,
                tables=request.tables,
                table_size=request.table_size,
                db_ps_mode="auto" if find_path(str(factors["path"])).keeps_sessions else "disable",
            ),
            connections=2,
            seed=1,
            warmup_ns=200_000_000,
            measure_ns=500_000_000,
            observe=stage.observe,
        )
        outcome = run_load(job, stage.client)
        commits = None if kind == "oltp_read_only" else outcome.finished.transactions
        obtained = stage.obtained(outcome.ready.receipt.model_dump(), LoadFacts(commits=commits))
        return {
            **cell,
            "session": outcome.ready.receipt.model_dump(),
            "transactions": outcome.finished.transactions,
            "cpu": {use.role: use.cpu_ns for use in outcome.finished.cpu},
            "roles": sorted({use.role for use in outcome.finished.cpu if use.cpu_ns > 0}),
            "receipt": obtained.receipt,
            "violations": obtained.violations,
        }


def main() -> int:
    if not sandbox.inside():
        return sandbox.run_inside()
    cells = [json.loads(word) if word.startswith("{") else {"path": word} for word in sys.argv[2:]]
    request = LabRequest(**json.loads(sys.argv[1]), paths=tuple({cell["path"] for cell in cells}))
    with open_laboratory(request) as laboratory:
        trials = [_trial(laboratory, cell, request) for cell in cells for _ in range(2)]
        print(json.dumps({"environment": laboratory.environment(), "server": laboratory.server(), "trials": trials}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
