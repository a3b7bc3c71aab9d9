"""The receipt of a trial: proof of what its path, servers and sessions were while it was measured. Written once, read as attributes.

Each part belongs to one writer. A field that is unset was not recorded: older versions did not know it, or this path has no such part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from howfar.contract.receipt_messages import Account, DirectionStats, Drops, Receipt
from howfar.plan.quantities import rtt_tolerance_ns, rtt_void_ns
from howfar.units import format_duration_ns

DirectionName = Literal["to_server", "to_client"]
DIRECTIONS: tuple[DirectionName, DirectionName] = ("to_server", "to_client")
Number = int | float
"""A JSON number, kept as it was written."""
MAX_HALTS_PER_S = 10.0
"""Maximum rate of halts of a CPU that should poll. The kernel's limit applies from a CPU's next idle period on; after that no halts
are expected."""
MEAN_MAX_SHARE = 0.02
"""Maximum mean lateness of a link as a share of a round trip. A closed loop waits for each round trip, so its throughput is off by
this share at most, whatever the distribution. A bound on the 99th percentile alone would allow the other 99 packets to be just below
it."""
STALLS_MAX_SHARE = 0.1
"""The same if the median packet was on time, so that rare stalls of the machine made the others late. These stop the client and the
server just as long, on every path: if they made only trials over a link void, those would be measured in quieter moments than the
others. The report says by how much late packets change a figure."""


class ReceiptPart(BaseModel):
    """A part of a receipt. Fields that other versions wrote are kept, but code can name only those that are declared."""

    model_config = ConfigDict(
        extra="allow", allow_inf_nan=False, validate_by_name=True, serialize_by_alias=True, defer_build=True
    )

    def as_json(self) -> dict[str, Any]:
        """The part for a file or a report, with the fields that were recorded."""
        return self.model_dump(mode="json", exclude_unset=True)

    def updated(self, other: Self) -> Self:
        """This part with the fields that another one sets."""
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})


class QuantilesNs(ReceiptPart):
    """Number and quantiles of measured times, in ns."""

    count: int | None = None
    min: int | None = None
    p50: int | None = None
    p99: int | None = None


class RequestedLink(ReceiptPart):
    """A link as requested, or, for a real one, as measured before the run."""

    rtt_ns: int | None = None
    rest_rtt_ns: int | None = None
    """Expected RTT of a ping, which includes the transmission of its own bytes."""
    rate_bps: Number | None = None
    queue_bytes: int | None = None
    changed_by_script: bool = False
    to_server: RequestedDirection | None = None
    to_client: RequestedDirection | None = None


class RequestedDirection(ReceiptPart):
    """One direction of a requested link; its effects are extra fields, named as in the contract's `Direction`."""

    rate_bps: Number | None = None


class ByDirection(ReceiptPart):
    """A quantity of each direction. None: not measured."""

    to_server: Number | None = None
    to_client: Number | None = None

    def in_direction(self, direction: DirectionName) -> Number | None:
        return self.to_server if direction == "to_server" else self.to_client

    @property
    def swapped(self) -> ByDirection:
        """The same with the directions exchanged."""
        return ByDirection(to_server=self.to_client, to_client=self.to_server)


class CalibrationRound(ReceiptPart):
    """One round of a calibration: the RTT with a delay that was shortened by `compensate_ns` in each direction."""

    compensate_ns: int
    rtt_p50_ns: int
    rtt_p50s_ns: list[int] = Field(default_factory=list)


class LinkCalibration(ReceiptPart):
    """What was measured when the link was calibrated."""

    compensate_ns: int = 0
    rest_rtt_ns: int | None = None
    """Expected RTT of a ping over the link, as in `RequestedLink`."""
    rounds: list[CalibrationRound] = Field(default_factory=list)
    rtt_p50_ns: int | None = None
    rtt_p99_ns: int | None = None
    rtt_from_idle_p50_ns: int | None = None
    """The same, with CPUs that were allowed to sleep between pings."""
    goodput_bps: ByDirection | None = None
    expected_goodput_bps: Number | None = None
    """Goodput that the requested rate permits; None if it differs between the directions."""
    expected_goodput_bps_each_way: ByDirection | None = None
    goodput_ceiling: str | None = None
    retransmits: ByDirection | None = None
    congestion_control: str | None = None
    mss: int | None = None
    drops: dict[str, Drops] | None = None
    """By direction: segments dropped during the bulk transfers; None if the back-end counts nothing."""
    of_rtt_ns: int | None = None
    """The RTT of the similar link that was measured instead; None if it was this link."""

    @property
    def waking_ns(self) -> int | None:
        """Extra time of a round trip when the CPUs of both ends must first wake up. None: not measured."""
        if self.rtt_from_idle_p50_ns is None or self.rtt_p50_ns is None:
            return None
        return max(self.rtt_from_idle_p50_ns - self.rtt_p50_ns, 0)


