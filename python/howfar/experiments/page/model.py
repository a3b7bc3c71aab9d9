"""A page as a closed queueing network, and the prediction of real pages with it.

The network: a number of pages in flight, the processors of one machine or of two, and delays without a queue. Pages share a machine's
processors in time slices, many per page. The solution for such a station does not depend on the distribution of its services (Baskett,
Chandy, Muntz and Palacios 1975), so mean value analysis is exact for it.

The prediction of a real page on another path, or with more application CPU, is built from the real page on sockets with the least
application CPU, and from the engine's page on sockets and on that path. The engine's two pages show what the path adds to the CPU at
both ends and to the waiting; the real page shows its own needs. How the link's emulator divides its work between messages and spinning
is learned from the engine's pages, alone and several in flight. The prediction uses no trial of the predicted arm, nor any of a real
page on another path than sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TypeVar

from howfar.experiments.page.arms import ArmTrials, ComparisonKey
from howfar.experiments.page.findings import Route
from howfar.model.fit import nearest_number
from howfar.model.queueing import Station, processors, solve

SOCKET = "socket"
ON_SOCKETS = Route(SOCKET, None, None)
BISECTIONS = 60
"""Number of bisections: more than the resolution of a double needs."""
_ROUNDS = 6
"""Rounds of a fixed-point iteration that converges fast."""


@dataclass(frozen=True)
class Host:
    """One machine and what a page needs of it, in seconds of CPU."""

    own_s: float
    link_s: float
    """CPU time of the link's emulator on this machine's processors, if this were the only page on the link."""
    cpus: float
    """Processors that other programs leave free."""


@dataclass(frozen=True)
class Network:
    """The network that a page passes through: one host, or two."""

    hosts: tuple[Host, ...]
    wire_s: float
    """Time of a page's round trips at rest."""
    waiting_s: float
    """Time that is neither CPU nor wire: wake-ups and disks, minus work that two ends do at the same time; it can be negative."""

    waking_s: float = 0.0
    """Time that a single page waits for processors to wake up, half at each end. A busy processor needs no wake-up."""
    link_each: float = 0.0
    """Share of the emulator's work that is done for each message; the rest is spinning, shared by all messages."""

    def cycle_s(self, pages: int) -> float:
        """Mean time of a page with this many in flight."""
        if pages == 1 or not any(host.link_s for host in self.hosts):
            return self._cycle_s(pages, 1.0)
        cycle_s = self._cycle_s(pages, 1.0)
        for _ in range(_ROUNDS):
            cycle_s = self._cycle_s(pages, overlap(pages, self.wire_s / cycle_s, self.link_each))
        return cycle_s

    def _cycle_s(self, pages: int, link_share: float) -> float:
        delay, stations = self.wire_s + self.waiting_s, list[Station]()
        for number, host in enumerate(self.hosts):
            demand_s = host.own_s + host.link_s * link_share
            if demand_s > 0:
                station, side = processors(f"host {number}", 1, demand_s, host.cpus)
                stations.append(station)
                delay += side
        if not self.waking_s:
            return solve(delay, stations, pages)[-1].cycle_s
        idle, cycle_s = 1.0, 0.0
        for number in range(1, pages + 1):
            point = solve(delay + self.waking_s * idle, stations, number)[-1]
            cycle_s = point.cycle_s
            # An arriving page finds the machine as it would be with one page less.
            idle = sum(1 - busy**self._processors for busy in point.utilisation.values()) / max(len(stations), 1)
        return cycle_s

    def with_own(self, seconds: float) -> Network:
        """The network with this much more application CPU."""
        application, *others = self.hosts
        return replace(self, hosts=(replace(application, own_s=max(application.own_s + seconds, 0.0)), *others))

    @property
    def _processors(self) -> int:
        """Number of processors of the smaller host. If one of several is idle, that one is woken."""
        return max(1, round(min(host.cpus for host in self.hosts)))

    @property
    def possible(self) -> bool:
        """Whether a page takes a positive time, even if the emulator does all its work while the page waits anyway."""
        return self.wire_s + self.waiting_s + sum(host.own_s / max(host.cpus, 1.0) for host in self.hosts) > 0

    def without_link_cpu(self) -> Network:
        """The same network if the emulator used no CPU. Its work for a single page is part of the round trip at rest, for which
        `waiting_s` compensates, so that a single page takes as long as before; several pages gain the processors."""
        link_s = sum(host.link_s / host.cpus for host in self.hosts)
        return replace(
            self,
            hosts=tuple(replace(host, link_s=0.0) for host in self.hosts),
            waiting_s=self.waiting_s + link_s,
        )

    def waiting_for(self, cycle_s: float, pages: int) -> Network:
        """The network with the waiting time at which `pages` in flight take `cycle_s`; 0 if a saturated station hides it."""
        unhindered = replace(self, waiting_s=0.0)
        if pages == 1:
            return replace(self, waiting_s=cycle_s - unhindered.cycle_s(1))
        if unhindered.cycle_s(pages) >= cycle_s:
            return unhindered
        found = bisected(lambda waiting: replace(self, waiting_s=waiting).cycle_s(pages) - cycle_s, 0.0, cycle_s)
        return replace(self, waiting_s=found)


