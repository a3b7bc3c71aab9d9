"""Finds probable servers of this machine by processes, listening sockets and the usual paths, without connecting to any.

A process's name proves nothing: `discovery` connects to the candidates to identify them; `list_local_servers` lists them without
connecting.
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

from howfar.address.server_address import format_host_port
from howfar.doctor import procfs
from howfar.doctor.kind import Kind
from howfar.doctor.peer_location import FORWARDERS, find_socket_owners
from howfar.doctor.procfs import LISTEN, Process, TcpRow, UnixRow, may_connect
from howfar.services import SERVICES

PROGRAMS = {program: Kind(name) for name, service in SERVICES.items() for program in service.programs}
SYSTEM_UIDS = 1000
"""Lowest UID of a user; lower UIDs are system accounts (as in Debian and Red Hat)."""
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class ListenAddress:
    """A path, or an address and port, on which a process listens."""

    path: str | None
    host: str | None = None
    port: int | None = None
    inode: int | None = None
    bound_path: str | None = None
    """The path as the server passed it to bind()."""
    is_shared: bool = False
    """Whether the address was guessed for several processes; only the server's own answer can show which process it belongs to."""

    @property
    def dial_host(self) -> str | None:
        """The address to connect to: the loopback address if it listens on all interfaces."""
        return _LOOPBACK_OF.get(self.host, self.host) if self.host is not None else None


@dataclass(frozen=True)
class Candidate:
    """A probable server and its probable addresses."""

    kind: Kind
    process: Process | None
    addresses: tuple[ListenAddress, ...]
    is_certain: bool
    """Whether the addresses are those of the process; if not, they are guessed from account, name and port."""

    @property
    def is_trusted(self) -> bool:
        """Whether the process belongs to root, a system account or the doctor's user. Any other account might run a process named
        mysqld to collect passwords."""
        return self.process is not None and (self.process.uid < SYSTEM_UIDS or self.process.uid == os.geteuid())


def server_kind_of(process: Process) -> Kind | None:
    """Return a process's kind of server, by its name or its program's name; None if it is no server."""
    name = program_of(process)
    return PROGRAMS[name] if name is not None else None


def program_of(process: Process) -> str | None:
    """Return the key in PROGRAMS of a process's program, or None. Some installations start it through the dynamic loader."""
    file_names = [argument.rpartition("/")[2] for argument in process.arguments[:4]]
    program_names = file_names if file_names and file_names[0].startswith("ld-linux") else file_names[:1]
    return next(
        (
            name
            for name_or_path in (process.name, *program_names)
            if (name := name_or_path.partition(" ")[0]) in PROGRAMS
        ),
        None,
    )


@dataclass(frozen=True)
class Search:
    """The result of a search of this machine."""

    candidates: tuple[Candidate, ...]
    foreign: tuple[Process, ...]
    """Servers that listen on nothing in this network namespace."""
    hidden: tuple[Process, ...]
    """Servers whose open files may not be read."""


def search() -> Search:
    """Search for servers with a visible process, then for listening addresses of no visible process."""
    tcp_rows = [row for row in procfs.tcp_rows() if row.state == LISTEN]
    unix_rows = [row for row in procfs.unix_rows() if row.listens]
    listening_inodes = {row.inode for row in tcp_rows} | {row.inode for row in unix_rows}
    candidates, foreign, hidden = [], [], []
    servers = {process.pid: process for process in procfs.processes() if server_kind_of(process) is not None}
    for process in servers.values():
        kind = server_kind_of(process)
        assert kind is not None, "`servers` has only processes with a kind"
        parent = servers.get(process.parent)
        if parent is not None and server_kind_of(parent) is kind:
            continue  # a child process of a server, such as PostgreSQL's for a session
        inodes = procfs.socket_inodes(process.pid)
        if inodes is None:
            hidden.append(process)
            candidates.append(Candidate(kind, process, _guess_addresses(kind, process, tcp_rows, unix_rows), False))
        elif inodes & listening_inodes:
            candidates.append(Candidate(kind, process, _addresses_of(process.pid, inodes, tcp_rows, unix_rows), True))
        else:
            foreign.append(process)
    taken_inodes = {address.inode for candidate in candidates for address in candidate.addresses}
    candidates += _find_ownerless(taken_inodes, tcp_rows, unix_rows)
    return Search(_mark_shared(candidates), tuple(foreign), tuple(hidden))


def _addresses_of(
    pid: int, inodes: set[int], tcp_rows: Sequence[TcpRow], unix_rows: Sequence[UnixRow]
) -> tuple[ListenAddress, ...]:
    addresses = [
        ListenAddress(_absolute_path(pid, row.path), inode=row.inode, bound_path=row.path)
        for row in unix_rows
        if row.inode in inodes
    ]
    addresses += [ListenAddress(None, *row.local, row.inode) for row in tcp_rows if row.inode in inodes]
    return _deduplicate_by_port(addresses)


