"""The servers at the end of a stage's path: one server alone, or a primary with its replicas, and further servers next to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from howfar.engine.messages import Observed
from howfar.errors import PlanError
from howfar.lab.cache import check_name
from howfar.lab.reached import RunningServer, Started
from howfar.lab.replication import Pair
from howfar.lab.servers import CertificatePaths, Server, ServerContext, Store, Tables, find_store
from howfar.lab.servers.kinds import KINDS, STORES
from howfar.paths import Path as NetworkPath
from howfar.plan.sessions import SessionSpec
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import LoadFacts, StageReceipt, WindowWatch


class Serving:
    """One server alone, for one trial. `Replicated` adds a primary's replicas."""

    pair: Pair | None = None
    """The primary and its replicas; None without replication."""

    def __init__(self, running: RunningServer, password: str, certificates: CertificatePaths | None) -> None:
        """`running`: the server that the load uses. `certificates` is None if it offers no TLS."""
        self.running = running
        self.password = password
        self.certificates = certificates

    def observed(self) -> tuple[Observed, ...]:
        """Further processes that the server's answers depend on."""
        return ()

    def begin(self) -> None:
        """Called right before the load. Raises LabError."""

    def watch(self, window: WindowWatch) -> WindowWatch:
        """Called when the measured window begins; `window` already watches it."""
        return window

    def begun(self) -> StageReceipt:
        """The part of `obtained` that needs no running server: links at rest."""
        return StageReceipt({})

    def obtained(self, load: LoadFacts) -> StageReceipt:
        """The receipt after the load. Raises LabError if a server has died."""
        return StageReceipt({})

    def others(self) -> ServerMetrics:
        """Bytes that the server has exchanged since `begin` with peers other than the load; valid after `obtained`."""
        return ServerMetrics()


def start_for(store: Store, path: NetworkPath, certificates: CertificatePaths | None, spec: SessionSpec) -> Server:
    """Start a new server as path and sessions require, with `certificates` if encrypted. Raises ServerCrashed, LabError."""
    return store.start(
        networking=path.networking,
        tls=certificates if spec.tls else None,
        content=spec.content,
        reached_by="socket" if path.by_socket else "tcp",
    )


@contextmanager
def alone(
    store: Store,
    path: NetworkPath,
    certificates: CertificatePaths | None,
    spec: SessionSpec,
    prepare: tuple[str, ...],
) -> Iterator[Serving]:
    """A newly started server, stopped on leaving. Raises ServerCrashed, LabError."""
    running = start_for(store, path, certificates, spec)
    try:
        for statement in prepare:
            running.query(statement)
        yield Serving(running, store.password, certificates)
    finally:
        running.stop()


class Companions:
    """The further servers' programs and directories, prepared once for a laboratory."""

    def __init__(self, servers: Sequence[str], main: str | None, context: ServerContext) -> None:
        """`servers`: kinds, names or paths; `main`: kind of the main server. Raises PlanError, ServerMissing."""
        self._stores: list[Store] = []
        taken = set() if main is None else {KINDS[main].service}
        for server in servers:
            store = find_store(server, Tables(0, 0))
            if store.kind not in STORES:
                raise PlanError(
                    f"{server} cannot be added to another server", f"Servers that can be added: {', '.join(STORES)}."
                )
            name = KINDS[store.kind].service
            if name in taken:
                raise PlanError(f"two servers would be the application's {name}", "Name only one of them.")
            taken.add(name)
            work = self.work(context.work, store.kind)
            check_name(work)
            work.mkdir()
            store.prepare(replace(context, work=work))
            self._stores.append(store)

    @staticmethod
    def work(of: Path, kind: str) -> Path:
        """Directory for a further server's sockets and logs, below the laboratory's own directory."""
        return of / KINDS[kind].service

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
        self, path: NetworkPath, certificates: CertificatePaths | None, spec: SessionSpec, ledger: ExitStack
    ) -> tuple[Started, ...]:
        """Start all further servers; `ledger` stops them. Raises ServerCrashed, LabError."""
        mine = of_store(spec, path)
        found = []
        for store in self._stores:
            running = start_for(store, path, certificates, mine)
            ledger.callback(running.stop)
            found.append(Started(running, certificates if mine.tls else None, mine))
        return tuple(found)


def of_store(spec: SessionSpec, path: NetworkPath) -> SessionSpec:
    """A cell's session settings for a key-value store: never compressed, and not encrypted over a Unix socket."""
    plain = replace(spec, algorithm=None, level=None)
    return replace(plain, tls=None, resumption=False) if path.by_socket else plain
