"""Which servers are here: candidates from processes, listening sockets and the usual paths, then what answers at each.

A process's name is only a reason to ask. What a server is, it says itself when it is spoken to (`protocols/`).
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from howfar.doctor import procfs
from howfar.doctor.findings import Kind, Listener, Transport, Unseen
from howfar.doctor.procfs import CLEANED, LISTEN, Process, TcpRow, UnixRow, look_at
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Elsewhere, Endpoint, Greeting, Nobody, NotThis, Owner, Tls, dial
from howfar.doctor.targets import DEFAULT_PORTS, Login, Logins, Target

PROGRAMS = {
    "mysqld": Kind.MYSQL,
    "mariadbd": Kind.MYSQL,
    "redis-server": Kind.REDIS,
    "valkey-server": Kind.REDIS,
    "memcached": Kind.MEMCACHED,
    "postgres": Kind.POSTGRESQL,
}
USUAL_SOCKETS = {
    Kind.MYSQL: ("/run/mysqld/mysqld.sock", "/var/lib/mysql/mysql.sock", "/tmp/mysql.sock"),
    Kind.REDIS: ("/run/redis/redis-server.sock", "/run/redis/redis.sock", "/run/valkey/valkey.sock", "/tmp/redis.sock"),
    Kind.MEMCACHED: ("/run/memcached/memcached.sock", "/tmp/memcached.sock"),
    Kind.POSTGRESQL: ("/run/postgresql/.s.PGSQL.5432", "/tmp/.s.PGSQL.5432"),
}
_SOCKET_NAMES = {
    Kind.MYSQL: ("mysql", "maria"),
    Kind.REDIS: ("redis", "valkey"),
    Kind.MEMCACHED: ("memcache",),
    Kind.POSTGRESQL: (".s.PGSQL.",),
}
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class ListenAddress:
    """A path, or an address and port, on which a process listens."""

    path: str | None
    host: str | None = None
    port: int | None = None
    inode: int | None = None
    bound: str | None = None
    """Of a path: as the server bound it."""
    shared: bool = False
    """Guessed for several servers: only the server knows whose it is."""

    @property
    def dialled(self) -> str | None:
        """The address to connect to where it listens on all interfaces."""
        return _ANY.get(self.host, self.host) if self.host is not None else None


@dataclass(frozen=True)
class Candidate:
    """A probable server, and where it probably listens."""

    kind: Kind
    process: Process | None
    addresses: tuple[ListenAddress, ...]
    certain: bool
    """The addresses are those of the process; otherwise they are guessed from account, name and port."""


def kind_of(process: Process) -> Kind | None:
    """By its name, or its program's."""
    name = program_of(process)
    return PROGRAMS[name] if name is not None else None


def program_of(process: Process) -> str | None:
    """Which of PROGRAMS it runs; a private installation may start it through the loader."""
    bases = [argument.rpartition("/")[2] for argument in process.arguments[:4]]
    loaded = bases if bases and bases[0].startswith("ld-linux") else bases[:1]
    return next((name for part in (process.name, *loaded) if (name := part.partition(" ")[0]) in PROGRAMS), None)


def discover() -> tuple[tuple[Candidate, ...], tuple[Unseen, ...]]:
    """Servers whose process is seen, then listening addresses that belong to none of those; and what cannot be seen."""
    tcp = [row for row in procfs.tcp_rows() if row.state == LISTEN]
    unix = [row for row in procfs.unix_rows() if row.listens]
    here = {row.inode for row in tcp} | {row.inode for row in unix}
    candidates, foreign, hidden = [], [], []
    servers = {process.pid: process for process in procfs.processes() if kind_of(process) is not None}
    for process in servers.values():
        kind = kind_of(process)
        assert kind is not None, "only such were kept"
        parent = servers.get(process.parent)
        if parent is not None and program_of(parent) == program_of(process):
            continue  # a process of a server, such as PostgreSQL's for a session
        own = procfs.socket_inodes(process.pid)
        if own is None:
            hidden.append(process)
            candidates.append(Candidate(kind, process, _guessed(kind, process, tcp, unix), False))
        elif own & here:
            candidates.append(Candidate(kind, process, _addresses_of(process.pid, own, tcp, unix), True))
        else:
            foreign.append(process)
    taken = {address.inode for found in candidates for address in found.addresses}
    candidates += _ownerless(taken, tcp, unix)
    return _with_shared(candidates), _unseen(foreign, hidden)


