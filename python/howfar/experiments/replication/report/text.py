"""A run of replication as sentences and tables in the order of a reader's questions; terminal and Markdown lay them out."""

from __future__ import annotations

import re

from howfar.analysis.summary import Summary
from howfar.experiments.replication.report import tables, words
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.report.tables import Table


def parts(summary: Summary) -> list[str | Table]:
    """Empty without findings of replication. A sentence that is the verdict is not said again."""
    findings = summary.replication
    if findings is None:
        return []
    found: list[str | Table] = []
    if table := tables.trade(findings):
        found.append(table)
    found += said(findings, summary.verdict)
    if findings.cost:
        found.append(tables.matrix(findings.cost))
        if theirs := tables.published(findings.cost):
            found.append(theirs)
    if findings.crash and findings.crash.losses:
        found += tables.losses_by_fault(findings.crash.losses)
    if findings.fallback:
        found.append(tables.fallbacks(findings.fallback))
        names = words.story_names(findings.fallback)
        found += [log_line(story.log_lines, name) for story, name in zip(findings.fallback, names, strict=True)]
    return found


SHOUTED = 480
"""Characters of a verdict in large letters: what is more stands below the chart."""


def first_sentences(verdict: str) -> tuple[str, list[str]]:
    """As many as are read at a glance, one at least; and the others."""
    sentences = re.split(r"(?<=\.) (?=[A-Z])", verdict)
    count = 1
    while count < len(sentences) and len(" ".join(sentences[: count + 1])) <= SHOUTED:
        count += 1
    return " ".join(sentences[:count]), sentences[count:]


def said(findings: ReplicationFindings, verdict: str) -> list[str]:
    """The findings' sentences, without those that the verdict says."""
    cost = findings.cost.sentences if findings.cost else ()
    crash = findings.crash.sentences if findings.crash else ()
    return [sentence for sentence in (*cost, *crash) if sentence not in verdict]


def log_line(lines: tuple[str, ...], name: str) -> str:
    """What the server itself wrote about it, or that it wrote nothing."""
    if not lines:
        return f"In its log the primary ({name}) said nothing of it."
    return f"In its log the primary ({name}) said: {' / '.join(lines)}"
