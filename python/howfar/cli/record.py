"""`howfar record`: the round trips that the user's own application makes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from howfar.cli.screen import has_colour, json_option, no_colour_option, note, width
from howfar.cli.slope import address_of, usual_server
from howfar.errors import UsageError

_STDERR = 2


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--server", metavar="ADDRESS",
              help="The database's socket, or HOST:PORT.  [default: the one usual socket that exists]")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="The recording.  [default: COMMAND-DATE.recording]")
@click.option("--php", is_flag=True, help="Mark each PHP page, by a file that PHP runs before it (auto_prepend_file).")
@json_option
@no_colour_option
def record(
    command: tuple[str, ...], server: str | None, out: Path | None, php: bool, as_json: bool, no_colour: bool
) -> int:
    """Record the round trips that your application makes to its database, without any literal.

    \b
    howfar record -- php page.php                        one run is one page
    howfar record --php -- php -S 127.0.0.1:8080         a page a request
    howfar record --server 127.0.0.1:3306 -- ./app --db 127.0.0.1:3306

    The command is sent to a tap by a mount that it alone sees (Unix sockets), or by replacing HOST:PORT in its arguments and
    environment (TCP). `howfar mark` and $HOWFAR_MARKS name pages. Should howfar or the tap be killed, the command goes on.
    """
    from howfar.recording.recorder import Requested, record  # numpy, which --help need not pay
    from howfar.recording.recording import SUFFIX, read
    from howfar.recording.summary import document, summarize
    from howfar.report import terminal

    if not command:
        raise UsageError("nothing to record", "Give the command that starts your application after --.")
    name = Path(command[0]).name
    out = out or Path(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}{SUFFIX}")
    requested = Requested(
        server=address_of(server or usual_server()),
        command=command,
        out=out,
        php=php,
        output=_STDERR if as_json else None,
    )
    record(requested, note)
    found = summarize(read(out))
    if as_json:
        click.echo(found.model_dump_json(indent=2))
        return 0
    text = terminal.render(document(found, str(out)), width(), colour=has_colour(sys.stdout, no_colour))
    click.echo(text)
    return 0
