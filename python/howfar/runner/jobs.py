"""The engine's job for an arm, by kind of workload; the job's result as a record; and how the result differs from the request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from howfar.contract.messages import (
    Arrivals,
    Compression,
    CpuStep,
    CustomStatement,
    FastCgi,
    Finished,
    FixedSize,
    GetStep,
    IntegerValues,
    IntervalFigures,
    KeyValue,
    LoadJob,
    PageJob,
    PageScript,
    PageStep,
    QueryStep,
    SameValue,
    Service,
    ServiceName,
    ServiceUse,
    Session,
    Sysbench,
    TablesDone,
    TablesJob,
    UnixTarget,
    WindowFigures,
    Workload,
)
from howfar.contract.receipt import ArrivalsReceipt
from howfar.contract.services import is_redis, sql_of
from howfar.engine.inserts import single_row_inserts, single_row_updates
from howfar.engine.process import EngineFailed, EngineProcess, Launcher, check_job
from howfar.engine.receipt_check import mismatches, page_mismatches
from howfar.engine.run_load import LoadOutcome
from howfar.errors import LabError, PlanError
from howfar.paths import find_path
from howfar.plan.factors import ORDINARY, ROW_BYTES, offered_per_s
from howfar.plan.page import KEYS_PER_MULTI_GET, Keys, PageShape
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.plan.types import READS_ONLY, Plan
from howfar.store.records import Arm, Measured
from howfar.testbed import LoadFacts, ServiceEndpoint, TrialEnvironment, Trust


def make_load_job(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int, workload: Workload) -> LoadJob:
    return LoadJob(
        target=environment.target,
        user=environment.user,
        password=environment.password,
        database=environment.database,
        protocol=environment.protocol,
        session=make_session(session_spec(arm.factors), environment.trust, environment.fetches_server_key),
        workload=workload,
        connections=int(arm.factors["threads"]),
        arrivals=None if (per_s := offered_per_s(arm.factors)) is None else Arrivals(rate_per_s=per_s),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=environment.observe,
    )


def make_session(spec: SessionSpec, trust: Trust | None, fetch_server_key: bool = True) -> Session:
    assert spec.tls is None or trust is not None, "the server of an encrypted cell has a certificate"
    return Session(
        tls=trust.tls(spec) if trust else None,
        compression=Compression(algorithm=spec.algorithm, level=spec.level) if spec.algorithm else None,
        connect="per_transaction" if spec.per_transaction else "persistent",
        fetch_server_key=fetch_server_key,
    )


Protocol = Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
_NEWEST_PROTOCOL: dict[str, Protocol] = {"redis": "resp3", "memcached": "memcached_meta"}
_OLDEST_PROTOCOL: dict[str, Protocol] = {"redis": "resp2", "memcached": "memcached_text"}
"""A store's oldest and newest protocol, by the name of its service."""


def store_protocol(service: str, path: str) -> Protocol:
    """The protocol that clients of a key-value store speak on a path."""
    return (_OLDEST_PROTOCOL if find_path(path).oldest_protocol_only else _NEWEST_PROTOCOL)[service]


def key_value_workload(keys: Keys, protocol: Protocol) -> KeyValue:
    return KeyValue(
        protocol=protocol,
        keys=keys.count,
        value=FixedSize(bytes=keys.value_bytes),
        get=keys.get,
        set=keys.set,
        multi_get=keys.multi_get,
        keys_each=KEYS_PER_MULTI_GET,
        pipeline=keys.pipeline,
    )


