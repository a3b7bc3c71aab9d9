"""Facts about an arm from its good trials. They are sums over trials, so that the same rules apply to one trial and to several.

None always means *unknown*: an older file, a path without a link, a kernel that does not report it. `rules.py` judges these facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Literal

from howfar.bottleneck.acknowledgement import ACKNOWLEDGEMENT
from howfar.bottleneck.traffic import CarriedTraffic, link_direction
from howfar.contract.receipt import TrialReceipt
from howfar.contract.receipt_messages import Receipt
from howfar.plan.factor import Level
from howfar.plan.factors import CONNECT
from howfar.stats.host_cpus import HostCpus, cpus_used, forwarder_share
from howfar.stats.trials import others_cpus_in_trial
from howfar.store.records import Measured, TcpRecord, Trial
from howfar.store.server_metrics import ServerMetrics, server_metrics

ROLES = ("client", "server", "forwarder", "link")
LOCK_CONFLICTS = frozenset({"1020", "1180", "1205", "1213", "3101", "23505", "40001", "40P01"})
"""Server errors that report conflicts with other transactions (MySQL's, with 1180 and 3101 of a replication group; PostgreSQL's). The
transaction starts again, and its latency includes the failed attempt."""
RTO_S = 0.2
"""Minimum retransmission timeout of Linux, after which a segment is sent again if no acknowledgement shows its loss earlier."""


@dataclass(frozen=True)
class ArmSetting:
    """Facts that an arm's trials have in common."""

    connections: int
    factors: Mapping[str, Level]
    client_cpus: tuple[int, ...]
    server_cpus: tuple[int, ...]
    rest_rtt_s: float | None
    """RTT of the link, measured without load. None: no link."""
    machine_cpus: int | None
    """Number of the machine's CPUs."""
    fsync_s: float | None
    """Median time to make one write durable on the data's file system."""
    acknowledgement_s: float | None = None
    """Time of the round trips to another server for which a commit waits, without load. None: no commit waits for one."""
    hosts_rtt_s: float | None = None
    """Part of a ping's time over the link that is due to the hosts, not to the requested delay. None: no link, or unknown."""
    unevenness: float = 1.0
    """`model.facts.unevenness` of the workload."""


@dataclass(frozen=True)
class Role:
    """Seconds of CPU time and of waiting for a CPU."""

    cpu_s: float = 0.0
    wait_s: float = 0.0
    busiest_s: float = 0.0
    """CPU time of the busiest thread, summed over trials."""
    threads: int = 0


@dataclass(frozen=True)
class CpuSet:
    """The CPUs of a host, and their users, as shares of their time."""

    name: str
    cpus: int
    busy: float | None
    """Share of the time in which the CPUs were busy. None: not recorded."""
    owners: dict[str, float]
    """Shares by role. `link` is the emulator; `others` are programs that belong to no role."""

    @property
    def used(self) -> float:
        """Share that is known to be in use."""
        return self.busy if self.busy is not None else sum(self.owners.values())

    @property
    def own_use(self) -> float:
        """Share used by the load and its instrument."""
        return sum(share for role, share in self.owners.items() if role != "others")


@dataclass(frozen=True)
class Tcp:
    """TCP connections of one host: shares of the time in which they had data in flight or to send, and of the whole window."""

    busy_share: float
    rwnd_of_busy: float
    rwnd_of_window: float
    sndbuf_of_busy: float
    sndbuf_of_window: float
    rtt_stretch: float | None
    """Smoothed RTT divided by the minimum RTT: high if a queue is full."""


