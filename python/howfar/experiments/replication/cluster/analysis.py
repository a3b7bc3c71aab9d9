"""Commits of clusters at several distances: rates and times, compared with the model of the agreement (`replication/agreement.py`).

The model takes the work on a commit, local and by the other nodes, from the same mode at its shortest distance (with only one
distance, from the arms without a replica) and adds the time of the agreement at the other distances. So the shortest distance itself
is not predicted. The nodes of a laboratory share its CPUs. Therefore the model for a single connection includes the CPU time that the
other nodes and the emulators take from it at each distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from howfar.analysis.answer import UNRESOLVED
from howfar.contract.receipt_messages import Histogram
from howfar.contract.replication_receipt import ReplicationWindow
from howfar.experiments.replication.agreement import GaleraMessages, Rtts, agreement_s, read_wait_s
from howfar.experiments.replication.analysis import CommitWait, LocalCommits
from howfar.experiments.replication.arms import ALONE, ReplicationArm, mode_name, replication_arms
from howfar.experiments.replication.cluster.texts import DISTANCE_LABELS
from howfar.experiments.replication.distances import link_name
from howfar.experiments.replication.factors import (
    CLUSTERS,
    CONSISTENCY,
    DISTANCES,
    REPLICA_RATE_BPS,
    REPLICAS,
    ROW_BYTES,
    SEMI_SYNC,
    SHORT_ROW,
    WAIT_FOR,
    WRITERS,
)
from howfar.findings import Finding, Quantity
from howfar.model.queueing import SharedCpuWork
from howfar.plan.factors import node_rtts_ns
from howfar.plan.named_links import NAMED_LINKS
from howfar.plan.workload import WORKLOADS, Workload
from howfar.services.galera import PACKET, WINDOW
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import merge, value_at
from howfar.stats.host_cpus import HostCpus
from howfar.stats.intervals import Resolution, judge_ratio, mean_interval
from howfar.stats.trials import MIN_BEYOND_QUANTILE, TrialTable, transaction_histogram
from howfar.units import format_duration_ns, format_rate_bps, parse_duration_ns

Operation = Literal["commit", "read"]


class TwoWriters(Part):
    """Clients that write on two nodes, and the commits that the cluster refused. Figures are totals of both unless noted."""

    rows: str
    """A level of `writers`."""
    commits_per_s: Estimate
    refused_per_s: Estimate
    repeated_percent: Estimate
    """Percentage of the attempts to commit that were refused and repeated."""
    second_p50_ms: Estimate | None
    """p50 of the second node's clients, over the trials in which they committed at all. None: in no trial."""
    starved: int
    """Trials in which the second node's clients committed nothing, because each attempt was refused."""
    to_own_rows: Estimate | None
    """Ratio of `commits_per_s` to that of two writers that have a row each, in the same block. None: nothing to compare with."""
    aborted: int | None
    """Transactions that nodes rolled back because a transaction of another node was certified first, over all trials. None: this
    server does not count them."""


class ClusterPoint(Part):
    """One mode at one matrix of distances, with one number of connections."""

    arm: str
    mode: str
    """A level of `replication`."""
    consistency: str
    nodes: int
    distances: str
    """A level of the factor `distances`, or the round trip if it is the same between all nodes. Empty: a single server."""
    row_bytes: int = SHORT_ROW
    """Size of the row that a commit inserts."""
    rate_bps: int | None = None
    """Rate of the links between the nodes. None: a single server."""
    link: str = ""
    """The rate of the links as text, if the run has several rates."""
    threads: int
    commits_per_s: Estimate
    p50_ms: Estimate
    p99_ms: float | None
    """p99 of all blocks together. None: fewer than ten commits lie beyond it."""
    nearest_ms: float | None
    """Unloaded round trip from the node that commits to the nearest other node. None: a single server."""
    second_ms: float | None
    """Round trip to the second nearest node, which completes a majority of five; to the only other node if there is no second."""
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
    """predicted / measured - 1. None: no prediction, `crowded`, or right by construction, because more than nine tenths of the
    predicted time are the counted bytes divided by the configured rate."""
    crowded: bool
    """Whether, for a large row, the other nodes and the emulators kept this machine's CPUs busy for more than half of a commit's time.
    The prediction then applies to nodes with machines of their own."""
    conflicts: int
    """Commits refused because they conflicted with another node's, over all trials."""
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
    def distances_label(self) -> str:
        """The distances, and the links' rate if the run has several rates."""
        return ", ".join(filter(None, (DISTANCE_LABELS.get(self.distances, self.distances), self.link)))


