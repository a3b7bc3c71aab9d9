"""Measures the floor of each transport of a server, its shortest round trip and connect: pings and logins, in rounds.

Each round measures all transports, so that other load on the machine affects all alike, and a difference is one number per round. The
value of a round is the median of its pings; intervals are for the median over the rounds.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext

from howfar.doctor.findings import Floor, IdleCost, Median, Transport
from howfar.doctor.protocols.session import Endpoint, Guarded, NotThis, Refused
from howfar.doctor.targets import Login
from howfar.lab.idle import idle_driver, polling
from howfar.lab.servers.peer import make_blocking
from howfar.stats.intervals import LEVEL

ROUNDS = 24
PINGS = 15
"""Pings per round: 360 in total on each transport."""
_WARM = 5
"""Warm-up pings of each round, which do not count."""
_PAUSE_S, _PAUSED_PINGS = 0.001, 5
_FAR_NS = 20e6
"""A server whose connect takes longer than this is remote, and fewer pings suffice."""
_FAR_PINGS = 3
_ENOUGH_S, _LEAST_ROUNDS = 5.0, 6
"""No further round begins after this time, if there are enough rounds for an interval."""
_MOST_S = 30.0
"""Time limit of all rounds, for a server that answers slowly."""


def measure(
    protocol: Guarded, endpoints: Mapping[Transport, Endpoint], login: Login
) -> tuple[tuple[Floor, ...], dict[Transport, tuple[str, str]]]:
    """The floors, and for each transport that could not be measured the reason and its remedy, empty if unknown.

    Each round opens a new connection, so that the kernel's placement of the server's thread is part of the variation.
    """
    round_trips: dict[Transport, list[float]] = {transport: [] for transport in endpoints}
    connects: dict[Transport, list[float]] = {transport: [] for transport in endpoints}
    reasons: dict[Transport, tuple[str, str]] = {}
    pings = PINGS
    began = time.monotonic()
    for number in range(ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() - began > _ENOUGH_S:
            break
        for transport in _turned([name for name in endpoints if name not in reasons], number):
            left_s = began + _MOST_S - time.monotonic()
            if left_s <= 0:
                break
            try:
                trip, connect = _round(protocol, endpoints[transport], login, pings, left_s)
            except (Refused, NotThis, OSError) as why:
                remedy = why.remedy if isinstance(why, Refused) else ""
                reasons[transport] = str(why), "an account that may log in there" if remedy is None else remedy
                continue
            round_trips[transport].append(trip)
            connects[transport].append(connect)
        if number == 0 and any(connect[0] > _FAR_NS for connect in connects.values() if connect):
            pings = _FAR_PINGS
    reasons |= {
        name: (f"it kept the rounds waiting for {_MOST_S:g} s", "") for name in endpoints if not round_trips[name]
    } | reasons
    measured = [name for name in endpoints if name not in reasons]
    return tuple(_floor(name, endpoints[name], pings, round_trips[name], connects[name]) for name in measured), reasons


def _round(protocol: Guarded, endpoint: Endpoint, login: Login, pings: int, left_s: float) -> tuple[float, float]:
    """The median time of a ping, and the time of the connect, in ns."""
    began = time.perf_counter_ns()
    session = protocol.open(endpoint, login)
    connect = time.perf_counter_ns() - began
    try:
        with session.peer.ends_within(left_s):
            _times(session.ping, min(_WARM, pings - 1))
            return statistics.median(_times(session.ping, pings)), float(connect)
    finally:
        session.close()


def idle_cost(protocol: Guarded, transport: Transport, endpoint: Endpoint, login: Login) -> IdleCost:
    """Measure rounds of pings over one connection, half of them with idle CPUs kept polling. A pause of a millisecond precedes each
    ping, as between requests in practice, so that CPUs go to sleep. Raises LabError, Refused, NotThis, OSError."""
    found: dict[bool, list[float]] = {False: [], True: []}
    session = protocol.open(endpoint, login)
    try:
        with session.peer.ends_within(_MOST_S):
            for number in range(2 * ROUNDS):
                polls = (number % 2 == 1) != (number // 2 % 2 == 1)  # alternate which of the two comes first in a pair
                with polling() if polls else nullcontext():
                    _times(session.ping, _WARM)
                    found[polls].append(statistics.median(_after_pauses(session.ping)))
    finally:
        session.close()
    driver = idle_driver()
    return IdleCost(
        transport=transport,
        as_found=interval(found[False]),
        polling=interval(found[True]),
        waking=interval([one - other for one, other in zip(found[False], found[True], strict=True)]),
        driver=driver["driver"],
        governor=driver["governor"],
    )


def _after_pauses(act: Callable[[], None]) -> list[float]:
    took = []
    for _ in range(_PAUSED_PINGS):
        time.sleep(_PAUSE_S)
        took += _times(act, 1)
    return took


def between_processes() -> tuple[Floor, ...]:
    """Floors of a socket and TCP between two processes of howfar: the kernel's share, without a server. Empty on failure."""
    ends = {Transport.SOCKET: socket.socketpair(socket.AF_UNIX), Transport.TCP: _tcp_pair()}
    children = [_echo(theirs, [ours for ours, _ in ends.values()]) for _, theirs in ends.values()]
    try:
        for _, theirs in ends.values():
            theirs.close()
        figures: dict[Transport, list[float]] = {transport: [] for transport in ends}
        for number in range(ROUNDS):
            for transport in _turned(list(ends), number):
                figures[transport].append(statistics.median(_times(_bounce(ends[transport][0]), PINGS)))
    except OSError:  # no echo in time: this machine is too busy
        return ()
    finally:
        for ours, _ in ends.values():
            ours.close()
        for child in children:
            os.waitpid(child, 0)
    nowhere = Endpoint(None, "between two processes of howfar", 0)
    return tuple(_floor(transport, nowhere, PINGS, figures[transport], []) for transport in ends)


