"""A document as text for a terminal, and the layout of its columns.

The order is designed for a screen of 24 lines, on which the last lines stay visible. A document that fits on it, together with the
command and the prompt, begins with its answer. A longer one ends with its answer and the next steps; everything else, including
details, comes before. The question is always first. Output to a pipe has the same order.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from howfar.contract.server_receipt import OFF_IF_NONE
from howfar.findings import fill
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Heading,
    Table,
    split_blocks,
)
from howfar.report.text import Lines, Markdown
from howfar.report.texts import SCREEN, SEPARATOR
from howfar.terminal_text import one_line

COLUMN_GAP = "  "

MAX_FIELD_LENGTH = 44
"""Length of a field beyond which it counts as a sentence and is wrapped below its row's name instead of placed in a column."""


def lay_out(table: Table, width: int, *, brief: bool = False) -> list[str]:
    """Lay out the table in lines of at most `width`, provided that the first column and any other column fit next to each other.
    `brief`: optional columns may be left out."""
    if any(len(cell.text) > MAX_FIELD_LENGTH for row in table.rows for cell in row[1:]):
        return _listed_lines(table, width)
    columns = list(range(len(table.columns)))
    if brief and _max_width(_table_lines(table, columns)) > width:
        columns = [index for index in columns if not table.columns[index].optional]
    lines = _table_lines(table, columns)
    if _max_width(lines) <= width:
        return lines
    transposed = _transposed_lines(table, columns) if table.main else []
    if transposed and _max_width(transposed) <= width:
        return transposed
    folded = _folded_lines(table, columns, width)
    return folded if _max_width(folded) <= width else _listed_lines(table, width)


_MIN_CUT_LENGTH = 8
"""Minimum number of characters to which a text is cut, even if the table then does not fit."""


def _cut_to_width(table: Table, width: int, mark: str) -> Table:
    """The table with the texts of its `cut` columns shortened so that it fits. The widest of these columns is shortened first."""
    wanted_widths = {index: _column_width(table, index) for index in range(len(table.columns))}
    kept_widths = dict(wanted_widths)
    gaps = len(COLUMN_GAP) * (len(wanted_widths) - 1)
    cuttable = [index for index, column in enumerate(table.columns) if column.can_be_shortened]
    while cuttable and sum(kept_widths.values()) + gaps > width:
        longest = max(cuttable, key=lambda index: kept_widths[index])
        if kept_widths[longest] <= _MIN_CUT_LENGTH:
            break
        kept_widths[longest] -= 1

    def shorten(index: int, text: str) -> str:
        length = kept_widths[index]
        return text if len(text) <= length else text[: length - len(mark)].rstrip() + mark

    rows = tuple(
        tuple(
            replace(cell, text=shorten(index, cell.text), below=shorten(index, cell.below))
            for index, cell in enumerate(row)
        )
        for row in table.rows
    )
    return replace(table, rows=rows) if kept_widths != wanted_widths else table


def _max_width(lines: Sequence[str]) -> int:
    return max(len(line) for line in lines)


def _head_and_fields(table: Table, index: int) -> list[tuple[str, str]]:
    """Head and fields of one column, each as two lines."""
    column = table.columns[index]
    return [(column.head, column.lower), *((row[index].text, row[index].below) for row in table.rows)]


def _column_width(table: Table, index: int) -> int:
    return max(len(text) for pair in _head_and_fields(table, index) for text in pair)


def _table_lines(table: Table, columns: Sequence[int]) -> list[str]:
    widths = {index: _column_width(table, index) for index in columns}

    def lines_of_row(row_number: int) -> list[str]:
        """The two lines of one row; an empty line is left out."""
        row_lines = []
        for line_index in (0, 1):
            texts = [
                _pad(_head_and_fields(table, index)[row_number][line_index], widths[index], table.columns[index])
                for index in columns
            ]
            if line := COLUMN_GAP.join(texts).rstrip():
                row_lines.append(line)
        return row_lines

    head = lines_of_row(0)
    body = [line for row_number in range(1, len(table.rows) + 1) for line in lines_of_row(row_number)]
    return [*head, "-" * _max_width([*head, *body]), *body]


