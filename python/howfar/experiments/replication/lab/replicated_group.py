"""A primary with its replicas under a load. The servers are started for each trial, and verified before and after the load; the links
between them stay open from trial to trial.

The servers' replication is in `replica_set.py`, faults are in `experiments/replication/fault/`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import cast

from howfar.contract.environment import ReplicationEnvironment
from howfar.contract.messages import LinkStats, Observed, RttResult
from howfar.contract.receipt import (
    MEAN_MAX_SHARE,
    LatenessLimits,
    LinkCalibration,
    LinkReceipt,
    ReplicationReceipt,
    TrialReceipt,
)
from howfar.contract.replication_receipt import ReplicationWindow, Snapshot
from howfar.contract.violation import Violation, violation
from howfar.errors import LabError, NotAsConfigured
from howfar.experiments.replication.agreement import agreement_s, read_wait_s
from howfar.experiments.replication.distances import pairs
from howfar.experiments.replication.factors import (
    CONSISTENCY,
    DURABILITY,
    FAULT,
    REPLICA_COMPRESSION,
    REPLICA_RATE_BPS,
    REPLICA_TLS,
    REPLICAS,
    REPLICATION,
    SEMI_SYNC,
    SYNCHRONOUS_COMMIT_OFF,
    WAIT_FOR,
    WRITERS,
)
from howfar.experiments.replication.lab import (
    Durability,
    Mode,
    ReplicaSet,
    ReplicaSetContext,
    ReplicationSpec,
    WaitPoint,
    open_replica_set,
    open_replication_links,
)
from howfar.experiments.replication.lab.links import FOREVER_MS, Compression, EmulatedReplicationLink
from howfar.experiments.replication.lab.proof import latency_violation
from howfar.experiments.replication.lab.watch import CommitWatch, LagSample, LagWatch
from howfar.experiments.replication.records import LagRecord
from howfar.lab.link import LinkSpec
from howfar.lab.link.receipt import RUN_LIMITS, limits_for_trial
from howfar.lab.request import ReplicasSpec
from howfar.lab.server_group import ServerGroup
from howfar.lab.servers import CertificatePaths, Tables
from howfar.lab.servers.program import Program
from howfar.plan.factor import Level
from howfar.plan.factors import node_rtts_ns
from howfar.plan.sessions import SessionSpec
from howfar.store.records import Window
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import CollectedReceipt, LoadFacts, WindowWatch

DEFAULT_ACK_TIMEOUT_MS = 10_000
"""Time after which a semi-synchronous primary continues without its replica: the default of MySQL and MariaDB."""
ASYNCHRONOUS_LIMITS = LatenessLimits(strict_rtt=False, p999_ns=20_000_000, p999_share=0.5, mean_ns=None)
"""Bounds for the link of an asynchronous replica: late packets delay no client, they only add to the lag."""
HANG_TIMEOUT_S, _HANG_TIMEOUT_RTTS = 5.0, 20
"""Commits hang if none is acknowledged for this many seconds plus this many RTTs."""


def is_replicated(factors: Mapping[str, Level]) -> bool:
    return REPLICATION.level_in(factors) != "off"


def replication_spec(factors: Mapping[str, Level]) -> ReplicationSpec:
    """The replication that a cell's levels request; a factor that the cell does not name has its implied level."""
    mode, compression = REPLICATION.level_in(factors), REPLICA_COMPRESSION.level_in(factors)
    return ReplicationSpec(
        mode="semi_sync" if mode in SEMI_SYNC else "async" if mode == SYNCHRONOUS_COMMIT_OFF else cast(Mode, mode),
        replicas=0 if mode == "none" else REPLICAS.level_in(factors),
        wait_point=cast(WaitPoint, SEMI_SYNC.get(mode, "AFTER_SYNC")),
        wait_for=WAIT_FOR.level_in(factors),
        timeout_ms=DEFAULT_ACK_TIMEOUT_MS if FAULT.level_in(factors) == "replica-leaves" else FOREVER_MS,
        durability=cast(Durability, DURABILITY.level_in(factors)),
        flushes=mode != SYNCHRONOUS_COMMIT_OFF,
        tls=REPLICA_TLS.level_in(factors) == "on",
        compression=None if compression == "off" else cast(Compression, compression),
        consistency=CONSISTENCY.level_in(factors),
        multi_writer=WRITERS.level_in(factors) != "one",
    )


