"""The chart that answers the plan's question: pages a second with two machines over one, against the application's CPU a page. What
is drawn: a function of a summary and a width gives a chart, or None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import altair as alt

from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import Crossing, PageChoice
from howfar.experiments.page.report import words
from howfar.experiments.page.report.words import Setting
from howfar.report import palette
from howfar.report.charts import PHONE, Drawable, values

HEIGHT = 260
ROOM = 1.12
"""What the axes leave beyond the outermost point."""

FARTHEST = 3
"""Intervals are drawn as far as this many times the outermost value: a wider one tells no more, and would press all else together."""

LOG_FROM = 6
"""The axis of CPU is logarithmic where its ends differ by more than this factor."""

RATIO_TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 3, 5, 10)


def crossing(summary: Summary, width: int) -> Drawable | None:
    findings = summary.pages
    found = words.chief_choices(findings) if findings else []
    swept = Counter(_key(choice) for choice in found)
    drawn = [choice for choice in found if swept[_key(choice)] > 1]
    if findings is None or not drawn:
        return None
    return _Frame(summary, drawn, findings.crossings, width).chart()


class _Frame:
    """Axes, colours and shapes, which the layers share."""

    def __init__(
        self, summary: Summary, drawn: Sequence[PageChoice], crossings: Sequence[Crossing], width: int
    ) -> None:
        self.width, self.narrow = width, width < PHONE
        self.floor = summary.noise_floor or 0.0
        of_series = {_key(choice): choice for choice in drawn}
        self.series = dict(zip(of_series, words.series(list(of_series.values())), strict=True))
        self.drawn = drawn
        self.crossings = [crossing for crossing in crossings if _key(crossing) in self.series]
        self.across = self._across()
        self.heights = self._heights()
        names = list(self.series.values())
        legend = alt.Legend(
            orient="top", title=None, columns=1 if self.narrow else 4, labelLimit=300, symbolOpacity=1, symbolSize=90
        )
        self.colour = alt.Color(
            "series:N",
            sort=names,
            scale=alt.Scale(domain=names, range=[palette.SERIES[index % 8] for index in range(len(names))]),
            legend=legend,
        )
        self.shape = alt.Shape(
            "series:N",
            sort=names,
            scale=alt.Scale(domain=names, range=[palette.SHAPES[index % 8] for index in range(len(names))]),
            legend=legend,
        )

    def _across(self) -> tuple[float, float]:
        seen = [choice.app_cpu_total_ms for choice in self.drawn]
        seen += [each.measured_ms.value for each in self.crossings if each.measured_ms]
        seen += [
            at
            for each in self.crossings
            if (at := each.predicted_ms) is not None and each.swept_ms[0] <= at <= 2 * each.swept_ms[1]
        ]
        low, high = max(min(seen), 1e-3), max(seen)
        return (low / ROOM, high * ROOM) if high / low > LOG_FROM else (0.0, high * 1.05)

    def _heights(self) -> tuple[float, float]:
        points = [choice.two_over_one.value for choice in self.drawn] + [1.0]
        limits = [
            limit
            for choice in self.drawn
            for limit in (choice.two_over_one.low, choice.two_over_one.high)
            if limit is not None
        ]
        least, most = min(points) / FARTHEST, max(points) * FARTHEST
        limits += [1 + self.floor, 1 / (1 + self.floor)]
        seen = points + [min(max(limit, least), most) for limit in limits]
        # A region without a point still needs the room of its name.
        return min(*seen, 0.9) / ROOM, max(*seen, 1.1) * ROOM

    def x(self, field: str = "cpu") -> alt.X:
        logarithmic = self.across[0] > 0
        scale = alt.Scale(type="log" if logarithmic else "linear", domain=list(self.across), nice=False)
        axis = alt.Axis(grid=False, format=".3~r", labelOverlap=True)
        if logarithmic:
            axis = alt.Axis(grid=False, format=".3~r", labelOverlap=True, values=self._ticks())
        return alt.X(
            f"{field}:Q",
            scale=scale,
            axis=axis,
            title=f"application's CPU a page on one machine, ms{'' if self.narrow else ', its own needs included'}",
        )

    def _ticks(self) -> list[float]:
        low, high = self.across
        ticks = (lead * 10.0**decade for decade in range(-3, 5) for lead in (1, 2, 5))
        return [tick for tick in ticks if low <= tick <= high]

    def y(self, field: str = "ratio") -> alt.Y:
        low, high = self.heights
        ticks = [tick for tick in RATIO_TICKS if low <= tick <= high]
        ticks = ticks if len(ticks) <= 9 else [tick for tick in ticks if tick in (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10)]
        return alt.Y(
            f"{field}:Q",
            scale=alt.Scale(type="log", domain=list(self.heights), nice=False),
            axis=alt.Axis(values=ticks, format=".2~r"),
            title="pages a second, two machines over one",
        )

    def chart(self) -> Drawable:
        layers = [*self._regions(), *self._model(), *self._measured(), *self._flips()]
        return alt.layer(*layers).properties(width=self.width, height=HEIGHT if not self.narrow else 240)

    def _regions(self) -> list[Any]:
        """What is not resolved, the line of equals, and what either side of it means."""
        found: list[Any] = []
        low, high = self.heights
        if self.floor:
            band = [{"ratio": max(1 / (1 + self.floor), low), "to": min(1 + self.floor, high)}]
            found.append(alt.Chart(values(band)).mark_rect(color=palette.BAND).encode(y=self.y(), y2="to:Q"))
        rule = alt.Chart(values([{"ratio": 1.0}])).mark_rule(color=palette.MUTED, strokeWidth=1.4)
        found.append(rule.encode(y=self.y()))
        start = self.across[0] if self.across[0] > 0 else 0.0
        for text, at, below in (("two machines are better", high, True), ("one machine is better", low, False)):
            mark = alt.Chart(values([{"cpu": start, "ratio": at, "text": text}])).mark_text(
                align="left",
                baseline="top" if below else "bottom",
                dx=6,
                dy=5 if below else -5,
                color=palette.MUTED,
                fontSize=11 if self.narrow else 13,
                fontStyle="italic",
            )
            found.append(mark.encode(x=self.x(), y=self.y(), text="text:N"))
        return found

    def _model(self) -> list[Any]:
        rows = [
            {"series": self.series[_key(each)], "cpu": at, "ratio": ratio}
            for each in self.crossings
            for at, ratio in zip(each.curve_ms, each.curve_ratio, strict=True)
            if self.across[0] <= at <= self.across[1] and self.heights[0] <= ratio <= self.heights[1]
        ]
        if not rows:
            return []
        line = alt.Chart(values(rows)).mark_line(strokeWidth=1.5, strokeDash=[5, 4], opacity=0.9)
        return [line.encode(x=self.x(), y=self.y(), color=self.colour)]

    def _measured(self) -> list[Any]:
        low, high = self.heights
        rows = [
            {
                "series": self.series[_key(choice)],
                "cpu": choice.app_cpu_total_ms,
                "ratio": choice.two_over_one.value,
                "low": max(_or(choice.two_over_one.low, choice.two_over_one.value), low),
                "high": min(_or(choice.two_over_one.high, choice.two_over_one.value), high),
            }
            for choice in self.drawn
        ]
        data = alt.Chart(values(rows))
        interval = data.mark_rule(strokeWidth=2.2, opacity=0.6)
        point = data.mark_point(filled=True, size=50 if self.narrow else 80, opacity=1)
        return [
            interval.encode(x=self.x(), y=self.y("low"), y2="high:Q", color=self.colour),
            point.encode(x=self.x(), y=self.y(), color=self.colour, shape=self.shape),
        ]

    def _flips(self) -> list[Any]:
        """On the line of equals: where it was found to flip, with its interval, and the figure. An end that nothing measured closes
        goes to the chart's edge, with an arrow; one block alone has no interval."""
        low, high = self.across
        rows = [
            {
                "series": self.series[_key(each)],
                "cpu": found.value,
                "low": low if found.low is None else max(found.low, low),
                "high": high if found.high is None else min(found.high, high),
                "ratio": 1.0,
                "text": f"{words.milliseconds(found.value)} ms",
                "low open": found.low is None,
                "high open": found.high is None,
            }
            for each in self.crossings
            if (found := each.measured_ms) is not None
        ]
        if not rows:
            return []
        data = alt.Chart(values(rows))
        told = [row for row in rows if not (row["low open"] and row["high open"])]
        interval = alt.Chart(values(told)).mark_rule(strokeWidth=6, opacity=0.45)
        # Curves come from below on the left: there is room below on the right.
        beside: dict[str, Any] = {"align": "left", "dx": 7, "dy": 15, "fontWeight": "bold", "fontSize": 12}
        halo = data.mark_text(**beside, stroke=palette.HALO, strokeWidth=3)
        label = data.mark_text(**beside, color=palette.INK)
        return [
            *([interval.encode(x=self.x("low"), x2="high:Q", y=self.y(), color=self.colour)] if told else []),
            *self._open_ends(told),
            data.mark_point(shape="diamond", size=130, strokeWidth=2.2, filled=False, color=palette.INK).encode(
                x=self.x(), y=self.y()
            ),
            halo.encode(x=self.x(), y=self.y(), text="text:N"),
            label.encode(x=self.x(), y=self.y(), text="text:N"),
        ]

    def _open_ends(self, rows: Sequence[dict[str, Any]]) -> list[Any]:
        found: list[Any] = []
        for end, arrow in (("low", "triangle-left"), ("high", "triangle-right")):
            ends = [row for row in rows if row[f"{end} open"]]
            if ends:
                mark = alt.Chart(values(ends)).mark_point(shape=arrow, filled=True, size=170, opacity=0.9)
                found.append(mark.encode(x=self.x(end), y=self.y(), color=self.colour))
        return found


def _key(found: PageChoice | Crossing) -> tuple[Setting, words.Way]:
    """A series: all but the CPU, which is the axis."""
    return Setting(found.page, found.application, found.connect, 0, found.threads), words.way_of(found)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
