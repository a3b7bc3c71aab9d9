"""A page as a closed queueing network, and the prediction of real pages with it.

The network: a number of pages in flight, the processors of one machine or of two, and delays without a queue. Pages share a machine's
processors in time slices, many per page. The solution for such a station does not depend on the distribution of its services (Baskett,
Chandy, Muntz and Palacios 1975), so mean value analysis is exact for it.

The prediction of a real page on another path, or with more application CPU, is built from the real page on sockets with the least
application CPU, and from the engine's page on sockets and on that path. The engine's two pages show what the path adds to the CPU at
both ends and to the waiting; the real page shows its own needs. How the link's emulator divides its work between messages and spinning
is derived from the engine's pages with one and with several in flight. The prediction uses no trial of the predicted arm, and no trial
of a real page on any path but sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TypeVar

from howfar.experiments.page.arms import ArmTrials, ComparisonKey
from howfar.experiments.page.findings import Route
from howfar.model.queueing import Station, nearest_number, processor_stations, solve_at

SOCKET = "socket"
ON_SOCKETS = Route(SOCKET, None, None)
BISECTIONS = 60
"""Number of bisections: more than the resolution of a double needs."""
_ITERATIONS = 6
"""Number of iterations of a fixed-point iteration that converges fast."""


@dataclass(frozen=True)
class PageHost:
    """One machine, and the CPU seconds that a page needs on it."""

    own_s: float
    link_s: float
    """CPU time of the link's emulator on this machine's processors, if this were the only page on the link."""
    cpus: float
    """Processors that other programs leave free."""


@dataclass(frozen=True)
class PageNetwork:
    """The network that a page passes through: one host, or two."""

    hosts: tuple[PageHost, ...]
    wire_s: float
    """Time of a page's unloaded round trips."""
    waiting_s: float
    """Time of a page that is neither CPU nor wire: wake-ups and disks. Work that both ends do at the same time is subtracted, so it
    can be negative."""

    waking_s: float = 0.0
    """Time that a single page waits for processors to wake up, half at each end. A busy processor needs no wake-up."""
    per_message_share: float = 0.0
    """Share of the emulator's work that is done for each message; the rest is spinning, shared by all messages."""

    def cycle_s(self, pages: int) -> float:
        """Mean time of a page with this many in flight."""
        if pages == 1 or not any(host.link_s for host in self.hosts):
            return self._cycle_s(pages, 1.0)
        cycle_s = self._cycle_s(pages, 1.0)
        for _ in range(_ITERATIONS):
            cycle_s = self._cycle_s(pages, emulator_work_ratio(pages, self.wire_s / cycle_s, self.per_message_share))
        return cycle_s

    def _cycle_s(self, pages: int, link_work_ratio: float) -> float:
        delay, stations = self.wire_s + self.waiting_s, list[Station]()
        for index, host in enumerate(self.hosts):
            demand_s = host.own_s + host.link_s * link_work_ratio
            if demand_s > 0:
                station, delay_s = processor_stations(f"host {index}", 1, demand_s, host.cpus)
                stations.append(station)
                delay += delay_s
        if not self.waking_s:
            return solve_at(delay, stations, pages).cycle_s
        idle_share, cycle_s = 1.0, 0.0
        for in_flight in range(1, pages + 1):
            point = solve_at(delay + self.waking_s * idle_share, stations, in_flight)
            cycle_s = point.cycle_s
            # Arrival theorem: an arriving page sees the machine as with one page less.
            idle_share = sum(1 - busy**self._processors for busy in point.utilisation.values()) / max(len(stations), 1)
        return cycle_s

    def with_extra_cpu(self, extra_s: float) -> PageNetwork:
        """The network with this much more application CPU."""
        application, *other_hosts = self.hosts
        return replace(self, hosts=(replace(application, own_s=max(application.own_s + extra_s, 0.0)), *other_hosts))

    @property
    def _processors(self) -> int:
        """Number of processors of the smaller host. A wake-up is needed only if none of them is busy."""
        return max(1, round(min(host.cpus for host in self.hosts)))

    @property
    def is_possible(self) -> bool:
        """Whether a page takes a positive time, even if the emulator does all its work while the page waits anyway."""
        return self.wire_s + self.waiting_s + sum(host.own_s / max(host.cpus, 1.0) for host in self.hosts) > 0

    def without_link_cpu(self) -> PageNetwork:
        """The same network if the emulator used no CPU. A single page takes as long as before, because the emulator's work is part of
        the unloaded round trip: it is added to `waiting_s`. Several pages gain the processors."""
        link_s = sum(host.link_s / host.cpus for host in self.hosts)
        return replace(
            self,
            hosts=tuple(replace(host, link_s=0.0) for host in self.hosts),
            waiting_s=self.waiting_s + link_s,
        )

    def fit_waiting(self, cycle_s: float, pages: int) -> PageNetwork:
        """The network with the waiting time for which `pages` in flight take `cycle_s`; 0 if a saturated station hides the waiting."""
        without_waiting = replace(self, waiting_s=0.0)
        if pages == 1:
            return replace(self, waiting_s=cycle_s - without_waiting.cycle_s(1))
        if without_waiting.cycle_s(pages) >= cycle_s:
            return without_waiting
        waiting_s = bisect(lambda waiting_s: replace(self, waiting_s=waiting_s).cycle_s(pages) - cycle_s, 0.0, cycle_s)
        return replace(self, waiting_s=waiting_s)


