"""All findings of a run about replication, and the table for a reader's decision: the cost of each mode at each distance, and what a
crash loses in it. A run may hold costs, crashes and fallbacks at once."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howfar.analysis.cells import Floors
from howfar.experiments.crash.analysis import FAULTS, CrashFindings, CrashLoss, crash_findings, loss_verdict
from howfar.experiments.fallback.analysis import FallbackStory, fallback_sentence, fallback_stories
from howfar.experiments.replication.analysis import ReplicationCost, replication_cost
from howfar.experiments.replication.arms import (
    ALONE,
    ASYNC,
    Levels,
    ReplicationArm,
    mode_name,
    near,
    quoted_distance,
    rate,
    replication_arms,
    typical_threads,
)
from howfar.plan.factors import CLUSTERS, COMMIT_OFF, ORDINARY, SEMI_SYNC
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, judge_ratio, welch_ratio
from howfar.stats.trials import TrialTable
from howfar.store.records import Arm, FactorValue

_ORDER = (ALONE, COMMIT_OFF, ASYNC, "after-commit", "after-sync", "remote-write", "remote-flush", "remote-apply")
"""Modes, from the one that loses most to those that lose nothing."""


class TradeRow(Part):
    """One row of the table."""

    mode: str
    says: str
    """The name of the mode."""
    replica_rtt_ns: int | None = None
    """The distance of the row. A row without a replica has it too, so that rows of a distance stay together. None: no link."""
    threads: int
    durability: str = "strict"
    fault: str | None = None
    """The fault behind this row's crashes. None: nothing was broken."""
    commits_per_s: Estimate
    cost: Estimate | None
    """Throughput over that without a replica, or else over the first row's. None: this is the row that is compared with."""
    blocks: int = 0
    """Number of blocks behind `cost`, in which both arms were good. Crashes are not paired and have 0."""
    trials: int = 0
    """Number of trials behind the rate."""
    commit_ms: float
    lost_per_crash: Estimate | None
    """Mean loss per crash. None: not measured in this run."""
    crashes: int
    phantoms: bool | None
    """Whether other clients saw commits that the crash undid. None: not measured."""
    verdict: str
    """When to use it, in a clause."""


class ReplicationFindings(Part):
    """The findings. None: not in this run."""

    cost: ReplicationCost | None
    trade: tuple[TradeRow, ...]
    crash: CrashFindings | None
    fallback: tuple[FallbackStory, ...]


def replication_findings(table: TrialTable, floors: Floors) -> ReplicationFindings | None:
    """The findings of a run about replication. None: it is about something else, or has no good trial yet."""
    arms, run = replication_arms(table), table.run
    if any(arm.mode in CLUSTERS for arm in arms):
        arms = ()  # in a run about clusters, the lone primary and the replicas serve only for comparison
    cost = replication_cost(
        arms, run.info.plan, lambda one, other: floors.compare(table, one, other) is Resolution.FASTER
    )
    crash, stories = crash_findings(run), fallback_stories(run)
    if cost is None and crash is None and not stories:
        return None
    return ReplicationFindings(cost=cost, trade=trade_rows(arms, crash, run.info.arms), crash=crash, fallback=stories)


def replication_verdict(found: ReplicationFindings) -> str:
    """The answer of such a run. Empty: its figures show nothing yet."""
    if found.crash is not None:
        return " ".join(loss_verdict(found.crash.losses))
    if found.fallback:
        return " ".join(fallback_sentence(story) for story in found.fallback)
    return " ".join(found.cost.sentences[:1]) if found.cost else ""


def quoted_rows(rows: Sequence[TradeRow]) -> list[TradeRow]:
    """The rows of the distance that a report leads with."""
    distance = quoted_distance([row.replica_rtt_ns for row in rows])
    return [row for row in rows if near(row.replica_rtt_ns, distance)]


def trade_rows(
    arms: Sequence[ReplicationArm], crash: CrashFindings | None, every: Sequence[Arm]
) -> tuple[TradeRow, ...]:
    """A row for each mode and distance at which commits were measured. In a run with crashes only: a row for each mode with all else
    the same, with its rate before the fault."""
    crashed = _crashed(crash.losses if crash is not None else (), {arm.name: arm for arm in every})
    return _measured(arms, crashed) if arms else _only_crashed(crashed)


def _measured(arms: Sequence[ReplicationArm], crashed: Sequence[_Crashed]) -> tuple[TradeRow, ...]:
    chosen = typical_threads({arm.threads for arm in arms})
    here = [arm for arm in arms if arm.threads == chosen]
    here = [arm for arm in here if arm.durability == here[0].durability and _default(arm)]
    alone = next((arm for arm in here if arm.mode == ALONE), None)
    distances: list[int | None] = [*sorted({arm.replica_rtt_ns for arm in here if arm.replica_rtt_ns is not None})]
    rows = []
    for distance in distances or [None]:
        at = [arm for arm in here if arm.mode == ALONE or arm.replica_rtt_ns == distance]
        at.sort(key=lambda arm: _ORDER.index(arm.mode))
        rows += [_row(arm, distance, alone or at[0], crashed) for arm in at]
    return tuple(rows)


def _default(arm: ReplicationArm) -> bool:
    names = ("replicas", "wait_for", "replica_tls", "replica_compression")
    return arm.mode == ALONE or all(arm.level(name) == ORDINARY[name] for name in names)


