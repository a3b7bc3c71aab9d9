"""Made-up trials in which something was broken on purpose, or a replica lagged: records, without a server."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from howfar.store.records import (
    CrashRecord,
    FallbackRecord,
    FallbackSample,
    LagRecord,
    Trial,
    TrialStatus,
    Window,
)

MS = 1_000_000
S = 1_000_000_000


def _trial(number: int, arm: str, **more: Any) -> Trial:
    start = number * 30 * S
    return Trial(
        number=number,
        block=number,
        position=0,
        arm=arm,
        status=TrialStatus.OK,
        started_unix_ns=start,
        ended_unix_ns=start + 20 * S,
        **more,
    )


def crash_trial(number: int, lost: int, arm: str = "asynchronous", **more: Any) -> Trial:
    """The link is cut 3 s after the load began, the primary dies 500 ms later."""
    fields: dict[str, Any] = {
        "fault": "cut",
        "fault_ns": 3 * S,
        "dead_ns": 3 * S + 500 * MS,
        "watched_ns": 2 * MS,
        "commits_per_s": 6000.0,
        "acknowledged": 21_000,
        "lost": lost,
        "first_lost_ns": 3 * S - 45 * MS if lost else None,
        "refused": 0,
        "unknown": 16,
        "applied_unknown": 0,
        "applied_refused": 0,
        "seen": 900,
        "seen_early": 0,
        "seen_early_median_ns": None,
        "phantoms": 0,
        "behind_before": 260,
        "heartbeat_before_ns": 60 * MS,
        "replica_rtt_ns": 85 * MS,
        "promoted": "replica1",
        "promotion_ns": 80 * MS,
        "unapplied": 3,
        "lost_keys": tuple(range(min(lost, 20))),
    }
    return _trial(number, arm, fault=CrashRecord(**fields | more))


def fallback_trial(
    slices: int = 600, slice_ns: int = 50 * MS, a_slice: int = 10, silent: Container[int] = range(60, 260)
) -> Trial:
    """Semi-synchronous for 3 s, no commit while `silent` slices last, then asynchronous, and semi-synchronous again near the end."""
    every = [index for index in range(slices) if index not in silent]
    length = slices * slice_ns
    samples = tuple(
        FallbackSample(
            at_ns=at,
            semi_sync=at < length // 3 or at > length * 9 // 10,
            clients=int(at < length // 3 or at > length * 2 // 3),
            waiting=16,
            acknowledged=at // MS,
            unacknowledged=0,
            behind=None if length // 3 < at < length * 2 // 3 else 40,
        )
        for at in range(0, length, 100 * MS)
    )
    record = FallbackRecord(
        timeout_ms=10_000,
        left_ns=3 * S,
        returned_ns=length * 2 // 3,
        reconnected_ns=length * 2 // 3 + S,
        stall_ns=10 * S,
        longest_commit_ns=10 * S + 20 * MS,
        fell_ns=length // 3,
        back_ns=length * 9 // 10,
        unprotected=1234,
        unacknowledged=1230,
        acknowledged=a_slice * len(every),
        samples=samples,
        commits=tuple((index * slice_ns, a_slice) for index in every),
        log_lines=(
            "Timeout waiting for reply of binlog (file: b.000001, pos: 4711), semi-sync up to file , position 0.",
        ),
    )
    return _trial(1, "semi-sync AFTER_SYNC", fault=record)


def lagging_trial(looks: int, peak_at: int = 0, peak: int = 500) -> Trial:
    found = [
        LagRecord(
            at_ns=index * 100 * MS, replica="replica1", behind=peak if index == peak_at else 12, heartbeat_ns=None
        )
        for index in range(looks)
    ]
    return _trial(1, "asynchronous", window=Window(length_ns=looks * 100 * MS, interface="lo", lag=tuple(found)))
