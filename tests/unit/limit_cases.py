"""Made-up trials with known limits: a load, described by its use of each resource, becomes the records of a trial with its window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.made import build, build_trial

from howfar.bottleneck.cycle import Cycle
from howfar.bottleneck.evidence import ArmSetting, Evidence, gather_evidence
from howfar.bottleneck.limit import Limit, find_limit
from howfar.contract.receipt import (
    ByDirection,
    LinkReceipt,
    ReplicationReceipt,
    RequestedDirection,
    RequestedLink,
    TrialReceipt,
)
from howfar.contract.receipt_messages import Bytes, CpuUse
from howfar.contract.server_receipt import HopsReceipt, SessionReceipt
from howfar.store.records import Measured, NetworkSample, TcpRecord, Trial, Window

SECONDS = 4
MSS = 1448
CLIENT_CPU_NUMBER, SERVER_CPU_NUMBER = 1, 0


@dataclass(frozen=True)
class Case:
    """A load: times in µs per transaction, shares of a CPU."""

    connections: int = 1
    tps: float = 1000.0
    round_trips: float = 16.0
    client_us: float = 100.0
    server_us: float = 300.0
    server_wait_us: float = 0.0
    client_wait_us: float = 0.0
    emulator: dict[int, float] = field(default_factory=dict)
    """The emulator's share of each CPU."""
    other_programs: dict[int, float] = field(default_factory=dict)
    """The share of each CPU that other programs use."""
    bytes_to_client: int = 40_000
    bytes_to_server: int = 1_000
    rate_bps: int | None = 10**9
    goodput_bps: dict[str, int] | None = None
    """Goodput of one connection over a real link, by direction. None: the link is emulated, with `rate_bps`."""
    rtt_us: float | None = 200.0
    """None: no link."""
    tcp: tuple[TcpRecord, ...] = ()
    retransmits: int = 0
    timeouts: int | None = 0
    counters: dict[str, int] = field(default_factory=dict)
    fsync_us: float | None = None
    errors: dict[str, int] = field(default_factory=dict)
    proxy_us: float = 0.0
    """CPU time of a program between client and server, such as a proxy. 0: none."""
    proxy_receipt: HopsReceipt | None = None
    """The receipt's part about that program."""
    proxy_cpu: int = SERVER_CPU_NUMBER
    """The CPU on which it ran."""
    one_host: bool = False
    """Whether client and server have the same CPUs."""
    window: bool = True
    session: dict[str, Any] = field(default_factory=dict)
    """Fields of the receipt's session; its figures of the connection setup are used only if `connect_per_transaction`."""
    connect_per_transaction: bool = False
    """Whether each transaction opens a connection."""
    acknowledgement_us: float | None = None
    """None: no commit waits for a replica."""
    replication: ReplicationReceipt | None = None
    """The receipt's part about replication."""

    @property
    def transactions(self) -> int:
        return int(self.tps * SECONDS)

    def cpu(self, role: str, us: float, wait_us: float) -> CpuUse:
        ns = int(us * 1000 * self.transactions)
        return build(
            CpuUse,
            role=role,
            cpu_ns=ns,
            runnable_wait_ns=int(wait_us * 1000 * self.transactions),
            busiest_thread_ns=ns if role == "client" else ns // max(self.connections, 1),
            threads=2 if role == "client" else self.connections,
            voluntary_switches=self.transactions,
        )

    def busy(self) -> dict[int, float]:
        own_cpu_shares = {
            CLIENT_CPU_NUMBER: self.client_us * self.tps / 1e6,
            SERVER_CPU_NUMBER: self.server_us * self.tps / 1e6,
        }
        own_cpu_shares[self.proxy_cpu] += self.proxy_us * self.tps / 1e6
        return {
            cpu: min(1.0, share + self.emulator.get(cpu, 0.0) + self.other_programs.get(cpu, 0.0))
            for cpu, share in own_cpu_shares.items()
        }

    def sample(self, share: float) -> NetworkSample:
        def one_direction(payload: int) -> tuple[int, int]:
            frames = max(int(self.round_trips), payload // MSS + int(self.round_trips) // 2) * self.transactions
            return int((payload * self.transactions + frames * 66) * share), int(frames * share)

        to_server, to_client = one_direction(self.bytes_to_server), one_direction(self.bytes_to_client)
        return NetworkSample(
            at_ns=int(SECONDS * 1e9 * share),
            to_server_bytes=to_server[0],
            to_client_bytes=to_client[0],
            to_server_packets=to_server[1],
            to_client_packets=to_client[1],
            to_server_queue_bytes=0 if self.rtt_us else None,
            to_client_queue_bytes=120_000 if self.rtt_us else None,
            retransmits=int(self.retransmits * share),
        )

    def trial(self, number: int = 0) -> Trial:
        measured = build(
            Measured,
            elapsed_ns=SECONDS * 10**9,
            transactions=self.transactions,
            queries=16 * self.transactions,
            round_trips=int(self.round_trips * self.transactions),
            bytes=Bytes(
                to_server=self.bytes_to_server * self.transactions, to_client=self.bytes_to_client * self.transactions
            ),
            errors=self.errors,
            cpu=(
                self.cpu("client", self.client_us, self.client_wait_us),
                self.cpu("server", self.server_us, self.server_wait_us),
                *((self.cpu("forwarder", self.proxy_us, 0.0),) if self.proxy_us else ()),
            ),
        )
        window = Window(
            length_ns=SECONDS * 10**9,
            interface="s0" if self.rtt_us else "lo",
            network=tuple(self.sample(step / 4) for step in range(1, 5)),
            tcp=self.tcp,
            server=self.counters,
            cpus_busy=self.busy(),
            link_cpu_ns={cpu: int(share * SECONDS * 1e9) for cpu, share in self.emulator.items()},
            timeouts=self.timeouts,
        )
        receipt = TrialReceipt(
            session=build(SessionReceipt, **self.session),
            replication=self.replication,
            forwarder=self.proxy_receipt,
            link=None if self.rtt_us is None else self.link(),
        )
        return build_trial(number, "arm", measured=measured, receipt=receipt, window=window if self.window else None)

    def link(self) -> LinkReceipt:
        if self.goodput_bps is not None:
            return LinkReceipt(real=True, goodput_bps=ByDirection.model_validate(self.goodput_bps), mss=MSS)
        direction = RequestedDirection(rate_bps=self.rate_bps)
        return LinkReceipt(requested=RequestedLink(to_server=direction, to_client=direction))

    def setting(self) -> ArmSetting:
        both = (SERVER_CPU_NUMBER, CLIENT_CPU_NUMBER)
        return ArmSetting(
            connections=self.connections,
            factors=({"connect": "per-transaction"} if self.connect_per_transaction else {})
            | ({} if self.rtt_us is None else {"rate_bps": self.rate_bps or 0}),
            client_cpus=both if self.one_host else (CLIENT_CPU_NUMBER,),
            server_cpus=both if self.one_host else (SERVER_CPU_NUMBER,),
            rest_rtt_s=self.rtt_us / 1e6 if self.rtt_us is not None else None,
            machine_cpus=2,
            fsync_s=self.fsync_us / 1e6 if self.fsync_us is not None else None,
            acknowledgement_s=None if self.acknowledgement_us is None else self.acknowledgement_us / 1e6,
        )

    def evidence(self) -> Evidence:
        return gather_evidence([self.trial()], self.setting())


def tcp(host: str, connections: int, busy: float, rwnd: float = 0.0, sndbuf: float = 0.0) -> TcpRecord:
    """A TCP record; `busy`, `rwnd` and `sndbuf` are shares of the window, for each connection."""
    total_ns = connections * SECONDS * 1e9
    shares = {"busy_ns": busy, "rwnd_limited_ns": rwnd, "sndbuf_limited_ns": sndbuf}
    parts_ns = {name: int(total_ns * share) for name, share in shares.items()}
    return build(TcpRecord, host=host, connections=connections, rtt_p50_ns=250_000, segments_out=1000, **parts_ns)


def attribute(*cases: Case) -> tuple[Evidence, Cycle, Limit]:
    """The result of attribution for trials of these loads, with the setting of the first."""
    return find_limit([case.trial(number) for number, case in enumerate(cases)], cases[0].setting())


def limit_of(*cases: Case) -> Limit:
    return attribute(*cases)[2]
