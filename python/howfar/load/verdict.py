"""Whether a load's figures can be trusted: a closed set of stamps, each with the figures behind it. Pure.

A check that cannot be made is listed in `unknown`; it does not count as passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, variance

from howfar.engine.messages import Finished, Interval

THREAD_BUSY_SHARE = 0.85
"""A client thread that is busier than this cannot respond promptly."""
WAIT_SHARE = 0.10
"""Runnable but not running, as a share of the time in which there was work …"""
WAIT_OF_WINDOW = 0.02
"""… and, per thread, of the window: a client that hardly works is not limited by a tenth of next to nothing."""
ERROR_SHARE = 0.01
LATE_NS = 1_000_000
LATE_SHARE = 0.10
UNANSWERED_SHARE = 0.01
MIN_INTERVALS = 8
DRIFT_SHARE = 0.05
DRIFT_T = 3.0
"""Welch's t between the halves: chance alone exceeds this in less than 1 % of the runs, from 8 intervals on."""
STALL_SHARE = 0.5
STALL_SIGMAS = 3.0
"""Open loop: so many standard deviations of a Poisson count below the median, because arrivals are random."""
UNDER_WAY_TIMES = 10
UNDER_WAY_NS = 100_000_000


class Stamp(StrEnum):
    VALID = "valid"
    VOID = "void"
    """The session obtained is not the one requested."""
    FAILING = "failing"
    """Many requests failed, or none was answered."""
    CLIENT_LIMITED = "client-limited"
    NOT_STEADY = "not steady"
    LATE = "late"
    OVERLOADED = "overloaded"


@dataclass(frozen=True)
class Finding:
    """A stamp, why, and what to do."""

    stamp: Stamp
    because: str
    advice: str


