"""Choose how progress is shown: a picture on a terminal, lines everywhere else. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager

from howfar.cli.lines import Lines
from howfar.cli.screen import has_colour, is_terminal, width
from howfar.runner.observer import Observer


def observer(no_colour: bool) -> AbstractContextManager[Observer]:
    """To be entered when measuring begins and left before the report."""
    if is_terminal(sys.stderr):
        from howfar.cli.live import LivePicture

        return LivePicture(sys.stderr, has_colour(sys.stderr, no_colour), width(sys.stderr))
    return contextlib.nullcontext(Lines(sys.stderr))
