"""From places where somebody listens to servers that answered: what each is, where, with TLS or not, and who gets in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from howfar.doctor.discovery import Candidate, Spot, socket_file
from howfar.doctor.findings import Kind, Listener, Transport, Unseen
from howfar.doctor.procfs import Process
from howfar.doctor.sockets import CLEANED, look_at
from howfar.doctor.speakers import SPEAKERS
from howfar.doctor.speakers.session import Elsewhere, Greeting, Nobody, NotThis, Owner, Tls, Way, dial
from howfar.doctor.targets import Login, Logins, Target

SYSTEM_UIDS = 1000
"""Below are accounts of the system (Debian's and Red Hat's ranges)."""
_X_PORT = 33060
"""MySQL's X protocol, by default."""
State = Literal["works", "gone", "elsewhere", "unseen"]


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
    certain: bool = False
    """Its process's own sockets are known."""
    trusted: bool = False
    """A password is sent to it."""
    bound: set[str] = field(default_factory=set)
    """Its sockets' paths, as it wrote them."""
    refusals: dict[str, str] = field(default_factory=dict)
    """By where: why nobody was let in."""
    unseen: list[Unseen] = field(default_factory=list)


def identify(candidate: Candidate, logins: Logins, target: Target | None) -> Known | None:
    """None when a guess was wrong: nobody answers there as such a server would."""
    trusted = target is not None or _is_trusted(candidate.process)
    login = _login(candidate, logins, target, trusted)
    known = Known(candidate.kind, candidate.process, target, login, certain=candidate.certain, trusted=trusted)
    silent = []
    for spot in candidate.spots:
        if not _greeted(known, spot):
            silent.append(spot)
    if not known.name and (candidate.process is None or not candidate.certain):
        return None
    for spot in silent:
        _not_answering(known, spot, candidate.certain)
    known.name = known.name or candidate.kind.value
    return known


def _is_trusted(process: Process | None) -> bool:
    """Of root, the system's accounts, or our own. Anybody may call a process mysqld and wait for passwords."""
    return process is not None and (process.uid < SYSTEM_UIDS or process.uid == os.geteuid())


def _login(candidate: Candidate, logins: Logins, target: Target | None, trusted: bool) -> Login:
    login = logins.of(candidate.kind)
    user = (target.user if target is not None else None) or login.user
    return Login(user, login.password if trusted else "")


def _greeted(known: Known, spot: Spot) -> bool:
    """Whether all is known of that place."""
    owner = Owner(known.process.pid, known.process.uid) if known.process is not None else None
    way = Way(spot.path, spot.dialled, spot.port, _asked_for_tls(known.target, spot), owner)
    try:
        greeting = SPEAKERS[known.kind].greet(way, known.login)
    except Elsewhere:
        return not known.certain  # a guess was wrong; else it is told what became of it
    except NotThis:
        return False
    if not known.certain and spot.path is None and not _says_so_itself(greeting, known.process, spot.shared):
        if greeting.pid is None:
            whose = f"whether {spot.host}:{spot.port} is its port"
            known.unseen.append(
                Unseen(what=whose, why="its account has several such servers here", how="run it as root")
            )
        return True
    _listen(known, spot, greeting.tls, "works")
    known.name = max(known.name, greeting.name, key=len)
    known.compression = greeting.compression
    if greeting.refused is not None:
        known.refusals[known.listeners[-1].where] = greeting.refused
    for transport, found in _ways(known.kind, way, greeting).items():
        known.ways.setdefault(transport, found)
    return True


def _asked_for_tls(target: Target | None, spot: Spot) -> bool:
    """Then no password goes there in plain."""
    return target is not None and target.tls and spot.path is None and spot.port == target.port


def _listen(known: Known, spot: Spot, tls: Tls, state: State) -> None:
    file = look_at(spot.path) if spot.path is not None else None
    known.listeners.append(Listener(path=spot.path, host=spot.host, port=spot.port, tls=tls, file=file, state=state))
    if spot.path is not None:
        known.bound.add(spot.bound or spot.path)


def _says_so_itself(greeting: Greeting, process: Process | None, shared: bool) -> bool:
    """Of a port that was guessed. The first of a container calls itself 1."""
    return process is None or greeting.pid == process.pid or (not shared and greeting.pid in (None, 1))


def _ways(kind: Kind, way: Way, greeting: Greeting) -> dict[Transport, Way]:
    encrypted = replace(way, tls=True)
    if way.path is not None:
        found = {Transport.SOCKET: way}
        return found | {Transport.SOCKET_TLS: encrypted} if greeting.tls == "offered" and kind is Kind.MYSQL else found
    if greeting.tls == "always" or way.tls:
        return {Transport.TLS: encrypted}
    return {Transport.TCP: way} | ({Transport.TLS: encrypted} if greeting.tls == "offered" else {})


def _not_answering(known: Known, spot: Spot, certain: bool) -> None:
    """Of a path it is told what became of it; a port may be for something else, as MySQL's X protocol is."""
    if spot.path is None:
        if certain and spot.port != _X_PORT:
            where = f"{spot.host}:{spot.port}"
            known.unseen.append(
                Unseen(what=f"what {where} is for", why="it does not speak as such a server would", how="")
            )
        return
    if _is_for_something_else(known.kind, spot.path):
        return
    state, why = _what_became_of(spot.path, known.process)
    if certain or state == "unseen":
        _listen(known, spot, "unknown", state)
    if why:
        known.unseen.append(
            Unseen(
                what=f"the way by {spot.path}",
                why=why,
                how="run it as root, in the server's own namespaces, while it answers",
            )
        )


def _what_became_of(path: str, process: Process | None) -> tuple[State, str]:
    """Whether it is gone, or only not to be seen or used from here, and then why. Silence alone is no proof of anything."""
    if process is not None and _sees_another_file(path, process):
        return "unseen", "the server sees another file system than we do, as in a container"
    try:
        dial(Way(path, None, None, owner=Owner(process.pid, process.uid) if process is not None else None)).close()
    except Nobody:
        return "gone", ""
    except Elsewhere:
        return "elsewhere", ""
    except NotThis as why:
        return "unseen", str(why)
    return "unseen", "it does not answer now as such a server would"


def _sees_another_file(path: str, process: Process) -> bool:
    """A socket in a /tmp of its own is of no use to anybody else: that is told as a path that leads nowhere."""
    inside = socket_file(f"/proc/{process.pid}/root{path}")
    return inside is not None and inside != socket_file(path) and not path.startswith(CLEANED)


def _is_for_something_else(kind: Kind, path: str) -> bool:
    """MySQL's X protocol has a socket of its own, which stays silent to others."""
    return kind is Kind.MYSQL and "mysqlx" in path.rpartition("/")[2]


def listeners_in_words(listeners: Sequence[Listener]) -> str:
    """`offered on 127.0.0.1:3306; none on /run/x.sock`."""
    by_tls: dict[str, list[str]] = {}
    for listener in listeners:
        by_tls.setdefault(listener.tls, []).append(listener.where)
    return "; ".join(f"{tls} on {', '.join(places)}" for tls, places in by_tls.items())
