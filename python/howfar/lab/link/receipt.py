"""Builds the receipt of a trial's link, and finds deviations that need the requested specification. No I/O."""

from __future__ import annotations

import math
from dataclasses import replace

from howfar.contract.messages import BurstLoss, DirectionStats, IndependentLoss, LinkStats, RttResult
from howfar.contract.receipt import (
    MEAN_MAX_SHARE,
    EffectShare,
    LatenessLimits,
    LinkCalibration,
    LinkCounters,
    LinkReceipt,
    QuantilesNs,
    RequestedDirection,
    RequestedLink,
    TcpSettings,
)
from howfar.contract.violation import Violation, violation
from howfar.lab.link import DIRECTIONS, Link, LinkSpec
from howfar.lab.link.backends import backends
from howfar.lab.link.settings import loss_share
from howfar.lab.link.spec import DirectionName, DirectionSpec
from howfar.store.server_metrics import ServerMetrics
from howfar.units import format_duration_ns, format_rate_bps

STRICT_LIMITS = LatenessLimits(strict_rtt=True, p999_ns=100_000, p999_share=0.01, mean_ns=None)
"""Bounds for a link used without servers: the unloaded RTT must be within its tolerance, and at most one packet in a thousand may be
more than 100 µs (or 1 % of the RTT) late."""
RUN_LIMITS = LatenessLimits(strict_rtt=False, p999_ns=5_000_000, p999_share=0.1, mean_ns=None)
"""Bounds for a trial in a run. A transaction of sixteen round trips is 32 packets, so one late packet in a thousand affects every
thirtieth transaction: a packet more than 5 ms (or 10 % of the RTT) late shows in the transactions' p99. Shorter stalls of the machine
show in the p99 of every path. On two CPUs a lateness of 0.12
to 0.61 ms was measured with a load of two connections, and 1.06 to 1.4 ms with sixteen connections that saturate the CPUs."""
_ROUND_TRIP_P999_SHARE = 0.2
"""Bound on the p99.9 of the packets' lateness, as a share of a round trip that includes time in queues."""
MAX_GOODPUT_DEVIATION = 0.02
"""Maximum relative deviation of the goodput from the expected one without a warning."""
_MAX_UNREPORTED_RTT_ERROR = 0.1
"""Maximum error of an unloaded RTT without a warning, as a share of the RTT. Below 0.3 ms the tolerance, which is in µs, is larger."""
_UNCOUNTED_BYTES = 64 * 1024
"""Upper bound on the bytes of our own queries for counters around the load, which the server counts but the link does not carry."""
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
    """Warnings about a link at rest: about an error of the RTT that is within the tolerance but a large share of the RTT, and about
    the goodput."""
    measured_ns, warnings = calibration.rtt_p50_ns, goodput_warnings(spec, calibration)
    if measured_ns is None:
        return warnings
    deviation = measured_ns / rest_rtt_ns - 1 if rest_rtt_ns else 0.0
    if not spec.rtt_ns or abs(deviation) <= _MAX_UNREPORTED_RTT_ERROR:
        return warnings
    warning = (
        f"the unloaded RTT is {format_duration_ns(measured_ns)}, {abs(deviation):.0%} "
        f"{'longer' if deviation > 0 else 'shorter'} than requested: "
        "what is measured over this link holds for the measured RTT"
    )
    return (warning, *warnings)


def goodput_warnings(spec: LinkSpec, calibration: LinkCalibration) -> tuple[str, ...]:
    """Warnings about directions whose goodput at rest differs from what the rate allows, or whose rate is too low to measure it."""
    warnings = []
    for name in DIRECTIONS:
        goodput = calibration.goodput_bps
        expected, measured = spec.expected_goodput_bps(name), None if goodput is None else goodput.in_direction(name)
        if expected is not None and measured is None and goodput is not None:
            warnings.append(
                f"goodput {_direction_words(name)} is unknown: at {format_rate_bps(expected)} too few segments cross in 10 s"
            )
        if (
            expected is not None
            and measured is not None
            and abs(measured - expected) > MAX_GOODPUT_DEVIATION * expected
        ):
            warnings.append(
                f"goodput {_direction_words(name)} was {format_rate_bps(measured)} where the link allows {format_rate_bps(expected)}"
            )
    return tuple(warnings)


def link_receipt(
    link: Link, rtt_at_rest: RttResult, stats: LinkStats | None, tcp: TcpSettings, changed: bool = False
) -> LinkReceipt:
    """The receipt of one trial's link: as requested, as calibrated, as measured before the load, and its counters under load.
    `changed`: whether a script changed the link under the load."""
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
        rtt_at_rest_ns=QuantilesNs(
            count=rtt_at_rest.count, min=rtt_at_rest.min_ns, p50=rtt_at_rest.p50_ns, p99=rtt_at_rest.p99_ns
        ),
        compensate_ns=link.compensate_ns,
        calibration=link.calibration,
        counters=link_counters(stats),
        effects=None if stats is None or changed else {**effect_shares(spec, stats)},
        mtu=spec.mtu,
        congestion_control_asked=tcp.congestion_control,
        tcp=tcp,
        realtime=None if ready is None else ready.realtime,
        short_slice=None if ready is None else ready.short_slice,
        offload=None if ready is None else ready.offload,
    )


