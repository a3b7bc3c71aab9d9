"""The concepts of workloads: their kinds, what they count, and the tables of a plan that only some of them have. The kinds themselves
are in `workload.py` and in the slices' modules `plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic import Field

from howfar.plan import engine_limits as limits
from howfar.plan.factors import FACTORS, factor_refusal
from howfar.plan.quantities import PlanPart

if TYPE_CHECKING:
    from howfar.plan.types import Plan, StoredPlan

T = TypeVar("T")


@dataclass(frozen=True)
class Operation:
    """What a load counts as done."""

    singular: str
    plural: str
    is_composite: bool = False
    """Whether a transaction of many queries is one operation, done by another program than the client. Rules for a load's sessions do
    not apply to it."""
    in_progress: str = "{levels} connection{several:?s}"
    """Template of what the threads of a load are."""


QUERY = Operation("query", "queries")


def _accept(*_: object) -> None:
    """No restriction."""


@dataclass(frozen=True)
class WorkloadKind:
    """A kind of workload: what a plan may combine it with, and what it counts. Its load is a `runner.loads.load.TrialLoad`."""

    name: str
    used_options: frozenset[str] = frozenset()
    """Options of the table `workload` that it uses. It ignores the others."""
    used_keys: frozenset[str] = frozenset()
    """Entries of the table `keys` that it uses. Empty: it needs no key-value store."""
    reads_only: bool = False
    """Whether its transactions leave nothing to commit."""
    reads_tables: bool = True
    """Whether the main server has tables. Otherwise it stores keys."""
    creates_tables: bool = False
    """Whether its tables are created again for each trial. Otherwise they are filled beforehand."""
    prepares: bool = True
    """Whether its statements can be prepared."""
    operation: Operation = QUERY
    takes_rate: bool = True
    """Whether its operations can be due at a given rate."""
    is_application: bool = False
    """Whether the client is an application, on one host, and may be called so."""
    extra_servers_ns: int = 0
    """Time of a trial to start other servers and an application."""
    check: Callable[[Plan], None] = _accept
    """Refuse a plan that makes no sense with this kind. Raises PydanticCustomError, which names the key concerned."""
    check_cpus: Callable[[Plan, int], None] = _accept
    """Refuse a plan that a machine with this number of usable CPUs cannot measure. Raises PlanError."""
    replaces: Callable[[Plan], Plan | None] = lambda plan: None
    """The plan with this kind in place of another, for a server that stores keys. None: there is no equivalent."""
    describe: Callable[[StoredPlan], str] | None = None
    """The workload in words. None: as sysbench's."""


@dataclass(frozen=True)
class PlanTable(Generic[T]):
    """A table of a plan that only some kinds of workload have: named tables of one model."""

    name: str
    key_type: Any
    """Names of its tables, as pydantic validates them."""
    model: type[PlanPart]
    kinds: tuple[str, ...]
    """Kinds of workload that have it."""

    def of(self, plan: Plan) -> Mapping[str, T]:
        """The tables of a plan."""
        return cast(Mapping[str, T], getattr(plan, self.name))

    def of_stored(self, plan: StoredPlan) -> Mapping[str, T | None] | None:
        """The tables of a stored plan. None: it has none that can be read; likewise each of them."""
        return cast(Mapping[str, T | None] | None, getattr(plan, self.name))


KEYS_PER_MULTI_GET = 10
"""Number of keys of a multi-get."""


class Keys(PlanPart):
    """Keys that Redis and Memcached hold, and, for loads of these alone, the weights of the commands."""

    count: int = Field(default=10_000, ge=1, le=100_000_000)
    value_bytes: int = Field(default=100, ge=0, le=1_000_000)
    get: limits.Get = 9
    set: limits.Set = 1
    multi_get: limits.MultiGet = 0
    """Weight of gets of ten keys."""
    pipeline: limits.Pipeline = 1
    """Commands sent at once."""

    def describe(self) -> str:
        """`10000 keys with values of 100 bytes, drawn evenly`."""
        return f"{self.count} keys with values of {self.value_bytes} bytes, drawn evenly"


def refuse_sql_factors(plan: Plan) -> None:
    """Refuse factors of SQL sessions, for a kind of workload that is not SQL alone. Raises PydanticCustomError."""
    for name, factor in FACTORS.items():
        if factor.sql_only_because and getattr(plan.factors, name) != (factor.default,):
            raise factor_refusal(name, f"{factor.sql_only_because}: the workload {plan.workload.kind} has none")
