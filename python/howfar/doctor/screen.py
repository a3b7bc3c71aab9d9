"""An examination as text for a terminal: what to change first, then the facts of each server, then what was not seen. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from howfar.doctor.checks import format_interval, named
from howfar.doctor.findings import Change, Client, Examination, Finding, Kind, Listener, Rates, Server, Severity, Unseen
from howfar.units import counted

NOWHERE = (
    "Looked for mysqld, mariadbd, postgres, redis-server, valkey-server and memcached among the processes, and at their usual "
    "ports and sockets."
)
_INDENT = 12
_TLS = {"none": "no TLS", "offered": "TLS offered", "always": "TLS only", "unknown": "TLS unknown"}
_STATE = {"works": "", "gone": ", path does not exist any more", "elsewhere": ", path belongs to another process",
          "unseen": ", cannot be checked"}  # fmt: skip


def screen(seen: Examination, width: int) -> str:
    """Names and paths come from others: characters that would move a terminal's cursor are replaced."""
    lines = _lines(seen, max(width, 60))
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in line) for line in lines)


def _lines(seen: Examination, width: int) -> Iterator[str]:
    yield from _head(seen, width)
    for server in seen.servers:
        yield ""
        yield from _server(server, width)
    if seen.to_change:
        yield ""
        yield "After the changes, run howfar doctor again."
    if seen.unseen:
        yield ""
        yield "NOT SEEN on this machine"
        yield from _unseen(seen.unseen, width)


def _head(seen: Examination, width: int) -> Iterator[str]:
    if not seen.servers:
        yield "No MySQL, MariaDB, PostgreSQL, Redis or Memcached server was found that can be reached from here."
        yield from textwrap.wrap(NOWHERE, width)
        return
    changes = counted(seen.to_change, "change") if seen.to_change else "nothing to change"
    yield f"{counted(len(seen.servers), 'server')}, {changes}."
    load = f"load average {seen.load_average:.1f} on {seen.cpus} CPUs"
    about = f"Connections were watched for {seen.watched_s:.1f} s ({seen.looks} looks); {load}."
    yield from textwrap.wrap(f"{about} Times are medians with 95 % intervals.", width)


def _server(server: Server, width: int) -> Iterator[str]:
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
    yield from _unseen(server.unseen, width)


def _finding(finding: Finding, width: int) -> Iterator[str]:
    label = "CHANGE" if finding.severity is Severity.CHANGE else "note"
    yield from _labelled(label, f"{finding.says}. [{finding.check}]", width)
    if finding.gain is not None:
        yield from _labelled("  gain", f"{finding.gain.says} ({finding.gain.basis})", width)
    yield from _changes(finding.changes)
    yield ""


def _changes(changes: Iterable[Change]) -> Iterator[str]:
    """Not wrapped: these lines are copied."""
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
        yield "per second", _rates(server.rates, server.kind)
    floors = []
    for floor in server.floors:
        name = floor.transport.value.replace("-tls", " with TLS")
        connect = f", {format_interval(floor.connect_ns)} per connect" if floor.connect_ns is not None else ""
        shown = name.upper() if name in ("tcp", "tls") else name
        floors.append(f"{shown}: {format_interval(floor.round_trip_ns)} per round trip{connect}")
    yield from _block("floor", floors)


def _block(label: str, rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The label before the first row only."""
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
    return f"{named([client]) if client.local else client.address}: {', '.join(parts)}"


def _rates(rates: Rates, kind: Kind) -> str:
    parts = [f"{rates.connects:.3g} connects", f"{rates.statements:.3g} {kind.counts}"]
    if rates.tls_connects:
        parts.append(f"{rates.tls_connects:.3g} TLS handshakes")
    return ", ".join(parts)


def _unseen(unseen: Iterable[Unseen], width: int) -> Iterator[str]:
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
