"""One fallback: under the server's own timeout the replica's line is cut and mended, and the load goes on all the while."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from howfar.engine.messages import LoadJob
from howfar.engine.process import LoadOutcome
from howfar.errors import LabError
from howfar.lab.replication import Pair
from howfar.lab.replication.proof import after_absence, violations
from howfar.runner.fault.crash import Ground, receipt
from howfar.runner.fault.fallback_record import Absence, fallback_record
from howfar.runner.fault.looks import Looks, look_at
from howfar.runner.fault.under_load import UnderLoad, logged
from howfar.store.records import FallbackRecord

LEAVES_NS = 3_000_000_000
"""After the beginning of the measured window."""
AWAY_NS = 7_000_000_000
"""Beyond the timeout: so long the primary goes on alone before the line carries again."""
AFTERWARDS_NS = 5_000_000_000
"""Of the window, at the least, for the replica to come back in."""
_BACK_S = 10.0
"""After the load for a primary to find that it is semi-synchronous again: where commits never pause some do not."""
_POLL_S = 0.05
LOG_LINES_KEPT = 20
_LINE_KEPT = 300


@dataclass
class FellBack:
    """What came of it."""

    record: FallbackRecord
    outcome: LoadOutcome
    receipt: dict[str, Any]
    """What was proven before the replica left, and by both ends at the end."""


def run_fallback(
    ground: Ground, job: LoadJob, timeout_ms: int | None = None, leaves_ns: int = LEAVES_NS, away_ns: int = AWAY_NS
) -> FellBack:
    """`timeout_ms` None: the server's own default. Raises LabError, EngineError when the load or the looks broke off."""
    pair = ground.pair
    if not pair.asked.semi_sync:
        raise LabError("asynchronous replication has nothing to fall back from", "Take a semi-synchronous mode.")
    timeout_ms = set_timeout(pair, timeout_ms)
    absent_ns = timeout_ms * 1_000_000 + away_ns
    if job.measure_ns < leaves_ns + absent_ns + AFTERWARDS_NS:
        raise LabError(
            f"a window of {job.measure_ns / 1e9:.0f} s does not hold a fallback: the replica leaves after {leaves_ns / 1e9:.0f} s "
            f"and is away for {absent_ns / 1e9:.0f} s",
            f"Measure for {(leaves_ns + absent_ns + AFTERWARDS_NS) / 1e9:.0f} s or more.",
        )
    load = UnderLoad(logged(job, ground.logs / "keys", job.measure_ns), ground.logs / "keys", pair.primary.server.kill)
    began_lines, begun = len(_lines(pair)), pair.snapshot()
    with ExitStack() as ledger:
        looks = look_at(pair)
        ledger.callback(looks.finish)
        ledger.callback(load.abandon)
        load.start(ground.measure, ground.launcher, ground.on_event)
        load.await_window()
        load.pause_until(leaves_ns)
        if unlike := violations(replace(pair.asked, timeout_ms=timeout_ms), begun, pair.snapshot()):
            raise LabError("replication was not what was asked before the replica left: " + "; ".join(unlike))
        absence = _leave_and_return(pair, load, absent_ns)
        outcome = load.finish()
        _await_back(looks)
        seen = looks.finish()
    if outcome.finished.interrupted is not None:
        raise LabError(f"the load broke off: {outcome.finished.interrupted.message}")
    if looks.ended_by is not None:
        raise LabError(f"the primary could not be asked any more: {looks.ended_by}")
    last = pair.snapshot()
    if damage := after_absence(last):
        raise LabError("the replica did not come back as it had left: " + "; ".join(damage))
    lines = tuple(line[:_LINE_KEPT] for line in _lines(pair)[began_lines:])[:LOG_LINES_KEPT]
    record = fallback_record(absence, timeout_ms, load.keys(), seen, pair.verbs.positions, lines)
    return FellBack(record, outcome, receipt(pair, begun, last))


def _leave_and_return(pair: Pair, load: UnderLoad, absent_ns: int) -> Absence:
    """Nobody is told that the line is cut."""
    left_ns = time.monotonic_ns()
    with ExitStack() as mending:
        for wire in pair.wires:
            mending.callback(wire.mend)
            wire.cut()
        load.pause(absent_ns, "the line of the replica that had left carried again")
    return Absence(left_ns, time.monotonic_ns())


def _await_back(looks: Looks) -> None:
    """Bounded; the record says whether it came."""
    deadline = time.monotonic() + _BACK_S
    while looks.seen and not looks.seen[-1].end.status and looks.ended_by is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def set_timeout(pair: Pair, timeout_ms: int | None) -> int:
    """Give it back to the server, or say it; what is in force then. Raises LabError."""
    primary = pair.primary
    value = "DEFAULT" if timeout_ms is None else str(timeout_ms)
    primary.ask(f"SET GLOBAL {primary.names.primary}timeout = {value}")
    end = primary.primary_end()
    assert end is not None, "a semi-synchronous pair has such an end"
    return end.timeout_ms


def _lines(pair: Pair) -> list[str]:
    """What the primary wrote about semi-synchronous replication."""
    return [line for line in pair.primary.server.log_lines() if "semi-sync" in line.lower()]
