"""Why a run shows what it shows: the part of a transaction's time that changed most, and how sure the answer is."""

from __future__ import annotations

import pytest
from tests.unit.rendered import is_short
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.answer import MAX_WORDS, not_yet, sentence
from howfar.analysis.causes import CAUSES, explain_cpu, explain_differences
from howfar.analysis.cells import CellSummary, CpuPerQuery
from howfar.analysis.diagnostics import Diagnostic
from howfar.bottleneck.cycle import REST, ROUND_TRIPS, SERVER_CPU, Cycle, CyclePart
from howfar.experiments.registry import summarise
from howfar.report.certainty import certainty, command_for_answer, with_doubt
from howfar.report.texts import CERTAINTY
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, half_width, noise_floor_text, simultaneous
from howfar.store.records import ArmRole, StopReason

SUMMARY = summarise(synthetic_run(blocks=8, samples=60))
BASELINE = next(cell for cell in SUMMARY.cells if cell.role is ArmRole.BASELINE)
REMOTE = next(cell for cell in SUMMARY.cells if cell.arm == "remote")


def with_cycle(cell: CellSummary, cpu_ms: float, round_trips_ms: float, rest_ms: float) -> CellSummary:
    """The cell with a cycle of these parts."""
    times_ms = {SERVER_CPU: cpu_ms, ROUND_TRIPS: round_trips_ms, REST: rest_ms}
    parts = tuple(CyclePart(name=name, us=ms * 1e3, basis="measured") for name, ms in times_ms.items())
    total_us = sum(times_ms.values()) * 1e3
    return cell.model_copy(update={"cycle": Cycle(us=total_us, parts=parts, rest_share=rest_ms * 1e3 / total_us)})


@pytest.mark.parametrize(
    ("parts_ms", "cause", "part_ms"),
    [((1, 6, 0.5), "longer-round-trips", 6), ((5, 2, 0.5), "longer", 4), ((1, 2, 5), None, None)],
)
def test_the_cause_is_the_part_that_changed_most(
    parts_ms: tuple[float, float, float], cause: str | None, part_ms: float | None
) -> None:
    """Nothing is said if most of the change is unexplained."""
    found = explain_differences([with_cycle(REMOTE, *parts_ms)], with_cycle(BASELINE, 1, 0, 0.5))
    assert [finding.id for finding in found] == ([] if cause is None else [cause])
    if found:
        assert found[0].parameters["part_ms"] == pytest.approx(part_ms)
        times_ms = found[0].parameters["time_ms"], found[0].parameters["usual_ms"]
        assert times_ms == pytest.approx((sum(parts_ms), 1.5))


def test_what_is_no_difference_or_changed_otherwise_has_no_cause() -> None:
    baseline, slower = with_cycle(BASELINE, 1, 0, 0.5), with_cycle(REMOTE, 1, 6, 0.5)
    unresolved = slower.model_copy(update={"resolution": Resolution.NOT_RESOLVED})
    other_load = slower.model_copy(update={"factors": {**slower.factors, "threads": 64}})
    shorter = with_cycle(REMOTE, 0.1, 0, 0.5)
    for cell in (unresolved, other_load, shorter):
        assert explain_differences([cell], baseline) == ()


def test_more_cpu_time_is_explained_by_the_role_whose_time_grew_most() -> None:
    def with_cpu(cell: CellSummary, client: float, server: float, forwarder: float | None) -> CellSummary:
        times = {"client": client, "server": server, "forwarder": forwarder, "link": None}
        estimates = {
            role: None if us is None else {"value": us, "low": None, "high": None} for role, us in times.items()
        }
        return cell.model_copy(update={"cpu_us_per_query": CpuPerQuery.model_validate(estimates)})

    baseline = with_cpu(BASELINE, 50, 120, None)
    found = explain_cpu(with_cpu(REMOTE, 20, 100, 110), baseline, "query")
    assert found is not None and found.id == "more-cpu"
    assert found.parameters | {"cpu_us": 230, "usual_us": 170, "part": "forwarder", "part_us": 110} == found.parameters
    is_short(sentence([found], CAUSES))
    assert explain_cpu(with_cpu(REMOTE, 20, 100, None), baseline, "query") is None, "the means show less CPU time"