@dataclass(frozen=True)
class LatenessLimits:
    """Bounds on how late packets may leave, and on the error of the RTT at rest."""

    strict_rtt: bool
    """Whether the RTT at rest must be within `rtt_tolerance_ns`, or only within the larger `rtt_void_ns`, which makes a trial void."""
    p999_ns: int
    p999_share: float
    """Bound on the lateness of all but one packet in a thousand: `p999_ns`, or this share of the RTT, whichever is more."""
    mean_ns: float | None
    """Bound on the mean lateness, summed over both directions; None if it is not judged."""


class LinkCounters(ReceiptPart):
    """The emulator's counters since the load began."""

    to_server: DirectionStats
    to_client: DirectionStats

    def violations(self, rtt_ns: int, limits: LatenessLimits) -> tuple[str, ...]:
        """Packets that were lost or late beyond `limits`, on a link with the requested RTT `rtt_ns`."""
        limit_ns = max(limits.p999_ns, limits.p999_share * rtt_ns)
        violations = []
        for name, direction in (("to the server", self.to_server), ("to the client", self.to_client)):
            drops, lateness_ns = direction.drops, direction.lateness_p999_ns
            if drops.arena or drops.socket or drops.transmit:
                socket = "unknown" if drops.socket is None else str(drops.socket)
                violations.append(
                    f"the link {name} lost what no queue explains "
                    f"(segments: arena {drops.arena}, transmit {drops.transmit}; packets: socket {socket})"
                )
            if lateness_ns > limit_ns:
                violations.append(
                    f"packets {name} were late on the emulated link by {format_duration_ns(lateness_ns)} (p99.9, "
                    f"allowed {format_duration_ns(limit_ns)}): the machine was too busy, or the emulator was stopped"
                )
        return (*violations, *self._mean_violations(limits.mean_ns))

    @property
    def late_ns(self) -> int | None:
        """How much late and early packets lengthened a round trip on average. None: unknown."""
        to_server_ns, to_client_ns = self.to_server.lateness_mean_ns, self.to_client.lateness_mean_ns
        return None if to_server_ns is None or to_client_ns is None else to_server_ns + to_client_ns

    def _mean_violations(self, limit_ns: float | None) -> tuple[str, ...]:
        mean_ns, share = self.late_ns, MEAN_MAX_SHARE
        if limit_ns is None or mean_ns is None:
            return ()
        if mean_ns > 0 and self.to_server.lateness_p50_ns + self.to_client.lateness_p50_ns <= limit_ns:
            limit_ns, share = limit_ns * STALLS_MAX_SHARE / MEAN_MAX_SHARE, STALLS_MAX_SHARE
        if abs(mean_ns) <= limit_ns:
            return ()
        longer_or_shorter, allowed = "longer" if mean_ns > 0 else "shorter", format_duration_ns(limit_ns)
        sentence = f"the link made each round trip {format_duration_ns(abs(mean_ns))} {longer_or_shorter} on average"
        reason = "the machine was too busy for the emulator"
        return (f"{sentence} (allowed {allowed}, {share:.0%} of a round trip): {reason}",)


class EffectShare(ReceiptPart):
    """Requested and counted share of one random effect, with the 99 % interval of the counted share."""

    requested: float = Field(alias="asked")
    counted: float
    count: int
    of: int
    low: float
    high: float


class TcpSettings(ReceiptPart):
    """How the hosts' TCP was configured."""

    preset: str | None = None
    buffers: dict[str, int] = Field(default_factory=dict)
    congestion_control: str | None = None


