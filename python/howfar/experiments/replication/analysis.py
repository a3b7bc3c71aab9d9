"""The cost of an acknowledgement: curves over connections for each mode and distance, the split of a commit's time, and the model's
error.

Local work is measured by the arms without a replica and with the same durability, or else by the asynchronous ones. The model is here
too; the comparison of modes is in `trade.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from howfar.analysis.published import published_sets
from howfar.experiments.replication.arms import (
    ALONE,
    ASYNC,
    ReplicationArm,
    farthest,
    mode_name,
    plural,
    quoted_distance,
    rate,
    rate_interval,
    server_kind,
    typical_threads,
    with_mode,
)
from howfar.plan.factors import ORDINARY, REPLICA_FACTORS, SEMI_SYNC
from howfar.stats import histograms
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import in_brackets, judge_ratio, mean_interval
from howfar.stats.resample import Interval, of_blocks, within
from howfar.stats.trials import TrialTable, transaction_histogram
from howfar.store.receipts import number_in
from howfar.store.records import Arm, FactorValue, Trial
from howfar.units import format_duration_ns

Regime = Literal["delay station", "serial", "between"]
"""Commits share a wait (throughput grows with connections), queue for it (it does not), or something between."""

GROUPS_IN_FLIGHT = 2
"""Groups of commits in flight with MariaDB's AFTER_SYNC: one that waits for its acknowledgement, one that is sent and holds the
log."""
GROUPED = {("mariadb", "after-sync"), ("mysql", "after-sync"), ("mysql", "after-commit")}
"""Kinds of server and modes whose commits return to clients in groups, because a lock is held while they wait."""
DELAY_SHARE = 0.5
"""Growth from one connection to N, as a share of N, from which commits share their wait; three groups at two stages leave two
thirds."""
SERIAL_GROWTH = 2.0
"""Growth of throughput below which commits are serial: one queue, or two stages of one."""


@dataclass(frozen=True)
class Local:
    """The time of a commit that does not wait, by the number of connections."""

    commit_s: Mapping[int, float]

    def with_as_many(self, threads: int) -> float | None:
        return self.commit_s.get(threads)

    def behind(self, wait_s: float, threads: int) -> float:
        """Local time of a commit between waits of `wait_s`. At least one number of connections is needed."""
        points = [(n / seconds, seconds) for n, seconds in sorted(self.commit_s.items())]
        rising = [points[0]]
        for commits_s, seconds in points[1:]:
            if commits_s > rising[-1][0]:  # beyond the highest throughput, more connections only add queueing
                rising.append((commits_s, max(seconds, rising[-1][1])))
        for (slow, short), (fast, long) in pairwise(rising):
            if threads / (wait_s + long) <= fast:
                low, high = short, long
                for _ in range(50):
                    middle = (low + high) / 2
                    share = (middle - short) / (long - short) if long > short else 1.0
                    crowded = threads / (wait_s + middle) > slow + share * (fast - slow)
                    low, high = (middle, high) if crowded else (low, middle)
                return high
        top_rate, top_s = rising[-1]
        return max(top_s, threads / top_rate - wait_s)


@dataclass(frozen=True)
class Waiting:
    """The wait of a commit, for one curve."""

    kind: str
    """Kind of server."""
    mode: str
    rtt_s: float
    acknowledgement_s: float = 0.0

    @property
    def alone(self) -> bool:
        """Whether each session waits for its own acknowledgement and continues independently of the others."""
        return self.mode in SEMI_SYNC and (self.kind, self.mode) not in GROUPED

    def rounds(self, threads: int) -> float:
        """Mean number of round trips that a commit waits for."""
        if self.mode not in SEMI_SYNC:
            return 0.0
        if self.kind == "mariadb" and self.mode == "after-sync" and threads > GROUPS_IN_FLIGHT:
            return (GROUPS_IN_FLIGHT + 1) / GROUPS_IN_FLIGHT
        return 1.0

    def wait_s(self, threads: int) -> float:
        """Time that a commit takes beyond local work."""
        own = self.acknowledgement_s if threads > 1 else 0.0
        return self.rounds(threads) * (self.rtt_s + own)

    def local_s(self, local: Local, threads: int) -> float | None:
        """Local work of a commit. None: these arms do not determine it."""
        same = local.with_as_many(threads)
        if self.alone and 1 in local.commit_s:
            behind = local.behind(self.wait_s(threads), threads)
            return behind if same is None else min(same, behind)
        return same


def acknowledgement_s(single_commit_s: float, local_s: float, rtt_s: float) -> float:
    """Time of a single connection's commit beyond local work and the round trip."""
    return max(0.0, single_commit_s - local_s - rtt_s)


