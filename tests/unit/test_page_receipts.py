"""What pages did in a window, against what the plan requests: every difference is found, for PHP and the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.fake_lab import finish, interval, receipt

from howfar.contract.messages import (
    Bytes,
    CpuStep,
    CustomStatement,
    FastCgi,
    Finished,
    Measuring,
    PageJob,
    PageScript,
    QueryStep,
    Ready,
    Service,
    ServiceName,
    ServiceUse,
    UnixTarget,
)
from howfar.contract.violation import join_sentences, violation
from howfar.engine.run_load import LoadOutcome
from howfar.experiments.page.load import PageLoad, PageSpec, find_page_mismatches, page_facts, page_spec
from howfar.lab.counts import low_count_violations
from howfar.plan.load import load_plan
from howfar.store.records import Arm, ArmRole
from howfar.store.server_metrics import ServerMetrics

SECOND = 1_000_000_000
PAGES, WARM, CPU_NS = 50, 7, 2_000_000
SPEC = PageSpec(round_trips={"mysql": 3, "redis": 2}, keys={"redis": 11}, app_cpu_ns=CPU_NS, per_page=True, commits=1)
TARGET = UnixTarget(path="/s")
STEPS = (QueryStep(statement="one"), CpuStep(cpu_ns=1))
SCRIPT = PageScript(
    mysql=Service(user="", database="", target=TARGET),
    statements=(CustomStatement(name="one", sql="SELECT 1"),),
    steps=STEPS,
)
PHP = FastCgi(target=TARGET, parameters={})
REPORTED = {
    "mysql_turns": 4 * PAGES, "mysql_checks": PAGES, "mysql_connects": PAGES, "redis_turns": 2 * PAGES,
    "redis_checks": 0, "redis_connects": PAGES, "hits": 11 * PAGES, "misses": 0, "app_cpu_ns": CPU_NS * PAGES + 9,
}  # fmt: skip


def job(application: PageScript | FastCgi) -> PageJob:
    return PageJob(application=application, workers=2, seed=1, warmup_ns=0, measure_ns=SECOND)


def finished_with(kind: str, update: dict[str, Any], **histogram: Any) -> Finished:
    finished = finish(SECOND, PAGES)
    record = finished.histograms[0].model_copy(update={"kind": kind, **histogram})
    return finished.model_copy(update=update | {"histograms": (*finished.histograms, record)})


def by_php(**changes: int) -> Finished:
    """`pages`: number of pages that reported anything."""
    pages = changes.pop("pages", PAGES)
    return finished_with("told.wall_ns", {"app_counters": REPORTED | changes}, count=pages)


def by_engine(cpu_ns: float = CPU_NS, **changes: Any) -> Finished:
    """`changes` apply to the use of Redis."""
    use = {"connects": PAGES, "bytes": Bytes(to_server=0, to_client=0), "hits": 0, "misses": 0}
    mysql = ServiceUse(service="mysql", requests=3 * PAGES, round_trips=3 * PAGES, **use)
    redis = ServiceUse(service="redis", requests=2 * PAGES, round_trips=2 * PAGES, **(use | {"hits": 11 * PAGES}))
    return finished_with("cpu", {"services": (mysql, redis.model_copy(update=changes))}, mean_ns=float(cpu_ns))


def test_pages_as_requested_are_good() -> None:
    assert find_page_mismatches(SPEC, job(PHP), by_php()) == ()
    assert find_page_mismatches(SPEC, job(SCRIPT), by_engine()) == ()


@pytest.mark.parametrize(
    ("application", "finished", "says"),
    [
        (PHP, by_php(pages=PAGES - 1), "49 of 50 pages reported"),
        (PHP, by_php(mysql_turns=4 * PAGES - 1), "50 pages made 149 round trips to mysql instead of 150"),
        (PHP, by_php(redis_turns=0), "0 round trips to redis instead of 100"),
        (PHP, by_php(redis_connects=PAGES + 1), "51 connections to redis instead of 50"),
        (PHP, by_php(misses=1, hits=11 * PAGES - 1), "1 key was not found"),
        (PHP, by_php(hits=11 * PAGES - 1), "50 pages found 549 keys instead of 550"),
        (PHP, by_php(cpu_ns=CPU_NS * PAGES), "more computing (100000009 ns) than CPU time (100000000 ns)"),
        (PHP, by_php(app_cpu_ns=CPU_NS * PAGES - 1), "computed for 99999999 ns instead of 100000000 ns"),
        (SCRIPT, by_engine(round_trips=99), "99 round trips to redis instead of 100"),
        (SCRIPT, by_engine(connects=49), "49 connections to redis"),
        (SCRIPT, by_engine(misses=2, hits=11 * PAGES - 2), "2 keys were not found"),
        (SCRIPT, by_engine(hits=3), "found 3 keys"),
        (SCRIPT, by_engine(cpu_ns=CPU_NS * 0.99), "computed for 1980000 ns on average instead of 2000000 ns"),
        (SCRIPT, by_engine().model_copy(update={"services": ()}), "0 round trips to mysql"),
    ],
)
def test_whatever_differs_is_said(application: PageScript | FastCgi, finished: Finished, says: str) -> None:
    assert says in join_sentences(find_page_mismatches(SPEC, job(application), finished))


def outcome(finished: Finished) -> LoadOutcome:
    ready = Ready(receipt=receipt("/s"), connections=2, prepared_statements=0, connect_ns=1)
    measuring = Measuring(unix_time_ns=0, warmup_transactions=WARM)
    return LoadOutcome(ready, measuring, (interval(SECOND, PAGES),), finished)


def test_differences_make_a_trial_void() -> None:
    assert PageLoad(job(PHP), SPEC).find_mismatches(outcome(by_php())) == ()
    missed = PageLoad(job(PHP), SPEC).find_mismatches(outcome(by_php(misses=1)))
    assert missed[0] == violation("keys-not-found", keys=1)


def test_servers_must_have_counted_the_pages_of_the_warm_up_too() -> None:
    facts = page_facts(outcome(by_php()), SPEC)
    assert (facts.round_trips, facts.keys, facts.commits) == ({"mysql": 171, "redis": 114}, {"redis": 627}, PAGES)
    looked = ServerMetrics(requests=114, lookup_hits=627, lookup_misses=0)
    cases: tuple[tuple[ServiceName, ServerMetrics, str], ...] = (
        ("redis", looked, ""),
        ("mysql", ServerMetrics(requests=171), ""),
        ("memcached", ServerMetrics(lookup_hits=0), ""),  # the page does not use it
        ("mysql", ServerMetrics(requests=170), "171"),
        ("redis", replace(looked, lookup_hits=626), "627"),
        ("redis", replace(looked, lookup_misses=1), "1 of the keys"),
    )
    for service, metrics, number in cases:
        found = low_count_violations(service, metrics, facts)
        assert number in found[0].sentence if number else found == ()


def test_what_is_requested_of_a_page_is_in_the_plan() -> None:
    factors = {"page": "light", "app_cpu_ns": 3_000_000, "connect": "per-transaction"}
    assert page_spec(load_plan("page").plan, Arm(name="x", role=ArmRole.CONTENDER, factors=factors)) == PageSpec(
        round_trips={"mysql": 11, "redis": 6, "memcached": 3},
        keys={"redis": 15, "memcached": 3},
        app_cpu_ns=3_000_000 - 20,
        per_page=True,
        commits=1,
    )
