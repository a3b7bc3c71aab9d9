"""The report of a plan that encrypts: the cost of TLS per byte and per connect, and the throughput with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.bandwidth.curves import scaling
from howfar.experiments.encryption.analysis import (
    EncryptionEconomics,
    EncryptionRow,
    EncryptionTried,
    encryption,
    verdict,
    worded,
)
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.grid import NOT_VALID, grid_document, modelled
from howfar.report import figures
from howfar.report.document import Block, Cell, Column, Details, Document, table_of
from howfar.stats.estimate import Part
from howfar.stats.resample import Interval


class Encryption(Experiment):
    name = "encryption"
    findings: ClassVar[Keys] = {"encryption": EncryptionEconomics}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"encryption": encryption(evidence.facts, evidence.workload, evidence.floors)}

    def worded(self, found: Part) -> Part:
        return worded(found) if isinstance(found, EncryptionEconomics) else found

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        return verdict(evidence)

    def document(self, summary: Summary) -> Document:
        found = summary.the(EncryptionEconomics)
        return grid_document(summary, chart=scaling(summary), economics=costs(found))


def costs(found: EncryptionEconomics) -> list[Block]:
    persistent = _ends([row.persistent for row in found.rows])
    churned = _ends([row.per_transaction for row in found.rows])
    fields: dict[str | Column, Callable[[EncryptionRow], str | Cell]] = {
        "version": lambda row: row.version,
        "CPU µs\nper connect": lambda row: _cost(row.connect_us, ",.0f", row.connect_us_interval),
        "round trips\nper connect": lambda row: _cost(row.connect_turns, "+.2g", row.connect_turns_interval),
        "CPU ns\nper byte": lambda row: _cost(row.byte_ns, ".2f", row.byte_ns_interval),
        "resumed": lambda row: "unknown" if row.resumed is None else "yes" if row.resumed else "no",
    }
    for threads in persistent:
        fields[f"x persistent\nat {threads}"] = partial(_tried, threads, "persistent")
    for threads in churned:
        fields[f"x connect/txn\nat {threads}"] = partial(_tried, threads, "per_transaction")
    note = (
        "All relative to the same cell without TLS, both ends together; x: throughput relative to it, at the fewest and the most "
        "connections (in brackets: predicted from other numbers of connections)."
    )
    return [
        Details("What encryption costs", (table_of("", found.rows, fields, (found.says, note), stack=True),), open=True)
    ]


def _cost(value: float | None, form: str, interval: Interval | None) -> Cell:
    return Cell(figures.UNKNOWN if value is None else format(value, form), figures.between(interval))


def _ends(rows: Sequence[Sequence[EncryptionTried]]) -> list[int]:
    """The fewest and the most connections of each row; without its own columns, a row would seem not to have been measured."""
    counts = [[found.threads for found in tried] for tried in rows if tried]
    return sorted({end for each in counts for end in (min(each), max(each))})


def _tried(threads: int, connect: str, row: EncryptionRow) -> Cell:
    found = next((found for found in getattr(row, connect) if found.threads == threads), None)
    if found is None:
        return Cell(figures.UNKNOWN)
    return Cell(figures.ratio(found.ratio), f"({modelled(found.predicted)}){f' {NOT_VALID}' if found.invalid else ''}")
