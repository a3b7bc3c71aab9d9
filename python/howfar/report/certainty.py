"""How sure the answer of a run is, in one line below it."""

from __future__ import annotations

from howfar.analysis.diagnostics import FEW_BLOCKS, Diagnostic
from howfar.analysis.summary import Summary
from howfar.findings import Texts, fill, join, note
from howfar.report.figures import floors_text, has_only_faults, widest_interval
from howfar.stats.intervals import half_width_text

TEXTS: Texts = {
    "blocks": "{blocks:of block} with {trials:of trial}",
    "few": "only {blocks:of block} with {trials:of trial}, so intervals may be too narrow",
    "width": "95 % intervals within {width}",
    "wide": "95 % intervals within {width}, not {wanted} as requested",
    "very-wide": "95 % intervals wider than ±100 %",
    "floor": "differences below {floor} may be chance",
    "no-floor": "which differences may be chance is unknown",
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


def certainty(summary: Summary) -> str:
    """`8 blocks with 40 trials; 95 % intervals within ±4.0 %; differences below 6.6 % may be chance.` Empty: there is no answer."""
    if summary.answer.is_missing or not summary.good_trials:
        return ""
    blocks = summary.complete_blocks or summary.blocks
    present = {*summary.warnings, *(warning for cell in summary.cells for warning in cell.warnings)}
    names = ["few" if blocks < FEW_BLOCKS else "blocks"]
    width = None if has_only_faults(summary) else widest_interval(summary)
    if width is not None:
        names.append("very-wide" if width > 1 else "wide" if width > summary.target_half_width else "width")
        names.append("no-floor" if summary.noise_floor is None else "floor")
    doubts = [_DOUBT_NAMES[doubt] for doubt in _DOUBTS if doubt in present]
    names += ["doubtful"] if doubts else []
    clauses = (
        fill(
            TEXTS[name],
            blocks=blocks,
            trials=summary.good_trials,
            width="" if width is None else half_width_text(width),
            wanted=half_width_text(summary.target_half_width),
            floor="" if summary.noise_floor is None else floors_text(summary.noise_floor, summary.link_noise_floor),
            warnings=join(doubts),
        )
        for name in names
    )
    return note("{text}", text="; ".join(clauses))
