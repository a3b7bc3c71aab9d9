"""The document in a terminal: the first screen, and with `details` all of it except charts. Pure: text from a document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from howfar.report.document import (
    Advice,
    Answer,
    Block,
    Bullets,
    Chart,
    Code,
    Details,
    Document,
    Facts,
    Heading,
    Table,
    Text,
    Warnings,
    numbered,
    without_empty,
)
from howfar.report.layout import lay_out, wrap

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


class _Screen:
    def __init__(self, width: int, colour: bool, unicode: bool, details: bool) -> None:
        self.width, self.colour, self.unicode, self.details = width, colour, unicode, details

    def render(self, document: Document) -> str:
        parts = self._parts(without_empty(document.blocks, self._shows))
        left_out = [block.title for block in document.blocks if isinstance(block, Details)]
        if left_out and not self.details:
            parts.append(self._dimmed(self._wrap(f"More with --details: {'; '.join(left_out)}. Charts: --html.")))
        text = ""
        for part in parts:
            text += "\n".join(part) + "\n\n"
        return text.rstrip("\n") + "\n"

    def _shows(self, block: Block) -> bool:
        return not isinstance(block, Chart) and (self.details or not isinstance(block, Details))

    def _parts(self, blocks: list[Block]) -> list[list[str]]:
        """Paragraphs. A heading and the block below it are one; so are pieces of advice that follow each other."""
        parts: list[list[str]] = []
        joined = False
        before: Block | None = None
        for number, block in numbered(blocks):
            lines = self._lines(block, number)
            joined = isinstance(before, Heading) or (isinstance(before, Advice) and isinstance(block, Advice))
            if joined and parts:
                parts[-1] += lines
            elif isinstance(block, Details):
                parts += [self._paint([self._text(block.title).upper()], _BOLD), *self._parts(list(block.blocks))]
            elif lines:
                parts.append(lines)
            before = block
        return parts

    def _lines(self, block: Block, number: int) -> list[str]:
        match block:
            case Heading(text):
                return self._paint(self._wrap(text), _BOLD)
            case Text(text, quiet):
                return self._dimmed(self._wrap(text)) if quiet else self._wrap(text)
            case Bullets(lines):
                return [text for line in lines for text in self._wrap(line, first="- ", rest="  ")]
            case Answer(text):
                return self._paint(self._wrap(text), _BOLD)
            case Table():
                return self._table(block)
            case Warnings(lines):
                found = [text for line in lines for text in self._wrap(line, first="! ", rest="  ")]
                return self._paint(["Read with care"], _YELLOW) + found if found else []
            case Advice():
                return self._advice(block, number)
            case Facts(values):
                return self._facts(values)
            case Code(lines):
                return [f"  {self._text(line)}" for line in lines]
            case _:
                return []

    def _table(self, table: Table) -> list[str]:
        if not table.rows:
            return []
        title = self._paint(self._wrap(table.title), _BOLD) if table.title else []
        lines = lay_out(table if self.unicode else _in_ascii(table), self.width, brief=not self.details)
        notes = [line for note in table.notes for line in self._dimmed(self._wrap(note))]
        return [*title, *lines, *notes]

    def _advice(self, advice: Advice, number: int) -> list[str]:
        lines = self._wrap(advice.action, first=f"{number}. ", rest="   ")
        because = advice.because if self.details else _first_sentence(advice.because)
        return lines + self._dimmed(self._wrap(because, first="   ", rest="   "))

    def _facts(self, values: Mapping[str, Any], depth: int = 0) -> list[str]:
        indent = "  " * depth
        lines: list[str] = []
        for key, value in values.items():
            name = key.replace("_", " ")
            if isinstance(value, Mapping) and value:
                lines += [f"{indent}{name}:", *self._facts(value, depth + 1)]
            else:
                lines += self._wrap(f"{name}: {fact_text(key, value)}", first=indent, rest=f"{indent}  ")
        return lines

    def _text(self, text: str) -> str:
        return text if self.unicode else to_ascii(text)

    def _wrap(self, text: str, first: str = "", rest: str = "") -> list[str]:
        whole = _WHOLE.sub(lambda match: match[0].replace(" ", "\u00a0"), self._text(text))
        return [line.replace("\u00a0", " ") for line in wrap(whole, self.width, first, rest)]

    def _paint(self, lines: list[str], style: str) -> list[str]:
        return [f"{style}{line}{_END}" for line in lines] if self.colour else lines

    def _dimmed(self, lines: list[str]) -> list[str]:
        return self._paint(lines, _DIM)


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
