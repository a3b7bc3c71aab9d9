"""How this very program is called, so that a command that is shown can be copied and run."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "howfar"


def program() -> str:
    """`howfar` when that word finds this program, else its path, relative when that is shorter. Quoted for a shell."""
    called = Path(sys.argv[0]) if sys.argv else Path(_NAME)
    if called.name != _NAME or not called.exists():
        return _NAME  # `python -m`, or a program that imports this one
    found = shutil.which(_NAME)
    if found is not None and Path(found).resolve() == called.resolve():
        return _NAME
    whole = str(called.absolute())
    try:
        near = os.path.relpath(whole)
    except OSError:  # the current directory has been removed
        near = whole
    if os.sep not in near:
        near = f".{os.sep}{near}"
    return shlex.quote(min(near, whole, key=len))


def as_called(advice: str) -> str:
    """Text in which commands stand as `howfar …` between backquotes, with this program's own name in them."""
    return advice.replace(f"`{_NAME} ", f"`{program()} ")
