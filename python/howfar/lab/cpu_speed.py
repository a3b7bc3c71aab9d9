"""The speed of this machine's CPUs: the CPU time of a fixed piece of work.

A neighbour on the same core, or a lower clock frequency, slows the piece, and no counter shows that. The piece keeps a core's
execution units busy, because such work is slowed most.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress

MAX_CPUS = 8
"""Maximum number of CPUs whose speed is measured."""
_PIECE = bytes(range(256)) * 512
"""Fits into the cache that belongs to one core."""
_REPEATS = 10


def time_piece(cpu: int) -> int | None:
    """Do the piece of work on a CPU, about 2 ms. Returns its CPU time in ns, None if this CPU cannot be used. The calling thread
    stays on the CPU."""
    with suppress(OSError):
        os.sched_setaffinity(0, {cpu})  # 0 is the calling thread
        digest = hashlib.blake2b()
        start_ns = time.thread_time_ns()
        for _ in range(_REPEATS):
            digest.update(_PIECE)
        return time.thread_time_ns() - start_ns
    return None


def measure_speed() -> dict[int, int]:
    """Do the piece of work on each CPU that this process may use, at most `MAX_CPUS` of them; returns its CPU time in ns by CPU."""
    usable = os.sched_getaffinity(0)
    try:
        times = {cpu: time_piece(cpu) for cpu in sorted(usable)[:MAX_CPUS]}
    finally:
        with suppress(OSError):  # where the pieces could not change it either
            os.sched_setaffinity(0, usable)
    return {cpu: piece_ns for cpu, piece_ns in times.items() if piece_ns is not None}
