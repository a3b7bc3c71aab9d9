"""A plan: one experiment as a frozen value. Read from TOML by `load.py`; cells and blocks are derived from it by `cells.py`.

The names in TOML (`rtt`, `measure`) carry their unit in the value; the fields here carry it in the name (`rtt_ns`, `measure_ns`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    StrictBool,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)

from howfar.paths import is_direct, is_local
from howfar.plan import engine_limits as limits
from howfar.plan.distances import fits, pairs
from howfar.plan.factors import (
    CLOSED,
    CLUSTER_FAULTS,
    CLUSTER_ONLY_FAULTS,
    CLUSTERS,
    FACTORS,
    IDLE,
    LOAD,
    REPLICA_FACTORS,
    ROW_BYTES,
    SEMI_SYNC,
    SHORT_ROW,
    SYNCHRONOUS_COMMIT_OFF,
    FactorLevels,
    ShapeName,
    baseline_model_of,
    factor_refusal,
    level_of,
    levels_model_of,
)
from howfar.plan.page import Keys, PageShape, check_pages
from howfar.plan.quantities import STORED, BudgetNs, HalfWidth, MeasureNs, PlanPart, WarmupNs, refusal


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


WorkloadKind = Literal[
    "oltp_read_only",
    "oltp_read_write",
    "oltp_write_only",
    "oltp_point_select",
    "oltp_insert",
    "oltp_update_index",
    "oltp_update_non_index",
    "oltp_delete",
    "select_random_points",
    "select_random_ranges",
    "bulk_insert",
    "single_row_inserts",
    "single_row_updates",
    "page",
    "key_value",
]
"""Sysbench's kinds are the engine's (`contract.messages.SysbenchKind`; a test compares the two). Kinds that write leave the tables
changed for later trials, so inserted and deleted rows accumulate over a run; in cells with replication each trial has fresh tables.
`single_row_inserts`: one row per transaction into a separate table, keys drawn by the clients, autocommit. `single_row_updates`:
each transaction adds one to a row, the same for all clients of a node. `page`: one request to an application, with round trips to
MySQL, Redis and Memcached (`page.py`). `key_value`: commands to Redis or Memcached alone."""


READS_ONLY: frozenset[WorkloadKind] = frozenset(
    {"oltp_read_only", "oltp_point_select", "select_random_points", "select_random_ranges", "key_value"}
)
"""Kinds whose transactions leave nothing to commit. For a page, its shape decides."""


class Workload(PlanPart):
    """One of sysbench's workloads, with sysbench's option names and 1.0 defaults; the tables are in `Data`. Options that a kind does
    not use are ignored, as sysbench does."""

    kind: WorkloadKind = "oltp_read_only"
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
USED_OPTIONS: Mapping[str, frozenset[str]] = {
    "oltp_read_only": _STATEMENTS | _READS | {"skip_trx"},
    "oltp_read_write": _STATEMENTS | _READS | _WRITES | {"skip_trx"},
    "oltp_write_only": _STATEMENTS | _WRITES | {"skip_trx"},
    "oltp_point_select": _STATEMENTS,
    "oltp_insert": frozenset({"distribution"}),
    "oltp_update_index": _STATEMENTS | {"index_updates"},
    "oltp_update_non_index": _STATEMENTS | {"non_index_updates"},
    "oltp_delete": _STATEMENTS,
    "select_random_points": _STATEMENTS,
    "select_random_ranges": _STATEMENTS,
    "bulk_insert": frozenset(),
    "single_row_inserts": frozenset(),
    "single_row_updates": frozenset(),
    "page": frozenset({"range_size"}),
    "key_value": frozenset(),
}
"""Options of the table `workload` that each kind uses. It ignores the others."""
USED_KEYS: Mapping[str, frozenset[str]] = {
    "page": frozenset({"count", "value_bytes"}),
    "key_value": frozenset(Keys.model_fields),
}
"""Entries of the table `keys` that kinds use. Other kinds use none."""

MINORITY_OF_TWO = 4
"""Minimum number of replicas with which two nodes of a cluster are a minority."""
FALLBACK_NS = 25_000_000_000
"""The shortest window for a replica that leaves and returns under the servers' own timeout of 10 s."""

MAX_BLOCKS = 1000


