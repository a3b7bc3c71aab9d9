"""The requested replication, and the hosts of the replicas with their links."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from howfar.contract.messages import LONGEST_NS, LinkStats, Outage, RttResult
from howfar.contract.receipt import LinkCalibration, LinkReceipt, TcpSettings
from howfar.contract.replication_receipt import RequestedReplication
from howfar.errors import PlanError
from howfar.experiments.replication.distances import pairs
from howfar.lab.link import DIRECTIONS, DirectionName, Link, LinkSpec, open_link
from howfar.lab.link.backends import DEFAULT
from howfar.lab.link.receipt import link_receipt
from howfar.lab.network import (
    MAX_LINKS,
    MAX_REPLICAS,
    Cpus,
    Host,
    Network,
    Shares,
    TcpPreset,
    assign_node_addresses,
    join_hosts,
    join_replica,
    size_buffers,
    usable_cpus,
)
from howfar.lab.window_network import open_net_file, parse_traffic


@dataclass(frozen=True)
class ReplicaSetContext:
    """Resources of a replica set: directory, network (its `server` is the primary's host), CPUs, number of clients."""

    work: Path
    network: Network
    shares: Shares
    connections: int
    backend: str = DEFAULT
    tcp: TcpPreset = "tuned"
    timeout_s: float = 30.0
    """Time limit, in addition to round trips, for a replica to connect or to catch up, and for a commit outside the load."""

    @property
    def replica_cpus(self) -> Cpus:
        """CPUs for the replicas: those that neither client nor primary uses; if there are none, the client's, never the primary's."""
        used_cpus = {*self.shares.client, *self.shares.server}
        return tuple(cpu for cpu in usable_cpus() if cpu not in used_cpus) or self.shares.client


class ReplicationLink(ABC):
    """The link between a replica and its primary, or between two replicas of a cluster. The replica opens the connection, so it is
    the link's client: the primary's data goes `to_client`, acknowledgements go `to_server`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the replica, or the names of both replicas."""

    @property
    @abstractmethod
    def rtt_ns(self) -> int:
        """The requested RTT, or for a real link the measured one."""

    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    def sent_bytes(self) -> int | None:
        """Bytes that the primary's host has sent to the replica since their interfaces were created; None if this link's bytes are
        not counted separately."""

    @abstractmethod
    def prepare_load(self) -> RttResult:
        """Measure the link without load, before the load, and reset its counters. Raises LinkFailed, EngineError."""

    @abstractmethod
    def pid(self) -> int | None:
        """PID of the process that emulates the link, for its CPU time; None if there is none."""

    @abstractmethod
    def counters(self) -> LinkStats | None: ...

    @abstractmethod
    def build_receipt(self, rtt_at_rest: RttResult, stats: LinkStats | None) -> LinkReceipt: ...

    def cut(self, directions: Iterable[DirectionName] = DIRECTIONS) -> None:
        raise PlanError("a real link cannot be cut", "Measure faults in the laboratory (without --on).")

    def restore(self) -> None:
        raise PlanError("a real link cannot be mended", "Measure faults in the laboratory (without --on).")


@dataclass(frozen=True)
class EmulatedReplicationLink(ReplicationLink):
    """An emulated link between the replica's host and the primary's, or between two replicas' hosts."""

    network: Network
    emulated: Link
    tcp: TcpPreset
    nodes: tuple[int, int]
    """Numbers of both nodes; the primary is 0, and the smaller number is the link's server."""

    @property
    def name(self) -> str:
        return EmulatedReplicationLink.link_name(self.network, self.nodes)

    @staticmethod
    def link_name(network: Network, nodes: tuple[int, int]) -> str:
        """The name of the link: the replica's, or both replicas'."""
        return network.client.name if nodes[0] == 0 else f"{network.server.name}-{network.client.name}"

    @property
    def host(self) -> Host:
        """The replica's host."""
        return self.network.client

    @property
    def rtt_ns(self) -> int:
        return self.emulated.spec.rtt_ns

    def alive(self) -> bool:
        return self.emulated.alive()

    def sent_bytes(self) -> int | None:
        with closing(open_net_file(self.network.server, "dev")) as file:
            interface_traffic = parse_traffic(file.read(), self.network.ends.server_device)
        assert interface_traffic is not None, "a link has a device at each end"
        return interface_traffic.sent_bytes

    def prepare_load(self) -> RttResult:
        rtt_at_rest = self.emulated.measure_rtt_at_rest()
        self.emulated.counters(reset=True)
        return rtt_at_rest

    def pid(self) -> int | None:
        return self.emulated.pid

    def counters(self) -> LinkStats | None:
        return self.emulated.counters()

    def build_receipt(self, rtt_at_rest: RttResult, stats: LinkStats | None) -> LinkReceipt:
        tcp = TcpSettings(preset=self.tcp, congestion_control=self.network.congestion_control)
        return link_receipt(self.emulated, rtt_at_rest, stats, tcp)

    def shape(self, spec: LinkSpec) -> None:
        """Set the link to `spec` while it is idle. Raises LinkFailed, EngineError."""
        size_buffers(self.network, spec.bdp_bytes, self.tcp)
        self.emulated.shape(spec)

    def cut(self, directions: Iterable[DirectionName] = DIRECTIONS) -> None:
        """Drop all packets in these directions from now on; neither end gets an error. Raises LinkFailed."""
        spec = self.emulated.spec
        for name in directions:
            direction = replace(spec.direction(name), outages=(Outage(at_ns=0, for_ns=LONGEST_NS),))
            spec = spec.with_direction(name, direction)
        self.emulated.change(spec, 0)

    def restore(self) -> None:
        """Restore the link as it was before `cut`. Raises LinkFailed."""
        self.emulated.change(self.emulated.spec, 0)


@contextmanager
def open_replication_links(
    context: ReplicaSetContext,
    count: int,
    spec: LinkSpec,
    calibrations: Mapping[str, Mapping[LinkSpec, LinkCalibration]] | None = None,
    *,
    mesh: bool = False,
) -> Iterator[tuple[EmulatedReplicationLink, ...]]:
    """Create `count` hosts, each joined to the primary's host by a calibrated link; call in the sandbox. `mesh`: also join every two
    of them, and give each host an address that all other hosts can reach. `calibrations`: those of earlier links, by name. The links
    to the primary come first in the result. Raises PlanError, LinkFailed, EngineError."""
    replica_pairs = [(low, high) for low, high in pairs(count + 1) if low] if mesh else []
    if count + len(replica_pairs) > MAX_LINKS:
        raise PlanError(f"a cluster of {count + 1} nodes needs more than {MAX_LINKS} links", "Use at most 6 nodes.")
    primary_cpus, replica_cpus = context.shares.server, context.replica_cpus
    with ExitStack() as stack:
        links: list[EmulatedReplicationLink] = []

        def add_link(network: Network, nodes: tuple[int, int], shares: Shares) -> None:
            size_buffers(network, spec.bdp_bytes, context.tcp)
            link = EmulatedReplicationLink(
                network,
                stack.enter_context(
                    open_link(
                        network,
                        spec,
                        network.client.launcher(shares.client),
                        network.server.launcher(shares.server),
                        (calibrations or {}).get(EmulatedReplicationLink.link_name(network, nodes)),
                        backend=context.backend,
                        with_goodput=False,
                    )
                ),
                context.tcp,
                nodes,
            )
            if mesh:
                assign_node_addresses(network, node_address(nodes[1]), node_address(nodes[0]))
            links.append(link)

        shares = Shares(client=replica_cpus, server=primary_cpus)
        for number in range(1, count + 1):
            add_link(join_replica(context.network, stack, number, shares), (0, number), shares)
        hosts = [context.network.server, *(link.host for link in links)]
        for number, (low, high) in enumerate(replica_pairs, count + 1):
            shares = Shares(client=replica_cpus, server=replica_cpus)
            add_link(join_hosts(context.network, hosts[high], hosts[low], number, shares), (low, high), shares)
        yield tuple(links)


def node_address(number: int) -> str:
    """Address of node `number` of a cluster, the same on all its links."""
    return f"10.78.0.{number + 1}"


Mode = Literal["none", "async", "semi_sync", "galera", "group", "group-leader"]
WaitPoint = Literal["AFTER_SYNC", "AFTER_COMMIT", "remote_write", "on", "remote_apply"]
"""The point up to which a replica must be before a commit returns, by the servers' own names: first those of MariaDB and MySQL, then
those of PostgreSQL (`synchronous_commit`)."""
Durability = Literal["strict", "relaxed", "off"]
Compression = Literal["zlib", "zstd"]
FOREVER_MS = 3_600_000
"""A timeout that is longer than any trial, so that a semi-synchronous primary never continues without its replicas."""


@dataclass(frozen=True)
class LogFlushing:
    """A server's settings for flushing its logs, the same on primary and replicas."""

    flush_log_at_commit: int
    sync_binlog: int
    flush_method: str | None
    """None for the server's default."""


LOG_FLUSHING: dict[Durability, LogFlushing] = {
    "strict": LogFlushing(1, 1, None),
    "relaxed": LogFlushing(2, 0, None),
    "off": LogFlushing(0, 0, "nosync"),
}


class ReplicationSpec(RequestedReplication):
    """The requested replication, with the values that servers know."""

    mode: Mode = "semi_sync"
    wait_point: WaitPoint = "AFTER_SYNC"
    durability: Durability = "strict"
    compression: Compression | None = None

    def with_timeout(self, timeout_ms: int) -> ReplicationSpec:
        """The same with another time after which a commit continues without acknowledgement."""
        return self.model_copy(update={"timeout_ms": timeout_ms})

    @property
    def acknowledgements_needed(self) -> int:
        """Number of other servers that must answer before a commit returns. The nearest servers answer first, so they determine how
        long it waits."""
        if self.mode == "galera":
            return self.replicas
        return (self.replicas + 1) // 2 if self.cluster else self.wait_for if self.semi_sync else 0

    @property
    def log_flushing(self) -> LogFlushing:
        return LOG_FLUSHING[self.durability]

    def check(self) -> None:
        """Check the request. Raises PlanError for a combination that makes no sense on any server."""
        if (self.mode == "none") != (self.replicas == 0):
            raise PlanError(
                f"replication {self.mode} with {self.replicas} replicas makes no sense",
                "`none` has no replica; the other modes have one or more.",
            )
        if self.replicas > MAX_REPLICAS:
            raise PlanError(f"{self.replicas} replicas are too many", f"Use at most {MAX_REPLICAS}.")
        if self.semi_sync and not 1 <= self.wait_for <= self.replicas:
            raise PlanError(
                f"a commit cannot wait for {self.wait_for} of {self.replicas} replicas", "Ask for more replicas."
            )
        if self.timeout_ms <= 0:
            raise PlanError(f"a timeout of {self.timeout_ms} ms makes no sense", "Give one above 0.")
