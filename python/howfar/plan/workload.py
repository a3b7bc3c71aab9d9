"""The workload of a plan: the registry of its kinds, its options, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from howfar.plan import engine_limits as limits
from howfar.plan.kinds import Operation, PlanTable, WorkloadKind
from howfar.plan.quantities import PlanPart, refusal
from howfar.slices import collect

_STATEMENTS = frozenset({"db_ps_mode", "distribution"})
_READS = frozenset(
    {
        "range_size",
        "point_selects",
        "range_selects",
        "simple_ranges",
        "sum_ranges",
        "order_ranges",
        "distinct_ranges",
    }
)
_WRITES = frozenset({"index_updates", "non_index_updates", "delete_inserts"})
_SYSBENCH = (
    WorkloadKind("oltp_read_only", _STATEMENTS | _READS | {"skip_trx"}, reads_only=True),
    WorkloadKind("oltp_read_write", _STATEMENTS | _READS | _WRITES | {"skip_trx"}),
    WorkloadKind("oltp_write_only", _STATEMENTS | _WRITES | {"skip_trx"}),
    WorkloadKind("oltp_point_select", _STATEMENTS, reads_only=True),
    WorkloadKind("oltp_insert", frozenset({"distribution"})),
    WorkloadKind("oltp_update_index", _STATEMENTS | {"index_updates"}),
    WorkloadKind("oltp_update_non_index", _STATEMENTS | {"non_index_updates"}),
    WorkloadKind("oltp_delete", _STATEMENTS),
    WorkloadKind("select_random_points", _STATEMENTS, reads_only=True),
    WorkloadKind("select_random_ranges", _STATEMENTS, reads_only=True),
    WorkloadKind("bulk_insert"),
)
"""The workloads of sysbench, under the engine's names (`contract.messages.SysbenchKind`). Kinds that write leave the tables changed
for later trials, so inserted and deleted rows accumulate over a run, unless each trial has fresh tables."""
WORKLOADS: Mapping[str, WorkloadKind] = {
    kind.name: kind for kind in (*_SYSBENCH, *collect("plan", "WORKLOADS", WorkloadKind))
}
"""All kinds of workload, those of the slices included."""
OPERATIONS: Mapping[str, Operation] = {kind.operation.plural: kind.operation for kind in WORKLOADS.values()}
"""What loads count, by its plural."""

if TYPE_CHECKING:
    from howfar.plan.types import Plan

    KindName = str
    Unit = str
else:
    KindName = Literal[tuple(WORKLOADS)]
    Unit = Literal[tuple(OPERATIONS)]
"""`KindName`: a name in `WORKLOADS`. `Unit`: the plural of an operation."""
PLAN_TABLES: tuple[PlanTable[Any], ...] = collect("plan", "TABLES", PlanTable)
PLAN_CHECKS: tuple[Callable[[Plan], None], ...] = collect("plan", "CHECKS", FunctionType)
"""Checks of plans of any kind, for combinations of settings that make no sense. Each raises PydanticCustomError, which names the key
concerned."""


class Data(PlanPart):
    """The tables, in sysbench's schema."""

    tables: int = Field(default=10, ge=1, le=1000)
    table_size: int = Field(default=1_000_000, ge=1, le=1_000_000_000)
    fit: StrictBool = False
    """Whether to use the largest tables that fit if memory cannot hold these; the run file records their size."""


class RowDistribution(PlanPart):
    """How row ids are drawn; sysbench's names and meaning."""

    kind: Literal["uniform", "pareto", "special", "gaussian", "zipfian"] = "special"
    pareto_h: limits.ParetoH = 0.2
    spec_iter: limits.SpecIter = 12
    spec_pct: limits.SpecPct = 1
    spec_res: limits.SpecRes = 75
    zipfian_exp: limits.ZipfianExp = 0.8


class Workload(PlanPart):
    """One of sysbench's workloads, with sysbench's option names and 1.0 defaults; the tables are in `Data`. Options that a kind does
    not use are ignored, as sysbench does."""

    kind: KindName = "oltp_read_only"
    range_size: limits.RangeSize = 100
    point_selects: limits.PointSelects = 10
    range_selects: bool = True
    simple_ranges: limits.SimpleRanges = 1
    sum_ranges: limits.SumRanges = 1
    order_ranges: limits.OrderRanges = 1
    distinct_ranges: limits.DistinctRanges = 1
    index_updates: limits.IndexUpdates = 1
    non_index_updates: limits.NonIndexUpdates = 1
    delete_inserts: limits.DeleteInserts = 1
    skip_trx: bool = False
    db_ps_mode: Literal["auto", "disable"] = "auto"
    distribution: RowDistribution = RowDistribution()

    @property
    def ranges(self) -> int:
        """Number of range queries of all kinds."""
        ranges = self.simple_ranges + self.sum_ranges + self.order_ranges + self.distinct_ranges
        return ranges if self.range_selects else 0

    @model_validator(mode="after")
    def _check_has_query(self) -> Self:
        reads = self.point_selects + self.ranges
        writes = self.index_updates + self.non_index_updates + self.delete_inserts
        queries = {"oltp_read_only": reads, "oltp_write_only": writes, "oltp_read_write": reads + writes}
        if queries.get(self.kind, 1) == 0:
            raise refusal("a transaction without a query measures nothing; set point_selects or a range kind")
        return self
