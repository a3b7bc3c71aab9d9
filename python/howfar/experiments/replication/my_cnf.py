"""Lines for my.cnf of a primary and of its replica, by kind of server and mode: a group for each, and not one for both.

A replica that waits for acknowledgements as well has nobody to give them: its own binary log makes its applier wait for the whole
timeout at the first transaction. A test starts pairs with these very lines and reads on the replica what was written on the primary.
Names of before MySQL 8.0.26 are not here.
"""

from __future__ import annotations

from howfar.plan.types import SEMI_SYNC

FOREVER_MS = 3_600_000
"""An hour: longer than a primary should go on without saying that nobody has its commits."""
_BINARY_LOG = {
    "mariadb": ("log-bin = binlog", "log-slave-updates = ON", "gtid-strict-mode = ON"),
    "mysql": ("log-bin = binlog", "gtid-mode = ON", "enforce-gtid-consistency = ON"),
}
_DURABLE = ("sync-binlog = 1", "innodb-flush-log-at-trx-commit = 1")
_READ_ONLY = {"mariadb": "read-only = ON", "mysql": "super-read-only = ON"}
_ENDS = {"mariadb": ("master", "slave"), "mysql": ("source", "replica")}
STATUS = {"mariadb": "Rpl_semi_sync_master_status", "mysql": "Rpl_semi_sync_source_status"}


def my_cnf(kind: str, mode: str) -> tuple[str, ...]:
    """Both groups, one after the other; `mode` is a level of the factor `replication` with a replica."""
    return (
        "# the primary's file",
        *primary_lines(kind, mode),
        "# the replica's file, without the lines above",
        *replica_lines(kind, mode),
    )


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
        "# so long, and then it goes on in silence",
        f"rpl-semi-sync-{primary}-timeout = {FOREVER_MS}",
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
        "# promoted, with a replica of its own: no read-only,",
        f"# and the rpl-semi-sync-{primary} lines of the primary",
    )


def timeout_lines(kind: str) -> tuple[str, ...]:
    """To keep a primary from falling back, and to see whether it has."""
    primary, _ = _ENDS[kind]
    return (
        "# the primary's file",
        "[mysqld]",
        *_plugin(kind, primary),
        f"rpl-semi-sync-{primary}-timeout = {FOREVER_MS}",
        "# to be watched: ON, or nobody has the latest commits",
        f"# SHOW GLOBAL STATUS LIKE '{STATUS[kind]}'",
    )


def _plugin(kind: str, end: str) -> tuple[str, ...]:
    """MySQL refuses an option of a plugin that it has not loaded; MariaDB has both ends built in."""
    return (f"plugin-load-add = semisync_{end}.so",) if kind == "mysql" else ()