def make_keys_job(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> LoadJob:
    """A job of key lookups, after setting the keys. Raises LabError, EngineError if the keys cannot be set."""
    (name,) = environment.services
    workload = key_value_workload(plan.keys, store_protocol(name, str(arm.factors["path"])))
    fill_keys(environment.services[name], workload, environment.client)
    return make_load_job(plan, arm, environment, seed, workload)


_TABLE = "sbtest1"


def make_page_job(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> PageJob:
    """A job of pages, after setting their keys. Raises LabError, EngineError if the keys cannot be set, or if the application rejects
    the script."""
    factors = arm.factors
    endpoints = environment.services
    script = page_script(
        plan,
        str(factors["page"]),
        int(factors.get("app_cpu_ns", ORDINARY["app_cpu_ns"])),
        {name: endpoint.service for name, endpoint in endpoints.items()},
        per_page=factors.get("connect", ORDINARY["connect"]) == "per-transaction",
    )
    if script.redis_keys is not None:
        fill_keys(endpoints["redis"], script.redis_keys, environment.client)
    if script.memcached_keys is not None:
        fill_keys(endpoints["memcached"], script.memcached_keys, environment.client)
    application: PageScript | FastCgi = script
    if factors.get("application", ORDINARY["application"]) == "php":
        assert environment.application is not None, "the environment of a cell with PHP has an application"
        application = environment.application.install(script)
    return PageJob(
        application=application,
        workers=int(factors["threads"]),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=environment.observe,
    )


def page_script(
    plan: Plan, page: str, app_cpu_ns: int, services: Mapping[ServiceName, Service], *, per_page: bool = False
) -> PageScript:
    """The plan's shape `page` as a script. The application's CPU time is split evenly over its round trips. Services that the page
    does not query are left out."""
    shape = plan.pages[page]
    sql = sql_of(services)
    by_service = shape.round_trips_by_service(sql or "mysql")
    return PageScript(
        **{name: service for name, service in services.items() if name in by_service},
        statements=_statements(shape, plan) if sql in by_service else (),
        # PHP's extensions speak these protocols.
        redis_keys=key_value_workload(plan.keys, "resp2") if "redis" in by_service else None,
        memcached_keys=key_value_workload(plan.keys, "memcached_text") if "memcached" in by_service else None,
        steps=_round_steps(shape, app_cpu_ns // shape.rounds),
        rounds=shape.rounds,
        connect="per_page" if per_page else "persistent",
    )


def _statements(shape: PageShape, plan: Plan) -> tuple[CustomStatement, ...]:
    """The statements that the shape needs. Rows are drawn uniformly; a range never extends beyond the table."""
    size, rows = plan.workload.range_size, plan.data.table_size
    point = IntegerValues(high=rows)
    statements = []
    if shape.point_selects:
        statements.append(_statement("point", f"SELECT c FROM {_TABLE} WHERE id = ?", point))
    if shape.simple_ranges:
        sql = f"SELECT c FROM {_TABLE} WHERE id >= ? ORDER BY id LIMIT {size}"
        statements.append(_statement("range", sql, IntegerValues(high=rows - size + 1)))
    if shape.sums:
        sql = f"SELECT SUM(k) FROM {_TABLE} WHERE id BETWEEN ? AND ? + {shape.sum_rows - 1}"
        first = IntegerValues(high=rows - shape.sum_rows + 1)
        statements.append(_statement("total", sql, first, SameValue(statement="total", index=0)))
    if shape.index_updates:
        update = _statement("update", f"UPDATE {_TABLE} SET k = k + 1 WHERE id = ?", point)
        statements += [_statement("begin", "BEGIN"), update, _statement("commit", "COMMIT")]
    return tuple(statements)


def _statement(name: str, sql: str, *parameters: IntegerValues | SameValue) -> CustomStatement:
    return CustomStatement(name=name, sql=sql, parameters=parameters)


def _round_steps(shape: PageShape, cpu_ns: int) -> tuple[PageStep, ...]:
    """The steps of one round. The application computes after each round trip or transaction. If it computed once per round, it would
    keep a CPU for a full time slice of the scheduler, during which every other page would have to wait."""
    reads: tuple[tuple[int, PageStep], ...] = (
        (shape.point_selects, QueryStep(statement="point")),
        (shape.simple_ranges, QueryStep(statement="range")),
        (shape.sums, QueryStep(statement="total")),
        (shape.redis_gets, GetStep(store="redis")),
        (shape.redis_multi_gets, GetStep(store="redis", keys_each=KEYS_PER_MULTI_GET)),
        (shape.memcached_gets, GetStep(store="memcached")),
    )
    parts: list[tuple[PageStep, ...]] = [(step,) for count, step in reads for _ in range(count)]
    if shape.index_updates:
        update = QueryStep(statement="update", repeat=shape.index_updates)
        parts.append((QueryStep(statement="begin"), update, QueryStep(statement="commit")))
    cpu_steps = (CpuStep(cpu_ns=cpu_ns // len(parts)),) if cpu_ns else ()
    return tuple(step for part in parts for step in (*part, *cpu_steps))


def make_statements_job(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> LoadJob:
    job = make_load_job(plan, arm, environment, seed, _workload(plan, arm))
    if plan.workload.kind != "single_row_updates":
        return job
    return job.model_copy(update={"ignore_errors": (*job.ignore_errors, *_CONFLICTS)})


_CONFLICTS = (1180, 3101)
"""Errors with which Group Replication refuses a commit that conflicts with another member's; Galera's 1213 is retried anyway."""


def _workload(plan: Plan, arm: Arm) -> Workload:
    if plan.workload.kind == "single_row_inserts":
        return single_row_inserts(ROW_BYTES.level_in(arm.factors))
    if plan.workload.kind == "single_row_updates":
        return single_row_updates(1)
    return _sysbench(plan)


def _sysbench(plan: Plan) -> Sysbench:
    tables = {"tables": plan.data.tables, "table_size": plan.data.table_size}
    return Sysbench.model_validate(plan.workload.model_dump() | tables)


def check_workload(plan: Plan) -> None:
    """Check, before anything is created, that the engine accepts the plan's workload. Raises PlanError.

    Only of keys can a plan combine values that are too large together.
    """
    if plan.workload.kind != "key_value":
        return
    job = LoadJob(
        target=UnixTarget(path="/"),
        user="",
        database="",
        workload=key_value_workload(plan.keys, "resp3"),
        connections=1,
        seed=0,
        warmup_ns=0,
        measure_ns=1,
    )
    try:
        check_job(job)
    except EngineFailed as refusal:
        raise PlanError(f"plan {plan.name}: {refusal.message}", "Change it in the plan.") from refusal


def make_job(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> LoadJob | PageJob:
    """An arm's job. Key-value stores are filled and applications checked first; then the environment's counters are reset. Raises
    LabError, EngineError."""
    if plan.workload.kind not in ("page", "key_value"):
        return make_statements_job(plan, arm, environment, seed)
    job = (
        make_page_job(plan, arm, environment, seed)
        if plan.workload.kind == "page"
        else make_keys_job(plan, arm, environment, seed)
    )
    environment.reset_counters()
    return job


def commits_per_transaction(plan: Plan) -> int:
    """Number of commits that change data per SQL transaction."""
    return 0 if plan.workload.kind in READS_ONLY else 1


_FILL_CONNECTIONS = 1
_FILL_STALL_NS = 30_000_000_000


def fill_keys(endpoint: ServiceEndpoint, keys: KeyValue, launcher: Launcher) -> int:
    """Set all `keys` in an empty store, over the environment's path; returns their number. `launcher` runs the engine.

    Raises LabError if the server stores fewer keys than it was sent, for example for lack of memory. Raises LabError, EngineError if
    setting them fails.
    """
    assert endpoint.count_keys is not None, f"{endpoint.server_kind} has no keys to be set"
    service = endpoint.service
    job = TablesJob(
        action="prepare",
        target=service.target,
        user=service.user,
        password=service.password,
        database=service.database,
        workload=keys,
        connections=_FILL_CONNECTIONS,
        seed=1,  # not used: a value depends only on the number of its key
        session=Session(tls=service.tls),
        stall_timeout_ns=_FILL_STALL_NS,
    )
    with EngineProcess(job, launcher) as engine:
        last_event = list(engine.events())[-1]
    assert isinstance(last_event, TablesDone), "a tables job ends with the event tables_done"
    stored = endpoint.count_keys()
    if stored != keys.keys:
        raise LabError(
            f"{endpoint.server_kind} holds {stored} keys, but {keys.keys} were set ({last_event.rows} by the engine's account)",
            "Does it have the memory for them?",
        )
    return stored


_HISTOGRAM_PRECISION = 0.998
"""A recorded time may be lower than the true one by this factor: a histogram keeps three digits."""


@dataclass(frozen=True)
class PageSpec:
    """Round trips and keys of one page."""

    round_trips: Mapping[ServiceName, int]
    keys: Mapping[ServiceName, int]
    """Number of keys that the page looks up, by service. All must be found."""
    app_cpu_ns: int
    per_page: bool
    """Whether the page opens its connections itself."""
    commits: int

    def round_trips_of(self, pages: int) -> dict[ServiceName, int]:
        return {service: count * pages for service, count in self.round_trips.items()}

    def keys_of(self, pages: int) -> dict[ServiceName, int]:
        return {service: count * pages for service, count in self.keys.items()}


def page_spec(plan: Plan, arm: Arm, sql: ServiceName = "mysql") -> PageSpec:
    """The specification of an arm's pages. `sql`: the service that runs their statements."""
    shape: PageShape = plan.pages[str(arm.factors["page"])]
    cpu_ns = int(arm.factors.get("app_cpu_ns", ORDINARY["app_cpu_ns"]))
    return PageSpec(
        round_trips=shape.round_trips_by_service(sql),
        keys=shape.keys_by_store,
        app_cpu_ns=max(cpu_ns - shape.round_trips, 0),  # each part is rounded down to whole nanoseconds
        per_page=arm.factors.get("connect", ORDINARY["connect"]) == "per-transaction",
        commits=shape.rounds if shape.index_updates else 0,
    )


def find_page_mismatches(spec: PageSpec, job: PageJob, finished: Finished) -> tuple[str, ...]:
    """Differences between pages and their specification, as sentences. Any difference makes a trial void."""
    if isinstance(job.application, FastCgi):
        return (*_find_unreported_pages(finished), *_find_reported_differences(spec, finished))
    return (*_find_counted_differences(spec, finished), *_find_missing_cpu_time(spec, finished))


def _find_unreported_pages(finished: Finished) -> tuple[str, ...]:
    """A sentence if pages reported nothing about themselves. The client that requested them counts them as good."""
    reported = next((histogram.count for histogram in finished.histograms if histogram.kind == "told.wall_ns"), 0)
    if reported == finished.transactions:
        return ()
    return (f"{finished.transactions} pages ended and {reported} told what they did",)


def _find_reported_differences(spec: PageSpec, finished: Finished) -> list[str]:
    reported, pages = finished.told, finished.transactions
    differences: list[str] = []
    for service, expected in spec.round_trips_of(pages).items():
        round_trips = reported.get(f"{service}_turns", 0) - reported.get(f"{service}_checks", 0)
        differences += _count_difference(f"turns to {service}", pages, round_trips, expected)
        if spec.per_page:
            differences += _count_difference(
                f"connects to {service}", pages, reported.get(f"{service}_connects", 0), pages
            )
    differences += _missed_keys(reported.get("misses", 0))
    differences += _count_difference("keys found", pages, reported.get("hits", 0), sum(spec.keys_of(pages).values()))
    if (computed_ns := reported.get("app_cpu_ns", 0)) < spec.app_cpu_ns * pages:
        differences.append(f"{pages} pages computed for {computed_ns} ns, the plan has {spec.app_cpu_ns * pages}")
    if computed_ns > reported.get("cpu_ns", computed_ns):
        differences.append(
            f"{pages} pages told that they computed for {computed_ns} ns, and of {reported['cpu_ns']} ns of CPU in all"
        )
    return differences


def _find_counted_differences(spec: PageSpec, finished: Finished) -> list[str]:
    pages, use_by_service = finished.transactions, {use.service: use for use in finished.services}
    differences: list[str] = []
    for service, expected in spec.round_trips_of(pages).items():
        use = use_by_service.get(service)
        differences += _count_difference(f"turns to {service}", pages, use.turns if use else 0, expected)
        if spec.per_page:
            differences += _count_difference(f"connects to {service}", pages, (use and use.connects) or 0, pages)
    differences += _missed_keys(sum(use.misses for use in finished.services))
    hits = sum(use.hits for use in finished.services)
    return [*differences, *_count_difference("keys found", pages, hits, sum(spec.keys_of(pages).values()))]


def _find_missing_cpu_time(spec: PageSpec, finished: Finished) -> tuple[str, ...]:
    cpu_histogram = next((histogram for histogram in finished.histograms if histogram.kind == "cpu"), None)
    if not spec.app_cpu_ns or not finished.transactions:
        return ()
    mean_ns = 0.0 if cpu_histogram is None else cpu_histogram.mean_ns
    if mean_ns >= spec.app_cpu_ns * _HISTOGRAM_PRECISION:
        return ()
    return (f"a page computed for {mean_ns:.0f} ns in the mean, the plan has {spec.app_cpu_ns}",)


def _count_difference(what: str, pages: int, actual: int, expected: int) -> tuple[str, ...]:
    return () if actual == expected else (f"{pages} pages had {actual} {what}, the plan has {expected}",)


def _missed_keys(misses: int) -> tuple[str, ...]:
    return (f"the pages missed {misses} keys, all of which were set",) if misses else ()


def make_measured(job: LoadJob | PageJob, outcome: LoadOutcome) -> Measured:
    """The figures of a load that a run file keeps."""
    finished = outcome.finished
    figures = {name: getattr(finished, name) for name in WindowFigures.model_fields}
    if reported := _reported_round_trips(finished):  # the engine saw only pages; the application counts each request
        figures["queries"] = figures["turns"] = sum(reported.values())
    if not isinstance(job, PageJob):
        figures["services"] = _key_store_use(job, finished)
    return Measured(
        **figures,
        warmup_transactions=outcome.measuring.warmup_transactions,
        connect_ns=outcome.ready.connect_ns,
        intervals=tuple(
            IntervalFigures.model_validate(interval, from_attributes=True) for interval in outcome.intervals
        ),
    )


def _key_store_use(job: LoadJob, finished: Finished) -> tuple[ServiceUse, ...]:
    """The totals of a load of keys as the use of its only service. Empty for other loads."""
    if not isinstance(job.workload, KeyValue) or finished.lookups is None:
        return ()
    return (
        ServiceUse(
            service="redis" if is_redis(job.workload) else "memcached",
            connects=None,
            requests=finished.queries,
            turns=finished.turns,
            bytes=finished.bytes,
            hits=finished.lookups.hits,
            misses=finished.lookups.misses,
        ),
    )


def load_facts(outcome: LoadOutcome, job: LoadJob, commits_per_transaction: int) -> LoadFacts:
    """Facts about a load. `commits_per_transaction`: see the function of that name."""
    finished = outcome.finished
    by_kind = {histogram.kind: histogram for histogram in finished.histograms}
    round_trip_ns = job.connections * finished.elapsed_ns / max(finished.turns, 1)
    if job.arrivals is not None and (service := by_kind.get("service")) is not None:
        # Connections also wait until a transaction is due; that time is not part of a round trip.
        round_trip_ns = service.mean_ns * service.count / max(finished.turns, 1)
    answered = _count_answered(finished, job)
    ended = _count_ended(finished, answered)
    if not commits_per_transaction or not finished.transactions:
        return LoadFacts(round_trip_ns, answered_statements=answered, ended_transactions=ended)
    commit = by_kind.get("commit") or by_kind.get("transaction")  # without BEGIN and COMMIT the statement commits
    return LoadFacts(
        round_trip_ns,
        commits_per_transaction * finished.transactions,
        answered_statements=answered,
        ended_transactions=ended,
        commit_p50_ns=None if commit is None else commit.p50_ns,
    )


def _count_answered(finished: Finished, job: LoadJob) -> int | None:
    """Number of answered statements or keys. None if unknown: after a disconnect, statements may have been executed whose answers were
    lost."""
    if finished.answered is None or finished.reconnects or finished.interrupted:
        return None
    if not isinstance(job.workload, KeyValue):
        return finished.answered
    # Memcached counts keys, and it is unknown how many requests were for several keys.
    unknown = job.workload.multi_get and not is_redis(job.workload)
    return None if unknown else finished.answered * job.workload.pipeline


def _count_ended(finished: Finished, answered: int | None) -> int | None:
    """Number of transactions that the answered statements formed. Each statement is a transaction, unless there are BEGIN and COMMIT.
    These are recognised as at least two statements per transaction that neither read nor write."""
    if answered is None or finished.classes.other < 2 * finished.transactions:
        return answered
    return answered * finished.transactions // max(finished.queries, 1)


def page_facts(outcome: LoadOutcome, spec: PageSpec) -> LoadFacts:
    """Facts about a load of pages, including the warm-up: the servers' counters include it, because they were read before it."""
    finished = outcome.finished
    pages = outcome.measuring.warmup_transactions + finished.transactions
    return LoadFacts(
        _page_round_trip_ns(finished),
        spec.commits * finished.transactions or None,
        round_trips=spec.round_trips_of(pages),
        keys=spec.keys_of(pages),
        sessions=dict(outcome.ready.services),
    )


def _page_round_trip_ns(finished: Finished) -> float:
    """Mean round trip, without the application's CPU time in between: by the engine's clock, or as the application reported it."""
    histograms = [histogram for histogram in finished.histograms if histogram.kind.startswith("turn.")]
    count = sum(histogram.count for histogram in histograms)
    if count:
        return sum(histogram.mean_ns * histogram.count for histogram in histograms) / count
    reported = _reported_round_trips(finished)
    return sum(finished.told.get(f"{service}_ns", 0) for service in reported) / max(sum(reported.values()), 1)


def _reported_round_trips(finished: Finished) -> dict[str, int]:
    """Round trips by service, as an application's pages reported them."""
    suffix = "_turns"
    return {name.removesuffix(suffix): count for name, count in finished.told.items() if name.endswith(suffix)}


def arrivals_receipt(job: LoadJob | PageJob, outcome: LoadOutcome) -> ArrivalsReceipt | None:
    """The requests that were due in the window at the job's rate, and what became of them. None: closed loop."""
    arrivals = outcome.finished.open_loop
    if job.arrivals is None or arrivals is None:
        return None
    return ArrivalsReceipt(per_s=job.arrivals.rate_per_s, shape=job.arrivals.shape, **arrivals.model_dump())


_SIGMAS = 6
"""Number of standard deviations by which a window's number of Poisson arrivals may differ from its mean. One window in 500 million
differs by more."""


def _rate_difference(job: LoadJob | PageJob, outcome: LoadOutcome) -> tuple[str, ...]:
    arrivals = outcome.finished.open_loop
    if job.arrivals is None or arrivals is None:
        return ()
    expected = job.arrivals.rate_per_s * outcome.finished.elapsed_ns / 1e9
    if abs(arrivals.due - expected) <= _SIGMAS * math.sqrt(expected) + 1:
        return ()
    return (f"{arrivals.due} transactions were due in the window where the rate makes {expected:.0f}",)


def find_request_mismatches(
    job: LoadJob | PageJob, outcome: LoadOutcome, spec: PageSpec | None = None
) -> tuple[str, ...]:
    """Differences between the request and the engine's receipts and counts, as sentences. `spec`: specification of the job's pages."""
    if isinstance(job, PageJob):
        mismatched = () if spec is None else find_page_mismatches(spec, job, outcome.finished)
        return (*page_mismatches(job, outcome.ready), *mismatched)
    lookups = outcome.finished.lookups
    missed: tuple[str, ...] = ()
    if lookups is not None and lookups.misses:
        missed = (f"{lookups.misses} keys were missed, all of which were set",)
    return (*mismatches(job, outcome.ready.receipt, must_resume=True), *missed, *_rate_difference(job, outcome))
