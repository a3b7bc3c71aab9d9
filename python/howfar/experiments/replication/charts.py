"""Charts of the cost of an acknowledgement: throughput over connections, a panel for each distance; a commit's time as bars; how far a
replica was behind. The functions that draw return None if there is nothing to draw."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from howfar.experiments.replication.analysis import CommitCost, ReplicationCost, ReplicationCurve
from howfar.experiments.replication.arms import PUBLISHED_RTT_NS, mode_name, quoted_distance
from howfar.experiments.replication.factors import SEMI_SYNC
from howfar.experiments.replication.frame import distance
from howfar.experiments.replication.texts import TEXTS
from howfar.findings import fill
from howfar.report import figures, palette
from howfar.report.charts import (
    LOG_SCALE,
    PHONE,
    Axis,
    Drawable,
    Point,
    Rows,
    arrange_in_rows,
    axis,
    by_style,
    clip_limits,
    data,
    interval_layers,
    label_layers,
    layer,
    legend,
    log_axis,
    stacked_bars,
    styles,
)
from howfar.report.drawing import alt

PANEL_HEIGHT = 270
MIN_PANEL_WIDTH = 250
"""Minimum width of a legible panel; if panels would be narrower, fewer are placed side by side."""
EXTRA_WIDTH = 200
"""Width that several panels may use beyond that of a single chart, which leaves this space free at its side."""


class ModeStyle(NamedTuple):
    """How one mode looks on every chart."""

    short: str
    """Short name, for heads of columns and labels of bars."""
    colour: str
    shape: str


MODE_STYLES = {
    "off": ModeStyle("no log", palette.SERIES[4], "cross"),
    "none": ModeStyle("none", palette.MUTED, "diamond"),
    "async": ModeStyle("async", palette.SERIES[1], "square"),
    "after-sync": ModeStyle("AFTER_SYNC", palette.SERIES[0], "circle"),
    "after-commit": ModeStyle("AFTER_COMMIT", palette.SERIES[2], "triangle-up"),
    "commit-off": ModeStyle("off", palette.SERIES[5], "triangle-down"),
    "remote-write": ModeStyle("remote_write", palette.SERIES[3], "triangle-right"),
    "remote-flush": ModeStyle("on", palette.SERIES[0], "circle"),
    "remote-apply": ModeStyle("remote_apply", palette.SERIES[2], "triangle-up"),
    "galera": ModeStyle("Galera", palette.SERIES[0], "circle"),
    "group": ModeStyle("group", palette.SERIES[2], "triangle-up"),
    "group-leader": ModeStyle("group, one leader", palette.SERIES[3], "triangle-right"),
}

LONG_NAME_LENGTH = 30
"""Length of a name, in characters, from which a legend has fewer than four entries in a row."""

MORE_SHAPES = ("triangle-down", "cross", "triangle-right", "stroke")

PUBLISHED = "published"

CROSS = "M-0.6,-0.6L0.6,0.6M0.6,-0.6L-0.6,0.6"
"""SVG path of a diagonal cross, which Vega-Lite does not have as a shape."""

PARTS = {"local work": palette.PARTS[1], "wire": palette.PARTS[0], "waiting": palette.PARTS[4]}


def series_styles_by_name(
    names: Sequence[str], curves: Sequence[ReplicationCurve]
) -> tuple[dict[str, str], dict[str, str]]:
    """Colours and shapes of series, by name. The first series of a mode has the mode's own; further series of it have other ones."""
    colours, shapes, series_per_mode = dict[str, str](), dict[str, str](), dict[str, int]()
    for name in names:
        mode = next(curve.mode for curve in curves if name.startswith(mode_name(curve.mode)))
        earlier = series_per_mode.get(mode, 0)
        series_per_mode[mode] = earlier + 1
        colours[name] = palette.SERIES[(3 + earlier) % 8] if earlier else MODE_STYLES[mode].colour
        shapes[name] = MORE_SHAPES[(earlier - 1) % len(MORE_SHAPES)] if earlier else MODE_STYLES[mode].shape
    return colours, shapes


