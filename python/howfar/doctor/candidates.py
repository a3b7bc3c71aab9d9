"""Probable servers of this machine, from processes, listening sockets and the usual paths. No connection is made.

A process's name proves nothing: `discovery` connects to the candidates to identify them; `servers_here` lists them without connecting.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from howfar.doctor import procfs
from howfar.doctor.kind import Kind
from howfar.doctor.peer_location import FORWARDERS, owners
from howfar.doctor.procfs import LISTEN, Process, TcpRow, UnixRow, may_use
from howfar.services import SERVICES

PROGRAMS = {program: Kind(name) for name, service in SERVICES.items() for program in service.programs}
SYSTEM_UIDS = 1000
"""Lowest UID of users; lower ones are system accounts (Debian's and Red Hat's ranges)."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class ListenAddress:
    """A path, or an address and port, on which a process listens."""

    path: str | None
    host: str | None = None
    port: int | None = None
    inode: int | None = None
    bound: str | None = None
    """The path as the server bound it."""
    shared: bool = False
    """Whether the address was guessed for several processes: only the answering server can report which one it is."""

    @property
    def dialled(self) -> str | None:
        """The address to connect to: the loopback address if it listens on all interfaces."""
        return _ANY.get(self.host, self.host) if self.host is not None else None


@dataclass(frozen=True)
class Candidate:
    """A probable server and its probable addresses."""

    kind: Kind
    process: Process | None
    addresses: tuple[ListenAddress, ...]
    certain: bool
    """Whether the addresses are those of the process; otherwise they are guessed from account, name and port."""

    @property
    def is_trusted(self) -> bool:
        """Whether the process belongs to root, a system account or the user. Any account may run a process named mysqld to collect
        passwords."""
        return self.process is not None and (self.process.uid < SYSTEM_UIDS or self.process.uid == os.geteuid())


def kind_of(process: Process) -> Kind | None:
    """A process's kind of server, by its name or its program's name; None if it is no server."""
    name = program_of(process)
    return PROGRAMS[name] if name is not None else None


def program_of(process: Process) -> str | None:
    """The entry of PROGRAMS that a process runs, or None. A private installation may start it through the dynamic loader."""
    bases = [argument.rpartition("/")[2] for argument in process.arguments[:4]]
    loaded = bases if bases and bases[0].startswith("ld-linux") else bases[:1]
    return next((name for part in (process.name, *loaded) if (name := part.partition(" ")[0]) in PROGRAMS), None)


@dataclass(frozen=True)
class Search:
    """The result of a search of this machine."""

    candidates: tuple[Candidate, ...]
    foreign: tuple[Process, ...]
    """Servers that listen on nothing in this network namespace."""
    hidden: tuple[Process, ...]
    """Servers whose open files may not be read."""


def search() -> Search:
    """Search for servers with a visible process, then for listening addresses that belong to none of these."""
    tcp = [row for row in procfs.tcp_rows() if row.state == LISTEN]
    unix = [row for row in procfs.unix_rows() if row.listens]
    here = {row.inode for row in tcp} | {row.inode for row in unix}
    candidates, foreign, hidden = [], [], []
    servers = {process.pid: process for process in procfs.processes() if kind_of(process) is not None}
    for process in servers.values():
        kind = kind_of(process)
        assert kind is not None, "only such were kept"
        parent = servers.get(process.parent)
        if parent is not None and kind_of(parent) is kind:
            continue  # a child process of a server, such as PostgreSQL's for a session
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
    return Search(_with_shared(candidates), tuple(foreign), tuple(hidden))


