"""SQLite files that howfar writes: only a complete file of the right kind is read, and damage is reported as an error.

Checks, in this order: a regular file, its kind, its format, its schema, and its values against the checksums that were written with
them. No value is used before that. Not here: the tables of any kind of file, and the meaning of a value.
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
from howfar.file_kinds import HEAD_BYTES, FileKind, by_suffix, recognise, text_kind, with_id
from howfar.store.partial import NO_ROOM

BUSY_TIMEOUT_S = 10.0
MOST_VALUE_BYTES = 256 << 20
"""Longest text or BLOB that is read; a greater length is damage."""
MOST_DEPTH = 64
"""Maximum nesting of JSON; no receipt is nested more deeply."""

Schema = dict[str, frozenset[tuple[str, str, bool]]]
"""Tables with the name and the type of each column, and whether it is NOT NULL."""

_WHAT_IS_LEFT = "Use a copy of it, or measure again. `sqlite3 {} .recover` prints what can still be read, as SQL."


def damaged(path: Path, what: str) -> NotARunFile:
    """The error for a damaged file of howfar."""
    return NotARunFile(f"{path} is damaged: {what}", _WHAT_IS_LEFT.format(shlex.quote(str(path))))


def connect(path: Path, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """Connect, with explicit transactions only. A finished file in a read-only directory is opened as immutable."""
    uri = f"file:{quote(os.fsencode(path.resolve()))}?mode={mode}"
    if mode == "ro" and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        uri += "&immutable=1"
    # Used by several threads: a recording is written by the thread that collects it.
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def check_regular(path: Path, kind: FileKind) -> None:
    """Check the path before anything opens it: opening a pipe would block. Raises NotARunFile, OSError."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise NotARunFile(f"{path} is a directory, not a {kind.name}", f"Give the {kind.suffix} file itself.")
    if not stat.S_ISREG(status.st_mode):
        raise NotARunFile(f"{path} is not a regular file", kind.advice)
    if status.st_size == 0:
        raise NotARunFile(f"{path} is empty, not a {kind.name}", kind.advice)


def kind_of(path: Path) -> FileKind | None:
    """The kind of a regular file, by its content; None if it is not howfar's. Not for a file that this process has open: closing it
    again drops SQLite's locks."""
    return recognise(_head(path)) if path.is_file() else None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def check_kind(db: sqlite3.Connection, path: Path, kind: FileKind, newest: int) -> int:
    """The format of a file of this kind. Raises NotARunFile, NewerRunFile, sqlite3.Error."""
    found = with_id(db.execute("PRAGMA application_id").fetchone()[0])
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if found is None:
        if path.suffix == kind.suffix and not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise damaged(path, "it holds no table")
        raise NotARunFile(f"{path} is not a howfar {kind.name}", kind.advice)
    if found is not kind:
        raise NotARunFile(
            f"{path} is a {found.name}, not a {kind.name}", f"Use `{found.reader.format(shlex.quote(str(path)))}`."
        )
    if version < 1:
        raise damaged(path, f"format {version} has never existed")
    if version > newest:
        raise NewerRunFile(
            f"{path} has format {version}, but this howfar reads formats up to {newest}", "Install a newer howfar."
        )
    return version


def schema_of(db: sqlite3.Connection) -> Schema:
    """The ordinary STRICT tables of a database, without views, virtual tables and generated columns."""
    tables = [
        (str(name), bool(strict)) for _, name, kind, _, _, strict in db.execute("PRAGMA table_list") if kind == "table"
    ]
    return {name: _columns(db, name) for name, strict in tables if strict}


def _columns(db: sqlite3.Connection, table: str) -> frozenset[tuple[str, str, bool]]:
    found = db.execute('SELECT name, type, "notnull", hidden FROM pragma_table_xinfo(?)', (table,))
    return frozenset((name, kind, bool(required)) for name, kind, required, hidden in found if not hidden)


