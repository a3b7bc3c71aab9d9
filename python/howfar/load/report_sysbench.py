"""A load in sysbench's layout, 1.0 or 1.1, for programs that parse sysbench's output. Pure.

The first line names howfar; all others have sysbench's text, columns and digits. The numbers are howfar's: percentiles of a finer
histogram and, in an open loop, response times from when a request was due. Only `--histogram` uses sysbench's 1024 buckets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from howfar.engine.messages import Interval, LoadJob
from howfar.load.result import Result

BUCKETS = 1024
LOW_MS, HIGH_MS = 0.001, 100_000.0
STARS = 40
_DEDUCT = math.log(LOW_MS)
_MULTIPLIER = (BUCKETS - 1) / (math.log(HIGH_MS) - _DEDUCT)


def bucket(ns: int) -> int:
    """The nearest bucket; values outside go into the first or the last."""
    if ns <= 0:
        return 0
    return min(max(math.floor((math.log(ns / 1e6) - _DEDUCT) * _MULTIPLIER + 0.5), 0), BUCKETS - 1)


def value_ms(index: int) -> float:
    return math.exp(index / _MULTIPLIER + _DEDUCT)


def histogram_lines(pairs: Iterable[tuple[int, int]]) -> list[str]:
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


SECOND_NS = 1_000_000_000
_LAYOUT = {"1.0": "1.0.20", "1.1": "1.1.0"}


def first_line(version: str, dialect: str) -> list[str]:
    return [f"howfar {version} (layout of sysbench {_LAYOUT[dialect]})", ""]


def head(job: LoadJob, dialect: str, report_interval_ns: int, seed: int) -> list[str]:
    """What sysbench prints before the load; `seed` 0: from the clock."""
    lines = ["Running the test with following options:", f"Number of threads: {job.connections}"]
    if dialect == "1.1" and job.warmup_ns:
        lines.append(f"Warmup time: {job.warmup_ns // SECOND_NS}s")
    if job.arrivals is not None:
        lines.append(f"Target transaction rate: {job.arrivals.rate_per_s:.0f}/sec")
    if report_interval_ns:
        lines.append(f"Report intermediate results every {report_interval_ns // SECOND_NS} second(s)")
    origin = f"seed ({seed}).\n" if seed else "current time\n"
    return [*lines, f"Initializing random number generator from {origin}", "", "Initializing worker threads...", ""]


def started(job: LoadJob, dialect: str) -> list[str]:
    """When all connections are open."""
    warming = (
        [f"Warming up for {job.warmup_ns // SECOND_NS} seconds...", ""] if dialect == "1.1" and job.warmup_ns else []
    )
    return ["Threads started!", "", *warming]


def interval_percentile(percent: int) -> int:
    """An interval has p50, p95, p99 and its maximum: its line shows the next one up, under its own name."""
    return next(known for known in (0, 50, 95, 99, 100) if percent <= known)


def interval_lines(each: Interval, job: LoadJob, percentile: int) -> list[str]:
    """`[ 10s ] thds: …`; with a rate a second line about the queue."""
    seconds = each.length_ns / 1e9 or 1.0
    share = interval_percentile(percentile)
    ns = {0: 0, 50: each.p50_ns, 95: each.p95_ns, 99: each.p99_ns, 100: each.max_ns}[share]
    stamp = f"[ {(each.start_ns + each.length_ns) / 1e9:.0f}s ]"
    classes = each.classes
    by_class = f"{classes.read / seconds:4.2f}/{classes.write / seconds:4.2f}/{classes.other / seconds:4.2f}"
    rates = f"tps: {each.transactions / seconds:4.2f} qps: {each.queries / seconds:4.2f} (r/w/o: {by_class})"
    trouble = f"err/s: {each.errors / seconds:4.2f} reconn/s: {each.reconnects / seconds:4.2f}"
    lines = [f"{stamp} thds: {job.connections} {rates} lat (ms,{share}%): {ns / 1e6:4.2f} {trouble}"]
    if job.arrivals is not None:
        lines.append(f"{stamp} queue length: {each.backlog}, concurrency: {_concurrency(each, job, seconds)}")
    return lines


def _concurrency(each: Interval, job: LoadJob, seconds: float) -> int:
    """With a queue every connection is busy; otherwise Little's law: rate times median time."""
    if each.backlog:
        return job.connections
    return min(round(each.transactions / seconds * each.p50_ns / 1e9), job.connections)


def report(result: Result, dialect: str, percentile: int, histogram: bool) -> list[str]:
    """What sysbench prints after the load."""
    lines = []
    if histogram:
        shown = histogram_lines(result.transaction.all_requests.pairs())
        lines += ["Latency histogram (values are in milliseconds)", *shown, " "]
    return [*lines, *_statistics(result), *_general(result, dialect), *_latency(result, percentile), *_fairness(result)]


def _statistics(result: Result) -> list[str]:
    finished, classes = result.finished, result.finished.classes

    def rated(name: str, count: int) -> str:
        return f"    {name + ':':<37}{count:<6} ({result.per_second(count):.2f} per sec.)"

    return [
        "SQL statistics:",
        "    queries performed:",
        f"        read:                            {classes.read}",
        f"        write:                           {classes.write}",
        f"        other:                           {classes.other}",
        f"        total:                           {classes.read + classes.write + classes.other}",
        rated("transactions", finished.transactions),
        rated("queries", classes.read + classes.write + classes.other),
        rated("ignored errors", result.errors),
        rated("reconnects", finished.reconnects),
        "",
    ]


def _general(result: Result, dialect: str) -> list[str]:
    transactions = result.finished.transactions
    if dialect == "1.1":
        return [
            "Throughput:",
            f"    events/s (eps):                      {result.per_second(transactions):.4f}",
            f"    time elapsed:                        {result.seconds:.4f}s",
            f"    total number of events:              {transactions}",
            "",
        ]
    return [
        "General statistics:",
        f"    total time:                          {result.seconds:.4f}s",
        f"    total number of events:              {transactions}",
        "",
    ]


def _latency(result: Result, percentile: int) -> list[str]:
    seen = result.transaction
    at = seen.at(percentile / 100) if percentile else None
    sum_ns = seen.mean_ns * seen.count
    lines = [
        "Latency (ms):",
        f"         min: {seen.min_ns / 1e6:39.2f}",
        f"         avg: {seen.mean_ns / 1e6:39.2f}",
        f"         max: {seen.max_ns / 1e6:39.2f}",
    ]
    if percentile:
        lines.append(f"        {percentile:3d}th percentile: {(at.low_ns if at else 0) / 1e6:27.2f}")
    else:
        lines.append("         percentile stats:               disabled")
    return [*lines, f"         sum: {sum_ns / 1e6:39.2f}", ""]


def _fairness(result: Result) -> list[str]:
    fair = result.finished.fairness
    return [
        "Threads fairness:",
        f"    events (avg/stddev):           {fair.transactions_mean:.4f}/{fair.transactions_stddev:3.2f}",
        f"    execution time (avg/stddev):   {fair.busy_mean_ns / 1e9:.4f}/{fair.busy_stddev_ns / 1e9:3.2f}",
        "",
    ]
