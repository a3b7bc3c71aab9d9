"""A document as one HTML page, and its charts as SVG."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files

import jinja2
from markupsafe import Markup, escape

from howfar.findings import fill
from howfar.report import palette
from howfar.report.charts import Drawable, VegaLite, plain
from howfar.report.document import (
    Block,
    Chart,
    Column,
    Details,
    Document,
    Table,
    remove_control_characters,
    split_blocks,
)
from howfar.report.drawing import INSTALL_ADVICE, NOT_DRAWN, can_draw
from howfar.report.terminal import fact_text
from howfar.report.texts import SCREEN, SEPARATOR
from howfar.terminal_text import one_line

WIDE_PX, NARROW_PX = 880, 220
"""Width of the plotting area in pixels, without labels and axes."""

VEGA_LITE = "6.4"
"""Version of Vega-Lite that this major version of Altair writes, in vl-convert's notation."""


def _lines(text: str) -> str:
    """Lines of a label in a chart, each without control characters."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def _apply_style(chart: Drawable, width: int) -> VegaLite:
    font_size = 11 if width == NARROW_PX else 13
    config = {
        "font": "sans-serif",
        "background": "transparent",
        "padding": {"left": 14, "right": 8, "top": 4, "bottom": 4},
        "view": {"stroke": None, "continuousWidth": 300, "continuousHeight": 300},
        "axis": {
            "labelColor": palette.MUTED,
            "titleColor": palette.INK,
            "gridColor": palette.GRID,
            "domainColor": palette.GRID,
            "tickColor": palette.GRID,
            "labelFontSize": font_size,
            "titleFontSize": font_size,
            "titleFontWeight": "normal",
            "titlePadding": 8,
        },
        "axisY": {"labelColor": palette.INK, "labelFontSize": font_size},
        "title": {
            "color": palette.INK,
            "subtitleColor": palette.MUTED,
            "fontSize": font_size,
            "subtitleFontSize": font_size - 1,
            "fontWeight": "bold",
        },
        "legend": {"labelColor": palette.INK, "labelFontSize": font_size, "symbolSize": 90, "columnPadding": 24},
    }
    # vl-convert aborts at some control characters.
    return {**remove_control_characters(plain(chart), _lines), "config": config}


def _make_accessible(svg: str, title: str, kind: str, name: str) -> str:
    """Make a drawing scale with the page, give it a name for screen readers, and make its ids unique among the charts of a page."""
    label = html.escape(title, quote=True)
    svg = _shrink(svg)
    size = re.search(r'viewBox="0 0 ([0-9.]+) ', svg)
    assert size is not None, "vl-convert writes a viewBox"
    head = f'<svg class="{kind}" role="img" aria-label="{label}" font-family="sans-serif" style="max-width:{float(size[1]):.0f}px"'
    svg = re.sub(
        r'<svg xmlns="[^"]*" xmlns:xlink="[^"]*" version="1.1" width="[0-9.]+" height="[0-9.]+"',
        head,
        svg,
        count=1,
    )
    svg = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-{kind}-", svg)
    return svg.replace(">", f"><title>{label}</title>", 1)


_REDUNDANT_ATTRIBUTES = re.compile(
    r' (?:aria-[a-z]+|pointer-events|stroke-miterlimit)="[^"]*"| role="graphics-[a-z]+"| class="[a-z -]*"'
    r'| opacity="1"| stroke-width="1"| transform="translate\(0,0\)"| font-weight="normal"| display="none"'
)
"""Attributes that vl-convert writes but a static chart does not need: names of marks, and default values."""

_HIDDEN_PATHS = re.compile(
    r'<path class="(?:background|foreground)"[^>]*d="(?:M0,0h0v0h0Z)?"[^>]*/>|<path class="background"[^>]*/>'
)
_TAG = re.compile(r"<[^>]*>")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_EMPTY_GROUPS = re.compile(r"<g(?: [^>]*)?></g>")


def _shrink(svg: str) -> str:
    """The same picture in about half the bytes, with coordinates rounded to a tenth of a pixel. Text between tags keeps its digits."""
    svg = _REDUNDANT_ATTRIBUTES.sub("", _HIDDEN_PATHS.sub("", svg))
    svg = _TAG.sub(lambda tag: _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), tag[0]), svg)
    svg = svg.replace('font-family="sans-serif" ', "")
    for _ in range(4):  # groups within groups, as deep as in an axis
        svg = _EMPTY_GROUPS.sub("", svg)
    return svg


LONG_ANSWER = 180
"""Length of an answer beyond which its font is smaller, so that the following blocks stay on the first screen."""

MAX_DEPTH = 6
"""Depth beyond which nested facts are written as text."""

_UNBREAKABLE = re.compile(r"\b[a-z]+(?:-[a-z]+)+\b(?!-)|(?:[≥≤x] )?[0-9.]+ \[[^\]]*\]|\[[^\]]*\]|[0-9.]+ %|\bx [0-9.]+")


def render(document: Document) -> str:
    """The complete page, UTF-8."""
    ordered = replace(document, blocks=_with_steps_in_sight(document.blocks))
    return _template().render(document=remove_control_characters(ordered), style=Markup(_style())) + "\n"


def _with_steps_in_sight(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks with the steps below the answer and its picture, before the tables, so that they are on the first screen. The
    picture's figures follow the tables, which are more important."""
    answer, steps, others = split_blocks(blocks)
    pictures = list(itertools.takewhile(lambda block: isinstance(block, Chart), others))
    others = others[len(pictures) :]
    tables = list(itertools.takewhile(lambda block: isinstance(block, Table), others))
    figures = [
        Details(SCREEN["figures"], (block.data,)) for block in pictures if isinstance(block, Chart) and block.data
    ]
    pictures = [replace(block, data=None) if isinstance(block, Chart) else block for block in pictures]
    return (*answer, *pictures, *steps, *tables, *figures, *others[len(tables) :])


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(
        sentence=_keep_figures_together,
        kinds=_group_by_kind,
        drawing=_draw,
        classes=_table_classes,
        spans=_head_spans,
        fact=fact_text,
        before_command=lambda answer: fill(SCREEN["run file"], what=answer.before_command),
    )
    environment.tests["nested"] = lambda value: isinstance(value, Mapping)
    environment.globals.update(LONG=LONG_ANSWER, MAX_DEPTH=MAX_DEPTH, SEPARATOR=SEPARATOR)
    return environment.from_string((files("howfar.report") / "report.html.j2").read_text("utf-8"))


