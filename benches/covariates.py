"""Should intervals be adjusted for what other programs, steal and the speed of the CPUs did to each trial?

    python benches/covariates.py                      # simulations with a known truth
    python benches/covariates.py RUN.howfar...        # run files too: half of the blocks fitted, the other half held out

The adjusted model: the logarithm of each trial's throughput is its block's effect plus its arm's effect plus one slope, common to all
arms, times the trial's covariate. Its intervals contain the error of the slope. It is compared with the product's intervals (ratios
within each block, judged by `judge_ratio`), and with the same intervals from undisturbed blocks only. The adjusted model is worth
having only if it narrows intervals while 93 % of them contain the truth.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from howfar.stats.intervals import judge_ratio, t_quantile
from howfar.stats.trials import others_cpus_in_trial, trial_table
from howfar.store.records import Trial
from howfar.store.run_file import read_run

Table = NDArray[np.float64]
"""One row for each arm, the baseline first; one column for each block."""

BLOCKS = 9
"""Blocks of a quick run of `paths`."""
RUNS = 200
TRUE_LOG_RATIOS = (0.0, -0.17, -1.65, -1.5)
"""Baseline, then arms like tcp, remote and forwarded-socket on a quiet machine."""
CPU_SHARES = (1.0, 0.85, 0.17, 0.24)
"""How strongly each arm's throughput follows the speed that its CPU work gets: 1 is in proportion."""
SLOWEST = 3.0
"""Factor by which other programs slow CPU work at most."""
CORE_STATES = 2.2
"""Factor by which a neighbour on the same core slows it."""
OWN_SCATTER = 0.02
COVARIATE_SCATTER = 0.05
"""Standard deviation of the error with which the covariate is measured, relative to a full disturbance."""


class Interval(NamedTuple):
    low: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


class Simulated(NamedTuple):
    log_rates: Table
    covariate: Table


@dataclass(frozen=True)
class Scenario:
    """How strongly each trial is disturbed, from 0 to 1, and how that slows the arms."""

    intensity: Callable[[random.Random, float, float], float]
    """Of a trial, given the share of disturbed trials and the time since the run began, from 0 to 1."""
    shares: tuple[float, ...] = CPU_SHARES
    slowest: float = SLOWEST


def _spells(chance: random.Random, share: float, time: float) -> float:
    return chance.uniform(0.3, 1.0) if chance.random() < share else 0.0


def _on_or_off(chance: random.Random, share: float, time: float) -> float:
    return float(chance.random() < share)


def _drift(chance: random.Random, share: float, time: float) -> float:
    return min(1.0, 2 * share * time)


ALIKE = (1.0, 1.0, 1.0, 1.0)
SCENARIOS = {
    "arms slowed alike": Scenario(_spells, ALIKE),
    "arms slowed unequally": Scenario(_spells),
    "bimodal, alike": Scenario(_on_or_off, ALIKE),
    "bimodal, unequally": Scenario(_on_or_off),
    "drifting": Scenario(_drift),
    "two states of a core": Scenario(_on_or_off, slowest=CORE_STATES),
}


def simulate(scenario: Scenario, share: float, chance: random.Random) -> Simulated:
    """A run whose order of arms is drawn anew in each block."""
    arms = len(TRUE_LOG_RATIOS)
    log_rates, covariate = np.empty((arms, BLOCKS)), np.empty((arms, BLOCKS))
    for block in range(BLOCKS):
        for position, arm in enumerate(chance.sample(range(arms), arms)):
            intensity = scenario.intensity(chance, share, (block + position / arms) / BLOCKS)
            slowed = scenario.shares[arm] * intensity * np.log(scenario.slowest)
            log_rates[arm, block] = TRUE_LOG_RATIOS[arm] - slowed + chance.gauss(0.0, OWN_SCATTER)
            covariate[arm, block] = max(0.0, intensity + chance.gauss(0.0, COVARIATE_SCATTER))
    return Simulated(log_rates, covariate)


