"""No socket at all, while clients on this machine would have a use for one. Without such clients nothing is lost, and nothing said."""

from __future__ import annotations

from ipaddress import ip_address

from howfar.doctor.checks.seen import Made, Seen, as_sure, cheaper_way, do, named
from howfar.doctor.findings import Change, Kind, Severity
from howfar.doctor.lines.clients import by_socket
from howfar.doctor.lines.servers import file_of, socket_on


def check(seen: Seen) -> list[Made]:
    server = seen.server
    using = seen.by_tcp()
    if server.sockets or not server.listeners_complete or not server.listeners or not using:
        return []
    says = f"no Unix socket, so {do(using, 'comes', 'come')} by TCP to this very machine"
    gain = cheaper_way(seen, using)
    if server.kind is Kind.MEMCACHED and (others := _others(seen)):
        # With -s it listens nowhere else, which would cut them off.
        why = f"{says}; but memcached serves either a socket or TCP, and TCP is for {others} too"
        return [Made(why, (), gain, Severity.NOTE)]
    changes = socket_on(server, using, seen.path)
    if server.kind is Kind.MEMCACHED:
        taken_out = ("# take out: -p, -l and -Z, which it does not obey beside -s",)
        changes = (Change(where=file_of(server), lines=taken_out, restarts=True), *changes)
    return [Made(says, (*changes, *by_socket(server.kind, seen.path, using)), gain, as_sure(using))]


def _others(seen: Seen) -> str:
    """Who needs TCP; empty when it is open to this machine alone, and nobody was seen who does."""
    if needs := seen.only_by_tcp():
        return named(needs)
    addresses = [
        found.where for found in seen.server.listeners if found.host and not ip_address(found.host).is_loopback
    ]
    return f"other machines ({', '.join(addresses)})" if addresses else ""
