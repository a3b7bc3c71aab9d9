"""Where the second machine begins to pay, as application CPU a page grows: measured, and by the model.

Measured: the logarithm of two over one at each application CPU, paired by block, joined by straight lines over the logarithm of
the CPU. Its first way up through nothing is the crossing. The interval is Fieller's: every CPU at which the blocks' ratio, on those
lines, is not told from 1 at 95 %. It needs no crossing in each block, and is open where nothing measured closes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from howfar.experiments.page.model import bisected
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, judge_ratio, mean_interval, resolve

_ALWAYS: dict[Resolution, Literal["one", "two"]] = {Resolution.SLOWER: "one", Resolution.FASTER: "two"}
_GRID = 16
"""Points between two levels, at which the interval is looked for before it is narrowed."""
POINTS = 33
"""Of the model's curve."""
BEYOND = 8.0
"""How far beyond what was measured the model is asked, in times."""


@dataclass(frozen=True)
class Level:
    """What was measured with so much application CPU."""

    cpu_ms: float
    """In all, a page."""
    ratios: Mapping[int, float]
    """Pages a second of two machines over one, by block."""


@dataclass(frozen=True)
class Found:
    """The crossing in milliseconds of application CPU. None: there is none within what was measured."""

    crossing: Estimate | None
    always: Literal["one", "two"] | None


class Curve:
    """Two over one, as application CPU grows; levels ascend."""

    def __init__(self, levels: Sequence[Level], floor: float | None) -> None:
        """`floor`: what this session can tell, of throughput."""
        self._floor = floor
        self._levels = sorted(
            (each for each in levels if each.ratios and each.cpu_ms > 0), key=lambda level: level.cpu_ms
        )
        self._at = [math.log(level.cpu_ms) for level in self._levels]

    def found(self) -> Found:
        if not self._levels:
            return Found(None, None)
        means = [self._judged(place).value for place in self._at]
        bracket = next((i for i in range(1, len(means)) if means[i - 1] < 0 <= means[i]), None)
        if bracket is None:
            return Found(None, self._always())
        place = bisected(lambda at: self._judged(at).value, self._at[bracket - 1], self._at[bracket])
        low, high = (self._limit(place, ends) for ends in (self._at[0], self._at[-1]))
        if low is None and high is None and self._has_intervals:
            return Found(None, None)  # no level is told from 1: the line's way through it says nothing
        return Found(
            Estimate(
                value=math.exp(place),
                low=None if low is None else math.exp(low),
                high=None if high is None else math.exp(high),
            ),
            None,
        )

    @property
    def _has_intervals(self) -> bool:
        """More than one block."""
        return any(self._judged(place).low is not None for place in self._at)

    def _always(self) -> Literal["one", "two"] | None:
        """Only where each level is told from 1, and from the noise of this session."""
        found = {resolve(judge_ratio(list(level.ratios.values())).quoted, self._floor) for level in self._levels}
        return _ALWAYS.get(next(iter(found))) if len(found) == 1 else None

    def _judged(self, place: float) -> Estimate:
        """The log ratio there, over the blocks that have both ends of its line."""
        after = next((i for i, at in enumerate(self._at) if at >= place), len(self._at) - 1)
        before = max(after - 1, 0)
        width = self._at[after] - self._at[before]
        share = (place - self._at[before]) / width if width > 0 else 1.0
        low, high = self._levels[before].ratios, self._levels[after].ratios
        if share <= 0 or share >= 1:
            only = low if share <= 0 else high
            return mean_interval([math.log(ratio) for ratio in only.values()])
        both = [block for block in high if block in low]
        if not both:
            ends = [mean_interval([math.log(ratio) for ratio in each.values()]).value for each in (low, high)]
            return Estimate(value=(1 - share) * ends[0] + share * ends[1], low=None, high=None)
        return mean_interval([(1 - share) * math.log(low[block]) + share * math.log(high[block]) for block in both])

    def _limit(self, place: float, end: float) -> float | None:
        """The farthest towards `end` at which it is still not told from 1. None: all the way."""

        def told(at: float) -> bool:
            judged = self._judged(at)
            return judged.low is not None and judged.high is not None and not judged.low <= 0 <= judged.high

        steps = _GRID * max(len(self._at) - 1, 1)
        inside = place
        for step in range(1, steps + 1):
            at = place + (end - place) * step / steps
            if told(at):
                return bisected(lambda x: 1.0 if told(x) else -1.0, inside, at)
            inside = at
        return None


def model_crossing(ratio: Callable[[float], float], least_ms: float, most_ms: float) -> float | None:
    """The first application CPU at which the model's two over one is 1 and rises. None: not in this range."""
    grid = _grid(least_ms, most_ms, 4 * POINTS)
    for low, high in pairwise(grid):
        if ratio(low) < 1 <= ratio(high):
            return bisected(lambda cpu_ms: ratio(cpu_ms) - 1, low, high)
    return None


def model_always(ratio: Callable[[float], float], least_ms: float, most_ms: float) -> Literal["one", "two"] | None:
    """Which one the model has ahead all along. None: it is now the one, now the other."""
    found = [ratio(cpu_ms) for cpu_ms in _grid(least_ms, most_ms, 4 * POINTS)]
    return "two" if min(found) >= 1 else "one" if max(found) < 1 else None


def pays_from(ratio: Callable[[float], float], least_ms: float, most_ms: float) -> float | None:
    """The least application CPU at which two are ahead. None: at none in this range."""
    return least_ms if ratio(least_ms) >= 1 else model_crossing(ratio, least_ms, most_ms)


def model_curve(
    ratio: Callable[[float], float], least_ms: float, most_ms: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At such application CPU, such a ratio."""
    grid = _grid(least_ms, most_ms, POINTS)
    return tuple(grid), tuple(ratio(cpu_ms) for cpu_ms in grid)


def _grid(low: float, high: float, points: int) -> list[float]:
    """Evenly on the logarithm; the ends exactly."""
    if high <= low:
        return [low]
    inner = [low * (high / low) ** (step / (points - 1)) for step in range(1, points - 1)]
    return [low, *inner, high]
