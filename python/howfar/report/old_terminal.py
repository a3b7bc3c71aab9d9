"""The report in a terminal: the answer, one table, what it rests on, what to do, and how to repeat it. Pure: text from a summary."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace

from howfar.analysis.summary import Summary
from howfar.experiments.page.report.text import parts as page_parts
from howfar.report import tables
from howfar.report.columns import Column, Line, columns
from howfar.report.figures import cpu_note, has_own_tables, noise_line, published_sources, shown_cells, void_line
from howfar.report.grid import is_grid
from howfar.report.old_layout import lay_out, plain
from howfar.report.setup import head_line
from howfar.report.warnings import warning_lines

NARROWEST = 40
"""Below this nothing sensible can be laid out; lines are then longer than asked."""

WIDEST = 132
"""Prose and table are not stretched beyond this."""

_ASCII = {"µ": "u", "±": "+/-", "×": "x", "–": "-", "—": "-", "…": "...", "≥": ">=", "≤": "<=", "−": "-"}

_BOLD, _DIM, _YELLOW, _END = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"


def to_ascii(text: str) -> str:
    """For a terminal that cannot show more; what has no transcription becomes `?`."""
    for fancy, simple in _ASCII.items():
        text = text.replace(fancy, simple)
    return text.encode("ascii", "replace").decode("ascii")


def render(summary: Summary, width: int = 80, colour: bool = False, unicode: bool = True) -> str:
    """The whole report, lines of at most `width` characters (at least 40), ending in a newline."""
    return _Page(max(NARROWEST, min(width, WIDEST)), colour, unicode).render(summary)


class _Page:
    def __init__(self, width: int, colour: bool, unicode: bool) -> None:
        self.width, self.colour, self.unicode = width, colour, unicode

    def render(self, summary: Summary) -> str:
        parts = [
            self._paint(self._wrap(summary.verdict), _BOLD),
            self._paint(self._wrap(f"{head_line(summary)}."), _DIM),
            *self._findings(summary),
            self._wrap(noise_line(summary)),
            [] if is_grid(summary) or has_own_tables(summary) else self._wrap(cpu_note(summary)),
            self._published(summary),
            self._warnings(summary),
            self._advice(summary),
            self._wrap(void_line(summary)),
            self._repeat(summary),
        ]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def _findings(self, summary: Summary) -> list[list[str]]:
        if parts := page_parts(summary):
            return [self._wrap(part) if isinstance(part, str) else self._plain(part) for part in parts]
        return [self.table(summary), self._confirmations(summary)]

    def table(self, summary: Summary) -> list[str]:
        if not shown_cells(summary):
            return []
        lines = lay_out([self._column(column) for column in columns(summary)], self.width)
        return self._paint(lines[:1], _BOLD) + lines[1:]

    def _confirmations(self, summary: Summary) -> list[str]:
        lines = [
            text for line in tables.confirmation_lines(summary) for text in self._wrap(line, first="- ", rest="  ")
        ]
        return self._paint(["The limits, put to the test"], _BOLD) + lines if lines else []

    def _plain(self, table: tables.Table) -> list[str]:
        head = [(self._text(upper), self._text(lower)) for upper, lower in table.head]
        rows = [[self._text(cell) for cell in row] for row in table.rows]
        lines = self._paint([self._text(table.title)], _BOLD) + plain(head, rows, self.width)
        return lines + [line for note in table.notes for line in self._wrap(note)]

    def _column(self, column: Column) -> Column:
        if self.unicode:
            return column

        def pair(texts: tuple[str, str]) -> tuple[str, str]:
            return to_ascii(texts[0]), to_ascii(texts[1])

        cells = tuple(pair(cell) for cell in column.cells)
        lines = tuple(Line(to_ascii(line.label), tuple(map(to_ascii, line.texts))) for line in column.lines)
        return replace(column, head=pair(column.head), cells=cells, lines=lines)

    def _published(self, summary: Summary) -> list[str]:
        lines = (f"Published elsewhere: {text}. Not our measurement." for text in published_sources(summary))
        return [text for line in lines for text in self._wrap(line)]

    def _warnings(self, summary: Summary) -> list[str]:
        found = warning_lines(summary)
        if not found:
            return []
        lines = [text for line in found for text in self._wrap(line, first="! ", rest="  ")]
        return self._paint(["Read with care"], _YELLOW) + lines

    def _advice(self, summary: Summary) -> list[str]:
        if not summary.advice:
            return []
        lines = self._paint(["What to do"], _BOLD)
        for position, advice in enumerate(summary.advice, 1):
            lines += self._wrap(advice.action, first=f"{position}. ", rest="   ")
            lines += self._paint(self._wrap(advice.because, first="   ", rest="   "), _DIM)
            lines += [f"     {self._text(line)}" for line in advice.lines]
        return lines

    def _repeat(self, summary: Summary) -> list[str]:
        command = f"  {self._text(summary.command)}"
        return ["To repeat:", command]

    def _text(self, text: str) -> str:
        return text if self.unicode else to_ascii(text)

    def _wrap(self, text: str, first: str = "", rest: str = "") -> list[str]:
        # textwrap breaks at ASCII white space only: an interval stays in one piece.
        whole = re.sub(
            r"\[[^\]]*\]|\d %|(?:[≥≤]|[<>]=) \d", lambda match: match[0].replace(" ", "\u00a0"), self._text(text)
        )
        lines = textwrap.wrap(whole, self.width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
        return [line.replace("\u00a0", " ") for line in lines]

    def _paint(self, lines: list[str], style: str) -> list[str]:
        return [f"{style}{line}{_END}" for line in lines] if self.colour else lines
