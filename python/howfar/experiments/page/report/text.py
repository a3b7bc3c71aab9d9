"""A run of pages as sentences and tables in the order of a reader's questions; terminal and Markdown lay them out."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import PageFindings
from howfar.experiments.page.report import tables, words
from howfar.report.tables import Table


def parts(summary: Summary) -> list[str | Table]:
    """Empty without findings about pages. A sentence that is the verdict is not said again."""
    findings = summary.pages
    if findings is None:
        return []
    found = [
        tables.first(findings),
        tables.flips(words.chief_crossings(findings)),
        *said(findings, summary.verdict),
        tables.choices(words.chief_choices(findings)),
        tables.turns(findings),
        tables.foreseen(findings),
        tables.agreement(findings),
        tables.cpu(findings, [arm for setting in words.chief(findings) for arm in words.arms_of(findings, setting)]),
        tables.published(findings),
    ]
    return [part for part in found if part]


def said(findings: PageFindings, verdict: str) -> list[str]:
    """The findings' sentences, without those that the verdict says."""
    return [sentence for sentence in findings.sentences if sentence not in verdict]
