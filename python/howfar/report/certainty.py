"""How sure the answer of a run is, in one line below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from howfar.analysis.diagnostics import FEW_BLOCKS, Diagnostic
from howfar.analysis.disturbance import Disturbance
from howfar.analysis.summary import Summary
from howfar.findings import Texts, fill, join, note
from howfar.report.figures import floors_text, has_only_faults, widest_interval
from howfar.stats.intervals import half_width_text

TEXTS: Texts = {
    "blocks": "everything was measured {blocks:of time}",
    "few": "everything was measured only {blocks:of time}, so intervals may be too narrow",
    "width": "95 % intervals of throughput ratios are within {width}",
    "wide": "95 % intervals of throughput ratios are within {width}; the target is {wanted}",
    "very-wide": "95 % intervals of throughput ratios are wider than ±100 %",
    "floor": "differences in throughput below {floor} may be chance",
    "no-floor": "which differences may be chance is unknown, because no path was measured twice",
    "disturbed": "other programs used up to {most:.1f} of {cpus:of CPU} in {disturbed} of {known:of trial}",
    "disturbed-by": "other programs, mostly {program}, used up to {most:.1f} of {cpus:of CPU} in {disturbed} of {known:of trial}",
    "program": "{name} (pid {pid})",
    "processes": "{processes} processes of {name}",
    "quiet": "without the blocks of these trials, {arm} is {estimate:slower}",
    "doubtful": "doubtful because of {warnings}",
}
_DOUBTS = (
    Diagnostic.DISTURBED,
    Diagnostic.BUSY_MACHINE,
    Diagnostic.AA_EXCLUDES_ONE,
    Diagnostic.CONTROL_MISSED,
    Diagnostic.LINK_NOT_AS_REQUESTED,
    Diagnostic.CLIENT_LIMITED,
)
"""Warnings that put the answer into question, the most serious first."""
_DOUBT_NAMES = {
    Diagnostic.DISTURBED: "void trials in every block",
    Diagnostic.BUSY_MACHINE: "other programs on this machine",
    Diagnostic.AA_EXCLUDES_ONE: "a difference between two equal runs",
    Diagnostic.CONTROL_MISSED: "a control that missed a known effect",
    Diagnostic.LINK_NOT_AS_REQUESTED: "a link that was not as requested",
    Diagnostic.CLIENT_LIMITED: "a load generator at its limit",
}


def certainty(summary: Summary, is_about_ratios: bool = True, proofs: Iterable[str] = ()) -> str:
    """`Everything was measured 8 times; 95 % intervals of throughput ratios are within ±4.0 %; ...` Empty: there is no answer.

    `is_about_ratios`: whether the answer compares throughputs. `proofs`: clauses of the experiment.
    """
    if summary.answer.is_missing or not summary.good_trials:
        return ""
    clauses = (*_precision(summary, is_about_ratios), *proofs, *_disturbance(summary.disturbance), *_doubts(summary))
    return note("{text}", text="; ".join(clauses))


def _precision(summary: Summary, is_about_ratios: bool) -> Iterator[str]:
    blocks = summary.complete_blocks or summary.blocks
    yield fill(TEXTS["few" if blocks < FEW_BLOCKS else "blocks"], blocks=blocks)
    if not is_about_ratios or has_only_faults(summary) or (width := widest_interval(summary)) is None:
        return
    target = summary.target_half_width
    name = "very-wide" if width > 1 else "wide" if width > target else "width"
    yield fill(TEXTS[name], width=half_width_text(width), wanted=half_width_text(target))
    if summary.noise_floor is None:
        yield TEXTS["no-floor"]
    else:
        yield fill(TEXTS["floor"], floor=floors_text(summary.noise_floor, summary.link_noise_floor))


def _disturbance(disturbance: Disturbance | None) -> Iterator[str]:
    if disturbance is None:
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
    for arm, ratio in disturbance.quiet_ratios.items():
        yield fill(TEXTS["quiet"], arm=arm, estimate=ratio)


def _doubts(summary: Summary) -> Iterator[str]:
    present = {*summary.warnings, *(warning for cell in summary.cells for warning in cell.warnings)}
    present -= {Diagnostic.BUSY_MACHINE} if summary.disturbance is not None else set()
    if doubts := [_DOUBT_NAMES[doubt] for doubt in _DOUBTS if doubt in present]:
        yield fill(TEXTS["doubtful"], warnings=join(doubts))
