"""The request for a primary and its replicas, and the replicas' hosts with their links."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from howfar.engine.messages import LONGEST_NS, LinkStats, Outage, RttResult
from howfar.errors import PlanError
from howfar.lab.link import DIRECTIONS, DirectionName, Link, LinkSpec, open_link
from howfar.lab.link.backends import DEFAULT
from howfar.lab.link.receipt import Lateness, link_receipt, link_violations
from howfar.lab.network import (
    LINKS_MOST,
    REPLICAS_MOST,
    Cpus,
    Host,
    Network,
    Shares,
    TcpPreset,
    address_nodes,
    join_hosts,
    join_replica,
    size_buffers,
    usable_cpus,
)
from howfar.lab.window_network import open_in, traffic
from howfar.plan.distances import pairs
from howfar.plan.factors import CLUSTERS


@dataclass(frozen=True)
class PairContext:
    """The environment of a pair: a directory, the network whose `server` will be the primary's host, CPUs, number of clients."""

    work: Path
    network: Network
    shares: Shares
    connections: int
    backend: str = DEFAULT
    tcp: TcpPreset = "tuned"
    patience_s: float = 30.0
    """Time allowed in addition to round trips, for a replica to connect or to catch up, and for a commit outside the load."""

    @property
    def replica_cpus(self) -> Cpus:
        """CPUs for the replicas: those that neither host uses, else the client's, so that the primary keeps its own."""
        taken = {*self.shares.client, *self.shares.server}
        return tuple(cpu for cpu in usable_cpus() if cpu not in taken) or self.shares.client


class Wire(ABC):
    """The path between a replica and its primary, or between two nodes of a cluster. The replica connects, so it is the link's client:
    what the primary sends goes `to_client`, acknowledgements go `to_server`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the replica, or of both."""

    @property
    @abstractmethod
    def rtt_ns(self) -> int:
        """The requested RTT, or for a real link the measured one."""

    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    def sent_bytes(self) -> int | None:
        """Bytes sent by the primary's host to the replica since their interfaces were created; None if not counted separately."""

    @abstractmethod
    def begin(self) -> RttResult:
        """Measure the link at rest before the load, and reset its counters. Raises LinkFailed, EngineError."""

    @abstractmethod
    def pid(self) -> int | None:
        """The process whose CPU time the link uses; None without one."""

    @abstractmethod
    def counters(self) -> LinkStats | None: ...

    @abstractmethod
    def receipt(self, at_rest: RttResult, stats: LinkStats | None) -> dict[str, Any]: ...

    def violations(self, at_rest: RttResult, stats: LinkStats | None, lateness: Lateness) -> tuple[str, ...]:
        """Differences between the link and what was requested; none for a real one."""
        return ()

    def cut(self, directions: Iterable[DirectionName] = DIRECTIONS) -> None:
        raise PlanError("a real link cannot be cut", "Measure faults in the laboratory (without --on).")

    def mend(self) -> None:
        raise PlanError("a real link cannot be mended", "Measure faults in the laboratory (without --on).")


@dataclass(frozen=True)
class EmulatedWire(Wire):
    """A wire of the laboratory: an emulated link between the replica's host and the primary's, or between two replicas' hosts."""

    network: Network
    link: Link
    tcp: TcpPreset
    nodes: tuple[int, int]
    """Numbers of both nodes; the primary is 0, and the smaller number is the link's server."""

    @property
    def name(self) -> str:
        return EmulatedWire.called(self.network, self.nodes)

    @staticmethod
    def called(network: Network, nodes: tuple[int, int]) -> str:
        """The name of the wire: the replica's, or both replicas'."""
        return network.client.name if nodes[0] == 0 else f"{network.server.name}-{network.client.name}"

    @property
    def host(self) -> Host:
        """The replica's host."""
        return self.network.client

    @property
    def rtt_ns(self) -> int:
        return self.link.spec.rtt_ns

    def alive(self) -> bool:
        return self.link.alive()

    def sent_bytes(self) -> int | None:
        with closing(open_in(self.network.server, "dev")) as file:
            seen = traffic(file.read(), self.network.ends.server_device)
        assert seen is not None, "a wire has a device at either end"
        return seen.sent_bytes

    def begin(self) -> RttResult:
        found = self.link.at_rest()
        self.link.counters(reset=True)
        return found

    def pid(self) -> int | None:
        return self.link.pid

    def counters(self) -> LinkStats | None:
        return self.link.counters()

    def receipt(self, at_rest: RttResult, stats: LinkStats | None) -> dict[str, Any]:
        tcp = {"preset": self.tcp, "congestion_control": self.network.congestion_control}
        return link_receipt(self.link, at_rest, stats, tcp)

    def violations(self, at_rest: RttResult, stats: LinkStats | None, lateness: Lateness) -> tuple[str, ...]:
        return link_violations(self.link, at_rest, stats, lateness)

    def shape(self, spec: LinkSpec) -> None:
        """Set the link, at rest, to `spec`. Raises LinkFailed, EngineError."""
        size_buffers(self.network, spec.bdp_bytes, self.tcp)
        self.link.shape(spec)

    def cut(self, directions: Iterable[DirectionName] = DIRECTIONS) -> None:
        """Drop all packets in these directions from now on, without any error at either end. Raises LinkFailed."""
        spec = self.link.spec
        for name in directions:
            direction = replace(spec.direction(name), outages=(Outage(at_ns=0, for_ns=LONGEST_NS),))
            spec = spec.with_direction(name, direction)
        self.link.change(spec, 0)

    def mend(self) -> None:
        """Restore the link as it was before `cut`. Raises LinkFailed."""
        self.link.change(self.link.spec, 0)


