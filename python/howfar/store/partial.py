"""Files that get their name only when they are complete, and leave nothing behind when their writer is killed.

An unfinished file lies next to its final path, locked by its writer. The kernel releases the lock of a dead process, and the next
process that creates a file in that directory removes the unfinished one. PIDs would not identify writers: in a sandbox each has
PID 1.
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
"""Errors of a file system without room."""
_SUFFIX = ".howfar-partial"
_TRIES = 10
_JOURNAL = "-journal"
"""Suffix of the file in which SQLite keeps unfinished transactions."""


def stays(path: Path) -> bool:
    """Whether the file, or the target of the link, is written to instead of replaced: a device or a pipe."""
    return path.exists() and not path.is_file()


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """An empty file to be written and then linked or renamed to `path`. What is left of it on exit is removed.

    SQLite's locks on it are lost on exit. Raises OSError.
    """
    _remove_forsaken(path.parent)
    name = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}{_SUFFIX}")
    descriptor = _held(name)
    try:
        yield name
    finally:
        _remove(name)
        os.close(descriptor)


def write_whole(path: Path, text: str, mode: int | None = None) -> None:
    """Write a file atomically: a reader never sees half of it. A device or a pipe is written to; a link stays, and its target is
    replaced. `mode`: of the file; None: by the umask. Raises OSError."""
    if stays(path):
        path.write_text(text, encoding="utf-8")
        return
    whole = path.resolve()
    with unfinished(whole) as partial:
        partial.write_text(text, encoding="utf-8")
        if mode is not None:
            partial.chmod(mode)
        partial.replace(whole)


def _held(name: Path) -> int:
    """Create the file and lock it; retry if the cleanup of another process removes it in between."""
    for _ in range(_TRIES):
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "removed by somebody else as soon as it was made", str(name))


def _remove(name: Path) -> None:
    for leftover in (name, name.with_name(name.name + _JOURNAL)):
        with contextlib.suppress(OSError):
            leftover.unlink(missing_ok=True)


def _remove_forsaken(directory: Path) -> None:
    for name in directory.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(name)
            finally:
                os.close(descriptor)
