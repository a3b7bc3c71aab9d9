"""The quantities of a plan as pydantic types: text with a unit in TOML, integers of ns and bit/s in the program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from howfar.errors import QuantityError, UsageError
from howfar.units import (
    format_duration_ns,
    format_rate_bps,
    format_share,
    format_size_bytes,
    parse_duration_ns,
    parse_rate_bps,
    parse_share,
    parse_size_bytes,
)

MS_NS = 1_000_000
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
MAX_BUDGET_NS = 7 * 24 * HOUR_NS

STORED = {"stored": True}
"""Validation context of a plan read back from a run file: quantities are integers in base units."""


def refusal(message: str, *at: str) -> PydanticCustomError:
    """The error for a refused table of a plan. `at`: the key within the table that the message is about, if any."""
    return PydanticCustomError("howfar", "{reason}", {"reason": message, "at": at})


def _quantity(
    parse: Callable[[str], float],
    format_value: Callable[[float], str],
    low: float,
    high: float,
    why_low: str,
    why_high: str,
) -> BeforeValidator:
    """A validator from text with a unit to a number in [low, high]."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        stored = bool(info.context and info.context.get("stored"))
        if stored and isinstance(value, int | float) and not isinstance(value, bool):
            number: float = value
        elif isinstance(value, str):
            try:
                number = parse(value)
            except QuantityError as error:
                raise refusal(f"{error.message}. {error.advice}") from error
        else:
            raise refusal(f"{value!r} has no unit. Write text such as {format_value(low)!r} to {format_value(high)!r}")
        if number < low:
            raise refusal(f"{value!r} is less than {format_value(low)}: {why_low}")
        if number > high:
            raise refusal(f"{value!r} is more than {format_value(high)}: {why_high}")
        return number

    return BeforeValidator(validate)


duration = partial(_quantity, parse_duration_ns, format_duration_ns)
"""A validator of durations between two limits, with the reasons why they are neither shorter nor longer."""

RttNs = Annotated[
    int,
    duration(
        0,
        10 * SECOND_NS,
        "a time is never negative",
        "no link on Earth is that long, and TCP gives up before a connection is made",
    ),
]
RateBps = Annotated[
    int,
    _quantity(
        parse_rate_bps,
        format_rate_bps,
        1e6,
        1e11,
        "the segments of one round trip would take longer than a trial",
        "no machine that runs both hosts can carry it, so the link would not be what limits",
    ),
]
RowBytes = Annotated[
    int,
    _quantity(
        parse_size_bytes,
        format_size_bytes,
        1,
        1e6,
        "an empty row is not sent",
        "clusters and packets have limits of their own beyond that",
    ),
]
WarmupNs = Annotated[
    int,
    duration(
        0,
        600 * SECOND_NS,
        "a time is never negative",
        "the data are in memory before a trial starts; a longer warm-up warms nothing",
    ),
]
MeasureNs = Annotated[
    int,
    duration(
        200 * MS_NS,
        HOUR_NS,
        "starting and stopping would weigh more than the load",
        "many short blocks tell more than a few long ones",
    ),
]
BudgetNs = Annotated[
    int,
    duration(SECOND_NS, MAX_BUDGET_NS, "not one trial fits", "a machine changes more in a week than a path does"),
]
HalfWidth = Annotated[
    float,
    _quantity(
        parse_share,
        format_share,
        0.001,
        0.5,
        "no machine is steady enough; the run would always end at its time budget",
        "an interval that wide decides nothing",
    ),
]


def read_option(option: str, text: str, kind: Any, command: str) -> Any:
    """A quantity typed on the command line, by one of the types above. Raises UsageError."""
    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(f"{option} {text}: {reason}", f"`{command} --help` explains {option}.") from error


class PlanPart(BaseModel):
    """A frozen, closed part of a plan: a misspelt key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _distinct_levels(value: Any) -> Any:
    """The levels in the order in which they are written. They must be distinct. A single one may be written without a list."""
    levels = list(value) if isinstance(value, list | tuple) else [value]
    if not levels:
        raise refusal("an empty list: a factor needs at least one level")
    for index, level in enumerate(levels):
        if level in levels[:index]:
            raise refusal(f"{level!r} is listed twice; the levels of a factor must be distinct")
    return tuple(levels)


OneOrMore = BeforeValidator(_distinct_levels)


RTT_OFF_MAX_NS = 30_000
RTT_OFF_MAX_SHARE = 0.03
"""Relative error that the emulator can keep on a small virtual machine. Beyond it, the measured RTT does not count as the requested
one."""


def rtt_tolerance_ns(rtt_ns: float) -> float:
    """Maximum difference between the unloaded RTT and the requested one: the larger of the two limits."""
    return max(RTT_OFF_MAX_NS, RTT_OFF_MAX_SHARE * rtt_ns)


RTT_VOID_NS, RTT_VOID_SHARE = 100_000, 0.03
"""An unloaded RTT that deviates by more than the larger of these makes a trial void. A smaller deviation (see `rtt_tolerance_ns`) is
accepted with a warning that shows the measured RTT: on a busy machine both ends take longer to wake up, on every path."""


def rtt_void_ns(rtt_ns: float) -> float:
    """Difference of the unloaded RTT beyond which a trial is void: the larger of the two limits."""
    return max(RTT_VOID_NS, RTT_VOID_SHARE * rtt_ns)
