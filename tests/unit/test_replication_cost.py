"""Commits that wait for a replica: the model against simulated servers, and the findings of a run."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.made import floors_of
from tests.unit.made_replication import (
    MS,
    OVER_REST,
    RTT_NS,
    Mechanism,
    Server,
    Simulation,
    crash_trial,
    lagging_trial,
    replication_run,
)
from tests.unit.rendered import findings_of

from howfar.experiments.registry import summarise
from howfar.experiments.replication.analysis import (
    CommitCost,
    CommitWait,
    LocalCommits,
    ReplicationCost,
    ReplicationCurve,
    acknowledgement_s,
    classify_regime,
    conclude,
    lag_series,
    model_findings,
    one_connection_findings,
    point_at,
    round_trip_findings,
)
from howfar.experiments.replication.arms import MAX_POINTS
from howfar.experiments.replication.frame import trade_notes
from howfar.experiments.replication.trade import ReplicationFindings, replication_findings
from howfar.stats.trials import trial_table
from howfar.store.records import Run, Trial

pytestmark = pytest.mark.slow

MARIADB, MYSQL = Server("mariadb"), Server("mysql")
_BAR = 0.10


def _found(run: Run) -> ReplicationFindings:
    found = replication_findings(trial_table(run))
    assert found is not None
    return found


def _answer(run: Run, floor: float | None = 0.01) -> list[tuple[str, str]]:
    """Ids and modes of the answer's findings, with this noise floor."""
    cost, table, floors = _found(run).cost, trial_table(run), floors_of(floor)
    assert cost is not None
    return [
        (finding.id, finding.subject.removeprefix("semi-sync "))
        for finding in conclude(cost, lambda arm, other: floors.compare(table, arm, other).is_difference)
    ]


@cache
def _cost(server: Server, **levels: Any) -> ReplicationCost:
    cost = _found(replication_run(server, **levels)).cost
    assert cost is not None
    return cost


def _curve(cost: ReplicationCost, mode: str) -> ReplicationCurve:
    (found,) = [c for c in cost.curves if c.mode == mode and c.replica_rtt_ns == (RTT_NS if mode != "none" else None)]
    return found


def _point(cost: ReplicationCost, mode: str, threads: int) -> CommitCost:
    found = point_at(_curve(cost, mode), threads)
    assert found is not None
    return found


@pytest.mark.parametrize("rtt_ms", [5.0, 20.0, 85.0])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 16, 64])
@pytest.mark.parametrize(
    ("kind", "mode", "mechanism"),
    [
        ("mariadb", "after-sync", "holds the log"),
        ("mariadb", "after-commit", "waits alone"),
        ("mysql", "after-sync", "holds the commit stage"),
    ],
)
def test_the_model_predicts_what_the_mechanism_does(
    kind: str, mode: str, mechanism: Mechanism, threads: int, rtt_ms: float
) -> None:
    measured = Simulation(mechanism, threads, rtt_ms, own_ms=0.05, write_ms=0.01).run(20 * rtt_ms, 400 * rtt_ms)
    local = LocalCommits({n: max(0.06, 0.01 * n) / 1e3 for n in (1, 2, 3, 4, 16, 64)})
    waiting = CommitWait(kind, mode, rtt_ms / 1e3)
    local_s = waiting.local_s(local, threads)
    assert local_s is not None
    assert threads / (local_s + waiting.wait_s(threads)) == pytest.approx(measured, rel=_BAR)


def test_only_a_third_group_waits_for_others() -> None:
    """With MariaDB's AFTER_SYNC, two connections are two groups in flight; the third must wait."""
    commit_ms = [n / Simulation("holds the log", n, 20.0).run(200.0, 8000.0) * 1e3 for n in (1, 2, 3)]
    assert [round(ms / 20, 1) for ms in commit_ms] == [1.0, 1.0, 1.5]


def test_a_station_is_as_fast_as_its_curve() -> None:
    local = LocalCommits({1: 0.001, 4: 0.002, 16: 0.008})  # 1000, 2000 and 2000 a second
    assert local.time_between_waits(1.0, 1) == pytest.approx(0.001, rel=0.01)
    assert local.time_between_waits(0.08, 160) == pytest.approx(0.002, rel=0.05), "just full"
    assert local.time_between_waits(0.08, 1600) == pytest.approx(1600 / 2000 - 0.08), (
        "the queue takes what the rate does not pass"
    )
    times = [local.time_between_waits(0.08, threads) for threads in (1, 40, 80, 120, 150, 160, 320)]
    assert times == sorted(times)


def test_regimes() -> None:
    growths = {15.0: "delay station", 10.6: "delay station", 1.1: "serial", 4.0: "between"}
    assert {growth: classify_regime(growth, 16) for growth in growths} == growths, "10.6: three groups at two stages"
    assert acknowledgement_s(0.0851, 0.0002, 0.085) == 0.0


