"""The document in a terminal: the first screen, and with `details` all of it except charts. Pure: text from a document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from howfar.report.document import Advice, Block, Chart, Details, Document, Heading, Table
from howfar.report.layout import lay_out, wrap
from howfar.report.text import Lines, TextRenderer

NARROWEST = 40
"""Below this nothing sensible can be laid out; lines are then longer than the terminal."""

WIDEST = 132
"""Prose and tables are not stretched beyond this."""

_ASCII = {"µ": "u", "±": "+/-", "×": "x", "–": "-", "—": "-", "…": "...", "≥": ">=", "≤": "<=", "−": "-"}

_BOLD, _DIM, _YELLOW, _END = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"

_WHOLE = re.compile(r"\[[^\]]*\]|\d %|(?:[≥≤]|[<>]=) \d")
"""Stays on one line: an interval, a number with its sign."""


def to_ascii(text: str) -> str:
    """For a terminal that cannot show more; what has no transcription becomes `?`."""
    for fancy, simple in _ASCII.items():
        text = text.replace(fancy, simple)
    return text.encode("ascii", "replace").decode("ascii")


def render(
    document: Document, width: int = 80, colour: bool = False, unicode: bool = True, details: bool = False
) -> str:
    """Lines of at most `width` characters (at least 40), ending in a newline."""
    return _Screen(max(NARROWEST, min(width, WIDEST)), colour, unicode, details).render(document)


class _Screen(TextRenderer):
    def __init__(self, width: int, colour: bool, unicode: bool, details: bool) -> None:
        self.width, self.colour, self.unicode, self.details = width, colour, unicode, details

    def render(self, document: Document) -> str:
        parts = self.paragraphs(document.blocks)
        left_out = [block.title for block in document.blocks if isinstance(block, Details)]
        if left_out and not self.details:
            parts.append(self.text(f"More with --details: {'; '.join(left_out)}. Charts: --html.", quiet=True))
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def shows(self, block: Block) -> bool:
        return not isinstance(block, Chart) and (self.details or not isinstance(block, Details))

    def joins(self, before: Block | None, block: Block) -> bool:
        return isinstance(before, Heading) or (isinstance(before, Advice) and isinstance(block, Advice))

    def heading(self, text: str, level: int) -> Lines:
        return self._paint(self._wrap(text), _BOLD)

    def title(self, text: str, level: int) -> Lines:
        return self._paint([self._text(text).upper()], _BOLD)

    def text(self, text: str, quiet: bool = False) -> Lines:
        lines = self._wrap(text)
        return self._paint(lines, _DIM) if quiet else lines

    def bullets(self, lines: Sequence[str]) -> Lines:
        return [text for line in lines for text in self._wrap(line, first="- ", rest="  ")]

    def warnings(self, lines: Sequence[str]) -> Lines:
        found = [text for line in lines for text in self._wrap(line, first="! ", rest="  ")]
        return self._paint(["Warnings"], _YELLOW) + found

    def answer(self, text: str) -> Lines:
        return self.heading(text, 1)

    def table(self, table: Table, level: int) -> Lines:
        title = self.heading(table.title, level) if table.title else []
        lines = lay_out(table if self.unicode else _in_ascii(table), self.width, brief=not self.details)
        return [*title, *lines, *(line for note in table.notes for line in self.text(note, quiet=True))]

    def advice(self, advice: Advice, number: int) -> Lines:
        lines = self._wrap(advice.action, first=f"{number}. ", rest="   ")
        because = advice.because if self.details else _first_sentence(advice.because)
        return lines + self._paint(self._wrap(because, first="   ", rest="   "), _DIM)

    def code(self, lines: Sequence[str]) -> Lines:
        return [f"  {self._text(line)}" for line in lines]

    def facts(self, values: Mapping[str, Any], depth: int = 0) -> Lines:
        indent = "  " * depth
        lines: Lines = []
        for key, value in values.items():
            name = key.replace("_", " ")
            if isinstance(value, Mapping) and value:
                lines += [f"{indent}{name}:", *self.facts(value, depth + 1)]
            else:
                lines += self._wrap(f"{name}: {fact_text(key, value)}", first=indent, rest=f"{indent}  ")
        return lines

    def _text(self, text: str) -> str:
        return text if self.unicode else to_ascii(text)

    def _wrap(self, text: str, first: str = "", rest: str = "") -> Lines:
        whole = _WHOLE.sub(lambda match: match[0].replace(" ", "\u00a0"), self._text(text))
        return [line.replace("\u00a0", " ") for line in wrap(whole, self.width, first, rest)]

    def _paint(self, lines: Lines, style: str) -> Lines:
        return [f"{style}{line}{_END}" for line in lines] if self.colour else lines


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "." if text else ""


def _in_ascii(table: Table) -> Table:
    columns = tuple(replace(each, head=to_ascii(each.head), lower=to_ascii(each.lower)) for each in table.columns)
    rows = tuple(
        tuple(replace(each, text=to_ascii(each.text), below=to_ascii(each.below)) for each in row) for row in table.rows
    )
    return replace(table, columns=columns, rows=rows)


def fact_text(key: str, value: object) -> str:
    """One fact as text; None reads "unknown"."""
    if value is None:
        # A receipt says null for "off" as well as for "cannot be determined"; only these are known to mean off.
        return "off" if key in ("tls_version", "tls_cipher", "compression") else "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple) and not any(isinstance(item, Mapping | list) for item in value):
        return ", ".join(str(item) for item in value)
    return str(value)
