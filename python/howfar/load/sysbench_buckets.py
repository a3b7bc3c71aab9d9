"""sysbench's latency histogram: 1024 buckets from 0.001 ms to 100 s, evenly spaced on a logarithmic scale. Pure.

For `--histogram` only: a bucket is 1.8 % wide; percentiles come from the engine's own histogram.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

BUCKETS = 1024
LOW_MS, HIGH_MS = 0.001, 100_000.0
STARS = 40
_DEDUCT = math.log(LOW_MS)
_MULTIPLIER = (BUCKETS - 1) / (math.log(HIGH_MS) - _DEDUCT)


def bucket(ns: int) -> int:
    """The nearest bucket; what lies outside goes into the first or the last."""
    if ns <= 0:
        return 0
    return min(max(math.floor((math.log(ns / 1e6) - _DEDUCT) * _MULTIPLIER + 0.5), 0), BUCKETS - 1)


def value_ms(index: int) -> float:
    return math.exp(index / _MULTIPLIER + _DEDUCT)


def lines(pairs: Iterable[tuple[int, int]]) -> list[str]:
    """The histogram as sysbench prints it, without its title; from (ns, count)."""
    counts: Counter[int] = Counter()
    for ns, count in pairs:
        counts[bucket(ns)] += count
    if not counts:
        return []
    most = max(counts.values())
    return ["       value  ------------- distribution ------------- count"] + [
        f"{value_ms(index):12.3f} |{'*' * math.floor(counts[index] * STARS / most + 0.5):<{STARS}} {counts[index]}"
        for index in sorted(counts)
    ]
