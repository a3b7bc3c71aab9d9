"""The cycle and the limit of an arm from its good trials, and which changes would increase its throughput, by how much at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

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
    link_most_us,
    part_us,
)
from howfar.bottleneck.evidence import Evidence, Setting, gather
from howfar.bottleneck.rules import HALF, Confidence, Finding, judge
from howfar.bottleneck.traffic import DIRECTION_LABELS, percent, times
from howfar.model.resource import Resource
from howfar.stats.estimate import Estimate, Part
from howfar.stats.resample import of_blocks
from howfar.store.records import FactorValue, Trial


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


class Intervention(Part):
    """A change that tests whether a limit is the limit."""

    arm: str
    resource: Resource
    changed: str
    """`rate 1gbit -> 1.5gbit`."""
    factors: dict[str, FactorValue]
    """The arm's, with the change."""
    predicted: float
    """Throughput over the unchanged arm's, if the limit is as named."""
    otherwise: float
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
    """Whether throughput moved as predicted, and not as `otherwise`: see `analysis/confirmation.py`, `is_as_predicted`."""
    blocks: int
    otherwise: float = 1.0
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
"""Factor of throughput: a change that gives less even by its upper limit is no help."""
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
class Bound:
    """Factor by which throughput can grow at most before something else is full."""

    factor: float
    then: str
    """What is full then."""


Figure = Callable[[Evidence, Cycle], Bound]


@dataclass(frozen=True)
class Sample:
    """Evidence and cycle of an arm's trials together, and of each alone: its blocks, from which intervals are computed."""

    evidence: Evidence
    cycle: Cycle
    each: tuple[tuple[Evidence, Cycle], ...] = ()

    def gain(self, figure: Figure, most: float = _UNBOUNDED) -> Gain:
        """A figure, capped at `most`, with the interval of its values in each block alone, because users of CPUs are medians over
        trials."""
        whole, each = figure(self.evidence, self.cycle), [figure(*one).factor for one in self.each]
        bound = whole if whole.factor <= most else Bound(most, "")
        found = of_blocks(bound.factor, [min(factor, most) for factor in each])
        # Removing a limit cannot make it slower.
        low, high = (None, None) if found is None else (max(1.0, found[0]), min(most, found[1]))
        points = tuple(min(factor, most) for factor in each) if found is None else ()
        return Gain(Estimate(value=bound.factor, low=low, high=high, n=len(each), points=points), bound.then)

    def undecided(self, one: Figure, other: Figure) -> bool:
        """Whether the interval of the ratio of two gains, paired by block, includes 1."""
        whole = one(self.evidence, self.cycle).factor / other(self.evidence, self.cycle).factor
        found = of_blocks(whole, [one(*block).factor / other(*block).factor for block in self.each])
        return found is not None and found[0] <= 1 <= found[1]


@dataclass(frozen=True)
class Gain:
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


def next_ceiling(evidence: Evidence, without: frozenset[Resource]) -> Bound:
    """The lowest ceiling of all resources with a capacity, except those in `without`. The use by the load and its instrument grows
    with throughput; other programs would have to give up their part of a CPU."""
    found = [
        Bound(1 / link.used, f"the link {DIRECTION_LABELS[link.name]}")
        for link in evidence.directions
        if link.used and not link.rate_is_least and _link(link.name) not in without
    ]
    if Resource.SERVER_CPU not in without:
        found += [Bound(1 / cpus.ours, f"the CPU of the {cpus.name}") for cpus in evidence.cpu_sets[:1] if cpus.ours]
    if Resource.CLIENT_CPU not in without:
        found += [Bound(1 / cpus.ours, f"the CPU of the {cpus.name}") for cpus in evidence.cpu_sets[1:] if cpus.ours]
        share = evidence.thread_share("client") / evidence.client_workers
        found += [Bound(1 / share, "the load generator")] if share else []
    if not found:
        return Bound(_UNBOUNDED, "nothing that was measured")
    least = min(found, key=lambda bound: bound.factor)
    return Bound(min(_UNBOUNDED, max(1.0, least.factor)), least.then)