def link_counters(stats: LinkStats | None) -> LinkCounters | None:
    """The counters as receipts contain them."""
    return None if stats is None else LinkCounters(to_server=stats.to_server, to_client=stats.to_client)


def _requested_direction(spec: LinkSpec, name: DirectionName) -> RequestedDirection:
    return RequestedDirection.model_validate(spec.direction_message(name).model_dump(exclude={"compensate_ns"}))


def unknown_properties(stats: LinkStats | None) -> tuple[str, ...]:
    """The properties of a link that cannot be checked, as sentences that say why."""
    if stats is None:
        return ("the back-end counts nothing: whether the link dropped or delayed packets is unknown",)
    if not (stats.to_server.packets or stats.to_client.packets):
        return ("not one packet crossed the link: what it would have done to one is unknown",)
    return tuple(
        f"the kernel does not tell whether packets were dropped before the link {_direction_words(name)} saw them"
        for name in DIRECTIONS
        if getattr(stats, name).drops.socket is None
    )


def crossing_violations(stats: LinkStats, metrics: ServerMetrics) -> tuple[Violation, ...]:
    """Violations if some of the load's bytes did not cross the link. `metrics`: growth of the server's counters since the link's
    counters were reset; counters that are None are not checked."""
    violations = []
    for end, direction, bytes_counted, slack in (
        ("server", stats.to_server, metrics.bytes_received, _UNCOUNTED_BYTES),
        ("client", stats.to_client, metrics.bytes_sent, _UNCOUNTED_BYTES + _UNSENT_BYTES),
    ):
        if direction.packets == 0:
            violations.append(violation("link-not-crossed", end=end))
        elif direction.wire_bytes + slack < (bytes_counted or 0):
            counts = {"carried_bytes": direction.wire_bytes, "counted_bytes": bytes_counted}
            violations.append(violation("link-carried-too-little", end=end, **counts))
    return tuple(violations)


def effect_shares(spec: LinkSpec, stats: LinkStats) -> dict[DirectionName, dict[str, EffectShare]]:
    """Requested and counted share of each random effect among the segments that the effect applied to."""
    return {name: _direction_effect_shares(spec.direction(name), getattr(stats, name)) for name in DIRECTIONS}


def effect_warnings(spec: LinkSpec, stats: LinkStats | None) -> tuple[str, ...]:
    """Warnings about effects whose requested share is outside the 99 % interval of the counted share. Chance alone causes one warning
    in a hundred checks."""
    if stats is None:
        return ()
    return tuple(
        f"{effect} {_direction_words(name)}: requested {row.requested:.3%}, counted {row.counted:.3%} of {row.of} segments "
        f"(99 % interval {row.low:.3%} to {row.high:.3%})"
        for name, rows in effect_shares(spec, stats).items()
        for effect, row in rows.items()
        if not row.low <= row.requested <= row.high
    )


def _direction_effect_shares(direction: DirectionSpec, stats: DirectionStats) -> dict[str, EffectShare]:
    drops = stats.drops
    shares = {}
    if direction.loss is not None:
        # Losses and admissions are both counted when a segment arrives, so both include segments still in flight at the end.
        shares["loss"] = _effect_share(
            loss_share(direction.loss), drops.loss, stats.admitted, _variance_inflation(direction.loss)
        )
    # Duplications and corruptions are counted when a segment leaves.
    forwarded = max(stats.segments - stats.duplicated, 0)
    if direction.duplicate:
        shares["duplicate"] = _effect_share(direction.duplicate, stats.duplicated, forwarded, 1.0)
    if direction.corrupt:
        shares["corrupt"] = _effect_share(direction.corrupt, stats.corrupted, forwarded, 1.0)
    return shares


def _variance_inflation(loss: IndependentLoss | BurstLoss) -> float:
    """Variance of the share of lost segments, relative to its variance if losses were independent; bursts increase it."""
    if isinstance(loss, IndependentLoss):
        return 1.0
    share, transitions = loss_share(loss), loss.to_bad + loss.to_good
    if not 0 < share < 1 or transitions == 0:
        return 1.0
    bad_share = loss.to_bad / transitions
    variance_between_states = (loss.loss_bad - loss.loss_good) ** 2 * bad_share * (1 - bad_share)
    return 1 + 2 * variance_between_states * (1 - transitions) / transitions / (share * (1 - share))


def _effect_share(requested: float, count: int, total: int, inflation: float) -> EffectShare:
    """Counts of one effect, and the Wilson interval of its share. `inflation`: variance inflation, which reduces the effective sample
    size."""
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
    return EffectShare(requested=requested, counted=counted, count=count, of=total, low=low, high=high)


def _direction_words(name: DirectionName) -> str:
    return name.replace("_", " ")
