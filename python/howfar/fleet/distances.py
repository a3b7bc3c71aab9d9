"""Measured links between hosts, and what each host reports about its network, clock and zone. No other machine is queried."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from howfar.contract.messages import GoodputResult, RttResult
from howfar.errors import LabError, PlanError
from howfar.fleet.ray_driver import Link, cpus_of
from howfar.fleet.remote import RemoteHost
from howfar.lab.awake import awake
from howfar.lab.link import DIRECTIONS
from howfar.plan.quantities import rtt_void_ns
from howfar.units import format_duration_ns

GOODPUT_S = 5
_TOOL_TIMEOUT_S = 5.0
_IP_MTU = 14
"""The option IP_MTU of getsockopt (see ip(7)), which the module `socket` does not define."""
_CLOUD = Path("/run/cloud-init/instance-data.json")
"""Cloud-init writes this file when the machine starts, and all users may read it: the cloud's network service is not needed."""
_OFFLOADS = ("tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload")
_KINDS_WITHOUT_SPEED = ("veth", "tun")
"""Kinds of interfaces for which the kernel reports a constant, meaningless speed."""
UNKNOWN = "unknown"


def path_mtu(address: str) -> int | None:
    """Run on a host: the path MTU to another host, as the kernel knows it after traffic."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return None


def interface(address: str) -> dict[str, Any]:
    """Run on a host: the interface with this address, its speed and offloads. Unknown facts are omitted."""
    listed = _json_of(["ip", "-json", "-details", "addr", "show", "to", address])
    if not listed:
        return {}
    name = str(listed[0]["ifname"])
    found: dict[str, Any] = {"name": name, "mtu": listed[0].get("mtu"), "qdisc": listed[0].get("qdisc")}
    kind = listed[0].get("linkinfo", {}).get("info_kind")
    found |= {"kind": kind} if kind else {}
    with suppress(OSError, ValueError):
        speed = 0 if kind in _KINDS_WITHOUT_SPEED else int(Path(f"/sys/class/net/{name}/speed").read_text())
        found |= {"speed_mbit": speed} if speed > 0 else {}
    found["ethtool"] = shutil.which("ethtool") is not None
    offloads = _json_of(["ethtool", "--json", "-k", name])
    if offloads:
        found["offloads"] = {what: bool(offloads[0].get(what, {}).get("active")) for what in _OFFLOADS}
    return found


def read_clock_sync() -> dict[str, Any]:
    """Run on a host: how well its clock is synchronised, as reported by chrony or else by PTP; empty without them."""
    return chrony(_read_output(["chronyc", "-n", "-c", "tracking"])) or ptp(
        _read_output(["pmc", "-u", "-b", "0", "GET CURRENT_DATA_SET"])
    )


def chrony(tracking: str) -> dict[str, Any]:
    """Parse `chronyc -c tracking`. The bound is chrony(1)'s own: offset, root dispersion, and half the root delay."""
    fields = tracking.strip().split(",")
    if len(fields) < 14 or fields[13] == "Not synchronised":
        return {}
    with suppress(ValueError):
        offset, delay, dispersion = (float(fields[column]) for column in (4, 10, 11))
        bound = abs(offset) + dispersion + delay / 2
        return {"by": "chrony", "source": fields[1] or fields[0], "offset_s": offset, "bound_s": round(bound, 9)}
    return {}


def ptp(data_set: str) -> dict[str, Any]:
    """Parse the output of linuxptp's pmc(8), which reports an offset without a bound."""
    for line in data_set.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "offsetFromMaster":
            with suppress(ValueError):
                return {"by": "PTP", "offset_s": float(value) / 1e9}
    return {}


def cloud() -> dict[str, str]:
    """Run on a host: its cloud's name, region and zone, if cloud-init wrote them. Empty: unknown."""
    try:
        metadata = json.loads(_CLOUD.read_text()).get("v1", {})
    except (OSError, ValueError, AttributeError):
        return {}
    names = {"cloud_name": "cloud", "region": "region", "availability_zone": "zone"}
    return {ours: str(metadata[theirs]) for theirs, ours in names.items() if metadata.get(theirs)}


def where(host: RemoteHost) -> dict[str, str]:
    """The location of a host: from the hosts file, else from the host's own cloud metadata. Nothing is guessed from addresses."""
    configured = {name: word for name in ("zone", "rack") if (word := getattr(host.spec, name)) is not None}
    return {"zone": UNKNOWN, "rack": UNKNOWN, **host.within(cloud), **configured}


def _read_output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _json_of(command: Sequence[str]) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = [item for item in json.loads(_read_output(command) or "[]") if item]
    except ValueError:
        return []
    return found


def entered(context: Callable[..., AbstractContextManager[object]], *arguments: Any) -> ExitStack:
    """Enter a context manager on a host. The result is held there; dropping it exits the context."""
    stack = ExitStack()
    stack.enter_context(context(*arguments))
    return stack


