"""The report of a plan that encrypts: what TLS costs per byte and per connect, and what it leaves of throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.encryption.analysis import (
    EncryptionEconomics,
    EncryptionRow,
    EncryptionTried,
    encryption,
    verdict,
    worded,
)
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.grid import NOT_VALID, grid_document, modelled, scaling
from howfar.report import figures
from howfar.report.document import Block, Cell, Column, Details, Document, Table
from howfar.stats.estimate import Part


class Encryption(Experiment):
    name = "encryption"
    findings: ClassVar[Keys] = {"encryption": EncryptionEconomics}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"encryption": encryption(evidence.facts, evidence.workload, evidence.floors.threshold)}

    def worded(self, found: Part) -> Part:
        return worded(found) if isinstance(found, EncryptionEconomics) else found

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        return verdict(evidence)

    def applies(self, summary: Summary) -> bool:
        return summary.found(EncryptionEconomics) is not None

    def document(self, summary: Summary) -> Document:
        found = summary.found(EncryptionEconomics)
        assert found is not None, "only then it applies"
        return grid_document(summary, chart=scaling(summary), economics=costs(found))


def costs(found: EncryptionEconomics) -> list[Block]:
    persistent = _ends([row.persistent for row in found.rows])
    churned = _ends([row.per_transaction for row in found.rows])
    columns = (
        Column("version", left=True),
        Column("CPU µs", "per connect"),
        Column("round trips", "per connect"),
        Column("CPU ns", "per byte"),
        Column("resumed"),
        *(Column("x persistent", f"at {threads}") for threads in persistent),
        *(Column("x connect/txn", f"at {threads}") for threads in churned),
    )
    rows = tuple(_row(row, persistent, churned) for row in found.rows)
    note = (
        "All relative to the same cell without TLS, both ends together; x: throughput relative to it, at the fewest and the most "
        "connections (in brackets: predicted from other numbers of connections)."
    )
    return [Details("What encryption costs", (Table("", columns, rows, (found.says, note), stack=True),), open=True)]


def _row(row: EncryptionRow, persistent: Sequence[int], churned: Sequence[int]) -> tuple[Cell, ...]:
    return (
        Cell(row.version),
        Cell(
            figures.UNKNOWN if row.connect_us is None else f"{row.connect_us:,.0f}",
            figures.between(row.connect_us_interval),
        ),
        Cell(
            figures.UNKNOWN if row.connect_turns is None else f"{row.connect_turns:+.2g}",
            figures.between(row.connect_turns_interval),
        ),
        Cell(figures.UNKNOWN if row.byte_ns is None else f"{row.byte_ns:.2f}", figures.between(row.byte_ns_interval)),
        Cell("unknown" if row.resumed is None else "yes" if row.resumed else "no"),
        *(_tried(row.persistent, threads) for threads in persistent),
        *(_tried(row.per_transaction, threads) for threads in churned),
    )


def _ends(rows: Sequence[Sequence[EncryptionTried]]) -> list[int]:
    """The least and the most connections of each row: one that lacks them all would seem not to have been measured."""
    counts = [[found.threads for found in tried] for tried in rows if tried]
    return sorted({end for each in counts for end in (min(each), max(each))})


def _tried(tried: Sequence[EncryptionTried], threads: int) -> Cell:
    found = next((found for found in tried if found.threads == threads), None)
    if found is None:
        return Cell(figures.UNKNOWN)
    return Cell(figures.ratio(found.ratio), f"({modelled(found.predicted)}){f' {NOT_VALID}' if found.invalid else ''}")
