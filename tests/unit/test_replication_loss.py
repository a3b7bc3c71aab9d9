"""Crashes and fallbacks of made-up records: what was lost, what was foreseen, and whether the intervals keep their word."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.made_faults import MS, crash_trial, fallback_trial
from tests.unit.made_replication import Server, replication_run, run_of
from tests.unit.rendered import csv as report_csv

from howfar.analysis.analyse import summarise
from howfar.experiments.crash.analysis import CrashLoss, lost_per_crash, predicted_loss
from howfar.experiments.fallback.analysis import fallback_sentence, returned
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.report import json
from howfar.stats.intervals import mean_interval
from howfar.store.records import Arm, ArmRole, CrashRecord, FallbackRecord, FallbackSample, Trial, TrialStatus

CRASHES = 20


def _arm(name: str, mode: str, fault: str = "cut") -> Arm:
    factors: dict[str, Any] = {"threads": 16, "replication": mode, "fault": fault, "replica_rtt_ns": 85 * MS}
    role = ArmRole.BASELINE if name == "asynchronous" else ArmRole.CONTENDER
    return Arm(name=name, role=role, factors={"path": "socket", **factors})


ARMS = (
    _arm("asynchronous", "async"),
    _arm("killed", "async", "kill-primary"),
    _arm("sync", "after-sync"),
    _arm("commit", "after-commit"),
)


def _trials() -> list[Trial]:
    """The link is cut 500 ms before the end at 6000 commits a second."""
    found = []
    for at in range(CRASHES):
        lost = 3000 + 30 * (at - CRASHES // 2)
        found.append(crash_trial(4 * at, lost, acknowledged=18_000 + lost))
        found.append(crash_trial(4 * at + 1, 3, "killed", fault="kill-primary", dead_ns=3000 * MS, behind_before=260))
        found.append(crash_trial(4 * at + 2, 0, "sync", commits_per_s=110.0, applied_unknown=2))
        early = {"seen_early": 400, "seen_early_median_ns": 84 * MS, "phantoms": 5}
        found.append(crash_trial(4 * at + 3, 0, "commit", commits_per_s=180.0, **early))
    return found


@pytest.fixture(scope="module")
def findings() -> ReplicationFindings:
    found = summarise(run_of("mariadb", ARMS, _trials(), "crash")).replication
    assert found is not None and found.crash is not None and found.cost is None
    return found


def _loss(findings: ReplicationFindings, arm: str) -> CrashLoss:
    assert findings.crash is not None
    (found,) = [loss for loss in findings.crash.losses if loss.arm == arm]
    return found


def test_what_is_lost_is_what_nobody_heard_of(findings: ReplicationFindings) -> None:
    loss = _loss(findings, "asynchronous")
    assert (loss.crashes, loss.crashes_with_loss, loss.most_lost) == (CRASHES, CRASHES, 3270)
    assert loss.predicted_lost is not None and loss.predicted_lost.value == pytest.approx(3000)
    low, high = loss.lost_per_crash.low, loss.lost_per_crash.high
    assert low is not None and high is not None and low < loss.predicted_lost.value < high
    assert loss.lost_age_ms == pytest.approx(45)
    assert len(loss.each) == CRASHES
    assert (loss.each[0].first_lost_ms, loss.each[0].dead_ms, loss.each[0].promotion_ms) == (-45.0, 500.0, 80.0)
    assert _loss(findings, "sync").each[0].first_lost_ms is None


def test_nothing_lost_is_not_nothing_to_lose(findings: ReplicationFindings) -> None:
    for arm in ("sync", "commit"):
        loss = _loss(findings, arm)
        assert (loss.lost, loss.predicted_lost) == (0, None)
        assert loss.share_that_may_lose == pytest.approx(0.139, abs=0.001), "the rule of three says 3/20"
        assert (loss.lost_per_crash.low, loss.lost_per_crash.high) == (None, None), "a share is no count"


def test_the_sentences_say_both_sides(findings: ReplicationFindings) -> None:
    assert findings.crash is not None
    text = " ".join(findings.crash.sentences)
    assert "lost none of 420,000 acknowledged commits in 20 crashes" in text
    assert "predicted: 3,000" in text
    assert "100 of them were gone after the crash" in text and "84 ms earlier" in text
    assert "40 commits were applied on the survivor" in text
    verdict = summarise(run_of("mariadb", ARMS, _trials(), "crash")).verdict
    assert verdict.startswith("With asynchronous replication, when the link was cut")


def test_blocks_are_crashes_and_no_arm_is_called_unmeasured() -> None:
    summary = summarise(run_of("mariadb", ARMS, _trials(), "crash"))
    assert summary.blocks == CRASHES and summary.unmeasured == ()


def test_void_crashes_are_counted_and_in_no_figure() -> None:
    planted = crash_trial(900, 9999, "sync").model_copy(update={"status": TrialStatus.VOID, "void_reason": "planted"})
    found = summarise(run_of("mariadb", ARMS, [*_trials(), planted], "crash")).replication
    assert found is not None
    loss = _loss(found, "sync")
    assert (loss.lost, loss.void_crashes, loss.crashes) == (0, 1, CRASHES)


def test_the_trade_of_crashes(findings: ReplicationFindings) -> None:
    rows = {row.mode: row for row in findings.trade}
    assert list(rows) == ["async", "after-commit", "after-sync"]
    assert rows["async"].cost is None and rows["async"].crashes == CRASHES
    assert rows["async"].lost_per_crash is not None and rows["async"].lost_per_crash.value > 2000, (
        "where the link was cut, as in every row"
    )
    assert rows["after-sync"].cost is not None and rows["after-sync"].cost.value == pytest.approx(110 / 6000, rel=0.01)
    assert (rows["after-commit"].phantoms, rows["after-sync"].phantoms) == (True, False)
    assert "takes back" in rows["after-commit"].verdict


def test_a_semi_synchronous_loss_is_not_hidden() -> None:
    trials = [*_trials(), crash_trial(901, 7, "sync")]
    found = summarise(run_of("mariadb", ARMS, trials, "crash")).replication
    assert found is not None and found.crash is not None
    assert any("it should lose none" in text for text in found.crash.sentences)


def test_a_semi_synchronous_loss_begins_the_verdict_of_a_plan_with_many_faults() -> None:
    more = [_arm(f"apart {fault}", "async", fault) for fault in ("cut-to-replica", "stop-replica")]
    trials = [
        *_trials(),
        crash_trial(901, 7, "sync"),
        *(crash_trial(910 + i, 50, arm.name) for i, arm in enumerate(more)),
    ]
    verdict = summarise(run_of("mariadb", [*ARMS, *more], trials, "crash")).verdict
    assert verdict.startswith("Semi-sync AFTER_SYNC lost 7 of")
    assert verdict.count("asynchronous") == 1 and "AFTER_COMMIT lost none" in verdict


def test_a_row_of_the_trade_is_of_one_fault_and_one_ground() -> None:
    other = Arm(name="relaxed", role=ArmRole.CONTENDER, factors={**ARMS[0].factors, "durability": "relaxed"})
    trials = [*_trials(), *(crash_trial(900 + at, 9, "relaxed", commits_per_s=9000.0) for at in range(3))]
    found = summarise(run_of("mariadb", [*ARMS, other], trials, "crash")).replication
    assert found is not None
    rows = [(row.mode, row.durability, row.fault, row.crashes) for row in found.trade]
    assert rows[:2] == [("async", "strict", "cut", CRASHES), ("async", "relaxed", "cut", 3)]
    assert [row.cost is None for row in found.trade] == [True, True, False, False], (
        "each durability has its own reference"
    )


def test_figures_of_less_durable_servers_are_said_to_be() -> None:
    arms = [arm.model_copy(update={"factors": {**arm.factors, "durability": "off"}}) for arm in ARMS]
    safe = summarise(run_of("mysql", arms, _trials(), "crash")).advice[0]
    assert "measured with durability off" in safe.because and "sync-binlog = 1" in safe.lines


def test_nothing_lost_asynchronously_is_no_interval_of_shares() -> None:
    trials = [crash_trial(at, 0) for at in range(20)]
    summary = summarise(run_of("mysql", ARMS[:1], trials, "crash"))
    assert "none was lost in 20 crashes" in summary.advice[0].because and "0.139" not in summary.advice[0].because


def test_what_was_done_and_refused_is_said() -> None:
    trials = [crash_trial(at, 0, "sync", applied_refused=2, refused=3) for at in range(3)]
    found = summarise(run_of("mysql", [ARMS[2]], trials, "crash")).replication
    assert found is not None and found.crash is not None
    assert "In 3 crashes 6 were applied there though their clients received an error" in found.crash.sentences[-1]


def _crash(**fields: Any) -> CrashRecord:
    fault = crash_trial(1, 5, **fields).fault
    assert isinstance(fault, CrashRecord)
    return fault


def test_what_is_foreseen_of_one_crash() -> None:
    assert predicted_loss(_crash(dead_ns=3200 * MS, commits_per_s=1000.0)) == pytest.approx(200)
    killed = {"fault": "kill-primary", "dead_ns": 3000 * MS, "commits_per_s": 1000.0}
    assert predicted_loss(_crash(**killed, behind_before=60)) == 60
    assert predicted_loss(_crash(**killed, behind_before=60, unreceived_before=9)) == 9
    assert predicted_loss(_crash(**killed, behind_before=None)) is None
    assert predicted_loss(_crash(fault="cut", dead_ns=3200 * MS, in_force_ns=3100 * MS, commits_per_s=1000.0)) == 100
    assert predicted_loss(_crash(fault="cut-to-primary")) is None, "TCP goes on sending for a while"


_LAWS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "lag x rate": lambda rng, n: np.round(rng.normal(5000, 500, n)),
    "few": lambda rng, n: rng.poisson(3, n).astype(float),
    "skewed": lambda rng, n: (rng.geometric(0.25, n) - 1).astype(float),
    "half of them nothing": lambda rng, n: np.where(rng.random(n) < 0.5, 0, np.round(rng.exponential(20, n))),
}


@pytest.mark.parametrize(("law", "least"), list(zip(_LAWS, (0.92, 0.92, 0.88, 0.84), strict=True)))
def test_the_interval_of_the_mean_keeps_its_word(law: str, least: float) -> None:
    """Over experiments of 20 crashes; a percentile bootstrap of the same experiments covers fewer."""
    rng = np.random.default_rng(1)
    make = _LAWS[law]
    truth = float(make(rng, 400_000).mean())
    ours = theirs = 0
    experiments = 400
    for _ in range(experiments):
        losses = make(rng, CRASHES)
        found = lost_per_crash([int(lost) for lost in losses])
        ours += (found.low or 0.0) <= truth <= (found.high or 0.0)
        low, high = np.quantile(rng.choice(losses, (200, CRASHES)).mean(axis=1), [0.025, 0.975])
        theirs += bool(low <= truth <= high)
    assert ours / experiments >= least
    assert theirs < ours


def test_an_interval_of_counts_is_not_below_nothing() -> None:
    assert mean_interval([0, 0, 0, 0, 9]).low is not None
    assert lost_per_crash([0, 0, 0, 0, 9]).low == 0.0
    assert lost_per_crash([4]).low is None


def test_a_fallback_is_told() -> None:
    arm = Arm(
        name="semi-sync AFTER_SYNC",
        role=ArmRole.BASELINE,
        factors={"path": "socket", "threads": 16, "replication": "after-sync", "fault": "replica-leaves"},
    )
    trials = [fallback_trial().model_copy(update={"number": number, "block": number}) for number in range(3)]
    found = summarise(run_of("mysql", [arm], trials, "fallback")).replication
    assert found is not None and found.crash is None
    (story,) = found.fallback
    record = trials[0].fault
    assert isinstance(record, FallbackRecord) and record.fell_ns is not None and record.back_ns is not None
    assert story.stall_ms.value == pytest.approx(10_000)
    assert story.degraded_ms is not None
    assert story.degraded_ms.value == pytest.approx((record.back_ns - record.fell_ns) / 1e6)
    assert story.after_return_ms is not None
    assert story.after_return_ms.value == pytest.approx((record.back_ns - record.returned_ns) / 1e6)
    assert story.share_unprotected == pytest.approx(1234 / record.acknowledged)
    assert story.series is not None and story.log_lines
    text = fallback_sentence(story)
    assert "acknowledged 1,234 commits that no replica had acknowledged" in text
    assert "at least" not in text and "lacked up to 40" in text
    assert (story.censored, story.most_behind) == (0, 40)


def test_a_primary_that_never_came_back_was_asynchronous_to_the_end() -> None:
    trial = fallback_trial()
    assert isinstance(trial.fault, FallbackRecord)
    never = trial.model_copy(update={"fault": trial.fault.model_copy(update={"back_ns": None})})
    arm = Arm(name=trial.arm, role=ArmRole.BASELINE, factors={"path": "socket", "replication": "after-sync"})
    found = summarise(run_of("mysql", [arm], [never], "fallback")).replication
    assert found is not None
    (story,) = found.fallback
    assert trial.fault.fell_ns is not None and story.degraded_ms is not None
    assert story.degraded_ms.value == pytest.approx((trial.fault.samples[-1].at_ns - trial.fault.fell_ns) / 1e6)
    assert story.censored == 1 and "asynchronous for at least" in fallback_sentence(story)


def test_what_was_promised_before_the_cut_is_told_apart() -> None:
    trials = [crash_trial(number, 50, lost_after=47) for number in range(3)]
    found = summarise(run_of("mysql", ARMS[:1], trials, "crash")).replication
    assert found is not None and found.crash is not None
    (loss,) = found.crash.losses
    assert (loss.lost, loss.lost_before, loss.lost_by_force) == (150, 9, None)
    assert "at least 9 of all 150 acknowledged before the cut was in force" in found.crash.sentences[0]


def test_a_cut_that_takes_a_while_has_two_bounds() -> None:
    trials = [crash_trial(number, 50, lost_after=47, lost_in_force=40) for number in range(3)]
    found = summarise(run_of("mysql", ARMS[:1], trials, "crash")).replication
    assert found is not None and found.crash is not None
    assert found.crash.losses[0].lost_by_force == 30
    assert "9 to 30 of all 150 acknowledged before the cut was in force" in found.crash.sentences[0]
    one_way = [trial.model_copy(update={"fault": _crash(fault="cut-to-primary")}) for trial in trials]
    told = summarise(run_of("mysql", ARMS[:1], one_way, "crash")).replication
    assert told is not None and told.crash is not None
    assert "death of the machine" not in told.crash.sentences[0], "data still leave the primary"


@pytest.mark.parametrize(("ended_s", "said"), [(30, True), (60, False), (None, False)])
def test_a_primary_that_only_an_idle_moment_brings_back_is_told(ended_s: int | None, said: bool) -> None:
    trial = fallback_trial()
    assert isinstance(trial.fault, FallbackRecord)
    times = {"back_ns": 45 * 10**9, "load_ended_ns": None if ended_s is None else ended_s * 10**9}
    late = trial.model_copy(update={"fault": trial.fault.model_copy(update=times)})
    arm = Arm(name=trial.arm, role=ArmRole.BASELINE, factors={"path": "socket", "replication": "after-sync"})
    found = summarise(run_of("mysql", [arm], [late], "fallback")).replication
    assert found is not None
    (story,) = found.fallback
    assert (story.held_off == 1) is said
    assert ("only the end of the load" in fallback_sentence(story)) is said
    assert (story.censored == 1) is said


def test_of_censored_trials_nothing_has_an_interval() -> None:
    trial = fallback_trial()
    assert isinstance(trial.fault, FallbackRecord) and trial.fault.fell_ns is not None
    times = {"back_ns": 45 * 10**9, "load_ended_ns": 30 * 10**9}
    late = trial.model_copy(update={"fault": trial.fault.model_copy(update=times)})
    trials = [one.model_copy(update={"number": n, "block": n}) for n, one in enumerate((trial, late, late))]
    arm = Arm(name=trial.arm, role=ArmRole.BASELINE, factors={"path": "socket", "replication": "after-sync"})
    found = summarise(run_of("mysql", [arm], trials, "fallback")).replication
    assert found is not None
    (story,) = found.fallback
    assert story.censored == 2 and story.degraded_ms is not None and story.after_return_ms is not None
    for estimate in (story.degraded_ms, story.after_return_ms, story.unprotected):
        assert (estimate.low, estimate.high) == (None, None)
    assert story.stall_ms.low is not None, "that was seen to its end"
    text = fallback_sentence(story)
    assert text.count("at least") == 3 and "[" not in text.split("; then")[1]


def _story_record(**changes: Any) -> FallbackRecord:
    """Asynchronous from 1 s on at ten commits a slice of 100 ms; the line carries again at 2 s."""
    looks = [
        FallbackSample(
            at_ns=at * 100 * MS, semi_sync=at < 10, clients=1, waiting=0, acknowledged=0, unacknowledged=0, behind=lacks
        )
        for at, lacks in [(9, 4), (10, 4), (19, 90), (20, 100), (21, 60), (22, 25), (23, 12), (30, 12)]
    ]
    fault = fallback_trial().fault
    assert isinstance(fault, FallbackRecord)
    fields = {
        "fell_ns": 1000 * MS,
        "returned_ns": 2000 * MS,
        "back_ns": None,
        "unprotected": 200,
        "samples": tuple(looks),
        "commits": tuple((slice_ * 100 * MS, 10) for slice_ in range(10, 31)),
    }
    return fault.model_copy(update=fields | changes)


def test_a_replica_has_caught_up_when_it_lacks_what_is_on_its_way() -> None:
    found = returned(_story_record(), 50 * MS)
    assert (found.caught_up_ns, found.most_behind) == (2300 * MS, 100), "25 is more than two slices have, 12 is not"
    assert found.alone == 200 - 7 * 10, "whole slices from 2.3 to 3.0 s"
    assert returned(_story_record(), 150 * MS).caught_up_ns == 2200 * MS, "over a longer line more is on its way"


def test_a_replica_that_did_not_catch_up_leaves_all_to_the_primary() -> None:
    far = tuple(sample.model_copy(update={"behind": 500}) for sample in _story_record().samples)
    found = returned(_story_record(samples=far), 50 * MS)
    assert (found.caught_up_ns, found.alone, found.most_behind) == (None, 200, 500)
    assert returned(_story_record(fell_ns=None, unprotected=0), 50 * MS).caught_up_ns is None


def test_the_advice_has_lines_and_grounds() -> None:
    summary = summarise(run_of("mysql", ARMS, _trials(), "crash"))
    safe, fast = summary.advice[:2]
    assert "AFTER_SYNC" in safe.action and "rpl-semi-sync-source-wait-point = AFTER_SYNC" in safe.lines
    assert "0.018 [0.018, 0.018] of the rate with asynchronous replication;" in safe.because
    assert "none of 420,000 acknowledged commits was lost in 20 crashes" in safe.because
    assert "others saw 100 commits that a crash took back" in safe.because
    assert "asynchronously" in fast.action and "lost 2,980 [" in fast.because
    assert not any("semi" in line for line in fast.lines)


def test_a_mode_that_lost_commits_is_not_advised() -> None:
    trials = [*_trials(), crash_trial(901, 7, "sync")]
    safe = summarise(run_of("mysql", ARMS, trials, "crash")).advice[0]
    assert "AFTER_COMMIT" in safe.action


def test_an_arm_that_broke_something_has_no_rate_over_its_outage() -> None:
    made = replication_run(Server(), threads=(16,), modes=("async",), extra={"fault": "cut"})
    fault = crash_trial(1, 50).fault
    trials = [trial.model_copy(update={"fault": fault}) for trial in made.trials]
    found = summarise(run_of("mariadb", made.info.arms, trials, "crash"))
    (cell,) = found.cells
    assert (cell.limit, cell.cycle) == (None, None)
    assert {point.qps for point in found.trials} == {None}
    assert json.document(found)["cells"] == []
    (row,) = csv.DictReader(io.StringIO(report_csv.render(found)))
    assert "qps" not in row and row["lost"] == "200" and float(row["commits_per_s"]) == 6000
