"""Calibration: a closed loop that finds what must be taken off a link's delay so that its RTT is the one asked.

The RTT at rest is probed with the asked delay set, what it has too much is taken off both ways, and so on for a few rounds. It is
held against the time of a ping over the asked link, whose own bytes take theirs at the rate. It is
measured with the effects off: jitter, loss and outages would be taken for an error of the delay, and the loop would follow them.
What comes out is frozen and holds with the effects on, which come on top of the same delay: every trial of the session on this
link runs with the same programmed delays. A correction that followed each probe would follow the probe's noise, and the arms
would be compared over different links. Not here: what a trial's link is judged by, see `link_receipt.py`.
"""

from __future__ import annotations

import statistics
from typing import Any, Protocol

from howfar.engine.messages import (
    GoodputResult,
    LinkStats,
    RttResult,
)
from howfar.lab.link.asked import WAYS, LinkAsked

_ROUNDS = 4
_DAMPING = 2
"""The first round takes off all that is too much, each later one this part of what is left: one noisy round cannot undo the others."""
_PROBE_NS = 100_000_000
"""A probe of the RTT takes about this long, within 10 to 400 pings."""
_PROBES = 5
_PROBES_NS = 500_000_000
"""A round is the median of five probes, each a connection and a process of its own. Fewer where one takes long: at such an RTT the
microseconds of waking up do not show."""
_WARMUP_NS, _WARMUP_MAX_NS = 1_000_000_000, 10_000_000_000
_WARMUP_RTTS = 70
"""A window opens from 10 segments, and after the first loss cubic needs its time to come back: with 0.2 s the goodput was up to
2 % off, with 1 s it was right; at 100 ms and 1 Gb/s 3 s left it at 91 %, 8 s did not."""
_GOODPUT_RTTS = 10
_MOST_NS = 75_000
"""Taken off each way at most. The way to and from the emulator costs some tens of microseconds; what is seen beyond that is a machine
that was busy just then. Taken off for good, it would leave a link that is too short once the machine is quiet."""


def ping_count(rtt_ns: int) -> int:
    """As many pings as fit in about 0.1 s."""
    return min(max(_PROBE_NS // max(rtt_ns, 1), 10), 400)


def probe_count(rtt_ns: int) -> int:
    """How many probes make a round of calibration."""
    return min(max(_PROBES_NS // max(ping_count(rtt_ns) * rtt_ns, 1), 1), _PROBES)


def goodput_times_ns(rtt_ns: int) -> tuple[int, int]:
    """Warm-up and measured window of a bulk transfer."""
    warmup_ns = min(_WARMUP_NS + _WARMUP_RTTS * rtt_ns, _WARMUP_MAX_NS)
    return warmup_ns, min(max(_WARMUP_NS // 2, _GOODPUT_RTTS * rtt_ns), _WARMUP_MAX_NS)


class Calibrated(Protocol):
    """What the loop needs of a link."""

    def set_calm(self, asked: LinkAsked, compensate_ns: int) -> None: ...
    def rest_rtt_ns(self, asked: LinkAsked) -> int: ...
    def ping(self) -> RttResult: ...
    def ping_from_idle(self) -> RttResult: ...
    def goodput(self, to_server: bool) -> GoodputResult: ...
    def counters(self, *, reset: bool = False) -> LinkStats | None: ...


def compensation_ns(asked: LinkAsked, present_ns: int, excess_ns: int) -> int:
    """Half of the excess each way; a delay is never negative."""
    return min(max(present_ns + excess_ns // 2, 0), _MOST_NS, *(asked.delay_ns(name) for name in WAYS))


def calibrate(link: Calibrated, asked: LinkAsked, *, with_goodput: bool) -> dict[str, Any]:
    """Take off both ways half of what the RTT has too much, until it is right or no more may be taken.

    The last round measures what is then frozen. `with_goodput`: one bulk transfer each way as well, which takes seconds.
    """
    compensate, rest_rtt_ns = 0, link.rest_rtt_ns(asked)
    rounds: list[dict[str, Any]] = []
    while True:
        link.set_calm(asked, compensate)
        probes = [link.ping() for _ in range(probe_count(rest_rtt_ns))]
        rtt_ns = int(statistics.median(probe.p50_ns for probe in probes))
        rounds.append(
            {
                "compensate_ns": compensate,
                "rtt_p50_ns": rtt_ns,
                "rtt_p50s_ns": [probe.p50_ns for probe in probes],
            }
        )
        # Whatever else runs only adds to a round trip: the probe that saw least of it knows best what the way itself costs.
        excess = min(probe.p50_ns for probe in probes) - rest_rtt_ns
        better = compensation_ns(asked, compensate, excess if len(rounds) == 1 else excess // _DAMPING)
        if len(rounds) == _ROUNDS or better == compensate or abs(excess) < asked.rtt_ns // 100:
            break
        compensate = better
    found: dict[str, Any] = {
        "compensate_ns": compensate,
        "rest_rtt_ns": rest_rtt_ns,
        "rounds": rounds,
        "rtt_p50_ns": rtt_ns,
        "rtt_p99_ns": int(statistics.median(probe.p99_ns for probe in probes)),
        "rtt_from_idle_p50_ns": link.ping_from_idle().p50_ns,
    }
    return {**found, **measure_goodput(link, asked)} if with_goodput else found


def measure_goodput(link: Calibrated, asked: LinkAsked) -> dict[str, Any]:
    """Bulk transfers over the link at rest, one after the other."""
    found = {name: link.goodput(name == "to_server") for name in WAYS}
    expected = {name: asked.expected_goodput_bps(name) for name in WAYS}
    stats = link.counters(reset=True)
    drops = None
    if stats is not None:
        drops = {name: getattr(stats, name).drops.model_dump() for name in WAYS}
    return {
        "goodput_bps": {name: result.bits_per_second for name, result in found.items()},
        "expected_goodput_bps": expected["to_server"] if expected["to_server"] == expected["to_client"] else None,
        "expected_goodput_bps_each_way": expected,
        "goodput_ceiling": f"payload: {asked.payload_share:.2%} of the bytes on the wire",
        "retransmits": {name: result.retransmits for name, result in found.items()},
        "congestion_control": found["to_server"].congestion_control,
        "mss": found["to_server"].mss,
        "drops": drops,
    }
