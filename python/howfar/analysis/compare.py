"""Comparison of runs: `compare_with_first(runs)`, or `compare(before, after)` of two. Separate runs are not interleaved, so this is
weaker evidence than one run: the difference includes whatever changed between the sessions, such as the condition of the machine."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from howfar.analysis.answer import Answer, not_yet, sentence
from howfar.analysis.compare_texts import ANSWERS, CAUSES, CERTAINTY, FACTS, HOSTS, LEFT_OUT, ORDINALS, QUESTIONS
from howfar.analysis.confirmation import TOLERANCE
from howfar.findings import Finding, Quantity, describe, fill, join_clauses
from howfar.plan.factor import FactorLevels
from howfar.plan.factors import FACTORS, IMPLIED_LEVELS, RATE_BPS, RTT_NS, SERVER_LINKS, node_rtts_ns, offered_per_s
from howfar.plan.kinds import Keys
from howfar.plan.quantities import RTT_OFF_MAX_SHARE, PlanPart, rtt_void_ns
from howfar.plan.types import Timing, factors_model
from howfar.plan.workload import PLAN_TABLES, WORKLOADS, Data, Unit, Workload
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import (
    excludes_one,
    half_width,
    half_width_text,
    interval_text,
    simultaneous,
    welch_ratio,
)
from howfar.stats.trials import TrialTable, median_latency_ns, p99_ms, trial_table
from howfar.store.records import Arm, ArmRole, Measured, Run, compared_part
from howfar.units import format_duration_ns, format_rate_bps

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
    before_per_s: float
    """Geometric mean of the first run's operations per second."""
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

    @property
    def is_judged(self) -> bool:
        """Whether its operations per second are compared."""
        return self.same_cell and not self.has_given_rate

    @property
    def verdict(self) -> str:
        """Id of what the comparison of its operations per second shows."""
        if not self.is_judged:
            return "given-rate" if self.same_cell else "other-levels"
        if not self.qps_differs:
            return "unresolved"
        return "faster" if self.qps.value > 1 else "slower"


@dataclass(frozen=True)
class RunComparison:
    """The result of `compare`. Figures are given even if the runs had different plans or machines."""

    differences: tuple[Difference, ...]
    arms: tuple[ArmComparison, ...]
    """Empty if the runs count different operations."""
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    units: tuple[Unit, Unit]
    """The operation that each run counts; `qps` and `cpu_per_query` are of operations."""
    has_same_workload: bool
    hosts_note: str = ""
    """Sentences for the case that a run was between real hosts: how the two links differ and, if the other run was in the
    laboratory, how well the two agree. Empty: both were in the laboratory, or there is nothing to report."""

    @property
    def is_comparable(self) -> bool:
        """Whether both runs count the same operation of the same workload."""
        return self.units[0] == self.units[1] and self.has_same_workload


_MAX_LINK_DIFFERENCE = 0.25
"""Maximum relative difference between two links that are still compared, if one was measured between hosts."""
_MIN_REPORTED_DIFFERENCE = RTT_OFF_MAX_SHARE
"""Minimum relative difference of two links that the report states: the tolerance of an emulated link."""
_LINK_LEVELS = {name: factor.link_setting for name, factor in FACTORS.items() if factor.link_setting}
_MEASURED_FACTORS = (*_LINK_LEVELS, *(links.pairs.name for links in SERVER_LINKS))
"""Factors whose level is measured, not set, between hosts."""


def _on_hosts(run: Run) -> bool:
    """Whether the run was between hosts, so that its link was measured and not set."""
    return run.info.environment.on_hosts


