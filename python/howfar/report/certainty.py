"""How sure the answer of a run is, in one line below it, and the doubt that an answer of poor certainty begins with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from howfar.analysis.advice import MAX_ARMS_NAMED
from howfar.analysis.answer import COMMON_TEXTS, MAX_WORDS
from howfar.analysis.cells import CellSummary
from howfar.analysis.diagnostics import FEW_BLOCKS, MAX_STEAL_SHARE, Diagnostic, is_much_by_others
from howfar.analysis.disturbance import MUCH_DISTURBED_SHARE
from howfar.analysis.summary import Summary
from howfar.findings import Finding, capital, fill, join, join_clauses
from howfar.other_programs import program_name
from howfar.report.figures import (
    baseline_name,
    compared_cells,
    floors_text,
    has_only_faults,
    ratios_differ_from_rows,
    share,
    shown_cells,
    void_cause,
    widest_interval,
)
from howfar.report.texts import CERTAINTY, DOUBTS, WARNINGS
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, half_width, noise_floor_text, simultaneous
from howfar.store.records import ArmRole, StopReason


def certainty(summary: Summary, is_about_ratios: bool = True, proofs: Iterable[str] = ()) -> str:
    """`Firm: everything was measured 8 times; differences in throughput below 4.0 % may be chance.` Without an answer, why nothing is
    sure. Empty: no trial was good.

    `is_about_ratios`: whether the answer compares throughputs. `proofs`: clauses of the experiment.
    """
    if summary.answer.is_missing:
        return join_clauses((CERTAINTY["missing"], *_busy(summary), *_unused(summary), *_disturbance(summary)))
    if not summary.good_trials:
        return ""
    width, counts = _width(summary, is_about_ratios), _counts(summary)
    doubts, fewest, most = _doubts(summary), min(counts), max(counts)
    verdict = _verdict(summary, fewest, width)
    figures = {"fewest": fewest, "most": most, "few": int(fewest < FEW_BLOCKS and not has_only_faults(summary))}
    measured = fill(CERTAINTY["measured" if fewest == most else "measured-unevenly"], **figures)
    start = fill(CERTAINTY["doubtful" if doubts else "sure"], verdict=verdict, warnings=join(doubts), measured=measured)
    return join_clauses((start, *_precision(summary, width), *proofs, *_unused(summary), *_disturbance(summary)))


def command_for_answer(summary: Summary) -> str:
    """The command that measures as much as an answer needs. Empty: there is an answer."""
    if not summary.answer.is_missing:
        return ""
    return fill(CERTAINTY["resume-stopped" if summary.stop in _ENDED else "resume"], minutes=more_minutes(summary))


_ENDED = (StopReason.TIME, StopReason.BLOCKS)
"""Ends of a run that only more time continues."""
_BUSY = frozenset({Diagnostic.BUSY_MACHINE, Diagnostic.DISTURBED})
"""Warnings that mean that other programs are to be stopped, where it is not known how many trials they disturbed."""
_MIN_MORE_MINUTES = 10
_RESERVE, _PREPARATION_S = 1.5, 60
"""A resumed run is given this multiple of the time that the missing blocks take at the pace so far, and this time to prepare."""


def more_minutes(summary: Summary) -> int:
    """Minutes in which a run that has ended most probably measures the blocks that an answer lacks, in tens."""
    needed_s = 0 if summary.missing_s is None else _RESERVE * summary.missing_s + _PREPARATION_S
    return max(_MIN_MORE_MINUTES, math.ceil(needed_s / 600) * 10)


def what_answers(summary: Summary, remaining: str = "") -> str:
    """What to do for an answer, before the command: `For an answer, first stop other programs, such as cargo (pid 4711); then measure
    for up to 10 more minutes`. `remaining`: how long a run that has not ended continues. Empty: unknown."""
    rest = fill(CERTAINTY["remaining"], remaining=remaining) if remaining else CERTAINTY["rest-of-time"]
    more = fill(CERTAINTY["more-time"], minutes=more_minutes(summary), enough=summary.missing_s is not None)
    duration = more if summary.stop in _ENDED else rest
    return fill(
        CERTAINTY["to-continue" if summary.stop is None else "to-answer"],
        quiet=before_measuring(summary),
        duration=duration,
    )


def before_measuring(summary: Summary) -> str:
    """What to do about other programs before this is measured again. Empty: they hardly disturbed it."""
    disturbance, unused = summary.disturbance, summary.unused
    if not _is_disturbed(summary):
        return ""
    programs = [program for part in (disturbance, unused) if part is not None for program in part.programs]
    are_known = summary.others_cpus is not None if disturbance is None else disturbance.are_seen
    if not programs and are_known:
        return CERTAINTY["wait-for-quiet"]  # the kernel or short-lived processes used the CPUs
    named = f", such as {program_name(programs[0].name, *programs[0].pids)}" if programs else ""
    return fill(CERTAINTY["stop-programs"], named=named)


def _is_disturbed(summary: Summary) -> bool:
    """Whether other programs disturbed a large part of the trials, or, where that is not known, a warning says that they did."""
    disturbance, unused = summary.disturbance, summary.unused
    if unused is not None and unused.programs and unused.repeated + unused.left_out >= MUCH_DISTURBED_SHARE * unused.of:
        return True
    return bool(_warnings(summary) & _BUSY) if disturbance is None else disturbance.is_much


def with_doubt(summary: Summary, is_about_ratios: bool = True) -> Summary:
    """The summary, whose answer begins with a doubt if its certainty is poor: `Uncertain: remote makes fewer queries/s.`"""
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
    doubt = CERTAINTY["observed" if has_only_faults(summary) else "uncertain"]
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
        yield _very_wide(summary)
    elif summary.noise_floor is None:
        yield CERTAINTY["no-floor" if summary.aa_ratio is None else "wide-floor"]
    else:
        yield _close_calls(summary)
    if any(map(_is_claim, summary.answer.findings)) and ratios_differ_from_rows(summary):
        yield CERTAINTY["ratios"]
    cells = (cell for cell in shown_cells(summary) if cell.role is ArmRole.CONTENDER)
    arms = [cell.arm for cell in cells if cell.ratio is not None and cell.ratio.low is None]
    if 0 < len(arms) <= MAX_ARMS_NAMED:
        yield fill(CERTAINTY["no-interval"], arms=join(arms), cause=void_cause(summary))


def _very_wide(summary: Summary) -> str:
    """`tcp may make anything from 0.041 to 1.8 times the queries/s of socket`."""
    cell = max(compared_cells(summary), key=lambda cell: half_width(cell.ratio) or 0.0 if cell.ratio else 0.0)
    assert cell.ratio is not None, "a compared cell has a ratio"
    names = {"arm": cell.arm, "baseline": baseline_name(summary), "units": summary.operation_unit}
    return fill(CERTAINTY["very-wide"], low=cell.ratio.low, high=cell.ratio.high, **names)


def least_resolved(summary: Summary) -> float:
    """A difference that this run would have resolved: no smaller than the noise floor, nor than the half-width of an interval that
    includes 1, at the level that allows for all comparisons."""
    cells = (
        cell for cell in shown_cells(summary) if cell.role is ArmRole.CONTENDER and not cell.resolution.is_difference
    )
    widths = (
        half_width(simultaneous(cell.ratio, summary.comparisons)) or 0.0 for cell in cells if cell.ratio is not None
    )
    return max(summary.noise_floor or 0.0, summary.link_noise_floor or 0.0, *widths)


def _close_calls(summary: Summary) -> str:
    """`Differences in throughput below 4.0 % are too close to call: ...` Arms that need a larger margin than some difference
    that is resolved are named with it, so that no result is below the stated difference."""
    cells = [cell for cell in shown_cells(summary) if cell.role is ArmRole.CONTENDER and cell.ratio is not None]
    smallest = min((_difference(cell.ratio) for cell in cells if cell.resolution.is_difference), default=math.inf)
    margins = {
        cell.arm: half_width(simultaneous(cell.ratio, summary.comparisons)) or 0.0
        for cell in cells
        if cell.ratio is not None and not cell.resolution.is_difference
    }
    wide = {arm: margin for arm, margin in margins.items() if margin > smallest}
    floor, link_floor = summary.noise_floor or 0.0, summary.link_noise_floor or 0.0
    most = max([floor, link_floor, *(margin for arm, margin in margins.items() if arm not in wide)])
    figures = {
        "floor": floors_text(floor, link_floor) if link_floor > smallest else noise_floor_text(most),
        "reason": fill(
            CERTAINTY["same-path" if most <= max(floor, link_floor) else "chance"], comparisons=summary.comparisons
        ),
    }
    if not wide:
        return fill(CERTAINTY["floor"], **figures)
    names = fill(WARNINGS["some cells"], count=len(wide), cells=len(cells))
    if len(wide) <= MAX_ARMS_NAMED:
        names = "; ".join(wide) if any(", " in arm for arm in wide) else join(list(wide))
    return fill(CERTAINTY["floor-of-arms"], **figures, arms=names, most=noise_floor_text(max(wide.values())))


def _difference(ratio: Estimate | None) -> float:
    """The distance of a ratio from 1, as a share."""
    return 0.0 if ratio is None else math.expm1(abs(math.log(ratio.value)))


_MOSTLY_SHARE = 0.5
"""Share of others' CPU time from which it is mostly that of one program."""
_MAX_QUIET_RATIOS = 2
"""Maximum number of ratios that are stated without disturbed blocks."""


