"""The report on compression: savings and cost of each algorithm, and the rate of the link below which it pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.network.compression.analysis import (
    CompressionEconomics,
    CompressionRow,
    analyse_compression,
    conclude,
    explain,
    is_open_ended,
    with_sentences,
)
from howfar.experiments.network.compression.texts import REPORT, TEXTS
from howfar.experiments.network.grid import NOT_VALID, grid_document, prediction_text
from howfar.findings import Finding, fill
from howfar.plan.factors import RATE_BPS, level_of
from howfar.report import figures, palette
from howfar.report.charts import (
    PHONE,
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
    panel_width,
    styles,
)
from howfar.report.document import (
    Block,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Heading,
    make_table,
)
from howfar.report.drawing import alt
from howfar.stats.estimate import Part
from howfar.store.records import ArmRole

PANEL_HEIGHT = 260

UNCOMPRESSED = "none"
"""Name of the series without compression."""


def rows_of(summary: Summary) -> tuple[CompressionRow, ...]:
    """The compared algorithms; without an answer, only what was measured: no model, break-even or advice."""
    rows = summary.require_findings(CompressionEconomics).rows
    if not summary.answer.is_missing:
        return rows
    no_model = {"break_even_bps": None, "gains": (), "level_advice": "", "curve": (), "extrapolated": False}
    unpredicted = {"predicted": None, "agrees": None}
    return tuple(
        row.model_copy(
            update=no_model | {"measured": tuple(tried.model_copy(update=unpredicted) for tried in row.measured)}
        )
        for row in rows
    )


def draw_break_even(summary: Summary, width: int) -> Drawable | None:
    """Chart of throughput over the link's rate: lines by the model, measured points, and a tick at each break-even."""
    compared = rows_of(summary)
    contents = list(dict.fromkeys(row.content for row in compared))
    points = {content: measured_rows(summary, content) for content in contents}
    rate_and_tps = [(point["rate"], point["tps"]) for panel_points in points.values() for point in panel_points]
    rate_and_tps += [
        (point.rate_bps, tps)
        for row in compared
        for point in row.curve
        for tps in (point.plain_tps, point.compressed_tps)
    ]
    rates_bps, tps_values = [rate for rate, _ in rate_and_tps], [tps for _, tps in rate_and_tps]
    if not rates_bps or min(rates_bps) == max(rates_bps):
        return None
    panel_pixels, narrow = panel_width(len(contents), width, 110), width < PHONE
    names = [UNCOMPRESSED, *dict.fromkeys(row.algorithm for row in compared)]
    panels = _Panels(
        (min(rates_bps), max(rates_bps)), (min(tps_values) / 1.2, max(tps_values) * 1.25), names, panel_pixels, narrow
    )
    charts: list[Drawable] = []
    for content in contents:
        rows = [row for row in compared if row.content == content]
        charts.append(panels.panel(content, rows, points[content], first=narrow or not charts))
    return arrange_in_rows(charts, 1 if narrow else len(charts))


def measured_rows(summary: Summary, content: str) -> Rows:
    """A row for each cell over a link with this kind of data: algorithm, rate, throughput with its interval."""
    rows: Rows = []
    for cell in summary.cells:
        rate_bps = RATE_BPS.level_or_none(cell.factors)
        if (
            cell.role is ArmRole.DUPLICATE
            or level_of(cell.factors, "content") != content
            or not isinstance(rate_bps, int | float)
        ):
            continue
        algorithm, throughput = str(level_of(cell.factors, "compression")), cell.tps
        series = UNCOMPRESSED if algorithm == "off" else algorithm
        point = {"series": series, "rate": float(rate_bps), "tps": throughput.value}
        rows.append(point | clip_limits(throughput, (0.0, math.inf)))
    return rows


