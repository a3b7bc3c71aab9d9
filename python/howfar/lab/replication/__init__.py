"""Replication in the laboratory: a primary and its replicas, each replica over a link of its own. Start at `pair.py`.

`asked.py`: what is asked; `verbs.py`, `mariadb.py`, `mysql.py`: how it is said to each server; `proof.py`: whether it held over a
window; `positions.py`, `lag.py`: how far a replica is behind; `watch.py`: a commit that hangs; `promote.py`: a replica becomes the one
that is written to.
"""

from howfar.lab.replication.asked import Durability, Mode, ReplicationAsked, WaitPoint
from howfar.lab.replication.pair import Pair, PairGround, open_pair

__all__ = ["Durability", "Mode", "Pair", "PairGround", "ReplicationAsked", "WaitPoint", "open_pair"]
