"""From records to the answer: figures checked by hand on a made-up run, and no claim about unresolved differences."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tests.made import build, with_receipt
from tests.shipped import skip_without
from tests.unit.fake_lab import fake_info
from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_run import PATHS, PathModel, synthetic_run
from tests.unit.test_confirm import WatchTargets, fake_targets, limit

from howfar.analysis import cells
from howfar.analysis.advice import Advice, advise
from howfar.analysis.answer import NOTHING_COMPARED, UNRESOLVED
from howfar.analysis.cells import CellSummary, measure_noise_floors, scatter
from howfar.analysis.diagnostics import MAX_OTHER_PROGRAMS_SHARE, Diagnostic
from howfar.analysis.link_facts import LinkFacts, link_facts
from howfar.analysis.published import find_published, published_sets
from howfar.analysis.summary import Summary
from howfar.bottleneck import limit as attribution
from howfar.contract.receipt import (
    ByDirection,
    LinkCalibration,
    LinkReceipt,
    QuantilesNs,
    RequestedLink,
    SecondWriter,
    SpeedReceipt,
    TrialReceipt,
    WritersReceipt,
)
from howfar.experiments.registry import summarise
from howfar.model.resource import Resource
from howfar.paths import PATHS as PATHS_KNOWN
from howfar.paths.remote import RemotePath
from howfar.plan.factor import Level
from howfar.plan.load import Override, load_plan
from howfar.plan.workload import Workload
from howfar.report.figures import session_line, void_line
from howfar.report.grid import is_grid
from howfar.stats.estimate import Estimate
from howfar.stats.histograms import percentile_ms
from howfar.stats.intervals import Resolution, interval_text, judge_ratio
from howfar.stats.trials import others_cpus_in_trial, trial_table
from howfar.store.records import ArmRole, MachineLoad, Measured, Run, Trial, TrialStatus, Window
from howfar.store.run_file import create, read_run


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
    assert Diagnostic.FEW_BLOCKS in tcp.warnings


def test_the_published_ratio_stands_beside_ours(summary: Summary) -> None:
    skip_without("replication")
    remote = cell(summary, "remote")
    assert remote.published is not None
    assert remote.published.ratio == pytest.approx(9463.20 / 33614.79)
    assert cell(summary, "socket (again)").published is None
    theirs = Workload.model_validate(next(entry.workload for entry in published_sets() if entry.plan == "paths"))
    there: dict[str, Level] = {"path": "remote", "threads": 2, "rtt_ns": 200_000, "rate_bps": 10**9}
    assert find_published("paths", there, theirs) == remote.published
    assert find_published("another plan", there, theirs) is None
    for other in ({"threads": 64}, {"rtt_ns": 10**6}, {"rate_bps": 10**8}):
        assert find_published("paths", there | other, theirs) is None, "another experiment"
    assert find_published("paths", there, theirs.model_copy(update={"range_size": 100})) is None
    insert: dict[str, Level] = {"replication": "none", "threads": 1, "durability": "off"}
    assert find_published("replication", insert, Workload(kind="single_row_inserts")) is not None
    durable = insert | {"durability": "strict"}
    assert find_published("replication", durable, Workload(kind="single_row_inserts")) is None, (
        "theirs made none durable"
    )
    assert all(entry.source and entry.setup for entry in published_sets())


def test_published_figures_agree_with_themselves() -> None:
    """A transaction has 29 queries, and with two connections the cycle time equals the mean latency."""
    paths = next(entry for entry in published_sets() if entry.plan == "paths")
    for found in paths.cells:
        assert found.tps is not None and found.qps is not None
        assert found.qps / found.tps == pytest.approx(29, rel=0.001)
        assert 2 / found.tps * 1000 == pytest.approx(found.latency_ms["avg"], rel=0.01)


def test_the_answer_has_each_difference_and_what_to_do(summary: Summary) -> None:
    assert {(found.id, found.verdict) for found in summary.answer.findings} == {("difference", Resolution.SLOWER)}
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
    assert {found.id for found in summary.answer.findings} == {UNRESOLVED}
    (advice,) = summary.advice
    assert advice.id == "more-blocks" and "--full" in advice.action
    assert Diagnostic.WIDE_INTERVAL in cell(summary, "tcp").warnings


def test_a_biased_session_warns_and_claims_nothing_of_that_size() -> None:
    models = (PATHS[0], PathModel("socket", ArmRole.DUPLICATE, 1300, 6.1, 22.4, name="socket (again)"), *PATHS[2:])
    summary = summarise(synthetic_run(models=models, samples=20))
    assert Diagnostic.AA_EXCLUDES_ONE in summary.warnings
    assert cell(summary, "tcp").resolution is Resolution.NOT_RESOLVED
    assert cell(summary, "remote").resolution is Resolution.SLOWER


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
    assert summary.answer.findings == (NOTHING_COMPARED,)


def test_a_single_block_resolves_nothing() -> None:
    summary = summarise(synthetic_run(blocks=1, samples=20))
    assert all(found.resolution in (Resolution.BASELINE, Resolution.NOT_RESOLVED) for found in summary.cells)
    assert summary.answer.is_missing


def test_a_link_that_is_not_as_asked_is_seen() -> None:
    run = synthetic_run(blocks=8, samples=20)

    def measured_longer(trial: Trial) -> Trial:
        link = trial.receipt.link
        if link is None:
            return trial
        return with_receipt(trial, link=link.updated(LinkReceipt(rtt_at_rest_ns=QuantilesNs(p50=290_000))))

    summary = summarise(run.model_copy(update={"trials": tuple(map(measured_longer, run.trials))}))
    assert Diagnostic.LINK_NOT_AS_REQUESTED in cell(summary, "remote").warnings
    assert Diagnostic.LINK_NOT_AS_REQUESTED not in cell(summary, "tcp").warnings


def test_a_link_that_carries_less_than_its_rate_is_seen() -> None:
    factors = {"rtt_ns": 200_000}
    for to_client, is_as_requested in ((800e6, False), (935e6, True)):
        goodput = ByDirection(to_server=939e6, to_client=to_client)
        calibration = LinkCalibration(expected_goodput_bps=941e6, goodput_bps=goodput)
        link = LinkReceipt(rtt_at_rest_ns=QuantilesNs(p50=201_000), calibration=calibration)
        assert link_facts(factors, [TrialReceipt(link=link)]).is_as_requested is is_as_requested


def test_what_the_ping_s_own_bytes_take_is_no_fault_of_the_link() -> None:
    """At 1 Mb/s the ping's bytes take 1.456 ms; without that figure in the receipt the link seems to differ from the request."""
    for requested, is_as_requested in ((RequestedLink(rest_rtt_ns=11_456_000), True), (RequestedLink(), False)):
        link = LinkReceipt(rtt_at_rest_ns=QuantilesNs(p50=11_460_000), requested=requested)
        assert link_facts({"rtt_ns": 10_000_000}, [TrialReceipt(link=link)]).is_as_requested is is_as_requested


