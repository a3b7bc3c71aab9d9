"""What a program on the path costs, against the arithmetic of one queue before one server."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.made import floors_of, latency, with_receipt
from tests.shipped import skip_without_workload
from tests.unit import rendered as reports
from tests.unit.fake_lab import QUERIES_A_TRANSACTION, RATES, fake_info, fakes

from howfar.analysis.answer import UNRESOLVED, sentence
from howfar.analysis.compare import compare
from howfar.analysis.summary import Summary
from howfar.cli.progress import format_ratio
from howfar.contract.messages import LoadJob, UnixTarget
from howfar.contract.receipt_messages import Histogram
from howfar.experiments.network.hops.report import (
    HopCosts,
    conclude,
    draw_poolers,
    explain,
    find_pooler_payoffs,
    hop_finding,
    pooler_finding,
    poolers_table,
    records,
)
from howfar.experiments.network.hops.texts import TEXTS
from howfar.experiments.registry import experiment_of, render_in_terminal, summarise
from howfar.plan.factors import offered_per_s
from howfar.plan.fitting import with_keys
from howfar.plan.load import LoadedPlan, Override, load_plan
from howfar.report.certainty import certainty
from howfar.report.figures import resolution_text
from howfar.runner.observer import Observer
from howfar.runner.preflight import with_rates
from howfar.runner.run import execute_run
from howfar.runner.stopping import run_progress
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution
from howfar.stats.trials import trial_table
from howfar.store.records import ArmRole, Run, Trial
from howfar.store.run_file import create, read_run

PROGRAMS = {
    "haproxy": ("haproxy",),
    "sidecar": ("haproxy", "haproxy"),
    "ssh": ("ssh", "sshd"),
    "pgbouncer": ("pgbouncer",),
    "nutcracker": ("nutcracker",),
}
CAPACITY = {path: rate / QUERIES_A_TRANSACTION for path, rate in RATES.items()}


def _wobble(job: LoadJob) -> float:
    """A factor of 1 ± 1 %, always the same for the same job."""
    return 1 + 0.02 * (random.Random(zlib.crc32(job.model_dump_json().encode())).random() - 0.5)


def _run(name: str, folder: Path, jitter: Callable[[LoadJob], float] = _wobble) -> Run:
    path = folder / "a.howfar"
    laboratory, _, instruments = fakes(jitter=jitter)
    timing: dict[str, str | int] = {"measure": "60s", "max_blocks": 6, "time_budget": "10h"}
    plan = load_plan(name, quick=True, overrides=[Override("", ("timing", key), at) for key, at in timing.items()])
    rated, capacity = with_rates(plan.plan, 1, laboratory, instruments, Observer())
    info = fake_info(loaded=LoadedPlan(rated, plan.text, plan.quick))
    with create(path, info.model_copy(update={"environment": info.environment.updated(capacity)})) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    return read_run(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _run("hops", tmp_path_factory.mktemp("hops"))


@pytest.fixture(scope="module")
def summary(run: Run) -> Summary:
    return summarise(run)


def test_a_spreadsheet_has_the_costs_of_each_path_with_a_program(summary: Summary) -> None:
    found = summary.require_findings(HopCosts)
    lines = records(summary, found)
    assert {line["arm"] for line in lines} == {cell.arm for cell in summary.cells}
    for hop in found.hops:
        of_path = [line for line in lines if line["path"] == hop.path]
        assert hop.throughput_ratio is not None and of_path
        assert {line["hops_throughput_ratio"] for line in of_path} == {f"{hop.throughput_ratio.value:.6g}"}
    assert all("hops_throughput_ratio" not in line for line in lines if line["path"] == found.baseline)


def test_each_path_with_a_program_is_set_against_the_one_without(summary: Summary) -> None:
    found = reports.findings_of(summary, HopCosts)
    assert found.baseline == "remote" and [hop.path for hop in found.hops] == list(PROGRAMS)
    assert found.per_s == pytest.approx(0.3 * CAPACITY["remote"], rel=0.02)
    assert [hop.programs for hop in found.hops] == list(PROGRAMS.values())
    for hop in found.hops:
        assert hop.throughput_ratio is not None
        assert hop.throughput_ratio.value == pytest.approx(RATES[hop.path] / RATES["remote"], rel=0.02)
        assert hop.throughput_ratio.low is not None and hop.throughput_ratio.high is not None
        assert hop.cpu_us_per_query is None, "the stand-in has no programs"


def test_what_it_adds_is_the_difference_of_the_quantiles(summary: Summary) -> None:
    """The quantile of a share is p = -ln(1 - share) / (capacity - rate)."""
    found = reports.findings_of(summary, HopCosts)
    assert found.per_s is not None
    for hop in found.hops:
        for added, share in ((hop.added_p50_us, 0.5), (hop.added_p99_us, 0.99)):
            expected = -math.log(1 - share) * 1e6
            expected *= 1 / (CAPACITY[hop.path] - found.per_s) - 1 / (CAPACITY["remote"] - found.per_s)
            assert added is not None and added.value == pytest.approx(expected, rel=0.2)
            assert added.low is not None and added.high is not None and added.low < added.value < added.high


def test_rates_are_left_out_as_the_plan_says_although_they_were_shares(run: Run) -> None:
    """Six paths in a closed loop and at a rate, three with a connect per transaction; two A/A arms and the link's three controls."""
    assert len(run.info.arms) == 6 * 2 + 3 + 2 + 3
    assert not [arm.name for arm in run.info.arms if "connect per transaction" in arm.name and "/s" in arm.name]


