"""Whether a load's figures can be trusted: a closed set of stamps, each with the figures behind it. No I/O.

A check that cannot be made is listed in `unknown` and does not count as passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, median, variance

from howfar.contract.messages import Finished, Interval, Pgbench, Sysbench, Workload
from howfar.contract.receipt import ProgramUse
from howfar.findings import fill
from howfar.other_programs import are_busy, busiest, program_name
from howfar.units import counted

THREAD_BUSY_SHARE = 0.85
"""A client thread that is on a CPU for more than this share of the window cannot respond promptly."""
WAIT_SHARE_OF_WORK = 0.10
"""Limit for the time a thread waits for a CPU, as a share of the time in which it had work. The next limit must be exceeded, too."""
WAIT_SHARE_OF_WINDOW = 0.02
"""Limit for the same waiting time per thread, as a share of the window: with very little work, waiting a tenth of it is harmless."""
ERROR_SHARE = 0.01
"""Limit for ignored errors, as a share of queries, and for lost connections, as a share of transactions."""
LATE_NS = 1_000_000
LATE_SHARE = 0.10
"""Limits for the p99 of lateness, in ns and as a share of the median service time; the larger one applies."""
UNANSWERED_SHARE = 0.01
MIN_INTERVALS = 8
DRIFT_SHARE = 0.05
DRIFT_T = 3.0
"""Welch's t between the halves: with 8 intervals or more, chance alone exceeds this in less than 1 % of the runs."""
STALL_SHARE = 0.5
STALL_SIGMAS = 3.0
"""In an open loop, where arrivals are random: a stall is this many standard deviations of a Poisson count below the median."""
IN_FLIGHT_P99_RATIO = 10
IN_FLIGHT_MIN_NS = 100_000_000
STEADINESS = "steadiness"
"""Key of the check for steadiness in `LoadVerdict.unknown`."""


class Stamp(StrEnum):
    VALID = "valid"
    VOID = "void"
    """The session obtained is not the one requested."""
    FAILING = "failing"
    """Many requests failed or found no row, none was answered, or connections were lost."""
    DISTURBED = "disturbed"
    """Other programs used CPUs."""
    CLIENT_LIMITED = "client-limited"
    NOT_STEADY = "not steady"
    LATE = "late"
    OVERLOADED = "overloaded"


@dataclass(frozen=True)
class StampFinding:
    """A stamp, its reason, and advice."""

    stamp: Stamp
    because: str
    advice: str


@dataclass(frozen=True)
class LoadVerdict:
    """All stamps except `valid`; no finding means valid."""

    findings: tuple[StampFinding, ...]
    unknown: Mapping[str, str]
    """Checks that could not be made, with the reasons."""

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        return tuple(finding.stamp for finding in self.findings) or (Stamp.VALID,)

    def has_stamp(self, stamp: Stamp) -> bool:
        return stamp in self.stamps

    @property
    def is_steady(self) -> bool:
        """Whether the load was checked for steadiness, and was steady."""
        return STEADINESS not in self.unknown and not self.has_stamp(Stamp.NOT_STEADY)


ADVICE = {
    Stamp.VOID: "Correct the server or the options, and run again.",
    Stamp.FAILING: "The load did not do its work: check the server's log, and prepare the tables with the sizes that the "
    "options name.",
    Stamp.DISTURBED: "Stop other programs, such as {program}, and run this again.",
    Stamp.OVERLOADED: "The server cannot sustain this rate: percentiles marked ≥ are lower bounds. "
    "Lower --rate, or find the highest with --search.",
    Stamp.CLIENT_LIMITED: "The client is part of the bottleneck. "
    "Give it more or quieter CPUs, or another machine; "
    "--engine-threads helps only if the busiest thread was saturated.",
    Stamp.LATE: "The client could not keep its schedule: use more CPUs or a quieter machine.",
    Stamp.NOT_STEADY: "Warm up longer (--warmup-time), measure longer, "
    "and check the server for checkpoints, purges or other users.",
}