def _addresses_of(pid: int, own: set[int], tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> tuple[ListenAddress, ...]:
    addresses = [
        ListenAddress(_absolute(pid, row.path), inode=row.inode, bound=row.path) for row in unix if row.inode in own
    ]
    addresses += [ListenAddress(None, *row.local, row.inode) for row in tcp if row.inode in own]
    return _once_per_port(addresses)


def _absolute(pid: int, path: str) -> str:
    """A server's path as an absolute path: a relative one starts at its working directory, which seldom changes."""
    try:
        return path if path.startswith("/") else str((procfs.PROC / str(pid) / "cwd").readlink() / path)
    except OSError:
        return path


def _once_per_port(addresses: Sequence[ListenAddress]) -> tuple[ListenAddress, ...]:
    """The addresses, with IPv4 and IPv6 of one port as one."""
    seen: dict[object, ListenAddress] = {}
    for address in addresses:
        seen.setdefault(address.path or (address.port, (address.host in _ANY) or address.host), address)
    return tuple(seen.values())


def _guessed(kind: Kind, process: Process, tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> tuple[ListenAddress, ...]:
    """Guessed addresses of a process whose open files may not be read: the sockets of its account; for root, only the usual port."""
    addresses = [
        ListenAddress(row.path, inode=row.inode, bound=row.path) for row in unix if _may_be(kind, row.path, process.uid)
    ]
    ports = [row for row in tcp if row.uid == process.uid and (row.uid != 0 or row.local[1] == SERVICES[kind].port)]
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
    if not any(argument in path for argument in SERVICES[kind].socket_names):
        return False
    try:
        return Path(path).stat().st_uid == uid
    except PermissionError:
        return True  # it is in a directory closed to us, such as a server's data directory
    except OSError:
        return False


def _ownerless(taken: set[int | None], tcp: Sequence[TcpRow], unix: Sequence[UnixRow]) -> list[Candidate]:
    """Candidates at usual ports and paths without a visible process: a container's published port, or a hidden process."""
    found = []
    for name, service in SERVICES.items():
        kind, port = Kind(name), service.port
        addresses = [
            ListenAddress(None, *row.local, row.inode) for row in tcp if row.local[1] == port and row.inode not in taken
        ]
        found += [Candidate(kind, None, (address,), False) for address in _once_per_port(addresses)]
    known = {socket_file(row.path) for row in unix if row.inode in taken}
    inodes = {row.path: row.inode for row in unix}
    for name, service in SERVICES.items():
        for path in service.sockets:
            if (file := socket_file(path)) is not None and file not in known:
                known.add(file)
                found.append(
                    Candidate(Kind(name), None, (ListenAddress(path, inode=inodes.get(path), bound=path),), False)
                )
    return found


def socket_file(path: str) -> tuple[int, int] | None:
    """Device and inode of a socket, with links followed; None if the path is no socket."""
    try:
        seen = Path(path).stat()
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino) if stat.S_ISSOCK(seen.st_mode) else None


# ---------------------------------------------------------------- the list of them

_OTHER_PORTS = {Kind.MYSQL: {33060, 33061, 4444, 4567, 4568}}
"""Ports of the X protocol, Group Replication and Galera, which are not for clients."""
_BUS = 10_000
"""Difference between the port of a node of a Redis cluster and that of its bus."""
_OTHER_SOCKETS = ("mysqlx",)
_POSTGRESQL = re.compile(r"/(?:postgresql|pgsql|postgres)[/-](\d{1,2}(?:\.\d)?)/")
_NAMES = {"mariadbd": "MariaDB", "redis-server": "Redis", "valkey-server": "Valkey", "memcached": "Memcached"}


@dataclass(frozen=True)
class ServerHere:
    """A server of this machine, as far as it is known without connecting to it."""

    kind: Kind
    name: str
    """Product and, if the program's path contains it, version."""
    pids: tuple[int, ...]
    """Its process; several if it is unknown which of them listens at the addresses; empty if no process is visible."""
    account: str | None
    addresses: tuple[str, ...]
    """Paths of sockets, and addresses with ports, on which it listens here."""
    target: str | None
    """The argument of `howfar` that reaches it, quoted for a shell; None if it cannot be reached from here."""
    notes: tuple[str, ...]
    """The forwarder in front of it, if any, and what could not be seen."""


def servers_here() -> list[ServerHere]:
    """The servers of this machine: those with a visible process, then those without, then those in other network namespaces."""
    found = search()
    ownerless = {address.inode for each in found.candidates if each.process is None for address in each.addresses}
    holders = owners(inode for inode in ownerless if inode is not None)
    groups: dict[object, list[Candidate]] = {}
    for number, each in enumerate(found.candidates):
        shares = each.process is not None and any(address.shared for address in each.addresses)
        groups.setdefault((each.kind, each.process.uid) if shares and each.process else number, []).append(each)
    listed = [made for each in groups.values() if (made := _listed(each, holders)) is not None]
    listed.sort(key=lambda server: not server.pids)
    return listed + [_in_namespace(process) for process in found.foreign]


def _listed(group: Sequence[Candidate], holders: dict[int, Process]) -> ServerHere | None:
    """A server, or several of one account whose addresses cannot be distinguished. None if another program listens there, or
    nothing does."""
    candidate, pids = group[0], tuple(each.process.pid for each in group if each.process is not None)
    process, kind = candidate.process, candidate.kind
    addresses = [each for each in candidate.addresses if each.inode is not None and _is_for_clients(each, candidate)]
    notes: list[str] = []
    if process is None:
        if not addresses:
            return None  # a path on which nothing listens any more
        holder = holders.get(addresses[0].inode or 0)
        if holder is not None and holder.name not in FORWARDERS:
            return None
        if holder is not None:
            notes.append(f"{holder.name} (pid {holder.pid}) passes this address on")
        else:
            notes.append("probably: its usual address; which program listens is not seen")
    elif not candidate.certain:
        notes.append(f"probably these addresses: {_who()} may not see the sockets of {procfs.account(process.uid)}")
        if len(pids) > 1:
            notes.append(f"which of {len(pids)} processes listens there may not be seen either")
    if process is not None and not addresses:
        notes.append("no address for clients is seen")
    return ServerHere(
        kind=kind,
        name=_product(candidate),
        pids=pids,
        account=procfs.account(process.uid) if process is not None else None,
        addresses=tuple(_address(each) for each in addresses),
        target=_target(kind, addresses),
        notes=tuple(notes),
    )


def _in_namespace(process: Process) -> ServerHere:
    kind = kind_of(process)
    assert kind is not None, "found as a server"
    note = f"in another network namespace, as in a container: nsenter -t {process.pid} -n howfar"
    return ServerHere(
        kind,
        _product(Candidate(kind, process, (), True)),
        (process.pid,),
        procfs.account(process.uid),
        (),
        None,
        (note,),
    )


def _who() -> str:
    return procfs.account(os.geteuid())


def _is_for_clients(address: ListenAddress, candidate: Candidate) -> bool:
    if address.path is not None:
        return not any(name in address.path.rpartition("/")[2] for name in _OTHER_SOCKETS)
    assert address.port is not None, "an address without a path has a port"
    ports = {each.port for each in candidate.addresses}
    if candidate.kind is Kind.REDIS and address.port - _BUS in ports:
        return False
    return address.port not in _OTHER_PORTS.get(candidate.kind, ())


def _product(candidate: Candidate) -> str:
    """The name of the product. mysqld may be MySQL or MariaDB; only its greeting tells them apart."""
    process = candidate.process
    program = program_of(process) if process is not None else None
    if program is None or program not in _NAMES:
        label = "MySQL or MariaDB" if candidate.kind is Kind.MYSQL else SERVICES[candidate.kind].label
        versions = _POSTGRESQL.search(process.arguments[0]) if process is not None and process.arguments else None
        return f"{label} {versions[1]}" if versions is not None and candidate.kind is Kind.POSTGRESQL else label
    return _NAMES[program]


def _address(address: ListenAddress) -> str:
    if address.path is not None:
        return address.path
    return f"[{address.host}]:{address.port}" if ":" in (address.host or "") else f"{address.host}:{address.port}"


def _target(kind: Kind, addresses: Sequence[ListenAddress]) -> str | None:
    """The nearest address that this account may use: a socket whose file is visible here, else a port; None if there is neither."""
    for address in addresses:
        if address.path is not None and _may_connect(address.path):
            return shlex.quote(_socket_target(kind, address.path))
    for address in addresses:
        if address.port is not None:
            host = address.dialled or ""
            return f"{kind.value}://{f'[{host}]' if ':' in host else host}:{address.port}"
    return None


def _may_connect(path: str) -> bool:
    return socket_file(path) is not None and may_use(path, os.geteuid(), os.getpid()) is not False


def _socket_target(kind: Kind, path: str) -> str:
    if not kind.names_folder:
        return f"{kind.value}://{quote(path)}"
    folder, _, name = path.rpartition("/")
    port = name.rpartition(".")[2]
    return f"{kind.value}:///?host={quote(folder)}" + (f"&port={port}" if port != str(SERVICES[kind].port) else "")