def _agreement_sentence(arms: Sequence[ArmComparison]) -> str:
    known = [(arm, arm.relative_to_baseline) for arm in arms if arm.same_cell and arm.relative_to_baseline is not None]
    if not known:
        return HOSTS["incomparable"]
    judged = [(arm, ratio) for arm, ratio in known if ratio.low is not None]
    worst, error = max(judged or known, key=lambda item: abs(math.log(item[1].value)))
    worst_phrase = fill(HOSTS["worst"], arm=worst.arm, ratio=interval_text(error))
    if not judged:
        return fill(HOSTS["unresolved"], worst=worst_phrase)
    verdicts = Counter(agreement(simultaneous(ratio, arm.comparisons)) for arm, ratio in judged)
    return fill(
        HOSTS["agreement"],
        tolerance=TOLERANCE,
        agrees=verdicts["agrees"],
        judged=len(judged),
        partly=len(judged) < len(known),
        differs=fill(HOSTS["differs"], count=verdicts["differs"]) if verdicts["differs"] else "",
        wide=fill(HOSTS["wide"], count=verdicts["too wide"]) if verdicts["too wide"] else "",
        worst=worst_phrase,
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
            shown = {"one": _with_unit(name, one), "other": _with_unit(name, other), "change": (other / one - 1) * 100}
            differences.append(fill(HOSTS["link"], name=_LINK_LEVELS[name], first=first, second=second, **shown))
    return fill(HOSTS["links"], differences=", ".join(differences)) if differences else ""


_EMULATED_FACTORS = (RTT_NS, RATE_BPS, *(factor for links in SERVER_LINKS for factor in (links.rtt, links.pairs)))
_LINK_OPTIONS = {f"--{factor.key.replace('_', '-')}": factor.name for factor in _EMULATED_FACTORS}


def _incomparable_links_sentence(before: Run, after: Run, arms: Sequence[ArmComparison]) -> str:
    """A sentence on links that differ too much to be compared, with the options that emulate them in the laboratory. Empty: none
    do."""
    old, new = ({arm.name: _levels(arm) for arm in run.info.arms} for run in (before, after))
    incomparable = [
        arm.arm for arm in arms if not arm.same_cell and _are_same_except(_MEASURED_FACTORS, old[arm.arm], new[arm.arm])
    ]
    if not incomparable:
        return ""
    far = fill(HOSTS["far"], arms=", ".join(incomparable))
    one, other = old[incomparable[0]], new[incomparable[0]]
    if _on_hosts(before) == _on_hosts(after):
        return fill(HOSTS["far-runs"], far=far, one=_link_text(one), other=_link_text(other))
    host_levels = one if _on_hosts(before) else other
    usable = (
        (option, name)
        for option, name in _LINK_OPTIONS.items()
        if host_levels.get(name) not in (None, FACTORS[name].implied_level)
    )
    options = " ".join(f"{option} {_with_unit(name, host_levels[name])}" for option, name in usable)
    return fill(HOSTS["far-laboratory" if options else "far-unknown"], far=far, options=options)


def _link_text(levels: FactorLevels) -> str:
    known = [f"{label} {_with_unit(name, levels[name])}" for name, label in _LINK_LEVELS.items() if levels.get(name)]
    return ", ".join(known)


def compare_with_first(runs: Sequence[Run]) -> tuple[RunComparison, ...]:
    """Compare each run with the first one. Intervals allow for the comparisons of all runs together."""
    compared = [compare(runs[0], run) for run in runs[1:]]
    judged = [each for each in compared if each.is_comparable] or compared
    total = max(1, sum(not arm.has_given_rate for each in judged for arm in each.arms))
    return tuple(replace(each, arms=tuple(replace(arm, comparisons=total) for arm in each.arms)) for each in compared)


def compare(before: Run, after: Run) -> RunComparison:
    """Compare two runs. Arms are matched by name; intervals are Welch's on log values across blocks."""
    before, after = compared_part(before), compared_part(after)
    old, new = trial_table(before), trial_table(after)
    differences = _differences(before, after)
    old_names = {arm.name for arm in before.info.arms if old.measured(arm.name)}
    new_names = {arm.name for arm in after.info.arms if new.measured(arm.name)}
    is_measured = _on_hosts(before) or _on_hosts(after)
    shared = [arm.name for arm in before.info.arms if arm.name in old_names & new_names and old.unit == new.unit]
    comparisons_by_arm = [_compare_arm(old, new, name, is_measured) for name in shared]
    comparisons = max(1, sum(not arm.has_given_rate for arm in comparisons_by_arm))
    arms = tuple(replace(arm, comparisons=comparisons) for arm in comparisons_by_arm)
    sentences = []
    if is_measured and arms:
        sentences = [_link_difference_sentence(before, after, arms), _incomparable_links_sentence(before, after, arms)]
    if _on_hosts(before) != _on_hosts(after) and old.unit == new.unit:
        sentences = [_agreement_sentence(arms), *sentences]
    return RunComparison(
        differences=differences,
        arms=arms,
        only_before=tuple(sorted(old_names - new_names)),
        only_after=tuple(sorted(new_names - old_names)),
        units=(old.unit, new.unit),
        has_same_workload=_is_same_workload(before, after),
        hosts_note=" ".join(filter(None, sentences)),
    )


def _is_same_workload(before: Run, after: Run) -> bool:
    """Whether two runs have the same workload. A named table that only one of them has is for arms that only it has."""
    if any(_plan_table(before, table) != _plan_table(after, table) for table in ("workload", "keys")):
        return False
    for table in PLAN_TABLES:
        old, new = _plan_table(before, table.name), _plan_table(after, table.name)
        if any(old[name] != new[name] for name in old.keys() & new.keys()):
            return False
    return True


def _compare_arm(old: TrialTable, new: TrialTable, name: str, is_measured: bool) -> ArmComparison:
    def ratio(read_value: Callable[[TrialTable, Measured], float | None]) -> Estimate | None:
        before, after = (
            [math.log(value) for trial in table.measured(name) if (value := read_value(table, trial))]
            for table in (old, new)
        )
        return welch_ratio(after, before) if before and after else None

    speed = ratio(TrialTable.rate)
    assert speed is not None, "an arm with good trials has a rate"
    rates = [math.log(rate) for trial in old.measured(name) if (rate := old.rate(trial))]
    first, second = (next(a for a in run.info.arms if a.name == name) for run in (old.run, new.run))
    has_given_rate = offered_per_s(first.factors) is not None
    relative = (
        None
        if has_given_rate or first.role is ArmRole.BASELINE
        else _relative_change(old, new, (first, second), is_measured)
    )
    return ArmComparison(
        arm=name,
        before_per_s=math.exp(sum(rates) / len(rates)),
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
    return {**IMPLIED_LEVELS, **arm.factors}


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
        facts["baseline"] = {name: level for name, level in sorted(levels.items()) if IMPLIED_LEVELS.get(name) != level}
    for table in ("factors", *_PLAN_TABLES, *_NAMED_TABLES):
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
"""Models of a plan's tables, except `factors`."""
_NAMED_TABLES = {table.name: table.model for table in PLAN_TABLES}
"""Models of tables that have a table for each name."""
FACT_WORDS = {**FACTS, **{name: f"the {name}" for name in _NAMED_TABLES}}
"""Facts in words."""


def _plan_table(run: Run, table: str) -> Mapping[str, object]:
    """A plan's table with defaults filled in, because an older plan lacks entries that were added later, and without the entries that
    the kind of workload ignores."""
    value = run.info.plan.get(table, {})
    if not isinstance(value, Mapping):
        return {}
    if (model := _NAMED_TABLES.get(table)) is not None:
        return {name: _with_defaults(model, entry) for name, entry in value.items() if isinstance(entry, Mapping)}
    if table == "factors":
        return _with_defaults(factors_model(), {**{name: [level] for name, level in IMPLIED_LEVELS.items()}, **value})
    filled = _with_defaults(_PLAN_TABLES[table], value)
    if table == "workload":
        kind = WORKLOADS.get(str(filled["kind"]))
        used = {"kind", *(filled if kind is None else kind.used_options)}
    elif table == "keys":
        kind = WORKLOADS.get(str(_plan_table(run, "workload").get("kind")))
        used = set() if kind is None else {*kind.used_keys}
    else:
        used = {*filled}
    return {name: entry for name, entry in filled.items() if name in used}


def _with_defaults(model: type[PlanPart], value: Mapping[str, Any]) -> dict[str, Any]:
    """A stored table with the model's defaults for what it lacks."""
    defaults = model.model_construct().model_dump(mode="json")
    return defaults | {
        name: {**defaults[name], **entry}
        if isinstance(entry, Mapping) and isinstance(defaults.get(name), Mapping)
        else entry
        for name, entry in value.items()
    }


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


DIFFERS = ("differs", "differs-most")
"""Ids of findings that two runs differ."""
NOT_COMPARED = ("other-unit", "other-workload", "nothing-shared")
"""Ids of findings that no arm of two runs can be compared."""
_MAX_MACHINE_SHARE = 0.5
"""Maximum difference that the ratios to the baseline may hide, as a share of the difference that a change of the machine is to
explain."""


def answer_comparison(comparisons: Sequence[RunComparison]) -> Answer:
    """Whether the runs are the same as the first one, and why not."""
    assert 1 <= len(comparisons) < len(ORDINALS), "each run has an ordinal"
    findings = _find_differences(comparisons)
    causes: tuple[Finding, ...] = ()
    if findings[0].id in DIFFERS:
        run = str(findings[0].parameters["run"])
        causes = _explain(comparisons[ORDINALS.index(run) - 1], run)
    return Answer(
        question=QUESTIONS["two" if len(comparisons) == 1 else "several"],
        sentence=sentence(findings, ANSWERS),
        findings=findings,
        why=sentence(causes, CAUSES),
        causes=causes,
    )


def _differs(arm: ArmComparison) -> bool:
    return arm.is_judged and arm.qps_differs


def _importance(arm: ArmComparison) -> float:
    """How much an arm differs, by the logarithm of its ratio."""
    return abs(math.log(arm.qps.value))


def _with_interval(comparisons: Iterable[RunComparison]) -> list[ArmComparison]:
    """The arms whose operations per second are compared."""
    return [arm for each in comparisons if each.is_comparable for arm in each.arms if arm.is_judged and arm.qps.low]


def _find_differences(comparisons: Sequence[RunComparison]) -> tuple[Finding, ...]:
    """What the runs show, most important first. Never empty."""
    mismatches = _find_mismatches(comparisons)
    if len(mismatches) == len(comparisons):
        return (mismatches[0],)
    is_single = len(comparisons) == 1
    alike = {run: each for run, each in zip(ORDINALS[1:], comparisons, strict=False) if each.is_comparable}
    left_out = tuple(Finding(id="left-out", subject=str(finding.parameters["run"])) for finding in mismatches)
    return (*_find_throughput_differences(alike, is_single), *left_out)


def _find_mismatches(comparisons: Sequence[RunComparison]) -> tuple[Finding, ...]:
    """The runs whose throughput is not comparable with that of the first one, and why."""
    mismatches = []
    for run, comparison in zip(ORDINALS[1:], comparisons, strict=False):
        unit, other = comparison.units
        if unit != other:
            mismatches.append(Finding(id="other-unit", parameters={"run": run, "unit": unit, "other": other}))
        elif not comparison.has_same_workload:
            mismatches.append(Finding(id="other-workload", parameters={"run": run}))
    return tuple(mismatches)


def describe_left_out(comparisons: Sequence[RunComparison]) -> list[str]:
    """A sentence for each run that the answer is not about. Empty: there is no answer, or it is about all runs."""
    mismatches = _find_mismatches(comparisons)
    return [] if len(mismatches) == len(comparisons) else [describe(finding, LEFT_OUT) for finding in mismatches]


def _find_throughput_differences(compared: Mapping[str, RunComparison], is_single: bool) -> tuple[Finding, ...]:
    """How throughput differs in comparable runs, by their ordinals. `is_single`: only two runs are compared in all."""
    comparisons = list(compared.values())
    shared = [arm for each in comparisons for arm in each.arms if arm.same_cell]
    judged = [arm for arm in shared if arm.is_judged]
    if not judged:
        return (Finding(id="given-rates" if shared else "nothing-shared"),)
    with_interval = _with_interval(comparisons)
    if not with_interval:
        return (not_yet(min(min(arm.trials) for arm in judged)),)
    differing = []
    for run, comparison in compared.items():
        arms = sorted(filter(_differs, comparison.arms), key=_importance, reverse=True)
        differing += [(arm, run) for arm in (arms if is_single else arms[:1])]
    if differing:
        return tuple(
            Finding(
                id="differs" if is_single else "differs-most",
                subject=_without_brackets(arm.arm),
                metric=Quantity.THROUGHPUT,
                estimate=arm.qps,
                parameters={"run": run},
            )
            for arm, run in sorted(differing, key=lambda item: -_importance(item[0]))
        )
    within = _max_difference(simultaneous(arm.qps, arm.comparisons) for arm in with_interval)
    if within > TOLERANCE:
        return (Finding(id="too-wide", parameters={"within": within}),)
    return (Finding(id="same", parameters={"within": within, "arms": len({arm.arm for arm in with_interval})}),)


def _explain(comparison: RunComparison, run: str) -> tuple[Finding, ...]:
    """Why a run differs from the first one: whether paths or the machine changed, and the facts that differ. `run`: its ordinal."""
    subjects = dict.fromkeys(FACT_WORDS[difference.what.partition(":")[0]] for difference in comparison.differences)
    facts = tuple(Finding(id="facts", subject=subject, parameters={"run": run}) for subject in subjects)
    known = {
        arm.arm: simultaneous(ratio, arm.comparisons)
        for arm in comparison.arms
        if arm.same_cell and (ratio := arm.relative_to_baseline) is not None and ratio.low
    }
    if not known:
        return facts
    paths = tuple(
        Finding(
            id="path",
            subject=_without_brackets(name),
            metric=Quantity.THROUGHPUT,
            estimate=ratio,
            parameters={"run": run},
        )
        for name, ratio in sorted(known.items(), key=lambda item: -abs(math.log(item[1].value)))
        if excludes_one(ratio)
    )
    within = _max_difference(known.values())
    explained = min(_importance(arm) for arm in comparison.arms if _differs(arm))
    is_machine = math.log1p(within) <= _MAX_MACHINE_SHARE * explained
    other = Finding(id="machine" if is_machine else "unclear", parameters={"run": run, "within": within})
    return (*(paths or (other,)), *facts)


def _without_brackets(name: str) -> str:
    """The name of an arm in a sentence: `socket (again)` -> `socket again`."""
    return re.sub(r"[()\[\]]", "", name)


def _max_difference(ratios: Iterable[Estimate]) -> float:
    """The largest difference from 1 that the intervals allow, as a share."""
    limits = [limit for ratio in ratios for limit in (ratio.low, ratio.high) if limit]
    return max(math.expm1(abs(math.log(limit))) for limit in limits)


def certainty_of_comparison(answer: Answer, comparisons: Sequence[RunComparison]) -> str:
    """How sure the answer is, in one line. Empty: there is none."""
    if answer.findings[0].id not in (*DIFFERS, "same"):
        return ""
    arms = _with_interval(comparisons)
    counts = [count for arm in arms for count in arm.trials]
    widest = half_width_text(max(half_width(arm.qps) or 0 for arm in arms))
    compared = max(arm.comparisons for arm in arms)
    figures = {"fewest": min(counts), "most": max(counts), "width": widest, "comparisons": compared}
    may_be_chance = any(arm.verdict == "unresolved" and excludes_one(arm.qps) for arm in arms)
    names = (
        "equal-trials" if min(counts) == max(counts) else "trials",
        "width",
        "chance" if may_be_chance else "",
        "apart",
    )
    return join_clauses([fill(CERTAINTY[name], **figures) for name in names if name])
