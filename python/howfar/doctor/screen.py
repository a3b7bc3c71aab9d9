"""The examination as a screen of text: what is wrong first, then what was seen of each server, then what was not seen. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from howfar.doctor.checks.context import format_interval, named
from howfar.doctor.findings import Change, Client, Examination, Finding, Listener, Rates, Server, Severity, Unseen

NOWHERE = (
    "Looked for mysqld, mariadbd, redis-server, valkey-server and memcached among the processes, and at their usual ports "
    "and sockets."
)
_INDENT = 12


def screen(seen: Examination, width: int) -> str:
    """Names and paths are others' choice: what would move a terminal's cursor is not shown as it is."""
    lines = _lines(seen, max(width, 60))
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in line) for line in lines)


def _lines(seen: Examination, width: int) -> Iterator[str]:
    yield from _head(seen, width)
    for server in seen.servers:
        yield ""
        yield from _server(server, width)
    if seen.to_change:
        yield ""
        yield "Then look again: howfar doctor"
    if seen.unseen:
        yield ""
        yield "NOT SEEN on this machine"
        yield from _unseen(seen.unseen, width)


def _head(seen: Examination, width: int) -> Iterator[str]:
    if not seen.servers:
        yield "No MySQL, MariaDB, Redis or Memcached server was found that can be reached from here."
        yield from textwrap.wrap(NOWHERE, width)
        return
    many = f"{len(seen.servers)} server{'s' * (len(seen.servers) != 1)}"
    wrong = seen.to_change
    verdict = f"{wrong} thing{'s' * (wrong != 1)} to change" if wrong else "nothing to change"
    yield f"{many}, {verdict}."
    machine = f"load average {seen.load_average:.1f} on {seen.cpus} CPUs"
    about = f"Connections were watched for {seen.watched_s:.1f} s in {seen.looks} looks; {machine}."
    yield from textwrap.wrap(f"{about} Times are medians with 95 % intervals.", width)


def _server(server: Server, width: int) -> Iterator[str]:
    whose = [f"pid {server.pid}" if server.pid is not None else "no process seen", server.user or ""]
    title = f"{server.name} ({', '.join(word for word in whose if word)})"
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
    if finding.changes:
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
    for number, listener in enumerate(server.listeners):
        yield "listens" if number == 0 else "", _listener(listener)
    if not server.sockets:
        yield (
            "",
            "no Unix socket" if server.listeners_complete else "whether it has a Unix socket cannot be seen from here",
        )
    if server.compression not in ("none", "unknown"):
        yield "", f"compression offered: {server.compression}"
    for number, client in enumerate(server.clients):
        yield "clients" if number == 0 else "", _client(client)
    if server.socket_connections:
        yield "clients" if not server.clients else "", f"{server.socket_connections} connections over the socket"
    if not server.clients and not server.socket_connections:
        yield "clients", "none seen" + ("" if server.listeners else ", as it listens nowhere")
    if server.rates is not None:
        yield "a second", _rates(server.rates)
    for number, floor in enumerate(server.floors):
        connect = f", {format_interval(floor.connect_ns)} a connect" if floor.connect_ns is not None else ""
        name = floor.transport.value.replace("-tls", " with TLS")
        label = name.upper() if name in ("tcp", "tls") else name
        yield "floor" if number == 0 else "", f"{label}: {format_interval(floor.round_trip_ns)} a round trip{connect}"


def _listener(listener: Listener) -> str:
    tls = {"none": "no TLS", "offered": "TLS offered", "always": "TLS only", "unknown": "TLS unknown"}[listener.tls]
    if listener.path is None:
        return f"{listener.where}, {tls}"
    state = {
        "works": "",
        "gone": ", but it leads nowhere any more",
        "elsewhere": ", but it leads to somebody else",
        "unseen": ", unseen",
    }
    file = listener.file
    for_whom = f", mode {file.mode:04o} {file.owner}:{file.group}, for {file.who}" if file is not None else ""
    return f"{listener.path}{for_whom}{state[listener.state]}"


def _client(client: Client) -> str:
    endpoint = "by TCP from this machine" if client.local else f"by TCP from {client.address}"
    words = [
        "over the socket" if client.by == "socket" else endpoint,
        f"{client.connections} connection{'s' * (client.connections != 1)}",
    ]
    if client.connects_seen > client.connections:
        words.append(f"{client.connects_seen} seen in all")
    words += [{True: "TLS", False: "no TLS", None: "TLS unknown"}[client.tls]]
    words += ["compressed"] if client.compressed else []
    return f"{named([client]) if client.local else client.address}: {', '.join(words)}"


def _rates(rates: Rates) -> str:
    words = [f"{rates.connects:.3g} connects", f"{rates.statements:.3g} statements"]
    if rates.tls_connects:
        words.append(f"{rates.tls_connects:.3g} TLS handshakes")
    return ", ".join(words)


def _unseen(unseen: Iterable[Unseen], width: int) -> Iterator[str]:
    for number, one in enumerate(unseen):
        how = f". To see it: {one.how}" if one.how else ""
        yield from _labelled("not seen" if number == 0 else "", f"{one.what}: {one.why}{how}", width)


def _labelled(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{label:<{_INDENT}}",
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
