"""One fallback: under load, the replica's link is cut for longer than the server's timeout, and restored."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howfar.engine.acknowledged import KeyLog, KeyOutcome
from howfar.engine.messages import LoadJob
from howfar.engine.run_load import LoadOutcome
from howfar.errors import HowfarError, LabError
from howfar.lab.replication import Pair
from howfar.lab.replication.dialect import one
from howfar.lab.replication.proof import after_absence, violations
from howfar.lab.replication.status import Positions, PrimaryEnd
from howfar.runner.fault.crash import FaultContext, receipt
from howfar.runner.fault.under_load import UnderLoad, logged
from howfar.store.records import FallbackRecord, FallbackSample

INTERVAL_S = 0.1
_ANSWER_S = 30.0


@dataclass(frozen=True)
class Look:
    at_ns: int
    """Monotonic time at which the primary had answered the query for `end`."""
    end: PrimaryEnd
    position: str
    """Position of the primary, queried after `end`."""
    received: str | None
    """Position received by the replica, queried last. None: it could not be queried."""


@dataclass
class Looks:
    """Polls both ends from a thread; created by `look_at`."""

    pair: Pair
    seen: list[Look] = field(default_factory=list)
    ended_by: str | None = None
    """Error that ended polling before `finish`; None: no error."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)
        self._thread.start()

    def finish(self) -> list[Look]:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_ANSWER_S + 1)
        return list(self.seen)

    def _run(self) -> None:
        try:
            self._look()
        except (HowfarError, OSError) as error:
            self.ended_by = str(error)

    def _look(self) -> None:
        primary, (replica, *_), dialect = self.pair.primary.server, self.pair.replicas, self.pair.dialect
        with ExitStack() as ledger:
            on_primary = ledger.enter_context(primary.asking(_ANSWER_S))
            on_replica = ledger.enter_context(replica.server.asking(_ANSWER_S))
            while True:
                end = dialect.primary_end(on_primary, primary, self.pair.spec)
                at_ns = time.monotonic_ns()
                if end is None:
                    return
                position = str(one(on_primary, dialect.position_sql)["position"] or "").replace("\n", "")
                state = dialect.read_state(on_replica)
                self.seen.append(Look(at_ns, end, position, None if state is None else state.received))
                if self._stop.wait(INTERVAL_S):
                    return


def look_at(pair: Pair) -> Looks:
    """Start to poll a pair, which must have a replica."""
    looks = Looks(pair)
    looks.start()
    return looks


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
    looks: Sequence[Look],
    positions: Positions,
    log_lines: tuple[str, ...],
) -> FallbackRecord:
    """The record of a fallback. Raises LabError when the primary was not semi-synchronous before the replica left."""
    origin_ns = log.origin_ns
    _, ended_ns = log.ended(KeyOutcome.ACKNOWLEDGED)
    ended_ns = np.sort(ended_ns)
    before = [look for look in looks if look.at_ns < absence.left_ns]
    if not before or not before[-1].end.status or before[-1].end.no_tx > before[0].end.no_tx:
        raise LabError("the primary was not semi-synchronous before the replica left")
    fell, back = fell_and_back(looks)
    return FallbackRecord(
        timeout_ms=timeout_ms,
        left_ns=absence.left_ns - origin_ns,
        returned_ns=absence.returned_ns - origin_ns,
        reconnected_ns=_since(reconnected(looks, absence, positions), origin_ns),
        stall_ns=longest_gap_ns(ended_ns),
        longest_commit_ns=_longest_commit_ns(log),
        fell_ns=_since(None if fell is None else looks[fell], origin_ns),
        back_ns=_since(None if back is None else looks[back], origin_ns),
        load_ended_ns=int(ended_ns[-1]) - origin_ns if len(ended_ns) else None,
        unprotected=unprotected(ended_ns, looks, fell, back),
        unacknowledged=looks[-1].end.no_tx - looks[0].end.no_tx,
        acknowledged=len(ended_ns),
        samples=tuple(_sample(look, origin_ns, positions) for look in looks),
        commits=slices(ended_ns - origin_ns),
        log_lines=log_lines,
    )


