"""The document model of reports: what an experiment returns, and the only input of a renderer.

An experiment creates blocks in the order of a reader's questions. The renderers (terminal, HTML, Markdown, CSV) lay blocks out and do
not depend on the experiment that created them. Text in blocks is plain: each renderer escapes and wraps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

from howfar.terminal_text import one_line

DrawChart = Callable[[int], Any]
"""Draws a chart for a plotting area of this width in pixels. Returns an Altair chart, or None if there is nothing to draw."""


@dataclass(frozen=True)
class Heading:
    """The title of the blocks that follow, up to the next heading."""

    text: str


@dataclass(frozen=True)
class Text:
    """One paragraph. `quiet`: context that a reader may skip, printed smaller or dimmed."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list of sentences, one per line."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Card:
    """One large figure of the answer: its label, the figure, what it means, and lines of context."""

    label: str
    figure: str
    meaning: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The answer in one or two sentences, with cards next to it where a renderer has room for them."""

    text: str
    cards: tuple[Card, ...] = ()
    why: str = ""
    """The cause, with its figures. Empty: not known."""
    certainty: str = ""
    """How sure the answer is. Empty: there is none."""
    command: str = ""
    """The command that gets an answer. Empty: there is one, or no command gets it."""
    before_command: str = "For an answer"
    """What the command is for, what to do first, and how long it takes."""
    unmeasured: str = ""
    """Parts of the question that were not measured, and why. Empty: none are known."""

    @property
    def reasons(self) -> tuple[tuple[str, str], ...]:
        """The labelled lines below the answer."""
        lines = (("Why", self.why), ("How sure", self.certainty), ("Not measured", self.unmeasured))
        return tuple((label, text) for label, text in lines if text)


@dataclass(frozen=True)
class Cell:
    """One field of a table: a figure, and a second line such as its interval. `share`: how dark a renderer may shade it, up to 1."""

    text: str
    below: str = ""
    share: float | None = None

    @property
    def line(self) -> str:
        """Both lines as one."""
        return f"{self.text.strip()} {self.below}".strip()


@dataclass(frozen=True)
class Column:
    """The head of one column. `lower` is its second line. If there is too little width, texts of columns that `can_be_shortened` are
    cut first, then `optional` columns are left out."""

    head: str
    lower: str = ""
    left_aligned: bool = False
    optional: bool = False
    can_be_shortened: bool = False

    @property
    def label(self) -> str:
        """Both lines as one."""
        return f"{self.head} {self.lower}".strip()


@dataclass(frozen=True)
class Table:
    """A table. The first column names the row; notes are sentences below the table. `main`: the table contains the answer. `stack`: on
    a phone each row becomes a card."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    main: bool = False
    stack: bool = False


@dataclass(frozen=True)
class Chart:
    """A picture with a caption and its figures as a table. Renderers without pictures omit it; the figures appear elsewhere.
    `name` is unique in a document."""

    name: str
    title: str
    caption: str
    make: DrawChart = field(repr=False, compare=False)
    data: Table | None = None


@dataclass(frozen=True)
class Warnings:
    """Reasons to read the figures with care, one sentence each."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class PlaceLines:
    """Lines to be copied as they are, and where they belong: a file, a shell, an option."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class AdviceBlock:
    """One thing to do, and the figures that support it."""

    action: str
    because: str
    lines: tuple[str, ...] = ()
    """Lines to be copied as they are, which complete the action."""
    places: tuple[PlaceLines, ...] = ()
    """Further lines to be copied, below the names of the places where they belong."""


@dataclass(frozen=True)
class Facts:
    """Nested facts, such as a receipt. None reads "unknown"."""

    values: Mapping[str, object]


