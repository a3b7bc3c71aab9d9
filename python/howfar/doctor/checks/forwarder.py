"""A forwarder on this machine that reaches the server by TCP: others may need it, but its last step need not be TCP."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, cheaper_way, do, forwards
from howfar.doctor.findings import Change, Kind
from howfar.doctor.lines.servers import socket_on

_LINES = {
    "socat": "UNIX-CONNECT:{path}   in place of TCP:…",
    "haproxy": "server db unix@{path}",
    "nginx": "server unix:{path};",
    "proxysql": "INSERT INTO mysql_servers (hostname, port) VALUES ('{path}', 0);",
    "maxscale": "socket={path}",
    "stunnel": "connect = {path}",
}
"""Those that can dial a socket. The others are let be."""


def check(seen: Seen) -> list[Made]:
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
        Made(f"{do(using, 'forwards', 'forward')} to it by TCP on this very machine", changes, cheaper_way(seen, using))
    ]
