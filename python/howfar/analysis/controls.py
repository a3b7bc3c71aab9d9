"""Control measurements with a known true result: they show the instrument's bias and which effects it can detect. They are made in
each block of a run over a link."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import AliasChoices, Field

from howfar.plan.cells import level_label
from howfar.plan.factors import (
    RTT_NS,
    THREADS,
    level_of,
    offered_per_s,
    scatter_kind,
    waited_rtt,
    waits_for_link,
)
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import judge_ratio, mean_interval
from howfar.stats.trials import TrialTable, closed_loop_per_s, p99_ms, trial_table
from howfar.store.records import Arm, ArmRole, Measured, Run

SAME_OVER_LINK = "A/A over the link"
SAME_OTHER_KIND = "A/A"
"""Name of the A/A control for a kind of scatter (`plan.factors.scatter_kind`) other than the baseline's."""
LONGER_RTT = "RTT"
OVERLAP = 0.04
"""Share of an RTT increase that two connections may hide, because each then waits less for the other. By exact mean value analysis
of a closed loop it is 2 to 4 % if the server is busy for half to four fifths of the time."""
_MAIN_ROLES = (ArmRole.BASELINE, ArmRole.CONTENDER)


class Control(Part):
    """One control: an arm and its reference, with the known effect and the measured one."""

    name: str
    arm: str
    reference: str
    """The arm that differs from the control only in the injected effect."""
    distinguishing_levels: str = Field(
        "", validation_alias=AliasChoices("apart", "distinguishing_levels"), serialization_alias="apart", title="Apart"
    )
    """Levels of both arms that no other arm of the run has: `1 thread`. Empty: none."""
    unit: str
    """Unit of both figures: `ratio` (of operations per second), `ratio of p99` if the rate is given, or µs per round trip or per
    commit."""
    injected: float = Field(
        validation_alias=AliasChoices("put_in", "injected"), serialization_alias="put_in", title="Put In"
    )
    """The injected effect. With two connections, the true figure may be lower by up to `OVERLAP`."""
    measured: Estimate = Field(validation_alias=AliasChoices("found", "measured"), serialization_alias="found")
    recovered: bool | None = None
    """Whether the interval includes the true figure. None: there is no interval."""

    @property
    def is_same(self) -> bool:
        """Whether no effect was injected: an arm measured twice."""
        return self.name in (SAME_OVER_LINK, SAME_OTHER_KIND)

    @property
    def is_inconclusive(self) -> bool:
        """Whether the interval includes both the injected effect and no effect at all: the run is too noisy to tell."""
        return not self.is_same and bool(self.recovered) and (self.measured.low or 0.0) <= 0


def controls(run: Run) -> tuple[Control, ...]:
    """Controls of a run. Empty: it has none, or no block in which they and their reference were measured."""
    table = trial_table(run)
    arms = [arm for arm in run.info.arms if arm.role is ArmRole.CONTROL]
    baseline = table.baseline
    has_repeat = any(_is_unchanged(run, arm) for arm in arms if _has_baselines_kind(table, arm))
    if arms and baseline and waits_for_link(baseline.factors) and not has_repeat:
        # The controls derive from the baseline, so its duplicate is their A/A control.
        arms = [arm for arm in run.info.arms if arm.role is ArmRole.DUPLICATE] + arms
    results = (_control(table, arm) for arm in arms)
    return tuple(control for control in results if control is not None)


def _is_unchanged(run: Run, arm: Arm) -> bool:
    """Whether the control is unchanged, that is equal to its reference."""
    reference = _reference(run, arm)
    return reference is not None and reference.factors == arm.factors


def _has_baselines_kind(table: TrialTable, arm: Arm) -> bool:
    """Whether the arm has the baseline's kind of scatter."""
    baseline = table.baseline
    return baseline is None or scatter_kind(arm.factors) == scatter_kind(baseline.factors)


