"""The charts of pages. Each function takes findings and a width in pixels and returns a chart, or None if there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howfar.experiments.page.findings import BAR, Crossing, PageArm, PageChoice, PageFindings
from howfar.experiments.page.labels import DEGRADED_MS, NOTICED_MS, in_flight, milliseconds, series_names, where
from howfar.report import palette
from howfar.report.charts import (
    PHONE,
    Drawable,
    Rows,
    axis,
    by_name,
    data,
    ends,
    intervals,
    layer,
    legend,
    log_axis,
    log_ticks,
    percentiles,
    rows_of,
    series_looks,
    stacked,
)
from howfar.report.drawing import alt
from howfar.report.figures import number

Latencies = Mapping[str, Sequence[tuple[float, float]]]
"""Quantiles by arm, and the milliseconds at each."""
ROOM = 1.12
"""Factor by which the axes extend beyond the outermost point."""
FARTHEST = 3
"""Intervals are drawn as far as this many times the outermost value: wider ones would compress everything else."""
LOG_FROM = 6
"""The axis of CPU is logarithmic if its ends differ by more than this factor."""
RATIO_TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 3, 5, 10)
FEW_TICKS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10)


def crossing_chart(findings: PageFindings, width: int) -> Drawable | None:
    """Pages per second with two machines over one, against the application's CPU per page."""
    drawn = findings.swept_levels()
    return _CrossingChart(drawn, findings.crossings, findings.link_noise_floor or 0.0, width).chart() if drawn else None


