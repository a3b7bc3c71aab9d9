"""A load for a person: verdict, throughput, latencies, statements, errors, receipt, client cost, next steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from howfar.engine.messages import Interval, Receipt
from howfar.load.report_sysbench import histogram_lines
from howfar.load.result import SHARES, Bound, Latency, Result
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
_LABEL = 12


def time(ns: float) -> str:
    """Three digits: `45.2 µs`, `1.23 ms`, `2.00 s`."""
    for factor, unit, below in ((1.0, "ns", 1e3), (1e3, "µs", 1e6), (1e6, "ms", 1e9), (1e9, "s", float("inf"))):
        value = ns / factor
        if ns < below * 0.9995:
            digits = 0 if unit == "ns" else 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("the last unit has no limit")


def report(result: Result, workload: str) -> list[str]:
    """The whole report: blocks of labelled lines, and tables of latencies."""
    blocks = (
        _labelled("Verdict", _verdict(result)),
        [
            *_labelled("Load", [_load(result, workload)]),
            *_labelled("Throughput", _throughput(result)),
        ],
        _latencies(result),
        _statements(result),
        _labelled("Errors", [_errors(result)]),
        [
            *_labelled("Receipt", _receipt(result.receipt)),
            *_labelled("Client", _client(result)),
            *_labelled("TCP", _tcp(result)),
        ],
        _labelled("Next", list(dict.fromkeys(_advice(result)))),
    )
    return [line for block in blocks if block for line in ("", *block)][1:]


def _labelled(label: str, texts: Iterable[str]) -> list[str]:
    """The label before the first line only."""
    return [f"{'' if number else label:<{_LABEL}}{text}".rstrip() for number, text in enumerate(texts)]


def _verdict(result: Result) -> list[str]:
    verdict = result.verdict
    lines = [", ".join(verdict.stamps)]
    if verdict.has(Stamp.VOID):
        lines.append(
            "VOID: the session obtained is not the one requested; the figures below do not describe the requested one."
        )
    lines += [f"{finding.stamp}: {finding.because}" for finding in verdict.findings]
    return lines + [f"not judged: {reason}" for reason in verdict.unknown]


def _load(result: Result, workload: str) -> str:
    job, arrivals = result.job, result.job.arrivals
    loop = "closed loop"
    if arrivals is not None:
        shapes = {"poisson": "Poisson", "constant": "evenly spaced", "bursts": f"bursts of {arrivals.burst}"}
        loop = f"open loop, {arrivals.rate_per_s:,.6g} transactions/s due, {shapes[arrivals.shape]}"
    idle = f" and {job.idle_connections:,} idle ones" if job.idle_connections else ""
    warm = f" after {job.warmup_ns / 1e9:.3g} s of warm-up" if job.warmup_ns else ", no warm-up"
    connections = counted(job.connections, "connection", ",")
    return f"{workload}, {connections}{idle}, {loop}, {result.seconds:.4g} s{warm}, seed {job.seed}"


def _throughput(result: Result) -> list[str]:
    done, classes, account = result.finished, result.finished.classes, result.finished.open_loop
    rates = ", ".join(f"{name} {result.per_second(getattr(classes, name)):,.1f}" for name in ("read", "write", "other"))
    lines = [
        f"{result.per_second(done.transactions):,.1f} transactions/s ({done.transactions:,})",
        f"{result.per_second(done.queries):,.1f} queries/s ({rates})",
    ]
    if account is not None:
        lost = f", {account.failed:,} failed" if account.failed else ""
        lines.append(
            f"{account.due:,} requests due: {account.answered:,} answered, {account.unanswered:,} not{lost}; "
            f"at most {account.backlog_max:,} queued"
        )
    return lines


def _latencies(result: Result) -> list[str]:
    if result.open_loop:
        named: dict[str, Latency | None] = {
            "response": result.transaction,
            "service": result.service,
            "lateness": result.lateness,
        }
        note = "response: from when due; service: from the first byte sent; lateness: how late this client sent"
    else:
        named = {"transaction": result.transaction}
        note = "finished transactions; a closed loop sends nothing while it waits, so a stall affects at most one per connection"
    rows = [(label, latency) for label, latency in named.items() if latency is not None]
    return [*_table("Latency", rows), *_labelled("", [note, *_in_flight(result)])]


def _in_flight(result: Result) -> list[str]:
    """Transactions in flight that would have raised the percentiles in a longer window."""
    left, p99 = result.in_flight, result.ended.at(0.99)
    if left is None or not left.count or (p99 is not None and left.max_ns <= p99.low_ns):
        return []
    what = "service" if result.open_loop else "transactions"
    beyond = f"longer than the p99 of {what}" if p99 is not None else "none finished"
    return [
        f"in flight at the end: {left.count:,}, the oldest for {time(left.max_ns)}: {beyond};",
        f"the figures of {what} and statements cover answered requests only",
    ]


def _statements(result: Result) -> list[str]:
    shown = (*result.statements, *result.stages, *([result.connect] if result.connect is not None else []))
    rows = [(each.kind.removeprefix("statement."), each) for each in shown if each.count]
    return _table("Statement", rows) if rows else []


def _table(title: str, rows: Sequence[tuple[str, Latency]]) -> list[str]:
    """Count and percentiles, a row each; `≥` where unanswered requests leave only a bound."""
    lines = [[title, "count", "mean", *(name for name, _ in SHARES), "max"]]
    for label, latency in rows:
        mean = Bound(round(latency.mean_ns), round(latency.mean_ns) if latency.complete else None)
        bounds = [mean if latency.count else None, *(latency.at(share) for _, share in SHARES), latency.at(1)]
        lines.append([label, f"{latency.count:,}", *map(_bound, bounds)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[0] = max(widths[0], _LABEL - 2)
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(text.rjust(size) for text, size in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]


def _bound(at: Bound | None) -> str:
    if at is None:
        return "-"
    return time(at.low_ns) if at.exact else f"≥ {time(at.low_ns)}"


def _errors(result: Result) -> str:
    done = result.finished
    found = [
        f"{count:,} x {code}{f' ({_ERRORS[code]})' if code in _ERRORS else ''}"
        for code, count in sorted(done.errors.items())
    ]
    found += [counted(done.reconnects, "reconnect", ",")] if done.reconnects else []
    return ", ".join(found) or "none"


def _receipt(receipt: Receipt) -> list[str]:
    """The session that was obtained."""
    login = f"login by {receipt.auth_plugin}, statements {receipt.protocol_mode}"
    return [
        f"{receipt.server_version}, connection {receipt.server_connection_id}, {login}",
        _transport(receipt),
        _layers(receipt),
    ]


def _transport(receipt: Receipt) -> str:
    if receipt.address_family == "unix":
        pid = f", server process {receipt.peer_pid}" if receipt.peer_pid else ""
        return f"Unix socket {receipt.peer_address}{pid}"
    facts = [
        f"MSS {receipt.tcp_mss}" if receipt.tcp_mss else "",
        receipt.congestion_control or "",
        {True: "NODELAY", False: "Nagle on", None: ""}[receipt.tcp_nodelay],
    ]
    family = {"inet": "IPv4", "inet6": "IPv6"}[receipt.address_family]
    return f"TCP over {family} to {receipt.peer_address}{_listed(facts)}"


def _layers(receipt: Receipt) -> str:
    tls, compression = "no TLS", "no compression"
    if receipt.tls_version is not None:
        resumed = {True: "resumed", False: "not resumed", None: ""}[receipt.tls_resumed]
        tls = receipt.tls_version + _listed([receipt.tls_cipher or "", receipt.tls_group or "", resumed])
    if receipt.compression is not None:
        level = f" level {receipt.compression_level}" if receipt.compression_level is not None else ""
        compression = f"{receipt.compression}{level} compression"
    return f"{tls}; {compression}"


def _listed(facts: Iterable[str]) -> str:
    kept = ", ".join(filter(None, facts))
    return f" ({kept})" if kept else ""


def _client(result: Result) -> list[str]:
    """What the measurement itself cost."""
    use, done = result.client, result.finished
    if use is None:
        return []
    share = f"{use.busiest_thread_ns / max(done.elapsed_ns, 1):.0%} of the window"
    busy = f"busiest of {use.threads} threads on a CPU {share}" if use.threads != 1 else f"its thread on a CPU {share}"
    each = f"{time(use.cpu_ns / done.queries)} CPU/query; " if done.queries else ""
    return [f"{each}{busy}; {format_size_bytes(done.peak_memory_bytes)}; {result.ready.receipt.driver}"]


def _tcp(result: Result) -> list[str]:
    tcp = result.finished.tcp
    if result.client is None or tcp is None:
        return []
    rtt = f"RTT p50 {time(tcp.rtt_p50_ns)}, max {time(tcp.rtt_max_ns)}"
    return [f"{rtt}; {tcp.retransmits:,} segments retransmitted"]


def _advice(result: Result) -> list[str]:
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


def partial(intervals: Sequence[Interval], how: str = "interrupted") -> list[str]:
    """After an interruption or a failure: the sum of the intervals so far, which is not a result."""
    seconds = sum(each.length_ns for each in intervals) / 1e9
    sums = (
        f"{sum(getattr(each, name) for each in intervals):,} {name}" for name in ("transactions", "queries", "errors")
    )
    until = f"{', '.join(sums)} in the whole intervals until then"
    return _labelled("Partial", [f"{how} after {seconds:.4g} s of the window: not a result", until])


def interval_line(each: Interval, open_loop: bool) -> str:
    """A line while the load runs."""
    seconds = each.length_ns / 1e9 or 1.0
    return (
        f"{(each.start_ns + each.length_ns) / 1e9:>7.4g} s  {each.transactions / seconds:>11,.1f} transactions/s  "
        f"{each.queries / seconds:>11,.1f} queries/s  p50 {time(each.p50_ns):>7}  p99 {time(each.p99_ns):>7}"
        + (f"  queued {each.backlog:,}" if open_loop else "")
        + (f"  errors {each.errors:,}" if each.errors else "")
    )


def histogram(result: Result) -> list[str]:
    """Latencies of transactions in sysbench's buckets."""
    return ["Latencies in ms, in sysbench's buckets", *histogram_lines(result.transaction.all_requests.pairs())]
