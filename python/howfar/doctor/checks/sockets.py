"""Clients on this machine that come by TCP though there is a socket that they may use."""

from __future__ import annotations

from ipaddress import ip_address

from howfar.doctor.checks.context import Context, Draft, as_sure, do, forwards, named, socket_gain
from howfar.doctor.findings import Change, Gain, Kind, Listener, Severity
from howfar.doctor.procfs import CLEANED
from howfar.doctor.proposals import by_socket, file_of, socket_again, socket_on


def loopback_tcp(seen: Context) -> list[Draft]:
    socket = seen.server.socket()
    using = [client for client in seen.by_tcp() if client.may_use_socket is not False]
    if socket is None or not using:
        return []
    assert socket.path is not None, "a socket has a path"
    unsure = "" if all(client.may_use_socket for client in using) else " (whether it may use it cannot be seen)"
    return [
        Draft(
            f"{do(using, 'comes', 'come')} by TCP to this very machine, though the socket {socket.path} is there{unsure}",
            by_socket(seen.server.kind, socket.path, using),
            socket_gain(seen, using),
            as_sure(using),
        )
    ]


def socket_off(seen: Context) -> list[Draft]:
    server = seen.server
    using = seen.by_tcp()
    if server.sockets or not server.listeners_complete or not server.listeners or not using:
        return []
    says = f"no Unix socket, so {do(using, 'comes', 'come')} by TCP to this very machine"
    gain = socket_gain(seen, using)
    if server.kind is Kind.MEMCACHED and (others := _others(seen)):
        # With -s it listens nowhere else, which would cut them off.
        why = f"{says}; but memcached serves either a socket or TCP, and TCP is for {others} too"
        return [Draft(why, (), gain, Severity.NOTE)]
    changes = socket_on(server, using, seen.path)
    if server.kind is Kind.MEMCACHED:
        taken_out = ("# take out: -p, -l and -Z, which it does not obey beside -s",)
        changes = (Change(where=file_of(server), lines=taken_out, restarts=True), *changes)
    return [Draft(says, (*changes, *by_socket(server.kind, seen.path, using)), gain, as_sure(using))]


def _others(seen: Context) -> str:
    """Who needs TCP; empty when it is open to this machine alone, and nobody was seen who does."""
    if needs := seen.only_by_tcp():
        return named(needs)
    addresses = [
        found.where for found in seen.server.listeners if found.host and not ip_address(found.host).is_loopback
    ]
    return f"other machines ({', '.join(addresses)})" if addresses else ""


def socket_out_of_reach(seen: Context) -> list[Draft]:
    socket = seen.server.socket()
    using = [client for client in seen.by_tcp() if client.may_use_socket is False]
    if socket is None or not using or socket.file is None:
        return []
    assert socket.path is not None, "a socket has a path"
    path = _open_path(seen, socket)
    return [
        Draft(
            f"{named(using)} may not use the socket {socket.path}, which is for {socket.file.who}; so TCP is used",
            (*socket_on(seen.server, using, path), *by_socket(seen.server.kind, path, using)),
            socket_gain(seen, using),
            as_sure(using),
        )
    ]


def _open_path(seen: Context, socket: Listener) -> str:
    """Where a directory is closed, often a data directory, the socket moves out of it rather than the directory being opened."""
    assert socket.path is not None and socket.file is not None, "a socket with a file"
    return seen.path if socket.file.who.startswith("only who may enter") or socket.file.mode & 0o002 else socket.path


def socket_gone(seen: Context) -> list[Draft]:
    found = []
    for listener in seen.server.sockets:
        if listener.state not in ("gone", "elsewhere"):
            continue
        assert listener.path is not None, "a socket has a path"
        cleaned = listener.path.startswith(CLEANED)
        what = "leads nowhere any more" if listener.state == "gone" else "leads to somebody else"
        why = ", as cleaners of temporary files make it, or a service with a /tmp of its own" if cleaned else ""
        path = seen.path if cleaned or listener.state == "elsewhere" else listener.path
        gain = Gain(says="the socket can be used again", basis="the path was tried just now", saves_ns=None)
        found.append(
            Draft(f"it listens on the socket {listener.path}, which {what}{why}", socket_again(seen.server, path), gain)
        )
    return found


_LINES = {
    "socat": "UNIX-CONNECT:{path}   in place of TCP:…",
    "haproxy": "server db unix@{path}",
    "nginx": "server unix:{path};",
    "proxysql": "INSERT INTO mysql_servers (hostname, port) VALUES ('{path}', 0);",
    "maxscale": "socket={path}",
    "stunnel": "connect = {path}",
}
"""Those that can dial a socket. The others are let be."""


def forwarder(seen: Context) -> list[Draft]:
    using = [
        client
        for client in seen.server.clients
        if client.local and client.by == "tcp" and forwards(client) and client.program in _LINES
    ]
    if not using or (seen.server.kind is Kind.MEMCACHED and not seen.server.sockets):
        return []
    socket = seen.server.socket()
    path = socket.path if socket is not None and socket.path is not None else seen.path
    changes = () if socket is not None else socket_on(seen.server, using, path)
    changes += tuple(
        Change(where=client.program, lines=(_LINES[client.program].format(path=path),), restarts=False)
        for client in using
    )
    return [
        Draft(
            f"{do(using, 'forwards', 'forward')} to it by TCP on this very machine", changes, socket_gain(seen, using)
        )
    ]


_MEANS = {
    "-p": "nobody listens at that port",
    "-l": "nobody listens at that address",
    "-Z": "the socket speaks plain text",
}


def options_ignored(seen: Context) -> list[Draft]:
    ignored = seen.server.ignored
    if not ignored:
        return []
    means = "; ".join(f"{option}: {_MEANS[option]}" for option in ignored)
    take_out = tuple(f"# take out: {option}" for option in ignored)
    return [
        Draft(
            f"beside -s it does not obey {', '.join(ignored)} ({means})",
            (Change(where=file_of(seen.server), lines=take_out, restarts=True),),
            Gain(
                says="its command line says what it does",
                basis="it was asked at all places where it listens",
                saves_ns=None,
            ),
        )
    ]
