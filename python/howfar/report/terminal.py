"""A document as text for a terminal, and the layout of its columns.

The order is made for a screen of 24 lines, which shows the last lines. A document that fits on it, with the command and the prompt,
begins with its answer. A longer one ends with its answer and what to do next; everything else, including details, comes before. The
question is always first. Pipes get the same, so that a file has what the screen had.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from howfar.report.document import Advice, Answer, Block, Cell, Chart, Column, Details, Document, Heading, Table
from howfar.report.text import Lines, Markdown
from howfar.terminal_text import one_line

GAP = "  "

PROSE = 44
"""Length of a field beyond which it is a sentence, wrapped below its row's name instead of placed in a column."""


def lay_out(table: Table, width: int, *, brief: bool = False) -> list[str]:
    """Lines no longer than `width`, as long as the names and any one column fit next to each other. `brief`: optional columns may be
    left out."""
    if any(len(cell.text) > PROSE for row in table.rows for cell in row[1:]):
        return _listed(table, width)
    columns = list(range(len(table.columns)))
    if brief and _width(_rows(table, columns)) > width:
        columns = [index for index in columns if not table.columns[index].optional]
    lines = _rows(table, columns)
    if _width(lines) <= width:
        return lines
    turned = _transposed(table, columns) if table.main else []
    if turned and _width(turned) <= width:
        return turned
    folded = _folded(table, columns, width)
    return folded if _width(folded) <= width else _listed(table, width)


_SHORTEST = 8
"""Minimum number of characters kept of a text in a narrow table, even if it then does not fit."""


def _cut(table: Table, width: int, mark: str) -> Table:
    """The table with the texts of its `cut` columns shortened so that it fits, those of the longest of these columns first."""
    wanted = {index: _column_width(table, index) for index in range(len(table.columns))}
    kept = dict(wanted)
    gaps = len(GAP) * (len(wanted) - 1)
    giving = [index for index, column in enumerate(table.columns) if column.cut]
    while giving and sum(kept.values()) + gaps > width:
        longest = max(giving, key=lambda index: kept[index])
        if kept[longest] <= _SHORTEST:
            break
        kept[longest] -= 1

    def shortened(index: int, text: str) -> str:
        room = kept[index]
        return text if len(text) <= room else text[: room - len(mark)].rstrip() + mark

    rows = tuple(
        tuple(
            replace(cell, text=shortened(index, cell.text), below=shortened(index, cell.below))
            for index, cell in enumerate(row)
        )
        for row in table.rows
    )
    return replace(table, rows=rows) if kept != wanted else table


def _width(lines: Sequence[str]) -> int:
    return max(len(line) for line in lines)


def _pairs(table: Table, index: int) -> list[tuple[str, str]]:
    """Head and fields of one column, each as two lines."""
    column = table.columns[index]
    return [(column.head, column.lower), *((row[index].text, row[index].below) for row in table.rows)]


def _column_width(table: Table, index: int) -> int:
    return max(len(text) for pair in _pairs(table, index) for text in pair)


def _rows(table: Table, columns: Sequence[int]) -> list[str]:
    widths = {index: _column_width(table, index) for index in columns}

    def both(number: int) -> list[str]:
        """The two lines of one row; an empty one is left out."""
        found = []
        for part in (0, 1):
            texts = [_pad(_pairs(table, index)[number][part], widths[index], table.columns[index]) for index in columns]
            if line := GAP.join(texts).rstrip():
                found.append(line)
        return found

    head = both(0)
    body = [line for number in range(1, len(table.rows) + 1) for line in both(number)]
    return [*head, "-" * _width([*head, *body]), *body]


def _pad(text: str, width: int, column: Column) -> str:
    return text.ljust(width) if column.left else text.rjust(width)


