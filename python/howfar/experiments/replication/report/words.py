"""Replication in the words of reports: modes, faults, distances, losses. One place, so that terminal, page and Markdown agree."""

from __future__ import annotations

import re
from collections.abc import Sequence

from howfar.experiments.crash.analysis import CUT_OFF, CrashLoss, may_lose, percent_up
from howfar.experiments.fallback.analysis import FallbackStory
from howfar.experiments.replication.analysis import ReplicationCurve
from howfar.experiments.replication.arms import PUBLISHED_RTT_NS as PUBLISHED_RTT_NS
from howfar.experiments.replication.arms import quoted_distance as quoted_distance
from howfar.experiments.replication.trade import TradeRow
from howfar.plan.factors import MODE_LABELS, SEMI_SYNC
from howfar.report import figures
from howfar.stats.estimate import Estimate
from howfar.units import format_duration_ns

SHORT = {"off": "no log", "none": "none", "async": "async", "after-sync": "AFTER_SYNC", "after-commit": "AFTER_COMMIT"}
"""For heads of columns and labels of bars."""

FAULT_WORDS = {
    "kill-primary": "server killed",
    "cut": "cut off",
    "cut-to-replica": "way to replica cut",
    "cut-to-primary": "way from replica cut",
    "stop-replica": "replica stopped first",
    "replica-leaves": "replica leaves",
}
"""As short as a label of a chart; `FAULTS_SAID` explains them."""

FAULTS_SAID = {
    "kill-primary": "SIGKILL to the primary's server; its kernel still delivers what was in the sockets",
    "cut": "the link is cut in both directions, and the primary serves on until it is killed a second later",
    "cut-to-replica": "packets to the replica are dropped, and the primary serves on until it is killed a second later",
    "cut-to-primary": "packets from the replica are dropped, and the primary serves on until it is killed a second later",
    "stop-replica": "the replica receives no more, and the primary serves on until it is killed a second later",
}


def mode_words(mode: str) -> str:
    return MODE_LABELS.get(mode, mode)


def short(mode: str) -> str:
    return SHORT.get(mode, mode)


def distance(rtt_ns: int | None) -> str:
    """`85ms`, of a measured one `85.1ms`; empty where there is no link."""
    return "" if rtt_ns is None else format_duration_ns(float(f"{rtt_ns:.3g}"))


def milliseconds(ms: float | None) -> str:
    """`0.041`, `87.3`, `1,204`, always of milliseconds."""
    return figures.number(ms)


def with_limits(estimate: Estimate | None) -> str:
    """`472 [463, 481]`, the value alone where there is no interval."""
    if estimate is None:
        return figures.UNKNOWN
    if estimate.low is None or estimate.high is None:
        return count(estimate.value)
    return f"{count(estimate.value)} [{count(max(estimate.low, 0.0))}, {count(estimate.high)}]"


def count(value: float) -> str:
    """Of commits: whole ones are written so."""
    return f"{value:,.0f}" if value == int(value) else figures.number(value)


def lost(per_crash: Estimate | None, crashes: int) -> str:
    """`2,130 [1,870, 2,390]`; of none the share of crashes that may still lose some: `0 of 20 (< 14 %)`."""
    if per_crash is None:
        return figures.UNKNOWN
    return with_limits(per_crash) if per_crash.value > 0 else f"0 of {crashes}{upper(crashes)}"


def foreseen(loss: CrashLoss) -> str:
    """`4,791`; `≲ 70` where only the order of the most is known; `0` where nothing may be lost; a dash where nothing foresees it."""
    found = loss.predicted_lost
    if found is None:
        return "0" if loss.mode in SEMI_SYNC else figures.UNKNOWN
    return f"{'' if loss.fault in CUT_OFF else '≲ '}{count(found.value)}"


def trade_fault(rows: Sequence[TradeRow]) -> str:
    """What a crash is in a trade. Empty: nothing was broken."""
    faults = list(dict.fromkeys(row.fault for row in rows if row.fault is not None))
    if not faults:
        return ""
    said = [
        fault_words(fault) + (f", that is, {FAULTS_SAID[fault]}" if fault in FAULTS_SAID else "") for fault in faults
    ]
    return f"Crashes counted here: {'; '.join(said)}."


def upper(crashes: int) -> str:
    """` (< 14 %)`: with 95 % confidence fewer crashes than this lose any."""
    return f" (< {percent_up(may_lose(crashes))} %)" if crashes else ""


def to_the_end(story: FallbackStory) -> bool:
    """Whether a trial was asynchronous for as long as there was a load: then how long it lasts is known from below only."""
    series = story.series
    if story.censored or story.held_off:
        return True
    if series is None or series.fell_s is None:
        return False
    return series.back_s is None or series.back_s >= (len(series.commits_per_s) - 1) * series.slice_s


