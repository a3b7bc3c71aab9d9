"""Response times at fixed rates, against the formulas of one queue before one server; and how loads are written and resolved."""

from __future__ import annotations

import csv as spreadsheet
import io
import json
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from tests.made import latency, with_receipt
from tests.shipped import load_shipped
from tests.unit import rendered as reports
from tests.unit.fake_lab import QUERIES_A_TRANSACTION, RATES, fake_info, fakes
from tests.unit.rendered import is_short

from howfar.analysis.answer import sentence
from howfar.analysis.summary import Summary
from howfar.bottleneck.cycle import REST, Cycle, CyclePart
from howfar.cli.progress import LineProgress
from howfar.cli.run import _parse_levels, _repeat_command
from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import Event, LoadJob, PageJob
from howfar.contract.receipt_messages import Histogram
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome
from howfar.errors import LabError, UsageError
from howfar.experiments.network.latency.analysis import Latency, conclude, explain
from howfar.experiments.network.latency.report import MAX_CAPACITY_SHARE, _advice
from howfar.experiments.network.latency.texts import TEXTS
from howfar.experiments.registry import render_as, schema, summarise
from howfar.plan.cells import AGAIN, cells
from howfar.plan.fitting import closed_loop_baseline, needs_capacity, with_capacity
from howfar.plan.load import LoadedPlan, Override, load_plan
from howfar.plan.types import Plan, restore_plan
from howfar.report import figures
from howfar.report.charts import LABEL_GAP, axis, labelled_lines, spread_labels
from howfar.report.drawing import alt
from howfar.runner.observer import Observer
from howfar.runner.preflight import MAX_CAPACITY_TRIALS, with_rates
from howfar.runner.run import execute_run
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution
from howfar.store.records import Run, Trial, TrialStatus
from howfar.store.run_file import create, read_run

CAPACITY = {path: rate / QUERIES_A_TRANSACTION for path, rate in RATES.items()}
SHARES = (0.2, 0.5, 0.8)


def loaded(**timing: str | int) -> LoadedPlan:
    return load_plan(
        "latency", quick=True, overrides=[Override("", ("timing", key), value) for key, value in timing.items()]
    )


