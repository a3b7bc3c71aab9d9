"""Commits of clusters at several distances: rates and times, compared with the model of the agreement (`plan/agreement.py`).

The model takes the work on a commit, local and by the other nodes, from the same mode at its shortest distance (with only one
distance, from the arms without a replica) and adds the time of the agreement at the other distances. So the shortest distance itself
is not predicted. The nodes of a laboratory share its CPUs, so the work of a lone connection is modelled together with what the other
nodes and the emulators take from it at each distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from howfar.experiments.replication.analysis import Local, Waiting
from howfar.experiments.replication.arms import ALONE, ReplicationArm, mode_name, rate, rate_interval, replication_arms
from howfar.model.queueing import Beside
from howfar.plan.agreement import PACKET, WINDOW, Pieces, Rtts, agreement_s, read_s
from howfar.plan.distances import NAMED_LINKS, link_name
from howfar.plan.factors import (
    CLUSTERS,
    DISTANCES,
    REPLICA_RATE_BPS,
    REPLICAS,
    ROW_BYTES,
    SEMI_SYNC,
    SHORT_ROW,
    WRITERS,
    node_rtts_ns,
)
from howfar.plan.types import READS_ONLY
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import merge, value_at
from howfar.stats.host_cpus import HostCpus
from howfar.stats.intervals import judge_ratio, mean_interval
from howfar.stats.trials import TAIL, TrialTable, transaction_histogram
from howfar.store.records import HistogramRecord
from howfar.units import format_duration_ns, format_rate_bps, parse_duration_ns

Operation = Literal["commit", "read"]


class TwoWriters(Part):
    """Clients that write on two nodes, and the commits that the cluster refused. Figures are of both together unless noted."""

    rows: str
    """A level of `writers`."""
    commits_per_s: Estimate
    refused_per_s: Estimate
    repeated_percent: Estimate
    """Percentage of the attempts to commit that were refused and repeated."""
    second_p50_ms: Estimate | None
    """p50 of the second node's clients, in trials in which they committed at all. None: in no trial."""
    starved: int
    """Trials in which the second node's clients committed nothing, because each attempt was refused."""
    to_own_rows: Estimate | None
    """Ratio of their commits/s to those of two writers with a row each, in the same block. None: nothing to compare with."""
    aborted: int | None
    """Transactions that nodes rolled back because another node's was certified first, over all trials. None: this server does not
    count them."""


class ClusterPoint(Part):
    """One mode at one matrix of distances, with one number of connections."""

    arm: str
    mode: str
    """A level of `replication`."""
    consistency: str
    nodes: int
    distances: str
    """A level of the factor `distances`, or the round trip if it is the same between all nodes. Empty: a server alone."""
    row_bytes: int = SHORT_ROW
    """Size of the row that a commit inserts."""
    rate_bps: int | None = None
    """Rate of the links between the nodes. None: a server alone."""
    link: str = ""
    """The rate of the links in words, where the run has several."""
    threads: int
    commits_per_s: Estimate
    p50_ms: Estimate
    p99_ms: float | None
    """p99 of all blocks together. None: fewer than ten commits lie beyond it."""
    nearest_ms: float | None
    """Round trip at rest from the node that commits to the nearest other node. None: a server alone."""
    second_ms: float | None
    """Round trip to the second nearest node, which completes a majority of five; to the only one if there is no second."""
    farthest_ms: float | None
    agreement_ms: float
    """Time that a commit waits for agreement, by the model. 0: it does not wait."""
    sent_bytes: float | None
    """Bytes sent to another node per commit, as the links counted them. None: no other node, or not counted."""
    sending_ms: float
    """Time to send these bytes, which the model adds."""
    predicted_ms: float | None
    """The predicted p50. None: the model is built from this arm, or there is nothing to build it from."""
    error: float | None
    """predicted / measured - 1. None: no prediction, `crowded`, or right by construction, because more than nine tenths of it is the
    time of the counted bytes at the rate that was set."""
    crowded: bool
    """Whether, for a large row, the other nodes and the emulators kept this machine's CPUs busy for most of a commit's time: the
    prediction is then for nodes with machines of their own."""
    conflicts: int
    """Commits refused because of another node's, over all trials."""
    writers: TwoWriters | None
    """Figures about two writers. None: only one node is written to."""
    flow_control: int | None
    """Messages with which nodes asked the others to wait. None: this server does not count them."""

    @property
    def label(self) -> str:
        """The mode, with its consistency and number of nodes where they are not the default."""
        more = "" if self.consistency == "eventual" else f", {self.consistency.replace('-', ' ')}"
        if self.row_bytes != SHORT_ROW:
            more += f", {ROW_BYTES.label(self.row_bytes)}"
        if self.writers is not None:
            more += f", two writers, {self.writers.rows.replace('-', ' ')}"
        return mode_name(self.mode) + more + ("" if self.nodes in (1, 3) else f", {self.nodes} nodes")

    @property
    def place(self) -> str:
        """The distances, and the links' rate where the run has several."""
        return ", ".join(filter(None, (self.distances, self.link)))


