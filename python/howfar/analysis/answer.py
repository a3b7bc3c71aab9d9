"""The answer of a run as data: its findings in the order of their importance, and the one sentence that templates make of them.

An experiment returns findings and has its templates in `texts.py`; it builds no sentence itself. JSON and tests use the ids and
figures of findings, never the words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from howfar.findings import Finding, Texts, capital, fill, join
from howfar.stats.estimate import Part
from howfar.stats.intervals import MIN_BLOCKS

MAX_WORDS = 25
"""Maximum number of words of an answer. Findings that do not fit are in the tables."""


class Answer(Part):
    """The answer to a run's question."""

    question: str
    """Empty: an older run file."""
    sentence: str
    """At most 25 words, without brackets."""
    findings: tuple[Finding, ...]
    why: str = ""
    """The cause with its figures, at most 25 words. Empty: none is known, or there is no answer."""
    causes: tuple[Finding, ...] = ()

    @property
    def is_missing(self) -> bool:
        """Whether the run has too few blocks for an answer."""
        return any(finding.id == NOT_YET for finding in self.findings)


NOT_YET = "not-yet"
NOTHING_COMPARED = Finding(id="nothing-compared")
UNRESOLVED = "unresolved"
"""Id of a difference that the run does not resolve; the parameter `baseline` names what `subject` was compared with."""
TOO_FEW = "too-few"
"""Id of a difference of which too few measurements are good for an interval."""
COMMON_TEXTS: Texts = {
    NOT_YET: "no answer yet: this run has {blocks} of the {needed} blocks that an answer needs; each measures everything once",
    NOTHING_COMPARED.id: "no answer: nothing was measured together with the baseline",
    UNRESOLVED: "too close to call: {subject} against {baseline}",
    TOO_FEW: "too few measurements of {subject} were good",
}


_MORE = "{count} more"
"""Stands for the subjects of a clause that do not fit."""


def not_yet(blocks: int) -> Finding:
    """The only finding of a run with too few blocks: figures so far are in the tables, because they look like an answer."""
    return Finding(id=NOT_YET, parameters={"blocks": blocks, "needed": MIN_BLOCKS})


def sentence(findings: Sequence[Finding], texts: Texts) -> str:
    """One sentence of at most `MAX_WORDS` words about the first findings that fit. Empty: no findings."""
    return f"{capital(text)}." if (text := clauses(findings, texts)) else ""


def clauses(findings: Sequence[Finding], texts: Texts) -> str:
    """A sentence without its capital letter and full stop. Findings that differ in nothing but their subject share a clause."""
    templates = {**COMMON_TEXTS, **texts}

    def clause(finding: Finding, subject: str, last_id: str = "") -> str:
        kind = "next" if finding.id == last_id else f"after {last_id}"
        template = templates.get(f"{finding.id}, {kind}", templates[finding.id])
        return fill(template, subject=subject, estimate=finding.estimate, **finding.parameters)

    def extend(text: str, last_id: str, alike: Sequence[Finding], named: int) -> str:
        subjects = [finding.subject for finding in alike[:named]]
        subjects += [fill(_MORE, count=len(alike) - named)] if named < len(alike) else []
        added = clause(alike[0], join(subjects), last_id)
        return f"{text}{', ' if alike[0].id == last_id else '; '}{added}" if text else added

    text, last_id = "", ""
    for _, group in groupby(findings, lambda finding: (finding.id, clause(finding, ""))):
        alike = list(group)
        named = len(alike)
        while named > 1 and len(extend(text, last_id, alike, named).split()) > MAX_WORDS:
            named -= 1
        longer = extend(text, last_id, alike, named)
        if text and len(longer.split()) > MAX_WORDS:
            break
        text, last_id = longer, alike[0].id
        if named < len(alike):
            break
    return text


def sentences(findings: Iterable[Finding], texts: Texts) -> tuple[str, ...]:
    """A sentence for each finding."""
    return tuple(sentence([finding], texts) for finding in findings)
