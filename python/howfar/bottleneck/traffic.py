"""Traffic under load in one direction of a path, compared with the link's rate; and the time series of one trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from howfar.contract.receipt import DirectionName, LinkReceipt, RequestedDirection
from howfar.plan.factor import Level
from howfar.plan.factors import RATE_BPS, saves_bytes
from howfar.stats.estimate import Part
from howfar.store.records import NetworkSample, Trial


class NetworkSeries(Part):
    """The link, or the loopback, over one trial of an arm: the last good one. Bytes per second as an interface counts them."""

    trial: int
    at_s: tuple[float, ...]
    to_client_bytes_per_s: tuple[float, ...]
    to_server_bytes_per_s: tuple[float, ...]
    to_client_queue_bytes: tuple[int, ...] | None
    to_server_queue_bytes: tuple[int, ...] | None
    """Maximum queue length in each slice. None: the link does not report its queue."""
    retransmits_per_s: tuple[float, ...]
    interface_ceiling_bytes_per_s: float | None
    payload_ceiling_bytes_per_s: float | None
    """Maximum payload at the rate. None: no rate was requested."""


ETHERNET_BYTES = 14
"""Bytes of each frame's header, which an interface counts."""
UNCOUNTED_BYTES = 24
"""Bytes of each frame that are on the wire but in no interface's counter: preamble 8, check sequence 4, gap 12."""
IP_TCP_BYTES = 52
"""Headers of a segment: IP 20, TCP 20, timestamps 12."""
SEGMENT_HEADER_BYTES = ETHERNET_BYTES + IP_TCP_BYTES
MTU = 1500


@dataclass(frozen=True)
class Ceilings:
    """Maximum bytes per second in one direction, in full frames."""

    interface: float
    """Bytes as /proc/net/dev counts them."""
    payload: float
    """Bytes of data that TCP carries. They cannot be compared with an interface's count."""


def ceilings(rate_bps: float, mtu: int = MTU) -> Ceilings:
    """Ceilings of a rate. 1 Gb/s, MTU 1500: 117.3 MiB/s on the interface, 112.2 MiB/s of payload."""
    wire = mtu + ETHERNET_BYTES + UNCOUNTED_BYTES
    bytes_per_s = rate_bps / 8
    return Ceilings(interface=bytes_per_s * (mtu + ETHERNET_BYTES) / wire, payload=bytes_per_s * payload_share(mtu))


def payload_share(mtu: int) -> float:
    """Share of the wire that is payload, in full frames."""
    return (mtu - IP_TCP_BYTES) / (mtu + ETHERNET_BYTES + UNCOUNTED_BYTES)


def mtu_from_mss(mss: int | None) -> int:
    """The MTU of a real link, from the MSS of a probe's connection. 1500 if the MSS is unknown."""
    return mss + IP_TCP_BYTES if mss else MTU


@dataclass(frozen=True)
class Carried:
    """Bytes carried in one direction."""

    interface: float
    wire: float
    """Bytes on the wire, including those that no interface counts."""


def carried_from_interface_count(counted_bytes: float, frames: float) -> Carried:
    """Bytes carried, from an interface's count."""
    return Carried(interface=counted_bytes, wire=counted_bytes + frames * UNCOUNTED_BYTES)


def carried_from_payload(payload_bytes: float, round_trips: float, mtu: int = MTU) -> Carried:
    """Bytes carried, estimated from the payload if no frames were counted: full segments, and half a segment more per round trip."""
    segments = payload_bytes / (mtu - IP_TCP_BYTES) + round_trips / 2
    return carried_from_interface_count(payload_bytes + segments * SEGMENT_HEADER_BYTES, segments)


