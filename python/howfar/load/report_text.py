"""The report of a load as a document: answer, throughput, latencies, statements, errors, session, cost of the client; also as text in
the layouts of sysbench 1.0 and 1.1 and of pgbench, for programs that parse those. No I/O.

In those layouts the first line names howfar; the others have the wording, columns and precision of sysbench or pgbench, except where
`pgbench_notes` or a NOTE says otherwise. The numbers are howfar's: percentiles of a finer histogram and, in an open loop, response
times measured from when each request was due. Only `--histogram` uses sysbench's 1024 buckets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from howfar.contract.messages import Account, CpuUse, Finished, Interval, KeyValue, LoadJob, Pgbench, Receipt
from howfar.findings import fill
from howfar.load.conclusion import Conclusion, conclude
from howfar.load.result import SHARES, LatencyHistogram, PercentileBounds, Result, format_latency
from howfar.load.texts import HISTOGRAM, LATENCY_NOTES, LINES, LOOPS, SETTING
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
    Bullets,
    Code,
    Document,
    Heading,
    Table,
    Text,
    Warnings,
    plain_cells,
    plain_columns,
    what_to_do,
)
from howfar.report.texts import SEPARATOR
from howfar.units import counted, format_size_bytes, format_utc

_ERROR_NAMES = {
    "1213": "deadlock",
    "1020": "record changed since last read",
    "1205": "lock wait timeout",
    "1062": "duplicate key",
    "40001": "serialization failure",
    "40P01": "deadlock",
    "23505": "duplicate key",
    "disconnect": "connection lost",
}


def document(result: Result, workload: str, conclusion: Conclusion | None = None, histogram: bool = False) -> Document:
    """The report of one load. `conclusion`: the conclusion of a search whose best trial was this load. `histogram`: whether to add a
    histogram with sysbench's buckets."""
    conclusion = conclusion or conclude(result)
    verdict, requests = result.verdict, result.finished.open_loop
    warnings = [fill(LINES["stamp"], stamp=finding.stamp, because=finding.because) for finding in verdict.findings]
    warnings += [fill(LINES["unknown"], check=check, reason=reason) for check, reason in verdict.unknown.items()]
    bucket_lines = sysbench_histogram_lines(result.transaction.all_requests.pairs()) if histogram else []
    histogram_blocks: list[Block] = [Heading(HISTOGRAM), Code(tuple(bucket_lines))] if bucket_lines else []
    return conclusion_document(
        conclusion,
        _setting_line(result, workload),
        Warnings(tuple(warnings)),
        _throughput_table(result),
        *([Text(_requests_line(requests))] if requests is not None else []),
        _latency_table(result),
        _statement_table(result),
        *histogram_blocks,
        Heading("Session and client"),
        Bullets(tuple(_evidence_lines(result))),
    )


def conclusion_document(conclusion: Conclusion, setting: str, *blocks: Block) -> Document:
    """A report with the conclusion, these blocks, and what to do."""
    answer = conclusion.answer
    parts: tuple[Block, ...] = (
        Answer(answer.sentence, why=answer.why, certainty=conclusion.certainty),
        *blocks,
        *what_to_do(AdviceBlock(advice, "") for advice in conclusion.advice),
    )
    return Document("howfar load", parts, question=answer.question, setting=setting)


def _setting_line(result: Result, workload: str) -> str:
    job, arrivals = result.job, result.job.arrivals
    parts = (
        workload,
        fill(
            SETTING["with-idle" if job.idle_connections else "connections"],
            connections=job.connections,
            idle=job.idle_connections,
        ),
        LOOPS["closed"]
        if arrivals is None
        else fill(LOOPS[arrivals.shape], due=arrivals.rate_per_s, burst=arrivals.burst),
        fill(SETTING["window-warm" if job.warmup_ns else "window"], seconds=result.seconds, warmup=job.warmup_ns / 1e9),
        fill(SETTING["seed"], seed=job.seed),
        result.receipt.server_version,
        format_utc(result.measuring.unix_time_ns),
    )
    return SEPARATOR.join(parts)


def _throughput_table(result: Result) -> Table:
    finished = result.finished
    counts = {"transactions": finished.transactions, "queries": finished.queries}
    counts |= {f"- {name}": getattr(finished.classes, name) for name in ("read", "write", "other")}
    rows = [plain_cells(name, f"{result.per_second(count):,.1f}", f"{count:,}") for name, count in counts.items()]
    return Table("", plain_columns("Throughput", "per second", "total"), tuple(rows))


