"""The tables of a run file, and the way from older formats to the present one. Described for users in docs/run-file.md."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from howfar.store.records import (
    FORMAT_VERSION,
    Arm,
    CpuRecord,
    HistogramRecord,
    IntervalRecord,
    MachineLoad,
    Measured,
    Record,
    RunEvent,
    RunInfo,
    ServiceRecord,
    StopReason,
    Trial,
    TrialStatus,
    Window,
)

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
    whole_blocks INTEGER NOT NULL,
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
CREATE TABLE event (
    unix_ns INTEGER NOT NULL,
    what TEXT NOT NULL
) STRICT;
"""


_PARTS: dict[str, type[Record]] = {"cpu": CpuRecord, "interval": IntervalRecord, "histogram": HistogramRecord}
"""Lists of a trial, each a table whose columns are the record's fields."""
_TYPES: dict[object, str] = {int: "INTEGER", float: "REAL", str: "TEXT"}


def _part_table(name: str, record: type[Record]) -> str:
    """Histograms are long: their rows are kept apart from the key, and the data as they are instead of base64."""
    columns = (
        f"{field} {'BLOB' if field == 'data' else _TYPES[known.annotation]} NOT NULL"
        for field, known in record.model_fields.items()
    )
    key = "trial INTEGER NOT NULL REFERENCES trial (number), place INTEGER NOT NULL"
    options = "STRICT" if record is HistogramRecord else "STRICT, WITHOUT ROWID"
    return f"CREATE TABLE {name} ({key}, {', '.join(columns)}, PRIMARY KEY (trial, place)) {options};"


UPGRADES = {
    1: ("trial ADD COLUMN busy_cpus REAL",),
    2: ("trial ADD COLUMN around TEXT",),
    3: ("trial ADD COLUMN fault TEXT",),
    4: ("trial ADD COLUMN services TEXT", "trial ADD COLUMN told TEXT"),
    5: ("run ADD COLUMN whole_blocks INTEGER NOT NULL DEFAULT 0",),
}
"""What the next format added: `around` is the window (a word of SQL); of older trials these columns are unknown."""


