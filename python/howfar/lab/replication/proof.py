"""Proof that replication was as requested during a window, from snapshots at its beginning and end. No I/O.

If semi-synchronous replication fell back for even one commit, the window does not measure it, and the trial is void.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from howfar.contract.receipt import ReplicaFacts, ReplicationWindow, Snapshot
from howfar.lab.replication.links import ReplicationLink, ReplicationSpec


def violations(spec: ReplicationSpec, before: Snapshot, after: Snapshot, commits: int | None = None) -> tuple[str, ...]:
    """Violations; empty if replication was as requested. `commits`: number of commits that returned to the load in the window; None if
    unknown."""
    found = [*_snapshot_violations(spec, before, "before"), *_snapshot_violations(spec, after, "after")]
    if spec.cluster:
        found += _cluster_violations(before, after, commits)
    if not spec.semi_sync or before.primary is None or after.primary is None:
        return tuple(found)
    first, last = before.primary, after.primary
    if last.no_tx < first.no_tx or last.no_times < first.no_times or last.acknowledged < first.acknowledged:
        found.append("the primary's counters went back during the window: it was started again, or they were reset")
    if last.no_tx > first.no_tx:
        found.append(
            f"{last.no_tx - first.no_tx} commits of the window were not acknowledged by a replica, as the primary counts them"
            f"{' (MySQL: groups of them)' if spec.wait_point == 'AFTER_SYNC' else ''}"
        )
    if last.no_times > first.no_times:
        found.append(f"the primary fell back to asynchronous replication {last.no_times - first.no_times} times")
    if commits and last.acknowledged <= first.acknowledged:
        found.append(f"{commits} commits returned and the primary counted no acknowledgement")
    if first.log_bytes is not None and last.acknowledged_bytes is not None and not spec.compression:
        found += _log_bytes_violations(spec, last.acknowledged_bytes - first.log_bytes, before, after)
    return tuple(found)


def _cluster_violations(before: Snapshot, after: Snapshot, commits: int | None) -> list[str]:
    grown = counted(before, after)
    found = [
        f"{name} counted {count} {counter} in the window: it was started again"
        for name, counters in grown.items()
        for counter, count in counters.items()
        if count < 0
    ]
    ordered = sum(counters["ordered"] for counters in grown.values())
    if commits is not None and ordered < commits:
        found.append(f"{commits} commits returned and the cluster ordered {ordered} transactions")
    return found


def counted(before: Snapshot, after: Snapshot) -> dict[str, dict[str, int]]:
    """Growth of each node's counters between two snapshots."""
    earlier = {node.name: node.counters for node in before.nodes}
    return {
        node.name: {name: count - earlier[node.name].get(name, 0) for name, count in node.counters.items()}
        for node in after.nodes
        if node.name in earlier
    }


def _log_bytes_violations(spec: ReplicationSpec, log_bytes: int, before: Snapshot, after: Snapshot) -> list[str]:
    """Violation if fewer bytes were sent to a replica that a commit needs, as the kernel counts them, than were acknowledged as
    log."""
    crossed = sorted((sent - before.sent.get(name, 0) for name, sent in after.sent.items()), reverse=True)
    needed = crossed[: spec.wait_for]
    if not needed or needed[-1] >= log_bytes:
        return []
    return [
        f"{log_bytes} bytes of log were acknowledged and {needed[-1]} bytes were sent to a replica that a commit needs"
    ]


def _snapshot_violations(spec: ReplicationSpec, snapshot: Snapshot, when: str) -> list[str]:
    found = [] if len(snapshot.replicas) == spec.replicas else [f"{len(snapshot.replicas)} replicas {when} the window"]
    found += [f"{sentence} {when} the window" for sentence in snapshot.broken]
    for replica in snapshot.replicas:
        found += _replica_violations(spec, replica, when)
    found += [f"{node.name} {sentence} {when} the window" for node in snapshot.nodes for sentence in node.unlike]
    end = snapshot.primary
    found += [f"{sentence} {when} the window" for sentence in (end.unlike if end is not None else ())]
    if not spec.semi_sync:
        if end is not None and end.enabled:
            found.append(f"the primary was semi-synchronous {when} the window")
        return found
    if end is None:
        return [*found, f"the primary had no semi-synchronous replication {when} the window"]
    if not (end.enabled and end.status):
        found.append(f"the primary was not semi-synchronous {when} the window: it fell back to asynchronous silently")
    if end.clients < spec.replicas:
        found.append(f"{end.clients} semi-synchronous replicas of {spec.replicas} were connected {when} the window")
    for name, requested, obtained in (
        ("wait point", spec.wait_point, end.wait_point),
        ("timeout in ms", spec.timeout_ms, spec.timeout_ms if end.timeout_ms is None else end.timeout_ms),
        ("number of replicas to wait for", spec.wait_for, end.wait_for),
    ):
        if requested != obtained:
            found.append(f"the {name} was {obtained} instead of {requested} {when} the window")
    return found


