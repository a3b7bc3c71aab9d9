"""The machine-readable outputs of a load: JSON lines, Prometheus text and an HdrHistogram log. Pure; none holds a password.

- JSON lines: the job, every event of the engine, a summary.
- Prometheus: gauges of one finished run for a node exporter's textfile collector, written out in 40 lines rather than by
  prometheus-client, whose registry serves programs that go on running.
- HdrHistogram log 1.3: one line per histogram, distinguished by its tag; unit 1 ns, except for the maxima, in ms by custom.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from howfar.engine.messages import (
    Interval,
    LoadJob,
    TablesJob,
)
from howfar.load.result import SHARES, Latency, Result
from howfar.load.verdict import Stamp

VERSION = 1
"""Of the lines that are made here; the engine's have the contract's."""


def job_line(job: LoadJob | TablesJob) -> str:
    return json.dumps({"event": "job", "format": VERSION, "job": job.model_dump(mode="json", exclude={"password"})})


def failed_line(code: str, message: str, advice: str) -> str:
    return json.dumps({"event": "failed", "code": code, "message": message, "advice": advice})


def partial_line(intervals: Sequence[Interval]) -> str:
    """Replaces `finished` and `summary` after an interruption or a failure: the sum of the whole intervals, which is not a result."""
    return json.dumps(
        {
            "event": "partial",
            "format": VERSION,
            "seconds": sum(each.length_ns for each in intervals) / 1e9,
            "transactions": sum(each.transactions for each in intervals),
            "queries": sum(each.queries for each in intervals),
            "errors": sum(each.errors for each in intervals),
        }
    )


def summary_line(result: Result) -> str:
    return json.dumps(summary(result), allow_nan=False)


def summary(result: Result) -> dict[str, Any]:
    """The last line: the figures of the other reports."""
    finished = result.finished
    client = result.client
    in_flight = result.in_flight
    return {
        "event": "summary",
        "format": VERSION,
        "stamps": [str(stamp) for stamp in result.verdict.stamps],
        "findings": [
            {"stamp": str(each.stamp), "because": each.because, "advice": each.advice}
            for each in result.verdict.findings
        ],
        "not_judged": list(result.verdict.unknown),
        "mismatches": list(result.mismatches),
        "loop": "open" if result.open_loop else "closed",
        "seconds": result.seconds,
        "transactions": finished.transactions,
        "transactions_per_second": result.per_second(finished.transactions),
        "queries": finished.queries,
        "queries_per_second": result.per_second(finished.queries),
        "errors": finished.errors,
        "reconnects": finished.reconnects,
        "latency_ns": {each.kind: _latency(each) for each in result.shown if each.count},
        "in_flight_ns": None if in_flight is None or not in_flight.count else _latency(in_flight),
        "client_cpu_ns_per_query": client.cpu_ns / finished.queries
        if client is not None and finished.queries
        else None,
        "client_memory_bytes": finished.peak_memory_bytes,
    }


def _latency(latency: Latency) -> dict[str, Any]:
    found: dict[str, Any] = {
        "count": latency.count,
        "min": latency.min_ns,
        "mean": latency.mean_ns,
        "max": latency.max_ns,
    }
    for name, share in SHARES:
        at = latency.at(share)
        assert at is not None, "only histograms with values are shown"
        found[name] = {"at_least": at.low_ns, "at_most": at.high_ns}
    return found


Sample = tuple[Mapping[str, str], float]


def prometheus_text(result: Result, workload: str) -> str:
    """The whole file."""
    finished, base = result.finished, {"workload": workload, "server_version": result.receipt.server_version}
    lines: list[str] = []

    def family(name: str, meaning: str, samples: Sequence[Sample]) -> None:
        if samples:
            lines.extend((f"# HELP howfar_load_{name} {meaning}", f"# TYPE howfar_load_{name} gauge"))
            lines.extend(_sample(f"howfar_load_{name}", {**base, **labels}, value) for labels, value in samples)

    family("timestamp_seconds", "When the measured window began.", [({}, result.measuring.unix_time_ns / 1e9)])
    family("window_seconds", "Length of the measured window.", [({}, result.seconds)])
    family("connections", "Connections that carried load.", [({}, result.job.connections)])
    family("transactions", "Transactions in the window.", [({}, finished.transactions)])
    family("transactions_per_second", "Throughput.", [({}, result.per_second(finished.transactions))])
    family("queries_per_second", "Throughput by class of query.", [
        ({"class": name}, result.per_second(getattr(finished.classes, name))) for name in ("read", "write", "other")
    ])  # fmt: skip
    family("errors", "Ignored errors by code.", [({"code": code}, n) for code, n in sorted(finished.errors.items())])
    family("reconnects", "Connections opened again.", [({}, finished.reconnects)])
    family("latency_seconds", "Latency at a quantile; a lower bound where censored is true.", [
        sample for latency in result.shown for sample in _quantiles(latency)
    ])  # fmt: skip
    family(
        "latency_max_seconds", "Highest latency.", [({"kind": each.kind}, each.max_ns / 1e9) for each in result.shown]
    )
    if finished.open_loop is not None:
        account = finished.open_loop
        family("requests", "Open loop: outcome of every request due.", [
            ({"outcome": name}, getattr(account, name)) for name in ("answered", "unanswered", "failed")
        ])  # fmt: skip
    if result.in_flight is not None:
        family("in_flight", "Transactions in flight when the window ended.", [({}, result.in_flight.count)])
        family(
            "in_flight_max_seconds", "Age of the oldest transaction in flight.", [({}, result.in_flight.max_ns / 1e9)]
        )
    if result.client is not None and finished.queries:
        each = result.client.cpu_ns / 1e9 / finished.queries
        family("client_cpu_seconds_per_query", "CPU time of this client.", [({}, each)])
    family("client_memory_bytes", "Peak memory of this client.", [({}, finished.peak_memory_bytes)])
    family("stamp", "1: the result has this stamp.", [({"stamp": str(s)}, float(result.verdict.has(s))) for s in Stamp])
    return "\n".join(lines) + "\n"


def _quantiles(latency: Latency) -> list[Sample]:
    found: list[Sample] = []
    for _, share in SHARES:
        at = latency.at(share)
        if at is not None:
            labels = {"kind": latency.kind, "quantile": f"{share:g}", "censored": str(not at.exact).lower()}
            found.append((labels, at.low_ns / 1e9))
    return found


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{shown}}} {value:.12g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


FORMAT = "1.3"
NS_PER_MS = 1e6


def hdr_log(result: Result) -> str:
    """The whole file. Times are seconds from its StartTime, the beginning of the measured window."""
    begin_s = result.measuring.unix_time_ns / 1e9
    lines = [
        f"#[Histogram log format version {FORMAT}]",
        f"#[StartTime: {begin_s:.3f} (seconds since epoch), beginning of the measured window]",
        f"#[BaseTime: {begin_s:.3f} (seconds since epoch)]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    for histogram in result.finished.histograms:
        if histogram.count:
            lines.append(
                f"Tag={histogram.kind},0.000,{result.seconds:.3f},{histogram.max_ns / NS_PER_MS:.3f},{histogram.data}"
            )
    return "\n".join(lines) + "\n"
