"""The names of other programs, and their CPU time between two readings of /proc."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from howfar.lab import programs
from howfar.lab.programs import (
    OUTER_PROC,
    MeasuredPrograms,
    Process,
    ProgramWatch,
    adopt_outer_proc,
    pass_outer_proc,
    ticks_by_program,
    watching_programs,
)
from howfar.other_programs import are_busy

INIT = {1: Process("init", 0, 0, 5), 2: Process("kthreadd", 0, 0, 0), 9: Process("howfar", 1, 3, 40)}


def test_time_counts_for_who_used_it_in_the_window() -> None:
    before = {**INIT, 20: Process("cargo", 1, 7, 100), 21: Process("ksoftirqd", 2, 7, 10)}
    after = {
        **INIT, 9: Process("howfar", 1, 3, 90), 10: Process("engine", 9, 99, 70),
        20: Process("cargo", 1, 7, 160), 21: Process("ksoftirqd", 2, 7, 30), 22: Process("rustc", 20, 98, 25),
    }  # fmt: skip
    assert ticks_by_program(before, after, own=9) == {(20, "cargo"): 60, (22, "rustc"): 25}


def test_measured_programs_and_their_descendants_are_no_others() -> None:
    before = {
        **INIT, 20: Process("postgres", 1, 7, 0), 21: Process("postgres", 20, 7, 0), 30: Process("php-fpm", 1, 7, 0),
        31: Process("php-fpm", 30, 7, 0), 40: Process("cargo", 1, 7, 0),
    }  # fmt: skip
    after = {**INIT, **{pid: process._replace(ticks=50) for pid, process in before.items() if pid >= 20}}
    measured = MeasuredPrograms(frozenset({30}), frozenset({"postgres"}))
    assert ticks_by_program(before, after, 9, measured) == {(40, "cargo"): 50}


def test_a_watch_outside_the_sandbox_sees_other_programs() -> None:
    with watching_programs() as start_watch:
        watch = start_watch()
        assert watch is not None and watch.finish() is not None


def test_a_command_in_a_laboratorys_shell_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOWFAR_SANDBOX", "1")
    with watching_programs() as start_watch:
        assert start_watch() is None


def test_what_a_process_had_used_before_it_ended_in_the_window_is_not_its_parents() -> None:
    """The kernel adds the whole time of a child that was waited for: 500 of make and its compiler, of which 40 in the window."""
    before = {**INIT, 20: Process("sh", 1, 7, 10), 21: Process("make", 20, 8, 160), 22: Process("cc", 21, 9, 300)}
    after = {**INIT, 20: Process("sh", 1, 7, 510)}
    assert ticks_by_program(before, after, own=9) == {(20, "sh"): 40}


def test_a_pid_that_is_used_again_is_another_program() -> None:
    before, after = {**INIT, 20: Process("old", 1, 7, 400)}, {**INIT, 20: Process("new", 1, 99, 30)}
    assert ticks_by_program(before, after, own=9) == {(20, "new"): 30}


def test_what_an_ended_process_had_used_is_not_taken_from_the_parent_of_the_next_with_its_pid() -> None:
    before = {**INIT, 20: Process("old", 1, 7, 400), 30: Process("make", 1, 7, 100)}
    after = {**INIT, 20: Process("cc", 30, 99, 5), 30: Process("make", 1, 7, 160)}
    assert ticks_by_program(before, after, own=9) == {(20, "cc"): 5, (30, "make"): 60}


def test_a_proc_that_hides_the_processes_of_others_shows_no_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mount option hidepid hides the first process too."""
    read = programs._read_process
    monkeypatch.setattr(
        programs, "_read_process", lambda path, folder: None if path == "1/stat" else read(path, folder)
    )
    with watching_programs() as start_watch:
        watch = start_watch()
        assert watch is not None and watch.finish() is None


def test_many_programs_are_busy_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five programs that use 0.08 of 8 CPUs each use as much as the limit, 0.4; three of them are below it."""
    running = {pid: Process(f"program{pid}", 1, 7, 0) for pid in range(30, 36)}
    watch = ProgramWatch()
    watch._before, watch._start_s, watch._own_pid = {**INIT, **running}, 0.0, 9
    after = {**INIT, **{pid: process._replace(ticks=8) for pid, process in running.items()}}
    monkeypatch.setattr(watch, "processes", lambda: after)
    monkeypatch.setattr("howfar.lab.programs.time.monotonic", lambda: 1.0)
    named = watch.finish()
    assert named is not None and are_busy(named, 8) and not are_busy(named[:3], 8)


def test_the_processes_outside_are_seen_through_the_descriptor_that_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ProgramWatch().finish() is None, "nothing was passed on"
    descriptor, text = pass_outer_proc()
    monkeypatch.setattr(programs, "_outer_proc", (-1, 0))
    monkeypatch.setenv(OUTER_PROC, text)
    adopt_outer_proc()
    assert OUTER_PROC not in os.environ and not os.get_inheritable(descriptor), "no child takes it for its own"
    with subprocess.Popen([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"]) as busy:
        watch = ProgramWatch()
        before = watch.processes()
        busy.wait(30)
    used = ticks_by_program(before, watch.processes(), own=-1)
    assert max(ticks for (pid, _), ticks in used.items() if pid == os.getpid()) >= 20, "0.3 s, in ticks of 10 ms"
    named = watch.finish()
    assert named is not None and os.getpid() not in [program.pid for program in named], (
        "this process started what is watched"
    )
    monkeypatch.setattr(watch, "_descriptor", 10**6)
    assert watch.finish() is None, "a look that fails is not worth a trial"
    os.close(descriptor)


def test_processes_of_one_name_are_one_program_and_what_cannot_be_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight compilers that end are one program; the time of an orphan's whole life, which nobody used in the window, is none."""
    compilers = {pid: Process("cc1", 1, 7, 0) for pid in range(30, 38)}
    before = {**INIT, **compilers, 50: Process("small", 1, 7, 0)}
    watch = ProgramWatch()
    watch._before, watch._start_s, watch._own_pid = before, 0.0, 9
    cpus = os.cpu_count() or 1
    after = {
        **INIT,
        **{pid: process._replace(ticks=3 + pid % 2) for pid, process in compilers.items()},
        50: Process("small", 1, 7, 1),
        1: Process("init", 0, 0, 5 + (cpus + 1) * 100),
    }
    monkeypatch.setattr(watch, "processes", lambda: after)
    monkeypatch.setattr("howfar.lab.programs.time.monotonic", lambda: 1.0)
    named = watch.finish()
    assert named is not None and [program.name for program in named] == ["cc1"]
    assert named[0].cpus == pytest.approx(28 / programs._TICKS_PER_S) and named[0].pid % 2
