"""Directories: the cache, which keeps templates from run to run, and the work directory of one run.

The work directory is a tmpfs that only the sandbox sees, mounted over a fixed empty directory, so nothing is left however this process
ends. If the data does not fit in memory, if there is no sandbox, or if `HOWFAR_WORK` names a directory, it is a locked directory on
disk; the next start removes work directories that are no longer locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
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
"""Environment variable with the directory for servers' data, which is otherwise in memory."""
SOCKET_PATH_MAX = 107
"""Maximum bytes of a Unix socket's path: `sun_path` has 108 bytes, including the final zero."""
_FORBIDDEN_CHARACTERS = frozenset(":'\"\\\n")
"""Characters that a path must not contain: a colon separates directories in `--tmpdir`; the others would need escapes in SQL."""
_MEMORY_SLACK_BYTES = 512 * 2**20


def cache_home() -> Path:
    """`$XDG_CACHE_HOME/howfar`, created if needed; a relative path is ignored, as the XDG standard requires. Raises LabError."""
    xdg_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = (xdg_cache if xdg_cache.is_absolute() else Path.home() / ".cache") / "howfar"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"the cache directory {home} cannot be created: {error.strerror}", "Set XDG_CACHE_HOME to another."
        ) from error
    return home


def writable_cache_home() -> Path:
    """`cache_home`, into which this process can write. Raises LabError."""
    home = cache_home()
    if not os.access(home, os.W_OK | os.X_OK):
        owner = home.stat().st_uid
        other = f"Give it back (`sudo chown -R $USER {home}`), or set" if owner != os.geteuid() else "Set"
        raise LabError(f"the cache directory {home} is not writable", f"{other} XDG_CACHE_HOME to another.")
    return home


@contextmanager
def work_directory(data_bytes: int, copies: int = 1) -> Iterator[Path]:
    """An empty directory for sockets and servers' data, removed on leaving. A server needs `data_bytes` of memory, and the directory
    `copies` times as much. Raises LabError."""
    home = writable_cache_home()
    chosen = _user_directory()
    disk_parent = home / "work" if chosen is None else chosen / "howfar-work"
    _remove_abandoned(disk_parent)
    available_bytes = memory_bytes("MemAvailable")
    if chosen is None and sandbox.inside() and (1 + copies) * data_bytes + _MEMORY_SLACK_BYTES < available_bytes:
        directory = home / "sandbox"
        directory.mkdir(exist_ok=True)
        check_name(directory)
        sandbox.mount_memory(directory, available_bytes)
        yield directory
        return
    with _locked_directory(disk_parent) as directory:
        check_name(directory)
        yield directory


def _user_directory() -> Path | None:
    """The directory that the user has chosen for the servers' data, for example to include a disk's write times; None without a
    choice. Raises LabError."""
    value = os.environ.get(WORK)
    if not value:
        return None
    if not Path(value).is_absolute() or not os.access(value, os.W_OK | os.X_OK) or not Path(value).is_dir():
        raise LabError(f"{WORK} is {value!r}, which is not a writable directory", "Give one by its absolute path.")
    return Path(value)


def check_name(directory: Path, socket: str = "forward.sock") -> None:
    """Check that a server accepts the path of its data directory and of its socket there. Raises LabError."""
    forbidden = sorted(_FORBIDDEN_CHARACTERS.intersection(str(directory)))
    if forbidden:
        raise LabError(
            f"the directory {directory} has {' and '.join(forbidden)} in its name, which a server interprets differently",
            f"Set {_directory_variable()} to a directory with a simpler name.",
        )
    length = len(os.fsencode(directory / socket))
    if length > SOCKET_PATH_MAX:
        raise LabError(
            f"a socket below {directory} would have a path of {length} bytes; a Unix socket allows {SOCKET_PATH_MAX}",
            f"Set {_directory_variable()} to a directory with a shorter name.",
        )


def _directory_variable() -> str:
    """Name of the environment variable that determines where the work directory is."""
    return WORK if os.environ.get(WORK) else "XDG_CACHE_HOME"


@contextmanager
def _locked_directory(parent: Path) -> Iterator[Path]:
    parent.mkdir(exist_ok=True)
    directory = parent / f"{os.getpid()}-{secrets.token_hex(4)}"
    # Without this lock, another process in `_remove_abandoned` could remove the directory before it is locked.
    with lock(parent.with_suffix(".lock"), exclusive=True):
        directory.mkdir(mode=0o700)
        descriptor = os.open(directory, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Remove the work directories of processes that have ended."""
    if not parent.is_dir():
        return
    with lock(parent.with_suffix(".lock"), exclusive=True):
        for directory in parent.iterdir():
            with contextlib.suppress(OSError):
                _remove_unless_locked(directory)


def _remove_unless_locked(directory: Path) -> None:
    """Remove a work directory. Raises OSError if a process holds its lock."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(descriptor)


@contextmanager
def lock(path: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold a lock on a file, after waiting for other howfar processes; the kernel also releases it when this process ends. Raises
    LabError."""
    try:
        file = path.open("a")
    except OSError as error:
        chosen = _user_directory()
        variable = WORK if chosen is not None and path.is_relative_to(chosen) else "XDG_CACHE_HOME"
        raise LabError(
            f"{path} cannot be opened: {error.strerror}", f"Set {variable} to a directory of your own."
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory, preserving holes. `target` must not exist; if the copy fails, it does not exist either, so that a disk that
    became full does not stay full. Raises LabError."""
    result = subprocess.run(
        ["cp", "-a", "--sparse=always", "--reflink=auto", str(source), str(target)], capture_output=True, text=True
    )
    if result.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        errors = result.stderr.strip().splitlines() or [
            f"cp ended with exit code {result.returncode} and printed nothing"
        ]
        suffix = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise LabError(f"copying {source} to {target} failed: {errors[0][:500]}{suffix}", "Is the disk full? See `df`.")


def file_system_of(path: Path) -> str:
    """The kernel's name for the type of the file system that holds `path`."""
    longest_mount, kind = "", "unknown"
    real = str(path.resolve())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before_dash, _, after_dash = line.partition(" - ")
        mount_point = before_dash.split()[4].replace("\\040", " ")
        if (real == mount_point or real.startswith(mount_point.rstrip("/") + "/")) and len(mount_point) >= len(
            longest_mount
        ):
            longest_mount, kind = mount_point, after_dash.split()[0]
    return kind
