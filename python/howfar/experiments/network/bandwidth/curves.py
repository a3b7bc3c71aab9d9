"""The part of a report on throughput over connections: the chart, the ceilings, how good the model is, and published figures.
`scaling`, `predictions` and `published` return blocks, or none if the run does not answer the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from howfar.analysis.summary import Summary
from howfar.bottleneck.texts import resource_name
from howfar.experiments.network.bandwidth.analysis import Ceiling, Curve, Scaling, ThreadsPoint, curves_of
from howfar.experiments.network.bandwidth.texts import REPORT
from howfar.experiments.network.fit import Prediction
from howfar.findings import fill
from howfar.model.resource import LINKS
from howfar.plan.factors import CONNECT, FACTORS, RATE_BPS
from howfar.report import figures, palette
from howfar.report.charts import (
    LABEL_SIZE,
    LOG_SCALE,
    PHONE,
    Drawable,
    Rows,
    VegaLite,
    arrange_in_rows,
    axis,
    data,
    label_layers,
    labelled_lines,
    layer,
    log_axis,
    panel_width,
    styles,
    two_columns,
)
from howfar.report.document import Block, Cell, Chart, Column, Details, Heading, Table, plain_cells, plain_columns
from howfar.report.drawing import alt
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import half_width, half_width_text
from howfar.stats.resample import Interval

MAX_CEILING_FACTOR = 3
"""Factor above the highest measured throughput of a curve beyond which a ceiling is not drawn."""

MAX_CURVES_IN_TITLE = 3


def scaling(summary: Summary) -> list[Block]:
    """Throughput against connections, with ceilings and the model."""
    curves = [curve for panel in curve_panels(summary) for curve in panel.curves]
    if not curves:
        return []
    caption = fill(
        REPORT["curves"], intervals=any(point.tps.low is not None for curve in curves for point in curve.points)
    )
    columns = plain_columns("curve", "connections", "transactions/s", "model", "band", "published")
    rows = tuple(
        plain_cells(
            curve_name(curve),
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
            curve_name(curve),
            resource_name(ceiling.resource),
            figures.number(ceiling.tps),
            figures.percent(curve.top.tps.value / ceiling.tps),
            ceiling.text,
        )
        for curve in curves
        for ceiling in curve.ceilings
    )
    head = plain_columns("curve", "ceiling", "transactions/s", "reached", "from")
    table = Table("", head, ceilings, stack=True)
    details = [Details("Ceilings of each curve", (*_limits_chart(summary, curves, table), table))] if ceilings else []
    return [Heading("How does it scale with connections?"), chart, *details]


def _limits_chart(summary: Summary, curves: Sequence[Curve], table: Table) -> list[Chart]:
    """A panel for each curve: its ceilings, and the model if there is one."""
    limited = [(curve, min(curve.ceilings, key=lambda ceiling: ceiling.tps)) for curve in curves if curve.ceilings]
    curve, ceiling = max(limited, key=lambda pair: pair[0].top.tps.value / pair[1].tps)
    resource = resource_name(ceiling.resource)
    title = fill(REPORT["limits"], curve=curve_name(curve), share=curve.top.tps.value / ceiling.tps, resource=resource)
    caption = fill(REPORT["curves"], intervals=False) + REPORT["ceilings"]
    if any(best_prediction(curve) for curve in curves):
        caption += fill(REPORT["model"], foreign=any(curve.foreign for curve in curves))
    return [Chart("limits", title, caption, partial(_draw_limits, summary), table)]


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
                rows.append((*plain_cells(curve_name(curve), kind), *_error_cells(prediction)))
        if curve.foreign is not None:
            bases.setdefault(curve.foreign.basis, []).append(curve_name(curve))
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
    notes += [finding.text] if (finding := summary.find_findings(Scaling)) and finding.text else []
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
                curve_name(curve),
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
    of_maximum = Column("of its", "maximum")
    head = (*plain_columns("curve", "connections", "ours/s"), of_maximum, Column("published/s"), of_maximum)
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
    colours: Mapping[str, str]
    """By the curves' names; the same in all panels."""

    @property
    def lines(self) -> dict[str, list[tuple[float, Estimate]]]:
        """The measured points of each curve, by its name."""
        named = zip(curve_labels(self.curves), self.curves, strict=True)
        return {name: [(float(point.threads), point.tps) for point in curve.points] for name, curve in named}


def curve_panels(summary: Summary) -> list[Panel]:
    """One panel for each kind of connection, because throughputs of different kinds are not comparable."""
    curves = [curve for curve in curves_of(summary) if len(curve.points) > 1]
    if not curves:
        return []
    kinds: dict[str, list[Curve]] = {}
    for curve in curves:
        kinds.setdefault(CONNECT.level_in(curve.factors), []).append(curve)
    names = dict.fromkeys(name for curves_of_kind in kinds.values() for name in curve_labels(curves_of_kind))
    colours = styles(list(names), palette.SERIES)
    return [
        Panel(TITLES.get(kind, kind) if len(kinds) > 1 else "", tuple(curves_of_kind), colours)
        for kind, curves_of_kind in kinds.items()
    ]


TITLES = {"persistent": "persistent connections", "per-transaction": "a connection for each transaction"}


def curve_name(curve: Curve) -> str:
    """Its name with the rate as in tables: `remote, 10 Gb/s`."""
    rate = RATE_BPS.level_or_none(curve.factors)
    if rate is None:
        return curve.name
    shown = {FACTORS["rate_bps"].label(rate): figures.rate(float(rate))}
    return ", ".join(shown.get(part, part) for part in curve.name.split(", "))


