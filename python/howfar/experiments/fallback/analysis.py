"""A semi-synchronous primary whose replica leaves and returns, under the server's own timeout: the stall, the asynchronous phase, the
return.

Until its replica has caught up, commits of an asynchronous primary are on the primary alone. After that the replica has each commit
about half a round trip later: those were acknowledged too early, but a crash would hardly have lost them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from howfar.analysis.advice import capital
from howfar.experiments.replication.arms import MOST_POINTS, farthest, rate, with_mode
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import in_brackets, mean_of_counts
from howfar.store.records import Arm, ArmRole, FallbackRecord, Run, Trial, TrialStatus

LOOK_NS = 100_000_000
"""Interval at which the primary is queried, and thus the resolution of all moments."""


class FallbackSeries(Part):
    """One trial as a chart's data. Times in seconds since the load began."""

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
    """One mode: means over its trials, and one trial to draw. Where trials are `censored` its times and counts are means of lower
    bounds, without an interval."""

    arm: str
    mode: str
    threads: int
    trials: int
    timeout_ms: int | None
    """Timeout of the primary's wait for its replica. None: the primary has none."""
    replicas: int = 1
    away_ms: float | None = None
    """Time for which the replica's link was cut, minimum over trials. None: older files."""
    stall_ms: Estimate
    degraded_ms: Estimate | None
    """Time from when the primary was first seen asynchronous to the end of that phase. None: it never fell back."""
    after_return_ms: Estimate | None
    """How long after the return of the link the primary was still asynchronous."""
    held_off: int = 0
    """Trials in which the primary was asynchronous for as long as commits continued: only the end of the load let it return."""
    censored: int = 0
    """These trials, and trials in which it never returned: the plan, not the server, determined how long the phase lasted."""
    unprotected: Estimate
    """Commits acknowledged to clients but by no replica. Most of them may have reached one within milliseconds."""
    share_unprotected: float
    """`unprotected` as a share of all commits acknowledged to clients in these trials, those before and after included."""
    caught_up_ms: Estimate | None = None
    """How long after the return of the link the replica had caught up. None: not in every trial."""
    unprotected_alone: Estimate | None = None
    """Commits of `unprotected` until the replica had caught up: on the primary alone, or being fetched. None: it never fell back."""
    most_behind: int | None = None
    """Maximum number of transactions that the replica lacked, over all trials. None: it could not be queried."""
    drawn: int
    """Number of the trial to draw."""
    log_lines: tuple[str, ...]
    series: FallbackSeries | None = None
    """Data of the trial to draw."""

    @property
    def waits_for_ever(self) -> bool:
        return self.timeout_ms is None

    @property
    def stood_still(self) -> bool:
        """Whether no commit was acknowledged for most of the time in which the replica was away."""
        return self.away_ms is not None and self.stall_ms.value > self.away_ms / 2


def fallback_stories(run: Run) -> tuple[FallbackStory, ...]:
    """Stories by arm, in the order of the plan."""
    found = [_story(run, arm) for arm in run.info.arms if arm.role is not ArmRole.DUPLICATE]
    return tuple(story for story in found if story is not None)


def _story(run: Run, arm: Arm) -> FallbackStory | None:
    trials = [trial for trial in run.trials if trial.arm == arm.name and trial.status is TrialStatus.OK]
    pairs = [(trial, trial.fault) for trial in trials if isinstance(trial.fault, FallbackRecord)]
    if not pairs:
        return None
    records = [record for _, record in pairs]
    fell = [record for record in records if record.fell_ns is not None]
    drawn, record = _typical(pairs)
    unseen = sum(_censored(record) for record in fell)
    rtt_ns = int(arm.factors.get("replica_rtt_ns", 0))
    came = [returned(record, rtt_ns) for record in fell]
    caught = [one.caught_up_ns - record.returned_ns for one, record in zip(came, fell, strict=True) if one.caught_up_ns]
    acknowledged = sum(record.acknowledged for record in records)
    return FallbackStory(
        arm=arm.name,
        mode=str(arm.factors.get("replication", "")),
        threads=int(arm.factors.get("threads", 1)),
        trials=len(records),
        timeout_ms=record.timeout_ms,
        replicas=int(arm.factors.get("replicas", 1)),
        away_ms=min(record.returned_ns - record.left_ns for record in records) / 1e6,
        stall_ms=mean_of_counts([record.stall_ns / 1e6 for record in records]),
        degraded_ms=_ms([_end_ns(record) - (record.fell_ns or 0) for record in fell], unseen),
        after_return_ms=_ms([max(0, _end_ns(record) - record.returned_ns) for record in fell], unseen),
        held_off=sum(_held_off(record) for record in fell),
        censored=unseen,
        unprotected=_mean([record.unprotected for record in records], unseen),
        caught_up_ms=_ms(caught) if len(caught) == len(fell) else None,
        unprotected_alone=_mean([one.alone for one in came], len(fell) - len(caught)) if came else None,
        most_behind=max((one.most_behind for one in came if one.most_behind is not None), default=None),
        share_unprotected=sum(record.unprotected for record in records) / acknowledged if acknowledged else 0.0,
        drawn=drawn.number,
        log_lines=record.log_lines,
        series=fallback_series(drawn),
    )


