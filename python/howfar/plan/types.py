"""A plan: one experiment as a frozen value. Read from TOML by `load.py`; cells and blocks are made of it by `cells.py`.

The names in TOML (`rtt`, `measure`) carry their unit in the value; the fields here carry it in the name (`rtt_ns`, `measure_ns`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, model_validator

from howfar.plan.quantities import STORED, BudgetNs, HalfWidth, MeasureNs, RateBps, RttNs, WarmupNs, refuse

ORDINARY: dict[str, str | int] = {
    "tls": "off",
    "compression": "off",
    "connect": "persistent",
    "content": "digits",
    "replication": "off",
    "durability": "strict",
    "replicas": 1,
    "wait_for": 1,
    "replica_tls": "off",
    "replica_compression": "off",
    "fault": "none",
}
"""What a cell is where its factors do not say: such a level is not written into a cell of a plan that does not vary it."""


def breaks(factors: Mapping[str, object]) -> bool:
    """Something is broken on purpose in this cell."""
    return factors.get("fault", ORDINARY["fault"]) != "none"


REPLICA_FACTORS = ("replica_rtt_ns", "replica_rate_bps", "replicas", "wait_for", "replica_tls", "replica_compression")
"""They mean nothing where there is no replica."""

SEMI_SYNC: dict[str, str] = {"after-sync": "AFTER_SYNC", "after-commit": "AFTER_COMMIT"}
"""Levels of `replication` with an acknowledgement, and the wait point that servers call so."""

PathName = Literal["socket", "tcp", "remote", "forwarded-socket"]
LOCAL_PATHS: frozenset[str] = frozenset({"socket", "tcp"})
"""Paths that pass no link: a delay or a rate means nothing on them."""

Placement = Literal["isolated", "machines"]

FALLBACK_NS = 25_000_000_000
"""The shortest window for a replica that leaves and returns under the servers' own timeout of 10 s (`conduct/fault/fallback.py`)."""

MAX_THREADS = 4096
MOST_BLOCKS = 1000


class Part(BaseModel):
    """Frozen and closed: a misspelt key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _levels(value: Any) -> Any:
    """One level may be written without a list. Levels are distinct, in the order written."""
    levels = list(value) if isinstance(value, list | tuple) else [value]
    if not levels:
        raise refuse("an empty list: a factor needs at least one level")
    for index, level in enumerate(levels):
        if level in levels[:index]:
            raise refuse(f"{level!r} is there twice; a factor's levels are distinct")
    return tuple(levels)


_OneOrMore = BeforeValidator(_levels)


def _threads(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise refuse("without at least one connection nothing is measured")
        if value > MAX_THREADS:
            raise refuse(f"more than {MAX_THREADS}: the server would measure its own queue")
    return value


Threads = Annotated[int, BeforeValidator(_threads), Field(strict=True)]
ServerChoice = Annotated[str, Field(min_length=1)]


Tls = Literal["off", "1.2", "1.3", "1.3-resumed"]
"""`1.3-resumed`: later connections resume the session of an earlier one; all other handshakes are full ones."""


def tls_words(level: object) -> str:
    """`TLS 1.3 resumed`: a level in a sentence or a table."""
    return f"TLS {str(level).replace('-', ' ')}"


Connect = Literal["persistent", "per-transaction"]
Content = Literal["digits", "text", "incompressible"]
"""What the tables hold: sysbench's digits, words as people write them, bytes in which nothing repeats."""


def _compression(value: Any) -> Any:
    if isinstance(value, str) and not _ALGORITHM.fullmatch(value):
        raise refuse("compression is off, zlib, zlib-1 to zlib-9, zstd, or zstd-1 to zstd-22")
    return value


_ALGORITHM = re.compile(r"off|zlib(-[1-9])?|zstd(-([1-9]|1[0-9]|2[0-2]))?")
Compression = Annotated[str, BeforeValidator(_compression)]
"""Algorithm and level, as `zstd-3`. The level of zlib is the client's; servers compress their answers at their own."""


Replication = Literal["off", "none", "async", "after-sync", "after-commit"]
"""`off`: no binary log, as where the path is the question. `none`: a primary alone that writes one, so that a replica is all that the
others differ in from it. The last two are semi-synchronous, by their wait point."""
Durability = Literal["strict", "relaxed", "off"]
"""Of primary and replicas (`lab/replication/asked.py`). Without a binary log it is the server's own."""
Fault = Literal["none", "kill-primary", "cut", "cut-to-replica", "cut-to-primary", "stop-replica", "replica-leaves"]
"""`kill-primary` to `stop-replica`: something breaks under load, the primary dies, the replica takes over and is asked what it has.
`replica-leaves`: timeouts are the server's own, the replica goes and comes back."""


