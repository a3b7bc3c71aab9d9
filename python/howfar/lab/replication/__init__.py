"""Replication in the laboratory: a primary and its replicas, each replica over its own link. Start at `pair.py`.

`links.py`: what is requested, hosts and links; `dialect.py`, `binary_log.py`, `postgresql.py`, `galera.py`, `group.py`: what each
server needs; `status.py`: what it reports; `proof.py`: whether replication held over a window; `watch.py`: lag, and hanging commits.
"""

from howfar.lab.replication.links import Durability, Mode, PairContext, ReplicationSpec, WaitPoint, Wire, open_wires
from howfar.lab.replication.pair import Pair, open_pair

__all__ = [
    "Durability",
    "Mode",
    "Pair",
    "PairContext",
    "ReplicationSpec",
    "WaitPoint",
    "Wire",
    "open_pair",
    "open_wires",
]
