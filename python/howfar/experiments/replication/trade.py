"""The table that a reader decides by: what a mode costs at a distance, and what a crash loses in it."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from howfar.experiments.replication.arms import ALONE, ReplicationArm
from howfar.experiments.replication.findings import CrashFindings, CrashLoss, TradeRow
from howfar.experiments.replication.words import mode_words, rate, typical_threads
from howfar.plan.types import ORDINARY, SEMI_SYNC
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import judge_ratio, welch_ratio
from howfar.store.records import Arm, FactorValue

_ORDER = (ALONE, "async", "after-commit", "after-sync")
"""From what loses most to what loses nothing."""
_FAULTS = ("cut", "cut-to-replica", "kill-primary", "stop-replica", "cut-to-primary", "replica-leaves")
"""The one that stands for a row comes first: of a crash, what the death of a machine is nearest to."""


def trade_rows(
    arms: Sequence[ReplicationArm], crash: CrashFindings | None, every: Sequence[Arm]
) -> tuple[TradeRow, ...]:
    """Of a plan without faults a row for each mode and distance; of crashes alone one for each mode and ground, by its rate before the
    fault. A run has one server."""
    broken = _broken(crash.losses if crash is not None else (), {arm.name: arm for arm in every})
    return _measured(arms, broken) if arms else _crashed(broken)


def _measured(arms: Sequence[ReplicationArm], broken: Sequence[_Broken]) -> tuple[TradeRow, ...]:
    chosen = typical_threads({arm.threads for arm in arms})
    here = [arm for arm in arms if arm.threads == chosen]
    here = [arm for arm in here if arm.durability == here[0].durability and _plain(arm)]
    alone = next((arm for arm in here if arm.mode == ALONE), None)
    distances: list[int | None] = [*sorted({arm.replica_rtt_ns for arm in here if arm.replica_rtt_ns is not None})]
    rows = []
    for distance in distances or [None]:
        near = [arm for arm in here if arm.mode == ALONE or arm.replica_rtt_ns == distance]
        near.sort(key=lambda arm: _ORDER.index(arm.mode))
        rows += [_row(arm, distance, alone or near[0], broken) for arm in near]
    return tuple(rows)


def _plain(arm: ReplicationArm) -> bool:
    ordinary = {"replicas": 1, "wait_for": 1, "replica_tls": "off", "replica_compression": "off"}
    return arm.mode == ALONE or all(arm.level(name) == level for name, level in ordinary.items())


def _row(arm: ReplicationArm, distance: int | None, reference: ReplicationArm, broken: Sequence[_Broken]) -> TradeRow:
    rates, below = arm.by_block, reference.by_block
    ratios = [rates[block] / below[block] for block in rates if block in below]
    mine = next((each for each in broken if each.ground == _ground(arm.arm)), None)
    per_s = arm.commits_per_s
    return TradeRow(
        mode=arm.mode,
        says=mode_words(arm.mode),
        replica_rtt_ns=distance,
        threads=arm.threads,
        durability=arm.durability,
        fault=mine.loss.fault if mine else None,
        commits_per_s=per_s,
        cost=None if arm is reference or not ratios else judge_ratio(ratios).quoted,
        blocks=len(rates) if arm is reference else len(ratios),
        trials=len(rates),
        commit_ms=arm.threads / per_s.value * 1e3,
        lost_per_crash=mine.loss.lost_per_crash if mine else None,
        crashes=mine.loss.crashes if mine else 0,
        phantoms=_phantoms(mine.loss) if mine else None,
        verdict=_verdict(arm.mode, mine, per_s.value, distance),
    )


Ground = tuple[tuple[str, FactorValue], ...]


@dataclass(frozen=True)
class _Broken:
    """Crashes that differ in what broke and in nothing else. One fault stands for them, the same in each such group if they have one
    in common: figures of several faults are not one row's."""

    ground: Ground
    loss: CrashLoss
    every: tuple[CrashLoss, ...]

    @property
    def lost(self) -> int:
        """By any fault."""
        return sum(loss.lost for loss in self.every)

    def level(self, name: str) -> FactorValue | None:
        return dict(self.ground).get(name, ORDINARY.get(name))

    @property
    def beside(self) -> Ground:
        """Whose rates may be compared: all but the mode, and what only a mode with a replica has."""
        return tuple(pair for pair in self.ground if pair[0] != "replication")


