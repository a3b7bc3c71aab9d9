"""Calibration of the recorder: the time that it adds to a round trip, measured with the application's own rhythm.

Between two round trips an application computes, and meanwhile the CPUs of tap and server go to sleep. An echo without pauses would not
include the time to wake them, so the echo pauses as the application did.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from howfar.engine.messages import (
    AnswerJob,
    NullReady,
    Recorded,
    Replayed,
    ReplayJob,
    ReplayPage,
    ReplayStep,
    Target,
    TcpListen,
    TcpTarget,
    UnixTarget,
)
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LabError
from howfar.lab.network import format_cpus
from howfar.recording.costs import SMALLEST, trimmed_mean
from howfar.recording.record_tap import RecordTap
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import mean_interval
from howfar.stopping import temporary_folder

_ROUNDS = 8
_ROUND_NS = 60_000_000
_FEWEST, _MOST, _SETTLE = 20, 200, 5
_LONGEST_ROUND_NS, _LEAST = 130_000_000, 3
"""Duration above which a round has fewer than `_FEWEST` round trips, and their minimum: large answers take tens of milliseconds."""
_BYTE_NS = 1.5
"""Time of a byte through the tap, to estimate the duration of a round."""
_START_S = 0.05
"""Time to start the program of a round."""
_LONGEST_NS = 3_000_000
"""Idle time after which a CPU is in its deepest sleep state."""
_LEAST_SERVER_NS = 5_000
"""Shortest server time: the server also uses it to check how long it waited for a CPU."""


class Rhythm(Part):
    """A typical round trip: the time before it, the server's time, and bytes."""

    gap_ns: int = 0
    server_ns: int = _LEAST_SERVER_NS
    to_server: int = SMALLEST[0]
    to_client: int = SMALLEST[1]

    @property
    def each_ns(self) -> int:
        """Duration of a round trip with the gap before it, without the path."""
        return self.gap_ns + self.server_ns

    def without(self, floor_ns: int) -> Rhythm:
        """The rhythm with the server's own time: `server_ns` was measured on a path with this floor, which is subtracted."""
        return self.model_copy(update={"server_ns": max(self.server_ns - floor_ns, _LEAST_SERVER_NS)})

    def step(self, to_server: int | None = None, to_client: int | None = None, connection: int = 0) -> ReplayStep:
        """A step of a replay with this rhythm, optionally with other sizes."""
        return ReplayStep(
            connection=connection,
            gap_ns=self.gap_ns,
            server_ns=self.server_ns,
            bytes_to_server=self.to_server if to_server is None else to_server,
            bytes_to_client=self.to_client if to_client is None else to_client,
        )


def rhythm_of(rows: Iterable[tuple[int, int, int, int, int, int]]) -> Rhythm:
    """The median rhythm of rows (page, begun, sent, ended, bytes to the server, to the client), which are ordered by page and time.

    The server's time is from sent to ended. The gap before the first round trip of a page is unknown.
    """
    gaps: list[int] = []
    found: list[Sequence[int]] = []
    before: tuple[int, int] | None = None
    for page, begun_ns, sent_ns, ended_ns, to_server, to_client in rows:
        if before is not None and before[0] == page and begun_ns >= before[1]:
            gaps.append(begun_ns - before[1])
        found.append((ended_ns - sent_ns, to_server, to_client))
        before = page, ended_ns
    if not found:
        return Rhythm()
    took_ns, to_server, to_client = (round(statistics.median(column)) for column in zip(*found, strict=True))
    return Rhythm(
        gap_ns=min(round(statistics.median(gaps)), _LONGEST_NS) if gaps else 0,
        server_ns=max(min(took_ns, _LONGEST_NS), _LEAST_SERVER_NS),
        to_server=to_server,
        to_client=to_client,
    )


class Placement(Part):
    """CPUs on which an application, with its tap, and its server may run; None: all."""

    application: tuple[int, ...] | None = None
    server: tuple[int, ...] | None = None

    @classmethod
    def of_processes(cls, server_pid: int | None) -> Placement:
        """CPUs of the processes that this one starts, and of a server. If `server_pid` is None or 0 (unknown), the server has all."""
        ours, theirs = tuple(sorted(os.sched_getaffinity(0))), tuple(range(os.cpu_count() or 1))
        if server_pid:
            with contextlib.suppress(OSError):
                theirs = tuple(sorted(os.sched_getaffinity(server_pid)))
        return cls(application=ours, server=theirs)

    @classmethod
    def of_recording(cls, facts: Mapping[str, Any]) -> Placement:
        """The placement during the recording, if this machine has these CPUs; else no restriction."""
        found = cls.model_validate(facts.get("cpus") or {})
        return found if all(cpus is None or _allowed(cpus) for cpus in (found.application, found.server)) else cls()


