"""A run as one SQLite file: written trial by trial, readable by anyone at any time, never half a trial in it.

While a run goes on the file is in WAL mode, so readers never wait; at its end it becomes one plain file again. A file
appears under its name only when its head is complete. Not here: any statistic, and the meaning of a record.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from howfar.errors import DiskFull, NewerRunFile, NotARunFile, RunFileError
from howfar.store import records as events
from howfar.store import schema as rows
from howfar.store.partial import NO_ROOM, unfinished
from howfar.store.records import FORMAT_VERSION, Arm, Run, RunInfo, StopReason, Trial
from howfar.store.schema import APPLICATION_ID, create_tables, upgrade

BUSY_TIMEOUT_S = 10.0


class RunFile:
    """A run file open for writing. One writer at a time; close it, or use it as a context manager."""

    is_new = False
    """Made by this very object's maker: nothing is resumed."""

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
            rows.insert_trial(self._db, trial)

    def set_stop(self, stop: StopReason) -> None:
        """Record why no further block is run."""
        with _translated(self.path, "write to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("UPDATE run SET stop = ?", (stop.value,))
            self._add_event(events.stopped(stop))

    def go_on(self, happened: Sequence[str], plan: Mapping[str, Any]) -> None:
        """The run goes on after a break, with `plan` (JSON) from now on. `happened`: event texts, see `records.py`."""
        with _translated(self.path, "write to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("UPDATE run SET stop = NULL")
            rows.update_plan(self._db, plan)
            for what in happened:
                self._add_event(what)

    def confirm(self, arms: Sequence[Arm], what: str) -> None:
        """Arms that the plan has not, and the event that says what they are for: both or neither."""
        with _translated(self.path, "write to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            (first,) = self._db.execute("SELECT count(*) FROM arm").fetchone()
            rows.insert_arms(self._db, arms, int(first))
            self._add_event(what)

    def happened(self, what: str) -> None:
        """An event by itself."""
        with _translated(self.path, "write to"), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._add_event(what)

    def _add_event(self, what: str) -> None:
        rows.insert(self._db, "event", {"unix_ns": time.time_ns(), "what": what})

    def read(self) -> Run:
        """Everything so far."""
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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_absent(path: Path) -> None:
    """Before any work is done: the file can be made and would overwrite nothing. Raises RunFileError."""
    if path.exists() or path.is_symlink():
        raise RunFileError(
            f"{path} exists already; a run file is never overwritten",
            f"`howfar resume {path}` continues it; `--out` gives a new run another name.",
        )
    if not path.parent.is_dir():
        raise RunFileError(
            f"there is no directory {path.parent} for the run file", "Make it, or choose --out elsewhere."
        )
    if not path.parent.stat().st_nlink:
        raise RunFileError(
            "the current directory has been removed", "Go to another, or name a place for the run file with --out."
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RunFileError(
            f"the directory {path.parent} cannot be written to", "Choose a directory of yours with --out."
        )


def create(path: Path, info: RunInfo) -> RunFile:
    """A new run file with its head. Leaves nothing behind when it fails. Raises DiskFull, RunFileError."""
    check_absent(path)
    with _translated(path, "create"), unfinished(path) as partial:
        with contextlib.closing(_connect(partial, "rw")) as db:
            create_tables(db)
            with db:
                db.execute("BEGIN IMMEDIATE")
                rows.insert_info(db, info)
                rows.insert(db, "event", {"unix_ns": time.time_ns(), "what": events.CREATED})
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
    """Explicit transactions only. A finished file in a read-only directory is opened as immutable."""
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
            f"{path} has format {version}, this howfar reads up to {FORMAT_VERSION}", "Install a newer howfar."
        )
    if version < 1:
        raise NotARunFile(f"{path} has format {version}, which never was", "The file is damaged.")
    return version


def _read(db: sqlite3.Connection, path: Path) -> Run:
    db.execute("BEGIN")  # one snapshot for all tables, whatever a writer does meanwhile
    try:
        info, stop = rows.read_info(db)
        return Run(info=info, trials=rows.read_trials(db), stop=stop, events=rows.read_events(db))
    except (ValidationError, ValueError, TypeError, KeyError, IndexError) as error:
        raise NotARunFile(
            f"{path} is damaged: {str(error).splitlines()[0]}", "Read what is left with the sqlite3 program."
        ) from error
    finally:
        db.execute("ROLLBACK")


@contextlib.contextmanager
def _translated(path: Path, doing: str) -> Iterator[None]:
    """Errors of SQLite and of the system, in howfar's words."""
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
        f"Make room (`df {path.parent}`). Every trial finished before is in the file; `howfar resume {path}` continues the run.",
    )
