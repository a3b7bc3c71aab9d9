"""Who uses each server: connections seen in /proc over a few seconds, with what the server reports about the same sessions.

The servers are not queried meanwhile. A connection shorter than the time between two looks is missed; the servers' own
counters say how many there were. How often it looks depends on what a look costs.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from howfar.doctor import procfs
from howfar.doctor.findings import SHORT, UNSEEN, Client, Listener
from howfar.doctor.procfs import ESTABLISHED, Address, TcpRow, may_use
from howfar.doctor.protocols.session import ListedSession

_LOOK_S = 0.002
_CPU_SHARE = 0.25
"""Of one CPU, spent on looking: connections of a few milliseconds are seen only by many looks."""
_SOCKETS_EVERY = 8
"""Looks. What changes slowly is read less often."""
_NEVER = -9
_NEAR = 2
"""Looks between reading the CA bundle and connecting: on a busy machine a program may wait between the two."""
_BUNDLE_COUNTS = ("bundle_looks", "bundle_reads", "bundle_connects")
_FULL_SEARCH_S = 0.2
"""Between two searches of all processes for the owner of a socket."""
_BUNDLE = re.compile(
    r"/(ca-certificates\.crt|ca-bundle\.(crt|pem|trust\.crt)|tls-ca-bundle\.pem|cacert\.pem|cert\.pem)$"
)
"""The system's CA bundle, under the names that distributions and language runtimes use."""


@dataclass
class Holder:
    """One process, or all that cannot be distinguished, with its connections to one server."""

    pid: int | None
    uid: int | None
    remote: str | None
    connections: int = 0
    ports: set[int] = field(default_factory=set)
    server_ports: set[int] = field(default_factory=set)
    at_once: int = 0
    """The most at one look, together with all processes of the same program and account."""
    bundle_looks: int = 0
    bundle_reads: int = 0
    bundle_connects: int = 0
    new_at: int = _NEVER
    """The last look at which it had a new connection."""
    bundle_at: int = _NEVER
    counted_at: int = _NEVER
    """The `new_at` that was last counted in `bundle_connects`."""

    def read_bundle(self, look: int) -> None:
        self.bundle_looks += 1
        self.bundle_reads += self.bundle_at < look - 1
        self.bundle_at = look

    def compare(self) -> None:
        """Some libraries read the bundle just before they connect, some just after."""
        if self.new_at > self.counted_at and abs(self.new_at - self.bundle_at) <= _NEAR:
            self.bundle_connects += 1
            self.counted_at = self.new_at


@dataclass
class Watched:
    """By the server's key: the holders of TCP connections, and how many connections there were over its socket."""

    holders: dict[int, dict[object, Holder]]
    socket_connections: dict[int, int]
    looks: int
    seconds: float


@dataclass(frozen=True)
class Watching:
    """Which connections belong to one server."""

    key: int
    ports: Mapping[int, frozenset[str]]
    """Its TCP ports, each with its addresses; an empty set means all interfaces."""
    paths: frozenset[str]


