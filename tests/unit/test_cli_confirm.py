"""`howfar run --confirm`, `howfar confirm`, and what they print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_cli import Howfar, Lab, howfar, laboratory
from tests.unit.test_confirm import named, with_limits

from howfar.cli import session
from howfar.experiments import registry
from howfar.model.resource import Resource
from howfar.store.records import StopReason, plan_part
from howfar.store.run_file import read_run

pytestmark = pytest.mark.slow

__all__ = ["howfar", "laboratory", "named"]  # fixtures

PLAN_TRIALS = 8 * 7
PAIR_TRIALS = 4 * 2


def test_it_is_part_of_the_command_that_repeats_the_run(
    laboratory: Lab, howfar: Howfar, named: dict[str, Resource], tmp_path: Path
) -> None:
    named["remote"] = Resource.LINK_TO_CLIENT
    code, _, err = howfar("run", "--quick", "--confirm", "--seed", "5", "--time-budget", "10min", "--out", "a.howfar")
    assert code == 0, err
    run = read_run(tmp_path / "a.howfar")
    assert run.info.command[:4] == ("howfar", "run", "paths", "--confirm")
    assert "--confirm" in run.info.command
    assert "True" not in run.info.command
    assert "confirming: remote: link to client? rate 1gbit -> 1.5gbit: 1.50 times as fast if so\n" in err
    assert "confirmation 1, remote [as it was]: " in err
    assert len(run.trials) == PLAN_TRIALS + PAIR_TRIALS


@pytest.mark.parametrize(("arguments", "stop"), [((), StopReason.WIDTH), (("--time-budget", "140s"), StopReason.TIME)])
def test_a_run_that_has_ended_is_confirmed_once(
    laboratory: Lab,
    howfar: Howfar,
    named: dict[str, Resource],
    tmp_path: Path,
    arguments: tuple[str, ...],
    stop: StopReason,
) -> None:
    """Whatever ended the run, and without another block of the plan."""
    named["remote"] = Resource.LINK_TO_CLIENT
    assert howfar("run", "--quick", *arguments, "--out", "a.howfar")[0] == 0
    before = read_run(tmp_path / "a.howfar")
    assert before.stop is stop
    code, out, err = howfar("confirm", "a.howfar")
    assert code == 0, err
    assert "\nTested limit:       remote, link to client: " in out
    run = read_run(tmp_path / "a.howfar")
    assert plan_part(run).trials == before.trials
    assert (run.stop, len(run.trials) - len(before.trials)) == (stop, PAIR_TRIALS)
    staged = len(laboratory[0].staged)
    code, _, err = howfar("confirm", "a.howfar")
    assert (code, len(laboratory[0].staged)) == (0, staged)
    assert "Nothing to do: the run is complete" in err
    assert ", and its limits were tested earlier: remote.\n" in err
    code, _, err = howfar("resume", "a.howfar")
    assert (code, "were tested earlier" in err) == (0, False), "nobody asked"


def test_a_budget_without_room_for_it_is_refused(laboratory: Lab, howfar: Howfar) -> None:
    """The budget suffices for four blocks, but not also for testing three limits, each with six trials and a new link."""
    assert howfar("run", "--quick", "--time-budget", "150s", "--out", "a.howfar")[0] == 0
    code, _, err = howfar("run", "--quick", "--confirm", "--time-budget", "150s", "--out", "b.howfar")
    assert code == 2
    assert "a time budget of 150s is too short" in err


def test_its_own_time_begins_when_the_laboratory_is_open(
    laboratory: Lab, howfar: Howfar, named: dict[str, Resource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filling tables takes minutes, which do not count; trials are expected to take as long as earlier ones of the confirmed arm."""
    named["remote"] = Resource.LINK_TO_CLIENT
    fake = laboratory[0]

    def slow(path: str, number: int) -> tuple[str, ...]:
        fake.clock.now_ns += 40 * 10**9 if path == "remote" else 0
        return ()

    fake.trouble = slow
    assert howfar("run", "--quick", "--time-budget", "20min", "--out", "a.howfar")[0] == 0
    before = len(read_run(tmp_path / "a.howfar").trials)

    @contextmanager
    def filled(plan: Any, begins: Any) -> Iterator[Any]:
        fake.clock.now_ns += 600 * 10**9
        yield fake

    monkeypatch.setattr(session, "open_testbed", filled)
    code, _, err = howfar("confirm", "a.howfar")
    assert code == 0, err
    assert len(read_run(tmp_path / "a.howfar").trials) - before == PAIR_TRIALS


def test_a_time_in_which_no_pair_can_be_measured_is_refused(
    laboratory: Lab, howfar: Howfar, named: dict[str, Resource], tmp_path: Path
) -> None:
    named["remote"] = Resource.LINK_TO_CLIENT
    assert howfar("run", "--quick", "--out", "a.howfar")[0] == 0
    before = read_run(tmp_path / "a.howfar")
    code, _, err = howfar("resume", "a.howfar", "--confirm", "--time-budget", "10s")
    assert (code, "10s is too short: laboratory, report and 2 trials take about 34 s" in err) == (2, True), err
    assert read_run(tmp_path / "a.howfar") == before
    assert howfar("resume", "a.howfar", "--confirm", "--time-budget", "34s")[0] == 0
    assert len(read_run(tmp_path / "a.howfar").trials) > len(before.trials)


@pytest.mark.parametrize(
    ("resource", "offered"),
    [(Resource.LINK_TO_CLIENT, True), (Resource.COMMIT, False), (Resource.INVALID, False), (None, False)],
)
def test_it_is_offered_where_something_can_be_put_to_the_test(
    laboratory: Lab, howfar: Howfar, monkeypatch: pytest.MonkeyPatch, resource: Resource | None, offered: bool
) -> None:
    limits = {} if resource is None else {"remote": resource}
    monkeypatch.setattr(registry, "summarise", lambda run: with_limits(run, limits))
    _, out, err = howfar("run", "--quick", "--out", "a.howfar")
    assert ("Confirm the limits: howfar confirm a.howfar\n" in out) is offered, err


def test_what_the_time_cut_short_is_offered_again(
    laboratory: Lab, howfar: Howfar, named: dict[str, Resource], tmp_path: Path
) -> None:
    named["remote"] = Resource.LINK_TO_CLIENT
    fake, engine = laboratory
    slow = {"ns": 70 * 10**9}

    def jitter(job: Any) -> float:
        fake.clock.now_ns += slow["ns"] if int(fake.staged[-1].get("rate_bps", 0)) > 10**9 else 0
        return 1.0

    engine.jitter = jitter
    _, out, err = howfar("run", "--quick", "--confirm", "--time-budget", "300s", "--out", "a.howfar")
    assert "Confirm the limits: howfar confirm a.howfar\n" in out, err
    slow["ns"] = 0
    for _ in range(2):
        _, out, err = howfar("confirm", "a.howfar")
    assert "Confirm:" not in out
    assert "Nothing to do" in err
