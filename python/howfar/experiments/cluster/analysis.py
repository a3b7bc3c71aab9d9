"""Commits of clusters at several distances: how fast, how long, against the model of the agreement (`model/agreement.py`).

The model takes local work, and that of the nodes on a commit, from the same mode at its shortest distance (without one from the arms
without a replica) and adds what the agreement takes at the others. So the shortest distance itself is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from howfar.experiments.latency.analysis import TAIL
from howfar.experiments.replication.analysis import Local, Waiting
from howfar.experiments.replication.arms import ALONE, ReplicationArm, mode_name, rate, rate_interval, replication_arms
from howfar.model.agreement import Rtts, agreement_s, read_s
from howfar.plan.factors import CLUSTERS, DISTANCES, REPLICAS, SEMI_SYNC, WRITERS, node_rtts_ns
from howfar.plan.types import READS_ONLY
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import merge, value_at
from howfar.stats.intervals import judge_ratio, mean_interval
from howfar.stats.trials import TrialTable, transaction_histogram
from howfar.store.records import HistogramRecord
from howfar.units import format_duration_ns

Operation = Literal["commit", "read"]


class TwoWriters(Part):
    """Clients on two nodes, and what the cluster refused them. Of both together where nothing else is said."""

    rows: str
    """A level of `writers`."""
    commits_per_s: Estimate
    refused_per_s: Estimate
    repeated_percent: Estimate
    """Of the attempts to commit: they were refused, and done again."""
    second_p50_ms: Estimate | None
    """Of the second node's clients, in trials in which they committed at all. None: in no trial."""
    starved: int
    """Trials in which they committed nothing: each time they were refused."""
    to_own_rows: Estimate | None
    """Their commits/s to those of two writers with a row each, in the same block. None: nothing to compare with."""
    aborted: int | None
    """Transactions that nodes rolled back for another node's that was certified first, over all trials. None: this server does not
    count them."""


class ClusterPoint(Part):
    """One mode at one matrix of distances with so many connections."""

    arm: str
    mode: str
    """A level of `replication`."""
    consistency: str
    nodes: int
    distances: str
    """A level of that factor, or the round trip of all. Empty: it is alone."""
    threads: int
    commits_per_s: Estimate
    p50_ms: Estimate
    p99_ms: float | None
    """Of all blocks together. None: fewer than ten commits lie beyond."""
    nearest_ms: float | None
    """Round trips at rest from the node that commits. None: it is alone."""
    second_ms: float | None
    """To the second nearest, which completes a majority of five; the only one has no second, and is meant then."""
    farthest_ms: float | None
    agreement_ms: float
    """What a commit waits for by the model; 0: for nobody."""
    predicted_ms: float | None
    """Of the p50. None: the model is made of this arm, or of nothing."""
    error: float | None
    """predicted / measured - 1."""
    conflicts: int
    """Commits refused for another node's, over all trials."""
    writers: TwoWriters | None
    """None: one node is written to."""
    flow_control: int | None
    """Messages of nodes that asked the others to wait. None: this server does not count them."""

    @property
    def rounds(self) -> float | None:
        """The agreement in round trips to the farthest node."""
        return self.agreement_ms / self.farthest_ms if self.farthest_ms else None

    @property
    def label(self) -> str:
        """The mode, with its consistency and nodes where they are not the ordinary ones."""
        more = "" if self.consistency == "eventual" else f", {self.consistency.replace('-', ' ')}"
        if self.writers is not None:
            more += f", two writers, {self.writers.rows.replace('-', ' ')}"
        return mode_name(self.mode) + more + ("" if self.nodes in (1, 3) else f", {self.nodes} nodes")


class ClusterCost(Part):
    operation: Operation
    """What the connections do: rates and times are of that."""
    points: tuple[ClusterPoint, ...]
    mean_error: float | None
    """Of all that is predicted."""
    worst_error: float | None


def cluster_cost(table: TrialTable, workload: str) -> ClusterCost | None:
    """None: no cluster was measured. `workload`: its kind."""
    operation: Operation = "read" if workload in READS_ONLY else "commit"
    arms = replication_arms(table)
    if not any(arm.mode in CLUSTERS for arm in arms):
        return None
    lines: dict[object, list[ReplicationArm]] = {}
    for arm in arms:
        nodes = REPLICAS.of(arm.arm.factors)
        lines.setdefault(
            (arm.mode, arm.level("consistency"), arm.level("writers"), nodes, arm.local_levels), []
        ).append(arm)
    apart = {_place(arm): arm for arm in arms if WRITERS.of(arm.arm.factors) == "own-rows"}
    alone = {
        arm.local_levels: _Line(line, None, operation, apart)
        for line in lines.values()
        for arm in line
        if arm.mode == ALONE
    }
    points = tuple(
        point
        for line in lines.values()
        for point in _Line(line, alone.get(line[0].local_levels), operation, apart).points()
    )
    errors = [abs(point.error) for point in points if point.error is not None]
    return ClusterCost(
        operation=operation,
        points=points,
        mean_error=sum(errors) / len(errors) if errors else None,
        worst_error=max(errors, default=None),
    )