@dataclass(frozen=True)
class Evidence:
    """All facts about an arm. Times are in seconds; `*_share` are between 0 and 1."""

    setting: ArmSetting
    elapsed_s: float
    transactions: int
    round_trips: float
    """Round trips per transaction, with those of opening its connection if it opens one."""
    errors_share: float
    """Share of failed transactions in those that finished or failed. Lock conflicts do not count as failures."""
    roles: dict[str, Role]
    server_cpus: CpuSet
    client_cpus: CpuSet
    to_client: CarriedTraffic | None
    to_server: CarriedTraffic | None
    tcp: dict[str, Tcp]
    """Shares by host. Empty: unknown, for example if each transaction opens a connection, because a kernel reports only connections
    that still exist."""
    retransmits: float | None
    """Retransmitted segments per transaction, both hosts."""
    retransmit_share: float | None
    """Retransmitted segments as a share of all segments of this load, both directions."""
    timeouts: float | None
    """Expired retransmission timers per transaction, both hosts. None: not counted."""
    lock_waits: float | None
    """Waits for locks per transaction."""
    lock_s: float | None
    """Time waiting for row locks per transaction. One server counts only whole milliseconds of each wait."""
    fsyncs: float | None
    """Writes made durable per transaction."""
    commits: float | None
    threads_running: float | None
    """Running threads at the end of the windows, mean."""
    forwarder_share: Mapping[str, float] = field(default_factory=lambda: {"client": 0.5, "server": 0.5})
    """By host, see `stats.host_cpus.forwarder_share`."""
    measured_acknowledgement_s: float | None = None
    """Mean wait of commits for another server, as servers measured it; a group of commits may wait once. None: they measured none."""

    @property
    def cycle_s(self) -> float:
        """Cycle of a connection in a closed loop: connections x elapsed / transactions."""
        return self.setting.connections * self.elapsed_s / self.transactions

    @property
    def throughput(self) -> float:
        return self.transactions / self.elapsed_s

    def role(self, name: str) -> Role:
        return self.roles.get(name, Role())

    def thread_share(self, name: str) -> float:
        """Share of the time that the busiest thread of a role was on a CPU."""
        return self.role(name).busiest_s / self.elapsed_s

    @property
    def client_workers(self) -> int:
        """Threads that serve connections, one per CPU. The engine's main thread sleeps meanwhile."""
        return max(1, min(self.role("client").threads - 1, len(self.setting.client_cpus)))

    @property
    def client_waited_share(self) -> float:
        """Share of the time in which a worker of the client was runnable and had no CPU."""
        return self.role("client").wait_s / (self.elapsed_s * self.client_workers)

    @property
    def directions(self) -> tuple[CarriedTraffic, ...]:
        return tuple(link for link in (self.to_client, self.to_server) if link is not None)

    @property
    def cpu_sets(self) -> tuple[CpuSet, ...]:
        """The sets of CPUs without repetition: one set if client and server share a host, otherwise the server's and the client's."""
        if self.setting.client_cpus == self.setting.server_cpus:
            return (self.server_cpus,)
        return (self.server_cpus, self.client_cpus)

    @property
    def fsync_busy_share(self) -> float | None:
        """Share of the time that the durable writes would take one after the other."""
        if self.fsyncs is None or self.setting.fsync_s is None:
            return None
        return self.fsyncs * self.throughput * self.setting.fsync_s


def gather_evidence(trials: Sequence[Trial], setting: ArmSetting) -> Evidence:
    """Collect the evidence from good trials, at least one."""
    good = [trial.measured for trial in trials if trial.measured is not None]
    transactions = sum(m.transactions for m in good)
    assert transactions > 0, "good trials have transactions"
    elapsed_s = sum(m.elapsed_ns for m in good) / 1e9
    roles = {name: role_record for name in ROLES if (role_record := _role(good, name)) is not None}
    round_trips = sum(m.round_trips for m in good) / transactions + connect_round_trips(
        [t.receipt for t in trials], setting.factors
    )
    failed = sum(n for m in good for code, n in m.errors.items() if code not in LOCK_CONFLICTS)
    retransmits = _retransmits_per_transaction(trials)
    to_client = link_direction(trials, setting.factors, "to_client")
    to_server = link_direction(trials, setting.factors, "to_server")
    lock_waits, lock_s = _lock_waits(trials)
    return Evidence(
        setting=setting,
        elapsed_s=elapsed_s,
        transactions=transactions,
        round_trips=round_trips,
        errors_share=failed / (transactions + failed),
        roles=roles,
        server_cpus=_cpu_set("server", trials, setting),
        client_cpus=_cpu_set("client", trials, setting),
        forwarder_share={host: _forwarder_share(trials, host) for host in ("client", "server")},
        to_client=to_client,
        to_server=to_server,
        tcp={} if connects_each_time(setting.factors) else _tcp(trials),
        retransmits=retransmits,
        retransmit_share=_retransmit_share(retransmits, to_client, to_server),
        timeouts=_timeouts_per_transaction(trials),
        lock_waits=lock_waits,
        lock_s=lock_s,
        fsyncs=_server_count_per_transaction(trials, lambda metrics: metrics.fsyncs),
        commits=_server_count_per_transaction(trials, lambda metrics: metrics.commits),
        threads_running=_threads_running(trials),
        measured_acknowledgement_s=ACKNOWLEDGEMENT.mean_wait_s(trials),
    )


