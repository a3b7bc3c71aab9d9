"""Compares the counts of the load's clients with those of the server, which must agree if both are known. No I/O."""

from __future__ import annotations

from howfar.contract.messages import ServiceName
from howfar.contract.receipt import StatementCounts
from howfar.contract.violation import Violation, violation
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import LoadFacts

_ALLOWED_SHARE = 0.005
_ALLOWED_DIFFERENCE = 1
"""Difference that is always allowed, because `_ALLOWED_SHARE` of a small count is less than one."""
NOT_COUNTED = "not counted"


def compare_counts(
    name: ServiceName, metrics: ServerMetrics, load: LoadFacts, is_exclusive: bool
) -> tuple[StatementCounts | str, tuple[Violation, ...]]:
    """Both counts for the receipt, and a violation if they differ. `metrics`: growth of the counters of server `name` since the load
    began. `is_exclusive`: whether only the load's clients send it statements."""
    for quantity, server_count, client_count, is_exact in (
        ("statements", metrics.statements, load.answered_statements, is_exclusive),
        # Logins and prepares are transactions too.
        ("transactions", metrics.transactions, load.ended_transactions, False),
        # The clients do not report pages that began outside the window.
        ("requests", metrics.requests, load.round_trips.get(name), False),
    ):
        if server_count is None or client_count is None:
            continue
        rule = "equal" if is_exact else "at least"
        counts = StatementCounts(of=quantity, clients=client_count, server=server_count, rule=rule)
        allowed = _ALLOWED_SHARE * server_count + _ALLOWED_DIFFERENCE
        if client_count - server_count <= allowed and (server_count - client_count <= allowed or not is_exact):
            return counts, ()
        return counts, (violation("counts-differ", quantity=quantity, clients=client_count, server=server_count),)
    return NOT_COUNTED, ()


def low_count_violations(name: ServiceName, metrics: ServerMetrics, load: LoadFacts) -> tuple[Violation, ...]:
    """Violations of the service `name` if the server counted less than the load sent. `metrics`: growth of the server's
    counters since the load began; counters that are None are not checked."""
    violations = []
    requests, keys = load.round_trips.get(name, 0), load.keys.get(name, 0)
    if metrics.requests is not None and metrics.requests < requests:
        violations.append(violation("too-few-requests", name, counted=metrics.requests, reported=requests))
    hits, misses = metrics.lookup_hits or 0, metrics.lookup_misses or 0
    if keys and hits + misses < keys:
        violations.append(violation("too-few-lookups", name, counted=hits + misses, reported=keys))
    if keys and misses:
        violations.append(violation("keys-missing", name, keys=misses))
    return tuple(violations)
