"""`kernel`: a bridge between two veth cables, shaped by the kernel's own queueing disciplines, as tc sets them.

tbf makes the rate, netem the delay and what is random; many kernels lack netem, and then only rates are possible. Nothing is
known of lateness or of unmodelled drops here, so the receipt says so. Not here: which disciplines this kernel has; that is found by
adding them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from howfar.engine.messages import (
    IndependentLoss,
    LinkReady,
    LinkStats,
    NormalJitter,
)
from howfar.errors import LabError, LinkFailed
from howfar.lab.link.backends import LinkLine
from howfar.lab.link.spec import FRAMING_BYTES, WAYS, LinkSpec, WayName
from howfar.lab.network import FIRST, Ends, Network, cable_through_middle

BURST_BYTES = 128 * 1024
"""A super-packet is 64 KiB; with a smaller burst tbf takes it apart, and a tenth of the throughput is left."""
_QUEUE_MOST_BYTES = 2**31
_ETHERNET_BYTES = 14
_NETEM_PACKETS = 10_000_000
"""netem's limit counts packets, those on their way included; its default of 1000 is what makes long fast links slow."""


class KernelLine:
    """See `backends.LinkLine`."""

    ready: LinkReady | None = None
    pid: int | None = None

    def __init__(self, network: Network) -> None:
        self._network = network
        self._set: dict[str, list[str]] = {}
        """By device: the disciplines in force."""

    def alive(self) -> bool:
        return True

    def set(self, asked: LinkSpec, compensate_ns: int, elapsed_ns: int) -> None:
        why = KernelBackend.refuses(asked)
        if why:
            raise LinkFailed(f"the kernel's disciplines cannot do that: {why}")
        for name in WAYS:
            device = _device(name, self._network.ends)
            lines = qdisc_batch(asked, name, compensate_ns, self._network.ends)
            kinds = [line.partition(" handle ")[2].split()[1] for line in lines]
            # Replaced by one of the same kind and handle, a discipline changes and keeps its queue; another tree begins empty.
            if self._set.get(device) not in (None, kinds):
                self._network.base.tc([f"qdisc del dev {device} root"])
                del self._set[device]
            if not lines:
                continue
            try:
                self._network.base.tc(lines)
            except LabError as error:
                lacks = "netem" if any("netem" in line for line in lines) else "tbf"
                raise LinkFailed(
                    f"this kernel does not take {lacks}: {error.message}",
                    "Use --link-backend packet, which needs no queueing discipline; `howfar links` shows what is here.",
                ) from error
            self._set[device] = kinds

    def stats(self, *, reset: bool = False) -> LinkStats | None:
        return None


def _device(name: WayName, ends: Ends) -> str:
    """A packet to the server leaves the middle by the server's cable, and is shaped there: a slow router, not a slow card."""
    return ends.server_middle if name == "to_server" else ends.client_middle


def tbf_rate(rate_bps: int, mtu: int) -> int:
    """What tbf is told for a rate on the wire. It counts full frames without preamble, FCS and gap, and its own `overhead` is charged
    once for a super-packet of up to 44 frames: so the rate is lowered instead."""
    return rate_bps * (mtu + _ETHERNET_BYTES) // (mtu + FRAMING_BYTES)


def qdisc_batch(asked: LinkSpec, name: WayName, compensate_ns: int, ends: Ends = FIRST) -> list[str]:
    """Lines for `tc -batch`: netem at the root where it is needed, tbf below it or alone."""
    way, device, rate_bps = asked.way(name), _device(name, ends), asked.mean_rate_bps(name)
    lines, parent = [], "root"
    delay_ns = max(asked.delay_ns(name) - compensate_ns, 0)
    netem = []
    if asked.rtt_ns or way.jitter:
        spread = (
            f" {way.jitter.deviation_ns / 1000:g}us distribution normal" if isinstance(way.jitter, NormalJitter) else ""
        )
        netem.append(f"delay {delay_ns / 1000:g}us{spread}")
    if isinstance(way.loss, IndependentLoss):
        netem.append(f"loss random {way.loss.probability:%}")
    elif way.loss is not None:
        chain = (way.loss.to_bad, way.loss.to_good, way.loss.loss_bad, way.loss.loss_good)
        netem.append("loss gemodel " + " ".join(f"{share:%}" for share in chain))
    if way.duplicate:
        netem.append(f"duplicate {way.duplicate:%}")
    if way.corrupt:
        netem.append(f"corrupt {way.corrupt:%}")
    elif netem:
        netem.append("corrupt 0%")  # not told, a netem that is changed would keep what it had
    if netem:
        lines.append(f"qdisc replace dev {device} root handle 1: netem limit {_NETEM_PACKETS} {' '.join(netem)}")
        parent = "parent 1:1"
    if rate_bps is not None:
        rate = tbf_rate(rate_bps, asked.mtu)
        limit = max(asked.queue_bytes(name), BURST_BYTES)
        lines.append(
            f"qdisc replace dev {device} {parent} handle 10: tbf rate {rate} burst {BURST_BYTES} limit {limit}"
        )
    return lines


class KernelBackend:
    NAME = "kernel"
    ABOUT = "the kernel's tbf (rate) and netem (delay, loss) on a bridge; nothing is proved"
    CHARGES_LONE_PACKETS = False
    """tbf's bucket is full at rest."""
    QUEUE_LEAST_BYTES = BURST_BYTES
    ARRIVAL: str | None = None

    @staticmethod
    def refuses(asked: LinkSpec) -> str | None:
        for name in WAYS:
            way, rate_bps = asked.way(name), asked.mean_rate_bps(name)
            if asked.seed and (way.loss or way.jitter or way.duplicate or way.corrupt):
                return "netem draws numbers of its own; leave out --seed"
            if rate_bps is not None:
                queue_bytes, said = asked.queue_bytes(name), way.queue_bytes or way.queue_ns
                if said and queue_bytes < BURST_BYTES:
                    return "tbf's queue is never shorter than its bucket of 128 KiB"
                if queue_bytes > _QUEUE_MOST_BYTES:
                    return "tbf's queue is never longer than 2 GiB; say a shorter --queue"
            if way.outages or way.rate_trace:
                return "no outages and no traces of rates"
            if way.jitter is not None and not isinstance(way.jitter, NormalJitter):
                return "no jitter but the normal distribution"
            if way.jitter is not None and not way.reorder:
                return "netem's jitter reorders; say --reorder on"
        return None

    @staticmethod
    @contextmanager
    def open_line(network: Network, asked: LinkSpec) -> Iterator[LinkLine]:
        ends, bridge = network.ends, network.ends.bridge
        with cable_through_middle(network):
            try:
                network.base.ip(
                    [
                        f"link add name {bridge} mtu {asked.mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
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
                line = KernelLine(network)
                line.set(asked.calm(), 0, 0)
                yield line
            finally:
                network.base.ip([f"link del dev {bridge}"])
