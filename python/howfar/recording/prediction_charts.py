"""Charts of a prediction: a page's round trips as a waterfall, and its time over the RTT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from howfar.recording.predict import LaidPage
from howfar.report import palette
from howfar.report.charts import Drawable, axis, by_name, data, layer, legend, looks, vconcat
from howfar.stats.estimate import Estimate

_PARTS = ("application", "path", "server")
_ROW = 2.2
_LEAST_HEIGHT, _MOST_HEIGHT = 90, 420
_MOST_TRIPS = 400


def waterfall(pages: Sequence[LaidPage], target: str, width: int) -> Drawable | None:
    """The page of median time, on both paths, on one scale."""
    page = sorted(pages, key=lambda page: page.took_ns)[len(pages) // 2]
    page_trips = min(len(page.trips), _MOST_TRIPS)
    rows = {
        "now": _bars(page, page.now_ns.mean(axis=0), page_trips),
        target: _bars(page, page.there_ns.mean(axis=0), page_trips),
    }
    longest = max(float(bars[-1]["end"]) for bars in rows.values())
    height = min(max(round(_ROW * page_trips), _LEAST_HEIGHT), _MOST_HEIGHT)
    colours = looks(_PARTS, palette.PARTS)
    panels = []
    for number, (name, bars) in enumerate(rows.items()):
        shown = legend(3) if number == 0 else None
        chart = (
            data(bars)
            .mark_bar(height=max(height / page_trips, 1.0))
            .encode(
                x=axis(alt.X, "start", f"ms, {name}", (0, longest)),
                x2="end:Q",
                y=axis(alt.Y, "row", None, (page_trips, 0), labels=False, ticks=False, grid=False),
                color=by_name(alt.Color, "part", colours, shown),
            )
            .properties(width=width, height=height)
        )
        panels.append(chart)
    return vconcat(*panels, spacing=18)


def _bars(page: LaidPage, path_ns: np.ndarray, count: int) -> list[dict[str, Any]]:
    server_ns = page.server_ns.mean(axis=0)
    bars: list[dict[str, Any]] = []
    at = 0.0
    for row, trip in enumerate(page.trips[:count]):
        for part, took_ns in (("application", trip.gap_ns), ("path", path_ns[row]), ("server", server_ns[row])):
            end = at + float(took_ns) / 1e6
            bars.append({"row": row + 0.5, "start": round(at, 3), "end": round(end, 3), "part": part})
            at = end
    return bars


def over_rtt(curve_ms: Mapping[int, float], points: Sequence[tuple[int, Estimate]], width: int) -> Drawable | None:
    """The predicted line and the measured points."""
    line = [{"rtt": rtt_ns / 1e6, "ms": time} for rtt_ns, time in curve_ms.items() if time > 0]
    if not line:
        return None
    seen = [
        {
            "rtt": rtt_ns / 1e6,
            "ms": found.value,
            "low": found.value if found.low is None else found.low,
            "high": found.value if found.high is None else found.high,
        }
        for rtt_ns, found in points
        if rtt_ns > 0
    ]
    times = [row["ms"] for row in (*line, *seen)]
    x = axis(alt.X, "rtt", "RTT, ms", (line[0]["rtt"], line[-1]["rtt"]), log=10)
    domain = (min(times) * 0.8, max(times) * 1.25)
    y = axis(alt.Y, "ms", "ms", domain, log=10)
    parts: list[Drawable] = [data(line).mark_line(strokeWidth=2, color=palette.SERIES[0]).encode(x=x, y=y)]
    if seen:
        low = axis(alt.Y, "low", "ms", domain, log=10)
        parts.append(data(seen).mark_rule(color=palette.SERIES[1]).encode(x=x, y=low, y2="high:Q"))
        parts.append(data(seen).mark_point(filled=True, size=60, color=palette.SERIES[1]).encode(x=x, y=y))
    return layer(*parts, width=width, height=260)
