"""The lines for a server's configuration that a report advises: one class a family of servers, found by `configuration`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from howfar.plan.factors import SEMI_SYNC

TIMEOUT_MS = 3_600_000
"""An hour: a primary should not acknowledge commits that no replica has without anyone noticing."""


class Configuration(ABC):
    """Of one kind of server. `mode` is a level of the factor `replication` with a replica."""

    @abstractmethod
    def waiting(self, mode: str) -> str:
        """`semi-synchronously with AFTER_SYNC`: the mode in advice."""

    @abstractmethod
    def lines(self, mode: str) -> tuple[str, ...]:
        """Both files, one after the other."""

    @abstractmethod
    def timeout_lines(self) -> tuple[str, ...]:
        """To keep a primary from falling back, and to see whether it has."""

    @abstractmethod
    def second_lines(self, mode: str) -> tuple[str, ...]:
        """A commit waits for any one of two replicas."""


def configuration(kind: str) -> Configuration:
    return PostgresqlConf() if kind == "postgresql" else MyCnf(kind)


class PostgresqlConf(Configuration):
    """PostgreSQL. A replica's name is the `application_name` by which it connects."""

    def waiting(self, mode: str) -> str:
        return f"synchronously with synchronous_commit = {SEMI_SYNC[mode]}"

    def lines(self, mode: str) -> tuple[str, ...]:
        return (
            "# the primary's postgresql.conf",
            *self._primary(mode, "replica1"),
            "# the replica's, beside an empty file standby.signal",
            "# primary_conninfo = '… application_name=replica1'",
        )

    def timeout_lines(self) -> tuple[str, ...]:
        """It never falls back."""
        return ()

    def second_lines(self, mode: str) -> tuple[str, ...]:
        return (
            "# the primary's postgresql.conf",
            *self._primary(mode, "replica1, replica2"),
            "# monitor both: SELECT application_name, sync_state",
            "# FROM pg_stat_replication WHERE state = 'streaming'",
        )

    def _primary(self, mode: str, names: str) -> tuple[str, ...]:
        if mode not in SEMI_SYNC:
            return ("synchronous_commit = local", "synchronous_standby_names = ''")
        return (
            f"synchronous_commit = {SEMI_SYNC[mode]}",
            f"synchronous_standby_names = 'ANY 1 ({names})'",
            "# without a replica every commit waits for ever; a wait",
            "# that is cancelled ends with a warning, and no replica has it",
        )


_BINARY_LOG = {
    "mariadb": ("log-bin = binlog", "log-slave-updates = ON", "gtid-strict-mode = ON"),
    "mysql": ("log-bin = binlog", "gtid-mode = ON", "enforce-gtid-consistency = ON"),
}
_DURABLE = ("sync-binlog = 1", "innodb-flush-log-at-trx-commit = 1")
_READ_ONLY = {"mariadb": "read-only = ON", "mysql": "super-read-only = ON"}
_ENDS = {"mariadb": ("master", "slave"), "mysql": ("source", "replica")}
STATUS = {"mariadb": "Rpl_semi_sync_master_status", "mysql": "Rpl_semi_sync_source_status"}


class MyCnf(Configuration):
    """MariaDB or MySQL."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def waiting(self, mode: str) -> str:
        return f"semi-synchronously with {SEMI_SYNC[mode]}"

    def lines(self, mode: str) -> tuple[str, ...]:
        return my_cnf(self._kind, mode)

    def timeout_lines(self) -> tuple[str, ...]:
        return timeout_lines(self._kind)

    def second_lines(self, mode: str) -> tuple[str, ...]:
        """One acknowledgement is all that it waits for by default."""
        return ()


def my_cnf(kind: str, mode: str) -> tuple[str, ...]:
    """Both files, one after the other; `mode` is a level of the factor `replication` with a replica."""
    primary, replica = primary_lines(kind, mode), replica_lines(kind, mode)
    return ("# the primary's file", *primary, "# the replica's file, without the lines above", *replica)


def primary_lines(kind: str, mode: str) -> tuple[str, ...]:
    lines = ("[mysqld]", "server-id = 1", *_BINARY_LOG[kind], *_DURABLE)
    if mode not in SEMI_SYNC:
        return lines
    primary, _ = _ENDS[kind]
    return (
        *lines,
        *_plugin(kind, primary),
        f"rpl-semi-sync-{primary}-enabled = ON",
        f"rpl-semi-sync-{primary}-wait-point = {SEMI_SYNC[mode]}",
        "# milliseconds. Without a replica every commit waits",
        "# this long, then continues without it silently",
        f"rpl-semi-sync-{primary}-timeout = {TIMEOUT_MS}",
    )


def replica_lines(kind: str, mode: str) -> tuple[str, ...]:
    lines = ("[mysqld]", "server-id = 2", _READ_ONLY[kind], *_BINARY_LOG[kind], *_DURABLE)
    if mode not in SEMI_SYNC:
        return lines
    primary, replica = _ENDS[kind]
    return (
        *lines,
        *_plugin(kind, replica),
        f"rpl-semi-sync-{replica}-enabled = ON",
        "# once promoted, with a replica: no read-only,",
        f"# and the rpl-semi-sync-{primary} lines of the primary",
    )


def timeout_lines(kind: str) -> tuple[str, ...]:
    """To keep a primary from falling back, and to see whether it has."""
    primary, _ = _ENDS[kind]
    return (
        "# the primary's file",
        "[mysqld]",
        *_plugin(kind, primary),
        f"rpl-semi-sync-{primary}-timeout = {TIMEOUT_MS}",
        "# monitor it: unless ON, no replica is up to date",
        f"# SHOW GLOBAL STATUS LIKE '{STATUS[kind]}'",
    )


def _plugin(kind: str, end: str) -> tuple[str, ...]:
    """MySQL refuses an option of a plugin that it has not loaded; MariaDB has both ends built in."""
    return (f"plugin-load-add = semisync_{end}.so",) if kind == "mysql" else ()