class _CrossingChart:
    """Axes, colours and shapes, which the layers share."""

    def __init__(self, drawn: Sequence[PageChoice], crossings: Sequence[Crossing], floor: float, width: int) -> None:
        self.width, self.narrow, self.floor, self.drawn = width, width < PHONE, floor, drawn
        of_series = {choice.series: choice for choice in drawn}
        self.series = dict(zip(of_series, series_names(list(of_series.values())), strict=True))
        self.crossings = [crossing for crossing in crossings if crossing.series in self.series]
        self.across, self.heights = self._across(), self._heights()
        names, key = list(self.series.values()), legend(1 if self.narrow else 4, 300, symbolOpacity=1, symbolSize=90)
        self.colour, self.shape = series_looks(names, key)

    def _across(self) -> tuple[float, float]:
        seen = [choice.app_cpu_total_ms for choice in self.drawn]
        for each in self.crossings:
            if each.measured_ms:
                seen.append(each.measured_ms.value)
            if each.predicted_ms is not None and each.swept_ms[0] <= each.predicted_ms <= 2 * each.swept_ms[1]:
                seen.append(each.predicted_ms)
        low, high = max(min(seen), 1e-3), max(seen)
        return (low / ROOM, high * ROOM) if high / low > LOG_FROM else (0.0, high * 1.05)

    def _heights(self) -> tuple[float, float]:
        points = [choice.two_over_one.value for choice in self.drawn] + [1.0]
        found = [end for choice in self.drawn for end in (choice.two_over_one.low, choice.two_over_one.high)]
        limits = [end for end in found if end is not None] + [1 + self.floor, 1 / (1 + self.floor)]
        least, most = min(points) / FARTHEST, max(points) * FARTHEST
        seen = points + [min(max(limit, least), most) for limit in limits]
        # A region without a point still needs room for its name.
        return min(*seen, 0.9) / ROOM, max(*seen, 1.1) * ROOM

    def x(self, field: str = "cpu") -> alt.X:
        low, high = self.across
        title = f"application's CPU per page on one machine, ms{'' if self.narrow else ', its own needs included'}"
        ticks: dict[str, Any] = {"values": log_ticks(low, high)} if low > 0 else {}
        log = 10 if low > 0 else 0
        return axis(alt.X, field, title, self.across, log, grid=False, format=".3~r", labelOverlap=True, **ticks)

    def y(self, field: str = "ratio") -> alt.Y:
        low, high = self.heights
        ticks = [tick for tick in RATIO_TICKS if low <= tick <= high]
        ticks = ticks if len(ticks) <= 9 else [tick for tick in ticks if tick in FEW_TICKS]
        title = "pages per second, two machines over one"
        return axis(alt.Y, field, title, self.heights, 10, values=ticks, format=".2~r")

    def chart(self) -> Drawable:
        layers = [*self._regions(), *self._model(), *self._measured(), *self._flips()]
        return layer(*layers, width=self.width, height=240 if self.narrow else 260)

    def _regions(self) -> list[Any]:
        """The noise floor, the line of equality, and what either side of it means."""
        found: list[Any] = []
        low, high = self.heights
        if self.floor:
            band = [{"ratio": max(1 / (1 + self.floor), low), "to": min(1 + self.floor, high)}]
            found.append(data(band).mark_rect(color=palette.BAND).encode(y=self.y(), y2="to:Q"))
        found.append(data([{"ratio": 1.0}]).mark_rule(color=palette.MUTED, strokeWidth=1.4).encode(y=self.y()))
        for text, at, baseline, dy in (
            ("two machines are better", high, "top", 5),
            ("one machine is better", low, "bottom", -5),
        ):
            look: dict[str, Any] = {"align": "left", "baseline": baseline, "dx": 6, "dy": dy, "fontStyle": "italic"}
            mark = data([{"cpu": self.across[0], "ratio": at, "text": text}]).mark_text(
                **look, color=palette.MUTED, fontSize=11 if self.narrow else 13
            )
            found.append(mark.encode(x=self.x(), y=self.y(), text="text:N"))
        return found

    def _model(self) -> list[Any]:
        rows = [
            {"series": self.series[each.series], "cpu": at, "ratio": ratio}
            for each in self.crossings
            for at, ratio in zip(each.curve_ms, each.curve_ratio, strict=True)
            if self.across[0] <= at <= self.across[1] and self.heights[0] <= ratio <= self.heights[1]
        ]
        line = data(rows).mark_line(strokeWidth=1.5, strokeDash=[5, 4], opacity=0.9)
        return [line.encode(x=self.x(), y=self.y(), color=self.colour)] if rows else []

    def _measured(self) -> list[Any]:
        rows: Rows = [
            {"series": self.series[choice.series], "cpu": choice.app_cpu_total_ms, "ratio": choice.two_over_one.value}
            | ends(choice.two_over_one, self.heights)
            for choice in self.drawn
        ]
        size = 50 if self.narrow else 80
        return intervals(rows, self.x(), self.y(), self.y("low"), colour=self.colour, shape=self.shape, size=size)

    def _flips(self) -> list[Any]:
        """On the line of equality: the measured crossing with its interval and figure. An end that no measurement closes goes to the
        chart's edge, with an arrow; a single block has no interval."""
        low, high = self.across
        rows: Rows = [
            {
                "series": self.series[each.series],
                "cpu": found.value,
                "low": low if found.low is None else max(found.low, low),
                "high": high if found.high is None else min(found.high, high),
                "ratio": 1.0,
                "text": f"{milliseconds(found.value)} ms",
                "low open": found.low is None,
                "high open": found.high is None,
            }
            for each in self.crossings
            if (found := each.measured_ms) is not None
        ]
        if not rows:
            return []
        layers: list[Any] = []
        bounded = [row for row in rows if not (row["low open"] and row["high open"])]
        if bounded:
            interval = data(bounded).mark_rule(strokeWidth=6, opacity=0.45)
            layers.append(interval.encode(x=self.x("low"), x2="high:Q", y=self.y(), color=self.colour))
        for end, arrow in (("low", "triangle-left"), ("high", "triangle-right")):
            if unbounded := [row for row in bounded if row[f"{end} open"]]:
                mark = data(unbounded).mark_point(shape=arrow, filled=True, size=170, opacity=0.9)
                layers.append(mark.encode(x=self.x(end), y=self.y(), color=self.colour))
        # Curves come from below on the left, so there is room below on the right.
        look: dict[str, Any] = {"align": "left", "dx": 7, "dy": 15, "fontWeight": "bold", "fontSize": 12}
        diamond = data(rows).mark_point(shape="diamond", size=130, strokeWidth=2.2, filled=False, color=palette.INK)
        halo = data(rows).mark_text(**look, stroke=palette.HALO, strokeWidth=3)
        label = data(rows).mark_text(**look, color=palette.INK)
        return [
            *layers,
            diamond.encode(x=self.x(), y=self.y()),
            *(text.encode(x=self.x(), y=self.y(), text="text:N") for text in (halo, label)),
        ]


# ---------------------------------------------------------------- where a page's time goes

PARTS = {
    "requested computing": palette.PARTS[4],
    "MySQL": palette.PARTS[0],
    "Redis": palette.PARTS[3],
    "Memcached": palette.PARTS[1],
    "connecting": palette.PARTS[2],
    "application, waiting": palette.PARTS[5],
}


def time_parts(arm: PageArm) -> dict[str, float]:
    """Parts of a page's time in milliseconds by its own clock; they add up to the page. A service's part is its complete round trips,
    including the application's work to send and read them. If the parts are longer than the page, the last is 0 and the others are cut
    in proportion."""
    requested, *services, connecting, rest = PARTS
    found = {requested: arm.app_cpu_ns / 1e6}
    for name in services:
        found[name] = sum(cost.turns * cost.mean_us for cost in arm.turns if cost.service == name.lower()) / 1e3
    found[connecting] = sum(cost.connects * cost.connect_us for cost in arm.turns if cost.connect_us is not None) / 1e3
    known, whole = sum(found.values()), arm.page_ms.value
    if known > whole:
        found = {name: ms * whole / known for name, ms in found.items()}
    return found | {rest: max(whole - known, 0.0)}


