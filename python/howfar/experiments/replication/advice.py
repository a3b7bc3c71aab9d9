"""What to do about replication, each piece because of a figure of this run, with lines for my.cnf.

The primary and its replica get separate lines. A replica that waited for acknowledgements too has no replica to send them: its own
binary log would make its applier wait for the whole timeout at the first transaction. A test starts pairs of servers with these very
lines and reads on the replica what was written on the primary. Names from before MySQL 8.0.26 are not here.
"""

from __future__ import annotations

from howfar.analysis.advice import Advice, capital
from howfar.experiments.crash.analysis import CrashLoss
from howfar.experiments.replication.analysis import ReplicationCost
from howfar.experiments.replication.arms import ALONE, ASYNC, plural, quoted_distance, rate, rate_interval, with_mode
from howfar.experiments.replication.trade import ReplicationFindings, TradeRow
from howfar.plan.factors import SEMI_SYNC
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
    rows = {row.mode: row for row in _rows(found) if row.mode in SEMI_SYNC}
    losses = found.crash.losses if found.crash else ()
    kept = [mode for mode in SEMI_SYNC if mode in rows and not any(loss.lost for loss in losses if loss.mode == mode)]
    if not kept:
        return None
    mode = kept[0]
    reasons = [_cost(rows[mode], found), *_crash_reasons(mode, losses)]
    if rows[mode].durability != "strict":
        reasons.append(f"measured with durability {rows[mode].durability}, while these lines flush each commit")
    other = next((row for name, row in rows.items() if name != mode), None)
    if other is not None and not losses:
        shown = (
            "but shows commits before they are safe"
            if other.mode == "after-commit"
            else "and shows none before it is safe"
        )
        reasons.append(f"{SEMI_SYNC[other.mode]} makes {rate(other.commits_per_s.value)}, {shown}")
    return Advice(
        action=f"Where no acknowledged commit may be lost, replicate semi-synchronously with {SEMI_SYNC[mode]}.",
        because=_sentence(reasons),
        lines=my_cnf(kind, mode),
    )


def _fast(found: ReplicationFindings, kind: str) -> Advice | None:
    row = next((row for row in _rows(found) if row.mode == ASYNC), None)
    if row is None:
        return None
    losses = [loss for loss in (found.crash.losses if found.crash else ()) if loss.mode == ASYNC]
    worst = max(losses, key=lambda loss: loss.lost_per_crash.value, default=None)
    reasons = [_cost(row, found)]
    if worst is not None and not worst.lost:
        crashes = sum(loss.crashes for loss in losses)
        reasons.append(f"none was lost in {plural(crashes, 'crash')}, which does not prove that none can be")
    elif worst is not None:
        reasons.append(f"the worst fault ({worst.arm}) lost {rate_interval(worst.lost_per_crash)} per crash")
    elif row.replica_rtt_ns:
        in_flight = row.commits_per_s.value * row.replica_rtt_ns / 2e9
        reasons.append(f"at that rate {rate(in_flight)} are always in flight to the replica")
    return Advice(
        action="Where a crash may lose the last commits, replicate asynchronously.",
        because=_sentence(reasons),
        lines=my_cnf(kind, ASYNC),
    )


def _together(cost: ReplicationCost | None) -> Advice | None:
    """One connection waits each time; many wait together."""
    curves = [curve for curve in cost.curves if curve.mode in SEMI_SYNC and curve.growth] if cost else []
    curve = max(curves, key=lambda each: each.rest_rtt_ns or 0.0, default=None)
    if curve is None or curve.growth is None or (curve.growth.low or curve.growth.value) < _GAINS:
        return None
    return Advice(
        action="Before giving up acknowledgements, write from more connections or more rows per transaction.",
        because=f"Over {format_duration_ns(curve.replica_rtt_ns or 0)} one connection makes "
        f"{rate(curve.points[0].commits_per_s.value)} commits/s; {curve.growth_threads} make {interval_text(curve.growth)} times as "
        "many, because they wait together.",
    )


def _watch(found: ReplicationFindings, kind: str) -> Advice | None:
    stories = [story for story in found.fallback if story.degraded_ms is not None]
    if not stories:
        return None
    worst = max(stories, key=lambda story: story.unprotected.value)
    least = "at least " if worst.censored else ""
    return Advice(
        action="Let a semi-synchronous primary wait instead of falling back silently, and monitor its status.",
        because=f"{capital(with_mode(worst.mode))} it acknowledged {least}{rate_interval(worst.unprotected)} commits without a "
        "replica.",
        lines=timeout_lines(kind),
    )


