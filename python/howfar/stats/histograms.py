"""Latency distributions: HDR histograms of trials are merged into one per arm, and read at the points that a report shows.

Merging counts is exact; a mean of the trials' percentiles would not be a percentile.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np

from howfar.contract.receipt_messages import Histogram
from howfar.stats.estimate import Part
from howfar.stats.hdr import Counts, bucket_max_ns, bucket_min_ns, decode, empty_counts


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


STEPS_PER_DECADE = 8
"""Points of the curve for each factor of ten in 1 - quantile, such as from 90 % to 99 %."""


def merge(records: Iterable[Histogram]) -> Counts:
    """The samples of all records together."""
    return merge_data(record.data for record in records)


def merge_data(encoded: Iterable[str]) -> Counts:
    """The samples of encoded histograms, as the engine sends them. Raises ValueError."""
    return reduce(Counts.add, map(decode, encoded), empty_counts())


def latency_ms(merged: Counts, records: Iterable[Histogram]) -> LatencyMs:
    """Percentiles of the merged histogram. The maximum is exact, because the engine reports it separately."""
    max_ns = max((record.max_ns for record in records), default=0)
    p50, p95, p99 = (min(ns, float(max_ns)) / 1e6 for ns in _values_at(merged, (50, 95, 99)))
    return LatencyMs(p50=p50, p95=p95, p99=p99, max=max_ns / 1e6)


def _values_at(merged: Counts, percentiles: Sequence[float]) -> list[float]:
    """The values at percentiles, as HdrHistogram defines them. 0 for a histogram without samples."""
    cumulative = np.cumsum(merged.by_bucket)
    total = merged.total
    ranks = [max(int(min(percentile, 100.0) * total / 100 + 0.5), 1) for percentile in percentiles]
    buckets = np.searchsorted(cumulative, ranks)
    return [
        float((bucket_max_ns if percentile else bucket_min_ns)(int(bucket))) if bucket < len(cumulative) else 0.0
        for bucket, percentile in zip(buckets, percentiles, strict=True)
    ]


def value_at(merged: Counts, share: float) -> float:
    """The value that this share of the samples does not exceed, in ns."""
    return _values_at(merged, (share * 100,))[0]


def share_above(merged: Counts, limit_ns: int) -> float:
    """Share of the samples above `limit_ns`, within the histogram's resolution."""
    total = merged.total
    first_bucket_above = bisect_right(range(len(merged.by_bucket)), limit_ns, key=bucket_min_ns)
    return int(merged.by_bucket[first_bucket_above:].sum()) / total if total else 0.0


def curve(merged: Counts) -> tuple[CurvePoint, ...]:
    """The distribution at equal steps of -log10(1 - quantile), up to the quantile with ten samples above it."""
    count = merged.total
    if count == 0:
        return ()
    nines = max(0.0, math.log10(count / 10))
    quantiles = [1 - 10 ** (-step / STEPS_PER_DECADE) for step in range(math.floor(nines * STEPS_PER_DECADE) + 1)]
    # The first point is the minimum, percentile 0, which `_values_at` takes from the lower end of its bucket.
    values = _values_at(merged, [quantile * 100 for quantile in quantiles])
    return tuple(
        CurvePoint(quantile=round(quantile, 7), ms=ns / 1e6) for quantile, ns in zip(quantiles, values, strict=True)
    )


def percentile_ms(latency: LatencyMs, points: Sequence[CurvePoint], share: float) -> float | None:
    """A percentile from the curve, or the exact figure if the curve has no such point (95 %). None beyond the curve's end."""
    if not points or share > points[-1].quantile:
        return None
    exact = {0.5: latency.p50, 0.95: latency.p95, 0.99: latency.p99}
    return exact[share] if share in exact else next(point.ms for point in points if point.quantile >= share)
