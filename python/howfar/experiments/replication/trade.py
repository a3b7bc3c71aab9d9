"""All findings of a run about replication, and the table by which a reader chooses a mode: its cost at each distance, and what a
crash loses in it. A run may contain costs, crashes and fallbacks at once."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from howfar.experiments.replication.analysis import ReplicationCost, replication_cost
from howfar.experiments.replication.arms import (
    ALONE,
    ASYNC,
    Levels,
    ReplicationArm,
    is_same_distance,
    mode_name,
    quoted_distance,
    replication_arms,
    typical_threads,
)
from howfar.experiments.replication.crash.analysis import FAULTS, CrashFindings, CrashLoss, crash_findings
from howfar.experiments.replication.factors import (
    CLUSTERS,
    DURABILITY,
    REPLICA_RTT_NS,
    SEMI_SYNC,
    SYNCHRONOUS_COMMIT_OFF,
)
from howfar.experiments.replication.fallback.analysis import FallbackStory, fallback_stories
from howfar.experiments.replication.texts import TEXTS
from howfar.findings import fill
from howfar.plan.factors import IMPLIED_LEVELS
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import judge_ratio, welch_ratio
from howfar.stats.trials import TrialTable
from howfar.store.records import Arm

_MODES_BY_SAFETY = (
    ALONE,
    SYNCHRONOUS_COMMIT_OFF,
    ASYNC,
    "after-commit",
    "after-sync",
    "remote-write",
    "remote-flush",
    "remote-apply",
)
"""Modes, from the one that loses most in a crash to those that lose nothing."""


class ModeComparison(Part):
    """One row of the table."""

    mode: str
    text: str = Field(alias="says")
    """The name of the mode."""
    replica_rtt_ns: int | None = None
    """The distance of the row. A row without a replica has it too, so that the rows of a distance stay together. None: no link."""
    threads: int
    durability: str = "strict"
    fault: str | None = None
    """The fault that caused this row's crashes. None: no crashes."""
    commits_per_s: Estimate
    cost: Estimate | None
    """Throughput over that without a replica, or else over the first row's. None: the other rows are compared with this one."""
    blocks: int = 0
    """Number of blocks used for `cost`, in which both arms were good. Crashes are not paired and have 0."""
    trials: int = 0
    """Number of trials used for the rate."""
    commit_ms: float
    lost_per_crash: Estimate | None
    """Mean loss per crash. None: not measured in this run."""
    crashes: int
    phantoms: bool | None
    """Whether other clients saw commits that the crash undid. None: not measured."""
    verdict: str
    """When to use the mode, in a clause."""


class ReplicationFindings(Part):
    """The findings. None: not in this run."""

    cost: ReplicationCost | None
    trade: tuple[ModeComparison, ...]
    crash: CrashFindings | None
    fallback: tuple[FallbackStory, ...]


def replication_findings(table: TrialTable) -> ReplicationFindings | None:
    """The findings of a run about replication. None: the run is about something else, or has no good trial yet."""
    arms, run = replication_arms(table), table.run
    if any(arm.mode in CLUSTERS for arm in arms):
        arms = ()  # in a run about clusters, the lone primary and the replicas serve only for comparison
    cost = replication_cost(arms, run.info.stored_plan.workload)
    crash, stories = crash_findings(run), fallback_stories(run)
    if cost is None and crash is None and not stories:
        return None
    return ReplicationFindings(cost=cost, trade=trade_rows(arms, crash, run.info.arms), crash=crash, fallback=stories)


def quoted_rows(rows: Sequence[ModeComparison]) -> list[ModeComparison]:
    """The rows of the distance that a report leads with."""
    distance = quoted_distance([row.replica_rtt_ns for row in rows])
    return [row for row in rows if is_same_distance(row.replica_rtt_ns, distance)]


def trade_rows(
    arms: Sequence[ReplicationArm], crash: CrashFindings | None, all_arms: Sequence[Arm]
) -> tuple[ModeComparison, ...]:
    """A row for each mode and distance at which commits were measured. In a run with crashes only: a row for each group of crashes
    that differ only in their fault, with the rate before the fault."""
    crash_groups = _crash_groups(crash.losses if crash is not None else (), {arm.name: arm for arm in all_arms})
    return _measured_rows(arms, crash_groups) if arms else _crash_only_rows(crash_groups)


def _measured_rows(arms: Sequence[ReplicationArm], crash_groups: Sequence[_CrashGroup]) -> tuple[ModeComparison, ...]:
    quoted_threads = typical_threads({arm.threads for arm in arms})
    comparable = [arm for arm in arms if arm.threads == quoted_threads]
    comparable = [
        arm for arm in comparable if arm.durability == comparable[0].durability and _has_default_replica_levels(arm)
    ]
    unreplicated = next((arm for arm in comparable if arm.mode == ALONE), None)
    distances: list[int | None] = [
        *sorted({arm.replica_rtt_ns for arm in comparable if arm.replica_rtt_ns is not None})
    ]
    rows = []
    for distance in distances or [None]:
        at_distance = [arm for arm in comparable if arm.mode == ALONE or arm.replica_rtt_ns == distance]
        at_distance.sort(key=lambda arm: _MODES_BY_SAFETY.index(arm.mode))
        rows += [_measured_row(arm, distance, unreplicated or at_distance[0], crash_groups) for arm in at_distance]
    return tuple(rows)


def _has_default_replica_levels(arm: ReplicationArm) -> bool:
    names = ("replicas", "wait_for", "replica_tls", "replica_compression")
    return arm.mode == ALONE or all(arm.level(name) == IMPLIED_LEVELS[name] for name in names)