def regime_of(growth: float, threads: int) -> Regime:
    """The regime, from throughput with `threads` connections over that with one. Regimes differ by factors, not by percents."""
    if growth >= DELAY_SHARE * threads:
        return "delay station"
    return "serial" if growth < SERIAL_GROWTH else "between"


GROWTH_THREADS = 16
"""Preferred number of connections for `growth`: enough to distinguish a queue from a shared wait, few enough for a small machine."""
SHORT_NS = 100_000
"""RTT below which times are not counted in round trips: a link without delay has one of some ten microseconds."""
PLAN = "replication"
"""Plan of the published figures."""
_PUBLISHED_TOLERANCE = 0.02
_HELD = ("replicas", "wait_for", "replica_tls", "replica_compression")
_INTERVAL = re.compile(r":(\d+)(?:-(\d+))?")

Published = tuple[tuple[str, float, float | None], ...]
Faster = Callable[[str, str], bool]
"""Whether one arm is resolved to be faster than another."""


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
    """Local work: statement, log, fsync and queues for CPU, from the arms without a replica. It is taken at the same number of
    connections if commits return in groups, at the same rate if each returns independently. Without such arms: all but the wire."""
    wire_ms: float
    """One round trip to the replica, as measured at rest."""
    waiting_ms: float
    """The rest: queueing for the acknowledgement of others, and the replica's own work. Negative where noise is larger."""
    rtts: Estimate | None
    """Time beyond `local_ms` in round trips. None: no acknowledgement is waited for, or the link has no delay."""
    group: float | None
    """Commits per group of the binary log. None: the server does not count groups."""
    local_ms_interval: Interval | None = None
    """From the figures of each block, like the interval of `predicted`. None: too few blocks, or no such arms."""
    predicted: float | None
    """Commits/s by the model. None: an arm from which the model is built."""
    predicted_interval: Interval | None = None
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
    """Age of the newest heartbeat row that was applied. None: none has arrived yet."""


class ReplicationCurve(Part):
    """One mode at one distance."""

    label: str
    mode: str
    """A level of the factor `replication`."""
    replica_rtt_ns: int | None
    rest_rtt_ns: float | None
    """Round trip measured at rest, median over trials."""
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
    """Published for set-up D: mode, inserts/s there, ours at its distance with one connection."""
    sentences: tuple[str, ...]
    """What a reader should know; the first is the answer."""

    @property
    def threads(self) -> list[int]:
        """Numbers of connections, ascending."""
        return sorted({point.threads for curve in self.curves for point in curve.points})


def replication_cost(arms: Sequence[ReplicationArm], plan: Mapping[str, Any], faster: Faster) -> ReplicationCost | None:
    """The cost of acknowledgements in a run. None: no arm without a fault has replication."""
    if not arms:
        return None
    local = _LocalArms(arms)
    lines: dict[object, list[ReplicationArm]] = {}
    for arm in arms:
        lines.setdefault(arm.curve, []).append(arm)
    other = _unlabelled(arms)
    curves = tuple(_Curve(sorted(line, key=lambda arm: arm.threads), local, other).found() for line in lines.values())
    errors = [abs(p.predicted_error) for curve in curves for p in curve.points if p.predicted_error is not None]
    published = published_rows(curves, plan.get("workload") or {}, arms[0].kind)
    return ReplicationCost(
        curves=curves,
        mean_error=sum(errors) / len(errors) if errors else None,
        worst_error=max(errors, default=None),
        published=published,
        sentences=cost_sentences(curves, published, arms[0].kind, faster),
    )


