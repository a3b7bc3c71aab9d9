"""Identifies the server at each candidate of this machine, and watches which programs have connections to it.

The kind and version of a server come from its own answers (`protocols/`).
"""

from __future__ import annotations

import grp
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from howfar.doctor import procfs
from howfar.doctor.candidates import Candidate, ListenAddress, Search, program_of, search, socket_file
from howfar.doctor.findings import ANOTHER_ROOT, NOT_CAUGHT, UNSEEN, Client, Listener, SocketFile, Transport, Unseen
from howfar.doctor.kind import Kind, ListenerState, Tls
from howfar.doctor.procfs import (
    CLEANED_DIRS,
    ESTABLISHED,
    LISTEN,
    TIME_WAIT,
    Address,
    Process,
    TcpRow,
    account,
    may_connect,
)
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import (
    Endpoint,
    Greeting,
    ListedSession,
    NothingListens,
    NoValidAnswer,
    Owner,
    UnexpectedListener,
    dial,
)
from howfar.doctor.targets import DoctorTarget, Logins, TargetLogin


def discover() -> tuple[tuple[Candidate, ...], tuple[Unseen, ...]]:
    """Search for candidates; returns them, and notes about what cannot be seen."""
    result = search()
    return result.candidates, _describe_unseen(result)


def _describe_unseen(search: Search) -> tuple[Unseen, ...]:
    """Describe servers in another network namespace, and servers whose open files may not be read."""

    def format_processes(processes: Sequence[Process]) -> str:
        return ", ".join(f"{program_of(process)} (pid {process.pid})" for process in processes)

    foreign, hidden = search.foreign, search.hidden
    unseen = []
    if foreign:
        why = "it listens on nothing in this network namespace: it is in a container, or starting or stopping"
        unseen.append(
            Unseen(what=format_processes(foreign), why=why, how=f"nsenter -t {foreign[0].pid} -n howfar doctor")
        )
    if hidden and os.geteuid() != 0:
        why = f"{procfs.own_account()} may not read another account's open files; guessed from account and port"
        unseen.append(Unseen(what=f"which sockets belong to {format_processes(hidden)}", why=why, how=_ROOT_ADVICE))
    return tuple(unseen)


_ROOT_ADVICE = "run howfar doctor as root"
_X_PROTOCOL_PORT = 33060
"""Default port of MySQL's X protocol."""


@dataclass
class IdentifiedServer:
    """A server that answered, or whose process was found on this machine although nothing answered."""

    kind: Kind
    process: Process | None
    target: DoctorTarget | None
    login: TargetLogin
    name: str = ""
    listeners: list[Listener] = field(default_factory=list)
    endpoints: dict[Transport, Endpoint] = field(default_factory=dict)
    """Endpoints that answered, one per transport."""
    tls: str = "unknown"
    compression: str = "unknown"
    is_certain: bool = False
    """Whether the addresses are known from the sockets of the server's process; if not, they are guessed."""
    is_trusted: bool = False
    """Whether a password may be sent to the server."""
    bound_paths: set[str] = field(default_factory=set)
    """Paths of the server's sockets, as the server passed them to bind()."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Reasons for refused logins, by address."""
    remedy: str | None = None
    """Remedy for the first refusal, as in `ServerRefused`; None if another login may succeed."""
    unseen: list[Unseen] = field(default_factory=list)


def identify(candidate: Candidate, logins: Logins, target: DoctorTarget | None) -> IdentifiedServer | None:
    """Identify the server at a candidate; None if it was a wrong guess: no server of its kind answers there."""
    server = _identify_with(candidate, logins, target)
    if server is None or not candidate.kind.knows_accounts or target is not None or not server.refusals:
        return server
    # The user given to the doctor may be meant for servers of another kind: retry with the account that this kind's package sets up.
    default_logins = logins.without_user()
    default_server = _identify_with(candidate, default_logins, None) if default_logins is not None else None
    return default_server if default_server is not None and not default_server.refusals else server


