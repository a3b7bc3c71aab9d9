"""What pages did in a window against what the plan asks: each way to do or tell something else is found, PHP's and the engine's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.fake_lab import finish, interval, receipt

from howfar.engine.messages import (
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
    ServiceUse,
    UnixTarget,
)
from howfar.engine.process import LoadOutcome
from howfar.lab.serving import counted_less
from howfar.plan.load import load_plan
from howfar.runner.outcome import PageSpec, not_as_asked, page_asked, page_facts, unlike_pages
from howfar.store.records import Arm, ArmRole
from howfar.store.server_metrics import ServerMetrics

SECOND = 1_000_000_000
PAGES, WARM, CPU_NS = 50, 7, 2_000_000
ASKED = PageSpec(
    turns={"mysql": 3, "redis": 2}, keys={"redis": 11}, app_cpu_ns=CPU_NS, per_page=True, commits=1
)  # fmt: skip
HERE = Service(target=UnixTarget(path="/s"))
SCRIPT = PageScript(
    mysql=HERE,
    statements=(CustomStatement(name="one", sql="SELECT 1"),),
    steps=(QueryStep(statement="one"), CpuStep(cpu_ns=1)),
)
PHP = FastCgi(target=UnixTarget(path="/s"), parameters={})
TOLD = {
    "mysql_turns": 4 * PAGES, "mysql_checks": PAGES, "mysql_connects": PAGES, "redis_turns": 2 * PAGES,
    "redis_checks": 0, "redis_connects": PAGES, "hits": 11 * PAGES, "misses": 0, "app_cpu_ns": CPU_NS * PAGES + 9,
}  # fmt: skip


def job(application: PageScript | FastCgi) -> PageJob:
    return PageJob(application=application, workers=2, seed=1, warmup_ns=0, measure_ns=SECOND)


def told(**changes: int) -> Finished:
    """By an application; `pages` of them told anything."""
    finished = finish(SECOND, PAGES)
    header = finished.histograms[0].model_copy(update={"kind": "told.wall_ns", "count": changes.pop("pages", PAGES)})
    return finished.model_copy(update={"told": TOLD | changes, "histograms": (*finished.histograms, header)})


def done(cpu_ns: float = CPU_NS, **changes: Any) -> Finished:
    """By the engine; what changes is of Redis."""
    finished = finish(SECOND, PAGES)
    cpu = finished.histograms[0].model_copy(update={"kind": "cpu", "mean_ns": float(cpu_ns)})
    nothing = Bytes(to_server=0, to_client=0)
    use = {"connects": PAGES, "bytes": nothing, "hits": 0, "misses": 0}
    mysql = ServiceUse(service="mysql", requests=3 * PAGES, turns=3 * PAGES, **use)
    redis = ServiceUse(service="redis", requests=2 * PAGES, turns=2 * PAGES, **(use | {"hits": 11 * PAGES}))
    services = (mysql, redis.model_copy(update=changes))
    return finished.model_copy(update={"services": services, "histograms": (*finished.histograms, cpu)})


def test_pages_as_asked_are_good() -> None:
    assert unlike_pages(ASKED, job(PHP), told()) == ()
    assert unlike_pages(ASKED, job(SCRIPT), done()) == ()


@pytest.mark.parametrize(
    ("finished", "says"),
    [
        (told(pages=PAGES - 1), "50 pages ended and 49 told what they did"),
        (told(mysql_turns=4 * PAGES - 1), "50 pages had 149 turns to mysql, the plan has 150"),
        (told(redis_turns=0), "50 pages had 0 turns to redis, the plan has 100"),
        (told(redis_connects=PAGES + 1), "50 pages had 51 connects to redis, the plan has 50"),
        (told(misses=1, hits=11 * PAGES - 1), "the pages missed 1 keys"),
        (told(hits=11 * PAGES - 1), "50 pages had 549 keys found, the plan has 550"),
        (
            told(cpu_ns=CPU_NS * PAGES),
            "50 pages told that they computed for 100000009 ns, and of 100000000 ns of CPU in all",
        ),
        (told(app_cpu_ns=CPU_NS * PAGES - 1), "50 pages computed for 99999999 ns, the plan has 100000000"),
    ],
)
def test_what_an_application_told_otherwise_is_said(finished: Finished, says: str) -> None:
    assert says in "; ".join(unlike_pages(ASKED, job(PHP), finished))


@pytest.mark.parametrize(
    ("finished", "says"),
    [
        (done(turns=99), "50 pages had 99 turns to redis, the plan has 100"),
        (done(connects=49), "50 pages had 49 connects to redis"),
        (done(misses=2, hits=11 * PAGES - 2), "the pages missed 2 keys"),
        (done(hits=3), "50 pages had 3 keys found"),
        (done(cpu_ns=CPU_NS * 0.99), "a page computed for 1980000 ns in the mean, the plan has 2000000"),
        (done().model_copy(update={"services": ()}), "50 pages had 0 turns to mysql"),
    ],
)
def test_what_the_engine_did_otherwise_is_said(finished: Finished, says: str) -> None:
    assert says in "; ".join(unlike_pages(ASKED, job(SCRIPT), finished))


def outcome(finished: Finished) -> LoadOutcome:
    ready = Ready(receipt=receipt("/s"), connections=2, prepared_statements=0, connect_ns=1)
    measuring = Measuring(unix_time_ns=0, warmup_transactions=WARM)
    return LoadOutcome(ready, measuring, (interval(SECOND, PAGES),), finished)


def test_they_make_a_trial_void() -> None:
    assert not_as_asked(job(PHP), outcome(told()), ASKED) == ()
    assert not_as_asked(job(PHP), outcome(told(misses=1)), ASKED)[0].startswith("the pages missed 1")


def test_servers_must_have_counted_the_pages_of_the_warm_up_too() -> None:
    facts = page_facts(outcome(told()), ASKED)
    assert (facts.turns, facts.keys, facts.commits) == ({"mysql": 171, "redis": 114}, {"redis": 627}, PAGES)
    looked = ServerMetrics(requests=114, lookup_hits=627, lookup_misses=0)
    assert counted_less("redis", looked, facts) == ()
    assert counted_less("mysql", ServerMetrics(requests=171), facts) == ()
    assert counted_less("memcached", ServerMetrics(lookup_hits=0), facts) == (), "the page does not ask it"
    (found,) = counted_less("mysql", ServerMetrics(requests=170), facts)
    assert found == "it counted 170 requests, the pages reported at least 171"
    (found,) = counted_less("redis", replace(looked, lookup_hits=626), facts)
    assert found == "it looked for 626 keys, the pages reported at least 627"
    (found,) = counted_less("redis", replace(looked, lookup_misses=1), facts)
    assert "did not have 1 of the keys" in found


def test_what_a_page_is_asked_is_in_the_plan() -> None:
    plan = load_plan("page").plan
    factors = {"page": "light", "app_cpu_ns": 3_000_000, "connect": "per-transaction"}
    asked = page_asked(plan, Arm(name="x", role=ArmRole.CONTENDER, factors=factors))
    assert asked == PageSpec(
        turns={"mysql": 11, "redis": 6, "memcached": 3},
        keys={"redis": 15, "memcached": 3},
        app_cpu_ns=3_000_000 - 20,
        per_page=True,
        commits=1,
    )
    sql = load_plan("paths").plan
    assert page_asked(sql, Arm(name="x", role=ArmRole.BASELINE, factors={"path": "tcp"})) is None
