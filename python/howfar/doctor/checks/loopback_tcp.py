"""Clients on this machine that come by TCP though there is a socket that they may use."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, as_sure, cheaper_way, do
from howfar.doctor.lines.clients import by_socket


def check(seen: Seen) -> list[Made]:
    socket = seen.server.socket()
    using = [client for client in seen.by_tcp() if client.may_use_socket is not False]
    if socket is None or not using:
        return []
    assert socket.path is not None, "a socket has a path"
    unsure = "" if all(client.may_use_socket for client in using) else " (whether it may use it cannot be seen)"
    return [
        Made(
            f"{do(using, 'comes', 'come')} by TCP to this very machine, though the socket {socket.path} is there{unsure}",
            by_socket(seen.server.kind, socket.path, using),
            cheaper_way(seen, using),
            as_sure(using),
        )
    ]
