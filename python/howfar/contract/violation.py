"""Violations: the ways in which a trial was not as requested, as ids with parameters. A single one makes the trial void.

`ViolationText` has the templates of an id. Those of the core are in `violation_texts.py`; a slice registers its own in its module
`violations`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from howfar.contract.violation_formats import UNKNOWN, Formatter, Value
from howfar.slices import collect

MAX_TEXT_CHARS = 500
"""Maximum length of a message in a violation: enough for a message, too little for a log."""
FAILED = "failed"
"""Id of an error that made a trial void; its message is the parameter `message`."""
OTHER = "other"
"""Id of a reason in an older file that fits no template; it is the parameter `text`."""
DISTURBED = "disturbed"
"""Id of a trial that was measured again because other programs disturbed it, without the program."""
NO_REASON = "no-reason"
FREE_TEXTS = frozenset({"message", "text"})
"""Parameters with sentences that the program does not interpret."""


@dataclass(frozen=True)
class ViolationText:
    """The templates of one id, with fields in the formats of `Formatter`."""

    id: str
    sentence: str
    """It follows the subject and a colon, unless it has the field `{subject}`."""
    cause: str = ""
    """The sentence without figures, for a headline. Empty: the sentence up to its first bracket, colon, semicolon or comma."""
    over_link: bool = False
    """Whether only trials over an emulated link can violate this."""
    in_older_files: bool = True
    """Whether the sentence is recognised in files that have only text."""
    older_sentences: tuple[str, ...] = ()
    """Templates of older versions, which are recognised too."""
    older_messages: str = ""
    """A regular expression of sentences in older files that are wholly the parameter `message`. Empty: there are none."""

    @property
    def cause_template(self) -> str:
        return self.cause or re.split(r" \(|[:;,] ", _without_formats(self.sentence))[0]


def _without_formats(template: str) -> str:
    """A template whose fields keep their names only, so that punctuation in it is that of the sentence."""
    return re.sub(r"\{(\w+)[^}]*\}", r"{\1}", template)


class Violation(BaseModel):
    """One way in which a trial was not as requested."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    id: str
    parameters: dict[str, Value] = Field(default_factory=dict)
    """Figures and words of the sentence; units end the names."""
    subject: str = ""
    """The host, server, replica or link that it is about. Empty: the only one of its kind."""

    @property
    def sentence(self) -> str:
        """What happened, with its figures."""
        text = violation_texts().get(self.id)
        if text is None:
            figures = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
            return self._with_subject(f"{self.id} ({figures})" if figures else self.id)
        sentence = self._fill(text.sentence)
        return sentence if "{subject}" in text.sentence else self._with_subject(sentence)

    @property
    def cause(self) -> str:
        """What happened, without figures and without the subject if the sentence can do without it."""
        text = violation_texts().get(self.id)
        if text is None:
            return self.id
        cause = self._fill(text.cause_template)
        return _shorten(cause) if self.parameters.keys() & FREE_TEXTS else cause

    @property
    def is_over_link(self) -> bool:
        text = violation_texts().get(self.id)
        return text is not None and text.over_link

    def at(self, subject: str) -> Violation:
        """The violation as one of `subject`."""
        return self.model_copy(update={"subject": f"{subject}: {self.subject}" if self.subject else subject})

    def _fill(self, template: str) -> str:
        return Formatter().vformat(template, (), {**self.parameters, "subject": self.subject})

    def _with_subject(self, sentence: str) -> str:
        return f"{self.subject}: {sentence}" if self.subject else sentence


def violation(id: str, subject: str = "", /, **parameters: Value | None) -> Violation:
    """A violation; parameters that are None are unknown, and long texts are cut off."""
    return Violation(
        id=id,
        subject=subject,
        parameters={
            name: UNKNOWN if value is None else value[:MAX_TEXT_CHARS] if isinstance(value, str) else value
            for name, value in parameters.items()
        },
    )


def sentences(violations: Iterable[Violation]) -> tuple[str, ...]:
    return tuple(each.sentence for each in violations)


def join_sentences(violations: Iterable[Violation]) -> str:
    """All sentences in one text, as run files and errors show them."""
    return "; ".join(sentences(violations))


@cache
def violation_texts() -> Mapping[str, ViolationText]:
    """The templates of all violations, by id. Collected when first needed, because slices' modules import this one."""
    from howfar.contract.violation_texts import VIOLATIONS

    texts = (*VIOLATIONS, *collect("violations", "VIOLATIONS", ViolationText))
    by_id = {text.id: text for text in texts}
    assert len(by_id) == len(texts), "each id of a violation is defined once"
    return by_id


_CLAUSE = re.compile(r"(.{12,60}?)(?: \(|[:;,] |$)")


def _shorten(message: str) -> str:
    """The first clause of a message."""
    found = _CLAUSE.match(message)
    return found[1] if found else message[:60]
