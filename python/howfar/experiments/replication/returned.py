"""When a replica that was away had caught up, from the looks of a fallback and the clients' commits. Pure.

Until then commits were on the primary alone. After it an asynchronous primary still waits for nobody, but its replica has each commit
about half a round trip later: what is counted there is a promise that was not kept, and not a commit that a crash would have taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from howfar.store.records import FallbackRecord

LOOK_NS = 100_000_000
"""Between two looks, which no moment is known better than."""


@dataclass(frozen=True)
class Returned:
    """How one fallback's replica came back in."""

    caught_up_ns: int | None
    """First seen to lack no more than what was acknowledged in the last round trip and `LOOK_NS`. None: it was not seen to."""
    alone: int
    """Commits of an asynchronous primary until then."""
    most_behind: int | None
    """Transactions that it lacked at most. None: it could not be asked."""


def returned(record: FallbackRecord, rtt_ns: int) -> Returned:
    caught_up_ns = _caught_up_ns(record, rtt_ns)
    behind = [sample.behind for sample in record.samples if sample.behind is not None and not sample.semi_sync]
    return Returned(caught_up_ns, record.unprotected - _after(record, caught_up_ns), max(behind, default=None))


def _caught_up_ns(record: FallbackRecord, rtt_ns: int) -> int | None:
    if record.fell_ns is None:
        return None
    for sample in record.samples:
        if sample.at_ns < max(record.returned_ns, record.fell_ns) or sample.behind is None:
            continue
        if sample.semi_sync or sample.behind <= _between(record, sample.at_ns - rtt_ns - LOOK_NS, sample.at_ns):
            return sample.at_ns
    return None


def _after(record: FallbackRecord, caught_up_ns: int | None) -> int:
    """Unprotected, and the replica had caught up; whole slices."""
    if caught_up_ns is None:
        return 0
    back_ns = record.samples[-1].at_ns if record.back_ns is None else record.back_ns
    late = sum(
        count for start, count in record.commits if caught_up_ns <= start and start + _slice_ns(record) <= back_ns
    )
    return min(late, record.unprotected)


def _between(record: FallbackRecord, begin_ns: int, end_ns: int) -> int:
    """Acknowledged in slices that touch this time."""
    step = _slice_ns(record)
    return sum(count for start, count in record.commits if start < end_ns and start + step > begin_ns)


def _slice_ns(record: FallbackRecord) -> int:
    starts = [start for start, _ in record.commits]
    return min((later - earlier for earlier, later in pairwise(starts)), default=LOOK_NS)
