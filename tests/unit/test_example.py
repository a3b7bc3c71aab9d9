"""The example run that comes with the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from howfar.cli.main import cli
from howfar.cli.report import _EXAMPLES
from howfar.report.drawing import NOT_DRAWN

MAX_BYTES = 500_000


def shown(*options: str) -> str:
    done = CliRunner().invoke(cli, ["report", "--example", *options], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_the_example_ends_with_an_answer() -> None:
    """The example shows what a run finds: resolved differences, and no warning of too few blocks."""
    found = json.loads(shown("paths", "--json"))
    assert {"slower", "faster"} & {cell["resolution"] for cell in found["cells"]}
    assert found["complete_blocks"] >= 4
    lines = shown().splitlines()
    assert lines[0].startswith("What do TCP and a second machine cost?")
    assert found["verdict"][:60] in " ".join(lines[-20:])
    assert lines[-1] == "Measure it here: howfar run paths"


def test_the_page_of_the_example_lies_in_this_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown("--html") == "howfar-paths-example.html\n"
    assert "<svg" in (tmp_path / "howfar-paths-example.html").read_text()


def test_without_what_draws_charts_the_page_says_so_and_keeps_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown("--html")
    drawn = Path("howfar-paths-example.html").read_text()
    monkeypatch.setattr("howfar.report.html.can_draw", lambda: False)
    done = CliRunner().invoke(cli, ["report", "--example", "--html"], catch_exceptions=False)
    page = Path("howfar-paths-example.html").read_text()
    assert "has no charts" in done.output and "extra `report`" in done.output
    assert "<svg" not in page and page.count(NOT_DRAWN) == drawn.count("<figure>")
    assert page.count("<table") == drawn.count("<table")


def test_examples_are_small() -> None:
    sizes = {each.name: len(each.read_bytes()) for each in _EXAMPLES.iterdir()}
    assert "paths.howfar.xz" in sizes and max(sizes.values()) <= MAX_BYTES
