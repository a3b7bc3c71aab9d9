"""The engine's job for an arm on a staged path, by kind of workload; its result as a record, and how it differs from the request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from howfar.engine.inserts import single_row_inserts, single_row_updates
from howfar.engine.messages import (
    SYSBENCH_KINDS,
    Arrivals,
    Compression,
    CpuStep,
    CustomStatement,
    FastCgi,
    Finished,
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
from howfar.engine.receipt_check import mismatches, page_mismatches
from howfar.engine.rules import is_redis, sql_of
from howfar.engine.run_load import LoadOutcome
from howfar.errors import LabError, PlanError
from howfar.paths import find_path
from howfar.plan.factors import ORDINARY, ROW_BYTES, offered_per_s
from howfar.plan.page import MULTI, Keys, PageShape
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.plan.types import READS_ONLY, Plan
from howfar.store.records import Arm, CpuRecord, HistogramRecord, IntervalRecord, Measured, ServiceRecord
from howfar.testbed import LoadFacts, ServiceEndpoint, Stage, Trust


def load_job(plan: Plan, arm: Arm, stage: Stage, seed: int, workload: Workload) -> LoadJob:
    return LoadJob(
        target=stage.target,
        user=stage.user,
        password=stage.password,
        database=stage.database,
        protocol=stage.protocol,
        session=session_of(session_spec(arm.factors), stage.trust, stage.fetches_server_key),
        workload=workload,
        connections=int(arm.factors["threads"]),
        arrivals=None if (per_s := offered_per_s(arm.factors)) is None else Arrivals(rate_per_s=per_s),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=stage.observe,
    )


def session_of(spec: SessionSpec, trust: Trust | None, fetch_server_key: bool = True) -> Session:
    assert spec.tls is None or trust is not None, "a stage for an encrypted cell has a server with a certificate"
    return Session(
        tls=trust.tls(spec) if trust else None,
        compression=Compression(algorithm=spec.algorithm, level=spec.level) if spec.algorithm else None,
        connect="per_transaction" if spec.per_transaction else "persistent",
        fetch_server_key=fetch_server_key,
    )


Protocol = Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
_NEWEST: dict[str, Protocol] = {"redis": "resp3", "memcached": "memcached_meta"}
_FIRST: dict[str, Protocol] = {"redis": "resp2", "memcached": "memcached_text"}
"""A store's first protocol, by the name of its service."""


def store_protocol(service: str, path: str) -> Protocol:
    """The protocol in which a key-value store is queried on a path."""
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
    """A job of key lookups. Raises LabError, EngineError where the keys cannot be set."""
    (name,) = stage.services
    workload = key_value(plan.keys, store_protocol(name, str(arm.factors["path"])))
    fill_keys(stage.services[name], workload, stage.client)
    return load_job(plan, arm, stage, seed, workload)


_TABLE = "sbtest1"


def page_job(plan: Plan, arm: Arm, stage: Stage, seed: int) -> PageJob:
    """A job of pages. Raises LabError, EngineError where the keys cannot be set or the application rejects the script."""
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
    """The plan's shape `page` as a script, with the application's CPU time split evenly over its round trips. A service that it does
    not query is left out."""
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
    """Statements that the shape needs. Rows are drawn uniformly; a range never extends beyond the table."""
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
    """The steps of one round. The application computes after each round trip or transaction: if it computed once a round, it would
    keep a CPU for a full time slice of the scheduler, during which every other page waits to continue."""
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
    job = load_job(plan, arm, stage, seed, _workload(plan, arm))
    if plan.workload.kind != "single_row_updates":
        return job
    return job.model_copy(update={"ignore_errors": (*job.ignore_errors, *_CONFLICTS)})


_CONFLICTS = (1180, 3101)
"""Errors with which Group Replication refuses a commit that conflicts with another member's; Galera's 1213 is retried anyway."""


def _workload(plan: Plan, arm: Arm) -> Workload:
    if plan.workload.kind == "single_row_inserts":
        return single_row_inserts(ROW_BYTES.of(arm.factors))
    if plan.workload.kind == "single_row_updates":
        return single_row_updates(1)
    return _sysbench(plan)


def _sysbench(plan: Plan) -> Sysbench:
    tables = {"tables": plan.data.tables, "table_size": plan.data.table_size}
    return Sysbench.model_validate(plan.workload.model_dump() | tables)


