"""Waiting for other programs, and trials that are measured again because of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.fake_lab import conducted, fakes

from howfar import other_programs
from howfar.analysis.disturbance import find_unused
from howfar.contract.receipt import ProgramUse
from howfar.other_programs import (
    MAX_LOST_SHARE,
    MAX_QUIET_SHARE,
    MAX_REPEATS,
    MAX_WAIT_S,
    SAMPLE_S,
    OtherPrograms,
    Waiting,
    are_busy,
    busiest,
)
from howfar.runner.stopping import lost_ns
from howfar.store.records import (
    MAX_DISTURBED_SHARE,
    Run,
    Trial,
    TrialStatus,
    disturbed_trials,
    is_repeated,
    left_out_trials,
)

CARGO = ProgramUse(name="cargo", pid=4711, cpus=1.0)
QUIET, BUSY = (), (CARGO,)


class ScriptedWatch:
    """Programs that are busy as a script says: one entry for each reading; quiet when the script has ended."""

    def __init__(self, script: Sequence[tuple[ProgramUse, ...] | None]) -> None:
        self._script: Iterator[tuple[ProgramUse, ...] | None] = iter(script)

    def __call__(self) -> ScriptedWatch:
        return self

    def finish(self) -> tuple[ProgramUse, ...] | None:
        return next(self._script, QUIET)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def __call__(self) -> int:
        return self.now_ns


def watched(script: Sequence[tuple[ProgramUse, ...] | None], waits: list[str] | None = None) -> OtherPrograms:
    clock = Clock()
    return OtherPrograms(
        ScriptedWatch(script), True, (waits if waits is not None else []).append, Waiting(clock.sleep, clock)
    )


def test_programs_are_busy_from_a_share_of_the_cpus() -> None:
    limit = MAX_QUIET_SHARE * (os.cpu_count() or 1)
    uses = [ProgramUse(name=name, pid=1, cpus=limit * 0.51) for name in ("make", "cc1")]
    assert are_busy(uses)
    assert not are_busy(uses[:1])
    assert not are_busy(())


def test_a_trial_waits_until_programs_are_quiet() -> None:
    waits: list[str] = []
    others = watched([BUSY, BUSY, QUIET, QUIET], waits)
    others.begin_trial()
    ended = others.end_trial()
    assert ended.quiet is not None and ended.quiet.is_quiet
    assert ended.quiet.waited_ns == 2 * SAMPLE_S * 1e9
    assert ended.why_repeated is None
    assert waits == [busiest(BUSY)] * 2


def test_a_quiet_machine_costs_no_time() -> None:
    others = watched([QUIET, QUIET])
    others.begin_trial()
    ended = others.end_trial()
    assert ended.quiet is not None and (ended.quiet.waited_ns, ended.quiet.is_quiet) == (0, True)


def test_a_trial_that_never_became_quiet_counts() -> None:
    others = watched([BUSY] * 1000)
    others.begin_trial()
    ended = others.end_trial()
    assert ended.quiet is not None and not ended.quiet.is_quiet
    assert MAX_WAIT_S <= ended.quiet.waited_ns / 1e9 <= MAX_WAIT_S + SAMPLE_S
    assert ended.why_repeated is None


def test_an_always_busy_machine_is_waited_for_less_and_less() -> None:
    others = watched([BUSY] * 1000)
    waited_s = []
    for _ in range(6):
        others.begin_trial()
        quiet = others.end_trial().quiet
        assert quiet is not None
        waited_s.append(quiet.waited_ns / 1e9)
    assert waited_s == sorted(waited_s, reverse=True)
    assert sum(waited_s) < 2 * MAX_WAIT_S + 6 * SAMPLE_S


@pytest.mark.parametrize("script", [[QUIET, None], [None, BUSY], [None, None]])
def test_what_cannot_be_seen_is_no_disturbance(script: list[tuple[ProgramUse, ...] | None]) -> None:
    others = watched(script)
    others.begin_trial()
    assert others.end_trial().why_repeated is None


# ---------------------------------------------------------------- whole runs


def run_beside(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_trials: Sequence[tuple[ProgramUse, ...]],
    readings: Sequence[tuple[ProgramUse, ...]] = (),
) -> Run:
    """A run on a machine that is quiet before each trial, and in the trials as given; quiet in the later ones. `readings`: what is
    read, both before trials and in them, instead."""
    tmp_path.mkdir(exist_ok=True)
    laboratory, _, instruments = fakes()
    monkeypatch.setattr(other_programs, "Waiting", lambda: Waiting(lambda seconds: None, laboratory.clock))
    script = readings or [use for each in in_trials for use in (QUIET, each)]
    return conducted(tmp_path / "a.howfar", laboratory, replace(instruments, programs=ScriptedWatch(script)))


def places(run: Run) -> list[tuple[int, int, int]]:
    return [(trial.block, trial.attempt, trial.position) for trial in run.trials]


def test_a_disturbed_trial_is_measured_again_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_beside(tmp_path, monkeypatch, [QUIET, QUIET, BUSY, BUSY, QUIET])
    first_block = [place for place in places(run) if place[0] == 0]
    arms = len(run.info.arms)
    assert first_block == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 2), *((0, 0, n) for n in range(2, arms))]
    assert [trial.number for trial in run.trials if is_repeated(trial)] == [2, 3]
    assert not left_out_trials(run), "the other trials of the block count"
    for trial in run.trials:
        assert (trial.status is TrialStatus.VOID) == is_repeated(trial)
    unused = find_unused(run)
    assert unused is not None
    assert (unused.repeated, unused.left_out, unused.of) == (2, 0, len(run.trials))
    assert [(program.name, program.pids, program.trials) for program in unused.programs] == [("cargo", (4711,), 2)]


def test_a_place_stays_empty_after_several_repetitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_beside(tmp_path, monkeypatch, [QUIET] + [BUSY] * (MAX_REPEATS + 1))
    at_place = [trial for trial in run.trials if (trial.block, trial.position) == (0, 1)]
    assert len(at_place) == MAX_REPEATS + 1
    assert all(map(is_repeated, at_place))
    assert (0, 0, 2) in places(run), "the block goes on"


def test_the_time_for_other_programs_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_beside(tmp_path, monkeypatch, [], [QUIET, BUSY] * 500)
    budget_ns = run.info.stored_plan.timing.time_budget_ns if run.info.stored_plan.timing else 0
    longest_ns = max(trial.ended_unix_ns - trial.started_unix_ns for trial in run.trials)
    assert MAX_LOST_SHARE * budget_ns <= lost_ns(run.trials) <= MAX_LOST_SHARE * budget_ns + longest_ns
    later = [trial for trial in run.trials if trial.receipt.quiet is not None and not trial.receipt.quiet.is_quiet]
    assert later and all(trial.status is TrialStatus.OK for trial in later), "then trials count as they are"
    assert any(trial.receipt.quiet.is_disturbed for trial in later if trial.receipt.quiet is not None)


@pytest.mark.parametrize("disturbed", [1, 3, 30])
def test_few_disturbed_trials_are_left_out(disturbed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        other_programs, "MAX_WAIT_S", 0.0
    )  # the first look ends the wait: the trial does not begin quiet
    run = run_beside(tmp_path, monkeypatch, [], [BUSY, BUSY] * disturbed)
    assert all(trial.status is TrialStatus.OK for trial in run.trials)
    busy = [trial.number for trial in run.trials if trial.receipt.programs]
    assert len(busy) == min(disturbed, len(run.trials))
    is_few = len(busy) <= MAX_DISTURBED_SHARE * len(run.trials)
    assert disturbed_trials(run) == left_out_trials(run) == (frozenset(busy) if is_few else frozenset())
    unused = find_unused(run)
    assert (unused.left_out if unused is not None else 0) == (disturbed if is_few else 0)


def test_time_that_other_programs_took_is_added_to_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = run_beside(tmp_path / "quiet", monkeypatch, [])
    disturbed = run_beside(tmp_path / "disturbed", monkeypatch, [QUIET] + [BUSY, QUIET] * 5)

    def counted(run: Run) -> list[Trial]:
        return [trial for trial in run.trials if trial.status is TrialStatus.OK]

    assert len(counted(disturbed)) == len(counted(quiet))
    assert len(disturbed.trials) == len(quiet.trials) + 5


def test_a_disturbed_trial_is_repeated_whatever_else_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory, _, instruments = fakes()
    laboratory.trouble = lambda path, number: ("the link to client was late",) if number == 1 else ()
    monkeypatch.setattr(other_programs, "Waiting", lambda: Waiting(lambda seconds: None, laboratory.clock))
    script = [QUIET, QUIET, QUIET, BUSY]
    run = conducted(tmp_path / "a.howfar", laboratory, replace(instruments, programs=ScriptedWatch(script)))
    assert is_repeated(run.trials[1])
    assert run.trials[1].void_reason is not None
    assert "cargo" in run.trials[1].void_reason and "the link to client was late" in run.trials[1].void_reason
    assert all(trial.attempt == 0 for trial in run.trials), "the block goes on"
