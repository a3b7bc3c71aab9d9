"""The report of a plan that compresses: savings and cost of each algorithm, and the rate of the link below which it pays."""

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
    compression,
    verdict,
    worded,
)
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.grid import NOT_VALID, grid_document, modelled
from howfar.report import figures, palette
from howfar.report.charts import (
    PHONE,
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
    panel_width,
    rows_of,
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

HEIGHT = 260

NONE = "none"
"""Name of the series without compression."""


def break_even(summary: Summary, width: int) -> Drawable | None:
    """Lines by the model, points measured; a diamond where a line crosses the one without compression."""
    found = summary.found(CompressionEconomics)
    if found is None or not found.rows:
        return None
    contents = list(dict.fromkeys(row.content for row in found.rows))
    points = {content: measured(summary, content) for content in contents}
    seen = [(point["rate"], point["tps"]) for each in points.values() for point in each]
    seen += [(at.rate_bps, tps) for row in found.rows for at in row.curve for tps in (at.plain_tps, at.compressed_tps)]
    rates, heights = [rate for rate, _ in seen], [tps for _, tps in seen]
    if not rates or min(rates) == max(rates):
        return None
    each, narrow = panel_width(len(contents), width, 64), width < PHONE
    names = [NONE, *dict.fromkeys(row.algorithm for row in found.rows)]
    frame = _Frame((min(rates), max(rates)), (min(heights) / 1.2, max(heights) * 1.25), names, each)
    drawn: list[Drawable] = []
    for content in contents:
        rows = [row for row in found.rows if row.content == content]
        drawn.append(frame.panel(content, rows, points[content], first=narrow or not drawn))
    return rows_of(drawn, 1 if narrow else len(drawn))


def measured(summary: Summary, content: str) -> Rows:
    """Each cell over a link with this kind of data: algorithm, rate, throughput with its limits."""
    found: Rows = []
    for cell in summary.cells:
        bps = cell.factors.get("rate_bps")
        if cell.role is ArmRole.DUPLICATE or level(cell, "content") != content or not isinstance(bps, int | float):
            continue
        algorithm, reached = str(level(cell, "compression")), tps(cell)
        series = NONE if algorithm == "off" else algorithm
        point = {"series": series, "rate": float(bps), "tps": reached.value}
        found.append(point | ends(reached, (0.0, math.inf)))
    return found


class _Frame:
    """Common parts of the panels: axes, colours, shapes."""

    def __init__(self, rates: tuple[float, float], heights: tuple[float, float], names: list[str], width: int) -> None:
        self.width, self.heights = width, heights
        ticks = [10.0**exponent for exponent in range(6, 13) if rates[0] <= 10.0**exponent <= rates[1]]
        look: dict[str, Any] = {
            "values": ticks,
            "format": "~s",
            "grid": False,
            "labelOverlap": True,
            "labelFlush": True,
        }
        self.x = axis(alt.X, "rate", "link, bit/s", rates, 10, **look)
        key = legend(5 if width > 225 else 2, symbolStrokeWidth=2)
        self.colour = by_name(alt.Color, "series", looks(names, (palette.MUTED, *palette.SERIES)), key)
        self.shape = by_name(alt.Shape, "series", looks(names, palette.SHAPES), key)
        self.dash = by_name(alt.StrokeDash, "series", looks(names, palette.DASHES), key)

    def _y(self, field: str, first: bool) -> alt.Y:
        title = "transactions per second" if first else None
        return log_axis(alt.Y, field, title, self.heights)

    def panel(self, content: str, rows: list[CompressionRow], points: Rows, first: bool) -> Drawable:
        y = self._y("tps", first)
        layers: list[Any] = []
        if lines := _lines(rows):
            drawn = data(lines).mark_line(strokeWidth=1.8)
            layers.append(drawn.encode(x=self.x, y=y, color=self.colour, strokeDash=self.dash))
        if points:
            lowest, highest = self.heights
            cut = [point | {"low": max(point["low"], lowest), "high": min(point["high"], highest)} for point in points]
            low = self._y("low", first)
            layers += intervals(cut, self.x, y, low, colour=self.colour, shape=self.shape, size=55)
        crossings: Rows = [
            {"series": row.algorithm, "rate": row.break_even_bps, "tps": plain_at(row, row.break_even_bps)}
            for row in rows
            if row.break_even_bps
            and row.curve
            and row.curve[0].rate_bps <= row.break_even_bps <= row.curve[-1].rate_bps
        ]
        if crossings:
            mark = data(crossings).mark_point(shape="diamond", size=150, strokeWidth=2, filled=False)
            layers.append(mark.encode(x=self.x, y=y, color=self.colour))
        # At the bottom right, where throughput is high and no line passes: the rate below which each pays.
        for index, row in enumerate(sorted(rows, key=lambda row: row.break_even_bps or 0.0)):
            labels = data([{"text": f"{row.algorithm} {_label_of(row)}", "series": row.algorithm}])
            text = labels.mark_text(align="right", fontSize=11, x=self.width - 4, y=HEIGHT - 8 - 15 * index)
            layers.append(text.encode(text="text:N", color=self.colour))
        return layer(*layers, width=self.width, height=HEIGHT, title=alt.TitleParams(content, anchor="start"))


def _label_of(row: CompressionRow) -> str:
    if not row.resolved:
        return NOT_RESOLVED
    if row.everywhere:
        return f"pays {EVERYWHERE}"
    return f"pays below {rate(row.break_even_bps)}" if row.break_even_bps else "never pays"


def _lines(rows: list[CompressionRow]) -> Rows:
    plain = next((row.curve for row in rows if row.curve), ())
    found = [{"series": NONE, "rate": at.rate_bps, "tps": at.plain_tps} for at in plain]
    found += [
        {"series": row.algorithm, "rate": at.rate_bps, "tps": at.compressed_tps} for row in rows for at in row.curve
    ]
    return found


def plain_at(row: CompressionRow, bps: float) -> float:
    """Throughput without compression at this rate, interpolated linearly between the two nearest points of the curve."""
    before = max((at for at in row.curve if at.rate_bps <= bps), key=lambda at: at.rate_bps)
    after = min((at for at in row.curve if at.rate_bps >= bps), key=lambda at: at.rate_bps)
    if before is after or before.rate_bps == after.rate_bps:
        return before.plain_tps
    part = (bps - before.rate_bps) / (after.rate_bps - before.rate_bps)
    return float(before.plain_tps + (after.plain_tps - before.plain_tps) * part)


class Compression(Experiment):
    name = "compression"
    findings: ClassVar[Keys] = {"compression": CompressionEconomics}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        again = bool(evidence.whole)
        return {"compression": compression(evidence.facts, evidence.workload, evidence.floors, again=again)}

    def worded(self, found: Part) -> Part:
        return worded(found) if isinstance(found, CompressionEconomics) else found

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        return verdict(evidence)

    def document(self, summary: Summary) -> Document:
        found = summary.the(CompressionEconomics)
        return grid_document(summary, chart=_chart(summary, found), economics=costs(found))


def _chart(summary: Summary, found: CompressionEconomics) -> list[Block]:
    curves = any(row.curve for row in found.rows)
    caption = "Points: measured, with 95 % intervals." + (
        " Lines: the model of each algorithm on this machine and data. Diamond: below this rate of the link compression pays."
        if curves
        else ""
    )
    number, contents = figures.number, dict.fromkeys(row.content for row in found.rows)
    fields: Fields[dict[str, Any]] = {
        "data": lambda point: point["content"],
        "compression": lambda point: point["series"],
        "link": lambda point: figures.rate(point["rate"]),
        "transactions/s [95 %]": lambda at: f"{number(at['tps'])} [{number(at['low'])}, {number(at['high'])}]",
    }
    points = [{"content": content, **point} for content in contents for point in measured(summary, content)]
    data = table_of("", points, fields)
    title = "Transactions per second against the link's rate, by compression"
    make = partial(break_even, summary)
    return [Heading("Below which rate does compression pay?"), Chart("even", title, caption, make, data)]


def costs(found: CompressionEconomics) -> list[Block]:
    rates = list(dict.fromkeys(tried.rate_bps for row in found.rows for tried in row.measured))
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
    for bps in rates:
        fields[f"{f'x at {format_rate_bps(bps)}' if bps else 'x, no link'}\n(predicted)"] = partial(_tried, bps)
    advice: dict[str, list[str]] = {}
    for row in found.rows:
        if row.level_advice:
            advice.setdefault(row.level_advice, []).append(f"{row.algorithm} on {row.content}")
    notes = [found.says]
    if any(row.extrapolated for row in found.rows):
        notes.append("* beyond the rates that were measured: an extrapolation.")
    if any(tried.agrees is False and not tried.invalid for row in found.rows for tried in row.measured):
        notes.append("! the model predicted a gain where there was a loss, or the other way round.")
    notes += [f"{', '.join(names)}: {text.rstrip('.')}." for text, names in advice.items()]
    return [
        Details("What compression costs and saves", (table_of("", found.rows, fields, notes, stack=True),), open=True)
    ]


def _tried(bps: float | None, row: CompressionRow) -> Cell:
    tried = next((tried for tried in row.measured if tried.rate_bps == bps), None)
    if tried is None:
        return Cell(figures.UNKNOWN)
    mark = f" {NOT_VALID}" if tried.invalid else " !" if tried.agrees is False else ""
    return Cell(figures.ratio(tried.ratio), f"({modelled(tried.predicted)}){mark}")


def _pays_below(row: CompressionRow) -> str:
    """The break-even; or that it pays nowhere, everywhere, or is not known."""
    if not row.resolved:
        return "not resolved"
    if row.everywhere:
        return "all tried"
    return figures.rate(row.break_even_bps) if row.break_even_bps else "never"