def test_a_client_without_time_left_is_seen() -> None:
    run = synthetic_run(blocks=8, samples=20)

    def busy(seen: Measured) -> Measured:
        cpu = tuple(
            c.model_copy(update={"busiest_thread_ns": int(seen.elapsed_ns * 0.97)}) if c.role == "client" else c
            for c in seen.cpu
        )
        return seen.model_copy(update={"cpu": cpu})

    trials = tuple(t.model_copy(update={"measured": busy(t.measured)}) if t.measured else t for t in run.trials)
    assert Diagnostic.CLIENT_LIMITED in cell(summarise(run.model_copy(update={"trials": trials})), "socket").warnings


@pytest.mark.parametrize("change", [{"steal_share": 0.1}, {"psi_io_some_share": 0.3}, {"load_average_1m": 40.0}])
def test_others_on_the_machine_are_seen(run: Run, change: dict[str, float]) -> None:
    load = MachineLoad(psi_cpu_some_share=None, psi_io_some_share=None, steal_share=None, load_average_1m=1.0)
    loaded = tuple(t.model_copy(update={"load": load.model_copy(update=change)}) for t in run.trials)
    quiet = tuple(t.model_copy(update={"load": load}) for t in run.trials)
    assert Diagnostic.BUSY_MACHINE in summarise(run.model_copy(update={"trials": loaded})).warnings
    assert Diagnostic.BUSY_MACHINE not in summarise(run.model_copy(update={"trials": quiet})).warnings


def test_who_waits_for_a_disk_takes_no_cpu_from_us(run: Run) -> None:
    """Where the CPU use of other programs is recorded, waiting for a disk does not make a machine busy."""
    cpus = run.info.environment.cpu_count
    assert cpus is not None
    for busy, warned in ((0.0, False), (float(cpus), True)):
        change = {"psi_io_some_share": 0.3, "busy_cpus": busy + 0.0, "steal_share": 0.0, "load_average_1m": 1.0}
        load = MachineLoad(psi_cpu_some_share=None, psi_io_some_share=None, steal_share=None, load_average_1m=1.0)
        trials = tuple(t.model_copy(update={"load": load.model_copy(update=change)}) for t in run.trials)
        assert (Diagnostic.BUSY_MACHINE in summarise(run.model_copy(update={"trials": trials})).warnings) == warned


