"""The cost of an acknowledgement: throughput over connections for each mode and distance, the split of a commit's time, and the
model's error.

Local work is measured by the arms without a replica and with the same durability, or else by the asynchronous ones. The model is in
this file; the comparison of modes is in `trade.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Literal

from howfar.analysis.answer import sentence, sentences
from howfar.analysis.published import published_sets
from howfar.contract.replication_receipt import Snapshot
from howfar.experiments.replication.arms import (
    ALONE,
    ASYNC,
    ReplicationArm,
    mode_name,
    quoted_distance,
    replication_name,
    server_kind,
    thin_out_samples,
    typical_threads,
)
from howfar.experiments.replication.factors import REPLICA_FACTORS, REPLICA_RTT_NS, REPLICATION, SEMI_SYNC
from howfar.experiments.replication.records import replica_lag
from howfar.experiments.replication.texts import TEXTS
from howfar.findings import Finding, Quantity
from howfar.plan.factor import Level
from howfar.plan.factors import IMPLIED_LEVELS
from howfar.plan.workload import Workload
from howfar.stats import histograms
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import judge_ratio, mean_interval
from howfar.stats.resample import Interval, interval_over_blocks
from howfar.stats.trials import TrialTable, transaction_histogram
from howfar.store.records import Arm, Trial
from howfar.units import format_duration_ns

Regime = Literal["delay station", "serial", "between"]
"""How commits wait: they share a wait (delay station: throughput grows with connections), they queue for it (serial: it does not
grow), or something between."""

GROUPS_IN_FLIGHT = 2
"""Groups of commits in flight with MariaDB's AFTER_SYNC: one waits for its acknowledgement, another has been sent and holds the binary
log."""
GROUPED_MODES = {("mariadb", "after-sync"), ("mysql", "after-sync"), ("mysql", "after-commit")}
"""Kinds of server and modes whose commits return to clients in groups, because a lock is held while they wait."""
MIN_SHARED_WAIT_GROWTH = 0.5
"""Growth of throughput from one connection to N, as a fraction of N, from which commits count as sharing their wait. The expected
value with MariaDB's AFTER_SYNC is two thirds."""
MAX_SERIAL_GROWTH = 2.0
"""Growth of throughput from one connection to many below which commits count as serial."""


@dataclass(frozen=True)
class LocalCommits:
    """The time of a commit that does not wait, by the number of connections."""

    commit_s: Mapping[int, float]

    def commit_time_at(self, threads: int) -> float | None:
        return self.commit_s.get(threads)

    def time_between_waits(self, wait_s: float, threads: int) -> float:
        """Local time of a commit whose connection also waits `wait_s` for each commit. `commit_s` must not be empty."""
        points = [(n / seconds, seconds) for n, seconds in sorted(self.commit_s.items())]
        rising_points = [points[0]]
        for commits_s, seconds in points[1:]:
            if commits_s > rising_points[-1][0]:  # beyond the highest throughput, more connections only add queueing
                rising_points.append((commits_s, max(seconds, rising_points[-1][1])))
        for (slower_rate, shorter_s), (faster_rate, longer_s) in pairwise(rising_points):
            if threads / (wait_s + longer_s) <= faster_rate:
                low_s, high_s = shorter_s, longer_s
                for _ in range(50):
                    middle_s = (low_s + high_s) / 2
                    share = (middle_s - shorter_s) / (longer_s - shorter_s) if longer_s > shorter_s else 1.0
                    is_over_capacity = threads / (wait_s + middle_s) > slower_rate + share * (faster_rate - slower_rate)
                    low_s, high_s = (middle_s, high_s) if is_over_capacity else (low_s, middle_s)
                return high_s
        top_rate, top_s = rising_points[-1]
        return max(top_s, threads / top_rate - wait_s)


