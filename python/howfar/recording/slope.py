"""The slope of an application's time over an added delay: how many round trips it waits for, one after the other.

time = intercept + slope x delay. Blocks measure each delay once, in random order; a line is fitted to each block, and its slope and
intercept are the values of which mean and interval are taken. Pure; `analyze` is the start.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from howfar.report.document import Answer, Cell, Column, Document, Heading, Table, Text, Warnings
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, brackets, in_brackets, mean_interval
from howfar.units import format_duration_ns

RTTS_NS = (200_000, 500_000, 1_000_000, 5_000_000, 20_000_000, 85_000_000)
"""RTTs that every report names."""
KINK_SHARE = 0.05
"""A change of the slope below this share is no kink, however narrow its interval."""


IdleCpus = Literal["polling", "as-found"]
"""Whether idle CPUs were kept from sleeping, which makes waking them a part of nothing measured here."""


class Observation(Part):
    """One request, or one run of the command."""

    block: int
    delay_ns: int | None
    """Delay added to each round trip; None: without the tap."""
    held_ns: int
    """How long the tap really held a round trip, in the mean."""
    echo_ns: int
    """Round trip to an echo behind such a tap, right before."""
    took_ns: int
    round_trips: int
    connections: int


class Kink(Part):
    """A change of the slope between two delays."""

    from_ns: int
    to_ns: int
    before: Estimate
    after: Estimate


class Slope(Part):
    """The result, in milliseconds unless a name says otherwise."""

    slope: Estimate
    """Round trips on the critical path."""
    intercept_ms: Estimate
    """The time without any added delay and without the tap."""
    times: dict[str, Estimate]
    """Time by the RTT that the path adds to the present one; `now` is the present path."""
    measured_ms: Estimate | None
    """Time on the present path without the tap, where that could be measured."""
    tap_us: float
    """What the tap itself costs a round trip; subtracted."""
    round_trips: float
    """Round trips of a page, as the tap counted them."""
    connections: float
    kinks: tuple[Kink, ...]
    blocks: int
    longest_ns: int
    """Times beyond this added delay are extrapolated."""
    idle: IdleCpus
    observations: tuple[Observation, ...]


class Costs(Part):
    """Costs measured with an echo instead of the application."""

    tap_us: float
    """What the tap costs a round trip."""
    loopback_us: float | None
    """What loopback TCP adds to a round trip over a Unix socket; None where the server is on TCP."""
    idle: IdleCpus


def analyze(observations: Sequence[Observation], costs: Costs) -> Slope:
    """Fit each block and combine the blocks."""
    tap_us, loopback_us = costs.tap_us, costs.loopback_us
    tapped = [seen for seen in observations if seen.delay_ns is not None]
    blocks = sorted({seen.block for seen in tapped})
    fits = [_fit([seen for seen in tapped if seen.block == block]) for block in blocks]
    slope = mean_interval([slope for slope, _ in fits])

    def at(added_ms: float) -> Estimate:
        return mean_interval([intercept + slope * (added_ms - tap_us / 1e3) for slope, intercept in fits])

    times = {"now": at(0.0)}
    if loopback_us is not None:
        times["loopback"] = at(loopback_us / 1e3)
    times |= {format_duration_ns(rtt_ns): at(rtt_ns / 1e6) for rtt_ns in RTTS_NS}
    untapped = [seen.took_ns / 1e6 for seen in observations if seen.delay_ns is None]
    return Slope(
        slope=slope,
        intercept_ms=at(0.0),
        times=times,
        measured_ms=mean_interval(untapped) if untapped else None,
        tap_us=tap_us,
        round_trips=statistics.mean(seen.round_trips for seen in tapped),
        connections=statistics.mean(seen.connections for seen in tapped),
        kinks=_kinks(tapped),
        blocks=len(blocks),
        longest_ns=max(seen.delay_ns or 0 for seen in tapped),
        idle=costs.idle,
        observations=tuple(observations),
    )


def _fit(seen: Sequence[Observation]) -> tuple[float, float]:
    """Slope and intercept (ms) of a line through one block, by least squares. x is what the delay added to a round trip of the echo:
    it includes the tap's timer and the waking of idle CPUs, so they are not in the slope."""
    at_rest = statistics.mean(one.echo_ns for one in seen if one.delay_ns == min(each.delay_ns or 0 for each in seen))
    x = [(one.echo_ns - at_rest) / 1e6 for one in seen]
    fitted = statistics.linear_regression(x, [one.took_ns / 1e6 for one in seen])
    return fitted.slope, fitted.intercept