def test_a_given_rate_is_compared_only_with_the_same_rate(run: Run) -> None:
    """The path without a program at 30 % of its throughput is not compared with its full throughput, and its width ends no run."""
    offered = {arm.name: offered_per_s(arm.factors) for arm in run.info.arms}
    now = run_progress(run, 6, 0.05)
    over = {arm.arm: arm.reference for arm in now.arms}
    alone = [name for name, rate in offered.items() if rate and over[name] is None]
    assert len(alone) == 1 and alone[0] not in {arm.arm for arm in now.compared}
    assert len([name for name in over.values() if name == alone[0]]) == 5 + 1, "its A/A arm too"
    assert all(offered[name] == offered[other] for name, other in over.items() if other is not None)
    assert now.is_narrow_enough(1.0)


def test_a_run_at_rates_stops_by_their_p99(run: Run) -> None:
    """p99 = ln 100 / (capacity - rate)."""
    at = {arm.name: offered for arm in run.info.arms if (offered := offered_per_s(arm.factors)) is not None}
    paced = next(arm for arm in run_progress(run, 6, 0.05).arms if arm.arm in at and arm.arm.startswith("haproxy"))
    expected = (CAPACITY["remote"] - at[paced.arm]) / (CAPACITY["haproxy"] - at[paced.arm])
    assert paced.ratio is not None and paced.ratio.value == pytest.approx(expected, rel=0.1)
    assert paced.figure == "p99" and format_ratio(paced).startswith("p99 "), "no throughput"


def test_added_times_are_at_a_rate_that_every_path_sustains(run: Run) -> None:
    slow = next(arm.name for arm in run.info.arms if arm.name.startswith("ssh") and offered_per_s(arm.factors))

    def queued(trial: Trial) -> Trial:
        if trial.arm != slow:
            return trial
        arrivals = trial.receipt.arrivals
        assert arrivals is not None
        return with_receipt(trial, arrivals=arrivals.model_copy(update={"answered": int(0.8 * arrivals.due)}))

    changed = run.model_copy(update={"trials": tuple(map(queued, run.trials))})
    found = reports.findings_of(summarise(changed), HopCosts)
    assert found.per_s is None and {hop.added_p50_us for hop in found.hops} == {None}
    now = {arm.arm: arm.reference for arm in run_progress(changed, 6, 0.05).arms}
    assert now[slow] is None, "what queues has no time that could become narrow"


def test_a_run_of_few_transactions_stops_by_their_p50(run: Run) -> None:
    """Fewer than 1000 in a trial have no p99; one such trial of either path suffices, or the other trials would decide alone."""

    def few(trial: Trial) -> Trial:
        if trial.measured is None or trial.block > last:
            return trial
        rare = [latency(Histogram, "transaction", [1e6, 2e6, 3e6], 240)]
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"histograms": tuple(rare)})})

    for last in (5, 0):
        now = run_progress(run.model_copy(update={"trials": tuple(map(few, run.trials))}), 6, 0.05)
        paced = [arm for arm in now.arms if arm.arm.startswith("haproxy") and "/s" in arm.arm]
        assert paced and all(arm.ratio is not None and arm.figure == "p50" and arm.blocks == 6 for arm in paced)
        assert last == 0 or all(arm.ratio is not None and arm.ratio.value == pytest.approx(1) for arm in paced)


