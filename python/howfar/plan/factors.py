"""The factors that a plan can vary: one entry each in `FACTORS`, the only list of them.

A cell is a mapping from factor names to levels, as run files store it. `THREADS.level_in(cell)` reads one level of it with its type;
a factor that the cell does not mention has its ordinary level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, TypeVar, cast, get_args

from pydantic import BeforeValidator, Field, create_model
from pydantic_core import PydanticCustomError

from howfar.paths import PATHS, crosses_link
from howfar.plan.distances import EVEN, check_distances, rtts_ns
from howfar.plan.quantities import AppCpuNs, OneOrMore, PlanPart, RateBps, RowBytes, RttNs, refusal
from howfar.units import counted, format_duration_ns, format_rate_bps, format_size_bytes, spoken_rate

Level = str | int | float | bool
FactorLevels = Mapping[str, Level]
"""The levels of a cell, by the names of their factors."""
T = TypeVar("T")

MAX_THREADS = 4096
MAX_REPLICAS = 9
NO_PAGE = "none"
SHORT_ROW = 8
"""Bytes of a row, as in the published test of replication over distance."""
SEMI_SYNC: dict[str, str] = {
    "after-sync": "AFTER_SYNC",
    "after-commit": "AFTER_COMMIT",
    "remote-flush": "on",
    "remote-apply": "remote_apply",
    "remote-write": "remote_write",
}
"""Levels of `replication` in which a commit waits for an acknowledgement, with the servers' own names for them: two of MariaDB and
MySQL; the rest are values of PostgreSQL's `synchronous_commit`. The first level of each server exposes and loses the fewest
commits."""
CLUSTERS: dict[str, str] = {
    "galera": "Galera",
    "group": "Group Replication",
    "group-leader": "Group Replication, single leader",
}
"""Levels of `replication` in which a group of servers agrees on every commit."""
LOSSLESS = (*SEMI_SYNC, *CLUSTERS)
"""Levels in which no acknowledged commit should be lost."""
SYNCHRONOUS_COMMIT_OFF = "commit-off"
"""A level without an acknowledgement, in which a commit does not wait for the local log to be flushed either."""
MODE_LABELS = {
    "off": "no binary log",
    "none": "no replica",
    "async": "asynchronous",
    "after-sync": "semi-sync AFTER_SYNC",
    "after-commit": "semi-sync AFTER_COMMIT",
    SYNCHRONOUS_COMMIT_OFF: "synchronous_commit off",
    "remote-write": "synchronous_commit remote_write",
    "remote-flush": "synchronous_commit on",
    "remote-apply": "synchronous_commit remote_apply",
    **CLUSTERS,
}
APPLICATION_LABELS = {"php": "PHP", "engine": "engine"}


def _applies_always(_: FactorLevels) -> bool:
    return True


def _plural(noun: str) -> Callable[[Any], str]:
    return lambda count: counted(count, noun)


@dataclass(frozen=True)
class Factor(Generic[T]):
    """A factor that a plan varies or holds."""

    name: str
    """Name in cells and run files, with the unit."""
    level_type: Any
    """The type of one level, as pydantic validates it."""
    default: T | None
    """Level in a plan that does not name the factor. None: the plan must name it."""
    ordinary: T | None = None
    """Level of a cell that lacks this factor. If a plan has only this level, its cells lack the factor. None: cells always have the
    factor where it applies."""
    toml_name: str = ""
    """Name in plans. Default: `name`."""
    label: Callable[[Any], str] = str
    """A level as text in the name of a cell."""
    page_label: Callable[[Any], str] | None = None
    """A level as text in the name of a page."""
    short_label: Callable[[Any], str] | None = None
    """A level as short text in the heading of a grid. Default: `label`."""
    heading: str = ""
    """Heading of the levels in a grid. Default: `name`."""
    prefers_rows: bool = False
    """Whether a grid prefers these levels as its rows, if they vary. Otherwise the factor with the most levels has the rows."""
    column_depth: int = 0
    """Position among the columns of a grid. The factors whose levels are compared most are innermost and have the highest depth."""
    format: Callable[[Any], str] = str
    """A level as written in a plan."""
    is_quoted: bool = True
    """Whether a level is written in quotes in a plan."""
    applies: Callable[[FactorLevels], bool] = _applies_always
    """Whether the factor is meaningful in a cell with these other levels."""
    level_if_absent: T | None = None
    """The level of cells in old run files that lack the factor. Default: `ordinary`."""
    is_condition: bool = False
    """Whether the factor is a condition of the measurement, not a property of a path. A cell is compared with the baseline at the
    cell's own level."""

    @property
    def key(self) -> str:
        return self.toml_name or self.name

    def level_or_none(self, cell: FactorLevels) -> T | None:
        """The cell's level. None: the cell does not have the factor."""
        return cast(T | None, cell.get(self.name))

    def level_in(self, cell: FactorLevels) -> T:
        """The cell's level, or the level of cells without the factor."""
        level = cell.get(self.name, self.ordinary if self.ordinary is not None else self.level_if_absent)
        assert level is not None, f"the cell has no {self.name}: {dict(cell)}"
        return cast(T, level)

    def toml_line(self, level: Any) -> str:
        """A level as a line of a plan: `rate = '1gbit'`, `threads = 16`."""
        text = self.format(level)
        return f"{self.key} = {repr(text) if self.is_quoted else text}"


