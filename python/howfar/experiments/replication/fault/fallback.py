"""One fallback to asynchronous replication: under load, the replica's link is cut for longer than the server's timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from howfar.contract.messages import LoadJob
from howfar.contract.receipt import ReplicationReceipt
from howfar.contract.replication_receipt import PrimaryState, ReplicationWindow
from howfar.contract.violation import join_sentences
from howfar.engine.acknowledged import KeyLog, KeyOutcome
from howfar.engine.run_load import LoadOutcome
from howfar.errors import HowfarError, LabError, NotAsConfigured
from howfar.experiments.replication.fault.crash import FaultContext, receipt_before_fault
from howfar.experiments.replication.fault.under_load import BackgroundLoad, with_key_log
from howfar.experiments.replication.lab import ReplicaSet
from howfar.experiments.replication.lab.dialect import query_one_row
from howfar.experiments.replication.lab.status import Positions
from howfar.experiments.replication.records import FallbackRecord, FallbackSample

INTERVAL_S = 0.1
_QUERY_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ReplicationReading:
    """One poll of the primary and the replica, the two ends of replication."""

    at_ns: int
    """Monotonic time at which the primary had answered the query for `end`."""
    end: PrimaryState
    position: str
    """Position of the primary, queried after `end`."""
    received: str | None
    """Position received by the replica, queried last. None: it could not be queried."""


@dataclass
class ReplicationPoller:
    """Polls both ends from a thread; created by `poll_replication`."""

    replica_set: ReplicaSet
    readings: list[ReplicationReading] = field(default_factory=list)
    ended_by: str | None = None
    """Error that ended polling before `finish`; None: no error."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self._thread.start()

    def finish(self) -> list[ReplicationReading]:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_QUERY_TIMEOUT_S + 1)
        return list(self.readings)

    def _run(self) -> None:
        try:
            self._poll()
        except (HowfarError, OSError) as error:
            self.ended_by = str(error)

    def _poll(self) -> None:
        primary, (replica, *_), dialect = (
            self.replica_set.primary.server,
            self.replica_set.replicas,
            self.replica_set.dialect,
        )
        with ExitStack() as stack:
            on_primary = stack.enter_context(primary.open_session(_QUERY_TIMEOUT_S))
            on_replica = stack.enter_context(replica.server.open_session(_QUERY_TIMEOUT_S))
            while True:
                end = dialect.read_primary_end(on_primary, primary, self.replica_set.spec)
                at_ns = time.monotonic_ns()
                if end is None:
                    return
                position = str(query_one_row(on_primary, dialect.position_sql)["position"] or "").replace("\n", "")
                state = dialect.read_state(on_replica)
                self.readings.append(
                    ReplicationReading(at_ns, end, position, None if state is None else state.received)
                )
                if self._stop.wait(INTERVAL_S):
                    return


def poll_replication(replica_set: ReplicaSet) -> ReplicationPoller:
    """Start polling the primary and its first replica."""
    poller = ReplicationPoller(replica_set)
    poller.start()
    return poller


SLICE_NS = 100_000_000


@dataclass(frozen=True)
class Absence:
    """Monotonic times between which the replica was absent."""

    left_ns: int
    returned_ns: int


def fallback_record(
    absence: Absence,
    timeout_ms: int | None,
    log: KeyLog,
    readings: Sequence[ReplicationReading],
    positions: Positions,
    log_lines: tuple[str, ...],
) -> FallbackRecord:
    """The record of a fallback. Raises LabError if the primary was not semi-synchronous before the replica left."""
    origin_ns = log.origin_ns
    _, ended_ns = log.ended(KeyOutcome.ACKNOWLEDGED)
    ended_ns = np.sort(ended_ns)
    before = [reading for reading in readings if reading.at_ns < absence.left_ns]
    if not before or not before[-1].end.status or before[-1].end.no_tx > before[0].end.no_tx:
        raise LabError("the primary was not semi-synchronous before the replica left")
    fell, back = find_fallback(readings)
    return FallbackRecord(
        timeout_ms=timeout_ms,
        left_ns=absence.left_ns - origin_ns,
        returned_ns=absence.returned_ns - origin_ns,
        reconnected_ns=_ns_since(find_reconnection(readings, absence, positions), origin_ns),
        stall_ns=longest_gap_ns(ended_ns),
        longest_commit_ns=_longest_commit_ns(log),
        fell_ns=_ns_since(None if fell is None else readings[fell], origin_ns),
        back_ns=_ns_since(None if back is None else readings[back], origin_ns),
        load_ended_ns=int(ended_ns[-1]) - origin_ns if len(ended_ns) else None,
        unprotected=count_unprotected(ended_ns, readings, fell, back),
        unacknowledged=readings[-1].end.no_tx - readings[0].end.no_tx,
        acknowledged=len(ended_ns),
        samples=tuple(_sample(reading, origin_ns, positions) for reading in readings),
        commits=commits_per_slice(ended_ns - origin_ns),
        log_lines=log_lines,
    )


