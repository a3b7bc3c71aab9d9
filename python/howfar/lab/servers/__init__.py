"""What the rest of the laboratory knows of servers: `Store` finds and prepares, `Server` runs. One file a kind; to add one: a new file
and a line in `kinds.py`."""

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
from typing import Any, Literal, TypeVar

from howfar.errors import HowfarError, LabError, ServerCrashed, how_ended
from howfar.lab.environment import listen_queue
from howfar.lab.network import LOOPBACK_ADDRESS, Companion, Cpus, Host
from howfar.lab.servers.program import Program
from howfar.lab.sockets import free_port
from howfar.plan.factors import Content
from howfar.store.server_metrics import ServerMetrics, server_metrics

DATABASE = "sbtest"
USER = "howfar"
GAUGES = ("Threads_running", "active_backends", "client_backends")
"""Among the counters of a server those that tell how much there is now, and do not grow."""

HOSTS_PORT = 20_000
"""A server's own is so much higher on the user's hosts, which may have one at the usual port."""
SOCKET = "s.sock"
SPARE_CONNECTIONS = 16
_POLL_S = 0.003
_DIES_S = 2.0
"""Long for the kernel to take a killed process apart, with its memory."""
_LOG_LINES = 8
_LOG_ERRORS = 3
"""Those before the last lines: a server that crashes writes pages about how after it has said why."""
_ERROR = "[ERROR]"
_LINE_CHARACTERS = 400
"""A statement in full may be megabytes."""
_SECRETS = ("PASSWORD", "IDENTIFIED")
"""Of statements that a server quotes when it crashes in one, or refuses one at its start."""
_WITHHELD = "(a line with a password)"


_READY_TIMEOUT_S = 60.0
_READ_BYTES_PER_S = 50e6
"""At the least: a server reads its tables into memory before it is ready."""
_READ_BY_ITSELF = 32
"""Pages that may be read under a load that writes: MySQL was seen to read one to six of its own, undo and dictionary, and MariaDB 17
to 19 where rows of a megabyte had pushed them out of the pool. So many take less than a millisecond of a trial."""
_COMMITS_A_PAGE = 1000


def ready_timeout_s(pool_bytes: int) -> float:
    """How long a server with such a buffer pool may take to start."""
    return _READY_TIMEOUT_S + pool_bytes / _READ_BYTES_PER_S


