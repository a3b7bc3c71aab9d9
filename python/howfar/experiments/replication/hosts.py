"""Primaries with their replicas on the user's hosts. `Hosted…` classes run on a host; `Remote…` classes are their counterparts in the
driver."""

from __future__ import annotations

import secrets
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from howfar.contract.messages import LinkStats, RttResult
from howfar.contract.receipt import LinkReceipt
from howfar.errors import LabError, PlanError
from howfar.experiments.replication.distances import link_name, pairs
from howfar.experiments.replication.lab import ReplicaSet, ReplicationLink, ReplicationSpec
from howfar.experiments.replication.lab.dialect import ReplicationDialect, Seed, Source, replication_dialect
from howfar.experiments.replication.lab.member import Member
from howfar.experiments.replication.lab.replica_set import check_supported, join_members
from howfar.experiments.replication.lab.replicated_group import ReplicatedGroup, prepare_group, replication_spec
from howfar.experiments.replication.server_groups import REPLICAS
from howfar.fleet.distances import real_link_receipt
from howfar.fleet.node import WORK_DIRECTORY
from howfar.fleet.ray_driver import HostLink
from howfar.fleet.remote import RemoteHost, RemoteObject
from howfar.fleet.server_group import HostGroupKind, LinkBetween
from howfar.fleet.serving import PREPARE_TIMEOUT_S, HostedServer, HostedStore, RemoteServer, ServerOrder
from howfar.lab.environment import allow_descriptors
from howfar.lab.network import Cpus, Host
from howfar.lab.servers import RunQuery, ServerContext, TableServer
from howfar.lab.servers.kinds import find_server
from howfar.paths.path import Row
from howfar.plan.factor import Level

_POLL_INTERVAL_FACTOR = 5.0
"""Factor by which polling intervals are longer than in the laboratory, because each poll of a replica set costs its hosts
milliseconds of CPU in Ray's workers."""
_CALL_TIMEOUT_S = 30.0
"""Time limit of a call, in addition to that of its statement."""


class HostedMember(HostedServer):
    """Runs on a member's host: a running server with its own data, and sessions with it."""

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
        """Open a session and return its key."""
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

    def __init__(self, remote_object: RemoteObject) -> None:
        super().__init__(remote_object, remote_object.call("describe"))
        self.password = remote_object.facts(str)

    def become_ready(self) -> None:
        self.remote_object.call("call_server", "become_ready", (), timeout_s=PREPARE_TIMEOUT_S)
        self.version = self.remote_object.call("describe").version

    def free_bytes(self) -> int:
        return int(self._ask("free_bytes"))

    def log_lines(self) -> list[str]:
        return list(self._ask("log_lines"))

    def kill(self) -> None:
        self._ask("kill")

    @contextmanager
    def open_session(self, timeout_s: float, *, as_client: bool = False) -> Iterator[RunQuery]:
        key = self.remote_object.call("begin", timeout_s, as_client)
        try:
            yield lambda sql: self.remote_object.call("ask", key, sql, timeout_s=timeout_s + _CALL_TIMEOUT_S)
        finally:
            with suppress(LabError):  # a server that has stopped has no session to end
                self.remote_object.call("end", key)

    def stop(self) -> None:
        """Stop the server and remove its data; on a lost host both are gone already."""
        self.remote_object.drop()


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
    """Run on a host: load the tables once into a template, which later servers only copy."""
    HostedStore(order)
    shutil.rmtree(order.work, ignore_errors=True)


class HostsReplication:
    """The hosts, tables and links that all trials with replication share."""

    def __init__(
        self,
        order: ServerOrder,
        primary: RemoteHost,
        replicas: Sequence[tuple[RemoteHost, Cpus]],
        link: LinkBetween,
    ) -> None:
        """`order`: the primary's. Raises LabError, ServerMissing, ServerCrashed."""
        self._order, self._primary, self._replicas, self._link = order, primary, replicas, link
        with ThreadPoolExecutor(max(len(replicas), 1)) as pool:
            list(pool.map(self._load_tables, replicas))

    def _load_tables(self, host_and_cpus: tuple[RemoteHost, Cpus]) -> None:
        """Load the tables of a host once, so that members start within seconds of each other."""
        host, cpus = host_and_cpus
        order = self._order.for_host(host.spec.address, cpus, WORK_DIRECTORY / "tables")
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
    def open_group(
        self, factors: Mapping[str, Level], prepare: tuple[str, ...], kind: str
    ) -> Iterator[ReplicatedGroup]:
        """Start the replica set that a cell requires, and verify it. Raises LabError, PlanError."""
        spec = replication_spec(factors)
        dialect, secret = replication_dialect(kind, spec.mode), secrets.token_urlsafe(18)
        self._check(spec, dialect)
        address = self._primary.spec.address
        source = Source(address, ServerContext.port_on(dialect.port), secret, None, spec.compression)
        replica_hosts = self._replicas[: spec.replicas]
        if len(replica_hosts) < spec.replicas:
            raise PlanError(
                f"a cell has {spec.replicas} replicas, but only {len(replica_hosts)} hosts may be replicas",
                "Name a host for each: --place replica=c,replica=d.",
            )
        hosts_and_cpus = ((self._primary, self._order.cpus), *replica_hosts)
        nodes = tuple(host.spec.address for host, _ in hosts_and_cpus)
        primary_seed = Seed("primary", 0, spec, secret, None, None, str(uuid.uuid4()), nodes, on_hosts=True)
        seeds = [primary_seed]
        seeds += [
            replace(primary_seed, name=f"replica{n}", number=n, source=source) for n in range(1, len(hosts_and_cpus))
        ]
        with ExitStack() as stack, ThreadPoolExecutor(len(hosts_and_cpus)) as pool:

            def start_member(seed: Seed, host_and_cpus: tuple[RemoteHost, Cpus]) -> Member:
                order = self._order.for_host(
                    host_and_cpus[0].spec.address, host_and_cpus[1], WORK_DIRECTORY / seed.name
                )
                remote_object = host_and_cpus[0].create(
                    partial(HostedMember, order, seed), timeout_s=PREPARE_TIMEOUT_S, called=seed.name
                )
                stack.callback(remote_object.drop)
                return Member(seed.name, cast(TableServer, RemoteMember(remote_object)), dialect, spec)

            primary, *replicas = pool.map(start_member, seeds, hosts_and_cpus)
            node_pairs = [(low, high) for low, high in pairs(len(hosts_and_cpus)) if spec.cluster or low == 0]
            links = tuple(
                RealReplicationLink((low, high), *self._link(hosts_and_cpus[high][0], hosts_and_cpus[low][0]))
                for low, high in node_pairs
            )
            replica_set = ReplicaSet(
                spec, dialect, primary, tuple(replicas), links, poll_interval_factor=_POLL_INTERVAL_FACTOR
            )
            join_members(replica_set, [source] * len(replica_hosts))
            yield prepare_group(replica_set, None, factors, prepare, stack)


SERVER_GROUPS = (HostGroupKind(REPLICAS, HostsReplication),)
