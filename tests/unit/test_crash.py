"""What a crash loses: every key in exactly one class, planted faults found, losses with their intervals, and the table of modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.unit.made_replication import (
    CRASH_ARMS,
    CRASHES,
    MS,
    Server,
    crash,
    crash_arm,
    crash_trial,
    crash_trials,
    fallback_trial,
    replication_run,
    run_of,
)
from tests.unit.rendered import findings_of

from howfar.experiments.registry import render_in_terminal, summarise
from howfar.experiments.replication.crash.analysis import (
    CrashFindings,
    CrashLoss,
    JoinCost,
    conclude,
    crash_findings,
    detail_findings,
    explain,
    lost_before_text,
    lost_per_crash,
    predicted_loss,
)
from howfar.experiments.replication.crash.report import Crash, evidence, loss_notes, loss_table
from howfar.experiments.replication.fault.crash import ClientLog, KeyComparison, Keys, compare_keys, compare_visibility
from howfar.experiments.replication.records import CpuShares, CrashRecord
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.report.text import json_values
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import mean_interval
from howfar.store.records import Run, TrialStatus

# ---------------------------------------------------------------- the account of one crash


def keys(*numbers: int) -> Keys:
    return np.array(numbers, np.int64)


NOTHING = keys()


def log(acknowledged: Keys, refused: Keys = NOTHING, unknown: Keys = NOTHING) -> ClientLog:
    return ClientLog(acknowledged, refused, unknown)


def test_each_key_is_where_it_belongs() -> None:
    logs = [log(keys(1, 2, 3), keys(4, 5), keys(6, 7)), log(keys(11, 12), unknown=keys(16))]
    found = compare_keys(logs, keys(12, 1, 3, 5, 7, 99, 1))
    assert (found.kept, found.lost.tolist(), found.acknowledged) == (3, [2, 11], 5)
    assert (found.applied_unknown.tolist(), found.absent_unknown) == ([7], 2)
    assert (found.applied_refused.tolist(), found.absent_refused) == ([5], 1)
    assert (found.uninserted.tolist(), found.duplicates.tolist(), found.repeated.tolist()) == ([99], [1], [])
    assert not found.is_sound


def test_nothing_asked_and_nothing_found() -> None:
    nothing = compare_keys([], keys())
    assert (nothing.acknowledged, nothing.is_sound) == (0, True)


def test_a_key_that_two_clients_asked_for_is_in_no_other_class() -> None:
    found = compare_keys([log(keys(1, 2)), log(keys(2), unknown=keys(3))], keys(1, 2))
    assert (found.repeated.tolist(), found.kept, found.lost.tolist()) == ([2], 1, [])
    assert not found.is_sound


LOGS = st.lists(st.sampled_from(["acknowledged", "refused", "unknown", "nobody's"]), min_size=1, max_size=60)


def made(fates: list[str], on_survivor: list[bool]) -> tuple[list[ClientLog], Keys]:
    """Logs of two clients that share keys 0, 1, … with these fates, and the keys on the survivor."""
    logs = []
    for client in range(2):
        mine = {fate: keys(*(k for k, f in enumerate(fates) if f == fate and k % 2 == client)) for fate in set(fates)}
        logs.append(ClientLog(*(mine.get(fate, keys()) for fate in ("acknowledged", "refused", "unknown"))))
    return logs, keys(*(key for key, there in enumerate(on_survivor) if there))


def sizes(found: KeyComparison) -> tuple[int, ...]:
    return (
        found.kept,
        len(found.lost),
        len(found.applied_unknown),
        found.absent_unknown,
        len(found.applied_refused),
        found.absent_refused,
        len(found.uninserted),
    )


@given(fates=LOGS, data=st.data())
def test_the_classes_are_a_partition(fates: list[str], data: st.DataObject) -> None:
    there = data.draw(st.lists(st.booleans(), min_size=len(fates), max_size=len(fates)))
    logs, present = made(fates, there)
    found = compare_keys(logs, present)
    absent_strangers = sum(fate == "nobody's" and not here for fate, here in zip(fates, there, strict=True))
    assert sum(sizes(found)) == len(fates) - absent_strangers
    assert found.acknowledged == fates.count("acknowledged")


@given(count=st.integers(1, 50), data=st.data())
def test_a_fault_planted_in_a_log_is_found(count: int, data: st.DataObject) -> None:
    """Dropping a record, adding a made-up one, or changing a fate each changes the account, by exactly that key."""
    present = np.arange(count, dtype=np.int64)
    honest = compare_keys([log(present)], present)
    assert honest.is_sound and honest.kept == count and len(honest.lost) == 0
    key = data.draw(st.integers(0, count - 1))
    dropped = compare_keys([log(np.delete(present, key))], present)
    assert dropped.uninserted.tolist() == [key]
    made_up = compare_keys([log(np.append(present, count))], present)
    assert made_up.lost.tolist() == [count]
    turned = compare_keys([log(np.delete(present, key), unknown=keys(key))], present)
    assert turned.applied_unknown.tolist() == [key] and turned.kept == count - 1
    twice = compare_keys([log(np.append(present, key))], present)
    assert twice.repeated.tolist() == [key] and not twice.is_sound


def test_what_others_saw_before_its_client_knew() -> None:
    """Key 3 was seen 5 ns before its acknowledgement, 1 after, 2 at the same time; 9 was never acknowledged; 3 did not survive."""
    found = compare_visibility(keys(3, 1, 9, 2), keys(10, 30, 40, 50), keys(1, 2, 3), keys(20, 50, 15), keys(1, 2, 9))
    assert (found.early.tolist(), found.early_ns.tolist()) == ([3], [5])
    assert (found.unacknowledged.tolist(), found.phantoms.tolist()) == ([9], [3])


# ---------------------------------------------------------------- losses over many crashes


@pytest.fixture(scope="module")
def findings() -> CrashFindings:
    found = crash().find_findings(ReplicationFindings)
    assert found is not None and found.crash is not None and found.cost is None
    return found.crash


def _loss(found: CrashFindings | None, arm: str) -> CrashLoss:
    assert found is not None
    (loss,) = [loss for loss in found.losses if loss.arm == arm]
    return loss


def test_what_is_lost_was_acknowledged_while_the_replica_was_cut_off(findings: CrashFindings) -> None:
    loss = _loss(findings, "asynchronous")
    assert (loss.crashes, loss.crashes_with_loss, loss.most_lost, len(loss.each)) == (CRASHES, CRASHES, 3270, CRASHES)
    assert loss.predicted_lost is not None and loss.predicted_lost.value == pytest.approx(3000)
    low, high = loss.lost_per_crash.low, loss.lost_per_crash.high
    assert low is not None and high is not None and low < loss.predicted_lost.value < high
    assert loss.lost_age_ms == pytest.approx(45)
    assert (loss.each[0].first_lost_ms, loss.each[0].dead_ms, loss.each[0].promotion_ms) == (-45.0, 500.0, 80.0)


def test_no_loss_seen_is_no_proof(findings: CrashFindings) -> None:
    for arm in ("sync", "commit"):
        loss = _loss(findings, arm)
        assert (loss.lost, loss.predicted_lost, loss.each[0].first_lost_ms) == (0, None, None)
        assert loss.share_that_may_lose == pytest.approx(0.139, abs=0.001), "the rule of three: 3/20"
        assert (loss.lost_per_crash.low, loss.lost_per_crash.high) == (None, None), "a share is no count"


def test_details_hold_what_the_tables_do_not(findings: CrashFindings) -> None:
    details = detail_findings(findings.losses)
    assert [(finding.id, finding.subject) for finding in details] == [
        ("age", "asynchronous replication"),
        ("age", "asynchronous replication"),
        ("bound", "semi-sync AFTER_SYNC"),
        ("bound", "semi-sync AFTER_COMMIT"),
        ("early-reads-by", "semi-sync AFTER_COMMIT"),
        ("phantoms", "semi-sync AFTER_COMMIT"),
        ("applied", ""),
    ]
    assert len(findings.sentences) == len(details)
    figures = {name: value for finding in details for name, value in finding.parameters.items()}
    assert (figures["acknowledged"], figures["lead_ms"], figures["phantoms"], figures["applied"]) == (
        420_000,
        84,
        100,
        40,
    )
    refused = [crash_trial(at, 0, "sync", applied_refused=2, refused=3) for at in range(3)]
    found = crash_findings(run_of("mysql", [CRASH_ARMS[2]], refused, "crash"))
    assert found is not None
    last = detail_findings(found.losses)[-1]
    assert (last.id, last.parameters["applied"]) == ("refused", 6)
    unwatched = [loss.model_copy(update={"seen_early_median_ms": None}) for loss in findings.losses]
    assert "early-reads" in {finding.id for finding in detail_findings(unwatched)}


def test_the_cause_is_the_age_of_what_the_mode_of_the_answer_lost(findings: CrashFindings) -> None:
    answer, (cause,) = crash().answer, crash().answer.causes
    assert answer.findings[0].id == "lost"
    assert (cause.id, cause.subject) == ("unprotected", answer.findings[0].subject)
    assert cause.parameters == pytest.approx({"age_ms": 45})
    other = _loss(findings, "asynchronous").model_copy(update={"mode": "commit-off", "lost_age_ms": 7.0})
    (cause,) = explain([other, *findings.losses], answer.findings[0])
    assert cause.parameters["age_ms"] == pytest.approx(45), "not that of the first mode in the plan"


def test_void_crashes_are_counted_and_in_no_figure() -> None:
    planted = crash_trial(900, 9999, "sync").model_copy(update={"status": TrialStatus.VOID, "void_reason": "planted"})
    run = run_of("mariadb", CRASH_ARMS, [*crash_trials(), planted], "crash")
    loss = _loss(crash_findings(run), "sync")
    assert (loss.lost, loss.void_crashes, loss.crashes) == (0, 1, CRASHES)
    assert crash_findings(run_of("mariadb", CRASH_ARMS, [planted, fallback_trial()], "crash")) is None
    summary = summarise(run)
    assert summary.blocks == CRASHES and summary.unmeasured == ()


def test_the_trade_of_crashes() -> None:
    found = crash().find_findings(ReplicationFindings)
    assert found is not None
    rows = {row.mode: row for row in found.trade}
    assert list(rows) == ["async", "after-commit", "after-sync"]
    assert (rows["async"].cost, rows["async"].crashes, rows["async"].fault) == (None, CRASHES, "cut")
    assert rows["async"].lost_per_crash is not None and rows["async"].lost_per_crash.value > 2000
    assert rows["after-sync"].cost is not None and rows["after-sync"].cost.value == pytest.approx(110 / 6000, rel=0.01)
    assert (rows["after-commit"].phantoms, rows["after-sync"].phantoms) == (True, False)


def test_a_row_of_the_trade_has_one_fault_and_is_compared_with_its_like() -> None:
    other = crash_arm("relaxed", "async", durability="relaxed")
    trials = [*crash_trials(), *(crash_trial(900 + at, 9, "relaxed", commits_per_s=9000.0) for at in range(3))]
    found = findings_of(summarise(run_of("mariadb", [*CRASH_ARMS, other], trials, "crash")), ReplicationFindings)
    rows = [(row.mode, row.durability, row.fault, row.crashes) for row in found.trade]
    assert rows[:2] == [("async", "strict", "cut", CRASHES), ("async", "relaxed", "cut", 3)]
    assert [row.cost is None for row in found.trade] == [True, True, False, False], "a reference for each durability"


def test_a_semi_synchronous_loss_begins_the_answer_and_changes_the_advice() -> None:
    more = [crash_arm(f"apart {fault}", "async", fault) for fault in ("cut-to-replica", "stop-replica")]
    trials = [*crash_trials(), crash_trial(901, 7, "sync")]
    trials += [crash_trial(910 + at, 50, arm.name) for at, arm in enumerate(more)]
    summary = summarise(run_of("mariadb", [*CRASH_ARMS, *more], trials, "crash"))
    first, *others = summary.answer.findings
    assert (first.id, first.subject, first.parameters["lost"]) == ("broken-promise", "semi-sync AFTER_SYNC", 7)
    assert [(finding.id, finding.subject) for finding in others] == [
        ("lost", "asynchronous replication"),
        ("none-lost", "semi-sync AFTER_COMMIT"),
    ]
    assert others[0].parameters["fault"] == "cut", "the fault of the table's row"
    assert summary.answer.causes == (), "why asynchronous replication loses commits is no cause of this answer"
    assert "AFTER_COMMIT" in summary.advice[0].action
    found = findings_of(summary, ReplicationFindings).crash
    assert found is not None and "worst" in {finding.id for finding in detail_findings(found.losses)}


def test_the_advice_has_lines_and_reasons() -> None:
    safe, fast = summarise(run_of("mysql", CRASH_ARMS, crash_trials(), "crash")).advice[:2]
    assert "AFTER_SYNC" in safe.action and "rpl-semi-sync-source-wait-point = AFTER_SYNC" in safe.lines
    for figure in ("420,000", "100 commits"):
        assert figure in safe.because
    assert "asynchronously" in fast.action and "2,985" in fast.because
    assert not any("semi" in line for line in fast.lines)
    arms = [arm.model_copy(update={"factors": {**arm.factors, "durability": "off"}}) for arm in CRASH_ARMS]
    less = summarise(run_of("mysql", arms, crash_trials(), "crash")).advice[0]
    assert "durability off" in less.because and "sync-binlog = 1" in less.lines
    nothing = summarise(run_of("mysql", CRASH_ARMS[:1], [crash_trial(at, 0) for at in range(20)], "crash")).advice[0]
    assert "20 crashes" in nothing.because and "0.139" not in nothing.because


def _crash(**fields: Any) -> CrashRecord:
    fault = crash_trial(1, 5, **fields).fault
    assert isinstance(fault, CrashRecord)
    return fault


def test_what_is_predicted_for_one_crash() -> None:
    assert predicted_loss(_crash(dead_ns=3200 * MS, commits_per_s=1000.0)) == pytest.approx(200)
    killed = {"fault": "kill-primary", "dead_ns": 3000 * MS, "commits_per_s": 1000.0}
    assert predicted_loss(_crash(**killed, behind_before=60)) == 60
    assert predicted_loss(_crash(**killed, behind_before=60, unreceived_before=9)) == 9
    assert predicted_loss(_crash(**killed, behind_before=None)) is None
    assert predicted_loss(_crash(fault="cut", dead_ns=3200 * MS, in_force_ns=3100 * MS, commits_per_s=1000.0)) == 100
    assert predicted_loss(_crash(fault="cut-to-primary")) is None, "TCP goes on sending for a while"


@pytest.mark.parametrize(("idle", "expected"), [(0.0, 1000 * (1 + 0.5 * 0.5 / 1.5)), (0.5, 1000)])
def test_a_replica_without_work_leaves_full_cpus_to_the_primary(idle: float, expected: float) -> None:
    """The replica needs half of the second to apply the 500 transactions that it has received."""
    shares = CpuShares(busy=2 - idle, idle=idle, replicas=0.5)
    lag = {"behind_before": 600, "unreceived_before": 100, "applied_per_s_before": 1000.0}
    cut = _crash(fault="cut", dead_ns=4100 * MS, in_force_ns=3100 * MS, commits_per_s=1000.0, cpus_before=shares, **lag)
    assert predicted_loss(cut) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("more", "by_force", "text"), [({}, None, "at least 9"), ({"lost_in_force": 40}, 30, "9 to 30")]
)
def test_what_was_acknowledged_before_the_cut_was_in_force_is_bounded(
    more: dict[str, Any], by_force: int | None, text: str
) -> None:
    trials = [crash_trial(number, 50, lost_after=47, **more) for number in range(3)]
    found = crash_findings(run_of("mysql", CRASH_ARMS[:1], trials, "crash"))
    loss = _loss(found, "asynchronous")
    assert (loss.lost, loss.lost_before, loss.lost_by_force) == (150, 9, by_force)
    assert lost_before_text(loss) == text and text in evidence([loss])[0]
    one_way = [trial.model_copy(update={"fault": _crash(fault="cut-to-primary")}) for trial in trials]
    other = _loss(crash_findings(run_of("mysql", CRASH_ARMS[:1], one_way, "crash")), "asynchronous")
    assert text not in evidence([other])[0], "data still leave the primary"


_LAWS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "lag x rate": lambda rng, n: np.round(rng.normal(5000, 500, n)),
    "few": lambda rng, n: rng.poisson(3, n).astype(float),
    "skewed": lambda rng, n: (rng.geometric(0.25, n) - 1).astype(float),
    "half of them nothing": lambda rng, n: np.where(rng.random(n) < 0.5, 0, np.round(rng.exponential(20, n))),
}


@pytest.mark.parametrize(("law", "least"), list(zip(_LAWS, (0.92, 0.92, 0.88, 0.84), strict=True)))
def test_the_interval_of_the_mean_covers_the_truth(law: str, least: float) -> None:
    """Coverage over experiments of 20 crashes; a percentile bootstrap of the same experiments covers fewer."""
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


def test_an_interval_of_counts_is_not_below_zero() -> None:
    assert mean_interval([0, 0, 0, 0, 9]).low is not None
    assert lost_per_crash([0, 0, 0, 0, 9]).low == 0.0
    assert lost_per_crash([4]).low is None


def test_an_arm_that_broke_something_has_no_rate_over_its_outage() -> None:
    made = replication_run(Server(), threads=(16,), modes=("async",), extra={"fault": "cut"})
    fault = crash_trial(1, 50).fault
    trials = [trial.model_copy(update={"fault": fault}) for trial in made.trials]
    found = summarise(run_of("mariadb", made.info.arms, trials, "crash"))
    (cell,) = found.cells
    assert (cell.limit, cell.cycle) == (None, None)
    assert {point.qps for point in found.trials} == {None}
    assert json_values(found)["cells"] == []
    (record,) = Crash().document(found).records
    assert "qps" not in record and record["lost"] == 200 and float(str(record["commits_per_s"])) == 6000


def cluster_run(by_itself: int = 0) -> Run:
    """A Galera cluster with a node killed or cut off, six times each; the rest continues after about 6 s."""
    faults = ("kill-primary", "cut-off-primary", "cut-off-member")
    arms = [crash_arm(fault, "galera", fault, replicas=2) for fault in faults]
    lost = {"cut-off-primary": by_itself}
    trials = [
        crash_trial(
            6 * at + number,
            lost.get(fault, 0),
            fault,
            fault=fault,
            stall_ns=6 * 10**9 + at * 50 * MS,
            by_itself=lost.get(fault, 0),
        )
        for at in range(6)
        for number, fault in enumerate(faults)
    ]
    return run_of("mariadb", arms, trials, "crash")


@pytest.mark.parametrize(
    ("fault", "back_s", "mean_s"),
    [
        ("member-returns", (4.0,) * 4 + (None,) * 2, 4),
        ("slow-member", (None,) * 6, None),
        ("member-returns", (4.0,) * 6, 4),
        ("cut-off-member", (None,) * 6, None),
    ],
)
def test_a_member_that_did_not_come_back_is_counted(
    fault: str, back_s: tuple[float | None, ...], mean_s: float | None
) -> None:
    """A member that stays cut off, because the fault was not mended, is not expected back."""
    trials = [
        crash_trial(
            at,
            0,
            fault,
            fault=fault,
            stall_ns=0,
            meanwhile_per_s=3000.0,
            back_ns=None if back is None else int(back * 1e9),
        )
        for at, back in enumerate(back_s)
    ]
    found = crash_findings(run_of("mariadb", [crash_arm(fault, "galera", fault, replicas=2)], trials, "crash"))
    assert found is not None
    loss = _loss(found, fault)
    absent = back_s.count(None) if fault != "cut-off-member" else 0
    assert loss.not_back == absent
    assert (loss.back_s.value if loss.back_s else None) == mean_s
    notes = [note for note in loss_notes(found.losses) if f"{absent} trials" in note]
    assert len(notes) == bool(absent)


def test_a_cluster_says_how_long_its_clients_waited_and_who_went_on_alone() -> None:
    summary = summarise(cluster_run())
    lost, stall, silence = summary.answer.findings
    assert (lost.id, lost.subject, lost.parameters["acknowledged"]) == ("none-lost", "Galera", 378_000)
    assert stall.id == "stall" and stall.estimate is not None and stall.estimate.value == pytest.approx(6.125)
    assert (silence.id, silence.parameters["cuts"]) == ("isolated-silence", 12)
    found = findings_of(summary, ReplicationFindings).crash
    assert found is not None
    table = loss_table(found.losses)
    assert [(cell.text, cell.below) for cell in table.rows[1][4:6]] == [("6.12", "[6.03, 6.22]"), ("0", "")]
    assert "cuts-bound" in {finding.id for finding in detail_findings(found.losses)}
    isolated = [loss for loss in found.losses if loss.fault.startswith("cut-off")]
    assert conclude(isolated, {})[0].id == "isolated-silence", "the question was about isolation"
    lost, writes, *_ = summarise(cluster_run(by_itself=40)).answer.findings
    assert (lost.id, lost.parameters["lost"]) == ("broken-promise", 240)
    assert (writes.id, writes.parameters["writes"]) == ("isolated-writes", 240)
    assert "cut off" in render_in_terminal(summary, 100, False, True, True)


@pytest.mark.parametrize("fault", ["member-joins", "member-restarts"])
def test_a_node_that_joins_takes_time_and_commits(fault: str) -> None:
    found = findings_of(summarise(cluster_run()), ReplicationFindings).crash
    assert found is not None
    seconds, share = Estimate(value=12.3, low=11, high=13), Estimate(value=0.4, low=0.3, high=0.5)
    join = JoinCost(how=("SST",), received_bytes=seconds, link_busy=share)
    joined = found.losses[0].model_copy(update={"fault": fault, "back_s": seconds, "meanwhile": share, "join": join})
    first, second, *_ = conclude([joined], {})
    assert [(finding.id, finding.estimate) for finding in (first, second)] == [(fault, seconds), ("meanwhile", share)]
    assert "donor-limit" not in {finding.id for finding in detail_findings([joined])}
    full = joined.model_copy(
        update={"join": join.model_copy(update={"link_busy": Estimate(value=0.97, low=None, high=None)})}
    )
    assert "donor-limit" in {finding.id for finding in detail_findings([full])}
    unresolved = joined.model_copy(update={"meanwhile": Estimate(value=0.9, low=0.7, high=1.1)})
    assert "meanwhile" not in {finding.id for finding in conclude([unresolved], {})}