def test_merged_percentiles_are_those_of_all_trials_together(run: Run, summary: Summary) -> None:
    """The median of the merged histogram lies between the trials' medians; the maximum is the largest seen."""
    found = [t.measured.histograms[0] for t in run.trials if t.arm == "tcp" and t.measured]
    latency = cell(summary, "tcp").latency_ms
    assert min(h.p50_ns for h in found) / 1e6 * 0.99 <= latency.p50 <= max(h.p50_ns for h in found) / 1e6 * 1.01
    assert latency.max == max(h.max_ns for h in found) / 1e6
    curve = cell(summary, "tcp").latency_curve
    assert [point.ms for point in curve] == sorted(point.ms for point in curve)
    p50, p90, p95 = (percentile_ms(latency, curve, share) for share in (0.5, 0.9, 0.95))
    assert (p50, p95) == (latency.p50, latency.p95), "one figure in all tables"
    assert p50 and p90 and p95 and p50 < p90 < p95
    assert percentile_ms(latency, curve, 0.999999) is None
    assert percentile_ms(latency, curve[:2], 0.5) is None, "too few samples"


def test_what_excluded_trials_would_do_to_a_ratio_is_computed(run: Run) -> None:
    """The first block had an earlier attempt, in which tcp had half the throughput of its repetition and another arm was void."""
    first = min(trial.block for trial in run.trials)
    good = [t.model_copy(update={"attempt": 0}) for t in run.trials if t.status is TrialStatus.OK]
    again = [t.model_copy(update={"attempt": 1}) if t.block == first else t for t in good]
    earlier = []
    for trial in good:
        if trial.block == first and trial.arm in ("socket", "tcp") and trial.measured:
            slower = trial.measured.model_copy(update={"elapsed_ns": trial.measured.elapsed_ns * 2})
            changed = {"number": 10_000 + trial.number, "measured": slower if trial.arm == "tcp" else trial.measured}
            earlier.append(trial.model_copy(update=changed))
    void = {"number": 20_000, "arm": "remote", "status": TrialStatus.VOID, "void_reason": "late", "measured": None}
    info = run.info.model_copy(update={"whole_blocks": True})
    trials = (*earlier, earlier[0].model_copy(update=void), *again)
    summary = summarise(run.model_copy(update={"info": info, "trials": trials}))
    kept = [math.log(ratio) for ratio in cell(summary, "tcp").block_ratios]
    at_first = trial_table(run).block_ratios("tcp", "socket")[0]
    shift = abs(fmean([*kept, math.log(at_first / 2)]) - fmean(kept))
    assert summary.left_out_trials == 2
    assert summary.void_ratio_shift == pytest.approx(math.expm1(shift))
    assert "and no ratio by more than" in void_line(summary)


# ---------------------------------------------------------------- advice


def _over_the_network(summary: Summary) -> Advice:
    return next(each for each in summary.advice if "ver the network, a transaction" in each.because)


class WirePath(RemotePath):
    name = "wire"


def test_advice_is_about_what_paths_declare_and_not_their_names(
    run: Run, summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PATHS_KNOWN, "wire", WirePath())
    arms = tuple(
        arm.model_copy(update={"factors": {**arm.factors, "path": "wire"}}) if arm.factors["path"] == "remote" else arm
        for arm in run.info.arms
    )
    renamed = summarise(run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})}))
    assert renamed.advice == summary.advice


@pytest.mark.parametrize(("tps", "says"), [(130, "First reduce the time spent in CPU"), (165, "Round trips take about half"),
                                           (176, "Round trips take about half"), (251, "With the server on another")])  # fmt: skip
def test_advice_about_round_trips_is_as_sure_as_the_interval_of_their_share(tps: float, says: str) -> None:
    """A transaction has 29 round trips of 0.203 ms: half of its time at 170 transactions per second on two connections."""
    remote = PathModel("remote", ArmRole.CONTENDER, tps, 9.9, 27.9, link_us=14.2)
    found = _over_the_network(summarise(synthetic_run(models=(*PATHS[:3], remote), samples=20)))
    assert found.action.startswith(says)
    assert ("too close to call" in found.because) is ("about half" in says)


