"""Comparison of paths: the same load over each of them, relative to the baseline. The smallest case is one path against itself
(A/A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from howfar.analysis.cells import PARTS, CellSummary, Metric
from howfar.analysis.idle import Waking, waking
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.answer import floor_clause
from howfar.experiments.experiment import Experiment, Keys
from howfar.plan.factors import IDLE
from howfar.report import figures, palette
from howfar.report.charts import (
    PHONE,
    ROW_HEIGHT,
    Drawable,
    Rows,
    arm_axis,
    axis,
    data,
    ends,
    layer,
    percentiles,
    stacked,
    styles,
)
from howfar.report.document import Block, Cell, Chart, Column, Details, Document, Heading, Table, plain, single
from howfar.report.drawing import alt
from howfar.report.figures import baseline_name, shown_cells
from howfar.report.frame import frame
from howfar.report.sections import cell_table, confirmations, ratio_cards, trials
from howfar.stats.estimate import Part
from howfar.stats.histograms import percentile_ms
from howfar.stats.intervals import Resolution, excludes_one, floor_text, interval_text
from howfar.stats.trials import ONE
from howfar.store.records import ArmRole

MAX_NAMED = 6
"""Maximum number of arms in a sentence; the rest is in the table."""


class Paths(Experiment):
    """Comparison of paths, which applies to every run that no other experiment claims."""

    name = "paths"
    findings: ClassVar[Keys] = {"waking": Waking}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"waking": waking(evidence.table)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        baseline = next((cell for cell in evidence.cells if cell.role is ArmRole.BASELINE), None)
        all_contenders = [cell for cell in evidence.cells if cell.role is ArmRole.CONTENDER]
        if baseline is not None and Metric.THROUGHPUT in evidence.floors.same and not all_contenders:
            return _self_comparison(baseline.arm, evidence)
        contenders = [cell for cell in all_contenders if cell.ratio is not None]
        if baseline is None or not contenders:
            return "No verdict: there is no block in which both the baseline and another arm were measured."
        return f"{_comparison_clauses(baseline.arm, contenders, evidence)}{floor_clause(evidence)}."

    def applies(self, summary: Summary) -> bool:
        return True

    def document(self, summary: Summary) -> Document:
        below = (*waking_section(summary), *chart_sections(summary), *trials(summary), *confirmations(summary))
        return frame(summary, (cell_table(summary),), cards=ratio_cards(summary), below=below)


def waking_section(summary: Summary) -> list[Block]:
    """Blocks on waking idle CPUs. Empty: the run has one level of idle states only."""
    if (finding := summary.found(Waking)) is None:
        return []
    columns = (
        Column("path", left=True),
        Column("as found", "of polling"),
        Column("of baseline", "as found"),
        Column("of baseline", "polling"),
        Column("changed by waking"),
    )
    rows = tuple(
        (
            Cell(path.arm.removesuffix(f", {IDLE.label('as-found')}")),
            *(Cell(figures.point(ratio), figures.limits(ratio)) for ratio in path.ratios),
        )
        for path in finding.paths
    )
    note = (
        f"{summary.operation_unit.capitalize()} per second with idle CPUs as this machine has them, relative to those with polling "
        "idle CPUs: below 1, waking CPUs costs throughput. The last column is the factor by which that changes the comparison."
    )
    return [Details("What waking idle CPUs costs", (Table("", columns, rows, (note,), stack=True),), True)]


def _comparison_clauses(base: str, contenders: list[CellSummary], evidence: RunEvidence) -> str:
    unit = evidence.table.unit
    resolved = [cell for cell in contenders if cell.resolution.is_difference]
    unresolved = [cell for cell in contenders if cell.resolution is Resolution.NOT_RESOLVED]
    clauses = []
    if resolved:
        named_ratios = ", ".join(
            f"{cell.arm} {interval_text(cell.ratio)}" for cell in resolved[:MAX_NAMED] if cell.ratio
        )
        more_text = f" and {len(resolved) - MAX_NAMED} more" if len(resolved) > MAX_NAMED else ""
        clauses.append(f"{unit.capitalize()} per second relative to {base}: {named_ratios}{more_text}")
    if unresolved:
        names = ", ".join(_unresolved_name(cell, ONE[unit]) for cell in unresolved[:MAX_NAMED])
        clauses.append(f"not resolved: {names}" if resolved else f"Not resolved, relative to {base}: {names}")
    return "; ".join(clauses)


def _unresolved_name(cell: CellSummary, operation: str) -> str:
    """Name of a path whose throughput is not resolved, with its CPU time if that differs significantly."""
    if cell.cpu_resolution is Resolution.NOT_RESOLVED or cell.cpu_ratio is None:
        return cell.arm
    return f"{cell.arm} (its CPU per {operation} is {cell.cpu_bound.sign}{interval_text(cell.cpu_ratio)} times the baseline's)"


def _self_comparison(arm: str, evidence: RunEvidence) -> str:
    aa, floor, unit = evidence.floors.same.get(Metric.THROUGHPUT), evidence.floors.floor(), evidence.table.unit
    assert aa is not None, "only then it is called"
    result = f"{arm} was measured under two names: the second reached {interval_text(aa)} times the {unit} per second of the first"
    if floor is None:
        return result + "; there are too few blocks to tell what this machine can resolve."
    resolution_text = (
        "a difference is resolved although there is none" if excludes_one(aa) else "no difference is resolved"
    )
    return f"{result}; {resolution_text}, and differences below {floor_text(floor)} cannot be resolved (95 % interval)."


MAX_DRAWN_RATIO = 20
"""Intervals of ratios are drawn between the inverse of this ratio and this ratio; an arrowhead marks those that continue beyond."""


def _arm_names(cells: Sequence[CellSummary]) -> list[str]:
    return [cell.arm for cell in cells]


def _ratio_ticks(low: float, high: float) -> list[float]:
    """A few round ratios inside the domain, always including 1."""
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
    fine = (0.8, 0.85, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2) if high / low < 1.6 else ()
    return [tick for tick in sorted((*steps, *fine)) if low <= tick <= high]


def ratio_domain(cells: Sequence[CellSummary], floor: float) -> tuple[float, float]:
    """Domain of the ratio axis. It includes every block and published ratio, and intervals and the A/A band as far as they are within
    1/20 to 20: wider ones would compress the others."""
    points = [ratio for cell in cells for ratio in cell.block_ratios] + [1.0]
    points += [cell.published.ratio for cell in cells if cell.published]
    points += [cell.ratio.value for cell in cells if cell.ratio]
    limits = [1 + floor, 1 / (1 + floor)]
    for cell in cells:
        if cell.ratio and cell.ratio.low is not None and cell.ratio.high is not None:
            limits += [cell.ratio.low, cell.ratio.high]
    bounded = [min(max(limit, 1 / MAX_DRAWN_RATIO), MAX_DRAWN_RATIO) for limit in limits]
    return min(points + bounded) / 1.08, max(points + bounded) * 1.08


def bars(cells: Sequence[CellSummary], low: float, high: float) -> Rows:
    """Each arm's point and interval, cut at the edges of the axis; `cut` names the edges."""
    return [
        {
            "arm": cell.arm,
            "ratio": cell.ratio.value,
            **ends(cell.ratio, (low, high)),
            "cut_low": cell.ratio.low is not None and cell.ratio.low < low,
            "cut_high": cell.ratio.high is not None and cell.ratio.high > high,
        }
        for cell in cells
        if cell.ratio is not None
    ]


