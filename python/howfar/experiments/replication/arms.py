"""Arms of a run with replication as the analysis reads them: mode, distance, connections, and each good trial's commits a second.

Not here: any judgement of them (`cost.py`, `model.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from howfar.analysis.trials import TrialTable, transaction_histogram
from howfar.plan.types import ORDINARY, REPLICA_FACTORS, SEMI_SYNC
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import mean_interval
from howfar.store.records import Arm, ArmRole, FactorValue, Measured, RunInfo, Trial

ALONE, APART = "none", "async"
FEW_COMMITS = 200
"""Of a connection in a window: with fewer, that the window's ends cut commits in two is seen in the count."""


@dataclass(frozen=True)
class ReplicationArm:
    """One arm that writes a binary log, its good trials by block."""

    arm: Arm
    kind: str
    """`mariadb` or `mysql`."""
    trials: dict[int, Trial]

    @property
    def mode(self) -> str:
        return str(self.level("replication"))

    @property
    def threads(self) -> int:
        return int(self.arm.factors.get("threads", 1))

    @property
    def waits(self) -> bool:
        """A commit waits for an acknowledgement."""
        return self.mode in SEMI_SYNC

    @property
    def durability(self) -> str:
        return str(self.level("durability"))

    @property
    def replica_rtt_ns(self) -> int | None:
        """As asked. None: no replica."""
        level = self.arm.factors.get("replica_rtt_ns")
        return None if level is None or self.mode == ALONE else int(level)

    def level(self, name: str) -> FactorValue | None:
        """Of a factor, also one that goes without saying."""
        return self.arm.factors.get(name, ORDINARY.get(name))

    @property
    def ground(self) -> tuple[tuple[str, FactorValue], ...]:
        """What a local commit depends on: every factor but those of the replica and the connections."""
        given = {**ORDINARY, **self.arm.factors}
        return tuple(
            sorted((name, level) for name, level in given.items() if not _is_replicas(name) and name != "threads")
        )

    @property
    def curve(self) -> tuple[tuple[str, FactorValue], ...]:
        """All but the number of connections."""
        given = {**ORDINARY, **self.arm.factors}
        return tuple(sorted((name, level) for name, level in given.items() if name != "threads"))

    @property
    def by_block(self) -> dict[int, float]:
        """Commits a second."""
        return {
            block: commits_per_s(trial.measured, self.threads)
            for block, trial in self.trials.items()
            if trial.measured is not None
        }

    @property
    def commits_per_s(self) -> Estimate:
        return mean_interval(list(self.by_block.values()))

    @property
    def rest_rtt_ns(self) -> float | None:
        """To the replica whose acknowledgement completes a commit, measured at rest: median over trials."""
        wanted = int(self.level("wait_for") or 1)
        found = [rtt for trial in self.trials.values() if (rtt := _rest_rtt(trial.receipt, wanted)) is not None]
        return median(found) if found else None


def _is_replicas(name: str) -> bool:
    return name in (*REPLICA_FACTORS, "replication", "fault")


def commits_per_s(measured: Measured, threads: int) -> float:
    """Counted; where the window saw few of each connection, connections over the mean time of a commit, which in a closed loop without
    pauses is the same and does not depend on where the window's ends fall."""
    histogram = transaction_histogram(measured)
    if histogram is not None and histogram.mean_ns > 0 and measured.transactions < FEW_COMMITS * threads:
        return threads * 1e9 / histogram.mean_ns
    return measured.transactions / (measured.elapsed_ns / 1e9)


def _rest_rtt(receipt: Mapping[str, Any], wanted: int) -> float | None:
    """Of the replica that is `wanted`-th to answer."""
    section = receipt.get("replication")
    told = section.get("rtt_at_rest_ns") if isinstance(section, Mapping) else None
    rtts = sorted(float(rtt) for rtt in told.values() if rtt) if isinstance(told, Mapping) else []
    return rtts[min(wanted, len(rtts)) - 1] if rtts else None


def replication_arms(table: TrialTable) -> tuple[ReplicationArm, ...]:
    """Those without a fault that have a good trial, in the order of the plan; the A/A arm is not among them."""
    return tuple(
        ReplicationArm(arm, server_kind(table.run.info, arm), table.trials[arm.name])
        for arm in table.run.info.arms
        if arm.role is not ArmRole.DUPLICATE
        and arm.factors.get("replication", "off") != "off"
        and arm.factors.get("fault", "none") == "none"
        and table.trials[arm.name]
    )


def server_kind(info: RunInfo, arm: Arm) -> str:
    """A plan may compare servers; else the run has one."""
    named = str(arm.factors.get("server", info.server_kind))
    return next((kind for kind in ("mariadb", "mysql") if kind in named.lower()), info.server_kind)
