"""`howfar run --confirm`, `howfar confirm`, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_cli import Howfar, Lab, howfar, laboratory
from tests.unit.test_confirm import named

from howfar.analysis.findings import Resource
from howfar.results.parts import plan_part
from howfar.results.records import StopReason
from howfar.results.store import read_run

__all__ = ["howfar", "laboratory", "named"]  # fixtures

PLAN_TRIALS = 8 * 5
PAIR_TRIALS = 3 * 2


def test_it_is_part_of_the_command_that_repeats_the_run(
    laboratory: Lab, howfar: Howfar, named: dict[str, Resource], tmp_path: Path
) -> None:
    named["remote"] = Resource.LINK_TO_CLIENT
    code, _, err = howfar("run", "--quick", "--confirm", "--seed", "5", "--time-budget", "10min", "--out", "a.howfar")
    assert code == 0, err
    run = read_run(tmp_path / "a.howfar")
    assert run.info.command[:4] == ("howfar", "run", "paths", "--quick")
    assert "--confirm" in run.info.command
    assert "True" not in run.info.command
    assert "confirming: remote: link to client? rate 1gbit -> 1.5gbit: 1.50 times as fast if so\n" in err
    assert "confirmation 1, remote [as it was]: " in err
    assert len(run.trials) == PLAN_TRIALS + PAIR_TRIALS


@pytest.mark.parametrize(("words", "stop"), [((), StopReason.WIDTH), (("--time-budget", "90s"), StopReason.TIME)])
def test_a_run_that_has_ended_is_confirmed_once(
    laboratory: Lab,
    howfar: Howfar,
    named: dict[str, Resource],
    tmp_path: Path,
    words: tuple[str, ...],
    stop: StopReason,
) -> None:
    """Whyever it had ended, and without one more block."""
    named["remote"] = Resource.LINK_TO_CLIENT
    assert howfar("run", "--quick", *words, "--out", "a.howfar")[0] == 0
    before = read_run(tmp_path / "a.howfar")
    assert before.stop is stop
    code, _, err = howfar("confirm", "a.howfar")
    assert code == 0, err
    run = read_run(tmp_path / "a.howfar")
    assert plan_part(run).trials == before.trials
    assert (run.stop, len(run.trials) - len(before.trials)) == (stop, PAIR_TRIALS)
    staged = len(laboratory[0].staged)
    code, _, err = howfar("confirm", "a.howfar")
    assert (code, len(laboratory[0].staged)) == (0, staged)
    assert "Nothing to do" in err


def test_a_budget_without_room_for_it_is_refused(laboratory: Lab, howfar: Howfar) -> None:
    """Two blocks of five trials of 6.2 s, and three limits of six trials and a new link, are more than what two blocks take."""
    assert howfar("run", "--quick", "--time-budget", "100s", "--out", "a.howfar")[0] == 0
    code, _, err = howfar("run", "--quick", "--confirm", "--time-budget", "100s", "--out", "b.howfar")
    assert code == 2
    assert "a time budget of 100s is too short" in err
