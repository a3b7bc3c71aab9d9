"""Commits a group: how many share one write of the binary log, or one acknowledgement, by the server's own counters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from howfar.analysis.facts_in import number_in
from howfar.experiments.replication.arms import ReplicationArm
from howfar.store.records import Trial

_INTERVAL = re.compile(r":(\d+)(?:-(\d+))?")


def commits_a_group(arm: ReplicationArm) -> float | None:
    """None: the server counts no groups. MySQL's semi-synchronous primary counts them where it says that it counts transactions."""
    counted = [found for trial in arm.trials.values() if (found := _counted(trial) or _acknowledged(arm, trial))]
    groups = sum(groups for _, groups in counted)
    return sum(commits for commits, _ in counted) / groups if groups else None


def _counted(trial: Trial) -> tuple[float, float] | None:
    """Commits and groups of the window."""
    seen = trial.window.server if trial.window else {}
    commits, groups = seen.get("Binlog_commits"), seen.get("Binlog_group_commits")
    return (commits, groups) if commits and groups else None


def _acknowledged(arm: ReplicationArm, trial: Trial) -> tuple[float, float] | None:
    """MySQL under AFTER_SYNC, from before the load to after it."""
    section = trial.receipt.get("replication")
    window = section.get("window") if isinstance(section, Mapping) else None
    if (arm.kind, arm.mode) != ("mysql", "after-sync") or not isinstance(window, Mapping):
        return None
    moments = [window.get(when) for when in ("before", "after")]
    totals = [_totals(moment) for moment in moments if isinstance(moment, Mapping)]
    if len(totals) != 2 or None in totals:
        return None
    (commits, groups), (later_commits, later_groups) = totals[0] or (0, 0), totals[1] or (0, 0)
    return (later_commits - commits, later_groups - groups) if later_groups > groups else None


def _totals(moment: Mapping[str, Any]) -> tuple[float, float] | None:
    groups = number_in(moment, "primary", "yes_tx")
    position = moment.get("position")
    return None if groups is None or not isinstance(position, str) else (_transactions(position), groups)


def _transactions(position: str) -> int:
    """In a set of MySQL's transaction identifiers, `uuid:1-7:9,uuid:1-2`."""
    return sum(int(last or first) - int(first) + 1 for first, last in _INTERVAL.findall(position))
