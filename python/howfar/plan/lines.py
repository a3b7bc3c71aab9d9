"""Find the line of a key in a TOML text. The parser of the standard library keeps no positions; this reads tables and keys only.

Good enough for messages: a key inside an inline table or a multi-line string is reported at the line of its parent.
"""

from __future__ import annotations

import re

_TABLE = re.compile(r"\s*\[{1,2}\s*([A-Za-z0-9_.\-\s]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*=")


def line_of(text: str, key: tuple[str, ...], quick: bool = False) -> int:
    """Line (from 1) of `key`, else of its nearest parent, else 1. With `quick`, `[quick]` is looked in first."""
    found = _positions(text)
    prefixes: list[tuple[str, ...]] = [("quick",), ()] if quick else [()]
    for length in range(len(key), 0, -1):
        for prefix in prefixes:
            line = found.get(prefix + key[:length])
            if line is not None:
                return line
    return 1


def _positions(text: str) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header = _TABLE.match(line)
        if header:
            table = tuple(part.strip() for part in header.group(1).split("."))
            key: tuple[str, ...] = ()
        else:
            match = _KEY.match(line)
            if match is None:
                continue
            key = tuple(match.group(1).split("."))
        for length in range(1, len(table + key) + 1):
            found.setdefault((table + key)[:length], number)
    return found
