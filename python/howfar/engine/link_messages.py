"""The part of the contract that is about the link: what it is asked to be, the later lines on its stdin, what it says.

An effect that is off is absent (None, 0 or an empty list). Random decisions are a pure function of `seed`, of what passes and of the
`set`s before. A `set` begins every schedule anew, but no random effect that is asked as before: that goes on. One that is changed, or
switched on again, draws on numbers that this link has not used; with another seed it begins at the first.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from howfar.engine.load_events import Failed
from howfar.engine.message import LONGEST_NS, PROTOCOL_VERSION, Message

DELAY_MAX_NS = 60_000_000_000
RATE_MAX_BPS = 1_000_000_000_000
Probability = Annotated[float, Field(ge=0, le=1)]


class NormalJitter(Message):
    """The delay varies around its mean. What would make it negative is taken as no delay at all."""

    kind: Literal["normal"] = "normal"
    deviation_ns: int = Field(gt=0, le=DELAY_MAX_NS)
    """Standard deviation."""


class ParetoJitter(Message):
    """What comes on top of the delay, with a heavy tail: a Pareto distribution moved to begin at zero (Lomax)."""

    kind: Literal["pareto"] = "pareto"
    mean_ns: int = Field(gt=0, le=DELAY_MAX_NS)
    shape: float = Field(default=3.0, gt=1, le=100)
    """The tail's exponent: lower is heavier. The variance is finite above 2."""


class EmpiricalJitter(Message):
    """What comes on top of the delay, drawn from measured values with equal chances."""

    kind: Literal["empirical"] = "empirical"
    extra_ns: list[Annotated[int, Field(ge=0, le=DELAY_MAX_NS)]] = Field(min_length=1, max_length=100_000)


Jitter = Annotated[NormalJitter | ParetoJitter | EmpiricalJitter, Field(discriminator="kind")]


class IndependentLoss(Message):
    """Each segment is lost with the same chance, whatever became of the others."""

    kind: Literal["independent"] = "independent"
    probability: Probability


class BurstLoss(Message):
    """Gilbert's and Elliott's chain of two states, one step a segment; each state loses segments with a chance of its own."""

    kind: Literal["gilbert_elliott"] = "gilbert_elliott"
    to_bad: Probability
    to_good: Probability
    loss_good: Probability = 0.0
    loss_bad: Probability = 1.0


Loss = Annotated[IndependentLoss | BurstLoss, Field(discriminator="kind")]


class Outage(Message):
    """The line is down: what arrives at it is lost. Times count from the job or the `set` that brought them."""

    at_ns: int = Field(ge=0, le=LONGEST_NS)
    for_ns: int = Field(gt=0, le=LONGEST_NS)
    every_ns: int | None = Field(default=None, gt=0, le=LONGEST_NS)
    """Again after each such time; None: once."""


class RateStep(Message):
    """One step of a rate trace; 0 bit/s is a line that stands still while its queue fills."""

    for_ns: int = Field(gt=0, le=LONGEST_NS)
    rate_bps: int = Field(ge=0, le=RATE_MAX_BPS)


class Direction(Message):
    """One way of a link. `delay_ns` is what the user asked (half the RTT); `compensate_ns` is taken off it by calibration."""

    rate_bps: int | None = Field(default=None, gt=0, le=RATE_MAX_BPS)
    """None: unshaped, or given by `rate_trace`."""
    rate_trace: list[RateStep] = Field(default=[], max_length=100_000)
    """A rate that changes: the steps follow each other and begin anew after the last. At least one has a rate."""
    delay_ns: int = Field(ge=0, le=DELAY_MAX_NS)
    compensate_ns: int = 0
    queue_bytes: int = Field(gt=0, le=64 * 2**30)
    jitter: Jitter | None = None
    reorder: bool = False
    """May jitter let a later packet overtake? Otherwise it waits for the one before."""
    loss: Loss | None = None
    duplicate: Probability = 0.0
    """Chance of a segment to arrive twice."""
    corrupt: Probability = 0.0
    """Chance of a segment to arrive with one bit turned over."""
    outages: list[Outage] = Field(default=[], max_length=1_000)
    seed: int = Field(default=0, ge=0, le=2**64 - 1)

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.rate_trace and self.rate_bps is not None:
            raise ValueError("a direction has a rate or a trace of rates, not both")
        if self.rate_trace and not any(step.rate_bps for step in self.rate_trace):
            raise ValueError("a trace of rates in which nothing ever passes")
        return self


class LinkJob(Message):
    """Join two packet interfaces of the present network namespace. Lives until stdin ends."""

    job: Literal["link"] = "link"
    version: Literal[2] = PROTOCOL_VERSION
    port: Literal["packet", "tun"] = "packet"
    """`packet`: packet sockets on two interfaces that are there. `tun`: the engine makes two TUN devices of these names, and whoever
    asked moves them to their hosts when the link is ready."""
    client_interface: str
    server_interface: str
    to_server: Direction
    to_client: Direction
    realtime: Literal["auto", "off"] = "auto"


class SetLink(Message):
    """A later line on the link's stdin: change parameters without losing a packet."""

    command: Literal["set"] = "set"
    to_server: Direction
    to_client: Direction


class AskStats(Message):
    """A later line on the link's stdin: answer with a `link_stats` event. `reset` starts the counters anew after it."""

    command: Literal["stats"] = "stats"
    reset: bool = False


class LinkReady(Message):
    """Packets pass from now on."""

    event: Literal["link_ready"] = "link_ready"
    realtime: bool
    short_slice: bool
    """Not of the real-time class, but with a short time slice."""
    offload: bool
    """virtio-net headers in force: super-packets are kept."""


class Drops(Message):
    """Segments not delivered, by cause. `queue`, `loss` and `outage` are what was asked; any other voids a trial."""

    queue: int
    loss: int
    outage: int
    arena: int
    socket: int | None
    """What the emulator never saw, because a buffer of the kernel's (of a packet socket, of a TUN device) had no room. Packets, each a
    segment or a super-packet of many: the kernel tells no more. None: it did not tell at all."""
    transmit: int


class DirectionStats(Message):
    """Since the link began or since the last reset."""

    packets: int
    segments: int
    wire_bytes: int
    """Bytes on the emulated wire: each segment with its Ethernet framing (preamble, FCS, gap: 38 bytes)."""
    admitted: int
    """Segments that came while the line was up and the queue had room: `loss` is a share of these. Both are counted when they come."""
    drops: Drops
    duplicated: int
    corrupted: int
    reordered: int
    """Segments that left after one that had come later."""
    queue_bytes_max: int
    queue_bytes_lately: int | None = None
    """The most since the counters were last asked for, also without a reset. None: an engine of before."""
    lateness_p50_ns: int
    lateness_p99_ns: int
    lateness_p999_ns: int
    lateness_max_ns: int
    cpu_ns: int


class LinkStats(Message):
    event: Literal["link_stats"] = "link_stats"
    to_server: DirectionStats
    to_client: DirectionStats


LinkEvent = Annotated[LinkReady | LinkStats | Failed, Field(discriminator="event")]
