"""The parts of a receipt about replication, what was requested of it, and their checks. No I/O.

If semi-synchronous replication fell back to asynchronous for even one commit, the trial is void.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from howfar.contract.receipt_part import ReceiptPart
from howfar.contract.violation import Violation, violation


class RequestedReplication(ReceiptPart):
    """The requested replication. With mode `none` the primary has no replica but still writes its binary log, so that the modes differ
    only in the replicas."""

    model_config = ConfigDict(frozen=True)

    mode: str = "semi_sync"
    replicas: int = 1
    wait_point: str = "AFTER_SYNC"
    wait_for: int = 1
    """Number of replicas whose acknowledgement a commit needs."""
    timeout_ms: int = 3_600_000
    """Time after which a semi-synchronous commit continues without acknowledgement."""
    durability: str = "strict"
    flushes: bool = True
    """Whether a commit waits until the primary's own log is flushed; it always does if a replica must acknowledge."""
    tls: bool = False
    compression: str | None = None
    consistency: str = "eventual"
    """Level of the factor `consistency`, for clusters."""
    multi_writer: bool = False
    """Whether every member of a group accepts writes. Galera's nodes always do."""

    @property
    def semi_sync(self) -> bool:
        return self.mode == "semi_sync"

    @property
    def cluster(self) -> bool:
        return self.mode not in ("none", "async", "semi_sync")


class ChannelFacts(ReceiptPart):
    """Facts about the connections between primary and replicas, collected while the replica set is proved."""

    tls_handshakes: int = 0
    """TLS handshakes of replicas with the primary."""
    row_bytes: int = 0
    """Size of the test row. Any compression reduces it to about a hundredth; encryption does not reduce it."""
    wire_bytes: dict[str, int] = Field(default_factory=dict)
    """Bytes that the primary's host sent to each replica for the test row, as the kernel counts them."""

    def violations(self, requested: RequestedReplication) -> tuple[Violation, ...]:
        """Violations if TLS or compression of the channel is not as requested."""
        violations = []
        if requested.tls and self.tls_handshakes < requested.replicas:
            counts = {"encrypted": self.tls_handshakes, "replicas": requested.replicas}
            violations.append(violation("channel-without-tls", **counts))
        if not requested.tls and self.tls_handshakes:
            violations.append(violation("unrequested-channel-tls", encrypted=self.tls_handshakes))
        max_compressed_bytes = self.row_bytes // 4  # of the row with headers, acknowledgements and heartbeats
        for name, sent in self.wire_bytes.items():
            sizes = {"row_bytes": self.row_bytes, "sent_bytes": sent}
            if requested.compression is not None and sent > max_compressed_bytes:
                violations.append(violation("channel-not-compressed", replica=name, **sizes))
            if requested.compression is None and sent < self.row_bytes:
                violations.append(violation("channel-compressed", replica=name, **sizes))
        return tuple(violations)


class StandbyState(ReceiptPart):
    """A primary's report of one replica: its row of PostgreSQL's `pg_stat_replication`."""

    state: str | None = None
    sent_lsn: str | None = None
    flush_lsn: str | None = None
    write_lsn: str | None = None
    replay_lsn: str | None = None
    sync_state: str | None = None
    client_addr: str | None = None
    application_name: str | None = None


class ReplicaState(ReceiptPart):
    """A replica's report of its own state."""

    receiving: str
    """`Yes`, `No`, `Connecting`."""
    applying: str
    errors: tuple[str, ...]
    received: str
    """Position up to which it has received transactions completely, applied or not."""


class ReplicaFacts(ReceiptPart):
    name: str
    state: ReplicaState
    semi_sync: bool | None
    """Whether it acknowledges; None if it cannot."""
    applied: str
    """Position up to which it has applied."""
    behind: int
    """Number of transactions that the primary had committed and this replica had not applied; the primary was read first."""
    errant: str = Field("", alias="strangers")
    """Errant transactions: in the replica's history but not in the primary's."""

    def violations(self, requested: RequestedReplication, when: str) -> list[Violation]:
        """Violations `when`: before or after the window."""
        violations = []
        if (self.state.receiving, self.state.applying) != ("Yes", "Yes"):
            violations.append(self._not_replicating(when))
        violations += self._errant_violations(when)
        if requested.semi_sync and self.semi_sync is not True:
            violations.append(violation("replica-did-not-acknowledge", self.name, moment=when))
        if not requested.semi_sync and self.semi_sync:
            violations.append(violation("unrequested-acknowledgement", self.name, moment=when))
        return violations

    def violations_after_absence(self) -> list[Violation]:
        """Violations that its absence in the window does not explain."""
        violations = []
        if self.state.applying != "Yes" or self.state.receiving == "No":
            violations.append(self._not_replicating("after"))
        return violations + self._errant_violations("after")

    def _not_replicating(self, when: str) -> Violation:
        threads = {"moment": when, "receiving": self.state.receiving, "applying": self.state.applying}
        if self.state.errors:
            return violation("replica-failed", self.name, **threads, errors="; ".join(self.state.errors))
        return violation("replica-not-replicating", self.name, **threads)

    def _errant_violations(self, when: str) -> list[Violation]:
        if not self.errant:
            return []
        return [violation("errant-transactions", self.name, transactions=self.errant, moment=when)]


