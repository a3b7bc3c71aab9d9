"""One crash: a load on a primary and its replicas, a fault at a given time, promotion of a replica, and its rows compared with the
clients' logs."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from howfar.contract.messages import Event, LoadJob
from howfar.contract.receipt import InjectedFault, ReplicationReceipt
from howfar.contract.replication_receipt import ReplicationWindow, Snapshot
from howfar.contract.violation import join_sentences
from howfar.engine.acknowledged import KeyLog, KeyOutcome
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome
from howfar.errors import LabError, NotAsConfigured
from howfar.experiments.replication.fault.under_load import (
    BackgroundLoad,
    CpuWatch,
    MeasureLoad,
    watch_keys,
    with_key_log,
)
from howfar.experiments.replication.inserts import TABLE
from howfar.experiments.replication.lab import ReplicaSet
from howfar.experiments.replication.lab.dialect import JoinMode
from howfar.experiments.replication.lab.links import ReplicationLink
from howfar.experiments.replication.lab.member import Member, wait_for
from howfar.experiments.replication.lab.proof import latency_violation
from howfar.experiments.replication.lab.replica_set import promote
from howfar.experiments.replication.lab.watch import AcknowledgedCommit, LagSample, LagWatch, Writers
from howfar.experiments.replication.records import CpuShares, CrashRecord, JoinRecord
from howfar.lab.link import DIRECTIONS
from howfar.plan.quantities import rtt_tolerance_ns

Keys = NDArray[np.int64]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class ClientLog:
    """One client's keys by outcome, from its log."""

    acknowledged: Keys
    refused: Keys
    unknown: Keys


@dataclass(frozen=True)
class KeyComparison:
    """The clients' keys compared with those on the survivor, the server that took over. Keys are ascending. An acknowledged key is
    either kept or lost; a refused or unknown key is either applied or absent."""

    kept: int
    """Number of keys that were acknowledged and are on the survivor."""
    lost: Keys
    """Keys that were acknowledged and are not on the survivor."""
    applied_unknown: Keys
    """Keys on the survivor whose client got no answer: the commits were in flight."""
    absent_unknown: int
    applied_refused: Keys
    """Keys on the survivor whose client received an error."""
    absent_refused: int
    uninserted: Keys
    """Keys on the survivor that no client inserted. They come from another run, or from a client whose log is missing."""
    duplicates: Keys
    """Keys that occur more than once on the survivor."""
    repeated: Keys
    """Keys inserted more than once: two clients took keys from the same sequence, so it is unknown whose row survived."""

    @property
    def acknowledged(self) -> int:
        return self.kept + len(self.lost)

    @property
    def is_sound(self) -> bool:
        """Whether each key identifies one client and one row, so that the comparison can be trusted."""
        return not (len(self.uninserted) or len(self.duplicates) or len(self.repeated))


def compare_keys(logs: Sequence[ClientLog], found: Keys) -> KeyComparison:
    """Compare the clients' logs with all keys `found` on the survivor, in any order and with repetitions."""
    present, occurrences = np.unique(np.asarray(found, np.int64), return_counts=True)
    acknowledged = _concatenated([log.acknowledged for log in logs])
    refused = _concatenated([log.refused for log in logs])
    unknown = _concatenated([log.unknown for log in logs])
    sent, sent_counts = np.unique(np.concatenate([acknowledged, refused, unknown]), return_counts=True)
    repeated = sent[sent_counts > 1]
    acknowledged, refused, unknown = (
        np.setdiff1d(keys, repeated, assume_unique=False) for keys in (acknowledged, refused, unknown)
    )
    lost = np.setdiff1d(acknowledged, present, assume_unique=True)
    applied_unknown = np.intersect1d(unknown, present, assume_unique=True)
    applied_refused = np.intersect1d(refused, present, assume_unique=True)
    return KeyComparison(
        kept=len(acknowledged) - len(lost),
        lost=lost,
        applied_unknown=applied_unknown,
        absent_unknown=len(unknown) - len(applied_unknown),
        applied_refused=applied_refused,
        absent_refused=len(refused) - len(applied_refused),
        uninserted=np.setdiff1d(present, sent, assume_unique=True),
        duplicates=present[occurrences > 1],
        repeated=repeated,
    )


def _concatenated(parts: Sequence[Keys]) -> Keys:
    return np.concatenate([np.empty(0, np.int64), *parts])


