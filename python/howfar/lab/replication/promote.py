"""A replica becomes the one that is written to. What it has then is what survived.

Not here: what the clients were told; that is compared elsewhere.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from howfar.errors import HowfarError, LabError
from howfar.lab.replication.member import Member, wait_for

PATIENCE_S = 60.0
SERVER_PORT = 3306
"""Of every server that has a host of its own."""
_OBEYS_S = 0.5
_STOP_S = 120.0
"""Longer than the servers' own timeouts."""


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
    _stop(replica, verbs.stop_receiving_sql, lambda: replica.host.within(_end_connections))
    unapplied = _unapplied(replica)
    wait_for(
        lambda: _unapplied(replica) == 0,
        patience_s,
        lambda: (
            f"{replica.name} cannot be promoted: {_unapplied(replica)} transactions that it received were not applied"
        ),
        "Is something locked there, or is the machine overloaded?",
    )
    _stop(replica, verbs.stop_sql, lambda: _kill_applier(replica))
    for statement in (verbs.forget_sql, verbs.writable_sql):
        replica.ask(statement)
    if replica.ask("SELECT @@global.read_only AS fixed")[0]["fixed"]:
        raise LabError(f"{replica.name} was promoted and is still read-only")
    return Promoted(
        name=replica.name,
        position=replica.position(verbs.applied_sql),
        unapplied=unapplied,
        took_ns=time.monotonic_ns() - began,
    )


def _stop(replica: Member, sql: str, insist: Callable[[], None]) -> None:
    """Tell it, and insist while it does not obey. Raises LabError."""
    refused: list[HowfarError] = []

    def stop() -> None:
        try:
            replica.tell(sql, _STOP_S)
        except HowfarError as error:
            refused.append(error)

    stopping = threading.Thread(target=stop, name="promote", daemon=True)
    stopping.start()
    stopping.join(_OBEYS_S)
    while stopping.is_alive():
        insist()
        stopping.join(_OBEYS_S)
    if refused:
        raise LabError(f"{replica.name} cannot be promoted: {refused[0].message}", refused[0].advice)


def _end_connections() -> None:
    """Of this host to any server: a receiver that talks to a dead primary goes on for seconds. Told to stop first, it does not connect
    again. A kernel that cannot do this lets it run into its own timeout."""
    command = ["ss", "--kill", "--tcp", "--numeric", "--no-header", f"dport = :{SERVER_PORT}"]
    subprocess.run(command, capture_output=True)


def _kill_applier(replica: Member) -> None:
    """What came whole is applied. With a part of a transaction in hand MySQL's applier waits a minute for the rest before it obeys;
    killed, it takes that part back at once."""
    found = replica.ask(
        "SELECT ID AS id FROM information_schema.processlist WHERE USER = 'system user' AND COMMAND <> 'Daemon'"
    )
    for row in found:
        with suppress(LabError):  # one that has gone meanwhile
            replica.ask(f"KILL {row['id']}")


def _unapplied(replica: Member) -> int:
    state = replica.replica_state()
    if state is None or state.applying != "Yes":
        why = "; ".join(state.errors) if state and state.errors else "it does not apply what it received"
        raise LabError(f"{replica.name} cannot be promoted: {why}", "Seed the replica anew.")
    return replica.verbs.positions.lacking(state.received, replica.position(replica.verbs.applied_sql))