def _transposed(table: Table, columns: Sequence[int]) -> list[str]:
    lines: list[tuple[str, list[str]]] = []
    for index in columns:
        column, fields = table.columns[index], [row[index] for row in table.rows]
        lines.append((column.head, [field.text for field in fields]))
        if any(field.below for field in fields):
            lines.append((f"  {column.lower}", [field.below for field in fields]))
        elif column.lower:
            lines[-1] = (f"{column.head} {column.lower}", lines[-1][1])
    label = max(len(name) for name, _ in lines)
    widths = [max(len(texts[number]) for _, texts in lines) for number in range(len(table.rows))]
    found = [
        (name.ljust(label) + "".join(GAP + text.rjust(width) for text, width in zip(texts, widths, strict=True)))
        for name, texts in lines
    ]
    return [found[0], "-" * _width(found), *(line.rstrip() for line in found[1:])]


def _folded(table: Table, columns: Sequence[int], width: int) -> list[str]:
    """Lines of several tables below each other, each with as many columns as fit."""
    first, rest = columns[0], columns[1:]
    parts: list[list[int]] = []
    room = 0
    for index in rest:
        needed = len(GAP) + _column_width(table, index)
        if not parts or needed > room:
            parts.append([first])
            room = width - _column_width(table, first)
        parts[-1].append(index)
        room -= needed
    lines: list[str] = []
    for part in parts:
        lines += ([""] if lines else []) + _rows(table, part)
    return lines


def _listed(table: Table, width: int) -> list[str]:
    """Lines with short fields after the row's name, and sentences below it."""
    lines: list[str] = []
    for row in table.rows:
        named = list(zip(table.columns, row, strict=True))[1:]
        short = ", ".join(_named(column, cell) for column, cell in named if _filled(cell) and len(cell.text) <= PROSE)
        lines += wrap(f"{row[0].text}: {short}" if short else row[0].text, width, rest="  ")
        for column, cell in named:
            if len(cell.text) > PROSE:
                lines += wrap(_named(column, cell), width, first="  ", rest="    ")
    return lines


def _filled(cell: Cell) -> bool:
    return cell.text not in ("", "-")


