"""When a fault comes: at random within the measured window, and the same for the same run, block and arm. Pure."""

from __future__ import annotations

import random

EARLIEST = 0.25
"""Of the plan's measured window; the replica has its place by then."""


def fault_after_ns(seed: int, block: int, attempt: int, arm: str, measure_ns: int) -> int:
    """From the beginning of the measured window. Evenly over what remains of it after `EARLIEST`, so that no crash falls on a beat of
    the servers' own."""
    rng = random.Random(f"howfar fault of block {block}, attempt {attempt}, of {arm} of seed {seed}")
    return int(measure_ns * (EARLIEST + (1 - EARLIEST) * rng.random()))