def _requests_line(requests: Account) -> str:
    return fill(
        LINES["requests"],
        due=requests.due,
        answered=requests.answered,
        unanswered=requests.unanswered,
        failed=fill(LINES["failed"], failed=requests.failed) if requests.failed else "",
        queued=requests.backlog_max,
    )


def _latency_table(result: Result) -> Table:
    latencies: dict[str, LatencyHistogram | None] = {"transaction": result.transaction}
    if result.open_loop:
        latencies = {"response": result.transaction, "service": result.service, "lateness": result.lateness}
    notes = [LATENCY_NOTES["open" if result.open_loop else "closed"], *_in_flight_notes(result)]
    rows = [(label, latency) for label, latency in latencies.items() if latency is not None]
    return _percentiles_table("Latency", rows, notes)


def _statement_table(result: Result) -> Table:
    latencies = (*result.statements, *result.stages, *([result.connect] if result.connect is not None else []))
    rows = [(latency.kind.removeprefix("statement."), latency) for latency in latencies if latency.count]
    return _percentiles_table("Statement", rows)


def _in_flight_notes(result: Result) -> list[str]:
    """A note on the transactions in flight at the end of the window, unless all of them are younger than the p99."""
    in_flight, p99 = result.in_flight, result.service_latency.percentile(0.99)
    if in_flight is None or not in_flight.count or (p99 is not None and in_flight.max_ns <= p99.low_ns):
        return []
    kind = "service" if result.open_loop else "transactions"
    compared = fill(LATENCY_NOTES["in-flight-none" if p99 is None else "in-flight-longer"], kind=kind)
    age = format_latency(in_flight.max_ns)
    return [fill(LATENCY_NOTES["in-flight"], count=in_flight.count, age=age, compared=compared, kind=kind)]


def _percentiles_table(
    title: str, latencies: Iterable[tuple[str, LatencyHistogram]], notes: Sequence[str] = ()
) -> Table:
    """A table with count and percentiles of each latency; `≥` marks a lower bound: with unanswered requests the exact value is
    unknown."""
    headings = (title, "count", "mean", *(name for name, _ in SHARES), "max")
    rows = tuple(plain_cells(label, f"{latency.count:,}", *_latency_cells(latency)) for label, latency in latencies)
    return Table("", plain_columns(*headings), rows, tuple(notes), main=True)


def _latency_cells(latency: LatencyHistogram) -> Iterator[str]:
    """Mean, percentiles and maximum, as text."""
    mean = PercentileBounds(round(latency.mean_ns), round(latency.mean_ns) if latency.complete else None)
    percentiles = (latency.percentile(share) for share in (*(share for _, share in SHARES), 1))
    for bound in (mean if latency.count else None, *percentiles):
        lower = "" if bound is None or bound.exact else "≥ "
        yield "-" if bound is None else f"{lower}{format_latency(bound.low_ns)}"


def _evidence_lines(result: Result) -> Iterator[str]:
    """Errors, the session that was obtained, and the cost of the measuring client."""
    finished, receipt = result.finished, result.receipt
    yield fill(LINES["errors"], errors=_errors_text(finished))
    if finished.lost is not None:
        yield fill(LINES["loss"], message=finished.lost.last.message, advice=finished.lost.last.advice)
    yield fill(
        LINES["session"],
        server=receipt.server_version,
        connection=receipt.server_connection_id,
        plugin=receipt.auth_plugin,
        mode=receipt.protocol_mode,
    )
    yield fill(LINES["transport"], transport=_transport_text(receipt))
    yield _layers_line(receipt)
    yield from result.notes
    if result.client is None:
        return
    yield _client_line(result, result.client)
    if (tcp := finished.tcp) is not None:
        p50, max_rtt = format_latency(tcp.rtt_p50_ns), format_latency(tcp.rtt_max_ns)
        yield fill(LINES["tcp"], p50=p50, most=max_rtt, retransmits=tcp.retransmits)


def _errors_text(finished: Finished) -> str:
    counts = [
        f"{count:,} x {code}{f' ({_ERROR_NAMES[code]})' if code in _ERROR_NAMES else ''}"
        for code, count in sorted(finished.errors.items())
    ]
    counts += [counted(finished.reconnects, "reconnect", ",")] if finished.reconnects else []
    return ", ".join(counts) or "none"


