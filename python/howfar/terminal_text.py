"""Removes control characters, which act on a terminal, from text from outside, such as a server's error or a file's name."""

from __future__ import annotations

import re
import unicodedata

_REPLACEMENT = "?"
_UNUSUAL = re.compile(r"[^\n\x20-\x7e]")


def printable(text: str) -> str:
    """Replace each control character except line ends by `?`: these set colours, a terminal's title, or the writing direction."""
    return _UNUSUAL.sub(lambda match: match[0] if _is_printable(match[0]) else _REPLACEMENT, text)


def in_utf8(text: str) -> str:
    """Decode as UTF-8 the bytes of an argument or variable that the locale could not decode. Raises UnicodeError if they are not
    UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8")


def one_line(text: str) -> str:
    """Make a text printable and join its lines: after a line end, a text from outside could look like a line of howfar's own."""
    return " ".join(printable(text).split("\n"))


def printable_json(text: str) -> str:
    """Escape the same characters in JSON text, where they occur only in strings."""
    return _UNUSUAL.sub(lambda match: match[0] if _is_printable(match[0]) else _escaped(match[0]), text)


def _is_printable(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