def fell_and_back(looks: Sequence[Look]) -> tuple[int | None, int | None]:
    """Indices of the first look that found the primary asynchronous, and of the first since which it stayed semi-synchronous."""
    off = [index for index, look in enumerate(looks) if not look.end.status]
    if not off:
        return None, None
    return off[0], off[-1] + 1 if off[-1] + 1 < len(looks) else None


def unprotected(ended_ns: NDArray[np.int64], looks: Sequence[Look], fell: int | None, back: int | None) -> int:
    """Number of commits acknowledged after the last look before the fallback, because waiting commits are acknowledged at the
    fallback, before a look can see it; and up to the first look that found the primary semi-synchronous for good."""
    if fell is None:
        return 0
    begin_ns = looks[fell - 1].at_ns if fell else looks[fell].at_ns
    end_ns = looks[back].at_ns if back is not None else np.iinfo(np.int64).max
    return int(np.count_nonzero((ended_ns > begin_ns) & (ended_ns <= end_ns)))


def reconnected(looks: Sequence[Look], absence: Absence, positions: Positions) -> Look | None:
    """The first look after the link was restored in which the replica had received more than before."""
    away = [look for look in looks if absence.left_ns <= look.at_ns < absence.returned_ns and look.received is not None]
    had = away[-1].received if away else None
    if had is None:
        return None
    after = (look for look in looks if look.at_ns >= absence.returned_ns and look.received is not None)
    return next((look for look in after if positions.lacking(look.received or "", had)), None)


def longest_gap_ns(ended_ns: NDArray[np.int64]) -> int:
    """Longest time between two consecutive acknowledgements, over all clients."""
    return int(np.diff(ended_ns).max()) if len(ended_ns) > 1 else 0


