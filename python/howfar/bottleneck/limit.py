"""The limit of an arm, from its good trials, and the changes that would increase its throughput, with upper bounds of the gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import AliasChoices, Field

from howfar.bottleneck.cycle import (
    ACKNOWLEDGEMENT,
    COMMIT,
    FORWARDER_CPU,
    LOCKS,
    LOSS,
    ROUND_TRIPS,
    WAITING,
    WINDOWS,
    Cycle,
    cycle_of,
    max_link_us,
    part_us,
)
from howfar.bottleneck.evidence import ArmSetting, Evidence, gather_evidence
from howfar.bottleneck.rules import HALF, Confidence, RuleFinding, judge
from howfar.bottleneck.traffic import DIRECTION_LABELS, factor_text, percent
from howfar.model.resource import LINKS, Resource
from howfar.plan.factors import Level
from howfar.stats.estimate import Estimate, Part
from howfar.stats.resample import interval_over_blocks
from howfar.store.records import Trial


class Limit(Part):
    """Which resource binds, with the evidence."""

    resource: Resource
    says: str
    """One clause with figures: `the link to the client is full: 117.1 of 117.3 MiB/s`."""
    evidence: tuple[str, ...]
    """Facts, each a measured figure and its limit."""
    confidence: Confidence
    would_change: str
    """Changes that would increase throughput, with bounds of their effects."""
    would_not: str
    """Changes that are often tried but would not help. Empty: none."""
    gain: Estimate | None = None
    """Upper bound of the ratio of throughput without this limit to the present one; then another resource is full. None: unknown."""
    faster_link: Estimate | None = None
    """Upper bound of the ratio of throughput over a link of any rate to the present one. None: no link with a rate."""
    divided: bool = False
    """Whether no user dominates the CPUs: the share of `resource` is the largest, but neither half of the CPU time in use nor twice
    the next share."""


_OTHERWISE = AliasChoices("otherwise", "ratio_if_wrong")
"""Names of a field: its name in run files and reports, and in Python."""


class Intervention(Part):
    """A change that tests whether a limit is the limit."""

    arm: str
    resource: Resource
    changed: str
    """`rate 1gbit -> 1.5gbit`."""
    factors: dict[str, Level]
    """The arm's factors with the change."""
    predicted: float
    """Expected ratio of throughput to the unchanged arm's, if the limit is as named."""
    ratio_if_wrong: float = Field(validation_alias=_OTHERWISE, serialization_alias="otherwise")
    """Expected ratio if the limit is another one. The farther from `predicted`, the fewer blocks are needed."""
    rules_out: str = ""
    """What is no limit if throughput changes as predicted, for a change of something other than the resource. Empty: the resource
    itself is changed."""


class Unconfirmed(Part):
    """A limit that could not be tested, and why."""

    arm: str
    resource: Resource
    why: str


class Confirmation(Part):
    """The named resource was changed for a few blocks: did throughput move as said?"""

    arm: str
    resource: Resource
    changed: str
    """`rate 1gbit -> 1.5gbit`."""
    predicted: float
    """Expected ratio of throughput to the unchanged arm's."""
    measured: Estimate
    confirmed: bool
    """Whether throughput changed as `predicted` and not as `ratio_if_wrong`, see `analysis.confirmation.is_as_predicted`."""
    blocks: int
    ratio_if_wrong: float = Field(1.0, validation_alias=_OTHERWISE, serialization_alias="otherwise")
    """Expected ratio if the limit were another one."""
    rules_out: str = ""
    """As `Intervention.rules_out`."""


RATE_FACTOR = 1.5
"""Factor of the rate of a faster link: large enough to show in a few blocks, and small enough to stay mostly below the next
ceiling."""
_MAX_FACTOR = 100.0
"""Largest factor that is reported."""
_MIN_EMULATOR_SHARE = 0.10
"""Minimum share of CPUs that the emulator uses, from which its use is reported."""
MIN_HELPFUL_GAIN = 1.05
"""Minimum factor of throughput of a change that helps. A change does not help if the upper limit of its gain is lower."""
SEPARATE_CPUS_ADVICE = "separate CPUs for each of these; which of them that would help most is unknown"
"""Suggested change when no process dominates the shared CPUs."""


