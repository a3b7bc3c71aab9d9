"""The table that a reader decides by: what a mode costs at a distance, and what a crash loses in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from howfar.analysis.estimate import Estimate
from howfar.analysis.intervals import judge_ratio, welch_ratio
from howfar.analysis.replication.arms import ALONE, ReplicationArm
from howfar.analysis.replication.findings import CrashFindings, CrashLoss, TradeRow
from howfar.analysis.replication.words import mode_words, rate
from howfar.plan.types import SEMI_SYNC
from howfar.results.records import Arm

TYPICAL_THREADS = 64
"""Enough that connections share a wait; a run that has not this number shows the nearest."""
_ORDER = (ALONE, "async", "after-commit", "after-sync")
"""From what loses most to what loses nothing."""


def trade_rows(
    arms: Sequence[ReplicationArm], crash: CrashFindings | None, every: Sequence[Arm]
) -> tuple[TradeRow, ...]:
    """Of a plan without faults a row for each mode and distance; of crashes alone one for each mode, by its rate before the fault."""
    losses = crash.losses if crash is not None else ()
    return _measured(arms, losses) if arms else _crashed(losses, {arm.name: arm for arm in every})


def _measured(arms: Sequence[ReplicationArm], losses: Sequence[CrashLoss]) -> tuple[TradeRow, ...]:
    threads = {arm.threads for arm in arms}
    chosen = min(threads, key=lambda count: abs(math.log(count / TYPICAL_THREADS)))
    here = [arm for arm in arms if arm.threads == chosen]
    here = [arm for arm in here if arm.durability == here[0].durability and _plain(arm)]
    alone = next((arm for arm in here if arm.mode == ALONE), None)
    distances: list[int | None] = [*sorted({arm.replica_rtt_ns for arm in here if arm.replica_rtt_ns is not None})]
    rows = []
    for distance in distances or [None]:
        near = [arm for arm in here if arm.mode == ALONE or arm.replica_rtt_ns == distance]
        near.sort(key=lambda arm: _ORDER.index(arm.mode))
        rows += [_row(arm, distance, alone or near[0], losses) for arm in near]
    return tuple(rows)


def _plain(arm: ReplicationArm) -> bool:
    ordinary = {"replicas": 1, "wait_for": 1, "replica_tls": "off", "replica_compression": "off"}
    return arm.mode == ALONE or all(arm.level(name) == level for name, level in ordinary.items())


def _row(arm: ReplicationArm, distance: int | None, reference: ReplicationArm, losses: Sequence[CrashLoss]) -> TradeRow:
    rates, below = arm.by_block, reference.by_block
    ratios = [rates[block] / below[block] for block in rates if block in below]
    mine = _of_mode(losses, arm.mode, distance)
    per_s = arm.commits_per_s
    return TradeRow(
        mode=arm.mode,
        says=mode_words(arm.mode),
        replica_rtt_ns=distance,
        threads=arm.threads,
        commits_per_s=per_s,
        cost=None if arm is reference or not ratios else judge_ratio(ratios).quoted,
        commit_ms=arm.threads / per_s.value * 1e3,
        lost_per_crash=_worst(mine).lost_per_crash if mine else None,
        crashes=sum(loss.crashes for loss in mine),
        phantoms=_phantoms(mine),
        verdict=_verdict(arm.mode, arm.kind, mine, per_s.value, distance),
    )


def _of_mode(losses: Sequence[CrashLoss], mode: str, distance: int | None) -> list[CrashLoss]:
    """At this distance, within what a measurement of it differs from what was asked."""
    return [
        loss
        for loss in losses
        if loss.mode == mode and (distance is None or abs(loss.replica_rtt_ns - distance) <= 0.1 * distance + 1e5)
    ]


def _worst(losses: Sequence[CrashLoss]) -> CrashLoss:
    """The fault that loses most; of those that lose nothing the one with most crashes."""
    return max(losses, key=lambda loss: (loss.lost_per_crash.value, loss.crashes))


def _phantoms(losses: Sequence[CrashLoss]) -> bool | None:
    return any(loss.phantoms for loss in losses) if losses and any(loss.seen for loss in losses) else None


def _crashed(losses: Sequence[CrashLoss], arms: Mapping[str, Arm]) -> tuple[TradeRow, ...]:
    """Costs are over the first row's rate; crashes are no blocks, so they are not paired."""
    modes = sorted({loss.mode for loss in losses}, key=lambda mode: _ORDER.index(mode) if mode in _ORDER else 9)
    rows: list[TradeRow] = []
    first: list[float] = []
    for mode in modes:
        mine = [loss for loss in losses if loss.mode == mode]
        rates = [point.commits_per_s for loss in mine for point in loss.each if point.commits_per_s > 0]
        worst = _worst(mine)
        distance = int(arms[worst.arm].factors.get("replica_rtt_ns", worst.replica_rtt_ns))
        value = sum(rates) / len(rates) if rates else worst.commits_per_s.value
        rows.append(
            TradeRow(
                mode=mode,
                says=mode_words(mode),
                replica_rtt_ns=distance,
                threads=worst.threads,
                commits_per_s=worst.commits_per_s,
                cost=_over(rates, first),
                commit_ms=worst.threads / value * 1e3 if value else 0.0,
                lost_per_crash=worst.lost_per_crash,
                crashes=sum(loss.crashes for loss in mine),
                phantoms=_phantoms(mine),
                verdict=_verdict(mode, "", mine, value, distance),
            )
        )
        first = first or rates
    return tuple(rows)


def _over(rates: Sequence[float], first: Sequence[float]) -> Estimate | None:
    if not rates or not first:
        return None
    return welch_ratio([math.log(rate) for rate in rates], [math.log(rate) for rate in first])


def _verdict(mode: str, kind: str, losses: Sequence[CrashLoss], per_s: float, distance: int | None) -> str:
    if mode == ALONE:
        return "where a lost machine may take all of its data"
    if mode == "async":
        return f"where a crash may lose acknowledged commits: {_async_loss(losses, per_s, distance)}"
    if mode not in SEMI_SYNC:
        return ""
    lost = sum(loss.lost for loss in losses)
    kept = (
        "no acknowledged commit may be lost"
        if not lost
        else f"{lost:,} acknowledged commits were lost, though none should be"
    )
    if mode == "after-commit":
        shown = any(loss.phantoms for loss in losses)
        seen = "saw" if shown else "may see"
        words = f"where {kept}, and readers that {seen} commits which a crash takes back do no harm"
        return words + ("; the default" if kind == "mariadb" else "")
    words = f"where {kept} and none seen that a crash takes back"
    return words + ("; a commit waits for more than its own acknowledgement" if kind == "mariadb" else "")


def _async_loss(losses: Sequence[CrashLoss], per_s: float, distance: int | None) -> str:
    worst = _worst(losses) if losses else None
    if worst is not None and worst.lost:
        return f"{rate(worst.lost_per_crash.value)} a crash here"
    on_the_way = per_s * (distance or 0) / 2e9
    if worst is None and on_the_way >= 1:
        return f"at this rate {rate(on_the_way)} are on the way to the replica at any moment"
    return "as many as are on the way when it happens"
