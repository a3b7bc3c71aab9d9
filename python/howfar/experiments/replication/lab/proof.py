"""The proof that replication is as requested, where the receipt does not have all facts."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.contract.violation import Violation, violation
from howfar.experiments.replication.lab.links import ReplicationLink, ReplicationSpec

FILLING = "replicas " * 3000
"""Text of the test row. Any compression reduces its size to about a hundredth; encryption does not reduce it."""


def latency_violation(spec: ReplicationSpec, p50_ns: int, rtt_ns: int) -> Violation | None:
    """Violation if commits returned faster than a round trip to the replica, whatever the servers' counters show; else None."""
    if not spec.acknowledgements_needed or p50_ns >= rtt_ns:
        return None
    return violation("commits-too-fast", commit_p50_ns=p50_ns, rtt_ns=rtt_ns)


def sent_bytes(links: Sequence[ReplicationLink]) -> dict[str, int]:
    """Bytes sent by the primary's host to each replica since the creation of their interfaces."""
    return {link.name: sent for link in links if (sent := link.sent_bytes()) is not None}
