"""A page in a plan: its round trips by kind, the keys that it reads, and the limits of a plan of pages or of keys.

A round trip is one request and its answer. The statements and keys themselves are made in `runner/loads/pages.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from howfar.plan.factors import FACTORS, NO_PAGE, factor_refusal
from howfar.plan.quantities import PlanPart, refusal
from howfar.services import ServiceName

if TYPE_CHECKING:
    from howfar.plan.types import Factors, Plan

MAX_IN_FLIGHT = 1024
_MAX_ROUND_TRIPS = 100_000
_MAX_PER_ROUND = 500
KEYS_PER_MULTI_GET = 10
"""Number of keys of a multi-get."""

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


class Keys(PlanPart):
    """Keys that Redis and Memcached hold, and, for the workload `key_value`, the weights of its commands."""

    count: int = Field(default=10_000, ge=1, le=100_000_000)
    value_bytes: int = Field(default=100, ge=0, le=1_000_000)
    get: int = Field(default=9, ge=0, le=1_000_000)
    set: int = Field(default=1, ge=0, le=1_000_000)
    multi_get: int = Field(default=0, ge=0, le=1_000_000)
    """Weight of gets of ten keys."""
    pipeline: int = Field(default=1, ge=1, le=1000)
    """Commands sent at once."""

    @model_validator(mode="after")
    def _check_commands(self) -> Self:
        if not (self.get or self.set or self.multi_get):
            raise refusal("some command needs a weight above 0")
        return self


def check_pages(plan: Plan) -> None:
    """Refuse pages and keys that make no sense. Raises PydanticCustomError, which names the key concerned."""
    kind, factors = plan.workload.kind, plan.factors
    if kind in ("page", "key_value"):
        _check_no_sql_factors(kind, factors)
    if kind == "page":
        _check_shapes(plan)
        return
    for name in ("page", "app_cpu_ns", "application"):
        key = FACTORS[name].key
        if getattr(factors, name) != (FACTORS[name].default,):
            raise factor_refusal(name, f"{key} does not apply to the workload {kind}: only the workload page has it")
    if plan.pages:
        raise refusal(f"[pages] does not apply to the workload {kind}: only the workload page has them", "pages")
    if kind != "key_value" and plan.keys != Keys():
        raise refusal(
            f"[keys] does not apply to the workload {kind}: only the workloads page and key_value have them", "keys"
        )


def _check_no_sql_factors(kind: str, factors: Factors) -> None:
    if factors.compression != ("off",):
        raise factor_refusal("compression", f"compression is part of MySQL's protocol: the workload {kind} has none")
    if factors.replication != ("off",):
        raise factor_refusal("replication", f"replication delays commits: the workload {kind} has none")
    if kind == "key_value" and factors.content != ("digits",):
        raise factor_refusal("content", "content applies to tables: the workload key_value has none")


def _check_shapes(plan: Plan) -> None:
    factors = plan.factors
    known = ", ".join(plan.pages) or "none"
    if factors.page == (NO_PAGE,):
        raise factor_refusal("page", f"the workload page needs a page: name a shape of [pages] (there: {known})")
    for name in factors.page:
        if name not in plan.pages:
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
    ranges |= {("pages", name, "sum_rows"): plan.pages[name].sum_rows for name in factors.page if plan.pages[name].sums}
    for location, rows in ranges.items():
        if rows > plan.data.table_size:
            raise refusal(f"a range of {rows} rows is more than the table has", *location)
    if max(factors.threads) > MAX_IN_FLIGHT:
        reason = f"at most {MAX_IN_FLIGHT} pages in flight: each has its own process or thread"
        raise factor_refusal("threads", reason)