@dataclass(frozen=True)
class CommitWait:
    """How long the commits of one curve wait for acknowledgements."""

    kind: str
    """Kind of server."""
    mode: str
    rtt_s: float
    acknowledgement_s: float = 0.0

    @property
    def acknowledged_independently(self) -> bool:
        """Whether each session waits for its own acknowledgement and continues independently of the others."""
        return self.mode in SEMI_SYNC and (self.kind, self.mode) not in GROUPED_MODES

    def round_trips(self, threads: int) -> float:
        """Mean number of round trips that a commit waits for."""
        if self.mode not in SEMI_SYNC:
            return 0.0
        if self.kind == "mariadb" and self.mode == "after-sync" and threads > GROUPS_IN_FLIGHT:
            return (GROUPS_IN_FLIGHT + 1) / GROUPS_IN_FLIGHT
        return 1.0

    def wait_s(self, threads: int) -> float:
        """Time that a commit takes beyond local work."""
        own_s = self.acknowledgement_s if threads > 1 else 0.0
        return self.round_trips(threads) * (self.rtt_s + own_s)

    def local_s(self, local: LocalCommits, threads: int) -> float | None:
        """Time of a commit's local work. None: `local` does not determine it."""
        same_threads_s = local.commit_time_at(threads)
        if self.acknowledged_independently and 1 in local.commit_s:
            after_wait_s = local.time_between_waits(self.wait_s(threads), threads)
            return after_wait_s if same_threads_s is None else min(same_threads_s, after_wait_s)
        return same_threads_s


def acknowledgement_s(single_commit_s: float, local_s: float, rtt_s: float) -> float:
    """Time of a single connection's commit beyond local work and the round trip."""
    return max(0.0, single_commit_s - local_s - rtt_s)


def classify_regime(growth: float, threads: int) -> Regime:
    """The regime. `growth`: throughput with `threads` connections over that with one. Regimes differ by factors, not by percents."""
    if growth >= MIN_SHARED_WAIT_GROWTH * threads:
        return "delay station"
    return "serial" if growth < MAX_SERIAL_GROWTH else "between"


GROWTH_THREADS = 16
"""Preferred number of connections for `growth`: enough to distinguish a queue from a shared wait, few enough for a small machine."""
MIN_COUNTED_RTT_NS = 100_000
"""RTT below which times are not expressed in round trips: a link without delay has an RTT of tens of microseconds."""
PLAN = "replication"
"""Plan of the published figures."""
_PUBLISHED_TOLERANCE = 0.02
_SHOWN_FACTORS = ("replicas", "wait_for", "replica_tls", "replica_compression")
_GTID_INTERVAL = re.compile(r":(\d+)(?:-(\d+))?")

Published = tuple[tuple[str, float, float | None], ...]


class CommitCost(Part):
    """One arm: a mode at one distance with one number of connections."""

    arm: str
    threads: int
    commits_per_s: Estimate
    commit_ms: float
    """Mean time of a commit: connections / commits/s."""
    p50_ms: float
    p99_ms: float
    local_ms: float
    """Local work: statement, log, fsync and queues for CPU, from the arms without a replica. They are compared at the same number of
    connections if commits return in groups, at the same rate if each returns independently. Without such arms: `commit_ms` less
    `wire_ms`."""
    wire_ms: float
    """One round trip to the replica, as measured without load."""
    waiting_ms: float
    """The rest: queueing for the acknowledgement of others, and the replica's own work. Noise can make it negative."""
    rtts: Estimate | None
    """Time beyond `local_ms` in round trips. None: no acknowledgement is waited for, or the link has no delay."""
    group: float | None
    """Commits per group of the binary log. None: the server does not count groups."""
    local_ms_interval: Interval | None = None
    """Interval of `local_ms` over the blocks, like that of `predicted`. None: too few blocks, or no arms without a replica."""
    predicted: float | None
    """Commits/s by the model. None: the model uses this arm as input."""
    predicted_interval: Interval | None = None
    predicted_error: float | None
    """predicted / measured - 1."""


class LagSeries(Part):
    """How far one replica was behind over one trial. Times count from the start of the measured window."""

    trial: int
    threads: int
    replica: str
    at_s: tuple[float, ...]
    behind: tuple[int, ...]
    """Transactions."""
    heartbeat_ms: tuple[float | None, ...]
    """Age of the newest heartbeat row that was applied. None: none has arrived yet."""