def _kinks(tapped: Sequence[Observation]) -> tuple[Kink, ...]:
    """Neighbouring delays between which the slope differs, by the intervals of the blocks' differences, allowing for their number."""
    delays = sorted({seen.delay_ns or 0 for seen in tapped})
    pieces = list(pairwise(delays))
    found = []
    for one, other in pairwise(pieces):
        slopes = [(_between(block, *one), _between(block, *other)) for block in _by_block(tapped)]
        level = 1 - 0.05 / (len(pieces) - 1)
        change = mean_interval([after - before for before, after in slopes], level)
        before, after = (mean_interval([pair[side] for pair in slopes]) for side in (0, 1))
        if change.low is None or change.high is None or change.low <= 0 <= change.high:
            continue
        if abs(change.value) > KINK_SHARE * abs(before.value):
            found.append(Kink(from_ns=one[1], to_ns=other[1], before=before, after=after))
    return tuple(found)


def _by_block(tapped: Sequence[Observation]) -> list[list[Observation]]:
    return [[seen for seen in tapped if seen.block == block] for block in sorted({seen.block for seen in tapped})]


def _between(block: Sequence[Observation], low_ns: int, high_ns: int) -> float:
    return _fit([seen for seen in block if seen.delay_ns in (low_ns, high_ns)])[0]


def document(found: Slope, what: str) -> Document:
    """The report of `found`; `what` names the page or command."""
    slope, now = found.slope, found.measured_ms or found.times["now"]
    if slope.low is not None and slope.low <= 0:
        answer = f"{what} takes {_ms(now)} and waits for no detectable round trip ({_number(slope)})."
    else:
        answer = (
            f"{what} takes {_ms(now)} and waits for {_number(slope)} round trips to the server in sequence. "
            f"With 0.5 ms more RTT it would take {_ms(found.times['0.5ms'])}."
        )
    heads = (Column("the path adds", left=True), Column("time", "95 % interval"), Column("", left=True))
    rows = tuple(
        (
            Cell("nothing (present path)" if name == "now" else name),
            Cell(_value(time.value), brackets(time, _value)),
            Cell(_remark(found, name)),
        )
        for name, time in found.times.items()
    )
    measured = found.measured_ms
    notes = (f"Measured on the present path without the tap: {_ms(measured)}.",) if measured else ()
    table = Table("", heads, rows, notes, main=True)
    return Document(
        "howfar slope",
        (
            Answer(answer),
            Heading("Its time on other paths"),
            table,
            *_warnings(found),
            Heading("How it was measured"),
            Text(_how(found)),
        ),
    )


def _remark(found: Slope, name: str) -> str:
    beyond = [rtt_ns for rtt_ns in RTTS_NS if rtt_ns > found.longest_ns and format_duration_ns(rtt_ns) == name]
    return "extrapolated" if beyond else ""


def _warnings(found: Slope) -> tuple[Warnings, ...]:
    lines = [
        f"The line has a kink: below an added {format_duration_ns(kink.from_ns)} the slope is {_number(kink.before)}, up to "
        f"{format_duration_ns(kink.to_ns)} it is {_number(kink.after)}. A timeout, an exhausted pool or overlapping work can cause "
        "this; do not rely on times beyond it."
        for kink in found.kinks
    ]
    if found.blocks < MIN_BLOCKS:
        lines.append(f"{found.blocks} blocks allow no interval; {MIN_BLOCKS} would.")
    now, measured = found.times["now"], found.measured_ms
    if measured and _apart(now, measured):
        lines.append(f"The line says {_ms(now)} for the present path, which without the tap takes {_ms(measured)}.")
    return (Warnings(tuple(lines)),) if lines else ()


def _apart(one: Estimate, other: Estimate) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.high < other.low or other.high < one.low


def _how(found: Slope) -> str:
    return (
        f"{found.blocks} blocks, each with every added delay once, in random order. The tap counted "
        f"{found.round_trips:.1f} round trips and {found.connections:.1f} connections each time; on a network a connect is a round "
        f"trip too. Those that overlap count once in the slope. The tap costs {found.tap_us:.0f} µs per round trip, which was "
        f"subtracted. Idle CPUs were {'kept polling' if found.idle == 'polling' else 'left as found'}. Bandwidth and encryption are "
        "not in these times."
    )


def _value(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"


def _ms(estimate: Estimate) -> str:
    return in_brackets(estimate, _value)


def _number(estimate: Estimate) -> str:
    return in_brackets(estimate, "{:.1f}".format)
