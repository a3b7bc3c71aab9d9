"""Whether a machine is quiet: the obstacle, its name, the expected width and the step, from scripted readings."""

from __future__ import annotations

import lzma
import os
import threading
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from tests.unit.made_machine import BUSY, CARGO, QUIET, UNEVEN
from tests.unit.rendered import is_short

from howfar import quiet_check
from howfar.analysis.diagnostics import cpu_scatter
from howfar.contract.receipt import ProgramUse
from howfar.lab import cpu_speed
from howfar.other_programs import MAX_QUIET_SHARE
from howfar.quiet_check import (
    MAX_S,
    Obstacle,
    PieceTimer,
    QuietReadings,
    expect_run,
    judge,
    time_pieces,
)
from howfar.report.html import render as render_page
from howfar.report.terminal import render
from howfar.stats.intervals import judge_ratio
from howfar.stats.trials import speed_scatter, trial_table
from howfar.store.run_file import read_run

RECORDED = Path(__file__).parents[1] / "data" / "recorded"


def action(readings: QuietReadings) -> str:
    step = quiet_check.step(judge(readings))
    return "" if step is None else step.action


def test_a_quiet_machine_is_called_quiet_and_nothing_is_to_be_done() -> None:
    check = judge(QUIET)
    assert check.obstacle is None and quiet_check.step(check) is None
    assert quiet_check.answer(check).startswith("Yes") and "What to do" not in render(quiet_check.document(check), 80)
    assert check.speed_scatter == pytest.approx(0.01), "CPUs that differ in speed do not scatter"


@pytest.mark.parametrize(
    ("readings", "obstacle", "named"),
    [
        (BUSY, Obstacle.PROGRAMS, "cargo (pid 4711) and rustc (pid 4720), which use 1.2 of 2 CPUs"),
        (replace(QUIET, programs=(CARGO,)), Obstacle.PROGRAMS, "cargo (pid 4711), which uses 0.9 of 2 CPUs"),
        (replace(QUIET, busy_cpus=1.4), Obstacle.UNSEEN, "1.3 of 2 CPUs"),
        (replace(QUIET, steal_share=0.1), Obstacle.STEAL, "no other virtual machine"),
        (replace(QUIET, pieces_ns=UNEVEN), Obstacle.SPEED, "--full"),
        (replace(QUIET, pieces_ns=UNEVEN, governor="powersave"), Obstacle.SPEED, "from powersave to performance"),
        (replace(QUIET, pieces_ns=UNEVEN, governor="performance"), Obstacle.SPEED, "--full"),
        (replace(QUIET, programs=None, busy_cpus=None), Obstacle.UNKNOWN, "/proc"),
    ],
)
def test_each_obstacle_is_named_with_what_to_change(readings: QuietReadings, obstacle: Obstacle, named: str) -> None:
    check = judge(readings)
    assert check.obstacle is obstacle and named in action(readings)
    assert quiet_check.answer(check).startswith("Not now")
    is_short(quiet_check.answer(check))
    assert named in render(quiet_check.document(check), 200) and "not quiet" in quiet_check.in_short(check)
    page = render_page(quiet_check.document(check))
    assert quiet_check.QUESTION in page and named in page


def test_programs_that_must_run_are_not_stopped() -> None:
    check = judge(BUSY)
    kept = quiet_check.step(check, lambda program: program.name == "cargo")
    assert kept is not None and "another machine" in kept.action and "rustc" not in kept.action
    small = quiet_check.step(judge(replace(BUSY, cpus=8)), lambda program: program.name == "rustc")
    assert small is not None and small.action.startswith("Stop cargo (pid 4711), which uses 0.9"), "0.3 of 8 are quiet"
    init = ProgramUse(name="systemd", pid=1, cpus=0.9)
    assert "another machine" in action(replace(QUIET, programs=(init,)))


def test_of_many_programs_the_first_are_named() -> None:
    many = tuple(ProgramUse(name=f"make{pid}", pid=pid, cpus=0.2) for pid in range(11, 16))
    assert "make11 (pid 11), make12 (pid 12) and 3 others, which use 1.0 of 2 CPUs" in action(
        replace(QUIET, programs=many)
    )
    is_short(quiet_check.answer(judge(replace(QUIET, programs=many))))


def test_a_program_below_the_limit_of_a_run_is_no_obstacle() -> None:
    limit = MAX_QUIET_SHARE * QUIET.cpus
    for cpus, obstacle in ((limit, None), (limit + 0.01, Obstacle.PROGRAMS)):
        assert judge(replace(QUIET, programs=(ProgramUse(name="x", pid=7, cpus=cpus),))).obstacle is obstacle