class ReplicationCurve(Part):
    """One mode at one distance."""

    label: str
    mode: str
    """A level of the factor `replication`."""
    replica_rtt_ns: int | None
    rest_rtt_ns: float | None
    """Unloaded round trip, median over trials."""
    durability: str
    held: dict[str, str | int]
    """Other factors of replication that are not at their defaults: replicas, wait_for, TLS, compression."""
    points: tuple[CommitCost, ...]
    growth: Estimate | None
    """Throughput at `growth_threads` connections over that at one."""
    growth_threads: int | None
    regime: Regime | None
    """How commits wait for their acknowledgements. None: unknown."""
    lag_p50: float | None
    """Median of the transactions that the replica was behind, over all samples at the largest number of connections."""
    lag_max: int | None
    heartbeat_p50_ms: float | None
    lag: LagSeries | None = None
    """Lag in the last good trial at the largest number of connections. None: the lag was not sampled."""


class ReplicationCost(Part):
    """Throughput over modes, distances and connections, and how well a model predicts it."""

    curves: tuple[ReplicationCurve, ...]
    mean_error: float | None
    worst_error: float | None
    published: Published
    """Rows of mode, inserts/s published for set-up D, and our commits/s at the same distance with one connection."""
    sentences: tuple[str, ...]
    """What explains the figures."""

    @property
    def threads(self) -> list[int]:
        """Numbers of connections, ascending."""
        return sorted({point.threads for curve in self.curves for point in curve.points})


def replication_cost(arms: Sequence[ReplicationArm], workload: Workload | None) -> ReplicationCost | None:
    """The cost of acknowledgements in a run. None: `arms` is empty."""
    if not arms:
        return None
    local = _LocalArms(arms)
    arms_by_curve: dict[object, list[ReplicationArm]] = {}
    for arm in arms:
        arms_by_curve.setdefault(arm.curve, []).append(arm)
    unlabelled = _factors_missing_in_labels(arms)
    curves = tuple(
        _Curve(sorted(curve_arms, key=lambda arm: arm.threads), local, unlabelled).build_curve()
        for curve_arms in arms_by_curve.values()
    )
    errors = [abs(p.predicted_error) for curve in curves for p in curve.points if p.predicted_error is not None]
    published = published_rows(curves, workload, arms[0].kind)
    return ReplicationCost(
        curves=curves,
        mean_error=sum(errors) / len(errors) if errors else None,
        worst_error=max(errors, default=None),
        published=published,
        sentences=_cost_sentences(curves, published, arms[0].kind),
    )


def acknowledgement_wait_s(table: TrialTable, arm: Arm) -> float | None:
    """Seconds that a commit of this arm waits for round trips, with the unloaded RTT. None: its commits do not wait."""
    replicated = ReplicationArm(arm, server_kind(table.run.info, arm), table.trials.get(arm.name, {}))
    rest_ns = replicated.rest_rtt_ns
    if not replicated.waits or rest_ns is None:
        return None
    return CommitWait(replicated.kind, replicated.mode, rest_ns / 1e9).wait_s(replicated.threads)


class _LocalArms:
    """Arms whose commits do not wait, grouped by the factor levels that local work depends on."""

    def __init__(self, arms: Sequence[ReplicationArm]) -> None:
        self._arms = arms
        self._commit_s: dict[tuple[str, object], dict[int, dict[int, float]]] = {}
        for arm in arms:
            if not arm.waits:
                commit_s = {block: arm.threads / per_s for block, per_s in arm.by_block.items()}
                self._commit_s.setdefault((arm.mode, arm.local_levels), {})[arm.threads] = commit_s

    def _commit_times(self, arm: ReplicationArm) -> dict[int, dict[int, float]]:
        keys = ((mode, arm.local_levels) for mode in (ALONE, ASYNC))
        return next((self._commit_s[key] for key in keys if key in self._commit_s), {})

    def in_block(self, block: int) -> _LocalArms:
        """The same arms, with only the trials of one block."""
        return _LocalArms([arm.in_block(block) for arm in self._arms if block in arm.trials])

    def local_commits(self, arm: ReplicationArm) -> LocalCommits:
        """Times of commits without a replica, or else of asynchronous ones. Empty: the run has neither."""
        return LocalCommits({threads: median(blocks.values()) for threads, blocks in self._commit_times(arm).items()})

    def commit_s_by_block(self, arm: ReplicationArm) -> Mapping[int, float]:
        """Seconds per commit in each block, from the arm that `local_commits` uses for the same number of connections. Empty: no such
        arm."""
        return self._commit_times(arm).get(arm.threads, {})


