"""The cost of a round trip on a path, by the sizes of its request and its answer, as measured in the laboratory. No I/O.

A cost is the time of a round trip minus the server's time. The client that measures the cost pauses between round trips as the
application did. The costs of each block are kept, so that results computed from them have intervals.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from howfar.stats.estimate import Part

SMALLEST = (16, 8)
"""Bytes of the shortest request and the shortest answer that the engine sends."""
_MAX_SIZE_STEPS = 7
_MIN_ROUND_TRIPS, _MAX_ROUND_TRIPS = 6, 200
_WARM_UP_ROUND_TRIPS = 4
"""Minimum number of round trips of each size that are not measured: they open TCP's window."""
_TIME_PER_SIZE_NS = 100_000_000
_TRIMMED_SHARE = 0.05
_MSS = 1448
_INITIAL_WINDOW = 10
_MIN_IDLE_TIMEOUT_NS = 200_000_000


class Sizes(Part):
    """Sizes at which a path is measured, in ascending order. Costs are interpolated between them."""

    to_server: tuple[int, ...]
    to_client: tuple[int, ...]

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs (to the server, to the client): each size in one direction with the smallest in the other."""
        return (
            *((SMALLEST[0], size) for size in self.to_client),
            *((size, SMALLEST[1]) for size in self.to_server[1:]),
        )


def choose_sizes(to_server: Sequence[int], to_client: Sequence[int]) -> Sizes:
    """Sizes at which to measure: from the engine's smallest to the largest given one, evenly spaced on a logarithmic scale."""
    return Sizes(to_server=_size_steps(SMALLEST[0], to_server), to_client=_size_steps(SMALLEST[1], to_client))


def _size_steps(smallest: int, occurring: Sequence[int]) -> tuple[int, ...]:
    largest = max((smallest, *occurring))
    if largest == smallest:
        return (smallest,)
    steps = min(_MAX_SIZE_STEPS, 1 + math.ceil(math.log(largest / smallest, 8)))
    return tuple(sorted({round(smallest * (largest / smallest) ** (step / steps)) for step in range(steps + 1)}))


