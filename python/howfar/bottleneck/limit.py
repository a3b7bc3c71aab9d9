"""The limit of an arm, from its good trials, and the changes that would increase its throughput, with upper bounds of their gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

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
from howfar.bottleneck.evidence import ArmSetting, Evidence, gather
from howfar.bottleneck.rules import HALF, Confidence, RuleFinding, judge
from howfar.bottleneck.traffic import DIRECTION_LABELS, percent, times
from howfar.model.resource import Resource
from howfar.plan.factors import Level
from howfar.stats.estimate import Estimate, Part
from howfar.stats.resample import of_blocks
from howfar.store.records import Trial


class Limit(Part):
    """Which resource binds, with the evidence."""

    resource: Resource
    says: str
    """One clause with figures: `the link to the client is full: 117.1 of 117.3 MiB/s`."""
    evidence: tuple[str, ...]
    """Each a measured figure against its limit."""
    confidence: Literal["high", "medium", "low"]
    would_change: str
    """The counterfactual: which change moves throughput, and by about how much."""
    would_not: str
    """Changes that will not help although they are often tried; empty: none."""
    gain: Estimate | None = None
    """Throughput without this limit over the arm's own, at most: until something else is full. None: unknown."""
    faster_link: Estimate | None = None
    """Throughput over a link of any rate over the arm's own, at most. None: no link with a rate."""
    divided: bool = False
    """Whether no user dominates the CPUs: `resource` has the largest share, which is neither half of the CPU time in use nor twice
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
    """The arm's, with the change."""
    predicted: float
    """Throughput over the unchanged arm's, if the limit is as named."""
    ratio_if_wrong: float = Field(validation_alias=_OTHERWISE, serialization_alias="otherwise")
    """Expected ratio if it is not. The further apart the two are, the fewer blocks are needed."""
    rules_out: str = ""
    """What is not a limit if throughput moves as predicted, where something other than the resource was changed. Empty: it was
    changed."""


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
    """Throughput over the unchanged arm's, by the model."""
    measured: Estimate
    confirmed: bool
    """Whether throughput moved as predicted, and not as `ratio_if_wrong`: see `analysis/confirmation.py`, `is_as_predicted`."""
    blocks: int
    ratio_if_wrong: float = Field(1.0, validation_alias=_OTHERWISE, serialization_alias="otherwise")
    """Expected ratio if it were not the limit."""
    rules_out: str = ""
    """As in the intervention. Empty: the resource itself was changed."""


FASTER = 1.5
"""Factor of the rate of a faster link: large enough to show in a few blocks, small enough to stay mostly below the next ceiling."""
_UNBOUNDED = 100.0
"""Largest factor that is reported."""
_EMULATOR_SHARE = 0.10
"""Share of the CPUs used by the emulator from which its absence would be noticeable."""
HARDLY = 1.05
"""Factor of throughput. A change whose gain is lower than this even by its upper limit does not help."""
SHARED_CPUS = "separate CPUs for each of these; which of them that would help most is unknown"
"""Suggested change when no process dominates the shared CPUs."""
_LINKS = frozenset({Resource.LINK_TO_CLIENT, Resource.LINK_TO_SERVER})


_GAIN_UNKNOWN = frozenset({Resource.SERVER_WAIT, Resource.ERRORS, Resource.INVALID, Resource.NOT_ESTABLISHED})
"""Limits whose share of the cycle no counter shows."""

HELD_PARTS: dict[Resource, tuple[str, ...]] = {
    Resource.RECEIVE_WINDOW: (WINDOWS,),
    Resource.SEND_BUFFER: (WINDOWS,),
    Resource.LOSS: (LOSS,),
    Resource.COMMIT: (COMMIT,),
    Resource.ACKNOWLEDGEMENT: (ACKNOWLEDGEMENT,),
    Resource.LOCK: (LOCKS,),
}
"""Parts of the cycle that disappear with the limit."""


@dataclass(frozen=True)
class GrowthBound:
    """Upper bound of the factor by which throughput can grow before something else is full."""

    factor: float
    then: str
    """The resource that is full then. Empty: none."""


GainRule = Callable[[Evidence, Cycle], GrowthBound]


