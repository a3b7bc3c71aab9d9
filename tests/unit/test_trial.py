"""Parts of a trial: what is watched on the machine meanwhile."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.made import build
from tests.unit.fake_lab import fake_info, fakes

from howfar.contract.receipt import ProgramUse, SpeedReceipt
from howfar.lab.cpu_speed import MAX_CPUS, measure_speed, time_piece
from howfar.plan.types import restore_plan
from howfar.runner.stopping import Slot
from howfar.runner.trial import run_trial
from howfar.store.records import MachineLoad


@pytest.mark.parametrize("programs", [(ProgramUse(name="cargo", pid=7, cpus=1.5),), (), None])
def test_what_the_watch_saw_is_kept(programs: tuple[ProgramUse, ...] | None) -> None:
    laboratory, _, instruments = fakes()
    seen = build(MachineLoad, load_average_1m=2.5)
    info = fake_info(laboratory)
    arm, plan = info.arms[0], restore_plan(info.plan)
    watch, named = SimpleNamespace(finish=lambda: seen), SimpleNamespace(finish=lambda: programs)
    watched = replace(instruments, watch=lambda: watch, programs=lambda: named)
    trial = run_trial(0, Slot(0, 0, 0, arm.name), arm, plan, 1, laboratory, watched, lambda event: None)
    assert trial.void_reason is None
    assert (trial.load, trial.receipt.programs) == (seen, programs)


@pytest.mark.parametrize("pieces", [{0: 1_500_000, 1: 2_100_000}, {}])
def test_the_speed_of_the_cpus_is_measured_before_the_load_and_after_the_window(pieces: dict[int, int]) -> None:
    laboratory, engine, instruments = fakes()
    info = fake_info(laboratory)
    arm, plan = info.arms[0], restore_plan(info.plan)
    measured_after_jobs = []

    def measure_speed() -> dict[int, int]:
        measured_after_jobs.append(len(engine.jobs))
        return pieces

    timed = replace(instruments, measure_speed=measure_speed)
    trial = run_trial(0, Slot(0, 0, 0, arm.name), arm, plan, 1, laboratory, timed, lambda event: None)
    assert measured_after_jobs == [0, 1]
    assert trial.receipt.speed == (SpeedReceipt(before_ns=pieces, after_ns=pieces) if pieces else None)


def test_a_piece_of_work_is_done_on_each_cpu_and_the_process_may_use_all_of_them_afterwards() -> None:
    usable = os.sched_getaffinity(0)
    pieces_ns = measure_speed()
    assert set(pieces_ns) == set(sorted(usable)[:MAX_CPUS]) and min(pieces_ns.values()) > 0
    assert os.sched_getaffinity(0) == usable and time_piece(max(usable) + 4096) is None