def find_fallback(readings: Sequence[ReplicationReading]) -> tuple[int | None, int | None]:
    """Indices of the first reading in which the primary was asynchronous, and of the first one after which it stayed
    semi-synchronous."""
    off = [index for index, reading in enumerate(readings) if not reading.end.status]
    if not off:
        return None, None
    return off[0], off[-1] + 1 if off[-1] + 1 < len(readings) else None


def count_unprotected(
    ended_ns: NDArray[np.int64], readings: Sequence[ReplicationReading], fell: int | None, back: int | None
) -> int:
    """Number of commits acknowledged between two readings: the last one before the fallback, because waiting commits are acknowledged
    at the fallback, before a reading can show it; and the first one after which the primary stayed semi-synchronous."""
    if fell is None:
        return 0
    begin_ns = readings[fell - 1].at_ns if fell else readings[fell].at_ns
    end_ns = readings[back].at_ns if back is not None else np.iinfo(np.int64).max
    return int(np.count_nonzero((ended_ns > begin_ns) & (ended_ns <= end_ns)))


def find_reconnection(
    readings: Sequence[ReplicationReading], absence: Absence, positions: Positions
) -> ReplicationReading | None:
    """The first reading after the link was restored in which the replica had received more than before."""
    readings_in_absence = [
        reading
        for reading in readings
        if absence.left_ns <= reading.at_ns < absence.returned_ns and reading.received is not None
    ]
    received_before = readings_in_absence[-1].received if readings_in_absence else None
    if received_before is None:
        return None
    after = (reading for reading in readings if reading.at_ns >= absence.returned_ns and reading.received is not None)
    return next(
        (reading for reading in after if positions.count_missing(reading.received or "", received_before)), None
    )


def longest_gap_ns(ended_ns: NDArray[np.int64]) -> int:
    """Longest time between two consecutive acknowledgements, over all clients."""
    return int(np.diff(ended_ns).max()) if len(ended_ns) > 1 else 0


