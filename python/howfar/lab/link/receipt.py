"""The receipt of a trial's link, and how that link deviated from the requested one. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from howfar.contract.messages import BurstLoss, DirectionStats, IndependentLoss, LinkStats, RttResult
from howfar.contract.receipt import (
    EffectShare,
    LinkCalibration,
    LinkCounters,
    LinkReceipt,
    QuantilesNs,
    RequestedDirection,
    RequestedLink,
    TcpSettings,
)
from howfar.lab.link import DIRECTIONS, Link, LinkSpec
from howfar.lab.link.backends import SHAPING, backends
from howfar.lab.link.settings import loss_share
from howfar.lab.link.spec import DirectionName, DirectionSpec
from howfar.plan.quantities import rtt_tolerance_ns, rtt_void_ns
from howfar.store.server_metrics import ServerMetrics
from howfar.units import format_duration_ns, format_rate_bps


@dataclass(frozen=True)
class LatenessLimits:
    """Bounds on how late packets may leave, and on the error of the RTT at rest."""

    strict_rtt: bool
    """Whether the RTT at rest must be within `rtt_tolerance_ns`, or only within the larger `rtt_void_ns`, which makes a trial void."""
    p999_ns: int
    p999_share: float
    """Bound on the lateness of all but one packet in a thousand: `p999_ns`, or this share of the RTT, whichever is more."""
    mean_ns: float | None
    """Bound on the mean lateness, summed over both directions; None if it is not judged."""


MEAN_MAX_SHARE = 0.02
"""Maximum mean lateness as a share of a round trip. A closed loop waits for each round trip, so its throughput is off by this share
at most, whatever the distribution. A bound on the 99th percentile alone would allow the other 99 packets to be just below it."""
STRICT_LIMITS = LatenessLimits(strict_rtt=True, p999_ns=100_000, p999_share=0.01, mean_ns=None)
"""Bounds for a link used alone: one packet in a thousand at most 100 µs or 1 % of the RTT late, RTT at rest within its tolerance."""
RUN_LIMITS = LatenessLimits(strict_rtt=False, p999_ns=2_000_000, p999_share=0.1, mean_ns=None)
"""Bounds for a trial in a run. A transaction of sixteen round trips is 32 packets, so one late packet in a thousand affects every
thirtieth transaction: a packet more than 2 ms (or 10 % of the RTT) late shows in the transactions' p99. On two CPUs a lateness of 0.12
to 0.61 ms was measured with a load of two connections, 1.06 to 1.4 ms with sixteen that saturate the CPUs."""
_ROUND_TRIP_P999_SHARE = 0.2
MAX_GOODPUT_DEVIATION = 0.02
_MAX_UNREPORTED_RTT_ERROR = 0.1
"""Maximum error of an RTT at rest without a warning, as a share; below 0.3 ms the tolerance, which is in µs, is larger."""
_UNCOUNTED_BYTES = 64 * 1024
"""Upper bound on our own queries for counters before and after the load, which the server counts but the link does not carry."""
_UNSENT_BYTES = 16 * 2**20
"""Upper bound on the bytes that the server has written but that its kernel still holds when the load ends. Bytes that the server has
read have crossed the link."""
_Z99 = 2.5758
"""Quantile of the normal distribution: 99 % lie within this many standard deviations."""


def limits_for_trial(round_trip_ns: float) -> LatenessLimits:
    """Bounds for a trial with this mean round trip, which includes time in queues at server and link; 0 if it is unknown.

    When many connections wait for each other, a round trip takes up to a hundred RTTs, and a packet that is late by a small fraction
    of that changes little. Hundreds of connections also send at the same moment, and any sender transmits their packets one after the
    other.
    """
    return replace(
        RUN_LIMITS,
        p999_ns=max(RUN_LIMITS.p999_ns, int(_ROUND_TRIP_P999_SHARE * round_trip_ns)),
        mean_ns=MEAN_MAX_SHARE * round_trip_ns or None,
    )


def rest_warnings(spec: LinkSpec, rest_rtt_ns: int, calibration: LinkCalibration) -> tuple[str, ...]:
    """Warnings about a link at rest: about its RTT if the error is a large share of it although within the tolerance, and about its
    goodput."""
    measured_ns, warnings = calibration.rtt_p50_ns, goodput_warnings(spec, calibration)
    if measured_ns is None:
        return warnings
    deviation = measured_ns / rest_rtt_ns - 1 if rest_rtt_ns else 0.0
    if not spec.rtt_ns or abs(deviation) <= _MAX_UNREPORTED_RTT_ERROR:
        return warnings
    warning = (
        f"the RTT at rest is {format_duration_ns(measured_ns)}, {abs(deviation):.0%} "
        f"{'longer' if deviation > 0 else 'shorter'} than requested: "
        "what is measured over this link holds for the measured RTT"
    )
    return (warning, *warnings)


def goodput_warnings(spec: LinkSpec, calibration: LinkCalibration) -> tuple[str, ...]:
    """Warnings about directions whose goodput at rest differs from what the rate allows, or whose rate is too low to measure it."""
    warnings = []
    for name in DIRECTIONS:
        goodput = calibration.goodput_bps
        expected, measured = spec.expected_goodput_bps(name), None if goodput is None else goodput.of(name)
        if expected is not None and measured is None and goodput is not None:
            warnings.append(
                f"goodput {_with_space(name)} is unknown: at {format_rate_bps(expected)} too few segments cross in 10 s"
            )
        if (
            expected is not None
            and measured is not None
            and abs(measured - expected) > MAX_GOODPUT_DEVIATION * expected
        ):
            warnings.append(
                f"goodput {_with_space(name)} was {format_rate_bps(measured)} where the link allows {format_rate_bps(expected)}"
            )
    return tuple(warnings)


def link_receipt(
    link: Link,
    at_rest: RttResult,
    stats: LinkStats | None,
    tcp: TcpSettings,
    changed: bool = False,
) -> LinkReceipt:
    """The receipt of one trial's link: as requested, as calibrated, as measured at rest before the load, and its counters under load.

    `changed`: whether a script changed the link under the load.
    """
    spec, ready = link.spec, link.ready
    return LinkReceipt(
        backend=link.backend,
        arrival=backends()[link.backend].ARRIVAL,
        requested=RequestedLink(
            rtt_ns=spec.rtt_ns,
            rest_rtt_ns=link.rest_rtt_ns(spec),
            rate_bps=spec.rate_bps,
            queue_bytes=max(link.queue_bytes(name) for name in DIRECTIONS),
            changed_by_script=changed,
            to_server=_requested_direction(spec, "to_server"),
            to_client=_requested_direction(spec, "to_client"),
        ),
        rtt_at_rest_ns=QuantilesNs(count=at_rest.count, min=at_rest.min_ns, p50=at_rest.p50_ns, p99=at_rest.p99_ns),
        compensate_ns=link.compensate_ns,
        calibration=link.calibration,
        counters=None if stats is None else LinkCounters(to_server=stats.to_server, to_client=stats.to_client),
        effects=None if stats is None or changed else {**effect_shares(spec, stats)},
        mtu=spec.mtu,
        congestion_control_asked=tcp.congestion_control,
        tcp=tcp,
        realtime=None if ready is None else ready.realtime,
        short_slice=None if ready is None else ready.short_slice,
        offload=None if ready is None else ready.offload,
    )


def _requested_direction(spec: LinkSpec, name: DirectionName) -> RequestedDirection:
    return RequestedDirection.model_validate(spec.direction_message(name).model_dump(exclude={"compensate_ns"}))


def link_violations(
    link: Link, at_rest: RttResult, stats: LinkStats | None, limits: LatenessLimits = RUN_LIMITS
) -> tuple[str, ...]:
    """Deviations of the link from the request. Without counters (`stats` None) only the RTT at rest is checked."""
    violations: tuple[str, ...] = ()
    if link.backend in SHAPING:  # a bare cable has no requested RTT
        violations = rtt_violations(link.spec, link.rest_rtt_ns(link.spec), at_rest, limits)
    return (*violations, *counter_violations(link.spec, stats, limits))


def rtt_violations(spec: LinkSpec, expected_ns: int, at_rest: RttResult, limits: LatenessLimits) -> tuple[str, ...]:
    """Violations found by the pings at rest; `expected_ns` is a ping's expected time over the requested link."""
    allowed_ns = rtt_void_ns(spec.rtt_ns)
    # The tight limit applies only if a delay was requested: without one the path's own time cannot be subtracted from the delay.
    if limits.strict_rtt and spec.rtt_ns:
        allowed_ns = rtt_tolerance_ns(spec.rtt_ns)
    if abs(at_rest.p50_ns - expected_ns) <= allowed_ns:
        return ()
    measured, requested = format_duration_ns(at_rest.p50_ns), format_duration_ns(spec.rtt_ns)
    violation = f"the link's RTT at rest was {measured}, requested {requested}"
    transmission_ns = expected_ns - spec.rtt_ns
    if transmission_ns > allowed_ns / 10:
        violation += f" and {format_duration_ns(transmission_ns)} for the ping's own bytes at the rate"
    return (violation,)


