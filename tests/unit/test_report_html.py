"""The HTML page: one file, nothing fetched, everything escaped, every chart named and with its figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from tests.made import build, with_receipt
from tests.unit.rendered import charts_have_figures
from tests.unit.rendered import html as html
from tests.unit.synthetic_run import synthetic_run

from howfar.contract.environment import RunEnvironment
from howfar.contract.server_receipt import SessionReceipt
from howfar.experiments.registry import summarise
from howfar.report.texts import SCREEN

VOID_TAGS = {"meta", "br", "hr", "img", "input", "link"}
MAX_PAGE_BYTES = 400_000


class Balance(HTMLParser):
    """Fails on a closing tag that does not match the tag opened last."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


def is_small_and_whole(page: str) -> None:
    """Assert that the page is small and well formed, has each id once, and fetches and runs nothing."""
    assert len(page.encode()) < MAX_PAGE_BYTES
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert not re.search(
        r"<(script|link|img|iframe|object|embed)\b|(src|href)\s*=\s*[\"'](?!#)|url\((?!#)|@import", page
    )
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.fixture(scope="module")
def page() -> str:
    return html.render(summarise(synthetic_run(blocks=8, samples=120)))


def test_it_is_one_small_file_that_fetches_nothing(page: str) -> None:
    is_small_and_whole(page)


def test_it_is_well_formed(page: str) -> None:
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert balance.seen.count("svg") == 10, "five charts, each wide and narrow"
    assert balance.seen.count("figure") == 5


def test_every_chart_has_a_name_and_a_table(page: str) -> None:
    for svg in re.findall(r"<svg[^>]*>", page):
        assert 'role="img"' in svg and 'aria-label="' in svg
    assert charts_have_figures(page)


def test_the_answer_comes_first(page: str) -> None:
    places = [
        page.index(text)
        for text in (
            'class="verdict"',
            "<figure>",
            "What to do",
            '<table class="main">',
            SCREEN["figures"],
            "How it was measured",
            "Receipts",
            "Repeat this run",
        )
    ]
    assert places == sorted(places)


def test_ids_are_unique(page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_what_comes_from_data_is_escaped() -> None:
    run = synthetic_run(blocks=2, samples=10)
    evil = "<script>alert(1)</script>"
    environment = RunEnvironment.model_validate({"cpu_model": evil, evil: {"x": evil}})
    info = run.info.model_copy(update={"environment": environment, "server_version": evil, "command": (evil,)})
    trials = tuple(with_receipt(t, session=build(SessionReceipt, peer_address=evil)) for t in run.trials)
    assert "<script" not in html.render(summarise(run.model_copy(update={"info": info, "trials": trials})))


@pytest.mark.parametrize("blocks", [0, 1])
def test_little_data_makes_a_page_too(blocks: int) -> None:
    balance = Balance()
    balance.feed(html.render(summarise(synthetic_run(blocks=blocks, samples=5))))
    assert balance.open == []


def test_selective_voiding_is_admitted() -> None:
    run = synthetic_run(blocks=2, samples=10, void_every=3)
    late = "the link to client was late by 1ms (p99.9, allowed 0.1ms): the machine was too busy, or the emulator was stopped"
    trials = tuple(
        t if t.void_reason is None else t.model_copy(update={"void_reason": late, "violations": ()}) for t in run.trials
    )
    assert "can be void for more reasons" in html.render(summarise(run.model_copy(update={"trials": trials})))
