"""Comparison of two runs: `compare(before, after)`. Separate runs are not interleaved, so this is weaker evidence than one run: the
difference includes whatever changed between the two sessions, such as the condition of the machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from howfar.analysis.confirmation import TOLERANCE
from howfar.plan.distances import EVEN
from howfar.plan.factors import DISTANCES, ORDINARY, REPLICA_RTT_NS, FactorLevels, node_rtts_ns, offered_per_s
from howfar.plan.page import Keys
from howfar.plan.quantities import RTT_OFF_MAX_SHARE, PlanPart, rtt_void_ns
from howfar.plan.types import Data, Timing, Workload, factors_model
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import excludes_one, interval_text, simultaneous, welch_ratio
from howfar.stats.trials import TrialTable, Unit, median_latency_ns, p99_ms, trial_table
from howfar.store.records import Arm, ArmRole, Measured, Run, compared_part
from howfar.units import counted, format_duration_ns, format_rate_bps

NOT_INTERLEAVED = (
    "The two runs were not interleaved: a difference may come from the time between them. "
    "For a firm answer, measure both as arms of one run."
)

COMPARED_ENVIRONMENT = (
    "kernel",
    "cpu_model",
    "cpu_count",
    "governor",
    "placement",
    "congestion_control_default",
    "virtual_machine",
)
"""Facts that affect figures. Free memory, load and the like always differ and are not compared."""


@dataclass(frozen=True)
class Difference:
    """A fact in which the two runs differ, as text; "unknown" if a run does not record it."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class ArmComparison:
    """One arm in both runs; ratios are after over before, unpaired."""

    arm: str
    qps: Estimate
    cpu_per_query: Estimate | None
    p50: Estimate | None
    """Ratio of the p50 of a transaction's time, or a page's. None: a run has no histogram of it."""
    p99: Estimate | None
    """Ratio of the p99. None also if no trial of a run is long enough for it, see `quantile_ms`."""
    relative_to_baseline: Estimate | None
    """After over before of the arm's ratio to its reference in its own run, by block: shows changes of the path rather than of the
    machine. None for the baseline itself, for an arm with a given rate, and if the two runs' references are different cells,
    because ratios to different references are not comparable."""
    same_cell: bool
    """Whether the factor levels are equal. If not, the two arms only share a name."""
    trials: tuple[int, int]
    has_given_rate: bool = False
    """Whether the arm's rate is given, so that its operations per second are not a result."""

    comparisons: int = 1
    """Number of arms in both runs without a given rate. An arm differs only if its interval at 1 - 5 % / comparisons excludes 1."""

    @property
    def qps_differs(self) -> bool:
        return not self.has_given_rate and excludes_one(simultaneous(self.qps, self.comparisons))


