"""Quantities with units, as a user types and reads them: `10ms`, `1gbit`, `64KiB`. Internally, integers of ns, bit/s and bytes.

A minute is `min` or `m`. Rates have the units of networking (1gbit = 10^9 bit/s; also `1Gbit/s`, `1Gbps`, `1g`), sizes binary or
decimal ones (KiB = 1024, kB = 1000). A bare number is refused: `--rtt 10` has meant milliseconds in one tool, microseconds in
another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

from howfar.errors import QuantityError

_DURATION_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SIZE_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_QUANTITY = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]+)\s*")
_SHARE = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*%\s*")


def _parse(text: str, units: dict[str, int], quantity: str, example: str, normalise: Callable[[str], str] = str) -> int:
    """Parse a quantity; returns it in the base unit. `normalise` maps other spellings to the unit's name in `units`. Raises
    QuantityError."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is not a {quantity}", f"Write a number with its unit, such as {example}.")
    number, unit = match.groups()
    if normalise(unit) not in units:
        raise QuantityError(
            f"{text!r}: no {quantity} has the unit {unit!r}", f"Known units: {', '.join(units)}; for example {example}."
        )
    try:
        value = Decimal(number) * units[normalise(unit)]
    except ArithmeticError as error:  # an exponent beyond what Decimal holds
        raise QuantityError(f"{text!r} is too large for a {quantity}", f"Write, for example, {example}.") from error
    if value < 0:
        raise QuantityError(f"{text!r}: a {quantity} is never negative", f"Write, for example, {example}.")
    if value > 2**62:
        raise QuantityError(f"{text!r} is too large for a {quantity}", f"Write, for example, {example}.")
    return int(value.to_integral_value())


def parse_duration_ns(text: str) -> int:
    """`0.2ms` -> 200000, and `0`, which needs no unit. Raises QuantityError."""
    if text.strip() == "0":
        return 0
    return _parse(text, _DURATION_UNITS, "duration", "10ms")


def parse_rate_bps(text: str) -> int:
    """`1gbit`, `1Gbit/s`, `1Gbps` or `1g` -> 10**9 bit/s. Raises QuantityError."""
    value = _parse(text, _RATE_UNITS, "rate", "1gbit (in bits: 1 MB/s is 8mbit)", _normal_rate_unit)
    if value == 0:
        raise QuantityError(f"{text!r}: a rate of zero carries nothing", "Write, for example, 1gbit.")
    return value


def _normal_rate_unit(unit: str) -> str:
    """Normalise a unit of a rate, as in `gbit`. A unit with a capital B means bytes; it is returned unchanged, as no unit of a
    rate."""
    bare = unit.lower().removesuffix("/s").removesuffix("ps")
    if "B" in unit and "bit" not in bare:
        return unit
    return f"{bare.removesuffix('b')}bit" if bare in ("b", "k", "m", "g", "kb", "mb", "gb") else bare


def parse_size_bytes(text: str) -> int:
    """`64KiB` -> 65536. Raises QuantityError."""
    return _parse(text, _SIZE_UNITS, "size", "64KiB")


def parse_share(text: str) -> float:
    """`5%` -> 0.05. Raises QuantityError."""
    match = _SHARE.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is not a share", "Write a number with a percent sign, such as 5%.")
    value = float(match.group(1)) / 100
    if not 0 <= value <= 1:
        raise QuantityError(f"{text!r}: a share lies between 0% and 100%", "Write, for example, 5%.")
    return value


def _shortest(value: float, units: list[tuple[float, str]]) -> str:
    for factor, unit in units:
        if value >= factor:
            return f"{value / factor:.4g}{unit}"
    factor, unit = units[-1]
    return f"{value / factor:.4g}{unit}"


def format_duration_ns(value: float) -> str:
    """200000 -> `0.2ms`; always with a unit, even for 0."""
    for factor, unit, limit in ((1, "ns", 1e3), (1e3, "us", 1e5), (1e6, "ms", 1e9)):
        if value < limit:
            return f"{value / factor:.4g}{unit}"
    return f"{value / 1e9:.4g}s"


def format_rate_bps(value: float) -> str:
    """10**9 -> `1gbit`."""
    return _shortest(value, [(1e9, "gbit"), (1e6, "mbit"), (1e3, "kbit"), (1, "bit")])


def spoken_rate(bps: float) -> str:
    """10**9 -> `1 Gb/s`, for sentences."""
    return f"{bps / 1e9:.3g} Gb/s" if bps >= 1e9 else f"{bps / 1e6:.3g} Mb/s"


def spoken_span(seconds: float) -> str:
    """How long something took, for sentences: `55 s`, `12 min`, `2.5 h`."""
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if round(seconds / 60) < 100 else f"{seconds / 3600:.1f} h"


def format_size_bytes(value: float) -> str:
    """65536 -> `64KiB`; multiples of 1000 in decimal units: `1MB`."""
    if value and value % 1000 == 0:
        return _shortest(value, [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")])
    return _shortest(value, [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")])


def format_share(value: float) -> str:
    """0.05 -> `5%`."""
    return f"{value * 100:.4g}%"


def format_utc(unix_ns: int) -> str:
    """A moment, to the minute: `2026-11-28 14:05 UTC`."""
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"


def counted(count: float, noun: str, form: str = "") -> str:
    """`1 trial`, `12 trials`. `form`: format of the number, such as `,`."""
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"
