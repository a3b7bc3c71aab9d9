"""A run as one SQLite file: written trial by trial, readable by anyone at any time, never half a trial in it.

While a run goes on the file is in WAL mode, so readers never wait; at its end it becomes one plain file again. A file
appears under its name only when its head is complete. Its tables are described in docs/run-file.md. Not here: any statistic, and the
meaning of a record.
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
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from howfar.errors import DiskFull, NewerRunFile, NotARunFile, RunFileError
from howfar.store import records as events
from howfar.store.partial import NO_ROOM, unfinished
from howfar.store.records import (
    FORMAT_VERSION,
    Arm,
    CpuRecord,
    HistogramRecord,
    IntervalRecord,
    MachineLoad,
    Measured,
    Record,
    Run,
    RunEvent,
    RunInfo,
    ServiceRecord,
    StopReason,
    Trial,
    TrialStatus,
    Window,
)

BUSY_TIMEOUT_S = 10.0


class RunFile:
    """A run file open for writing. One writer at a time; close it, or use it as a context manager."""

    is_new = False
    """Whether this object made the file, so that nothing is resumed."""

    def __init__(self, path: Path) -> None:
        """Open an existing run file. Raises NotARunFile, NewerRunFile, DiskFull, RunFileError."""
        self.path = path
        with _translated(path, "open"):
            # Held until the database is closed: closing any descriptor of a file drops SQLite's own locks on it.
            self._lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._take_lock()
            with _translated(path, "open"):
                self._db = _connect(path, "rw")
        except BaseException:
            os.close(self._lock)
            raise
        try:
            with _translated(path, "open"):
                version = _check_format(self._db, path)
                if version < FORMAT_VERSION:
                    raise RunFileError(
                        f"{path} has the older format {version}; it can be read but not continued",
                        "`howfar report` reads it. Begin a new run to measure more.",
                    )
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")  # a finished trial survives a loss of power
        except BaseException:
            self.close()
            raise

    def append_trial(self, trial: Trial) -> None:
        """Write one trial and commit. Either the whole trial is in the file or nothing of it. Raises DiskFull."""
        with _translated(self.path, "write a trial to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            insert_trial(self._db, trial)

    def set_stop(self, stop: StopReason) -> None:
        """Record why no further block is run."""
        with _translated(self.path, "write to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("UPDATE run SET stop = ?", (stop.value,))
            self._add_event(events.stopped(stop))

    def go_on(self, happened: Sequence[str], plan: Mapping[str, Any]) -> None:
        """Record that the run continues after a break, with `plan` (JSON) from now on. `happened`: event texts, see `records.py`."""
        with _translated(self.path, "write to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("UPDATE run SET stop = NULL")
            update_plan(self._db, plan)
            for what in happened:
                self._add_event(what)

    def confirm(self, arms: Sequence[Arm], what: str) -> None:
        """Add arms that the plan does not have, and the event that says what they are for: both or neither."""
        with _translated(self.path, "write to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            (first,) = self._db.execute("SELECT count(*) FROM arm").fetchone()
            insert_arms(self._db, arms, int(first))
            self._add_event(what)

    def happened(self, what: str) -> None:
        """Add an event by itself."""
        with _translated(self.path, "write to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._add_event(what)

    def _add_event(self, what: str) -> None:
        insert(self._db, "event", {"unix_ns": time.time_ns(), "what": what})

    def read(self) -> Run:
        """The run as it is in the file so far."""
        with _translated(self.path, "read"):
            return _read(self._db, self.path)

    def close(self) -> None:
        """Fold the log into the file. When that fails (readers, a full disk) the log stays next to it and nothing is lost."""
        with contextlib.suppress(sqlite3.Error):
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
    """Check, before any work is done, that the file can be made and would overwrite nothing. Raises RunFileError."""
    if path.exists() or path.is_symlink():
        raise RunFileError(
            f"{path} already exists; a run file is never overwritten",
            f"`howfar resume {path}` continues it; `--out` gives a new run another name.",
        )
    left = path.with_name(path.name + "-wal")
    if left.exists():
        raise RunFileError(
            f"{left} is left over from a run file that was removed, and would be read as part of a new one of that name",
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
    """Make a run file with its head. Leaves nothing behind when it fails. Raises DiskFull, RunFileError."""
    check_absent(path)
    with _translated(path, "create"), unfinished(path) as partial:
        with contextlib.closing(_connect(partial, "rw")) as db:
            create_tables(db)
            with db:
                db.execute("BEGIN IMMEDIATE")
                insert_info(db, info)
                insert(db, "event", {"unix_ns": time.time_ns(), "what": events.CREATED})
        _publish(partial, path)
    try:
        file = RunFile(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    file.is_new = True
    return file


def _publish(partial: Path, path: Path) -> None:
    """Give the complete file its name, never replacing another file."""
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
    with _translated(path, "read"):
        if path.is_dir():
            raise NotARunFile(f"{path} is a directory, not a run file", "Give the .howfar file itself.")
        path.stat()  # for a plain message when it is missing; never opened here, see RunFile.__init__
        with contextlib.closing(_connect(path, "ro")) as db:
            version = _check_format(db, path)
            if version == FORMAT_VERSION:
                return _read(db, path)
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                db.backup(copy)
                copy.row_factory = sqlite3.Row
                upgrade(copy, version)
                return _read(copy, path)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Connect, with explicit transactions only. A finished file in a read-only directory is opened as immutable."""
    uri = f"file:{quote(str(path.resolve()))}?mode={mode}"
    if mode == "ro" and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        uri += "&immutable=1"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    db.row_factory = sqlite3.Row
    return db


