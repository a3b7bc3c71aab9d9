"""Which arms rest: saturated tails, shown by intervals; and the conductor, which then omits them and continues with the others."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fake_lab import FakeClock, FakeEngine, fake_info, fakes

from howfar.analysis.plateau import AGREEMENT, paused_arms
from howfar.contract.messages import LoadJob
from howfar.experiments.registry import summarise
from howfar.plan.load import Override, load_plan
from howfar.report.figures import settled_line
from howfar.runner.run import execute_run
from howfar.runner.stopping import blocks_done, remaining_slots, run_progress
from howfar.stats.intervals import MIN_BLOCKS
from howfar.store.records import ArmRole, Run, RunInfo, StopReason, Trial
from howfar.store.run_file import RunFile, create, read_run

THREADS = [1, 2, 4, 8, 16, 32, 64]
SATURATED_AT = 4
"""From this level on more connections change nothing: levels 4 to 64 are flat, so 8, 16 and 32 may rest."""
INSIDE = {f"{path}, {n} threads" for path in ("socket", "tcp") for n in (8, 16, 32)}


def level(table: str, key: str, value: Any) -> Override:
    """An override as a plan file would make it; the command line has no lists."""
    return Override("", (table, key), value)


def info(seed: int = 3, blocks: int = 8, target: str = "5%") -> RunInfo:
    """A run of two paths at seven levels, including the baseline; `blocks` is the maximum."""
    loaded = load_plan(
        "paths",
        quick=True,
        overrides=[
            level("factors", "path", ["socket", "tcp"]),
            level("factors", "threads", THREADS),
            level("baseline", "threads", 2),
            level("timing", "min_blocks", min(blocks, 8)),
            level("timing", "max_blocks", blocks),
            level("timing", "target", target),
            level("timing", "time_budget", "5h"),
        ],
    )
    return fake_info(seed=seed, loaded=loaded)


def saturating(scatter: float) -> Callable[[LoadJob], float]:
    def factor(job: LoadJob) -> float:
        noise = random.Random(zlib.crc32(job.model_dump_json().encode())).uniform(-1, 1)
        return min(job.connections, SATURATED_AT) / SATURATED_AT * (1 + scatter * noise)

    return factor


def measured(path: Path, head: RunInfo, scatter: float = 0.002) -> Run:
    laboratory, _, instruments = fakes(jitter=saturating(scatter))
    with create(path, head) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    return read_run(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return measured(tmp_path_factory.mktemp("whole") / "a.howfar", info())


def arms_of(run: Run, block: int) -> set[str]:
    return {trial.arm for trial in run.trials if trial.block == block}


def test_what_is_deep_on_a_plateau_rests_after_four_blocks(whole: Run) -> None:
    run = whole
    everyone = {arm.name for arm in run.info.arms}
    assert [arms_of(run, block) for block in range(MIN_BLOCKS)] == [everyone] * MIN_BLOCKS
    assert [arms_of(run, block) for block in range(MIN_BLOCKS, 8)] == [everyone - INSIDE] * (8 - MIN_BLOCKS)
    assert run.stop is StopReason.WIDTH, "what rests is narrow too, so the run may end by width"


def test_ends_of_a_plateau_one_connection_and_the_baseline_never_rest(tmp_path: Path) -> None:
    """Here the baseline is in the middle of a plateau, and one connection saturates."""
    loaded = load_plan(
        "paths",
        quick=True,
        overrides=[
            level("factors", "path", ["socket"]),
            level("factors", "threads", [1, 2, 4, 8, 16]),
            level("baseline", "threads", 4),
        ],
    )
    laboratory, _, instruments = fakes()
    with create(tmp_path / "a.howfar", fake_info(loaded=loaded)) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    run = read_run(tmp_path / "a.howfar")
    kept = {"socket, 1 thread", "socket, 4 threads", "socket, 4 threads (again)", "socket, 16 threads"}
    assert arms_of(run, MIN_BLOCKS) == kept


def test_scatter_beyond_the_agreement_lets_nobody_rest(tmp_path: Path) -> None:
    """The figures agree on average, but an interval that merely includes 1 does not prove that."""
    run = measured(tmp_path / "a.howfar", info(blocks=MIN_BLOCKS + 1), scatter=4 * AGREEMENT)
    assert {len(arms_of(run, block)) for block in range(MIN_BLOCKS + 1)} == {len(run.info.arms)}


def test_the_report_says_who_settled_and_keeps_the_interval(whole: Run) -> None:
    summary = summarise(whole)
    cells = {cell.arm: cell for cell in summary.cells}
    assert {name for name, cell in cells.items() if cell.settled_after is not None} == INSIDE
    assert {cells[name].settled_after for name in INSIDE} == {MIN_BLOCKS}
    assert all(len(cells[name].block_ratios) == MIN_BLOCKS and cells[name].ratio for name in INSIDE)
    assert summary.complete_blocks == 8
    assert "tcp, 16 threads (after 4 blocks)" in settled_line(summary)


def test_a_target_that_a_resting_arm_has_not_reached_wakes_it(tmp_path: Path) -> None:
    """It is woken when all others are narrow. A run never ends by width because of what it left out."""
    run = measured(tmp_path / "a.howfar", info(blocks=30, target="0.1%"), scatter=0.0012)
    assert run.stop is StopReason.WIDTH
    last = max(trial.block for trial in run.trials) + 1
    widths = [arm.half_width for arm in run_progress(run, last, 0.001).arms if arm.half_width is not None]
    assert len(widths) == len(run.info.arms) - 1
    assert max(widths) <= 0.001
    assert min(len(arms_of(run, block)) for block in range(last)) < len(run.info.arms), "some did rest"
    assert len(arms_of(run, last - 1) & INSIDE) > 0, "and were measured again at the end"


def scattered(run: Run, arm: str, by: float) -> tuple[Trial, ...]:
    """The run's trials, with those of `arm` alternately faster and slower by the share `by`."""

    def moved(trial: Trial) -> Trial:
        assert trial.measured is not None
        more = round(trial.measured.queries * (by if trial.block % 2 else -by))
        measured = trial.measured.model_copy(update={"queries": trial.measured.queries + more})
        return trial.model_copy(update={"measured": measured})

    return tuple(moved(trial) if trial.arm == arm else trial for trial in run.trials)


