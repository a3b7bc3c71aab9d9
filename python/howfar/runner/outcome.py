"""What a job returned: the engine's events as a record, what they say of the stage, and what was not as requested."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howfar.engine.messages import FastCgi, Finished, KeyValue, LoadJob, PageJob, ServiceName
from howfar.engine.process import LoadOutcome
from howfar.engine.receipt_check import mismatches, page_mismatches
from howfar.engine.rules import is_redis
from howfar.plan.factors import ORDINARY
from howfar.plan.page import PageShape
from howfar.plan.types import Plan
from howfar.store.records import Arm, CpuRecord, HistogramRecord, IntervalRecord, Measured, ServiceRecord
from howfar.testbed import LoadFacts

_AS_RECORDED = 0.998
"""A histogram keeps three digits."""


@dataclass(frozen=True)
class PageSpec:
    """Of one page."""

    round_trips: Mapping[ServiceName, int]
    keys: Mapping[ServiceName, int]
    """To be looked for and found."""
    app_cpu_ns: int
    per_page: bool
    """It opens its connections itself."""
    commits: int

    def round_trips_of(self, pages: int) -> dict[ServiceName, int]:
        return {service: count * pages for service, count in self.round_trips.items()}

    def keys_of(self, pages: int) -> dict[ServiceName, int]:
        return {service: count * pages for service, count in self.keys.items()}


def page_spec(plan: Plan, arm: Arm, sql: ServiceName = "mysql") -> PageSpec | None:
    """None: the arm has no pages. `sql`: whom its statements are sent to."""
    if plan.workload.kind != "page":
        return None
    shape: PageShape = plan.pages[str(arm.factors["page"])]
    cpu_ns = int(arm.factors.get("app_cpu_ns", ORDINARY["app_cpu_ns"]))
    return PageSpec(
        round_trips=shape.by_service(sql),
        keys=shape.keys_by_store,
        app_cpu_ns=max(cpu_ns - shape.round_trips, 0),  # each part is of whole nanoseconds
        per_page=arm.factors.get("connect", ORDINARY["connect"]) == "per-transaction",
        commits=shape.rounds if shape.index_updates else 0,
    )


def unlike_pages(spec: PageSpec, job: PageJob, finished: Finished) -> tuple[str, ...]:
    """Each a sentence; any makes a trial void."""
    if isinstance(job.application, FastCgi):
        return (*_unreported(finished), *_reported_otherwise(spec, finished))
    return (*_done_otherwise(spec, finished), *_computed_less(spec, finished))


def _unreported(finished: Finished) -> tuple[str, ...]:
    """A page that tells nothing counts as good with whoever asks for it."""
    reported = next((one.count for one in finished.histograms if one.kind == "told.wall_ns"), 0)
    if reported == finished.transactions:
        return ()
    return (f"{finished.transactions} pages ended and {reported} told what they did",)


def _reported_otherwise(spec: PageSpec, finished: Finished) -> list[str]:
    reported, pages = finished.told, finished.transactions
    found: list[str] = []
    for service, wanted in spec.round_trips_of(pages).items():
        round_trips = reported.get(f"{service}_turns", 0) - reported.get(f"{service}_checks", 0)
        found += _other(f"turns to {service}", pages, round_trips, wanted)
        if spec.per_page:
            found += _other(f"connects to {service}", pages, reported.get(f"{service}_connects", 0), pages)
    found += _missed(reported.get("misses", 0))
    found += _other("keys found", pages, reported.get("hits", 0), sum(spec.keys_of(pages).values()))
    if (burnt := reported.get("app_cpu_ns", 0)) < spec.app_cpu_ns * pages:
        found.append(f"{pages} pages computed for {burnt} ns, the plan has {spec.app_cpu_ns * pages}")
    if burnt > reported.get("cpu_ns", burnt):
        found.append(
            f"{pages} pages told that they computed for {burnt} ns, and of {reported['cpu_ns']} ns of CPU in all"
        )
    return found


def _done_otherwise(spec: PageSpec, finished: Finished) -> list[str]:
    pages, used = finished.transactions, {use.service: use for use in finished.services}
    found: list[str] = []
    for service, wanted in spec.round_trips_of(pages).items():
        use = used.get(service)
        found += _other(f"turns to {service}", pages, use.turns if use else 0, wanted)
        if spec.per_page:
            found += _other(f"connects to {service}", pages, use.connects if use else 0, pages)
    found += _missed(sum(use.misses for use in finished.services))
    hits = sum(use.hits for use in finished.services)
    return [*found, *_other("keys found", pages, hits, sum(spec.keys_of(pages).values()))]


def _computed_less(spec: PageSpec, finished: Finished) -> tuple[str, ...]:
    computing = next((one for one in finished.histograms if one.kind == "cpu"), None)
    if not spec.app_cpu_ns or not finished.transactions:
        return ()
    mean_ns = 0.0 if computing is None else computing.mean_ns
    if mean_ns >= spec.app_cpu_ns * _AS_RECORDED:
        return ()
    return (f"a page computed for {mean_ns:.0f} ns in the mean, the plan has {spec.app_cpu_ns}",)


def _other(what: str, pages: int, seen: int, wanted: int) -> tuple[str, ...]:
    return () if seen == wanted else (f"{pages} pages had {seen} {what}, the plan has {wanted}",)


def _missed(misses: int) -> tuple[str, ...]:
    return (f"the pages missed {misses} keys, all of which were set",) if misses else ()


def measured(job: LoadJob | PageJob, outcome: LoadOutcome) -> Measured:
    finished = outcome.finished
    queries, round_trips = finished.queries, finished.turns
    if reported := _reported_round_trips(finished):  # the engine itself saw pages only, an application each request
        queries = round_trips = sum(reported.values())
    return Measured(
        elapsed_ns=finished.elapsed_ns,
        transactions=finished.transactions,
        queries=queries,
        turns=round_trips,
        rows=finished.rows,
        bytes_to_server=finished.bytes.to_server,
        bytes_to_client=finished.bytes.to_client,
        errors=finished.errors,
        warmup_transactions=outcome.measuring.warmup_transactions,
        connect_ns=outcome.ready.connect_ns,
        cpu=tuple(CpuRecord(**use.model_dump()) for use in finished.cpu),
        intervals=tuple(
            IntervalRecord(**slice_.model_dump(include=set(IntervalRecord.model_fields)))
            for slice_ in outcome.intervals
        ),
        histograms=tuple(HistogramRecord(**histogram.model_dump()) for histogram in finished.histograms),
        services=_services(job, finished),
        told=finished.told,
    )


def _services(job: LoadJob | PageJob, finished: Finished) -> tuple[ServiceRecord, ...]:
    """Of a page the engine's own; a load of keys is of one service, and its sums are that one's."""
    if isinstance(job, PageJob):
        return tuple(
            ServiceRecord(
                **use.model_dump(exclude={"bytes"}),
                bytes_to_server=use.bytes.to_server,
                bytes_to_client=use.bytes.to_client,
            )
            for use in finished.services
        )
    if not isinstance(job.workload, KeyValue) or finished.lookups is None:
        return ()
    return (
        ServiceRecord(
            service="redis" if is_redis(job.workload) else "memcached",
            connects=None,
            requests=finished.queries,
            turns=finished.turns,
            bytes_to_server=finished.bytes.to_server,
            bytes_to_client=finished.bytes.to_client,
            hits=finished.lookups.hits,
            misses=finished.lookups.misses,
        ),
    )


def load_facts(outcome: LoadOutcome, job: LoadJob, commits_each: int) -> LoadFacts:
    """`commits_each`: how often a transaction of the workload has something to commit."""
    finished = outcome.finished
    round_trip_ns = job.connections * finished.elapsed_ns / max(finished.turns, 1)
    if not commits_each or not finished.transactions:
        return LoadFacts(round_trip_ns)
    by_kind = {histogram.kind: histogram for histogram in finished.histograms}
    commit = by_kind.get("commit") or by_kind.get("transaction")  # without BEGIN and COMMIT the statement commits
    return LoadFacts(round_trip_ns, commits_each * finished.transactions, None if commit is None else commit.p50_ns)


def page_facts(outcome: LoadOutcome, spec: PageSpec) -> LoadFacts:
    """The same of pages; what servers must have counted is of the warm-up's too, which came after their counters were read."""
    finished = outcome.finished
    pages = outcome.measuring.warmup_transactions + finished.transactions
    return LoadFacts(
        _page_round_trip_ns(finished),
        spec.commits * finished.transactions or None,
        round_trips=spec.round_trips_of(pages),
        keys=spec.keys_of(pages),
        sessions={name: receipt.model_dump(mode="json") for name, receipt in outcome.ready.services.items()},
    )


