"""How often intervals contain the true ratio on a machine whose other programs slow some arms more than others."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.unit.fake_lab import RATES, FakeClock, conducted, fakes

from howfar import other_programs
from howfar.analysis.cells import CellSummary
from howfar.contract.messages import LoadJob
from howfar.contract.receipt import ProgramUse
from howfar.experiments import registry
from howfar.other_programs import Waiting
from howfar.store.records import ArmRole, StopReason

SLOWER = {"socket": 3.0, "tcp": 2.5, "remote": 1.2, "forwarded-socket": 1.3}
"""How much slower a path is while another program works: most if it needs a CPU, hardly if it waits for a link."""
SCATTER = 0.02
"""Standard deviation of the logarithm of an undisturbed rate."""
BUSY = (ProgramUse(name="cargo", pid=4711, cpus=1.2),)
RUNS = 60


@dataclass
class DisturbedMachine:
    """Disturbs each trial with a probability. `is_seen`: whether the programs can be seen."""

    share: float
    is_seen: bool
    chance: random.Random
    clock: FakeClock = field(default_factory=FakeClock)
    is_in_trial: bool = False
    is_disturbed: bool = False

    def start_watch(self) -> DisturbedMachine | None:
        """Called before a trial, for the look that finds a quiet machine, and then for the trial itself."""
        self.is_in_trial = not self.is_in_trial if self.is_seen else True
        if self.is_in_trial:
            self.is_disturbed = self.chance.random() < self.share
        return self if self.is_seen else None

    def finish(self) -> tuple[ProgramUse, ...]:
        return BUSY if self.is_in_trial and self.is_disturbed else ()

    def jitter(self, job: LoadJob) -> float:
        slower = SLOWER[Path(getattr(job.target, "path", "")).name] if self.is_disturbed else 1.0
        return math.exp(self.chance.gauss(0, SCATTER)) / slower


def measured_cells(tmp_path: Path, share: float, seed: int, is_seen: bool) -> tuple[CellSummary, ...]:
    """The cells that are compared with the socket in a run of the given seed; none if the run gives no answer."""
    machine = DisturbedMachine(share, is_seen, random.Random(seed))
    laboratory, _, instruments = fakes(machine.clock, machine.jitter)
    path = tmp_path / f"{share}-{seed}.howfar"
    run = conducted(path, laboratory, replace(instruments, programs=machine.start_watch))
    path.unlink()
    assert run.stop is not StopReason.INTERRUPTED
    summary = registry.summarise(run)
    return () if summary.answer.is_missing else tuple(c for c in summary.cells if c.role is ArmRole.CONTENDER)


def count_held(tmp_path: Path, share: float, is_seen: bool) -> tuple[int, int]:
    """How many intervals hold the true ratio, and how many there are, in `RUNS` runs."""
    held = of = 0
    for seed in range(RUNS):
        for cell in measured_cells(tmp_path, share, seed, is_seen):
            if cell.ratio is not None and cell.ratio.low is not None and cell.ratio.high is not None:
                of += 1
                held += cell.ratio.low <= RATES[str(cell.factors["path"])] / RATES["socket"] <= cell.ratio.high
    return held, of


@pytest.fixture(autouse=True)
def without_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_programs, "Waiting", lambda: Waiting(lambda seconds: None, FakeClock()))


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.0, 1 / 8, 1 / 4, 1 / 3, 1 / 2])
def test_intervals_contain_the_true_ratio(share: float, tmp_path: Path) -> None:
    held, of = count_held(tmp_path, share, is_seen=True)
    print(f"{share:.0%} of the trials disturbed: {held / of:.1%} of {of} intervals hold the true ratio")
    assert of >= 0.9 * 3 * RUNS, "at most a tenth of the runs end without an answer"
    # 93 % are required; a binomial deviation of two standard deviations is allowed.
    assert held >= (0.93 - 2 * math.sqrt(0.93 * 0.07 / of)) * of


@pytest.mark.thorough
def test_without_the_rule_they_often_miss_it(tmp_path: Path) -> None:
    held, of = count_held(tmp_path, 1 / 3, is_seen=False)
    assert held < 0.85 * of
