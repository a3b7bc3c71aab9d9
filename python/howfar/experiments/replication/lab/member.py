"""One member of a replica set: a server with data from the template, and the queries that are run on it repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from howfar.contract.replication_receipt import NodeFacts, PrimaryState, ReplicaState
from howfar.errors import LabError, ServerCrashed
from howfar.experiments.replication.lab.dialect import ReplicationDialect, Seed, replication_dialect
from howfar.experiments.replication.lab.links import ReplicationSpec
from howfar.lab.servers import ServerContext, Tables, TableServer
from howfar.lab.servers.program import Program
from howfar.paths.path import Row

_POLL_S = 0.01
_MIN_FREE_BYTES = 16 << 20
"""A file system with less free space counts as full: files grow by several MiB at once, and the space of a failed step is freed."""


@dataclass
class Member:
    """One member of a replica set, named `primary`, `replica1` and so on."""

    name: str
    server: TableServer
    dialect: ReplicationDialect
    spec: ReplicationSpec
    seed: Seed | None = None
    start_server: Callable[[Seed], TableServer] | None = None
    """Starts a new server in place of one that has ended. None on the user's own hosts, where that is not possible."""

    def stop(self) -> None:
        """Stop the member's current server."""
        self.server.stop()

    def query(self, sql: str, label: str | None = None) -> list[Row]:
        """Run a query that commits nothing. Use `write` to commit, because a commit may wait for a replica. `label`: as in
        `TableServer.query`.

        Raises ServerCrashed, LabError.
        """
        try:
            return self.server.query(sql, label)
        except LabError as error:
            raise self._with_member_name(error) from error

    def _with_member_name(self, error: LabError) -> LabError:
        """The error with the member's name and, if its disk is full, with that reason."""
        free_space = self.describe_full_disk()
        advice = "Free some space, or measure for a shorter time." if free_space else error.advice
        reason = f" had {free_space}" if free_space else ""
        return type(error)(f"{self.name}{reason}: {error.message}", advice)

    def describe_full_disk(self) -> str | None:
        """A description of the free space if the file system is full, else None. A server without space dies, waits or refuses
        statements, and its log seldom ends with the reason."""
        free_bytes = self.server.free_bytes()
        return None if free_bytes > _MIN_FREE_BYTES else f"{free_bytes >> 20} MiB left on its file system"

    def query_position(self, sql: str) -> str:
        """The position that `sql`, a query of `ReplicationDialect`, returns; empty if there is none. Raises LabError."""
        return str(self.query(sql)[0]["position"] or "").replace("\n", "")

    def read_replica_state(self) -> ReplicaState | None:
        """The member's state as a replica; None if it follows no primary."""
        return self.dialect.read_state(self.query)

    def read_primary_end(self) -> PrimaryState | None:
        return self.dialect.read_primary_end(self.query, self.server, self.spec)

    def read_node_facts(self) -> NodeFacts | None:
        return self.dialect.read_node_facts(self.query, self.name, self.spec)

    def acknowledges(self) -> bool | None:
        return self.dialect.acknowledges(self.query, self.spec)

    def write(self, *statements: str, timeout_s: float) -> None:
        """Run and commit `statements`. Raises LabError if that is not acknowledged within `timeout_s`; they may be committed
        nevertheless."""
        failure = f"it did not commit {statements[0][:80]!r} within {timeout_s:.0f} s, or refused it"
        advice = "With semi-synchronous replication, it waits for its replicas: is one of them gone?"
        self._run_all(statements, timeout_s, failure, advice, as_client=True)

    def execute(self, statement: str, timeout_s: float) -> None:
        """Run an administrative statement that commits nothing and may take long, such as STOP REPLICA. Raises LabError if it takes
        longer than `timeout_s`."""
        failure = f"it did not obey {statement!r} within {timeout_s:.0f} s, or refused it"
        self._run_all((statement,), timeout_s, failure, "Is something locked there, or the machine overloaded?")

    def _run_all(
        self, statements: tuple[str, ...], timeout_s: float, failure: str, advice: str, *, as_client: bool = False
    ) -> None:
        try:
            with self.server.open_session(timeout_s, as_client=as_client) as run_query:
                for statement in statements:
                    run_query(statement)
        except ServerCrashed:
            raise
        except LabError as error:
            raise self._with_member_name(LabError(f"{failure}: {error.message}", advice)) from error


def start_member(seed: Seed, context: ServerContext, program: Program, tables: Tables) -> Member:
    """Give a member data from the template and start its server, without waiting for it, so that all members start in parallel.
    Raises LabError, ServerCrashed."""
    dialect = replication_dialect(program.kind, seed.spec.mode)

    def start_server(seed: Seed) -> TableServer:
        return dialect.start_server(seed, context, program, tables)

    try:
        server = start_server(seed)
    except LabError as error:
        raise type(error)(f"{seed.name} is not seeded: {error.message}", error.advice) from error
    return Member(seed.name, server, dialect, seed.spec, seed, start_server)


def refuse_errant_transactions(primary: Member, replica: Member) -> None:
    """Check that the replica has no errant transactions: diverged histories cannot be joined, and not every server reports this.
    Raises LabError."""
    dialect = primary.dialect
    replica_history, primary_history = (
        replica.query_position(dialect.state_sql),
        primary.query_position(dialect.state_sql),
    )
    if errant := dialect.positions.errant_transactions(replica_history, primary_history):
        raise LabError(
            f"{replica.name} has transactions that its primary never had ({errant}): their histories have diverged",
            "Seed the replica again.",
        )


def wait_for_node(member: Member, timeout_s: float) -> None:
    """Wait until the node reports that the cluster is complete and as requested. Raises LabError with the differences."""

    def mismatches() -> tuple[str, ...]:
        try:
            facts = member.read_node_facts()
        except ServerCrashed:
            raise
        except LabError as error:  # a joining node may refuse queries
            return (error.message,)
        return () if facts is None else facts.mismatches

    wait_for(
        lambda: not mismatches(),
        timeout_s,
        lambda: f"{member.name} {'; '.join(mismatches())}: the cluster was not complete",
    )


def wait_for(
    condition: Callable[[], bool],
    timeout_s: float,
    describe_failure: Callable[[], str],
    advice: str = "Is the machine overloaded?",
) -> None:
    """Poll until `condition` holds. Raises LabError after `timeout_s`, with the text that `describe_failure` then returns."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{describe_failure()} within {timeout_s:.0f} s", advice)
        time.sleep(_POLL_S)
