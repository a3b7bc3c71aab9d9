"""A server's counters under common names, to which each kind of server translates its own.

A run file stores them in one mapping, together with the counters that only this kind of server has, under the server's own names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class ServerMetrics:
    """Counts since the server started, or over a window. None: this server does not count it."""

    requests: int | None = None
    statements: int | None = None
    """Reads, writes, BEGIN and COMMIT, prepared or not; for a key-value store, gets and sets."""
    transactions: int | None = None
    """Transactions that were committed or rolled back."""
    bytes_received: int | None = None
    bytes_sent: int | None = None
    connections: int | None = None
    commits: int | None = None
    fsyncs: int | None = None
    pages_read: int | None = None
    """Pages read from files into memory."""
    lock_waits: int | None = None
    """Waits of transactions for a row."""
    lock_wait_ms: int | None = None
    running: int | None = None
    """Requests in progress when the server is queried, including that query."""
    clients: int | None = None
    """Sessions when the server is queried, without the laboratory's own."""
    lookup_hits: int | None = None
    lookup_misses: int | None = None
    evicted_keys: int | None = None
    rejected_connections: int | None = None

    def __add__(self, other: ServerMetrics) -> ServerMetrics:
        """The sum of the counts of two servers. If one of them lacks a count, the other's is used."""
        return self._combined(other, lambda one, two: two if one is None else one + (two or 0))

    def __sub__(self, other: ServerMetrics) -> ServerMetrics:
        """These counts minus those of `other`. A count that `other` lacks is unchanged."""
        return self._combined(other, lambda one, two: None if one is None else one - (two or 0))

    def _combined(self, other: ServerMetrics, combine: Callable[[int | None, int | None], int | None]) -> ServerMetrics:
        other_counts = asdict(other)
        return ServerMetrics(**{name: combine(count, other_counts[name]) for name, count in asdict(self).items()})


def server_metrics(counters: Mapping[str, int]) -> ServerMetrics:
    """Metrics from the counters of a snapshot, a receipt or a window."""
    names = ServerMetrics.__dataclass_fields__
    known = {name: count for name, count in counters.items() if name in names}
    return ServerMetrics(**known or _from_older_names(counters))


# ---------------------------------------------------------------- older run files


_OLDER_NAMES = {
    "requests": ("Questions",),
    "bytes_received": ("Bytes_received",),
    "bytes_sent": ("Bytes_sent",),
    "connections": ("Connections", "sessions"),
    "commits": ("Handler_commit", "xact_commit"),
    "fsyncs": ("Innodb_data_fsyncs", "wal_sync"),
    "pages_read": ("Innodb_buffer_pool_reads", "blks_read"),
    "lock_waits": ("Innodb_row_lock_waits",),
    "lock_wait_ms": ("Innodb_row_lock_time",),
    "running": ("Threads_running", "active_backends"),
    "clients": ("client_backends",),
    "lookup_hits": ("Lookup_hits",),
    "lookup_misses": ("Lookup_misses",),
}
"""Names in older run files: those of MariaDB and MySQL, which were also used for Redis and Memcached, and those of PostgreSQL."""
_OLDER_STATEMENTS = ("Com_select", "Com_insert", "Com_update", "Com_delete", "Com_begin", "Com_commit")
_OLDER_COMMANDS = ("Calls_get", "Calls_set")
_OLDER_SUMS = {
    "statements": (
        (*_OLDER_STATEMENTS, "Qcache_hits"),
        _OLDER_STATEMENTS,
        (*_OLDER_COMMANDS, "Calls_mget"),
        _OLDER_COMMANDS,
    ),
    "transactions": (("xact_commit", "xact_rollback"),),
}
"""Sums of older counters. The first sum whose parts all exist is used."""


def _from_older_names(counters: Mapping[str, int]) -> dict[str, int]:
    found = {field: [counters[name] for name in names if name in counters] for field, names in _OLDER_NAMES.items()}
    for field, sums in _OLDER_SUMS.items():
        complete_sums = (names for names in sums if all(name in counters for name in names))
        found[field] = [sum(counters[name] for name in names) for names in complete_sums]
    return {field: counts[0] for field, counts in found.items() if counts}