def test_two_runs_are_not_compared_by_a_rate_that_is_given(run: Run, summary: Summary) -> None:
    offered = {arm.name for arm in run.info.arms if offered_per_s(arm.factors) is not None}
    slower = run.model_copy(update={"trials": tuple(map(_slower, run.trials))})
    arms = compare(run, slower).arms
    assert {arm.arm for arm in arms if arm.has_given_rate} >= {name for name in offered if "again" not in name}
    assert all(arm.relative_to_baseline is None and not arm.qps_differs for arm in arms if arm.has_given_rate)
    alone = [cell for cell in summary.cells if cell.arm in offered and cell.ratio is None]
    assert alone and {resolution_text(cell) for cell in alone} == {"at a given rate"}


def _slower(trial: Trial) -> Trial:
    if trial.measured is None:
        return trial
    slower = trial.measured.model_copy(update={"elapsed_ns": trial.measured.elapsed_ns * 2})
    return trial.model_copy(update={"measured": slower})


def test_paths_are_compared_over_one_link(run: Run) -> None:
    """An arm over a shorter link comes first, but is not compared."""
    near = next(arm for arm in run.info.arms if arm.factors["path"] == "haproxy" and not offered_per_s(arm.factors))
    other = near.model_copy(update={"name": "haproxy, near", "factors": near.factors | {"rtt_ns": 1}})
    info = run.info.model_copy(update={"arms": (other, *run.info.arms)})
    hop = reports.findings_of(summarise(run.model_copy(update={"info": info})), HopCosts).hops[0]
    assert hop.throughput_ratio is not None
    assert hop.throughput_ratio.value == pytest.approx(RATES["haproxy"] / RATES["remote"], rel=0.02)


def test_what_a_connect_costs_is_said_for_each_path(summary: Summary) -> None:
    """In the stand-in a connect costs nothing; its scatter is one per cent."""
    found = reports.findings_of(summary, HopCosts)
    assert [hop.path for hop in found.hops if hop.connect_us is None] == ["haproxy", "sidecar", "ssh"]
    for connect in (found.connect_us, *(hop.connect_us for hop in found.hops if hop.connect_us is not None)):
        assert connect is not None and connect.low is not None and connect.high is not None
        assert abs(connect.value) < 0.02 * 4e6 / CAPACITY["sidecar"], "of a transaction's time with four connections"


def test_the_report_answers_with_it(summary: Summary) -> None:
    """One finding for each hop, with the figure of the table, the largest loss first."""
    assert experiment_of(summary).name == "hops"
    costs, findings = reports.findings_of(summary, HopCosts), summary.answer.findings
    assert {each.subject for each in findings} == PROGRAMS.keys() and {each.id for each in findings} == {"slower"}
    ratios = [hop.throughput_ratio for hop in costs.hops if hop.throughput_ratio is not None]
    assert [each.estimate for each in findings] == sorted(ratios, key=lambda ratio: ratio.value)
    assert {each.parameters["baseline"] for each in findings} == {"remote"}


def test_the_first_screens_are_as_a_person_has_read_them(summary: Summary, pooled: Summary) -> None:
    for name, each in (("hops", summary), ("poolers", pooled)):
        text = reports.terminal.render(each.model_copy(update={"created": "2026-01-01T00:00:00Z"}), 100, details=False)
        reports.is_golden(reports.GOLDEN / f"terminal-{name}.txt", text)


def test_an_added_time_is_said_where_the_throughput_shows_no_difference(summary: Summary) -> None:
    costs = reports.findings_of(summary, HopCosts)
    hop = costs.hops[0].model_copy(update={"resolution": Resolution.NOT_RESOLVED})
    delay = hop_finding(hop, costs)
    assert (delay.id, delay.estimate, delay.parameters) == ("delay", hop.added_p50_us, {"per_s": costs.per_s})
    shorter = hop.model_copy(update={"added_p50_us": Estimate(value=-12.0, low=-13.0, high=-11.0)})
    saves = hop_finding(shorter, costs)
    assert (saves.id, saves.parameters["saved"]) == ("saves", 12.0)
    assert "-" not in sentence([saves, saves.model_copy(update={"subject": "another"})], TEXTS)
    neither = hop_finding(hop.model_copy(update={"p50_resolution": Resolution.NOT_RESOLVED}), costs)
    assert (neither.id, neither.estimate) == (UNRESOLVED, hop.throughput_ratio)
    nothing = {"throughput_ratio": None, "resolution": None, "added_p50_us": None, "p50_resolution": None}
    missing = hop.model_copy(update=nothing)
    assert hop_finding(missing, costs).id == "unmeasured"
    changed = costs.model_copy(update={"hops": (missing, shorter, hop, costs.hops[1])})
    assert [each.id for each in conclude(changed)] == ["slower", "delay", "saves", "unmeasured"], (
        "differences come first"
    )