def _allowed(cpus: tuple[int, ...]) -> bool:
    def tried() -> bool:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError:
            return False
        return set(cpus) <= os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as pool:  # affinity is per thread, so ours is not changed
        return pool.submit(tried).result()


def on_cpus(cpus: tuple[int, ...] | None) -> Launcher:
    """Launcher of a process on `cpus`."""
    return Launcher(() if cpus is None else ("taskset", "-c", format_cpus(cpus)))


class Calibration(Part):
    """Cost of a round trip through the recorder, for a given rhythm."""

    floor_ns: int
    """Round trip between tap and server, without the server's time."""
    tap_ns: Estimate
    """Time that the tap adds."""
    path_ns: int = 0
    """Round trip of a client without the tap, without the server's time."""


def calibrate(
    on_socket: bool, rhythm: Rhythm, placement: Placement, on: Callable[[tuple[int, ...] | None], Launcher] = on_cpus
) -> Calibration:
    """Measure in rounds, each with and without a tap. `on`: the launcher for given CPUs. Raises LabError, EngineError."""
    settle, rounds = _round_trips(rhythm)
    page = ReplayPage(steps=(rhythm.step(),) * (settle + rounds))
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        client = on(placement.application)
        plain = _answering(stack, f"{folder}/answers" if on_socket else None, on(placement.server))
        listen = UnixTarget(path=f"{folder}/tap") if on_socket else TcpListen(host="127.0.0.1", port=0)
        tap = RecordTap(plain, listen, client)
        stack.callback(tap.leave)
        added, plainly = [], []
        for number in range(_ROUNDS):
            targets = {"plain": plain, "tapped": tap.address}
            order = sorted(targets, reverse=bool(number % 2))
            cost_ns = {name: _cost_ns(targets[name], page, settle, rhythm, client) for name in order}
            added.append(cost_ns["tapped"] - cost_ns["plain"])
            plainly.append(cost_ns["plain"])
        tap.finish()
        events = [event for event in tap.events() if isinstance(event, Recorded)]
    upstream = [one.ended_ns - one.sent_ns - rhythm.server_ns for event in events for one in event.round_trips]
    floor_ns, path_ns = (max(round(trimmed_mean(times)), 0) for times in (upstream, plainly))
    return Calibration(floor_ns=floor_ns, tap_ns=mean_interval(added), path_ns=path_ns)


def _round_trips(rhythm: Rhythm) -> tuple[int, int]:
    """Numbers of round trips in a round: those to settle, and those that count."""
    each_ns = _expected_ns(rhythm)
    rounds = max(_LEAST, min(_FEWEST, int(_LONGEST_ROUND_NS / each_ns)), min(_MOST, int(_ROUND_NS / each_ns)))
    return min(_SETTLE, rounds), rounds


def _expected_ns(rhythm: Rhythm) -> float:
    return rhythm.each_ns + 100_000 + _BYTE_NS * (rhythm.to_server + rhythm.to_client)


def calibration_s(rhythm: Rhythm) -> float:
    """Estimated duration of a calibration on a quiet machine."""
    return 2 * _ROUNDS * (sum(_round_trips(rhythm)) * _expected_ns(rhythm) / 1e9 + _START_S)


def _answering(stack: ExitStack, socket: str | None, where: Launcher) -> Target:
    """Start a server that does no work."""
    listen = UnixTarget(path=socket) if socket else TcpListen(host="127.0.0.1", port=0)
    server = stack.enter_context(EngineProcess(AnswerJob(listen=listen), where))
    ready = server.read()
    if not isinstance(ready, NullReady):
        raise LabError("the server that does no work did not start", "Please report this.")
    return listen if isinstance(listen, UnixTarget) else TcpTarget(host=listen.host, port=ready.port or 0)


def _cost_ns(target: Target, page: ReplayPage, settle: int, rhythm: Rhythm, where: Launcher) -> float:
    with EngineProcess(ReplayJob(target=target, pages=(page,)), where) as engine:
        done = engine.read()
    assert isinstance(done, Replayed), "a replay says what each page took"
    return trimmed_mean(done.round_trips_ns[settle:]) - rhythm.server_ns