def check_schema(db: sqlite3.Connection, path: Path, wanted: Schema) -> None:
    """Check that `wanted` are ordinary tables with exactly these columns, and that there is no trigger. Raises NotARunFile,
    sqlite3.Error."""
    found = schema_of(db)
    for table, columns in wanted.items():
        if table not in found:
            raise damaged(path, f"{table} is no table of it")
        if found[table] != columns:
            raise damaged(path, f"the table {table} has other columns than its format")
    if trigger := db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchone():
        raise damaged(path, f"it has a trigger, {trigger[0]}")


def check_structure(db: sqlite3.Connection, path: Path) -> None:
    """Check pages and the types of values, for a file whose values have no checksums. Raises NotARunFile, sqlite3.Error."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise damaged(path, str(found).splitlines()[-1])


def checksum(rows: Iterable[Sequence[Any]]) -> str:
    """SHA-256 of rows as SQLite stores them: each a JSON array with a line end, with the bytes of a BLOB in base64."""
    summed = hashlib.sha256()
    for row in rows:
        summed.update(_WRITE(tuple(row)).encode("ascii") + b"\n")
    return summed.hexdigest()


_WRITE = json.JSONEncoder(separators=(",", ":"), default=lambda blob: base64.b64encode(blob).decode("ascii")).encode


def loads(text: str) -> Any:
    """JSON of a file: finite numbers, and not deeper than MOST_DEPTH. Raises ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    _check_json(value, MOST_DEPTH)
    return value


def _check_json(value: Any, left: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number in JSON is not finite")
    if isinstance(value, dict | list):
        if not left:
            raise ValueError("JSON is nested too deeply")
        for each in value.values() if isinstance(value, dict) else value:
            _check_json(each, left - 1)


@contextmanager
def reading(path: Path, kind: FileKind) -> Iterator[None]:
    """Translate the errors that a damaged file causes in its reader. Raises NotARunFile, RunFileError."""
    try:
        with translated(path, "read", kind):
            yield
    except ValidationError as error:
        first = error.errors()[0]
        raise damaged(path, f"{error.title}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise damaged(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


@contextmanager
def translated(path: Path, doing: str, kind: FileKind) -> Iterator[None]:
    """Translate errors of SQLite and of the system into howfar's. Raises NotARunFile, DiskFull, RunFileError."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _full(path, doing, error.strerror or "", kind) from error
        raise RunFileError(f"cannot {doing} {path}: {error.strerror}", "Check the name and the permissions.") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # without a code: text is not valid UTF-8
        if code == sqlite3.SQLITE_FULL or code in _REFUSED_WRITE:
            raise _full(path, doing, str(error), kind) from error
        if code & 0xFF == sqlite3.SQLITE_NOTADB:
            text = text_kind(_head(path))
            what = f"{text}, not a {kind.name}" if text else f"not a howfar {kind.name}"
            damage = ", or its beginning is damaged" if by_suffix(path) is kind else ""
            raise NotARunFile(f"{path} is {what}{damage}", kind.advice) from error
        if code & 0xFF in _DAMAGED:
            raise damaged(path, str(error).partition(" with text ")[0]) from error
        raise RunFileError(f"cannot {doing} {path}: {error}", "Check the permissions and the disk.") from error


_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
}

# SQLite reports `full` for ENOSPC only; a quota or a file size limit causes a failed write.
_REFUSED_WRITE = {
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_SHMSIZE,
}


def _full(path: Path, doing: str, reason: str, kind: FileKind) -> DiskFull:
    return DiskFull(
        f"cannot {doing} {path}: the file system takes no more ({reason}): disk full, quota or size limit",
        f"Free some space (see `df {path.parent}`). {kind.kept.format(shlex.quote(str(path)))}",
    )


@contextmanager
def opened(path: Path, kind: FileKind, newest: int) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Open a file of this kind for reading in one snapshot, which writers do not affect; yields it and its format. Raises
    NotARunFile, NewerRunFile, RunFileError."""
    with reading(path, kind):
        check_regular(path, kind)
        with contextlib.closing(connect(path, "ro")) as db:
            version = check_kind(db, path, kind, newest)
            db.execute("BEGIN")
            yield db, version