def rest_rtts(arm: ReplicationArm) -> Rtts:
    """Between the nodes, in seconds: as measured at rest, median over trials, of the links named in receipts."""
    found: dict[tuple[int, int], float] = {}
    for low, high in node_rtts_ns(arm.arm.factors):
        name = f"replica{high}" if low == 0 else f"replica{low}-replica{high}"
        seen = [
            float(rtt)
            for trial in arm.trials.values()
            if (rtt := trial.receipt.get("replication", {}).get("rtt_at_rest_ns", {}).get(name))
        ]
        if not seen:
            return {}
        found[low, high] = median(seen) / 1e9
    return found


def _histograms(arm: ReplicationArm) -> list[HistogramRecord]:
    every = (transaction_histogram(trial.measured) for trial in arm.trials.values() if trial.measured is not None)
    return [found for found in every if found is not None]


def _p50s_s(arm: ReplicationArm) -> list[float]:
    return [value_at(merge([found]), 0.5) / 1e9 for found in _histograms(arm)]


def _wait_s(arm: ReplicationArm, rtts: Rtts, operation: Operation) -> float:
    if not rtts:
        return 0.0
    if arm.mode in CLUSTERS:
        waits = read_s if operation == "read" else agreement_s
        return waits(arm.mode, str(arm.level("consistency")), rtts)
    if operation == "read":
        return 0.0
    if arm.mode in SEMI_SYNC:
        needed = sorted(rtts.values())[int(arm.level("wait_for") or 1) - 1]
        return Waiting(arm.kind, arm.mode, needed).wait_s(arm.threads)
    return 0.0


class _Line:
    """One mode with one consistency, over distances and connections."""

    def __init__(
        self,
        arms: Sequence[ReplicationArm],
        alone: _Line | None,
        operation: Operation,
        apart: Mapping[object, ReplicationArm],
    ) -> None:
        self.arms = [arm for arm in arms if _p50s_s(arm)]
        self.rtts = {arm.arm.name: rest_rtts(arm) for arm in self.arms}
        self.waits = {arm.arm.name: _wait_s(arm, self.rtts[arm.arm.name], operation) for arm in self.arms}
        self.alone = alone
        self.apart = apart

    def _local(self) -> tuple[Local, str]:
        """Of a commit without its agreement, by connections; and the distances that it was measured at."""
        by_distance: dict[str, list[ReplicationArm]] = {}
        for arm in self.arms:
            by_distance.setdefault(_distances(arm), []).append(arm)
        name, nearest = min(by_distance.items(), key=lambda item: min(self.waits[arm.arm.name] for arm in item[1]))
        if self.alone is not None and len(by_distance) == 1 and self.arms[0].mode != ALONE:
            return self.alone._local()
        found = {arm.threads: max(median(_p50s_s(arm)) - self.waits[arm.arm.name], 1e-6) for arm in nearest}
        return Local(found), name

    def points(self) -> tuple[ClusterPoint, ...]:
        if not self.arms:
            return ()
        local, known = self._local()
        return tuple(self._point(arm, local, known) for arm in self.arms)

    def _point(self, arm: ReplicationArm, local: Local, known: str) -> ClusterPoint:
        rtts, wait_s = self.rtts[arm.arm.name], self.waits[arm.arm.name]
        mine = sorted(rtt * 1e3 for (low, _), rtt in rtts.items() if low == 0)
        p50_s = _p50s_s(arm)
        measured_s = median(p50_s)
        predicted_s = None
        writers = _two_writers(arm, self.apart.get(_place(arm)))
        if wait_s and _distances(arm) != known and writers is None:
            predicted_s = wait_s + local.behind(wait_s, arm.threads)
        whole = merge(_histograms(arm))
        return ClusterPoint(
            arm=arm.arm.name,
            mode=arm.mode,
            consistency=str(arm.level("consistency")),
            nodes=1 if arm.mode == ALONE else REPLICAS.of(arm.arm.factors) + 1,
            distances=_distances(arm),
            threads=arm.threads,
            commits_per_s=arm.commits_per_s,
            p50_ms=mean_interval([seconds * 1e3 for seconds in p50_s]),
            p99_ms=value_at(whole, 0.99) / 1e6 if sum(h.count for h in _histograms(arm)) >= 100 * TAIL else None,
            nearest_ms=mine[0] if mine else None,
            second_ms=mine[:2][-1] if mine else None,
            farthest_ms=mine[-1] if mine else None,
            agreement_ms=wait_s * 1e3,
            predicted_ms=None if predicted_s is None else predicted_s * 1e3,
            error=None if predicted_s is None else predicted_s / measured_s - 1,
            conflicts=_counted(arm, "conflicts") or 0,
            writers=writers,
            flow_control=_counted(arm, "wsrep_flow_control_sent"),
        )


