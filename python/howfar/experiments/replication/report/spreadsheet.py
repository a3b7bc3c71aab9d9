"""What a run says of replication, for a spreadsheet: columns beside those of a cell, and lines for arms that broke something and so
are no cell. Times in milliseconds; an empty field is unknown."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.crash.analysis import CrashLoss
from howfar.experiments.fallback.analysis import FallbackStory
from howfar.experiments.replication.analysis import CommitCost, ReplicationCurve
from howfar.stats.estimate import Estimate

Line = dict[str, object]


def told(summary: Summary) -> dict[str, Line]:
    """By arm. Every arm has the same columns; none at all where the run is not about replication."""
    findings = summary.replication
    if findings is None:
        return {}
    lines: dict[str, Line] = {}
    for curve in findings.cost.curves if findings.cost else ():
        for point in curve.points:
            lines[point.arm] = _commit(curve, point)
    for loss in findings.crash.losses if findings.crash else ():
        lines[loss.arm] = lines.get(loss.arm, {}) | _loss(loss)
    for story in findings.fallback:
        lines[story.arm] = lines.get(story.arm, {}) | _story(story)
    names = dict.fromkeys(name for line in lines.values() for name in line)
    return {arm: {name: line.get(name, "") for name in names} for arm, line in lines.items()}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _limits(name: str, found: Estimate | None) -> Line:
    low, high = (found.low, found.high) if found else (None, None)
    return {name: _number(found.value if found else None), f"{name}_low": _number(low), f"{name}_high": _number(high)}


def _commit(curve: ReplicationCurve, point: CommitCost) -> Line:
    return {
        "mode": curve.mode,
        "commit_ms": _number(point.commit_ms),
        "local_ms": _number(point.local_ms),
        "wire_ms": _number(point.wire_ms),
        "waiting_ms": _number(point.waiting_ms),
        **_limits("round_trips", point.rtts),
        "commits_per_group": _number(point.group),
        "predicted_commits_per_s": _number(point.predicted),
        "predicted_error": _number(point.predicted_error),
        "lag_p50": _number(curve.lag_p50),
        "lag_max": _number(curve.lag_max),
        "heartbeat_p50_ms": _number(curve.heartbeat_p50_ms),
    }


def _loss(loss: CrashLoss) -> Line:
    return {
        "mode": loss.mode,
        "fault": loss.fault,
        "threads": loss.threads,
        "replica_rtt_ns": loss.replica_rtt_ns,
        **_limits("commits_per_s", loss.commits_per_s),
        "crashes": loss.crashes,
        "void_crashes": loss.void_crashes,
        "acknowledged": loss.acknowledged,
        "lost": loss.lost,
        **_limits("lost_per_crash", loss.lost_per_crash),
        "share_that_may_lose": _number(loss.share_that_may_lose),
        "crashes_with_loss": loss.crashes_with_loss,
        "most_lost": loss.most_lost,
        **_limits("predicted_lost", loss.predicted_lost),
        "done_untold": loss.done_untold,
        "seen_early": loss.seen_early,
        "phantoms": loss.phantoms,
        "promotion_ms": _number(loss.promotion_ms),
        "lost_each": " ".join(str(point.lost) for point in loss.each),
    }


def _story(story: FallbackStory) -> Line:
    return {
        "mode": story.mode,
        "threads": story.threads,
        "trials": story.trials,
        "timeout_ms": story.timeout_ms,
        **_limits("stall_ms", story.stall_ms),
        **_limits("degraded_ms", story.degraded_ms),
        **_limits("after_return_ms", story.after_return_ms),
        "censored_trials": story.censored,
        **_limits("caught_up_ms", story.caught_up_ms),
        **_limits("unprotected", story.unprotected),
        **_limits("unprotected_alone", story.unprotected_alone),
        "most_behind": _number(story.most_behind),
        "share_unprotected": _number(story.share_unprotected),
    }
