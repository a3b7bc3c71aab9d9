"""What a trial's link was, and where it was not what was asked. Pure: facts in, receipt and sentences out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howfar.engine.messages import DirectionStats, LinkStats, RttResult
from howfar.lab.link import Link, LinkAsked
from howfar.lab.network import CONGESTION_CONTROL, MTU
from howfar.units import format_duration_ns, format_rate_bps

RTT_VOID_NS, RTT_VOID_SHARE = 100_000, 0.03
"""An RTT at rest that is off by more makes the trial void. What is off by less (see `link.rtt_tolerance_ns`) is kept and warned of
beside the figure, with the measured RTT: on a busy machine it is the waking of both ends that takes longer, and that is so on every
path."""
LATENESS_P99_MAX_NS, LATENESS_P99_MAX_SHARE = 100_000, 0.01
"""One packet in a hundred later than 100 µs (or 1 % of the RTT) adds 1 µs to the mean way: still below 1 % of the shortest RTT
that makes sense. More is a delay that nobody asked for, and moves throughput."""
LATENESS_P999_MAX_NS, LATENESS_P999_MAX_SHARE = 1_000_000, 0.1
"""A transaction of sixteen turns is 32 packets, so one packet in a thousand touches every thirtieth transaction: later than 1 ms
(or 10 % of the RTT) shows in its p99. A tighter bound would only measure that a small machine shares its CPUs with the link:
beside a load on two CPUs 0.1 to 0.2 ms were usual."""
GOODPUT_OFF_MAX_SHARE = 0.02
_UNCOUNTED_BYTES = 64 * 1024
"""What the server counts as traffic though it is ours and goes past the link: its counters, asked before and after the load."""
_UNSENT_BYTES = 16 * 2**20
"""What the server has written may still lie in its kernel's buffers when the load ends; what it has read has crossed."""


def goodput_warnings(asked: LinkAsked, calibration: Mapping[str, Any]) -> tuple[str, ...]:
    """Where a bulk transfer did not reach what the rate allows."""
    expected = asked.expected_goodput_bps
    if expected is None:
        return ()
    return tuple(
        f"goodput {name.replace('_', ' ')} was {format_rate_bps(got)} where the link allows {format_rate_bps(expected)}"
        for name, got in calibration["goodput_bps"].items()
        if abs(got - expected) > GOODPUT_OFF_MAX_SHARE * expected
    )


def link_receipt(link: Link, at_rest: Sequence[RttResult], stats: LinkStats) -> dict[str, Any]:
    """What one trial's link was: asked, calibrated, at rest before the load (all probes, the last counts), its counters under it."""
    counts = at_rest[-1]
    return {
        "asked": {"rtt_ns": link.asked.rtt_ns, "rate_bps": link.asked.rate_bps, "queue_bytes": link.asked.queue_bytes},
        "rtt_at_rest_ns": {
            "count": counts.count,
            "min": counts.min_ns,
            "p50": counts.p50_ns,
            "p99": counts.p99_ns,
            "p50_of_each_probe": [probe.p50_ns for probe in at_rest],
        },
        "compensate_ns": link.compensate_ns,
        "calibration": link.calibrations[link.asked],
        "counters": stats.model_dump(exclude={"event"}),
        "mtu": MTU,
        "congestion_control_asked": CONGESTION_CONTROL,
        "realtime": link.ready.realtime,
        "offload": link.ready.offload,
    }


def link_violations(asked: LinkAsked, at_rest: Sequence[RttResult], stats: LinkStats) -> tuple[str, ...]:
    """Where the link was not what was asked."""
    found = []
    off = at_rest[-1].p50_ns - asked.rtt_ns
    if abs(off) > max(RTT_VOID_NS, RTT_VOID_SHARE * asked.rtt_ns):
        seen = ", ".join(format_duration_ns(probe.p50_ns) for probe in at_rest)
        found.append(f"the link's RTT at rest was {seen}, asked {format_duration_ns(asked.rtt_ns)}")
    for name, way in (("to server", stats.to_server), ("to client", stats.to_client)):
        found += _direction_violations(asked, name, way)
    return tuple(found)


def crossing_violations(stats: LinkStats, counters: Mapping[str, int]) -> tuple[str, ...]:
    """Where the session's bytes did not cross the link. `counters` are the server's since the link's were reset; one that it
    does not have proves nothing."""
    found = []
    for name, way, counter, slack in (
        ("to server", stats.to_server, "Bytes_received", _UNCOUNTED_BYTES),
        ("to client", stats.to_client, "Bytes_sent", _UNCOUNTED_BYTES + _UNSENT_BYTES),
    ):
        if way.packets == 0:
            found.append(f"not one packet crossed the link {name}: the load went another way")
        elif way.wire_bytes + slack < counters.get(counter, 0):
            found.append(
                f"the link {name} carried {way.wire_bytes} bytes, the server counted {counters[counter]} ({counter}): "
                "not all of the load went over it"
            )
    return tuple(found)


def _direction_violations(asked: LinkAsked, name: str, way: DirectionStats) -> list[str]:
    found = []
    drops = way.drops
    unmodelled = drops.arena + drops.socket + drops.transmit
    if unmodelled:
        found.append(
            f"the link {name} lost {unmodelled} packets that no queue explains "
            f"(arena {drops.arena}, socket {drops.socket}, transmit {drops.transmit})"
        )
    limits = (
        ("p99", way.lateness_p99_ns, max(LATENESS_P99_MAX_NS, LATENESS_P99_MAX_SHARE * asked.rtt_ns)),
        ("p99.9", way.lateness_p999_ns, max(LATENESS_P999_MAX_NS, LATENESS_P999_MAX_SHARE * asked.rtt_ns)),
    )
    for name_of_limit, late_ns, limit_ns in limits:
        if late_ns > limit_ns:
            found.append(
                f"the link {name} was late by {format_duration_ns(late_ns)} ({name_of_limit}, "
                f"allowed {format_duration_ns(limit_ns)}): the machine was too busy"
            )
    return found