def emulator_work_ratio(pages: int, wire_share: float, per_message_share: float = 0.0) -> float:
    """The emulator's work per page over that for a single page, if each page is on the wire for this share of its time.
    `per_message_share`: the share of the work that is done for each message; the rest is spinning while anything is on the link."""
    on_wire = min(wire_share, 1.0)
    spinning = (1 - (1 - on_wire) ** pages) / (pages * on_wire) if on_wire > 0 else 1.0
    return per_message_share + (1 - per_message_share) * spinning


def infer_per_message_share(pages: int, wire_share: float, ratio: float) -> float:
    """The `per_message_share`, between 0 and 1, for which `emulator_work_ratio` gives `ratio`."""
    spinning = emulator_work_ratio(pages, wire_share)
    return min(max((ratio - spinning) / (1 - spinning), 0.0), 1.0) if spinning < 1 else 0.0


def bisect(function: Callable[[float], float], low: float, high: float, bisections: int = BISECTIONS) -> float:
    """The point from `low` to `high` at which `function` becomes positive; the nearer end if there is none."""
    for _ in range(bisections):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


# ---------------------------------------------------------------- prediction


@dataclass(frozen=True)
class _RouteCost:
    """What a route adds to a page, by the engine's pages, for one number of pages in flight. Seconds per page."""

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


