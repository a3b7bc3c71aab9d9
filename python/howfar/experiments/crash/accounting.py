"""The account of one crash: every key that a client asked for and every key that the survivor holds is in exactly one class.

Pure: arrays of keys in, counts and keys out. Not here: how the logs are read (`engine/acknowledged.py`), how the survivor is asked,
and intervals over many crashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
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
    """Acknowledged, and not on the survivor: what a client was promised."""
    applied_unknown: Keys
    """On the survivor; no client has heard of it: it was under way."""
    absent_unknown: int
    applied_refused: Keys
    """On the survivor, though the client was told of an error."""
    absent_refused: int
    strangers: Keys
    """On the survivor, and asked for by nobody: of another run, or of a client whose log is missing."""
    duplicates: Keys
    """More than once on the survivor."""
    reasked: Keys
    """Asked for more than once: two clients drew from one sequence, so no account can be made of these."""

    @property
    def acknowledged(self) -> int:
        return self.kept + len(self.lost)

    @property
    def is_sound(self) -> bool:
        """The keys tell clients and rows apart, so that the account says what it seems to."""
        return not (len(self.strangers) or len(self.duplicates) or len(self.reasked))


def account(logs: Sequence[Asked], found: Keys) -> Account:
    """Hold the clients' logs against all keys `found` on the survivor, in any order and with repetitions."""
    present, times = np.unique(np.asarray(found, np.int64), return_counts=True)
    acknowledged = _joined([log.acknowledged for log in logs])
    refused = _joined([log.refused for log in logs])
    unknown = _joined([log.unknown for log in logs])
    asked, asked_times = np.unique(np.concatenate([acknowledged, refused, unknown]), return_counts=True)
    reasked = asked[asked_times > 1]
    acknowledged, refused, unknown = (
        np.setdiff1d(keys, reasked, assume_unique=False) for keys in (acknowledged, refused, unknown)
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
        strangers=np.setdiff1d(present, asked, assume_unique=True),
        duplicates=present[times > 1],
        reasked=reasked,
    )


def _joined(parts: Sequence[Keys]) -> Keys:
    return np.concatenate([np.empty(0, np.int64), *parts])
