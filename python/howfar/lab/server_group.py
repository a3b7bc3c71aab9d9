"""The servers of an environment: a single main server, or a primary with its replicas (`replicated_group.py`); and auxiliary servers,
such as a cache, on the same host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from howfar.contract.messages import Observed
from howfar.errors import PlanError
from howfar.lab.cache import check_name
from howfar.lab.connected_server import RunningServer, StartedServer
from howfar.lab.replication import ReplicaSet
from howfar.lab.servers import CertificatePaths, ServerContext, ServerProcess, Store, Tables, find_store
from howfar.lab.servers.kinds import KINDS, STORES
from howfar.paths import Path as NetworkPath
from howfar.plan.sessions import SessionSpec
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import CollectedReceipt, LoadFacts, WindowWatch


class ServerGroup:
    """The main server of one trial. The subclass `ReplicatedGroup` adds replicas."""

    replica_set: ReplicaSet | None = None
    """The primary and its replicas; None without replication."""

    def __init__(self, running: RunningServer, password: str, certificates: CertificatePaths | None) -> None:
        """`running`: the server that the load uses. `certificates`: None if it offers no TLS."""
        self.running = running
        self.password = password
        self.certificates = certificates

    def observed_processes(self) -> tuple[Observed, ...]:
        """Processes, besides the main server's, that its replies depend on, such as replicas."""
        return ()

    def begin(self) -> None:
        """Called right before the load. Raises LabError."""

    def watch(self, window: WindowWatch) -> WindowWatch:
        """Called when the measured window begins. Returns `window`, the watch of the environment, or a watch that adds to it."""
        return window

    def precheck(self) -> CollectedReceipt:
        """The part of `collect_receipt` that needs no running server: the links at rest."""
        return CollectedReceipt()

    def collect_receipt(self, load: LoadFacts) -> CollectedReceipt:
        """The receipt after the load. Raises LabError if a server has died."""
        return CollectedReceipt()

    def peer_traffic(self) -> ServerMetrics:
        """Bytes that the server has exchanged since `begin` with peers other than the load; valid after `collect_receipt`."""
        return ServerMetrics()


def start_store(
    store: Store, path: NetworkPath, certificates: CertificatePaths | None, spec: SessionSpec
) -> ServerProcess:
    """Start a server as path and sessions require, with `certificates` only if sessions are encrypted. Raises ServerCrashed,
    LabError."""
    return store.start(
        networking=path.networking,
        tls=certificates if spec.tls else None,
        content=spec.content,
        transport="socket" if path.by_socket else "tcp",
    )


@contextmanager
def open_standalone(
    store: Store, path: NetworkPath, certificates: CertificatePaths | None, spec: SessionSpec, prepare: tuple[str, ...]
) -> Iterator[ServerGroup]:
    """Start a server, and stop it on leaving. Raises ServerCrashed, LabError."""
    running = start_store(store, path, certificates, spec)
    try:
        for statement in prepare:
            running.query(statement)
        yield ServerGroup(running, store.password, certificates)
    finally:
        running.stop()


class AuxiliaryServers:
    """The auxiliary servers' programs and directories, which are prepared once for a laboratory."""

    def __init__(self, servers: Sequence[str], main: str | None, context: ServerContext) -> None:
        """`servers`: kinds, or names or paths of programs; `main`: kind of the main server. Raises PlanError, ServerMissing."""
        self._stores: list[Store] = []
        used_services = set() if main is None else {KINDS[main].service}
        for server in servers:
            store = find_store(server, Tables(0, 0))
            if store.kind not in STORES:
                raise PlanError(
                    f"{server} cannot be added to another server", f"Servers that can be added: {', '.join(STORES)}."
                )
            service = KINDS[store.kind].service
            if service in used_services:
                raise PlanError(f"two servers would be the application's {service}", "Name only one of them.")
            used_services.add(service)
            directory = self.directory(context.work, store.kind)
            check_name(directory)
            directory.mkdir()
            store.prepare(replace(context, work=directory))
            self._stores.append(store)

    @staticmethod
    def directory(parent: Path, kind: str) -> Path:
        """Directory for an auxiliary server's sockets and logs, below the laboratory's own directory `parent`."""
        return parent / KINDS[kind].service

    def environment(self) -> dict[str, dict[str, str]]:
        return {
            KINDS[store.kind].service: {
                "kind": store.kind,
                "version": store.version,
                "program": str(store.program.path),
            }
            for store in self._stores
        }

    def start(
        self, path: NetworkPath, certificates: CertificatePaths | None, spec: SessionSpec, stack: ExitStack
    ) -> tuple[StartedServer, ...]:
        """Start all auxiliary servers; `stack` stops them. Raises ServerCrashed, LabError."""
        store_spec = store_session_spec(spec, path)
        started = []
        for store in self._stores:
            running = start_store(store, path, certificates, store_spec)
            stack.callback(running.stop)
            started.append(StartedServer(running, certificates if store_spec.tls else None, store_spec))
        return tuple(started)


def store_session_spec(spec: SessionSpec, path: NetworkPath) -> SessionSpec:
    """A cell's session settings for a key-value store: never compressed, and not encrypted over a Unix socket."""
    uncompressed = replace(spec, algorithm=None, level=None)
    return replace(uncompressed, tls=None, resumption=False) if path.by_socket else uncompressed