class Watch:
    def __init__(self, servers: Sequence[Watching]) -> None:
        self._servers = servers
        self._pid_of: dict[int, int] = {}
        self.programs: dict[int, procfs.Process] = {}
        """Each process that held a connection, kept because it may be gone at the end."""
        self._searched = float("-inf")
        self._own = os.getpid()
        self._seen = Watched({s.key: {} for s in servers}, {s.key: 0 for s in servers}, 0, 0.0)

    def during(self, seconds: float) -> Watched:
        began = time.monotonic()
        while True:
            worked = time.thread_time()
            self._look(time.monotonic())
            self._seen.looks += 1
            now, worked = time.monotonic(), time.thread_time() - worked
            self._seen.seconds = now - began
            if now - began >= seconds:
                self._drop_identified_later()
                return self._seen
            time.sleep(max(_LOOK_S, worked / _CPU_SHARE - worked))

    def _look(self, now: float) -> None:
        rows = [row for row in procfs.tcp_rows() if row.state == ESTABLISHED]
        by_ends = {(row.local, row.remote): row for row in rows}
        pairs = [
            (server, row, by_ends.get((row.remote, row.local)))
            for server in self._servers
            for row in rows
            if _is_at(server, row.local)
        ]
        self._find_owners({client.inode for _, _, client in pairs if client is not None and client.inode}, now)
        held: dict[tuple[int, int], list[Holder]] = {}
        for server, row, client in pairs:
            if (holder := self._holder(server.key, row, client)) is None:
                continue
            if row.remote[1] not in holder.ports and self._seen.looks:
                holder.new_at = self._seen.looks
            holder.ports.add(row.remote[1])
            holder.server_ports.add(row.local[1])
            held.setdefault((server.key, id(holder)), []).append(holder)
        self._count(held)
        if self._seen.looks % _SOCKETS_EVERY == 0:
            self._count_on_sockets()
        self._look_for_bundles()

    def _count(self, held: Mapping[tuple[int, int], Sequence[Holder]]) -> None:
        """Each holder's connections at this look (one entry each), and those of its program and account together."""
        together: Counter[object] = Counter()
        for (key, _), each in held.items():
            each[0].connections = max(each[0].connections, len(each))
            together[self._program(key, each[0])] += len(each)
        for (key, _), each in held.items():
            each[0].at_once = max(each[0].at_once, together[self._program(key, each[0])])

    def _program(self, key: int, holder: Holder) -> object:
        program = self.programs.get(holder.pid) if holder.pid is not None else None
        return key, program.shown if program is not None else None, holder.uid, holder.remote

    def _drop_identified_later(self) -> None:
        """Connections that were first counted without a process and whose process was found later."""
        for holders in self._seen.holders.values():
            for name, holder in list(holders.items()):
                holder.connections = min(holder.connections, len(holder.ports))
                if not holder.ports:
                    del holders[name]

    def _count_on_sockets(self) -> None:
        paths = [row.path for row in procfs.unix_rows() if row.connected]
        for server in self._servers:
            count = sum(path in server.paths for path in paths)
            self._seen.socket_connections[server.key] = max(self._seen.socket_connections[server.key], count)

    def _holder(self, key: int, row: TcpRow, client: TcpRow | None) -> Holder | None:
        holders = self._seen.holders[key]
        if client is not None:
            pid = self._pid_of.get(client.inode)
            unidentified = holders.get(("uid", client.uid))
            if pid is not None and unidentified is not None:
                unidentified.ports.discard(row.remote[1])
            if pid == self._own:
                return None
            name: object = ("pid", pid) if pid is not None else ("uid", client.uid)
            return holders.setdefault(name, Holder(pid, client.uid, None))
        if procfs.is_of_this_machine(row.remote[0]):  # its other end is in another namespace, or just closing
            return None
        return holders.setdefault(("remote", row.remote[0]), Holder(None, None, row.remote[0]))

    def _find_owners(self, inodes: set[int], now: float) -> None:
        """First among the processes that had connections before, then, not too often, among all."""
        missing = inodes - self._pid_of.keys()
        if missing:
            missing -= self._take(set(self._pid_of.values()), missing)
        if missing and now - self._searched >= _FULL_SEARCH_S:
            self._searched = now
            self._take({process.pid for process in procfs.processes()}, missing)

    def _take(self, pids: set[int], missing: set[int]) -> set[int]:
        found: set[int] = set()
        for pid in pids:
            for inode in (procfs.socket_inodes(pid) or set()) & missing:
                self._pid_of[inode] = pid
                found.add(inode)
                if pid not in self.programs and (process := procfs.process(pid)) is not None:
                    self.programs[pid] = process
        return found

    def _look_for_bundles(self) -> None:
        """Reading the bundle takes most of a connect that does it, so a few looks find it open."""
        reading: dict[int, bool] = {}
        for holder in (holder for holders in self._seen.holders.values() for holder in holders.values()):
            if holder.pid is None:
                continue
            if holder.pid not in reading:
                reading[holder.pid] = any(_BUNDLE.search(name) for name in procfs.open_files(holder.pid) or [])
            if reading[holder.pid]:
                holder.read_bundle(self._seen.looks)
            holder.compare()


def _is_at(server: Watching, local: Address) -> bool:
    hosts = server.ports.get(local[1])
    return hosts is not None and (not hosts or local[0] in hosts)


@dataclass(frozen=True)
class Sight:
    """What is known about one server's sessions besides who holds them."""

    sessions: Sequence[ListedSession]
    listeners: Sequence[Listener]
    never_tls: bool
    """It has no TLS, or has counted no handshake since it started."""
    socket: str | None


def clients(holders: Sequence[Holder], programs: Mapping[int, procfs.Process], sight: Sight) -> tuple[Client, ...]:
    """One for each program and account, most connections first."""
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
    listed = [session for session in sight.sessions if session.port in holder.ports]
    return Client(
        program=process.shown if process is not None else SHORT if os.geteuid() in (0, uid) else UNSEEN,
        pids=(holder.pid,) if holder.pid is not None else (),
        user=procfs.account(uid) if uid is not None else None,
        local=holder.remote is None,
        address=holder.remote,
        by="tcp",
        connections=holder.connections,
        connects_seen=len(holder.ports),
        tls=_tls(holder, listed, sight),
        compressed=_any([session.compressed for session in listed]),
        may_use_socket=may_use(sight.socket, uid, holder.pid) if sight.socket is not None and uid is not None else None,
        **{name: getattr(holder, name) for name in _BUNDLE_COUNTS},
    )


def _tls(holder: Holder, listed: Sequence[ListedSession], sight: Sight) -> bool | None:
    if sight.never_tls:
        return False
    if (reported := _any([session.tls for session in listed])) is not None:
        return reported
    of_ports = {found.tls for found in sight.listeners if found.port in holder.server_ports}
    if of_ports == {"always"}:
        return True
    return False if of_ports == {"none"} else None


def _by_socket(sight: Sight) -> list[Client]:
    """As the server lists them: /proc does not show who is at the other end of a socket."""
    found = []
    for session in sight.sessions:
        if session.port is not None or (session.tls is None and session.pid is None):
            continue
        process = procfs.process(session.pid) if session.pid is not None else None
        made = Client(
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
            **dict.fromkeys(_BUNDLE_COUNTS, 0),
        )
        found.append(made)
    return found


def _any(reported: Sequence[bool | None]) -> bool | None:
    known = [value for value in reported if value is not None]
    return any(known) if known else None


def _added(one: Client, other: Client) -> Client:
    sums = ("connections", "connects_seen", *_BUNDLE_COUNTS)
    usable = None if None in (one.may_use_socket, other.may_use_socket) else one.may_use_socket and other.may_use_socket
    return one.model_copy(
        update={
            **{name: getattr(one, name) + getattr(other, name) for name in sums},
            "pids": tuple(sorted({*one.pids, *other.pids})),
            "compressed": _any([one.compressed, other.compressed]),
            "may_use_socket": usable,
        }
    )
