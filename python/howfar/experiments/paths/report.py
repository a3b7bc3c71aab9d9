"""Comparison of paths: the same load over each of them, relative to the baseline. The smallest case is one path against itself
(A/A)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from howfar.analysis.answer import NOTHING_COMPARED, TOO_FEW, UNRESOLVED
from howfar.analysis.causes import explain_cpu, explain_round_trips
from howfar.analysis.cells import PARTS, Bound, CellSummary, Metric
from howfar.analysis.idle import Waking, waking_cost
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.paths.texts import (
    CAUSES_CAPTION,
    CPU_CAPTION,
    CPU_QUESTION,
    CPU_TITLE,
    CUT_CAPTION,
    LATENCY_CAPTION,
    LATENCY_TITLE,
    PUBLISHED_CAPTION,
    RATIOS_AXIS,
    RATIOS_CAPTION,
    ROUND_TRIPS_LABEL,
    TEXTS,
    TIME_CAPTION,
    TIME_TITLE,
    WAKING_NOTE,
)
from howfar.findings import Finding, Quantity, fill
from howfar.plan.cells import AGAIN
from howfar.plan.factors import IDLE, PATH
from howfar.plan.workload import Unit
from howfar.report import figures, palette
from howfar.report.charts import (
    PHONE,
    ROW_HEIGHT,
    Drawable,
    Rows,
    arm_axis,
    axis,
    by_style,
    clip_limits,
    data,
    layer,
    percentile_chart,
    ratio_ticks,
    stacked_bars,
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
    Table,
    make_table,
    plain_cells,
    plain_columns,
)
from howfar.report.drawing import alt
from howfar.report.figures import baseline_name, shown_cells
from howfar.report.frame import frame
from howfar.report.sections import cell_table, confirmation_blocks, trial_blocks
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import percentile_ms
from howfar.stats.intervals import Resolution, excludes_one
from howfar.stats.trials import singular
from howfar.store.records import ArmRole


class Paths(Experiment):
    """Comparison of paths, which applies to every run that no other experiment claims."""

    name = "paths"
    texts = TEXTS
    findings: ClassVar[Keys] = {"waking": Waking}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"waking": waking_cost(evidence.table)}

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        baseline = next((cell for cell in evidence.cells if cell.role is ArmRole.BASELINE), None)
        contenders = [cell for cell in evidence.cells if cell.role is ArmRole.CONTENDER]
        aa_ratio = evidence.floors.baseline_ratios.get(Metric.THROUGHPUT)
        if baseline is not None and aa_ratio is not None and not contenders:
            return (_self_comparison(baseline.arm, aa_ratio, evidence.floors.noise_floor()),)
        if baseline is None or not any(cell.ratio for cell in contenders):
            return (NOTHING_COMPARED,)
        return _comparisons(baseline, contenders, evidence.table.unit)

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        """Why throughput differs; if only CPU time does, why that does."""
        if causes := super().explain(evidence, findings):
            return causes
        baseline = next((cell for cell in evidence.cells if cell.role is ArmRole.BASELINE), None)
        dearer = [
            cell
            for cell in evidence.cells
            if cell.role is ArmRole.CONTENDER and cell.cpu_resolution is Resolution.SLOWER and _is_about_cpu(cell)
        ]
        if baseline is None or not dearer:
            return ()
        cause = explain_cpu(dearer[0], baseline, singular(evidence.table.unit))
        return () if cause is None else (cause,)

    def applies(self, summary: Summary) -> bool:
        return True

    def document(self, summary: Summary) -> Document:
        below = (
            *waking_section(summary),
            *chart_sections(summary),
            *trial_blocks(summary),
            *confirmation_blocks(summary),
        )
        return frame(
            summary,
            (cell_table(summary),),
            answer_charts=ratio_chart(summary, compared_cells(summary)),
            more_blocks=below,
        )


def waking_section(summary: Summary) -> list[Block]:
    """Blocks on waking idle CPUs. Empty: the run has one level of idle states only."""
    if (finding := summary.find_findings(Waking)) is None:
        return []
    columns = (
        Column("path", left_aligned=True),
        Column("as found", "of polling"),
        Column("of baseline", "as found"),
        Column("of baseline", "polling"),
        Column("changed by waking"),
    )
    rows = tuple(
        (
            Cell(path.arm.removesuffix(f", {IDLE.label('as-found')}")),
            *(Cell(figures.ratio_value(ratio), figures.ratio_limits(ratio)) for ratio in path.ratios),
        )
        for path in finding.paths
    )
    note = fill(WAKING_NOTE, unit=summary.operation_unit.capitalize())
    return [Details("What waking idle CPUs costs", (Table("", columns, rows, (note,), stack=True),), True)]


def _comparisons(baseline: CellSummary, contenders: Sequence[CellSummary], unit: Unit) -> tuple[Finding, ...]:
    """A finding for each path: differences first. Where other factors vary too, the paths at the baseline's levels of these."""
    shared = {factor: level for factor, level in baseline.factors.items() if factor != "path"}
    by_path = [
        cell for cell in contenders if all(cell.factors.get(name, level) == level for name, level in shared.items())
    ]
    names = {cell.arm: PATH.level_in(cell.factors) if by_path else cell.arm for cell in (baseline, *contenders)}
    compared = [
        _comparison(cell, names[cell.arm], names[baseline.arm], unit)
        for cell in by_path or contenders
        if cell.ratio is not None
    ]
    return tuple(sorted(compared, key=lambda finding: ORDER.index(finding.id)))


