"""A primary whose replica leaves and returns: times, figures known only as lower bounds, and when the replica has caught up."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.made_replication import FALLBACK_ARM, MS, S, fallback_trial, lagging_trial, run_of

from howfar.analysis.answer import sentence
from howfar.experiments.replication.arms import MAX_POINTS
from howfar.experiments.replication.fallback.analysis import (
    FallbackStory,
    describe_return,
    fallback_series,
    fallback_stories,
)
from howfar.experiments.replication.fallback.report import conclude, explain, fallback_table
from howfar.experiments.replication.fallback.texts import TEXTS
from howfar.experiments.replication.records import FallbackRecord, FallbackSample
from howfar.findings import Finding
from howfar.store.records import Trial


def _record(trial: Trial) -> FallbackRecord:
    assert isinstance(trial.fault, FallbackRecord)
    return trial.fault


def _story(*trials: Trial) -> FallbackStory:
    numbered = [trial.model_copy(update={"number": number, "block": number}) for number, trial in enumerate(trials)]
    (story,) = fallback_stories(run_of("mysql", [FALLBACK_ARM], numbered, "fallback"))
    return story


def _has_note(story: FallbackStory, name: str, **counts: int) -> bool:
    """Whether the table has the note with this id."""
    note = sentence([Finding(id=name, subject="semi-sync AFTER_SYNC", parameters={**counts})], TEXTS)
    return note in fallback_table([story]).notes


def test_times_and_counts_are_those_of_the_records() -> None:
    trial = fallback_trial()
    story, record = _story(trial, trial, trial), _record(trial)
    assert record.fell_ns is not None and record.back_ns is not None
    assert story.stall_ms.value == pytest.approx(10_000)
    assert story.degraded_ms is not None and story.after_return_ms is not None
    assert story.degraded_ms.value == pytest.approx((record.back_ns - record.fell_ns) / 1e6)
    assert story.after_return_ms.value == pytest.approx((record.back_ns - record.returned_ns) / 1e6)
    assert story.share_unprotected == pytest.approx(1234 / record.acknowledged)
    assert story.series is not None and story.log_lines
    (finding,) = conclude([story])
    assert (finding.id, finding.subject) == ("fell-back", "semi-sync AFTER_SYNC")
    assert finding.estimate is not None and finding.estimate.value == 1234
    assert (finding.parameters["stall_s"], finding.parameters["censored"]) == (10, 0)
    assert story.timeout_ms is not None
    (cause,) = explain([story])
    assert (cause.id, cause.parameters) == ("timed-out", {"timeout_s": story.timeout_ms / 1e3})
    waited = story.model_copy(update={"degraded_ms": None, "timeout_ms": None})
    assert [cause.id for cause in explain([waited, story])] == ["waits"], (
        "the answer begins with a mode without a timeout"
    )
    assert explain([story.model_copy(update={"degraded_ms": None})]) == (), "the replica was back before the timeout"
    assert (story.censored, story.most_behind) == (0, 40)
    assert not _has_note(story, "lower-bound")


def test_a_primary_that_never_came_back_was_asynchronous_to_the_end() -> None:
    trial = fallback_trial(back_ns=None)
    story, record = _story(trial), _record(trial)
    assert record.fell_ns is not None and story.degraded_ms is not None
    assert story.degraded_ms.value == pytest.approx((record.samples[-1].at_ns - record.fell_ns) / 1e6)
    (finding,) = conclude([story])
    assert story.censored == 1 and finding.parameters["censored"] == 1
    assert _has_note(story, "lower-bound")


@pytest.mark.parametrize(("ended_s", "held_off"), [(30, True), (60, False), (None, False)])
def test_a_primary_that_only_the_end_of_the_load_brings_back_is_named(ended_s: int | None, held_off: bool) -> None:
    ended_ns = None if ended_s is None else ended_s * S
    story = _story(fallback_trial(back_ns=45 * S, load_ended_ns=ended_ns))
    assert (story.held_off == 1, story.censored == 1) == (held_off, held_off)
    assert _has_note(story, "held-off", held_off=story.held_off, trials=1) is held_off


def test_of_censored_trials_nothing_has_an_interval() -> None:
    late = fallback_trial(back_ns=45 * S, load_ended_ns=30 * S)
    story = _story(fallback_trial(), late, late, late)
    assert story.censored == 3 and story.degraded_ms is not None and story.after_return_ms is not None
    for estimate in (story.degraded_ms, story.after_return_ms, story.unprotected):
        assert (estimate.low, estimate.high) == (None, None)
    assert story.stall_ms.low is not None, "that was seen to its end"
    assert _has_note(story, "held-off", held_off=3, trials=4) and _has_note(story, "lower-bound")


def _returning(**changes: Any) -> FallbackRecord:
    """Asynchronous from 1 s on, with ten commits per slice of 100 ms; the link returns at 2 s."""
    looks = [
        FallbackSample(
            at_ns=at * 100 * MS, semi_sync=at < 10, clients=1, waiting=0, acknowledged=0, unacknowledged=0, behind=lacks
        )
        for at, lacks in [(9, 4), (10, 4), (19, 90), (20, 100), (21, 60), (22, 25), (23, 12), (30, 12)]
    ]
    fields: dict[str, Any] = {
        "fell_ns": 1000 * MS,
        "returned_ns": 2000 * MS,
        "back_ns": None,
        "unprotected": 200,
        "samples": tuple(looks),
        "commits": tuple((index * 100 * MS, 10) for index in range(10, 31)),
    }
    return _record(fallback_trial(**fields | changes))


def test_a_replica_has_caught_up_when_it_lacks_what_is_in_flight() -> None:
    found = describe_return(_returning(), 50 * MS)
    assert (found.caught_up_ns, found.most_behind) == (2300 * MS, 100), "25 is more than two slices have, 12 is not"
    assert found.alone == 200 - 7 * 10, "whole slices from 2.3 to 3.0 s"
    assert describe_return(_returning(), 150 * MS).caught_up_ns == 2200 * MS, "over a longer link more is in flight"


def test_what_a_replica_did_not_catch_up_with_is_on_the_primary_alone() -> None:
    far = tuple(sample.model_copy(update={"behind": 500}) for sample in _returning().samples)
    found = describe_return(_returning(samples=far), 50 * MS)
    assert (found.caught_up_ns, found.alone, found.most_behind) == (None, 200, 500)
    assert describe_return(_returning(fell_ns=None, unprotected=0), 50 * MS).caught_up_ns is None


def test_a_drawn_series_keeps_every_commit_and_every_empty_slice() -> None:
    series = fallback_series(fallback_trial(slices=1000, slice_ns=50_000_000, a_slice=10, silent=range(100, 300)))
    assert series is not None
    assert len(series.commits_per_s) <= MAX_POINTS and series.slice_s == 0.15
    assert max(series.commits_per_s) == 10 / 0.05
    assert sum(rate == 0 for rate in series.commits_per_s) == 66, "200 empty slices, by threes, without the ends"
    assert sum(series.commits_per_s) * series.slice_s == 10 * 799
    assert fallback_series(lagging_trial(3)) is None


def test_a_primary_without_a_timeout_waits_for_ever_unless_another_replica_stays() -> None:
    away_ns = 17 * S
    common: dict[str, Any] = {"timeout_ms": None, "fell_ns": None, "back_ns": None, "unprotected": 0}
    alone = _story(fallback_trial(left_ns=3 * S, returned_ns=3 * S + away_ns, stall_ns=19 * S, **common))
    assert alone.waits_for_ever and alone.stood_still
    stays = _story(fallback_trial(left_ns=3 * S, returned_ns=3 * S + away_ns, stall_ns=160 * MS, **common))
    assert not stays.stood_still
    with_timeout = _story(fallback_trial(left_ns=3 * S, returned_ns=3 * S + away_ns, fell_ns=None, stall_ns=17 * S))
    found = [(finding.id, finding.parameters["stall_s"]) for finding in conclude([alone, stays, with_timeout])]
    assert found == [("waited", 19), ("went-on", 0.16), ("waited", 17)]
    assert [_has_note(story, "no-timeout") for story in (alone, stays, with_timeout)] == [True, True, False]
