"""One server of an environment, connected over the environment's path, and the server's part of the receipt."""

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
from typing import Protocol, cast

from howfar.contract.messages import Observed, Receipt, Service, ServiceName, Target, TcpTarget, UnixTarget
from howfar.contract.server_receipt import HopsReceipt, ServerReceipt, SessionReceipt, SessionView
from howfar.contract.violation import Violation
from howfar.engine.process import Launcher
from howfar.errors import LabError, MissingError, ServerCrashed, describe_exit_status
from howfar.lab.certificates import KEY_TYPE, pinned_context
from howfar.lab.network import CLIENT_ADDRESS, LOOPBACK_ADDRESS, SERVER_ADDRESS, Host, ManagedProcess
from howfar.lab.sandbox import as_other_user
from howfar.lab.servers import CertificatePaths, ServerCounts, ServerProcess
from howfar.lab.servers.kinds import KINDS
from howfar.lab.sockets import listens
from howfar.lab.window import SocketDiag, parse_connections
from howfar.paths import ClientEndpoint, Hop, Path, PathProcess
from howfar.paths.path import Result, Row, Side
from howfar.plan.sessions import SessionSpec
from howfar.services import SqlProtocol
from howfar.store.server_metrics import ServerMetrics, server_metrics
from howfar.testbed import ServiceEndpoint, Trust


def endpoint_target(endpoint: ClientEndpoint) -> Target:
    """The address of an endpoint."""
    if endpoint.socket is not None:
        return UnixTarget(path=endpoint.socket)
    assert endpoint.host is not None and endpoint.port is not None, "an endpoint is a socket, or host and port"
    return TcpTarget(host=endpoint.host, port=endpoint.port)


def view_receipt(view: SessionView) -> SessionView:
    """Add to a server's view, for a receipt, a description of the session that it shows."""
    return SessionView(of="a session beside the load's, by the same path and encrypted alike").updated(view)


_SAMPLE_INTERVAL_S = 0.1
"""Sampling interval. Each sample reads two small files, which takes some tens of microseconds of CPU time."""