def ratios(summary: Summary, width: int) -> Drawable | None:
    """Interval plot: block dots, interval, point; grey band of the A/A arm; diamond for the published ratio."""
    cells = [cell for cell in summary.cells if cell.role is not ArmRole.BASELINE and cell.ratio is not None]
    if not cells:
        return None
    floor = summary.noise_floor or 0.0
    low, high = ratio_domain(cells, floor)
    title = f"{summary.operation_unit} per second, relative to {baseline_name(summary)} (log scale)"
    x = axis(alt.X, "ratio", title, (low, high), 10, values=_ratio_ticks(low, high), format=".3~r", grid=True)
    y = arm_axis(_arm_names(cells))
    # Dots of one arm are spread over five lanes, so that equal ones do not hide each other.
    block_dots: Rows = [
        {"arm": cell.arm, "ratio": ratio, "lane": (index % 5 - 2) / 2}
        for cell in cells
        for index, ratio in enumerate(cell.block_ratios)
    ]
    lane = alt.YOffset("lane:Q", scale=alt.Scale(domain=[-1.6, 1.6]))
    points = bars(cells, low, high)
    published_points: Rows = [{"arm": cell.arm, "ratio": cell.published.ratio} for cell in cells if cell.published]
    narrow, colour = width < PHONE, palette.SERIES[0]
    band: Rows = [{"ratio": max(1 / (1 + floor), low), "to": min(1 + floor, high)}]
    layers: list[Any] = [
        data(band).mark_rect(color=palette.BAND).encode(x=x, x2="to:Q"),
        data([{"ratio": 1.0}]).mark_rule(color=palette.MUTED, strokeDash=[4, 3]).encode(x=x),
        data(block_dots)
        .mark_point(color=palette.MUTED, opacity=0.55, size=22, strokeWidth=1.2)
        .encode(x=x, y=y, yOffset=lane),
        data(points).mark_rule(color=colour, strokeWidth=4).encode(x=alt.X("low:Q"), x2="high:Q", y=y),
    ]
    for side, arrow in (("low", "triangle-left"), ("high", "triangle-right")):
        # At the edge of the axis, where an interval continues beyond it.
        if cut := [{"arm": point["arm"], "ratio": point[side]} for point in points if point[f"cut_{side}"]]:
            mark = data(cut).mark_point(shape=arrow, color=colour, filled=True, size=90, opacity=1)
            layers.append(mark.encode(x=x, y=y))
    layers.append(
        data(points).mark_point(color=colour, filled=True, size=50 if narrow else 110, opacity=1).encode(x=x, y=y)
    )
    if published_points:
        size, marks = 60 if narrow else 120, data(published_points)
        diamonds = marks.mark_point(shape="diamond", color=palette.SERIES[1], strokeWidth=2, size=size)
        layers.append(diamonds.encode(x=x, y=y))
    return layer(*layers, width=width, height=ROW_HEIGHT * len(cells))