def asynchronous_for(story: FallbackStory, ms: Estimate | None) -> str:
    """`6.40 s`, `≥ 25.1 s` where it did not end under load, `never`."""
    if ms is None:
        return "never"
    return f"{'≥ ' if to_the_end(story) else ''}{figures.number(ms.value / 1e3)} s"


def unacknowledged(story: FallbackStory) -> str:
    """`198,226`, `≥ 198,226` where it did not end under load."""
    return f"{'≥ ' if to_the_end(story) else ''}{with_limits(story.unprotected)}"


def caught_up(story: FallbackStory) -> str:
    """After the link's return."""
    if story.degraded_ms is None:
        return figures.UNKNOWN
    return "not seen" if story.caught_up_ms is None else f"{figures.number(story.caught_up_ms.value / 1e3)} s"


def story_names(stories: Sequence[FallbackStory]) -> list[str]:
    """The mode, where that tells them apart; else the arm's name."""
    modes = [mode_words(story.mode) for story in stories]
    return modes if len(set(modes)) == len(modes) else [story.arm for story in stories]


def phantoms(seen: bool | None) -> str:
    return figures.UNKNOWN if seen is None else "yes" if seen else "no"


def varied(curves: Sequence[ReplicationCurve]) -> list[str]:
    """Names of what tells curves of one mode and distance apart."""
    names = list(dict.fromkeys(name for curve in curves for name in curve.held))
    found = [name for name in names if len({curve.held.get(name) for curve in curves}) > 1]
    return (["durability"] if len({curve.durability for curve in curves}) > 1 else []) + found


def series_name(curve: ReplicationCurve, differing: Sequence[str]) -> str:
    """`semi-sync AFTER_SYNC`, and what else differs between the curves of a run."""
    levels = {"durability": f"durability {curve.durability}"}
    levels |= {name: f"{name.replace('_', ' ')} {level}" for name, level in curve.held.items()}
    return ", ".join([mode_words(curve.mode), *(levels[name] for name in differing if name in levels)])


def named(curves: Sequence[ReplicationCurve]) -> list[tuple[str, ReplicationCurve]]:
    """Every curve with a name that no other at its distance has; it begins with its mode. Where modes and what is held do not tell
    curves apart, as with several paths of the clients, the names of their arms do."""
    differing = varied(curves)
    names = [series_name(curve, differing) for curve in curves]
    if len({(name, curve.replica_rtt_ns) for name, curve in zip(names, curves, strict=True)}) < len(curves):
        names = _by_arm(curves)
    return list(zip(names, curves, strict=True))


_OF_POINTS = re.compile(r"\d+ threads?|replica RTT .*")
"""Parts of an arm's name that say which point of a panel it is, and which panel."""


def _by_arm(curves: Sequence[ReplicationCurve]) -> list[str]:
    parts = [[] if not curve.points else curve.points[0].arm.split(", ") for curve in curves]
    shared = set.intersection(*map(set, parts))
    return [
        ", ".join([mode_words(curve.mode), *(word for word in found if _tells(word, curve.mode, shared))])
        for curve, found in zip(curves, parts, strict=True)
    ]


def _tells(word: str, mode: str, shared: set[str]) -> bool:
    return word not in shared and word != mode_words(mode) and not _OF_POINTS.fullmatch(word)


def fault_words(fault: str) -> str:
    return FAULT_WORDS.get(fault, fault)


def loss_names(losses: Sequence[CrashLoss]) -> list[str]:
    """The mode, where that and what broke tell them apart; else the arm's name."""
    pairs = {(loss.mode, loss.fault) for loss in losses}
    return [mode_words(loss.mode) if len(pairs) == len(losses) else loss.arm for loss in losses]


def distances(curves: Sequence[ReplicationCurve]) -> list[int | None]:
    """Of the links to replicas, ascending. `[None]`: no curve has a replica."""
    found = {curve.replica_rtt_ns for curve in curves if curve.replica_rtt_ns is not None}
    return [*sorted(found)] if found else [None]


SAME = 0.1


def chief_trade(trade: Sequence[TradeRow]) -> list[TradeRow]:
    """The rows of one distance."""
    chosen = quoted_distance([row.replica_rtt_ns for row in trade])
    return [row for row in trade if near(row.replica_rtt_ns, chosen)]


def near(one: int | None, other: int | None) -> bool:
    """The same distance: measured ones differ by a little. What has no distance is near to all."""
    return one is None or other is None or abs(one - other) <= SAME * max(one, other)