@dataclass(frozen=True)
class Sample:
    """Evidence and cycle of all of an arm's trials together, and of each trial alone, from which intervals are computed."""

    evidence: Evidence
    cycle: Cycle
    each: tuple[tuple[Evidence, Cycle], ...] = ()

    def gain(self, rule: GainRule, max_factor: float = _UNBOUNDED) -> GainEstimate:
        """A bound, at most `max_factor`, with an interval from its values in each block alone. Resampling would not do, because users
        of CPUs are medians over trials."""
        overall, block_factors = rule(self.evidence, self.cycle), [rule(*block).factor for block in self.each]
        bound = overall if overall.factor <= max_factor else GrowthBound(max_factor, "")
        interval = of_blocks(bound.factor, [min(factor, max_factor) for factor in block_factors])
        # Removing a limit cannot make it slower.
        low, high = (None, None) if interval is None else (max(1.0, interval[0]), min(max_factor, interval[1]))
        points = tuple(min(factor, max_factor) for factor in block_factors) if interval is None else ()
        return GainEstimate(
            Estimate(value=bound.factor, low=low, high=high, n=len(block_factors), points=points), bound.then
        )

    def undecided(self, first: GainRule, second: GainRule) -> bool:
        """Whether the interval of the ratio of two gains, paired by block, includes 1."""
        ratio = first(self.evidence, self.cycle).factor / second(self.evidence, self.cycle).factor
        interval = of_blocks(ratio, [first(*block).factor / second(*block).factor for block in self.each])
        return interval is not None and interval[0] <= 1 <= interval[1]


@dataclass(frozen=True)
class GainEstimate:
    """A bound with its interval."""

    estimate: Estimate
    then: str

    @property
    def least(self) -> float:
        """Lower end of the interval; without one, the value."""
        return self.estimate.value if self.estimate.low is None else self.estimate.low

    @property
    def most(self) -> float:
        """Upper end of the interval; without one, the value."""
        return self.estimate.value if self.estimate.high is None else self.estimate.high

    def __str__(self) -> str:
        """`x1.8 [x1.6, x2]`; for few blocks their own values: `x1.8 (x1.7, x1.9)`. Ends that equal the value as text are left out."""
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if self.estimate.n == 1:
            return f"{times(value)} (one block)"
        ends = sorted(self.estimate.points) if low is None or high is None else [low, high]
        shown = [times(end) for end in ends]
        if not set(shown) - {times(value)}:
            return times(value)
        return f"{times(value)} ({', '.join(shown)})" if low is None else f"{times(value)} [{', '.join(shown)}]"


def next_ceiling(evidence: Evidence, without: frozenset[Resource]) -> GrowthBound:
    """The lowest ceiling of all resources with a capacity, except those in `without`. It assumes that the use by the load and its
    instrument grows with throughput, and that other programs give up their part of a CPU."""
    bounds = [
        GrowthBound(1 / link.used, f"the link {DIRECTION_LABELS[link.name]}")
        for link in evidence.directions
        if link.used and not link.rate_is_least and _link(link.name) not in without
    ]
    if Resource.SERVER_CPU not in without:
        bounds += [
            GrowthBound(1 / cpus.ours, f"the CPU of the {cpus.name}") for cpus in evidence.cpu_sets[:1] if cpus.ours
        ]
    if Resource.CLIENT_CPU not in without:
        bounds += [
            GrowthBound(1 / cpus.ours, f"the CPU of the {cpus.name}") for cpus in evidence.cpu_sets[1:] if cpus.ours
        ]
        share = evidence.thread_share("client") / evidence.client_workers
        bounds += [GrowthBound(1 / share, "the load generator")] if share else []
    if not bounds:
        return GrowthBound(_UNBOUNDED, "nothing that was measured")
    lowest = min(bounds, key=lambda bound: bound.factor)
    return GrowthBound(min(_UNBOUNDED, max(1.0, lowest.factor)), lowest.then)


def _link(name: str) -> Resource:
    return Resource.LINK_TO_CLIENT if name == "to_client" else Resource.LINK_TO_SERVER