class ThirdNode(Part):
    """The time of a commit of one connection, for one location of the third of three nodes."""

    label: str
    near_ms: float
    """Round trip between the first two."""
    far_ms: float
    """Round trip from both to the third."""
    p50_ms: Estimate
    """The p50, measured or else predicted. The interval of a prediction includes the model's largest error in this run."""
    measured: bool
    beyond: bool
    """Whether the third node is farther, or nearer, than any node in this run."""


class ClusterCost(Part):
    operation: Operation
    """The operation of the connections, to which rates and times refer."""
    points: tuple[ClusterPoint, ...]
    third: tuple[ThirdNode, ...] = ()
    mean_error: float | None
    """Mean error of all predictions."""
    worst_error: float | None


def cluster_cost(table: TrialTable, workload: Workload | None) -> ClusterCost | None:
    """The cost of a run's clusters. None: no cluster was measured."""
    operation: Operation = "read" if workload is not None and WORKLOADS[workload.kind].reads_only else "commit"
    arms = replication_arms(table)
    if not any(arm.mode in CLUSTERS for arm in arms):
        return None
    arms_by_curve: dict[object, list[ReplicationArm]] = {}
    for arm in arms:
        nodes = REPLICAS.level_in(arm.arm.factors)
        arms_by_curve.setdefault(
            (
                arm.mode,
                CONSISTENCY.level_in(arm.arm.factors),
                WRITERS.level_in(arm.arm.factors),
                nodes,
                arm.local_levels,
            ),
            [],
        ).append(arm)
    environment = table.run.info.environment
    cpus = None if environment.on_hosts else HostCpus.from_environment(environment, "server").machine_cpus
    rates = {rate_bps for arm in arms if (rate_bps := _rate_bps(arm)) is not None}
    rate_labels: dict[int | None, str] = {bps: format_rate_bps(bps) for bps in rates} if len(rates) > 1 else {}
    own_rows_arms = {_key_without_writers(arm): arm for arm in arms if WRITERS.level_in(arm.arm.factors) == "own-rows"}
    unreplicated = {
        arm.local_levels: _ModeCurve(curve_arms, None, operation, own_rows_arms, {}, cpus)
        for curve_arms in arms_by_curve.values()
        for arm in curve_arms
        if arm.mode == ALONE
    }
    curves = [
        _ModeCurve(
            curve_arms, unreplicated.get(curve_arms[0].local_levels), operation, own_rows_arms, rate_labels, cpus
        )
        for curve_arms in arms_by_curve.values()
    ]
    points = tuple(point for curve in curves for point in curve.points())
    by_arm = {point.arm: point for point in points}
    errors = [abs(point.error) for point in points if point.error is not None]
    return ClusterCost(
        operation=operation,
        points=points,
        third=tuple(third_node for curve in curves for third_node in curve.third_node_positions(by_arm)),
        mean_error=sum(errors) / len(errors) if errors else None,
        worst_error=max(errors, default=None),
    )


def rest_rtts_s(arm: ReplicationArm) -> Rtts:
    """Unloaded round trips between the nodes in seconds: the median over trials, by pair of nodes. Empty: one is missing."""
    rtts_s: dict[tuple[int, int], float] = {}
    for low, high in node_rtts_ns(arm.arm.factors):
        name = link_name(low, high)
        link_rtts_ns = [
            float(rtt)
            for trial in arm.trials.values()
            if trial.receipt.replication is not None and (rtt := trial.receipt.replication.rtt_at_rest_ns.get(name))
        ]
        if not link_rtts_ns:
            return {}
        rtts_s[low, high] = median(link_rtts_ns) / 1e9
    return rtts_s


def _latency_histograms(arm: ReplicationArm) -> list[Histogram]:
    histograms_or_none = (
        transaction_histogram(trial.measured) for trial in arm.trials.values() if trial.measured is not None
    )
    return [histogram for histogram in histograms_or_none if histogram is not None]


def _p50s_s(arm: ReplicationArm) -> list[float]:
    return [value_at(merge([histogram]), 0.5) / 1e9 for histogram in _latency_histograms(arm)]