def _role(good: Sequence[Measured], name: str) -> Role | None:
    records = [cpu for m in good for cpu in m.cpu if cpu.role == name]
    if not records:
        return None
    return Role(
        cpu_s=sum(cpu.cpu_ns for cpu in records) / 1e9,
        wait_s=sum(cpu.runnable_wait_ns for cpu in records) / 1e9,
        busiest_s=sum(cpu.busiest_thread_ns for cpu in records) / 1e9,
        threads=max(cpu.threads for cpu in records),
    )


def _cpu_set(name: Literal["server", "client"], trials: Sequence[Trial], setting: ArmSetting) -> CpuSet:
    """CPUs of a host and their users, by the medians of `stats.host_cpus`. Without counts per CPU, the use by emulator and others
    counts as spread over all CPUs."""
    cpus = setting.server_cpus if name == "server" else setting.client_cpus
    count = max(len(cpus), 1)
    all_cpus = len({*setting.server_cpus, *setting.client_cpus})
    host = HostCpus(frozenset(cpus), setting.machine_cpus or all_cpus or count)
    roles = (name,) if setting.client_cpus != setting.server_cpus else ("server", "client")
    share_by_role = dict.fromkeys(roles, 1.0)
    if forwarder_cpu_share := sum(_forwarder_share(trials, role) for role in roles):
        share_by_role["forwarder"] = forwarder_cpu_share
    measured_trials = [(trial, trial.measured) for trial in trials if trial.measured is not None]
    present = {use.role for _, measured in measured_trials for use in measured.cpu}
    owners = {
        role: median(share * cpus_used(measured, (role,)) for _, measured in measured_trials) / count
        for role, share in share_by_role.items()
        if role in present
    }
    if emulator_cpus := host.link_cpus(trials):
        owners["link"] = emulator_cpus / count
    trials_with_counts = [
        trial
        for trial, _ in measured_trials
        if host.complete_window(trial) is not None or others_cpus_in_trial(trial) is not None
    ]
    if trials_with_counts:
        owners["others"] = median(_others_cpus(host, trial, share_by_role) for trial in trials_with_counts) / count
    # Sampled ticks miss short wake-ups; the CPU times of our own processes do not.
    busy = host.busy_share(trials)
    return CpuSet(name, count, None if busy is None else min(max(busy, sum(owners.values())), 1.0), owners)


def _forwarder_share(trials: Sequence[Trial], host: str) -> float:
    return forwarder_share([trial.receipt for trial in trials], host)


def _others_cpus(host: HostCpus, trial: Trial, share_by_role: Mapping[str, float]) -> float:
    own_cpus = sum(share * cpus_used(trial.measured, (role,)) for role, share in share_by_role.items())
    return host.others_cpus(trial, own_cpus)


def _tcp(trials: Sequence[Trial]) -> dict[str, Tcp]:
    tcp_by_host = {}
    for host in ("client", "server"):
        counted = [
            (record, trial.window.length_ns / 1e9)
            for trial in trials
            if trial.window is not None
            for record in trial.window.tcp
            if record.host == host and record.busy_ns is not None and record.connections
        ]
        if counted:
            tcp_by_host[host] = _tcp_shares(counted)
    return tcp_by_host


