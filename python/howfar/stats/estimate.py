"""A figure with its interval, and what every part of a summary is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Frozen and closed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Estimate(Part):
    """A value with its 95 % confidence interval; `low` and `high` are None where too few trials allow one."""

    value: float
    low: float | None
    high: float | None
