"""Latency distributions: HDR histograms of trials merged into one an arm, and read at the points a report shows.

Merging counts is exact; averaging percentiles of trials would not be a percentile of anything.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
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


LONGEST_NS = 345_600_000_000_000
"""Four days, as the engine's histograms: connecting, warm-up, window and a stall last a day each at most."""

DIGITS = 3
"""Significant digits kept in a merged histogram."""

STEPS_PER_DECADE = 8
"""Points of the curve for each nine (50 %, 90 %, 99 % ...)."""


def merge(records: Iterable[HistogramRecord]) -> Any:
    """One HDR histogram (unit 1 ns) of all of them."""
    return merge_data(record.data for record in records)


def merge_data(encoded: Iterable[str]) -> Any:
    """One HDR histogram of encoded histograms, as the engine sends them."""
    merged = HdrHistogram(1, LONGEST_NS, DIGITS)
    for data in encoded:
        merged.decode_and_add(data)
    return merged


def latency_ms(merged: Any, records: Iterable[HistogramRecord]) -> LatencyMs:
    """Percentiles of the merged histogram; the maximum is the exact one that the engine saw."""
    longest = max((record.max_ns for record in records), default=0)
    p50, p95, p99 = (min(ns, float(longest)) / 1e6 for ns in _values_at(merged, (50, 95, 99)))
    return LatencyMs(p50=p50, p95=p95, p99=p99, max=longest / 1e6)


def _values_at(merged: Any, percentiles: Sequence[float]) -> list[float]:
    """The result of `get_value_at_percentile` for each percentile, with the counts summed once for all: that method counts from the
    first bucket again at every call. 0 for a histogram without samples."""
    reached = np.cumsum(np.ctypeslib.as_array(merged.counts), dtype=np.int64)
    indices = np.searchsorted(reached, [merged.get_target_count_at_percentile(each) for each in percentiles])
    equivalent = (
        merged.get_highest_equivalent_value if each else merged.get_lowest_equivalent_value for each in percentiles
    )
    return [
        float(value(merged.get_value_from_index(int(index)))) if index < len(reached) else 0.0
        for index, value in zip(indices, equivalent, strict=True)
    ]


def value_at(merged: Any, share: float) -> float:
    """The value that this share of the samples does not exceed, in ns."""
    return _values_at(merged, (share * 100,))[0]


def share_over(merged: Any, limit_ns: int) -> float:
    """Share of all samples that took longer, to the histogram's resolution."""
    total = int(merged.get_total_count())
    first = bisect_right(range(merged.counts_len), limit_ns, key=merged.get_value_from_index)
    return int(np.ctypeslib.as_array(merged.counts)[first:].sum()) / total if total else 0.0


def curve(merged: Any) -> tuple[CurvePoint, ...]:
    """The distribution on a percentile axis: equal steps of -log10(1 - quantile), as far as ten samples lie beyond."""
    count = int(merged.get_total_count())
    if count == 0:
        return ()
    last = max(0.0, math.log10(count / 10))
    quantiles = [1 - 10 ** (-step / STEPS_PER_DECADE) for step in range(math.floor(last * STEPS_PER_DECADE) + 1)]
    # The first is the lowest sample: its percentile is 0, which the library reads from the lower end of its bucket.
    values = _values_at(merged, [each * 100 for each in quantiles])
    return tuple(
        CurvePoint(quantile=round(quantile, 7), ms=ns / 1e6) for quantile, ns in zip(quantiles, values, strict=True)
    )


def percentile_ms(latency: LatencyMs, points: Sequence[CurvePoint], share: float) -> float | None:
    """A percentile for a table beside the curve, which has no point at 50 and 95 %. None: beyond the curve's end."""
    if not points or share > points[-1].quantile:
        return None
    exact = {0.5: latency.p50, 0.95: latency.p95, 0.99: latency.p99}
    return exact[share] if share in exact else next(point.ms for point in points if point.quantile >= share)