# ---------------------------------------------------------------- the kinds of interval


def paired(log_rates: Table, arm: int) -> Interval | None:
    """The product's interval of an arm's log ratio to the baseline."""
    if log_rates.shape[1] < 2:
        return None
    reported = judge_ratio(np.exp(log_rates[arm] - log_rates[0]).tolist()).reported
    if reported.low is None or reported.high is None:
        return None
    return Interval(float(np.log(reported.low)), float(np.log(reported.high)))


def undisturbed(run: Simulated, arm: int) -> Interval | None:
    """The same from the blocks in which neither trial was disturbed."""
    quiet = (run.covariate[[0, arm]] < 3 * COVARIATE_SCATTER).all(axis=0)
    return paired(run.log_rates[:, quiet], arm)


def fit_slope(run: Simulated) -> float:
    """The common slope: least squares with effects of blocks and of arms."""
    x, y = _centred(run.covariate), _centred(run.log_rates)
    return float((x * y).sum() / (x * x).sum()) if (x * x).sum() > 0 else 0.0


def adjusted(run: Simulated, arm: int) -> Interval | None:
    """The interval of an arm's log ratio at covariate 0 by the adjusted model."""
    arms, blocks = run.log_rates.shape
    freedom = arms * blocks - arms - blocks
    x, slope = _centred(run.covariate), fit_slope(run)
    if freedom < 1 or not (x * x).sum() > 0:
        return None
    residuals = _centred(run.log_rates) - slope * x
    variance = float((residuals**2).sum()) / freedom
    distance = float((run.covariate[arm] - run.covariate[0]).mean())
    value = float((run.log_rates[arm] - run.log_rates[0]).mean()) - slope * distance
    half = t_quantile(freedom) * float(np.sqrt(variance * (2 / blocks + distance**2 / (x * x).sum())))
    return Interval(value - half, value + half)


def own_slopes(run: Simulated, arm: int) -> Interval | None:
    """The interval of an arm's log ratio at covariate 0 if each arm has a slope of its own."""
    arms, blocks = run.log_rates.shape
    # One row a trial: its block, its arm (the baseline's is part of the blocks), and the covariate in the column of its arm.
    design = np.zeros((arms * blocks, blocks + arms - 1 + arms))
    for row, (each, block) in enumerate(np.ndindex(arms, blocks)):
        design[row, block] = 1.0
        if each:
            design[row, blocks + each - 1] = 1.0
        design[row, blocks + arms - 1 + each] = run.covariate[each, block]
    freedom = arms * blocks - int(np.linalg.matrix_rank(design))
    if freedom < 1 or freedom > arms * blocks - design.shape[1]:
        return None
    inverse = np.linalg.inv(design.T @ design)
    effects = inverse @ design.T @ run.log_rates.ravel()
    variance = float(((run.log_rates.ravel() - design @ effects) ** 2).sum()) / freedom
    at = blocks + arm - 1
    half = t_quantile(freedom) * float(np.sqrt(variance * inverse[at, at]))
    return Interval(float(effects[at]) - half, float(effects[at]) + half)


def _centred(table: Table) -> Table:
    """Without effects of rows and of columns."""
    centred: Table = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return centred


# ---------------------------------------------------------------- simulations


def print_simulations(seed: int) -> None:
    """One line for each scenario and share: coverage and median half-width of the kinds of interval."""
    print(
        f"{RUNS} runs of {BLOCKS} blocks each; share of intervals that contain the truth, and their median half-width\n"
    )
    print(f"{'':24} disturbed       paired   undisturbed blocks     one slope         a slope an arm")
    for name, scenario in SCENARIOS.items():
        for share in (1 / 8, 1 / 4, 1 / 3, 1 / 2):
            chance = random.Random(seed)
            runs = [simulate(scenario, share, chance) for _ in range(RUNS)]
            kinds: list[Callable[[Simulated, int], Interval | None]] = [
                lambda run, arm: paired(run.log_rates, arm),
                undisturbed,
                adjusted,
                own_slopes,
            ]
            print(f"{name:24} {share:9.0%}  " + "   ".join(_summarise(runs, kind) for kind in kinds))