def _replica_violations(spec: ReplicationSpec, replica: ReplicaFacts, when: str) -> list[str]:
    state, found = replica.state, []
    if (state.receiving, state.applying) != ("Yes", "Yes"):
        found.append(_not_replicating(replica, when))
    found += _errant_transactions(replica, when)
    if spec.semi_sync and replica.semi_sync is not True:
        found.append(f"{replica.name} did not acknowledge {when} the window")
    if not spec.semi_sync and replica.semi_sync:
        found.append(f"{replica.name} acknowledged {when} the window, which was not requested")
    return found


def _not_replicating(replica: ReplicaFacts, when: str) -> str:
    state = replica.state
    why = f" ({'; '.join(state.errors)})" if state.errors else ""
    return f"{replica.name} was not replicating {when} the window: receiving {state.receiving}, applying {state.applying}{why}"


def _errant_transactions(replica: ReplicaFacts, when: str) -> list[str]:
    if not replica.strangers:
        return []
    sentence = f"{replica.name} had transactions that its primary never had ({replica.strangers}) {when} the window"
    return [f"{sentence}: their histories have parted"]


def violations_after_absence(snapshot: Snapshot) -> tuple[str, ...]:
    """Violations after a window in which replicas left and returned. What their absence explains is no violation: a replica may not be
    semi-synchronous yet, or still be connecting."""
    found = [f"{sentence} after the window" for sentence in snapshot.broken]
    for replica in snapshot.replicas:
        if replica.state.applying != "Yes" or replica.state.receiving == "No":
            found.append(_not_replicating(replica, "after"))
        found += _errant_transactions(replica, "after")
    return tuple(found)


def latency_violation(spec: ReplicationSpec, p50_ns: int, rtt_ns: int) -> str | None:
    """Violation if commits returned faster than a round trip to the replica takes, whatever the servers' counters show."""
    if not spec.needed or p50_ns >= rtt_ns:
        return None
    return (
        f"half of the commits took less than {p50_ns / 1e6:.3f} ms where the round trip to the replica takes "
        f"{rtt_ns / 1e6:.3f} ms: nobody waited for it"
    )


def window_receipt(before: Snapshot, after: Snapshot) -> ReplicationWindow:
    """Both snapshots for the receipt, and the mean wait of the window's commits, which follows from several counters."""
    receipt = ReplicationWindow(before=before, after=after, mean_wait_us=None)
    if after.nodes:
        receipt.counted = counted(before, after)
    if before.primary is not None and after.primary is not None:
        waits = after.primary.tx_waits - before.primary.tx_waits
        if waits > 0:
            receipt.mean_wait_us = (after.primary.tx_wait_us - before.primary.tx_wait_us) / waits
    return receipt


FILLING = "replicas " * 3000
"""Text of the test row. Any compression reduces it to about a hundredth; encryption does not make it smaller."""
_MAX_COMPRESSED_BYTES = len(FILLING) // 4
"""Maximum bytes of the compressed row, with headers, acknowledgements and heartbeats."""


@dataclass(frozen=True)
class ChannelFacts:
    """Facts about the connections between primary and replicas, collected until the replica set is proven."""

    tls_handshakes: int
    """TLS handshakes of replicas with the primary."""
    row_bytes: int
    """Size of the test row."""
    wire_bytes: Mapping[str, int]
    """Bytes that the primary's host sent to each replica for that row, as the kernel counts them."""


def sent_bytes(links: Sequence[ReplicationLink]) -> dict[str, int]:
    """Bytes sent by the primary's host to each replica since the creation of their interfaces."""
    return {link.name: sent for link in links if (sent := link.sent_bytes()) is not None}


def channel_violations(spec: ReplicationSpec, channel: ChannelFacts) -> tuple[str, ...]:
    """Differences between the requested TLS and compression and those of the channel. No I/O."""
    found = []
    if spec.tls and channel.tls_handshakes < spec.replicas:
        found.append(f"{channel.tls_handshakes} of {spec.replicas} replicas came to the primary by TLS")
    if not spec.tls and channel.tls_handshakes:
        found.append(f"{channel.tls_handshakes} replicas reached the primary by TLS, which was not requested")
    for name, crossed in channel.wire_bytes.items():
        if spec.compression is not None and crossed > _MAX_COMPRESSED_BYTES:
            found.append(f"a row of {channel.row_bytes} bytes went to {name} in {crossed}: it was not compressed")
        if spec.compression is None and crossed < channel.row_bytes:
            found.append(f"a row of {channel.row_bytes} bytes went to {name} in {crossed}: it was compressed")
    return tuple(found)
