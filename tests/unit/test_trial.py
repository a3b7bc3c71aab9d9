"""Parts of a trial: the watch of the machine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.made import build
from tests.unit.fake_lab import fake_info, fakes

from howfar.contract.receipt import ProgramUse
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
