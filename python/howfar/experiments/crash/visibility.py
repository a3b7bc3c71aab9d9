"""What others saw: keys that were visible before their client had its acknowledgement, and keys that were seen and then lost.

Pure. Times are of one monotonic clock. A key was certainly visible by the answer of the poll that saw it; how much earlier nobody
knows, so what is counted here is a bound from below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from howfar.experiments.crash.accounting import Keys

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Visible:
    """Keys are ascending; `early_ns` goes with `early`."""

    early: Keys
    """Seen by another connection before the acknowledgement had arrived."""
    early_ns: Times
    """How long before."""
    unacknowledged: Keys
    """Seen, and never acknowledged."""
    phantoms: Keys
    """Seen, and not on the survivor."""


def visible(seen: Keys, seen_ns: Times, acknowledged: Keys, acknowledged_ns: Times, survivor: Keys) -> Visible:
    """Hold a watcher's keys against the clients' acknowledgements and what the survivor holds; each key once in each."""
    both, at_seen, at_acknowledged = np.intersect1d(seen, acknowledged, assume_unique=True, return_indices=True)
    before_ns = acknowledged_ns[at_acknowledged] - seen_ns[at_seen]
    return Visible(
        early=both[before_ns > 0],
        early_ns=before_ns[before_ns > 0],
        unacknowledged=np.setdiff1d(seen, acknowledged, assume_unique=True),
        phantoms=np.setdiff1d(seen, survivor, assume_unique=True),
    )