def _tcp_shares(counted: Sequence[tuple[TcpRecord, float]]) -> Tcp:
    busy_s = sum(r.busy_ns or 0 for r, _ in counted) / 1e9
    rwnd_s = sum(r.rwnd_limited_ns or 0 for r, _ in counted) / 1e9
    sndbuf_s = sum(r.sndbuf_limited_ns or 0 for r, _ in counted) / 1e9
    window_s = sum(r.connections * length_s for r, length_s in counted)
    stretches = [r.rtt_p50_ns / r.min_rtt_ns for r, _ in counted if r.min_rtt_ns]
    return Tcp(
        busy_share=busy_s / window_s,
        rwnd_of_busy=rwnd_s / busy_s if busy_s else 0.0,
        rwnd_of_window=rwnd_s / window_s,
        sndbuf_of_busy=sndbuf_s / busy_s if busy_s else 0.0,
        sndbuf_of_window=sndbuf_s / window_s,
        rtt_stretch=sum(stretches) / len(stretches) if stretches else None,
    )


def _per_transaction(counted: Sequence[tuple[Trial, int]]) -> float | None:
    """Mean count per transaction, over the trials that have a count."""
    transactions = sum(trial.measured.transactions for trial, _ in counted if trial.measured is not None)
    return sum(count for _, count in counted) / transactions if transactions else None


def _retransmits_per_transaction(trials: Sequence[Trial]) -> float | None:
    return _per_transaction([(t, t.window.network[-1].retransmits) for t in trials if t.window and t.window.network])


def _timeouts_per_transaction(trials: Sequence[Trial]) -> float | None:
    return _per_transaction([(t, t.window.timeouts) for t in trials if t.window and t.window.timeouts is not None])


def _retransmit_share(retransmits: float | None, *directions: CarriedTraffic | None) -> float | None:
    sent = sum(link.segments for link in directions if link is not None)
    return retransmits / sent if retransmits is not None and sent else None


def _server_count_per_transaction(
    trials: Sequence[Trial], metric: Callable[[ServerMetrics], int | None]
) -> float | None:
    """One of the server's counters per transaction. None: the server does not have it."""
    counts = [(t, metric(server_metrics(t.window.server))) for t in trials if t.window]
    return _per_transaction([(t, count) for t, count in counts if count is not None])


def _lock_waits(trials: Sequence[Trial]) -> tuple[float | None, float | None]:
    waits = _server_count_per_transaction(trials, lambda metrics: metrics.lock_waits)
    time_ms = _server_count_per_transaction(trials, lambda metrics: metrics.lock_wait_ms)
    if waits is None or time_ms is None:
        return waits, None
    return waits, (time_ms + waits) / 1e3


def _threads_running(trials: Sequence[Trial]) -> float | None:
    readings = [server_metrics(t.window.server).running for t in trials if t.window]
    known = [running for running in readings if running is not None]
    return sum(known) / len(known) if known else None


# ---------------------------------------------------------------- a connection per transaction

_PLAIN_ROUND_TRIPS = 4
"""Round trips to connect (TCP, greeting, login, prepared statements), used if a receipt does not count them."""


def connects_each_time(factors: Mapping[str, Level]) -> bool:
    return CONNECT.level_in(factors) == "per-transaction"


def connect_round_trips(receipts: Sequence[TrialReceipt], factors: Mapping[str, Level]) -> float:
    """Round trips to connect, per transaction of an arm's good trials. 0: its connections stay open, or no receipt counts them."""
    if not connects_each_time(factors):
        return 0.0
    counts = [_round_trips(session) for receipt in receipts if (session := receipt.session) is not None]
    return mean(counts) if counts else 0.0


def _round_trips(session: Receipt) -> int:
    if session.connect_turns is not None:
        return session.connect_turns
    if session.tls_version is None:
        return _PLAIN_ROUND_TRIPS
    has_longer_handshake = session.tls_version == "TLSv1.2" or session.tls_retried is True
    return _PLAIN_ROUND_TRIPS + (2 if has_longer_handshake and not session.tls_resumed else 1)