def slices(ended_ns: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Number of commits in each slice of time, from the beginning of the load."""
    counts = np.bincount(np.maximum(ended_ns, 0) // SLICE_NS) if len(ended_ns) else np.empty(0, np.int64)
    return tuple((index * SLICE_NS, int(count)) for index, count in enumerate(counts))


def _longest_commit_ns(log: KeyLog) -> int:
    records = log.records[log.records["fate"] == KeyOutcome.ACKNOWLEDGED]
    return int((records["ended_ns"] - records["sent_ns"]).max()) if len(records) else 0


def _since(look: Look | None, origin_ns: int) -> int | None:
    return None if look is None else look.at_ns - origin_ns


def _sample(look: Look, origin_ns: int, positions: Positions) -> FallbackSample:
    return FallbackSample(
        at_ns=look.at_ns - origin_ns,
        semi_sync=look.end.status,
        clients=look.end.clients,
        waiting=look.end.waiting,
        acknowledged=look.end.acknowledged,
        unacknowledged=look.end.no_tx,
        behind=_behind(look, positions),
    )


def _behind(look: Look, positions: Positions) -> int | None:
    if look.received is None or not positions.counts_received:
        return None
    return positions.lacking(look.position, look.received)


LEAVES_NS = 3_000_000_000
"""When the replica leaves, from the beginning of the measured window."""
AWAY_NS = 7_000_000_000
"""How long beyond the timeout the primary continues alone before the link is restored."""
OTHERS_TIMEOUT_MS = 10_000
"""Default timeout of servers that have one; also used for how long the replica is away from a primary that waits without limit."""
AFTERWARDS_NS = 5_000_000_000
"""Minimum time in the window for the replica to come back."""
_BACK_S = 10.0
"""Time limit after the load for a primary to become semi-synchronous again: some do not while commits never pause."""
_POLL_S = 0.05
LOG_LINES_KEPT = 20
_LINE_KEPT = 300


@dataclass
class FellBack:
    """Result of a fallback."""

    record: FallbackRecord
    outcome: LoadOutcome
    receipt: dict[str, Any]
    """Facts verified before the replica left, and at the end on both servers."""


def run_fallback(
    context: FaultContext,
    job: LoadJob,
    timeout_ms: int | None = None,
    leaves_ns: int = LEAVES_NS,
    away_ns: int = AWAY_NS,
) -> FellBack:
    """Run a load during which a replica leaves and returns. `timeout_ms` None: the server's default. Raises LabError, EngineError."""
    pair = context.pair
    if not pair.spec.semi_sync:
        raise LabError("asynchronous replication has nothing to fall back from", "Use a semi-synchronous mode.")
    timeout_ms = set_timeout(pair, timeout_ms)
    absent_ns = (OTHERS_TIMEOUT_MS if timeout_ms is None else timeout_ms) * 1_000_000 + away_ns
    if job.measure_ns < leaves_ns + absent_ns + AFTERWARDS_NS:
        raise LabError(
            f"a window of {job.measure_ns / 1e9:.0f} s is too short for a fallback: the replica leaves after {leaves_ns / 1e9:.0f} s "
            f"and is away for {absent_ns / 1e9:.0f} s",
            f"Measure for {(leaves_ns + absent_ns + AFTERWARDS_NS) / 1e9:.0f} s or more.",
        )
    load = UnderLoad(
        logged(job, context.logs / "keys", job.measure_ns), context.logs / "keys", pair.primary.server.kill
    )
    began_lines, begun = len(_lines(pair)), pair.snapshot()
    with ExitStack() as ledger:
        looks = look_at(pair)
        ledger.callback(looks.finish)
        ledger.callback(load.abandon)
        load.start(context.measure, context.launcher, context.on_event)
        load.await_window()
        load.pause_until(leaves_ns)
        spec = pair.spec if timeout_ms is None else replace(pair.spec, timeout_ms=timeout_ms)
        if unlike := violations(spec, begun, pair.snapshot()):
            raise LabError("replication was not as configured before the replica left: " + "; ".join(unlike))
        absence = _leave_and_return(pair, load, absent_ns)
        outcome = load.finish()
        _await_back(looks)
        seen = looks.finish()
    if outcome.finished.interrupted is not None:
        raise LabError(f"the load broke off: {outcome.finished.interrupted.message}")
    if looks.ended_by is not None:
        raise LabError(f"the primary could not be queried any more: {looks.ended_by}")
    last = pair.snapshot()
    if damage := after_absence(last):
        raise LabError("the replica did not come back as it had left: " + "; ".join(damage))
    lines = tuple(line[:_LINE_KEPT] for line in _lines(pair)[began_lines:])[:LOG_LINES_KEPT]
    record = fallback_record(absence, timeout_ms, load.keys(), seen, pair.dialect.positions, lines)
    return FellBack(record, outcome, receipt(pair, begun, last))


def _leave_and_return(pair: Pair, load: UnderLoad, absent_ns: int) -> Absence:
    """Cut a replica's link, of which neither end is notified, and restore it. Of several replicas only the first leaves."""
    left_ns, wire = time.monotonic_ns(), pair.wires[0]
    with ExitStack() as mending:
        mending.callback(wire.mend)
        wire.cut()
        load.pause(absent_ns, "the line of the replica that had left carried again")
    return Absence(left_ns, time.monotonic_ns())


def _await_back(looks: Looks) -> None:
    """Wait, with a bound, until the primary is semi-synchronous again; the record shows whether it is."""
    deadline = time.monotonic() + _BACK_S
    while looks.seen and not looks.seen[-1].end.status and looks.ended_by is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def set_timeout(pair: Pair, timeout_ms: int | None) -> int | None:
    """Set the server's timeout (None: its default); returns the timeout in force (None: it has none). Raises LabError."""
    pair.dialect.set_timeout(pair.primary, timeout_ms)
    end = pair.primary.primary_end()
    assert end is not None, "a semi-synchronous pair has such an end"
    return end.timeout_ms


def _lines(pair: Pair) -> list[str]:
    """Lines of the primary's log about acknowledgements."""
    return pair.dialect.replication_log(pair.primary.server.log_lines())
