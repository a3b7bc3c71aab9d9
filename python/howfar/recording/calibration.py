"""Calibrates the recorder: measures the time that it adds to a round trip, with the application's own rhythm.

While an application computes between two round trips, the CPUs of tap and server go to sleep. A measurement without pauses
would not include the time to wake these CPUs, so the measuring client pauses as the application did.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from howfar.contract.messages import (
    AnswerJob,
    Recorded,
    Replayed,
    ReplayJob,
    ReplayPage,
    ReplayStep,
    Target,
    TcpListen,
    UnixTarget,
)
from howfar.engine.null_server import run_null_server
from howfar.engine.process import EngineProcess, Launcher
from howfar.lab.network import format_cpus
from howfar.recording.costs import SMALLEST, trimmed_mean
from howfar.recording.record_tap import RecordTap
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import mean_interval
from howfar.stopping import temporary_folder

_ROUNDS = 8
_TARGET_ROUND_NS = 60_000_000
_USUAL_MIN_TRIPS, _MAX_TRIPS, _WARM_UP_TRIPS = 20, 200, 5
_MAX_ROUND_NS, _MIN_TRIPS = 130_000_000, 3
"""If a round would take longer than `_MAX_ROUND_NS`, it may have fewer than `_USUAL_MIN_TRIPS` round trips, but at least `_MIN_TRIPS`.
Large answers take tens of milliseconds each."""
_NS_PER_BYTE = 1.5
"""Estimated time that one byte takes through the tap; used only to estimate the duration of a round."""
_PROGRAM_START_S = 0.05
"""Estimated time to start the program that runs a round."""
_DEEP_SLEEP_NS = 3_000_000
"""Idle time after which a CPU is in its deepest sleep state; longer pauses need not be reproduced."""
_MIN_SERVER_NS = 5_000
"""Minimum server time, which the server needs to measure how long it waited for a CPU."""


class Rhythm(Part):
    """A typical round trip: the pause before it, the server's time, and the bytes sent each way."""

    gap_ns: int = 0
    server_ns: int = _MIN_SERVER_NS
    to_server: int = SMALLEST[0]
    to_client: int = SMALLEST[1]

    @property
    def pause_and_server_ns(self) -> int:
        """Duration of the pause and of a round trip, without the time that the path takes."""
        return self.gap_ns + self.server_ns

    def without_floor(self, floor_ns: int) -> Rhythm:
        """The rhythm without `floor_ns` in `server_ns`: the measured time includes that of a round trip without server work."""
        return self.model_copy(update={"server_ns": max(self.server_ns - floor_ns, _MIN_SERVER_NS)})

    def step(self, to_server: int | None = None, to_client: int | None = None, connection: int = 0) -> ReplayStep:
        """A step of a replay with this rhythm, optionally with other sizes."""
        return ReplayStep(
            connection=connection,
            gap_ns=self.gap_ns,
            server_ns=self.server_ns,
            bytes_to_server=self.to_server if to_server is None else to_server,
            bytes_to_client=self.to_client if to_client is None else to_client,
        )


def median_rhythm(rows: Iterable[tuple[int, int, int, int, int, int]]) -> Rhythm:
    """The median rhythm of rows (page, begin, end of sending, end, bytes to the server, to the client), ordered by page and time.

    The server's time lasts from the end of sending to the end. The gap before the first round trip of a page is unknown.
    """
    gaps: list[int] = []
    sizes: list[Sequence[int]] = []
    previous: tuple[int, int] | None = None
    for page, begun_ns, sent_ns, ended_ns, to_server, to_client in rows:
        if previous is not None and previous[0] == page and begun_ns >= previous[1]:
            gaps.append(begun_ns - previous[1])
        sizes.append((ended_ns - sent_ns, to_server, to_client))
        previous = page, ended_ns
    if not sizes:
        return Rhythm()
    took_ns, to_server, to_client = (round(statistics.median(column)) for column in zip(*sizes, strict=True))
    return Rhythm(
        gap_ns=min(round(statistics.median(gaps)), _DEEP_SLEEP_NS) if gaps else 0,
        server_ns=max(min(took_ns, _DEEP_SLEEP_NS), _MIN_SERVER_NS),
        to_server=to_server,
        to_client=to_client,
    )


class Placement(Part):
    """The CPUs on which an application and its tap may run, and those on which its server may run; None for all CPUs."""

    application: tuple[int, ...] | None = None
    server: tuple[int, ...] | None = None

    @classmethod
    def of_processes(cls, server_pid: int | None) -> Placement:
        """The CPUs of processes that this one starts, and those of a server. If `server_pid` is None or 0 (unknown), these are all
        CPUs."""
        own_cpus, server_cpus = tuple(sorted(os.sched_getaffinity(0))), tuple(range(os.cpu_count() or 1))
        if server_pid:
            with contextlib.suppress(OSError):
                server_cpus = tuple(sorted(os.sched_getaffinity(server_pid)))
        return cls(application=own_cpus, server=server_cpus)

    def without_missing_cpus(self) -> Placement:
        """This placement if this machine has its CPUs; else no restriction."""
        is_usable = all(cpus is None or _can_run_on(cpus) for cpus in (self.application, self.server))
        return self if is_usable else Placement()


