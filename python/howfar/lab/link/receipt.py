"""The receipt of a trial's link, and its differences from what was requested. Pure: facts in, receipt and sentences out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from howfar.engine.messages import BurstLoss, DirectionStats, IndependentLoss, LinkStats, RttResult
from howfar.lab.link import DIRECTIONS, Link, LinkSpec
from howfar.lab.link.backends import SHAPING, backends
from howfar.lab.link.settings import loss_share
from howfar.lab.link.spec import DirectionName, DirectionSpec
from howfar.plan.quantities import rtt_tolerance_ns, rtt_void_ns
from howfar.store.server_metrics import ServerMetrics
from howfar.units import format_duration_ns, format_rate_bps


@dataclass(frozen=True)
class Lateness:
    """Bounds on how late packets may leave, and on the error of the RTT at rest."""

    rtt_to_tolerance: bool
    """Judge the RTT at rest by the tolerance of a measured RTT, not by what makes a trial void."""
    p999_ns: int
    p999_share: float
    """Bound for one packet in a thousand: `p999_ns`, or this share of the RTT, whichever is more."""
    mean_ns: float | None
    """Bound for the mean, summed over both directions; None if not judged."""


MEAN_MAX_SHARE = 0.02
"""Maximum mean lateness as a share of a round trip. A closed loop waits for each round trip, so its throughput is off by this share
at most, whatever the distribution. A bound on the 99th percentile alone would allow the other 99 packets to be just below it."""
STRICT = Lateness(rtt_to_tolerance=True, p999_ns=100_000, p999_share=0.01, mean_ns=None)
"""Bounds for a link used alone: one packet in a thousand at most 100 µs or 1 % of the RTT late, RTT at rest within its tolerance."""
OF_A_PLAN = Lateness(rtt_to_tolerance=False, p999_ns=2_000_000, p999_share=0.1, mean_ns=None)
"""Bounds for a trial in a run. A transaction of sixteen round trips is 32 packets, so one packet in a thousand affects every thirtieth
transaction: more than 2 ms (or 10 % of the RTT) shows in the transactions' p99. On two CPUs 0.12 to 0.61 ms were measured with a
load of two connections, 1.06 to 1.4 ms with sixteen that saturate the CPUs."""
_ROUND_TRIP_P999_SHARE = 0.2
GOODPUT_OFF_MAX_SHARE = 0.02
_RTT_SAID_SHARE = 0.1
"""Maximum error of an RTT at rest without a warning, as a share; below 0.3 ms the tolerance, which is in µs, is larger."""
_UNCOUNTED_BYTES = 64 * 1024
"""Our own traffic, which the server counts but the link does not carry: reading the counters before and after the load."""
_UNSENT_BYTES = 16 * 2**20
"""Bytes that the server has written and its kernel may still hold when the load ends; bytes that it has read have crossed."""
_Z99 = 2.5758
"""Quantile of the normal distribution: 99 % lie within this many standard deviations."""


def of_a_trial(round_trip_ns: float) -> Lateness:
    """Bounds for a trial with this mean round trip, including time in queues at server and link. When many connections wait for each
    other, a round trip takes up to a hundred RTTs, and a packet late by a small part of it changes little. Hundreds of connections
    also send at the same moment, and any sender transmits their packets one after the other."""
    return replace(
        OF_A_PLAN,
        p999_ns=max(OF_A_PLAN.p999_ns, int(_ROUND_TRIP_P999_SHARE * round_trip_ns)),
        mean_ns=MEAN_MAX_SHARE * round_trip_ns or None,  # a round trip of 0 is unknown
    )


def rest_warnings(spec: LinkSpec, rest_rtt_ns: int, calibration: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about a link at rest: its RTT, if off by a large share although within the tolerance, and its goodput."""
    measured_ns, found = calibration["rtt_p50_ns"], goodput_warnings(spec, calibration)
    off = measured_ns / rest_rtt_ns - 1 if rest_rtt_ns else 0.0
    if not spec.rtt_ns or abs(off) <= _RTT_SAID_SHARE:
        return found
    sentence = (
        f"the RTT at rest is {format_duration_ns(measured_ns)}, {abs(off):.0%} {'longer' if off > 0 else 'shorter'} than requested: "
        "what is measured over this link holds for the measured RTT"
    )
    return (sentence, *found)


