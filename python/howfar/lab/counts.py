"""Compares the counts of a load's clients with the server's: where both are known, they must agree. Pure."""

from __future__ import annotations

from typing import Any

from howfar.engine.messages import ServiceName
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import LoadFacts

_SHARE = 0.005
_SLACK = 1
"""Difference that is always allowed: half a percent of a small count is less than one."""
NOT_COUNTED = "not counted"


def both_counts(
    name: ServiceName, metrics: ServerMetrics, load: LoadFacts, alone: bool
) -> tuple[dict[str, Any] | str, tuple[str, ...]]:
    """Both counts for the receipt, and a sentence if they differ. `metrics`: of the server `name`, since the load began. `alone`: only
    the load's clients send it statements."""
    for what, server, clients, exact in (
        ("statements", metrics.statements, load.answered, alone),
        # Logins and prepares are transactions too.
        ("transactions", metrics.transactions, load.ended, False),
        # The number of pages that began outside the window is not reported.
        ("requests", metrics.requests, load.round_trips.get(name), False),
    ):
        if server is None or clients is None:
            continue
        counted = {"of": what, "clients": clients, "server": server, "rule": "equal" if exact else "at least"}
        allowed = _SHARE * server + _SLACK
        if clients - server <= allowed and (server - clients <= allowed or not exact):
            return counted, ()
        return counted, (f"the clients had answers to {clients} {what}, the server counted {server}",)
    return NOT_COUNTED, ()


def counted_less(name: ServiceName, metrics: ServerMetrics, load: LoadFacts) -> tuple[str, ...]:
    """Sentences for counts of the server that are below what the load sent. `metrics`: the server's, since the load began; counts that
    are None are not checked."""
    found = []
    requests, keys = load.round_trips.get(name, 0), load.keys.get(name, 0)
    if metrics.requests is not None and metrics.requests < requests:
        found.append(f"it counted {metrics.requests} requests, the pages reported at least {requests}")
    hits, misses = metrics.lookup_hits or 0, metrics.lookup_misses or 0
    if keys and hits + misses < keys:
        found.append(f"it looked for {hits + misses} keys, the pages reported at least {keys}")
    if keys and misses:
        found.append(f"it did not have {misses} of the keys that the pages looked for, all of which were set")
    return tuple(found)