def _unused(summary: Summary) -> Iterator[str]:
    """Which program disturbed trials that do not count."""
    if (unused := summary.unused) is None or not unused.programs:
        return
    first = unused.programs[0]
    fate = CERTAINTY["out" if unused.left_out else "again"]
    yield fill(
        CERTAINTY["unused"],
        program=program_name(first.name, *first.pids),
        most=first.max_cpus,
        cpus=unused.machine_cpus or 1,
        trials=first.trials,
        of=unused.of,
        fate=fill(fate, one=first.trials == 1, several=first.trials > 1),
    )


def _disturbance(summary: Summary) -> Iterator[str]:
    if (disturbance := summary.disturbance) is None:
        return
    figures = disturbance.figures()
    if disturbance.programs:
        first = disturbance.programs[0]
        figures["program"] = program_name(first.name, *first.pids)
        figures |= {"mostly": int(first.share >= _MOSTLY_SHARE), "among": int(first.share < _MOSTLY_SHARE)}
    yield fill(CERTAINTY["disturbed-by" if disturbance.programs else "disturbed"], **figures)
    for arm, quiet in list(disturbance.quiet_ratios.items())[:_MAX_QUIET_RATIOS]:
        name = "quiet" if quiet.resolution.is_difference else "quiet-unresolved"
        yield fill(
            CERTAINTY[name], arm=arm, estimate=quiet.ratio, reference=quiet.reference, units=summary.operation_unit
        )


