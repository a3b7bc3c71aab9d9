"""Single trials as a report draws them, from what the run file has of them. Nothing is estimated here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from howfar.experiments.replication.findings import CrashPoint, FallbackSeries, LagSeries
from howfar.store.records import CrashRecord, FallbackRecord, FallbackSample, LagRecord, Trial, TrialStatus

Look = TypeVar("Look", LagRecord, FallbackSample)

NS_PER_S = 1e9
NS_PER_MS = 1e6

MOST_SLICES = 400
"""More points are not seen, and would make a page large: slices are put together, and of looks the one farthest behind is kept."""


def crash_points(trials: Sequence[Trial]) -> tuple[CrashPoint, ...]:
    """Every crash that counts, of one arm."""
    return tuple(
        _crash_point(trial.number, trial.fault)
        for trial in trials
        if trial.status is TrialStatus.OK and isinstance(trial.fault, CrashRecord)
    )


def _crash_point(number: int, crash: CrashRecord) -> CrashPoint:
    first = None if crash.first_lost_ns is None else (crash.first_lost_ns - crash.fault_ns) / NS_PER_MS
    return CrashPoint(
        trial=number,
        acknowledged=crash.acknowledged,
        lost=crash.lost,
        first_lost_ms=first,
        dead_ms=(crash.dead_ns - crash.fault_ns) / NS_PER_MS,
        promotion_ms=crash.promotion_ns / NS_PER_MS,
        commits_per_s=crash.commits_per_s,
        unknown=crash.unknown,
        applied_unknown=crash.applied_unknown,
        seen_early=crash.seen_early,
        phantoms=crash.phantoms,
        behind_before=crash.behind_before,
        unapplied=crash.unapplied,
    )


def lag_series(trials: Sequence[Trial], threads: int) -> LagSeries | None:
    """Of the last good trial of one arm: its replica that was farthest behind. None: nobody looked."""
    looked = [t for t in trials if t.status is TrialStatus.OK and t.window is not None and t.window.lag]
    if not looked:
        return None
    last = looked[-1]
    assert last.window is not None, "only trials with a window were kept"
    worst = max(last.window.lag, key=lambda look: look.behind).replica
    looks = _farthest([look for look in last.window.lag if look.replica == worst])
    return LagSeries(
        trial=last.number,
        threads=threads,
        replica=worst,
        at_s=tuple(look.at_ns / NS_PER_S for look in looks),
        behind=tuple(look.behind for look in looks),
        heartbeat_ms=tuple(None if look.heartbeat_ns is None else look.heartbeat_ns / NS_PER_MS for look in looks),
    )


def fallback_series(trial: Trial) -> FallbackSeries | None:
    """None: this trial has no such story."""
    story = trial.fault
    if not isinstance(story, FallbackRecord):
        return None
    slice_s, rates = _slices(story.commits)
    looks = _farthest(story.samples)
    return FallbackSeries(
        trial=trial.number,
        slice_s=slice_s,
        commits_per_s=rates,
        left_s=story.left_ns / NS_PER_S,
        returned_s=story.returned_ns / NS_PER_S,
        reconnected_s=_seconds(story.reconnected_ns),
        fell_s=_seconds(story.fell_ns),
        back_s=_seconds(story.back_ns),
        stall_s=story.stall_ns / NS_PER_S,
        unprotected=story.unprotected,
        at_s=tuple(look.at_ns / NS_PER_S for look in looks),
        semi_sync=tuple(look.semi_sync for look in looks),
        behind=tuple(look.behind for look in looks),
    )


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


def _farthest(looks: Sequence[Look]) -> list[Look]:
    """Of neighbours the one that was farthest behind, so that no peak is lost."""
    together = max(-(-len(looks) // MOST_SLICES), 1)
    groups = (looks[at : at + together] for at in range(0, len(looks), together))
    return [max(group, key=lambda look: look.behind or 0) for group in groups]


def _slices(commits: Sequence[tuple[int, int]]) -> tuple[float, tuple[float, ...]]:
    """Length of a slice in seconds, and commits a second in each from the load's beginning on. A slice that nothing is said of had
    none. The last one is left out: the load ended somewhere within it."""
    starts = [start for start, _ in commits]
    step = min((later - earlier for earlier, later in pairwise(starts)), default=0)
    if step <= 0:
        return 0.0, ()
    counts = [0] * (starts[-1] // step)
    for start, count in commits[:-1]:
        counts[start // step] += count
    together = -(-len(counts) // MOST_SLICES)
    sums = [sum(counts[at : at + together]) for at in range(0, len(counts) - len(counts) % together, together)]
    length = step * together / NS_PER_S
    return length, tuple(total / length for total in sums)
