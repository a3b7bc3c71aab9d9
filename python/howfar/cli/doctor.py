"""`howfar doctor`: examines the database servers of this machine and reports lines to change. Thin: reads, calls, shows."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import click

from howfar.address import Login as AddressLogin
from howfar.address import Secret, ServerAddress
from howfar.cli.exit_codes import TO_CHANGE
from howfar.cli.screen import note, show_json
from howfar.cli.target import (
    located,
    numeric,
    of_laboratory,
    own_name,
    parse_target,
    password,
    password_note,
    read_option_file,
    variable,
)
from howfar.doctor.candidates import PROGRAMS
from howfar.doctor.findings import (
    Change,
    Client,
    Examination,
    Finding,
    Kind,
    Listener,
    Rates,
    Server,
    Severity,
    Unseen,
)
from howfar.doctor.targets import Login, Logins, Target, target_of
from howfar.engine.ping_messages import UnixTarget
from howfar.errors import MissingError, UsageError
from howfar.passwords import learn
from howfar.terminal_text import one_line
from howfar.units import counted

_WIDTH_MOST = 120


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

    targets = [_numeric(_named(dsn, True)) for dsn in dsns]
    targets += [_numeric(_named(variable(name, os.environ), False)) for name in env_names]
    if not targets and (address := of_laboratory()) is not None and (protocol := os.environ.get("HOWFAR_PROTOCOL")):
        note("using the server of `howfar lab`")
        known = Target(
            Kind(protocol), address.socket, address.host, address.port, None, False, database=address.database
        )
        targets = [_numeric(known)]
    logins = _logins(user, password_file, ask_password, defaults_file)
    if not as_json:
        note(f"watching connections for {seconds:g} s")
    seen = examine(targets, logins, seconds)
    if as_json:
        show_json(seen.model_dump_json(indent=2, by_alias=True))
    else:
        click.echo(screen(seen, min(shutil.get_terminal_size((100, 24)).columns, _WIDTH_MOST)))
    if targets and seen.unseen:
        return MissingError.exit_code
    return TO_CHANGE if strict and seen.to_change else 0


def _named(dsn: str, seen: bool) -> Target:
    """The server of a DSN. `seen`: it is on the command line, where other users see it. Raises UsageError."""
    given = parse_target(dsn)
    if given.address.service is not None:
        raise UsageError("howfar doctor does not read service files", "Name host, port and user in the DSN.")
    target = target_of(AddressLogin(located(given.address, os.environ), given.password or Secret()))
    for remark in (*given.notes, *password_note(seen, given)):
        note(remark)
    return target


def _numeric(target: Target) -> Target:
    """A target with its host name resolved to an address, as in `howfar load`."""
    found = numeric(ServerAddress(host=target.host, port=target.port, socket=target.path), note)
    if isinstance(found, UnixTarget):
        return replace(target, path=found.path, host=None, port=None)
    return replace(target, path=None, host=found.host, port=found.port)


def _logins(user: str | None, password_file: Path | None, ask: bool, defaults_file: Path | None) -> Logins:
    """The logins that the options give. Raises UsageError."""
    secret = os.environ.get("HOWFAR_PASSWORD_FILE")
    if secret and not (user or password_file or ask or defaults_file):
        note("using the account of `howfar lab`")
        user, password_file = os.environ.get("HOWFAR_USER"), Path(secret)
    address, of_file = ServerAddress(), None
    if defaults_file is not None:
        file = read_option_file(defaults_file, os.environ, note)
        address, of_file = file.address, file.password
    given = password(password_file, ask, of_file, note, os.environ).reveal()
    mysql = Login(user or address.user or own_name(), given or os.environ.get("MYSQL_PWD", ""))
    of_libpq = Login(user or os.environ.get("PGUSER", ""), given or os.environ.get("PGPASSWORD", ""))
    redis = os.environ.get("HOWFAR_REDIS_PASSWORD", os.environ.get("REDISCLI_AUTH", ""))
    for login in (mysql, of_libpq):
        learn(login.password)
    learn(redis)
    return Logins(mysql, Login("", redis), of_libpq)


# ---------------------------------------------------------------- the report as text

NOWHERE = f"Looked for {', '.join(PROGRAMS)} among the processes, and at their usual ports and sockets."
_INDENT = 12
_TLS = {"none": "no TLS", "offered": "TLS offered", "always": "TLS only", "unknown": "TLS unknown"}
_STATE = {"works": "", "gone": ", path does not exist any more", "elsewhere": ", path belongs to another process",
          "unseen": ", cannot be checked"}  # fmt: skip


def screen(seen: Examination, width: int) -> str:
    """The report as text."""
    return "\n".join(one_line(line) for line in _lines(seen, max(width, 60)))


def _lines(seen: Examination, width: int) -> Iterator[str]:
    yield from _head(seen, width)
    for server in seen.servers:
        yield ""
        yield from _server_lines(server, width)
    if seen.to_change:
        yield ""
        yield "After the changes, run howfar doctor again."
    if seen.unseen:
        yield ""
        yield "NOT SEEN on this machine"
        yield from _unseen_lines(seen.unseen, width)


def _head(seen: Examination, width: int) -> Iterator[str]:
    if not seen.servers:
        yield "No MySQL, MariaDB, PostgreSQL, Redis or Memcached server was found that can be reached from here."
        yield from textwrap.wrap(NOWHERE, width)
        return
    yield f"{counted(len(seen.servers), 'server')}, {_verdict(seen)}."
    load = f"load average {seen.load_average:.1f} on {counted(seen.cpus, 'CPU')}"
    about = f"Connections were watched for {seen.watched_s:.1f} s ({seen.looks} looks); {load}."
    yield from textwrap.wrap(f"{about} Times are medians with 95 % intervals.", width)


def _verdict(seen: Examination) -> str:
    """The number of changes, or an all-clear for what was examined."""
    if seen.to_change:
        return counted(seen.to_change, "change")
    unseen = len(seen.unseen) + sum(len(server.unseen) for server in seen.servers)
    if not unseen:
        return "nothing to change"
    logins = sum(server.logged_in for server in seen.servers)
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
        yield from _finding(finding, width)
    for label, text in _facts(server):
        yield from _labelled(label, text, width)
    yield from _unseen_lines(server.unseen, width)


def _finding(finding: Finding, width: int) -> Iterator[str]:
    label = "CHANGE" if finding.severity is Severity.CHANGE else "note"
    yield from _labelled(label, f"{finding.says}. [{finding.check}]", width)
    if finding.gain is not None:
        yield from _labelled("  gain", f"{finding.gain.says} ({finding.gain.basis})", width)
    yield from _changes(finding.changes)
    yield ""


def _changes(changes: Iterable[Change]) -> Iterator[str]:
    """Lines of changes, not wrapped, because they are copied."""
    for change in changes:
        restart = ", then restart the server" if change.restarts else ""
        yield f"{'':{_INDENT}}{change.where}{restart}:"
        for line in change.lines:
            yield f"{'':{_INDENT}}    {line}"


def _facts(server: Server) -> Iterator[tuple[str, str]]:
    yield from _block("listens", [_listener(listener) for listener in server.listeners])
    if not server.sockets:
        yield "", "no Unix socket" if server.listeners_complete else "whether it has a Unix socket is unknown"
    if server.compression not in ("none", "unknown"):
        yield "", f"compression offered: {server.compression}"
    rows = [_client(client) for client in server.clients]
    if server.socket_connections:
        rows.append(f"{counted(server.socket_connections, 'connection')} over the socket")
    yield from _block("clients", rows or ["none seen" if server.listeners else "none: it does not listen"])
    if server.rates is not None:
        yield "per second", _rates_text(server.rates, server.kind)
    floors = []
    for floor in server.floors:
        name = floor.transport.value.replace("-tls", " with TLS")
        connect = f", {floor.connect_ns.text} per connect" if floor.connect_ns is not None else ""
        shown = name.upper() if name in ("tcp", "tls") else name
        floors.append(f"{shown}: {floor.round_trip_ns.text} per round trip{connect}")
    yield from _block("floor", floors)


def _block(label: str, rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Rows of a block; the label is before the first one only."""
    for number, row in enumerate(rows):
        yield "" if number else label, row


