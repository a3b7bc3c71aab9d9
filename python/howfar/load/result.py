"""A finished load: percentiles with their bounds, verdict, and machine-readable output: JSON, Prometheus, HDR log. No I/O.

The latency of an unanswered request is at least its age. The engine counts the request with that age, so percentiles of
`transaction` are lower bounds. For the upper bound, every unanswered request is assumed to be slower than all answered ones.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from howfar.contract.messages import (
    CpuUse,
    Finished,
    Histogram,
    Interval,
    LoadJob,
    Measuring,
    Ready,
    Receipt,
    TablesJob,
)
from howfar.contract.receipt import ProgramUse
from howfar.engine.receipt_check import encryption_note
from howfar.load.verdict import LoadVerdict, Stamp, judge
from howfar.stats import hdr

if TYPE_CHECKING:
    from howfar.analysis.answer import Answer

MAX_BOUND_RATIO = 1.01
"""A lower and an upper bound are shown as one number only if their ratio is at most this."""


@dataclass(frozen=True)
class ValueCounts:
    """Counts by value, in ascending order: `cumulative` has the number of values up to each one; `max_ns` is exact."""

    values: tuple[int, ...]
    cumulative: tuple[int, ...]
    max_ns: int

    @property
    def count(self) -> int:
        return self.cumulative[-1] if self.cumulative else 0

    def percentile(self, share: float) -> int | None:
        """The smallest value that at least `share` (0..1) of all values do not exceed; None if empty."""
        if not self.count:
            return None
        return self.value_at_rank(max(math.ceil(share * self.count - 1e-9), 1))

    def value_at_rank(self, rank: int) -> int:
        """The rank-th smallest value; ranks start at 1."""
        return min(self.values[bisect_left(self.cumulative, rank)], self.max_ns)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(value, count) of each bucket in use."""
        counts = (cumulative - previous for previous, cumulative in pairwise((0, *self.cumulative)))
        return tuple(zip(self.values, counts, strict=True))


def make_value_counts(pairs: Sequence[tuple[int, int]], max_ns: int) -> ValueCounts:
    """Value counts from pairs of value and count, in ascending order."""
    nonempty = [(value, count) for value, count in pairs if count > 0]
    return ValueCounts(tuple(value for value, _ in nonempty), tuple(accumulate(count for _, count in nonempty)), max_ns)


def decode(histogram: Histogram) -> ValueCounts:
    """The engine's histogram, decoded. Each bucket counts as its highest value."""
    if not histogram.count:
        return ValueCounts((), (), histogram.max_ns)
    by_bucket = hdr.decode(histogram.data).by_bucket
    pairs = [(hdr.bucket_max_ns(bucket), int(by_bucket[bucket])) for bucket in np.flatnonzero(by_bucket).tolist()]
    return make_value_counts(pairs, histogram.max_ns)


def subtract(total: ValueCounts, part: ValueCounts) -> ValueCounts:
    """The counts of `total` less those of `part`, bucket by bucket."""
    part_counts = dict(part.pairs())
    return make_value_counts(
        [(value, max(count - part_counts.get(value, 0), 0)) for value, count in total.pairs()], total.max_ns
    )


@dataclass(frozen=True)
class PercentileBounds:
    """A percentile: at least `low_ns`, at most `high_ns`, which is None if the upper bound is unknown."""

    low_ns: int
    high_ns: int | None

    @property
    def exact(self) -> bool:
        return self.high_ns is not None and self.high_ns <= self.low_ns * MAX_BOUND_RATIO


def percentile_bounds(all_requests: ValueCounts, answered: ValueCounts, share: float) -> PercentileBounds | None:
    """The percentile `share` (0..1) of all requests; None without requests."""
    low = all_requests.percentile(share)
    if low is None:
        return None
    rank = max(math.ceil(share * all_requests.count - 1e-9), 1)
    high = answered.value_at_rank(rank) if rank <= answered.count else None
    return PercentileBounds(low, None if high is None else max(high, low))


def format_latency(ns: float) -> str:
    """A time with three digits: `45.2 µs`, `1.23 ms`, `2.00 s`."""
    for factor, unit, limit_ns in ((1.0, "ns", 1e3), (1e3, "µs", 1e6), (1e6, "ms", 1e9), (1e9, "s", float("inf"))):
        value = ns / factor
        if ns < limit_ns * 0.9995:
            digits = 0 if unit == "ns" else 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("the last unit has no limit")


