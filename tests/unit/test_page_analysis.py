"""Findings about pages: the model against a simulation of every visit, fake runs whose truth is known, and what they conclude."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.made import floors_of, with_receipt
from tests.unit.fake_pages import HEAVY, LIGHT, PAGES, PageCell, cells, page_findings_of, page_run, page_summary
from tests.unit.rendered import findings_of
from tests.unit.simulated import Visit, constant, exponential, throughput

from howfar.analysis.answer import MAX_WORDS, sentence
from howfar.contract.receipt import LinkReceipt, QuantilesNs
from howfar.experiments.page.analysis import (
    CpuLevel,
    MeasuredCrossing,
    MeasuredCurve,
    model_always,
    model_crossing,
    page_findings,
)
from howfar.experiments.page.conclusions import answers, causes, page_advice, page_sentences, unresolved_reason
from howfar.experiments.page.findings import PageArm, PageFindings
from howfar.experiments.page.labels import crossing_text, predicted_crossing_text, prediction_text
from howfar.experiments.page.model import PageHost, PageNetwork, emulator_work_ratio, infer_per_message_share
from howfar.experiments.page.report import crossings_table
from howfar.experiments.page.texts import ADVICE, NOTES, TEXTS
from howfar.findings import Finding, fill
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Threshold
from howfar.stats.trials import trial_table
from howfar.store.records import ArmRole, Run, Trial

pytestmark = pytest.mark.slow

ROUND_TRIPS = 20
FLOOR = Threshold(0.02)
FAR_NS = 2_000_000

# ---------------------------------------------------------------- the model


def simulated_s(network: PageNetwork, pages: int, seed: int) -> float:
    """Mean time of a page, each of whose round trips computes, crosses the network, is answered and returns."""
    application, database = network.hosts[0], network.hosts[-1]
    names = ("both", "both") if len(network.hosts) == 1 else ("application", "database")
    route: list[Visit] = []
    for _ in range(ROUND_TRIPS):
        route += [
            Visit(names[0], exponential((application.own_s + application.link_s) / ROUND_TRIPS)),
            Visit(None, constant((network.wire_s + network.waiting_s) / ROUND_TRIPS)),
        ]
        if len(network.hosts) == 2:
            route.append(Visit(names[1], exponential((database.own_s + database.link_s) / ROUND_TRIPS)))
    return pages / throughput(route, pages, 6000, seed)


@pytest.mark.parametrize("pages", [1, 4, 16])
@pytest.mark.parametrize("path", ["socket", "remote"])
def test_the_model_is_the_network_that_it_says(path: str, pages: int) -> None:
    network = HEAVY.network("php", path, 10.0).without_link_cpu()
    assert network.cycle_s(pages) == pytest.approx(simulated_s(network, pages, seed=pages), rel=0.03)


def test_a_page_alone_takes_what_it_needs_and_a_full_machine_passes_what_it_can() -> None:
    network = PageNetwork((PageHost(0.004, 0.001, 1.0), PageHost(0.006, 0.001, 1.0)), 0.040, 0.002)
    assert network.cycle_s(1) == pytest.approx(0.054)
    assert 1 / 0.007 < 500 / network.cycle_s(500) < 1 / 0.006, "the emulator does less a page for many at once"
    assert 500 / network.without_link_cpu().cycle_s(500) == pytest.approx(1 / 0.006, rel=1e-3)
    assert PageNetwork((PageHost(0.01, 0.0, 0.8),), 0.0, 0.0).cycle_s(4) == pytest.approx(0.05), (
        "others use the machine too"
    )
    assert network.is_possible and not replace(network, waiting_s=-0.0505).is_possible, "its parts add up to no time"


@pytest.mark.parametrize("path", ["socket", "remote"])
def test_without_the_emulators_cpu_a_page_alone_takes_as_long(path: str) -> None:
    """The emulator's work for a lone page is part of the unloaded round trip."""
    network = HEAVY.network("php", path, 10.0)
    freed = network.without_link_cpu()
    assert freed.cycle_s(1) == pytest.approx(network.cycle_s(1))
    assert freed.cycle_s(1) >= network.wire_s + sum(host.own_s for host in network.hosts)
    assert freed.cycle_s(16) <= network.cycle_s(16)


