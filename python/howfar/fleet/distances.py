"""Measures links between hosts, and reads what each host reports about its network, clock and zone. No other machine is queried."""

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

from howfar.contract.environment import ClockSync, Interface
from howfar.contract.messages import GoodputResult, RttResult
from howfar.contract.receipt import ByDirection, LinkReceipt, QuantilesNs, RequestedLink
from howfar.errors import LabError, PlanError
from howfar.fleet.ray_driver import HostLink, cpus_of
from howfar.fleet.remote import RemoteHost
from howfar.lab.awake import keep_cpus_awake
from howfar.lab.link import DIRECTIONS
from howfar.plan.quantities import rtt_void_ns
from howfar.units import format_duration_ns

_GOODPUT_S = 5
_TOOL_TIMEOUT_S = 5.0
_IP_MTU = 14
"""Socket option IP_MTU (see ip(7)), which the module `socket` does not define."""
_CLOUD_INIT_FILE = Path("/run/cloud-init/instance-data.json")
"""File that cloud-init writes at boot and that all users may read; so the cloud's metadata service need not be queried."""
_OFFLOADS = ("tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload")
_KINDS_WITHOUT_SPEED = ("veth", "tun")
"""Kinds of interfaces for which the kernel reports a constant, meaningless speed."""
UNKNOWN = "unknown"


def read_path_mtu(address: str) -> int | None:
    """Run on a host: return the path MTU to another host, which the kernel learns from traffic; None if unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return None


def read_interface(address: str) -> Interface:
    """Run on a host: describe the interface with this address."""
    interfaces = _json_of(["ip", "-json", "-details", "addr", "show", "to", address])
    if not interfaces:
        return Interface()
    name = str(interfaces[0]["ifname"])
    interface = Interface(name=name, mtu=interfaces[0].get("mtu"), qdisc=interfaces[0].get("qdisc"))
    kind = interfaces[0].get("linkinfo", {}).get("info_kind")
    if kind:
        interface.kind = kind
    with suppress(OSError, ValueError):
        speed = 0 if kind in _KINDS_WITHOUT_SPEED else int(Path(f"/sys/class/net/{name}/speed").read_text())
        if speed > 0:
            interface.speed_mbit = speed
    interface.ethtool = shutil.which("ethtool") is not None
    offloads = _json_of(["ethtool", "--json", "-k", name])
    if offloads:
        interface.offloads = {offload: bool(offloads[0].get(offload, {}).get("active")) for offload in _OFFLOADS}
    return interface


def read_clock_sync() -> ClockSync:
    """Run on a host: return how well its clock is synchronised, as reported by chrony or else by PTP; empty without them."""
    by_chrony = parse_chrony(_read_output(["chronyc", "-n", "-c", "tracking"]))
    return by_chrony or parse_ptp(_read_output(["pmc", "-u", "-b", "0", "GET CURRENT_DATA_SET"])) or ClockSync()


def parse_chrony(tracking: str) -> ClockSync | None:
    """Parse `chronyc -c tracking`. The bound is chrony(1)'s own: offset, root dispersion, and half the root delay."""
    fields = tracking.strip().split(",")
    if len(fields) < 14 or fields[13] == "Not synchronised":
        return None
    with suppress(ValueError):
        offset_s, delay_s, dispersion_s = (float(fields[column]) for column in (4, 10, 11))
        bound_s = abs(offset_s) + dispersion_s + delay_s / 2
        return ClockSync(by="chrony", source=fields[1] or fields[0], offset_s=offset_s, bound_s=round(bound_s, 9))
    return None


def parse_ptp(data_set: str) -> ClockSync | None:
    """Parse the output of linuxptp's pmc(8), which reports an offset without a bound."""
    for line in data_set.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "offsetFromMaster":
            with suppress(ValueError):
                return ClockSync(by="PTP", offset_s=float(value) / 1e9)
    return None


def read_cloud_location() -> dict[str, str]:
    """Run on a host: return its cloud's name, region and zone, as written by cloud-init; empty if unknown."""
    try:
        metadata = json.loads(_CLOUD_INIT_FILE.read_text()).get("v1", {})
    except (OSError, ValueError, AttributeError):
        return {}
    names = {"cloud_name": "cloud", "region": "region", "availability_zone": "zone"}
    return {name: str(metadata[cloud_name]) for cloud_name, name in names.items() if metadata.get(cloud_name)}


def locate_host(host: RemoteHost) -> dict[str, str]:
    """Return a host's location: from the hosts file, else from the host's own cloud metadata. Addresses are not interpreted."""
    from_file = {name: value for name in ("zone", "rack") if (value := getattr(host.spec, name)) is not None}
    return {"zone": UNKNOWN, "rack": UNKNOWN, **host.within(read_cloud_location), **from_file}


def _read_output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _json_of(command: Sequence[str]) -> list[dict[str, Any]]:
    try:
        return [item for item in json.loads(_read_output(command) or "[]") if item]
    except ValueError:
        return []


def enter_context(context_manager: Callable[..., AbstractContextManager[object]], *arguments: Any) -> ExitStack:
    """Run on a host: enter a context manager. The object stays there; dropping it exits the context."""
    stack = ExitStack()
    stack.enter_context(context_manager(*arguments))
    return stack


