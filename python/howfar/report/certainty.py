"""How sure the answer of a run is, in one line below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from howfar.analysis.diagnostics import FEW_BLOCKS, Diagnostic
from howfar.analysis.summary import Summary
from howfar.findings import Texts, fill, join, join_clauses
from howfar.report.figures import baseline_name, has_only_faults, shown_cells, widest_interval
from howfar.stats.intervals import half_width, half_width_text, noise_floor_text, simultaneous
from howfar.store.records import ArmRole

TEXTS: Texts = {
    # The verdict.
    "firm": "firm",
    "fair": "fair",
    "poor": "poor",
    "measured": "{verdict}: everything was measured {most:of time}",
    "measured-unevenly": "{verdict}: everything was measured {fewest} to {most:of time}",
    "few": ", too few to trust intervals",
    "width": "throughput ratios are known to within {width}, and differences below {floor} may be chance",
    "very-wide": "the widest 95 % interval of a throughput ratio is beyond ±100 %",
    "no-floor": "which differences may be chance is unknown, because no path was measured twice",
    "wide-floor": "which differences may be chance is unknown, because the path measured twice has too few blocks",
    "disturbed": "other programs used up to {most:.1f} of {cpus:of CPU} in {disturbed} of {known:of trial}",
    "disturbed-by": "other programs, mostly {program}, used up to {most:.1f} of {cpus:of CPU} in {disturbed} of {known:of trial}",
    "program": "{name} (pid {pid})",
    "processes": "{processes} processes of {name}",
    "quiet": "without the blocks of these trials, {arm} is {estimate:slower} than {baseline}",
    "doubtful": "doubtful because of {warnings}",
}
_DOUBTS = {
    Diagnostic.DISTURBED: "void trials in every block",
    Diagnostic.BUSY_MACHINE: "other programs on this machine",
    Diagnostic.AA_EXCLUDES_ONE: "two measurements of the same path that differ",
    Diagnostic.CONTROL_MISSED: "a control that missed a known effect",
    Diagnostic.LINK_NOT_AS_REQUESTED: "a link that was not as requested",
    Diagnostic.CLIENT_LIMITED: "a load generator at its limit",
}
"""Warnings that put the answer into question, the most serious first."""


def certainty(summary: Summary, is_about_ratios: bool = True, proofs: Iterable[str] = ()) -> str:
    """`Firm: everything was measured 8 times; throughput ratios are known to within ±4.0 %, ...` Empty: there is no answer.

    `is_about_ratios`: whether the answer compares throughputs. `proofs`: clauses of the experiment.
    """
    if summary.answer.is_missing or not summary.good_trials:
        return ""
    width = widest_interval(summary) if is_about_ratios and not has_only_faults(summary) else None
    counts = [cell.trials for cell in shown_cells(summary)] or [summary.complete_blocks or summary.blocks]
    doubts = tuple(_doubts(summary))
    verdict = _verdict(summary, min(counts), width, bool(doubts))
    figures = {"fewest": min(counts), "most": max(counts), "verdict": verdict}
    measured = fill(TEXTS["measured" if min(counts) == max(counts) else "measured-unevenly"], **figures)
    few = TEXTS["few"] if min(counts) < FEW_BLOCKS and not has_only_faults(summary) else ""
    clauses = (f"{measured}{few}", *_precision(summary, width), *proofs, *_disturbance(summary), *doubts)
    return join_clauses(clauses)


POOR_WIDTH = 0.5
"""Half-width of the widest interval of a ratio from which an answer is poor."""


def _verdict(summary: Summary, fewest: int, width: float | None, is_doubtful: bool) -> str:
    """`firm`: at least eight measurements, ratios as narrow as requested, and nothing that casts doubt. `poor`: see `POOR_WIDTH`."""
    disturbance = summary.disturbance
    if is_doubtful or (disturbance is not None and disturbance.is_much) or (width or 0.0) > POOR_WIDTH:
        return TEXTS["poor"]
    is_firm = fewest >= FEW_BLOCKS and (width or 0.0) <= summary.target_half_width and disturbance is None
    return TEXTS["firm" if is_firm else "fair"]


def _precision(summary: Summary, width: float | None) -> Iterator[str]:
    if width is None:
        return
    if width > 1:
        yield TEXTS["very-wide"]
    elif summary.noise_floor is None:
        yield TEXTS["no-floor" if summary.aa_ratio is None else "wide-floor"]
    else:
        yield fill(TEXTS["width"], width=half_width_text(width), floor=noise_floor_text(_least_resolved(summary)))


def _least_resolved(summary: Summary) -> float:
    """A difference that this run would have resolved: no smaller than the noise floor, nor than the half-width of an interval that
    includes 1, at the level that allows for all comparisons."""
    cells = (
        cell for cell in shown_cells(summary) if cell.role is ArmRole.CONTENDER and not cell.resolution.is_difference
    )
    widths = (half_width(simultaneous(cell.ratio, summary.claims)) or 0.0 for cell in cells if cell.ratio is not None)
    return max(summary.noise_floor or 0.0, summary.link_noise_floor or 0.0, *widths)


_MAX_QUIET_RATIOS = 2


def _disturbance(summary: Summary) -> Iterator[str]:
    if (disturbance := summary.disturbance) is None:
        return
    figures: dict[str, str | int | float] = {
        "most": disturbance.max_cpus,
        "cpus": disturbance.machine_cpus,
        "disturbed": disturbance.trials,
        "known": disturbance.of,
    }
    if disturbance.programs:
        name, pids = disturbance.programs[0].name, disturbance.programs[0].pids
        template = TEXTS["program" if len(pids) == 1 else "processes"]
        figures["program"] = fill(template, name=name, pid=pids[0], processes=len(pids))
    yield fill(TEXTS["disturbed-by" if disturbance.programs else "disturbed"], **figures)
    for arm, ratio in list(disturbance.quiet_ratios.items())[:_MAX_QUIET_RATIOS]:
        yield fill(TEXTS["quiet"], arm=arm, estimate=ratio, baseline=baseline_name(summary))


def _doubts(summary: Summary) -> Iterator[str]:
    present = {*summary.warnings, *(warning for cell in summary.cells for warning in cell.warnings)}
    present -= {Diagnostic.BUSY_MACHINE} if summary.disturbance is not None else set()
    if doubts := [name for doubt, name in _DOUBTS.items() if doubt in present]:
        yield fill(TEXTS["doubtful"], warnings=join(doubts))