ORDER = ("difference", "cpu", UNRESOLVED, TOO_FEW)
"""Ids of a comparison's findings, the most important first."""


def _comparison(cell: CellSummary, name: str, baseline: str, unit: Unit) -> Finding:
    """The finding of one path: its throughput; where that is not resolved, its CPU time, if that is."""
    if _is_about_cpu(cell):
        parameters: dict[str, str | int | float] = {"unit": singular(unit), **_stated_cpu(cell)}
        return Finding(
            id="cpu",
            subject=name,
            metric=Quantity.CPU,
            estimate=cell.cpu_ratio,
            verdict=cell.cpu_resolution,
            parameters=parameters,
        )
    has_interval = cell.ratio is not None and cell.ratio.low is not None
    return Finding(
        id="difference" if cell.resolution.is_difference else UNRESOLVED if has_interval else TOO_FEW,
        subject=name,
        metric=Quantity.THROUGHPUT,
        estimate=cell.ratio,
        verdict=cell.resolution,
        parameters={"baseline": baseline, "units": unit},
    )


def _stated_cpu(cell: CellSummary) -> dict[str, float | int]:
    """The CPU ratio as the answer states it: of one that is a bound, the limit of its interval."""
    assert cell.cpu_ratio is not None, "the cell differs in CPU time"
    limit = {Bound.AT_LEAST: cell.cpu_ratio.low, Bound.AT_MOST: cell.cpu_ratio.high}.get(cell.cpu_bound)
    stated = cell.cpu_ratio.value if limit is None else limit
    return {"bound": int(cell.cpu_bound is not Bound.MEASURED), "stated": stated}


def _is_about_cpu(cell: CellSummary) -> bool:
    """Whether CPU time is what the run shows of a path: its throughput is too close to call."""
    return not cell.resolution.is_difference and cell.cpu_resolution.is_difference


def _self_comparison(arm: str, aa_ratio: Estimate, noise_floor: float | None) -> Finding:
    """The finding of a path that was measured under two names."""
    differs = excludes_one(aa_ratio)
    return Finding(
        id="unknown-floor" if noise_floor is None else "unequal" if differs else "equal",
        subject=arm,
        metric=Quantity.THROUGHPUT,
        estimate=aa_ratio,
        verdict=None if noise_floor is not None and differs else Resolution.NOT_RESOLVED,
        parameters={} if noise_floor is None else {"noise_floor": noise_floor},
    )


CAUSE_HEIGHT = 20
"""Height of the line below each path that says what its round trips take."""
MAX_DRAWN_RATIO = 20
"""Intervals of ratios are drawn between the inverse of this ratio and this ratio; an arrowhead marks those that continue beyond."""


def _arm_names(cells: Sequence[CellSummary]) -> list[str]:
    return [cell.arm for cell in cells]


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


