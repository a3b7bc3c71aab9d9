"""The published figures of set-up D beside ours: one connection at its distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howfar.analysis.published import published_sets
from howfar.analysis.replication.findings import CommitCost, ReplicationCurve
from howfar.plan.types import SEMI_SYNC
from howfar.results.records import FactorValue

PLAN = "replication"
_SAME_DISTANCE = 0.02
"""Of the round trip: nobody asks for 85 ms to the nanosecond."""


def published_rows(
    curves: Sequence[ReplicationCurve], workload: Mapping[str, Any]
) -> tuple[tuple[str, float, float | None], ...]:
    """Mode, theirs, ours; none of another workload. Their semi-synchronous is AFTER_COMMIT; a run without that shows the other wait
    point beside it."""
    entries = [entry for entry in published_sets() if entry.plan == PLAN and not entry.differs(workload)]
    cells = [cell for entry in entries for cell in entry.cells]
    rows = []
    for cell in cells:
        mode = str(cell.factors["replication"])
        ours = _ours(curves, mode, cell.factors.get("replica_rtt_ns"))
        if ours is None and mode in SEMI_SYNC:
            found = ((other, _ours(curves, other, cell.factors.get("replica_rtt_ns"))) for other in SEMI_SYNC)
            mode, ours = next(((other, one) for other, one in found if one is not None), (mode, None))
        rows.append((mode, cell.tps, None if ours is None else ours.commits_per_s.value))
    return tuple(rows)


def _ours(curves: Sequence[ReplicationCurve], mode: str, rtt_ns: FactorValue | None) -> CommitCost | None:
    for curve in curves:
        if curve.mode == mode and not curve.held and _as_far(curve.replica_rtt_ns, rtt_ns):
            return next((point for point in curve.points if point.threads == 1), None)
    return None


def _as_far(ours: int | None, theirs: FactorValue | None) -> bool:
    if ours is None or theirs is None:
        return ours is None and theirs is None
    return abs(ours / float(theirs) - 1) <= _SAME_DISTANCE
