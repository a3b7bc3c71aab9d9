"""Throughput against connections, one line a curve: measured points, the model's line and band, ceilings and knees. Both axes are
logarithmic. As in `charts.py`, each function takes a summary and a width and returns a chart, or None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from howfar.analysis.summary import Summary
from howfar.experiments.bandwidth.analysis import Ceiling, Curve, curves_of
from howfar.model.fit import Prediction
from howfar.model.resource import Resource
from howfar.report import figures, limit_text, palette
from howfar.report.charts import PHONE, Drawable, hconcat, layer, log_ticks, pick, values, vconcat

LABEL = 20
"""Pixels: ceilings closer than this share a label, since two could not be read."""

FAR = 3
"""A ceiling more than this factor above everything measured of its curve limits nothing that is drawn."""

CLEAR = 1.06
"""A ceiling at least this factor above its curve is labelled above; at a nearer one the curve's points are in the way."""

LINKS = (Resource.LINK_TO_CLIENT, Resource.LINK_TO_SERVER)

HEIGHT = 300

BESIDE = 200
"""Several panels may take what one leaves free beside itself."""


@dataclass(frozen=True)
class Panel:
    title: str
    curves: tuple[Curve, ...]
    every_name: tuple[str, ...]
    """Of the curves of every panel: one legend and one set of colours for all."""

    @property
    def names(self) -> list[str]:
        return series_names(self.curves)

    @property
    def colours(self) -> list[str]:
        """Of this panel's curves."""
        colours = pick(palette.SERIES, len(self.every_name))
        return [colours[self.every_name.index(name)] for name in self.names]


def panels(summary: Summary) -> list[Panel]:
    """One, or one for each way to connect: their throughputs are of different kinds."""
    curves = [curve for curve in curves_of(summary) if len(curve.points) > 1]
    if not curves:
        return []
    ways: dict[str, list[Curve]] = {}
    for curve in curves:
        ways.setdefault(str(curve.factors.get("connect", "persistent")), []).append(curve)
    every = tuple(dict.fromkeys(name for found in ways.values() for name in series_names(found)))
    return [Panel(TITLES.get(way, way) if len(ways) > 1 else "", tuple(found), every) for way, found in ways.items()]


TITLES = {"persistent": "persistent connections", "per-transaction": "a connect for every transaction"}


def series_names(curves: Sequence[Curve]) -> list[str]:
    """Names of the curves without what all of them share."""
    words = [curve.name.split(", ") for curve in curves]
    shared = set.intersection(*(set(parts) for parts in words)) if len(words) > 1 else set()
    return [", ".join(part for part in parts if part not in shared) or ", ".join(parts) for parts in words]


def scaling(summary: Summary, width: int) -> Drawable | None:
    found = panels(summary)
    if not found:
        return None
    domain = _domain([curve for panel in found for curve in panel.curves])
    if len(found) == 1:
        return _panel(found[0], domain, width, HEIGHT)
    side_by_side = width >= PHONE
    each = (width + BESIDE - 80 * len(found)) // len(found) if side_by_side else width
    drawn = [_panel(panel, domain, each, HEIGHT if side_by_side else 220) for panel in found]
    return hconcat(*drawn) if side_by_side else vconcat(*drawn)


def model_of(curve: Curve) -> Prediction | None:
    """What was foreseen, where it was; else what was fitted."""
    return curve.foreign or curve.own


def shown_ceilings(curve: Curve) -> list[Ceiling]:
    """The lowest, which binds, and the link's, unless nothing measured comes near it. The others are in the table."""
    most = max(point.tps.value for point in curve.points)
    wanted = [ceiling for index, ceiling in enumerate(curve.ceilings) if index == 0 or ceiling.resource in LINKS]
    return [ceiling for ceiling in wanted if ceiling.tps <= most * FAR]


def _domain(curves: Sequence[Curve]) -> tuple[float, float]:
    seen = [point.tps.value for curve in curves for point in curve.points]
    seen += [ceiling.tps for curve in curves for ceiling in shown_ceilings(curve)]
    seen += [point.tps for curve in curves if (model := model_of(curve)) for point in model.points]
    return min(seen) / 1.25, max(seen) * 1.35


