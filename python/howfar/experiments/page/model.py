"""A page as a closed queueing network: so many pages in flight, the processors of one machine or of two, and time in no queue.

Pages share a machine's processors as processes do, in turns of a time slice, many times a page. Such a station gives the same
answer whatever the lengths of its services (Baskett, Chandy, Muntz and Palacios 1975), so mean value analysis is exact for it.
Not here: where the demands come from (`foresee.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from howfar.model.queueing import Station, processors, solve

_STEPS = 60
"""Of a bisection: beyond what a double can tell."""
_ROUNDS = 6
"""Of a cycle that depends on itself, and hardly."""


@dataclass(frozen=True)
class Host:
    """One machine and what a page needs of it, in seconds of CPU."""

    own_s: float
    link_s: float
    """Of the emulator's, on this machine's processors, were it the only page on the link."""
    cpus: float
    """What strangers left."""

    def with_own(self, seconds: float) -> Host:
        return replace(self, own_s=max(self.own_s + seconds, 0.0))


@dataclass(frozen=True)
class Network:
    """What a page passes through: one host, or two."""

    hosts: tuple[Host, ...]
    wire_s: float
    """Its turns' round trips, at rest."""
    waiting_s: float
    """Neither CPU nor wire: being woken, disks, what two ends do at the same time (that makes it less than nothing)."""

    waking_s: float = 0.0
    """Being woken, half at each end, of a page alone. Who works is not woken."""
    link_each: float = 0.0
    """Share of the emulator's work that each message needs; for the rest it watches, for however many."""

    def cycle_s(self, pages: int) -> float:
        """Mean time of a page with so many in flight."""
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
            # Who comes finds the machine as one page less would leave it.
            idle = sum(1 - busy**self._processors for busy in point.utilisation.values()) / max(len(stations), 1)
        return cycle_s

    @property
    def _processors(self) -> int:
        """Where one of several is idle, that one is woken."""
        return max(1, round(min(host.cpus for host in self.hosts)))

    @property
    def possible(self) -> bool:
        """A page takes some time, even if the emulator does all its work while the page waits anyway."""
        return self.wire_s + self.waiting_s + sum(host.own_s / max(host.cpus, 1.0) for host in self.hosts) > 0

    def without_link_cpu(self) -> Network:
        """What the emulator does for a page alone is part of the round trip at rest (which `waiting_s` makes up for): that page
        takes as long without. Others gain the processors."""
        link_s = sum(host.link_s / host.cpus for host in self.hosts)
        return replace(
            self,
            hosts=tuple(replace(host, link_s=0.0) for host in self.hosts),
            waiting_s=self.waiting_s + link_s,
        )

    def waiting_for(self, cycle_s: float, pages: int) -> Network:
        """With the waiting that makes `pages` in flight take `cycle_s`; none where a full station hides it."""
        ground = replace(self, waiting_s=0.0)
        if pages == 1:
            return replace(self, waiting_s=cycle_s - ground.cycle_s(1))
        if ground.cycle_s(pages) >= cycle_s:
            return ground
        found = bisected(lambda waiting: replace(self, waiting_s=waiting).cycle_s(pages) - cycle_s, 0.0, cycle_s)
        return replace(self, waiting_s=found)


def overlap(pages: int, on_wire: float, each: float = 0.0) -> float:
    """The emulator's work a page over that for a page alone, with each page on the wire for this share of its time. `each`: the share
    of the work that every message needs; the rest is watching the clock while anything is on the link, for however many."""
    share = min(on_wire, 1.0)
    watching = (1 - (1 - share) ** pages) / (pages * share) if share > 0 else 1.0
    return each + (1 - each) * watching


def work_of_each(pages: int, on_wire: float, over_alone: float) -> float:
    """`each` of `overlap`, where that came out as `over_alone`; between 0 and 1."""
    watching = overlap(pages, on_wire)
    return min(max((over_alone - watching) / (1 - watching), 0.0), 1.0) if watching < 1 else 0.0


def bisected(of: Callable[[float], float], low: float, high: float) -> float:
    """Where `of` becomes more than nothing between two ends; the nearer end, where it does not."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if of(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
