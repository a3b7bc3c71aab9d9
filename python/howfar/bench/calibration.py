"""What a calibration says, and the arithmetic from measured blocks to it. Pure; its JSON form is `howfar bench calibrate --json`.

Nothing here is about a database: the other end is the null server, so whatever is left is the client's and the transport's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import Final, Literal

from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import hodges_lehmann, judge_ratio

FLOOR_BAR: Final = 1.10
"""Our own demand: a query of the engine takes at most so many times the bare ping-pong, by p50."""
BUSY: Final = 0.9
"""From this share of the time on the CPU, a thread is what limits."""
WAITING: Final = 0.1
"""From this share of the time ready to run and not running, other programs have the CPUs that were wanted."""
HISTOGRAM_BITS: Final = 11
"""Three significant digits are 2048 equal steps, then 1024 for each doubling."""


class Limit(StrEnum):
    """What kept the rate from being higher."""

    CLIENT = "client"
    SERVER = "server"
    BOTH = "both"
    MACHINE = "machine"
    """Other programs."""
    NEITHER = "neither"


# ---------------------------------------------------------------- measured, one block each


class Exchange(Part):
    """One block of the ping-pong."""

    p50_ns: int
    cpu_ns_per_round: float
    clock_step_ns: int
    clock_read_ns: float


class Load(Part):
    """One block of the engine."""

    p50_ns: int
    queries_per_s: float
    client_ns_per_query: float
    server_ns_per_query: float
    client_busy: float
    """Share of the window that its busiest thread was on a CPU."""
    server_busy: float
    waiting: float
    """Time that threads of either were ready and not on a CPU, over the window."""


# ---------------------------------------------------------------- the answer

Transport = Literal["socket", "tcp"]
Cpus = Literal["together", "apart"]
"""Client and null server on one CPU, or each on its own."""


class Floor(Part):
    """One connection: the least that an answer takes, and what the engine adds to it."""

    cpus: Cpus
    ping_pong_p50_us: Estimate
    ping_pong_cpu_us: Estimate
    engine_p50_us: Estimate
    engine_cpu_us: Estimate
    engine_over_ping_pong: Estimate
    """Of the p50s, block by block."""
    within_bar: bool
    """At most 1.10, by the estimate."""


class Ceiling(Part):
    """Many connections: the most that this client asks."""

    connections: int
    queries_per_s: Estimate
    client_busy: float
    server_busy: float
    waiting: float
    limit: Limit


class QueryCost(Part):
    """CPU of a query at so many connections."""

    connections: int
    client_us: Estimate
    server_us: Estimate


class OverTransport(Part):
    transport: Transport
    floors: tuple[Floor, ...]
    ceiling: Ceiling
    histogram_step_ns: int
    """The step of the histogram at the lowest p50 of the engine."""
    cpu_per_query: tuple[QueryCost, ...]


class Clock(Part):
    step_ns: int
    """The smallest step seen."""
    read_ns: float
    """The median price of a reading."""


class Setting(Part):
    """On what, and how, it was measured."""

    howfar: str
    kernel: str
    client_cpus: tuple[int, ...]
    server_cpus: tuple[int, ...]
    blocks: int
    block_ns: int


class Calibration(Part):
    version: Literal[1] = 1
    setting: Setting
    clock: Clock
    transports: tuple[OverTransport, ...]


# ---------------------------------------------------------------- arithmetic


def histogram_step_ns(value_ns: int) -> int:
    """How far apart two latencies near `value_ns` must be to be told apart: `histogram_step_ns(3371)` is 2."""
    return int(2 ** max(0, value_ns.bit_length() - HISTOGRAM_BITS))


def limit(client_busy: float, server_busy: float, waiting: float, *, shared: bool) -> Limit:
    """What was the limit. On one CPU for both (`shared`) each waits for the other, and their sum is what counts."""
    if shared:
        return Limit.BOTH if client_busy + server_busy >= BUSY else Limit.MACHINE
    if min(client_busy, server_busy) >= BUSY:
        return Limit.BOTH
    if max(client_busy, server_busy) >= BUSY:
        return Limit.CLIENT if client_busy > server_busy else Limit.SERVER
    return Limit.MACHINE if waiting >= WAITING else Limit.NEITHER


def _us(values_ns: Sequence[float]) -> Estimate:
    return hodges_lehmann([value / 1e3 for value in values_ns])


def floor(cpus: Cpus, ping_pong: Sequence[Exchange], engine: Sequence[Load]) -> Floor:
    """From the blocks of both, in the same order."""
    ratio = judge_ratio([ours.p50_ns / bare.p50_ns for bare, ours in zip(ping_pong, engine, strict=True)]).quoted
    return Floor(
        cpus=cpus,
        ping_pong_p50_us=_us([one.p50_ns for one in ping_pong]),
        ping_pong_cpu_us=_us([one.cpu_ns_per_round for one in ping_pong]),
        engine_p50_us=_us([one.p50_ns for one in engine]),
        engine_cpu_us=_us([one.client_ns_per_query for one in engine]),
        engine_over_ping_pong=ratio,
        within_bar=ratio.value <= FLOOR_BAR,
    )


def ceiling(connections: int, blocks: Sequence[Load], *, shared: bool) -> Ceiling:
    client, server = median(one.client_busy for one in blocks), median(one.server_busy for one in blocks)
    waiting = median(one.waiting for one in blocks)
    return Ceiling(
        connections=connections,
        queries_per_s=hodges_lehmann([one.queries_per_s for one in blocks]),
        client_busy=client,
        server_busy=server,
        waiting=waiting,
        limit=limit(client, server, waiting, shared=shared),
    )


def query_cost(connections: int, blocks: Sequence[Load]) -> QueryCost:
    return QueryCost(
        connections=connections,
        client_us=_us([one.client_ns_per_query for one in blocks]),
        server_us=_us([one.server_ns_per_query for one in blocks]),
    )


def clock(blocks: Sequence[Exchange]) -> Clock:
    """Over everything that was measured: the clock is the same for all."""
    steps = [one.clock_step_ns for one in blocks if one.clock_step_ns > 0]
    return Clock(step_ns=min(steps, default=0), read_ns=median(one.clock_read_ns for one in blocks))


def lowest_p50_ns(floors: Sequence[Floor]) -> int:
    """The engine's lowest p50: where resolution matters most."""
    return math.floor(min(one.engine_p50_us.value for one in floors) * 1e3)