def split_arms(findings: PageFindings) -> dict[str, list[PageArm]]:
    """Arms by page: the headline application's quietest arms that have round trips."""
    quietest = findings.quietest()
    subjects = [setting.subject for setting in findings.headline_settings()]
    found = {each.page: [arm for arm in findings.arms_of(quietest[each]) if arm.turns] for each in subjects}
    return {page: arms for page, arms in found.items() if arms}


def split_chart(findings: PageFindings, width: int) -> Drawable | None:
    """A bar per path, a panel per page: pages differ too much in length for one axis."""
    drawn = split_arms(findings)
    every = [time_parts(arm) for arms in drawn.values() for arm in arms]
    present = {part: colour for part, colour in PARTS.items() if any(parts[part] > 0 for parts in every)}
    panels: list[Drawable] = []
    for page, arms in drawn.items():
        named = {where(arm, findings): arm for arm in arms}
        rows = [
            {"arm": name, "part": part, "value": ms}
            for name, arm in named.items()
            for part, ms in time_parts(arm).items()
            if part in present
        ]
        lengths = [
            {"arm": name, "value": arm.page_ms.value, "text": f"{number(arm.page_ms.value)} ms"}
            for name, arm in named.items()
        ]
        title = alt.TitleParams(f"{page}, {in_flight(arms[0].threads)}", anchor="start")
        options: dict[str, Any] = {"size": 19, "ends": lengths, "with_legend": not panels, "title": title}
        panels.append(stacked(rows, list(named), present, "ms per page (mean)", width, **options))
    return rows_of(panels, 1) if panels else None


# ---------------------------------------------------------------- latency, and the model's errors


def latency_chart(findings: PageFindings, latencies: Latencies, width: int) -> Drawable | None:
    """A panel per page, a line per path, and the delays that people notice."""
    panels = {
        f"{setting.subject.page}, {in_flight(setting.threads)}": [
            {"series": where(arm, findings), "quantile": quantile, "ms": ms}
            for arm in findings.arms_of(setting)
            for quantile, ms in latencies.get(arm.arm, ())
        ]
        for setting in findings.headline_settings()
    }
    titles = "this share of pages was faster", "ms per page"
    thresholds = NOTICED_MS, DEGRADED_MS
    return percentiles(panels, path_colours(findings), titles=titles, width=width, thresholds=thresholds)


def prediction_chart(findings: PageFindings, width: int) -> Drawable | None:
    """The model's error at each page, against the page's time."""
    arms = [arm for arm in findings.arms if arm.predicted_error is not None]
    if not arms:
        return None
    rows: Rows = [
        {"series": f"{arm.page}: {where(arm, findings)}", "ms": arm.p50_ms, "off": arm.predicted_error or 0.0}
        for arm in arms
    ]
    pages, paths = list(dict.fromkeys(arm.page for arm in arms)), path_colours(findings)
    series = {row["series"]: arm for row, arm in zip(rows, arms, strict=True)}
    key = legend(2 if width < PHONE else 4, symbolOpacity=1, symbolSize=90)
    colours = {name: paths[where(arm, findings)] for name, arm in series.items()}
    shapes = {name: palette.SHAPES[pages.index(arm.page) % 8] for name, arm in series.items()}
    farthest = max(1.5 * BAR, *(1.1 * abs(row["off"]) for row in rows))
    across = min(arm.p50_ms for arm in arms) / 1.25, max(arm.p50_ms for arm in arms) * 1.25
    x = log_axis(alt.X, "ms", "p50 measured, ms", across, ".3~r", grid=False)
    signed = "datum.value == 0 ? '0' : format(100 * datum.value, '+.0f') + ' %'"
    y = axis(alt.Y, "off", "predicted, over measured", (-farthest, farthest), labelExpr=signed, tickCount=7)
    right = data([{"off": 0.0}]).mark_rule(color=palette.MUTED, strokeDash=[4, 3], strokeWidth=1.2)
    points = data(rows).mark_point(filled=True, size=70, opacity=0.9)
    return layer(
        data([{"off": -BAR, "to": BAR}]).mark_rect(color=palette.BAND).encode(y=y, y2="to:Q"),
        right.encode(y=y),
        points.encode(
            x=x, y=y, color=by_name(alt.Color, "series", colours, key), shape=by_name(alt.Shape, "series", shapes, key)
        ),
        width=width,
        height=200,
    )


def path_colours(findings: PageFindings) -> dict[str, str]:
    """Each path has the same colour on every chart; further links take the remaining ones."""
    colours = dict(zip(("socket", "tcp", "remote", "forwarded-socket"), palette.SERIES, strict=False))
    left = [*palette.SERIES[len(colours) :], *palette.SERIES]
    found: dict[str, str] = {}
    for name, path in {where(arm, findings): arm.path for arm in findings.arms}.items():
        own = colours.get(path) or left[0]
        found[name] = own if own not in found.values() else left.pop(0)
    return found