SHARES: tuple[tuple[str, float], ...] = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999))


@dataclass(frozen=True)
class LatencyHistogram:
    """A histogram of latencies; `answered` has only the requests that were answered."""

    kind: str
    count: int
    min_ns: int
    mean_ns: float
    max_ns: int
    all_requests: ValueCounts
    answered: ValueCounts

    def percentile(self, share: float) -> PercentileBounds | None:
        if share >= 1:
            return PercentileBounds(self.max_ns, self.max_ns if self.complete else None) if self.count else None
        return percentile_bounds(self.all_requests, self.answered, share)

    @property
    def complete(self) -> bool:
        """Whether every request was answered."""
        return self.answered.count == self.all_requests.count


@dataclass(frozen=True)
class Result:
    """A finished load: the request, the session obtained, and the figures."""

    job: LoadJob
    ready: Ready
    measuring: Measuring
    intervals: tuple[Interval, ...]
    finished: Finished
    mismatches: tuple[str, ...]
    """Differences between requested and obtained session; any makes the result void."""
    verdict: LoadVerdict
    transaction: LatencyHistogram
    service: LatencyHistogram | None
    """Service time, in an open loop only; in a closed loop it equals `transaction`."""
    lateness: LatencyHistogram | None
    """How much later than due a request was sent although a connection was free; in an open loop only."""
    statements: tuple[LatencyHistogram, ...]
    stages: tuple[LatencyHistogram, ...]
    connect: LatencyHistogram | None
    in_flight: LatencyHistogram | None
    """Ages of the transactions in flight when the window ended; in a closed loop no other histogram has them."""
    programs: tuple[ProgramUse, ...] | None
    """The other programs that used the most CPU time during the load, warm-up included. None: they cannot be seen."""

    @property
    def receipt(self) -> Receipt:
        return self.ready.receipt

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the receipt leaves open, although it matches the request."""
        note = encryption_note(self.job, self.receipt)
        return () if note is None else (note,)

    @property
    def seconds(self) -> float:
        return self.finished.elapsed_ns / 1e9

    @property
    def open_loop(self) -> bool:
        return self.job.arrivals is not None

    @property
    def service_latency(self) -> LatencyHistogram:
        """Latency of answered transactions, from the first byte sent."""
        return self.transaction if self.service is None else self.service

    @property
    def reported_latencies(self) -> tuple[LatencyHistogram, ...]:
        """The latencies in the machine-readable outputs, in order."""
        latencies = (self.transaction, self.service, self.lateness, *self.statements, *self.stages, self.connect)
        return tuple(latency for latency in latencies if latency is not None)

    @property
    def errors(self) -> int:
        return sum(count for code, count in self.finished.errors.items() if code != "disconnect")

    @property
    def client(self) -> CpuUse | None:
        return next((use for use in self.finished.cpu if use.role == "client"), None)

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds > 0 else 0.0


def make_result(
    job: LoadJob,
    ready: Ready,
    measuring: Measuring,
    intervals: tuple[Interval, ...],
    finished: Finished,
    mismatches: tuple[str, ...] = (),
    programs: tuple[ProgramUse, ...] | None = None,
) -> Result:
    """Decode and judge a finished load."""
    by_kind = {histogram.kind: _decode_latency(histogram) for histogram in finished.histograms}
    transaction = by_kind.pop("transaction", None) or _empty_latency("transaction")
    if "unanswered" in by_kind:
        unanswered = by_kind.pop("unanswered").all_requests
        transaction = replace(transaction, answered=subtract(transaction.all_requests, unanswered))
    optional = {kind: by_kind.pop(kind, None) for kind in ("service", "lateness", "connect", "in_flight")}
    service, in_flight, arrivals = optional["service"], optional["in_flight"], job.arrivals
    return Result(
        job=job,
        ready=ready,
        measuring=measuring,
        intervals=intervals,
        finished=finished,
        mismatches=mismatches,
        verdict=judge(
            finished,
            intervals,
            mismatches,
            connections=job.connections,
            lateness_p99_ns=_percentile_ns(optional["lateness"], 0.99),
            service_p50_ns=_percentile_ns(service, 0.5),
            burst=arrivals.burst if arrivals is not None and arrivals.shape == "bursts" else 1,
            answered_p99_ns=_percentile_ns(transaction if arrivals is None else service, 0.99),
            in_flight_max_ns=in_flight.max_ns if in_flight is not None and in_flight.count else None,
            workload=job.workload,
            programs=programs,
        ),
        programs=programs,
        transaction=transaction,
        statements=tuple(latency for kind, latency in by_kind.items() if not kind.startswith("stage.")),
        stages=tuple(latency for kind, latency in by_kind.items() if kind.startswith("stage.")),
        **optional,
    )


def _percentile_ns(latency: LatencyHistogram | None, share: float) -> int | None:
    bounds = latency.percentile(share) if latency is not None else None
    return None if bounds is None else bounds.low_ns


def _decode_latency(histogram: Histogram) -> LatencyHistogram:
    values = decode(histogram)
    return LatencyHistogram(
        histogram.kind, histogram.count, histogram.min_ns, histogram.mean_ns, histogram.max_ns, values, answered=values
    )


def _empty_latency(kind: str) -> LatencyHistogram:
    no_values = ValueCounts((), (), 0)
    return LatencyHistogram(kind, 0, 0, 0.0, 0, no_values, no_values)


VERSION = 1
"""Format version of the lines written here; the engine's lines have the version of the contract."""


