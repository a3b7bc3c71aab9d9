"""A load as JSON lines: the job, every event of the engine, a summary. Pure. A password is in none of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from howfar.engine.messages import Interval, LoadJob, Message, TablesJob
from howfar.load.figures import SHARES, Latency, Result

VERSION = 1
"""Of the lines that are made here; the engine's have the contract's."""


def job_line(job: LoadJob | TablesJob) -> str:
    return json.dumps({"event": "job", "format": VERSION, "job": job.model_dump(mode="json", exclude={"password"})})


def event_line(event: Message) -> str:
    return event.model_dump_json()


def failed_line(code: str, message: str, advice: str) -> str:
    return json.dumps({"event": "failed", "code": code, "message": message, "advice": advice})


def partial_line(intervals: Sequence[Interval]) -> str:
    """After an interruption, and before `failed`, in place of `finished` and `summary`:
    what whole intervals add up to, which is no result."""
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
    """The last line: what the other reports show, as numbers."""
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
