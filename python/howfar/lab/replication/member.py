"""One server of a pair: its data from the template, its options, the queries that it answers again and again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pymysql

from howfar.errors import LabError
from howfar.lab.network import Host
from howfar.lab.replication.dialect import PRIMARY_ID, ReplicaState, ReplicationDialect, replication_dialect
from howfar.lab.replication.links import ReplicationSpec
from howfar.lab.replication.status import (
    PrimaryEnd,
    SemiSyncNames,
    primary_end,
    replica_status,
    semi_sync_names,
)
from howfar.lab.servers import CertificatePaths, ServerContext, Tables
from howfar.lab.servers.dialect import BinaryLog
from howfar.lab.servers.kinds import DIALECTS
from howfar.lab.servers.program import Program
from howfar.lab.servers.sql_server import SqlServer
from howfar.lab.servers.sql_store import SqlStore

_POLL_S = 0.01
_FULL_BYTES = 16 << 20
"""Tables and logs grow by steps of some MiB, and the step that did not fit was taken back."""
_SEMI_SYNC = "LIKE 'rpl\\_semi%'"


@dataclass
class Member:
    """`primary`, `replica1` and so on."""

    name: str
    host: Host
    server: SqlServer
    dialect: ReplicationDialect
    names: SemiSyncNames = field(default=SemiSyncNames(None, None, None))

    def ask(self, sql: str, called: str | None = None) -> list[dict[str, Any]]:
        """Questions only: a commit may wait for a replica, see `write`. `called`: of a statement with a secret, as `SqlServer.query`.

        Raises ServerCrashed, LabError.
        """
        try:
            return self.server.query(sql, called)
        except LabError as error:
            raise self._of(error) from error

    def _of(self, error: LabError) -> LabError:
        """It says whose server it was, and what may be the reason."""
        full = self.full()
        advice = "Give it more room, or measure for a shorter time." if full else error.advice
        why = f" had {full}" if full else ""
        return type(error)(f"{self.name}{why}: {error.message}", advice)

    def full(self) -> str | None:
        """In words, when its file system is. A server that has no room dies, waits or refuses, and seldom says it last."""
        left = shutil.disk_usage(self.server.socket.parent).free
        return None if left > _FULL_BYTES else f"{left >> 20} MiB left on its file system"

    def position(self, sql: str) -> str:
        return str(self.ask(sql)[0]["position"] or "").replace("\n", "")

    def replica_state(self) -> ReplicaState | None:
        """None: it follows nobody."""
        return read_state(self.dialect, self.ask)

    def variables(self, pattern: str = _SEMI_SYNC) -> dict[str, str]:
        return {row["Variable_name"]: row["Value"] for row in self.ask(f"SHOW GLOBAL VARIABLES {pattern}")}

    def status(self, pattern: str = _SEMI_SYNC) -> dict[str, str]:
        return {row["Variable_name"]: row["Value"] for row in self.ask(f"SHOW GLOBAL STATUS {pattern}")}

    def primary_end(self) -> PrimaryEnd | None:
        return primary_end(self.names, self.variables(), self.status())

    def acknowledges(self) -> bool | None:
        return replica_status(self.names, self.status())

    def write(self, *statements: str, patience_s: float) -> None:
        """Commit something, and wait so long. Raises LabError when it is not acknowledged by then: it may be committed or not."""
        unsaid = f"it did not commit {statements[0][:80]!r} within {patience_s:.0f} s, or refused it"
        self._do(statements, patience_s, unsaid, "Semi-synchronous, it waits for its replicas: is one of them gone?")

    def tell(self, order: str, patience_s: float) -> None:
        """What is no commit and may take long, as to stop replicating. Raises LabError when it has not obeyed by then."""
        unsaid = f"it did not obey {order!r} within {patience_s:.0f} s, or refused it"
        self._do((order,), patience_s, unsaid, "Is something locked there, or the machine overloaded?")

    def _do(self, statements: tuple[str, ...], patience_s: float, unsaid: str, advice: str) -> None:
        connection = self.server.session(patience_s)
        try:
            with connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        except pymysql.Error as error:
            raise self._of(LabError(f"{unsaid}: {error}", advice)) from error

    def learn_names(self, *, load: bool) -> None:
        """Of semi-synchronous replication. `load`: its plugins too, where there are some, for both ends, so that a replica can become
        a primary. Raises LabError."""
        self.names = semi_sync_names(self.variables())
        if not load:
            return
        for have, plugins in (
            (self.names.primary, self.dialect.primary_plugins),
            (self.names.replica, self.dialect.replica_plugins),
        ):
            if have is None:
                self._load_first_of(plugins)
        self.names = semi_sync_names(self.variables())
        if self.names.primary is None or self.names.replica is None:
            raise LabError(
                f"{self.name} ({self.server.kind} {self.server.version}) has no semi-synchronous replication",
                "Ask for asynchronous replication, or use another server.",
            )

    def _load_first_of(self, plugins: tuple[tuple[str, str], ...]) -> None:
        refusals = []
        for name, file in plugins:
            try:
                self.ask(f"INSTALL PLUGIN {name} SONAME '{file}'")
            except LabError as error:
                refusals.append(error.message.splitlines()[0])
                continue
            return
        if refusals:
            raise LabError(f"{self.name} loads no plugin for semi-synchronous replication: {'; '.join(refusals)}")


def begin_member(
    name: str,
    number: int,
    context: ServerContext,
    program: Program,
    tables: Tables,
    spec: ReplicationSpec,
    secret: str,
    tls: CertificatePaths | None,
) -> Member:
    """Seed it from the template and start it; `become_ready` of its server comes later, so that all come up side by side.

    Raises LabError, ServerCrashed.
    """
    dialect = replication_dialect(program.kind)
    store = SqlStore(program, DIALECTS[program.kind], tables)
    try:
        store.prepare(context)
    except LabError as error:
        raise type(error)(f"{name} is not seeded: {error.message}", error.advice) from error
    log = BinaryLog(
        server_id=PRIMARY_ID + number,
        options=dialect.options(spec),
        init_sql=dialect.account_sql(secret, tls=spec.tls),
    )
    return Member(name, context.host, store.begin(binary_log=log, tls=tls), dialect)


def read_state(dialect: ReplicationDialect, ask: Callable[[str], Sequence[dict[str, Any]]]) -> ReplicaState | None:
    """What a replica says of itself, with all its reasons. None: it follows nobody."""
    rows = ask(dialect.status_sql)
    if not rows:
        return None
    state = dialect.replica_state(rows[0])
    if not state.errors or dialect.reasons_sql is None:
        return state
    reasons = tuple(str(row["said"]) for row in ask(dialect.reasons_sql))
    return replace(state, errors=(*reasons, *state.errors))


def wait_for(
    condition: Callable[[], bool],
    patience_s: float,
    what: Callable[[], str],
    advice: str = "Is the machine overloaded?",
) -> None:
    """Observe, bounded in time. Raises LabError that says `what` was not reached."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{what()} within {patience_s:.0f} s", advice)
        time.sleep(_POLL_S)