def test_the_model_says_which_one_is_ahead_all_along() -> None:
    assert model_always(lambda cpu: 0.5, 1, 100) == "one"
    assert model_always(lambda cpu: 1.5, 1, 100) == "two"
    assert model_always(lambda cpu: cpu / 10, 1, 100) is None


def test_the_emulator_works_while_anything_is_on_the_link() -> None:
    """Its work does not depend on their number: N pages that are always on the wire share the work for a lone page."""
    assert emulator_work_ratio(1, 0.3) == pytest.approx(1.0)
    assert emulator_work_ratio(4, 1.0) == pytest.approx(0.25)
    assert emulator_work_ratio(4, 1e-9) == pytest.approx(1.0)
    assert emulator_work_ratio(4, 0.0) == emulator_work_ratio(4, 1.0, per_message_share=1.0) == 1.0
    assert 0.25 < emulator_work_ratio(4, 0.5) < 1.0
    for each in (0.0, 0.3, 1.0):
        assert infer_per_message_share(4, 0.4, emulator_work_ratio(4, 0.4, each)) == pytest.approx(each)
    assert infer_per_message_share(4, 0.4, 3.0) == 1.0
    assert infer_per_message_share(1, 0.4, 1.0) == 0.0, "of pages alone nothing is learned"


def test_a_busy_processor_is_not_woken() -> None:
    awake = PageNetwork((PageHost(0.004, 0.0, 1.0), PageHost(0.006, 0.0, 1.0)), 0.040, 0.0)
    sleepy = replace(awake, waking_s=0.010)
    late = [sleepy.cycle_s(pages) - awake.cycle_s(pages) for pages in (1, 2, 4, 32)]
    assert late[0] == pytest.approx(0.010)
    assert late == sorted(late, reverse=True)
    assert late[-1] < 0.002


def test_the_waiting_of_an_arm_is_what_makes_the_model_meet_it() -> None:
    network = PageNetwork((PageHost(0.004, 0.0, 1.0),), 0.0, 0.003)
    for pages in (1, 2):
        found = replace(network, waiting_s=0.0).fit_waiting(network.cycle_s(pages), pages)
        assert found.waiting_s == pytest.approx(0.003, rel=1e-6)
    full = replace(network, waiting_s=0.0)
    assert full.fit_waiting(0.004, 4).waiting_s == 0.0, "a full station hides it, and says nothing"


# ---------------------------------------------------------------- whole runs


def heavy(*applications: str) -> list[PageCell]:
    return [cell for cell in cells() if cell.page == "heavy" and cell.application in applications]


LEAST = [cell for cell in cells() if cell.app_cpu_ms == 0]


def slowed(trial: Trial, times: float) -> Trial:
    assert trial.measured is not None
    elapsed_ns = int(trial.measured.elapsed_ns * times)
    return trial.model_copy(update={"measured": trial.measured.model_copy(update={"elapsed_ns": elapsed_ns})})


@pytest.fixture
def whole() -> PageFindings:
    return findings_of(page_summary(), PageFindings)


def by_name(found: PageFindings, name: str) -> PageArm:
    return next(arm for arm in found.arms if arm.arm == name)


def test_real_pages_off_the_sockets_are_predicted_from_the_engines(whole: PageFindings) -> None:
    predicted = {arm.arm for arm in whole.arms if arm.predicted_p50_ms is not None}
    real = {arm.arm for arm in whole.arms if arm.application == "php"}
    made_of = {f"socket, {page}, php, 0ms, {threads} threads" for page in PAGES for threads in (1, 4)}
    assert predicted == real - made_of
    assert whole.model.arms == len(predicted)
    assert whole.model.within_bar
    assert whole.model.worst_error is not None
    assert abs(whole.model.worst_error) < 0.03