@dataclass(frozen=True)
class VisibilityComparison:
    """Keys that another connection (the watcher) saw, ascending. `early_ns` has one duration for each key of `early`; both of its ends
    are read from the same monotonic clock. The key was visible no later than when the answer of the poll that saw it arrived, so each
    duration is a lower bound."""

    early: Keys
    """Keys seen before their acknowledgement had arrived at the client."""
    early_ns: Times
    """How long before its acknowledgement each key of `early` was seen."""
    unacknowledged: Keys
    """Keys that were seen but never acknowledged."""
    phantoms: Keys
    """Keys that were seen but are not on the survivor."""


def compare_visibility(
    seen: Keys, seen_ns: Times, acknowledged: Keys, acknowledged_ns: Times, survivor: Keys
) -> VisibilityComparison:
    """Compare the watcher's keys with the clients' acknowledgements and with the survivor's keys. No array contains a key twice."""
    both, at_seen, at_acknowledged = np.intersect1d(seen, acknowledged, assume_unique=True, return_indices=True)
    before_ns = acknowledged_ns[at_acknowledged] - seen_ns[at_seen]
    return VisibilityComparison(
        early=both[before_ns > 0],
        early_ns=before_ns[before_ns > 0],
        unacknowledged=np.setdiff1d(seen, acknowledged, assume_unique=True),
        phantoms=np.setdiff1d(seen, survivor, assume_unique=True),
    )


FAILOVER_NS = 1_000_000_000
"""Time from the fault until the primary is killed, if it survives the fault. The choice is arbitrary: with asynchronous
replication, each further second loses about the same number of commits again."""
_RECEIVER_STOP_TIMEOUT_S = 30.0
"""Time limit for a replica to stop receiving, which it does at the next event that arrives."""


class FaultKind(InjectedFault):
    """One level of the factor `fault`."""

    arrival: JoinMode | None = None


_CLUSTER_TIMEOUT_S = 60.0
"""Time limit for a cluster to continue without a member, and for a member to come back. By default a cluster expels an unreachable
member after 5 to 10 s."""
FAULTS: dict[str, FaultKind] = {
    "kill-primary": FaultKind(),
    "cut": FaultKind(cut=DIRECTIONS, failover_ns=FAILOVER_NS),
    "cut-to-replica": FaultKind(cut=("to_client",), failover_ns=FAILOVER_NS),
    "cut-to-primary": FaultKind(cut=("to_server",), failover_ns=FAILOVER_NS),
    "stop-replica": FaultKind(stops_receiving=True, failover_ns=FAILOVER_NS),
    "cut-off-primary": FaultKind(cut=DIRECTIONS, failover_ns=FAILOVER_NS, members=(0,)),
    "partition": FaultKind(cut=DIRECTIONS, failover_ns=FAILOVER_NS, members=(0, 1)),
    "cut-off-member": FaultKind(cut=DIRECTIONS, members=(-1,), lives_ns=20_000_000_000),
    "member-returns": FaultKind(cut=DIRECTIONS, members=(-1,), away_ns=3_000_000_000, lives_ns=10_000_000_000),
    "member-restarts": FaultKind(members=(-1,), away_ns=3_000_000_000, failover_ns=FAILOVER_NS, arrival="returns"),
    "member-joins": FaultKind(members=(-1,), failover_ns=FAILOVER_NS, arrival="new"),
    "slow-member": FaultKind(members=(-1,), runs=0.1, away_ns=10_000_000_000, lives_ns=15_000_000_000),
}


@dataclass(frozen=True)
class FaultTimeline:
    """Monotonic times of a fault."""

    fault_ns: int
    """Right before the first action of the fault."""
    in_force_ns: int
    """When all actions of the fault were done."""
    dead_ns: int
    """Right before the primary was killed."""
    restored_ns: int | None = None
    """When the member's fault was removed, or when the member had joined. None: never."""
    rejoin_duration_ns: int | None = None
    """Time from `restored_ns` until it was a full member again; for a member that joined, from the start of its server. None: not
    within `_CLUSTER_TIMEOUT_S`."""
    joined: JoinRecord | None = None
    """Record of a member that left and joined. The fault was in force while it joined."""


@runtime_checkable
class _ServedByGroup(Protocol):
    server_group: object


