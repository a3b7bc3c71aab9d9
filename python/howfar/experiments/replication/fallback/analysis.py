"""A semi-synchronous primary whose replica leaves and returns, with the server's own timeout: the stall, the asynchronous phase, the
return.

Until its replica has caught up, commits of an asynchronous primary are on the primary alone. After that the replica has each commit
about half a round trip later. Such commits were acknowledged too early, but a crash would hardly have lost them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from howfar.experiments.replication.arms import MAX_POINTS, thin_out_samples
from howfar.experiments.replication.factors import REPLICA_RTT_NS, REPLICAS, REPLICATION
from howfar.experiments.replication.records import FallbackRecord
from howfar.plan.factors import THREADS
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import mean_of_counts
from howfar.store.records import Arm, ArmRole, Run, Trial, TrialStatus

POLL_NS = 100_000_000
"""Interval at which the primary is queried, and thus the resolution of all times."""


class FallbackSeries(Part):
    """One trial as data for a chart. Times are in seconds since the load began."""

    trial: int
    slice_s: float
    commits_per_s: tuple[float, ...]
    """Commits acknowledged to clients per second, slice by slice."""
    left_s: float
    returned_s: float
    reconnected_s: float | None
    fell_s: float | None
    back_s: float | None
    stall_s: float
    unprotected: int
    at_s: tuple[float, ...]
    """Times at which the primary was queried."""
    semi_sync: tuple[bool, ...]
    behind: tuple[int | None, ...]
    """Transactions that the replica lacked. None: it could not be queried."""


class FallbackStory(Part):
    """The fallbacks of one mode: means over its trials, and one trial to draw. If trials are `censored`, times and counts are means of
    lower bounds, without an interval."""

    arm: str
    mode: str
    threads: int
    trials: int
    timeout_ms: int | None
    """How long a commit of the primary waits for a replica at most. None: without limit."""
    replicas: int = 1
    away_ms: float | None = None
    """Time for which the replica's link was cut, minimum over trials. None: older files."""
    stall_ms: Estimate
    degraded_ms: Estimate | None
    """Time from when the primary was first seen asynchronous to the end of that phase. None: it never fell back."""
    after_return_ms: Estimate | None
    """How long after the return of the link the primary was still asynchronous."""
    held_off: int = 0
    """Trials in which the primary stayed asynchronous for as long as commits continued, and returned only when the load had ended."""
    censored: int = 0
    """Trials counted in `held_off`, and trials in which the primary never returned. In them the plan, not the server, determined the
    length of the phase."""
    unprotected: Estimate
    """Commits acknowledged to clients without an acknowledgement from a replica. Most of them may have reached one within
    milliseconds."""
    share_unprotected: float
    """`unprotected` as a share of all commits acknowledged to clients in these trials, including those before and after the phase."""
    caught_up_ms: Estimate | None = None
    """How long after the return of the link the replica had caught up. None: not in every trial."""
    unprotected_alone: Estimate | None = None
    """The part of `unprotected` from before the replica had caught up: on the primary alone, or in transfer. None: it never fell
    back."""
    most_behind: int | None = None
    """Maximum number of transactions that the replica lacked, over all trials. None: it could not be queried."""
    drawn: int
    """Number of the trial to draw."""
    log_lines: tuple[str, ...]
    series: FallbackSeries | None = None
    """Data of the trial to draw."""

    @property
    def stated_unprotected(self) -> float:
        """`unprotected` as a sentence states it: where each trial gives only a lower bound, the lower limit of the interval."""
        low = self.unprotected.low if self.lasts_to_end_of_load else None
        return self.unprotected.value if low is None else max(low, 0.0)

    @property
    def waits_for_ever(self) -> bool:
        return self.timeout_ms is None

    @property
    def stood_still(self) -> bool:
        """Whether no commit was acknowledged for most of the time in which the replica was away."""
        return self.away_ms is not None and self.stall_ms.value > self.away_ms / 2

    @property
    def goes_on(self) -> bool:
        """Whether commits went on without the replica, as far as is known."""
        return self.away_ms is not None and not self.stood_still

    @property
    def lasts_to_end_of_load(self) -> bool:
        """Whether a trial was asynchronous until the end of its load, so that only a lower bound of that time is known."""
        series = self.series
        if self.censored or self.held_off:
            return True
        if series is None or series.fell_s is None:
            return False
        return series.back_s is None or series.back_s >= (len(series.commits_per_s) - 1) * series.slice_s


