"""The factors of replication: how a primary's replicas or the nodes of a cluster are connected, what commits wait for, and faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from howfar.experiments.replication.distances import EVEN, check_distances, rtts_ns
from howfar.plan.factor import Factor, FactorLevels, Level, ServerLinks
from howfar.plan.quantities import RateBps, RowBytes, RttNs, refusal
from howfar.units import counted, format_duration_ns, format_rate_bps, format_size_bytes, spoken_rate

MAX_REPLICAS = 9
SHORT_ROW = 8
"""Bytes of a row in the plan `replication`, as in the article that its report compares with (`published.toml`)."""
SEMI_SYNC: dict[str, str] = {
    "after-sync": "AFTER_SYNC",
    "after-commit": "AFTER_COMMIT",
    "remote-flush": "on",
    "remote-apply": "remote_apply",
    "remote-write": "remote_write",
}
"""Levels of `replication` in which a commit waits for a replica's acknowledgement, and the servers' own names for them. The first two
are wait points of MariaDB and MySQL, the others values of PostgreSQL's `synchronous_commit`. The first level of each server is the
safest: it loses the fewest commits, and shows the fewest to readers before they are acknowledged."""
WITHOUT_REPLICA = frozenset({"off", "none"})
"""Levels of `replication` without a replica."""
CLUSTERS: dict[str, str] = {
    "galera": "Galera",
    "group": "Group Replication",
    "group-leader": "Group Replication, single leader",
}
"""Levels of `replication` in which a group of servers agrees on every commit."""
LOSSLESS = (*SEMI_SYNC, *CLUSTERS)
"""Levels in which no acknowledged commit should be lost."""
SYNCHRONOUS_COMMIT_OFF = "commit-off"
"""The level for PostgreSQL's `synchronous_commit = off`: a commit waits neither for a replica nor for its own log to be flushed."""
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


