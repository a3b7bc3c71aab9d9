"""The interface to servers: a `Store` is a server program with prepared data, a `ServerProcess` is a running server. Each kind of
server has its own file; to add a kind, add a file and a line in `kinds.py`."""

from __future__ import annotations

import contextlib
import shutil
import signal
import ssl
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from howfar.contract.environment import DataFacts
from howfar.contract.messages import Target, UnixTarget
from howfar.contract.server_receipt import RequestedServer, ServerReceipt, SessionView
from howfar.contract.violation import Violation
from howfar.errors import HowfarError, LabError, ServerCrashed, describe_exit_status
from howfar.lab.cache import check_name
from howfar.lab.environment import read_listen_queue
from howfar.lab.network import LOOPBACK_ADDRESS, Cpus, Host, ManagedProcess
from howfar.lab.servers.program import Program
from howfar.lab.sockets import find_free_port, listening_ports
from howfar.paths.path import Row
from howfar.plan.factors import Content
from howfar.store.server_metrics import ServerMetrics, server_metrics

DATABASE = "sbtest"
USER = "howfar"
GAUGES = ("running", "clients")
"""Metrics whose values are current states, not totals that only grow."""

HOSTS_PORT_OFFSET = 20_000
"""Added to a server's usual port on the user's hosts, where another server may already use that port."""
SOCKET_NAME = "s.sock"
SPARE_CONNECTIONS = 16
_POLL_S = 0.003
_KILL_TIMEOUT_S = 2.0
"""Time for the kernel to free a killed process and its memory."""
_LAST_LOG_LINES = 8
_MAX_LOG_ERRORS = 3
"""Maximum number of error lines that are quoted besides the last lines, because a crashing server logs the reason first, and then
pages about the crash itself."""
_ERROR_MARK = "[ERROR]"
_MAX_LINE_CHARACTERS = 400
"""Length at which a quoted line is cut off: a statement in it may be megabytes long."""
_SECRET_KEYWORDS = ("PASSWORD", "IDENTIFIED")
"""Keywords of statements that contain secrets. A server may log such a statement if it crashes during its execution, or refuses it at
startup."""
_WITHHELD_LINE = "(a line with a password)"


_SHUTDOWN_TIMEOUT_S = 300.0
_READY_TIMEOUT_S = 60.0
_READ_BYTES_PER_S = 50e6
"""Minimum expected rate at which a server reads its tables into memory at startup."""


def ready_timeout_s(pool_bytes: int) -> float:
    """Time allowed for a server with this buffer pool to start."""
    return _READY_TIMEOUT_S + pool_bytes / _READ_BYTES_PER_S


Transport = Literal["socket", "tcp"]
"""Whether the load connects to the server's Unix socket or TCP port."""


@dataclass(frozen=True)
class Tables:
    """The sysbench tables to load; none if `count` is 0. Each of `contents` has its own data directory."""

    count: int
    size: int
    contents: tuple[Content, ...] = ("digits",)


@dataclass(frozen=True)
class CertificatePaths:
    """A server's PEM files for TLS: CA, certificate, private key."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class ServerContext:
    """Resources of a server: directory for its data and sockets, host, CPUs, number of clients that it must accept."""

    work: Path
    host: Host
    cpus: Cpus
    connections: int
    namespaced: bool
    address: str | None = None
    """Address at which other machines reach the host; None in the laboratory's own network."""

    @property
    def listen_address(self) -> str:
        """The TCP addresses to listen on; without a sandbox, an address that other machines cannot reach."""
        if self.address is not None:
            return f"{LOOPBACK_ADDRESS},{self.address}"
        return "0.0.0.0" if self.namespaced else LOOPBACK_ADDRESS

    @staticmethod
    def port_on(usual_port: int) -> int:
        """A server's port on the user's hosts."""
        return usual_port + HOSTS_PORT_OFFSET

    def port(self, usual_port: int) -> int:
        """The TCP port: in the sandbox, where the server has its own host, the usual port; on the user's hosts a fixed port, for
        firewalls; otherwise a free port."""
        if self.address is not None:
            return self.port_on(usual_port)
        return usual_port if self.namespaced else find_free_port()