def wobble(job: LoadJob) -> float:
    """A factor of 1 ± 1 %, always the same for the same job."""
    return 1 + 0.02 * (random.Random(zlib.crc32(job.model_dump_json().encode())).random() - 0.5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("latency") / "a.howfar"
    laboratory, engine, instruments = fakes(jitter=wobble)
    stream = io.StringIO()
    plan = loaded(measure="60s", max_blocks=6, time_budget="10h")
    rated, capacity = with_rates(plan.plan, 1, laboratory, instruments, LineProgress(plan.plan, stream, 0))
    assert len(engine.jobs) == 3 and all(job.arrivals is None for job in engine.jobs)
    assert "measuring the capacity of socket, closed loop, which sets the rates; usually " in stream.getvalue()
    assert "\ncapacity of the baseline (socket, closed loop): 1,0" in stream.getvalue()
    info = fake_info(loaded=LoadedPlan(rated, plan.text, plan.quick))
    with create(path, info.model_copy(update={"environment": info.environment.updated(capacity)})) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    return read_run(path)


@pytest.fixture(scope="module")
def summary(run: Run) -> Summary:
    return summarise(run)


def found_of(summary: Summary) -> Latency:
    return reports.findings_of(summary, Latency)


def test_each_trial_proves_its_rate(run: Run) -> None:
    paced = [trial for trial in run.trials if "closed loop" not in trial.arm]
    assert paced and all(trial.status is TrialStatus.OK for trial in run.trials)
    for trial in paced:
        account = trial.receipt.arrivals
        assert account is not None and account.due == account.answered + account.unanswered
        assert f"{account.per_s:g}/s" in trial.arm


def test_quantiles_are_those_of_the_queue(summary: Summary) -> None:
    """The quantile of a share is p = -ln(1 - share) / (capacity - rate)."""
    for path in found_of(summary).paths:
        for at in path.rates:
            if at.per_s > 0.7 * CAPACITY[path.name]:
                continue  # a scatter of one per cent moves the queue by tens of per cent
            mean_ms = 1e3 / (CAPACITY[path.name] - at.per_s)
            assert at.p50_ms is not None and at.p50_ms.value == pytest.approx(mean_ms * math.log(2), rel=0.05)
            assert at.p99_ms is not None and at.p99_ms.value == pytest.approx(mean_ms * math.log(100), rel=0.05)
            assert at.p99_ms.low is not None and at.p99_ms.high is not None


def test_who_does_not_keep_up_has_no_response_time(summary: Summary) -> None:
    paths = {path.name: path for path in found_of(summary).paths}
    assert [at.keeps_up for at in paths["socket"].rates] == [True, True, True]
    assert [at.keeps_up for at in paths["remote"].rates] == [True, False, False]
    late = paths["remote"].rates[1]
    assert (late.p50_ms, late.p99_ms, late.p99_ratio) == (None, None, None)
    assert late.answered.value == pytest.approx(CAPACITY["remote"] / late.per_s, rel=0.02)
    capacity = paths["remote"].capacity_per_s
    assert capacity is not None and capacity.value == pytest.approx(CAPACITY["remote"], rel=0.02)


def test_a_rate_is_too_high_because_a_transaction_occupies_a_connection(summary: Summary) -> None:
    """The closed loop of the path says how long, and for what; where most of that is unexplained, only what it does at most."""
    (closed,) = (cell for cell in summary.cells if cell.arm == "remote, closed loop")
    parts = (CyclePart(name="round trips", us=9e3, basis="measured"), CyclePart(name=REST, us=4e3, basis="measured"))
    known = closed.model_copy(update={"cycle": Cycle(us=13e3, parts=parts, rest_share=0.3)})
    unknown = closed.model_copy(update={"cycle": Cycle(us=13e3, parts=parts[1:], rest_share=1.0)})
    (cause,) = explain(found_of(summary), [known])
    assert (cause.id, cause.subject) == ("occupied", "remote")
    assert cause.parameters == {"connections": 4, "time_ms": 13.0, "part": "round trips", "part_ms": 9.0}
    is_short(sentence([cause], TEXTS))
    for known_cells in ([unknown], []):
        assert [each.id for each in explain(found_of(summary), known_cells)] == ["capacity"]


def test_whether_a_path_keeps_up_may_be_unresolved(summary: Summary) -> None:
    at = found_of(summary).paths[0].rates[0]

    def sure(value: float, low: float | None, high: float | None) -> bool:
        return at.model_copy(update={"answered": Estimate(value=value, low=low, high=high)}).is_certain

    assert sure(0.999, 0.995, 1.0) and sure(0.9, 0.8, 0.98)
    assert not sure(0.985, 0.97, 0.995) and not sure(0.995, 0.98, 1.0) and not sure(0.5, None, None)


def test_paths_are_compared_at_the_same_rate(summary: Summary) -> None:
    paths = {path.name: path for path in found_of(summary).paths}
    assert all(at.p99_ratio is None for at in paths["socket"].rates), "it is what the others are compared with"
    first = paths["remote"].rates[0]
    expected = (CAPACITY["socket"] - first.per_s) / (CAPACITY["remote"] - first.per_s)
    assert first.p99_ratio is not None and first.p99_ratio.value == pytest.approx(expected, rel=0.1)
    assert first.resolution is Resolution.SLOWER
    assert [at.share for at in paths["tcp"].rates] == pytest.approx(list(SHARES), rel=0.05)


def test_what_queues_is_no_reference(run: Run) -> None:
    """If the baseline answers only nine tenths, no p99 is compared with its p99; nor is a given rate compared with a closed loop."""
    at = max(found_of(summarise(run)).paths[0].rates, key=lambda each: each.per_s)

    def queued(trial: Trial) -> Trial:
        if trial.arm != at.arm:
            return trial
        arrivals = trial.receipt.arrivals
        assert arrivals is not None
        return with_receipt(trial, arrivals=arrivals.model_copy(update={"answered": int(0.9 * arrivals.due)}))

    changed = summarise(run.model_copy(update={"trials": tuple(map(queued, run.trials))}))
    paths = {path.name: path for path in found_of(changed).paths}
    assert paths["tcp"].rates[-1].per_s == at.per_s and paths["tcp"].rates[-1].keeps_up
    assert paths["tcp"].rates[-1].p99_ratio is None and paths["tcp"].rates[0].p99_ratio is not None
    alone = next(cell for cell in changed.cells if cell.arm == at.arm)
    assert (alone.ratio, alone.cpu_ratio, alone.latency_ratio) == (None, None, None)
    assert not alone.resolution.is_difference


def test_a_p99_is_judged_by_that_of_the_aa_arm(run: Run, summary: Summary) -> None:
    """The baseline's second measurement has the throughput of the first, and a p99 of 90 ms instead of 4 ms."""
    slow = latency(Histogram, "transaction", [90e6], 2000)

    def changed(trial: Trial) -> Trial:
        if not trial.arm.endswith(AGAIN) or trial.measured is None:
            return trial
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"histograms": (slow,)})})

    worse = summarise(run.model_copy(update={"trials": tuple(changed(trial) for trial in run.trials)}))
    before, after = (
        next(path for path in found_of(each).paths if path.name == "remote").rates[0] for each in (summary, worse)
    )
    assert worse.noise_floor == summary.noise_floor and after.p99_ratio == before.p99_ratio
    assert (before.resolution, after.resolution) == (Resolution.SLOWER, Resolution.NOT_RESOLVED)


