"""The workload `page`: a request to an application, with round trips to SQL servers and key-value stores.

A round trip is one request and its answer. The statements and keys themselves are made in `load.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from howfar.errors import PlanError
from howfar.experiments.page.factors import KIND, NO_PAGE, ShapeName
from howfar.paths import is_local
from howfar.plan.factors import factor_refusal
from howfar.plan.kinds import KEYS_PER_MULTI_GET, Operation, PlanTable, WorkloadKind, refuse_sql_factors
from howfar.plan.quantities import PlanPart, refusal
from howfar.services import ServiceName

if TYPE_CHECKING:
    from howfar.plan.types import Plan, StoredPlan

MAX_IN_FLIGHT = 1024
_MAX_ROUND_TRIPS = 100_000
_MAX_PER_ROUND = 500

Count = Annotated[int, Field(ge=0, le=1000)]


class PageShape(PlanPart):
    """The queries of one request to the application, in equal rounds. The factor `app_cpu` is additional CPU time of the application,
    in equal parts after each round trip; for that, a transaction counts as one round trip."""

    rounds: int = Field(default=1, ge=1, le=1000)
    point_selects: Count = 0
    """Selects of a row by its id. A page reads and writes the first table of `Data`."""
    simple_ranges: Count = 0
    """Ranges of `range_size` rows."""
    sums: Count = 0
    """Sums over `sum_rows` rows: much work for the database, but one row for the application."""
    sum_rows: int = Field(default=1000, ge=1)
    redis_gets: Count = 0
    redis_multi_gets: Count = 0
    """Gets of ten keys."""
    memcached_gets: Count = 0
    index_updates: Count = 0
    """Updates in one transaction: BEGIN and COMMIT are round trips too."""

    @model_validator(mode="after")
    def _check_round_trips(self) -> Self:
        if not 1 <= self.round_trips <= _MAX_ROUND_TRIPS:
            raise refusal(f"{self.round_trips} round trips: a page takes from one to {_MAX_ROUND_TRIPS}")
        if self.round_trips // self.rounds > _MAX_PER_ROUND:
            raise refusal(
                f"{self.round_trips // self.rounds} round trips in a round: at most {_MAX_PER_ROUND}; use more rounds"
            )
        return self

    def round_trips_by_service(self, sql: ServiceName = "mysql") -> dict[ServiceName, int]:
        """Round trips of a page to each service that it needs. `sql`: the service that statements go to."""
        statements = (
            self.point_selects + self.simple_ranges + self.sums + (self.index_updates + 2 if self.index_updates else 0)
        )
        round_trips: dict[ServiceName, int] = {
            sql: statements,
            "redis": self.redis_gets + self.redis_multi_gets,
            "memcached": self.memcached_gets,
        }
        return {service: self.rounds * count for service, count in round_trips.items() if count}

    @property
    def keys_by_store(self) -> dict[ServiceName, int]:
        """Number of keys that a page looks up, by store."""
        keys: dict[ServiceName, int] = {
            "redis": self.redis_gets + KEYS_PER_MULTI_GET * self.redis_multi_gets,
            "memcached": self.memcached_gets,
        }
        return {store: self.rounds * count for store, count in keys.items() if count}

    @property
    def round_trips(self) -> int:
        return sum(self.round_trips_by_service().values())

    def describe(self, range_size: int) -> str:
        """The page in words: `10 rounds of 12 point selects, 5 Redis gets: 170 round trips`."""
        kinds = (
            (self.point_selects, "point select"),
            (self.simple_ranges, f"range of {range_size} rows"),
            (self.sums, f"sum over {self.sum_rows} rows"),
            (self.redis_gets, "Redis get"),
            (self.redis_multi_gets, f"Redis get of {KEYS_PER_MULTI_GET} keys"),
            (self.memcached_gets, "Memcached get"),
            (self.index_updates, "update in a transaction"),
        )
        queries = ", ".join(f"{count} x {kind}" for count, kind in kinds if count)
        prefix = "" if self.rounds == 1 else f"{self.rounds} rounds of "
        return f"{prefix}{queries}: {self.round_trips} round trips"


PAGES: PlanTable[PageShape] = PlanTable("pages", ShapeName, PageShape, (KIND,))
"""Shapes by the levels of the factor `page`."""
TABLES = (PAGES,)


def _check(plan: Plan) -> None:
    refuse_sql_factors(plan)
    factors, pages = plan.factors, PAGES.of(plan)
    known = ", ".join(pages) or "none"
    if factors.page == (NO_PAGE,):
        raise factor_refusal("page", f"the workload page needs a page: name a shape of [pages] (there: {known})")
    for name in factors.page:
        if name not in pages:
            raise factor_refusal("page", f"there is no [pages.{name}] (there: {known})")
    if factors.placement != ("machines",):
        reason = 'pages need placement = "machines": otherwise one machine would have the CPUs of two'
        raise factor_refusal("placement", reason)
    if factors.tls != ("off",):
        reason = "pages are plain: PHP's Memcached cannot encrypt, nor can the server on a socket"
        raise factor_refusal("tls", reason)
    if plan.data.tables != 1:
        raise refusal("a page reads one table: tables = 1 in [data]", "data", "tables")
    ranges: dict[tuple[str, ...], int] = {("workload", "range_size"): plan.workload.range_size}
    ranges |= {("pages", name, "sum_rows"): pages[name].sum_rows for name in factors.page if pages[name].sums}
    for location, rows in ranges.items():
        if rows > plan.data.table_size:
            raise refusal(f"a range of {rows} rows is more than the table has", *location)
    if max(factors.threads) > MAX_IN_FLIGHT:
        reason = f"at most {MAX_IN_FLIGHT} pages in flight: each has its own process or thread"
        raise factor_refusal("threads", reason)


def _check_cpus(plan: Plan, cpus: int) -> None:
    """Refuse pages on two machines if both have to share one CPU: the second machine could only be slower. Raises PlanError."""
    remote_paths = [path for path in plan.factors.path if not is_local(path)]
    if remote_paths and cpus < 2:
        raise PlanError(
            f"plan {plan.name} compares one machine with two ({', '.join(remote_paths)}), but there is only one CPU for both:"
            " the second machine would add none",
            "Allow howfar at least two CPUs, or name only the paths socket and tcp, in a plan of your own.",
        )


def _describe(plan: StoredPlan) -> str:
    """Pages with their round trips; just `pages` if the plan is damaged."""
    pages = PAGES.of_stored(plan) or {}
    range_size = plan.workload.range_size if plan.workload else 0
    described = [f"{name} page: {shape.describe(range_size)}" for name, shape in pages.items() if shape]
    if len(described) < len(pages):
        return PAGE_OPERATION.plural
    rows = f"table of {plan.data.table_size if plan.data else '?'} rows, drawn evenly"
    keys = plan.keys.describe() if plan.keys else "? keys with values of ? bytes, drawn evenly"
    return "; ".join([*described, rows, keys])


PAGE_OPERATION = Operation("page", "pages", is_composite=True, in_progress="{levels} page{several:?s} in flight")
WORKLOADS = (
    WorkloadKind(
        KIND,
        used_options=frozenset({"range_size"}),
        used_keys=frozenset({"count", "value_bytes"}),
        prepares=False,
        operation=PAGE_OPERATION,
        takes_rate=False,
        is_application=True,
        extra_servers_ns=800_000_000,
        check=_check,
        check_cpus=_check_cpus,
        describe=_describe,
    ),
)