class LinkReceipt(ReceiptPart):
    """The link between two hosts: emulated, or, if `real`, the user's own."""

    backend: str | None = None
    arrival: str | None = None
    requested: RequestedLink | None = Field(None, alias="asked")
    rtt_at_rest_ns: QuantilesNs | None = None
    """By pings before the load."""
    compensate_ns: Number | None = None
    """Delay that the emulator leaves out in each direction, because the hosts take this time themselves."""
    calibration: LinkCalibration | None = None
    counters: LinkCounters | None = None
    """None if the back-end counts nothing."""
    effects: dict[str, dict[str, EffectShare]] | None = None
    mtu: int | None = None
    congestion_control_asked: str | None = None
    tcp: TcpSettings = Field(default_factory=TcpSettings)
    realtime: bool | None = None
    short_slice: bool | None = None
    offload: bool | None = None
    # A real link:
    real: bool = False
    from_host: str | None = Field(None, alias="from")
    by_way_of: str | None = None
    """The host of a program in between; the link is then two links, one after the other."""
    to_host: str | None = Field(None, alias="to")
    rtt_ns: QuantilesNs | None = None
    """Measured before the run."""
    rtt_awake_ns: QuantilesNs | None = None
    """The same with all CPUs of both hosts kept awake; None if they cannot be."""
    goodput_bps: ByDirection | None = None
    retransmits: ByDirection | None = None
    path_mtu: int | None = None
    mss: int | None = None
    congestion_control: str | None = None
    others: list[LinkReceipt] | None = None
    """The links of further clients."""
    links: list[LinkReceipt] | None = None
    """Both parts of a link by way of another host."""

    @property
    def real_rtt_ns(self) -> int:
        """Median RTT of a real link before the run."""
        assert self.rtt_ns is not None and self.rtt_ns.p50 is not None, "only of a link between hosts"
        return self.rtt_ns.p50

    @property
    def slower_bps(self) -> Number:
        """Goodput of a real link in its slower direction."""
        assert self.goodput_bps is not None, "only of a link between hosts"
        return min(bps for to in DIRECTIONS if (bps := self.goodput_bps.in_direction(to)) is not None)

    @property
    def rest_rtt_ns(self) -> int | None:
        """Median RTT at rest."""
        return None if self.rtt_at_rest_ns is None else self.rtt_at_rest_ns.p50

    @property
    def expected_rtt_ns(self) -> int | None:
        """Expected RTT of a ping over the requested link; for a real link, its RTT before the run."""
        return None if self.requested is None else self.requested.rest_rtt_ns

    def violations(self, limits: LatenessLimits) -> tuple[str, ...]:
        """Differences between an emulated link and the request. Without counters only the RTT at rest is checked."""
        if self.counters is None or self.requested is None:
            return self.rtt_violations(limits)
        return (*self.rtt_violations(limits), *self.counters.violations(self.requested.rtt_ns or 0, limits))

    def rtt_violations(self, limits: LatenessLimits) -> tuple[str, ...]:
        """The violation if the RTT at rest is not as requested. Real links and bare cables have no requested RTT."""
        requested, measured_ns = self.requested, self.rest_rtt_ns
        if self.real or self.backend == "none" or requested is None or measured_ns is None:
            return ()
        rtt_ns, expected_ns = requested.rtt_ns or 0, requested.rest_rtt_ns or 0
        # The strict limit applies only if a delay was requested: without one the path's own time cannot be subtracted from the delay.
        allowed_ns = rtt_tolerance_ns(rtt_ns) if limits.strict_rtt and rtt_ns else rtt_void_ns(rtt_ns)
        if abs(measured_ns - expected_ns) <= allowed_ns:
            return ()
        violation = (
            f"the link's RTT at rest was {format_duration_ns(measured_ns)}, requested {format_duration_ns(rtt_ns)}"
        )
        transmission_ns = expected_ns - rtt_ns
        if transmission_ns > allowed_ns / 10:
            violation += f" and {format_duration_ns(transmission_ns)} for the ping's own bytes at the rate"
        return (violation,)


class SessionView(ReceiptPart):
    """A server's view of a session beside the load's."""

    of: str | None = None
    """Which session that is, in words."""
    host: str | None = None
    """The client's address; `localhost` over a Unix socket."""
    ssl_cipher: str | None = None
    ssl_version: str | None = None
    listener: str | None = None
    """The address where a key-value store accepted it."""
    compression: str | None = Field(None, exclude=True)
    """`OFF` or `ON`. Not in receipts: this session never compresses, whether or not the load's do."""