def _panel(panel: Panel, domain: tuple[float, float], width: int, height: int) -> Drawable:
    names = panel.names
    threads = sorted({point.threads for curve in panel.curves for point in curve.points})
    x = alt.X(
        "threads:Q",
        scale=alt.Scale(type="log", base=2, domain=[threads[0] / 1.12, threads[-1] * 1.12], nice=False),
        axis=alt.Axis(values=_thinned(threads, width), format="d", grid=False),
        title="connections",
    )

    def height_of(field: str) -> alt.Y:
        return alt.Y(
            f"{field}:Q",
            scale=alt.Scale(type="log", domain=list(domain), nice=False),
            axis=alt.Axis(values=log_ticks(*domain), format=",.3~r"),
            title="transactions a second",
        )

    y, low = height_of("tps"), height_of("low")
    colour, shape = _scales(list(panel.every_name), width)
    layers = [
        *_model(panel, names, x, (y, low), colour),
        *_ceiling_rules(panel, threads, x, y),
        *_measured(panel, names, (x, y, low), domain, (colour, shape)),
        *_knees(panel, names, threads, x, y, colour),
        *_ceiling_labels(panel, threads, (x, y), width, (domain[1] / domain[0]) ** (LABEL / height)),
    ]
    return layer(
        *layers,
        width=width,
        height=height,
        **({"title": alt.TitleParams(panel.title, anchor="start")} if panel.title else {}),
    )


def _thinned(threads: list[int], width: int) -> list[int]:
    """Ticks at the levels, fewer where they would touch."""
    step = 1 + len(threads) * 34 // max(width, 1)
    return threads[::step]


def _scales(names: list[str], width: int) -> tuple[alt.Color, alt.Shape]:
    legend = alt.Legend(
        orient="top",
        title=None,
        columns=1 if width < PHONE / 1.5 else 4,
        labelLimit=260,
        symbolStrokeWidth=2,
        symbolOpacity=1,
    )
    colour = alt.Scale(domain=names, range=pick(palette.SERIES, len(names)))
    shape = alt.Scale(domain=names, range=pick(palette.SHAPES, len(names)))
    return (
        alt.Color("curve:N", sort=names, scale=colour, legend=legend),
        alt.Shape("curve:N", sort=names, scale=shape, legend=legend),
    )


def _model(panel: Panel, names: list[str], x: alt.X, y: tuple[alt.Y, alt.Y], colour: alt.Color) -> list[Any]:
    rows = [
        {"curve": name, "threads": point.threads, "tps": point.tps, "low": point.low, "high": point.high}
        for name, curve in zip(names, panel.curves, strict=True)
        if (model := model_of(curve))
        for point in model.points
    ]
    if not rows:
        return []
    data = alt.Chart(values(rows))
    band = data.mark_area(opacity=0.16, clip=True).encode(x=x, y=y[1], y2="high:Q", color=colour)

    return [band, data.mark_line(strokeWidth=1.4, strokeDash=[5, 4]).encode(x=x, y=y[0], color=colour)]


def _measured(
    panel: Panel,
    names: list[str],
    frame: tuple[alt.X, alt.Y, alt.Y],
    domain: tuple[float, float],
    marks: tuple[alt.Color, alt.Shape],
) -> list[Any]:
    x, y, low = frame
    colour, shape = marks
    rows: list[dict[str, Any]] = [
        {
            "curve": name,
            "threads": point.threads,
            "tps": point.tps.value,
            "low": max(domain[0], point.tps.value if point.tps.low is None else point.tps.low),
            "high": min(domain[1], point.tps.value if point.tps.high is None else point.tps.high),
        }
        for name, curve in zip(names, panel.curves, strict=True)
        for point in curve.points
    ]
    data = alt.Chart(values(rows))
    return [
        data.mark_rule(strokeWidth=1.8, opacity=0.75).encode(x=x, y=low, y2="high:Q", color=colour),
        data.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour),
        data.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ]


def _knees(panel: Panel, names: list[str], threads: list[int], x: alt.X, y: alt.Y, colour: alt.Color) -> list[Any]:
    rows = [
        {"curve": name, "threads": model.knee, "tps": model.ceiling_tps}
        for name, curve in zip(names, panel.curves, strict=True)
        if (model := model_of(curve)) and threads[0] <= model.knee <= threads[-1]
    ]
    if not rows:
        return []
    data = alt.Chart(values(rows))
    mark = data.mark_point(shape="cross", angle=45, size=70, opacity=1, filled=True)
    label = data.mark_text(dy=13, fontSize=11, align="left", dx=3)
    said = label.encode(x=x, y=y, text=alt.Text("threads:Q", format=".2~r"), color=colour)
    return [mark.encode(x=x, y=y, color=colour), said] if len(rows) == 1 else [mark.encode(x=x, y=y, color=colour)]


@dataclass(frozen=True)
class ChartLine:
    """A ceiling as drawn. `room`: how far above what was measured it lies, as a factor."""

    tps: float
    name: str
    colour: str
    room: float