def waits_s(table: TrialTable, arm: Arm) -> float | None:
    """Time in seconds that a commit of this arm waits for round trips, at rest. None: its commits do not wait."""
    one = ReplicationArm(arm, server_kind(table.run.info, arm), table.trials.get(arm.name, {}))
    rest_ns = one.rest_rtt_ns
    if not one.waits or rest_ns is None:
        return None
    return Waiting(one.kind, one.mode, rest_ns / 1e9).wait_s(one.threads)


class _LocalArms:
    """Arms whose commits do not wait, grouped by the levels that a local commit depends on."""

    def __init__(self, arms: Sequence[ReplicationArm]) -> None:
        self._arms = arms
        self._commit_s: dict[tuple[str, object], dict[int, dict[int, float]]] = {}
        for arm in arms:
            if not arm.waits:
                seconds = {block: arm.threads / rate for block, rate in arm.by_block.items()}
                self._commit_s.setdefault((arm.mode, arm.local_levels), {})[arm.threads] = seconds

    def _found(self, arm: ReplicationArm) -> dict[int, dict[int, float]]:
        keys = ((mode, arm.local_levels) for mode in (ALONE, ASYNC))
        return next((self._commit_s[key] for key in keys if key in self._commit_s), {})

    def only(self, block: int) -> _LocalArms:
        """The same arms, with the figures of one block."""
        return _LocalArms([arm.only(block) for arm in self._arms if block in arm.trials])

    def of(self, arm: ReplicationArm) -> Local:
        """Local commits without a replica, or else asynchronous ones. Empty: the run has neither."""
        return Local({threads: median(blocks.values()) for threads, blocks in self._found(arm).items()})

    def blocks(self, arm: ReplicationArm) -> Mapping[int, float]:
        """Seconds per commit in each block, from the arm that `of` uses for the same number of connections. Empty: there is none."""
        return self._found(arm).get(arm.threads, {})


