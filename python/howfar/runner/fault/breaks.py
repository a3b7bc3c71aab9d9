"""What each fault does to a pair under load, and when its primary dies.

`kill-primary` is the death of a process: its kernel lives, and still delivers what was in its sockets. In the others the primary lives
on, cut off from its replica, and serves its clients until somebody fails over: here a second later. What is on the line when it is cut
arrives, so what was acknowledged before a cut of the way to the replica and is lost is what the death of the whole machine at that
moment loses; what was acknowledged after it is what not noticing costs. A cut takes effect somewhere between the moment at which it is
asked for and the moment at which it is said to be done: both are told, and what is counted up to it has two bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from howfar.lab.link import WAYS, WayName
from howfar.lab.replication import Pair

FAILOVER_NS = 1_000_000_000
"""From the fault until the primary is killed, where it lives on. A chosen figure: each second more loses as much again."""
_STOPS_S = 30.0
"""For a receiver to obey, which it does with the next event that comes."""


@dataclass(frozen=True)
class Break:
    """One level of the factor `fault`."""

    cut: tuple[WayName, ...] = ()
    """Of every replica's wire; the replica is the link's client."""
    stops_receiving: bool = False
    """Every replica is told to receive no more; it goes on applying what it has, as one does whose disk for logs is full."""
    failover_ns: int = 0


BREAKS: dict[str, Break] = {
    "kill-primary": Break(),
    "cut": Break(cut=WAYS, failover_ns=FAILOVER_NS),
    "cut-to-replica": Break(cut=("to_client",), failover_ns=FAILOVER_NS),
    "cut-to-primary": Break(cut=("to_server",), failover_ns=FAILOVER_NS),
    "stop-replica": Break(stops_receiving=True, failover_ns=FAILOVER_NS),
}


@dataclass(frozen=True)
class Broken:
    """Monotonic times."""

    fault_ns: int
    """Right before anything was done."""
    in_force_ns: int
    """When all was done."""
    dead_ns: int
    """Right before the primary was killed."""


def break_pair(pair: Pair, done: Break, pause: Callable[[int], None]) -> Broken:
    """`pause` waits so many nanoseconds. Whoever calls mends the wires. Raises LabError, LinkFailed."""
    fault_ns = time.monotonic_ns()
    for wire in pair.wires if done.cut else ():
        wire.cut(done.cut)
    for replica in pair.replicas if done.stops_receiving else ():
        replica.tell(pair.verbs.stop_receiving_sql, _STOPS_S)
    in_force_ns = time.monotonic_ns()
    if done.failover_ns:
        pause(done.failover_ns)
    dead_ns = time.monotonic_ns()
    pair.primary.server.kill()
    return Broken(fault_ns, in_force_ns if done.failover_ns else time.monotonic_ns(), dead_ns)


def mend(pair: Pair, done: Break) -> None:
    """Nothing stays cut for the next trial. Raises LinkFailed."""
    for wire in pair.wires if done.cut else ():
        wire.mend()
