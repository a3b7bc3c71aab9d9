"""The limit of an arm, from its good trials, and the changes that would increase its throughput, with upper bounds of the gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import AliasChoices, Field

from howfar.bottleneck import cycle as cycles
from howfar.bottleneck import texts
from howfar.bottleneck.cycle import Cycle, cycle_of, max_link_us, part_us
from howfar.bottleneck.evidence import ArmSetting, Evidence, gather_evidence
from howfar.bottleneck.rules import DIGITS, HALF, Confidence, RuleFinding, judge, make_finding
from howfar.findings import describe, fill
from howfar.model.resource import LINKS, Resource
from howfar.plan.factor import Level
from howfar.plan.factors import BYTE_SAVERS
from howfar.stats.estimate import Estimate, Part
from howfar.stats.resample import interval_over_blocks
from howfar.store.records import Trial


class Limit(Part):
    """Which resource binds, with the evidence."""

    resource: Resource
    text: str = Field(alias="says")
    """One clause with figures: `the link to the client is full: 117.1 of 117.3 MiB/s`."""
    evidence: tuple[str, ...]
    """Facts, each a measured figure and its limit."""
    confidence: Confidence
    would_change: str
    """Changes that would increase throughput, each with a bound of its gain where there is one."""
    would_not: str
    """Changes that are often tried but would not help. Empty: none."""
    gain: Estimate | None = None
    """Upper bound of the ratio of throughput without this limit to the present one; then another resource is full. None: unknown."""
    faster_link: Estimate | None = None
    """Upper bound of the ratio of throughput over a link of any rate to the present one. None: no link with a rate."""
    divided: bool = False
    """Whether no user dominates the CPUs: the share of `resource` is the largest, but neither half of the CPU time in use nor twice
    the next share."""
    id: str = ""
    """What `says` states before a test refutes it, such as `full-link`; see `confirmations`. Empty: an older report."""
    parameters: dict[str, str | int | float] = Field(default_factory=dict)
    """The figures of `says`."""


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
_GAIN_UNKNOWN = frozenset({Resource.SERVER_WAIT, Resource.ERRORS, Resource.INVALID, Resource.NOT_ESTABLISHED})
"""Limits whose share of the cycle is not known from any counter."""
PARTS_REMOVED_WITH: dict[Resource, tuple[str, ...]] = {
    Resource.RECEIVE_WINDOW: (cycles.WINDOWS,),
    Resource.SEND_BUFFER: (cycles.WINDOWS,),
    Resource.LOSS: (cycles.LOSS,),
    Resource.COMMIT: (cycles.COMMIT,),
    Resource.ACKNOWLEDGEMENT: (cycles.ACKNOWLEDGEMENT,),
    Resource.LOCK: (cycles.LOCKS,),
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

    def interval_text(self) -> str:
        """The interval as text: ` [1.6, 2]`; with few blocks their values, ` (1.7, 1.9)`. Limits with the same text as the value are
        left out."""
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if self.estimate.n == 1:
            return texts.INTERVALS["one"]
        limits = sorted(self.estimate.points) if low is None or high is None else [low, high]
        figures = [fill("{limit:n}", limit=limit) for limit in limits]
        if not set(figures) - {fill("{value:n}", value=value)}:
            return ""
        return fill(texts.INTERVALS["few" if low is None else "many"], figures=", ".join(figures))


def next_ceiling(evidence: Evidence, without: frozenset[Resource]) -> GrowthBound:
    """The lowest ceiling of all resources with a capacity, except those in `without`. Assumptions: the use by the load and its
    instrument grows with throughput, and other programs stop using the CPUs."""
    bounds = [
        GrowthBound(1 / link.used, fill(texts.NEXT_LIMITS["link"], direction=texts.DIRECTIONS[link.name]))
        for link in evidence.directions
        if link.used and not link.is_rate_lower_bound and _link_resource(link.name) not in without
    ]
    bounds += [
        GrowthBound(1 / cpus.own_use, fill(texts.NEXT_LIMITS["cpu"], host=cpus.name))
        for resource, cpus in zip((Resource.SERVER_CPU, Resource.CLIENT_CPU), evidence.cpu_sets, strict=False)
        if resource not in without and cpus.own_use
    ]
    if Resource.CLIENT_CPU not in without:
        share = evidence.thread_share("client") / evidence.client_workers
        bounds += [GrowthBound(1 / share, texts.NEXT_LIMITS["load-generator"])] if share else []
    if not bounds:
        return GrowthBound(_MAX_FACTOR, "")
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
        parts = (cycles.ROUND_TRIPS,)
    elif resource is Resource.FORWARDER_CPU:
        parts = (cycles.FORWARDER_CPU, cycles.WAITING)
    return _tighter_bound(ceiling, speedup_without(cycle, part_us(cycle, *parts))) if parts else ceiling


def _tighter_bound(ceiling: GrowthBound, factor: float) -> GrowthBound:
    return ceiling if ceiling.factor <= factor else GrowthBound(factor, "")


def gain_of_any_rate(evidence: Evidence, cycle: Cycle) -> GrowthBound | None:
    """Upper bound of the gain from a link of any rate. None: no link, or one without a rate."""
    if all(link.used is None for link in evidence.directions):
        return None
    return _tighter_bound(next_ceiling(evidence, LINKS), speedup_without(cycle, max_link_us(evidence, cycle)))


def _gain_of_twice_the_connections(evidence: Evidence, _: Cycle) -> GrowthBound:
    ceiling = next_ceiling(evidence, frozenset())
    return ceiling if ceiling.factor < 2.0 else GrowthBound(2.0, "")


def _gain_of_half_the_round_trips(evidence: Evidence, cycle: Cycle) -> GrowthBound:
    faster = speedup_without(cycle, part_us(cycle, cycles.ROUND_TRIPS) / 2)
    return GrowthBound(min(faster, next_ceiling(evidence, frozenset()).factor), "")


def _gain_of_much_faster_link(evidence: Evidence, cycle: Cycle) -> GrowthBound:
    return gain_of_any_rate(evidence, cycle) or GrowthBound(1.0, "")


def _gain_of_half_the_acknowledgement(_: Evidence, cycle: Cycle) -> GrowthBound:
    return GrowthBound(speedup_without(cycle, part_us(cycle, cycles.ACKNOWLEDGEMENT) / 2), "")


def _gain_without_emulator(evidence: Evidence, _: Cycle | None = None) -> GrowthBound:
    """Bound of the gain without the emulator: processes that wait for the fullest set of CPUs would get its share of them."""
    share = max((cpus.owners.get("link", 0.0) / cpus.used for cpus in evidence.cpu_sets if cpus.used), default=0.0)
    links = [1 / link.used for link in evidence.directions if link.used]
    return GrowthBound(min([_MAX_FACTOR, 1 / (1 - min(share, 0.99)), *links]), "")


@dataclass(frozen=True)
class Remedy:
    """A change that may increase throughput. Its text has the same id."""

    id: str
    gain: GainRule | None = None
    """None: the gain from removing the limit."""
    max_factor: float = _MAX_FACTOR
    is_estimate: bool = False
    """Whether the gain is expected, and not only an upper bound."""
    has_bound: bool = True
    """Whether its gain can be bounded."""
    is_worth_mention: Callable[[GainEstimate, Sample], bool] = lambda gain, sample: True
    """Whether to mention it, if its gain can be bounded."""


def _is_mostly_round_trips(gain: GainEstimate, sample: Sample) -> bool:
    return part_us(sample.cycle, cycles.ROUND_TRIPS) > HALF * sample.cycle.us


def _is_helpful(gain: GainEstimate, sample: Sample) -> bool:
    return gain.max_factor >= MIN_HELPFUL_GAIN


def _emulator_uses_much_cpu(gain: GainEstimate, sample: Sample) -> bool:
    cpus = sample.evidence.server_cpus
    return cpus.owners.get("link", 0.0) >= _MIN_EMULATOR_SHARE and cpus.used > 0


_unbounded = partial(Remedy, has_bound=False)
_FASTER_LINKS = (Remedy("faster-link", max_factor=RATE_FACTOR, is_estimate=True), Remedy("much-faster-link"))
_REMEDIES: dict[Resource, tuple[Remedy, ...]] = {
    Resource.LINK_TO_CLIENT: (*_FASTER_LINKS, _unbounded("fewer-bytes-to-client")),
    Resource.LINK_TO_SERVER: (*_FASTER_LINKS, _unbounded("fewer-bytes-to-server")),
    Resource.SERVER_CPU: (
        Remedy("server-cpu", max_factor=2.0),
        Remedy("emulator-apart", _gain_without_emulator, is_worth_mention=_emulator_uses_much_cpu),
    ),
    Resource.CLIENT_CPU: (Remedy("client-cpu"),),
    Resource.INSTRUMENT_CPU: (Remedy("emulator-cpu"),),
    Resource.FORWARDER_CPU: (Remedy("no-forwarder"),),
    Resource.ONE_THREAD: (Remedy("no-forwarder"),),
    Resource.RECEIVE_WINDOW: (Remedy("receive-window"), _unbounded("more-windows")),
    Resource.SEND_BUFFER: (Remedy("send-buffer"), _unbounded("more-windows")),
    Resource.LOSS: (Remedy("no-loss"), _unbounded("less-delay")),
    Resource.COMMIT: (Remedy("no-disk"), _unbounded("shared-writes"), _unbounded("faster-disk")),
    Resource.ACKNOWLEDGEMENT: (
        Remedy("nearer-server", _gain_of_half_the_acknowledgement, is_estimate=True),
        _unbounded("more-waits"),
        Remedy("no-wait"),
    ),
    Resource.LOCK: (Remedy("no-lock-waits"),),
    Resource.LATENCY: (
        Remedy(
            "fewer-round-trips",
            _gain_of_half_the_round_trips,
            2.0,
            is_estimate=True,
            is_worth_mention=_is_mostly_round_trips,
        ),
        Remedy("much-faster-link", _gain_of_much_faster_link, is_worth_mention=_is_helpful),
        Remedy("more-connections", _gain_of_twice_the_connections, 2.0),
    ),
    Resource.SERVER_WAIT: (_unbounded("server-waits"),),
    Resource.ERRORS: (_unbounded("no-errors"),),
    Resource.INVALID: (_unbounded("quiet-machine"),),
    Resource.NOT_ESTABLISHED: (_unbounded("one-change"),),
}
"""Changes that help against each limit, the most important first."""
_BUSY_SERVER_THREAD = (Remedy("server-threads"),)
"""Changes that help if `Resource.ONE_THREAD` is one of the server, not of a forwarder."""
_MAX_NEGLIGIBLE_GAIN = 1.02


def describe_remedies(finding: RuleFinding, sample: Sample) -> str:
    """The changes that would increase throughput, with bounds and intervals, and a note if it is not resolved which of the best two
    helps more."""
    emulator_share = sample.evidence.server_cpus.owners.get("link", 0.0)
    resource, clauses, gains = finding.resource, [], []
    is_server_thread = resource is Resource.ONE_THREAD and finding.limit.parameters["role"] == "server"
    for remedy in _BUSY_SERVER_THREAD if is_server_thread else _REMEDIES[resource]:
        change = fill(texts.REMEDIES[remedy.id], factor=RATE_FACTOR, emulator=emulator_share, savers=BYTE_SAVERS)
        if not remedy.has_bound:
            clauses.append(change)
            continue
        rule = remedy.gain or partial(gain, resource)
        estimate = sample.gain(rule, remedy.max_factor)
        if remedy.is_worth_mention(estimate, sample):
            clauses.append(_effect_text(change, remedy, estimate))
            gains.append((estimate.estimate.value, rule, change))
    if resource is Resource.LATENCY and len(gains) > 1:
        (_, best_rule, best), (_, second_rule, second) = sorted(gains, key=lambda item: -item[0])[:2]
        if sample.is_undecided(best_rule, second_rule):
            clauses.append(fill(texts.REMEDIES["undecided"], one=best, other=second))
    return "; ".join(clauses)


def _effect_text(change: str, remedy: Remedy, gain: GainEstimate) -> str:
    """A change with its gain: hardly any if the whole interval shows that, perhaps hardly any if only its lower end does."""
    is_negligible = gain.max_factor <= _MAX_NEGLIGIBLE_GAIN
    effect = "about" if remedy.is_estimate else "none" if is_negligible else "at-most"
    return fill(
        texts.EFFECTS[effect],
        change=change,
        gain=gain.estimate.value,
        interval=gain.interval_text(),
        perhaps=gain.min_factor <= _MAX_NEGLIGIBLE_GAIN,
        next=gain.next_limit,
    )


_NON_REMEDIES: dict[Resource, tuple[str, ...]] = {
    **dict.fromkeys(LINKS, ("connections-or-cpu",)),
    **dict.fromkeys(
        (Resource.SERVER_CPU, Resource.FORWARDER_CPU, Resource.INSTRUMENT_CPU, Resource.LOCK),
        ("connections", "bandwidth"),
    ),
    Resource.CLIENT_CPU: ("path-or-server",),
    Resource.ACKNOWLEDGEMENT: ("other-than-wait", "server-cpu"),
    **dict.fromkeys(
        (Resource.LATENCY, Resource.LOSS, Resource.RECEIVE_WINDOW, Resource.SEND_BUFFER, Resource.COMMIT),
        ("bandwidth", "server-cpu"),
    ),
}
"""Changes that are often tried but do not help against a limit."""


def describe_non_remedies(resource: Resource, sample: Sample, faster_link: GainEstimate | None) -> str:
    """Changes that are often tried but would not help; more bandwidth only if the entire interval of its gain shows that."""
    links, cpu_used = sample.evidence.directions, sample.evidence.server_cpus.used
    used = max((link.used for link in links if link.used is not None), default=0.0)
    applies = {
        "bandwidth": bool(used and faster_link and faster_link.max_factor < MIN_HELPFUL_GAIN),
        "server-cpu": 0 < cpu_used < HALF,
    }
    figures = {
        "used": round(used, DIGITS),
        "cpu_used": cpu_used,
        "bound": any(link.is_rate_lower_bound for link in links),
    }
    names = (name for name in _NON_REMEDIES.get(resource, ()) if applies.get(name, True))
    return "; ".join(fill(texts.NON_REMEDIES[name], **figures) for name in names)


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
    facts = finding.facts
    if share and len(trials) > 1:
        count = named_limits.count(finding.resource)
        facts += (make_finding("agreeing-trials", count=count, trials=len(trials)),)
    faster_link = (
        None if gain_of_any_rate(sample.evidence, sample.cycle) is None else sample.gain(_gain_of_much_faster_link)
    )
    changes = texts.REMEDIES["separate-cpus"] if finding.divided else describe_remedies(finding, sample)
    limit = Limit(
        resource=finding.resource,
        text=_limit_text(finding),
        evidence=tuple(describe(fact, texts.FACTS) for fact in facts),
        confidence=_overall_confidence(finding.confidence, share),
        would_change=changes,
        would_not=describe_non_remedies(finding.resource, sample, faster_link),
        gain=None
        if finding.divided or finding.resource in _GAIN_UNKNOWN
        else sample.gain(partial(gain, finding.resource)).estimate,
        faster_link=faster_link.estimate if faster_link else None,
        divided=finding.divided,
        id=finding.limit.id,
        parameters=finding.limit.parameters,
    )
    return all_evidence, cycle, limit


def _limit_text(finding: RuleFinding) -> str:
    note = texts.NO_DOMINANT_USER if finding.divided else texts.NOTES.get(finding.resource)
    return "; ".join(filter(None, (describe(finding.limit, texts.LIMITS), note)))


def _agreeing_indices(named_limits: Sequence[Resource]) -> list[int]:
    """The indices of the trials that name the same limit, if they are more than half; otherwise of all trials."""
    most_named = max(named_limits, key=named_limits.count)
    if named_limits.count(most_named) <= MAJORITY_SHARE * len(named_limits):
        return list(range(len(named_limits)))
    return [index for index, resource in enumerate(named_limits) if resource is most_named]


def _differing_trials_finding(overall_limit: Resource, named_limits: Sequence[Resource]) -> RuleFinding:
    """The finding if all trials together suggest a limit that none of them names."""
    counts = ", ".join(
        fill(texts.TRIALS_PER_LIMIT, limit=texts.resource_name(resource), count=named_limits.count(resource))
        for resource in dict.fromkeys(named_limits)
    )
    limit = make_finding("differing-trials", trials=len(named_limits), counts=counts)
    return RuleFinding(
        Resource.NOT_ESTABLISHED, limit, (make_finding("together", limit=texts.resource_name(overall_limit)),), "low"
    )


def _overall_confidence(rule_confidence: Confidence, agreeing_share: float) -> Confidence:
    if agreeing_share <= MAJORITY_SHARE:
        return "low"
    if agreeing_share < CLEAR_MAJORITY_SHARE:
        return _CONFIDENCE_LEVELS[max(0, _CONFIDENCE_LEVELS.index(rule_confidence) - 1)]
    return rule_confidence