def commits_per_slice(ended_ns: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Number of commits in each slice of time, as pairs of the slice's start and the number. Times are from the beginning of the
    load."""
    counts = np.bincount(np.maximum(ended_ns, 0) // SLICE_NS) if len(ended_ns) else np.empty(0, np.int64)
    return tuple((index * SLICE_NS, int(count)) for index, count in enumerate(counts))


def _longest_commit_ns(log: KeyLog) -> int:
    records = log.records[log.records["fate"] == KeyOutcome.ACKNOWLEDGED]
    return int((records["ended_ns"] - records["sent_ns"]).max()) if len(records) else 0


def _ns_since(reading: ReplicationReading | None, origin_ns: int) -> int | None:
    return None if reading is None else reading.at_ns - origin_ns


def _sample(reading: ReplicationReading, origin_ns: int, positions: Positions) -> FallbackSample:
    return FallbackSample(
        at_ns=reading.at_ns - origin_ns,
        semi_sync=reading.end.status,
        clients=reading.end.clients,
        waiting=reading.end.waiting,
        acknowledged=reading.end.acknowledged,
        unacknowledged=reading.end.no_tx,
        behind=_count_behind(reading, positions),
    )


def _count_behind(reading: ReplicationReading, positions: Positions) -> int | None:
    if reading.received is None or not positions.counts_received:
        return None
    return positions.count_missing(reading.position, reading.received)


LEAVE_AFTER_NS = 3_000_000_000
"""When the replica leaves, from the beginning of the measured window."""
ABSENCE_AFTER_TIMEOUT_NS = 7_000_000_000
"""How long after the timeout the link stays cut, while the primary continues alone."""
DEFAULT_TIMEOUT_MS = 10_000
"""Default timeout of servers that have one. Also used to choose how long the replica is away from a primary that waits without
limit."""
MIN_RECOVERY_NS = 5_000_000_000
"""Minimum time that the window must leave for the replica to come back."""
_RECOVERY_TIMEOUT_S = 10.0
"""Time limit after the load for a primary to become semi-synchronous again. Some primaries do not as long as commits never pause."""
_POLL_S = 0.05
MAX_LOG_LINES = 20
_MAX_LINE_CHARS = 300


@dataclass
class FallbackResult:
    """Result of a fallback."""

    record: FallbackRecord
    outcome: LoadOutcome
    receipt: ReplicationReceipt
    """The facts about replication that were verified before the replica left, and at the end on both servers."""


def run_fallback(
    context: FaultContext,
    job: LoadJob,
    timeout_ms: int | None = None,
    leaves_ns: int = LEAVE_AFTER_NS,
    away_ns: int = ABSENCE_AFTER_TIMEOUT_NS,
) -> FallbackResult:
    """Run a load during which a replica leaves and returns. `timeout_ms` None: the server's default. Raises LabError, EngineError."""
    replica_set = context.replica_set
    if not replica_set.spec.semi_sync:
        raise LabError("asynchronous replication has nothing to fall back from", "Use a semi-synchronous mode.")
    timeout_ms = set_timeout(replica_set, timeout_ms)
    absent_ns = (DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms) * 1_000_000 + away_ns
    if job.measure_ns < leaves_ns + absent_ns + MIN_RECOVERY_NS:
        raise LabError(
            f"a window of {job.measure_ns / 1e9:.0f} s is too short for a fallback: the replica leaves after {leaves_ns / 1e9:.0f} s "
            f"and is away for {absent_ns / 1e9:.0f} s",
            f"Measure for {(leaves_ns + absent_ns + MIN_RECOVERY_NS) / 1e9:.0f} s or more.",
        )
    load = BackgroundLoad(
        with_key_log(job, context.logs / "keys", job.measure_ns), context.logs / "keys", replica_set.primary.server.kill
    )
    began_lines, first_snapshot = len(_replication_log(replica_set)), replica_set.snapshot()
    with ExitStack() as stack:
        poller = poll_replication(replica_set)
        stack.callback(poller.finish)
        stack.callback(load.abandon)
        load.start(context.measure, context.launcher, context.on_event)
        load.await_window()
        load.pause_until(leaves_ns)
        spec = replica_set.spec if timeout_ms is None else replica_set.spec.with_timeout(timeout_ms)
        window = ReplicationWindow.between(first_snapshot, replica_set.snapshot())
        if mismatches := window.violations(spec):
            raise NotAsConfigured(
                f"replication was not as configured before the replica left: {join_sentences(mismatches)}"
            )
        absence = _leave_and_return(replica_set, load, absent_ns)
        outcome = load.finish()
        _await_semi_sync(poller)
        readings = poller.finish()
    if outcome.finished.interrupted is not None:
        raise LabError(f"the load broke off: {outcome.finished.interrupted.message}")
    if poller.ended_by is not None:
        raise LabError(f"the primary could not be queried any more: {poller.ended_by}")
    last_snapshot = replica_set.snapshot()
    if damage := last_snapshot.violations_after_absence():
        raise LabError(f"the replica did not come back as it had left: {join_sentences(damage)}")
    log_lines = tuple(line[:_MAX_LINE_CHARS] for line in _replication_log(replica_set)[began_lines:])[:MAX_LOG_LINES]
    record = fallback_record(absence, timeout_ms, load.read_keys(), readings, replica_set.dialect.positions, log_lines)
    return FallbackResult(record, outcome, receipt_before_fault(replica_set, first_snapshot, last_snapshot))


def _leave_and_return(replica_set: ReplicaSet, load: BackgroundLoad, absent_ns: int) -> Absence:
    """Cut a replica's link, without notice to either end, and restore it. Of several replicas only the first one leaves."""
    left_ns, link = time.monotonic_ns(), replica_set.links[0]
    with ExitStack() as stack:
        stack.callback(link.restore)
        link.cut()
        load.pause(absent_ns, "the line of the replica that had left carried again")
    return Absence(left_ns, time.monotonic_ns())


def _await_semi_sync(poller: ReplicationPoller) -> None:
    """Wait until the primary is semi-synchronous again, or until the time limit; the record shows whether it is."""
    deadline = time.monotonic() + _RECOVERY_TIMEOUT_S
    while (
        poller.readings
        and not poller.readings[-1].end.status
        and poller.ended_by is None
        and time.monotonic() < deadline
    ):
        time.sleep(_POLL_S)


def set_timeout(replica_set: ReplicaSet, timeout_ms: int | None) -> int | None:
    """Set the server's timeout (None: its default). Returns the timeout in force (None: the server has none). Raises LabError."""
    replica_set.dialect.set_timeout(replica_set.primary, timeout_ms)
    end = replica_set.primary.read_primary_end()
    assert end is not None, "a semi-synchronous primary reports its state"
    return end.timeout_ms


def _replication_log(replica_set: ReplicaSet) -> list[str]:
    """The lines of the primary's log that are about acknowledgements."""
    return replica_set.dialect.replication_log(replica_set.primary.server.log_lines())
