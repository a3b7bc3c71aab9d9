"""The driver of a running cluster: connects to Ray, waits for hosts, and measures their clocks and the links between them."""

from __future__ import annotations

import itertools
import json
import logging
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray

import howfar
from howfar.engine.messages import EchoJob, GoodputJob, GoodputResult, Listening, RttJob, RttResult
from howfar.engine.process import EngineProcess, run_probe
from howfar.errors import LabError
from howfar.fleet import node
from howfar.fleet.clocks import Clocks, ClockServer, read_clocks
from howfar.fleet.cluster import Cluster
from howfar.fleet.hosts_file import parse_cpus
from howfar.fleet.remote import RemoteHost
from howfar.lab.environment import machine_facts
from howfar.lab.link import DIRECTIONS, DirectionName, goodput_times_ns
from howfar.lab.network import Cpus, usable_cpus

_JOIN_S = 60.0
_POLL_S = 0.1
_PINGS = 200
_TOOL_S = 5.0
_IP_MTU = 14
"""Of getsockopt (ip(7)); the module socket has no name for it."""


@contextmanager
def join(cluster: Cluster) -> Iterator[dict[str, RemoteHost]]:
    """Connect to all hosts of the file through their agents. Call it in the sandbox of Ray's head. Raises LabError."""
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
    """Hide what Ray's libraries write to descriptor 2, but keep our own messages."""
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    log = os.open(node.MEMORY / "driver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)


def await_hosts(cluster: Cluster, hosts: Mapping[str, RemoteHost], patience_s: float = _JOIN_S) -> None:
    """Wait until Ray lists all these hosts. Raises LabError."""
    deadline = time.monotonic() + patience_s
    while absent := [name for name in hosts if name not in present()]:
        if time.monotonic() > deadline:
            state = cluster.state()
            why = "; ".join(f"{name}: {state.get(name, {}).get('why', 'it has not joined')}" for name in absent)
            raise LabError(f"not all hosts are there: {why}", "See docs/hosts.md for the ports that must be open.")
        time.sleep(_POLL_S)


def present() -> set[str]:
    """Names of the hosts that Ray considers alive."""
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


def path_mtu(address: str) -> int | None:
    """Run on a host: the path MTU to another host, as the kernel knows it after traffic."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((address, 9))
            return asked.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return None


def interface(address: str) -> dict[str, Any]:
    """Run on a host: the interface with this address, its speed and offloads. Unknown facts are omitted."""
    listed = _json_of(["ip", "-json", "addr", "show", "to", address])
    if not listed:
        return {}
    name = str(listed[0]["ifname"])
    found: dict[str, Any] = {"name": name, "mtu": listed[0].get("mtu"), "qdisc": listed[0].get("qdisc")}
    with suppress(OSError, ValueError):
        speed = int(Path(f"/sys/class/net/{name}/speed").read_text())
        found |= {"speed_mbit": speed} if speed > 0 else {}
    offloads = _json_of(["ethtool", "--json", "-k", name])
    if offloads:
        wanted = ("tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload")
        found["offloads"] = {what: bool(offloads[0].get(what, {}).get("active")) for what in wanted}
    return found


def chrony() -> dict[str, str]:
    """Run on a host: chrony's status; empty without chrony."""
    try:
        output = subprocess.run(["chronyc", "-c", "tracking"], capture_output=True, text=True, timeout=_TOOL_S).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    fields = output.strip().split(",")
    return {"offset_s": fields[4], "root_dispersion_s": fields[11]} if len(fields) > 12 else {}


def _json_of(command: Sequence[str]) -> list[dict[str, Any]]:
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S).stdout
        found: list[dict[str, Any]] = [one for one in json.loads(output or "[]") if one]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return found


def cpus_of(host: RemoteHost) -> Cpus:
    """The CPUs that howfar may use on a host. Raises LabError if the file names CPUs that do not exist."""
    there = host.within(usable_cpus)
    if host.spec.cpus is None:
        return there
    wanted = parse_cpus(host.spec.cpus)
    if missing := sorted(set(wanted) - set(there)):
        raise LabError(f"host {host.name} has no CPU {missing[0]}; it has {', '.join(map(str, sorted(there)))}")
    return tuple(cpu for cpu in there if cpu in wanted)


def clocks(host: RemoteHost) -> Clocks:
    """Measure a host's clock offsets from the driver's. Raises LabError."""
    server = host.hold(ClockServer, host.spec.address)
    try:
        return read_clocks(host.spec.address, int(server.facts["port"]))
    finally:
        server.drop()


class Link:
    """The existing link from one host to another, with an echo at its far end; measured, never set."""

    def __init__(self, source: RemoteHost, target: RemoteHost) -> None:
        """Raises LabError, EngineError."""
        self.source, self.target = source, target
        self._near, far = source.launcher(cpus_of(source)), target.launcher(cpus_of(target))
        self._echo = EngineProcess(EchoJob(host=target.spec.address), far)
        listening = self._echo.read()
        assert isinstance(listening, Listening), "an echo says where it listens"
        self._port = listening.port

    def ping(self, count: int = _PINGS) -> RttResult:
        """Measure round trips of one byte. Raises LabError, EngineError."""
        found = run_probe(RttJob(host=self.target.spec.address, port=self._port, count=count), self._near)
        assert isinstance(found, RttResult), "a probe of the RTT gives one"
        return found

    def goodput(self, to: DirectionName, rtt_ns: int) -> GoodputResult:
        """Measure goodput in both directions; `to_server` is towards the far end. Raises LabError, EngineError."""
        warmup_ns, measure_ns = goodput_times_ns(rtt_ns)
        job = GoodputJob(
            host=self.target.spec.address, port=self._port, direction=to, warmup_ns=warmup_ns, measure_ns=measure_ns
        )
        found = run_probe(job, self._near)
        assert isinstance(found, GoodputResult), "a probe of the goodput gives one"
        return found

    def measured(self) -> dict[str, Any]:
        """Measure RTT at rest and goodput in both directions, for a run. Raises LabError, EngineError."""
        rtt = self.ping()
        goodput = {to: self.goodput(to, rtt.p50_ns) for to in DIRECTIONS}
        return {
            "rtt_ns": {"min": rtt.min_ns, "p50": rtt.p50_ns, "p99": rtt.p99_ns},
            "goodput_bps": {to: found.bits_per_second for to, found in goodput.items()},
            "retransmits": {to: found.retransmits for to, found in goodput.items()},
            "congestion_control": goodput["to_server"].congestion_control,
            "mss": goodput["to_server"].mss,
        }

    def close(self) -> None:
        self._echo.close()


@dataclass(frozen=True)
class Distance:
    """What was measured between two hosts: one-byte ping-pong over TCP, and bulk transfers in each direction."""

    source: str
    target: str
    rtt: RttResult
    goodput: Mapping[str, GoodputResult]
    """`to_server` is to the target."""
    mtu: int | None
    """What the route there allows. None: the kernel does not say."""


def distances(hosts: Mapping[str, RemoteHost]) -> tuple[Distance, ...]:
    """Measure all pairs of hosts, one pair at a time, so that probes do not disturb each other. Raises LabError, EngineError."""
    found = []
    for one, other in itertools.combinations(hosts.values(), 2):
        with closing(Link(one, other)) as link:
            rtt = link.ping()
            goodput: dict[str, GoodputResult] = {to: link.goodput(to, rtt.p50_ns) for to in DIRECTIONS}
            found.append(Distance(one.name, other.name, rtt, goodput, one.within(path_mtu, other.spec.address)))
    return tuple(found)