class PrimaryState(ReceiptPart):
    """A primary's report about acknowledgements. Counters are totals since it started."""

    enabled: bool
    status: bool
    """Whether it is semi-synchronous now; False if it has fallen back to asynchronous."""
    clients: int
    """Semi-synchronous replicas that are connected."""
    timeout_ms: int | None
    """None if it waits forever."""
    wait_point: str
    wait_for: int
    yes_tx: int | None
    """Commits with acknowledgement; None if it does not count them.

    Beware: MySQL under AFTER_SYNC counts groups of commits; MariaDB, and MySQL under AFTER_COMMIT, count each commit."""
    no_tx: int
    """Commits without acknowledgement, in the unit of `yes_tx`: MySQL 9.7 counted 17,171 for 19,838 commits of 16 connections under
    AFTER_SYNC, but exactly 15,277 for 15,277 commits of one connection."""
    no_times: int
    """Fallbacks to asynchronous replication; turning semi-synchronous replication off counts as one."""
    tx_waits: int
    tx_wait_us: int
    waiting: int
    """Sessions that wait for an acknowledgement now."""
    acknowledged_bytes: int | None = None
    """Bytes of its log that have been acknowledged by as many replicas as a commit needs. None if not reported."""
    log_bytes: int | None = None
    """Bytes of its log until now; None if not reported."""
    settings: dict[str, str] | None = None
    """Further settings as it reports them."""
    standbys: tuple[StandbyState, ...] = ()
    """Its report of each replica."""
    mismatches: tuple[str, ...] = Field((), alias="unlike")
    """Settings that are not as requested."""

    @property
    def acknowledged(self) -> int:
        """Acknowledgements in the server's own unit: bytes of log, commits or groups of commits."""
        return (self.acknowledged_bytes or 0) if self.yes_tx is None else self.yes_tx

    @property
    def progress(self) -> tuple[int, int, int]:
        """A value that changes with each acknowledgement, and with each commit that continues without one."""
        return (self.acknowledged, self.no_tx, self.tx_waits)

    def violations(self, requested: RequestedReplication, when: str) -> list[Violation]:
        """Violations of semi-synchronous replication `when`: before or after the window."""
        violations = []
        if not (self.enabled and self.status):
            violations.append(violation("fell-back-silently", moment=when))
        if self.clients < requested.replicas:
            counts = {"connected": self.clients, "requested": requested.replicas}
            violations.append(violation("semi-sync-replicas", **counts, moment=when))
        if self.wait_point != requested.wait_point:
            points = {"actual": self.wait_point, "expected": requested.wait_point}
            violations.append(violation("wait-point", **points, moment=when))
        if self.timeout_ms not in (None, requested.timeout_ms):
            timeouts = {"actual_ms": self.timeout_ms, "expected_ms": requested.timeout_ms}
            violations.append(violation("acknowledgement-timeout", **timeouts, moment=when))
        if self.wait_for != requested.wait_for:
            counts = {"actual": self.wait_for, "expected": requested.wait_for}
            violations.append(violation("wait-count", **counts, moment=when))
        return violations


class NodeFacts(ReceiptPart):
    """One node's own report of its cluster."""

    name: str
    role: str
    """`PRIMARY`, `SECONDARY`; for Galera, the status of the component that the node is in."""
    settings: dict[str, str]
    """Settings that determine how a commit is agreed on, and the protocol's version."""
    counters: dict[str, int]
    """Totals since it started. `ordered`: its own transactions that the group has ordered; `conflicts`: its own transactions that
    were refused because of another node's; the others have the server's names."""
    mismatches: tuple[str, ...] = Field((), alias="unlike")
    """Differences from what was requested."""


