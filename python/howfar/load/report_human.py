"""The report of a load as text: verdict, throughput, latencies, statements, errors, receipt, client cost, next steps; also in the
layouts of sysbench 1.0 and 1.1 and of pgbench, for programs that parse those. No I/O.

In those layouts the first line names howfar; all others have the texts, columns and digits of sysbench or pgbench. The numbers are
howfar's: percentiles of a finer histogram and, in an open loop, response times from when a request was due. Only `--histogram` uses
sysbench's 1024 buckets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from howfar.contract.messages import Interval, KeyValue, LoadJob, Pgbench, Receipt
from howfar.load.result import SHARES, LatencyHistogram, PercentileBounds, Result
from howfar.load.verdict import Stamp
from howfar.units import counted, format_size_bytes

_ERRORS = {
    "1213": "deadlock",
    "1020": "record changed since last read",
    "1205": "lock wait timeout",
    "1062": "duplicate key",
    "40001": "serialization failure",
    "40P01": "deadlock",
    "23505": "duplicate key",
    "disconnect": "connection lost",
}
_LABEL_WIDTH = 12


def format_latency(ns: float) -> str:
    """A time with three digits: `45.2 µs`, `1.23 ms`, `2.00 s`."""
    for factor, unit, limit_ns in ((1.0, "ns", 1e3), (1e3, "µs", 1e6), (1e6, "ms", 1e9), (1e9, "s", float("inf"))):
        value = ns / factor
        if ns < limit_ns * 0.9995:
            digits = 0 if unit == "ns" else 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("the last unit has no limit")


def report(result: Result, workload: str) -> list[str]:
    """The whole report: blocks of labelled lines, and tables of latencies."""
    blocks = (
        _label_lines("Verdict", _verdict_lines(result)),
        [
            *_label_lines("Load", [_load_line(result, workload)]),
            *_label_lines("Throughput", _throughput_lines(result)),
        ],
        _latency_lines(result),
        _statement_lines(result),
        _label_lines("Errors", _error_lines(result)),
        [
            *_label_lines("Receipt", [*_receipt_lines(result.receipt), *result.notes]),
            *_label_lines("Client", _client_lines(result)),
            *_label_lines("TCP", _tcp_lines(result)),
        ],
        _label_lines("Next", list(dict.fromkeys(_next_steps(result)))),
    )
    return [line for block in blocks if block for line in ("", *block)][1:]


def _label_lines(label: str, texts: Iterable[str]) -> list[str]:
    """Lines of text, with the label before the first one only."""
    return [f"{'' if number else label:<{_LABEL_WIDTH}}{text}".rstrip() for number, text in enumerate(texts)]


def _verdict_lines(result: Result) -> list[str]:
    verdict = result.verdict
    lines = [", ".join(verdict.stamps)]
    if verdict.has_stamp(Stamp.VOID):
        lines.append(
            "VOID: the session obtained is not the one requested; the figures below do not describe the requested one."
        )
    lines += [f"{finding.stamp}: {finding.because}" for finding in verdict.findings]
    return lines + [f"not judged: {reason}" for reason in verdict.unknown]


def _load_line(result: Result, workload: str) -> str:
    job, arrivals = result.job, result.job.arrivals
    loop = "closed loop"
    if arrivals is not None:
        shapes = {"poisson": "Poisson", "constant": "evenly spaced", "bursts": f"bursts of {arrivals.burst}"}
        loop = f"open loop, {arrivals.rate_per_s:,.6g} transactions/s due, {shapes[arrivals.shape]}"
    idle = f" and {job.idle_connections:,} idle ones" if job.idle_connections else ""
    warm_up = f" after {job.warmup_ns / 1e9:.3g} s of warm-up" if job.warmup_ns else ", no warm-up"
    connections = counted(job.connections, "connection", ",")
    return f"{workload}, {connections}{idle}, {loop}, {result.seconds:.4g} s{warm_up}, seed {job.seed}"


def _throughput_lines(result: Result) -> list[str]:
    finished, classes, requests = result.finished, result.finished.classes, result.finished.open_loop
    rates = ", ".join(f"{name} {result.per_second(getattr(classes, name)):,.1f}" for name in ("read", "write", "other"))
    lines = [
        f"{result.per_second(finished.transactions):,.1f} transactions/s ({finished.transactions:,})",
        f"{result.per_second(finished.queries):,.1f} queries/s ({rates})",
    ]
    if requests is not None:
        failed = f", {requests.failed:,} failed" if requests.failed else ""
        lines.append(
            f"{requests.due:,} requests due: {requests.answered:,} answered, {requests.unanswered:,} not{failed}; "
            f"at most {requests.backlog_max:,} queued"
        )
    return lines


def _latency_lines(result: Result) -> list[str]:
    if result.open_loop:
        latencies: dict[str, LatencyHistogram | None] = {
            "response": result.transaction,
            "service": result.service,
            "lateness": result.lateness,
        }
        note = "response: from when due; service: from the first byte sent; lateness: how late this client sent"
    else:
        latencies = {"transaction": result.transaction}
        note = "finished transactions; a closed loop sends nothing while it waits, so a stall affects at most one per connection"
    rows = [(label, latency) for label, latency in latencies.items() if latency is not None]
    return [*_table("Latency", rows), *_label_lines("", [note, *_in_flight_lines(result)])]


def _in_flight_lines(result: Result) -> list[str]:
    """Lines on transactions in flight, if these would have raised the percentiles in a longer window."""
    in_flight, p99 = result.in_flight, result.service_latency.percentile(0.99)
    if in_flight is None or not in_flight.count or (p99 is not None and in_flight.max_ns <= p99.low_ns):
        return []
    kind = "service" if result.open_loop else "transactions"
    age = f"longer than the p99 of {kind}" if p99 is not None else "none finished"
    return [
        f"in flight at the end: {in_flight.count:,}, the oldest for {format_latency(in_flight.max_ns)}: {age};",
        f"the figures of {kind} and statements cover answered requests only",
    ]


def _statement_lines(result: Result) -> list[str]:
    latencies = (*result.statements, *result.stages, *([result.connect] if result.connect is not None else []))
    rows = [(latency.kind.removeprefix("statement."), latency) for latency in latencies if latency.count]
    return _table("Statement", rows) if rows else []


def _table(title: str, rows: Sequence[tuple[str, LatencyHistogram]]) -> list[str]:
    """A table with the count and percentiles of each latency; `≥` where unanswered requests leave only a lower bound."""
    lines = [[title, "count", "mean", *(name for name, _ in SHARES), "max"]]
    for label, latency in rows:
        mean = PercentileBounds(round(latency.mean_ns), round(latency.mean_ns) if latency.complete else None)
        bounds = [
            mean if latency.count else None,
            *(latency.percentile(share) for _, share in SHARES),
            latency.percentile(1),
        ]
        lines.append([label, f"{latency.count:,}", *map(_format_bound, bounds)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[0] = max(widths[0], _LABEL_WIDTH - 2)
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(text.rjust(size) for text, size in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]


def _format_bound(bound: PercentileBounds | None) -> str:
    if bound is None:
        return "-"
    return format_latency(bound.low_ns) if bound.exact else f"≥ {format_latency(bound.low_ns)}"


def _error_lines(result: Result) -> list[str]:
    finished = result.finished
    counts = [
        f"{count:,} x {code}{f' ({_ERRORS[code]})' if code in _ERRORS else ''}"
        for code, count in sorted(finished.errors.items())
    ]
    counts += [counted(finished.reconnects, "reconnect", ",")] if finished.reconnects else []
    last_loss = [] if finished.lost is None else [f"last loss: {finished.lost.last.message}", finished.lost.last.advice]
    return [", ".join(counts) or "none", *last_loss]


def _receipt_lines(receipt: Receipt) -> list[str]:
    """Lines on the session that was obtained."""
    login = f"login by {receipt.auth_plugin}, statements {receipt.protocol_mode}"
    return [
        f"{receipt.server_version}, connection {receipt.server_connection_id}, {login}",
        _transport_line(receipt),
        _layers_line(receipt),
    ]


def _transport_line(receipt: Receipt) -> str:
    if receipt.address_family == "unix":
        pid = f", server process {receipt.peer_pid}" if receipt.peer_pid else ""
        return f"Unix socket {receipt.peer_address}{pid}"
    facts = [
        f"MSS {receipt.tcp_mss}" if receipt.tcp_mss else "",
        receipt.congestion_control or "",
        {True: "NODELAY", False: "Nagle on", None: ""}[receipt.tcp_nodelay],
    ]
    family = {"inet": "IPv4", "inet6": "IPv6"}[receipt.address_family]
    return f"TCP over {family} to {receipt.peer_address}{_in_parentheses(facts)}"


def _layers_line(receipt: Receipt) -> str:
    tls, compression = "no TLS", "no compression"
    if receipt.tls_client_version is not None:
        resumed = {True: "resumed", False: "not resumed", None: ""}[receipt.tls_resumed]
        tls = receipt.tls_client_version + _in_parentheses(
            [receipt.tls_client_cipher or "", receipt.tls_group or "", resumed]
        )
    if receipt.compression is not None:
        level = f" level {receipt.compression_level}" if receipt.compression_level is not None else ""
        compression = f"{receipt.compression}{level} compression"
    return f"{tls}; {compression}"


def _in_parentheses(facts: Iterable[str]) -> str:
    joined = ", ".join(filter(None, facts))
    return f" ({joined})" if joined else ""


def _client_lines(result: Result) -> list[str]:
    """The cost of the measuring client itself: CPU time and memory."""
    cpu_use, finished = result.client, result.finished
    if cpu_use is None:
        return []
    share = f"{cpu_use.busiest_thread_ns / max(finished.elapsed_ns, 1):.0%} of the window"
    busy = (
        f"busiest of {cpu_use.threads} threads on a CPU {share}"
        if cpu_use.threads != 1
        else f"its thread on a CPU {share}"
    )
    per_query = f"{format_latency(cpu_use.cpu_ns / finished.queries)} CPU/query; " if finished.queries else ""
    return [f"{per_query}{busy}; {format_size_bytes(finished.peak_memory_bytes)}; {result.ready.receipt.driver}"]


def _tcp_lines(result: Result) -> list[str]:
    tcp = result.finished.tcp
    if result.client is None or tcp is None:
        return []
    rtt = f"RTT p50 {format_latency(tcp.rtt_p50_ns)}, max {format_latency(tcp.rtt_max_ns)}"
    return [f"{rtt}; {tcp.retransmits:,} segments retransmitted"]


def _next_steps(result: Result) -> list[str]:
    if result.verdict.findings:
        return [finding.advice for finding in result.verdict.findings]
    advice = ["Repeat it: one run says nothing about variation between runs."]
    if result.verdict.unknown:
        advice = ["Run longer, so that steadiness can be judged."]
    if not result.open_loop:
        rate = result.per_second(result.finished.transactions)
        advice.append(
            f"For response times as users see them, set a rate below {rate:,.4g} (--rate), or search for one (--search 'p99<…')."
        )
    return advice


def partial_report(intervals: Sequence[Interval], reason: str = "interrupted") -> list[str]:
    """The report after an interruption or a failure: the sum of the intervals so far, which is not a result."""
    seconds = sum(interval.length_ns for interval in intervals) / 1e9
    sums = (
        f"{sum(getattr(interval, name) for interval in intervals):,} {name}"
        for name in ("transactions", "queries", "errors")
    )
    totals = f"{', '.join(sums)} in the whole intervals until then"
    return _label_lines("Partial", [f"{reason} after {seconds:.4g} s of the window: not a result", totals])


def interval_line(interval: Interval, open_loop: bool) -> str:
    """The line of an interval, shown while the load runs."""
    seconds = interval.length_ns / 1e9 or 1.0
    return (
        f"{(interval.start_ns + interval.length_ns) / 1e9:>7.4g} s  {interval.transactions / seconds:>11,.1f} transactions/s  "
        f"{interval.queries / seconds:>11,.1f} queries/s  "
        f"p50 {_format_if_any(interval, interval.p50_ns):>7}  p99 {_format_if_any(interval, interval.p99_ns):>7}"
        + (f"  queued {interval.backlog:,}" if open_loop else "")
        + (f"  errors {interval.errors:,}" if interval.errors else "")
    )


def _format_if_any(interval: Interval, ns: int) -> str:
    return format_latency(ns) if interval.transactions else "-"


def histogram(result: Result) -> list[str]:
    """Latencies of transactions in sysbench's buckets."""
    return [
        "Latencies in ms, in sysbench's buckets",
        *sysbench_histogram_lines(result.transaction.all_requests.pairs()),
    ]


