"""The part of a report on throughput over connections: the chart, the ceilings, how good the model is, and published figures.
`scaling`, `predictions` and `published` return blocks, or none if the run does not answer the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from howfar.analysis.answer import fill
from howfar.analysis.summary import Summary
from howfar.experiments.bandwidth.analysis import Ceiling, Curve, Scaling, ThreadsPoint, curves_of
from howfar.experiments.bandwidth.texts import REPORT
from howfar.model.fit import Prediction
from howfar.model.resource import LINKS
from howfar.report import figures, limit_text, palette
from howfar.report.charts import (
    PHONE,
    Drawable,
    Rows,
    VegaLite,
    arrange_in_rows,
    axis,
    by_style,
    clip_limits,
    data,
    interval_layers,
    layer,
    legend,
    log_axis,
    panel_width,
    repeat_styles,
    series_styles,
)
from howfar.report.document import Block, Cell, Chart, Column, Details, Heading, Table, plain_cells, plain_columns
from howfar.report.drawing import alt
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import half_width, half_width_text
from howfar.stats.resample import Interval

MIN_LABEL_DISTANCE = 20
"""Distance in pixels below which ceilings share a label, because two labels would overlap."""

MAX_CEILING_FACTOR = 3
"""Factor above the highest measured throughput of a curve beyond which a ceiling is not drawn."""

MIN_ROOM_ABOVE = 1.06
"""Minimum factor between a curve and its ceiling at which the label is above the ceiling. Otherwise it is below, clear of the
points."""

MAX_CURVES_IN_TITLE = 3

PANEL_HEIGHT = 300


def scaling(summary: Summary) -> list[Block]:
    """Throughput against connections, with ceilings and the model."""
    curves = [curve for panel in curve_panels(summary) for curve in panel.curves]
    if not curves:
        return []
    modelled = any(best_prediction(curve) for curve in curves)
    caption = fill(
        REPORT["curves"], intervals=any(point.tps.low is not None for curve in curves for point in curve.points)
    )
    if modelled:
        caption += fill(REPORT["model"], foreign=any(curve.foreign for curve in curves))
    if any(curve.ceilings for curve in curves):
        caption += REPORT["ceilings"]
    caption += (REPORT["knee"] if modelled else "") + REPORT["logarithmic"]
    columns = plain_columns("curve", "connections", "transactions/s", "model", "band", "published")
    rows = tuple(
        plain_cells(
            curve.name,
            str(point.threads),
            f"{figures.number(point.tps.value)} {figures.plus_minus(point.tps)}",
            *_model_cells(best_prediction(curve), point.threads),
            _published_tps(curve, point),
        )
        for curve in curves
        for point in curve.points
    )
    chart = Chart("scaling", _title(curves), caption, partial(_draw_panels, summary), Table("", columns, rows))
    ceilings = tuple(
        plain_cells(
            curve.name,
            limit_text.limit_name(ceiling.resource),
            figures.number(ceiling.tps),
            figures.percent(curve.top.tps.value / ceiling.tps),
            ceiling.says,
        )
        for curve in curves
        for ceiling in curve.ceilings
    )
    head = plain_columns("curve", "ceiling", "transactions/s", "reached", "from")
    table = [Details("Ceilings of each curve", (Table("", head, ceilings, stack=True),))] if ceilings else []
    return [Heading("How does it scale with connections?"), chart, *table]


def _title(curves: Sequence[Curve]) -> str:
    """The highest throughputs: of each curve, or if these are many, the lowest and the highest of them."""
    tops = sorted(zip((curve.top.tps.value for curve in curves), curve_labels(curves), strict=True))
    tops = tops if len(tops) <= MAX_CURVES_IN_TITLE else [tops[0], tops[-1]]
    return fill(
        REPORT["tops"], tops="; ".join(fill(REPORT["top"], tps=tps, curve=name) for tps, name in reversed(tops))
    )


def _model_cells(model: Prediction | None, threads: int) -> tuple[str, str]:
    point = next((point for point in model.points if point.threads == threads), None) if model else None
    if point is None:
        return figures.UNKNOWN, figures.UNKNOWN
    return figures.number(point.tps), f"{figures.number(point.low)} to {figures.number(point.high)}"


def predictions(summary: Summary) -> list[Block]:
    """How well the model describes each curve, and how well it predicts each curve from others."""
    rows = []
    bases: dict[str, list[str]] = {}
    curves = curves_of(summary)
    for curve in curves:
        for kind, prediction in (("predicted", curve.foreign), ("fitted", curve.own)):
            if prediction is not None:
                rows.append((*plain_cells(curve.name, kind), *_error_cells(prediction)))
        if curve.foreign is not None:
            bases.setdefault(curve.foreign.basis, []).append(curve.name)
    if not rows:
        return []
    columns = (
        *plain_columns("curve", "model"),
        Column("knee", "N*"),
        Column("plateau", "txn/s"),
        Column("plateau", "error"),
        Column("mean", "error"),
        Column("worst", "error"),
    )
    notes = [fill(REPORT["predicted"], curves="; ".join(names), basis=basis) for basis, names in bases.items()]
    notes += [finding.says] if (finding := summary.find_findings(Scaling)) and finding.says else []
    if constructed_points := sum(
        prediction.by_construction for curve in curves if (prediction := curve.foreign or curve.own)
    ):
        notes.append(fill(REPORT["by construction"], points=constructed_points))
    if any(prediction.extrapolated for curve in curves for prediction in (curve.own, curve.foreign) if prediction):
        notes.append(REPORT["extrapolated"])
    if any(curve.own for curve in curves):
        notes.append(REPORT["fitted"])
    return [Details("How good is the model?", (Table("", columns, tuple(rows), tuple(notes), stack=True),), open=True)]


def _error_cells(prediction: Prediction) -> tuple[Cell, ...]:
    return (
        Cell(
            figures.number(prediction.knee) + (" *" if prediction.extrapolated else ""),
            _half_width_text(prediction.knee_interval),
        ),
        Cell(figures.number(prediction.plateau_tps), _half_width_text(prediction.plateau_tps_interval)),
        *plain_cells(
            figures.percent(prediction.plateau_error, signed=True),
            figures.percent(prediction.mean_error),
            figures.percent(prediction.worst_error),
        ),
    )


def _half_width_text(interval: Interval | None) -> str:
    """Half the interval's width, for columns that have no room for both limits."""
    if interval is None:
        return ""
    low, high = interval
    width = half_width(Estimate(value=low, low=low, high=high))
    return "" if width is None else half_width_text(width)