def _measured_row(
    arm: ReplicationArm, distance: int | None, reference: ReplicationArm, crash_groups: Sequence[_CrashGroup]
) -> ModeComparison:
    rates, reference_rates = arm.by_block, reference.by_block
    ratios = [rates[block] / reference_rates[block] for block in rates if block in reference_rates]
    crash_group = next((group for group in crash_groups if group.levels == _levels_without_fault(arm.arm)), None)
    return _trade_row(
        arm.mode,
        distance,
        crash_group,
        arm.commits_per_s,
        threads=arm.threads,
        durability=arm.durability,
        cost=None if arm is reference or not ratios else judge_ratio(ratios).reported,
        blocks=len(rates) if arm is reference else len(ratios),
        trials=len(rates),
    )


def _trade_row(
    mode: str,
    distance: int | None,
    crash_group: _CrashGroup | None,
    commits_per_s: Estimate,
    *,
    threads: int,
    **measured: Any,
) -> ModeComparison:
    loss, per_s = crash_group.loss if crash_group else None, commits_per_s.value
    return ModeComparison(
        mode=mode,
        text=mode_name(mode),
        replica_rtt_ns=distance,
        threads=threads,
        fault=loss.fault if loss else None,
        commits_per_s=commits_per_s,
        commit_ms=threads / per_s * 1e3 if per_s else 0.0,
        lost_per_crash=loss.lost_per_crash if loss else None,
        crashes=loss.crashes if loss else 0,
        phantoms=loss.phantoms > 0 if loss and loss.seen else None,
        verdict=_verdict(mode, crash_group, per_s, distance),
        **measured,
    )


@dataclass(frozen=True)
class _CrashGroup:
    """Crashes that differ only in their fault. One fault represents them, because a row cannot mix figures of several faults. It is
    the same one in every group if the groups have one in common."""

    levels: Levels
    loss: CrashLoss
    losses: tuple[CrashLoss, ...]

    @property
    def comparable(self) -> Levels:
        """The levels that arms must share to have their rates compared: all but the mode."""
        return tuple(pair for pair in self.levels if pair[0] != "replication")


def _levels_without_fault(arm: Arm) -> Levels:
    """Every factor but the fault."""
    return tuple(sorted((name, level) for name, level in arm.factors.items() if name != "fault"))


def _crash_groups(losses: Sequence[CrashLoss], arms: Mapping[str, Arm]) -> list[_CrashGroup]:
    losses_by_levels: dict[Levels, list[CrashLoss]] = {}
    for loss in losses:
        losses_by_levels.setdefault(_levels_without_fault(arms[loss.arm]), []).append(loss)
    shared = (
        set.intersection(*({loss.fault for loss in group_losses} for group_losses in losses_by_levels.values()))
        if losses_by_levels
        else set()
    )
    return [
        _CrashGroup(levels, _representative_loss(group_losses, shared), tuple(group_losses))
        for levels, group_losses in losses_by_levels.items()
    ]


def _representative_loss(losses: Sequence[CrashLoss], shared: Container[str]) -> CrashLoss:
    """The loss that represents the group, chosen by a fixed order of faults, not by its figures."""
    return min(losses, key=lambda loss: (loss.fault not in shared, list(FAULTS).index(loss.fault)))


def _crash_only_rows(crash_groups: Sequence[_CrashGroup]) -> tuple[ModeComparison, ...]:
    """Rows of a run with crashes only. Costs are relative to the first comparable row, and unpaired, because crashes are not
    blocks."""
    rows: list[ModeComparison] = []
    reference_rates: dict[Levels, list[float]] = {}
    for group in sorted(
        crash_groups,
        key=lambda group: _MODES_BY_SAFETY.index(group.loss.mode) if group.loss.mode in _MODES_BY_SAFETY else 9,
    ):
        loss = group.loss
        rates = [point.commits_per_s for point in loss.each if point.commits_per_s > 0]
        distance = REPLICA_RTT_NS.level_or_none(dict(group.levels)) or loss.replica_rtt_ns
        cost = _unpaired_ratio(rates, reference_rates.get(group.comparable, ()))
        durability = DURABILITY.level_in(dict(group.levels))
        rows.append(
            _trade_row(
                loss.mode, distance, group, loss.commits_per_s, threads=loss.threads, durability=durability, cost=cost
            )
        )
        reference_rates.setdefault(group.comparable, rates)
    return tuple(rows)


def _unpaired_ratio(rates: Sequence[float], reference_rates: Sequence[float]) -> Estimate | None:
    if not rates or not reference_rates:
        return None
    return welch_ratio([math.log(rate) for rate in rates], [math.log(rate) for rate in reference_rates])


def _verdict(mode: str, crash_group: _CrashGroup | None, per_s: float, distance: int | None) -> str:
    losses = crash_group.losses if crash_group else ()
    if mode in (ALONE, ASYNC, SYNCHRONOUS_COMMIT_OFF):
        return fill(TEXTS[f"use {mode}"], loss=_async_loss_clause(crash_group, per_s, distance))
    if mode not in SEMI_SYNC:
        return ""
    lost, seen = sum(loss.lost for loss in losses), any(loss.phantoms for loss in losses)
    safe = fill(TEXTS["not-safe" if lost else "safe"], lost=lost)
    template = TEXTS.get(f"use {mode}", TEXTS["use safe"])
    return fill(template, safe=safe, seen=seen, unseen=not seen)


def _async_loss_clause(crash_group: _CrashGroup | None, per_s: float, distance: int | None) -> str:
    if crash_group is not None and crash_group.loss.lost:
        return fill(TEXTS["lost-here"], lost=crash_group.loss.lost_per_crash)
    in_flight = per_s * (distance or 0) / 2e9
    return fill(
        TEXTS["in-flight" if crash_group is None and in_flight >= 1 else "in-flight-unknown"], commits=in_flight
    )
