"""Idle states of CPUs in a run, by the receipts of its trials, and the cost of waking CPUs on each path that was measured with and
without them."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from howfar.plan.factors import IDLE
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import judge_ratio
from howfar.stats.trials import TrialTable
from howfar.store.records import Arm, ArmRole, Run, TrialStatus


class IdleLevel(Part):
    """One level of the factor `idle`, over all its good trials."""

    level: str
    halts_per_s: float | None
    """How often per second a CPU went idle: for the CPU that did so most often, median over trials. None if this kernel does
    not count that."""


class IdleStates(Part):
    """Behaviour of CPUs while nothing ran on them."""

    driver: str | None
    """The kernel's idle driver (cpuidle). None if it has none."""
    governor: str | None
    levels: tuple[IdleLevel, ...]


def idle_states(run: Run) -> IdleStates | None:
    """Idle states of a run. None for an older run file, or without a good trial."""
    good_trials = [trial for trial in run.trials if trial.status is TrialStatus.OK]
    receipts = [idle for trial in good_trials if (idle := trial.receipt.idle) is not None]
    if not receipts:
        return None
    levels = dict.fromkeys(receipt.level for receipt in receipts)
    return IdleStates(
        driver=receipts[-1].driver,
        governor=receipts[-1].governor,
        levels=tuple(
            IdleLevel(
                level=level,
                halts_per_s=_median_of_maxima(
                    receipt.halts_per_s.values() for receipt in receipts if receipt.level == level
                ),
            )
            for level in levels
        ),
    )


def _median_of_maxima(trials: Iterable[Iterable[float]]) -> float | None:
    maxima = [max(rates_of_cpus) for halt_rates in trials if (rates_of_cpus := list(halt_rates))]
    return median(maxima) if maxima else None


class Woken(Part):
    """One path, measured with idle CPUs as found and polling, paired by block."""

    arm: str
    """Name of the arm with idle CPUs as found; `polling` is the one with polling CPUs."""
    polling: str
    speed: Estimate
    """Ratio of operations per second as found to those with polling. Below 1: the cost of waking."""
    reference: str | None
    """The arm that the path is compared with. None if the path is the baseline."""
    of_reference: Estimate | None
    """Ratio of the path to its reference, as found; with polling it is `of_reference_polling`."""
    of_reference_polling: Estimate | None
    part: Estimate | None
    """`of_reference` over `of_reference_polling`: the factor by which waking CPUs changes the ratio."""

    @property
    def ratios(self) -> tuple[Estimate | None, ...]:
        return self.speed, self.of_reference, self.of_reference_polling, self.part


class Waking(Part):
    """Cost of waking idle CPUs."""

    paths: tuple[Woken, ...]


def waking_cost(table: TrialTable) -> Waking | None:
    """Cost of waking idle CPUs. None if this run does not have both levels of `idle`."""
    arms = [arm for arm in table.run.info.arms if arm.role is not ArmRole.DUPLICATE]
    as_found = [arm for arm in arms if IDLE.level_or_none(arm.factors) == "as-found"]
    pairs = [(arm, polling) for arm in as_found if (polling := _polling_arm(arm, arms))]
    paths = [path for arm, polling in pairs if (path := _waking_cost_of_path(table, arm, polling))]
    return Waking(paths=tuple(paths)) if paths else None


def _polling_arm(arm: Arm, arms: list[Arm]) -> Arm | None:
    polling_factors = {**arm.factors, IDLE.name: "polling"}
    return next((other for other in arms if other.factors == polling_factors), None)


def _waking_cost_of_path(table: TrialTable, arm: Arm, polling_arm: Arm) -> Woken | None:
    speeds = table.block_ratios(arm.name, polling_arm.name)
    if not speeds:
        return None
    reference, polling_reference = table.reference(arm), table.reference(polling_arm)
    ratio_pairs = []
    if reference and polling_reference and arm.name not in (reference.name, polling_reference.name):
        ratio_pairs = _ratios_by_block(table, (arm, reference), (polling_arm, polling_reference))
    return Woken(
        arm=arm.name,
        polling=polling_arm.name,
        speed=judge_ratio(speeds).reported,
        reference=reference.name if ratio_pairs and reference else None,
        of_reference=judge_ratio([as_found for as_found, _ in ratio_pairs]).reported if ratio_pairs else None,
        of_reference_polling=judge_ratio([polling for _, polling in ratio_pairs]).reported if ratio_pairs else None,
        part=judge_ratio([as_found / polling for as_found, polling in ratio_pairs]).reported if ratio_pairs else None,
    )


def _ratios_by_block(
    table: TrialTable, as_found: tuple[Arm, Arm], polling: tuple[Arm, Arm]
) -> list[tuple[float, float]]:
    """Ratios of a path to its reference, as found and polling, for each block in which all four arms were measured."""
    good = [table.good.get(arm.name, {}) for arm in (*as_found, *polling)]
    ratios = []
    for block in sorted(set.intersection(*(set(good_trials) for good_trials in good))):
        rates = [table.rate(good_trials[block]) for good_trials in good]
        if all(rates):
            path_rate, reference_rate, polling_rate, polling_reference_rate = (rate or 1.0 for rate in rates)
            ratios.append((path_rate / reference_rate, polling_rate / polling_reference_rate))
    return ratios
