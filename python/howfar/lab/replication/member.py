"""One server of a pair: its data from the template, and the queries that are run on it repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from howfar.errors import LabError, ServerCrashed
from howfar.lab.replication.dialect import ReplicaState, ReplicationDialect, Seed, replication_dialect
from howfar.lab.replication.links import ReplicationSpec
from howfar.lab.replication.status import NodeFacts, PrimaryEnd
from howfar.lab.servers import ServerContext, Tables, TableServer
from howfar.lab.servers.program import Program

_POLL_S = 0.01
_FULL_BYTES = 16 << 20
"""Less free space counts as full: tables and logs grow by steps of some MiB, and a step that did not fit was undone."""


@dataclass
class Member:
    """One server of a pair, called `primary`, `replica1` and so on."""

    name: str
    server: TableServer
    dialect: ReplicationDialect
    spec: ReplicationSpec
    seed: Seed | None = None
    begin: Callable[[Seed], TableServer] | None = None
    """Starts a new server to replace the one that has ended. None if it is on one of the user's own hosts."""

    def stop(self) -> None:
        """Stop the member's present server."""
        self.server.stop()

    def ask(self, sql: str, called: str | None = None) -> list[dict[str, Any]]:
        """Run a query that commits nothing: a commit may wait for a replica, see `write`. `called`: as in `TableServer.query`.

        Raises ServerCrashed, LabError.
        """
        try:
            return self.server.query(sql, called)
        except LabError as error:
            raise self._of(error) from error

    def _of(self, error: LabError) -> LabError:
        """The error, with the member's name and a possible reason."""
        full = self.full()
        advice = "Free some space, or measure for a shorter time." if full else error.advice
        why = f" had {full}" if full else ""
        return type(error)(f"{self.name}{why}: {error.message}", advice)

    def full(self) -> str | None:
        """The free space in words if its file system is full, else None. A server without space dies, waits or refuses, and the last
        message in its log seldom says why."""
        left = self.server.free_bytes()
        return None if left > _FULL_BYTES else f"{left >> 20} MiB left on its file system"

    def position(self, sql: str) -> str:
        return str(self.ask(sql)[0]["position"] or "").replace("\n", "")

    def replica_state(self) -> ReplicaState | None:
        """Its state as a replica; None if it follows no primary."""
        return self.dialect.read_state(self.ask)

    def primary_end(self) -> PrimaryEnd | None:
        return self.dialect.primary_end(self.ask, self.server, self.spec)

    def node_facts(self) -> NodeFacts | None:
        return self.dialect.node_facts(self.ask, self.name, self.spec)

    def acknowledges(self) -> bool | None:
        return self.dialect.acknowledges(self.ask, self.spec)

    def write(self, *statements: str, patience_s: float) -> None:
        """Commit `statements` within `patience_s`. Raises LabError if they are not acknowledged by then, committed or not."""
        unsaid = f"it did not commit {statements[0][:80]!r} within {patience_s:.0f} s, or refused it"
        advice = "With semi-synchronous replication, it waits for its replicas: is one of them gone?"
        self._do(statements, patience_s, unsaid, advice, as_client=True)

    def tell(self, order: str, patience_s: float) -> None:
        """Run an order that commits nothing and may take long, such as to stop replication. Raises LabError if it takes too long."""
        unsaid = f"it did not obey {order!r} within {patience_s:.0f} s, or refused it"
        self._do((order,), patience_s, unsaid, "Is something locked there, or the machine overloaded?")

    def _do(
        self, statements: tuple[str, ...], patience_s: float, unsaid: str, advice: str, *, as_client: bool = False
    ) -> None:
        try:
            with self.server.asking(patience_s, as_client=as_client) as ask:
                for statement in statements:
                    ask(statement)
        except ServerCrashed:
            raise
        except LabError as error:
            raise self._of(LabError(f"{unsaid}: {error.message}", advice)) from error


def begin_member(seed: Seed, context: ServerContext, program: Program, tables: Tables) -> Member:
    """Seed a member from the template and start it; call `become_ready` of its server later, so that all members start in parallel.

    Raises LabError, ServerCrashed.
    """
    dialect = replication_dialect(program.kind, seed.spec.mode)

    def begin(seed: Seed) -> TableServer:
        return dialect.begin(seed, context, program, tables)

    try:
        server = begin(seed)
    except LabError as error:
        raise type(error)(f"{seed.name} is not seeded: {error.message}", error.advice) from error
    return Member(seed.name, server, dialect, seed.spec, seed, begin)


def refuse_strangers(primary: Member, replica: Member) -> None:
    """Check that the replica has no errant transactions: diverged histories cannot be joined, and not every server reports it. Raises
    LabError."""
    dialect = primary.dialect
    own, known = replica.position(dialect.state_sql), primary.position(dialect.state_sql)
    if strangers := dialect.positions.strangers(own, known):
        raise LabError(
            f"{replica.name} has transactions that its primary never had ({strangers}): their histories have parted",
            "Seed the replica anew.",
        )


def await_node(member: Member, patience_s: float) -> None:
    """Wait until the node reports a complete cluster as requested. Raises LabError with the differences."""

    def unlike() -> tuple[str, ...]:
        try:
            facts = member.node_facts()
        except ServerCrashed:
            raise
        except LabError as error:  # a joining node may refuse queries
            return (error.message,)
        return () if facts is None else facts.unlike

    wait_for(
        lambda: not unlike(), patience_s, lambda: f"{member.name} {'; '.join(unlike())}: the cluster was not complete"
    )


def wait_for(
    condition: Callable[[], bool],
    patience_s: float,
    what: Callable[[], str],
    advice: str = "Is the machine overloaded?",
) -> None:
    """Poll until `condition` holds. Raises LabError after `patience_s`, with the text of `what` at that time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{what()} within {patience_s:.0f} s", advice)
        time.sleep(_POLL_S)