@pytest.mark.parametrize("server", [MARIADB, MYSQL], ids=["mariadb", "mysql"])
def test_a_run_is_predicted(server: Server) -> None:
    cost = _cost(server, rtts_ns=(20 * MS, RTT_NS))
    assert cost.worst_error is not None and cost.worst_error < _BAR
    for mode in ("after-sync", "after-commit"):
        one = _point(cost, mode, 1)
        assert one.commits_per_s.value == pytest.approx(1e3 / (one.local_ms + one.wire_ms), rel=0.03)
        assert one.wire_ms == pytest.approx(85 * OVER_REST)
        assert one.local_ms + one.wire_ms + one.waiting_ms == pytest.approx(one.commit_ms)
        assert (_curve(cost, mode).regime, _curve(cost, mode).growth_threads) == ("delay station", 16)
    assert [row[2] for row in _cost(server, rtts_ns=(20 * MS,)).published][1:] == [None, None], "another distance"


def test_round_trips_tell_the_wait_points_apart() -> None:
    sync, commit = (_point(_cost(MARIADB), mode, 64) for mode in ("after-sync", "after-commit"))
    assert sync.rtts is not None and sync.rtts.low is not None and sync.rtts.low > 1.4
    assert commit.rtts is not None and commit.rtts.high is not None and commit.rtts.high < 1.1
    curves = _cost(MARIADB).curves
    assert [finding.id for finding in round_trip_findings(curves, "mariadb")] == [*["round-trips"] * 2, "two-groups"]
    assert round_trip_findings(curves, "mariadb")[0].estimate == sync.rtts
    assert round_trip_findings(_cost(MYSQL).curves, "mysql") == []


def test_arms_that_do_not_wait_have_no_round_trips_and_no_prediction() -> None:
    cost = _cost(MARIADB)
    for mode in ("none", "async"):
        assert _curve(cost, mode).regime is None
        for point in _curve(cost, mode).points:
            assert (point.rtts, point.predicted, point.wire_ms) == (None, None, 0.0)
    assert _curve(cost, "async").lag_p50 is not None
    assert _curve(cost, "none").lag_p50 is None and _curve(cost, "none").rest_rtt_ns is None


def test_the_rate_of_one_connection_is_explained_and_compared_with_published_figures() -> None:
    summary = summarise(replication_run(MARIADB, noise=0.001))
    cost = findings_of(summary, ReplicationFindings).cost
    assert cost is not None
    first, many = summary.answer.findings
    assert (first.id, many.id, many.subject) == ("slowed-connection", "many", "semi-sync AFTER_SYNC")
    assert (first.parameters["rtt_ns"], many.parameters["threads"]) == (RTT_NS, 64)
    assert first.estimate == _point(cost, "after-sync", 1).commits_per_s
    assert first.parameters["alone"] == _point(cost, "none", 1).commits_per_s.value
    explained, published = one_connection_findings(_curve(cost, "after-sync"), cost.published)
    assert explained.id == "one-connection-sum" and explained.parameters["sum"] == pytest.approx(11.7, abs=0.1)
    assert published.estimate is not None and published.estimate.value == 11.5
    (model,) = model_findings(cost.curves)
    assert model.parameters["worst"] == cost.worst_error and len(cost.sentences) == 5
    assert [row[:2] for row in cost.published] == [("none", 1066.8), ("async", 943.2), ("after-commit", 11.5)]
    assert all(ours is not None for _, _, ours in cost.published)
    alone = _cost(MYSQL, modes=("after-sync",))
    (limit,) = one_connection_findings(alone.curves[0], alone.published)
    assert limit.id == "one-connection-limit", "a rate does not explain itself"
    assert [finding.id for finding in conclude(alone, lambda arm, other: False)] == ["one-connection", "many"]


def test_published_figures_are_of_one_workload_and_wait_point() -> None:
    run = replication_run(MARIADB)
    plan = {**run.info.plan, "workload": {"kind": "oltp_write_only"}}
    other = _found(run.model_copy(update={"info": run.info.model_copy(update={"plan": plan})}))
    assert other.cost is not None and other.cost.published == ()
    sync = _cost(MARIADB, modes=("none", "async", "after-sync"))
    assert [ours is None for _, _, ours in sync.published] == [False, False, True]


def test_without_an_arm_that_does_not_wait_nothing_is_predicted() -> None:
    cost = _cost(MYSQL, modes=("after-sync",), noise=0.0)
    point = _point(cost, "after-sync", 1)
    assert (cost.worst_error, point.predicted, point.rtts) == (None, None, None)
    assert point.local_ms + point.wire_ms == pytest.approx(point.commit_ms, abs=0.5)


def test_short_windows_do_not_round_a_rate() -> None:
    """47 commits in four seconds: a rate from the count would be off by up to one in 47."""
    one = _point(_cost(MARIADB, noise=0.0), "after-commit", 1)
    truth = MARIADB.commits_per_s("after-commit", RTT_NS, 1)
    assert one.commits_per_s.value == pytest.approx(truth, rel=1e-6)


