"""Checks whether replication was as requested during a window, by snapshots at its beginning and end. No I/O.

If semi-synchronous replication fell back to asynchronous for even one commit, the trial is void.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from howfar.contract.receipt import ReplicaFacts, ReplicationWindow, Snapshot
from howfar.experiments.replication.lab.links import ReplicationLink, ReplicationSpec


def window_violations(
    spec: ReplicationSpec, before: Snapshot, after: Snapshot, commits: int | None = None
) -> tuple[str, ...]:
    """Violations; empty if replication was as requested. `commits`: number of the load's commits that returned in the window; None if
    unknown."""
    violations = [*_snapshot_violations(spec, before, "before"), *_snapshot_violations(spec, after, "after")]
    if spec.cluster:
        violations += _cluster_violations(before, after, commits)
    if not spec.semi_sync or before.primary is None or after.primary is None:
        return tuple(violations)
    first, last = before.primary, after.primary
    if last.no_tx < first.no_tx or last.no_times < first.no_times or last.acknowledged < first.acknowledged:
        violations.append(
            "the primary's counters went back during the window: it was started again, or they were reset"
        )
    if last.no_tx > first.no_tx:
        violations.append(
            f"{last.no_tx - first.no_tx} commits of the window were not acknowledged by a replica, as the primary counts them"
            f"{' (MySQL: groups of them)' if spec.wait_point == 'AFTER_SYNC' else ''}"
        )
    if last.no_times > first.no_times:
        count = last.no_times - first.no_times
        violations.append(
            f"the primary fell back to asynchronous replication {'once' if count == 1 else f'{count} times'}"
        )
    if commits and last.acknowledged <= first.acknowledged:
        violations.append(f"{commits} commits returned and the primary counted no acknowledgement")
    if first.log_bytes is not None and last.acknowledged_bytes is not None and not spec.compression:
        violations += _log_bytes_violations(spec, last.acknowledged_bytes - first.log_bytes, before, after)
    return tuple(violations)


def _cluster_violations(before: Snapshot, after: Snapshot, commits: int | None) -> list[str]:
    growth = counter_growth(before, after)
    violations = [
        f"{name} counted {count} {counter} in the window: it was started again"
        for name, counters in growth.items()
        for counter, count in counters.items()
        if count < 0
    ]
    ordered = sum(counters["ordered"] for counters in growth.values())
    if commits is not None and ordered < commits:
        violations.append(f"{commits} commits returned and the cluster ordered {ordered} transactions")
    return violations


def counter_growth(before: Snapshot, after: Snapshot) -> dict[str, dict[str, int]]:
    """Growth of each node's counters between two snapshots."""
    earlier = {node.name: node.counters for node in before.nodes}
    return {
        node.name: {name: count - earlier[node.name].get(name, 0) for name, count in node.counters.items()}
        for node in after.nodes
        if node.name in earlier
    }


def _log_bytes_violations(spec: ReplicationSpec, log_bytes: int, before: Snapshot, after: Snapshot) -> list[str]:
    """Violation if the kernel counted fewer bytes sent to a replica that a commit needs than bytes of log were acknowledged."""
    sent_bytes = sorted((sent - before.sent.get(name, 0) for name, sent in after.sent.items()), reverse=True)
    awaited = sent_bytes[: spec.wait_for]
    if not awaited or awaited[-1] >= log_bytes:
        return []
    return [
        f"{log_bytes} bytes of log were acknowledged and {awaited[-1]} bytes were sent to a replica that a commit needs"
    ]


def _snapshot_violations(spec: ReplicationSpec, snapshot: Snapshot, when: str) -> list[str]:
    violations = (
        [] if len(snapshot.replicas) == spec.replicas else [f"{len(snapshot.replicas)} replicas {when} the window"]
    )
    violations += [f"{sentence} {when} the window" for sentence in snapshot.broken]
    for replica in snapshot.replicas:
        violations += _replica_violations(spec, replica, when)
    violations += [f"{node.name} {sentence} {when} the window" for node in snapshot.nodes for sentence in node.unlike]
    primary = snapshot.primary
    violations += [f"{sentence} {when} the window" for sentence in (primary.unlike if primary is not None else ())]
    if not spec.semi_sync:
        if primary is not None and primary.enabled:
            violations.append(f"the primary was semi-synchronous {when} the window")
        return violations
    if primary is None:
        return [*violations, f"the primary had no semi-synchronous replication {when} the window"]
    if not (primary.enabled and primary.status):
        violations.append(
            f"the primary was not semi-synchronous {when} the window: it fell back to asynchronous silently"
        )
    if primary.clients < spec.replicas:
        violations.append(
            f"{primary.clients} semi-synchronous replicas of {spec.replicas} were connected {when} the window"
        )
    for name, requested, actual in (
        ("wait point", spec.wait_point, primary.wait_point),
        ("timeout in ms", spec.timeout_ms, spec.timeout_ms if primary.timeout_ms is None else primary.timeout_ms),
        ("number of replicas to wait for", spec.wait_for, primary.wait_for),
    ):
        if requested != actual:
            violations.append(f"the {name} was {actual} instead of {requested} {when} the window")
    return violations


