"""Finds pages that were not marked, by the rests between round trips. Pure.

Between two pages an application rests longer than within one. Both kinds of gaps spread over decades, so their logarithms are modelled
as two normal distributions, fitted by expectation maximization. They give the probability that a gap is a rest. The confidence of a
page is the probability that the gaps before and after it are rests and no gap within it is one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from howfar.recording.recording import Page

_FEWEST = 8
"""Minimum number of gaps of each kind; fewer do not show their spread."""
_ROUNDS = 100
_LEAST_SPREAD = 0.05
"""Smallest spread, in decades: the effect of clock and scheduler on equal gaps."""
_APART = 3.0
"""Threshold of Ashman's D. Two normal distributions begin to have two peaks at 2; a single one cut in two has up to 2.7."""
_LONGEST_NAME = 100


class Moved(NamedTuple):
    """A round trip, as returned by `RecordingFile.in_order`."""

    id: int
    connection: int
    pid: int | None
    begun_ns: int
    ended_ns: int
    statement: str | None


@dataclass(frozen=True)
class Rests:
    """Two normal distributions of a gap's logarithm: pauses within a page, and rests between pages."""

    means: tuple[float, float]
    spreads: tuple[float, float]
    shares: tuple[float, float]

    def probability(self, x: np.ndarray) -> np.ndarray:
        """Probability that gaps with these logarithms are rests: 0 below the mean of pauses, 1 above the mean of rests, so that the
        tails of the wider distribution do not count."""
        pause, rest = (
            math.log(share / spread) - ((x - mean) / spread) ** 2 / 2
            for mean, spread, share in zip(self.means, self.spreads, self.shares, strict=True)
        )
        found = 1 / (1 + np.exp(np.minimum(pause - rest, 700.0)))
        return np.asarray(np.where(x <= self.means[0], 0.0, np.where(x >= self.means[1], 1.0, found)))


def rests_of(x: np.ndarray) -> Rests | None:
    """Distributions of pauses and rests, from the logarithms of gaps. None if the gaps are of one kind, or too few."""
    if len(x) < 2 * _FEWEST or np.ptp(x) == 0:
        return None
    rest = (x > _split(x)).astype(float)
    for _ in range(_ROUNDS):
        weights = np.asarray([1 - rest, rest])
        counts = np.maximum(weights.sum(axis=1), 1e-9)
        means = weights @ x / counts
        spreads = np.maximum(np.sqrt((weights * (x - means[:, None]) ** 2).sum(axis=1) / counts), _LEAST_SPREAD)
        found = Rests((means[0], means[1]), (spreads[0], spreads[1]), (counts[0] / len(x), counts[1] / len(x)))
        rest = found.probability(x)
    apart = math.sqrt(2) * (means[1] - means[0]) / math.hypot(*spreads)
    return found if apart > _APART and counts.min() >= _FEWEST else None


def _split(x: np.ndarray) -> float:
    """The threshold that maximizes the variance between the two groups (Otsu)."""
    ordered = np.sort(x)
    sums = np.cumsum(ordered)[:-1]
    below = np.arange(1, len(x))
    between = (sums * len(x) - ordered.sum() * below) ** 2 / (below * (len(x) - below))
    at = int(between.argmax())
    return float(ordered[at] + ordered[at + 1]) / 2


def logarithms(gaps_ns: Iterable[int]) -> np.ndarray:
    """Logarithms of gaps; a clock does not resolve less than a microsecond."""
    return np.asarray(np.log10(np.maximum(np.fromiter(gaps_ns, dtype=float), 1_000.0)))


def pages_by_gaps(
    rows: Iterable[tuple[int, int, int | None, int, int, str | None]],
) -> tuple[list[Page], dict[int, int]]:
    """The pages, and the page of each round trip by number; both empty if rests cannot be distinguished from pauses.

    Pages are searched for in each process, or in each connection whose process is unknown."""
    streams: dict[tuple[int | None, int], list[Moved]] = defaultdict(list)
    for row in map(Moved._make, rows):
        streams[row.pid, 0 if row.pid is not None else row.connection].append(row)
    gaps = {number: gap_ns for stream in streams.values() for number, gap_ns in _gaps(stream)}
    x = logarithms(gaps.values())
    rests = rests_of(x)
    if rests is None:
        return [], {}
    rest_by_id = dict(zip(gaps, rests.probability(x).tolist(), strict=True))
    pages: list[Page] = []
    placed: dict[int, int] = {}
    kinds: dict[frozenset[str | None], str] = {}
    for (pid, _), stream in streams.items():
        # A page begins where the stream begins, and one ends where it ends.
        sure = [1.0, *(rest_by_id.get(one.id, 0.0) for one in stream[1:]), 1.0]
        borders = [at for at, rest in enumerate(sure) if rest > 0.5]
        for first, after in pairwise(borders):
            held = stream[first:after]
            confidence = sure[first] * math.prod(1 - one for one in sure[first + 1 : after]) * sure[after]
            number, ended_ns = len(pages) + 1, max(one.ended_ns for one in held)
            pages.append(Page(number, _name(held, kinds), "gap", round(confidence, 3), pid, held[0].begun_ns, ended_ns))
            placed |= {one.id: number for one in held}
    return pages, placed


def _gaps(stream: Sequence[Moved]) -> Iterator[tuple[int, int]]:
    """The gap before each round trip except the first, unless another round trip was in progress."""
    ended_ns = stream[0].ended_ns
    for one in stream[1:]:
        if one.begun_ns > ended_ns:
            yield one.id, one.begun_ns - ended_ns
        ended_ns = max(ended_ns, one.ended_ns)


def _name(held: Sequence[Moved], kinds: dict[frozenset[str | None], str]) -> str:
    """Name of a page: its first statement. Pages with the same set of statements share one; other pages of this name get a number."""
    kind = frozenset(one.statement for one in held)
    if kind not in kinds:
        name = next((one.statement for one in held if one.statement), "page")[:_LONGEST_NAME]
        taken, number = set(kinds.values()), 2
        while (kinds.setdefault(kind, name)) in taken:
            kinds[kind] = f"{name} ({number})"
            number += 1
    return kinds[kind]
