"""CPU time of other programs on this machine, by name, including programs outside the sandbox, which the sandbox's own /proc hides.

The process that starts the sandbox opens /proc and passes the descriptor on; it keeps showing the processes outside the sandbox. This
module reads /proc only before and after a load, because reading takes CPU time. The time of a process that ended between the two
readings counts for its parent, which waited for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from howfar.contract.receipt import ProgramUse
    from howfar.other_programs import StartWatch

OUTER_PROC = "HOWFAR_OUTER_PROC"
"""Environment variable `DESCRIPTOR:PID`: the outer /proc, and the outer PID of the process whose descendants are howfar's own."""
MIN_CPUS = 0.05
"""Minimum CPU use, in CPUs, of a program that is named."""
PID_OF_INIT = 1
_KERNEL_THREADS = "kthreadd"
"""Name of the parent of all kernel threads."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pass_outer_proc() -> tuple[int, str]:
    """Open /proc. Returns a descriptor for the sandbox, which the caller closes, and the value of `OUTER_PROC`; the descriptor is -1
    if /proc cannot be read."""
    try:
        descriptor = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        # The PID of this process in this /proc, which may belong to another PID namespace.
        return descriptor, f"{descriptor}:{os.readlink('self', dir_fd=descriptor)}"
    except OSError:
        return -1, ""


@contextmanager
def open_proc() -> Iterator[tuple[int, int]]:
    """Open /proc for a `ProgramWatch` outside the sandbox: a descriptor (-1 if it cannot be read), and the PID of this process."""
    descriptor, text = pass_outer_proc()
    try:
        yield descriptor, int(text.partition(":")[2] or 0)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


class Process(NamedTuple):
    """One process at the time of a reading."""

    name: str
    parent: int
    started: int
    """Start time in ticks since boot. PIDs are reused; PID and start time together identify a process."""
    ticks: int
    """CPU time of the process, and of its ended children that it has waited for."""


class MeasuredPrograms(NamedTuple):
    """Programs outside howfar that take part in a measurement, such as a server. Neither they nor their descendants are others."""

    pids: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()


NONE_MEASURED = MeasuredPrograms()


class ProgramWatch:
    """Measures the CPU time of other programs, from construction until `finish`. `proc`: a /proc, and the PID of the process whose
    descendants are howfar's own; by default those that the sandbox was given."""

    def __init__(self, proc: tuple[int, int] | None = None, measured: MeasuredPrograms = NONE_MEASURED) -> None:
        self._measured = measured
        self._descriptor, self._own_pid = proc or _outer_proc
        self._start_s, self._before = time.monotonic(), self.processes()

    def finish(self) -> tuple[ProgramUse, ...] | None:
        """The other programs that used at least `MIN_CPUS`, the busiest first, each with its busiest process; None if /proc cannot be
        read, or hides the processes of others."""
        # Imported here, because a sandbox without a trial needs no pydantic models.
        from howfar.contract.receipt import ProgramUse

        elapsed_s, after = max(time.monotonic() - self._start_s, 1e-6), self.processes()
        if not self._before or not after:
            return None
        ticks_and_pids: dict[str, list[tuple[int, int]]] = {}
        for (pid, name), ticks in self._ticks(after).items():
            ticks_and_pids.setdefault(name, []).append((ticks, pid))
        used = [
            ProgramUse(name=name, pid=max(uses)[1], cpus=sum(ticks for ticks, _ in uses) / _TICKS_PER_S / elapsed_s)
            for name, uses in ticks_and_pids.items()
        ]
        # A process that waits for an orphan seems to have used all of the orphan's time, possibly more than all CPUs allow.
        plausible = [program for program in used if MIN_CPUS <= program.cpus <= (os.cpu_count() or 1)]
        return tuple(sorted(plausible, key=lambda program: -program.cpus))

    def _ticks(self, after: Mapping[int, Process]) -> dict[tuple[int, str], int]:
        return ticks_by_program(self._before, after, self._own_pid, self._measured)

    def processes(self) -> dict[int, Process]:
        """All current processes, by PID; empty if /proc cannot be read, or hides the processes of others."""
        if self._descriptor < 0:
            return {}
        try:
            with os.scandir(self._descriptor) as entries:
                names = [entry.name for entry in entries if entry.name.isdigit()]
        except OSError:  # for example too many open files, which need not make the trial fail
            return {}
        read = ((int(name), _read_process(f"{name}/stat", self._descriptor)) for name in names)
        processes = {pid: process for pid, process in read if process is not None}
        # Mounted with hidepid, /proc shows only this account's processes, so not even the first one.
        return processes if PID_OF_INIT in processes else {}


_outer_proc = -1, 0
"""The descriptor of the outer /proc (-1 for none), and the outer PID of the process whose descendants are howfar's own."""


def adopt_outer_proc() -> None:
    """Take over the descriptor from `OUTER_PROC`, and remove the variable, which would mislead child processes. Called once in the
    sandbox."""
    global _outer_proc
    descriptor, _, pid = os.environ.pop(OUTER_PROC, "").partition(":")
    if descriptor.isdigit() and pid.isdigit():
        os.set_inheritable(int(descriptor), False)
        _outer_proc = int(descriptor), int(pid)


def _read_process(path: str, folder: int) -> Process | None:
    """Read a process's `stat` file, `path` in the directory `folder`; None if the process has ended."""
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
    before: Mapping[int, Process],
    after: Mapping[int, Process],
    own: int,
    measured: MeasuredPrograms = NONE_MEASURED,
) -> dict[tuple[int, str], int]:
    """CPU time between two readings, in ticks, by PID and name, without kernel threads, the process `own`, those that are `measured`,
    and their descendants."""
    parents_before = {pid: process.parent for pid, process in before.items()}
    parents = parents_before | {pid: process.parent for pid, process in after.items()}
    ended = {pid for pid, process in before.items() if pid not in after or after[pid].started != process.started}
    ticks = {pid: process.ticks for pid, process in after.items()}
    for pid, process in before.items():
        # The earlier time of an ended process is now part of the time of its nearest living ancestor. Its PID may be in use again.
        owner = next((ancestor for ancestor in _ancestry(pid, parents_before) if ancestor not in ended), None)
        if owner in ticks:
            ticks[owner] -= process.ticks
    roots = {own, *measured.pids, *(pid for pid, process in after.items() if process.name in measured.names)}
    roots |= {pid for pid, process in after.items() if process.name == _KERNEL_THREADS and not process.parent}
    return {
        (pid, after[pid].name): count
        for pid, count in ticks.items()
        if count > 0 and not roots.intersection(_ancestry(pid, parents))
    }


def _ancestry(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """PIDs of the process, its parent, and so on."""
    visited: set[int] = set()
    while pid not in visited:
        yield pid
        visited.add(pid)
        pid = parents.get(pid, 0)


@contextmanager
def watching_programs(measured: MeasuredPrograms = NONE_MEASURED) -> Iterator[StartWatch]:
    """How a command watches other programs, whether in a sandbox or not. `measured`: programs that are no others."""
    from howfar.lab import sandbox  # which imports this module

    if sandbox.inside():
        yield partial(ProgramWatch, None, measured)
    elif sandbox.is_anywhere_inside():
        yield lambda: None  # this /proc shows no program outside the sandbox
    else:
        with open_proc() as proc:
            yield partial(ProgramWatch, proc, measured)
