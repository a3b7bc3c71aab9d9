"""The options of `howfar predict` and `howfar replay` that choose a recording, a path and the number of measurements; and how a
command with a path enters its sandbox."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import click

from howfar.cli.links import LinkChoice, link_options
from howfar.cli.sandbox_entry import run_in_sandbox
from howfar.cli.screen import blocks_option, note
from howfar.errors import SandboxForbidden, UsageError
from howfar.lab import sandbox
from howfar.paths import Path, find_path, path_names

if TYPE_CHECKING:
    from howfar.recording.path_session import TargetPath


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a recording, a target path and the number of measurements."""
    for option in reversed(
        [
            click.argument("recording", type=click.Path(path_type=FilePath)),
            click.option(
                "--path",
                "path_name",
                metavar="NAME",
                type=click.Choice(path_names()),
                help=f"The target path: {', '.join(path_names())}.  [default: remote if a link option is given, else tcp]",
            ),
            link_options,
            click.option(
                "--tls", type=click.Choice(("1.2", "1.3")), help="TLS version. [default: 1.3 if the recording has TLS]"
            ),
            blocks_option(6, "Number of blocks of measurements.", maximum=100),
        ]
    ):
        command = option(command)
    return command


def read_target(path_name: str | None, tls: str | None, choice: LinkChoice) -> TargetPath:
    """The target path and link that the options choose. Raises UsageError."""
    from howfar.recording.path_session import TargetPath

    path = find_path(path_name or ("remote" if choice.has_options else "tcp"))
    if choice.has_options and not path.crosses_link:
        raise UsageError(f"the path {path.name} crosses no link", "Omit --path, or use --path remote.")
    if tls is not None and not path.passes_tls:
        raise UsageError(
            f"the path {path.name} does not carry TLS from client to server", "Omit --tls, or choose another path."
        )
    if choice.script.changes:
        raise UsageError("a prediction needs a constant link", "Omit --link-script.")
    return TargetPath(
        path=path,
        tls=tls if tls in ("1.2", "1.3") else None,  # type: ignore[arg-type] # click has checked it
        link=choice.spec if path.crosses_link else None,
        backend=choice.backend,
        tcp=choice.tcp,
        congestion_control=choice.congestion_control,
        link_name=choice.link_name,
    )


def enter_sandbox(path: Path, *, runs_program: bool = False) -> None:
    """Run this command again in a sandbox, and exit. Returns if this process is inside already, or if sandboxes are forbidden and the
    path needs none. `runs_program`: see `run_in_sandbox`. Raises the same errors."""
    if sandbox.inside():
        return
    try:
        sys.exit(run_in_sandbox(runs_program=runs_program))
    except SandboxForbidden as forbidden:
        if path.crosses_link:
            raise
        note(f"no sandbox: {forbidden.message}")