def test_the_trade_has_a_row_for_each_mode() -> None:
    rows = _found(replication_run(MARIADB)).trade
    assert [row.mode for row in rows] == ["none", "async", "after-commit", "after-sync"]
    assert {row.threads for row in rows} == {64} and {row.replica_rtt_ns for row in rows} == {RTT_NS}
    assert rows[0].cost is None and rows[1].cost is not None and 0.85 < rows[1].cost.value < 0.95
    assert all(row.lost_per_crash is None and row.phantoms is None and row.verdict for row in rows)


def test_a_ratio_of_fewer_blocks_than_the_rate_is_noted() -> None:
    run = replication_run(MARIADB, blocks=4)
    fewer = [t for t in run.trials if not (t.arm == "none, 0ms, 64" and t.block > 1)]
    rows = _found(run.model_copy(update={"trials": tuple(fewer)})).trade
    assert [(row.blocks, row.trials) for row in rows] == [(2, 2), (2, 4), (2, 4), (2, 4)]
    assert sum("2 blocks" in note for note in trade_notes(rows)) == 3


def test_a_run_without_replication_has_no_findings() -> None:
    run = replication_run(MARIADB, modes=("none",), blocks=2)
    arms = tuple(arm.model_copy(update={"factors": {"path": "socket", "threads": 1}}) for arm in run.info.arms)
    assert (
        summarise(run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})})).find_findings(
            ReplicationFindings
        )
        is None
    )


def test_more_connections_are_advised_where_they_wait_together() -> None:
    advice = summarise(replication_run(MARIADB)).advice
    assert [piece.action.split(",")[0] for piece in advice[:3]] == [
        "Where no acknowledged commit may be lost",
        "Where a crash may lose the last commits",
        "Before giving up acknowledgements",
    ]
    assert "rpl-semi-sync-master-enabled = ON" in advice[0].lines
    assert all(len(line) <= 55 for piece in advice for line in piece.lines), "it fits any terminal"


ADVISED = [("slowed-connection", "AFTER_SYNC"), ("many", "AFTER_SYNC")]


def test_another_mode_is_named_only_where_it_is_resolved() -> None:
    """The answer is about the mode that shows no commit early, which is the one advised."""
    assert _answer(replication_run(MYSQL, noise=0.02)) == ADVISED, "both wait points of MySQL cost a round trip"
    assert _answer(replication_run(MARIADB)) == [*ADVISED, ("many", "AFTER_COMMIT")], "a third more is resolved"
    assert _answer(replication_run(MARIADB, blocks=1)) == ADVISED, "one trial resolves nothing"
    for floor in (None, 2.0):
        assert _answer(replication_run(MARIADB), floor) == ADVISED, "nor do many below the noise floor"


def test_the_answer_follows_what_was_measured() -> None:
    many = [("connections", "AFTER_SYNC"), ("connections", "AFTER_COMMIT")]
    assert _answer(replication_run(MARIADB, threads=(16,))) == many
    asynchronous = _answer(replication_run(MARIADB, modes=("none", "async")))
    assert asynchronous == [("asynchronous", "asynchronous replication")]
    assert _answer(replication_run(MARIADB, modes=("none",))) == []


def test_another_mode_is_judged_within_blocks() -> None:
    """Blocks differ by a factor of two; within each, AFTER_COMMIT makes a third more commits."""
    run = replication_run(MARIADB, blocks=6)

    def drifting(trial: Trial) -> Trial:
        assert trial.measured is not None
        slower = {"elapsed_ns": round(trial.measured.elapsed_ns * (1 + trial.block / 5))}
        return trial.model_copy(update={"measured": trial.measured.model_copy(update=slower)})

    assert _answer(run.model_copy(update={"trials": tuple(map(drifting, run.trials))}))[-1] == ("many", "AFTER_COMMIT")


def test_round_trips_have_the_scatter_of_the_local_commits_too() -> None:
    run = replication_run(MYSQL, noise=0.0, threads=(1,))
    slow = [_slower(t) if t.arm.startswith("none") and t.block % 2 else t for t in run.trials]
    cost = _found(run.model_copy(update={"trials": tuple(slow)})).cost
    assert cost is not None
    rtts = _point(cost, "after-sync", 1).rtts
    assert rtts is not None and rtts.low is not None and rtts.high is not None
    assert rtts.high - rtts.low > 1e-4


def _slower(trial: Trial) -> Trial:
    assert trial.measured is not None
    fewer = {"transactions": trial.measured.transactions // 3}
    return trial.model_copy(update={"measured": trial.measured.model_copy(update=fewer)})


def test_a_peak_of_the_lag_is_drawn_however_many_looks_there_are() -> None:
    series = lag_series([lagging_trial(5000, peak_at=3333, peak=90_000)], threads=16)
    assert series is not None
    assert len(series.at_s) <= MAX_POINTS and max(series.behind) == 90_000
    assert series.replica == "replica1" and list(series.at_s) == sorted(series.at_s)
    assert lag_series([crash_trial(number=1, lost=0)], threads=16) is None, "nobody looked"
