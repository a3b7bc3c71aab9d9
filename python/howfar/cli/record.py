"""`howfar record`: record the round trips of the user's own application."""

from __future__ import annotations

import time
from pathlib import Path

import click

from howfar.cli.screen import OutputFile, json_option, no_colour_option, show_result, try_note
from howfar.cli.target import find_usual_server, laboratory_address, named_server_at, server_at
from howfar.contract.ping_messages import TcpTarget, UnixTarget
from howfar.doctor.peer_location import find_measured_programs
from howfar.errors import UsageError
from howfar.lab.programs import NONE_MEASURED
from howfar.store.database import kind_of
from howfar.units import parse_duration_ns

_STDERR = 2


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--server", metavar="ADDRESS",
              help="The database: socket, HOST:PORT or DSN.  [default: the laboratory's, or one in a usual place]")  # fmt: skip
@click.option("--out", type=OutputFile(), help="File for the recording.  [default: COMMAND-DATE.recording]")
@click.option("--interface", metavar="NAME", help="Capture packets on this interface instead of using a tap. TCP only.")
@click.option(
    "--pcap", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read captured packets from this file."
)
@click.option(
    "--service",
    metavar="UNIT",
    help="Record a systemd service: show a drop-in file, write it, and restart the service.",
)
@click.option("--yes", is_flag=True, help="With --service, do not ask for confirmation.")
@click.option("--time", "duration", help="How long to record without a command.  [default: until Ctrl-C]")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where the command serves HTTP; each request through a tap in front of it is a page.",
)
@click.option("--php", is_flag=True, help="Mark each PHP page with a file that PHP runs first (auto_prepend_file).")
@click.option(
    "--page-by",
    metavar="NAMES",
    help="Tell pages apart by these parameters of the query and parts of the path: title,route,/v1. They are recorded.",
)
@click.option(
    "--gaps",
    is_flag=True,
    help="Where nothing marks pages, end a page when the application pauses between round trips.",
)
@json_option
@no_colour_option
def record(
    command: tuple[str, ...],
    server: str | None,
    out: Path | None,
    interface: str | None,
    pcap: Path | None,
    service: str | None,
    yes: bool,
    duration: str | None,
    http: str | None,
    php: bool,
    page_by: str | None,
    gaps: bool,
    as_json: bool,
    no_colour: bool,
) -> int:
    """Record the round trips that your application makes to its database, without literals.

    \b
    howfar record -- php page.php                        one run is one page
    howfar record --php -- php -S 127.0.0.1:8080         one page per request
    howfar record --http 127.0.0.1:8000 -- ./serve       one page per request
    howfar record --server 127.0.0.1:3306 -- ./app --db 127.0.0.1:3306
    howfar record --interface eth0 --server 10.0.0.5:5432 --time 60s
    howfar record --pcap dump.pcap --server 10.0.0.5:5432

    The command reaches the tap through a mount that only it sees (Unix sockets), or by replacing HOST:PORT in its arguments and
    environment (TCP). With --http, a tap listens in front of the web server; its port is printed, and in $HOWFAR_HTTP. `howfar mark`
    and $HOWFAR_MARKS name pages. If howfar or the tap is killed, the command continues. Exits with the command's exit code.
    """
    from howfar.recording.recorder import RecordRequest, record  # numpy, which --help need not import
    from howfar.recording.recording import SUFFIX, read
    from howfar.recording.summary import document, summarise_recording

    name = Path(command[0]).name if command else pcap.name if pcap else interface or service or ""
    out = out or Path(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}{SUFFIX}")
    output = _STDERR if as_json else None
    seconds = parse_duration_ns(duration) / 1e9 if duration else None
    _check_options(command, duration, service, interface, pcap, "--php" if php else "--http" if http else None)
    if yes and not service:
        raise UsageError("--yes confirms the drop-in file of --service", "Omit it, or name the service.")
    if page_by and not command:
        raise UsageError(
            "--page-by is for pages, and nothing marks any here", "Give the command after --, with --php or --http."
        )
    page_keys = tuple(filter(None, (name.strip() for name in (page_by or "").split(","))))
    code = 0
    if service:
        _record_service(service, server, out, seconds, yes, gaps)
    elif interface or pcap:
        code = _record_packets(server, out, interface, pcap, command, seconds, gaps, output)
    elif not command:
        raise UsageError("nothing to record", "Give the command that starts your application after --.")
    else:
        named_server = named_server_at(server or find_usual_server())
        code = record(
            RecordRequest(
                named_server,
                command,
                out,
                php,
                gaps,
                _http_target(http),
                page_keys,
                output,
                find_measured_programs(named_server.target),
            ),
            try_note,
        )
    summary = summarise_recording(read(out))
    show_result(summary, document(summary, str(out)), as_json, no_colour)
    return code


