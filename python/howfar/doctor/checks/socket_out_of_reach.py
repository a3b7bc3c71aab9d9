"""A socket that a client of this machine may not use, by the mode of its file or of a directory above it."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, as_sure, cheaper_way, named
from howfar.doctor.findings import Listener
from howfar.doctor.lines.clients import by_socket
from howfar.doctor.lines.servers import socket_on


def check(seen: Seen) -> list[Made]:
    socket = seen.server.socket()
    using = [client for client in seen.by_tcp() if client.may_use_socket is False]
    if socket is None or not using or socket.file is None:
        return []
    assert socket.path is not None, "a socket has a path"
    path = _open_path(seen, socket)
    return [
        Made(
            f"{named(using)} may not use the socket {socket.path}, which is for {socket.file.who}; so TCP is used",
            (*socket_on(seen.server, using, path), *by_socket(seen.server.kind, path, using)),
            cheaper_way(seen, using),
            as_sure(using),
        )
    ]


def _open_path(seen: Seen, socket: Listener) -> str:
    """Where a directory is closed, often a data directory, the socket moves out of it rather than the directory being opened."""
    assert socket.path is not None and socket.file is not None, "a socket with a file"
    return seen.path if socket.file.who.startswith("only who may enter") or socket.file.mode & 0o002 else socket.path
