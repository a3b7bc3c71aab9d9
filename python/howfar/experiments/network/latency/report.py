"""The report on plans with given rates: response times by path, and which paths keep up."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from howfar.analysis.advice import Advice, Parameters
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.network.latency.analysis import (
    Latency,
    PathLatency,
    RateResult,
    conclude,
    explain,
    summarise_latency,
)
from howfar.experiments.network.latency.texts import (
    ANSWERED,
    CAPACITIES,
    CURVES_TITLE,
    CURVES_TOPIC,
    HEADROOM,
    KEEP_BELOW,
    MARKS,
    TEXTS,
    TIMES_NOTE,
)
from howfar.findings import Finding, fill
from howfar.report import figures, palette
from howfar.report.charts import PHONE, Drawable, axis, labelled_lines, percentile_chart, styles
from howfar.report.document import Block, Chart, Column, Details, Document, Fields, Heading, Table, make_table
from howfar.report.drawing import alt
from howfar.report.figures import interval_head, with_interval
from howfar.report.frame import frame
from howfar.report.sections import cell_table, confirmation_blocks, csv_columns, trial_blocks
from howfar.stats.estimate import Estimate, Part
from howfar.stats.resample import figure_text

MAX_CAPACITY_SHARE = 0.8
"""Share of a path's capacity that advice permits. The rest is for bursts, which even a steady stream of users has."""


class LatencyExperiment(Experiment):
    name = "latency"
    texts = TEXTS
    is_about_ratios = False
    findings: ClassVar[Keys] = {"latency": Latency}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"latency": summarise_latency(evidence)}

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        latency = findings["latency"]
        return conclude(latency) if isinstance(latency, Latency) else ()

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        latency = findings["latency"]
        return explain(latency, evidence.cells) if isinstance(latency, Latency) else ()

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        latency = findings["latency"]
        return _advice(latency) if isinstance(latency, Latency) else None

    def document(self, summary: Summary) -> Document:
        latency = summary.require_findings(Latency)
        all_cells = Details("All cells", (cell_table(summary, main=False),))
        below = (*chart_blocks(latency), all_cells, *trial_blocks(summary), *confirmation_blocks(summary))
        return frame(
            summary,
            (main_table(latency, capacity_notes(latency)),),
            answer_charts=answer_chart(summary, latency),
            more_blocks=below,
            records=records(latency),
            is_about_ratios=self.is_about_ratios,
        )


def main_table(latency: Latency, notes: tuple[str, ...] = ()) -> Table:
    results = [result for path in latency.paths for result in path.rates]
    p50_interval = interval_head(result.p50_ms for result in results)
    p99_interval = interval_head(result.p99_ms for result in results)
    p999_interval = interval_head(result.p999_ms for result in results)
    fields: Fields[tuple[PathLatency, RateResult]] = {
        "path": lambda row: row[0].name,
        "offered/s": lambda row: f"{row[1].per_s:,g}",
        f"% of {latency.baseline}'s\ncapacity": lambda row: (
            figures.UNKNOWN if row[1].share is None else f"{row[1].share * 100:.0f} %"
        ),
        f"p50 ms\n{p50_interval}": lambda row: _p50_cell(row[1]),
        f"p99 ms\n{p99_interval}": lambda row: with_interval(row[1].p99_ms),
        Column("p99.9 ms", p999_interval, optional=True): lambda row: with_interval(row[1].p999_ms),
        f"p99 ÷\n{latency.baseline}'s": lambda row: _p99_ratio_cell(row[1]),
    }
    rows = [(path, result) for path in latency.paths for result in path.rates]
    shown = "".join(f"{_p50_cell(result)}{_p99_ratio_cell(result)}" for _, result in rows)
    marks = [text for mark, text in MARKS.items() if f" {mark}" in shown]
    note = fill(TIMES_NOTE, baseline=latency.baseline)
    return make_table("", rows, fields, (" ".join([*marks, note]), *notes), main=True, stack=True)


def capacity_notes(latency: Latency) -> tuple[str, ...]:
    """The throughput of each path in a closed loop. Empty: not measured."""
    capacities = [
        f"{path.name} {with_interval(path.capacity_per_s)}/s" for path in latency.paths if path.capacity_per_s
    ]
    return (fill(CAPACITIES, capacities=", ".join(capacities)),) if capacities else ()


def _p50_cell(result: RateResult) -> str:
    doubt = "" if result.is_certain else " ?"
    if result.keeps_up:
        return f"{with_interval(result.p50_ms)}{doubt}"
    return f"{result.answered.value * 100:.1f} % in time{doubt}"


def _p99_ratio_cell(result: RateResult) -> str:
    resolved = " *" if result.resolution.is_difference else ""
    return figures.UNKNOWN if result.p99_ratio is None else f"{with_interval(result.p99_ratio)}{resolved}"


def answer_chart(summary: Summary, latency: Latency) -> list[Block]:
    """The picture of the answer: the p99 at each rate. Empty if no trial is long enough for a p99."""
    if not any(result.p99_ms for path in latency.paths for result in path.rates):
        return []
    caption = (
        "99 of 100 transactions were answered within this time, counted from when they were due; with 95 % intervals. A path's "
        "name at the top marks the first rate at which its queue grows; ?: too close to call."
    )
    return [Chart("rates", summary.answer.sentence, caption, partial(draw_rates, latency))]


