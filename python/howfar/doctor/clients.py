"""Who uses a server, as values: what /proc saw during the look, with what the server says of the same sessions. Pure but for names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from howfar.doctor import procfs
from howfar.doctor.findings import SHORT, UNSEEN, Client, Listener
from howfar.doctor.sockets import may_use
from howfar.doctor.speakers.session import SessionSeen
from howfar.doctor.watch import Holder


@dataclass(frozen=True)
class Sight:
    """What is known of one server's sessions beside who holds them."""

    sessions: Sequence[SessionSeen]
    listeners: Sequence[Listener]
    never_tls: bool
    """It has none, or has counted none since it started."""
    socket: str | None


def clients(holders: Sequence[Holder], programs: Mapping[int, procfs.Process], sight: Sight) -> tuple[Client, ...]:
    """One for each program and account, in the order of their connections; then what is known of those on the socket."""
    parts = [(_by_tcp(holder, programs, sight), holder.at_once) for holder in holders]
    parts += [(client, client.connections) for client in _by_socket(sight)]
    merged: dict[object, Client] = {}
    at_once: dict[object, int] = {}
    for part, together in parts:
        key = (part.program, part.user, part.address, part.by, part.local, part.tls)
        merged[key] = _added(merged[key], part) if key in merged else part
        at_once[key] = at_once.get(key, 0) + together if part.by == "socket" else max(at_once.get(key, 0), together)
    found = [
        client.model_copy(update={"connections": min(client.connections, at_once[key])})
        for key, client in merged.items()
    ]
    return tuple(sorted(found, key=lambda client: -client.connections))


def _by_tcp(holder: Holder, programs: Mapping[int, procfs.Process], sight: Sight) -> Client:
    process = programs.get(holder.pid) if holder.pid is not None else None
    uid = process.uid if process is not None else holder.uid
    told = [session for session in sight.sessions if session.port in holder.ports]
    return Client(
        program=process.shown if process is not None else _unknown(uid),
        pids=(holder.pid,) if holder.pid is not None else (),
        user=procfs.account(uid) if uid is not None else None,
        local=holder.remote is None,
        address=holder.remote,
        by="tcp",
        connections=holder.connections,
        connects_seen=len(holder.ports),
        tls=_tls(holder, told, sight),
        compressed=_any([session.compressed for session in told]),
        may_use_socket=may_use(sight.socket, uid, holder.pid) if sight.socket is not None and uid is not None else None,
        bundle_looks=holder.bundle_looks,
        bundle_reads=holder.bundle_reads,
        bundle_connects=holder.bundle_connects,
    )


def _unknown(uid: int | None) -> str:
    return SHORT if os.geteuid() in (0, uid) else UNSEEN


def _tls(holder: Holder, told: Sequence[SessionSeen], sight: Sight) -> bool | None:
    if sight.never_tls:
        return False
    if (said := _any([session.tls for session in told])) is not None:
        return said
    of_ports = {found.tls for found in sight.listeners if found.port in holder.server_ports}
    if of_ports == {"always"}:
        return True
    return False if of_ports == {"none"} else None


def _by_socket(sight: Sight) -> list[Client]:
    """Only as the server tells: the kernel does not say in /proc who is at the other end."""
    found = []
    for session in sight.sessions:
        if session.port is not None or (session.tls is None and session.pid is None):
            continue
        process = procfs.process(session.pid) if session.pid is not None else None
        found.append(
            Client(
                program=process.shown if process is not None else UNSEEN,
                pids=(session.pid,) if session.pid is not None else (),
                user=procfs.account(process.uid) if process is not None else None,
                local=True,
                address=None,
                by="socket",
                connections=1,
                connects_seen=1,
                tls=session.tls,
                compressed=session.compressed,
                may_use_socket=True,
                bundle_looks=0,
                bundle_reads=0,
                bundle_connects=0,
            )
        )
    return found


def _any(said: Sequence[bool | None]) -> bool | None:
    known = [word for word in said if word is not None]
    return any(known) if known else None


def _added(one: Client, other: Client) -> Client:
    usable = None if None in (one.may_use_socket, other.may_use_socket) else one.may_use_socket and other.may_use_socket
    return one.model_copy(
        update={
            "pids": tuple(sorted({*one.pids, *other.pids})),
            "connections": one.connections + other.connections,
            "connects_seen": one.connects_seen + other.connects_seen,
            "compressed": _any([one.compressed, other.compressed]),
            "may_use_socket": usable,
            "bundle_looks": one.bundle_looks + other.bundle_looks,
            "bundle_reads": one.bundle_reads + other.bundle_reads,
            "bundle_connects": one.bundle_connects + other.bundle_connects,
        }
    )
