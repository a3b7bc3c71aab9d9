"""The charts of pages. Each function takes findings and a width in pixels and returns a chart, or None if there is nothing to draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from howfar.experiments.page.findings import (
    Crossing,
    PageArm,
    PageChoice,
    PageFindings,
    Route,
    Setting,
    arms_of,
    headline_settings,
    route_of,
    swept_setting,
)
from howfar.experiments.page.labels import DEGRADED_MS, NOTICED_MS, series_names, where
from howfar.experiments.page.sentences import in_flight, milliseconds
from howfar.report import palette
from howfar.report.charts import PHONE, Drawable, hconcat, layer, log_ticks, pick, values, vconcat
from howfar.report.figures import number

Latencies = Mapping[str, Sequence[tuple[float, float]]]
"""By arm: quantiles, and milliseconds at each."""
_Rows = list[dict[str, Any]]
ROOM = 1.12
"""What the axes leave beyond the outermost point."""
FARTHEST = 3
"""Intervals are drawn as far as this many times the outermost value: wider ones would compress everything else."""
LOG_FROM = 6
"""The axis of CPU is logarithmic if its ends differ by more than this factor."""
RATIO_TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 3, 5, 10)
FEW_TICKS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10)


def _axis_scale(domain: Sequence[float], kind: str = "linear") -> alt.Scale:
    return alt.Scale(type=kind, domain=list(domain), nice=False)  # type: ignore[arg-type]


def _legend(columns: int, limit: int = 180) -> alt.Legend:
    return alt.Legend(orient="top", title=None, columns=columns, labelLimit=limit, symbolOpacity=1, symbolSize=90)


def _by_series(
    kind: Any, names: Sequence[str], look: Sequence[Any], legend: alt.Legend | None, field: str = "series"
) -> Any:
    """A channel of colour, shape or dash by name."""
    scale = alt.Scale(domain=list(names), range=list(look))
    return kind(f"{field}:N", sort=list(names), scale=scale, legend=legend)


# ---------------------------------------------------------------- the crossing


def headline_levels(findings: PageFindings) -> list[PageChoice]:
    """Of each page's headline application and connections, at any application CPU and any number in flight."""
    wanted = {setting.subject for setting in headline_settings(findings)}
    return [choice for choice in findings.choices if swept_setting(choice).subject in wanted]


def headline_crossings(findings: PageFindings) -> list[Crossing]:
    """Of each page and route that of the headline setting: with its number of pages in flight if that was swept, else the most that
    was."""
    found = []
    for setting in headline_settings(findings):
        same = [crossing for crossing in findings.crossings if swept_setting(crossing).subject == setting.subject]
        for route in dict.fromkeys(route_of(crossing) for crossing in same):
            mine = [crossing for crossing in same if route_of(crossing) == route]
            found.append(max(mine, key=lambda crossing: (crossing.threads == setting.threads, crossing.threads)))
    return found


def swept_levels(findings: PageFindings) -> list[PageChoice]:
    """Headline levels of a series with at least two: one point is no curve."""
    found = headline_levels(findings)
    swept = Counter(_series(choice) for choice in found)
    return [choice for choice in found if swept[_series(choice)] > 1]


def crossing_chart(findings: PageFindings, floor: float | None, width: int) -> Drawable | None:
    """Pages a second with two machines over one, against the application's CPU a page."""
    drawn = swept_levels(findings)
    return _CrossingChart(drawn, findings.crossings, floor or 0.0, width).chart() if drawn else None