def _absolute_path(pid: int, path: str) -> str:
    """Make a server's path absolute. A relative path is taken to start at the server's working directory, which seldom changes."""
    try:
        return path if path.startswith("/") else str((procfs.PROC / str(pid) / "cwd").readlink() / path)
    except OSError:
        return path


def _deduplicate_by_port(addresses: Sequence[ListenAddress]) -> tuple[ListenAddress, ...]:
    """Remove duplicate addresses: IPv4 and IPv6 listeners of the same port count as one."""
    unique: dict[object, ListenAddress] = {}
    for address in addresses:
        unique.setdefault(address.path or (address.port, (address.host in _LOOPBACK_OF) or address.host), address)
    return tuple(unique.values())


def _guess_addresses(
    kind: Kind, process: Process, tcp_rows: Sequence[TcpRow], unix_rows: Sequence[UnixRow]
) -> tuple[ListenAddress, ...]:
    """Guess the addresses of a process with unreadable open files: the sockets of its account; for root, only the usual port."""
    addresses = [
        ListenAddress(row.path, inode=row.inode, bound_path=row.path)
        for row in unix_rows
        if _may_be_socket_of(kind, row.path, process.uid)
    ]
    ports = [
        row for row in tcp_rows if row.uid == process.uid and (row.uid != 0 or row.local[1] == SERVICES[kind].port)
    ]
    return _deduplicate_by_port([*addresses, *(ListenAddress(None, *row.local, row.inode) for row in ports)])


