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
    """How often per second the CPU that idled most often went idle, median over trials. None: this kernel does not count."""


class IdleStates(Part):
    """Behaviour of CPUs while nothing ran on them."""

    driver: str | None
    """The kernel's idle driver (cpuidle). None: it has none."""
    governor: str | None
    levels: tuple[IdleLevel, ...]


def idle_states(run: Run) -> IdleStates | None:
    """Idle states of a run. None: an older run file, or no good trial."""
    receipts = [t.receipt["idle"] for t in run.trials if t.status is TrialStatus.OK and "idle" in t.receipt]
    if not receipts:
        return None
    levels = dict.fromkeys(str(receipt["level"]) for receipt in receipts)
    return IdleStates(
        driver=receipts[-1]["driver"],
        governor=receipts[-1]["governor"],
        levels=tuple(
            IdleLevel(
                level=level, halts_per_s=_median(r["halts_per_s"].values() for r in receipts if r["level"] == level)
            )
            for level in levels
        ),
    )


def _median(trials: Iterable[Iterable[float]]) -> float | None:
    most = [max(halts) for each in trials if (halts := list(each))]
    return median(most) if most else None


class Woken(Part):
    """One path, measured with idle CPUs as found and polling, paired by block."""

    arm: str
    """The arm with idle CPUs as found."""
    polling: str
    speed: Estimate
    """Operations per second as found over those with polling: below 1 is the cost of waking."""
    reference: str | None
    """The arm that the path is compared with. None: the path is the baseline."""
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


def waking(table: TrialTable) -> Waking | None:
    """Cost of waking idle CPUs. None: this run does not have both levels."""
    arms = [arm for arm in table.run.info.arms if arm.role is not ArmRole.DUPLICATE]
    pairs = [(arm, twin) for arm in arms if IDLE.given(arm.factors) == "as-found" and (twin := _twin(arm, arms))]
    found = [woken for arm, twin in pairs if (woken := _woken(table, arm, twin))]
    return Waking(paths=tuple(found)) if found else None


def _twin(arm: Arm, arms: list[Arm]) -> Arm | None:
    wanted = {**arm.factors, IDLE.name: "polling"}
    return next((other for other in arms if other.factors == wanted), None)


def _woken(table: TrialTable, arm: Arm, twin: Arm) -> Woken | None:
    speeds = table.block_ratios(arm.name, twin.name)
    if not speeds:
        return None
    mine, its = table.reference(arm), table.reference(twin)
    compared = mine is not None and its is not None and mine.name != arm.name and its.name != arm.name
    both = _parts(table, (arm, mine), (twin, its)) if compared and mine and its else []
    return Woken(
        arm=arm.name,
        polling=twin.name,
        speed=judge_ratio(speeds).quoted,
        reference=mine.name if both and mine else None,
        of_reference=judge_ratio([above for above, _ in both]).quoted if both else None,
        of_reference_polling=judge_ratio([below for _, below in both]).quoted if both else None,
        part=judge_ratio([above / below for above, below in both]).quoted if both else None,
    )


def _parts(table: TrialTable, found: tuple[Arm, Arm], polling: tuple[Arm, Arm]) -> list[tuple[float, float]]:
    """Both ratios for each block in which all four arms were measured."""
    good = [table.good.get(arm.name, {}) for arm in (*found, *polling)]
    ratios = []
    for block in sorted(set.intersection(*(set(each) for each in good))):
        rates = [table.rate(each[block]) for each in good]
        if all(rates):
            one, other, third, fourth = (rate or 1.0 for rate in rates)
            ratios.append((one / other, third / fourth))
    return ratios