def test_no_trial_of_a_predicted_arm_goes_into_its_prediction() -> None:
    run = page_run(blocks=4, wanted=[cell for cell in LEAST if cell.page == "heavy"])
    changed = page_findings_of(
        run, change=lambda trial: slowed(trial, 1.8 if "php" in trial.arm and "socket" not in trial.arm else 1)
    )
    for before, after in zip(page_findings_of(run).arms, changed.arms, strict=True):
        assert before.predicted_p50_ms == after.predicted_p50_ms


def test_the_crossing_is_where_it_is(whole: PageFindings) -> None:
    def two_over_one(cpu_ms: float) -> float:
        one, two = (HEAVY.network("php", path, cpu_ms - HEAVY.php_ms).cycle_s(4) for path in ("socket", "remote"))
        return one / two

    crossing = next(each for each in whole.crossings if each.page == "heavy")
    truth = model_crossing(two_over_one, HEAVY.php_ms, 200.0)
    assert crossing.measured_ms is not None and crossing.predicted_ms is not None
    assert crossing.predicted_ms == pytest.approx(truth, rel=0.10)
    assert crossing.measured_ms.value == pytest.approx(truth, rel=0.20)
    low, high = crossing.measured_ms.low, crossing.measured_ms.high
    assert low is not None and high is not None and low < crossing.measured_ms.value < high
    assert crossing.without_link_cpu_ms is not None and crossing.without_link_cpu_ms < crossing.predicted_ms
    assert crossing.half_turns_ms is not None and crossing.half_turns_ms < crossing.predicted_ms
    assert (crossing.curve_ms[0], crossing.curve_ms[-1]) == pytest.approx(crossing.swept_ms)


def test_the_answer_says_which_is_better_and_from_when(whole: PageFindings) -> None:
    found = answers(whole)
    assert [(finding.id, finding.subject) for finding in found] == [
        ("difference", "heavy"),
        ("unclear", "light"),
        ("break-even", "heavy"),
    ]
    crossing = next(each for each in whole.crossings if each.page == "heavy")
    assert crossing.measured_ms is not None
    assert found[2].estimate == crossing.measured_ms and found[2].parameters == {"cpu_ms": crossing.measured_ms.value}
    assert len(sentence(found, TEXTS).split()) <= MAX_WORDS
    better = {(choice.page, choice.threads): choice.better for choice in whole.choices if choice.app_cpu_ns == 0}
    assert better["heavy", 1] == better["heavy", 4] == "one"


def test_shares_of_slow_pages_are_counted(whole: PageFindings) -> None:
    slow = by_name(whole, "remote, heavy, php, 0ms, 4 threads")
    quick = by_name(whole, "socket, light, php, 0ms, 1 threads")
    assert (slow.over_noticed, slow.over_degraded) == (1.0, 0.0)
    assert (quick.over_noticed, quick.over_degraded) == (0.0, 0.0)


# ---------------------------------------------------------------- runs that lack something


def test_without_the_engine_paths_are_not_predicted_but_more_cpu_is() -> None:
    found = page_findings_of(page_run(4, wanted=heavy("php")))
    assert {arm.path for arm in found.arms if arm.predicted_p50_ms is not None} == {"socket"}
    (crossing,) = found.crossings
    assert crossing.measured_ms is not None
    assert (crossing.predicted_ms, crossing.curve_ms) == (None, ())


def test_without_php_nothing_is_predicted() -> None:
    found = page_findings_of(page_run(4, wanted=heavy("engine")))
    assert (found.model.arms, found.model.within_bar) == (0, None)
    assert found.choices and answers(found)[0].id == "difference"


def test_one_path_alone_answers_nothing() -> None:
    found = page_findings_of(page_run(4, wanted=[cell for cell in heavy("php") if cell.path == "socket"]))
    assert not found.choices and not found.crossings
    assert [finding.id for finding in answers(found)] == ["no-pair"] and sentence(answers(found), TEXTS)


