"""The report on encryption: the cost of TLS per byte and per connect, and the throughput with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.network.encryption.analysis import (
    EncryptionEconomics,
    EncryptionRow,
    EncryptionTried,
    analyse_encryption,
    conclude,
    explain,
    with_sentences,
)
from howfar.experiments.network.encryption.texts import NOTE, TEXTS
from howfar.experiments.network.grid import NOT_VALID, grid_document, prediction_text
from howfar.findings import Finding, fill
from howfar.report import figures
from howfar.report.document import Block, Cell, Column, Details, Document, make_table
from howfar.stats.estimate import Part
from howfar.stats.resample import Interval


class EncryptionExperiment(Experiment):
    name = "encryption"
    texts = TEXTS
    findings: ClassVar[Keys] = {"encryption": EncryptionEconomics}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"encryption": analyse_encryption(evidence.facts, evidence.workload, evidence.floors)}

    def with_sentences(self, finding: Part) -> Part:
        return with_sentences(finding) if isinstance(finding, EncryptionEconomics) else finding

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        return conclude(evidence)

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        return explain(evidence)

    def document(self, summary: Summary) -> Document:
        return grid_document(summary, economics=costs_section(summary))


def costs_section(summary: Summary) -> list[Block]:
    findings, answered = summary.require_findings(EncryptionEconomics), not summary.answer.is_missing
    persistent = _threads_to_show([row.persistent for row in findings.rows])
    per_transaction = _threads_to_show([row.per_transaction for row in findings.rows])
    fields: dict[str | Column, Callable[[EncryptionRow], str | Cell]] = {
        "version": lambda row: row.version,
        "CPU µs\nper connect": lambda row: _cost_cell(row.connect_us, ",.0f", row.connect_us_interval),
        "round trips\nper connect": lambda row: _cost_cell(row.connect_turns, "+.2g", row.connect_turns_interval),
        "CPU ns\nper byte": lambda row: _cost_cell(row.byte_ns, ".2f", row.byte_ns_interval),
        "resumed": lambda row: "unknown" if row.resumed is None else "yes" if row.resumed else "no",
    }
    for threads in persistent:
        fields[f"x persistent\nat {threads}"] = partial(_comparison_cell, threads, "persistent", answered)
    for threads in per_transaction:
        fields[f"x connect/txn\nat {threads}"] = partial(_comparison_cell, threads, "per_transaction", answered)
    notes = [*([findings.text] if answered else []), fill(NOTE, predicted=answered)]
    return [Details("What encryption costs", (make_table("", findings.rows, fields, notes, stack=True),), open=True)]


def _cost_cell(value: float | None, form: str, interval: Interval | None) -> Cell:
    return Cell(figures.UNKNOWN if value is None else format(value, form), figures.interval_line(interval))


def _threads_to_show(rows: Sequence[Sequence[EncryptionTried]]) -> list[int]:
    """The fewest and the most connections of each row. Without these columns a row would seem not to have been measured."""
    counts = [[comparison.threads for comparison in comparisons] for comparisons in rows if comparisons]
    return sorted({count for row_counts in counts for count in (min(row_counts), max(row_counts))})


def _comparison_cell(threads: int, connect: str, answered: bool, row: EncryptionRow) -> Cell:
    """A ratio of throughputs, and below it the model's, unless the run has no answer."""
    comparison = next((comparison for comparison in getattr(row, connect) if comparison.threads == threads), None)
    if comparison is None:
        return Cell(figures.UNKNOWN)
    below = (prediction_text(comparison.predicted) if answered else "", NOT_VALID if comparison.invalid else "")
    return Cell(figures.ratio(comparison.ratio), " ".join(filter(None, below)))
