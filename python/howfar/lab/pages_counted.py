"""Whether a server counted what pages say that they asked of it while the load ran. Pure.

A bound from below: the laboratory's own looks are counted too, and pages under way when the window ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from howfar.engine.messages import ServiceName
from howfar.lab.stage import LoadFacts


def counted_less(name: ServiceName, counters: Mapping[str, int], load: LoadFacts) -> tuple[str, ...]:
    """`counters`: the server's, since the load began. Those that it does not have prove nothing."""
    found = []
    turns, keys = load.turns.get(name, 0), load.keys.get(name, 0)
    if "Questions" in counters and counters["Questions"] < turns:
        found.append(f"it counted {counters['Questions']} requests, the pages told at least {turns}")
    hits, misses = counters.get("Lookup_hits", 0), counters.get("Lookup_misses", 0)
    if keys and hits + misses < keys:
        found.append(f"it looked for {hits + misses} keys, the pages told at least {keys}")
    if keys and misses:
        found.append(f"it did not have {misses} of the keys that the pages looked for, all of which were set")
    return tuple(found)
