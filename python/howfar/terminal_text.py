"""Text from outside, such as a server's error or a file's name, without control characters, which act on a terminal."""

from __future__ import annotations

import re
import unicodedata

_REPLACEMENT = "?"
_UNUSUAL = re.compile(r"[^\n\x20-\x7e]")


def printable(text: str) -> str:
    """The text with `?` for each control character except line ends: they set colours, a terminal's title, the writing direction."""
    return _UNUSUAL.sub(lambda match: match[0] if _is_shown(match[0]) else _REPLACEMENT, text)


def in_utf8(text: str) -> str:
    """Text with arguments or variables of which the locale could not decode some bytes, with these read as UTF-8. Raises UnicodeError
    if they are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8")


def one_line(text: str) -> str:
    """The printable text on one line: after a line end, a text from outside could look like a line of howfar's own."""
    return " ".join(printable(text).split("\n"))


def printable_json(text: str) -> str:
    """JSON text with the same characters escaped; they occur only in strings."""
    return _UNUSUAL.sub(lambda match: match[0] if _is_shown(match[0]) else _escaped(match[0]), text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
