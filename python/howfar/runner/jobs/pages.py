"""A job of pages: a plan's shape as the script of its turns, run by the engine itself or given to an application.

A *turn* is one request and its answer. Both run the very same script.
"""

from __future__ import annotations

from collections.abc import Mapping

from howfar.engine.messages import (
    CpuStep,
    CustomStatement,
    FastCgi,
    GetStep,
    IntegerValues,
    PageJob,
    PageScript,
    PageStep,
    QueryStep,
    SameValue,
    Service,
    ServiceName,
)
from howfar.lab.fill import fill_keys
from howfar.lab.stage import Stage
from howfar.plan.factors import ORDINARY
from howfar.plan.page import MULTI, PageShape
from howfar.plan.types import Plan
from howfar.runner.jobs.keys import key_value
from howfar.store.records import Arm

_TABLE = "sbtest1"


def page_job(plan: Plan, arm: Arm, stage: Stage, seed: int) -> PageJob:
    """Raises LabError, EngineError where the keys cannot be set or the application does not take the script."""
    factors = arm.factors
    places = stage.services
    script = page_script(
        plan,
        str(factors["page"]),
        int(factors.get("app_cpu_ns", ORDINARY["app_cpu_ns"])),
        {name: place.service for name, place in places.items()},
        per_page=factors.get("connect", ORDINARY["connect"]) == "per-transaction",
    )
    if script.redis_keys is not None:
        fill_keys(places["redis"], script.redis_keys, stage.client)
    if script.memcached_keys is not None:
        fill_keys(places["memcached"], script.memcached_keys, stage.client)
    application: PageScript | FastCgi = script
    if factors.get("application", ORDINARY["application"]) == "php":
        assert stage.application is not None, "a stage for such a cell has one"
        application = stage.application.place(script)
    return PageJob(
        application=application,
        workers=int(factors["threads"]),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=stage.observe,
    )


def page_script(
    plan: Plan, page: str, app_cpu_ns: int, services: Mapping[ServiceName, Service], *, per_page: bool = False
) -> PageScript:
    """The shape `page` of the plan, with the application's computing in equal parts at the end of its rounds. A service that it does
    not ask is not in it."""
    shape = plan.pages[page]
    asked = shape.by_service
    return PageScript(
        **{name: service for name, service in services.items() if name in asked},
        statements=_statements(shape, plan) if "mysql" in asked else (),
        # The protocols that PHP's extensions speak.
        redis_keys=key_value(plan.keys, "resp2") if "redis" in asked else None,
        memcached_keys=key_value(plan.keys, "memcached_text") if "memcached" in asked else None,
        steps=_round(shape, app_cpu_ns // shape.rounds),
        rounds=shape.rounds,
        connect="per_page" if per_page else "persistent",
    )


def _statements(shape: PageShape, plan: Plan) -> tuple[CustomStatement, ...]:
    """Those that the shape needs. Rows are drawn evenly; a range has all its rows."""
    size, rows = plan.workload.range_size, plan.data.table_size
    point = IntegerValues(high=rows)
    found = []
    if shape.point_selects:
        found.append(_statement("point", f"SELECT c FROM {_TABLE} WHERE id = ?", point))
    if shape.simple_ranges:
        sql = f"SELECT c FROM {_TABLE} WHERE id >= ? ORDER BY id LIMIT {size}"
        found.append(_statement("range", sql, IntegerValues(high=rows - size + 1)))
    if shape.sums:
        sql = f"SELECT SUM(k) FROM {_TABLE} WHERE id BETWEEN ? AND ? + {shape.sum_rows - 1}"
        first = IntegerValues(high=rows - shape.sum_rows + 1)
        found.append(_statement("total", sql, first, SameValue(statement="total", index=0)))
    if shape.index_updates:
        update = _statement("update", f"UPDATE {_TABLE} SET k = k + 1 WHERE id = ?", point)
        found += [_statement("begin", "BEGIN"), update, _statement("commit", "COMMIT")]
    return tuple(found)


def _statement(name: str, sql: str, *parameters: IntegerValues | SameValue) -> CustomStatement:
    return CustomStatement(name=name, sql=sql, parameters=parameters)


def _round(shape: PageShape, cpu_ns: int) -> tuple[PageStep, ...]:
    """Turns in order. The application computes after each of them, or after a whole transaction: in one piece it would keep a
    processor for a whole slice of the kernel's, in which every other page waits with its next turn."""
    reads: tuple[tuple[int, PageStep], ...] = (
        (shape.point_selects, QueryStep(statement="point")),
        (shape.simple_ranges, QueryStep(statement="range")),
        (shape.sums, QueryStep(statement="total")),
        (shape.redis_gets, GetStep(store="redis")),
        (shape.redis_multi_gets, GetStep(store="redis", keys_each=MULTI)),
        (shape.memcached_gets, GetStep(store="memcached")),
    )
    parts: list[tuple[PageStep, ...]] = [(step,) for count, step in reads for _ in range(count)]
    if shape.index_updates:
        update = QueryStep(statement="update", repeat=shape.index_updates)
        parts.append((QueryStep(statement="begin"), update, QueryStep(statement="commit")))
    computing = (CpuStep(cpu_ns=cpu_ns // len(parts)),) if cpu_ns else ()
    return tuple(step for part in parts for step in (*part, *computing))