def _identify_with(candidate: Candidate, logins: Logins, target: DoctorTarget | None) -> IdentifiedServer | None:
    is_trusted = target is not None or candidate.is_trusted
    login = _login_for(candidate, logins, target, is_trusted)
    server = IdentifiedServer(
        candidate.kind, candidate.process, target, login, is_certain=candidate.is_certain, is_trusted=is_trusted
    )
    silent_addresses = []
    for address in candidate.addresses:
        if not _record_greeting(server, address):
            silent_addresses.append(address)
    if not server.name and (candidate.process is None or not candidate.is_certain):
        return None
    for address in silent_addresses:
        _record_silence(server, address, candidate.is_certain)
    server.name = server.name or candidate.kind.shown
    return server


def _login_for(candidate: Candidate, logins: Logins, target: DoctorTarget | None, is_trusted: bool) -> TargetLogin:
    login = logins.of(candidate.kind)
    user = (target.user if target is not None else None) or login.user
    is_default_user = not user and candidate.kind.knows_accounts
    if is_default_user:
        uid = candidate.process.uid if candidate.process is not None and os.geteuid() == 0 else os.geteuid()
        user = procfs.account(uid)
    return TargetLogin(
        user,
        (target.password if target is not None and target.password else login.password) if is_trusted else "",
        target.consent if target is not None else login.consent,
        target.database if target is not None else None,
        is_default_user,
    )


def _record_greeting(server: IdentifiedServer, address: ListenAddress) -> bool:
    """Connect to the address and record the server's answer. Returns False if the address must be reported as not answering."""
    endpoint = Endpoint(
        address.path, address.dial_host, address.port, _tls_requested(server.target, address), _owner(server.process)
    )
    try:
        greeting = PROTOCOLS[server.kind].greet(endpoint, server.login)
    except UnexpectedListener:
        return not server.is_certain  # another process listens: an address that was only guessed is not reported
    except NoValidAnswer:
        return False
    if (
        not server.is_certain
        and address.path is None
        and not _is_confirmed(greeting, server.process, address.is_shared)
    ):
        if greeting.pid is None:
            what = f"whether {address.host}:{address.port} is its port"
            server.unseen.append(Unseen(what=what, why="its account runs several such servers here", how=_ROOT_ADVICE))
        return True
    _add_listener(server, address, greeting.tls, "works")
    server.name = max(server.name, greeting.name, key=len)
    server.compression = greeting.compression
    if greeting.refused is not None:
        server.remedy = server.remedy if server.refusals else greeting.remedy
        server.refusals[server.listeners[-1].where] = greeting.refused
    for transport, transport_endpoint in _endpoints_by_transport(server.kind, endpoint, greeting).items():
        # Addresses are ordered by cost, so the cheapest endpoint is kept.
        server.endpoints.setdefault(transport, transport_endpoint)
    return True


def _owner(process: Process | None) -> Owner | None:
    return Owner(process.pid, process.uid) if process is not None else None


def _tls_requested(target: DoctorTarget | None, address: ListenAddress) -> bool:
    """Whether TLS was requested for the address; if so, no password is sent there in plain text."""
    return target is not None and target.tls and address.path is None and address.port == target.port


def _add_listener(server: IdentifiedServer, address: ListenAddress, tls: Tls, state: ListenerState) -> None:
    file = _describe_socket_file(address.path) if address.path is not None else None
    server.listeners.append(
        Listener(path=address.path, host=address.host, port=address.port, tls=tls, file=file, state=state)
    )
    if address.path is not None:
        server.bound_paths.add(address.bound_path or address.path)


