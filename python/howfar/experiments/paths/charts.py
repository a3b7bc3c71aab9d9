"""The charts of a comparison of paths, with captions and figures. `all_of` is the way in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt

from howfar.analysis.cells import PARTS, CellSummary
from howfar.analysis.summary import Summary
from howfar.report import figures, palette
from howfar.report.charts import PHONE, ROW, Drawable, arm_axis, layer, legend_of, log_ticks, pick, values
from howfar.report.document import Block, Chart, Heading, Table, plain, single
from howfar.report.figures import baseline_name, shown_cells
from howfar.stats.trials import ONE
from howfar.store.records import ArmRole

FARTHEST = 20
"""Intervals are drawn as far as 20 times and a twentieth; beyond, an arrowhead says that they go on."""


def _names(cells: Sequence[CellSummary]) -> list[str]:
    return [cell.arm for cell in cells]


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Few round ratios inside the domain, always with 1."""
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
    fine = (0.8, 0.85, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2) if high / low < 1.6 else ()
    return [tick for tick in sorted((*steps, *fine)) if low <= tick <= high]


def ratio_domain(cells: Sequence[CellSummary], floor: float) -> tuple[float, float]:
    """What the ratio axis shows: every block and published ratio, and every interval and the A/A band as far as 1/20 to 20.
    A wider interval tells no more, and would press everything else together."""
    points = [ratio for cell in cells for ratio in cell.block_ratios] + [1.0]
    points += [cell.published.ratio for cell in cells if cell.published]
    points += [cell.ratio.value for cell in cells if cell.ratio]
    limits = [1 + floor, 1 / (1 + floor)]
    for cell in cells:
        if cell.ratio and cell.ratio.low is not None and cell.ratio.high is not None:
            limits += [cell.ratio.low, cell.ratio.high]
    seen = [min(max(limit, 1 / FARTHEST), FARTHEST) for limit in limits]
    return min(points + seen) / 1.08, max(points + seen) * 1.08


def bars(cells: Sequence[CellSummary], low: float, high: float) -> list[dict[str, Any]]:
    """Each arm's point and interval, cut at the edges of the axis; `cut` names where."""
    found = []
    for cell in cells:
        if cell.ratio is None:
            continue
        first, last = cell.ratio.low or cell.ratio.value, cell.ratio.high or cell.ratio.value
        found.append(
            {
                "arm": cell.arm,
                "ratio": cell.ratio.value,
                "low": max(first, low),
                "high": min(last, high),
                "cut_low": first < low,
                "cut_high": last > high,
            }
        )
    return found


def _arrowheads(points: list[dict[str, Any]], x: alt.X, y: alt.Y) -> list[Any]:
    """At the edge of the axis, where an interval goes on beyond it."""
    layers = []
    for side, shape in (("low", "triangle-left"), ("high", "triangle-right")):
        cut = [{"arm": point["arm"], "ratio": point[side]} for point in points if point[f"cut_{side}"]]
        if cut:
            mark = alt.Chart(values(cut)).mark_point(
                shape=shape, color=palette.SERIES[0], filled=True, size=90, opacity=1
            )
            layers.append(mark.encode(x=x, y=y))
    return layers


