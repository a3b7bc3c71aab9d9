"""One server of a stage, reached by the stage's path: all that a receipt of it is made of.

A stage has one that its load is of, and may have others beside it (`beside.py`). Not here: what they share, the link and the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from howfar.engine.messages import Observed, TcpTarget
from howfar.engine.page import Service, ServiceName
from howfar.engine.process import Launcher
from howfar.errors import LabError
from howfar.lab.certificates import KEY_TYPE, pinned_context
from howfar.lab.client_tls import client_tls
from howfar.lab.forked import ForkWatch, fork_violations
from howfar.lab.hosts import Host
from howfar.lab.paths import PathKind, Terrain, Way, session_violations, view_receipt, view_violations
from howfar.lab.servers import CertificatePaths, Server
from howfar.lab.servers.key_value_server import KeyValueServer
from howfar.lab.stage import ServicePlace, Trust
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
_FORWARDER_PLACES = ("server_side", "client_side")
"""In the order of a way's forwarders."""


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

    work: Path
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
    way: Way
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
        name = self.way.target.host if isinstance(self.way.target, TcpTarget) else "localhost"
        return Trust(str(certificates.ca), name)

    def place(self) -> ServicePlace:
        running, started = self.running, self.started
        return ServicePlace(
            service=Service(
                target=self.way.target,
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
        forwarders = (Observed(role="forwarder", pid=forwarder.pid) for forwarder in self.way.forwarders)
        return (Observed(role=role, pid=self.running.pid), *forwarders)

    def begin(self, ledger: ExitStack) -> None:
        """The path is open, and nothing has been asked by it but what the laboratory wanted to know."""
        pids = (forwarder.pid for forwarder in self.way.forwarders)
        self._forks = ForkWatch(dict(zip(_FORWARDER_PLACES, pids, strict=False)))
        ledger.callback(self._forks.finish)
        self.before = self.running.snapshot()

    def unlike(self, session: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Where the path was not what was asked, as the server saw it and, given its session, the engine."""
        found = view_violations(self.way, self.view, self.started.asked)
        return found if session is None else (*session_violations(self.way, session, self.started.asked), *found)

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
        if self.way.forwarders:
            assert self._forks is not None, "begin() comes first"
            most = self._forks.finish()
            forwarder = {**self.way.forwarder_facts, "processes_most": most, "connections": connections}
            found += fork_violations(most, connections)
            dead = [one.pid for one in self.way.forwarders if not one.alive()]
            if dead:
                raise LabError(f"a forwarder (process {dead[0]}) died during the trial", "See if memory ran out.")
        return ServerProof(server, forwarder, facts["counters"], tuple(found))


def reach(started: Started, path: PathKind, ends: Ends, ledger: ExitStack) -> Reached:
    """Open the path to a server and see how it is seen there. Raises LabError."""
    running, asked = started.running, started.asked
    terrain = Terrain(
        work=ends.work,
        client=ends.clients_side,
        server=ends.servers_side,
        running=running,
        port=PORTS[started.name],
    )
    way = path.open_way(terrain, ledger)
    certificates = started.certificates
    encrypted = pinned_context(certificates, asked.tls_version) if certificates and asked.tls_version else None
    return Reached(started, way, running.session_view(way.connection, ends.client, encrypted))
