"""`Hosts`: the user's own hosts as a testbed. See `howfar.testbed.Testbed`; the laboratory's is `howfar.lab.laboratory.Lab`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, cast

from howfar.engine.messages import Observed
from howfar.errors import LabError, PlanError, ServerMissing
from howfar.fleet.clocks import Clocks, ClockServer, read_clocks
from howfar.fleet.distances import Distance, by_way_of, entered, link_distance, link_moved, real_link, where
from howfar.fleet.given import GivenServer, GivenSide
from howfar.fleet.joined import Link, cpus_of, facts
from howfar.fleet.load import Client
from howfar.fleet.node import WORK, silences
from howfar.fleet.reached import HostsContext
from howfar.fleet.remote import Held, RemoteHost, RemoteLauncher, RemoteProcess
from howfar.fleet.roles import RoleHosts, check_shared
from howfar.fleet.serving import (
    HeldPool,
    HostsReplication,
    RemotePool,
    RemoteServer,
    ServerOrder,
    hold_server,
    start_server,
)
from howfar.lab.counts import both_counts
from howfar.lab.environment import LoadWatch
from howfar.lab.idle import IdleWatch, polling
from howfar.lab.laboratory import PLACEMENTS, connections
from howfar.lab.network import Cpus, Shares, share_cpus
from howfar.lab.php.php_fpm import PhpApplication
from howfar.lab.reached import NO_PID, Reached, Started, behind, hops_view
from howfar.lab.replicated import replicates
from howfar.lab.request import LabRequest
from howfar.lab.servers import CertificatePaths, Tables
from howfar.lab.servers.kinds import KINDS
from howfar.lab.serving import Serving, of_store
from howfar.lab.staged import MAIN, LabStage
from howfar.paths import Endpoint, find_path
from howfar.paths import Path as NetworkPath
from howfar.plan.distances import pairs
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.store.records import FactorValue, MachineLoad, Window
from howfar.store.server_metrics import server_metrics
from howfar.testbed import NO_FACTS, LoadFacts, StageReceipt, WindowWatch

_READY_S = 20.0
_POLL_S = 0.02
_PINGS = 50
_LOAD = ("psi_cpu_some_share", "psi_io_some_share", "steal_share", "load_average_1m")
_OF_A_DIRECTION = ("goodput_bps", "retransmits")
_OTHER_CPUS = 1000
"""Added to CPU numbers once for each preceding machine, so that all CPUs have distinct numbers."""


def check_request(request: LabRequest, clients: int = 1) -> None:
    """Raises PlanError."""
    check_shared(clients, request.paths, request.replicas is not None)
    if request.placement not in PLACEMENTS:
        raise PlanError(f"no placement is called {request.placement!r}", f"Known: {', '.join(PLACEMENTS)}.")


class Hosts:
    """See `howfar.testbed.Testbed`. One server on one host, a client on another; on local paths the client is on the server's host."""

    def __init__(
        self,
        hosts: Mapping[str, RemoteHost],
        place: RoleHosts,
        request: LabRequest,
        ledger: ExitStack,
        swaps: bool = False,
        given: GivenServer | None = None,
    ) -> None:
        """`swaps`: the two hosts exchange their roles from block to block, if both can have them. `given`: the user's own server,
        which runs already; None: one is started for each trial."""
        check_request(request, 1 + len(place.others))
        self.place, self.request, self.given = place, request, given
        self._hosts = {name: hosts[name] for name in place.names}
        self._first = place
        self.warnings: list[str] = []
        self._ledger = ledger
        both_local = any(find_path(name).machines == 1 for name in request.paths)
        self._shares = {
            host.name: _shares(cpus_of(host), both_local and host.name != place.hop) for host in self._both()
        }
        self._facts = {
            host.name: {**host.within(facts), **where(host), "address": host.spec.address} for host in self._both()
        }
        self._clocks: dict[str, Held] = {}
        self._servers: dict[str, Held] = {}
        self._companions: dict[str, tuple[Held, ...]] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._replication: HostsReplication | None = None
        self.swaps = False
        self.ready()
        if swaps:
            self._try_swap()
        self._found: dict[tuple[str, str], Distance] = {}
        self.distances = self._measured_distances()
        if request.replicas is not None:
            self._replication = self._open_replication()

    def _try_swap(self) -> None:
        """Prepare the client's host to be the server's as well; a failure becomes a warning."""
        here, there = self._first.server, self._first.client
        try:
            if len(self._shares[here].server) != len(self._shares[there].server):
                raise LabError("they do not have as many CPUs")
            other = self._serve(self._hosts[there])
            if [other.facts[what] for what in ("kind", "version")] != list(self.server()):
                raise LabError(f"host {there} has {other.facts['kind']} {other.facts['version']}")
        except (LabError, ServerMissing) as error:
            self.warnings.append(f"hosts {here} and {there} did not exchange their roles: {error.message}")
            if (held := self._servers.pop(there, None)) is not None:
                held.drop()
            return
        self.swaps = True

    def _both(self) -> tuple[RemoteHost, ...]:
        return tuple(self._hosts.values())

    @property
    def client_host(self) -> RemoteHost:
        return self._hosts[self.place.client]

    @property
    def server_host(self) -> RemoteHost:
        return self._hosts[self.place.server]

    @property
    def _hop(self) -> RemoteHost | None:
        return None if self.place.hop is None else self._hosts[self.place.hop]

    def _hop_of(self, path: NetworkPath) -> RemoteHost | None:
        """The separate host of this path's program. None: it has none."""
        return self._hop if path.movable else None

    @property
    def _others(self) -> tuple[RemoteHost, ...]:
        return tuple(self._hosts[name] for name in self.place.others)

    def ready(self) -> None:
        """Create everything that a stage needs, and again if a host was lost. Raises LabError."""
        for host in self._both():
            if not host.alive():
                host.join()
                self._clocks.pop(host.name, None)
                self._servers.pop(host.name, None)
                self._companions.pop(host.name, None)
                self._links.clear()
        for host in self._both():
            if host.name not in self._clocks:
                host.within(_make_work, [WORK, *map(_own, self.request.companions)])
                self._clocks[host.name] = host.hold(ClockServer, host.spec.address)
        self._serve(self.server_host)

    def _serve(self, host: RemoteHost) -> Held:
        """The server of a host, with its data. Raises LabError, ServerMissing."""
        request, tables = self.request, self._tables
        if host.name not in self._servers and self.given is not None:
            self._servers[host.name] = host.hold(GivenSide, self.given, tables, request.connections, called="server")
        elif host.name not in self._servers:
            order = self._order(host)
            self._servers[host.name] = hold_server(host, order)
            self._companions[host.name] = tuple(
                hold_server(
                    host, replace(order, server=kind, tables=Tables(0, 0), prepare=(), work=_own(kind) / "server")
                )
                for kind in request.companions
            )
        return self._servers[host.name]

    @property
    def _tables(self) -> Tables:
        return Tables(self.request.tables, self.request.table_size, self.request.contents)

    def _order(self, host: RemoteHost) -> ServerOrder:
        """The order for the main server."""
        cpus, request = self._shares[host.name].server, self.request
        known_by = () if self._hop is None else (self._hop.spec.address,)
        address, prepare = host.spec.address, request.prepare
        return ServerOrder(request.server, self._tables, request.connections, cpus, address, prepare, known_by=known_by)

    @property
    def server_side(self) -> Held:
        return self._servers[self.server_host.name]

    def link(self, source: RemoteHost | None = None, target: RemoteHost | None = None) -> Link:
        """The link from `source` (by default the client) to `target` (by default the server)."""
        source, target = source or self.client_host, target or self.server_host
        ends = (source.name, target.name)
        if ends not in self._links:
            self._links[ends] = made = Link(source, target)
            self._ledger.callback(made.close)
        return self._links[ends]

    def _open_replication(self) -> HostsReplication:
        replicas = []
        for host in map(self._hosts.__getitem__, self.place.replicas):
            # A replica is on the client's host only if the client is on the primary's; it then has the server's share of CPUs.
            own = self._shares[host.name].server if host is self.client_host else cpus_of(host)
            replicas.append((host, own))

        def link(source: RemoteHost, target: RemoteHost) -> tuple[Link, Mapping[str, Any]]:
            return self.link(source, target), self._found[source.name, target.name].facts()

        return HostsReplication(self._order(self.server_host), self.server_host, replicas, link)

    def _probed(self, path: NetworkPath) -> dict[str, Any] | None:
        """The link between client and server on a path, with a probe of it now. None: they are on one host. Raises LabError."""
        if not path.crosses_link:
            return None
        if (hop := self._hop_of(path)) is None:
            facts = self._real()
            if facts is None:
                return None
            real = real_link(self.link().ping(_PINGS), facts)
            return {**real, "others": self._other_probes()} if self._others else real
        probes = (self.link(target=hop).ping(_PINGS), self.link(hop).ping(_PINGS))
        return by_way_of(*map(real_link, probes, self.hop_facts))

    def _other_probes(self) -> list[dict[str, Any]]:
        """Probes from each further client. Raises LabError."""
        links = [self.link(host) for host in self._others]
        with ThreadPoolExecutor(len(links)) as pool:
            return list(map(real_link, pool.map(lambda link: link.ping(_PINGS), links), self.client_facts[1:]))

    def _real(self) -> dict[str, Any] | None:
        """The measured facts of the link, in its direction in this block."""
        if self.link_facts is None or self.place == self._first:
            return self.link_facts
        exchanged = {"to_server": "to_client", "to_client": "to_server"}
        return {
            **self.link_facts,
            "from": self.link_facts["to"],
            "to": self.link_facts["from"],
            **{what: {exchanged[to]: v for to, v in self.link_facts[what].items()} for what in _OF_A_DIRECTION},
        }

    def _interruptions(self, hosts: Iterable[RemoteHost]) -> Callable[[], tuple[str, ...]]:
        """A function that reports to which of these hosts the connection was interrupted from now on."""
        before = {host.name: len(host.within(silences)) for host in hosts}

        def found() -> tuple[str, ...]:
            longest = {name: max(self._hosts[name].within(silences)[n:], default=0) for name, n in before.items()}
            return tuple(
                f"host {name} heard nothing from the machine where howfar runs for {ns / 1e9:.1f} s"
                for name, ns in longest.items()
                if ns
            )

        return found

    def _measured_distances(self) -> tuple[dict[str, Any], ...]:
        """Measure from each client, and each replica, to the server; in a cluster between the replicas too; from the client to a
        hop, and from there to the server. A round trip is the same from either end."""
        place = self.place
        ends = [(name, place.server) for name in dict.fromkeys((place.client, *place.others, *place.replicas))]
        if self._meshed:
            ends += [(high, low) for low, high in combinations(place.replicas, 2)]
        if place.hop is not None:
            ends += [(place.client, place.hop), (place.hop, place.server)]
        for source, target in ends:
            if source != target:
                self._found[source, target] = link_distance(self.link(self._hosts[source], self._hosts[target]))
        return tuple(one.facts() for one in self._found.values())

    @property
    def link_facts(self) -> dict[str, Any] | None:
        """What was measured between the first client and the server. None: they are one host."""
        return next(iter(self.distances), None)

    @property
    def client_facts(self) -> tuple[dict[str, Any], ...]:
        """Facts about the path of each client, the first one's first. Empty: the only one is on the server's host."""
        ends = [(client, self._first.server) for client in (self._first.client, *self._first.others)]
        return tuple(self._found[each].facts() for each in ends if each in self._found)

    @property
    def hop_facts(self) -> tuple[dict[str, Any], ...]:
        """Facts about the paths from the client to the hop, and from there to the server. Empty: no program has its own host."""
        if (hop := self.place.hop) is None:
            return ()
        return self._found[self.place.client, hop].facts(), self._found[hop, self.place.server].facts()

    @property
    def replica_facts(self) -> tuple[dict[str, Any], ...]:
        """Facts about the path between the first replica and the server; in a cluster between every two nodes, in the order of
        `pairs`. Empty: there is no replica."""
        most = 0 if self.request.replicas is None else self.request.replicas.most
        nodes = (self.place.server, *self.place.replicas[:most])
        linked = pairs(len(nodes)) if self._meshed else pairs(len(nodes))[:1]
        return tuple(self._found[nodes[high], nodes[low]].facts() for low, high in linked)

    @property
    def followers(self) -> tuple[dict[str, Any], ...]:
        """Facts about the path from each replica to the server. Empty: there is none, or each pair has its own distance."""
        if self.request.replicas is None or self._meshed:
            return ()
        names = self.place.replicas[: self.request.replicas.most]
        return tuple(self._found[name, self.place.server].facts() for name in names)

    @property
    def _meshed(self) -> bool:
        return self.request.replicas is not None and self.request.replicas.mesh

    def clocks(self, host: RemoteHost) -> Clocks:
        return read_clocks(host.spec.address, int(self._clocks[host.name].facts["port"]))

    def server(self) -> tuple[str, str]:
        return self.server_side.facts["kind"], self.server_side.facts["version"]

    def environment(self) -> dict[str, Any]:
        place = self._first
        clients = () if place.client == place.server else (place.client, *place.others)
        return {
            **self._facts[place.server],
            "cpu_count": all_cpus(self._facts),
            "testbed": "hosts",
            "place": {
                "client": place.client,
                "server": place.server,
                "others": list(place.others),
                "replicas": list(place.replicas),
                "hop": place.hop,
                "swaps": self.swaps,
            },
            "hosts": dict(self._facts),
            "placement": self.request.placement,
            "server_cpus": list(self._shares[place.server].server),
            "client_cpus": numbered({machine_of(name, self._facts): self._shares[name].client for name in clients})
            or list(self._shares[place.client].client),
            "data": self.server_side.facts["data"],
            "capacity": {"descriptors": self.server_side.facts["descriptors"]},
            "link": None,
            "distances": list(self.distances),
            "warnings": list(self.warnings),
        }

    def watch(self) -> _HostsLoad:
        """Observe the load of all hosts during a trial."""
        machines = {name: machine_of(name, self._facts) for name in self._facts}
        return _HostsLoad({host.name: host for host in self._both()}, machines)

    def begin_block(self, block: int) -> None:
        """Exchange the roles in every other block, so that a difference between the hosts does not appear as one between paths."""
        self.place = self._first.swapped if self.swaps and block % 2 else self._first

    @contextmanager
    def stage(self, factors: Mapping[str, FactorValue]) -> Iterator[HostsStage]:
        path = find_path(str(factors["path"]))
        spec = session_spec(factors)
        self.ready()
        client = self.server_host if path.machines == 1 else self.client_host
        placement = str(factors.get("placement", self.request.placement))
        shares = self._shares[client.name]
        cpus = shares.server if path.machines == 1 and placement == "machines" else shares.client
        with ExitStack() as ledger:
            serving = self._serving(factors, path, spec, client, ledger)
            main, *companions = (
                self._reach(started, path, client, work, ledger)
                for started, work in self._started(serving, path, spec, client, ledger)
            )
            real = self._probed(path)
            serving.begin()
            for one in (main, *companions):
                one.begin(ledger)
            application = self._application(factors, client, cpus, (main, *companions), ledger)
            level = str(factors.get("idle", "as-found"))
            idle = _RemoteIdle.hold(level, client, self._parties(serving, path, client), ledger)
            yield self._stage(serving, main, tuple(companions), application, path, factors, client, cpus, real, idle)

    def _parties(self, serving: Serving, path: NetworkPath, client: RemoteHost) -> tuple[RemoteHost, ...]:
        """The hosts that take part in the load of a stage."""
        replicas = () if serving.pair is None else self.place.replicas[: len(serving.pair.replicas)]
        hop = () if (own := self._hop_of(path)) is None else (own.name,)
        names = dict.fromkeys((client.name, *self.place.others, *hop, self.server_host.name, *replicas))
        return tuple(self._hosts[name] for name in names)

    def _serving(
        self,
        factors: Mapping[str, FactorValue],
        path: NetworkPath,
        spec: SessionSpec,
        client: RemoteHost,
        ledger: ExitStack,
    ) -> Serving:
        """The main server, alone or with its replicas. Raises LabError, ServerCrashed."""
        if replicates(factors):
            assert self._replication is not None, "who asks for replicas named their hosts"
            return ledger.enter_context(self._replication.serving(factors, self.request.prepare, self.server()[0]))
        certificates = self._certificates(self.server_side, client, WORK) if spec.tls else None
        server = start_server(self.server_side, path.name, spec)
        ledger.callback(_stop, server)
        return Serving(server, self.server_side.facts["password"], certificates)

    def _started(
        self, serving: Serving, path: NetworkPath, spec: SessionSpec, client: RemoteHost, ledger: ExitStack
    ) -> Iterator[tuple[Started, Path]]:
        """The stage's servers, the main one first, each with the directory of its path."""
        facts = self.server_side.facts
        yield (
            Started(serving.running, serving.certificates, spec, facts["user"], serving.password, facts["database"]),
            WORK,
        )
        mine = of_store(spec, path)
        for side in self._companions.get(self.server_host.name, ()):
            work = _own(side.facts["kind"])
            certificates = self._certificates(side, client, work) if mine.tls else None
            running = start_server(side, path.name, mine)
            ledger.callback(_stop, running)
            yield Started(running, certificates, mine), work

    def _application(
        self,
        factors: Mapping[str, FactorValue],
        client: RemoteHost,
        cpus: Cpus,
        servers: tuple[Reached, ...],
        ledger: ExitStack,
    ) -> PhpApplication | None:
        """The real application, if the cell has one, on the load's host and CPUs."""
        if factors.get("application") != "php":
            return None
        pool = client.hold(HeldPool, servers[0].name, cpus, int(factors.get("threads", 1)), called="php")
        ledger.callback(pool.drop)
        return PhpApplication(RemotePool(pool), pool.call("become_ready"), servers)

    def _observed(
        self, serving: Serving, reached: tuple[Reached, ...], application: PhpApplication | None, client: RemoteHost
    ) -> dict[str, list[Observed]]:
        """By host: processes whose CPU time belongs to the stage."""
        found: dict[str, list[Observed]] = {host.name: [] for host in self._both()}
        for number, one in enumerate(reached):
            if one.running.pid != NO_PID:
                role = one.name if number else MAIN
                found[self.server_host.name].append(Observed(role=role, pid=one.running.pid))
            for hop in one.endpoint.hops:
                process = cast(RemoteProcess, hop.process)
                found[process.held.host.name].append(Observed(role="forwarder", pid=process.pid))
        for name, replica in zip(self.place.replicas, serving.observed(), strict=False):
            found[name].append(replica)
        if application is not None:
            found[client.name].append(application.observed)
        return found

    def _stage(
        self,
        serving: Serving,
        main: Reached,
        companions: tuple[Reached, ...],
        application: PhpApplication | None,
        path: NetworkPath,
        factors: Mapping[str, FactorValue],
        client: RemoteHost,
        cpus: Cpus,
        real: dict[str, Any] | None,
        idle: _RemoteIdle,
    ) -> HostsStage:
        by_host = self._observed(serving, (main, *companions), application, client)
        elsewhere = {
            host.name: (host.launcher(self._shares[host.name].server), tuple(by_host[host.name]))
            for host in self._both()
            if host is not client and by_host[host.name]
        }
        told: dict[str, dict[str, Any]] = {}
        launcher = client.launcher(cpus)
        assert isinstance(launcher, RemoteLauncher)
        return HostsStage(
            target=main.target,
            protocol=main.protocol,
            user=main.started.user,
            password=main.started.password,
            database=main.started.database,
            client=Client(
                launcher=launcher,
                others=self._other_launchers(),
                clocks=self.clocks,
                elsewhere=elsewhere,
                told=told,
            ),
            observe=tuple(by_host[client.name]),
            trust=main.trust,
            serving=serving,
            main=main,
            companions=companions,
            application=application,
            link=None,
            at_rest=None,
            tcp={},
            connections=connections(factors),
            scene=None,
            idle=idle,
            fetches_server_key=self.given is None or self.given.login.consent.fetch_server_key,
            real=real,
            told=told,
            interruptions=self._interruptions(self._both()),
            parties={
                "client": client.name,
                **({"others": list(self.place.others)} if self._others else {}),
                **({} if (hop := self._hop_of(path)) is None else {"hop": hop.name}),
                "server": self.server_host.name,
                **({"replicas": list(self.place.replicas)} if replicates(factors) else {}),
            },
        )

    def _other_launchers(self) -> tuple[RemoteLauncher, ...]:
        return tuple(host.launcher(self._shares[host.name].client) for host in self._others)

    def _reach(self, started: Started, path: NetworkPath, client: RemoteHost, work: Path, ledger: ExitStack) -> Reached:
        """Raises LabError."""
        server, spec = cast(RemoteServer, started.running), started.spec
        context = HostsContext(
            running=server,
            ledger=ledger,
            work=work,
            client=client,
            server=self.server_host,
            hop=self._hop_of(path),
            shares=self._shares,
            **started.account,
        )
        endpoint: Endpoint = path.open(context)
        certificates = started.certificates
        tls = (str(certificates.ca), spec.tls_version) if certificates and spec.tls_version else None
        with behind(path):
            view = server.session_view(client, endpoint.connection, tls) if path.shows_sessions else hops_view(server)
        if self.given is not None:
            # The server may see names, or a proxy, in place of addresses, and its process is in no namespace of ours: the receipt has
            # what it sees, and nothing is checked.
            seen_from, answers = str(view["host"]).partition(":")[0], endpoint.peer_pid
            endpoint = replace(endpoint, seen_from=seen_from, peer_pid=None if answers == NO_PID else answers)
        return Reached(started, endpoint, view, context.watch_hops)

    def _certificates(self, side: Held, client: RemoteHost, work: Path) -> CertificatePaths:
        """The authority's certificate as a file on the client's host."""
        authority, ca = side.call("certificates"), work / "ca.pem"
        for host in (client, *self._others):
            host.within(ca.write_bytes, authority)
        return CertificatePaths(ca, ca, ca)