class _Curve:
    """One mode at one distance; arms ascend by connections."""

    def __init__(self, arms: Sequence[ReplicationArm], local_arms: _LocalArms, unlabelled: Sequence[str]) -> None:
        self._arms, self._unlabelled = arms, unlabelled
        self._first, self._top = arms[0], arms[-1]
        self._local, self._local_arms = local_arms.local_commits(self._first), local_arms
        rtts_ns = [rtt_ns for arm in arms if (rtt_ns := arm.rest_rtt_ns) is not None]
        self._rest_ns = median(rtts_ns) if rtts_ns else None
        self._waiting = self._commit_wait()

    def _commit_wait(self) -> CommitWait | None:
        """The wait of this curve's commits. None: they do not wait, or the distance is unknown."""
        if not self._first.waits or self._rest_ns is None:
            return None
        waiting = CommitWait(self._first.kind, self._first.mode, self._rest_ns / 1e9)
        local_s = waiting.local_s(self._local, 1)
        if self._first.threads > 1 or local_s is None:
            return waiting
        own_s = acknowledgement_s(1 / self._first.commits_per_s.value, local_s, waiting.rtt_s)
        return replace(waiting, acknowledgement_s=own_s)

    def _local_s(self, arm: ReplicationArm) -> float | None:
        """Time of a commit without its wait."""
        if self._waiting is None:
            return self._local.commit_time_at(arm.threads)
        return self._waiting.local_s(self._local, arm.threads)

    def build_curve(self) -> ReplicationCurve:
        first, growth = self._first, self._growth()
        lag_samples = [lag for trial in self._top.trials.values() if trial.window for lag in replica_lag(trial.window)]
        heartbeats_ns = [record.heartbeat_ns for record in lag_samples if record.heartbeat_ns is not None]
        return ReplicationCurve(
            label=_label(first, self._unlabelled),
            mode=first.mode,
            replica_rtt_ns=first.replica_rtt_ns,
            rest_rtt_ns=self._rest_ns if first.mode != ALONE else None,
            durability=first.durability,
            held=_non_default_levels(first),
            points=tuple(self._cost(arm) for arm in self._arms),
            growth=growth[0] if growth else None,
            growth_threads=growth[1] if growth else None,
            regime=classify_regime(growth[0].value, growth[1]) if growth and first.waits else None,
            lag_p50=median([record.behind for record in lag_samples]) if lag_samples else None,
            lag_max=max((record.behind for record in lag_samples), default=None),
            heartbeat_p50_ms=median(heartbeats_ns) / 1e6 if heartbeats_ns else None,
            lag=lag_series(list(self._top.trials.values()), self._top.threads),
        )

    def _cost(self, arm: ReplicationArm) -> CommitCost:
        per_s, local_s = arm.commits_per_s, self._local_s(arm)
        commit_s, rtt_s = arm.threads / per_s.value, self._waiting.rtt_s if self._waiting else 0.0
        predicted, block_curves = self._predicted(arm), self._block_curves
        local_work_s = local_s if local_s is not None else max(0.0, commit_s - rtt_s)
        measured = [trial.measured for trial in arm.trials.values() if trial.measured]
        records = [record for load in measured if (record := transaction_histogram(load))]
        latency = histograms.latency_ms(histograms.merge(records), records)
        return CommitCost(
            arm=arm.arm.name,
            threads=arm.threads,
            commits_per_s=per_s,
            commit_ms=commit_s * 1e3,
            p50_ms=latency.p50,
            p99_ms=latency.p99,
            local_ms=local_work_s * 1e3,
            wire_ms=rtt_s * 1e3,
            waiting_ms=(commit_s - local_work_s - rtt_s) * 1e3,
            rtts=self._rtts(arm, local_s, rtt_s),
            group=commits_per_group(arm),
            local_ms_interval=interval_over_blocks(
                local_work_s * 1e3, [1e3 * load for block in block_curves if local_s and (load := block._local_s(arm))]
            ),
            predicted=predicted,
            predicted_interval=interval_over_blocks(
                predicted or 0.0, [block._predicted(arm) for block in block_curves]
            ),
            predicted_error=predicted / per_s.value - 1 if predicted else None,
        )

    def _predicted(self, arm: ReplicationArm) -> float | None:
        """Commits/s by the model."""
        local_s = self._local_s(arm)
        if self._waiting is None or local_s is None:
            return None
        return arm.threads / (local_s + self._waiting.wait_s(arm.threads))

    @cached_property
    def _block_curves(self) -> list[_Curve]:
        """A curve for each block, from that block's trials only. Predictions need only its first arm and its local arms."""
        return [
            _Curve(
                [arm.in_block(block) for arm in self._arms if block in arm.trials],
                self._local_arms.in_block(block),
                self._unlabelled,
            )
            for block in self._first.trials
        ]

    def _rtts(self, arm: ReplicationArm, local_s: float | None, rtt_s: float) -> Estimate | None:
        """Time of a commit beyond its local work, in round trips. In each block, that block's own local time is subtracted, so that
        the interval includes the scatter of both. If the local time was interpolated and so belongs to no block, the interval includes
        only the scatter of the waiting commits."""
        if not arm.waits or local_s is None or rtt_s * 1e9 < MIN_COUNTED_RTT_NS:
            return None
        blocks = self._local_arms.commit_s_by_block(arm) if local_s == self._local.commit_time_at(arm.threads) else {}
        rates = arm.by_block
        paired = [(arm.threads / rates[block] - blocks[block]) / rtt_s for block in rates if block in blocks]
        return mean_interval(paired or [(arm.threads / rate - local_s) / rtt_s for rate in rates.values()])

    def _growth(self) -> tuple[Estimate, int] | None:
        """Throughput of many connections over that of one, paired by block. None: the curve does not have both."""
        arms_with_many = [arm for arm in self._arms if arm.threads > 1]
        if self._first.threads != 1 or not arms_with_many:
            return None
        arm = next((arm for arm in arms_with_many if arm.threads == GROWTH_THREADS), arms_with_many[-1])
        rates_of_one, rates_of_many = self._first.by_block, arm.by_block
        ratios = [rates_of_many[block] / rates_of_one[block] for block in rates_of_many if block in rates_of_one]
        return (judge_ratio(ratios).reported, arm.threads) if ratios else None