class _BlockModel:
    """The model of one real page in one block. It is built from the page's arms on sockets, the engine's arms of the same page, and
    the emulator's share of work per message, by route."""

    def __init__(
        self,
        real_arms: Sequence[ArmTrials],
        engine_arms: Sequence[ArmTrials],
        per_message_shares: Mapping[Route, float],
    ) -> None:
        self._bases = {arm.threads: arm for arm in real_arms}
        self._engine_arms = engine_arms
        self._per_message_shares = per_message_shares
        self.impossible_routes: set[Route] = set()
        """Routes on which a single page was faster than its parts can be: one of the measurements is wrong."""
        self._networks: dict[tuple[Route, int, float], PageNetwork | None] = {}

    def base_arm(self, threads: int) -> ArmTrials:
        return _nearest_by_threads(self._bases, threads)

    def network(self, route: Route, threads: int, round_trip_share: float = 1.0) -> PageNetwork | None:
        """The network of the real page on a route with the least application CPU. None if the run does not determine it.
        `round_trip_share`: fraction of its round trips that the page makes."""
        key = route, threads, round_trip_share
        if key not in self._networks:
            self._networks[key] = self._make_network(*key)
        return self._networks[key]

    def _make_network(self, route: Route, threads: int, round_trip_share: float) -> PageNetwork | None:
        base_arm = self.base_arm(threads)
        if self._waiting_s is None:
            self.impossible_routes.add(route)
            return None
        if route.path == SOCKET:
            return PageNetwork(self._hosts(base_arm, base_arm), 0.0, self._waiting_s)
        cost = self._route_cost(route, threads)
        if cost is None:
            return None
        real_round_trips = base_arm.round_trips
        # A real page may need a few round trips more than the script has.
        scale = round_trip_share * (
            real_round_trips / cost.round_trips if real_round_trips and cost.round_trips else 1.0
        )
        demands_s = [
            base_s + extra_s * scale
            for base_s, extra_s in zip((base_arm.application_host_s, base_arm.database_host_s), cost.own_s, strict=True)
        ]
        network = PageNetwork(
            hosts=tuple(
                PageHost(own_s, link_s * scale, cpu_count * _free_share(base_arm))
                for own_s, link_s, cpu_count in zip(
                    demands_s if len(cost.cpus) == 2 else [sum(demands_s)], cost.link_s, cost.cpus, strict=True
                )
            ),
            wire_s=cost.wire_s * scale,
            waiting_s=self._waiting_s + cost.waiting_s * scale,
            waking_s=cost.waking_s * scale,
            per_message_share=self._per_message_shares.get(route, 0.0),
        )
        if network.is_possible:
            return network
        if round_trip_share == 1:
            self.impossible_routes.add(route)
        return None

    @cached_property
    def _waiting_s(self) -> float | None:
        """The waiting of the real page on sockets."""
        least_loaded = self._bases[min(self._bases)]
        return self._fit_waiting_s(least_loaded, least_loaded)

    def _fit_waiting_s(self, arm: ArmTrials, on_sockets: ArmTrials) -> float | None:
        """The waiting time of a page. None if it is less than is possible: it may be negative by at most the time that the model
        counts twice, which is the work that both ends do at the same time (at most all of the smaller one's), and the work of the
        emulator and the network at either end, which the unloaded round trip also includes."""
        per_message_share = self._per_message_shares.get(arm.route, 0.0)
        network = PageNetwork(self._hosts(arm, on_sockets), arm.wire_s, 0.0, arm.waking_s, per_message_share)
        waiting_s = network.fit_waiting(arm.page_s, arm.threads).waiting_s
        double_counted_s = sum(host.link_s / host.cpus for host in network.hosts)
        double_counted_s += min(arm.application_host_s, arm.database_host_s) + max(
            arm.database_host_s - on_sockets.database_host_s, 0.0
        )
        return waiting_s if waiting_s >= -double_counted_s / min(host.cpus for host in network.hosts) else None

    def _hosts(self, arm: ArmTrials, on_sockets: ArmTrials) -> tuple[PageHost, ...]:
        """The hosts of an arm. The CPU share that other programs leave free is measured on sockets, where a page always needs a
        processor. On other paths they also use what the page leaves idle."""
        free_share, work_ratio = _free_share(on_sockets), self._emulator_work_ratio(arm)
        return tuple(PageHost(use.own_s, use.link_s / work_ratio, use.cpus * free_share) for use in arm.machine_uses)

    def _emulator_work_ratio(self, arm: ArmTrials) -> float:
        return emulator_work_ratio(arm.threads, arm.wire_s / arm.page_s, self._per_message_shares.get(arm.route, 0.0))

    def _route_cost(self, route: Route, threads: int) -> _RouteCost | None:
        engine_pairs = self._engine_pairs(route)
        if not engine_pairs:
            return None
        socket_arm, route_arm = _nearest_by_threads(engine_pairs, threads)
        least_loaded = engine_pairs[min(engine_pairs)]
        waits_s = [self._fit_waiting_s(arm, least_loaded[0]) for arm in least_loaded]
        if waits_s[0] is None or waits_s[1] is None:
            self.impossible_routes.add(route)
            return None
        work_ratio = self._emulator_work_ratio(route_arm)
        return _RouteCost(
            own_s=(
                route_arm.application_host_s - socket_arm.application_host_s,
                route_arm.database_host_s - socket_arm.database_host_s,
            ),
            waiting_s=waits_s[1] - waits_s[0],
            wire_s=route_arm.wire_s,
            waking_s=route_arm.waking_s,
            link_s=tuple(use.link_s / work_ratio for use in route_arm.machine_uses),
            cpus=tuple(use.cpus for use in route_arm.machine_uses),
            round_trips=route_arm.round_trips,
        )

    def _engine_pairs(self, route: Route) -> dict[int, tuple[ArmTrials, ArmTrials]]:
        """The engine's page on sockets and on the route, by pages in flight, with the least application CPU that both have."""
        on_sockets = {(arm.threads, arm.app_cpu_ns): arm for arm in self._engine_arms if arm.route.path == SOCKET}
        route_arms = sorted((arm for arm in self._engine_arms if arm.route == route), key=lambda arm: -arm.app_cpu_ns)
        return {
            arm.threads: (socket_arm, arm)
            for arm in route_arms
            if (socket_arm := on_sockets.get((arm.threads, arm.app_cpu_ns))) is not None
        }


