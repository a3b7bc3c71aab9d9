"""SQLite files that howfar writes: only a complete file of the right kind is read, and damage is reported as an error.

The checks come in this order: the file is regular; its kind; its format; its schema; and its values against the checksums that were
written with them. No value is used before that. Modules that import this one define the tables of each kind of file.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import shlex
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import ValidationError

from howfar.errors import DiskFull, NewerRunFile, NotARunFile, RunFileError
from howfar.file_kinds import (
    HEADER_BYTES,
    FileKind,
    file_kind_by_id,
    file_kind_by_suffix,
    find_file_kind,
    find_text_format,
)
from howfar.store.partial import NO_ROOM

BUSY_TIMEOUT_S = 10.0
MAX_VALUE_BYTES = 256 << 20
"""Maximum length of a text or BLOB. A longer one is reported as damage."""
MAX_DEPTH = 64
"""Maximum nesting of JSON. No receipt is nested more deeply."""

Schema = dict[str, frozenset[tuple[str, str, bool]]]
"""By table: the name and the type of each column, and whether it is NOT NULL."""

_DAMAGE_ADVICE = "Use a copy of it, or measure again. `sqlite3 {} .recover` prints what can still be read, as SQL."


def damage_error(path: Path, what: str) -> NotARunFile:
    """The error for a damaged file. `what`: what is damaged."""
    return NotARunFile(f"{path} is damaged: {what}", _DAMAGE_ADVICE.format(shlex.quote(str(path))))


def connect(path: Path, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """Connect, with explicit transactions only. A finished file in a read-only directory is opened as immutable."""
    uri = f"file:{quote(os.fsencode(path.resolve()))}?mode={mode}"
    if mode == "ro" and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        uri += "&immutable=1"
    # The connection is used by several threads: a recording is written by the thread that collects it.
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def check_regular(path: Path, kind: FileKind) -> None:
    """Check that the path is a regular file before anything opens it: opening a pipe would block. Raises NotARunFile, OSError."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise NotARunFile(f"{path} is a directory, not a {kind.name}", f"Give the {kind.suffix} file itself.")
    if not stat.S_ISREG(status.st_mode):
        raise NotARunFile(f"{path} is not a regular file", kind.advice)
    if status.st_size == 0:
        raise NotARunFile(f"{path} is empty, not a {kind.name}", kind.advice)


def kind_of(path: Path) -> FileKind | None:
    """The kind of a regular file, by its content. None if it is not one of howfar's. Do not call this for a database that this process
    has open: closing the file drops SQLite's locks."""
    return find_file_kind(_read_head(path)) if path.is_file() else None


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEADER_BYTES)


def check_kind(db: sqlite3.Connection, path: Path, kind: FileKind, newest: int) -> int:
    """Check that a file is of this kind; returns its format. Raises NotARunFile, NewerRunFile, sqlite3.Error."""
    actual_kind = file_kind_by_id(db.execute("PRAGMA application_id").fetchone()[0])
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if actual_kind is None:
        if path.suffix == kind.suffix and not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise damage_error(path, "it holds no table")
        raise NotARunFile(f"{path} is not a howfar {kind.name}", kind.advice)
    if actual_kind is not kind:
        raise NotARunFile(
            f"{path} is a {actual_kind.name}, not a {kind.name}",
            f"Use `{actual_kind.reader.format(shlex.quote(str(path)))}`.",
        )
    if version < 1:
        raise damage_error(path, f"format {version} has never existed")
    if version > newest:
        raise NewerRunFile(
            f"{path} has format {version}, but this howfar reads formats up to {newest}", "Install a newer howfar."
        )
    return version


def schema_of(db: sqlite3.Connection) -> Schema:
    """The ordinary STRICT tables of a database. Views, virtual tables and generated columns are left out."""
    tables = [
        (str(name), bool(strict)) for _, name, kind, _, _, strict in db.execute("PRAGMA table_list") if kind == "table"
    ]
    return {name: _columns(db, name) for name, strict in tables if strict}


def _columns(db: sqlite3.Connection, table: str) -> frozenset[tuple[str, str, bool]]:
    rows = db.execute('SELECT name, type, "notnull", hidden FROM pragma_table_xinfo(?)', (table,))
    return frozenset((name, kind, bool(required)) for name, kind, required, hidden in rows if not hidden)


