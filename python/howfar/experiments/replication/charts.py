"""Charts of the cost of an acknowledgement: throughput against connections, a panel for each distance; a commit's time as bars; how
far a replica was behind. None: nothing to draw."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from howfar.experiments.replication.analysis import CommitCost, ReplicationCost, ReplicationCurve
from howfar.experiments.replication.arms import PUBLISHED_RTT_NS, mode_name, quoted_distance
from howfar.experiments.replication.frame import distance
from howfar.plan.factors import SEMI_SYNC
from howfar.report import figures, palette
from howfar.report.charts import (
    PHONE,
    Axis,
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
    looks,
    rows_of,
    stacked,
)
from howfar.report.drawing import alt

HEIGHT = 270
PANEL_LEAST = 250
"""Minimum width of a panel that can be read; if they would be narrower, fewer are side by side."""
EXTRA = 200
"""Additional width of several panels: they may use the space that one leaves free at its side."""


class Look(NamedTuple):
    """How one mode looks on every chart."""

    short: str
    """Short name, for heads of columns and labels of bars."""
    colour: str
    shape: str


LOOKS = {
    "off": Look("no log", palette.SERIES[4], "cross"),
    "none": Look("none", palette.MUTED, "diamond"),
    "async": Look("async", palette.SERIES[1], "square"),
    "after-sync": Look("AFTER_SYNC", palette.SERIES[0], "circle"),
    "after-commit": Look("AFTER_COMMIT", palette.SERIES[2], "triangle-up"),
    "commit-off": Look("off", palette.SERIES[5], "triangle-down"),
    "remote-write": Look("remote_write", palette.SERIES[3], "triangle-right"),
    "remote-flush": Look("on", palette.SERIES[0], "circle"),
    "remote-apply": Look("remote_apply", palette.SERIES[2], "triangle-up"),
    "galera": Look("Galera", palette.SERIES[0], "circle"),
    "group": Look("group", palette.SERIES[2], "triangle-up"),
    "group-leader": Look("group, one leader", palette.SERIES[3], "triangle-right"),
}

LONG = 30
"""Length of a name from which a legend has fewer than four entries in a row."""

MORE_SHAPES = ("triangle-down", "cross", "triangle-right", "stroke")

CROSS = "M-0.6,-0.6L0.6,0.6M0.6,-0.6L-0.6,0.6"
"""Two strokes; the chart grammar has no such shape."""

PARTS = {"local work": palette.PARTS[1], "wire": palette.PARTS[0], "waiting": palette.PARTS[4]}


def scales(names: Sequence[str], curves: Sequence[ReplicationCurve]) -> tuple[dict[str, str], dict[str, str]]:
    """Colours and shapes of series: the mode's own; further series of the same mode have other ones."""
    colours, shapes, seen = dict[str, str](), dict[str, str](), dict[str, int]()
    for name in names:
        mode = next(curve.mode for curve in curves if name.startswith(mode_name(curve.mode)))
        again = seen.get(mode, 0)
        seen[mode] = again + 1
        colours[name] = palette.SERIES[(3 + again) % 8] if again else LOOKS[mode].colour
        shapes[name] = MORE_SHAPES[(again - 1) % len(MORE_SHAPES)] if again else LOOKS[mode].shape
    return colours, shapes


def series_legend(names: Sequence[str], width: int, **options: Any) -> alt.Legend:
    across = 1 if width < PHONE else 4 if max(map(len, names), default=0) < LONG else 2
    return legend(across, 420, **options)


def symlog(kind: type[Axis], field: str, title: str, most: float, constant: int, top: float, **options: Any) -> Axis:
    """A channel of counts from 0 to `top`, linear below `constant`, with ticks as far as `most`."""
    scale = alt.Scale(type="symlog", constant=constant, domain=[0, top], nice=False)
    options = {"values": symlog_ticks(most), "format": ",d"} | options
    return kind(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(**options))


def symlog_ticks(most: float) -> list[float]:
    """0, then decades up to the largest."""
    found = [0.0]
    tick = 1.0 if most < 100 else 10.0
    while tick <= most:
        found.append(tick)
        tick *= 10
    return found