class ServerReceipt(ReceiptPart):
    """One server, after the load."""

    content: str | None = None
    """Content of its tables; None for a key-value store."""
    kind: str | None = None
    pid: int | None = None
    facts: dict[str, object] = Field(default_factory=dict)
    """Its settings, by their own names."""
    counters: dict[str, int] = Field(default_factory=dict)
    """Growth since the load began, by the names of `store.server_metrics` or the server's own."""
    tcp_ports: list[int] = Field(default_factory=list)
    sockets: list[str] = Field(default_factory=list)
    listen_address: dict[str, object] | None = Field(None, alias="door")
    """What a key-value store's address answered, see `lab.servers.key_value.StoreAddress`."""
    listen_queue: int | None = None
    warnings: list[str] = Field(default_factory=list, alias="said")
    """Lines of its log."""
    session_view: SessionView | None = None
    certificate: str | None = None
    given: bool = False
    """Whether it is a user's own server."""
    unknown: list[str] = Field(default_factory=list)
    """What a user's own server does not show."""
    forwarder: HopsReceipt | None = None
    """The programs between the application and an auxiliary server."""


class HopsReceipt(ReceiptPart):
    """The programs on the path to a server. What a hop is, is an extra field by its label."""

    program: str | None = None
    port: int | None = None
    server_side: object = None
    client_side: object = None
    hops: list[str] = Field(default_factory=list)
    """Labels of the hops; empty in older receipts."""
    processes_most: dict[str, int | None] = Field(default_factory=dict)
    """Maximum number of processes, by label, of hops that fork one for each connection."""
    connections: int | None = None
    """Connections of the load; None if unknown."""
    carried: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By label: what the hop counted since the load began."""
    at_once: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By label: maximum numbers of simultaneous connections `to_server` and `to_clients`."""

    @property
    def sides(self) -> frozenset[str]:
        """Hosts on which a hop ran: `client`, `server`. Older receipts name the sides as fields, or not at all."""
        labels = self.hops or self.model_fields_set
        return frozenset(side for side in ("client", "server") if f"{side}_side" in labels)


class IdleReceipt(ReceiptPart):
    """What idle CPUs did: the requested level, and what was in force."""

    level: str
    driver: str | None
    """The kernel's driver of idle states; None if it has none or does not report it."""
    governor: str | None
    limit_us: int | None
    """The limit on the time to leave an idle state; None if only root may read it."""
    halts_per_s: dict[str, float]
    """By CPU; CPUs whose halts the kernel does not count are missing."""
    hosts: dict[str, IdleReceipt] | None = None
    """The receipt of each host, if there are several; the fields above are then those of the first client's host."""

    def violations(self) -> tuple[str, ...]:
        """Violations if polling was requested but CPUs halted."""
        if self.hosts is not None:
            return tuple(
                f"host {name}: {sentence}" for name, host in self.hosts.items() for sentence in host.violations()
            )
        if self.level != "polling":
            return ()
        violations = []
        if self.limit_us not in (0, None):
            violations.append(f"idle CPUs were not kept polling: the kernel's limit is {self.limit_us} µs")
        for cpu, rate in self.halts_per_s.items():
            if rate > MAX_HALTS_PER_S:
                violations.append(f"CPU {cpu} was to poll while idle and slept {rate:.0f} times a second")
        return tuple(violations)


class ReplicaState(ReceiptPart):
    """A replica's report of its own state."""

    receiving: str
    """`Yes`, `No`, `Connecting`."""
    applying: str
    errors: tuple[str, ...]
    received: str
    """Position up to which it has received transactions completely, applied or not."""


class ReplicaFacts(ReceiptPart):
    name: str
    state: ReplicaState
    semi_sync: bool | None
    """Whether it acknowledges; None if it cannot."""
    applied: str
    """Position up to which it has applied."""
    behind: int
    """Number of transactions that the primary had committed and this replica had not applied; the primary was read first."""
    strangers: str = ""
    """Errant transactions: in the replica's history but not in the primary's."""


