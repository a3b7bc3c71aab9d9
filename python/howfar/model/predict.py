"""Predictions beside what was measured: a curve on its own ends, and a curve from others."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.findings import ModelPoint, Prediction, WhatIf, WhatIfSettings
from howfar.model.facts import ArmFacts
from howfar.model.fit import client_left, nearest, server_left
from howfar.model.queueing import at
from howfar.model.what_if import Network, network

SOFTNESS = 1.5
"""Of the band's lower edge, 1 / ((1/a)^k + (1/b)^k)^(1/k) over the two bounds a and b. With k = 1 every transaction waits behind all
others, always; with k without end nobody ever waits. A convention between the two, fitted to nothing."""


def predict(base: WhatIf, settings: WhatIfSettings, curve: Sequence[ArmFacts], basis: str, own: bool) -> Prediction:
    """`curve` as `base` has it at `settings`. `own`: its low end is met by fitting, so no error is reckoned there."""
    found = network(base, settings)
    threads = sorted(facts.threads for facts in curve)
    points = found.points(threads[-1])
    top = max(curve, key=lambda facts: facts.tps.value)
    drawn = tuple(_point(found, number, at(points, number).throughput) for number in _grid(threads[-1], threads))
    compared = [facts for facts in curve if not (own and facts.threads == threads[0])]
    errors = [at(points, facts.threads).throughput / facts.tps.value - 1 for facts in compared]
    return Prediction(
        basis=basis,
        points=drawn,
        ceiling_tps=found.ceiling,
        plateau_tps=at(points, top.threads).throughput,
        knee=found.knee,
        mean_error=sum(map(abs, errors)) / len(errors) if errors else None,
        worst_error=max(map(abs, errors)) if errors else None,
        plateau_error=at(points, top.threads).throughput / top.tps.value - 1,
    )


def _point(found: Network, threads: int, tps: float) -> ModelPoint:
    low = min(_soft_low(found, threads), tps)
    high = min(threads / _alone_s(found), found.ceiling)
    return ModelPoint(threads=threads, tps=tps, low=low, high=max(high, tps))


def _alone_s(found: Network) -> float:
    return found.delay_s + sum(station.demand_s for station in found.stations)


def _soft_low(found: Network, threads: int) -> float:
    waits = (_alone_s(found) / threads) ** SOFTNESS + (1 / found.ceiling) ** SOFTNESS
    return float(waits ** (-1 / SOFTNESS))


def _grid(most: int, measured: Sequence[int]) -> list[int]:
    """Numbers of connections to draw at: about eight to an octave's square, and every measured one."""
    grid, number = set(measured), 1.0
    while number <= most:
        grid.add(round(number))
        number *= 1.25
    return sorted(number for number in grid if number <= most)


def onto_link(local: WhatIf, lone: ArmFacts, target: ArmFacts, others: Sequence[ArmFacts]) -> WhatIf:
    """The base of a path without a link, for one with `target`'s link.

    A lone connection on loopback waits in every turn for kernels and for being woken. The link's round trip at rest is measured by a
    ping and holds the same: what the calibration found of that is taken off, so that it does not count twice.

    A host sends to a link by another way through the kernel than to itself, so the CPU of a transaction is taken from `others`, arms
    over other links of this run, where there are any: from the one with the nearest rate. So is what the emulator leaves of the hosts'
    processors. That is a share, not a price a packet: while anything is on the link its threads wait in short naps and loops for the
    next to be due, and what they take hardly depends on how much passes. Where there is no other link, the load is taken to have what
    it had on loopback less the emulator's share over the target.
    """
    twice_s = local.turns * max(min(lone.idle_s / lone.turns, target.way_s), 0.0) if lone.threads == 1 else 0.0
    other = nearest(target.rate_bps, others)
    client_cpus = client_left(other) if other else _less(local.client_cpus, target.link_client_cpus)
    server_cpus = server_left(other) if other else _less(local.server_cpus, target.link_server_cpus)
    return local.model_copy(
        update={
            "think_s": local.think_s - twice_s,
            "client_cpu_s": other.client_cpu_s if other else local.client_cpu_s,
            "server_cpu_s": other.server_cpu_s if other else local.server_cpu_s,
            "client_cpus": client_cpus,
            "server_cpus": server_cpus,
            "shared_cpu": target.shared_cpu,
        }
    )


def _less(cpus: float, emulator: float) -> float:
    return max(cpus - emulator, cpus / 10)