def _place(arm: ReplicationArm) -> object:
    """What arms share that differ in their writers alone."""
    return (arm.threads, *(level for level in arm.curve if level[0] != WRITERS.name))


def _two_writers(arm: ReplicationArm, apart: ReplicationArm | None) -> TwoWriters | None:
    """`apart`: two writers with a row each, else as `arm`."""
    if WRITERS.of(arm.arm.factors) == "one" or not (both := _both(arm)):
        return None
    beside = _both(apart) if apart is not None and apart is not arm else {}
    paired = [sum(both[block].commits_per_s) / sum(beside[block].commits_per_s) for block in both if block in beside]
    loads = list(both.values())
    p50s = [load.second_p50_ms for load in loads if load.second_p50_ms is not None and load.commits_per_s[1]]
    return TwoWriters(
        rows=str(arm.level("writers")),
        commits_per_s=mean_interval([sum(load.commits_per_s) for load in loads]),
        refused_per_s=mean_interval([load.refused_per_s for load in loads]),
        repeated_percent=mean_interval(
            [100 * load.refused_per_s / (load.refused_per_s + sum(load.commits_per_s)) for load in loads]
        ),
        second_p50_ms=mean_interval(p50s) if p50s else None,
        starved=sum(not load.commits_per_s[1] for load in loads),
        to_own_rows=judge_ratio(paired).quoted if paired else None,
        aborted=_counted(arm, "wsrep_local_bf_aborts"),
    )


@dataclass(frozen=True)
class _Both:
    """One trial with two writers."""

    commits_per_s: tuple[float, float]
    refused_per_s: float
    second_p50_ms: float | None
    """None: the second committed nothing."""


def _both(arm: ReplicationArm) -> dict[int, _Both]:
    """By block."""
    found = {}
    for block, trial in arm.trials.items():
        second, mine = trial.receipt.get("writers", {}).get("second"), trial.measured
        if not second or mine is None or not mine.transactions:
            continue
        my_s, their_s = mine.elapsed_ns / 1e9, second["elapsed_ns"] / 1e9
        found[block] = _Both(
            (mine.transactions / my_s, second["transactions"] / their_s),
            sum(mine.errors.values()) / my_s + sum(second["errors"].values()) / their_s,
            None if second["p50_ns"] is None else second["p50_ns"] / 1e6,
        )
    return found


def _distances(arm: ReplicationArm) -> str:
    if arm.mode == ALONE:
        return ""
    return (
        DISTANCES.label(DISTANCES.of(arm.arm.factors))
        if arm.replica_rtt_ns is None
        else format_duration_ns(arm.replica_rtt_ns)
    )


def _counted(arm: ReplicationArm, counter: str) -> int | None:
    """Over all nodes and trials. A conflict in Group Replication is found, and counted, by every member: once here."""
    once = counter == "conflicts" and arm.mode != "galera"
    trials = (trial.receipt.get("replication", {}).get("window", {}) for trial in arm.trials.values())
    found = [
        max(counts) if once else sum(counts)
        for window in trials
        if (counts := [int(node[counter]) for node in window.get("counted", {}).values() if counter in node])
    ]
    return sum(found) if found else None


def verdict(found: ClusterCost, form: Callable[[Estimate], str]) -> str:
    """The answer: one connection, each cluster at each distance, beside a round trip to its farthest node."""
    points = found.points
    few = min(point.threads for point in points)
    who = "one connection" if few == 1 else f"{few} connections"
    clauses = []
    for label in dict.fromkeys(point.label for point in points if point.mode in CLUSTERS):
        mine = [p for p in points if p.label == label and p.threads == few and p.farthest_ms]
        told = ", ".join(f"{form(p.p50_ms)} ms ({p.distances})" for p in mine)
        far = max(mine, key=lambda p: p.farthest_ms or 0.0, default=None)
        if far is not None and far.farthest_ms:
            clauses.append(
                f"{label} {told}; over {far.distances} it makes {rate_interval(far.commits_per_s)} {found.operation}s/s, "
                f"where one round trip to the farthest node a {found.operation} would be {rate(1e3 / far.farthest_ms)}"
            )
    return f"The median {found.operation} of {who} takes: {'. '.join(clauses)}." if clauses else ""
