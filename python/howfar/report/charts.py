"""What the charts of all experiments share, and the chart of every trial. Charts are Vega-Lite specifications written with Altair; how
they become SVG is in `drawing.py`. A chart is made for a width in pixels, and is None where there is nothing to draw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import altair as alt

from howfar.analysis.summary import Summary
from howfar.report import palette

Drawable = Any
"""An Altair chart of one mark, or Vega-Lite made of several by `layer`, `hconcat` and `vconcat`."""

ROW = 44
"""Height of one arm's row, pixels."""

PHONE = 420
"""Narrower drawings than this leave out what would not be readable."""


def pick(cycle: Sequence[Any], count: int) -> list[Any]:
    return [cycle[index % len(cycle)] for index in range(count)]


def values(rows: list[dict[str, Any]]) -> alt.Data:
    return alt.Data(values=rows)  # type: ignore[no-untyped-call]


def layer(*charts: Drawable, **properties: Any) -> dict[str, Any]:
    """Charts over each other. `properties`: width, height, title."""
    return {"layer": [plain(chart) for chart in charts], **_plain_values(properties)}


def hconcat(*charts: Drawable, **properties: Any) -> dict[str, Any]:
    """Charts in a row. `properties`: spacing."""
    return {"hconcat": [plain(chart) for chart in charts], **_plain_values(properties)}


def vconcat(*charts: Drawable, **properties: Any) -> dict[str, Any]:
    """Charts in a column. `properties`: spacing, resolve."""
    return {"vconcat": [plain(chart) for chart in charts], **_plain_values(properties)}


def plain(chart: Drawable) -> dict[str, Any]:
    """Vega-Lite of a chart. Altair's own composition copies every part deeply each time: ten seconds for a page of small charts."""
    if isinstance(chart, dict):
        return chart
    found: dict[str, Any] = chart.to_dict(validate=False)
    datasets = found.pop("datasets", {})
    if "name" in found.get("data", {}):
        found["data"] = {"values": datasets[found["data"]["name"]]}
    return {key: value for key, value in found.items() if key not in ("$schema", "config")}


def _plain_values(properties: dict[str, Any]) -> dict[str, Any]:
    return {key: value.to_dict() if hasattr(value, "to_dict") else value for key, value in properties.items()}


def arm_axis(names: list[str]) -> alt.Y:
    return alt.Y(
        "arm:N", sort=names, title=None, axis=alt.Axis(labelLimit=130, ticks=False, domain=False, labelPadding=8)
    )


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 in each decade; over more than two decades only the 1s."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    leading = (1, 2, 5) if high / low < 200 else (1,)
    ticks = [lead * 10.0**decade for decade in decades for lead in leading]
    return [tick for tick in ticks if low <= tick <= high]


def legend_of(width: int) -> alt.Legend:
    return alt.Legend(orient="top", title=None, columns=2 if width < PHONE else 4, labelLimit=150, symbolStrokeWidth=2)


MOST_TRIALS = 200
"""More than these are drawn and listed by blocks: a page is to stay small, and the run file has them all."""


def against_median(summary: Summary) -> list[dict[str, Any]]:
    """Every good trial: its number, its block, and its queries a second over the median of its cell."""
    seen: dict[str, list[float]] = {}
    for trial in summary.trials:
        if trial.qps:
            seen.setdefault(trial.arm, []).append(trial.qps)
    medians = {arm: statistics.median(found) for arm, found in seen.items()}
    return [{"trial": t.number, "block": t.block, "ratio": t.qps / medians[t.arm]} for t in summary.trials if t.qps]


def block_ranges(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each block the median and the middle 80 % of `against_median`."""
    blocks: dict[int, list[float]] = {}
    for row in rows:
        blocks.setdefault(row["block"], []).append(row["ratio"])
    found = []
    for block, ratios in blocks.items():
        cuts = statistics.quantiles(ratios, n=10, method="inclusive") if len(ratios) > 1 else ratios * 9
        found.append({"block": block, "ratio": statistics.median(ratios), "low": cuts[0], "high": cuts[-1]})
    return found


def drift(summary: Summary, width: int) -> Drawable | None:
    """Every good trial against the median of its cell, in the order in which they ran; of many trials, what each block says."""
    rows = against_median(summary)
    if not rows:
        return None
    many = len(rows) > MOST_TRIALS
    title = "block" if many else "trial, in the order in which they ran; lines part the blocks"
    last = max(row["block"] for row in rows) if many else len(summary.trials) - 1
    x = alt.X(
        f"{'block' if many else 'trial'}:Q",
        title=title,
        scale=alt.Scale(domain=[-0.5, last + 0.5], nice=False),
        axis=alt.Axis(grid=False, format="d", tickMinStep=1),
    )

    def height_of(field: str) -> alt.Y:
        scale = alt.Scale(type="log", nice=False, padding=8)
        return alt.Y(f"{field}:Q", scale=scale, axis=alt.Axis(tickCount=5, format=".2~f"), title="of its cell's median")

    y = height_of("ratio")
    layers: list[Any] = [
        alt.Chart(values([{"ratio": 1.0}])).mark_rule(color=palette.MUTED, strokeDash=[4, 3]).encode(y=y)
    ]
    if many:
        data = alt.Chart(values(block_ranges(rows)))
        layers.append(
            data.mark_rule(color=palette.SERIES[0], strokeWidth=2).encode(x=x, y=height_of("low"), y2="high:Q")
        )
        layers.append(data.mark_point(filled=True, size=60, opacity=1, color=palette.SERIES[0]).encode(x=x, y=y))
    else:
        starts: dict[int, int] = {}
        for trial in summary.trials:
            starts.setdefault(trial.block, trial.number)
        blocks = alt.Chart(values([{"trial": number - 0.5} for number in starts.values()]))
        layers.append(blocks.mark_rule(color=palette.GRID).encode(x=x))
        points = alt.Chart(values(rows)).mark_point(filled=True, size=30, opacity=0.8, color=palette.SERIES[0])
        layers.append(points.encode(x=x, y=y))
    return layer(*layers, width=width, height=180)
