"""From places where somebody listens to servers that answered: what each is, where, with TLS or not, and who gets in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from howfar.doctor.discovery import Candidate, Spot
from howfar.doctor.findings import Kind, Listener, Transport, Unseen
from howfar.doctor.procfs import Process
from howfar.doctor.sockets import look_at
from howfar.doctor.speakers import SPEAKERS
from howfar.doctor.speakers.session import Greeting, NotThis, Way
from howfar.doctor.targets import Login, Logins, Target

SYSTEM_UIDS = 1000
"""Below are accounts of the system (Debian's and Red Hat's ranges)."""
_OF_ANOTHER_NAMESPACE, _SOCKET_ACTIVATION = 0, 1


@dataclass
class Known:
    """A server that answered, or whose process is here though nothing of it answers."""

    kind: Kind
    process: Process | None
    target: Target | None
    login: Login
    name: str = ""
    listeners: list[Listener] = field(default_factory=list)
    ways: dict[Transport, Way] = field(default_factory=dict)
    """Those that answered, one of each."""
    tls: str = "unknown"
    compression: str = "unknown"
    refusals: dict[str, str] = field(default_factory=dict)
    """By where: why nobody was let in."""
    unseen: list[Unseen] = field(default_factory=list)


def identify(candidate: Candidate, logins: Logins, target: Target | None) -> Known | None:
    """None when a guess was wrong: nobody answers there as such a server would."""
    known = Known(candidate.kind, candidate.process, target, _trusted(candidate, logins, target))
    silent = []
    for spot in candidate.spots:
        if not _greeted(known, spot):
            silent.append(spot)
    if not known.name and (candidate.process is None or not candidate.certain):
        return None
    if candidate.certain:
        for spot in silent:
            _not_answering(known, spot)
    known.name = known.name or candidate.kind.value
    return known


def _trusted(candidate: Candidate, logins: Logins, target: Target | None) -> Login:
    """A password goes to a server that was named, or that root, the system's accounts or our own run; not to anybody's process."""
    login = logins.of(candidate.kind)
    if target is not None:
        return Login(target.user or login.user, login.password)
    process = candidate.process
    if process is not None and (process.uid < SYSTEM_UIDS or process.uid == os.geteuid()):
        return login
    return Login(login.user, "")


def _greeted(known: Known, spot: Spot) -> bool:
    way = Way(spot.path, spot.dialled, spot.port)
    try:
        greeting = SPEAKERS[known.kind].greet(way, known.login)
    except NotThis:
        return False
    reaches = _is_that_server(greeting, known.process)
    file = look_at(spot.path, reaches) if spot.path is not None else None
    known.listeners.append(Listener(path=spot.path, host=spot.host, port=spot.port, tls=greeting.tls, file=file))
    if spot.path is not None and not reaches:
        return True
    known.name = max(known.name, greeting.name, key=len)
    known.compression = greeting.compression
    where = known.listeners[-1].where
    if greeting.refused is not None:
        known.refusals[where] = greeting.refused
    for transport, found in _ways(known.kind, way, greeting).items():
        known.ways.setdefault(transport, found)
    return True


def _is_that_server(greeting: Greeting, process: Process | None) -> bool:
    """Where systemd made the socket, it is the one who listens, as the kernel sees it."""
    if process is None or greeting.pid is None:
        return True
    return greeting.pid in (process.pid, _OF_ANOTHER_NAMESPACE, _SOCKET_ACTIVATION)


def _ways(kind: Kind, way: Way, greeting: Greeting) -> dict[Transport, Way]:
    encrypted = Way(way.path, way.host, way.port, True)
    if way.path is not None:
        found = {Transport.SOCKET: way}
        return found | {Transport.SOCKET_TLS: encrypted} if greeting.tls == "offered" and kind is Kind.MYSQL else found
    if greeting.tls == "always":
        return {Transport.TLS: encrypted}
    return {Transport.TCP: way} | ({Transport.TLS: encrypted} if greeting.tls == "offered" else {})


def _not_answering(known: Known, spot: Spot) -> None:
    """Of a certain server: a path without a way to it, or a port for something else, as of MySQL's X protocol."""
    if spot.path is None:
        where = f"{spot.host}:{spot.port}"
        known.unseen.append(Unseen(what=f"what {where} is for", why="it does not speak as such a server would", how=""))
        return
    if _is_for_something_else(known.kind, spot.path):
        return
    file = look_at(spot.path, False)
    if file is not None and not os.access(spot.path, os.W_OK):
        file = look_at(spot.path, True)  # it is not our rights that say where a path leads
        known.unseen.append(
            Unseen(
                what=f"the way by {spot.path}", why=f"it is for {file.who if file else 'others'}", how="run it as root"
            )
        )
    known.listeners.append(Listener(path=spot.path, host=None, port=None, tls="unknown", file=file))


def _is_for_something_else(kind: Kind, path: str) -> bool:
    """MySQL's X protocol has a socket of its own, which stays silent to others."""
    return kind is Kind.MYSQL and "mysqlx" in path.rpartition("/")[2]


def listeners_in_words(listeners: Sequence[Listener]) -> str:
    """`offered on 127.0.0.1:3306; none on /run/x.sock`."""
    by_tls: dict[str, list[str]] = {}
    for listener in listeners:
        by_tls.setdefault(listener.tls, []).append(listener.where)
    return "; ".join(f"{tls} on {', '.join(places)}" for tls, places in by_tls.items())
