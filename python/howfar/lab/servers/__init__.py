"""One file a server: find, initialise, load, start, ready, stop, receipt. Add one: a new file and a line in `kinds.py`.

What the rest of the laboratory knows of a server is in here: `ServerKind` finds and prepares, `Server` runs.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from howfar.lab.network import LOOPBACK_ADDRESS, Cpus, Host
from howfar.lab.servers.program import Program
from howfar.lab.sockets import free_port
from howfar.plan.factors import Content
from howfar.store.server_metrics import ServerMetrics

DATABASE = "sbtest"
USER = "howfar"
GAUGES = ("Threads_running",)
"""Among the counters of a server those that tell how much there is now, and do not grow."""


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

    @property
    def listen_address(self) -> str:
        """For TCP; without a sandbox nobody else may reach it."""
        return "0.0.0.0" if self.namespaced else LOOPBACK_ADDRESS

    def port(self, usual: int) -> int:
        """The usual one where the host is its own, else a free one."""
        return usual if self.namespaced else free_port()


class Server(Protocol):
    """One running server."""

    kind: str
    version: str
    pid: int
    socket: Path
    address: str | None
    """Where it listens on TCP; None: nowhere."""
    port: int | None

    def snapshot(self) -> dict[str, int]:
        """Counters now, as the server names them."""
        ...

    def metrics(self) -> ServerMetrics:
        """Counters now, under neutral names."""
        ...

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Ask, or tell, over the socket. Raises ServerCrashed, LabError."""
        ...

    def receipt(self, before: Mapping[str, int], commits: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Facts and counters since `before`, and what was not as asked. `commits`: transactions of the load that wrote something;
        None: it only read, or who knows. Raises ServerCrashed."""
        ...

    def session_view(
        self, connection: Mapping[str, Any], host: Host, encrypted: ssl.SSLContext | None = None
    ) -> dict[str, Any]:
        """Connect once more from `host` with `connection` (socket, or address and port): how the server itself sees it."""
        ...

    def stop(self) -> None:
        """At once; its data is thrown away."""
        ...


class Store(Protocol):
    """A found server program with its prepared data: starts servers, one at a time."""

    kind: str
    version: str
    user: str
    password: str
    database: str
    """Where it knows accounts and databases; empty where it does not."""
    program: Program

    def data_bytes(self) -> int:
        """What the data of one content takes on disk and again in memory."""
        ...

    def prepare(self, ground: ServerContext) -> dict[str, Any]:
        """Put loaded data directories in place. Returns facts for the environment. Raises LabError, ServerCrashed."""
        ...

    def discard(self) -> None:
        """Take the data directories away again: `start` is not asked for any more."""
        ...

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
        ...


def find_store(server: str, tables: Tables) -> Store:
    """`server`: a kind (`mariadb`), the name of a private install or a path to a server program. Raises ServerMissing."""
    from howfar.lab.servers.key_value import KeyValueStore
    from howfar.lab.servers.kinds import DIALECTS, STORES, find_server
    from howfar.lab.servers.sql_store import SqlStore

    program = find_server(server)
    if program.kind in STORES:
        return KeyValueStore(program, STORES[program.kind])
    return SqlStore(program, DIALECTS[program.kind], tables)
