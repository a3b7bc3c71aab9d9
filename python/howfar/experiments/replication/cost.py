"""What an acknowledgement costs: curves over connections for each mode and distance, each commit's time split, the model beside.

Local work is that of the arms without a replica of the same durability; asynchronous, where a run has none such. Not here: the
sentences (`words.py`), the model itself (`model.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from howfar.analysis.trials import TrialTable, transaction_histogram
from howfar.experiments.replication.arms import ALONE, APART, ReplicationArm, server_kind
from howfar.experiments.replication.drawn import lag_series
from howfar.experiments.replication.findings import CommitCost, ReplicationCost, ReplicationCurve
from howfar.experiments.replication.groups import commits_a_group
from howfar.experiments.replication.model import Local, Waiting, acknowledgement_s, regime_of
from howfar.experiments.replication.published import published_rows
from howfar.experiments.replication.words import cost_sentences, mode_words
from howfar.plan.types import ORDINARY, REPLICA_FACTORS
from howfar.stats import histograms
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import judge_ratio, mean_interval
from howfar.store.records import Arm
from howfar.units import format_duration_ns

GROWTH_THREADS = 16
"""Enough to tell a line from a shared wait, few enough for a small machine."""
_HELD = ("replicas", "wait_for", "replica_tls", "replica_compression")
_SHORT_NS = 100_000
"""A link without delay has a round trip of some ten microseconds, in which nothing can be counted."""


def replication_cost(arms: Sequence[ReplicationArm], plan: Mapping[str, Any]) -> ReplicationCost | None:
    """None: this run has no arms with replication but those with a fault."""
    if not arms:
        return None
    locals_ = _Locals(arms)
    lines: dict[object, list[ReplicationArm]] = {}
    for arm in arms:
        lines.setdefault(arm.curve, []).append(arm)
    other = _others(arms)
    curves = tuple(_Curve(sorted(line, key=lambda arm: arm.threads), locals_, other).found() for line in lines.values())
    errors = [abs(p.predicted_error) for curve in curves for p in curve.points if p.predicted_error is not None]
    published = published_rows(curves, plan.get("workload") or {})
    return ReplicationCost(
        curves=curves,
        mean_error=sum(errors) / len(errors) if errors else None,
        worst_error=max(errors, default=None),
        published=published,
        sentences=cost_sentences(curves, published, arms[0].kind),
    )


def waits_s(table: TrialTable, arm: Arm) -> float | None:
    """Round trips that a commit of this arm waits, at rest. None: its commits wait for nobody."""
    one = ReplicationArm(arm, server_kind(table.run.info, arm), table.trials.get(arm.name, {}))
    rest_ns = one.rest_rtt_ns
    if not one.waits or rest_ns is None:
        return None
    return Waiting(one.kind, one.mode, rest_ns / 1e9).wait_s(one.threads)


class _Locals:
    """Commits that wait for nobody, by what they depend on. Of one server: a run has no more."""

    def __init__(self, arms: Sequence[ReplicationArm]) -> None:
        found: dict[tuple[str, object], dict[int, float]] = {}
        self._blocks: dict[tuple[str, object, int], dict[int, float]] = {}
        for arm in arms:
            if arm.mode in (ALONE, APART):
                commit_s = median(arm.threads / rate for rate in arm.by_block.values())
                found.setdefault((arm.mode, arm.ground), {})[arm.threads] = commit_s
                times = {block: arm.threads / rate for block, rate in arm.by_block.items()}
                self._blocks[arm.mode, arm.ground, arm.threads] = times
        self._found = {key: Local(times) for key, times in found.items()}

    def of(self, arm: ReplicationArm) -> Local:
        """Without a replica; else asynchronous. Empty: the run has neither."""
        found = (self._found.get((mode, arm.ground)) for mode in (ALONE, APART))
        return next((local for local in found if local is not None), Local({}))

    def blocks(self, arm: ReplicationArm) -> Mapping[int, float]:
        """Seconds of a commit in each block, of the arm that `of` takes for as many connections. Empty: there is none."""
        mode = next((mode for mode in (ALONE, APART) if (mode, arm.ground) in self._found), ALONE)
        return self._blocks.get((mode, arm.ground, arm.threads), {})


class _Curve:
    """One mode at one distance; arms ascend by connections."""

    def __init__(self, arms: Sequence[ReplicationArm], locals_: _Locals, other: Sequence[str]) -> None:
        self._arms, self._other = arms, other
        self._first, self._top = arms[0], arms[-1]
        self._local, self._locals = locals_.of(self._first), locals_
        rests = [rest for arm in arms if (rest := arm.rest_rtt_ns) is not None]
        self._rest_ns = median(rests) if rests else None
        self._waiting = self._waits_for()

    def _waits_for(self) -> Waiting | None:
        """None: for nobody, or nobody knows how far it is."""
        if not self._first.waits or self._rest_ns is None:
            return None
        waiting = Waiting(self._first.kind, self._first.mode, self._rest_ns / 1e9)
        local_s = waiting.local_s(self._local, 1)
        if self._first.threads > 1 or local_s is None:
            return waiting
        own = acknowledgement_s(1 / self._first.commits_per_s.value, local_s, waiting.rtt_s)
        return replace(waiting, acknowledgement_s=own)

    def _local_s(self, arm: ReplicationArm) -> float | None:
        """A commit without its wait."""
        if self._waiting is None:
            return self._local.with_as_many(arm.threads)
        return self._waiting.local_s(self._local, arm.threads)

    def _local_blocks(self, arm: ReplicationArm, local_s: float | None) -> Mapping[int, float]:
        """Empty where a commit's local work is read off a curve: that belongs to no block."""
        return self._locals.blocks(arm) if local_s == self._local.with_as_many(arm.threads) else {}

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
        predicted = None
        if self._waiting is not None and local_s is not None:
            predicted = arm.threads / (local_s + self._waiting.wait_s(arm.threads))
        own_s = local_s if local_s is not None else max(0.0, commit_s - rtt_s)
        records = [
            record
            for trial in arm.trials.values()
            if trial.measured and (record := transaction_histogram(trial.measured))
        ]
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
            rtts=_rtts(arm, local_s, self._local_blocks(arm, local_s), rtt_s),
            group=commits_a_group(arm),
            predicted=predicted,
            predicted_error=predicted / per_s.value - 1 if predicted else None,
        )

    def _growth(self) -> tuple[Estimate, int] | None:
        """Paired by block. None: one number of connections, or none is one."""
        more = [arm for arm in self._arms if arm.threads > 1]
        if self._first.threads != 1 or not more:
            return None
        arm = next((arm for arm in more if arm.threads == GROWTH_THREADS), more[-1])
        one, many = self._first.by_block, arm.by_block
        ratios = [many[block] / one[block] for block in many if block in one]
        return (judge_ratio(ratios).quoted, arm.threads) if ratios else None