def _style() -> str:
    css = (files("howfar.report") / "style.css").read_text("utf-8")
    return f"{css}\n@media screen and (prefers-color-scheme: dark) {{\n{palette.dark_rules()}\n}}\n"


def _keep_figures_together(text: str) -> Markup:
    """A sentence in which intervals in brackets, and numbers with their sign, are kept on one line."""
    return Markup(_UNBREAKABLE.sub(lambda match: f'<span class="keep">{match[0]}</span>', str(escape(text))))


def _group_by_kind(blocks: Iterable[Block]) -> list[tuple[str, list[Block]]]:
    """Group blocks with the name of their type. Consecutive pieces of advice are one group, other blocks one each."""
    grouped = itertools.groupby(enumerate(blocks), lambda pair: (type(pair[1]).__name__, _group_key(*pair)))
    return [(kind, [block for _, block in members]) for (kind, _), members in grouped]


def _group_key(index: int, block: Block) -> int:
    return -1 if type(block).__name__ == "AdviceBlock" else index


def _draw(chart: Chart) -> Markup:
    """The chart drawn wide and narrow; empty if there is nothing to draw, a sentence if the libraries are missing."""
    if not can_draw():
        return Markup(f'<p class="muted small">{escape(f"{NOT_DRAWN} {INSTALL_ADVICE}")}</p>')
    import vl_convert

    drawings = []
    for kind, width in (("wide", WIDE_PX), ("narrow", NARROW_PX)):
        specification = chart.make(width)
        if specification is None:
            return Markup("")
        svg = vl_convert.vegalite_to_svg(_apply_style(specification, width), vl_version=VEGA_LITE)
        drawings.append(_make_accessible(svg, chart.title, kind, chart.name))
    return Markup("".join(drawings))


def _table_classes(table: Table) -> str:
    shaded = any(cell.share is not None for row in table.rows for cell in row)
    return " ".join(
        name
        for name, applies in (("grid", shaded), ("main", table.main and not shaded), ("stack", table.stack))
        if applies
    )


def _head_spans(columns: tuple[Column, ...]) -> list[tuple[str, int]]:
    """The upper line of a table's head if neighbouring columns share a text: each text with its number of columns. Empty if none
    do."""
    spans = [
        (head, len(list(neighbours))) for head, neighbours in itertools.groupby(columns, lambda column: column.head)
    ]
    return spans if any(count > 1 for head, count in spans if head) else []
