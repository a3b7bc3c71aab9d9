"""`howfar slope`: time the user's own application behind a tap that delays each round trip."""

from __future__ import annotations

from pathlib import Path

import click

from howfar.cli.screen import blocks_option, json_option, no_colour_option, note, show_result
from howfar.cli.target import find_usual_server, named_server_at, server_at
from howfar.doctor.peer_location import find_measured_programs
from howfar.errors import UsageError
from howfar.units import parse_duration_ns

_MAX_DELAY_NS = 1_000_000_000


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", help="Time requests to this page; the command, if any, is the web server that answers.")
@click.option("--server", metavar="ADDRESS",
              help="The database: socket, HOST:PORT or DSN.  [default: as for `howfar record`]")  # fmt: skip
@click.option("--listen", metavar="ADDRESS",
              help="Where the tap listens, for an application configured to connect there.")  # fmt: skip
@click.option(
    "--delays",
    metavar="LIST",
    help="Delays to add to each round trip, half in each direction.  "
    "[default: 0ms,1ms,5ms,20ms; where that exceeds the time budget: 0ms,1ms,2ms,5ms]",
)
@blocks_option(12, "Number of blocks; each measures every delay once.")
@click.option(
    "--time-budget", default="60s", show_default=True, help="Stop after this time, but not before four blocks."
)
@click.option("--warmup", type=click.IntRange(1, 100_000),
              help="With --url, number of pages before those that count.  [default: until times stop falling]")  # fmt: skip
@json_option
@no_colour_option
def slope(
    command: tuple[str, ...],
    url: str | None,
    server: str | None,
    listen: str | None,
    delays: str | None,
    blocks: int,
    time_budget: str,
    warmup: int | None,
    as_json: bool,
    no_colour: bool,
) -> int:
    """Measure how many round trips your application waits for, and extrapolate to other paths.

    \b
    howfar slope -- php page.php                         a command: its run time
    howfar slope --url http://127.0.0.1:8080/ -- php -S 127.0.0.1:8080
    howfar slope --url http://127.0.0.1/shop --listen /run/tap.sock \\
                 --server /run/mysqld/mysqld.sock

    The command reaches the tap through a mount that only it sees (Unix sockets), or by replacing HOST:PORT in its arguments and
    environment (TCP). Nothing else on this machine changes. No protocol is parsed, so it works through TLS.
    """
    from howfar.recording.slope import SlopeRequest, document, measure  # numpy, which --help need not import

    if not command and url is None:
        raise UsageError("nothing to time", "Give a command after --, or --url, or both.")
    if not command and listen is None:
        raise UsageError(
            "the application behind the URL does not connect through the tap",
            "Give the command that starts it after --, or --listen and configure it to connect there.",
        )
    named_server = named_server_at(server or find_usual_server())
    request = SlopeRequest(
        server=named_server,
        command=command,
        url=url,
        listen=None if listen is None else server_at(listen, "--listen"),
        delays_ns=None if delays is None else _parse_delays(delays),
        blocks=blocks,
        budget_s=parse_duration_ns(time_budget) / 1e9,
        warm_ups=warmup,
        measured=find_measured_programs(named_server.target),
    )
    result = measure(request, note)
    show_result(result, document(result, url or Path(command[0]).name), as_json, no_colour)
    return 0


def _parse_delays(text: str) -> tuple[int, ...]:
    """Parse a list of delays such as `0ms,1ms`. Raises UsageError."""
    delays_ns = sorted({parse_duration_ns(part) for part in text.split(",")})
    if len(delays_ns) < 2 or delays_ns[0] != 0 or delays_ns[-1] > _MAX_DELAY_NS:
        raise UsageError(
            f"{text!r}: a slope needs 0ms and at least one more delay, none above 1 s", "For example: 0ms,1ms,5ms."
        )
    return tuple(delays_ns)
