"""The account of one crash: every key that a client inserted and every key on the survivor is in exactly one class.

Pure: arrays of keys in, counts and keys out. Not here: how the logs are read (`engine/acknowledged.py`), how the survivor is queried,
and intervals over many crashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class ClientLog:
    """One client's keys by what became of them, as its log has them."""

    acknowledged: Keys
    refused: Keys
    unknown: Keys


@dataclass(frozen=True)
class Account:
    """Keys are ascending. An acknowledged key is kept or lost; one that was refused or is unknown may be found or not."""

    kept: int
    """Acknowledged, and on the survivor."""
    lost: Keys
    """Acknowledged, and not on the survivor."""
    applied_unknown: Keys
    """On the survivor, and its client got no answer: it was in flight."""
    absent_unknown: int
    applied_refused: Keys
    """On the survivor, though the client received an error."""
    absent_refused: int
    strangers: Keys
    """On the survivor, and inserted by no client: of another run, or of a client whose log is missing."""
    duplicates: Keys
    """More than once on the survivor."""
    repeated: Keys
    """Inserted more than once: two clients drew from one sequence, so these cannot be accounted for."""

    @property
    def acknowledged(self) -> int:
        return self.kept + len(self.lost)

    @property
    def is_sound(self) -> bool:
        """Keys identify clients and rows, so that the account can be trusted."""
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
    """What another connection saw. Keys are ascending; `early_ns` goes with `early`. Times are of one monotonic clock. A key was
    visible by the answer of the poll that saw it, perhaps earlier: these are bounds from below."""

    early: Keys
    """Seen before the acknowledgement had arrived."""
    early_ns: Times
    """How long before."""
    unacknowledged: Keys
    """Seen, and never acknowledged."""
    phantoms: Keys
    """Seen, and not on the survivor."""


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
