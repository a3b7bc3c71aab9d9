"""A load whose clients log their keys, run in a thread so that a fault can be injected meanwhile; and a watcher of its keys.

Nothing outlives a trial: the load ends at its own limits or when its server dies, the watcher when its server dies, and both are
joined.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from howfar.contract.messages import (
    Event,
    LoadJob,
    Measuring,
    Watched,
    Watching,
    WatchJob,
)
from howfar.engine import acknowledged
from howfar.engine.acknowledged import KeyLog
from howfar.engine.process import EngineProcess, Launcher
from howfar.engine.run_load import LoadOutcome
from howfar.errors import EngineError, HowfarError, LabError
from howfar.experiments.replication.inserts import TABLE
from howfar.experiments.replication.records import CpuShares
from howfar.lab.environment import LoadWatch
from howfar.lab.network import cpu_s_of
from howfar.lab.sandbox import children_of

MeasureLoad = Callable[[LoadJob, Launcher, Callable[[Event], None]], LoadOutcome]
PAUSE_NS = 1_000_000
"""Pause between two polls of the watcher: short enough to see rows that are visible for a round trip, long enough to use little of
the primary's CPU."""
_GRACE_S = 60.0
"""Extra time for a load to end after its own limits, which the engine enforces itself."""
_MARGIN_NS = 30_000_000_000


def with_key_log(job: LoadJob, log: Path, measure_ns: int) -> LoadJob:
    """The same load with a log of its keys. It ends after `measure_ns`, or when its server dies. A commit that hangs does not end it,
    because the fault may be what makes it hang."""
    session = job.session.model_copy(update={"on_disconnect": "end"})
    stall_ns = max(job.stall_timeout_ns, measure_ns + _MARGIN_NS)
    changes = {"session": session, "acknowledged": str(log), "measure_ns": measure_ns, "stall_timeout_ns": stall_ns}
    return LoadJob.model_validate(dict(job) | changes)


@dataclass
class BackgroundLoad:
    """A load in a thread, which `start` starts. `kill` kills the load's server; it is used if nothing else ends the load."""

    job: LoadJob
    log: Path
    kill: Callable[[], None]
    _measuring: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _outcome: LoadOutcome | None = None
    _error: BaseException | None = None
    began_ns: int = 0
    """Monotonic time at which the measured window began."""

    def start(self, measure: MeasureLoad, launcher: Launcher, on_event: Callable[[Event], None]) -> None:
        def note_event(event: Event) -> None:
            if isinstance(event, Measuring):
                self.began_ns = time.monotonic_ns()
                self._measuring.set()
            on_event(event)

        def run() -> None:
            try:
                self._outcome = measure(self.job, launcher, note_event)
            except BaseException as error:
                self._error = error
            finally:
                self._ended.set()
                self._measuring.set()

        self._thread = threading.Thread(target=run, name="load", daemon=True)
        self._thread.start()

    def await_window(self) -> None:
        """Wait for the measured window. Raises what the load raised, or LabError if it has already ended."""
        job = self.job
        self._measuring.wait((job.connect_timeout_ns + job.warmup_ns) / 1e9 + _GRACE_S)
        self.pause(0)

    def pause_until(self, after_ns: int) -> None:
        """Wait under load until `after_ns` after the beginning of the measured window. Raises as `await_window`."""
        self.pause(max(self.began_ns + after_ns - time.monotonic_ns(), 0))

    def pause(self, length_ns: int, until: str = "the fault came") -> None:
        """Wait under load. `until`: the next event, for the message when the load does not last that long."""
        if self._ended.wait(length_ns / 1e9):
            self._raise_error()
            raise LabError(f"the load ended before {until}", "Is the machine overloaded? Its log may say why.")
        if not self._measuring.is_set():
            raise LabError("the load did not begin in time", "Is the machine overloaded?")

    def finish(self) -> LoadOutcome:
        """Wait until the load has ended; returns its outcome. Raises what the load raised."""
        job = self.job
        self._ended.wait(
            (job.connect_timeout_ns + job.warmup_ns + job.measure_ns + job.stall_timeout_ns) / 1e9 + _GRACE_S
        )
        self._raise_error()
        if self._outcome is None:
            raise LabError("the load did not end in time")
        return self._outcome

    def read_keys(self) -> KeyLog:
        """The log of the load's keys. Raises EngineError when it is incomplete."""
        return acknowledged.read(self.log)

    def abandon(self) -> None:
        """End the load by killing its server, if the trial ended before the load did."""
        if self._ended.is_set() or self._thread is None:
            return
        self.kill()
        self._thread.join(_GRACE_S)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class CpuWatch:
    """Measures the use of the machine's CPUs, in total and by the replicas on it, from construction until `finish()`."""

    def __init__(self, replicas: Sequence[int]) -> None:
        self._replicas, self._load = replicas, LoadWatch()
        self._began_s, self._used_s = time.monotonic(), self._used_cpu_s()

    def _used_cpu_s(self) -> float:
        return sum(cpu_s_of(pid) for replica in self._replicas for pid in (replica, *children_of(replica)))

    def finish(self) -> CpuShares | None:
        """The CPU use. None: this kernel does not count it."""
        used_s, elapsed_s = self._used_cpu_s() - self._used_s, time.monotonic() - self._began_s
        busy = self._load.finish().busy_cpus
        if busy is None:
            return None
        return CpuShares(busy=busy, idle=(os.cpu_count() or 1) - busy, replicas=min(used_s / elapsed_s, busy))


@dataclass
class KeyWatcher:
    """Another client of the primary, which polls for the load's keys to find out when they become visible."""

    process: EngineProcess
    log: Path

    def finish(self) -> tuple[KeyLog, Watched]:
        """Wait until the watcher has ended with its server; returns its log and its result. Raises EngineError."""
        last_event = None
        for event in self.process.events():
            last_event = event
        if not isinstance(last_event, Watched):
            raise EngineError("howfar-engine watch ended without a result", "Please report this.")
        return acknowledged.read(self.log), last_event


def watch_keys(job: LoadJob, log: Path, launcher: Launcher, stack: ExitStack) -> KeyWatcher:
    """Start a watcher before the load's first key. Raises EngineError, LabError."""
    watch_job = WatchJob(
        target=job.target,
        user=job.user,
        password=job.password,
        database=job.database,
        protocol=job.protocol,
        session=job.session.model_copy(update={"on_disconnect": "stop"}),
        table=TABLE,
        column="id",
        connections=job.connections,
        seen=str(log),
        pause_ns=PAUSE_NS,
        watch_ns=job.warmup_ns + job.measure_ns + job.stall_timeout_ns + _MARGIN_NS,
        stall_timeout_ns=job.stall_timeout_ns,
    )
    process = stack.enter_context(EngineProcess(watch_job, launcher))
    try:
        first = process.read()
    except HowfarError as error:
        raise LabError(f"the load's keys could not be watched: {error.message}", error.advice) from error
    if not isinstance(first, Watching):
        raise LabError(f"the load's keys could not be watched: the engine said {first.event!r}")
    return KeyWatcher(process, log)