def test_the_percentage_of_round_trips_is_that_of_the_two_times_beside_it(run: Run, summary: Summary) -> None:
    """The times shown are limited to what CPU time leaves; the share that is judged is not."""
    remote = cell(summary, "remote")
    split = remote.time_split_us | {"link": remote.time_split_us["link"] / 4}
    changed = remote.model_copy(update={"time_split_us": split})
    table = trial_table(run)
    found = advise([changed if each is remote else each for each in summary.cells], table, measure_noise_floors(table))
    numbers = [re.search(r"they take ([\d.]+) of its ([\d.]+) ms \((\d+) ", each.because) for each in found]
    ((link, cycle, percent),) = (each.groups() for each in numbers if each)
    assert float(percent) == pytest.approx(100 * float(link) / float(cycle), abs=1)


@pytest.mark.parametrize(
    ("wide", "clause", "unclear"),
    [
        (Estimate(value=1.02, low=1.01, high=1.03), True, False),
        (Estimate(value=1.02, low=1.0, high=1.2), False, True),
        (Estimate(value=1.02, low=None, high=None), False, True),
        (Estimate(value=1.2, low=1.1, high=1.3), False, False),
        (None, False, False),
    ],
)
def test_bandwidth_is_no_help_only_where_the_whole_interval_says_so(
    run: Run, summary: Summary, wide: Estimate | None, clause: bool, unclear: bool
) -> None:
    remote = cell(summary, "remote")
    assert remote.limit is not None and remote.limit.faster_link is not None
    changed = remote.model_copy(update={"limit": remote.limit.model_copy(update={"faster_link": wide})})
    table = trial_table(run)
    found = advise([changed if each is remote else each for each in summary.cells], table, measure_noise_floors(table))
    (advice,) = (each for each in found if each.action.startswith("With the server on another machine"))
    assert ("more bandwidth will not help" in advice.action) is clause
    assert ("Whether more bandwidth helps is too close to call" in advice.because) is unclear


def run_of(tcp_tps: float, scatter: float) -> Run:
    tcp = PathModel("tcp", ArmRole.CONTENDER, tcp_tps, 8.8, 26.0)
    return synthetic_run(blocks=8, models=(*PATHS[:2], tcp), scatter=scatter, samples=20, seed=5)


def last_advice(run: Run) -> Advice:
    summary = summarise(run)
    assert next(cell for cell in summary.cells if cell.arm == "tcp").resolution is Resolution.NOT_RESOLVED
    table = trial_table(run)
    return advise(summary.cells, table, measure_noise_floors(table))[-1]


def test_a_large_effect_needs_few_blocks_however_narrow_the_width_asked() -> None:
    """Half the throughput at a scatter of 50 %: tens of blocks distinguish it from 1, an interval of ±5 % would take hundreds."""
    advice = last_advice(run_of(600, 0.5))
    found = re.search(r"about (\d+) blocks for tcp", advice.because)
    assert found is not None and 8 <= int(found[1]) < 100
    assert "blocks are needed" not in advice.because


def test_a_tiny_effect_is_beyond_reach_and_running_longer_is_not_advised() -> None:
    run = run_of(1000, 0.3)
    base = {t.block: t.measured for t in run.trials if t.arm == "socket" and t.measured}

    def level(arm: str, block: int, transactions: int) -> int:
        """tcp has the baseline's transactions, alternately a third more and fewer by block, and 0.01 % fewer overall."""
        return round(transactions * math.exp(0.3 * (-1) ** block) * 0.9999) if arm == "tcp" else transactions

    trials = []
    for trial in run.trials:
        if trial.arm == "tcp" and trial.measured is not None and trial.block in base:
            transactions = level("tcp", trial.block, 100 * base[trial.block].transactions)
            elapsed = 100 * base[trial.block].elapsed_ns
            measured = trial.measured.model_copy(
                update={"transactions": transactions, "queries": 29 * transactions, "elapsed_ns": elapsed}
            )
            trial = trial.model_copy(update={"measured": measured})
        trials.append(trial)
    advice = last_advice(run.model_copy(update={"trials": tuple(trials)}))
    assert "blocks are needed" in advice.because and "tcp" in advice.because
    assert advice.action.startswith("Measure on a quieter machine")


def test_of_dozens_of_cells_one_figure_is_said_and_the_worst() -> None:
    many = tuple(PathModel("tcp", ArmRole.CONTENDER, 600 - n, 8.8, 26.0, name=f"cell {n}") for n in range(30))
    summary = summarise(synthetic_run(blocks=8, models=(*PATHS[:2], *many), scatter=0.5, samples=5, seed=5))
    sentence = summary.advice[-1].because
    found = re.search(r"about (\d+) blocks in the median of (\d+) cells, (\d+) at worst \(cell \d+\)", sentence)
    assert found is not None, sentence
    assert 8 < int(found[1]) < int(found[3]) and int(found[2]) > 6
    assert sentence.count("cell ") == 1 and len(sentence) < 400