class PrimaryState(ReceiptPart):
    """A primary's report about acknowledgements. Counters are totals since it started."""

    enabled: bool
    status: bool
    """Whether it is semi-synchronous now; False if it has fallen back to asynchronous."""
    clients: int
    """Semi-synchronous replicas that are connected."""
    timeout_ms: int | None
    """None if it waits forever."""
    wait_point: str
    wait_for: int
    yes_tx: int | None
    """Commits with acknowledgement; None if it does not count them.

    Beware: MySQL under AFTER_SYNC counts groups of commits; MariaDB, and MySQL under AFTER_COMMIT, count each commit."""
    no_tx: int
    """Commits without acknowledgement, in the unit of `yes_tx`: MySQL 9.7 counted 17,171 for 19,838 commits of 16 connections under
    AFTER_SYNC, but exactly 15,277 for 15,277 commits of one connection."""
    no_times: int
    """Fallbacks to asynchronous replication; turning semi-synchronous replication off counts as one."""
    tx_waits: int
    tx_wait_us: int
    waiting: int
    """Sessions that wait for an acknowledgement now."""
    acknowledged_bytes: int | None = None
    """Bytes of its log that have been acknowledged by as many replicas as a commit needs. None if not reported."""
    log_bytes: int | None = None
    """Bytes of its log until now; None if not reported."""
    settings: dict[str, str] | None = None
    """Further settings as it reports them."""
    standbys: tuple[dict[str, object], ...] = ()
    """Its report of each replica."""
    unlike: tuple[str, ...] = ()
    """Settings that are not as requested."""

    @property
    def acknowledged(self) -> int:
        """Acknowledgements in the server's own unit: bytes of log, commits or groups of commits."""
        return (self.acknowledged_bytes or 0) if self.yes_tx is None else self.yes_tx

    @property
    def progress(self) -> tuple[int, int, int]:
        """A value that changes with each acknowledgement, and with each commit that continues without one."""
        return (self.acknowledged, self.no_tx, self.tx_waits)


class NodeFacts(ReceiptPart):
    """One node's own report of its cluster."""

    name: str
    role: str
    """`PRIMARY`, `SECONDARY`; for Galera, the status of the component that the node is in."""
    settings: dict[str, str]
    """Settings that determine how a commit is agreed on, and the protocol's version."""
    counters: dict[str, int]
    """Totals since it started. `ordered`: its own transactions that the group has ordered; `conflicts`: its own transactions that
    were refused because of another node's; the others have the server's names."""
    unlike: tuple[str, ...] = ()
    """Differences from what was requested."""


class Snapshot(ReceiptPart):
    """The primary and all replicas at one moment."""

    position: str
    """Position of the primary."""
    primary: PrimaryState | None
    """None if it does not support semi-synchronous replication."""
    replicas: tuple[ReplicaFacts, ...]
    sent: dict[str, int] = Field(default_factory=dict)
    """By replica: bytes that the primary's host has sent to it, as the kernel counts them."""
    broken: tuple[str, ...] = ()
    """Failures that the servers do not report: dead links, full disks."""
    nodes: tuple[NodeFacts, ...] = ()
    """All nodes of a cluster, the primary first."""


class ReplicationWindow(ReceiptPart):
    """Replication before the load and after it."""

    before: Snapshot | None = None
    after: Snapshot | None = None
    mean_wait_us: float | None = None
    """Mean time that a commit of the window waited for its acknowledgement; None if not counted."""
    counted: dict[str, dict[str, int]] | None = None
    """Growth of each node's counters, for clusters."""