def goodput_warnings(spec: LinkSpec, calibration: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about directions in which a bulk transfer at rest did not match the goodput that the rate allows, or was too slow."""
    found = []
    for name in DIRECTIONS:
        expected, got = spec.expected_goodput_bps(name), calibration.get("goodput_bps", {}).get(name)
        if expected is not None and got is None and "goodput_bps" in calibration:
            found.append(
                f"goodput {_spaced(name)} is unknown: at {format_rate_bps(expected)} too few segments cross in 10 s"
            )
        if expected is not None and got is not None and abs(got - expected) > GOODPUT_OFF_MAX_SHARE * expected:
            found.append(
                f"goodput {_spaced(name)} was {format_rate_bps(got)} where the link allows {format_rate_bps(expected)}"
            )
    return tuple(found)


def link_receipt(
    link: Link,
    at_rest: RttResult,
    stats: LinkStats | None,
    tcp: Mapping[str, Any],
    changed: bool = False,
) -> dict[str, Any]:
    """The receipt of one trial's link: as requested, as calibrated, at rest before the load, and its counters under the load.

    `tcp`: how the hosts' TCP was configured; `changed`: a script changed the link under the load.
    """
    spec, ready = link.spec, link.ready
    return {
        "backend": link.backend,
        "arrival": backends()[link.backend].ARRIVAL,
        "asked": {
            "rtt_ns": spec.rtt_ns,
            "rest_rtt_ns": link.rest_rtt_ns(spec),
            "rate_bps": spec.rate_bps,
            "queue_bytes": max(link.queue_bytes(name) for name in DIRECTIONS),
            "changed_by_script": changed,
            **{name: spec.direction_message(name).model_dump(exclude={"compensate_ns"}) for name in DIRECTIONS},
        },
        "rtt_at_rest_ns": {
            "count": at_rest.count,
            "min": at_rest.min_ns,
            "p50": at_rest.p50_ns,
            "p99": at_rest.p99_ns,
        },
        "compensate_ns": link.compensate_ns,
        "calibration": link.calibration,
        "counters": None if stats is None else stats.model_dump(exclude={"event"}),
        "effects": None if stats is None or changed else effects_counted(spec, stats),
        "mtu": spec.mtu,
        "congestion_control_asked": tcp.get("congestion_control"),
        "tcp": dict(tcp),
        "realtime": None if ready is None else ready.realtime,
        "short_slice": None if ready is None else ready.short_slice,
        "offload": None if ready is None else ready.offload,
    }


def link_violations(
    link: Link, at_rest: RttResult, stats: LinkStats | None, lateness: Lateness = OF_A_PLAN
) -> tuple[str, ...]:
    """Differences between the link and what was requested. Without counters (`stats` None) only the RTT at rest is checked."""
    found: tuple[str, ...] = ()
    if link.backend in SHAPING:  # nothing is requested of a bare cable
        found = rtt_violations(link.spec, link.rest_rtt_ns(link.spec), at_rest, lateness)
    return (*found, *counter_violations(link.spec, stats, lateness))


def rtt_violations(spec: LinkSpec, rest_rtt_ns: int, at_rest: RttResult, lateness: Lateness) -> tuple[str, ...]:
    """Violations found by the pings at rest; `rest_rtt_ns` is a ping's expected time over the requested link."""
    allowed_ns = rtt_void_ns(spec.rtt_ns)
    if (
        lateness.rtt_to_tolerance and spec.rtt_ns
    ):  # only where a delay was requested: without one the path's own time cannot be compensated
        allowed_ns = rtt_tolerance_ns(spec.rtt_ns)
    if abs(at_rest.p50_ns - rest_rtt_ns) <= allowed_ns:
        return ()
    seen, requested = format_duration_ns(at_rest.p50_ns), format_duration_ns(spec.rtt_ns)
    sentence = f"the link's RTT at rest was {seen}, requested {requested}"
    on_wire_ns = rest_rtt_ns - spec.rtt_ns
    if on_wire_ns > allowed_ns / 10:
        sentence += f" and {format_duration_ns(on_wire_ns)} for the ping's own bytes at the rate"
    return (sentence,)


def counter_violations(spec: LinkSpec, stats: LinkStats | None, lateness: Lateness) -> tuple[str, ...]:
    """Violations found in the link's counters."""
    if stats is None:
        return ()
    found = [
        sentence
        for name in DIRECTIONS
        for sentence in _direction_violations(spec, _spaced(name), getattr(stats, name), lateness)
    ]
    return (*found, *_mean_violations(stats, lateness))


def unproved(stats: LinkStats | None) -> tuple[str, ...]:
    """What remains unknown about a link without violations, and why."""
    if stats is None:
        return ("the back-end counts nothing: whether the link dropped or delayed packets is unknown",)
    if not (stats.to_server.packets or stats.to_client.packets):
        return ("not one packet crossed the link: what it would have done to one is unknown",)
    return tuple(
        f"the kernel does not tell whether packets were dropped before the link {_spaced(name)} saw them"
        for name in DIRECTIONS
        if getattr(stats, name).drops.socket is None
    )


def crossing_violations(stats: LinkStats, metrics: ServerMetrics) -> tuple[str, ...]:
    """Violations if the load's bytes did not all cross the link. `metrics`: the server's, since the link's counters were reset;
    counts that are None are not checked."""
    found = []
    for name, direction, bytes_counted, slack in (
        ("to server", stats.to_server, metrics.bytes_received, _UNCOUNTED_BYTES),
        ("to client", stats.to_client, metrics.bytes_sent, _UNCOUNTED_BYTES + _UNSENT_BYTES),
    ):
        if direction.packets == 0:
            found.append(f"no packet crossed the link {name}: the load took another path")
        elif direction.wire_bytes + slack < (bytes_counted or 0):
            found.append(
                f"the link {name} carried {direction.wire_bytes} bytes, the server counted {bytes_counted}: "
                "not all of the load went over it"
            )
    return tuple(found)


def _direction_violations(spec: LinkSpec, name: str, direction: DirectionStats, lateness: Lateness) -> list[str]:
    found = []
    drops = direction.drops
    if drops.arena or drops.socket or drops.transmit:
        socket = "unknown" if drops.socket is None else str(drops.socket)
        found.append(
            f"the link {name} lost what no queue explains "
            f"(segments: arena {drops.arena}, transmit {drops.transmit}; packets: socket {socket})"
        )
    late_ns, limit_ns = direction.lateness_p999_ns, max(lateness.p999_ns, lateness.p999_share * spec.rtt_ns)
    if late_ns > limit_ns:
        found.append(
            f"the link {name} was late by {format_duration_ns(late_ns)} (p99.9, "
            f"allowed {format_duration_ns(limit_ns)}): the machine was too busy, or the emulator was stopped"
        )
    return found


def _mean_violations(stats: LinkStats, lateness: Lateness) -> list[str]:
    means = [getattr(stats, name).lateness_mean_ns for name in DIRECTIONS]
    if lateness.mean_ns is None or any(mean is None for mean in means):
        return []
    off_ns = sum(means)
    if abs(off_ns) <= lateness.mean_ns:
        return []
    changed, allowed = "longer" if off_ns > 0 else "shorter", format_duration_ns(lateness.mean_ns)
    sentence = f"the link made each round trip {format_duration_ns(abs(off_ns))} {changed} on average"
    why = "the machine was too busy for the emulator"
    return [f"{sentence} (allowed {allowed}, {MEAN_MAX_SHARE:.0%} of a round trip): {why}"]


def effects_counted(spec: LinkSpec, stats: LinkStats) -> dict[DirectionName, dict[str, dict[str, Any]]]:
    """Requested and counted share of each random effect, relative to the segments that the effect applied to."""
    return {name: _counted(spec.direction(name), getattr(stats, name)) for name in DIRECTIONS}


def effect_warnings(spec: LinkSpec, stats: LinkStats | None) -> tuple[str, ...]:
    """Warnings about effects whose counts contradict what was requested at 99 % confidence; one in a hundred does so by chance."""
    if stats is None:
        return ()
    return tuple(
        f"{effect} {_spaced(name)}: requested {row['asked']:.3%}, counted {row['counted']:.3%} of {row['of']} segments "
        f"(99 % interval {row['low']:.3%} to {row['high']:.3%})"
        for name, rows in effects_counted(spec, stats).items()
        for effect, row in rows.items()
        if not row["low"] <= row["asked"] <= row["high"]
    )


def _counted(direction: DirectionSpec, seen: DirectionStats) -> dict[str, dict[str, Any]]:
    drops = seen.drops
    rows = {}
    if direction.loss is not None:
        # Both are counted when a segment arrives, so segments still in flight at the end are in both.
        rows["loss"] = _row(loss_share(direction.loss), drops.loss, seen.admitted, _clumping(direction.loss))
    passed = max(seen.segments - seen.duplicated, 0)  # these are counted when a segment leaves
    if direction.duplicate:
        rows["duplicate"] = _row(direction.duplicate, seen.duplicated, passed, 1.0)
    if direction.corrupt:
        rows["corrupt"] = _row(direction.corrupt, seen.corrupted, passed, 1.0)
    return rows


def _clumping(loss: IndependentLoss | BurstLoss) -> float:
    """Variance of the share of lost segments, relative to that of independent losses: bursts leave fewer independent events."""
    if isinstance(loss, IndependentLoss):
        return 1.0
    share, moves = loss_share(loss), loss.to_bad + loss.to_good
    if not 0 < share < 1 or moves == 0:
        return 1.0
    bad = loss.to_bad / moves
    apart = (loss.loss_bad - loss.loss_good) ** 2 * bad * (1 - bad)
    return 1 + 2 * apart * (1 - moves) / moves / (share * (1 - share))


def _row(expected: float, count: int, of: int, clumping: float) -> dict[str, Any]:
    """One effect's counts with the Wilson interval of its share, using the effective sample size."""
    counted = count / of if of else 0.0
    low, high = 0.0, 1.0
    if of:
        worth = of / max(clumping, 1e-9)
        middle = (counted + _Z99**2 / (2 * worth)) / (1 + _Z99**2 / worth)
        half = _Z99 / (1 + _Z99**2 / worth) * math.sqrt(counted * (1 - counted) / worth + _Z99**2 / (4 * worth**2))
        low, high = max(middle - half, 0.0), min(middle + half, 1.0)
    return {"asked": expected, "counted": counted, "count": count, "of": of, "low": low, "high": high}


def _spaced(name: DirectionName) -> str:
    return name.replace("_", " ")
