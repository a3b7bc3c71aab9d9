"""Replication in the laboratory: a primary and its replicas, each replica over its own link. Start reading at `replica_set.py`.

`links.py`: the requested replication, and the replicas' hosts and links. `dialect.py` is the interface to the servers' replication;
`binary_log.py`, `postgresql.py`, `galera.py` and `group.py` implement it. `status.py`: the servers' reports. `proof.py`: whether
replication was as requested during a window. `watch.py`: lag and hanging commits under load.
"""

from howfar.experiments.replication.lab.links import (
    Durability,
    Mode,
    ReplicaSetContext,
    ReplicationLink,
    ReplicationSpec,
    WaitPoint,
    open_replication_links,
)
from howfar.experiments.replication.lab.replica_set import ReplicaSet, open_replica_set

__all__ = [
    "Durability",
    "Mode",
    "ReplicaSet",
    "ReplicaSetContext",
    "ReplicationLink",
    "ReplicationSpec",
    "WaitPoint",
    "open_replica_set",
    "open_replication_links",
]
