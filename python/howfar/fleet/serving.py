"""Servers on the user's hosts. `Hosted…` classes run on a host; `Remote…` classes are their counterparts in the driver."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from howfar.contract.messages import Target
from howfar.contract.server_receipt import ServerReceipt, SessionView
from howfar.contract.violation import Violation
from howfar.errors import LabError
from howfar.fleet.node import WORK_DIRECTORY
from howfar.fleet.remote import RemoteHost, RemoteObject
from howfar.fleet.server_facts import RunningFacts, StoreFacts
from howfar.lab.certificates import make_certificates, pinned_context
from howfar.lab.environment import allow_descriptors
from howfar.lab.network import LOOPBACK_ADDRESS, Cpus, Host
from howfar.lab.server_group import start_store
from howfar.lab.servers import (
    CertificatePaths,
    ServerContext,
    ServerCounts,
    ServerProcess,
    SessionProbe,
    Tables,
    find_store,
    session_error,
)
from howfar.paths import find_path
from howfar.paths.path import Row
from howfar.plan.sessions import SessionSpec
from howfar.store.server_metrics import ServerMetrics, server_metrics

PREPARE_TIMEOUT_S = 1800.0
_START_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ServerOrder:
    """The server to start on a host, and its data."""

    server: str
    tables: Tables
    connections: int
    cpus: Cpus
    address: str
    prepare: tuple[str, ...] = ()
    work: Path = WORK_DIRECTORY / "server"
    """Directory on the host for this server alone."""
    further_addresses: tuple[str, ...] = ()
    """Further addresses by which clients reach the server, such as a hop's. The server's certificate contains them."""

    def for_host(self, address: str, cpus: Cpus, work: Path) -> ServerOrder:
        """Return the same order for another host."""
        return replace(self, address=address, cpus=cpus, work=work)


class HostedServer:
    """Base of the objects that run a server on its host and execute the driver's requests to it."""

    _running: ServerProcess | None = None

    @property
    def _server(self) -> ServerProcess:
        if self._running is None:
            raise LabError("the server was not started")
        return self._running

    def describe(self) -> RunningFacts:
        running = self._server
        return RunningFacts(
            running.kind, running.version, running.pid, running.port, running.socket, running.session_probe()
        )

    def call_server(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self._server, method)(*arguments)

    def check_alive(self) -> None:
        self._server._check_alive("when asked how it sees its client", connection_lost=True)

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    close = stop


class HostedStore(HostedServer):
    """Runs on the server's host: a store with its data directory, and one running server at a time."""

    def __init__(self, order: ServerOrder) -> None:
        shutil.rmtree(order.work, ignore_errors=True)
        order.work.mkdir(mode=0o700, parents=True)
        descriptors = allow_descriptors(order.connections)
        self._order = order
        self._store = store = find_store(order.server, order.tables)
        self._certificates: CertificatePaths | None = None
        data = store.prepare(
            ServerContext(
                order.work, Host("server", None), order.cpus, order.connections, namespaced=True, address=order.address
            )
        )
        self.facts = StoreFacts(
            store.kind, store.version, store.user, store.password, store.database, data, descriptors
        )

    def certificates(self) -> bytes:
        """Return the CA's certificate. The first call makes the certificates."""
        if self._certificates is None:
            self._certificates = make_certificates(
                self._order.work, (LOOPBACK_ADDRESS, self._order.address, *self._order.further_addresses)
            )
        return self._certificates.ca.read_bytes()

    def certificate_paths(self) -> CertificatePaths:
        """Paths of the certificates on this host."""
        self.certificates()
        assert self._certificates is not None, "`certificates` makes them"
        return self._certificates

    def start(self, path_name: str, spec: SessionSpec) -> RunningFacts:
        """Start a fresh server with its data in memory."""
        self.stop()
        path = find_path(path_name)
        if spec.tls:
            self.certificates()
        self._running = running = start_store(self._store, path, self._certificates, spec)
        for statement in self._order.prepare:
            running.query(statement)
        return self.describe()


class RemoteServer:
    """The driver's counterpart of a `ServerProcess` that runs on a host: forwards requests to it."""

    def __init__(self, remote_object: RemoteObject, facts: RunningFacts) -> None:
        self.remote_object, self._session_probe = remote_object, facts.session_probe
        self.kind, self.version, self.pid = facts.kind, facts.version, facts.pid
        self.port, self.socket = facts.port, facts.socket

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self.remote_object.call("call_server", method, arguments)

    def alive(self) -> bool:
        try:
            return bool(self._ask("alive"))
        except LabError:
            return False

    def snapshot(self) -> dict[str, int]:
        return cast("dict[str, int]", self._ask("snapshot"))

    def metrics(self) -> ServerMetrics:
        return server_metrics(self.snapshot())

    def count_keys(self) -> int:
        return int(self._ask("count_keys"))

    def other_clients(self) -> tuple[str, ...]:
        return tuple(self._ask("other_clients"))

    def client_addresses(self) -> tuple[str, ...]:
        return tuple(self._ask("client_addresses"))

    def read_counts(self) -> ServerCounts:
        return cast(ServerCounts, self._ask("read_counts"))

    def certificates(self) -> CertificatePaths:
        """Paths of the certificates on the server's host."""
        return cast(CertificatePaths, self.remote_object.call("certificate_paths"))

    def ca_certificate(self) -> bytes:
        return cast(bytes, self.remote_object.call("certificates"))

    def query(self, sql: str, called: str | None = None) -> list[Row]:
        return cast("list[Row]", self._ask("query", sql, *([] if called is None else [called])))

    def collect_receipt(
        self, before: Mapping[str, int], commits: int | None = None
    ) -> tuple[ServerReceipt, tuple[Violation, ...]]:
        return cast("tuple[ServerReceipt, tuple[Violation, ...]]", self._ask("collect_receipt", before, commits))

    def session_view(self, client: RemoteHost, target: Target, tls: tuple[str, str] | None) -> SessionView:
        """Return the server's view of a session from the client's host. `tls`: the CA's file there, and the TLS version."""
        try:
            return client.within(_view_session, self._session_probe, target, tls)
        except LabError as error:
            self.remote_object.call("check_alive")
            raise session_error(target, error) from error

    def stop(self) -> None:
        self.remote_object.call("stop")


def _view_session(session_probe: SessionProbe, target: Target, tls: tuple[str, str] | None) -> SessionView:
    context: ssl.SSLContext | None = None
    if tls is not None:
        ca, version = tls
        context = pinned_context(CertificatePaths(Path(ca), Path(ca), Path(ca)), version)
    return session_probe(target, context)


def hold_server(host: RemoteHost, order: ServerOrder) -> RemoteObject:
    """Find, initialise and load the server on its host. Raises ServerMissing, ServerCrashed, LabError."""
    return host.create(partial(HostedStore, order), timeout_s=PREPARE_TIMEOUT_S, called="server")


def start_server(remote_object: RemoteObject, path_name: str, spec: SessionSpec) -> RemoteServer:
    """Start a fresh server on its host. Raises ServerCrashed, LabError."""
    return RemoteServer(
        remote_object, remote_object.call("start", path_name, spec, starts=True, timeout_s=_START_TIMEOUT_S)
    )
