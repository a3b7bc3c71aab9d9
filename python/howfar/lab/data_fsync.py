"""What one write that must be on the disk costs where the data lies: measured once, before anything else uses the file system.

Writes over what is there already, as a server's log does: no block is found for it and no length changes. Not here: what a server
makes of it, which may write for several transactions at once.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

SIZES = (512, 16_384)
"""A block of a log, and a page."""
_ROOM = 1 << 20
_COUNT = 48
_LONGEST_NS = 1_000_000_000
"""For each size: on a slow disk fewer writes must do."""


def data_fsync_ns(directory: Path) -> dict[str, dict[str, int]] | None:
    """By the bytes of a write: how many were timed, median and p99 of write and fsync together. None: it cannot be done here."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix="fsync-", buffering=0) as file:
            file.write(bytes(_ROOM))
            os.fsync(file.fileno())
            return {str(size): _summary(_timed(file.fileno(), size)) for size in SIZES}
    except OSError:
        return None


def _timed(descriptor: int, size: int) -> list[int]:
    block, began, found = os.urandom(size), time.monotonic_ns(), list[int]()
    while len(found) < _COUNT and time.monotonic_ns() - began < _LONGEST_NS:
        before = time.monotonic_ns()
        os.pwrite(descriptor, block, len(found) * size)
        os.fsync(descriptor)
        found.append(time.monotonic_ns() - before)
    return sorted(found)


def _summary(times: list[int]) -> dict[str, int]:
    return {
        "count": len(times),
        "p50": times[len(times) // 2],
        "p99": times[min(len(times) * 99 // 100, len(times) - 1)],
    }
