"""What came of a job: the engine's events as a record, what they tell the laboratory, and what was not as asked."""

from __future__ import annotations

from howfar.engine.messages import (
    Finished,
    KeyValue,
    LoadJob,
    PageJob,
)
from howfar.engine.process import LoadOutcome
from howfar.engine.receipt_check import mismatches, page_mismatches
from howfar.engine.rules import is_redis
from howfar.lab.stage import LoadFacts
from howfar.runner.pages_asked import PageAsked, unlike_pages
from howfar.store.records import CpuRecord, HistogramRecord, IntervalRecord, Measured, ServiceRecord


def measured(job: LoadJob | PageJob, outcome: LoadOutcome) -> Measured:
    finished = outcome.finished
    queries, turns = finished.queries, finished.turns
    if told := _turns_told(finished):  # the engine itself saw pages only; an application has a turn for each request
        queries = turns = sum(told.values())
    return Measured(
        elapsed_ns=finished.elapsed_ns,
        transactions=finished.transactions,
        queries=queries,
        turns=turns,
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
    turn_ns = job.connections * finished.elapsed_ns / max(finished.turns, 1)
    if not commits_each or not finished.transactions:
        return LoadFacts(turn_ns)
    by_kind = {histogram.kind: histogram for histogram in finished.histograms}
    commit = by_kind.get("commit") or by_kind.get("transaction")  # without BEGIN and COMMIT the statement commits
    return LoadFacts(turn_ns, commits_each * finished.transactions, None if commit is None else commit.p50_ns)


def page_facts(outcome: LoadOutcome, asked: PageAsked) -> LoadFacts:
    """The same of pages; what servers must have counted is of the warm-up's too, which came after their counters were read."""
    finished = outcome.finished
    pages = outcome.measuring.warmup_transactions + finished.transactions
    return LoadFacts(
        _page_turn_ns(finished),
        asked.commits * finished.transactions or None,
        turns=asked.turns_of(pages),
        keys=asked.keys_of(pages),
        sessions={name: receipt.model_dump(mode="json") for name, receipt in outcome.ready.services.items()},
    )


def _page_turn_ns(finished: Finished) -> float:
    """The mean of a turn, without the computing between turns: by the engine's clock, or as the application told."""
    turns = [histogram for histogram in finished.histograms if histogram.kind.startswith("turn.")]
    count = sum(histogram.count for histogram in turns)
    if count:
        return sum(histogram.mean_ns * histogram.count for histogram in turns) / count
    told = _turns_told(finished)
    return sum(finished.told.get(f"{service}_ns", 0) for service in told) / max(sum(told.values()), 1)


def _turns_told(finished: Finished) -> dict[str, int]:
    """By service, as an application's pages told."""
    end = "_turns"
    return {name.removesuffix(end): count for name, count in finished.told.items() if name.endswith(end)}


def not_as_asked(job: LoadJob | PageJob, outcome: LoadOutcome, asked: PageAsked | None = None) -> tuple[str, ...]:
    """By the engine's own receipts and counts; each a sentence. `asked`: of its pages."""
    if isinstance(job, PageJob):
        unlike = () if asked is None else unlike_pages(asked, job, outcome.finished)
        return (*page_mismatches(job, outcome.ready), *unlike)
    lookups = outcome.finished.lookups
    missed: tuple[str, ...] = ()
    if lookups is not None and lookups.misses:
        missed = (f"{lookups.misses} keys were missed, all of which were set",)
    return (*mismatches(job, outcome.ready.receipt, must_resume=True), *missed)
