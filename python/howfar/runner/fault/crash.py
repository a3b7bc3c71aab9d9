"""One crash: a load on a verified pair, a fault at a set time, promotion of a replica, and its rows compared with the clients' log."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from howfar.engine.acknowledged import KeyLog, KeyOutcome
from howfar.engine.inserts import TABLE
from howfar.engine.messages import Event, LoadJob
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome
from howfar.errors import LabError
from howfar.lab.link import DIRECTIONS, DirectionName
from howfar.lab.replication import Pair
from howfar.lab.replication.dialect import Arrival
from howfar.lab.replication.links import Wire
from howfar.lab.replication.member import Member, wait_for
from howfar.lab.replication.pair import promote
from howfar.lab.replication.proof import Snapshot, latency_violation, violations, window_facts
from howfar.lab.replication.watch import LagSample, LagWatch, Write, Writers
from howfar.plan.quantities import rtt_tolerance_ns
from howfar.runner.fault.under_load import CpuWatch, Measure, UnderLoad, logged, watch_keys
from howfar.store.records import CpuShares, CrashRecord, JoinRecord

Keys = NDArray[np.int64]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class ClientLog:
    """One client's keys by outcome, from its log."""

    acknowledged: Keys
    refused: Keys
    unknown: Keys


@dataclass(frozen=True)
class Account:
    """The clients' keys compared with those on the survivor. Keys are ascending. An acknowledged key is kept or lost; a refused or
    unknown one is applied or absent."""

    kept: int
    """Number of keys that were acknowledged and are on the survivor."""
    lost: Keys
    """Keys that were acknowledged and are not on the survivor."""
    applied_unknown: Keys
    """Keys on the survivor whose client got no answer: they were in flight."""
    absent_unknown: int
    applied_refused: Keys
    """Keys on the survivor whose client received an error."""
    absent_refused: int
    strangers: Keys
    """Keys on the survivor that no client inserted: they come from another run, or from a client whose log is missing."""
    duplicates: Keys
    """Keys that occur more than once on the survivor."""
    repeated: Keys
    """Keys inserted more than once: two clients drew from one sequence, so these cannot be accounted for."""

    @property
    def acknowledged(self) -> int:
        return self.kept + len(self.lost)

    @property
    def is_sound(self) -> bool:
        """Whether keys identify clients and rows, so that the account can be trusted."""
        return not (len(self.strangers) or len(self.duplicates) or len(self.repeated))


def account(logs: Sequence[ClientLog], found: Keys) -> Account:
    """Compare the clients' logs with all keys `found` on the survivor, in any order and with repetitions."""
    present, times = np.unique(np.asarray(found, np.int64), return_counts=True)
    acknowledged = _joined([log.acknowledged for log in logs])
    refused = _joined([log.refused for log in logs])
    unknown = _joined([log.unknown for log in logs])
    sent, sent_times = np.unique(np.concatenate([acknowledged, refused, unknown]), return_counts=True)
    repeated = sent[sent_times > 1]
    acknowledged, refused, unknown = (
        np.setdiff1d(keys, repeated, assume_unique=False) for keys in (acknowledged, refused, unknown)
    )
    lost = np.setdiff1d(acknowledged, present, assume_unique=True)
    applied_unknown = np.intersect1d(unknown, present, assume_unique=True)
    applied_refused = np.intersect1d(refused, present, assume_unique=True)
    return Account(
        kept=len(acknowledged) - len(lost),
        lost=lost,
        applied_unknown=applied_unknown,
        absent_unknown=len(unknown) - len(applied_unknown),
        applied_refused=applied_refused,
        absent_refused=len(refused) - len(applied_refused),
        strangers=np.setdiff1d(present, sent, assume_unique=True),
        duplicates=present[times > 1],
        repeated=repeated,
    )


def _joined(parts: Sequence[Keys]) -> Keys:
    return np.concatenate([np.empty(0, np.int64), *parts])


@dataclass(frozen=True)
class Visible:
    """Keys that another connection saw, ascending; `early_ns` belongs to `early`. Times are of one monotonic clock. A key was visible
    when the answer of the poll that saw it arrived, perhaps earlier: `early_ns` are lower bounds."""

    early: Keys
    """Keys seen before the acknowledgement had arrived."""
    early_ns: Times
    """How long before its acknowledgement each of them was seen."""
    unacknowledged: Keys
    """Keys that were seen but never acknowledged."""
    phantoms: Keys
    """Keys that were seen but are not on the survivor."""