_GAIN_UNKNOWN = frozenset({Resource.SERVER_WAIT, Resource.ERRORS, Resource.INVALID, Resource.NOT_ESTABLISHED})
"""Limits whose share of the cycle is not known from any counter."""

PARTS_REMOVED_WITH: dict[Resource, tuple[str, ...]] = {
    Resource.RECEIVE_WINDOW: (WINDOWS,),
    Resource.SEND_BUFFER: (WINDOWS,),
    Resource.LOSS: (LOSS,),
    Resource.COMMIT: (COMMIT,),
    Resource.ACKNOWLEDGEMENT: (ACKNOWLEDGEMENT,),
    Resource.LOCK: (LOCKS,),
}
"""Parts of the cycle that disappear if a limit is removed."""


@dataclass(frozen=True)
class GrowthBound:
    """Upper bound of the factor by which throughput can grow before something else is full."""

    factor: float
    next_limit: str
    """The resource that is full at that throughput. Empty: none."""


GainRule = Callable[[Evidence, Cycle], GrowthBound]


@dataclass(frozen=True)
class Sample:
    """Evidence and cycle of an arm: of all its trials together, and of each trial, from which intervals are computed."""

    evidence: Evidence
    cycle: Cycle
    by_trial: tuple[tuple[Evidence, Cycle], ...] = ()

    def gain(self, rule: GainRule, max_factor: float = _MAX_FACTOR) -> GainEstimate:
        """Estimate a bound, at most `max_factor`. Its interval comes from its values in each block. The jackknife does not apply,
        because users of CPUs are medians over trials."""
        overall = rule(self.evidence, self.cycle)
        bound = overall if overall.factor <= max_factor else GrowthBound(max_factor, "")
        block_factors = tuple(min(rule(*trial).factor, max_factor) for trial in self.by_trial)
        interval = interval_over_blocks(bound.factor, block_factors)
        # Throughput cannot be lower without a limit.
        low, high = (None, None) if interval is None else (max(1.0, interval[0]), min(max_factor, interval[1]))
        points = block_factors if interval is None else ()
        return GainEstimate(
            Estimate(value=bound.factor, low=low, high=high, n=len(block_factors), points=points), bound.next_limit
        )

    def is_undecided(self, first: GainRule, second: GainRule) -> bool:
        """Whether the interval of the ratio of two gains includes 1. Gains are paired by block."""
        ratio = first(self.evidence, self.cycle).factor / second(self.evidence, self.cycle).factor
        interval = interval_over_blocks(
            ratio, [first(*trial).factor / second(*trial).factor for trial in self.by_trial]
        )
        return interval is not None and interval[0] <= 1 <= interval[1]


@dataclass(frozen=True)
class GainEstimate:
    """A `GrowthBound` with its interval."""

    estimate: Estimate
    next_limit: str

    @property
    def min_factor(self) -> float:
        """Lower limit of the interval; the value if there is none."""
        return self.estimate.value if self.estimate.low is None else self.estimate.low

    @property
    def max_factor(self) -> float:
        """Upper limit of the interval; the value if there is none."""
        return self.estimate.value if self.estimate.high is None else self.estimate.high

    def __str__(self) -> str:
        """The gain as text: `x1.8 [x1.6, x2]`; with few blocks their values: `x1.8 (x1.7, x1.9)`. Limits with the same text as the
        value are left out."""
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if self.estimate.n == 1:
            return f"{factor_text(value)} (one block)"
        limits = sorted(self.estimate.points) if low is None or high is None else [low, high]
        limit_texts = [factor_text(limit) for limit in limits]
        if not set(limit_texts) - {factor_text(value)}:
            return factor_text(value)
        list_text = ", ".join(limit_texts)
        return f"{factor_text(value)} ({list_text})" if low is None else f"{factor_text(value)} [{list_text}]"


