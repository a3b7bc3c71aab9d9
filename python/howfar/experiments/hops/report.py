"""The report of paths with programs on them: what each costs, then the response times as of any plan with rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.hops.analysis import HopCost, HopCosts, hop_costs, verdict
from howfar.experiments.latency.analysis import Latency
from howfar.experiments.latency.report import charts, main_table, with_limits
from howfar.report.document import Block, Cell, Column, Details, Document, Table
from howfar.report.frame import cell_table, confirmations, frame, trials
from howfar.stats.estimate import Part
from howfar.stats.trials import ONE


class Hops(Experiment):
    name = "hops"
    findings: ClassVar[Keys] = {"hops": HopCosts}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"hops": hop_costs(evidence)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        found = findings["hops"]
        return verdict(found, ONE[evidence.table.unit], with_limits) if isinstance(found, HopCosts) else ""

    def applies(self, summary: Summary) -> bool:
        return summary.found(HopCosts) is not None

    def document(self, summary: Summary) -> Document:
        found, latency = summary.found(HopCosts), summary.found(Latency)
        assert found is not None, "only then it applies"
        shown: tuple[Block, ...] = (costs(found),)
        below: tuple[Block, ...] = (Details("All cells", (cell_table(summary, main=False),)),)
        if latency is not None:
            shown, below = (*shown, main_table(latency)), (*charts(latency), *below)
        return frame(summary, shown, below=(*below, *trials(summary), *confirmations(summary)))


def costs(found: HopCosts) -> Table:
    at = "" if found.per_s is None else f"at {found.per_s:,.0f}/s"
    columns = (
        Column("path", left=True),
        Column("programs", left=True),
        Column("throughput", f"of {found.baseline}'s"),
        Column("added p50 µs", at),
        Column("added p99 µs", at),
        Column("hop CPU µs", "per query"),
        Column("a connect µs", f"{found.baseline}: {with_limits(found.connect_us)}"),
    )
    note = (
        f"Against {found.baseline}, within blocks, with 95 % intervals. Throughput and CPU time: in a closed loop. CPU time is that "
        "of all programs of the path; on the same CPUs it is taken from the client or the server. A connect: what a transaction takes "
        "longer that opens a connection of its own."
    )
    return Table("", columns, tuple(_row(hop) for hop in found.hops), (note,), main=True, stack=True)


def _row(hop: HopCost) -> tuple[Cell, ...]:
    figures = (hop.throughput_ratio, hop.added_p50_us, hop.added_p99_us, hop.cpu_us_per_query, hop.connect_us)
    return (Cell(hop.path), Cell(", ".join(hop.programs)), *(Cell(with_limits(figure)) for figure in figures))