def visible(seen: Keys, seen_ns: Times, acknowledged: Keys, acknowledged_ns: Times, survivor: Keys) -> Visible:
    """Compare a watcher's keys with the clients' acknowledgements and with the survivor; each key once in each."""
    both, at_seen, at_acknowledged = np.intersect1d(seen, acknowledged, assume_unique=True, return_indices=True)
    before_ns = acknowledged_ns[at_acknowledged] - seen_ns[at_seen]
    return Visible(
        early=both[before_ns > 0],
        early_ns=before_ns[before_ns > 0],
        unacknowledged=np.setdiff1d(seen, acknowledged, assume_unique=True),
        phantoms=np.setdiff1d(seen, survivor, assume_unique=True),
    )


FAILOVER_NS = 1_000_000_000
"""Time from the fault until the primary is killed, if it survives the fault. An arbitrary choice: each further second loses as many
commits again."""
_STOPS_S = 30.0
"""Time limit for a receiver to stop; it stops at the next event that arrives."""


@dataclass(frozen=True)
class Break:
    """One level of the factor `fault`."""

    cut: tuple[DirectionName, ...] = ()
    """Directions cut on every replica's link; the replica is the link's client."""
    stops_receiving: bool = False
    """Whether every replica stops receiving; it continues to apply what it has, like a replica whose log disk is full."""
    failover_ns: int = 0
    members: tuple[int, ...] = ()
    """Members of a cluster (0: the primary) that are cut off from the others as one group; their clients still reach them. A primary
    is killed when the others have continued without it for `failover_ns`. Or the member that is slow, or leaves."""
    runs: float = 1.0
    """Share of the time for which the member's server runs; it is stopped for the rest."""
    away_ns: int = 0
    """How long the member is cut off, or slow. 0: to the end."""
    lives_ns: int = 0
    """How long the primary's clients continue to write after the fault, which it survives. 0: the primary is killed."""
    arrival: Arrival | None = None
    """How a member that left rejoins after `away_ns`; `new`: a member without data joins instead. The primary is killed `failover_ns`
    after the member has fully joined, so that all rows must be on the member."""


_GOES_ON_S = 60.0
"""Time limit for a cluster to continue without a member: by default it expels one after 5 to 10 s."""
BREAKS: dict[str, Break] = {
    "kill-primary": Break(),
    "cut": Break(cut=DIRECTIONS, failover_ns=FAILOVER_NS),
    "cut-to-replica": Break(cut=("to_client",), failover_ns=FAILOVER_NS),
    "cut-to-primary": Break(cut=("to_server",), failover_ns=FAILOVER_NS),
    "stop-replica": Break(stops_receiving=True, failover_ns=FAILOVER_NS),
    "cut-off-primary": Break(cut=DIRECTIONS, failover_ns=FAILOVER_NS, members=(0,)),
    "partition": Break(cut=DIRECTIONS, failover_ns=FAILOVER_NS, members=(0, 1)),
    "cut-off-member": Break(cut=DIRECTIONS, members=(-1,), lives_ns=20_000_000_000),
    "member-returns": Break(cut=DIRECTIONS, members=(-1,), away_ns=3_000_000_000, lives_ns=10_000_000_000),
    "member-restarts": Break(members=(-1,), away_ns=3_000_000_000, failover_ns=FAILOVER_NS, arrival="returns"),
    "member-joins": Break(members=(-1,), failover_ns=FAILOVER_NS, arrival="new"),
    "slow-member": Break(members=(-1,), runs=0.1, away_ns=10_000_000_000, lives_ns=15_000_000_000),
}


@dataclass(frozen=True)
class Broken:
    """Monotonic times of a fault."""

    fault_ns: int
    """Right before the first action."""
    in_force_ns: int
    """When all actions were done."""
    dead_ns: int
    """Right before the primary was killed."""
    mended_ns: int | None = None
    """When the member's fault was removed, or it had joined. None: never."""
    back_ns: int | None = None
    """Time from then (of one that joined: from its server's start) until it was a full member again. None: not within `_GOES_ON_S`."""
    joined: JoinRecord | None = None
    """Record of a member that left and joined. The fault was in force while it joined."""


@runtime_checkable
class Replicated(Protocol):
    """A stage whose server may be a primary with replicas, which a fault can break."""

    @property
    def pair(self) -> Pair | None:
        """The primary and its replicas. None: no replication."""
        ...


