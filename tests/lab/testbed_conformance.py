"""A program that checks what every testbed must do, in the laboratory or on hosts; it ends with the first error.

python -m tests.lab.testbed_conformance          in the laboratory
python -m tests.lab.testbed_conformance FILE     between the first two hosts of a file of hosts
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from howfar.contract.messages import Event, Sysbench
from howfar.contract.violation import sentences
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.errors import LabError
from howfar.lab import sandbox
from howfar.lab.laboratory import LabRequest, open_laboratory
from howfar.paths import find_path
from howfar.plan.sessions import session_spec
from howfar.runner.loads.load import Measure, make_session
from howfar.testbed import LoadFacts, Testbed, TrialEnvironment
from tests.lab.howfar_runs import PATHS
from tests.lab.scenario_programs import make_load_job
from tests.lab.undisturbed import unexcused

HOPS = {"sidecar": "haproxy", "ssh": "sshd", "ssh-tcp": "sshd", "stunnel": "stunnel"}
"""The program of each optional path; paths whose program is not installed are left out."""
TABLE_SIZE = 1000
Kill = Callable[[int], None]
"""Kills a process of the server's host."""


def _load(environment: TrialEnvironment, path: str, measure: Measure, tls: str = "off") -> LoadOutcome:
    session = make_session(session_spec({"path": path, "tls": tls}), environment.trust)
    workload = Sysbench(tables=1, table_size=TABLE_SIZE)
    times = {"warmup_ns": 100_000_000, "measure_ns": 300_000_000}
    job = make_load_job(environment, workload, protocol=environment.protocol, session=session, connections=2, **times)

    def on_event(_: Event) -> None:
        return

    return measure(job, environment.client, on_event)


def _paths() -> tuple[str, ...]:
    directories = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    return (*PATHS, *(path for path, program in HOPS.items() if shutil.which(program, path=directories)))


def _each_path_is_proven(testbed: Testbed, measure: Measure) -> None:
    for name, tls in (*((path, "off") for path in _paths()), ("remote", "1.3")):
        path = find_path(name)
        with testbed.trial_environment({"path": name, "threads": 2, "tls": tls}) as environment:
            outcome = _load(environment, name, measure, tls)
            session = outcome.ready.receipt
            found = environment.collect_receipt(session, LoadFacts())
            moved = session.model_copy(update={"peer_address": "elsewhere"})
            other = environment.collect_receipt(moved, LoadFacts())
        assert unexcused(sentences(found.violations)) == []
        assert any("elsewhere" in sentence for sentence in sentences(other.violations)), other.violations
        assert outcome.finished.transactions > 0
        parts = found.receipt.model_fields_set
        assert "server" in parts and ("forwarder" in parts) == bool(path.hops), sorted(parts)
        assert ("link" in parts) == path.crosses_link, sorted(parts)
        roles = {use.role for use in outcome.finished.cpu if use.cpu_ns > 0} - {"link"}
        assert roles == {"client", "server", *(["forwarder"] if path.hops else [])}, roles


def _a_dead_server_is_named_and_replaced(testbed: Testbed, measure: Measure, kill: Kill) -> None:
    with testbed.trial_environment({"path": "remote", "threads": 2}) as environment:
        kill(next(iter(environment.services.values())).pid)
        try:
            environment.collect_receipt(None)
        except LabError as error:
            assert "signal 9" in error.message, error.message
        else:
            raise AssertionError("no receipt is collected from an environment whose server is dead")
    with testbed.trial_environment({"path": "remote", "threads": 2}) as environment:
        assert _load(environment, "remote", measure).finished.transactions > 0


def check_conformance(testbed: Testbed, measure: Measure, kill: Kill) -> None:
    """Check a testbed. Raises AssertionError."""
    kind, version = testbed.server()
    assert kind == "mariadb" and version
    environment = testbed.environment().as_json()
    for fact in ("cpu_model", "kernel", "client_cpus", "server_cpus", "placement", "data", "warnings"):
        assert fact in environment, fact
    testbed.begin_block(0)
    with testbed.trial_environment({"path": "socket", "threads": 1}):
        pass  # an unused environment is removed
    _each_path_is_proven(testbed, measure)
    testbed.begin_block(1)
    _a_dead_server_is_named_and_replaced(testbed, measure, kill)


def _in_laboratory() -> int:
    if not sandbox.inside():
        return sandbox.run_inside()
    with open_laboratory(LabRequest(tables=1, table_size=TABLE_SIZE, connections=8, paths=_paths())) as laboratory:
        check_conformance(laboratory, run_load, lambda pid: os.kill(pid, signal.SIGKILL))
    return 0


def _between_hosts(file: Path) -> int:
    from howfar.fleet import cluster as clusters
    from howfar.fleet.load import measure
    from howfar.fleet.ray_driver import join
    from howfar.fleet.roles import assign_hosts
    from howfar.fleet.testbed import open_hosts

    cluster = clusters.find_cluster(file)
    if not clusters.is_inside_head():
        with clusters.keep_up(cluster):
            return clusters.enter(cluster)
    place = assign_hosts(cluster.file, None)
    request = LabRequest(tables=1, table_size=TABLE_SIZE, connections=8, paths=_paths())
    with join(cluster) as hosts, open_hosts(hosts, place, request) as testbed:
        check_conformance(testbed, measure, lambda pid: hosts[place.server].within(os.kill, pid, signal.SIGKILL))
    return 0


def main() -> int:
    code = _between_hosts(Path(sys.argv[1])) if len(sys.argv) > 1 else _in_laboratory()
    if code == 0:
        print(json.dumps({"conforms": True}))
    return code


if __name__ == "__main__":
    sys.exit(main())
