"""The report on compression: savings and cost of each algorithm, and the rate of the link below which it pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.compression.analysis import (
    EVERYWHERE,
    NOT_RESOLVED,
    CompressionEconomics,
    CompressionRow,
    analyse_compression,
    verdict,
    with_sentences,
)
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.grid import NOT_VALID, grid_document, prediction_text
from howfar.report import figures, palette
from howfar.report.charts import (
    PHONE,
    Drawable,
    Point,
    Rows,
    axis,
    by_name,
    data,
    ends,
    intervals,
    layer,
    legend,
    log_axis,
    panel_width,
    rows_of,
    styles,
)
from howfar.report.document import (
    Block,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Fields,
    Heading,
    table_of,
)
from howfar.report.drawing import alt
from howfar.report.figures import rate, tps
from howfar.report.grid import level
from howfar.stats.estimate import Part
from howfar.store.records import ArmRole
from howfar.units import format_rate_bps

PANEL_HEIGHT = 260

UNCOMPRESSED = "none"
"""Name of the series without compression."""


def draw_break_even(summary: Summary, width: int) -> Drawable | None:
    """Chart of throughput over the link's rate: lines by the model, measured points, and a diamond at each break-even."""
    findings = summary.found(CompressionEconomics)
    if findings is None or not findings.rows:
        return None
    contents = list(dict.fromkeys(row.content for row in findings.rows))
    points = {content: measured_rows(summary, content) for content in contents}
    rate_and_tps = [(point["rate"], point["tps"]) for panel_pixels in points.values() for point in panel_pixels]
    rate_and_tps += [
        (point.rate_bps, tps)
        for row in findings.rows
        for point in row.curve
        for tps in (point.plain_tps, point.compressed_tps)
    ]
    rates_bps, tps_values = [rate for rate, _ in rate_and_tps], [tps for _, tps in rate_and_tps]
    if not rates_bps or min(rates_bps) == max(rates_bps):
        return None
    panel_pixels, narrow = panel_width(len(contents), width, 64), width < PHONE
    names = [UNCOMPRESSED, *dict.fromkeys(row.algorithm for row in findings.rows)]
    panels = _Panels(
        (min(rates_bps), max(rates_bps)), (min(tps_values) / 1.2, max(tps_values) * 1.25), names, panel_pixels
    )
    charts: list[Drawable] = []
    for content in contents:
        rows = [row for row in findings.rows if row.content == content]
        charts.append(panels.panel(content, rows, points[content], first=narrow or not charts))
    return rows_of(charts, 1 if narrow else len(charts))


def measured_rows(summary: Summary, content: str) -> Rows:
    """A row for each cell over a link with this kind of data: algorithm, rate, throughput with its interval."""
    rows: Rows = []
    for cell in summary.cells:
        rate_bps = cell.factors.get("rate_bps")
        if cell.role is ArmRole.DUPLICATE or level(cell, "content") != content or not isinstance(rate_bps, int | float):
            continue
        algorithm, throughput = str(level(cell, "compression")), tps(cell)
        series = UNCOMPRESSED if algorithm == "off" else algorithm
        point = {"series": series, "rate": float(rate_bps), "tps": throughput.value}
        rows.append(point | ends(throughput, (0.0, math.inf)))
    return rows


class _Panels:
    """Common parts of the panels: axes, colours, shapes."""

    def __init__(
        self, x_domain: tuple[float, float], y_domain: tuple[float, float], names: list[str], width: int
    ) -> None:
        self.width, self.y_domain = width, y_domain
        ticks = [10.0**exponent for exponent in range(6, 13) if x_domain[0] <= 10.0**exponent <= x_domain[1]]
        labels = {"labelOverlap": True, "labelFlush": True}
        self.x = axis(alt.X, "rate", "link, bit/s", x_domain, 10, values=ticks, format="~s", grid=False, **labels)
        legend_spec = legend(5 if width > 225 else 2, symbolStrokeWidth=2)
        self.colour = by_name(alt.Color, "series", styles(names, (palette.MUTED, *palette.SERIES)), legend_spec)
        self.shape = by_name(alt.Shape, "series", styles(names, palette.SHAPES), legend_spec)
        self.dash = by_name(alt.StrokeDash, "series", styles(names, palette.DASHES), legend_spec)

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
            layers += intervals(clipped, self.x, y, low, colour=self.colour, shape=self.shape, size=55)
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
            mark = data(crossings).mark_point(shape="diamond", size=150, strokeWidth=2, filled=False)
            layers.append(mark.encode(x=self.x, y=y, color=self.colour))
        # Break-even labels are at the bottom right: at high rates throughput is high, so no line passes there.
        for index, row in enumerate(sorted(rows, key=lambda row: row.break_even_bps or 0.0)):
            labels = data([{"text": f"{row.algorithm} {_break_even_label(row)}", "series": row.algorithm}])
            label_marks = labels.mark_text(
                align="right", fontSize=11, x=self.width - 4, y=PANEL_HEIGHT - 8 - 15 * index
            )
            layers.append(label_marks.encode(text="text:N", color=self.colour))
        return layer(*layers, width=self.width, height=PANEL_HEIGHT, title=alt.TitleParams(content, anchor="start"))


