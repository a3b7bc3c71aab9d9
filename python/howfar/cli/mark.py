"""`howfar mark`: run a command as a named page of a recording."""

from __future__ import annotations

import signal
import subprocess
import time

import click

from howfar.cli.screen import note
from howfar.errors import UsageError, shell_exit_code


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def mark(name: str, command: tuple[str, ...]) -> int:
    """Run COMMAND as a page called NAME in the surrounding recording.

    \b
    howfar record -- sh -c '
      for i in 1 2 3; do howfar mark shop -- curl -s http://127.0.0.1/shop; done'

    Every round trip made while COMMAND runs belongs to the page, whichever process makes it. Exits with COMMAND's exit code.
    """
    from howfar.recording.marks import send

    if command[0] == "--":  # what follows NAME is not parsed, so that the command keeps its own options
        command = command[1:]
    if not command:
        raise UsageError("no command follows --", f"Give one: howfar mark {name} -- COMMAND")
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command
    start_ns = time.monotonic_ns()
    try:
        code = subprocess.run(command).returncode
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror}", "Try the command on its own first.") from error
    if not send(0, start_ns, time.monotonic_ns(), "mark", name):
        note("no recording is running: run this inside `howfar record -- ...`")
    return shell_exit_code(code)
