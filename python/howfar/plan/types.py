"""A plan: one experiment as a frozen value. Read from TOML by `load.py`; cells and blocks are made of it by `cells.py`.

The names in TOML (`rtt`, `measure`) carry their unit in the value; the fields here carry it in the name (`rtt_ns`, `measure_ns`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    model_serializer,
    model_validator,
)

from howfar.plan.page import NO_PAGE, Application, Keys, PageShape, ShapeName, check_pages
from howfar.plan.part import OneOrMore, Part
from howfar.plan.quantities import STORED, AppCpuNs, BudgetNs, HalfWidth, MeasureNs, RateBps, RttNs, WarmupNs, refuse
from howfar.plan.workload import Data, Workload

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
    "page": NO_PAGE,
    "app_cpu_ns": 0,
    "application": "engine",
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

    path: Annotated[tuple[PathName, ...], OneOrMore]
    threads: Annotated[tuple[Threads, ...], OneOrMore] = (2,)
    placement: Annotated[tuple[Placement, ...], OneOrMore] = ("isolated",)
    server: Annotated[tuple[ServerChoice, ...], OneOrMore] = ("mariadb",)
    """`mariadb`, `mysql`, the name of a private install, or the path of a server program."""
    rtt_ns: Annotated[tuple[RttNs, ...], OneOrMore] = Field(default=(200_000,), alias="rtt")
    rate_bps: Annotated[tuple[RateBps, ...], OneOrMore] = Field(default=(10**9,), alias="rate")
    tls: Annotated[tuple[Tls, ...], OneOrMore] = ("off",)
    compression: Annotated[tuple[Compression, ...], OneOrMore] = ("off",)
    connect: Annotated[tuple[Connect, ...], OneOrMore] = ("persistent",)
    content: Annotated[tuple[Content, ...], OneOrMore] = ("digits",)
    replication: Annotated[tuple[Replication, ...], OneOrMore] = ("off",)
    replica_rtt_ns: Annotated[tuple[RttNs, ...], OneOrMore] = Field(default=(85_000_000,), alias="replica_rtt")
    """Of the link between the primary and each replica; `rtt` is the clients'."""
    replica_rate_bps: Annotated[tuple[RateBps, ...], OneOrMore] = Field(default=(10**9,), alias="replica_rate")
    durability: Annotated[tuple[Durability, ...], OneOrMore] = ("strict",)
    replicas: Annotated[tuple[Replicas, ...], OneOrMore] = (1,)
    wait_for: Annotated[tuple[Replicas, ...], OneOrMore] = (1,)
    """Replicas whose acknowledgement a semi-synchronous commit needs."""
    replica_tls: Annotated[tuple[ReplicaTls, ...], OneOrMore] = ("off",)
    replica_compression: Annotated[tuple[ReplicaCompression, ...], OneOrMore] = ("off",)
    fault: Annotated[tuple[Fault, ...], OneOrMore] = ("none",)
    page: Annotated[tuple[ShapeName, ...], OneOrMore] = (NO_PAGE,)
    """Names of `Plan.pages`."""
    app_cpu_ns: Annotated[tuple[AppCpuNs, ...], OneOrMore] = Field(default=(0,), alias="app_cpu")
    """What the application computes for a page, beyond what its turns need."""
    application: Annotated[tuple[Application, ...], OneOrMore] = ("engine",)

    @property
    def varied(self) -> list[str]:
        return [name for name in type(self).model_fields if len(getattr(self, name)) > 1]


class LeftOut(Factors):
    """Cells that are not measured: those that have, of every factor named here, one of its levels."""

    path: Annotated[tuple[PathName, ...], OneOrMore] = ("socket", "tcp", "remote", "forwarded-socket")

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.model_fields_set:
            raise refuse("an empty table: it would leave out every cell")
        return self

    @model_serializer(mode="wrap")
    def _only_named(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: levels for name, levels in plain(self).items() if name in self.model_fields_set}

    def matches(self, cell: Mapping[str, object]) -> bool:
        return all(cell.get(name, ORDINARY.get(name)) in getattr(self, name) for name in self.model_fields_set)


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
    page: ShapeName | None = None
    app_cpu_ns: AppCpuNs | None = Field(default=None, alias="app_cpu")
    application: Application | None = None


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
    pages: dict[ShapeName, PageShape] = Field(default_factory=dict)
    """What the levels of the factor `page` are."""
    keys: Keys = Keys()
    leave_out: tuple[LeftOut, ...] = ()

    @model_validator(mode="after")
    def _pages_make_sense(self) -> Self:
        check_pages(self)
        return self

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
