"""Findings as data, and the templates that make text of them, so that JSON and tests use ids and figures. The modules that
know the figures choose the templates; only `fill` puts figures into them."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any

from pydantic import Field

from howfar.paths import PATHS
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, noise_floor_text
from howfar.units import format_duration_ns, spoken_rate

Texts = Mapping[str, str]
"""Templates by id of a finding; in a sentence of several, `ID, next` is the template of a finding that follows one with the same id,
and `ID, after OTHER` of one that follows the id `OTHER`. Fields are `{subject}`, `{estimate}` and the finding's parameters, in the
formats of `_Formatter`."""


class Quantity(StrEnum):
    """What an estimate is of; the part after the last hyphen is its unit, a ratio, a share or a count."""

    THROUGHPUT = "throughput-ratio"
    CPU = "cpu-ratio"
    ADDED_P50 = "added-p50-us"
    CONNECT = "connect-us"
    CLIENTS = "clients-count"
    ANSWERED = "answered-share"
    CAPACITY = "capacity-per-s"
    P50 = "p50-ms"
    P99 = "p99-ms"
    COMMITS = "commits-per-s"
    ROUND_TRIPS = "round-trips-count"
    UNPROTECTED = "unprotected-commits-count"
    LOST = "lost-per-crash-count"
    STALL = "stall-s"
    REJOIN = "rejoin-s"
    PAGE_CPU = "page-cpu-ms"
    ADDED_PAGE_TIME = "added-page-ms"


class Finding(Part):
    """One thing that a run shows."""

    id: str
    subject: str = ""
    """The arm or the level of a factor that it is about."""
    metric: Quantity | None = None
    """What `estimate` is of. None: there is no estimate."""
    estimate: Estimate | None = None
    verdict: Resolution | None = None
    """What the interval of a ratio shows. None: nothing is compared."""
    parameters: dict[str, str | int | float] = Field(default_factory=dict)


def describe(finding: Finding, texts: Texts) -> str:
    """The template of a finding with its figures."""
    return fill(texts[finding.id], subject=finding.subject, estimate=finding.estimate, **finding.parameters)


def note(template: str, **figures: Any) -> str:
    """A sentence: a template with its figures, a capital letter and a full stop."""
    return f"{capital(fill(template, **figures))}."


def fill(template: str, **figures: Any) -> str:
    """A template with its figures in the formats of `_Formatter`."""
    return _Formatter().format(template, **figures)


def join_clauses(clauses: Iterable[str]) -> str:
    """A sentence of clauses: `A; b; c.` Empty: no clauses."""
    return f"{capital(text)}." if (text := "; ".join(clauses)) else ""


def capital(text: str) -> str:
    """The text with a capital first letter. Names stay as they are: those of paths, such as `tcp`, and `synchronous_commit`."""
    first_word = text.partition(" ")[0].strip(",:;.")
    return text if "_" in first_word or first_word in PATHS else text[:1].upper() + text[1:]


def join(names: Sequence[str], last: str = "and") -> str:
    """Nothing, `a`, `a and b`, `a, b and c`. `last`: the word before the last name."""
    return f" {last} ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


class _Formatter(string.Formatter):
    """Formats of figures in a sentence, which has no intervals.

    Of a ratio: `slower` (`2.7 times slower`, `16 % faster`), `fewer` of a number, `more` of a quantity. Of others: `n` two significant
    digits or whole numbers from 100 on, `exact` four significant digits, `table` the digits of a table, `count` these without decimals
    of a whole number, `share` per cent, `upper` per cent of an upper limit, rounded up, `floor` a noise floor, `ms` and `us` with
    their unit, `time` nanoseconds as a duration, `rate` bits per second, `of round-trip` a number of things, `of crash crashes` with a
    plural that is not regular. `{flag:?perhaps }` is that text if the flag is set, else nothing. NaN and infinity are `unknown` in
    every format.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        number = value.value if isinstance(value, Estimate) else value
        if format_spec.startswith("?"):
            return format_spec[1:] if value else ""
        if isinstance(number, float) and not math.isfinite(number):
            return "unknown"
        if format_spec.startswith("of "):
            noun, *plural = (word.replace("-", " ") for word in format_spec.removeprefix("of ").split())
            return f"{number:,} {noun if number == 1 else plural[0] if plural else noun + 's'}"
        form = _FORMATS.get(format_spec)
        return form(number) if form is not None else str(super().format_field(number, format_spec))


_MIN_CHANGE = 0.0005
"""Minimum difference of a ratio from 1 that is stated."""
_NOTHING = 1e-12
"""A ratio below this has no factor that a reader could use."""


def _change(ratio: float, less: str, more: str, same: str, by_factor: str = "") -> str:
    """A ratio in words: a factor from 2 on, else per cent. `by_factor`: the word for more after a factor, where "2.1 times more" could
    mean 3.1 times."""
    if abs(ratio - 1) < _MIN_CHANGE:
        return same
    if abs(ratio) < _NOTHING:
        return f"100 % {less}"
    factor, word = (1 / ratio, less) if ratio < 1 else (ratio, more)
    if factor >= 2:
        word = by_factor if by_factor and ratio > 1 else word
        return f"{factor:.{1 if factor < 10 else 0}f} times {word}"
    return f"{_number(abs(ratio - 1) * 100)} % {word}"


def _number(value: float) -> str:
    """`0.43`, `8.8`, `12,000`: as many digits as a sentence needs."""
    if isinstance(value, int) or abs(value) >= 99.5:
        return f"{round(value):,}"
    return _significant(value, 2)


def _significant(value: float, digits: int) -> str:
    """The value with so many significant digits and no exponent, thousands grouped."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def table_number(value: float) -> str:
    """Three to four significant digits, thousands grouped: `27,862`, `34.9`, `2.08`, `0.0412`."""
    size = abs(value)
    if size >= 1 or size == 0:
        return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"
    return _significant(value, 3)


_FORMATS = {
    "slower": lambda ratio: _change(ratio, "slower", "faster", "as fast"),
    "fewer": lambda ratio: _change(ratio, "fewer", "more", "as many", "as many"),
    "more": lambda ratio: _change(ratio, "less", "more", "as much", "as much"),
    "n": _number,
    "exact": lambda value: _significant(value, 4),
    "table": table_number,
    "count": lambda value: f"{value:,.0f}" if value == int(value) else table_number(value),
    "upper": lambda share: f"{math.ceil(round(share * 100, 6))} %",
    "floor": noise_floor_text,
    "share": lambda share: f"{_number(share * 100)} %",
    "ms": lambda ms: f"{_number(ms)} ms",
    "us": lambda us: f"{_number(us)} µs",
    "time": lambda ns: re.sub(r"(?<=\d)(?=[a-z])", " ", format_duration_ns(ns)).replace("us", "µs"),
    "rate": spoken_rate,
}