def test_one_block_has_no_intervals_and_resolves_nothing() -> None:
    found = page_findings_of(page_run(1, wanted=heavy("php", "engine")), floor=None)
    assert all(choice.better == "not resolved" for choice in found.choices)
    crossing = found.crossings[0].measured_ms
    assert crossing is not None and crossing.low is None and crossing.high is None
    assert [finding.id for finding in answers(found)] == ["all-unclear"] and not page_sentences(found)


def test_void_arms_are_left_out() -> None:
    run = page_run(4, wanted=heavy("php", "engine"), void=lambda cell, _: cell.name.startswith("remote, heavy, engine"))
    found = page_findings_of(run)
    assert {arm.path for arm in found.arms if arm.predicted_p50_ms} == {"socket", "tcp"}
    nothing = page_run(2, wanted=heavy("php"), void=lambda cell, block: True)
    assert page_findings(trial_table(nothing), floors_of(None)) is None


def test_blocks_that_were_never_the_same_compare_nothing() -> None:
    run = page_run(4, wanted=heavy("php"), void=lambda cell, block: (block % 2 == 0) == (cell.path == "remote"))
    found = page_findings_of(run)
    assert not found.choices and not found.crossings


def test_parts_that_contradict_each_other_predict_nothing_and_are_named() -> None:
    """Over the link, the engine's page takes less time than its round trips."""
    long_link = LinkReceipt(rtt_at_rest_ns=QuantilesNs(p50=3_000_000))
    found = page_findings_of(
        page_run(blocks=3, wanted=LEAST),
        change=lambda trial: with_receipt(trial, link=long_link) if "remote" in trial.arm else trial,
    )
    assert not any(arm.predicted_p50_ms for arm in found.arms if arm.path == "remote")
    assert set(found.model.impossible) == {a.arm for a in found.arms if a.path == "remote" and a.application == "php"}
    assert cause(found, "impossible").parameters == {"cells": len(found.model.impossible)}


def test_what_the_emulator_does_for_each_message_is_learned_from_another_page() -> None:
    """The engine ran the light page alone only: its heavy page shows what the emulator needs with four pages in flight."""
    p50_ms = []
    for each in (0.0, 0.8):
        pages = {name: replace(truth, per_message_share=each, link_us=40.0) for name, truth in PAGES.items()}
        wanted = [cell for cell in LEAST if (cell.page, cell.application, cell.threads) != ("light", "engine", 4)]
        arm = by_name(page_findings_of(page_run(4, wanted=wanted, pages=pages)), "remote, light, php, 0ms, 4 threads")
        assert arm.predicted_error == pytest.approx(0.0, abs=0.04)
        p50_ms.append(arm.p50_ms)
    assert p50_ms[1] > 1.1 * p50_ms[0], "else it would say nothing"


def test_a_disturbed_block_moves_neither_prediction_nor_what_it_is_compared_with() -> None:
    found = page_findings_of(
        page_run(blocks=5, scatter=0.001, wanted=LEAST),
        change=lambda trial: slowed(trial, 2 if trial.block == 2 and "4 threads" in trial.arm else 1),
    )
    assert found.model.worst_error is not None
    assert abs(found.model.worst_error) < 0.06


def test_where_only_the_emulator_forbids_a_crossing_that_is_said() -> None:
    """The emulator takes more CPU of the application's machine than moving the servers away would free."""
    light = [cell for cell in cells() if cell.page == "light"]
    found = page_findings_of(page_run(4, wanted=light, pages={"light": replace(LIGHT, link_us=60.0)}))
    (crossing,) = found.crossings
    assert (crossing.measured_ms, crossing.predicted_ms, crossing.predicted_always) == (None, None, "one")
    assert crossing.without_link_cpu_ms is not None
    table = crossings_table((crossing,))
    assert table is not None
    (row,) = (dict(zip((column.head for column in table.columns), row, strict=True)) for row in table.rows)
    assert row["predicted"].text == "none"
    assert row["without the"].text == prediction_text(crossing, figure="without_link_cpu_ms")
    assert NOTES["without emulator"] in table.notes


