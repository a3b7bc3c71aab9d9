"""`kernel`: a bridge between two veth cables, shaped by the kernel's own queueing disciplines, as tc sets them.

tbf limits the rate; netem adds the delay and the random effects. Many kernels lack netem; then only rates are possible. With this
back-end lateness and unintended drops are unknown, as the receipt says. `running.missing_qdiscs` finds out which disciplines this
kernel lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from howfar.contract.messages import IndependentLoss, LinkReady, LinkStats, NormalJitter
from howfar.errors import LabError, LinkFailed
from howfar.lab.link.backends import BackendLink
from howfar.lab.link.spec import DIRECTIONS, FRAMING_BYTES, DirectionName, LinkSpec
from howfar.lab.network import CLIENT_LINK, LinkAddresses, Network, cable_through_middle

BURST_BYTES = 128 * 1024
"""Size of tbf's bucket. If it is smaller than a GSO super-packet (64 KiB), tbf segments each super-packet, which reduces the
throughput to a tenth."""
_MAX_QUEUE_BYTES = 2**31
_ETHERNET_BYTES = 14
_NETEM_PACKETS = 10_000_000
"""netem's limit counts packets, including those in flight; its default of 1000 throttles long fast links."""


class QdiscLink:
    """A link shaped by the kernel's queueing disciplines; implements `backends.BackendLink`."""

    ready: LinkReady | None = None
    pid: int | None = None

    def __init__(self, network: Network) -> None:
        self._network = network
        self._kinds_by_device: dict[str, list[str]] = {}
        """For each device, the kinds of the disciplines in force (netem, tbf)."""

    def alive(self) -> bool:
        return True

    def set(self, spec: LinkSpec, compensate_ns: int, elapsed_ns: int) -> None:
        reason = KernelBackend.refusal_reason(spec)
        if reason:
            raise LinkFailed(f"the kernel's disciplines cannot do that: {reason}")
        for name in DIRECTIONS:
            device = _shaping_device(name, self._network.ends)
            lines = qdisc_batch(spec, name, compensate_ns, self._network.ends)
            kinds = [line.partition(" handle ")[2].split()[1] for line in lines]
            # Replacing a discipline by one of the same kind and handle changes it and keeps its queue; a different tree starts empty.
            if self._kinds_by_device.get(device) not in (None, kinds):
                self._network.base.tc([f"qdisc del dev {device} root"])
                del self._kinds_by_device[device]
            if not lines:
                continue
            try:
                self._network.base.tc(lines)
            except LabError as error:
                discipline = "netem" if any("netem" in line for line in lines) else "tbf"
                raise LinkFailed(
                    f"this kernel does not support {discipline}: {error.message}",
                    "Use --link-backend packet, which needs no queueing discipline; `howfar links` shows what is here.",
                ) from error
            self._kinds_by_device[device] = kinds

    def stats(self, *, reset: bool = False) -> LinkStats | None:
        return None


def _shaping_device(name: DirectionName, ends: LinkAddresses) -> str:
    """The device that shapes a direction: the one through which the direction's packets leave the bridge."""
    return ends.server_middle if name == "to_server" else ends.client_middle


def tbf_rate(rate_bps: int, mtu: int) -> int:
    """The rate parameter of tbf for a rate on the wire. tbf counts frames without preamble, FCS and gap, and applies its option
    `overhead` only once to a super-packet of up to 44 frames; so the rate is lowered instead."""
    return rate_bps * (mtu + _ETHERNET_BYTES) // (mtu + FRAMING_BYTES)