def check_workload(plan: Plan) -> None:
    """Check, before anything is created, that the engine accepts the plan's workload. Raises PlanError."""
    try:
        if plan.workload.kind == "key_value":
            key_value(plan.keys, "resp3")
        elif plan.workload.kind in SYSBENCH_KINDS:
            _sysbench(plan)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or plan.workload.kind
        raise PlanError(
            f"plan {plan.name}: {field}: {problem['msg'].removeprefix('Value error, ')}", "Change it in the plan."
        ) from error


def job_of(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob | PageJob:
    """An arm's job, after filling key-value stores and checking applications; the stage counts from then on. Raises LabError,
    EngineError."""
    if plan.workload.kind not in ("page", "key_value"):
        return statements_job(plan, arm, stage, seed)
    job = page_job(plan, arm, stage, seed) if plan.workload.kind == "page" else keys_job(plan, arm, stage, seed)
    stage.loading()
    return job


def commits_each(plan: Plan) -> int:
    """Number of commits of changes per SQL transaction."""
    return 0 if plan.workload.kind in READS_ONLY else 1


_CONNECTIONS = 1
_STALL_NS = 30_000_000_000


def fill_keys(place: ServiceEndpoint, keys: KeyValue, launcher: Launcher) -> int:
    """Set all `keys` in an empty store, over the stage's path from where `launcher` runs the engine; returns their number.

    Raises LabError if the server stores fewer than it was sent, for example for lack of memory; LabError, EngineError if it fails.
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
            f"{place.server_kind} holds {held} keys, but {keys.keys} were set ({done.rows} by the engine's account)",
            "Does it have the memory for them?",
        )
    return held


_AS_RECORDED = 0.998
"""Precision of a histogram, which keeps three digits."""


@dataclass(frozen=True)
class PageSpec:
    """Round trips and keys of one page."""

    round_trips: Mapping[ServiceName, int]
    keys: Mapping[ServiceName, int]
    """Number of keys that the page looks up; all must be found."""
    app_cpu_ns: int
    per_page: bool
    """Whether the page opens its connections itself."""
    commits: int

    def round_trips_of(self, pages: int) -> dict[ServiceName, int]:
        return {service: count * pages for service, count in self.round_trips.items()}

    def keys_of(self, pages: int) -> dict[ServiceName, int]:
        return {service: count * pages for service, count in self.keys.items()}


def page_spec(plan: Plan, arm: Arm, sql: ServiceName = "mysql") -> PageSpec:
    """Specification of the pages of an arm. `sql`: the service that runs their statements."""
    shape: PageShape = plan.pages[str(arm.factors["page"])]
    cpu_ns = int(arm.factors.get("app_cpu_ns", ORDINARY["app_cpu_ns"]))
    return PageSpec(
        round_trips=shape.by_service(sql),
        keys=shape.keys_by_store,
        app_cpu_ns=max(cpu_ns - shape.round_trips, 0),  # each part is rounded down to whole nanoseconds
        per_page=arm.factors.get("connect", ORDINARY["connect"]) == "per-transaction",
        commits=shape.rounds if shape.index_updates else 0,
    )


def unlike_pages(spec: PageSpec, job: PageJob, finished: Finished) -> tuple[str, ...]:
    """Differences between pages and their specification, as sentences; any makes a trial void."""
    if isinstance(job.application, FastCgi):
        return (*_unreported(finished), *_reported_otherwise(spec, finished))
    return (*_done_otherwise(spec, finished), *_computed_less(spec, finished))


def _unreported(finished: Finished) -> tuple[str, ...]:
    """Differences where pages reported nothing; the client that requests them counts these as good."""
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
    if reported := _reported_round_trips(finished):  # the engine saw only pages; the application counts each request
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
    """Records by service. For pages they come from the engine; a load of keys has one service, whose record has the load's totals."""
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
    """Facts about a load. `commits_each`: number of commits of changes per transaction of the workload."""
    finished = outcome.finished
    by_kind = {histogram.kind: histogram for histogram in finished.histograms}
    round_trip_ns = job.connections * finished.elapsed_ns / max(finished.turns, 1)
    if job.arrivals is not None and (service := by_kind.get("service")) is not None:
        # Connections also wait until a transaction is due, which is no part of a round trip.
        round_trip_ns = service.mean_ns * service.count / max(finished.turns, 1)
    answered = _answered(finished, job)
    ended = _ended(finished, answered)
    if not commits_each or not finished.transactions:
        return LoadFacts(round_trip_ns, answered=answered, ended=ended)
    commit = by_kind.get("commit") or by_kind.get("transaction")  # without BEGIN and COMMIT the statement commits
    return LoadFacts(
        round_trip_ns,
        commits_each * finished.transactions,
        answered=answered,
        ended=ended,
        commit_p50_ns=None if commit is None else commit.p50_ns,
    )


def _answered(finished: Finished, job: LoadJob) -> int | None:
    """Number of answered statements or keys; unknown after a disconnect: statements whose answer was lost may have been executed."""
    if finished.answered is None or finished.reconnects or finished.interrupted:
        return None
    if not isinstance(job.workload, KeyValue):
        return finished.answered
    # Memcached counts keys, and how many of its requests were for several is unknown.
    unknown = job.workload.multi_get and not is_redis(job.workload)
    return None if unknown else finished.answered * job.workload.pipeline


def _ended(finished: Finished, answered: int | None) -> int | None:
    """Number of transactions that the answered statements formed: each statement is one, unless there are BEGIN and COMMIT, seen as at
    least two statements per transaction that neither read nor write."""
    if answered is None or finished.classes.other < 2 * finished.transactions:
        return answered
    return answered * finished.transactions // max(finished.queries, 1)


def page_facts(outcome: LoadOutcome, spec: PageSpec) -> LoadFacts:
    """Facts about a load of pages, the warm-up included: servers counted it, because their counters were read before it."""
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
    """Mean round trip, without the computing between round trips: by the engine's clock, or as the application reported."""
    timed = [histogram for histogram in finished.histograms if histogram.kind.startswith("turn.")]
    count = sum(histogram.count for histogram in timed)
    if count:
        return sum(histogram.mean_ns * histogram.count for histogram in timed) / count
    reported = _reported_round_trips(finished)
    return sum(finished.told.get(f"{service}_ns", 0) for service in reported) / max(sum(reported.values()), 1)


def _reported_round_trips(finished: Finished) -> dict[str, int]:
    """Round trips by service, as an application's pages reported them."""
    end = "_turns"
    return {name.removesuffix(end): count for name, count in finished.told.items() if name.endswith(end)}


def arrivals_receipt(job: LoadJob | PageJob, outcome: LoadOutcome) -> dict[str, Any] | None:
    """Requests due in the window at the job's rate, and their outcome. None: closed loop."""
    account = outcome.finished.open_loop
    if job.arrivals is None or account is None:
        return None
    return {"per_s": job.arrivals.rate_per_s, "shape": job.arrivals.shape, **account.model_dump()}


_SIGMAS = 6
"""Standard deviations by which a window's number of Poisson arrivals may differ from its mean; one in 500 million differs by more."""


def _unlike_rate(job: LoadJob | PageJob, outcome: LoadOutcome) -> tuple[str, ...]:
    account = outcome.finished.open_loop
    if job.arrivals is None or account is None:
        return ()
    expected = job.arrivals.rate_per_s * outcome.finished.elapsed_ns / 1e9
    if abs(account.due - expected) <= _SIGMAS * math.sqrt(expected) + 1:
        return ()
    return (f"{account.due} transactions were due in the window where the rate makes {expected:.0f}",)


def not_as_requested(job: LoadJob | PageJob, outcome: LoadOutcome, spec: PageSpec | None = None) -> tuple[str, ...]:
    """Differences between the request and the engine's receipts and counts, as sentences. `spec`: of the job's pages."""
    if isinstance(job, PageJob):
        unlike = () if spec is None else unlike_pages(spec, job, outcome.finished)
        return (*page_mismatches(job, outcome.ready), *unlike)
    lookups = outcome.finished.lookups
    missed: tuple[str, ...] = ()
    if lookups is not None and lookups.misses:
        missed = (f"{lookups.misses} keys were missed, all of which were set",)
    return (*mismatches(job, outcome.ready.receipt, must_resume=True), *missed, *_unlike_rate(job, outcome))
