"""What a run says of replication: what an acknowledgement costs, what a crash loses, what a fallback hides. Types only; each is public
in the report's JSON.

They are made by `cost.py` (throughput and the model), `loss.py` (crashes), `fallback.py`; single trials to draw by `drawn.py`.
"""

from __future__ import annotations

from typing import Literal

from howfar.stats.estimate import Estimate, Part

# ---------------------------------------------------------------- what an acknowledgement costs

Regime = Literal["delay station", "serial", "between"]
"""Commits share a wait (throughput grows with connections), stand in line for it (it does not), or something between."""


class CommitCost(Part):
    """One arm: a mode at one distance with so many connections."""

    arm: str
    threads: int
    commits_per_s: Estimate
    commit_ms: float
    """Mean time of a commit: connections / commits a second."""
    p50_ms: float
    p99_ms: float
    local_ms: float
    """Statement, log, fsync, queues for CPU, from the arms without a replica: with as many connections where commits come back in
    groups, at this rate where each comes back by itself. Without such arms: all but the wire."""
    wire_ms: float
    """One round trip to the replica, as measured at rest."""
    waiting_ms: float
    """What is left: queueing for the acknowledgement of others, the replica's own work. Negative where noise is larger."""
    rtts: Estimate | None
    """Time beyond `local_ms` in round trips. None: no acknowledgement is waited for, or the link has no delay."""
    group: float | None
    """Commits a group of the binary log. None: the server does not count groups."""
    predicted: float | None
    """Commits a second by the model. None: the arm it is made of."""
    predicted_error: float | None
    """predicted / measured - 1."""


class LagSeries(Part):
    """How far one replica was behind over one trial. Times since the measured window began."""

    trial: int
    threads: int
    replica: str
    at_s: tuple[float, ...]
    behind: tuple[int, ...]
    """Transactions."""
    heartbeat_ms: tuple[float | None, ...]
    """Age of the newest heartbeat row that was applied. None: none has come yet."""


class ReplicationCurve(Part):
    """One mode at one distance."""

    label: str
    mode: str
    """A level of the factor `replication`."""
    replica_rtt_ns: int | None
    rest_rtt_ns: float | None
    """Measured at rest, median over trials."""
    durability: str
    held: dict[str, str | int]
    """Other factors of replication where they are not ordinary: replicas, wait_for, TLS, compression."""
    points: tuple[CommitCost, ...]
    growth: Estimate | None
    """Throughput at `growth_threads` connections over that at one."""
    growth_threads: int | None
    regime: Regime | None
    """None: nothing to tell it by."""
    lag_p50: float | None
    """Transactions that the replica was behind, over all looks at the largest number of connections."""
    lag_max: int | None
    heartbeat_p50_ms: float | None
    lag: LagSeries | None = None
    """Of the last good trial at the largest number of connections. None: nobody looked."""


class ReplicationCost(Part):
    """Throughput over modes, distances and connections, and how well a model foresees it."""

    curves: tuple[ReplicationCurve, ...]
    mean_error: float | None
    worst_error: float | None
    published: tuple[tuple[str, float, float | None], ...]
    """Of set-up D: mode, inserts a second there, ours at its distance with one connection."""
    sentences: tuple[str, ...]
    """What a reader should take home; the first is the answer, one explains "11 a second"."""


# ---------------------------------------------------------------- what a crash loses


class CrashPoint(Part):
    """One crash, for the eye. Times from the fault on: before it they are negative."""

    trial: int
    acknowledged: int
    lost: int
    first_lost_ms: float | None
    """When the earliest of the lost was acknowledged. None: nothing was lost."""
    dead_ms: float
    """When the primary was killed."""
    promotion_ms: float
    """How long the survivor took to take over."""
    commits_per_s: float
    unknown: int
    """Under way when the primary died."""
    applied_unknown: int
    seen_early: int
    phantoms: int
    behind_before: int | None
    unapplied: int