def judge(
    finished: Finished,
    intervals: Sequence[Interval],
    mismatches: Sequence[str] = (),
    *,
    connections: int = 1,
    lateness_p99_ns: int | None = None,
    service_p50_ns: int | None = None,
    burst: int = 1,
    answered_p99_ns: int | None = None,
    in_flight_max_ns: int | None = None,
    workload: Workload | None = None,
    programs: Sequence[ProgramUse] | None = (),
) -> LoadVerdict:
    """Run all checks on a finished load. `answered_p99_ns`: p99 of transactions; in an open loop, of their service time. `programs`:
    other programs that used CPUs meanwhile; None if they cannot be seen."""
    unknown: dict[str, str] = {}
    missing = "" if workload is None else missing_rows(workload, finished)
    reasons = {
        Stamp.VOID: "; ".join(mismatches),
        Stamp.FAILING: "; ".join([*_failure_reasons(finished, connections), *([missing] if missing else [])]),
        Stamp.DISTURBED: _disturbance_reason(programs, unknown),
        Stamp.OVERLOADED: _overload_reason(finished, connections),
        Stamp.CLIENT_LIMITED: " and ".join(_client_limit_reasons(finished, unknown)),
        Stamp.LATE: _lateness_reason(finished, lateness_p99_ns, service_p50_ns, unknown),
        Stamp.NOT_STEADY: " and ".join(
            [
                *_unsteadiness_reasons(intervals, burst if finished.open_loop is not None else None, unknown),
                *_stuck_reasons(in_flight_max_ns, answered_p99_ns),
            ]
        ),
    }
    program = program_name(programs[0].name, programs[0].pid) if programs else ""
    findings = tuple(
        StampFinding(stamp, because, fill(ADVICE[stamp], program=program))
        for stamp, because in reasons.items()
        if because
    )
    return LoadVerdict(findings, unknown)


def _failure_reasons(finished: Finished, connections: int) -> list[str]:
    """Reasons why the load failed: no transactions, ignored errors, lost connections."""
    ignored = {code: count for code, count in finished.errors.items() if code != "disconnect" and count}
    errors, reasons = sum(ignored.values()), []
    lost, closed_at_end = finished.errors.get("disconnect", 0), finished.lost.at_end if finished.lost is not None else 0
    if not finished.transactions:
        reasons.append("no transaction ended in the window")
    if errors > ERROR_SHARE * finished.queries:
        codes = ", ".join(f"{count:,} x {code}" for code, count in sorted(ignored.items()))
        reasons.append(f"{errors:,} errors were ignored, with {finished.queries:,} queries ({codes})")
    if lost > ERROR_SHARE * finished.transactions:
        times = counted(lost, "time", ",")
        reasons.append(f"a connection was lost {times}, with {counted(finished.transactions, 'transaction', ',')}")
    if closed_at_end:
        reasons.append(
            f"{closed_at_end:,} of {counted(connections, 'connection', ',')} were not open when the window ended"
        )
    return reasons


def _disturbance_reason(programs: Sequence[ProgramUse] | None, unknown: dict[str, str]) -> str:
    """Which other program used CPUs; empty if all were quiet."""
    if programs is None:
        unknown[Stamp.DISTURBED] = "other programs on this machine cannot be seen"
    return f"{busiest(programs)} meanwhile" if programs and are_busy(programs) else ""


def _overload_reason(finished: Finished, connections: int) -> str:
    """Why the server was overloaded; empty if it was not. One request in flight per connection at the end is normal."""
    requests = finished.open_loop
    if requests is None or requests.unanswered <= max(UNANSWERED_SHARE * requests.due, connections):
        return ""
    share = 100 * requests.unanswered / requests.due
    return (
        f"{requests.unanswered} of {requests.due} requests due ({share:.1f} %) had no answer when the window ended, "
        f"at most {requests.backlog_max} were queued at once"
    )


def _client_limit_reasons(finished: Finished, unknown: dict[str, str]) -> list[str]:
    client = next((use for use in finished.cpu if use.role == "client"), None)
    if client is None or finished.elapsed_ns <= 0:
        unknown[Stamp.CLIENT_LIMITED] = "the engine's CPU time is unknown"
        return []
    busy_share = client.busiest_thread_ns / finished.elapsed_ns
    needed_ns = client.cpu_ns + client.runnable_wait_ns
    wait_share = client.runnable_wait_ns / needed_ns if needed_ns else 0.0
    workers = max(client.threads - 1, 1)  # one thread only controls the others and sleeps
    window_wait_share = client.runnable_wait_ns / workers / finished.elapsed_ns
    reasons = []
    if busy_share > THREAD_BUSY_SHARE:
        reasons.append(f"the engine's busiest thread was on a CPU for {busy_share:.0%} of the window")
    if wait_share > WAIT_SHARE_OF_WORK and window_wait_share > WAIT_SHARE_OF_WINDOW:
        reasons.append(
            f"the engine waited for a CPU for {wait_share:.0%} of the time in which it had work, "
            f"each thread for {window_wait_share:.1%} of the window"
        )
    return reasons