class ThirdNode(Part):
    """A commit of one connection, for one position of the third of three nodes."""

    label: str
    near_ms: float
    """Round trip between the first two."""
    far_ms: float
    """Round trip from both to the third."""
    p50_ms: Estimate
    """The p50 as measured, or else by the model; then its interval includes the model's largest error in this run, in milliseconds."""
    measured: bool
    beyond: bool
    """Whether it is beyond what was measured: the third is farther than any node was, or nearer."""


class ClusterCost(Part):
    operation: Operation
    """The operation of the connections, to which rates and times refer."""
    points: tuple[ClusterPoint, ...]
    third: tuple[ThirdNode, ...] = ()
    mean_error: float | None
    """Mean error of all predictions."""
    worst_error: float | None


def cluster_cost(table: TrialTable, workload: str) -> ClusterCost | None:
    """The cost of a run's clusters. None: no cluster was measured. `workload`: the kind of workload."""
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
    environment = table.run.info.environment
    cpus = None if environment.get("testbed") == "hosts" else HostCpus.of(environment, "server").machine
    rates = {rate_bps for arm in arms if (rate_bps := _rate_bps(arm)) is not None}
    links: dict[int | None, str] = {bps: format_rate_bps(bps) for bps in rates} if len(rates) > 1 else {}
    apart = {_place(arm): arm for arm in arms if WRITERS.of(arm.arm.factors) == "own-rows"}
    alone = {
        arm.local_levels: _ByConnections(line, None, operation, apart, {}, cpus)
        for line in lines.values()
        for arm in line
        if arm.mode == ALONE
    }
    measured = [
        _ByConnections(line, alone.get(line[0].local_levels), operation, apart, links, cpus) for line in lines.values()
    ]
    points = tuple(point for line in measured for point in line.points())
    by_arm = {point.arm: point for point in points}
    errors = [abs(point.error) for point in points if point.error is not None]
    return ClusterCost(
        operation=operation,
        points=points,
        third=tuple(place for line in measured for place in line.third(by_arm)),
        mean_error=sum(errors) / len(errors) if errors else None,
        worst_error=max(errors, default=None),
    )


def rest_rtts(arm: ReplicationArm) -> Rtts:
    """Round trips between the nodes in seconds: measured at rest, median over trials, by the receipts' links. Empty: one is
    missing."""
    found: dict[tuple[int, int], float] = {}
    for low, high in node_rtts_ns(arm.arm.factors):
        name = link_name(low, high)
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
        consistency = str(arm.level("consistency"))
        if operation == "read":
            return read_s(arm.mode, consistency, rtts)
        return agreement_s(arm.mode, consistency, rtts)
    if operation == "read":
        return 0.0
    if arm.mode in SEMI_SYNC:
        needed = sorted(rtts.values())[int(arm.level("wait_for") or 1) - 1]
        return Waiting(arm.kind, arm.mode, needed).wait_s(arm.threads)
    return 0.0


CROWDED = 0.5
"""Share of the CPUs' time, used by other nodes and emulators during a commit, beyond which a point is crowded."""
IMPOSED = 0.9
_OTHERS = ("replica", "replica_link")
"""Roles whose CPU time delays a lone connection: the other nodes, and the links' emulators."""

Place = tuple[str, int | None]
"""Distances, and the links' rate."""


@dataclass(frozen=True)
class _Work:
    """The work of a commit without its agreement."""

    local: Local
    lone: Beside | None
    """The work of one connection. None: not measured."""
    distances: str
    """The distances at which it was measured."""

    def commit_s(self, wait_s: float, threads: int) -> float:
        """Time of a commit with an agreement that takes `wait_s`."""
        if threads == 1 and self.lone is not None:
            return self.lone.cycle_s(wait_s)
        return wait_s + self.local.behind(wait_s, threads)