def without_parts(cycle: Cycle, us: float) -> float:
    """Factor by which a connection is faster if its cycle is shorter by `us`."""
    remaining_us = cycle.us - us
    return cycle.us / remaining_us if remaining_us > cycle.us / _UNBOUNDED else _UNBOUNDED


def gain(resource: Resource, evidence: Evidence, cycle: Cycle) -> GrowthBound:
    """Upper bound of the gain if a limit is removed."""
    if resource is Resource.INSTRUMENT_CPU:
        return _gain_without_emulator(evidence)
    ceiling = next_ceiling(evidence, frozenset({resource}))
    parts: tuple[str, ...] = HELD_PARTS.get(resource, ())
    if resource in _LINKS:
        return _tighter_bound(ceiling, without_parts(cycle, max_link_us(evidence, cycle)))
    if resource is Resource.LATENCY:
        parts = (ROUND_TRIPS,)
    elif resource is Resource.FORWARDER_CPU:
        parts = (FORWARDER_CPU, WAITING)
    return _tighter_bound(ceiling, without_parts(cycle, part_us(cycle, *parts))) if parts else ceiling


def _tighter_bound(ceiling: GrowthBound, faster: float) -> GrowthBound:
    return ceiling if ceiling.factor <= faster else GrowthBound(faster, "")


def bandwidth(evidence: Evidence, cycle: Cycle) -> GrowthBound | None:
    """Upper bound of the gain from a link of any rate. None: no link, or one without a rate."""
    if all(link.used is None for link in evidence.directions):
        return None
    return _tighter_bound(next_ceiling(evidence, _LINKS), without_parts(cycle, max_link_us(evidence, cycle)))


_NEGLIGIBLE = 1.02


def _gain_text(gain: GainEstimate) -> str:
    """A gain as text: "hardly anything" if the whole interval shows that, "perhaps hardly anything" if only its lower end does."""
    if gain.most <= _NEGLIGIBLE:
        return f"hardly anything, because {gain.then} is also full" if gain.then else "hardly anything"
    perhaps = ", perhaps hardly anything" if gain.least <= _NEGLIGIBLE else ""
    return f"at most {gain}" + (f", then {gain.then} is full" if gain.then else "") + perhaps


def would_change(resource: Resource, sample: Sample) -> str:
    """The changes that move throughput, as text with numbers and intervals."""
    full = sample.gain(partial(gain, resource))
    match resource:
        case Resource.LINK_TO_CLIENT | Resource.LINK_TO_SERVER:
            faster = sample.gain(partial(gain, resource), FASTER)
            fewer_bytes = "compression, fewer columns or rows" if resource is Resource.LINK_TO_CLIENT else "compression"
            return (
                f"a link of {FASTER:g} times the rate: about {faster}; a much faster one: {_gain_text(full)}; "
                f"fewer bytes ({fewer_bytes})"
            )
        case Resource.SERVER_CPU:
            doubled = sample.gain(partial(gain, resource), 2.0)
            return f"twice the CPU for the server: {_gain_text(doubled)}" + _without_emulator(sample)
        case Resource.CLIENT_CPU:
            return f"more CPU for the load generator, or a second load generator: {_gain_text(full)}"
        case Resource.INSTRUMENT_CPU:
            return f"a machine with spare CPUs for the emulator: {_gain_text(full)}"
        case Resource.FORWARDER_CPU | Resource.ONE_THREAD:
            return "plain TCP instead of a forwarder, or more connections where one thread serves each: " + _gain_text(
                full
            )
        case Resource.RECEIVE_WINDOW:
            return (
                f"a larger receive window (net.ipv4.tcp_rmem of the receiver): {_gain_text(full)}; "
                "more connections, each with its own"
            )
        case Resource.SEND_BUFFER:
            return f"a larger send buffer (net.ipv4.tcp_wmem of the sender): {_gain_text(full)}; more connections, each with its own"
        case Resource.LOSS:
            return f"a path without loss: {_gain_text(full)}; more connections, since a loss delays only one of them"
        case Resource.COMMIT:
            return f"commits that do not wait for the disk: {_gain_text(full)}; more connections, which share a write; a faster disk"
        case Resource.ACKNOWLEDGEMENT:
            halved = sample.gain(
                lambda _, cycle: GrowthBound(without_parts(cycle, part_us(cycle, ACKNOWLEDGEMENT) / 2), "")
            )
            return (
                f"a replica at half the distance: about {halved}; more connections, which wait together; "
                f"asynchronous replication, which may lose commits in a crash: {_gain_text(full)}"
            )
        case Resource.LOCK:
            return f"no waiting for locks (shorter transactions, other rows): {_gain_text(full)}"
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