def _agreement_wait_s(arm: ReplicationArm, rtts_s: Rtts, operation: Operation) -> float:
    if not rtts_s:
        return 0.0
    if arm.mode in CLUSTERS:
        consistency = CONSISTENCY.level_in(arm.arm.factors)
        if operation == "read":
            return read_wait_s(arm.mode, consistency, rtts_s)
        return agreement_s(arm.mode, consistency, rtts_s)
    if operation == "read":
        return 0.0
    if arm.mode in SEMI_SYNC:
        completing_rtt_s = sorted(rtts_s.values())[WAIT_FOR.level_in(arm.arm.factors) - 1]
        return CommitWait(arm.kind, arm.mode, completing_rtt_s).wait_s(arm.threads)
    return 0.0


MIN_CROWDED_SHARE = 0.5
"""Fraction of a commit's time for which other nodes and emulators keep the CPUs busy, beyond which a point is crowded."""
MAX_SENDING_SHARE = 0.9
"""Fraction of a predicted time that may be the sending of bytes; beyond it, the prediction is right by construction."""
_OTHER_ROLES = ("replica", "replica_link")
"""Roles whose CPU time delays a single connection: the other nodes, and the links' emulators."""

DistancesAndRate = tuple[str, int | None]
"""Distances, and the links' rate."""


@dataclass(frozen=True)
class _CommitWork:
    """The work of a commit without its agreement."""

    local: LocalCommits
    single_connection: SharedCpuWork | None
    """The work of one connection. None: not measured."""
    distances: str
    """The distances at which it was measured."""

    def commit_s(self, wait_s: float, threads: int) -> float:
        """Time of a commit with an agreement that takes `wait_s`."""
        if threads == 1 and self.single_connection is not None:
            return self.single_connection.cycle_s(wait_s)
        return wait_s + self.local.time_between_waits(wait_s, threads)


def _sent_bytes(arm: ReplicationArm) -> float | None:
    """Bytes per commit that the committing node sends to the node that gets most, by its links' counters: median over trials. None:
    not counted."""
    sent_per_commit = []
    for trial in arm.trials.values():
        links = {} if trial.receipt.replication is None else trial.receipt.replication.links
        sent = [
            link.counters.to_client.wire_bytes
            for name, link in links.items()
            if "-" not in name and link.counters is not None
        ]
        load = trial.measured
        if sent and load is not None and load.transactions:
            # Commits in progress at the end of the window are completed, but counted only on the link.
            sent_per_commit.append(max(sent) / (load.warmup_transactions + load.transactions + arm.threads))
    return median(sent_per_commit) if sent_per_commit else None


def _commits(arm: ReplicationArm) -> int:
    """Commits in the windows of all trials."""
    return sum(trial.measured.transactions for trial in arm.trials.values() if trial.measured is not None)


def _other_cpu_s(arm: ReplicationArm) -> float:
    """CPU time of the other nodes and of the links' emulators, per commit."""
    loads = [trial.measured for trial in arm.trials.values() if trial.measured is not None]
    cpu_s_per_commit = [
        sum(cpu.cpu_ns for cpu in load.cpu if cpu.role in _OTHER_ROLES) / 1e9 / load.transactions
        for load in loads
        if load.transactions
    ]
    return median(cpu_s_per_commit) if cpu_s_per_commit else 0.0


def _widen(estimate: Estimate, widening_ms: float | None) -> Estimate:
    """The estimate with its interval widened by `widening_ms`, or without an interval if the model was not tested."""
    if widening_ms is None or estimate.low is None or estimate.high is None:
        return estimate.model_copy(update={"low": None, "high": None, "points": ()})
    return estimate.model_copy(
        update={"low": max(estimate.low - widening_ms, 0.0), "high": estimate.high + widening_ms}
    )


def _windows(arm: ReplicationArm) -> Iterator[ReplicationWindow]:
    """The receipts of replication of those trials that have one."""
    for trial in arm.trials.values():
        if (window := trial.receipt.replication_window) is not None:
            yield window


def _galera_messages(arm: ReplicationArm) -> GaleraMessages:
    """How Galera splits a commit into pieces, by the settings in the receipts."""
    for window in _windows(arm):
        for node in () if window.after is None else window.after.nodes:
            settings = node.settings
            if WINDOW in settings and PACKET in settings:
                return GaleraMessages(int(settings[WINDOW]), int(settings[PACKET]))
    return GaleraMessages()