# A node that leaves and joins. Its bytes are all that it received over its links from the start of its server until it was a full
# member, the load's writes included. They are counted twice: by the kernel at the senders' interfaces, and by the links themselves.

JOINS_S = 300.0
"""Time limit for a node to become a full member again."""


@dataclass(frozen=True)
class Joined:
    began_ns: int
    """Monotonic time at which its server was started."""
    ended_ns: int
    record: JoinRecord


def leave(member: Member) -> None:
    """Shut the member down, as for maintenance. Raises LabError, ServerCrashed."""
    member.server.shut_down()


def join(pair: Pair, member: Member, arrival: Arrival) -> Joined:
    """Start the member again and wait until it is a full member. Raises LabError, ServerCrashed."""
    assert member.seed is not None, "faults are the laboratory's"
    wires = pair.wires_around([member])
    before, began_ns = _came(wires), time.monotonic_ns()
    how = pair.dialect.arrive(member, replace(member.seed, arrival=arrival), JOINS_S)
    ended_ns = time.monotonic_ns()
    came = {name: count - before[name] for name, count in _came(wires).items()}
    name, most = max(came.items(), key=lambda item: item[1].wire)
    wire = next(wire for wire in wires if wire.name == name)
    (donor,) = set(pair.ends_of(wire)) - {member.name}
    record = JoinRecord(
        how=how,
        took_ns=ended_ns - began_ns,
        received_bytes=sum(count.kernel for count in came.values()),
        wire_bytes=sum(count.wire for count in came.values()),
        donor=donor,
        donor_wire_bytes=most.wire,
        segments=sum(count.segments for count in came.values()),
        packets=sum(count.packets for count in came.values()),
    )
    return Joined(began_ns, ended_ns, record)


class _Count(NamedTuple):
    """Traffic of one link to the node."""

    kernel: int
    wire: int
    segments: int
    packets: int

    def __sub__(self, before: _Count) -> _Count:
        return _Count(*(now - then for now, then in zip(self, before, strict=True)))


def _came(wires: Sequence[Wire]) -> dict[str, _Count]:
    """Traffic to the node, by link. The node is the last member, and so the client of each of its links."""
    found = {}
    for wire in wires:
        sent, crossed = wire.sent_bytes(), wire.counters()
        assert sent is not None and crossed is not None, "faults are the laboratory's"
        down = crossed.to_client
        found[wire.name] = _Count(sent, down.wire_bytes, down.segments, down.packets)
    return found


def break_pair(
    pair: Pair, done: Break, pause: Callable[[int], None], ledger: ExitStack
) -> tuple[Broken, Writers | None]:
    """Apply the fault; returns its times, and for a cluster the clients that then write at its other nodes. `pause` waits for that
    many nanoseconds. The caller restores the links. Raises LabError, LinkFailed."""
    apart = _apart(pair, done)
    member = next(iter(apart), None)
    if member is not None and done.arrival is not None:
        return _join(pair, member, done, pause, ledger)
    fault_ns = time.monotonic_ns()
    for wire in (pair.wires_around(apart) if apart else pair.wires) if done.cut else ():
        wire.cut(done.cut)
    slowed = ledger.enter_context(ExitStack())
    if member is not None and done.runs < 1:
        slowed.enter_context(slow(member.server.pid, done.runs))
    for replica in pair.replicas if done.stops_receiving else ():
        pair.dialect.stop_receiving(replica, _STOPS_S)
    in_force_ns = time.monotonic_ns()
    others = Writers(pair) if pair.spec.cluster else None
    if others is not None:
        ledger.callback(others.finish)
        if done.failover_ns:
            others.await_commit(in_force_ns, _GOES_ON_S)
    mended_ns = back_ns = None
    if member is not None and done.away_ns:
        pause(done.away_ns)
        mend(pair, done)
        slowed.close()
        mended_ns = time.monotonic_ns()
        back_ns = _came_back(member, mended_ns)
    if done.failover_ns:
        pause(done.failover_ns)
    dead_ns = time.monotonic_ns()
    if not done.lives_ns:
        pair.primary.server.kill()
    if not (done.cut or done.stops_receiving or done.lives_ns):
        in_force_ns = time.monotonic_ns()
    if others is not None and not done.lives_ns:
        others.await_commit(dead_ns, _GOES_ON_S)
    return Broken(fault_ns, in_force_ns, dead_ns, mended_ns, back_ns), others