def address_parts(target: Target) -> tuple[str | None, str | None, int | None]:
    """Socket path, host and port for a driver; None for those that the target does not have."""
    return (target.path, None, None) if isinstance(target, UnixTarget) else (None, target.host, target.port)


def describe_address(target: Target) -> str:
    """The socket's path, or address and port, for messages."""
    return target.path if isinstance(target, UnixTarget) else f"{target.host}:{target.port}"


def session_error(target: Target, error: LabError) -> LabError:
    """The error for a session over a path that fails although the server runs."""
    return LabError(
        f"the server runs, but a session at {describe_address(target)} failed: {error.message}", error.advice
    )


SessionProbe = Callable[[Target, ssl.SSLContext | None], SessionView]
"""Opens a session at an address, encrypted or not, and returns the server's view of it. Raises LabError."""


class ServerProcess(ABC):
    """A running server. A subclass implements its protocol."""

    kind: str

    def __init__(
        self,
        program: Path,
        context: ServerContext,
        port: int | None,
        command: Sequence[str],
        *,
        socket: str = SOCKET_NAME,
    ) -> None:
        """`socket`: name of the Unix socket in the work directory. Raises LabError if a path is too long."""
        check_name(context.work, socket)
        self.program = program
        self.context = context
        self.port = port
        self.address = None if port is None else context.listen_address
        self.socket = context.work / socket
        self.version = "unknown"
        self._log = context.work / "server.log"
        self._listen_queue: int | None = None
        self.socket.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = ManagedProcess(
                context.host.launcher(context.cpus),
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._process.pid

    @abstractmethod
    def become_ready(self) -> None:
        """Wait until the server answers and its data is in memory. Raises ServerCrashed, LabError."""

    @abstractmethod
    def snapshot(self) -> dict[str, int]:
        """The current counters, by name: those in `ServerMetrics` by its names, all others by the server's own names. Raises
        ServerCrashed, LabError."""

    def metrics(self) -> ServerMetrics:
        """The current counters that all kinds of servers have in common."""
        return server_metrics(self.snapshot())

    @abstractmethod
    def query(self, sql: str) -> list[Row]:
        """Rows of a statement sent over the socket. Raises ServerCrashed, LabError."""

    @abstractmethod
    def collect_receipt(
        self, before: Mapping[str, int], commits: int | None = None
    ) -> tuple[ServerReceipt, tuple[Violation, ...]]:
        """The server's receipt, with the growth of its counters since `before`, and violations. `commits`: number of the load's
        transactions that wrote something; None if unknown, or if the load only read. Raises ServerCrashed."""

    @abstractmethod
    def session_probe(self) -> SessionProbe:
        """A function that opens another session and returns the server's view of it. It can be pickled and sent to another host."""

    def session_view(self, target: Target, host: Host, encrypted: ssl.SSLContext | None = None) -> SessionView:
        """The server's view of a session from `host`. Raises ServerCrashed, LabError."""
        try:
            return host.run(partial(self.session_probe(), target, encrypted))
        except LabError as error:
            self._check_alive("when asked how it sees its client", connection_lost=True)
            raise session_error(target, error) from error

    def alive(self) -> bool:
        return self._process.alive()

    def kill(self) -> None:
        """Send SIGKILL and wait for the server to end; its files stay as they are."""
        self._process.process.kill()
        self._wait_for_end()

    def stop(self) -> None:
        """Stop the server at once; its data is no longer needed."""
        self.disconnect()
        self._process.end()

    @abstractmethod
    def disconnect(self) -> None:
        """Close the laboratory's own connection."""

    def log_lines(self) -> list[str]:
        """All lines that the server has written."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace").strip().splitlines()
        return []

    def _wait_until(
        self, is_done: Callable[[], bool], deadline: float, timeout_error: Callable[[], HowfarError]
    ) -> None:
        """Wait until `is_done()` is True. Raises ServerCrashed if the server ends meanwhile, and `timeout_error()` after the
        deadline."""
        while not is_done():
            self._check_alive("at start")
            if time.monotonic() > deadline:
                raise timeout_error()
            time.sleep(_POLL_S)

    def _check_capacity(self, connections_allowed: int) -> None:
        """Check that the limits in force are sufficient: servers may silently lower the requested limits. Raises LabError."""
        connections = self.context.connections
        if connections_allowed < connections + SPARE_CONNECTIONS:
            raise LabError(
                f"the server allows {connections_allowed} connections where {connections + SPARE_CONNECTIONS} are needed: "
                "it ran out of file descriptors",
                "Raise the hard limit of open files (`ulimit -Hn`) or use fewer threads.",
            )
        if self.port is None:
            return
        self._listen_queue = read_listen_queue(self.context.host, self.port)
        if self._listen_queue is not None and self._listen_queue < connections:
            raise LabError(
                f"only {self._listen_queue} clients may wait to be accepted, but {connections} connect at once: "
                "net.core.somaxconn is lower than the server's backlog",
                "Raise net.core.somaxconn, or use fewer threads.",
            )

    def _wait_for_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.process.wait(_KILL_TIMEOUT_S)

    def _check_alive(self, when: str, *, connection_lost: bool = False) -> None:
        """Check that the process runs. If a connection to it was lost, first give it time to end. Raises ServerCrashed."""
        if connection_lost:
            self._wait_for_end()
        code = self._process.process.poll()
        if code is None:
            return
        advice = "Does this server program work outside howfar, without a configuration file?"
        if code == -signal.SIGKILL:
            advice = "It was killed. Check `dmesg` for a lack of memory."
        raise ServerCrashed(f"{self.program} ended {when} ({describe_exit_status(code)}){self._last_output()}", advice)

    def _last_output(self) -> str:
        """Sentences with the errors and the end of the server's log, for error messages."""
        lines = [
            _WITHHELD_LINE if any(word in line for word in _SECRET_KEYWORDS) else line for line in self.log_lines()
        ]
        last = [line[:_MAX_LINE_CHARACTERS] for line in lines[-_LAST_LOG_LINES:]]
        if not last:
            return ". It wrote no log."
        errors = [line[:_MAX_LINE_CHARACTERS] for line in lines[:-_LAST_LOG_LINES] if _ERROR_MARK in line][
            -_MAX_LOG_ERRORS:
        ]
        error_text = ". Its log's last errors before its end:\n  " + "\n  ".join(errors) if errors else ""
        return error_text + ". Its log ends with:\n  " + "\n  ".join(last)


RunQuery = Callable[[str], list[Row]]
"""A function that runs a statement and returns its rows. Raises LabError."""


@dataclass(frozen=True)
class ServerCounts:
    """One server's counts since it started, including our own queries."""

    round_trips: int | None
    """Requests answered; None if the server does not count them."""
    keys: int
    connections: int
    present: int
    """Clients that are connected now, without our own connection."""
    encrypted: int


class TableServer(ServerProcess):
    """A running server with tables, which can replicate."""

    @abstractmethod
    def read_counts(self) -> ServerCounts:
        """The server's present counts. Raises ServerCrashed, LabError."""

    @abstractmethod
    def client_addresses(self) -> tuple[str, ...]:
        """Addresses of the clients with the load's account, as the server sees them. Raises ServerCrashed, LabError."""

    @property
    @abstractmethod
    def password(self) -> str:
        """Password of the laboratory's account."""

    shutdown_signal = signal.SIGTERM
    """Signal on which the server ends cleanly without waiting for its clients."""
    no_network_setting: str | None = None
    """A setting that must be ON in a server without networking."""
    counts_commits = False
    """Whether its counter `commits` includes each commit of the load."""

    @abstractmethod
    def _facts(self) -> dict[str, str]:
        """The settings in force, for receipts. Raises ServerCrashed, LabError."""

    def _wait_for_sessions_to_end(self) -> None:
        """Wait for the load's sessions to end, in servers that add a session's last counts only then."""

    def collect_receipt(
        self, before: Mapping[str, int], commits: int | None = None
    ) -> tuple[ServerReceipt, tuple[Violation, ...]]:
        self._check_alive("during the trial")
        self._wait_for_sessions_to_end()
        after = self.snapshot()
        counters = {name: after[name] - before.get(name, 0) for name in after if name not in GAUGES}
        facts = self._facts()
        ports = self.context.host.run(lambda: listening_ports(self.pid))
        receipt = ServerReceipt(
            kind=self.kind,
            pid=self.pid,
            facts={**facts},
            counters=counters,
            tcp_ports=list(ports),
            listen_queue=self._listen_queue,
        )
        requested = RequestedServer(commits, self.counts_commits, self.port is not None, self.no_network_setting)
        return receipt, receipt.violations(requested)

    def shut_down(self) -> None:
        """Shut down cleanly, so that the next start needs no recovery. Raises ServerCrashed."""
        self.disconnect()
        self._process.process.send_signal(self.shutdown_signal)
        try:
            code = self._process.process.wait(_SHUTDOWN_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ServerCrashed(f"the server did not shut down within {_SHUTDOWN_TIMEOUT_S:.0f} s") from error
        if code != 0:
            raise ServerCrashed(f"the server ended with exit code {code} on shutdown{self._last_output()}")

    def free_bytes(self) -> int:
        """Free space of the data's file system."""
        return shutil.disk_usage(self.socket.parent).free

    @abstractmethod
    def query(self, sql: str, label: str | None = None) -> list[Row]:
        """Rows of a statement, over the laboratory's own session, which does not wait for replicas. `label`: for a statement that
        contains a secret, the name that messages use instead. Raises ServerCrashed, LabError."""

    @abstractmethod
    def open_session(self, timeout_s: float, *, as_client: bool = False) -> AbstractContextManager[RunQuery]:
        """Open a further session over the socket; a statement that takes longer than `timeout_s` fails. `as_client`: with the account
        and the settings of the load's sessions. Raises ServerCrashed, LabError."""


class Store(ABC):
    """A server program with prepared data. It starts servers, one at a time."""

    user = ""
    password = ""
    database = ""
    """Name of the database; empty if the server has no accounts and databases."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kind = program.kind
        self.version = program.version
        self._context: ServerContext | None = None

    @property
    def context(self) -> ServerContext:
        assert self._context is not None, "prepare() has been called"
        return self._context

    @abstractmethod
    def data_bytes(self) -> int:
        """Size of one content's data in bytes, on disk and in memory alike."""

    def preparation(self) -> str:
        """A description of what `prepare` will do, with the usual duration."""
        return "preparing the server"

    @abstractmethod
    def prepare(self, context: ServerContext) -> DataFacts:
        """Create data directories with loaded tables. Raises LabError, ServerCrashed."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the data directories; `start` must not be called afterwards."""

    @abstractmethod
    def start(
        self,
        *,
        networking: bool,
        tls: CertificatePaths | None = None,
        content: Content | None = None,
        transport: Transport = "socket",
    ) -> ServerProcess:
        """Start a server on the prepared data and wait until it answers and its data is in memory. `tls`: None to offer no TLS.
        `content`: None for the first content. `transport`: what to listen on if the server cannot listen on both. Raises
        ServerCrashed."""


_ServerT = TypeVar("_ServerT", bound=ServerProcess)


def wait_ready(server: _ServerT) -> _ServerT:
    """Wait until the server is ready, and return it; stop it on failure. Raises ServerCrashed, LabError."""
    try:
        server.become_ready()
    except BaseException:
        server.stop()
        raise
    return server


def find_store(server: str, tables: Tables) -> Store:
    """The store of a server: a kind (`mariadb`), the name of a private install or a path to a program. Raises ServerMissing."""
    from howfar.lab.servers.kinds import KINDS, find_server

    program = find_server(server)
    return KINDS[program.kind].store(program, tables)
