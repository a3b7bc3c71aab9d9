"""What to do about replication: the mode, with the lines for my.cnf, each because of a figure of this run."""

from __future__ import annotations

from howfar.analysis.summary import Advice
from howfar.experiments.replication.fallback import fallback_sentence
from howfar.experiments.replication.findings import CrashLoss, ReplicationCost, ReplicationFindings, TradeRow
from howfar.experiments.replication.loss_words import count_interval
from howfar.experiments.replication.my_cnf import my_cnf, timeout_lines
from howfar.experiments.replication.words import chief_distance, connections, mode_words, rate, rate_interval
from howfar.plan.types import SEMI_SYNC
from howfar.stats.intervals import interval_text
from howfar.units import format_duration_ns

_GAINS = 4.0
"""Throughput of many connections over that of one: from here on, more of them is the first thing to try."""


def replication_advice(found: ReplicationFindings, kind: str) -> tuple[Advice, ...]:
    """In the order in which a reader decides: the mode, then what makes it bearable."""
    pieces = (_safe(found, kind), _fast(found, kind), _together(found.cost), _watch(found, kind))
    return tuple(advice for advice in pieces if advice is not None)


def _safe(found: ReplicationFindings, kind: str) -> Advice | None:
    """Semi-synchronous, by the wait point that shows nothing early if this run has it and it lost nothing."""
    rows = {row.mode: row for row in _nearest_rows(found) if row.mode in SEMI_SYNC}
    losses = found.crash.losses if found.crash else ()
    kept = [mode for mode in SEMI_SYNC if mode in rows and not any(loss.lost for loss in losses if loss.mode == mode)]
    if not kept:
        return None
    mode = kept[0]
    grounds = [_costs(rows[mode], found), *_crash_grounds(mode, losses)]
    other = next((row for name, row in rows.items() if name != mode), None)
    if other is not None and not losses:
        grounds.append(
            f"{SEMI_SYNC[other.mode]} makes {rate(other.commits_per_s.value)}, and shows commits before they are safe"
        )
    return Advice(
        action=f"Where no acknowledged commit may be lost, replicate semi-synchronously, {SEMI_SYNC[mode]}.",
        because=_sentence(grounds),
        lines=my_cnf(kind, mode),
    )


def _fast(found: ReplicationFindings, kind: str) -> Advice | None:
    row = next((row for row in _nearest_rows(found) if row.mode == "async"), None)
    if row is None:
        return None
    losses = [loss for loss in (found.crash.losses if found.crash else ()) if loss.mode == "async"]
    worst = max(losses, key=lambda loss: loss.lost_per_crash.value, default=None)
    grounds = [_costs(row, found)]
    if worst is not None and not worst.lost:
        crashes = sum(loss.crashes for loss in losses)
        grounds.append(f"none was lost in {crashes} crashes, which is no proof that none can be")
    elif worst is not None:
        grounds.append(f"a crash lost {count_interval(worst.lost_per_crash)} of them at worst ({worst.arm})")
    elif row.replica_rtt_ns:
        on_the_way = row.commits_per_s.value * row.replica_rtt_ns / 2e9
        grounds.append(f"at that rate {rate(on_the_way)} are always on their way to the replica")
    return Advice(
        action="Where a crash may lose the last commits, replicate asynchronously.",
        because=_sentence(grounds),
        lines=my_cnf(kind, "async"),
    )


def _together(cost: ReplicationCost | None) -> Advice | None:
    """One connection waits each time; many wait together."""
    curves = [curve for curve in cost.curves if curve.mode in SEMI_SYNC and curve.growth] if cost else []
    curve = max(curves, key=lambda each: each.rest_rtt_ns or 0.0, default=None)
    if curve is None or curve.growth is None or (curve.growth.low or curve.growth.value) < _GAINS:
        return None
    one = curve.points[0]
    return Advice(
        action="Write from more connections at a time, or more rows a transaction, before giving up acknowledgements.",
        because=f"Over {format_duration_ns(curve.replica_rtt_ns or 0)} one connection commits "
        f"{rate(one.commits_per_s.value)} times a second; "
        f"{curve.growth_threads} commit {interval_text(curve.growth)} times as often, because they wait together.",
    )


def _watch(found: ReplicationFindings, kind: str) -> Advice | None:
    stories = [story for story in found.fallback if story.degraded_ms is not None]
    if not stories:
        return None
    worst = max(stories, key=lambda story: story.unprotected.value)
    return Advice(
        action="Let a semi-synchronous primary wait rather than go on in silence, and watch its status.",
        because=fallback_sentence(worst),
        lines=timeout_lines(kind),
    )


def _nearest_rows(found: ReplicationFindings) -> list[TradeRow]:
    """Of the distance nearest to the published one."""
    chosen = chief_distance([row.replica_rtt_ns for row in found.trade])
    return [row for row in found.trade if row.replica_rtt_ns == chosen]


def _reference(found: ReplicationFindings) -> str:
    """What costs are over: the row without one."""
    first = next((row.mode for row in found.trade if row.cost is None), "none")
    return "asynchronously" if first == "async" else mode_words(first)


def _costs(row: TradeRow, found: ReplicationFindings) -> str:
    text = f"{connections(row.threads)} commit{'s' if row.threads == 1 else ''} {rate_interval(row.commits_per_s)} times a second"
    if row.replica_rtt_ns:
        text += f" over {format_duration_ns(row.replica_rtt_ns)}"
    text += f", {interval_text(row.cost)} of what they make {_reference(found)}" if row.cost is not None else ""
    return text + _less_durable(row.durability)


def _less_durable(durability: str) -> str:
    """The lines advised make every commit durable: their rate is not that of a run which did not."""
    if durability == "strict":
        return ""
    return (
        f", measured with durability {durability}: these lines flush each commit, which costs more "
        "(--durability strict measures it)"
    )


def _crash_grounds(mode: str, losses: tuple[CrashLoss, ...]) -> list[str]:
    mine = [loss for loss in losses if loss.mode == mode]
    grounds = []
    if mine:
        acknowledged, crashes = sum(loss.acknowledged for loss in mine), sum(loss.crashes for loss in mine)
        grounds.append(f"none of {acknowledged:,} acknowledged commits was lost in {crashes} crashes")
    gone = sum(loss.phantoms for loss in losses if loss.mode == "after-commit")
    if mode == "after-sync" and gone:
        grounds.append(f"under AFTER_COMMIT others saw {gone:,} commits that a crash took back")
    return grounds


def _sentence(grounds: list[str]) -> str:
    text = "; ".join(grounds)
    return text[:1].upper() + text[1:] + "."
