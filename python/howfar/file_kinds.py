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
    """SQLite's application id in the file's header, which distinguishes it from other SQLite files."""
    writer: str
    """The command that writes such a file."""
    reader: str
    """Commands that read it, with `{0}` for its name."""
    kept: str
    """A sentence on what the file holds when no more can be written to it, with `{0}` for its name."""

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

_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID = slice(68, 72)
"""Where SQLite stores a file's application id."""
HEAD_BYTES = 72
"""Number of bytes from the beginning of a file that `recognise` needs."""


_TEXT_FORMATS = {b"<!doctype html": "an HTML page", b"{": "JSON"}
"""Beginnings of the text formats of reports, which no command accepts as input."""


def kind_with_id(application_id: int) -> FileKind | None:
    """The kind of a database with this application id. None if it is not howfar's."""
    return next((kind for kind in KINDS if kind.application_id == application_id), None)


def recognise(head: bytes) -> FileKind | None:
    """The kind of a file, by its first bytes. None if it is not howfar's."""
    return kind_with_id(int.from_bytes(head[_APPLICATION_ID], "big")) if head.startswith(_MAGIC) else None


def text_kind(head: bytes) -> str | None:
    """The format of a text file, if its first bytes show it."""
    start = head.lstrip().lower()
    return next((name for beginning, name in _TEXT_FORMATS.items() if start.startswith(beginning)), None)


def refuse_own(path: Path, head: bytes, wanted: str) -> None:
    """Refuse one of howfar's own files where another file is expected. `wanted`: that file, such as "a plan". Raises UsageError."""
    kind = recognise(head)
    if kind is not None:
        raise UsageError(f"{path} is a {kind.name}, not {wanted}", kind.use(path))
    if (format_name := text_kind(head)) is not None:
        raise UsageError(f"{path} is {format_name}, not {wanted}", "Name another file.")


def kind_by_suffix(path: Path) -> FileKind | None:
    """The kind of a file, by its name."""
    return next((kind for kind in KINDS if path.suffix == kind.suffix), None)
