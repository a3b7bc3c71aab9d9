"""One server of a stage, reached over the stage's path, and everything that its receipt contains."""

from __future__ import annotations

import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as FilePath
from typing import Any, Protocol, cast

from howfar.engine.messages import Observed, Service, ServiceName, TcpTarget, UnixTarget
from howfar.engine.process import Launcher
from howfar.errors import LabError, MissingError, ServerCrashed, how_ended
from howfar.lab.certificates import KEY_TYPE, pinned_context
from howfar.lab.network import CLIENT_ADDRESS, LOOPBACK_ADDRESS, SERVER_ADDRESS, Companion, Host
from howfar.lab.sandbox import as_other_user
from howfar.lab.servers import CertificatePaths, Counted, Server
from howfar.lab.servers.kinds import KINDS
from howfar.lab.sockets import listens
from howfar.lab.window import Diag, parse
from howfar.paths import Endpoint, Hop, Path, Process
from howfar.paths.path import Seen, Side
from howfar.plan.sessions import SessionSpec
from howfar.services import SqlProtocol
from howfar.store.server_metrics import ServerMetrics, server_metrics
from howfar.testbed import ServiceEndpoint, Trust

_SILENT = ("resp2", "resp3", "memcached_text", "memcached_meta")
"""Protocols in which a server reports nothing about TLS to its client."""


def session_violations(endpoint: Endpoint, session: Mapping[str, Any], spec: SessionSpec) -> tuple[str, ...]:
    """Differences between the engine's session and what path and cell require. An unknown TLS version is accepted only if the protocol
    cannot report it."""
    found = []
    family = session.get("address_family")
    wanted = "unix" if endpoint.socket else "inet"
    if family != wanted:
        found.append(f"the session was of address family {family}, the path requires {wanted}")
    if endpoint.socket:
        peer, peer_wanted = session.get("peer_address"), endpoint.socket
        if session.get("peer_pid") != endpoint.peer_pid:
            found.append(f"process {session.get('peer_pid')} answered on the socket, not {endpoint.peer_pid}")
    else:
        peer, peer_wanted = session.get("peer_address"), f"{endpoint.host}:{endpoint.port}"
    if peer != peer_wanted:
        found.append(f"the session's peer was {peer}, the path leads to {peer_wanted}")
    # As both sides report it: the server's status, and what the engine itself negotiated.
    sides = [("server", session.get("tls_version")), ("engine", session.get("tls_client_version"))]
    if session.get("protocol_mode") in _SILENT:  # a second session then proves what the server sees
        del sides[0]
    for side, version in sides:
        if (version or None) != spec.tls_version:
            found.append(
                f"for the {side} the session was {_encrypted(version)}, expected {_encrypted(spec.tls_version)}"
            )
    algorithm = session.get("compression") or None
    if algorithm != spec.algorithm:
        found.append(
            f"the session was compressed by {algorithm or 'nothing'}, expected by {spec.algorithm or 'nothing'}"
        )
    return tuple(found)


def _encrypted(version: str | None) -> str:
    return f"encrypted ({version})" if version else "in plain"


def view_violations(endpoint: Endpoint, view: Mapping[str, Any], spec: SessionSpec) -> tuple[str, ...]:
    """Differences between the server's view of a session (its row in the process list, its TLS) and the request. This session's client
    cannot compress: a server that reports compression for it is not trusted about the engine's session either."""
    found = []
    host = str(view.get("host", "")).partition(":")[0]
    if host != endpoint.seen_from:
        found.append(f"the server sees its client at {host!r}, the path comes from {endpoint.seen_from!r}")
    version = view.get("ssl_version") or None
    if version != spec.tls_version:
        found.append(f"the server says a session is {_encrypted(version)}, expected {_encrypted(spec.tls_version)}")
    if view.get("compression", "OFF") != "OFF":
        found.append("the server says the session is compressed")
    return tuple(found)


def view_receipt(view: Mapping[str, Any]) -> dict[str, Any]:
    """The view as kept in receipts, without `compression`: this session never compresses, whether or not the load's do."""
    kept = {name: value for name, value in view.items() if name != "compression"}
    return {"of": "a session beside the load's, by the same path and encrypted alike", **kept}


_EVERY_S = 0.1
"""Sampling interval. A sample reads two small files, which takes some tens of microseconds of CPU."""


