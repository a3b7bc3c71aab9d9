"""A load in pgbench's layout, for programs that parse pgbench's output. Pure.

The first line names howfar; all others have pgbench's words and digits.
"""

from __future__ import annotations

import math

from howfar.engine.messages import KeyValue, Pgbench
from howfar.load.result import Result

_TITLES = {
    "select_only": "<builtin: select only>",
    "simple_update": "<builtin: simple update>",
    "tpcb_like": "<builtin: TPC-B (sort of)>",
}
_MODES = {"auto": "prepared", "extended": "extended", "disable": "simple", "multi": "simple"}


def first_line(version: str) -> list[str]:
    return [f"howfar {version} (layout of pgbench 15)"]


def report(result: Result, workload: str) -> list[str]:
    job, done, seen = result.job, result.finished, result.transaction
    load = job.workload
    lines = [f"transaction type: {_TITLES.get(workload, workload)}"]
    if isinstance(load, Pgbench):
        lines.append(f"scaling factor: {load.scale}")
    if not isinstance(load, KeyValue):
        lines.append(f"query mode: {_MODES[load.db_ps_mode]}")
    return [
        *lines,
        f"number of clients: {job.connections}",
        f"number of threads: {result.receipt.client_threads}",
        f"duration: {result.seconds:.0f} s",
        f"number of transactions actually processed: {done.transactions}",
        f"number of failed transactions: {result.errors} ({_percent(result.errors, done.transactions):.3f}%)",
        f"latency average = {seen.mean_ns / 1e6:.3f} ms",
        f"latency stddev = {_deviation_ns(result) / 1e6:.3f} ms",
        f"initial connection time = {result.ready.connect_ns / 1e6:.3f} ms",
        f"tps = {result.per_second(done.transactions):.6f} (without initial connection time)",
    ]


def _percent(errors: int, done: int) -> float:
    return 100 * errors / (errors + done) if errors else 0.0


def _deviation_ns(result: Result) -> float:
    """From the histogram, whose buckets are finer than what pgbench prints."""
    seen = result.transaction
    if not seen.count:
        return 0.0
    squares = sum(count * (value - seen.mean_ns) ** 2 for value, count in seen.all_requests.pairs())
    return math.sqrt(squares / seen.count)