def next_ceiling(evidence: Evidence, without: frozenset[Resource]) -> GrowthBound:
    """The lowest ceiling of all resources with a capacity, except those in `without`. Assumptions: the use by the load and its
    instrument grows with throughput, and other programs stop using the CPUs."""
    bounds = [
        GrowthBound(1 / link.used, f"the link {DIRECTION_LABELS[link.name]}")
        for link in evidence.directions
        if link.used and not link.is_rate_lower_bound and _link_resource(link.name) not in without
    ]
    bounds += [
        GrowthBound(1 / cpus.own_use, f"the CPU of the {cpus.name}")
        for resource, cpus in zip((Resource.SERVER_CPU, Resource.CLIENT_CPU), evidence.cpu_sets, strict=False)
        if resource not in without and cpus.own_use
    ]
    if Resource.CLIENT_CPU not in without:
        share = evidence.thread_share("client") / evidence.client_workers
        bounds += [GrowthBound(1 / share, "the load generator")] if share else []
    if not bounds:
        return GrowthBound(_MAX_FACTOR, "nothing that was measured")
    lowest = min(bounds, key=lambda bound: bound.factor)
    return GrowthBound(min(_MAX_FACTOR, max(1.0, lowest.factor)), lowest.next_limit)


def _link_resource(name: str) -> Resource:
    return Resource.LINK_TO_CLIENT if name == "to_client" else Resource.LINK_TO_SERVER


def speedup_without(cycle: Cycle, us: float) -> float:
    """Factor by which throughput grows if the cycle of each connection is shorter by `us`."""
    remaining_us = cycle.us - us
    return cycle.us / remaining_us if remaining_us > cycle.us / _MAX_FACTOR else _MAX_FACTOR


def gain(resource: Resource, evidence: Evidence, cycle: Cycle) -> GrowthBound:
    """Upper bound of the gain from removing a limit."""
    if resource is Resource.INSTRUMENT_CPU:
        return _gain_without_emulator(evidence)
    ceiling = next_ceiling(evidence, frozenset({resource}))
    parts: tuple[str, ...] = PARTS_REMOVED_WITH.get(resource, ())
    if resource in LINKS:
        return _tighter_bound(ceiling, speedup_without(cycle, max_link_us(evidence, cycle)))
    if resource is Resource.LATENCY:
        parts = (ROUND_TRIPS,)
    elif resource is Resource.FORWARDER_CPU:
        parts = (FORWARDER_CPU, WAITING)
    return _tighter_bound(ceiling, speedup_without(cycle, part_us(cycle, *parts))) if parts else ceiling


def _tighter_bound(ceiling: GrowthBound, factor: float) -> GrowthBound:
    return ceiling if ceiling.factor <= factor else GrowthBound(factor, "")


def gain_of_any_rate(evidence: Evidence, cycle: Cycle) -> GrowthBound | None:
    """Upper bound of the gain from a link of any rate. None: no link, or one without a rate."""
    if all(link.used is None for link in evidence.directions):
        return None
    return _tighter_bound(next_ceiling(evidence, LINKS), speedup_without(cycle, max_link_us(evidence, cycle)))


_MAX_NEGLIGIBLE_GAIN = 1.02


def _gain_text(gain: GainEstimate) -> str:
    """A gain as text: "hardly anything" if the whole interval shows that, "perhaps hardly anything" if only its lower end does."""
    if gain.max_factor <= _MAX_NEGLIGIBLE_GAIN:
        return f"hardly anything, because {gain.next_limit} is also full" if gain.next_limit else "hardly anything"
    perhaps = ", perhaps hardly anything" if gain.min_factor <= _MAX_NEGLIGIBLE_GAIN else ""
    return f"at most {gain}" + (f", then {gain.next_limit} is full" if gain.next_limit else "") + perhaps


