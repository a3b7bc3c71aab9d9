"""Trials with replication, without a server: what a cell requires of a pair, what a laboratory must have, what makes a trial void."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from tests.acknowledged_scenario import INSERTS
from tests.unit.fake_lab import FakeStage, finish, interval, receipt
from tests.unit.test_replication import REQUESTED, changed, snapshot

from howfar.analysis.summary import workload_line
from howfar.cli.session import lab_request
from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    Arrivals,
    LoadJob,
    Measuring,
    Ready,
    RttResult,
    Sysbench,
    UnixTarget,
)
from howfar.contract.receipt import QuantilesNs
from howfar.contract.replication_receipt import ReplicationWindow
from howfar.contract.server_receipt import pages_allowed
from howfar.contract.violation import Violation, violation
from howfar.engine.run_load import LoadOutcome
from howfar.errors import HowfarError, PlanError
from howfar.experiments.replication.lab import ReplicationSpec
from howfar.experiments.replication.lab.replicated_group import (
    DEFAULT_ACK_TIMEOUT_MS,
    agreement_violations,
    lag_records,
    node_links,
    replication_spec,
    replication_violations,
)
from howfar.experiments.replication.lab.watch import LagSample
from howfar.experiments.replication.load import InsertsLoad
from howfar.lab.link import LinkSpec
from howfar.lab.request import LabRequest, ReplicasSpec
from howfar.plan.cells import cells
from howfar.plan.estimate import LABORATORY_NS, REPORT_NS, estimate_cost
from howfar.plan.factors import FACTORS
from howfar.plan.fitting import without_levels
from howfar.plan.load import Override, load_plan
from howfar.plan.types import Plan, parse_stored_plan
from howfar.report.grid import level_text
from howfar.runner.loads.transactions import TransactionLoad, load_facts
from howfar.store.records import Arm, ArmRole
from howfar.testbed import LoadFacts

MS = 1_000_000


def plan(quick: bool = True, **factors: Any) -> Plan:
    found = load_plan("replication", quick=quick).plan
    return found.model_copy(update={"factors": found.factors.model_copy(update=factors)})


def by_mode(of: Plan) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in cells(of):
        found.setdefault(str(cell.factors["replication"]), []).append(cell.factors)
    return found


def test_a_cell_asks_for_its_pair() -> None:
    specs = {mode: replication_spec(factors[0]) for mode, factors in by_mode(plan()).items()}
    assert specs["none"] == ReplicationSpec(mode="none", replicas=0, durability="off")
    assert specs["async"] == ReplicationSpec(mode="async", durability="off")
    assert specs["after-sync"] == ReplicationSpec(durability="off")
    assert specs["after-commit"] == ReplicationSpec(wait_point="AFTER_COMMIT", durability="off")
    for each in specs.values():
        each.check()
    many: dict[str, Any] = {
        "replication": "after-sync",
        "replicas": 3,
        "wait_for": 2,
        "replica_tls": "on",
        "replica_compression": "zstd",
    }
    assert replication_spec(many) == ReplicationSpec(replicas=3, wait_for=2, tls=True, compression="zstd")
    leaves = replication_spec({"replication": "after-sync", "fault": "replica-leaves"})
    assert leaves.timeout_ms == DEFAULT_ACK_TIMEOUT_MS == 10_000, "the servers' own: a fallback is what is looked for"


def test_a_laboratory_has_what_all_cells_together_need() -> None:
    request = lab_request(plan(replicas=(1, 3)))
    assert request.replicas == ReplicasSpec("replicas", 3, LinkSpec(85 * MS, 10**9))
    assert (request.prepare, request.paths) == (INSERTS.prepare, ("socket",))
    assert request.copies == 2 * 4, "files and a pool for each of four servers"
    mixed = lab_request(plan(replication=("off", "none"))).replicas
    assert mixed == ReplicasSpec("replicas", 0, LinkSpec(0, None), also_standalone=True)
    paths = lab_request(load_plan("paths", quick=True).plan)
    assert (paths.replicas, paths.prepare, paths.copies) == (None, (), 1)
    far = lab_request(load_plan("paths", overrides=[Override("--rtt", ("factors", "rtt"), "5ms")]).plan)
    assert far.link == LinkSpec(5 * MS, 10**9)
    assert LabRequest(contents=("digits", "text"), replicas=mixed).copies == 2 + 2
    assert node_links({"replication": "none"}) == {}


def _override(factor: str, level: Any) -> Override:
    return Override(f"--{factor}", ("factors", factor), level)


def test_a_cluster_has_a_link_between_any_two_of_its_nodes() -> None:
    far: dict[str, Any] = {"replicas": 2, "distances": "two-near-one-far", "replica_rate_bps": 10**9}
    apart = {(0, 1): MS, (0, 2): 85 * MS, (1, 2): 85 * MS}
    assert node_links({"replication": "galera", **far}) == {pair: LinkSpec(ns, 10**9) for pair, ns in apart.items()}
    assert set(node_links({"replication": "async", **far})) == {(0, 1), (0, 2)}, "replicas do not talk with each other"
    written: dict[str, Any] = {
        "replication": "group",
        "replicas": 2,
        "distances": "1ms,2ms,3ms",
        "replica_rate_bps": 10**9,
    }
    assert [link.rtt_ns for link in node_links(written).values()] == [MS, 2 * MS, 3 * MS]
    request = lab_request(plan(replication=("none", "galera"), replicas=(2,), distances=("three-zones",)))
    assert request.replicas == ReplicasSpec("replicas", 2, LinkSpec(MS, 10**9), mesh=True)
    for wrong in ("somewhere", "1ms,2", "1ms,2ms"):
        with pytest.raises(HowfarError, match="distances"):
            load_plan("replication", overrides=[_override("replicas", 2), _override("distances", wrong)])


def test_nobody_waits_for_more_replicas_than_there_are() -> None:
    found = by_mode(plan(replicas=(1, 2), wait_for=(1, 2), threads=(1,)))
    assert {(factors["replicas"], factors["wait_for"]) for factors in found["after-sync"]} == {(1, 1), (2, 1), (2, 2)}
    assert [factors["replicas"] for factors in found["async"]] == [1, 2], "nobody waits there"


def test_what_a_server_cannot_replicate_is_left_out_and_said() -> None:
    replicated = plan(replicas=(2,), wait_for=(1, 2), replica_compression=("off", "zlib", "zstd"))
    fitted = without_levels(replicated, {"wait_for": {2: "one at most"}, "replica_compression": {"zstd": "zlib only"}})
    assert fitted.plan.factors.wait_for == (1,)
    assert fitted.notes == ("left out: wait_for 2: one at most", "left out: replica_compression zstd: zlib only")
    with pytest.raises(PlanError, match="asks for wait_for 2 only: one at most"):
        without_levels(plan(replicas=(2,), wait_for=(2,)), {"wait_for": {2: "one at most"}})


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_the_quick_plan_has_four_blocks_in_ten_minutes(server: str) -> None:
    replicated = plan(server=(server,))
    assert replicated.timing.time_budget_ns <= 580 * 10**9
    assert estimate_cost(replicated).arms == 2 * 4 + 1 + 2, "the A/A arm, two controls"
    assert (
        estimate_cost(replicated).fixed_ns + 4 * estimate_cost(replicated).block_ns <= replicated.timing.time_budget_ns
    )


def test_ones_own_distance_is_an_option() -> None:
    own = [Override("--replica-rtt", ("factors", "replica_rtt"), "40ms")]
    assert load_plan("replication", True, own).plan.factors.replica_rtt_ns == (40 * MS,)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({"replication": ["none"], "fault": "cut"}, "a fault needs a replica"),
        ({"replication": ["after-sync"], "wait_for": 2}, "cannot wait for 2 of 1 replicas"),
        ({"replication": ["off"], "durability": "strict", "replica_rtt": "20ms"}, "replica_rtt does not apply"),
        ({"replication": ["off"], "durability": "relaxed", "replica_rtt": "85ms"}, "durability does not apply"),
    ],
)
def test_what_cannot_be_is_refused_when_the_plan_is_read(factors: dict[str, Any], expected: str) -> None:
    shipped = load_plan("replication", quick=True).plan
    table = shipped.model_dump(mode="json") | {
        "factors": {"path": ["socket"], "threads": [1]} | factors,
        "baseline": {"threads": 1},
    }
    with pytest.raises(ValidationError, match=expected):
        Plan.model_validate(table | {"timing": {}})


def test_the_workload_says_when_a_commit_is_on_the_disk() -> None:
    fsync_ns = {"512": QuantilesNs(count=48, p50=797, p99=1000)}
    facts = RunEnvironment(work_file_system="tmpfs", data_fsync_ns=fsync_ns)
    sentence = workload_line(parse_stored_plan(plan().model_dump(mode="json")), facts)
    assert sentence.endswith("durability off (no commit is flushed), on tmpfs, where a write with fsync takes 797ns")
    assert "durability" not in workload_line(parse_stored_plan(load_plan("paths").plan.model_dump(mode="json")), facts)


def test_a_trial_costs_more_where_the_replica_is_far() -> None:
    near, far = plan(replica_rtt_ns=(MS,)), plan(replica_rtt_ns=(200 * MS,))
    near_ns, far_ns = (sum(int(cell.factors.get("replica_rtt_ns", 0)) for cell in cells(each)) for each in (near, far))
    assert estimate_cost(far).block_ns - estimate_cost(near).block_ns == 30 * (far_ns - near_ns)
    assert estimate_cost(near).fixed_ns > LABORATORY_NS + REPORT_NS, "its link is calibrated"
    assert estimate_cost(far).fixed_ns > estimate_cost(near).fixed_ns


def test_the_engine_inserts_single_rows_under_keys_of_its_own() -> None:
    arm = Arm(name="x", role=ArmRole.BASELINE, factors={"path": "socket", "threads": 4})
    job = InsertsLoad.make_job(plan(), arm, FakeStage(UnixTarget(path="/s")), 1)
    assert job.workload == INSERTS
    writes = plan().model_copy(update={"workload": plan().workload.model_copy(update={"kind": "oltp_write_only"})})
    sysbench = TransactionLoad.make_job(writes, arm, FakeStage(UnixTarget(path="/s")), 1).workload
    assert isinstance(sysbench, Sysbench)
    assert sysbench.kind == "oltp_write_only"
    assert workload_line(parse_stored_plan(plan().model_dump(mode="json")), RunEnvironment()).startswith(
        "single_row_inserts: one short row"
    )


def outcome(*kinds: str) -> LoadOutcome:
    """An outcome of 100 transactions in a second, with a histogram of each kind whose median is 1 ms, 2 ms …"""
    finished = finish(1000 * MS, 100)
    one = finished.histograms[0]
    histograms = [one.model_copy(update={"kind": kind, "p50_ns": at * MS}) for at, kind in enumerate(kinds, 1)]
    ready = Ready(receipt=receipt("/s"), connections=4, prepared_statements=1, connect_ns=1)
    measuring = Measuring(unix_time_ns=0, warmup_transactions=0)
    return LoadOutcome(
        ready, measuring, (interval(1000 * MS, 100),), finished.model_copy(update={"histograms": tuple(histograms)})
    )


def test_a_commit_is_the_statement_that_commits() -> None:
    job = LoadJob(
        target=UnixTarget(path="/s"), user="u", database="d", workload=INSERTS, connections=4, seed=1,
        warmup_ns=0, measure_ns=1000 * MS,
    )  # fmt: skip
    single = load_facts(outcome("transaction", "insert"), job, commits_per_transaction=1)
    assert (single.commits, single.commit_p50_ns) == (100, MS)
    longer = load_facts(outcome("transaction", "begin", "commit"), job, commits_per_transaction=1)
    assert longer.commit_p50_ns == 3 * MS, "the statements before it wait for nobody"
    reads = load_facts(outcome("transaction", "commit"), job, commits_per_transaction=0)
    assert (reads.commits, reads.commit_p50_ns) == (None, None), "an empty commit waits for nobody either"
    assert single.round_trip_ns == reads.round_trip_ns > 0


def test_at_a_rate_a_round_trip_is_that_of_the_service_time() -> None:
    """Four connections wait most of the time until a transaction is due, which is not part of its 1.5 ms."""
    job = LoadJob(
        target=UnixTarget(path="/s"), user="u", database="d", workload=INSERTS, connections=4, seed=1,
        warmup_ns=0, measure_ns=1000 * MS,
    )  # fmt: skip
    paced = job.model_copy(update={"arrivals": Arrivals(rate_per_s=100.0)})
    done = outcome("transaction", "service")
    turns = done.finished.round_trips
    service = done.finished.histograms[1]
    assert load_facts(done, paced, 0).round_trip_ns == pytest.approx(100 * service.mean_ns / turns)
    for other in ((done, job), (outcome("transaction"), paced)):
        assert load_facts(*other, 0).round_trip_ns == pytest.approx(4 * 1000 * MS / turns), "without pauses, or unknown"


def rtt(ms: int) -> RttResult:
    return RttResult(count=10, min_ns=ms * MS, p50_ns=ms * MS + 1, p99_ns=ms * MS + 2, max_ns=ms * MS + 3)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_commit_faster_than_light_makes_a_trial_void(kind: str) -> None:
    before, after = snapshot(kind), snapshot(kind, add={"yes_tx": 10})
    good = LoadFacts(round_trip_ns=21 * MS, commits=10, commit_p50_ns=20 * MS)
    assert replication_violations(REQUESTED, ReplicationWindow.between(before, after), good, [rtt(20)]) == []
    (found,) = replication_violations(
        REQUESTED, ReplicationWindow.between(before, after), replace(good, commit_p50_ns=19 * MS), [rtt(20)]
    )
    assert found == violation("commits-too-fast", commit_p50_ns=19 * MS, rtt_ns=20 * MS)
    assert (
        replication_violations(
            REQUESTED, ReplicationWindow.between(before, after), replace(good, commit_p50_ns=None), [rtt(20)]
        )
        == []
    ), "it only reads"
    assert (
        replication_violations(REQUESTED, ReplicationWindow.between(before, after), good, [rtt(20), rtt(200)]) == []
    ), "the nearest replica is enough"
    both = changed(REQUESTED, wait_for=2)
    found_for_both = replication_violations(both, ReplicationWindow.between(before, after), good, [rtt(20), rtt(200)])
    assert "commits-too-fast" in [each.id for each in found_for_both]


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_one_commit_without_acknowledgement_makes_a_trial_void(kind: str) -> None:
    before, after = snapshot(kind), snapshot(kind, add={"yes_tx": 9, "no_tx": 1})
    load = LoadFacts(commits=10, commit_p50_ns=21 * MS)
    (found,) = replication_violations(REQUESTED, ReplicationWindow.between(before, after), load, [rtt(20)])
    assert found == violation("commit-groups-not-acknowledged", groups=1)


def test_lag_is_told_of_the_window_alone() -> None:
    samples = tuple(LagSample(at_ns=at, replica="replica1", behind=at, heartbeat_ns=None) for at in (5, 10, 20, 30, 31))
    assert [(lag.at_ns, lag.behind) for lag in lag_records(samples, 10, 20)] == [(0, 10), (10, 20), (20, 30)]


@pytest.mark.parametrize(
    ("factor", "level", "expected"),
    [
        ("replica_rtt_ns", 85 * MS, "RTT 85ms"),
        ("replica_rate_bps", 10**9, "1 Gb/s"),
        ("replication", "none", "no replica"),
        ("replication", "after-sync", "after-sync"),
        ("replicas", 1, "1 replica"),
        ("wait_for", 2, "wait for 2"),
        ("replica_tls", "on", "TLS"),
        ("replica_compression", "off", "uncompressed"),
        ("durability", "off", "durability off"),
        ("fault", "cut", "cut"),
        ("replica_rtt_ns", None, ""),
    ],
)
def test_a_level_at_the_head_of_a_column(factor: str, level: Any, expected: str) -> None:
    assert level_text(FACTORS[factor], level) == expected


@pytest.mark.parametrize(("commits", "pages"), [(None, 0), (0, 32), (31_999, 32), (50_000, 50)])
def test_a_load_that_writes_may_read_a_few_pages(commits: int | None, pages: int) -> None:
    assert pages_allowed(commits) == pages


def test_a_clusters_links_may_be_late_by_what_they_add_to_an_agreement() -> None:
    pairs_ns = {(0, 1): 1e6, (0, 2): 1e6, (1, 2): 1e6}
    between_replicas = {(0, 1): 0.0, (0, 2): 0.0, (1, 2): 60_000.0}

    def found(mode: Any, late_ns: dict[tuple[int, int], float], reads: bool = False) -> list[Violation]:
        spec = ReplicationSpec(mode=mode, replicas=2)
        return agreement_violations(spec, pairs_ns, late_ns, 1.2e6, reads=reads)

    assert not found("group-leader", between_replicas), "no commit waits for that link"
    (late_links,) = found("galera", between_replicas)  # the last of several paths
    assert late_links.id == "links-mean-lateness"
    assert late_links.parameters == {
        "operation": "commit",
        "change": "longer",
        "change_ns": 60_000,
        "allowed_ns": 24_000,
        "allowed_share": 0.02,
    }
    assert not found("galera", between_replicas, reads=True)
    late = dict.fromkeys(
        pairs_ns, 20_000.0
    )  # less than 2 % of a link's round trip, and 30 us of Galera's one and a half
    assert found("galera", late) and not found("group-leader", late)
