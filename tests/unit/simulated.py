"""Discrete-event simulation of the closed network: every connection, every visit. The oracle of the model's tests."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Draw = Callable[[random.Random], float]


@dataclass(frozen=True)
class Visit:
    """One service at a single-server station, first come, first served; station `None`: a pause without queueing."""

    station: str | None
    length: Draw


def exponential(mean: float) -> Draw:
    return lambda rng: rng.expovariate(1 / mean)


def constant(length: float) -> Draw:
    return lambda _: length


def throughput(route: Sequence[Visit], connections: int, transactions: int, seed: int = 1) -> float:
    """Transactions per second; the first tenth is warm-up. `route` is one transaction, repeated by every connection. Each starts at a
    random step: started together, they would move through the stations in a bunch that dissolves slowly."""
    rng = random.Random(seed)
    events: list[tuple[float, int, int]] = []
    """Time, connection, and the step of the route that ends then."""
    waiting: dict[str, deque[tuple[int, int]]] = {visit.station: deque() for visit in route if visit.station}
    busy: set[str] = set()
    done, warm, began = 0, transactions // 10, 0.0

    def arrive(now: float, connection: int, step: int) -> None:
        visit = route[step]
        if visit.station is not None:
            if visit.station in busy:
                waiting[visit.station].append((connection, step))
                return
            busy.add(visit.station)
        heapq.heappush(events, (now + visit.length(rng), connection, step))

    for connection in range(connections):
        arrive(rng.random() * 1e-6, connection, rng.randrange(len(route)))
    while True:
        now, connection, step = heapq.heappop(events)
        station = route[step].station
        if station is not None:
            busy.discard(station)
            if waiting[station]:
                arrive(now, *waiting[station].popleft())
        if step + 1 == len(route):
            done += 1
            if done == warm:
                began = now
            if done == transactions:
                return (transactions - warm) / (now - began)
        arrive(now, connection, (step + 1) % len(route))