def _check_replica_count(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= MAX_REPLICAS:
        raise refusal(f"must be from 1 to {MAX_REPLICAS}, because each replica has its own link")
    return value


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


def has_replica(cell: FactorLevels) -> bool:
    """Whether the cell has a replica."""
    return REPLICATION.level_in(cell) not in WITHOUT_REPLICA


def _has_primary_and_replica(cell: FactorLevels) -> bool:
    """Whether the cell has a replica that follows a primary."""
    return has_replica(cell) and not is_clustered(cell)


def waits_for_acknowledgement(cell: FactorLevels) -> bool:
    """Whether a commit of the cell waits until replicas have acknowledged it."""
    return REPLICATION.level_in(cell) in SEMI_SYNC


def is_clustered(cell: FactorLevels) -> bool:
    """Whether the cell's servers agree on every commit."""
    return REPLICATION.level_in(cell) in CLUSTERS


REPLICATION: Factor[str] = Factor(
    "replication",
    Replication,
    default="off",
    implied_level="off",
    label=lambda level: MODE_LABELS[level],
    short_label=lambda level: "no replica" if level == "none" else str(level),
    column_depth=2,
    sql_only_because="replication delays commits",
    comes_first_in_name=True,
)
"""Mode of replication. `off`: the server writes no binary log, as in plans that only compare paths. `none`: it writes one, but has no
replica."""
REPLICA_RTT_NS: Factor[int] = Factor(
    "replica_rtt_ns",
    RttNs,
    default=85_000_000,
    toml_name="replica_rtt",
    label=lambda ns: f"replica RTT {format_duration_ns(ns)}",
    short_label=lambda ns: f"RTT {format_duration_ns(ns)}",
    heading="replica RTT",
    format=format_duration_ns,
    applies=lambda cell: has_replica(cell) and DISTANCES.level_in(cell) == EVEN,
    level_in_older_files=0,
    link_setting="RTT to the replica",
)
"""RTT of the link between the primary and each replica, and between every pair of nodes in a cluster. The factor `rtt` is the RTT of
clients."""
DISTANCES: Factor[str] = Factor(
    "distances",
    Distances,
    default=EVEN,
    implied_level=EVEN,
    label=lambda level: str(level).replace("-", " "),
    applies=has_replica,
)
"""RTTs between the nodes: the name of a set of RTTs, or one RTT for each pair. `even`: `replica_rtt` for every pair. See
`distances.py`."""
REPLICA_RATE_BPS: Factor[int] = Factor(
    "replica_rate_bps",
    RateBps,
    default=10**9,
    toml_name="replica_rate",
    label=lambda bps: f"replica link {format_rate_bps(bps)}",
    short_label=spoken_rate,
    heading="replica link",
    format=format_rate_bps,
    applies=has_replica,
    link_setting="rate to the replica",
)
DURABILITY: Factor[str] = Factor(
    "durability",
    Durability,
    default="strict",
    implied_level="strict",
    label=lambda level: f"durability {level}",
    applies=lambda cell: REPLICATION.level_in(cell) != "off",
)
"""When the primary and its replicas flush a commit: `strict` before it is acknowledged, `relaxed` once a second, `off` at no fixed
time. In a cell without a binary log the server's default applies."""
REPLICAS: Factor[int] = Factor(
    "replicas",
    Replicas,
    default=1,
    implied_level=1,
    is_toml_string=False,
    label=lambda count: counted(count, "replica"),
    applies=has_replica,
)
WAIT_FOR: Factor[int] = Factor(
    "wait_for",
    Replicas,
    default=1,
    implied_level=1,
    is_toml_string=False,
    label=lambda count: f"wait for {count}",
    heading="waits for",
    applies=waits_for_acknowledgement,
    is_possible=lambda cell: not waits_for_acknowledgement(cell) or WAIT_FOR.level_in(cell) <= REPLICAS.level_in(cell),
)
"""Number of replicas that must acknowledge a commit."""
CONSISTENCY: Factor[str] = Factor(
    "consistency",
    Consistency,
    default="eventual",
    implied_level="eventual",
    label=lambda level: f"consistency {level.replace('-', ' ')}",
    applies=is_clustered,
)
"""What a transaction waits for in addition to a cluster's agreement. The levels are Group Replication's; Galera's `wsrep_sync_wait`
has `eventual` and `before`."""
WRITERS: Factor[str] = Factor(
    "writers",
    Writers,
    default="one",
    implied_level="one",
    label=lambda level: "one writer" if level == "one" else f"two writers, {level.replace('-', ' ')}",
    applies=lambda cell: REPLICATION.level_in(cell) in CLUSTERS,
)
"""Nodes that clients write to, with `threads` connections each. `one`: the first node; `own-rows`: also a second one, where they
update another row; `same-row`: also a second one, where they update the same row. A group with a single leader accepts no writes at
other nodes."""
ROW_BYTES: Factor[int] = Factor(
    "row_bytes",
    RowBytes,
    default=SHORT_ROW,
    implied_level=SHORT_ROW,
    toml_name="row",
    label=lambda size: "short rows" if size == SHORT_ROW else f"rows of {format_size_bytes(size)}",
    format=format_size_bytes,
    level_in_controls=SHORT_ROW,
)
"""Bytes that a transaction of `single_row_inserts` inserts."""
REPLICA_TLS: Factor[str] = Factor(
    "replica_tls",
    ReplicaTls,
    default="off",
    implied_level="off",
    label=lambda level: "replication without TLS" if level == "off" else "replication TLS",
    short_label=lambda level: "no TLS" if level == "off" else "TLS",
    heading="replication",
    applies=_has_primary_and_replica,
)
REPLICA_COMPRESSION: Factor[str] = Factor(
    "replica_compression",
    ReplicaCompression,
    default="off",
    implied_level="off",
    label=lambda level: "replication uncompressed" if level == "off" else f"replication {level}",
    short_label=lambda level: "uncompressed" if level == "off" else str(level),
    heading="replication",
    applies=_has_primary_and_replica,
)
FAULT: Factor[str] = Factor(
    "fault",
    Fault,
    default="none",
    implied_level="none",
    label=lambda level: "no fault" if level == "none" else str(level),
    column_depth=1,
    applies=has_replica,
    is_fault=True,
)
"""The injected fault. `kill-primary`: the primary's process is killed. `cut`, `cut-to-replica`, `cut-to-primary`, `stop-replica`: the
link to the replica is cut, in both directions or in one, or the replica stops receiving; then the primary is killed. After each of
these the replica takes over. In a cluster, `cut-off-*`, `partition` and `member-returns` cut nodes off from the others, but not from
their clients; `member-restarts`, `member-joins` and `slow-member` restart, add or slow down a node. `replica-leaves`: the replica is
cut off and returns, while the primary waits as long as the server's own timeouts say."""
CLUSTER_ONLY_FAULTS: tuple[str, ...] = get_args(ClusterFault)
CLUSTER_FAULTS = ("none", "kill-primary", *CLUSTER_ONLY_FAULTS)

FACTORS: tuple[Factor[Any], ...] = (
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
)
_CELL_WITHOUT_REPLICA = {REPLICATION.name: "none"}
REPLICA_FACTORS = tuple(
    factor.name for factor in FACTORS if factor is not FAULT and not factor.applies(_CELL_WITHOUT_REPLICA)
)
"""Factors that have no meaning without a replica, except the fault, for which plans have separate rules."""


# ---------------------------------------------------------------- the links between servers


def _node_rtts_ns(cell: FactorLevels) -> dict[tuple[int, int], int]:
    """RTTs between the servers of a cell that exchange data, by pair of their numbers; the primary is number 0. Empty: no replica."""
    if not has_replica(cell):
        return {}
    rtts = rtts_ns(DISTANCES.level_in(cell), REPLICAS.level_in(cell) + 1, REPLICA_RTT_NS.level_in(cell))
    return {pair: rtt_ns for pair, rtt_ns in rtts.items() if is_clustered(cell) or pair[0] == 0}


def _with_acknowledging_replica(cell: Mapping[str, Level]) -> dict[str, Level]:
    """A copy of the cell with a single replica, which acknowledges each commit and has the highest RTT of the cell's servers. The
    reference of cells whose servers have different RTTs, or whose commits take more than one round trip."""
    max_rtt_ns = max(rtt_ns for (low, _), rtt_ns in _node_rtts_ns(cell).items() if low == 0)
    mode = REPLICATION.level_in(cell) if waits_for_acknowledgement(cell) else next(iter(SEMI_SYNC))
    replica_levels: dict[str, Level] = {
        REPLICATION.name: mode,
        REPLICA_RTT_NS.name: max_rtt_ns,
        REPLICA_RATE_BPS.name: REPLICA_RATE_BPS.level_in(cell),
    }
    return {name: level for name, level in cell.items() if name not in REPLICA_FACTORS} | replica_levels


_REPLICA_START_NS, _MYSQL_REPLICA_START_NS = 300_000_000, 1_500_000_000
"""Time that replicas add to a trial, apart from round trips: their servers start, and replication is checked. MySQL takes longer."""
_CLUSTER_START_NS, _MYSQL_CLUSTER_START_NS = 4_000_000_000, 6_000_000_000
"""Time that is added where the servers form a cluster."""
_NODE_LOSS_NS = 20_000_000_000
"""Time that the loss of a node adds: the rest of the cluster continues, and clients write to it for a while."""
_REPLICA_ROUND_TRIPS = 30
"""Round trips over a replica's link in a trial: to connect and log in (17), to check replication, and to probe the link."""


def _trial_ns(cell: FactorLevels, is_mysql: bool) -> int:
    """Time that replicas add to a trial of the cell."""
    if not (node_rtts := _node_rtts_ns(cell)):
        return 0
    cost_ns = _MYSQL_REPLICA_START_NS if is_mysql else _REPLICA_START_NS
    cost_ns += _REPLICA_ROUND_TRIPS * max(node_rtts.values())
    if is_clustered(cell):
        cost_ns += _MYSQL_CLUSTER_START_NS if is_mysql else _CLUSTER_START_NS
        cost_ns += _NODE_LOSS_NS * (FAULT.level_in(cell) != FAULT.implied_level)
    return cost_ns


SERVER_LINKS = (
    ServerLinks(
        servers="replicas",
        rtt=REPLICA_RTT_NS,
        rate=REPLICA_RATE_BPS,
        pairs=DISTANCES,
        rtts_ns=_node_rtts_ns,
        delay_commits=lambda cell: waits_for_acknowledgement(cell) or is_clustered(cell),
        delay_commits_by_one_rtt=lambda cell: bool(
            waits_for_acknowledgement(cell) and REPLICA_RTT_NS.level_or_none(cell)
        ),
        with_single_wait=_with_acknowledging_replica,
        trial_ns=_trial_ns,
    ),
)