def _count(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= MAX_REPLICAS:
        raise refuse(f"from 1 to {MAX_REPLICAS} replicas, each on a link of its own")
    return value


MAX_REPLICAS = 9
Replicas = Annotated[int, BeforeValidator(_count), Field(strict=True)]
ReplicaTls = Literal["off", "on"]
ReplicaCompression = Literal["off", "zlib", "zstd"]


class Factors(Part):
    """What is varied, and what is held: every combination of levels is a cell."""

    path: Annotated[tuple[PathName, ...], _OneOrMore]
    threads: Annotated[tuple[Threads, ...], _OneOrMore] = (2,)
    placement: Annotated[tuple[Placement, ...], _OneOrMore] = ("isolated",)
    server: Annotated[tuple[ServerChoice, ...], _OneOrMore] = ("mariadb",)
    """`mariadb`, `mysql`, the name of a private install, or the path of a server program."""
    rtt_ns: Annotated[tuple[RttNs, ...], _OneOrMore] = Field(default=(200_000,), alias="rtt")
    rate_bps: Annotated[tuple[RateBps, ...], _OneOrMore] = Field(default=(10**9,), alias="rate")
    tls: Annotated[tuple[Tls, ...], _OneOrMore] = ("off",)
    compression: Annotated[tuple[Compression, ...], _OneOrMore] = ("off",)
    connect: Annotated[tuple[Connect, ...], _OneOrMore] = ("persistent",)
    content: Annotated[tuple[Content, ...], _OneOrMore] = ("digits",)
    replication: Annotated[tuple[Replication, ...], _OneOrMore] = ("off",)
    replica_rtt_ns: Annotated[tuple[RttNs, ...], _OneOrMore] = Field(default=(85_000_000,), alias="replica_rtt")
    """Of the link between the primary and each replica; `rtt` is the clients'."""
    replica_rate_bps: Annotated[tuple[RateBps, ...], _OneOrMore] = Field(default=(10**9,), alias="replica_rate")
    durability: Annotated[tuple[Durability, ...], _OneOrMore] = ("strict",)
    replicas: Annotated[tuple[Replicas, ...], _OneOrMore] = (1,)
    wait_for: Annotated[tuple[Replicas, ...], _OneOrMore] = (1,)
    """Replicas whose acknowledgement a semi-synchronous commit needs."""
    replica_tls: Annotated[tuple[ReplicaTls, ...], _OneOrMore] = ("off",)
    replica_compression: Annotated[tuple[ReplicaCompression, ...], _OneOrMore] = ("off",)
    fault: Annotated[tuple[Fault, ...], _OneOrMore] = ("none",)


class Baseline(Part):
    """Which cell every other one is compared with. Name as many factors as single it out."""

    path: PathName | None = None
    threads: int | None = None
    placement: Placement | None = None
    server: str | None = None
    rtt_ns: RttNs | None = Field(default=None, alias="rtt")
    rate_bps: RateBps | None = Field(default=None, alias="rate")
    tls: Tls | None = None
    compression: Compression | None = None
    connect: Connect | None = None
    content: Content | None = None
    replication: Replication | None = None
    replica_rtt_ns: RttNs | None = Field(default=None, alias="replica_rtt")
    replica_rate_bps: RateBps | None = Field(default=None, alias="replica_rate")
    durability: Durability | None = None
    replicas: int | None = None
    wait_for: int | None = None
    replica_tls: ReplicaTls | None = None
    replica_compression: ReplicaCompression | None = None
    fault: Fault | None = None


class Data(Part):
    """The tables, in sysbench's schema."""

    tables: int = Field(default=10, ge=1, le=1000)
    table_size: int = Field(default=1_000_000, ge=1, le=1_000_000_000)
    fit: StrictBool = False
    """Where memory does not hold such tables, the largest that fit; the run file says how large they were."""


class Distribution(Part):
    """How row ids are drawn; sysbench's names and meaning."""

    kind: Literal["uniform", "pareto", "special", "gaussian", "zipfian"] = "special"
    pareto_h: float = Field(default=0.2, gt=0, lt=1)
    spec_iter: int = Field(default=12, ge=1)
    spec_pct: int = Field(default=1, ge=1, le=100)
    spec_res: int = Field(default=75, ge=1, le=99)
    zipfian_exp: float = Field(default=0.8, ge=0)


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
]
"""Sysbench's are the engine's (`engine.workloads.SysbenchKind`; a test holds them together). Those that write leave the tables changed
for the trials after them, inserted and deleted rows add up over a run; in cells with replication each trial has fresh tables.
`single_row_inserts`: one short row a transaction into a table of its own, keys drawn by the clients, autocommit."""


READ_ONLY: frozenset[WorkloadKind] = frozenset(
    {"oltp_read_only", "oltp_point_select", "select_random_points", "select_random_ranges"}
)
"""Those whose transactions leave nothing to commit."""


