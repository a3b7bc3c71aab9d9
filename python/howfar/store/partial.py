"""Files that get their name only when they are complete, and leave nothing behind when their writer is killed.

An unfinished file is next to its final path, locked by its writer. When a process dies the kernel releases its locks, and the next
process that creates a file in that directory removes the unfinished one. PIDs could not identify writers: in a sandbox each writer
has PID 1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a file system that has no space left."""
_SUFFIX = ".howfar-partial"
_MAX_TRIES = 10
_JOURNAL_SUFFIX = "-journal"
"""Suffix of the file in which SQLite keeps unfinished transactions."""


def is_written_in_place(path: Path) -> bool:
    """Whether the file, or the target of the link, is a device or a pipe, which is written to instead of replaced."""
    return path.exists() and not path.is_file()


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """An empty file to be written and then linked or renamed to `path`. If it still exists on exit, it is removed.

    SQLite's locks on it are lost on exit. Raises OSError.
    """
    _remove_abandoned(path.parent)
    name = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}{_SUFFIX}")
    descriptor = _create_locked(name)
    try:
        yield name
    finally:
        _remove(name)
        os.close(descriptor)


def write_atomically(path: Path, text: str, mode: int | None = None) -> None:
    """Write a file atomically: a reader never sees half of it. A device or a pipe is written to. A symbolic link stays, and its target
    is replaced. `mode`: permissions of the file; None: by the umask. Raises OSError."""
    if is_written_in_place(path):
        path.write_text(text, encoding="utf-8")
        return
    target = path.resolve()
    with unfinished(target) as partial:
        partial.write_text(text, encoding="utf-8")
        if mode is not None:
            partial.chmod(mode)
        partial.replace(target)


def _create_locked(name: Path) -> int:
    """Create the file and lock it. Retry if the cleanup of another process removes it in between."""
    for _ in range(_MAX_TRIES):
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "removed by somebody else as soon as it was made", str(name))


def _remove(name: Path) -> None:
    for leftover in (name, name.with_name(name.name + _JOURNAL_SUFFIX)):
        with contextlib.suppress(OSError):
            leftover.unlink(missing_ok=True)


def _remove_abandoned(directory: Path) -> None:
    for name in directory.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(name)
            finally:
                os.close(descriptor)
