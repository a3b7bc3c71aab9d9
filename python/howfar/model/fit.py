"""A base of a measured curve: demands from its saturated point, and from its low end the time that does not queue.

Processor time is read from counters at the highest throughput (the utilisation law: demand = busy time / transactions), where work
comes in batches as it does under load. What a lone connection takes longer than these demands, whatever the reason, is `think_s`: so
the model meets the low end of its own curve. The highest throughput is not fitted to, nor is anything between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

from howfar.analysis.findings import WhatIf, WhatIfCompression, WhatIfSettings
from howfar.model.facts import ArmFacts
from howfar.model.messages import replies, requests
from howfar.model.queueing import at
from howfar.model.what_if import network
from howfar.model.wire import HEADER_BYTES

THREADS_MOST = 2048
FULL_CPU = 0.95
"""Of a host's processors, busy: from here on they are taken to have been full."""
_HALVINGS = 60


def settings_of(facts: ArmFacts) -> WhatIfSettings:
    """What the arm was measured at. Its connects are part of what was measured, not something to add."""
    return WhatIfSettings(
        threads=facts.threads,
        rtt_s=facts.rtt_s,
        rate_bps=facts.rate_bps,
        tls=facts.level("tls") != "off",
        connect_each=False,
        compression=str(facts.level("compression")),
    )


def fit(curve: Sequence[ArmFacts], workload: Mapping[str, Any]) -> WhatIf:
    """Of cells that differ only in connections, at least one; with one, that is both ends."""
    low = min(curve, key=lambda facts: facts.threads)
    top = max(curve, key=lambda facts: facts.tps.value)
    base = WhatIf(
        arm=top.arm.name,
        threads=top.threads,
        tps=top.tps.value,
        turns=top.turns,
        think_s=0.0,
        rtt_s=top.rtt_s,
        rate_bps=top.rate_bps,
        client_cpu_s=top.client_cpu_s,
        server_cpu_s=top.server_cpu_s,
        client_cpus=client_left(top),
        server_cpus=server_left(top),
        shared_cpu=top.shared_cpu,
        replies_bytes=replies(workload, low.turns, low.bytes_to_client),
        requests_bytes=requests(low.turns, low.bytes_to_server),
        tls_byte_s=None,
        connect_turns=None,
        connect_client_s=None,
        connect_server_s=None,
        tls_connect_turns=None,
        tls_connect_client_s=None,
        tls_connect_server_s=None,
        compression=_as_measured(top),
        threads_most=THREADS_MOST,
    )
    return base.model_copy(update={"think_s": _think_s(base, low)})


def _think_s(base: WhatIf, low: ArmFacts) -> float:
    """Such that the model gives the low end's throughput: by halving, for there it may be more than one connection."""
    settings = settings_of(low)

    def too_slow(think_s: float) -> bool:
        tried = network(base.model_copy(update={"think_s": think_s}), settings)
        return at(tried.points(low.threads), low.threads).throughput < low.tps.value

    shortest, longest = -low.cycle_s, low.cycle_s
    if too_slow(0.0) and low.threads > 1:
        return 0.0  # a full station says nothing of what else takes time
    for _ in range(_HALVINGS):
        middle = (shortest + longest) / 2
        shortest, longest = (shortest, middle) if too_slow(middle) else (middle, longest)
    return (shortest + longest) / 2


def _as_measured(facts: ArmFacts) -> tuple[WhatIfCompression, ...]:
    """For a compressed curve on its own: what the link carried of it. The processors' part is in its demands already."""
    algorithm = str(facts.level("compression"))
    if algorithm == "off":
        return ()
    carried = carried_payload(facts)
    to_client, to_server = carried if carried else (facts.bytes_to_client, facts.bytes_to_server)
    return (
        WhatIfCompression(
            algorithm=algorithm,
            ratio_to_client=to_client / facts.bytes_to_client,
            ratio_to_server=to_server / facts.bytes_to_server,
            client_byte_s=0.0,
            server_byte_s=0.0,
        ),
    )


def carried_payload(facts: ArmFacts) -> tuple[float, float] | None:
    """What TCP carried a transaction, to the client and to the server, by the link's counters. None: no link.

    Segments without payload (acknowledgements) count as headers too; what else they say is not known.
    """
    if facts.wire_to_client is None or facts.wire_to_server is None:
        return None
    if facts.segments_to_client is None or facts.segments_to_server is None:
        return None
    return (
        max(facts.wire_to_client - HEADER_BYTES * facts.segments_to_client, 1.0),
        max(facts.wire_to_server - HEADER_BYTES * facts.segments_to_server, 1.0),
    )


def client_left(facts: ArmFacts) -> float:
    """How many of the client's processors the load could have: see `_End`. Where both ends share them: both."""
    return _both(facts).left if facts.shared_cpu else _client(facts).left


def server_left(facts: ArmFacts) -> float:
    return _both(facts).left if facts.shared_cpu else _server(facts).left


@dataclass(frozen=True)
class _End:
    """One end of an arm, or both where they share processors. Times are of one transaction."""

    cpus: int
    free: float
    """Of these, what the link's emulator and strangers did not take."""
    busy: float | None
    worked_s: float
    waited_s: float
    facts: ArmFacts

    @property
    def left(self) -> float:
        """An end whose processors were short has had what there was for it. Of any other, strangers took what it had no use for as
        well: at least a fair half was there, and what it used."""
        used = min(self.worked_s * self.facts.tps.value, self.cpus)
        return used if self.was_short else max(self.free, self.cpus / 2, used)

    @property
    def was_short(self) -> bool:
        """Its work was held up by processors and by nothing else: they were busy all the time, at any moment some of its work was on
        one or waiting for one (Little's law: so many on average), it waited longer than it worked, and no link was full. Anything
        less, and what it used is no ceiling: it only says what else let through."""
        if self.busy is None or self.busy < FULL_CPU or self.facts.link_full:
            return False
        ready = (self.worked_s + self.waited_s) * self.facts.tps.value
        return self.waited_s > self.worked_s > 0 and ready >= self.cpus


def _client(facts: ArmFacts) -> _End:
    free = facts.client_cpus - facts.link_client_cpus - facts.client_others
    return _End(facts.client_cpus, free, facts.client_busy, facts.client_cpu_s, facts.client_wait_s, facts)


def _server(facts: ArmFacts) -> _End:
    free = facts.server_cpus - facts.link_server_cpus - facts.server_others
    return _End(facts.server_cpus, free, facts.server_busy, facts.server_cpu_s, facts.server_wait_s, facts)


def _both(facts: ArmFacts) -> _End:
    """The processors are the server's; so is what others took of them."""
    worked_s = facts.client_cpu_s + facts.server_cpu_s
    return replace(_server(facts), worked_s=worked_s, waited_s=facts.runnable_s)


def nearest(rate_bps: float | None, others: Sequence[ArmFacts]) -> ArmFacts | None:
    """The arm over the link whose rate is nearest, as a factor. None: there is none."""
    known = [each for each in others if each.rate_bps]
    if rate_bps is None or not known:
        return None
    return min(known, key=lambda each: abs(log(each.rate_bps or 1.0) - log(rate_bps)))