class Workload(Part):
    """One of sysbench's workloads, with sysbench's option names and 1.0 defaults; the tables are in `Data`. Options that a kind does
    not use are ignored, as sysbench does."""

    kind: WorkloadKind = "oltp_read_only"
    range_size: int = Field(default=100, ge=1)
    point_selects: int = Field(default=10, ge=0)
    range_selects: bool = True
    simple_ranges: int = Field(default=1, ge=0)
    sum_ranges: int = Field(default=1, ge=0)
    order_ranges: int = Field(default=1, ge=0)
    distinct_ranges: int = Field(default=1, ge=0)
    index_updates: int = Field(default=1, ge=0)
    non_index_updates: int = Field(default=1, ge=0)
    delete_inserts: int = Field(default=1, ge=0)
    skip_trx: bool = False
    db_ps_mode: Literal["auto", "disable"] = "auto"
    distribution: Distribution = Distribution()

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        ranges = self.simple_ranges + self.sum_ranges + self.order_ranges + self.distinct_ranges
        reads = self.point_selects + (ranges if self.range_selects else 0)
        writes = self.index_updates + self.non_index_updates + self.delete_inserts
        asked = {"oltp_read_only": reads, "oltp_write_only": writes, "oltp_read_write": reads + writes}
        if asked.get(self.kind, 1) == 0:
            raise refuse("a transaction without a query measures nothing; set point_selects or a range kind")
        return self


class Timing(Part):
    """How long, how often, and when it is enough."""

    warmup_ns: WarmupNs = Field(default=3_000_000_000, alias="warmup")
    measure_ns: MeasureNs = Field(default=20_000_000_000, alias="measure")
    min_blocks: int = Field(default=8, ge=2, le=MOST_BLOCKS)
    max_blocks: int = Field(default=30, ge=2, le=MOST_BLOCKS)
    target_half_width: HalfWidth = Field(default=0.02, alias="target")
    """Of every headline ratio and of the A/A arm, as a share: the run ends when all are at most this wide."""
    time_budget_ns: BudgetNs = Field(default=7_200_000_000_000, alias="time_budget")
    """Of the whole command, laboratory and report included."""
    confirm: StrictBool = False
    """After the blocks, change the resources that were named as limits and see whether throughput moves as said."""

    @model_validator(mode="after")
    def _blocks_in_order(self) -> Self:
        if self.max_blocks < self.min_blocks:
            raise refuse(f"max_blocks {self.max_blocks} is less than min_blocks {self.min_blocks}")
        return self


class Plan(Part):
    """One experiment, resolved: after `[quick]` and command line options."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    question: str = Field(min_length=1, max_length=200)
    """One sentence: what the run answers."""
    workload: Workload
    data: Data = Data()
    factors: Factors
    baseline: Baseline
    timing: Timing = Timing()

    @model_validator(mode="after")
    def _replication_makes_sense(self) -> Self:
        factors, alone = self.factors, set(self.factors.replication) <= {"off", "none"}
        if alone and factors.fault != ("none",):
            raise refuse("a fault needs a replica that takes over: name a mode of replication that has one")
        idle = [*(REPLICA_FACTORS if alone else ()), *(("durability",) if factors.replication == ("off",) else ())]
        for name in idle:
            field = Factors.model_fields[name]
            if getattr(factors, name) != field.default:
                raise refuse(f"{field.alias or name} means nothing without replication: name a mode that has it")
        if set(factors.replication) & set(SEMI_SYNC) and min(factors.wait_for) > max(factors.replicas):
            raise refuse(f"a commit cannot wait for {min(factors.wait_for)} of {max(factors.replicas)} replicas")
        return self

    @model_validator(mode="after")
    def _faults_have_keys(self) -> Self:
        if self.factors.fault != ("none",) and self.workload.kind != "single_row_inserts":
            raise refuse("a fault needs the workload single_row_inserts: its clients log the keys that are looked for")
        return self

    @model_validator(mode="after")
    def _faults_can_be_done(self) -> Self:
        if "replica-leaves" not in self.factors.fault:
            return self
        if "async" in self.factors.replication:
            raise refuse("replica-leaves needs an acknowledgement to fall back from: asynchronous replication has none")
        if self.timing.measure_ns < FALLBACK_NS:
            raise refuse(
                f"replica-leaves needs measure = '{FALLBACK_NS // 10**9}s' or more: the replica leaves, is away beyond the "
                "servers' timeout, and returns"
            )
        return self


def restore_plan(stored: dict[str, Any]) -> Plan:
    """The plan as kept in a run file (`Plan.model_dump(mode="json")`)."""
    return Plan.model_validate(stored, context=STORED, by_alias=False, by_name=True)


def local_part(plan: Plan) -> Plan:
    """The plan with only those of its paths that pass no link; without any, as it is."""
    local = tuple(path for path in plan.factors.path if path in LOCAL_PATHS)
    if not local:
        return plan
    return plan.model_copy(update={"factors": plan.factors.model_copy(update={"path": local})})
