"""Measures the minimum latency of each transport of a server: the time of a round trip and of a connect while the server is idle.
Reports call it the floor.

Measurements are made in rounds of pings and a login. Each round measures all transports, so that other load on the machine affects
all alike, and transports can be compared round by round. The value of a round is the median of its pings; intervals are for the
median over the rounds.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext

from howfar.clients.peer import make_blocking
from howfar.doctor.findings import IdleCost, Median, MinimumLatency, Transport
from howfar.doctor.protocols.session import Endpoint, GuardedProtocol, NoValidAnswer, ServerRefused
from howfar.doctor.targets import TargetLogin
from howfar.lab.idle import idle_driver, keep_polling
from howfar.stats.intervals import median_interval

ROUNDS = 24
PINGS = 15
"""Pings per round: 360 in total on each transport."""
_WARM_UP_PINGS = 5
"""Warm-up pings of each round, which do not count."""
_PAUSE_S, _PINGS_AFTER_PAUSES = 0.001, 5
_REMOTE_CONNECT_NS = 20e6
"""A server whose connect takes longer than this counts as remote, and fewer pings suffice."""
_REMOTE_PINGS = 3
_ENOUGH_TIME_S, _MIN_ROUNDS = 5.0, 6
"""After `_ENOUGH_TIME_S` no further round begins, provided that there are the `_MIN_ROUNDS` that an interval needs."""
_MAX_TOTAL_S = 30.0
"""Time limit of all rounds, for a server that answers slowly."""


def measure(
    protocol: GuardedProtocol, endpoints: Mapping[Transport, Endpoint], login: TargetLogin
) -> tuple[tuple[MinimumLatency, ...], dict[Transport, tuple[str, str]]]:
    """Measure all transports. Returns the latencies and, for each transport that failed, the reason and a remedy (empty if unknown).

    Each round opens a new connection, so that the CPU on which the kernel places the server's thread varies between rounds.
    """
    round_trips: dict[Transport, list[float]] = {transport: [] for transport in endpoints}
    connects: dict[Transport, list[float]] = {transport: [] for transport in endpoints}
    reasons: dict[Transport, tuple[str, str]] = {}
    pings = PINGS
    start_s = time.monotonic()
    for round_number in range(ROUNDS):
        if round_number >= _MIN_ROUNDS and time.monotonic() - start_s > _ENOUGH_TIME_S:
            break
        for transport in _rotate([name for name in endpoints if name not in reasons], round_number):
            remaining_s = start_s + _MAX_TOTAL_S - time.monotonic()
            if remaining_s <= 0:
                break
            try:
                round_trip, connect_ns = _measure_round(protocol, endpoints[transport], login, pings, remaining_s)
            except (ServerRefused, NoValidAnswer, OSError) as why:
                remedy = why.remedy if isinstance(why, ServerRefused) else ""
                reasons[transport] = str(why), "an account that may log in there" if remedy is None else remedy
                continue
            round_trips[transport].append(round_trip)
            connects[transport].append(connect_ns)
        if round_number == 0 and any(
            connect_ns[0] > _REMOTE_CONNECT_NS for connect_ns in connects.values() if connect_ns
        ):
            pings = _REMOTE_PINGS
    reasons |= {
        name: (f"it kept the rounds waiting for {_MAX_TOTAL_S:g} s", "") for name in endpoints if not round_trips[name]
    } | reasons
    measured = [name for name in endpoints if name not in reasons]
    return tuple(
        _make_minimum_latency(name, endpoints[name], pings, round_trips[name], connects[name]) for name in measured
    ), reasons


def _measure_round(
    protocol: GuardedProtocol, endpoint: Endpoint, login: TargetLogin, pings: int, remaining_s: float
) -> tuple[float, float]:
    """Measure one round; returns the median time of a ping and the time of the connect, in ns."""
    start_ns = time.perf_counter_ns()
    session = protocol.open(endpoint, login)
    connect_ns = time.perf_counter_ns() - start_ns
    try:
        with session.peer.shut_down_after(remaining_s):
            _time_calls(session.ping, min(_WARM_UP_PINGS, pings - 1))
            return statistics.median(_time_calls(session.ping, pings)), float(connect_ns)
    finally:
        session.close()


def measure_idle_cost(
    protocol: GuardedProtocol, transport: Transport, endpoint: Endpoint, login: TargetLogin
) -> IdleCost:
    """Measure what the waking of idle CPUs costs: rounds of pings over one connection, half of them with idle CPUs kept polling. A
    pause of a millisecond, as between requests in practice, precedes each ping, so that CPUs go to sleep. Raises LabError,
    ServerRefused, NoValidAnswer, OSError."""
    times_ns: dict[bool, list[float]] = {False: [], True: []}
    session = protocol.open(endpoint, login)
    try:
        with session.peer.shut_down_after(_MAX_TOTAL_S):
            for round_number in range(2 * ROUNDS):
                keeps_polling = (round_number % 2 == 1) != (
                    round_number // 2 % 2 == 1
                )  # in pairs, in alternating order
                with keep_polling() if keeps_polling else nullcontext():
                    _time_calls(session.ping, _WARM_UP_PINGS)
                    times_ns[keeps_polling].append(statistics.median(_time_calls_after_pauses(session.ping)))
    finally:
        session.close()
    driver, governor = idle_driver()
    return IdleCost(
        transport=transport,
        as_found=make_median(times_ns[False]),
        polling=make_median(times_ns[True]),
        waking=make_median(
            [as_found - kept_polling for as_found, kept_polling in zip(times_ns[False], times_ns[True], strict=True)]
        ),
        driver=driver,
        governor=governor,
    )


def _time_calls_after_pauses(call: Callable[[], None]) -> list[float]:
    times_ns = []
    for _ in range(_PINGS_AFTER_PAUSES):
        time.sleep(_PAUSE_S)
        times_ns += _time_calls(call, 1)
    return times_ns


def measure_between_processes() -> tuple[MinimumLatency, ...]:
    """Measure a socket and TCP between two processes of howfar, which shows the kernel's share of the time. Empty on failure."""
    socket_pairs = {Transport.SOCKET: socket.socketpair(socket.AF_UNIX), Transport.TCP: _tcp_pair()}
    children = [
        _fork_echo(far_end, [near_end for near_end, _ in socket_pairs.values()]) for _, far_end in socket_pairs.values()
    ]
    try:
        for _, far_end in socket_pairs.values():
            far_end.close()
        medians_ns: dict[Transport, list[float]] = {transport: [] for transport in socket_pairs}
        for round_number in range(ROUNDS):
            for transport in _rotate(list(socket_pairs), round_number):
                medians_ns[transport].append(
                    statistics.median(_time_calls(_make_exchange(socket_pairs[transport][0]), PINGS))
                )
    except OSError:  # no echo in time: this machine is too busy
        return ()
    finally:
        for near_end, _ in socket_pairs.values():
            near_end.close()
        for child in children:
            os.waitpid(child, 0)
    placeholder = Endpoint(None, "between two processes of howfar", 0)
    return tuple(
        _make_minimum_latency(transport, placeholder, PINGS, medians_ns[transport], []) for transport in socket_pairs
    )


