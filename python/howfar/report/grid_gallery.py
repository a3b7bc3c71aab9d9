"""The chart of every trial, of older pages."""

from __future__ import annotations

import statistics

from howfar.analysis.summary import Summary
from howfar.report import charts, figures
from howfar.report.drawing import draw
from howfar.report.fragments import figure, table


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
