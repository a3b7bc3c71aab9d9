"""Reports of replication: tables that fit, pages that are whole, a zero that is no proof, and what a sceptic is told."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.unit.made_faults import fallback_trial
from tests.unit.rendered import csv as report_csv
from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_replication import MS, PLANS
from tests.unit.test_report_html import Balance

from howfar.analysis.summary import Summary, Unmeasured
from howfar.experiments.fallback.analysis import fallback_series
from howfar.experiments.replication.analysis import ReplicationCost
from howfar.experiments.replication.report import cost_chart, fallback_chart, loss_chart, tables, words
from howfar.experiments.replication.report.text import first_sentences
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.report import figures, json
from howfar.report.sceptic import questions
from howfar.stats.estimate import Estimate

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE_BYTES_MOST = 400_000


@cache
def summary(plan: str) -> Summary:
    return PLANS[plan]()


@cache
def page(plan: str) -> str:
    return html.render(summary(plan))


def findings(plan: str) -> ReplicationFindings:
    found = summary(plan).replication
    assert found is not None
    return found


def cost() -> ReplicationCost:
    found = findings("replication").cost
    assert found is not None
    return found


def changed(plan: str, **parts: object) -> Summary:
    return summary(plan).model_copy(update={"replication": findings(plan).model_copy(update=parts)})


GOLDENS: dict[str, Callable[[], str]] = {
    **{f"terminal-{plan}.txt": (lambda plan=plan: terminal.render(summary(plan), 80)) for plan in PLANS},  # type: ignore[misc]
    "crash.md": lambda: markdown.render(summary("crash")),
    "crash.csv": lambda: report_csv.render(summary("crash")),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str) -> None:
    text = GOLDENS[name]()
    if os.environ.get("HOWFAR_GOLDEN") == "write":
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8"), f"{name} changed; HOWFAR_GOLDEN=write writes it anew: read it"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("plan", PLANS)
def test_no_line_is_wider_than_the_terminal(plan: str, width: int) -> None:
    for unicode in (True, False):
        for line in terminal.render(summary(plan), width, unicode=unicode).splitlines():
            assert len(line) <= width


def test_the_trade_is_one_table_in_80_columns() -> None:
    table = tables.trade(findings("crash"))
    assert table is not None
    assert [row[0] for row in table.rows] == ["asynchronous", "semi-sync AFTER_SYNC", "semi-sync AFTER_COMMIT"]
    lines = terminal.render(summary("crash"), 80).splitlines()
    row = next(line for line in lines if line.startswith("asynchronous"))
    assert "17,900" in row and "[9,327, 10,518]" in row and row.endswith("no")


@pytest.mark.parametrize("plan", PLANS)
def test_a_page_is_small_whole_and_fetches_nothing(plan: str) -> None:
    text = page(plan)
    assert len(text.encode()) < PAGE_BYTES_MOST
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert not re.search(
        r"<(script|link|img|iframe|object|embed)\b|(src|href)\s*=\s*[\"'](?!#)|url\((?!#)|@import", text
    )
    assert "script-src" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    drawn = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert drawn and all("<title>" in figure and "<table>" in figure for figure in drawn)


def test_what_comes_from_data_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    story = findings("fallback").fallback[0].model_copy(update={"arm": evil, "log_lines": (evil,)})
    row = findings("crash").trade[0].model_copy(update={"verdict": evil})
    for made in (changed("fallback", fallback=(story,)), changed("crash", trade=(row,))):
        assert "<script" not in html.render(made)


def test_a_zero_is_said_with_what_it_may_hide() -> None:
    assert words.lost(Estimate(value=0, low=0, high=0.139), 20) == "0 of 20 (< 14 %)"
    assert words.lost(Estimate(value=0, low=0, high=0.139), 60) == "0 of 60 (< 5 %)", "over all of its faults"
    assert words.lost(Estimate(value=12.5, low=-1, high=26), 20) == "12.5 [0, 26]", "no crash gives commits back"
    assert words.lost(None, 0) == figures.UNKNOWN


def test_an_order_is_said_to_be_one_and_which_crash_is_counted() -> None:
    crash = findings("crash").crash
    assert crash is not None
    killed, cut = crash.losses[:2]
    assert words.foreseen(cut) == "9,800"
    order = killed.model_copy(update={"predicted_lost": Estimate(value=70, low=0, high=220)})
    assert words.foreseen(order) == "≲ 70"
    assert words.foreseen(crash.losses[-1]) == "0"
    assert words.foreseen(cut.model_copy(update={"predicted_lost": None})) == figures.UNKNOWN, "0 would be a promise"
    rows = findings("crash").trade
    assert "Crashes counted here: cut off, that is, the link is cut" in words.trade_fault(rows)
    assert words.trade_fault([row.model_copy(update={"fault": None}) for row in rows]) == ""
    assert words.upper(25) == " (< 12 %)", "an upper limit of 11.29 %"
    late = tuple(loss.model_copy(update={"lost_before": 7, "lost_by_force": 90}) for loss in (cut,))
    assert "asynchronous 7 to 90 of 198,445. The rest were" in " ".join(tables.loss_notes(late))


def test_what_was_not_broken_on_purpose_is_said_not_to_be_known() -> None:
    for render in (lambda plan: terminal.render(summary(plan), 200), lambda plan: markdown.render(summary(plan)), page):
        assert tables.NOT_BROKEN in render("replication") and tables.NOT_BROKEN not in render("crash")


def test_the_distance_that_people_quote_comes_first() -> None:
    assert words.quoted_distance([0, 200 * MS, 85 * MS, None]) == 85 * MS
    assert words.quoted_distance([5 * MS, 20 * MS]) == 20 * MS
    assert words.quoted_distance([None]) is None
    table, others = tables.trade(findings("replication")), tables.other_trades(findings("replication"))
    assert table is not None and table.title.endswith("RTT 85ms")
    assert [other.title.rsplit(" ", 1)[-1] for other in others] == ["5ms"]


def test_parts_of_a_commit_add_up_to_it() -> None:
    for curve in cost().curves:
        for point in curve.points:
            noisy = point.model_copy(update={"local_ms": point.commit_ms * 1.4, "waiting_ms": -point.commit_ms})
            for each in (point, noisy):
                local, wire, waiting = cost_chart.parts(curve, each)
                assert local + wire + waiting == pytest.approx(point.commit_ms)
                assert min(local, wire, waiting) >= 0
    asynchronous = next(curve for curve in cost().curves if curve.mode == "async")
    far = asynchronous.points[0].model_copy(update={"wire_ms": 85.0, "waiting_ms": -85.0})
    assert cost_chart.parts(asynchronous, far)[1] == 0, "nobody waits for a wire there"


def test_series_that_differ_in_more_than_their_mode_are_named_and_look_different() -> None:
    curve = next(curve for curve in cost().curves if curve.mode == "after-sync")
    curves = [curve, curve.model_copy(update={"durability": "strict", "held": {"replica_tls": "on"}})]
    names = [words.series_name(each, words.varied(curves)) for each in curves]
    assert names == ["semi-sync AFTER_SYNC, durability off", "semi-sync AFTER_SYNC, durability strict, replica tls on"]
    colours, shapes = cost_chart.scales(names, curves)
    assert len(set(colours)) == len(set(shapes)) == 2
    both = cost().model_copy(update={"curves": tuple(curves)})
    assert "durability strict" in html.render(changed("replication", cost=both))


def test_curves_that_differ_in_what_has_no_name_of_its_own_are_told_apart_by_their_arms() -> None:
    curve = next(curve for curve in cost().curves if curve.mode == "after-sync" and curve.replica_rtt_ns == 85 * MS)
    curves = []
    for path in ("socket", "remote"):
        points = tuple(point.model_copy(update={"arm": f"{path}, {point.arm}"}) for point in curve.points)
        curves.append(curve.model_copy(update={"points": points}))
    assert [name for name, _ in words.named(curves)] == ["semi-sync AFTER_SYNC, socket", "semi-sync AFTER_SYNC, remote"]
    table = tables.matrix(cost().model_copy(update={"curves": tuple(curves)}))
    assert len(set(table.head)) == 3
    assert [name for name, _ in words.named(cost().curves)][:2] == ["no replica", "asynchronous"]


def test_crashes_of_one_mode_at_several_loads_are_several_rows() -> None:
    crash = findings("crash").crash
    assert crash is not None
    many = [loss.model_copy(update={"arm": f"64 threads, {loss.arm}", "threads": 64}) for loss in crash.losses]
    names = loss_chart.labels([*crash.losses, *many])
    assert len(set(names)) == 12 and names[0] == crash.losses[0].arm
    assert "64 threads" in html.render(
        changed("crash", crash=crash.model_copy(update={"losses": tuple(many[:1] + list(crash.losses))}))
    )


def test_a_long_verdict_is_begun_in_large_letters_and_ended_below() -> None:
    sentences = [f"{word} lost {'so very ' * 45}much in 1.5 s." for word in ("One", "Two", "Three")]
    assert first_sentences(" ".join(sentences)) == (sentences[0], sentences[1:])
    assert first_sentences("Of 1.5 s. 7 of them.") == ("Of 1.5 s. 7 of them.", [])
    text = html.render(summary("crash").model_copy(update={"verdict": " ".join(sentences)}))
    assert all(sentence in text for sentence in sentences) and text.index(sentences[2]) > text.index("<svg")


def test_a_page_has_a_receipt_of_each_mode_however_many_cells_there_are() -> None:
    receipts = re.findall(r"<summary>Receipt: ([^<]*)</summary>", page("replication"))
    assert len(receipts) == 4 and "--json has the other 18" in page("replication")


def test_marks_of_equal_crashes_are_side_by_side() -> None:
    lanes = [loss_chart.lane(index) for index in range(loss_chart.LANES)]
    assert len(set(lanes)) == loss_chart.LANES and max(map(abs, lanes)) == 1


def test_the_last_moments_are_those_of_the_fault_that_loses_most() -> None:
    assert {loss.fault for loss in loss_chart.moments(summary("crash"))} == {"cut"}
    safe = [loss for loss in loss_chart.losses_of(summary("crash")) if not loss.lost]
    crash = findings("crash").crash
    assert crash is not None
    nothing_lost = changed("crash", crash=crash.model_copy(update={"losses": tuple(safe)}))
    assert "One crash, moment by moment" in page("crash")
    assert "One crash, moment by moment" not in html.render(nothing_lost), "there is nothing to show"


def test_a_primary_that_never_fell_back_was_waiting_and_then_semi_synchronous() -> None:
    series = fallback_series(fallback_trial())
    assert series is not None
    stayed = series.model_copy(update={"fell_s": None, "back_s": None})
    states = [(entry["state"], entry["to"]) for entry in fallback_chart.phases(stayed) if entry["row"] == "primary"]
    assert [state for state, _ in states] == [
        fallback_chart.ACKNOWLEDGED,
        fallback_chart.WAITING,
        fallback_chart.ACKNOWLEDGED,
    ]
    assert states[1][1] == series.left_s + series.stall_s
    story = findings("fallback").fallback[0].model_copy(update={"series": stayed, "degraded_ms": None, "log_lines": ()})
    text = html.render(changed("fallback", fallback=(story,)))
    assert "never" in text and "said nothing of it" in text


def test_a_primary_that_is_asynchronous_as_long_as_there_is_a_load_is_known_from_below_only() -> None:
    story = findings("fallback").fallback[0]
    assert story.series is not None and story.series.back_s is not None
    assert words.asynchronous_for(story, story.after_return_ms) == "6.40 s"
    ended = len(story.series.commits_per_s) * story.series.slice_s
    for back_s in (ended + 0.2, None):
        late = story.model_copy(update={"series": story.series.model_copy(update={"back_s": back_s})})
        assert words.asynchronous_for(late, late.after_return_ms) == "≥ 6.40 s"
        assert tables.STILL in terminal.render(changed("fallback", fallback=(late,)), 200)
        text = html.render(changed("fallback", fallback=(late,)))
        assert ("would a commit wait for it again" if back_s else "no commit waits for it until") in text


def test_an_arm_that_only_broke_things_is_not_called_unmeasured() -> None:
    crash = findings("crash").crash
    assert crash is not None
    gone = tuple(
        Unmeasured(arm=arm, factors={}, void_trials=0, reasons={}) for arm in (crash.losses[0].arm, "never reached")
    )
    lines = figures.unmeasured_lines(summary("crash").model_copy(update={"unmeasured": gone}))
    assert len(lines) == 1 and lines[0].startswith("never reached")
    assert "20 blocks (120 trials)" in figures.session_line(summary("crash"))


def test_a_sceptic_is_answered_from_the_run() -> None:
    asked = dict(questions(summary("crash")))
    assert "20 without a loss would still come up once in twenty tries" in asked["Why trust a zero of 20?"]
    assert "13.9 %" in asked["Why trust a zero of 20?"]
    assert "server killed 60 times, cut off 60 times" in asked["Is a SIGKILL a power failure?"]
    assert "1 crash was void" in asked["Are the clients' logs complete?"]
    cost_asked = dict(questions(summary("replication")))
    held = cost_asked["Was semi-sync on in every commit? How do you know?"]
    assert (
        "of its 12 cells" in held
        and "counted 110,556 acknowledgements" in held
        and " 0 commits without one" in held
        and "0.97 round trips" in held
    )
    assert "that is memory" in cost_asked["Is fsync real here?"] and "tmpfs" in cost_asked["Is fsync real here?"]
    assert "6.2 % at worst" in cost_asked["Is the model fitted to what it predicts?"]
    assert "in ratios" not in dict(questions(summary("fallback"))).get("Is it not just noise?", "")


def test_a_void_trial_is_counted_for_what_made_it_void() -> None:
    reasons = {
        "replica1 was not replicating after the window: receiving No, applying Yes": 1,
        "the wait point was AFTER_COMMIT instead of AFTER_SYNC before the window": 1,
        "the primary's counters went back during the window: it was started again, or they were reset": 2,
        "no commit was acknowledged before the fault": 8,
        "the load ended before the fault came": 16,
    }
    found = summary("crash").model_copy(update={"void_reasons": reasons})
    held = dict(questions(found))["Was semi-sync on in every commit? How do you know?"]
    assert "Void for such a reason in this run: 4." in held


def test_an_account_that_does_not_add_up_and_a_cut_that_was_not_made_are_owned_up_to() -> None:
    crash = findings("crash").crash
    assert crash is not None
    losses = tuple(
        loss.model_copy(update={"sound": index != 0}) for index, loss in enumerate(crash.losses) if loss.fault != "cut"
    )
    asked = dict(questions(changed("crash", crash=crash.model_copy(update={"losses": losses}))))
    assert asked["Are the clients' logs complete?"].count("Not everywhere") == 1
    assert "a machine's death was not measured" in asked["Is a SIGKILL a power failure?"]


def test_a_spreadsheet_has_cells_and_arms_that_broke_something() -> None:
    rows = list(csv.DictReader(io.StringIO(report_csv.render(summary("replication")))))
    far = next(row for row in rows if row["mode"] == "after-sync" and row["threads"] == "64" and "85" in row["arm"])
    assert float(far["round_trips"]) == pytest.approx(1.56, abs=0.01)
    assert float(far["tps"]) == pytest.approx(472, rel=0.02)
    crashes = list(csv.DictReader(io.StringIO(report_csv.render(summary("crash")))))
    assert len(crashes) == 6 and {row["crashes"] for row in crashes} == {"20"}
    assert sum(map(int, crashes[0]["lost_each"].split())) == int(crashes[0]["lost"])


def test_the_json_has_each_crash_and_the_drawn_fallback() -> None:
    crash = json.document(summary("crash"))["replication"]["crash"]
    assert [len(loss["each"]) for loss in crash["losses"]] == [20] * 6
    assert json.document(summary("fallback"))["replication"]["fallback"][0]["series"]["unprotected"] == 234_500


def test_little_is_a_page_too() -> None:
    for made in (
        changed("replication", cost=None, trade=()),
        changed("replication", cost=cost().model_copy(update={"curves": cost().curves[:1], "published": ()})),
        changed("replication", cost=cost().model_copy(update={"curves": (), "published": (), "mean_error": None})),
        changed("fallback", fallback=()),
        changed("crash", crash=None),
    ):
        balance = Balance()
        balance.feed(html.render(made))
        assert balance.open == []
        assert terminal.render(made, 80) and markdown.render(made) is not None