@dataclass(frozen=True)
class HostDistance:
    """What was measured between two hosts: one-byte ping-pong over TCP, and bulk transfers in each direction."""

    source: str
    target: str
    rtt: RttResult
    """Unloaded RTT, with idle CPUs allowed to sleep as usual."""
    awake: RttResult | None
    """RTT with all CPUs of both hosts kept awake: the time of the network alone. None if the CPUs cannot be kept awake."""
    goodput: Mapping[str, GoodputResult]
    """By direction; `to_server` is the direction to the target."""
    mtu: int | None
    """Path MTU; None if the kernel did not report it."""

    def facts(self) -> LinkReceipt:
        """Return the measurements as a receipt, for the run file and for JSON."""
        to_target, to_source = self.goodput["to_server"], self.goodput["to_client"]
        return LinkReceipt(
            from_host=self.source,
            to_host=self.target,
            rtt_ns=_rtt_facts(self.rtt),
            rtt_awake_ns=None if self.awake is None else _rtt_facts(self.awake),
            goodput_bps=ByDirection(
                to_server=round(to_target.bits_per_second), to_client=round(to_source.bits_per_second)
            ),
            retransmits=ByDirection(to_server=to_target.retransmits, to_client=to_source.retransmits),
            path_mtu=self.mtu,
            mss=to_target.mss,
            congestion_control=to_target.congestion_control,
        )


def real_link_receipt(probe: RttResult, before: LinkReceipt) -> LinkReceipt:
    """Make the receipt of a real link from pings before the load and the measurement before the run, which sets the requested RTT."""
    receipt = before.model_copy()
    receipt.real = True
    receipt.rtt_at_rest_ns = _rtt_facts(probe)
    receipt.requested = RequestedLink(rest_rtt_ns=before.real_rtt_ns)
    return receipt


def check_similar_rtts(links: Sequence[LinkReceipt], role_plural: str = "clients") -> None:
    """Check that all clients, or replicas, have about the same RTT to the server as the first; otherwise their combined results would
    belong to no single RTT. Raises PlanError."""
    first_ns = links[0].real_rtt_ns
    if any(abs(link.real_rtt_ns - first_ns) > rtt_void_ns(first_ns) for link in links):
        rtts = ", ".join(f"{format_duration_ns(link.real_rtt_ns)} from {link.from_host}" for link in links)
        raise PlanError(
            f"the {role_plural} have different RTTs to the server, so the results would belong to no single RTT: {rtts}",
            f"Name {role_plural} whose RTTs differ by at most 100 µs or 3 %, or make one run for each distance.",
        )


def combine_receipts(near: LinkReceipt, far: LinkReceipt) -> LinkReceipt:
    """Combine the receipts of two real links, to a hop and from it, into that of one link. Its RTT is the sum of both (of the
    medians, and of the minima); its goodput is that of the slower link."""
    before_run = _add_quantiles(near.rtt_ns, far.rtt_ns)
    goodputs = [link.goodput_bps for link in (near, far) if link.goodput_bps is not None]
    return LinkReceipt(
        real=True,
        rtt_at_rest_ns=_add_quantiles(near.rtt_at_rest_ns, far.rtt_at_rest_ns),
        requested=RequestedLink(rest_rtt_ns=before_run.p50),
        from_host=near.from_host,
        by_way_of=near.to_host,
        to_host=far.to_host,
        rtt_ns=before_run,
        goodput_bps=ByDirection(
            to_server=min((bps.to_server for bps in goodputs if bps.to_server is not None), default=None),
            to_client=min((bps.to_client for bps in goodputs if bps.to_client is not None), default=None),
        ),
        mss=min((link.mss for link in (near, far) if link.mss), default=None),
        links=[near, far],
    )


def _add_quantiles(near: QuantilesNs | None, far: QuantilesNs | None) -> QuantilesNs:
    assert near is not None and far is not None, "both links are measured"
    assert near.p50 is not None and near.min is not None and far.p50 is not None and far.min is not None
    return QuantilesNs(p50=near.p50 + far.p50, min=near.min + far.min)


def _rtt_facts(result: RttResult) -> QuantilesNs:
    return QuantilesNs(min=result.min_ns, p50=result.p50_ns, p99=result.p99_ns)


def measure_link(link: HostLink, goodput_s: int | None = None) -> HostDistance:
    """Measure the distance between two hosts over an open link. `goodput_s`: seconds of bulk transfer in each direction; None for
    the duration before a run. Raises LabError, EngineError."""
    source, target = link.source, link.target
    rtt = link.ping()
    goodput: dict[str, GoodputResult] = {to: link.goodput(to, rtt.p50_ns, goodput_s) for to in DIRECTIONS}
    return HostDistance(
        source.name, target.name, rtt, _ping_awake(link), goodput, source.within(read_path_mtu, target.spec.address)
    )


def _ping_awake(link: HostLink) -> RttResult | None:
    with ExitStack() as stack:
        try:
            for host in (link.source, link.target):
                stack.callback(host.create(enter_context, keep_cpus_awake, cpus_of(host), called="awake").drop)
        except LabError:
            return None
        return link.ping()


def measure_all_pairs(hosts: Mapping[str, RemoteHost]) -> tuple[HostDistance, ...]:
    """Measure all pairs of hosts, one pair at a time, so that probes do not disturb each other. Raises LabError, EngineError."""
    measured = []
    for source, target in itertools.combinations(hosts.values(), 2):
        with closing(HostLink(source, target)) as link:
            measured.append(measure_link(link, _GOODPUT_S))
    return tuple(measured)