def legend_of_series(names: Sequence[str], width: int, **options: Any) -> alt.Legend:
    columns = 1 if width < PHONE else 4 if max(map(len, names), default=0) < LONG_NAME_LENGTH else 2
    return legend(columns, 420, **options)


def symlog_channel(
    kind: type[Axis], field: str, title: str, max_tick: float, constant: int, top: float, **options: Any
) -> Axis:
    """A channel of counts from 0 to `top`, linear below `constant`, with ticks as far as `max_tick`."""
    scale = alt.Scale(type="symlog", constant=constant, domain=[0, top], nice=False)
    options = {"values": symlog_ticks(max_tick), "format": ",d"} | options
    return kind(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(**options))


def symlog_ticks(max_tick: float) -> list[float]:
    """0, then powers of ten up to `max_tick`."""
    ticks = [0.0]
    tick = 1.0 if max_tick < 100 else 10.0
    while tick <= max_tick:
        ticks.append(tick)
        tick *= 10
    return ticks


def phase_layers(rows: Rows, x: alt.X, y: alt.Y, colour: Any, size: int) -> list[Any]:
    """Layers that show phases over time: a bar for each row, from its `from` to its `to`, with its `text` if it is not empty."""
    labelled = [row | {"middle": (row["from"] + row["to"]) / 2} for row in rows if row["text"]]
    middle = alt.X("middle:Q", scale=x["scale"])
    return [
        data(rows).mark_bar(size=size, stroke=palette.HALO, strokeWidth=1).encode(x=x, x2="to:Q", y=y, color=colour),
        data(labelled).mark_text(color=palette.ON_BAR, fontSize=11).encode(x=middle, y=y, text="text:N"),
    ]


