"""The driver in a cluster that is up: connects to Ray, waits for the hosts, knows their clocks and what lies between them."""

from __future__ import annotations

import itertools
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import ray

import howfar
from howfar.engine.messages import EchoJob, Listening, RttJob, RttResult
from howfar.engine.process import EngineProcess, run_probe
from howfar.errors import LabError
from howfar.fleet import node
from howfar.fleet.clocks import Clocks, ClockServer, read_clocks
from howfar.fleet.cluster import Cluster
from howfar.fleet.hosts_file import parse_cpus
from howfar.fleet.remote import RemoteHost
from howfar.lab.environment import machine_facts
from howfar.lab.network import Cpus, usable_cpus

_JOIN_S = 60.0
_POLL_S = 0.1
_PINGS = 200


@contextmanager
def join(cluster: Cluster) -> Iterator[dict[str, RemoteHost]]:
    """All hosts of the file, each with its agent. Call inside. Raises LabError."""
    _quiet()
    address = f"{cluster.address}:{cluster.file.first_port}"
    try:
        ray.init(
            address=address,
            _node_ip_address=cluster.address,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            namespace="howfar",
        )
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        raise LabError(
            f"Ray at {address} does not take us in: {error}", "`howfar hosts down`, then up again."
        ) from error
    hosts = {name: RemoteHost(name, spec) for name, spec in cluster.file.hosts.items()}
    try:
        await_hosts(cluster, hosts)
        for host in hosts.values():
            host.join()
        yield hosts
    finally:
        for host in hosts.values():
            host.leave()
        ray.shutdown()


def _quiet() -> None:
    """Ray's libraries write to descriptor 2 what nobody asked for; our own messages go on."""
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    log = os.open(node.MEMORY / "driver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)


def await_hosts(cluster: Cluster, hosts: Mapping[str, RemoteHost], patience_s: float = _JOIN_S) -> None:
    """Until Ray has all of these. Raises LabError."""
    deadline = time.monotonic() + patience_s
    while absent := [name for name in hosts if name not in present()]:
        if time.monotonic() > deadline:
            state = cluster.state()
            why = "; ".join(f"{name}: {state.get(name, {}).get('why', 'it has not joined')}" for name in absent)
            raise LabError(f"not all hosts are there: {why}", "See docs/hosts.md for the ports that must be open.")
        time.sleep(_POLL_S)


def present() -> set[str]:
    """Hosts that Ray believes alive, by name."""
    found = set()
    for one in ray.nodes():
        if one["Alive"]:
            found |= {name.removeprefix("host:") for name in one["Resources"] if name.startswith("host:")}
    return found


def facts() -> dict[str, Any]:
    """Run on a host."""
    return {
        **machine_facts(),
        "howfar": howfar.__version__,
        "ray": version("ray"),
        "python": platform.python_version(),
    }


def cpus_of(host: RemoteHost) -> Cpus:
    """That it may use. Raises LabError where the file names others than there are."""
    there = host.within(usable_cpus)
    if host.spec.cpus is None:
        return there
    wanted = parse_cpus(host.spec.cpus)
    if missing := sorted(set(wanted) - set(there)):
        raise LabError(f"host {host.name} has no CPU {missing[0]}; it has {', '.join(map(str, sorted(there)))}")
    return tuple(cpu for cpu in there if cpu in wanted)


def clocks(host: RemoteHost) -> Clocks:
    """Against the driver's. Raises LabError."""
    server = host.hold(ClockServer, host.spec.address)
    try:
        return read_clocks(host.spec.address, int(server.facts["port"]))
    finally:
        server.drop()


@dataclass(frozen=True)
class Distance:
    """Between two hosts, by a ping-pong of one byte over TCP."""

    source: str
    target: str
    rtt: RttResult


def distance(source: RemoteHost, target: RemoteHost, count: int = _PINGS) -> Distance:
    """Raises LabError, EngineError."""
    with ExitStack() as ledger:
        echo = ledger.enter_context(EngineProcess(EchoJob(host=target.spec.address), target.launcher(cpus_of(target))))
        listening = echo.read()
        assert isinstance(listening, Listening), "an echo says where it listens"
        job = RttJob(host=target.spec.address, port=listening.port, count=count)
        result = run_probe(job, source.launcher(cpus_of(source)))
    assert isinstance(result, RttResult), "a probe of the RTT gives one"
    return Distance(source.name, target.name, result)


def distances(hosts: Mapping[str, RemoteHost]) -> tuple[Distance, ...]:
    """Of every two, one after the other, so that no probe disturbs another."""
    return tuple(distance(one, other) for one, other in itertools.combinations(hosts.values(), 2))