@pytest.mark.parametrize("quick", [True, False])
def test_only_a_quick_run_is_told_of_the_full_one(quick: bool) -> None:
    run = run_of(600, 0.5)
    advice = last_advice(run.model_copy(update={"info": run.info.model_copy(update={"quick": quick})}))
    assert ("--full" in advice.action) is quick


def test_the_blocks_that_did_not_resolve_are_never_said_to_be_enough() -> None:
    for seed in range(4):
        tcp = PathModel("tcp", ArmRole.CONTENDER, 600, 8.8, 26.0)
        summary = summarise(synthetic_run(blocks=10, models=(*PATHS[:2], tcp), scatter=0.7, samples=5, seed=seed))
        found = re.search(r"about (\d+) blocks for tcp", summary.advice[-1].because) if summary.advice else None
        assert found is None or int(found[1]) > 10


def test_the_width_asked_for_is_asked_of_the_same_path_twice_too() -> None:
    """A noisy A/A arm determines the number of blocks needed, however steady the other arms are."""
    run = run_of(990, 0.02)
    trials = []
    for trial in run.trials:
        if trial.arm == "socket (again)" and trial.measured is not None:
            elapsed = round(trial.measured.elapsed_ns * math.exp(0.2 * (-1) ** trial.block))
            trial = trial.model_copy(update={"measured": trial.measured.model_copy(update={"elapsed_ns": elapsed})})
        trials.append(trial)
    summary = summarise(run.model_copy(update={"trials": tuple(trials)}))
    needed = {cell.arm: cell.blocks_needed for cell in summary.cells}
    tcp, again = needed["tcp"], needed["socket (again)"]
    assert tcp is not None and again is not None and tcp < again
    assert f"About {again} blocks would make the intervals as narrow as requested." in summary.advice[-1].because


# ---------------------------------------------------------------- other programs' use of the machine, and its effect on the figures


def ours(measured: Measured) -> float:
    return sum(cpu.cpu_ns for cpu in measured.cpu) / measured.elapsed_ns


def with_others(others: float | None, run: Run | None = None) -> Run:
    """A run beside other programs that use `others` of two CPUs. None: the run file does not record it."""

    def load(trial: Trial) -> MachineLoad | None:
        assert trial.load is not None
        busy = None if others is None or trial.measured is None else ours(trial.measured) + others
        return trial.load.model_copy(update={"busy_cpus": busy})

    run = run or synthetic_run(blocks=8, samples=20)
    return run.model_copy(update={"trials": tuple(t.model_copy(update={"load": load(t)}) for t in run.trials)})


@pytest.mark.parametrize(
    ("others", "busy"), [(2 * MAX_OTHER_PROGRAMS_SHARE + 0.01, True), (2 * MAX_OTHER_PROGRAMS_SHARE - 0.01, False)]
)
def test_cpus_in_other_hands_are_a_busy_machine(others: float, busy: bool) -> None:
    summary = summarise(with_others(others))
    assert summary.others_cpus == pytest.approx(others)
    assert (Diagnostic.BUSY_MACHINE in summary.warnings) is busy


def test_the_figure_stands_in_the_report_with_each_trial() -> None:
    page = html.render(summarise(with_others(1.04)))
    assert "kept 1.04 of 2 CPUs busy in the median trial. This machine counts as busy" in page
    assert "<span>1.04</span>" in page


def test_a_run_that_does_not_say_is_unknown_and_not_quiet() -> None:
    summary = summarise(with_others(None))
    assert summary.others_cpus is None and Diagnostic.BUSY_MACHINE not in summary.warnings
    page = markdown.render(summary)
    assert "not recorded" in page and "counts as busy" not in page


def test_less_than_our_own_is_none_of_others() -> None:
    assert summarise(with_others(-0.3)).others_cpus == 0


def test_the_spread_of_the_baseline_is_of_this_run() -> None:
    summary = summarise(synthetic_run(blocks=8, samples=20))
    qps = [trial.qps for trial in summary.trials if trial.arm == "socket" and trial.qps]
    assert summary.baseline_spread is not None and summary.baseline_spread.cpu_per_query is not None
    assert summary.baseline_spread.qps == pytest.approx(max(qps) / min(qps))
    assert 1 < summary.baseline_spread.cpu_per_query < summary.baseline_spread.qps
    assert "CPU per query varied less than throughput" in markdown.render(summary)


