"""How sure the answer of a run is, in one line below it, and the doubt that an answer of poor certainty begins with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from howfar.analysis.advice import MAX_ARMS_NAMED
from howfar.analysis.answer import COMMON_TEXTS, MAX_WORDS
from howfar.analysis.diagnostics import FEW_BLOCKS, Diagnostic, is_much_by_others
from howfar.analysis.summary import Summary
from howfar.findings import Finding, Texts, capital, fill, join, join_clauses
from howfar.report.figures import has_only_faults, ratios_differ_from_rows, shown_cells, widest_interval
from howfar.stats.intervals import Resolution, half_width, noise_floor_text, simultaneous
from howfar.store.records import ArmRole, StopReason

TEXTS: Texts = {
    # Before an answer of poor certainty.
    "probably": "probably:",
    "observed": "in this run,",
    # Without an answer.
    "missing": "Not at all yet: everything was measured too few times for intervals, so differences may be chance.",
    "resume": "howfar resume FILE",
    "resume-stopped": "howfar resume FILE --time-budget 10min",
    # How sure.
    "doubtful": "{verdict}, because of {warnings}",
    "measured": "{verdict}: everything was measured {few:?only }{most:of time}",
    "measured-unevenly": "{verdict}: everything was measured {few:?only }{fewest} to {most} times",
    "floor": "differences in throughput below {floor} may be chance",
    "very-wide": "the widest 95 % interval of a throughput ratio is beyond ±100 %",
    "ratios": "ratios are averaged block by block, so dividing the figures of two rows gives slightly different ones",
    "no-interval": "of {arms}, too few measurements were good to tell anything",
    "no-floor": "which differences may be chance is unknown, because no path was measured twice",
    "wide-floor": "which differences may be chance is unknown, because the path measured twice has too few blocks",
    "disturbed": "other programs used up to {most:.1f} of {cpus:of CPU} in {disturbed} of {known:of trial}",
    "disturbed-by": "other programs, {mostly:?mostly }{among:?among them }{program}, used up to {most:.1f} of {cpus:of CPU} in "
    "{disturbed} of {known:of trial}",
    "program": "{name}{pid:? (pid {pid})}",
    "quiet": "without the blocks of these trials, {arm} makes {estimate:fewer} {units}/s than {reference}",
    "quiet-unresolved": "without the blocks of these trials, {arm} is too close to {reference} to call",
}
_DOUBTS = {
    Diagnostic.DISTURBED: "void trials in every block",
    Diagnostic.BUSY_MACHINE: "other work on this machine",
    Diagnostic.AA_EXCLUDES_ONE: "two measurements of the same path that differ",
    Diagnostic.CONTROL_MISSED: "a control that missed a known effect",
    Diagnostic.LINK_NOT_AS_REQUESTED: "a link that was not as requested",
    Diagnostic.CLIENT_LIMITED: "a load generator at its limit",
}
"""Warnings that put the answer into question, the most serious first."""


def certainty(summary: Summary, is_about_ratios: bool = True, proofs: Iterable[str] = ()) -> str:
    """`Firm: everything was measured 8 times; differences in throughput below 4.0 % may be chance.` Without an answer, why nothing is
    sure. Empty: no trial was good.

    `is_about_ratios`: whether the answer compares throughputs. `proofs`: clauses of the experiment.
    """
    if summary.answer.is_missing:
        return TEXTS["missing"]
    if not summary.good_trials:
        return ""
    width, counts = _width(summary, is_about_ratios), _counts(summary)
    doubts, fewest, most = _doubts(summary), min(counts), max(counts)
    verdict = _verdict(summary, fewest, width)
    if doubts:
        verdict = fill(TEXTS["doubtful"], verdict=verdict, warnings=join(doubts))
    figures = {"fewest": fewest, "most": most, "few": int(fewest < FEW_BLOCKS and not has_only_faults(summary))}
    measured = fill(TEXTS["measured" if fewest == most else "measured-unevenly"], verdict=verdict, **figures)
    return join_clauses((measured, *_precision(summary, width), *proofs, *_disturbance(summary)))


def command_for_answer(summary: Summary) -> str:
    """The command that measures as much as an answer needs. Empty: there is an answer."""
    if not summary.answer.is_missing:
        return ""
    has_stopped = summary.stop in (StopReason.TIME, StopReason.BLOCKS)
    return TEXTS["resume-stopped" if has_stopped else "resume"]


def with_doubt(summary: Summary, is_about_ratios: bool = True) -> Summary:
    """The summary, whose answer begins with a doubt if its certainty is poor: `Probably: remote makes fewer queries/s.`"""
    if summary.answer.is_missing or not summary.good_trials or not any(map(_is_claim, summary.answer.findings)):
        return summary
    if not _is_poor(summary, _width(summary, is_about_ratios)):
        return summary
    sentence = _doubtful_sentence(summary)
    answer = summary.answer.model_copy(update={"sentence": sentence})
    return summary.model_copy(update={"answer": answer, "verdict": sentence})


def _width(summary: Summary, is_about_ratios: bool) -> float | None:
    """Half-width of the widest interval of a ratio. None: the answer is not about ratios, or none has an interval."""
    return widest_interval(summary) if is_about_ratios and not has_only_faults(summary) else None


def _counts(summary: Summary) -> list[int]:
    """How often each cell was measured."""
    cells = [cell for cell in shown_cells(summary) if cell.settled_after is None]
    return [cell.trials for cell in cells] or [summary.complete_blocks or summary.blocks]


def _doubtful_sentence(summary: Summary) -> str:
    """The answer with a doubt before it. Clauses that then exceed `MAX_WORDS` are left out."""
    answer = summary.answer
    doubt = TEXTS["observed" if has_only_faults(summary) else "probably"]
    clauses = f"{doubt} {_continued(answer.sentence)}".split("; ")
    while len(clauses) > 1 and len("; ".join(clauses).split()) > MAX_WORDS:
        clauses.pop()
    return f"{capital('; '.join(clauses).rstrip('.'))}."


def _is_claim(finding: Finding) -> bool:
    """Whether a finding states a difference or a figure, and not that it is unknown."""
    return finding.id not in COMMON_TEXTS and finding.verdict is not Resolution.NOT_RESOLVED


def _continued(sentence: str) -> str:
    """The sentence as a part of another. A first word with a further capital is a name and stays as it is."""
    first_word = sentence.partition(" ")[0]
    return sentence if first_word[1:] != first_word[1:].lower() else sentence[:1].lower() + sentence[1:]


_UNSTEADY = frozenset({Diagnostic.UNEVEN_CPUS, Diagnostic.NOT_STEADY, Diagnostic.CONTAMINATED_BLOCKS})
"""Warnings with which an answer is not firm."""
POOR_WIDTH = 0.5
"""Half-width of the widest interval of a ratio from which an answer is poor."""


def _verdict(summary: Summary, fewest: int, width: float | None) -> str:
    """`firm`: at least eight measurements, ratios as narrow as requested, and nothing that casts doubt. `poor`: see `_is_poor`."""
    if _is_poor(summary, width):
        return "poor"
    is_precise = (width or 0.0) <= summary.target_half_width and (width is None or summary.noise_floor is not None)
    is_firm = fewest >= FEW_BLOCKS and is_precise and summary.disturbance is None and not _warnings(summary) & _UNSTEADY
    return "firm" if is_firm else "fair"


def _is_poor(summary: Summary, width: float | None) -> bool:
    """Whether something casts doubt on the answer, other programs disturbed much of the run, or the width exceeds `POOR_WIDTH`."""
    is_disturbed = summary.disturbance is not None and summary.disturbance.is_much
    return is_disturbed or (width or 0.0) > POOR_WIDTH or bool(_doubts(summary))


def _precision(summary: Summary, width: float | None) -> Iterator[str]:
    if width is None:
        return
    if width > 1:
        yield TEXTS["very-wide"]
    elif summary.noise_floor is None:
        yield TEXTS["no-floor" if summary.aa_ratio is None else "wide-floor"]
    else:
        yield fill(TEXTS["floor"], floor=noise_floor_text(least_resolved(summary)))
    if any(map(_is_claim, summary.answer.findings)) and ratios_differ_from_rows(summary):
        yield TEXTS["ratios"]
    cells = (cell for cell in shown_cells(summary) if cell.role is ArmRole.CONTENDER)
    arms = [cell.arm for cell in cells if cell.ratio is not None and cell.ratio.low is None]
    if 0 < len(arms) <= MAX_ARMS_NAMED:
        yield fill(TEXTS["no-interval"], arms=join(arms))


def least_resolved(summary: Summary) -> float:
    """A difference that this run would have resolved: no smaller than the noise floor, nor than the half-width of an interval that
    includes 1, at the level that allows for all comparisons."""
    cells = (
        cell for cell in shown_cells(summary) if cell.role is ArmRole.CONTENDER and not cell.resolution.is_difference
    )
    widths = (half_width(simultaneous(cell.ratio, summary.claims)) or 0.0 for cell in cells if cell.ratio is not None)
    return max(summary.noise_floor or 0.0, summary.link_noise_floor or 0.0, *widths)


_MOSTLY_SHARE = 0.5
"""Share of others' CPU time from which it is mostly that of one program."""
_MAX_QUIET_RATIOS = 2
"""Maximum number of ratios that are stated without disturbed blocks."""