def test_a_wide_control_lets_a_resting_arm_be_woken(whole: Run) -> None:
    """All other arms are narrow. A control is compared with nothing, so its width does not matter."""
    wide = "tcp, 16 threads"
    run = whole.model_copy(update={"trials": scattered(whole, wide, 0.008)})
    assert paused_arms(run, MIN_BLOCKS, 0.01) == INSIDE - {wide}
    first = run.info.arms[0]
    control = first.model_copy(update={"name": "link alone", "role": ArmRole.CONTROL})
    again = tuple(trial.model_copy(update={"arm": control.name}) for trial in run.trials if trial.arm == first.name)
    with_control = run.model_copy(
        update={
            "info": run.info.model_copy(update={"arms": (*run.info.arms, control)}),
            "trials": (*run.trials, *again),
        }
    )
    scatter = with_control.model_copy(update={"trials": scattered(with_control, control.name, 0.2)})
    assert paused_arms(scatter, MIN_BLOCKS, 0.01) == INSIDE - {wide}


class Cut(BaseException):
    """Stands for the sudden end of the process."""


@pytest.mark.parametrize("cut_at", [60, 62, 75])
def test_a_cut_run_goes_on_with_the_same_places(whole: Run, tmp_path: Path, cut_at: int) -> None:
    """Cut in the block in which arms begin to rest (61 trials are 4 blocks of 15 and one more), and after it."""
    path = tmp_path / "cut.howfar"
    laboratory, engine, instruments = fakes(jitter=saturating(0.002))
    stop_at(engine, cut_at)
    with create(path, info()) as file, pytest.raises(Cut):
        execute_run(file, laboratory, laboratory.clock(), instruments)
    laboratory, _, instruments = fakes(FakeClock(), saturating(0.002))
    with RunFile(path) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    assert [places(trial) for trial in read_run(path).trials] == [places(trial) for trial in whole.trials]


def stop_at(engine: FakeEngine, count: int) -> None:
    def cut(job: LoadJob) -> None:
        if len(engine.jobs) == count + 1:
            raise Cut

    engine.before = cut


def places(trial: Trial) -> tuple[int, int, str]:
    return trial.block, trial.position, trial.arm


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_same_trials_give_the_same_next_place(whole: Run, data: st.DataObject) -> None:
    """For every prefix of a run the next place is the one that was taken; the order in which trials are read does not matter."""
    count = data.draw(st.integers(0, len(whole.trials) - 1))
    part = whole.model_copy(update={"trials": tuple(data.draw(st.permutations(whole.trials[:count])))})
    block = blocks_done(part, 0.05)
    place = next(remaining_slots(part, block, 0.05))
    then = whole.trials[count]
    assert (place.block, place.position, place.arm) == places(then)
    assert then.arm not in paused_arms(part, block, 0.05)


def test_a_block_costs_what_is_measured_in_it(whole: Run) -> None:
    run = whole
    assert run_progress(run, 2, 0.05).slots == len(run.info.arms)
    now = run_progress(run, MIN_BLOCKS + 1, 0.05)
    assert now.slots == len(run.info.arms) - len(INSIDE)
    assert {arm.arm for arm in now.arms if arm.is_paused} == INSIDE
