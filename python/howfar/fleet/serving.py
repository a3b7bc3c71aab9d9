"""Servers on the user's hosts, with or without replicas, and PHP-FPM. `Held…` classes run on a host; `Remote…` classes are their
counterparts in the driver."""

from __future__ import annotations

import secrets
import shutil
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from howfar.contract.messages import FastCgi, LinkStats, PageScript, RttResult, ServiceName, Target
from howfar.contract.receipt import LinkReceipt, ServerReceipt, SessionView
from howfar.errors import LabError, PlanError
from howfar.fleet.distances import real_link_receipt
from howfar.fleet.node import WORK_DIRECTORY
from howfar.fleet.ray_driver import HostLink
from howfar.fleet.remote import RemoteHost, RemoteObject
from howfar.fleet.server_facts import RunningFacts, StoreFacts
from howfar.lab.certificates import make_certificates, pinned_context
from howfar.lab.environment import allow_descriptors
from howfar.lab.network import LOOPBACK_ADDRESS, Cpus, Host
from howfar.lab.php.php_fpm import PhpFpm, PhpReply, find_php_fpm
from howfar.lab.replicated_group import ReplicatedGroup, prepare_group, replication_spec
from howfar.lab.replication import ReplicaSet, ReplicationLink, ReplicationSpec
from howfar.lab.replication.dialect import ReplicationDialect, Seed, Source, replication_dialect
from howfar.lab.replication.member import Member
from howfar.lab.replication.replica_set import check_supported, join_members
from howfar.lab.server_group import start_store
from howfar.lab.servers import (
    CertificatePaths,
    RunQuery,
    ServerContext,
    ServerCounts,
    ServerProcess,
    SessionProbe,
    Tables,
    TableServer,
    find_store,
    session_error,
)
from howfar.lab.servers.kinds import find_server
from howfar.paths import find_path
from howfar.paths.path import Row
from howfar.plan.distances import link_name, pairs
from howfar.plan.factors import Level
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
    """Further addresses by which clients reach it, such as a hop's. Its certificate contains them."""

    def on(self, address: str, cpus: Cpus, work: Path) -> ServerOrder:
        """Return the order for another host."""
        return replace(self, address=address, cpus=cpus, work=work)


class HeldServer:
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
        self._server._check_alive("when asked how it sees its client", lost=True)

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    close = stop


class HeldStore(HeldServer):
    """Held on the server's host: a store with its data directory, and one running server at a time."""

    def __init__(self, order: ServerOrder) -> None:
        shutil.rmtree(order.work, ignore_errors=True)
        order.work.mkdir(mode=0o700, parents=True)
        descriptors = allow_descriptors(order.connections)
        self._order = order
        self._store = store = find_store(order.server, order.tables)
        self._certificates: CertificatePaths | None = None
        data = store.prepare(
            ServerContext(order.work, Host("server", None), order.cpus, order.connections, True, order.address)
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

    def __init__(self, held: RemoteObject, facts: RunningFacts) -> None:
        self.held, self._session_probe = held, facts.session_probe
        self.kind, self.version, self.pid = facts.kind, facts.version, facts.pid
        self.port, self.socket = facts.port, facts.socket

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self.held.call("call_server", method, arguments)

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
        return cast(CertificatePaths, self.held.call("certificate_paths"))

    def authority(self) -> bytes:
        return cast(bytes, self.held.call("certificates"))

    def query(self, sql: str, called: str | None = None) -> list[Row]:
        return cast("list[Row]", self._ask("query", sql, *([] if called is None else [called])))

    def collect_receipt(
        self, before: Mapping[str, int], commits: int | None = None
    ) -> tuple[ServerReceipt, tuple[str, ...]]:
        return cast("tuple[ServerReceipt, tuple[str, ...]]", self._ask("collect_receipt", before, commits))

    def session_view(self, client: RemoteHost, target: Target, tls: tuple[str, str] | None) -> SessionView:
        """Return the server's view of a session from the client's host. `tls`: the CA's file there, and the TLS version."""
        try:
            return client.within(_view_session, self._session_probe, target, tls)
        except LabError as error:
            self.held.call("check_alive")
            raise session_error(target, error) from error

    def stop(self) -> None:
        self.held.call("stop")


def _view_session(session_probe: SessionProbe, target: Target, tls: tuple[str, str] | None) -> SessionView:
    context: ssl.SSLContext | None = None
    if tls is not None:
        ca, version = tls
        context = pinned_context(CertificatePaths(Path(ca), Path(ca), Path(ca)), version)
    return session_probe(target, context)


def hold_server(host: RemoteHost, order: ServerOrder) -> RemoteObject:
    """Find, initialise and load the server on its host. Raises ServerMissing, ServerCrashed, LabError."""
    return host.hold(partial(HeldStore, order), timeout_s=PREPARE_TIMEOUT_S, called="server")


def start_server(held: RemoteObject, path_name: str, spec: SessionSpec) -> RemoteServer:
    """Start a fresh server on its host. Raises ServerCrashed, LabError."""
    return RemoteServer(held, held.call("start", path_name, spec, starts=True, timeout_s=_START_TIMEOUT_S))


_INTERVAL_FACTOR = 5.0
"""Factor by which polling intervals are longer than in the laboratory, because each poll of a replica set costs its hosts
milliseconds of CPU in Ray's workers."""
_CALL_TIMEOUT_S = 30.0
"""Time limit of a call, in addition to that of its statement."""


class HeldMember(HeldServer):
    """Held on a member's host: a running server with its own data, and sessions with it."""

    def __init__(self, order: ServerOrder, seed: Seed) -> None:
        shutil.rmtree(order.work, ignore_errors=True)
        order.work.mkdir(mode=0o700, parents=True)
        self._work = order.work
        allow_descriptors(order.connections)
        program = find_server(order.server)
        context = ServerContext(
            order.work, Host(seed.name, None), order.cpus, order.connections, namespaced=True, address=order.address
        )
        self._running = self._table = replication_dialect(program.kind, seed.spec.mode).start_server(
            seed, context, program, order.tables
        )
        self._sessions: dict[str, tuple[ExitStack, RunQuery]] = {}
        self.facts = self._table.password

    def begin(self, timeout_s: float, as_client: bool) -> str:
        stack, key = ExitStack(), secrets.token_hex(4)
        self._sessions[key] = (stack, stack.enter_context(self._table.open_session(timeout_s, as_client=as_client)))
        return key

    def ask(self, key: str, sql: str) -> list[Row]:
        return self._sessions[key][1](sql)

    def end(self, key: str) -> None:
        self._sessions.pop(key)[0].close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._work, ignore_errors=True)


