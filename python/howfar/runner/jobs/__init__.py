"""The engine's job of one arm on a staged path, by kind of workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from howfar.engine.inserts import SINGLE_ROW_INSERTS
from howfar.engine.messages import (
    Arrivals,
    Compression,
    CpuStep,
    CustomStatement,
    FastCgi,
    FixedSize,
    GetStep,
    IntegerValues,
    KeyValue,
    LoadJob,
    PageJob,
    PageScript,
    PageStep,
    QueryStep,
    SameValue,
    Service,
    ServiceName,
    Session,
    Sysbench,
    TablesDone,
    TablesJob,
    Workload,
)
from howfar.engine.process import EngineProcess, Launcher
from howfar.engine.rules import sql_of
from howfar.errors import LabError
from howfar.paths import find_path
from howfar.plan.factors import ORDINARY, offered_per_s
from howfar.plan.page import MULTI, Keys, PageShape
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.plan.types import READS_ONLY, Plan
from howfar.store.records import Arm
from howfar.testbed import ServiceEndpoint, Stage, Trust


def load_job(plan: Plan, arm: Arm, stage: Stage, seed: int, workload: Workload) -> LoadJob:
    return LoadJob(
        target=stage.target,
        user=stage.user,
        password=stage.password,
        database=stage.database,
        protocol=stage.protocol,
        session=session_of(session_spec(arm.factors), stage.trust),
        workload=workload,
        connections=int(arm.factors["threads"]),
        arrivals=None if (per_s := offered_per_s(arm.factors)) is None else Arrivals(rate_per_s=per_s),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=stage.observe,
    )


def session_of(spec: SessionSpec, trust: Trust | None) -> Session:
    assert spec.tls is None or trust is not None, "a stage for an encrypted cell has a server with a certificate"
    return Session(
        tls=trust.tls(spec) if trust else None,
        compression=Compression(algorithm=spec.algorithm, level=spec.level) if spec.algorithm else None,
        connect="per_transaction" if spec.per_transaction else "persistent",
        fetch_server_key=True,  # an account made up for the laboratory, in namespaces that nobody else is in
    )


Protocol = Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
_NEWEST: dict[str, Protocol] = {"redis": "resp3", "memcached": "memcached_meta"}
_FIRST: dict[str, Protocol] = {"redis": "resp2", "memcached": "memcached_text"}
"""By what a service is called."""


def store_protocol(service: str, path: str) -> Protocol:
    """In which a store of keys is asked by a path."""
    return (_FIRST if find_path(path).first_protocol else _NEWEST)[service]


def key_value(keys: Keys, protocol: Protocol) -> KeyValue:
    return KeyValue(
        protocol=protocol,
        keys=keys.count,
        value=FixedSize(bytes=keys.value_bytes),
        get=keys.get,
        set=keys.set,
        multi_get=keys.multi_get,
        keys_each=MULTI,
        pipeline=keys.pipeline,
    )


def keys_job(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob:
    """Raises LabError, EngineError where the keys cannot be set."""
    (name,) = stage.services
    workload = key_value(plan.keys, store_protocol(name, str(arm.factors["path"])))
    fill_keys(stage.services[name], workload, stage.client)
    return load_job(plan, arm, stage, seed, workload)


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
        application = stage.application.install(script)
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
    sql = sql_of(services)
    by_service = shape.by_service(sql or "mysql")
    return PageScript(
        **{name: service for name, service in services.items() if name in by_service},
        statements=_statements(shape, plan) if sql in by_service else (),
        # The protocols that PHP's extensions speak.
        redis_keys=key_value(plan.keys, "resp2") if "redis" in by_service else None,
        memcached_keys=key_value(plan.keys, "memcached_text") if "memcached" in by_service else None,
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


def statements_job(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob:
    return load_job(plan, arm, stage, seed, _workload(plan))


def _workload(plan: Plan) -> Workload:
    if plan.workload.kind == "single_row_inserts":
        return SINGLE_ROW_INSERTS
    tables = {"tables": plan.data.tables, "table_size": plan.data.table_size}
    return Sysbench.model_validate(plan.workload.model_dump() | tables)


__all__ = ["commits_each", "job_of"]


def job_of(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob | PageJob:
    """Stores of keys are filled and applications proven first; the stage's account begins after that. Raises LabError,
    EngineError."""
    if plan.workload.kind not in ("page", "key_value"):
        return statements_job(plan, arm, stage, seed)
    job = page_job(plan, arm, stage, seed) if plan.workload.kind == "page" else keys_job(plan, arm, stage, seed)
    stage.loading()
    return job


def commits_each(plan: Plan) -> int:
    """How often a transaction of SQL has something to commit."""
    return 0 if plan.workload.kind in READS_ONLY else 1


_CONNECTIONS = 1
_STALL_NS = 30_000_000_000


def fill_keys(place: ServiceEndpoint, keys: KeyValue, launcher: Launcher) -> int:
    """Set all `keys` in a store that is empty, by the stage's path from where `launcher` puts the engine; how many they are.

    A server that stores fewer than it was sent, as one short of memory does, raises LabError; so do those that fail, or EngineError.
    """
    assert place.count_keys is not None, f"{place.server_kind} has no keys to be set"
    service = place.service
    job = TablesJob(
        action="prepare",
        target=service.target,
        user=service.user,
        password=service.password,
        database=service.database,
        workload=keys,
        connections=_CONNECTIONS,
        seed=1,  # a value depends on its key's number alone
        session=Session(tls=service.tls),
        stall_timeout_ns=_STALL_NS,
    )
    with EngineProcess(job, launcher) as engine:
        done = list(engine.events())[-1]
    assert isinstance(done, TablesDone), "a tables job ends with it"
    held = place.count_keys()
    if held != keys.keys:
        raise LabError(
            f"{place.server_kind} holds {held} keys where {keys.keys} were set ({done.rows} by the engine's account)",
            "Does it have the memory for them?",
        )
    return held
