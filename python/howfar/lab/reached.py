"""One server of a stage, reached by the stage's path: all that a receipt of it is made of.

A stage has one that its load is of, and may have others beside it (`beside.py`). Not here: what they share, the link and the hosts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from howfar.engine.messages import Observed, Service, ServiceName, TcpTarget, UnixTarget
from howfar.engine.process import Launcher
from howfar.errors import LabError, MissingError
from howfar.lab.certificates import KEY_TYPE, pinned_context
from howfar.lab.client_tls import client_tls
from howfar.lab.forked import ForkWatch, fork_violations
from howfar.lab.hosts import Companion, Host
from howfar.lab.network import CLIENT_ADDRESS, LOOPBACK_ADDRESS, SERVER_ADDRESS
from howfar.lab.servers import CertificatePaths, Server
from howfar.lab.servers.key_value_server import KeyValueServer
from howfar.lab.session_receipt import session_violations, view_receipt, view_violations
from howfar.lab.sockets import listening_ports
from howfar.lab.stage import ServicePlace, Trust
from howfar.paths import Endpoint, Path, Process
from howfar.paths.path import Side
from howfar.plan.sessions import SessionAsked

SERVICES: dict[str, ServiceName] = {
    "mariadb": "mysql",
    "mysql": "mysql",
    "redis": "redis",
    "valkey": "redis",
    "memcached": "memcached",
}
"""What an application knows each kind of server as: by the protocol."""
PORTS: dict[ServiceName, int] = {"mysql": 3306, "redis": 6379, "memcached": 11211}
"""Where clients look for each."""
_READY_TIMEOUT_S = 10.0
_POLL_S = 0.003


@dataclass(frozen=True)
class Started:
    """A running server, before any path leads to it."""

    running: Server
    certificates: CertificatePaths | None
    """None: it offers no TLS."""
    asked: SessionAsked
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""

    @property
    def name(self) -> ServiceName:
        return SERVICES[self.running.kind]


@dataclass(frozen=True)
class Ends:
    """The two hosts that a path joins, and where its own files go."""

    work: FilePath
    client: Host
    """Of the load: on local paths the server's."""
    clients_side: Launcher
    """Background processes at the client's end of the link."""
    servers_side: Launcher


@dataclass(frozen=True)
class ServerProof:
    """What one server's part of a receipt is."""

    server: dict[str, Any]
    forwarder: dict[str, Any] | None
    """None: the path has none."""
    counters: Mapping[str, int]
    """Its own, since the load began (`Reached.before`)."""
    violations: tuple[str, ...]


