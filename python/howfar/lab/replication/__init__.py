"""Replication in the laboratory: a primary and its replicas, each replica over a link of its own. Start at `pair.py`.

`asked.py`: what is asked; `wires.py`: hosts and links; `verbs.py`, `mariadb.py`, `mysql.py`: how each server is told; `proof.py`:
whether it held over a window; `channel.py`: whether it is encrypted and compressed; `positions.py`, `lag.py`: how far a replica is
behind; `watch.py`: a commit that hangs; `promote.py`: a replica becomes the one that is written to.
"""

from howfar.lab.replication.links import Durability, Mode, PairGround, ReplicationSpec, WaitPoint, Wire, open_wires
from howfar.lab.replication.pair import Pair, open_pair

__all__ = [
    "Durability",
    "Mode",
    "Pair",
    "PairGround",
    "ReplicationSpec",
    "WaitPoint",
    "Wire",
    "open_pair",
    "open_wires",
]
