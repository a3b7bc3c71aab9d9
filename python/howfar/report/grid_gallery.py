"""The charts of plans with several factors, with captions and tables. As `gallery.py`: each function gives HTML, or nothing."""

from __future__ import annotations

import statistics

from howfar.analysis.findings import Prediction
from howfar.analysis.summary import CellSummary, Summary
from howfar.report import charts, economics_chart, figures, grid_charts, scaling_chart, tables
from howfar.report.drawing import draw
from howfar.report.fragments import figure, table
from howfar.report.limit_words import name as limit_name


def chief(summary: Summary) -> str:
    """What answers the plan's question, for the first screen: the economics of compression, else throughput against connections."""
    return break_even(summary) or scaling(summary)


def scaling(summary: Summary) -> str:
    found = scaling_chart.panels(summary)
    drawing = draw(
        scaling_chart.scaling, summary, "Transactions a second against connections, with ceilings", "scaling"
    )
    if not drawing:
        return ""
    curves = [curve for panel in found for curve in panel.curves]
    modelled = [model for curve in curves if (model := scaling_chart.model_of(curve))]
    foreseen = any(curve.foreign for curve in curves)
    caption = (
        "Points: measured, with 95 % intervals. "
        + ("Dashed line and band: the model" if modelled else "")
        + (
            ", foreseen from other cells of this run where it could be. "
            if modelled and foreseen
            else ". "
            if modelled
            else ""
        )
        + "Dotted: what a resource lets pass at most."
        + (" Cross: N*, the connections that would fill the busiest resource if nobody waited." if modelled else "")
    )
    rows = [
        [
            curve.name,
            str(point.threads),
            tables.interval(point.tps),
            *_model_at(curve_model, point.threads),
            tables.published_tps(curve, point),
        ]
        for curve in curves
        for curve_model in (scaling_chart.model_of(curve),)
        for point in curve.points
    ]
    head = ["curve", "connections", "transactions/s", "model", "band", "published"]
    return figure(drawing, caption, table(head, rows) + _ceilings(summary))


def _model_at(model: Prediction | None, threads: int) -> tuple[str, str]:
    point = next((point for point in model.points if point.threads == threads), None) if model else None
    if point is None:
        return figures.UNKNOWN, figures.UNKNOWN
    return figures.number(point.tps), f"{figures.number(point.low)} to {figures.number(point.high)}"


def _ceilings(summary: Summary) -> str:
    curves = summary.scaling.curves if summary.scaling else ()
    rows = [
        [curve.name, limit_name(ceiling.resource), figures.number(ceiling.tps), ceiling.says]
        for curve in curves
        for ceiling in curve.ceilings
    ]
    return table(["curve", "ceiling", "transactions/s", "from"], rows) if rows else ""


def break_even(summary: Summary) -> str:
    drawing = draw(
        economics_chart.break_even, summary, "Transactions a second against the link's rate, by compression", "even"
    )
    if not drawing or summary.compression is None:
        return ""
    modelled = any(row.curve for row in summary.compression.rows)
    caption = "Points: measured, with 95 % intervals." + (
        " Lines: the model of each algorithm on this machine and data. Diamond: below this rate of the link compression pays."
        if modelled
        else ""
    )
    contents = list(dict.fromkeys(row.content for row in summary.compression.rows))
    rows = [
        [
            content,
            point["series"],
            tables.rate(point["rate"]),
            f"{figures.number(point['tps'])} [{figures.number(point['low'])}, {figures.number(point['high'])}]",
        ]
        for content in contents
        for point in economics_chart.measured(summary, content)
    ]
    return figure(drawing, caption, table(["data", "compression", "link", "transactions/s [95 %]"], rows))


def budgets(summary: Summary) -> str:
    cells = grid_charts.budget_cells(summary)
    drawing = draw(
        grid_charts.budgets, summary, "Where the time between two transactions of a connection goes, by cell", "budgets"
    )
    if not drawing:
        return ""
    names = grid_charts.part_names(cells)
    how = [
        f"{said}: {', '.join(of)}."
        for said, basis in (("Computed from rates and delays", "computed"), ("At most so long", "bounded"))
        if (of := [name for name in names if basis in _bases(cells, name)])
    ]
    caption = (
        "Each bar is one cycle of a connection: from one transaction to the next. Grey, last: the rest, which none of the others "
        f"explains. Beside it how long the cycle is, and what the limit is. {' '.join(how)}"
    ).rstrip()
    rows = []
    for label, cell in cells:
        assert cell.cycle is not None, "chosen for it"
        parts = {part.name: part.us for part in cell.cycle.parts}
        shares = [f"{parts.get(name, 0.0) / cell.cycle.us * 100:.1f}" for name in names]
        rows.append(
            [
                label,
                *shares,
                grid_charts.duration(cell.cycle.us),
                limit_name(cell.limit.resource) if cell.limit else figures.UNKNOWN,
            ]
        )
    head = ["% of the cycle", *names, "cycle", "limit"]
    return "<h2>Where does the time go?</h2>" + figure(drawing, caption, table(head, rows))


