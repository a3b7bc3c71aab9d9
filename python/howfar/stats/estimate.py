"""A figure with its interval, and the base of every part of a summary."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

IntervalMethod = Literal["given", "mean", "rank", "Welch"]
"""How an interval was computed: `mean` with Student's limits, `rank` (Hodges-Lehmann) with signed-rank limits, two means with Welch's,
or in another way (`given`)."""


class Part(BaseModel):
    """A frozen, closed part of a summary."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)


class Described(Part):
    """A part whose docstrings are the descriptions in its JSON Schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Estimate(Part):
    """A value with its 95 % confidence interval; `low` and `high` are None where too few trials allow one."""

    value: float
    low: float | None
    high: float | None
    n: int | None = Field(default=None, exclude=True)
    """Size of its sample: blocks for a ratio; of two samples, that of the smaller. None if it is not from a sample. Like `method`,
    not in the JSON."""
    method: IntervalMethod = Field(default="given", exclude=True)
    points: tuple[float, ...] = Field(default=(), exclude=True)
    """The values of a sample that is too small for an interval; they are shown in its place."""

    def scaled(self, factor: float) -> Estimate:
        """The estimate multiplied by a positive factor: the same figure in another unit, or a known share of it."""
        low, high = (None if limit is None else factor * limit for limit in (self.low, self.high))
        points = tuple(factor * point for point in self.points)
        return self.model_copy(update={"value": factor * self.value, "low": low, "high": high, "points": points})
