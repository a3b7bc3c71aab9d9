"""Loss and jitter as the receiver finds them: datagrams over our link with the effect let loose.

`link_bars.py` judges. Not here: bursts, duplicates, corruption, outages; the conformance suite has them.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Final

from howfar.bench.link_datagrams import datagrams, udp_errors
from howfar.engine.link_messages import IndependentLoss, NormalJitter
from howfar.lab.hosts import Host
from howfar.lab.link import Link, LinkAsked, WayAsked

LOSS_SHARE: Final = 0.01
DEVIATION_NS: Final = 2_000_000
_JITTERY_RTT_NS: Final = 20_000_000
"""Half of it is five deviations: no draw is cut off at no delay at all."""
_PAUSE_S: Final = 0.001
"""Between datagrams of which each one's time counts."""


@dataclass(frozen=True)
class Lost:
    count: int
    of: int


@dataclass(frozen=True)
class Spread:
    """Of the times that so many datagrams took."""

    deviation_ns: float
    of: int


def lossy(seed: int) -> LinkAsked:
    return LinkAsked(0, None, to_server=WayAsked(loss=IndependentLoss(probability=LOSS_SHARE)), seed=seed)


def jittery(seed: int) -> LinkAsked:
    """Each datagram has its own draw: without `reorder` one that is late holds up those behind it."""
    way = WayAsked(jitter=NormalJitter(deviation_ns=DEVIATION_NS), reorder=True)
    return LinkAsked(_JITTERY_RTT_NS, None, to_server=way, seed=seed)


def let_loose(link: Link, asked: LinkAsked) -> None:
    """Its counters begin anew. Raises LinkFailed, EngineError."""
    link.shape(asked)
    link.counters(reset=True)
    link.arm()


def count_lost(client: Host, server: Host, count: int) -> Lost:
    """What the receiver's own socket had no room for is not the link's loss, and counts as not sent."""
    before = udp_errors(server)["RcvbufErrors"]
    with datagrams(client, server) as udp:
        udp.send_all(count)
        came = len(set(udp.finish(0.0).numbers))
    of = count - (udp_errors(server)["RcvbufErrors"] - before)
    return Lost(max(of - came, 0), of)


def spread(client: Host, server: Host, count: int) -> Spread:
    with datagrams(client, server) as udp:
        for number in range(count):
            udp.send(number, 100)
            time.sleep(_PAUSE_S)
        times = udp.finish(0.0).one_way_ns
    return Spread(statistics.stdev(times) if len(times) > 1 else 0.0, len(times))