def qdisc_batch(
    spec: LinkSpec, name: DirectionName, compensate_ns: int, ends: LinkAddresses = CLIENT_LINK
) -> list[str]:
    """Lines for `tc -batch`: netem at the root if delay or random effects are requested, and tbf below it, or alone, for the rate."""
    direction, device, rate_bps = spec.direction(name), _shaping_device(name, ends), spec.mean_rate_bps(name)
    lines, parent = [], "root"
    delay_ns = max(spec.delay_ns(name) - compensate_ns, 0)
    netem = []
    if spec.rtt_ns or direction.jitter:
        variation = (
            f" {direction.jitter.deviation_ns / 1000:g}us distribution normal"
            if isinstance(direction.jitter, NormalJitter)
            else ""
        )
        netem.append(f"delay {delay_ns / 1000:g}us{variation}")
    if isinstance(direction.loss, IndependentLoss):
        netem.append(f"loss random {direction.loss.probability:%}")
    elif direction.loss is not None:
        parameters = (direction.loss.to_bad, direction.loss.to_good, direction.loss.loss_bad, direction.loss.loss_good)
        netem.append("loss gemodel " + " ".join(f"{share:%}" for share in parameters))
    if direction.duplicate:
        netem.append(f"duplicate {direction.duplicate:%}")
    if direction.corrupt:
        netem.append(f"corrupt {direction.corrupt:%}")
    elif netem:
        netem.append("corrupt 0%")  # a netem that is changed keeps the old value of an option that is not given
    if netem:
        lines.append(f"qdisc replace dev {device} root handle 1: netem limit {_NETEM_PACKETS} {' '.join(netem)}")
        parent = "parent 1:1"
    if rate_bps is not None:
        rate = tbf_rate(rate_bps, spec.mtu)
        limit = max(spec.queue_bytes(name), BURST_BYTES)
        lines.append(
            f"qdisc replace dev {device} {parent} handle 10: tbf rate {rate} burst {BURST_BYTES} limit {limit}"
        )
    return lines


class KernelBackend:
    NAME = "kernel"
    ABOUT = "the kernel's tbf (rate) and netem (delay, loss) on a bridge; nothing is proved"
    CHARGES_LONE_PACKETS = False
    """At rest tbf's bucket is full, so a single packet passes at once."""
    MIN_QUEUE_BYTES = BURST_BYTES
    ARRIVAL: str | None = None

    @staticmethod
    def refusal_reason(spec: LinkSpec) -> str | None:
        for name in DIRECTIONS:
            direction, rate_bps = spec.direction(name), spec.mean_rate_bps(name)
            if spec.seed and (direction.loss or direction.jitter or direction.duplicate or direction.corrupt):
                return "netem draws its own random numbers; leave out --seed"
            if rate_bps is not None:
                queue_bytes, is_explicit = spec.queue_bytes(name), bool(direction.queue_bytes or direction.queue_ns)
                if is_explicit and queue_bytes < BURST_BYTES:
                    return "tbf's queue is never shorter than its bucket of 128 KiB"
                if queue_bytes > _MAX_QUEUE_BYTES:
                    return "tbf's queue is never longer than 2 GiB; give a shorter --queue"
            if direction.outages or direction.rate_trace:
                return "no outages and no traces of rates"
            if direction.jitter is not None and not isinstance(direction.jitter, NormalJitter):
                return "no jitter but the normal distribution"
            if direction.jitter is not None and not direction.reorder:
                return "netem's jitter reorders; give --reorder on"
        return None

    @staticmethod
    @contextmanager
    def connect(network: Network, spec: LinkSpec) -> Iterator[BackendLink]:
        ends, bridge = network.ends, network.ends.bridge
        with cable_through_middle(network):
            try:
                network.base.ip(
                    [
                        f"link add name {bridge} mtu {spec.mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
                        f"link set dev {ends.client_middle} master {bridge}",
                        f"link set dev {ends.server_middle} master {bridge}",
                        f"link set dev {bridge} arp off up",
                    ]
                )
            except LabError as error:
                raise LinkFailed(
                    f"a bridge could not be made: {error.message}", "Use --link-backend packet."
                ) from error
            try:
                link = QdiscLink(network)
                link.set(spec.without_effects(), 0, 0)
                yield link
            finally:
                network.base.ip([f"link del dev {bridge}"])