def _link(name: str) -> Resource:
    return Resource.LINK_TO_CLIENT if name == "to_client" else Resource.LINK_TO_SERVER


def without_parts(cycle: Cycle, us: float) -> float:
    """Factor by which a connection is faster if its cycle is shorter by `us`."""
    left = cycle.us - us
    return cycle.us / left if left > cycle.us / _UNBOUNDED else _UNBOUNDED


def gain(resource: Resource, evidence: Evidence, cycle: Cycle) -> Bound:
    """Upper bound of the gain if a limit is removed."""
    if resource is Resource.INSTRUMENT_CPU:
        return _emulator_gone(evidence)
    after = next_ceiling(evidence, frozenset({resource}))
    parts: tuple[str, ...] = HELD_PARTS.get(resource, ())
    if resource in _LINKS:
        return _least(after, without_parts(cycle, link_most_us(evidence, cycle)))
    if resource is Resource.LATENCY:
        parts = (ROUND_TRIPS,)
    elif resource is Resource.FORWARDER_CPU:
        parts = (FORWARDER_CPU, WAITING)
    return _least(after, without_parts(cycle, part_us(cycle, *parts))) if parts else after


def _least(after: Bound, faster: float) -> Bound:
    return after if after.factor <= faster else Bound(faster, "")


def bandwidth(evidence: Evidence, cycle: Cycle) -> Bound | None:
    """Upper bound of the gain from a link of any rate. None: no link, or one without a rate."""
    if all(link.used is None for link in evidence.directions):
        return None
    return _least(next_ceiling(evidence, _LINKS), without_parts(cycle, link_most_us(evidence, cycle)))


_HARDLY_ANYTHING = 1.02


def _up_to(found: Gain) -> str:
    """A gain as text: hardly anything only if the entire interval shows it, and perhaps if its lower end does."""
    if found.most <= _HARDLY_ANYTHING:
        return f"hardly anything, because {found.then} is also full" if found.then else "hardly anything"
    perhaps = ", perhaps hardly anything" if found.least <= _HARDLY_ANYTHING else ""
    return f"at most {found}" + (f", then {found.then} is full" if found.then else "") + perhaps


def would_change(resource: Resource, sample: Sample) -> str:
    """The changes that move throughput, as text with numbers and intervals."""
    most = sample.gain(partial(gain, resource))
    match resource:
        case Resource.LINK_TO_CLIENT | Resource.LINK_TO_SERVER:
            first = sample.gain(partial(gain, resource), FASTER)
            what = "compression, fewer columns or rows" if resource is Resource.LINK_TO_CLIENT else "compression"
            return f"a link of {FASTER:g} times the rate: about {first}; a much faster one: {_up_to(most)}; fewer bytes ({what})"
        case Resource.SERVER_CPU:
            twice = sample.gain(partial(gain, resource), 2.0)
            return f"twice the CPU for the server: {_up_to(twice)}" + _without_emulator(sample)
        case Resource.CLIENT_CPU:
            return f"more CPU for the load generator, or a second load generator: {_up_to(most)}"
        case Resource.INSTRUMENT_CPU:
            return f"a machine with spare CPUs for the emulator: {_up_to(most)}"
        case Resource.FORWARDER_CPU | Resource.ONE_THREAD:
            return "plain TCP instead of a forwarder, or more connections where one thread serves each: " + _up_to(most)
        case Resource.RECEIVE_WINDOW:
            return f"a larger receive window (net.ipv4.tcp_rmem of the receiver): {_up_to(most)}; more connections, each with its own"
        case Resource.SEND_BUFFER:
            return f"a larger send buffer (net.ipv4.tcp_wmem of the sender): {_up_to(most)}; more connections, each with its own"
        case Resource.LOSS:
            return f"a path without loss: {_up_to(most)}; more connections, since a loss delays only one of them"
        case Resource.COMMIT:
            return f"commits that do not wait for the disk: {_up_to(most)}; more connections, which share a write; a faster disk"
        case Resource.ACKNOWLEDGEMENT:
            half = sample.gain(lambda _, cycle: Bound(without_parts(cycle, part_us(cycle, ACKNOWLEDGEMENT) / 2), ""))
            return (
                f"a replica at half the distance: about {half}; more connections, which wait together; "
                f"asynchronous replication, which may lose commits in a crash: {_up_to(most)}"
            )
        case Resource.LOCK:
            return f"no waiting for locks (shorter transactions, other rows): {_up_to(most)}"
        case Resource.LATENCY:
            return _latency(sample)
        case Resource.SERVER_WAIT:
            return "depends on what the sessions wait for: see the server's performance_schema or processlist during the load"
        case Resource.ERRORS:
            return "a run without these errors: failing transactions are another workload"
        case Resource.INVALID:
            return "a run without other programs on the machine"
        case _:
            return "unknown: change one thing at a time (--confirm does so for a limit that is established)"


