"""From records to the answer: counted by hand on a made-up run, and nothing claimed that is not resolved."""

from __future__ import annotations

import pytest
from tests.unit.synthetic_run import PATHS, PathModel, synthetic_run

from howfar.analysis import cells
from howfar.analysis.cells import CellSummary
from howfar.analysis.link_facts import link_facts
from howfar.analysis.published import find_published, published_sets
from howfar.analysis.signs import Warning
from howfar.analysis.summary import Summary
from howfar.experiments.registry import summarise
from howfar.stats.intervals import Resolution
from howfar.store.records import ArmRole, FactorValue, MachineLoad, Measured, Run, TrialStatus


def cell(summary: Summary, arm: str) -> CellSummary:
    return next(cell for cell in summary.cells if cell.arm == arm)


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run(samples=50)


@pytest.fixture(scope="module")
def summary(run: Run) -> Summary:
    return summarise(run)


def test_true_ratios_lie_in_their_intervals(summary: Summary) -> None:
    for model in PATHS[2:]:
        ratio = cell(summary, model.arm).ratio
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        assert ratio.low <= model.tps / PATHS[0].tps <= ratio.high
        assert cell(summary, model.arm).resolution is Resolution.SLOWER


def test_cpu_is_by_role_and_the_link_is_in_no_ratio(summary: Summary) -> None:
    forwarded = cell(summary, "forwarded-socket")
    assert forwarded.cpu_us_per_query.forwarder is not None and forwarded.cpu_us_per_query.link is not None
    assert forwarded.cpu_us_per_query.forwarder.value == pytest.approx(31.5, rel=0.01)
    assert forwarded.cpu_ratio is not None
    assert forwarded.cpu_ratio.value == pytest.approx((8.2 + 24.1 + 31.5) / (6.1 + 22.4), rel=0.01)
    assert cell(summary, "tcp").cpu_us_per_query.forwarder is None


def test_the_time_split_adds_up_to_the_cycle(run: Run, summary: Summary) -> None:
    for found in summary.cells:
        good = [t.measured for t in run.trials if t.arm == found.arm and t.measured]
        cycle = 2 * sum(m.elapsed_ns for m in good) / 1e3 / sum(m.transactions for m in good)
        assert tuple(found.time_split_us) == cells.PARTS
        assert sum(found.time_split_us.values()) == pytest.approx(cycle)
    assert cell(summary, "remote").time_split_us[cells.LINK] == pytest.approx(203 * 29)
    assert cell(summary, "socket").time_split_us[cells.LINK] == 0


def test_void_trials_are_counted_with_their_reasons_and_in_no_figure(run: Run, summary: Summary) -> None:
    voids = [trial for trial in run.trials if trial.status is TrialStatus.VOID]
    assert summary.void_trials == len(voids) > 0
    assert sum(summary.void_reasons.values()) == len(voids)
    assert sum(found.trials for found in summary.cells) == len(run.trials) - len(voids)


def test_only_blocks_with_both_arms_are_paired(run: Run) -> None:
    kept = tuple(
        t for t in run.trials if not (t.arm == "tcp" and t.block < 3) and not (t.arm == "socket" and t.block == 9)
    )
    tcp = cell(summarise(run.model_copy(update={"trials": kept})), "tcp")
    assert len(tcp.block_ratios) == 6
    assert Warning.FEW_BLOCKS in tcp.warnings


def test_the_published_ratio_stands_beside_ours(summary: Summary) -> None:
    remote = cell(summary, "remote")
    assert remote.published is not None
    assert remote.published.ratio == pytest.approx(9463.20 / 33614.79)
    assert cell(summary, "socket (again)").published is None
    theirs = next(entry for entry in published_sets() if entry.plan == "paths")
    there: dict[str, FactorValue] = {"path": "remote", "threads": 2, "rtt_ns": 200_000, "rate_bps": 10**9}
    assert find_published("paths", there, theirs.workload) == remote.published
    assert find_published("another plan", there, theirs.workload) is None
    for other in ({"threads": 64}, {"rtt_ns": 10**6}, {"rate_bps": 10**8}):
        assert find_published("paths", there | other, theirs.workload) is None, "another experiment"
    assert find_published("paths", there, {**theirs.workload, "range_size": 100}) is None
    assert all(entry.source and entry.setup for entry in published_sets())


