"""No socket at all, while clients on this machine would have a use for one. Without such clients nothing is lost, and nothing said."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, as_sure, cheaper_way, do
from howfar.doctor.findings import Change, Kind, Severity
from howfar.doctor.lines.clients import by_socket
from howfar.doctor.lines.servers import PATHS, file_of, socket_on


def check(seen: Seen) -> list[Made]:
    server = seen.server
    using = seen.by_tcp()
    if server.sockets or not server.listeners_complete or not server.listeners or not using:
        return []
    says = f"no Unix socket, so {do(using, 'comes', 'come')} by TCP to this very machine"
    gain = cheaper_way(seen, using)
    if server.kind is Kind.MEMCACHED and (others := seen.remote()):
        # With -s it listens nowhere else, which would cut them off.
        addresses = ", ".join(sorted({client.address or "" for client in others}))
        why = f"{says}; but memcached serves either a socket or TCP, and other machines ({addresses}) use this one"
        return [Made(why, (), gain, Severity.NOTE)]
    changes = socket_on(server, using)
    if server.kind is Kind.MEMCACHED:
        taken_out = ("# take out: -p, -l and -Z, which it does not obey beside -s",)
        changes = (Change(where=file_of(server), lines=taken_out, restarts=True), *changes)
    return [Made(says, (*changes, *by_socket(server.kind, PATHS[server.kind], using)), gain, as_sure(using))]
