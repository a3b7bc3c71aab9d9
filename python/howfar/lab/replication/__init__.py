"""Replication in the laboratory: a primary and its replicas, each replica over a link of its own. Start at `pair.py`.

`links.py`: what is requested, hosts and links; `dialect.py`, `mariadb.py`, `mysql.py`: statements of each server; `status.py`: what it
reports; `proof.py`: whether it held over a window; `watch.py`: lag, and commits that hang.
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