def _ground(arm: Arm) -> Ground:
    """Every factor but the fault."""
    return tuple(sorted((name, level) for name, level in arm.factors.items() if name != "fault"))


def _broken(losses: Sequence[CrashLoss], arms: Mapping[str, Arm]) -> list[_Broken]:
    groups: dict[Ground, list[CrashLoss]] = {}
    for loss in losses:
        groups.setdefault(_ground(arms[loss.arm]), []).append(loss)
    shared = set.intersection(*({loss.fault for loss in found} for found in groups.values())) if groups else set()
    return [_Broken(ground, _chosen(found, shared), tuple(found)) for ground, found in groups.items()]


def _chosen(losses: Sequence[CrashLoss], shared: Container[str]) -> CrashLoss:
    """By an order that was settled beforehand, not by what was found."""
    return min(losses, key=lambda loss: (loss.fault not in shared, _FAULTS.index(loss.fault)))


def _phantoms(loss: CrashLoss) -> bool | None:
    return loss.phantoms > 0 if loss.seen else None


def _crashed(broken: Sequence[_Broken]) -> tuple[TradeRow, ...]:
    """Costs are over the first row of the same ground; crashes are no blocks, so they are not paired."""
    rows: list[TradeRow] = []
    first: dict[Ground, list[float]] = {}
    for each in sorted(broken, key=lambda each: _ORDER.index(each.loss.mode) if each.loss.mode in _ORDER else 9):
        loss = each.loss
        rates = [point.commits_per_s for point in loss.each if point.commits_per_s > 0]
        distance = int(each.level("replica_rtt_ns") or loss.replica_rtt_ns)
        rows.append(
            TradeRow(
                mode=loss.mode,
                says=mode_words(loss.mode),
                replica_rtt_ns=distance,
                threads=loss.threads,
                durability=str(each.level("durability")),
                fault=loss.fault,
                commits_per_s=loss.commits_per_s,
                cost=_over(rates, first.get(each.beside, ())),
                commit_ms=loss.threads / loss.commits_per_s.value * 1e3 if loss.commits_per_s.value else 0.0,
                lost_per_crash=loss.lost_per_crash,
                crashes=loss.crashes,
                phantoms=_phantoms(loss),
                verdict=_verdict(loss.mode, each, loss.commits_per_s.value, distance),
            )
        )
        first.setdefault(each.beside, rates)
    return tuple(rows)


def _over(rates: Sequence[float], first: Sequence[float]) -> Estimate | None:
    if not rates or not first:
        return None
    return welch_ratio([math.log(rate) for rate in rates], [math.log(rate) for rate in first])


def _verdict(mode: str, broken: _Broken | None, per_s: float, distance: int | None) -> str:
    if mode == ALONE:
        return "where a lost machine may take all of its data"
    if mode == "async":
        return f"where a crash may lose acknowledged commits: {_async_loss(broken, per_s, distance)}"
    if mode not in SEMI_SYNC:
        return ""
    lost = broken.lost if broken else 0
    kept = (
        "no acknowledged commit may be lost"
        if not lost
        else f"{lost:,} acknowledged commits were lost, though none should be"
    )
    if mode == "after-commit":
        shown = broken is not None and any(loss.phantoms for loss in broken.every)
        seen = "saw" if shown else "may see"
        return f"where {kept}, and readers that {seen} commits which a crash takes back do no harm"
    return f"where {kept} and none seen that a crash takes back"


def _async_loss(broken: _Broken | None, per_s: float, distance: int | None) -> str:
    if broken is not None and broken.loss.lost:
        return f"{rate(broken.loss.lost_per_crash.value)} a crash here"
    on_the_way = per_s * (distance or 0) / 2e9
    if broken is None and on_the_way >= 1:
        return f"at this rate {rate(on_the_way)} are on the way to the replica at any moment"
    return "as many as are on the way when it happens"
