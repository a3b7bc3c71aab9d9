"""The answer of a run as data: its findings in the order of their importance, and the one sentence that templates make of them.

An experiment returns findings and has its templates in `texts.py`; it builds no sentence itself. JSON and tests use the ids and
figures of findings, never the words.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from pydantic import Field

from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, Resolution
from howfar.units import format_duration_ns, spoken_rate

MAX_WORDS = 25
"""Maximum number of words of an answer. Findings that do not fit are in the tables."""

Texts = Mapping[str, str]
"""Templates by id of a finding; `ID, next` is the template of a finding that follows one with the same id, and `ID, after OTHER` of
one that follows the id `OTHER`. Fields are `{subject}`, `{estimate}` and the finding's parameters, in the formats of `_Formatter`."""


class Finding(Part):
    """One thing that a run shows."""

    id: str
    subject: str = ""
    """The arm or the level of a factor that it is about."""
    estimate: Estimate | None = None
    verdict: Resolution | None = None
    """What the interval of a ratio shows. None: nothing is compared."""
    parameters: dict[str, str | int | float] = Field(default_factory=dict)


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
COMMON_TEXTS: Texts = {
    NOT_YET: "no answer yet: this run has {blocks:of block}, and an answer needs {needed}",
    NOTHING_COMPARED.id: "no answer: no block has both the baseline and another arm",
    UNRESOLVED: "this run cannot tell {subject} from {baseline}",
}


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

    def extend(text: str, last_id: str, alike: Sequence[Finding]) -> str:
        added = clause(alike[0], join([finding.subject for finding in alike]), last_id)
        return f"{text}{', ' if alike[0].id == last_id else '; '}{added}" if text else added

    text, last_id = "", ""
    for _, group in groupby(findings, lambda finding: (finding.id, clause(finding, ""))):
        alike = list(group)
        while len(alike) > 1 and len(extend(text, last_id, alike).split()) > MAX_WORDS:
            alike.pop()
        longer = extend(text, last_id, alike)
        if text and len(longer.split()) > MAX_WORDS:
            break
        text, last_id = longer, alike[0].id
    return text


def sentences(findings: Iterable[Finding], texts: Texts) -> tuple[str, ...]:
    """A sentence for each finding."""
    return tuple(sentence([finding], texts) for finding in findings)


def note(template: str, **figures: Any) -> str:
    """A template with its figures as a sentence."""
    return f"{capital(fill(template, **figures))}."


def fill(template: str, **figures: Any) -> str:
    """A template with its figures in the formats of `_Formatter`."""
    return _Formatter().format(template, **figures)


def capital(text: str) -> str:
    """The text with a capital first letter. A name like `synchronous_commit` stays as it is."""
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def join(names: Sequence[str], last: str = "and") -> str:
    """Nothing, `a`, `a and b`, `a, b and c`. `last`: the word before the last name."""
    return f" {last} ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


class _Formatter(string.Formatter):
    """Formats of figures in a sentence, which has no intervals.

    Of a ratio: `slower` (`2.7 times slower`, `16 % faster`), `fewer` of a number, `more` of a quantity. Of others: `n` two significant
    digits or whole thousands, `table` the digits of a table, `count` these without decimals of a whole number, `share` per cent,
    `upper` per cent of an upper limit, rounded up, `ms` and `us` with their unit, `time` nanoseconds as a duration, `rate` bits per
    second, `of round-trip` a number of things, `of crash crashes` with a plural that is not regular. `{flag:?perhaps }` is that text
    if the flag is set, else nothing.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        number = value.value if isinstance(value, Estimate) else value
        if format_spec.startswith("?"):
            return format_spec[1:] if value else ""
        if format_spec.startswith("of "):
            noun, *plural = (word.replace("-", " ") for word in format_spec.removeprefix("of ").split())
            return f"{number:,} {noun if number == 1 else plural[0] if plural else noun + 's'}"
        form = _FORMATS.get(format_spec)
        return form(number) if form is not None else str(super().format_field(number, format_spec))


def _change(ratio: float, less: str, more: str) -> str:
    """A ratio in words: a factor from 2 on, else per cent."""
    factor, word = (1 / ratio, less) if ratio < 1 else (ratio, more)
    if factor >= 2:
        return f"{factor:.{1 if factor < 10 else 0}f} times {word}"
    return f"{_number(abs(ratio - 1) * 100)} % {word}"


def _number(value: float) -> str:
    """`0.43`, `8.8`, `12,000`: as many digits as a sentence needs."""
    if isinstance(value, int) or abs(value) >= 99.5:
        return f"{round(value):,}"
    return f"{value:.2g}"


def table_number(value: float) -> str:
    """Three to four significant digits, thousands grouped: `27,862`, `34.9`, `2.08`, `0.0412`."""
    size = abs(value)
    if size >= 1 or size == 0:
        return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"
    return f"{value:.3g}"


_FORMATS = {
    "slower": lambda ratio: _change(ratio, "slower", "faster"),
    "fewer": lambda ratio: _change(ratio, "fewer", "more"),
    "more": lambda ratio: _change(ratio, "less", "more"),
    "n": _number,
    "table": table_number,
    "count": lambda value: f"{value:,.0f}" if value == int(value) else table_number(value),
    "upper": lambda share: f"{math.ceil(round(share * 100, 6))} %",
    "share": lambda share: f"{_number(share * 100)} %",
    "ms": lambda ms: f"{_number(ms)} ms",
    "us": lambda us: f"{_number(us)} µs",
    "time": lambda ns: re.sub(r"(?<=\d)(?=[a-z])", " ", format_duration_ns(ns)).replace("us", "µs"),
    "rate": spoken_rate,
}
