"""Waiting for other programs, and trials that are measured again because of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made import build_run, build_trial
from tests.unit.fake_lab import COUNTED, conducted, fake_info, fakes

from howfar import other_programs
from howfar.analysis.disturbance import find_unused
from howfar.contract.messages import LoadJob
from howfar.contract.receipt import ProgramUse, QuietReceipt, TrialReceipt
from howfar.experiments import registry
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
from howfar.plan.cells import block_order
from howfar.plan.load import Override, load_plan
from howfar.report.certainty import certainty
from howfar.runner import stopping
from howfar.runner.run import execute_run
from howfar.runner.stopping import blocks_done, lost_ns, remaining_slots
from howfar.store.records import (
    MAX_DISTURBED_SHARE,
    Arm,
    ArmRole,
    Run,
    StopReason,
    Trial,
    TrialStatus,
    compared_part,
    disturbed_trials,
    is_repeated,
    left_out_trials,
    plan_part,
)
from howfar.store.run_file import RunFile, create, read_run

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
    assert f"in 2 of {len(run.trials)} trials, which were measured again" in certainty(registry.summarise(run))


def test_the_report_names_the_program_of_a_single_disturbed_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_beside(tmp_path, monkeypatch, [QUIET, BUSY])
    assert f"in 1 of {len(run.trials)} trials, which was measured again" in certainty(registry.summarise(run))
    monkeypatch.setattr(other_programs, "MAX_WAIT_S", 0.0)
    run = run_beside(tmp_path / "left-out", monkeypatch, [], [BUSY, BUSY])
    assert f"in 1 of {len(run.trials)} trials, which does not count" in certainty(registry.summarise(run))


def test_a_place_stays_empty_after_several_repetitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_beside(tmp_path, monkeypatch, [QUIET] + [BUSY] * (MAX_REPEATS + 1))
    at_place = [trial for trial in run.trials if (trial.block, trial.position) == (0, 1)]
    assert len(at_place) == MAX_REPEATS + 1
    assert all(map(is_repeated, at_place))
    assert (0, 0, 2) in places(run), "the block goes on"
    unused = find_unused(run)
    assert unused is not None
    assert (unused.repeated, unused.left_out) == (MAX_REPEATS, 1), "the last one was not measured again"


def test_a_resumed_run_goes_on_with_the_repetition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(job: LoadJob) -> None:
        if len(engine.jobs) == 3:
            raise Killed

    laboratory, engine, instruments = fakes()
    engine.before = kill
    monkeypatch.setattr(other_programs, "Waiting", lambda: Waiting(lambda seconds: None, laboratory.clock))
    path, programs = tmp_path / "a.howfar", ScriptedWatch([QUIET, QUIET, QUIET, BUSY])
    with create(path, fake_info()) as file, pytest.raises(Killed):
        execute_run(file, laboratory, laboratory.clock(), replace(instruments, programs=programs))
    laboratory, _, instruments = fakes()
    with RunFile(path) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    disturbed, again = read_run(path).trials[1:3]
    assert is_repeated(disturbed) and again.arm == disturbed.arm
    assert (again.block, again.attempt, again.position, again.repetition) == (0, 0, 1, 1)


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
    assert [each.id for each in run.trials[1].violations] == ["disturbed-by", "other"]
    assert all(trial.attempt == 0 for trial in run.trials), "the block goes on"


# ---------------------------------------------------------------- the time budget


def run_with_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Sequence[tuple[ProgramUse, ...]]) -> Run:
    """A run of at most 75 s, of which 7.5 s are for the report; a trial takes 5.5 s."""
    laboratory, _, instruments = fakes()

    def sleep(seconds: float) -> None:
        laboratory.clock.now_ns += round(seconds * 1e9)

    monkeypatch.setattr(other_programs, "Waiting", lambda: Waiting(sleep, laboratory.clock))
    loaded = load_plan("paths", True, [*COUNTED, Override("", ("timing", "time_budget"), "75s")])
    watched_instruments = replace(instruments, programs=ScriptedWatch(script))
    return conducted(tmp_path / "a.howfar", laboratory, watched_instruments, fake_info(loaded=loaded))


def test_a_strict_budget_is_not_spent_on_repetitions_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with_budget(tmp_path, monkeypatch, [QUIET, BUSY] * 500)
    counted = [trial for trial in run.trials if trial.status is TrialStatus.OK]
    assert len(counted) == 4, "the places of a block but the first, which four repetitions left empty"


def test_a_wait_ends_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tenth trial begins after 49.5 s, so it may wait for 75 - 7.5 - 49.5 - 5.5 = 12.5 s."""
    run = run_with_budget(tmp_path, monkeypatch, [QUIET, QUIET] * 9 + [BUSY] * 1000)
    last = run.trials[-1].receipt.quiet
    assert len(run.trials) == 10 and last is not None
    assert 10 < last.waited_ns / 1e9 < 13
    assert (run.trials[-1].ended_unix_ns - run.trials[0].started_unix_ns) / 1e9 < 75 - 7.5 + 1


