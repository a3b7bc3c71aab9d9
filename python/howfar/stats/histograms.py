"""Latency distributions: HDR histograms of trials merged into one an arm, and read at the points a report shows.

Merging counts is exact; averaging percentiles of trials would not be a percentile of anything.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from hdrh.histogram import HdrHistogram

from howfar.stats.estimate import Part
from howfar.store.records import HistogramRecord


class CurvePoint(Part):
    """One point of a latency distribution: this share of transactions took at most this long."""

    quantile: float
    ms: float


class LatencyMs(Part):
    """Per transaction, closed loop (service time), from the merged histograms of the arm's trials."""

    p50: float
    p95: float
    p99: float
    max: float


LONGEST_NS = 3_600_000_000_000
"""One hour: more than any stall timeout of a trial."""

DIGITS = 3
"""Significant digits kept in a merged histogram."""

STEPS_PER_DECADE = 8
"""Points of the curve for each nine (50 %, 90 %, 99 % ...)."""


def merge(records: Iterable[HistogramRecord]) -> Any:
    """One HDR histogram (unit 1 ns) of all of them."""
    merged = HdrHistogram(1, LONGEST_NS, DIGITS)
    for record in records:
        merged.decode_and_add(record.data)
    return merged


def latency_ms(merged: Any, records: Iterable[HistogramRecord]) -> LatencyMs:
    """Percentiles of the merged histogram; the maximum is the exact one that the engine saw."""
    longest = max((record.max_ns for record in records), default=0)

    def at(percentile: float) -> float:
        return min(float(merged.get_value_at_percentile(percentile)), float(longest)) / 1e6

    return LatencyMs(p50=at(50), p95=at(95), p99=at(99), max=longest / 1e6)


def share_over(merged: Any, limit_ns: int) -> float:
    """Of all samples, those that took longer, to the histogram's resolution."""
    total = int(merged.get_total_count())
    first = bisect_right(range(merged.counts_len), limit_ns, key=merged.get_value_from_index)
    return sum(merged.counts[first:]) / total if total else 0.0


def curve(merged: Any) -> tuple[CurvePoint, ...]:
    """The distribution on a percentile axis: equal steps of -log10(1 - quantile), as far as ten samples lie beyond."""
    count = int(merged.get_total_count())
    if count == 0:
        return ()
    last = max(0.0, math.log10(count / 10))
    points = []
    for step in range(math.floor(last * STEPS_PER_DECADE) + 1):
        quantile = 1 - 10 ** (-step / STEPS_PER_DECADE)
        ns = float(merged.get_value_at_percentile(quantile * 100))
        points.append(CurvePoint(quantile=round(quantile, 7), ms=ns / 1e6))
    return tuple(points)