class RemoteMember(RemoteServer):
    """The driver's counterpart of a member's `TableServer`, with the methods that a replica set needs."""

    def __init__(self, held: RemoteObject) -> None:
        super().__init__(held, held.call("describe"))
        self.password = held.facts(str)

    def become_ready(self) -> None:
        self.held.call("call_server", "become_ready", (), timeout_s=PREPARE_TIMEOUT_S)
        self.version = self.held.call("describe").version

    def free_bytes(self) -> int:
        return int(self._ask("free_bytes"))

    def log_lines(self) -> list[str]:
        return list(self._ask("log_lines"))

    def kill(self) -> None:
        self._ask("kill")

    @contextmanager
    def open_session(self, timeout_s: float, *, as_client: bool = False) -> Iterator[RunQuery]:
        key = self.held.call("begin", timeout_s, as_client)
        try:
            yield lambda sql: self.held.call("ask", key, sql, timeout_s=timeout_s + _CALL_TIMEOUT_S)
        finally:
            with suppress(LabError):  # a server that has stopped has no session to end
                self.held.call("end", key)

    def stop(self) -> None:
        """Stop the server and remove its data; on a lost host both are gone already."""
        self.held.drop()


@dataclass(frozen=True)
class RealReplicationLink(ReplicationLink):
    """The real link between the hosts of a replica and of its primary, or of two nodes of a cluster."""

    nodes: tuple[int, int]
    link: HostLink
    facts: LinkReceipt
    """See `distances.HostDistance.facts`."""

    @property
    def name(self) -> str:
        return link_name(*self.nodes)

    @property
    def rtt_ns(self) -> int:
        return self.facts.real_rtt_ns

    def alive(self) -> bool:
        return True

    def sent_bytes(self) -> int | None:
        return None

    def prepare_load(self) -> RttResult:
        return self.link.ping()

    def pid(self) -> int | None:
        return None

    def counters(self) -> LinkStats | None:
        return None

    def build_receipt(self, rtt_at_rest: RttResult, stats: LinkStats | None) -> LinkReceipt:
        return real_link_receipt(rtt_at_rest, self.facts)


def _load_template(order: ServerOrder) -> None:
    """Run on a host: load the tables once, so that later servers only copy the template."""
    HeldStore(order)
    shutil.rmtree(order.work, ignore_errors=True)


