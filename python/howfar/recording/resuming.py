"""What a wait costs the computing after it: meanwhile others use the processor's caches, and on a virtual machine also its neighbours.

A recording does not show it. It is measured with a program that walks through objects, as scripting languages do, for as long as the
application typically computes between two round trips.
"""

from __future__ import annotations

import random
import time

from howfar.recording.costs import trimmed_mean

_LEAST_NS, _MOST_NS = 20_000, 1_000_000
_EACH_NS = 250_000_000
_FEWEST, _MOST = 8, 60
_OBJECTS = 24_000
_SEED = 20_264


class Computing:
    """A computation that takes `work_ns` when nothing came between."""

    def __init__(self, work_ns: int) -> None:
        objects = [(number, f"name {number}", [number] * 5) for number in range(_OBJECTS)]
        random.Random(_SEED).shuffle(objects)
        self._objects = objects[: _OBJECTS // 100]
        work_ns = min(max(work_ns, _LEAST_NS), _MOST_NS)
        each_ns = min(self._took_ns() for _ in range(20)) / len(self._objects)
        self._objects = objects[: max(round(work_ns / each_ns), 1)]

    def _took_ns(self) -> int:
        # Of this thread: without waiting for a processor.
        began, total = time.thread_time_ns(), 0
        for number, name, tags in self._objects:
            total += number + len(name) + sum(tags)
        return time.thread_time_ns() - began

    def longer_ns(self, wait_ns: float) -> float:
        """How much longer it takes after such a wait than without one."""
        longer = []
        for _ in range(max(_FEWEST, min(_MOST, int(_EACH_NS / max(wait_ns, 1))))):
            warm = min(self._took_ns() for _ in range(3))
            time.sleep(wait_ns / 1e9)
            longer.append(self._took_ns() - warm)
        return max(trimmed_mean(longer), 0.0)
