"""Three ways to lay out the same columns: a row for each path, a column for each path, or rows folded into several short
tables. The first that fits is taken. Plain text in, plain text out."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.report.columns import Column

GAP = "  "


def lay_out(columns: list[Column], width: int) -> list[str]:
    """Lines no longer than `width`, as long as the arms' names and any one column fit beside each other."""
    for lines in (_rows(columns), _transposed(columns)):
        if max(len(line) for line in lines) <= width:
            return lines
    return _folded(columns, width)


def plain(head: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table with one line a row; where it is too wide, several short ones that all begin with the first column."""
    columns = [
        Column(head=texts, cells=tuple((row[index], "") for row in rows), lines=(), left=index == 0)
        for index, texts in enumerate(head)
    ]
    return _folded(columns, width)


def _column_width(column: Column) -> int:
    return max(len(text) for pair in (column.head, *column.cells) for text in pair)


def _rows(columns: list[Column]) -> list[str]:
    widths = [_column_width(column) for column in columns]

    def line(texts: list[str]) -> str:
        padded = (
            text.ljust(width) if column.left else text.rjust(width)
            for text, width, column in zip(texts, widths, columns, strict=True)
        )
        return GAP.join(padded).rstrip()

    def both(pairs: list[tuple[str, str]]) -> list[str]:
        return [text for part in (0, 1) if (text := line([pair[part] for pair in pairs]))]

    lines = both([column.head for column in columns])
    body = [
        text for index in range(len(columns[0].cells)) for text in both([column.cells[index] for column in columns])
    ]
    return [*lines, "-" * max(len(text) for text in lines + body), *body]


def _transposed(columns: list[Column]) -> list[str]:
    table = [line for column in columns for line in column.lines]
    label_width = max(len(line.label) for line in table)
    widths = [max(len(line.texts[index]) for line in table) for index in range(len(columns[0].cells))]
    lines = [
        line.label.ljust(label_width)
        + "".join(GAP + text.rjust(width) for text, width in zip(line.texts, widths, strict=True))
        for line in table
    ]
    return [lines[0], "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])]


def _folded(columns: list[Column], width: int) -> list[str]:
    """Each short table begins with the arms' names; columns are put into it while they fit."""
    names, rest = columns[0], columns[1:]
    tables: list[list[Column]] = []
    room = 0
    for column in rest:
        needed = len(GAP) + _column_width(column)
        if not tables or needed > room:
            tables.append([names])
            room = width - _column_width(names)
        tables[-1].append(column)
        room -= needed
    lines: list[str] = []
    for table in tables:
        lines += ([""] if lines else []) + _rows(table)
    return lines
