"""Each page of a plan in a line: its turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS = (
    ("point_selects", "point select", "point selects"),
    ("simple_ranges", "range of rows", "ranges of rows"),
    ("index_updates", "update in one transaction", "updates in one transaction"),
    ("redis_gets", "Redis GET", "Redis GETs"),
    ("redis_multi_gets", "Redis MGET of 10 keys", "Redis MGETs of 10 keys"),
    ("memcached_gets", "Memcached get", "Memcached gets"),
)


def page_scripts(plan: Mapping[str, Any]) -> dict[str, str]:
    """By the page's name. Empty: a plan without pages."""
    shapes = plan.get("pages")
    if not isinstance(shapes, Mapping):
        return {}
    return {str(name): _line(shape) for name, shape in shapes.items() if isinstance(shape, Mapping)}


def turns_of(shape: Mapping[str, Any]) -> int:
    """Each request is a turn; BEGIN and COMMIT are two, where there is a transaction."""
    a_round = sum(_count(shape, name) for name, _, _ in _WORDS) + (2 if _count(shape, "index_updates") else 0)
    return a_round * _count(shape, "rounds", 1)


def _line(shape: Mapping[str, Any]) -> str:
    asked = [
        f"{count} {one if count == 1 else more}" for name, one, more in _WORDS if (count := _count(shape, name)) > 0
    ]
    rounds = _count(shape, "rounds", 1)
    times = f"{rounds} times " if rounds > 1 else ""
    return f"{turns_of(shape)} turns: {times}{', '.join(asked)}"


def _count(shape: Mapping[str, Any], name: str, default: int = 0) -> int:
    found = shape.get(name, default)
    return found if isinstance(found, int) else default