def _sending_s(arm: ReplicationArm, sent_bytes: float | None, agreed_s: float) -> float:
    rate_bps = _rate_bps(arm)
    if arm.mode not in CLUSTERS or not sent_bytes or not rate_bps:
        return 0.0
    if arm.mode != "galera":
        return sent_bytes * 8 / rate_bps
    return _galera_messages(arm).sending_s(sent_bytes, rate_bps, agreed_s)


_THIRD_NODE_LINKS = ("cross-zone", "cross-zone", "region", "us-coasts")
FIRST_PAIR_RTT_NS, *THIRD_NODE_RTTS_NS = (parse_duration_ns(NAMED_LINKS[name]["rtt"]) for name in _THIRD_NODE_LINKS)
"""Round trips for which `third_node_positions` gives the time of a commit: between the first two nodes, which are in two zones of one
location, and from both of them to the third."""
_MEASURED_RANGE_FACTOR = 1.2
"""Factor by which a round trip may be outside the range of the measured ones and still count as inside it."""


class _ModeCurve:
    """The arms of one mode and consistency, over distances and numbers of connections."""

    def __init__(
        self,
        arms: Sequence[ReplicationArm],
        unreplicated: _ModeCurve | None,
        operation: Operation,
        own_rows_arms: Mapping[object, ReplicationArm],
        rate_labels: Mapping[int | None, str],
        cpus: int | None,
    ) -> None:
        """`rate_labels`: rates as text, if there are several. `cpus`: CPUs of the machine. None: each node has a machine of its
        own."""
        self.arms = [arm for arm in arms if _p50s_s(arm)]
        self.rtts_s = {arm.arm.name: rest_rtts_s(arm) for arm in self.arms}
        busiest_arm = max(
            self.arms, key=_commits, default=None
        )  # with few commits, one in progress would count too much
        self.sent_bytes = None if busiest_arm is None or operation == "read" else _sent_bytes(busiest_arm)
        agreement_waits_s = {
            arm.arm.name: _agreement_wait_s(arm, self.rtts_s[arm.arm.name], operation) for arm in self.arms
        }
        self.sending_s = {
            arm.arm.name: _sending_s(arm, self.sent_bytes, agreement_waits_s[arm.arm.name]) for arm in self.arms
        }
        self.waits_s = {name: agreed_s + self.sending_s[name] for name, agreed_s in agreement_waits_s.items()}
        self.unreplicated = unreplicated
        self.operation = operation
        self.own_rows_arms = own_rows_arms
        self.rate_labels = rate_labels
        self.cpus = cpus

    def _estimate_work(self) -> _CommitWork:
        """The work of a commit without its agreement."""
        arms_by_distances: dict[DistancesAndRate, list[ReplicationArm]] = {}
        for arm in self.arms:
            arms_by_distances.setdefault(_distances_and_rate(arm), []).append(arm)
        has_one_distance = len({distances for distances, _ in arms_by_distances}) == 1
        nearest_key, nearest_arms = min(
            arms_by_distances.items(), key=lambda item: min(self.waits_s[arm.arm.name] for arm in item[1])
        )
        if self.unreplicated is not None and (has_one_distance or self.has_large_rows) and self.arms[0].mode != ALONE:
            return self.unreplicated._estimate_work()
        commit_s = {arm.threads: max(median(_p50s_s(arm)) - self.waits_s[arm.arm.name], 1e-6) for arm in nearest_arms}
        single_connection = next(
            (self._single_connection_work(arm, median(_p50s_s(arm))) for arm in nearest_arms if arm.threads == 1), None
        )
        return _CommitWork(LocalCommits(commit_s), single_connection, nearest_key[0])

    @property
    def has_large_rows(self) -> bool:
        return ROW_BYTES.level_in(self.arms[0].arm.factors) != SHORT_ROW

    def _single_connection_work(self, arm: ReplicationArm, p50_s: float) -> SharedCpuWork:
        """The work of a commit of an arm with one connection, and that of the other nodes and of the links' emulators meanwhile."""
        return SharedCpuWork.from_measurement(p50_s, self.waits_s[arm.arm.name], self._other_cpu_s(arm), self.cpus or 1)

    def _other_cpu_s(self, arm: ReplicationArm) -> float:
        return 0.0 if self.cpus is None else _other_cpu_s(arm)

    def points(self) -> tuple[ClusterPoint, ...]:
        if not self.arms:
            return ()
        work = self._estimate_work()
        return tuple(self._make_point(arm, work) for arm in self.arms)

    def third_node_positions(self, points: Mapping[str, ClusterPoint]) -> Iterator[ThirdNode]:
        """Times of a commit for several locations of the third node, for one connection to a cluster of three with short rows and one
        writer. `points`: by arm."""
        candidates = [
            arm
            for arm in self.arms
            if arm.threads == 1 and arm.mode in CLUSTERS and len(self.rtts_s[arm.arm.name]) == 3
        ]
        if (
            not candidates
            or self.has_large_rows
            or self.operation == "read"
            or WRITERS.level_in(candidates[0].arm.factors) != "one"
        ):
            return
        reference = min(candidates, key=lambda arm: self.waits_s[arm.arm.name])
        work_by_block = [self._single_connection_work(reference, seconds) for seconds in _p50s_s(reference)]
        measured_rtts_s = [rtt_s for arm in candidates for rtt_s in self.rtts_s[arm.arm.name].values()]
        same_rate_arms = [arm for arm in candidates if _rate_bps(arm) == _rate_bps(reference)]
        measured_points = {
            tuple(node_rtts_ns(arm.arm.factors).values()): points[arm.arm.name] for arm in same_rate_arms
        }
        max_error_ms = max(
            (
                abs(point.predicted_ms - point.p50_ms.value)
                for point in measured_points.values()
                if point.predicted_ms is not None
            ),
            default=None,
        )
        for far_ns in THIRD_NODE_RTTS_NS:
            rtts = {(0, 1): FIRST_PAIR_RTT_NS / 1e9, (0, 2): far_ns / 1e9, (1, 2): far_ns / 1e9}
            agreed_s = _agreement_wait_s(reference, rtts, self.operation)
            agreed_s += _sending_s(reference, self.sent_bytes, agreed_s)
            yield ThirdNode(
                label=points[reference.arm.name].label,
                near_ms=FIRST_PAIR_RTT_NS / 1e6,
                far_ms=far_ns / 1e6,
                p50_ms=_widen(mean_interval([block.cycle_s(agreed_s) * 1e3 for block in work_by_block]), max_error_ms)
                if (measured_point := measured_points.get((FIRST_PAIR_RTT_NS, far_ns, far_ns))) is None
                else measured_point.p50_ms,
                measured=measured_point is not None,
                beyond=not min(measured_rtts_s) / _MEASURED_RANGE_FACTOR
                <= far_ns / 1e9
                <= max(measured_rtts_s) * _MEASURED_RANGE_FACTOR,
            )

    def _make_point(self, arm: ReplicationArm, work: _CommitWork) -> ClusterPoint:
        name = arm.arm.name
        rtts, wait_s, sending_s = self.rtts_s[name], self.waits_s[name], self.sending_s[name]
        rtts_ms = sorted(rtt * 1e3 for (low, _), rtt in rtts.items() if low == 0)
        p50_s = _p50s_s(arm)
        measured_s = median(p50_s)
        predicted_s = None
        writers = _two_writers(arm, self.own_rows_arms.get(_key_without_writers(arm)))
        is_countable = self.sent_bytes is not None or not self.has_large_rows
        if wait_s and _distances_text(arm) != work.distances and writers is None and is_countable:
            predicted_s = work.commit_s(wait_s, arm.threads)
        crowded = self.has_large_rows and self._other_cpu_s(arm) / (self.cpus or 1) / measured_s > MIN_CROWDED_SHARE
        on_link_s = (self.sent_bytes or 0.0) * 8 / (_rate_bps(arm) or 1)
        is_set_by_rate = sending_s > 0 and predicted_s is not None and on_link_s > MAX_SENDING_SHARE * predicted_s
        merged_histogram = merge(_latency_histograms(arm))
        return ClusterPoint(
            arm=name,
            mode=arm.mode,
            consistency=CONSISTENCY.level_in(arm.arm.factors),
            nodes=1 if arm.mode == ALONE else REPLICAS.level_in(arm.arm.factors) + 1,
            distances=_distances_text(arm),
            row_bytes=ROW_BYTES.level_in(arm.arm.factors),
            rate_bps=_rate_bps(arm),
            link=self.rate_labels.get(_rate_bps(arm), ""),
            threads=arm.threads,
            commits_per_s=arm.commits_per_s,
            p50_ms=mean_interval([seconds * 1e3 for seconds in p50_s]),
            p99_ms=value_at(merged_histogram, 0.99) / 1e6
            if sum(histogram.count for histogram in _latency_histograms(arm)) >= 100 * MIN_BEYOND_QUANTILE
            else None,
            nearest_ms=rtts_ms[0] if rtts_ms else None,
            second_ms=rtts_ms[:2][-1] if rtts_ms else None,
            farthest_ms=rtts_ms[-1] if rtts_ms else None,
            agreement_ms=(wait_s - sending_s) * 1e3,
            sent_bytes=self.sent_bytes if rtts_ms else None,
            sending_ms=sending_s * 1e3,
            predicted_ms=None if predicted_s is None else predicted_s * 1e3,
            error=None if predicted_s is None or crowded or is_set_by_rate else predicted_s / measured_s - 1,
            crowded=crowded and predicted_s is not None,
            conflicts=_counter_total(arm, "conflicts") or 0,
            writers=writers,
            flow_control=_counter_total(arm, "wsrep_flow_control_sent"),
        )


