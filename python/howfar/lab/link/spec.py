"""The requested properties of a link, and values derived from them: delay per direction, queues, traces, expected goodput. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from howfar.contract.messages import (
    BurstLoss,
    Direction,
    EmpiricalJitter,
    IndependentLoss,
    NormalJitter,
    Outage,
    ParetoJitter,
    RateStep,
)
from howfar.contract.receipt import DIRECTIONS as DIRECTIONS
from howfar.contract.receipt import DirectionName as DirectionName
from howfar.plan.factor import FactorLevels
from howfar.plan.factors import RATE_BPS, RTT_NS

MTU = 1500
FRAMING_BYTES = 38
"""Ethernet's bytes around a packet: header 14, frame check sequence 4, preamble 8, gap 12."""
HEADERS_BYTES = 52
"""Bytes of the headers of IPv4 (20 bytes) and TCP with timestamps (32 bytes)."""
PING_BYTES = 1 + HEADERS_BYTES + FRAMING_BYTES
"""Bytes on the wire of a ping with one byte of payload; its answer has the same size."""
_MIN_QUEUE_NS = 10_000_000
MAX_QUEUE_BYTES = 64 * 2**30
_UNSHAPED_QUEUE_BYTES = 64 * 2**20
_UNSHAPED_RATE_BPS = 10**10
"""The rate for which buffers are sized if no rate is requested."""
_MIN_QUEUE_BYTES = 2 * (MTU + FRAMING_BYTES)
_NS_PER_S = 10**9


@dataclass(frozen=True)
class DirectionSpec:
    """The requested properties of one direction. An effect that is off is None, 0 or empty."""

    rate_bps: int | None = None
    """Rate of this direction; None for the link's rate."""
    rate_trace: tuple[RateStep, ...] = ()
    queue_bytes: int | None = None
    """Length of the queue. If neither this nor `queue_ns` is set: one bandwidth-delay product, but at least 10 ms at the rate."""
    queue_ns: int | None = None
    """Length of the queue as the time in which it drains at the rate."""
    jitter: NormalJitter | ParetoJitter | EmpiricalJitter | None = None
    reorder: bool = False
    loss: IndependentLoss | BurstLoss | None = None
    loss_burst: float | None = None
    """Mean length of loss bursts, kept for a loss that a later setting requests; None for independent losses."""
    duplicate: float = 0.0
    corrupt: float = 0.0
    outages: tuple[Outage, ...] = ()
    """Outages; times count from `Link.start_effects`."""

    @property
    def has_effects(self) -> bool:
        """Whether the direction has an effect that a link at rest does not have."""
        return bool(
            self.rate_trace
            or self.jitter
            or self.reorder
            or self.loss
            or self.duplicate
            or self.corrupt
            or self.outages
        )