def create_tables(connection: sqlite3.Connection) -> None:
    """In an empty database, within one transaction."""
    parts = " ".join(_part_table(name, record) for name, record in _PARTS.items())
    connection.executescript(
        f"BEGIN; {TABLES} {parts} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
    )


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring a copy of an older file to the present format, one version at a time."""
    for step in range(version, FORMAT_VERSION):
        for added in UPGRADES[step]:
            connection.execute(f"ALTER TABLE {added}")
        connection.execute(f"PRAGMA user_version = {step + 1}")


_INFO_JSON = ("command", "plan", "environment")
_MEASURED = tuple(name for name, field in Measured.model_fields.items() if field.annotation is int)
_LOAD = tuple(MachineLoad.model_fields)
_TRIAL = ("number", "block", "position", "attempt", "arm", "status", "void_reason", "started_unix_ns", "ended_unix_ns")


def insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """One row; column names are ours, values are bound."""
    columns = ", ".join(row)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))


def insert_info(connection: sqlite3.Connection, info: RunInfo) -> None:
    """The head of a run and its arms."""
    row = info.model_dump(mode="json", exclude={"arms"})
    for name in _INFO_JSON:
        row[name] = _json(row[name])
    insert(connection, "run", row)
    insert_arms(connection, info.arms, 0)


def insert_arms(connection: sqlite3.Connection, arms: Iterable[Arm], first: int) -> None:
    """`first`: the place of the first of them."""
    for place, arm in enumerate(arms, first):
        insert(
            connection,
            "arm",
            {"name": arm.name, "place": place, "role": arm.role.value, "factors": _json(arm.factors)},
        )


def insert_trial(connection: sqlite3.Connection, trial: Trial) -> None:
    """A trial with its CPU, series and histograms."""
    row: dict[str, Any] = {name: getattr(trial, name) for name in _TRIAL}
    row["status"] = trial.status.value
    if trial.measured is not None:
        row |= {name: getattr(trial.measured, name) for name in _MEASURED}
        row["errors"] = _json(trial.measured.errors)
        row["services"] = _json([service.model_dump() for service in trial.measured.services])
        row["told"] = _json(trial.measured.told)
    if trial.load is not None:
        row |= {name: getattr(trial.load, name) for name in _LOAD}
    if trial.window is not None:
        row["around"] = trial.window.model_dump_json()
    if trial.fault is not None:
        row["fault"] = trial.fault.model_dump_json()
    row |= {"receipt": _json(trial.receipt), "warnings": _json(trial.warnings)}
    insert(connection, "trial", row)
    if trial.measured is not None:
        parts = zip(_PARTS, (trial.measured.cpu, trial.measured.intervals, trial.measured.histograms), strict=True)
        for table, records in parts:
            for place, part in enumerate(records):
                fields = part.model_dump()
                if "data" in fields:
                    fields["data"] = base64.b64decode(fields["data"], validate=True)
                insert(connection, table, {"trial": trial.number, "place": place} | fields)


def read_info(connection: sqlite3.Connection) -> tuple[RunInfo, StopReason | None]:
    """The head of a run, and why it stopped."""
    row = dict(connection.execute("SELECT * FROM run").fetchone())
    stop = row.pop("stop")
    for name in _INFO_JSON:
        row[name] = json.loads(row[name])
    row |= {name: bool(row[name]) for name in ("quick", "whole_blocks")}
    arms = tuple(
        Arm.model_validate({"name": arm["name"], "role": arm["role"], "factors": json.loads(arm["factors"])})
        for arm in connection.execute("SELECT * FROM arm ORDER BY place")
    )
    return RunInfo.model_validate(row | {"arms": arms}), None if stop is None else StopReason(stop)


def read_events(connection: sqlite3.Connection) -> tuple[RunEvent, ...]:
    """What happened to the run, in order."""
    return tuple(RunEvent(**dict(row)) for row in connection.execute("SELECT * FROM event ORDER BY rowid"))


def update_plan(connection: sqlite3.Connection, plan: Mapping[str, Any]) -> None:
    """The plan as measured from now on."""
    connection.execute("UPDATE run SET plan = ?", (_json(plan),))


def read_trials(connection: sqlite3.Connection) -> tuple[Trial, ...]:
    """All trials in the order in which they ran."""
    parts = {table: _parts(connection, table, record) for table, record in _PARTS.items()}
    trials = []
    for row in connection.execute("SELECT * FROM trial ORDER BY number"):
        number = row["number"]
        measured = None
        if row["elapsed_ns"] is not None:
            measured = Measured(
                **{name: row[name] for name in _MEASURED},
                errors=json.loads(row["errors"]),
                services=tuple(ServiceRecord(**part) for part in json.loads(row["services"] or "[]")),
                told=json.loads(row["told"] or "{}"),
                cpu=tuple(parts["cpu"].get(number, ())),
                intervals=tuple(parts["interval"].get(number, ())),
                histograms=tuple(parts["histogram"].get(number, ())),
            )
        has_load = row["load_average_1m"] is not None
        trials.append(
            Trial(
                **{name: row[name] for name in _TRIAL if name != "status"},
                status=TrialStatus(row["status"]),
                measured=measured,
                receipt=json.loads(row["receipt"]),
                fault=None if row["fault"] is None else json.loads(row["fault"]),
                load=MachineLoad(**{name: row[name] for name in _LOAD}) if has_load else None,
                window=None if row["around"] is None else Window.model_validate_json(row["around"]),
                warnings=tuple(json.loads(row["warnings"])),
            )
        )
    return tuple(trials)


def _parts(connection: sqlite3.Connection, table: str, record: type[Record]) -> dict[int, list[Any]]:
    """By trial."""
    found: dict[int, list[Any]] = {}
    for row in connection.execute(f"SELECT * FROM {table} ORDER BY trial, place"):
        fields = {name: row[name] for name in record.model_fields}
        if "data" in fields:
            fields["data"] = base64.b64encode(fields["data"]).decode("ascii")
        found.setdefault(row["trial"], []).append(record(**fields))
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