def node_links(factors: Mapping[str, Level]) -> dict[tuple[int, int], LinkSpec]:
    """The links between the nodes of a cell, the primary being node 0; empty without replicas."""
    return {
        nodes: LinkSpec(rtt_ns, REPLICA_RATE_BPS.level_in(factors)) for nodes, rtt_ns in node_rtts_ns(factors).items()
    }


class Replication:
    """The replicas' hosts and links, which all trials with replication share. `stack` closes them."""

    def __init__(
        self, context: ReplicaSetContext, program: Program, tables: Tables, spec: ReplicasSpec, stack: ExitStack
    ) -> None:
        self._context = context
        self._program = program
        self._tables = tables
        self._spec = spec
        self._stack = stack.enter_context(ExitStack())
        self.links: tuple[EmulatedReplicationLink, ...] = ()
        self._open_links({})

    def _open_links(self, calibrations: Mapping[str, Mapping[LinkSpec, LinkCalibration]]) -> None:
        """Replace the links by new ones, which start from the `calibrations` of the old ones."""
        self._stack.close()
        links = open_replication_links(
            self._context, self._spec.max_replicas, self._spec.link, calibrations, mesh=self._spec.mesh
        )
        self.links = self._stack.enter_context(links)

    def begin_batch(self) -> None:
        """Start a batch: each link is calibrated again when it is next used."""
        for link in self.links:
            link.emulated.begin_batch()

    def environment(self) -> ReplicationEnvironment:
        return ReplicationEnvironment(
            replica_cpus=list(self._context.replica_cpus),
            links={link.name: next(iter(link.emulated.calibrations.values())) for link in self.links},
        )

    @contextmanager
    def open_group(
        self, factors: Mapping[str, Level], session: SessionSpec, setup_sql: tuple[str, ...]
    ) -> Iterator[ReplicatedGroup]:
        """Start a replica set as a cell requests it, and verify it. Raises LabError, PlanError."""
        spec = replication_spec(factors)
        links = self._shape_links(factors)
        tables = Tables(self._tables.count, self._tables.size, (session.content,))
        encrypted = session.tls is not None
        with (
            open_replica_set(self._context, links, self._program, tables, spec, encrypted=encrypted) as replica_set,
            ExitStack() as stack,
        ):
            yield prepare_group(replica_set, replica_set.certificates if encrypted else None, factors, setup_sql, stack)

    def _shape_links(self, factors: Mapping[str, Level]) -> tuple[EmulatedReplicationLink, ...]:
        """Configure the links that the cell uses, with the settings that it requests, and return them. If an emulator died in the
        previous trial, all links are replaced."""
        specs = node_links(factors)
        if specs and not all(link.emulated.alive() for link in self.links):
            self._open_links({link.name: link.emulated.calibrations for link in self.links})
        used_links = tuple(link for link in self.links if link.nodes in specs)
        for link in used_links:
            link.shape(specs[link.nodes])
        return used_links


def prepare_group(
    replica_set: ReplicaSet,
    certificates: CertificatePaths | None,
    factors: Mapping[str, Level],
    setup_sql: tuple[str, ...],
    stack: ExitStack,
) -> ReplicatedGroup:
    """The group of a verified replica set, after all its members have applied the statements `setup_sql`. Raises LabError."""
    if setup_sql:
        replica_set.primary.write(*setup_sql, timeout_s=replica_set.timeout_s)
    for replica in replica_set.replicas:
        replica_set.wait_until_caught_up(replica)
    watches_commits = FAULT.level_in(factors) == "none"
    group = ReplicatedGroup(replica_set, certificates, watches_commits=watches_commits)
    stack.callback(group.finish)
    return group


