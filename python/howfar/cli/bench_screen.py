"""What every `howfar bench` shows alike: how far it is, and a table on the terminal. What the figures mean is said elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from howfar.cli.screen import has_colour, is_terminal, width


def counter(what: str) -> Callable[[int, int], None]:
    """Shows `block 2 of 8` on one line of a terminal, and nothing anywhere else. To be called as each begins or ends."""
    shown = is_terminal(sys.stderr)

    def said(number: int, of: int) -> None:
        if shown:
            end = "\n" if number == of else ""
            print(f"\r{what} {number} of {of}", end=end, file=sys.stderr, flush=True)

    return said


def console(no_colour: bool) -> Console:
    """For the answer, on stdout."""
    return Console(
        file=sys.stdout, no_color=not has_colour(sys.stdout, no_colour), width=width(), highlight=False, soft_wrap=False
    )


def table(headings: Sequence[str], columns: Sequence[Sequence[tuple[str, str]]]) -> Table:
    """One column of figures under each heading. Every figure comes with the name of its row, the same in all columns."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    made.add_column("", overflow="fold")
    for heading in headings:
        made.add_column(heading, justify="right", overflow="fold")
    for cells in zip(*columns, strict=True):
        made.add_row(cells[0][0], *(value for _, value in cells))
    return made


def cpu_list(cpus: Sequence[int]) -> str:
    return ", ".join(map(str, cpus))