def _ms(times_ns: Sequence[int], unseen: int = 0) -> Estimate | None:
    return _mean([ns / 1e6 for ns in times_ns], unseen) if times_ns else None


def _mean(values: Sequence[float], unseen: int) -> Estimate:
    """Mean of the values. If the end of some was not seen, it is a mean of lower bounds, without an interval."""
    found = mean_of_counts(values)
    return Estimate(value=found.value, low=None, high=None) if unseen else found


def _held_off(record: FallbackRecord) -> bool:
    """Whether only the end of the load let the primary return: until then, only acknowledgements of older commits arrive."""
    ended_ns = record.load_ended_ns
    return ended_ns is not None and (record.back_ns is None or record.back_ns > ended_ns)


def _censored(record: FallbackRecord) -> bool:
    """Whether the primary fell back and the end of the asynchronous phase under load was not seen."""
    return record.back_ns is None or _held_off(record)


def _end_ns(record: FallbackRecord) -> int:
    """End of the asynchronous phase under load; if the primary never returned, the end of the load or the last query."""
    if _held_off(record) and record.load_ended_ns is not None:
        return record.load_ended_ns
    if record.back_ns is not None:
        return record.back_ns
    return record.samples[-1].at_ns if record.samples else record.returned_ns


def _typical(pairs: Sequence[tuple[Trial, FallbackRecord]]) -> tuple[Trial, FallbackRecord]:
    """The median trial by the length of its asynchronous phase."""
    ranked = sorted(pairs, key=lambda pair: _end_ns(pair[1]) - (pair[1].fell_ns or _end_ns(pair[1])))
    return ranked[len(ranked) // 2]


# ---------------------------------------------------------------- when the replica had caught up


@dataclass(frozen=True)
class Returned:
    """How the replica of one fallback came back."""

    caught_up_ns: int | None
    """When the replica was first seen to lack no more than was acknowledged in the last round trip and `LOOK_NS`. None: never."""
    alone: int
    """Unprotected commits until then."""
    most_behind: int | None
    """Maximum number of transactions that it lacked. None: it could not be queried."""


def returned(record: FallbackRecord, rtt_ns: int) -> Returned:
    caught_up_ns = _caught_up_ns(record, rtt_ns)
    behind = [sample.behind for sample in record.samples if sample.behind is not None and not sample.semi_sync]
    return Returned(caught_up_ns, record.unprotected - _after(record, caught_up_ns), max(behind, default=None))


def _caught_up_ns(record: FallbackRecord, rtt_ns: int) -> int | None:
    if record.fell_ns is None:
        return None
    for sample in record.samples:
        if sample.at_ns < max(record.returned_ns, record.fell_ns) or sample.behind is None:
            continue
        if sample.semi_sync or sample.behind <= _between(record, sample.at_ns - rtt_ns - LOOK_NS, sample.at_ns):
            return sample.at_ns
    return None


def _after(record: FallbackRecord, caught_up_ns: int | None) -> int:
    """Unprotected commits after the replica had caught up, counted in complete slices."""
    if caught_up_ns is None:
        return 0
    back_ns = record.samples[-1].at_ns if record.back_ns is None else record.back_ns
    step = _slice_ns(record)
    late = sum(count for start, count in record.commits if caught_up_ns <= start and start + step <= back_ns)
    return min(late, record.unprotected)


def _between(record: FallbackRecord, begin_ns: int, end_ns: int) -> int:
    """Commits acknowledged in slices that touch this time."""
    step = _slice_ns(record)
    return sum(count for start, count in record.commits if start < end_ns and start + step > begin_ns)


def _slice_ns(record: FallbackRecord) -> int:
    starts = [start for start, _ in record.commits]
    return min((later - earlier for earlier, later in pairwise(starts)), default=LOOK_NS)


# ---------------------------------------------------------------- one trial, drawn


def fallback_series(trial: Trial) -> FallbackSeries | None:
    """The series of a trial. None: it has no fallback."""
    story = trial.fault
    if not isinstance(story, FallbackRecord):
        return None
    slice_s, rates = _slices(story.commits)
    looks = farthest(story.samples)
    return FallbackSeries(
        trial=trial.number,
        slice_s=slice_s,
        commits_per_s=rates,
        left_s=story.left_ns / 1e9,
        returned_s=story.returned_ns / 1e9,
        reconnected_s=_s(story.reconnected_ns),
        fell_s=_s(story.fell_ns),
        back_s=_s(story.back_ns),
        stall_s=story.stall_ns / 1e9,
        unprotected=story.unprotected,
        at_s=tuple(look.at_ns / 1e9 for look in looks),
        semi_sync=tuple(look.semi_sync for look in looks),
        behind=tuple(look.behind for look in looks),
    )


def _s(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _slices(commits: Sequence[tuple[int, int]]) -> tuple[float, tuple[float, ...]]:
    """Length of a slice in seconds, and commits per second in each from the beginning of the load on. A slice without an entry had
    none. The last one, in which the load ended, is left out."""
    starts = [start for start, _ in commits]
    step = min((later - earlier for earlier, later in pairwise(starts)), default=0)
    if step <= 0:
        return 0.0, ()
    counts = [0] * (starts[-1] // step)
    for start, count in commits[:-1]:
        counts[start // step] += count
    together = -(-len(counts) // MOST_POINTS)
    sums = [sum(counts[at : at + together]) for at in range(0, len(counts) - len(counts) % together, together)]
    length = step * together / 1e9
    return length, tuple(total / length for total in sums)


# ---------------------------------------------------------------- sentences


def fallback_sentence(story: FallbackStory) -> str:
    """The events of a fallback in order, as a sentence."""
    with_ = f" and {story.replicas} replicas" if story.replicas > 1 else ""
    left = "one of them" if story.replicas > 1 else "its replica"
    begin = f"{capital(with_mode(story.mode))}{with_}, the primary"
    if story.degraded_ms is None and not story.stood_still and story.away_ms is not None:
        return (
            f"{begin} went on when {left} left: the longest time without an acknowledgement was {_seconds(story.stall_ms, 2)} "
            f"while it was away for {story.away_ms / 1e3:.1f} s."
        )
    text = f"{begin} acknowledged nothing for {_seconds(story.stall_ms)} after {left} left"
    if story.degraded_ms is None and story.waits_for_ever:
        return f"{text}, until it was back: this server has no timeout and does not fall back."
    if story.degraded_ms is None:
        return f"{text}, and did not fall back."
    least = "at least " if story.censored else ""
    text += (
        f"; then it was asynchronous for {least}{_seconds(story.degraded_ms)} and acknowledged {least}"
        f"{story.unprotected.value:,.0f} commits that no replica had acknowledged{_alone(story)}"
    )
    if story.after_return_ms is not None:
        text += f"; {least}{_seconds(story.after_return_ms)} of that was after the link had returned"
    if story.held_off:
        text += f". In {story.held_off} of {story.trials} trials, only the end of the load let it come back"
    return text + "."


def _alone(story: FallbackStory) -> str:
    """Note on unacknowledged commits: most may be on the replica within milliseconds."""
    if story.unprotected_alone is None:
        return ""
    text = f" ({rate(story.unprotected_alone.value)} of them before the replica had caught up"
    if story.caught_up_ms is None:
        text = f" (the replica was not seen to catch up{'' if story.trials == 1 else ' in every trial'}"
    lacked = f"; it lacked up to {story.most_behind:,}" if story.most_behind is not None else ""
    return f"{text}{lacked})"


def _seconds(ms: Estimate, digits: int = 1) -> str:
    shown = in_brackets(ms, lambda each: f"{max(0.0, each) / 1e3:.{digits}f}")
    return f"{shown} s"