def states(rows: Rows, x: alt.X, y: alt.Y, colour: Any, size: int) -> list[Any]:
    """Layers for phases: a bar for each row, from its `from` to its `to`, and its `text` where it has one."""
    named = [row | {"middle": (row["from"] + row["to"]) / 2} for row in rows if row["text"]]
    middle = alt.X("middle:Q", scale=x["scale"])
    return [
        data(rows).mark_bar(size=size, stroke=palette.HALO, strokeWidth=1).encode(x=x, x2="to:Q", y=y, color=colour),
        data(named).mark_text(color=palette.ON_BAR, fontSize=11).encode(x=middle, y=y, text="text:N"),
    ]


def throughput(cost: ReplicationCost, width: int) -> Drawable | None:
    threads = cost.threads
    if len(threads) < 2:
        return None  # for one number of connections, the table suffices
    rtts = distances(cost.curves)
    quoted = quoted_distance(rtts)
    rtts.sort(key=lambda rtt: (rtt != quoted, rtt or 0))
    total = width if width < PHONE else width + EXTRA
    across = 1 if width < PHONE else max(min(len(rtts), total // PANEL_LEAST), 1)
    frame = _Frame(cost, threads, width if width < PHONE else (total - 64 * across) // across, width)
    return rows_of([frame.panel(rtt, index % across == 0) for index, rtt in enumerate(rtts)], across)


class _Frame:
    """Common parts of the panels: axes, colours, shapes."""

    def __init__(self, cost: ReplicationCost, threads: list[int], panel_width: int, width: int) -> None:
        self.cost, self.width, self.height = cost, panel_width, 210 if width < PHONE else HEIGHT
        self.named = named(cost.curves)
        self.names = list(dict.fromkeys(name for name, _ in self.named))
        points = [point for curve in cost.curves for point in curve.points]
        seen = [figure for point in points for figure in (point.commits_per_s.value, point.predicted) if figure]
        seen += [there for _, there, _ in cost.published if 1 in threads]
        self.heights = (min(seen) / 1.3, max(seen) * 1.3)
        colours, shapes = scales(self.names, cost.curves)
        key = series_legend(self.names, width, symbolOpacity=1)
        self.colour = by_name(alt.Color, "series", colours, key)
        self.shape = by_name(alt.Shape, "series", shapes, key)
        self.threads, room = threads, (threads[0] / 1.15, threads[-1] * 1.15)
        options = {"values": threads, "format": "d", "grid": False, "labelOverlap": True}
        self.x = axis(alt.X, "threads", "connections", room, log=2, **options)

    def panel(self, rtt: int | None, first: bool) -> Drawable:
        here = [(name, curve) for name, curve in self.named if curve.replica_rtt_ns in (None, rtt)]
        rows = [self._row(name, point) for name, curve in here for point in curve.points]
        title = "commits/s" if first else None
        y, low, model = (log_axis(alt.Y, field, title, self.heights) for field in ("tps", "low", "predicted"))
        predicted = data([row for row in rows if row["predicted"] is not None])
        published = [
            {"series": name, "threads": 1, "tps": there}
            for mode, there, _ in self.cost.published
            if rtt == PUBLISHED_RTT_NS and 1 in self.threads and (name := mode_name(mode)) in self.names
        ]
        crosses = data(published).mark_point(shape=CROSS, size=150, strokeWidth=2, filled=False, opacity=1)
        layers = [
            predicted.mark_line(strokeWidth=1.3, strokeDash=[4, 3], opacity=0.9).encode(
                x=self.x, y=model, color=self.colour
            ),
            data(rows).mark_line(strokeWidth=1.9).encode(x=self.x, y=y, color=self.colour),
            *intervals(rows, self.x, y, low, colour=self.colour, shape=self.shape, size=60),
            crosses.encode(x=self.x, y=y, color=self.colour),
        ]
        above = {} if rtt is None else {"title": alt.TitleParams(f"RTT {distance(rtt)} to the replica", anchor="start")}
        return layer(*layers, width=self.width, height=self.height, **above)

    def _row(self, series: str, point: CommitCost) -> dict[str, Any]:
        figures = {"tps": point.commits_per_s.value, "predicted": point.predicted}
        return {"series": series, "threads": point.threads} | figures | ends(point.commits_per_s, self.heights)


def parts(curve: ReplicationCurve, point: CommitCost) -> tuple[float, float, float]:
    """Local work, wire and waiting, which add up to the commit: if noise made one of them larger than the commit, it is cut."""
    wire = min(point.wire_ms, point.commit_ms) if curve.mode in SEMI_SYNC else 0.0
    local = min(point.local_ms, point.commit_ms - wire)
    return local, wire, point.commit_ms - wire - local


def split(cost: ReplicationCost, width: int) -> Drawable | None:
    """A bar per mode and number of connections, at one distance: the parts of a commit's milliseconds."""
    rtt = quoted_distance(distances(cost.curves))
    rows: Rows = []
    behind: Rows = []
    for name, curve in named(cost.curves):
        for point in curve.points if curve.replica_rtt_ns in (None, rtt) else ():
            label = f"{LOOKS[curve.mode].short}{name.removeprefix(mode_name(curve.mode))}, {point.threads}"
            rows += [
                {"arm": label, "part": part, "value": ms} for part, ms in zip(PARTS, parts(curve, point), strict=True)
            ]
            rtts = f", {point.rtts.value:.2f} RTT" if point.rtts else ""
            text = f"{figures.number(point.commit_ms)} ms{rtts}"
            behind.append({"arm": label, "value": point.commit_ms, "text": text})
    labels = [row["arm"] for row in behind]
    room = width - (0 if width < PHONE else 110)
    return stacked(rows, labels, PARTS, "ms per commit (mean)", room, size=13, ends=behind) if rows else None


def lag(cost: ReplicationCost, width: int) -> Drawable | None:
    """Transactions that a replica was behind, over one trial of each mode at the quoted distance."""
    rtt = quoted_distance(distances(cost.curves))
    here = [(name, curve, curve.lag) for name, curve in named(cost.curves) if curve.lag and curve.replica_rtt_ns == rtt]
    if not here:
        return None
    names = [name for name, _, _ in here]
    rows: Rows = [
        {"series": name, "at": at, "behind": behind}
        for name, _, series in here
        for at, behind in zip(series.at_s, series.behind, strict=True)
    ]
    colours, _ = scales(names, [curve for _, curve, _ in here])
    key = series_legend(names, width)
    most = max(row["behind"] for row in rows)
    encoded = (
        data(rows)
        .mark_line(strokeWidth=1.4, interpolate="step-after")
        .encode(
            x=alt.X("at:Q", title="seconds of the trial", axis=alt.Axis(grid=False, tickCount=6)),
            y=symlog(alt.Y, "behind", "transactions behind", most, 10, max(most, 1)),
            color=by_name(alt.Color, "series", colours, key),
            strokeDash=by_name(alt.StrokeDash, "series", looks(names, [list(dash) for dash in palette.DASHES]), key),
        )
    )
    return encoded.properties(width=width, height=130)


# ---------------------------------------------------------------- names of curves


def distances(curves: Sequence[ReplicationCurve]) -> list[int | None]:
    """Distances of the links to replicas, ascending. `[None]`: no curve has a replica."""
    found = {curve.replica_rtt_ns for curve in curves if curve.replica_rtt_ns is not None}
    return [*sorted(found)] if found else [None]


def named(curves: Sequence[ReplicationCurve]) -> list[tuple[str, ReplicationCurve]]:
    """Every curve with a name that is unique at its distance and begins with its mode: `semi-sync AFTER_SYNC`, and the levels of
    replication that differ. Where these are not enough, as with several paths of the clients, parts of the arms' names are added."""
    levels = [{"durability": curve.durability, **curve.held} for curve in curves]
    factors = dict.fromkeys(factor for each in levels for factor in each)
    differing = [factor for factor in factors if len({each.get(factor) for each in levels}) > 1]
    names = [
        ", ".join([mode_name(curve.mode), *(f"{f.replace('_', ' ')} {each[f]}" for f in differing if f in each)])
        for curve, each in zip(curves, levels, strict=True)
    ]
    if len({(name, curve.replica_rtt_ns) for name, curve in zip(names, curves, strict=True)}) < len(curves):
        names = _by_arm(curves)
    return list(zip(names, curves, strict=True))


_OF_POINTS = re.compile(r"\d+ threads?|replica RTT .*")
"""Parts of an arm's name that identify the point of a panel, or the panel."""


def _by_arm(curves: Sequence[ReplicationCurve]) -> list[str]:
    """The mode, and those parts of an arm's name that not all curves share."""
    every = [[] if not curve.points else curve.points[0].arm.split(", ") for curve in curves]
    shared = set.intersection(*map(set, every))
    modes = [mode_name(curve.mode) for curve in curves]
    return [
        ", ".join([mode, *(part for part in found if part not in {*shared, mode} and not _OF_POINTS.fullmatch(part))])
        for mode, found in zip(modes, every, strict=True)
    ]
