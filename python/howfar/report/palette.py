"""Colours of charts. Charts are drawn in the light theme's colours. For the dark theme, CSS rules replace each colour inside an SVG,
because style rules override presentation attributes. So one drawing is enough for both themes, and a viewer without CSS shows the
light one.

Colours that charts draw next to each other differ by at least 20 in CIEDE2000, in both themes, also for people who do not tell red
from green. Arms differ in shape and dash as well.
"""

from __future__ import annotations

_DARK = {
    "#fffffe": "#16181d",
    "#fffffd": "#16181d",
    "#22252b": "#e8eaef",
    "#555d6a": "#8e939d",
    "#dfe2e8": "#363b45",
    "#e7e9ee": "#333844",
    "#6486fb": "#4e83ff",
    "#91441c": "#ef7c06",
    "#3c9d83": "#48dda5",
    "#5c20dc": "#ebc3ff",
    "#aa8b00": "#ffff3d",
    "#5a0028": "#ac6456",
    "#465e00": "#a3d8a4",
    "#0283be": "#51ccf4",
    "#6f2a46": "#ab7e42",
    "#1a9380": "#71ceb5",
    "#8b8f2b": "#d4d865",
    "#c1c8d6": "#6d7382",
}
"""Every colour of the light theme, and the one that replaces it in the dark theme."""

ON_BAR, HALO, INK, MUTED, GRID, BAND, *_SERIES = _DARK
"""Text on a bar; the outline of text that is drawn over lines, which is the page's colour; text; what is known; lines; areas."""

SERIES, EXTRA_PARTS, _REST = tuple(_SERIES[:8]), tuple(_SERIES[8:11]), _SERIES[11]
"""Arms, in the order of the run; used again from the start after eight. Then colours for further parts of a bar."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "stroke")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3], [10, 4], [4, 1], [3, 5])

PARTS = (SERIES[0], SERIES[2], SERIES[3], SERIES[1], SERIES[4], _REST)
"""Client CPU, server CPU, forwarder CPU, link, waiting for a CPU, rest."""

MANY_PARTS = (*PARTS[:5], *SERIES[5:], *EXTRA_PARTS)
"""The parts of a cycle, which outnumber the series. The rest follows them."""


def in_the_dark(colour: str) -> str:
    """The colour that replaces this one in the dark theme."""
    return _DARK[colour]


def dark_rules() -> str:
    """CSS rules that recolour the charts, to be placed in a media query for the dark theme."""
    return "\n".join(
        f'svg [fill="{light}"]{{fill:{dark}}}svg [stroke="{light}"]{{stroke:{dark}}}' for light, dark in _DARK.items()
    )