def test_cpu_that_moved_more_than_the_clock_is_not_praised() -> None:
    run = synthetic_run(blocks=8, samples=20)

    def dearer(trial: Trial) -> Trial:
        if trial.measured is None or trial.block != 3:
            return trial
        cpu = tuple(record.model_copy(update={"cpu_ns": record.cpu_ns * 5}) for record in trial.measured.cpu)
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"cpu": cpu})})

    run = run.model_copy(update={"trials": tuple(dearer(trial) for trial in run.trials)})
    assert "CPU per query did not vary less than throughput" in markdown.render(summarise(run))


def test_only_blocks_with_every_arm_count_as_complete() -> None:
    run = synthetic_run(blocks=8, samples=20)
    kept = tuple(trial for trial in run.trials if not (trial.arm == "tcp" and trial.block in (2, 7)))
    summary = summarise(run.model_copy(update={"trials": kept}))
    assert (summary.blocks, summary.complete_blocks) == (8, 6)
    assert "In each of 6 complete blocks" in markdown.render(summary)
    assert "8 blocks, 2 of them incomplete" in session_line(summary)
    assert summarise(synthetic_run(blocks=0)).complete_blocks == 0


def test_the_window_says_better_what_was_busy() -> None:
    """The machine load, unlike the window, includes the time until the last pages in flight end: idle, as here, or with other work."""
    run = with_others(0.0)
    trial = next(t for t in run.trials if t.measured is not None)
    assert trial.measured is not None
    window = Window(length_ns=trial.measured.elapsed_ns, interface="", cpus_busy={0: ours(trial.measured), 1: 0.5})
    assert others_cpus_in_trial(trial) == pytest.approx(0.0)
    assert others_cpus_in_trial(trial.model_copy(update={"window": window})) == pytest.approx(0.5)
    assert others_cpus_in_trial(trial.model_copy(update={"window": window, "load": None})) == pytest.approx(0.5)


def test_the_load_on_a_second_node_is_none_of_others() -> None:
    trial = next(t for t in with_others(0.7).trials if t.measured is not None)

    def others(cpu_ns: int | None) -> float | None:
        second = SecondWriter(elapsed_ns=2 * 10**9, transactions=1, errors={}, cpu_ns=cpu_ns)
        return others_cpus_in_trial(with_receipt(trial, writers=build(WritersReceipt, second=second)))

    assert others(10**9) == pytest.approx(0.2)
    assert others(None) == pytest.approx(0.7), "an older run file"


# ---------------------------------------------------------------- the verdict of a run


def _alone(run: Run) -> Run:
    """The run with no arms but the baseline and its duplicate."""
    kept = tuple(arm for arm in run.info.arms if arm.role is not ArmRole.CONTENDER)
    names = {arm.name for arm in kept}
    info = run.info.model_copy(update={"arms": kept})
    return run.model_copy(update={"info": info, "trials": tuple(t for t in run.trials if t.arm in names)})


def test_one_block_is_no_answer_and_has_no_interval() -> None:
    """No interval width is shown, and no advice given."""
    summary = summarise(synthetic_run(blocks=1, samples=5))
    assert summary.answer.is_missing and summary.advice == ()
    assert "no intervals, because there are fewer than 4 blocks" in session_line(summary)
    assert "±0.0" not in terminal.render(summary, 100)
    assert not summarise(synthetic_run(blocks=4, samples=5)).answer.is_missing


def test_a_path_against_itself_is_judged_and_shown() -> None:
    summary = summarise(_alone(synthetic_run(blocks=8, samples=20)))
    assert [found.id for found in summary.answer.findings] == ["equal"]
    assert "socket (again)" in terminal.render(summary, 100)


def test_a_limit_near_nothing_is_not_written_as_nothing() -> None:
    assert interval_text(Estimate(value=0.19, low=0.0013, high=1.24)) == "0.190 [0.001, 1.240]"
    assert interval_text(Estimate(value=0.48, low=0.19, high=1.24)) == "0.48 [0.19, 1.24]"


# ---------------------------------------------------------------- components of the scatter between blocks, where both are known


_LINK = LinkFacts(requested_rtt_ns=None, rest_rtt_ns=None, goodput_share=None)
"""A link of which nothing is known."""


def blocks(count: int, rtt_sd: float, other_sd: float, share: float) -> tuple[list[Trial], list[float]]:
    """Trials whose unloaded RTT varies, and ratios that follow it by `share` with other scatter added."""
    chance = random.Random(3)
    (template, *_) = (trial for trial in synthetic_run(blocks=1, samples=10).trials if trial.measured is not None)
    trials, ratios = [], []
    for block in range(count):
        error = chance.gauss(0, rtt_sd)
        link = LinkReceipt(rtt_at_rest_ns=QuantilesNs(p50=round(200_000 * (1 + error))))
        trials.append(with_receipt(template, link=link).model_copy(update={"block": block}))
        ratios.append(0.3 * math.exp(-share * error + chance.gauss(0, other_sd)))
    return trials, ratios