def _pad(text: str, width: int, column: Column) -> str:
    return text.ljust(width) if column.left_aligned else text.rjust(width)


def _transposed_lines(table: Table, columns: Sequence[int]) -> list[str]:
    lines: list[tuple[str, list[str]]] = []
    for index in columns:
        column, fields = table.columns[index], [row[index] for row in table.rows]
        lines.append((column.head, [field.text for field in fields]))
        if any(field.below for field in fields):
            lines.append((f"  {column.lower}", [field.below for field in fields]))
        elif column.lower:
            lines[-1] = (f"{column.head} {column.lower}", lines[-1][1])
    label_width = max(len(name) for name, _ in lines)
    widths = [max(len(texts[row_index]) for _, texts in lines) for row_index in range(len(table.rows))]
    text_lines = [
        (
            name.ljust(label_width)
            + "".join(COLUMN_GAP + text.rjust(width) for text, width in zip(texts, widths, strict=True))
        )
        for name, texts in lines
    ]
    return [text_lines[0], "-" * _max_width(text_lines), *(line.rstrip() for line in text_lines[1:])]


def _folded_lines(table: Table, columns: Sequence[int], width: int) -> list[str]:
    """The table split into several tables below each other, each with as many columns as fit. All begin with the columns that tell
    its rows apart."""
    keys = next((count for count in range(1, _MAX_KEYS + 1) if _are_distinct(table, columns[:count])), 1)
    first, rest = columns[:keys], columns[keys:]
    first_width = sum(_column_width(table, index) for index in first) + len(COLUMN_GAP) * (keys - 1)
    parts: list[list[int]] = []
    space_left = 0
    for index in rest:
        column_width = len(COLUMN_GAP) + _column_width(table, index)
        if not parts or column_width > space_left:
            parts.append([*first])
            space_left = width - first_width
        parts[-1].append(index)
        space_left -= column_width
    lines: list[str] = []
    for part in parts:
        lines += ([""] if lines else []) + _table_lines(table, part)
    return lines


_MAX_KEYS = 3
"""Maximum number of columns that are repeated."""


def _are_distinct(table: Table, columns: Sequence[int]) -> bool:
    rows = [tuple(row[index].line for index in columns) for row in table.rows]
    return len(set(rows)) == len(rows)


def _listed_lines(table: Table, width: int) -> list[str]:
    """The table as a list: for each row, its short fields after its name, and its sentences below."""
    lines: list[str] = []
    for row in table.rows:
        columns_and_cells = list(zip(table.columns, row, strict=True))[1:]
        short_fields = ", ".join(
            _labelled(column, cell)
            for column, cell in columns_and_cells
            if _is_filled(cell) and len(cell.text) <= MAX_FIELD_LENGTH
        )
        lines += wrap(f"{row[0].text}: {short_fields}" if short_fields else row[0].text, width, rest="  ")
        for column, cell in columns_and_cells:
            if len(cell.text) > MAX_FIELD_LENGTH:
                lines += wrap(_labelled(column, cell), width, first="  ", rest="    ")
    return lines


def _is_filled(cell: Cell) -> bool:
    return cell.text not in ("", "-")


