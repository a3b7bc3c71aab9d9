"""The first screen states what was measured, and never more than is known."""

from __future__ import annotations

import re

import pytest
from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_run import PATHS, synthetic_run

from howfar.analysis.summary import Summary
from howfar.experiments.registry import summarise
from howfar.report.frame import setup_line
from howfar.report.sections import ratio_cards
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, half_width_text, share_text
from howfar.store.records import Run

SETUP = (
    "2 connections; client and server on different CPUs, which emulators and other programs "
    "may use too (placement isolated); "
    "link 1gbit, RTT 0.2ms (measured 0.203ms at rest)"
)


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run(blocks=8, samples=20)


def with_levels(run: Run, arm: str, **levels: int | str) -> Summary:
    arms = tuple(
        found.model_copy(update={"factors": {**found.factors, **levels}}) if found.name == arm else found
        for found in run.info.arms
    )
    return summarise(run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})}))


def test_connections_placement_and_link_stand_on_every_first_screen(run: Run) -> None:
    summary = summarise(run)
    assert setup_line(summary) == SETUP
    for page in (terminal.render(summary, 100), markdown.render(summary), html.render(summary)):
        assert SETUP.lower() in " ".join(re.sub("<[^>]*>", "", page).split()).lower()


def test_what_varies_is_listed(run: Run) -> None:
    assert "2 or 8 connections" in setup_line(with_levels(run, "tcp", threads=8))
    assert "placement isolated or machines" in setup_line(with_levels(run, "tcp", placement="machines"))
    far = setup_line(with_levels(run, "forwarded-socket", rtt_ns=10_000_000))
    assert "RTT 0.2ms or 10ms" in far and "measured" not in far


def test_without_a_link_none_is_claimed() -> None:
    line = setup_line(summarise(synthetic_run(blocks=2, samples=5, models=PATHS[:3])))
    assert line.endswith("no path over a link")
    assert setup_line(summarise(synthetic_run(blocks=0))) == ""


def card(summary: Summary, low: float | None, high: float | None) -> str:
    cells = tuple(
        cell.model_copy(
            update={"ratio": Estimate(value=0.48, low=low, high=high), "resolution": Resolution.NOT_RESOLVED}
        )
        if cell.arm == "tcp"
        else cell
        for cell in summary.cells
    )
    cards = ratio_cards(summary.model_copy(update={"cells": cells}))
    return next(card.meaning for card in cards if card.label == "tcp")


def test_a_card_says_how_much_an_unresolved_ratio_may_be(run: Run) -> None:
    summary = summarise(run)
    assert "not resolved, anything from 0.19 to 1.24" in card(summary, 0.19, 1.24)
    assert "anything from 0.46 to 0.50; within noise, or possibly chance in so many comparisons" in card(
        summary, 0.46, 0.50
    )
    assert "too few blocks" in card(summary, None, None)
    assert "a small one" not in html.render(summary)


def test_a_card_gives_the_cpu_with_interval_and_resolution(run: Run) -> None:
    lines = "\n".join(line for card in ratio_cards(summarise(run)) for line in card.lines)
    assert re.search(r"^1\.2\d+ \[1\.2\d*, 1\.2\d*\] times the CPU per query: more$", lines, re.MULTILINE)
    assert re.search(r"^≥ 1\.3\d+ \[1\.3\d*, 1\.3\d*\] times the CPU per query: more$", lines, re.MULTILINE)


def test_widths_beyond_all_sense_are_not_spelt_out() -> None:
    assert half_width_text(0.023) == "±2.3 %"
    assert half_width_text(146.9) == "> ±100 %"
    assert share_text(1.0) == "100.0 %"
    assert share_text(146.9) == "> 100 %"
