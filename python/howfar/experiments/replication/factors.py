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
WITHOUT_REPLICA = frozenset({"off", "none"})
"""Levels of `replication` in which the main server has no replica."""
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


def _check_replica_count(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= MAX_REPLICAS:
        raise refusal(f"from 1 to {MAX_REPLICAS} replicas, each on its own link")
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


def _has_following_replica(cell: FactorLevels) -> bool:
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
    "off",
    "off",
    label=lambda level: MODE_LABELS[level],
    short_label=lambda level: "no replica" if level == "none" else str(level),
    column_depth=2,
    needs_sql="replication delays commits",
    leads_name=True,
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
    applies=lambda cell: has_replica(cell) and DISTANCES.level_in(cell) == EVEN,
    level_if_absent=0,
    link_level="RTT to the replica",
)
"""RTT of the link between the primary and each replica, and between every pair of nodes in a cluster. `rtt` is that of clients."""
DISTANCES: Factor[str] = Factor(
    "distances", Distances, EVEN, EVEN, label=lambda level: str(level).replace("-", " "), applies=has_replica
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
    applies=has_replica,
    link_level="rate to the replica",
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
    "replicas", Replicas, 1, 1, is_quoted=False, label=lambda count: counted(count, "replica"), applies=has_replica
)
WAIT_FOR: Factor[int] = Factor(
    "wait_for",
    Replicas,
    1,
    1,
    is_quoted=False,
    label=lambda count: f"wait for {count}",
    heading="waits for",
    applies=waits_for_acknowledgement,
    is_possible=lambda cell: not waits_for_acknowledgement(cell) or WAIT_FOR.level_in(cell) <= REPLICAS.level_in(cell),
)
"""Number of replicas whose acknowledgement a semi-synchronous commit needs."""
CONSISTENCY: Factor[str] = Factor(
    "consistency",
    Consistency,
    "eventual",
    "eventual",
    label=lambda level: f"consistency {level.replace('-', ' ')}",
    applies=is_clustered,
)
"""What a transaction waits for in addition to a cluster's agreement. The levels are Group Replication's; Galera's `wsrep_sync_wait`
has two of them."""
WRITERS: Factor[str] = Factor(
    "writers",
    Writers,
    "one",
    "one",
    label=lambda level: "one writer" if level == "one" else f"two writers, {level.replace('-', ' ')}",
    applies=lambda cell: REPLICATION.level_in(cell) in CLUSTERS,
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
    control_level=SHORT_ROW,
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
    applies=has_replica,
    is_fault=True,
)
"""The injected fault. `kill-primary` to `stop-replica`: after the fault the primary dies and the replica takes over. `cut-off-*`,
`partition` and `*-member`, `member-*` are for clusters: the rest continues without nodes that their clients still reach, with a slow
node, or with one that joins. `replica-leaves`: the replica leaves and returns, under the server's own timeouts."""
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
    """RTTs between the servers of a cell that talk to each other; the primary is 0. Empty: no replica."""
    if not has_replica(cell):
        return {}
    rtts = rtts_ns(DISTANCES.level_in(cell), REPLICAS.level_in(cell) + 1, REPLICA_RTT_NS.level_in(cell))
    return {pair: rtt_ns for pair, rtt_ns in rtts.items() if is_clustered(cell) or pair[0] == 0}


def _with_acknowledging_replica(cell: Mapping[str, Level]) -> dict[str, Level]:
    """The cell with a single replica, which acknowledges each commit and is as far from the primary as the cell's farthest server. For
    cells whose servers have different distances, or that agree in more than one round trip."""
    far_ns = max(rtt_ns for (low, _), rtt_ns in _node_rtts_ns(cell).items() if low == 0)
    mode = REPLICATION.level_in(cell) if waits_for_acknowledgement(cell) else next(iter(SEMI_SYNC))
    replica_levels: dict[str, Level] = {
        REPLICATION.name: mode,
        REPLICA_RTT_NS.name: far_ns,
        REPLICA_RATE_BPS.name: REPLICA_RATE_BPS.level_in(cell),
    }
    return {name: level for name, level in cell.items() if name not in REPLICA_FACTORS} | replica_levels


_REPLICA_NS, _MYSQL_REPLICA_NS = 300_000_000, 1_500_000_000
"""Additional time of a trial with replicas: their servers, and the check of replication, without round trips."""
_CLUSTER_NS, _MYSQL_CLUSTER_NS = 4_000_000_000, 6_000_000_000
"""Additional time where the servers form a cluster."""
_NODE_LOSS_NS = 20_000_000_000
"""Additional time until a cluster has continued without a node, and its clients have written for a while."""
_REPLICA_ROUND_TRIPS = 30
"""Round trips of the replica's link in a trial: to connect and log in (17), to check replication, and to probe the link."""


def _trial_ns(cell: FactorLevels, is_mysql: bool) -> int:
    """Time that replicas add to a trial of the cell."""
    if not (node_rtts := _node_rtts_ns(cell)):
        return 0
    cost_ns = _MYSQL_REPLICA_NS if is_mysql else _REPLICA_NS
    cost_ns += _REPLICA_ROUND_TRIPS * max(node_rtts.values())
    if is_clustered(cell):
        cost_ns += _MYSQL_CLUSTER_NS if is_mysql else _CLUSTER_NS
        cost_ns += _NODE_LOSS_NS * (FAULT.level_in(cell) != FAULT.ordinary)
    return cost_ns


SERVER_LINKS = (
    ServerLinks(
        servers="replicas",
        rtt=REPLICA_RTT_NS,
        rate=REPLICA_RATE_BPS,
        pairs=DISTANCES,
        rtts_ns=_node_rtts_ns,
        are_waited_for=lambda cell: waits_for_acknowledgement(cell) or is_clustered(cell),
        are_waited_for_once=lambda cell: bool(waits_for_acknowledgement(cell) and REPLICA_RTT_NS.level_or_none(cell)),
        with_single_wait=_with_acknowledging_replica,
        trial_ns=_trial_ns,
    ),
)