def describe_remedies(resource: Resource, sample: Sample) -> str:
    """The changes that would increase throughput, as text with bounds and intervals."""
    gain_text = _gain_text(sample.gain(partial(gain, resource)))
    match resource:
        case Resource.LINK_TO_CLIENT | Resource.LINK_TO_SERVER:
            faster = sample.gain(partial(gain, resource), RATE_FACTOR)
            fewer_bytes = "compression, fewer columns or rows" if resource is Resource.LINK_TO_CLIENT else "compression"
            return (
                f"a link of {RATE_FACTOR:g} times the rate: about {faster}; a much faster one: {gain_text}; "
                f"fewer bytes ({fewer_bytes})"
            )
        case Resource.SERVER_CPU:
            doubled = sample.gain(partial(gain, resource), 2.0)
            return f"twice the CPU for the server: {_gain_text(doubled)}" + _emulator_clause(sample)
        case Resource.CLIENT_CPU:
            return f"more CPU for the load generator, or a second load generator: {gain_text}"
        case Resource.INSTRUMENT_CPU:
            return f"a machine with spare CPUs for the emulator: {gain_text}"
        case Resource.FORWARDER_CPU | Resource.ONE_THREAD:
            return f"plain TCP instead of a forwarder, or more connections where one thread serves each: {gain_text}"
        case Resource.RECEIVE_WINDOW:
            return f"a larger receive window (net.ipv4.tcp_rmem of the receiver): {gain_text}; more connections, each with its own"
        case Resource.SEND_BUFFER:
            return f"a larger send buffer (net.ipv4.tcp_wmem of the sender): {gain_text}; more connections, each with its own"
        case Resource.LOSS:
            return f"a path without loss: {gain_text}; more connections, since a loss delays only one of them"
        case Resource.COMMIT:
            return f"commits that do not wait for the disk: {gain_text}; more connections, which share a write; a faster disk"
        case Resource.ACKNOWLEDGEMENT:
            halved = sample.gain(
                lambda _, cycle: GrowthBound(speedup_without(cycle, part_us(cycle, ACKNOWLEDGEMENT) / 2), "")
            )
            return (
                f"a replica at half the distance: about {halved}; more connections, which wait together; "
                f"asynchronous replication, which may lose commits in a crash: {gain_text}"
            )
        case Resource.LOCK:
            return f"no waiting for locks (shorter transactions, other rows): {gain_text}"
        case Resource.LATENCY:
            return _latency_remedies(sample)
        case Resource.SERVER_WAIT:
            return "depends on what the sessions wait for: see the server's performance_schema or processlist during the load"
        case Resource.ERRORS:
            return "a run without these errors: failing transactions are another workload"
        case Resource.INVALID:
            return "a run without other programs on the machine"
        case _:
            return "unknown: change one thing at a time (--confirm does so for a limit that is established)"


def _gain_of_twice_the_connections(evidence: Evidence, _: Cycle) -> GrowthBound:
    ceiling = next_ceiling(evidence, frozenset())
    return ceiling if ceiling.factor < 2.0 else GrowthBound(2.0, "")


def _gain_of_half_the_round_trips(evidence: Evidence, cycle: Cycle) -> GrowthBound:
    faster = speedup_without(cycle, part_us(cycle, ROUND_TRIPS) / 2)
    return GrowthBound(min(faster, next_ceiling(evidence, frozenset()).factor), "")


def _gain_of_much_faster_link(evidence: Evidence, cycle: Cycle) -> GrowthBound:
    return gain_of_any_rate(evidence, cycle) or GrowthBound(1.0, "")