def _published_tps(curve: Curve, point: ThreadsPoint) -> str:
    """Published transactions per second as text; unknown if the published workload is different."""
    return figures.number(None if curve.published_differs else point.published_tps)


def published(summary: Summary) -> list[Block]:
    """Published transactions per second next to ours. Both are also given as shares of their own maximum, which can be compared."""
    curves = [curve for curve in curves_of(summary) if curve.published]
    rows = []
    for curve in curves:
        our_max = max(point.tps.value for point in curve.points)
        published_max = max((point.published_tps or 0.0 for point in curve.points), default=0.0)
        rows += [
            plain_cells(
                curve.name,
                str(point.threads),
                figures.number(point.tps.value),
                f"{point.tps.value / our_max:.2f}",
                _published_tps(curve, point),
                f"{point.published_tps / published_max:.2f}",
            )
            for point in curve.points
            if point.published_tps is not None
        ]
    if not rows:
        return []
    sources = sorted({curve.published for curve in curves if curve.published})
    notes = [fill(REPORT["published"], sources="; ".join(sources))]
    if any(curve.published_differs for curve in curves):
        notes.append(REPORT["published differs"])
    head = plain_columns("curve", "connections", "ours/s", "of its maximum", "published/s", "of its maximum")
    table = Table("", head, tuple(rows), tuple(notes))
    title = "Measured and published curves as shares of their maximum"
    return [
        Heading("What others published"),
        Chart("shapes", title, REPORT["shapes"], partial(_draw_shapes, summary), table),
        Details("Published figures", (table,)),
    ]


