"""From the good trials of an arm to its cycle and its limit, and what would change its throughput, by how much at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """The counterfactual: what moves throughput, and about how far."""
    would_not: str
    """What will not help, though people try it; empty: nothing to warn of."""
    divided: bool = False
    """Of CPUs: `resource` says who has the largest share, which is neither half of what is in use nor twice the next."""


class Intervention(Part):
    """What is changed, to see whether a limit is the limit."""

    arm: str
    resource: Resource
    changed: str
    """`rate 1gbit -> 1.5gbit`."""
    factors: dict[str, FactorValue]
    """The arm's, with the change."""
    predicted: float
    """Throughput over the unchanged arm's, if the limit is as named."""
    otherwise: float
    """The same if it is not. The further apart, the fewer blocks tell."""
    rules_out: str = ""
    """What is no limit if throughput moves as predicted: where not the resource itself was changed. Empty: it was."""


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
    """The whole interval lies nearer to `predicted` than to `otherwise`."""
    blocks: int
    otherwise: float = 1.0
    """What would have been seen, were it not the limit."""
    rules_out: str = ""
    """As of the intervention. Empty: the resource itself was changed."""


FASTER = 1.5
"""What a faster link is tried with: enough to be seen in three blocks, little enough to stay below the next ceiling mostly."""
_UNBOUNDED = 100.0
"""No figure beyond this is worth saying."""
_EMULATOR_SHARE = 0.10
"""Of a CPU, in the emulator's hands: from here on its absence would be seen."""
_HARDLY = 1.05
"""Times the throughput: what gives less at the very most is no help."""
SHARED_CPUS = "CPUs of their own for each of these; which of them that helps most is unknown"
"""What would change CPUs that nobody has most of."""
_LINKS = frozenset({Resource.LINK_TO_CLIENT, Resource.LINK_TO_SERVER})


HELD_PARTS: dict[Resource, tuple[str, ...]] = {
    Resource.RECEIVE_WINDOW: (WINDOWS,),
    Resource.SEND_BUFFER: (WINDOWS,),
    Resource.LOSS: (LOSS,),
    Resource.COMMIT: (COMMIT,),
    Resource.ACKNOWLEDGEMENT: (ACKNOWLEDGEMENT,),
    Resource.LOCK: (LOCKS,),
}
"""What of the cycle goes when such a limit goes."""


@dataclass(frozen=True)
class Bound:
    """The most that throughput can grow before something else is full."""

    factor: float
    then: str
    """What is full then."""


