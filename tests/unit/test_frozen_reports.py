"""Reports of recorded runs, frozen word by word: JSON, first screen, whole terminal report, HTML page.

Structural work must not change them. Where a change is intended, `HOWFAR_GOLDEN=write pytest tests/unit/test_frozen_reports.py`
writes them again; the changelog says why. Floats are compared to ten significant digits, since the last ones depend on the CPU's
instructions.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from howfar.cli.main import cli

DATA = Path(__file__).parents[1] / "data"
FROZEN = DATA / "frozen"
RUNS = {
    path.name.removesuffix(".howfar.xz"): path
    for folder in (DATA / "recorded", FROZEN)
    for path in sorted(folder.glob("*.howfar.xz"))
}
"""Run files by name: those that `test_recorded_runs.py` checks too, and further ones."""
FAST = {"paths-mariadb", "crash-mariadb"}
"""Runs whose reports are checked with the unit tests; those of the others are checked with the slow tests."""
FORMS = {"json": ("--json",), "screen.txt": (), "details.txt": ("--details",)}
LONG_FLOAT = re.compile(r"(?<![\w-])-?(?:\d+\.\d{6,}(?:e[-+]?\d+)?|\d+(?:\.\d+)?e[-+]?\d+)(?![\w-])")


CLIP = re.compile(r"-clip\d+")
"""Names of a chart's clip paths, which Vega numbers in the order in which a process draws them."""


def rounded(text: str) -> str:
    """The text with ten significant digits of each long float, and without the numbers of clip paths."""
    return CLIP.sub("-clip", LONG_FLOAT.sub(lambda found: format(float(found.group()), ".10g"), text))


def reports(name: str, folder: Path) -> dict[str, str]:
    """All frozen forms of a run's report; of the HTML page, only its digest."""
    path = folder / f"{name}.howfar"
    path.write_bytes(lzma.decompress(RUNS[name].read_bytes()))
    runner = CliRunner(env={"COLUMNS": "100"})
    found: dict[str, str] = {}
    for form, options in FORMS.items():
        done = runner.invoke(cli, ["report", path.name, *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        found[form] = rounded(done.stdout)
    page = folder / "page.html"
    done = runner.invoke(cli, ["report", path.name, f"--html={page}"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found["html.sha256"] = hashlib.sha256(rounded(page.read_text("utf-8")).encode()).hexdigest() + "\n"
    return found


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in RUNS])
def test_reports_are_as_frozen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for form, text in reports(name, tmp_path).items():
        path = FROZEN / f"{name}.{form}.xz" if form != "html.sha256" else FROZEN / f"{name}.{form}"
        if os.environ.get("HOWFAR_GOLDEN") == "write":
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())
        stored = path.read_bytes()
        frozen = (lzma.decompress(stored) if path.suffix == ".xz" else stored).decode()
        assert text == frozen, f"{path.name} differs; HOWFAR_GOLDEN=write writes it again: read the difference"
