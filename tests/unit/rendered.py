"""A summary in each format, as the commands show it; and its findings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from howfar.analysis.answer import MAX_WORDS
from howfar.analysis.summary import Summary
from howfar.experiments.registry import render_as, render_in_terminal
from howfar.report.terminal import to_ascii
from howfar.report.texts import SCREEN
from howfar.stats.estimate import Part

F = TypeVar("F", bound=Part)
GOLDEN = Path(__file__).parents[1] / "golden"


def is_golden(path: Path, text: str) -> None:
    """Assert that the text equals the golden file, which a person has read."""
    if os.environ.get("HOWFAR_GOLDEN") == "write":
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8"), f"{path.name} changed; HOWFAR_GOLDEN=write writes it again: read it"


def is_short(text: str) -> None:
    """Assert that a sentence of an answer has at most `MAX_WORDS` words and no brackets."""
    assert 1 <= len(text.split()) <= MAX_WORDS and not set("()[]{}") & set(text), text


def charts_have_figures(page: str) -> bool:
    """Whether each chart of a page has its name and its figures: those of the first ones follow the main table, in its order."""
    charts = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    without = [chart for chart in charts if "<table" not in chart]
    later = re.findall(f"<summary>{SCREEN['figures']}</summary>.*?<table", page, re.DOTALL)
    return (
        without == charts[: len(without)] and len(later) == len(without) and all("<title>" in each for each in charts)
    )


def _in_terminal(
    summary: Summary, width: int = 80, colour: bool = False, unicode: bool = True, details: bool = True
) -> str:
    return render_in_terminal(summary, width, colour, unicode, details)


@dataclass(frozen=True)
class Format:
    render: Callable[[Summary], str]


@dataclass(frozen=True)
class Terminal:
    render: Callable[..., str]
    to_ascii: Callable[[str], str]


html, markdown, csv = (Format(partial(render_as, form=form)) for form in ("html", "md", "csv"))
terminal = Terminal(_in_terminal, to_ascii)


def findings_of(summary: Summary, kind: type[F]) -> F:
    return summary.require_findings(kind)


def with_findings(summary: Summary, **changed: Part) -> Summary:
    return summary.model_copy(update={"findings": {**summary.findings, **changed}})
