"""Reports of pages: the first screen answers, flips are said with their limits, parts add up, and what is not known is said."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.unit.made_pages import page_run
from tests.unit.rendered import csv as report_csv
from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_pages import FLOOR, SHAPES, page
from tests.unit.test_report_html import Balance

from howfar.analysis.analyse import summarise
from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import Crossing, PageFindings, PageModel
from howfar.experiments.page.report import crossing_chart, gallery, page_charts, tables, words
from howfar.report import figures, json
from howfar.report.sceptic import questions
from howfar.stats.estimate import Estimate

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE_BYTES_MOST = 400_000


@cache
def summary() -> Summary:
    return page()


@cache
def written() -> str:
    return html.render(summary())


def findings() -> PageFindings:
    found = summary().pages
    assert found is not None
    return found


def changed(**parts: object) -> Summary:
    return summary().model_copy(update={"pages": findings().model_copy(update=parts)})


def crossing(**parts: object) -> Crossing:
    return findings().crossings[0].model_copy(update=parts)


GOLDENS: dict[str, Callable[[], str]] = {
    "terminal-page.txt": lambda: terminal.render(summary(), 80),
    "page.md": lambda: markdown.render(summary()),
    "page.csv": lambda: report_csv.render(summary()),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str) -> None:
    text = GOLDENS[name]()
    if os.environ.get("HOWFAR_GOLDEN") == "write":
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8"), f"{name} changed; HOWFAR_GOLDEN=write writes it anew: read it"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    typed = {line for advice in summary().advice for line in advice.lines}  # whole, however wide
    for unicode in (True, False):
        for line in terminal.render(summary(), width, unicode=unicode).splitlines():
            assert len(line) <= width or line.strip() in typed


def test_the_first_screen_of_a_terminal_answers() -> None:
    screen = terminal.render(summary(), 80).splitlines()[:40]
    assert screen[0].startswith("One machine with sockets is faster: ")
    rows = [line for line in screen if re.match(r"(heavy|light): (one|two), ", line)]
    assert len(rows) == 6 and all(re.search(r"\[[\d.,]+, [\d.,]+\].*ms|\d %", row) for row in rows)
    assert "13 ms" in "".join(screen) and "75 ms" in "".join(screen)
    heavy = next(line for line in screen if line.startswith("heavy  "))
    assert re.match(r"heavy  10\.4 \[9\.2, 11\.4\] ms   11\.1 ms", heavy), "flips at, foreseen"


def test_the_first_screen_of_a_page_answers() -> None:
    """Verdict, a card a page, and the chart stand before any other heading."""
    top = written().split("<h2>")[0]
    assert top.index("verdict") < top.index("heavy page") < top.index("<svg")
    assert "10.4 [9.2, 11.4]" in top and "foreseen: 11.1 ms" in top
    assert "two machines are better" in top and "one machine is better" in top


def test_an_answer_of_many_clauses_leaves_room_for_the_chart() -> None:
    """The first clause is large, whole; a semicolon in brackets ends none."""
    lead, rest = "It depends on the page", f": heavy (4; 0.6) pays; {'a clause; ' * 60}the end."
    made = changed(sentences=(lead + rest,)).model_copy(update={"verdict": lead + rest})
    top = html.render(made)
    assert f'<p class="verdict">{lead}: heavy (4; 0.6) pays.</p>' in top and top.index(rest) > top.index("<svg")
    one_block = made.model_copy(update={"verdict": f"One block: no answer yet. So far: {lead}{rest}"})
    assert "One block: no answer yet." in html.render(one_block).split("</p>")[0]


def test_a_page_is_small_whole_and_fetches_nothing() -> None:
    text = written()
    assert len(text.encode()) < PAGE_BYTES_MOST
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert not re.search(
        r"<(script|link|img|iframe|object|embed)\b|(src|href)\s*=\s*[\"'](?!#)|url\((?!#)|@import", text
    )
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    drawn = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert len(drawn) >= 4 and all("<title>" in figure and "<table>" in figure for figure in drawn)


def test_what_comes_from_data_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    arms = tuple(arm.model_copy(update={"page": evil, "arm": evil}) for arm in findings().arms[:3])
    made = changed(arms=arms, choices=(), crossings=(), scripts={evil: evil}, sentences=(evil,))
    assert "<script" not in html.render(made)


def test_where_it_does_not_flip_is_said_instead() -> None:
    nowhere = {"measured_ms": None, "swept_ms": (4.9, 64.9)}
    assert words.flips_at(crossing(always="one", **nowhere)) == "not up to 64.9 ms"
    assert words.flips_at(crossing(always="two", **nowhere)) == "below 4.9 ms"
    unknown = html.render(changed(crossings=(crossing(always=None, **nowhere),)))
    assert "begins to pay is not resolved from 4.9 to 64.9 ms" in unknown
    assert words.flips_at(crossing(always=None, **nowhere)) == "not resolved"
    none = {"predicted_ms": None, **nowhere}
    assert words.foreseen_at(crossing(predicted_always="one", **none)) == "nowhere"
    assert words.foreseen_at(crossing(predicted_always="two", **none)) == "below 4.9 ms"
    no_model = crossing(predicted_always=None, curve_ms=(), curve_ratio=(), without_link_cpu_ms=None, **none)
    assert words.foreseen_at(no_model) == "-" and "nowhere" not in html.render(
        changed(crossings=(no_model,), sentences=())
    )
    assert "nowhere up to 64.9 ms" in html.render(changed(crossings=(crossing(always="one", **nowhere),)))
    half_open = {"measured_ms": Estimate(value=12.0, low=9.0, high=None), "swept_ms": (4.9, 64.9)}
    assert words.flips_at(crossing(**half_open)) == "12 [9, > 64.9] ms"
    half_open["measured_ms"] = Estimate(value=12.0, low=None, high=20.0)
    assert words.flips_at(crossing(**half_open)) == "12 [< 4.9, 20] ms"
    open_ended = Estimate(value=12.0, low=None, high=None)
    assert words.flips_at(crossing(measured_ms=open_ended)) == "12 ms (no interval)"
    assert "12 ms (no interval)" in html.render(changed(crossings=(crossing(measured_ms=open_ended),)))


def test_the_setting_of_the_first_screen_is_the_real_page_at_full_load() -> None:
    assert [setting.page for setting in words.chief(findings())] == list(SHAPES)
    for setting in words.chief(findings()):
        assert (setting.application, setting.threads, setting.app_cpu_ns) == ("php", 4, 0)
        assert words.alone(findings(), setting).threads == 1
    engine = tuple(arm for arm in findings().arms if arm.application == "engine")
    only = findings().model_copy(update={"arms": engine})
    assert {setting.application for setting in words.chief(only)} == {"engine"}
    far = [arm for arm in findings().arms if arm.application == "engine" or arm.path != "remote"]
    whole = words.chief(findings().model_copy(update={"arms": tuple(far)}))
    assert {setting.application for setting in whole} == {"engine"}, "what cannot be compared answers nothing"


def test_parts_of_a_page_add_up_to_it() -> None:
    for arm in findings().arms:
        short = arm.model_copy(update={"page_ms": Estimate(value=arm.page_ms.value / 3, low=None, high=None)})
        for each in (arm, short):
            found = page_charts.parts(each)
            assert sum(found.values()) == pytest.approx(each.page_ms.value)
            assert min(found.values()) >= 0 and tuple(found) == page_charts.PARTS


def test_bars_are_of_pages_that_do_not_wait_for_each_other() -> None:
    drawn = page_charts.split_arms(findings())
    assert list(drawn) == list(SHAPES)
    assert all(arm.threads == 1 and arm.app_cpu_ns == 0 for arms in drawn.values() for arm in arms)


def test_what_was_not_swept_is_no_curve() -> None:
    keys = {crossing_chart._key(choice)[0].threads for choice in words.chief_choices(findings())}
    assert keys == {1, 4}
    svg = gallery.crossing(summary())
    assert "heavy" in svg and "4 in flight" not in svg.split("<details>")[0], "all have 4 in flight, 1 is one point"
    unswept = tuple(choice for choice in findings().choices if not choice.app_cpu_ns)
    assert gallery.crossing(changed(choices=unswept)) == ""
    assert "<h2>One machine or two?" in html.render(changed(choices=unswept, crossings=()))


def test_what_is_missing_leaves_no_hole() -> None:
    model = PageModel(arms=0, mean_error=None, worst_error=None, worst_arm=None, within_bar=None)
    bare = tuple(
        arm.model_copy(update={"turns": (), "predicted_p50_ms": None, "predicted_error": None, "busy": {}})
        for arm in findings().arms
        if arm.application == "php" and arm.machines == 1
    )
    made = changed(arms=bare, choices=(), crossings=(), model=model, published=(), scripts={}, sentences=())
    for text in (terminal.render(made, 80), markdown.render(made), html.render(made), report_csv.render(made)):
        assert text and "None" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    assert "No arm could be foreseen" in html.render(made)
    nothing = changed(arms=(), choices=(), crossings=(), model=model, published=(), scripts={}, sentences=())
    assert html.render(nothing) and terminal.render(nothing) and json.render(nothing)


def test_what_the_analysis_finds_is_drawn() -> None:
    """From records to a page, with nothing laid over them."""
    found = summarise(page_run(blocks=3))
    assert found.pages is not None and found.asked == "pages"
    text = html.render(found)
    assert all(head in text for head in ("What a turn costs", "Does anybody notice?", "Who spends the CPU"))
    assert "two machines are better" in text and "None" not in terminal.render(found, 80)
    assert report_csv.render(found) and markdown.render(found) and json.render(found)


def test_several_links_are_told_apart() -> None:
    two = next(arm for arm in findings().arms if arm.machines == 2)
    assert words.where(two, findings()) == "two, network"
    far = two.model_copy(update={"arm": "far", "rtt_ns": 2_000_000})
    both = findings().model_copy(update={"arms": (*findings().arms, far)})
    assert words.where(far, both) == "two, network 2ms" and words.where(two, both) == "two, network 0.2ms"


def test_a_path_has_one_colour_on_every_chart() -> None:
    two = next(arm for arm in findings().arms if arm.machines == 2)
    far = two.model_copy(update={"arm": "far", "rtt_ns": 2_000_000})
    colours = page_charts.path_colours(findings().model_copy(update={"arms": (*findings().arms, far)}))
    assert len(set(colours.values())) == len(colours) == 4
    assert colours["one, sockets"] == page_charts.path_colours(findings())["one, sockets"]


def test_shares_are_short_and_a_few_are_not_none() -> None:
    assert [words.share(value) for value in (0, 0.0004, 0.0123, 0.5, 0.9999, 1)] == [
        "0",
        "< 0.1 %",
        "1.2 %",
        "50 %",
        "99 %",
        "100 %",
    ]


def test_the_emulators_cpu_is_in_no_sum_and_is_said() -> None:
    two = next(arm for arm in findings().arms if arm.machines == 2)
    assert two.cpu_ms["link"] > 0
    assert words.path_cpu_ms(two) == pytest.approx(sum(two.cpu_ms.values()) - two.cpu_ms["link"])
    asked = dict(questions(summary()))
    assert "took up to" in asked["Two machines in one computer?"]
    assert "6.4 ms instead of 11.1" in asked["Two machines in one computer?"]
    unseen = changed(crossings=(crossing(predicted_ms=None, predicted_always="one", measured_ms=None, always="one"),))
    assert "6.4 ms instead of nowhere" in dict(questions(unseen))["Two machines in one computer?"]
    assert "by the model: from 6.4 ms" in html.render(unseen) and "foreseen: nowhere" in html.render(unseen)


def test_a_sceptic_is_answered_from_the_run() -> None:
    asked = dict(questions(summary()))
    assert "1 CPU, half of this computer's" in asked["Who else has a real page on such small machines?"]
    assert "the heavy page 4.90 ms" in asked["Is the page real?"]
    assert (
        "204 µs" in asked["Is it the network, or waking up?"]
        and "MySQL 246 µs" in asked["Is it the network, or waking up?"]
    )
    assert "6.6 % at worst" in asked["Is the model fitted to what it predicts?"]
    engine = tuple(arm for arm in findings().arms if arm.application == "engine")
    asked = dict(questions(changed(arms=engine)))
    assert asked["Is the page real?"].startswith("No") and "Where are HTTP, nginx and TLS?" not in asked


def test_a_spreadsheet_has_every_arm_and_the_comparison_on_the_line_of_two_machines() -> None:
    lines = list(csv.DictReader(io.StringIO(report_csv.render(summary()))))
    assert len(lines) == len(summary().cells)
    for line in lines:
        if line["role"] != "duplicate":
            assert float(line["pages_per_s"]) > 0 and float(line["mysql_turns"]) in (60, 6)
            assert bool(line["two_over_one"]) == (line["path"] == "remote")


def test_terminal_lists_what_the_model_missed_most() -> None:
    few, wide = tables.foreseen(findings()), tables.foreseen(findings(), wide=True)
    assert few is not None and wide is not None
    assert len(few.rows) == tables.FEW and len(wide.rows) == findings().model.arms
    assert all(row[-1] == "-6.6 %" for row in few.rows[:5]) and "12 others" in few.notes[0]


def test_what_is_not_resolved_is_grey_on_the_chart() -> None:
    assert summary().noise_floor == FLOOR
    assert "noise floor" in gallery.crossing(summary())
    assert (
        "noise floor" not in gallery.crossing(summary().model_copy(update={"noise_floor": None})).split("</details>")[0]
    )
    assert "pages in flight" in terminal.render(summary()) and "connections" not in figures.session_line(summary())


def test_an_end_that_nothing_closes_is_drawn_to_the_edge_with_an_arrow() -> None:
    """One block has no interval at all, and none is drawn."""
    arrows = {}
    for name, (low, high) in {
        "closed": (9.0, 12.0),
        "right": (9.0, None),
        "left": (None, 12.0),
        "one": (None, None),
    }.items():
        spec = crossing_chart.crossing(
            changed(crossings=(crossing(measured_ms=Estimate(value=10.0, low=low, high=high)),)), 700
        )
        assert spec is not None
        layers = spec.to_dict()["layer"]
        marks = [layer["mark"] for layer in layers]
        shapes = {mark.get("shape") for mark in marks if mark["type"] == "point"} - {None, "diamond"}
        rows = [row for layer in layers if "high open" in str(layer) for row in layer["data"]["values"]]
        across = layers[-1]["encoding"]["x"]["scale"]["domain"]
        arrows[name] = shapes, any(mark["type"] == "rule" and mark.get("strokeWidth") == 6 for mark in marks)
        assert all((row["low"] == across[0]) == row["low open"] for row in rows)
        assert all((row["high"] == across[1]) == row["high open"] for row in rows)
    assert arrows == {
        "closed": (set(), True),
        "right": ({"triangle-right"}, True),
        "left": ({"triangle-left"}, True),
        "one": (set(), False),
    }


def test_each_way_to_a_second_machine_is_named() -> None:
    """Two links, and a forwarded socket: in the tables, on the chart, on their own lines of the spreadsheet."""
    other = {"path": "remote", "rtt_ns": 1_000_000}
    far_choices = tuple(each.model_copy(update=other) for each in findings().choices)
    far_crossings = tuple(each.model_copy(update=other) for each in findings().crossings)
    far_arms = tuple(
        each.model_copy(update={"arm": f"{each.arm} far", "rtt_ns": 1_000_000})
        for each in findings().arms
        if each.machines == 2
    )
    made = changed(
        choices=findings().choices + far_choices,
        crossings=findings().crossings + far_crossings,
        arms=findings().arms + far_arms,
    )
    assert made.pages is not None
    found = tables.choices(words.chief_choices(made.pages))
    assert found is not None
    names = {row[0] for row in found.rows}
    assert {"heavy, 4 in flight, network 0.2ms", "heavy, 4 in flight, network 1ms"} <= names
    flips = tables.flips(list(made.pages.crossings))
    assert flips is not None and len({row[0] for row in flips.rows}) == len(flips.rows) == 4
    assert "network 1ms" in gallery.crossing(made) and "(network 0.2ms)" in html.render(made)
    assert [found.rtt_ns for found in words.chief_crossings(made.pages)] == [200_000, 1_000_000] * 2
    assert "the heavy page (network 1ms) 6.4 ms" in dict(questions(made))["Two machines in one computer?"]


def test_one_p50_is_in_all_places() -> None:
    """That which a prediction is held against."""
    arm = words.arms_of(findings(), words.chief(findings())[0])[0]
    cell = next(cell for cell in summary().cells if cell.arm == arm.arm)
    assert cell.latency_ms.p50 != pytest.approx(arm.p50_ms, rel=1e-3)
    line = next(row for row in csv.DictReader(io.StringIO(report_csv.render(summary()))) if row["arm"] == arm.arm)
    assert float(line["p50_ms"]) == pytest.approx(arm.p50_ms, rel=1e-4) and "page_p50_ms" not in line
    assert f"<td>{words.ms(arm.p50_ms)}</td>" in gallery.latency(summary())


def test_what_is_counted_is_a_page_whoever_runs_it() -> None:
    """Ratios, rates and CPU: the engine counts its turns, PHP's pages do not."""
    found = summarise(page_run(blocks=3))
    assert found.pages is not None
    rates = {arm.arm: arm.pages_per_s.value for arm in found.pages.arms}
    base = next(cell for cell in found.cells if cell.role.value == "baseline")
    for cell in found.cells:
        if cell.arm in rates:
            assert cell.qps.value == pytest.approx(rates[cell.arm])
            assert cell.ratio is not None
            assert cell.ratio.value == pytest.approx(rates[cell.arm] / rates[base.arm], rel=0.02)
            assert (cell.bytes_per_txn.to_client is None) == (cell.factors["application"] == "php")
    engine = next(cell for cell in found.cells if cell.arm.startswith("socket, heavy, engine, 0ms, 4"))
    assert engine.cpu_ratio is not None and 0.5 < engine.cpu_ratio.value < 1, "as much a page, but for PHP"
    lines = {line["arm"]: line for line in csv.DictReader(io.StringIO(report_csv.render(found)))}
    assert lines[base.arm]["bytes_to_server_per_txn"] == ""
    assert lines[engine.arm]["bytes_to_server_per_txn"] != ""


def test_counts_of_pages_in_flight_are_those_of_the_run() -> None:
    arms = tuple(
        arm.model_copy(update={"threads": {1: 2, 4: 8}[arm.threads], "arm": f"{arm.arm} more"})
        for arm in findings().arms
    )
    found = tables.first(findings().model_copy(update={"arms": arms}))
    assert found is not None and ("p50 ms, in", "flight 2, 8") in found.head
    assert "8 in flight, and 2:" in found.notes[0] and "alone" not in found.notes[0]
