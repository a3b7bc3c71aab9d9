"""Jackknife intervals, over blocks, of figures that are computed from a whole run, such as a crossing or a prediction.

A part declares its intervals: next to a figure `x`, a field `x_interval` of the type `PositiveInterval` or `SignedInterval`. The
analysis is repeated without each block in turn; the pseudo-values n x whole - (n - 1) x without scatter as independent estimates
would (Tukey 1958; Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 11), and Student's limits are computed from
them.

The jackknife fails for a median over blocks, which moves by one step or not at all if one is left out (chapter 10.6 there). Such a
figure is computed for each block alone instead, see `interval_over_blocks`; its field is a plain `Interval | None` that the
analysis fills.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, TypeVar, get_args

from howfar.stats.estimate import Part
from howfar.stats.intervals import CONFIDENCE_LEVEL, MIN_BLOCKS, mean_interval, t_quantile

Interval = tuple[float, float]
_JACKKNIFE, _SIGNED = "jackknife", "signed"
PositiveInterval = Annotated[Interval | None, _JACKKNIFE]
"""Interval of a figure that is positive by nature: limits on logarithms."""
SignedInterval = Annotated[Interval | None, _JACKKNIFE, _SIGNED]
"""Interval of a figure that noise may put on either side of 0, such as a difference. On logarithms its limits would never reach 0."""

SUFFIX = "_interval"
MAX_GROUPS = 12
"""Maximum number of groups, which limits the number of analyses: with more blocks, several are left out at a time. It also limits the
degrees of freedom."""
_IDENTIFYING_FIELDS = frozenset(
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
        "resource",
        "settings",
    }
)
"""Fields that identify the subject of a part: parts that differ in one are not the same part."""

P = TypeVar("P", bound=Part)


def groups_to_leave_out(blocks: Sequence[int]) -> list[frozenset[int]]:
    """Blocks that are left out each time: one block, or of many blocks every `MAX_GROUPS`th. Empty with too few for an interval."""
    if len(blocks) < MIN_BLOCKS:
        return []
    count = min(len(blocks), MAX_GROUPS)
    return [frozenset(blocks[first::count]) for first in range(count)]


def jackknife_interval(
    full_value: float, without_group: Sequence[float | None], *, signed: bool = False
) -> Interval | None:
    """95 % limits of `full_value`, given the same figure without each group. None if there are too few groups, if the figure
    does not exist without one of them (then its existence is a matter of chance), or if no block changes it, as at a bound."""
    count = len(without_group)
    known = [value for value in without_group if value is not None]
    if count < MIN_BLOCKS or len(known) < count or not all(map(math.isfinite, (full_value, *known))):
        return None
    if not signed and min(full_value, *known) <= 0:
        return None
    scale: Callable[[float], float] = float if signed else math.log
    centre = scale(full_value)
    pseudo_values = [count * centre - (count - 1) * scale(value) for value in known]
    mean = sum(pseudo_values) / count
    # A group that does not change the figure, for example because its arms were paused, shows nothing about its scatter.
    changed_count = sum(not math.isclose(value, full_value, rel_tol=_ROUNDING) for value in known)
    half_width = t_quantile(max(changed_count - 1, 1), CONFIDENCE_LEVEL) * math.sqrt(
        sum((value - mean) ** 2 for value in pseudo_values) / (count * (count - 1))
    )
    if half_width <= _ROUNDING * max(abs(centre), 1.0):
        return None
    return (
        (centre - half_width, centre + half_width)
        if signed
        else (math.exp(centre - half_width), math.exp(centre + half_width))
    )


_ROUNDING = 1e-12
"""Relative change that is attributed to rounding."""


def interval_over_blocks(full_value: float, block_values: Sequence[float | None]) -> Interval | None:
    """95 % limits of a positive figure that is a median over blocks, by its values in each block alone: Student's limits on
    logarithms, extended to `full_value` if necessary, because a disturbed block changes the median less. None if too few blocks
    have the figure."""
    interval = mean_interval([math.log(value) for value in block_values if value is not None and value > 0] or [0.0])
    if interval.low is None or interval.high is None or full_value <= 0:
        return None
    return min(math.exp(interval.low), full_value), max(math.exp(interval.high), full_value)


@lru_cache(maxsize=64)
def declares_intervals(part_type: type[Part]) -> bool:
    """Whether a part of this type, or a part within it, declares a jackknife interval."""
    return any(
        _JACKKNIFE in field.metadata or any(map(declares_intervals, _part_types_in(field.annotation)))
        for field in part_type.model_fields.values()
    )


def _part_types_in(annotation: object) -> list[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [annotation]
    return [part for inner in get_args(annotation) for part in _part_types_in(inner)]


def with_intervals(full_part: P, without_group: Sequence[Part | None]) -> P:
    """Compute the intervals that `full_part` declares. `without_group`: the same part of the analysis without each group of blocks."""
    same_parts = [other if _has_same_subject(full_part, other) else None for other in without_group]
    update: dict[str, Interval | Part | tuple[Part, ...] | None] = {}
    for name, field in type(full_part).model_fields.items():
        value = getattr(full_part, name)
        other_values = [None if other is None else getattr(other, name) for other in same_parts]
        if _JACKKNIFE in field.metadata:
            figure = name.removesuffix(SUFFIX)
            if isinstance(figure_value := getattr(full_part, figure), int | float):
                figures = [None if other is None else getattr(other, figure) for other in same_parts]
                update[name] = jackknife_interval(figure_value, figures, signed=_SIGNED in field.metadata)
        elif isinstance(value, Part):
            update[name] = with_intervals(value, [_as_part(other) for other in other_values])
        elif isinstance(value, tuple) and value and isinstance(value[0], Part):
            update[name] = tuple(
                with_intervals(part, [_matching_part(other, index, part) for other in other_values])
                for index, part in enumerate(value)
            )
    return full_part.model_copy(update=update) if update else full_part


def _as_part(value: object) -> Part | None:
    return value if isinstance(value, Part) else None


def _matching_part(parts: object, index: int, subject: Part) -> Part | None:
    """The part with the same subject: at the same index, otherwise at any index."""
    if not isinstance(parts, tuple):
        return None
    if index < len(parts) and _has_same_subject(subject, parts[index]):
        return _as_part(parts[index])
    return next((part for part in parts if _has_same_subject(subject, part)), None)


def _has_same_subject(part: Part, other: object) -> bool:
    if type(part) is not type(other):
        return False
    names = _IDENTIFYING_FIELDS & type(part).model_fields.keys()
    return all(getattr(part, name) == getattr(other, name) for name in names)


def figure_text(value: float, interval: Interval | None, format_value: Callable[[float], str]) -> str:
    """A figure with its interval, `2.1 [1.9, 2.3]`; the figure alone if it has none, or if both limits have the same digits."""
    ends = [] if interval is None else [format_value(end) for end in interval]
    return format_value(value) + (f" [{', '.join(ends)}]" if set(ends) - {format_value(value)} else "")


Findings = Mapping[str, Part | None]


def analyse_with_intervals(
    analyse: Callable[[frozenset[int], Findings], Findings], blocks: Sequence[int], kinds: Mapping[str, type[Part]]
) -> dict[str, Part | None]:
    """Run `analyse` and compute the intervals that the types of its findings declare. `analyse` receives the blocks to leave out and,
    if there are any, its findings about the whole run."""
    full_findings = dict(analyse(frozenset(), {}))
    if not any(part is not None and declares_intervals(kinds[key]) for key, part in full_findings.items()):
        return full_findings
    findings_without_groups = [analyse(group, full_findings) for group in groups_to_leave_out(blocks)]
    return {
        key: part if part is None else with_intervals(part, [findings.get(key) for findings in findings_without_groups])
        for key, part in full_findings.items()
    }