class _Panels:
    """Common parts of the panels: axes, colours, shapes."""

    def __init__(
        self, x_domain: tuple[float, float], y_domain: tuple[float, float], names: list[str], width: int, narrow: bool
    ) -> None:
        self.width, self.y_domain = width, y_domain
        ticks = [10.0**exponent for exponent in range(6, 13) if x_domain[0] <= 10.0**exponent <= x_domain[1]]
        labels = {"labelOverlap": True, "labelFlush": True, "labelSeparation": 12}
        self.x = axis(alt.X, "rate", "link, bit/s", x_domain, 10, values=ticks, format="~s", grid=False, **labels)
        self.edge, self.names = x_domain[1], names
        legend_spec = legend(2) if narrow else None
        self.is_labelled = not narrow
        self.colour = by_style(alt.Color, "series", styles(names, (palette.MUTED, *palette.SERIES)), legend_spec)
        self.shape = by_style(alt.Shape, "series", styles(names, palette.SHAPES), legend_spec)
        self.dash = by_style(alt.StrokeDash, "series", styles(names, palette.DASHES), None)

    def _y(self, field: str, first: bool) -> alt.Y:
        title = "transactions per second" if first else None
        return log_axis(alt.Y, field, title, self.y_domain)

    def panel(self, content: str, rows: list[CompressionRow], points: Rows, first: bool) -> Drawable:
        y = self._y("tps", first)
        layers: list[Any] = []
        if model_rows := _model_rows(rows):
            lines_chart = data(model_rows).mark_line(strokeWidth=1.8)
            layers.append(lines_chart.encode(x=self.x, y=y, color=self.colour, strokeDash=self.dash))
        if points:
            min_tps, max_tps = self.y_domain
            clipped = [
                point | {"low": max(point["low"], min_tps), "high": min(point["high"], max_tps)} for point in points
            ]
            low = self._y("low", first)
            layers += interval_layers(clipped, self.x, y, low, colour=self.colour, shape=self.shape, size=55)
        crossings: Rows = [
            {
                "series": row.algorithm,
                "rate": row.break_even_bps,
                "tps": interpolated_plain_tps(row, row.break_even_bps),
            }
            for row in rows
            if row.break_even_bps
            and row.curve
            and row.curve[0].rate_bps <= row.break_even_bps <= row.curve[-1].rate_bps
        ]
        if crossings:
            tick = data(crossings).mark_tick(orient="vertical", size=30, thickness=2)
            layers.append(tick.encode(x=self.x, y=y, color=self.colour))
        # Break-even labels are at the bottom right: at high rates throughput is high, so no line passes there.
        labelled = sorted((row for row in rows if row.curve), key=lambda row: row.break_even_bps or 0.0)
        for index, row in enumerate(labelled):
            text = fill(REPORT["break-even"], algorithm=row.algorithm, pays=_pays_text(row))
            labels = data([{"text": text, "series": row.algorithm}])
            label_marks = labels.mark_text(
                align="right", fontSize=11, x=self.width - 4, y=PANEL_HEIGHT - 8 - 15 * index
            )
            layers.append(label_marks.encode(text="text:N", color=self.colour))
        if self.is_labelled:
            layers += self._name_labels([*points, *model_rows], self._y("place", first))
        return layer(*layers, width=self.width, height=PANEL_HEIGHT, title=alt.TitleParams(content, anchor="start"))

    def _name_labels(self, rows: Rows, place: alt.Y) -> list[Any]:
        """The name of each algorithm at the right edge, level with its value at the highest rate."""
        last = {row["series"]: row["tps"] for row in sorted(rows, key=lambda row: row["rate"])}
        labels: Rows = [
            {"series": name, "text": name, "rate": self.edge, "place": last[name]}
            for name in self.names
            if name in last
        ]
        return label_layers(labels, self.x, place, self.colour, self.y_domain, PANEL_HEIGHT)


def _pays_text(row: CompressionRow) -> str:
    """Where it pays: below the break-even, nowhere, everywhere, or not known."""
    outcomes = {"not resolved": not row.resolved, "everywhere": row.everywhere, "never": not row.break_even_bps}
    name = next((name for name, applies in outcomes.items() if applies), "below")
    return fill(REPORT[name], rate=row.break_even_bps or 0.0)


def _model_rows(rows: list[CompressionRow]) -> Rows:
    plain_curve = next((row.curve for row in rows if row.curve), ())
    model_rows = [{"series": UNCOMPRESSED, "rate": point.rate_bps, "tps": point.plain_tps} for point in plain_curve]
    model_rows += [
        {"series": row.algorithm, "rate": point.rate_bps, "tps": point.compressed_tps}
        for row in rows
        for point in row.curve
    ]
    return model_rows


def interpolated_plain_tps(row: CompressionRow, bps: float) -> float:
    """Throughput without compression at this rate, interpolated linearly between the two nearest points of the curve."""
    before = max((point for point in row.curve if point.rate_bps <= bps), key=lambda point: point.rate_bps)
    after = min((point for point in row.curve if point.rate_bps >= bps), key=lambda point: point.rate_bps)
    if before is after or before.rate_bps == after.rate_bps:
        return before.plain_tps
    fraction = (bps - before.rate_bps) / (after.rate_bps - before.rate_bps)
    return float(before.plain_tps + (after.plain_tps - before.plain_tps) * fraction)