def draw_throughput(cost: ReplicationCost, width: int) -> Drawable | None:
    threads = cost.threads
    if len(threads) < 2:
        return None  # for one number of connections, the table suffices
    rtts = sorted_distances(cost.curves)
    quoted = quoted_distance(rtts)
    rtts.sort(key=lambda rtt: (rtt != quoted, rtt or 0))
    total_width = width if width < PHONE else width + EXTRA_WIDTH
    columns = 1 if width < PHONE else max(min(len(rtts), total_width // MIN_PANEL_WIDTH), 1)
    panels = _ThroughputPanels(
        cost, threads, width if width < PHONE else (total_width - 130 * columns) // columns, width
    )
    return arrange_in_rows([panels.panel(rtt, index % columns == 0) for index, rtt in enumerate(rtts)], columns)


class _ThroughputPanels:
    """Common parts of the panels: axes, colours, shapes."""

    def __init__(self, cost: ReplicationCost, threads: list[int], panel_width: int, width: int) -> None:
        self.cost, self.width, self.height = cost, panel_width, 210 if width < PHONE else PANEL_HEIGHT
        self.named = name_curves(cost.curves)
        self.names = list(dict.fromkeys(name for name, _ in self.named))
        points = [point for curve in cost.curves for point in curve.points]
        per_s = [value for point in points for value in (point.commits_per_s.value, point.predicted) if value]
        per_s += [published_per_s for _, published_per_s, _ in cost.published if 1 in threads]
        self.y_domain = (min(per_s) / 1.3, max(per_s) * 1.3)
        colours, shapes = series_styles_by_name(self.names, cost.curves)
        key = legend_of_series(self.names, width, symbolOpacity=1) if width < PHONE else None
        self.is_labelled = key is None
        self.colour = by_style(alt.Color, "series", colours, key)
        self.shape = by_style(alt.Shape, "series", shapes, key)
        self.threads, x_domain = threads, (threads[0] / 1.15, threads[-1] * 1.15)
        options = {"values": threads, "format": "d", "grid": False, "labelOverlap": True}
        self.x = axis(alt.X, "threads", f"connections ({LOG_SCALE})", x_domain, log=2, **options)

    def panel(self, rtt: int | None, first: bool) -> Drawable:
        curves_here = [(name, curve) for name, curve in self.named if curve.replica_rtt_ns in (None, rtt)]
        rows = [self._row(name, point) for name, curve in curves_here for point in curve.points]
        title = "commits/s" if first else None
        y, low, model = (log_axis(alt.Y, field, title, self.y_domain) for field in ("tps", "low", "predicted"))
        predicted = data([row for row in rows if row["predicted"] is not None])
        published = [
            {"series": name, "threads": 1, "tps": published_per_s, "place": published_per_s, "text": PUBLISHED}
            for mode, published_per_s, _ in self.cost.published
            if rtt == PUBLISHED_RTT_NS and 1 in self.threads and (name := mode_name(mode)) in self.names
        ]
        published_points = data(published).mark_point(shape=CROSS, size=150, strokeWidth=2, filled=False, opacity=1)
        layers = [
            predicted.mark_line(strokeWidth=1.3, strokeDash=[4, 3], opacity=0.9).encode(
                x=self.x, y=model, color=self.colour
            ),
            data(rows).mark_line(strokeWidth=1.9).encode(x=self.x, y=y, color=self.colour),
            *interval_layers(rows, self.x, y, low, colour=self.colour, shape=self.shape, size=60),
            published_points.encode(x=self.x, y=y, color=self.colour),
        ]
        panel = "" if rtt is None else fill(TEXTS["panel"], rtt=distance(rtt))
        if self.is_labelled:
            place = log_axis(alt.Y, "place", title, self.y_domain)
            labels = [*self._name_labels(curves_here), *published[:1]]
            layers += label_layers(labels, self.x, place, self.colour, self.y_domain, self.height)
        title_options = {"title": alt.TitleParams(panel, anchor="start")} if panel else {}
        return layer(*layers, width=self.width, height=self.height, **title_options)

    @staticmethod
    def _name_labels(curves: Sequence[tuple[str, ReplicationCurve]]) -> Rows:
        """The short name of each curve at its last point."""
        return [
            {
                "series": name,
                "threads": last.threads,
                "place": last.commits_per_s.value,
                "text": short_name(name, curve),
            }
            for name, curve in curves
            for last in curve.points[-1:]
        ]

    def _row(self, series: str, point: CommitCost) -> Point:
        values = {"tps": point.commits_per_s.value, "predicted": point.predicted}
        return {"series": series, "threads": point.threads} | values | clip_limits(point.commits_per_s, self.y_domain)


def short_name(name: str, curve: ReplicationCurve) -> str:
    """The name of a curve with the short name of its mode."""
    return f"{MODE_STYLES[curve.mode].short}{name.removeprefix(mode_name(curve.mode))}"


def split_commit_ms(curve: ReplicationCurve, point: CommitCost) -> tuple[float, float, float]:
    """Milliseconds of local work, wire and waiting, which add up to the commit. A part that noise made larger than the commit is
    cut."""
    wire_ms = min(point.wire_ms, point.commit_ms) if curve.mode in SEMI_SYNC else 0.0
    local_ms = min(point.local_ms, point.commit_ms - wire_ms)
    return local_ms, wire_ms, point.commit_ms - wire_ms - local_ms


def draw_split(cost: ReplicationCost, width: int) -> Drawable | None:
    """A bar for each mode and number of connections, at the quoted distance: the parts of a commit's time in milliseconds."""
    rtt = quoted_distance(sorted_distances(cost.curves))
    rows: Rows = []
    bar_ends: Rows = []
    for name, curve in name_curves(cost.curves):
        for point in curve.points if curve.replica_rtt_ns in (None, rtt) else ():
            label = f"{short_name(name, curve)}, {point.threads}"
            rows += [
                {"arm": label, "part": part, "value": ms}
                for part, ms in zip(PARTS, split_commit_ms(curve, point), strict=True)
            ]
            rtts = f", {point.rtts.value:.2f} RTT" if point.rtts else ""
            text = f"{figures.number(point.commit_ms)} ms{rtts}"
            bar_ends.append({"arm": label, "value": point.commit_ms, "text": text})
    labels = [row["arm"] for row in bar_ends]
    chart_width = width - (0 if width < PHONE else 110)
    return (
        stacked_bars(rows, labels, PARTS, "ms per commit (mean)", chart_width, size=13, ends=bar_ends) if rows else None
    )


def draw_lag(cost: ReplicationCost, width: int) -> Drawable | None:
    """Transactions that a replica was behind, over one trial of each mode at the quoted distance."""
    rtt = quoted_distance(sorted_distances(cost.curves))
    lag_curves = [
        (name, curve, curve.lag)
        for name, curve in name_curves(cost.curves)
        if curve.lag and curve.replica_rtt_ns == rtt
    ]
    if not lag_curves:
        return None
    names = [name for name, _, _ in lag_curves]
    rows: Rows = [
        {"series": name, "at": at, "behind": behind}
        for name, _, series in lag_curves
        for at, behind in zip(series.at_s, series.behind, strict=True)
    ]
    colours, _ = series_styles_by_name(names, [curve for _, curve, _ in lag_curves])
    key = legend_of_series(names, width, symbolSize=300, symbolStrokeWidth=2)
    max_behind = max(row["behind"] for row in rows)
    chart = (
        data(rows)
        .mark_line(strokeWidth=1.4, interpolate="step-after")
        .encode(
            x=alt.X("at:Q", title="seconds of the trial", axis=alt.Axis(grid=False, tickCount=6)),
            y=symlog_channel(alt.Y, "behind", "transactions behind", max_behind, 10, max(max_behind, 1)),
            color=by_style(alt.Color, "series", colours, key),
            strokeDash=by_style(alt.StrokeDash, "series", styles(names, [list(dash) for dash in palette.DASHES]), key),
        )
    )
    return chart.properties(width=width, height=130)


# ---------------------------------------------------------------- names of curves


def sorted_distances(curves: Sequence[ReplicationCurve]) -> list[int | None]:
    """Distances of the links to replicas, ascending. `[None]`: no curve has a replica."""
    rtts_ns = {curve.replica_rtt_ns for curve in curves if curve.replica_rtt_ns is not None}
    return [*sorted(rtts_ns)] if rtts_ns else [None]


def name_curves(curves: Sequence[ReplicationCurve]) -> list[tuple[str, ReplicationCurve]]:
    """Every curve with a name that is unique at its distance. A name is the mode, such as `semi-sync AFTER_SYNC`, and the levels in
    which curves differ. Where these are not enough, as with several paths of the clients, parts of the arms' names replace the
    levels."""
    levels_of_curves = [{"durability": curve.durability, **curve.held} for curve in curves]
    factors = dict.fromkeys(factor for levels in levels_of_curves for factor in levels)
    differing = [factor for factor in factors if len({levels.get(factor) for levels in levels_of_curves}) > 1]
    names = [
        ", ".join(
            [
                mode_name(curve.mode),
                *(f"{factor.replace('_', ' ')} {levels[factor]}" for factor in differing if factor in levels),
            ]
        )
        for curve, levels in zip(curves, levels_of_curves, strict=True)
    ]
    if len({(name, curve.replica_rtt_ns) for name, curve in zip(names, curves, strict=True)}) < len(curves):
        names = _names_from_arms(curves)
    return list(zip(names, curves, strict=True))


_POINT_IDENTIFIERS = re.compile(r"\d+ threads?|replica RTT .*")
"""Parts of an arm's name that identify a point of a curve, or its panel."""


def _names_from_arms(curves: Sequence[ReplicationCurve]) -> list[str]:
    """The mode, and those parts of an arm's name that not all curves share."""
    arm_name_parts = [[] if not curve.points else curve.points[0].arm.split(", ") for curve in curves]
    shared = set.intersection(*map(set, arm_name_parts))
    modes = [mode_name(curve.mode) for curve in curves]
    return [
        ", ".join(
            [
                mode,
                *(
                    part
                    for part in name_parts
                    if part not in {*shared, mode} and not _POINT_IDENTIFIERS.fullmatch(part)
                ),
            ]
        )
        for mode, name_parts in zip(modes, arm_name_parts, strict=True)
    ]
