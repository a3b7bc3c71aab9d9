"""Reports against golden files that a human has read. `HOWFAR_GOLDEN=write pytest tests/unit/test_report_golden.py` writes them
anew; read the difference before committing it."""

from __future__ import annotations

import json as plain_json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.report_page import report_page
from tests.unit.rendered import GOLDEN, is_golden
from tests.unit.rendered import csv as csv
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.answer import NOTHING_COMPARED
from howfar.analysis.summary import Summary
from howfar.experiments.registry import schema, summarise
from howfar.report.text import as_json
from howfar.store.records import StopReason, TrialStatus

ROOT = Path(__file__).parents[2]
SCHEMA, SCHEMA_PAGE = ROOT / "schema" / "report.json", ROOT / "docs" / "report-json.md"


@cache
def clear() -> Summary:
    """Four paths, quiet machine: everything resolved."""
    return summarise(synthetic_run(blocks=8, samples=120))


@cache
def murky() -> Summary:
    """A noisy machine, few blocks, one path that never worked, ended at the time budget."""
    run = synthetic_run(blocks=5, scatter=0.25, seed=5, samples=60)
    trials = tuple(
        t
        if t.arm != "remote"
        else t.model_copy(
            update={"measured": None, "status": TrialStatus.VOID, "void_reason": "the server closed", "violations": ()}
        )
        for t in run.trials
    )
    return summarise(run.model_copy(update={"trials": trials, "stop": StopReason.TIME}))


FORMATS: dict[str, Callable[[], str]] = {
    "terminal-80.txt": lambda: terminal.render(clear(), 80),
    "terminal-80-murky.txt": lambda: terminal.render(murky(), 80),
    "report.md": lambda: markdown.render(clear()),
    "report.csv": lambda: csv.render(clear()),
    "report.json": lambda: as_json(clear()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_golden(name: str) -> None:
    is_golden(GOLDEN / name, FORMATS[name]())


def test_the_published_schema_and_its_page_are_current() -> None:
    is_golden(SCHEMA, plain_json.dumps(schema(), indent=2, ensure_ascii=False) + "\n")
    is_golden(SCHEMA_PAGE, report_page(schema()))


def test_colour_adds_nothing_but_colour() -> None:
    coloured = terminal.render(clear(), 80, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == terminal.render(clear(), 80)


def test_ascii_is_ascii() -> None:
    terminal.render(murky(), 80, unicode=False).encode("ascii")


def test_a_run_without_trials_renders_everywhere() -> None:
    empty = summarise(synthetic_run(blocks=0))
    assert empty.answer.findings == (NOTHING_COMPARED,)
    for text in (terminal.render(empty, 400), markdown.render(empty)):
        assert empty.answer.sentence in text
    assert csv.render(empty) == ""
