"""Group commit with a replica at a distance, event by event: what servers hold while they wait, and nothing of the model's formulae.

Connections do their own work side by side, then meet in the binary log. Times in milliseconds.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

Mechanism = Literal["waits alone", "holds the commit stage", "holds the log"]
"""AFTER_COMMIT; MySQL's AFTER_SYNC; MariaDB's."""


@dataclass
class Simulation:
    """`run` gives commits a second and the mean number of commits in a group."""

    mechanism: Mechanism
    connections: int
    rtt_ms: float
    own_ms: float = 0.05
    """Of a connection, beside others."""
    write_ms: float = 0.01
    """Of each commit in the log, one after the other."""
    seed: int = 1
    _now: float = 0.0
    _events: list[tuple[float, int, Generator[float | _Gate, None, None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    _rng: random.Random = field(default_factory=random.Random)
    done: int = 0
    groups: int = 0
    counting: bool = False

    def run(self, warmup_ms: float, measure_ms: float) -> tuple[float, float]:
        self._rng.seed(self.seed)
        log, commit = _Gate(self), _Gate(self)
        queue: list[_Ticket] = []
        behind: list[_Ticket] = []
        for _ in range(self.connections):
            self._push(self._now, self._client(queue, behind, log, commit))
        while self._events and self._events[0][0] <= warmup_ms + measure_ms:
            self._now, _, process = heapq.heappop(self._events)
            self.counting = self._now > warmup_ms
            self._step(process)
        return self.done / measure_ms * 1e3, self.done / max(self.groups, 1)

    def _push(self, at: float, process: Generator[float | _Gate, None, None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), process))

    def _step(self, process: Generator[float | _Gate, None, None]) -> None:
        for wanted in process:
            if isinstance(wanted, _Gate):
                if wanted.enter(process):
                    continue
            else:
                self._push(self._now + wanted, process)
            return

    def _client(
        self, queue: list[_Ticket], behind: list[_Ticket], log: _Gate, commit: _Gate
    ) -> Generator[float | _Gate, None, None]:
        while True:
            yield self._rng.expovariate(1 / self.own_ms)
            ticket = _Ticket(_Gate(self, shut=True))
            queue.append(ticket)
            if len(queue) == 1:  # the first leads
                yield log
                group, queue[:] = list(queue), []
                yield self.write_ms * len(group)
                for each in group:
                    each.sent = self._now
                yield from self._acknowledged(group, behind, log, commit)
            else:
                yield ticket.told
            if self.mechanism == "waits alone":
                yield max(0.0, ticket.sent + self.rtt_ms - self._now)
            self.done += self.counting

    def _acknowledged(
        self, group: list[_Ticket], behind: list[_Ticket], log: _Gate, commit: _Gate
    ) -> Generator[float | _Gate, None, None]:
        """The leader's wait, and its followers told."""
        if self.mechanism == "waits alone":
            log.leave()
        elif self.mechanism == "holds the log":
            yield commit
            log.leave()
            yield max(0.0, group[-1].sent + self.rtt_ms - self._now)
            commit.leave()
        else:
            log.leave()
            behind += group
            if len(behind) > len(group):  # another leads the commit stage: it will tell these too
                yield group[0].told
                return
            yield commit
            group = list(behind)
            behind[:] = []
            yield max(0.0, max(each.sent for each in group) + self.rtt_ms - self._now)
            commit.leave()
        self.groups += self.counting
        for each in group:
            each.told.leave()


@dataclass
class _Gate:
    """One passes at a time, in the order of coming; `leave` lets the next in."""

    of: Simulation
    shut: bool = False
    waiting: list[Generator[float | _Gate, None, None]] = field(default_factory=list)

    def enter(self, process: Generator[float | _Gate, None, None]) -> bool:
        if self.shut:
            self.waiting.append(process)
            return False
        self.shut = True
        return True

    def leave(self) -> None:
        if self.waiting:
            self.of._push(self.of._now, self.waiting.pop(0))
        else:
            self.shut = False


@dataclass
class _Ticket:
    told: _Gate
    sent: float = 0.0
