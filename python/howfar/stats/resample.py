"""Intervals of figures that are computed from a whole run, such as a crossing or a prediction: the jackknife over blocks.

A part declares what it wants: beside a figure `x`, a field `x_interval`. The same analysis is made of the run without each block in
turn; the pseudo-values n x whole - (n - 1) x without scatter as independent estimates would (Tukey 1958; Efron and Tibshirani, "An
Introduction to the Bootstrap", chapter 11), and Student's limits are taken of them. Of positive figures on logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from howfar.stats.estimate import Part
from howfar.stats.intervals import LEVEL, MIN_BLOCKS, t_quantile

Interval = tuple[float, float]

SUFFIX = "_interval"
MOST_GROUPS = 12
"""Of more blocks, several are left out at a time: the limits then have these degrees of freedom, and no analysis is made oftener."""
_IDENTITY = frozenset(
    {
        "name",
        "arm",
        "algorithm",
        "content",
        "version",
        "page",
        "path",
        "connect",
        "threads",
        "rate_bps",
        "mode",
        "label",
    }
)
"""Fields that say what a part is about: parts that differ in one are not the same part."""

P = TypeVar("P", bound=Part)


def groups(blocks: Sequence[int]) -> list[frozenset[int]]:
    """What is left out each time: one block, or of many blocks every `MOST_GROUPS`th. Empty: too few for an interval."""
    if len(blocks) < MIN_BLOCKS:
        return []
    count = min(len(blocks), MOST_GROUPS)
    return [frozenset(blocks[first::count]) for first in range(count)]


def derived(whole: float, without: Sequence[float | None]) -> Interval | None:
    """95 % limits of `whole`, given the same figure without each group. None: too few groups, or a figure that does not exist without
    one of them: whether it exists is then a matter of chance."""
    n = len(without)
    known = [value for value in without if value is not None]
    if n < MIN_BLOCKS or len(known) < n or not all(map(math.isfinite, (whole, *known))):
        return None
    positive = whole > 0 and min(known) > 0
    scale: Callable[[float], float] = math.log if positive else float
    centre = scale(whole)
    pseudo = [n * centre - (n - 1) * scale(value) for value in known]
    mean = sum(pseudo) / n
    half = t_quantile(n - 1, LEVEL) * math.sqrt(sum((value - mean) ** 2 for value in pseudo) / (n * (n - 1)))
    low, high = centre - half, centre + half
    return (math.exp(low), math.exp(high)) if positive else (low, high)


@lru_cache(maxsize=64)
def wants_intervals(kind: type[Part]) -> bool:
    """Whether such a part, or a part within it, declares an interval of a derived figure."""
    return f'{SUFFIX}"' in str(kind.model_json_schema(mode="validation")).replace("'", '"')


def with_intervals(whole: P, without: Sequence[Part | None]) -> P:
    """`whole` with each declared interval, from the same part of the run without each group."""
    others = [other if _is_same(whole, other) else None for other in without]
    update: dict[str, Any] = {}
    for name in type(whole).model_fields:
        value = getattr(whole, name)
        beside = [None if other is None else getattr(other, name) for other in others]
        if name.endswith(SUFFIX):
            figure = name.removesuffix(SUFFIX)
            if isinstance(found := getattr(whole, figure), int | float):
                update[name] = derived(found, [None if other is None else getattr(other, figure) for other in others])
        elif isinstance(value, Part):
            update[name] = with_intervals(value, [_part(other) for other in beside])
        elif isinstance(value, tuple) and value and isinstance(value[0], Part):
            update[name] = tuple(
                with_intervals(each, [_at(other, number, each) for other in beside])
                for number, each in enumerate(value)
            )
    return whole.model_copy(update=update) if update else whole


def _part(value: object) -> Part | None:
    return value if isinstance(value, Part) else None


def _at(parts: object, number: int, like: Part) -> Part | None:
    """The part about the same thing: at the same place, else wherever it is."""
    if not isinstance(parts, tuple):
        return None
    if number < len(parts) and _is_same(like, parts[number]):
        return _part(parts[number])
    return next((part for part in parts if _is_same(like, part)), None)


def _is_same(one: Part, other: object) -> bool:
    if type(one) is not type(other):
        return False
    names = _IDENTITY & type(one).model_fields.keys()
    return all(getattr(one, name) == getattr(other, name) for name in names)


def found_by(
    analyse: Callable[[frozenset[int]], Mapping[str, Part | None]],
    blocks: Sequence[int],
    kinds: Mapping[str, type[Part]],
) -> dict[str, Part | None]:
    """The findings of `analyse`, which leaves out the blocks that it is given, with the intervals that their types declare."""
    whole = dict(analyse(frozenset()))
    if not any(part is not None and wants_intervals(kinds[key]) for key, part in whole.items()):
        return whole
    without = [analyse(group) for group in groups(blocks)]
    return {
        key: part if part is None else with_intervals(part, [one.get(key) for one in without])
        for key, part in whole.items()
    }