def test_the_answer_has_its_cause_and_certainty() -> None:
    assert [cause.id for cause in SUMMARY.answer.causes] == ["longer-round-trips"]
    is_short(SUMMARY.answer.why)
    firm = certainty(SUMMARY)
    assert (
        firm.startswith("Firm: everything was measured 8 times, once in each block; ")
        and with_doubt(SUMMARY) == SUMMARY
    )
    assert "because of" not in firm
    disturbed = SUMMARY.model_copy(update={"warnings": (Diagnostic.BUSY_MACHINE,)})
    assert certainty(disturbed).startswith(
        "Poor, because of other work on this machine; everything was measured 8 times, once in each block; "
    )
    doubted = with_doubt(disturbed)
    assert doubted.answer.sentence == doubted.verdict == f"Uncertain: c{SUMMARY.answer.sentence[1:]}", (
        "an answer is not firmer than its certainty"
    )
    assert certainty(SUMMARY.model_copy(update={"target_half_width": 0.001})).startswith("Fair: everything was ")
    few = tuple(cell.model_copy(update={"trials": 5}) for cell in SUMMARY.cells)
    assert certainty(SUMMARY.model_copy(update={"cells": few})).startswith(
        "Fair: everything was measured only 5 times, once in each block; "
    )
    missing = SUMMARY.answer.model_copy(update={"findings": (not_yet(3),)})
    unknown = SUMMARY.model_copy(update={"answer": missing, "stop": StopReason.BLOCKS})
    assert certainty(unknown).startswith("Not yet")
    assert command_for_answer(unknown) == "howfar resume FILE --time-budget 10min" and not command_for_answer(SUMMARY)
    unclear = SUMMARY.answer.findings[0].model_copy(update={"verdict": Resolution.NOT_RESOLVED})
    unsure = SUMMARY.answer.model_copy(update={"findings": (unclear,)})
    doubtful = {"warnings": (Diagnostic.BUSY_MACHINE,), "answer": unsure}
    without_claim = SUMMARY.model_copy(update=doubtful)
    assert with_doubt(without_claim) == without_claim, "what claims nothing needs no doubt"


def test_a_path_that_needs_a_larger_margin_than_some_result_is_named_with_it() -> None:
    """No result is smaller than the difference below which all are too close to call."""
    assert f" too close to call: {CERTAINTY['same-path']}" in certainty(SUMMARY)
    wide = Estimate(value=0.9, low=0.7, high=1.16, n=8)
    changes: dict[str, dict[str, object]] = {
        "tcp": {"ratio": wide, "resolution": Resolution.NOT_RESOLVED},
        "remote": {"ratio": Estimate(value=0.95, low=0.94, high=0.96, n=8)},
    }
    cells = tuple(cell.model_copy(update=changes.get(cell.arm, {})) for cell in SUMMARY.cells)
    margin = half_width(simultaneous(wide, SUMMARY.comparisons))
    assert margin is not None
    text = certainty(SUMMARY.model_copy(update={"cells": cells}))
    floor = noise_floor_text(SUMMARY.noise_floor or 0)
    assert f"below {floor} are too close to call" in text
    assert f"for tcp, those below {noise_floor_text(margin)}" in text
    only_wide = tuple(cell for cell in cells if not cell.resolution.is_difference)
    text = certainty(SUMMARY.model_copy(update={"cells": only_wide}))
    assert f"below {noise_floor_text(margin)} are too close to call: 1 of 9 comparisons" in text


def test_a_doubt_does_not_make_the_answer_longer_than_it_may_be() -> None:
    long = "A long path; " + "another path that takes words; " * 4 + "the end."
    answer = SUMMARY.answer.model_copy(update={"sentence": long})
    long_summary = SUMMARY.model_copy(update={"warnings": (Diagnostic.BUSY_MACHINE,), "answer": answer})
    doubted = with_doubt(long_summary).answer.sentence
    assert len(long.split()) <= MAX_WORDS < len(f"Uncertain: {long}".split())
    is_short(doubted)
    assert doubted.startswith("Uncertain: a long path; another") and doubted.endswith("words.")