@dataclass(frozen=True)
class CarriedTraffic:
    """Traffic of one direction of a link."""

    name: DirectionName
    rate_bps: float | None
    """Rate of the link. None: unshaped."""
    ceilings: Ceilings | None
    interface_bytes_per_s: float
    """Bytes carried, as a network card counts them, with headers for each segment."""
    offered_bytes_per_s: float
    """Bytes sent into the link. The queue of a full link drops bytes that exceed its rate."""
    payload_bytes_per_s: float
    wire_s: float | None
    """Time on the wire per transaction, framing included."""
    used: float | None
    """Share of the rate that is on the wire, framing included."""
    segments: float
    """Segments per transaction."""
    queue_bytes: float | None
    """Maximum queue length between samples, mean over samples."""
    counted: bool
    """Whether an interface counted the traffic over the window. If not, it is computed from the protocol's bytes."""
    is_rate_lower_bound: bool = False
    """Whether only a lower bound of a real link's rate is known. Then `wire_s` and `used` are upper bounds, and do not prove that the
    link is full."""


def link_direction(trials: Sequence[Trial], factors: Mapping[str, Level], name: DirectionName) -> CarriedTraffic | None:
    """Traffic in one direction over all good trials of an arm. None: no link on this path, or its bytes are unknown."""
    link_trials = [trial for trial in trials if trial.measured is not None and trial.receipt.link is not None]
    if not link_trials:
        return None
    counted_trials = [trial for trial in link_trials if trial.window is not None and trial.window.network]
    traffic = [_traffic_by_interface(trial, name) for trial in counted_trials]
    rate = _rate(link_trials[-1].receipt.link, factors, name)
    if not counted_trials:
        if saves_bytes(factors):
            return None  # the engine counts the bytes of the protocol's messages, so those on the wire are unknown
        traffic = [_traffic_by_payload(trial, name, rate.mtu) for trial in link_trials]
    seconds = sum(record.seconds for record in traffic)
    transactions = sum(record.transactions for record in traffic)
    if not seconds or not transactions:
        return None
    interface = sum(record.carried.interface for record in traffic)
    wire = sum(record.carried.wire for record in traffic)
    segments = sum(record.segments for record in traffic)
    rate_bps = rate.bps
    if rate.is_lower_bound and rate_bps:
        rate_bps = max(rate_bps, wire * 8 / seconds)  # the rate cannot be lower than what the link carried
    offered = wire * 8 / rate_bps / seconds if rate_bps else None
    # The wire carries at most the rate; the rest was dropped by the queue.
    passed_share = 1 / offered if offered and offered > 1 else 1.0
    queues = [queue for record in traffic for queue in record.queues]
    return CarriedTraffic(
        name=name,
        rate_bps=rate_bps,
        ceilings=ceilings(rate_bps, rate.mtu) if rate_bps else None,
        interface_bytes_per_s=interface * passed_share / seconds,
        offered_bytes_per_s=interface / seconds,
        payload_bytes_per_s=(interface - segments * SEGMENT_HEADER_BYTES) * passed_share / seconds,
        wire_s=wire * passed_share * 8 / rate_bps / transactions if rate_bps else None,
        used=offered * passed_share if offered is not None else None,
        segments=segments / transactions,
        queue_bytes=sum(queues) / len(queues) if queues else None,
        counted=bool(counted_trials),
        is_rate_lower_bound=rate.is_lower_bound,
    )


@dataclass(frozen=True)
class _TrialTraffic:
    """One trial's bytes in one direction."""

    carried: Carried
    segments: float
    seconds: float
    transactions: float
    queues: tuple[int, ...] = ()


def _traffic_by_interface(trial: Trial, name: DirectionName) -> _TrialTraffic:
    assert trial.window is not None and trial.measured is not None, "a counted trial has a window and was measured"
    last = trial.window.network[-1]
    seconds, frames = last.at_ns / 1e9, _counter_of(last, name, "packets")
    queues = [getattr(sample, f"{name}_queue_bytes") for sample in trial.window.network]
    return _TrialTraffic(
        carried=carried_from_interface_count(_counter_of(last, name, "bytes"), frames),
        segments=frames,
        seconds=seconds,
        transactions=trial.measured.transactions * seconds / (trial.measured.elapsed_ns / 1e9),
        queues=tuple(queue for queue in queues if queue is not None),
    )


