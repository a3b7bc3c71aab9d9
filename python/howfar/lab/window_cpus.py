"""Which CPUs worked, and what the emulator's threads took of each. Read while the load runs, reckoned afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from howfar.lab.environment import CpuTicks, busy_cpus, cpu_ticks
from howfar.lab.window_network import ProcFile

_PROCESSOR = 36
"""Place of the CPU on which a thread was last, among the words of its `stat` behind its name."""


def busy_shares(before: bytes, after: bytes, elapsed_s: float, ticks_per_s: int) -> dict[int, float]:
    """Share of the time between two readings of /proc/stat in which each CPU worked."""
    then, now = _ticks(before), _ticks(after)
    shares = {cpu: busy_cpus(then[cpu], ticks, elapsed_s, ticks_per_s, 1) for cpu, ticks in now.items() if cpu in then}
    return {cpu: share for cpu, share in shares.items() if share is not None}


def _ticks(stat: bytes) -> dict[int, CpuTicks]:
    found = {}
    for line in stat.decode().splitlines():
        name = line.partition(" ")[0]
        ticks = cpu_ticks(line)
        if name[:3] == "cpu" and name[3:].isdigit() and ticks is not None:
            found[int(name[3:])] = ticks
    return found


def processor(stat: bytes) -> int:
    """From a thread's /proc/…/stat; its name may hold anything, parentheses too."""
    return int(stat.rpartition(b")")[2].split()[_PROCESSOR])


class ThreadClocks:
    """CPU time of a process's threads by the CPU that each was last on, whenever one looks. None to watch: always empty."""

    def __init__(self, pid: int | None) -> None:
        self._files: list[tuple[ProcFile, ProcFile]] = []
        self._last: list[int] = []
        self._taken: Counter[int] = Counter()
        if pid is None:
            return
        for task in Path(f"/proc/{pid}/task").iterdir():
            self._files.append((ProcFile(task / "schedstat"), ProcFile(task / "stat")))
            self._last.append(self._cpu_ns(len(self._last)))

    def _cpu_ns(self, place: int) -> int:
        return int(self._files[place][0].read().split()[0])

    def look(self) -> None:
        """What a thread took since the look before is said to be of the CPU where it is now."""
        for place, (_, stat) in enumerate(self._files):
            with suppress(OSError):  # a thread that has ended took no more
                now = self._cpu_ns(place)
                self._taken[processor(stat.read())] += max(now - self._last[place], 0)
                self._last[place] = now

    def taken_ns(self) -> Mapping[int, int]:
        return dict(sorted(self._taken.items()))

    def close(self) -> None:
        for files in self._files:
            for file in files:
                file.close()
