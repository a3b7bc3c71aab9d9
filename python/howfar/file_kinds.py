"""The kinds of file that howfar writes, how each is recognised, and which command reads it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from howfar.errors import UsageError


@dataclass(frozen=True)
class FileKind:
    """A kind of SQLite file, and phrases about it for messages."""

    name: str
    suffix: str
    application_id: int
    """SQLite's application ID in the file's header, which distinguishes it from other SQLite files."""
    writer: str
    """The command that writes such a file."""
    reader: str
    """Commands that read it, with `{0}` for its name."""
    kept: str
    """A sentence about the content of a file to which no more can be written, with `{0}` for its name."""

    def use(self, path: Path) -> str:
        """The advice for such a file."""
        return f"Use {self.reader.format(shlex.quote(str(path)))}."

    @property
    def advice(self) -> str:
        return f"Name a file that `{self.writer}` wrote; its name ends in {self.suffix}."


RUN_FILE = FileKind(
    "run file",
    ".howfar",
    0x48574652,
    "howfar run",
    "`howfar report {0}`",
    "All finished trials are in the file; `howfar resume {0}` continues the run.",
)
RECORDING = FileKind(
    "recording",
    ".recording",
    0x48574653,
    "howfar record",
    "`howfar report {0}`, or `howfar predict {0} --rtt TIME`",
    "What was recorded before is in the file.",
)
KINDS = (RUN_FILE, RECORDING)

_SQLITE_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID = slice(68, 72)
"""Position of the application ID in a file of SQLite."""
HEADER_BYTES = 72
"""Number of first bytes of a file that `find_file_kind` needs."""


_TEXT_FORMATS = {b"<!doctype html": "an HTML page", b"{": "JSON"}
"""Beginnings of the text formats of reports, which no command accepts as input."""


def file_kind_by_id(application_id: int) -> FileKind | None:
    """Find the kind of a database by its application ID; None if it is not howfar's."""
    return next((kind for kind in KINDS if kind.application_id == application_id), None)


def find_file_kind(first_bytes: bytes) -> FileKind | None:
    """Find the kind of a file by its first bytes; None if it is not howfar's."""
    return (
        file_kind_by_id(int.from_bytes(first_bytes[_APPLICATION_ID], "big"))
        if first_bytes.startswith(_SQLITE_MAGIC)
        else None
    )


def find_text_format(first_bytes: bytes) -> str | None:
    """Find the format of a text file by its first bytes; None if unknown."""
    text_start = first_bytes.lstrip().lower()
    return next((name for beginning, name in _TEXT_FORMATS.items() if text_start.startswith(beginning)), None)


def refuse_own_files(path: Path, first_bytes: bytes, expected: str) -> None:
    """Refuse a file that howfar wrote if another file is expected. `expected`: describes that file, as in "a plan". Raises
    UsageError."""
    kind = find_file_kind(first_bytes)
    if kind is not None:
        raise UsageError(f"{path} is a {kind.name}, not {expected}", kind.use(path))
    if (format_name := find_text_format(first_bytes)) is not None:
        raise UsageError(f"{path} is {format_name}, not {expected}", "Name another file.")


def file_kind_by_suffix(path: Path) -> FileKind | None:
    """Find the kind of a file by its name; None if it is not howfar's."""
    return next((kind for kind in KINDS if path.suffix == kind.suffix), None)