_T = TypeVar("_T")


def _nearest_by_threads(by_threads: Mapping[int, _T], threads: int) -> _T:
    return by_threads[nearest_number(threads, by_threads)]


def _free_share(on_sockets: ArmTrials) -> float:
    """The share of each processor that other programs leave free."""
    (use,) = on_sockets.machine_uses
    return 1 - use.other_cpus / use.cpus


class Predictor:
    """The model of one real page, over the blocks of a run. Each block is predicted separately, because its arms are close in time.
    The result is the median over blocks, because a block in which another program disturbed only one arm would distort a mean."""

    def __init__(
        self,
        real_arms: Sequence[ArmTrials],
        engine_arms: Sequence[ArmTrials],
        per_message_shares: Mapping[Route, float],
    ) -> None:
        on_sockets = [arm for arm in real_arms if arm.route.path == SOCKET]
        self._min_cpu_ns = min((arm.app_cpu_ns for arm in on_sockets), default=0)
        self._base_arms = [arm for arm in on_sockets if arm.app_cpu_ns == self._min_cpu_ns]
        blocks = sorted({block for arm in self._base_arms for block in arm.trials})
        self._blocks = [
            _BlockModel(
                _trials_of_block(self._base_arms, block), _trials_of_block(engine_arms, block), per_message_shares
            )
            for block in blocks
        ]

    def p50_s(self, arm: ArmTrials) -> list[float]:
        """The predicted p50 in each block that has the necessary arms. Empty if none has, or if the model is built from this arm."""
        if arm in self._base_arms:
            return []
        block_p50s_s = []
        for block in self._blocks:
            if (network := block.network(arm.route, arm.threads)) is not None:
                base_arm = block.base_arm(arm.threads)
                cycle_s = network.with_extra_cpu(self.extra_cpu_s(arm)).cycle_s(arm.threads)
                block_p50s_s.append(cycle_s * (base_arm.p50_s / base_arm.page_s))
        return block_p50s_s

    def is_impossible(self, arm: ArmTrials) -> bool:
        """Whether the measurements that a prediction would use contradict each other, in every block that has them."""
        if arm in self._base_arms or self.p50_s(arm):
            return False
        return any(arm.route in block.impossible_routes for block in self._blocks)

    def ratio(self, route: Route, threads: int, round_trip_share: float = 1.0) -> ModelRatio | None:
        """The model's ratio of two machines to one. None if no block determines the time of such a page on this route.
        `round_trip_share`: fraction of the page's round trips that it makes on two machines."""
        block_networks = []
        for block in self._blocks:
            one, two = block.network(ON_SOCKETS, threads), block.network(route, threads, round_trip_share)
            if one is not None and two is not None:
                block_networks.append((block.base_arm(threads).application_cpu_s, one, two))
        return ModelRatio(block_networks, threads) if block_networks else None

    def extra_cpu_s(self, arm: ArmTrials) -> float:
        """Application CPU requested beyond that of the arms from which the model is built."""
        return (arm.app_cpu_ns - self._min_cpu_ns) / 1e9