def fallback_stories(run: Run) -> tuple[FallbackStory, ...]:
    """The fallbacks of each arm, in the order of the plan."""
    stories_or_none = [_tell_story(run, arm) for arm in run.info.arms if arm.role is not ArmRole.DUPLICATE]
    return tuple(story for story in stories_or_none if story is not None)


def _tell_story(run: Run, arm: Arm) -> FallbackStory | None:
    trials = [trial for trial in run.trials if trial.arm == arm.name and trial.status is TrialStatus.OK]
    trials_with_records = [(trial, trial.fault) for trial in trials if isinstance(trial.fault, FallbackRecord)]
    if not trials_with_records:
        return None
    records = [record for _, record in trials_with_records]
    fallbacks = [record for record in records if record.fell_ns is not None]
    drawn, record = _median_trial(trials_with_records)
    censored = sum(_is_censored(record) for record in fallbacks)
    rtt_ns = REPLICA_RTT_NS.level_in(arm.factors)
    returns = [describe_return(record, rtt_ns) for record in fallbacks]
    catch_up_ns = [
        replica_return.caught_up_ns - record.returned_ns
        for replica_return, record in zip(returns, fallbacks, strict=True)
        if replica_return.caught_up_ns
    ]
    acknowledged = sum(record.acknowledged for record in records)
    return FallbackStory(
        arm=arm.name,
        mode=(REPLICATION.level_or_none(arm.factors) or ""),
        threads=THREADS.level_in(arm.factors),
        trials=len(records),
        timeout_ms=record.timeout_ms,
        replicas=REPLICAS.level_in(arm.factors),
        away_ms=min(record.returned_ns - record.left_ns for record in records) / 1e6,
        stall_ms=mean_of_counts([record.stall_ns / 1e6 for record in records]),
        degraded_ms=_mean_ms([_asynchronous_end_ns(record) - (record.fell_ns or 0) for record in fallbacks], censored),
        after_return_ms=_mean_ms(
            [max(0, _asynchronous_end_ns(record) - record.returned_ns) for record in fallbacks], censored
        ),
        held_off=sum(_is_held_off_by_load(record) for record in fallbacks),
        censored=censored,
        unprotected=_mean_unless_censored([record.unprotected for record in records], censored),
        caught_up_ms=_mean_ms(catch_up_ns) if len(catch_up_ns) == len(fallbacks) else None,
        unprotected_alone=_mean_unless_censored(
            [replica_return.alone for replica_return in returns], len(fallbacks) - len(catch_up_ns)
        )
        if returns
        else None,
        most_behind=max(
            (replica_return.most_behind for replica_return in returns if replica_return.most_behind is not None),
            default=None,
        ),
        share_unprotected=sum(record.unprotected for record in records) / acknowledged if acknowledged else 0.0,
        drawn=drawn.number,
        log_lines=record.log_lines,
        series=fallback_series(drawn),
    )


def _mean_ms(times_ns: Sequence[int], censored: int = 0) -> Estimate | None:
    return _mean_unless_censored([ns / 1e6 for ns in times_ns], censored) if times_ns else None


def _mean_unless_censored(values: Sequence[float], censored: int) -> Estimate:
    """Mean of the values. If some values are `censored`, it is a mean of lower bounds, without an interval."""
    mean = mean_of_counts(values)
    return Estimate(value=mean.value, low=None, high=None) if censored else mean


def _is_held_off_by_load(record: FallbackRecord) -> bool:
    """Whether the primary returned only when the load had ended. Until then it gets only acknowledgements of older commits."""
    ended_ns = record.load_ended_ns
    return ended_ns is not None and (record.back_ns is None or record.back_ns > ended_ns)


def _is_censored(record: FallbackRecord) -> bool:
    """Whether the end of the asynchronous phase under load was not observed."""
    return record.back_ns is None or _is_held_off_by_load(record)


def _asynchronous_end_ns(record: FallbackRecord) -> int:
    """End of the asynchronous phase, at most the end of the load; if the primary never returned, the last query."""
    if _is_held_off_by_load(record) and record.load_ended_ns is not None:
        return record.load_ended_ns
    if record.back_ns is not None:
        return record.back_ns
    return record.samples[-1].at_ns if record.samples else record.returned_ns