def ratios(summary: Summary, width: int) -> Drawable | None:
    """Interval plot: block dots, interval, point; grey band of the A/A arm; diamond for the published ratio."""
    cells = [cell for cell in summary.cells if cell.role is not ArmRole.BASELINE and cell.ratio is not None]
    if not cells:
        return None
    names = _names(cells)
    floor = summary.noise_floor or 0.0
    low, high = ratio_domain(cells, floor)
    x_axis = alt.Axis(values=_ratio_ticks(low, high), format=".3~r", grid=True)
    title = f"{summary.asked} per second, of {baseline_name(summary)}'s (log scale)"
    x = alt.X("ratio:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=x_axis, title=title)
    y = arm_axis(names)
    dots = [{"arm": cell.arm, "ratio": r, "lane": _lane(i)} for cell in cells for i, r in enumerate(cell.block_ratios)]
    points = bars(cells, low, high)
    theirs = [{"arm": cell.arm, "ratio": cell.published.ratio} for cell in cells if cell.published]
    layers: list[Any] = [
        alt.Chart(values([{"ratio": max(1 / (1 + floor), low), "to": min(1 + floor, high)}]))
        .mark_rect(color=palette.BAND)
        .encode(x=x, x2="to:Q"),
        alt.Chart(values([{"ratio": 1.0}])).mark_rule(color=palette.MUTED, strokeDash=[4, 3]).encode(x=x),
        alt.Chart(values(dots))
        .mark_point(color=palette.MUTED, opacity=0.55, size=22, strokeWidth=1.2)
        .encode(x=x, y=y, yOffset=alt.YOffset("lane:Q", scale=alt.Scale(domain=[-1.6, 1.6]))),
        alt.Chart(values(points))
        .mark_rule(color=palette.SERIES[0], strokeWidth=4)
        .encode(x=alt.X("low:Q"), x2="high:Q", y=y),
        *_arrowheads(points, x, y),
        alt.Chart(values(points))
        .mark_point(color=palette.SERIES[0], filled=True, size=50 if width < PHONE else 110, opacity=1)
        .encode(x=x, y=y),
    ]
    if theirs:
        diamond = alt.Chart(values(theirs)).mark_point(
            shape="diamond", color=palette.SERIES[1], size=60 if width < PHONE else 120, strokeWidth=2
        )
        layers.append(diamond.encode(x=x, y=y))
    return layer(*layers, width=width, height=ROW * len(cells))


def _lane(index: int) -> float:
    """Dots of one arm are spread over five lanes by their place, so that equal ones are seen as two."""
    return (index % 5 - 2) / 2


def latency(summary: Summary, width: int) -> Drawable | None:
    """Percentile plot: one line an arm, x is 1/(1-p) on a log axis, so that 99 % and 99.9 % have room."""
    cells = shown_cells(summary)
    names = _names(cells)
    rows: list[dict[str, Any]] = [
        {"arm": cell.arm, "tail": 1 / (1 - point.quantile), "ms": point.ms}
        for cell in cells
        for point in cell.latency_curve
        if point.ms > 0 and point.quantile < 1
    ]
    if not rows:
        return None
    lowest, highest = min(row["ms"] for row in rows) / 1.15, max(row["ms"] for row in rows) * 1.15
    last = max(row["tail"] for row in rows)
    ticks = [tail for tail in (1, 2, 10, 100, 1000, 10_000, 100_000) if tail <= last]
    label = "datum.value <= 1 ? 'min' : format(100 * (1 - 1 / datum.value), '~r') + ' %'"
    scale = alt.Scale(type="log", domain=[1, last], nice=False)
    count = len(cells)
    colour = alt.Color(
        "arm:N", sort=names, scale=alt.Scale(domain=names, range=pick(palette.SERIES, count)), legend=legend_of(width)
    )
    dash = alt.StrokeDash(
        "arm:N", sort=names, scale=alt.Scale(domain=names, range=pick(palette.DASHES, count)), legend=legend_of(width)
    )
    return (
        alt.Chart(values(rows))
        .mark_line(strokeWidth=2.2)
        .encode(
            x=alt.X(
                "tail:Q",
                scale=scale,
                axis=alt.Axis(values=ticks, labelExpr=label),
                title="this share of transactions was faster",
            ),
            y=alt.Y(
                "ms:Q",
                scale=alt.Scale(type="log", domain=[lowest, highest], nice=False),
                axis=alt.Axis(values=log_ticks(lowest, highest), format=".3~r"),
                title="ms a transaction",
            ),
            color=colour,
            strokeDash=dash,
        )
        .properties(width=width, height=260)
    )


def time_split(summary: Summary, width: int) -> Drawable | None:
    """Where a transaction's mean time goes: one stacked bar an arm, the baseline first."""
    cells = shown_cells(summary)
    rows = [
        {"arm": cell.arm, "part": part, "order": PARTS.index(part), "ms": us / 1000}
        for cell in cells
        for part, us in cell.time_split_us.items()
        if us > 0
    ]
    return (
        _stack(rows, _names(cells), list(PARTS), list(palette.PARTS), "ms", "ms a transaction (mean)", width)
        if rows
        else None
    )


def cpu(summary: Summary, width: int) -> Drawable | None:
    """CPU microseconds a query by who spent them."""
    rows = []
    for cell in shown_cells(summary):
        found = cell.cpu_us_per_query
        for order, (role, part) in enumerate(
            (("client", found.client), ("server", found.server), ("forwarder", found.forwarder))
        ):
            if part is not None:
                rows.append({"arm": cell.arm, "part": f"{role} CPU", "order": order, "us": part.value})
    names = _names(shown_cells(summary))
    return (
        _stack(rows, names, list(PARTS[:3]), list(palette.PARTS[:3]), "us", f"CPU µs a {ONE[summary.asked]}", width)
        if rows
        else None
    )


def _stack(
    rows: list[dict[str, Any]],
    names: list[str],
    parts: list[str],
    colours: list[str],
    field: str,
    title: str,
    width: int,
) -> Drawable:
    present = [part for part in parts if any(row["part"] == part for row in rows)]
    scale = alt.Scale(domain=present, range=[colours[parts.index(part)] for part in present])
    legend = alt.Legend(
        orient="top", title=None, columns=2 if width < PHONE else 6, labelLimit=150, symbolType="square"
    )
    return (
        alt.Chart(values(rows))
        .mark_bar(size=22)
        .encode(
            x=alt.X(f"{field}:Q", title=title, axis=alt.Axis(tickCount=6, format=".3~r")),
            y=arm_axis(names),
            color=alt.Color("part:N", sort=present, scale=scale, legend=legend),
            order=alt.Order("order:Q"),
        )
        .properties(width=width, height=ROW * len(names) * 0.85)
    )


# ---------------------------------------------------------------- as blocks

CURVE_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
"""Rows of the latency table; the nearest drawn point at or above each."""


def all_of(summary: Summary) -> list[Block]:
    """Each chart below the question that it answers."""
    return [block for make in (_ratio_chart, _time_chart, _latency_chart, _cpu_chart) for block in make(summary)]


def _chart(
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
    cut = any(point["cut_low"] or point["cut_high"] for point in points)
    caption = (
        "Bar and blue dot: the ratio with its 95 % interval. Open circles: single blocks. Grey band: the noise floor from the "
        "baseline measured twice."
        + (" Diamond: published elsewhere." if figures.published_sources(summary) else "")
        + (" Arrowhead: the interval goes on beyond the axis." if cut else "")
    )
    rows = [
        [
            cell.arm,
            figures.ratio(cell.ratio),
            figures.reading(cell),
            figures.ratio(cell.rank_ratio),
            " ".join(f"{ratio:.3f}" for ratio in cell.block_ratios),
        ]
        for cell in cells
    ]
    title = f"Ratio of {summary.asked} per second to the baseline, with 95 % intervals"
    head = ("path", "ratio [95 %]", "reads as", "rank estimate [95 %]", "blocks")
    return _chart(summary, "How certain is it?", title, caption, ratios, head, rows)


def _time_chart(summary: Summary) -> list[Block]:
    rows = []
    for cell in shown_cells(summary):
        parts = [cell.time_split_us.get(part, 0.0) / 1000 for part in PARTS]
        if sum(parts):
            rows.append([cell.arm, *(f"{ms:.3f}" for ms in parts), f"{sum(parts):.3f}"])
    caption = (
        "The length of a bar is the mean time of a connection from one transaction to the next. CPU is measured; link is the measured "
        "RTT at rest times the round trips; rest is what none of these explains: waking up, queueing behind another connection, locks."
    )
    title, head = "Where the mean time of a transaction goes, by path", ("ms", *PARTS, "total")
    return _chart(summary, "Where does the time of a transaction go?", title, caption, time_split, head, rows)


def _latency_chart(summary: Summary) -> list[Block]:
    rows = []
    for cell in shown_cells(summary):
        found = [next((p.ms for p in cell.latency_curve if p.quantile >= q), None) for q in CURVE_QUANTILES]
        texts = [figures.number(ms) for ms in (*found, cell.latency_ms.max)]
        rows.append([cell.arm, *texts, figures.ratio(cell.latency_ratio)])
    caption = (
        "Closed loop: each connection sends its next transaction when the last one is answered, so these are service times. All good "
        "trials of a path together, drawn up to where ten samples lie beyond. Both axes are logarithmic."
    )
    head = ("ms", *(f"{quantile * 100:g} %" for quantile in CURVE_QUANTILES), "max", "median, x baseline [95 %]")
    title = "Latency of a transaction by percentile, one line a path"
    return _chart(summary, "How long does a transaction take?", title, caption, latency, head, rows)


def _cpu_chart(summary: Summary) -> list[Block]:
    one = ONE[summary.asked]
    rows = []
    for cell in shown_cells(summary):
        cpu_us = cell.cpu_us_per_query
        parts = [
            f"{part.value:.2f} {figures.plus_minus(part)}" if part else figures.UNKNOWN
            for part in (cpu_us.client, cpu_us.server, cpu_us.forwarder, cpu_us.link)
        ]
        rows.append([cell.arm, *parts, figures.cpu_ratio(cell)])
    caption = (
        "From the scheduler's account of each process. The emulator of the link is not included: it is part of the instrument. "
        + figures.cpu_note(summary)
    ).rstrip()
    head = (f"µs per {one}", "client", "server", "forwarders", "link emulator", "x baseline [95 %]")
    title = f"CPU microseconds per {one}, by program"
    return _chart(summary, f"What does a {one} cost in CPU?", title, caption, cpu, head, rows)