def _bounce(end: socket.socket) -> Callable[[], None]:
    def once() -> None:
        end.sendall(b"\x01\0\0\0\x0e")
        end.recv(64)

    return once


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        make_blocking(end)
    return ours, theirs


def _echo(end: socket.socket, others: Sequence[socket.socket]) -> int:
    """Start a process that echoes until the other end is closed. Returns its PID."""
    child = os.fork()
    if child:
        return child
    try:
        for other in others:
            other.close()
        end.settimeout(None)
        while got := end.recv(64):
            end.sendall(got)
    finally:
        os._exit(0)


def _turned(transports: list[Transport], number: int) -> list[Transport]:
    """The transports rotated by `number`: the first of one round is the last of the next."""
    at = number % max(len(transports), 1)
    return transports[at:] + transports[:at]


def _times(act: Callable[[], None], count: int) -> list[float]:
    took = []
    for _ in range(count):
        began = time.perf_counter_ns()
        act()
        took.append(float(time.perf_counter_ns() - began))
    return took


def _floor(
    transport: Transport, endpoint: Endpoint, pings: int, round_trips: list[float], connects: list[float]
) -> Floor:
    return Floor(
        transport=transport,
        where=endpoint.where if endpoint.port or endpoint.path else str(endpoint.host),
        pings_per_round=pings,
        round_trip_ns=interval(round_trips),
        connect_ns=interval(connects) if connects else None,
        round_trips_ns=tuple(round_trips),
        connects_ns=tuple(connects),
    )


def interval(values: Sequence[float]) -> Median:
    """The median with an interval by order statistics: of 24 values the 7th and the 18th (98 %). Fewer than six values have no 95 %
    interval."""
    found = sorted(values)
    depth = _depth(len(found))
    limits = (found[depth], found[-1 - depth]) if depth is not None else (None, None)
    return Median(value=statistics.median(found), low=limits[0], high=limits[1])


def _depth(count: int) -> int | None:
    """Number of values that may be cut off at each end while the rest contains the median with 95 %; None if that is impossible."""
    outside, depth = 0.0, None
    for rank in range(count // 2):
        outside += math.comb(count, rank) / 2**count
        if 2 * outside > 1 - LEVEL:
            break
        depth = rank
    return depth


def savings(worse: Sequence[float], better: Sequence[float]) -> Median | None:
    """The saving of `better` over `worse`, by rounds; None if they were not measured in the same rounds."""
    if not worse or len(worse) != len(better):
        return None
    return interval([a - b for a, b in zip(worse, better, strict=True)])