@dataclass(frozen=True)
class Distance:
    """What was measured between two hosts: one-byte ping-pong over TCP, and bulk transfers in each direction."""

    source: str
    target: str
    rtt: RttResult
    """RTT at rest, with idle CPUs allowed to sleep as usual."""
    awake: RttResult | None
    """RTT with all CPUs of both hosts kept awake: the time of the network alone. None if they cannot be kept awake."""
    goodput: Mapping[str, GoodputResult]
    """By direction; `to_server` is the direction to the target."""
    mtu: int | None
    """Path MTU. None: not reported by the kernel."""

    def facts(self) -> dict[str, Any]:
        """The distance as JSON, for a run file and for other programs."""
        to_target = self.goodput["to_server"]
        return {
            "from": self.source,
            "to": self.target,
            "rtt_ns": _rtt_facts(self.rtt),
            "rtt_awake_ns": None if self.awake is None else _rtt_facts(self.awake),
            "goodput_bps": {to: round(found.bits_per_second) for to, found in self.goodput.items()},
            "retransmits": {to: found.retransmits for to, found in self.goodput.items()},
            "path_mtu": self.mtu,
            "mss": to_target.mss,
            "congestion_control": to_target.congestion_control,
        }


def real_link(probe: RttResult, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt of a real link: a probe before the load, and the measurement before the run, which counts as the requested RTT."""
    return {
        "real": True,
        "rtt_at_rest_ns": {"p50": probe.p50_ns, "min": probe.min_ns, "p99": probe.p99_ns},
        "asked": {"rest_rtt_ns": facts["rtt_ns"]["p50"]},
        **facts,
    }


def rtt_violations(real: Mapping[str, Any]) -> tuple[str, ...]:
    """Reasons why the trial is void: the RTT of its link, or of a further client's link, has changed by more than an emulated link
    may."""
    return tuple(moved for link in (real, *real.get("others", ())) for moved in _rtt_change(link))


def _rtt_change(real: Mapping[str, Any]) -> tuple[str, ...]:
    now_ns, before_ns = real["rtt_at_rest_ns"]["p50"], real["asked"]["rest_rtt_ns"]
    if abs(now_ns - before_ns) <= rtt_void_ns(before_ns):
        return ()
    ends = f"from host {real['from']} to host {real['to']}"
    return (f"the RTT {ends} was {format_duration_ns(now_ns)}, and {format_duration_ns(before_ns)} before the run",)


def check_alike(links: Sequence[Mapping[str, Any]], what: str = "clients") -> None:
    """Check that all clients, or replicas, have about the same RTT to the server as the first; otherwise their combined results would
    belong to no single RTT. Raises PlanError."""
    first = links[0]["rtt_ns"]["p50"]
    if any(abs(link["rtt_ns"]["p50"] - first) > rtt_void_ns(first) for link in links):
        rtts = ", ".join(f"{format_duration_ns(link['rtt_ns']['p50'])} from {link['from']}" for link in links)
        raise PlanError(
            f"the {what} are not equally far from the server, and the results would be of no one RTT: {rtts}",
            f"Name {what} whose RTTs differ by at most 100 µs or 3 %, or make one run for each distance.",
        )


def combined_receipt(near: Mapping[str, Any], far: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt of two real links, to a hop and from it, as if they were one. The RTT is the sum of both (of the medians, and of the
    minima); the goodput is that of the slower link."""

    def sums(name: str) -> dict[str, int]:
        return {statistic: near[name][statistic] + far[name][statistic] for statistic in ("p50", "min")}

    goodput = {to: min(link["goodput_bps"][to] for link in (near, far)) for to in DIRECTIONS}
    return {
        "real": True,
        "rtt_at_rest_ns": sums("rtt_at_rest_ns"),
        "asked": {"rest_rtt_ns": sums("rtt_ns")["p50"]},
        "from": near["from"],
        "by_way_of": near["to"],
        "to": far["to"],
        "rtt_ns": sums("rtt_ns"),
        "goodput_bps": goodput,
        "mss": min((link["mss"] for link in (near, far) if link.get("mss")), default=None),
        "links": [dict(near), dict(far)],
    }


def _rtt_facts(found: RttResult) -> dict[str, int]:
    return {"min": found.min_ns, "p50": found.p50_ns, "p99": found.p99_ns}


def distance(source: RemoteHost, target: RemoteHost, goodput_s: int | None = GOODPUT_S) -> Distance:
    """Measure the distance between two hosts. `goodput_s`: seconds of bulk transfer in each direction; None: as for a run. Raises
    LabError, EngineError."""
    with closing(Link(source, target)) as link:
        return link_distance(link, goodput_s)


def link_distance(link: Link, goodput_s: int | None = None) -> Distance:
    """Like `distance`, over an open link."""
    source, target = link.source, link.target
    rtt = link.ping()
    goodput: dict[str, GoodputResult] = {to: link.goodput(to, rtt.p50_ns, goodput_s) for to in DIRECTIONS}
    return Distance(
        source.name, target.name, rtt, _ping_awake(link), goodput, source.within(path_mtu, target.spec.address)
    )


def _ping_awake(link: Link) -> RttResult | None:
    with ExitStack() as stack:
        try:
            for host in (link.source, link.target):
                stack.callback(host.hold(entered, awake, cpus_of(host), called="awake").drop)
        except LabError:
            return None
        return link.ping()


def distances(hosts: Mapping[str, RemoteHost]) -> tuple[Distance, ...]:
    """Measure all pairs of hosts, one pair at a time, so that probes do not disturb each other. Raises LabError, EngineError."""
    return tuple(distance(*pair) for pair in itertools.combinations(hosts.values(), 2))