def next_ceiling(evidence: Evidence, without: frozenset[Resource]) -> Bound:
    """Of everything that has a capacity, but for what is thought away. What the load and its instrument use grows with throughput;
    what other programs have of a CPU they would have to share."""
    found = [
        Bound(1 / link.used, f"the link {DIRECTION_LABELS[link.name]}")
        for link in evidence.directions
        if link.used and _link(link.name) not in without
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
    """How much faster a connection goes round when so much of its cycle goes."""
    left = cycle.us - us
    return cycle.us / left if left > cycle.us / _UNBOUNDED else _UNBOUNDED


def gain(resource: Resource, evidence: Evidence, cycle: Cycle) -> Bound:
    """The most that comes of a limit's absence."""
    after = next_ceiling(evidence, _thought_away(resource))
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
    """The most that a link of any rate gives. None: no link, or one without a rate."""
    if all(link.used is None for link in evidence.directions):
        return None
    return _least(next_ceiling(evidence, _LINKS), without_parts(cycle, link_most_us(evidence, cycle)))


def _thought_away(resource: Resource) -> frozenset[Resource]:
    """A CPU that is full by the emulator's work may be both hosts'."""
    if resource is Resource.INSTRUMENT_CPU:
        return frozenset({Resource.SERVER_CPU, Resource.CLIENT_CPU})
    return frozenset({resource})


def _up_to(bound: Bound) -> str:
    if bound.factor <= 1.02:
        return f"hardly anything: {bound.then} is full too" if bound.then else "hardly anything"
    return f"at most {times(bound.factor)}" + (f", then {bound.then} is full" if bound.then else "")


def would_change(resource: Resource, evidence: Evidence, cycle: Cycle) -> str:
    """What moves throughput, with a number."""
    most = gain(resource, evidence, cycle)
    match resource:
        case Resource.LINK_TO_CLIENT | Resource.LINK_TO_SERVER:
            first = min(FASTER, most.factor)
            what = "compression, fewer columns or rows" if resource is Resource.LINK_TO_CLIENT else "compression"
            return f"a link of {FASTER:g} times the rate: about {times(first)}; a far faster one: {_up_to(most)}; fewer bytes ({what})"
        case Resource.SERVER_CPU:
            twice = most if most.factor < 2 else type(most)(2.0, "")
            return f"twice the CPU for the server: {_up_to(twice)}" + _without_emulator(evidence)
        case Resource.CLIENT_CPU:
            return f"more CPU for the load generator, or a second one: {_up_to(most)}"
        case Resource.INSTRUMENT_CPU:
            return f"a machine with spare CPUs for the emulator: {_up_to(_emulator_gone(evidence))}"
        case Resource.FORWARDER_CPU | Resource.ONE_THREAD:
            return "plain TCP instead of a forwarder, or more connections where one thread serves each: " + _up_to(most)
        case Resource.RECEIVE_WINDOW:
            return f"a larger receive window (net.ipv4.tcp_rmem of the receiver): {_up_to(most)}; more connections, each has its own"
        case Resource.SEND_BUFFER:
            return f"a larger send buffer (net.ipv4.tcp_wmem of the sender): {_up_to(most)}; more connections, each has its own"
        case Resource.LOSS:
            return f"a path without loss: {_up_to(most)}; more connections, each loses for itself"
        case Resource.COMMIT:
            return f"commits without waiting for the disk: {_up_to(most)}; more connections, which share a write; a faster disk"
        case Resource.ACKNOWLEDGEMENT:
            half = without_parts(cycle, part_us(cycle, ACKNOWLEDGEMENT) / 2)
            return (
                f"a replica at half the distance: about {times(half)}; more connections, which wait together; "
                f"asynchronous, which may lose commits in a crash: {_up_to(most)}"
            )
        case Resource.LOCK:
            return f"no waiting for locks (shorter transactions, other rows): {_up_to(most)}"
        case Resource.LATENCY:
            return _latency(evidence, cycle)
        case Resource.SERVER_WAIT:
            return "what the sessions wait for: ask the server's performance_schema or processlist during the load"
        case Resource.ERRORS:
            return "a run without these errors: what fails is another workload"
        case Resource.INVALID:
            return "a run without other programs on the machine"
        case _:
            return "not known: change one thing at a time (--confirm does so for a limit that is established)"


def _latency(evidence: Evidence, cycle: Cycle) -> str:
    after = next_ceiling(evidence, frozenset())
    rtt_us = part_us(cycle, ROUND_TRIPS)
    more = f"twice the connections: {_up_to(after if after.factor < 2 else type(after)(2.0, ''))}"
    wide = bandwidth(evidence, cycle)
    if wide is not None and wide.factor >= _HARDLY:
        more = f"a far faster link: {_up_to(wide)}; {more}"
    if rtt_us <= HALF * cycle.us:
        return more
    half = min(without_parts(cycle, rtt_us / 2), after.factor)
    return f"half the RTT or half the turns: about {times(half)}; {more}"


def _emulator_gone(evidence: Evidence) -> Bound:
    """Its share of the fullest set of CPUs goes to who waits for it."""
    share = max((cpus.owners.get("link", 0.0) / cpus.used for cpus in evidence.cpu_sets if cpus.used), default=0.0)
    links = [1 / link.used for link in evidence.directions if link.used]
    return Bound(min([_UNBOUNDED, 1 / (1 - min(share, 0.99)), *links]), "")


def _without_emulator(evidence: Evidence) -> str:
    cpus = evidence.server_cpus
    share = cpus.owners.get("link", 0.0)
    if share < _EMULATOR_SHARE or not cpus.used:
        return ""
    return f"; the emulator had {percent(share)} of it: where it has CPUs of its own {_up_to(_emulator_gone(evidence))}"


def would_not(resource: Resource, evidence: Evidence, cycle: Cycle) -> str:
    """What will not help, though people try it."""
    used = max((link.used for link in evidence.directions if link.used is not None), default=None)
    wide = bandwidth(evidence, cycle)
    idle = f"more bandwidth: the link is {percent(used)} used" if used and wide and wide.factor < _HARDLY else ""
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
    return f"more CPU for the server: {percent(cpus.used)} of it is in use" if 0 < cpus.used < HALF else ""


def _joined(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


SURE_SHARE, MOST_SHARE = 0.75, 0.5
"""Of the trials must name the same limit for it to be as sure as its rule; with half of them or fewer it is hardly one."""
_LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")


def find_limit(trials: Sequence[Trial], setting: Setting) -> tuple[Evidence, Cycle, Limit]:
    """Of one arm; `trials` are its good ones, at least one. The cycle is that of all of them. The limit is what most of them name, on
    the evidence of those: a block in which the machine was disturbed does not speak for the others."""
    everything = gather(trials, setting)
    cycle = cycle_of(everything)
    named = [_finding([trial], setting).resource for trial in trials]
    agreeing = _of_most(trials, named)
    evidence = gather(agreeing, setting)
    found = judge(evidence, cycle_of(evidence))
    share = named.count(found.resource) / len(trials)
    if not share and found.resource is not Resource.NOT_ESTABLISHED:
        found = _named_by_none(found.resource, named)
    facts = found.evidence
    if share and len(trials) > 1:
        facts += (f"{named.count(found.resource)} of {len(trials)} trials name it when judged alone",)
    changes = SHARED_CPUS if found.divided else would_change(found.resource, evidence, cycle)
    limit = Limit(
        resource=found.resource,
        says=found.says,
        evidence=facts,
        confidence=_confidence(found.confidence, share),
        would_change=changes,
        would_not=would_not(found.resource, evidence, cycle),
        divided=found.divided,
    )
    return everything, cycle, limit


def _of_most(trials: Sequence[Trial], named: Sequence[Resource]) -> list[Trial]:
    """Those that name the same limit, if they are more than half; else all."""
    first = max(named, key=named.count)
    if named.count(first) <= MOST_SHARE * len(trials):
        return list(trials)
    return [trial for trial, resource in zip(trials, named, strict=True) if resource is first]


def _named_by_none(together: Resource, named: Sequence[Resource]) -> Finding:
    """What only the mean of unlike trials looks like is the limit of none of them."""
    each = ", ".join(f"{resource.value} in {named.count(resource)}" for resource in dict.fromkeys(named))
    says = f"not established: the {len(named)} trials differ, and together look like none of them: {each}"
    fact = f"taken together they look like {together.value}, which none of them names"
    return Finding(Resource.NOT_ESTABLISHED, says, (fact,), "low")


def _finding(trials: Sequence[Trial], setting: Setting) -> Finding:
    evidence = gather(trials, setting)
    return judge(evidence, cycle_of(evidence))


def _confidence(found: Confidence, agreeing_share: float) -> Confidence:
    if agreeing_share <= MOST_SHARE:
        return "low"
    if agreeing_share < SURE_SHARE:
        return _LEVELS[max(0, _LEVELS.index(found) - 1)]
    return found
