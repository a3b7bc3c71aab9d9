"""The answer in one sentence, with interval and noise floor. It claims what is resolved and names what is not."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.answers import answer
from howfar.analysis.summary import Asked, Bound, CellSummary
from howfar.analysis.trials import TrialTable
from howfar.analysis.workload_line import ONE, asked
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, excludes_one, interval_text, share_text
from howfar.store.records import ArmRole

MAX_NAMED = 6
"""A sentence that lists more arms is no answer; the rest is in the table."""

BOUND_SIGN = {Bound.MEASURED: "", Bound.AT_LEAST: "≥ ", Bound.AT_MOST: "≤ "}
"""Before a CPU ratio that leaves part of one arm's CPU out."""


def verdict(
    cells: Sequence[CellSummary],
    table: TrialTable,
    floor: float | None,
    aa: Estimate | None,
    refuted: str = "",
    replication: str = "",
) -> str:
    """One sentence: the limits, of a plan that asks for them; else throughput against the baseline. `refuted`: what is to be added
    where limits are named. `replication`: what a plan of replication has found, its answer."""
    said = replication or _verdict(cells, table, floor, aa, refuted)
    one = bool(cells) and max((len(good) for good in table.good.values()), default=0) == 1
    return f"{ONE_BLOCK} So far: {said}" if one else said


ONE_BLOCK = "One block: no answer yet."
"""Nothing can be told from noise by it. First of all, because it stands above figures that look like answers."""


def _verdict(
    cells: Sequence[CellSummary], table: TrialTable, floor: float | None, aa: Estimate | None, refuted: str
) -> str:
    limits = answer(cells, table, floor)
    if limits is not None:
        return limits.text + _floor_clause(floor, aa, quoted=limits.intervals) + (f". {refuted}" if refuted else ".")
    base = next((cell for cell in cells if cell.role is ArmRole.BASELINE), None)
    if base is not None and aa is not None and not any(cell.role is ArmRole.CONTENDER for cell in cells):
        return _against_itself(base.arm, floor, aa, asked(table.run.info.plan))
    contenders = [cell for cell in cells if cell.role is ArmRole.CONTENDER and cell.ratio is not None]
    if base is None or not contenders:
        return "No verdict: there is no block in which both the baseline and another arm were measured."
    resolved = [cell for cell in contenders if cell.resolution in (Resolution.SLOWER, Resolution.FASTER)]
    unresolved = [cell for cell in contenders if cell.resolution is Resolution.NOT_RESOLVED]
    clauses = []
    if resolved:
        named = ", ".join(
            f"{cell.arm} answers {interval_text(cell.ratio)}" for cell in resolved[:MAX_NAMED] if cell.ratio
        )
        more = f" and {len(resolved) - MAX_NAMED} more" if len(resolved) > MAX_NAMED else ""
        clauses.append(f"Of the {asked(table.run.info.plan)} that {base.arm} answers in a second, {named}{more}")
    if unresolved:
        names = ", ".join(_unresolved_name(cell, asked(table.run.info.plan)) for cell in unresolved[:MAX_NAMED])
        clauses.append(f"not resolved: {names}" if resolved else f"No difference from {base.arm} is resolved: {names}")
    return "; ".join(clauses) + _floor_clause(floor, aa) + "."


def _against_itself(arm: str, floor: float | None, aa: Estimate, asked_for: Asked) -> str:
    """Of a run that compares a path with nothing but itself."""
    found = f"{arm} under two names: the second answers {interval_text(aa)} of the first's {asked_for} in a second"
    if floor is None:
        return found + "; too few blocks to say what this machine can resolve."
    judged = "a difference is declared where there is none" if excludes_one(aa) else "no difference is declared"
    return f"{found}; {judged}, and none under {share_text(floor)} could be (95 % interval)."


def _unresolved_name(cell: CellSummary, asked_for: Asked) -> str:
    """What the clock could not tell, CPU time often can."""
    if cell.cpu_resolution is Resolution.NOT_RESOLVED or cell.cpu_ratio is None:
        return cell.arm
    return f"{cell.arm} (its CPU per {ONE[asked_for]} is: {BOUND_SIGN[cell.cpu_bound]}{interval_text(cell.cpu_ratio)} times)"


def _floor_clause(floor: float | None, aa: Estimate | None, *, quoted: bool = True) -> str:
    """`quoted`: intervals stand in the sentence before."""
    if floor is None or aa is None:
        return "; this session has no noise floor, so no difference is claimed"
    if excludes_one(aa):
        off = abs(aa.value - 1)
        return f"; the same path under two names differed by {share_text(off)}, so nothing under {share_text(floor)} is claimed"
    intervals = "95 % intervals; " if quoted else ""
    return f" ({intervals}noise floor {share_text(floor)})"
