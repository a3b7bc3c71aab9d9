"""Reports of cost, crash and fallback: one document, a first screen that fits, figures that agree, a zero that proves nothing."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from functools import cache
from html import unescape

import pytest
from tests.unit.made_replication import MS, PLANS, RTT_NS, fallback_trial
from tests.unit.rendered import GOLDEN, charts_have_figures, findings_of, is_golden, with_findings
from tests.unit.test_report_html import Balance, is_small_and_whole

from howfar.analysis.advice import COMMANDS, Advice
from howfar.analysis.summary import Summary
from howfar.analysis.voids import count_kinds
from howfar.experiments.registry import experiment_of
from howfar.experiments.replication import charts, frame
from howfar.experiments.replication import report as cost_report
from howfar.experiments.replication.analysis import ReplicationCost
from howfar.experiments.replication.arms import quoted_distance
from howfar.experiments.replication.crash import report as crash_charts
from howfar.experiments.replication.crash import report as crash_report
from howfar.experiments.replication.crash.analysis import CrashFindings
from howfar.experiments.replication.fallback import report as fallback_charts
from howfar.experiments.replication.fallback import report as fallback_report
from howfar.experiments.replication.fallback.analysis import fallback_series
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.report import figures, html, terminal
from howfar.report.document import Block, Cell, Chart, Details, Document, Table
from howfar.report.text import as_csv, as_markdown, json_values
from howfar.stats.estimate import Estimate
from howfar.store.void_reasons import parse_reason


@cache
def summary(plan: str) -> Summary:
    return PLANS[plan]()


def document(found: Summary) -> Document:
    experiment = experiment_of(found)
    assert experiment is not None
    return experiment.document(found)


@cache
def page(plan: str) -> str:
    return html.render(document(summary(plan)))


def findings(plan: str) -> ReplicationFindings:
    return findings_of(summary(plan), ReplicationFindings)


def cost() -> ReplicationCost:
    found = findings("replication").cost
    assert found is not None
    return found


def crash() -> CrashFindings:
    found = findings("crash").crash
    assert found is not None
    return found


def changed(plan: str, **parts: object) -> Summary:
    return with_findings(summary(plan), replication=findings(plan).model_copy(update=parts))


def test_a_command_of_the_advice_stays_on_the_first_screen() -> None:
    """Lines for my.cnf come later, but a step that ends with a colon has its command."""
    again = Advice(action="Run this again:", because="", lines=("howfar run replication",), id=COMMANDS[0])
    text = terminal.render(document(summary("replication").model_copy(update={"advice": (again,)})), 80)
    assert "1. Run this again:\n   howfar run replication\n" in text


def flat(blocks: tuple[Block, ...]) -> Iterator[Block]:
    for block in blocks:
        yield from flat(block.blocks) if isinstance(block, Details) else [block]


def tables(found: Document) -> list[Table]:
    return [block for block in flat(found.blocks) if isinstance(block, Table)]


GOLDENS: dict[str, Callable[[], str]] = {
    **{f"terminal-{plan}.txt": (lambda plan=plan: terminal.render(document(summary(plan)), 80)) for plan in PLANS},  # type: ignore[misc]
    "crash.md": lambda: as_markdown(document(summary("crash"))),
    "crash.csv": lambda: as_csv(document(summary("crash"))),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str) -> None:
    is_golden(GOLDEN / name, GOLDENS[name]())


@pytest.mark.parametrize("plan", PLANS)
def test_the_experiment_is_the_one_that_was_measured(plan: str) -> None:
    experiment = experiment_of(summary(plan))
    assert experiment is not None and experiment.name == plan


@pytest.mark.parametrize("plan", PLANS)
def test_the_first_screen_fits_into_40_lines_of_100_columns(plan: str) -> None:
    assert len(terminal.render(document(summary(plan)), 100).splitlines()) <= 40


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("plan", PLANS)
def test_no_line_is_wider_than_the_terminal(plan: str, width: int) -> None:
    for unicode in (True, False):
        for details in (True, False):
            lines = terminal.render(document(summary(plan)), width, unicode=unicode, details=details).splitlines()
            assert max(map(len, lines)) <= width


@pytest.mark.parametrize("plan", PLANS)
def test_terminal_and_markdown_have_the_same_figures(plan: str) -> None:
    text = {
        "terminal": terminal.render(document(summary(plan)), 132, details=True),
        "markdown": unescape(as_markdown(document(summary(plan)))),
    }
    for table in tables(document(summary(plan))):
        for row in table.rows:
            for cell in row:
                for part in (cell.text.split(), cell.below.split()):
                    assert all(word in found for word in part for found in text.values())


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_a_page_is_small_whole_and_fetches_nothing(plan: str) -> None:
    text = page(plan)
    is_small_and_whole(text)
    drawn = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert drawn and charts_have_figures(text)
    shown = [block.name for block in flat(document(summary(plan)).blocks) if isinstance(block, Chart)]
    assert len(drawn) == len(shown) == len(set(shown)), "no chart is promised that cannot be drawn"


def test_what_comes_from_data_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    story = findings("fallback").fallback[0].model_copy(update={"arm": evil, "log_lines": (evil,)})
    row = findings("crash").trade[0].model_copy(update={"verdict": evil})
    for made in (changed("fallback", fallback=(story,)), changed("crash", trade=(row,))):
        assert "<script" not in html.render(document(made))


def test_costs_crashes_and_fallbacks_of_one_run_are_in_one_report() -> None:
    both = changed("replication", crash=crash(), fallback=findings("fallback").fallback)
    found = document(both)
    titles = {table.title for table in tables(found)}
    assert {crash_report.LOSSES, "What a fallback hides", "Published figures"} <= titles
    assert {block.name for block in flat(found.blocks) if isinstance(block, Chart)} >= {
        "commits",
        "losses",
        "fallback0",
    }
    arms = {str(record["arm"]) for record in found.records}
    assert {loss.arm for loss in crash().losses} | {
        point.arm for curve in cost().curves for point in curve.points
    } <= arms


# ---------------------------------------------------------------- figures as text


def test_a_zero_comes_with_what_it_may_hide() -> None:
    zero = Estimate(value=0, low=None, high=None)
    assert frame.lost_cell(zero, 20) == Cell("0 of 20", "(< 14 %)")
    assert frame.lost_cell(zero, 60) == Cell("0 of 60", "(< 5 %)"), "over all of its faults"
    assert frame.lost_cell(zero, 25) == Cell("0 of 25", "(< 12 %)"), "an upper limit of 11.29 %"
    assert frame.lost_cell(Estimate(value=12.5, low=-1, high=26), 20) == Cell("12.5", "[0, 26]"), "no negative loss"
    assert frame.lost_cell(None, 0) == Cell(figures.UNKNOWN)


def test_an_order_of_magnitude_is_marked_as_one() -> None:
    cut, killed = crash().losses[:2]
    predicted = [crash_report.predicted(loss) for loss in (cut, killed, crash().losses[-1])]
    assert predicted == ["3,000", "≲ 260", "0"]
    unknown = cut.model_copy(update={"predicted_lost": None})
    assert crash_report.predicted(unknown) == figures.UNKNOWN, "0 would be a promise"
    late = cut.model_copy(update={"lost_before": 7, "lost_by_force": 90})
    assert any("asynchronous 7 to 90 in 20 crashes" in line for line in crash_report.evidence([late]))


def test_which_crashes_are_counted_and_whether_any_were_made_is_noted() -> None:
    rows = findings("crash").trade
    assert any(note.startswith("Crashes: link cut") for note in frame.trade_notes(rows))
    for plan in PLANS:
        assert ("not measured: howfar run crash" in as_markdown(document(summary(plan)))) is (plan == "replication")


def test_the_published_distance_comes_first() -> None:
    assert quoted_distance([0, 200 * MS, RTT_NS, None]) == RTT_NS
    assert quoted_distance([5 * MS, 20 * MS]) == 20 * MS
    assert quoted_distance([None]) is None
    found = frame.trade_tables(findings("replication"), summary("replication"))
    assert [(table.title.rsplit("RTT ", 1)[-1], table.main) for table in found] == [("85 ms", True), ("5 ms", False)]


# ---------------------------------------------------------------- charts


def test_parts_of_a_commit_add_up_to_it() -> None:
    for curve in cost().curves:
        for point in curve.points:
            noisy = point.model_copy(update={"local_ms": point.commit_ms * 1.4, "waiting_ms": -point.commit_ms})
            for each in (point, noisy):
                local, wire, waiting = charts.split_commit_ms(curve, each)
                assert local + wire + waiting == pytest.approx(point.commit_ms)
                assert min(local, wire, waiting) >= 0
    asynchronous = next(curve for curve in cost().curves if curve.mode == "async")
    far = asynchronous.points[0].model_copy(update={"wire_ms": 85.0, "waiting_ms": -85.0})
    assert charts.split_commit_ms(asynchronous, far)[1] == 0, "no commit waits for a wire there"


def test_curves_of_one_mode_are_named_and_drawn_differently() -> None:
    curve = next(curve for curve in cost().curves if curve.mode == "after-sync" and curve.replica_rtt_ns == RTT_NS)
    curves = [curve, curve.model_copy(update={"durability": "strict", "held": {"replica_tls": "on"}})]
    names = [name for name, _ in charts.name_curves(curves)]
    assert names == ["semi-sync AFTER_SYNC, durability off", "semi-sync AFTER_SYNC, durability strict, replica tls on"]
    colours, shapes = charts.series_styles_by_name(names, curves)
    assert len(set(colours.values())) == len(set(shapes.values())) == 2
    both = cost().model_copy(update={"curves": tuple(curves)})
    assert "durability strict" in html.render(document(changed("replication", cost=both)))


def test_curves_that_differ_only_in_other_factors_are_named_by_their_arms() -> None:
    curve = next(curve for curve in cost().curves if curve.mode == "after-sync" and curve.replica_rtt_ns == RTT_NS)
    curves = []
    for path in ("socket", "remote"):
        points = tuple(point.model_copy(update={"arm": f"{path}, {point.threads} threads"}) for point in curve.points)
        curves.append(curve.model_copy(update={"points": points}))
    assert [name for name, _ in charts.name_curves(curves)] == [
        "semi-sync AFTER_SYNC, socket",
        "semi-sync AFTER_SYNC, remote",
    ]
    assert len(set(cost_report.throughput_matrix(cost().model_copy(update={"curves": tuple(curves)})).columns)) == 3
    assert [name for name, _ in charts.name_curves(cost().curves)][:2] == ["no replica", "asynchronous"]


def test_crashes_of_one_mode_at_several_loads_are_several_rows() -> None:
    losses = crash().losses
    many = [loss.model_copy(update={"arm": f"64 threads, {loss.arm}", "threads": 64}) for loss in losses]
    for labels in (crash_charts.fault_labels, crash_charts.mode_labels):
        names = labels([*losses, *many])
        assert len(set(names)) == 2 * len(losses) and names[0] == losses[0].arm


def test_marks_of_equal_crashes_are_side_by_side() -> None:
    lanes = [crash_charts.lane_offset(index) for index in range(crash_charts.MAX_LANES)]
    assert len(set(lanes)) == crash_charts.MAX_LANES and max(map(abs, lanes)) == 1


def test_the_last_moments_are_of_the_fault_that_loses_most() -> None:
    assert {loss.fault for _, loss, _ in crash_charts.typical_crashes(crash().losses)} == {"cut"}
    assert crash_charts.typical_crashes([loss for loss in crash().losses if not loss.lost]) == []


def test_a_primary_that_never_fell_back_was_waiting_and_then_semi_synchronous() -> None:
    series = fallback_series(fallback_trial())
    assert series is not None
    stayed = series.model_copy(update={"fell_s": None, "back_s": None})
    primary = [(each["state"], each["to"]) for each in fallback_charts.phase_rows(stayed) if each["row"] == "primary"]
    acknowledged, waiting = fallback_charts.ACKNOWLEDGED, fallback_charts.WAITING
    assert [state for state, _ in primary] == [acknowledged, waiting, acknowledged]
    assert primary[1][1] == series.left_s + series.stall_s
    story = findings("fallback").fallback[0].model_copy(update={"series": stayed, "degraded_ms": None, "log_lines": ()})
    (table,) = tables(document(changed("fallback", fallback=(story,))))
    assert "never" in [row[1].text for row in table.rows]


def test_a_primary_that_is_asynchronous_as_long_as_there_is_a_load_has_lower_bounds() -> None:
    story = findings("fallback").fallback[0]
    assert story.series is not None and story.series.back_s is not None
    assert fallback_report.asynchronous_time_text(story, story.after_return_ms) == "7.00 [7.00, 7.00] s"
    ended = len(story.series.commits_per_s) * story.series.slice_s
    for back_s in (ended + 0.2, None):
        late = story.model_copy(update={"series": story.series.model_copy(update={"back_s": back_s})})
        assert fallback_report.asynchronous_time_text(late, late.after_return_ms).endswith(" s or more")
        assert (
            len(fallback_report.fallback_table([late]).notes) == len(fallback_report.fallback_table([story]).notes) + 1
        )


# ---------------------------------------------------------------- evidence and records


def test_evidence_is_computed_from_the_run() -> None:
    text = as_markdown(document(summary("replication")))
    parts = [cell.receipt.replication for cell in summary("replication").cells]
    windows = [part.window for part in parts if part is not None and part.window is not None]
    ends = [
        window.after.primary.acknowledged
        for window in windows
        if window.after is not None and window.after.primary is not None
    ]
    assert f"of {len(ends)} cells waiting for a replica, the primary counted {sum(ends):,} acknowledgements" in text
    assert "tmpfs took 2 µs (median): that is memory" in text
    assert re.search(r"took less than (0.99|1.0.) round trips", text)
    losses = crash_report.evidence(crash().losses)
    assert any("14 %" in line for line in losses)
    assert any(f"{sum(loss.lost for loss in crash().losses):,} lost commits" in line for line in losses)
    killed = [loss.model_copy(update={"fault": "kill-primary"}) for loss in crash().losses]
    assert "failure of a machine was not measured" in " ".join(crash_report.evidence(killed))


def test_a_void_trial_counts_for_what_made_it_void() -> None:
    reasons = {
        "replica1 was not replicating after the window: receiving No, applying Yes": 1,
        "the wait point was AFTER_COMMIT instead of AFTER_SYNC before the window": 1,
        "the primary's counters went back during the window: it was started again, or they were reset": 2,
        "no commit was acknowledged before the fault": 8,
        "the load ended before the fault came": 16,
    }
    texts = [text for text, count in reasons.items() for _ in range(count)]
    found = summary("crash").model_copy(update={"voids": count_kinds(enumerate(map(parse_reason, texts)))})
    assert "replication was not as configured: 4." in as_markdown(document(found))


def test_a_spreadsheet_has_cells_and_arms_that_broke_something() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(document(summary("replication"))))))
    far = next(row for row in rows if row["arm"] == "after-sync, 85ms, 64")
    assert far["mode"] == "after-sync" and float(far["round_trips"]) == pytest.approx(1.5, abs=0.1)
    assert float(far["tps"]) == pytest.approx(float(far["qps"]))
    crashes = list(csv.DictReader(io.StringIO(as_csv(document(summary("crash"))))))
    assert len(crashes) == 4 and {row["crashes"] for row in crashes} == {"20"}
    least, most, total = (int(crashes[0][name]) for name in ("lost_least", "lost_most", "lost"))
    assert 0 < most <= total and least <= most
    assert not any(" " in value for row in crashes for name, value in row.items() if name.startswith("lost"))


def test_the_json_has_each_crash_and_the_drawn_fallback() -> None:
    losses = json_values(summary("crash"))["replication"]["crash"]["losses"]
    assert [len(loss["each"]) for loss in losses] == [20] * 4
    assert json_values(summary("fallback"))["replication"]["fallback"][0]["series"]["unprotected"] == 1234


def test_little_is_a_report_too() -> None:
    for made in (
        changed("replication", cost=cost().model_copy(update={"curves": cost().curves[:1], "published": ()})),
        changed("replication", cost=cost().model_copy(update={"curves": (), "published": (), "mean_error": None})),
        changed("replication", trade=()),
        changed("crash", crash=CrashFindings(losses=(), sentences=()), trade=()),
    ):
        balance = Balance()
        balance.feed(html.render(document(made)))
        assert balance.open == []
        assert terminal.render(document(made), 80) and as_markdown(document(made))
