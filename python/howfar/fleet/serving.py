"""A server on one of the user's hosts: the object held there, and the driver's side."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from howfar.errors import LabError
from howfar.fleet import node
from howfar.fleet.remote import Held, RemoteHost
from howfar.lab.certificates import make_certificates, pinned_context
from howfar.lab.environment import allow_descriptors
from howfar.lab.network import LOOPBACK_ADDRESS, Cpus, Host
from howfar.lab.servers import CertificatePaths, Counted, Seer, Server, ServerContext, Tables, find_store
from howfar.paths import find_path
from howfar.plan.sessions import SessionSpec
from howfar.store.server_metrics import ServerMetrics, server_metrics

WORK = node.WORK
"""Of paths, on every host alike."""
PREPARES_S = 1800.0
_STARTS_S = 300.0


@dataclass(frozen=True)
class ServerOrder:
    """The server that a run needs, and its data."""

    server: str
    tables: Tables
    connections: int
    cpus: Cpus
    address: str
    prepare: tuple[str, ...] = ()
    work: Path = WORK / "server"
    """Its own directory on the host."""

    def on(self, address: str, cpus: Cpus, work: Path) -> ServerOrder:
        """The same for another host."""
        return replace(self, address=address, cpus=cpus, work=work)


class HeldServer:
    """An object held on a server's host: what the driver asks of the server is done here."""

    _running: Server | None = None

    @property
    def _server(self) -> Server:
        if self._running is None:
            raise LabError("the server was not started")
        return self._running

    def facts(self) -> tuple[dict[str, Any], Seer]:
        running = self._server
        return {name: getattr(running, name) for name in ("kind", "version", "pid", "port", "socket")}, running.seer()

    def of_server(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self._server, method)(*arguments)

    def check_alive(self) -> None:
        self._server._check_alive("when asked how it sees its client", lost=True)

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    close = stop


class ServerSide(HeldServer):
    """The object held on the server's host: a data directory, and one server at a time."""

    def __init__(self, order: ServerOrder) -> None:
        shutil.rmtree(order.work, ignore_errors=True)
        order.work.mkdir(mode=0o700, parents=True)
        self.descriptors = allow_descriptors(order.connections)
        self._order = order
        self._store = find_store(order.server, order.tables)
        self._certificates: CertificatePaths | None = None
        self.data = self._store.prepare(
            ServerContext(order.work, Host("server", None), order.cpus, order.connections, True, order.address)
        )
        self.kind, self.version = self._store.kind, self._store.version
        self.user, self.password, self.database = (self._store.user, self._store.password, self._store.database)

    def certificates(self) -> bytes:
        """Make certificates on first use; returns the authority's certificate."""
        if self._certificates is None:
            self._certificates = make_certificates(self._order.work, (LOOPBACK_ADDRESS, self._order.address))
        return self._certificates.ca.read_bytes()

    def certificate_paths(self) -> CertificatePaths:
        """Where they are on this host."""
        self.certificates()
        assert self._certificates is not None, "they were made just now"
        return self._certificates

    def start(self, path_name: str, spec: SessionSpec) -> tuple[dict[str, Any], Seer]:
        """Start a fresh server with its data in memory."""
        self.stop()
        path = find_path(path_name)
        if spec.tls:
            self.certificates()
        running = self._store.start(
            networking=path.networking,
            tls=self._certificates if spec.tls else None,
            content=spec.content,
            reached_by="socket" if path.by_socket else "tcp",
        )
        self._running = running
        for statement in self._order.prepare:
            running.query(statement)
        return self.facts()


class RemoteServer:
    """A running `Server` on a host, seen from the driver: what it does not do itself is asked of the server there."""

    def __init__(self, side: Held, facts: Mapping[str, Any], seer: Seer) -> None:
        self.side, self._seer = side, seer
        self.kind: str = facts["kind"]
        self.version: str = facts["version"]
        self.pid: int = facts["pid"]
        self.port: int | None = facts["port"]
        self.socket: Path = facts["socket"]

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self.side.call("of_server", method, arguments)

    def alive(self) -> bool:
        try:
            return bool(self._ask("alive"))
        except LabError:
            return False

    def snapshot(self) -> dict[str, int]:
        found: dict[str, int] = self._ask("snapshot")
        return found

    def metrics(self) -> ServerMetrics:
        return server_metrics(self.snapshot())

    def count_keys(self) -> int:
        return int(self._ask("count_keys"))

    def others(self) -> tuple[str, ...]:
        return tuple(self._ask("others"))

    def clients(self) -> tuple[str, ...]:
        return tuple(self._ask("clients"))

    def counted(self) -> Counted:
        found: Counted = self._ask("counted")
        return found

    def certificates(self) -> CertificatePaths:
        """Where they are on the server's host."""
        found: CertificatePaths = self.side.call("certificate_paths")
        return found

    def authority(self) -> bytes:
        found: bytes = self.side.call("certificates")
        return found

    def query(self, sql: str, called: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("query", sql, *([] if called is None else [called]))
        return found

    def receipt(self, before: Mapping[str, int], commits: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
        found: tuple[dict[str, Any], tuple[str, ...]] = self._ask("receipt", before, commits)
        return found

    def session_view(
        self, client: RemoteHost, connection: Mapping[str, Any], tls: tuple[str, str] | None
    ) -> dict[str, Any]:
        """View a session from the client's host. `tls`: the authority's file there, and the version."""
        try:
            return client.within(_see, self._seer, dict(connection), tls)
        except LabError as error:
            self.side.call("check_alive")
            raise LabError(f"the server did not say how it sees a client: {error.message}", error.advice) from error

    def stop(self) -> None:
        self.side.call("stop")


def _see(seer: Seer, connection: Mapping[str, Any], tls: tuple[str, str] | None) -> dict[str, Any]:
    encrypted: ssl.SSLContext | None = None
    if tls is not None:
        ca, version = tls
        encrypted = pinned_context(CertificatePaths(Path(ca), Path(ca), Path(ca)), version)
    return seer(connection, encrypted)


def hold_server(host: RemoteHost, order: ServerOrder) -> Held:
    """Find, initialise and load the server on its host. Raises ServerMissing, ServerCrashed, LabError."""
    return host.hold(partial(ServerSide, order), patience_s=PREPARES_S, called="server")


def start_server(side: Held, path_name: str, spec: SessionSpec) -> RemoteServer:
    """Raises ServerCrashed, LabError."""
    return RemoteServer(side, *side.call("start", path_name, spec, starts=True, patience_s=_STARTS_S))