BUCKETS = 1024
LOW_MS, HIGH_MS = 0.001, 100_000.0
STARS = 40
_DEDUCT = math.log(LOW_MS)
_MULTIPLIER = (BUCKETS - 1) / (math.log(HIGH_MS) - _DEDUCT)


def bucket(ns: int) -> int:
    """sysbench's bucket nearest to a latency; values outside go into the first or the last."""
    if ns <= 0:
        return 0
    return min(max(math.floor((math.log(ns / 1e6) - _DEDUCT) * _MULTIPLIER + 0.5), 0), BUCKETS - 1)


def value_ms(index: int) -> float:
    return math.exp(index / _MULTIPLIER + _DEDUCT)


def sysbench_histogram_lines(pairs: Iterable[tuple[int, int]]) -> list[str]:
    """The histogram as sysbench prints it, without its title; from (ns, count)."""
    counts: Counter[int] = Counter()
    for ns, count in pairs:
        counts[bucket(ns)] += count
    if not counts:
        return []
    max_count = max(counts.values())
    return ["       value  ------------- distribution ------------- count"] + [
        f"{value_ms(index):12.3f} |{'*' * math.floor(counts[index] * STARS / max_count + 0.5):<{STARS}} {counts[index]}"
        for index in sorted(counts)
    ]


