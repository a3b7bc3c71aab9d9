"""A closed queueing model of a database under load: connections that each have one transaction in progress.

A transaction takes some time without a queue (round trips, the client's own time; the *think time* of the model) and visits stations,
where it queues: the processors of the server, the link in each direction. The solution is mean value analysis, Reiser and Lavenberg
1980, with the first-come-first-served correction of Reiser 1979: an arrival finds the queue of a system with one connection less. It
waits for the full services of those that queue, and for the *residual* service of the one in progress. The residual depends on how
unequal the services are: E[S^2] / 2E[S]. With exponential services that is E[S], and the solution is exact.

The residual matters because a result of 100 rows occupies a gigabit link for 0.1 ms, an OK packet for 1 µs. In a model of the mean
alone, small answers would overtake large ones, and near the knee it would predict up to a fifth more throughput than the link
delivers.

Effects that grow with the number of connections (locks, caches, scheduling) are not modelled. `facts.py` measures the demands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Self

_MAX_BUSY = 0.98
"""Maximum utilisation of processors by other processes. A measured utilisation above it does not show how much capacity remains."""


@dataclass(frozen=True)
class Station:
    """A station at which transactions queue. Times in seconds; `visits` per transaction, `mean_s`, `square_s2` (E[S^2]) per visit."""

    name: str
    visits: float
    mean_s: float
    square_s2: float

    @property
    def demand_s(self) -> float:
        """Service time per transaction: at most 1 / demand transactions pass per second."""
        return self.visits * self.mean_s

    @property
    def residual_s(self) -> float:
        """Mean residual time of the service in progress that an arrival finds (the renewal theorem)."""
        return self.square_s2 / (2 * self.mean_s) if self.mean_s else 0.0

    @classmethod
    def exponential(cls, name: str, visits: float, demand_s: float) -> Self:
        """A station with services of exponential length: the usual assumption if only the demand is known."""
        mean = demand_s / visits
        return cls(name, visits, mean, 2 * mean**2)

    @classmethod
    def from_services(cls, name: str, services_s: Sequence[float]) -> Self:
        """A station with the services of one transaction, each of a constant length."""
        visits = len(services_s)
        return cls(name, visits, sum(services_s) / visits, sum(service**2 for service in services_s) / visits)


def line_station(name: str, wire_bytes: Sequence[float], rate_bps: float) -> Station:
    """The station of one direction of a link. Each message of a transaction, in bytes as `rate_bps` counts them, occupies it for its
    transmission time."""
    return Station.from_services(name, [8 * length / rate_bps for length in wire_bytes])


def processor_stations(name: str, visits: float, demand_s: float, count: float) -> tuple[Station, float]:
    """The station of `count` equal processors: one that is `count` times as fast, and the delay in seconds that compensates for that
    (Seidmann 1987). A count below 1 is a slower processor."""
    return Station.exponential(name, visits, demand_s / count), demand_s * max(count - 1, 0.0) / count


@dataclass(frozen=True)
class SharedCpuWork:
    """A single connection's work on processors that it shares with other processes. The shorter its other waits, the larger the share
    of the work that they delay. Times in seconds, per transaction."""

    work_s: float
    """Time of the work without delay by other processes."""
    others_s: float
    """Processor time of the other processes."""
    processors: int

    @classmethod
    def from_measurement(cls, cycle_s: float, wait_s: float, others_s: float, processors: int) -> Self:
        without_work = cls(0.0, others_s, processors)
        return cls(max(cycle_s - wait_s, 1e-6) / without_work._slowdown(cycle_s), others_s, processors)

    def _slowdown(self, cycle_s: float) -> float:
        """Factor by which other processes lengthen the work: exact for one and two processors, exponential services (M/M/1, M/M/2)."""
        utilisation = min(self.others_s / cycle_s / self.processors, _MAX_BUSY)
        return 1 / (1 - utilisation**self.processors)

    def cycle_s(self, wait_s: float) -> float:
        """Time from the start of one transaction to the start of the next, with waits of `wait_s` in between."""
        low, high = wait_s, wait_s + self.work_s / (1 - _MAX_BUSY**self.processors)
        for _ in range(60):
            middle = (low + high) / 2
            is_longer = middle < wait_s + self.work_s * self._slowdown(middle)
            low, high = (middle, high) if is_longer else (low, middle)
        return high


@dataclass(frozen=True)
class Point:
    """The model's answer for a number of connections."""

    connections: int
    throughput: float
    """Transactions per second."""
    utilisation: dict[str, float]
    """Utilisation of each station, 0 .. 1."""

    @property
    def cycle_s(self) -> float:
        """Time from the start of one transaction of a connection to the start of the next."""
        return self.connections / self.throughput


def solve(delay_s: float, stations: Sequence[Station], max_connections: int) -> list[Point]:
    """Solve the network for 1 .. `max_connections` connections. The delay and the demands together must be positive. A negative delay
    means that stations work on one transaction at the same time."""
    names = [station.name for station in stations]
    return [
        Point(connections, throughput, dict(zip(names, utilisations, strict=True)))
        for connections, throughput, utilisations in _solve_each(delay_s, stations, max_connections)
    ]


def solve_at(delay_s: float, stations: Sequence[Station], connections: int) -> Point:
    """Solve the network for one number of connections; see `solve`."""
    ((_, throughput, utilisations),) = deque(_solve_each(delay_s, stations, connections), maxlen=1)
    names = [station.name for station in stations]
    return Point(connections, throughput, dict(zip(names, utilisations, strict=True)))


def _solve_each(
    delay_s: float, stations: Sequence[Station], max_connections: int
) -> Iterator[tuple[int, float, list[float]]]:
    """For 1 .. `max_connections` connections: their number, the throughput, the stations' utilisations."""
    # A report solves thousands of networks, so the loop reads each station once.
    demands = [station.demand_s for station in stations]
    services = [(station.visits, station.mean_s, station.residual_s, station.demand_s) for station in stations]
    assert max_connections >= 1 and delay_s + sum(demands) > 0
    max_throughput = ceiling(stations)
    queue_lengths = [0.0] * len(stations)
    utilisations = [0.0] * len(stations)
    for connections in range(1, max_connections + 1):
        residence = []
        for (visits, mean_s, residual_s, demand_s), queue_length, in_service in zip(
            services, queue_lengths, utilisations, strict=True
        ):
            waiting = queue_length - in_service
            wait = (waiting if waiting > 0 else 0.0) * mean_s + in_service * residual_s
            # During one cycle, each other connection precedes it with at most one transaction.
            time, max_time = demand_s + visits * wait, connections * demand_s
            residence.append(time if time < max_time else max_time)
        # The correction is an approximation; the bounds are exact. (With a negative delay, the sum could violate the first.)
        cycle = max(delay_s + sum(residence), connections / max_throughput)
        throughput = connections / cycle
        queue_lengths = [throughput * time for time in residence]
        utilisations = [min(throughput * demand_s, 1.0) for demand_s in demands]
        yield connections, throughput, utilisations


def ceiling(stations: Sequence[Station]) -> float:
    """Maximum transactions per second of the busiest station."""
    busiest = max((station.demand_s for station in stations), default=0.0)
    return 1 / busiest if busiest else float("inf")


def point_at(points: Sequence[Point], connections: int) -> Point:
    """The point for a number of connections. `points`: as `solve` returns them."""
    assert all(after.connections == before.connections + 1 for before, after in pairwise(points))
    return points[connections - points[0].connections]


def nearest_number(target: int, known: Collection[int]) -> int:
    """The nearest number of connections, by their ratio."""
    return min(known, key=lambda number: abs(log(number / target)))
