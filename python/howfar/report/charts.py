"""Helpers for the charts of all experiments, and the chart of all trials. Charts are Vega-Lite specifications created with Altair;
`html.py` renders them to SVG. A function that draws takes a width in pixels, and returns None if there is nothing to draw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from howfar.analysis.summary import Summary
from howfar.report import figures, palette
from howfar.report.drawing import alt
from howfar.stats.estimate import Estimate

Drawable = Any
"""An Altair chart of one mark, or the Vega-Lite that `layer`, `hconcat` or `vconcat` compose of several."""

Point = dict[str, Any]
"""One row of a layer's data: its fields, as the layer's channels name them."""

Rows = list[Point]
"""The data of one layer."""

VegaLite = dict[str, Any]
"""A specification in Vega-Lite, or a part of one, such as the properties of a mark."""

T = TypeVar("T")
Axis = TypeVar("Axis", bound="alt.X | alt.Y")

ROW_HEIGHT = 44
"""Height of one arm's row, pixels."""

LOG_SCALE = "log scale"
"""In the title of a logarithmic axis."""

LABEL_GAP, LABEL_SIZE = 15, 12
"""Least distance of two labels, and the size of their letters, in pixels."""

PHONE = 420
"""Width below which drawings leave out what would be unreadable."""


def repeat_styles(cycle: Sequence[T], count: int) -> list[T]:
    """The first `count` styles; the cycle starts again if it has fewer."""
    return [cycle[index % len(cycle)] for index in range(count)]


def values(rows: Rows) -> alt.Data:
    return alt.Data(values=rows)  # type: ignore[no-untyped-call]


def layer(*charts: Drawable, **properties: Any) -> VegaLite:
    """Charts over each other. `properties`: width, height, title."""
    return {"layer": [plain(chart) for chart in charts], **_plain_values(properties)}


def hconcat(*charts: Drawable, **properties: Any) -> VegaLite:
    """Charts in a row. `properties`: spacing."""
    return {"hconcat": [plain(chart) for chart in charts], **_plain_values(properties)}


def vconcat(*charts: Drawable, **properties: Any) -> VegaLite:
    """Charts in a column. `properties`: spacing, resolve."""
    return {"vconcat": [plain(chart) for chart in charts], **_plain_values(properties)}


def plain(chart: Drawable) -> VegaLite:
    """A chart as Vega-Lite. Altair's own composition copies all parts deeply each time, which takes ten seconds for a page of small
    charts."""
    if isinstance(chart, dict):
        return chart
    specification: VegaLite = chart.to_dict(validate=False)
    datasets = specification.pop("datasets", {})
    if "name" in specification.get("data", {}):
        specification["data"] = {"values": datasets[specification["data"]["name"]]}
    return {key: value for key, value in specification.items() if key not in ("$schema", "config")}


def _plain_values(properties: VegaLite) -> VegaLite:
    return {key: value.to_dict() if hasattr(value, "to_dict") else value for key, value in properties.items()}


def data(rows: Rows) -> alt.Chart:
    return alt.Chart(values(rows))


def arm_axis(names: list[str], field: str = "arm", label_width: int = 130) -> alt.Y:
    axis = alt.Axis(labelLimit=label_width, ticks=False, domain=False, labelPadding=8)
    return alt.Y(f"{field}:N", sort=names, title=None, axis=axis)


def axis(
    kind: type[Axis], field: str, title: str | None, domain: Sequence[float] = (), log: int = 0, **options: Any
) -> Axis:
    """A channel of numbers over exactly this domain; without one, over the data. `log`: the base of a logarithmic scale. `options` are
    those of an Altair axis."""
    scale: VegaLite = {"type": "log", "base": log} if log else {}
    scale |= {"domain": list(domain), "nice": False} if domain else {}
    return kind(f"{field}:Q", title=title, scale=alt.Scale(**scale), axis=alt.Axis(**options))


def log_axis(
    kind: type[Axis], field: str, title: str | None, domain: tuple[float, float], format: str = ",.3~r", **options: Any
) -> Axis:
    """A channel of numbers on a logarithmic scale, which its title says, with its ticks at round numbers."""
    title = f"{title} ({LOG_SCALE})" if title else title
    return axis(kind, field, title, domain, 10, values=log_ticks(*domain), format=format, **options)