def latency(summary: Summary, width: int) -> Drawable | None:
    """A line for each arm."""
    cells = shown_cells(summary)
    rows: Rows = [
        {"series": cell.arm, "quantile": point.quantile, "ms": point.ms}
        for cell in cells
        for point in cell.latency_curve
    ]
    titles = "this share of transactions was faster", "ms per transaction"
    return percentiles({"": rows}, styles(_arm_names(cells), palette.SERIES), titles=titles, width=width)


def time_split(summary: Summary, width: int) -> Drawable | None:
    """Parts of a transaction's mean time: one stacked bar per arm, the baseline first."""
    cells = shown_cells(summary)
    rows: Rows = [
        {"arm": cell.arm, "part": part, "value": us / 1000}
        for cell in cells
        for part, us in cell.time_split_us.items()
        if us > 0
    ]
    return (
        stacked(rows, _arm_names(cells), _colours_of_parts(rows), "ms per transaction (mean)", width, size=22)
        if rows
        else None
    )


def cpu(summary: Summary, width: int) -> Drawable | None:
    """CPU microseconds per query, by program."""
    cells = shown_cells(summary)
    rows: Rows = [
        {"arm": cell.arm, "part": f"{role} CPU", "value": part.value}
        for cell in cells
        for role in ("client", "server", "forwarder")
        if (part := getattr(cell.cpu_us_per_query, role)) is not None
    ]
    unit = f"CPU µs per {ONE[summary.operation_unit]}"
    return stacked(rows, _arm_names(cells), _colours_of_parts(rows), unit, width, size=22) if rows else None


def _colours_of_parts(rows: Rows) -> dict[str, str]:
    """Colours of the parts that are drawn."""
    drawn = {row["part"] for row in rows}
    return {part: colour for part, colour in zip(PARTS, palette.PARTS, strict=True) if part in drawn}


# ---------------------------------------------------------------- as blocks

CURVE_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
"""Quantiles of the latency table; each row has the nearest point of the curve at or above it."""


def chart_sections(summary: Summary) -> list[Block]:
    """Each chart below the question that it answers."""
    return [
        block for chart_of in (_ratio_chart, _time_chart, _latency_chart, _cpu_chart) for block in chart_of(summary)
    ]


