"""Lines for my.cnf of a primary and its replica, by kind of server and mode. One file serves both: each may become the other.

A test starts servers with these very lines and asks them for the settings. Names of before MySQL 8.0.26 are not here.
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
_PLUGINS = {
    "mariadb": (),
    "mysql": ("plugin-load-add = semisync_source.so", "plugin-load-add = semisync_replica.so"),
}
_ENDS = {"mariadb": ("master", "slave"), "mysql": ("source", "replica")}
STATUS = {"mariadb": "Rpl_semi_sync_master_status", "mysql": "Rpl_semi_sync_source_status"}


def my_cnf(kind: str, mode: str) -> tuple[str, ...]:
    """The whole group; `mode` is a level of the factor `replication` with a replica."""
    lines = ("[mysqld]", "# on the replica 2, and read-only = ON", "server-id = 1", *_BINARY_LOG[kind], *_DURABLE)
    return (*lines, *_semi_sync(kind, SEMI_SYNC[mode])) if mode in SEMI_SYNC else lines


def _semi_sync(kind: str, wait_point: str) -> tuple[str, ...]:
    primary, replica = _ENDS[kind]
    return (
        *_PLUGINS[kind],
        f"rpl-semi-sync-{primary}-enabled = ON",
        f"rpl-semi-sync-{replica}-enabled = ON",
        f"rpl-semi-sync-{primary}-wait-point = {wait_point}",
        "# milliseconds. Without a replica every commit waits so long,",
        "# and then it goes on in silence",
        f"rpl-semi-sync-{primary}-timeout = {FOREVER_MS}",
    )


def timeout_lines(kind: str) -> tuple[str, ...]:
    """To keep a primary from falling back, and to see whether it has."""
    primary, _ = _ENDS[kind]
    return (
        "[mysqld]",
        f"rpl-semi-sync-{primary}-timeout = {FOREVER_MS}",
        "# to be watched: ON, or nobody has the latest commits",
        f"# SHOW GLOBAL STATUS LIKE '{STATUS[kind]}'",
    )