def _labelled(column: Column, cell: Cell) -> str:
    return f"{column.label}{':' if column.left_aligned and column.label else ''} {cell.line}".strip()


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width` characters, broken only at ASCII white space, so that no-break spaces keep an interval on one line."""
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


MIN_WIDTH = 40
"""Minimum width of a layout; on a narrower terminal lines are too long."""

MAX_WIDTH = 132
"""Maximum width of prose and tables."""

FIRST_SCREEN = 36
"""Maximum number of lines of the first screen at a width of 100, without those of `Surroundings`. If there are more, these are left
out in turn: the list of details, the reasons for advice from the last one on, and all but the first sentence of each warning."""

MAX_REASONS = 3

MAX_NOTE_LINES = 3
"""Maximum number of lines below a table of the first screen."""

VISIBLE_LINES = 20
"""Lines of a screen of 24 that remain after the command (up to two lines), the last line of a run, and the prompt."""

_ASCII = {
    "·": "-",
    "µ": "u",
    "±": "+/-",
    "×": "x",
    "÷": "/",
    "–": "-",
    "—": "-",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "−": "-",
}

_BOLD, _DIM, _YELLOW, _END = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"

_SENTENCE_END = re.compile(r"(?<=\.) ")

_UNBREAKABLE = re.compile(r"\[[^\]]*\]|\d (?:%|[mµ]?s\b|[kMG]b/s)|(?:[≥≤]|[<>]=) \d")
"""Texts that must stay on one line: an interval, and a number with its sign or its unit."""


def to_ascii(text: str) -> str:
    """Text for a terminal that can show only ASCII; characters without a transcription become `?`."""
    for character, replacement in _ASCII.items():
        text = text.replace(character, replacement)
    return text.encode("ascii", "replace").decode("ascii")


@dataclass(frozen=True)
class Surroundings:
    """Lines around a document that do not come from the measurement."""

    files: tuple[str, ...] = ()
    """Files that were written, one per line, printed verbatim."""
    commands: tuple[str, ...] = ()
    """Commands for the next steps, one per line, printed verbatim after the advice."""

    @property
    def lines(self) -> int:
        """Number of lines, including the empty line that separates each part from the rest."""
        parts = (len(self.files), len(self.commands))
        return sum(count + 1 for count in parts if count)


NO_SURROUNDINGS = Surroundings()


def render(
    document: Document,
    width: int = 80,
    colour: bool = False,
    unicode: bool = True,
    details: bool = False,
    surroundings: Surroundings = NO_SURROUNDINGS,
) -> str:
    """The document as lines of at most `width` characters (at least 40), ending in a newline."""
    return _Screen(max(MIN_WIDTH, min(width, MAX_WIDTH)), colour, unicode, details).render(document, surroundings)


class _Screen(Markdown):
    def __init__(self, width: int, colour: bool, unicode: bool, details: bool) -> None:
        self.width, self.colour, self.unicode, self.details = width, colour, unicode, details
        self.lists_titles, self.max_reasons, self.explains_warnings = True, MAX_REASONS, True
        self.shortens_notes = False

    def render(self, document: Document, surroundings: Surroundings) -> str:
        self.shortens_notes = bool(self._omitted_line(document))
        text = self._render_all(document, surroundings)
        max_lines = FIRST_SCREEN * max(1, 100 / self.width) + surroundings.lines
        while not self.details and self.explains_warnings and text.count("\n") > max_lines:
            if self.lists_titles:
                self.lists_titles = False
            elif self.max_reasons:
                self.max_reasons -= 1
            else:
                self.explains_warnings = False
            text = self._render_all(document, surroundings)
        return text

    def _render_all(self, document: Document, surroundings: Surroundings) -> str:
        """The document in one of the two orders that the module's docstring describes."""
        question = self._opening(document)
        file_and_command_lines = [
            [self._to_charset(line) for line in lines] for lines in (surroundings.files, surroundings.commands)
        ]
        files, commands = ([lines] if lines else [] for lines in file_and_command_lines)
        more_lines = self._omitted_line(document)
        text = _join_paragraphs([*question, *self.paragraphs(document.blocks), *more_lines, *files, *commands])
        if text.count("\n") <= VISIBLE_LINES:
            return text
        answer, steps, others = split_blocks(document.blocks)
        asked = self.text(one_line(document.question), quiet=True) if document.question and answer else []

        def last(blocks: Sequence[Block]) -> list[Lines]:
            """The last paragraphs, with the question once more, because the first lines are out of sight."""
            paragraphs = self.paragraphs(blocks)
            return [[*asked, *paragraphs[0]], *paragraphs[1:], *commands] if paragraphs else commands

        last_paragraphs = last([*answer, *steps])
        while _join_paragraphs(last_paragraphs).count("\n") > VISIBLE_LINES and self.max_reasons and not self.details:
            self.max_reasons -= 1
            last_paragraphs = last([*answer, *steps])
        if steps and _join_paragraphs(last_paragraphs).count("\n") > VISIBLE_LINES:
            others, last_paragraphs = [*others, *steps], last(answer)
            if answer:
                last_paragraphs[0] = [*last_paragraphs[0], *self._steps_above(steps)]
        return _join_paragraphs([*question, *self.paragraphs(others), *more_lines, *files, *last_paragraphs])

    def _steps_above(self, steps: Sequence[Block]) -> Lines:
        """Where the steps are that stand before the answer."""
        actions = [block.action for block in steps if isinstance(block, AdviceBlock)]
        text = fill(SCREEN["steps above"], count=len(actions), first=_first_sentence(one_line(actions[0])).rstrip(".:"))
        label = f"{SCREEN['what now']}  "
        return self._wrap(text, first=label, rest=" " * len(label))

    def _opening(self, document: Document) -> list[Lines]:
        """The question, and what was measured, when and on what. Empty: the document has none."""
        lines = self.text(one_line(document.question)) if document.question else []
        for line in self._setting_lines(one_line(document.setting)) if document.setting else []:
            lines += self.text(line, quiet=True)
        return [lines] if lines else []

    def _setting_lines(self, setting: str) -> list[str]:
        """What was measured, broken only between its parts, so that no line ends with a separator."""
        lines: list[str] = []
        for part in setting.split(SEPARATOR):
            longer = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
            lines[-1:] = [longer] if not lines or len(longer) <= self.width else [lines[-1], part]
        return lines

    def _omitted_line(self, document: Document) -> list[Lines]:
        """The line that lists the details that were left out. Empty: none were."""
        left_out = [block.title for block in document.blocks if isinstance(block, Details)]
        if not left_out or self.details:
            return []
        titles = one_line("; ".join(left_out)) if self.lists_titles else ""
        return [self.text(fill(SCREEN["more"], titles=titles), quiet=True)]

    def is_shown(self, block: Block) -> bool:
        return not isinstance(block, Chart) and (self.details or not isinstance(block, Details))

    def is_joined(self, before: Block | None, block: Block) -> bool:
        return isinstance(before, Heading) or (isinstance(before, AdviceBlock) and isinstance(block, AdviceBlock))

    def heading(self, text: str, level: int) -> Lines:
        return self._paint(self._wrap(text), _BOLD)

    def folded(self, details: Details, level: int) -> list[Lines]:
        title = self._paint([self._to_charset(details.title).upper()], _BOLD)
        return [title, *self.paragraphs(details.blocks, level + 1)]

    def text(self, text: str, quiet: bool = False) -> Lines:
        lines = self._wrap(text)
        return self._paint(lines, _DIM) if quiet else lines

    def bullets(self, lines: Sequence[str]) -> Lines:
        return [text for line in lines for text in self._wrap(line, first="- ", rest="  ")]

    def warnings(self, lines: Sequence[str]) -> Lines:
        shown = lines if self.explains_warnings else [_first_sentence(line) for line in lines]
        wrapped = [text for line in shown for text in self._wrap(line, first="! ", rest="  ")]
        return self._paint(["Warnings"], _YELLOW) + wrapped

    def answer(self, answer: Answer) -> Lines:
        lines = self.heading(answer.text, 1)
        indent = " " * max((len(label) + 2 for label, _ in answer.reasons), default=0)
        for label, text in answer.reasons:
            lines += self._wrap(text, first=label.ljust(len(indent)), rest=indent)
        return lines

    def table(self, table: Table, level: int) -> Lines:
        title = self.heading(table.title, level) if table.title else []
        table = _cut_to_width(table, self.width, "…" if self.unicode else "...")
        lines = lay_out(table if self.unicode else _table_to_ascii(table), self.width, brief=not self.details)
        notes = self._first_notes(table.notes) if self.shortens_notes else table.notes
        return [*title, *lines, *(line for note in notes for line in self.text(note, quiet=True))]

    def _first_notes(self, notes: Sequence[str]) -> Sequence[str]:
        """As many sentences of the notes as fit into `MAX_NOTE_LINES`, as one note: the meanings of marks, then the others in order.
        All of them are in the details."""
        sentences = [sentence for note in notes for sentence in _SENTENCE_END.split(note)]
        kept: list[int] = []
        for index in sorted(range(len(sentences)), key=lambda index: sentences[index][:1].isalnum()):
            longer = sorted([*kept, index])
            if len(self._wrap(" ".join(sentences[index] for index in longer))) > MAX_NOTE_LINES:
                break
            kept = longer
        return [" ".join(sentences[index] for index in kept)] if kept else []

    def advice(self, advice: AdviceBlock, number: int) -> Lines:
        lines = self._wrap(advice.action, first=f"{number}. ", rest="   ")
        lines += [f"   {self._to_charset(line)}" for line in advice.lines]
        if self.details or number <= self.max_reasons:
            because = advice.because if self.details or advice.places else _first_sentence(advice.because)
            lines += self._paint(self._wrap(because, first="   ", rest="   "), _DIM)
        for place in advice.places:
            lines += self._wrap(f"{place.name}:", first="   ", rest="   ")
            lines += [f"     {self._to_charset(line)}" for line in place.lines]
        return lines

    def code(self, lines: Sequence[str]) -> Lines:
        return [f"  {self._to_charset(line)}" for line in lines]

    def facts(self, values: Mapping[str, object], depth: int = 0) -> Lines:
        indent = "  " * depth
        lines: Lines = []
        for key, value in values.items():
            name = key.replace("_", " ")
            if isinstance(value, Mapping) and value:
                lines += [f"{indent}{name}:", *self.facts(value, depth + 1)]
            else:
                lines += self._wrap(f"{name}: {fact_text(key, value)}", first=indent, rest=f"{indent}  ")
        return lines

    def _to_charset(self, text: str) -> str:
        return text if self.unicode else to_ascii(text)

    def _wrap(self, text: str, first: str = "", rest: str = "") -> Lines:
        unbreakable = _UNBREAKABLE.sub(lambda match: match[0].replace(" ", "\u00a0"), self._to_charset(text))
        return [line.replace("\u00a0", " ") for line in wrap(unbreakable, self.width, first, rest)]

    def _paint(self, lines: Lines, style: str) -> Lines:
        return [f"{style}{line}{_END}" for line in lines] if self.colour else lines


def _join_paragraphs(paragraphs: Sequence[Lines]) -> str:
    return "\n\n".join("\n".join(lines) for lines in paragraphs) + "\n"


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "." if text else ""


def _table_to_ascii(table: Table) -> Table:
    columns = tuple(
        replace(column, head=to_ascii(column.head), lower=to_ascii(column.lower)) for column in table.columns
    )
    rows = tuple(
        tuple(replace(cell, text=to_ascii(cell.text), below=to_ascii(cell.below)) for cell in row) for row in table.rows
    )
    return replace(table, columns=columns, rows=rows)


def fact_text(key: str, value: object) -> str:
    """One fact as text. None is "unknown"."""
    if value is None:
        return "off" if key in OFF_IF_NONE else "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        nested = any(isinstance(item, Mapping | list | tuple) for item in value)
        return ("; " if nested else ", ").join(fact_text(key, item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {fact_text(name, item)}" for name, item in value.items()) or "none"
    return f"{value:,.10g}" if isinstance(value, float) else str(value)
