"""One trial of a fallback: commits/s, the states of link and primary, and what the replica lacked, over one time axis."""

from __future__ import annotations

from typing import Any

import altair as alt

from howfar.experiments.fallback.analysis import FallbackSeries
from howfar.experiments.replication.charts import states, symlog
from howfar.report import palette
from howfar.report.charts import PHONE, Drawable, Rows, by_name, data, layer, vconcat

ACKNOWLEDGED, WAITING, ALONE = "semi-synchronous", "no acknowledgements", "asynchronous, silently"
CARRIES, CUT, BACK = "up", "cut", "up again"
COLOURS = {
    ACKNOWLEDGED: palette.PARTS[1],
    WAITING: palette.MUTED,
    ALONE: palette.SERIES[5],
    CARRIES: palette.PARTS[0],
    CUT: palette.MORE[0],
    BACK: palette.PARTS[0],
}
EXTRA = 140
"""Nothing stands beside this chart: it may be wider."""

CONSTANT = 10
"""Below this rate the axis is linear, so that zero can be shown."""


def timeline(series: FallbackSeries, width: int) -> Drawable:
    """Three panels over one time axis."""
    width = width + EXTRA if width >= PHONE else width
    scale = alt.Scale(domain=[0, end_s(series)], nice=False)
    panels = [_commits(series, width, scale), _bands(series, width, scale)]
    if any(behind is not None for behind in series.behind):
        panels.append(_behind(series, width, scale))
    return vconcat(*panels, spacing=8, resolve={"scale": {"color": "independent"}})


def _extent(width: int) -> dict[str, Any]:
    """So that the panels are aligned."""
    extent = 72 if width >= PHONE else 58
    return {"minExtent": extent, "maxExtent": extent}


def _commits(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    rows = [{"at": index * series.slice_s, "tps": rate} for index, rate in enumerate(series.commits_per_s)]
    most = max(series.commits_per_s)
    x = alt.X("at:Q", scale=scale, axis=alt.Axis(labels=False, ticks=False, grid=False), title=None)
    y = symlog(alt.Y, "tps", "commits/s", most, CONSTANT, most * 1.4, **_extent(width))
    line = data(rows).mark_line(interpolate="step-after", strokeWidth=1.6, color=palette.SERIES[0])
    layers = [line.encode(x=x, y=y)]
    if series.fell_s is not None:
        alone: dict[str, Any] = {
            "at": series.fell_s,
            "to": series.back_s if series.back_s is not None else end_s(series),
        }
        alone["text"] = f"{series.unprotected:,} commits not acknowledged by a replica" if width >= PHONE else ""
        text = data([alone]).mark_text(align="left", dx=8, fontSize=13, color=palette.INK)
        layers.insert(0, data([alone]).mark_rect(color=palette.BAND).encode(x=x, x2="to:Q"))
        layers.insert(1, text.encode(x=x, y=alt.value(100), text="text:N"))
    return layer(*layers, width=width, height=190)


def end_s(series: FallbackSeries) -> float:
    """End of the trial, which may have had no commits."""
    return max(len(series.commits_per_s) * series.slice_s, *series.at_s[-1:], 0.0)


def phases(series: FallbackSeries) -> Rows:
    """States of the link and of the primary, each from one moment to the next."""
    end = end_s(series)
    answered = series.fell_s if series.fell_s is not None else min(series.left_s + series.stall_s, end)
    back = (series.back_s if series.back_s is not None else end) if series.fell_s is not None else answered
    found = [
        ("link", CARRIES, 0.0, series.left_s),
        ("link", CUT, series.left_s, series.returned_s),
        ("link", BACK, series.returned_s, end),
        ("primary", ACKNOWLEDGED, 0.0, series.left_s),
        ("primary", WAITING, series.left_s, answered),
        ("primary", ALONE, answered, back),
        ("primary", ACKNOWLEDGED, back, end),
    ]
    return [
        {"row": row, "state": state, "from": low, "to": min(high, end)}
        for row, state, low, high in found
        if min(high, end) > low
    ]


def _bands(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    pixels = width / end_s(series)
    rows = [row | {"text": short_enough(row["state"], (row["to"] - row["from"]) * pixels)} for row in phases(series)]
    quiet = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    x = alt.X("from:Q", scale=scale, axis=quiet, title=None)
    labels = alt.Axis(ticks=False, domain=False, labelPadding=6, **_extent(width))
    y = alt.Y("row:N", sort=["link", "primary"], title=None, axis=labels)
    shown = {row["state"]: COLOURS[row["state"]] for row in rows}
    return layer(*states(rows, x, y, by_name(alt.Color, "state", shown, None), 20), width=width, height=52)


SHORTER = {ACKNOWLEDGED: "semi-sync", WAITING: "stalled", ALONE: "asynchronous", BACK: "again"}


def short_enough(state: str, pixels: float) -> str:
    """The state, or a shorter name for it, or nothing, as there is room."""
    return next((text for text in (state, SHORTER.get(state, state)) if len(text) * 6.2 + 4 < pixels), "")


def _behind(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    """Gaps where the replica could not be queried."""
    rows = [{"at": at, "behind": behind} for at, behind in zip(series.at_s, series.behind, strict=True)]
    most = max(behind for behind in series.behind if behind is not None)
    ticks = alt.Axis(grid=False, tickCount=8, format="d")
    line = data(rows).mark_line(interpolate="step-after", strokeWidth=1.4, color=palette.SERIES[3])
    return line.encode(
        x=alt.X("at:Q", scale=scale, axis=ticks, title="seconds of the trial"),
        y=symlog(alt.Y, "behind", "replica lacks", most, CONSTANT, most * 1.3 + 1, **_extent(width)),
    ).properties(width=width, height=80)
