"""CPU time of other programs on this machine, by name, also of those outside the sandbox, whose processes it cannot see.

The process that starts the sandbox opens its /proc, which keeps showing the processes of the outer namespace, and passes it on. It is
read before a load and after it, because reading takes CPU time. The time of a process that ended meanwhile counts for its parent,
which waited for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from howfar.contract.receipt import ProgramUse

OUTER_PROC = "HOWFAR_OUTER_PROC"
"""Variable with the descriptor of the outer /proc, and there the process whose descendants are howfar's own."""
MIN_CPUS = 0.05
"""CPUs below which a program is not named."""
MAX_PROGRAMS = 3
"""Maximum number of programs that are named."""
_KERNEL_THREADS = "kthreadd"
"""Name of the parent of all kernel threads."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pass_outer_proc() -> tuple[int, str]:
    """A descriptor of /proc, to be passed on and closed, and the value of `OUTER_PROC`. -1: /proc cannot be read."""
    try:
        descriptor = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        # This process as that /proc numbers it, which may be that of another PID namespace.
        return descriptor, f"{descriptor}:{os.readlink('self', dir_fd=descriptor)}"
    except OSError:
        return -1, ""


class Process(NamedTuple):
    name: str
    parent: int
    started: int
    """Together with the PID, its identity."""
    ticks: int
    """CPU time of the process and of its children that it waited for."""


class ProgramWatch:
    """Names the programs that use CPU time from its construction until `finish`."""

    def __init__(self) -> None:
        self._descriptor, self._own = _outer_proc
        self._began_s, self._before = time.monotonic(), self.processes()

    def finish(self) -> tuple[ProgramUse, ...] | None:
        """The other programs with the most CPU time, the largest first, each with its busiest process. None: they cannot be seen."""
        from howfar.contract.receipt import ProgramUse  # its models, which a sandbox without a trial does not need

        elapsed_s, after = max(time.monotonic() - self._began_s, 1e-6), self.processes()
        if not self._before or not after:
            return None
        by_name: dict[str, list[tuple[int, int]]] = {}
        for (pid, name), ticks in ticks_by_program(self._before, after, self._own).items():
            by_name.setdefault(name, []).append((ticks, pid))
        used = [
            ProgramUse(name=name, pid=max(found)[1], cpus=sum(ticks for ticks, _ in found) / _TICKS_PER_S / elapsed_s)
            for name, found in by_name.items()
        ]
        # A process whose parent ended is waited for by another one, which then seems to have used its whole time.
        possible = [program for program in used if MIN_CPUS <= program.cpus <= (os.cpu_count() or 1)]
        return tuple(sorted(possible, key=lambda program: -program.cpus)[:MAX_PROGRAMS])

    def processes(self) -> dict[int, Process]:
        """All processes now, by PID. Empty: they cannot be seen."""
        if self._descriptor < 0:
            return {}
        try:
            with os.scandir(self._descriptor) as entries:
                names = [entry.name for entry in entries if entry.name.isdigit()]
        except OSError:  # too many open files, for example: not worth a trial
            return {}
        found = ((int(name), _read_process(f"{name}/stat", self._descriptor)) for name in names)
        return {pid: process for pid, process in found if process is not None}


_outer_proc = -1, 0
"""The descriptor of the outer /proc (-1: none), and the process whose descendants are howfar's own."""


def adopt_outer_proc() -> None:
    """Take the descriptor from the environment, so that no child takes a descriptor of its own for it. Called once in the sandbox."""
    global _outer_proc
    descriptor, _, pid = os.environ.pop(OUTER_PROC, "").partition(":")
    if descriptor.isdigit() and pid.isdigit():
        os.set_inheritable(int(descriptor), False)
        _outer_proc = int(descriptor), int(pid)


def _read_process(path: str, folder: int) -> Process | None:
    """None: the process has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=folder)
        try:
            text = os.read(descriptor, 1024).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(name, int(fields[1]), int(fields[19]), sum(map(int, fields[11:15])))


def ticks_by_program(
    before: Mapping[int, Process], after: Mapping[int, Process], own: int
) -> dict[tuple[int, str], int]:
    """Ticks between two readings, by PID and name, without kernel threads, the process `own` and its descendants."""
    parents = {pid: process.parent for pid, process in (*before.items(), *after.items())}
    ended = {pid for pid, process in before.items() if pid not in after or after[pid].started != process.started}
    ticks = {pid: process.ticks for pid, process in after.items()}
    for pid, process in before.items():
        # What a process that ended had used before is now its parent's, or that of the next ancestor that lives.
        owner = next((each for each in _ancestry(pid, parents) if each not in ended), pid)
        if owner in ticks:
            ticks[owner] -= process.ticks
    roots = {own, *(pid for pid, process in after.items() if process.name == _KERNEL_THREADS and not process.parent)}
    return {
        (pid, after[pid].name): count
        for pid, count in ticks.items()
        if count > 0 and not roots.intersection(_ancestry(pid, parents))
    }


def _ancestry(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """The process, its parent, and so on."""
    seen: set[int] = set()
    while pid not in seen:
        yield pid
        seen.add(pid)
        pid = parents.get(pid, 0)
