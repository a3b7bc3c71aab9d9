"""Tables as lines of plain text. The first layout that fits is taken: a line or two for each row, a column
for each row, or several short tables that all begin with the names of the rows. Tables of sentences become lists."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from howfar.report.document import Cell, Column, Table

GAP = "  "

PROSE = 44
"""A field longer than this is a sentence: it is wrapped below its row's name instead of standing in a column."""


def lay_out(table: Table, width: int, *, brief: bool = False) -> list[str]:
    """Lines no longer than `width`, as long as the names and any one column fit beside each other. `brief`: optional columns may be
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
    """Columns are put into a short table while they fit."""
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
    """Short fields beside the row's name, sentences below it."""
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
    return f"{column.label} {cell.line}".strip()


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width` characters, broken at ASCII white space only: no-break spaces hold an interval together."""
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