def _chart_section(
    summary: Summary, heading: str, title: str, caption: str, make: Any, head: Sequence[str], rows: list[list[str]]
) -> list[Block]:
    if not rows:
        return []
    data = Table("", single(*head), tuple(plain(*row) for row in rows))
    return [Heading(heading), Chart(make.__name__, title, caption, partial(make, summary), data)]


def _ratio_chart(summary: Summary) -> list[Block]:
    cells = [cell for cell in summary.cells if cell.role is not ArmRole.BASELINE and cell.ratio is not None]
    if not cells:
        return []
    points = bars(cells, *ratio_domain(cells, summary.noise_floor or 0.0))
    is_cut = any(point["cut_low"] or point["cut_high"] for point in points)
    caption = (
        "Blue dot and bar: the ratio with its 95 % interval. Open circles: individual blocks. Grey band: the noise floor, from "
        "the baseline measured twice."
        + (" Diamond: published elsewhere." if figures.published_sources(summary) else "")
        + (" Arrowhead: the interval continues beyond the axis." if is_cut else "")
    )
    rows = [
        [
            cell.arm,
            figures.ratio(cell.ratio),
            figures.resolution_text(cell),
            figures.ratio(cell.rank_ratio),
            " ".join(f"{ratio:.3f}" for ratio in cell.block_ratios),
        ]
        for cell in cells
    ]
    title = f"Ratio of {summary.operation_unit} per second to the baseline, with 95 % intervals"
    head = ("path", "ratio [95 %]", "verdict", "rank estimate [95 %]", "blocks")
    return _chart_section(summary, "How certain is it?", title, caption, ratios, head, rows)


def _time_chart(summary: Summary) -> list[Block]:
    rows = []
    for cell in shown_cells(summary):
        parts = [cell.time_split_us.get(part, 0.0) / 1000 for part in PARTS]
        if sum(parts):
            rows.append([cell.arm, *(f"{ms:.3f}" for ms in parts), f"{sum(parts):.3f}"])
    caption = (
        "The length of a bar is the mean time of a connection from one transaction to the next. CPU is measured; link is the measured "
        "RTT at rest times the round trips. Waiting for a CPU overlaps the others, so it is shown as far as they leave time; rest is "
        "what none of these explains: wake-ups, queueing behind another connection, locks."
    )
    title, head = "Where the mean time of a transaction goes, by path", ("ms", *PARTS, "total")
    return _chart_section(summary, "Where does the time of a transaction go?", title, caption, time_split, head, rows)


def _latency_chart(summary: Summary) -> list[Block]:
    rows = []
    for cell in shown_cells(summary):
        quantiles_ms = [percentile_ms(cell.latency_ms, cell.latency_curve, quantile) for quantile in CURVE_QUANTILES]
        texts = [figures.number(ms) for ms in (*quantiles_ms, cell.latency_ms.max)]
        rows.append([cell.arm, *texts, figures.ratio(cell.latency_ratio)])
    caption = (
        "Closed loop: each connection sends its next transaction when the last one is answered, so these are service times. All good "
        "trials of a path are merged; a line ends where ten samples lie beyond it. Both axes are logarithmic."
    )
    head = ("ms", *(f"{quantile * 100:g} %" for quantile in CURVE_QUANTILES), "max", "median, x baseline [95 %]")
    title = "Latency of a transaction by percentile, one line per path"
    return _chart_section(summary, "How long does a transaction take?", title, caption, latency, head, rows)


def _cpu_chart(summary: Summary) -> list[Block]:
    one = ONE[summary.operation_unit]
    rows = []
    for cell in shown_cells(summary):
        cpu_us = cell.cpu_us_per_query
        parts = [
            f"{part.value:.2f} {figures.plus_minus(part)}" if part else figures.UNKNOWN
            for part in (cpu_us.client, cpu_us.server, cpu_us.forwarder, cpu_us.link)
        ]
        rows.append([cell.arm, *parts, figures.cpu_ratio(cell)])
    caption = (
        "From the scheduler's accounting of each process. The link's emulator is not included: it is part of the instrument. "
        + figures.cpu_note(summary)
    ).rstrip()
    head = (f"µs per {one}", "client", "server", "forwarders", "link emulator", "x baseline [95 %]")
    title = f"CPU microseconds per {one}, by program"
    return _chart_section(summary, f"How much CPU does a {one} use?", title, caption, cpu, head, rows)