def by_style(
    kind: Any, field: str, styles: Mapping[str, str | float | Sequence[float]], legend: alt.Legend | None
) -> Any:
    """A channel of colours, shapes or dashes, one for each name."""
    scale = alt.Scale(domain=list(styles), range=list(styles.values()))
    return kind(f"{field}:N", sort=list(styles), scale=scale, legend=legend)


def styles(names: Sequence[str], cycle: Sequence[T]) -> dict[str, T]:
    return dict(zip(names, repeat_styles(cycle, len(names)), strict=True))


def series_styles(names: Sequence[str], legend_spec: alt.Legend | None) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape of each `series`, in the order of the palette."""
    colour = by_style(alt.Color, "series", styles(names, palette.SERIES), legend_spec)
    return colour, by_style(alt.Shape, "series", styles(names, palette.SHAPES), legend_spec)


def legend(columns: int, limit: int = 180, **options: Any) -> alt.Legend:
    return alt.Legend(orient="top", title=None, columns=columns, labelLimit=limit, **options)


def clip_limits(estimate: Estimate, domain: tuple[float, float]) -> dict[str, float]:
    """The limits of an interval as `low` and `high`, cut at the ends of the axis. Without an interval, both are the value."""
    low, high = (estimate.value if limit is None else limit for limit in (estimate.low, estimate.high))
    return {"low": max(low, domain[0]), "high": min(high, domain[1])}


def interval_layers(rows: Rows, x: alt.X, y: alt.Y, low: alt.Y, *, colour: Any, shape: Any, size: int) -> list[Any]:
    """Layers of points with vertical intervals. `low`: the channel `y` for the field `low`."""
    return [
        data(rows).mark_rule(strokeWidth=2.2, opacity=0.7).encode(x=x, y=low, y2="high:Q", color=colour),
        data(rows).mark_point(filled=True, size=size, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ]


def arrange_in_rows(charts: Sequence[Drawable], columns: int, spacing: int = 26) -> Drawable:
    """Arrange charts in rows of `columns`."""
    chart_rows = [
        charts[start] if columns == 1 else hconcat(*charts[start : start + columns], spacing=spacing)
        for start in range(0, len(charts), columns)
    ]
    return chart_rows[0] if len(chart_rows) == 1 else vconcat(*chart_rows)


def panel_width(count: int, width: int, gap: int) -> int:
    """Width of each of `count` panels in a row, which may together use 200 pixels more than a single chart. On a phone panels form a
    column, so each has the full width."""
    return width if width < PHONE else (width + 200 - gap * count) // count


def two_columns(count: int, width: int) -> tuple[int, int]:
    """The number of columns of `count` panels, two at most, and the width of a panel. On a phone panels form one column."""
    return (1, width) if width < PHONE or count == 1 else (2, (width - 60) // 2)


def _label_gap(domain: tuple[float, float], height: int) -> float:
    """The factor between the places of two labels on a logarithmic axis that just do not cover each other."""
    return math.pow(domain[1] / domain[0], LABEL_GAP / height)


def spread_labels(values: Sequence[float], domain: tuple[float, float], height: int) -> list[float]:
    """Positions of labels on a logarithmic axis: those of their marks, moved up where they would cover each other, and down where
    they would leave the axis."""
    gap = _label_gap(domain, height)
    positions: dict[int, float] = {}
    lowest, highest = 0.0, domain[1]
    ascending = sorted(range(len(values)), key=values.__getitem__)
    for index in ascending:
        positions[index] = max(values[index], lowest)
        lowest = positions[index] * gap
    for index in reversed(ascending):
        positions[index] = min(positions[index], highest)
        highest = positions[index] / gap
    return [positions[index] for index in range(len(values))]


def label_layers(rows: Rows, x: Any, y: Any, colour: Any, domain: tuple[float, float], height: int) -> list[Any]:
    """Layers of texts next to marks, each on an outline in the page's colour. Rows have `text` and `place`, the height of their mark;
    those that share the field of `x` are moved up where they would cover each other. Texts stand to the right of their marks; those of
    rows that are `inner` stand above, where no line leaves the mark. `y` is a channel of `place`."""
    field = x.to_dict()["field"]
    placed: Rows = []
    for x_value in dict.fromkeys(row[field] for row in rows):
        here = [row for row in rows if row[field] == x_value]
        places = spread_labels([row["place"] for row in here], domain, height)
        placed += [row | {"place": place} for row, place in zip(here, places, strict=True)]
    halo = alt.value(palette.HALO)
    outlines: list[Any] = []
    texts: list[Any] = []
    positions: tuple[tuple[bool, VegaLite], ...] = (
        (False, {"align": "left", "dx": 8}),
        (True, {"align": "center", "dy": -12}),
    )
    for is_inner, position in positions:
        if here := [row for row in placed if bool(row.get("inner")) is is_inner]:
            text = data(here).mark_text(fontSize=LABEL_SIZE, **position).encode(x=x, y=y, text="text:N")
            outlines.append(text.encode(color=halo, stroke=halo, strokeWidth=alt.value(4)))
            texts.append(text.encode(color=colour))
    return [*outlines, *texts]


def _apart(labels: Rows, x_value: float, domain: tuple[float, float], height: int) -> Rows:
    """The labels at this place of the horizontal axis that do not cover each other, from the lowest."""
    gap = _label_gap(domain, height)
    kept: Rows = []
    for row in sorted((row for row in labels if row["x"] == x_value), key=lambda row: float(row["place"])):
        if not kept or row["place"] >= kept[-1]["place"] * gap:
            kept.append(row)
    return kept


def _label(row: Point, named_at: float | None) -> str:
    """The value; at the last point of its line, the name of the line as well."""
    value = figures.number(row["value"])
    return f"{row['name']} {value}" if row["x"] == named_at else value


def labelled_lines(
    lines: Mapping[str, Sequence[tuple[float, Estimate]]],
    x: alt.X,
    title: str,
    width: int,
    *,
    colours: Mapping[str, str] = MappingProxyType({}),
    top_labels: Sequence[tuple[str, float, str]] = (),
    reference: float | None = None,
    band: float = 1.0,
    narrow: bool | None = None,
) -> VegaLite:
    """A line of estimates for each name, with its values at the marks and its name at the last; on a phone, names in a legend. Before
    the last mark, a value that would cover another is left out. The vertical axis is logarithmic. `colours`: of the names, if not
    those of the palette. `top_labels`: texts at the top, each with the name of its line. `reference`: height of a dashed line.
    `band`: factor around it of a grey band. `narrow`: on a phone; None: if the width is that of one."""
    narrow, height = width < PHONE if narrow is None else narrow, 230
    points = [(name, x_value, estimate) for name, line in lines.items() for x_value, estimate in line]
    limits = [limit or estimate.value for *_, estimate in points for limit in (estimate.low, estimate.high)]
    limits += [reference] if reference else []
    domain = min(limits) / 1.3, max(limits) * (2.2 if top_labels else 1.3)
    rows: Rows = [
        {"name": name, "x": x_value, "value": estimate.value, **clip_limits(estimate, domain)}
        for name, x_value, estimate in points
    ]
    named_at = {name: None if narrow else line[-1][0] for name, line in lines.items() if line}
    labels: Rows = [
        {"name": row["name"], "x": row["x"], "place": row["value"], "text": _label(row, named_at[row["name"]])}
        for row in rows
    ]
    last = {line[-1][0] for line in lines.values() if line}
    labels = [row | {"inner": row["x"] not in last} for row in labels]
    labels = [row for row in labels if row["x"] in last or row in _apart(labels, row["x"], domain, height)]
    labels += [{"name": name, "x": x_value, "place": domain[1], "text": text} for name, x_value, text in top_labels]
    key = legend(2, symbolOpacity=1) if narrow else None
    colour = by_style(alt.Color, "name", colours or styles(list(lines), palette.SERIES), key)
    y, low, place = (log_axis(alt.Y, field, title, domain) for field in ("value", "low", "place"))
    dashed = data([{"value": reference}]).mark_rule(color=palette.MUTED, strokeDash=[4, 3]).encode(y=y)
    edges = [{"value": max(reference / band, domain[0]), "high": min(reference * band, domain[1])}] if reference else []
    grey = data(edges).mark_rect(color=palette.BAND).encode(y=y, y2="high:Q")
    return layer(
        *([grey] if band > 1 and reference else []),
        *([dashed] if reference else []),
        data(rows).mark_line(strokeWidth=1.5, opacity=0.5).encode(x=x, y=y, color=colour),
        *interval_layers(rows, x, y, low, colour=colour, shape=alt.Undefined, size=60),
        *label_layers(labels, x, place, colour, domain, height),
        width=width,
        height=height,
    )


def percentile_chart(
    panels: Mapping[str, Rows],
    colours: Mapping[str, str],
    *,
    titles: tuple[str, str],
    width: int,
    thresholds: Sequence[float] = (),
) -> Drawable | None:
    """Distributions of times from the median on: a panel per title, a line per `series`. Rows have `series`, `quantile` and `ms`. The
    horizontal axis is 1/(1-p) on a logarithmic scale, so that 99 % and 99.9 % have room. `titles`: of the two axes. `thresholds` in
    ms: dotted lines."""
    panels = {
        title: [
            {"series": row["series"], "tail": 1 / (1 - row["quantile"]), "place": row["ms"]}
            for row in rows
            if row["ms"] > 0 and 0.5 <= row["quantile"] < 1
        ]
        for title, rows in panels.items()
    }
    panels = {title: rows for title, rows in panels.items() if rows}
    all_rows = [row for rows in panels.values() for row in rows]
    if not all_rows:
        return None
    narrow, height = width < PHONE, 240
    values_ms = [row["place"] for row in all_rows] + list(thresholds[-1:])
    domain = min(values_ms) / 1.15, max(values_ms) * (1.3 if thresholds else 1.15)
    names = list(dict.fromkeys(row["series"] for row in all_rows))
    key = legend(2, 150, symbolStrokeWidth=2, symbolSize=300) if narrow else None
    colour = by_style(alt.Color, "series", {name: colours[name] for name in names}, key)
    dash = by_style(alt.StrokeDash, "series", styles(names, palette.DASHES), key)
    columns, panel_px = two_columns(len(panels), width)
    charts: list[Drawable] = []
    for title, rows in panels.items():
        max_tail = max(row["tail"] for row in rows)
        x = axis(
            alt.X,
            "tail",
            titles[0],
            (2, max(max_tail, 2.1)),
            log=10,
            values=[tail for tail in (2, 10, 100, 1000, 10_000, 100_000) if tail <= max_tail],
            labelExpr="format(100 * (1 - 1 / datum.value), '~r') + ' %'",
            grid=False,
        )
        y = log_axis(alt.Y, "place", None if len(charts) % columns else titles[1], domain)
        last = {row["series"]: row | {"text": row["series"], "tail": max(max_tail, 2.1)} for row in rows}
        limits: Rows = [
            {"tail": 2.0, "place": float(ms), "text": f"{ms} ms"} for ms in thresholds if domain[0] < ms < domain[1]
        ]
        text = data(limits).mark_text(align="left", dx=4, dy=-6, color=palette.INK, fontSize=11)
        dotted = data(limits).mark_rule(color=palette.INK, strokeDash=[2, 3], strokeWidth=1.2)
        layers = [
            data(rows).mark_line(strokeWidth=2.2).encode(x=x, y=y, color=colour, strokeDash=dash),
            *([dotted.encode(y=y), text.encode(x=x, y=y, text="text:N")] if limits else []),
            *([] if narrow else label_layers(list(last.values()), x, y, colour, domain, height)),
        ]
        title_options = {"title": alt.TitleParams(title, anchor="start")} if title else {}
        charts.append(layer(*layers, width=panel_px, height=height, **title_options))
    return arrange_in_rows(charts, columns)


def stacked_bars(
    rows: Rows,
    names: list[str],
    colours: Mapping[str, str],
    unit: str,
    width: int,
    *,
    size: int,
    ends: Rows | None = None,
    with_legend: bool = True,
    **properties: Any,
) -> Drawable:
    """A bar for each `arm` of rows with `part` and `value`; parts in the order of `colours`. `ends`: `text` at `value` after a bar."""
    narrow = width < PHONE
    order = list(colours)
    legend_spec = legend(2 if narrow else 6, 170, symbolType="square") if with_legend else None
    x_domain = [0, max(bar_end["value"] for bar_end in ends) * (1.35 if narrow else 1.14)] if ends else []
    x, y = axis(alt.X, "value", unit, x_domain, tickCount=5, format=".3~r"), arm_axis(names, label_width=150)
    ordered = data([row | {"order": order.index(row["part"])} for row in rows])
    bars = ordered.mark_bar(size=size, stroke=palette.HALO, strokeWidth=1)
    layers = [bars.encode(x=x, y=y, color=by_style(alt.Color, "part", colours, legend_spec), order="order:Q")]
    if ends:
        text = data(ends).mark_text(align="left", dx=5, color=palette.INK, fontSize=11 if narrow else 13)
        layers.append(text.encode(x=x, y=y, text="text:N"))
    return layer(*layers, width=width, height=round(size * 1.75) * len(names), **properties)


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 in each decade; only at 1 if `high / low` is 200 or more. If these are fewer than `_MIN_TICKS`, further
    numbers."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    leadings = ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), tuple(1 + tenth / 10 for tenth in range(90)))
    ticks: list[float] = []
    for leading in ((1.0,), *leadings) if high / low >= 200 else leadings:
        ticks = [
            tick for decade in decades for lead in leading if low <= (tick := round(lead * 10.0**decade, 12)) <= high
        ]
        if len(ticks) >= _MIN_TICKS:
            break
    return ticks


_MIN_TICKS = 3
"""Minimum number of ticks from which a reader can tell a scale."""


_RATIO_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
_RATIO_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


def ratio_ticks(low: float, high: float) -> list[float]:
    """Ticks of an axis of ratios around 1, at most about seven: equal steps in a narrow range, round ratios in a wide one."""
    step = next((step for step in _RATIO_STEPS if high - low <= 7 * step), None)
    if step is None:
        return [tick for tick in _RATIO_TICKS if low / 1.05 <= tick <= high * 1.05]
    return [
        round(1 + step * count, 4) for count in range(math.ceil((low - 1) / step), math.floor((high - 1) / step) + 1)
    ]


MAX_TRIALS_DRAWN = 200
"""Maximum number of trials that are drawn and listed one by one. More are summarised by block, so that a page stays small."""


def ratios_to_median(summary: Summary) -> Rows:
    """Every good trial: its number, its block, and the ratio of its queries per second to the median of its cell."""
    per_arm: dict[str, list[float]] = {}
    for trial in summary.trials:
        if trial.qps:
            per_arm.setdefault(trial.arm, []).append(trial.qps)
    medians = {arm: statistics.median(arm_values) for arm, arm_values in per_arm.items()}
    return [
        {"trial": trial.number, "block": trial.block, "ratio": trial.qps / medians[trial.arm]}
        for trial in summary.trials
        if trial.qps
    ]


def block_ranges(rows: Rows) -> Rows:
    """Median and middle 80 % of `ratios_to_median` for each block."""
    blocks: dict[int, list[float]] = {}
    for row in rows:
        blocks.setdefault(row["block"], []).append(row["ratio"])
    ranges = []
    for block, ratios in blocks.items():
        cuts = statistics.quantiles(ratios, n=10, method="inclusive") if len(ratios) > 1 else ratios * 9
        ranges.append({"block": block, "ratio": statistics.median(ratios), "low": cuts[0], "high": cuts[-1]})
    return ranges


def drift_chart(summary: Summary, width: int) -> Drawable | None:
    """Chart of every good trial relative to the median of its cell, in order of execution. Many trials are summarised by block."""
    rows = ratios_to_median(summary)
    if not rows:
        return None
    many = len(rows) > MAX_TRIALS_DRAWN
    field = "block" if many else "trial"
    title = field if many else "trial, in order of execution; lines separate the blocks"
    domain = -0.5, max(row[field] for row in rows) + 0.5
    x = axis(alt.X, field, title, domain, grid=False, format="d", tickMinStep=1)

    ratios = [row["ratio"] for row in rows]
    ticks = ratio_ticks(min(ratios), max(ratios))

    def height_of(field: str) -> alt.Y:
        scale = alt.Scale(type="log", nice=False, padding=8)
        return alt.Y(
            f"{field}:Q", scale=scale, axis=alt.Axis(values=ticks, format="~r"), title="relative to cell's median"
        )

    y = height_of("ratio")
    layers: list[Any] = [data([{"ratio": 1.0}]).mark_rule(color=palette.MUTED, strokeDash=[4, 3]).encode(y=y)]
    if many:
        ranges = data(block_ranges(rows))
        span = ranges.mark_rule(color=palette.SERIES[0], strokeWidth=2)
        layers.append(span.encode(x=x, y=height_of("low"), y2="high:Q"))
        layers.append(ranges.mark_point(filled=True, size=60, opacity=1, color=palette.SERIES[0]).encode(x=x, y=y))
    else:
        starts: dict[int, int] = {}
        for trial in summary.trials:
            starts.setdefault(trial.block, trial.number)
        blocks = data([{"trial": number - 0.5} for number in starts.values()])
        layers.append(blocks.mark_rule(color=palette.GRID).encode(x=x))
        points = data(rows).mark_point(filled=True, size=30, opacity=0.8, color=palette.SERIES[0])
        layers.append(points.encode(x=x, y=y))
    return layer(*layers, width=width, height=180)
