"""Trials in which other programs used CPUs, which a median over all trials hides, are counted, named, and left out for comparison."""

from __future__ import annotations

import random

import pytest
from tests.made import build_trial
from tests.unit.rendered import markdown
from tests.unit.synthetic_run import PATHS, arms, measured, receipt, run_of, synthetic_run

from howfar.analysis.advice_texts import ACTIONS
from howfar.analysis.summary import Summary, _all_advice
from howfar.contract.receipt import ProgramUse
from howfar.experiments.registry import render_in_terminal, summarise
from howfar.findings import capital
from howfar.report.certainty import certainty
from howfar.stats.intervals import Resolution
from howfar.store.records import MachineLoad, StopReason, Trial

BLOCKS, DISTURBED = 9, (2, 5)


def disturbed_run(
    kept_by_remote: float, names: bool = True, others_cpus: float = 1.7, disturbed: tuple[int, ...] = DISTURBED
) -> Summary:
    """A run in which other programs kept CPUs busy in two of nine blocks: local arms kept a third of their throughput."""
    chance, trials = random.Random(1), list[Trial]()
    for block in range(BLOCKS):
        for position, model in enumerate(chance.sample(PATHS, len(PATHS))):
            is_disturbed = block in disturbed
            kept = (kept_by_remote if model.link_us else 1 / 3) if is_disturbed else 1.0
            seen = measured(model, chance, kept * (1 + chance.gauss(0, 0.02)), samples=60)
            own_cpus = sum(cpu.cpu_ns for cpu in seen.cpu) / seen.elapsed_ns
            load = MachineLoad(
                psi_cpu_some_share=0.1,
                psi_io_some_share=0.0,
                steal_share=0.0,
                load_average_1m=1.4,
                busy_cpus=own_cpus + (others_cpus if is_disturbed else 0.06),
            )
            proof = receipt(model.path)
            proof.programs = (ProgramUse(name="cargo", pid=4711, cpus=1.6),) if is_disturbed and names else ()
            trial = build_trial(
                len(trials), model.arm, block=block, position=position, measured=seen, receipt=proof, load=load
            )
            trials.append(trial)
    return summarise(run_of("paths", arms(), trials, StopReason.BLOCKS, seed=1))


def test_disturbed_trials_are_counted_and_the_program_is_named() -> None:
    """[dist-1] Each trial is judged, not their median."""
    summary = disturbed_run(1 / 3)
    found, trials = summary.disturbance, len(DISTURBED) * len(PATHS)
    assert found is not None and (found.trials, found.of) == (trials, BLOCKS * len(PATHS))
    assert found.blocks == DISTURBED and found.max_cpus == pytest.approx(1.7, abs=0.01)
    (program,) = found.programs
    assert program.share == pytest.approx(1.6 / 1.7, abs=0.01)
    assert (program.name, program.pids, program.trials, program.max_cpus) == ("cargo", (4711,), trials, 1.6)
    assert found.quiet_ratios == {}, "all arms were slowed alike"
    screen = " ".join(render_in_terminal(summary, 80, False, True, False).split())
    assert f"other programs, mostly cargo (pid 4711), used up to 1.7 of 2 CPUs in {trials} of" in screen


def test_a_program_without_a_name_is_still_counted() -> None:
    assert f"used up to 1.7 of 2 CPUs in {len(DISTURBED) * len(PATHS)} of" in certainty(
        disturbed_run(1 / 3, names=False)
    )


def test_a_quiet_machine_is_not_disturbed() -> None:
    summary = disturbed_run(1, others_cpus=0.1)
    assert summary.disturbance is None and "other programs" not in certainty(summary)


def test_ratios_that_the_disturbance_changed_are_given_without_it_too() -> None:
    """[dist-2] The local baseline falls to a third, and the arm over the link hardly: its ratio in these blocks says nothing
    about paths."""
    summary, slowed_alike = disturbed_run(0.83), disturbed_run(1 / 3)
    assert summary.disturbance is not None and "remote" in summary.disturbance.quiet_ratios
    found = summary.disturbance.quiet_ratios["remote"]
    quiet = found.ratio
    assert found.reference == "socket" and found.resolution is Resolution.SLOWER
    expected = next(cell.ratio for cell in slowed_alike.cells if cell.arm == "remote")
    assert slowed_alike.disturbance is not None and expected is not None
    assert quiet.low is not None and quiet.high is not None and quiet.low <= expected.value <= quiet.high
    assert "without the blocks of these trials, remote makes " in certainty(summary)


def test_a_run_that_was_much_disturbed_is_to_be_repeated() -> None:
    few, many = disturbed_run(1 / 3), disturbed_run(1 / 3, disturbed=(1, 2, 5, 7))
    assert [advice.id for advice in few.advice].count("repeat-disturbed") == 0
    assert many.advice[0].id == "repeat-disturbed" and "such as cargo" in many.advice[0].action
    assert many.advice[0].lines == (many.command,) and many.advice[0].action.endswith(":")
    assert certainty(few).startswith("Fair: ") and certainty(many).startswith("Poor: ")


def test_what_no_named_program_disturbed_is_to_be_repeated_when_it_is_quiet() -> None:
    """No program was found that could be stopped. The command completes the action, and is no configuration."""
    summary = disturbed_run(1 / 3, names=False, disturbed=(1, 2, 5, 7))
    advice = summary.advice[0]
    assert advice.id == "repeat-elsewhere" and advice.action == f"{capital(ACTIONS['repeat-elsewhere'])}:"
    assert advice.because.startswith("Other programs used") and advice.lines == (summary.command,)
    advised, _, configuration = " ".join(markdown.render(summary).split()).partition(" ## Configuration ")
    assert f"1. **{advice.action}** ``` {summary.command} ``` {advice.because}" in advised
    assert summary.command not in configuration.partition("<details>")[0]


def test_a_quick_run_never_ends_without_advice() -> None:
    summary = disturbed_run(1, others_cpus=0.1)
    assert summary.advice and _all_advice(synthetic_run(blocks=8, samples=20), None, ())[0].id == "full-plan"


def test_the_advised_full_plan_is_that_of_this_run_with_its_options() -> None:
    run = synthetic_run(blocks=8, samples=20)
    command = ("howfar", "run", "./my shop.toml", "--quick", "--server", "mysql", "--target", "8%", "--seed", "42")
    info = run.info.model_copy(update={"plan_name": "shop", "command": command})
    (advice,) = _all_advice(run.model_copy(update={"info": info}), None, ())
    assert advice.lines == ("howfar run './my shop.toml' --full --server mysql",)