SECOND_NS = 1_000_000_000
_LAYOUT = {"1.0": "1.0.20", "1.1": "1.1.0"}


def sysbench_first_line(version: str, dialect: str) -> list[str]:
    return [f"howfar {version} (layout of sysbench {_LAYOUT[dialect]})", ""]


def sysbench_head(job: LoadJob, dialect: str, report_interval_ns: int, seed: int) -> list[str]:
    """The lines that sysbench prints before the load; `seed` 0: from the clock."""
    lines = ["Running the test with following options:", f"Number of threads: {job.connections}"]
    if dialect == "1.1" and job.warmup_ns:
        lines.append(f"Warmup time: {job.warmup_ns // SECOND_NS}s")
    if job.arrivals is not None:
        lines.append(f"Target transaction rate: {job.arrivals.rate_per_s:.0f}/sec")
    if report_interval_ns:
        lines.append(f"Report intermediate results every {report_interval_ns // SECOND_NS} second(s)")
    origin = f"seed ({seed}).\n" if seed else "current time\n"
    return [*lines, f"Initializing random number generator from {origin}", "", "Initializing worker threads...", ""]


def sysbench_started(job: LoadJob, dialect: str) -> list[str]:
    """sysbench's line when all connections are open."""
    warmup_lines = (
        [f"Warming up for {job.warmup_ns // SECOND_NS} seconds...", ""] if dialect == "1.1" and job.warmup_ns else []
    )
    return ["Threads started!", "", *warmup_lines]


