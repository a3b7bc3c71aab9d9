"""The charts of pages. Each function takes findings and a width in pixels and returns a chart, or None if there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howfar.experiments.page.findings import ERROR_BAR, Crossing, PageArm, PageChoice, PageFindings
from howfar.experiments.page.labels import (
    DEGRADED_MS,
    NOTICED_MS,
    in_flight_text,
    location_text,
    series_labels,
    service_label,
)
from howfar.experiments.page.texts import CROSSINGS
from howfar.findings import fill
from howfar.report import palette
from howfar.report.charts import (
    LABEL_SIZE,
    PHONE,
    Drawable,
    Rows,
    VegaLite,
    arrange_in_rows,
    axis,
    clip_limits,
    data,
    interval_layers,
    label_layers,
    layer,
    legend,
    log_axis,
    log_ticks,
    percentile_chart,
    series_styles,
    stacked_bars,
)
from howfar.report.drawing import alt
from howfar.report.figures import number, percent

Latencies = Mapping[str, Sequence[tuple[float, float]]]
"""Quantiles by arm, and the milliseconds at each."""
DOMAIN_FACTOR = 1.12
"""Factor by which the axes extend beyond the outermost point."""
MAX_INTERVAL_FACTOR = 3
"""Intervals are drawn up to this multiple of the outermost value: wider ones would compress everything else."""
MIN_LOG_RATIO = 6
"""The axis of CPU is logarithmic if its ends differ by more than this factor."""
RATIO_TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 3, 5, 10)
FEW_TICKS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10)


def crossing_chart(findings: PageFindings, width: int) -> Drawable | None:
    """Pages per second with two machines over one, against the application's CPU per page."""
    choices = findings.swept_levels()
    return (
        _CrossingChart(choices, findings.crossings, findings.link_noise_floor or 0.0, width).chart()
        if choices
        else None
    )


