"""What a round trip costs on a path, by the sizes of its request and its answer, as the laboratory measured it. Pure.

A cost is the time of a round trip without the server's, seen by a client with the rhythm of the application. Each block is kept, so
that what is computed from costs has an interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from howfar.stats.estimate import Part

SMALLEST = (16, 8)
"""Bytes of the shortest request and answer that the engine makes."""
_MOST_STEPS = 7
_FEWEST_ROUNDS, _MOST_ROUNDS = 6, 200
_SETTLE = 4
"""Round trips of each size before those that count, so that TCP's window opens."""
_EACH_NS = 100_000_000
_TRIMMED = 0.05
_MSS = 1448
_INITIAL_WINDOW = 10
_LEAST_TIMEOUT_NS = 200_000_000


class Sizes(Part):
    """Sizes at which a path is measured, growing; between them costs are interpolated."""

    to_server: tuple[int, ...]
    to_client: tuple[int, ...]

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of each size of one kind with the smallest of the other."""
        return (
            *((SMALLEST[0], size) for size in self.to_client),
            *((size, SMALLEST[1]) for size in self.to_server[1:]),
        )


def sizes_of(to_server: Sequence[int], to_client: Sequence[int]) -> Sizes:
    """Sizes from the smallest to the largest that occur, evenly spaced in their logarithms."""
    return Sizes(to_server=_ladder(SMALLEST[0], to_server), to_client=_ladder(SMALLEST[1], to_client))


def _ladder(least: int, seen: Sequence[int]) -> tuple[int, ...]:
    most = max((least, *seen))
    if most == least:
        return (least,)
    steps = min(_MOST_STEPS, 1 + math.ceil(math.log(most / least, 8)))
    return tuple(sorted({round(least * (most / least) ** (step / steps)) for step in range(steps + 1)}))


class CostBlock(Part):
    """One block of measurements of one path."""

    cost_ns: tuple[float, ...]
    """Cost of a round trip, by `Sizes.pairs`."""
    connect_ns: float
    """Time of a connection until its first request can be sent: the socket, then TLS."""
    resuming_ns: float = 0.0
    """How much longer application and server compute after each has waited for the other, at the smallest sizes; in `cost_ns` too."""


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the highest and lowest twentieth: a page's sum needs means, but without outliers from interrupts."""
    ordered = sorted(values)
    cut = int(len(ordered) * _TRIMMED)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def rounds_at(each_ns: float) -> int:
    """How often each size is measured in a block, by the duration of one round trip."""
    return max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, int(_EACH_NS // max(each_ns, 50_000))))


def settle_rounds(rtt_ns: int) -> int:
    return _SETTLE if rtt_ns > 10_000_000 else 2 * _SETTLE


class PathCosts(Part):
    """The measured costs of a path."""

    label: str
    sizes: Sizes
    blocks: tuple[CostBlock, ...]
    link_rtt_ns: int
    """RTT of the link that the path crosses; 0: none."""
    encrypted: bool = False
    waking_ns: float = 0.0
    """How much longer a round trip over the link takes where the CPUs of both ends sleep than where they are awake. How often an
    application finds them asleep is not known."""
    by_socket: bool = False
    """Whether it is a Unix socket, where no acknowledgement is waited for."""
    void: tuple[str, ...] = ()
    """Why blocks were left out, one reason each."""

    def of(self, to_server: Sequence[int], to_client: Sequence[int]) -> np.ndarray:
        """Costs in ns, with a row per block and a column per round trip."""
        pairs = len(self.sizes.to_client)
        rows = []
        for block in self.blocks:
            base = block.cost_ns[0]
            answers = _between(to_client, self.sizes.to_client, block.cost_ns[:pairs])
            requests = _between(to_server, self.sizes.to_server, (base, *block.cost_ns[pairs:]))
            rows.append(answers + requests - base)
        return np.asarray(rows)

    def slow_start_ns(self, rounds: Sequence[tuple[int, ...]], rtt_ns: int | None = None) -> np.ndarray:
        """Waits for the window, with a row per block and a column per round trip. `rounds`: see `Window.earlier_rounds`;
        `rtt_ns`: another RTT of the same link.

        The next round can begin an RTT after this one began. What is sent in that time costs nothing more: it is part of the
        answer's own cost.
        """
        found = np.zeros((len(self.blocks), len(rounds)))
        pairs = len(self.sizes.to_client)
        for number, sent in enumerate(rounds if self.link_rtt_ns else ()):
            for row, block in enumerate(self.blocks if sent else ()):
                sending = _between(sent, self.sizes.to_client, block.cost_ns[:pairs]) - block.cost_ns[0]
                found[row, number] = np.maximum((rtt_ns or self.link_rtt_ns) - sending, 0.0).sum()
        return found

    def at_rtt(self, rtt_ns: int) -> PathCosts:
        """The same path with another RTT of its link: each round trip takes as much longer or shorter."""
        longer_ns = rtt_ns - self.link_rtt_ns
        blocks = tuple(
            block.model_copy(
                update={
                    "cost_ns": tuple(max(cost + longer_ns, 0.0) for cost in block.cost_ns),
                    "connect_ns": max(block.connect_ns + (1 + self.encrypted) * longer_ns, 0.0),
                }
            )
            for block in self.blocks
        )
        return self.model_copy(update={"blocks": blocks, "link_rtt_ns": rtt_ns})

    @property
    def smallest_ns(self) -> np.ndarray:
        """The cost of a round trip of the smallest sizes, by block."""
        return np.asarray([block.cost_ns[0] for block in self.blocks])

    @property
    def resuming_ns(self) -> np.ndarray:
        return np.asarray([block.resuming_ns for block in self.blocks])

    @property
    def connect_ns(self) -> np.ndarray:
        return np.asarray([block.connect_ns for block in self.blocks])


def _between(sizes: Sequence[int], known: Sequence[int], cost_ns: Sequence[float]) -> np.ndarray:
    """Costs interpolated on sizes; they never fall with size, whatever the noise of one measurement. Larger sizes: in proportion."""
    wanted, rising = np.asarray(sizes, dtype=float), np.maximum.accumulate(cost_ns)
    beyond = np.maximum(wanted - known[-1], 0.0) / max(known[-1] - known[0], 1)
    return np.asarray(np.interp(wanted, known, rising) + beyond * (rising[-1] - rising[0]))


@dataclass
class Window:
    """The server's congestion window of one connection in slow start (RFC 6928): in how many rounds an answer is sent."""

    segments: int = _INITIAL_WINDOW

    def rest(self, idle_ns: int) -> None:
        """The kernel halves the window for each timeout in which nothing was sent, down to the initial one (RFC 2861)."""
        halvings = min(idle_ns // _LEAST_TIMEOUT_NS, 30)
        self.segments = max(self.segments >> halvings, min(self.segments, _INITIAL_WINDOW))

    def earlier_rounds(self, size: int) -> tuple[int, ...]:
        """Bytes of each round of an answer before its last. The window doubles in each round that fills it."""
        needed, rounds = -(-size // _MSS), list[int]()
        while needed > 0:
            in_round = min(self.segments, needed)
            needed -= in_round
            rounds.append(in_round * _MSS)
            if 2 * in_round > self.segments:  # the kernel's test of whether the window was the limit
                self.segments += in_round
        return tuple(rounds[:-1])