def _row(arm: ReplicationArm, distance: int | None, reference: ReplicationArm, crashed: Sequence[_Crashed]) -> TradeRow:
    rates, below = arm.by_block, reference.by_block
    ratios = [rates[block] / below[block] for block in rates if block in below]
    mine = next((each for each in crashed if each.levels == _levels(arm.arm)), None)
    return _trade_row(
        arm.mode,
        distance,
        mine,
        arm.commits_per_s,
        threads=arm.threads,
        durability=arm.durability,
        cost=None if arm is reference or not ratios else judge_ratio(ratios).quoted,
        blocks=len(rates) if arm is reference else len(ratios),
        trials=len(rates),
    )


def _trade_row(
    mode: str, distance: int | None, crashed: _Crashed | None, commits_per_s: Estimate, *, threads: int, **measured: Any
) -> TradeRow:
    loss, per_s = crashed.loss if crashed else None, commits_per_s.value
    return TradeRow(
        mode=mode,
        says=mode_name(mode),
        replica_rtt_ns=distance,
        threads=threads,
        fault=loss.fault if loss else None,
        commits_per_s=commits_per_s,
        commit_ms=threads / per_s * 1e3 if per_s else 0.0,
        lost_per_crash=loss.lost_per_crash if loss else None,
        crashes=loss.crashes if loss else 0,
        phantoms=loss.phantoms > 0 if loss and loss.seen else None,
        verdict=_verdict(mode, crashed, per_s, distance),
        **measured,
    )


@dataclass(frozen=True)
class _Crashed:
    """Crashes that differ only in their fault. One fault represents them, the same in each such group if all have one in common,
    because figures of several faults do not belong in one row."""

    levels: Levels
    loss: CrashLoss
    every: tuple[CrashLoss, ...]

    def level(self, name: str) -> FactorValue | None:
        return dict(self.levels).get(name, ORDINARY.get(name))

    @property
    def comparable(self) -> Levels:
        """The levels that arms must share to have their rates compared: all but the mode."""
        return tuple(pair for pair in self.levels if pair[0] != "replication")


def _levels(arm: Arm) -> Levels:
    """Every factor but the fault."""
    return tuple(sorted((name, level) for name, level in arm.factors.items() if name != "fault"))


def _crashed(losses: Sequence[CrashLoss], arms: Mapping[str, Arm]) -> list[_Crashed]:
    groups: dict[Levels, list[CrashLoss]] = {}
    for loss in losses:
        groups.setdefault(_levels(arms[loss.arm]), []).append(loss)
    shared = set.intersection(*({loss.fault for loss in found} for found in groups.values())) if groups else set()
    return [_Crashed(levels, _chosen(found, shared), tuple(found)) for levels, found in groups.items()]


def _chosen(losses: Sequence[CrashLoss], shared: Container[str]) -> CrashLoss:
    """The loss that represents the others, by an order fixed beforehand, not by what was found."""
    return min(losses, key=lambda loss: (loss.fault not in shared, list(FAULTS).index(loss.fault)))


def _only_crashed(crashed: Sequence[_Crashed]) -> tuple[TradeRow, ...]:
    """Rows of a run with crashes only. Costs are over the first comparable row; crashes are not blocks, so they are not paired."""
    rows: list[TradeRow] = []
    first: dict[Levels, list[float]] = {}
    for each in sorted(crashed, key=lambda each: _ORDER.index(each.loss.mode) if each.loss.mode in _ORDER else 9):
        loss = each.loss
        rates = [point.commits_per_s for point in loss.each if point.commits_per_s > 0]
        distance = int(each.level("replica_rtt_ns") or loss.replica_rtt_ns)
        cost = _over(rates, first.get(each.comparable, ()))
        durability = str(each.level("durability"))
        rows.append(
            _trade_row(
                loss.mode, distance, each, loss.commits_per_s, threads=loss.threads, durability=durability, cost=cost
            )
        )
        first.setdefault(each.comparable, rates)
    return tuple(rows)


def _over(rates: Sequence[float], first: Sequence[float]) -> Estimate | None:
    if not rates or not first:
        return None
    return welch_ratio([math.log(rate) for rate in rates], [math.log(rate) for rate in first])


def _verdict(mode: str, crashed: _Crashed | None, per_s: float, distance: int | None) -> str:
    every = crashed.every if crashed else ()
    if mode == ALONE:
        return "where a lost machine may take all of its data"
    if mode == ASYNC:
        return f"where a crash may lose acknowledged commits: {_async_loss(crashed, per_s, distance)}"
    if mode == COMMIT_OFF:
        return f"where even a crash of the server's program may lose them: {_async_loss(crashed, per_s, distance)}"
    if mode not in SEMI_SYNC:
        return ""
    lost = sum(loss.lost for loss in every)
    kept = (
        f"{lost:,} acknowledged commits were lost, though none should be"
        if lost
        else "no acknowledged commit may be lost"
    )
    if mode == "after-commit":
        seen = "saw" if any(loss.phantoms for loss in every) else "may see"
        return f"where {kept}, and it does no harm that readers {seen} commits that a crash undoes"
    if mode == "remote-write":
        return f"where {kept} unless both machines die at once"
    return f"where {kept}, and no reader may see a commit that a crash undoes"


def _async_loss(crashed: _Crashed | None, per_s: float, distance: int | None) -> str:
    if crashed is not None and crashed.loss.lost:
        return f"{rate(crashed.loss.lost_per_crash.value)} per crash here"
    in_flight = per_s * (distance or 0) / 2e9
    if crashed is None and in_flight >= 1:
        return f"at this rate {rate(in_flight)} are in flight to the replica at any moment"
    return "those in flight when it happens"