def counter_violations(spec: LinkSpec, stats: LinkStats | None, limits: LatenessLimits) -> tuple[str, ...]:
    """Violations found in the link's counters."""
    if stats is None:
        return ()
    violations = [
        sentence
        for name in DIRECTIONS
        for sentence in _direction_violations(spec, _with_space(name), getattr(stats, name), limits)
    ]
    return (*violations, *_mean_violations(stats, limits))


def unknown_properties(stats: LinkStats | None) -> tuple[str, ...]:
    """Sentences on what remains unknown about a link without violations, and why."""
    if stats is None:
        return ("the back-end counts nothing: whether the link dropped or delayed packets is unknown",)
    if not (stats.to_server.packets or stats.to_client.packets):
        return ("not one packet crossed the link: what it would have done to one is unknown",)
    return tuple(
        f"the kernel does not tell whether packets were dropped before the link {_with_space(name)} saw them"
        for name in DIRECTIONS
        if getattr(stats, name).drops.socket is None
    )


def crossing_violations(stats: LinkStats, metrics: ServerMetrics) -> tuple[str, ...]:
    """Violations if some of the load's bytes did not cross the link. `metrics`: the server's counters since the link's counters were
    reset; those that are None are not checked."""
    violations = []
    for name, direction, bytes_counted, slack in (
        ("to server", stats.to_server, metrics.bytes_received, _UNCOUNTED_BYTES),
        ("to client", stats.to_client, metrics.bytes_sent, _UNCOUNTED_BYTES + _UNSENT_BYTES),
    ):
        if direction.packets == 0:
            violations.append(f"no packet crossed the link {name}: the load took another path")
        elif direction.wire_bytes + slack < (bytes_counted or 0):
            violations.append(
                f"the link {name} carried {direction.wire_bytes} bytes, the server counted {bytes_counted}: "
                "not all of the load went over it"
            )
    return tuple(violations)


