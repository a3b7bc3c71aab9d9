"""Reports of stored runs and recordings, frozen word by word: JSON, first screen, whole terminal report, HTML page, prediction.

Structural work must not change them. Where a change is intended, `HOWFAR_GOLDEN=write pytest tests/unit/test_frozen_reports.py`
writes them again; the changelog says why. Floats are compared to ten significant digits, since the last ones depend on the CPU's
instructions. `tests/data/README.md` says how the runs and recordings were made.
"""

from __future__ import annotations

import json
import lzma
import os
import re
from collections.abc import Iterator
from difflib import unified_diff
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.damage import make_older
from tests.unit.made_recording import costs

from howfar.cli.main import cli
from howfar.experiments import registry
from howfar.recording.changes import find_changes
from howfar.recording.page_costs import cost_pages
from howfar.recording.predict import analyze
from howfar.recording.prediction_report import as_json as prediction_as_json
from howfar.recording.prediction_report import document as prediction_document
from howfar.recording.recording import read
from howfar.recording.slope import Slope
from howfar.recording.slope import document as slope_document
from howfar.report import html, terminal
from howfar.store.records import Run, Trial
from howfar.store.run_file import CHECKSUMS_SINCE, read_run

DATA = Path(__file__).parents[1] / "data"
FROZEN = DATA / "frozen"
RUNS = {
    path.name.removesuffix(".howfar.xz"): path
    for folder in (DATA / "recorded", FROZEN)
    for path in sorted(folder.glob("*.howfar.xz"))
}
"""Run files by name: those that `test_recorded_runs.py` checks too, and further ones."""
RECORDINGS = {path.name.removesuffix(".recording.xz"): path for path in sorted(FROZEN.glob("*.recording.xz"))}
FAST = {"paths-mariadb", "crash-mariadb"}
"""Runs whose reports are checked with the unit tests; those of the others are checked with the slow tests."""
FORMS = {"json": ("--json",), "screen.txt": (), "details.txt": ("--details",), "html": ("--html=page.html",)}
LONG_FLOAT = re.compile(r"(?<![\w-])-?(?:\d+\.\d{6,}(?:e[-+]?\d+)?|\d+(?:\.\d+)?e[-+]?\d+)(?![\w-])")
CLIP = re.compile(r"-clip\d+")
"""Names of a chart's clip paths, which Vega numbers in the order in which a process draws them."""
MAX_DIFF_LINES = 60


def rounded(text: str) -> str:
    """The text with ten significant digits of each long float, and without the numbers of clip paths."""
    return CLIP.sub("-clip", LONG_FLOAT.sub(lambda found: format(float(found.group()), ".10g"), text))


def check_frozen(name: str, text: str) -> None:
    """Compare a text with the stored one. Elements of a page count as lines of their own in the difference that is shown."""
    path, text = FROZEN / f"{name}.xz", rounded(text)
    if os.environ.get("HOWFAR_GOLDEN") == "write":
        path.write_bytes(lzma.compress(text.encode()))
    frozen = lzma.decompress(path.read_bytes()).decode()
    if text != frozen:
        before, after = (each.replace("><", ">\n<").splitlines() for each in (frozen, text))
        difference = islice(unified_diff(before, after, "frozen", "now", n=1, lineterm=""), MAX_DIFF_LINES)
        pytest.fail(
            f"{path.name} differs; HOWFAR_GOLDEN=write writes it again: read the difference\n" + "\n".join(difference)
        )


def unpack(source: Path, folder: Path) -> Path:
    path = folder / source.name.removesuffix(".xz")
    path.write_bytes(lzma.decompress(source.read_bytes()))
    return path


def reports(path: Path) -> Iterator[tuple[str, str]]:
    """All frozen forms of the report that `howfar report` prints or writes in this directory."""
    runner = CliRunner(env={"COLUMNS": "100"})
    for form, options in FORMS.items():
        done = runner.invoke(cli, ["report", path.name, *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        yield form, Path("page.html").read_text("utf-8") if form == "html" else done.stdout


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in RUNS])
def test_reports_are_as_frozen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is analyzed once for all forms."""
    monkeypatch.chdir(tmp_path)
    path = unpack(RUNS[name], tmp_path)
    summary = registry.summarise(read_run(path))
    monkeypatch.setattr(registry, "summarise", lambda run: summary)
    for form, text in reports(path):
        check_frozen(f"{name}.{form}", text)


@pytest.mark.parametrize("name", RECORDINGS)
def test_reports_of_recordings_are_as_frozen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for form, text in reports(unpack(RECORDINGS[name], tmp_path)):
        check_frozen(f"{name}-recording.{form}", text)


@pytest.mark.parametrize("name", RECORDINGS)
def test_predictions_are_as_frozen(name: str, tmp_path: Path) -> None:
    """From made costs of the present path and of a remote one."""
    recording = read(unpack(RECORDINGS[name], tmp_path))
    paths = costs(20, noise=0.02), costs(540, label="remote, RTT 0.5ms", rtt_ns=500_000, noise=0.01, connect_us=560)
    prediction = analyze(recording, *paths)
    costed = cost_pages(recording, *paths)
    changes = find_changes(costed)
    report = prediction_document(prediction, changes, costed)
    check_frozen(f"{name}-prediction.json", json.dumps(prediction_as_json(prediction, changes), indent=2) + "\n")
    check_frozen(f"{name}-prediction.txt", terminal.render(report, 100, details=True))
    check_frozen(f"{name}-prediction.html", html.render(report))


def test_the_report_of_a_slope_is_as_frozen() -> None:
    """The slope that the README shows, with all its observations."""
    slope = Slope.model_validate_json((DATA / "readme" / "slope.json").read_text("utf-8"))
    report = slope_document(slope, "page.php")
    check_frozen("slope.json", slope.model_dump_json(indent=2) + "\n")
    check_frozen("slope.txt", terminal.render(report, 100, details=True))
    check_frozen("slope.html", html.render(report))


UPGRADED = sorted({"key_value-redis"} & RUNS.keys())
"""Runs of the present format with services, a window and the machine's load in each trial. None: this copy has no key-value slice."""


def without_later_columns(run: Run, version: int) -> Run:
    """The run as a file of format `version`, which has no checksums: what later formats added is unknown."""

    def older(trial: Trial) -> Trial:
        found = trial
        if version < 2 and trial.load is not None:
            found = found.model_copy(update={"load": trial.load.model_copy(update={"busy_cpus": None})})
        if version < 5 and trial.measured is not None:
            measured = trial.measured.model_copy(update={"services": (), "told": {}})
            found = found.model_copy(update={"measured": measured})
        if version < 3:
            found = found.model_copy(update={"window": None})
        if version < 4:
            found = found.model_copy(update={"fault": None})
        return found.model_copy(update={"repetition": 0})

    info = run.info if version > 5 else run.info.model_copy(update={"whole_blocks": False})
    return run.model_copy(update={"info": info, "trials": tuple(map(older, run.trials)), "is_verified": False})


@pytest.mark.parametrize("version", range(1, CHECKSUMS_SINCE))
@pytest.mark.parametrize("name", UPGRADED)
def test_an_older_file_says_the_same_without_what_later_formats_added(name: str, version: int, tmp_path: Path) -> None:
    """Its columns are removed from a file of the present format. The stored files of formats 5 and 7 are real ones."""
    path = unpack(RUNS[name], tmp_path)
    expected = without_later_columns(read_run(path), version)
    make_older(path, version)
    assert read_run(path) == expected
    report = registry.render_as(registry.summarise(read_run(path)), "json")
    assert report == registry.render_as(registry.summarise(expected), "json")
