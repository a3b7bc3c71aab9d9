"""A custom workload from TOML. Names are those of the engine's `Custom`; times and sizes carry units. Pure: text in.

Every error names the file, the line and the key.
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from typing import Any

from pydantic import ValidationError

from howfar.engine.messages import Custom
from howfar.errors import PlanError, QuantityError
from howfar.units import counted, parse_duration_ns, parse_share, parse_size_bytes

MAX_BYTES = 4_000_000
ADVICE = "docs/load.md has the format; `howfar load --workload orders …` runs the included example."
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\s]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+)\s*=")

Loc = tuple[str | int, ...]


def examples() -> tuple[str, ...]:
    """Names of the included workloads."""
    folder = resources.files("howfar.load") / "examples"
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def example(name: str) -> str:
    return (resources.files("howfar.load") / "examples" / f"{name}.toml").read_text(encoding="utf-8")


def parse_workload(source: str, text: str) -> Custom:
    """Raises PlanError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _AT.search(str(error))
        line = at.group(1) if at and at.group(1) else str(max(text.count("\n"), 1))
        raise PlanError(f"{source}:{line}: malformed TOML: {_AT.sub('', str(error))}", ADVICE) from error
    _units(source, text, table, ())
    try:
        found = Custom.model_validate({"kind": "custom", **table})
    except ValidationError as error:
        problem = error.errors()[0]
        loc = tuple(problem["loc"])
        if problem["type"] == "extra_forbidden":
            reason = "unknown key"
        elif problem["type"] == "missing":
            reason = "is missing"
        else:
            reason = problem["msg"].removeprefix("Value error, ")
        raise PlanError(f"{source}:{line_of(text, loc)}: {_shown(loc)}: {reason}", ADVICE) from error
    _count_values(source, text, found)
    return found


def _count_values(source: str, text: str, workload: Custom) -> None:
    """As many `?` as parameters in each statement. Raises PlanError."""
    for index, statement in enumerate(workload.statements):
        marks, given = _marks(statement.sql), len(statement.parameters)
        if marks != given:
            loc: Loc = ("statements", index, "sql")
            many = counted(given, "parameter")
            raise PlanError(
                f"{source}:{line_of(text, loc)}: {_shown(loc)}: statement {statement.name} has {marks} `?` and {many}",
                "Give one parameter for each `?` outside quotes, in order.",
            )


def _marks(sql: str) -> int:
    """`?` outside of quotes, as the engine counts them."""
    quote, marks = "", 0
    for character in sql:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character == "?":
            marks += 1
    return marks


def _shown(loc: Loc) -> str:
    """`statements[1].sql`; items are counted from 1."""
    text = ""
    for part in loc:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "the workload"


def _units(source: str, text: str, table: Any, loc: Loc) -> None:
    """Convert values with units to what `Custom` expects."""
    if isinstance(table, list):
        for index, item in enumerate(table):
            _units(source, text, item, (*loc, index))
        return
    if not isinstance(table, dict):
        return
    for key in list(table):
        here = (*loc, key)
        value = table[key]
        try:
            if key == "think":
                if not isinstance(value, str):
                    raise QuantityError(f"{value!r} has no unit", 'Write text such as "5ms".')
                table["think_ns"] = parse_duration_ns(table.pop(key))
            elif key == "length" and isinstance(value, str):
                table[key] = parse_size_bytes(value)
            elif key == "compressible" and isinstance(value, str):
                table[key] = parse_share(value)
            elif key == "distribution" and isinstance(value, str):
                table[key] = {"kind": value}
            else:
                _units(source, text, value, here)
        except QuantityError as error:
            raise PlanError(f"{source}:{line_of(text, here)}: {_shown(here)}: {error.message}", error.advice) from error


def line_of(text: str, loc: Loc) -> int:
    """Line (from 1) of a key, else of its nearest parent, else 1; in an inline table, the parent's line."""
    found = _positions(text)
    for length in range(len(loc), 0, -1):
        line = found.get(tuple(loc[:length]))
        if line is not None:
            return line
    return 1


def _positions(text: str) -> dict[Loc, int]:
    found: dict[Loc, int] = {}
    counts: dict[Loc, int] = {}
    table: Loc = ()
    within = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not within:
            if header := _HEADER.match(line):
                names = tuple(name.strip() for name in header.group(2).split("."))
                table = _entered(names, counts, header.group(1) == "[[")
                for length in range(1, len(table) + 1):
                    found.setdefault(table[:length], number)
            elif key := _KEY.match(line):
                found.setdefault((*table, key.group(1)), number)
                if key.group(1) == "think":
                    found.setdefault((*table, "think_ns"), number)
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2 and within in ("", quotes):
                within = "" if within else quotes
    return found


def _entered(names: tuple[str, ...], counts: dict[Loc, int], item: bool) -> Loc:
    """The path of `[a.b]` or `[[a.b]]`, with the number of the item in each array of tables."""
    path: Loc = ()
    for position, name in enumerate(names):
        path = (*path, name)
        if item and position == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path
