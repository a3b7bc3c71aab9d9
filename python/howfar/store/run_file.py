"""A run as one SQLite file: written trial by trial, readable at any time, never with half a trial in it.

While a run continues, the file is in WAL mode, so readers never wait. At the end of the run it becomes one plain file again. A file
appears under its name only when its head is complete. Its tables are described in docs/run-file.md, the records in `records.py`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from howfar.contract.message import Message
from howfar.contract.receipt import TrialReceipt
from howfar.contract.receipt_messages import Bytes, CpuUse, Histogram, IntervalFigures, ServiceUse
from howfar.errors import RunFileError
from howfar.file_kinds import RUN_FILE
from howfar.plan.types import PlanJson
from howfar.store import records
from howfar.store.database import (
    Schema,
    check_kind,
    check_regular,
    check_schema,
    check_structure,
    checksum,
    connect,
    damage_error,
    loads,
    open_for_reading,
    reading,
    schema_of,
    translate_errors,
)
from howfar.store.partial import unfinished
from howfar.store.records import (
    FORMAT_VERSION,
    Arm,
    MachineLoad,
    Measured,
    Run,
    RunEvent,
    RunInfo,
    StopReason,
    Trial,
    TrialStatus,
    Window,
    contradictions,
)


class RunFile:
    """A run file open for writing. One writer at a time; close it, or use it as a context manager."""

    is_new = False
    """Whether this object created the file. Otherwise it resumes a run."""

    def __init__(self, path: Path) -> None:
        """Open an existing run file. Raises NotARunFile, NewerRunFile, DiskFull, RunFileError."""
        self.path = path
        with translate_errors(path, "open", RUN_FILE):
            check_regular(path, RUN_FILE)
            # Kept open until the database is closed: closing any descriptor of a file drops SQLite's own locks on it.
            self._lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._take_lock()
            with translate_errors(path, "open", RUN_FILE):
                self._db = connect(path, "rw")
        except BaseException:
            os.close(self._lock)
            raise
        try:
            with reading(path, RUN_FILE):
                self._check()
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")  # a finished trial survives a loss of power
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        """Check that the file is intact and can be continued, so that new checksums never cover data that were not verified."""
        version = check_kind(self._db, self.path, RUN_FILE, FORMAT_VERSION)
        if version < FORMAT_VERSION:
            raise RunFileError(
                f"{self.path} has the older format {version}; it can be read but not continued",
                "`howfar report` reads it. Begin a new run to measure more.",
            )
        check_schema(self._db, self.path, _schema(version))
        _verify_checksums(self._db, self.path)

    @contextmanager
    def _change(self, doing: str = "write to") -> Iterator[sqlite3.Connection]:
        """One transaction, which ends with new checksums. Raises DiskFull, RunFileError."""
        with translate_errors(self.path, doing, RUN_FILE), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            _write_run_checksum(self._db)

    def append_trial(self, trial: Trial) -> None:
        """Write one trial in one transaction, so that the file never has half a trial. Raises DiskFull."""
        with self._change("write a trial to") as db:
            insert_trial(db, trial)
            db.execute(
                "UPDATE trial SET checksum = ? WHERE number = ?",
                (_trial_checksums(db, trial.number)[trial.number], trial.number),
            )

    def set_stop(self, stop: StopReason) -> None:
        """Record why no further block is run."""
        with self._change() as db:
            db.execute("UPDATE run SET stop = ?", (stop.value,))
            self._add_event(records.stopped(stop))

    def extend(self, new_events: Sequence[str], plan: PlanJson) -> None:
        """Record that the run continues after a break, with `plan` from now on. `new_events`: event texts, see `records.py`."""
        with self._change() as db:
            db.execute("UPDATE run SET stop = NULL")
            update_plan(db, plan)
            for event in new_events:
                self._add_event(event)

    def confirm(self, arms: Sequence[Arm], what: str) -> None:
        """Add the arms of a confirmation and the event that describes their purpose, in one transaction."""
        with self._change() as db:
            (first,) = db.execute("SELECT count(*) FROM arm").fetchone()
            insert_arms(db, arms, int(first))
            self._add_event(what)

    def add_event(self, what: str) -> None:
        """Add one event."""
        with self._change():
            self._add_event(what)

    def _add_event(self, what: str) -> None:
        insert(self._db, "event", {"unix_ns": time.time_ns(), "what": what})

    def read(self) -> Run:
        """The run as far as it is in the file."""
        with reading(self.path, RUN_FILE):
            self._db.execute("BEGIN")  # one snapshot for all tables
            try:
                return _read(self._db, self.path, FORMAT_VERSION)
            finally:
                self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Merge the WAL into the file and close it. If merging fails (readers, a full disk), the WAL stays next to it and nothing
        is lost."""
        with contextlib.suppress(sqlite3.Error):
            self._db.rollback()  # a signal may have interrupted a transaction, in which the mode cannot be changed
            self._db.execute("PRAGMA journal_mode = DELETE")
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        os.close(self._lock)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFileError(
                f"another howfar is writing to {self.path}", "Wait for it, or stop it; `howfar report` works meanwhile."
            ) from error

    def __enter__(self) -> RunFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_absent(path: Path) -> None:
    """Check, before any work is done, that the file can be created without overwriting anything. Raises RunFileError."""
    if path.exists() or path.is_symlink():
        raise RunFileError(
            f"{path} already exists; a run file is never overwritten",
            f"`howfar resume {path}` continues it; `--out` gives a new run another name.",
        )
    leftover = path.with_name(path.name + "-wal")
    if leftover.exists():
        raise RunFileError(
            f"{leftover} is left over from a run file that was removed, and would be read as part of a new one of that name",
            "Remove it too, or give the run another name with --out.",
        )
    if not path.parent.is_dir():
        raise RunFileError(
            f"there is no directory {path.parent} for the run file", "Create it, or choose another place with --out."
        )
    if not path.parent.stat().st_nlink:
        raise RunFileError(
            "the current directory has been removed", "Change to another, or name a place for the run file with --out."
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RunFileError(
            f"the directory {path.parent} cannot be written to", "Choose a writable directory with --out."
        )


def create(path: Path, info: RunInfo) -> RunFile:
    """Create a run file with its head. If that fails, nothing is left behind. Raises DiskFull, RunFileError."""
    check_absent(path)
    with translate_errors(path, "create", RUN_FILE), unfinished(path) as partial:
        with contextlib.closing(connect(partial, "rw")) as db:
            create_tables(db)
            with db:
                db.execute("BEGIN IMMEDIATE")
                insert_info(db, info)
                insert(db, "event", {"unix_ns": time.time_ns(), "what": records.CREATED})
                _write_run_checksum(db)
        _publish(partial, path)
    try:
        file = RunFile(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    file.is_new = True
    return file


def _publish(partial: Path, path: Path) -> None:
    """Give the complete file its name. Never replaces another file."""
    try:
        os.link(partial, path)
    except FileExistsError:
        check_absent(path)
        raise
    except OSError:  # a file system without hard links
        check_absent(path)
        partial.rename(path)


def read_run(path: Path) -> Run:
    """Read a whole run, also while another process writes it. Raises NotARunFile, NewerRunFile, RunFileError."""
    with open_for_reading(path, RUN_FILE, FORMAT_VERSION) as (db, version):
        if version == FORMAT_VERSION:
            return _read(db, path, version)
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            db.backup(copy)
            copy.row_factory = sqlite3.Row
            return _read(copy, path, version)


def _read(db: sqlite3.Connection, path: Path, version: int) -> Run:
    """The run in a database, which is upgraded if its format is older. Raises NotARunFile, and what `database.reading` translates."""
    check_schema(db, path, _schema(version))
    is_verified = version >= CHECKSUMS_SINCE
    if is_verified:
        _verify_checksums(db, path)
    else:
        check_structure(db, path)
    upgrade(db, version)
    info, stop = read_info(db)
    run = Run(info=info, trials=read_trials(db), stop=stop, events=read_events(db), is_verified=is_verified)
    records.confirmation(run.events), records.resume_points(run.events)  # check that they can be parsed
    contradiction = next(contradictions(run), None)
    if contradiction is not None:
        raise damage_error(path, contradiction)
    return run


@cache
def _schema(version: int) -> Schema:
    """The tables of a format: the present tables without the columns that later formats added."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        create_tables(db)
        schema = schema_of(db)
    for step in range(version, FORMAT_VERSION):
        for column_sql in UPGRADES[step]:
            table, _, _, name, *_ = column_sql.split()
            schema[table] = frozenset(column for column in schema[table] if column[0] != name)
    return schema


TABLES = """
CREATE TABLE run (
    run_id TEXT NOT NULL,
    created_unix_ns INTEGER NOT NULL, -- since 1970, UTC
    howfar_version TEXT NOT NULL,
    command TEXT NOT NULL, -- JSON
    plan_name TEXT NOT NULL,
    quick INTEGER NOT NULL,
    plan_toml TEXT NOT NULL, -- as written
    plan TEXT NOT NULL, -- JSON, after --quick and options
    seed INTEGER NOT NULL,
    environment TEXT NOT NULL, -- JSON: versions, kernel, machine
    server_kind TEXT NOT NULL,
    server_version TEXT NOT NULL,
    whole_blocks INTEGER NOT NULL, -- since format 6: a block with a void trial was measured again as a whole
    checksum TEXT, -- since format 7: of this row, `arm`, `event`, and the trials' checksums (docs/run-file.md)
    stop TEXT -- width, time, blocks, interrupted; NULL: still measuring, or killed
) STRICT;
CREATE TABLE arm (
    name TEXT PRIMARY KEY,
    place INTEGER NOT NULL UNIQUE, -- order
    role TEXT NOT NULL, -- baseline, duplicate, contender, confirmation
    factors TEXT NOT NULL -- JSON
) STRICT;
CREATE TABLE trial (
    number INTEGER PRIMARY KEY, -- order of execution
    checksum TEXT, -- since format 7: of this row and those of the trial in `cpu`, `interval` and `histogram`
    block INTEGER NOT NULL,
    position INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    repetition INTEGER NOT NULL, -- since format 8: in this place of this attempt, after trials that other programs disturbed
    arm TEXT NOT NULL REFERENCES arm (name),
    status TEXT NOT NULL, -- ok, void
    void_reason TEXT,
    violations TEXT, -- since format 9: JSON: why the trial is void, as ids with parameters (contract/violation.py)
    started_unix_ns INTEGER NOT NULL,
    ended_unix_ns INTEGER NOT NULL,
    elapsed_ns INTEGER, -- of the measured window, as the counts that follow
    transactions INTEGER,
    queries INTEGER,
    turns INTEGER, -- round trips
    rows INTEGER,
    bytes_to_server INTEGER,
    bytes_to_client INTEGER,
    errors TEXT, -- JSON: counts by code
    warmup_transactions INTEGER,
    connect_ns INTEGER,
    receipt TEXT NOT NULL, -- JSON: TrialReceipt in contract/receipt.py
    psi_cpu_some_share REAL, -- of the machine, as what follows
    psi_io_some_share REAL,
    steal_share REAL,
    load_average_1m REAL,
    busy_cpus REAL,
    around TEXT, -- JSON: Window in store/records.py
    fault TEXT, -- JSON: a FaultRecord, by its `kind`
    services TEXT, -- JSON: what operations did with each server
    told TEXT, -- JSON: what an application reported
    warnings TEXT NOT NULL -- JSON
) STRICT;
CREATE UNIQUE INDEX trial_place ON trial (block, position, attempt, repetition);
CREATE TABLE event (
    unix_ns INTEGER NOT NULL,
    what TEXT NOT NULL -- created, resumed: JSON, extended: JSON, confirming: JSON, confirmed: JSON, stopped: ...
) STRICT;
"""


_PART_TABLES: dict[str, type[Message]] = {"cpu": CpuUse, "interval": IntervalFigures, "histogram": Histogram}
"""The tables for the lists in a trial. Their columns are the message's fields."""
_SQL_TYPES: dict[object, str] = {int: "INTEGER", float: "REAL", str: "TEXT"}


def _part_table(name: str, message: type[Message]) -> str:
    """SQL that creates a table of `_PART_TABLES`. Histograms are long, so their table has a rowid, and their data are stored as a
    BLOB, not in base64."""
    columns = (
        f"{field} {'BLOB' if field == 'data' else _SQL_TYPES[field_info.annotation]} NOT NULL"
        for field, field_info in message.model_fields.items()
    )
    key = "trial INTEGER NOT NULL REFERENCES trial (number), place INTEGER NOT NULL"
    options = "STRICT" if message is Histogram else "STRICT, WITHOUT ROWID"
    return f"CREATE TABLE {name} ({key}, {', '.join(columns)}, PRIMARY KEY (trial, place)) {options};"


CHECKSUMS_SINCE = 7
"""The first format with checksums."""

UPGRADES = {
    1: ("trial ADD COLUMN busy_cpus REAL",),
    2: ("trial ADD COLUMN around TEXT",),
    3: ("trial ADD COLUMN fault TEXT",),
    4: ("trial ADD COLUMN services TEXT", "trial ADD COLUMN told TEXT"),
    5: ("run ADD COLUMN whole_blocks INTEGER NOT NULL DEFAULT 0",),
    6: ("run ADD COLUMN checksum TEXT", "trial ADD COLUMN checksum TEXT"),
    7: ("trial ADD COLUMN repetition INTEGER NOT NULL DEFAULT 0",),
    8: ("trial ADD COLUMN violations TEXT",),
}
"""By format: the columns that the next format added. For older trials their values are unknown. `around` is the window, because
`window` is an SQL keyword."""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database, within one transaction."""
    parts = " ".join(_part_table(name, message) for name, message in _PART_TABLES.items())
    connection.executescript(
        f"BEGIN; {TABLES} {parts} PRAGMA application_id = {RUN_FILE.application_id}; PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
    )


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring a copy of an older file to the present format, one version at a time."""
    for step in range(version, FORMAT_VERSION):
        for column_sql in UPGRADES[step]:
            connection.execute(f"ALTER TABLE {column_sql}")
        connection.execute(f"PRAGMA user_version = {step + 1}")


def _trial_checksums(db: sqlite3.Connection, number: int | None = None) -> dict[int, str]:
    """The checksums of all trials, or of trial `number`, computed from their rows."""
    where, parameters = ("", ()) if number is None else (" WHERE {} = ?", (number,))
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for table, key in (("trial", "number"), *((part, "trial") for part in _PART_TABLES)):
        order = key if table == "trial" else "trial, place"
        for row in db.execute(f"SELECT * FROM {table}{where.format(key)} ORDER BY {order}", parameters):
            rows.setdefault(row[key], []).append((table, *_without_checksum(row)))
    return {trial: checksum(trial_rows) for trial, trial_rows in rows.items()}


def _run_checksum(db: sqlite3.Connection) -> str:
    """The checksum of all rows that belong to no trial, and of the numbers and checksums of the trials."""
    rows = [("run", *_without_checksum(row)) for row in db.execute("SELECT * FROM run")]
    rows += [("arm", *row) for row in db.execute("SELECT * FROM arm ORDER BY place")]
    rows += [("event", *row) for row in db.execute("SELECT * FROM event ORDER BY rowid")]
    rows += [("trial", *row) for row in db.execute("SELECT number, checksum FROM trial ORDER BY number")]
    return checksum(rows)


def _without_checksum(row: sqlite3.Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in row.keys() if name != "checksum")  # noqa: SIM118 (a Row's values are iterated)


def _write_run_checksum(db: sqlite3.Connection) -> None:
    """Write the checksum of the run. Its trials already have theirs."""
    db.execute("UPDATE run SET checksum = ?", (_run_checksum(db),))


def _verify_checksums(db: sqlite3.Connection, path: Path) -> None:
    """Check all values against the checksums that were written with them. Raises NotARunFile."""
    stored = dict(db.execute("SELECT number, checksum FROM trial").fetchall())
    computed = _trial_checksums(db)
    for number in sorted(stored.keys() | computed.keys()):
        if stored.get(number) != computed.get(number):
            raise damage_error(path, f"trial {number} is not as it was written")
    if [row["checksum"] for row in db.execute("SELECT checksum FROM run")] != [_run_checksum(db)]:
        raise damage_error(path, "its head, its arms or its events are not as they were written, or a trial is missing")


_JSON_COLUMNS = ("command", "plan", "environment")
_BYTES_COLUMNS = ("bytes_to_server", "bytes_to_client")
_COLUMN_NAMES = {"round_trips": "turns"}
"""Fields that have another name in a run file. When it is read, messages accept either."""
_MEASURED_COLUMNS = (
    *(_COLUMN_NAMES.get(name, name) for name, field in Measured.model_fields.items() if field.annotation is int),
    *_BYTES_COLUMNS,
)
_LOAD_COLUMNS = tuple(MachineLoad.model_fields)
_TRIAL_COLUMNS = (
    "number",
    "block",
    "position",
    "attempt",
    "repetition",
    "arm",
    "status",
    "void_reason",
    "started_unix_ns",
    "ended_unix_ns",
)


def insert(connection: sqlite3.Connection, table: str, row: Mapping[str, object]) -> None:
    """Insert one row. Column names come from this program; values are bound."""
    columns = ", ".join(row)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))


