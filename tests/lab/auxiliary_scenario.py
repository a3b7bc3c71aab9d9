"""A program for the tests: loads on three servers in one environment, over each requested path; prints the results as JSON.

python -m tests.lab.auxiliary_scenario SERVER CASE...    A case is a path, with `:1.3` for TLS, or `death`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from howfar.contract.messages import KeyValue, Receipt, ServiceName, Session, Sysbench
from howfar.contract.violation import sentences
from howfar.engine.run_load import run_load
from howfar.errors import LabError
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory
from howfar.lab.link import LinkSpec
from howfar.plan.factor import Level
from howfar.runner.loads.key_stores import fill_keys
from howfar.testbed import LoadFacts, TrialEnvironment
from tests.lab.scenario_programs import make_load_job, run_in_sandbox

KEYS, REQUESTS = 300, 200
TABLES, SIZE = 1, 1000
STORES: tuple[ServiceName, ...] = ("redis", "memcached")


def _keys(name: ServiceName) -> KeyValue:
    protocol: Literal["resp3", "memcached_meta"] = "resp3" if name == "redis" else "memcached_meta"
    return KeyValue(protocol=protocol, keys=KEYS, get=1, set=0)


def _load(environment: TrialEnvironment, name: ServiceName) -> tuple[Receipt, set[str]]:
    """The engine's receipt, and the roles that used CPU."""
    service = environment.services[name].service
    login = {name: getattr(service, name) for name in ("target", "user", "password", "database")}
    workload = Sysbench(tables=TABLES, table_size=SIZE) if name == "mysql" else _keys(name)
    count = REQUESTS if name != "mysql" else REQUESTS // 20
    job = make_load_job(
        environment,
        workload,
        **login,
        session=Session(tls=service.tls),
        connections=1,
        measure_ns=20 * 10**9,
        transactions=count,
    )
    outcome = run_load(job, environment.client)
    roles = {use.role for use in outcome.finished.cpu if use.cpu_ns > 0}
    return outcome.ready.receipt, roles


def _cpus(pid: int) -> str:
    """The CPUs on which a process may run, in the kernel's notation."""
    return _allowed(Path(f"/proc/{pid}/status").read_text())


def _allowed(status: str) -> str:
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list"))


def _application_cpus(environment: TrialEnvironment) -> str:
    with environment.client.popen(["cat", "/proc/self/status"], stdout=subprocess.PIPE, text=True) as process:
        output = str(process.communicate()[0])
    return _allowed(output)


def _endpoints(environment: TrialEnvironment) -> dict[str, Any]:
    return {
        name: {
            "kind": endpoint.server_kind,
            "target": endpoint.service.target.model_dump(),
            "tls": endpoint.service.tls is not None,
        }
        for name, endpoint in environment.services.items()
    }


def _trial(laboratory: Lab, trial: str) -> dict[str, Any]:
    path, _, tls = trial.partition(":")
    factors: dict[str, Level] = {"path": path, "placement": "machines", "threads": 1, "tls": tls or "off"}
    with laboratory.trial_environment(factors) as environment:
        filled = {name: fill_keys(environment.services[name], _keys(name), environment.client) for name in STORES}
        sessions: dict[str, Receipt] = {}
        roles: set[str] = set()
        for name in environment.services:
            sessions[name], used = _load(environment, name)
            roles |= used
        collected = environment.collect_receipt(None, LoadFacts(sessions=sessions))
        wrong = sessions["redis"].model_copy(update={"peer_address": "elsewhere", "tls_client_version": "none"})
        elsewhere = environment.collect_receipt(None, LoadFacts(sessions={**sessions, "redis": wrong}))
        return {
            "endpoints": _endpoints(environment),
            "filled": filled,
            "roles": sorted(roles),
            "observed": sorted({process.role for process in environment.observe}),
            "cpus": {
                str(process.role): _cpus(process.pid)
                for process in environment.observe
                if process.role not in ("link", "forwarder")
            },
            "forwarders_cpus": [_cpus(process.pid) for process in environment.observe if process.role == "forwarder"],
            "application_cpus": _application_cpus(environment),
            "sessions": {name: session.model_dump() for name, session in sessions.items()},
            "receipt": collected.receipt.as_json(),
            "violations": sentences(collected.violations),
            "accused": sorted({*sentences(elsewhere.violations)} - {*sentences(collected.violations)}),
        }


def _death(laboratory: Lab) -> dict[str, Any]:
    """The error after the death of each auxiliary server, each in a new environment."""
    messages: dict[str, Any] = {}
    for name in STORES:
        with laboratory.trial_environment({"path": "socket"}) as environment:
            os.kill(environment.services[name].pid, signal.SIGKILL)
            try:
                environment.collect_receipt(None, LoadFacts(sessions={}))
            except LabError as error:
                messages[name] = error.message
    return messages


def main() -> None:
    server, *cases = sys.argv[1:]
    paths = tuple(dict.fromkeys(case.partition(":")[0] for case in cases if case != "death"))
    request = LabRequest(
        server=server,
        tables=TABLES,
        table_size=SIZE,
        paths=paths,
        link=LinkSpec(10**6, 10**9),
        with_goodput=False,
        connections=8,
        auxiliary_servers=STORES,
    )
    with open_laboratory(request) as laboratory:
        trials = {case: _death(laboratory) if case == "death" else _trial(laboratory, case) for case in cases}
        print(json.dumps({"environment": laboratory.environment().as_json(), "trials": trials}))


if __name__ == "__main__":
    run_in_sandbox(main)