def _latency_remedies(sample: Sample) -> str:
    """Changes that help against latency, each with its bound, and a note if it is not resolved which of the best two helps more."""
    halved_trips, faster_link = sample.gain(_gain_of_half_the_round_trips, 2.0), sample.gain(_gain_of_much_faster_link)
    doubled = sample.gain(_gain_of_twice_the_connections, 2.0)
    remedies: list[tuple[GainRule, GainEstimate, str, str]] = [
        (_gain_of_half_the_round_trips, halved_trips, "half the RTT or half the round trips", f"about {halved_trips}"),
        (_gain_of_much_faster_link, faster_link, "a much faster link", _gain_text(faster_link)),
        (_gain_of_twice_the_connections, doubled, "twice the connections", _gain_text(doubled)),
    ]
    is_applicable = [
        part_us(sample.cycle, ROUND_TRIPS) > HALF * sample.cycle.us,
        faster_link.max_factor >= MIN_HELPFUL_GAIN,
        True,
    ]
    remedies = [remedy for remedy, applies in zip(remedies, is_applicable, strict=True) if applies]
    clauses = [f"{change}: {effect}" for _, _, change, effect in remedies]
    if len(remedies) > 1:
        best, second = sorted(remedies, key=lambda remedy: -remedy[1].estimate.value)[:2]
        if sample.is_undecided(best[0], second[0]):
            clauses.append(f"whether {best[2]} or {second[2]} helps more is not resolved")
    return "; ".join(clauses)


def _gain_without_emulator(evidence: Evidence) -> GrowthBound:
    """Bound of the gain without the emulator: processes that wait for the fullest set of CPUs would get its share of them."""
    share = max((cpus.owners.get("link", 0.0) / cpus.used for cpus in evidence.cpu_sets if cpus.used), default=0.0)
    links = [1 / link.used for link in evidence.directions if link.used]
    return GrowthBound(min([_MAX_FACTOR, 1 / (1 - min(share, 0.99)), *links]), "")


def _emulator_clause(sample: Sample) -> str:
    cpus = sample.evidence.server_cpus
    share = cpus.owners.get("link", 0.0)
    if share < _MIN_EMULATOR_SHARE or not cpus.used:
        return ""
    gain_without = sample.gain(lambda evidence, _: _gain_without_emulator(evidence))
    return f"; the emulator used {percent(share)} of it: with CPUs of its own, {_gain_text(gain_without)}"


def describe_non_remedies(resource: Resource, sample: Sample, faster_link: GainEstimate | None) -> str:
    """Changes that are often tried but would not help; more bandwidth only if the entire interval of its gain shows that."""
    evidence = sample.evidence
    used = max((link.used for link in evidence.directions if link.used is not None), default=None)
    at_most = "at most " if any(link.is_rate_lower_bound for link in evidence.directions) else ""
    unused_link = (
        f"more bandwidth: {at_most}{percent(used)} of the link is used"
        if used and faster_link and faster_link.max_factor < MIN_HELPFUL_GAIN
        else ""
    )
    match resource:
        case Resource.LINK_TO_CLIENT | Resource.LINK_TO_SERVER:
            return "more connections, or more CPU on either side"
        case Resource.SERVER_CPU | Resource.FORWARDER_CPU | Resource.INSTRUMENT_CPU:
            return _join_clauses("more connections", unused_link)
        case Resource.CLIENT_CPU:
            return "any change of path or server: these figures would not show it"
        case Resource.ACKNOWLEDGEMENT:
            return _join_clauses("a faster disk, or more bandwidth to the replica", _idle_cpu_clause(evidence))
        case Resource.LOCK:
            return _join_clauses("more connections", unused_link)
        case Resource.LATENCY | Resource.LOSS | Resource.RECEIVE_WINDOW | Resource.SEND_BUFFER | Resource.COMMIT:
            return _join_clauses(unused_link, _idle_cpu_clause(evidence))
        case _:
            return ""


def _idle_cpu_clause(evidence: Evidence) -> str:
    cpus = evidence.server_cpus
    return f"more CPU for the server: only {percent(cpus.used)} of it is in use" if 0 < cpus.used < HALF else ""