def _page_round_trip_ns(finished: Finished) -> float:
    """The mean of a round trip, without the computing between round trips: by the engine's clock, or as the application reported."""
    timed = [histogram for histogram in finished.histograms if histogram.kind.startswith("turn.")]
    count = sum(histogram.count for histogram in timed)
    if count:
        return sum(histogram.mean_ns * histogram.count for histogram in timed) / count
    reported = _reported_round_trips(finished)
    return sum(finished.told.get(f"{service}_ns", 0) for service in reported) / max(sum(reported.values()), 1)


def _reported_round_trips(finished: Finished) -> dict[str, int]:
    """By service, as an application's pages reported."""
    end = "_turns"
    return {name.removesuffix(end): count for name, count in finished.told.items() if name.endswith(end)}


def arrivals_receipt(job: LoadJob | PageJob, outcome: LoadOutcome) -> dict[str, Any] | None:
    """What was due in the window at the job's rate, and what came of it. None: closed loop."""
    account = outcome.finished.open_loop
    if job.arrivals is None or account is None:
        return None
    return {"per_s": job.arrivals.rate_per_s, "shape": job.arrivals.shape, **account.model_dump()}


_SIGMAS = 6
"""By which the number of Poisson arrivals in a window may differ from its mean; one window in 500 million differs by more."""


def _unlike_rate(job: LoadJob | PageJob, outcome: LoadOutcome) -> tuple[str, ...]:
    account = outcome.finished.open_loop
    if job.arrivals is None or account is None:
        return ()
    expected = job.arrivals.rate_per_s * outcome.finished.elapsed_ns / 1e9
    if abs(account.due - expected) <= _SIGMAS * math.sqrt(expected) + 1:
        return ()
    return (f"{account.due} transactions were due in the window where the rate makes {expected:.0f}",)


def not_as_requested(job: LoadJob | PageJob, outcome: LoadOutcome, spec: PageSpec | None = None) -> tuple[str, ...]:
    """By the engine's own receipts and counts; each a sentence. `spec`: of its pages."""
    if isinstance(job, PageJob):
        unlike = () if spec is None else unlike_pages(spec, job, outcome.finished)
        return (*page_mismatches(job, outcome.ready), *unlike)
    lookups = outcome.finished.lookups
    missed: tuple[str, ...] = ()
    if lookups is not None and lookups.misses:
        missed = (f"{lookups.misses} keys were missed, all of which were set",)
    return (*mismatches(job, outcome.ready.receipt, must_resume=True), *missed, *_unlike_rate(job, outcome))
