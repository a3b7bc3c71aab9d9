"""The servers of an environment: a single main server, or a group of servers of a kind that a slice registers in its module
`server_groups`; and auxiliary servers, such as a cache, on the same host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

from howfar.contract.environment import ReplicationEnvironment
from howfar.contract.messages import Observed
from howfar.contract.violation import Violation
from howfar.errors import PlanError
from howfar.lab.cache import check_name
from howfar.lab.connected_server import RunningServer, StartedServer
from howfar.lab.network import Network, Shares
from howfar.lab.request import LabRequest, ReplicasSpec
from howfar.lab.servers import CertificatePaths, ServerContext, ServerProcess, Store, Tables, find_store
from howfar.lab.servers.kinds import KINDS, STORES
from howfar.lab.servers.program import Program
from howfar.paths import Path as NetworkPath
from howfar.plan.cells import cells
from howfar.plan.factor import FactorLevels, Level
from howfar.plan.sessions import SessionSpec
from howfar.plan.types import Plan
from howfar.slices import collect
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import CollectedReceipt, LoadFacts, WindowWatch


class ServerGroup:
    """The main server of one trial. Subclasses add other servers."""

    other_servers: int | None = None
    """Number of servers besides the main one; None if it belongs to no group of servers."""

    def __init__(self, running: RunningServer, password: str, certificates: CertificatePaths | None) -> None:
        """`running`: the server that the load uses. `certificates`: None if it offers no TLS."""
        self.running = running
        self.password = password
        self.certificates = certificates

    def observed_processes(self) -> tuple[Observed, ...]:
        """Processes on which the main server's replies depend, such as replicas, without the main server's own."""
        return ()

    def begin(self) -> None:
        """Called right before the load. Raises LabError."""

    def link_violations(self) -> tuple[Violation, ...]:
        """How the links between the servers deviate from the request so far."""
        return ()

    def watch(self, window: WindowWatch) -> WindowWatch:
        """Called when the measured window begins. Returns `window`, the watch of the environment, or a watch that adds to it."""
        return window

    def precheck(self) -> CollectedReceipt:
        """The part of the receipt that needs no running server: the links at rest."""
        return CollectedReceipt()

    def collect_receipt(self, load: LoadFacts) -> CollectedReceipt:
        """The receipt after the load. Raises LabError if a server has died."""
        return CollectedReceipt()

    def peer_traffic(self) -> ServerMetrics:
        """Bytes that the server has exchanged since `begin` with peers other than the load; valid after `collect_receipt`."""
        return ServerMetrics()


class OpenGroups(Protocol):
    """What the groups of a laboratory's environments share, such as hosts and links."""

    def begin_batch(self) -> None:
        """Start a batch: each link is calibrated again when it is next used."""

    def environment(self) -> ReplicationEnvironment: ...

    def open_group(
        self, factors: Mapping[str, Level], session: SessionSpec, setup_sql: tuple[str, ...]
    ) -> AbstractContextManager[ServerGroup]:
        """Start the servers that a cell requests, and verify them. Raises LabError, PlanError."""


@dataclass(frozen=True)
class LabResources:
    """What a laboratory gives to its groups of servers."""

    work: Path
    network: Network
    """Its `server` is the host of the main server."""
    shares: Shares
    request: LabRequest
    program: Program
    """The main server's program, from which the other servers are started too."""


@dataclass(frozen=True)
class GroupKind:
    """A kind of group of servers."""

    name: str
    """As in `ReplicasSpec.kind`."""
    is_requested: Callable[[FactorLevels], bool]
    """Whether a cell requests such a group."""
    spec: Callable[[Sequence[FactorLevels]], ReplicasSpec]
    """The servers that serve all these cells. Each of them requests a group, and `also_standalone` is not set yet."""
    check_for_hosts: Callable[[Plan], None]
    """Refuse a plan whose groups the user's own hosts cannot run. Raises PlanError."""
    open: Callable[[LabResources, ReplicasSpec, ExitStack], OpenGroups]
    """Open what the groups share; the stack closes it. Raises LabError."""


@cache
def group_kinds() -> tuple[GroupKind, ...]:
    """All kinds of groups; a cell requests at most one."""
    return collect("server_groups", "SERVER_GROUPS", GroupKind)


def group_kind(factors: FactorLevels) -> GroupKind | None:
    """The kind of group that a cell requests; None for a server on its own."""
    return next((kind for kind in group_kinds() if kind.is_requested(factors)), None)


def replicas_spec(plan: Plan) -> ReplicasSpec | None:
    """The other servers that all cells of a plan need; None if no cell has any."""
    all_factors = [cell.factors for cell in cells(plan)]
    for kind in group_kinds():
        if requested := [factors for factors in all_factors if kind.is_requested(factors)]:
            return replace(kind.spec(requested), also_standalone=len(requested) < len(all_factors))
    return None


def open_groups(resources: LabResources, spec: ReplicasSpec, stack: ExitStack) -> OpenGroups:
    """Open what the groups of a laboratory share. Raises LabError."""
    return next(kind for kind in group_kinds() if kind.name == spec.kind).open(resources, spec, stack)


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
    """A cell's session settings for a key-value store: without those of SQL alone, and not encrypted over a Unix socket."""
    store_spec = replace(spec, settings={})
    return replace(store_spec, tls=None, resumption=False) if path.by_socket else store_spec
