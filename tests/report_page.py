"""`docs/report-json.md`: the fields of a report's JSON, from its schema and from the docstrings of the types.

`HOWFAR_GOLDEN=write pytest tests/unit/test_report_golden.py` writes the page again.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from howfar.stats.estimate import Part

Schema = Mapping[str, Any]
MAX_WIDTH = 140

INTRODUCTION = """\
# The JSON of a report

What does `howfar report RUN --json` contain? One object with these fields; the sections below are its parts.
`schema/report.json` is the same as a JSON Schema. A field that exists keeps its name and meaning; new fields may be
added. `report_version` is {version} and rises if a meaning changes. `null` is unknown or not applicable. The unit of a
time is in its name, `qps` are operations per second, and intervals have 95 % confidence. This page is generated.
"""


def report_page(schema: Schema) -> str:
    """The page as Markdown: the report's own fields, then a section for each type."""
    meanings = {kind.__name__: field_docstrings(kind) for kind in _subclasses(Part)}
    lines = [*INTRODUCTION.format(version=schema["properties"]["report_version"]["const"]).splitlines(), ""]
    lines += _fields(schema, meanings["Summary"])
    for name, kind in sorted(schema["$defs"].items()):
        lines += ["", f"## {name}", ""]
        if description := kind.get("description"):
            lines += [*_wrap(description), ""]
        lines += _wrap(_values(kind)) if "enum" in kind else _fields(kind, meanings.get(name, {}))
    return "\n".join(lines) + "\n"


def field_docstrings(kind: type[Part]) -> dict[str, str]:
    """The docstring below each field, also of inherited fields, by the field's name in JSON."""
    docstrings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, Part):
            continue
        try:
            source = inspect.getsource(base)
        except OSError:  # a type made at run time
            continue
        definition = ast.parse(textwrap.dedent(source)).body[0]
        assert isinstance(definition, ast.ClassDef), "the source of a class is its definition"
        for field, below in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                name = field.target.id
                docstrings[kind.model_fields[name].serialization_alias or name] = ast.literal_eval(below.value)
    return docstrings


def _subclasses(kind: type[Part]) -> Iterator[type[Part]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _fields(kind: Schema, meanings: Mapping[str, str]) -> Iterator[str]:
    """One item of a list for each field: `- `name` (values): meaning`."""
    for name, field in kind["properties"].items():
        meaning = field.get("description") or meanings.get(name, "")
        item = f"- `{name}` ({_values(field)}){': ' if meaning else ''}{meaning}"
        yield from _wrap(item, "  ")


def _wrap(text: str, indent: str = "") -> list[str]:
    """Lines of the text, in which `None` is the `null` of JSON."""
    words = re.sub(r"\bNone\b", "null", " ".join(text.split()))
    return textwrap.wrap(words, MAX_WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _values(field: Schema) -> str:
    """What a field may contain: `number or null`, a link to a part, `list of` these, or its only values."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_values(option) for option in field["anyOf"]))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "prefixItems" in field:
        return f"[{', '.join(_values(item) for item in field['prefixItems'])}]"
    if "items" in field:
        return f"list of {_values(field['items'])}"
    values = field.get("additionalProperties")
    return f"object of {_values(values)}" if isinstance(values, Mapping) else str(field.get("type", "any"))