def _factors_missing_in_labels(arms: Sequence[ReplicationArm]) -> list[str]:
    """Factors in which the arms differ and that the fixed parts of a label do not contain."""
    labelled = {"replication", "threads", "durability", "fault", *REPLICA_FACTORS}
    names = dict.fromkeys(name for arm in arms for name in arm.arm.factors if name not in labelled)
    return [name for name in names if len({arm.level(name) for arm in arms}) > 1]


def _label(arm: ReplicationArm, unlabelled: Sequence[str]) -> str:
    parts = [mode_name(arm.mode)]
    if arm.replica_rtt_ns is not None:
        parts.append(format_duration_ns(arm.replica_rtt_ns))
    if arm.durability != IMPLIED_LEVELS["durability"]:
        parts.append(f"durability {arm.durability}")
    parts += [f"{name.replace('_', ' ')} {level}" for name, level in _non_default_levels(arm).items()]
    return ", ".join([*parts, *(str(level) for name in unlabelled if (level := arm.level(name)) is not None)])


def _non_default_levels(arm: ReplicationArm) -> dict[str, str | int]:
    if arm.mode == ALONE:
        return {}
    levels = {name: arm.level(name) for name in _SHOWN_FACTORS}
    return {
        name: level for name, level in levels.items() if isinstance(level, str | int) and level != IMPLIED_LEVELS[name]
    }


