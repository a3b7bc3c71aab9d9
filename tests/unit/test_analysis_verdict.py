"""The sentence of a run: of one block, and of a path that is compared with nothing but itself."""

from __future__ import annotations

from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_run import synthetic_run

from howfar.experiments.registry import summarise
from howfar.report.figures import session_line
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import interval_text
from howfar.store.records import ArmRole, Run


def _alone(run: Run) -> Run:
    """Without every arm but the baseline and its duplicate."""
    kept = tuple(arm for arm in run.info.arms if arm.role is not ArmRole.CONTENDER)
    names = {arm.name for arm in kept}
    info = run.info.model_copy(update={"arms": kept})
    return run.model_copy(update={"info": info, "trials": tuple(t for t in run.trials if t.arm in names)})


def test_one_block_is_no_answer_and_has_no_interval() -> None:
    """First of all on the screen; no width where there is none; and no list of arms that blocks may or may not resolve."""
    summary = summarise(synthetic_run(blocks=1, samples=5))
    assert summary.verdict.startswith("Fewer than 4 blocks: no answer yet. So far: ")
    assert "no interval from fewer than 4 blocks" in session_line(summary)
    assert "±0.0" not in terminal.render(summary, 100)
    last = summary.advice[-1]
    assert last.action == "Run longer: at least 4 blocks are needed." and "remote" not in last.because
    assert "no answer yet" not in summarise(synthetic_run(blocks=4, samples=5)).verdict


def test_a_path_against_itself_is_judged_and_shown() -> None:
    summary = summarise(_alone(synthetic_run(blocks=8, samples=20)))
    assert summary.verdict.startswith("socket was measured under two names: the second reached ")
    assert "no difference is resolved" in summary.verdict
    assert "socket (again)" in terminal.render(summary, 100)


def test_one_block_says_that_it_is_too_few() -> None:
    summary = summarise(_alone(synthetic_run(blocks=1, samples=20)))
    assert "too few blocks" in summary.verdict


def test_a_limit_near_nothing_is_not_written_as_nothing() -> None:
    assert interval_text(Estimate(value=0.19, low=0.0013, high=1.24)) == "0.190 [0.001, 1.240]"
    assert interval_text(Estimate(value=0.48, low=0.19, high=1.24)) == "0.48 [0.19, 1.24]"