def with_a_longer_link(run: Run) -> Run:
    """The run with each arm on the link twice: the second has ten times the RTT, and half the pages per second."""
    far = {arm.name: arm.name.replace("remote", "remote far") for arm in run.info.arms if "remote" in arm.name}
    arms = [
        arm.model_copy(update={"name": far[arm.name], "factors": arm.factors | {"rtt_ns": FAR_NS}})
        for arm in run.info.arms
        if arm.name in far
    ]
    trials = [slowed(trial, 2).model_copy(update={"arm": far[trial.arm]}) for trial in run.trials if trial.arm in far]
    info = run.info.model_copy(update={"arms": (*run.info.arms, *arms)})
    return run.model_copy(update={"info": info, "trials": (*run.trials, *trials)})


def test_each_link_has_its_own_comparisons_and_crossing() -> None:
    run = page_run(3, wanted=heavy("php"))
    near, found = page_findings_of(run), page_findings_of(with_a_longer_link(run))
    assert [choice for choice in found.choices if choice.rtt_ns == 200_000] == list(near.choices)
    far = [choice for choice in found.choices if choice.rtt_ns == FAR_NS]
    for one, two in zip(near.choices, far, strict=True):
        assert two.two_over_one.value == pytest.approx(one.two_over_one.value / 2, rel=1e-6)
    assert [(each.threads, each.rtt_ns) for each in found.crossings] == [(4, 200_000), (4, FAR_NS)]
    assert found.crossings[0] == near.crossings[0]
    assert found.headline_choices() == near.headline_choices(), "the shortest link stands for the page"


def test_published_figures_stand_next_to_the_shipped_plans_pages_only() -> None:
    run = page_run(2, wanted=[PageCell("heavy", "php", path, 0, 1) for path in ("socket", "remote")])
    mine = run.model_copy(update={"info": run.info.model_copy(update={"plan_name": "mine"})})
    assert page_findings_of(run).published and not page_findings_of(mine).published


# ---------------------------------------------------------------- the crossing, measured


def swept(at_ms: Sequence[float], truth: float, scatter: float, blocks: int, rng: random.Random) -> list[CpuLevel]:
    """Ratios of two machines to one that grow as a power of the CPU time, and are 1 at `truth`."""
    return [
        CpuLevel(ms, {block: (ms / truth) ** 0.15 * rng.lognormvariate(0, scatter) for block in range(blocks)})
        for ms in at_ms
    ]


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [4, 8])
def test_the_interval_holds_the_crossing_19_times_of_20(blocks: int) -> None:
    rng = random.Random(blocks)
    hits = runs = 0
    for _ in range(200):
        found = MeasuredCurve(swept((5, 10, 20, 40, 80), 17.0, 0.03, blocks, rng), FLOOR).find_crossing().crossing
        if found is not None:
            runs += 1
            hits += (found.low is None or found.low <= 17.0) and (found.high is None or found.high >= 17.0)
    assert runs > 195
    assert abs(hits / runs - 0.95) < 0.04


def test_an_interval_that_nothing_closes_is_open() -> None:
    found = MeasuredCurve(swept((10, 20, 40), 35.0, 0.05, 6, random.Random(4)), FLOOR).find_crossing().crossing
    assert found is not None and found.low is not None and found.high is None


def test_where_no_level_is_resolved_from_1_there_is_no_figure() -> None:
    """The line crosses 1 somewhere, but might do so anywhere."""
    wild = [
        CpuLevel(ms, dict(enumerate((low, high) * 2)))
        for ms, low, high in ((10, 0.3, 2.0), (20, 0.5, 2.4), (40, 0.6, 3.0))
    ]
    assert MeasuredCurve(wild, FLOOR).find_crossing() == MeasuredCrossing(None, None)
    assert MeasuredCurve([], FLOOR).find_crossing() == MeasuredCrossing(None, None)