# ---------------------------------------------------------------- the charts


@dataclass(frozen=True)
class Panel:
    title: str
    curves: tuple[Curve, ...]
    names_of_all: tuple[str, ...]
    """Names of the curves of all panels, which share one legend and one set of colours."""

    @property
    def names(self) -> list[str]:
        return curve_labels(self.curves)

    @property
    def colours(self) -> list[str]:
        """Colours of this panel's curves."""
        colours = repeat_styles(palette.SERIES, len(self.names_of_all))
        return [colours[self.names_of_all.index(name)] for name in self.names]


def curve_panels(summary: Summary) -> list[Panel]:
    """One panel for each kind of connection, because throughputs of different kinds are not comparable."""
    curves = [curve for curve in curves_of(summary) if len(curve.points) > 1]
    if not curves:
        return []
    kinds: dict[str, list[Curve]] = {}
    for curve in curves:
        kinds.setdefault(str(curve.factors.get("connect", "persistent")), []).append(curve)
    all_names = tuple(dict.fromkeys(name for curves_of_kind in kinds.values() for name in curve_labels(curves_of_kind)))
    return [
        Panel(TITLES.get(kind, kind) if len(kinds) > 1 else "", tuple(curves_of_kind), all_names)
        for kind, curves_of_kind in kinds.items()
    ]


TITLES = {"persistent": "persistent connections", "per-transaction": "a connection for each transaction"}


def curve_labels(curves: Sequence[Curve]) -> list[str]:
    """Names of the curves without what all of them share."""
    names = [curve.name.split(", ") for curve in curves]
    shared = set.intersection(*(set(parts) for parts in names)) if len(names) > 1 else set()
    return [", ".join(part for part in parts if part not in shared) or ", ".join(parts) for parts in names]


def _draw_panels(summary: Summary, width: int) -> Drawable:
    """One line per curve: measured points, the model's line and band, ceilings and knees. Both axes are logarithmic."""
    drawn_panels = curve_panels(summary)
    domain = _domain([curve for panel in drawn_panels for curve in panel.curves])
    if len(drawn_panels) == 1:
        return _Drawing(drawn_panels[0], domain, width, PANEL_HEIGHT).chart()
    panel_pixels, narrow = panel_width(len(drawn_panels), width, 80), width < PHONE
    charts = [_Drawing(panel, domain, panel_pixels, 220 if narrow else PANEL_HEIGHT).chart() for panel in drawn_panels]
    return arrange_in_rows(charts, 1 if narrow else len(charts))


def best_prediction(curve: Curve) -> Prediction | None:
    """The prediction from other curves, or else the fit to the curve itself."""
    return curve.foreign or curve.own


def ceilings_to_draw(curve: Curve) -> list[Ceiling]:
    """The ceilings to draw: the lowest, and those of the link, unless they are far above every measured point. The table has all of
    them."""
    max_tps = max(point.tps.value for point in curve.points)
    candidates = [ceiling for index, ceiling in enumerate(curve.ceilings) if index == 0 or ceiling.resource in LINKS]
    return [ceiling for ceiling in candidates if ceiling.tps <= max_tps * MAX_CEILING_FACTOR]


def _domain(curves: Sequence[Curve]) -> tuple[float, float]:
    tps_values = [point.tps.value for curve in curves for point in curve.points]
    tps_values += [ceiling.tps for curve in curves for ceiling in ceilings_to_draw(curve)]
    tps_values += [point.tps for curve in curves if (model := best_prediction(curve)) for point in model.points]
    return min(tps_values) / 1.25, max(tps_values) * 1.35