class _Curve:
    """One mode at one distance; arms ascend by connections."""

    def __init__(self, arms: Sequence[ReplicationArm], local_arms: _LocalArms, other: Sequence[str]) -> None:
        self._arms, self._other = arms, other
        self._first, self._top = arms[0], arms[-1]
        self._local, self._local_arms = local_arms.of(self._first), local_arms
        rests = [rest for arm in arms if (rest := arm.rest_rtt_ns) is not None]
        self._rest_ns = median(rests) if rests else None
        self._waiting = self._waits_for()

    def _waits_for(self) -> Waiting | None:
        """The wait of this curve's commits. None: they do not wait, or the distance is unknown."""
        if not self._first.waits or self._rest_ns is None:
            return None
        waiting = Waiting(self._first.kind, self._first.mode, self._rest_ns / 1e9)
        local_s = waiting.local_s(self._local, 1)
        if self._first.threads > 1 or local_s is None:
            return waiting
        own = acknowledgement_s(1 / self._first.commits_per_s.value, local_s, waiting.rtt_s)
        return replace(waiting, acknowledgement_s=own)

    def _local_s(self, arm: ReplicationArm) -> float | None:
        """Time of a commit without its wait."""
        if self._waiting is None:
            return self._local.with_as_many(arm.threads)
        return self._waiting.local_s(self._local, arm.threads)

    def found(self) -> ReplicationCurve:
        first, growth = self._first, self._growth()
        lag = [record for trial in self._top.trials.values() if trial.window for record in trial.window.lag]
        beats = [record.heartbeat_ns for record in lag if record.heartbeat_ns is not None]
        return ReplicationCurve(
            label=_label(first, self._other),
            mode=first.mode,
            replica_rtt_ns=first.replica_rtt_ns,
            rest_rtt_ns=self._rest_ns if first.mode != ALONE else None,
            durability=first.durability,
            held=_held(first),
            points=tuple(self._cost(arm) for arm in self._arms),
            growth=growth[0] if growth else None,
            growth_threads=growth[1] if growth else None,
            regime=regime_of(growth[0].value, growth[1]) if growth and first.waits else None,
            lag_p50=median([record.behind for record in lag]) if lag else None,
            lag_max=max((record.behind for record in lag), default=None),
            heartbeat_p50_ms=median(beats) / 1e6 if beats else None,
            lag=lag_series(list(self._top.trials.values()), self._top.threads),
        )

    def _cost(self, arm: ReplicationArm) -> CommitCost:
        per_s, local_s = arm.commits_per_s, self._local_s(arm)
        commit_s, rtt_s = arm.threads / per_s.value, self._waiting.rtt_s if self._waiting else 0.0
        predicted, blocks = self._predicted(arm), self._by_block
        own_s = local_s if local_s is not None else max(0.0, commit_s - rtt_s)
        measured = [trial.measured for trial in arm.trials.values() if trial.measured]
        records = [record for each in measured if (record := transaction_histogram(each))]
        latency = histograms.latency_ms(histograms.merge(records), records)
        return CommitCost(
            arm=arm.arm.name,
            threads=arm.threads,
            commits_per_s=per_s,
            commit_ms=commit_s * 1e3,
            p50_ms=latency.p50,
            p99_ms=latency.p99,
            local_ms=own_s * 1e3,
            wire_ms=rtt_s * 1e3,
            waiting_ms=(commit_s - own_s - rtt_s) * 1e3,
            rtts=self._rtts(arm, local_s, rtt_s),
            group=commits_a_group(arm),
            local_ms_interval=of_blocks(
                own_s * 1e3, [1e3 * each for block in blocks if local_s and (each := block._local_s(arm))]
            ),
            predicted=predicted,
            predicted_interval=of_blocks(predicted or 0.0, [block._predicted(arm) for block in blocks]),
            predicted_error=predicted / per_s.value - 1 if predicted else None,
        )

    def _predicted(self, arm: ReplicationArm) -> float | None:
        """Commits/s by the model."""
        local_s = self._local_s(arm)
        if self._waiting is None or local_s is None:
            return None
        return arm.threads / (local_s + self._waiting.wait_s(arm.threads))

    @cached_property
    def _by_block(self) -> list[_Curve]:
        """The curve of each block alone. Predictions use only its first arm and its local arms."""
        return [
            _Curve(
                [arm.only(block) for arm in self._arms if block in arm.trials],
                self._local_arms.only(block),
                self._other,
            )
            for block in self._first.trials
        ]

    def _rtts(self, arm: ReplicationArm, local_s: float | None, rtt_s: float) -> Estimate | None:
        """Time beyond the local commit in round trips. In each block, that block's own local commit is subtracted, so that the
        interval has the scatter of both. If the local time is read off a curve, which belongs to no block, the interval has the
        scatter of the waiting commits alone."""
        if not arm.waits or local_s is None or rtt_s * 1e9 < SHORT_NS:
            return None
        blocks = self._local_arms.blocks(arm) if local_s == self._local.with_as_many(arm.threads) else {}
        rates = arm.by_block
        both = [(arm.threads / rates[block] - blocks[block]) / rtt_s for block in rates if block in blocks]
        return mean_interval(both or [(arm.threads / rate - local_s) / rtt_s for rate in rates.values()])

    def _growth(self) -> tuple[Estimate, int] | None:
        """Throughput of many connections over that of one, paired by block. None: the curve does not have both."""
        more = [arm for arm in self._arms if arm.threads > 1]
        if self._first.threads != 1 or not more:
            return None
        arm = next((arm for arm in more if arm.threads == GROWTH_THREADS), more[-1])
        one, many = self._first.by_block, arm.by_block
        ratios = [many[block] / one[block] for block in many if block in one]
        return (judge_ratio(ratios).quoted, arm.threads) if ratios else None


