"""Rules that the generated types of the contract cannot express: which fields go together.

The engine would refuse the same jobs. Here they are refused before it starts, with a message for the author of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from howfar.contract.message import rule_of
from howfar.contract.messages import (
    ConstantValue,
    CpuStep,
    Custom,
    CustomStatement,
    Direction,
    FixedSize,
    GetStep,
    KeyValue,
    ListedSizes,
    LoadJob,
    LognormalSize,
    PageScript,
    Pgbench,
    QueryStep,
    SameValue,
    SequenceValues,
    Service,
    ServiceName,
    Session,
    Sizes,
    Sysbench,
    TablesJob,
    TextValues,
    UniformSize,
    Workload,
)

KEY_DIGITS: Final = 12
MAX_BYTES_AT_ONCE: Final = 64 * 2**20
"""Maximum size in bytes of the values of one request or reply, with their keys: a connection of the engine buffers that much."""
MAX_SQL_BYTES: Final = 2**24 - 256
"""Maximum bytes of a statement with its values, or of a transaction sent as one text: MySQL needs several packets for more."""
MAX_ROUND_TRIPS: Final = 100_000
"""Maximum round trips of a page: a worker of the engine keeps the latency of each until the page has ended."""


@rule_of(Direction)
def _direction(direction: Direction) -> None:
    if direction.rate_trace and direction.rate_bps is not None:
        raise ValueError("a direction has a rate or a trace of rates, not both")
    if direction.rate_trace and not any(step.rate_bps for step in direction.rate_trace):
        raise ValueError("a trace of rates in which nothing ever passes")


# ---------------------------------------------------------------- keys and values


@rule_of(UniformSize)
def _uniform_size(size: UniformSize) -> None:
    if size.low > size.high:
        raise ValueError("low is above high")


@rule_of(LognormalSize)
def _lognormal_size(size: LognormalSize) -> None:
    if size.median > size.most:
        raise ValueError("the median is above the most")


@rule_of(KeyValue)
def _key_value(load: KeyValue) -> None:
    if not (load.get or load.set or load.multi_get or load.delete):
        raise ValueError("some command needs a weight above 0")
    if not fits_at_once(load, max(load.pipeline, load.keys_each if load.multi_get else 1)):
        raise ValueError("pipeline and keys_each times the longest value with its key must be 64 MiB at most")


def is_redis(load: KeyValue) -> bool:
    return load.protocol in ("resp2", "resp3")


def fits_at_once(load: KeyValue, keys: int) -> bool:
    """Whether a reply with `keys` of the longest values, and their keys, is within the limit."""
    return keys * (_max_value_bytes(load.value) + len(load.key_prefix) + KEY_DIGITS) <= MAX_BYTES_AT_ONCE


def _max_value_bytes(value: Sizes) -> int:
    match value:
        case FixedSize():
            return value.bytes
        case UniformSize():
            return value.high
        case LognormalSize():
            return value.most
        case ListedSizes():
            return max(size.bytes for size in value.sizes)


# ---------------------------------------------------------------- statements


@rule_of(Custom)
def _custom(custom: Custom) -> None:
    known = check_statements(custom.statements)
    for transaction in custom.transactions:
        for step in transaction.steps:
            if step.statement not in known:
                raise ValueError(f"transaction {transaction.name} names statement {step.statement}, which is not there")
    sizes = _max_bytes(custom)
    for name, size in sizes.items():
        if size > MAX_SQL_BYTES:
            raise ValueError(f"statement {name} has more than 16 MiB with its values")
    for transaction in custom.transactions if custom.db_ps_mode == "multi" else ():
        if sum(step.repeat * sizes[step.statement] for step in transaction.steps) > MAX_SQL_BYTES:
            raise ValueError(f"transaction {transaction.name} is one text (db_ps_mode=multi) of more than 16 MiB")


def _max_bytes(custom: Custom) -> dict[str, int]:
    """Maximum size in bytes of each statement with its values, quoted or not."""

    def value_bytes(values: object) -> int:
        if isinstance(values, TextValues):
            return values.length
        return 2 * len(str(values.value).encode()) if isinstance(values, ConstantValue) else 0

    widest = max((value_bytes(values) for statement in custom.statements for values in statement.parameters), default=0)
    return {
        statement.name: len(statement.sql.encode())
        + sum(
            32 + (widest if isinstance(values, SameValue) else value_bytes(values)) for values in statement.parameters
        )
        for statement in custom.statements
    }


def check_statements(statements: Sequence[CustomStatement]) -> frozenset[str]:
    """Names of the statements, each of which must be unique. Raises ValueError."""
    known = {statement.name: statement for statement in statements}
    if len(known) < len(statements):
        raise ValueError("two statements have one name")
    for statement in statements:
        for values in statement.parameters:
            if isinstance(values, SameValue) and not (
                values.statement in known and values.index < len(known[values.statement].parameters)
            ):
                raise ValueError(f"statement {statement.name} repeats a parameter that is not there")
    return frozenset(known)


def is_keyed(workload: Workload) -> bool:
    """Whether each transaction draws at most one key, which is unique in the job, and at least one transaction draws a key."""
    if isinstance(workload, Sysbench):
        return workload.kind == "oltp_insert" and not workload.auto_inc
    if not isinstance(workload, Custom):
        return False
    drawing_statements = [
        statement.name
        for statement in workload.statements
        for values in statement.parameters
        if isinstance(values, SequenceValues)
    ]
    keys_per_transaction = [
        sum(step.repeat for step in transaction.steps if step.statement in drawing_statements)
        for transaction in workload.transactions
    ]
    return len(drawing_statements) == 1 and max(keys_per_transaction) == 1


# ---------------------------------------------------------------- jobs


@rule_of(LoadJob)
def _load_job(job: LoadJob) -> None:
    if job.ramp_ns > job.warmup_ns:
        raise ValueError("ramp_ns is part of the warm-up and cannot be longer")
    _check_store_session(job.workload, job.session, job.user, job.password, job.database)
    _check_protocol(job)
    _check_pauses(job)
    if job.acknowledged is not None and not is_keyed(job.workload):
        raise ValueError("a log of acknowledged keys needs a workload that gives each transaction one key")


@rule_of(TablesJob)
def _tables_job(job: TablesJob) -> None:
    _check_protocol(job)
    _check_store_session(job.workload, job.session, job.user, job.password, job.database)


def _check_protocol(job: LoadJob | TablesJob) -> None:
    """Check that a job uses no features that its SQL protocol lacks."""
    workload, session = job.workload, job.session
    mode = None if isinstance(workload, KeyValue) else workload.db_ps_mode
    if job.protocol == "postgresql":
        if session.compression is not None:
            raise ValueError("PostgreSQL does not compress its protocol")
        if mode is None:
            raise ValueError("a workload of keys has a protocol of its own")
        if session.pipeline > 1 and mode not in ("auto", "extended"):
            raise ValueError("a pipeline needs db_ps_mode auto or extended")
        return
    if isinstance(workload, Pgbench):
        raise ValueError("pgbench's workloads need PostgreSQL")
    if mode == "extended" or session.pipeline > 1 or (session.tls is not None and session.tls.direct):
        raise ValueError("db_ps_mode=extended, a pipeline and direct TLS need PostgreSQL")


def _check_pauses(job: LoadJob) -> None:
    """Check that there are no pauses between statements that are sent at once, where they would have no effect."""
    workload = job.workload
    if not isinstance(workload, Custom) or (workload.db_ps_mode != "multi" and job.session.pipeline == 1):
        return
    if any(step.think_ns for transaction in workload.transactions for step in transaction.steps):
        raise ValueError("think needs statements that are sent one at a time: neither db_ps_mode=multi nor a pipeline")


def _check_store_session(workload: Workload, session: Session, user: str, password: str, database: str) -> None:
    """Check that a session with a key-value store uses no features that such a store lacks."""
    if not isinstance(workload, KeyValue):
        return
    if session.compression is not None:
        raise ValueError("neither Redis nor Memcached compresses its protocol")
    if not is_redis(workload) and (user or password or database):
        raise ValueError("Memcached's text protocols know no user, password or database")
    if user and not password:
        raise ValueError("a user of Redis needs a password")
    if database and not (database.isascii() and database.isdigit() and len(database) <= 9):
        raise ValueError("a database of Redis is a number, or empty")


# ---------------------------------------------------------------- pages


def services_of(script: PageScript) -> dict[ServiceName, Service]:
    """Services that a page names, in the order of their receipts."""
    by_name: tuple[tuple[ServiceName, Service | None], ...] = (
        ("mysql", script.mysql),
        ("postgresql", script.postgresql),
        ("redis", script.redis),
        ("memcached", script.memcached),
    )
    return {name: service for name, service in by_name if service is not None}


def sql_of(names: Iterable[ServiceName]) -> ServiceName | None:
    """The service that statements are sent to."""
    return next((name for name in names if name not in ("redis", "memcached")), None)


def round_trips_of(script: PageScript) -> int:
    """Number of round trips of one page."""
    return script.rounds * sum(step.repeat for step in script.steps if not isinstance(step, CpuStep))


@rule_of(PageScript)
def _page_script(script: PageScript) -> None:
    if not services_of(script):
        raise ValueError("a page needs a service")
    if script.mysql is not None and script.postgresql is not None:
        raise ValueError("statements go to one server")
    _check_stores(script)
    known = check_statements(script.statements)
    if round_trips_of(script) > MAX_ROUND_TRIPS:
        raise ValueError(f"a page has at most {MAX_ROUND_TRIPS} round trips")
    for step in script.steps:
        if isinstance(step, QueryStep):
            if step.statement not in known:
                raise ValueError(f"a step names statement {step.statement}, which is not there")
            if sql_of(services_of(script)) is None:
                raise ValueError("a query needs a service of SQL")
        elif isinstance(step, GetStep):
            service, keys = (
                (script.redis, script.redis_keys)
                if step.store == "redis"
                else (script.memcached, script.memcached_keys)
            )
            if service is None or keys is None:
                raise ValueError(f"a get needs the service {step.store} and its keys")


def _check_stores(script: PageScript) -> None:
    stores = (("redis", script.redis, script.redis_keys), ("memcached", script.memcached, script.memcached_keys))
    for name, service, keys in stores:
        if (service is None) != (keys is None):
            raise ValueError(f"the service {name} and its keys come together")
        if service is None or keys is None:
            continue
        if is_redis(keys) != (name == "redis"):
            raise ValueError(f"{keys.protocol} is not a protocol of {name}")
        max_each = max((s.keys_each for s in script.steps if isinstance(s, GetStep) and s.store == name), default=1)
        if not fits_at_once(keys, max_each):
            raise ValueError("keys_each of a step times the longest value with its key must be 64 MiB at most")
        _check_store_session(keys, Session(), service.user, service.password, service.database)
