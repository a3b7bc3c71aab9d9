"""Common parts of the experiments on replication: arms by mode, distance and connections, and the text of modes and rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, TypeVar

from howfar.contract.receipt import TrialReceipt
from howfar.experiments.replication.factors import (
    DURABILITY,
    FAULT,
    MODE_LABELS,
    REPLICA_FACTORS,
    REPLICA_RTT_NS,
    REPLICATION,
    SEMI_SYNC,
    WAIT_FOR,
)
from howfar.experiments.replication.records import FallbackSample, LagRecord
from howfar.plan.factor import Level
from howfar.plan.factors import IMPLIED_LEVELS, SERVER, THREADS, level_of
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import mean_interval
from howfar.stats.trials import TrialTable, closed_loop_per_s
from howfar.store.records import Arm, ArmRole, RunInfo, Trial

ALONE: Final = "none"
ASYNC: Final = "async"
PUBLISHED_RTT_NS = 85_000_000
"""Distance of the published set-up D. A report leads with the distance nearest to it."""
TYPICAL_THREADS = 64
"""A number of connections large enough to share a wait. A report quotes the nearest measured number, by ratio."""
SAME_DISTANCE = 0.1
"""Relative difference below which two measured distances are the same."""
MAX_POINTS = 400
"""Maximum number of points in a series: more are not visible, and would make a report large."""

Sample = TypeVar("Sample", LagRecord, FallbackSample)
Levels = tuple[tuple[str, Level], ...]


@dataclass(frozen=True)
class ReplicationArm:
    """One arm that writes a binary log, with its good trials by block."""

    arm: Arm
    kind: str
    """Kind of server."""
    trials: dict[int, Trial]

    @property
    def mode(self) -> str:
        return REPLICATION.level_in(self.arm.factors)

    @property
    def threads(self) -> int:
        return THREADS.level_in(self.arm.factors)

    @property
    def waits(self) -> bool:
        """Whether a commit waits for an acknowledgement."""
        return self.mode in SEMI_SYNC

    @property
    def durability(self) -> str:
        return DURABILITY.level_in(self.arm.factors)

    @property
    def replica_rtt_ns(self) -> int | None:
        """The configured RTT to a replica. None: no replica."""
        level = REPLICA_RTT_NS.level_or_none(self.arm.factors)
        return None if level is None or self.mode == ALONE else int(level)

    def level(self, name: str) -> Level | None:
        """Level of a factor, or its default."""
        return level_of(self.arm.factors, name)

    @property
    def local_levels(self) -> Levels:
        """What a local commit depends on: every factor but the number of connections and those of the replica."""
        not_local = (*REPLICA_FACTORS, "replication", "fault")
        return tuple((name, level) for name, level in self.curve if name not in not_local)

    @property
    def curve(self) -> Levels:
        """Every factor but the number of connections."""
        levels = {**IMPLIED_LEVELS, **self.arm.factors}
        return tuple(sorted((name, level) for name, level in levels.items() if name != "threads"))

    @property
    def by_block(self) -> dict[int, float]:
        """Commits/s, by block."""
        measured = {block: trial.measured for block, trial in self.trials.items() if trial.measured is not None}
        return {block: closed_loop_per_s(load, self.threads) for block, load in measured.items()}

    def in_block(self, block: int) -> ReplicationArm:
        """This arm with the trial of one block; without a trial if it has no good one in that block."""
        return replace(
            self, trials={trial_block: trial for trial_block, trial in self.trials.items() if trial_block == block}
        )

    @property
    def commits_per_s(self) -> Estimate:
        return mean_interval(list(self.by_block.values()))

    @property
    def rest_rtt_ns(self) -> float | None:
        """Unloaded round trip to the replica whose acknowledgement completes a commit: median over trials."""
        position = WAIT_FOR.level_in(self.arm.factors)
        rtts_ns = [
            rtt_ns for trial in self.trials.values() if (rtt_ns := _rest_rtt_ns(trial.receipt, position)) is not None
        ]
        return median(rtts_ns) if rtts_ns else None


def _rest_rtt_ns(receipt: TrialReceipt, position: int) -> float | None:
    """Round trip of the replica whose answer arrives in this position, counted from 1."""
    reported = {} if receipt.replication is None else receipt.replication.rtt_at_rest_ns
    rtts = sorted(float(rtt) for rtt in reported.values() if rtt)
    return rtts[min(position, len(rtts)) - 1] if rtts else None


def replication_arms(table: TrialTable) -> tuple[ReplicationArm, ...]:
    """Arms without a fault that have a good trial, in the order of the plan, without the A/A arm."""
    return tuple(
        ReplicationArm(arm, server_kind(table.run.info, arm), table.trials[arm.name])
        for arm in table.run.info.arms
        if arm.role is not ArmRole.DUPLICATE
        and REPLICATION.level_in(arm.factors) != "off"
        and FAULT.level_in(arm.factors) == "none"
        and table.trials[arm.name]
    )


def server_kind(info: RunInfo, arm: Arm) -> str:
    """Kind of server of an arm; a plan may compare several."""
    named = SERVER.level_or_none(arm.factors) or info.server_kind
    return next((kind for kind in ("mariadb", "mysql") if kind in named.lower()), info.server_kind)


def typical_threads(counts: Iterable[int]) -> int:
    """The number of connections that a report quotes."""
    return min(counts, key=lambda count: abs(math.log(count / TYPICAL_THREADS)))


def quoted_distance(rtts_ns: Iterable[int | None]) -> int | None:
    """The distance that a report leads with. None: there is no link."""
    link_rtts_ns = [rtt_ns for rtt_ns in rtts_ns if rtt_ns is not None]
    return min(link_rtts_ns, key=lambda rtt_ns: (abs(rtt_ns - PUBLISHED_RTT_NS), rtt_ns)) if link_rtts_ns else None


def is_same_distance(rtt_ns: int | None, other_rtt_ns: int | None) -> bool:
    """Whether two distances are the same. None, of a row without a distance, equals every distance."""
    return (
        rtt_ns is None
        or other_rtt_ns is None
        or abs(rtt_ns - other_rtt_ns) <= SAME_DISTANCE * max(rtt_ns, other_rtt_ns)
    )


def thin_out_samples(samples: Sequence[Sample]) -> list[Sample]:
    """At most `MAX_POINTS` samples: of each group of neighbours, the one that was farthest behind, so that no peak is lost."""
    step = max(-(-len(samples) // MAX_POINTS), 1)
    groups = (samples[start : start + step] for start in range(0, len(samples), step))
    return [max(group, key=lambda sample: sample.behind or 0) for group in groups]


# ---------------------------------------------------------------- text


def mode_name(mode: str) -> str:
    """`semi-sync AFTER_SYNC`."""
    return MODE_LABELS.get(mode, mode)


def replication_name(mode: str) -> str:
    """The mode as a noun: `asynchronous replication`, `semi-sync AFTER_SYNC`."""
    return "asynchronous replication" if mode == ASYNC else mode_name(mode)


def with_mode(mode: str) -> str:
    """The mode inside a sentence: `without a replica`, `with asynchronous replication`, `with semi-sync AFTER_SYNC`."""
    return "without a replica" if mode == ALONE else f"with {replication_name(mode)}"


def rate(per_s: float) -> str:
    """`11.7`, `743`, `12,400`: three digits."""
    if per_s >= 1000:
        return f"{float(f'{per_s:.3g}'):,.0f}"
    return f"{per_s:.3g}" if per_s < 100 else f"{per_s:.0f}"