def _disturbance(summary: Summary) -> Iterator[str]:
    if (disturbance := summary.disturbance) is None:
        return
    figures = disturbance.figures()
    if disturbance.programs:
        first = disturbance.programs[0]
        figures["program"] = fill(TEXTS["program"], name=first.name, pid=first.pids[0] if len(first.pids) == 1 else 0)
        figures |= {"mostly": int(first.share >= _MOSTLY_SHARE), "among": int(first.share < _MOSTLY_SHARE)}
    yield fill(TEXTS["disturbed-by" if disturbance.programs else "disturbed"], **figures)
    for arm, quiet in list(disturbance.quiet_ratios.items())[:_MAX_QUIET_RATIOS]:
        name = "quiet" if quiet.resolution.is_difference else "quiet-unresolved"
        yield fill(TEXTS[name], arm=arm, estimate=quiet.ratio, reference=quiet.reference, units=summary.operation_unit)


def is_busy_by_programs(summary: Summary) -> bool:
    """Whether the count of disturbed trials explains the warning about a busy machine: other programs alone would cause it."""
    cpus, others_cpus = summary.machine_cpus, summary.others_cpus
    if summary.disturbance is None or cpus is None or others_cpus is None:
        return False
    return is_much_by_others(others_cpus, cpus)


def _doubts(summary: Summary) -> list[str]:
    said = {Diagnostic.BUSY_MACHINE} if is_busy_by_programs(summary) else set()
    warnings = _warnings(summary) - said
    return [name for doubt, name in _DOUBTS.items() if doubt in warnings]


def _warnings(summary: Summary) -> set[Diagnostic]:
    """The warnings of the session and of its cells."""
    return {*summary.warnings, *(warning for cell in summary.cells for warning in cell.warnings)}