def overlap(pages: int, on_wire: float, each: float = 0.0) -> float:
    """The emulator's work per page over that for a single page, if each page is on the wire for this share of its time. `each`: the
    share of the work that is done for each message; the rest is spinning while anything is on the link."""
    share = min(on_wire, 1.0)
    watching = (1 - (1 - share) ** pages) / (pages * share) if share > 0 else 1.0
    return each + (1 - each) * watching


def work_of_each(pages: int, on_wire: float, over_alone: float) -> float:
    """The `each` for which `overlap` gives `over_alone`; between 0 and 1."""
    watching = overlap(pages, on_wire)
    return min(max((over_alone - watching) / (1 - watching), 0.0), 1.0) if watching < 1 else 0.0


def bisected(of: Callable[[float], float], low: float, high: float, bisections: int = BISECTIONS) -> float:
    """The point between two ends at which `of` becomes positive; the nearer end if it does not."""
    for _ in range(bisections):
        middle = (low + high) / 2
        if of(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


# ---------------------------------------------------------------- prediction


@dataclass(frozen=True)
class _Added:
    """What a route adds to a page, by the engine's pages, at one number of pages in flight. Seconds per page."""

    own_s: tuple[float, float]
    """CPU of the application and of the database."""
    waiting_s: float
    wire_s: float
    waking_s: float
    link_s: tuple[float, ...]
    """CPU time of the emulator on each host."""
    cpus: tuple[float, ...]
    """Processors of each host."""
    round_trips: float | None


class _Block:
    """One real page in one block: its arms on sockets, the engine's arms of the same page, and the emulator's work for each message,
    by route."""

    def __init__(
        self, real: Sequence[ArmTrials], engine: Sequence[ArmTrials], link_each: Mapping[Route, float]
    ) -> None:
        self._bases = {arm.threads: arm for arm in real}
        self._engine = engine
        self._link_each = link_each
        self.impossible: set[Route] = set()
        """Routes on which a single page was faster than its parts can be: one of the measurements is wrong."""
        self._networks: dict[tuple[Route, int, float], Network | None] = {}

    def base(self, threads: int) -> ArmTrials:
        return _nearest(self._bases, threads)

    def network(self, route: Route, threads: int, share: float = 1.0) -> Network | None:
        """The network of the real page on a route with the least application CPU. None: the run does not determine it. `share`: share
        of its round trips that are made."""
        key = route, threads, share
        if key not in self._networks:
            self._networks[key] = self._network(*key)
        return self._networks[key]

    def _network(self, route: Route, threads: int, share: float) -> Network | None:
        base = self.base(threads)
        if self._waiting_s is None:
            self.impossible.add(route)
            return None
        if route.path == SOCKET:
            return Network(self._hosts(base, base), 0.0, self._waiting_s)
        added = self._added(route, threads)
        if added is None:
            return None
        real = base.round_trips
        # A real page may need a few round trips more than the script has.
        scale = share * (real / added.round_trips if real and added.round_trips else 1.0)
        needed = [
            own + more * scale for own, more in zip((base.application_s, base.database_s), added.own_s, strict=True)
        ]
        network = Network(
            hosts=tuple(
                Host(own_s, link_s * scale, count * _left(base))
                for own_s, link_s, count in zip(
                    needed if len(added.cpus) == 2 else [sum(needed)], added.link_s, added.cpus, strict=True
                )
            ),
            wire_s=added.wire_s * scale,
            waiting_s=self._waiting_s + added.waiting_s * scale,
            waking_s=added.waking_s * scale,
            link_each=self._link_each.get(route, 0.0),
        )
        if network.possible:
            return network
        if share == 1:
            self.impossible.add(route)
        return None

    @cached_property
    def _waiting_s(self) -> float | None:
        """The waiting of the real page on sockets."""
        fewest = self._bases[min(self._bases)]
        return self._waiting_of(fewest, fewest)

    def _waiting_of(self, arm: ArmTrials, on_sockets: ArmTrials) -> float | None:
        """The waiting of a page. None: it is less than is possible. It may be negative by the time that two parts of the sum have in
        common: work of both ends at the same time, at most all of the smaller one's; and work of the emulator and the network at
        either end, which the round trip at rest includes too."""
        each = self._link_each.get(arm.route, 0.0)
        network = Network(self._hosts(arm, on_sockets), arm.wire_s, 0.0, arm.waking_s, each)
        waiting_s = network.waiting_for(arm.page_s, arm.threads).waiting_s
        twice_s = sum(host.link_s / host.cpus for host in network.hosts)
        twice_s += min(arm.application_s, arm.database_s) + max(arm.database_s - on_sockets.database_s, 0.0)
        return waiting_s if waiting_s >= -twice_s / min(host.cpus for host in network.hosts) else None

    def _hosts(self, arm: ArmTrials, on_sockets: ArmTrials) -> tuple[Host, ...]:
        """The hosts of an arm. What other programs leave is measured on sockets, where a page always needs a processor; on other paths
        they also use what the page leaves idle."""
        left, shared = _left(on_sockets), self._overlap(arm)
        return tuple(Host(side.own_s, side.link_s / shared, side.cpus * left) for side in arm.sides)

    def _overlap(self, arm: ArmTrials) -> float:
        return overlap(arm.threads, arm.wire_s / arm.page_s, self._link_each.get(arm.route, 0.0))

    def _added(self, route: Route, threads: int) -> _Added | None:
        pairs = self._engine_pairs(route)
        if not pairs:
            return None
        here, there = _nearest(pairs, threads)
        fewest = pairs[min(pairs)]
        waited_s = [self._waiting_of(arm, fewest[0]) for arm in fewest]
        if waited_s[0] is None or waited_s[1] is None:
            self.impossible.add(route)
            return None
        shared = self._overlap(there)
        return _Added(
            own_s=(there.application_s - here.application_s, there.database_s - here.database_s),
            waiting_s=waited_s[1] - waited_s[0],
            wire_s=there.wire_s,
            waking_s=there.waking_s,
            link_s=tuple(side.link_s / shared for side in there.sides),
            cpus=tuple(side.cpus for side in there.sides),
            round_trips=there.round_trips,
        )

    def _engine_pairs(self, route: Route) -> dict[int, tuple[ArmTrials, ArmTrials]]:
        """The engine's page on sockets and on the route, by pages in flight, with the least application CPU that both have."""
        on_sockets = {(arm.threads, arm.app_cpu_ns): arm for arm in self._engine if arm.route.path == SOCKET}
        there = sorted((arm for arm in self._engine if arm.route == route), key=lambda arm: -arm.app_cpu_ns)
        return {
            arm.threads: (here, arm)
            for arm in there
            if (here := on_sockets.get((arm.threads, arm.app_cpu_ns))) is not None
        }


_T = TypeVar("_T")


def _nearest(by_threads: Mapping[int, _T], threads: int) -> _T:
    return by_threads[nearest_number(threads, by_threads)]


def _left(on_sockets: ArmTrials) -> float:
    """The share of each processor that other programs leave."""
    (side,) = on_sockets.sides
    return 1 - side.strangers / side.cpus


class Predictor:
    """One real page over the blocks of a run. Each block is predicted by itself, because its arms are close in time; then medians over
    blocks, because a mean would follow a block in which another program disturbed only one arm."""

    def __init__(
        self, real: Sequence[ArmTrials], engine: Sequence[ArmTrials], link_each: Mapping[Route, float]
    ) -> None:
        on_sockets = [arm for arm in real if arm.route.path == SOCKET]
        self._least_ns = min((arm.app_cpu_ns for arm in on_sockets), default=0)
        self._built_from = [arm for arm in on_sockets if arm.app_cpu_ns == self._least_ns]
        blocks = sorted({block for arm in self._built_from for block in arm.trials})
        self._blocks = [_Block(_only(self._built_from, block), _only(engine, block), link_each) for block in blocks]

    def p50_s(self, arm: ArmTrials) -> list[float]:
        """The predicted p50 in each block that has what it needs. Empty: no block has, or the model is built from this arm."""
        if arm in self._built_from:
            return []
        found = []
        for block in self._blocks:
            if (network := block.network(arm.route, arm.threads)) is not None:
                base = block.base(arm.threads)
                cycle_s = network.with_own(self.extra_s(arm)).cycle_s(arm.threads)
                found.append(cycle_s * (base.p50_s / base.page_s))
        return found

    def impossible(self, arm: ArmTrials) -> bool:
        """Whether the measurements that a prediction would use contradict each other, in each block that has them."""
        if arm in self._built_from or self.p50_s(arm):
            return False
        return any(arm.route in block.impossible for block in self._blocks)

    def ratio(self, route: Route, threads: int, share: float = 1.0) -> ModelRatio | None:
        """The model's ratio of two machines to one. None: no block determines the time of such a page on this route. `share`: of the
        page's round trips on two machines."""
        found = []
        for block in self._blocks:
            one, two = block.network(ON_SOCKETS, threads), block.network(route, threads, share)
            if one is not None and two is not None:
                found.append((block.base(threads).computed_s, one, two))
        return ModelRatio(found, threads) if found else None

    def extra_s(self, arm: ArmTrials) -> float:
        """Application CPU requested beyond that of the arms that it is built from."""
        return (arm.app_cpu_ns - self._least_ns) / 1e9


@dataclass(frozen=True)
class ModelRatio:
    """Pages per second of two machines over one with sockets, by the model: the median over blocks."""

    blocks: Sequence[tuple[float, Network, Network]]
    """For each block: the least that the application computes, in seconds, and at that the networks of one machine and of two."""
    threads: int

    @property
    def least_ms(self) -> float:
        return max(least_s for least_s, _, _ in self.blocks) * 1e3

    def beyond_least(self, extra_s: float) -> tuple[float, ...]:
        """The ratio in each block, with this much more application CPU."""
        return self._each([extra_s for _ in self.blocks])

    def each_at(self, cpu_ms: float) -> tuple[float, ...]:
        """The ratio in each block, at this total application CPU per page."""
        return self._each([cpu_ms / 1e3 - least_s for least_s, _, _ in self.blocks])

    def at(self, cpu_ms: float) -> float:
        return median(self.each_at(cpu_ms))

    def _each(self, extra_s: Sequence[float]) -> tuple[float, ...]:
        return tuple(
            one.with_own(extra).cycle_s(self.threads) / two.with_own(extra).cycle_s(self.threads)
            for extra, (_, one, two) in zip(extra_s, self.blocks, strict=True)
        )

    def without_link_cpu(self) -> ModelRatio:
        return replace(self, blocks=[(least_s, one, two.without_link_cpu()) for least_s, one, two in self.blocks])


def _only(arms: Sequence[ArmTrials], block: int) -> list[ArmTrials]:
    return [found for arm in arms if (found := arm.only(block)) is not None]


def predictors(arms: Mapping[ComparisonKey, Sequence[ArmTrials]]) -> dict[ComparisonKey, Predictor]:
    """A predictor for each real page of a run."""
    link_each = _emulator_shares(arm for alike in arms.values() for arm in alike)
    return {
        key: Predictor(real, arms.get(replace(key, application="engine"), ()), link_each)
        for key, real in arms.items()
        if key.application == "php"
    }


def _emulator_shares(arms: Iterable[ArmTrials]) -> dict[Route, float]:
    """The share of the emulator's work for a single page that is done for each message, by route: the median over the engine's pages
    that were measured both alone and several in flight. A route without such a page is left out."""
    found: dict[Route, list[float]] = {}
    known = [arm for arm in arms if arm.key.application == "engine" and arm.machines == 2 and arm.app_cpu_ns == 0]
    for alone in (arm for arm in known if arm.threads == 1):
        for many in (arm for arm in known if (arm.key, arm.route) == (alone.key, alone.route) and arm.threads > 1):
            spent = [sum(side.link_s for side in arm.sides) for arm in (alone, many)]
            if min(spent) > 0:
                share = work_of_each(many.threads, many.wire_s / many.page_s, spent[1] / spent[0])
                found.setdefault(many.route, []).append(share)
    return {route: median(shares) for route, shares in found.items()}