def _break_even_label(row: CompressionRow) -> str:
    if not row.resolved:
        return NOT_RESOLVED
    if row.everywhere:
        return f"pays {EVERYWHERE}"
    return f"pays below {rate(row.break_even_bps)}" if row.break_even_bps else "never pays"


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
    findings: ClassVar[Keys] = {"compression": CompressionEconomics}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        is_resample = bool(evidence.whole)
        return {
            "compression": analyse_compression(
                evidence.facts, evidence.workload, evidence.floors, is_resample=is_resample
            )
        }

    def with_sentences(self, finding: Part) -> Part:
        return with_sentences(finding) if isinstance(finding, CompressionEconomics) else finding

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        return verdict(evidence)

    def document(self, summary: Summary) -> Document:
        findings = summary.the(CompressionEconomics)
        return grid_document(summary, chart=_chart_section(summary, findings), economics=costs_section(findings))


def _chart_section(summary: Summary, findings: CompressionEconomics) -> list[Block]:
    has_curves = any(row.curve for row in findings.rows)
    caption = "Points: measured, with 95 % intervals." + (
        " Lines: the model of each algorithm on this machine and data. Diamond: below this rate of the link compression pays."
        if has_curves
        else ""
    )
    number, contents = figures.number, dict.fromkeys(row.content for row in findings.rows)
    fields: Fields[Point] = {
        "data": lambda point: point["content"],
        "compression": lambda point: point["series"],
        "link": lambda point: figures.rate(point["rate"]),
        "transactions/s [95 %]": lambda point: (
            f"{number(point['tps'])} [{number(point['low'])}, {number(point['high'])}]"
        ),
    }
    points = [{"content": content, **point} for content in contents for point in measured_rows(summary, content)]
    data = table_of("", points, fields)
    title = "Transactions per second against the link's rate, by compression"
    make = partial(draw_break_even, summary)
    return [Heading("Below which rate does compression pay?"), Chart("even", title, caption, make, data)]


def costs_section(findings: CompressionEconomics) -> list[Block]:
    rates_bps = list(dict.fromkeys(tried.rate_bps for row in findings.rows for tried in row.measured))
    fields: dict[str | Column, Callable[[CompressionRow], str | Cell]] = {
        "data,\nalgorithm": lambda row: f"{row.content}, {row.algorithm}",
        "bytes of\nplain": lambda row: f"{row.ratio_to_client:.2f}",
        "CPU ns/B\nclient+server": lambda row: Cell(
            f"{figures.number(row.client_ns_per_byte)}+{figures.number(row.server_ns_per_byte)}",
            figures.between(row.cost_ns_per_byte_interval),
        ),
        "pays\nbelow": lambda row: Cell(
            _pays_below(row) + (" *" if row.extrapolated else ""),
            figures.between(row.break_even_bps_interval, figures.rate),
        ),
    }
    for rate_bps in rates_bps:
        fields[f"{f'x at {format_rate_bps(rate_bps)}' if rate_bps else 'x, no link'}\n(predicted)"] = partial(
            _comparison_cell, rate_bps
        )
    rows_by_advice: dict[str, list[str]] = {}
    for row in findings.rows:
        if row.level_advice:
            rows_by_advice.setdefault(row.level_advice, []).append(f"{row.algorithm} on {row.content}")
    notes = [findings.says]
    if any(row.extrapolated for row in findings.rows):
        notes.append("* beyond the rates that were measured: an extrapolation.")
    if any(tried.agrees is False and not tried.invalid for row in findings.rows for tried in row.measured):
        notes.append("! the model predicted a gain where there was a loss, or the other way round.")
    notes += [f"{', '.join(names)}: {text.rstrip('.')}." for text, names in rows_by_advice.items()]
    return [
        Details(
            "What compression costs and saves", (table_of("", findings.rows, fields, notes, stack=True),), open=True
        )
    ]


def _comparison_cell(rate_bps: float | None, row: CompressionRow) -> Cell:
    comparison = next((comparison for comparison in row.measured if comparison.rate_bps == rate_bps), None)
    if comparison is None:
        return Cell(figures.UNKNOWN)
    mark = f" {NOT_VALID}" if comparison.invalid else " !" if comparison.agrees is False else ""
    return Cell(figures.ratio(comparison.ratio), f"({prediction_text(comparison.predicted)}){mark}")


def _pays_below(row: CompressionRow) -> str:
    """The break-even; or that it pays nowhere, everywhere, or is not known."""
    if not row.resolved:
        return "not resolved"
    if row.everywhere:
        return "all tried"
    return figures.rate(row.break_even_bps) if row.break_even_bps else "never"
