"""The pages of the plans with several factors in a real browser: they open from a file, ask for nothing, complain of nothing, and
their sliders move what they should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit import made_replication
from tests.unit.browser import Page, browser, program
from tests.unit.rendered import html as html
from tests.unit.synthetic_findings import PLANS

pytestmark = pytest.mark.skipif(
    program() is None, reason="NO BROWSER: pages and their sliders are not tested; install chromium"
)

EVERY = PLANS | made_replication.PLANS
SHOWN = "document.querySelector('[data-shown=\"{}\"]').textContent"
DIAMOND = "document.querySelector('#what-if .measured')"
LABEL = "document.querySelector('#what-if text.label').textContent"
MOVE = """(() => {{ const slider = document.querySelector('[name="{0}"]'); slider.value = {1};
slider.dispatchEvent(new Event("input", {{ bubbles: true }})); }})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, summary in EVERY.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(html.render(summary()), "utf-8")
    return made


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.mark.parametrize("plan", EVERY)
def test_a_page_opens_from_its_file_and_asks_for_nothing(plan: str, pages: dict[str, Path], page: Page) -> None:
    page.open(pages[plan])
    assert page.value("document.querySelector('.verdict').textContent.length") > 20
    assert page.complaints() == []
    assert page.requests() == [pages[plan].as_uri()]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("plan", EVERY)
def test_nothing_is_wider_than_the_screen(plan: str, width: int, pages: dict[str, Path], page: Page) -> None:
    page.open(pages[plan], width)
    assert page.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("plan", EVERY)
def test_the_first_screen_has_verdict_and_chart(plan: str, pages: dict[str, Path], page: Page) -> None:
    page.open(pages[plan])
    assert page.value("document.querySelector('.verdict').getBoundingClientRect().bottom") < 300
    assert page.value("document.querySelector('figure svg.wide').getBoundingClientRect().bottom") < 900


def test_sliders_move_the_number_and_the_point_and_leave_the_measured_one(pages: dict[str, Path], page: Page) -> None:
    page.open(pages["bandwidth"])
    place = "['cx', 'cy'].map((name) => document.querySelector('#what-if .chosen').getAttribute(name)).join()"
    measured = f"parseFloat({DIAMOND}.getAttribute('y'))"
    start = (page.value(SHOWN.format("tps")), page.value(place))
    across = page.value(f"{DIAMOND}.getAttribute('x')")
    page.value(MOVE.format("threads", 0))
    alone = (page.value(SHOWN.format("tps")), page.value(place))
    assert page.value(LABEL) == "measured 92.6/s" and page.value(f"{DIAMOND}.getAttribute('x')") == across
    assert page.value(measured) < page.value(
        "parseFloat(document.querySelector('#what-if .chosen').getAttribute('cy'))"
    )
    assert page.value(SHOWN.format("threads")) == "1"
    assert alone[0] != start[0] and alone[1] != start[1]
    page.value(MOVE.format("threads", 900) + ";" + MOVE.format("rate_bps", 0))
    slow = page.value(SHOWN.format("tps"))
    assert float(slow.replace(",", "")) < float(start[0].replace(",", "")) / 10, "10 Mb/s carries a hundredth"
    page.value("document.querySelector('[name=\"reset\"]').click()")
    assert (page.value(SHOWN.format("tps")), page.value(place)) == start
    assert page.complaints() == []


def test_without_scripts_the_settings_stand_in_a_table(pages: dict[str, Path], page: Page) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.open(pages["bandwidth"])
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    text = pages["bandwidth"].read_text("utf-8")
    assert '<form id="what-if" hidden' in text and '<div class="worked"><details open>' in text
    assert page.complaints() == []


def test_switches_change_the_number(pages: dict[str, Path], page: Page) -> None:
    page.open(pages["bandwidth"])
    start = page.value(SHOWN.format("tps"))
    page.value(MOVE.format("compression", '"zstd-1"'))
    assert page.value(SHOWN.format("tps")) != start
    page.value("document.querySelector('[name=\"reset\"]').click()")
    page.value(MOVE.format("threads", 0))
    lone = page.value(SHOWN.format("tps"))
    page.value("document.querySelector('[name=\"connect_each\"]').click()")
    alone = page.value(SHOWN.format("tps"))
    assert float(alone.replace(",", "")) < float(lone.replace(",", "")), "a connect costs"
    page.value("document.querySelector('[name=\"tls\"]').click()")
    assert float(page.value(SHOWN.format("tps")).replace(",", "")) < float(alone.replace(",", "")), "and TLS adds to it"
    assert page.complaints() == []


def test_what_was_not_measured_is_not_offered(tmp_path: Path, page: Page) -> None:
    """Neither box where nothing is known; each but not both where only TLS's part of a connect is not."""
    summary = PLANS["bandwidth"]()
    assert summary.what_if is not None

    def boxes(**unknown: None) -> list[bool]:
        path = tmp_path / "page.html"
        what_if = summary.what_if.model_copy(update=unknown) if summary.what_if else None
        path.write_text(html.render(summary.model_copy(update={"what_if": what_if})), "utf-8")
        page.open(path)
        return [
            bool(page.value(f"document.querySelector('[name=\"{name}\"]').disabled"))
            for name in ("tls", "connect_each")
        ]

    assert boxes() == [False, False]
    assert boxes(tls_byte_s=None, connect_turns=None) == [True, True]
    assert boxes(tls_connect_turns=None) == [False, False]
    page.value("document.querySelector('[name=\"tls\"]').click()")
    assert page.value("document.querySelector('[name=\"connect_each\"]').disabled")
    page.value("document.querySelector('[name=\"tls\"]').click()")
    assert not page.value("document.querySelector('[name=\"connect_each\"]').disabled")
    assert page.complaints() == []


def test_a_measured_round_trip_of_nothing_is_where_the_page_starts(tmp_path: Path, page: Page) -> None:
    summary = PLANS["bandwidth"]()
    assert summary.what_if is not None
    path = tmp_path / "page.html"
    first, *others = summary.what_if.worked
    here = first.model_copy(update={"settings": first.settings.model_copy(update={"rtt_s": 0.0})})
    what_if = summary.what_if.model_copy(update={"rtt_s": 0.0, "worked": (here, *others)})
    path.write_text(html.render(summary.model_copy(update={"what_if": what_if})), "utf-8")
    page.open(path)
    assert page.value(SHOWN.format("rtt_s")) == "0 µs"
    page.value(MOVE.format("rtt_s", 500))
    assert page.value(SHOWN.format("rtt_s")) != "0 µs"
    assert page.complaints() == []


def test_the_page_starts_at_the_measured_point(pages: dict[str, Path], page: Page) -> None:
    page.open(pages["bandwidth"])
    assert page.value(SHOWN.format("rate_bps")) == "1 Gb/s"
    assert page.value(SHOWN.format("rtt_s")) == "200 µs"
    assert page.value(SHOWN.format("threads")) == "64"
    assert page.value(SHOWN.format("ratio")).startswith("x 1.00 of the model's "), "not of what was measured"
