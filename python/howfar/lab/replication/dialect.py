"""What differs between MariaDB and MySQL in replication: options, statements, names of what they report.

Semi-synchronous replication has two vocabularies (master and slave, source and replica) that do not follow from a version: which one a
server has is read from its variables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from howfar.lab.replication.links import Compression, ReplicationSpec
from howfar.lab.replication.status import Positions
from howfar.lab.servers.dialect import quotable

ACCOUNT = "repl"
PRIMARY_ID = 1
"""The replicas' identifiers follow it."""


@dataclass(frozen=True)
class Source:
    """Where a replica finds its primary."""

    address: str
    port: int
    password: str
    ca: str | None
    """Who signed the primary's certificate; None: unencrypted."""
    compression: Compression | None


@dataclass(frozen=True)
class ReplicaState:
    """What a replica says of itself."""

    receiving: str
    """`Yes`, `No`, `Connecting`."""
    applying: str
    errors: tuple[str, ...]
    received: str
    """A position: what has come whole. Applied it may be or not."""


class ReplicationDialect(ABC):
    """One kind of server."""

    kind: str
    positions: Positions
    compressions: tuple[Compression, ...]
    most_to_wait_for: int | None
    """None: as many as there are."""
    primary_plugins: tuple[tuple[str, str], ...]
    """Name and file of those that can make a primary semi-synchronous, the one to try first; none: it is built in."""
    replica_plugins: tuple[tuple[str, str], ...]
    position_sql: str
    """What a primary has committed, as `position`."""
    applied_sql: str
    """What a replica has applied, as `position`."""
    state_sql: str
    """All that is in its own binary log, as `position`."""
    origin_sql: str
    """By what a server's own transactions are known, as `position`."""
    status_sql: str
    reasons_sql: str | None
    """Why those that apply side by side stopped, as `said`; None: the status says it."""
    start_sql: str
    stop_sql: str
    stop_receiving_sql: str
    forget_sql: str
    """A stopped replica has no primary any more."""
    read_only_sql: str
    writable_sql: str

    account: tuple[str, ...]
    """Statements that make one, with `{name}` and `{secret}`, before what it may do is granted."""
    identified: str
    """How a password is named, with `{password}`."""
    state_columns: tuple[str, str, str]
    """Of the status: receiving, applying, received."""

    @abstractmethod
    def options(self, spec: ReplicationSpec) -> tuple[str, ...]:
        """At start, primary and replicas alike."""

    @abstractmethod
    def follow_sql(self, source: Source) -> str:
        """Tell a replica whom to follow from the first transaction that it lacks."""

    def account_sql(self, password: str, *, tls: bool) -> str:
        """The account of the replicas, one statement a line."""
        secret = self.identified.format(password=quotable(password)) + (" REQUIRE SSL" if tls else "")
        made = [statement.format(name=f"'{ACCOUNT}'@'%'", secret=secret) for statement in self.account]
        return "\n".join([*made, f"GRANT REPLICATION SLAVE ON *.* TO '{ACCOUNT}'@'%';"]) + "\n"

    def replica_state(self, row: Mapping[str, object]) -> ReplicaState:
        receiving, applying, received = (_text(row, name) for name in self.state_columns)
        errors = (_text(row, "Last_IO_Error"), _text(row, "Last_SQL_Error"))
        return ReplicaState(receiving, applying, tuple(filter(None, errors)), received)


def durability_options(spec: ReplicationSpec) -> tuple[str, ...]:
    preset = spec.preset
    options = (f"--innodb-flush-log-at-trx-commit={preset.flush_log_at_commit}", f"--sync-binlog={preset.sync_binlog}")
    return options if preset.flush_method is None else (*options, f"--innodb-flush-method={preset.flush_method}")


def _text(row: Mapping[str, object], name: str) -> str:
    """A column of a status, None as nothing."""
    value = row.get(name)
    return "" if value is None else str(value).replace("\n", "")


def replication_dialect(kind: str) -> ReplicationDialect:
    from howfar.lab.replication.mariadb import MariadbReplication
    from howfar.lab.replication.mysql import MysqlReplication

    dialect: dict[str, ReplicationDialect] = {"mariadb": MariadbReplication(), "mysql": MysqlReplication()}
    return dialect[kind]
