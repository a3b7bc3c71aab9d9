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
from howfar.stats.intervals import half_width_text, share_text
from howfar.store.records import Run

SETUP = (
    "2 connections; client and server on different CPUs, which emulators and other programs "
    "may use too (placement isolated); "
    "link 1gbit, RTT 0.2ms (measured 0.203ms unloaded)"
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


def test_widths_beyond_all_sense_are_not_spelt_out() -> None:
    assert half_width_text(0.023) == "±2.3 %"
    assert half_width_text(146.9) == "> ±100 %"
    assert share_text(1.0) == "100.0 %"
    assert share_text(146.9) == "> 100 %"
