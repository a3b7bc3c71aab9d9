"""Distances between the nodes of a cluster: named matrices, which consist of named links, or RTTs pair by pair."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from howfar.errors import QuantityError
from howfar.plan.named_links import NAMED_LINKS
from howfar.plan.quantities import refusal
from howfar.units import parse_duration_ns

EVEN = "even"
"""The level at which every pair has the RTT of the factor `replica_rtt`."""
_NEAR_NS, _ZONE_NS, _REGION_NS, _FAR_NS = (
    parse_duration_ns(NAMED_LINKS[name]["rtt"]) for name in ("same-zone", "cross-zone", "region", "us-coasts")
)

NAMED: Mapping[str, tuple[int, int, int]] = {
    "same-rack": (_NEAR_NS, _NEAR_NS, _NEAR_NS),
    "three-zones": (_ZONE_NS, _ZONE_NS, _ZONE_NS),
    "two-near-one-far": (_ZONE_NS, _FAR_NS, _FAR_NS),
    "three-regions": (_REGION_NS, _REGION_NS, _REGION_NS),
}
"""RTTs between three locations, in the order of `pairs(3)`. Node n is at location n modulo 3."""


def check_distances(value: Any) -> Any:
    """Check a level of the factor `distances`."""
    if not isinstance(value, str) or value == EVEN or value in NAMED:
        return value
    if "," not in value:
        raise refusal(
            f"{value!r} is not a distance: {', '.join((EVEN, *NAMED))}, or a round trip for each pair of nodes, such as 1ms,85ms,85ms"
        )
    try:
        _parse_pairs(value)
    except QuantityError as error:
        raise refusal(f"{error.message}. {error.advice}") from error
    return value


def _parse_pairs(level: str) -> list[int]:
    return [parse_duration_ns(word.strip()) for word in level.split(",")]


def pairs(nodes: int) -> tuple[tuple[int, int], ...]:
    """The pairs of nodes, counted from 0, in the order in which a level lists them: 0-1, 0-2, 1-2."""
    return tuple(combinations(range(nodes), 2))


def link_name(low: int, high: int) -> str:
    """Name of the link between two nodes in receipts: `replica2`, or between two replicas `replica1-replica2`."""
    return f"replica{high}" if low == 0 else f"replica{low}-replica{high}"


def fits(level: str, nodes: int) -> bool:
    """Whether the level has a distance for every pair of that many nodes."""
    return level == EVEN or level in NAMED or len(_parse_pairs(level)) == len(pairs(nodes))


def rtts_ns(level: str, nodes: int, even_ns: int = 0) -> dict[tuple[int, int], int]:
    """RTTs by pair. `even_ns`: the RTT of every pair at the level `even`."""
    if level == EVEN:
        return dict.fromkeys(pairs(nodes), even_ns)
    if (three_rtts := NAMED.get(level)) is None:
        return dict(zip(pairs(nodes), _parse_pairs(level), strict=True))
    between = dict(zip(pairs(3), three_rtts, strict=True))
    locations = {(low_node, high_node): sorted((low_node % 3, high_node % 3)) for low_node, high_node in pairs(nodes)}
    return {pair: between.get((low, high), _NEAR_NS) for pair, (low, high) in locations.items()}
