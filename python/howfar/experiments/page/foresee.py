"""A real page on another path, or with more application CPU, foreseen.

Made of: the real page on sockets with the least application CPU, and the engine's page on sockets and on the path. The engine's two
say what the path adds to the CPU at both ends and to the waiting; the real page says what it needs itself. What a link's emulator does
for each message is of engine's pages alone and several in flight, of whichever page the run has both. No trial of the arm that is
foreseen goes in, nor any of a real page off the sockets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TypeVar

from howfar.experiments.page.arms import PageTrials, Place, Way
from howfar.experiments.page.machines import Machinery, Processors
from howfar.experiments.page.model import Host, Network, overlap, work_of_each
from howfar.experiments.page.turns import turns_a_page

SOCKET = "socket"
TWO = ("remote", "forwarded-socket")
"""Two machines."""


@dataclass(frozen=True)
class _Added:
    """What a way adds to a page, by the engine's own, at one number of pages in flight. Seconds a page."""

    application_s: float
    database_s: float
    waiting_s: float
    wire_s: float
    waking_s: float
    turns: float | None
    link_each: float
    link_s: tuple[float, ...]
    """Of each host."""
    cpus: tuple[float, ...]
    """Of each host."""

    def times(self, scale: float) -> _Added:
        """For so many times as many turns."""
        return replace(
            self,
            application_s=self.application_s * scale,
            database_s=self.database_s * scale,
            waiting_s=self.waiting_s * scale,
            wire_s=self.wire_s * scale,
            waking_s=self.waking_s * scale,
            link_s=tuple(link * scale for link in self.link_s),
        )