class Factors(PlanPart):
    """Factors that are varied or held: every combination of levels is a cell. Its fields are those of the registry."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def varied(self) -> list[str]:
        return [name for name in type(self).model_fields if len(getattr(self, name)) > 1]


class LeftOut(Factors):
    """Cells that are not measured: those that have one of the given levels for every factor named here."""

    @model_validator(mode="after")
    def _check_names_factor(self) -> Self:
        if not self.model_fields_set:
            raise refusal("an empty table: it would leave out every cell")
        return self

    @model_serializer(mode="wrap")
    def _serialize_named_factors(self, plain: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {name: levels for name, levels in plain(self).items() if name in self.model_fields_set}

    def matches(self, cell: FactorLevels) -> bool:
        return all(level_of(cell, name) in getattr(self, name) for name in self.model_fields_set)


class Baseline(PlanPart):
    """The cell that every other one is compared with. It names enough factors to single out one cell."""


def _registry_validator(model: Any) -> WrapValidator:
    """A validator by the present model of the registry. In a run file, fields are stored by name, not by alias."""

    def validate(value: Any, _: Any, info: ValidationInfo) -> Any:
        model_class = model()
        if isinstance(value, model_class):
            return value
        stored = bool(info.context and info.context.get("stored"))
        return model_class.model_validate(value, context=info.context, by_alias=not stored, by_name=stored)

    return WrapValidator(validate)


def factors_model() -> type[Factors]:
    """Model of the table `[factors]`, with the factors that are in the registry now."""
    return levels_model_of(Factors)


def left_out_model() -> type[LeftOut]:
    """Model of a table of `[[leave_out]]`."""
    return levels_model_of(LeftOut, is_leave_out=True)


def baseline_model() -> type[Baseline]:
    """Model of `[baseline]`."""
    return baseline_model_of(Baseline)


def table_model(table: Any) -> Any:
    """The model of a table: of a table whose fields are factors, with the factors that are in the registry now."""
    build_model = {Factors: factors_model, LeftOut: left_out_model, Baseline: baseline_model}.get(table)
    return table if build_model is None else build_model()


class Timing(PlanPart):
    """Duration, number of repetitions and end of a run."""

    warmup_ns: WarmupNs = Field(default=3_000_000_000, alias="warmup")
    measure_ns: MeasureNs = Field(default=20_000_000_000, alias="measure")
    min_blocks: int = Field(default=8, ge=2, le=MAX_BLOCKS)
    max_blocks: int = Field(default=30, ge=2, le=MAX_BLOCKS)
    target_half_width: HalfWidth = Field(default=0.02, alias="target")
    """Target for every headline ratio and the A/A arm, as a share: the run ends when all are at most this wide."""
    time_budget_ns: BudgetNs = Field(default=7_200_000_000_000, alias="time_budget")
    """Time budget of the whole command, laboratory and report included."""
    confirm: StrictBool = False
    """Whether to change, after the blocks, the resources that were named as limits, and check that throughput changes as predicted."""

    controls: StrictBool | Literal["same"] = True
    """Whether to measure the instrument's own bias over a link in each block: a cell twice, and with a known longer RTT; `same`:
    only the cell twice."""

    @model_validator(mode="after")
    def _check_block_counts(self) -> Self:
        if self.max_blocks < self.min_blocks:
            raise refusal(f"max_blocks {self.max_blocks} is less than min_blocks {self.min_blocks}")
        return self


class Plan(PlanPart):
    """One experiment, resolved: after `[quick]` and command line options."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    question: str = Field(min_length=1, max_length=200)
    """The question that the run answers, in one sentence."""
    workload: Workload
    data: Data = Data()
    factors: SerializeAsAny[Annotated[Factors, _registry_validator(factors_model)]]
    baseline: SerializeAsAny[Annotated[Baseline, _registry_validator(baseline_model)]]
    timing: Timing = Timing()
    pages: dict[ShapeName, PageShape] = Field(default_factory=dict)
    """Shapes by the levels of the factor `page`."""
    keys: Keys = Keys()
    leave_out: tuple[SerializeAsAny[Annotated[LeftOut, _registry_validator(left_out_model)]], ...] = ()

    @model_validator(mode="after")
    def _check_pages(self) -> Self:
        check_pages(self)
        return self

    @model_validator(mode="after")
    def _check_replication(self) -> Self:
        factors, without_replica = self.factors, set(self.factors.replication) <= {"off", "none"}
        if without_replica and factors.fault != ("none",):
            raise factor_refusal(
                "fault", "a fault needs a replica that takes over: name a mode of replication that has one"
            )
        meaningless = [
            *(REPLICA_FACTORS if without_replica else ()),
            *(("durability",) if factors.replication == ("off",) else ()),
        ]
        for name in meaningless:
            factor = FACTORS[name]
            if getattr(factors, name) != (factor.default,):
                raise factor_refusal(name, f"{factor.key} does not apply without replication: name a mode that has it")
        if set(factors.replication) & set(SEMI_SYNC) and min(factors.wait_for) > max(factors.replicas):
            raise factor_refusal(
                "wait_for", f"a commit cannot wait for {min(factors.wait_for)} of {max(factors.replicas)} replicas"
            )
        for level, replicas in product(factors.distances, factors.replicas):
            if not fits(level, replicas + 1):
                raise factor_refusal(
                    "distances", f"distances {level!r}: {replicas + 1} servers have {len(pairs(replicas + 1))} pairs"
                )
        return self

    @model_validator(mode="after")
    def _check_workload(self) -> Self:
        kind = self.workload.kind
        if self.factors.load != (CLOSED,) and (kind == "page" or self.factors.fault != ("none",)):
            raise factor_refusal(
                "load",
                "a load at a rate of its own needs transactions: it is not for pages, nor where something breaks",
            )
        if self.factors.fault != ("none",) and kind != "single_row_inserts":
            raise factor_refusal(
                "fault", "a fault needs the workload single_row_inserts: its clients log the keys that are looked for"
            )
        if self.factors.row_bytes != (ROW_BYTES.ordinary,) and kind != "single_row_inserts":
            raise factor_refusal("row_bytes", "the size of a row applies only to the workload single_row_inserts")
        return self

    @model_validator(mode="after")
    def _check_writers(self) -> Self:
        factors = self.factors
        if factors.writers == ("one",):
            return self
        if self.workload.kind != "single_row_updates":
            raise factor_refusal(
                "writers", "two writers need the workload single_row_updates: only there is it known whose row is whose"
            )
        if not all(is_direct(path, 1, by_socket=True) for path in factors.path) or factors.load != (CLOSED,):
            raise factor_refusal(
                "writers", "two writers are clients on their nodes' own machines, in a closed loop: path = 'socket'"
            )
        return self

    @model_validator(mode="after")
    def _check_faults(self) -> Self:
        faults, clusters = set(self.factors.fault), set(self.factors.replication) & set(CLUSTERS)
        if clusters and faults - set(CLUSTER_FAULTS):
            raise factor_refusal("fault", f"the faults of a cluster are {', '.join(CLUSTER_FAULTS)}")
        if clusters and faults != {"none"} and min(self.factors.replicas) < 2:
            raise factor_refusal(
                "replicas", "no cluster of two nodes goes on without one of them: give it replicas = 2 or more"
            )
        if "partition" in faults and min(self.factors.replicas) < MINORITY_OF_TWO:
            raise factor_refusal(
                "replicas", f"partition cuts two nodes off from the majority: give it replicas = {MINORITY_OF_TWO}"
            )
        single_primary_modes = set(self.factors.replication) - {"off", "none"} - clusters
        if single_primary_modes and (cluster_only := faults & set(CLUSTER_ONLY_FAULTS)):
            raise factor_refusal(
                "fault",
                f"{', '.join(sorted(cluster_only))} needs a cluster, and {', '.join(sorted(single_primary_modes))} is not one",
            )
        if "replica-leaves" not in self.factors.fault:
            return self
        if set(self.factors.replication) & {"async", SYNCHRONOUS_COMMIT_OFF}:
            raise factor_refusal(
                "fault", "replica-leaves needs an acknowledgement to fall back from: asynchronous replication has none"
            )
        if self.timing.measure_ns < FALLBACK_NS:
            raise refusal(
                f"replica-leaves needs measure = '{FALLBACK_NS // 10**9}s' or more: the replica leaves, is away beyond the "
                "servers' timeout, and returns",
                "timing",
                "measure",
            )
        return self


