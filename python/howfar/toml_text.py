"""Parses TOML of a user's file, with a limit on its depth. Errors have the line of the mistake."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_DEPTH = 32
"""Maximum depth of nested tables and arrays. Files that howfar uses have at most four levels."""

TomlTable = dict[str, Any]
"""A parsed table of TOML."""

_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class MalformedToml(ValueError):
    """The text is not TOML. The message describes the mistake, without its position."""

    def __init__(self, what: str, line: int, column: int | None = None) -> None:
        super().__init__(what)
        self.line = line
        self.column = column


def parse_toml(text: str) -> TomlTable:
    """Parse a complete text. Raises MalformedToml."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        position = _POSITION.search(message)
        line, column = position.groups() if position else (None, None)
        mistake = _POSITION.sub("", message)
        raise MalformedToml(
            mistake[:1].lower() + mistake[1:],
            int(line) if line else max(text.count("\n") + (not text.endswith("\n")), 1),
            int(column) if column else None,
        ) from error
    except RecursionError:
        raise _too_deep_error(text) from None
    if _is_deep(table):
        raise _too_deep_error(text)
    return table


def _is_deep(table: TomlTable) -> bool:
    level: list[Any] = [table]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    return any(isinstance(value, dict | list) for value in level)


def _too_deep_error(text: str) -> MalformedToml:
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        deepest = depth + line.count(".")
        for character in line:
            depth += (character in "[{") - (character in "]}")
            deepest = max(deepest, depth)
        if deepest > MAX_DEPTH:
            return MalformedToml(f"more than {MAX_DEPTH} levels", number)
    return MalformedToml(f"more than {MAX_DEPTH} levels", 1)