def _check_format(db: sqlite3.Connection, path: Path) -> int:
    """The format version. Raises NotARunFile, NewerRunFile."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise NotARunFile(f"{path} is not a howfar run file", "Run files end in .howfar; `howfar run` writes them.")
    if version > FORMAT_VERSION:
        raise NewerRunFile(
            f"{path} has format {version}, but this howfar reads formats up to {FORMAT_VERSION}",
            "Install a newer howfar.",
        )
    if version < 1:
        raise NotARunFile(f"{path} has format {version}, which never existed", "The file is damaged.")
    return version


def _read(db: sqlite3.Connection, path: Path) -> Run:
    db.execute("BEGIN")  # one snapshot for all tables, whatever a writer does meanwhile
    try:
        info, stop = read_info(db)
        return Run(info=info, trials=read_trials(db), stop=stop, events=read_events(db))
    except (ValidationError, ValueError, TypeError, KeyError, IndexError) as error:
        raise NotARunFile(
            f"{path} is damaged: {str(error).splitlines()[0]}", "Read what is left with the sqlite3 program."
        ) from error
    finally:
        db.execute("ROLLBACK")


@contextlib.contextmanager
def _translated(path: Path, doing: str) -> Iterator[None]:
    """Translate errors of SQLite and of the system into howfar's."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _full(path, doing, error.strerror or "") from error
        raise RunFileError(f"cannot {doing} {path}: {error.strerror}", "Check the name and the permissions.") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_FULL or code in _REFUSED_WRITE:
            raise _full(path, doing, str(error)) from error
        if code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise NotARunFile(
                f"{path} is not a howfar run file: {error}", "Run files end in .howfar; `howfar run` writes them."
            ) from error
        raise RunFileError(f"cannot {doing} {path}: {error}", "Check the permissions and the disk.") from error


# SQLite says `full` for ENOSPC only; a quota and a file size limit come as a failed write.
_REFUSED_WRITE = {
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_SHMSIZE,
}


def _full(path: Path, doing: str, reason: str) -> DiskFull:
    return DiskFull(
        f"cannot {doing} {path}: the file system takes no more ({reason}): disk full, quota or size limit",
        f"Free some space (see `df {path.parent}`). All finished trials are in the file; `howfar resume {path}` continues the run.",
    )