def check_schema(db: sqlite3.Connection, path: Path, expected: Schema) -> None:
    """Check that `expected` are ordinary tables with exactly these columns, and that there is no trigger. Raises NotARunFile,
    sqlite3.Error."""
    actual = schema_of(db)
    for table, columns in expected.items():
        if table not in actual:
            raise damage_error(path, f"{table} is no table of it")
        if actual[table] != columns:
            raise damage_error(path, f"the table {table} has other columns than its format")
    if trigger := db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchone():
        raise damage_error(path, f"it has a trigger, {trigger[0]}")


def check_structure(db: sqlite3.Connection, path: Path) -> None:
    """Check the database's pages and the types of its values, for a file without checksums. Raises NotARunFile, sqlite3.Error."""
    (result,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise damage_error(path, str(result).splitlines()[-1])


def checksum(rows: Iterable[Sequence[Any]]) -> str:
    """SHA-256 of rows as SQLite stores them. Each row is a JSON array with a line end, in which a BLOB is base64."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(_encode_json(tuple(row)).encode("ascii") + b"\n")
    return digest.hexdigest()


_encode_json = json.JSONEncoder(
    separators=(",", ":"), default=lambda blob: base64.b64encode(blob).decode("ascii")
).encode


def loads(text: str) -> Any:
    """Parse JSON from a file. Its numbers must be finite, and it must not be nested more deeply than MAX_DEPTH. Raises ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    _check_json(value, MAX_DEPTH)
    return value


def _check_json(value: Any, depth_left: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number in JSON is not finite")
    if isinstance(value, dict | list):
        if not depth_left:
            raise ValueError("JSON is nested too deeply")
        for item in value.values() if isinstance(value, dict) else value:
            _check_json(item, depth_left - 1)


@contextmanager
def reading(path: Path, kind: FileKind) -> Iterator[None]:
    """Translate the errors that a damaged file causes in the body, which reads it. Raises NotARunFile, RunFileError."""
    try:
        with translate_errors(path, "read", kind):
            yield
    except ValidationError as error:
        first = error.errors()[0]
        raise damage_error(path, f"{error.title}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise damage_error(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


@contextmanager
def translate_errors(path: Path, doing: str, kind: FileKind) -> Iterator[None]:
    """Translate errors of SQLite and of the operating system in the body. Raises NotARunFile, DiskFull, RunFileError."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _disk_full_error(path, doing, error.strerror or "", kind) from error
        raise RunFileError(f"cannot {doing} {path}: {error.strerror}", "Check the name and the permissions.") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # an error without a code: invalid UTF-8
        if code == sqlite3.SQLITE_FULL or code in _WRITE_FAILURES:
            raise _disk_full_error(path, doing, str(error), kind) from error
        if code & 0xFF == sqlite3.SQLITE_NOTADB:
            other_kind = find_text_format(_read_head(path))
            what = f"{other_kind}, not a {kind.name}" if other_kind else f"not a howfar {kind.name}"
            damage_note = ", or its beginning is damaged" if file_kind_by_suffix(path) is kind else ""
            raise NotARunFile(f"{path} is {what}{damage_note}", kind.advice) from error
        if code & 0xFF in _DAMAGE_CODES:
            raise damage_error(path, str(error).partition(" with text ")[0]) from error
        raise RunFileError(f"cannot {doing} {path}: {error}", "Check the permissions and the disk.") from error


_DAMAGE_CODES = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
}

# SQLite reports `full` for ENOSPC only; a quota or a file size limit causes a failed write.
_WRITE_FAILURES = {
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_SHMSIZE,
}


def _disk_full_error(path: Path, doing: str, reason: str, kind: FileKind) -> DiskFull:
    return DiskFull(
        f"cannot {doing} {path}: the file system takes no more ({reason}): disk full, quota or size limit",
        f"Free some space (see `df {path.parent}`). {kind.kept.format(shlex.quote(str(path)))}",
    )


@contextmanager
def open_for_reading(path: Path, kind: FileKind, newest: int) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Open a file of this kind for reading, in one snapshot that writers do not affect. Yields the database and its format. Raises
    NotARunFile, NewerRunFile, RunFileError."""
    with reading(path, kind):
        check_regular(path, kind)
        with contextlib.closing(connect(path, "ro")) as db:
            version = check_kind(db, path, kind, newest)
            db.execute("BEGIN")
            yield db, version