def test_what_is_not_resolved_is_said_where_it_stands(tmp_path: Path) -> None:
    """Trials that scatter by a half: HAProxy's 0.8 is within the noise, and the report states the noise floor."""
    noise = random.Random(5)
    summary = summarise(_run("hops", tmp_path, lambda _: noise.uniform(0.5, 1.5)))
    assert summary.noise_floor is not None and summary.noise_floor > 0.3
    found = {hop.path: hop for hop in reports.findings_of(summary, HopCosts).hops}
    assert found["haproxy"].resolution is Resolution.NOT_RESOLVED
    finding = next(each for each in summary.answer.findings if each.subject == "haproxy")
    assert (finding.id, finding.verdict) == (UNRESOLVED, Resolution.NOT_RESOLVED)
    assert certainty(summary).startswith("Poor: ") and "may make anything from " in certainty(summary)
    assert certainty(summary) in " ".join(render_in_terminal(summary, 400, False, True, False).split())
    for cell in summary.cells:
        if cell.ratio is not None and cell.resolution in (Resolution.SLOWER, Resolution.FASTER):
            assert abs(math.log(cell.ratio.value)) >= math.log1p(summary.noise_floor), "nothing below the stated floor"


def test_paths_from_one_machine_to_another_are_no_hops(run: Run) -> None:
    """Compared with a path on one machine, the program's part could not be separated from the network's."""
    arms = tuple(
        arm.model_copy(update={"factors": {**arm.factors, "path": "socket"}}) if arm.role is ArmRole.BASELINE else arm
        for arm in run.info.arms
    )
    changed = summarise(run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})}))
    assert changed.findings["hops"] is None and experiment_of(changed).name == "latency"


def _of(run: Run, kind: str, workload: str) -> Summary:
    plan = {**run.info.plan, "workload": {**run.info.plan["workload"], "kind": workload}}
    return summarise(run.model_copy(update={"info": run.info.model_copy(update={"server_kind": kind, "plan": plan})}))


def test_what_others_published_stands_beside_the_same_ratio_of_ours(run: Run) -> None:
    """Published 28 May 2026: 350 connects per second through PgBouncer, 3,000 without it. In the stand-in a connect costs nothing."""
    summary = _of(run, "postgresql", "oltp_point_select")
    (beside,) = reports.findings_of(summary, HopCosts).elsewhere
    assert beside.theirs == pytest.approx(350 / 3000)
    assert beside.ours.value == pytest.approx(RATES["pgbouncer"] / RATES["remote"], rel=0.02)
    shown = render_in_terminal(summary, 140, False, False, False)
    assert "Published elsewhere" in shown and "pgsql-hackers" in shown
    opposite = reports.findings_of(summary, HopCosts).elsewhere[0].ours.value > 1
    assert ("lie on opposite sides of 1" in " ".join(shown.split())) == opposite


def test_nothing_published_stands_beside_another_server_or_workload(run: Run, summary: Summary) -> None:
    for other in (summary, _of(run, "redis", "oltp_point_select")):
        assert reports.findings_of(other, HopCosts).elsewhere == ()
    (beside,) = reports.findings_of(_of(run, "redis", "key_value"), HopCosts).elsewhere
    assert (beside.path, beside.over) == ("haproxy", "remote")


def test_a_store_of_keys_is_asked_for_keys() -> None:
    skip_without_workload("key_value")
    plan = load_plan("hops").plan
    fitted = with_keys(plan)
    assert fitted.plan.workload.kind == "key_value" and fitted.plan.keys.set == 0 and len(fitted.notes) == 1
    assert with_keys(fitted.plan).plan is fitted.plan
    other = load_plan("paths").plan
    assert with_keys(other).plan is other, "its ranges and sums are no requests to such a store"


PAYS_FROM = 20
"""Number of clients at which the pooler breaks even; the quick plan measures 4, 32 and 256."""


def _pooled(job: LoadJob) -> float:
    """On the pooler's path the rate grows with the square root of the clients, and equals the other path's at `PAYS_FROM`; but with
    a connection for each transaction it is always twice the other's."""
    assert isinstance(job.target, UnixTarget)
    if Path(job.target.path).name != "pgbouncer":
        return _wobble(job)
    even = RATES["remote"] / RATES["pgbouncer"]
    gain = 2.0 if job.session.connect == "per_transaction" else math.sqrt(job.connections / PAYS_FROM)
    return even * gain * _wobble(job)


@pytest.fixture(scope="module")
def pooled_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _run("poolers", tmp_path_factory.mktemp("poolers"), _pooled)


@pytest.fixture(scope="module")
def pooled(pooled_run: Run) -> Summary:
    return summarise(pooled_run)


