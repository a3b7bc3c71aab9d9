"""The laboratory: work directory, hosts, link, and server with its data, set up in this order and removed in reverse order.

`open_laboratory` builds the laboratory that a request describes (`request.py`). Each trial then gets its own environment
(`trial_environment.py`): one path to newly started servers (`server_group.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from howfar.contract.environment import Capacity, DataFacts, RunEnvironment
from howfar.contract.messages import ServiceName
from howfar.contract.receipt import LinkCalibration, TcpSettings
from howfar.engine.process import Launcher
from howfar.errors import PlanError, SandboxForbidden
from howfar.lab import sandbox
from howfar.lab.application import RunningApplication, application_kinds
from howfar.lab.cache import file_system_of, work_directory
from howfar.lab.certificates import make_certificates
from howfar.lab.connected_server import ConnectedServer, PathEndpoints, StartedServer, connect_server
from howfar.lab.environment import allow_descriptors, lengthen_queues, machine_facts, measure_fsync_ns
from howfar.lab.idle import IdleWatch, keep_polling
from howfar.lab.link import Link, LinkSpec, open_link
from howfar.lab.link.backends import SHAPING
from howfar.lab.link.receipt import rest_warnings
from howfar.lab.network import (
    LOOPBACK_ADDRESS,
    SERVER_ADDRESS,
    SERVER_ADDRESS6,
    Cpus,
    Host,
    Network,
    Shares,
    build_network,
    cpus_of,
    share_cpus,
    size_buffers,
    tcp_memory_warning,
    usable_cpus,
)
from howfar.lab.request import LabRequest, ReplicasSpec
from howfar.lab.server_group import (
    AuxiliaryServers,
    LabResources,
    OpenGroups,
    ServerGroup,
    group_kind,
    open_groups,
    open_standalone,
)
from howfar.lab.servers import CertificatePaths, ServerContext, Store, Tables, find_store
from howfar.lab.servers.kinds import KINDS
from howfar.lab.trial_environment import LabTrialEnvironment, observed_processes
from howfar.lab.window import WatchTargets
from howfar.paths import Path as NetworkPath
from howfar.paths import check_programs, find_path, reason_not_carried
from howfar.plan.factor import Level
from howfar.plan.factors import IDLE, PATH, PLACEMENT, THREADS
from howfar.plan.sessions import SessionSpec, session_spec

__all__ = ["Lab", "LabRequest", "LabTrialEnvironment", "ReplicasSpec", "open_laboratory"]

PLACEMENTS = ("isolated", "machines")
OnStep = Callable[[str], None]


class Lab:
    """One laboratory; implements `howfar.testbed.Testbed`. Created by `open_laboratory`."""

    def __init__(self, request: LabRequest, stack: ExitStack, on_step: OnStep) -> None:
        self.request = request
        self.warnings: list[str] = []
        self.shares: Shares = share_cpus(usable_cpus())
        if self.shares.overlap:
            self.warnings.append("one CPU only: client and server share it on every path")
        self.store: Store | None = None
        if request.server != "none":
            self.store = find_store(request.server, Tables(request.tables, request.table_size, request.contents))
            for path in map(find_path, request.paths):
                if obstacle := reason_not_carried(path, (KINDS[self.store.kind].service,)):
                    raise PlanError(f"the path {path.name}: {obstacle}", "Name another path, or another server.")
                check_programs(path)
        data_bytes = self.store.data_bytes() if self.store else 0
        self.work: Path = stack.enter_context(work_directory(data_bytes, request.copies))
        self._fsync_ns = measure_fsync_ns(self.work)
        self._certificates: CertificatePaths | None = None
        self._capacity = Capacity(descriptors=allow_descriptors(request.connections))
        self.network: Network | None = None
        if sandbox.inside():
            self.network = build_network(stack, request.link.mtu, request.congestion_control)
            self.network.shares = self.shares
            queues = lengthen_queues(self.network, request.connections)
            self._capacity = self._capacity.updated(Capacity.model_validate(queues))
        self.client_host = self.network.client if self.network else Host("client", None)
        self.server_host = self.network.server if self.network else Host("server", None)
        if not self.network and (remote_paths := request.paths_over_link):
            raise SandboxForbidden(
                f"{', '.join(remote_paths)}: a path over the link needs namespaces, which this machine forbids",
                sandbox.remedy(),
            )
        self._link_stack = stack.enter_context(ExitStack())
        self._data_facts = DataFacts()
        if self.store is not None:
            on_step(self.store.preparation())
            self._data_facts = self.store.prepare(self._server_context())
            if request.replicas is not None and not request.replicas.also_standalone:
                self.store.discard()  # each replica set copies the template, so this data is not needed
        self.auxiliary_servers = AuxiliaryServers(
            request.auxiliary_servers, self.store.kind if self.store else None, self._server_context()
        )
        sql_service: ServiceName = KINDS[self.store.kind].service if self.store else "mysql"
        self._application = application_kinds()[request.application].find(sql_service) if request.application else None
        if request.replicas is not None:
            on_step("connecting the hosts of the replicas")
        self._replication = self._open_replication(stack)
        self.link: Link | None = None
        self._buffers: dict[str, int] = {}
        if request.needs_link:
            on_step("calibrating the link, usually 6 s")
            self.link = self._open_link({})
            if self.link.backend in SHAPING:
                spec, calibration = self.link.spec, self.link.calibration
                self.warnings += rest_warnings(spec, self.link.rest_rtt_ns(spec), calibration)
        if self.network:
            self.warnings += self.network.warnings

    def _server_context(self) -> ServerContext:
        return ServerContext(
            work=self.work,
            host=self.server_host,
            cpus=self.shares.server,
            connections=self.request.connections,
            namespaced=self.network is not None,
        )

    def _open_replication(self, stack: ExitStack) -> OpenGroups | None:
        """The replicas' hosts and links; None if the request has no replicas."""
        replicas = self.request.replicas
        if replicas is None or self.store is None:
            return None
        if self.network is None:
            raise SandboxForbidden(
                "replicas need namespaces, which this machine forbids",
                f"Cells without replication work. {sandbox.remedy()}",
            )
        resources = LabResources(self.work, self.network, self.shares, self.request, self.store.program)
        return open_groups(resources, replicas, stack)

    def _open_link(self, calibrations: Mapping[LinkSpec, LinkCalibration]) -> Link:
        """Open a link, after closing the previous one: two emulators between the same hosts would carry each packet twice. The new
        link starts from the `calibrations` of the previous one."""
        assert self.network is not None
        self._link_stack.close()
        spec = self.request.link
        self.size_buffers(spec.bdp_bytes)
        return self._link_stack.enter_context(
            open_link(
                self.network,
                spec,
                self.client_host.launcher(self.shares.client),
                self.server_host.launcher(self.shares.server),
                calibrations,
                backend=self.request.backend,
                with_goodput=self.request.with_goodput,
            )
        )

    def size_buffers(self, bdp_bytes: int) -> None:
        """Size TCP's buffers by the preset for a link with this bandwidth-delay product; buffers never shrink."""
        assert self.network is not None
        self._buffers = size_buffers(self.network, bdp_bytes, self.request.tcp)
        warning = tcp_memory_warning(bdp_bytes) if self.request.tcp == "tuned" else None
        if warning and warning not in self.warnings:
            self.warnings.append(warning)

    def tcp_settings(self) -> TcpSettings:
        """The TCP settings in force on the hosts, for receipts."""
        assert self.network is not None
        return TcpSettings(
            preset=self.request.tcp, buffers=dict(self._buffers), congestion_control=self.network.congestion_control
        )

    def server(self) -> tuple[str, str]:
        return (self.store.kind, self.store.version) if self.store else ("none", "")

    def environment(self) -> RunEnvironment:
        return RunEnvironment(
            sandbox=self.network is not None,
            placement=self.request.placement,
            client_cpus=list(self.shares.client),
            server_cpus=list(self.shares.server),
            work_file_system=file_system_of(self.work),
            data_fsync_ns=self._fsync_ns,
            data=self._data_facts,
            capacity=self._capacity,
            tcp_buffers=self._buffers,
            tcp=self.tcp_settings() if self.link else None,
            auxiliary_servers=self.auxiliary_servers.environment(),
            application=None if self._application is None else self._application.description,
            link_backend=self.request.backend if self.link else None,
            link=next(iter(self.link.calibrations.values())) if self.link else None,
            link_cpus=cpus_of(self.link.pid) if self.link else None,
            replication=self._replication.environment() if self._replication else None,
            warnings=list(self.warnings),
        ).updated(RunEnvironment.model_validate(machine_facts().as_json()))

    def client_cpus(self, path: NetworkPath, placement: str) -> Cpus:
        """CPUs of a path's client. With the placement `isolated`, clients always have their own CPUs; with `machines`, a client on the
        server's host runs on the server's CPUs. Raises PlanError."""
        if placement not in PLACEMENTS:
            raise PlanError(f"no placement is called {placement!r}", f"Known: {', '.join(PLACEMENTS)}.")
        return self.shares.server if path.machines == 1 and placement == "machines" else self.shares.client

    def client_host_for(self, path: NetworkPath) -> Host:
        return self.server_host if path.machines == 1 else self.client_host

    def begin_block(self, block: int) -> None:
        if self.link:
            self.link.begin_batch()
        if self._replication:
            self._replication.begin_batch()

    @contextmanager
    def trial_environment(self, factors: Mapping[str, Level]) -> Iterator[LabTrialEnvironment]:
        path = find_path(PATH.level_in(factors))
        placement = PLACEMENT.level_or_none(factors) or self.request.placement
        cpus = self.client_cpus(path, placement)
        link = self._shape_link(factors) if path.crosses_link else None
        client_host = self.client_host_for(path)
        spec = session_spec(factors)
        with ExitStack() as stack:
            idle = IDLE.level_in(factors)
            if idle == "polling":
                stack.enter_context(keep_polling())
            server_group = stack.enter_context(self._open_server_group(factors, path, spec))
            client_launcher = self.client_host.launcher(self.shares.client)
            server_launcher = self.server_host.launcher(self.shares.server)
            main, *auxiliaries = (
                connect_server(
                    started,
                    path,
                    PathEndpoints(
                        work, client_host, self.server_host, client_launcher, server_launcher, self.certificates
                    ),
                    stack,
                )
                for started, work in self._start_servers(server_group, path, spec, stack)
            )
            auxiliary_servers = tuple(auxiliaries)
            rtt_at_rest = link.measure_rtt_at_rest() if link else None
            if link:
                if link.spec.has_effects:
                    link.start_effects()
                link.counters(reset=True)
            server_group.begin()
            for server in (main, *auxiliary_servers):
                server.begin(stack)
            application = self._start_application(
                factors, client_host.launcher(cpus), (main, *auxiliary_servers), stack
            )
            application_processes = () if application is None else (application.observed_process,)
            yield LabTrialEnvironment(
                target=main.target,
                protocol=main.protocol,
                user=main.started.user,
                password=main.started.password,
                database=main.started.database,
                client=client_host.launcher(cpus),
                observe=(
                    *observed_processes(main, auxiliary_servers, link),
                    *application_processes,
                    *server_group.observed_processes(),
                ),
                trust=main.trust,
                server_group=server_group,
                main=main,
                auxiliary_servers=auxiliary_servers,
                link=link,
                rtt_at_rest=rtt_at_rest,
                tcp=self.tcp_settings() if link else TcpSettings(),
                connections=connection_count(factors, self.request),
                targets=WatchTargets(
                    client_host, self.server_host, main.endpoint.server_port, link, main.running.snapshot
                ),
                application=application,
                idle=IdleWatch(idle, usable_cpus()),
            )

    def _start_servers(
        self, server_group: ServerGroup, path: NetworkPath, spec: SessionSpec, stack: ExitStack
    ) -> Iterator[tuple[StartedServer, Path]]:
        """Start the auxiliary servers; yields the environment's servers, the main one first, each with its directory."""
        assert self.store is not None
        store = self.store
        yield (
            StartedServer(
                server_group.running, server_group.certificates, spec, store.user, server_group.password, store.database
            ),
            self.work,
        )
        for started in self.auxiliary_servers.start(path, self.certificates() if spec.tls else None, spec, stack):
            yield started, AuxiliaryServers.directory(self.work, started.running.kind)

    def _start_application(
        self,
        factors: Mapping[str, Level],
        client_launcher: Launcher,
        servers: tuple[ConnectedServer, ...],
        stack: ExitStack,
    ) -> RunningApplication | None:
        """Start a real application on the load's host and CPUs if the cell requests one."""
        name = str(factors.get("application", ""))
        if name not in application_kinds():
            return None
        if self._application is None:
            raise PlanError("this laboratory has no application", "Ask for it when building it.")
        children = THREADS.level_in(factors)
        return stack.enter_context(self._application.open(self.work / name, client_launcher, children, servers))

    def _open_server_group(
        self, factors: Mapping[str, Level], path: NetworkPath, spec: SessionSpec
    ) -> AbstractContextManager[ServerGroup]:
        if self.store is None:
            raise PlanError("an environment needs a server, this laboratory has none", "Ask for a server.")
        prepare = self.request.prepare
        if group_kind(factors) is None:
            return open_standalone(self.store, path, self.certificates() if spec.tls else None, spec, prepare)
        if self._replication is None:
            raise PlanError("this laboratory has no replicas", "Ask for them when building it.")
        return self._replication.open_group(factors, spec, prepare)

    def certificates(self) -> CertificatePaths:
        """The certificates of the server's host, created when first needed."""
        if self._certificates is None:
            self._certificates = make_certificates(self.work, (LOOPBACK_ADDRESS, SERVER_ADDRESS, SERVER_ADDRESS6))
        return self._certificates

    def _shape_link(self, factors: Mapping[str, Level]) -> Link:
        if self.link is None or self.network is None:
            raise SandboxForbidden(
                f"the path {PATH.level_in(factors)} needs a link", "Ask for it when building the laboratory."
            )
        spec = self.request.link.with_levels(factors)
        if not self.link.alive():  # the link died in the previous trial, which is void; this trial gets a new one
            self.link = self._open_link(self.link.calibrations)
        self.size_buffers(spec.bdp_bytes)
        if spec != self.link.spec or spec.without_effects() not in self.link.calibrated_in_batch:
            self.link.shape(spec)
        return self.link


@contextmanager
def open_laboratory(request: LabRequest, on_step: OnStep = lambda step: None) -> Iterator[Lab]:
    """Build the laboratory of `request`. Call in the sandbox; outside it, only local paths work. `on_step` is called with a
    description before each step that takes some time. Raises SandboxForbidden, ServerMissing, ServerCrashed, LinkFailed, LabError,
    EngineError."""
    with ExitStack() as stack:
        yield Lab(request, stack, on_step)


def connection_count(factors: Mapping[str, Level], request: LabRequest) -> int | None:
    """Number of connections that the load keeps open; None if unknown."""
    if not request.keeps_connections or "threads" not in factors:
        return None
    return THREADS.level_in(factors)
