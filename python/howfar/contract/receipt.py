"""The receipt of a trial: proof of what its path, servers and sessions were while it was measured. Written once, read as attributes.

Each part belongs to one writer. A field that is unset was not recorded: older versions did not know it, or this path has no such part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field

from howfar.contract.application_receipt import ApplicationReceipt
from howfar.contract.receipt_messages import Account, DirectionStats, Drops
from howfar.contract.receipt_part import ReceiptPart
from howfar.contract.replication_receipt import ChannelFacts, ReplicationWindow, RequestedReplication
from howfar.contract.server_receipt import HopsReceipt, ServerReceipt, SessionReceipt
from howfar.contract.violation import Violation, violation
from howfar.plan.quantities import rtt_tolerance_ns, rtt_void_ns

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
    """Bounds on how late packets may leave, and on the error of the unloaded RTT."""

    strict_rtt: bool
    """Whether the unloaded RTT must be within `rtt_tolerance_ns`, or only within the larger `rtt_void_ns`: else the trial is void."""
    p999_ns: int
    p999_share: float
    """Bound on the lateness of all but one packet in a thousand: `p999_ns`, or this share of the RTT, whichever is more."""
    mean_ns: float | None
    """Bound on the mean lateness, summed over both directions; None if it is not judged."""


class LinkCounters(ReceiptPart):
    """The emulator's counters since the load began."""

    to_server: DirectionStats
    to_client: DirectionStats

    def violations(self, rtt_ns: int, limits: LatenessLimits) -> tuple[Violation, ...]:
        """Packets that were lost or late beyond `limits`, on a link with the requested RTT `rtt_ns`."""
        limit_ns = max(limits.p999_ns, limits.p999_share * rtt_ns)
        violations = []
        for end, direction in (("server", self.to_server), ("client", self.to_client)):
            drops, lateness_ns = direction.drops, direction.lateness_p999_ns
            if drops.arena or drops.socket or drops.transmit:
                lost = {
                    "arena_segments": drops.arena,
                    "transmit_segments": drops.transmit,
                    "socket_packets": drops.socket,
                }
                violations.append(violation("link-lost-packets", end=end, **lost))
            if lateness_ns > limit_ns:
                lateness = {"lateness_ns": lateness_ns, "percentile": 99.9, "allowed_ns": limit_ns}
                violations.append(violation("late-packets", end=end, **lateness))
        return (*violations, *self._mean_violations(limits.mean_ns))

    @property
    def late_ns(self) -> int | None:
        """How much late and early packets lengthened a round trip on average. None: unknown."""
        to_server_ns, to_client_ns = self.to_server.lateness_mean_ns, self.to_client.lateness_mean_ns
        return None if to_server_ns is None or to_client_ns is None else to_server_ns + to_client_ns

    def outage_violations(self) -> tuple[Violation, ...]:
        """Violations if outages lost packets of a link of which none were requested."""
        segments_lost = {"server": self.to_server.drops.outage, "client": self.to_client.drops.outage}
        return tuple(
            violation("link-interrupted", end=end, segments=segments)
            for end, segments in segments_lost.items()
            if segments
        )

    def _mean_violations(self, limit_ns: float | None) -> tuple[Violation, ...]:
        mean_ns, share = self.late_ns, MEAN_MAX_SHARE
        if limit_ns is None or mean_ns is None:
            return ()
        if mean_ns > 0 and self.to_server.lateness_p50_ns + self.to_client.lateness_p50_ns <= limit_ns:
            limit_ns, share = limit_ns * STALLS_MAX_SHARE / MEAN_MAX_SHARE, STALLS_MAX_SHARE
        if abs(mean_ns) <= limit_ns:
            return ()
        change = "longer" if mean_ns > 0 else "shorter"
        allowed: dict[str, float] = {"allowed_ns": limit_ns, "allowed_share": share}
        return (violation("link-mean-lateness", change_ns=abs(mean_ns), change=change, **allowed),)


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
        """Median unloaded RTT."""
        return None if self.rtt_at_rest_ns is None else self.rtt_at_rest_ns.p50

    @property
    def expected_rtt_ns(self) -> int | None:
        """Expected RTT of a ping over the requested link; for a real link, its RTT before the run."""
        return None if self.requested is None else self.requested.rest_rtt_ns

    def violations(self, limits: LatenessLimits) -> tuple[Violation, ...]:
        """Differences between an emulated link and the request. Without counters only the unloaded RTT is checked."""
        if self.counters is None or self.requested is None:
            return self.rtt_violations(limits)
        return (*self.rtt_violations(limits), *self.counters.violations(self.requested.rtt_ns or 0, limits))

    def rtt_violations(self, limits: LatenessLimits) -> tuple[Violation, ...]:
        """The violation if the unloaded RTT is not as requested. Real links and bare cables have no requested RTT."""
        requested, measured_ns = self.requested, self.rest_rtt_ns
        if self.real or self.backend == "none" or requested is None or measured_ns is None:
            return ()
        rtt_ns, expected_ns = requested.rtt_ns or 0, requested.rest_rtt_ns or 0
        # The strict limit applies only if a delay was requested: without one the path's own time cannot be subtracted from the delay.
        allowed_ns = rtt_tolerance_ns(rtt_ns) if limits.strict_rtt and rtt_ns else rtt_void_ns(rtt_ns)
        if abs(measured_ns - expected_ns) <= allowed_ns:
            return ()
        transmission_ns = expected_ns - rtt_ns
        rtts_ns = {"measured_ns": measured_ns, "requested_ns": rtt_ns}
        if transmission_ns > allowed_ns / 10:
            return (violation("link-rtt-with-transmission", **rtts_ns, transmission_ns=transmission_ns),)
        return (violation("link-rtt", **rtts_ns),)

    def rtt_change_violations(self) -> tuple[Violation, ...]:
        """Violations if a real link, or that of a further client, has another RTT than before the run, by more than is allowed for an
        emulated link."""
        return tuple(change for link in (self, *(self.others or ())) for change in link._rtt_change())

    def _rtt_change(self) -> tuple[Violation, ...]:
        now_ns, before_ns = self.rest_rtt_ns, self.expected_rtt_ns
        assert now_ns is not None and before_ns is not None, (
            "a real link is measured before the run and before the load"
        )
        if abs(now_ns - before_ns) <= rtt_void_ns(before_ns):
            return ()
        ends = {"from_host": self.from_host, "to_host": self.to_host}
        return (violation("real-rtt-changed", **ends, now_ns=now_ns, before_ns=before_ns),)


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

    def violations(self) -> tuple[Violation, ...]:
        """Violations if polling was requested but CPUs halted."""
        if self.hosts is not None:
            return tuple(each.at(f"host {name}") for name, host in self.hosts.items() for each in host.violations())
        if self.level != "polling":
            return ()
        violations = []
        if self.limit_us not in (0, None):
            violations.append(violation("cpus-not-polling", limit_us=self.limit_us))
        for cpu, rate in self.halts_per_s.items():
            if rate > MAX_HALTS_PER_S:
                violations.append(violation("cpu-slept", cpu=cpu, sleeps_per_s=rate))
        return tuple(violations)