class CostBlock(Part):
    """One block of measurements of one path."""

    cost_ns: tuple[float, ...]
    """Cost of a round trip, by `Sizes.pairs`."""
    connect_ns: float
    """Time from opening a connection until its first request can be sent: the connect, then the TLS handshake."""
    resuming_ns: float = 0.0
    """Additional computing time of application and server after each has waited for the other, at the smallest sizes. `cost_ns`
    includes it."""


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the highest and lowest 5 %. Costs are summed over a page, which needs means, but interrupts cause outliers."""
    ordered = sorted(values)
    cut = int(len(ordered) * _TRIMMED_SHARE)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def measured_round_trips(round_trip_ns: float) -> int:
    """Number of round trips to measure for each size in a block, given the duration of one."""
    return max(_MIN_ROUND_TRIPS, min(_MAX_ROUND_TRIPS, int(_TIME_PER_SIZE_NS // max(round_trip_ns, 50_000))))


def warm_up_round_trips(rtt_ns: int) -> int:
    """Number of round trips of each size that warm up a connection; fewer if they take long."""
    return _WARM_UP_ROUND_TRIPS if rtt_ns > 10_000_000 else 2 * _WARM_UP_ROUND_TRIPS


class PathCosts(Part):
    """The measured costs of a path."""

    label: str
    sizes: Sizes
    blocks: tuple[CostBlock, ...]
    link_rtt_ns: int
    """RTT of the link that the path crosses; 0 if it crosses none."""
    encrypted: bool = False
    waking_ns: float = 0.0
    """Additional time of a round trip over the link if the CPUs at both ends are asleep. It is unknown how often an application finds
    them asleep."""
    by_socket: bool = False
    """Whether the path is a Unix socket, on which there are no acknowledgements to wait for."""
    void: tuple[str, ...] = ()
    """The reason for each block that was left out."""

    def costs_ns(self, to_server: Sequence[int], to_client: Sequence[int]) -> np.ndarray:
        """Costs in ns, with a row per block and a column per round trip."""
        answer_count = len(self.sizes.to_client)
        rows = []
        for block in self.blocks:
            smallest_ns = block.cost_ns[0]
            answers_ns = _interpolate(to_client, self.sizes.to_client, block.cost_ns[:answer_count])
            requests_ns = _interpolate(to_server, self.sizes.to_server, (smallest_ns, *block.cost_ns[answer_count:]))
            rows.append(answers_ns + requests_ns - smallest_ns)
        return np.asarray(rows)

    def slow_start_ns(self, rounds: Sequence[tuple[int, ...]], rtt_ns: int | None = None) -> np.ndarray:
        """Waits for the congestion window in ns, with a row per block and a column per round trip. `rounds`: see
        `SlowStartWindow.earlier_rounds`; `rtt_ns`: another RTT of the same link.

        A round can begin one RTT after the beginning of the previous one. The time for sending a round does not count as waiting,
        because it is already part of the answer's cost.
        """
        waits_ns = np.zeros((len(self.blocks), len(rounds)))
        answer_count = len(self.sizes.to_client)
        for column, round_bytes in enumerate(rounds if self.link_rtt_ns else ()):
            for row, block in enumerate(self.blocks if round_bytes else ()):
                sending_ns = (
                    _interpolate(round_bytes, self.sizes.to_client, block.cost_ns[:answer_count]) - block.cost_ns[0]
                )
                waits_ns[row, column] = np.maximum((rtt_ns or self.link_rtt_ns) - sending_ns, 0.0).sum()
        return waits_ns

    def at_rtt(self, rtt_ns: int) -> PathCosts:
        """The same path with another RTT of its link: the cost of each round trip changes by the difference."""
        added_ns = rtt_ns - self.link_rtt_ns
        blocks = tuple(
            block.model_copy(
                update={
                    "cost_ns": tuple(max(cost + added_ns, 0.0) for cost in block.cost_ns),
                    "connect_ns": max(block.connect_ns + (1 + self.encrypted) * added_ns, 0.0),
                }
            )
            for block in self.blocks
        )
        return self.model_copy(update={"blocks": blocks, "link_rtt_ns": rtt_ns})

    @property
    def smallest_ns(self) -> np.ndarray:
        """The cost of a round trip with the smallest request and answer, by block."""
        return np.asarray([block.cost_ns[0] for block in self.blocks])

    @property
    def resuming_ns(self) -> np.ndarray:
        """See `CostBlock.resuming_ns`; by block."""
        return np.asarray([block.resuming_ns for block in self.blocks])

    @property
    def connect_ns(self) -> np.ndarray:
        """See `CostBlock.connect_ns`; by block."""
        return np.asarray([block.connect_ns for block in self.blocks])


def _interpolate(sizes: Sequence[int], measured_sizes: Sequence[int], cost_ns: Sequence[float]) -> np.ndarray:
    """Interpolate costs by size. Costs are first made non-decreasing, against noise; beyond the largest measured size, they are
    extrapolated linearly."""
    wanted_sizes, rising_ns = np.asarray(sizes, dtype=float), np.maximum.accumulate(cost_ns)
    excess = np.maximum(wanted_sizes - measured_sizes[-1], 0.0) / max(measured_sizes[-1] - measured_sizes[0], 1)
    return np.asarray(np.interp(wanted_sizes, measured_sizes, rising_ns) + excess * (rising_ns[-1] - rising_ns[0]))


@dataclass
class SlowStartWindow:
    """The server's congestion window on one connection in slow start (RFC 6928), which determines how many rounds an answer takes."""

    segments: int = _INITIAL_WINDOW

    def apply_idle_time(self, idle_ns: int) -> None:
        """Shrink the window after an idle time: the kernel halves it for each idle timeout, down to the initial window (RFC 2861)."""
        halvings = min(idle_ns // _MIN_IDLE_TIMEOUT_NS, 30)
        self.segments = max(self.segments >> halvings, min(self.segments, _INITIAL_WINDOW))

    def earlier_rounds(self, size: int) -> tuple[int, ...]:
        """Bytes of each round of an answer except the last. The window doubles in each round that fills it."""
        segments_left, rounds = -(-size // _MSS), list[int]()
        while segments_left > 0:
            segments_sent = min(self.segments, segments_left)
            segments_left -= segments_sent
            rounds.append(segments_sent * _MSS)
            if 2 * segments_sent > self.segments:  # the kernel's test of whether the window was the limit
                self.segments += segments_sent
        return tuple(rounds[:-1])