@pytest.mark.parametrize(("rtt_sd", "other_sd"), [(0.02, 0.01), (0.002, 0.02), (0.03, 0.001)])
def test_both_parts_are_found(rtt_sd: float, other_sd: float) -> None:
    trials, ratios = blocks(400, rtt_sd, other_sd, 0.7)
    found = scatter(trials, judge_ratio(ratios), 0.7, _LINK)
    assert found is not None and found.blocks == 400
    assert found.rtt == pytest.approx(rtt_sd, rel=0.15)
    assert found.calibration == pytest.approx(0.7 * rtt_sd, rel=0.15)
    assert found.total == pytest.approx(math.hypot(0.7 * rtt_sd, other_sd), rel=0.15)
    assert found.total**2 == pytest.approx(found.calibration**2 + found.other**2)


def test_an_rtt_that_is_off_in_every_block_is_told_and_from_two_percent_on_warned_of() -> None:
    trials, ratios = blocks(8, 0.0, 0.01, 0.7)
    found = scatter(trials, judge_ratio(ratios), 0.7, replace(_LINK, requested_rtt_ns=192_000))
    assert found is not None and found.rtt_off == pytest.approx(200 / 192 - 1)
    assert found.shift == pytest.approx(-0.7 * (200 - 192) / 200), "as a share of the measured cycle"
    unknown = scatter(trials, judge_ratio(ratios), 0.7, _LINK)
    assert unknown is not None and unknown.shift is None


@pytest.mark.parametrize(("extra_ns", "warned"), [(0, False), (20_000, True), (28_000, True)])
def test_a_report_says_what_an_rtt_that_is_off_does_to_the_figures(extra_ns: int, warned: bool) -> None:
    run = synthetic_run(blocks=8, void_every=0, samples=10)

    def asked(trial: Trial) -> Trial:
        if trial.receipt.link is None:
            return trial
        at_rest, requested = QuantilesNs(p50=200_000 + extra_ns), RequestedLink(rest_rtt_ns=200_000)
        return with_receipt(trial, link=LinkReceipt(rtt_at_rest_ns=at_rest, requested=requested))

    summary = summarise(run.model_copy(update={"trials": tuple(map(asked, run.trials))}))
    assert (Diagnostic.LINK_NOT_AS_REQUESTED in cell(summary, "remote").warnings) is warned
    said = " ".join(terminal.render(summary, 100).split())
    assert "than requested, which alone makes the figures of remote" in said


def test_what_late_packets_do_to_a_figure_is_told() -> None:
    trials, ratios = blocks(8, 0.0, 0.01, 0.7)
    stalled = scatter(trials, judge_ratio(ratios), 0.7, replace(_LINK, late_ns=20_000))
    assert stalled is not None and stalled.late == pytest.approx(-0.7 * 20 / 220)
    for late_ns in (None, 0, 3_000):
        on_time = scatter(trials, judge_ratio(ratios), 0.7, replace(_LINK, late_ns=late_ns))
        assert on_time is not None and on_time.late is None


def test_no_link_or_few_blocks_say_nothing() -> None:
    trials, ratios = blocks(3, 0.02, 0.01, 0.7)
    assert scatter(trials, judge_ratio(ratios), 0.7, _LINK) is None
    without = [trial.model_copy(update={"receipt": TrialReceipt()}) for trial in blocks(8, 0.02, 0.01, 0.7)[0]]
    assert scatter(without, judge_ratio(blocks(8, 0.02, 0.01, 0.7)[1]), 0.7, _LINK) is None


# ---------------------------------------------------------------- a limit that was tested and refuted