def _direction_violations(spec: LinkSpec, name: str, direction: DirectionStats, limits: LatenessLimits) -> list[str]:
    violations = []
    drops = direction.drops
    if drops.arena or drops.socket or drops.transmit:
        socket = "unknown" if drops.socket is None else str(drops.socket)
        violations.append(
            f"the link {name} lost what no queue explains "
            f"(segments: arena {drops.arena}, transmit {drops.transmit}; packets: socket {socket})"
        )
    late_ns, limit_ns = direction.lateness_p999_ns, max(limits.p999_ns, limits.p999_share * spec.rtt_ns)
    if late_ns > limit_ns:
        violations.append(
            f"the link {name} was late by {format_duration_ns(late_ns)} (p99.9, "
            f"allowed {format_duration_ns(limit_ns)}): the machine was too busy, or the emulator was stopped"
        )
    return violations


def _mean_violations(stats: LinkStats, limits: LatenessLimits) -> list[str]:
    means = [getattr(stats, name).lateness_mean_ns for name in DIRECTIONS]
    if limits.mean_ns is None or any(mean is None for mean in means):
        return []
    mean_ns = sum(means)
    if abs(mean_ns) <= limits.mean_ns:
        return []
    longer_or_shorter, allowed = "longer" if mean_ns > 0 else "shorter", format_duration_ns(limits.mean_ns)
    sentence = f"the link made each round trip {format_duration_ns(abs(mean_ns))} {longer_or_shorter} on average"
    reason = "the machine was too busy for the emulator"
    return [f"{sentence} (allowed {allowed}, {MEAN_MAX_SHARE:.0%} of a round trip): {reason}"]