def test_a_quantile_needs_transactions_beyond_it(tmp_path: Path) -> None:
    """At 207/s for 3 s, 6 transactions lie beyond the 99th percentile."""
    laboratory, _, instruments = fakes(jitter=wobble)
    plan = loaded(max_blocks=6, time_budget="10h")
    rated, capacity = with_rates(plan.plan, 1, laboratory, instruments, Observer())
    info = fake_info(loaded=LoadedPlan(rated, plan.text, plan.quick))
    with create(
        tmp_path / "a.howfar", info.model_copy(update={"environment": info.environment.updated(capacity)})
    ) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    at = found_of(summarise(read_run(tmp_path / "a.howfar"))).paths[0].rates[0]
    assert at.p50_ms is not None and (at.p99_ms, at.p999_ms) == (None, None)


def test_the_report_answers_in_every_form(summary: Summary) -> None:
    text = reports.terminal.render(summary, 100, details=False)
    assert "% in time" in text and len(text.splitlines()) <= 40
    assert [advice.id for advice in summary.advice] == ["repeat-disturbed", "keep-below"], (
        "for the only path that does not keep up"
    )
    page = reports.html.render(summary)
    assert page.index(f'aria-label="{summary.answer.sentence}"') < page.index("<table"), (
        "the picture is that of the answer"
    )
    assert "| % of socket's<br>capacity |" in reports.markdown.render(summary)
    rows = list(spreadsheet.DictReader(io.StringIO(reports.csv.render(summary))))
    assert len(rows) == 9 and {row["keeps_up"] for row in rows} == {"True", "False"}
    jsonschema.validate(json.loads(render_as(summary, "json")), schema())


def test_the_first_screen_is_as_a_person_has_read_it(summary: Summary) -> None:
    text = reports.terminal.render(summary.model_copy(update={"created": "2026-01-01T00:00:00Z"}), 100, details=False)
    reports.is_golden(reports.GOLDEN / "terminal-latency.txt", text)


