"""`howfar doctor`: examines the database servers of this machine and reports lines to change. The checks are in `howfar.doctor`."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import click

from howfar.address import Login, Secret, ServerAddress
from howfar.cli.exit_codes import TO_CHANGE
from howfar.cli.screen import note, show_json
from howfar.cli.target import (
    complete_address,
    laboratory_address,
    numeric_target,
    own_account_name,
    parse_target,
    password,
    password_note,
    read_option_file,
    variable,
)
from howfar.contract.ping_messages import UnixTarget
from howfar.doctor.candidates import PROGRAMS
from howfar.doctor.findings import Change, Client, Examination, Finding, Kind, Listener, Rates, Server, Severity, Unseen
from howfar.doctor.targets import DoctorTarget, Logins, TargetLogin, target_from_login
from howfar.errors import MissingError, UsageError
from howfar.passwords import learn
from howfar.terminal_text import one_line
from howfar.units import counted

_MAX_WIDTH = 120


@click.command()
@click.argument("dsns", metavar="[DSN]...", nargs=-1)
@click.option("--watch", "seconds", type=click.FloatRange(0.2, 600), default=3.0, show_default=True, metavar="SECONDS",
              help="How long to watch connections.")  # fmt: skip
@click.option(
    "--user",
    help="User for MySQL, MariaDB and PostgreSQL.  [default: the name of your account; as root, PostgreSQL's own account]",
)
@click.option(
    "--password-file", type=click.Path(path_type=Path), metavar="FILE", help="File whose first line is the password."
)
@click.option("--ask-password", is_flag=True, help="Ask for the password.")
@click.option("--defaults-file", type=click.Path(path_type=Path), metavar="FILE",
              help="User and password from an option file of MySQL's or MariaDB's clients.")  # fmt: skip
@click.option("--env", "env_names", multiple=True, metavar="NAME", help="Environment variable that holds a DSN.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout; its schema is schema/doctor.json.")
@click.option("--strict", is_flag=True, help=f"Exit with code {TO_CHANGE} if something should be changed.")
def doctor(
    dsns: tuple[str, ...],
    seconds: float,
    user: str | None,
    password_file: Path | None,
    ask_password: bool,
    defaults_file: Path | None,
    env_names: tuple[str, ...],
    as_json: bool,
    strict: bool,
) -> int:
    """Examine the MySQL, MariaDB, PostgreSQL, Redis and Memcached servers of this machine and say what to change.

    Without a DSN, it examines every server that it finds. A DSN has any form of docs/addresses.md, such as mysql://user@127.0.0.1:3306/,
    mysql:///run/mysqld/mysqld.sock?user=u, postgresql://user@127.0.0.1:5432/, postgresql:///?host=/run/postgresql,
    redis://127.0.0.1:6379, redis:///run/redis/redis-server.sock, memcached://127.0.0.1:11211. It only reads: it logs in, pings a few
    hundred times, reads counters, and connects 24 times over each transport. It reports what it is not permitted to see.

    For passwords use --password-file, --ask-password, --defaults-file, --env, HOWFAR_PASSWORD, or one of the variables MYSQL_PWD,
    PGPASSWORD, HOWFAR_REDIS_PASSWORD and REDISCLI_AUTH: one in a DSN is used too, but other users can see it. Passwords are sent only
    to servers that you name, or that run as root, as a system account or as yourself.
    """
    from howfar.doctor.examine import examine  # numpy and pymysql, which --help need not import

    targets = [_resolve(_target_from_dsn(dsn, True)) for dsn in dsns]
    targets += [_resolve(_target_from_dsn(variable(name, os.environ), False)) for name in env_names]
    if (
        not targets
        and (address := laboratory_address()) is not None
        and (protocol := os.environ.get("HOWFAR_PROTOCOL"))
    ):
        note("using the server of `howfar lab`")
        laboratory = DoctorTarget(
            Kind(protocol), address.socket, address.host, address.port, None, False, database=address.database
        )
        targets = [_resolve(laboratory)]
    logins = _find_logins(user, password_file, ask_password, defaults_file)
    if not as_json:
        note(f"watching connections for {seconds:g} s")
    examination = examine(targets, logins, seconds)
    if as_json:
        show_json(examination.model_dump_json(indent=2, by_alias=True))
    else:
        click.echo(screen(examination, min(shutil.get_terminal_size((100, 24)).columns, _MAX_WIDTH)))
    if targets and examination.unseen:
        return MissingError.exit_code
    return TO_CHANGE if strict and examination.to_change else 0


def _target_from_dsn(dsn: str, on_command_line: bool) -> DoctorTarget:
    """The server of a DSN. `on_command_line`: it is on the command line, where other users see it. Raises UsageError."""
    parsed = parse_target(dsn)
    if parsed.address.service is not None:
        raise UsageError("howfar doctor does not read service files", "Name host, port and user in the DSN.")
    target = target_from_login(Login(complete_address(parsed.address, os.environ), parsed.password or Secret()))
    for remark in (*parsed.notes, *password_note(on_command_line, parsed)):
        note(remark)
    return target


def _resolve(target: DoctorTarget) -> DoctorTarget:
    """A target with its host name resolved to an address, as in `howfar load`."""
    resolved = numeric_target(ServerAddress(host=target.host, port=target.port, socket=target.path), note)
    if isinstance(resolved, UnixTarget):
        return replace(target, path=resolved.path, host=None, port=None)
    return replace(target, path=None, host=resolved.host, port=resolved.port)


def _find_logins(
    user: str | None, password_file: Path | None, ask_password: bool, defaults_file: Path | None
) -> Logins:
    """The logins that the options give. Raises UsageError."""
    laboratory_file = os.environ.get("HOWFAR_PASSWORD_FILE")
    if laboratory_file and not (user or password_file or ask_password or defaults_file):
        note("using the account of `howfar lab`")
        user, password_file = os.environ.get("HOWFAR_USER"), Path(laboratory_file)
    address, file_password = ServerAddress(), None
    if defaults_file is not None:
        file = read_option_file(defaults_file, os.environ, note)
        address, file_password = file.address, file.password
    given_password = password(password_file, ask_password, file_password, note, os.environ).reveal()
    mysql = TargetLogin(user or address.user or own_account_name(), given_password or os.environ.get("MYSQL_PWD", ""))
    libpq_login = TargetLogin(user or os.environ.get("PGUSER", ""), given_password or os.environ.get("PGPASSWORD", ""))
    redis = os.environ.get("HOWFAR_REDIS_PASSWORD", os.environ.get("REDISCLI_AUTH", ""))
    for login in (mysql, libpq_login):
        learn(login.password)
    learn(redis)
    return Logins(mysql, TargetLogin("", redis), libpq_login)


# ---------------------------------------------------------------- the report as text

WHERE_SEARCHED = f"Looked for {', '.join(PROGRAMS)} among the processes, and at their usual ports and sockets."
_INDENT = 12
_TLS = {"none": "no TLS", "offered": "TLS offered", "always": "TLS only", "unknown": "TLS unknown"}
_STATE = {"works": "", "gone": ", path does not exist any more", "elsewhere": ", path belongs to another process",
          "unseen": ", cannot be checked"}  # fmt: skip


def screen(examination: Examination, width: int) -> str:
    """The report as text."""
    return "\n".join(one_line(line) for line in _lines(examination, max(width, 60)))


def _lines(examination: Examination, width: int) -> Iterator[str]:
    yield from _head_lines(examination, width)
    for server in examination.servers:
        yield ""
        yield from _server_lines(server, width)
    if examination.to_change:
        yield ""
        yield "After the changes, run howfar doctor again."
    if examination.unseen:
        yield ""
        yield "NOT SEEN on this machine"
        yield from _unseen_lines(examination.unseen, width)


def _head_lines(examination: Examination, width: int) -> Iterator[str]:
    if not examination.servers:
        yield "No MySQL, MariaDB, PostgreSQL, Redis or Memcached server was found that can be reached from here."
        yield from textwrap.wrap(WHERE_SEARCHED, width)
        return
    yield f"{counted(len(examination.servers), 'server')}, {_count_changes(examination)}."
    load = f"load average {examination.load_average:.1f} on {counted(examination.cpus, 'CPU')}"
    scope = f"Connections were watched for {examination.watched_s:.1f} s ({examination.looks} looks); {load}."
    yield from textwrap.wrap(f"{scope} Times are medians with 95 % intervals.", width)


def _count_changes(examination: Examination) -> str:
    """The number of changes, or an all-clear for what was examined."""
    if examination.to_change:
        return counted(examination.to_change, "change")
    unseen = len(examination.unseen) + sum(len(server.unseen) for server in examination.servers)
    if not unseen:
        return "nothing to change"
    logins = sum(server.logged_in for server in examination.servers)
    return (
        f"nothing to change in what could be seen: {logins} accepted a login, {counted(unseen, 'thing')} stayed unseen"
    )


def _server_lines(server: Server, width: int) -> Iterator[str]:
    process = [f"pid {server.pid}" if server.pid is not None else "no process seen", server.user or ""]
    title = f"{server.name} ({', '.join(part for part in process if part)})"
    if server.pid is None and server.listeners:
        title = f"{server.name} at {server.listeners[0].where}"
    yield title
    yield "-" * min(len(title), width)
    for finding in server.findings:
        yield from _finding_lines(finding, width)
    for label, text in _fact_rows(server):
        yield from _wrap_labelled(label, text, width)
    yield from _unseen_lines(server.unseen, width)


def _finding_lines(finding: Finding, width: int) -> Iterator[str]:
    label = "CHANGE" if finding.severity is Severity.CHANGE else "note"
    yield from _wrap_labelled(label, f"{finding.says}. [{finding.check}]", width)
    if finding.gain is not None:
        yield from _wrap_labelled("  gain", f"{finding.gain.says} ({finding.gain.basis})", width)
    yield from _change_lines(finding.changes)
    yield ""


def _change_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Lines of changes, not wrapped, because they are copied."""
    for change in changes:
        restart = ", then restart the server" if change.restarts else ""
        yield f"{'':{_INDENT}}{change.where}{restart}:"
        for line in change.lines:
            yield f"{'':{_INDENT}}    {line}"


