"""From a chart to inline SVG: rendered by vl-convert, without a browser and without a network, once wide and once for a phone.
CSS shows one of the two; both carry a title, and the page has the same figures as a table."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import vl_convert

from howfar.report import palette
from howfar.report.charts import plain

WIDE, NARROW = 680, 220
"""Width of the plotting area, pixels; labels and axes come on top."""

VEGA_LITE = "6.4"
"""Of vl-convert's grammars, the one that Altair's major version writes."""


def _configured(chart: Any, width: int) -> dict[str, Any]:
    text = 11 if width == NARROW else 13
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
            "labelFontSize": text,
            "titleFontSize": text,
            "titleFontWeight": "normal",
            "titlePadding": 8,
        },
        "axisY": {"labelColor": palette.INK, "labelFontSize": text},
        "title": {
            "color": palette.INK,
            "subtitleColor": palette.MUTED,
            "fontSize": text,
            "subtitleFontSize": text - 1,
            "fontWeight": "bold",
        },
        "legend": {"labelColor": palette.INK, "labelFontSize": text, "symbolSize": 90, "columnPadding": 24},
    }
    return {**plain(chart), "config": config}


def _accessible(svg: str, title: str, kind: str, name: str) -> str:
    """Scales with the page; named for who does not see it; ids do not clash with the next chart's."""
    label = html.escape(title, quote=True)
    svg = _slim(svg)
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


_NOISE = re.compile(
    r' (?:aria-[a-z]+|pointer-events|stroke-miterlimit)="[^"]*"| role="graphics-[a-z]+"| class="[a-z -]*"'
    r'| opacity="1"| stroke-width="1"| transform="translate\(0,0\)"| font-weight="normal"| display="none"'
)
"""What vl-convert writes and nothing here needs: names of marks for a live chart, and defaults."""

_HIDDEN = re.compile(
    r'<path class="(?:background|foreground)"[^>]*d="(?:M0,0h0v0h0Z)?"[^>]*/>|<path class="background"[^>]*/>'
)
_TAG = re.compile(r"<[^>]*>")
_LONG = re.compile(r"-?\d+\.\d{2,}")
_EMPTY = re.compile(r"<g(?: [^>]*)?></g>")


def _slim(svg: str) -> str:
    """The same picture in about half the bytes: a tenth of a pixel is not seen. Text between tags keeps its digits."""
    svg = _NOISE.sub("", _HIDDEN.sub("", svg))
    svg = _TAG.sub(lambda tag: _LONG.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), tag[0]), svg)
    svg = svg.replace('font-family="sans-serif" ', "")
    for _ in range(4):  # groups within groups, as deep as an axis is
        svg = _EMPTY.sub("", svg)
    return svg


def svg(make: Callable[[int], Any], title: str, name: str) -> str:
    """Both drawings of one chart; empty where there is nothing to draw. `name` is unique in the document."""
    drawings = []
    for kind, width in (("wide", WIDE), ("narrow", NARROW)):
        chart = make(width)
        if chart is None:
            return ""
        drawn = vl_convert.vegalite_to_svg(_configured(chart, width), vl_version=VEGA_LITE)
        drawings.append(_accessible(drawn, title, kind, name))
    return "".join(drawings)