def test_the_answer_names_the_rates_that_are_too_high(summary: Summary) -> None:
    """Remote sustains 20 % of the socket's capacity and not 50 %; the others sustain 80 %."""
    paths = {path.name: path for path in found_of(summary).paths}
    said = [(each.id, each.subject, each.parameters["per_s"]) for each in summary.answer.findings]
    rates = [at.per_s for at in paths["socket"].rates]
    assert said[:3] == [
        ("too-high-of", "remote", rates[1]),
        ("sustained", "socket", rates[2]),
        ("sustained", "tcp", rates[2]),
    ]
    assert said[3:] == [("p99", name, rates[0]) for name in paths], "at the highest rate that all sustain"
    assert [each.estimate for each in summary.answer.findings[3:]] == [path.rates[0].p99_ms for path in paths.values()]


@pytest.mark.parametrize(
    ("low", "advised", "said"), [(0.9, 0.9, {"lower limit", "bursts"}), (None, 1.0, {"bursts"}), (-0.5, None, set())]
)
def test_advice_is_a_share_of_the_capacity_only_where_that_is_known_to_be_more_than_none(
    summary: Summary, low: float | None, advised: float | None, said: set[str]
) -> None:
    """`low` and `advised` are shares of the capacity; without the latter, the rate that was too high is advised."""
    latency = found_of(summary)
    remote = next(path for path in latency.paths if path.name == "remote")
    assert remote.capacity_per_s is not None and remote.lowest_overload is not None
    value = remote.lowest_overload.per_s  # four fifths of it are less than the rate
    limits = {"low": None, "high": None} if low is None else {"low": low * value, "high": 2 * value}
    changed = remote.model_copy(update={"capacity_per_s": Estimate(value=value, **limits)})
    (advice,) = _advice(latency.model_copy(update={"paths": (changed,)}))
    most = f"{value:,g}" if advised is None else figures.number(advised * value * MAX_CAPACITY_SHARE)
    assert f" {most} " in advice.action
    assert {words for words in ("lower limit", "bursts") if words in advice.because} == said


def test_a_rate_of_which_it_is_unclear_whether_it_is_too_high_is_called_unclear(summary: Summary) -> None:
    latency = found_of(summary)
    remote = next(path for path in latency.paths if path.name == "remote")
    kept, late, _ = remote.rates
    doubtful = late.model_copy(update={"answered": Estimate(value=0.98, low=0.9, high=1.0)})
    changed = latency.model_copy(update={"paths": (remote.model_copy(update={"rates": (kept, doubtful)}),)})
    (finding, _) = conclude(changed)
    assert (finding.id, finding.parameters) == ("unclear", {"per_s": late.per_s})
    assert _advice(changed) == (), "nothing is advised on what is unclear"


def test_labels_do_not_cover_each_other() -> None:
    places = spread_labels([5.0, 1.0, 1.01], (1.0, 10.0), 230)
    assert places[0] == 5.0 and places[1] == 1.0
    assert places[2] == pytest.approx(10 ** (LABEL_GAP / 230))
    top = spread_labels([10.0, 9.9, 9.8], (1.0, 10.0), 230)
    assert top[0] == 10.0 and top[0] > top[1] > top[2], "none leaves the axis"


def test_only_at_the_last_mark_are_values_shown_that_would_cover_each_other() -> None:
    points = {name: Estimate(value=value, low=None, high=None) for name, value in CLOSE.items()}
    lines = {name: [(1.0, point), (2.0, point)] for name, point in points.items()}
    x = axis(alt.X, "x", None, (1, 2))
    drawn = labelled_lines(lines, x, "transactions/s", 600, reference=100, band=1.5)
    texts = {row["text"] for part in drawn["layer"] for row in part["data"]["values"] if "text" in row}
    assert texts == {"100", "200", "a 100", "b 101", "c 200"}
    (grey,) = (part for part in drawn["layer"] if part["mark"]["type"] == "rect")
    assert grey["data"]["values"] == [pytest.approx({"value": 100 / 1.3, "high": 150.0})], "cut at the axis"


