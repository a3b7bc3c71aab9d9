"""Who else used the machine, and how much it moved the figures."""

from __future__ import annotations

import pytest
from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.signs import OTHERS_SHARE, Warning
from howfar.experiments.registry import summarise
from howfar.stats.trials import others_in
from howfar.store.records import MachineLoad, Measured, Run, Trial, Window


def ours(measured: Measured) -> float:
    return sum(cpu.cpu_ns for cpu in measured.cpu) / measured.elapsed_ns


def with_others(others: float | None, run: Run | None = None) -> Run:
    """Of a machine of two CPUs. None: a run file that does not say."""

    def load(trial: Trial) -> MachineLoad | None:
        assert trial.load is not None
        busy = None if others is None or trial.measured is None else ours(trial.measured) + others
        return trial.load.model_copy(update={"busy_cpus": busy})

    run = run or synthetic_run(blocks=8, samples=20)
    return run.model_copy(update={"trials": tuple(t.model_copy(update={"load": load(t)}) for t in run.trials)})


@pytest.mark.parametrize(("others", "busy"), [(2 * OTHERS_SHARE + 0.01, True), (2 * OTHERS_SHARE - 0.01, False)])
def test_cpus_in_other_hands_are_a_busy_machine(others: float, busy: bool) -> None:
    summary = summarise(with_others(others))
    assert summary.others_cpus == pytest.approx(others)
    assert (Warning.BUSY_MACHINE in summary.warnings) is busy


def test_the_figure_stands_in_the_report_with_each_trial() -> None:
    page = html.render(summarise(with_others(1.04)))
    assert "kept 1.04 of 2 CPUs busy in the median trial. This machine counts as busy" in page
    assert "<span>1.04</span>" in page


def test_a_run_that_does_not_say_is_unknown_and_not_quiet() -> None:
    summary = summarise(with_others(None))
    assert summary.others_cpus is None and Warning.BUSY_MACHINE not in summary.warnings
    page = markdown.render(summary)
    assert "not recorded" in page and "counts as busy" not in page


def test_less_than_our_own_is_none_of_others() -> None:
    assert summarise(with_others(-0.3)).others_cpus == 0


def test_the_spread_of_the_baseline_is_of_this_run() -> None:
    summary = summarise(synthetic_run(blocks=8, samples=20))
    qps = [trial.qps for trial in summary.trials if trial.arm == "socket" and trial.qps]
    assert summary.baseline_spread is not None and summary.baseline_spread.cpu_per_query is not None
    assert summary.baseline_spread.qps == pytest.approx(max(qps) / min(qps))
    assert 1 < summary.baseline_spread.cpu_per_query < summary.baseline_spread.qps
    assert "CPU per query was steadier than throughput" in markdown.render(summary)


def test_cpu_that_moved_more_than_the_clock_is_not_praised() -> None:
    run = synthetic_run(blocks=8, samples=20)

    def dearer(trial: Trial) -> Trial:
        if trial.measured is None or trial.block != 3:
            return trial
        cpu = tuple(record.model_copy(update={"cpu_ns": record.cpu_ns * 5}) for record in trial.measured.cpu)
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"cpu": cpu})})

    run = run.model_copy(update={"trials": tuple(dearer(trial) for trial in run.trials)})
    assert "CPU per query was no steadier than throughput" in markdown.render(summarise(run))


def test_only_blocks_with_every_arm_count_as_complete() -> None:
    run = synthetic_run(blocks=8, samples=20)
    kept = tuple(trial for trial in run.trials if not (trial.arm == "tcp" and trial.block in (2, 7)))
    summary = summarise(run.model_copy(update={"trials": kept}))
    assert (summary.blocks, summary.complete_blocks) == (8, 6)
    assert "In each of 6 complete blocks" in markdown.render(summary)
    assert summarise(synthetic_run(blocks=0)).complete_blocks == 0


def test_the_window_says_better_what_was_busy() -> None:
    """The load goes on until the last pages in hand have ended: idle, as here, or with work that is in no trial."""
    run = with_others(0.0)
    trial = next(t for t in run.trials if t.measured is not None)
    assert trial.measured is not None
    window = Window(length_ns=trial.measured.elapsed_ns, interface="", cpus_busy={0: ours(trial.measured), 1: 0.5})
    assert others_in(trial) == pytest.approx(0.0)
    assert others_in(trial.model_copy(update={"window": window})) == pytest.approx(0.5)
    assert others_in(trial.model_copy(update={"window": window, "load": None})) == pytest.approx(0.5)