def job_line(job: LoadJob | TablesJob) -> str:
    return json.dumps({"event": "job", "format": VERSION, "job": job.model_dump(mode="json", exclude={"password"})})


def failed_line(code: str, message: str, advice: str) -> str:
    return json.dumps({"event": "failed", "code": code, "message": message, "advice": advice})


def partial_line(intervals: Sequence[Interval]) -> str:
    """The line after an interruption or a failure, in place of `finished` and `summary`: the sum of the complete intervals, which
    is not a result."""
    return json.dumps(
        {
            "event": "partial",
            "format": VERSION,
            "seconds": sum(interval.length_ns for interval in intervals) / 1e9,
            "transactions": sum(interval.transactions for interval in intervals),
            "queries": sum(interval.queries for interval in intervals),
            "errors": sum(interval.errors for interval in intervals),
        }
    )


def summary_line(result: Result, answer: Answer) -> str:
    return json.dumps(summary(result, answer), allow_nan=False)


def summary(result: Result, answer: Answer) -> dict[str, object]:
    """The last JSON line: the same figures as in the other reports."""
    finished = result.finished
    client = result.client
    in_flight = result.in_flight
    return {
        "event": "summary",
        "format": VERSION,
        "question": answer.question,
        "answer": answer.sentence,
        "stamps": [str(stamp) for stamp in result.verdict.stamps],
        "findings": [
            {"stamp": str(finding.stamp), "because": finding.because, "advice": finding.advice}
            for finding in result.verdict.findings
        ],
        "not_judged": [f"{check}: {reason}" for check, reason in result.verdict.unknown.items()],
        "mismatches": list(result.mismatches),
        "notes": list(result.notes),
        "loop": "open" if result.open_loop else "closed",
        "seconds": result.seconds,
        "transactions": finished.transactions,
        "transactions_per_second": result.per_second(finished.transactions),
        "queries": finished.queries,
        "queries_per_second": result.per_second(finished.queries),
        "errors": finished.errors,
        "reconnects": finished.reconnects,
        "latency_ns": {
            latency.kind: _latency_as_dict(latency) for latency in result.reported_latencies if latency.count
        },
        "in_flight_ns": None if in_flight is None or not in_flight.count else _latency_as_dict(in_flight),
        "client_cpu_ns_per_query": client.cpu_ns / finished.queries
        if client is not None and finished.queries
        else None,
        "client_memory_bytes": finished.peak_memory_bytes,
        "other_programs": result.programs and [program.as_json() for program in result.programs],
    }


def _latency_as_dict(latency: LatencyHistogram) -> dict[str, object]:
    figures: dict[str, object] = {
        "count": latency.count,
        "min": latency.min_ns,
        "mean": latency.mean_ns,
        "max": latency.max_ns,
    }
    for name, share in SHARES:
        bounds = latency.percentile(share)
        assert bounds is not None, "only histograms with values are shown"
        figures[name] = {"at_least": bounds.low_ns, "at_most": bounds.high_ns}
    return figures


