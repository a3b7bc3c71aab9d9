"""Directories: the cache with templates, which outlives a run, and the work directory, which does not.

The work directory is a tmpfs that only the sandbox sees, mounted over one fixed empty directory: nothing is left behind, however we
die. If the data does not fit in memory, or there is no sandbox, or `HOWFAR_WORK` names a directory, it is a locked directory on disk;
the next start removes those whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from howfar.errors import LabError
from howfar.lab import sandbox
from howfar.lab.environment import memory_bytes

WORK = "HOWFAR_WORK"
"""Environment variable: the directory for servers' data, instead of memory."""
SOCKET_PATH_MAX = 107
"""Maximum bytes of a socket's path: `sun_path` has 108 with its final zero."""
_NOT_IN_NAMES = frozenset(":'\"\\\n")
"""Characters that a path may not contain: a colon separates directories in `--tmpdir`; the others would need escapes in SQL."""
_MEMORY_SLACK = 512 * 2**20


def cache_home() -> Path:
    """`$XDG_CACHE_HOME/howfar`, created if needed; a relative path is ignored, as the XDG standard requires. Raises LabError."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    own = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    home = (named if named.is_absolute() else Path(own) / ".cache") / "howfar"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"the cache directory {home} cannot be created: {error.strerror}", "Set XDG_CACHE_HOME to another."
        ) from error
    return home


@contextmanager
def work_directory(data_bytes: int, copies: int = 1) -> Iterator[Path]:
    """An empty directory for sockets and server data. A server needs `data_bytes` in memory, the directory `copies` times that."""
    home = cache_home()
    if not os.access(home, os.W_OK | os.X_OK):
        raise LabError(f"the cache directory {home} is not writable", "Set XDG_CACHE_HOME to another.")
    named = _named()
    disk = home / "work" if named is None else named / "howfar-work"
    _collect(disk)
    available = memory_bytes("MemAvailable")
    if named is None and sandbox.inside() and (1 + copies) * data_bytes + _MEMORY_SLACK < available:
        where = home / "sandbox"
        where.mkdir(exist_ok=True)
        check_name(where)
        sandbox.mount_memory(where, available)
        yield where
        return
    with _locked_directory(disk) as where:
        check_name(where)
        yield where


def _named() -> Path | None:
    """The directory that the user chose for servers' data, for example to include a disk's write times. Raises LabError."""
    word = os.environ.get(WORK)
    if not word:
        return None
    if not Path(word).is_absolute() or not os.access(word, os.W_OK | os.X_OK) or not Path(word).is_dir():
        raise LabError(f"{WORK} is {word!r}, which is not a writable directory", "Give one by its absolute path.")
    return Path(word)


def check_name(where: Path) -> None:
    """Check that a server can use `where` as its directory. Raises LabError."""
    awkward = sorted(_NOT_IN_NAMES.intersection(str(where)))
    if awkward:
        raise LabError(
            f"the directory {where} has {' and '.join(awkward)} in its name, which a server interprets differently",
            f"Set {_variable()} to a directory with a simpler name.",
        )
    longest = len(os.fsencode(where)) + len("/forward.sock")
    if longest > SOCKET_PATH_MAX:
        raise LabError(
            f"a socket below {where} would have a path of {longest} bytes; a Unix socket allows {SOCKET_PATH_MAX}",
            f"Set {_variable()} to a directory with a shorter name.",
        )


def _variable() -> str:
    """The environment variable that determines the work directory."""
    return WORK if os.environ.get(WORK) else "XDG_CACHE_HOME"


@contextmanager
def _locked_directory(parent: Path) -> Iterator[Path]:
    parent.mkdir(exist_ok=True)
    where = parent / f"{os.getpid()}-{secrets.token_hex(4)}"
    with lock(parent.with_suffix(".lock"), exclusive=True):  # else a collector could find it before it is locked
        where.mkdir(mode=0o700)
        descriptor = os.open(where, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)
        os.close(descriptor)


def _collect(parent: Path) -> None:
    """Remove work directories whose owner has ended."""
    if not parent.is_dir():
        return
    with lock(parent.with_suffix(".lock"), exclusive=True):
        for old in parent.iterdir():
            with contextlib.suppress(OSError):
                _remove_unless_held(old)


def _remove_unless_held(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(descriptor)


@contextmanager
def lock(path: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold a lock file, waiting for other howfar processes. The kernel releases it when we die. Raises LabError."""
    try:
        file = path.open("a")
    except OSError as error:
        named = _named()
        variable = WORK if named is not None and path.is_relative_to(named) else "XDG_CACHE_HOME"
        raise LabError(
            f"{path} cannot be opened: {error.strerror}", f"Set {variable} to a directory of your own."
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory, preserving holes. `target` must not exist. Raises LabError."""
    tried = subprocess.run(
        ["cp", "-a", "--sparse=always", "--reflink=auto", str(source), str(target)], capture_output=True, text=True
    )
    if tried.returncode != 0:
        errors = tried.stderr.strip().splitlines() or [
            f"cp ended with exit code {tried.returncode} and printed nothing"
        ]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise LabError(f"copying {source} to {target} failed: {errors[0][:500]}{more}", "Is the disk full? See `df`.")


def file_system_of(path: Path) -> str:
    """Type of the file system that holds `path`, as the kernel names it."""
    best, kind = "", "unknown"
    real = str(path.resolve())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
