"""What each page of an arm was to do, by the plan, and where the pages of a window did something else, as they were counted. Pure.

Not here: what the servers themselves counted, which the laboratory holds against this (`lab/pages_counted.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from howfar.engine.messages import FastCgi, Finished, PageJob, ServiceName
from howfar.plan.factors import ORDINARY
from howfar.plan.page import PageShape
from howfar.plan.types import Plan
from howfar.store.records import Arm

_AS_RECORDED = 0.998
"""A histogram keeps three digits."""


@dataclass(frozen=True)
class PageAsked:
    """Of one page."""

    turns: Mapping[ServiceName, int]
    keys: Mapping[ServiceName, int]
    """To be looked for and found."""
    app_cpu_ns: int
    per_page: bool
    """It opens its connections itself."""
    commits: int

    def turns_of(self, pages: int) -> dict[ServiceName, int]:
        return {service: count * pages for service, count in self.turns.items()}

    def keys_of(self, pages: int) -> dict[ServiceName, int]:
        return {service: count * pages for service, count in self.keys.items()}


def page_asked(plan: Plan, arm: Arm) -> PageAsked | None:
    """None: the arm has no pages."""
    if plan.workload.kind != "page":
        return None
    shape: PageShape = plan.pages[str(arm.factors["page"])]
    cpu_ns = int(arm.factors.get("app_cpu_ns", ORDINARY["app_cpu_ns"]))
    return PageAsked(
        turns=shape.by_service,
        keys=shape.keys_by_store,
        app_cpu_ns=max(cpu_ns - shape.turns, 0),  # each part is of whole nanoseconds
        per_page=arm.factors.get("connect", ORDINARY["connect"]) == "per-transaction",
        commits=shape.rounds if shape.index_updates else 0,
    )


def unlike_pages(asked: PageAsked, job: PageJob, finished: Finished) -> tuple[str, ...]:
    """Each a sentence; any makes a trial void."""
    if isinstance(job.application, FastCgi):
        return (*_untold(finished), *_told_otherwise(asked, finished))
    return (*_done_otherwise(asked, finished), *_computed_less(asked, finished))


def _untold(finished: Finished) -> tuple[str, ...]:
    """A page that tells nothing counts as good with whoever asks for it."""
    told = next((one.count for one in finished.histograms if one.kind == "told.wall_ns"), 0)
    if told == finished.transactions:
        return ()
    return (f"{finished.transactions} pages ended and {told} told what they did",)


def _told_otherwise(asked: PageAsked, finished: Finished) -> list[str]:
    told, pages = finished.told, finished.transactions
    found: list[str] = []
    for service, wanted in asked.turns_of(pages).items():
        turns = told.get(f"{service}_turns", 0) - told.get(f"{service}_checks", 0)
        found += _other(f"turns to {service}", pages, turns, wanted)
        if asked.per_page:
            found += _other(f"connects to {service}", pages, told.get(f"{service}_connects", 0), pages)
    found += _missed(told.get("misses", 0))
    found += _other("keys found", pages, told.get("hits", 0), sum(asked.keys_of(pages).values()))
    if (burnt := told.get("app_cpu_ns", 0)) < asked.app_cpu_ns * pages:
        found.append(f"{pages} pages computed for {burnt} ns, the plan has {asked.app_cpu_ns * pages}")
    if burnt > told.get("cpu_ns", burnt):
        found.append(f"{pages} pages told that they computed for {burnt} ns, and of {told['cpu_ns']} ns of CPU in all")
    return found


def _done_otherwise(asked: PageAsked, finished: Finished) -> list[str]:
    pages, used = finished.transactions, {use.service: use for use in finished.services}
    found: list[str] = []
    for service, wanted in asked.turns_of(pages).items():
        use = used.get(service)
        found += _other(f"turns to {service}", pages, use.turns if use else 0, wanted)
        if asked.per_page:
            found += _other(f"connects to {service}", pages, use.connects if use else 0, pages)
    found += _missed(sum(use.misses for use in finished.services))
    hits = sum(use.hits for use in finished.services)
    return [*found, *_other("keys found", pages, hits, sum(asked.keys_of(pages).values()))]


def _computed_less(asked: PageAsked, finished: Finished) -> tuple[str, ...]:
    computing = next((one for one in finished.histograms if one.kind == "cpu"), None)
    if not asked.app_cpu_ns or not finished.transactions:
        return ()
    mean_ns = 0.0 if computing is None else computing.mean_ns
    if mean_ns >= asked.app_cpu_ns * _AS_RECORDED:
        return ()
    return (f"a page computed for {mean_ns:.0f} ns in the mean, the plan has {asked.app_cpu_ns}",)


def _other(what: str, pages: int, seen: int, wanted: int) -> tuple[str, ...]:
    return () if seen == wanted else (f"{pages} pages had {seen} {what}, the plan has {wanted}",)


def _missed(misses: int) -> tuple[str, ...]:
    return (f"the pages missed {misses} keys, all of which were set",) if misses else ()
