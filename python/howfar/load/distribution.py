"""Percentiles of an engine's histogram, and their bounds where requests were never answered. Pure.

A request without an answer is known to have taken at least its age. The engine counts it with that age, so a percentile of
`transaction` is a lower bound. The upper bound puts every unanswered request after all answered ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hdrh.histogram import HdrHistogram

from howfar.engine.messages import Histogram

APART = 1.01
"""Bounds further apart than this are no one number."""


@dataclass(frozen=True)
class Distribution:
    """Counts by value, values ascending; `max_ns` is exact."""

    values: tuple[int, ...]
    cumulative: tuple[int, ...]
    max_ns: int

    @property
    def count(self) -> int:
        return self.cumulative[-1] if self.cumulative else 0

    def at(self, share: float) -> int | None:
        """The value that `share` (0..1) of all lie at or below; None when empty."""
        if not self.count:
            return None
        return self.of_rank(max(math.ceil(share * self.count - 1e-9), 1))

    def of_rank(self, rank: int) -> int:
        """The value of the rank-th smallest, from 1."""
        low, high = 0, len(self.cumulative) - 1
        while low < high:
            middle = (low + high) // 2
            if self.cumulative[middle] >= rank:
                high = middle
            else:
                low = middle + 1
        return min(self.values[low], self.max_ns)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(value, count) of each bucket in use."""
        before = 0
        found = []
        for value, up_to in zip(self.values, self.cumulative, strict=True):
            found.append((value, up_to - before))
            before = up_to
        return tuple(found)


def distribution(pairs: Sequence[tuple[int, int]], max_ns: int) -> Distribution:
    """From (value, count), values ascending."""
    used = [(value, count) for value, count in pairs if count > 0]
    return Distribution(tuple(value for value, _ in used), tuple(accumulate(count for _, count in used)), max_ns)


def decode(histogram: Histogram) -> Distribution:
    """The engine's histogram. Each bucket stands for its highest value."""
    if not histogram.count:
        return Distribution((), (), histogram.max_ns)
    decoded = HdrHistogram.decode(histogram.data)
    pairs = [
        (int(decoded.get_highest_equivalent_value(decoded.get_value_from_index(index))), int(count))
        for index, count in enumerate(decoded.counts)
        if count
    ]
    return distribution(pairs, histogram.max_ns)


def without(whole: Distribution, part: Distribution) -> Distribution:
    """`whole` less `part`, bucket by bucket: the answered alone."""
    taken = dict(part.pairs())
    return distribution(
        [(value, max(count - taken.get(value, 0), 0)) for value, count in whole.pairs()],
        whole.max_ns,
    )


@dataclass(frozen=True)
class Bound:
    """A percentile: at least `low_ns`, at most `high_ns`; None: nothing is known above."""

    low_ns: int
    high_ns: int | None

    @property
    def exact(self) -> bool:
        return self.high_ns is not None and self.high_ns <= self.low_ns * APART


def bound(all_requests: Distribution, answered: Distribution, share: float) -> Bound | None:
    """The percentile `share` (0..1) of all requests; None when there was none."""
    low = all_requests.at(share)
    if low is None:
        return None
    rank = max(math.ceil(share * all_requests.count - 1e-9), 1)
    high = answered.of_rank(rank) if rank <= answered.count else None
    return Bound(low, None if high is None else max(high, low))