class Snapshot(ReceiptPart):
    """The primary and all replicas at one moment."""

    position: str
    """Position of the primary."""
    primary: PrimaryState | None
    """None if it does not support semi-synchronous replication."""
    replicas: tuple[ReplicaFacts, ...]
    sent: dict[str, int] = Field(default_factory=dict)
    """By replica: bytes that the primary's host has sent to it, as the kernel counts them."""
    broken: tuple[str, ...] = ()
    """Failures that the servers do not report: dead links, full disks."""
    nodes: tuple[NodeFacts, ...] = ()
    """All nodes of a cluster, the primary first."""

    def violations(self, requested: RequestedReplication, when: str) -> list[Violation]:
        """Violations `when`: before or after the window."""
        violations = []
        if len(self.replicas) != requested.replicas:
            violations.append(violation("replica-count", replicas=len(self.replicas), moment=when))
        violations += [violation("replication-broken", failure=failure, moment=when) for failure in self.broken]
        for replica in self.replicas:
            violations += replica.violations(requested, when)
        for node in self.nodes:
            violations += [
                violation("node-setting", node.name, difference=difference, moment=when)
                for difference in node.mismatches
            ]
        primary = self.primary
        if primary is not None:
            violations += [
                violation("primary-setting", difference=difference, moment=when) for difference in primary.mismatches
            ]
        if requested.semi_sync:
            if primary is None:
                return [*violations, violation("primary-without-semi-sync", moment=when)]
            return violations + primary.violations(requested, when)
        if primary is not None and primary.enabled:
            violations.append(violation("unrequested-semi-sync", moment=when))
        return violations

    def violations_after_absence(self) -> tuple[Violation, ...]:
        """Violations after a window in which replicas left and returned. Consequences of their absence are not violations: a replica
        may still be connecting, or not be semi-synchronous yet."""
        violations = [violation("replication-broken", failure=failure, moment="after") for failure in self.broken]
        for replica in self.replicas:
            violations += replica.violations_after_absence()
        return tuple(violations)

    def counter_growth(self, before: Snapshot) -> dict[str, dict[str, int]]:
        """Growth of each node's counters since the snapshot `before`."""
        earlier = {node.name: node.counters for node in before.nodes}
        return {
            node.name: {name: count - earlier[node.name].get(name, 0) for name, count in node.counters.items()}
            for node in self.nodes
            if node.name in earlier
        }


class ReplicationWindow(ReceiptPart):
    """Replication before the load and after it."""

    before: Snapshot | None = None
    after: Snapshot | None = None
    mean_wait_us: float | None = None
    """Mean time that a commit of the window waited for its acknowledgement; None if not counted."""
    counted: dict[str, dict[str, int]] | None = None
    """Growth of each node's counters, for clusters."""

    @classmethod
    def between(cls, before: Snapshot, after: Snapshot) -> ReplicationWindow:
        """The window between two snapshots, with the mean wait of commits, computed from the counters."""
        window = cls(before=before, after=after, mean_wait_us=None)
        if after.nodes:
            window.counted = after.counter_growth(before)
        if before.primary is not None and after.primary is not None:
            waits = after.primary.tx_waits - before.primary.tx_waits
            if waits > 0:
                window.mean_wait_us = (after.primary.tx_wait_us - before.primary.tx_wait_us) / waits
        return window

    def violations(self, requested: RequestedReplication, commits: int | None = None) -> tuple[Violation, ...]:
        """Violations; empty if replication was as requested. `commits`: number of the load's commits that returned in the window;
        None if unknown."""
        before, after = self.before, self.after
        assert before is not None and after is not None, "a window is checked when it has ended"
        violations = [*before.violations(requested, "before"), *after.violations(requested, "after")]
        if requested.cluster:
            violations += _cluster_violations(after.counter_growth(before), commits)
        if not requested.semi_sync or before.primary is None or after.primary is None:
            return tuple(violations)
        first, last = before.primary, after.primary
        violations += _counter_violations(requested, first, last, commits)
        if first.log_bytes is not None and last.acknowledged_bytes is not None and not requested.compression:
            violations += _log_bytes_violations(requested, last.acknowledged_bytes - first.log_bytes, before, after)
        return tuple(violations)


def _counter_violations(
    requested: RequestedReplication, first: PrimaryState, last: PrimaryState, commits: int | None
) -> list[Violation]:
    """Violations by a semi-synchronous primary's counters at both ends of the window."""
    violations = []
    if last.no_tx < first.no_tx or last.no_times < first.no_times or last.acknowledged < first.acknowledged:
        violations.append(violation("counters-went-back"))
    if last.no_tx > first.no_tx:
        count = last.no_tx - first.no_tx
        violations.append(
            violation("commit-groups-not-acknowledged", groups=count)
            if requested.wait_point == "AFTER_SYNC"
            else violation("commits-not-acknowledged", commits=count)
        )
    if last.no_times > first.no_times:
        violations.append(violation("fell-back", fallbacks=last.no_times - first.no_times))
    if commits and last.acknowledged <= first.acknowledged:
        violations.append(violation("no-acknowledgement-counted", commits=commits))
    return violations


def _cluster_violations(growth: dict[str, dict[str, int]], commits: int | None) -> list[Violation]:
    violations = [
        violation("node-restarted", name, count=count, counter=counter)
        for name, counters in growth.items()
        for counter, count in counters.items()
        if count < 0
    ]
    ordered = sum(counters["ordered"] for counters in growth.values())
    if commits is not None and ordered < commits:
        violations.append(violation("too-few-ordered", commits=commits, ordered=ordered))
    return violations


def _log_bytes_violations(
    requested: RequestedReplication, log_bytes: int, before: Snapshot, after: Snapshot
) -> list[Violation]:
    """Violation if the kernel counted fewer bytes sent to a replica that a commit needs than bytes of log were acknowledged."""
    sent_bytes = sorted((sent - before.sent.get(name, 0) for name, sent in after.sent.items()), reverse=True)
    awaited = sent_bytes[: requested.wait_for]
    if not awaited or awaited[-1] >= log_bytes:
        return []
    return [violation("log-not-sent", acknowledged_bytes=log_bytes, sent_bytes=awaited[-1])]
