"""The break-even chart of compression: throughput against the link's rate, a panel a kind of data, with and without. What is drawn."""

from __future__ import annotations

from typing import Any

import altair as alt

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.experiments.compression.analysis import EVERYWHERE, NOT_RESOLVED, CompressionEconomics, CompressionRow
from howfar.report import palette
from howfar.report.charts import PHONE, Drawable, hconcat, layer, log_ticks, pick, values, vconcat
from howfar.report.figures import rate, tps
from howfar.report.grid import level
from howfar.store.records import ArmRole

BESIDE = 200
"""Several panels may take what one leaves free beside itself."""

HEIGHT = 260

NONE = "none"
"""The series without compression."""


def break_even(summary: Summary, width: int) -> Drawable | None:
    """Lines by the model, points measured; a diamond where a line crosses the one without compression."""
    found = summary.found(CompressionEconomics)
    if found is None or not found.rows:
        return None
    rows = found.rows
    contents = list(dict.fromkeys(row.content for row in rows))
    names = [NONE, *dict.fromkeys(row.algorithm for row in rows)]
    points = {content: measured(summary, content) for content in contents}
    rates = [point["rate"] for found in points.values() for point in found]
    rates += [at.rate_bps for row in rows for at in row.curve]
    heights = [point["tps"] for found in points.values() for point in found]
    heights += [tps for row in rows for at in row.curve for tps in (at.plain_tps, at.compressed_tps)]
    if not rates or min(rates) == max(rates):
        return None
    side_by_side = width >= PHONE
    each = (width + BESIDE - 64 * len(contents)) // len(contents) if side_by_side else width
    frame = _Frame((min(rates), max(rates)), (min(heights) / 1.2, max(heights) * 1.25), names, each)
    drawn = [
        frame.panel(
            content,
            [row for row in rows if row.content == content],
            points[content],
            first=index == 0 or not side_by_side,
        )
        for index, content in enumerate(contents)
    ]
    return hconcat(*drawn) if side_by_side else vconcat(*drawn)


def measured(summary: Summary, content: str) -> list[dict[str, Any]]:
    """Each cell over a link with this kind of data: algorithm, rate, throughput with its limits."""
    found = []
    for cell in summary.cells:
        bps = cell.factors.get("rate_bps")
        if cell.role is ArmRole.DUPLICATE or level(cell, "content") != content or not isinstance(bps, int | float):
            continue
        found.append({"series": _series(cell), "rate": float(bps)} | _limits(cell))
    return found


def _series(cell: CellSummary) -> str:
    algorithm = str(level(cell, "compression"))
    return NONE if algorithm == "off" else algorithm


def _limits(cell: CellSummary) -> dict[str, Any]:
    found = tps(cell)
    low, high = (found.value if limit is None else limit for limit in (found.low, found.high))
    return {"tps": found.value, "low": low, "high": high}


