"""Single trials as reports draw them: nothing is lost by drawing less."""

from __future__ import annotations

from tests.unit.made_faults import crash_trial, fallback_trial, lagging_trial

from howfar.experiments.fallback.analysis import fallback_series
from howfar.experiments.replication.analysis import lag_series
from howfar.experiments.replication.arms import MOST_POINTS


def test_slices_put_together_keep_every_commit_and_a_slice_without_any() -> None:
    trial = fallback_trial(slices=1000, slice_ns=50_000_000, a_slice=10, silent=range(100, 300))
    series = fallback_series(trial)
    assert series is not None
    assert len(series.commits_per_s) <= MOST_POINTS and series.slice_s == 0.15
    assert max(series.commits_per_s) == 10 / 0.05
    assert sum(rate == 0 for rate in series.commits_per_s) == 66, "200 slices of silence, by threes, without the ends"
    assert sum(series.commits_per_s) * series.slice_s == 10 * 799
    assert fallback_series(lagging_trial(3)) is None


def test_a_peak_of_the_lag_is_drawn_however_many_looks_there_are() -> None:
    series = lag_series([lagging_trial(5000, peak_at=3333, peak=90_000)], threads=16)
    assert series is not None
    assert len(series.at_s) <= MOST_POINTS and max(series.behind) == 90_000
    assert series.replica == "replica1" and list(series.at_s) == sorted(series.at_s)


def test_nobody_looked_then_there_is_no_series() -> None:
    assert lag_series([crash_trial(number=1, lost=0)], threads=16) is None
