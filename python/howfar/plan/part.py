"""The ground of a plan's types: frozen and closed, and factors of one level or more."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from howfar.plan.quantities import refuse


class Part(BaseModel):
    """Frozen and closed: a misspelt key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _levels(value: Any) -> Any:
    """One level may be written without a list. Levels are distinct, in the order written."""
    levels = list(value) if isinstance(value, list | tuple) else [value]
    if not levels:
        raise refuse("an empty list: a factor needs at least one level")
    for index, level in enumerate(levels):
        if level in levels[:index]:
            raise refuse(f"{level!r} is there twice; a factor's levels are distinct")
    return tuple(levels)


OneOrMore = BeforeValidator(_levels)