def _addresses_of(pid: int, own: set[int], tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> tuple[ListenAddress, ...]:
    addresses = [
        ListenAddress(_absolute(pid, row.path), inode=row.inode, bound=row.path) for row in unix if row.inode in own
    ]
    addresses += [ListenAddress(None, *row.local, row.inode) for row in tcp if row.inode in own]
    return _once_per_port(addresses)


def _absolute(pid: int, path: str) -> str:
    """A relative path starts at the server's working directory, which seldom changes."""
    try:
        return path if path.startswith("/") else str((procfs.PROC / str(pid) / "cwd").readlink() / path)
    except OSError:
        return path


def _once_per_port(addresses: Sequence[ListenAddress]) -> tuple[ListenAddress, ...]:
    """A server on IPv4 and IPv6 of one port counts as one address."""
    seen: dict[object, ListenAddress] = {}
    for address in addresses:
        seen.setdefault(address.path or (address.port, (address.host in _ANY) or address.host), address)
    return tuple(seen.values())


def _guessed(kind: Kind, process: Process, tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> tuple[ListenAddress, ...]:
    """For a process whose files may not be read: the sockets of its account; for root, only the usual port."""
    addresses = [
        ListenAddress(row.path, inode=row.inode, bound=row.path) for row in unix if _may_be(kind, row.path, process.uid)
    ]
    ports = [row for row in tcp if row.uid == process.uid and (row.uid != 0 or row.local[1] == DEFAULT_PORTS[kind])]
    return _once_per_port([*addresses, *(ListenAddress(None, *row.local, row.inode) for row in ports)])


def _with_shared(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    guessed = Counter(
        (found.kind, address.inode) for found in candidates if not found.certain for address in found.addresses
    )
    return tuple(
        replace(found, addresses=tuple(replace(s, shared=guessed[found.kind, s.inode] > 1) for s in found.addresses))
        for found in candidates
    )


def _may_be(kind: Kind, path: str, uid: int) -> bool:
    if not any(argument in path for argument in _SOCKET_NAMES[kind]):
        return False
    try:
        return Path(path).stat().st_uid == uid
    except PermissionError:
        return True  # in a closed directory, such as a server's data directory
    except OSError:
        return False


def _ownerless(taken: set[int | None], tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> list[Candidate]:
    """Usual ports and paths without a process that is seen: a container's port, or a hidden process."""
    found = []
    for kind, port in DEFAULT_PORTS.items():
        addresses = [
            ListenAddress(None, *row.local, row.inode) for row in tcp if row.local[1] == port and row.inode not in taken
        ]
        found += [Candidate(kind, None, (address,), False) for address in _once_per_port(addresses)]
    known = {socket_file(row.path) for row in unix if row.inode in taken}
    inodes = {row.path: row.inode for row in unix}
    for kind, paths in USUAL_SOCKETS.items():
        for path in paths:
            if (file := socket_file(path)) is not None and file not in known:
                known.add(file)
                found.append(Candidate(kind, None, (ListenAddress(path, inode=inodes.get(path), bound=path),), False))
    return found


def socket_file(path: str) -> tuple[int, int] | None:
    """Its device and inode, whatever links lead there; None where it is no socket."""
    try:
        seen = Path(path).stat()
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino) if stat.S_ISSOCK(seen.st_mode) else None


def _unseen(foreign: Sequence[Process], hidden: Sequence[Process]) -> tuple[Unseen, ...]:
    """Servers in another network namespace, and servers whose open files may not be read."""

    def named(processes: Sequence[Process]) -> str:
        return ", ".join(f"{program_of(process)} (pid {process.pid})" for process in processes)

    found = []
    if foreign:
        why = "it listens on nothing in this network namespace: it is in a container, or starting or stopping"
        found.append(Unseen(what=named(foreign), why=why, how=f"nsenter -t {foreign[0].pid} -n howfar doctor"))
    if hidden and os.geteuid() != 0:
        user = procfs.account(os.geteuid())
        why = f"{user} may not read another account's open files; guessed from account and port"
        found.append(Unseen(what=f"which sockets belong to {named(hidden)}", why=why, how=_AS_ROOT))
    return tuple(found)


_AS_ROOT = "run howfar doctor as root"
SYSTEM_UIDS = 1000
"""Below are accounts of the system (Debian's and Red Hat's ranges)."""
_X_PORT = 33060
"""MySQL's X protocol, by default."""
State = Literal["works", "gone", "elsewhere", "unseen"]


@dataclass
class Known:
    """A server that answered, or whose process is here although nothing answered."""

    kind: Kind
    process: Process | None
    target: Target | None
    login: Login
    name: str = ""
    listeners: list[Listener] = field(default_factory=list)
    endpoints: dict[Transport, Endpoint] = field(default_factory=dict)
    """Those that answered, one for each transport."""
    tls: str = "unknown"
    compression: str = "unknown"
    certain: bool = False
    """The sockets of its process are known."""
    trusted: bool = False
    """A password may be sent to it."""
    bound: set[str] = field(default_factory=set)
    """Its sockets' paths, as it bound them."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Why a login was refused, by address."""
    unseen: list[Unseen] = field(default_factory=list)


def identify(candidate: Candidate, logins: Logins, target: Target | None) -> Known | None:
    """None when a guess was wrong: nothing there answers as such a server would."""
    trusted = target is not None or _is_trusted(candidate.process)
    login = _login(candidate, logins, target, trusted)
    known = Known(candidate.kind, candidate.process, target, login, certain=candidate.certain, trusted=trusted)
    silent = []
    for address in candidate.addresses:
        if not _greeted(known, address):
            silent.append(address)
    if not known.name and (candidate.process is None or not candidate.certain):
        return None
    for address in silent:
        _not_answering(known, address, candidate.certain)
    known.name = known.name or candidate.kind.shown
    return known


def _is_trusted(process: Process | None) -> bool:
    """A process of root, of a system account or of the user. Anybody may name a process mysqld and wait for passwords."""
    return process is not None and (process.uid < SYSTEM_UIDS or process.uid == os.geteuid())


def _login(candidate: Candidate, logins: Logins, target: Target | None, trusted: bool) -> Login:
    login = logins.of(candidate.kind)
    user = (target.user if target is not None else None) or login.user
    of_server = not user and candidate.kind is Kind.POSTGRESQL
    if of_server:
        uid = candidate.process.uid if candidate.process is not None and os.geteuid() == 0 else os.geteuid()
        user = procfs.account(uid)
    return Login(
        user,
        login.password if trusted else "",
        target.consent if target is not None else login.consent,
        target.database if target is not None else None,
        of_server,
    )


def _greeted(known: Known, address: ListenAddress) -> bool:
    """Whether nothing more is to be found out about that address."""
    endpoint = Endpoint(
        address.path, address.dialled, address.port, _tls_requested(known.target, address), _owner(known.process)
    )
    try:
        greeting = PROTOCOLS[known.kind].greet(endpoint, known.login)
    except Elsewhere:
        return not known.certain  # a guess was wrong; otherwise it is reported
    except NotThis:
        return False
    if not known.certain and address.path is None and not _confirms(greeting, known.process, address.shared):
        if greeting.pid is None:
            whose = f"whether {address.host}:{address.port} is its port"
            known.unseen.append(Unseen(what=whose, why="its account runs several such servers here", how=_AS_ROOT))
        return True
    _listen(known, address, greeting.tls, "works")
    known.name = max(known.name, greeting.name, key=len)
    known.compression = greeting.compression
    if greeting.refused is not None:
        known.refusals[known.listeners[-1].where] = greeting.refused
    for transport, found in _endpoints(known.kind, endpoint, greeting).items():
        known.endpoints.setdefault(transport, found)  # in the order of the addresses: the cheapest is the first
    return True


def _owner(process: Process | None) -> Owner | None:
    return Owner(process.pid, process.uid) if process is not None else None


def _tls_requested(target: Target | None, address: ListenAddress) -> bool:
    """Then no password goes there in plain text."""
    return target is not None and target.tls and address.path is None and address.port == target.port


def _listen(known: Known, address: ListenAddress, tls: Tls, state: State) -> None:
    file = look_at(address.path) if address.path is not None else None
    known.listeners.append(
        Listener(path=address.path, host=address.host, port=address.port, tls=tls, file=file, state=state)
    )
    if address.path is not None:
        known.bound.add(address.bound or address.path)


def _confirms(greeting: Greeting, process: Process | None, shared: bool) -> bool:
    """Whether the server at a guessed port is this process; in a container it reports PID 1."""
    return process is None or greeting.pid == process.pid or (not shared and greeting.pid in (None, 1))


def _endpoints(kind: Kind, endpoint: Endpoint, greeting: Greeting) -> dict[Transport, Endpoint]:
    encrypted = replace(endpoint, tls=True)
    if endpoint.path is not None:
        found = {Transport.SOCKET: endpoint}
        return found | {Transport.SOCKET_TLS: encrypted} if greeting.tls == "offered" and kind is Kind.MYSQL else found
    if greeting.tls == "always" or endpoint.tls:
        return {Transport.TLS: encrypted}
    return {Transport.TCP: endpoint} | ({Transport.TLS: encrypted} if greeting.tls == "offered" else {})


def _not_answering(known: Known, address: ListenAddress, certain: bool) -> None:
    """A path is reported with its state; a port may serve something else, such as MySQL's X protocol."""
    if address.path is None:
        if certain and address.port != _X_PORT:
            where = f"{address.host}:{address.port}"
            why = "it does not answer as such a server would"
            known.unseen.append(Unseen(what=f"the purpose of {where}", why=why, how=""))
        return
    if known.kind is Kind.MYSQL and "mysqlx" in address.path.rpartition("/")[2]:
        return  # the X protocol has its own socket, which stays silent to other protocols
    state, why = _state_of(address.path, known.process)
    if certain or state == "unseen":
        _listen(known, address, "unknown", state)
    if why:
        how = f"{_AS_ROOT}, in the server's namespaces, while it answers"
        known.unseen.append(Unseen(what=f"the socket {address.path}", why=why, how=how))


def _state_of(path: str, process: Process | None) -> tuple[State, str]:
    """Whether the path is gone, or only cannot be checked from here, and why. Silence alone proves nothing."""
    if process is not None and _sees_another_file(path, process):
        return "unseen", "the server sees another file system, as in a container"
    try:
        dial(Endpoint(path, None, None, owner=_owner(process))).close()
    except Nobody:
        return "gone", ""
    except Elsewhere:
        return "elsewhere", ""
    except NotThis as why:
        return "unseen", str(why)
    return "unseen", "it does not answer as such a server would at present"


def _sees_another_file(path: str, process: Process) -> bool:
    """A socket in a private /tmp is useless to others and counts as a path that leads nowhere."""
    inside = socket_file(f"/proc/{process.pid}/root{path}")
    return inside is not None and inside != socket_file(path) and not path.startswith(CLEANED)


def tls_by_listener(listeners: Sequence[Listener]) -> str:
    """`offered on 127.0.0.1:3306; none on /run/x.sock`."""
    by_tls: dict[str, list[str]] = {}
    for listener in listeners:
        by_tls.setdefault(listener.tls, []).append(listener.where)
    return "; ".join(f"{tls} on {', '.join(addresses)}" for tls, addresses in by_tls.items())


_SHORT = ("-p", "-l", "-Z", "-s")
_LONG = {"--port": "-p", "--listen": "-l", "--enable-ssl": "-Z", "--unix-socket": "-s"}


def ignored_options(known: Known) -> tuple[str, ...]:
    """Memcached with -s listens on nothing else and never encrypts. Only names of options leave this function."""
    if known.kind is not Kind.MEMCACHED or known.process is None or not known.listeners:
        return ()
    given = options(known.process.arguments)
    if "-s" not in given or any(listener.path is None for listener in known.listeners):
        return ()
    return tuple(option for option in ("-p", "-l", "-Z") if option in given)


def options(arguments: Sequence[str]) -> set[str]:
    """Which of these options a command line has, in any form. `-p 0` means no port."""
    found = set()
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name = _LONG.get(argument.partition("=")[0]) or (argument[:2] if argument[:2] in _SHORT else None)
        if name == "-p" and (
            argument[2:] == "0" or argument.partition("=")[2] == "0" or (argument in ("-p", "--port") and after == "0")
        ):
            continue
        if name is not None:
            found.add(name)
    return found