class ReplicatedGroup(ServerGroup):
    """A primary with its replicas. Created by `prepare_group`."""

    replica_set: ReplicaSet

    def __init__(
        self, replica_set: ReplicaSet, certificates: CertificatePaths | None, *, watches_commits: bool
    ) -> None:
        """`watches_commits`: whether a hanging commit ends the load; False for tests of a fault."""
        super().__init__(replica_set.primary.server, replica_set.primary.server.password, certificates)
        self.replica_set = replica_set
        self.other_servers = len(replica_set.replicas)
        self._watches_commits = watches_commits
        self._rtts_at_rest: tuple[RttResult, ...] = ()
        """RTT of each link before the load."""
        self._snapshot_before: Snapshot | None = None
        self._commits: CommitWatch | None = None
        self._lag: LagWatch | None = None
        self._link_stats: tuple[LinkStats | None, ...] = ()

    def observed_processes(self) -> tuple[Observed, ...]:
        replicas = [Observed(role="replica", pid=replica.server.pid) for replica in self.replica_set.replicas]
        emulators = (link.pid() for link in self.replica_set.links)
        return (*replicas, *(Observed(role="replica_link", pid=pid) for pid in emulators if pid is not None))

    def begin(self) -> None:
        self._rtts_at_rest = tuple(link.prepare_load() for link in self.replica_set.links)
        links_with_rtts = zip(self.replica_set.links, self._rtts_at_rest, strict=True)
        self.replica_set.facts.rtt_at_rest_ns = {link.name: rtt.p50_ns for link, rtt in links_with_rtts}
        self._snapshot_before = self.replica_set.snapshot()
        if self._watches_commits:
            rtt_s = max((link.rtt_ns for link in self.replica_set.links), default=0) / 1e9
            self._commits = CommitWatch(self.replica_set, HANG_TIMEOUT_S + _HANG_TIMEOUT_RTTS * rtt_s)

    def watch(self, window: WindowWatch) -> WindowWatch:
        """Sample the replicas' lag too, in the window only. If commits wait for a replica, no heartbeat is written: its commits would
        share waits and group commits with the measured commits."""
        if not self.replica_set.replicas:
            return window
        self._lag = LagWatch(self.replica_set, with_heartbeat=not self.replica_set.spec.acknowledgements_needed)
        return _WindowWatchWithLag(window, self._lag, time.monotonic_ns())

    def link_violations(self) -> tuple[Violation, ...]:
        """Deviations of the links from the request, by their unloaded RTT and their current counters."""
        links = self._link_receipts([link.counters() for link in self.replica_set.links])
        return ReplicationReceipt(links=links).link_violations(RUN_LIMITS)

    def _link_receipts(self, link_stats: Sequence[LinkStats | None]) -> dict[str, LinkReceipt]:
        return {
            link.name: link.build_receipt(rtt, stats)
            for link, rtt, stats in zip(self.replica_set.links, self._rtts_at_rest, link_stats, strict=True)
        }

    def finish(self) -> None:
        """End the threads that watch the servers."""
        if self._commits is not None:
            self._commits.finish()
        if self._lag is not None:
            self._lag.finish()

    def precheck(self) -> CollectedReceipt:
        links = self.replica_set.links
        receipts = self._link_receipts([link.counters() if link.alive() else None for link in links])
        violations = (each.at(name) for name, link in receipts.items() for each in link.rtt_violations(RUN_LIMITS))
        return CollectedReceipt(TrialReceipt(replication=ReplicationReceipt(links=receipts)), tuple(violations))

    def collect_receipt(self, load: LoadFacts) -> CollectedReceipt:
        """Check that replication was as requested, by both ends' counters and the duration of commits. Raises LabError."""
        self.finish()
        if self._commits is not None and self._commits.kill_reason is not None:
            error = NotAsConfigured if self._commits.hung else LabError
            raise error(
                self._commits.kill_reason, "See the receipt of the replica's link for the traffic that crossed it."
            )
        assert self._snapshot_before is not None, "begin() was not called"
        replica_set, after = self.replica_set, self.replica_set.snapshot()
        rtts_at_rest = self._rtts_at_rest[: len(replica_set.replicas)]
        window = ReplicationWindow.between(self._snapshot_before, after)
        violations = replication_violations(replica_set.spec, window, load, rtts_at_rest)
        self._link_stats = tuple(link.counters() for link in replica_set.links)
        wait_ns = load.commit_p50_ns or load.round_trip_ns
        reads_wait = bool(rtts_at_rest) and wait_ns >= min(rtt.min_ns for rtt in rtts_at_rest)
        limits = (
            limits_for_trial(wait_ns)
            if replica_set.spec.acknowledgements_needed and (load.commits or reads_wait)
            else ASYNCHRONOUS_LIMITS
        )
        if replica_set.spec.cluster and limits.mean_ns is not None:
            node_pairs = pairs(replica_set.spec.replicas + 1)  # in the order of the links
            rtts_ns = {nodes: float(link.rtt_ns) for nodes, link in zip(node_pairs, replica_set.links, strict=True)}
            lateness_ns = {
                nodes: _mean_lateness_ns(stats) for nodes, stats in zip(node_pairs, self._link_stats, strict=True)
            }
            violations += agreement_violations(replica_set.spec, rtts_ns, lateness_ns, wait_ns, reads=not load.commits)
            limits = replace(limits, mean_ns=None)
        receipts = self._link_receipts(self._link_stats)
        receipt = replica_set.facts.model_copy()
        receipt.rtt_at_rest_ns = {name: link.rest_rtt_ns for name, link in receipts.items()}
        receipt.window = window
        receipt.links = receipts
        return CollectedReceipt(TrialReceipt(replication=receipt), (*violations, *receipt.link_violations(limits)))

    def peer_traffic(self) -> ServerMetrics:
        all_stats = [stats for stats in self._link_stats if stats is not None]
        return ServerMetrics(
            bytes_received=sum(stats.to_server.wire_bytes for stats in all_stats),
            bytes_sent=sum(stats.to_client.wire_bytes for stats in all_stats),
        )