def interval_rows(cells: Sequence[CellSummary], low: float, high: float) -> Rows:
    """Each arm's point and interval, cut at the edges of the axis; `cut` names the edges."""
    return [
        {
            "arm": cell.arm,
            "ratio": cell.ratio.value,
            **clip_limits(cell.ratio, (low, high)),
            "cut_low": cell.ratio.low is not None and cell.ratio.low < low,
            "cut_high": cell.ratio.high is not None and cell.ratio.high > high,
        }
        for cell in cells
        if cell.ratio is not None
    ]


def compared_cells(summary: Summary) -> list[CellSummary]:
    """The cells of the chart of ratios."""
    return [cell for cell in summary.cells if cell.role is not ArmRole.BASELINE and cell.ratio is not None]


def _named_by_path(cells: Sequence[CellSummary], baseline: str) -> tuple[Sequence[CellSummary], str]:
    """The cells with the names of their paths, where these tell them apart, and the baseline's name likewise."""
    names = [f"{PATH.level_or_none(cell.factors)}{AGAIN if cell.role is ArmRole.DUPLICATE else ''}" for cell in cells]
    if len(set(names)) < len(cells):
        return cells, baseline
    return [cell.model_copy(update={"arm": name}) for cell, name in zip(cells, names, strict=True)], baseline.split(
        ", "
    )[0]


def ratios(summary: Summary, cells: Sequence[CellSummary], width: int) -> Drawable:
    """Interval plot: the ratio above its dot and interval, block circles below; grey band of the A/A arm; diamond for the published
    ratio."""
    floor = summary.noise_floor or 0.0
    low, high = ratio_domain(cells, floor)
    cells, base = _named_by_path(cells, baseline_name(summary))
    title = fill(RATIOS_AXIS, unit=summary.operation_unit, baseline=base)
    x = axis(alt.X, "ratio", title, (low, high), 10, values=ratio_ticks(low, high), format=".3~r", grid=True)
    y = arm_axis(_arm_names(cells))
    # Circles of one arm are spread over five lanes, so that equal ones do not hide each other.
    block_circles: Rows = [
        {"arm": cell.arm, "ratio": ratio, "lane": 0.4 + index % 5 * 0.25}
        for cell in cells
        for index, ratio in enumerate(cell.block_ratios)
    ]
    lane = alt.YOffset("lane:Q", scale=alt.Scale(domain=[-1.6, 1.6]))
    names = {cell.arm: cell for cell in cells}
    points = [
        point | {"text": figures.ratio_value(names[point["arm"]].ratio), "known": _is_known(names[point["arm"]])}
        for point in interval_rows(cells, low, high)
    ]
    published_points: Rows = [{"arm": cell.arm, "ratio": cell.published.ratio} for cell in cells if cell.published]
    narrow = width < PHONE
    colour = by_style(alt.Color, "known", {"resolved": palette.SERIES[0], "not resolved": palette.MUTED}, None)
    band: Rows = [{"ratio": max(1 / (1 + floor), low), "to": min(1 + floor, high)}]
    layers: list[Any] = [
        data(band).mark_rect(color=palette.BAND).encode(x=x, x2="to:Q"),
        data([{"ratio": 1.0}]).mark_rule(color=palette.MUTED, strokeDash=[4, 3]).encode(x=x),
        data(block_circles)
        .mark_point(color=palette.MUTED, opacity=0.55, size=22, strokeWidth=1.2)
        .encode(x=x, y=y, yOffset=lane),
        data(points).mark_rule(strokeWidth=4).encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour),
    ]
    for side, arrow in (("low", "triangle-left"), ("high", "triangle-right")):
        # At the edge of the axis, where an interval continues beyond it.
        if cut := [point | {"ratio": point[side]} for point in points if point[f"cut_{side}"]]:
            layers.append(
                data(cut).mark_point(shape=arrow, filled=True, size=90, opacity=1).encode(x=x, y=y, color=colour)
            )
    shown = data(points)
    layers.append(shown.mark_point(filled=True, size=50 if narrow else 110, opacity=1).encode(x=x, y=y, color=colour))
    layers.append(
        shown.mark_text(dy=-14, fontSize=12 if narrow else 14, fontWeight="bold").encode(
            x=x, y=y, text="text:N", color=colour
        )
    )
    # Below the circles: on a narrow page from the left edge on, else towards the side with more room.
    causes = _cause_labels(cells, math.sqrt(low * high))
    for align, written in causes.items():
        marks = data(written).mark_text(
            align="left" if narrow else align, color=palette.MUTED, fontSize=11 if narrow else 12
        )
        position = alt.value(2) if narrow else x
        layers.append(marks.encode(x=position, y=y, yOffset=alt.value(ROW_HEIGHT + 9), text="text:N"))
    if published_points:
        size, marks = 60 if narrow else 120, data(published_points)
        diamonds = marks.mark_point(shape="diamond", color=palette.SERIES[1], strokeWidth=2, size=size)
        layers.append(diamonds.encode(x=x, y=y))
    return layer(*layers, width=width, height=(ROW_HEIGHT + (CAUSE_HEIGHT if causes else 0)) * len(cells))


