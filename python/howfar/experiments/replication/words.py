"""What a reader should take home of replication's cost, in sentences made of this run's figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from howfar.experiments.replication.findings import CommitCost, ReplicationCurve
from howfar.plan.types import SEMI_SYNC
from howfar.stats.estimate import Estimate
from howfar.units import format_duration_ns

_MODE_IN_A_SENTENCE = {
    "none": "without a replica",
    "async": "asynchronous",
    "after-sync": "semi-synchronous AFTER_SYNC",
    "after-commit": "semi-synchronous AFTER_COMMIT",
}
"""In full, as an adverb. Names of cells and heads of tables have the short `plan.cells.MODE_WORDS`, a noun."""
Published = Sequence[tuple[str, float, float | None]]
_KIND_WORDS = {"mariadb": "MariaDB", "mysql": "MySQL"}
PUBLISHED_RTT_NS = 85_000_000
"""Of set-up D, which people quote: of several distances the one nearest to it is told."""
_TYPICAL_THREADS = 64
"""Enough that connections share a wait; of several numbers the nearest is told, by ratio."""
_HOLDS = 0.1
"""An error of the model up to which what was counted is said to follow from it."""
_FAR = 1.25
"""Round trips of a commit: from here on it waits for more than its own."""


def mode_words(mode: str) -> str:
    return _MODE_IN_A_SENTENCE.get(mode, mode)


def rate(per_s: float) -> str:
    """`11.7`, `743`, `12,400`: three digits."""
    if per_s >= 1000:
        return f"{float(f'{per_s:.3g}'):,.0f}"
    return f"{per_s:.3g}" if per_s < 100 else f"{per_s:.0f}"


def rate_interval(per_s: Estimate) -> str:
    """`11.7 [11.6, 11.8]`."""
    if per_s.low is None or per_s.high is None:
        return f"{rate(per_s.value)} (no interval)"
    return f"{rate(per_s.value)} [{rate(max(0.0, per_s.low))}, {rate(per_s.high)}]"


def connections(threads: int) -> str:
    return f"{threads} connection{'' if threads == 1 else 's'}"


def cost_sentences(curves: Sequence[ReplicationCurve], published: Published, kind: str) -> tuple[str, ...]:
    """The answer first."""
    shown = _shown(curves)
    found = [_answer(curves, shown), _eleven(shown, published), _rounds(shown, kind), _model(curves)]
    return tuple(sentence for sentence in found if sentence)


def _shown(curves: Sequence[ReplicationCurve]) -> list[ReplicationCurve]:
    """Semi-synchronous curves at the distance nearest to the published one; nothing out of the ordinary."""
    semi = [curve for curve in curves if curve.mode in SEMI_SYNC and not curve.held and curve.points]
    if not semi:
        return []
    chosen = chief_distance([curve.replica_rtt_ns for curve in semi]) or 0
    here = [curve for curve in semi if (curve.replica_rtt_ns or 0) == chosen]
    return [curve for curve in here if curve.durability == here[0].durability]


def _best(shown: Sequence[ReplicationCurve]) -> ReplicationCurve:
    """With the most commits at a typical number of connections, where they are resolved to be the most; else the safest."""

    def made(curve: ReplicationCurve) -> Estimate:
        return _at(curve, _typical(curve)).commits_per_s

    best = max(shown, key=lambda curve: made(curve).value)
    low, others = made(best).low, [made(curve) for curve in shown if curve is not best]
    resolved = low is not None and all(other.high is not None and other.high < low for other in others)
    return best if resolved else min(shown, key=lambda curve: tuple(SEMI_SYNC).index(curve.mode))


def _answer(curves: Sequence[ReplicationCurve], shown: Sequence[ReplicationCurve]) -> str:
    if not shown:
        return _without(curves)
    best = _best(shown)
    one, many = best.points[0], _at(best, _typical(best))
    alone = next((c for c in curves if c.mode == "none" and c.durability == best.durability), None)
    text = f"With a replica {_distance(best)} away, {connections(one.threads)} commit{'s' if one.threads == 1 else ''} "
    text += f"{rate_interval(one.commits_per_s)} times a second {mode_words(best.mode)}"
    if alone is not None and (local := _point(alone, one.threads)) is not None:
        text += f" and {rate(local.commits_per_s.value)} without a replica"
    if many is one:
        return text + "."
    text += f"; {connections(many.threads)} commit {rate_interval(many.commits_per_s)} times"
    if best.regime == "delay station":
        text += ": each waits for its acknowledgement, and they wait together"
    elif best.regime == "serial":
        text += ": they stand in one line for their acknowledgements"
    return text + "."


def _without(curves: Sequence[ReplicationCurve]) -> str:
    """Nobody waits in this run."""
    apart = next((curve for curve in curves if curve.mode == "async" and curve.points), None)
    if apart is None:
        return ""
    point = apart.points[-1]
    return (
        f"Asynchronous, {connections(point.threads)} commit {rate_interval(point.commits_per_s)} times a second: "
        "nobody waits for the replica."
    )


def _eleven(shown: Sequence[ReplicationCurve], published: Published) -> str:
    """Why one connection makes so few, and that many do not."""
    if not shown or _best(shown).points[0].threads != 1:
        return ""
    curve = _best(shown)
    one, many = curve.points[0], _at(curve, _typical(curve))
    if not one.wire_ms:
        return ""
    text = f"{rate(one.commits_per_s.value)} a second is one connection at {_distance(curve)}: "
    if one.predicted is None:
        text += f"{one.wire_ms:.3g} ms to the replica and back allow {rate(1e3 / one.wire_ms)} at most"
    else:
        text += (
            f"1 / ({one.local_ms:.2g} ms of its own + {one.wire_ms:.3g} ms to the replica and back) = "
            f"{rate(1e3 / (one.local_ms + one.wire_ms))}"
        )
    if many is not one:
        text += f"; {connections(many.threads)} made {rate(many.commits_per_s.value)}"
    theirs = next(((mode, per_s) for mode, per_s, ours in published if mode in SEMI_SYNC and ours is not None), None)
    if theirs is not None:
        text += f". Published: {rate(theirs[1])}, of one connection, {SEMI_SYNC[theirs[0]]}"
    return text + "."


def _rounds(shown: Sequence[ReplicationCurve], kind: str) -> str:
    """Where a commit waits for more than its own acknowledgement."""
    told = [(curve, _at(curve, _typical(curve))) for curve in shown]
    far = [
        (curve, point)
        for curve, point in told
        if point.rtts is not None and point.threads > 1 and (point.rtts.low or point.rtts.value) > _FAR
    ]
    if not far:
        return ""
    curve, point = far[0]
    assert point.rtts is not None, "only points with a count of round trips were kept"
    text = (
        f"With {connections(point.threads)} a commit takes {_estimate(point.rtts)} round trips {mode_words(curve.mode)}"
    )
    near = next((p for c, p in told if c is not curve and p.rtts is not None and p.threads == point.threads), None)
    if near is not None and near.rtts is not None:
        text += f", {_estimate(near.rtts)} with the other wait point"
    holds = point.predicted_error is not None and abs(point.predicted_error) <= _HOLDS
    if kind == "mariadb" and curve.mode == "after-sync" and holds:
        text += (
            f". That is what follows where {_KIND_WORDS[kind]} has two groups of commits on the way at once: the second holds the "
            "binary log, and who comes then waits until the first is acknowledged"
        )
    return text + "."


def _model(curves: Sequence[ReplicationCurve]) -> str:
    points = [point for curve in curves for point in curve.points if point.predicted_error is not None]
    if not points:
        return ""
    worst = max(points, key=lambda point: abs(point.predicted_error or 0.0))
    mean = sum(abs(point.predicted_error or 0.0) for point in points) / len(points)
    return (
        f"The model foresees {len(points)} cells with an error of {mean * 100:.1f} % on the mean, "
        f"{abs(worst.predicted_error or 0) * 100:.1f} % at worst ({worst.arm}), from the commits without a replica, "
        "the round trip at rest, and what a single connection's commit has beyond both."
    )


def _typical(curve: ReplicationCurve) -> int:
    """64 connections, or as near as the run has it."""
    return typical_threads(point.threads for point in curve.points)


def typical_threads(counts: Iterable[int]) -> int:
    return min(counts, key=lambda count: abs(math.log(count / _TYPICAL_THREADS)))


def chief_distance(known: Iterable[int | None]) -> int | None:
    """None: there is no link."""
    found = [rtt for rtt in known if rtt is not None]
    return min(found, key=lambda rtt: (abs(rtt - PUBLISHED_RTT_NS), rtt)) if found else None


def _at(curve: ReplicationCurve, threads: int) -> CommitCost:
    found = _point(curve, threads)
    assert found is not None, "asked for what is there"
    return found


def _point(curve: ReplicationCurve, threads: int) -> CommitCost | None:
    return next((point for point in curve.points if point.threads == threads), None)


def _distance(curve: ReplicationCurve) -> str:
    return format_duration_ns(curve.replica_rtt_ns or 0)


def _estimate(value: Estimate) -> str:
    if value.low is None or value.high is None:
        return f"{value.value:.2f} (no interval)"
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"