def _lower_of(factor: float, most: GrowthBound) -> GrowthBound:
    return most if most.factor < factor else GrowthBound(factor, "")


def _gain_of_twice_the_connections(evidence: Evidence, _: Cycle) -> GrowthBound:
    return _lower_of(2.0, next_ceiling(evidence, frozenset()))


def _gain_of_half_the_round_trips(evidence: Evidence, cycle: Cycle) -> GrowthBound:
    faster = without_parts(cycle, part_us(cycle, ROUND_TRIPS) / 2)
    return GrowthBound(min(faster, next_ceiling(evidence, frozenset()).factor), "")


def _gain_of_far_faster_link(evidence: Evidence, cycle: Cycle) -> GrowthBound:
    return bandwidth(evidence, cycle) or GrowthBound(1.0, "")


def _latency_remedies(sample: Sample) -> str:
    """Changes that help against latency, each with its bound, and a note if the blocks do not resolve which of the best two helps
    more."""
    halved_trips, faster_link = sample.gain(_gain_of_half_the_round_trips, 2.0), sample.gain(_gain_of_far_faster_link)
    doubled = sample.gain(_gain_of_twice_the_connections, 2.0)
    remedies: list[tuple[GainRule, GainEstimate, str, str]] = [
        (_gain_of_half_the_round_trips, halved_trips, "half the RTT or half the round trips", f"about {halved_trips}"),
        (_gain_of_far_faster_link, faster_link, "a much faster link", _gain_text(faster_link)),
        (_gain_of_twice_the_connections, doubled, "twice the connections", _gain_text(doubled)),
    ]
    applicable = [part_us(sample.cycle, ROUND_TRIPS) > HALF * sample.cycle.us, faster_link.most >= HARDLY, True]
    remedies = [remedy for remedy, helps in zip(remedies, applicable, strict=True) if helps]
    clauses = [f"{what}: {effect}" for _, _, what, effect in remedies]
    if len(remedies) > 1:
        best, second = sorted(remedies, key=lambda remedy: -remedy[1].estimate.value)[:2]
        if sample.undecided(best[0], second[0]):
            clauses.append(f"whether {best[2]} or {second[2]} helps more is not resolved")
    return "; ".join(clauses)


def _gain_without_emulator(evidence: Evidence) -> GrowthBound:
    """Bound of the gain without the emulator: its share of the fullest set of CPUs would go to the processes that wait for it."""
    share = max((cpus.owners.get("link", 0.0) / cpus.used for cpus in evidence.cpu_sets if cpus.used), default=0.0)
    links = [1 / link.used for link in evidence.directions if link.used]
    return GrowthBound(min([_UNBOUNDED, 1 / (1 - min(share, 0.99)), *links]), "")


def _without_emulator(sample: Sample) -> str:
    cpus = sample.evidence.server_cpus
    share = cpus.owners.get("link", 0.0)
    if share < _EMULATOR_SHARE or not cpus.used:
        return ""
    gain_without = sample.gain(lambda evidence, _: _gain_without_emulator(evidence))
    return f"; the emulator used {percent(share)} of it: with CPUs of its own, {_gain_text(gain_without)}"