def _cause_labels(cells: Sequence[CellSummary], middle: float) -> dict[Literal["left", "right"], Rows]:
    """What the round trips of each slower path take, to be written at its ratio, by alignment: away from the nearer side."""
    labels: dict[Literal["left", "right"], Rows] = {}
    for cell in cells:
        cause = explain_round_trips(cell) if cell.resolution.is_difference else None
        if cell.ratio is not None and cause is not None:
            text, ratio = fill(ROUND_TRIPS_LABEL, **cause.parameters), cell.ratio.value
            labels.setdefault("left" if ratio < middle else "right", []).append(
                {"arm": cell.arm, "ratio": ratio, "text": text}
            )
    return labels


def _is_known(cell: CellSummary) -> str:
    return "resolved" if cell.resolution.is_difference else "not resolved"


def latency(summary: Summary, width: int) -> Drawable | None:
    """A line for each arm."""
    cells = shown_cells(summary)
    rows: Rows = [
        {"series": cell.arm, "quantile": point.quantile, "ms": point.ms}
        for cell in cells
        for point in cell.latency_curve
    ]
    titles = "this share of transactions was faster", "ms per transaction"
    return percentile_chart({"": rows}, styles(_arm_names(cells), palette.SERIES), titles=titles, width=width)


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
        stacked_bars(rows, _arm_names(cells), _colours_of_parts(rows), "ms per transaction (mean)", width, size=22)
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
    unit = f"CPU µs per {singular(summary.operation_unit)}"
    return stacked_bars(rows, _arm_names(cells), _colours_of_parts(rows), unit, width, size=22) if rows else None


def _colours_of_parts(rows: Rows) -> dict[str, str]:
    """Colours of the parts that are drawn."""
    drawn = {row["part"] for row in rows}
    return {part: colour for part, colour in zip(PARTS, palette.PARTS, strict=True) if part in drawn}


# ---------------------------------------------------------------- as blocks

CURVE_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
"""Quantiles of the latency table; each row has the nearest point of the curve at or above it."""


def ratio_chart(summary: Summary, cells: Sequence[CellSummary]) -> list[Block]:
    """The picture of the answer. Empty without cells."""
    if not cells:
        return []
    points = interval_rows(cells, *ratio_domain(cells, summary.noise_floor or 0.0))
    is_cut = any(point["cut_low"] or point["cut_high"] for point in points)
    caption = (
        RATIOS_CAPTION
        + (PUBLISHED_CAPTION if any(cell.published for cell in cells) else "")
        + (CUT_CAPTION if is_cut else "")
        + (CAUSES_CAPTION if _cause_labels(cells, 1.0) else "")
    )
    fields: Fields[CellSummary] = {
        "path": lambda cell: cell.arm,
        "ratio [95 %]": lambda cell: figures.ratio(cell.ratio),
        "verdict": figures.resolution_text,
        "rank estimate [95 %]": lambda cell: figures.ratio(cell.rank_ratio),
        "blocks": lambda cell: " ".join(f"{ratio:.3f}" for ratio in cell.block_ratios),
    }
    table = make_table("", cells, fields)
    return [Chart("ratios", summary.answer.sentence, caption, partial(ratios, summary, cells), table)]