def ceiling_lines(panel: Panel) -> list[ChartLine]:
    return [
        ChartLine(
            ceiling.tps,
            limit_text.name(ceiling.resource),
            colour,
            ceiling.tps / max(point.tps.value for point in curve.points),
        )
        for curve, colour in zip(panel.curves, panel.colours, strict=True)
        for ceiling in shown_ceilings(curve)
    ]


def _ceiling_rules(panel: Panel, threads: list[int], x: alt.X, y: alt.Y) -> list[Any]:
    """In the curves' colours."""
    layers: list[Any] = []
    for line in ceiling_lines(panel):
        row = {"threads": threads[0] / 1.12, "to": threads[-1] * 1.12, "tps": line.tps}
        rule = alt.Chart(values([row])).mark_rule(color=line.colour, strokeWidth=1, strokeDash=[2, 3])
        layers.append(rule.encode(x=x, x2="to:Q", y=y))
    return layers


def _ceiling_labels(panel: Panel, threads: list[int], axes: tuple[alt.X, alt.Y], width: int, near: float) -> list[Any]:
    """At the right, on the side of the line where the curve is not, over everything else."""
    x, y = axes
    layers: list[Any] = []
    for label in ceiling_labels(ceiling_lines(panel), near):
        at = {"threads": threads[-1] * 1.1, "tps": label.tps, "text": label.name}
        data = alt.Chart(values([at]))
        looks: dict[str, Any] = {
            "align": "right",
            "dy": -7 if label.room > CLEAR else 15,
            "fontSize": 11 if width < PHONE else 12,
        }
        halo = data.mark_text(color=palette.HALO, stroke=palette.HALO, strokeWidth=4, **looks)
        layers += [mark.encode(x=x, y=y, text="text:N") for mark in (halo, data.mark_text(color=label.colour, **looks))]
    return layers


def ceiling_labels(lines: list[ChartLine], near: float) -> list[ChartLine]:
    """Lines within the factor `near` share one label, in no curve's colour: below the lowest of them, or above the highest."""
    groups: list[list[ChartLine]] = []
    for line in sorted(lines, key=lambda line: line.tps):
        if groups and line.tps <= groups[-1][0].tps * near:
            groups[-1].append(line)
        else:
            groups.append([line])
    found = []
    for group in groups:
        words = ", ".join(dict.fromkeys(line.name for line in group))
        low, high = figures.number(group[0].tps), figures.number(group[-1].tps)
        amount = high if low == high else f"{low} to {high}"
        colours = {line.colour for line in group}
        room = min(line.room for line in group)
        at = group[-1].tps if room > CLEAR else group[0].tps
        found.append(ChartLine(at, f"{words}: {amount}/s", colours.pop() if len(colours) == 1 else palette.MUTED, room))
    return found


def shapes(summary: Summary, width: int) -> Drawable | None:
    """Ours and the published curves, each as a share of its own largest: machines differ, shapes can be compared."""
    curves = [curve for curve in curves_of(summary) if curve.published]
    rows: list[dict[str, Any]] = []
    for curve in curves:
        ours = max(point.tps.value for point in curve.points)
        theirs = max((point.published_tps or 0.0 for point in curve.points), default=0.0)
        for point in curve.points:
            rows.append(
                {"curve": curve.name, "threads": point.threads, "whose": "measured", "share": point.tps.value / ours}
            )
            if point.published_tps and theirs:
                share = point.published_tps / theirs
                rows.append({"curve": curve.name, "threads": point.threads, "whose": "published", "share": share})
    if not rows:
        return None
    names = [curve.name for curve in curves]
    threads = sorted({row["threads"] for row in rows})
    colour, _ = _scales(names, width)
    data = alt.Chart(values(rows))
    x = alt.X(
        "threads:Q",
        scale=alt.Scale(type="log", base=2, domain=[threads[0], threads[-1]], nice=False),
        axis=alt.Axis(values=_thinned(threads, width), format="d", grid=False),
        title="connections",
    )
    y = alt.Y(
        "share:Q",
        scale=alt.Scale(domain=[0, 1.05]),
        axis=alt.Axis(format="%", tickCount=5),
        title="of the curve's largest",
    )
    whose = alt.Scale(domain=["measured", "published"], range=[[1, 0], [2, 3]])
    legend = alt.Legend(orient="bottom", title=None, symbolStrokeWidth=2, symbolType="stroke", symbolSize=300)
    dash = alt.StrokeDash("whose:N", scale=whose, legend=legend)
    thin = alt.StrokeWidth(
        "whose:N", scale=alt.Scale(domain=["measured", "published"], range=[2.2, 1.3]), legend=legend
    )
    return (
        data.mark_line(point=alt.OverlayMarkDef(size=24))
        .encode(x=x, y=y, color=colour, strokeDash=dash, strokeWidth=thin)
        .properties(width=width, height=220)
    )
