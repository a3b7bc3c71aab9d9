"""The conductor on the fake laboratory: order, stopping, void trials, resuming."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from pathlib import Path

import pytest
from tests.unit.fake_lab import COUNTED, FAKE_SERVER, RATES, FakeClock, FakeLaboratory, conducted, fake_info, fakes

from howfar.analysis.answer import not_yet
from howfar.analysis.diagnostics import Diagnostic
from howfar.contract.messages import LoadJob, Sysbench
from howfar.contract.violation import FAILED, OTHER, violation
from howfar.errors import EngineError, LabError
from howfar.experiments.registry import summarise
from howfar.plan.load import Override, load_plan
from howfar.report.figures import void_line
from howfar.report.frame import warning_lines
from howfar.runner.run import execute_run
from howfar.runner.stopping import ATTEMPTS_PER_BLOCK, MAX_CONSECUTIVE_VOIDS
from howfar.stats.trials import trial_table
from howfar.store.records import StopReason, Trial, TrialStatus, left_out_trials, plan_part
from howfar.store.run_file import RunFile, create, read_run

ARMS = 5


def noisy(job: LoadJob) -> float:
    """A factor of 1 ± 10 %, always the same for the same job."""
    return 1 + 0.2 * (random.Random(zlib.crc32(job.model_dump_json().encode())).random() - 0.5)


def key(trial: Trial) -> tuple[int, int, str]:
    return trial.block, trial.position, trial.arm


def test_exact_paths_stop_by_width_after_the_least_blocks(tmp_path: Path) -> None:
    laboratory, _engine, instruments = fakes()
    run = conducted(tmp_path / "a.howfar", laboratory, instruments)
    assert run.stop is StopReason.WIDTH
    assert len(run.trials) == 8 * ARMS
    assert [trial.number for trial in run.trials] == list(range(40))
    for trial in run.trials:
        assert trial.measured is not None
        path = trial.arm.removesuffix(" (again)")
        assert trial.measured.queries == pytest.approx(RATES[path] * 4, rel=0.001)
        assert trial.receipt.session is not None and trial.receipt.session.peer_address == f"/fake/{path}"
        assert trial.receipt.server == FAKE_SERVER
    assert Counter(trial.arm for trial in run.trials) == dict.fromkeys(
        ["socket", "socket (again)", "tcp", "remote", "forwarded-socket"], 8
    )


def test_every_path_of_a_block_runs_the_same_transactions(tmp_path: Path) -> None:
    laboratory, engine, instruments = fakes()
    with create(tmp_path / "a.howfar", fake_info()) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    seeds = [job.seed for job in engine.jobs]
    assert all(len(set(seeds[block * ARMS : (block + 1) * ARMS])) == 1 for block in range(8))
    assert len(set(seeds)) == 8


def test_the_plan_reaches_the_engine_unchanged(tmp_path: Path) -> None:
    laboratory, engine, instruments = fakes()
    with create(tmp_path / "a.howfar", fake_info()) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    job = engine.jobs[0]
    assert isinstance(job.workload, Sysbench)
    assert (job.workload.tables, job.workload.table_size) == (10, 100_000)
    assert (job.workload.point_selects, job.workload.range_size, job.workload.skip_trx) == (25, 5, True)
    assert job.workload.distribution.kind == "pareto"
    assert (job.connections, job.warmup_ns, job.measure_ns) == (2, 1_000_000_000, 4_000_000_000)
    assert laboratory.staged[0].keys() >= {"path", "threads", "placement", "server"}


def test_noise_runs_into_the_time_budget_and_not_over_it(tmp_path: Path) -> None:
    laboratory, _engine, instruments = fakes(jitter=lambda job: noisy(job) ** 8)
    began = laboratory.clock()
    with create(tmp_path / "a.howfar", fake_info()) as file:
        assert execute_run(file, laboratory, began, instruments) is StopReason.TIME
    assert laboratory.clock() - began <= 280_000_000_000
    assert len(read_run(tmp_path / "a.howfar").trials) == 50  # 280 s / (5 x 5.5 s) = 10.2 blocks


def test_slow_staging_ends_within_a_trial_of_the_budget(tmp_path: Path) -> None:
    """The run ends in time even when trials become slower than any forecast."""
    laboratory, _engine, instruments = fakes()
    laboratory.staging_ns = 60_000_000_000
    began = laboratory.clock()
    with create(tmp_path / "a.howfar", fake_info()) as file:
        assert execute_run(file, laboratory, began, instruments) is StopReason.TIME
    assert laboratory.clock() - began <= (280 + 65) * 1_000_000_000


def test_noise_runs_to_the_cap_on_blocks_when_time_allows(tmp_path: Path) -> None:
    laboratory, _engine, instruments = fakes(jitter=noisy)
    loaded = load_plan(
        "paths",
        quick=True,
        overrides=[
            *COUNTED,
            Override("--time-budget", ("timing", "time_budget"), "10h"),
            Override("--target", ("timing", "target"), "0.1%"),
        ],
    )
    with create(tmp_path / "a.howfar", fake_info(loaded=loaded)) as file:
        assert execute_run(file, laboratory, laboratory.clock(), instruments) is StopReason.BLOCKS
    assert len(read_run(tmp_path / "a.howfar").trials) == 30 * ARMS


def test_a_block_with_a_void_trial_is_measured_again_as_a_whole(tmp_path: Path) -> None:
    laboratory, _engine, instruments = fakes()
    laboratory.trouble = lambda path, number: ("the server spoke TLS",) if number == 3 else ()
    run = conducted(tmp_path / "a.howfar", laboratory, instruments)
    void = run.trials[3]
    assert (void.status, void.void_reason) == (TrialStatus.VOID, "the server spoke TLS")
    assert void.violations == (violation(OTHER, text="the server spoke TLS"),)
    assert void.measured is not None, "raw data of a void trial are kept"
    assert [trial.attempt for trial in run.trials[:4]] == [0] * 4
    again = run.trials[4 : 4 + ARMS]
    assert [(trial.block, trial.position, trial.attempt) for trial in again] == [(0, place, 1) for place in range(ARMS)]
    assert [trial.arm for trial in again[:4]] == [trial.arm for trial in run.trials[:4]], "in the same order"
    assert len(run.trials) == 40 + 4
    assert laboratory.blocks[:3] == [0, 4, 4 + ARMS], "each attempt is calibrated anew"
    assert left_out_trials(run) == {0, 1, 2}
    summary = summarise(run)
    assert (summary.void_trials, summary.left_out_trials) == (1, 3)
    assert {0, 1, 2}.isdisjoint(point.number for point in summary.trials)
    assert "Also excluded: 3 good trials, because another trial of the same block was void" in void_line(summary)


def stays_void(laboratory: FakeLaboratory, times: int) -> None:
    """Make the first `times` trials of tcp void."""
    voids: list[int] = []

    def trouble(path: str, number: int) -> tuple[str, ...]:
        if path != "tcp" or len(voids) == times:
            return ()
        voids.append(number)
        return ("disturbed",)

    laboratory.trouble = trouble


def test_a_block_that_stays_void_is_left_out_as_a_whole(tmp_path: Path) -> None:
    """Its last attempt runs to the end, but none of its trials counts for any arm. The run continues with the next block."""
    laboratory, _engine, instruments = fakes()
    stays_void(laboratory, ATTEMPTS_PER_BLOCK)
    run = conducted(tmp_path / "a.howfar", laboratory, instruments)
    first = [trial for trial in run.trials if trial.block == 0]
    assert sum(trial.attempt == ATTEMPTS_PER_BLOCK - 1 for trial in first) == ARMS
    assert all(trial.number in left_out_trials(run) for trial in first if trial.status is TrialStatus.OK)
    assert all(0 not in blocks for blocks in trial_table(plan_part(run)).good.values())
    assert any(trial.block == 1 for trial in run.trials)
    assert Diagnostic.DISTURBED not in summarise(run).warnings


FOUR_BLOCKS = [*COUNTED, *(Override("", ("timing", key), 4) for key in ("min_blocks", "max_blocks"))]


def test_a_spoiled_block_counts_for_no_arm_however_few_the_others_are(tmp_path: Path) -> None:
    """Three blocks remain: their values are shown without an interval."""
    laboratory, _engine, instruments = fakes()
    stays_void(laboratory, 5)
    loaded = load_plan("paths", quick=True, overrides=FOUR_BLOCKS)
    run = conducted(tmp_path / "a.howfar", laboratory, instruments, fake_info(loaded=loaded))
    good = trial_table(plan_part(run)).good
    assert {arm: sorted(blocks) for arm, blocks in good.items()} == {arm.name: [1, 2, 3] for arm in run.info.arms}
    summary = summarise(run)
    assert summary.answer.findings == (not_yet(3),)
    assert all(cell.qps.low is None and len(cell.qps.points) == 3 for cell in summary.cells)
    assert Diagnostic.DISTURBED not in summary.warnings


def test_where_every_block_is_spoiled_the_first_are_shown_and_that_is_said(tmp_path: Path) -> None:
    """Two paths are void in alternate blocks, each in all attempts at a block."""
    laboratory, _engine, instruments = fakes()

    def trouble(path: str, number: int) -> tuple[str, ...]:
        block = (len(laboratory.blocks) - 1) // ATTEMPTS_PER_BLOCK
        return ("disturbed",) if path == ("tcp", "remote")[block % 2] else ()

    laboratory.trouble = trouble
    loaded = load_plan("paths", quick=True, overrides=FOUR_BLOCKS)
    run = conducted(tmp_path / "a.howfar", laboratory, instruments, fake_info(loaded=loaded))
    table = trial_table(plan_part(run))
    shown = {"tcp": [1], "remote": [0, 2]}
    assert {arm: sorted(good) for arm, good in table.good.items()} == {
        arm.name: shown.get(arm.name, [0, 1, 2]) for arm in run.info.arms
    }
    good = [trial for trial in table.run.trials if trial.status is TrialStatus.OK]
    assert all(trial.attempt == ATTEMPTS_PER_BLOCK - 1 for trial in good)
    summary = summarise(run)
    assert all(cell.qps.low is None for cell in summary.cells)
    assert Diagnostic.DISTURBED in summary.warnings
    assert "Each time that everything was measured, a trial was void" in " ".join(warning_lines(summary))


def test_a_file_of_before_keeps_all_good_trials(tmp_path: Path) -> None:
    laboratory, _engine, instruments = fakes()
    laboratory.trouble = lambda path, number: ("the server spoke TLS",) if number == 3 else ()
    run = conducted(tmp_path / "a.howfar", laboratory, instruments)
    assert not left_out_trials(run.model_copy(update={"info": run.info.model_copy(update={"whole_blocks": False})}))


@pytest.mark.parametrize("error", [LabError("the server died"), EngineError("the engine died")])
def test_a_crash_makes_the_trial_void_and_the_run_goes_on(tmp_path: Path, error: Exception) -> None:
    laboratory, engine, instruments = fakes()

    def crash(job: LoadJob) -> None:
        if len(engine.jobs) == 10:
            raise error

    engine.before = crash
    run = conducted(tmp_path / "a.howfar", laboratory, instruments)
    assert run.stop is StopReason.WIDTH
    (void,) = (trial for trial in run.trials if trial.status is TrialStatus.VOID)
    assert (void.void_reason, void.violations) == (str(error), (violation(FAILED, message=str(error)),))


def test_an_arm_that_stays_void_ends_the_run_and_keeps_everything(tmp_path: Path) -> None:
    laboratory, _engine, instruments = fakes()
    laboratory.trouble = lambda path, number: ("no socat",) if path == "forwarded-socket" else ()
    with (
        create(tmp_path / "a.howfar", fake_info()) as file,
        pytest.raises(LabError, match="forwarded-socket: 6 trials in a row were void") as caught,
    ):
        execute_run(file, laboratory, laboratory.clock(), instruments)
    assert "howfar resume" in caught.value.advice
    run = read_run(tmp_path / "a.howfar")
    assert run.stop is None
    voids = [trial for trial in run.trials if trial.status is TrialStatus.VOID]
    assert len(voids) == MAX_CONSECUTIVE_VOIDS
    assert all(trial.attempt < ATTEMPTS_PER_BLOCK for trial in voids)


def test_a_trial_without_a_transaction_is_void(tmp_path: Path) -> None:
    laboratory, _engine, instruments = fakes(jitter=lambda job: 0.0 if job.target.kind == "unix" else 1.0)
    with create(tmp_path / "a.howfar", fake_info()) as file, pytest.raises(LabError, match="no transaction"):
        execute_run(file, laboratory, laboratory.clock(), instruments)


class Cut(BaseException):
    """Stands for the sudden end of the process."""


SHORT = [
    *COUNTED,
    Override("", ("timing", "min_blocks"), 3),
    Override("", ("timing", "max_blocks"), 3),
]


@pytest.mark.parametrize("cut_at", range(16))
def test_resume_repeats_no_finished_trial(tmp_path: Path, cut_at: int) -> None:
    """A run cut at any trial boundary and resumed has the same trials in the same order as an uninterrupted run."""
    path = tmp_path / "a.howfar"
    loaded = load_plan("paths", quick=True, overrides=SHORT)
    laboratory, engine, instruments = fakes(jitter=noisy)

    def cut(job: LoadJob) -> None:
        if len(engine.jobs) == cut_at + 1:
            raise Cut

    engine.before = cut
    file = create(path, fake_info(seed=7, loaded=loaded))
    try:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    except Cut:
        pass
    finally:
        file.close()
    first = read_run(path).trials
    assert len(first) == cut_at
    laboratory, engine, instruments = fakes(FakeClock(), noisy)
    with RunFile(path) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    whole = read_run(path).trials
    assert whole[: len(first)] == first
    places = [key(trial) for trial in whole]
    assert len(set(places)) == len(places), "no place was measured twice"
    laboratory, engine, instruments = fakes(FakeClock(), noisy)
    at_once = conducted(tmp_path / "b.howfar", laboratory, instruments, fake_info(seed=7, loaded=loaded)).trials
    assert [key(trial) for trial in at_once] == places
    assert [trial.measured for trial in at_once] == [trial.measured for trial in whole]


def test_ctrl_c_is_recorded_and_resume_goes_on(tmp_path: Path) -> None:
    laboratory, engine, instruments = fakes()

    def interrupt(job: LoadJob) -> None:
        if len(engine.jobs) == 13:
            raise KeyboardInterrupt

    engine.before = interrupt
    path = tmp_path / "a.howfar"
    with create(path, fake_info()) as file:
        assert execute_run(file, laboratory, laboratory.clock(), instruments) is StopReason.INTERRUPTED
    assert (read_run(path).stop, len(read_run(path).trials)) == (StopReason.INTERRUPTED, 12)
    with RunFile(path) as file:
        assert execute_run(file, laboratory, laboratory.clock(), instruments) is StopReason.WIDTH
    assert len(read_run(path).trials) == 40