def test_published_figures_agree_with_themselves() -> None:
    """29 queries a transaction, and two connections' cycle time is the mean latency."""
    paths = next(entry for entry in published_sets() if entry.plan == "paths")
    for found in paths.cells:
        assert found.tps is not None and found.qps is not None
        assert found.qps / found.tps == pytest.approx(29, rel=0.001)
        assert 2 / found.tps * 1000 == pytest.approx(found.latency_ms["avg"], rel=0.01)


def test_verdict_names_what_is_resolved_with_interval_and_noise_floor(summary: Summary) -> None:
    assert "tcp 0.8" in summary.verdict
    assert "noise floor" in summary.verdict
    assert [advice.action.split(",")[0] for advice in summary.advice] == [
        "Where application and server share a machine",
        "With the server on another machine",
        "Do not forward the socket to another machine for speed: its traffic still crosses the network.",
    ]


def same_speed(scatter: float) -> Summary:
    models = tuple(PathModel(m.path, m.role, 1000, 6.1, 22.4, m.forwarder_us and 0.0001, name=m.name) for m in PATHS)
    return summarise(synthetic_run(models=models, scatter=scatter, samples=20, seed=3))


def test_nothing_is_claimed_where_nothing_differs() -> None:
    summary = same_speed(0.3)
    assert {found.resolution for found in summary.cells if found.role is ArmRole.CONTENDER} == {Resolution.NOT_RESOLVED}
    assert summary.verdict.startswith("No difference from socket is resolved")
    assert [advice.action for advice in summary.advice] == [
        "Run longer (without --quick) or on a quieter machine to resolve more."
    ]
    assert Warning.WIDE_INTERVAL in cell(summary, "tcp").warnings


def test_a_biased_session_warns_and_claims_nothing_of_that_size() -> None:
    models = (PATHS[0], PathModel("socket", ArmRole.DUPLICATE, 1300, 6.1, 22.4, name="socket (again)"), *PATHS[2:])
    summary = summarise(synthetic_run(models=models, samples=20))
    assert Warning.AA_EXCLUDES_ONE in summary.warnings
    assert cell(summary, "tcp").resolution is Resolution.NOT_RESOLVED
    assert cell(summary, "remote").resolution is Resolution.SLOWER
    assert "under two names differed" in summary.verdict


def test_an_arm_without_a_good_trial_is_named() -> None:
    run = synthetic_run(blocks=8, samples=20)
    trials = tuple(
        t.model_copy(update={"status": TrialStatus.VOID, "measured": None, "void_reason": "socat died"})
        if t.arm == "remote"
        else t
        for t in run.trials
    )
    summary = summarise(run.model_copy(update={"trials": trials}))
    assert [arm.arm for arm in summary.unmeasured] == ["remote"]
    assert summary.unmeasured[0].reasons["socat died"] >= 7


def test_a_run_without_any_trial_says_so() -> None:
    summary = summarise(synthetic_run(blocks=0))
    assert summary.cells == ()
    assert summary.verdict.startswith("No verdict")


def test_a_single_block_resolves_nothing() -> None:
    summary = summarise(synthetic_run(blocks=1, samples=20))
    assert all(found.resolution in (Resolution.BASELINE, Resolution.NOT_RESOLVED) for found in summary.cells)
    assert "no noise floor" in summary.verdict or "no difference" in summary.verdict.lower()


def test_a_link_that_is_not_as_asked_is_seen() -> None:
    run = synthetic_run(blocks=8, samples=20)
    trials = []
    for trial in run.trials:
        receipt = {**trial.receipt}
        if "link" in receipt:
            receipt["link"] = {**receipt["link"], "rtt_at_rest_ns": {"p50": 290_000}}
        trials.append(trial.model_copy(update={"receipt": receipt}))
    summary = summarise(run.model_copy(update={"trials": tuple(trials)}))
    assert Warning.LINK_NOT_AS_ASKED in cell(summary, "remote").warnings
    assert Warning.LINK_NOT_AS_ASKED not in cell(summary, "tcp").warnings


