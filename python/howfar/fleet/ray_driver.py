"""The driver of a running cluster: connects to Ray, waits for hosts, and measures their clocks and the link between two of them."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray

import howfar
from howfar.contract.environment import HostFacts
from howfar.contract.messages import EchoJob, GoodputJob, GoodputResult, Listening, RttJob, RttResult
from howfar.engine.process import EngineProcess, bounded, run_probe
from howfar.errors import LabError
from howfar.fleet import node
from howfar.fleet.clocks import Clocks, ClockServer, read_clocks
from howfar.fleet.cluster import FileCluster
from howfar.fleet.hosts_file import parse_cpus
from howfar.fleet.remote import RemoteHost
from howfar.lab.environment import machine_facts
from howfar.lab.link import DirectionName, goodput_times_ns
from howfar.lab.network import Cpus, usable_cpus
from howfar.lab.sandbox import install_signal_handlers

_JOIN_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.1
ENGINE_START_TIMEOUT_S = 30.0
"""Maximum time until an engine has started."""
_PINGS = 200
_MIN_PINGS = 10
_MAX_PINGING_NS = 3_000_000_000
"""Approximate time limit for one series of pings: between regions, 200 pings would exceed a probe's time limit."""


@contextmanager
def join(cluster: FileCluster) -> Iterator[dict[str, RemoteHost]]:
    """Connect to all hosts of the file through their agents; must be called in the sandbox of Ray's head. Raises LabError."""
    redirect_stderr(node.MEMORY_DIRECTORY / "driver.log")
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
            f"Ray at {address} could not be joined: {error}", "`howfar hosts down`, then up again."
        ) from error
    install_signal_handlers()  # Ray has its own handler for SIGTERM
    node.clear_preload()
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


def redirect_stderr(file: Path) -> None:
    """Redirect descriptor 2, to which Ray's libraries write, to a file; howfar's own messages still reach stderr."""
    # Keep Ray from printing failures of other hosts on stdout; the reason of a void trial names a lost host.
    vars(ray._private.worker)["print_to_stdstream"] = lambda *_, **__: None
    sys.stderr.flush()
    # Replace the stream's descriptor, not the stream itself, to which the screen of a run may already refer.
    if sys.__stderr__ is not None:
        buffer: Any = sys.__stderr__.buffer
        getattr(buffer, "raw", buffer).__init__(os.dup(2), "w")  # the buffer itself if Python does not buffer
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)


def await_hosts(cluster: FileCluster, hosts: Mapping[str, RemoteHost], timeout_s: float = _JOIN_TIMEOUT_S) -> None:
    """Wait until Ray lists all these hosts. Raises LabError."""
    deadline = time.monotonic() + timeout_s
    while missing := [name for name in hosts if name not in find_live_hosts()]:
        if time.monotonic() > deadline:
            state = cluster.state()
            reasons = {name: host.why for name, host in state.items()}
            why = "; ".join(f"{name}: {reasons.get(name) or 'it has not joined'}" for name in missing)
            raise LabError(f"not all hosts have joined: {why}", "See docs/hosts.md for the ports that must be open.")
        time.sleep(_POLL_INTERVAL_S)


def find_live_hosts() -> set[str]:
    """Names of the hosts that Ray considers alive."""
    names = set()
    for ray_node in ray.nodes():
        if ray_node["Alive"]:
            names |= {name.removeprefix("host:") for name in ray_node["Resources"] if name.startswith("host:")}
    return names


def read_host_facts() -> HostFacts:
    """Run on a host: return facts about the machine and its versions."""
    versions = HostFacts(howfar=howfar.__version__, ray=version("ray"))
    return HostFacts.model_validate(machine_facts().as_json()).updated(versions)


def cpus_of(host: RemoteHost) -> Cpus:
    """Return the CPUs that howfar may use on a host. Raises LabError if the file names CPUs that do not exist."""
    host_cpus = host.within(usable_cpus)
    if host.spec.cpus is None:
        return host_cpus
    wanted_cpus = parse_cpus(host.spec.cpus)
    if missing := sorted(set(wanted_cpus) - set(host_cpus)):
        raise LabError(f"host {host.name} has no CPU {missing[0]}; it has {', '.join(map(str, sorted(host_cpus)))}")
    return tuple(cpu for cpu in host_cpus if cpu in wanted_cpus)


def measure_clocks(host: RemoteHost) -> Clocks:
    """Measure the offsets of a host's clocks from the driver's clocks. Raises LabError."""
    server = host.create(ClockServer, host.spec.address)
    try:
        return read_clocks(host.spec.address, server.facts(int))
    finally:
        server.drop()


class HostLink:
    """The existing link from one host to another, with an echo server at its far end. It is measured, never shaped."""

    def __init__(self, source: RemoteHost, target: RemoteHost) -> None:
        """Start the echo server. Raises LabError, EngineError."""
        self.source, self.target = source, target
        self._source_launcher, target_launcher = source.launcher(cpus_of(source)), target.launcher(cpus_of(target))
        self._echo = EngineProcess(EchoJob(host=target.spec.address), target_launcher)
        with bounded(self._echo, ENGINE_START_TIMEOUT_S):
            listening = self._echo.read()
        assert isinstance(listening, Listening), "an echo job first reports its port"
        self._port = listening.port

    def ping(self, count: int = _PINGS) -> RttResult:
        """Measure round trips of one byte, fewer than `count` if they are long. Raises LabError, EngineError."""
        first_result = self._ping(_MIN_PINGS)
        return self._ping(min(count, max(_MIN_PINGS, _MAX_PINGING_NS // max(first_result.p50_ns, 1))))

    def _ping(self, count: int) -> RttResult:
        job = RttJob(host=self.target.spec.address, port=self._port, count=count)
        result = run_probe(job, self._source_launcher, ENGINE_START_TIMEOUT_S + job.timeout_ns / 1e9)
        assert isinstance(result, RttResult), "an RTT job returns an RttResult"
        return result

    def goodput(self, direction: DirectionName, rtt_ns: int, measure_s: int | None = None) -> GoodputResult:
        """Measure goodput in one direction; `to_server` is towards the far end. Raises LabError, EngineError."""
        warmup_ns, measure_ns = goodput_times_ns(rtt_ns)
        measure_ns = measure_ns if measure_s is None else measure_s * 10**9
        job = GoodputJob(
            host=self.target.spec.address,
            port=self._port,
            direction=direction,
            warmup_ns=warmup_ns,
            measure_ns=measure_ns,
        )
        result = run_probe(job, self._source_launcher, ENGINE_START_TIMEOUT_S + (warmup_ns + measure_ns) / 1e9)
        assert isinstance(result, GoodputResult), "a goodput job returns a GoodputResult"
        return result

    def close(self) -> None:
        self._echo.close()