def _lateness_reason(
    finished: Finished, lateness_p99_ns: int | None, service_p50_ns: int | None, unknown: dict[str, str]
) -> str:
    if finished.open_loop is None:
        return ""
    if lateness_p99_ns is None or service_p50_ns is None:
        unknown[Stamp.LATE] = "the engine reported no lateness"
        return ""
    limit = max(LATE_NS, LATE_SHARE * service_p50_ns)
    if lateness_p99_ns <= limit:
        return ""
    return fill(
        "one request in a hundred was sent {lateness:time} or more after it was due, although a connection was free "
        "(limit here {limit:time})",
        lateness=lateness_p99_ns,
        limit=limit,
    )


def _unsteadiness_reasons(intervals: Sequence[Interval], burst: int | None, unknown: dict[str, str]) -> list[str]:
    """Reasons why a load was not steady: drift and stalls, over complete intervals.

    In an open loop the rate is fixed, so drift is judged by the median response time. `burst`: number of requests due at once; None
    in a closed loop.
    """
    longest = max((interval.length_ns for interval in intervals), default=0)
    complete = [interval for interval in intervals if interval.length_ns >= 0.9 * longest > 0]
    if len(complete) < MIN_INTERVALS:
        unknown[STEADINESS] = (
            f"{counted(len(complete), 'whole interval')}, and {MIN_INTERVALS} are needed "
            "(use a longer --time, or a shorter --interval)"
        )
        return []
    counts = [interval.transactions * longest / interval.length_ns for interval in complete]
    if burst is None:
        return [*_drift_reasons(counts, "throughput"), *_stall_reasons(counts, 0)]
    medians = [float(interval.p50_ns) for interval in complete if interval.transactions]
    return [*_drift_reasons(medians, "the median response time"), *_stall_reasons(counts, burst)]


def _stuck_reasons(in_flight_max_ns: int | None, answered_p99_ns: int | None) -> list[str]:
    """A reason if a transaction in flight when the window ended was very old. Histograms have only finished transactions."""
    if in_flight_max_ns is None or answered_p99_ns is None:
        return []
    if in_flight_max_ns <= max(IN_FLIGHT_P99_RATIO * answered_p99_ns, IN_FLIGHT_MIN_NS):
        return []
    ratio = in_flight_max_ns / max(answered_p99_ns, 1)
    template = "at the end a transaction had been in flight for {age:time}, {times:n} times the p99 of finished ones"
    return [fill(template, age=in_flight_max_ns, times=ratio)]


def _drift_reasons(values: Sequence[float], figure: str) -> list[str]:
    half = len(values) // 2
    first, second = values[:half], values[-half:]
    if half < 2 or fmean(first) <= 0:
        return []
    change = fmean(second) / fmean(first) - 1
    standard_error = math.sqrt(variance(first) / half + variance(second) / half)
    difference = abs(fmean(second) - fmean(first))
    if abs(change) <= DRIFT_SHARE or difference <= DRIFT_T * standard_error:
        return []
    return [f"{figure} changed by {change:+.0%} from the first half to the second"]


def _stall_reasons(counts: Sequence[float], burst: int) -> list[str]:
    """A reason if throughput stalled. `counts`: transactions in each interval. `burst`: 0 in a closed loop, which has no random
    arrivals."""
    typical_count, average_name = median(counts), "median"
    if not typical_count:  # more than half of the intervals have no transaction
        typical_count, average_name = fmean(counts), "mean"
    limit = STALL_SHARE * typical_count
    if burst:
        limit = min(limit, typical_count - max(STALL_SIGMAS * math.sqrt(typical_count), burst))
    stalled = [count for count in counts if count < limit]
    if not stalled:
        return []
    lowest_share = min(stalled) / typical_count
    return [
        f"throughput was below half the {average_name} in {len(stalled)} of {len(counts)} intervals, once {lowest_share:.0%} of it"
    ]


