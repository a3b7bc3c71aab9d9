"""Helpers for the answers of several experiments: limits as clauses, ratios between cells, and the noise floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from howfar.analysis.advice import capital
from howfar.analysis.cells import CellSummary, Metric
from howfar.analysis.summary import RunEvidence
from howfar.bottleneck.limit import Limit
from howfar.model.resource import NOT_THE_PATH, Resource
from howfar.paths import is_direct
from howfar.plan.factors import ORDINARY, Level
from howfar.report import figures
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, excludes_one, floor_text, judge_ratio, share_text
from howfar.stats.trials import alike
from howfar.store.records import ArmRole

MAX_CLAUSES = 6
"""Maximum number of clauses in a sentence; the rest is in the tables."""
_LIMIT_CLAUSES = {
    Resource.SERVER_CPU: "the server's CPU is the limit",
    Resource.CLIENT_CPU: "the load generator is the limit, and the figures describe it",
    Resource.FORWARDER_CPU: "the forwarder's CPU is the limit",
    Resource.INSTRUMENT_CPU: "the CPU of the link's emulator is the limit, which would not be so on a larger machine",
    Resource.ONE_THREAD: "one thread is the limit",
    Resource.LINK_TO_CLIENT: "the link to the client is full",
    Resource.LINK_TO_SERVER: "the link to the server is full",
    Resource.RECEIVE_WINDOW: "the receive window is the limit",
    Resource.SEND_BUFFER: "the send buffer is the limit",
    Resource.LOSS: "lost segments are the limit",
    Resource.COMMIT: "commits that wait for the disk are the limit",
    Resource.ACKNOWLEDGEMENT: "commits that wait for a replica are the limit",
    Resource.LOCK: "row locks are the limit",
    Resource.SERVER_WAIT: "a wait inside the server is the limit",
    Resource.LATENCY: "no resource is full: each connection waits for its own answers",
    Resource.ERRORS: "the figures include errors of the server",
    Resource.INVALID: "the figures do not describe the path",
    Resource.NOT_ESTABLISHED: "no limit is established",
}
_LIMIT_NOUNS = {
    Resource.SERVER_CPU: "the server's CPU",
    Resource.CLIENT_CPU: "the load generator",
    Resource.INSTRUMENT_CPU: "the CPU of the link's emulator",
    Resource.LATENCY: "each connection's own round trips",
    Resource.LOSS: "lost segments",
    Resource.ERRORS: "errors of the server",
    Resource.INVALID: "other programs",
    Resource.NOT_ESTABLISHED: "an unknown resource",
    Resource.ONE_THREAD: "one thread",
    Resource.ACKNOWLEDGEMENT: "the wait for a replica",
    Resource.LOCK: "row locks",
}


def limit_clause(limit: Limit) -> str:
    """A limit as a clause: `the server's CPU is the limit`."""
    return (
        "the CPUs are the limit, and no single program uses most of them"
        if limit.divided
        else _LIMIT_CLAUSES[limit.resource]
    )


def limit_noun(limit: Limit) -> str:
    """A limit as a noun phrase: `the server's CPU`."""
    if limit.divided:
        return "CPUs of which no single program uses most"
    return _LIMIT_NOUNS.get(limit.resource, f"the {limit.resource.value}")


def compared_cells(evidence: RunEvidence, *varied: str) -> list[CellSummary]:
    """The baseline and the contenders. Empty if none of these factors varies, because then another experiment answers."""
    main_cells = [cell for cell in evidence.cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    varies = any(len({level(cell, name) for cell in main_cells} - {None}) > 1 for name in varied)
    return main_cells if varies else []


def answer(clauses: Sequence[str], evidence: RunEvidence, *, quoted: bool) -> str:
    """The clauses as one sentence, with the noise floor and limits that tests refuted. Empty: no clause. `quoted`: the sentence
    contains intervals."""
    if not clauses:
        return ""
    omitted = len(clauses) - MAX_CLAUSES
    text = capital("; ".join(clauses[:MAX_CLAUSES]) + (f"; and {omitted} more in the table" if omitted > 0 else ""))
    return f"{text}{floor_clause(evidence, quoted=quoted)}." + (f" {evidence.refuted}" if evidence.refuted else "")


def floor_clause(evidence: RunEvidence, *, quoted: bool = True) -> str:
    floor, aa_ratio = evidence.floors.floor(), evidence.floors.same.get(Metric.THROUGHPUT)
    if floor is None or aa_ratio is None:
        return "; this session has no noise floor, so no difference is claimed"
    link = evidence.floors.floor(over_link=True) or floor
    over_link = f", over the link {floor_text(link)}" if link > floor else ""
    if excludes_one(aa_ratio):
        deviation, comma = share_text(abs(aa_ratio.value - 1)), "," if over_link else ""
        below = f"nothing under {floor_text(floor)}{over_link}{comma} is claimed"
        return f"; the same path under two names differed by {deviation}, so {below}"
    return f" ({'95 % intervals; ' if quoted else ''}noise floor {floor_text(floor)}{over_link})"


def ratio_of(evidence: RunEvidence, cell: CellSummary, reference: CellSummary) -> Estimate | None:
    """Ratio of the throughputs of two arms of a run, paired by block. None: no block has both."""
    ratios = evidence.table.block_ratios(cell.arm, reference.arm)
    return judge_ratio(ratios).quoted if ratios else None


def resolution_of(evidence: RunEvidence, cell: CellSummary, ratio: Estimate) -> Resolution:
    """Resolution of `ratio`, which compares this cell with another."""
    return evidence.floors.of(cell.factors).resolve(ratio)


def level(cell: CellSummary, name: str) -> Level | None:
    return cell.factors.get(name, ORDINARY.get(name))


def groups_without(cells: Sequence[CellSummary], without: str) -> list[list[CellSummary]]:
    """Cells that differ in nothing but one factor, in the order of the plan."""
    return alike(cells, lambda cell: cell.factors, without)


def pairs_with_factor_off(
    cells: Sequence[CellSummary], factor: str, ratio: Callable[[CellSummary, CellSummary], Estimate | None]
) -> list[tuple[CellSummary, list[tuple[CellSummary, Estimate]]]]:
    """Each cell with the factor off, and the otherwise equal cells with their ratios to it. Groups without such a pair are left
    out."""
    cells_and_ratios = []
    for group in groups_without(cells, factor):
        off_cell = next((cell for cell in group if level(cell, factor) == "off"), None)
        if off_cell is not None:
            others = [
                (cell, cell_ratio)
                for cell in group
                if cell is not off_cell and (cell_ratio := ratio(cell, off_cell)) is not None
            ]
            cells_and_ratios.append((off_cell, others))
    return [(off_cell, others) for off_cell, others in cells_and_ratios if others]


def describe_the_path(*cells: CellSummary) -> bool:
    """Whether the cells' figures describe the path and not other programs or errors, however narrow their intervals are."""
    return all(cell.limit is None or cell.limit.resource not in NOT_THE_PATH for cell in cells)


def tps_of(cell: CellSummary) -> float:
    return cell.qps.value / cell.queries_per_txn


def where_text(factors: Mapping[str, Level]) -> str:
    """Where a cell was measured: `at 1 Gb/s`; without a link `on the socket`, `on the loopback` or `here`."""
    rate = factors.get("rate_bps")
    if isinstance(rate, int | float):
        return f"at {figures.rate(rate)}"
    path = factors.get("path")
    if is_direct(path, 1, by_socket=True):
        return "on the socket"
    return "on the loopback" if is_direct(path, 1, by_socket=False) else "here"
