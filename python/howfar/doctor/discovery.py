"""Which servers are here: from processes, listening sockets and the usual paths, as far as they may be read. Asks no server anything.

A name that a process gave itself is only a reason to ask; what it is, it says itself when it is spoken to (`speakers/`).
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from howfar.doctor import procfs
from howfar.doctor.findings import Kind, Unseen
from howfar.doctor.procfs import LISTEN, Process, TcpRow, UnixRow
from howfar.doctor.targets import DEFAULT_PORTS

PROGRAMS = {
    "mysqld": Kind.MYSQL,
    "mariadbd": Kind.MYSQL,
    "redis-server": Kind.REDIS,
    "valkey-server": Kind.REDIS,
    "memcached": Kind.MEMCACHED,
}
USUAL_SOCKETS = {
    Kind.MYSQL: ("/run/mysqld/mysqld.sock", "/var/lib/mysql/mysql.sock", "/tmp/mysql.sock"),
    Kind.REDIS: ("/run/redis/redis-server.sock", "/run/redis/redis.sock", "/run/valkey/valkey.sock", "/tmp/redis.sock"),
    Kind.MEMCACHED: ("/run/memcached/memcached.sock", "/tmp/memcached.sock"),
}
_WORDS_IN_SOCKETS = {Kind.MYSQL: ("mysql", "maria"), Kind.REDIS: ("redis", "valkey"), Kind.MEMCACHED: ("memcache",)}
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Spot:
    """A place where somebody listens: a path, or an address and a port."""

    path: str | None
    host: str | None = None
    port: int | None = None
    inode: int | None = None
    bound: str | None = None
    """Of a path: as the server wrote it."""
    shared: bool = False
    """Guessed for several servers: whose it is, only the server can tell."""

    @property
    def dialled(self) -> str | None:
        """The address to dial where it listens on all."""
        return _ANY.get(self.host, self.host) if self.host is not None else None


@dataclass(frozen=True)
class Candidate:
    """What is probably a server, and where it probably listens."""

    kind: Kind
    process: Process | None
    spots: tuple[Spot, ...]
    certain: bool
    """The spots are the process's own; else they are guessed from account, name and port."""


@dataclass(frozen=True)
class Found:
    candidates: tuple[Candidate, ...]
    unseen: tuple[Unseen, ...]


def kind_of(process: Process) -> Kind | None:
    """By its name, or its program's; a server of a private install may be started through the loader."""
    name = program_of(process)
    return PROGRAMS[name] if name is not None else None


def program_of(process: Process) -> str | None:
    """Which of the programs it is."""
    words = [process.name, *(word.rpartition("/")[2] for word in process.arguments[:1])]
    if process.arguments and process.arguments[0].rpartition("/")[2].startswith("ld-linux"):
        words += [word.rpartition("/")[2] for word in process.arguments[1:4]]
    return next((name for word in words if (name := word.partition(" ")[0]) in PROGRAMS), None)


def discover() -> Found:
    """Servers with a process that is seen first, then places that listen and belong to none of those."""
    tcp = [row for row in procfs.tcp_rows() if row.state == LISTEN]
    unix = [row for row in procfs.unix_rows() if row.listens]
    here = {row.inode for row in tcp} | {row.inode for row in unix}
    candidates, foreign, hidden = [], [], []
    for process in procfs.processes():
        if (kind := kind_of(process)) is None:
            continue
        own = procfs.socket_inodes(process.pid)
        if own is None:
            hidden.append(process)
            candidates.append(Candidate(kind, process, _guessed(kind, process, tcp, unix), False))
        elif own & here:
            candidates.append(Candidate(kind, process, _spots_of(process.pid, own, tcp, unix), True))
        else:
            foreign.append(process)
    taken = {spot.inode for found in candidates for spot in found.spots}
    candidates += _ownerless(taken, tcp, unix)
    return Found(_with_shared(candidates), (*_of_foreign(foreign), *_of_hidden(hidden)))


