"""Measures a client program from outside: its CPU clock, peak memory and context switches, and the server's count of queries.

All programs are measured in the same way, without their own figures. Latency cannot be measured from outside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from howfar.errors import LabError
from howfar.stats.estimate import Described

_POLL_S = 0.02


def kernel() -> str:
    """Name and version of the kernel: `Linux 6.1.0`."""
    return f"{os.uname().sysname} {os.uname().release}"


class Trial(Described):
    """One client in one block: its use of resources in its steady window."""

    queries: int
    """Queries by the server's own counter."""
    seconds: float
    cpu_ns: int
    whole_queries: int
    """Queries since the process began, including before the window."""
    whole_cpu_ns: int
    """CPU time since the process began, including starting and connecting."""
    rss_bytes: int
    """Peak memory since the process began."""
    context_switches: int
    driver: str | None = None
    """How the engine waits for its connections, from its receipt."""


class QueryCounter(Protocol):
    """A server that counts its answers."""

    def executed(self) -> int: ...


@dataclass(frozen=True)
class Reading:
    """One reading of the server's counter; `at_ns` and `cpu_ns` are the clocks at the middle of the reading."""

    at_ns: int
    cpu_ns: int
    executed: int
    context_switches: int


def cpu_clock_ns(pid: int) -> int:
    """CPU time of all threads of a process since it began, ended ones included, by its CPU clock (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def context_switches(pid: int) -> int:
    """Context switches of the living threads, voluntary and involuntary."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if "voluntary_ctxt_switches" in line:
                count += int(line.split()[1])
    return count


def peak_memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LabError(f"the kernel reports no peak memory for process {pid}")


def take_reading(pid: int, counters: QueryCounter) -> Reading:
    """Take a reading. The answer may wait for a CPU under load, hence the mean of the clocks before and after."""
    switch_count = context_switches(pid)
    before = time.monotonic_ns(), cpu_clock_ns(pid)
    executed = counters.executed()
    after = time.monotonic_ns(), cpu_clock_ns(pid)
    return Reading((before[0] + after[0]) // 2, (before[1] + after[1]) // 2, executed, switch_count)


def measure(
    pid: int, counters: QueryCounter, seconds: float, executed_before: int, align: Callable[[], None] | None = None
) -> Trial:
    """Measure a window of a running client. `executed_before`: the server's counter before its start. `align` is called before each
    reading."""
    if align is not None:
        align()
    begin = take_reading(pid, counters)
    time.sleep(seconds)
    if align is not None:
        align()
    end = take_reading(pid, counters)
    if end.executed == begin.executed:
        raise LabError(
            f"nothing was answered in {seconds:g} s", "Wait until the machine is quieter, or measure longer."
        )
    return Trial(
        queries=end.executed - begin.executed,
        seconds=(end.at_ns - begin.at_ns) / 1e9,
        cpu_ns=end.cpu_ns - begin.cpu_ns,
        whole_queries=end.executed - executed_before,
        whole_cpu_ns=end.cpu_ns,
        rss_bytes=peak_memory_bytes(pid),
        context_switches=end.context_switches - begin.context_switches,
    )


def wait_until(condition: Callable[[], bool], description: str, timeout_s: float) -> None:
    """Wait until a condition holds, at most `timeout_s`. `description`: what is waited for, in the error. Raises LabError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout_s:.0f} s for {description}", "Is the machine overloaded?")
        time.sleep(_POLL_S)