Sample = tuple[Mapping[str, str], float]


def prometheus_text(result: Result, workload: str) -> str:
    """The result in Prometheus' text format."""
    finished, base = result.finished, {"workload": workload, "server_version": result.receipt.server_version}
    lines: list[str] = []

    def add_family(name: str, description: str, samples: Sequence[Sample]) -> None:
        if samples:
            lines.extend((f"# HELP howfar_load_{name} {description}", f"# TYPE howfar_load_{name} gauge"))
            lines.extend(_sample(f"howfar_load_{name}", {**base, **labels}, value) for labels, value in samples)

    add_family("timestamp_seconds", "When the measured window began.", [({}, result.measuring.unix_time_ns / 1e9)])
    add_family("window_seconds", "Length of the measured window.", [({}, result.seconds)])
    add_family("connections", "Connections that carried load.", [({}, result.job.connections)])
    add_family("transactions", "Transactions in the window.", [({}, finished.transactions)])
    add_family("transactions_per_second", "Throughput.", [({}, result.per_second(finished.transactions))])
    add_family("queries_per_second", "Throughput by class of query.", [
        ({"class": name}, result.per_second(getattr(finished.classes, name))) for name in ("read", "write", "other")
    ])  # fmt: skip
    add_family(
        "errors",
        "Ignored errors by code.",
        [({"code": code}, count) for code, count in sorted(finished.errors.items())],
    )
    add_family("reconnects", "Connections opened again.", [({}, finished.reconnects)])
    add_family("latency_seconds", "Latency at a quantile; a lower bound where censored is true.", [
        sample for latency in result.reported_latencies for sample in _quantiles(latency)
    ])  # fmt: skip
    add_family(
        "latency_max_seconds",
        "Highest latency.",
        [({"kind": latency.kind}, latency.max_ns / 1e9) for latency in result.reported_latencies],
    )
    if finished.open_loop is not None:
        requests = finished.open_loop
        add_family("requests", "Open loop: outcome of every request due.", [
            ({"outcome": name}, getattr(requests, name)) for name in ("answered", "unanswered", "failed")
        ])  # fmt: skip
    if result.in_flight is not None:
        add_family("in_flight", "Transactions in flight when the window ended.", [({}, result.in_flight.count)])
        add_family(
            "in_flight_max_seconds", "Age of the oldest transaction in flight.", [({}, result.in_flight.max_ns / 1e9)]
        )
    if result.client is not None and finished.queries:
        cpu_s_per_query = result.client.cpu_ns / 1e9 / finished.queries
        add_family("client_cpu_seconds_per_query", "CPU time of this client.", [({}, cpu_s_per_query)])
    add_family("client_memory_bytes", "Peak memory of this client.", [({}, finished.peak_memory_bytes)])
    add_family(
        "stamp",
        "1: the result has this stamp.",
        [({"stamp": str(stamp)}, float(result.verdict.has_stamp(stamp))) for stamp in Stamp],
    )
    return "\n".join(lines) + "\n"


def _quantiles(latency: LatencyHistogram) -> list[Sample]:
    samples: list[Sample] = []
    for _, share in SHARES:
        bounds = latency.percentile(share)
        if bounds is not None:
            labels = {"kind": latency.kind, "quantile": f"{share:g}", "censored": str(not bounds.exact).lower()}
            samples.append((labels, bounds.low_ns / 1e9))
    return samples


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    label_text = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{label_text}}} {value:.12g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


HDR_LOG_FORMAT = "1.3"
NS_PER_MS = 1e6


def hdr_log(result: Result) -> str:
    """The whole HDR log. Times are seconds from its StartTime, the beginning of the measured window."""
    start_s = result.measuring.unix_time_ns / 1e9
    lines = [
        f"#[Histogram log format version {HDR_LOG_FORMAT}]",
        f"#[StartTime: {start_s:.3f} (seconds since epoch), beginning of the measured window]",
        f"#[BaseTime: {start_s:.3f} (seconds since epoch)]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    for histogram in result.finished.histograms:
        if histogram.count:
            lines.append(
                f"Tag={histogram.kind},0.000,{result.seconds:.3f},{histogram.max_ns / NS_PER_MS:.3f},{histogram.data}"
            )
    return "\n".join(lines) + "\n"