@dataclass(frozen=True)
class LinkSpec:
    """The requested properties of a link. `rate_bps` applies to each direction that has no rate of its own; None if unlimited."""

    rtt_ns: int
    rate_bps: int | None
    to_server: DirectionSpec = DirectionSpec()
    to_client: DirectionSpec = DirectionSpec()
    delay_to_server_ns: int | None = None
    """The part of the RTT that is spent towards the server; None for half of it."""
    mtu: int = MTU
    seed: int = 0

    def direction(self, name: DirectionName) -> DirectionSpec:
        return self.to_server if name == "to_server" else self.to_client

    def with_levels(self, levels: FactorLevels) -> LinkSpec:
        """The same link with the RTT and the rate that a cell's levels name."""
        rtt_ns, rate_bps = RTT_NS.level_or_none(levels), RATE_BPS.level_or_none(levels)
        return replace(
            self,
            rtt_ns=self.rtt_ns if rtt_ns is None else rtt_ns,
            rate_bps=self.rate_bps if rate_bps is None else rate_bps,
        )

    def with_direction(self, name: DirectionName, direction: DirectionSpec) -> LinkSpec:
        return replace(self, to_server=direction) if name == "to_server" else replace(self, to_client=direction)

    @property
    def has_effects(self) -> bool:
        return self.to_server.has_effects or self.to_client.has_effects

    def without_effects(self) -> LinkSpec:
        """The same link at rest, with its rates (the mean of a trace), delays and queues only; links that are the same at rest compare
        equal."""

        def rest_direction(name: DirectionName) -> DirectionSpec:
            direction = self.direction(name)
            return DirectionSpec(
                rate_bps=self.mean_rate_bps(name), queue_bytes=direction.queue_bytes, queue_ns=direction.queue_ns
            )

        return replace(
            self, rate_bps=None, to_server=rest_direction("to_server"), to_client=rest_direction("to_client"), seed=0
        )

    def mean_rate_bps(self, name: DirectionName) -> int | None:
        """The rate, or the mean of its trace; None if unshaped."""
        direction = self.direction(name)
        if direction.rate_trace:
            total_ns = sum(step.for_ns for step in direction.rate_trace)
            return max(sum(step.for_ns * step.rate_bps for step in direction.rate_trace) // total_ns, 1)
        return self.rate_bps if direction.rate_bps is None else direction.rate_bps

    def delay_ns(self, name: DirectionName) -> int:
        delay_to_server_ns = self.rtt_ns // 2 if self.delay_to_server_ns is None else self.delay_to_server_ns
        return (
            delay_to_server_ns
            if name == "to_server" or self.delay_to_server_ns is None
            else self.rtt_ns - delay_to_server_ns
        )

    @property
    def rest_rtt_ns(self) -> int:
        """Expected time of a one-byte ping over the link at rest: the RTT plus the ping's transmission time in each direction that has
        a rate. At 1 Mb/s the transmission takes 1.46 ms."""
        rates = [self.mean_rate_bps(name) for name in DIRECTIONS]
        return self.rtt_ns + sum(PING_BYTES * 8 * _NS_PER_S // rate_bps for rate_bps in rates if rate_bps is not None)

    @property
    def bdp_bytes(self) -> int:
        """Bandwidth-delay product of the direction with the larger one."""
        return max(self._bdp_bytes(name) for name in DIRECTIONS)

    def _bdp_bytes(self, name: DirectionName) -> int:
        return (self.mean_rate_bps(name) or _UNSHAPED_RATE_BPS) * self.rtt_ns // 8 // _NS_PER_S

    def queue_bytes(self, name: DirectionName) -> int:
        """Length of the queue: as requested, or one bandwidth-delay product, but then at least 10 ms at the rate."""
        direction, rate_bps = self.direction(name), self.mean_rate_bps(name)
        if direction.queue_bytes is not None:
            return direction.queue_bytes
        if rate_bps is None:
            return _UNSHAPED_QUEUE_BYTES
        if direction.queue_ns is not None:
            return max(rate_bps * direction.queue_ns // 8 // _NS_PER_S, _MIN_QUEUE_BYTES)
        return max(self._bdp_bytes(name), rate_bps * _MIN_QUEUE_NS // 8 // _NS_PER_S, _MIN_QUEUE_BYTES)

    def direction_message(self, name: DirectionName, compensate_ns: int = 0, elapsed_ns: int = 0) -> Direction:
        """The engine's message for a direction, whose outages and rate trace began `elapsed_ns` ago and continue."""
        direction = self.direction(name)
        return Direction(
            rate_bps=None if direction.rate_trace else self.mean_rate_bps(name),
            rate_trace=rotate_trace(direction.rate_trace, elapsed_ns),
            delay_ns=self.delay_ns(name),
            compensate_ns=compensate_ns,
            queue_bytes=self.queue_bytes(name),
            jitter=direction.jitter,
            reorder=direction.reorder,
            loss=direction.loss,
            duplicate=direction.duplicate,
            corrupt=direction.corrupt,
            outages=[
                remaining_outage
                for outage in direction.outages
                for remaining_outage in remaining_outages(outage, elapsed_ns)
            ],
            seed=(2 * self.seed + (name == "to_client")) % 2**64,
        )

    def segment_ns(self, name: DirectionName) -> int:
        """Transmission time of a full segment; 0 if unshaped."""
        rate_bps = self.mean_rate_bps(name)
        return 0 if rate_bps is None else (self.mtu + FRAMING_BYTES) * 8 * _NS_PER_S // rate_bps

    @property
    def payload_share(self) -> float:
        """Share of payload in the bytes on the wire: 1448 of 1538 with an MTU of 1500."""
        return (self.mtu - HEADERS_BYTES) / (self.mtu + FRAMING_BYTES)

    def expected_goodput_bps(self, name: DirectionName) -> float | None:
        """Maximum goodput of one TCP connection without loss; None if unshaped, because then the machine is the limit."""
        rate_bps = self.mean_rate_bps(name)
        return None if rate_bps is None else rate_bps * self.payload_share


LOCAL_NETWORK = LinkSpec(rtt_ns=200_000, rate_bps=10**9)
"""A link like that between two machines of one local network."""


def remaining_outages(outage: Outage, elapsed_ns: int) -> list[Outage]:
    """The outages that remain `elapsed_ns` after the schedule began; their times count from that moment."""
    since_start_ns = elapsed_ns - outage.at_ns
    if since_start_ns <= 0:
        return [outage.model_copy(update={"at_ns": -since_start_ns})]
    if outage.every_ns is None:
        return [Outage(at_ns=0, for_ns=outage.for_ns - since_start_ns)] if since_start_ns < outage.for_ns else []
    phase_ns = since_start_ns % outage.every_ns
    later = [outage.model_copy(update={"at_ns": outage.every_ns - phase_ns})]
    return [Outage(at_ns=0, for_ns=outage.for_ns - phase_ns), *later] if phase_ns < outage.for_ns else later


def rotate_trace(trace: tuple[RateStep, ...], elapsed_ns: int) -> list[RateStep]:
    """The steps of a trace that began `elapsed_ns` ago, rotated so that the first is the present one."""
    if not trace or elapsed_ns <= 0:
        return list(trace)
    phase_ns = elapsed_ns % sum(step.for_ns for step in trace)
    for index, step in enumerate(trace):
        if phase_ns < step.for_ns:
            current_step = step.model_copy(update={"for_ns": step.for_ns - phase_ns})
            finished_part = [step.model_copy(update={"for_ns": phase_ns})] if phase_ns else []
            return [current_step, *trace[index + 1 :], *trace[:index], *finished_part]
        phase_ns -= step.for_ns
    raise AssertionError("the phase is less than the trace's total duration")