class _CrossingChart:
    """Draws the crossing chart. The layers share axes, colours and shapes."""

    def __init__(self, choices: Sequence[PageChoice], crossings: Sequence[Crossing], floor: float, width: int) -> None:
        self.width, self.is_narrow, self.floor, self.choices = width, width < PHONE, floor, choices
        choice_of_series = {choice.series: choice for choice in choices}
        self.series = dict(zip(choice_of_series, series_labels(list(choice_of_series.values())), strict=True))
        self.crossings = [crossing for crossing in crossings if crossing.series in self.series]
        self.x_domain, self.y_domain = self._fit_x_domain(), self._fit_y_domain()
        names = list(self.series.values())
        legend_spec = legend(1, 300, symbolOpacity=1, symbolSize=90) if self.is_narrow else None
        self.colour, self.shape = series_styles(names, legend_spec)

    def _fit_x_domain(self) -> tuple[float, float]:
        cpu_ms = [choice.app_cpu_total_ms for choice in self.choices]
        for crossing in self.crossings:
            if crossing.measured_ms:
                cpu_ms.append(crossing.measured_ms.value)
            if (
                crossing.predicted_ms is not None
                and crossing.swept_ms[0] <= crossing.predicted_ms <= 2 * crossing.swept_ms[1]
            ):
                cpu_ms.append(crossing.predicted_ms)
        low, high = max(min(cpu_ms), 1e-3), max(cpu_ms)
        return (low / DOMAIN_FACTOR, high * DOMAIN_FACTOR) if high / low > MIN_LOG_RATIO else (0.0, high * 1.05)

    def _fit_y_domain(self) -> tuple[float, float]:
        points = [choice.two_over_one.value for choice in self.choices] + [1.0]
        ends = [limit for choice in self.choices for limit in (choice.two_over_one.low, choice.two_over_one.high)]
        bounds = [limit for limit in ends if limit is not None] + [1 + self.floor, 1 / (1 + self.floor)]
        min_ratio, max_ratio = min(points) / MAX_INTERVAL_FACTOR, max(points) * MAX_INTERVAL_FACTOR
        visible = points + [min(max(limit, min_ratio), max_ratio) for limit in bounds]
        # A region without a point still needs room for its label.
        return min(*visible, 0.9) / DOMAIN_FACTOR, max(*visible, 1.1) * DOMAIN_FACTOR

    def x(self, field: str = "cpu") -> alt.X:
        low, high = self.x_domain
        title = fill(CROSSINGS["axis"], own=not self.is_narrow)
        ticks = {"values": log_ticks(low, high)} if low > 0 else {}
        log = 10 if low > 0 else 0
        return axis(alt.X, field, title, self.x_domain, log, grid=False, format=".3~r", labelOverlap=True, **ticks)

    def y(self, field: str = "ratio") -> alt.Y:
        low, high = self.y_domain
        ticks = [tick for tick in RATIO_TICKS if low <= tick <= high]
        ticks = ticks if len(ticks) <= 9 else [tick for tick in ticks if tick in FEW_TICKS]
        title = "pages/s, two machines over one"
        return axis(alt.Y, field, title, self.y_domain, 10, values=ticks, format=".2~r")

    def chart(self) -> Drawable:
        layers = [*self._region_labels(), *self._model_lines(), *self._measured_points(), *self._crossing_marks()]
        names = [] if self.is_narrow else self._series_names()
        return layer(*layers, *names, width=self.width, height=240 if self.is_narrow else 260)

    def _series_names(self) -> list[Any]:
        """The name of each series at the right edge, level with its last point."""
        last = {choice.series: choice for choice in sorted(self.choices, key=lambda choice: choice.app_cpu_total_ms)}
        edge = self.x_domain[1]
        rows: Rows = [
            {"series": name, "text": name, "cpu": edge, "place": last[series].two_over_one.value}
            for series, name in self.series.items()
        ]
        return label_layers(rows, self.x(), self.y("place"), self.colour, self.y_domain, 260)

    def _region_labels(self) -> list[Any]:
        """The noise floor, the line of equality, and a label for the region on either side of that line."""
        layers: list[Any] = []
        low, high = self.y_domain
        if self.floor:
            band = [{"ratio": max(1 / (1 + self.floor), low), "to": min(1 + self.floor, high)}]
            layers.append(data(band).mark_rect(color=palette.BAND).encode(y=self.y(), y2="to:Q"))
        layers.append(data([{"ratio": 1.0}]).mark_rule(color=palette.MUTED, strokeWidth=1.4).encode(y=self.y()))
        for text, ratio, baseline, dy in (
            ("two machines are better", high, "top", 5),
            ("one machine is better", low, "bottom", -5),
        ):
            style: VegaLite = {"align": "left", "baseline": baseline, "dx": 6, "dy": dy, "fontStyle": "italic"}
            mark = data([{"cpu": self.x_domain[0], "ratio": ratio, "text": text}]).mark_text(
                **style, color=palette.MUTED, fontSize=11 if self.is_narrow else 13
            )
            layers.append(mark.encode(x=self.x(), y=self.y(), text="text:N"))
        return layers

    def _model_lines(self) -> list[Any]:
        rows = [
            {"series": self.series[crossing.series], "cpu": cpu_ms, "ratio": ratio}
            for crossing in self.crossings
            for cpu_ms, ratio in zip(crossing.curve_ms, crossing.curve_ratio, strict=True)
            if self.x_domain[0] <= cpu_ms <= self.x_domain[1] and self.y_domain[0] <= ratio <= self.y_domain[1]
        ]
        line = data(rows).mark_line(strokeWidth=1.5, strokeDash=[5, 4], opacity=0.9)
        return [line.encode(x=self.x(), y=self.y(), color=self.colour)] if rows else []

    def _measured_points(self) -> list[Any]:
        rows: Rows = [
            {"series": self.series[choice.series], "cpu": choice.app_cpu_total_ms, "ratio": choice.two_over_one.value}
            | clip_limits(choice.two_over_one, self.y_domain)
            for choice in self.choices
        ]
        size = 50 if self.is_narrow else 80
        return interval_layers(rows, self.x(), self.y(), self.y("low"), colour=self.colour, shape=self.shape, size=size)

    def _crossing_marks(self) -> list[Any]:
        """Marks on the line of equality: each measured crossing with its interval and figure. An open end of the interval is drawn to
        the chart's edge, with an arrow. With a single block there is no interval."""
        low, high = self.x_domain
        rows: Rows = [
            {
                "series": self.series[crossing.series],
                "cpu": measured.value,
                "low": low if measured.low is None else max(measured.low, low),
                "high": high if measured.high is None else min(measured.high, high),
                "ratio": 1.0,
                "text": f"{number(measured.value)} ms",
                "low open": measured.low is None,
                "high open": measured.high is None,
            }
            for crossing in self.crossings
            if (measured := crossing.measured_ms) is not None
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
        # Curves rise from the lower left, so there is room on the lower right.
        style: VegaLite = {"align": "left", "dx": 7, "dy": 15, "fontWeight": "bold", "fontSize": 12}
        diamond = data(rows).mark_point(shape="diamond", size=130, strokeWidth=2.2, filled=False, color=palette.INK)
        halo = data(rows).mark_text(**style, stroke=palette.HALO, strokeWidth=3)
        label = data(rows).mark_text(**style, color=palette.INK)
        return [
            *layers,
            diamond.encode(x=self.x(), y=self.y()),
            *(text.encode(x=self.x(), y=self.y(), text="text:N") for text in (halo, label)),
        ]


# ---------------------------------------------------------------- where a page's time goes

PARTS = {
    "requested computing": palette.PARTS[4],
    "SQL": palette.PARTS[0],
    "Redis": palette.PARTS[3],
    "Memcached": palette.PARTS[1],
    "connecting": palette.PARTS[2],
    "application, waiting": palette.PARTS[5],
}
_REQUESTED, *SERVICE_PARTS, _CONNECTING, _REST = PARTS


def time_parts(arm: PageArm) -> dict[str, float]:
    """Parts of a page's time in milliseconds by its own clock; they add up to the page. A service's part is its complete round trips,
    including the application's work to send and read them. If the parts together are longer than the page, the last is 0 and the
    others are reduced in proportion."""
    parts = {_REQUESTED: arm.app_cpu_ns / 1e6}
    for name in SERVICE_PARTS:
        parts[name] = sum(cost.turns * cost.mean_us for cost in arm.turns if service_label(cost.service) == name) / 1e3
    parts[_CONNECTING] = sum(cost.connects * cost.connect_us for cost in arm.turns if cost.connect_us is not None) / 1e3
    sum_ms, page_ms = sum(parts.values()), arm.page_ms.value
    if sum_ms > page_ms:
        parts = {name: ms * page_ms / sum_ms for name, ms in parts.items()}
    return parts | {_REST: max(page_ms - sum_ms, 0.0)}


def split_arms(findings: PageFindings) -> dict[str, list[PageArm]]:
    """Arms by page: those of the headline application with the least load, if they have round trips."""
    low_load_settings = findings.least_loaded_settings()
    subjects = [setting.subject for setting in findings.headline_settings()]
    arms_by_page = {
        subject.page: [arm for arm in findings.arms_of(low_load_settings[subject]) if arm.turns] for subject in subjects
    }
    return {page: arms for page, arms in arms_by_page.items() if arms}


def split_chart(findings: PageFindings, width: int) -> Drawable | None:
    """A panel for each page with a bar for each path. The times of pages differ too much for one axis."""
    arms_by_page = split_arms(findings)
    parts_of_arms = [time_parts(arm) for arms in arms_by_page.values() for arm in arms]
    present = {part: colour for part, colour in PARTS.items() if any(parts[part] > 0 for parts in parts_of_arms)}
    panels: list[Drawable] = []
    for page, arms in arms_by_page.items():
        arms_by_label = {location_text(arm, findings): arm for arm in arms}
        rows = [
            {"arm": name, "part": part, "value": ms}
            for name, arm in arms_by_label.items()
            for part, ms in time_parts(arm).items()
            if part in present
        ]
        lengths = [
            {"arm": name, "value": arm.page_ms.value, "text": f"{number(arm.page_ms.value)} ms"}
            for name, arm in arms_by_label.items()
        ]
        title = alt.TitleParams(f"{page}, {in_flight_text(arms[0].threads)}", anchor="start")
        names, unit = list(arms_by_label), "ms per page (mean)"
        panel = stacked_bars(
            rows, names, present, unit, width, size=19, ends=lengths, with_legend=not panels, title=title
        )
        panels.append(panel)
    return arrange_in_rows(panels, 1) if panels else None


# ---------------------------------------------------------------- latency, and the model's errors


def latency_chart(findings: PageFindings, latencies: Latencies, width: int) -> Drawable | None:
    """A panel for each page with a line for each path, and the delays that people notice."""
    panels = {
        f"{setting.subject.page}, {in_flight_text(setting.threads)}": [
            {"series": location_text(arm, findings), "quantile": quantile, "ms": ms}
            for arm in findings.arms_of(setting)
            for quantile, ms in latencies.get(arm.arm, ())
        ]
        for setting in findings.headline_settings()
    }
    titles = "this share of pages was faster", "ms per page"
    thresholds = NOTICED_MS, DEGRADED_MS
    return percentile_chart(panels, path_colours(findings), titles=titles, width=width, thresholds=thresholds)


def prediction_chart(findings: PageFindings, width: int) -> Drawable | None:
    """The model's error at each page, against the page's time."""
    arms = [arm for arm in findings.arms if arm.predicted_error is not None]
    if not arms:
        return None
    worst = max(arms, key=lambda arm: abs(arm.predicted_error or 0.0))
    rows: Rows = [{"ms": arm.p50_ms, "off": arm.predicted_error or 0.0} for arm in arms]
    highlight: Rows = [{"ms": worst.p50_ms, "off": worst.predicted_error or 0.0}]
    highlight[0]["text"] = f"{worst.page}: {location_text(worst, findings)} {percent(highlight[0]['off'], signed=True)}"
    max_error = max(1.5 * ERROR_BAR, *(1.1 * abs(row["off"]) for row in rows))
    x_domain = min(arm.p50_ms for arm in arms) / 1.25, max(arm.p50_ms for arm in arms) * 1.25
    x = log_axis(alt.X, "ms", "p50 measured, ms", x_domain, ".3~r", grid=False)
    signed_percent = "datum.value == 0 ? '0' : format(100 * datum.value, '+.0f') + ' %'"
    y = axis(alt.Y, "off", "predicted, over measured", (-max_error, max_error), labelExpr=signed_percent, tickCount=7)
    zero_line = data([{"off": 0.0}]).mark_rule(color=palette.MUTED, strokeDash=[4, 3], strokeWidth=1.2)
    point: VegaLite = {"filled": True, "size": 70, "opacity": 1}
    text = data(highlight).mark_text(align="left", fontSize=LABEL_SIZE, color=palette.SERIES[0])
    return layer(
        data([{"off": -ERROR_BAR, "to": ERROR_BAR}]).mark_rect(color=palette.BAND).encode(y=y, y2="to:Q"),
        zero_line.encode(y=y),
        data(rows).mark_point(**point, color=palette.MUTED).encode(x=x, y=y),
        data(highlight).mark_point(**point, color=palette.SERIES[0]).encode(x=x, y=y),
        text.encode(x=alt.value(8), y=alt.value(50), text="text:N"),
        width=width,
        height=200,
    )


def path_colours(findings: PageFindings) -> dict[str, str]:
    """Colours by location label. Each path has the same colour on every chart; further links take the remaining colours."""
    colours = dict(zip(("socket", "tcp", "remote", "forwarded-socket"), palette.SERIES, strict=False))
    unused = [*palette.SERIES[len(colours) :], *palette.SERIES]
    colour_by_name: dict[str, str] = {}
    for name, path in {location_text(arm, findings): arm.path for arm in findings.arms}.items():
        colour = colours.get(path) or unused[0]
        colour_by_name[name] = colour if colour not in colour_by_name.values() else unused.pop(0)
    return colour_by_name