def test_the_width_is_that_of_a_t_interval_of_ratios() -> None:
    """8 blocks: exp(2.365 x sqrt(2 x (0.2² + 0.02²)) / sqrt(8)) - 1 = 26.8 %; 30 blocks: 2.045 and sqrt(30), 11.2 %."""
    quick, full = expect_run(0.2, quick=True), expect_run(0.2, quick=False)
    assert (quick.blocks, full.blocks) == (8, 30)
    assert quick.half_width == pytest.approx(0.268, abs=0.001) and full.half_width == pytest.approx(0.112, abs=0.001)
    assert expect_run(0.0, quick=True).half_width == pytest.approx(0.024, abs=0.001)
    assert judge(replace(QUIET, pieces_ns={0: [1000] * 4})).quick is None, "four pieces show no scatter"
    assert speed_scatter({}) is None


@pytest.mark.parametrize(("name", "times_as_wide"), [("aa-mariadb", 0.7), ("paths-mariadb", 1.6), ("paths-mysql", 2.2)])
def test_recorded_runs_scatter_as_expected_or_up_to_twice_as_much(
    name: str, times_as_wide: float, tmp_path: Path
) -> None:
    """The scatter of the ratios, relative to the one that the rule expects from the scatter of CPU times in the same run."""
    path = tmp_path / "run.howfar"
    path.write_bytes(lzma.decompress((RECORDED / f"{name}.howfar.xz").read_bytes()))
    table = trial_table(read_run(path))
    scatter, baseline = cpu_scatter(table), table.baseline
    assert scatter is not None and baseline is not None
    ratios = [table.block_ratios(arm.name, baseline.name) for arm in table.run.info.arms if arm.name != baseline.name]
    measured = median(judge_ratio(of_arm).sd_log or 0.0 for of_arm in ratios if len(of_arm) >= 4)
    assert measured / quiet_check.ratio_scatter(scatter) == pytest.approx(times_as_wide, abs=0.05)


class ScriptedTimer:
    """A clock that only pieces and sleeps move. `costs_ns`: CPU time of a piece, by CPU; None if the CPU cannot be used."""

    def __init__(self, costs_ns: dict[int, int | None], wall_per_cpu: float = 1.0) -> None:
        self.now_s, self.slept_s, self.costs_ns, self.wall_per_cpu = 0.0, 0.0, costs_ns, wall_per_cpu

    def do_piece(self, cpu: int) -> int | None:
        cost_ns = self.costs_ns[cpu]
        self.now_s += self.wall_per_cpu * (cost_ns or 0) / 1e9
        return cost_ns

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.now_s += seconds

    def run(self, seconds: float = MAX_S) -> dict[int, list[int]]:
        return time_pieces(tuple(self.costs_ns), seconds, PieceTimer(self.do_piece, self.sleep, lambda: self.now_s))


def test_the_pieces_take_a_tenth_of_a_cpu_and_end_in_time() -> None:
    timer = ScriptedTimer(dict.fromkeys(range(8), 2_000_000))
    pieces = timer.run()
    assert timer.now_s == pytest.approx(MAX_S) and timer.slept_s >= 0.89 * MAX_S
    assert {len(times) for times in pieces.values()} <= {18, 19}, "3 s / (8 x 2 ms x 10)"


def test_a_crowded_machine_does_not_prolong_the_check() -> None:
    """Each piece waits for its CPU a thousand times as long as it works."""
    timer = ScriptedTimer(dict.fromkeys(range(8), 2_000_000), wall_per_cpu=1000)
    timer.run()
    assert timer.now_s <= MAX_S + 2


def test_a_cpu_that_cannot_be_used_is_left_out() -> None:
    timer = ScriptedTimer({0: 1_000_000, 1: None})
    assert set(timer.run()) == {0}
    assert ScriptedTimer({0: None}).run() == {}


def test_a_check_beside_other_work_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the other work fails, the check does not delay the error."""
    began = threading.Event()

    def wait(seconds: float, sleep: object) -> object:
        began.set()
        return sleep(60)  # type: ignore[operator]

    monkeypatch.setattr(quiet_check, "measure", wait)
    with pytest.raises(OSError, match="gone"), quiet_check.measuring(3.0):
        assert began.wait(30)
        raise OSError("gone")


def test_a_real_check_names_what_it_sees_and_restores_the_cpus() -> None:
    usable = os.sched_getaffinity(0)
    check = quiet_check.measure(0.2, lambda seconds: True)
    assert os.sched_getaffinity(0) == usable and check.pieces == min(len(usable), cpu_speed.MAX_CPUS)
    assert check.cpus == os.cpu_count() and check.programs is not None


def test_a_check_in_a_laboratorys_shell_sees_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOWFAR_SANDBOX", "1")
    assert quiet_check.measure(0.1, lambda seconds: True).programs is None


def test_a_check_whose_cpu_must_not_be_chosen_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cpus: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    check = quiet_check.measure(0.1, lambda seconds: True)
    assert check.speed_scatter is None and check.quick is None and check.programs is not None
