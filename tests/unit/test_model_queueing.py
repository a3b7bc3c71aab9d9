"""The closed model: against results that are exact, against bounds, and against a curve that others published."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.analysis.model.queueing import Point, Station, at, ceiling, knee, line, processors, solve


def _machine_repair(delay_s: float, service_s: float, connections: int) -> float:
    """Throughput of one exponential station and a delay, from the balance equations of its birth-death chain."""
    weight, weights = 1.0, [1.0]
    for waiting in range(1, connections + 1):
        weight *= (connections - waiting + 1) * service_s / delay_s
        weights.append(weight)
    return (1 - weights[0] / sum(weights)) / service_s


@pytest.mark.parametrize("connections", [1, 2, 7, 30])
def test_exponential_services_are_solved_exactly(connections: int) -> None:
    (*_, last) = solve(0.010, [Station.exponential("line", 4, 0.001)], connections)
    assert last.throughput == pytest.approx(_machine_repair(0.010, 0.001, connections), rel=1e-9)


def test_balanced_stations_share_the_queue() -> None:
    """K equal exponential stations and no delay: X(N) = N / (D (N + K - 1))."""
    stations = [Station.exponential(f"{number}", 1, 0.002) for number in range(3)]
    for point in solve(0.0, stations, 20):
        assert point.throughput == pytest.approx(point.connections / (0.002 * (point.connections + 2)))


def test_equal_services_wait_half_of_what_exponential_ones_do() -> None:
    """Two connections, one station: the second finds the first in service with probability U(1) = 0.5 and half of it left."""
    constant = Station.of_services("line", [0.001])
    (_, two) = solve(0.001, [constant], 2)
    assert two.throughput == pytest.approx(2 / (0.002 + 0.5 * 0.0005))


def test_processors_are_a_fast_one_and_a_delay() -> None:
    station, delay_s = processors("server CPU", 16, 0.004, 4)
    assert station.demand_s == pytest.approx(0.001)
    assert delay_s == pytest.approx(0.003)


services = st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=20)


@given(st.floats(0, 0.1), st.lists(services, min_size=1, max_size=3), st.integers(1, 60))
def test_no_bound_is_passed(delay_s: float, all_services: list[list[float]], most: int) -> None:
    stations = [Station.of_services(f"{number}", each) for number, each in enumerate(all_services)]
    alone = delay_s + sum(station.demand_s for station in stations)
    for point in solve(delay_s, stations, most):
        assert point.throughput <= min(point.connections / alone, ceiling(stations)) * (1 + 1e-9)
        assert all(0 <= busy <= 1 for busy in point.utilisation.values())
        assert point.cycle_s >= alone * (1 - 1e-9)


# ---------------------------------------------------------------- a published curve

CONNECTIONS = (1, 4, 16, 32, 64, 96, 128, 256, 512, 1024, 2048)
GIGABIT = (326, 1143, 2400, 2666, 2838, 2865, 2867, 2867, 2867, 2865, 2762)
TEN_GIGABIT = (394, 1545, 5648, 10256, 15763, 17627, 18526, 18529, 17902, 16954, 16394)
"""Transactions a second, sysbench oltp_read_only, Percona 2019 ("How network bandwidth affects MySQL performance")."""

POINT, RANGE, SUM, OK = 197, 12_670, 98, 11
"""Payload of the replies: a row of `c` (119 characters) with its definition; 100 such rows; one number; begin and commit."""
TRANSACTION = (*[POINT] * 10, *[RANGE] * 3, SUM, OK, OK)
INTERFACE_BPS = 1e9 * 1514 / 1538
"""What /proc/net/dev shows of a full gigabit line: without preamble, check sequence and gap."""


def _on_the_interface(reply: int) -> float:
    """A TLS record of 22 bytes more, in segments of 1448 with 66 bytes of headers each."""
    record = reply + 22
    return record + 66 * ceil(record / 1448)


def _predicted() -> list[Point]:
    """The gigabit curve from two points of the other one, the bytes of a transaction and the two rates. Nothing is fitted."""
    lengths = [_on_the_interface(reply) for reply in TRANSACTION]
    fast, slow = line("link", lengths, 10 * INTERFACE_BPS), line("link", lengths, INTERFACE_BPS)
    server = Station.exponential("server CPU", len(lengths), 1 / max(TEN_GIGABIT))
    delay_s = 1 / TEN_GIGABIT[0] - server.demand_s - fast.demand_s
    return solve(delay_s, [slow, server], CONNECTIONS[-1])


def test_a_published_gigabit_curve_follows_from_the_ten_gigabit_one() -> None:
    points = _predicted()
    errors = [at(points, n).throughput / seen - 1 for n, seen in zip(CONNECTIONS, GIGABIT, strict=True)]
    assert sum(map(abs, errors)) / len(errors) <= 0.05, errors
    assert max(map(abs, errors)) <= 0.12, errors


def test_the_model_names_the_link_and_its_knee() -> None:
    points = _predicted()
    assert at(points, 256).utilisation["link"] > 0.99 > at(points, 1).utilisation["link"]
    lengths = [_on_the_interface(reply) for reply in TRANSACTION]
    assert 5 < knee(1 / 326, [line("link", lengths, INTERFACE_BPS)]) < 12, "2667 of 2867 were reached at 32, 1143 at 4"