@runtime_checkable
class _Replicated(Protocol):
    replica_set: ReplicaSet


def replica_set_of(environment: object) -> ReplicaSet:
    """The primary and its replicas of a trial environment; only for cells with replicas."""
    assert isinstance(environment, _ServedByGroup), "the laboratory's environments have a group of servers"
    group = environment.server_group
    assert isinstance(group, _Replicated), "the cell has replicas"
    return group.replica_set


# A member that leaves and rejoins. Its traffic is everything that it received over its links from the start of its server until it was
# a full member, including the load's writes. It is counted in two ways: by the kernel at the senders' interfaces, and by the links.

JOIN_TIMEOUT_S = 300.0
"""Time limit for a member to become a full member again."""


@dataclass(frozen=True)
class JoinResult:
    began_ns: int
    """Monotonic time at which its server was started."""
    ended_ns: int
    record: JoinRecord


def leave(member: Member) -> None:
    """Shut the member down, as for maintenance. Raises LabError, ServerCrashed."""
    member.server.shut_down()


def join(replica_set: ReplicaSet, member: Member, join_mode: JoinMode) -> JoinResult:
    """Start the member again and wait until it is a full member. Raises LabError, ServerCrashed."""
    assert member.seed is not None, "faults are injected only in the laboratory"
    links = replica_set.external_links([member])
    before, began_ns = _traffic_to_member(links), time.monotonic_ns()
    how = replica_set.dialect.rejoin(member, replace(member.seed, join_mode=join_mode), JOIN_TIMEOUT_S)
    ended_ns = time.monotonic_ns()
    traffic = {name: count - before[name] for name, count in _traffic_to_member(links).items()}
    name, donor_traffic = max(traffic.items(), key=lambda item: item[1].link)
    link = next(link for link in links if link.name == name)
    (donor,) = set(replica_set.member_names(link)) - {member.name}
    record = JoinRecord(
        how=how,
        took_ns=ended_ns - began_ns,
        received_bytes=sum(count.kernel for count in traffic.values()),
        wire_bytes=sum(count.link for count in traffic.values()),
        donor=donor,
        donor_wire_bytes=donor_traffic.link,
        segments=sum(count.segments for count in traffic.values()),
        packets=sum(count.packets for count in traffic.values()),
    )
    return JoinResult(began_ns, ended_ns, record)


class _LinkTraffic(NamedTuple):
    """Traffic to a member over one link. `kernel` and `link` are bytes, as each of the two counts them."""

    kernel: int
    link: int
    segments: int
    packets: int

    def __sub__(self, before: _LinkTraffic) -> _LinkTraffic:
        return _LinkTraffic(*(now - then for now, then in zip(self, before, strict=True)))


def _traffic_to_member(links: Sequence[ReplicationLink]) -> dict[str, _LinkTraffic]:
    """Traffic to the last member, by link. As the last, it is at the client's end of each of its links."""
    traffic = {}
    for link in links:
        sent_bytes, counters = link.sent_bytes(), link.counters()
        assert sent_bytes is not None and counters is not None, "faults are injected only in the laboratory"
        to_member = counters.to_client
        traffic[link.name] = _LinkTraffic(sent_bytes, to_member.wire_bytes, to_member.segments, to_member.packets)
    return traffic


