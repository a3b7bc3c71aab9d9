"""Reports of pages: the first screen answers, parts add up, routes are named, and what is unknown leaves no hole."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.unit.fake_pages import PAGES, page_run
from tests.unit.rendered import findings_of, with_findings
from tests.unit.test_report_html import Balance

from howfar.analysis.summary import Summary
from howfar.experiments.page import charts, labels, report
from howfar.experiments.page.findings import Crossing, PageFindings, PageModel
from howfar.experiments.registry import document, summarise
from howfar.report import csv as report_csv
from howfar.report import html, json, markdown, terminal
from howfar.report.document import Block, Card, Chart, Details, Document, Table
from howfar.stats.estimate import Estimate

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE_BYTES_MOST = 400_000
FAR_NS = 1_000_000


@cache
def summary() -> Summary:
    return summarise(page_run(blocks=4))


def findings() -> PageFindings:
    found = findings_of(summary(), PageFindings)
    assert found is not None
    return found


def changed(**parts: object) -> Summary:
    return with_findings(summary(), pages=findings().model_copy(update=parts))


def made(of: Summary) -> Document:
    found = document(of)
    assert found is not None
    return found


def blocks(of: Document) -> Iterator[Block]:
    """All of them, those of details included."""
    waiting = list(of.blocks)
    while waiting:
        block = waiting.pop(0)
        yield block
        if isinstance(block, Details):
            waiting = [*block.blocks, *waiting]


def titles(of: Summary) -> list[str]:
    return [block.title for block in blocks(made(of)) if isinstance(block, Chart | Details | Table)]


def crossing(**parts: object) -> Crossing:
    return findings().crossings[0].model_copy(update=parts)


def with_a_longer_link() -> Summary:
    """Everything with two machines twice: the second time on a longer link."""
    far = {"path": "remote", "rtt_ns": FAR_NS}
    found = findings()
    return changed(
        arms=(
            *found.arms,
            *(a.model_copy(update=far | {"arm": f"{a.arm} far"}) for a in found.arms if a.machines == 2),
        ),
        choices=(*found.choices, *(choice.model_copy(update=far) for choice in found.choices)),
        crossings=(*found.crossings, *(each.model_copy(update=far) for each in found.crossings)),
    )


GOLDENS: dict[str, Callable[[], str]] = {
    "terminal-page.txt": lambda: terminal.render(made(summary()), 100),
    "page.md": lambda: markdown.render(made(summary())),
    "page.csv": lambda: report_csv.render(made(summary())),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str) -> None:
    text = GOLDENS[name]()
    if os.environ.get("HOWFAR_GOLDEN") == "write":
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8"), f"{name} changed; HOWFAR_GOLDEN=write writes it again: read it"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    copied = {line for advice in summary().advice for line in advice.lines}  # whole, however wide
    for details in (True, False):
        for unicode in (True, False):
            for line in terminal.render(made(summary()), width, unicode=unicode, details=details).splitlines():
                assert len(line) <= width or line.strip() in copied


def test_the_first_screen_of_a_terminal_answers() -> None:
    screen = terminal.render(made(summary()), 100).splitlines()
    copied = {line for advice in summary().advice for line in advice.lines}
    assert len([line for line in screen if line.strip() not in copied]) <= 40
    assert " ".join(screen).startswith(summary().verdict[:80])
    rows = [line for line in screen if re.match(r"(heavy|light): (one|two), ", line)]
    assert len(rows) == 6 and all(re.search(r"\[[\d.,]+, [\d.,]+\].* \d+(\.\d+)?$", row) for row in rows)
    assert "What to do" in screen


def test_the_html_is_small_whole_escaped_and_fetches_nothing() -> None:
    evil = "<script>alert(1)</script>"
    arms = tuple(arm.model_copy(update={"page": evil, "arm": evil}) for arm in findings().arms[:3])
    assert "<script" not in html.render(
        made(changed(arms=arms, choices=(), crossings=(), scripts={evil: evil}, sentences=(evil,)))
    )
    text = html.render(made(summary()))
    assert len(text.encode()) < PAGE_BYTES_MOST
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert not re.search(r"<(link|img|iframe|object|embed)\b|(src|href)\s*=\s*[\"'](?!#)|url\((?!#)|@import", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "two machines are better" in text and "one machine is better" in text


def test_cards_say_which_is_better_and_from_when_the_other_is() -> None:
    def card(**parts: object) -> Card:
        return report.cards(findings().model_copy(update={"crossings": (crossing(**parts),)}))[0]

    assert card().label == "heavy page" and card().figure == "one machine"
    assert re.search(r"pays: [\d.]+ \[[\d.]+, [\d.]+\] ms \(predicted: [\d.]+ ms\)", card().lines[0])
    assert "without the emulator's CPU" in card().lines[1]
    unknown = card(measured_ms=None, always=None, predicted_ms=None, predicted_always=None, without_link_cpu_ms=None)
    assert "not resolved between" in unknown.lines[0] and "predicted" not in " ".join(unknown.lines)


def test_the_headline_is_the_real_page_at_full_load() -> None:
    for page, setting in zip(PAGES, findings().headline_settings(), strict=True):
        assert setting == ((page, "php", "persistent"), 0, 4)
        assert findings().fewest_in_flight(setting).threads == 1
    far = tuple(arm for arm in findings().arms if arm.application == "engine" or arm.path != "remote")
    engine = tuple(choice for choice in findings().choices if choice.application == "engine")
    whole = findings().model_copy(update={"arms": far, "choices": engine}).headline_settings()
    assert {setting.subject.application for setting in whole} == {"engine"}, "what cannot be compared answers nothing"


def test_parts_of_a_page_add_up_to_it() -> None:
    for arm in findings().arms:
        short = arm.model_copy(update={"page_ms": Estimate(value=arm.page_ms.value / 3, low=None, high=None)})
        for each in (arm, short):
            found = charts.time_parts(each)
            assert sum(found.values()) == pytest.approx(each.page_ms.value)
            assert min(found.values()) >= 0 and list(found) == list(charts.PARTS)


def test_bars_are_of_pages_that_do_not_wait_for_each_other() -> None:
    drawn = charts.split_arms(findings())
    assert list(drawn) == list(PAGES)
    assert all(arm.threads == 1 and arm.app_cpu_ns == 0 for arms in drawn.values() for arm in arms)


def test_what_was_not_swept_is_no_curve() -> None:
    assert {choice.threads for choice in findings().headline_levels()} == {1, 4}
    assert {choice.threads for choice in findings().swept_levels()} == {4}
    unswept = tuple(choice for choice in findings().choices if not choice.app_cpu_ns)
    assert any("against the application's CPU" in title for title in titles(summary()))
    found = titles(changed(choices=unswept, crossings=()))
    assert "One machine or two?" in found and not any("against the application's CPU" in title for title in found)


def test_what_is_missing_leaves_no_hole() -> None:
    model = PageModel(arms=0, mean_error=None, worst_error=None, worst_arm=None, within_bar=None)
    bare = tuple(
        arm.model_copy(update={"turns": (), "predicted_p50_ms": None, "predicted_error": None, "busy": {}})
        for arm in findings().arms
        if arm.application == "php" and arm.machines == 1
    )
    nothing = {"choices": (), "crossings": (), "model": model, "published": (), "scripts": {}, "sentences": ()}
    for arms in (bare, ()):
        found = changed(arms=arms, **nothing)
        texts = [terminal.render(made(found), 80, details=True), markdown.render(made(found))]
        texts += [
            report_csv.render(made(found)),
            re.sub(r"<style>.*?</style>", "", html.render(made(found)), flags=re.S),
        ]
        assert all(text and "None" not in text for text in texts)
        assert json.render(found) and "No arm has a prediction" in texts[0]


def test_routes_are_told_apart_in_tables_charts_and_cards() -> None:
    far = with_a_longer_link()
    names = {
        labels.where(arm, findings_of(far, PageFindings))
        for arm in findings_of(far, PageFindings).arms
        if arm.machines == 2
    }
    assert names == {"two, network 0.2ms", "two, network 1ms"}
    table = report.choices_table(findings_of(far, PageFindings).headline_levels())
    flips = report.crossings_table(findings_of(far, PageFindings).headline_crossings())
    assert table is not None and flips is not None
    assert {"heavy, 4 in flight, network 0.2ms", "heavy, 4 in flight, network 1ms"} <= {r[0].text for r in table.rows}
    assert len({row[0].text for row in flips.rows}) == len(flips.rows) == 4
    assert [found.rtt_ns for found in findings_of(far, PageFindings).headline_crossings()] == [200_000, FAR_NS] * 2
    assert "(network 0.2ms)" in report.cards(findings_of(far, PageFindings))[0].meaning
    colours = charts.path_colours(findings_of(far, PageFindings))
    assert len(set(colours.values())) == len(colours) == 4
    assert colours["one, sockets"] == charts.path_colours(findings())["one, sockets"]


def test_shares_are_short_and_a_few_are_not_none() -> None:
    shares = [labels.share_of_pages(value) for value in (0, 0.0004, 0.0123, 0.5, 0.9999, 1)]
    assert shares == ["0", "< 0.1 %", "1.2 %", "50 %", "99 %", "100 %"]


def test_the_emulators_cpu_is_in_no_sum_and_is_named() -> None:
    two = next(arm for arm in findings().arms if arm.machines == 2)
    assert two.cpu_ms["link"] > 0
    assert two.path_cpu_ms == pytest.approx(sum(two.cpu_ms.values()) - two.cpu_ms["link"])
    (said,) = (line for line in report._limits(summary(), findings()) if line.startswith("Both machines"))
    assert f"{max(arm.emulator_cpus for arm in findings().arms):.2f} of 2" in said


def test_records_have_every_arm_and_the_comparison_on_the_line_of_two_machines() -> None:
    lines = list(csv.DictReader(io.StringIO(report_csv.render(made(summary())))))
    assert len(lines) == len(summary().cells)
    for line in lines:
        if line["role"] != "duplicate":
            assert float(line["pages_per_s"]) > 0 and float(line["mysql_turns"]) == pytest.approx(
                PAGES[line["page"]].turns / 2
            )
            assert bool(line["two_over_one"]) == (line["path"] == "remote")


def test_an_end_that_nothing_closes_is_drawn_to_the_edge_with_an_arrow() -> None:
    """One block has no interval at all, and none is drawn."""
    ends = {"closed": (9.0, 12.0), "right": (9.0, None), "left": (None, 12.0), "one": (None, None)}
    arrows = {}
    for name, (low, high) in ends.items():
        flips = (crossing(measured_ms=Estimate(value=10.0, low=low, high=high)),)
        spec = charts.crossing_chart(findings().model_copy(update={"crossings": flips}), 0.02, 700)
        assert spec is not None
        layers = spec["layer"]
        marks = [layer["mark"] for layer in layers]
        shapes = {mark.get("shape") for mark in marks if mark["type"] == "point"} - {None, "diamond"}
        rows = [row for layer in layers if "high open" in str(layer) for row in layer["data"]["values"]]
        across = layers[-1]["encoding"]["x"]["scale"]["domain"]
        arrows[name] = shapes, any(mark["type"] == "rule" and mark.get("strokeWidth") == 6 for mark in marks)
        assert all((row["low"] == across[0]) == row["low open"] for row in rows)
        assert all((row["high"] == across[1]) == row["high open"] for row in rows)
    arrow = {"right": {"triangle-right"}, "left": {"triangle-left"}}
    assert arrows == {name: (arrow.get(name, set()), name != "one") for name in ends}


def test_one_p50_is_in_all_tables() -> None:
    """That which a prediction is compared with."""
    arm = findings().headline_arms()[0]
    other = with_findings(
        summary(), pages=findings().model_copy(update={"arms": (arm.model_copy(update={"p50_ms": 12345.0}),)})
    )
    first = report.first_table(findings_of(other, PageFindings))
    assert first is not None and "12,345" in first.rows[0][2].text
    latency = report.latency_chart(other, findings_of(other, PageFindings))
    assert latency is not None and latency.data is not None and latency.data.rows[0][1].text == "12,345"
    assert report.page_records(findings_of(other, PageFindings))[arm.arm]["p50_ms"] == "12345"


def test_what_is_counted_is_a_page_whoever_runs_it() -> None:
    """Ratios, rates and CPU: the engine counts its round trips, PHP's pages do not."""
    rates = {arm.arm: arm.pages_per_s.value for arm in findings().arms}
    base = next(cell for cell in summary().cells if cell.role.value == "baseline")
    for cell in summary().cells:
        if cell.arm in rates:
            assert cell.qps.value == pytest.approx(rates[cell.arm])
            assert cell.ratio is not None
            assert cell.ratio.value == pytest.approx(rates[cell.arm] / rates[base.arm], rel=0.02)
            assert (cell.bytes_per_txn.to_client is None) == (cell.factors["application"] == "php")
    engine = next(cell for cell in summary().cells if cell.arm.startswith("socket, heavy, engine, 0ms, 4"))
    assert engine.cpu_ratio is not None and 0.5 < engine.cpu_ratio.value < 1, "as much a page, apart from PHP"


def test_counts_of_pages_in_flight_are_those_of_the_run() -> None:
    arms = tuple(arm.model_copy(update={"threads": {1: 2, 4: 8}[arm.threads]}) for arm in findings().arms)
    found = report.first_table(findings().model_copy(update={"arms": arms, "choices": ()}))
    assert found is not None and ("p50 ms, in", "flight 2, 8") in {(each.head, each.lower) for each in found.columns}
    assert "8 in flight and 2." in found.notes[0]
