"""Reads the reasons of void trials in files that have them as text only: format 8 and older."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from howfar.contract.violation import OTHER, Violation, violation, violation_texts
from howfar.contract.violation_formats import Value, read_field
from howfar.errors import QuantityError

_SEPARATOR = "; "
_MAX_CHARS = 2000
"""Maximum length of a reason that is read; what follows is dropped."""
_MIN_ENDING = 10
"""Minimum length of what is left of the last words of a sentence that was cut off."""
_MAX_PARTS = 3
"""Maximum number of parts of a reason that are one sentence, because the sentence itself has semicolons."""
_SUBJECT = re.compile(r"((?:host )?[\w.@-]{1,60}): (.+)", re.DOTALL)


def parse_reason(text: str) -> tuple[Violation, ...]:
    """The violations of a void trial's reason, which joins their sentences with semicolons. What fits no template keeps its text."""
    parts = text[:_MAX_CHARS].split(_SEPARATOR) if text else []
    found: list[Violation] = []
    while parts:
        for count in range(min(_MAX_PARTS, len(parts)), 0, -1):
            parsed = _parse_sentence(_SEPARATOR.join(parts[:count]))
            if parsed is None and len(parts) == count == 1:
                parsed = _parse_cut_sentence(parts[0])
            if parsed is not None or count == 1:
                found.append(parsed or violation(OTHER, text=parts[0]))
                del parts[:count]
                break
    return tuple(found)


def _parse_sentence(sentence: str) -> Violation | None:
    for id, expression in _message_patterns():
        if expression.fullmatch(sentence):
            return violation(id, message=sentence)
    for pattern in _patterns():
        if (parsed := pattern.parse(sentence)) is not None:
            return parsed
    if (found := _SUBJECT.fullmatch(sentence)) is not None:
        parsed = _parse_sentence(found[2])
        return None if parsed is None else parsed.at(found[1])
    return None


def _parse_cut_sentence(sentence: str) -> Violation | None:
    """The violation of a sentence whose end was cut off, because reasons have a maximum length."""
    for ending in sorted({pattern.ending for pattern in _patterns()}):
        for length in range(len(ending) - 1, _MIN_ENDING, -1):
            # Several endings may begin alike.
            if sentence.endswith(ending[:length]) and (parsed := _parse_sentence(sentence + ending[length:])):
                return parsed
    return None


@dataclass(frozen=True)
class _Pattern:
    """What recognises the sentences of one template."""

    id: str
    ending: str
    """The words after the last figure."""
    expression: re.Pattern[str]
    converters: Mapping[str, Callable[[str], Value]]

    def parse(self, sentence: str) -> Violation | None:
        if (found := self.expression.fullmatch(sentence)) is None:
            return None
        try:
            values = {name: self.converters[name](value) for name, value in found.groupdict().items()}
        except (QuantityError, ValueError):
            return None
        return violation(self.id, str(values.pop("subject", "")), **values)


@cache
def _message_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """By id: what recognises sentences that are messages as a whole."""
    texts = (text for text in violation_texts().values() if text.older_messages)
    return tuple((text.id, re.compile(text.older_messages, re.DOTALL)) for text in texts)


@cache
def _patterns() -> tuple[_Pattern, ...]:
    """The patterns of all templates. The ones with the most words come first, because others may fit the same sentence."""
    templates = [
        (text.id, template)
        for text in violation_texts().values()
        for template in ((text.sentence,) if text.in_older_files else ()) + text.older_sentences
    ]
    templates.sort(key=lambda each: -sum(len(literal) for literal, *_ in string.Formatter().parse(each[1])))
    return tuple(_pattern(id, template) for id, template in templates)


def _pattern(id: str, template: str) -> _Pattern:
    expression, ending, converters = "", "", dict[str, Callable[[str], Value]]()
    for literal, name, form, conversion in string.Formatter().parse(template):
        expression += re.escape(literal)
        if not name:
            ending = literal
            continue
        field, converter = read_field(name, form or "", conversion)
        expression += f"(?P={name})" if name in converters else field.replace("(", f"(?P<{name}>", 1)
        converters[name] = converter
    return _Pattern(id, ending, re.compile(expression, re.DOTALL), converters)