def _describe_socket_file(path: str) -> SocketFile | None:
    """Describe a socket's file; None if it does not exist or may not be seen."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return SocketFile(
        mode=stat.S_IMODE(status.st_mode),
        owner=account(status.st_uid),
        group=_group_name(status.st_gid),
        who=_accounts_that_may_connect(path, status),
    )


def _accounts_that_may_connect(path: str, status: os.stat_result) -> str:
    """Describe the accounts that may connect, which must be able to write to the file and to enter every directory above it."""
    if status.st_mode & 0o002:
        closed_folder = next((folder for folder in Path(path).parents if not folder.stat().st_mode & 0o001), None)
        if closed_folder is None:
            return "every account"
        owner, mode = account(closed_folder.stat().st_uid), stat.S_IMODE(closed_folder.stat().st_mode)
        return f"accounts that may enter {closed_folder} (owner {owner}, mode {mode:04o})"
    if status.st_mode & 0o020:
        return f"{account(status.st_uid)}, the group {_group_name(status.st_gid)}, and root"
    return "root" if status.st_uid == 0 else f"{account(status.st_uid)} and root"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_confirmed(greeting: Greeting, process: Process | None, is_shared: bool) -> bool:
    """Whether the server at a guessed port is this process. A server in a container reports PID 1."""
    return process is None or greeting.pid == process.pid or (not is_shared and greeting.pid in (None, 1))


def _endpoints_by_transport(kind: Kind, endpoint: Endpoint, greeting: Greeting) -> dict[Transport, Endpoint]:
    encrypted = replace(endpoint, tls=True)
    if endpoint.path is not None:
        endpoints = {Transport.SOCKET: endpoint}
        return (
            endpoints | {Transport.SOCKET_TLS: encrypted}
            if greeting.tls == "offered" and kind is Kind.MYSQL
            else endpoints
        )
    if greeting.tls == "always" or endpoint.tls:
        return {Transport.TLS: encrypted}
    return {Transport.TCP: endpoint} | ({Transport.TLS: encrypted} if greeting.tls == "offered" else {})


def _record_silence(server: IdentifiedServer, address: ListenAddress, is_certain: bool) -> None:
    """Record an address that did not answer: a path with its state; a port only as unseen, because it may serve another purpose."""
    if address.path is None:
        if is_certain and address.port != _X_PROTOCOL_PORT:
            where = f"{address.host}:{address.port}"
            why = "it does not answer as such a server would"
            server.unseen.append(Unseen(what=f"the purpose of {where}", why=why, how=""))
        return
    if server.kind is Kind.MYSQL and "mysqlx" in address.path.rpartition("/")[2]:
        return  # the X protocol has its own socket, which does not answer other protocols
    state, why = _silent_path_state(address.path, server.process)
    if is_certain or state == "unseen":
        _add_listener(server, address, "unknown", state)
    if why:
        how = f"{_ROOT_ADVICE}, in the server's namespaces, while it answers"
        server.unseen.append(Unseen(what=f"the socket {address.path}", why=why, how=how))


def _silent_path_state(path: str, process: Process | None) -> tuple[ListenerState, str]:
    """Return the state of a path that did not answer (silence alone proves nothing), and the reason if it cannot be checked."""
    if process is not None and _sees_another_file(path, process):
        return "unseen", "the server sees another file system, as in a container"
    try:
        dial(Endpoint(path, None, None, owner=_owner(process))).close()
    except NothingListens:
        return "gone", ""
    except UnexpectedListener:
        return "elsewhere", ""
    except NoValidAnswer as why:
        return "unseen", str(why)
    return "unseen", "it does not answer as such a server would at present"


def _sees_another_file(path: str, process: Process) -> bool:
    """Whether the process sees another file at the path. False in /tmp: a socket in a private /tmp is useless to others anyway."""
    file_in_process = socket_file(f"/proc/{process.pid}/root{path}")
    return file_in_process is not None and file_in_process != socket_file(path) and not path.startswith(CLEANED_DIRS)


def format_tls_by_listener(listeners: Sequence[Listener]) -> str:
    """Format the TLS support of each listener: `offered on 127.0.0.1:3306; none on /run/x.sock`."""
    by_tls: dict[str, list[str]] = {}
    for listener in listeners:
        by_tls.setdefault(listener.tls, []).append(listener.where)
    return "; ".join(f"{tls} on {', '.join(addresses)}" for tls, addresses in by_tls.items())


_MEMCACHED_OPTIONS = ("-p", "-l", "-Z", "-s")
_MEMCACHED_SHORT_NAMES = {"--port": "-p", "--listen": "-l", "--enable-ssl": "-Z", "--unix-socket": "-s"}


def find_ignored_options(server: IdentifiedServer) -> tuple[str, ...]:
    """Return the options that memcached ignores because of -s, with which it listens only on the socket, without TLS."""
    if server.kind is not Kind.MEMCACHED or server.process is None or not server.listeners:
        return ()
    names = short_options(server.process.arguments)
    if "-s" not in names or any(listener.path is None for listener in server.listeners):
        return ()
    return tuple(option for option in ("-p", "-l", "-Z") if option in names)


def short_options(arguments: Sequence[str]) -> set[str]:
    """Return the short names of memcached's options in a command line. `-p 0`, which means no port, is left out."""
    names = set()
    for argument, next_argument in zip(arguments, [*arguments[1:], ""], strict=True):
        name = _MEMCACHED_SHORT_NAMES.get(argument.partition("=")[0]) or (
            argument[:2] if argument[:2] in _MEMCACHED_OPTIONS else None
        )
        if name == "-p" and (
            argument[2:] == "0"
            or argument.partition("=")[2] == "0"
            or (argument in ("-p", "--port") and next_argument == "0")
        ):
            continue
        if name is not None:
            names.add(name)
    return names