def test_a_crossing_within_the_noise_floor_is_none() -> None:
    """Noise of 5 % may carry a ratio of 0.99 through 1, however narrow its interval."""
    near = [CpuLevel(ms, dict(enumerate((ratio, ratio + 0.001) * 2))) for ms, ratio in ((10, 0.99), (20, 1.01))]
    assert MeasuredCurve(near, Threshold(0.05)).find_crossing() == MeasuredCrossing(None, None)
    found = MeasuredCurve(near, Threshold(0.001)).find_crossing().crossing
    assert found is not None and 10 < found.value < 20


@pytest.mark.parametrize(
    ("truth", "scatter", "threshold", "always"),
    [
        (1000.0, 0.01, FLOOR, "one"),
        (1000.0, 0.01, Threshold(1.1), None),  # beyond the noise floor only at 5 ms
        (1000.0, 0.01, Threshold(None), None),
        (0.1, 0.01, FLOOR, "two"),
        (11.0, 0.5, FLOOR, None),
    ],
)
def test_without_a_crossing_the_better_one_is_named_only_if_resolved(
    truth: float, scatter: float, threshold: Threshold, always: str | None
) -> None:
    assert (
        MeasuredCurve(swept((5, 10), truth, scatter, 6, random.Random(5)), threshold).find_crossing().always == always
    )


# ---------------------------------------------------------------- conclusions and advice


def cause(found: PageFindings, name: str) -> Finding:
    """The only cause with this id."""
    (finding,) = (each for each in causes(found) if each.id == name)
    assert sentence((finding,), TEXTS), "its template has its figures"
    return finding


@pytest.mark.parametrize(
    ("better", "ids"),
    [
        (("one", "one"), ["difference", "difference"]),
        (("one", "not resolved"), ["difference", "unclear"]),
        (("not resolved", "two"), ["difference", "unclear"]),
        (("not resolved", "not resolved"), ["all-unclear", "all-unclear"]),
    ],
)
def test_the_answer_names_differences_first(whole: PageFindings, better: tuple[str, str], ids: list[str]) -> None:
    verdicts = dict(zip(("heavy", "light"), better, strict=True))
    choices = tuple(each.model_copy(update={"better": verdicts[each.page]}) for each in whole.choices)
    found = answers(whole.model_copy(update={"choices": choices, "crossings": ()}))
    assert [finding.id for finding in found] == ids and sentence(found, TEXTS)
    assert all(
        finding.verdict is not None and finding.verdict.is_difference for finding in found[: ids.count("difference")]
    )


def test_the_reason_for_an_unresolved_difference_is_given(whole: PageFindings) -> None:
    def reason(low: float | None, high: float | None, threshold: Threshold) -> str:
        ratio = Estimate(value=0.9, low=low, high=high)
        return unresolved_reason(whole.choices[0].model_copy(update={"two_over_one": ratio}), threshold)

    assert reason(None, None, FLOOR) == "no-interval"
    assert reason(0.7, 1.2, FLOOR) == "includes-1"
    assert reason(0.85, 0.95, Threshold(0.3)) == "within-floor"
    assert reason(0.85, 0.95, Threshold(None)) == "no-floor"
    assert reason(0.85, 0.95, Threshold(0.02, 100)) == "chance"


@pytest.mark.parametrize(
    ("always", "name", "end"), [("one", "never-gains", 1), ("two", "always-gains", 0), (None, "", 0)]
)
def test_without_a_crossing_the_answer_says_how_far_was_measured(
    whole: PageFindings, always: str | None, name: str, end: int
) -> None:
    crossing = whole.crossings[0].model_copy(update={"measured_ms": None, "always": always})
    found = answers(whole.model_copy(update={"crossings": (crossing,)}))
    assert len(sentence(found, TEXTS).split()) <= MAX_WORDS
    gains = [(finding.id, finding.parameters) for finding in found if "gains" in finding.id]
    assert gains == ([(name, {"cpu_ms": crossing.swept_ms[end]})] if name else [])