def _summarise(runs: list[Simulated], kind: Callable[[Simulated, int], Interval | None]) -> str:
    found = [(kind(run, arm), truth) for run in runs for arm, truth in enumerate(TRUE_LOG_RATIOS) if arm]
    given = [(interval, truth) for interval, truth in found if interval is not None]
    if not given:
        return f"{'none':>14}"
    covered = fmean(interval.contains(truth) for interval, truth in given)
    half = median(np.expm1((interval.high - interval.low) / 2) for interval, _ in given)
    return f"{covered:5.1%} ±{half:6.1%} {len(given) / len(found):4.0%}"


# ---------------------------------------------------------------- run files


def speed_of_trial(trial: Trial) -> float | None:
    """Mean CPU time of the piece of work at both ends of the trial, in ms."""
    speed = trial.receipt.speed
    return None if speed is None else fmean([*speed.before_ns.values(), *speed.after_ns.values()]) / 1e6


COVARIATES: Mapping[str, Callable[[Trial], float | None]] = {
    "others' CPUs": others_cpus_in_trial,
    "steal": lambda trial: None if trial.load is None else trial.load.steal_share,
    "speed": speed_of_trial,
}


def read_table(path: Path, covariate: Callable[[Trial], float | None]) -> Simulated | None:
    """The blocks of a run in which each arm has a good trial with this covariate."""
    table = trial_table(read_run(path))
    arms = [arm.name for arm in table.run.info.arms if table.trials.get(arm.name)]
    if table.baseline is None or table.baseline.name not in arms:
        return None
    arms = [table.baseline.name, *(arm for arm in arms if arm != table.baseline.name)]
    columns = []
    for block in sorted(set.intersection(*(set(table.trials[arm]) for arm in arms))):
        trials = [table.trials[arm][block] for arm in arms]
        rates = [table.rate(trial.measured) for trial in trials if trial.measured]
        values = [value for trial in trials if (value := covariate(trial)) is not None]
        if len(rates) == len(values) == len(arms) and all(rates):
            columns.append((np.log(np.array(rates, dtype=float)), np.array(values, dtype=float)))
    if len(columns) < 4:
        return None
    return Simulated(np.array([rates for rates, _ in columns]).T, np.array([values for _, values in columns]).T)


def print_run(path: Path) -> None:
    """How much of the scatter of the held-out half of the blocks the slope of the other half explains."""
    for name, covariate in COVARIATES.items():
        run = read_table(path, covariate)
        if run is None:
            continue
        explained = []
        for held_out in (0, 1):
            fitted = Simulated(run.log_rates[:, 1 - held_out :: 2], run.covariate[:, 1 - held_out :: 2])
            tested = Simulated(run.log_rates[:, held_out::2], run.covariate[:, held_out::2])
            before = _centred(tested.log_rates)
            after = before - fit_slope(fitted) * _centred(tested.covariate)
            explained.append(1 - float((after**2).sum() / (before**2).sum()))
        in_sample = 1 - float(
            ((_centred(run.log_rates) - fit_slope(run) * _centred(run.covariate)) ** 2).sum()
            / (_centred(run.log_rates) ** 2).sum()
        )
        print(
            f"{path.name:44} {name:13} {run.log_rates.shape[1]:3} blocks  explained: {in_sample:5.0%} of its own scatter, "
            f"{fmean(explained):5.0%} of the held-out half's"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=20261130)
    arguments = parser.parse_args()
    print_simulations(arguments.seed)
    print()
    for path in arguments.runs:
        print_run(path)


if __name__ == "__main__":
    main()