@dataclass
class Reached:
    """One server and the open path to it."""

    started: Started
    endpoint: Endpoint
    view: dict[str, Any]
    """How the server sees a session beside the load's."""
    before: dict[str, int] = field(default_factory=dict)
    """Its counters when the stage was ready, or, where keys were set or an application proven after that, when the load began."""
    _forks: ForkWatch | None = None

    @property
    def name(self) -> ServiceName:
        return self.started.name

    @property
    def running(self) -> Server:
        return self.started.running

    @property
    def trust(self) -> Trust | None:
        """None: the server offers no TLS."""
        certificates = self.started.certificates
        if certificates is None:
            return None
        # Over a socket, forwarded or not, the server has no address.
        return Trust(str(certificates.ca), self.endpoint.host or "localhost")

    @property
    def target(self) -> UnixTarget | TcpTarget:
        """Where the engine connects to."""
        endpoint = self.endpoint
        if endpoint.socket is not None:
            return UnixTarget(path=endpoint.socket)
        assert endpoint.host is not None and endpoint.port is not None, "an endpoint is a socket, or host and port"
        return TcpTarget(host=endpoint.host, port=endpoint.port)

    def place(self) -> ServicePlace:
        running, started = self.running, self.started
        return ServicePlace(
            service=Service(
                target=self.target,
                user=started.user,
                password=started.password,
                database=started.database,
                tls=client_tls(started.asked, self.trust),
            ),
            server_kind=running.kind,
            server_version=running.version,
            pid=running.pid,
            count_keys=running.count_keys if isinstance(running, KeyValueServer) else None,
        )

    def observed(self, role: str) -> tuple[Observed, ...]:
        hops = (Observed(role="forwarder", pid=hop.process.pid) for hop in self.endpoint.hops)
        return (Observed(role=role, pid=self.running.pid), *hops)

    def begin(self, ledger: ExitStack) -> None:
        """The path is open, and nothing has been asked by it but what the laboratory wanted to know."""
        self._forks = ForkWatch({hop.label: hop.process.pid for hop in self.endpoint.hops if hop.forks})
        ledger.callback(self._forks.finish)
        self.before = self.running.snapshot()

    def unlike(self, session: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Where the path was not what was asked, as the server saw it and, given its session, the engine."""
        found = view_violations(self.endpoint, self.view, self.started.asked)
        return found if session is None else (*session_violations(self.endpoint, session, self.started.asked), *found)

    def proof(
        self, session: Mapping[str, Any] | None, commits: int | None = None, connections: int | None = None
    ) -> ServerProof:
        """After the load. `connections`: how many it had at once; None: who knows. Raises LabError when a part has died."""
        found = [*self.unlike(session)]
        facts, unlike = self.running.receipt(self.before, commits)
        found += unlike
        server = {**facts, "session_view": view_receipt(self.view)}
        if self.started.certificates is not None:
            server["certificate"] = KEY_TYPE
        forwarder = None
        if self.endpoint.hops:
            assert self._forks is not None, "begin() comes first"
            most = self._forks.finish()
            forwarder = {**self.endpoint.facts, "processes_most": most, "connections": connections}
            found += fork_violations(most, connections)
            dead = [hop.process.pid for hop in self.endpoint.hops if not hop.process.alive()]
            if dead:
                raise LabError(f"a forwarder (process {dead[0]}) died during the trial", "See if memory ran out.")
        return ServerProof(server, forwarder, facts["counters"], tuple(found))


@dataclass(frozen=True)
class LabPathContext:
    """See `howfar.paths.PathContext`: one running server and the hosts of a laboratory."""

    ends: Ends
    running: Server
    hop_port: int
    ledger: ExitStack
    """Ends what was started, in reverse order."""
    loopback_address: str = LOOPBACK_ADDRESS
    client_address: str = CLIENT_ADDRESS
    server_address: str = SERVER_ADDRESS

    @property
    def work(self) -> FilePath:
        return self.ends.work

    @property
    def server_socket(self) -> FilePath:
        return self.running.socket

    @property
    def server_pid(self) -> int:
        return self.running.pid

    @property
    def server_port(self) -> int | None:
        return self.running.port

    def start(self, side: Side, command: Sequence[str], log: str) -> Process:
        launcher = self.ends.clients_side if side == "client" else self.ends.servers_side
        try:
            with (self.work / log).open("wb") as file:
                companion = Companion(launcher, command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        except FileNotFoundError as error:
            raise MissingError(f"starting {command[0]} failed: {error}", f"Install {command[0]}.") from error
        self.ledger.callback(companion.end)
        return companion

    def wait_until(self, process: Process, log: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            if not process.alive():
                said = (self.work / log).read_text(errors="replace").strip()[-500:]
                raise LabError(f"a program of the path ended at start: {said or 'it printed nothing'}", f"See {log}.")
            if ready():
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"a program of the path was not ready within {_READY_TIMEOUT_S:.0f} s", "Is the machine overloaded?"
                )
            time.sleep(_POLL_S)

    def listens(self, process: Process, port: int) -> bool:
        return port in listening_ports(process.pid)


def reach(started: Started, path: Path, ends: Ends, ledger: ExitStack) -> Reached:
    """Open the path to a server and see how it is seen there. Raises LabError."""
    running, asked = started.running, started.asked
    endpoint = path.open(LabPathContext(ends, running, PORTS[started.name], ledger))
    certificates = started.certificates
    encrypted = pinned_context(certificates, asked.tls_version) if certificates and asked.tls_version else None
    return Reached(started, endpoint, running.session_view(endpoint.connection, ends.client, encrypted))