def count_children(pid: int) -> int | None:
    """Count the present children of all threads of a process; None if it has ended, or if this kernel does not list children."""
    try:
        child_lists = [path.read_text().split() for path in FilePath(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return None
    return sum(map(len, child_lists)) if child_lists else None


HopReader = Callable[[], Mapping[str, int]]


def hop_reader(hop: Hop) -> HopReader | None:
    """The function that reads a hop's present counts (`processes`, or `to_clients` and `to_server`); None if the hop does not report
    any."""
    if not hop.forks:
        return hop.count_connections
    return partial(count_processes, hop.process.pid)


def count_processes(pid: int) -> Mapping[str, int]:
    """The number of processes of a hop that forks, as `processes`; empty if unknown."""
    count = count_children(pid)
    return {} if count is None else {"processes": count}


class HopObserver(Protocol):
    """The part of `HopWatch` that an environment uses."""

    def finish(self) -> Mapping[str, Mapping[str, int]]: ...


class HopWatch:
    """Samples the counts of hops, by label, from construction until `finish()`, which returns the maximum of each count."""

    def __init__(self, readers: Mapping[str, HopReader], interval_s: float = _SAMPLE_INTERVAL_S) -> None:
        self._readers, self._interval_s = dict(readers), interval_s
        self._maxima: dict[str, dict[str, int]] = {name: {} for name in readers}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hops", daemon=True)
        self._sample()
        self._thread.start()

    def _sample(self) -> None:
        for name, reader in self._readers.items():
            with suppress(LabError):  # the death of a hop is reported when its counters are read at the end
                counts, maxima = reader(), self._maxima[name]
                maxima.update({quantity: max(count, maxima.get(quantity, 0)) for quantity, count in counts.items()})

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample()

    def finish(self) -> dict[str, dict[str, int]]:
        """Stop watching; returns the maxima of the known counts. May be called more than once."""
        self._stop.set()
        self._thread.join()
        return {name: dict(maxima) for name, maxima in self._maxima.items()}


def watch_local_hops(hops: Sequence[Hop]) -> HopWatch:
    """Watch the hops whose processes are on this machine."""
    return HopWatch({hop.label: reader for hop in hops if (reader := hop_reader(hop)) is not None})


_READY_TIMEOUT_S = 20.0
_SHELL_SIGNAL_OFFSET = 128
"""If a signal kills a command, its shell's exit code is this plus the signal's number."""
_POLL_S = 0.003
_ACCEPT_TIMEOUT_S = 2.0


class PathServer(Protocol):
    """The part of a running server that a path needs; the server may be on another host."""

    @property
    def kind(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def port(self) -> int | None: ...
    @property
    def socket(self) -> FilePath: ...
    def query(self, sql: str) -> list[Row]: ...


NO_PID = 0
"""The PID that the kernel reports for a process outside our PID namespace, for example for the peer of a Unix socket."""


class RunningServer(PathServer, Protocol):
    """The part of a running server that an environment needs; the server may be on another host."""

    version: str

    def alive(self) -> bool: ...
    def snapshot(self) -> dict[str, int]: ...
    def collect_receipt(
        self, before: Mapping[str, int], commits: int | None = None
    ) -> tuple[ServerReceipt, tuple[Violation, ...]]: ...


class KeyStore(RunningServer, Protocol):
    """A running server that stores keys, such as `servers.key_value.KeyValueServer`."""

    def metrics(self) -> ServerMetrics: ...
    def count_keys(self) -> int: ...
    def other_clients(self) -> tuple[str, ...]: ...


class CountingServer(RunningServer, Protocol):
    """A running server with tables, such as `servers.TableServer`."""

    def read_counts(self) -> ServerCounts: ...
    def client_addresses(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class StartedServer:
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
        """The load's account, as keyword arguments of a path context."""
        return {"user": self.user, "password": self.password, "database": self.database}


@dataclass(frozen=True)
class PathEndpoints:
    """The two hosts that a path connects, and the directory for its files."""

    work: FilePath
    client: Host
    """The host on which the load runs; on local paths this is the server's host."""
    server: Host
    client_launcher: Launcher
    """Starts background processes at the client's end of the link."""
    server_launcher: Launcher
    """Starts background processes at the server's end of the link."""
    certificates: Callable[[], CertificatePaths]
    """The laboratory's certificates, for the path's programs."""


@dataclass(frozen=True)
class ServerProof:
    """One server's part of a receipt."""

    server: ServerReceipt
    forwarder: HopsReceipt | None
    """The receipt of the path's hops; None if the path has none."""
    metrics: ServerMetrics
    """Growth of the server's counters since the load began (`ConnectedServer.before`)."""
    violations: tuple[Violation, ...]


@dataclass
class ConnectedServer:
    """One server and the open path to it."""

    started: StartedServer
    endpoint: ClientEndpoint
    view: SessionView
    """The server's view of a session parallel to the load's."""
    watch_hops: Callable[[Sequence[Hop]], HopObserver] = watch_local_hops
    """Starts watching hops on the host where they run."""
    before: dict[str, int] = field(default_factory=dict)
    """The server's counters when `mark_load_start` was last called."""
    _watch: HopObserver | None = None
    _carried_before: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Counters of each hop when the load began."""

    @property
    def name(self) -> ServiceName:
        return self.started.name

    @property
    def running(self) -> RunningServer:
        return self.started.running

    @property
    def store(self) -> KeyStore | None:
        """The server as a key-value store; None for a server with tables."""
        return cast(KeyStore, self.running) if KINDS[self.running.kind].speaks == "keys" else None

    @property
    def protocol(self) -> SqlProtocol:
        """The protocol of SQL statements; `mysql` for a key-value store, which accepts no SQL."""
        speaks = KINDS[self.running.kind].speaks
        return "mysql" if speaks == "keys" else speaks

    @property
    def trust(self) -> Trust | None:
        """The CA that verifies the server's certificate; None if the server offers no TLS."""
        certificates = self.started.certificates
        if certificates is None:
            return None
        # Over a Unix socket, forwarded or not, the server has no address.
        return Trust(str(certificates.ca), self.endpoint.host or "localhost")

    @property
    def target(self) -> Target:
        """The address that the engine connects to."""
        return endpoint_target(self.endpoint)

    def service_endpoint(self) -> ServiceEndpoint:
        """The server as an application reaches it."""
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

    def observed_processes(self, role: str) -> tuple[Observed, ...]:
        """The server's process with this role, if its PID is known, and the hops'."""
        hops = (Observed(role="forwarder", pid=hop.process.pid) for hop in self.endpoint.hops)
        if self.running.pid == NO_PID:
            return tuple(hops)
        return (Observed(role=role, pid=self.running.pid), *hops)

    def begin(self, stack: ExitStack) -> None:
        """Start counting the load, after the laboratory's own queries over the path have ended."""
        self.mark_load_start()
        self._watch = self.watch_hops(self.endpoint.hops)
        stack.callback(self._watch.finish)

    def mark_load_start(self) -> None:
        """Remember the present counters of hops and server as those at the beginning of the load. Raises LabError."""
        self._carried_before = {
            hop.label: hop.read_counters() for hop in self.endpoint.hops if hop.read_counters is not None
        }
        self.before = self.running.snapshot()

    def mismatches(self, session: Receipt | None) -> tuple[Violation, ...]:
        """Differences between the path and the request, according to the server and, if the engine's `session` is given, the
        engine."""
        spec = self.started.spec
        violations = () if session is None else SessionReceipt.from_engine(session).violations(self.endpoint, spec)
        return (*violations, *self.view.violations(self.endpoint, spec))

    def collect_proof(
        self, session: Receipt | None, commits: int | None = None, connections: int | None = None
    ) -> ServerProof:
        """The server's part of the receipt, after the load. `connections`: maximum number of the load's simultaneous connections; None
        if unknown. Raises LabError if a hop died."""
        violations = [*self.mismatches(session)]
        forwarder: HopsReceipt | None = None
        hop_violations: tuple[Violation, ...] = ()
        if self.endpoint.hops and self.running.alive():  # if the server has died, its receipt below reports that
            forwarder, hop_violations = self._collect_hops_proof(connections)
        server, mismatches = self.running.collect_receipt(self.before, commits)
        violations += [*mismatches, *hop_violations]
        server.session_view = view_receipt(self.view)
        if self.started.certificates is not None:
            server.certificate = KEY_TYPE
        return ServerProof(server, forwarder, server_metrics(server.counters), tuple(violations))

    def _collect_hops_proof(self, connections: int | None) -> tuple[HopsReceipt, tuple[Violation, ...]]:
        """The hops' part of the receipt, and violations if they did not carry the load. Raises LabError."""
        assert self._watch is not None, "begin() has been called"
        maxima = self._watch.finish()
        max_processes = {hop.label: maxima[hop.label].get("processes") for hop in self.endpoint.hops if hop.forks}
        labels = [hop.label for hop in self.endpoint.hops]
        receipt = HopsReceipt.model_validate(self.endpoint.facts)
        receipt.hops, receipt.max_processes, receipt.connections = labels, max_processes, connections
        # A label also names the host if that was lost.
        dead = [hop.label for hop in self.endpoint.hops if hop.process.poll() is not None]
        if dead:
            raise LabError(f"a forwarder died during the trial: {', '.join(dead)}", "Check whether memory ran out.")
        carried = {
            hop.label: self._counters_since_load(hop) for hop in self.endpoint.hops if hop.read_counters is not None
        }
        if carried:
            receipt.carried = carried
        peak_counts = {
            hop.label: dict(maxima[hop.label]) for hop in self.endpoint.hops if hop.count_connections is not None
        }
        if peak_counts:
            receipt.at_once = peak_counts
        for hop in self.endpoint.hops:
            if hop.close_idle_connections is not None:
                hop.close_idle_connections()
        return receipt, receipt.violations()

    def _counters_since_load(self, hop: Hop) -> dict[str, int]:
        """A hop's counters since the load began. Raises LabError."""
        assert hop.read_counters is not None, "the caller has checked that the hop has counters"
        before, now = self._carried_before[hop.label], hop.read_counters()
        return {name: count if name.endswith("_most") else count - before[name] for name, count in now.items()}


@dataclass(frozen=True, kw_only=True)
class BasePathContext(ABC):
    """The part of a `howfar.paths.PathContext` that namespaces and the user's hosts have in common."""

    running: PathServer
    stack: ExitStack
    """Stops everything that was started for the path, in reverse order."""
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""

    @abstractmethod
    def read_log(self, process: PathProcess, log: str) -> str:
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

    def query(self, sql: str) -> list[Row]:
        return self.running.query(sql)

    def wait_until(self, process: PathProcess, log: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        program = FilePath(log).stem
        while True:
            if not process.alive():
                output = self.read_log(process, log).strip()[-500:]
                if self.password:  # some programs print their configuration
                    output = output.replace(self.password, "(the password)")
                code = process.poll() or 0
                message = f"{program} ended before it was ready ({describe_exit_status(code)}): {output or 'it printed nothing'}"
                if code < 0 or code > _SHELL_SIGNAL_OFFSET:
                    raise LabError(message, "It was killed: check whether memory ran out.")
                # A program that ends by itself would do so in every trial.
                raise MissingError(
                    message, "Does it work outside howfar? --hop-binary NAME=PATH gives another program."
                )
            if ready():
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"{program} did not listen within {_READY_TIMEOUT_S:.0f} s", "Does it use its configuration?"
                )
            time.sleep(_POLL_S)


@dataclass(frozen=True, kw_only=True)
class LabPathContext(BasePathContext):
    """One running server and the hosts of a laboratory; implements `howfar.paths.PathContext`."""

    endpoints: PathEndpoints
    client_address: str = CLIENT_ADDRESS
    server_address: str = SERVER_ADDRESS

    @property
    def work(self) -> FilePath:
        return self.endpoints.work

    @property
    def hop_port(self) -> int:
        return KINDS[self.running.kind].port if self.running.port is None else self.running.port + 1

    def run_on(self, side: Side, function: Callable[[], Result]) -> Result:
        return (self.endpoints.client if side == "client" else self.endpoints.server).run(function)

    def certificates(self) -> CertificatePaths:
        return self.endpoints.certificates()

    def start(self, side: Side, command: Sequence[str], log: str, *, as_user: int = 0) -> PathProcess:
        launcher = self.endpoints.client_launcher if side == "client" else self.endpoints.server_launcher
        with (self.work / log).open("wb") as file:
            wrapped_command = as_other_user(command, as_user) if as_user else command
            process = ManagedProcess(launcher, wrapped_command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.stack.callback(process.end)
        return process

    def read_log(self, process: PathProcess, log: str) -> str:
        return (self.work / log).read_text(errors="replace")

    def listens(self, process: PathProcess, port_or_socket: int | FilePath) -> bool:
        return listens(process.pid, port_or_socket)

    def tcp_bytes(self, port: int) -> Mapping[str, int]:
        return tcp_bytes(self.endpoints.server, port)

    def write(self, side: Side, name: str, text: str) -> FilePath:
        return write_private_file(self.work / name, text)


def tcp_bytes(host: Host, port: int) -> Mapping[str, int]:
    """Bytes that the open TCP connections to `port` have carried; see `howfar.paths.PathContext`. Raises LabError."""
    try:
        diag = SocketDiag(host, port, "server")
        with closing(diag):
            connections = parse_connections(diag.query()).values()
    except OSError as error:
        raise LabError(f"the kernel does not report TCP connections: {error}") from error
    return {
        "bytes_to_server": sum(connection.bytes_received or 0 for connection in connections),
        "bytes_to_client": sum(connection.bytes_acked or 0 for connection in connections),
    }


def write_private_file(file: FilePath, text: str) -> FilePath:
    """Write a file that only our user can read, creating its directory if necessary; returns the file."""
    file.parent.mkdir(exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(text)
    return file


@contextmanager
def name_hops_in_errors(path: Path) -> Iterator[None]:
    """Add the names of the path's programs to an error of the block, if the server runs but could not be reached."""
    try:
        yield
    except LabError as error:
        if isinstance(error, ServerCrashed) or not path.hops:
            raise
        message = f"{error.message} (by way of {', '.join(dict.fromkeys(path.hops))})"
        raise LabError(message, error.advice or "Does that program pass on what it gets?") from error


def connect_server(started: StartedServer, path: Path, endpoints: PathEndpoints, stack: ExitStack) -> ConnectedServer:
    """Open the path to a server and record the server's view of it. Raises LabError."""
    running, spec = started.running, started.spec
    assert isinstance(running, ServerProcess), "a laboratory's server is a process of this machine"
    endpoint = path.open(LabPathContext(running=running, stack=stack, endpoints=endpoints, **started.account))
    certificates = started.certificates
    tls_context = pinned_context(certificates, spec.tls_version) if certificates and spec.tls_version else None
    if path.shows_sessions:
        with name_hops_in_errors(path):
            view = running.session_view(endpoint_target(endpoint), endpoints.client, tls_context)
        return ConnectedServer(started, endpoint, view)
    return ConnectedServer(started, endpoint, query_hop_view(running))


def query_hop_view(running: RunningServer) -> SessionView:
    """The server's view of a hop's own connection, for a path over which the server cannot be queried: the address in the server's
    list of clients. Raises LabError."""
    store = cast(KeyStore, running)
    # The hop connects when it starts to listen; the server lists only connections that it has accepted.
    deadline = time.monotonic() + _ACCEPT_TIMEOUT_S
    while (
        not (client_hosts := sorted({address.partition(":")[0] for address in store.other_clients()}))
        and time.monotonic() < deadline
    ):
        time.sleep(_POLL_S)
    return SessionView(of="the hop's own connection", host=" and ".join(client_hosts), ssl_version="")
