"""The closed model: against results that are exact, against bounds, and against a curve that others published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.made_curves import WORKLOAD, Cell, run_of

from howfar.model.facts import arm_facts
from howfar.model.fit import fit, settings_of
from howfar.model.queueing import Station, ceiling, processors, solve
from howfar.model.what_if import WhatIfAnswer, answer


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

REPLIES = 10 * 197 + 3 * 12_670 + 98 + 2 * 11
"""Bytes of a transaction's replies: a row of `c` (119 characters) with its definition; 100 such rows; one number; begin and commit."""


def _cell(connections: int, tps: float) -> Cell:
    """A cell of the 10 Gb/s series as a run would hold it. The server is taken to have been full at the highest throughput; the
    client's processors are not known and taken to be many. Sessions were encrypted, as was usual. The round trip is not published and
    cancels out: what it does not take of a lone connection's cycle is taken for thinking."""
    factors = {"path": "remote", "threads": connections, "rtt_ns": 100_000, "rate_bps": 10**10, "tls": "1.2"}
    return Cell(factors, tps, client_s=1e-6, server_s=1 / max(TEN_GIGABIT), replies=REPLIES)


def _foreseen(connections: int) -> WhatIfAnswer:
    """By the product's own way: cells, facts, fit, and the answer at another rate. Nothing is fitted to the gigabit series."""
    run = run_of([_cell(*cell) for cell in zip(CONNECTIONS, TEN_GIGABIT, strict=True)], wobble=0.0)
    facts = arm_facts(run)
    base, settings = fit(facts, WORKLOAD), settings_of(facts[0])
    return answer(base, settings.model_copy(update={"rate_bps": 1e9, "threads": connections}))


def test_a_published_gigabit_curve_follows_from_the_ten_gigabit_one() -> None:
    errors = [_foreseen(n).tps / seen - 1 for n, seen in zip(CONNECTIONS, GIGABIT, strict=True)]
    assert sum(map(abs, errors)) / len(errors) <= 0.05, errors
    assert max(map(abs, errors)) <= 0.12, errors


def test_the_model_names_the_link_and_its_knee() -> None:
    assert _foreseen(256).limits == "link to client" and _foreseen(1).limits == "latency"
    assert 5 < _foreseen(1).knee < 12, "2666 of 2867 were reached at 32, 1143 at 4"