def _at_most(factor: float, most: Bound) -> Bound:
    return most if most.factor < factor else Bound(factor, "")


def _twice_the_connections(evidence: Evidence, _: Cycle) -> Bound:
    return _at_most(2.0, next_ceiling(evidence, frozenset()))


def _half_the_round_trips(evidence: Evidence, cycle: Cycle) -> Bound:
    faster = without_parts(cycle, part_us(cycle, ROUND_TRIPS) / 2)
    return Bound(min(faster, next_ceiling(evidence, frozenset()).factor), "")


def _far_faster_link(evidence: Evidence, cycle: Cycle) -> Bound:
    return bandwidth(evidence, cycle) or Bound(1.0, "")


def _latency(sample: Sample) -> str:
    """Changes that help, each with its bound, and whether the blocks resolve which of the two best helps more."""
    half, wide = sample.gain(_half_the_round_trips, 2.0), sample.gain(_far_faster_link)
    twice = sample.gain(_twice_the_connections, 2.0)
    remedies: list[tuple[Figure, Gain, str, str]] = [
        (_half_the_round_trips, half, "half the RTT or half the round trips", f"about {half}"),
        (_far_faster_link, wide, "a much faster link", _up_to(wide)),
        (_twice_the_connections, twice, "twice the connections", _up_to(twice)),
    ]
    left = [part_us(sample.cycle, ROUND_TRIPS) > HALF * sample.cycle.us, wide.most >= HARDLY, True]
    remedies = [remedy for remedy, helps in zip(remedies, left, strict=True) if helps]
    says = [f"{what}: {gives}" for _, _, what, gives in remedies]
    if len(remedies) > 1:
        one, other = sorted(remedies, key=lambda remedy: -remedy[1].estimate.value)[:2]
        if sample.undecided(one[0], other[0]):
            says.append(f"whether {one[2]} or {other[2]} helps more is not resolved")
    return "; ".join(says)


def _emulator_gone(evidence: Evidence) -> Bound:
    """Bound without the emulator: its share of the fullest set of CPUs goes to the processes that wait for it."""
    share = max((cpus.owners.get("link", 0.0) / cpus.used for cpus in evidence.cpu_sets if cpus.used), default=0.0)
    links = [1 / link.used for link in evidence.directions if link.used]
    return Bound(min([_UNBOUNDED, 1 / (1 - min(share, 0.99)), *links]), "")


def _without_emulator(sample: Sample) -> str:
    cpus = sample.evidence.server_cpus
    share = cpus.owners.get("link", 0.0)
    if share < _EMULATOR_SHARE or not cpus.used:
        return ""
    gone = sample.gain(lambda evidence, _: _emulator_gone(evidence))
    return f"; the emulator used {percent(share)} of it: with CPUs of its own, {_up_to(gone)}"


