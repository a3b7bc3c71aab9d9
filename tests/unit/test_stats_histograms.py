"""Latency distributions of trials, merged."""

from __future__ import annotations

from hdrh.histogram import HdrHistogram

from howfar.engine.messages import LONGEST_NS
from howfar.stats.histograms import latency_ms, merge
from howfar.store.records import HistogramRecord


def _record(*latencies_ns: int) -> HistogramRecord:
    made = HdrHistogram(1, 4 * LONGEST_NS, 3)
    for each in latencies_ns:
        made.record_value(each)
    p50, p95, p99 = (made.get_value_at_percentile(quantile) for quantile in (50, 95, 99))
    return HistogramRecord(
        kind="transaction",
        count=len(latencies_ns),
        min_ns=min(latencies_ns),
        mean_ns=sum(latencies_ns) / len(latencies_ns),
        p50_ns=p50,
        p95_ns=p95,
        p99_ns=p99,
        max_ns=max(latencies_ns),
        data=made.encode().decode(),
    )


def test_a_latency_of_hours_stays_what_it_is() -> None:
    records = (_record(1_000_000, 2_000_000), _record(2 * LONGEST_NS))
    merged = merge(records)
    assert merged.get_total_count() == 3
    assert abs(latency_ms(merged, records).p99 * 1e6 / (2 * LONGEST_NS) - 1) < 0.001