def pages_allowed(commits: int | None) -> int:
    """Read from files during a trial. A load that only reads finds everything in memory."""
    return 0 if commits is None else max(_READ_BY_ITSELF, commits // _COMMITS_A_PAGE)


Reach = Literal["socket", "tcp"]
"""By which of its doors the load comes in."""


@dataclass(frozen=True)
class Tables:
    """The sysbench tables to be there; `count` 0: none. One data directory for each of `contents`."""

    count: int
    size: int
    contents: tuple[Content, ...] = ("digits",)


@dataclass(frozen=True)
class CertificatePaths:
    """What a server needs for TLS, in PEM: who signed it, its certificate, its key."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class ServerContext:
    """Where a server may live: a directory for its data and sockets, its host, its CPUs, how many clients it must take."""

    work: Path
    host: Host
    cpus: Cpus
    connections: int
    namespaced: bool
    address: str | None = None
    """Of a host that others reach by its network; None: it has no other network than the laboratory's."""

    @property
    def listen_address(self) -> str:
        """For TCP; without a sandbox nobody else may reach it."""
        if self.address is not None:
            return f"{LOOPBACK_ADDRESS},{self.address}"
        return "0.0.0.0" if self.namespaced else LOOPBACK_ADDRESS

    @staticmethod
    def port_on(usual: int) -> int:
        """On the user's hosts."""
        return usual + HOSTS_PORT

    def port(self, usual: int) -> int:
        """The usual one where the host is its own, one that firewalls can be told where it is the user's, else a free one."""
        if self.address is not None:
            return self.port_on(usual)
        return usual if self.namespaced else free_port()


def end_of(connection: Mapping[str, Any]) -> str:
    """A connection's socket, or address and port, for messages."""
    return str(connection["socket"]) if connection.get("socket") else f"{connection['host']}:{connection['port']}"


def session_failed(connection: Mapping[str, Any], error: LabError) -> LabError:
    """What to raise for a session over a path to a server that is known to run."""
    return LabError(f"the server runs, but a session at {end_of(connection)} failed: {error.message}", error.advice)


Seer = Callable[[Mapping[str, Any], ssl.SSLContext | None], dict[str, Any]]
"""By a connection, encrypted or not. Raises LabError."""


class Server(ABC):
    """One running server: its process. A subclass speaks its protocol."""

    kind: str

    def __init__(
        self, program: Path, context: ServerContext, port: int | None, command: Sequence[str], *, socket: str = SOCKET
    ) -> None:
        """`socket`: what its Unix socket is called in the work directory."""
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
            self._companion = Companion(
                context.host.launcher(context.cpus),
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._companion.pid

    @abstractmethod
    def become_ready(self) -> None:
        """Until it answers and its data is in memory. Raises ServerCrashed, LabError."""

    @abstractmethod
    def snapshot(self) -> dict[str, int]:
        """Counters now, as the server names them."""

    def metrics(self) -> ServerMetrics:
        """Counters now, under neutral names."""
        return server_metrics(self.snapshot())

    @abstractmethod
    def query(self, sql: str) -> list[dict[str, Any]]:
        """Over the socket. Raises ServerCrashed, LabError."""

    @abstractmethod
    def receipt(self, before: Mapping[str, int], commits: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Facts and counters since `before`, and what was not as requested. `commits`: transactions of the load that wrote
        something; None: it only read, or who knows. Raises ServerCrashed."""

    @abstractmethod
    def seer(self) -> Seer:
        """What connects once more and asks how the server itself sees that session. It can travel to another host."""

    def session_view(
        self, connection: Mapping[str, Any], host: Host, encrypted: ssl.SSLContext | None = None
    ) -> dict[str, Any]:
        """The same from `host`, with `connection` (socket, or address and port). Raises ServerCrashed, LabError."""
        try:
            return host.within(partial(self.seer(), connection, encrypted))
        except LabError as error:
            self._check_alive("when asked how it sees its client", lost=True)
            raise session_failed(connection, error) from error

    def alive(self) -> bool:
        return self._companion.alive()

    def kill(self) -> None:
        """SIGKILL, and nothing else: its files stay as they are. It has ended on return."""
        self._companion.process.kill()
        self._wait_for_end()

    def stop(self) -> None:
        """At once; its data is thrown away."""
        self.disconnect()
        self._companion.end()

    @abstractmethod
    def disconnect(self) -> None:
        """Close the laboratory's own connection."""

    def log_lines(self) -> list[str]:
        """All that it has written."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace").strip().splitlines()
        return []

    def _wait_until(self, done: Callable[[], bool], deadline: float, late: Callable[[], HowfarError]) -> None:
        """Raises ServerCrashed when it ends meanwhile, and what `late` makes when the time is over."""
        while not done():
            self._check_alive("at start")
            if time.monotonic() > deadline:
                raise late()
            time.sleep(_POLL_S)

    def _check_capacity(self, connections_allowed: int) -> None:
        """Servers lower requested limits without failing. Raises LabError."""
        connections = self.context.connections
        if connections_allowed < connections + SPARE_CONNECTIONS:
            raise LabError(
                f"the server allows {connections_allowed} connections where {connections + SPARE_CONNECTIONS} are needed: "
                "it ran out of file descriptors",
                "Raise the hard limit of open files (`ulimit -Hn`) or use fewer threads.",
            )
        if self.port is None:
            return
        self._listen_queue = listen_queue(self.context.host, self.port)
        if self._listen_queue is not None and self._listen_queue < connections:
            raise LabError(
                f"{self._listen_queue} clients may wait to be accepted where {connections} connect at once: "
                "net.core.somaxconn is lower than the server's backlog",
                "Raise net.core.somaxconn, or use fewer threads.",
            )

    def _wait_for_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._companion.process.wait(_DIES_S)

    def _check_alive(self, when: str, *, lost: bool = False) -> None:
        """Raises ServerCrashed. A connection that was `lost` ends before the process has: it is waited for a little."""
        if lost:
            self._wait_for_end()
        code = self._companion.process.poll()
        if code is None:
            return
        advice = "Does this server program work outside howfar, without a configuration file?"
        if code == -signal.SIGKILL:
            advice = "It was killed. Check `dmesg` for a lack of memory."
        raise ServerCrashed(f"{self.program} ended {when} ({how_ended(code)}){self._last_output()}", advice)

    def _last_output(self) -> str:
        lines = [_WITHHELD if any(word in line for word in _SECRETS) else line for line in self.log_lines()]
        last = [line[:_LINE_CHARACTERS] for line in lines[-_LOG_LINES:]]
        if not last:
            return ". It wrote no log."
        errors = [line[:_LINE_CHARACTERS] for line in lines[:-_LOG_LINES] if _ERROR in line][-_LOG_ERRORS:]
        first = ". Its log's last errors before its end:\n  " + "\n  ".join(errors) if errors else ""
        return first + ". Its log ends with:\n  " + "\n  ".join(last)


Ask = Callable[[str], list[dict[str, Any]]]
"""Rows of a statement. Raises LabError."""


@dataclass(frozen=True)
class Counted:
    """By one server, since it started. Our own asking is in it."""

    round_trips: int | None
    """None: it does not count requests."""
    keys: int
    connections: int
    present: int
    """Clients, ours left out."""
    encrypted: int


class TableServer(Server):
    """One with tables, which can replicate."""

    @abstractmethod
    def counted(self) -> Counted:
        """Raises ServerCrashed, LabError."""

    @abstractmethod
    def clients(self) -> tuple[str, ...]:
        """Where it sees the clients of the load's account. Raises ServerCrashed, LabError."""

    @property
    @abstractmethod
    def password(self) -> str:
        """Of the laboratory's account."""

    @abstractmethod
    def shut_down(self) -> None:
        """Cleanly, so that the next start needs no recovery. Raises ServerCrashed."""

    def free_bytes(self) -> int:
        """Of the file system that its data is on."""
        return shutil.disk_usage(self.socket.parent).free

    @abstractmethod
    def query(self, sql: str, called: str | None = None) -> list[dict[str, Any]]:
        """Over the laboratory's own session, which waits for no replica. `called`: for a statement that holds a secret; a message has
        this name, and nothing of the statement. Raises ServerCrashed, LabError."""

    @abstractmethod
    def asking(self, patience_s: float, *, as_client: bool = False) -> AbstractContextManager[Ask]:
        """A further session over the socket; what takes longer than `patience_s` is an error. `as_client`: with the account and the
        settings of the load's. Raises ServerCrashed, LabError."""


class Store(ABC):
    """A found server program with its prepared data: starts servers, one at a time."""

    user = ""
    password = ""
    database = ""
    """Where it knows accounts and databases; empty where it does not."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kind = program.kind
        self.version = program.version
        self._context: ServerContext | None = None

    @property
    def context(self) -> ServerContext:
        assert self._context is not None, "prepare() comes first"
        return self._context

    @abstractmethod
    def data_bytes(self) -> int:
        """What the data of one content takes on disk and again in memory."""

    @abstractmethod
    def prepare(self, context: ServerContext) -> dict[str, Any]:
        """Put loaded data directories in place. Returns facts for the environment. Raises LabError, ServerCrashed."""

    @abstractmethod
    def discard(self) -> None:
        """Take the data directories away again: `start` is not called any more."""

    @abstractmethod
    def start(
        self,
        *,
        networking: bool,
        tls: CertificatePaths | None = None,
        content: Content | None = None,
        reached_by: Reach = "socket",
    ) -> Server:
        """Start on the prepared data, wait until it answers and its data is in memory. `tls` None: it offers none.
        `content` None: the first. `reached_by`: one that cannot listen on both listens there. Raises ServerCrashed."""


_Started = TypeVar("_Started", bound=Server)


def ready(server: _Started) -> _Started:
    """Wait for it; nothing is left running when that fails. Raises ServerCrashed, LabError."""
    try:
        server.become_ready()
    except BaseException:
        server.stop()
        raise
    return server


def find_store(server: str, tables: Tables) -> Store:
    """`server`: a kind (`mariadb`), the name of a private install or a path to a server program. Raises ServerMissing."""
    from howfar.lab.servers.kinds import KINDS, find_server

    program = find_server(server)
    return KINDS[program.kind].store(program, tables)
