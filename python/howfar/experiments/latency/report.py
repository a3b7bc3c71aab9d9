"""The report on plans with given rates: response times by path, and which paths keep up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from howfar.analysis.advice import Advice
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.latency.analysis import AtRate, Latency, PathLatency, summarise_latency, verdict
from howfar.report import figures, palette
from howfar.report.charts import Drawable, percentiles, pick
from howfar.report.document import Block, Chart, Column, Details, Document, Fields, Heading, Table, table_of
from howfar.report.frame import frame
from howfar.report.sections import cell_table, columns, confirmations, trials
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import in_brackets
from howfar.stats.resample import within

MAX_CAPACITY_SHARE = 0.8
"""Share of a path's capacity that advice permits. The rest is for bursts, which even a steady stream of users has."""
_HEADROOM_TEXT = f", of which {MAX_CAPACITY_SHARE * 100:.0f} % leaves room for bursts"


class LatencyExperiment(Experiment):
    name = "latency"
    findings: ClassVar[Keys] = {"latency": Latency}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"latency": summarise_latency(evidence)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        latency = findings["latency"]
        return verdict(latency, with_limits) if isinstance(latency, Latency) else ""

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        latency = findings["latency"]
        return _advice(latency) if isinstance(latency, Latency) else None

    def document(self, summary: Summary) -> Document:
        latency = summary.the(Latency)
        all_cells = Details("All cells", (cell_table(summary, main=False),))
        below = (*chart_blocks(latency), all_cells, *trials(summary), *confirmations(summary))
        return frame(summary, (main_table(latency),), below=below, records=records(latency))


def with_limits(estimate: Estimate | None) -> str:
    """An estimate with three digits and its interval: `2.1 [2.0, 2.3]`; without an interval, the values of single blocks."""
    if estimate is None:
        return figures.UNKNOWN
    points = f"({', '.join(map(figures.number, sorted(estimate.points)))})" if len(estimate.points) > 1 else ""
    return in_brackets(estimate, figures.number, points)


def main_table(latency: Latency) -> Table:
    fields: Fields[tuple[PathLatency, AtRate]] = {
        "path": lambda row: row[0].name,
        "due/s": lambda row: f"{row[1].per_s:,.4g}" if row[1].per_s < 1000 else f"{row[1].per_s:,.0f}",
        "load": lambda row: figures.UNKNOWN if row[1].share is None else f"{row[1].share * 100:.0f} %",
        "p50 ms\n[95 % interval]": lambda row: _p50_cell(row[1]),
        "p99 ms\n[95 % interval]": lambda row: with_limits(row[1].p99_ms),
        Column("p99.9 ms", "[95 % interval]", optional=True): lambda row: with_limits(row[1].p999_ms),
        f"p99 over\n{latency.baseline}'s": lambda row: _p99_ratio_cell(row[1]),
    }
    rows = [(path, result) for path in latency.paths for result in path.rates]
    note = (
        "Response times count from when a transaction was due. Where less than 99 % is answered in time, they grow with the length of "
        "the trial, so none is given; nor is a quantile that fewer than 10 transactions of a trial exceed. Load: relative to the "
        "baseline in a closed loop. *: resolved. ?: whether it keeps up is not resolved."
    )
    return table_of("", rows, fields, (note,), main=True, stack=True)


def _p50_cell(result: AtRate) -> str:
    doubt = "" if result.sure else " ?"
    if result.keeps_up:
        return f"{with_limits(result.p50_ms)}{doubt}"
    return f"answers {result.answered.value * 100:.1f} %, queues{doubt}"


def _p99_ratio_cell(result: AtRate) -> str:
    resolved = " *" if result.resolution.is_difference else ""
    return figures.UNKNOWN if result.p99_ratio is None else f"{with_limits(result.p99_ratio)}{resolved}"


def chart_blocks(latency: Latency) -> list[Block]:
    """One panel per rate, one line per path."""
    names = [path.name for path in latency.paths]
    colours = dict(zip(names, pick(palette.SERIES, len(names)), strict=True))
    panels: dict[str, list[dict[str, object]]] = {}
    for path in latency.paths:
        for result in path.rates:
            share = "" if result.share is None else f" ({result.share * 100:.0f} % of capacity)"
            rows = [{"series": path.name, **point.model_dump()} for point in result.curve] if result.keeps_up else []
            panels.setdefault(f"{result.per_s:,.0f}/s{share}", []).extend(rows)

    def draw(width: int) -> Drawable | None:
        return percentiles(panels, colours, titles=("share of transactions", "response time, ms"), width=width)

    chart = Chart(
        "latency",
        "",
        "Response times from when a transaction was due, all blocks merged; a line ends where ten transactions lie beyond it. A path "
        "that does not keep up with a rate is left out there.",
        draw,
    )
    return [Heading("How long answers take at each rate"), chart]


def _advice(latency: Latency) -> tuple[Advice, ...]:
    overloaded_paths = [
        (path, overloaded) for path in latency.paths if (overloaded := _first_overloaded_rate(path)) is not None
    ]
    advice = []
    for path, overloaded in overloaded_paths:
        capacity = path.capacity_per_s
        if capacity is None:
            continue
        doubt = "" if overloaded.sure else ", so whether it keeps up there is not resolved"
        max_rate = capacity.times(MAX_CAPACITY_SHARE)
        has_capacity = max_rate.value < overloaded.per_s  # else it queued below what a closed loop does
        max_text = with_limits(max_rate) if has_capacity else f"{overloaded.per_s:,.0f}"
        advice.append(
            Advice(
                action=f"On {path.name}, keep below {max_text} transactions/s, or give it more connections or fewer round trips.",
                because=f"At {overloaded.per_s:,.0f}/s, it answered {_percent_text(overloaded.answered)} in time{doubt}; in a "
                "closed loop with as "
                f"many connections, it does {with_limits(capacity)}/s{_HEADROOM_TEXT if has_capacity else ''}.",
            )
        )
    return tuple(advice)


def _percent_text(share: Estimate) -> str:
    """`97.1 [96.4, 97.8] %`; limits are cut at 100 %."""
    low, high = ((None if limit is None else min(limit, 1.0) * 100) for limit in (share.low, share.high))
    limits = None if low is None or high is None else (low, high)
    return f"{within(share.value * 100, limits, '{:.1f}'.format)} %"


def _first_overloaded_rate(path: PathLatency) -> AtRate | None:
    return next((result for result in path.rates if not result.keeps_up), None)


def records(latency: Latency) -> list[dict[str, object]]:
    """One line of CSV per path and rate."""
    lines = []
    for path in latency.paths:
        for result in path.rates:
            record: dict[str, object] = {"path": path.name, "arm": result.arm, "per_s": result.per_s}
            record |= {"share": "" if result.share is None else result.share, "keeps_up": result.keeps_up}
            record |= columns(result, "answered p50_ms p99_ms p999_ms p99_ratio") | columns(path, "capacity_per_s")
            lines.append(record | {"resolution": result.resolution.value})
    return lines
