"""Formats of the figures in sentences about violations, and what reads the figures from such sentences again."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any

from howfar.units import format_duration_ns, parse_duration_ns

Value = int | float | str
UNKNOWN = "unknown"
_TEXT = r"((?:(?!; ).)*?)"
"""Words of one sentence."""
_DURATION = r"-?[\d.e+-]+(?:ns|us|ms|s)"


class Formatter(string.Formatter):
    """Formats of figures in a sentence, besides Python's own.

    `duration` is nanoseconds as a duration, `ms` nanoseconds as milliseconds, `times` how often (`once`, `3 times`), `tls` the version
    of TLS or its absence, `word` a text without spaces, `texts` several, `one key was|keys were` a number with the words for one and
    for others, `before|after` one of these words.
    """

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), UNKNOWN)

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "tls":
            return f"encrypted ({value})" if value else "in plain text"
        if isinstance(value, str):
            return value
        if format_spec == "duration":
            return format_duration_ns(value)
        if format_spec == "ms":
            return f"{value / 1e6:.3f} ms"
        if format_spec == "times":
            return "once" if value == 1 else f"{value} times"
        if format_spec.startswith("one "):
            one, _, others = format_spec.removeprefix("one ").partition("|")
            return f"{value} {one if value == 1 else others}"
        try:
            return str(super().format_field(value, format_spec))
        except ValueError:  # a file may hold any number
            return str(value)


def read_field(name: str, form: str, conversion: str | None) -> tuple[str, Callable[[str], Value]]:
    """The expression of a field, with one group that is its value, and what converts the text of this group."""
    if conversion == "r":
        return "['\"](.*?)['\"]", str
    if name == "subject":
        return r"([\w.@-]+)", str
    if form.startswith("one "):
        return rf"(\d+) (?:{form.removeprefix('one ')})", int
    if "|" in form:
        return f"({form})", str
    fixed: Mapping[str, tuple[str, Callable[[str], Value]]] = {
        "word": (r"(\S+)", str),
        "texts": (r"(.*?)", str),
        "d": (r"(-?\d+|unknown|None)", _number_or_text),
        "duration": (f"({_DURATION})", parse_duration_ns),
        "ms": (r"([\d.]+) ms", lambda ms: round(float(ms) * 1e6)),
        "times": (r"(once|\d+ times)", lambda times: 1 if times == "once" else int(times.split()[0])),
        "tls": (r"(encrypted \(\S*?\)|in plain text)", lambda words: words[11:-1] if words.startswith("encr") else ""),
        ".0%": (r"(\d+)%", lambda share: int(share) / 100),
        ".0f": (r"(-?\d+)", int),
        ".1f": (r"(-?[\d.]+)", float),
        "g": (r"([\d.]+)", float),
    }
    return fixed.get(form, (_TEXT, str))


def _number_or_text(text: str) -> Value:
    return int(text) if text.lstrip("-").isdigit() else "unknown"
