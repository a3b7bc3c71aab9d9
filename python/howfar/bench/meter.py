"""One meter for any client, from outside: the process's own CPU clock, its peak memory and switches, the server's count of queries.

The same for every program, whatever it says of itself. What it cannot tell is latency.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import pymysql

from howfar.errors import LabError
from howfar.stats.estimate import Part

_POLL_S = 0.02


class Trial(Part):
    """One client in one block: what its steady window took."""

    queries: int
    """By the server's own counter."""
    seconds: float
    cpu_ns: int
    whole_queries: int
    """Since the process began, what it sent before the window included."""
    whole_cpu_ns: int
    """Of the process since it began: starting and connecting too."""
    rss_bytes: int
    """The peak since it began."""
    context_switches: int
    driver: str | None = None
    """How ours waited for its connections, from its receipt."""


class Counting(Protocol):
    """A server that counts what it has answered."""

    def executed(self) -> int: ...


class Counters:
    """The server's own counters, over a connection of its own."""

    def __init__(self, socket: Path, user: str, password: str) -> None:
        self._connection = pymysql.connect(
            unix_socket=str(socket), user=user, password=password, ssl_disabled=True, connect_timeout=60
        )
        self._own = self._status("Threads_connected")

    def executed(self) -> int:
        return self._status("Com_stmt_execute")

    def connected(self) -> int:
        """Sessions beside the fewest that there ever were: this one, the laboratory's own. One may just be ending at the start."""
        now = self._status("Threads_connected")
        self._own = min(self._own, now)
        return now - self._own

    def _status(self, name: str) -> int:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SHOW GLOBAL STATUS WHERE Variable_name = %s", (name,))
                found = cursor.fetchone()
        except pymysql.Error as error:
            raise LabError(f"the server did not tell its counter {name}: {error}") from error
        assert found is not None, "every server counts this"
        return int(found[1])

    def __enter__(self) -> Counters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()


@dataclass(frozen=True)
class Reading:
    """Taken around one look at the server's counter: time and CPU are those in the middle of it."""

    at_ns: int
    cpu_ns: int
    executed: int
    context_switches: int


def cpu_clock_ns(pid: int) -> int:
    """On-CPU time of all threads of a process since it began, those that ended included: its CPU clock (clock_getcpuclockid(3)),
    one system call however many threads."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def context_switches(pid: int) -> int:
    """Of the threads that live, wanted and forced."""
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
    raise LabError(f"the kernel tells no peak memory of process {pid}")


def read(pid: int, counters: Counting) -> Reading:
    """Now. The counter's answer may wait for a CPU among the load, hence the middle of before and after."""
    switches = context_switches(pid)
    before = time.monotonic_ns(), cpu_clock_ns(pid)
    executed = counters.executed()
    after = time.monotonic_ns(), cpu_clock_ns(pid)
    return Reading((before[0] + after[0]) // 2, (before[1] + after[1]) // 2, executed, switches)


def measure(pid: int, counters: Counting, seconds: float, began: int) -> Trial:
    """A window of a client that is under way; `began`: the server's counter before the client was started."""
    first = read(pid, counters)
    time.sleep(seconds)
    last = read(pid, counters)
    if last.executed == first.executed:
        raise LabError(
            f"nothing was answered in {seconds:g} s", "Wait until the machine is quieter, or measure for longer."
        )
    return Trial(
        queries=last.executed - first.executed,
        seconds=(last.at_ns - first.at_ns) / 1e9,
        cpu_ns=last.cpu_ns - first.cpu_ns,
        whole_queries=last.executed - began,
        whole_cpu_ns=last.cpu_ns,
        rss_bytes=peak_memory_bytes(pid),
        context_switches=last.context_switches - first.context_switches,
    )


def wait_until(condition: Callable[[], bool], what: str, patience_s: float) -> None:
    """Observe, bounded in time. Raises LabError."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {patience_s:.0f} s for {what}", "Is the machine overloaded?")
        time.sleep(_POLL_S)