def apply_fault(
    replica_set: ReplicaSet, kind: FaultKind, pause: Callable[[int], None], stack: ExitStack
) -> tuple[FaultTimeline, Writers | None]:
    """Apply the fault. Returns its times, and for a cluster, the clients that write to its other nodes from then on. `pause` waits
    under load for a number of nanoseconds. The caller restores the links. Raises LabError, LinkFailed."""
    affected = _affected_members(replica_set, kind)
    member = next(iter(affected), None)
    if member is not None and kind.arrival is not None:
        return _restart_member(replica_set, member, kind, pause, stack)
    fault_ns = time.monotonic_ns()
    for link in (replica_set.external_links(affected) if affected else replica_set.links) if kind.cut else ():
        link.cut(kind.cut)
    slowed = stack.enter_context(ExitStack())
    if member is not None and kind.runs < 1:
        slowed.enter_context(slow_down(member.server.pid, kind.runs))
    for replica in replica_set.replicas if kind.stops_receiving else ():
        replica_set.dialect.stop_receiving(replica, _RECEIVER_STOP_TIMEOUT_S)
    in_force_ns = time.monotonic_ns()
    writers = Writers(replica_set) if replica_set.spec.cluster else None
    if writers is not None:
        stack.callback(writers.finish)
        if kind.failover_ns:
            writers.wait_for_commit(in_force_ns, _CLUSTER_TIMEOUT_S)
    restored_ns = rejoin_duration_ns = None
    if member is not None and kind.away_ns:
        pause(kind.away_ns)
        restore_links(replica_set, kind)
        slowed.close()
        restored_ns = time.monotonic_ns()
        rejoin_duration_ns = _await_full_member(member, restored_ns)
    if kind.failover_ns:
        pause(kind.failover_ns)
    dead_ns = time.monotonic_ns()
    if not kind.lives_ns:
        replica_set.primary.server.kill()
    if not (kind.cut or kind.stops_receiving or kind.lives_ns):  # the kill itself is the fault
        in_force_ns = time.monotonic_ns()
    if writers is not None and not kind.lives_ns:
        writers.wait_for_commit(dead_ns, _CLUSTER_TIMEOUT_S)
    return FaultTimeline(fault_ns, in_force_ns, dead_ns, restored_ns, rejoin_duration_ns), writers


def _affected_members(replica_set: ReplicaSet, kind: FaultKind) -> tuple[Member, ...]:
    return tuple(replica_set.members[number] for number in kind.members)


def _restart_member(
    replica_set: ReplicaSet, member: Member, kind: FaultKind, pause: Callable[[int], None], stack: ExitStack
) -> tuple[FaultTimeline, Writers]:
    """Let the member leave and join, then kill the primary."""
    assert kind.arrival is not None
    fault_ns = time.monotonic_ns()
    writers = Writers(replica_set)
    stack.callback(writers.finish)
    leave(member)
    pause(kind.away_ns)
    joined = join(replica_set, member, kind.arrival)
    pause(kind.failover_ns)
    dead_ns = time.monotonic_ns()
    replica_set.primary.server.kill()
    writers.wait_for_commit(dead_ns, _CLUSTER_TIMEOUT_S)
    timeline = FaultTimeline(fault_ns, joined.began_ns, dead_ns, joined.ended_ns, joined.record.took_ns, joined.record)
    return timeline, writers


def _await_full_member(member: Member, since_ns: int) -> int | None:
    """Time from `since_ns` until the member is a full member again. None: it took too long. A member outside its cluster may refuse
    queries."""

    def is_full_member() -> bool:
        with suppress(LabError):
            facts = member.read_node_facts()
            return facts is not None and not facts.mismatches
        return False

    with suppress(LabError):
        wait_for(is_full_member, _CLUSTER_TIMEOUT_S, lambda: f"{member.name} did not come back")
        return time.monotonic_ns() - since_ns
    return None


_STOP_PERIOD_S = 0.1