def _named(column: Column, cell: Cell) -> str:
    return f"{column.label}{':' if column.left and column.label else ''} {cell.line}".strip()


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width` characters, broken at ASCII white space only: no-break spaces hold an interval together."""
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


NARROWEST = 40
"""Minimum width of a layout; on a narrower terminal lines are too long."""

WIDEST = 132
"""Maximum width of prose and tables."""

FIRST_SCREEN = 34
"""Maximum lines of 100 columns, without those of `Around`. If there are more, the list of details is left out, then reasons for the
advice, from the last on, then all but the first sentence of each warning."""

MOST_REASONS = 3

IN_SIGHT = 20
"""Lines of a screen of 24 that are left after the command (which may take two), the line that ends a run, and the prompt."""

_ASCII = {"µ": "u", "±": "+/-", "×": "x", "–": "-", "—": "-", "…": "...", "≥": ">=", "≤": "<=", "−": "-"}

_BOLD, _DIM, _YELLOW, _END = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"

_WHOLE = re.compile(r"\[[^\]]*\]|\d %|(?:[≥≤]|[<>]=) \d")
"""Parts that stay on one line: an interval, a number with its sign."""


def to_ascii(text: str) -> str:
    """Text for a terminal that can show only ASCII; characters without a transcription become `?`."""
    for fancy, simple in _ASCII.items():
        text = text.replace(fancy, simple)
    return text.encode("ascii", "replace").decode("ascii")


@dataclass(frozen=True)
class Around:
    """Lines around a document that do not come from the measurement."""

    question: str = ""
    files: tuple[str, ...] = ()
    """Files that were written, one per line, printed verbatim."""
    commands: tuple[str, ...] = ()
    """Commands for the next steps, one per line, printed verbatim after the advice."""

    @property
    def lines(self) -> int:
        """Number of lines, including the empty line that separates each part from the rest."""
        parts = (1 if self.question else 0, len(self.files), len(self.commands))
        return sum(count + 1 for count in parts if count)


NOTHING = Around()


def render(
    document: Document,
    width: int = 80,
    colour: bool = False,
    unicode: bool = True,
    details: bool = False,
    around: Around = NOTHING,
) -> str:
    """The document as lines of at most `width` characters (at least 40), ending in a newline."""
    return _Screen(max(NARROWEST, min(width, WIDEST)), colour, unicode, details).render(document, around)


class _Screen(Markdown):
    def __init__(self, width: int, colour: bool, unicode: bool, details: bool) -> None:
        self.width, self.colour, self.unicode, self.details = width, colour, unicode, details
        self.titles, self.reasons, self.explained = True, MOST_REASONS, True

    def render(self, document: Document, around: Around) -> str:
        text = self._whole(document, around)
        most = FIRST_SCREEN * max(1, 100 / self.width) + around.lines
        while not self.details and self.explained and text.count("\n") > most:
            if self.titles:
                self.titles = False
            elif self.reasons:
                self.reasons -= 1
            else:
                self.explained = False
            text = self._whole(document, around)
        return text

    def _whole(self, document: Document, around: Around) -> str:
        """The document in one of its two orders, see the module."""
        question = [self.text(around.question)] if around.question else []
        end = [[self._text(line) for line in lines] for lines in (around.files, around.commands)]
        files, commands = ([lines] if lines else [] for lines in end)
        more = self._more(document)
        text = _joined([*question, *self.paragraphs(document.blocks), *more, *files, *commands])
        if text.count("\n") <= IN_SIGHT:
            return text
        answer, steps, others = _parts(document.blocks)
        last = [*self.paragraphs([*answer, *steps]), *commands]
        while _joined(last).count("\n") > IN_SIGHT and self.reasons and not self.details:
            self.reasons -= 1
            last = [*self.paragraphs([*answer, *steps]), *commands]
        if _joined(last).count("\n") > IN_SIGHT:
            others, last = [*others, *steps], [*self.paragraphs(answer), *commands]
        return _joined([*question, *self.paragraphs(others), *more, *files, *last])

    def _more(self, document: Document) -> list[Lines]:
        """The line that lists what was left out. Empty: nothing."""
        left_out = [block.title for block in document.blocks if isinstance(block, Details)]
        if not left_out or self.details:
            return []
        titles = f": {one_line('; '.join(left_out))}" if self.titles else ""
        return [self.text(f"More with --details{titles}. Charts: --html.", quiet=True)]

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
        said = lines if self.explained else [_first_sentence(line) for line in lines]
        found = [text for line in said for text in self._wrap(line, first="! ", rest="  ")]
        return self._paint(["Warnings"], _YELLOW) + found

    def answer(self, text: str) -> Lines:
        return self.heading(text, 1)

    def table(self, table: Table, level: int) -> Lines:
        title = self.heading(table.title, level) if table.title else []
        table = _cut(table, self.width, "…" if self.unicode else "...")
        lines = lay_out(table if self.unicode else _in_ascii(table), self.width, brief=not self.details)
        return [*title, *lines, *(line for note in table.notes for line in self.text(note, quiet=True))]

    def advice(self, advice: Advice, number: int) -> Lines:
        lines = self._wrap(advice.action, first=f"{number}. ", rest="   ")
        if not self.details and number > self.reasons:
            return lines
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


def _joined(paragraphs: Sequence[Lines]) -> str:
    return "\n\n".join("\n".join(lines) for lines in paragraphs) + "\n"


def _parts(blocks: Sequence[Block]) -> tuple[list[Block], list[Block], list[Block]]:
    """The answer, the advice with its heading, and all other blocks."""
    answer: list[Block] = []
    steps: list[Block] = []
    others: list[Block] = []
    for block, after in zip_longest(blocks, blocks[1:]):
        advises = isinstance(block, Advice) or (isinstance(block, Heading) and isinstance(after, Advice))
        part = answer if isinstance(block, Answer) else steps if advises else others
        part.append(block)
    return answer, steps, others


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
        # A receipt has null for "off" as well as for "cannot be determined"; only these are known to mean off.
        return "off" if key in ("tls_version", "tls_cipher", "compression") else "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        nested = any(isinstance(item, Mapping | list | tuple) for item in value)
        return ("; " if nested else ", ").join(fact_text(key, item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {fact_text(name, item)}" for name, item in value.items()) or "none"
    return f"{value:,.10g}" if isinstance(value, float) else str(value)