_POLL_S = 0.002
_CPU_SHARE = 0.25
"""Share of one CPU spent on sampling: only frequent samples catch connections of a few milliseconds. Reports call a sample a look."""
_SAMPLES_PER_SOCKET_READ = 8
"""Number of samples per count of the connections over Unix sockets, which change slowly."""
_BEFORE_FIRST_SAMPLE = -9
"""Stands for a sample that was not taken: its distance from every sample exceeds `_MAX_SAMPLES_APART`."""
_MAX_SAMPLES_APART = 2
"""Maximum number of samples between reading the CA bundle and connecting: on a busy machine a program may wait between the two."""
_BUNDLE_COUNTS = ("bundle_looks", "bundle_reads", "bundle_connects")
_FULL_SEARCH_S = 0.2
"""Minimum time between two searches of all processes for the owner of a socket."""
_BUNDLE = re.compile(
    r"/(ca-certificates\.crt|ca-bundle\.(crt|pem|trust\.crt)|tls-ca-bundle\.pem|cacert\.pem|cert\.pem)$"
)
"""Names of the system's CA bundle in distributions and language runtimes."""


@dataclass
class Holder:
    """A process, or several processes that cannot be distinguished, with its connections to one server."""

    pid: int | None
    uid: int | None
    remote: str | None
    connections: int = 0
    ports: set[int] = field(default_factory=set)
    server_ports: set[int] = field(default_factory=set)
    program_connections: int = 0
    """Maximum number of connections in one sample, summed over the processes of the same program and account."""
    bundle_looks: int = 0
    """Number of samples in which it had the CA bundle open."""
    bundle_reads: int = 0
    """Number of readings of the CA bundle; consecutive samples are one reading."""
    bundle_connects: int = 0
    """Number of new connections close in time to a reading of the CA bundle."""
    connect_sample: int = _BEFORE_FIRST_SAMPLE
    """Last sample in which it had a new connection."""
    bundle_sample: int = _BEFORE_FIRST_SAMPLE
    counted_sample: int = _BEFORE_FIRST_SAMPLE
    """Last value of `connect_sample` that was counted in `bundle_connects`."""

    def record_bundle_open(self, sample: int) -> None:
        self.bundle_looks += 1
        self.bundle_reads += self.bundle_sample < sample - 1
        self.bundle_sample = sample

    def count_bundle_connect(self) -> None:
        """Count a new connection if it is close in time to a reading of the bundle, which libraries do just before or just after
        connecting."""
        samples_apart = abs(self.connect_sample - self.bundle_sample)
        if self.connect_sample > self.counted_sample and samples_apart <= _MAX_SAMPLES_APART:
            self.bundle_connects += 1
            self.counted_sample = self.connect_sample


@dataclass
class WatchResult:
    """Holders of TCP connections, and numbers of connections over Unix sockets, both by `WatchedServer.key`."""

    holders: dict[int, dict[object, Holder]]
    socket_connections: dict[int, int]
    samples: int
    seconds: float


@dataclass(frozen=True)
class WatchedServer:
    """A server to watch: the addresses that identify its connections."""

    key: int
    ports: Mapping[int, frozenset[str]]
    """The server's TCP ports, each with its addresses; an empty set means all interfaces."""
    paths: frozenset[str]