PlanJson = dict[str, Any]
"""A plan as kept in a run file: `Plan.model_dump(mode="json")`."""


def restore_plan(stored: PlanJson) -> Plan:
    """The plan kept in a run file, to measure more of it."""
    factors = {IDLE.name: [IDLE.ordinary], LOAD.name: [LOAD.ordinary], **stored["factors"]}  # older files lack these
    return Plan.model_validate({**stored, "factors": factors}, context=STORED, by_alias=False, by_name=True)


def _none_if_invalid(value: object, read: ValidatorFunctionWrapHandler) -> object:
    try:
        return read(value)
    except ValidationError:
        return None


T = TypeVar("T")
_OptionalPart = Annotated[T | None, WrapValidator(_none_if_invalid)]
"""A part of a stored plan. None: the plan lacks it, or it is malformed."""


class StoredLevels(BaseModel, frozen=True):
    """Levels of the factors that a report's description of the workload needs."""

    replication: tuple[str, ...] = ("off",)
    durability: tuple[str, ...] = ("strict",)
    row_bytes: tuple[int, ...] = (SHORT_ROW,)


class StoredPlan(BaseModel, frozen=True):
    """The parts of a plan in a run file that reports need. They must be readable even if the plan can no longer be measured."""

    question: _OptionalPart[str] = None
    workload: _OptionalPart[Workload] = None
    data: _OptionalPart[Data] = None
    timing: _OptionalPart[Timing] = None
    keys: _OptionalPart[Keys] = None
    pages: _OptionalPart[dict[str, _OptionalPart[PageShape]]] = None
    factors: _OptionalPart[StoredLevels] = None


def parse_stored_plan(plan: PlanJson) -> StoredPlan:
    """The plan kept in a run file, to report it."""
    return StoredPlan.model_validate(plan, context=STORED, by_alias=False, by_name=True)


def local_plan(plan: Plan) -> Plan:
    """The plan with only those of its paths that cross no link; unchanged if there are none."""
    local = tuple(path for path in plan.factors.path if is_local(path))
    if not local:
        return plan
    return plan.model_copy(update={"factors": plan.factors.model_copy(update={"path": local})})