def _mark_shared(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    guesses_by_address = Counter(
        (candidate.kind, address.inode)
        for candidate in candidates
        if not candidate.is_certain
        for address in candidate.addresses
    )
    return tuple(
        replace(
            candidate,
            addresses=tuple(
                replace(address, is_shared=guesses_by_address[candidate.kind, address.inode] > 1)
                for address in candidate.addresses
            ),
        )
        for candidate in candidates
    )


def _may_be_socket_of(kind: Kind, path: str, uid: int) -> bool:
    if not any(part in path for part in SERVICES[kind].socket_names):
        return False
    try:
        return Path(path).stat().st_uid == uid
    except PermissionError:
        return True  # it is in a directory that we may not enter, such as a server's data directory
    except OSError:
        return False


def _find_ownerless(
    taken_inodes: set[int | None], tcp_rows: Sequence[TcpRow], unix_rows: Sequence[UnixRow]
) -> list[Candidate]:
    """Find candidates without a visible process at usual ports and paths, such as a container's published port."""
    candidates = []
    for name, service in SERVICES.items():
        kind, port = Kind(name), service.port
        addresses = [
            ListenAddress(None, *row.local, row.inode)
            for row in tcp_rows
            if row.local[1] == port and row.inode not in taken_inodes
        ]
        candidates += [Candidate(kind, None, (address,), False) for address in _deduplicate_by_port(addresses)]
    known_files = {socket_file(row.path) for row in unix_rows if row.inode in taken_inodes}
    inodes = {row.path: row.inode for row in unix_rows}
    for name, service in SERVICES.items():
        for path in service.sockets:
            if (file := socket_file(path)) is not None and file not in known_files:
                known_files.add(file)
                candidates.append(
                    Candidate(Kind(name), None, (ListenAddress(path, inode=inodes.get(path), bound_path=path),), False)
                )
    return candidates


def socket_file(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a socket, with links followed; None if the path is no socket."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


# ---------------------------------------------------------------- the list of servers

_INTERNAL_PORTS = {Kind.MYSQL: {33060, 33061, 4444, 4567, 4568}}
"""Ports of the X protocol, Group Replication and Galera, which are not for ordinary clients."""
_CLUSTER_BUS_OFFSET = 10_000
"""Difference between the port of a node of a Redis cluster and that of its bus."""
_INTERNAL_SOCKETS = ("mysqlx",)
_POSTGRESQL_VERSION = re.compile(r"/(?:postgresql|pgsql|postgres)[/-](\d{1,2}(?:\.\d)?)/")
_PRODUCT_NAMES = {"mariadbd": "MariaDB", "redis-server": "Redis", "valkey-server": "Valkey", "memcached": "Memcached"}


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
    """Paths of sockets, and addresses with ports, on which it listens on this machine."""
    target: str | None
    """The argument of `howfar` that reaches it, quoted for a shell; None if it cannot be reached from here."""
    notes: tuple[str, ...]
    """The forwarder in front of it, if any, and what could not be seen."""


def list_local_servers() -> list[ServerHere]:
    """List the servers of this machine: those with a visible process, then those without, then those in other network namespaces."""
    result = search()
    ownerless = {
        address.inode for candidate in result.candidates if candidate.process is None for address in candidate.addresses
    }
    holders = find_socket_owners(inode for inode in ownerless if inode is not None)
    groups: dict[object, list[Candidate]] = {}
    for number, candidate in enumerate(result.candidates):
        is_shared = candidate.process is not None and any(address.is_shared for address in candidate.addresses)
        groups.setdefault(
            (candidate.kind, candidate.process.uid) if is_shared and candidate.process else number, []
        ).append(candidate)
    servers = [server for group in groups.values() if (server := _describe_group(group, holders)) is not None]
    servers.sort(key=lambda server: not server.pids)
    return servers + [_describe_foreign(process) for process in result.foreign]


def _describe_group(group: Sequence[Candidate], holders: dict[int, Process]) -> ServerHere | None:
    """Describe a server, or several servers of one account whose addresses cannot be distinguished. None if another program, or no
    program, listens there."""
    candidate, pids = group[0], tuple(member.process.pid for member in group if member.process is not None)
    process, kind = candidate.process, candidate.kind
    addresses = [
        address for address in candidate.addresses if address.inode is not None and _is_for_clients(address, candidate)
    ]
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
    elif not candidate.is_certain:
        notes.append(
            f"probably these addresses: {procfs.own_account()} may not see the sockets of {procfs.account(process.uid)}"
        )
        if len(pids) > 1:
            notes.append(f"which of {len(pids)} processes listens there may not be seen either")
    if process is not None and not addresses:
        notes.append("no address for clients is seen")
    return ServerHere(
        kind=kind,
        name=_product_name(candidate),
        pids=pids,
        account=procfs.account(process.uid) if process is not None else None,
        addresses=tuple(address.path or format_host_port(address.host, address.port) for address in addresses),
        target=_howfar_target(kind, addresses),
        notes=tuple(notes),
    )


def _describe_foreign(process: Process) -> ServerHere:
    kind = server_kind_of(process)
    assert kind is not None, "a foreign process is a server"
    note = f"in another network namespace, as in a container: nsenter -t {process.pid} -n howfar"
    return ServerHere(
        kind,
        _product_name(Candidate(kind, process, (), True)),
        (process.pid,),
        procfs.account(process.uid),
        (),
        None,
        (note,),
    )


def _is_for_clients(address: ListenAddress, candidate: Candidate) -> bool:
    if address.path is not None:
        return not any(name in address.path.rpartition("/")[2] for name in _INTERNAL_SOCKETS)
    assert address.port is not None, "an address without a path has a port"
    ports = {other.port for other in candidate.addresses}
    if candidate.kind is Kind.REDIS and address.port - _CLUSTER_BUS_OFFSET in ports:
        return False
    return address.port not in _INTERNAL_PORTS.get(candidate.kind, ())


def _product_name(candidate: Candidate) -> str:
    """Return the name of the product. mysqld may be MySQL or MariaDB; only its greeting distinguishes them."""
    process = candidate.process
    program = program_of(process) if process is not None else None
    if program is None or program not in _PRODUCT_NAMES:
        label = "MySQL or MariaDB" if candidate.kind is Kind.MYSQL else SERVICES[candidate.kind].label
        versions = (
            _POSTGRESQL_VERSION.search(process.arguments[0]) if process is not None and process.arguments else None
        )
        return f"{label} {versions[1]}" if versions is not None and candidate.kind is Kind.POSTGRESQL else label
    return _PRODUCT_NAMES[program]


def _howfar_target(kind: Kind, addresses: Sequence[ListenAddress]) -> str | None:
    """Return the argument of `howfar` for the best address that this account may use: a visible socket, else a port, else None."""
    for address in addresses:
        if address.path is not None and _may_connect(address.path):
            return shlex.quote(_socket_target(kind, address.path))
    for address in addresses:
        if address.port is not None:
            return f"{kind.value}://{format_host_port(address.dial_host, address.port)}"
    return None


def _may_connect(path: str) -> bool:
    return socket_file(path) is not None and may_connect(path, os.geteuid(), os.getpid()) is not False


def _socket_target(kind: Kind, path: str) -> str:
    if not kind.names_socket_directory:
        return f"{kind.value}://{quote(path)}"
    folder, _, name = path.rpartition("/")
    port = name.rpartition(".")[2]
    return f"{kind.value}:///?host={quote(folder)}" + (f"&port={port}" if port != str(SERVICES[kind].port) else "")
