"""The warnings of a summary as lines: what, whose, and what it means."""

from __future__ import annotations

from howfar.analysis.signs import MEANING, Warning
from howfar.analysis.summary import Summary
from howfar.report.figures import only_broke, unmeasured_lines

MANY = 5
"""More names than these are counted."""


def warning_lines(summary: Summary) -> list[str]:
    """First those of the session, then those of arms (arms with the same warning together), then arms without figures."""
    found = [f"{warning.value}: {MEANING[warning]}." for warning in summary.warnings]
    arms: dict[str, list[str]] = {}
    for cell in summary.cells:
        for warning in cell.warnings:
            if warning is Warning.WIDE_INTERVAL and only_broke(summary):
                continue  # no rate is the question there
            arms.setdefault(f"{warning.value}: {MEANING[warning]}.", []).append(cell.arm)
    found += [f"{_whose(names, len(summary.cells))}: {text}" for text, names in arms.items()]
    return found + unmeasured_lines(summary)


def _whose(names: list[str], cells: int) -> str:
    """Names while they can be read at a glance, then a count."""
    if len(names) <= MANY:
        return ("; " if any(", " in name for name in names) else ", ").join(names)
    if len(names) == cells:
        return "every cell"
    return f"{len(names)} of {cells} cells"
