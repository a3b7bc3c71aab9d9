"""Neighbouring colours of the charts can be told apart: with normal vision and by the colour-blind, in both themes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest

from howfar.experiments.replication.charts import MODE_STYLES
from howfar.experiments.replication.charts import PARTS as COMMIT_PARTS
from howfar.experiments.replication.crash.report import STATE_COLOURS as CRASH_STATES
from howfar.experiments.replication.fallback.report import COLOURS as FALLBACK_STATES
from howfar.report import palette

MIN_DIFFERENCE = 20
"""CIEDE2000 difference below which two colours next to each other are hard to tell apart."""

MIN_CONTRAST, MIN_TEXT_CONTRAST = 3, 4.5
"""Contrast of graphics and of text by WCAG 2 at level AA."""

NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
"""Machado, Oliveira and Fernandes 2009, severity 1.0, for linear RGB."""

VISIONS = {"normal": NORMAL, "deuteranopia": DEUTERANOPIA, "protanopia": PROTANOPIA}
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)

Triple = tuple[float, float, float]
Matrix = tuple[Triple, Triple, Triple]


def linear(colour: str) -> Triple:
    """Linear RGB, from 0 to 1."""
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return _to_linear(red), _to_linear(green), _to_linear(blue)


def _to_linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def multiply(matrix: Matrix, vector: Triple) -> Triple:
    first, second, third = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return first, second, third


def lab(rgb: Triple) -> Triple:
    """CIELAB of linear RGB, for the white point D65."""
    x, y, z = (_cube_root(part / white) for part, white in zip(multiply(TO_XYZ, rgb), WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _cube_root(ratio: float) -> float:
    return math.cbrt(ratio) if ratio > 216 / 24389 else (24389 / 27 * ratio + 16) / 116


def seen(colour: str, vision: Matrix) -> Triple:
    """CIELAB of a colour as this vision sees it."""
    red, green, blue = (min(max(part, 0.0), 1.0) for part in multiply(vision, linear(colour)))
    return lab((red, green, blue))


def difference(first: Triple, second: Triple) -> float:
    """CIEDE2000, with the names of Sharma, Wu and Dalal 2005."""
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean_c7 = ((math.hypot(a1, b1) + math.hypot(a2, b2)) / 2) ** 7
    stretch = 1.5 - 0.5 * math.sqrt(mean_c7 / (mean_c7 + 25**7))
    c1, c2 = math.hypot(a1 * stretch, b1), math.hypot(a2 * stretch, b2)
    h1, h2 = (math.degrees(math.atan2(b, a * stretch)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    mean_h = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    hue_weights = ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.20, 4, -63))
    t = 1 + sum(weight * math.cos(math.radians(times * mean_h + shift)) for weight, times, shift in hue_weights)
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / math.sqrt(20 + (mean_l - 50) ** 2)
    rotation = -2 * math.sqrt(mean_c**7 / (mean_c**7 + 25**7))
    rotation *= math.sin(math.radians(60 * math.exp(-(((mean_h - 275) / 25) ** 2))))
    d_l, d_c = (l2 - l1) / s_l, (c2 - c1) / (1 + 0.045 * mean_c)
    d_h = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2)) / (1 + 0.015 * mean_c * t)
    return math.sqrt(d_l**2 + d_c**2 + d_h**2 + rotation * d_c * d_h)


def contrast(first: str, second: str) -> float:
    """The ratio of two colours' luminances as WCAG 2 defines it."""
    dark, light = sorted(multiply(TO_XYZ, linear(colour))[1] for colour in (first, second))
    return (light + 0.05) / (dark + 0.05)


def neighbours() -> Iterator[tuple[str, str]]:
    """Pairs of colours that charts draw next to each other."""
    yield from pairwise(palette.SERIES)
    yield from combinations((*palette.SERIES[:4], palette.MUTED), 2)  # lines cross: each is next to each
    yield from combinations(palette.PARTS, 2)  # parts of a bar may be absent
    yield from combinations(COMMIT_PARTS.values(), 2)
    budget = (*palette.MANY_PARTS, palette.PARTS[5])
    yield from pairwise(budget)
    yield from zip(budget, budget[2:], strict=False)
    yield from ((colour, palette.PARTS[5]) for colour in palette.MANY_PARTS)
    yield from combinations(CRASH_STATES.values(), 2)
    yield from _in_a_row(FALLBACK_STATES)
    for modes in MODES_OF_A_RUN:
        yield from combinations((MODE_STYLES[mode].colour for mode in modes), 2)


MODES_OF_A_RUN = (
    ("none", "async", "after-sync", "after-commit"),
    ("none", "commit-off", "remote-write", "remote-flush", "remote-apply"),
    ("none", "galera"),
    ("none", "group", "group-leader"),
)


def _in_a_row(states: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The states of the primary are one row of bars, those of the link another."""
    colours = tuple(states.values())
    yield from combinations(colours[:3], 2)
    yield from pairwise(colours[3:])


def in_theme(colours: Sequence[str], dark: bool) -> tuple[str, ...]:
    return tuple(palette.in_the_dark(colour) for colour in colours) if dark else tuple(colours)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISIONS)
def test_neighbouring_colours_can_be_told_apart(vision: str, dark: bool) -> None:
    assert not too_close(set(neighbours()), vision, dark)


def too_close(pairs: set[tuple[str, str]], vision: str, dark: bool) -> dict[tuple[str, str], float]:
    """The pairs of colours that are hard to tell apart, with their differences."""
    close = {}
    for pair in pairs:
        first, second = (seen(colour, VISIONS[vision]) for colour in in_theme(pair, dark))
        if (found := difference(first, second)) < MIN_DIFFERENCE and pair[0] != pair[1]:
            close[pair] = round(found, 1)
    return close


@pytest.mark.parametrize("dark", [False, True])
def test_colours_can_be_seen_on_the_page_and_grey_text_can_be_read(dark: bool) -> None:
    page = in_theme((palette.HALO,), dark)[0]
    drawn, text = in_theme(palette.MANY_PARTS, dark), in_theme((palette.MUTED, palette.INK), dark)
    assert min(contrast(colour, page) for colour in drawn) >= MIN_CONTRAST
    assert min(contrast(colour, page) for colour in text) >= MIN_TEXT_CONTRAST


def test_the_difference_is_that_of_the_published_examples() -> None:
    """Pairs 1, 7 and 25 of Sharma, Wu and Dalal 2005."""
    examples: dict[tuple[Triple, Triple], float] = {
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485)): 2.0425,
        ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0)): 2.3669,
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387)): 1.2644,
    }
    for (first, second), expected in examples.items():
        assert difference(first, second) == pytest.approx(expected, abs=1e-4)