def _own(kind: str) -> Path:
    """The directory on each host for the files of a further server."""
    return WORK / KINDS[kind].service


def _shares(cpus: Cpus, halved: bool) -> Shares:
    """The CPUs of each role: half each if some path is local, so that every path has the same; otherwise all."""
    return share_cpus(cpus) if halved else Shares(cpus, cpus)


def _make_work(directories: Sequence[Path]) -> None:
    for directory in directories:
        directory.mkdir(mode=0o700, exist_ok=True)


def _stop(server: RemoteServer) -> None:
    """Stop a server; one on a lost host has stopped already."""
    try:
        server.stop()
    except LabError:
        return


class _HostsLoad:
    """A `runner.trial.Watch` that returns the worst host's figures, and the number of busy CPUs of all machines."""

    def __init__(self, hosts: Mapping[str, RemoteHost], machines: Mapping[str, str]) -> None:
        """`machines`: identity of the machine, by host."""
        self._machines = [machines[name] for name in hosts]
        self._held = [host.hold(LoadWatch, called="load") for host in hosts.values()]

    def finish(self) -> MachineLoad:
        found: list[MachineLoad] = [one.call("finish") for one in self._held]
        for one in self._held:
            one.drop()
        worst = {
            name: max((v for each in found if (v := getattr(each, name)) is not None), default=None) for name in _LOAD
        }
        return MachineLoad(**worst, busy_cpus=all_busy(self._machines, found))


