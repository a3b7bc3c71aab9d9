"""A replica becomes the one that is written to. What it has then is what survived.

Not here: what the clients were told; that is compared elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from howfar.errors import LabError
from howfar.lab.replication.member import Member, wait_for

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Promoted:
    name: str
    position: str
    """All that it has."""
    unapplied: int
    """Transactions that had come and were not applied yet when it was told; they are in `position`."""
    took_ns: int


def promote(replica: Member, patience_s: float = PATIENCE_S) -> Promoted:
    """Stop receiving, wait until all that came whole is applied, cut the bond, make it writable. The primary may be dead, or not: who
    calls has seen to it that nobody writes there.

    Raises LabError when it cannot be promoted; it is left read-only then, and receives nothing any more.
    """
    verbs, began = replica.verbs, time.monotonic_ns()
    if replica.replica_state() is None:
        raise LabError(f"{replica.name} follows nobody: there is nothing to promote it from")
    replica.ask(verbs.stop_receiving_sql)
    unapplied = _unapplied(replica)
    wait_for(
        lambda: _unapplied(replica) == 0,
        patience_s,
        lambda: (
            f"{replica.name} cannot be promoted: {_unapplied(replica)} transactions that it received were not applied"
        ),
        "Is something locked there, or is the machine overloaded?",
    )
    for statement in (verbs.stop_sql, verbs.forget_sql, verbs.writable_sql):
        replica.ask(statement)
    if replica.ask("SELECT @@global.read_only AS fixed")[0]["fixed"]:
        raise LabError(f"{replica.name} was promoted and is still read-only")
    return Promoted(
        name=replica.name,
        position=replica.position(verbs.applied_sql),
        unapplied=unapplied,
        took_ns=time.monotonic_ns() - began,
    )


def _unapplied(replica: Member) -> int:
    state = replica.replica_state()
    if state is None or state.applying != "Yes":
        why = "; ".join(state.errors) if state and state.errors else "it does not apply what it received"
        raise LabError(f"{replica.name} cannot be promoted: {why}", "Seed the replica anew.")
    return replica.verbs.positions.lacking(state.received, replica.position(replica.verbs.applied_sql))