class _Drawing:
    """Draws one panel. Its layers share axes and colours."""

    def __init__(self, panel: Panel, domain: tuple[float, float], width: int, height: int) -> None:
        self.panel, self.domain, self.width, self.height = panel, domain, width, height
        self.threads = sorted({point.threads for curve in panel.curves for point in curve.points})
        self.x_domain = self.threads[0] / 1.12, self.threads[-1] * 1.12
        self.x = _connections_axis(self.threads, self.x_domain, width)
        self.colour, self.shape = _colour_and_shape(list(panel.names_of_all), width)
        self.named_curves = list(zip(panel.names, panel.curves, strict=True))

    def y(self, field: str = "tps") -> alt.Y:
        return log_axis(alt.Y, field, "transactions per second", self.domain)

    def chart(self) -> Drawable:
        title = {"title": alt.TitleParams(self.panel.title, anchor="start")} if self.panel.title else {}
        layers = [
            *self._model_marks(),
            *self._ceiling_marks(),
            *self._measured_marks(),
            *self._knee_marks(),
            *self._ceiling_label_marks(),
        ]
        return layer(*layers, width=self.width, height=self.height, **title)

    def _model_marks(self) -> list[Any]:
        rows: Rows = [
            {"curve": name, "threads": point.threads, "tps": point.tps, "low": point.low, "high": point.high}
            for name, curve in self.named_curves
            if (model := best_prediction(curve))
            for point in model.points
        ]
        band = data(rows).mark_area(opacity=0.16, clip=True)
        line = data(rows).mark_line(strokeWidth=1.4, strokeDash=[5, 4])
        return (
            [
                band.encode(x=self.x, y=self.y("low"), y2="high:Q", color=self.colour),
                line.encode(x=self.x, y=self.y(), color=self.colour),
            ]
            if rows
            else []
        )

    def _ceiling_marks(self) -> list[Any]:
        """Ceilings, in the curves' colours."""
        layers: list[Any] = []
        for line in ceiling_lines(self.panel):
            rule = data([{"threads": self.x_domain[0], "to": self.x_domain[1], "tps": line.tps}])
            mark = rule.mark_rule(color=line.colour, strokeWidth=1, strokeDash=[2, 3])
            layers.append(mark.encode(x=self.x, x2="to:Q", y=self.y()))
        return layers

    def _measured_marks(self) -> list[Any]:
        rows: Rows = [
            {"curve": name, "threads": point.threads, "tps": point.tps.value, **clip_limits(point.tps, self.domain)}
            for name, curve in self.named_curves
            for point in curve.points
        ]
        line = data(rows).mark_line(strokeWidth=1.8).encode(x=self.x, y=self.y(), color=self.colour)
        y, low = self.y(), self.y("low")
        return [line, *interval_layers(rows, self.x, y, low, colour=self.colour, shape=self.shape, size=60)]

    def _knee_marks(self) -> list[Any]:
        rows: Rows = [
            {"curve": name, "threads": model.knee, "tps": model.ceiling_tps}
            for name, curve in self.named_curves
            if (model := best_prediction(curve)) and self.threads[0] <= model.knee <= self.threads[-1]
        ]
        mark = data(rows).mark_point(shape="cross", angle=45, size=70, opacity=1, filled=True)
        text = data(rows).mark_text(dy=13, fontSize=11, align="left", dx=3)
        channels = {"x": self.x, "y": self.y(), "color": self.colour}
        labels = text.encode(**channels, text=alt.Text("threads:Q", format=".2~r"))
        return [mark.encode(**channels), *([labels] if len(rows) == 1 else [])] if rows else []

    def _ceiling_label_marks(self) -> list[Any]:
        """Labels of ceilings at the right, on the side of the line that is away from the curve, drawn over everything else."""
        layers: list[Any] = []
        min_factor = (self.domain[1] / self.domain[0]) ** (MIN_LABEL_DISTANCE / self.height)
        for label in ceiling_labels(ceiling_lines(self.panel), min_factor):
            label_data = data([{"threads": self.threads[-1] * 1.1, "tps": label.tps, "text": label.name}])
            size, dy = 11 if self.width < PHONE else 12, -7 if label.factor_above > MIN_ROOM_ABOVE else 15
            style: VegaLite = {"align": "right", "dy": dy, "fontSize": size}
            halo = label_data.mark_text(color=palette.HALO, stroke=palette.HALO, strokeWidth=4, **style)
            for mark in (halo, label_data.mark_text(color=label.colour, **style)):
                layers.append(mark.encode(x=self.x, y=self.y(), text="text:N"))
        return layers