def _make_exchange(end: socket.socket) -> Callable[[], None]:
    def exchange() -> None:
        end.sendall(b"\x01\0\0\0\x0e")
        end.recv(64)

    return exchange


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        near_end = socket.create_connection(listener.getsockname())
        far_end, _ = listener.accept()
    for end in (near_end, far_end):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        make_blocking(end)
    return near_end, far_end


def _fork_echo(end: socket.socket, inherited: Sequence[socket.socket]) -> int:
    """Start a process that echoes until the other end is closed. Returns its PID."""
    child = os.fork()
    if child:
        return child
    try:
        for inherited_socket in inherited:
            inherited_socket.close()
        end.settimeout(None)
        while data := end.recv(64):
            end.sendall(data)
    finally:
        os._exit(0)


def _rotate(transports: list[Transport], round_number: int) -> list[Transport]:
    """Rotate the transports by `round_number`, so that the first of one round is the last of the next."""
    offset = round_number % max(len(transports), 1)
    return transports[offset:] + transports[:offset]


def _time_calls(call: Callable[[], None], count: int) -> list[float]:
    times_ns = []
    for _ in range(count):
        start_ns = time.perf_counter_ns()
        call()
        times_ns.append(float(time.perf_counter_ns() - start_ns))
    return times_ns


def _make_minimum_latency(
    transport: Transport, endpoint: Endpoint, pings: int, round_trips: list[float], connects: list[float]
) -> MinimumLatency:
    return MinimumLatency(
        transport=transport,
        where=endpoint.where if endpoint.port or endpoint.path else str(endpoint.host),
        pings_per_round=pings,
        round_trip_ns=make_median(round_trips),
        connect_ns=make_median(connects) if connects else None,
        round_trips_ns=tuple(round_trips),
        connects_ns=tuple(connects),
    )


def make_median(values: Sequence[float]) -> Median:
    """Return the median with its 95 % interval: for 24 values the 7th and the 18th; no interval below six values."""
    estimate = median_interval(values)
    return Median(value=estimate.value, low=estimate.low, high=estimate.high)


def median_saving(worse: Sequence[float], better: Sequence[float]) -> Median | None:
    """Return the median saving of `better` over `worse`, by rounds; None if they were not measured in the same rounds."""
    if not worse or len(worse) != len(better):
        return None
    return make_median([slow - fast for slow, fast in zip(worse, better, strict=True)])
