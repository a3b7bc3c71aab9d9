"""Controls: which control arms a plan gets, and that the effect put in is recovered, by arithmetic and by simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.shipped import load_shipped, skip_without
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.cells import Metric, measure_noise_floors
from howfar.analysis.controls import controls
from howfar.analysis.diagnostics import Diagnostic
from howfar.experiments.registry import summarise
from howfar.plan.cells import cells
from howfar.plan.load import load_plan
from howfar.plan.types import Plan
from howfar.report.figures import noise_line
from howfar.report.frame import controls_text
from howfar.stats.intervals import Resolution
from howfar.stats.trials import trial_table
from howfar.store.records import Arm, ArmRole, Run, Trial

RTT_NS, MORE_NS = 200_000, 10_000
"""RTT of the reference, and what the control adds to it: 5 %."""


def _with_controls(run: Run, excess_ns: float, scatter: float = 0.0, seed: int = 1, again_ns: float = 0.0) -> Run:
    """`run` with two more arms made of its remote trials, each round trip longer by `again_ns` or `excess_ns`."""
    rng = np.random.default_rng(seed)
    link = {"path": "remote", "threads": 2, "rtt_ns": RTT_NS, "rate_bps": 10**9}
    arms = tuple(
        arm.model_copy(update={"factors": dict(link)}) if arm.name == "remote" else arm for arm in run.info.arms
    )
    added = (
        Arm(name="remote (again)", role=ArmRole.CONTROL, factors=dict(link)),
        Arm(name="remote (RTT +5%)", role=ArmRole.CONTROL, factors={**link, "rtt_ns": RTT_NS + MORE_NS}),
    )
    trials = list(run.trials)
    for trial in run.trials:
        if trial.arm == "remote" and trial.measured is not None:
            for arm, more_ns in zip(added, (again_ns, excess_ns), strict=True):
                trials.append(_slower(trial, arm.name, more_ns * float(np.exp(rng.normal(0, scatter))), len(trials)))
    return run.model_copy(
        update={"info": run.info.model_copy(update={"arms": (*arms, *added)}), "trials": tuple(trials)}
    )


def _with_pair(run: Run, excess_ns: float) -> Run:
    """`run` with a second remote arm, and a pair of arms with one connection."""
    made, rng = _with_controls(run, 0), np.random.default_rng(1)
    *others, made_longer = made.info.arms
    longer = Arm(name="remote, 1 thread (RTT +5%)", role=ArmRole.CONTROL, factors={**made_longer.factors, "threads": 1})
    base = Arm(name="remote, 1 thread", role=ArmRole.CONTROL, factors={**longer.factors, "rtt_ns": RTT_NS})
    trials = list(made.trials)
    for number, trial in enumerate(made.trials):
        if trial.arm == made_longer.name:
            trials[number] = trial.model_copy(update={"arm": base.name})
            more_ns = excess_ns * float(np.exp(rng.normal(0, 0.05)))
            trials.append(_slower(trial, longer.name, more_ns, len(trials), connections=1))
    return run.model_copy(
        update={
            "info": run.info.model_copy(update={"arms": (*others, base, longer)}),
            "trials": tuple(trials),
        }
    )


def _slower(trial: Trial, arm: str, more_ns: float, number: int, connections: int = 2) -> Trial:
    """The same transactions, each round trip of every connection longer by `more_ns`."""
    measured = trial.measured
    assert measured is not None
    longer = measured.elapsed_ns + round(more_ns * measured.round_trips / connections)
    return trial.model_copy(
        update={"arm": arm, "number": number, "measured": measured.model_copy(update={"elapsed_ns": longer})}
    )


def test_a_plan_over_a_link_has_two_control_arms_and_others_none() -> None:
    found = [cell for cell in cells(load_plan("paths", quick=True).plan) if cell.role == "control"]
    assert [cell.name for cell in found] == ["remote (again)", "remote (RTT +5%)"]
    assert [cell.factors["rtt_ns"] for cell in found] == [200_000, 210_000]
    for plan in ("bandwidth", "encryption", "replication"):
        quick = [cell for cell in cells(load_shipped(plan, quick=True).plan) if cell.role == "control"]
        assert len(quick) == 2, plan
    for plan, loads in (("hops", 1), ("latency", 1), ("poolers", 0)):
        quick = [cell for cell in cells(load_shipped(plan, quick=True).plan) if cell.role == "control"]
        assert len(quick) == loads + 3, f"{plan}: four connections hide a part of a longer RTT"
    for plan in ("aa", "crash", "fallback", "cluster-crash", "cluster-join", "cluster-partition"):
        assert not [cell for cell in cells(load_shipped(plan).plan) if cell.role == "control"], plan


@pytest.mark.parametrize(
    ("plan", "quick", "again"),
    [
        ("paths", False, "socket, idle as found (again)"),
        ("latency", True, "socket, 80% (again)"),
        ("hops", True, "remote, persistent, 30% (again)"),
    ],
)
def test_each_kind_of_scatter_has_an_aa_arm_of_its_own(plan: str, quick: bool, again: str) -> None:
    """Idle CPUs that halt, and a load at a fixed rate, scatter differently from the baseline and its duplicate."""
    others = cells(load_shipped(plan, quick=quick).plan)
    assert again in [cell.name for cell in others if cell.role == "control"]


def test_an_arm_is_judged_by_the_floor_of_its_own_kind() -> None:
    run = synthetic_run(blocks=8, void_every=0, samples=10)
    base = next(arm for arm in run.info.arms if arm.name == "socket")
    found = {**base.factors, "idle": "polling"}
    added = (
        Arm(name="socket, polling", role=ArmRole.CONTENDER, factors=found),
        Arm(name="socket, polling (again)", role=ArmRole.CONTROL, factors=found),
    )
    trials = list(run.trials)
    for trial in run.trials:
        if trial.arm == base.name:
            trials.append(_slower(trial, added[0].name, 0, len(trials)))
            trials.append(_slower(trial, added[1].name, 20_000 * (trial.block % 3 - 1), len(trials)))
    info = run.info.model_copy(update={"arms": (*run.info.arms, *added)})
    both = run.model_copy(update={"info": info, "trials": tuple(trials)})
    known = controls(both)
    assert [(control.name, control.reference) for control in known] == [("A/A", "socket, polling")]
    floor = measure_noise_floors(trial_table(both), known)
    own, other = floor.threshold(found).floor, floor.threshold(base.factors).floor
    assert own is not None and other is not None and own > 2 * other
    assert measure_noise_floors(trial_table(run)).threshold(found).floor == other, "of an older run file"


def test_many_connections_have_a_pair_with_one_beside_the_same_cell_again() -> None:
    """With many connections, a longer RTT hides behind their waiting for each other."""
    again, base, longer = (
        cell for cell in cells(load_shipped("compression", quick=True).plan) if cell.role == "control"
    )
    assert (again.name, again.factors["threads"]) == ("remote, 1gbit, uncompressed, digits (again)", 16)
    assert base.name == "remote, 1 thread, 1gbit, uncompressed, digits"
    assert longer.name == base.name + " (RTT +5%)"
    assert base.factors == {**again.factors, "threads": 1}
    assert longer.factors == {**base.factors, "rtt_ns": 210_000}


@pytest.mark.parametrize(
    ("levels", "alone"),
    [
        ({"threads": (64,)}, {"threads": 1}),
        ({"connect": ("per-transaction",)}, {"threads": 1, "connect": "persistent"}),
        ({"load": ("300/s",)}, {"threads": 1, "load": "closed"}),
        (
            {"tls": ("1.3-resumed",), "connect": ("per-transaction",)},
            {"threads": 1, "connect": "persistent", "tls": "1.3"},
        ),
    ],
)
def test_where_a_longer_rtt_would_hide_the_pair_is_one_connection_that_waits(levels: Any, alone: Any) -> None:
    again, base, longer = (cell for cell in cells(_paths(**levels)) if cell.role == "control")
    assert base.factors == {**again.factors, **alone}
    assert longer.factors == {**base.factors, "rtt_ns": 210_000}
    assert base.name.startswith("remote, ") and longer.name == base.name + " (RTT +5%)"


def test_a_cell_of_the_plan_with_one_connection_needs_no_pair() -> None:
    """The closed-loop cell serves as the reference, although the baseline has another load."""
    plan = _paths(threads=(1,), load=("closed", "300/s"))
    paced = plan.model_copy(update={"baseline": plan.baseline.model_copy(update={"load": "300/s"})})
    assert [cell.name for cell in cells(paced) if cell.role == "control"] == [
        "socket, closed loop (again)",
        "remote, 300/s (again)",
        "remote, closed loop (RTT +5%)",
    ]


def _paths(**levels: Any) -> Plan:
    plan = load_plan("paths", quick=True).plan
    return plan.model_copy(update={"factors": plan.factors.model_copy(update=levels)})


def test_a_baseline_over_a_link_is_measured_twice_and_not_three_times() -> None:
    """Its duplicate is the control over the link."""
    plan = load_plan("paths", quick=True).plan
    factors = plan.factors.model_copy(update={"path": ("remote",)})
    alone = plan.model_copy(
        update={"factors": factors, "baseline": plan.baseline.model_copy(update={"path": "remote"})}
    )
    assert [(cell.name, cell.role) for cell in cells(alone)] == [
        ("remote", "baseline"),
        ("remote (again)", "duplicate"),
        ("remote (RTT +5%)", "control"),
    ]


def test_where_replicas_acknowledge_the_farthest_is_the_control() -> None:
    skip_without("replication")
    again, longer = (cell for cell in cells(load_plan("replication").plan) if cell.role == "control")
    assert again.factors["replication"] == "after-sync" and again.factors["threads"] == 1
    assert (again.factors["replica_rtt_ns"], longer.factors["replica_rtt_ns"]) == (200_000_000, 210_000_000)


@pytest.mark.parametrize(
    ("plan", "again", "far_ns"),
    [
        ("cluster", "Galera, two near one far (again)", 85_000_000),
        ("cluster-rows", "Galera, replica link 1gbit, short rows (again)", 1_000_000),
        ("cluster-conflicts", "socket, two writers, own rows (again)", 1_000_000),
    ],
)
def test_a_cluster_has_a_pair_with_a_replica_as_far_as_its_farthest_node(plan: str, again: str, far_ns: int) -> None:
    """Agreement in a cluster takes more or less than one round trip; semi-synchronous replication waits for exactly one."""
    same, base, longer = (cell for cell in cells(load_shipped(plan, quick=True).plan) if cell.role == "control")
    assert same.name == again
    assert (base.factors["replication"], base.factors["replica_rtt_ns"]) == ("after-sync", far_ns)
    assert not {"replicas", "distances", "consistency", "writers"} & set(base.factors)
    assert longer.factors == {**base.factors, "replica_rtt_ns": far_ns * 1.05}


def test_reads_of_a_cluster_wait_for_no_replica() -> None:
    skip_without("replication")
    found = [cell for cell in cells(load_plan("cluster-reads", quick=True).plan) if cell.role == "control"]
    assert [cell.name for cell in found] == ["Galera, consistency eventual (again)"]


def test_servers_without_a_distance_have_no_five_percent_more_of_it() -> None:
    skip_without("replication")
    plan = load_plan("replication", quick=True).plan
    near = plan.model_copy(update={"factors": plan.factors.model_copy(update={"replica_rtt_ns": (0,)})})
    assert [cell.name for cell in cells(near) if cell.role == "control"] == ["1 thread, semi-sync AFTER_SYNC (again)"]


def test_the_controls_of_a_cluster_are_its_arm_again_and_the_pair() -> None:
    skip_without("replication")
    run = _with_pair(synthetic_run(blocks=8, void_every=0, samples=10), MORE_NS)
    galera: Any = {"path": "socket", "threads": 1, "replication": "galera", "replicas": 2, "distances": "three-zones"}
    pair: Any = {"path": "socket", "threads": 1, "replication": "after-sync", "replica_rtt_ns": 10**6}
    factors = {
        "remote": galera,
        "remote (again)": galera,
        "remote, 1 thread": pair,
        "remote, 1 thread (RTT +5%)": {**pair, "replica_rtt_ns": 1_050_000},
    }
    arms = tuple(arm.model_copy(update={"factors": factors.get(arm.name, arm.factors)}) for arm in run.info.arms)
    cluster_fields = run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})})
    same, longer = controls(cluster_fields)
    assert (same.arm, same.reference, same.injected) == ("remote (again)", "remote", 1)
    assert (longer.reference, longer.injected, longer.unit) == ("remote, 1 thread", 50, "µs per commit")
    assert longer.distinguishing_levels == "semi-sync AFTER_SYNC, replica RTT 1ms"
    assert measure_noise_floors(trial_table(cluster_fields), (same, longer)).threshold(galera).floor is not None


def test_what_was_put_in_is_found() -> None:
    same, longer = controls(_with_controls(synthetic_run(blocks=8, void_every=0, samples=10), MORE_NS))
    assert same.injected == 1 and same.measured.value == pytest.approx(1) and same.recovered is not False
    assert longer.injected == 10 and longer.unit == "µs per round trip"
    assert longer.measured.value == pytest.approx(10, rel=1e-3) and longer.reference == "remote"


@pytest.mark.parametrize(("excess_ns", "recovered"), [(MORE_NS, True), (4_000, False)])
def test_a_pair_of_its_own_says_whether_what_was_put_in_was_found_and_with_how_many_connections(
    excess_ns: float, recovered: bool
) -> None:
    run = _with_pair(synthetic_run(blocks=8, void_every=0, samples=10), excess_ns)
    same, longer = controls(run)
    assert (same.arm, same.reference, same.distinguishing_levels) == ("remote (again)", "remote", "")
    assert (longer.arm, longer.reference) == ("remote, 1 thread (RTT +5%)", "remote, 1 thread")
    assert (longer.name, longer.injected, longer.distinguishing_levels) == ("RTT +10 µs", 10, "1 thread")
    assert longer.measured.value == pytest.approx(excess_ns / 1e3, rel=0.1) and longer.recovered is recovered
    text = controls_text(summarise(run)).split("; ")[1]
    assert text.startswith("an RTT increase of 10 µs, in a separate pair of arms (1 thread), measured as ")
    assert text.endswith(", which is wrong") is not recovered
    assert (Diagnostic.CONTROL_MISSED in summarise(run).warnings) is not recovered


@pytest.mark.parametrize(("excess_ns", "recovered"), [(9_700, True), (9_300, False)])
def test_two_connections_may_hide_four_percent_of_the_effect(excess_ns: float, recovered: bool) -> None:
    longer = controls(_with_controls(synthetic_run(blocks=8, void_every=0, samples=10), excess_ns))[1]
    assert longer.measured.value == pytest.approx(excess_ns / 1e3, rel=1e-2) and longer.recovered is recovered


def test_few_transactions_are_timed_and_not_counted() -> None:
    """A window of 3 s holds 17 transactions of 16 round trips of 10 ms, and 17 of 10.5 ms: their count shows no difference."""
    run = _with_pair(synthetic_run(blocks=8, void_every=0, samples=10), 0)

    def few(trial: Trial) -> Trial:
        if trial.measured is None or not trial.arm.startswith("remote, 1 thread"):
            return trial
        each_ns = 16 * (RTT_NS + MORE_NS * ("RTT" in trial.arm)) * 50
        timed = [record.model_copy(update={"mean_ns": each_ns}) for record in trial.measured.histograms]
        seen = {"elapsed_ns": 3 * 10**9, "transactions": 17, "round_trips": 17 * 16, "histograms": tuple(timed)}
        return trial.model_copy(update={"measured": trial.measured.model_copy(update=seen)})

    longer = controls(run.model_copy(update={"trials": tuple(map(few, run.trials))}))[1]
    assert longer.measured.value == pytest.approx(50 * MORE_NS / 1e3)


def test_a_pair_of_its_own_is_in_no_comparison() -> None:
    plain = synthetic_run(blocks=4, samples=10)
    before, after = summarise(plain), summarise(_with_pair(plain, MORE_NS))
    assert [(cell.arm, cell.ratio) for cell in after.cells] == [(cell.arm, cell.ratio) for cell in before.cells]


def test_the_duplicate_of_a_baseline_over_a_link_is_the_control_without_a_change() -> None:
    run = _with_controls(synthetic_run(blocks=8, void_every=0, samples=10), MORE_NS)
    roles = {"remote": ArmRole.BASELINE, "remote (again)": ArmRole.DUPLICATE, "remote (RTT +5%)": ArmRole.CONTROL}
    arms = tuple(arm.model_copy(update={"role": roles[arm.name]}) for arm in run.info.arms if arm.name in roles)
    found = controls(run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})}))
    assert [control.arm for control in found] == ["remote (again)", "remote (RTT +5%)"]
    assert found[0].injected == 1 and found[0].measured.value == pytest.approx(1)


def test_a_bias_is_shown() -> None:
    """The link adds 4 µs where 10 were requested: the interval does not include the true figure."""
    longer = controls(_with_controls(synthetic_run(blocks=8, void_every=0, samples=10), 4_000, scatter=0.05))[1]
    assert longer.recovered is False
    text = terminal.render(summarise(_with_controls(synthetic_run(blocks=8, samples=10), 4_000, scatter=0.05)), 100)
    assert "an RTT increase of 10 µs measured as" in " ".join(text.split()) and "which is wrong" in " ".join(
        text.split()
    )


def test_an_aa_over_the_link_that_excludes_1_is_called_wrong() -> None:
    run = _with_controls(synthetic_run(blocks=8, void_every=0, samples=10), MORE_NS, 0.05, again_ns=20_000)
    same = controls(run)[0]
    assert same.measured.high is not None and same.measured.high < 1 and same.recovered is False
    summary = summarise(run)
    own, longer = controls_text(summary).split("; ")
    assert "remote against itself 0.9" in own and own.endswith(", which is wrong")
    assert not longer.endswith(", which is wrong")
    assert summary.model_dump()["controls"][0]["recovered"] is False


def test_each_figure_of_a_link_arm_has_the_larger_floor_of_both_aa_arms() -> None:
    """The link's A/A arm has the throughput of its reference and four times its CPU time."""
    run = _with_controls(synthetic_run(blocks=8, void_every=0, samples=10), MORE_NS)

    def dear(trial: Trial) -> Trial:
        if trial.arm != "remote (again)" or trial.measured is None:
            return trial
        cpu = tuple(use.model_copy(update={"cpu_ns": use.cpu_ns * 4}) for use in trial.measured.cpu)
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"cpu": cpu})})

    dearer = run.model_copy(update={"trials": tuple(dear(trial) for trial in run.trials)})
    found = measure_noise_floors(trial_table(dearer), controls(dearer))
    link = next(arm.factors for arm in run.info.arms if arm.name == "remote")
    assert found.threshold(link, Metric.CPU).floor == pytest.approx(3, rel=0.01)
    assert found.threshold({"path": "tcp"}, Metric.CPU).floor == found.noise_floor(Metric.CPU) != found.noise_floor()
    assert found.threshold(link).floor == found.noise_floor(), "that of throughput is the baseline's"
    before, after = ({cell.arm: cell.cpu_resolution for cell in summarise(each).cells} for each in (run, dearer))
    assert before["remote"] is before["tcp"] is Resolution.SLOWER
    assert after == before | dict.fromkeys(("remote", "forwarded-socket"), Resolution.NOT_RESOLVED)
    assert "for CPU per query, the floor is" in noise_line(summarise(dearer))
    assert "over the link a factor of 4" in noise_line(summarise(dearer))


def test_controls_are_in_no_comparison_and_change_none() -> None:
    plain = synthetic_run(blocks=4, samples=10)
    plain = plain.model_copy(update={"trials": tuple(t for t in plain.trials)})
    before, after = summarise(plain), summarise(_with_controls(plain, MORE_NS))
    assert [cell.arm for cell in after.cells] == [cell.arm for cell in before.cells]
    assert [cell.ratio for cell in after.cells] == [cell.ratio for cell in before.cells]
    assert before.controls == () and len(after.controls) == 2


def test_the_truth_is_in_nineteen_of_twenty_intervals() -> None:
    """With a scatter of 30 % of the effect put in, 200 runs of eight blocks cover the truth in 95 % [91 %, 98 %]."""
    run = synthetic_run(blocks=8, void_every=0, samples=10)
    held = [controls(_with_controls(run, MORE_NS, 0.3, seed))[1] for seed in range(200)]
    mean = float(np.exp(0.3**2 / 2)) * 10
    inside = sum(
        each.measured.low is not None
        and each.measured.high is not None
        and each.measured.low <= mean <= each.measured.high
        for each in held
    )
    assert 0.88 <= inside / 200 <= 0.99