class ReplicationReceipt(ReceiptPart):
    """The replicas of the main server, and their links."""

    requested: dict[str, object] = Field(default_factory=dict, alias="asked")
    """See `lab.replication.links.ReplicationSpec`."""
    replica_cpus: list[int] = Field(default_factory=list)
    data_file_system: str | None = None
    durability: dict[str, dict[str, str]] = Field(default_factory=dict)
    """By member: its settings for writing logs."""
    channel: dict[str, object] = Field(default_factory=dict)
    """Facts about the connections between primary and replicas, see `lab.replication.proof.ChannelFacts`."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """How long each step of opening the replica set took."""
    rtt_at_rest_ns: dict[str, int | None] = Field(default_factory=dict)
    """By link: median RTT before the load."""
    window: ReplicationWindow | None = None
    links: dict[str, LinkReceipt] = Field(default_factory=dict, alias="wires")
    fault: dict[str, object] | None = None
    """The definition of the fault that was injected, see `experiments.replication.fault.crash.FaultKind`."""


class ApplicationReceipt(ReceiptPart):
    """The application in front of the servers, as it reported itself, and the proof that its pages do what they should."""

    version: str | None = None
    interface: str | None = None
    extensions: dict[str, str] = Field(default_factory=dict)
    opcache: bool | None = None
    settings: dict[str, object] = Field(default_factory=dict)
    children: int | None = None
    pid: int | None = None
    proof: dict[str, object] = Field(default_factory=dict)
    """What its pages reported and what the servers counted, before the load."""
    after: dict[str, object] | None = None
    """Clients of the servers after the load, with persistent connections."""


class HostsReceipt(ReceiptPart):
    """The user's hosts in a run between hosts."""

    client: str | None = None
    others: list[str] = Field(default_factory=list)
    """Hosts of further clients."""
    hop: str | None = None
    """Host of its own for the program in between."""
    server: str | None = None
    replicas: list[str] = Field(default_factory=list)
    start: dict[str, HostReport] = Field(default_factory=dict)
    """By host of a client."""
    counted: StatementCounts | str | None = None
    """How many statements the clients and the server counted, or why that is unknown."""


class StatementCounts(ReceiptPart):
    """The number of statements, transactions or requests, as clients and server counted it."""

    of: str
    clients: int
    server: int
    rule: str
    """How the counts must compare: `equal`, or `at least` as many on the server."""


class HostReport(ReceiptPart):
    """One host of a trial: its clock and its start, and for a client its part of the load and what limited that."""

    late_ns: int | None = None
    """Lateness of its start."""
    lateness_p99_ns: int | None = None
    busiest_thread_share: float | None = None
    clock_offset_ns: int | None = None
    clock_bound_ns: int | None = None
    transactions: int | None = None
    unanswered: int | None = None


class ArrivalsReceipt(Account):
    """An open loop's requests in the window, and what became of them."""

    per_s: float
    shape: str


class SecondWriter(ReceiptPart):
    """The load on a second node of a cluster."""

    elapsed_ns: int
    transactions: int
    errors: dict[str, int]
    p50_ns: int | None = None
    cpu_ns: int | None = None
    """CPU time of this load generator over its window. None: an older run file."""


class WritersReceipt(ReceiptPart):
    """What clients of a cluster saw, and what its rows count."""

    commits: int
    answered: int | None
    rows: dict[str, int]
    """By node."""
    second: SecondWriter | None = None


class ProgramUse(ReceiptPart):
    """A program that is none of the trial's, and the CPUs that it used in the window."""

    name: str
    """As the kernel shortens it, without arguments."""
    pid: int
    """Of its busiest process, outside the sandbox. Time of processes that it waited for is its own."""
    cpus: float
    """Of all its processes, during the load, warm-up included."""


class QuietReceipt(ReceiptPart):
    """The wait for other programs before a trial, and what they did to it. The rule is in `other_programs.py`."""

    waited_ns: int
    is_quiet: bool
    """Whether they were quiet when the trial began. False too if it did not wait for them."""
    is_disturbed: bool = False
    """Whether they were busy during the trial."""
    is_repeated: bool = False
    """Whether the trial is void for that reason, and is measured again in its place."""


class TrialReceipt(ReceiptPart):
    """All parts of one trial's receipt; a path or testbed without a part does not set it."""

    session: Receipt | None = None
    """What the engine's first connection was."""
    server: ServerReceipt | None = None
    replication: ReplicationReceipt | None = None
    application: ApplicationReceipt | None = None
    idle: IdleReceipt | None = None
    forwarder: HopsReceipt | None = None
    services: dict[str, ServerReceipt] = Field(default_factory=dict)
    """The auxiliary servers, by service."""
    hosts: HostsReceipt | None = None
    link: LinkReceipt | None = None
    arrivals: ArrivalsReceipt | None = None
    writers: WritersReceipt | None = None
    programs: tuple[ProgramUse, ...] | None = None
    """The other programs that used the most CPU time, the largest first. None: not looked for, or their processes cannot be seen."""
    quiet: QuietReceipt | None = None
    """None: an older file, or the processes of other programs cannot be seen."""

    @property
    def replication_window(self) -> ReplicationWindow | None:
        """Replication before the load and after it. None: no replicas, or not recorded."""
        return None if self.replication is None else self.replication.window