def _key_without_writers(arm: ReplicationArm) -> object:
    """Key shared by arms that differ only in their writers."""
    return (arm.threads, *(level for level in arm.curve if level[0] != WRITERS.name))


def _two_writers(arm: ReplicationArm, own_rows_arm: ReplicationArm | None) -> TwoWriters | None:
    """Figures about two writers. None: only one node is written to. `own_rows_arm`: the same arm, but with a row for each writer."""
    if WRITERS.level_in(arm.arm.factors) == "one" or not (trials_by_block := _two_writer_trials(arm)):
        return None
    own_rows_trials = _two_writer_trials(own_rows_arm) if own_rows_arm is not None and own_rows_arm is not arm else {}
    ratios = [
        sum(trials_by_block[block].commits_per_s) / sum(own_rows_trials[block].commits_per_s)
        for block in trials_by_block
        if block in own_rows_trials
    ]
    trials = list(trials_by_block.values())
    p50s = [trial.second_p50_ms for trial in trials if trial.second_p50_ms is not None and trial.commits_per_s[1]]
    return TwoWriters(
        rows=WRITERS.level_in(arm.arm.factors),
        commits_per_s=mean_interval([sum(trial.commits_per_s) for trial in trials]),
        refused_per_s=mean_interval([trial.refused_per_s for trial in trials]),
        repeated_percent=mean_interval(
            [100 * trial.refused_per_s / (trial.refused_per_s + sum(trial.commits_per_s)) for trial in trials]
        ),
        second_p50_ms=mean_interval(p50s) if p50s else None,
        starved=sum(not trial.commits_per_s[1] for trial in trials),
        to_own_rows=judge_ratio(ratios).reported if ratios else None,
        aborted=_counter_total(arm, "wsrep_local_bf_aborts"),
    )


