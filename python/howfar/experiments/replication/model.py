"""How long a commit that waits for a replica takes, from arms that do not wait and the link's round trip. Pure.

    commit = local + rounds x (RTT + acknowledgement)

`local` is the time of a commit without a replica; it grows with load. Where commits come back in groups, because they were
acknowledged together, the next ones meet in the server's queues again: local work is then what as many connections take without
waiting. Where each commit comes back by itself it is what a commit takes at the same rate: the server is a station whose speed depends
on how many are in it, as its own curve over connections shows (Norton's theorem for closed networks, Chandy and others, 1975).

`rounds` follows from what a server holds while it waits, not from a fit.

- Nothing, or something that others need only after they were sent: all connections' commits are in flight at once, the wait is a
  delay station, and each takes one round trip. This is AFTER_COMMIT on both kinds; MySQL's leader waits for its whole group there,
  MariaDB's sessions each for themselves. It is MySQL's AFTER_SYNC too: its leader waits with the lock of the commit stage, but groups
  behind it are written, made durable and sent meanwhile; one acknowledgement then covers them.
- MariaDB's AFTER_SYNC: a leader waits with the lock that the next group needs before it releases the binary log. So two groups are in
  flight, the second holds the log, and later commits wait until the first is acknowledged. In a closed loop three groups alternate
  between two stages: three round trips for each two commits of a connection. With one or two connections there is no third group.

`acknowledgement` is the remaining time of a single connection's commit: the replica's write and both ends' wake-ups. It matters where
the round trip is short, and is the only figure of an arm itself that its prediction uses. The single connection is predicted without.

Not here: which arms of a run stand for what (`analysis.py`). docs/replication.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from howfar.plan.factors import SEMI_SYNC

Regime = Literal["delay station", "serial", "between"]
"""Commits share a wait (throughput grows with connections), queue for it (it does not), or something between."""

GROUPS_IN_FLIGHT = 2
"""MariaDB, AFTER_SYNC: one whose acknowledgement is waited for, one that is sent and holds the log."""
DELAY_SHARE = 0.5
"""Of N: throughput that grows by more from one connection to N is not serial; three groups at two stages leave two thirds."""
SERIAL_GROWTH = 2.0
"""Throughput that grows by less is that of one queue, or of two stages of it."""


@dataclass(frozen=True)
class Local:
    """The time of a commit that does not wait, by the number of connections."""

    commit_s: Mapping[int, float]

    def with_as_many(self, threads: int) -> float | None:
        return self.commit_s.get(threads)

    def behind(self, wait_s: float, threads: int) -> float:
        """The time of a commit between waits of that length. Needs one number of connections at least."""
        points = [(n / seconds, seconds) for n, seconds in sorted(self.commit_s.items())]
        rising = [points[0]]
        for rate, seconds in points[1:]:
            if rate > rising[-1][0]:  # what more connections bring beyond the highest throughput is queue
                rising.append((rate, max(seconds, rising[-1][1])))
        for (slow, short), (fast, long) in pairwise(rising):
            if threads / (wait_s + long) <= fast:
                low, high = short, long
                for _ in range(50):
                    middle = (low + high) / 2
                    share = (middle - short) / (long - short) if long > short else 1.0
                    crowded = threads / (wait_s + middle) > slow + share * (fast - slow)
                    low, high = (middle, high) if crowded else (low, middle)
                return high
        top_rate, top_s = rising[-1]
        return max(top_s, threads / top_rate - wait_s)


@dataclass(frozen=True)
class Waiting:
    """What a commit of one curve waits for."""

    kind: str
    """`mariadb` or `mysql`."""
    mode: str
    rtt_s: float
    acknowledgement_s: float = 0.0

    @property
    def alone(self) -> bool:
        """Each session waits for its own acknowledgement and comes back by itself."""
        return self.kind == "mariadb" and self.mode == "after-commit"

    def rounds(self, threads: int) -> float:
        """Mean round trips of a commit."""
        if self.mode not in SEMI_SYNC:
            return 0.0
        if self.kind == "mariadb" and self.mode == "after-sync" and threads > GROUPS_IN_FLIGHT:
            return (GROUPS_IN_FLIGHT + 1) / GROUPS_IN_FLIGHT
        return 1.0

    def wait_s(self, threads: int) -> float:
        """Beyond local work."""
        own = self.acknowledgement_s if threads > 1 else 0.0
        return self.rounds(threads) * (self.rtt_s + own)

    def local_s(self, local: Local, threads: int) -> float | None:
        """Local work of a commit. None: unknown from these arms."""
        same = local.with_as_many(threads)
        if self.alone and 1 in local.commit_s:
            behind = local.behind(self.wait_s(threads), threads)
            return behind if same is None else min(same, behind)
        return same


def acknowledgement_s(single_commit_s: float, local_s: float, rtt_s: float) -> float:
    """Time of a single connection's commit beyond local work and the round trip."""
    return max(0.0, single_commit_s - local_s - rtt_s)


def regime_of(growth: float, threads: int) -> Regime:
    """From throughput with `threads` connections over that with one. These differ by factors, not by percents."""
    if growth >= DELAY_SHARE * threads:
        return "delay station"
    return "serial" if growth < SERIAL_GROWTH else "between"
