"""The option `--hop-binary`, of each command that opens paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from howfar.errors import UsageError
from howfar.paths import PATHS
from howfar.paths.path import set_program


def hop_binary_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--hop-binary` to a command; the option takes effect by itself."""
    return click.option(
        "--hop-binary",
        "hop_binaries",
        multiple=True,
        metavar="NAME=PATH",
        expose_value=False,
        callback=_register_programs,
        help="Location of the program NAME that a path uses, such as envoy=/opt/envoy; may be repeated.  [default: from PATH]",
    )(command)


def _register_programs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Register the programs that the option gives. Raises UsageError."""
    known_programs = sorted({program for path in PATHS.values() for program in path.hops})
    for value in values:
        name, _equals, location = value.partition("=")
        if name not in known_programs:
            raise UsageError(
                f"--hop-binary {value}: no path uses a program {name!r}",
                f"Known programs: {', '.join(known_programs)}.",
            )
        if not (Path(location).is_file() and os.access(location, os.X_OK)):
            raise UsageError(f"--hop-binary {value}: {location or 'nothing'} is not a program", "Write NAME=PATH.")
        set_program(name, Path(location).absolute())
    return values
