"""Recorded runs of every shipped plan: each figure of their reports is the same as when they were recorded.

`tests/data/recorded/` holds run files with the JSON and CSV that were printed when they were measured. Sentences may change. Figures,
counts, intervals and verdicts of closed sets may not, unless CHANGED says why.
"""

from __future__ import annotations

import csv as spreadsheet
import importlib
import io
import json as plain_json
import lzma
import math
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import howfar
from howfar.analysis import cells, plateau, summary
from howfar.cli.main import cli
from howfar.report.terminal import FIRST_SCREEN
from howfar.slices import plan_files
from howfar.stats import intervals

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
NAMES = sorted(path.name.removesuffix(".howfar.xz") for path in RECORDED.glob("*.howfar.xz"))
PLANS = {"aa", "bandwidth", "compression", "crash", "encryption", "fallback", "page", "paths", "replication"}
FAST = {"paths-mariadb", "paths-mysql", "crash-mariadb", "fallback-mysql", "aa-mariadb"}
"""Recorded runs checked with the unit tests; the others, whose models take seconds, are checked with the slow tests."""

WIDTH = 100

CLOSED = {
    "resolution",
    "cpu_resolution",
    "cpu_bound",
    "role",
    "resource",
    "confidence",
    "stop",
    "arm",
    "asked",
    "warnings",
}
"""Keys whose texts are values of a closed set, or names."""

CHANGED: dict[str, str] = {
    r"(/pages)?/(cpu_)?noise_floor": "the limit of the A/A interval farthest from 1, no longer half of its width",
    r"/pages/sentences.*": "made by templates, and none without an answer",
    r"/advice": "a page's round trips are advice only where two machines are slower by a resolved figure",
    r"/cells/(6|11)/cpu_resolution": "that floor is higher where the A/A arm is offset",
    r"/(compression|encryption)/rows/\d+/.*/below_noise": "no interval of the A/A arm, no floor, nothing resolved",
    r"/cells/\d+/published|/\d+/published_(ratio|qps)": "they stand only beside the same transactions, connections and link",
    r"/cells/\d+/cycle/(parts.*|rest_share)|/\d+/cycle_rest_share": "the queues' upper bounds are those of uneven services",
    r"/cells/\d+/limit/(evidence|confidence|divided)": "a CPU's owners are medians over trials, as in the model",
    r"/scaling/curves/\d+/(own|foreign)/(mean|worst|plateau)_error": "points that are right by construction are left out",
    r"/scaling/curves/\d+/foreign/.*": "predicted from the loopback at as many connections, and from no link that was full",
    r"/pages/crossings/\d+/measured_ms": "a crossing where no level is beyond the noise floor is none",
    r"(/.*)?/others_cpus|/warnings": "a crash records no CPU of servers, which were taken for others, and the machine for busy",
    r"/\d+/lost_each": "a field of a table has one value: the least and the most losses of a crash",
    r"/\d+/limit_says": "a table has the limit's id, not a sentence",
    r"/baseline_spread/cpu_per_query": "a trial whose server was killed knows nothing of the CPU of the whole path",
}
"""Patterns of paths such as `pages/choices/.*`, each with the reason why its figures differ; the changelog has it too."""

_CPUS = "what the load could have of the CPUs is without what looked at the trial"
CLOSE: dict[str, tuple[float, str]] = {
    r"/scaling/curves/\d+/own/(points/\d+/.*|knee|ceiling_tps|plateau_tps)": (0.002, _CPUS),
    r"/scaling/curves/\d+/ceilings/\d+/tps": (0.05, _CPUS),
    r"/what_if/(client_cpus|server_cpus|worked/.*)": (0.005, _CPUS),
    r"/what_if/think_s": (0.3, f"{_CPUS}: 2 us of a cycle of 53 ms"),
    r"/compression/rows/\d+/.*": (0.004, _CPUS),
    r"/encryption/rows/\d+/.*/predicted": (0.001, _CPUS),
    r"/pages/.*(predicted|model|curve|half_turns|without_link|error).*|/\d+/(predicted_.*|two_over_one_predicted)": (
        0.03,
        _CPUS,
    ),
}
"""As `CHANGED`, for figures that moved by less than this share."""