def draw_rates(latency: Latency, width: int) -> Drawable:
    """A line of p99 against rate for each path; at the top, the paths that do not keep up."""
    lines = {
        path.name: [(result.per_s, result.p99_ms) for result in path.rates if result.p99_ms is not None]
        for path in latency.paths
    }
    queueing = {path.name: [result for result in path.rates if not result.keeps_up] for path in latency.paths}
    named = width >= PHONE
    top_labels = [
        (name, found[0].per_s, f"{f'{name} ' if named else ''}queues{'' if found[0].is_certain else '?'}")
        for name, found in queueing.items()
        if found
    ]
    rates = sorted({result.per_s for path in latency.paths for result in path.rates})
    domain = 0, rates[-1] * 1.25
    x = axis(alt.X, "x", "offered transactions per second", domain, values=rates, format=",.6~r", grid=False)
    return labelled_lines(lines, x, "p99, ms", width, top_labels=top_labels)


def chart_blocks(latency: Latency) -> list[Block]:
    """One panel per rate, one line per path."""
    colours = styles([path.name for path in latency.paths], palette.SERIES)
    panels: dict[str, list[dict[str, object]]] = {}
    for path in latency.paths:
        for result in path.rates:
            share = "" if result.share is None else f" ({result.share * 100:.0f} % of capacity)"
            rows = [{"series": path.name, **point.model_dump()} for point in result.curve] if result.keeps_up else []
            panels.setdefault(f"{result.per_s:,.0f}/s{share}", []).extend(rows)

    def draw(width: int) -> Drawable | None:
        return percentile_chart(panels, colours, titles=("percentile", "response time, ms"), width=width)

    chart = Chart(
        "latency",
        _curves_title(latency),
        "Response times from when a transaction was due, all blocks merged; each line ends where only ten transactions were slower. A "
        "path that does not keep up with a rate is left out there.",
        draw,
    )
    return [Heading("How long answers take at each rate"), chart]


def _curves_title(latency: Latency) -> str:
    """The p99 of the slowest and the fastest path at the highest rate that more than one sustains, or the topic if there is none."""
    by_rate: dict[float, list[tuple[float, str]]] = {}
    for path in latency.paths:
        for result in path.rates:
            if result.keeps_up and result.p99_ms is not None:
                by_rate.setdefault(result.per_s, []).append((result.p99_ms.value, path.name))
    shared = [per_s for per_s, times in by_rate.items() if len(times) > 1]
    if not shared:
        return CURVES_TOPIC
    (least, best), *_, (most, worst) = sorted(by_rate[max(shared)])
    return fill(CURVES_TITLE, per_s=max(shared), most=most, worst=worst, least=least, best=best)


def _advice(latency: Latency) -> tuple[Advice, ...]:
    advice = []
    for path in latency.paths:
        overloaded, capacity = path.lowest_overload, path.capacity_per_s
        if overloaded is None or capacity is None:
            continue
        recommended_max = capacity.scaled(MAX_CAPACITY_SHARE)
        recommended_rate = recommended_max.value if recommended_max.low is None else recommended_max.low
        # Otherwise it queued at a lower rate than that of the closed loop.
        has_headroom = recommended_rate > 0 and recommended_max.value < overloaded.per_s
        reason = fill(
            ANSWERED,
            per_s=overloaded.per_s,
            answered=_percent_text(overloaded.answered),
            capacity=with_interval(capacity),
        )
        rate_text, because, is_lower_limit = f"{overloaded.per_s:,g}", f"{reason}.", False
        if has_headroom:
            rate_text, is_lower_limit = figures.number(recommended_rate), recommended_max.low is not None
            because = fill(HEADROOM, reason=reason, share=MAX_CAPACITY_SHARE, low=is_lower_limit)
        action = fill(KEEP_BELOW, path=path.name, rate=rate_text, lower_limit=is_lower_limit)
        figures_used: Parameters = {
            "path": path.name,
            "per_s": overloaded.per_s,
            "capacity_per_s": capacity.value,
            "below_per_s": recommended_rate if has_headroom else overloaded.per_s,
            "answered": overloaded.answered.value,
        }
        advice.append(Advice(action=action, because=because, id="keep-below", parameters=figures_used))
    return tuple(advice)


def _percent_text(share: Estimate) -> str:
    """`97.1 [96.4, 97.8] %`; limits are cut at 100 %."""
    low, high = ((None if limit is None else min(limit, 1.0) * 100) for limit in (share.low, share.high))
    limits = None if low is None or high is None else (low, high)
    return f"{figure_text(share.value * 100, limits, '{:.1f}'.format)} %"


def records(latency: Latency) -> list[dict[str, object]]:
    """One line of CSV per path and rate."""
    lines = []
    for path in latency.paths:
        for result in path.rates:
            record: dict[str, object] = {"path": path.name, "arm": result.arm, "per_s": result.per_s}
            record |= {"share": "" if result.share is None else result.share, "keeps_up": result.keeps_up}
            record |= csv_columns(result, "answered p50_ms p99_ms p999_ms p99_ratio") | csv_columns(
                path, "capacity_per_s"
            )
            lines.append(record | {"resolution": result.resolution.value})
    return lines