def child_count(pid: int) -> int | None:
    """Present number of children of all threads of a process; None if it has ended, or this kernel does not list children."""
    try:
        lists = [path.read_text().split() for path in FilePath(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return None
    return sum(map(len, lists)) if lists else None


Look = Callable[[], Mapping[str, int]]


def look_at(hop: Hop) -> Look | None:
    """The function that reads a hop's present `processes`, `to_clients` and `to_server`; None if the hop does not report them."""
    if not hop.forks:
        return hop.now
    return partial(processes, hop.process.pid)


def processes(pid: int) -> Mapping[str, int]:
    """Number of processes of a hop that forks; empty if unknown."""
    count = child_count(pid)
    return {} if count is None else {"processes": count}


class HopCount(Protocol):
    """The part of `HopWatch` that a stage uses."""

    def finish(self) -> Mapping[str, Mapping[str, int]]: ...


class HopWatch:
    """Watches hops by name from its construction until `finish()`, which returns the maximum of each observed count."""

    def __init__(self, looks: Mapping[str, Look], every_s: float = _EVERY_S) -> None:
        self._looks, self._every_s = dict(looks), every_s
        self._most: dict[str, dict[str, int]] = {name: {} for name in looks}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hops", daemon=True)
        self._look()
        self._thread.start()

    def _look(self) -> None:
        for name, look in self._looks.items():
            with suppress(LabError):  # reading its counters later reports a hop that has died
                seen, most = look(), self._most[name]
                most.update({what: max(count, most.get(what, 0)) for what, count in seen.items()})

    def _watch(self) -> None:
        while not self._end.wait(self._every_s):
            self._look()

    def finish(self) -> dict[str, dict[str, int]]:
        """Stop watching; may be called again. Returns the maxima, without unknown ones."""
        self._end.set()
        self._thread.join()
        return {name: dict(most) for name, most in self._most.items()}


def watch_here(hops: Sequence[Hop]) -> HopWatch:
    """Watch the hops whose processes are on this machine."""
    return HopWatch({hop.label: look for hop in hops if (look := look_at(hop)) is not None})


def fork_violations(most: Mapping[str, int | None], connections: int | None) -> tuple[str, ...]:
    """Violations of forwarders that had fewer processes than there were connections. Unknown counts are no violation."""
    if connections is None:
        return ()
    return tuple(
        f"the forwarder of the {name.replace('_', ' ')} had {count} processes for {connections} connections"
        for name, count in most.items()
        if count is not None and count < connections
    )


def carried_violations(name: str, carried: Mapping[str, int], connections: int | None) -> tuple[str, ...]:
    """Violations of a hop that carried less than the load. `carried`: its counters since the load began, and its maximum number of
    simultaneous connections."""
    found = []
    passed = carried.get("connections_most", carried.get("connections"))
    if connections is not None and passed is not None and passed < connections:
        found.append(f"{passed} connections went through it, not {connections}")
    found += [
        f"it carried no {name.replace('_', ' ')}"
        for name in ("bytes_to_server", "bytes_to_client")
        if not carried[name]
    ]
    return tuple(f"the hop of the {name.replace('_', ' ')}: {what}" for what in found)


_READY_TIMEOUT_S = 20.0
_SHELLS_SIGNAL = 128
"""A shell's exit code for a killed command is this plus the signal's number."""
_POLL_S = 0.003
_ACCEPTED_S = 2.0


class Listener(Protocol):
    """The part of a running server, here or on another host, that a path needs."""

    @property
    def kind(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def port(self) -> int | None: ...
    @property
    def socket(self) -> FilePath: ...
    def query(self, sql: str) -> list[dict[str, Any]]: ...


NO_PID = 0
"""The pid that the kernel reports for a process outside our pid namespace, also for the peer of a Unix socket."""


class RunningServer(Listener, Protocol):
    """The part of a running server, here or on another host, that a stage needs."""

    version: str

    def alive(self) -> bool: ...
    def snapshot(self) -> dict[str, int]: ...
    def receipt(
        self, before: Mapping[str, int], commits: int | None = None
    ) -> tuple[dict[str, Any], tuple[str, ...]]: ...


class KeyStore(RunningServer, Protocol):
    """A running server that stores keys; see `key_value.KeyValueServer`."""

    def metrics(self) -> ServerMetrics: ...
    def count_keys(self) -> int: ...
    def others(self) -> tuple[str, ...]: ...


class Counting(RunningServer, Protocol):
    """A running server with tables; see `servers.TableServer`."""

    def counted(self) -> Counted: ...
    def clients(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Started:
    """A running server, before any path leads to it."""

    running: RunningServer
    certificates: CertificatePaths | None
    """The server's certificates; None if it offers no TLS."""
    spec: SessionSpec
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""

    @property
    def name(self) -> ServiceName:
        return KINDS[self.running.kind].service

    @property
    def account(self) -> dict[str, str]:
        """The load's account, as arguments."""
        return {"user": self.user, "password": self.password, "database": self.database}


@dataclass(frozen=True)
class Ends:
    """The two hosts that a path connects, and the directory for its files."""

    work: FilePath
    client: Host
    """The load's host; on local paths the server's host."""
    server: Host
    clients_side: Launcher
    """Starts background processes at the client's end of the link."""
    servers_side: Launcher
    certificates: Callable[[], CertificatePaths]
    """The laboratory's certificates, for the path's programs."""


@dataclass(frozen=True)
class ServerProof:
    """One server's part of a receipt."""

    server: dict[str, Any]
    forwarder: dict[str, Any] | None
    """Receipt of the forwarder; None if the path has none."""
    metrics: ServerMetrics
    """The server's counters since the load began (`Reached.before`)."""
    violations: tuple[str, ...]


@dataclass
class Reached:
    """One server and the open path to it."""

    started: Started
    endpoint: Endpoint
    view: dict[str, Any]
    """The server's view of a session parallel to the load's."""
    watch_hops: Callable[[Sequence[Hop]], HopCount] = watch_here
    """Starts to watch these hops, on the host where they run."""
    before: dict[str, int] = field(default_factory=dict)
    """The server's counters when the stage was ready; if keys were set or an application proven later, when the load began."""
    _watch: HopCount | None = None
    _carried: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Counters of each hop when the load began."""

    @property
    def name(self) -> ServiceName:
        return self.started.name

    @property
    def running(self) -> RunningServer:
        return self.started.running

    @property
    def store(self) -> KeyStore | None:
        """The server if it stores keys, else None."""
        return cast(KeyStore, self.running) if KINDS[self.running.kind].speaks == "keys" else None

    @property
    def protocol(self) -> SqlProtocol:
        """The protocol of SQL statements; `mysql` for a key-value store, which has its own protocol."""
        speaks = KINDS[self.running.kind].speaks
        return "mysql" if speaks == "keys" else speaks

    @property
    def trust(self) -> Trust | None:
        """The CA that verifies the server's certificate; None if the server offers no TLS."""
        certificates = self.started.certificates
        if certificates is None:
            return None
        # Over a socket, forwarded or not, the server has no address.
        return Trust(str(certificates.ca), self.endpoint.host or "localhost")

    @property
    def target(self) -> UnixTarget | TcpTarget:
        """Address that the engine connects to."""
        endpoint = self.endpoint
        if endpoint.socket is not None:
            return UnixTarget(path=endpoint.socket)
        assert endpoint.host is not None and endpoint.port is not None, "an endpoint is a socket, or host and port"
        return TcpTarget(host=endpoint.host, port=endpoint.port)

    def service_endpoint(self) -> ServiceEndpoint:
        running, started = self.running, self.started
        return ServiceEndpoint(
            service=Service(
                target=self.target,
                user=started.user,
                password=started.password,
                database=started.database,
                tls=self.trust.tls(started.spec) if self.trust else None,
                fetch_server_key=True,  # safe: the account exists only in the laboratory's own namespaces
            ),
            server_kind=running.kind,
            server_version=running.version,
            pid=running.pid,
            count_keys=None if self.store is None else self.store.count_keys,
        )

    def observed(self, role: str) -> tuple[Observed, ...]:
        hops = (Observed(role="forwarder", pid=hop.process.pid) for hop in self.endpoint.hops)
        if self.running.pid == NO_PID:
            return tuple(hops)
        return (Observed(role=role, pid=self.running.pid), *hops)

    def begin(self, ledger: ExitStack) -> None:
        """Start counting the load: so far only the laboratory has sent queries over the path."""
        self.count_from_here()
        self._watch = self.watch_hops(self.endpoint.hops)
        ledger.callback(self._watch.finish)

    def count_from_here(self) -> None:
        """Take the present counters of hops and server as those at the beginning of the load. Raises LabError."""
        self._carried = {hop.label: hop.carried() for hop in self.endpoint.hops if hop.carried is not None}
        self.before = self.running.snapshot()

    def unlike(self, session: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Differences between the path and what was requested, according to the server and, given its session, the engine."""
        found = view_violations(self.endpoint, self.view, self.started.spec)
        return found if session is None else (*session_violations(self.endpoint, session, self.started.spec), *found)

    def proof(
        self, session: Mapping[str, Any] | None, commits: int | None = None, connections: int | None = None
    ) -> ServerProof:
        """The server's part of the receipt, after the load. `connections`: maximum at the same time; None if unknown. Raises LabError
        if a hop died."""
        found = [*self.unlike(session)]
        forwarder: dict[str, Any] | None = None
        lacking: tuple[str, ...] = ()
        if self.endpoint.hops and self.running.alive():  # the receipt of a server that has died reports that
            forwarder, lacking = self._hops_proof(connections)
        facts, unlike = self.running.receipt(self.before, commits)
        found += [*unlike, *lacking]
        server = {**facts, "session_view": view_receipt(self.view)}
        if self.started.certificates is not None:
            server["certificate"] = KEY_TYPE
        return ServerProof(server, forwarder, server_metrics(facts["counters"]), tuple(found))

    def _hops_proof(self, connections: int | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The hops' part of the receipt, and violations if they did not carry the load. Raises LabError."""
        assert self._watch is not None, "begin() comes first"
        most = self._watch.finish()
        processes = {hop.label: most[hop.label].get("processes") for hop in self.endpoint.hops if hop.forks}
        labels = [hop.label for hop in self.endpoint.hops]
        receipt = {**self.endpoint.facts, "hops": labels, "processes_most": processes, "connections": connections}
        found = [*fork_violations(processes, connections)]
        dead = [
            hop.label for hop in self.endpoint.hops if hop.process.poll() is not None
        ]  # the label names a lost host
        if dead:
            raise LabError(f"a forwarder died during the trial: {', '.join(dead)}", "Check whether memory ran out.")
        carried = {hop.label: self._carried_since(hop) for hop in self.endpoint.hops if hop.carried is not None}
        for label, counted in carried.items():
            found += carried_violations(label, counted, connections)
        if carried:
            receipt["carried"] = carried
        at_once = {hop.label: most[hop.label] for hop in self.endpoint.hops if hop.now is not None}
        if at_once:
            receipt["at_once"] = at_once
        for hop in self.endpoint.hops:
            if hop.let_go is not None:
                hop.let_go()
        return receipt, tuple(found)

    def _carried_since(self, hop: Hop) -> dict[str, int]:
        """A hop's counters since the load began. Raises LabError."""
        assert hop.carried is not None, "the caller looked"
        before, now = self._carried[hop.label], hop.carried()
        return {name: count if name.endswith("_most") else count - before[name] for name, count in now.items()}


@dataclass(frozen=True, kw_only=True)
class OpenContext(ABC):
    """The part of a `howfar.paths.PathContext` that does not depend on where server and hosts are."""

    running: Listener
    ledger: ExitStack
    """Stops everything that was started, in reverse order."""
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""

    @abstractmethod
    def log_of(self, process: Process, log: str) -> str:
        """The output of a program on the path."""

    @property
    def loopback_address(self) -> str:
        return LOOPBACK_ADDRESS

    @property
    def hop_address(self) -> str | None:
        return None

    @property
    def server_socket(self) -> FilePath:
        return self.running.socket

    @property
    def server_pid(self) -> int:
        return self.running.pid

    @property
    def server_port(self) -> int | None:
        return self.running.port

    @property
    def service(self) -> str:
        return KINDS[self.running.kind].service

    def query(self, sql: str) -> list[dict[str, Any]]:
        return self.running.query(sql)

    def wait_until(self, process: Process, log: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        program = FilePath(log).stem
        while True:
            if not process.alive():
                output = self.log_of(process, log).strip()[-500:]
                if self.password:  # some print their configuration
                    output = output.replace(self.password, "(the password)")
                code = process.poll() or 0
                says = f"{program} ended before it was ready ({how_ended(code)}): {output or 'it printed nothing'}"
                if code < 0 or code > _SHELLS_SIGNAL:
                    raise LabError(says, "It was killed: check whether memory ran out.")
                # It ended by itself, and would do so in each trial.
                raise MissingError(says, "Does it work outside howfar? --hop-binary NAME=PATH gives another program.")
            if ready():
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"{program} did not listen within {_READY_TIMEOUT_S:.0f} s", "Does it use its configuration?"
                )
            time.sleep(_POLL_S)


@dataclass(frozen=True, kw_only=True)
class LabPathContext(OpenContext):
    """One running server and the hosts of a laboratory; see `howfar.paths.PathContext`."""

    ends: Ends
    client_address: str = CLIENT_ADDRESS
    server_address: str = SERVER_ADDRESS

    @property
    def work(self) -> FilePath:
        return self.ends.work

    @property
    def hop_port(self) -> int:
        return KINDS[self.running.kind].port if self.running.port is None else self.running.port + 1

    def within(self, side: Side, function: Callable[[], Seen]) -> Seen:
        return (self.ends.client if side == "client" else self.ends.server).within(function)

    def certificates(self) -> CertificatePaths:
        return self.ends.certificates()

    def start(self, side: Side, command: Sequence[str], log: str, *, as_user: int = 0) -> Process:
        launcher = self.ends.clients_side if side == "client" else self.ends.servers_side
        with (self.work / log).open("wb") as file:
            started = as_other_user(command, as_user) if as_user else command
            companion = Companion(launcher, started, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.ledger.callback(companion.end)
        return companion

    def log_of(self, process: Process, log: str) -> str:
        return (self.work / log).read_text(errors="replace")

    def listens(self, process: Process, at: int | FilePath) -> bool:
        return listens(process.pid, at)

    def output(self, side: Side, command: Sequence[str]) -> str:
        return output_of(command)

    def tcp_bytes(self, port: int) -> Mapping[str, int]:
        return tcp_bytes(self.ends.server, port)

    def write(self, side: Side, name: str, text: str) -> FilePath:
        return written(self.work / name, text)


def output_of(command: Sequence[str]) -> str:
    """The output of a program; empty if the program does not exist."""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ""


def tcp_bytes(host: Host, port: int) -> Mapping[str, int]:
    """Bytes carried by the TCP connections to `port`; see `howfar.paths.PathContext`. Raises LabError."""
    try:
        diag = Diag(host, port, "server")
        with closing(diag):
            seen = parse(diag.ask()).values()
    except OSError as error:
        raise LabError(f"the kernel does not tell about TCP connections: {error}") from error
    return {
        "bytes_to_server": sum(one.bytes_received or 0 for one in seen),
        "bytes_to_client": sum(one.bytes_acked or 0 for one in seen),
    }


def written(file: FilePath, text: str) -> FilePath:
    """Write a file that only our user can read, creating its directory if necessary; returns the file."""
    file.parent.mkdir(exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(text)
    return file


@contextmanager
def behind(path: Path) -> Iterator[None]:
    """Add the names of a path's programs to an error about a running server that was not reached."""
    try:
        yield
    except LabError as error:
        if isinstance(error, ServerCrashed) or not path.hops:
            raise
        says = f"{error.message} (by way of {', '.join(dict.fromkeys(path.hops))})"
        raise LabError(says, error.advice or "Does that program pass on what it gets?") from error


def reach(started: Started, path: Path, ends: Ends, ledger: ExitStack) -> Reached:
    """Open the path to a server and record the server's view of it. Raises LabError."""
    running, spec = started.running, started.spec
    assert isinstance(running, Server), "a laboratory's server runs here"
    endpoint = path.open(LabPathContext(running=running, ledger=ledger, ends=ends, **started.account))
    certificates = started.certificates
    encrypted = pinned_context(certificates, spec.tls_version) if certificates and spec.tls_version else None
    if path.shows_sessions:
        with behind(path):
            view = running.session_view(endpoint.connection, ends.client, encrypted)
        return Reached(started, endpoint, view)
    return Reached(started, endpoint, hops_view(running))


def hops_view(running: RunningServer) -> dict[str, Any]:
    """The server's view of a path's program, if the server cannot be queried through it. Raises LabError."""
    store = cast(KeyStore, running)
    # The program connects as it starts to listen; the server lists only connections that it has accepted.
    until = time.monotonic() + _ACCEPTED_S
    while not (hosts := sorted({place.partition(":")[0] for place in store.others()})) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return {"of": "the hop's own connection", "host": " and ".join(hosts), "ssl_version": ""}