def _apart(pair: Pair, done: Break) -> tuple[Member, ...]:
    return tuple(pair.members[number] for number in done.members)


def _join(
    pair: Pair, member: Member, done: Break, pause: Callable[[int], None], ledger: ExitStack
) -> tuple[Broken, Writers]:
    """Let the member leave and join, then kill the primary."""
    assert done.arrival is not None
    fault_ns = time.monotonic_ns()
    others = Writers(pair)
    ledger.callback(others.finish)
    leave(member)
    pause(done.away_ns)
    joined = join(pair, member, done.arrival)
    pause(done.failover_ns)
    dead_ns = time.monotonic_ns()
    pair.primary.server.kill()
    others.await_commit(dead_ns, _GOES_ON_S)
    back_ns = joined.record.took_ns
    return Broken(fault_ns, joined.began_ns, dead_ns, joined.ended_ns, back_ns, joined.record), others


def _came_back(member: Member, since_ns: int) -> int | None:
    """Time from `since_ns` until the member is a full one again; None: too long. A member outside its cluster may refuse queries."""

    def is_whole() -> bool:
        with suppress(LabError):
            facts = member.node_facts()
            return facts is not None and not facts.unlike
        return False

    with suppress(LabError):
        wait_for(is_whole, _GOES_ON_S, lambda: f"{member.name} did not come back")
        return time.monotonic_ns() - since_ns
    return None


_PERIOD_S = 0.1