@pytest.fixture(autouse=True)
def intervals_of_few_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the rules of the time of recording. Two blocks gave an interval and an answer, and three let an arm rest, where it takes
    four now; and a claim did not allow for the other claims of its run."""
    for module in pkgutil.walk_packages(howfar.__path__, "howfar."):
        if module.name.startswith(("howfar.experiments.", "howfar.report.")):
            importlib.import_module(module.name)  # before the rules change, since some import their values
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith("howfar")]
    remembered = [one for module in loaded for one in vars(module).values() if hasattr(one, "cache_clear")]
    for one in remembered:
        one.cache_clear()
    monkeypatch.setattr(intervals, "MIN_BLOCKS", 2)
    monkeypatch.setattr(plateau, "MIN_BLOCKS", 3)
    monkeypatch.setattr(summary, "MIN_BLOCKS", 2)  # models and thresholds are in a report only if it has an answer
    monkeypatch.setattr(cells, "count_comparisons", lambda table: 1)
    yield
    for one in remembered:
        one.cache_clear()


def unpacked(name: str) -> bytes:
    return lzma.decompress((RECORDED / f"{name}.xz").read_bytes())


def differences(old: Any, new: Any, where: str) -> Iterator[str]:
    """Paths at which figures differ within 12 digits, or by more than CLOSE allows, or are missing. Additions are no difference."""
    if any(re.fullmatch(pattern, where) for pattern in CHANGED):
        return
    if isinstance(old, dict):
        if not isinstance(new, dict):
            yield f"{where}: {old!r:.60} -> {new!r:.60}"
            return
        for key, value in old.items():
            if key in new:
                yield from differences(value, new[key], f"{where}/{key}")
            elif value is not None and not any(re.fullmatch(pattern, f"{where}/{key}") for pattern in CHANGED):
                yield f"{where}/{key}: gone"
    elif isinstance(old, list):
        if not isinstance(new, list) or len(old) != len(new):
            yield f"{where}: {old!r:.60} -> {new!r:.60}"
            return
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{where}/{index}")
    elif not same(old, new, where):
        yield f"{where}: {old!r:.60} -> {new!r:.60}"


def same(old: Any, new: Any, where: str) -> bool:
    if isinstance(old, bool) or old is None:
        return bool(old is new)
    if isinstance(old, int | float):
        return isinstance(new, int | float) and math.isclose(old, new, rel_tol=tolerance(where), abs_tol=0)
    number = as_number(old)
    if number is not None:
        return (found := as_number(new)) is not None and math.isclose(
            number, found, rel_tol=tolerance(where), abs_tol=0
        )
    names = {part for part in where.split("/") if not part.isdigit()}
    return not names & CLOSED or bool(old == new)


def tolerance(where: str) -> float:
    return max((share for pattern, (share, _) in CLOSE.items() if re.fullmatch(pattern, where)), default=1e-12)


def as_number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def test_every_shipped_plan_is_recorded() -> None:
    assert {name.split("-")[0] for name in NAMES} == PLANS & {*plan_files()}
    assert {name.rpartition("-")[2] for name in NAMES} == {"mariadb", "mysql"}


def test_a_figure_that_differs_is_found() -> None:
    old = {"a": [{"value": 1.0, "low": None}], "text": "old words", "role": "baseline", "n": "0.25"}
    assert list(differences(old, {**old, "text": "new words", "more": 1}, "")) == []
    assert len(list(differences(old, {**old, "a": [{"value": 1.0 + 1e-11, "low": None}]}, ""))) == 1
    assert len(list(differences(old, {**old, "role": "contender", "n": "0.26"}, ""))) == 2
    assert list(differences(old, {"a": []}, "")) == [
        "/a: [{'value': 1.0, 'low': None}] -> []",
        "/text: gone",
        "/role: gone",
        "/n: gone",
    ]


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in NAMES])
def test_every_figure_is_as_recorded(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.howfar"
    path.write_bytes(unpacked(f"{name}.howfar"))
    was = plain_json.loads(unpacked(f"{name}.json"))
    assert list(differences(was, plain_json.loads(report(path, "--json")), "")) == []
    assert list(differences(rows(unpacked(f"{name}.csv").decode()), rows(report(path, "--csv")), "")) == []
    screen = report(path)
    if "the run has not ended" in " ".join(screen.split()):
        return  # most of its trials were void, and each cell without a figure says why
    question = 3  # with what was measured, and the empty line
    lines = [
        line for line in screen.splitlines() if not line.startswith("  howfar resume ")
    ]  # a command is never wrapped
    assert len(lines) <= FIRST_SCREEN + question and max(map(len, lines)) <= WIDTH, screen


def report(path: Path, *form: str) -> str:
    done = CliRunner(env={"COLUMNS": str(WIDTH)}).invoke(cli, ["report", str(path), *form], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(text: str) -> list[dict[str, str]]:
    return list(spreadsheet.DictReader(io.StringIO(text)))