def would_not(resource: Resource, sample: Sample, faster_link: GainEstimate | None) -> str:
    """Changes that will not help although they are often tried; bandwidth only if its entire interval shows that."""
    evidence = sample.evidence
    used = max((link.used for link in evidence.directions if link.used is not None), default=None)
    at_most = "at most " if any(link.rate_is_least for link in evidence.directions) else ""
    unused_link = (
        f"more bandwidth: {at_most}{percent(used)} of the link is used"
        if used and faster_link and faster_link.most < HARDLY
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
            return _join_clauses("a faster disk, or more bandwidth to the replica", _cpu_idle(evidence))
        case Resource.LOCK:
            return _join_clauses("more connections", unused_link)
        case Resource.LATENCY | Resource.LOSS | Resource.RECEIVE_WINDOW | Resource.SEND_BUFFER | Resource.COMMIT:
            return _join_clauses(unused_link, _cpu_idle(evidence))
        case _:
            return ""


def _cpu_idle(evidence: Evidence) -> str:
    cpus = evidence.server_cpus
    return f"more CPU for the server: only {percent(cpus.used)} of it is in use" if 0 < cpus.used < HALF else ""


def _join_clauses(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


SURE_SHARE, MAJORITY_SHARE = 0.75, 0.5
"""If at least `SURE_SHARE` of the trials name the same limit, it has the confidence of its rule. If no more than `MAJORITY_SHARE` do,
its confidence is low."""
_CONFIDENCE_LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")


def find_limit(trials: Sequence[Trial], setting: ArmSetting) -> tuple[Evidence, Cycle, Limit]:
    """The limit of one arm, with the evidence and cycle of all `trials` (its good trials, at least one). The limit is the one that
    most trials name, judged by the evidence of those trials only: a block in which the machine was disturbed must not affect the
    others."""
    all_evidence = gather(trials, setting)
    cycle = cycle_of(all_evidence)
    evidence_by_trial = [gather([trial], setting) for trial in trials]
    judged_trials = [(evidence, cycle_of(evidence)) for evidence in evidence_by_trial]
    named_limits = [judge(*one).resource for one in judged_trials]
    agreeing_trials = _majority(named_limits)
    evidence = gather([trials[index] for index in agreeing_trials], setting)
    sample = Sample(evidence, cycle_of(evidence), tuple(judged_trials[index] for index in agreeing_trials))
    finding = judge(sample.evidence, sample.cycle)
    share = named_limits.count(finding.resource) / len(trials)
    if not share and finding.resource is not Resource.NOT_ESTABLISHED:
        finding = _differing_trials_finding(finding.resource, named_limits)
    facts = finding.evidence
    if share and len(trials) > 1:
        facts += (f"{named_limits.count(finding.resource)} of {len(trials)} trials name it when each is judged alone",)
    faster_link = None if bandwidth(sample.evidence, sample.cycle) is None else sample.gain(_gain_of_far_faster_link)
    changes = SHARED_CPUS if finding.divided else would_change(finding.resource, sample)
    limit = Limit(
        resource=finding.resource,
        says=finding.says,
        evidence=facts,
        confidence=_overall_confidence(finding.confidence, share),
        would_change=changes,
        would_not=would_not(finding.resource, sample, faster_link),
        gain=None
        if finding.divided or finding.resource in _GAIN_UNKNOWN
        else sample.gain(partial(gain, finding.resource)).estimate,
        faster_link=faster_link.estimate if faster_link else None,
        divided=finding.divided,
    )
    return all_evidence, cycle, limit


def _majority(named_limits: Sequence[Resource]) -> list[int]:
    """The indices of the trials that name the same limit, if they are more than half; otherwise all."""
    most_named = max(named_limits, key=named_limits.count)
    if named_limits.count(most_named) <= MAJORITY_SHARE * len(named_limits):
        return list(range(len(named_limits)))
    return [index for index, resource in enumerate(named_limits) if resource is most_named]


def _differing_trials_finding(together: Resource, named_limits: Sequence[Resource]) -> RuleFinding:
    """The finding if the mean of unlike trials suggests a limit that none of them names."""
    counts = ", ".join(
        f"{resource.value} in {named_limits.count(resource)}" for resource in dict.fromkeys(named_limits)
    )
    says = f"not established: the {len(named_limits)} trials differ, and together resemble none of them: {counts}"
    fact = f"taken together, they look like {together.value}, which none of them names"
    return RuleFinding(Resource.NOT_ESTABLISHED, says, (fact,), "low")


def _overall_confidence(of_rule: Confidence, agreeing_share: float) -> Confidence:
    if agreeing_share <= MAJORITY_SHARE:
        return "low"
    if agreeing_share < SURE_SHARE:
        return _CONFIDENCE_LEVELS[max(0, _CONFIDENCE_LEVELS.index(of_rule) - 1)]
    return of_rule
