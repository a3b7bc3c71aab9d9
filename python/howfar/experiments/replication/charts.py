"""Charts of what an acknowledgement costs: throughput against connections, a panel for each distance; a commit's time as bars; how far
a replica was behind. None: nothing to draw."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import altair as alt

from howfar.experiments.replication.analysis import CommitCost, ReplicationCost, ReplicationCurve
from howfar.experiments.replication.arms import PUBLISHED_RTT_NS, mode_name, quoted_distance
from howfar.experiments.replication.frame import distance
from howfar.plan.factors import SEMI_SYNC
from howfar.report import figures, palette
from howfar.report.charts import PHONE, Drawable, hconcat, layer, log_ticks, values, vconcat

HEIGHT = 270
PANEL_LEAST = 250
"""Narrower panels cannot be read: there are fewer beside each other."""
EXTRA = 200
"""Several panels may take what one leaves free beside itself."""

LOOKS: dict[str, tuple[str, str, list[int]]] = {
    "off": (palette.SERIES[4], "cross", [3, 5]),
    "none": (palette.MUTED, "diamond", [1, 0]),
    "async": (palette.SERIES[1], "square", [1, 0]),
    "after-sync": (palette.SERIES[0], "circle", [1, 0]),
    "after-commit": (palette.SERIES[2], "triangle-up", [1, 0]),
}
"""Colour and shape of each mode, on every chart the same."""

LONG = 30
"""Names of more characters do not stand four in a row."""

MORE_SHAPES = ("triangle-down", "cross", "triangle-right", "stroke")

CROSS = "M-0.6,-0.6L0.6,0.6M0.6,-0.6L-0.6,0.6"
"""Two strokes, as no shape of the grammar has them."""

PARTS = ("local work", "wire", "waiting")
PART_COLOURS = (palette.PARTS[1], palette.PARTS[0], palette.PARTS[4])


SHORT = {"off": "no log", "none": "none", "async": "async", "after-sync": "AFTER_SYNC", "after-commit": "AFTER_COMMIT"}
"""For heads of columns and labels of bars."""


def scales(names: Sequence[str], curves: Sequence[ReplicationCurve]) -> tuple[list[str], list[str]]:
    """Colours and shapes of series: a mode's own; of several series of one mode the later ones have other shapes."""
    colours, shapes, seen = [], [], dict[str, int]()
    for name in names:
        mode = next(curve.mode for curve in curves if name.startswith(mode_name(curve.mode)))
        colour, shape, _ = LOOKS[mode]
        again = seen.get(mode, 0)
        seen[mode] = again + 1
        colours.append(palette.SERIES[(3 + again) % 8] if again else colour)
        shapes.append(MORE_SHAPES[(again - 1) % len(MORE_SHAPES)] if again else shape)
    return colours, shapes


def columns(names: Sequence[str], narrow: bool) -> int:
    """Of a legend."""
    return 1 if narrow else 4 if max(map(len, names), default=0) < LONG else 2


def throughput(cost: ReplicationCost, width: int) -> Drawable | None:
    if len({point.threads for curve in cost.curves for point in curve.points}) < 2:
        return None  # one number of connections is a table
    frame = _Frame(cost, width)
    rtts = distances(cost.curves)
    quoted = quoted_distance(rtts)
    rtts.sort(key=lambda rtt: (rtt != quoted, rtt or 0))
    panels = [frame.panel(rtt, index % frame.per_row == 0) for index, rtt in enumerate(rtts)]
    rows = [hconcat(*panels[at : at + frame.per_row]) for at in range(0, len(panels), frame.per_row)]
    return panels[0] if len(panels) == 1 else vconcat(*rows)