class ConnectionWatch:
    """Samples the kernel's tables of connections, and finds the processes that hold connections to the watched servers."""

    def __init__(self, servers: Sequence[WatchedServer]) -> None:
        self._servers = servers
        self._pid_by_inode: dict[int, int] = {}
        self.programs: dict[int, procfs.Process] = {}
        """Processes that held a connection, by PID; kept because they may have ended before the report."""
        self._searched_at = float("-inf")
        self._pids_by_uid: dict[int, set[int]] = {}
        """Processes by account, as of the last search of all processes."""
        self._initially_closing: frozenset[tuple[Address, Address]] | None = None
        """Connections that were closing at the first sample. They are not counted, because they may be the doctor's own logins."""
        self._own_pid = os.getpid()
        self._result = WatchResult({s.key: {} for s in servers}, {s.key: 0 for s in servers}, 0, 0.0)

    def watch_for(self, seconds: float) -> WatchResult:
        start_s = time.monotonic()
        while True:
            cpu_start_s = time.thread_time()
            self._take_sample(time.monotonic())
            self._result.samples += 1
            now, cpu_s = time.monotonic(), time.thread_time() - cpu_start_s
            self._result.seconds = now - start_s
            if now - start_s >= seconds:
                self._remove_unidentified_duplicates()
                return self._result
            time.sleep(max(_POLL_S, cpu_s / _CPU_SHARE - cpu_s))

    def _take_sample(self, now: float) -> None:
        all_rows = procfs.tcp_rows()
        rows = [row for row in all_rows if row.state == ESTABLISHED]
        rows_by_addresses = {(row.local, row.remote): row for row in rows}
        connections = [
            (server, row, rows_by_addresses.get((row.remote, row.local)))
            for server in self._servers
            for row in rows
            if _is_address_of(server, row.local)
        ]
        self._find_owners(
            {client.inode: client.uid for _, _, client in connections if client is not None and client.inode}, now
        )
        holders_by_server: dict[tuple[int, int], list[Holder]] = {}
        for server, row, client in connections:
            if (holder := self._find_holder(server.key, row, client)) is None:
                continue
            if row.remote[1] not in holder.ports and self._result.samples:
                holder.connect_sample = self._result.samples
            holder.ports.add(row.remote[1])
            holder.server_ports.add(row.local[1])
            holders_by_server.setdefault((server.key, id(holder)), []).append(holder)
        self._update_counts(holders_by_server)
        self._count_ended_connections(all_rows)
        if self._result.samples % _SAMPLES_PER_SOCKET_READ == 0:
            self._count_socket_connections()
        self._find_bundle_readers()

    def _count_ended_connections(self, rows: Sequence[TcpRow]) -> None:
        """Count connections that were opened and closed between two samples. The kernel lists them for a minute (TIME_WAIT), without
        their account."""
        if self._initially_closing is None:
            self._initially_closing = frozenset(
                (row.local, row.remote) for row in rows if row.state not in (ESTABLISHED, LISTEN)
            )
        ended_rows = [
            row for row in rows if row.state == TIME_WAIT and (row.local, row.remote) not in self._initially_closing
        ]
        for server in self._servers if ended_rows else ():
            holders = self._result.holders[server.key]
            known_ports = {port for holder in holders.values() for port in holder.ports}
            for row in ended_rows:
                client_address, server_address = (
                    (row.remote, row.local) if _is_address_of(server, row.local) else (row.local, row.remote)
                )
                if (
                    not _is_address_of(server, server_address)
                    or not procfs.is_of_this_machine(server_address[0])
                    or client_address[1] in known_ports
                ):
                    continue
                remote = None if procfs.is_of_this_machine(client_address[0]) else client_address[0]
                holder = holders.setdefault(
                    ("remote", remote) if remote else "ended", Holder(None, None, remote, 1, program_connections=1)
                )
                holder.ports.add(client_address[1])
                holder.server_ports.add(server_address[1])

    def _update_counts(self, holders_by_server: Mapping[tuple[int, int], Sequence[Holder]]) -> None:
        """Update the maximum number of connections of each holder, and of each program and account together. `holders_by_server`: for
        each holder, one entry per connection in this sample."""
        totals: Counter[object] = Counter()
        for (key, _), holder_entries in holders_by_server.items():
            holder_entries[0].connections = max(holder_entries[0].connections, len(holder_entries))
            totals[self._program_key(key, holder_entries[0])] += len(holder_entries)
        for (key, _), holder_entries in holders_by_server.items():
            holder_entries[0].program_connections = max(
                holder_entries[0].program_connections, totals[self._program_key(key, holder_entries[0])]
            )

    def _program_key(self, key: int, holder: Holder) -> object:
        program = self.programs.get(holder.pid) if holder.pid is not None else None
        return key, program.shown if program is not None else None, holder.uid, holder.remote

    def _remove_unidentified_duplicates(self) -> None:
        """Remove what was counted twice: without a process, and again when the process was found."""
        for holders in self._result.holders.values():
            for name, holder in list(holders.items()):
                holder.connections = min(holder.connections, len(holder.ports))
                if not holder.ports:
                    del holders[name]

    def _count_socket_connections(self) -> None:
        paths = [row.path for row in procfs.unix_rows() if row.connected]
        for server in self._servers:
            count = sum(path in server.paths for path in paths)
            self._result.socket_connections[server.key] = max(self._result.socket_connections[server.key], count)

    def _find_holder(self, key: int, row: TcpRow, client: TcpRow | None) -> Holder | None:
        holders = self._result.holders[key]
        if client is not None:
            pid = self._pid_by_inode.get(client.inode)
            unidentified = holders.get(("uid", client.uid))
            if pid is not None and unidentified is not None:
                unidentified.ports.discard(row.remote[1])
            if pid == self._own_pid:
                return None
            name: object = ("pid", pid) if pid is not None else ("uid", client.uid)
            return holders.setdefault(name, Holder(pid, client.uid, None))
        if procfs.is_of_this_machine(row.remote[0]):  # the client's end is in another namespace, or just closing
            return None
        return holders.setdefault(("remote", row.remote[0]), Holder(None, None, row.remote[0]))

    def _find_owners(self, uid_by_inode: Mapping[int, int], now: float) -> None:
        """Find the processes that own sockets. `uid_by_inode`: the sockets. Searches the processes that had connections before,
        then those of the account, and then, at a limited rate, all processes."""
        missing_inodes = uid_by_inode.keys() - self._pid_by_inode.keys()
        if missing_inodes:
            missing_inodes -= self._record_owners(set(self._pid_by_inode.values()), missing_inodes)
        for uid in {uid_by_inode[inode] for inode in missing_inodes}:
            missing_inodes -= self._record_owners(self._pids_by_uid.get(uid, set()), missing_inodes)
        if missing_inodes and now - self._searched_at >= _FULL_SEARCH_S:
            self._searched_at = now
            self._pids_by_uid.clear()
            for process in procfs.processes():
                self._pids_by_uid.setdefault(process.uid, set()).add(process.pid)
            self._record_owners({pid for pids in self._pids_by_uid.values() for pid in pids}, missing_inodes)

    def _record_owners(self, pids: set[int], missing_inodes: set[int]) -> set[int]:
        """Record which of these processes own missing inodes. Returns the inodes that were found."""
        found_inodes: set[int] = set()
        for pid in pids:
            for inode in (procfs.socket_inodes(pid) or set()) & missing_inodes:
                self._pid_by_inode[inode] = pid
                found_inodes.add(inode)
                if pid not in self.programs and (process := procfs.process(pid)) is not None:
                    self.programs[pid] = process
        return found_inodes

    def _find_bundle_readers(self) -> None:
        """Find processes that have the CA bundle open. Reading it takes most of the time of a connect, so a few samples catch it."""
        has_bundle_open: dict[int, bool] = {}
        for holder in (holder for holders in self._result.holders.values() for holder in holders.values()):
            if holder.pid is None:
                continue
            if holder.pid not in has_bundle_open:
                has_bundle_open[holder.pid] = any(_BUNDLE.search(name) for name in procfs.open_files(holder.pid) or [])
            if has_bundle_open[holder.pid]:
                holder.record_bundle_open(self._result.samples)
            holder.count_bundle_connect()