def _sent_bytes(arm: ReplicationArm) -> float | None:
    """Bytes that the committing node sends to another one per commit: as its links counted, median over trials. None: not counted."""
    found = []
    for trial in arm.trials.values():
        wires = trial.receipt.get("replication", {}).get("wires") or {}
        sent = [
            counters["to_client"]["wire_bytes"]
            for name, wire in wires.items()
            if "-" not in name and (counters := wire.get("counters"))
        ]
        load = trial.measured
        if sent and load is not None and load.transactions:
            # Commits in progress at the end of the window are completed, but counted only on the link.
            found.append(max(sent) / (load.warmup_transactions + load.transactions + arm.threads))
    return median(found) if found else None


def _commits(arm: ReplicationArm) -> int:
    """Commits in the windows of all trials."""
    return sum(trial.measured.transactions for trial in arm.trials.values() if trial.measured is not None)


def _others_s(arm: ReplicationArm) -> float:
    """CPU time of the other nodes and of the links' emulators, per commit."""
    loads = [trial.measured for trial in arm.trials.values() if trial.measured is not None]
    found = [
        sum(cpu.cpu_ns for cpu in load.cpu if cpu.role in _OTHERS) / 1e9 / load.transactions
        for load in loads
        if load.transactions
    ]
    return median(found) if found else 0.0


def _widened(found: Estimate, by: float | None) -> Estimate:
    """The estimate with its interval widened by `by`, or without an interval if the model was not tested."""
    if by is None or found.low is None or found.high is None:
        return found.model_copy(update={"low": None, "high": None, "points": ()})
    return found.model_copy(update={"low": max(found.low - by, 0.0), "high": found.high + by})


def _pieces(arm: ReplicationArm) -> Pieces:
    """How Galera sends a commit in pieces, from the receipts of the node that commits."""
    for trial in arm.trials.values():
        for node in (trial.receipt.get("replication", {}).get("window", {}).get("after") or {}).get("nodes") or ():
            settings = node.get("settings", {})
            if WINDOW in settings and PACKET in settings:
                return Pieces(int(settings[WINDOW]), int(settings[PACKET]))
    return Pieces()


def _sending_s(arm: ReplicationArm, sent_bytes: float | None, agreed_s: float) -> float:
    rate_bps = _rate_bps(arm)
    if arm.mode not in CLUSTERS or not sent_bytes or not rate_bps:
        return 0.0
    if arm.mode != "galera":
        return sent_bytes * 8 / rate_bps
    return _pieces(arm).sending_s(sent_bytes, rate_bps, agreed_s)


_QUESTION = ("cross-zone", "cross-zone", "region", "us-coasts")
APART_NS, *FROM_BOTH_NS = (parse_duration_ns(NAMED_LINKS[name]["rtt"]) for name in _QUESTION)
"""Round trips that `third` evaluates: the first two nodes are in two zones of one location, and the third is as far from both as
these links."""
_NEARLY = 1.2
"""Factor by which a round trip may be beyond the measured ones and still count as measured."""


