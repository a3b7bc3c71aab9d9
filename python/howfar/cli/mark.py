"""`howfar mark`: name what a command does as a page of the recording that it runs in."""

from __future__ import annotations

import signal
import subprocess
import time

import click

from howfar.cli.screen import note
from howfar.errors import UsageError


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def mark(name: str, command: tuple[str, ...]) -> int:
    """Run COMMAND as one page called NAME of the recording that this runs in.

    \b
    howfar record -- sh -c 'for i in 1 2 3; do howfar mark shop -- curl -s http://127.0.0.1:8080/shop; done'

    Every round trip between its beginning and its end belongs to the page, whichever process makes it. Gives the command's exit code.
    """
    from howfar.recording.marks import send

    signal.signal(signal.SIGINT, lambda *_: None)  # the command decides
    begun_ns = time.monotonic_ns()
    try:
        code = subprocess.run(command).returncode
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror}", "Try the command alone first.") from error
    if not send(0, begun_ns, time.monotonic_ns(), "mark", name):
        note("nothing records: `howfar record -- ...` sets what `howfar mark` needs")
    return code if code >= 0 else 128 - code
