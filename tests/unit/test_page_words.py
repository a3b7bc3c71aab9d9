"""What runs of pages are told in words: several ways to a second machine, the noise floor, and what lacks a figure."""

from __future__ import annotations

import pytest
from tests.unit.made_pages import Cell, cells, page_run
from tests.unit.synthetic_pages import page

from howfar.analysis.trials import trial_table
from howfar.experiments.page.analysis import page_findings
from howfar.experiments.page.findings import PageArm, PageFindings, headline_choices
from howfar.experiments.page.sentences import costly_connections, page_sentences, round_trips_sentence, tcp_is_slower
from howfar.stats.estimate import Estimate
from howfar.store.records import Run

FAR_NS = 2_000_000


@pytest.fixture(scope="module")
def told() -> PageFindings:
    found = page().pages
    assert found is not None
    return found


def with_a_longer_link(run: Run) -> Run:
    """Each arm on the link twice: the second is asked for ten times the distance, and makes half of the pages."""
    far = {arm.name: arm.name.replace("remote", "remote far") for arm in run.info.arms if "remote" in arm.name}
    arms = [
        arm.model_copy(update={"name": far[arm.name], "factors": arm.factors | {"rtt_ns": FAR_NS}})
        for arm in run.info.arms
        if arm.name in far
    ]
    trials = [
        trial.model_copy(
            update={
                "arm": far[trial.arm],
                "measured": trial.measured.model_copy(update={"elapsed_ns": trial.measured.elapsed_ns * 2}),
            }
        )
        for trial in run.trials
        if trial.arm in far and trial.measured is not None
    ]
    info = run.info.model_copy(update={"arms": (*run.info.arms, *arms)})
    return run.model_copy(update={"info": info, "trials": (*run.trials, *trials)})


def test_each_link_has_its_own_comparisons_and_crossing() -> None:
    wanted = [cell for cell in cells() if cell.page == "heavy" and cell.application == "php"]
    near = page_findings(trial_table(page_run(3, wanted=wanted)), 0.01)
    found = page_findings(trial_table(with_a_longer_link(page_run(3, wanted=wanted))), 0.01)
    assert near is not None and found is not None
    assert [choice for choice in found.choices if choice.rtt_ns == 200_000] == list(near.choices)
    far = [choice for choice in found.choices if choice.rtt_ns == FAR_NS]
    for one, two in zip(near.choices, far, strict=True):
        assert two.two_over_one.value == pytest.approx(one.two_over_one.value / 2, rel=1e-6)
    assert [(each.threads, each.rtt_ns) for each in found.crossings] == [(4, 200_000), (4, FAR_NS)]
    assert found.crossings[0] == near.crossings[0]
    assert headline_choices(found.choices) == headline_choices(near.choices), "the shortest link stands for the page"
    assert {arm.rtt_ns for arm in found.arms if arm.machines == 2} == {200_000, FAR_NS}


def first(found: PageFindings, *better: str, ratio: Estimate | None = None, floor: float | None = 0.02) -> str:
    """The answer, if each page's comparison had come out so."""
    verdicts = dict(zip(("heavy", "light"), better, strict=True))
    choices = tuple(
        choice.model_copy(
            update={"better": verdicts[choice.page]} | ({"two_over_one": ratio} if ratio is not None else {})
        )
        for choice in found.choices
    )
    return page_sentences(found.model_copy(update={"choices": choices, "noise_floor": floor}))[0]


@pytest.mark.parametrize(
    ("better", "lead"),
    [
        (("one", "one"), "One machine with sockets is faster: "),
        (("one", "not resolved"), "One machine with sockets is faster where the difference is resolved: "),
        (("two", "not resolved"), "Two machines are faster where the difference is resolved: "),
        (("one", "two"), "It depends on the page: "),
        (("not resolved", "not resolved"), "No difference is resolved: "),
    ],
)
def test_the_answer_depends_on_the_page_only_where_pages_differ(
    told: PageFindings, better: tuple[str, str], lead: str
) -> None:
    assert first(told, *better).startswith(lead)


