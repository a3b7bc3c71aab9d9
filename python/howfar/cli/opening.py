"""Text that is shown on the terminal as soon as a plan is read, while other modules are imported. See `progress.PictureProgress`."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING

from howfar.cli.screen import is_terminal, width

if TYPE_CHECKING:
    from howfar.plan.types import Plan

_PICTURE_VARIABLE = "HOWFAR_PICTURE"
"""Environment variable with the number of the picture's lines above the cursor and the time at which the command began. It is set
while no process updates the picture; the process in the sandbox, which runs this same command again, inherits it."""


def show_opening(plan: Plan, began_ns: int) -> None:
    """Show the plan's question, and that howfar is starting, until a picture replaces both. Does nothing if there is a picture
    already, or no terminal."""
    if not is_terminal(sys.stderr) or _PICTURE_VARIABLE in os.environ:
        return
    lines = [f"{plan.name} on {', '.join(plan.factors.server)}", *textwrap.wrap(plan.question, width(sys.stderr) - 3)]
    lines += ["", "Starting, usually a few seconds"]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
    hand_over(len(lines), began_ns)


def hand_over(lines: int, began_ns: int) -> None:
    """Leave a picture of this many lines on the terminal, for `take_over`."""
    os.environ[_PICTURE_VARIABLE] = f"{lines} {began_ns}"


def take_over(began_ns: int) -> tuple[int, int]:
    """The number of lines of the picture to replace, and the time at which the command began; 0 and `began_ns` without a picture."""
    line_count, _, began_text = os.environ.pop(_PICTURE_VARIABLE, "").partition(" ")
    return int(line_count or 0), int(began_text or began_ns)