def supported_percentile(percent: int) -> int:
    """The percentile in an interval's line: the smallest that is at least `percent` and that intervals have (0, 50, 95, 99, 100)."""
    return next(supported for supported in (0, 50, 95, 99, 100) if percent <= supported)


def sysbench_interval_lines(interval: Interval, job: LoadJob, percentile: int) -> list[str]:
    """sysbench's line `[ 10s ] thds: …`; with a rate a second line about the queue."""
    seconds = interval.length_ns / 1e9 or 1.0
    share = supported_percentile(percentile)
    ns = {0: 0, 50: interval.p50_ns, 95: interval.p95_ns, 99: interval.p99_ns, 100: interval.max_ns}[share]
    stamp = f"[ {(interval.start_ns + interval.length_ns) / 1e9:.0f}s ]"
    classes = interval.classes
    by_class = f"{classes.read / seconds:4.2f}/{classes.write / seconds:4.2f}/{classes.other / seconds:4.2f}"
    rates = f"tps: {interval.transactions / seconds:4.2f} qps: {interval.queries / seconds:4.2f} (r/w/o: {by_class})"
    error_rates = f"err/s: {interval.errors / seconds:4.2f} reconn/s: {interval.reconnects / seconds:4.2f}"
    lines = [f"{stamp} thds: {job.connections} {rates} lat (ms,{share}%): {ns / 1e6:4.2f} {error_rates}"]
    if job.arrivals is not None:
        lines.append(f"{stamp} queue length: {interval.backlog}, concurrency: {_concurrency(interval, job, seconds)}")
    return lines


