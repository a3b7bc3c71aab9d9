"""How long a cluster needs to agree on one commit, from the round trips between its nodes. Times in seconds; node 0 commits.

- Galera delivers a commit once every node is known to have it (`O_SAFE`). A node reports that only when it has a message from every
  other node at the same position. These messages also travel between the other nodes, so with equal distances it takes 1.5 round
  trips.
- Group Replication orders commits by Paxos: a round trip to a majority. By default the members lead in turn, and a member with
  nothing to send must skip its turn before a commit is in order. For that it must learn of the commit, perhaps through another
  member, and answer.
- With a single leader there are no turns to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from howfar.services.galera import DEFAULT_PACKET_BYTES, DEFAULT_WINDOW

Rtts = Mapping[tuple[int, int], float]
"""Round trips by pair, the smaller number first."""


class _Distances:
    def __init__(self, rtts: Rtts) -> None:
        self.nodes = range(1 + max(high for _, high in rtts))
        self.rtts = rtts

    def one_way(self, a: int, b: int) -> float:
        return 0.0 if a == b else self.rtts[min(a, b), max(a, b)] / 2

    def shortest_one_way(self, a: int, b: int) -> float:
        """Shortest one-way time between two nodes, perhaps through another node."""
        return min(self.one_way(a, via) + self.one_way(via, b) for via in self.nodes)

    def majority_round_trip(self, node: int) -> float:
        """The round trip after which a node has reached a majority, itself included."""
        others = sorted(2 * self.one_way(node, other) for other in self.nodes if other != node)
        return others[len(self.nodes) // 2 - 1]


def _galera_s(distances: _Distances) -> float:
    other_nodes = distances.nodes[1:]
    return max(
        max(distances.one_way(0, peer) + distances.one_way(peer, node) for peer in distances.nodes if peer != node)
        + distances.one_way(node, 0)
        for node in other_nodes
    )


def _all_members_s(distances: _Distances, origin: int, at: int) -> float:
    """Time from when `origin` sends until the message is in order at `at`."""
    skips = (
        distances.shortest_one_way(origin, node) + distances.one_way(node, at)
        for node in distances.nodes
        if node != origin
    )
    return distances.majority_round_trip(origin) + max(distances.one_way(origin, at), *skips)


def _leader_s(distances: _Distances, origin: int, at: int) -> float:
    return distances.one_way(origin, 0) + distances.majority_round_trip(0) + distances.one_way(0, at)


def agreement_s(mode: str, consistency: str, rtts: Rtts) -> float:
    """Time that a commit waits for agreement. `mode`, `consistency`: levels of the factors.

    Consistency `before`: one more message is ordered first. `after`: the commit waits until all other nodes have reported that they
    have it, each in a message that is ordered too. Galera's `before` waits only for commits that its node knows to be in progress;
    with a single connection in a closed loop there are none.
    """
    distances = _Distances(rtts)
    if mode == "galera":
        return _galera_s(distances)
    before = read_wait_s(mode, consistency, rtts)
    time_to_order: Callable[[_Distances, int, int], float] = _leader_s if mode == "group-leader" else _all_members_s
    if "after" not in consistency:
        return before + time_to_order(distances, 0, 0)
    return before + max(
        time_to_order(distances, 0, node) + time_to_order(distances, node, 0) for node in distances.nodes[1:]
    )


def read_wait_s(mode: str, consistency: str, rtts: Rtts) -> float:
    """Wait of a transaction that only reads, with no other in progress. With `before`, it waits for one more message to be ordered."""
    is_ordered = mode != "galera" and "before" in consistency
    return agreement_s(mode, "eventual", rtts) if is_ordered else 0.0


_PAYLOAD_SHARE = 0.93
"""Share of payload in the bytes on a link of Galera. The rest is framing, and acknowledgements of the other direction's messages."""


@dataclass(frozen=True)
class GaleraMessages:
    """How Galera sends a transaction: in messages, of which at most `max_in_progress` are in progress. The next one waits until one of
    them is agreed on."""

    max_in_progress: int = DEFAULT_WINDOW
    packet_bytes: int = DEFAULT_PACKET_BYTES
    """Size of a message."""

    def sending_s(self, sent_bytes: float, rate_bps: float, agreed_s: float) -> float:
        """Time to send `sent_bytes` over a link, beyond one agreement: by the link's rate, or by the agreements in between if
        longer."""
        batches = ceil(ceil(sent_bytes * _PAYLOAD_SHARE / self.packet_bytes) / self.max_in_progress)
        message_s = min(self.packet_bytes, sent_bytes) * 8 / rate_bps
        return max(sent_bytes * 8 / rate_bps, (batches - 1) * (agreed_s + message_s) + message_s)