def curve_labels(curves: Sequence[Curve]) -> list[str]:
    """Names of the curves without what all of them share."""
    names = [curve_name(curve).split(", ") for curve in curves]
    shared = set.intersection(*(set(parts) for parts in names)) if len(names) > 1 else set()
    return [", ".join(part for part in parts if part not in shared) or ", ".join(parts) for parts in names]


def _draw_panels(summary: Summary, width: int) -> Drawable:
    """The measured points: a line per curve. Both axes are logarithmic."""
    drawn_panels, narrow = curve_panels(summary), width < PHONE
    panel_pixels = width if len(drawn_panels) == 1 else panel_width(len(drawn_panels), width, 160)
    charts = []
    for panel in drawn_panels:
        threads = _levels(panel.curves)
        x = _connections_axis(threads, (threads[0] / 1.12, threads[-1] * 1.12), panel_pixels, "x")
        drawn = labelled_lines(
            panel.lines, x, "transactions per second", panel_pixels, colours=panel.colours, narrow=narrow
        )
        charts.append(drawn | ({"title": _panel_title(panel.title)} if panel.title else {}))
    return arrange_in_rows(charts, 1 if narrow else len(charts))


def _levels(curves: Sequence[Curve]) -> list[int]:
    """The numbers of connections, ascending."""
    return sorted({point.threads for curve in curves for point in curve.points})


def _panel_title(text: str) -> VegaLite:
    return {"text": text, "anchor": "start"}


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


def _draw_limits(summary: Summary, width: int) -> Drawable:
    """A panel for each curve: what was measured, what the model says in grey, and its ceilings."""
    panels = curve_panels(summary)
    curves = [
        (f"{name} {panel.title}".strip(), curve)
        for panel in panels
        for name, curve in zip(panel.lines, panel.curves, strict=True)
    ]
    domain = _domain([curve for _, curve in curves])
    columns, panel_pixels = two_columns(len(curves), width)
    return arrange_in_rows([_draw_limit(name, curve, domain, panel_pixels) for name, curve in curves], columns)


def _draw_limit(name: str, curve: Curve, domain: tuple[float, float], width: int) -> Drawable:
    height, threads = 190, _levels([curve])
    x = _connections_axis(threads, (threads[0] / 1.12, threads[-1] * 1.12), width)
    y, low = (log_axis(alt.Y, field, "transactions per second", domain) for field in ("tps", "low"))
    place = log_axis(alt.Y, "place", "transactions per second", domain)
    model, ceilings = best_prediction(curve), ceilings_to_draw(curve)
    predicted: Rows = [point.model_dump() for point in model.points] if model else []
    measured: Rows = [{"threads": point.threads, "tps": point.tps.value} for point in curve.points]
    labels: Rows = [
        {
            "threads": threads[-1] * 1.12,
            "place": ceiling.tps,
            "text": f"{resource_name(ceiling.resource)} {figures.number(ceiling.tps)}",
        }
        for ceiling in ceilings
    ]
    band = data(predicted).mark_area(color=palette.BAND, clip=True)
    line = data(predicted).mark_line(strokeWidth=1.4, strokeDash=[5, 4], color=palette.MUTED)
    ceiling_rule = data([{"tps": ceiling.tps} for ceiling in ceilings])
    points = data(measured).mark_line(
        strokeWidth=1.8, color=palette.SERIES[0], point={"color": palette.SERIES[0], "size": 50}
    )
    return layer(
        *([band.encode(x=x, y=low, y2="high:Q"), line.encode(x=x, y=y)] if predicted else []),
        *([ceiling_rule.mark_rule(color=palette.MUTED, strokeDash=[2, 3]).encode(y=y)] if ceilings else []),
        points.encode(x=x, y=y),
        *label_layers(labels, x, place, alt.value(palette.MUTED), domain, height),
        width=width,
        height=height,
        title=_panel_title(name),
    )


def _connections_axis(threads: list[int], domain: tuple[float, float], width: int, field: str = "threads") -> alt.X:
    """The axis of connections, with ticks at the levels, or at fewer of them if the labels would touch."""
    ticks = threads[:: 1 + len(threads) * 34 // max(width, 1)]
    return axis(alt.X, field, f"connections ({LOG_SCALE})", domain, 2, values=ticks, format="d", grid=False)


def _draw_shapes(summary: Summary, width: int) -> Drawable:
    """A panel for each curve with ours and the published one, each as a share of its own maximum, because machines differ but shapes
    can be compared."""
    curves = [curve for curve in curves_of(summary) if curve.published]
    columns, panel_pixels = two_columns(len(curves), width)
    return arrange_in_rows([_draw_shape(curve, panel_pixels) for curve in curves], columns)


def _draw_shape(curve: Curve, width: int) -> Drawable:
    levels, height = _levels([curve]), 150
    x = _connections_axis(levels, (levels[0], levels[-1]), width)
    y = axis(alt.Y, "share", "of the curve's maximum", (0, 1.05), format="%", tickCount=5)
    measured = [(point.threads, point.tps.value) for point in curve.points]
    published_points = [(point.threads, point.published_tps) for point in curve.points if point.published_tps]
    layers: list[Any] = []
    for source, points, colour in (
        ("published", published_points, palette.MUTED),
        ("measured", measured, palette.SERIES[0]),
    ):
        max_tps = max((tps for _, tps in points), default=1.0)
        rows: Rows = [{"threads": threads, "share": tps / max_tps, "text": source} for threads, tps in points]
        line = data(rows).mark_line(strokeWidth=2, color=colour, point={"size": 24, "color": colour})
        text = data(rows[-1:]).mark_text(
            align="left", dx=8, dy=7 if source == "measured" else -7, fontSize=LABEL_SIZE, color=colour
        )
        layers += [line.encode(x=x, y=y), text.encode(x=x, y=y, text="text:N")]
    return layer(*layers, width=width, height=height, title=_panel_title(curve_name(curve)))