def _concurrency(interval: Interval, job: LoadJob, seconds: float) -> int:
    """Concurrency of an interval. With a queue every connection is busy; otherwise Little's law: rate times median time."""
    if interval.backlog:
        return job.connections
    return min(round(interval.transactions / seconds * interval.p50_ns / 1e9), job.connections)


def sysbench_report(result: Result, dialect: str, percentile: int, histogram: bool) -> list[str]:
    """The lines that sysbench prints after the load."""
    lines = []
    if histogram:
        histogram_rows = sysbench_histogram_lines(result.transaction.all_requests.pairs())
        lines += ["Latency histogram (values are in milliseconds)", *histogram_rows, " "]
    if result.job.workload.kind == "bulk_insert":
        lines.append("NOTE: transactions and events are INSERTs of 512 KiB here, where sysbench counts rows.")
    return [
        *lines,
        *_sysbench_statistics(result),
        *_sysbench_general(result, dialect),
        *_sysbench_latency(result, percentile),
        *_sysbench_fairness(result),
    ]


def _sysbench_statistics(result: Result) -> list[str]:
    finished, classes = result.finished, result.finished.classes

    def line_with_rate(name: str, count: int) -> str:
        return f"    {name + ':':<37}{count:<6} ({result.per_second(count):.2f} per sec.)"

    return [
        "SQL statistics:",
        "    queries performed:",
        f"        read:                            {classes.read}",
        f"        write:                           {classes.write}",
        f"        other:                           {classes.other}",
        f"        total:                           {classes.read + classes.write + classes.other}",
        line_with_rate("transactions", finished.transactions),
        line_with_rate("queries", classes.read + classes.write + classes.other),
        line_with_rate("ignored errors", result.errors),
        line_with_rate("reconnects", finished.reconnects),
        "",
    ]


def _sysbench_general(result: Result, dialect: str) -> list[str]:
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


def _sysbench_latency(result: Result, percentile: int) -> list[str]:
    latency = result.transaction
    bound = latency.percentile(percentile / 100) if percentile else None
    sum_ns = latency.mean_ns * latency.count
    lines = [
        "Latency (ms):",
        f"         min: {latency.min_ns / 1e6:39.2f}",
        f"         avg: {latency.mean_ns / 1e6:39.2f}",
        f"         max: {latency.max_ns / 1e6:39.2f}",
    ]
    if percentile:
        lines.append(f"        {percentile:3d}th percentile: {(bound.low_ns if bound else 0) / 1e6:27.2f}")
    else:
        lines.append("         percentile stats:               disabled")
    return [*lines, f"         sum: {sum_ns / 1e6:39.2f}", ""]


def _sysbench_fairness(result: Result) -> list[str]:
    fairness = result.finished.fairness
    return [
        "Threads fairness:",
        f"    events (avg/stddev):           {fairness.transactions_mean:.4f}/{fairness.transactions_stddev:3.2f}",
        f"    execution time (avg/stddev):   {fairness.busy_mean_ns / 1e9:.4f}/{fairness.busy_stddev_ns / 1e9:3.2f}",
        "",
    ]


