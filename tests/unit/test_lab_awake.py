"""Spinners that keep processors awake: of the idle class, one a processor, and gone afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

from howfar.lab.awake import awake


def _spinners() -> set[int]:
    """Children of this process, and theirs, that run in the idle class."""
    found: set[int] = set()
    left = [os.getpid()]
    while left:
        pid = left.pop()
        try:
            children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            continue
        left += children
        found |= {child for child in children if _policy(child) == os.SCHED_IDLE}
    return found


def _policy(pid: int) -> int | None:
    try:
        return os.sched_getscheduler(pid)
    except ProcessLookupError:
        return None


def test_processors_are_kept_awake_and_let_go() -> None:
    cpu = min(os.sched_getaffinity(0))
    before = _spinners()
    with awake([cpu]):
        deadline = time.monotonic() + 20
        while not (spinning := _spinners() - before):
            assert time.monotonic() < deadline, "no spinner came"
            time.sleep(0.01)
        assert all(os.sched_getaffinity(pid) == {cpu} for pid in spinning if _policy(pid) is not None)
    deadline = time.monotonic() + 20
    while _spinners() - before:
        assert time.monotonic() < deadline, "a spinner stayed"
        time.sleep(0.01)
