"""Data directories kept for the next start: built once, complete before they get their name, copied for use.

One shelf holds templates of one kind; a lock file on it lets two howfars share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from howfar.lab.cache import copy_tree, lock

_UNFINISHED = "building-"
_SHELF_BYTES_MAX = 16 * 2**30
"""Templates used longest ago go when a shelf holds more; the one just built stays, however large."""


def from_template(shelf: Path, name: str, target: Path, build: Callable[[Path], None]) -> bool:
    """Make `target` (not there yet) a copy of the template `name`. A missing one is built in `target` and then kept.

    Returns True when the template was there. Raises what `build` raises; nothing half-made is kept.
    """
    shelf.mkdir(parents=True, exist_ok=True)
    lock_file = shelf / "lock"
    template = shelf / name
    with lock(lock_file, exclusive=False):
        if template.is_dir():
            os.utime(template)
            copy_tree(template, target)
            return True
    with lock(lock_file, exclusive=True):
        if template.is_dir():
            copy_tree(template, target)
            return True
        _remove_unfinished(shelf)
        build(target)
        unfinished = shelf / f"{_UNFINISHED}{os.getpid()}"
        copy_tree(target, unfinished)
        os.utime(unfinished)
        unfinished.rename(template)
        _collect(shelf, keep=template)
    return False


def tidy(shelves: Path) -> None:
    """Remove what builders who were killed left on all shelves."""
    for shelf in shelves.glob("*/"):
        if not any(shelf.glob(f"{_UNFINISHED}*")):
            continue
        with (
            (shelf / "lock").open("a") as file,
            contextlib.suppress(BlockingIOError),
        ):  # held: somebody builds, and tidies
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_unfinished(shelf)


def _remove_unfinished(shelf: Path) -> None:
    """Call with the shelf's lock held exclusively: then nobody builds."""
    for stale in shelf.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(stale, ignore_errors=True)


def _size(directory: Path) -> int:
    """On disk. What goes away meanwhile takes nothing."""
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(where) / name).stat().st_blocks * 512
    return total


def _collect(shelf: Path, keep: Path) -> None:
    oldest_first = sorted((item for item in shelf.iterdir() if item.is_dir()), key=lambda item: item.stat().st_mtime)
    total = sum(_size(item) for item in oldest_first)
    for item in oldest_first:
        if total <= _SHELF_BYTES_MAX or item == keep:
            continue
        total -= _size(item)
        shutil.rmtree(item, ignore_errors=True)
