"""The model of a cluster's agreement against times computed by hand, and a run of a cluster against that model."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.made import build, build_trial, latency, with_receipt
from tests.unit.made_replication import MS, run_of
from tests.unit.rendered import is_short

from howfar.analysis.answer import UNRESOLVED, sentence
from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import DirectionStats
from howfar.contract.receipt import (
    LinkCounters,
    LinkReceipt,
    ReplicationReceipt,
    SecondWriter,
    TrialReceipt,
    WritersReceipt,
)
from howfar.contract.receipt_messages import CpuUse, Histogram
from howfar.contract.receipt_part import ReceiptPart
from howfar.contract.replication_receipt import ReplicationWindow
from howfar.experiments.registry import document, experiment_of, summarise
from howfar.experiments.replication.agreement import agreement_s, read_wait_s
from howfar.experiments.replication.cluster.analysis import ClusterCost, conclude, explain
from howfar.experiments.replication.cluster.report import conflict_tables, draw_rates_over_distance, main_table
from howfar.experiments.replication.cluster.texts import TEXTS
from howfar.experiments.replication.distances import rtts_ns
from howfar.report.terminal import render
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution
from howfar.store.records import Arm, ArmRole, Measured, Trial

EQUAL = "10ms,10ms,10ms"


@pytest.mark.parametrize(
    ("mode", "consistency", "distances", "ms"),
    [
        ("group-leader", "eventual", EQUAL, 10),  # a majority
        ("group", "eventual", EQUAL, 20),  # plus the turns of the other members
        ("galera", "eventual", EQUAL, 15),  # once round the triangle
        ("group", "after", EQUAL, 40),  # ordered there, and its answer ordered here
        ("group-leader", "after", EQUAL, 30),
        ("group", "before", EQUAL, 40),
        ("galera", "before", EQUAL, 15),
        # The far node learns of it through the near one (5 + 10) after a majority took 10; its answer takes 20.
        ("group", "eventual", "10ms,40ms,20ms", 45),
        ("group-leader", "eventual", "10ms,40ms,20ms", 10),
        ("galera", "eventual", "10ms,40ms,20ms", 40),
        # The second node waits for the third's message (10 + 20); its answer takes 5.
        ("galera", "eventual", "10ms,20ms,40ms", 35),
        ("galera", "eventual", "2ms,50ms,50ms", 51),
        ("group", "eventual", "2ms,50ms,50ms", 52),
    ],
)
def test_an_agreement_takes_what_its_messages_take(mode: str, consistency: str, distances: str, ms: float) -> None:
    rtts = {pair: ns / 1e9 for pair, ns in rtts_ns(distances, 3).items()}
    assert agreement_s(mode, consistency, rtts) == pytest.approx(ms / 1e3)


def test_a_read_waits_for_one_message_where_it_has_to_be_ordered() -> None:
    rtts = {pair: ns / 1e9 for pair, ns in rtts_ns(EQUAL, 3).items()}
    seen = {
        (mode, level): round(read_wait_s(mode, level, rtts) * 1e3)
        for mode in ("galera", "group", "group-leader")
        for level in ("eventual", "before", "after", "before-and-after")
    }
    assert {key: ms for key, ms in seen.items() if ms} == {
        ("group", "before"): 20,
        ("group", "before-and-after"): 20,
        ("group-leader", "before"): 10,
        ("group-leader", "before-and-after"): 10,
    }


def test_five_nodes_need_two_others_for_a_majority() -> None:
    rtts = {pair: ns / 1e9 for pair, ns in rtts_ns("two-near-one-far", 5).items()}
    assert agreement_s("group-leader", "eventual", rtts) == pytest.approx(1e-3), "nodes 1, 3 and 4 are near"


def _arm(name: str, **factors: Any) -> Arm:
    levels = {"path": "socket", "threads": 1, "replica_rate_bps": 10**9, "replicas": 2, "replication": "none"} | factors
    return Arm(name=name, role=ArmRole.BASELINE if name == "alone" else ArmRole.CONTENDER, factors=levels)


def _trial(number: int, arm: str, commit_ns: int, rtts: dict[str, int]) -> Trial:
    count = 1000
    measured = build(
        Measured,
        transactions=count,
        queries=count,
        elapsed_ns=count * commit_ns,
        histograms=(latency(Histogram, "transaction", [commit_ns], count),),
    )
    receipt = TrialReceipt(replication=ReplicationReceipt(rtt_at_rest_ns={**rtts}))
    return build_trial(number, arm, block=number % 6, measured=measured, receipt=receipt)


def _link_that_carried(wire_bytes: int) -> LinkReceipt:
    """A link that carried so many bytes to its client."""
    to_client = build(DirectionStats, wire_bytes=wire_bytes)
    return LinkReceipt(counters=LinkCounters(to_server=build(DirectionStats), to_client=to_client))


def test_the_report_says_what_a_commit_costs_and_how_well_it_was_predicted() -> None:
    near, far = ({"replica1": MS, "replica2": f, "replica1-replica2": f} for f in (MS, 85 * MS))
    arms = [
        _arm("alone"),
        _arm("near", replication="galera", distances="three-zones"),
        _arm("far", replication="galera", distances="two-near-one-far"),
    ]
    times = {"alone": (MS // 2, {}), "near": (1_500_000 + 2 * MS, near), "far": (85_500_000 + 2 * MS, far)}
    trials = [
        _trial(6 * index + block, arm.name, *times[arm.name]) for index, arm in enumerate(arms) for block in range(6)
    ]
    summary = summarise(run_of("mariadb", arms, trials, "cluster"))
    found = summary.find_findings(ClusterCost)
    assert found is not None and experiment_of(summary).name == "cluster"
    points = {point.arm: point for point in found.points}
    assert points["near"].predicted_ms is None, "the model is made of it"
    assert points["far"].error == pytest.approx(0, abs=0.002)
    assert (points["near"].agreement_ms, points["far"].agreement_ms) == pytest.approx((1.5, 85.5), abs=1e-3)
    far_finding, near_finding = summary.answer.findings
    assert (far_finding.id, near_finding.id) == ("slowed", "elsewhere")
    assert far_finding.estimate == points["far"].p50_ms and near_finding.estimate == points["near"].p50_ms
    assert far_finding.parameters["alone_ms"] == pytest.approx(0.5, rel=0.01)
    clusters = [point for point in found.points if point.mode != "none"]
    other = points["near"].model_copy(update={"mode": "group"})
    without = conclude(found.model_copy(update={"points": (*clusters, other)}), partial(_always, Resolution.SLOWER))
    assert [(finding.id, finding.subject) for finding in without] == [
        ("takes", "Galera"),
        ("elsewhere", "Group Replication"),
        ("elsewhere", "Galera"),
    ]
    (cause,) = summary.answer.causes
    assert (cause.subject, cause.parameters["nearest_ms"], cause.parameters["farthest_ms"]) == (
        far_finding.parameters["distances"],
        1,
        85,
    )
    assert summary.answer.why == sentence([cause], TEXTS)
    is_short(summary.answer.why)
    crowd = points["far"].model_copy(update={"threads": 64, "farthest_ms": 200.0})
    assert explain(found.model_copy(update={"points": (*found.points, crowd)})) == (cause,), "that of the answer"
    reads = found.model_copy(update={"operation": "read"})
    assert "a read waits" in sentence(explain(reads), TEXTS)
    idle = [point.model_copy(update={"agreement_ms": 0.0}) for point in found.points]
    assert explain(reads.model_copy(update={"points": (*idle,)})) == (), "a read that is not ordered waits for no node"
    assert len(main_table(found).rows) == 3
    assert (points["near"].second_ms, points["far"].second_ms, points["alone"].second_ms) == (1, 85, None)
    drawing = draw_rates_over_distance(found, 900)
    assert drawing is not None
    drawn = [layer["data"]["values"] for layer in drawing["layer"]]
    assert {round(row["rtt"] * row["tps"]) for row in drawn[0]} == {1000, 667, 500}, (
        "1/RTT, for each number of round trips"
    )
    across, line = drawn[1], drawn[2]
    assert [row["series"] for row in across] == ["no replica"], "it has no distance"
    assert [(row["rtt"], row["low"] <= row["tps"]) for row in line] == [(1, True), (85, True)]
    assert "predicted p50" in render(document(summary), 100, False, False, False)


def test_a_single_leader_is_advised_where_it_is_resolved_within_blocks_and_beyond_the_noise() -> None:
    """On a drifting machine, commits take a fifth less with a single leader: resolved within blocks, not by intervals of the means."""
    rtts = {"replica1": MS, "replica2": MS, "replica1-replica2": MS}
    arms = [_arm("alone"), _arm("alone (again)")]
    arms[1] = arms[1].model_copy(update={"role": ArmRole.DUPLICATE})
    arms += [_arm(mode, replication=mode, distances="three-zones") for mode in ("group", "group-leader")]
    times = {"alone": MS // 2, "alone (again)": MS // 2, "group": 5 * MS, "group-leader": 4 * MS}

    def advice(again: float) -> list[str]:
        trials = []
        for index, arm in enumerate(arms):
            for block in range(6):
                ns = times[arm.name] * (1 + block / 5) * (again if arm.name.endswith("(again)") else 1)
                trials.append(_trial(6 * index + block, arm.name, round(ns), rtts if "group" in arm.name else {}))
        return [each.action for each in summarise(run_of("mysql", arms, trials, "cluster")).advice]

    assert any("group_replication_paxos_single_leader" in action for action in advice(1.01))
    assert not any("group_replication_paxos_single_leader" in action for action in advice(1.5))


def test_a_large_row_is_predicted_from_the_bytes_that_its_links_counted() -> None:
    rtts = {"replica1": MS, "replica2": MS, "replica1-replica2": MS}
    shared = {"replication": "galera", "distances": "three-zones", "row_bytes": 10**6}
    arms = [
        _arm("alone", row_bytes=10**6),
        _arm("slow", **shared, replica_rate_bps=10**8),
        _arm("crowded", **shared, replica_rate_bps=10**9),
        _arm("far", **shared | {"distances": "two-near-one-far"}, replica_rate_bps=10**9),
    ]
    twice = 2_500_000  # bytes: 200 ms at 100 Mb/s, 20 at 1 Gb/s
    # 37 pieces, two at a time: 19 rounds, each of an agreement and 0.5 ms for a piece.
    far_ms = 10 + 85.5 + 18 * 86.016 + 0.516
    times = {"alone": 10 * MS, "slow": int(211.5 * MS), "crowded": 80 * MS, "far": int(far_ms * MS)}
    beyond = {"replica1": MS, "replica2": 85 * MS, "replica1-replica2": 85 * MS}
    trials = []
    for index, arm in enumerate(arms):
        for block in range(6):
            trial = _trial(
                6 * index + block, arm.name, times[arm.name], {"alone": {}, "far": beyond}.get(arm.name, rtts)
            )
            assert trial.measured is not None
            busy = build(CpuUse, role="replica_link", cpu_ns=2 * 50 * MS * trial.measured.transactions)
            measured = trial.measured.model_copy(
                update={"warmup_transactions": 250, "cpu": (busy,) if arm.name == "crowded" else ()}
            )
            sent = twice * (trial.measured.transactions + 250 + 1)
            links = {name: _link_that_carried(sent if "-" not in name else 9 * sent) for name in rtts}
            if arm.name != "alone":
                assert trial.receipt.replication is not None
                replication = trial.receipt.replication.updated(ReplicationReceipt(links=links))
                trial = with_receipt(trial, replication=replication)
            trials.append(trial.model_copy(update={"measured": measured}))
    run = run_of("mariadb", arms, trials, "cluster-rows")
    info = run.info.model_copy(update={"environment": RunEnvironment(cpu_count=2)})
    summary = summarise(run.model_copy(update={"info": info}))
    found = summary.find_findings(ClusterCost)
    assert found is not None
    points = {point.arm: point for point in found.points}
    slow, crowded = points["slow"], points["crowded"]
    assert (slow.sent_bytes, slow.sending_ms, slow.agreement_ms) == pytest.approx((twice, 200, 1.5), rel=1e-3)
    assert slow.predicted_ms == pytest.approx(211.5, rel=1e-3) and not slow.crowded
    assert slow.error is None, "by construction: the bytes that were counted at the rate that was set"
    assert crowded.crowded and crowded.error is None, "two CPUs had 50 ms of work each in 80"
    assert crowded.predicted_ms == pytest.approx(10 + 1.5 + 18 * 2.016 + 0.516, rel=0.002), (
        "where nodes have CPUs of their own"
    )
    far = points["far"]
    assert far.error == pytest.approx(0, abs=1e-3) and not far.crowded, "Galera waits for its pieces"
    printed = render(document(summary), 100, False, False, True)
    assert (
        "2.5 MB" in printed and "sent 2.5 times the bytes of a large row" in printed and "CPUs of their own" in printed
    )


def _always(verdict: Resolution, arm: str, ratio: Estimate) -> Resolution:
    return verdict


def test_the_report_says_what_two_writers_of_one_row_repeat() -> None:
    rtts = {"replica1": MS, "replica2": MS, "replica1-replica2": MS}
    shared = {"replication": "galera", "distances": "three-zones"}
    arms = [_arm("alone"), *(_arm(rows, **shared, writers=rows) for rows in ("own-rows", "same-row"))]
    trials = []
    for index, arm in enumerate(arms):
        for block in range(6):
            trial = _trial(6 * index + block, arm.name, 2 * MS, rtts)  # 500/s of the first
            assert trial.measured is not None
            own = arm.name == "own-rows"
            window = ReplicationWindow(counted={"replica1": {"conflicts": 7, "wsrep_local_bf_aborts": 3}})
            parts: dict[str, ReceiptPart] = {"replication": ReplicationReceipt(rtt_at_rest_ns={**rtts}, window=window)}
            transactions = 0 if not own and block == 0 else 500 if own else 250
            second = SecondWriter(
                elapsed_ns=10**9,
                transactions=transactions,
                errors={} if own else {"1213": 200},
                p50_ns=3 * MS if transactions else None,
            )
            errors = {"1213": 0 if own else 100}  # in 2 s
            if arm.name != "alone":
                parts["writers"] = build(WritersReceipt, second=second)
            measured = trial.measured.model_copy(update={"errors": errors})
            trials.append(with_receipt(trial, **parts).model_copy(update={"measured": measured}))
    summary = summarise(run_of("mariadb", arms, trials, "cluster-conflicts"))
    found = summary.find_findings(ClusterCost)
    assert found is not None and experiment_of(summary).name == "cluster"
    points = {point.arm: point for point in found.points}
    own_rows, same = points["own-rows"].writers, points["same-row"].writers
    assert points["alone"].writers is None and own_rows is not None and same is not None
    assert (own_rows.commits_per_s.value, own_rows.refused_per_s.value, own_rows.to_own_rows) == (1000, 0, None)
    assert (same.commits_per_s.value, same.refused_per_s.value) == pytest.approx(((5 * 750 + 500) / 6, 250))
    assert same.repeated_percent.value == pytest.approx((5 * 25 + 100 / 3) / 6)
    assert same.to_own_rows is not None and 0.5 < same.to_own_rows.value <= 0.751
    assert (points["same-row"].conflicts, same.aborted, same.starved) == (42, 18, 1)
    for verdict, name in ((Resolution.SLOWER, "same-row"), (Resolution.NOT_RESOLVED, UNRESOLVED)):
        findings = conclude(found, partial(_always, verdict))
        assert [finding.id for finding in findings] == [name, "refused", "starved"]
        assert findings[0].estimate == same.to_own_rows and findings[2].parameters["starved"] == 1
    assert {finding.id for finding in summary.answer.findings} >= {"refused", "starved"}
    assert summary.answer.causes == (), "commits of one row wait for each other, whatever the distance"
    (table,) = conflict_tables(found)
    assert len(table.rows) == 2 and table in document(summary).blocks