# ---------------------------------------------------------------- what is left out


def made_run(disturbed: frozenset[int], trials: int) -> Run:
    """A run with blocks of a baseline, a contender and a control. `disturbed`: numbers of the trials that did not begin quiet."""
    roles = {"a": ArmRole.BASELINE, "b": ArmRole.CONTENDER, "c": ArmRole.CONTROL}
    arms = [Arm(name=name, role=role, factors={"path": "tcp", "threads": 1}) for name, role in roles.items()]
    made = [
        build_trial(
            number,
            block_order(1, number // 3, tuple(roles))[number % 3],
            block=number // 3,
            position=number % 3,
            receipt=TrialReceipt(
                quiet=QuietReceipt(waited_ns=0, is_quiet=False, is_disturbed=number in disturbed), programs=BUSY
            ),
        )
        for number in range(trials)
    ]
    return build_run("paths", arms, made, StopReason.TIME, whole_blocks=True)


def test_all_parts_of_a_run_leave_out_the_same_trials() -> None:
    """Half of all trials are disturbed, and a quarter of those of the arms that are compared."""
    quiet = made_run(frozenset(), 12)
    controls = [trial.number for trial in quiet.trials if trial.arm == "c"]
    others = [trial.number for trial in quiet.trials if trial.arm != "c"]
    run = made_run(frozenset([*controls, *others[:2]]), 12)
    assert not left_out_trials(run)
    few = made_run(frozenset(others[:2]), 12)
    for whole, used in ((run, others), (few, others[2:])):
        for part in (compared_part(plan_part(whole)), plan_part(compared_part(whole))):
            assert [trial.number for trial in part.trials] == used


def test_the_trials_of_a_block_do_not_change_which_arms_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three trials of the first block is disturbed, which is few; with the next trial, they are two of four."""
    seen: list[list[int]] = []

    def paused_arms(part: Run, block: int, target: float) -> frozenset[str]:
        seen.append([trial.number for trial in part.trials if trial.block < block])
        return frozenset()

    monkeypatch.setattr(stopping, "paused_arms", paused_arms)
    for trials in (3, 4):
        assert [slot.position for slot in remaining_slots(made_run(frozenset({1, 3}), trials), 1, 0.05)] == [
            *range(trials - 3, 3)
        ]
    assert seen == [[0, 2], [0, 2]]


def test_a_block_whose_trials_are_all_left_out_is_done() -> None:
    run = made_run(frozenset({9, 10, 11}), 12)
    assert left_out_trials(run) == {9, 10, 11}
    assert blocks_done(run, 0.05) == 4


def test_trials_that_are_left_out_because_of_programs_are_no_void_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory, _, instruments = fakes()
    laboratory.trouble = lambda path, number: ("the link to client was late",) if number == 20 else ()
    monkeypatch.setattr(other_programs, "MAX_WAIT_S", 0.0)
    monkeypatch.setattr(other_programs, "Waiting", lambda: Waiting(lambda seconds: None, laboratory.clock))
    instruments = replace(instruments, programs=ScriptedWatch([BUSY, BUSY] * 3))
    run = conducted(tmp_path / "a.howfar", laboratory, instruments)
    summary = registry.summarise(run)
    assert disturbed_trials(run) and summary.void_trials == 1
    assert summary.void_rate == pytest.approx(1 / len(run.trials))


def test_excluded_trials_whose_effect_is_given_are_those_of_void_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_programs, "MAX_WAIT_S", 0.0)
    run = run_beside(tmp_path, monkeypatch, [], [BUSY, BUSY] * 3)
    summary = registry.summarise(run)
    assert summary.unused is not None and summary.unused.left_out == 3
    assert summary.void_shift is None and summary.void_ratio_shift is None