class _Frame:
    """What the panels share: axes, colours, shapes."""

    def __init__(self, cost: ReplicationCost, width: int) -> None:
        self.cost = cost
        self.narrow = width < PHONE
        count = len(distances(cost.curves))
        total = width if self.narrow else width + EXTRA
        self.per_row = 1 if self.narrow else max(min(count, total // PANEL_LEAST), 1)
        self.width = width if self.narrow else (total - 64 * self.per_row) // self.per_row
        self.named = named(cost.curves)
        self.names = list(dict.fromkeys(name for name, _ in self.named))
        self.threads = sorted({point.threads for curve in cost.curves for point in curve.points})
        seen = [point.commits_per_s.value for curve in cost.curves for point in curve.points]
        seen += [point.predicted for curve in cost.curves for point in curve.points if point.predicted]
        seen += [there for _, there, _ in cost.published if 1 in self.threads]
        self.heights = (min(seen) / 1.3, max(seen) * 1.3)
        legend = alt.Legend(
            orient="top", title=None, columns=columns(self.names, self.narrow), labelLimit=420, symbolOpacity=1
        )
        colours, shapes = scales(self.names, cost.curves)
        self.colour = by(alt.Color, "series", self.names, colours, legend)
        self.shape = by(alt.Shape, "series", self.names, shapes, legend)
        self.x = alt.X(
            "threads:Q",
            scale=alt.Scale(type="log", base=2, domain=[self.threads[0] / 1.15, self.threads[-1] * 1.15], nice=False),
            axis=alt.Axis(values=self.threads, format="d", grid=False, labelOverlap=True),
            title="connections",
        )

    def _y(self, field: str, first: bool) -> alt.Y:
        return alt.Y(
            f"{field}:Q",
            scale=alt.Scale(type="log", domain=list(self.heights), nice=False),
            axis=alt.Axis(values=log_ticks(*self.heights), format=",.3~r"),
            title="commits/s" if first else None,
        )

    def panel(self, rtt: int | None, first: bool) -> Drawable:
        here = [(name, curve) for name, curve in self.named if curve.replica_rtt_ns in (None, rtt)]
        points = [self._point(name, point) for name, curve in here for point in curve.points]
        y = self._y("tps", first)
        data = alt.Chart(values(points))
        layers: list[Any] = []
        predicted = [point for point in points if point["model"] is not None]
        if predicted:
            line = alt.Chart(values(predicted)).mark_line(strokeWidth=1.3, strokeDash=[4, 3], opacity=0.9)
            layers.append(line.encode(x=self.x, y=self._y("model", first), color=self.colour))
        layers += [
            data.mark_line(strokeWidth=1.9).encode(x=self.x, y=y, color=self.colour),
            data.mark_rule(strokeWidth=1.8, opacity=0.5).encode(
                x=self.x, y=self._y("low", first), y2="high:Q", color=self.colour
            ),
            data.mark_point(filled=True, size=60, opacity=1).encode(x=self.x, y=y, color=self.colour, shape=self.shape),
            *self._published(rtt, y),
        ]
        title = f"RTT {distance(rtt)} to the replica" if rtt is not None else ""
        properties: dict[str, Any] = {"title": alt.TitleParams(title, anchor="start")} if title else {}
        return layer(*layers, width=self.width, height=HEIGHT if not self.narrow else 210, **properties)

    def _point(self, series: str, point: CommitCost) -> dict[str, Any]:
        found = point.commits_per_s
        lowest, highest = self.heights
        return {
            "series": series,
            "threads": point.threads,
            "tps": found.value,
            "low": max(found.value if found.low is None else found.low, lowest),
            "high": min(found.value if found.high is None else found.high, highest),
            "model": point.predicted,
        }

    def _published(self, rtt: int | None, y: alt.Y) -> list[Any]:
        """Crosses, where they were measured: one connection, 85 ms."""
        if rtt != PUBLISHED_RTT_NS or 1 not in self.threads:
            return []
        published = [
            {"series": name, "threads": 1, "tps": there}
            for mode, there, _ in self.cost.published
            if (name := mode_name(mode)) in self.names
        ]
        if not published:
            return []
        mark = alt.Chart(values(published)).mark_point(shape=CROSS, size=150, strokeWidth=2, filled=False, opacity=1)
        return [mark.encode(x=self.x, y=y, color=self.colour)]


def parts(curve: ReplicationCurve, point: CommitCost) -> tuple[float, float, float]:
    """Local work, wire, waiting, as they add up to the commit: where noise made one of them larger than the whole, it is cut."""
    if curve.mode not in SEMI_SYNC:
        local = min(point.local_ms, point.commit_ms)
        return local, 0.0, point.commit_ms - local
    wire = min(point.wire_ms, point.commit_ms)
    local = min(point.local_ms, point.commit_ms - wire)
    return local, wire, point.commit_ms - wire - local


def split(cost: ReplicationCost, width: int) -> Drawable | None:
    """A bar a mode and number of connections, at one distance: what a commit's milliseconds are."""
    rtt = quoted_distance(distances(cost.curves))
    here = [(name, curve) for name, curve in named(cost.curves) if curve.replica_rtt_ns in (None, rtt)]
    narrow = width < PHONE
    bars: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for name, curve in here:
        extra = name.removeprefix(mode_name(curve.mode))
        for point in curve.points:
            label = f"{SHORT.get(curve.mode, curve.mode)}{extra}, {point.threads}"
            for order, (part, ms) in enumerate(zip(PARTS, parts(curve, point), strict=True)):
                bars.append({"bar": label, "part": part, "order": order, "ms": ms})
            ends.append(
                {"bar": label, "ms": point.commit_ms, "text": f"{figures.number(point.commit_ms)} ms{_rtts(point)}"}
            )
    if not bars:
        return None
    labels = [end["bar"] for end in ends]
    most = max(end["ms"] for end in ends)
    legend = alt.Legend(orient="top", title=None, columns=3, symbolType="square", labelLimit=160)
    colour = by(alt.Color, "part", PARTS, PART_COLOURS, legend)
    y = alt.Y(
        "bar:N",
        sort=labels,
        title=None,
        axis=alt.Axis(labelLimit=130 if narrow else 200, ticks=False, domain=False, labelPadding=6),
    )
    x = alt.X(
        "ms:Q",
        stack="zero",
        scale=alt.Scale(domain=[0, most * (1.02 if not narrow else 1.3)], nice=False),
        axis=alt.Axis(tickCount=5, format=".3~r"),
        title="ms per commit (mean)",
    )
    text = alt.Chart(values(ends)).mark_text(align="left", dx=5, color=palette.INK, fontSize=11)
    end = alt.X("ms:Q", scale=alt.Scale(domain=[0, most * (1.02 if not narrow else 1.3)], nice=False))
    layers = [
        alt.Chart(values(bars)).mark_bar(size=15).encode(x=x, y=y, color=colour, order=alt.Order("order:Q")),
        text.encode(x=end, y=y, text="text:N"),
    ]
    return layer(*layers, width=width - (0 if narrow else 110), height=22 * len(labels))


def _rtts(point: CommitCost) -> str:
    return f", {point.rtts.value:.2f} RTT" if point.rtts else ""


def lag(cost: ReplicationCost, width: int) -> Drawable | None:
    """Transactions that a replica was behind, over one trial of each mode at the quoted distance."""
    rtt = quoted_distance(distances(cost.curves))
    here = [(name, curve) for name, curve in named(cost.curves) if curve.lag and curve.replica_rtt_ns == rtt]
    if not here:
        return None
    names, curves = [name for name, _ in here], [curve for _, curve in here]
    most = max(behind for curve in curves if curve.lag for behind in curve.lag.behind)
    rows = [
        {"series": name, "at": at, "behind": behind}
        for name, curve in zip(names, curves, strict=True)
        if curve.lag
        for at, behind in zip(curve.lag.at_s, curve.lag.behind, strict=True)
    ]
    colours, _ = scales(names, curves)
    legend = alt.Legend(orient="top", title=None, columns=columns(names, width < PHONE), labelLimit=420)
    dashes = [list(palette.DASHES[index % 8]) for index in range(len(names))]
    return (
        alt.Chart(values(rows))
        .mark_line(strokeWidth=1.4, interpolate="step-after")
        .encode(
            x=alt.X("at:Q", title="seconds of the trial", axis=alt.Axis(grid=False, tickCount=6)),
            y=alt.Y(
                "behind:Q",
                scale=alt.Scale(type="symlog", constant=10, nice=False),
                axis=alt.Axis(values=symlog_ticks(most), format=",d"),
                title="transactions behind",
            ),
            color=by(alt.Color, "series", names, colours, legend),
            strokeDash=by(alt.StrokeDash, "series", names, dashes, legend),
        )
        .properties(width=width, height=130)
    )


def by(channel: Any, field: str, names: Sequence[str], looks: Sequence[Any], legend: alt.Legend | None = None) -> Any:
    """A colour, shape or dash for each name."""
    return channel(
        f"{field}:N", sort=list(names), scale=alt.Scale(domain=list(names), range=list(looks)), legend=legend
    )


def symlog_ticks(most: float) -> list[float]:
    """0, then decades as far as the largest."""
    found = [0.0]
    tick = 1.0 if most < 100 else 10.0
    while tick <= most:
        found.append(tick)
        tick *= 10
    return found


# ---------------------------------------------------------------- names of curves


def distances(curves: Sequence[ReplicationCurve]) -> list[int | None]:
    """Of the links to replicas, ascending. `[None]`: no curve has a replica."""
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
"""Parts of an arm's name that say which point of a panel it is, and which panel."""


def _by_arm(curves: Sequence[ReplicationCurve]) -> list[str]:
    """The mode, and those parts of an arm's name that not all curves share."""
    every = [[] if not curve.points else curve.points[0].arm.split(", ") for curve in curves]
    shared = set.intersection(*map(set, every))
    modes = [mode_name(curve.mode) for curve in curves]
    return [
        ", ".join([mode, *(part for part in found if part not in {*shared, mode} and not _OF_POINTS.fullmatch(part))])
        for mode, found in zip(modes, every, strict=True)
    ]