@dataclass(frozen=True)
class Verdict:
    """All stamps except `valid`; no finding means valid."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
    """Checks that could not be made, with the reasons."""

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        return tuple(finding.stamp for finding in self.findings) or (Stamp.VALID,)

    def has(self, stamp: Stamp) -> bool:
        return stamp in self.stamps


ADVICE = {
    Stamp.VOID: "Correct the server or the options, and run again.",
    Stamp.FAILING: "The load did not do its work: check the server's errors, prepare the tables again, "
    "and ignore fewer errors (--mysql-ignore-errors).",
    Stamp.OVERLOADED: "The server cannot sustain this rate: percentiles marked ≥ are lower bounds. "
    "Lower --rate, or find the highest with --search.",
    Stamp.CLIENT_LIMITED: "The client is part of the bottleneck. "
    "Give it more or quieter CPUs (--engine-threads), or another machine.",
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
    under_way_max_ns: int | None = None,
) -> Verdict:
    """Every check on one finished load. `answered_p99_ns`: of transactions; in an open loop, of their service time."""
    unknown: list[str] = []
    reasons = {
        Stamp.VOID: "; ".join(mismatches),
        Stamp.FAILING: "; ".join(_failing(finished)),
        Stamp.OVERLOADED: _overloaded(finished, connections),
        Stamp.CLIENT_LIMITED: " and ".join(_client_limited(finished, unknown)),
        Stamp.LATE: _late(finished, lateness_p99_ns, service_p50_ns, unknown),
        Stamp.NOT_STEADY: " and ".join(
            [
                *_uneven(intervals, burst if finished.open_loop is not None else None, unknown),
                *_hanging(under_way_max_ns, answered_p99_ns),
            ]
        ),
    }
    findings = tuple(Finding(stamp, because, ADVICE[stamp]) for stamp, because in reasons.items() if because)
    return Verdict(findings, tuple(unknown))


def _failing(finished: Finished) -> list[str]:
    """Ignored errors; lost connections are in the report, not here."""
    ignored = {code: count for code, count in finished.errors.items() if code != "disconnect" and count}
    errors, reasons = sum(ignored.values()), []
    if not finished.transactions:
        reasons.append("no transaction ended in the window")
    if errors > ERROR_SHARE * finished.queries:
        codes = ", ".join(f"{count:,} x {code}" for code, count in sorted(ignored.items()))
        reasons.append(f"{errors:,} errors were ignored, with {finished.queries:,} queries ({codes})")
    return reasons


def _overloaded(finished: Finished, connections: int) -> str:
    """Each connection may have one request in flight when the window ends; only more than those count."""
    account = finished.open_loop
    if account is None or account.unanswered <= max(UNANSWERED_SHARE * account.due, connections):
        return ""
    share = 100 * account.unanswered / account.due
    return (
        f"{account.unanswered} of {account.due} requests due ({share:.1f} %) had no answer when the window ended, "
        f"at most {account.backlog_max} were queued at once"
    )


def _client_limited(finished: Finished, unknown: list[str]) -> list[str]:
    client = next((use for use in finished.cpu if use.role == "client"), None)
    if client is None or finished.elapsed_ns <= 0:
        unknown.append("client-limited: the engine's CPU time is unknown")
        return []
    busy = client.busiest_thread_ns / finished.elapsed_ns
    wanted = client.cpu_ns + client.runnable_wait_ns
    waited = client.runnable_wait_ns / wanted if wanted else 0.0
    of_window = client.runnable_wait_ns / max(client.threads, 1) / finished.elapsed_ns
    reasons = []
    if busy > THREAD_BUSY_SHARE:
        reasons.append(f"the engine's busiest thread was on a CPU for {busy:.0%} of the window")
    if waited > WAIT_SHARE and of_window > WAIT_OF_WINDOW:
        reasons.append(
            f"the engine waited for a CPU for {waited:.0%} of the time in which it had work, "
            f"each thread for {of_window:.1%} of the window"
        )
    return reasons


def _late(finished: Finished, lateness_p99_ns: int | None, service_p50_ns: int | None, unknown: list[str]) -> str:
    if finished.open_loop is None:
        return ""
    if lateness_p99_ns is None or service_p50_ns is None:
        unknown.append("late: the engine reported no lateness")
        return ""
    limit = max(LATE_NS, LATE_SHARE * service_p50_ns)
    if lateness_p99_ns <= limit:
        return ""
    return (
        f"one request in a hundred was sent {lateness_p99_ns / 1e6:.3g} ms or more after it was due, "
        f"although a connection was free (limit here {limit / 1e6:.3g} ms)"
    )


def _uneven(intervals: Sequence[Interval], burst: int | None, unknown: list[str]) -> list[str]:
    """Drift and stalls, over whole intervals. In an open loop the rate is given, so drift is that of the median response time;
    `burst` is the number of requests due at once."""
    longest = max((each.length_ns for each in intervals), default=0)
    whole = [each for each in intervals if each.length_ns >= 0.9 * longest > 0]
    if len(whole) < MIN_INTERVALS:
        unknown.append(
            f"steadiness: {len(whole)} whole intervals, and {MIN_INTERVALS} are needed (use a longer --time, or a shorter --interval)"
        )
        return []
    counts = [each.transactions * longest / each.length_ns for each in whole]
    if burst is None:
        return [*_drift(counts, "throughput"), *_stalls(counts, 0)]
    medians = [float(each.p50_ns) for each in whole if each.transactions]
    return [*_drift(medians, "the median response time"), *_stalls(counts, burst)]


def _hanging(under_way_max_ns: int | None, answered_p99_ns: int | None) -> list[str]:
    """Transactions still in flight when the window ended, which no histogram of finished ones has."""
    if under_way_max_ns is None or answered_p99_ns is None:
        return []
    if under_way_max_ns <= max(UNDER_WAY_TIMES * answered_p99_ns, UNDER_WAY_NS):
        return []
    times = under_way_max_ns / max(answered_p99_ns, 1)
    age = f"{under_way_max_ns / 1e9:.3g} s, {times:,.0f} times the p99 of finished ones"
    return [f"at the end a transaction had been in flight for {age}"]


def _drift(values: Sequence[float], what: str) -> list[str]:
    half = len(values) // 2
    first, second = values[:half], values[-half:]
    if half < 2 or fmean(first) <= 0:
        return []
    change = fmean(second) / fmean(first) - 1
    spread = math.sqrt(variance(first) / half + variance(second) / half)
    apart = abs(fmean(second) - fmean(first))
    if abs(change) <= DRIFT_SHARE or apart <= DRIFT_T * spread:
        return []
    return [f"{what} changed by {change:+.0%} from the first half to the second"]


def _stalls(counts: Sequence[float], burst: int) -> list[str]:
    """Transactions in each interval. `burst` 0: a closed loop, in which nothing falls due at random."""
    middle, name = median(counts), "median"
    if not middle:  # nothing ended in more than half of them
        middle, name = fmean(counts), "mean"
    limit = STALL_SHARE * middle
    if burst:
        limit = min(limit, middle - max(STALL_SIGMAS * math.sqrt(middle), burst))
    slow = [count for count in counts if count < limit]
    if not slow:
        return []
    least = min(slow) / middle
    return [f"throughput was below half the {name} in {len(slow)} of {len(counts)} intervals, once {least:.0%} of it"]