def _listener(listener: Listener) -> str:
    if listener.path is None:
        return f"{listener.where}, {_TLS[listener.tls]}"
    file = listener.file
    access = f", mode {file.mode:04o} {file.owner}:{file.group}, open to {file.who}" if file is not None else ""
    return f"{listener.path}{access}{_STATE[listener.state]}"


def _client(client: Client) -> str:
    over = "over the socket" if client.by == "socket" else "over TCP" + (" from this machine" if client.local else "")
    parts = [over, counted(client.connections, "connection")]
    if client.connects_seen > client.connections:
        parts.append(f"{client.connects_seen} seen in all")
    parts += [{True: "TLS", False: "no TLS", None: "TLS unknown"}[client.tls]]
    parts += ["compressed"] if client.compressed else []
    return f"{client.named if client.local else client.address}: {', '.join(parts)}"


def _rates_text(rates: Rates, kind: Kind) -> str:
    parts = [f"{rates.connects:.3g} connects", f"{rates.statements:.3g} {kind.counts}"]
    if rates.tls_connects:
        parts.append(f"{rates.tls_connects:.3g} TLS handshakes")
    return ", ".join(parts)


def _unseen_lines(unseen: Iterable[Unseen], width: int) -> Iterator[str]:
    rows = [f"{one.what}: {one.why}" + (f". To see it: {one.how}" if one.how else "") for one in unseen]
    for label, row in _block("not seen", rows):
        yield from _labelled(label, row, width)


def _labelled(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{label:<{_INDENT}}",
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