@contextmanager
def slow(pid: int, runs: float) -> Iterator[None]:
    """Stop and continue a child process periodically until the context ends. `runs`: share of each period in which it runs, above 0
    and below 1."""
    assert 0 < runs < 1, "else it would be stopped for ever, or never"
    ended = threading.Event()

    def stutter() -> None:
        with suppress(ProcessLookupError):
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                ended.wait(_PERIOD_S * (1 - runs))
                os.kill(pid, signal.SIGCONT)
                ended.wait(_PERIOD_S * runs)

    thread = threading.Thread(target=stutter, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def mend(pair: Pair, done: Break) -> None:
    """Restore all links, so that nothing stays cut for the next trial. Raises LinkFailed."""
    for wire in pair.wires if done.cut else ():
        wire.mend()


LOST_KEYS_KEPT = 20
_NAMED = 3
"""Maximum number of keys named in a void trial's reason."""


@dataclass(frozen=True)
class Survivor:
    """The server that took over, and all its keys."""

    name: str
    keys: Keys
    promotion_ns: int
    unapplied: int


@dataclass(frozen=True)
class Before:
    """Facts known right before the fault."""

    window_ns: int
    """Monotonic time at which the measured window had begun."""
    behind: int | None
    applied: int | None
    """Transactions that the replica had applied since the load began."""
    cpus: CpuShares | None
    unreceived: int | None
    heartbeat_ns: int | None
    rtt_ns: int


def crash_record(
    fault: str, broken: Broken, before: Before, log: KeyLog, seen: KeyLog, watched_ns: int, survivor: Survivor
) -> CrashRecord:
    """The record of a crash. Raises LabError when the logs give no sound account, see `check`."""
    acknowledged, acknowledged_ns = log.ended(KeyOutcome.ACKNOWLEDGED)
    client = ClientLog(log.keys(KeyOutcome.ACKNOWLEDGED), log.keys(KeyOutcome.REFUSED), log.keys(KeyOutcome.UNKNOWN))
    found = account([client], survivor.keys)
    check(found)
    others = visible(*seen.ended(KeyOutcome.SEEN), acknowledged, acknowledged_ns, np.unique(survivor.keys))
    lost_ns = np.sort(acknowledged_ns[np.isin(acknowledged, found.lost)])
    in_window = (acknowledged_ns > before.window_ns) & (acknowledged_ns <= broken.fault_ns)
    since_load_ns = broken.fault_ns - log.origin_ns
    return CrashRecord(
        fault=fault,
        fault_ns=since_load_ns,
        in_force_ns=broken.in_force_ns - log.origin_ns,
        dead_ns=broken.dead_ns - log.origin_ns,
        watched_ns=watched_ns,
        commits_per_s=int(np.count_nonzero(in_window)) / ((broken.fault_ns - before.window_ns) / 1e9),
        acknowledged=found.acknowledged,
        lost=len(found.lost),
        lost_after=int(np.count_nonzero(lost_ns > broken.fault_ns)),
        lost_in_force=int(np.count_nonzero(lost_ns > broken.in_force_ns)),
        first_lost_ns=int(lost_ns[0]) - log.origin_ns if len(lost_ns) else None,
        refused=len(client.refused),
        unknown=len(client.unknown),
        applied_unknown=len(found.applied_unknown),
        applied_refused=len(found.applied_refused),
        seen=seen.count(KeyOutcome.SEEN),
        seen_early=len(others.early) + len(others.unacknowledged),
        seen_early_median_ns=int(np.median(others.early_ns)) if len(others.early) else None,
        phantoms=len(others.phantoms),
        behind_before=before.behind,
        unreceived_before=before.unreceived,
        applied_per_s_before=None if before.applied is None else before.applied / (since_load_ns / 1e9),
        cpus_before=before.cpus,
        heartbeat_before_ns=before.heartbeat_ns,
        replica_rtt_ns=before.rtt_ns,
        promoted=survivor.name,
        promotion_ns=survivor.promotion_ns,
        unapplied=survivor.unapplied,
        lost_keys=tuple(int(key) for key in found.lost[:LOST_KEYS_KEPT]),
    )


def of_cluster(
    log: KeyLog, writes: Sequence[Write], broken: Broken, ended_ns: int, cut_off: Set[str], lived: bool = False
) -> dict[str, int | float | JoinRecord | None]:
    """Fields of a cluster's record, from the clients at the primary and at the other nodes. `ended_ns`: when both stopped writing.
    `cut_off`: names of nodes.

    `lived`: whether the primary survived the fault, so that its commit rate is meaningful.
    """
    records = log.records[log.records["fate"] == KeyOutcome.ACKNOWLEDGED]
    sent_ns, times = (records[name].astype(np.int64) + log.origin_ns for name in ("sent_ns", "ended_ns"))
    alone = (sent_ns > broken.in_force_ns) & ("primary" in cut_off)
    if broken.joined is not None:
        ended_ns = broken.dead_ns
    mended_ns = ended_ns if broken.mended_ns is None else broken.mended_ns
    others = [write.ended_ns for write in writes if write.node not in cut_off or write.ended_ns > mended_ns]
    meanwhile = np.count_nonzero((times > broken.in_force_ns) & (times <= mended_ns))
    times = np.sort(np.concatenate([times[~alone], np.array([*others, ended_ns], np.int64)]))
    times = times[times <= ended_ns]
    last = max(int(np.searchsorted(times, broken.fault_ns)) - 1, 0)
    return {
        "stall_ns": int(np.diff(times[last:]).max(initial=0)),
        "by_itself": int(np.count_nonzero(alone)) + len(writes) - len(others),
        "meanwhile_per_s": meanwhile / ((mended_ns - broken.in_force_ns) / 1e9) if lived else None,
        "back_ns": broken.back_ns,
        "joined": broken.joined,
    }


def check(found: Account) -> None:
    """Check that an account is sound. Raises LabError, naming keys."""
    wrong = [
        (found.strangers, "rows of the survivor that no client inserted"),
        (found.duplicates, "keys that are on the survivor more than once"),
        (found.repeated, "keys that were inserted more than once"),
    ]
    parts = [
        f"{len(keys)} {what} ({', '.join(str(key) for key in keys[:_NAMED])})" for keys, what in wrong if len(keys)
    ]
    if parts:
        raise LabError(f"no account can be made of this crash: {'; '.join(parts)}")


_BEYOND_NS = 20_000_000_000
"""How much longer the load would continue after the fault if its server did not die."""
_QUIET_S, _QUIET_RTTS = 0.3, 4
"""If nothing has arrived for this long after the primary's death, nothing more will."""
_ARRIVED_S = 60.0
_POLL_S = 0.01
_KEYS_S = 120.0


@dataclass(frozen=True)
class FaultContext:
    """The pair of a trial with a fault, and its clients."""

    pair: Pair
    launcher: Launcher
    """Starts clients."""
    rtt_ns: int
    """RTT to the replica, at rest."""
    measure: Measure
    on_event: Callable[[Event], None]

    @property
    def logs(self) -> Path:
        """A directory for logs that is removed with the pair, but outlives its primary."""
        return self.pair.primary.server.socket.parent


@dataclass
class Crashed:
    """Result of a crash."""

    record: CrashRecord
    outcome: LoadOutcome
    receipt: dict[str, Any]
    """Facts verified before the fault, and the definition of the fault."""


def run_crash(context: FaultContext, job: LoadJob, fault: str, after_ns: int) -> Crashed:
    """Run a load with a fault `after_ns` after the beginning of the measured window. Raises LabError, EngineError when no account can
    be made, for example because semi-synchronous replication had fallen back before, or no server can take over."""
    pair, done = context.pair, BREAKS[fault]
    changes: dict[str, Any] = {"observe": ()}  # CPU time is read at the end, when the server is gone
    if pair.spec.cluster:
        changes["ignore_errors"] = "all"  # a node that is cut off refuses commits, which must not end the load
    beyond_ns = done.lives_ns or done.failover_ns + _BEYOND_NS + pair.spec.cluster * int(_GOES_ON_S * 1e9)
    if done.arrival is not None:
        beyond_ns += done.away_ns + int(JOINS_S * 1e9)
    wanted = logged(job.model_copy(update=changes), context.logs / "keys", after_ns + beyond_ns)
    load = UnderLoad(wanted, context.logs / "keys", kill=pair.primary.server.kill)
    with ExitStack() as ledger:
        watcher = watch_keys(wanted, context.logs / "seen", context.launcher, ledger)
        begun = pair.snapshot()
        lag = LagWatch(pair, beats=not pair.spec.needed)  # a heartbeat would be one more commit that others wait behind
        ledger.callback(lag.finish)
        ledger.callback(load.abandon)
        load.start(context.measure, context.launcher, context.on_event)
        load.await_window()
        cpus = CpuWatch([replica.server.pid for replica in pair.replicas])
        load.pause_until(after_ns)
        cpus_before = cpus.finish()
        had = [
            _has(pair, replica) for replica in pair.replicas
        ]  # before the primary: transactions that arrive in between are not subtracted
        last = pair.snapshot()
        if unlike := violations(pair.spec, begun, last):
            raise LabError("replication was not as configured before the fault: " + "; ".join(unlike))
        ledger.callback(mend, pair, done)
        broken, others = break_pair(
            pair, done, partial(load.pause, until="the primary, which lived on after the fault, was killed"), ledger
        )
        outcome = load.finish()
        ended_ns, writes = time.monotonic_ns(), None if others is None else others.finish()
        samples = _before(lag, broken)
        survivor = _take_over(pair, _reached(pair, done), whole=bool(done.away_ns) and done.arrival is None)
        if done.lives_ns:
            broken = replace(broken, dead_ns=time.monotonic_ns())
            for member in pair.members:  # one without its cluster would take minutes to stop
                member.server.kill()
        seen, watched = watcher.finish()
    before = Before(
        window_ns=load.began_ns,
        **_replica_before(pair, begun.position, last.position, had),
        heartbeat_ns=samples[-1].heartbeat_ns if samples else None,
        rtt_ns=context.rtt_ns,
        cpus=cpus_before,
    )
    log = load.keys()
    check_waited(context, log, broken.fault_ns)
    record = crash_record(fault, broken, before, log, seen, watched.elapsed_ns // max(watched.polls, 1), survivor)
    if writes is not None:
        cut_off = {member.name for member in _apart(pair, done)} if done.cut else set()
        lived = bool(done.lives_ns) or done.arrival is not None
        record = record.model_copy(update=of_cluster(log, writes, broken, ended_ns, cut_off, lived))
    return Crashed(record, outcome, receipt(pair, begun, last) | {"fault": asdict(done)})


def _reached(pair: Pair, done: Break) -> Sequence[Member]:
    """The nodes that may take over: those that were not cut off, or only the member that joined, to check that it has everything."""
    apart = _apart(pair, done)
    return apart if done.arrival is not None else [each for each in pair.replicas if each not in apart]


def _replica_before(pair: Pair, begun: str, last: str, had: Sequence[tuple[str, str]]) -> dict[str, int | None]:
    """Fields of `Before` about the replicas. `had`: the positions that each had received and applied."""
    lacking = pair.dialect.positions.lacking
    behind = min((lacking(last, applied) for _, applied in had), default=None)
    applied = None if behind is None else max(lacking(last, begun) - behind, 0)
    return {"behind": behind, "applied": applied, "unreceived": _unreceived(pair, last, [one for one, _ in had])}


def _unreceived(pair: Pair, position: str, received: Sequence[str]) -> int | None:
    """Number of transactions that no replica has received; None: unknown."""
    positions = pair.dialect.positions
    if not positions.counts_received:
        return None
    return min((positions.lacking(position, each) for each in received), default=None)


def check_waited(context: FaultContext, log: KeyLog, until_ns: int) -> None:
    """Check that commits waited for the link: counters can be wrong, but no packet is faster than the link. Raises LabError."""
    records = log.records[
        (log.records["fate"] == KeyOutcome.ACKNOWLEDGED) & (log.records["ended_ns"] < until_ns - log.origin_ns)
    ]
    if not len(records):
        raise LabError("no commit was acknowledged before the fault", "Is the machine overloaded?")
    p50_ns = int(np.median(records["ended_ns"] - records["sent_ns"]))
    if too_fast := latency_violation(context.pair.spec, p50_ns, int(context.rtt_ns - rtt_tolerance_ns(context.rtt_ns))):
        raise LabError(too_fast)


def receipt(pair: Pair, begun: Snapshot, last: Snapshot) -> dict[str, Any]:
    """Receipt of the same form as without a fault; its window ends right before the fault."""
    facts = {name: value for name, value in pair.facts.items() if name != "proof"}
    return facts | {"window": window_facts(begun, last)}


def _before(lag: LagWatch, broken: Broken) -> list[LagSample]:
    return [sample for sample in lag.finish() if sample.at_ns <= broken.fault_ns]


def _take_over(pair: Pair, reached: Sequence[Member], *, whole: bool) -> Survivor:
    """Promote the most advanced of `reached`, once all data in transit has arrived. `whole`: no member is gone, so none is promoted.
    Raises LabError."""
    for replica in reached:
        await_arrived(pair, replica)
    best = most_advanced(pair, reached)
    if whole:
        return Survivor(best.name, keys_of(best), promotion_ns=0, unapplied=0)
    promoted = promote(best)
    return Survivor(best.name, keys_of(best), promoted.took_ns, promoted.unapplied)


def await_arrived(pair: Pair, replica: Member) -> None:
    """Wait for data that a dead primary's kernel still delivers, until the connection ends or nothing arrives for a few round trips.
    Raises LabError."""
    quiet_s = _QUIET_S + _QUIET_RTTS * max((wire.rtt_ns for wire in pair.wires), default=0) / 1e9
    deadline = time.monotonic() + _ARRIVED_S
    received, since = "", time.monotonic()
    while time.monotonic() < deadline:
        state = replica.replica_state()
        if state is None or state.receiving != "Yes":
            return
        if state.received != received:
            received, since = state.received, time.monotonic()
        elif time.monotonic() - since > quiet_s:
            return
        time.sleep(_POLL_S)
    raise LabError(f"{replica.name} went on receiving for {_ARRIVED_S:.0f} s after its primary had died")


def most_advanced(pair: Pair, reached: Sequence[Member]) -> Member:
    """The replica that lacks the fewest of the others' transactions."""
    received = {replica.name: _received(replica) for replica in reached}

    def lacks(replica: Member) -> int:
        return sum(pair.dialect.positions.lacking(other, received[replica.name]) for other in received.values())

    return min(reached, key=lacks)


def _has(pair: Pair, replica: Member) -> tuple[str, str]:
    """Positions received and applied."""
    return _received(replica), replica.position(pair.dialect.applied_sql)


def _received(replica: Member) -> str:
    state = replica.replica_state()
    return "" if state is None else state.received


def keys_of(member: Member) -> Keys:
    """Keys of all rows. Raises LabError."""
    with member.server.asking(_KEYS_S) as ask:
        rows = ask(f"SELECT id FROM {TABLE}")
    return np.fromiter((row["id"] for row in rows), np.int64, len(rows))


EARLIEST = 0.25
"""Earliest fault, as a share of the plan's measured window; the replica's lag has settled by then."""


def fault_after_ns(seed: int, block: int, attempt: int, arm: str, measure_ns: int) -> int:
    """Time of the fault from the beginning of the measured window: uniformly random in the part of it after `EARLIEST`, so that
    crashes do not coincide with periodic work of the servers."""
    rng = random.Random(f"howfar fault of block {block}, attempt {attempt}, of {arm} of seed {seed}")
    return int(measure_ns * (EARLIEST + (1 - EARLIEST) * rng.random()))