def test_a_pooler_pays_from_where_its_ratio_rises_through_one(pooled: Summary) -> None:
    """Between 4 and 32 clients the ratio is linear on logarithmic scales: exp(log 4 + share x log 8), which is 20."""
    kept, each = reports.findings_of(pooled, HopCosts).poolers
    assert (kept.path, kept.connect, each.connect) == ("pgbouncer", "persistent", "per-transaction")
    assert [one.threads for one in kept.ratios] == [4, 32, 256]
    assert [one.threads for one in each.ratios] == [4, 32]
    assert kept.pays_from is not None and kept.pays_from_interval is not None
    assert kept.pays_from == pytest.approx(PAYS_FROM, rel=0.02)
    low, high = kept.pays_from_interval
    assert low < kept.pays_from < high and high / low < 1.1
    assert each.pays_from is None and each.always == "pays"


def test_a_crossing_is_said_only_where_some_ratio_is_resolved(pooled_run: Run, pooled: Summary) -> None:
    """Ratios of 0.45 to 3.6 rise through 1, but are noise under a noise floor of a factor of five."""
    table, costs = trial_table(pooled_run), reports.findings_of(pooled, HopCosts)
    said, cells = [], []
    for floor in (4.0, 0.02):
        found = find_pooler_payoffs(table, "remote", floors_of(floor))
        kept = found[0]
        assert kept.pays_from == pytest.approx(PAYS_FROM, rel=0.02) and kept.pays_from_interval is None
        finding = pooler_finding(kept)
        said.append((finding.id, finding.estimate and finding.estimate.value))
        cells.append(poolers_table(costs.model_copy(update={"poolers": found})).rows[0][2].text)
    assert said == [("unclear/persistent", None), ("pays-from/persistent", kept.pays_from)]
    assert cells == ["unclear", f"{kept.pays_from:.1f}"]


def test_a_connect_is_the_cause_only_where_a_pooler_pays_off_and_a_connect_takes_time(pooled: Summary) -> None:
    connect_us = Estimate(value=900.0, low=850.0, high=950.0)
    costs = reports.findings_of(pooled, HopCosts).model_copy(update={"connect_us": connect_us})
    (cause,) = explain(costs)
    assert (cause.id, cause.subject, cause.estimate) == ("connect", costs.baseline, connect_us)
    unclear = connect_us.model_copy(update={"low": -10.0})
    assert explain(costs.model_copy(update={"connect_us": unclear})) == ()
    lossy = tuple(pooler.model_copy(update={"always": "costs"}) for pooler in costs.poolers)
    assert explain(costs.model_copy(update={"poolers": lossy})) == ()


def test_without_an_answer_there_is_no_number_of_clients(pooled: Summary) -> None:
    costs = reports.findings_of(pooled, HopCosts)
    with_answer, without = (poolers_table(costs, has_answer).columns for has_answer in (True, False))
    assert {column.head for column in with_answer} - {column.head for column in without} == {"pays off above"}


@pytest.mark.parametrize(("always", "kind"), [("pays", "pays"), ("costs", "costs"), ("not told apart", "unclear")])
def test_a_pooler_that_does_not_break_even_pays_or_costs_for_all_clients(
    pooled: Summary, always: str, kind: str
) -> None:
    for pooler in reports.findings_of(pooled, HopCosts).poolers:
        finding = pooler_finding(pooler.model_copy(update={"always": always, "pays_from": None}))
        numbers = [ratio.threads for ratio in pooler.ratios]
        assert (finding.id, finding.estimate) == (f"{kind}/{pooler.connect}", None)
        assert (finding.parameters["fewest"], finding.parameters["most"]) == (numbers[0], numbers[-1])
        assert sentence([finding], TEXTS)


def test_the_costs_are_those_at_the_baselines_number_of_clients(pooled: Summary) -> None:
    (hop,) = reports.findings_of(pooled, HopCosts).hops
    assert hop.throughput_ratio is not None
    assert hop.throughput_ratio.value == pytest.approx(math.sqrt(4 / PAYS_FROM), rel=0.02)


def test_the_answer_names_the_number_of_clients(pooled: Summary) -> None:
    """Pooled paths are said by the number of clients only, not also at the baseline's."""
    kept, each = pooled.answer.findings
    found = reports.findings_of(pooled, HopCosts).poolers[0]
    assert (kept.id, each.id) == ("pays-from/persistent", "pays/per-transaction")
    assert kept.estimate is not None
    assert (kept.estimate.value, (kept.estimate.low, kept.estimate.high)) == (found.pays_from, found.pays_from_interval)
    assert f"'domain': [{4 / 1.3}" in str(draw_poolers(reports.findings_of(pooled, HopCosts), 600))
