"""Reports of pages: the first screen answers, parts add up, routes are named, and unknown figures leave no gaps."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator

import pytest
from tests.unit.fake_pages import PAGES, page_summary
from tests.unit.rendered import GOLDEN, findings_of, is_golden, with_findings
from tests.unit.test_report_html import is_small_and_whole

from howfar.analysis.answer import not_yet
from howfar.analysis.summary import Summary
from howfar.experiments.page import charts, labels, report
from howfar.experiments.page.findings import Crossing, PageFindings, PageModel
from howfar.experiments.registry import document
from howfar.report import html, terminal
from howfar.report.charts import plain
from howfar.report.document import Block, Chart, Details, Table
from howfar.report.figures import number
from howfar.report.terminal import VISIBLE_LINES
from howfar.report.text import as_csv, as_json, as_markdown
from howfar.stats.estimate import Estimate

FAR_NS = 1_000_000


def findings() -> PageFindings:
    return findings_of(page_summary(), PageFindings)


def changed(**parts: object) -> Summary:
    return with_findings(page_summary(), pages=findings().model_copy(update=parts))


def blocks(of: tuple[Block, ...]) -> Iterator[Block]:
    """All blocks, including those inside details."""
    for block in of:
        yield block
        yield from blocks(block.blocks if isinstance(block, Details) else ())


def titles(of: Summary) -> list[str]:
    return [block.title for block in blocks(document(of).blocks) if isinstance(block, Chart | Details | Table)]


def chart_names(of: Summary) -> set[str]:
    return {block.name for block in blocks(document(of).blocks) if isinstance(block, Chart)}


def crossing(**parts: object) -> Crossing:
    return findings().crossings[0].model_copy(update=parts)


GOLDENS: dict[str, Callable[[], str]] = {
    "terminal-page.txt": lambda: terminal.render(document(page_summary()), 100),
    "page.md": lambda: as_markdown(document(page_summary())),
    "page.csv": lambda: as_csv(document(page_summary())),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str) -> None:
    is_golden(GOLDEN / name, GOLDENS[name]())


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_the_terminal(width: int, unicode: bool) -> None:
    copied = {line for advice in page_summary().advice for line in advice.lines}  # never wrapped, however wide
    for details in (True, False):
        text = terminal.render(document(page_summary()), width, unicode=unicode, details=details)
        assert all(len(line) <= width or line.strip() in copied for line in text.splitlines())


def test_the_last_screen_of_a_terminal_answers() -> None:
    screen = terminal.render(document(page_summary()), 100).splitlines()
    assert len(screen) <= 40
    assert page_summary().answer.sentence[:80] in " ".join(screen[-VISIBLE_LINES:])
    rows = [line for line in screen if re.match(r"(heavy|light): (one|two), ", line)]
    assert len(rows) == 6 and sum(bool(re.search(r"\[[\d.]+, [\d.]+\]", row)) for row in rows) == 4, (
        "but of the sockets"
    )
    assert "What to do" in screen


def test_the_html_is_small_whole_escaped_and_fetches_nothing() -> None:
    evil = "<script>alert(1)</script>"
    arms = tuple(arm.model_copy(update={"page": evil, "arm": evil}) for arm in findings().arms[:3])
    injected = changed(arms=arms, choices=(), crossings=(), scripts={evil: evil}, sentences=(evil,))
    assert "<script" not in html.render(document(injected))
    text = html.render(document(page_summary()))
    is_small_and_whole(text)
    assert "two machines are better" in text and "one machine is better" in text


def test_without_an_answer_measured_values_stay_and_conclusions_do_not() -> None:
    found = page_summary()
    missing = found.model_copy(update={"answer": found.answer.model_copy(update={"findings": (not_yet(3),)})})
    assert chart_names(found) - chart_names(missing) == {"crossing", "prediction"}
    assert set(titles(found)) - set(titles(missing)) >= {
        "The model",
        "Application CPU from which a second machine pays",
    }
    heads = {
        column.head
        for block in blocks(document(missing).blocks)
        if isinstance(block, Table)
        for column in block.columns
    }
    assert "two over one" in heads and "predicted" not in heads


def test_the_first_table_shows_the_cpu_that_a_crossing_refers_to() -> None:
    found = findings()
    choices = {(choice.page, choice.threads): choice.app_cpu_total_ms for choice in reversed(found.headline_levels())}
    table = report.first_table(page_summary(), found)
    assert table is not None
    for arm, row in zip(found.headline_arms(), table.rows, strict=True):
        if arm.path == "socket":
            assert row[-1].text == number(choices[arm.page, arm.threads])


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
    swept, alone = page_summary(), changed(choices=unswept, crossings=())
    assert ["crossing" in chart_names(found) for found in (swept, alone)] == [True, False]


@pytest.mark.parametrize("some", [True, False])
def test_what_is_missing_leaves_no_hole(some: bool) -> None:
    model = PageModel(arms=0, mean_error=None, worst_error=None, worst_arm=None, within_bar=None)
    arms = tuple(
        arm.model_copy(update={"turns": (), "predicted_p50_ms": None, "predicted_error": None, "busy": {}})
        for arm in findings().arms
        if some and arm.application == "php" and arm.machines == 1
    )
    found = changed(arms=arms, choices=(), crossings=(), model=model, published=(), scripts={}, sentences=())
    made = document(found)
    screen = terminal.render(made, 80, details=True)
    page = re.sub(r"<style>.*?</style>", "", html.render(made), flags=re.S)
    assert all(text and "None" not in text for text in (screen, page, as_markdown(made), as_csv(made)))
    assert as_json(found) and "No arm has a prediction" in screen


def test_routes_are_told_apart_in_tables_and_charts() -> None:
    """Everything on two machines occurs twice: the second time on a longer link."""
    far, found = {"path": "remote", "rtt_ns": FAR_NS}, findings()
    twice = found.model_copy(
        update={
            "arms": (
                *found.arms,
                *(a.model_copy(update=far | {"arm": f"{a.arm} far"}) for a in found.arms if a.machines == 2),
            ),
            "choices": (*found.choices, *(choice.model_copy(update=far) for choice in found.choices)),
            "crossings": (*found.crossings, *(each.model_copy(update=far) for each in found.crossings)),
        }
    )
    names = {labels.location_text(arm, twice) for arm in twice.arms if arm.machines == 2}
    assert names == {"two, network 0.2 ms", "two, network 1 ms"}
    table = report.choices_table(twice, twice.headline_levels())
    flips = report.crossings_table(twice.headline_crossings())
    assert table is not None and flips is not None
    assert {"heavy, 4 in flight, network 0.2 ms", "heavy, 4 in flight, network 1 ms"} <= {r[0].text for r in table.rows}
    assert len({row[0].text for row in flips.rows}) == len(flips.rows) == 4
    assert [found.rtt_ns for found in twice.headline_crossings()] == [200_000, FAR_NS] * 2
    colours = charts.path_colours(twice)
    assert len(set(colours.values())) == len(colours) == 4
    assert colours["one, sockets"] == charts.path_colours(findings())["one, sockets"]


def test_shares_are_short_and_a_few_are_not_none() -> None:
    shares = [labels.share_of_pages(value) for value in (0, 0.0004, 0.0123, 0.5, 0.9999, 1)]
    assert shares == ["0", "< 0.1 %", "1.2 %", "50 %", "99 %", "100 %"]


def test_the_emulators_cpu_is_in_no_sum_and_is_named() -> None:
    two = next(arm for arm in findings().arms if arm.machines == 2)
    assert two.cpu_ms["link"] > 0
    assert two.path_cpu_ms == pytest.approx(sum(two.cpu_ms.values()) - two.cpu_ms["link"])
    most = max(arm.emulator_cpus for arm in findings().arms)
    assert f"{most:.2f} of 2" in " ".join(report._limits(page_summary(), findings()))


def test_records_have_every_arm_and_the_comparison_on_the_line_of_two_machines() -> None:
    lines = list(csv.DictReader(io.StringIO(GOLDENS["page.csv"]())))
    assert len(lines) == len(page_summary().cells)
    for line in (line for line in lines if line["role"] != "duplicate"):
        assert float(line["pages_per_s"]) > 0
        assert float(line["mysql_turns"]) == pytest.approx(PAGES[line["page"]].round_trips / 2)
        assert bool(line["two_over_one"]) == (line["path"] == "remote")


@pytest.mark.parametrize(
    ("low", "high", "arrow"),
    [(9.0, 12.0, set()), (9.0, None, {"triangle-right"}), (None, 12.0, {"triangle-left"}), (None, None, set())],
)
def test_an_end_that_nothing_closes_is_drawn_to_the_edge_with_an_arrow(
    low: float | None, high: float | None, arrow: set[str]
) -> None:
    """One block has no interval at all, and none is drawn."""
    flips = (crossing(measured_ms=Estimate(value=10.0, low=low, high=high)),)
    layers = plain(charts.crossing_chart(findings().model_copy(update={"crossings": flips}), 700))["layer"]
    marks = [layer["mark"] for layer in layers]
    assert {mark.get("shape") for mark in marks if mark["type"] == "point"} - {None, "diamond"} == arrow
    drawn = any(mark["type"] == "rule" and mark.get("strokeWidth") == 6 for mark in marks)
    assert drawn == (low is not None or high is not None)
    across = layers[-1]["encoding"]["x"]["scale"]["domain"]
    for row in (row for layer in layers for row in layer["data"]["values"] if "high open" in row):
        assert ((row["low"] == across[0]), (row["high"] == across[1])) == (row["low open"], row["high open"])


def test_one_p50_is_in_all_tables() -> None:
    """It is the p50 with which a prediction is compared."""
    arm = findings().headline_arms()[0]
    other = changed(arms=(arm.model_copy(update={"p50_ms": 12345.0}),))
    found = findings_of(other, PageFindings)
    first, latency = report.first_table(other, found), report.latency_chart(other, found)
    assert first is not None and "12,345" in first.rows[0][3].text
    assert latency is not None and latency.data is not None and latency.data.rows[0][1].text == "12,345"
    assert report.page_records(found)[arm.arm]["p50_ms"] == "12345"


def test_what_is_counted_is_a_page_whoever_runs_it() -> None:
    """Ratios, rates and CPU are per page, although the engine counts its round trips and PHP's pages do not."""
    rates = {arm.arm: arm.pages_per_s.value for arm in findings().arms}
    cells = [cell for cell in page_summary().cells if cell.arm in rates]
    base = next(cell for cell in cells if cell.role.value == "baseline")
    for cell in cells:
        assert cell.qps.value == pytest.approx(rates[cell.arm])
        assert cell.ratio is not None
        assert cell.ratio.value == pytest.approx(rates[cell.arm] / rates[base.arm], rel=0.02)
        assert (cell.bytes_per_txn.to_client is None) == (cell.factors["application"] == "php")
    engine = next(cell for cell in cells if cell.arm.startswith("socket, heavy, engine, 0ms, 4"))
    assert engine.cpu_ratio is not None and 0.5 < engine.cpu_ratio.value < 1, "as much a page, apart from PHP"


def test_counts_of_pages_in_flight_are_those_of_the_run() -> None:
    arms = tuple(arm.model_copy(update={"threads": {1: 2, 4: 8}[arm.threads]}) for arm in findings().arms)
    found = report.first_table(page_summary(), findings().model_copy(update={"arms": arms, "choices": ()}))
    assert found is not None and ("p50 ms at", "2, 8") in {(each.head, each.lower) for each in found.columns}
