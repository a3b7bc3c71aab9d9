"""Local clients that use TCP where a Unix socket would do, and sockets that cannot be used."""

from __future__ import annotations

from ipaddress import ip_address

from howfar.doctor.checks.context import Context, Draft, do, forwards, named, severity_for, socket_gain
from howfar.doctor.findings import Change, Gain, Kind, Listener, Severity
from howfar.doctor.procfs import CLEANED
from howfar.doctor.proposals import by_socket, file_of, socket_again, socket_on, with_socket

_FORWARDER_LINES = {
    "socat": "UNIX-CONNECT:{path}   in place of TCP:…",
    "haproxy": "server db unix@{path}",
    "nginx": "server unix:{path};",
    "proxysql": "INSERT INTO mysql_servers (hostname, port) VALUES ('{path}', 0);",
    "maxscale": "socket={path}",
    "stunnel": "connect = {path}",
    "pgbouncer": "DB = host={folder} port={port}   ; in [databases]",
}
"""Forwarders that can connect to a socket."""
_IGNORED = {
    "-p": "nothing listens on that port",
    "-l": "nothing listens on that address",
    "-Z": "the socket is not encrypted",
}


def loopback_tcp(context: Context) -> list[Draft]:
    """A local client uses TCP although there is a socket that it may use."""
    socket = context.server.socket()
    using = [client for client in context.by_tcp() if client.may_use_socket is not False]
    if socket is None or not using:
        return []
    assert socket.path is not None, "a socket has a path"
    unsure = "" if all(client.may_use_socket for client in using) else " (whether it has access is unknown)"
    says = f"{do(using, 'connects', 'connect')} over TCP from this machine, although there is the socket {socket.path}{unsure}"
    changes = by_socket(context.server.kind, socket.path, using)
    return [Draft(says, changes, socket_gain(context, using), severity_for(using))]


def socket_off(context: Context) -> list[Draft]:
    """The server has no socket, and local clients could use one."""
    server, using = context.server, context.by_tcp()
    if server.sockets or not server.listeners_complete or not server.listeners or not using:
        return []
    says = f"there is no Unix socket, so {do(using, 'connects', 'connect')} over TCP from this machine"
    gain = socket_gain(context, using)
    if server.kind is Kind.MEMCACHED and (others := _others(context)):
        # With -s it listens nowhere else, which would cut them off.
        says = f"{says}; but memcached serves either a socket or TCP, and TCP also serves {others}"
        return [Draft(says, (), gain, Severity.NOTE)]
    changes = socket_on(server, using, context.path)
    if server.kind is Kind.MEMCACHED:
        removed = ("# remove -p, -l and -Z, which it ignores with -s",)
        changes = (Change(where=file_of(server), lines=removed, restarts=True), *changes)
    return [Draft(says, (*changes, *by_socket(server.kind, context.path, using)), gain, severity_for(using))]


def _others(context: Context) -> str:
    """Who needs TCP; empty when the server listens on the loopback only and no such client was seen."""
    if needs := context.only_by_tcp():
        return named(needs)
    listeners = context.server.listeners
    addresses = [found.where for found in listeners if found.host and not ip_address(found.host).is_loopback]
    return f"other machines ({', '.join(addresses)})" if addresses else ""


def socket_out_of_reach(context: Context) -> list[Draft]:
    """The mode of the socket or of a directory above it keeps a local client out."""
    socket = context.server.socket()
    using = [client for client in context.by_tcp() if client.may_use_socket is False]
    if socket is None or not using or socket.file is None:
        return []
    assert socket.path is not None, "a socket has a path"
    path = _accessible_path(context, socket)
    says = f"{named(using)} may not use the socket {socket.path} (open to {socket.file.who}) and so uses TCP"
    changes = (*socket_on(context.server, using, path), *by_socket(context.server.kind, path, using))
    return [Draft(says, changes, socket_gain(context, using), severity_for(using))]


def _accessible_path(context: Context, socket: Listener) -> str:
    """A socket in a closed directory, often the data directory, moves out of it; the directory stays closed."""
    assert socket.path is not None and socket.file is not None, "a socket with a file"
    return context.path if socket.file.in_closed_directory or socket.file.mode & 0o002 else socket.path


def socket_gone(context: Context) -> list[Draft]:
    """The server listens on a path that was removed or belongs to another server."""
    drafts = []
    for listener in context.server.sockets:
        if listener.state not in ("gone", "elsewhere"):
            continue
        assert listener.path is not None, "a socket has a path"
        cleaned = listener.path.startswith(CLEANED)
        what = "does not exist any more" if listener.state == "gone" else "belongs to another process"
        why = ", perhaps removed by a cleaner of temporary files or hidden by PrivateTmp" if cleaned else ""
        path = context.path if cleaned or listener.state == "elsewhere" else listener.path
        gain = Gain(says="the socket can be used again", basis="the path was tried just now", saves_ns=None)
        says = f"it listens on the socket {listener.path}, which {what}{why}"
        drafts.append(Draft(says, socket_again(context.server, path), gain))
    return drafts


def forwarder(context: Context) -> list[Draft]:
    """A local forwarder connects over TCP: its clients may need TCP, its last hop does not."""
    server = context.server
    using = [
        client
        for client in server.clients
        if client.local and client.by == "tcp" and forwards(client) and client.program in _FORWARDER_LINES
    ]
    if not using or (server.kind is Kind.MEMCACHED and not server.sockets):
        return []
    socket = server.socket()
    path = socket.path if socket is not None and socket.path is not None else context.path
    changes = () if socket is not None else socket_on(server, using, path)
    for client in using:
        line = with_socket(_FORWARDER_LINES[client.program], path)
        changes += (Change(where=client.program, lines=(line,), restarts=False),)
    says = f"{do(using, 'forwards', 'forward')} to it over TCP on this machine"
    return [Draft(says, changes, socket_gain(context, using))]


def options_ignored(context: Context) -> list[Draft]:
    """Options that memcached silently ignores with -s."""
    ignored = context.server.ignored
    if not ignored:
        return []
    means = "; ".join(f"{option}: {_IGNORED[option]}" for option in ignored)
    removed = tuple(f"# remove {option}" for option in ignored)
    change = Change(where=file_of(context.server), lines=removed, restarts=True)
    gain = Gain(
        says="its command line says what it does", basis="every address on which it listens was tried", saves_ns=None
    )
    return [Draft(f"with -s it ignores {', '.join(ignored)} ({means})", (change,), gain)]