class InjectedFault(ReceiptPart):
    """The definition of a fault that was injected into a replica set."""

    model_config = ConfigDict(frozen=True)

    cut: tuple[DirectionName, ...] = ()
    """Directions that are cut on every replica's link. The replica is the link's client."""
    stops_receiving: bool = False
    """Whether every replica stops receiving. It continues to apply what it has received, like a replica whose log disk is full."""
    failover_ns: int = 0
    """Time from the fault until the primary is killed. 0: it is killed at once, or not at all."""
    members: tuple[int, ...] = ()
    """Numbers of the members (0: the primary) that the fault affects: they are cut off from the others as one group, while their
    clients still reach them; or the member is slow, or leaves. A primary is killed when the others have continued without it for
    `failover_ns`."""
    runs: float = 1.0
    """Share of the time in which the member's server runs. It is stopped for the rest."""
    away_ns: int = 0
    """How long the member is cut off, slow, or away. 0: until the end."""
    lives_ns: int = 0
    """How long clients continue to write after a fault that the primary survives. 0: the primary is killed."""
    arrival: str | None = None
    """How a member that left rejoins after `away_ns`. `new`: a member without data joins in its place. The primary is killed
    `failover_ns` after the member has fully joined, so that all rows must be on the member."""


class ReplicationReceipt(ReceiptPart):
    """The replicas of the main server, and their links."""

    requested: RequestedReplication = Field(default_factory=RequestedReplication, alias="asked")
    replica_cpus: list[int] = Field(default_factory=list)
    data_file_system: str | None = None
    durability: dict[str, dict[str, str]] = Field(default_factory=dict)
    """By member: its settings for writing logs."""
    channel: ChannelFacts | None = None
    seconds: dict[str, float] = Field(default_factory=dict)
    """How long each step of opening the replica set took."""
    rtt_at_rest_ns: dict[str, int | None] = Field(default_factory=dict)
    """By link: median RTT before the load."""
    window: ReplicationWindow | None = None
    links: dict[str, LinkReceipt] = Field(default_factory=dict, alias="wires")
    fault: InjectedFault | None = None

    def link_violations(self, limits: LatenessLimits) -> tuple[Violation, ...]:
        """Violations of the links, by name. No cell requests outages of these links, and the servers' counters do not show commits
        that stalled and then continued."""
        return tuple(
            each.at(name)
            for name, link in self.links.items()
            for each in (
                *link.violations(limits),
                *(() if link.counters is None else link.counters.outage_violations()),
            )
        )


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


class SpeedReceipt(ReceiptPart):
    """The speed of this machine's CPUs at both ends of a trial: the CPU time of the same piece of work, by CPU."""

    before_ns: dict[int, int]
    """Before the load, its warm-up included."""
    after_ns: dict[int, int]
    """After the measured window."""


class TrialReceipt(ReceiptPart):
    """All parts of one trial's receipt; a path or testbed without a part does not set it."""

    session: SessionReceipt | None = None
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
    speed: SpeedReceipt | None = None
    """None: an older file, or the load ran on other hosts."""

    @property
    def replication_window(self) -> ReplicationWindow | None:
        """Replication before the load and after it. None: no replicas, or not recorded."""
        return None if self.replication is None else self.replication.window