def _connections_axis(threads: list[int], domain: tuple[float, float], width: int) -> alt.X:
    """The axis of connections, with ticks at the levels, or at fewer of them if the labels would touch."""
    ticks = threads[:: 1 + len(threads) * 34 // max(width, 1)]
    return axis(alt.X, "threads", "connections", domain, 2, values=ticks, format="d", grid=False)


def _colour_and_shape(names: list[str], width: int) -> tuple[alt.Color, alt.Shape]:
    key = legend(1 if width < PHONE / 1.5 else 4, 260, symbolStrokeWidth=2, symbolOpacity=1)
    return series_styles(names, key, "curve")


@dataclass(frozen=True)
class CeilingLabel:
    """A ceiling with its label. `factor_above`: ratio of the ceiling to the highest measured throughput of its curve."""

    tps: float
    name: str
    colour: str
    factor_above: float


def ceiling_lines(panel: Panel) -> list[CeilingLabel]:
    return [
        CeilingLabel(
            ceiling.tps,
            limit_text.limit_name(ceiling.resource),
            colour,
            ceiling.tps / max(point.tps.value for point in curve.points),
        )
        for curve, colour in zip(panel.curves, panel.colours, strict=True)
        for ceiling in ceilings_to_draw(curve)
    ]


def ceiling_labels(lines: list[CeilingLabel], max_factor: float) -> list[CeilingLabel]:
    """Labels of ceilings. Ceilings within the factor `max_factor` of the lowest share one label, below it or above the highest. A
    label of several curves has a neutral colour."""
    groups: list[list[CeilingLabel]] = []
    for line in sorted(lines, key=lambda line: line.tps):
        if groups and line.tps <= groups[-1][0].tps * max_factor:
            groups[-1].append(line)
        else:
            groups.append([line])
    labels = []
    for group in groups:
        names = ", ".join(dict.fromkeys(line.name for line in group))
        low, high = figures.number(group[0].tps), figures.number(group[-1].tps)
        amount = high if low == high else f"{low} to {high}"
        colours = {line.colour for line in group}
        factor_above = min(line.factor_above for line in group)
        tps = group[-1].tps if factor_above > MIN_ROOM_ABOVE else group[0].tps
        labels.append(
            CeilingLabel(
                tps, f"{names}: {amount}/s", colours.pop() if len(colours) == 1 else palette.MUTED, factor_above
            )
        )
    return labels


def _draw_shapes(summary: Summary, width: int) -> Drawable:
    """Our curves and the published ones, each as a share of its own maximum, because machines differ but shapes can be compared."""
    curves = [curve for curve in curves_of(summary) if curve.published]
    rows: Rows = []
    for curve in curves:
        measured_points = [(point.threads, point.tps.value) for point in curve.points]
        published_points = [(point.threads, point.published_tps) for point in curve.points if point.published_tps]
        for source, points in (("measured", measured_points), ("published", published_points)):
            max_tps = max((tps for _, tps in points), default=1.0)
            for threads, tps in points:
                rows.append({"curve": curve.name, "threads": threads, "whose": source, "share": tps / max_tps})
    levels = sorted({row["threads"] for row in rows})
    colour, _ = _colour_and_shape([curve.name for curve in curves], width)
    key = alt.Legend(
        orient="bottom",
        title=None,
        symbolType="stroke",
        symbolSize=300,
        symbolStrokeWidth=2,
        symbolStrokeColor=palette.MUTED,
    )
    marks = (
        data(rows)
        .mark_line(point=alt.OverlayMarkDef(size=24))
        .encode(
            x=_connections_axis(levels, (levels[0], levels[-1]), width),
            y=axis(alt.Y, "share", "of the curve's maximum", (0, 1.05), format="%", tickCount=5),
            color=colour,
            strokeDash=by_style(alt.StrokeDash, "whose", {"measured": [1, 0], "published": [2, 3]}, key),
            strokeWidth=by_style(alt.StrokeWidth, "whose", {"measured": 2.2, "published": 1.3}, key),
        )
    )
    return marks.properties(width=width, height=220)
