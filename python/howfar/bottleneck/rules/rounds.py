"""Rules for when nothing is full: distance, a connection's own round, and the refusal."""

from __future__ import annotations

from howfar.analysis.findings import Cycle, Resource
from howfar.bottleneck.connecting import connects_each_time
from howfar.bottleneck.cycle import REST, ROUND_TRIPS, largest, part_us
from howfar.bottleneck.evidence import Evidence
from howfar.bottleneck.rules.finding import HALF, REST_SHARE, Confidence, Finding
from howfar.bottleneck.words import WAY_WORDS, milliseconds, percent

HIDDEN_SHARE = 0.95
"""Connections x the unexplained share is the number of connections that are there at a time. Below one, no queue stands there:
nothing hidden is full."""


def latency(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """Nothing is full, and most of the time goes on round trips: distance."""
    share = part_us(cycle, ROUND_TRIPS) / cycle.us
    if share <= HALF or _could_hide(evidence, cycle.rest_share):
        return None
    words = f"round trips take {percent(share)} of the cycle: {evidence.turns:.3g} x {milliseconds(evidence.setting.rest_rtt_s or 0)}"
    sure: Confidence = "high" if cycle.rest_share <= REST_SHARE else "medium"
    return _round(words, evidence, cycle, sure)


def own_round(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """Nothing is full, whatever the time goes on: each connection waits for its own transaction."""
    first = largest(cycle, 1)[0]
    if first.name == REST or _could_hide(evidence, cycle.rest_share):
        return None
    if first.basis == "bounded" and _could_hide(evidence, _unproven_share(cycle)):
        return None  # it would be said that most of the round is what may be hardly there
    words = (
        f"nothing is full: each connection waits for its own round of {milliseconds(cycle.us / 1e6)}, "
        f"the largest part of it {first.name} ({percent(first.us / cycle.us)})"
    )
    return _round(words, evidence, cycle, "medium")


def _round(words: str, evidence: Evidence, cycle: Cycle, sure: Confidence) -> Finding:
    """Not sure where upper bounds took what a full resource could have needed."""
    facts, unproven = _nothing_full(evidence), _unproven_share(cycle)
    if not _could_hide(evidence, unproven):
        return Finding(Resource.LATENCY, words, facts, sure)
    doubt = (
        f"{percent(unproven)} of the cycle is unexplained or explained by upper bounds: something full could hide there"
    )
    return Finding(Resource.LATENCY, words, (*facts, doubt), "low")


def _unproven_share(cycle: Cycle) -> float:
    """The rest is what upper bounds left. Where they are not reached, as much more is unexplained."""
    return cycle.rest_share + sum(part.us for part in cycle.parts if part.basis == "bounded") / cycle.us


def _could_hide(evidence: Evidence, share: float) -> bool:
    """Whether so much of the cycle is enough for a resource that is full and that nothing here counts."""
    return share > REST_SHARE and evidence.setting.connections * share >= HIDDEN_SHARE


def _nothing_full(evidence: Evidence) -> tuple[str, ...]:
    facts = [f"CPU of the {cpus.name}: {percent(cpus.ours)} in use by this load" for cpus in evidence.cpu_sets]
    facts += [f"link {WAY_WORDS[way.name]} {percent(way.used)} in use" for way in evidence.ways if way.used is not None]
    if connects_each_time(evidence.setting.factors):
        facts.append("windows and send buffers are not known: connections come and go")
    return tuple(facts)


def not_established(evidence: Evidence, cycle: Cycle) -> Finding:
    """The refusal: no counter shows a full resource, and too much is unexplained to say that none is."""
    parts = ", ".join(f"{part.name} {percent(part.us / cycle.us)}" for part in largest(cycle, 3))
    words = f"not established: nothing is full by its own counter; the largest parts of the cycle are {parts}"
    return Finding(Resource.NOT_ESTABLISHED, words, _nothing_full(evidence), "low")