def all_busy(machines: Sequence[str], loads: Sequence[MachineLoad]) -> float | None:
    """Number of busy CPUs of all machines, of which one may be several hosts. None: unknown for one."""
    by_machine = dict(zip(machines, loads, strict=True))
    known = [load.busy_cpus for load in by_machine.values() if load.busy_cpus is not None]
    return sum(known) if len(known) == len(by_machine) else None


def machine_of(host: str, facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Identity of the machine of a host; several hosts may be one machine. `facts`: by host."""
    return str(facts[host]["boot_id"] or host)


def all_cpus(facts: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Number of CPUs of all machines, as `all_busy` counts them. None: unknown for one."""
    by_machine = {machine_of(host, facts): found["cpu_count"] for host, found in facts.items()}
    return None if None in by_machine.values() else sum(by_machine.values())


def numbered(by_machine: Mapping[str, Cpus]) -> list[int]:
    """The CPUs of all clients together, numbered differently from the server's."""
    return [cpu + _OTHER_CPUS * number for number, cpus in enumerate(by_machine.values(), 1) for cpu in cpus]


@dataclass(frozen=True)
class _RemoteIdle:
    """See `lab.staged.Idle`; for all hosts of a stage."""

    client: str
    """The first client's host; its receipt corresponds to that of the laboratory."""
    held: Mapping[str, Held]

    @classmethod
    def hold(cls, level: str, client: RemoteHost, hosts: Sequence[RemoteHost], ledger: ExitStack) -> _RemoteIdle:
        """Raises LabError."""

        def hold(host: RemoteHost) -> Held:
            if level == "polling":
                ledger.callback(host.hold(entered, polling, called="polling").drop)
            held = host.hold(IdleWatch, level, cpus_of(host), called="idle")
            ledger.callback(held.drop)
            return held

        with ThreadPoolExecutor(len(hosts)) as pool:
            found = dict(zip((host.name for host in hosts), pool.map(hold, hosts), strict=True))
        return cls(client.name, found)

    def _ask(self, method: str) -> dict[str, Any]:
        with ThreadPoolExecutor(len(self.held)) as pool:
            return dict(zip(self.held, pool.map(lambda one: one.call(method), self.held.values()), strict=True))

    def begin(self) -> None:
        self._ask("begin")

    def receipt(self) -> dict[str, Any]:
        found = self._ask("receipt")
        return {**found[self.client], "hosts": found}


class _NoWatch:
    """See `testbed.WindowWatch`."""

    def finish(self) -> Window | None:
        return None


@dataclass(frozen=True)
class _LagAlone:
    """See `testbed.WindowWatch`: to be filled with the lag of replicas."""

    length_ns: int

    def finish(self) -> Window:
        return Window(length_ns=self.length_ns, interface="")


@dataclass
class HostsStage(LabStage):
    """See `howfar.testbed.Stage`: the laboratory's, over a real link."""

    real: dict[str, Any] | None = None
    """The receipt of the link between the hosts. None: this path does not use it."""
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By host; see `fleet.load.Client`."""
    parties: dict[str, Any] = field(default_factory=dict)
    interruptions: Callable[[], tuple[str, ...]] = tuple
    """Interruptions of the connection to a host, since the stage was created."""

    def watch(self, length_ns: int) -> WindowWatch:
        return self.serving.watch(_NoWatch() if self.pair is None else _LagAlone(length_ns))

    def begun(self, session: Mapping[str, Any] | None = None) -> StageReceipt:
        return self._with_hosts(super().begun(session))

    def obtained(self, session: Mapping[str, Any], load: LoadFacts = NO_FACTS) -> StageReceipt:
        found = self._with_hosts(super().obtained(session, load))
        server = found.receipt[MAIN]
        # A pair's servers are queried for their positions meanwhile, and other users of a given server are unknown.
        alone = self.pair is None and not server.get("given")
        counted, differs = both_counts(self.main.name, server_metrics(server["counters"]), load, alone)
        found.receipt["hosts"]["counted"] = counted
        return replace(found, violations=(*found.violations, *differs, *self.interruptions()))

    def _with_hosts(self, found: StageReceipt) -> StageReceipt:
        receipt = {**found.receipt, "hosts": {**self.parties, "start": dict(self.told)}}
        if self.real is None:
            return StageReceipt(receipt, found.violations)
        return StageReceipt({**receipt, "link": self.real}, (*found.violations, *link_moved(self.real)))


@contextmanager
def open_hosts(
    hosts: Mapping[str, RemoteHost],
    place: RoleHosts,
    request: LabRequest,
    swaps: bool = False,
    given: GivenServer | None = None,
) -> Iterator[Hosts]:
    """Raises LabError, ServerMissing, ServerCrashed, PlanError."""
    with ExitStack() as ledger:
        yield Hosts(hosts, place, request, ledger, swaps, given)