def _is_address_of(server: WatchedServer, address: Address) -> bool:
    host, port = address
    server_hosts = server.ports.get(port)
    return server_hosts is not None and (not server_hosts or host in server_hosts)


@dataclass(frozen=True)
class SessionFacts:
    """Further facts about one server's sessions, besides the holders of its connections."""

    sessions: Sequence[ListedSession]
    listeners: Sequence[Listener]
    never_tls: bool
    """Whether the server has no TLS, or has counted no TLS handshake since it started."""
    socket: str | None


def group_clients(
    holders: Sequence[Holder], programs: Mapping[int, procfs.Process], session_facts: SessionFacts
) -> tuple[Client, ...]:
    """Group connections into clients by program and account, ordered by their number of connections, largest first."""
    clients_and_totals = [
        (_tcp_client(holder, programs, session_facts), holder.program_connections) for holder in holders
    ]
    clients_and_totals += [(client, client.connections) for client in _socket_clients(session_facts)]
    merged: dict[object, Client] = {}
    program_connections: dict[object, int] = {}
    for client, total in clients_and_totals:
        key = (client.program, client.user, client.address, client.by, client.local, client.tls)
        merged[key] = _merge_clients(merged[key], client) if key in merged else client
        program_connections[key] = (
            program_connections.get(key, 0) + total
            if client.by == "socket"
            else max(program_connections.get(key, 0), total)
        )
    result = [
        client.model_copy(update={"connections": min(client.connections, program_connections[key])})
        for key, client in merged.items()
    ]
    return tuple(sorted(result, key=lambda client: -client.connections))