class _ByConnections:
    """One mode with one consistency, over distances and connections."""

    def __init__(
        self,
        arms: Sequence[ReplicationArm],
        alone: _ByConnections | None,
        operation: Operation,
        apart: Mapping[object, ReplicationArm],
        links: Mapping[int | None, str],
        cpus: int | None,
    ) -> None:
        """`links`: rates as text, if there are several. `cpus`: CPUs of the machine. None: each node has a machine of its own."""
        self.arms = [arm for arm in arms if _p50s_s(arm)]
        self.rtts = {arm.arm.name: rest_rtts(arm) for arm in self.arms}
        most = max(self.arms, key=_commits, default=None)  # with few commits, one in progress would count too much
        self.sent_bytes = None if most is None or operation == "read" else _sent_bytes(most)
        agreeing = {arm.arm.name: _wait_s(arm, self.rtts[arm.arm.name], operation) for arm in self.arms}
        self.sending = {arm.arm.name: _sending_s(arm, self.sent_bytes, agreeing[arm.arm.name]) for arm in self.arms}
        self.waits = {name: agreed_s + self.sending[name] for name, agreed_s in agreeing.items()}
        self.alone = alone
        self.operation = operation
        self.apart = apart
        self.links = links
        self.cpus = cpus

    def _work(self) -> _Work:
        """The work of a commit without its agreement."""
        by_place: dict[Place, list[ReplicationArm]] = {}
        for arm in self.arms:
            by_place.setdefault(_place_of(arm), []).append(arm)
        one = len({distances for distances, _ in by_place}) == 1
        name, nearest = min(by_place.items(), key=lambda item: min(self.waits[arm.arm.name] for arm in item[1]))
        if self.alone is not None and (one or self.large) and self.arms[0].mode != ALONE:
            return self.alone._work()
        found = {arm.threads: max(median(_p50s_s(arm)) - self.waits[arm.arm.name], 1e-6) for arm in nearest}
        lone = next((self._beside(arm, median(_p50s_s(arm))) for arm in nearest if arm.threads == 1), None)
        return _Work(Local(found), lone, name[0])

    @property
    def large(self) -> bool:
        return ROW_BYTES.of(self.arms[0].arm.factors) != SHORT_ROW

    def _beside(self, arm: ReplicationArm, p50_s: float) -> Beside:
        """The work of an arm with one connection, beside that of the other nodes and of the links' emulators."""
        return Beside.measured(p50_s, self.waits[arm.arm.name], self._others_s(arm), self.cpus or 1)

    def _others_s(self, arm: ReplicationArm) -> float:
        return 0.0 if self.cpus is None else _others_s(arm)

    def points(self) -> tuple[ClusterPoint, ...]:
        if not self.arms:
            return ()
        work = self._work()
        return tuple(self._point(arm, work) for arm in self.arms)

    def third(self, points: Mapping[str, ClusterPoint]) -> Iterator[ThirdNode]:
        """Positions of the third node, for one connection to a cluster of three with short rows and one writer. `points`: by arm."""
        few = [
            arm for arm in self.arms if arm.threads == 1 and arm.mode in CLUSTERS and len(self.rtts[arm.arm.name]) == 3
        ]
        if not few or self.large or self.operation == "read" or WRITERS.of(few[0].arm.factors) != "one":
            return
        reference = min(few, key=lambda arm: self.waits[arm.arm.name])
        work = [self._beside(reference, seconds) for seconds in _p50s_s(reference)]
        seen = [rtt_s for arm in few for rtt_s in self.rtts[arm.arm.name].values()]
        alike = [arm for arm in few if _rate_bps(arm) == _rate_bps(reference)]
        known = {tuple(node_rtts_ns(arm.arm.factors).values()): points[arm.arm.name] for arm in alike}
        off_ms = max(
            (abs(p.predicted_ms - p.p50_ms.value) for p in known.values() if p.predicted_ms is not None), default=None
        )
        for far_ns in FROM_BOTH_NS:
            rtts = {(0, 1): APART_NS / 1e9, (0, 2): far_ns / 1e9, (1, 2): far_ns / 1e9}
            agreed_s = _wait_s(reference, rtts, self.operation)
            agreed_s += _sending_s(reference, self.sent_bytes, agreed_s)
            yield ThirdNode(
                label=points[reference.arm.name].label,
                near_ms=APART_NS / 1e6,
                far_ms=far_ns / 1e6,
                p50_ms=_widened(mean_interval([block.cycle_s(agreed_s) * 1e3 for block in work]), off_ms)
                if (there := known.get((APART_NS, far_ns, far_ns))) is None
                else there.p50_ms,
                measured=there is not None,
                beyond=not min(seen) / _NEARLY <= far_ns / 1e9 <= max(seen) * _NEARLY,
            )

    def _point(self, arm: ReplicationArm, work: _Work) -> ClusterPoint:
        name = arm.arm.name
        rtts, wait_s, sending_s = self.rtts[name], self.waits[name], self.sending[name]
        mine = sorted(rtt * 1e3 for (low, _), rtt in rtts.items() if low == 0)
        p50_s = _p50s_s(arm)
        measured_s = median(p50_s)
        predicted_s = None
        writers = _two_writers(arm, self.apart.get(_place(arm)))
        counted = self.sent_bytes is not None or not self.large
        if wait_s and _distances(arm) != work.distances and writers is None and counted:
            predicted_s = work.commit_s(wait_s, arm.threads)
        crowded = self.large and self._others_s(arm) / (self.cpus or 1) / measured_s > CROWDED
        on_link_s = (self.sent_bytes or 0.0) * 8 / (_rate_bps(arm) or 1)
        imposed = sending_s > 0 and predicted_s is not None and on_link_s > IMPOSED * predicted_s
        whole = merge(_histograms(arm))
        return ClusterPoint(
            arm=name,
            mode=arm.mode,
            consistency=str(arm.level("consistency")),
            nodes=1 if arm.mode == ALONE else REPLICAS.of(arm.arm.factors) + 1,
            distances=_distances(arm),
            row_bytes=ROW_BYTES.of(arm.arm.factors),
            rate_bps=_rate_bps(arm),
            link=self.links.get(_rate_bps(arm), ""),
            threads=arm.threads,
            commits_per_s=arm.commits_per_s,
            p50_ms=mean_interval([seconds * 1e3 for seconds in p50_s]),
            p99_ms=value_at(whole, 0.99) / 1e6 if sum(h.count for h in _histograms(arm)) >= 100 * TAIL else None,
            nearest_ms=mine[0] if mine else None,
            second_ms=mine[:2][-1] if mine else None,
            farthest_ms=mine[-1] if mine else None,
            agreement_ms=(wait_s - sending_s) * 1e3,
            sent_bytes=self.sent_bytes if mine else None,
            sending_ms=sending_s * 1e3,
            predicted_ms=None if predicted_s is None else predicted_s * 1e3,
            error=None if predicted_s is None or crowded or imposed else predicted_s / measured_s - 1,
            crowded=crowded and predicted_s is not None,
            conflicts=_counted(arm, "conflicts") or 0,
            writers=writers,
            flow_control=_counted(arm, "wsrep_flow_control_sent"),
        )


