"""Colours of charts. Charts are drawn in the light theme's colours. For the dark theme, CSS rules replace each colour inside an SVG,
because style rules override presentation attributes. So one drawing is enough for both themes, and a viewer without CSS shows the
light one.

Arms differ in shape and dash as well, so that colour is never the only distinction.
"""

from __future__ import annotations

INK, MUTED, GRID, BAND = "#22252b", "#5f6672", "#dfe2e8", "#e7e9ee"

SERIES = ("#3b6fd4", "#c2591f", "#178a6b", "#8b4fc0", "#b08405", "#c03a62", "#4f7a1f", "#1f87a8")
"""Arms, in the order of the run; used again from the start after eight."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "stroke")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3], [10, 4], [4, 1], [3, 5])

PARTS = ("#3b6fd5", "#178a6c", "#8b4fc1", "#c25920", "#b08406", "#b9bec8")
"""Client CPU, server CPU, forwarder CPU, link, waiting for a CPU, rest. Each differs slightly from the series' colours, so that it has
its own rule for the dark theme."""

EXTRA_PARTS = ("#7a5c3e", "#2f6d74", "#8a8f2a")
"""Additional colours for the parts of a cycle, which outnumber the series."""

ON_BAR = "#fffffe"
"""Text on a bar: dark on the lighter bars of the dark theme."""

HALO = "#fffffd"
"""Outline of text that is drawn over lines: the page's colour."""

_DARK = {
    ON_BAR: "#16181d",
    HALO: "#16181d",
    INK: "#e8eaef",
    MUTED: "#a3abb8",
    GRID: "#363b45",
    BAND: "#333844",
    "#3b6fd4": "#7da6ff",
    "#c2591f": "#ff9f68",
    "#178a6b": "#4fd0a8",
    "#8b4fc0": "#c79bf2",
    "#b08405": "#e5bd4a",
    "#c03a62": "#f58aa8",
    "#4f7a1f": "#a5d16a",
    "#1f87a8": "#6fcdea",
    "#3b6fd5": "#7da6ff",
    "#178a6c": "#4fd0a8",
    "#8b4fc1": "#c79bf2",
    "#c25920": "#ff9f68",
    "#b08406": "#e5bd4a",
    "#b9bec8": "#666d7a",
    "#7a5c3e": "#d0a982",
    "#2f6d74": "#8fc9cf",
    "#8a8f2a": "#cdd268",
}


def dark_rules() -> str:
    """CSS rules that recolour the charts, to be placed in a media query for the dark theme."""
    rules = []
    for light, dark in _DARK.items():
        rules.append(f'svg [fill="{light}"]{{fill:{dark}}}svg [stroke="{light}"]{{stroke:{dark}}}')
    return "\n".join(rules)
