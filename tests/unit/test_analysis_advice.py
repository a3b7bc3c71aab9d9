"""How many blocks it takes to tell, and for whom `--quick` is worth a word."""

from __future__ import annotations

import math
import re

import pytest
from tests.unit.synthetic_run import PATHS, PathModel, synthetic_run

from howfar.analysis.advice import Advice
from howfar.experiments.registry import summarise
from howfar.stats.intervals import Resolution
from howfar.store.records import ArmRole, Run


def run_of(tcp_tps: float, scatter: float) -> Run:
    tcp = PathModel("tcp", ArmRole.CONTENDER, tcp_tps, 8.8, 26.0)
    return synthetic_run(blocks=8, models=(*PATHS[:2], tcp), scatter=scatter, samples=20, seed=5)


def last_advice(run: Run) -> Advice:
    summary = summarise(run)
    assert next(cell for cell in summary.cells if cell.arm == "tcp").resolution is Resolution.NOT_RESOLVED
    return summary.advice[-1]


def test_a_large_effect_needs_few_blocks_however_narrow_the_width_asked() -> None:
    """Half the throughput at a scatter of 50 %: some tens of blocks tell it from 1, hundreds would give ±5 %."""
    advice = last_advice(run_of(600, 0.5))
    found = re.search(r"tcp about (\d+)", advice.because)
    assert found is not None and 8 <= int(found[1]) < 100
    assert "blocks are needed" not in advice.because


def test_a_tiny_effect_is_beyond_reach_and_running_longer_is_not_advised() -> None:
    run = run_of(1000, 0.3)
    base = {t.block: t.measured for t in run.trials if t.arm == "socket" and t.measured}

    def level(arm: str, block: int, transactions: int) -> int:
        """tcp is the baseline, block by block up and down by a third, and a hair slower."""
        return round(transactions * math.exp(0.3 * (-1) ** block) * 0.9999) if arm == "tcp" else transactions

    trials = []
    for trial in run.trials:
        if trial.arm == "tcp" and trial.measured is not None and trial.block in base:
            transactions = level("tcp", trial.block, 100 * base[trial.block].transactions)
            elapsed = 100 * base[trial.block].elapsed_ns
            measured = trial.measured.model_copy(
                update={"transactions": transactions, "queries": 29 * transactions, "elapsed_ns": elapsed}
            )
            trial = trial.model_copy(update={"measured": measured})
        trials.append(trial)
    advice = last_advice(run.model_copy(update={"trials": tuple(trials)}))
    assert "blocks are needed" in advice.because and "tcp" in advice.because
    assert advice.action.startswith("Measure on a quieter machine")


def test_of_dozens_of_cells_one_figure_is_said_and_the_worst() -> None:
    many = tuple(PathModel("tcp", ArmRole.CONTENDER, 600 - n, 8.8, 26.0, name=f"cell {n}") for n in range(30))
    summary = summarise(synthetic_run(blocks=8, models=(*PATHS[:2], *many), scatter=0.5, samples=5, seed=5))
    sentence = summary.advice[-1].because
    found = re.search(r"about (\d+) in the median of (\d+) cells, (\d+) at worst \(cell \d+\)", sentence)
    assert found is not None, sentence
    assert 8 < int(found[1]) < int(found[3]) and int(found[2]) > 6
    assert sentence.count("cell ") == 1 and len(sentence) < 400


@pytest.mark.parametrize("quick", [True, False])
def test_only_a_quick_run_is_told_of_quick(quick: bool) -> None:
    run = run_of(600, 0.5)
    advice = last_advice(run.model_copy(update={"info": run.info.model_copy(update={"quick": quick})}))
    assert ("--quick" in advice.action) is quick


def test_the_blocks_that_did_not_resolve_are_never_said_to_be_enough() -> None:
    for seed in range(4):
        tcp = PathModel("tcp", ArmRole.CONTENDER, 600, 8.8, 26.0)
        summary = summarise(synthetic_run(blocks=10, models=(*PATHS[:2], tcp), scatter=0.7, samples=5, seed=seed))
        found = re.search(r"tcp about (\d+)", summary.advice[-1].because) if summary.advice else None
        assert found is None or int(found[1]) > 10


def test_the_width_asked_for_is_asked_of_the_same_path_twice_too() -> None:
    """A wild A/A arm keeps a session wide, however well the other arms behave."""
    run = run_of(990, 0.02)
    trials = []
    for trial in run.trials:
        if trial.arm == "socket (again)" and trial.measured is not None:
            elapsed = round(trial.measured.elapsed_ns * math.exp(0.2 * (-1) ** trial.block))
            trial = trial.model_copy(update={"measured": trial.measured.model_copy(update={"elapsed_ns": elapsed})})
        trials.append(trial)
    summary = summarise(run.model_copy(update={"trials": tuple(trials)}))
    needed = {cell.arm: cell.blocks_needed for cell in summary.cells}
    tcp, again = needed["tcp"], needed["socket (again)"]
    assert tcp is not None and again is not None and tcp < again
    assert f"About {again} blocks give the requested width." in summary.advice[-1].because