def _rows(found: ReplicationFindings) -> list[TradeRow]:
    """Of exactly the quoted distance."""
    distance = quoted_distance([row.replica_rtt_ns for row in found.trade])
    return [row for row in found.trade if row.replica_rtt_ns == distance]


def _cost(row: TradeRow, found: ReplicationFindings) -> str:
    verb = "makes" if row.threads == 1 else "make"
    text = f"{plural(row.threads, 'connection')} {verb} {rate_interval(row.commits_per_s)} commits/s"
    if row.replica_rtt_ns:
        text += f" over {format_duration_ns(row.replica_rtt_ns)}"
    if row.cost is not None:
        reference = next((each.mode for each in found.trade if each.cost is None), ALONE)
        text += f", {interval_text(row.cost)} of the rate {with_mode(reference)}"
    return text


def _crash_reasons(mode: str, losses: tuple[CrashLoss, ...]) -> list[str]:
    mine = [loss for loss in losses if loss.mode == mode]
    reasons = []
    if mine:
        acknowledged, crashes = sum(loss.acknowledged for loss in mine), sum(loss.crashes for loss in mine)
        reasons.append(f"none of {acknowledged:,} acknowledged commits was lost in {plural(crashes, 'crash')}")
    gone = sum(loss.phantoms for loss in losses if loss.mode == "after-commit")
    if mode == "after-sync" and gone:
        reasons.append(f"with AFTER_COMMIT others saw {gone:,} commits that a crash undid")
    return reasons


def _sentence(reasons: list[str]) -> str:
    return capital("; ".join(reasons)) + "."


# ---------------------------------------------------------------- lines for my.cnf

TIMEOUT_MS = 3_600_000
"""An hour: a primary should not acknowledge commits that no replica has without anyone noticing."""
_BINARY_LOG = {
    "mariadb": ("log-bin = binlog", "log-slave-updates = ON", "gtid-strict-mode = ON"),
    "mysql": ("log-bin = binlog", "gtid-mode = ON", "enforce-gtid-consistency = ON"),
}
_DURABLE = ("sync-binlog = 1", "innodb-flush-log-at-trx-commit = 1")
_READ_ONLY = {"mariadb": "read-only = ON", "mysql": "super-read-only = ON"}
_ENDS = {"mariadb": ("master", "slave"), "mysql": ("source", "replica")}
STATUS = {"mariadb": "Rpl_semi_sync_master_status", "mysql": "Rpl_semi_sync_source_status"}


def my_cnf(kind: str, mode: str) -> tuple[str, ...]:
    """Both files, one after the other; `mode` is a level of the factor `replication` with a replica."""
    primary, replica = primary_lines(kind, mode), replica_lines(kind, mode)
    return ("# the primary's file", *primary, "# the replica's file, without the lines above", *replica)


def primary_lines(kind: str, mode: str) -> tuple[str, ...]:
    lines = ("[mysqld]", "server-id = 1", *_BINARY_LOG[kind], *_DURABLE)
    if mode not in SEMI_SYNC:
        return lines
    primary, _ = _ENDS[kind]
    return (
        *lines,
        *_plugin(kind, primary),
        f"rpl-semi-sync-{primary}-enabled = ON",
        f"rpl-semi-sync-{primary}-wait-point = {SEMI_SYNC[mode]}",
        "# milliseconds. Without a replica every commit waits",
        "# this long, then continues without it silently",
        f"rpl-semi-sync-{primary}-timeout = {TIMEOUT_MS}",
    )


def replica_lines(kind: str, mode: str) -> tuple[str, ...]:
    lines = ("[mysqld]", "server-id = 2", _READ_ONLY[kind], *_BINARY_LOG[kind], *_DURABLE)
    if mode not in SEMI_SYNC:
        return lines
    primary, replica = _ENDS[kind]
    return (
        *lines,
        *_plugin(kind, replica),
        f"rpl-semi-sync-{replica}-enabled = ON",
        "# once promoted, with a replica: no read-only,",
        f"# and the rpl-semi-sync-{primary} lines of the primary",
    )


def timeout_lines(kind: str) -> tuple[str, ...]:
    """To keep a primary from falling back, and to see whether it has."""
    primary, _ = _ENDS[kind]
    return (
        "# the primary's file",
        "[mysqld]",
        *_plugin(kind, primary),
        f"rpl-semi-sync-{primary}-timeout = {TIMEOUT_MS}",
        "# monitor it: unless ON, no replica is up to date",
        f"# SHOW GLOBAL STATUS LIKE '{STATUS[kind]}'",
    )


def _plugin(kind: str, end: str) -> tuple[str, ...]:
    """MySQL refuses an option of a plugin that it has not loaded; MariaDB has both ends built in."""
    return (f"plugin-load-add = semisync_{end}.so",) if kind == "mysql" else ()