def _bases(cells: list[tuple[str, CellSummary]], name: str) -> set[str]:
    if name == grid_charts.REST:
        return set()
    return {
        part.basis for _, cell in cells if cell.cycle for part in cell.cycle.parts if part.name == name and part.us > 0
    }


def networks(summary: Summary) -> str:
    cells = grid_charts.network_cells(summary)
    drawing = draw(grid_charts.networks, summary, "Bytes a second each way over one trial, of chosen cells", "networks")
    if not drawing:
        return ""
    caption = (
        "The last good trial of the fastest cell of a column. Bytes as the interface counts them, so the upper ceiling is the one to "
        "compare with; payload has the lower. A ceiling far above what is drawn is left out."
    )
    if any(cell.network and cell.network.to_client_queue_bytes for cell in cells):
        caption += " Below: the most bytes waiting in the link's queue to the client."
    rows = []
    for cell in cells:
        series = cell.network
        assert series is not None, "chosen for it"
        queue = max(series.to_client_queue_bytes) if series.to_client_queue_bytes else None
        rows.append(
            [
                cell.arm,
                _mib(sum(series.to_client_bytes_per_s) / len(series.at_s)),
                _mib(sum(series.to_server_bytes_per_s) / len(series.at_s)),
                _mib(series.interface_ceiling_bytes_per_s),
                _mib(series.payload_ceiling_bytes_per_s),
                figures.size(queue) if queue is not None else figures.UNKNOWN,
                f"{sum(series.retransmits_per_s) / len(series.at_s):.2f}",
            ]
        )
    head = ["MiB/s", "to client", "to server", "interface ceiling", "payload ceiling", "most queued", "retransmits/s"]
    return "<h2>Is the network full?</h2>" + figure(drawing, caption, table(head, rows))


def _mib(count: float | None) -> str:
    return figures.UNKNOWN if count is None else f"{count / grid_charts.MIB:,.1f}"


def published(summary: Summary) -> str:
    drawing = draw(scaling_chart.shapes, summary, "Measured and published curves as shares of their largest", "shapes")
    found = tables.published(summary)
    if not drawing or found is None:
        return ""
    caption = "Each curve over its own largest: machines differ, but where a curve bends can be compared. " + " ".join(
        found.notes
    )
    return "<h2>What others published</h2>" + figure(
        drawing, caption, table([upper for upper, _ in found.head], found.rows)
    )


def drift(summary: Summary) -> str:
    drawing = draw(
        charts.drift, summary, "Every trial over the median of its cell, in the order in which they ran", "drift"
    )
    if not drawing:
        return ""
    caption = "A trend or a jump within blocks would be seen here; what all cells of a block share cancels in ratios."
    if len(charts.against_median(summary)) > charts.MOST_TRIALS:
        caption = "Dot and line: median and middle 80 % of a block's trials. " + caption
        return "<h2>Was it quiet?</h2>" + figure(drawing, caption, _blocks(summary))
    data = table(["trial", "block", "cell", *figures.trial_head(summary)], figures.trial_rows(summary))
    return "<h2>Was it quiet?</h2>" + figure(drawing, caption, data)


def _blocks(summary: Summary) -> str:
    """Where there are too many trials to list each."""
    rows = []
    for found in charts.block_ranges(charts.against_median(summary)):
        trials = [trial for trial in summary.trials if trial.block == found["block"]]
        others = [trial.others_cpus for trial in trials if trial.others_cpus is not None]
        rows.append(
            [
                str(found["block"]),
                str(len(trials)),
                str(sum(trial.qps is None for trial in trials)),
                f"{found['ratio']:.3f}",
                f"{found['low']:.3f} to {found['high']:.3f}",
                figures.cpus(statistics.median(others) if others else None),
            ]
        )
    head = ["block", "trials", "void", "median, of the cell's", "middle 80 %", "CPUs busy for others"]
    return table(head, rows)