def effect_shares(spec: LinkSpec, stats: LinkStats) -> dict[DirectionName, dict[str, EffectShare]]:
    """Requested and counted share of each random effect among the segments that the effect applied to."""
    return {name: _direction_effect_shares(spec.direction(name), getattr(stats, name)) for name in DIRECTIONS}


def effect_warnings(spec: LinkSpec, stats: LinkStats | None) -> tuple[str, ...]:
    """Warnings about effects whose requested share is outside the 99 % interval of the counted share. One in a hundred is by
    chance."""
    if stats is None:
        return ()
    return tuple(
        f"{effect} {_with_space(name)}: requested {row.requested:.3%}, counted {row.counted:.3%} of {row.of} segments "
        f"(99 % interval {row.low:.3%} to {row.high:.3%})"
        for name, rows in effect_shares(spec, stats).items()
        for effect, row in rows.items()
        if not row.low <= row.requested <= row.high
    )


def _direction_effect_shares(direction: DirectionSpec, stats: DirectionStats) -> dict[str, EffectShare]:
    drops = stats.drops
    rows = {}
    if direction.loss is not None:
        # Losses and admissions are both counted when a segment arrives, so both include segments still in flight at the end.
        rows["loss"] = _share_row(
            loss_share(direction.loss), drops.loss, stats.admitted, _variance_inflation(direction.loss)
        )
    passed = max(stats.segments - stats.duplicated, 0)  # duplicates and corruption are counted when a segment leaves
    if direction.duplicate:
        rows["duplicate"] = _share_row(direction.duplicate, stats.duplicated, passed, 1.0)
    if direction.corrupt:
        rows["corrupt"] = _share_row(direction.corrupt, stats.corrupted, passed, 1.0)
    return rows


def _variance_inflation(loss: IndependentLoss | BurstLoss) -> float:
    """Variance of the share of lost segments, relative to its variance if losses were independent; bursts increase it."""
    if isinstance(loss, IndependentLoss):
        return 1.0
    share, transitions = loss_share(loss), loss.to_bad + loss.to_good
    if not 0 < share < 1 or transitions == 0:
        return 1.0
    bad_share = loss.to_bad / transitions
    between_states = (loss.loss_bad - loss.loss_good) ** 2 * bad_share * (1 - bad_share)
    return 1 + 2 * between_states * (1 - transitions) / transitions / (share * (1 - share))


def _share_row(expected: float, count: int, total: int, inflation: float) -> EffectShare:
    """One effect's counts, and the Wilson interval of its share. `inflation`: the variance inflation, which reduces the effective
    sample size."""
    counted = count / total if total else 0.0
    low, high = 0.0, 1.0
    if total:
        effective_n = total / max(inflation, 1e-9)
        center = (counted + _Z99**2 / (2 * effective_n)) / (1 + _Z99**2 / effective_n)
        half_width = (
            _Z99
            / (1 + _Z99**2 / effective_n)
            * math.sqrt(counted * (1 - counted) / effective_n + _Z99**2 / (4 * effective_n**2))
        )
        low, high = max(center - half_width, 0.0), min(center + half_width, 1.0)
    return EffectShare(requested=expected, counted=counted, count=count, of=total, low=low, high=high)


def _with_space(name: DirectionName) -> str:
    return name.replace("_", " ")