@contextmanager
def open_wires(
    context: PairContext,
    count: int,
    spec: LinkSpec,
    calibrations: Mapping[str, Mapping[LinkSpec, dict[str, Any]]] | None = None,
    *,
    mesh: bool = False,
) -> Iterator[tuple[EmulatedWire, ...]]:
    """Open `count` hosts, each joined to the primary's by a calibrated link; call in the sandbox. `mesh`: also join every two of them,
    and give each host an address that all others can reach. `calibrations`: those of earlier wires, by name. The wires to the primary
    come first in the result. Raises PlanError, LinkFailed, EngineError."""
    among = [(low, high) for low, high in pairs(count + 1) if low] if mesh else []
    if count + len(among) > LINKS_MOST:
        raise PlanError(f"a cluster of {count + 1} nodes needs more than {LINKS_MOST} links", "Use at most 6 nodes.")
    ours, theirs = context.shares.server, context.replica_cpus
    with ExitStack() as ledger:
        wires: list[EmulatedWire] = []

        def open_wire(network: Network, nodes: tuple[int, int], shares: Shares) -> None:
            size_buffers(network, spec.bdp_bytes, context.tcp)
            wire = EmulatedWire(
                network,
                ledger.enter_context(
                    open_link(
                        network,
                        spec,
                        network.client.launcher(shares.client),
                        network.server.launcher(shares.server),
                        (calibrations or {}).get(EmulatedWire.called(network, nodes)),
                        backend=context.backend,
                        with_goodput=False,
                    )
                ),
                context.tcp,
                nodes,
            )
            if mesh:
                address_nodes(network, node_address(nodes[1]), node_address(nodes[0]))
            wires.append(wire)

        shares = Shares(client=theirs, server=ours)
        for number in range(1, count + 1):
            open_wire(join_replica(context.network, ledger, number, shares), (0, number), shares)
        hosts = [context.network.server, *(wire.host for wire in wires)]
        for number, (low, high) in enumerate(among, count + 1):
            shares = Shares(client=theirs, server=theirs)
            open_wire(join_hosts(context.network, hosts[high], hosts[low], number, shares), (low, high), shares)
        yield tuple(wires)


def node_address(number: int) -> str:
    """Address of a node of a cluster, the same on all its links."""
    return f"10.78.0.{number + 1}"


Mode = Literal["none", "async", "semi_sync", "galera", "group", "group-leader"]
WaitPoint = Literal["AFTER_SYNC", "AFTER_COMMIT", "remote_write", "on", "remote_apply"]
"""The servers' own names: first those of MariaDB and MySQL, then those of PostgreSQL (`synchronous_commit`)."""
Durability = Literal["strict", "relaxed", "off"]
Compression = Literal["zlib", "zstd"]
FOREVER_MS = 3_600_000
"""Time after which a semi-synchronous primary would continue without its replicas: longer than any trial."""


@dataclass(frozen=True)
class Preset:
    """A server's settings for writing its logs; the same on primary and replicas."""

    flush_log_at_commit: int
    sync_binlog: int
    flush_method: str | None
    """None for the server's default."""


PRESETS: dict[Durability, Preset] = {
    "strict": Preset(1, 1, None),
    "relaxed": Preset(2, 0, None),
    "off": Preset(0, 0, "nosync"),
}


@dataclass(frozen=True)
class ReplicationSpec:
    """The requested replication. `none`: a primary alone, which writes its binary log nevertheless, so that modes differ only in the
    replicas."""

    mode: Mode = "semi_sync"
    replicas: int = 1
    wait_point: WaitPoint = "AFTER_SYNC"
    wait_for: int = 1
    """Replicas whose acknowledgement a commit needs."""
    timeout_ms: int = FOREVER_MS
    """Time after which a semi-synchronous commit continues without acknowledgement."""
    durability: Durability = "strict"
    flushes: bool = True
    """Whether a commit waits until its own log is written; it always does if a replica must acknowledge."""
    tls: bool = False
    compression: Compression | None = None
    consistency: str = "eventual"
    """Consistency of a cluster: the level of the factor `consistency`."""
    everywhere: bool = False
    """Whether every member of a group accepts writes. Galera's nodes always do."""

    @property
    def semi_sync(self) -> bool:
        return self.mode == "semi_sync"

    @property
    def cluster(self) -> bool:
        return self.mode in CLUSTERS

    @property
    def needed(self) -> int:
        """Number of other servers whose answers a commit needs before it returns; the nearest ones decide."""
        if self.mode == "galera":
            return self.replicas
        return (self.replicas + 1) // 2 if self.cluster else self.wait_for if self.semi_sync else 0

    @property
    def preset(self) -> Preset:
        return PRESETS[self.durability]

    def check(self) -> None:
        """Raises PlanError for a combination that makes no sense on any server."""
        if (self.mode == "none") != (self.replicas == 0):
            raise PlanError(
                f"replication {self.mode} with {self.replicas} replicas makes no sense",
                "`none` has no replica; the other modes have one or more.",
            )
        if self.replicas > REPLICAS_MOST:
            raise PlanError(f"{self.replicas} replicas are too many", f"Use at most {REPLICAS_MOST}.")
        if self.semi_sync and not 1 <= self.wait_for <= self.replicas:
            raise PlanError(
                f"a commit cannot wait for {self.wait_for} of {self.replicas} replicas", "Ask for more replicas."
            )
        if self.timeout_ms <= 0:
            raise PlanError(f"a timeout of {self.timeout_ms} ms makes no sense", "Give one above 0.")