def insert_info(connection: sqlite3.Connection, info: RunInfo) -> None:
    """Insert the head of a run and its arms."""
    row = info.model_dump(mode="json", exclude={"arms"})
    for name in _JSON_COLUMNS:
        row[name] = _json(row[name])
    insert(connection, "run", row)
    insert_arms(connection, info.arms, 0)


def insert_arms(connection: sqlite3.Connection, arms: Iterable[Arm], first: int) -> None:
    """Insert arms. `first`: position of the first of them."""
    for position, arm in enumerate(arms, first):
        insert(
            connection,
            "arm",
            {"name": arm.name, "place": position, "role": arm.role.value, "factors": _json(arm.factors)},
        )


def insert_trial(connection: sqlite3.Connection, trial: Trial) -> None:
    """Insert a trial with its CPU times, intervals and histograms."""
    row: dict[str, object] = {name: getattr(trial, name) for name in _TRIAL_COLUMNS}
    row["status"] = trial.status.value
    if trial.measured is not None:
        fields = _with_bytes_columns(trial.measured)
        row |= {name: fields[name] for name in _MEASURED_COLUMNS}
        row["errors"] = _json(trial.measured.errors)
        row["services"] = _json([_with_bytes_columns(service) for service in trial.measured.services])
        row["told"] = _json(trial.measured.app_counters)
    if trial.load is not None:
        row |= {name: getattr(trial.load, name) for name in _LOAD_COLUMNS}
    if trial.window is not None:
        row["around"] = trial.window.model_dump_json()
    if trial.violations:
        row["violations"] = _json([each.model_dump() for each in trial.violations])
    if trial.fault is not None:
        row["fault"] = trial.fault.model_dump_json()
    row |= {"receipt": _json(trial.receipt.as_json()), "warnings": _json(trial.warnings)}
    insert(connection, "trial", row)
    if trial.measured is not None:
        parts = zip(
            _PART_TABLES, (trial.measured.cpu, trial.measured.intervals, trial.measured.histograms), strict=True
        )
        for table, messages in parts:
            for position, part in enumerate(messages):
                fields = part.model_dump()
                if "data" in fields:
                    fields["data"] = base64.b64decode(fields["data"], validate=True)
                insert(connection, table, {"trial": trial.number, "place": position} | fields)