class CompressionExperiment(Experiment):
    name = "compression"
    texts = TEXTS
    findings: ClassVar[Keys] = {"compression": CompressionEconomics}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        is_resample = bool(evidence.whole_run_findings)
        return {
            "compression": analyse_compression(
                evidence.facts, evidence.workload, evidence.floors, is_resample=is_resample
            )
        }

    def with_sentences(self, finding: Part) -> Part:
        return with_sentences(finding) if isinstance(finding, CompressionEconomics) else finding

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        return conclude(evidence)

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        return explain(evidence)

    def document(self, summary: Summary) -> Document:
        return grid_document(summary, chart=_chart_section(summary), economics=costs_section(summary))


def _chart_section(summary: Summary) -> list[Block]:
    compared = rows_of(summary)
    number, contents = figures.number, dict.fromkeys(row.content for row in compared)
    points = [{"content": content, **point} for content in contents for point in measured_rows(summary, content)]
    has_intervals = any(point["low"] < point["high"] for point in points)
    caption = fill(REPORT["points"], intervals=has_intervals)
    caption += REPORT["lines"] if any(row.curve for row in compared) else ""
    fields: dict[str | Column, Callable[[Point], str | Cell]] = {
        "data": lambda point: point["content"],
        "compression": lambda point: point["series"],
        "link": lambda point: figures.rate(point["rate"]),
        "transactions/s": lambda point: number(point["tps"]),
    }
    if has_intervals:
        fields["95 % interval"] = lambda point: f"{number(point['low'])} to {number(point['high'])}"
    data = make_table("", points, fields)
    make = partial(draw_break_even, summary)
    return [Heading("Below which rate does compression pay?"), Chart("even", _title(summary), caption, make, data)]


def _title(summary: Summary) -> str:
    """The largest gain, or that there is none."""
    best = next(iter(summary.answer.findings), None)
    if best is None or best.id not in TEXTS or best.id == "invalid":
        return REPORT["measured"]
    return fill(REPORT["gain"], **best.parameters) if best.id == "helps" else REPORT["no gain"]


def costs_section(summary: Summary) -> list[Block]:
    compared, answered = rows_of(summary), not summary.answer.is_missing
    rates_bps = list(dict.fromkeys(tried.rate_bps for row in compared for tried in row.measured))
    fields: dict[str | Column, Callable[[CompressionRow], str | Cell]] = {
        "data,\nalgorithm": lambda row: f"{row.content}, {row.algorithm}",
        "bytes of\nplain": lambda row: f"{row.ratio_to_client:.2f}",
        "CPU ns/B\nclient+server": lambda row: Cell(
            f"{figures.number(row.client_ns_per_byte)}+{figures.number(row.server_ns_per_byte)}",
            figures.interval_line(row.cost_ns_per_byte_interval),
        ),
    }
    if answered:
        fields["pays"] = lambda row: Cell(
            _pays_text(row) + (" *" if row.extrapolated else ""),
            figures.interval_line(row.break_even_bps_interval, figures.rate),
        )
    for rate_bps in rates_bps:
        head = f"x at {figures.rate(rate_bps)}" if rate_bps else "x, no link"
        fields[f"{head}\n{'(predicted)' if answered else 'measured'}"] = partial(_comparison_cell, rate_bps)
    notes = [summary.require_findings(CompressionEconomics).text] if answered else []
    if any(is_open_ended(row) for row in compared):
        notes.append(REPORT["open"])
    if any(row.extrapolated for row in compared):
        notes.append(REPORT["extrapolated"])
    if any(tried.agrees is False and not tried.invalid for row in compared for tried in row.measured):
        notes.append(REPORT["wrong"])
    advice = {row.content: row.level_advice for row in compared if row.level_advice}
    notes += [fill(REPORT["advice"], content=content, advice=text) for content, text in advice.items()]
    return [
        Details("What compression costs and saves", (make_table("", compared, fields, notes, stack=True),), open=True)
    ]


def _comparison_cell(rate_bps: float | None, row: CompressionRow) -> Cell:
    comparison = next((comparison for comparison in row.measured if comparison.rate_bps == rate_bps), None)
    if comparison is None:
        return Cell(figures.UNKNOWN)
    mark = f" {NOT_VALID}" if comparison.invalid else " !" if comparison.agrees is False else ""
    return Cell(figures.ratio(comparison.ratio), prediction_text(comparison.predicted) + mark)