def lag_series(trials: Sequence[Trial], threads: int) -> LagSeries | None:
    """Lag of the replica that was farthest behind, in the last good trial of one arm. None: the lag was not sampled."""
    sampled = [
        (trial.number, lag) for trial in trials if trial.window is not None and (lag := replica_lag(trial.window))
    ]
    if not sampled:
        return None
    number, lag = sampled[-1]
    farthest_replica = max(lag, key=lambda sample: sample.behind).replica
    samples = thin_out_samples([sample for sample in lag if sample.replica == farthest_replica])
    return LagSeries(
        trial=number,
        threads=threads,
        replica=farthest_replica,
        at_s=tuple(sample.at_ns / 1e9 for sample in samples),
        behind=tuple(sample.behind for sample in samples),
        heartbeat_ms=tuple(None if sample.heartbeat_ns is None else sample.heartbeat_ns / 1e6 for sample in samples),
    )


# ---------------------------------------------------------------- commits per group, by the server's own counters


def commits_per_group(arm: ReplicationArm) -> float | None:
    """How many commits share one write of the binary log, or one acknowledgement. None: the server counts no groups. What MySQL's
    semi-synchronous primary counts as transactions are groups."""
    counts = [
        count
        for trial in arm.trials.values()
        if (count := _binary_log_groups(trial) or _acknowledged_groups(arm, trial))
    ]
    groups = sum(groups for _, groups in counts)
    return sum(commits for commits, _ in counts) / groups if groups else None


def _binary_log_groups(trial: Trial) -> tuple[float, float] | None:
    """Commits and groups of the binary log in the window."""
    counters = trial.window.server if trial.window else {}
    commits, groups = counters.get("Binlog_commits"), counters.get("Binlog_group_commits")
    return (commits, groups) if commits and groups else None


def _acknowledged_groups(arm: ReplicationArm, trial: Trial) -> tuple[float, float] | None:
    """Commits and groups of MySQL under AFTER_SYNC, from before the load to after it."""
    window = trial.receipt.replication_window
    if (arm.kind, arm.mode) != ("mysql", "after-sync") or window is None:
        return None
    before, after = _transactions_and_groups(window.before), _transactions_and_groups(window.after)
    if before is None or after is None or after[1] <= before[1]:
        return None
    return after[0] - before[0], after[1] - before[1]


def _transactions_and_groups(snapshot: Snapshot | None) -> tuple[float, float] | None:
    """Number of transactions in a set of MySQL's identifiers, `uuid:1-7:9,uuid:1-2`, and number of groups."""
    if snapshot is None or snapshot.primary is None:
        return None
    groups, position = snapshot.primary.yes_tx, snapshot.position
    if groups is None:
        return None
    return sum(int(last or first) - int(first) + 1 for first, last in _GTID_INTERVAL.findall(position)), groups


# ---------------------------------------------------------------- published figures


def published_rows(curves: Sequence[ReplicationCurve], workload: Workload | None, kind: str) -> Published:
    """Rows of mode, published figure and our figure; empty for another workload. The published semi-synchronous mode is AFTER_COMMIT,
    so AFTER_SYNC has no row. If the run has several durabilities, our figure is that of the first; the published set-up flushed no
    commit, as the table states."""
    entries = [entry for entry in published_sets() if entry.plan == PLAN and not entry.has_other_load(workload, kind)]
    cells = [cell for entry in entries for cell in entry.cells if cell.tps is not None]
    same_durability = [curve for curve in curves if curve.durability == curves[0].durability]
    rows = []
    for cell in cells:
        mode = REPLICATION.level_in(cell.factors)
        ours = _our_point(same_durability, mode, REPLICA_RTT_NS.level_or_none(cell.factors))
        rows.append((mode, cell.tps or 0.0, None if ours is None else ours.commits_per_s.value))
    return tuple(rows)


