"""The report of a plan that compresses: what each algorithm saves and costs, and below which rate of the link it pays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.compression import charts
from howfar.experiments.compression.analysis import CompressionEconomics, CompressionRow, compression, verdict
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.grid import NOT_VALID, grid_document, modelled
from howfar.report import figures
from howfar.report.document import Block, Cell, Chart, Column, Details, Document, Heading, Table, plain, single
from howfar.stats.estimate import Part
from howfar.units import format_rate_bps


class Compression(Experiment):
    name = "compression"
    findings: ClassVar[Keys] = {"compression": CompressionEconomics}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"compression": compression(evidence.facts, evidence.workload, evidence.floors.throughput)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        return verdict(evidence)

    def applies(self, summary: Summary) -> bool:
        return summary.found(CompressionEconomics) is not None

    def document(self, summary: Summary) -> Document:
        found = summary.found(CompressionEconomics)
        assert found is not None, "only then it applies"
        return grid_document(summary, chart=_chart(summary, found), economics=costs(found))


def _chart(summary: Summary, found: CompressionEconomics) -> list[Block]:
    curves = any(row.curve for row in found.rows)
    caption = "Points: measured, with 95 % intervals." + (
        " Lines: the model of each algorithm on this machine and data. Diamond: below this rate of the link compression pays."
        if curves
        else ""
    )
    rows = tuple(
        plain(
            content,
            point["series"],
            figures.rate(point["rate"]),
            f"{figures.number(point['tps'])} [{figures.number(point['low'])}, {figures.number(point['high'])}]",
        )
        for content in dict.fromkeys(row.content for row in found.rows)
        for point in charts.measured(summary, content)
    )
    data = Table("", single("data", "compression", "link", "transactions/s [95 %]"), rows)
    title = "Transactions per second against the link's rate, by compression"
    make = partial(charts.break_even, summary)
    return [Heading("Below which rate does compression pay?"), Chart("even", title, caption, make, data)]


def costs(found: CompressionEconomics) -> list[Block]:
    rates = list(dict.fromkeys(tried.rate_bps for row in found.rows for tried in row.measured))
    columns = (
        Column("data,", "algorithm", left=True),
        Column("bytes", "of before"),
        Column("CPU ns/B", "client+server"),
        Column("pays", "below"),
        *(Column(f"x at {format_rate_bps(bps)}" if bps else "x, no link", "(predicted)") for bps in rates),
    )
    rows = tuple(
        (
            Cell(f"{row.content}, {row.algorithm}"),
            Cell(f"{row.ratio_to_client:.2f}"),
            Cell(f"{figures.number(row.client_ns_per_byte)}+{figures.number(row.server_ns_per_byte)}"),
            Cell(_pays_below(row)),
            *(_tried(row, bps) for bps in rates),
        )
        for row in found.rows
    )
    advice: dict[str, list[str]] = {}
    for row in found.rows:
        if row.level_advice:
            advice.setdefault(row.level_advice, []).append(f"{row.algorithm} on {row.content}")
    notes = [found.says]
    if any(tried.agrees is False and not tried.invalid for row in found.rows for tried in row.measured):
        notes.append("! the model predicted a gain where there was a loss, or the other way round.")
    notes += [f"{', '.join(names)}: {text.rstrip('.')}." for text, names in advice.items()]
    return [
        Details("What compression costs and saves", (Table("", columns, rows, tuple(notes), stack=True),), open=True)
    ]


def _tried(row: CompressionRow, bps: float | None) -> Cell:
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