def would_not(resource: Resource, sample: Sample, wide: Gain | None) -> str:
    """Changes that will not help although they are often tried; bandwidth only if its entire interval shows that."""
    evidence = sample.evidence
    used = max((link.used for link in evidence.directions if link.used is not None), default=None)
    most = "at most " if any(link.rate_is_least for link in evidence.directions) else ""
    idle = f"more bandwidth: {most}{percent(used)} of the link is used" if used and wide and wide.most < HARDLY else ""
    match resource:
        case Resource.LINK_TO_CLIENT | Resource.LINK_TO_SERVER:
            return "more connections, or more CPU on either side"
        case Resource.SERVER_CPU | Resource.FORWARDER_CPU | Resource.INSTRUMENT_CPU:
            return _joined("more connections", idle)
        case Resource.CLIENT_CPU:
            return "any change of path or server: these figures would not show it"
        case Resource.ACKNOWLEDGEMENT:
            return _joined("a faster disk, or more bandwidth to the replica", _cpu_idle(evidence))
        case Resource.LOCK:
            return _joined("more connections", idle)
        case Resource.LATENCY | Resource.LOSS | Resource.RECEIVE_WINDOW | Resource.SEND_BUFFER | Resource.COMMIT:
            return _joined(idle, _cpu_idle(evidence))
        case _:
            return ""


def _cpu_idle(evidence: Evidence) -> str:
    cpus = evidence.server_cpus
    return f"more CPU for the server: only {percent(cpus.used)} of it is in use" if 0 < cpus.used < HALF else ""


def _joined(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


SURE_SHARE, MOST_SHARE = 0.75, 0.5
"""Share of trials naming the same limit from which it has the confidence of its rule, and up to which it has low confidence."""
_LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")


def find_limit(trials: Sequence[Trial], setting: Setting) -> tuple[Evidence, Cycle, Limit]:
    """The limit of one arm, with the evidence and cycle of all `trials`: its good ones, at least one. The limit is what most of them
    name, by the evidence of those only: a block in which the machine was disturbed must not affect the others."""
    everything = gather(trials, setting)
    cycle = cycle_of(everything)
    alone = [gather([trial], setting) for trial in trials]
    each = [(evidence, cycle_of(evidence)) for evidence in alone]
    named = [judge(*one).resource for one in each]
    agreeing = _of_most(named)
    evidence = gather([trials[index] for index in agreeing], setting)
    sample = Sample(evidence, cycle_of(evidence), tuple(each[index] for index in agreeing))
    found = judge(sample.evidence, sample.cycle)
    share = named.count(found.resource) / len(trials)
    if not share and found.resource is not Resource.NOT_ESTABLISHED:
        found = _named_by_none(found.resource, named)
    facts = found.evidence
    if share and len(trials) > 1:
        facts += (f"{named.count(found.resource)} of {len(trials)} trials name it when each is judged alone",)
    wide = None if bandwidth(sample.evidence, sample.cycle) is None else sample.gain(_far_faster_link)
    changes = SHARED_CPUS if found.divided else would_change(found.resource, sample)
    limit = Limit(
        resource=found.resource,
        says=found.says,
        evidence=facts,
        confidence=_confidence(found.confidence, share),
        would_change=changes,
        would_not=would_not(found.resource, sample, wide),
        gain=None
        if found.divided or found.resource in _GAIN_UNKNOWN
        else sample.gain(partial(gain, found.resource)).estimate,
        faster_link=wide.estimate if wide else None,
        divided=found.divided,
    )
    return everything, cycle, limit


def _of_most(named: Sequence[Resource]) -> list[int]:
    """The indices of the trials that name the same limit, if they are more than half; otherwise all."""
    first = max(named, key=named.count)
    if named.count(first) <= MOST_SHARE * len(named):
        return list(range(len(named)))
    return [index for index, resource in enumerate(named) if resource is first]


def _named_by_none(together: Resource, named: Sequence[Resource]) -> Finding:
    """The finding if the mean of unlike trials suggests a limit that none of them names."""
    each = ", ".join(f"{resource.value} in {named.count(resource)}" for resource in dict.fromkeys(named))
    says = f"not established: the {len(named)} trials differ, and together resemble none of them: {each}"
    fact = f"taken together, they look like {together.value}, which none of them names"
    return Finding(Resource.NOT_ESTABLISHED, says, (fact,), "low")


def _confidence(found: Confidence, agreeing_share: float) -> Confidence:
    if agreeing_share <= MOST_SHARE:
        return "low"
    if agreeing_share < SURE_SHARE:
        return _LEVELS[max(0, _LEVELS.index(found) - 1)]
    return found