def _our_point(curves: Sequence[ReplicationCurve], mode: str, rtt_ns: Level | None) -> CommitCost | None:
    for curve in curves:
        if curve.mode == mode and not curve.held and _is_same_distance(curve.replica_rtt_ns, rtt_ns):
            return point_at(curve, 1)
    return None


def _is_same_distance(our_rtt_ns: int | None, published_rtt_ns: Level | None) -> bool:
    if our_rtt_ns is None or published_rtt_ns is None:
        return our_rtt_ns is None and published_rtt_ns is None
    return abs(our_rtt_ns / float(published_rtt_ns) - 1) <= _PUBLISHED_TOLERANCE


# ---------------------------------------------------------------- what the figures show

MAX_MODEL_ERROR = 0.1
"""Maximum error of the model for which a sentence may explain a number of round trips by it."""
MIN_EXTRA_ROUND_TRIPS = 1.25
"""Round trips of a commit from which it waits for more than its own acknowledgement."""


def conclude(cost: ReplicationCost, differ: Callable[[str, str], bool]) -> tuple[Finding, ...]:
    """The answer: the wait of one connection, and what many make of it, first in the mode that is advised. Others are named if they
    differ from it. `differ`: whether the rates of two arms do."""
    quoted = _curves_to_quote(cost.curves)
    if not quoted:
        return _asynchronous_finding(cost.curves)
    advised = quoted[0]
    single, many = advised.points[0], _typical_point(advised)
    points = [(curve, _typical_point(curve)) for curve in quoted]
    named = [(curve, point) for curve, point in points if curve is advised or differ(point.arm, many.arm)]
    if single.threads > 1 or len(advised.points) == 1 < len(named):
        return tuple(_finding("connections", curve, point.commits_per_s, point) for curve, point in named)
    unreplicated = next((c for c in cost.curves if c.mode == ALONE and c.durability == advised.durability), None)
    alone = point_at(unreplicated, 1) if unreplicated else None
    first = _finding("slowed-connection" if alone else "one-connection", advised, single.commits_per_s, single)
    if alone:
        first.parameters["alone"] = alone.commits_per_s.value
    many_findings = (_finding("many", curve, point.commits_per_s, point) for curve, point in named)
    return (first, *(many_findings if many is not single else ()))


def _asynchronous_finding(curves: Sequence[ReplicationCurve]) -> tuple[Finding, ...]:
    """The answer of a run in which no commit waits."""
    asynchronous = next((curve for curve in curves if curve.mode == ASYNC and curve.points), None)
    if asynchronous is None:
        return ()
    point = asynchronous.points[-1]
    return (_finding("asynchronous", asynchronous, point.commits_per_s, point),)


def _finding(
    name: str, curve: ReplicationCurve, estimate: Estimate | None, point: CommitCost, **parameters: float
) -> Finding:
    """A finding about one point of a curve."""
    rtt_ns = curve.rest_rtt_ns if curve.replica_rtt_ns is None else curve.replica_rtt_ns
    parameters = {"threads": point.threads, "rtt_ns": rtt_ns or 0, **parameters}
    return Finding(
        id=name,
        subject=replication_name(curve.mode),
        metric=None if estimate is None else Quantity.ROUND_TRIPS if name == "round-trips" else Quantity.COMMITS,
        estimate=estimate,
        parameters=parameters,
    )


def _cost_sentences(curves: Sequence[ReplicationCurve], published: Published, kind: str) -> tuple[str, ...]:
    """What explains the figures."""
    quoted = _curves_to_quote(curves)
    single = one_connection_findings(quoted[0], published) if quoted else []
    return (*sentences((*single, *model_findings(curves)), TEXTS), *round_trip_sentences(curves, kind))


def round_trip_sentences(curves: Sequence[ReplicationCurve], kind: str) -> tuple[str, ...]:
    """Why a commit takes longer than one round trip. Empty: none does."""
    findings = round_trip_findings(curves, kind)
    groups = [[finding for finding in findings if finding.id == name] for name in ("round-trips", "two-groups")]
    return tuple(sentence(group, TEXTS) for group in groups if group)


