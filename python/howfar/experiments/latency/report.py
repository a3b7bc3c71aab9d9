"""The report of a plan with given rates: response times by path, and which paths keep up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from howfar.analysis.advice import Advice
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.latency.analysis import AtRate, Latency, PathLatency, latency, verdict
from howfar.report import figures, palette
from howfar.report.charts import Drawable, percentiles, pick
from howfar.report.document import Block, Chart, Column, Details, Document, Fields, Heading, Table, table_of
from howfar.report.frame import frame
from howfar.report.sections import cell_table, columns, confirmations, trials
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import in_brackets
from howfar.stats.resample import within

MOST_OF_CAPACITY = 0.8
"""Share of a path's capacity that advice permits: the rest is for bursts, which even a steady stream of users has."""
_ROOM = f", of which {MOST_OF_CAPACITY * 100:.0f} % leaves room for bursts"


class Latencies(Experiment):
    name = "latency"
    findings: ClassVar[Keys] = {"latency": Latency}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"latency": latency(evidence)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        found = findings["latency"]
        return verdict(found, with_limits) if isinstance(found, Latency) else ""

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        found = findings["latency"]
        return _advice(found) if isinstance(found, Latency) else None

    def document(self, summary: Summary) -> Document:
        found = summary.the(Latency)
        every = Details("All cells", (cell_table(summary, main=False),))
        below = (*charts(found), every, *trials(summary), *confirmations(summary))
        return frame(summary, (main_table(found),), below=below, records=records(found))


def with_limits(found: Estimate | None) -> str:
    """`2.1 [2.0, 2.3]`; three digits."""
    if found is None:
        return figures.UNKNOWN
    points = f"({', '.join(map(figures.number, sorted(found.points)))})" if len(found.points) > 1 else ""
    return in_brackets(found, figures.number, points)


def main_table(found: Latency) -> Table:
    fields: Fields[tuple[PathLatency, AtRate]] = {
        "path": lambda row: row[0].name,
        "due/s": lambda row: f"{row[1].per_s:,.4g}" if row[1].per_s < 1000 else f"{row[1].per_s:,.0f}",
        "load": lambda row: figures.UNKNOWN if row[1].share is None else f"{row[1].share * 100:.0f} %",
        "p50 ms\n[95 % interval]": lambda row: _p50(row[1]),
        "p99 ms\n[95 % interval]": lambda row: with_limits(row[1].p99_ms),
        Column("p99.9 ms", "[95 % interval]", optional=True): lambda row: with_limits(row[1].p999_ms),
        f"p99 over\n{found.baseline}'s": lambda row: _over(row[1]),
    }
    rows = [(path, at) for path in found.paths for at in path.rates]
    note = (
        "Response times count from when a transaction was due. Where less than 99 % is answered in time, they grow with the length of "
        "the trial, so none is given; nor is a quantile that fewer than 10 transactions of a trial exceed. Load: relative to the "
        "baseline in a closed loop. *: resolved. ?: whether it keeps up is not resolved."
    )
    return table_of("", rows, fields, (note,), main=True, stack=True)


def _p50(at: AtRate) -> str:
    doubt = "" if at.sure else " ?"
    if at.keeps_up:
        return f"{with_limits(at.p50_ms)}{doubt}"
    return f"answers {at.answered.value * 100:.1f} %, queues{doubt}"


def _over(at: AtRate) -> str:
    resolved = " *" if at.resolution.is_difference else ""
    return figures.UNKNOWN if at.p99_ratio is None else f"{with_limits(at.p99_ratio)}{resolved}"


def charts(found: Latency) -> list[Block]:
    """One panel per rate, one line per path."""
    names = [path.name for path in found.paths]
    colours = dict(zip(names, pick(palette.SERIES, len(names)), strict=True))
    panels: dict[str, list[dict[str, object]]] = {}
    for path in found.paths:
        for at in path.rates:
            share = "" if at.share is None else f" ({at.share * 100:.0f} % of capacity)"
            rows = [{"series": path.name, **point.model_dump()} for point in at.curve] if at.keeps_up else []
            panels.setdefault(f"{at.per_s:,.0f}/s{share}", []).extend(rows)

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


def _advice(found: Latency) -> tuple[Advice, ...]:
    queues = [(path, first) for path in found.paths if (first := _first_that_queues(path)) is not None]
    advice = []
    for path, first in queues:
        capacity = path.capacity_per_s
        if capacity is None:
            continue
        doubt = "" if first.sure else ", so whether it keeps up there is not resolved"
        room = capacity.times(MOST_OF_CAPACITY)
        leaves = room.value < first.per_s  # else it queued below what a closed loop does
        below = with_limits(room) if leaves else f"{first.per_s:,.0f}"
        advice.append(
            Advice(
                action=f"On {path.name}, keep below {below} transactions/s, or give it more connections or fewer round trips.",
                because=f"At {first.per_s:,.0f}/s, it answered {_percent(first.answered)} in time{doubt}; in a closed loop with as "
                f"many connections, it does {with_limits(capacity)}/s{_ROOM if leaves else ''}.",
            )
        )
    return tuple(advice)


def _percent(share: Estimate) -> str:
    """`97.1 [96.4, 97.8] %`; limits are cut at 100 %."""
    low, high = ((None if end is None else min(end, 1.0) * 100) for end in (share.low, share.high))
    limits = None if low is None or high is None else (low, high)
    return f"{within(share.value * 100, limits, '{:.1f}'.format)} %"


def _first_that_queues(path: PathLatency) -> AtRate | None:
    return next((at for at in path.rates if not at.keeps_up), None)


def records(found: Latency) -> list[dict[str, object]]:
    """One line of CSV per path and rate."""
    made = []
    for path in found.paths:
        for at in path.rates:
            record: dict[str, object] = {"path": path.name, "arm": at.arm, "per_s": at.per_s}
            record |= {"share": "" if at.share is None else at.share, "keeps_up": at.keeps_up}
            record |= columns(at, "answered p50_ms p99_ms p999_ms p99_ratio") | columns(path, "capacity_per_s")
            made.append(record | {"resolution": at.resolution.value})
    return made