@contextmanager
def slow_down(pid: int, running_share: float) -> Iterator[None]:
    """Slow a child process down until the context ends, by stopping and continuing it periodically. `running_share`: share of each
    period in which it runs, above 0 and below 1."""
    assert 0 < running_share < 1, "the process runs for a part of each period"
    ended = threading.Event()

    def stop_and_continue() -> None:
        with suppress(ProcessLookupError):
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                ended.wait(_STOP_PERIOD_S * (1 - running_share))
                os.kill(pid, signal.SIGCONT)
                ended.wait(_STOP_PERIOD_S * running_share)

    thread = threading.Thread(target=stop_and_continue, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def restore_links(replica_set: ReplicaSet, kind: FaultKind) -> None:
    """Restore all links, so that nothing stays cut for the next trial. Raises LinkFailed."""
    for link in replica_set.links if kind.cut else ():
        link.restore()


MAX_LOST_KEYS_RECORDED = 20
_MAX_KEYS_NAMED = 3
"""Maximum number of keys named in a void trial's reason."""


@dataclass(frozen=True)
class Survivor:
    """The server that took over, and all its keys."""

    name: str
    keys: Keys
    promotion_ns: int
    unapplied: int


@dataclass(frozen=True)
class StateBeforeFault:
    """The state right before the fault."""

    window_began_ns: int
    """Monotonic time at which the measured window began."""
    behind: int | None
    """Number of transactions that the most advanced replica had not applied. None: unknown."""
    applied: int | None
    """Number of transactions that this replica had applied since the load began."""
    cpus: CpuShares | None
    unreceived: int | None
    heartbeat_age_ns: int | None
    rtt_ns: int


def crash_record(
    fault: str,
    timeline: FaultTimeline,
    before: StateBeforeFault,
    log: KeyLog,
    watcher_log: KeyLog,
    poll_interval_ns: int,
    survivor: Survivor,
) -> CrashRecord:
    """The record of a crash. Raises LabError if the logs contradict each other, see `check_comparison`."""
    acknowledged, acknowledged_ns = log.ended(KeyOutcome.ACKNOWLEDGED)
    client = ClientLog(log.keys(KeyOutcome.ACKNOWLEDGED), log.keys(KeyOutcome.REFUSED), log.keys(KeyOutcome.UNKNOWN))
    comparison = compare_keys([client], survivor.keys)
    check_comparison(comparison)
    visibility = compare_visibility(
        *watcher_log.ended(KeyOutcome.SEEN), acknowledged, acknowledged_ns, np.unique(survivor.keys)
    )
    lost_ns = np.sort(acknowledged_ns[np.isin(acknowledged, comparison.lost)])
    in_window = (acknowledged_ns > before.window_began_ns) & (acknowledged_ns <= timeline.fault_ns)
    since_load_ns = timeline.fault_ns - log.origin_ns
    return CrashRecord(
        fault=fault,
        fault_ns=since_load_ns,
        in_force_ns=timeline.in_force_ns - log.origin_ns,
        dead_ns=timeline.dead_ns - log.origin_ns,
        watched_ns=poll_interval_ns,
        commits_per_s=int(np.count_nonzero(in_window)) / ((timeline.fault_ns - before.window_began_ns) / 1e9),
        acknowledged=comparison.acknowledged,
        lost=len(comparison.lost),
        lost_after=int(np.count_nonzero(lost_ns > timeline.fault_ns)),
        lost_in_force=int(np.count_nonzero(lost_ns > timeline.in_force_ns)),
        first_lost_ns=int(lost_ns[0]) - log.origin_ns if len(lost_ns) else None,
        refused=len(client.refused),
        unknown=len(client.unknown),
        applied_unknown=len(comparison.applied_unknown),
        applied_refused=len(comparison.applied_refused),
        seen=watcher_log.count(KeyOutcome.SEEN),
        seen_early=len(visibility.early) + len(visibility.unacknowledged),
        seen_early_median_ns=int(np.median(visibility.early_ns)) if len(visibility.early) else None,
        phantoms=len(visibility.phantoms),
        behind_before=before.behind,
        unreceived_before=before.unreceived,
        applied_per_s_before=None if before.applied is None else before.applied / (since_load_ns / 1e9),
        cpus_before=before.cpus,
        heartbeat_before_ns=before.heartbeat_age_ns,
        replica_rtt_ns=before.rtt_ns,
        promoted=survivor.name,
        promotion_ns=survivor.promotion_ns,
        unapplied=survivor.unapplied,
        lost_keys=tuple(int(key) for key in comparison.lost[:MAX_LOST_KEYS_RECORDED]),
    )


def cluster_fields(
    log: KeyLog,
    writes: Sequence[AcknowledgedCommit],
    timeline: FaultTimeline,
    ended_ns: int,
    cut_off: Set[str],
    primary_survived: bool = False,
) -> dict[str, int | float | JoinRecord | None]:
    """Additional fields of a cluster's record, from the clients at the primary and at the other nodes. `ended_ns`: when all clients
    had stopped writing. `cut_off`: names of the nodes that were cut off.

    `primary_survived`: whether the primary survived the fault, so that its commit rate is meaningful.
    """
    records = log.records[log.records["fate"] == KeyOutcome.ACKNOWLEDGED]
    sent_ns, times = (records[name].astype(np.int64) + log.origin_ns for name in ("sent_ns", "ended_ns"))
    isolated = (sent_ns > timeline.in_force_ns) & ("primary" in cut_off)
    if timeline.joined is not None:
        # A join is judged until the primary's death; the failover after it is not part of it.
        ended_ns = timeline.dead_ns
    restored_ns = ended_ns if timeline.restored_ns is None else timeline.restored_ns
    other_commits_ns = [write.ended_ns for write in writes if write.node not in cut_off or write.ended_ns > restored_ns]
    commits_during_fault = np.count_nonzero((times > timeline.in_force_ns) & (times <= restored_ns))
    times = np.sort(np.concatenate([times[~isolated], np.array([*other_commits_ns, ended_ns], np.int64)]))
    times = times[times <= ended_ns]
    last_before_fault = max(int(np.searchsorted(times, timeline.fault_ns)) - 1, 0)
    return {
        "stall_ns": int(np.diff(times[last_before_fault:]).max(initial=0)),
        "by_itself": int(np.count_nonzero(isolated)) + len(writes) - len(other_commits_ns),
        "meanwhile_per_s": commits_during_fault / ((restored_ns - timeline.in_force_ns) / 1e9)
        if primary_survived
        else None,
        "back_ns": timeline.rejoin_duration_ns,
        "joined": timeline.joined,
    }


def check_comparison(comparison: KeyComparison) -> None:
    """Check that a comparison is sound. Raises LabError, which names some of the keys."""
    problems = [
        (comparison.uninserted, "rows of the survivor that no client inserted"),
        (comparison.duplicates, "keys that are on the survivor more than once"),
        (comparison.repeated, "keys that were inserted more than once"),
    ]
    phrases = [
        f"{len(keys)} {what} ({', '.join(str(key) for key in keys[:_MAX_KEYS_NAMED])})"
        for keys, what in problems
        if len(keys)
    ]
    if phrases:
        raise LabError(f"the losses of this crash cannot be determined: {'; '.join(phrases)}")


_LOAD_MARGIN_NS = 20_000_000_000
"""How long the load would continue after the failover if its server did not die."""
_QUIET_S, _QUIET_RTTS = 0.3, 4
"""If nothing has arrived at a replica for this long after the primary's death, nothing more will: a fixed time plus round trips."""
_ARRIVAL_TIMEOUT_S = 60.0
_POLL_S = 0.01
_KEYS_QUERY_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class FaultContext:
    """The primary and replicas of a trial with a fault, and its clients."""

    replica_set: ReplicaSet
    launcher: Launcher
    """Starts clients."""
    rtt_ns: int
    """RTT to the replica that a commit waits for, without load."""
    measure: MeasureLoad
    on_event: Callable[[Event], None]

    @property
    def logs(self) -> Path:
        """A directory for logs. It outlives the primary, and is removed together with the replica set."""
        return self.replica_set.primary.server.socket.parent


@dataclass
class CrashResult:
    """Result of a crash."""

    record: CrashRecord
    outcome: LoadOutcome
    receipt: ReplicationReceipt
    """The facts about replication that were verified before the fault, and the definition of the fault."""


def run_crash(context: FaultContext, job: LoadJob, fault: str, after_ns: int) -> CrashResult:
    """Run a load with a fault `after_ns` after the beginning of the measured window. Raises LabError, EngineError if the losses cannot
    be determined, for example because semi-synchronous replication had already fallen back to asynchronous replication, or no server
    can take over."""
    replica_set, kind = context.replica_set, FAULTS[fault]
    changes: dict[str, object] = {"observe": ()}  # CPU time would be read at the end, when the server no longer exists
    if replica_set.spec.cluster:
        changes["ignore_errors"] = "all"  # a node that is cut off refuses commits, which must not end the load
    extra_ns = kind.lives_ns or kind.failover_ns + _LOAD_MARGIN_NS + replica_set.spec.cluster * int(
        _CLUSTER_TIMEOUT_S * 1e9
    )
    if kind.arrival is not None:
        extra_ns += kind.away_ns + int(JOIN_TIMEOUT_S * 1e9)
    logged_job = with_key_log(job.model_copy(update=changes), context.logs / "keys", after_ns + extra_ns)
    load = BackgroundLoad(logged_job, context.logs / "keys", kill=replica_set.primary.server.kill)
    with ExitStack() as stack:
        watcher = watch_keys(logged_job, context.logs / "seen", context.launcher, stack)
        first_snapshot = replica_set.snapshot()
        # Where commits wait for an acknowledgement, a heartbeat would be one more commit that others queue behind.
        lag = LagWatch(replica_set, with_heartbeat=not replica_set.spec.acknowledgements_needed)
        stack.callback(lag.finish)
        stack.callback(load.abandon)
        load.start(context.measure, context.launcher, context.on_event)
        load.await_window()
        cpus = CpuWatch([replica.server.pid for replica in replica_set.replicas])
        load.pause_until(after_ns)
        cpus_before = cpus.finish()
        # Replicas are queried before the primary, so transactions that they receive in between count as missing: the numbers may be
        # too high, never too low.
        replica_positions = [_query_positions(replica_set, replica) for replica in replica_set.replicas]
        last_snapshot = replica_set.snapshot()
        if mismatches := ReplicationWindow.between(first_snapshot, last_snapshot).violations(replica_set.spec):
            raise NotAsConfigured(f"replication was not as configured before the fault: {join_sentences(mismatches)}")
        stack.callback(restore_links, replica_set, kind)
        pause = partial(load.pause, until="the primary was killed after the fault")
        timeline, writers = apply_fault(replica_set, kind, pause, stack)
        outcome = load.finish()
        ended_ns, writes = time.monotonic_ns(), None if writers is None else writers.finish()
        samples = _samples_before_fault(lag, timeline)
        survivor = _take_over(
            replica_set,
            _failover_candidates(replica_set, kind),
            cluster_is_complete=bool(kind.away_ns) and kind.arrival is None,
        )
        if kind.lives_ns:
            timeline = replace(timeline, dead_ns=time.monotonic_ns())
            for member in replica_set.members:  # a member without its cluster would take minutes to shut down
                member.server.kill()
        seen, watched = watcher.finish()
    before = StateBeforeFault(
        window_began_ns=load.began_ns,
        **_replica_state_fields(replica_set, first_snapshot.position, last_snapshot.position, replica_positions),
        heartbeat_age_ns=samples[-1].heartbeat_ns if samples else None,
        rtt_ns=context.rtt_ns,
        cpus=cpus_before,
    )
    log = load.read_keys()
    check_commits_waited(context, log, timeline.fault_ns)
    record = crash_record(fault, timeline, before, log, seen, watched.elapsed_ns // max(watched.polls, 1), survivor)
    if writes is not None:
        cut_off = {member.name for member in _affected_members(replica_set, kind)} if kind.cut else set()
        primary_survived = bool(kind.lives_ns) or kind.arrival is not None
        record = record.model_copy(update=cluster_fields(log, writes, timeline, ended_ns, cut_off, primary_survived))
    receipt = receipt_before_fault(replica_set, first_snapshot, last_snapshot)
    receipt.fault = kind.with_defaults()
    return CrashResult(record, outcome, receipt)


def _failover_candidates(replica_set: ReplicaSet, kind: FaultKind) -> Sequence[Member]:
    """The nodes that may take over: those that were not cut off. If a member joined, only that member, to check that it has all
    data."""
    affected = _affected_members(replica_set, kind)
    return (
        affected
        if kind.arrival is not None
        else [replica for replica in replica_set.replicas if replica not in affected]
    )


def _replica_state_fields(
    replica_set: ReplicaSet, first_position: str, last_position: str, replica_positions: Sequence[tuple[str, str]]
) -> dict[str, int | None]:
    """Fields of `StateBeforeFault` about the replicas. `replica_positions`: the positions that each had received and applied."""
    count_missing = replica_set.dialect.positions.count_missing
    behind = min((count_missing(last_position, applied) for _, applied in replica_positions), default=None)
    applied = None if behind is None else max(count_missing(last_position, first_position) - behind, 0)
    return {
        "behind": behind,
        "applied": applied,
        "unreceived": _count_unreceived(replica_set, last_position, [received for received, _ in replica_positions]),
    }


def _count_unreceived(replica_set: ReplicaSet, position: str, received: Sequence[str]) -> int | None:
    """Number of transactions that no replica has received. None: unknown."""
    positions = replica_set.dialect.positions
    if not positions.counts_received:
        return None
    return min((positions.count_missing(position, replica_position) for replica_position in received), default=None)


def check_commits_waited(context: FaultContext, log: KeyLog, until_ns: int) -> None:
    """Check by their latency that commits waited for the link: counters can be wrong, but no packet is faster than the link. Raises
    LabError."""
    records = log.records[
        (log.records["fate"] == KeyOutcome.ACKNOWLEDGED) & (log.records["ended_ns"] < until_ns - log.origin_ns)
    ]
    if not len(records):
        raise LabError("no commit was acknowledged before the fault", "Is the machine overloaded?")
    p50_ns = int(np.median(records["ended_ns"] - records["sent_ns"]))
    if too_fast := latency_violation(
        context.replica_set.spec, p50_ns, int(context.rtt_ns - rtt_tolerance_ns(context.rtt_ns))
    ):
        raise NotAsConfigured(too_fast.sentence)


def receipt_before_fault(
    replica_set: ReplicaSet, first_snapshot: Snapshot, last_snapshot: Snapshot
) -> ReplicationReceipt:
    """The receipt of replication, in the same form as without a fault. Its window ends right before the fault."""
    receipt = replica_set.facts.model_copy()
    receipt.window = ReplicationWindow.between(first_snapshot, last_snapshot)
    return receipt


def _samples_before_fault(lag: LagWatch, timeline: FaultTimeline) -> list[LagSample]:
    return [sample for sample in lag.finish() if sample.at_ns <= timeline.fault_ns]


def _take_over(replica_set: ReplicaSet, candidates: Sequence[Member], *, cluster_is_complete: bool) -> Survivor:
    """Promote the most advanced of `candidates`, once all data in transit has arrived. `cluster_is_complete`: whether all members
    are back, so that nothing is promoted. Raises LabError."""
    for replica in candidates:
        await_arrival(replica_set, replica)
    survivor = find_most_advanced(replica_set, candidates)
    if cluster_is_complete:
        return Survivor(survivor.name, read_keys(survivor), promotion_ns=0, unapplied=0)
    promoted = promote(survivor)
    return Survivor(survivor.name, read_keys(survivor), promoted.took_ns, promoted.unapplied)


def await_arrival(replica_set: ReplicaSet, replica: Member) -> None:
    """Wait until the kernel of the dead primary has delivered what it had to send: the connection ends, or nothing arrives for a few
    round trips. Raises LabError."""
    quiet_s = _QUIET_S + _QUIET_RTTS * max((link.rtt_ns for link in replica_set.links), default=0) / 1e9
    deadline = time.monotonic() + _ARRIVAL_TIMEOUT_S
    received, since = "", time.monotonic()
    while time.monotonic() < deadline:
        state = replica.read_replica_state()
        if state is None or state.receiving != "Yes":
            return
        if state.received != received:
            received, since = state.received, time.monotonic()
        elif time.monotonic() - since > quiet_s:
            return
        time.sleep(_POLL_S)
    raise LabError(f"{replica.name} went on receiving for {_ARRIVAL_TIMEOUT_S:.0f} s after its primary had died")


def find_most_advanced(replica_set: ReplicaSet, candidates: Sequence[Member]) -> Member:
    """The replica that lacks the fewest of the transactions that the other replicas have received."""
    received = {replica.name: _received_position(replica) for replica in candidates}

    def count_lacking(replica: Member) -> int:
        return sum(
            replica_set.dialect.positions.count_missing(other, received[replica.name]) for other in received.values()
        )

    return min(candidates, key=count_lacking)


def _query_positions(replica_set: ReplicaSet, replica: Member) -> tuple[str, str]:
    """The positions up to which a replica has received and applied."""
    return _received_position(replica), replica.query_position(replica_set.dialect.applied_sql)


def _received_position(replica: Member) -> str:
    state = replica.read_replica_state()
    return "" if state is None else state.received


def read_keys(member: Member) -> Keys:
    """Keys of all rows on the member. Raises LabError."""
    with member.server.open_session(_KEYS_QUERY_TIMEOUT_S) as run_query:
        rows = run_query(f"SELECT id FROM {TABLE}")
    return np.fromiter((row["id"] for row in rows), np.int64, len(rows))


MIN_FAULT_SHARE = 0.25
"""Earliest time of a fault, as a share of the plan's measured window. By then the replica's lag is steady."""


def fault_after_ns(seed: int, block: int, attempt: int, arm: str, measure_ns: int) -> int:
    """Time of the fault, from the beginning of the measured window. It is uniformly random in the part after `MIN_FAULT_SHARE`, so
    that crashes do not coincide with periodic work of the servers."""
    rng = random.Random(f"howfar fault of block {block}, attempt {attempt}, of {arm} of seed {seed}")
    return int(measure_ns * (MIN_FAULT_SHARE + (1 - MIN_FAULT_SHARE) * rng.random()))
