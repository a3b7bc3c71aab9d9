"""The tables of a run file, and the way from older formats to the present one. Described for users in docs/run-file.md."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from howfar.store.records import FORMAT_VERSION

APPLICATION_ID = 0x48574652
"""`HWFR` in the file's header: tells a run file from any other SQLite file."""

TABLES = """
CREATE TABLE run (
    run_id TEXT NOT NULL,
    created_unix_ns INTEGER NOT NULL,
    howfar_version TEXT NOT NULL,
    command TEXT NOT NULL,
    plan_name TEXT NOT NULL,
    quick INTEGER NOT NULL,
    plan_toml TEXT NOT NULL,
    plan TEXT NOT NULL,
    seed INTEGER NOT NULL,
    environment TEXT NOT NULL,
    server_kind TEXT NOT NULL,
    server_version TEXT NOT NULL,
    stop TEXT
) STRICT;
CREATE TABLE arm (
    name TEXT PRIMARY KEY,
    place INTEGER NOT NULL UNIQUE,
    role TEXT NOT NULL,
    factors TEXT NOT NULL
) STRICT;
CREATE TABLE trial (
    number INTEGER PRIMARY KEY,
    block INTEGER NOT NULL,
    position INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    arm TEXT NOT NULL REFERENCES arm (name),
    status TEXT NOT NULL,
    void_reason TEXT,
    started_unix_ns INTEGER NOT NULL,
    ended_unix_ns INTEGER NOT NULL,
    elapsed_ns INTEGER,
    transactions INTEGER,
    queries INTEGER,
    turns INTEGER,
    rows INTEGER,
    bytes_to_server INTEGER,
    bytes_to_client INTEGER,
    errors TEXT,
    warmup_transactions INTEGER,
    connect_ns INTEGER,
    receipt TEXT NOT NULL,
    psi_cpu_some_share REAL,
    psi_io_some_share REAL,
    steal_share REAL,
    load_average_1m REAL,
    busy_cpus REAL,
    around TEXT,
    fault TEXT,
    services TEXT,
    told TEXT,
    warnings TEXT NOT NULL,
    UNIQUE (block, position, attempt)
) STRICT;
CREATE TABLE cpu (
    trial INTEGER NOT NULL REFERENCES trial (number),
    place INTEGER NOT NULL,
    role TEXT NOT NULL,
    cpu_ns INTEGER NOT NULL,
    runnable_wait_ns INTEGER NOT NULL,
    busiest_thread_ns INTEGER NOT NULL,
    threads INTEGER NOT NULL,
    voluntary_switches INTEGER NOT NULL,
    involuntary_switches INTEGER NOT NULL,
    PRIMARY KEY (trial, place)
) STRICT, WITHOUT ROWID;
CREATE TABLE interval (
    trial INTEGER NOT NULL REFERENCES trial (number),
    place INTEGER NOT NULL,
    start_ns INTEGER NOT NULL,
    length_ns INTEGER NOT NULL,
    transactions INTEGER NOT NULL,
    queries INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    p50_ns INTEGER NOT NULL,
    p95_ns INTEGER NOT NULL,
    p99_ns INTEGER NOT NULL,
    max_ns INTEGER NOT NULL,
    PRIMARY KEY (trial, place)
) STRICT, WITHOUT ROWID;
CREATE TABLE histogram (
    trial INTEGER NOT NULL REFERENCES trial (number),
    place INTEGER NOT NULL,
    kind TEXT NOT NULL,
    count INTEGER NOT NULL,
    min_ns INTEGER NOT NULL,
    mean_ns REAL NOT NULL,
    p50_ns INTEGER NOT NULL,
    p95_ns INTEGER NOT NULL,
    p99_ns INTEGER NOT NULL,
    max_ns INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (trial, place)
) STRICT;
CREATE TABLE event (
    unix_ns INTEGER NOT NULL,
    what TEXT NOT NULL
) STRICT;
"""


def _add_busy_cpus(connection: sqlite3.Connection) -> None:
    """Format 2 says how many CPUs were at work; of older trials it is unknown."""
    connection.execute("ALTER TABLE trial ADD COLUMN busy_cpus REAL")


def _add_window(connection: sqlite3.Connection) -> None:
    """Format 3 keeps what was seen around the measured window (`window` is a word of SQL)."""
    connection.execute("ALTER TABLE trial ADD COLUMN around TEXT")


def _add_fault(connection: sqlite3.Connection) -> None:
    """Format 4 keeps what was broken on purpose, and what came of it."""
    connection.execute("ALTER TABLE trial ADD COLUMN fault TEXT")


def _add_services(connection: sqlite3.Connection) -> None:
    """Format 5 keeps what a page did with each server, and what it told of itself."""
    connection.execute("ALTER TABLE trial ADD COLUMN services TEXT")
    connection.execute("ALTER TABLE trial ADD COLUMN told TEXT")


UPGRADES: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: _add_busy_cpus,
    2: _add_window,
    3: _add_fault,
    4: _add_services,
}
"""From a format version to the next: what to run on a private copy in memory."""


def create_tables(connection: sqlite3.Connection) -> None:
    """In an empty database, within one transaction."""
    connection.executescript(
        f"BEGIN; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
    )


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring a copy of an older file to the present format, one version at a time."""
    for step in range(version, FORMAT_VERSION):
        UPGRADES[step](connection)
        connection.execute(f"PRAGMA user_version = {step + 1}")