@pytest.mark.parametrize(("ratio", "name"), [(0.8, "tcp"), (0.99, "tcp-unclear")])
def test_loopback_is_slower_only_beyond_the_noise_floor(whole: PageFindings, ratio: float, name: str) -> None:
    estimate = Estimate(value=ratio, low=ratio - 0.001, high=ratio + 0.001)
    choices = tuple(each.model_copy(update={"tcp_over_socket": estimate}) for each in whole.choices)
    found = whole.model_copy(update={"choices": choices, "noise_floor": 0.02, "comparisons": 1})
    assert {finding.id for finding in causes(found) if finding.id.startswith("tcp")} == {name}
    assert any("phpredis" in line for advice in page_advice(found) for line in advice.lines) == (name == "tcp")


def test_the_models_error_is_a_finding(whole: PageFindings) -> None:
    assert cause(whole, "model").parameters["cells"] == whole.model.arms
    missed = whole.model.model_copy(update={"within_bar": False})
    assert cause(whole.model_copy(update={"model": missed}), "model-misses").parameters["bar"] == 0.1


def test_two_machines_are_judged_by_the_noise_floor_of_the_link() -> None:
    run = page_run(blocks=4)
    assert {choice.better for choice in page_findings_of(run).choices} != {"not resolved"}
    found = page_findings_of(run, link=20.0)
    assert {choice.better for choice in found.choices} == {"not resolved"}
    assert all(crossing.always is None for crossing in found.crossings)
    assert unresolved_reason(found.choices[0], found.threshold(2)) == "within-floor"
    assert found.threshold(1).floor == pytest.approx(0.01), "sockets and loopback TCP cross no link"


def connecting(arm: PageArm, times: float) -> PageArm:
    """The same arm, opening connections for each page."""
    over, longer = 1 / times, arm.page_ms.value * (times - 1)
    found = {
        "over_kept": Estimate(value=over, low=over * 0.99, high=over * 1.01),
        "connecting_ms": Estimate(value=longer, low=longer * 0.9, high=longer * 1.1),
    }
    return arm.model_copy(update={"connect": "per-transaction", "arm": f"{arm.arm}, connecting", **found})


@pytest.mark.parametrize(("times", "pages"), [(2.0, {"heavy", "light"}), (1.01, set())])
def test_connecting_costs_what_is_resolved_and_of_real_pages(
    whole: PageFindings, times: float, pages: set[str]
) -> None:
    arms = [arm for arm in whole.arms if arm.app_cpu_ns == 0]
    found = whole.model_copy(update={"arms": (*arms, *(connecting(arm, times) for arm in arms))})
    costs = [finding for finding in causes(found) if finding.id == "connecting"]
    assert {finding.subject for finding in costs} == pages and bool(sentence(costs, TEXTS)) == bool(pages)
    assert len(costs) == 2 * len(pages), "one on sockets and one on two machines"
    assert any(advice.action.startswith(ADVICE["keep"].partition("{")[0]) for advice in page_advice(found)) == bool(
        pages
    )


def test_what_connecting_adds_is_paired_by_block() -> None:
    """Blocks are three times as far apart as the two arms, so the two means alone show nothing."""
    (cell,) = (cell for cell in heavy("php") if (cell.path, cell.threads, cell.app_cpu_ms) == ("socket", 4, 0))
    run = page_run(blocks=8, scatter=0.001, wanted=[cell])
    kept = next(arm for arm in run.info.arms if arm.role is ArmRole.BASELINE)
    more = kept.model_copy(
        update={
            "name": "connecting",
            "role": ArmRole.CONTENDER,
            "factors": {**kept.factors, "connect": "per-transaction"},
        }
    )
    both = [slowed(trial, 1 + trial.block / 10) for trial in run.trials if trial.arm == kept.name]
    trials = (*both, *(slowed(trial, 1.1).model_copy(update={"arm": more.name}) for trial in both))
    info = run.info.model_copy(update={"arms": (kept, more)})
    arm = by_name(page_findings_of(run.model_copy(update={"info": info, "trials": trials})), more.name)
    assert arm.over_kept is not None and arm.connecting_ms is not None
    assert arm.over_kept.value == pytest.approx(1 / 1.1, rel=1e-6)
    assert arm.over_kept.high is not None and arm.over_kept.high < 1
    assert arm.connecting_ms.value == pytest.approx(arm.page_ms.value / 11, rel=1e-6)
    assert arm.connecting_ms.low is not None and arm.connecting_ms.low > 0


