"""`howfar resume` with more time, and how the program names itself."""

from __future__ import annotations

import json
import shlex
import sqlite3
from pathlib import Path

import pytest
from tests.unit.damage import make_older
from tests.unit.test_cli import Howfar, Lab, howfar, laboratory

from howfar.cli.screen import as_called, program
from howfar.store.records import StopReason
from howfar.store.run_file import read_run

__all__ = ["howfar", "laboratory"]  # fixtures

BUDGET = ("--time-budget", "160s")


def test_a_run_that_ran_out_of_time_offers_what_goes_on(laboratory: Lab, howfar: Howfar, tmp_path: Path) -> None:
    code, out, err = howfar("run", "--quick", *BUDGET, "--threads", "4", "--out", "a.howfar")
    assert code == 0, err
    assert "Narrower intervals: howfar resume a.howfar --time-budget 10min\n" in out
    assert out.endswith("The full plan:      howfar run paths --full --threads 4\n"), "neither the budget nor the seed"
    first = len(read_run(tmp_path / "a.howfar").trials)
    code, out, err = howfar("resume", "a.howfar")
    assert code == 0
    assert "the run is complete (the time budget is used up)" in err
    assert "To continue measuring: howfar resume a.howfar --time-budget 10min\n" in err
    (offer,) = (line.split(": ", 1)[1] for line in err.splitlines() if "To continue measuring" in line)
    code, _, err = howfar(*shlex.split(offer)[1:])
    assert code == 0, err
    run = read_run(tmp_path / "a.howfar")
    assert (run.stop, len(run.trials) > first) == (StopReason.WIDTH, True)
    code, _, err = howfar("resume", "a.howfar")
    assert "--time-budget 10min --target 2.5%" in err


@pytest.mark.parametrize(
    ("options", "expected", "advice"),
    [
        (("--target", "1%"), "the time budget of the run is used", "--time-budget 10min"),
        (("--time-budget", "20s"), "too short: laboratory, report and 7 trials take about 40 s", "--time-budget 40s"),
    ],
)
def test_what_would_measure_nothing_is_refused(
    laboratory: Lab, howfar: Howfar, options: tuple[str, ...], expected: str, advice: str
) -> None:
    assert howfar("run", "--quick", *BUDGET, "--out", "a.howfar")[0] == 0
    staged = len(laboratory[0].staged)
    code, out, err = howfar("resume", "a.howfar", *options)
    assert (code, out, len(laboratory[0].staged)) == (2, "", staged)
    assert expected in err
    assert advice in err


def test_the_page_has_a_place_before_anything_is_measured(laboratory: Lab, howfar: Howfar) -> None:
    assert howfar("run", "--quick", *BUDGET, "--out", "a.howfar")[0] == 0
    staged = len(laboratory[0].staged)
    for page, code, expected in (("no/b.html", 6, "there is no directory no"), ("a.howfar", 2, "both the run file")):
        got, _, err = howfar("resume", "a.howfar", "--time-budget", "5min", "--html", page)
        assert (got, expected in err, len(laboratory[0].staged)) == (code, True, staged), err


def test_a_narrow_run_wants_a_narrower_target(laboratory: Lab, howfar: Howfar) -> None:
    assert howfar("run", "--quick", "--out", "a.howfar")[0] == 0
    for options in (("--time-budget", "1h"), ("--time-budget", "1h", "--target", "5%")):
        code, _, err = howfar("resume", "a.howfar", *options)
        assert (code, "already as narrow as requested, ±5%" in err) == (2, True)


def test_a_short_budget_is_answered_with_what_exists(laboratory: Lab, howfar: Howfar, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "python/howfar/plan/shipped/paths.toml").read_text()
    (tmp_path / "long.toml").write_text(text.partition("[quick")[0])
    code, _, err = howfar("run", "long.toml", "--time-budget", "100s")
    assert code == 2
    assert "a time budget of 100s is too short" in err
    assert "take about 1183 s\n" in err  # 5 + 6 + 10 + 4 x 12 x (3 + 20 + 1.2)
    assert "Give at least --time-budget 1183s.\n" in err
    assert "or leave out --full" in howfar("run", "paths", "--full", "--time-budget", "150s")[2]
    assert "--full" not in howfar("run", "paths", "--full", "--time-budget", "20s")[2]


def test_what_takes_hours_says_so_before_it_starts(laboratory: Lab, howfar: Howfar) -> None:
    options = ("--full", "--time-budget", "30min", "--target", "50%")
    code, _, err = howfar("run", "paths", *options, "--seed", "5", "--out", "a.howfar")
    assert code == 0, err
    says = "This takes 30 min, and about 67 s more the first time, to load its tables, or minutes without --full. "
    assert err.startswith(says), err
    run = read_run(Path("a.howfar"))
    assert (run.info.quick, run.info.command) == (
        False,
        ("howfar", "run", "paths", *options, "--seed", "5"),
    )
    assert howfar("run", "--full", "--quick")[0] == 2


def test_a_command_of_an_older_version_is_shown_in_todays_options(laboratory: Lab, howfar: Howfar) -> None:
    """An older command without --quick ran in full."""
    assert howfar("run", "--seed", "5", "--out", "a.howfar")[0] == 0
    make_older(Path("a.howfar"), 6)
    with sqlite3.connect("a.howfar") as db:
        db.execute("UPDATE run SET command = ?", (json.dumps(["howfar", "run", "paths", "--quick", "--seed", "5"]),))
    assert read_run(Path("a.howfar")).info.command == ("howfar", "run", "paths", "--seed", "5")
    with sqlite3.connect("a.howfar") as db:
        db.execute("UPDATE run SET quick = 0, command = ?", (json.dumps(["howfar", "run", "paths", "--seed", "5"]),))
    assert read_run(Path("a.howfar")).info.command == ("howfar", "run", "paths", "--full", "--seed", "5")


def test_the_program_is_named_as_it_can_be_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b" / "bin"
    folder.mkdir(parents=True)
    mine, other = folder / "howfar", tmp_path / "howfar"
    for path in (mine, other):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(mine)])
    monkeypatch.setenv("PATH", str(folder))
    assert program() == "howfar"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert program() == "'a b/bin/howfar'", "the one on PATH is another"
    assert as_called("Then `howfar resume x`; of howfar.") == "Then `'a b/bin/howfar' resume x`; of howfar."
    monkeypatch.chdir(folder)
    assert program() == "./howfar"
    monkeypatch.chdir("/")
    assert program() == shlex.quote(str(mine)[1:])
    monkeypatch.setattr("sys.argv", ["/usr/lib/python3/pytest"])
    assert program() == "howfar"
