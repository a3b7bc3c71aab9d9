"""Where a transaction's time goes, in six parts: the cycle of `attribution/cycle.py`, whose finer parts are put together.

For charts and tables that compare paths. What is neither CPU, round trips nor waiting for a CPU is in the rest here: bytes on the
wire, queues, locks, commits, and what nothing explains.
"""

from __future__ import annotations

from howfar.analysis.summary import Cycle
from howfar.bottleneck import cycle

CLIENT_CPU, SERVER_CPU, FORWARDER_CPU = cycle.CLIENT_CPU, cycle.SERVER_CPU, cycle.FORWARDER_CPU
LINK, WAITING, REST = "link", cycle.WAITING, cycle.REST
PARTS = (CLIENT_CPU, SERVER_CPU, FORWARDER_CPU, LINK, WAITING, REST)
"""Names of the parts, in the order in which they are shown."""
_SAME = {CLIENT_CPU, SERVER_CPU, FORWARDER_CPU, WAITING}


def time_split_us(found: Cycle) -> dict[str, float]:
    """Microseconds a transaction by part; adds up to the cycle."""
    split = dict.fromkeys(PARTS, 0.0)
    for part in found.parts:
        name = part.name if part.name in _SAME else LINK if part.name == cycle.ROUND_TRIPS else REST
        split[name] += part.us
    return split
