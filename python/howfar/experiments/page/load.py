"""Loads of pages: the script of a page for the engine or PHP, and what a page must have done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from howfar.contract.messages import (
    CpuStep,
    CustomStatement,
    FastCgi,
    Finished,
    GetStep,
    IntegerValues,
    PageJob,
    PageScript,
    PageStep,
    QueryStep,
    Ready,
    SameValue,
    Service,
    ServiceName,
)
from howfar.contract.services import services_of, sql_of
from howfar.contract.violation import Violation, violation
from howfar.engine.receipt_check import service_mismatches, transport_mismatches
from howfar.engine.run_load import LoadOutcome
from howfar.errors import MissingError, ServerMissing
from howfar.experiments.page.factors import APP_CPU_NS, APPLICATION, KIND, PAGE, PHP
from howfar.experiments.page.plan import PAGES, PageShape
from howfar.plan.factor import Level
from howfar.plan.factors import CONNECT, THREADS
from howfar.plan.kinds import KEYS_PER_MULTI_GET
from howfar.plan.types import Plan
from howfar.runner.loads.key_stores import check_misses, fill_keys, key_value_workload
from howfar.runner.loads.load import TrialLoad, make_measured
from howfar.store.records import Arm, Measured
from howfar.testbed import LoadFacts, TrialEnvironment


class PageLoad(TrialLoad[PageJob]):
    kind = KIND
    unit = "page"

    def __init__(self, job: PageJob, spec: PageSpec) -> None:
        super().__init__(job)
        self._spec = spec

    @classmethod
    def find_auxiliary_servers(cls, plan: Plan) -> tuple[str, ...]:
        """The stores that the plan's pages need. Valkey replaces Redis if only Valkey is installed."""
        from howfar.lab.servers.kinds import find_server

        pages = PAGES.of(plan)
        needed = {service for page in plan.factors.page for service in pages[page].round_trips_by_service()}
        servers = []
        if "redis" in needed:
            try:
                find_server("redis")
                servers.append("redis")
            except ServerMissing as missing:
                try:
                    find_server("valkey")
                except ServerMissing:
                    raise missing from None
                servers.append("valkey")
        if "memcached" in needed:
            servers.append("memcached")
        return tuple(servers)

    @classmethod
    def find_application(cls, plan: Plan) -> str:
        return PHP if PHP in plan.factors.application else ""

    @classmethod
    def check_client(cls, plan: Plan, service: ServiceName) -> None:
        """Check that the application of the plan's pages is installed. Raises MissingError."""
        from howfar.experiments.page.lab.php_fpm import find_php_fpm

        if cls.find_application(plan):
            try:
                find_php_fpm(service)
            except MissingError as error:
                raise MissingError(
                    f"plan {plan.name} asks a real PHP application for pages: {error.message}",
                    f'{error.advice} A plan of your own with application = "engine" needs none.',
                ) from error

    @classmethod
    def prepare(cls, plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> PageLoad:
        """Set the keys and make the load of a trial. Raises LabError, EngineError, also if the application rejects the script."""
        job = _make_job(plan, arm, environment, seed)
        environment.reset_counters()
        return cls(job, page_spec(plan, arm, sql_of(environment.services) or "mysql"))

    def collect_facts(self, outcome: LoadOutcome) -> LoadFacts:
        return page_facts(outcome, self._spec)

    def find_mismatches(self, outcome: LoadOutcome) -> tuple[Violation, ...]:
        return (
            *page_mismatches(self.job, outcome.ready),
            *find_page_mismatches(self._spec, self.job, outcome.finished),
        )

    def make_figures(self, outcome: LoadOutcome) -> Measured:
        """The figures of a trial. The client of an application sees only pages; the application counts each request."""
        if not (reported := _reported_round_trips(outcome.finished)):
            return make_measured(outcome)
        requests = sum(reported.values())
        return make_measured(outcome, queries=requests, round_trips=requests)


def page_mismatches(job: PageJob, ready: Ready) -> tuple[Violation, ...]:
    """Differences for each service of a page's script, with its name; or for the application's socket."""
    if isinstance(job.application, FastCgi):
        return transport_mismatches(job.application.target, ready.receipt)
    differences: list[Violation] = []
    for name, service in services_of(job.application).items():
        receipt = ready.services.get(name)
        if receipt is None:
            differences.append(violation("no-session-receipt", name))
            continue
        is_sql = name not in ("redis", "memcached")
        differences.extend(each.at(name) for each in service_mismatches(service, receipt, is_sql))
    return tuple(differences)


_TABLE = "sbtest1"


def _make_job(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> PageJob:
    """A job of pages, after setting their keys. Raises LabError, EngineError if the keys cannot be set, or if the application rejects
    the script."""
    factors = arm.factors
    endpoints = environment.services
    script = page_script(
        plan,
        PAGE.level_in(factors),
        APP_CPU_NS.level_in(factors),
        {name: endpoint.service for name, endpoint in endpoints.items()},
        per_page=_connects_per_page(factors),
    )
    if script.redis_keys is not None:
        fill_keys(endpoints["redis"], script.redis_keys, environment.client)
    if script.memcached_keys is not None:
        fill_keys(endpoints["memcached"], script.memcached_keys, environment.client)
    application: PageScript | FastCgi = script
    if APPLICATION.level_in(factors) == PHP:
        assert environment.application is not None, "the environment of a cell with PHP has an application"
        application = environment.application.install(script)
    return PageJob(
        application=application,
        workers=THREADS.level_in(factors),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=environment.observe,
    )


def _connects_per_page(factors: Mapping[str, Level]) -> bool:
    return CONNECT.level_in(factors) == "per-transaction"


def page_script(
    plan: Plan, page: str, app_cpu_ns: int, services: Mapping[ServiceName, Service], *, per_page: bool = False
) -> PageScript:
    """The plan's shape `page` as a script. The application's CPU time is split evenly over its round trips. Services that the page
    does not query are left out."""
    shape = PAGES.of(plan)[page]
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
    range_size, table_size = plan.workload.range_size, plan.data.table_size
    row_id = IntegerValues(high=table_size)
    statements = []
    if shape.point_selects:
        statements.append(_statement("point", f"SELECT c FROM {_TABLE} WHERE id = ?", row_id))
    if shape.simple_ranges:
        sql = f"SELECT c FROM {_TABLE} WHERE id >= ? ORDER BY id LIMIT {range_size}"
        statements.append(_statement("range", sql, IntegerValues(high=table_size - range_size + 1)))
    if shape.sums:
        sql = f"SELECT SUM(k) FROM {_TABLE} WHERE id BETWEEN ? AND ? + {shape.sum_rows - 1}"
        range_start = IntegerValues(high=table_size - shape.sum_rows + 1)
        statements.append(_statement("total", sql, range_start, SameValue(statement="total", index=0)))
    if shape.index_updates:
        update = _statement("update", f"UPDATE {_TABLE} SET k = k + 1 WHERE id = ?", row_id)
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
    shape: PageShape = PAGES.of(plan)[PAGE.level_in(arm.factors)]
    return PageSpec(
        round_trips=shape.round_trips_by_service(sql),
        keys=shape.keys_by_store,
        app_cpu_ns=max(
            APP_CPU_NS.level_in(arm.factors) - shape.round_trips, 0
        ),  # each part is rounded down to whole nanoseconds
        per_page=_connects_per_page(arm.factors),
        commits=shape.rounds if shape.index_updates else 0,
    )


def find_page_mismatches(spec: PageSpec, job: PageJob, finished: Finished) -> tuple[Violation, ...]:
    """Differences between pages and their specification. Any difference makes a trial void."""
    if isinstance(job.application, FastCgi):
        return (*_find_unreported_pages(finished), *_find_reported_differences(spec, finished))
    return (*_find_counted_differences(spec, finished), *_find_missing_cpu_time(spec, finished))


def _find_unreported_pages(finished: Finished) -> tuple[Violation, ...]:
    """A violation if pages reported nothing about themselves. The client that requested them counts them as good."""
    reported = next((histogram.count for histogram in finished.histograms if histogram.kind == "told.wall_ns"), 0)
    if reported == finished.transactions:
        return ()
    return (violation("pages-without-report", reported=reported, pages=finished.transactions),)


def _find_reported_differences(spec: PageSpec, finished: Finished) -> list[Violation]:
    reported, pages = finished.app_counters, finished.transactions
    differences: list[Violation] = []
    for service, expected in spec.round_trips_of(pages).items():
        round_trips = reported.get(f"{service}_turns", 0) - reported.get(f"{service}_checks", 0)
        differences += _compare("page-round-trips", pages, round_trips, expected, service=service)
        if spec.per_page:
            connections = reported.get(f"{service}_connects", 0)
            differences += _compare("page-connections", pages, connections, pages, service=service)
    differences += check_misses(reported.get("misses", 0))
    differences += _compare("page-keys", pages, reported.get("hits", 0), sum(spec.keys_of(pages).values()))
    if (computed_ns := reported.get("app_cpu_ns", 0)) < spec.app_cpu_ns * pages:
        times = {"computed_ns": computed_ns, "requested_ns": spec.app_cpu_ns * pages}
        differences.append(violation("pages-computed-less", pages=pages, **times))
    if computed_ns > reported.get("cpu_ns", computed_ns):
        times = {"computed_ns": computed_ns, "cpu_ns": reported["cpu_ns"]}
        differences.append(violation("pages-computed-more", pages=pages, **times))
    return differences


def _find_counted_differences(spec: PageSpec, finished: Finished) -> list[Violation]:
    pages, use_by_service = finished.transactions, {use.service: use for use in finished.services}
    differences: list[Violation] = []
    for service, expected in spec.round_trips_of(pages).items():
        use = use_by_service.get(service)
        round_trips, connections = (use.round_trips, use.connects or 0) if use else (0, 0)
        differences += _compare("page-round-trips", pages, round_trips, expected, service=service)
        if spec.per_page:
            differences += _compare("page-connections", pages, connections, pages, service=service)
    differences += check_misses(sum(use.misses for use in finished.services))
    hits = sum(use.hits for use in finished.services)
    return [*differences, *_compare("page-keys", pages, hits, sum(spec.keys_of(pages).values()))]


def _find_missing_cpu_time(spec: PageSpec, finished: Finished) -> tuple[Violation, ...]:
    cpu_histogram = next((histogram for histogram in finished.histograms if histogram.kind == "cpu"), None)
    if not spec.app_cpu_ns or not finished.transactions:
        return ()
    mean_ns = 0.0 if cpu_histogram is None else cpu_histogram.mean_ns
    if mean_ns >= spec.app_cpu_ns * _HISTOGRAM_PRECISION:
        return ()
    return (violation("page-computed-less", computed_ns=mean_ns, requested_ns=spec.app_cpu_ns),)


def _compare(id: str, pages: int, count: int, expected: int, **parameters: str) -> tuple[Violation, ...]:
    """The violation `id` if the counts of these pages differ: `50 pages made 149 round trips to mysql instead of 150`."""
    return () if count == expected else (violation(id, pages=pages, counted=count, expected=expected, **parameters),)


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
    return sum(finished.app_counters.get(f"{service}_ns", 0) for service in reported) / max(sum(reported.values()), 1)


def _reported_round_trips(finished: Finished) -> dict[str, int]:
    """Round trips by service, as an application's pages reported them."""
    suffix = "_turns"
    return {name.removesuffix(suffix): count for name, count in finished.app_counters.items() if name.endswith(suffix)}


LOADS = (PageLoad,)