def _client_line(result: Result, cpu_use: CpuUse) -> str:
    """The cost of the measuring client itself: CPU time and memory."""
    finished = result.finished
    share = cpu_use.busiest_thread_ns / max(finished.elapsed_ns, 1)
    cpu_ns_per_query = cpu_use.cpu_ns / finished.queries if finished.queries else None
    return fill(
        LINES["client"],
        cost="" if cpu_ns_per_query is None else fill(LINES["client-cost"], cpu=format_latency(cpu_ns_per_query)),
        busy=fill(LINES["one-thread" if cpu_use.threads == 1 else "busiest"], threads=cpu_use.threads, share=share),
        memory=format_size_bytes(finished.peak_memory_bytes),
        driver=result.ready.receipt.driver,
    )


def _transport_text(receipt: Receipt) -> str:
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
    return fill(LINES["layers"], tls=tls, compression=compression)


def _in_parentheses(facts: Iterable[str]) -> str:
    joined = ", ".join(filter(None, facts))
    return f" ({joined})" if joined else ""


def partial_report(intervals: Sequence[Interval], reason: str = "interrupted") -> list[str]:
    """The report after an interruption or a failure: the sum of the intervals so far, which is not a result."""
    seconds = sum(interval.length_ns for interval in intervals) / 1e9
    sums = (
        f"{sum(getattr(interval, name) for interval in intervals):,} {name}"
        for name in ("transactions", "queries", "errors")
    )
    totals = f"{', '.join(sums)} in the intervals completed until then"
    partial = fill("{reason} after {seconds:count} s of the window: not a result", reason=reason, seconds=seconds)
    return [f"Partial     {partial}", f"{'':12}{totals}"]


def interval_line(interval: Interval, open_loop: bool) -> str:
    """The line of an interval, shown while the load runs."""
    seconds = interval.length_ns / 1e9 or 1.0
    elapsed = fill("{seconds:count}", seconds=(interval.start_ns + interval.length_ns) / 1e9)
    return (
        f"{elapsed:>7} s  {interval.transactions / seconds:>11,.1f} transactions/s  "
        f"{interval.queries / seconds:>11,.1f} queries/s  "
        f"p50 {_format_if_any(interval, interval.p50_ns):>7}  p99 {_format_if_any(interval, interval.p99_ns):>7}"
        + (f"  queued {interval.backlog:,}" if open_loop else "")
        + (f"  errors {interval.errors:,}" if interval.errors else "")
    )


def _format_if_any(interval: Interval, ns: int) -> str:
    return format_latency(ns) if interval.transactions else "-"


BUCKETS = 1024
LOW_MS, HIGH_MS = 0.001, 100_000.0
MAX_STARS = 40
_LOG_LOW = math.log(LOW_MS)
_BUCKETS_PER_E_FOLD = (BUCKETS - 1) / (math.log(HIGH_MS) - _LOG_LOW)


def bucket_index(ns: int) -> int:
    """The number of sysbench's bucket nearest to a latency; values outside go into the first or the last."""
    if ns <= 0:
        return 0
    return min(max(math.floor((math.log(ns / 1e6) - _LOG_LOW) * _BUCKETS_PER_E_FOLD + 0.5), 0), BUCKETS - 1)


def value_ms(index: int) -> float:
    """The latency that sysbench prints for a bucket."""
    return math.exp(index / _BUCKETS_PER_E_FOLD + _LOG_LOW)


def sysbench_histogram_lines(pairs: Iterable[tuple[int, int]]) -> list[str]:
    """The histogram as sysbench prints it, without its title. `pairs`: (ns, count)."""
    counts: Counter[int] = Counter()
    for ns, count in pairs:
        counts[bucket_index(ns)] += count
    if not counts:
        return []
    max_count = max(counts.values())
    return ["       value  ------------- distribution ------------- count"] + [
        f"{value_ms(index):12.3f} |{'*' * math.floor(counts[index] * MAX_STARS / max_count + 0.5):<{MAX_STARS}} {counts[index]}"
        for index in sorted(counts)
    ]


SECOND_NS = 1_000_000_000
_LAYOUT = {"1.0": "1.0.20", "1.1": "1.1.0"}


def sysbench_first_line(version: str, dialect: str) -> list[str]:
    return [f"howfar {version} (layout of sysbench {_LAYOUT[dialect]})", ""]