def _fact_rows(server: Server) -> Iterator[tuple[str, str]]:
    yield from _labelled_rows("listens", [_format_listener(listener) for listener in server.listeners])
    if not server.sockets:
        yield "", "no Unix socket" if server.listeners_complete else "whether it has a Unix socket is unknown"
    if server.compression not in ("none", "unknown"):
        yield "", f"compression offered: {server.compression}"
    rows = [_format_client(client) for client in server.clients]
    if server.socket_connections:
        rows.append(f"{counted(server.socket_connections, 'connection')} over the socket")
    yield from _labelled_rows("clients", rows or ["none seen" if server.listeners else "none: it does not listen"])
    if server.rates is not None:
        yield "per second", _rates_text(server.rates, server.kind)
    floors = []
    for floor in server.floors:
        name = floor.transport.value.replace("-tls", " with TLS")
        connect = f", {floor.connect_ns.text} per connect" if floor.connect_ns is not None else ""
        display_name = name.upper() if name in ("tcp", "tls") else name
        floors.append(f"{display_name}: {floor.round_trip_ns.text} per round trip{connect}")
    yield from _labelled_rows("floor", floors)


def _labelled_rows(label: str, rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Rows of a block; the label is before the first one only."""
    for number, row in enumerate(rows):
        yield "" if number else label, row


def _format_listener(listener: Listener) -> str:
    if listener.path is None:
        return f"{listener.where}, {_TLS[listener.tls]}"
    file = listener.file
    access = f", mode {file.mode:04o} {file.owner}:{file.group}, open to {file.who}" if file is not None else ""
    return f"{listener.path}{access}{_STATE[listener.state]}"


def _format_client(client: Client) -> str:
    transport = (
        "over the socket" if client.by == "socket" else "over TCP" + (" from this machine" if client.local else "")
    )
    parts = [transport, counted(client.connections, "connection")]
    if client.connects_seen > client.connections:
        parts.append(f"{client.connects_seen} seen in all")
    parts += [{True: "TLS", False: "no TLS", None: "TLS unknown"}[client.tls]]
    parts += ["compressed"] if client.compressed else []
    return f"{client.description if client.local else client.address}: {', '.join(parts)}"


def _rates_text(rates: Rates, kind: Kind) -> str:
    parts = [f"{rates.connects:.3g} connects", f"{rates.statements:.3g} {kind.counts}"]
    if rates.tls_connects:
        parts.append(f"{rates.tls_connects:.3g} TLS handshakes")
    return ", ".join(parts)


def _unseen_lines(unseen: Iterable[Unseen], width: int) -> Iterator[str]:
    rows = [f"{item.what}: {item.why}" + (f". To see it: {item.how}" if item.how else "") for item in unseen]
    for label, row in _labelled_rows("not seen", rows):
        yield from _wrap_labelled(label, row, width)


def _wrap_labelled(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{label:<{_INDENT}}",
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