# ---------------------------------------------------------------- kinds of levels


def _check_path(value: Any) -> Any:
    if value not in PATHS:
        raise refusal(f"no path is called {value!r}; known paths: {', '.join(PATHS)}")
    return value


def _check_threads(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise refusal("at least one connection is needed")
        if value > MAX_THREADS:
            raise refusal(f"at most {MAX_THREADS} connections")
    return value


def _check_compression(value: Any) -> Any:
    if isinstance(value, str) and not _COMPRESSION_PATTERN.fullmatch(value):
        raise refusal("compression must be off, zlib, zlib-1 to zlib-9, zstd, or zstd-1 to zstd-22")
    return value


def _check_replica_count(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= MAX_REPLICAS:
        raise refusal(f"from 1 to {MAX_REPLICAS} replicas, each on its own link")
    return value


def _check_load(value: Any) -> Any:
    match = _LOAD_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and (match is None or (match["share"] or match["per_s"] or "1").strip("0.") == ""):
        raise refusal(
            f"{value!r} is not a load: closed, a share of the baseline's capacity, such as 50%, or a rate, such as 300/s"
        )
    return value


CLOSED = "closed"
_LOAD_PATTERN = re.compile(rf"{CLOSED}|(?P<share>[0-9]{{1,3}}(\.[0-9]+)?)%|(?P<per_s>[0-9]+(\.[0-9]+)?)/s")
_COMPRESSION_PATTERN = re.compile(r"off|zlib(-[1-9])?|zstd(-([1-9]|1[0-9]|2[0-2]))?")
PathName = Annotated[str, BeforeValidator(_check_path)]
Threads = Annotated[int, BeforeValidator(_check_threads), Field(strict=True)]
Placement = Literal["isolated", "machines"]
ServerChoice = Annotated[str, Field(min_length=1)]
Tls = Literal["off", "1.2", "1.3", "1.3-resumed"]
Compression = Annotated[str, BeforeValidator(_check_compression)]
Connect = Literal["persistent", "per-transaction"]
Content = Literal["digits", "text", "incompressible"]
Replication = Literal[
    "off",
    "none",
    "async",
    "after-sync",
    "after-commit",
    "commit-off",
    "remote-write",
    "remote-flush",
    "remote-apply",
    "galera",
    "group",
    "group-leader",
]
Consistency = Literal["eventual", "before", "after", "before-and-after"]
Writers = Literal["one", "own-rows", "same-row"]
Distances = Annotated[str, BeforeValidator(check_distances)]
Durability = Literal["strict", "relaxed", "off"]
Replicas = Annotated[int, BeforeValidator(_check_replica_count), Field(strict=True)]
ReplicaTls = Literal["off", "on"]
ReplicaCompression = Literal["off", "zlib", "zstd"]
ClusterFault = Literal[
    "cut-off-primary",
    "partition",
    "cut-off-member",
    "member-returns",
    "member-restarts",
    "member-joins",
    "slow-member",
]
Fault = Literal[
    "none",
    "kill-primary",
    "cut",
    "cut-to-replica",
    "cut-to-primary",
    "stop-replica",
    ClusterFault,
    "replica-leaves",
]
ShapeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,29}$")]
Application = Literal["php", "engine"]
Load = Annotated[str, BeforeValidator(_check_load)]
Idle = Literal["as-found", "polling"]


def tls_label(level: object) -> str:
    """A level in a sentence or a table: `TLS 1.3 resumed`."""
    return f"TLS {str(level).replace('-', ' ')}"


def _crosses(cell: FactorLevels) -> bool:
    return crosses_link(cell["path"])


def _replicates(cell: FactorLevels) -> bool:
    """Whether the cell has a replica."""
    return REPLICATION.level_in(cell) not in ("off", "none")


def _has_following_replica(cell: FactorLevels) -> bool:
    """Whether the cell has a replica that follows a primary."""
    return _replicates(cell) and not _is_clustered(cell)


def _waits_for_acknowledgement(cell: FactorLevels) -> bool:
    return REPLICATION.level_in(cell) in SEMI_SYNC


def _is_clustered(cell: FactorLevels) -> bool:
    return REPLICATION.level_in(cell) in CLUSTERS


# ---------------------------------------------------------------- the registry

PATH: Factor[str] = Factor("path", PathName, None)
THREADS: Factor[int] = Factor(
    "threads",
    Threads,
    2,
    level_if_absent=1,
    is_quoted=False,
    label=_plural("thread"),
    short_label=str,
    heading="connections",
    prefers_rows=True,
    page_label=lambda count: f"{count} in flight",
)
PLACEMENT: Factor[str] = Factor("placement", Placement, "isolated", column_depth=-1)
SERVER: Factor[str] = Factor("server", ServerChoice, "mariadb", column_depth=-2)
"""The server: `mariadb`, `mysql`, the name of a private install, or the path of a server program."""
RTT_NS: Factor[int] = Factor(
    "rtt_ns",
    RttNs,
    200_000,
    toml_name="rtt",
    label=lambda ns: f"RTT {format_duration_ns(ns)}",
    heading="RTT",
    format=format_duration_ns,
    applies=_crosses,
    level_if_absent=0,
)
RATE_BPS: Factor[int] = Factor(
    "rate_bps",
    RateBps,
    10**9,
    toml_name="rate",
    label=format_rate_bps,
    short_label=spoken_rate,
    heading="link",
    format=format_rate_bps,
    applies=_crosses,
)
TLS: Factor[str] = Factor("tls", Tls, "off", "off", label=lambda level: "plain" if level == "off" else tls_label(level))
"""TLS of sessions. `1.3-resumed`: later connections resume the session of an earlier one; all other handshakes are full ones."""
COMPRESSION: Factor[str] = Factor(
    "compression",
    Compression,
    "off",
    "off",
    label=lambda level: "uncompressed" if level == "off" else str(level),
    short_label=lambda level: "none" if level == "off" else str(level),
    prefers_rows=True,
)
"""Algorithm and level of compression, as `zstd-3`. The level of zlib is the client's; servers compress their answers at their own."""
CONNECT: Factor[str] = Factor(
    "connect",
    Connect,
    "persistent",
    "persistent",
    label=lambda level: "connect per transaction" if level == "per-transaction" else "persistent",
    page_label=lambda level: "connect per page" if level == "per-transaction" else "persistent",
    short_label=lambda level: "connect/txn" if level == "per-transaction" else "persistent",
)
CONTENT: Factor[str] = Factor("content", Content, "digits", "digits")
"""Contents of the tables: sysbench's digits, sentences, or bytes in which nothing repeats."""
REPLICATION: Factor[str] = Factor(
    "replication",
    Replication,
    "off",
    "off",
    label=lambda level: MODE_LABELS[level],
    short_label=lambda level: "no replica" if level == "none" else str(level),
    column_depth=2,
)
"""Mode of replication. `off`: no binary log, for plans about the path. `none`: a primary that writes one but has no replica."""
REPLICA_RTT_NS: Factor[int] = Factor(
    "replica_rtt_ns",
    RttNs,
    85_000_000,
    toml_name="replica_rtt",
    label=lambda ns: f"replica RTT {format_duration_ns(ns)}",
    short_label=lambda ns: f"RTT {format_duration_ns(ns)}",
    heading="replica RTT",
    format=format_duration_ns,
    applies=lambda cell: _replicates(cell) and DISTANCES.level_in(cell) == EVEN,
    level_if_absent=0,
)
"""RTT of the link between the primary and each replica, and between every pair of nodes in a cluster. `rtt` is that of clients."""
DISTANCES: Factor[str] = Factor(
    "distances", Distances, EVEN, EVEN, label=lambda level: str(level).replace("-", " "), applies=_replicates
)
"""Distances between the nodes, by a name or pair by pair; `even`: the value of `replica_rtt`. See `distances.py`."""
REPLICA_RATE_BPS: Factor[int] = Factor(
    "replica_rate_bps",
    RateBps,
    10**9,
    toml_name="replica_rate",
    label=lambda bps: f"replica link {format_rate_bps(bps)}",
    short_label=spoken_rate,
    heading="replica link",
    format=format_rate_bps,
    applies=_replicates,
)
DURABILITY: Factor[str] = Factor(
    "durability",
    Durability,
    "strict",
    "strict",
    label=lambda level: f"durability {level}",
    applies=lambda cell: REPLICATION.level_in(cell) != "off",
)
"""Durability of primary and replicas. Without a binary log it is the server's default."""
REPLICAS: Factor[int] = Factor(
    "replicas", Replicas, 1, 1, is_quoted=False, label=_plural("replica"), applies=_replicates
)
WAIT_FOR: Factor[int] = Factor(
    "wait_for",
    Replicas,
    1,
    1,
    is_quoted=False,
    label=lambda count: f"wait for {count}",
    heading="waits for",
    applies=_waits_for_acknowledgement,
)
"""Number of replicas whose acknowledgement a semi-synchronous commit needs."""
CONSISTENCY: Factor[str] = Factor(
    "consistency",
    Consistency,
    "eventual",
    "eventual",
    label=lambda level: f"consistency {level.replace('-', ' ')}",
    applies=_is_clustered,
)
"""What a transaction waits for in addition to a cluster's agreement. The levels are Group Replication's; Galera's `wsrep_sync_wait`
has two of them."""
WRITERS: Factor[str] = Factor(
    "writers",
    Writers,
    "one",
    "one",
    label=lambda level: "one writer" if level == "one" else f"two writers, {level.replace('-', ' ')}",
    applies=lambda cell: REPLICATION.level_in(cell) in ("galera", "group"),
)
"""Nodes that clients write to, with `threads` connections each: only the first node, or also a second one, in another row or in the
same row. A group with a single leader accepts writes at no other node."""
ROW_BYTES: Factor[int] = Factor(
    "row_bytes",
    RowBytes,
    SHORT_ROW,
    SHORT_ROW,
    toml_name="row",
    label=lambda size: "short rows" if size == SHORT_ROW else f"rows of {format_size_bytes(size)}",
    format=format_size_bytes,
)
"""Bytes that a transaction of `single_row_inserts` inserts."""
REPLICA_TLS: Factor[str] = Factor(
    "replica_tls",
    ReplicaTls,
    "off",
    "off",
    label=lambda level: "replication plain" if level == "off" else "replication TLS",
    short_label=lambda level: "plain" if level == "off" else "TLS",
    heading="replication",
    applies=_has_following_replica,
)
REPLICA_COMPRESSION: Factor[str] = Factor(
    "replica_compression",
    ReplicaCompression,
    "off",
    "off",
    label=lambda level: "replication uncompressed" if level == "off" else f"replication {level}",
    short_label=lambda level: "uncompressed" if level == "off" else str(level),
    heading="replication",
    applies=_has_following_replica,
)
FAULT: Factor[str] = Factor(
    "fault",
    Fault,
    "none",
    "none",
    label=lambda level: "no fault" if level == "none" else str(level),
    column_depth=1,
    applies=_replicates,
)
"""The injected fault. `kill-primary` to `stop-replica`: after the fault the primary dies and the replica takes over. `cut-off-*`,
`partition` and `*-member`, `member-*` are for clusters: the rest continues without nodes that their clients still reach, with a slow
node, or with one that joins. `replica-leaves`: the replica leaves and returns, under the server's own timeouts."""
CLUSTER_ONLY_FAULTS: tuple[str, ...] = get_args(ClusterFault)
CLUSTER_FAULTS = ("none", "kill-primary", *CLUSTER_ONLY_FAULTS)
PAGE: Factor[str] = Factor("page", ShapeName, NO_PAGE, NO_PAGE)
"""Name of one of `Plan.pages`."""
APP_CPU_NS: Factor[int] = Factor(
    "app_cpu_ns",
    AppCpuNs,
    0,
    0,
    toml_name="app_cpu",
    page_label=lambda ns: f"{ns / 1e6:g} ms CPU",
    format=format_duration_ns,
)
"""Time that the application computes for a page, in addition to what its round trips need."""
APPLICATION: Factor[str] = Factor(
    "application", Application, "engine", "engine", page_label=lambda level: APPLICATION_LABELS[level]
)
"""Application that runs the page: PHP under PHP-FPM, or the engine itself."""

IDLE: Factor[str] = Factor(
    "idle",
    Idle,
    "polling",
    "as-found",
    label=lambda level: f"idle {level.replace('-', ' ')}",
    is_condition=True,
)
"""Idle states of CPUs: those that this machine normally uses, or polling, so that nothing waits for a CPU to wake up."""

LOAD: Factor[str] = Factor(
    "load",
    Load,
    CLOSED,
    CLOSED,
    label=lambda level: "closed loop" if level == CLOSED else str(level),
    is_condition=True,
)
"""When transactions begin. Closed loop: a connection begins its next one when the previous one is answered. Or at a given rate,
independent of answers. A share of the capacity is converted to a rate before a run begins."""

FACTORS: dict[str, Factor[Any]] = {
    factor.name: factor
    for factor in (
        PATH,
        THREADS,
        PLACEMENT,
        SERVER,
        RTT_NS,
        RATE_BPS,
        TLS,
        COMPRESSION,
        CONNECT,
        CONTENT,
        REPLICATION,
        REPLICA_RTT_NS,
        REPLICA_RATE_BPS,
        DURABILITY,
        REPLICAS,
        WAIT_FOR,
        DISTANCES,
        CONSISTENCY,
        WRITERS,
        ROW_BYTES,
        REPLICA_TLS,
        REPLICA_COMPRESSION,
        FAULT,
        PAGE,
        APP_CPU_NS,
        APPLICATION,
        IDLE,
        LOAD,
    )
}
"""Factors in the order of a cell's levels."""


def factor_refusal(factor: str, message: str) -> PydanticCustomError:
    """The error for a plan in which this factor does not fit the rest."""
    return refusal(message, "factors", FACTORS[factor].key)


_CELL_WITHOUT_REPLICA = {PATH.name: "remote", REPLICATION.name: "none"}
REPLICA_FACTORS = tuple(
    name for name, factor in FACTORS.items() if factor is not FAULT and not factor.applies(_CELL_WITHOUT_REPLICA)
)
"""Factors that have no meaning without a replica, except the fault, for which plans have separate rules."""


CONDITIONS = tuple(name for name, factor in FACTORS.items() if factor.is_condition)
ORDINARY: dict[str, Level] = {name: factor.ordinary for name, factor in FACTORS.items() if factor.ordinary is not None}
"""Levels of a cell where it does not name them."""


def waits_for_link(cell: FactorLevels) -> bool:
    """Whether the cell's requests or commits wait for a link."""
    return bool(RTT_NS.level_or_none(cell)) or _waits_for_acknowledgement(cell) or _is_clustered(cell)


def waited_rtt(cell: FactorLevels) -> Factor[int] | None:
    """The factor of the RTT that each request, or each commit, of the cell waits for exactly once. None: there is no such RTT, for
    example because a cluster agrees in more or fewer round trips."""
    if _waits_for_acknowledgement(cell) and REPLICA_RTT_NS.level_or_none(cell):
        return REPLICA_RTT_NS
    return RTT_NS if RTT_NS.level_or_none(cell) else None


def node_rtts_ns(cell: FactorLevels) -> dict[tuple[int, int], int]:
    """RTTs between the servers of a cell that talk to each other; the primary is 0. Empty: no replica."""
    if not _replicates(cell):
        return {}
    rtts = rtts_ns(DISTANCES.level_in(cell), REPLICAS.level_in(cell) + 1, REPLICA_RTT_NS.level_in(cell))
    return {pair: rtt_ns for pair, rtt_ns in rtts.items() if _is_clustered(cell) or pair[0] == 0}


def has_fault(cell: FactorLevels) -> bool:
    """Whether a fault is injected in this cell."""
    return FAULT.level_in(cell) != "none"


def share_of_capacity(level: str) -> float | None:
    """The level as a share, 0.5 for `50%`; None: the level is not a share."""
    return float(level[:-1]) / 100 if level.endswith("%") else None


def offered_per_s(cell: FactorLevels) -> float | None:
    """Transactions due per second. None: closed loop."""
    level = LOAD.level_in(cell)
    return float(level.removesuffix("/s")) if level.endswith("/s") else None


def scatter_kind(cell: FactorLevels) -> tuple[object, ...]:
    """What the scatter of a cell's trials depends on besides its path: the machine's conditions, and whether its load has a given
    rate. An A/A arm of one kind gives no noise floor for another kind."""
    return *(level_of(cell, name) for name in CONDITIONS if name != LOAD.name), LOAD.level_in(cell) != CLOSED


def level_of(cell: FactorLevels, name: str) -> Level | None:
    """The level of any factor, by name; its ordinary one where the cell does not name it."""
    factor = FACTORS.get(name)
    return cell.get(name, factor.ordinary if factor else None)


# ---------------------------------------------------------------- the tables of a plan that are built from the registry


ModelFields = dict[str, Any]
"""Fields of a model, each with its type and its default, as `create_model` takes them."""
ModelT = TypeVar("ModelT", bound=PlanPart)


def levels_model_of(base: type[ModelT], is_leave_out: bool = False) -> type[ModelT]:
    """The table `[factors]`: a model of `base` with a tuple of levels for each factor in the registry as it is now."""
    return cast(type[ModelT], _levels_model(base, is_leave_out, tuple(FACTORS.values())))


@lru_cache(maxsize=16)
def _levels_model(base: type[PlanPart], is_leave_out: bool, factors: tuple[Factor[Any], ...]) -> Any:
    fields: ModelFields = {}
    for factor in factors:
        # A table of `leave_out` matches by the factors that it names, so any default will do there.
        levels = (factor.default,) if factor.default is not None else () if is_leave_out else None
        default: Any = ... if levels is None else levels
        kind = Annotated[tuple[factor.level_type, ...], OneOrMore]  # type: ignore[name-defined]
        fields[factor.name] = (kind, Field(default=default, alias=factor.toml_name or None))
    return create_model(base.__name__, __base__=base, __module__=__name__, **fields)


def baseline_model_of(base: type[ModelT]) -> type[ModelT]:
    """The table `[baseline]`: a model of `base` with at most one level for each factor."""
    return cast(type[ModelT], _baseline_model(base, tuple(FACTORS.values())))


@lru_cache(maxsize=16)
def _baseline_model(base: type[PlanPart], factors: tuple[Factor[Any], ...]) -> Any:
    fields: ModelFields = {
        factor.name: (factor.level_type | None, Field(default=None, alias=factor.toml_name or None))
        for factor in factors
    }
    return create_model(base.__name__, __base__=base, __module__=__name__, **fields)