CLOSE = {"a": 100.0, "b": 101.0, "c": 200.0}
"""Values of three lines, of which two are close."""


def test_a_rate_that_was_not_offered_voids_the_trial(tmp_path: Path) -> None:
    laboratory, engine, instruments = fakes()
    plan = loaded(max_blocks=2, min_blocks=2, time_budget="10h")

    def half(job: LoadJob | PageJob, launcher: Launcher, on_event: Callable[[Event], None]) -> LoadOutcome:
        outcome = engine(job, launcher, on_event)
        account = outcome.finished.open_loop
        lost = None if account is None else account.model_copy(update={"due": account.due // 2})
        return replace(outcome, finished=outcome.finished.model_copy(update={"open_loop": lost}))

    head = fake_info(loaded=LoadedPlan(with_capacity(plan.plan, 1000), plan.text, plan.quick))
    with create(tmp_path / "a.howfar", head) as file:
        execute_run(file, laboratory, laboratory.clock(), replace(instruments, measure=half))
    voids = [trial for trial in read_run(tmp_path / "a.howfar").trials if trial.void_reason is not None]
    assert voids and all("were due in the window instead of" in str(trial.void_reason) for trial in voids)
    assert all("closed loop" not in trial.arm for trial in voids)


def test_a_capacity_that_cannot_be_measured_is_an_error() -> None:
    laboratory, _, instruments = fakes()
    laboratory.trouble = lambda path, number: ("TLS is on",)
    with pytest.raises(LabError, match=f"{MAX_CAPACITY_TRIALS} trials were void, the last because: TLS is on"):
        with_rates(loaded().plan, 1, laboratory, instruments, Observer())


def test_shares_become_rates_of_three_digits() -> None:
    plan = loaded().plan
    assert needs_capacity(plan) and closed_loop_baseline(plan).factors["load"] == "closed"
    rated = with_capacity(plan, 5432.1)
    assert rated.factors.load == ("closed", "1090/s", "2720/s", "4350/s")
    assert not needs_capacity(rated)
    assert "remote, 2720/s" in [cell.name for cell in cells(rated)]


def test_own_rates_need_no_capacity() -> None:
    plan = load_plan(
        "latency",
        quick=True,
        overrides=[Override("--load", ("factors", "load"), _parse_levels("load", "300/s, 12.5/s"))],
    )
    assert plan.plan.factors.load == ("closed", "300/s", "12.5/s")
    assert not needs_capacity(plan.plan)
    laboratory, engine, instruments = fakes()
    assert with_rates(plan.plan, 1, laboratory, instruments, Observer()) == (plan.plan, RunEnvironment())
    assert engine.jobs == []


def test_the_command_is_repeated_with_its_loads() -> None:
    override = Override("--load", ("factors", "load"), _parse_levels("load", "50%,300/s"))
    assert _repeat_command("latency", True, 7, [override])[3:] == ("--load", "50%,300/s", "--seed", "7")
    assert _repeat_command("latency", False, 7, [override])[3:6] == ("--full", "--load", "50%,300/s")


@pytest.mark.parametrize("wrong", ["fast", "0%", "0/s", "-3/s", "50", "1e3/s", ""])
def test_what_is_no_load_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match=f"--load {wrong}: .* is not a load: closed, a share"):
        load_plan("latency", overrides=[Override("--load", ("factors", "load"), ("closed", wrong))])


@pytest.mark.parametrize("plan", ["page", "crash"])
def test_pages_and_crashes_have_no_rate(plan: str) -> None:
    with pytest.raises(UsageError, match=r"needs transactions: it is not for .*trials with a fault"):
        load_shipped(plan, overrides=[Override("--load", ("factors", "load"), ("300/s",))])


def test_a_file_of_before_is_a_closed_loop() -> None:
    stored = load_plan("paths", quick=True).plan.model_dump(mode="json")
    del stored["factors"]["load"]
    restored: Plan = restore_plan(stored)
    assert restored.factors.load == ("closed",)
