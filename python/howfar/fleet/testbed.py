"""`Hosts`: the user's own hosts as a testbed. See `howfar.testbed.Testbed`; the laboratory's is `howfar.lab.laboratory.Lab`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, cast

from howfar.contract.environment import Capacity, HostFacts, HostRoles, RunEnvironment
from howfar.contract.messages import Observed, Receipt
from howfar.contract.receipt import HostReport, HostsReceipt, IdleReceipt, LinkReceipt, TcpSettings, TrialReceipt
from howfar.contract.violation import Violation, violation
from howfar.errors import LabError, PlanError, ServerMissing
from howfar.fleet.application import host_applications
from howfar.fleet.clocks import Clocks, ClockServer, read_clocks
from howfar.fleet.distances import (
    HostDistance,
    combine_receipts,
    enter_context,
    locate_host,
    measure_link,
    real_link_receipt,
)
from howfar.fleet.load import LoadHosts
from howfar.fleet.node import WORK_DIRECTORY, read_interruptions
from howfar.fleet.ray_driver import HostLink, cpus_of, read_host_facts
from howfar.fleet.remote import RemoteHost, RemoteLauncher, RemoteObject, RemoteProcess
from howfar.fleet.remote_endpoint import HostsContext
from howfar.fleet.roles import RoleHosts, check_supports_clients
from howfar.fleet.server_facts import StoreFacts
from howfar.fleet.server_group import OpenHostGroups, host_group_kind
from howfar.fleet.serving import RemoteServer, ServerOrder, hold_server, start_server
from howfar.fleet.user_server import HostedUserServer, UserServer
from howfar.lab.application import RunningApplication
from howfar.lab.connected_server import (
    NO_PID,
    ConnectedServer,
    StartedServer,
    endpoint_target,
    name_hops_in_errors,
    query_hop_view,
)
from howfar.lab.counts import compare_counts
from howfar.lab.environment import LoadWatch
from howfar.lab.idle import IdleWatch, keep_polling
from howfar.lab.laboratory import PLACEMENTS, connection_count
from howfar.lab.network import Cpus, Shares, share_cpus
from howfar.lab.request import LabRequest, ReplicasSpec
from howfar.lab.server_group import ServerGroup, group_kind, store_session_spec
from howfar.lab.servers import CertificatePaths, Tables
from howfar.lab.servers.kinds import KINDS
from howfar.lab.trial_environment import MAIN, LabTrialEnvironment
from howfar.paths import ClientEndpoint, find_path
from howfar.paths import Path as NetworkPath
from howfar.plan.factor import Level
from howfar.plan.factors import IDLE, PATH, PLACEMENT, THREADS
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.store.records import MachineLoad, Window
from howfar.store.server_metrics import server_metrics
from howfar.testbed import NO_FACTS, CollectedReceipt, LoadFacts, WindowWatch

_PINGS = 50
_LOAD_METRICS = ("psi_cpu_some_share", "psi_io_some_share", "steal_share", "load_average_1m")
_CPU_NUMBER_OFFSET = 1000
"""Added n times to the CPU numbers of machine n (the server's is 0), so that all CPUs have distinct numbers."""


def check_request(request: LabRequest, clients: int = 1) -> None:
    """Check that hosts can serve this request. Raises PlanError."""
    check_supports_clients(clients, request.paths, request.replicas is not None)
    if request.placement not in PLACEMENTS:
        raise PlanError(f"no placement is called {request.placement!r}", f"Known: {', '.join(PLACEMENTS)}.")


class Hosts:
    """The user's hosts as a testbed; see `howfar.testbed.Testbed`. The server runs on one host and a client on another; on local paths
    the client runs on the server's host."""

    def __init__(
        self,
        hosts: Mapping[str, RemoteHost],
        role_hosts: RoleHosts,
        request: LabRequest,
        stack: ExitStack,
        swaps: bool = False,
        user_server: UserServer | None = None,
    ) -> None:
        """`swaps`: whether to exchange the roles of the two hosts from block to block, if both can have either role. `user_server`:
        the user's own server, which already runs; without it, howfar starts a server for each trial."""
        check_request(request, 1 + len(role_hosts.other_clients))
        self.role_hosts, self.request, self.user_server = role_hosts, request, user_server
        self._hosts = {name: hosts[name] for name in role_hosts.names}
        self._initial_roles = role_hosts
        self.warnings: list[str] = []
        self._stack = stack
        has_local_path = any(find_path(name).machines == 1 for name in request.paths)
        self._shares = {
            host.name: _split_cpus(cpus_of(host), has_local_path and host.name != role_hosts.hop)
            for host in self._all_hosts()
        }
        self._facts = {
            host.name: host.within(read_host_facts).updated(HostFacts(address=host.spec.address, **locate_host(host)))
            for host in self._all_hosts()
        }
        self._clocks: dict[str, RemoteObject] = {}
        self._servers: dict[str, RemoteObject] = {}
        self._auxiliary_servers: dict[str, tuple[RemoteObject, ...]] = {}
        self._links: dict[tuple[str, str], HostLink] = {}
        self._replication: OpenHostGroups | None = None
        self.swaps = False
        self.ready()
        if swaps:
            self._prepare_swap()
        self._distance_by_pair: dict[tuple[str, str], HostDistance] = {}
        self.distances = self._measure_distances()
        if request.replicas is not None:
            self._replication = self._open_replication(request.replicas)

    def _prepare_swap(self) -> None:
        """Prepare the client's host to run the server as well. On failure, warn and do not exchange roles."""
        server_name, client_name = self._initial_roles.server, self._initial_roles.client
        try:
            if len(self._shares[server_name].server) != len(self._shares[client_name].server):
                raise LabError("they do not have as many CPUs")
            other_facts = self._hold_server(self._hosts[client_name]).facts(StoreFacts)
            if (other_facts.kind, other_facts.version) != self.server():
                raise LabError(f"host {client_name} has {other_facts.kind} {other_facts.version}")
        except (LabError, ServerMissing) as error:
            self.warnings.append(f"hosts {server_name} and {client_name} did not exchange their roles: {error.message}")
            if (server := self._servers.pop(client_name, None)) is not None:
                server.drop()
            return
        self.swaps = True

    def _all_hosts(self) -> tuple[RemoteHost, ...]:
        return tuple(self._hosts.values())

    @property
    def client_host(self) -> RemoteHost:
        return self._hosts[self.role_hosts.client]

    @property
    def server_host(self) -> RemoteHost:
        return self._hosts[self.role_hosts.server]

    @property
    def _hop(self) -> RemoteHost | None:
        return None if self.role_hosts.hop is None else self._hosts[self.role_hosts.hop]

    def _separate_hop(self, path: NetworkPath) -> RemoteHost | None:
        """The separate host of the hop of this path; None if the hop runs on the client's or the server's host."""
        return self._hop if path.movable else None

    @property
    def _other_client_hosts(self) -> tuple[RemoteHost, ...]:
        return tuple(self._hosts[name] for name in self.role_hosts.other_clients)

    def ready(self) -> None:
        """Create what trial environments need on the hosts; on hosts that were lost, create it again. Raises LabError."""
        for host in self._all_hosts():
            if not host.alive():
                host.join()
                self._clocks.pop(host.name, None)
                self._servers.pop(host.name, None)
                self._auxiliary_servers.pop(host.name, None)
                self._links.clear()
        for host in self._all_hosts():
            if host.name not in self._clocks:
                host.within(_make_directories, [WORK_DIRECTORY, *map(_work_directory, self.request.auxiliary_servers)])
                self._clocks[host.name] = host.create(ClockServer, host.spec.address)
        self._hold_server(self.server_host)

    def _hold_server(self, host: RemoteHost) -> RemoteObject:
        """Return the server of a host, with its data; the first call prepares it. Raises LabError, ServerMissing."""
        request, tables = self.request, self._tables
        if host.name not in self._servers and self.user_server is not None:
            self._servers[host.name] = host.create(
                HostedUserServer, self.user_server, tables, request.connections, called="server"
            )
        elif host.name not in self._servers:
            order = self._server_order(host)
            self._servers[host.name] = hold_server(host, order)
            order_without_tables = replace(order, tables=Tables(0, 0), prepare=())
            self._auxiliary_servers[host.name] = tuple(
                hold_server(host, replace(order_without_tables, server=kind, work=_work_directory(kind) / "server"))
                for kind in request.auxiliary_servers
            )
        return self._servers[host.name]

    @property
    def _tables(self) -> Tables:
        return Tables(self.request.tables, self.request.table_size, self.request.contents)

    def _server_order(self, host: RemoteHost) -> ServerOrder:
        """How to start the main server on a host."""
        cpus, request = self._shares[host.name].server, self.request
        hop_addresses = () if self._hop is None else (self._hop.spec.address,)
        address, prepare = host.spec.address, request.prepare
        return ServerOrder(
            request.server, self._tables, request.connections, cpus, address, prepare, further_addresses=hop_addresses
        )

    @property
    def held_store(self) -> RemoteObject:
        return self._servers[self.server_host.name]

    @property
    def _store(self) -> StoreFacts:
        return self.held_store.facts(StoreFacts)

    def link(self, source: RemoteHost | None = None, target: RemoteHost | None = None) -> HostLink:
        """Return the link from `source` (by default the client) to `target` (by default the server); the first call opens it."""
        source, target = source or self.client_host, target or self.server_host
        pair = (source.name, target.name)
        if pair not in self._links:
            self._links[pair] = new_link = HostLink(source, target)
            self._stack.callback(new_link.close)
        return self._links[pair]

    def _open_replication(self, spec: ReplicasSpec) -> OpenHostGroups:
        replicas = []
        for host in map(self._hosts.__getitem__, self.role_hosts.replicas):
            # A replica may be on the client's host only if the client runs on the primary's; it then gets the server's share of CPUs.
            cpus = self._shares[host.name].server if host is self.client_host else cpus_of(host)
            replicas.append((host, cpus))

        def link(source: RemoteHost, target: RemoteHost) -> tuple[HostLink, LinkReceipt]:
            return self.link(source, target), self._distance_by_pair[source.name, target.name].facts()

        return host_group_kind(spec).open(self._server_order(self.server_host), self.server_host, replicas, link)

    def _probe_path(self, path: NetworkPath) -> LinkReceipt | None:
        """Probe the link between client and server on a path; returns its receipt, None if they are on one host. Raises LabError."""
        if not path.crosses_link:
            return None
        if (hop := self._separate_hop(path)) is None:
            facts = self._current_link_facts()
            if facts is None:
                return None
            receipt = real_link_receipt(self.link().ping(_PINGS), facts)
            if self._other_client_hosts:
                receipt.others = self._probe_other_clients()
            return receipt
        probes = (self.link(target=hop).ping(_PINGS), self.link(hop).ping(_PINGS))
        return combine_receipts(*map(real_link_receipt, probes, self.hop_facts))

    def _probe_other_clients(self) -> list[LinkReceipt]:
        """Probe the link of each further client. Raises LabError."""
        links = [self.link(host) for host in self._other_client_hosts]
        with ThreadPoolExecutor(len(links)) as pool:
            return list(map(real_link_receipt, pool.map(lambda link: link.ping(_PINGS), links), self.client_facts[1:]))

    def _current_link_facts(self) -> LinkReceipt | None:
        """Return the measured facts of the link; in blocks with exchanged roles, the directions are exchanged too."""
        if self.link_facts is None or self.role_hosts == self._initial_roles:
            return self.link_facts
        facts = self.link_facts.model_copy()
        facts.from_host, facts.to_host = self.link_facts.to_host, self.link_facts.from_host
        if facts.goodput_bps is not None and facts.retransmits is not None:
            facts.goodput_bps, facts.retransmits = facts.goodput_bps.swapped, facts.retransmits.swapped
        return facts

    def _watch_interruptions(self, hosts: Iterable[RemoteHost]) -> Callable[[], tuple[Violation, ...]]:
        """Return a function that reports the interruptions of the connections to these hosts since this call."""
        counts_before = {host.name: len(host.within(read_interruptions)) for host in hosts}

        def report_interruptions() -> tuple[Violation, ...]:
            longest_by_host = {
                name: max(self._hosts[name].within(read_interruptions)[count:], default=0)
                for name, count in counts_before.items()
            }
            return tuple(
                violation("host-interrupted", host=name, silence_s=length_ns / 1e9)
                for name, length_ns in longest_by_host.items()
                if length_ns
            )

        return report_interruptions

    def _measure_distances(self) -> tuple[LinkReceipt, ...]:
        """Measure from each client and each replica to the server; in a cluster also between the replicas; with a hop also from the
        client to the hop, and from there to the server. A round trip takes the same time from either end, so one end measures."""
        role_hosts = self.role_hosts
        names = dict.fromkeys((role_hosts.client, *role_hosts.other_clients, *role_hosts.replicas))
        pairs_to_measure = [(name, role_hosts.server) for name in names]
        if self._is_mesh:
            pairs_to_measure += [(high, low) for low, high in combinations(role_hosts.replicas, 2)]
        if role_hosts.hop is not None:
            pairs_to_measure += [(role_hosts.client, role_hosts.hop), (role_hosts.hop, role_hosts.server)]
        for source, target in pairs_to_measure:
            if source != target:
                link = self.link(self._hosts[source], self._hosts[target])
                self._distance_by_pair[source, target] = measure_link(link)
        return tuple(distance.facts() for distance in self._distance_by_pair.values())

    @property
    def link_facts(self) -> LinkReceipt | None:
        """Facts about the network between the first client and the server; None if both are the same host."""
        return next(iter(self.distances), None)

    @property
    def client_facts(self) -> tuple[LinkReceipt, ...]:
        """Facts about the network between each client and the server, beginning with the first client; empty if the
        only client is on the server's host."""
        client_pairs = [
            (client, self._initial_roles.server)
            for client in (self._initial_roles.client, *self._initial_roles.other_clients)
        ]
        return tuple(self._distance_by_pair[pair].facts() for pair in client_pairs if pair in self._distance_by_pair)

    @property
    def hop_facts(self) -> tuple[LinkReceipt, ...]:
        """Facts about the network from client to hop, and from hop to server; empty if the hop has no host of its own."""
        if (hop := self.role_hosts.hop) is None:
            return ()
        hop_pairs = ((self.role_hosts.client, hop), (hop, self.role_hosts.server))
        return tuple(self._distance_by_pair[pair].facts() for pair in hop_pairs)

    @property
    def server_link_facts(self) -> tuple[LinkReceipt, ...]:
        """Facts about the network between the first replica and the server; in a cluster between every two nodes, in the order
        0-1, 0-2, 1-2. Empty without replicas."""
        max_replicas = 0 if self.request.replicas is None else self.request.replicas.max_replicas
        nodes = (self.role_hosts.server, *self.role_hosts.replicas[:max_replicas])
        node_pairs = tuple(combinations(range(len(nodes)), 2))
        linked_nodes = node_pairs if self._is_mesh else node_pairs[:1]
        return tuple(self._distance_by_pair[nodes[high], nodes[low]].facts() for low, high in linked_nodes)

    @property
    def replica_link_facts(self) -> tuple[LinkReceipt, ...]:
        """Facts about the network from each replica to the server; empty without replicas, or in a cluster."""
        if self.request.replicas is None or self._is_mesh:
            return ()
        names = self.role_hosts.replicas[: self.request.replicas.max_replicas]
        return tuple(self._distance_by_pair[name, self.role_hosts.server].facts() for name in names)

    @property
    def _is_mesh(self) -> bool:
        return self.request.replicas is not None and self.request.replicas.mesh

    def clocks(self, host: RemoteHost) -> Clocks:
        return read_clocks(host.spec.address, self._clocks[host.name].facts(int))

    def server(self) -> tuple[str, str]:
        return self._store.kind, self._store.version

    def environment(self) -> RunEnvironment:
        role_hosts = self._initial_roles
        clients = () if role_hosts.client == role_hosts.server else (role_hosts.client, *role_hosts.other_clients)
        client_cpus = number_client_cpus({machine_id(name, self._facts): self._shares[name].client for name in clients})
        return RunEnvironment.model_validate(self._facts[role_hosts.server].as_json()).updated(
            RunEnvironment(
                cpu_count=total_cpus(self._facts),
                testbed="hosts",
                roles=HostRoles(
                    client=role_hosts.client,
                    server=role_hosts.server,
                    others=list(role_hosts.other_clients),
                    replicas=list(role_hosts.replicas),
                    hop=role_hosts.hop,
                    swaps=self.swaps,
                ),
                hosts=dict(self._facts),
                placement=self.request.placement,
                server_cpus=list(self._shares[role_hosts.server].server),
                client_cpus=client_cpus or list(self._shares[role_hosts.client].client),
                data=self._store.data,
                capacity=Capacity(descriptors=self._store.descriptors),
                link=None,
                distances=list(self.distances),
                warnings=list(self.warnings),
            )
        )

    def watch(self) -> _HostsLoad:
        """Observe the load of all hosts during a trial."""
        machines = {name: machine_id(name, self._facts) for name in self._facts}
        return _HostsLoad({host.name: host for host in self._all_hosts()}, machines)

    def begin_block(self, block: int) -> None:
        """Exchange the roles in every other block, so that a difference between the hosts is not taken for one between paths."""
        self.role_hosts = self._initial_roles.swapped if self.swaps and block % 2 else self._initial_roles

    @contextmanager
    def trial_environment(self, factors: Mapping[str, Level]) -> Iterator[HostsTrialEnvironment]:
        path = find_path(PATH.level_in(factors))
        spec = session_spec(factors)
        self.ready()
        client = self.server_host if path.machines == 1 else self.client_host
        placement = PLACEMENT.level_or_none(factors) or self.request.placement
        shares = self._shares[client.name]
        cpus = shares.server if path.machines == 1 and placement == "machines" else shares.client
        with ExitStack() as stack:
            server_group = self._start_server_group(factors, path, spec, client, stack)
            main, *auxiliary_servers = (
                self._connect(started, path, client, work, stack)
                for started, work in self._start_servers(server_group, path, spec, client, stack)
            )
            real = self._probe_path(path)
            server_group.begin()
            for server in (main, *auxiliary_servers):
                server.begin(stack)
            application = self._start_application(factors, client, cpus, (main, *auxiliary_servers), stack)
            level = IDLE.level_in(factors)
            idle = _RemoteIdle.start(level, client, self._participating_hosts(server_group, path, client), stack)
            yield self._build_environment(
                server_group, main, tuple(auxiliary_servers), application, path, factors, client, cpus, real, idle
            )

    def _participating_hosts(
        self, server_group: ServerGroup, path: NetworkPath, client: RemoteHost
    ) -> tuple[RemoteHost, ...]:
        """The hosts that take part in the load of an environment."""
        replicas = self.role_hosts.replicas[: server_group.other_servers or 0]
        hop = () if (separate_hop := self._separate_hop(path)) is None else (separate_hop.name,)
        names = dict.fromkeys((client.name, *self.role_hosts.other_clients, *hop, self.server_host.name, *replicas))
        return tuple(self._hosts[name] for name in names)

    def _start_server_group(
        self,
        factors: Mapping[str, Level],
        path: NetworkPath,
        spec: SessionSpec,
        client: RemoteHost,
        stack: ExitStack,
    ) -> ServerGroup:
        """The main server, alone or with its replicas. Raises LabError, ServerCrashed."""
        if group_kind(factors) is not None:
            assert self._replication is not None, "a request with replicas opens the replication"
            return stack.enter_context(self._replication.open_group(factors, self.request.prepare, self.server()[0]))
        certificates = self._certificates(self.held_store, client, WORK_DIRECTORY) if spec.tls else None
        server = start_server(self.held_store, path.name, spec)
        stack.callback(_stop_server, server)
        return ServerGroup(server, self._store.password, certificates)

    def _start_servers(
        self, server_group: ServerGroup, path: NetworkPath, spec: SessionSpec, client: RemoteHost, stack: ExitStack
    ) -> Iterator[tuple[StartedServer, Path]]:
        """Start the environment's servers, the main one first; yield each with the directory for the files of its path."""
        main_account = (self._store.user, server_group.password, self._store.database)
        yield StartedServer(server_group.running, server_group.certificates, spec, *main_account), WORK_DIRECTORY
        auxiliary_spec = store_session_spec(spec, path)
        for held_store in self._auxiliary_servers.get(self.server_host.name, ()):
            work = _work_directory(held_store.facts(StoreFacts).kind)
            certificates = self._certificates(held_store, client, work) if auxiliary_spec.tls else None
            running = start_server(held_store, path.name, auxiliary_spec)
            stack.callback(_stop_server, running)
            yield StartedServer(running, certificates, auxiliary_spec), work

    def _start_application(
        self,
        factors: Mapping[str, Level],
        client: RemoteHost,
        cpus: Cpus,
        servers: tuple[ConnectedServer, ...],
        stack: ExitStack,
    ) -> RunningApplication | None:
        """Start the real application, if the cell has one, on the load's host and CPUs."""
        application = host_applications().get(str(factors.get("application", "")))
        if application is None:
            return None
        return application.start(client, cpus, THREADS.level_in(factors), servers, stack)

    def _observed_by_host(
        self,
        server_group: ServerGroup,
        connected: tuple[ConnectedServer, ...],
        application: RunningApplication | None,
        client: RemoteHost,
    ) -> dict[str, list[Observed]]:
        """Return the processes whose CPU time belongs to the environment, by host."""
        observed: dict[str, list[Observed]] = {host.name: [] for host in self._all_hosts()}
        for number, server in enumerate(connected):
            if server.running.pid != NO_PID:
                role = server.name if number else MAIN
                observed[self.server_host.name].append(Observed(role=role, pid=server.running.pid))
            for hop in server.endpoint.hops:
                process = cast(RemoteProcess, hop.process)
                observed[process.remote_object.host.name].append(Observed(role="forwarder", pid=process.pid))
        for name, replica in zip(self.role_hosts.replicas, server_group.observed_processes(), strict=False):
            observed[name].append(replica)
        if application is not None:
            observed[client.name].append(application.observed_process)
        return observed

    def _build_environment(
        self,
        server_group: ServerGroup,
        main: ConnectedServer,
        auxiliary_servers: tuple[ConnectedServer, ...],
        application: RunningApplication | None,
        path: NetworkPath,
        factors: Mapping[str, Level],
        client: RemoteHost,
        cpus: Cpus,
        real: LinkReceipt | None,
        idle: _RemoteIdle,
    ) -> HostsTrialEnvironment:
        observed = self._observed_by_host(server_group, (main, *auxiliary_servers), application, client)
        observed_by_host = {
            host.name: (host.launcher(self._shares[host.name].server), tuple(observed[host.name]))
            for host in self._all_hosts()
            if host is not client and observed[host.name]
        }
        host_reports: dict[str, HostReport] = {}
        launcher = client.launcher(cpus)
        assert isinstance(launcher, RemoteLauncher)
        return HostsTrialEnvironment(
            target=main.target,
            protocol=main.protocol,
            user=main.started.user,
            password=main.started.password,
            database=main.started.database,
            client=LoadHosts(
                launcher=launcher,
                other_clients=self._other_launchers(),
                clocks=self.clocks,
                observed_by_host=observed_by_host,
                host_reports=host_reports,
            ),
            observe=tuple(observed[client.name]),
            trust=main.trust,
            server_group=server_group,
            main=main,
            auxiliary_servers=auxiliary_servers,
            application=application,
            link=None,
            rtt_at_rest=None,
            tcp=TcpSettings(),
            connections=connection_count(factors, self.request),
            targets=None,
            idle=idle,
            fetches_server_key=self.user_server is None or self.user_server.login.consent.fetch_server_key,
            real=real,
            host_reports=host_reports,
            interruptions=self._watch_interruptions(self._all_hosts()),
            participants=self._host_receipt(client, self._separate_hop(path), group_kind(factors) is not None),
        )

    def _host_receipt(self, client: RemoteHost, hop: RemoteHost | None, has_replicas: bool) -> HostsReceipt:
        participants = HostsReceipt(client=client.name, server=self.server_host.name)
        if self._other_client_hosts:
            participants.others = list(self.role_hosts.other_clients)
        if hop is not None:
            participants.hop = hop.name
        if has_replicas:
            participants.replicas = list(self.role_hosts.replicas)
        return participants

    def _other_launchers(self) -> tuple[RemoteLauncher, ...]:
        return tuple(host.launcher(self._shares[host.name].client) for host in self._other_client_hosts)

    def _connect(
        self, started: StartedServer, path: NetworkPath, client: RemoteHost, work: Path, stack: ExitStack
    ) -> ConnectedServer:
        """Open the path from the client to a started server. Raises LabError."""
        server, spec = cast(RemoteServer, started.running), started.spec
        context = HostsContext(
            running=server,
            stack=stack,
            work=work,
            client=client,
            server=self.server_host,
            hop=self._separate_hop(path),
            shares=self._shares,
            **started.account,
        )
        endpoint: ClientEndpoint = path.open(context)
        certificates = started.certificates
        tls = (str(certificates.ca), spec.tls_version) if certificates and spec.tls_version else None
        with name_hops_in_errors(path):
            view = (
                server.session_view(client, endpoint_target(endpoint), tls)
                if path.shows_sessions
                else query_hop_view(server)
            )
        if self.user_server is not None:
            # The server may report host names, or a proxy, instead of addresses, and its process is in none of howfar's namespaces.
            # So the receipt records the server's view without checking it.
            expected_client_host, peer_pid = (view.host or "").partition(":")[0], endpoint.peer_pid
            endpoint = replace(
                endpoint, expected_client_host=expected_client_host, peer_pid=None if peer_pid == NO_PID else peer_pid
            )
        return ConnectedServer(started, endpoint, view, context.watch_hops)

    def _certificates(self, held_store: RemoteObject, client: RemoteHost, work: Path) -> CertificatePaths:
        """Copy the CA's certificate to the clients' hosts."""
        ca_certificate, ca_path = held_store.call("certificates"), work / "ca.pem"
        for host in (client, *self._other_client_hosts):
            host.within(ca_path.write_bytes, ca_certificate)
        return CertificatePaths(ca_path, ca_path, ca_path)


def _work_directory(kind: str) -> Path:
    """The directory on each host for the files of an auxiliary server."""
    return WORK_DIRECTORY / KINDS[kind].service


def _split_cpus(cpus: Cpus, is_split: bool) -> Shares:
    """Return the CPUs of each role. `is_split`: each role gets half, because local paths run both roles on this host, and every
    path must have the same CPUs; otherwise each role gets all."""
    return share_cpus(cpus) if is_split else Shares(cpus, cpus)


def _make_directories(directories: Sequence[Path]) -> None:
    for directory in directories:
        directory.mkdir(mode=0o700, exist_ok=True)


def _stop_server(server: RemoteServer) -> None:
    """Stop a server; a server on a lost host has stopped already."""
    with suppress(LabError):
        server.stop()


class _HostsLoad:
    """Observes all hosts during a trial; see `runner.trial.Watch`. Reports the worst value of each figure over the
    hosts, and the number of busy CPUs of all machines together."""

    def __init__(self, hosts: Mapping[str, RemoteHost], machines: Mapping[str, str]) -> None:
        """`machines`: identity of the machine, by host."""
        self._machines = [machines[name] for name in hosts]
        self._load_watches = [host.create(LoadWatch, called="load") for host in hosts.values()]

    def finish(self) -> MachineLoad:
        loads: list[MachineLoad] = [watch.call("finish") for watch in self._load_watches]
        for watch in self._load_watches:
            watch.drop()
        maxima = {
            name: max((value for load in loads if (value := getattr(load, name)) is not None), default=None)
            for name in _LOAD_METRICS
        }
        return MachineLoad(**maxima, busy_cpus=total_busy_cpus(self._machines, loads))


def total_busy_cpus(machines: Sequence[str], loads: Sequence[MachineLoad]) -> float | None:
    """Return the number of busy CPUs of all machines, from the loads of their hosts; None if unknown for a machine."""
    by_machine = dict(zip(machines, loads, strict=True))
    known = [load.busy_cpus for load in by_machine.values() if load.busy_cpus is not None]
    return sum(known) if len(known) == len(by_machine) else None


def machine_id(host: str, facts_by_host: Mapping[str, HostFacts]) -> str:
    """Identity of the machine of a host; several hosts may be one machine."""
    return facts_by_host[host].boot_id or host


def total_cpus(facts_by_host: Mapping[str, HostFacts]) -> int | None:
    """Return the number of CPUs of all machines, each counted once as in `total_busy_cpus`; None if unknown for a machine."""
    by_machine = {machine_id(host, facts_by_host): host_facts.cpu_count for host, host_facts in facts_by_host.items()}
    known = [count for count in by_machine.values() if count is not None]
    return sum(known) if len(known) == len(by_machine) else None


def number_client_cpus(by_machine: Mapping[str, Cpus]) -> list[int]:
    """Return the CPUs of all clients, with numbers that differ between machines and from the server's."""
    return [cpu + _CPU_NUMBER_OFFSET * number for number, cpus in enumerate(by_machine.values(), 1) for cpu in cpus]


@dataclass(frozen=True)
class _RemoteIdle:
    """The idle level of all hosts of an environment; see `lab.trial_environment.Idle`."""

    client: str
    """Name of the first client's host, whose receipt corresponds to the laboratory's."""
    watches: Mapping[str, RemoteObject]

    @classmethod
    def start(cls, level: str, client: RemoteHost, hosts: Sequence[RemoteHost], stack: ExitStack) -> _RemoteIdle:
        """Apply an idle level on the hosts, until the stack closes. Raises LabError."""

        def start(host: RemoteHost) -> RemoteObject:
            if level == "polling":
                stack.callback(host.create(enter_context, keep_polling, called="polling").drop)
            watch = host.create(IdleWatch, level, cpus_of(host), called="idle")
            stack.callback(watch.drop)
            return watch

        with ThreadPoolExecutor(len(hosts)) as pool:
            watches_by_host = dict(zip((host.name for host in hosts), pool.map(start, hosts), strict=True))
        return cls(client.name, watches_by_host)

    def _call_all(self, method: str) -> list[Any]:
        with ThreadPoolExecutor(len(self.watches)) as pool:
            return list(pool.map(lambda watch: watch.call(method), self.watches.values()))

    def begin(self) -> None:
        self._call_all("begin")

    def collect_receipt(self) -> IdleReceipt:
        by_host: dict[str, IdleReceipt] = dict(zip(self.watches, self._call_all("collect_receipt"), strict=True))
        receipt = by_host[self.client].model_copy()
        receipt.hosts = by_host
        return receipt


@dataclass(frozen=True)
class _EmptyWatch:
    """Observes nothing; with a length, returns an empty window, to which the lag of replicas is added. See `testbed.WindowWatch`."""

    length_ns: int | None

    def finish(self) -> Window | None:
        return None if self.length_ns is None else Window(length_ns=self.length_ns, interface="")


@dataclass
class HostsTrialEnvironment(LabTrialEnvironment):
    """The laboratory's trial environment, over a real link; see `howfar.testbed.TrialEnvironment`."""

    real: LinkReceipt | None = None
    """The receipt of the link between the hosts; None if this path does not use the link."""
    host_reports: dict[str, HostReport] = field(default_factory=dict)
    """By host; see `fleet.load.LoadHosts`."""
    participants: HostsReceipt = field(default_factory=HostsReceipt)
    interruptions: Callable[[], tuple[Violation, ...]] = tuple
    """Returns the interruptions of the connections to the hosts since the environment was created."""

    def watch(self, length_ns: int) -> WindowWatch:
        return self.server_group.watch(_EmptyWatch(None if self.server_group.other_servers is None else length_ns))

    def precheck(self, session: Receipt | None = None) -> CollectedReceipt:
        return self._with_hosts(super().precheck(session))

    def collect_receipt(self, session: Receipt | None, load: LoadFacts = NO_FACTS) -> CollectedReceipt:
        collected = self._with_hosts(super().collect_receipt(session, load))
        server, hosts = collected.receipt.server, collected.receipt.hosts
        assert server is not None and hosts is not None, "an environment between hosts has both"
        # howfar also queries a replica set for its positions meanwhile, and a user's own server may have other users.
        is_only_user = self.server_group.other_servers is None and not server.given
        counted, differences = compare_counts(self.main.name, server_metrics(server.counters), load, is_only_user)
        hosts.counted = counted
        return replace(collected, violations=(*collected.violations, *differences, *self.interruptions()))

    def _with_hosts(self, collected: CollectedReceipt) -> CollectedReceipt:
        hosts = self.participants.model_copy()
        hosts.start = dict(self.host_reports)
        receipt = collected.receipt.updated(TrialReceipt(hosts=hosts))
        if self.real is None:
            return CollectedReceipt(receipt, collected.violations)
        receipt.link = self.real
        return CollectedReceipt(receipt, (*collected.violations, *self.real.rtt_change_violations()))


@contextmanager
def open_hosts(
    hosts: Mapping[str, RemoteHost],
    role_hosts: RoleHosts,
    request: LabRequest,
    swaps: bool = False,
    user_server: UserServer | None = None,
) -> Iterator[Hosts]:
    """Open the hosts as a testbed; on exit, stop everything that was started there.

    Raises LabError, ServerMissing, ServerCrashed, PlanError.
    """
    with ExitStack() as stack:
        yield Hosts(hosts, role_hosts, request, stack, swaps, user_server)
