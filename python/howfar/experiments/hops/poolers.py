"""Number of clients from which a pooler pays: its throughput over that of the path without it, by the number of clients.

Measured is the ratio at each number, paired by block. On straight lines between the logarithms of ratio and number, the first place
where it rises through 1 is the number from which it pays; its interval is of the blocks, by leaving out each in turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from howfar.analysis.cells import Floors
from howfar.paths import PATHS
from howfar.plan.factors import CONNECT, THREADS, offered_per_s
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, Threshold, judge_ratio
from howfar.stats.resample import Derived
from howfar.stats.trials import TrialTable
from howfar.store.records import Arm
from howfar.store.server_metrics import server_metrics

Always = Literal["pays", "costs", "not told apart"]


class PoolerRatio(Part):
    """The ratio at one number of clients."""

    threads: int
    ratio: Estimate
    """Throughput over that of the path without it."""
    to_server: int | None
    """The pooler's connections to the server, the most at once in any trial. None: not reported."""


class PoolerPays(Part):
    """One pooler, with persistent connections or one per transaction."""

    path: str
    connect: str
    ratios: tuple[PoolerRatio, ...]
    """Ratios by ascending numbers of clients."""
    pays_from: float | None
    """Number of clients from which it pays. None: the ratio does not rise through 1 among those that were measured."""
    always: Always | None
    """If `pays_from` is None: whether it pays at each number of clients, costs at each, or was not resolved at some."""
    pays_from_interval: Derived = None


def pooler_pays(table: TrialTable, base: str, floors: Floors) -> tuple[PoolerPays, ...]:
    """Find where each pooler pays. `base`: the path without hops. At least two numbers of clients are needed."""
    closed: dict[tuple[str, str, int], Arm] = {}
    for arm in table.run.info.arms:
        if offered_per_s(arm.factors) is None:
            key = (str(arm.factors.get("path")), CONNECT.of(arm.factors), THREADS.of(arm.factors))
            closed.setdefault(key, arm)
    found = []
    for path, connect in dict.fromkeys(key[:2] for key in closed):
        if path not in PATHS or not PATHS[path].pools:
            continue
        numbers = sorted(key[2] for key in closed if key[:2] == (path, connect) and (base, connect, key[2]) in closed)
        measured = [
            ratio
            for number in numbers
            if (ratio := _ratio(table, closed[path, connect, number], closed[base, connect, number], number))
        ]
        if len(measured) > 1:
            found.append(_pays(path, connect, measured, floors.of(closed[path, connect, numbers[0]].factors)))
    return tuple(found)


def _ratio(table: TrialTable, arm: Arm, reference: Arm, threads: int) -> PoolerRatio | None:
    ratios = table.block_ratios(arm.name, reference.name)
    if not ratios:
        return None
    return PoolerRatio(threads=threads, ratio=judge_ratio(ratios).quoted, to_server=connections_to_server(table, arm))


def _pays(path: str, connect: str, measured: Sequence[PoolerRatio], threshold: Threshold) -> PoolerPays:
    crossing = _crossing([(one.threads, one.ratio.value) for one in measured])
    return PoolerPays(
        path=path,
        connect=connect,
        ratios=tuple(measured),
        pays_from=crossing,
        always=None if crossing is not None else _always({threshold.resolve(one.ratio) for one in measured}),
    )


def _crossing(points: Sequence[tuple[int, float]]) -> float | None:
    for (few, below), (many, above) in pairwise(points):
        if below < 1 <= above:
            share = -math.log(below) / (math.log(above) - math.log(below))
            return math.exp(math.log(few) + share * (math.log(many) - math.log(few)))
    return None


def _always(found: set[Resolution]) -> Always:
    if found == {Resolution.FASTER}:
        return "pays"
    return "costs" if found == {Resolution.SLOWER} else "not told apart"


def connections_to_server(table: TrialTable, arm: Arm) -> int | None:
    """The peak over all trials as reported by the hop next to the server, or else by the server; None if unknown."""
    counts = []
    for trial in table.trials.get(arm.name, {}).values():
        receipt: Mapping[str, Mapping[str, Mapping[str, int]]] = trial.receipt.get("forwarder") or {}
        told = [hop["to_server"] for hop in receipt.get("at_once", {}).values() if "to_server" in hop]
        if told:
            counts.append(max(told))
        elif trial.window is not None and (clients := server_metrics(trial.window.server).clients) is not None:
            counts.append(clients)
    return max(counts, default=None)