def _traffic_by_payload(trial: Trial, name: DirectionName, mtu: int) -> _TrialTraffic:
    measured = trial.measured
    assert measured is not None, "a good trial was measured"
    payload = getattr(measured.bytes, name)
    carried_bytes = carried_from_payload(payload, measured.round_trips, mtu)
    segments = payload / (mtu - IP_TCP_BYTES) + measured.round_trips / 2
    return _TrialTraffic(carried_bytes, segments, measured.elapsed_ns / 1e9, measured.transactions)


def _counter_of(sample: NetworkSample, name: DirectionName, what: Literal["bytes", "packets"]) -> int:
    return int(getattr(sample, f"{name}_{what}"))


@dataclass(frozen=True)
class _LinkRate:
    """The rate of one direction, framing included."""

    bps: float | None
    mtu: int
    is_lower_bound: bool = False


def _rate(link: LinkReceipt | None, factors: Mapping[str, Level], name: DirectionName) -> _LinkRate:
    """The requested rate: from the receipt, which has both directions, otherwise from the cell. For a real link, the rate that a probe
    of one connection reached; several connections may reach more."""
    if link is None:
        return _LinkRate(None, MTU)
    if link.real:
        goodput_bps = None if link.goodput_bps is None else link.goodput_bps.in_direction(name)
        mtu = mtu_from_mss(link.mss)
        return _LinkRate(goodput_bps / payload_share(mtu) if goodput_bps else None, mtu, is_lower_bound=True)
    rate: float | None = RATE_BPS.level_or_none(factors)
    if (requested := link.requested) is not None:
        direction: RequestedDirection | None = getattr(requested, name)
        if direction is not None:
            rate = direction.rate_bps
        elif requested.rate_bps is not None:
            rate = requested.rate_bps
    return _LinkRate(float(rate) if rate else None, link.mtu or MTU)


# ---------------------------------------------------------------- for charts


def network_series(trial: Trial, factors: Mapping[str, Level]) -> NetworkSeries | None:
    """The time series of one trial, in slices between samples. None: the trial has no samples."""
    window = trial.window
    if window is None or not window.network:
        return None
    rate = _rate(trial.receipt.link, factors, "to_client")
    rate_ceilings = ceilings(rate.bps, rate.mtu) if rate.bps else None
    samples = (_FIRST_SAMPLE, *window.network)
    slices = [pair for pair in pairwise(samples) if pair[1].at_ns > pair[0].at_ns]
    return NetworkSeries(
        trial=trial.number,
        at_s=tuple((before.at_ns + after.at_ns) / 2e9 for before, after in slices),
        to_client_bytes_per_s=_bytes_per_s(slices, "to_client"),
        to_server_bytes_per_s=_bytes_per_s(slices, "to_server"),
        to_client_queue_bytes=_max_queues(slices, "to_client"),
        to_server_queue_bytes=_max_queues(slices, "to_server"),
        retransmits_per_s=tuple(
            (after.retransmits - before.retransmits) * 1e9 / (after.at_ns - before.at_ns) for before, after in slices
        ),
        interface_ceiling_bytes_per_s=rate_ceilings.interface if rate_ceilings else None,
        payload_ceiling_bytes_per_s=rate_ceilings.payload if rate_ceilings else None,
    )


_Slices = Sequence[tuple[NetworkSample, NetworkSample]]
_FIRST_SAMPLE = NetworkSample(
    at_ns=0,
    to_server_bytes=0,
    to_client_bytes=0,
    to_server_packets=0,
    to_client_packets=0,
    to_server_queue_bytes=None,
    to_client_queue_bytes=None,
    retransmits=0,
)
"""The sample at the start of the window, where all counters are 0."""


def _bytes_per_s(slices: _Slices, name: DirectionName) -> tuple[float, ...]:
    return tuple(
        (_counter_of(after, name, "bytes") - _counter_of(before, name, "bytes")) * 1e9 / (after.at_ns - before.at_ns)
        for before, after in slices
    )


def _max_queues(slices: _Slices, name: DirectionName) -> tuple[int, ...] | None:
    queues = [getattr(after, f"{name}_queue_bytes") for _, after in slices]
    return None if any(queue is None for queue in queues) else tuple(queues)
