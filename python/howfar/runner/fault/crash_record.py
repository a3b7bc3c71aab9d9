"""The record of one crash, from the logs and from what the survivor has. Pure.

A log that does not tell clients and rows apart gives no record: the reason is told instead, and makes the trial void.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from howfar.engine.acknowledged import Fate, KeyLog
from howfar.errors import LabError
from howfar.experiments.crash.accounting import Account, ClientLog, Keys, account, visible
from howfar.runner.fault.breaks import Broken
from howfar.store.records import CrashRecord

LOST_KEYS_KEPT = 20
_NAMED = 3
"""Keys in a void trial's reason."""


@dataclass(frozen=True)
class Survivor:
    """Who took over, and all that it has."""

    name: str
    keys: Keys
    promotion_ns: int
    unapplied: int


@dataclass(frozen=True)
class Before:
    """What was known right before the fault."""

    window_ns: int
    """When the measured window had begun, monotonic."""
    behind: int | None
    unreceived: int | None
    heartbeat_ns: int | None
    rtt_ns: int


def crash_record(
    fault: str, broken: Broken, before: Before, told: KeyLog, seen: KeyLog, watched_ns: int, survivor: Survivor
) -> CrashRecord:
    """Raises LabError when no account can be made of these logs."""
    acknowledged, acknowledged_ns = told.ended(Fate.ACKNOWLEDGED)
    asked = ClientLog(told.keys(Fate.ACKNOWLEDGED), told.keys(Fate.REFUSED), told.keys(Fate.UNKNOWN))
    found = account([asked], survivor.keys)
    check(found)
    others = visible(*seen.ended(Fate.SEEN), acknowledged, acknowledged_ns, np.unique(survivor.keys))
    lost_ns = np.sort(acknowledged_ns[np.isin(acknowledged, found.lost)])
    in_window = (acknowledged_ns > before.window_ns) & (acknowledged_ns <= broken.fault_ns)
    return CrashRecord(
        fault=fault,
        fault_ns=broken.fault_ns - told.origin_ns,
        in_force_ns=broken.in_force_ns - told.origin_ns,
        dead_ns=broken.dead_ns - told.origin_ns,
        watched_ns=watched_ns,
        commits_per_s=int(np.count_nonzero(in_window)) / ((broken.fault_ns - before.window_ns) / 1e9),
        acknowledged=found.acknowledged,
        lost=len(found.lost),
        lost_after=int(np.count_nonzero(lost_ns > broken.fault_ns)),
        lost_in_force=int(np.count_nonzero(lost_ns > broken.in_force_ns)),
        first_lost_ns=int(lost_ns[0]) - told.origin_ns if len(lost_ns) else None,
        refused=len(asked.refused),
        unknown=len(asked.unknown),
        applied_unknown=len(found.applied_unknown),
        applied_refused=len(found.applied_refused),
        seen=seen.count(Fate.SEEN),
        seen_early=len(others.early) + len(others.unacknowledged),
        seen_early_median_ns=int(np.median(others.early_ns)) if len(others.early) else None,
        phantoms=len(others.phantoms),
        behind_before=before.behind,
        unreceived_before=before.unreceived,
        heartbeat_before_ns=before.heartbeat_ns,
        replica_rtt_ns=before.rtt_ns,
        promoted=survivor.name,
        promotion_ns=survivor.promotion_ns,
        unapplied=survivor.unapplied,
        lost_keys=tuple(int(key) for key in found.lost[:LOST_KEYS_KEPT]),
    )


def check(found: Account) -> None:
    """Raises LabError, naming keys, for an account that is not sound."""
    wrong = [
        (found.strangers, "rows of the survivor that no client asked for"),
        (found.duplicates, "keys that are on the survivor more than once"),
        (found.reasked, "keys that were asked for more than once"),
    ]
    said = [f"{len(keys)} {what} ({', '.join(str(key) for key in keys[:_NAMED])})" for keys, what in wrong if len(keys)]
    if said:
        raise LabError(f"no account can be made of this crash: {'; '.join(said)}")