def _rtts(arm: ReplicationArm, local_s: float | None, blocks: Mapping[int, float], rtt_s: float) -> Estimate | None:
    """Time beyond the local commit in round trips, each block's beyond its own, so that the interval has the scatter of both. Without
    a local time in the same blocks it has that of the waiting commits alone."""
    if not arm.waits or local_s is None or rtt_s * 1e9 < _SHORT_NS:
        return None
    rates = arm.by_block
    both = [(arm.threads / rates[block] - blocks[block]) / rtt_s for block in rates if block in blocks]
    return mean_interval(both or [(arm.threads / rate - local_s) / rtt_s for rate in rates.values()])


def _others(arms: Sequence[ReplicationArm]) -> list[str]:
    """Factors that curves differ in and that a label would not say."""
    said = {"replication", "threads", "durability", "fault", *REPLICA_FACTORS}
    names = dict.fromkeys(name for arm in arms for name in arm.arm.factors if name not in said)
    return [name for name in names if len({arm.level(name) for arm in arms}) > 1]


def _label(arm: ReplicationArm, other: Sequence[str]) -> str:
    words = [mode_words(arm.mode)]
    if arm.replica_rtt_ns is not None:
        words.append(format_duration_ns(arm.replica_rtt_ns))
    if arm.durability != ORDINARY["durability"]:
        words.append(f"durability {arm.durability}")
    words += [f"{name.replace('_', ' ')} {level}" for name, level in _held(arm).items()]
    return ", ".join([*words, *(str(level) for name in other if (level := arm.level(name)) is not None)])


def _held(arm: ReplicationArm) -> dict[str, str | int]:
    """What is not ordinary."""
    if arm.mode == ALONE:
        return {}
    found = {name: arm.level(name) for name in _HELD}
    return {name: level for name, level in found.items() if isinstance(level, str | int) and level != ORDINARY[name]}