# ---------------------------------------------------------------- missing rows

MIN_ROWS_SHARE = 0.9
"""Rows count as missing if less than this share is found. Even with all rows, the share is slightly below 1: a range may end at the
end of the table, another transaction may just have deleted a row, and an UPDATE may change nothing."""


@dataclass(frozen=True)
class _ExpectedStatements:
    """Statements and rows of one transaction, if every row exists."""

    reads: int = 0
    rows: float = 0.0
    """Rows that the reads return."""
    changes: int = 0
    """Updates and deletes, one row each."""
    inserts: int = 0
    others: int = 0

    @property
    def total(self) -> int:
        return self.reads + self.changes + self.inserts + self.others


def missing_rows(workload: Workload, finished: Finished) -> str:
    """Why rows that the statements name seem to be missing. Empty if at least nine tenths were found, or if that is unknown.

    The engine classifies statements by what came back, as sysbench does. On tables that are smaller than the options state, a load
    would be too fast.
    Workloads that only delete and the user's own statements are not judged: they may find nothing.
    """
    if isinstance(workload, Pgbench):
        expected, size_option = _PGBENCH[workload.kind], f"--scale={workload.scale}"
    elif isinstance(workload, Sysbench) and workload.kind in _SYSBENCH:
        expected, size_option = _SYSBENCH[workload.kind](workload), f"--table-size={workload.table_size}"
    else:
        return ""
    classes = finished.classes
    executed = classes.read + classes.write + classes.other
    if not executed or not expected.total:
        return ""
    transactions = executed / expected.total
    shares = {}
    if expected.rows:
        shares["the rows that its queries name"] = finished.rows / (transactions * expected.rows)
    if expected.changes:
        shares["the rows that its changes name"] = (classes.write / transactions - expected.inserts) / expected.changes
    missing = [
        f"{max(share, 0):.0%} of {description}" for description, share in shares.items() if share < MIN_ROWS_SHARE
    ]
    if not missing:
        return ""
    return f"only {' and '.join(missing)} were found: the tables are smaller than {size_option} says"


_PGBENCH = {
    "select_only": _ExpectedStatements(reads=1, rows=1),
    "simple_update": _ExpectedStatements(reads=1, rows=1, changes=1, inserts=1, others=2),
    "tpcb_like": _ExpectedStatements(reads=1, rows=1, changes=3, inserts=1, others=2),
}


def _expected_reads(workload: Sysbench) -> _ExpectedStatements:
    if not workload.range_selects:
        return _ExpectedStatements(reads=workload.point_selects, rows=workload.point_selects)
    row_ranges = workload.simple_ranges + workload.order_ranges + workload.distinct_ranges
    # A range begins anywhere, so one near the end of the table is cut short.
    range_rows = min(workload.range_size, workload.table_size)
    rows = range_rows - range_rows**2 / (2 * workload.table_size)
    return _ExpectedStatements(
        reads=workload.point_selects + row_ranges + workload.sum_ranges,
        rows=workload.point_selects + row_ranges * rows + workload.sum_ranges,
    )


def _expected_transaction(workload: Sysbench, reads: bool, writes: bool) -> _ExpectedStatements:
    statements = _expected_reads(workload) if reads else _ExpectedStatements()
    if writes:
        changes = workload.index_updates + workload.non_index_updates + workload.delete_inserts
        statements = replace(statements, changes=changes, inserts=workload.delete_inserts)
    return statements if workload.skip_trx else replace(statements, others=2)


_SYSBENCH: dict[str, Callable[[Sysbench], _ExpectedStatements]] = {
    "oltp_point_select": lambda workload: _ExpectedStatements(reads=1, rows=1),
    "oltp_read_only": lambda workload: _expected_transaction(workload, reads=True, writes=False),
    "oltp_read_write": lambda workload: _expected_transaction(workload, reads=True, writes=True),
    "oltp_write_only": lambda workload: _expected_transaction(workload, reads=False, writes=True),
    "oltp_update_index": lambda workload: _ExpectedStatements(changes=workload.index_updates),
    "oltp_update_non_index": lambda workload: _ExpectedStatements(changes=workload.non_index_updates),
}
