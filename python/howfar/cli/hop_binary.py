"""The option `--hop-binary`, of each command that opens paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from howfar.errors import UsageError
from howfar.paths import PATHS
from howfar.paths.path import give_program


def hop_binary_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--hop-binary` to a command; the option takes effect by itself."""
    return click.option(
        "--hop-binary",
        "hop_binaries",
        multiple=True,
        metavar="NAME=PATH",
        expose_value=False,
        callback=_take,
        help="Location of the program NAME that a path uses, such as envoy=/opt/envoy; may be repeated.  [default: from PATH]",
    )(command)


def _take(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Take the programs given by the option. Raises UsageError."""
    known = sorted({program for path in PATHS.values() for program in path.hops})
    for value in values:
        name, _equals, where = value.partition("=")
        if name not in known:
            raise UsageError(
                f"--hop-binary {value}: no path uses a program {name!r}", f"Known programs: {', '.join(known)}."
            )
        if not (Path(where).is_file() and os.access(where, os.X_OK)):
            raise UsageError(f"--hop-binary {value}: {where or 'nothing'} is not a program", "Write NAME=PATH.")
        give_program(name, Path(where).absolute())
    return values
