"""The charts of the HTML report with their captions and tables."""

from __future__ import annotations

from howfar.analysis.budget import PARTS
from howfar.analysis.summary import Summary
from howfar.analysis.workload_line import ONE
from howfar.report import charts, figures
from howfar.report.drawing import draw
from howfar.report.fragments import figure, table
from howfar.store.records import ArmRole

CURVE_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
"""Rows of the latency table; the nearest drawn point at or above each."""


def ratio_plot(summary: Summary) -> str:
    drawing = draw(
        charts.ratios, summary, f"Ratio of {summary.asked} per second to the baseline, with 95 % intervals", "ratio"
    )
    if not drawing:
        return ""
    cells = [cell for cell in summary.cells if cell.role is not ArmRole.BASELINE]
    points = charts.bars(cells, *charts.ratio_domain(cells, summary.noise_floor or 0.0))
    cut = any(point["cut_low"] or point["cut_high"] for point in points)
    caption = (
        "Bar and blue dot: the ratio with its 95 % interval. Open circles: single blocks. Grey band: the noise floor from the "
        "baseline measured twice."
        + (" Diamond: published elsewhere." if figures.published_sources(summary) else "")
        + (" Arrowhead: the interval goes on beyond the axis." if cut else "")
    )
    rows = [
        [
            c.arm,
            figures.ratio(c.ratio),
            figures.reading(c),
            figures.ratio(c.rank_ratio),
            " ".join(f"{r:.3f}" for r in c.block_ratios),
        ]
        for c in cells
    ]
    data = table(["path", "ratio [95 %]", "reads as", "rank estimate [95 %]", "blocks"], rows)
    return "<h2>How sure is it?</h2>" + figure(drawing, caption, data)


def time_plot(summary: Summary) -> str:
    drawing = draw(charts.time_split, summary, "Where the mean time of a transaction goes, by path", "time")
    if not drawing:
        return ""
    caption = (
        "The bar's length is a connection's mean time from one transaction to the next. CPU is measured; link is the measured RTT at "
        "rest times the turns; rest is what none of these explains: waking up, queueing behind another connection, locks."
    )
    rows = []
    for cell in figures.shown_cells(summary):
        parts = [cell.time_split_us.get(part, 0.0) / 1000 for part in PARTS]
        rows.append([cell.arm, *(f"{ms:.3f}" for ms in parts), f"{sum(parts):.3f}"])
    return "<h2>Where does a transaction's time go?</h2>" + figure(
        drawing, caption, table(["ms", *PARTS, "total"], rows)
    )


def latency_plot(summary: Summary) -> str:
    drawing = draw(charts.latency, summary, "Latency of a transaction by percentile, one line a path", "latency")
    if not drawing:
        return ""
    caption = "Closed loop, all good trials of a path together, drawn as far as ten samples lie beyond. Both axes are logarithmic."
    rows = []
    for cell in figures.shown_cells(summary):
        found = [
            next((p.ms for p in cell.latency_curve if p.quantile >= quantile), None) for quantile in CURVE_QUANTILES
        ]
        rows.append(
            [
                cell.arm,
                *(figures.number(ms) for ms in found),
                figures.number(cell.latency_ms.max),
                figures.ratio(cell.latency_ratio),
            ]
        )
    head = ["ms", *(f"{quantile * 100:g} %" for quantile in CURVE_QUANTILES), "max", "median, x baseline [95 %]"]
    return "<h2>How long does a transaction take?</h2>" + figure(drawing, caption, table(head, rows))


def cpu_plot(summary: Summary) -> str:
    drawing = draw(charts.cpu, summary, f"CPU microseconds a {ONE[summary.asked]}, by who spent them", "cpu")
    if not drawing:
        return ""
    caption = (
        "From the scheduler's account of each process. The emulator of the link is not in it: it is part of the instrument. "
        + figures.cpu_note(summary)
    ).rstrip()
    rows = []
    for cell in figures.shown_cells(summary):
        cpu = cell.cpu_us_per_query
        parts = [
            f"{part.value:.2f} {figures.plus_minus(part)}" if part else figures.UNKNOWN
            for part in (cpu.client, cpu.server, cpu.forwarder, cpu.link)
        ]
        rows.append([cell.arm, *parts, figures.cpu_ratio(cell)])
    head = [f"µs a {ONE[summary.asked]}", "client", "server", "forwarders", "link emulator", "x baseline [95 %]"]
    return f"<h2>What does a {ONE[summary.asked]} cost in CPU?</h2>" + figure(drawing, caption, table(head, rows))


def throughput_plot(summary: Summary) -> str:
    drawing = draw(
        charts.throughput,
        summary,
        f"{summary.asked.capitalize()} per second of every trial, in the order in which they ran",
        "throughput",
    )
    if not drawing:
        return ""
    caption = (
        "What all paths of a block share (a slow minute) cancels in the ratios. A trend or a jump within blocks does not, "
        "and would be seen here."
    )
    data = table(["trial", "block", "path", *figures.trial_head(summary)], figures.trial_rows(summary))
    return "<h2>Was it quiet?</h2>" + figure(drawing, caption, data)