def _join_clauses(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


CLEAR_MAJORITY_SHARE, MAJORITY_SHARE = 0.75, 0.5
"""Shares of the trials that name the same limit. From `CLEAR_MAJORITY_SHARE` on, the limit has the confidence of its rule. Up to
`MAJORITY_SHARE`, its confidence is low."""
_CONFIDENCE_LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")


def find_limit(trials: Sequence[Trial], setting: ArmSetting) -> tuple[Evidence, Cycle, Limit]:
    """Find the limit of one arm. `trials`: its good trials, at least one; the returned evidence and cycle are those of all of them.
    The limit is the one that most trials name, judged by the evidence of those trials only, so that a disturbed block does not affect
    it."""
    all_evidence = gather_evidence(trials, setting)
    cycle = cycle_of(all_evidence)
    evidence_by_trial = [gather_evidence([trial], setting) for trial in trials]
    judged_trials = [(evidence, cycle_of(evidence)) for evidence in evidence_by_trial]
    named_limits = [judge(*trial).resource for trial in judged_trials]
    agreeing_indices = _agreeing_indices(named_limits)
    evidence = gather_evidence([trials[index] for index in agreeing_indices], setting)
    sample = Sample(evidence, cycle_of(evidence), tuple(judged_trials[index] for index in agreeing_indices))
    finding = judge(sample.evidence, sample.cycle)
    share = named_limits.count(finding.resource) / len(trials)
    if not share and finding.resource is not Resource.NOT_ESTABLISHED:
        finding = _differing_trials_finding(finding.resource, named_limits)
    facts = finding.evidence
    if share and len(trials) > 1:
        facts += (f"{named_limits.count(finding.resource)} of {len(trials)} trials name it when each is judged alone",)
    faster_link = (
        None if gain_of_any_rate(sample.evidence, sample.cycle) is None else sample.gain(_gain_of_much_faster_link)
    )
    changes = SEPARATE_CPUS_ADVICE if finding.divided else describe_remedies(finding.resource, sample)
    limit = Limit(
        resource=finding.resource,
        says=finding.says,
        evidence=facts,
        confidence=_overall_confidence(finding.confidence, share),
        would_change=changes,
        would_not=describe_non_remedies(finding.resource, sample, faster_link),
        gain=None
        if finding.divided or finding.resource in _GAIN_UNKNOWN
        else sample.gain(partial(gain, finding.resource)).estimate,
        faster_link=faster_link.estimate if faster_link else None,
        divided=finding.divided,
    )
    return all_evidence, cycle, limit


def _agreeing_indices(named_limits: Sequence[Resource]) -> list[int]:
    """The indices of the trials that name the same limit, if they are more than half; otherwise of all trials."""
    most_named = max(named_limits, key=named_limits.count)
    if named_limits.count(most_named) <= MAJORITY_SHARE * len(named_limits):
        return list(range(len(named_limits)))
    return [index for index, resource in enumerate(named_limits) if resource is most_named]


def _differing_trials_finding(overall_limit: Resource, named_limits: Sequence[Resource]) -> RuleFinding:
    """The finding if all trials together suggest a limit that none of them names."""
    counts = ", ".join(
        f"{resource.value} in {named_limits.count(resource)}" for resource in dict.fromkeys(named_limits)
    )
    says = f"not established: the {len(named_limits)} trials differ, and together resemble none of them: {counts}"
    fact = f"taken together, they look like {overall_limit.value}, which none of them names"
    return RuleFinding(Resource.NOT_ESTABLISHED, says, (fact,), "low")


def _overall_confidence(rule_confidence: Confidence, agreeing_share: float) -> Confidence:
    if agreeing_share <= MAJORITY_SHARE:
        return "low"
    if agreeing_share < CLEAR_MAJORITY_SHARE:
        return _CONFIDENCE_LEVELS[max(0, _CONFIDENCE_LEVELS.index(rule_confidence) - 1)]
    return rule_confidence