def point_at(curve: ReplicationCurve, threads: int) -> CommitCost | None:
    return next((point for point in curve.points if point.threads == threads), None)


def _curves_to_quote(curves: Sequence[ReplicationCurve]) -> list[ReplicationCurve]:
    """Semi-synchronous curves at the quoted distance, with all else at its default; that of the advised mode is first."""
    semi_sync = [curve for curve in curves if curve.mode in SEMI_SYNC and not curve.held and curve.points]
    if not semi_sync:
        return []
    distance = quoted_distance([curve.replica_rtt_ns for curve in semi_sync]) or 0
    at_distance = [curve for curve in semi_sync if (curve.replica_rtt_ns or 0) == distance]
    quoted = [curve for curve in at_distance if curve.durability == at_distance[0].durability]
    return sorted(quoted, key=lambda curve: tuple(SEMI_SYNC).index(curve.mode))


def _typical_point(curve: ReplicationCurve) -> CommitCost:
    point = point_at(curve, typical_threads(point.threads for point in curve.points))
    assert point is not None, "the curve has a point at each of its numbers of connections"
    return point


def one_connection_findings(curve: ReplicationCurve, published: Published) -> list[Finding]:
    """Why one connection makes so few commits."""
    single = curve.points[0]
    if single.threads != 1 or not single.wire_ms:
        return []
    is_explained = single.predicted is not None
    sum_ms = single.wire_ms + (single.local_ms if is_explained else 0.0)
    figures = {"local_ms": single.local_ms, "wire_ms": single.wire_ms, "sum": 1e3 / sum_ms}
    name = "one-connection-sum" if is_explained else "one-connection-limit"
    rows = [row for row in published if row[0] in SEMI_SYNC and row[2] is not None]
    return [
        _finding(name, curve, single.commits_per_s, single, **figures),
        *(
            Finding(
                id="published",
                subject=mode_name(mode),
                metric=Quantity.COMMITS,
                estimate=Estimate(value=per_s, low=None, high=None),
            )
            for mode, per_s, _ in rows[:1]
        ),
    ]


def explain(curves: Sequence[ReplicationCurve]) -> tuple[Finding, ...]:
    """Why one connection makes so few commits over the longest distance."""
    quoted = _curves_to_quote(curves)
    return tuple(one_connection_findings(quoted[0], ())[:1]) if quoted else ()


def round_trip_findings(curves: Sequence[ReplicationCurve], kind: str) -> list[Finding]:
    """Commits that wait for more than their own acknowledgement, and why. Empty: none does."""
    points = [(curve, point) for curve in _curves_to_quote(curves) if (point := _typical_point(curve)).rtts is not None]
    points.sort(key=lambda pair: -pair[1].rtts.value if pair[1].rtts else 0.0)
    beyond = [
        (curve, point)
        for curve, point in points
        if point.rtts and point.threads > 1 and (point.rtts.low or point.rtts.value) > MIN_EXTRA_ROUND_TRIPS
    ]
    if not beyond:
        return []
    curve, point = beyond[0]
    model_fits = point.predicted_error is not None and abs(point.predicted_error) <= MAX_MODEL_ERROR
    is_explained = kind == "mariadb" and curve.mode == "after-sync" and model_fits
    return [
        *(
            _finding("round-trips", curve, point.rtts, point)
            for curve, point in points
            if point.threads == beyond[0][1].threads
        ),
        *([Finding(id="two-groups")] if is_explained else []),
    ]


def model_findings(curves: Sequence[ReplicationCurve]) -> list[Finding]:
    points = [
        (point, abs(point.predicted_error)) for c in curves for point in c.points if point.predicted_error is not None
    ]
    if not points:
        return []
    worst, max_error = max(points, key=lambda pair: pair[1])
    mean = sum(error for _, error in points) / len(points)
    return [Finding(id="model", subject=worst.arm, parameters={"cells": len(points), "mean": mean, "worst": max_error})]