def _place(arm: ReplicationArm) -> object:
    """Key shared by arms that differ only in their writers."""
    return (arm.threads, *(level for level in arm.curve if level[0] != WRITERS.name))


def _two_writers(arm: ReplicationArm, apart: ReplicationArm | None) -> TwoWriters | None:
    """Figures about two writers. None: only one node is written to. `apart`: the same arm, but with a row for each writer."""
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
    """p50 of the second writer. None: it committed nothing."""


def _both(arm: ReplicationArm) -> dict[int, _Both]:
    """Trials with two writers, by block."""
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


def _rate_bps(arm: ReplicationArm) -> int | None:
    return None if arm.mode == ALONE else REPLICA_RATE_BPS.given(arm.arm.factors)


def _place_of(arm: ReplicationArm) -> Place:
    return _distances(arm), _rate_bps(arm)


def _counted(arm: ReplicationArm, counter: str) -> int | None:
    """Total of a counter over all nodes and trials. Every member of Group Replication counts each conflict, so it counts once here."""
    once = counter == "conflicts" and arm.mode != "galera"
    trials = (trial.receipt.get("replication", {}).get("window", {}) for trial in arm.trials.values())
    found = [
        max(counts) if once else sum(counts)
        for window in trials
        if (counts := [int(node[counter]) for node in window.get("counted", {}).values() if counter in node])
    ]
    return sum(found) if found else None


def verdict(found: ClusterCost, form: Callable[[Estimate], str]) -> str:
    """The answer: one connection on each cluster at each distance, compared with a round trip to its farthest node."""
    points = found.points
    waits = any(point.agreement_ms for point in points)
    few = min(point.threads for point in points)
    who = "one connection" if few == 1 else f"{few} connections"
    clauses = []
    for label in dict.fromkeys(point.label for point in points if point.mode in CLUSTERS):
        mine = [p for p in points if p.label == label and p.threads == few and p.farthest_ms]
        told = ", ".join(f"{form(p.p50_ms)} ms ({p.place})" for p in mine)
        far = max(mine, key=lambda p: (p.farthest_ms or 0.0, -(p.rate_bps or 0)), default=None)
        if far is not None and far.farthest_ms:
            apart = f" (with one round trip to the farthest node each: {rate(1e3 / far.farthest_ms)})" if waits else ""
            clauses.append(
                f"{label} {told}; over {far.place} {rate_interval(far.commits_per_s)} {found.operation}s/s{apart}"
            )
    return f"The median {found.operation} of {who} takes: {'. '.join(clauses)}." if clauses else ""
