"""Paths compared: the same load over each of them, against the first. A path against itself (A/A) is the smallest case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from howfar.analysis.cells import CellSummary
from howfar.analysis.idle import Waking, waking
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.answer import floor_clause
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.paths import charts
from howfar.plan.factors import IDLE
from howfar.report import figures
from howfar.report.document import Block, Cell, Column, Details, Document, Table
from howfar.report.frame import cell_table, confirmations, frame, ratio_cards, trials
from howfar.stats.estimate import Part
from howfar.stats.intervals import Resolution, excludes_one, interval_text, share_text
from howfar.stats.trials import ONE
from howfar.store.records import ArmRole

MAX_NAMED = 6
"""A sentence that lists more arms is no answer; the rest is in the table."""


class Paths(Experiment):
    """Applies to every run that no other experiment claims."""

    name = "paths"
    findings: ClassVar[Keys] = {"waking": Waking}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"waking": waking(evidence.table)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        base = next((cell for cell in evidence.cells if cell.role is ArmRole.BASELINE), None)
        every = [cell for cell in evidence.cells if cell.role is ArmRole.CONTENDER]
        if base is not None and evidence.floors.aa is not None and not every:
            return _against_itself(base.arm, evidence)
        contenders = [cell for cell in every if cell.ratio is not None]
        if base is None or not contenders:
            return "No verdict: there is no block in which both the baseline and another arm were measured."
        return f"{_compared(base.arm, contenders, evidence)}{floor_clause(evidence)}."

    def applies(self, summary: Summary) -> bool:
        return True

    def document(self, summary: Summary) -> Document:
        below = (*waking_blocks(summary), *charts.all_of(summary), *trials(summary), *confirmations(summary))
        return frame(summary, (cell_table(summary),), cards=ratio_cards(summary), below=below)


def waking_blocks(summary: Summary) -> list[Block]:
    """Empty: the run has one level of idle states only."""
    if (found := summary.found(Waking)) is None:
        return []
    columns = (
        Column("path", left=True),
        Column("as found", "of polling"),
        Column("of baseline", "as found"),
        Column("of baseline", "polling"),
        Column("moved by waking"),
    )
    rows = tuple(
        (
            Cell(each.arm.removesuffix(f", {IDLE.label('as-found')}")),
            *(Cell(figures.point(ratio), figures.limits(ratio)) for ratio in each.ratios),
        )
        for each in found.paths
    )
    note = (
        f"{summary.asked.capitalize()} per second with idle CPUs as this machine leaves them, over those with idle CPUs that poll; "
        "below 1 is what waking CPUs takes. The last column is the factor by which it moves the comparison."
    )
    return [Details("What waking idle CPUs costs", (Table("", columns, rows, (note,), stack=True),), True)]


def _compared(base: str, contenders: list[CellSummary], evidence: RunEvidence) -> str:
    unit = evidence.table.unit
    resolved = [cell for cell in contenders if cell.resolution in (Resolution.SLOWER, Resolution.FASTER)]
    unresolved = [cell for cell in contenders if cell.resolution is Resolution.NOT_RESOLVED]
    clauses = []
    if resolved:
        named = ", ".join(f"{cell.arm} {interval_text(cell.ratio)}" for cell in resolved[:MAX_NAMED] if cell.ratio)
        more = f" and {len(resolved) - MAX_NAMED} more" if len(resolved) > MAX_NAMED else ""
        clauses.append(f"{unit.capitalize()} per second relative to {base}: {named}{more}")
    if unresolved:
        names = ", ".join(_unresolved_name(cell, ONE[unit]) for cell in unresolved[:MAX_NAMED])
        clauses.append(f"not resolved: {names}" if resolved else f"No difference from {base} is resolved: {names}")
    return "; ".join(clauses)


def _unresolved_name(cell: CellSummary, one: str) -> str:
    """Where throughput cannot resolve a difference, CPU time often can."""
    if cell.cpu_resolution is Resolution.NOT_RESOLVED or cell.cpu_ratio is None:
        return cell.arm
    return f"{cell.arm} (its CPU per {one} is: {cell.cpu_bound.sign}{interval_text(cell.cpu_ratio)} times)"


def _against_itself(arm: str, evidence: RunEvidence) -> str:
    aa, floor, unit = evidence.floors.aa, evidence.floors.throughput, evidence.table.unit
    assert aa is not None, "only then it is called"
    found = f"{arm} was measured under two names: the second reached {interval_text(aa)} times the {unit} per second of the first"
    if floor is None:
        return found + "; there are too few blocks to tell what this machine can resolve."
    judged = "a difference is resolved although there is none" if excludes_one(aa) else "no difference is resolved"
    return f"{found}; {judged}, and differences below {share_text(floor)} cannot be (95 % interval)."