def _unlabelled(arms: Sequence[ReplicationArm]) -> list[str]:
    """Factors that curves differ in and that the rest of a label does not contain."""
    known = {"replication", "threads", "durability", "fault", *REPLICA_FACTORS}
    names = dict.fromkeys(name for arm in arms for name in arm.arm.factors if name not in known)
    return [name for name in names if len({arm.level(name) for arm in arms}) > 1]


def _label(arm: ReplicationArm, other: Sequence[str]) -> str:
    parts = [mode_name(arm.mode)]
    if arm.replica_rtt_ns is not None:
        parts.append(format_duration_ns(arm.replica_rtt_ns))
    if arm.durability != ORDINARY["durability"]:
        parts.append(f"durability {arm.durability}")
    parts += [f"{name.replace('_', ' ')} {level}" for name, level in _held(arm).items()]
    return ", ".join([*parts, *(str(level) for name in other if (level := arm.level(name)) is not None)])


def _held(arm: ReplicationArm) -> dict[str, str | int]:
    if arm.mode == ALONE:
        return {}
    found = {name: arm.level(name) for name in _HELD}
    return {name: level for name, level in found.items() if isinstance(level, str | int) and level != ORDINARY[name]}


def lag_series(trials: Sequence[Trial], threads: int) -> LagSeries | None:
    """Lag in the last good trial of one arm: that of the replica that was farthest behind. None: the lag was not sampled."""
    windows = [(trial.number, trial.window) for trial in trials if trial.window is not None and trial.window.lag]
    if not windows:
        return None
    number, window = windows[-1]
    worst = max(window.lag, key=lambda look: look.behind).replica
    looks = farthest([look for look in window.lag if look.replica == worst])
    return LagSeries(
        trial=number,
        threads=threads,
        replica=worst,
        at_s=tuple(look.at_ns / 1e9 for look in looks),
        behind=tuple(look.behind for look in looks),
        heartbeat_ms=tuple(None if look.heartbeat_ns is None else look.heartbeat_ns / 1e6 for look in looks),
    )


# ---------------------------------------------------------------- commits a group, by the server's own counters


def commits_a_group(arm: ReplicationArm) -> float | None:
    """How many commits share one write of the binary log, or one acknowledgement. None: the server counts no groups. The counter of
    transactions of MySQL's semi-synchronous primary counts groups."""
    counted = [found for trial in arm.trials.values() if (found := _logged(trial) or _acknowledged(arm, trial))]
    groups = sum(groups for _, groups in counted)
    return sum(commits for commits, _ in counted) / groups if groups else None


def _logged(trial: Trial) -> tuple[float, float] | None:
    """Commits and groups of the binary log in the window."""
    counters = trial.window.server if trial.window else {}
    commits, groups = counters.get("Binlog_commits"), counters.get("Binlog_group_commits")
    return (commits, groups) if commits and groups else None


def _acknowledged(arm: ReplicationArm, trial: Trial) -> tuple[float, float] | None:
    """Commits and groups of MySQL under AFTER_SYNC, from before the load to after it."""
    section = trial.receipt.get("replication")
    window = section.get("window") if isinstance(section, Mapping) else None
    if (arm.kind, arm.mode) != ("mysql", "after-sync") or not isinstance(window, Mapping):
        return None
    before, after = _totals(window.get("before")), _totals(window.get("after"))
    if before is None or after is None or after[1] <= before[1]:
        return None
    return after[0] - before[0], after[1] - before[1]


def _totals(moment: object) -> tuple[float, float] | None:
    """Number of transactions in a set of MySQL's identifiers, `uuid:1-7:9,uuid:1-2`, and number of groups."""
    if not isinstance(moment, Mapping):
        return None
    groups, position = number_in(moment, "primary", "yes_tx"), moment.get("position")
    if groups is None or not isinstance(position, str):
        return None
    return sum(int(last or first) - int(first) + 1 for first, last in _INTERVAL.findall(position)), groups


# ---------------------------------------------------------------- published figures