def _can_run_on(cpus: tuple[int, ...]) -> bool:
    def try_affinity() -> bool:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError:
            return False
        return set(cpus) <= os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as pool:  # affinity is per thread, so ours is not changed
        return pool.submit(try_affinity).result()


def launcher_on_cpus(cpus: tuple[int, ...] | None) -> Launcher:
    """Launcher of a process on `cpus`."""
    return Launcher(() if cpus is None else ("taskset", "-c", format_cpus(cpus)))


class RecorderCost(Part):
    """Cost of a round trip through the recorder, for a given rhythm."""

    floor_ns: int
    """Time of a round trip between tap and server, without the server's time."""
    tap_ns: Estimate
    """Time that the tap adds to a round trip."""
    path_ns: int = 0
    """Time of a client's round trip without the tap, without the server's time."""


def calibrate(
    on_socket: bool,
    rhythm: Rhythm,
    placement: Placement,
    launcher_on: Callable[[tuple[int, ...] | None], Launcher] = launcher_on_cpus,
) -> RecorderCost:
    """Measure the cost of a tap in rounds, each with and without it. `launcher_on`: returns a launcher for CPUs. Raises LabError,
    EngineError."""
    warm_up_trips, measured_trips = _count_round_trips(rhythm)
    page = ReplayPage(steps=(rhythm.step(),) * (warm_up_trips + measured_trips))
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        client = launcher_on(placement.application)
        tcp = TcpListen(host="127.0.0.1")
        job = AnswerJob(listen=UnixTarget(path=f"{folder}/answers") if on_socket else tcp)
        server = stack.enter_context(run_null_server(job, launcher_on(placement.server))).target
        listen = UnixTarget(path=f"{folder}/tap") if on_socket else tcp
        tap = RecordTap(server, listen, client)
        stack.callback(tap.leave)
        added_ns, path_times_ns = [], []
        for round_number in range(_ROUNDS):
            targets = {"plain": server, "tapped": tap.address}
            target_names = sorted(targets, reverse=bool(round_number % 2))
            cost_ns = {
                name: _measure_cost_ns(targets[name], page, warm_up_trips, rhythm, client) for name in target_names
            }
            added_ns.append(cost_ns["tapped"] - cost_ns["plain"])
            path_times_ns.append(cost_ns["plain"])
        tap.finish()
        events = [event for event in tap.events() if isinstance(event, Recorded)]
    upstream_ns = [trip.ended_ns - trip.sent_ns - rhythm.server_ns for event in events for trip in event.round_trips]
    floor_ns, path_ns = (max(round(trimmed_mean(times)), 0) for times in (upstream_ns, path_times_ns))
    return RecorderCost(floor_ns=floor_ns, tap_ns=mean_interval(added_ns), path_ns=path_ns)


def _count_round_trips(rhythm: Rhythm) -> tuple[int, int]:
    """Numbers of round trips in a round: those that warm up, and those that are measured."""
    round_trip_ns = _expected_round_trip_ns(rhythm)
    measured_trips = max(
        _MIN_TRIPS,
        min(_USUAL_MIN_TRIPS, int(_MAX_ROUND_NS / round_trip_ns)),
        min(_MAX_TRIPS, int(_TARGET_ROUND_NS / round_trip_ns)),
    )
    return min(_WARM_UP_TRIPS, measured_trips), measured_trips


def _expected_round_trip_ns(rhythm: Rhythm) -> float:
    return rhythm.pause_and_server_ns + 100_000 + _NS_PER_BYTE * (rhythm.to_server + rhythm.to_client)


def calibration_s(rhythm: Rhythm) -> float:
    """Estimated duration of a calibration on a quiet machine."""
    return 2 * _ROUNDS * (sum(_count_round_trips(rhythm)) * _expected_round_trip_ns(rhythm) / 1e9 + _PROGRAM_START_S)


def _measure_cost_ns(target: Target, page: ReplayPage, warm_up_trips: int, rhythm: Rhythm, launcher: Launcher) -> float:
    with EngineProcess(ReplayJob(target=target, pages=(page,)), launcher) as engine:
        replayed = engine.read()
    assert isinstance(replayed, Replayed), "a replay job answers with Replayed"
    return trimmed_mean(replayed.round_trips_ns[warm_up_trips:]) - rhythm.server_ns
