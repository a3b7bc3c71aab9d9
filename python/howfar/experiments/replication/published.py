"""The published figures of set-up D beside ours: one connection at its distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howfar.analysis.published import published_sets
from howfar.experiments.replication.findings import CommitCost, ReplicationCurve
from howfar.store.records import FactorValue

PLAN = "replication"
_SAME_DISTANCE = 0.02
"""Of the round trip: nobody asks for 85 ms to the nanosecond."""


def published_rows(
    curves: Sequence[ReplicationCurve], workload: Mapping[str, Any]
) -> tuple[tuple[str, float, float | None], ...]:
    """Mode, theirs, ours; none of another workload. Their semi-synchronous is AFTER_COMMIT: another wait point is not beside it. Of
    several durabilities ours are of the first; theirs made no commit durable, which the table says."""
    entries = [entry for entry in published_sets() if entry.plan == PLAN and not entry.differs(workload)]
    cells = [cell for entry in entries for cell in entry.cells]
    alike = [curve for curve in curves if curve.durability == curves[0].durability]
    found = [
        (cell, _ours(alike, str(cell.factors["replication"]), cell.factors.get("replica_rtt_ns"))) for cell in cells
    ]
    return tuple(
        (str(cell.factors["replication"]), cell.tps, None if ours is None else ours.commits_per_s.value)
        for cell, ours in found
        if cell.tps is not None
    )


def _ours(curves: Sequence[ReplicationCurve], mode: str, rtt_ns: FactorValue | None) -> CommitCost | None:
    for curve in curves:
        if curve.mode == mode and not curve.held and _as_far(curve.replica_rtt_ns, rtt_ns):
            return next((point for point in curve.points if point.threads == 1), None)
    return None


def _as_far(ours: int | None, theirs: FactorValue | None) -> bool:
    if ours is None or theirs is None:
        return ours is None and theirs is None
    return abs(ours / float(theirs) - 1) <= _SAME_DISTANCE
