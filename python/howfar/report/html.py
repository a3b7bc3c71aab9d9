"""The document as one HTML file for screen (light, dark, phone) and paper. It fetches nothing and has no script."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape

from howfar.report import palette
from howfar.report.document import Block, Chart, Column, Document, Table
from howfar.report.drawing import svg
from howfar.report.terminal import fact_text

LONG = 180
"""An answer of more characters is set smaller, so that what follows stays on the first screen."""

MAX_DEPTH = 6
"""Facts are nested tables; deeper values are written as text."""

_WHOLE = re.compile(r"(?:[≥≤x] )?[0-9.]+ \[[^\]]*\]|\[[^\]]*\]|[0-9.]+ %|\bx [0-9.]+")


def render(document: Document) -> str:
    """The whole page, UTF-8."""
    return _template().render(document=document, style=Markup(_style())) + "\n"


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(
        sentence=_sentence,
        kinds=_kinds,
        drawing=_drawing,
        classes=_classes,
        spans=_spans,
        fact=fact_text,
    )
    environment.tests["nested"] = lambda value: isinstance(value, Mapping)
    environment.globals.update(LONG=LONG, MAX_DEPTH=MAX_DEPTH)
    return environment.from_string((files("howfar.report") / "report.html.j2").read_text("utf-8"))


def _style() -> str:
    css = (files("howfar.report") / "style.css").read_text("utf-8")
    return f"{css}\n@media screen and (prefers-color-scheme: dark) {{\n{palette.dark_rules()}\n}}\n"


def _sentence(text: str) -> Markup:
    """Intervals in brackets, and numbers with their sign, are kept on one line."""
    return Markup(_WHOLE.sub(lambda match: f'<span class="keep">{match[0]}</span>', str(escape(text))))


def _kinds(blocks: Iterable[Block]) -> list[tuple[str, list[Block]]]:
    """Blocks with the name of their type; advice that follows advice is one list."""
    grouped = itertools.groupby(enumerate(blocks), lambda pair: (type(pair[1]).__name__, _apart(*pair)))
    return [(kind, [block for _, block in found]) for (kind, _), found in grouped]


def _apart(index: int, block: Block) -> int:
    return -1 if type(block).__name__ == "Advice" else index


def _drawing(chart: Chart) -> Markup:
    """Both drawings; empty where there is nothing to draw."""
    return Markup(svg(chart.make, chart.title, chart.name))


def _classes(table: Table) -> str:
    shaded = any(cell.share is not None for row in table.rows for cell in row)
    return " ".join(
        name for name, on in (("grid", shaded), ("main", table.main and not shaded), ("stack", table.stack)) if on
    )


def _spans(columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """The upper line of a head whose neighbours share a text: each text with the columns that it stands over. Empty where none do."""
    spans = [(head, len(list(found))) for head, found in itertools.groupby(columns, lambda column: column.head)]
    return [{"head": head, "count": count} for head, count in spans] if any(c > 1 for h, c in spans if h) else []