def _median_trial(trials_with_records: Sequence[tuple[Trial, FallbackRecord]]) -> tuple[Trial, FallbackRecord]:
    """The trial whose asynchronous phase has the median length."""
    ranked = sorted(
        trials_with_records,
        key=lambda pair: _asynchronous_end_ns(pair[1]) - (pair[1].fell_ns or _asynchronous_end_ns(pair[1])),
    )
    return ranked[len(ranked) // 2]


# ---------------------------------------------------------------- when the replica had caught up


@dataclass(frozen=True)
class ReplicaReturn:
    """When a replica had caught up after its return, and what it lacked before."""

    caught_up_ns: int | None
    """When the replica was first seen to lack no more than was acknowledged in the last round trip and `POLL_NS`. None: never."""
    alone: int
    """Unprotected commits before the replica had caught up."""
    most_behind: int | None
    """Maximum number of transactions that the replica lacked. None: it could not be queried."""


def describe_return(record: FallbackRecord, rtt_ns: int) -> ReplicaReturn:
    caught_up_ns = _caught_up_ns(record, rtt_ns)
    behind = [sample.behind for sample in record.samples if sample.behind is not None and not sample.semi_sync]
    return ReplicaReturn(
        caught_up_ns, record.unprotected - _unprotected_after(record, caught_up_ns), max(behind, default=None)
    )


def _caught_up_ns(record: FallbackRecord, rtt_ns: int) -> int | None:
    if record.fell_ns is None:
        return None
    for sample in record.samples:
        if sample.at_ns < max(record.returned_ns, record.fell_ns) or sample.behind is None:
            continue
        if sample.semi_sync or sample.behind <= _commits_between(record, sample.at_ns - rtt_ns - POLL_NS, sample.at_ns):
            return sample.at_ns
    return None


def _unprotected_after(record: FallbackRecord, caught_up_ns: int | None) -> int:
    """Unprotected commits after the replica had caught up, in complete slices of time."""
    if caught_up_ns is None:
        return 0
    back_ns = record.samples[-1].at_ns if record.back_ns is None else record.back_ns
    slice_ns = _slice_length_ns(record)
    after_catch_up = sum(
        count for start, count in record.commits if caught_up_ns <= start and start + slice_ns <= back_ns
    )
    return min(after_catch_up, record.unprotected)


def _commits_between(record: FallbackRecord, begin_ns: int, end_ns: int) -> int:
    """Commits acknowledged in all slices of time that overlap this interval."""
    slice_ns = _slice_length_ns(record)
    return sum(count for start, count in record.commits if start < end_ns and start + slice_ns > begin_ns)


def _slice_length_ns(record: FallbackRecord) -> int:
    starts = [start for start, _ in record.commits]
    return min((later - earlier for earlier, later in pairwise(starts)), default=POLL_NS)


# ---------------------------------------------------------------- one trial, drawn


def fallback_series(trial: Trial) -> FallbackSeries | None:
    """The series of a trial. None: it has no fallback."""
    record = trial.fault
    if not isinstance(record, FallbackRecord):
        return None
    slice_s, rates = _commit_rates(record.commits)
    samples = thin_out_samples(record.samples)
    return FallbackSeries(
        trial=trial.number,
        slice_s=slice_s,
        commits_per_s=rates,
        left_s=record.left_ns / 1e9,
        returned_s=record.returned_ns / 1e9,
        reconnected_s=_to_seconds(record.reconnected_ns),
        fell_s=_to_seconds(record.fell_ns),
        back_s=_to_seconds(record.back_ns),
        stall_s=record.stall_ns / 1e9,
        unprotected=record.unprotected,
        at_s=tuple(sample.at_ns / 1e9 for sample in samples),
        semi_sync=tuple(sample.semi_sync for sample in samples),
        behind=tuple(sample.behind for sample in samples),
    )


def _to_seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _commit_rates(commits: Sequence[tuple[int, int]]) -> tuple[float, tuple[float, ...]]:
    """Seconds per point, and commits per second at each point since the load began. A slice without an entry had no commits. The last
    slice, in which the load ended, is left out. If there are more than `MAX_POINTS` slices, a point averages several."""
    starts = [start for start, _ in commits]
    slice_ns = min((later - earlier for earlier, later in pairwise(starts)), default=0)
    if slice_ns <= 0:
        return 0.0, ()
    counts = [0] * (starts[-1] // slice_ns)
    for start, count in commits[:-1]:
        counts[start // slice_ns] += count
    slices_per_point = -(-len(counts) // MAX_POINTS)
    sums = [
        sum(counts[first : first + slices_per_point])
        for first in range(0, len(counts) - len(counts) % slices_per_point, slices_per_point)
    ]
    point_s = slice_ns * slices_per_point / 1e9
    return point_s, tuple(total / point_s for total in sums)
