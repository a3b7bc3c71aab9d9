"""What a comparison with another load generator says, and the arithmetic from measured blocks to it. Pure; its JSON form is
`howfar bench engine --against sysbench --json`.

A block measures each client once at each number of connections. A ratio is one number a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Literal

from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import judge_ratio

Placement = Literal["shared", "apart", "one-cpu"]
"""Client and server on all CPUs, each on its half, or both on one."""

CPU_BARS: Final[Mapping[int, float]] = {1: 0.55, 64: 0.35, 512: 0.20, 2048: 0.08}
"""Our own demand: client CPU a query, at most so many times the peer's, by connections."""
MEMORY_BARS: Final[Mapping[int, float]] = {64: 0.5, 512: 0.2, 2048: 0.1}
"""The same for peak memory."""


class Trial(Part):
    """One client in one block: what its steady window took."""

    queries: int
    """By the server's own counter."""
    seconds: float
    cpu_ns: int
    whole_queries: int
    """Since the process began, what it sent before the window included."""
    whole_cpu_ns: int
    """Of the process since it began: starting and connecting too."""
    rss_bytes: int
    """The peak since it began."""
    context_switches: int
    driver: str | None = None
    """How ours waited for its connections, from its receipt."""


class Block(Part):
    """What both took, one after the other in random order: everything else is reckoned from these."""

    ours: Trial
    peer: Trial


class Side(Part):
    """One client at one number of connections: medians of the blocks."""

    client_cpu_us_per_query: float
    whole_process_cpu_us_per_query: float
    """With starting and connecting, so the shorter the block the more of those."""
    qps: float
    rss_mib: float
    context_switches_per_query: float


class Row(Part):
    connections: int
    ours: Side
    peer: Side
    cpu_ratio: Estimate
    qps_ratio: Estimate
    """Below 1 with its whole interval: ours gets less out of the same server."""
    rss_ratio: float
    driver: str | None
    """Of ours: `epoll` or `io_uring`."""
    blocks: tuple[Block, ...]

    @property
    def misses(self) -> tuple[str, ...]:
        """Bars that are not reached, with the whole interval of the ratio. Memory has no interval and is judged by its median."""
        found = []
        cpu, memory = CPU_BARS.get(self.connections), MEMORY_BARS.get(self.connections)
        if cpu is not None and self.cpu_ratio.low is not None and self.cpu_ratio.low > cpu:
            found.append(f"client CPU {self.cpu_ratio.value:.3f}, not {cpu:.2f}")
        if memory is not None and self.rss_ratio > memory:
            found.append(f"memory {self.rss_ratio:.3f}, not {memory:.2f}")
        if self.qps_ratio.high is not None and self.qps_ratio.high < 1:
            found.append(f"throughput {self.qps_ratio.value:.3f}, below the peer's")
        return tuple(found)

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Bars within the interval of their ratio, or without one: neither reached nor missed."""
        found = []
        cpu = CPU_BARS.get(self.connections)
        if cpu is not None and _within(self.cpu_ratio, cpu):
            found.append(f"client CPU {self.cpu_ratio.value:.3f} beside {cpu:.2f}")
        if _within(self.qps_ratio, 1):
            found.append(f"throughput {self.qps_ratio.value:.3f} beside the peer's")
        return tuple(found)


def _within(ratio: Estimate, bar: float) -> bool:
    """A bar at the very end of an interval that has a length is within it."""
    if ratio.low is None or ratio.high is None:
        return True
    return ratio.low <= bar <= ratio.high and ratio.low < ratio.high


class Setting(Part):
    """On what, and how, it was measured."""

    howfar: str
    peer: str
    server: str
    kernel: str
    placement: Placement
    client_cpus: tuple[int, ...]
    server_cpus: tuple[int, ...]
    autogroup: bool | None
    """The kernel shares CPUs between sessions rather than threads; None: this kernel knows no such thing."""
    sessions: Literal["clients together, server apart"] = "clients together, server apart"
    """Both clients run in the session of the bench, the server in its own, as a service is."""
    workload: str
    blocks: int
    seconds: float


class Comparison(Part):
    version: Literal[1] = 1
    setting: Setting
    rows: tuple[Row, ...]


def side(trials: Sequence[Trial]) -> Side:
    return Side(
        client_cpu_us_per_query=median(_cpu_us(one) for one in trials),
        whole_process_cpu_us_per_query=median(one.whole_cpu_ns / 1e3 / one.whole_queries for one in trials),
        qps=median(_qps(one) for one in trials),
        rss_mib=median(one.rss_bytes for one in trials) / 2**20,
        context_switches_per_query=median(one.context_switches / one.queries for one in trials),
    )


def row(connections: int, ours: Sequence[Trial], peer: Sequence[Trial]) -> Row:
    """From the blocks of both, in the same order."""
    pairs = list(zip(ours, peer, strict=True))
    return Row(
        connections=connections,
        ours=side(ours),
        peer=side(peer),
        cpu_ratio=judge_ratio([_cpu_us(one) / _cpu_us(other) for one, other in pairs]).quoted,
        qps_ratio=judge_ratio([_qps(one) / _qps(other) for one, other in pairs]).quoted,
        rss_ratio=median(one.rss_bytes / other.rss_bytes for one, other in pairs),
        driver=ours[-1].driver,
        blocks=tuple(Block(ours=one, peer=other) for one, other in pairs),
    )


def _cpu_us(trial: Trial) -> float:
    return trial.cpu_ns / 1e3 / trial.queries


def _qps(trial: Trial) -> float:
    return trial.queries / trial.seconds