@dataclass(frozen=True)
class RunComparison:
    """The result of `compare`. `comparable` is False if the runs had different plans or machines; figures are given nevertheless."""

    before: str
    after: str
    comparable: bool
    differences: tuple[Difference, ...]
    arms: tuple[ArmComparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    operation_unit: Unit
    """The operation that `qps` and `cpu_per_query` count."""
    warning: str = NOT_INTERLEAVED
    hosts_note: str = ""
    """Sentences for the case that a run was between real hosts: how the two links differ and, if the other run was in the
    laboratory, how well the two agree. Empty: both were in the laboratory, or there is nothing to report."""


_MAX_LINK_DIFFERENCE = 0.25
"""Maximum relative difference between two links that are still compared, if one was measured between hosts."""
_MIN_REPORTED_DIFFERENCE = RTT_OFF_MAX_SHARE
"""Minimum relative difference of two links that the report states: the tolerance of an emulated link."""
_LINK_LEVELS = {
    "rtt_ns": "RTT",
    "rate_bps": "rate",
    "replica_rtt_ns": "RTT to the replica",
    "replica_rate_bps": "rate to the replica",
}
_MEASURED_FACTORS = (*_LINK_LEVELS, DISTANCES.name)
"""Factors whose level is measured, not set, between hosts."""


def _on_hosts(run: Run) -> bool:
    """Whether the run was between hosts, so that its link was measured and not set."""
    return run.info.environment.on_hosts


def _agreement_sentence(arms: Sequence[ArmComparison]) -> str:
    known = [(arm, arm.relative_to_baseline) for arm in arms if arm.same_cell and arm.relative_to_baseline is not None]
    if not known:
        return (
            "No arm can be compared: in none are the factors the same and the link near. Run the laboratory with the plan of "
            "the run on hosts."
        )
    judged = [(arm, ratio) for arm, ratio in known if ratio.low is not None]
    worst, error = max(judged or known, key=lambda item: abs(math.log(item[1].value)))
    worst_phrase = f"differs most for {worst.arm}, by a factor of {interval_text(error)}"
    if not judged:
        return f"Whether laboratory and hosts agree is not resolved: no arm has an interval; the ratio to the baseline {worst_phrase}."
    verdicts = Counter(agreement(simultaneous(ratio, arm.comparisons)) for arm, ratio in judged)
    interval_note = " with an interval" if len(judged) < len(known) else ""
    differs_note = f", differs for {verdicts['differs']}" if verdicts["differs"] else ""
    wide_note = f", and for {verdicts['too wide']} the interval is too wide to tell" if verdicts["too wide"] else ""
    return (
        f"Between laboratory and hosts, the ratio to the baseline agrees to {TOLERANCE * 100:.0f} % for {verdicts['agrees']} of "
        f"{counted(len(judged), 'arm')}{interval_note}{differs_note}{wide_note}; it {worst_phrase}."
    )


def agreement(ratio: Estimate) -> Literal["agrees", "differs", "too wide"]:
    """Whether two figures that should be equal agree, by the interval of their ratio and the tolerance of a confirmed prediction.
    They agree only if the whole interval is near 1, because a very wide interval shows nothing."""
    assert ratio.low is not None and ratio.high is not None, "the ratio has an interval"
    if max(-math.log(ratio.low), math.log(ratio.high)) <= math.log1p(TOLERANCE):
        return "agrees"
    return "differs" if excludes_one(ratio) else "too wide"


def _link_difference_sentence(before: Run, after: Run, arms: Sequence[ArmComparison]) -> str:
    """A sentence on how the compared links differ, with the levels of the arm in which they differ most. Empty: they hardly differ."""
    old, new = ({arm.name: arm.factors for arm in run.info.arms} for run in (before, after))
    first, second = ("between the hosts" if _on_hosts(run) else "in the laboratory" for run in (before, after))
    if first == second:
        first, second = "before", "after"
    differences = []
    for name in _LINK_LEVELS:
        pairs = [(old[arm.arm].get(name), new[arm.arm].get(name)) for arm in arms if arm.same_cell]
        known = [(float(one), float(other)) for one, other in pairs if one and other]
        one, other = max(known, key=lambda pair: abs(math.log(pair[0] / pair[1])), default=(1.0, 1.0))
        if abs(math.log(one / other)) > math.log1p(_MIN_REPORTED_DIFFERENCE):
            shown = f"{_with_unit(name, one)} {first} and {_with_unit(name, other)} {second}"
            differences.append(f"{_LINK_LEVELS[name]} {shown} ({(other / one - 1) * 100:+.0f} %)")
    return f"The links are not the same: {', '.join(differences)}." if differences else ""


_LINK_OPTIONS = {
    "--rtt": "rtt_ns",
    "--rate": "rate_bps",
    "--replica-rtt": REPLICA_RTT_NS.name,
    "--distances": DISTANCES.name,
}


def _incomparable_links_sentence(before: Run, after: Run, arms: Sequence[ArmComparison]) -> str:
    """A sentence on links that differ too much to be compared, with the options that emulate them in the laboratory. Empty: none
    do."""
    old, new = ({arm.name: _levels(arm) for arm in run.info.arms} for run in (before, after))
    incomparable = [
        arm.arm for arm in arms if not arm.same_cell and _are_same_except(_MEASURED_FACTORS, old[arm.arm], new[arm.arm])
    ]
    if not incomparable:
        return ""
    text = f"The link is too far off to compare {', '.join(incomparable)}"
    one, other = old[incomparable[0]], new[incomparable[0]]
    if _on_hosts(before) == _on_hosts(after):
        return f"{text}: {_link_text(one)} before, {_link_text(other)} after."
    host_levels = one if _on_hosts(before) else other
    usable = ((option, name) for option, name in _LINK_OPTIONS.items() if host_levels.get(name) not in (None, EVEN))
    options = " ".join(f"{option} {_with_unit(name, host_levels[name])}" for option, name in usable)
    return f"{text}. Run the laboratory with what was measured between the hosts: {options}." if options else f"{text}."


def _link_text(levels: FactorLevels) -> str:
    known = [f"{label} {_with_unit(name, levels[name])}" for name, label in _LINK_LEVELS.items() if levels.get(name)]
    return ", ".join(known)


def compare(before: Run, after: Run) -> RunComparison:
    """Compare two runs. Arms are matched by name; intervals are Welch's on log values across blocks."""
    before, after = compared_part(before), compared_part(after)
    old, new = trial_table(before), trial_table(after)
    differences = _differences(before, after)
    shared = [arm.name for arm in before.info.arms if old.measured(arm.name) and new.measured(arm.name)]
    old_names = {arm.name for arm in before.info.arms if old.measured(arm.name)}
    new_names = {arm.name for arm in after.info.arms if new.measured(arm.name)}
    is_measured = _on_hosts(before) or _on_hosts(after)
    comparisons_by_arm = [_compare_arm(old, new, name, is_measured) for name in shared]
    comparisons = max(1, sum(not arm.has_given_rate for arm in comparisons_by_arm))
    arms = tuple(replace(arm, comparisons=comparisons) for arm in comparisons_by_arm)
    sentences = []
    if is_measured:
        sentences = [_link_difference_sentence(before, after, arms), _incomparable_links_sentence(before, after, arms)]
    if _on_hosts(before) != _on_hosts(after):
        sentences = [_agreement_sentence(arms), *sentences]
    return RunComparison(
        before=before.info.run_id,
        after=after.info.run_id,
        comparable=not differences,
        differences=differences,
        arms=arms,
        only_before=tuple(sorted(old_names - new_names)),
        only_after=tuple(sorted(new_names - old_names)),
        operation_unit=new.unit,
        hosts_note=" ".join(filter(None, sentences)),
    )


def _compare_arm(old: TrialTable, new: TrialTable, name: str, is_measured: bool) -> ArmComparison:
    def ratio(read_value: Callable[[TrialTable, Measured], float | None]) -> Estimate | None:
        before, after = (
            [math.log(value) for trial in table.measured(name) if (value := read_value(table, trial))]
            for table in (old, new)
        )
        return welch_ratio(after, before) if before and after else None

    speed = ratio(TrialTable.rate)
    assert speed is not None, "an arm with good trials has a rate"
    first, second = (next(a for a in run.info.arms if a.name == name) for run in (old.run, new.run))
    has_given_rate = offered_per_s(first.factors) is not None
    relative = (
        None
        if has_given_rate or first.role is ArmRole.BASELINE
        else _relative_change(old, new, (first, second), is_measured)
    )
    return ArmComparison(
        arm=name,
        qps=speed,
        cpu_per_query=ratio(TrialTable.path_cpu_us),
        p50=ratio(lambda _, measured: median_latency_ns(measured)),
        p99=ratio(lambda _, measured: p99_ms(measured)),
        relative_to_baseline=relative,
        same_cell=_are_same_levels(_levels(first), _levels(second), is_measured),
        trials=(len(old.measured(name)), len(new.measured(name))),
        has_given_rate=has_given_rate,
    )


def _are_same_levels(one: FactorLevels, other: FactorLevels, is_measured: bool) -> bool:
    """Whether two arms have the same levels. `is_measured`: the link of one was measured, not set, so that it must only be near."""
    if not is_measured:
        return _are_same_except((), one, other)
    shared_names = [name for name in _LINK_LEVELS if one.get(name) and other.get(name)]
    are_links_near = all(_is_near(name, float(one[name]), float(other[name])) for name in shared_names)
    return are_links_near and _are_nodes_near(one, other) and _are_same_except(_MEASURED_FACTORS, one, other)


def _are_same_except(names: Iterable[str], one: FactorLevels, other: FactorLevels) -> bool:
    """Whether all levels except those of the factors `names` are the same."""
    return all(one.get(name) == other.get(name) for name in {*one, *other}.difference(names))


def _is_near(name: str, one: float, other: float) -> bool:
    """Whether two levels of a link are near each other. Two RTTs are also near if their difference is too small to make a trial
    void."""
    if name.endswith("rtt_ns") and abs(one - other) <= rtt_void_ns(min(one, other)):
        return True
    return min(one, other) > 0 and abs(math.log(one / other)) <= math.log1p(_MAX_LINK_DIFFERENCE)


def _levels(arm: Arm) -> FactorLevels:
    """Levels of an arm's cell, with defaults filled in: a run that does not vary a factor may omit it."""
    return {**ORDINARY, **arm.factors}


def _are_nodes_near(one: FactorLevels, other: FactorLevels) -> bool:
    """Whether each pair of nodes of a cluster has nearly the same RTT in both."""
    one_rtts, other_rtts = node_rtts_ns(one), node_rtts_ns(other)
    return one_rtts.keys() == other_rtts.keys() and all(
        _is_near("rtt_ns", one_rtts[pair], other_rtts[pair]) for pair in one_rtts
    )


def _relative_change(old: TrialTable, new: TrialTable, arms: tuple[Arm, Arm], is_measured: bool) -> Estimate | None:
    one, other = old.compared_reference(arms[0]), new.compared_reference(arms[1])
    if one is None or other is None or not _are_same_levels(_levels(one), _levels(other), is_measured):
        return None
    before = [math.log(ratio) for ratio in old.block_ratios(arms[0].name, one.name)]
    after = [math.log(ratio) for ratio in new.block_ratios(arms[1].name, other.name)]
    return welch_ratio(after, before) if before and after else None


def _differences(before: Run, after: Run) -> tuple[Difference, ...]:
    old, new = _collect_facts(before), _collect_facts(after)
    return tuple(
        Difference(what, _fact_text(old.get(what)), _fact_text(new.get(what)))
        for what in {**old, **new}
        if old.get(what) != new.get(what)
    )


COMPARED_TIMING = ("warmup_ns", "measure_ns")
"""Timing that defines a trial. The number of trials is not compared, because the intervals reflect it."""


def _collect_facts(run: Run) -> dict[str, object]:
    """Facts that affect figures, by the name that a reader sees."""
    info = run.info
    baseline = next((arm for arm in info.arms if arm.role is ArmRole.BASELINE), None)
    levels = _levels(baseline) if baseline else {}
    facts: dict[str, object] = {"plan": info.plan_name, "quick": info.quick}
    if baseline is not None:
        facts["baseline"] = {name: level for name, level in sorted(levels.items()) if ORDINARY.get(name) != level}
    for table in ("factors", "workload", "data", "timing", "keys", "pages"):
        for key, value in _plan_table(run, table).items():
            if table != "timing" or key in COMPARED_TIMING:
                facts[f"{table}: {_without_unit(key)}"] = (
                    [_with_unit(key, level) for level in value]
                    if isinstance(value, list | tuple)
                    else _with_unit(key, value)
                )
    facts |= {"server": f"{info.server_kind} {info.server_version}", "howfar": info.howfar_version}
    return facts | {key: getattr(info.environment, key) for key in COMPARED_ENVIRONMENT}


_PLAN_TABLES: dict[str, type[PlanPart]] = {"workload": Workload, "data": Data, "timing": Timing, "keys": Keys}
"""Models of a plan's tables. `pages` has none, because the plan itself names its entries."""


def _plan_table(run: Run, table: str) -> Mapping[str, object]:
    """A plan's table with defaults filled in, because an older plan lacks entries that were added later."""
    value = run.info.plan.get(table, {})
    if not isinstance(value, Mapping):
        return {}
    model = factors_model() if table == "factors" else _PLAN_TABLES.get(table)
    fields = model.model_fields.items() if model else ()
    ordinary = {
        name: field.default for name, field in fields if isinstance(field.default, str | int | float | bool | tuple)
    }
    if table == "factors":
        ordinary |= {name: (level,) for name, level in ORDINARY.items()}
    return {**{name: list(v) if isinstance(v, tuple) else v for name, v in ordinary.items()}, **value}


_FORMAT_BY_UNIT: dict[str, Callable[[float], str]] = {"_ns": format_duration_ns, "_bps": format_rate_bps}


def _without_unit(key: str) -> str:
    """The key without its unit, which is shown with the value: `measure_ns` -> `measure`."""
    return next((key.removesuffix(unit) for unit in _FORMAT_BY_UNIT if key.endswith(unit)), key)


def _with_unit(key: str, value: object) -> object:
    """A level as a plan writes it; a level without a unit stays as it is."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    return next((show(value) for unit, show in _FORMAT_BY_UNIT.items() if key.endswith(unit)), value)


def _fact_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_without_unit(key)} {_with_unit(key, inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(_fact_text(inner) for inner in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)