def _replica_violations(spec: ReplicationSpec, replica: ReplicaFacts, when: str) -> list[str]:
    state, violations = replica.state, []
    if (state.receiving, state.applying) != ("Yes", "Yes"):
        violations.append(_describe_not_replicating(replica, when))
    violations += _errant_violations(replica, when)
    if spec.semi_sync and replica.semi_sync is not True:
        violations.append(f"{replica.name} did not acknowledge {when} the window")
    if not spec.semi_sync and replica.semi_sync:
        violations.append(f"{replica.name} acknowledged {when} the window, which was not requested")
    return violations


def _describe_not_replicating(replica: ReplicaFacts, when: str) -> str:
    state = replica.state
    reason = f" ({'; '.join(state.errors)})" if state.errors else ""
    return f"{replica.name} was not replicating {when} the window: receiving {state.receiving}, applying {state.applying}{reason}"


def _errant_violations(replica: ReplicaFacts, when: str) -> list[str]:
    if not replica.strangers:
        return []
    sentence = f"{replica.name} had transactions that its primary never had ({replica.strangers}) {when} the window"
    return [f"{sentence}: their histories have diverged"]


def violations_after_absence(snapshot: Snapshot) -> tuple[str, ...]:
    """Violations after a window in which replicas left and returned. Consequences of their absence are not violations: a replica may
    still be connecting, or not be semi-synchronous yet."""
    violations = [f"{sentence} after the window" for sentence in snapshot.broken]
    for replica in snapshot.replicas:
        if replica.state.applying != "Yes" or replica.state.receiving == "No":
            violations.append(_describe_not_replicating(replica, "after"))
        violations += _errant_violations(replica, "after")
    return tuple(violations)


def latency_violation(spec: ReplicationSpec, p50_ns: int, rtt_ns: int) -> str | None:
    """Violation if commits returned faster than a round trip to the replica, whatever the servers' counters show; else None."""
    if not spec.acknowledgements_needed or p50_ns >= rtt_ns:
        return None
    return (
        f"half of the commits took less than {p50_ns / 1e6:.3f} ms where the round trip to the replica takes "
        f"{rtt_ns / 1e6:.3f} ms: nobody waited for it"
    )


def window_receipt(before: Snapshot, after: Snapshot) -> ReplicationWindow:
    """The receipt's part about the window: both snapshots, and the mean wait of commits, computed from the counters."""
    receipt = ReplicationWindow(before=before, after=after, mean_wait_us=None)
    if after.nodes:
        receipt.counted = counter_growth(before, after)
    if before.primary is not None and after.primary is not None:
        waits = after.primary.tx_waits - before.primary.tx_waits
        if waits > 0:
            receipt.mean_wait_us = (after.primary.tx_wait_us - before.primary.tx_wait_us) / waits
    return receipt


FILLING = "replicas " * 3000
"""Text of the test row. Any compression reduces its size to about a hundredth; encryption does not reduce it."""
_MAX_COMPRESSED_BYTES = len(FILLING) // 4
"""Maximum bytes of the compressed row, with headers, acknowledgements and heartbeats."""


@dataclass(frozen=True)
class ChannelFacts:
    """Facts about the connections between primary and replicas, collected while the replica set is proved."""

    tls_handshakes: int
    """TLS handshakes of replicas with the primary."""
    row_bytes: int
    """Size of the test row."""
    wire_bytes: Mapping[str, int]
    """Bytes that the primary's host sent to each replica for the test row, as the kernel counts them."""


def sent_bytes(links: Sequence[ReplicationLink]) -> dict[str, int]:
    """Bytes sent by the primary's host to each replica since the creation of their interfaces."""
    return {link.name: sent for link in links if (sent := link.sent_bytes()) is not None}


def channel_violations(spec: ReplicationSpec, channel: ChannelFacts) -> tuple[str, ...]:
    """Violations if TLS or compression of the channel is not as requested."""
    violations = []
    if spec.tls and channel.tls_handshakes < spec.replicas:
        violations.append(f"{channel.tls_handshakes} of {spec.replicas} replicas connected to the primary over TLS")
    if not spec.tls and channel.tls_handshakes:
        violations.append(
            f"{channel.tls_handshakes} replicas connected to the primary over TLS, which was not requested"
        )
    for name, sent in channel.wire_bytes.items():
        if spec.compression is not None and sent > _MAX_COMPRESSED_BYTES:
            violations.append(f"a row of {channel.row_bytes} bytes went to {name} in {sent}: it was not compressed")
        if spec.compression is None and sent < channel.row_bytes:
            violations.append(f"a row of {channel.row_bytes} bytes went to {name} in {sent}: it was compressed")
    return tuple(violations)
