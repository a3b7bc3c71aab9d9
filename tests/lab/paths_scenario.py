"""A program for the tests: a load on each requested path of a laboratory; prints the receipts as JSON.

python -m tests.lab.paths_scenario REQUEST_JSON PATH...

A path may be requested repeatedly: each time is a trial. It may instead be a cell's levels as JSON, with `kind` for another workload
than oltp_read_only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from howfar.contract.messages import Sysbench, Workload
from howfar.contract.violation import sentences
from howfar.engine.run_load import run_load
from howfar.lab.laboratory import Lab, LabRequest, LabTrialEnvironment, open_laboratory
from howfar.paths import find_path
from howfar.plan.kinds import Keys
from howfar.plan.sessions import session_spec
from howfar.runner.loads.key_stores import fill_keys, key_value_workload, store_protocol
from howfar.runner.loads.load import make_session
from howfar.testbed import LoadFacts
from tests.lab.scenario_programs import make_load_job, run_in_sandbox


def _workload(environment: LabTrialEnvironment, cell: dict[str, Any], request: LabRequest) -> Workload:
    """A workload of SQL, or for a key-value store of keys, which it sets."""
    path = find_path(str(cell["path"]))
    if environment.main.name in ("redis", "memcached"):
        keys = key_value_workload(Keys(count=300, get=9, set=1), store_protocol(environment.main.name, path.name))
        fill_keys(environment.services[environment.main.name], keys, environment.client)
        environment.reset_counters()
        return keys
    return Sysbench(
        kind=cell.get("kind", "oltp_read_only"),
        tables=request.tables,
        table_size=request.table_size,
        db_ps_mode="auto" if path.keeps_sessions else "disable",
    )


def _trial(laboratory: Lab, cell: dict[str, Any], request: LabRequest) -> dict[str, Any]:
    factors = {name: level for name, level in cell.items() if name != "kind"}
    kind = cell.get("kind", "oltp_read_only")
    with laboratory.trial_environment(factors) as environment:
        job = make_load_job(
            environment,
            _workload(environment, cell, request),
            protocol=environment.protocol,
            session=make_session(session_spec(factors), environment.trust),
            connections=2,
            warmup_ns=200_000_000,
            # A commit waits for the disk, for up to a second on a busy machine.
            measure_ns=500_000_000 if kind == "oltp_read_only" else 3_000_000_000,
        )
        outcome = run_load(job, environment.client)
        commits = None if kind == "oltp_read_only" else outcome.finished.transactions
        collected = environment.collect_receipt(outcome.ready.receipt, LoadFacts(commits=commits))
        return {
            **cell,
            "session": outcome.ready.receipt.model_dump(),
            "transactions": outcome.finished.transactions,
            "cpu": {use.role: use.cpu_ns for use in outcome.finished.cpu},
            "roles": sorted({use.role for use in outcome.finished.cpu if use.cpu_ns > 0}),
            "receipt": collected.receipt.as_json(),
            "violations": sentences(collected.violations),
        }


def main() -> None:
    cells = [json.loads(word) if word.startswith("{") else {"path": word} for word in sys.argv[2:]]
    request = LabRequest(**json.loads(sys.argv[1]), paths=tuple({cell["path"] for cell in cells}))
    with open_laboratory(request) as laboratory:
        trials = [_trial(laboratory, cell, request) for cell in cells]
        environment = laboratory.environment().as_json()
        print(json.dumps({"environment": environment, "server": laboratory.server(), "trials": trials}))


if __name__ == "__main__":
    run_in_sandbox(main)