def replication_violations(
    spec: ReplicationSpec, window: ReplicationWindow, load: LoadFacts, rtts_at_rest: Sequence[RttResult]
) -> list[Violation]:
    """Violations of the requested replication, by both ends' counters and the duration of commits. `rtts_at_rest`: the RTT of each
    link."""
    violations = [*window.violations(spec, load.commits)]
    if spec.acknowledgements_needed and load.commit_p50_ns is not None:
        # A commit that needs n acknowledgements cannot end before a round trip to the n-th nearest replica.
        rtt_ns = sorted(rtt.min_ns for rtt in rtts_at_rest)[spec.acknowledgements_needed - 1]
        too_fast = latency_violation(spec, load.commit_p50_ns, rtt_ns)
        violations += [] if too_fast is None else [too_fast]
    return violations


def agreement_violations(
    spec: ReplicationSpec,
    rtts_ns: Mapping[tuple[int, int], float],
    lateness_ns: Mapping[tuple[int, int], float],
    wait_ns: float,
    *,
    reads: bool,
) -> list[Violation]:
    """Violation if the links' mean lateness changed how long a cluster's commits (or `reads`) waited.

    With a single leader, the model of the agreement predicts the change, so links that no commit waits for do not count. Otherwise a
    commit waits for the slowest of several paths. The model uses mean times and may underestimate that change, so this uses the sum of
    the three largest mean latenesses as an upper bound. `wait_ns`: duration of one commit or read; `rtts_ns` and
    `lateness_ns`: RTT and mean lateness of a round trip, by pair of nodes.
    """
    # Despite their names, both functions return their result in the unit of the given RTTs: here ns.
    predict_wait = read_wait_s if reads else agreement_s
    expected_ns = predict_wait(spec.mode, spec.consistency, rtts_ns)
    late_rtts_ns = {nodes: rtt_ns + lateness_ns[nodes] for nodes, rtt_ns in rtts_ns.items()}
    change_ns = predict_wait(spec.mode, spec.consistency, late_rtts_ns) - expected_ns
    if expected_ns and spec.mode != "group-leader":
        descending_ns = sorted((max(ns, 0.0) for ns in lateness_ns.values()), reverse=True)
        change_ns = max(change_ns, sum(descending_ns[:_LINKS_PER_PATH]))
    allowed_ns = MEAN_MAX_SHARE * wait_ns
    if abs(change_ns) <= allowed_ns:
        return []
    words = {"operation": "read" if reads else "commit", "change": "longer" if change_ns > 0 else "shorter"}
    times = {"change_ns": abs(change_ns), "allowed_ns": allowed_ns, "allowed_share": MEAN_MAX_SHARE}
    return [violation("links-mean-lateness", **words, **times)]


_LINKS_PER_PATH = 3
"""Maximum number of links that a commit crosses in sequence."""


def _mean_lateness_ns(stats: LinkStats | None) -> float:
    """Mean lateness of a round trip; 0 if no packet crossed the link."""
    means = [] if stats is None else [stats.to_server.lateness_mean_ns, stats.to_client.lateness_mean_ns]
    return sum(mean for mean in means if mean is not None)


@dataclass
class _WindowWatchWithLag:
    """A watch that adds the replicas' lag to the window of another watch."""

    window: WindowWatch
    lag: LagWatch
    start_ns: int

    def finish(self) -> Window | None:
        record, samples = self.window.finish(), self.lag.finish()
        if record is None:
            return None
        return record.model_copy(update={"lag": lag_records(samples, self.start_ns, record.length_ns)})


def lag_records(samples: tuple[LagSample, ...], start_ns: int, length_ns: int) -> tuple[LagRecord, ...]:
    """The lag samples within the window, with times since its beginning."""
    return tuple(
        LagRecord(
            at_ns=sample.at_ns - start_ns,
            replica=sample.replica,
            behind=sample.behind,
            heartbeat_ns=sample.heartbeat_ns,
        )
        for sample in samples
        if 0 <= sample.at_ns - start_ns <= length_ns
    )