class BlockForesight:
    """Of one real page in one block: its arms on sockets, the engine's arms of the same page, and what a link's emulator does for each
    message, by the way that it is on."""

    def __init__(
        self,
        real: Sequence[PageTrials],
        engine: Sequence[PageTrials],
        processors: Processors,
        link_each: Mapping[Way, float],
    ) -> None:
        self._processors = processors
        self._link_each = link_each
        on_sockets = [arm for arm in real if arm.path == SOCKET]
        least = min((arm.app_cpu_ns for arm in on_sockets), default=0)
        self._bases = {arm.threads: arm for arm in on_sockets if arm.app_cpu_ns == least}
        self._least_ns = least
        self._engine = engine
        self.impossible: set[Way] = set()
        """Ways on which a page alone was quicker than its parts can be: something of it was measured wrong."""
        self._known: dict[tuple[Way, int], _Added | None] = {}
        self._grounds: dict[tuple[Way, int], Network | None] = {}

    @property
    def possible(self) -> bool:
        return bool(self._bases)

    def own_cpu_s(self, threads: int) -> float:
        """What the application itself computes for a page at the least."""
        base = self._base(threads)
        own = base.own_cpu_s
        return own if own is not None else Machinery(base, self._processors).cpu_s.get("application", 0.0)

    def p50_s(self, way: Way, threads: int, extra_s: float) -> float | None:
        network = self.network(way, threads, extra_s)
        return None if network is None else network.cycle_s(threads) * self._base(threads).p50_of_mean

    def network(self, way: Way, threads: int, extra_s: float) -> Network | None:
        """The real page on a way, with so much application CPU beyond the least. None: the run does not tell."""
        if (way, threads) not in self._grounds:
            self._grounds[way, threads] = self._ground(way, threads) if self._bases else None
        ground = self._grounds[way, threads]
        if ground is None:
            return None
        return replace(ground, hosts=(ground.hosts[0].with_own(extra_s), *ground.hosts[1:]))

    def _ground(self, way: Way, threads: int) -> Network | None:
        """With the least application CPU."""
        base = self._base(threads)
        sides = Machinery(base, self._processors)
        if self._waiting_s is None:
            self.impossible.add(way)
            return None
        if way.path == SOCKET:
            return Network(self._hosts(base, base), 0.0, self._waiting_s)
        added = self._added(way, threads)
        if added is None:
            return None
        added = added.times(self._scale(base, added))
        application_s = sides.application_s + added.application_s
        database_s = sides.database_s + added.database_s
        needed = (application_s + database_s,) if len(added.cpus) == 1 else (application_s, database_s)
        cpus = [count * self._left(base) for count in added.cpus]
        hosts = tuple(Host(*each) for each in zip(needed, added.link_s, cpus, strict=True))
        waiting_s = self._waiting_s + added.waiting_s
        network = Network(hosts, added.wire_s, waiting_s, added.waking_s, added.link_each)
        if network.possible:
            return network
        self.impossible.add(way)
        return None

    def fewer_turns(self, network: Network, way: Way, threads: int, share: float) -> Network:
        """A page that does the same with fewer turns: without this share of what the way adds."""
        added = self._added(way, threads)
        if added is None or len(network.hosts) != 2:
            return network
        added = added.times(self._scale(self._base(threads), added) * share)
        application, database = network.hosts
        return replace(
            network,
            hosts=(
                replace(application.with_own(-added.application_s), link_s=application.link_s - added.link_s[0]),
                replace(database.with_own(-added.database_s), link_s=database.link_s - added.link_s[1]),
            ),
            wire_s=network.wire_s - added.wire_s,
            waiting_s=network.waiting_s - added.waiting_s,
            waking_s=network.waking_s - added.waking_s,
        )

    def _base(self, threads: int) -> PageTrials:
        return _nearest(self._bases, threads)

    @cached_property
    def _waiting_s(self) -> float | None:
        """Of the real page on sockets."""
        fewest = self._bases[min(self._bases)]
        return self._waiting_of(fewest, fewest)

    def _waiting_of(self, arm: PageTrials, on_sockets: PageTrials) -> float | None:
        """None: less than can be. Below nothing is what two parts of the sum have: both ends' work at the same time, at most all
        of the smaller one's; the emulator's and the network's at either end, which the round trip at rest has too."""
        each = self._link_each.get(arm.way, 0.0)
        network = Network(self._hosts(arm, on_sockets), _wire_s(arm), 0.0, _waking_s(arm), each)
        waiting_s = network.waiting_for(arm.page_s, arm.threads).waiting_s
        here, there = Machinery(on_sockets, self._processors), Machinery(arm, self._processors)
        twice_s = sum(host.link_s / host.cpus for host in network.hosts)
        twice_s += min(there.application_s, there.database_s) + max(there.database_s - here.database_s, 0.0)
        return waiting_s if waiting_s >= -twice_s / min(host.cpus for host in network.hosts) else None

    def _hosts(self, arm: PageTrials, on_sockets: PageTrials) -> tuple[Host, ...]:
        """What strangers leave is read on sockets, where a page always wants a processor: what it leaves idle elsewhere, they fill."""
        sides, left = Machinery(arm, self._processors).sides, self._left(on_sockets)
        shared = overlap(arm.threads, _on_wire(arm), self._link_each.get(arm.way, 0.0))
        return tuple(Host(side.own_s, side.link_s / shared, side.cpus * left) for side in sides)

    def _left(self, on_sockets: PageTrials) -> float:
        """A share of each processor."""
        (side,) = Machinery(on_sockets, self._processors).sides
        return 1 - side.strangers / side.cpus

    def _added(self, way: Way, threads: int) -> _Added | None:
        if (way, threads) not in self._known:
            self._known[way, threads] = self._find_added(way, threads)
        return self._known[way, threads]

    def _find_added(self, way: Way, threads: int) -> _Added | None:
        pairs = self._pairs(way)
        if not pairs:
            return None
        on_sockets, there = _nearest(pairs, threads)
        fewest = pairs[min(pairs)]
        waited_s = [self._waiting_of(arm, fewest[0]) for arm in fewest]
        if waited_s[0] is None or waited_s[1] is None:
            self.impossible.add(way)
            return None
        here, yonder = Machinery(on_sockets, self._processors), Machinery(there, self._processors)
        sides = Machinery(there, self._processors).sides
        each = self._link_each.get(way, 0.0)
        shared = overlap(there.threads, _on_wire(there), each)
        return _Added(
            application_s=yonder.application_s - here.application_s,
            database_s=yonder.database_s - here.database_s,
            waiting_s=waited_s[1] - waited_s[0],
            wire_s=_wire_s(there),
            waking_s=_waking_s(there),
            turns=turns_a_page(there),
            link_each=each,
            link_s=tuple(side.link_s / shared for side in sides),
            cpus=tuple(side.cpus for side in sides),
        )

    def _pairs(self, way: Way) -> dict[int, tuple[PageTrials, PageTrials]]:
        """The engine's page on sockets and there, by pages in flight, with the least application CPU that both have."""
        found: dict[int, tuple[PageTrials, PageTrials]] = {}
        for there in sorted(self._engine, key=lambda arm: -arm.app_cpu_ns):
            for here in self._engine:
                alike = (here.threads, here.app_cpu_ns) == (there.threads, there.app_cpu_ns)
                if there.way == way and here.path == SOCKET and alike:
                    found[there.threads] = (here, there)
        return found

    @staticmethod
    def _scale(base: PageTrials, added: _Added) -> float:
        """A real page may need a few turns more than the script says."""
        real = turns_a_page(base)
        return real / added.turns if real and added.turns else 1.0