APPLICATION_ID = 0x48574652
"""`HWFR` in the file's header: tells a run file from any other SQLite file."""

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
    block INTEGER NOT NULL,
    position INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    arm TEXT NOT NULL REFERENCES arm (name),
    status TEXT NOT NULL, -- ok, void
    void_reason TEXT,
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
    receipt TEXT NOT NULL, -- JSON; sections session, server, forwarder, link, replication, services, application
    psi_cpu_some_share REAL, -- of the machine, as what follows
    psi_io_some_share REAL,
    steal_share REAL,
    load_average_1m REAL,
    busy_cpus REAL,
    around TEXT, -- JSON: Window in store/records.py
    fault TEXT, -- JSON: CrashRecord or FallbackRecord there
    services TEXT, -- JSON: what pages did with each server
    told TEXT, -- JSON: what an application reported
    warnings TEXT NOT NULL, -- JSON
    UNIQUE (block, position, attempt)
) STRICT;
CREATE TABLE event (
    unix_ns INTEGER NOT NULL,
    what TEXT NOT NULL -- created, resumed: JSON, extended: JSON, confirming: JSON, confirmed: JSON, stopped: ...
) STRICT;
"""


_PARTS: dict[str, type[Record]] = {"cpu": CpuRecord, "interval": IntervalRecord, "histogram": HistogramRecord}
"""Lists of a trial, each a table whose columns are the record's fields."""
_TYPES: dict[object, str] = {int: "INTEGER", float: "REAL", str: "TEXT"}


def _part_table(name: str, record: type[Record]) -> str:
    """SQL of such a table. Histograms are long: their rows are kept apart from the key, and the data raw instead of base64."""
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
"""Columns that the next format added: `around` is the window (a word of SQL); for older trials they are unknown."""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database, within one transaction."""
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
    """Insert one row; column names are ours, values are bound."""
    columns = ", ".join(row)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))


def insert_info(connection: sqlite3.Connection, info: RunInfo) -> None:
    """Insert the head of a run and its arms."""
    row = info.model_dump(mode="json", exclude={"arms"})
    for name in _INFO_JSON:
        row[name] = _json(row[name])
    insert(connection, "run", row)
    insert_arms(connection, info.arms, 0)


def insert_arms(connection: sqlite3.Connection, arms: Iterable[Arm], first: int) -> None:
    """Insert arms. `first`: position of the first of them."""
    for place, arm in enumerate(arms, first):
        insert(
            connection,
            "arm",
            {"name": arm.name, "place": place, "role": arm.role.value, "factors": _json(arm.factors)},
        )


def insert_trial(connection: sqlite3.Connection, trial: Trial) -> None:
    """Insert a trial with its CPU, series and histograms."""
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
    row["command"] = _today(row["command"], row["quick"])
    arms = tuple(
        Arm.model_validate({"name": arm["name"], "role": arm["role"], "factors": json.loads(arm["factors"])})
        for arm in connection.execute("SELECT * FROM arm ORDER BY place")
    )
    return RunInfo.model_validate(row | {"arms": arms}), None if stop is None else StopReason(stop)


def _today(command: list[str], quick: bool) -> list[str]:
    """A stored command in today's options: once a plan ran in full unless it had --quick."""
    if quick or "--full" in command or command[1:2] != ["run"]:
        return [word for word in command if word != "--quick"]
    return [*command[:3], "--full", *command[3:]]


def read_events(connection: sqlite3.Connection) -> tuple[RunEvent, ...]:
    """Events of the run, in order."""
    return tuple(RunEvent(**dict(row)) for row in connection.execute("SELECT * FROM event ORDER BY rowid"))


def update_plan(connection: sqlite3.Connection, plan: Mapping[str, Any]) -> None:
    """Store the plan as measured from now on."""
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
    """Rows of such a table, by trial."""
    found: dict[int, list[Any]] = {}
    for row in connection.execute(f"SELECT * FROM {table} ORDER BY trial, place"):
        fields = {name: row[name] for name in record.model_fields}
        if "data" in fields:
            fields["data"] = base64.b64encode(fields["data"]).decode("ascii")
        found.setdefault(row["trial"], []).append(record(**fields))
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