@dataclass(frozen=True)
class _TwoWriterTrial:
    """One trial with two writers."""

    commits_per_s: tuple[float, float]
    refused_per_s: float
    second_p50_ms: float | None
    """p50 of the second writer. None: it committed nothing."""


def _two_writer_trials(arm: ReplicationArm) -> dict[int, _TwoWriterTrial]:
    """Trials with two writers, by block."""
    trials = {}
    for block, trial in arm.trials.items():
        second, first = None if trial.receipt.writers is None else trial.receipt.writers.second, trial.measured
        if second is None or first is None or not first.transactions:
            continue
        first_s, second_s = first.elapsed_ns / 1e9, second.elapsed_ns / 1e9
        trials[block] = _TwoWriterTrial(
            (first.transactions / first_s, second.transactions / second_s),
            sum(first.errors.values()) / first_s + sum(second.errors.values()) / second_s,
            None if second.p50_ns is None else second.p50_ns / 1e6,
        )
    return trials


def _distances_text(arm: ReplicationArm) -> str:
    if arm.mode == ALONE:
        return ""
    return (
        DISTANCES.label(DISTANCES.level_in(arm.arm.factors))
        if arm.replica_rtt_ns is None
        else format_duration_ns(arm.replica_rtt_ns)
    )


def _rate_bps(arm: ReplicationArm) -> int | None:
    return None if arm.mode == ALONE else REPLICA_RATE_BPS.level_or_none(arm.arm.factors)


def _distances_and_rate(arm: ReplicationArm) -> DistancesAndRate:
    return _distances_text(arm), _rate_bps(arm)