def test_why_a_difference_is_not_resolved_is_said(told: PageFindings) -> None:
    untold, small = Estimate(value=0.9, low=0.7, high=1.2), Estimate(value=0.9, low=0.85, high=0.95)
    both = "not resolved", "not resolved"
    assert "0.90 [0.70, 1.20] times as many heavy pages (interval includes 1)" in first(told, *both, ratio=untold)
    assert "heavy pages (within the noise floor of 30 %)" in first(told, *both, ratio=small, floor=0.3)
    assert "heavy pages (unknown noise floor)" in first(told, *both, ratio=small, floor=None)


def flips(found: PageFindings, **changed: object) -> str:
    crossings = tuple(each.model_copy(update={"measured_ms": None, **changed}) for each in found.crossings)
    return page_sentences(found.model_copy(update={"crossings": crossings}))[0]


def test_a_model_that_has_two_ahead_all_along_does_not_foresee_nowhere(told: PageFindings) -> None:
    assert "(as predicted)" in flips(told, always="one", predicted_ms=None, predicted_always="one")
    assert "(predicted: 4.9 ms or less)" in flips(told, always="one", predicted_ms=None, predicted_always="two")
    assert "(predicted: none)" in flips(told, always="two", predicted_ms=None, predicted_always="one")
    assert "predicted" not in flips(told, always="one", predicted_ms=None, predicted_always=None)


def test_loopback_is_slower_only_beyond_the_noise_floor(told: PageFindings) -> None:
    choice = told.choices[0].model_copy(update={"tcp_over_socket": Estimate(value=0.95, low=0.94, high=0.96)})
    assert tcp_is_slower(choice, 0.02)
    assert not tcp_is_slower(choice, 0.10)
    assert not tcp_is_slower(choice, None)


def anew(arm: PageArm, times: float) -> PageArm:
    """The same with connections of each page's own."""
    value = arm.page_ms.value * times
    slower = Estimate(value=value, low=value * 0.99, high=value * 1.01)
    return arm.model_copy(update={"connect": "per-transaction", "page_ms": slower, "arm": f"{arm.arm}, anew"})


def test_connections_of_each_page_cost_what_is_told_apart_and_of_real_pages(told: PageFindings) -> None:
    arms = [arm for arm in told.arms if arm.app_cpu_ns == 0]
    for times, pages in ((1.5, {"heavy", "light"}), (1.01, set())):
        found = told.model_copy(update={"arms": (*arms, *(anew(arm, times) for arm in arms))})
        pairs = costly_connections(found)
        assert {arm.page for arm, _ in pairs} == pages
        assert all(arm.application == "php" and arm.path in ("socket", "remote") for arm, _ in pairs)
        assert len(pairs) == 2 * len(pages), "one on sockets and one on two machines"
        said = any(sentence.startswith("Opening connections for each page adds ") for sentence in page_sentences(found))
        assert said == bool(pages)


def test_turns_are_no_lever_where_two_machines_are_quicker(told: PageFindings) -> None:
    assert round_trips_sentence(told).startswith("On two machines each round trip takes ")
    quick = [
        arm.model_copy(update={"page_ms": Estimate(value=0.1, low=None, high=None)}) if arm.machines == 2 else arm
        for arm in told.arms
    ]
    assert round_trips_sentence(told.model_copy(update={"arms": tuple(quick)})) == ""


def test_published_figures_stand_beside_the_shipped_plans_pages_only() -> None:
    few = [Cell("heavy", "php", path, 0, 1) for path in ("socket", "remote")]
    run = page_run(2, wanted=few)
    mine = run.model_copy(update={"info": run.info.model_copy(update={"plan_name": "mine"})})
    shipped, own = (page_findings(trial_table(each), 0.01) for each in (run, mine))
    assert shipped is not None and own is not None
    assert shipped.published and not own.published


def test_processors_bound_pages_beside_workers(told: PageFindings) -> None:
    (said,) = (sentence for sentence in told.sentences if sentence.startswith("PHP workers"))
    assert "; the processors here allow " in said
    assert "idle" not in said
