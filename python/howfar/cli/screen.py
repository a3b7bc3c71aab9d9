"""What the terminal can do: width and colour, decided once, in one place."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, TextIO

import click

WIDTH_WITHOUT_TERMINAL = 110
"""Into a file or a pipe: wide enough that no table is cut."""
MIN_WIDTH = 40


def no_colour_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--no-colour` to a command."""
    return click.option(
        "--no-colour", "--no-color", "no_colour", is_flag=True, help="Plain text; NO_COLOR and TERM=dumb do the same."
    )(command)


def is_terminal(stream: TextIO) -> bool:
    """A terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO, no_colour: bool) -> bool:
    """Colour only on a terminal, and only when nobody objects."""
    return not no_colour and not os.environ.get("NO_COLOR") and is_terminal(stream)


def width(stream: TextIO | None = None) -> int:
    """Columns to write in: COLUMNS, else the terminal's, else a width for files."""
    named = os.environ.get("COLUMNS", "")
    if named.isdigit() and int(named) > 0:
        return max(int(named), MIN_WIDTH)
    stream = stream or sys.stdout
    if not stream.isatty():
        return WIDTH_WITHOUT_TERMINAL
    return max(shutil.get_terminal_size((80, 24)).columns, MIN_WIDTH)
