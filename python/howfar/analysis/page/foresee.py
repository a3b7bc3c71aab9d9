"""A real page on another path, or with more application CPU, foreseen.

Made of: the real page on sockets with the least application CPU, and the engine's page on sockets and on the path. The engine's two
say what the path adds to the CPU at both ends and to the waiting; the real page says what it needs itself. No trial of the arm that is
foreseen goes in, nor any of a real page off the sockets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from howfar.analysis.page.arms import PageTrials, Place
from howfar.analysis.page.machines import Machinery, Processors
from howfar.analysis.page.model import Host, Network
from howfar.analysis.page.turns import turns_a_page
from howfar.results.records import FactorValue

SOCKET = "socket"
TWO = ("remote", "forwarded-socket")
"""Two machines; the first that a run has is meant where one is asked for."""
Way = tuple[FactorValue | None, ...]


@dataclass(frozen=True)
class _Added:
    """What a way adds to a page, by the engine's own, at one number of pages in flight. Seconds a page."""

    application_s: float
    database_s: float
    waiting_s: float
    wire_s: float
    turns: float | None
    link_s: tuple[float, ...]
    """Of each host."""
    left: tuple[float, ...]
    """Of each host's processors, by strangers."""

    def times(self, scale: float) -> _Added:
        """For so many times as many turns."""
        return replace(
            self,
            application_s=self.application_s * scale,
            database_s=self.database_s * scale,
            waiting_s=self.waiting_s * scale,
            wire_s=self.wire_s * scale,
            link_s=tuple(link * scale for link in self.link_s),
        )


class Foresight:
    """Of one real page: its arms on sockets, and the engine's arms of the same page."""

    def __init__(self, real: Sequence[PageTrials], engine: Sequence[PageTrials], processors: Processors) -> None:
        self._processors = processors
        on_sockets = [arm for arm in real if arm.path == SOCKET]
        least = min((arm.app_cpu_ns for arm in on_sockets), default=0)
        self._bases = {arm.threads: arm for arm in on_sockets if arm.app_cpu_ns == least}
        self._least_ns = least
        self._engine = engine
        self._known: dict[tuple[Way, int], _Added | None] = {}

    @property
    def possible(self) -> bool:
        return bool(self._bases)

    @property
    def least_ns(self) -> int:
        """Application CPU asked of the arms that it is made of."""
        return self._least_ns

    def is_made_of(self, arm: PageTrials) -> bool:
        return arm in self._bases.values()

    def own_cpu_s(self, threads: int) -> float:
        """What the application itself computes for a page at the least."""
        base = self._base(threads)
        own = base.own_cpu_s
        return own if own is not None else Machinery(base, self._processors).cpu_s.get("application", 0.0)

    def p50_s(self, arm: PageTrials) -> float | None:
        """None: it is made of this arm, or lacks what it would be made of."""
        if self.is_made_of(arm):
            return None
        network = self.network(arm.way, arm.threads, (arm.app_cpu_ns - self._least_ns) / 1e9)
        return None if network is None else network.cycle_s(arm.threads) * self._base(arm.threads).p50_of_mean

    def network(self, way: Way, threads: int, extra_s: float) -> Network | None:
        """The real page on a way, with so much application CPU beyond the least. None: the run does not tell."""
        if not self._bases:
            return None
        base = self._base(threads)
        sides = Machinery(base, self._processors)
        if way[0] == SOCKET:
            (host,) = self._hosts(base)
            return Network((host.with_own(extra_s),), 0.0, self._waiting_s)
        added = self._added(way, threads)
        if added is None:
            return None
        added = added.times(self._scale(base, added))
        application_s = sides.application_s + added.application_s + extra_s
        database_s = sides.database_s + added.database_s
        needed = (application_s + database_s,) if len(added.left) == 1 else (application_s, database_s)
        hosts = tuple(Host(*each) for each in zip(needed, added.link_s, added.left, strict=True))
        return Network(hosts, added.wire_s, self._waiting_s + added.waiting_s)

    def added_a_turn_s(self, way: Way) -> float | None:
        """What one turn takes longer on this way than on sockets, with one page in flight."""
        added = self._added(way, 1)
        if added is None or not added.turns:
            return None
        return (added.application_s + added.database_s + added.waiting_s + added.wire_s) / added.turns

    def fewer_turns(self, network: Network, way: Way, threads: int, share: float) -> Network:
        """A page that does the same with fewer turns: without this share of what the way adds."""
        added = self._added(way, threads)
        if added is None or len(network.hosts) != 2:
            return network
        added = added.times(self._scale(self._base(threads), added) * share)
        application, database = network.hosts
        return Network(
            (
                replace(application.with_own(-added.application_s), link_s=application.link_s - added.link_s[0]),
                replace(database.with_own(-added.database_s), link_s=database.link_s - added.link_s[1]),
            ),
            network.wire_s - added.wire_s,
            network.waiting_s - added.waiting_s,
        )

    def _base(self, threads: int) -> PageTrials:
        return _nearest(self._bases, threads)

    @cached_property
    def _waiting_s(self) -> float:
        """Of the real page on sockets."""
        return self._waiting_of(self._bases[min(self._bases)], wire_s=0.0)

    def _waiting_of(self, arm: PageTrials, wire_s: float) -> float:
        return Network(self._hosts(arm), wire_s, 0.0).waiting_for(arm.page_s, arm.threads).waiting_s

    def _hosts(self, arm: PageTrials) -> tuple[Host, ...]:
        sides = Machinery(arm, self._processors).sides
        return tuple(Host(side.own_s, side.link_s, side.cpus - side.strangers) for side in sides)

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
        here, yonder = Machinery(on_sockets, self._processors), Machinery(there, self._processors)
        hosts = self._hosts(there)
        wire_s = _wire_s(there)
        return _Added(
            application_s=yonder.application_s - here.application_s,
            database_s=yonder.database_s - here.database_s,
            waiting_s=self._waiting_of(fewest[1], _wire_s(fewest[1])) - self._waiting_of(fewest[0], 0.0),
            wire_s=wire_s,
            turns=turns_a_page(there),
            link_s=tuple(host.link_s for host in hosts),
            left=tuple(host.cpus for host in hosts),
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


def foresights(arms: Mapping[Place, Sequence[PageTrials]], processors: Processors) -> dict[Place, Foresight]:
    """For each real page of a run."""
    return {
        place: Foresight(real, arms.get(replace(place, application="engine"), ()), processors)
        for place, real in arms.items()
        if place.application == "php"
    }