_TITLES = {
    "select_only": "<builtin: select only>",
    "simple_update": "<builtin: simple update>",
    "tpcb_like": "<builtin: TPC-B (sort of)>",
}
_MODES = {"auto": "prepared", "extended": "extended", "disable": "simple", "multi": "simple"}


def pgbench_first_line(version: str) -> list[str]:
    return [f"howfar {version} (layout of pgbench 15)"]


def pgbench_progress(interval: Interval) -> str:
    """The line of an interval. An interval has no mean, deviation or lag; quantiles replace them, under their own names."""
    seconds = interval.length_ns / 1e9 or 1.0
    return (
        f"progress: {(interval.start_ns + interval.length_ns) / 1e9:.1f} s, {interval.transactions / seconds:.1f} tps, "
        f"p50 {interval.p50_ns / 1e6:.3f} ms p99 {interval.p99_ns / 1e6:.3f} ms, 0 failed, {interval.errors} retries"
    )


def pgbench_notes(job: LoadJob, shows_progress: bool) -> list[str]:
    """Notes on figures that this layout lacks, or whose meaning differs from pgbench's."""
    notes = ["errors are always tried again, so none counts as failed; which transactions were retried is not counted"]
    if shows_progress:
        notes.append("progress: p50 and p99 instead of lat and stddev, whose figures are not counted by interval")
    if job.arrivals is not None:
        notes.append("the maximum of the schedule lag is not counted, nor the lag of an interval")
    return notes


def pgbench_report(result: Result, workload: str) -> list[str]:
    """The lines that pgbench 15 prints after the load with --max-tries=0."""
    job, finished, latency = result.job, result.finished, result.transaction
    workload_settings = job.workload
    lines = [f"transaction type: {_TITLES.get(workload, workload)}"]
    if isinstance(workload_settings, Pgbench):
        lines.append(f"scaling factor: {workload_settings.scale}")
    if not isinstance(workload_settings, KeyValue):
        lines.append(f"query mode: {_MODES[workload_settings.db_ps_mode]}")
    return [
        *lines,
        f"number of clients: {job.connections}",
        f"number of threads: {result.receipt.client_threads}",
        f"duration: {result.seconds:.0f} s",
        f"number of transactions actually processed: {finished.transactions}",
        "number of failed transactions: 0 (0.000%)",
        f"total number of retries: {result.errors}",
        f"latency average = {latency.mean_ns / 1e6:.3f} ms",
        f"latency stddev = {_deviation_ns(result) / 1e6:.3f} ms",
        *_pgbench_lag(result),
        *_pgbench_rate(result),
    ]


def _pgbench_lag(result: Result) -> list[str]:
    """How late transactions began, on average: mean response time less mean service time. Omitted if some had no answer."""
    if result.service is None or result.service.count != result.transaction.count:
        return []
    return [f"rate limit schedule lag: avg {(result.transaction.mean_ns - result.service.mean_ns) / 1e6:.3f} ms"]


def _pgbench_rate(result: Result) -> list[str]:
    tps = f"tps = {result.per_second(result.finished.transactions):.6f}"
    if result.job.session.connect == "per_transaction":
        mean_ns = result.connect.mean_ns if result.connect else 0
        return [f"average connection time = {mean_ns / 1e6:.3f} ms", f"{tps} (including reconnection times)"]
    initial = f"initial connection time = {result.ready.connect_ns / 1e6:.3f} ms"
    return [initial, f"{tps} (without initial connection time)"]


def _deviation_ns(result: Result) -> float:
    """Standard deviation of the latencies, from the histogram, whose buckets are finer than what pgbench prints."""
    latency = result.transaction
    if not latency.count:
        return 0.0
    squares = sum(count * (value - latency.mean_ns) ** 2 for value, count in latency.all_requests.pairs())
    return math.sqrt(squares / latency.count)
