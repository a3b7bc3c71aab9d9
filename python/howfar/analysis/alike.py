"""Things that differ in one factor only, put together: curves are cells that differ in connections, pairs in what is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from howfar.plan.factors import ORDINARY
from howfar.store.records import FactorValue

T = TypeVar("T")
Rest = tuple[tuple[str, FactorValue], ...]


def rest_of(factors: Mapping[str, FactorValue], without: str) -> Rest:
    """All factors but one, comparable; what is not said is ordinary."""
    return tuple(sorted((name, level) for name, level in {**ORDINARY, **factors}.items() if name != without))


def alike(things: Sequence[T], factors: Callable[[T], Mapping[str, FactorValue]], without: str) -> list[list[T]]:
    """Groups that differ in nothing but `without`, in the order of their first members."""
    found: dict[Rest, list[T]] = {}
    for thing in things:
        found.setdefault(rest_of(factors(thing), without), []).append(thing)
    return list(found.values())