def _spots_of(pid: int, own: set[int], tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> tuple[Spot, ...]:
    spots = [Spot(_absolute(pid, row.path), inode=row.inode, bound=row.path) for row in unix if row.inode in own]
    spots += [Spot(None, *row.local, row.inode) for row in tcp if row.inode in own]
    return _each_port_once(spots)


def _absolute(pid: int, path: str) -> str:
    """A relative one began where the server then was, which is mostly where it is."""
    try:
        return path if path.startswith("/") else str((procfs.PROC / str(pid) / "cwd").readlink() / path)
    except OSError:
        return path


def _each_port_once(spots: Sequence[Spot]) -> tuple[Spot, ...]:
    """A server on IPv4 and IPv6 of one port listens in one place, as far as anything here goes."""
    seen: dict[object, Spot] = {}
    for spot in spots:
        seen.setdefault(spot.path or (spot.port, (spot.host in _ANY) or spot.host), spot)
    return tuple(seen.values())


def _guessed(kind: Kind, process: Process, tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> tuple[Spot, ...]:
    """Of a process whose files may not be read: the sockets of its account. Ports of root's are too many to guess."""
    spots = [Spot(row.path, inode=row.inode, bound=row.path) for row in unix if _may_be(kind, row.path, process.uid)]
    ports = [row for row in tcp if row.uid == process.uid and (row.uid != 0 or row.local[1] == DEFAULT_PORTS[kind])]
    return _each_port_once([*spots, *(Spot(None, *row.local, row.inode) for row in ports)])


def _with_shared(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    guessed = Counter((found.kind, spot.inode) for found in candidates if not found.certain for spot in found.spots)
    return tuple(
        replace(found, spots=tuple(replace(s, shared=guessed[found.kind, s.inode] > 1) for s in found.spots))
        for found in candidates
    )


def _may_be(kind: Kind, path: str, uid: int) -> bool:
    if not any(word in path for word in _WORDS_IN_SOCKETS[kind]):
        return False
    try:
        return Path(path).stat().st_uid == uid
    except PermissionError:
        return True  # in a directory of somebody else's, as the data directory of a server is
    except OSError:
        return False


def _ownerless(taken: set[int | None], tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> list[Candidate]:
    """Usual ports and paths that somebody else answers: a container's port, or a process that is hidden."""
    found = []
    for kind, port in DEFAULT_PORTS.items():
        spots = [Spot(None, *row.local, row.inode) for row in tcp if row.local[1] == port and row.inode not in taken]
        found += [Candidate(kind, None, (spot,), False) for spot in _each_port_once(spots)]
    known = {socket_file(row.path) for row in unix if row.inode in taken}
    inodes = {row.path: row.inode for row in unix}
    for kind, paths in USUAL_SOCKETS.items():
        for path in paths:
            if (file := socket_file(path)) is not None and file not in known:
                known.add(file)
                found.append(Candidate(kind, None, (Spot(path, inode=inodes.get(path), bound=path),), False))
    return found


def socket_file(path: str) -> tuple[int, int] | None:
    """Which file it is, whatever links lead there; none where it is no socket."""
    try:
        seen = Path(path).stat()
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino) if stat.S_ISSOCK(seen.st_mode) else None


def _of_foreign(processes: Sequence[Process]) -> list[Unseen]:
    if not processes:
        return []
    names = ", ".join(f"{program_of(process)} (pid {process.pid})" for process in processes)
    return [
        Unseen(
            what=names,
            why="listens nowhere in this network namespace: in a container, another namespace, or starting or stopping",
            how=f"nsenter -t {processes[0].pid} -n howfar doctor",
        )
    ]


def _of_hidden(processes: Sequence[Process]) -> list[Unseen]:
    if not processes or os.geteuid() == 0:
        return []
    names = ", ".join(f"{program_of(process)} (pid {process.pid})" for process in processes)
    return [
        Unseen(
            what=f"which sockets belong to {names}",
            why=f"another account's open files may not be read by {procfs.account(os.geteuid())}; guessed from account and port",
            how="run it as root",
        )
    ]
