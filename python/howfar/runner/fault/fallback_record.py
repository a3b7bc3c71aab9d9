"""The record of one fallback: the clients' log beside what the primary said of itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from howfar.engine.acknowledged import Fate, KeyLog
from howfar.errors import LabError
from howfar.lab.replication.positions import Positions
from howfar.runner.fault.looks import Look
from howfar.store.records import FallbackRecord, FallbackSample

SLICE_NS = 100_000_000


@dataclass(frozen=True)
class Absence:
    """Of the replica. Monotonic times."""

    left_ns: int
    returned_ns: int


def fallback_record(
    absence: Absence,
    timeout_ms: int,
    told: KeyLog,
    looks: Sequence[Look],
    positions: Positions,
    log_lines: tuple[str, ...],
) -> FallbackRecord:
    """Raises LabError when it was not semi-synchronous before the replica left."""
    origin_ns = told.origin_ns
    _, ended_ns = told.ended(Fate.ACKNOWLEDGED)
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
        longest_commit_ns=_longest_commit_ns(told),
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
    """Indices of the first look that found it asynchronous, and of the first after which it was semi-synchronous for good."""
    off = [index for index, look in enumerate(looks) if not look.end.status]
    if not off:
        return None, None
    return off[0], off[-1] + 1 if off[-1] + 1 < len(looks) else None


def unprotected(ended_ns: NDArray[np.int64], looks: Sequence[Look], fell: int | None, back: int | None) -> int:
    """Acknowledged to clients from the last look that found it semi-synchronous: those that waited are let go with the fallback,
    before anybody has seen it. On the other side the first look is the bound."""
    if fell is None:
        return 0
    begin_ns = looks[fell - 1].at_ns if fell else looks[fell].at_ns
    end_ns = looks[back].at_ns if back is not None else np.iinfo(np.int64).max
    return int(np.count_nonzero((ended_ns > begin_ns) & (ended_ns <= end_ns)))


def reconnected(looks: Sequence[Look], absence: Absence, positions: Positions) -> Look | None:
    """The first look after the link carried again in which the replica had received more than before."""
    away = [look for look in looks if absence.left_ns <= look.at_ns < absence.returned_ns and look.received is not None]
    had = away[-1].received if away else None
    if had is None:
        return None
    after = (look for look in looks if look.at_ns >= absence.returned_ns and look.received is not None)
    return next((look for look in after if positions.lacking(look.received or "", had)), None)


def longest_gap_ns(ended_ns: NDArray[np.int64]) -> int:
    """Between two acknowledgements, whoever they went to."""
    return int(np.diff(ended_ns).max()) if len(ended_ns) > 1 else 0


def slices(ended_ns: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """How many in each slice of time, from the beginning of the load."""
    counts = np.bincount(np.maximum(ended_ns, 0) // SLICE_NS) if len(ended_ns) else np.empty(0, np.int64)
    return tuple((index * SLICE_NS, int(count)) for index, count in enumerate(counts))


def _longest_commit_ns(told: KeyLog) -> int:
    records = told.records[told.records["fate"] == Fate.ACKNOWLEDGED]
    return int((records["ended_ns"] - records["sent_ns"]).max()) if len(records) else 0


def _since(look: Look | None, origin_ns: int) -> int | None:
    return None if look is None else look.at_ns - origin_ns


def _sample(look: Look, origin_ns: int, positions: Positions) -> FallbackSample:
    return FallbackSample(
        at_ns=look.at_ns - origin_ns,
        semi_sync=look.end.status,
        clients=look.end.clients,
        waiting=look.end.waiting,
        acknowledged=look.end.yes_tx,
        unacknowledged=look.end.no_tx,
        behind=None if look.received is None else positions.lacking(look.position, look.received),
    )
