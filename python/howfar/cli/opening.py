"""What a terminal shows as soon as a plan is read: the modules that measure take longer to import. See `progress.Picture`."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING

from howfar.cli.screen import is_terminal, width

if TYPE_CHECKING:
    from howfar.plan.types import Plan

_LEFT = "HOWFAR_PICTURE"
"""Set while a picture is on the terminal that is nobody's to draw on: its lines above the cursor, and when the command began. The
process in the sandbox, which is this very command again, inherits it."""


def show_opening(plan: Plan, began_ns: int) -> None:
    """The question and that howfar is starting, to be replaced by the picture. Nothing if there is one, or no terminal."""
    if not is_terminal(sys.stderr) or _LEFT in os.environ:
        return
    lines = [f"{plan.name} on {', '.join(plan.factors.server)}", *textwrap.wrap(plan.question, width(sys.stderr) - 3)]
    lines += ["", "Starting, usually a few seconds"]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
    hand_over(len(lines), began_ns)


def hand_over(lines: int, began_ns: int) -> None:
    """Leave a picture of so many lines for the next that draws."""
    os.environ[_LEFT] = f"{lines} {began_ns}"


def take_over(began_ns: int) -> tuple[int, int]:
    """Lines of the picture that is there to be replaced, and when the command began; `began_ns` if there is none."""
    lines, _, began = os.environ.pop(_LEFT, "").partition(" ")
    return int(lines or 0), int(began or began_ns)