def published_rows(curves: Sequence[ReplicationCurve], workload: Mapping[str, Any], kind: str) -> Published:
    """Rows of mode, published figure and ours; empty for another workload. The published semi-synchronous mode is AFTER_COMMIT, so
    AFTER_SYNC has no row. Of several durabilities, ours is the first; the published one flushed no commit, as the table states."""
    entries = [entry for entry in published_sets() if entry.plan == PLAN and not entry.differs(workload, kind)]
    cells = [cell for entry in entries for cell in entry.cells if cell.tps is not None]
    alike = [curve for curve in curves if curve.durability == curves[0].durability]
    rows = []
    for cell in cells:
        mode = str(cell.factors["replication"])
        ours = _ours(alike, mode, cell.factors.get("replica_rtt_ns"))
        rows.append((mode, cell.tps or 0.0, None if ours is None else ours.commits_per_s.value))
    return tuple(rows)


def _ours(curves: Sequence[ReplicationCurve], mode: str, rtt_ns: FactorValue | None) -> CommitCost | None:
    for curve in curves:
        if curve.mode == mode and not curve.held and _as_far(curve.replica_rtt_ns, rtt_ns):
            return point_at(curve, 1)
    return None


def _as_far(ours: int | None, theirs: FactorValue | None) -> bool:
    if ours is None or theirs is None:
        return ours is None and theirs is None
    return abs(ours / float(theirs) - 1) <= _PUBLISHED_TOLERANCE


# ---------------------------------------------------------------- sentences

MODEL_HOLDS = 0.1
"""Maximum error of the model at which it explains a number of round trips."""
EXTRA_ROUND = 1.25
"""Round trips of a commit from which it waits for more than its own acknowledgement."""


def cost_sentences(
    curves: Sequence[ReplicationCurve], published: Published, kind: str, faster: Faster
) -> tuple[str, ...]:
    """Sentences about the cost, the answer first."""
    quoted = _quoted(curves)
    best = _best(quoted, faster) if quoted else None
    found = [_answer(curves, best), _one_connection(best, published), _rounds(quoted, kind), _model(curves)]
    return tuple(sentence for sentence in found if sentence)


def point_at(curve: ReplicationCurve, threads: int) -> CommitCost | None:
    return next((point for point in curve.points if point.threads == threads), None)


def _quoted(curves: Sequence[ReplicationCurve]) -> list[ReplicationCurve]:
    """Semi-synchronous curves at the quoted distance, with all else at its default."""
    semi = [curve for curve in curves if curve.mode in SEMI_SYNC and not curve.held and curve.points]
    if not semi:
        return []
    distance = quoted_distance([curve.replica_rtt_ns for curve in semi]) or 0
    here = [curve for curve in semi if (curve.replica_rtt_ns or 0) == distance]
    return [curve for curve in here if curve.durability == here[0].durability]


def _best(quoted: Sequence[ReplicationCurve], faster: Faster) -> ReplicationCurve:
    """The curve with the most commits at a typical number of connections, where that is resolved; else the safest."""
    best = max(quoted, key=lambda curve: _typical(curve).commits_per_s.value)
    others = [_typical(curve).arm for curve in quoted if curve is not best]
    resolved = all(faster(_typical(best).arm, other) for other in others)
    return best if resolved else min(quoted, key=lambda curve: tuple(SEMI_SYNC).index(curve.mode))


def _typical(curve: ReplicationCurve) -> CommitCost:
    found = point_at(curve, typical_threads(point.threads for point in curve.points))
    assert found is not None, "one of its own numbers of connections"
    return found


def _answer(curves: Sequence[ReplicationCurve], best: ReplicationCurve | None) -> str:
    if best is None:
        return _asynchronous(curves)
    one, many = best.points[0], _typical(best)
    text = f"With a replica {_distance(best)} away, {_makes(one)} {with_mode(best.mode)}"
    alone = next((c for c in curves if c.mode == ALONE and c.durability == best.durability), None)
    if alone is not None and (local := point_at(alone, one.threads)) is not None:
        text += f" ({rate(local.commits_per_s.value)} without a replica)"
    if many is one:
        return text + "."
    text += f"; {_makes(many)}"
    why = {
        "delay station": ": each waits for its acknowledgement, and they wait together",
        "serial": ": they queue for their acknowledgements",
    }
    return text + why.get(best.regime or "", "") + "."