class HostsReplication:
    """The hosts, tables and links that all trials with replication share."""

    def __init__(
        self,
        order: ServerOrder,
        primary: RemoteHost,
        replicas: Sequence[tuple[RemoteHost, Cpus]],
        link: Callable[[RemoteHost, RemoteHost], tuple[HostLink, LinkReceipt]],
    ) -> None:
        """`order`: the primary's. `link`: returns the open link from one host to another, and the measured facts about it. Raises
        LabError, ServerMissing, ServerCrashed."""
        self._order, self._primary, self._replicas, self._link = order, primary, replicas, link
        with ThreadPoolExecutor(max(len(replicas), 1)) as pool:
            list(pool.map(self._load_tables, replicas))

    def _load_tables(self, host_and_cpus: tuple[RemoteHost, Cpus]) -> None:
        """Load the tables of a host once, so that members start within seconds of each other."""
        host, cpus = host_and_cpus
        order = self._order.on(host.spec.address, cpus, WORK_DIRECTORY / "tables")
        host.within(_load_template, order, timeout_s=PREPARE_TIMEOUT_S)

    def _check(self, spec: ReplicationSpec, dialect: ReplicationDialect) -> None:
        check_supported(spec, dialect)
        if dialect.copies_primary_data:
            raise PlanError(
                f"a replica of {dialect.kind} begins as a copy of its primary's files, which hosts of your own do not exchange",
                f"Measure MariaDB or MySQL here; the laboratory (without --on) has the replication of {dialect.kind}.",
            )
        if spec.tls:
            raise PlanError(
                "between hosts of your own, replication is not encrypted yet",
                "The laboratory (without --on) encrypts it.",
            )

    @contextmanager
    def serving(self, factors: Mapping[str, Level], prepare: tuple[str, ...], kind: str) -> Iterator[ReplicatedGroup]:
        """Start the replica set that a cell requires, and verify it. Raises LabError, PlanError."""
        spec = replication_spec(factors)
        dialect, secret = replication_dialect(kind, spec.mode), secrets.token_urlsafe(18)
        self._check(spec, dialect)
        address = self._primary.spec.address
        source = Source(address, ServerContext.port_on(dialect.port), secret, None, spec.compression)
        replica_hosts = self._replicas[: spec.replicas]
        if len(replica_hosts) < spec.replicas:
            raise PlanError(
                f"a cell has {spec.replicas} replicas, and {len(replica_hosts)} hosts may be one",
                "Name a host for each: --place replica=c,replica=d.",
            )
        hosts = ((self._primary, self._order.cpus), *replica_hosts)
        nodes = tuple(host.spec.address for host, _ in hosts)
        first = Seed("primary", 0, spec, secret, None, None, str(uuid.uuid4()), nodes, on_hosts=True)
        seeds = [first]
        seeds += [replace(first, name=f"replica{n}", number=n, source=source) for n in range(1, len(hosts))]
        with ExitStack() as stack, ThreadPoolExecutor(len(hosts)) as pool:

            def begin(seed: Seed, host_and_cpus: tuple[RemoteHost, Cpus]) -> Member:
                order = self._order.on(host_and_cpus[0].spec.address, host_and_cpus[1], WORK_DIRECTORY / seed.name)
                held = host_and_cpus[0].hold(
                    partial(HeldMember, order, seed), timeout_s=PREPARE_TIMEOUT_S, called=seed.name
                )
                stack.callback(held.drop)
                return Member(seed.name, cast(TableServer, RemoteMember(held)), dialect, spec)

            primary, *replicas = pool.map(begin, seeds, hosts)
            node_pairs = [(low, high) for low, high in pairs(len(hosts)) if spec.cluster or low == 0]
            links = tuple(
                RealReplicationLink((low, high), *self._link(hosts[high][0], hosts[low][0])) for low, high in node_pairs
            )
            replica_set = ReplicaSet(
                spec, dialect, primary, tuple(replicas), links, poll_interval_factor=_INTERVAL_FACTOR
            )
            join_members(replica_set, [source] * len(replica_hosts))
            yield prepare_group(replica_set, None, factors, prepare, stack)


class HeldPool(PhpFpm):
    """A PHP-FPM pool that ends with this object."""

    def __init__(self, sql: ServiceName, cpus: Cpus, children: int) -> None:
        """Raises MissingError."""
        work = WORK_DIRECTORY / "php"
        work.mkdir(exist_ok=True)
        super().__init__(find_php_fpm(sql), work, Host("application", None).launcher(cpus), children)
        self.facts = self.pid

    def close(self) -> None:
        self.stop()


class RemotePool:
    """See `php_fpm.Pool`."""

    def __init__(self, held: RemoteObject, children: int) -> None:
        self._held, self.children = held, children
        self.pid = held.facts(int)

    def install_page(self, script: PageScript, name: str) -> FastCgi:
        return cast(FastCgi, self._held.call("install_page", script, name))

    def send_request(self, parameters: dict[str, str], timeout_s: float) -> PhpReply:
        return cast(PhpReply, self._held.call("send_request", parameters, timeout_s))

    def check_alive(self, when: str) -> None:
        self._held.call("check_alive", when)

    def child_deaths(self) -> tuple[str, ...]:
        return tuple(self._held.call("child_deaths"))