@dataclass(frozen=True)
class Code:
    """Lines to be copied as they are."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Details:
    """A part that is not on the first screen. The terminal prints it with `--details`; in HTML it is folded unless `open`."""

    title: str
    blocks: tuple[Block, ...]
    open: bool = False


Block = Heading | Text | Bullets | Answer | Table | Chart | Warnings | AdviceBlock | Facts | Code | Details


@dataclass(frozen=True)
class Document:
    """The whole report. `records` are the lines of its CSV; a key has the same meaning in every report."""

    title: str
    blocks: tuple[Block, ...]
    records: tuple[Mapping[str, object], ...] = ()
    question: str = ""
    """The question that the report answers: the first line of each form. Empty: the title stands in its place."""
    setting: str = ""
    """What was measured, when and on what, in one line below the question."""


def what_to_do(advice: Iterable[AdviceBlock]) -> list[Block]:
    """Advice below its heading. Empty: there is none."""
    blocks: list[Block] = [*advice]
    return [Heading("What to do"), *blocks] if blocks else []


Row = TypeVar("Row")
Fields = Mapping[str | Column, Callable[[Row], str | Cell]]
"""Columns of a table; the first names the row. The key is the head, with its second line after a newline. The value is a function that
returns the field of a row."""


def make_table(
    title: str,
    rows: Iterable[Row],
    fields: Fields[Row],
    notes: Sequence[str] = (),
    main: bool = False,
    stack: bool = False,
) -> Table:
    """A table with the given columns, one row for each item of `rows`."""
    columns = [
        head
        if isinstance(head, Column)
        else Column(head.split("\n")[0], head.partition("\n")[2], left_aligned=not index)
        for index, head in enumerate(fields)
    ]
    fields_by_row = [[value(row) for value in fields.values()] for row in rows]
    cells = tuple(tuple(value if isinstance(value, Cell) else Cell(value) for value in row) for row in fields_by_row)
    return Table(title, tuple(columns), cells, tuple(notes), main, stack)


def plain_columns(*heads: str) -> tuple[Column, ...]:
    """Columns with heads of one line; the first column names the row."""
    return tuple(Column(head, left_aligned=not index) for index, head in enumerate(heads))


def plain_cells(*texts: str) -> tuple[Cell, ...]:
    """The cells of a row, each with one line of text."""
    return tuple(Cell(text) for text in texts)


def number_advice(blocks: Sequence[Block]) -> Iterator[tuple[int, Block]]:
    """Each block with a number: pieces of advice are numbered from 1, every other block has 0."""
    count = 0
    for block in blocks:
        count += isinstance(block, AdviceBlock)
        yield (count if isinstance(block, AdviceBlock) else 0), block


def split_blocks(blocks: Sequence[Block]) -> tuple[list[Block], list[Block], list[Block]]:
    """The answer, the advice with its heading, and all other blocks."""
    answer: list[Block] = []
    steps: list[Block] = []
    others: list[Block] = []
    for block, after in zip_longest(blocks, blocks[1:]):
        is_advice = isinstance(block, AdviceBlock) or (isinstance(block, Heading) and isinstance(after, AdviceBlock))
        part = answer if isinstance(block, Answer) else steps if is_advice else others
        part.append(block)
    return answer, steps, others


def remove_empty_sections(blocks: Sequence[Block], is_shown: Callable[[Block], bool]) -> list[Block]:
    """Remove blocks that a renderer does not show, and headings and details that would be empty. A heading covers the blocks up to the
    next heading or details."""
    kept: list[Block] = []
    for block in blocks:
        if isinstance(block, Details):
            inner = tuple(remove_empty_sections(block.blocks, is_shown))
            shown: Block | None = Details(block.title, inner, block.open) if inner and is_shown(block) else None
        else:
            shown = block if isinstance(block, Heading) or is_shown(block) else None
        if isinstance(block, Details | Heading) and kept and isinstance(kept[-1], Heading):
            kept.pop()
        if shown is not None:
            kept.append(shown)
    return kept[:-1] if kept and isinstance(kept[-1], Heading) else kept


def remove_control_characters(part: Any, clean: Callable[[str], str] = one_line) -> Any:
    """Clean a document or a part of one: each text is on one line and has no control characters, because texts of a run file cannot be
    trusted. Texts of charts are cleaned when they are drawn."""
    if isinstance(part, str):
        return clean(part)
    if isinstance(part, tuple | list):
        return type(part)(remove_control_characters(item, clean) for item in part)
    if isinstance(part, Mapping):
        return {
            remove_control_characters(name, clean): remove_control_characters(value, clean)
            for name, value in part.items()
        }
    if is_dataclass(part) and not isinstance(part, type):
        texts = {
            field.name: remove_control_characters(getattr(part, field.name), clean)
            for field in fields(part)
            if field.init
        }
        return replace(part, **texts)
    return part