def _tcp_client(holder: Holder, programs: Mapping[int, procfs.Process], session_facts: SessionFacts) -> Client:
    process = programs.get(holder.pid) if holder.pid is not None else None
    uid = process.uid if process is not None else holder.uid
    listed_sessions = [session for session in session_facts.sessions if session.port in holder.ports]
    root = _root_directory(holder.pid)
    may_use_socket = (
        may_connect(session_facts.socket, uid, holder.pid)
        if session_facts.socket is not None and uid is not None
        else None
    )
    if (
        may_use_socket
        and root == "/"
        and holder.pid is not None
        and not procfs.sees_same_file(holder.pid, str(session_facts.socket))
    ):
        may_use_socket = False  # the socket is hidden from the client, as by PrivateTmp
    return Client(
        program=process.shown
        if process is not None
        else NOT_CAUGHT
        if uid is None or os.geteuid() in (0, uid)
        else UNSEEN,
        pids=(holder.pid,) if holder.pid is not None else (),
        user=procfs.account(uid) if uid is not None else None,
        local=holder.remote is None,
        address=holder.remote,
        by="tcp",
        connections=holder.connections,
        connects_seen=len(holder.ports),
        tls=_uses_tls(holder, listed_sessions, session_facts),
        compressed=_any_or_unknown([session.compressed for session in listed_sessions]),
        may_use_socket=may_use_socket,
        root=root,
        **{name: getattr(holder, name) for name in _BUNDLE_COUNTS},
    )


def _root_directory(pid: int | None) -> str | None:
    """Root directory of a process, for `Client.root`."""
    root = procfs.root(pid) if pid is not None else None
    return ANOTHER_ROOT if root == "" else root


def _uses_tls(holder: Holder, listed_sessions: Sequence[ListedSession], session_facts: SessionFacts) -> bool | None:
    if session_facts.never_tls:
        return False
    if (reported := _any_or_unknown([session.tls for session in listed_sessions])) is not None:
        return reported
    listener_tls = {listener.tls for listener in session_facts.listeners if listener.port in holder.server_ports}
    if listener_tls == {"always"}:
        return True
    return False if listener_tls == {"none"} else None


def _socket_clients(session_facts: SessionFacts) -> list[Client]:
    """Return the clients over the socket, from the server's own list of sessions: /proc does not show the process at the other end."""
    sessions_as_clients = []
    for session in session_facts.sessions:
        if session.port is not None or (session.tls is None and session.pid is None):
            continue
        process = procfs.process(session.pid) if session.pid is not None else None
        client = Client(
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
            root=_root_directory(session.pid),
            **dict.fromkeys(_BUNDLE_COUNTS, 0),
        )
        sessions_as_clients.append(client)
    return sessions_as_clients


def _any_or_unknown(values: Sequence[bool | None]) -> bool | None:
    known = [value for value in values if value is not None]
    return any(known) if known else None


def _merge_clients(first: Client, second: Client) -> Client:
    sums = ("connections", "connects_seen", *_BUNDLE_COUNTS)
    may_use_socket = (
        None
        if None in (first.may_use_socket, second.may_use_socket)
        else first.may_use_socket and second.may_use_socket
    )
    return first.model_copy(
        update={
            **{name: getattr(first, name) + getattr(second, name) for name in sums},
            "pids": tuple(sorted({*first.pids, *second.pids})),
            "compressed": _any_or_unknown([first.compressed, second.compressed]),
            "may_use_socket": may_use_socket,
        }
    )