def test_a_link_that_carries_less_than_its_rate_is_seen() -> None:
    factors = {"rtt_ns": 200_000}
    calibration = {"expected_goodput_bps": 941e6, "goodput_bps": {"to_server": 939e6, "to_client": 800e6}}
    link = {"rtt_at_rest_ns": {"p50": 201_000}, "calibration": calibration}
    assert not link_facts(factors, [{"link": link}]).as_requested
    calibration["goodput_bps"] = {"to_server": 939e6, "to_client": 935e6}
    assert link_facts(factors, [{"link": link}]).as_requested


def test_what_the_ping_s_own_bytes_take_is_no_fault_of_the_link() -> None:
    """At 1 Mb/s they take 1.456 ms; a receipt from before that was known says nothing of it."""
    link = {"rtt_at_rest_ns": {"p50": 11_460_000}, "asked": {"rest_rtt_ns": 11_456_000}}
    assert link_facts({"rtt_ns": 10_000_000}, [{"link": link}]).as_requested
    assert not link_facts({"rtt_ns": 10_000_000}, [{"link": {**link, "asked": {}}}]).as_requested


def test_a_client_without_time_left_is_seen() -> None:
    run = synthetic_run(blocks=8, samples=20)

    def busy(seen: Measured) -> Measured:
        cpu = tuple(
            c.model_copy(update={"busiest_thread_ns": int(seen.elapsed_ns * 0.97)}) if c.role == "client" else c
            for c in seen.cpu
        )
        return seen.model_copy(update={"cpu": cpu})

    trials = tuple(t.model_copy(update={"measured": busy(t.measured)}) if t.measured else t for t in run.trials)
    assert Warning.CLIENT_LIMITED in cell(summarise(run.model_copy(update={"trials": trials})), "socket").warnings


@pytest.mark.parametrize("change", [{"steal_share": 0.1}, {"psi_io_some_share": 0.3}, {"load_average_1m": 40.0}])
def test_others_on_the_machine_are_seen(run: Run, change: dict[str, float]) -> None:
    load = MachineLoad(psi_cpu_some_share=None, psi_io_some_share=None, steal_share=None, load_average_1m=1.0)
    loaded = tuple(t.model_copy(update={"load": load.model_copy(update=change)}) for t in run.trials)
    quiet = tuple(t.model_copy(update={"load": load}) for t in run.trials)
    assert Warning.BUSY_MACHINE in summarise(run.model_copy(update={"trials": loaded})).warnings
    assert Warning.BUSY_MACHINE not in summarise(run.model_copy(update={"trials": quiet})).warnings


def test_who_waits_for_a_disk_takes_no_cpu_from_us(run: Run) -> None:
    """Where it is recorded how much CPU others had, waiting for a disk says no more."""
    cpus = int(run.info.environment["cpu_count"])
    for busy, warned in ((0.0, False), (float(cpus), True)):
        change = {"psi_io_some_share": 0.3, "busy_cpus": busy + 0.0, "steal_share": 0.0, "load_average_1m": 1.0}
        load = MachineLoad(psi_cpu_some_share=None, psi_io_some_share=None, steal_share=None, load_average_1m=1.0)
        trials = tuple(t.model_copy(update={"load": load.model_copy(update=change)}) for t in run.trials)
        assert (Warning.BUSY_MACHINE in summarise(run.model_copy(update={"trials": trials})).warnings) == warned


def test_merged_percentiles_are_those_of_all_trials_together(run: Run, summary: Summary) -> None:
    """The median of the merged histogram lies between the trials' medians; the maximum is the largest seen."""
    found = [t.measured.histograms[0] for t in run.trials if t.arm == "tcp" and t.measured]
    latency = cell(summary, "tcp").latency_ms
    assert min(h.p50_ns for h in found) / 1e6 * 0.99 <= latency.p50 <= max(h.p50_ns for h in found) / 1e6 * 1.01
    assert latency.max == max(h.max_ns for h in found) / 1e6
    curve = cell(summary, "tcp").latency_curve
    assert [point.ms for point in curve] == sorted(point.ms for point in curve)