class _Frame:
    """What the panels share: axes, colours, shapes."""

    def __init__(self, rates: tuple[float, float], heights: tuple[float, float], names: list[str], width: int) -> None:
        self.width = width
        self.heights = heights
        ticks = [10.0**exponent for exponent in range(6, 13) if rates[0] <= 10.0**exponent <= rates[1]]
        self.x = alt.X(
            "rate:Q",
            scale=alt.Scale(type="log", domain=list(rates), nice=False),
            axis=alt.Axis(values=ticks, format="~s", grid=False, labelOverlap=True, labelFlush=True),
            title="link, bit/s",
        )
        legend = alt.Legend(orient="top", title=None, columns=5 if width > 225 else 2, symbolStrokeWidth=2)
        colours = pick((palette.MUTED, *palette.SERIES), len(names))
        self.colour = alt.Color("series:N", sort=names, scale=alt.Scale(domain=names, range=colours), legend=legend)
        shapes = alt.Scale(domain=names, range=pick(palette.SHAPES, len(names)))
        self.shape = alt.Shape("series:N", sort=names, scale=shapes, legend=legend)
        dashes = alt.Scale(domain=names, range=pick(palette.DASHES, len(names)))
        self.dash = alt.StrokeDash("series:N", sort=names, scale=dashes, legend=legend)

    def _y(self, field: str, first: bool) -> alt.Y:
        return alt.Y(
            f"{field}:Q",
            scale=alt.Scale(type="log", domain=list(self.heights), nice=False),
            axis=alt.Axis(values=log_ticks(*self.heights), format=",.3~r"),
            title="transactions a second" if first else None,
        )

    def panel(self, content: str, rows: list[CompressionRow], points: list[dict[str, Any]], first: bool) -> Drawable:
        y = self._y("tps", first)
        layers: list[Any] = []
        if lines := _lines(rows):
            drawn = alt.Chart(values(lines)).mark_line(strokeWidth=1.8)
            layers.append(drawn.encode(x=self.x, y=y, color=self.colour, strokeDash=self.dash))
        if points:
            lowest, highest = self.heights
            cut = [point | {"low": max(point["low"], lowest), "high": min(point["high"], highest)} for point in points]
            data = alt.Chart(values(cut))
            rule = data.mark_rule(strokeWidth=2.5)
            layers.append(rule.encode(x=self.x, y=self._y("low", first), y2="high:Q", color=self.colour))
            mark = data.mark_point(filled=True, size=55, opacity=1)
            layers.append(mark.encode(x=self.x, y=y, color=self.colour, shape=self.shape))
        layers += [*self._crossings(rows, y), *self._said(rows)]
        title = alt.TitleParams(content, anchor="start")
        return layer(*layers, width=self.width, height=HEIGHT, title=title)

    def _crossings(self, rows: list[CompressionRow], y: alt.Y) -> list[Any]:
        found = [
            {"series": row.algorithm, "rate": row.break_even_bps, "tps": plain_at(row, row.break_even_bps)}
            for row in rows
            if row.break_even_bps
            and row.curve
            and row.curve[0].rate_bps <= row.break_even_bps <= row.curve[-1].rate_bps
        ]
        if not found:
            return []
        mark = alt.Chart(values(found)).mark_point(shape="diamond", size=150, strokeWidth=2, filled=False)
        return [mark.encode(x=self.x, y=y, color=self.colour)]

    def _said(self, rows: list[CompressionRow]) -> list[Any]:
        """At the right foot, where throughput is high and no line passes: below which rate each pays."""
        layers = []
        for index, row in enumerate(sorted(rows, key=lambda row: row.break_even_bps or 0.0)):
            said = f"{row.algorithm} {_said_of(row)}"
            data = alt.Chart(values([{"text": said, "series": row.algorithm}]))
            mark = data.mark_text(align="right", fontSize=11, x=self.width - 4, y=HEIGHT - 8 - 15 * index)
            layers.append(mark.encode(text="text:N", color=self.colour))
        return layers


def _said_of(row: CompressionRow) -> str:
    if not row.resolved:
        return NOT_RESOLVED
    if row.everywhere:
        return f"pays {EVERYWHERE}"
    return f"pays below {rate(row.break_even_bps)}" if row.break_even_bps else "never pays"


def _lines(rows: list[CompressionRow]) -> list[dict[str, Any]]:
    plain = next((row.curve for row in rows if row.curve), ())
    found = [{"series": NONE, "rate": at.rate_bps, "tps": at.plain_tps} for at in plain]
    found += [
        {"series": row.algorithm, "rate": at.rate_bps, "tps": at.compressed_tps} for row in rows for at in row.curve
    ]
    return found


def plain_at(row: CompressionRow, bps: float) -> float:
    """Without compression, at this rate: between two points of the curve, on the straight line of the logarithmic chart."""
    before = max((at for at in row.curve if at.rate_bps <= bps), key=lambda at: at.rate_bps)
    after = min((at for at in row.curve if at.rate_bps >= bps), key=lambda at: at.rate_bps)
    if before is after or before.rate_bps == after.rate_bps:
        return before.plain_tps
    return float(before.plain_tps + (after.plain_tps - before.plain_tps) * _part(before.rate_bps, bps, after.rate_bps))


def _part(low: float, at: float, high: float) -> float:
    return (at - low) / (high - low)