@dataclass(frozen=True)
class ModelRatio:
    """Pages per second of two machines over one with sockets, by the model: the median over blocks."""

    blocks: Sequence[tuple[float, PageNetwork, PageNetwork]]
    """For each block: the least application CPU in seconds, and the networks of one machine and of two with this CPU."""
    threads: int

    @property
    def min_cpu_ms(self) -> float:
        return max(min_cpu_s for min_cpu_s, _, _ in self.blocks) * 1e3

    def ratios_with_extra_cpu(self, extra_s: float) -> tuple[float, ...]:
        """The ratio in each block, with this much more application CPU."""
        return self._ratios([extra_s for _ in self.blocks])

    def ratios_at(self, cpu_ms: float) -> tuple[float, ...]:
        """The ratio in each block, at this total application CPU per page."""
        return self._ratios([cpu_ms / 1e3 - min_cpu_s for min_cpu_s, _, _ in self.blocks])

    def ratio_at(self, cpu_ms: float) -> float:
        return median(self.ratios_at(cpu_ms))

    def _ratios(self, extra_s: Sequence[float]) -> tuple[float, ...]:
        return tuple(
            one.with_extra_cpu(extra).cycle_s(self.threads) / two.with_extra_cpu(extra).cycle_s(self.threads)
            for extra, (_, one, two) in zip(extra_s, self.blocks, strict=True)
        )

    def without_link_cpu(self) -> ModelRatio:
        return replace(self, blocks=[(min_cpu_s, one, two.without_link_cpu()) for min_cpu_s, one, two in self.blocks])


def _trials_of_block(arms: Sequence[ArmTrials], block: int) -> list[ArmTrials]:
    return [block_trials for arm in arms if (block_trials := arm.in_block(block)) is not None]


def predictors(arms_by_key: Mapping[ComparisonKey, Sequence[ArmTrials]]) -> dict[ComparisonKey, Predictor]:
    """A predictor for each real page of a run."""
    per_message_shares = _measure_per_message_shares(arm for arms in arms_by_key.values() for arm in arms)
    return {
        key: Predictor(real_arms, arms_by_key.get(replace(key, application="engine"), ()), per_message_shares)
        for key, real_arms in arms_by_key.items()
        if key.application == "php"
    }


def _measure_per_message_shares(arms: Iterable[ArmTrials]) -> dict[Route, float]:
    """The share of the emulator's work for a single page that is done for each message, by route. It is the median over the engine's
    pages that were measured both with one and with several in flight. A route without such a page is left out."""
    shares_by_route: dict[Route, list[float]] = {}
    engine_arms = [arm for arm in arms if arm.key.application == "engine" and arm.machines == 2 and arm.app_cpu_ns == 0]
    for single in (arm for arm in engine_arms if arm.threads == 1):
        for concurrent in (
            arm for arm in engine_arms if (arm.key, arm.route) == (single.key, single.route) and arm.threads > 1
        ):
            emulator_s = [sum(use.link_s for use in arm.machine_uses) for arm in (single, concurrent)]
            if min(emulator_s) > 0:
                per_message_share = infer_per_message_share(
                    concurrent.threads, concurrent.wire_s / concurrent.page_s, emulator_s[1] / emulator_s[0]
                )
                shares_by_route.setdefault(concurrent.route, []).append(per_message_share)
    return {route: median(shares) for route, shares in shares_by_route.items()}