def _counter_total(arm: ReplicationArm, counter: str) -> int | None:
    """Total of a counter over all nodes and trials. Every member of Group Replication counts each conflict, so for conflicts only the
    largest count of a trial is used."""
    counted_by_every_node = counter == "conflicts" and arm.mode != "galera"
    totals = [
        max(counts) if counted_by_every_node else sum(counts)
        for window in _windows(arm)
        if (counts := [node[counter] for node in (window.counted or {}).values() if counter in node])
    ]
    return sum(totals) if totals else None


def conclude(cost: ClusterCost, resolve: Callable[[str, Estimate], Resolution]) -> tuple[Finding, ...]:
    """The answer: what writing to one row from two nodes costs; else the time of an operation over the farthest distance of each
    cluster, then over nearer ones. `resolve`: what the ratio of an arm shows."""
    return _writers_findings(cost, resolve) or _time_findings(cost)


def explain(cost: ClusterCost) -> tuple[Finding, ...]:
    """The unloaded round trips between the nodes of the answer, where its operation waits for other nodes. Empty if the answer is
    about two writers of one row: their commits wait for each other."""
    if any(point.writers is not None and point.writers.to_own_rows for point in cost.points):
        return ()
    point = next(iter(_by_reach(cost)), None)
    if point is None or not point.agreement_ms or point.nearest_ms is None or point.farthest_ms is None:
        return ()
    parameters: dict[str, str | int | float] = {"operation": cost.operation}
    parameters |= {"nearest_ms": point.nearest_ms, "farthest_ms": point.farthest_ms}
    return (Finding(id="round-trips", subject=point.distances_label, parameters=parameters),)


def _writers_findings(cost: ClusterCost, resolve: Callable[[str, Estimate], Resolution]) -> tuple[Finding, ...]:
    findings = []
    for point in cost.points:
        writers = point.writers
        if writers is None or (ratio := writers.to_own_rows) is None:
            continue
        verdict, text = resolve(point.arm, ratio), {"baseline": "two with a row each"}
        name, subject = "same-row", mode_name(point.mode)
        if not verdict.is_difference:
            name, subject = UNRESOLVED, "two writers of the same row"
        compared = {"metric": Quantity.THROUGHPUT, "estimate": ratio, "verdict": verdict}
        findings.append(Finding(id=name, subject=subject, **compared, parameters=text))
        findings.append(Finding(id="refused", parameters={"refused": writers.repeated_percent.value / 100}))
        if writers.starved:
            counts = {"starved": writers.starved, "trials": writers.commits_per_s.n}
            findings.append(Finding(id="starved", parameters=counts))
    return tuple(findings)


def _time_findings(cost: ClusterCost) -> tuple[Finding, ...]:
    points, findings = _by_reach(cost), []
    alone_ms = {point.row_bytes: point.p50_ms.value for point in _of_fewest_connections(cost) if point.mode == ALONE}
    for point in points:
        name, distances = "takes", point.distances_label
        parameters: dict[str, str | int | float] = {"operation": cost.operation, "distances": distances}
        if distances != points[0].distances_label:
            name = "elsewhere"
        elif point.row_bytes in alone_ms:
            name, parameters = "slowed", {**parameters, "alone_ms": alone_ms[point.row_bytes]}
        findings.append(
            Finding(id=name, subject=point.label, metric=Quantity.P50, estimate=point.p50_ms, parameters=parameters)
        )
    return tuple(findings)


def _of_fewest_connections(cost: ClusterCost) -> list[ClusterPoint]:
    """Points with the fewest connections and one writer."""
    threads = min((point.threads for point in cost.points), default=1)
    return [point for point in cost.points if point.threads == threads and point.writers is None]


def _by_reach(cost: ClusterCost) -> list[ClusterPoint]:
    """Points of clusters in the order of the answer: each cluster at its farthest distance, then at nearer ones."""
    clustered = (point for point in _of_fewest_connections(cost) if point.mode in CLUSTERS and point.farthest_ms)
    points = sorted(clustered, key=_reach)
    farthest = {point.label: point for point in points}
    nearer = [point for point in reversed(points) if point is not farthest[point.label]]
    return [*farthest.values(), *nearer]


def _reach(point: ClusterPoint) -> tuple[float, int]:
    """Sorts the farthest node last, and of equal distances the slowest link."""
    return point.farthest_ms or 0.0, -(point.rate_bps or 0)
