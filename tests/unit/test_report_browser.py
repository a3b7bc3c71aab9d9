"""HTML reports in a real browser: they open from a file, fetch nothing, log no errors and fit the screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit import made_replication
from tests.unit.browser import Page, browser, program
from tests.unit.rendered import html as html
from tests.unit.synthetic_findings import PLANS

pytestmark = pytest.mark.skipif(program() is None, reason="NO BROWSER: pages are not tested; install chromium")

EVERY = PLANS | made_replication.PLANS


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


def test_print_opens_what_is_folded(pages: dict[str, Path], page: Page) -> None:
    page.open(pages[next(iter(EVERY))])
    hidden = (
        "[...document.querySelectorAll('details:not([open])')].filter("
        "each => each.getBoundingClientRect().height <= each.querySelector('summary').getBoundingClientRect().height + 1"
        ").length"
    )
    assert page.value(hidden) > 0
    page.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert page.value(hidden) == 0
    finally:
        page.call("Emulation.setEmulatedMedia", media="")
