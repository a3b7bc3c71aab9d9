"""The README shows what the commands really print: the lines of its examples are lines of the output, in the same order.

The measurement and the slope are kept in `tests/data/readme`, as `--json` gave them; the report is that of the example run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from howfar.cli.report import report
from howfar.distance.record import Distance
from howfar.distance.screen import render
from howfar.recording.slope import Slope, document
from howfar.report import terminal

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests/data/readme"
README = (ROOT / "README.md").read_text("utf-8")
LINES_MAX, COLUMNS_MAX = 110, 100


def _slope() -> str:
    found = Slope.model_validate_json((KEPT / "slope.json").read_text())
    return terminal.render(document(found, "python"), 100, colour=False)


def _report() -> str:
    done = CliRunner().invoke(report, ["--example"], env={"COLUMNS": "100"}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


PRINTED: dict[str, Callable[[], str]] = {
    "howfar --env": lambda: render(Distance.model_validate_json((KEPT / "distance.json").read_text())),
    "howfar report --example": _report,
    "howfar slope": _slope,
}


@pytest.mark.parametrize("command", PRINTED)
def test_an_example_of_the_readme_is_what_the_command_prints(command: str) -> None:
    blocks = re.findall(r"```text\n\$ (.*?)\n(.*?)```", README, re.DOTALL)
    shown = next(text for words, text in blocks if words.startswith(command))
    printed = iter([line.rstrip() for line in PRINTED[command]().splitlines()])
    for line in shown.splitlines():
        assert line in ("…", "") or line in printed, f"the command does not print, there: {line}"


def test_every_example_of_the_readme_is_compared() -> None:
    words = re.findall(r"```text\n\$ (.*)\n", README)
    assert len(words) == len(PRINTED) and all(any(one.startswith(known) for known in PRINTED) for one in words)


def test_the_readme_is_a_page() -> None:
    lines = README.splitlines()
    assert len(lines) <= LINES_MAX and max(map(len, lines)) <= COLUMNS_MAX