def _with_bytes_columns(figures: Measured | ServiceUse) -> dict[str, Any]:
    """The fields of `figures`, with the two columns for bytes instead of `bytes`."""
    fields: dict[str, Any] = {}
    for name, value in figures:
        fields |= (
            {f"{name}_{direction}": count for direction, count in value}
            if name == "bytes"
            else {_COLUMN_NAMES.get(name, name): value}
        )
    return fields


def _with_bytes_message(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `_with_bytes_columns`."""
    fields = {name: value for name, value in columns.items() if name not in _BYTES_COLUMNS}
    return fields | {"bytes": Bytes(to_server=columns["bytes_to_server"], to_client=columns["bytes_to_client"])}


def read_info(connection: sqlite3.Connection) -> tuple[RunInfo, StopReason | None]:
    """The head of a run, and why it stopped."""
    rows = connection.execute("SELECT * FROM run").fetchall()
    if len(rows) != 1:
        raise ValueError(f"it holds {len(rows)} runs instead of one")
    row = dict(rows[0])
    stop = row.pop("stop")
    del row["checksum"]
    for name in _JSON_COLUMNS:
        row[name] = loads(row[name])
    row |= {name: bool(row[name]) for name in ("quick", "whole_blocks")}
    row["command"] = _with_present_options(row["command"], row["quick"])
    arm_rows = connection.execute("SELECT * FROM arm ORDER BY place").fetchall()
    if [arm["place"] for arm in arm_rows] != list(range(len(arm_rows))):
        raise ValueError("its arms are not numbered from 0 on")
    arms = tuple(
        Arm.model_validate({"name": arm["name"], "role": arm["role"], "factors": loads(arm["factors"])})
        for arm in arm_rows
    )
    return RunInfo.model_validate(row | {"arms": arms}), None if stop is None else StopReason(stop)


def _with_present_options(command: list[str], quick: bool) -> list[str]:
    """A stored command, translated to present options: formerly a plan ran in full unless --quick was given."""
    if quick or "--full" in command or command[1:2] != ["run"]:
        return [word for word in command if word != "--quick"]
    return [*command[:3], "--full", *command[3:]]


def read_events(connection: sqlite3.Connection) -> tuple[RunEvent, ...]:
    """Events of the run, in order."""
    return tuple(RunEvent(**dict(row)) for row in connection.execute("SELECT * FROM event ORDER BY rowid"))


def update_plan(connection: sqlite3.Connection, plan: PlanJson) -> None:
    """Store the plan as measured from now on."""
    connection.execute("UPDATE run SET plan = ?", (_json(plan),))


def read_trials(connection: sqlite3.Connection) -> tuple[Trial, ...]:
    """All trials in the order in which they ran."""
    parts = {table: _read_parts(connection, table, message) for table, message in _PART_TABLES.items()}
    trials = []
    for row in connection.execute("SELECT * FROM trial ORDER BY number"):
        number = row["number"]
        measured = None
        if row["elapsed_ns"] is not None:
            measured = Measured(
                **_with_bytes_message({name: row[name] for name in _MEASURED_COLUMNS}),
                errors=loads(row["errors"]),
                services=tuple(ServiceUse(**_with_bytes_message(use)) for use in loads(row["services"] or "[]")),
                app_counters=loads(row["told"] or "{}"),
                cpu=tuple(parts["cpu"].get(number, ())),
                intervals=tuple(parts["interval"].get(number, ())),
                histograms=tuple(parts["histogram"].get(number, ())),
            )
        has_load = row["load_average_1m"] is not None
        trials.append(
            Trial(
                **{name: row[name] for name in _TRIAL_COLUMNS if name != "status"},
                status=TrialStatus(row["status"]),
                violations=loads(row["violations"] or "[]"),
                measured=measured,
                receipt=TrialReceipt.model_validate(loads(row["receipt"])),
                fault=None if row["fault"] is None else loads(row["fault"]),
                load=MachineLoad(**{name: row[name] for name in _LOAD_COLUMNS}) if has_load else None,
                window=None if row["around"] is None else Window.model_validate_json(row["around"]),
                warnings=tuple(loads(row["warnings"])),
            )
        )
    return tuple(trials)


def _read_parts(connection: sqlite3.Connection, table: str, message: type[Message]) -> dict[int, list[Any]]:
    """Messages in a table of `_PART_TABLES`, by trial."""
    messages: dict[int, list[Any]] = {}
    for row in connection.execute(f"SELECT * FROM {table} ORDER BY trial, place"):
        fields = {name: row[name] for name in message.model_fields}
        if "data" in fields:
            fields["data"] = base64.b64encode(fields["data"]).decode("ascii")
        messages.setdefault(row["trial"], []).append(message(**fields))
    return messages


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
