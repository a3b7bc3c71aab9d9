"""From an arm's good trials to its cycle and its limit: over all of them, and then whether each block says the same."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.findings import Cycle, Limit, Resource
from howfar.bottleneck.counterfactual import SHARED_CPUS, would_change, would_not
from howfar.bottleneck.cycle import cycle_of
from howfar.bottleneck.evidence import Evidence, Setting, gather
from howfar.bottleneck.rules import judge
from howfar.bottleneck.rules.finding import Confidence, Finding
from howfar.store.records import Trial

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
        facts += (f"{named.count(found.resource)} of {len(trials)} trials say so for themselves",)
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
    words = f"not established: the {len(named)} trials differ, and together look like none of them: {each}"
    fact = f"taken together they look like {together.value}, which none of them names"
    return Finding(Resource.NOT_ESTABLISHED, words, (fact,), "low")


def _finding(trials: Sequence[Trial], setting: Setting) -> Finding:
    evidence = gather(trials, setting)
    return judge(evidence, cycle_of(evidence))


def _confidence(found: Confidence, agreeing_share: float) -> Confidence:
    if agreeing_share <= MOST_SHARE:
        return "low"
    if agreeing_share < SURE_SHARE:
        return _LEVELS[max(0, _LEVELS.index(found) - 1)]
    return found