def chart_sections(summary: Summary) -> list[Block]:
    """Each chart below the question that it answers."""
    return [block for chart_of in (_time_chart, _latency_chart, _cpu_chart) for block in chart_of(summary)]


def _chart_section(
    summary: Summary, heading: str, title: str, caption: str, make: Any, head: Sequence[str], rows: list[list[str]]
) -> list[Block]:
    if not rows:
        return []
    data = Table("", plain_columns(*head), tuple(plain_cells(*row) for row in rows))
    return [Heading(heading), Chart(make.__name__, title, caption, partial(make, summary), data)]


def _extremes(text: str, values: Sequence[tuple[float | None, str]], **more: str) -> str:
    """A title that names the arms with the highest and the lowest value. None: unknown. Empty: no value is known."""
    known = [(value, arm) for value, arm in values if value is not None]
    if not known:
        return ""
    (least, best), (most, worst) = min(known), max(known)
    return fill(text, least=least, best=best, most=most, worst=worst, **more)


def _time_chart(summary: Summary) -> list[Block]:
    split_ms = [
        (cell.arm, {part: cell.time_split_us.get(part, 0.0) / 1000 for part in PARTS}) for cell in shown_cells(summary)
    ]
    totals_ms = [(total_ms, arm, parts_ms) for arm, parts_ms in split_ms if (total_ms := sum(parts_ms.values()))]
    rows = [
        [arm, *(f"{ms:.3f}" for ms in parts_ms.values()), f"{total_ms:.3f}"] for total_ms, arm, parts_ms in totals_ms
    ]
    title, head = "", ("ms", *PARTS, "total")
    if totals_ms:
        total_ms, slowest, parts_ms = max(totals_ms, key=lambda total: total[0])
        part_ms, part = max((ms, part) for part, ms in parts_ms.items())
        title = fill(TIME_TITLE, path=slowest, total_ms=total_ms, part_ms=part_ms, part=part)
    return _chart_section(
        summary, "Where does the time of a transaction go?", title, TIME_CAPTION, time_split, head, rows
    )


def _latency_chart(summary: Summary) -> list[Block]:
    rows = []
    for cell in shown_cells(summary):
        quantiles_ms = [percentile_ms(cell.latency_ms, cell.latency_curve, quantile) for quantile in CURVE_QUANTILES]
        texts = [figures.number(ms) for ms in (*quantiles_ms, cell.latency_ms.max)]
        rows.append([cell.arm, *texts, figures.ratio(cell.latency_ratio)])
    head = ("ms", *(f"{quantile * 100:g} %" for quantile in CURVE_QUANTILES), "max", "median, x baseline [95 %]")
    p99_ms = [(percentile_ms(cell.latency_ms, cell.latency_curve, 0.99), cell.arm) for cell in shown_cells(summary)]
    title = _extremes(LATENCY_TITLE, p99_ms)
    return _chart_section(summary, "How long does a transaction take?", title, LATENCY_CAPTION, latency, head, rows)


def _cpu_chart(summary: Summary) -> list[Block]:
    one = singular(summary.operation_unit)
    rows = []
    for cell in shown_cells(summary):
        cpu_us = cell.cpu_us_per_query
        parts = [
            f"{part.value:.2f} {figures.plus_minus(part)}" if part else figures.UNKNOWN
            for part in (cpu_us.client, cpu_us.server, cpu_us.forwarder, cpu_us.link)
        ]
        rows.append([cell.arm, *parts, f"{figures.cpu_ratio(cell)} {figures.cpu_resolution_text(cell.cpu_resolution)}"])
    caption = fill(CPU_CAPTION, note=figures.cpu_note(summary)).rstrip()
    head = (f"µs per {one}", "client", "server", "forwarders", "link emulator", "x baseline [95 %]")
    question = fill(CPU_QUESTION, unit=one)
    title = _extremes(CPU_TITLE, [(figures.cpu_total(cell), cell.arm) for cell in shown_cells(summary)], unit=one)
    return _chart_section(summary, question, title, caption, cpu, head, rows)