class CrashLoss(Part):
    """One mode under one fault, over all its crashes."""

    arm: str
    mode: str
    fault: str
    threads: int
    replica_rtt_ns: int
    crashes: int
    void_crashes: int
    commits_per_s: Estimate
    """Before the fault."""
    acknowledged: int
    """To clients, over all crashes."""
    lost: int
    lost_before: int = 0
    """Of them, acknowledged before the fault was asked for. Where the way to the replica was cut: the least that the death of the
    whole machine at that moment loses."""
    lost_by_force: int | None = None
    """Of them, acknowledged before it was in force: the most. None: a file of before does not say when that was."""
    lost_per_crash: Estimate
    """Mean with its interval. With none lost at all there is none: see `share_that_may_lose`."""
    share_that_may_lose: float | None = None
    """Of such crashes, with a chance of one in twenty to see none in so many. None: some were lost."""
    crashes_with_loss: int
    most_lost: int
    predicted_lost: Estimate | None
    """Per crash, as rate x time unheard, or of a killed primary the order of the most: what the replica lacked when it was last
    asked. None: nobody may be lost in this mode, or nothing foresees it."""
    lost_age_ms: float | None
    """How long before the fault the earliest lost commit had been acknowledged: median over crashes with a loss."""
    done_untold: int
    """Applied on the survivor, and no client was told: over all crashes."""
    done_refused: int = 0
    """Applied on the survivor, and the client was told of an error."""
    seen_early: int
    """Keys that others saw before their client was told, or that it never was told of, over all crashes."""
    seen: int
    seen_early_median_ms: float | None
    phantoms: int
    """Seen by others and gone after the crash."""
    promotion_ms: float
    sound: bool
    """Each account adds up: no stranger, no key twice."""
    each: tuple[CrashPoint, ...] = ()
    """In the order in which they were made."""


class TradeRow(Part):
    """One line of the table that a reader decides by."""

    mode: str
    says: str
    """The mode in a few words."""
    replica_rtt_ns: int | None = None
    """The distance that the row is about; also where no replica is, so that a distance's rows stand together. None: no link."""
    threads: int
    durability: str = "strict"
    fault: str | None = None
    """What the crashes of this row are. None: nothing was broken."""
    commits_per_s: Estimate
    cost: Estimate | None
    """Throughput over that without a replica, or else over the first row's. None: the row compared with."""
    blocks: int = 0
    """That `cost` is of: both were good in them. Of crashes, which are not paired, 0."""
    trials: int = 0
    """That the rate is of."""
    commit_ms: float
    lost_per_crash: Estimate | None
    """None: not measured in this run."""
    crashes: int
    phantoms: bool | None
    """Others saw commits that the crash took back. None: not measured."""
    verdict: str
    """When to use it, in a clause."""


class CrashFindings(Part):
    losses: tuple[CrashLoss, ...]
    sentences: tuple[str, ...]


# ---------------------------------------------------------------- what a fallback hides


class FallbackSeries(Part):
    """One trial, drawn. Times in seconds since the load began."""

    trial: int
    slice_s: float
    commits_per_s: tuple[float, ...]
    """Acknowledged to clients, slice by slice."""
    left_s: float
    returned_s: float
    reconnected_s: float | None
    fell_s: float | None
    back_s: float | None
    stall_s: float
    unprotected: int
    at_s: tuple[float, ...]
    """Of the looks at the primary."""
    semi_sync: tuple[bool, ...]
    behind: tuple[int | None, ...]
    """Transactions that the replica lacked. None: it could not be asked."""


class FallbackStory(Part):
    """One mode: means over its trials, and one trial to draw. Where trials are `censored` its times and counts are means of what is
    known from below, without an interval."""

    arm: str
    mode: str
    threads: int
    trials: int
    timeout_ms: int
    stall_ms: Estimate
    degraded_ms: Estimate | None
    """From the first look that found it asynchronous to the last. None: it never fell back."""
    after_return_ms: Estimate | None
    """How long after the link carried again the primary was still asynchronous."""
    held_off: int = 0
    """Trials in which it was asynchronous for as long as commits went on: only the end of the load let it come back."""
    censored: int = 0
    """Those, and trials in which it did not come back at all: how long it would have lasted is the plan's choice."""
    unprotected: Estimate
    """Commits that clients were told of and that no replica had acknowledged. Most may have been on one within milliseconds."""
    share_unprotected: float
    """Of all that clients were told of in these trials, before and after included."""
    caught_up_ms: Estimate | None = None
    """How long after the link carried again the replica had caught up. None: not in every trial."""
    unprotected_alone: Estimate | None = None
    """Of `unprotected`, those until then: the primary alone had them, or the replica was still fetching. None: it never fell back."""
    most_behind: int | None = None
    """Transactions that the replica lacked at most, over all trials. None: it could not be asked."""
    drawn: int
    """Number of the trial to draw."""
    log_lines: tuple[str, ...]
    series: FallbackSeries | None = None
    """The trial to draw."""


class ReplicationFindings(Part):
    """None: not in this run."""

    cost: ReplicationCost | None
    trade: tuple[TradeRow, ...]
    crash: CrashFindings | None
    fallback: tuple[FallbackStory, ...]
