"""What a primary hides when its replica goes and comes back under its own timeouts: the stall, the silence, the return."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.sentence import capital
from howfar.experiments.replication.drawn import fallback_series
from howfar.experiments.replication.findings import FallbackStory
from howfar.experiments.replication.returned import returned
from howfar.experiments.replication.words import mode_words, rate
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import mean_of_counts
from howfar.store.records import Arm, ArmRole, FallbackRecord, Run, Trial, TrialStatus


def fallback_stories(run: Run) -> tuple[FallbackStory, ...]:
    """One an arm, in the order of the plan."""
    found = [_story(run, arm) for arm in run.info.arms if arm.role is not ArmRole.DUPLICATE]
    return tuple(story for story in found if story is not None)


def _story(run: Run, arm: Arm) -> FallbackStory | None:
    trials = [trial for trial in run.trials if trial.arm == arm.name and trial.status is TrialStatus.OK]
    told = [(trial, trial.fault) for trial in trials if isinstance(trial.fault, FallbackRecord)]
    if not told:
        return None
    records = [record for _, record in told]
    fell = [record for record in records if record.fell_ns is not None]
    drawn, record = _typical(told)
    unseen = sum(censored(record) for record in fell)
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
        stall_ms=mean_of_counts([record.stall_ns / 1e6 for record in records]),
        degraded_ms=_ms([_end_ns(record) - (record.fell_ns or 0) for record in fell], unseen),
        after_return_ms=_ms([max(0, _end_ns(record) - record.returned_ns) for record in fell], unseen),
        held_off=sum(held_off(record) for record in fell),
        censored=unseen,
        unprotected=_counted([record.unprotected for record in records], unseen),
        caught_up_ms=_ms(caught) if len(caught) == len(fell) else None,
        unprotected_alone=_counted([one.alone for one in came], len(fell) - len(caught)) if came else None,
        most_behind=max((one.most_behind for one in came if one.most_behind is not None), default=None),
        share_unprotected=sum(record.unprotected for record in records) / acknowledged if acknowledged else 0.0,
        drawn=drawn.number,
        log_lines=record.log_lines,
        series=fallback_series(drawn),
    )


def _ms(times_ns: Sequence[int], unseen: int = 0) -> Estimate | None:
    return _counted([ns / 1e6 for ns in times_ns], unseen) if times_ns else None


def _counted(values: Sequence[float], unseen: int) -> Estimate:
    """Where the end of some was not seen, a mean of lower bounds has no scatter of its own to speak of."""
    found = mean_of_counts(values)
    return Estimate(value=found.value, low=None, high=None) if unseen else found


def held_off(record: FallbackRecord) -> bool:
    """The acknowledgement that comes is of a commit before the newest, and where commits never pause it stays so."""
    ended_ns = record.load_ended_ns
    return ended_ns is not None and (record.back_ns is None or record.back_ns > ended_ns)


def censored(record: FallbackRecord) -> bool:
    """Of one that fell back: nobody saw under load how long that lasts."""
    return record.back_ns is None or held_off(record)


def _end_ns(record: FallbackRecord) -> int:
    """Of its being asynchronous under load: at the least the end of that, or the last look, where it never came back."""
    if held_off(record) and record.load_ended_ns is not None:
        return record.load_ended_ns
    if record.back_ns is not None:
        return record.back_ns
    return record.samples[-1].at_ns if record.samples else record.returned_ns


def _typical(told: Sequence[tuple[Trial, FallbackRecord]]) -> tuple[Trial, FallbackRecord]:
    """The one in the middle, by how long it was asynchronous."""
    ranked = sorted(told, key=lambda pair: _end_ns(pair[1]) - (pair[1].fell_ns or _end_ns(pair[1])))
    return ranked[len(ranked) // 2]


def fallback_sentence(story: FallbackStory) -> str:
    text = (
        f"{capital(mode_words(story.mode))}, when its replica went, the primary acknowledged nothing "
        f"for {_seconds(story.stall_ms)}"
    )
    if story.degraded_ms is None:
        return f"{text}, and did not fall back."
    least = "at least " if story.censored else ""
    text += f", then told clients of {least}{story.unprotected.value:,.0f} commits that no replica had acknowledged{_alone(story)}: "
    text += f"it was asynchronous for {least}{_seconds(story.degraded_ms)}"
    if story.after_return_ms is not None:
        text += f", {least}{_seconds(story.after_return_ms)} of them after the link carried again"
    if story.held_off:
        text += f"; in {story.held_off} of {story.trials} trials only the end of the load let it come back"
    return text + "."


def _alone(story: FallbackStory) -> str:
    """Most of what is not acknowledged may be on the replica within milliseconds."""
    if story.unprotected_alone is None:
        return ""
    text = f" ({rate(story.unprotected_alone.value)} of them before the replica had caught up"
    if story.caught_up_ms is None:
        text = f" (the replica was not seen to catch up{'' if story.trials == 1 else ' in every trial'}"
    lacked = f", which lacked up to {story.most_behind:,}" if story.most_behind is not None else ""
    return f"{text}{lacked})"


def _seconds(ms: Estimate) -> str:
    if ms.low is None or ms.high is None:
        return f"{ms.value / 1e3:.1f} s"
    return f"{ms.value / 1e3:.1f} [{max(0.0, ms.low) / 1e3:.1f}, {ms.high / 1e3:.1f}] s"