def _control(table: TrialTable, arm: Arm) -> Control | None:
    reference = _reference(table.run, arm)
    if reference is None:
        return None
    if _is_unchanged(table.run, arm):
        name, unit, injected = SAME_OVER_LINK if _has_baselines_kind(table, arm) else SAME_OTHER_KIND, "ratio", 1.0
        if has_given_rate := offered_per_s(arm.factors) is not None:
            unit = "ratio of p99"
        value = p99_ms if has_given_rate else table.rate
        min_true, ratios = injected, table.block_ratios(arm.name, reference.name, value)
        effect = judge_ratio(ratios).reported if ratios else None
    else:
        waited = waited_rtt(arm.factors)
        assert waited is not None, "a control with an effect waits for a round trip"
        injected = (waited.level_in(arm.factors) - waited.level_in(reference.factors)) / 1e3
        commits = waited is not RTT_NS  # only commits wait for another server
        name, unit = f"{LONGER_RTT} +{injected:g} µs", "µs per commit" if commits else "µs per round trip"
        differences = _differences(table, arm, reference, _commit_us if commits else _round_trip_us)
        effect = mean_interval(differences) if differences else None
        min_true = injected * (1 - OVERLAP * (THREADS.level_in(reference.factors) > 1))
    if effect is None:
        return None
    return Control(
        name=name,
        arm=arm.name,
        reference=reference.name,
        distinguishing_levels=_distinguishing_levels(table.run, reference),
        unit=unit,
        injected=injected,
        measured=effect,
        recovered=None
        if effect.low is None or effect.high is None
        else effect.low <= injected and min_true <= effect.high,
    )


def _reference(run: Run, arm: Arm) -> Arm | None:
    """The arm that the control derives from: equal except for the RTT that it waits for. If no cell matches, another control."""
    waited = waited_rtt(arm.factors)
    rtt = {} if waited is None else {waited.name: waited.level_in(arm.factors)}

    def rtt_excess_ns(other: Arm) -> int:
        return 0 if waited is None else waited.level_in(arm.factors) - waited.level_in(other.factors)

    candidates = [
        other
        for other in run.info.arms
        if other.name != arm.name
        and {**other.factors, **rtt} == arm.factors
        and (other.role in _MAIN_ROLES or (other.role is ArmRole.CONTROL and rtt_excess_ns(other) > 0))
    ]
    return min(candidates, key=lambda other: (other.role not in _MAIN_ROLES, abs(rtt_excess_ns(other))), default=None)


def _distinguishing_levels(run: Run, reference: Arm) -> str:
    compared = [arm.factors for arm in run.info.arms if arm.role in _MAIN_ROLES]
    return ", ".join(
        level_label(reference.factors, name)
        for name, level in reference.factors.items()
        if all(level_of(factors, name) != level for factors in compared)
    )


def _commit_us(arm: Arm, measured: Measured) -> float | None:
    """Time of one connection for each of its transactions."""
    threads = THREADS.level_in(arm.factors)
    return threads / closed_loop_per_s(measured, threads) * 1e6 if measured.transactions else None


def _round_trip_us(arm: Arm, measured: Measured) -> float | None:
    """Time of one connection for each round trip of its transactions."""
    commit_us = _commit_us(arm, measured)
    return commit_us * measured.transactions / measured.round_trips if commit_us and measured.round_trips else None


def _differences(
    table: TrialTable, arm: Arm, reference: Arm, value: Callable[[Arm, Measured], float | None]
) -> list[float]:
    """Differences of `arm` from `reference`, for each block in which both are good."""
    differences = []
    for block, measured in table.good.get(arm.name, {}).items():
        other = table.good.get(reference.name, {}).get(block)
        if other is None:
            continue
        arm_value, reference_value = value(arm, measured), value(reference, other)
        if arm_value is not None and reference_value is not None:
            differences.append(arm_value - reference_value)
    return differences