@pytest.fixture
def full_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the link the limit of every cell over a link, whatever was measured: that limit is then tested."""
    find = attribution.find_limit

    def over_links(whole: Any, setting: Any) -> Any:
        budget, cycle, _ = find(whole, setting)
        return budget, cycle, limit(Resource.LINK_TO_CLIENT) if "rate_bps" in setting.factors else None

    monkeypatch.setattr(cells, "find_limit", over_links)


def two_links(path: Path, there: WatchTargets) -> Summary:
    levels: dict[str, Any] = {"path": ["socket", "remote"], "rate": ["100mbit", "1gbit"]}
    overrides = [Override("", ("factors", name), each) for name, each in levels.items()]
    plan = load_plan("paths", True, [*overrides, Override("", ("timing", "confirm"), True)])
    with create(path, fake_info(loaded=plan)) as file:
        there.go(file)
    return summarise(read_run(path))


def test_an_answer_whose_limit_was_refuted_says_so_in_every_report(tmp_path: Path, full_links: None) -> None:
    summary = two_links(tmp_path / "a.howfar", fake_targets(lambda factors: 1.0))
    assert not is_grid(summary)
    assert {found.confirmed for found in summary.confirmations} == {False}
    for cell in summary.cells:
        if cell.limit is not None:
            assert (cell.limit.confidence, cell.limit.would_change) == ("low", "")
            assert "gave 1" in cell.limit.evidence[-1] and "not 1.50 times" in cell.limit.text
    assert not any("faster link" in advice.action for advice in summary.advice), "nothing is advised on its ground"
    for text in (terminal.render(summary), markdown.render(summary), html.render(summary)):
        assert "NOT confirmed" in " ".join(text.split())


def test_an_answer_whose_limit_held_says_nothing_of_the_kind(tmp_path: Path, full_links: None) -> None:
    summary = two_links(tmp_path / "a.howfar", fake_targets())
    assert {found.confirmed for found in summary.confirmations} == {True}
    assert "refuted" not in terminal.render(summary)
    assert {cell.limit.confidence for cell in summary.cells if cell.limit} == {"high"}


@pytest.mark.parametrize(("slowed", "warned"), [(1.0, False), (1.6, True)])
def test_the_same_work_that_takes_more_cpu_in_some_blocks_is_told_first(slowed: float, warned: bool) -> None:
    """Every second block needs more CPU time for the same work, as beside a neighbour on the same core."""

    def one(trial: Trial) -> Trial:
        if trial.measured is None or trial.block % 2:
            return trial
        cpu = tuple(use.model_copy(update={"cpu_ns": int(use.cpu_ns * slowed)}) for use in trial.measured.cpu)
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"cpu": cpu})})

    run = synthetic_run(blocks=8, samples=20)
    summary = summarise(run.model_copy(update={"trials": tuple(map(one, run.trials))}))
    assert (Diagnostic.UNEVEN_CPUS in summary.warnings) is warned
    assert summary.cpu_scatter is not None and (0.2 < summary.cpu_scatter < 0.3) is warned
    screen = " ".join(terminal.render(summary, 100).split())
    assert ("CPU time of the same work varied" in screen) is warned
    assert ("varied by ±2" in screen) is warned
    assert summary.speed_scatter is None and "the speed of its CPUs" not in screen


def test_the_warning_of_uneven_cpus_says_how_much_their_speed_varied() -> None:
    def one(trial: Trial) -> Trial:
        if trial.measured is None:
            return trial
        slowed = 1 + trial.block % 2
        cpu = tuple(use.model_copy(update={"cpu_ns": use.cpu_ns * slowed}) for use in trial.measured.cpu)
        speed = SpeedReceipt(before_ns={0: 1_500_000 * slowed, 1: 1_500_000 * slowed}, after_ns={0: 1_500_000 * slowed})
        measured = trial.measured.model_copy(update={"cpu": cpu})
        return trial.model_copy(
            update={"measured": measured, "receipt": trial.receipt.model_copy(update={"speed": speed})}
        )

    run = synthetic_run(blocks=8, samples=20)
    summary = summarise(run.model_copy(update={"trials": tuple(map(one, run.trials))}))
    assert summary.speed_scatter == pytest.approx(1 / 3, abs=0.02), "half of the trials at 1, half at 2: 0.5 / 1.5"
    screen = " ".join(terminal.render(summary, 100).split())
    assert "the speed of its CPUs, timed at both ends of each trial, varied by ±3" in screen


@pytest.mark.parametrize(("steal", "told"), [(0.0, False), (0.05, True)])
def test_a_machine_whose_host_runs_other_guests_is_called_busy_for_that_reason(steal: float, told: bool) -> None:
    run = synthetic_run(blocks=8, samples=20)
    trials = tuple(
        trial.model_copy(update={"load": trial.load.model_copy(update={"steal_share": steal})}) if trial.load else trial
        for trial in run.trials
    )
    summary = summarise(run.model_copy(update={"trials": trials}))
    assert summary.steal_share == steal and (Diagnostic.BUSY_MACHINE in summary.warnings) is told
    screen = " ".join(terminal.render(summary, 100).split())
    assert ("other virtual machines on its host, which took 5.0 % of the CPU time" in screen) is told