def _makes(point: CommitCost) -> str:
    verb = "makes" if point.threads == 1 else "make"
    return f"{plural(point.threads, 'connection')} {verb} {rate_interval(point.commits_per_s)} commits/s"


def _asynchronous(curves: Sequence[ReplicationCurve]) -> str:
    """The answer of a run in which no commit waits."""
    found = next((curve for curve in curves if curve.mode == ASYNC and curve.points), None)
    return (
        f"{_makes(found.points[-1])} with asynchronous replication: no commit waits for the replica." if found else ""
    )


def _one_connection(curve: ReplicationCurve | None, published: Published) -> str:
    """Sentence on why one connection makes so few commits."""
    if curve is None:
        return ""
    one = curve.points[0]
    if one.threads != 1 or not one.wire_ms:
        return ""
    text = f"{rate(one.commits_per_s.value)} commits/s is what one connection can make at {_distance(curve)}: "
    if one.predicted is None:
        text += f"a round trip of {one.wire_ms:.3g} ms allows {rate(1e3 / one.wire_ms)} at most"
    else:
        local = within(one.local_ms, one.local_ms_interval, "{:.2g}".format)
        limits = one.local_ms_interval
        between = None if limits is None else (1e3 / (limits[1] + one.wire_ms), 1e3 / (limits[0] + one.wire_ms))
        text += f"1 / ({local} ms local work + {one.wire_ms:.3g} ms round trip) = "
        text += within(1e3 / (one.local_ms + one.wire_ms), between, rate)
    theirs = next(((mode, per_s) for mode, per_s, ours in published if mode in SEMI_SYNC and ours is not None), None)
    if theirs is not None:
        text += f". Published for one connection: {rate(theirs[1])} ({SEMI_SYNC[theirs[0]]})"
    return text + "."


def _rounds(quoted: Sequence[ReplicationCurve], kind: str) -> str:
    """Sentence on commits that wait for more than their own acknowledgement."""
    pairs = [(curve, point) for curve in quoted if (point := _typical(curve)).rtts is not None]
    far = [(c, p) for c, p in pairs if p.rtts and p.threads > 1 and (p.rtts.low or p.rtts.value) > EXTRA_ROUND]
    if not far:
        return ""
    curve, point = far[0]
    text = f"With {plural(point.threads, 'connection')} a commit takes {_count(point.rtts)} round trips {with_mode(curve.mode)}"
    near = next((p for c, p in pairs if c is not curve and p.threads == point.threads), None)
    if near is not None:
        text += f", {_count(near.rtts)} with the other wait point"
    holds = point.predicted_error is not None and abs(point.predicted_error) <= MODEL_HOLDS
    if kind == "mariadb" and curve.mode == "after-sync" and holds:
        text += (
            ". MariaDB has two groups of commits in flight: the second holds the binary log, so further commits wait until the first "
            "is acknowledged"
        )
    return text + "."


def _model(curves: Sequence[ReplicationCurve]) -> str:
    points = [
        (point, abs(point.predicted_error)) for c in curves for point in c.points if point.predicted_error is not None
    ]
    if not points:
        return ""
    worst, most = max(points, key=lambda pair: pair[1])
    mean = sum(error for _, error in points) / len(points)
    return (
        f"The model predicts {plural(len(points), 'cell')} with a mean error of {mean * 100:.1f} %, at most {most * 100:.1f} % "
        f"({worst.arm}), from the commits without a replica, the round trip at rest, and the remaining time of a single connection's "
        "commit."
    )


def _distance(curve: ReplicationCurve) -> str:
    return format_duration_ns(curve.replica_rtt_ns or 0)


def _count(value: Estimate | None) -> str:
    assert value is not None, "only points with a count of round trips were kept"
    return in_brackets(value, "{:.2f}".format, "(no interval)")