class _CrossingChart:
    """Axes, colours and shapes, which the layers share."""

    def __init__(self, drawn: Sequence[PageChoice], crossings: Sequence[Crossing], floor: float, width: int) -> None:
        self.width, self.narrow, self.floor, self.drawn = width, width < PHONE, floor, drawn
        of_series = {_series(choice): choice for choice in drawn}
        self.series = dict(zip(of_series, series_names(list(of_series.values())), strict=True))
        self.crossings = [crossing for crossing in crossings if _series(crossing) in self.series]
        self.across, self.heights = self._across(), self._heights()
        names = list(self.series.values())
        legend = _legend(1 if self.narrow else 4, 300)
        self.colour = _by_series(alt.Color, names, pick(palette.SERIES, len(names)), legend)
        self.shape = _by_series(alt.Shape, names, pick(palette.SHAPES, len(names)), legend)

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
        ends = [end for choice in self.drawn for end in (choice.two_over_one.low, choice.two_over_one.high)]
        limits = [end for end in ends if end is not None] + [1 + self.floor, 1 / (1 + self.floor)]
        least, most = min(points) / FARTHEST, max(points) * FARTHEST
        seen = points + [min(max(limit, least), most) for limit in limits]
        # A region without a point still needs room for its name.
        return min(*seen, 0.9) / ROOM, max(*seen, 1.1) * ROOM

    def x(self, field: str = "cpu") -> alt.X:
        low, high = self.across
        ticks = [tick for decade in range(-3, 5) for lead in (1, 2, 5) if low <= (tick := lead * 10.0**decade) <= high]
        more = {"values": ticks} if low > 0 else {}
        return alt.X(
            f"{field}:Q",
            scale=_axis_scale(self.across, "log" if low > 0 else "linear"),
            axis=alt.Axis(grid=False, format=".3~r", labelOverlap=True, **more),  # type: ignore[arg-type]
            title=f"application's CPU a page on one machine, ms{'' if self.narrow else ', its own needs included'}",
        )

    def y(self, field: str = "ratio") -> alt.Y:
        low, high = self.heights
        ticks = [tick for tick in RATIO_TICKS if low <= tick <= high]
        ticks = ticks if len(ticks) <= 9 else [tick for tick in ticks if tick in FEW_TICKS]
        return alt.Y(
            f"{field}:Q",
            scale=_axis_scale(self.heights, "log"),
            axis=alt.Axis(values=ticks, format=".2~r"),
            title="pages a second, two machines over one",
        )

    def chart(self) -> Drawable:
        layers = [*self._regions(), *self._model(), *self._measured(), *self._flips()]
        return layer(*layers, width=self.width, height=240 if self.narrow else 260)

    def _regions(self) -> list[Any]:
        """The noise floor, the line of equality, and what either side of it means."""
        found: list[Any] = []
        low, high = self.heights
        if self.floor:
            band = [{"ratio": max(1 / (1 + self.floor), low), "to": min(1 + self.floor, high)}]
            found.append(alt.Chart(values(band)).mark_rect(color=palette.BAND).encode(y=self.y(), y2="to:Q"))
        rule = alt.Chart(values([{"ratio": 1.0}])).mark_rule(color=palette.MUTED, strokeWidth=1.4)
        found.append(rule.encode(y=self.y()))
        for text, at, baseline in (("two machines are better", high, "top"), ("one machine is better", low, "bottom")):
            mark = alt.Chart(values([{"cpu": self.across[0], "ratio": at, "text": text}])).mark_text(
                align="left",
                baseline=baseline,  # type: ignore[arg-type]
                dx=6,
                dy=5 if baseline == "top" else -5,
                color=palette.MUTED,
                fontSize=11 if self.narrow else 13,
                fontStyle="italic",
            )
            found.append(mark.encode(x=self.x(), y=self.y(), text="text:N"))
        return found

    def _model(self) -> list[Any]:
        rows = [
            {"series": self.series[_series(each)], "cpu": at, "ratio": ratio}
            for each in self.crossings
            for at, ratio in zip(each.curve_ms, each.curve_ratio, strict=True)
            if self.across[0] <= at <= self.across[1] and self.heights[0] <= ratio <= self.heights[1]
        ]
        line = alt.Chart(values(rows)).mark_line(strokeWidth=1.5, strokeDash=[5, 4], opacity=0.9)
        return [line.encode(x=self.x(), y=self.y(), color=self.colour)] if rows else []

    def _measured(self) -> list[Any]:
        low, high = self.heights
        rows = []
        for choice in self.drawn:
            ratio = choice.two_over_one
            ends = [ratio.value if end is None else min(max(end, low), high) for end in (ratio.low, ratio.high)]
            point = {"series": self.series[_series(choice)], "cpu": choice.app_cpu_total_ms, "ratio": ratio.value}
            rows.append(point | {"low": ends[0], "high": ends[1]})
        data = alt.Chart(values(rows))
        interval = data.mark_rule(strokeWidth=2.2, opacity=0.6)
        points = data.mark_point(filled=True, size=50 if self.narrow else 80, opacity=1)
        return [
            interval.encode(x=self.x(), y=self.y("low"), y2="high:Q", color=self.colour),
            points.encode(x=self.x(), y=self.y(), color=self.colour, shape=self.shape),
        ]

    def _flips(self) -> list[Any]:
        """On the line of equality: the measured crossing with its interval and figure. An end that no measurement closes goes to the
        chart's edge, with an arrow; a single block has no interval."""
        low, high = self.across
        rows: _Rows = [
            {
                "series": self.series[_series(each)],
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
        data = alt.Chart(values(rows))
        bounded = [row for row in rows if not (row["low open"] and row["high open"])]
        interval = alt.Chart(values(bounded)).mark_rule(strokeWidth=6, opacity=0.45)
        # Curves come from below on the left, so there is room below on the right.
        look: dict[str, Any] = {"align": "left", "dx": 7, "dy": 15, "fontWeight": "bold", "fontSize": 12}
        halo = data.mark_text(**look, stroke=palette.HALO, strokeWidth=3)
        label = data.mark_text(**look, color=palette.INK)
        diamond = data.mark_point(shape="diamond", size=130, strokeWidth=2.2, filled=False, color=palette.INK)
        return [
            *([interval.encode(x=self.x("low"), x2="high:Q", y=self.y(), color=self.colour)] if bounded else []),
            *self._open_ends(bounded),
            diamond.encode(x=self.x(), y=self.y()),
            halo.encode(x=self.x(), y=self.y(), text="text:N"),
            label.encode(x=self.x(), y=self.y(), text="text:N"),
        ]

    def _open_ends(self, rows: _Rows) -> list[Any]:
        found: list[Any] = []
        for end, arrow in (("low", "triangle-left"), ("high", "triangle-right")):
            if ends := [row for row in rows if row[f"{end} open"]]:
                mark = alt.Chart(values(ends)).mark_point(shape=arrow, filled=True, size=170, opacity=0.9)
                found.append(mark.encode(x=self.x(end), y=self.y(), color=self.colour))
        return found


def _series(found: PageChoice | Crossing) -> tuple[Setting, Route]:
    """All but the CPU, which is the axis."""
    return swept_setting(found), route_of(found)


# ---------------------------------------------------------------- where a page's time goes

PARTS = ("requested computing", "MySQL", "Redis", "Memcached", "connecting", "application, waiting")
PART_COLOURS = (
    palette.PARTS[4],
    palette.PARTS[0],
    palette.PARTS[3],
    palette.PARTS[1],
    palette.PARTS[2],
    palette.PARTS[5],
)


def time_parts(arm: PageArm) -> dict[str, float]:
    """Milliseconds of a page by its own clock; they add up to the page. A service's part is its whole round trips, the application's
    work to send and read them included. If the parts are longer than the page, the last is 0 and the others are cut in proportion."""
    found = {PARTS[0]: arm.app_cpu_ns / 1e6}
    for name, service in zip(PARTS[1:4], ("mysql", "redis", "memcached"), strict=True):
        found[name] = sum(cost.turns * cost.mean_us for cost in arm.turns if cost.service == service) / 1e3
    found[PARTS[4]] = sum(cost.connects * cost.connect_us for cost in arm.turns if cost.connect_us is not None) / 1e3
    known, whole = sum(found.values()), arm.page_ms.value
    if known > whole:
        found = {name: ms * whole / known for name, ms in found.items()}
    return found | {PARTS[5]: max(whole - known, 0.0)}


def quietest(findings: PageFindings) -> list[Setting]:
    """Of each page, application and connections: nothing computed in addition, and the fewest pages in flight."""
    found: dict[tuple[str, str, str], Setting] = {}
    for arm in findings.arms:
        mine = Setting(arm.page, arm.application, arm.connect, arm.app_cpu_ns, arm.threads)
        best = found.get(mine.subject, mine)
        found[mine.subject] = min(best, mine, key=lambda each: (each.app_cpu_ns, each.threads))
    return list(found.values())


def split_arms(findings: PageFindings) -> dict[str, list[PageArm]]:
    """By page: the headline application's quietest arms that have round trips."""
    by_subject = {setting.subject: setting for setting in quietest(findings)}
    found = {
        setting.page: [arm for arm in arms_of(findings, by_subject[setting.subject]) if arm.turns]
        for setting in headline_settings(findings)
    }
    return {page: arms for page, arms in found.items() if arms}


def split_chart(findings: PageFindings, width: int) -> Drawable | None:
    """A bar a path, a panel a page: pages differ too much in length for one axis."""
    drawn = split_arms(findings)
    arms = [arm for found in drawn.values() for arm in found]
    present = [part for part in PARTS if any(time_parts(arm)[part] > 0 for arm in arms)]
    panels = [
        _split_panel(page, found, findings, present, width, first=index == 0)
        for index, (page, found) in enumerate(drawn.items())
    ]
    return None if not panels else panels[0] if len(panels) == 1 else vconcat(*panels, spacing=14)


def _split_panel(
    page: str, arms: Sequence[PageArm], findings: PageFindings, present: list[str], width: int, first: bool
) -> Drawable:
    narrow = width < PHONE
    named = [(where(arm, findings), arm) for arm in arms]
    bars = [
        {"bar": name, "part": part, "order": order, "ms": time_parts(arm)[part]}
        for name, arm in named
        for order, part in enumerate(PARTS)
        if part in present
    ]
    ends = [{"bar": name, "ms": arm.page_ms.value, "text": f"{number(arm.page_ms.value)} ms"} for name, arm in named]
    scale = _axis_scale([0, max(arm.page_ms.value for arm in arms) * (1.35 if narrow else 1.14)])
    legend = alt.Legend(orient="top", title=None, columns=2 if narrow else 6, symbolType="square", labelLimit=170)
    colours = [PART_COLOURS[PARTS.index(part)] for part in present]
    colour = _by_series(alt.Color, present, colours, legend if first else None, "part")
    axis = alt.Axis(labelLimit=150, ticks=False, domain=False, labelPadding=6)
    y = alt.Y("bar:N", sort=[name for name, _ in named], title=None, axis=axis)
    x = alt.X("ms:Q", stack="zero", scale=scale, axis=alt.Axis(tickCount=5, format=".3~r"), title="ms a page (mean)")
    text = alt.Chart(values(ends)).mark_text(align="left", dx=5, color=palette.INK, fontSize=11 if narrow else 13)
    return layer(
        alt.Chart(values(bars)).mark_bar(size=19).encode(x=x, y=y, color=colour, order=alt.Order("order:Q")),
        text.encode(x=alt.X("ms:Q", scale=scale), y=y, text="text:N"),
        width=width,
        height=34 * len(arms),
        title=alt.TitleParams(f"{page}, {in_flight(arms[0].threads)}", anchor="start"),
    )


# ---------------------------------------------------------------- latency


@dataclass(frozen=True)
class _Panel:
    """Width of this panel and of all; the vertical range of all, with both thresholds in it."""

    width: int
    whole: int
    heights: tuple[float, float]
    first: bool


def latency_chart(findings: PageFindings, latencies: Latencies, width: int) -> Drawable | None:
    """How long pages take: a panel a page, a line a path, and what people notice."""
    panels: dict[str, _Rows] = {}
    for setting in headline_settings(findings):
        rows = [
            {"path": where(arm, findings), "tail": 1 / (1 - quantile), "ms": ms}
            for arm in arms_of(findings, setting)
            for quantile, ms in latencies.get(arm.arm, ())
            if ms > 0 and quantile < 1
        ]
        if rows:
            panels[f"{setting.page}, {in_flight(setting.threads)}"] = rows
    if not panels:
        return None
    names = list(dict.fromkeys(row["path"] for rows in panels.values() for row in rows))
    narrow = width < PHONE
    colours = [path_colours(findings)[name] for name in names]
    legend = _legend(1 if narrow else 4)
    look = {
        "color": _by_series(alt.Color, names, colours, legend, "path"),
        "strokeDash": _by_series(alt.StrokeDash, names, pick(palette.DASHES, len(names)), legend, "path"),
    }
    seen = [row["ms"] for rows in panels.values() for row in rows] + [DEGRADED_MS]
    heights = min(seen) / 1.15, max(seen) * 1.3
    each = width if narrow or len(panels) == 1 else (width - 60) // 2
    charts = [
        _latency_panel(title, rows, look, _Panel(each, width, heights, index == 0 or narrow))
        for index, (title, rows) in enumerate(panels.items())
    ]
    if len(charts) == 1:
        return charts[0]
    in_line = 1 if narrow else 2
    lines = [hconcat(*charts[at : at + in_line], spacing=26) for at in range(0, len(charts), in_line)]
    return lines[0] if len(lines) == 1 else vconcat(*lines)


def _latency_panel(title: str, rows: _Rows, look: dict[str, Any], panel: _Panel) -> Drawable:
    lowest, highest = panel.heights
    last = max(row["tail"] for row in rows)
    x = alt.X(
        "tail:Q",
        scale=_axis_scale([1, last], "log"),
        axis=alt.Axis(
            values=[tail for tail in (1, 2, 10, 100, 1000, 10_000) if tail <= last],
            labelExpr="datum.value <= 1 ? 'min' : format(100 * (1 - 1 / datum.value), '~r') + ' %'",
            grid=False,
        ),
        title="this share of pages was faster",
    )
    y = alt.Y(
        "ms:Q",
        scale=_axis_scale(panel.heights, "log"),
        axis=alt.Axis(values=log_ticks(lowest, highest), format=".3~r"),
        title="ms a page" if panel.first else None,
    )
    layers: list[Any] = [alt.Chart(values(rows)).mark_line(strokeWidth=2.2).encode(x=x, y=y, **look)]
    thresholds = [at for at in (NOTICED_MS, DEGRADED_MS) if lowest < at < highest]
    if thresholds:
        data = alt.Chart(values([{"tail": 1.0, "ms": float(at), "text": f"{at} ms"} for at in thresholds]))
        layers += [
            data.mark_rule(color=palette.INK, strokeDash=[2, 3], strokeWidth=1.2).encode(y=y),
            data.mark_text(align="left", dx=4, dy=-6, color=palette.INK, fontSize=11).encode(x=x, y=y, text="text:N"),
        ]
    return layer(*layers, width=panel.width, height=230, title=alt.TitleParams(title, anchor="start"))


# ---------------------------------------------------------------- the model's errors

BAR = 0.1
"""The model's error should stay within this."""


def prediction_chart(findings: PageFindings, width: int) -> Drawable | None:
    """The model's error at each page, against the page's time."""
    arms = [arm for arm in findings.arms if arm.predicted_error is not None]
    if not arms:
        return None
    pages = list(dict.fromkeys(arm.page for arm in arms))
    series = {f"{arm.page}: {where(arm, findings)}": arm for arm in arms}
    rows: _Rows = [
        {"series": f"{arm.page}: {where(arm, findings)}", "ms": arm.p50_ms, "off": arm.predicted_error or 0.0}
        for arm in arms
    ]
    farthest = max(1.5 * BAR, *(1.1 * abs(row["off"]) for row in rows))
    low, high = min(arm.p50_ms for arm in arms) / 1.25, max(arm.p50_ms for arm in arms) * 1.25
    x = alt.X(
        "ms:Q",
        scale=_axis_scale([low, high], "log"),
        axis=alt.Axis(values=log_ticks(low, high), format=".3~r", grid=False),
        title="p50 measured, ms",
    )
    signed = "datum.value == 0 ? '0' : format(100 * datum.value, '+.0f') + ' %'"
    y = alt.Y(
        "off:Q",
        scale=_axis_scale([-farthest, farthest]),
        axis=alt.Axis(labelExpr=signed, tickCount=7),
        title="predicted, over measured",
    )
    legend = _legend(2 if width < PHONE else 4)
    of_paths = path_colours(findings)
    colours = [of_paths[where(arm, findings)] for arm in series.values()]
    shapes = [palette.SHAPES[pages.index(arm.page) % 8] for arm in series.values()]
    colour = _by_series(alt.Color, list(series), colours, legend)
    shape = _by_series(alt.Shape, list(series), shapes, legend)
    band = alt.Chart(values([{"off": -BAR, "to": BAR}])).mark_rect(color=palette.BAND)
    right = alt.Chart(values([{"off": 0.0}])).mark_rule(color=palette.MUTED, strokeDash=[4, 3], strokeWidth=1.2)
    points = alt.Chart(values(rows)).mark_point(filled=True, size=70, opacity=0.9)
    return layer(
        band.encode(y=y, y2="to:Q"),
        right.encode(y=y),
        points.encode(x=x, y=y, color=colour, shape=shape),
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