def longer(found: PageFindings, low: float, high: float) -> PageFindings:
    """The findings with another difference between one machine and two."""
    estimate = Estimate(value=(low + high) / 2, low=low, high=high)
    return found.model_copy(
        update={"choices": tuple(each.model_copy(update={"longer_ms": estimate}) for each in found.choices)}
    )


def test_round_trips_are_a_lever_only_where_two_machines_are_slower_by_a_resolved_figure(whole: PageFindings) -> None:
    def advised(found: PageFindings) -> bool:
        lead = fill(ADVICE["round-trips"], page="heavy", ways="")[:-1]
        return any(piece.action.startswith(lead) for piece in page_advice(found))

    found = cause(whole, "round-trips")
    assert found.estimate is not None and found.estimate.low is not None
    assert found.parameters["round_trips"] == pytest.approx(HEAVY.round_trips)
    assert found.parameters["each_ms"] == pytest.approx(found.estimate.value / HEAVY.round_trips)
    assert advised(whole)
    assert not any(each.id.startswith("round-trips") for each in causes(longer(whole, -2.0, -1.0)))
    unclear = longer(whole, -1.0, 3.0)
    assert cause(unclear, "round-trips-unclear").subject == "heavy" and not advised(unclear)


def test_what_workers_and_processors_allow(whole: PageFindings) -> None:
    arm = by_name(whole, "socket, heavy, php, 0ms, 1 threads")
    found = cause(whole, "workers-and-cpus")
    assert found.parameters["one"] == pytest.approx(20e3 / arm.page_ms.value)
    assert arm.allowed_per_s is not None and found.parameters["cpus_one"] == arm.allowed_per_s.value
    assert all(arm.allowed_per_s is not None and arm.allowed_per_s.low is not None for arm in whole.arms)
    arms = tuple(arm.model_copy(update={"allowed_per_s": None}) for arm in whole.arms)
    assert cause(whole.model_copy(update={"arms": arms}), "workers").parameters["one"] == found.parameters["one"]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"always": "one"}, "none up to 64.9 ms"),
        ({"always": "two"}, "4.90 ms or less"),
        ({"always": None}, "too close to call between 4.90 and 64.9 ms"),
        ({"measured_ms": Estimate(value=12.0, low=9.0, high=None)}, "12.0 [9.00, > 64.9] ms"),
        ({"measured_ms": Estimate(value=12.0, low=None, high=20.0)}, "12.0 [< 4.90, 20.0] ms"),
        ({"measured_ms": Estimate(value=12.0, low=None, high=None)}, "12.0 ms (no interval)"),
    ],
)
def test_where_it_does_not_flip_the_reason_stands_instead(
    whole: PageFindings, parts: dict[str, Any], text: str
) -> None:
    base = whole.crossings[0].model_copy(update={"swept_ms": (4.9, 64.9), "measured_ms": None, "predicted_ms": None})
    assert crossing_text(base.model_copy(update=parts)) == text
    for always, predicted in (("one", "none"), ("two", "4.90 ms or less"), (None, "")):
        assert predicted_crossing_text(base.model_copy(update={"predicted_always": always})) == predicted


def test_crossings_beyond_what_was_measured_are_marked(whole: PageFindings) -> None:
    base = next(each for each in whole.crossings if each.page == "heavy")
    figures = ("predicted_ms", "without_link_cpu_ms", "half_turns_ms")
    for name in figures:
        far, near = (base.model_copy(update={name: base.swept_ms[1] * times}) for times in (2, 0.9))
        assert "beyond what was measured" in prediction_text(far, name)
        assert "beyond what was measured" not in prediction_text(near, name)
    least = base.model_copy(update={"half_turns_ms": base.swept_ms[0] * 0.999, "half_turns_ms_interval": None})
    assert prediction_text(least, "half_turns_ms").endswith(" ms or less"), "the least that the application computes"