def _busy(summary: Summary) -> Iterator[str]:
    """That the machine was busy, where no count of disturbed trials says so."""
    if summary.disturbance is None and Diagnostic.BUSY_MACHINE in summary.warnings:
        steal = stolen(summary)
        yield fill(CERTAINTY["busy"], steal=steal, programs=not steal)


def stolen(summary: Summary) -> str:
    """The share of CPU time that went to other guests, if it is enough to call the machine busy; else empty."""
    return share(steal) if (steal := summary.steal_share or 0.0) >= MAX_STEAL_SHARE else ""


def is_busy_by_programs(summary: Summary) -> bool:
    """Whether the count of disturbed trials explains the warning about a busy machine: other programs alone would cause it."""
    cpus, others_cpus = summary.machine_cpus, summary.others_cpus
    if summary.disturbance is None or cpus is None or others_cpus is None:
        return False
    return is_much_by_others(others_cpus, cpus)


def _doubts(summary: Summary) -> list[str]:
    said = {Diagnostic.BUSY_MACHINE} if is_busy_by_programs(summary) else set()
    warnings = _warnings(summary) - said
    if not any(map(_has_other_link, summary.cells)):
        warnings -= {Diagnostic.LINK_NOT_AS_REQUESTED}
    steal = stolen(summary)
    return [fill(name, steal=steal, programs=not steal) for doubt, name in DOUBTS.items() if doubt in warnings]


def _has_other_link(cell: CellSummary) -> bool:
    """Whether a cell's link was not as requested, and this changes its figure by more than the interval of its ratio tells, or by an
    unknown amount."""
    if Diagnostic.LINK_NOT_AS_REQUESTED not in cell.warnings:
        return False
    width = None if cell.ratio is None else half_width(cell.ratio)
    if width is None or cell.scatter is None or cell.scatter.shift is None:
        return True
    return abs(cell.scatter.shift + (cell.scatter.late or 0.0)) > width


def _warnings(summary: Summary) -> set[Diagnostic]:
    """The warnings of the session and of its cells."""
    return {*summary.warnings, *(warning for cell in summary.cells for warning in cell.warnings)}