def _check_options(
    command: tuple[str, ...],
    duration: str | None,
    service: str | None,
    interface: str | None,
    pcap: Path | None,
    tap_option: str | None,
) -> None:
    """Check the options against each other. `tap_option`: an option that needs a command recorded through a tap. Raises UsageError."""
    if sum(bool(source) for source in (service, interface, pcap)) > 1 or (command and (service or pcap)):
        raise UsageError(
            "more than one source to record", "Give only one of: a command, --service, --interface, --pcap."
        )
    if pcap and (kind := kind_of(pcap)):
        raise UsageError(f"{pcap} is a {kind.name}, not a capture", kind.use(pcap))
    if pcap and duration:
        raise UsageError("--time is for recording live traffic", "Omit it: the whole file is read.")
    if command and duration:
        raise UsageError("--time is for recording without a command", "Omit it: the recording ends with the command.")
    if tap_option and (service or interface or pcap):
        raise UsageError(
            f"{tap_option} needs a command recorded through a tap", "Omit it; name pages with `howfar mark`."
        )


def _http_target(address: str | None) -> TcpTarget | None:
    target = server_at(address, "--http") if address else None
    if isinstance(target, UnixTarget):
        raise UsageError("--http names a socket", "Write HOST:PORT.")
    return target


def _record_service(unit: str, server: str | None, out: Path, seconds: float | None, yes: bool, gaps: bool) -> None:
    from howfar.recording.recorder import ServiceRequest, record_service

    target = server_at(server or find_usual_server())
    if not isinstance(target, UnixTarget):
        raise UsageError("--service needs a server on a Unix socket", "For a server on TCP, use --interface.")
    request = ServiceRequest(unit, target, out, seconds, gaps, find_measured_programs(target))
    record_service(request, try_note, lambda text: _confirm(text, yes))


def _record_packets(
    server: str | None,
    out: Path,
    interface: str | None,
    file: Path | None,
    command: tuple[str, ...],
    seconds: float | None,
    gaps: bool,
    output: int | None,
) -> int:
    """Record captured packets; returns the exit code of the command, or 0 without a command."""
    from howfar.recording.packets import PacketsRequest, record

    laboratory = laboratory_address() if interface else None
    if server is None and laboratory is not None and laboratory.socket is None:
        server = find_usual_server()
    target = server_at(server) if server else None
    if not isinstance(target, TcpTarget):
        raise UsageError(
            "packets can be recorded only for a server's TCP port",
            "For example: --interface lo --server 127.0.0.1:3306, or --pcap FILE --server 10.0.0.5:5432.",
        )
    return record(
        PacketsRequest(
            target.port,
            target.host,
            out,
            interface,
            file,
            command,
            seconds,
            gaps,
            output,
            NONE_MEASURED if file else find_measured_programs(target),
        ),
        try_note,
    )


def _confirm(text: str, yes: bool) -> bool:
    try_note(text.rstrip())
    return yes or click.confirm("Write this and restart the service?", err=True)
