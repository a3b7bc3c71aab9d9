"""A program for the tests: a key-value store in the laboratory, filled and loaded on each requested path; prints the results as JSON.

python -m tests.lab.stores_scenario SERVER PATH[:TLS]...
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

from howfar.contract.messages import KeyValue, Session
from howfar.contract.violation import sentences
from howfar.engine.receipt_check import mismatches
from howfar.engine.run_load import run_load
from howfar.errors import HowfarError
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory
from howfar.lab.link import LinkSpec
from howfar.runner.loads.key_stores import fill_keys
from tests.lab.scenario_programs import make_load_job, run_in_sandbox

KEYS = 300
TRANSACTIONS = 400


def _workload(server: str) -> KeyValue:
    protocol: Literal["resp3", "memcached_meta"] = "memcached_meta" if server == "memcached" else "resp3"
    return KeyValue(protocol=protocol, keys=KEYS, multi_get=2, keys_each=4)


def _trial(laboratory: Lab, server: str, trial: str) -> dict[str, Any]:
    path, _, tls = trial.partition(":")
    try:
        with laboratory.trial_environment({"path": path, **({"tls": tls} if tls else {})}) as environment:
            workload = _workload(server)
            (endpoint,) = environment.services.values()
            filled = fill_keys(endpoint, workload, environment.client)
            counted = {"measure_ns": 20 * 10**9, "transactions": TRANSACTIONS}
            job = make_load_job(
                environment, workload, connections=2, session=Session(tls=endpoint.service.tls), **counted
            )
            outcome = run_load(job, environment.client)
            session = outcome.ready.receipt
            collected = environment.collect_receipt(session)
            kinds = {histogram.kind: histogram.count for histogram in outcome.finished.histograms}
            assert outcome.finished.lookups is not None
            return {
                "filled": filled,
                "gets": outcome.finished.lookups.hits,
                "misses": outcome.finished.lookups.misses,
                "sets": kinds["command.set"],
                "bytes": outcome.finished.bytes.model_dump(),
                "receipt": collected.receipt.as_json(),
                "violations": sentences((*collected.violations, *mismatches(job, session))),
            }
    except HowfarError as error:
        return {"refused": error.message}


def main() -> None:
    server, *trials = sys.argv[1:]
    paths = tuple(dict.fromkeys(trial.partition(":")[0] for trial in trials))
    request = LabRequest(server=server, paths=paths, link=LinkSpec(10**6, 10**9), with_goodput=False)
    with open_laboratory(request) as laboratory:
        results = {trial: _trial(laboratory, server, trial) for trial in trials}
        print(json.dumps({"trials": results}))


if __name__ == "__main__":
    run_in_sandbox(main)