def sysbench_head(job: LoadJob, dialect: str, report_interval_ns: int, seed: int) -> list[str]:
    """The lines that sysbench prints before the load. If `seed` is 0, the generator was seeded from the clock."""
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
    """sysbench's line `[ 10s ] thds: …`; in an open loop also a line about the queue."""
    seconds = interval.length_ns / 1e9 or 1.0
    share = supported_percentile(percentile)
    latency_ns = {0: 0, 50: interval.p50_ns, 95: interval.p95_ns, 99: interval.p99_ns, 100: interval.max_ns}[share]
    time_prefix = f"[ {(interval.start_ns + interval.length_ns) / 1e9:.0f}s ]"
    classes = interval.classes
    by_class = f"{classes.read / seconds:4.2f}/{classes.write / seconds:4.2f}/{classes.other / seconds:4.2f}"
    rates = f"tps: {interval.transactions / seconds:4.2f} qps: {interval.queries / seconds:4.2f} (r/w/o: {by_class})"
    error_rates = f"err/s: {interval.errors / seconds:4.2f} reconn/s: {interval.reconnects / seconds:4.2f}"
    lines = [f"{time_prefix} thds: {job.connections} {rates} lat (ms,{share}%): {latency_ns / 1e6:4.2f} {error_rates}"]
    if job.arrivals is not None:
        lines.append(
            f"{time_prefix} queue length: {interval.backlog}, concurrency: {_concurrency(interval, job, seconds)}"
        )
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
        lines.append("NOTE: transactions and events are INSERTs of 512 KiB here, whereas sysbench counts rows.")
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


_PGBENCH_TITLES = {
    "select_only": "<builtin: select only>",
    "simple_update": "<builtin: simple update>",
    "tpcb_like": "<builtin: TPC-B (sort of)>",
}
_PGBENCH_MODES = {"auto": "prepared", "extended": "extended", "disable": "simple", "multi": "simple"}


def pgbench_first_line(version: str) -> list[str]:
    return [f"howfar {version} (layout of pgbench 15)"]


def pgbench_progress(interval: Interval) -> str:
    """pgbench's line of an interval. An interval has no mean, deviation or lag; quantiles replace them, under their own names."""
    seconds = interval.length_ns / 1e9 or 1.0
    return (
        f"progress: {(interval.start_ns + interval.length_ns) / 1e9:.1f} s, {interval.transactions / seconds:.1f} tps, "
        f"p50 {interval.p50_ns / 1e6:.3f} ms p99 {interval.p99_ns / 1e6:.3f} ms, 0 failed, {interval.errors} retries"
    )


def pgbench_notes(job: LoadJob, shows_progress: bool) -> list[str]:
    """Notes on figures that this layout lacks, or whose meaning differs from pgbench's."""
    notes = [
        "a transaction with an error is always retried, so none counts as failed; retries are counted, retried transactions are not"
    ]
    if shows_progress:
        notes.append("progress shows p50 and p99 instead of lat and stddev, which are not measured per interval")
    if job.arrivals is not None:
        notes.append("neither the maximum schedule lag nor the lag per interval is measured")
    return notes


def pgbench_report(result: Result, workload: str) -> list[str]:
    """The lines that pgbench 15 prints after the load with --max-tries=0."""
    job, finished, latency = result.job, result.finished, result.transaction
    workload_settings = job.workload
    lines = [f"transaction type: {_PGBENCH_TITLES.get(workload, workload)}"]
    if isinstance(workload_settings, Pgbench):
        lines.append(f"scaling factor: {workload_settings.scale}")
    if not isinstance(workload_settings, KeyValue):
        lines.append(f"query mode: {_PGBENCH_MODES[workload_settings.db_ps_mode]}")
    return [
        *lines,
        f"number of clients: {job.connections}",
        f"number of threads: {result.receipt.client_threads}",
        f"duration: {result.seconds:.0f} s",
        f"number of transactions actually processed: {finished.transactions}",
        "number of failed transactions: 0 (0.000%)",
        f"total number of retries: {result.errors}",
        f"latency average = {latency.mean_ns / 1e6:.3f} ms",
        f"latency stddev = {_standard_deviation_ns(result) / 1e6:.3f} ms",
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
    connection_time = f"initial connection time = {result.ready.connect_ns / 1e6:.3f} ms"
    return [connection_time, f"{tps} (without initial connection time)"]


def _standard_deviation_ns(result: Result) -> float:
    """Standard deviation of the latencies, from the histogram, whose buckets are finer than what pgbench prints."""
    latency = result.transaction
    if not latency.count:
        return 0.0
    squares = sum(count * (value - latency.mean_ns) ** 2 for value, count in latency.all_requests.pairs())
    return math.sqrt(squares / latency.count)