_T = TypeVar("_T")


def _nearest(by_threads: Mapping[int, _T], threads: int) -> _T:
    return by_threads[min(by_threads, key=lambda each: abs(math.log(each / threads)))]


def _wire_s(arm: PageTrials) -> float:
    return (turns_a_page(arm) or 0.0) * (arm.rest_rtt_s or 0.0)


def _waking_s(arm: PageTrials) -> float:
    return (turns_a_page(arm) or 0.0) * arm.wake_s


def _on_wire(arm: PageTrials) -> float:
    return _wire_s(arm) / arm.page_s


def emulators(arms: Iterable[PageTrials], processors: Processors) -> dict[Way, float]:
    """What each link's emulator does for every message, of all that it does for a page alone: by the engine's pages, of which the run
    has the same alone and several in flight; the median of those. A way that no page says it of is left out."""
    found: dict[Way, list[float]] = {}
    known = [arm for arm in arms if arm.application == "engine" and arm.machines == 2 and arm.app_cpu_ns == 0]
    for alone in (arm for arm in known if arm.threads == 1):
        for many in (arm for arm in known if (arm.place, arm.way) == (alone.place, alone.way) and arm.threads > 1):
            spent = [sum(side.link_s for side in Machinery(arm, processors).sides) for arm in (alone, many)]
            if min(spent) > 0:
                share = work_of_each(many.threads, _on_wire(many), spent[1] / spent[0])
                found.setdefault(many.way, []).append(share)
    return {way: median(shares) for way, shares in found.items()}


class Foresight:
    """Of one real page, over the blocks of a run: each by itself, for a block's arms are close in time. Then medians: a mean follows
    a block in which a stranger had half of a processor for one arm and not for another."""

    def __init__(
        self,
        real: Sequence[PageTrials],
        engine: Sequence[PageTrials],
        processors: Processors,
        link_each: Mapping[Way, float],
    ) -> None:
        on_sockets = [arm for arm in real if arm.path == SOCKET]
        self.least_ns = min((arm.app_cpu_ns for arm in on_sockets), default=0)
        """Application CPU asked of the arms that it is made of."""
        self.made_of = [arm for arm in on_sockets if arm.app_cpu_ns == self.least_ns]
        blocks = sorted({block for arm in self.made_of for block in arm.trials})
        self._blocks = [BlockForesight(_only(self.made_of, b), _only(engine, b), processors, link_each) for b in blocks]

    def p50_s(self, arm: PageTrials) -> float | None:
        """None: it is made of this arm, or lacks what it would be made of."""
        if arm in self.made_of:
            return None
        extra_s = (arm.app_cpu_ns - self.least_ns) / 1e9
        found = [p50 for block in self._blocks if (p50 := block.p50_s(arm.way, arm.threads, extra_s)) is not None]
        return median(found) if found else None

    def impossible(self, arm: PageTrials) -> bool:
        """What it would be made of contradicts itself, in each block that has it."""
        return self.p50_s(arm) is None and any(arm.way in block.impossible for block in self._blocks)

    def telling(self, way: Way, threads: int) -> list[BlockForesight]:
        """The blocks that can say what such a page takes on this way."""
        return [block for block in self._blocks if block.network(way, threads, 0.0) is not None]


def _only(arms: Sequence[PageTrials], block: int) -> list[PageTrials]:
    return [alone for arm in arms if (alone := arm.only(block)) is not None]


def foresights(arms: Mapping[Place, Sequence[PageTrials]], processors: Processors) -> dict[Place, Foresight]:
    """For each real page of a run."""
    link_each = emulators((arm for alike in arms.values() for arm in alike), processors)
    return {
        place: Foresight(real, arms.get(replace(place, application="engine"), ()), processors, link_each)
        for place, real in arms.items()
        if place.application == "php"
    }
