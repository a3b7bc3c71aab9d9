"""Compression: the share of bytes left, its cost at both ends, and the links on which it pays.

The break-even is the link rate at which the model's throughput is the same with and without compression. It is not simply the rate at
which compressing a byte takes as long as sending it: while many connections work, the processors and the link work at the same time,
and the slower of them decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from howfar.analysis.cells import CellSummary, Floors
from howfar.analysis.summary import RunEvidence
from howfar.bottleneck.limit import Limit
from howfar.experiments.answer import (
    about_the_path,
    answer,
    compared,
    level,
    ratio_of,
    resolved,
    thing,
    where,
    with_plain,
)
from howfar.experiments.pairs import Pair, Tried, levels, pairs
from howfar.model import what_if as model
from howfar.model.facts import ArmFacts
from howfar.model.fit import carried_payload, fit, series, settings_of
from howfar.model.what_if import WhatIf, WhatIfCompression
from howfar.paths import is_modelled
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, interval_text
from howfar.stats.resample import Derived, Difference, within
from howfar.store.records import FactorValue
from howfar.units import format_rate_bps

SLOWEST_BPS, FASTEST_BPS = 1e6, 1e11
"""Rates between which a break-even is sought."""
_POINTS_A_DECADE = 5
_HALVINGS = 50
WORTH = 1.01
"""Ratio of throughputs from which compression pays."""
NOT_RESOLVED = "cost not resolved"
"""Text for an algorithm whose CPU cost is hidden by noise."""
EVERYWHERE = "at every rate looked at"


class BreakEvenPoint(Part):
    """Transactions per second over a link of this rate, by the model, without compression and with it."""

    rate_bps: float
    plain_tps: float
    compressed_tps: float


class CompressionTried(Tried):
    """Compressed over uncompressed throughput at one rate; `predicted` from cells at other rates."""

    rate_bps: float | None
    """Rate of the link. None: no link."""
    predicted: float | None
    predicted_interval: Derived = None
    agrees: bool | None
    """Whether the prediction of better or worse was right, or the interval includes both. None: nothing was predicted."""


class CompressionGain(Part):
    """Throughput with over throughput without, by the model, at one of the measured rates."""

    rate_bps: float
    times: float
    times_interval: Derived = None


class CompressionRow(Part):
    """One algorithm on one kind of data, compared with none."""

    content: str
    algorithm: str
    ratio_to_client: float
    """Bytes on the wire over bytes before compression, for replies."""
    ratio_to_server: float
    client_ns_per_byte: float
    """CPU in addition to the uncompressed session's, per uncompressed byte."""
    client_ns_per_byte_interval: Difference = None
    server_ns_per_byte: float
    server_ns_per_byte_interval: Difference = None
    cost_ns_per_byte: float | None = None
    """CPU cost of both ends together. Noise may make it negative, while each end's own figure is at least 0."""
    cost_ns_per_byte_interval: Difference = None
    break_even_bps: float | None
    """Rate of a link below which it pays on this machine and data, if the link is the limit; None: never, or see `resolved`."""
    break_even_bps_interval: Derived = None
    """Interval, cut to the rates that were examined; a limit at their end means that compression may pay nowhere, or everywhere."""
    extrapolated: bool = False
    """Whether the break-even lies beyond the rates that were measured."""
    resolved: bool = True
    """Whether the interval of its CPU cost is above 0; without one, whether each pair of cells has a cost. If not, no break-even."""
    everywhere: bool = False
    """Whether it pays at every rate that was examined, `break_even_bps` being the fastest of them."""
    measured: tuple[CompressionTried, ...]
    gains: tuple[CompressionGain, ...] = ()
    level_advice: str
    curve: tuple[BreakEvenPoint, ...] = ()
    """Points by the model, ascending rates, for a chart between the measured points. The lines cross at `break_even_bps`."""


class CompressionEconomics(Part):
    rows: tuple[CompressionRow, ...]
    says: str


def costs(facts: Sequence[ArmFacts], content: FactorValue | None) -> tuple[WhatIfCompression, ...]:
    """Costs of each algorithm on this content, over all its cells."""
    found = (_cost(str(algorithm), _tried_on(facts, algorithm, content)) for algorithm in levels(facts, "compression"))
    return tuple(cost for cost in found if cost is not None)


def _tried_on(facts: Sequence[ArmFacts], algorithm: FactorValue, content: FactorValue | None) -> list[Pair]:
    return [pair for pair in pairs(facts, "compression", algorithm) if pair.plain.level("content") == content]


def _cost(algorithm: str, tried: Sequence[Pair]) -> WhatIfCompression | None:
    """Cost as the median over cells, at least 0. None: no cell over a link, whose counters measure the compressed bytes."""
    ratios = [ratio for pair in tried if (ratio := _ratios(pair)) is not None]
    if not ratios:
        return None
    return WhatIfCompression(
        algorithm=algorithm,
        ratio_to_client=median(to_client for to_client, _ in ratios),
        ratio_to_server=median(to_server for _, to_server in ratios),
        client_byte_s=max(median(pair.client_s / pair.payload for pair in tried), 0.0),
        server_byte_s=max(median(pair.server_s / pair.payload for pair in tried), 0.0),
    )


def _is_resolved(tried: Sequence[Pair]) -> bool:
    """Whether the cost is resolved. Compression takes CPU time: cells in which both ends seem to have used no more show noise."""
    return all(pair.client_s + pair.server_s > 0 for pair in tried)


def _ratios(pair: Pair) -> tuple[float, float] | None:
    """Shares of bytes left to the client and to the server, by the same counters in both cells, so that both include connects."""
    after, before = carried_payload(pair.changed), carried_payload(pair.plain)
    return (after[0] / before[0], after[1] / before[1]) if after and before else None


@dataclass(frozen=True)
class _Content:
    """One kind of data: a base without compression, and the cells."""

    name: str
    base: WhatIf
    top: ArmFacts
    facts: tuple[ArmFacts, ...]

    def tps(
        self, rate_bps: float | None, algorithm: str, base: WhatIf | None = None, at: ArmFacts | None = None
    ) -> float:
        """Throughput by the model, at the connections of `at`."""
        settings = settings_of(at or self.top).model_copy(update={"rate_bps": rate_bps, "compression": algorithm})
        return model.answer(base or self.base, settings).tps

    def gain(
        self, rate_bps: float | None, algorithm: str, base: WhatIf | None = None, at: ArmFacts | None = None
    ) -> float:
        """Ratio of throughputs with and without the algorithm."""
        return self.tps(rate_bps, algorithm, base, at) / self.tps(rate_bps, "off", base, at)


def compression(
    facts: Sequence[ArmFacts], workload: Mapping[str, Any], floors: Floors, *, again: bool = False
) -> CompressionEconomics | None:
    """The economics of compression; `worded` completes them before they are quoted. `again`: repeated for intervals, without curves.
    None: nothing was compressed, or no compressed cell has its uncompressed one."""
    rows = tuple(row for content in _contents(facts, workload) for row in _rows(content, floors, again))
    return CompressionEconomics(rows=rows, says="") if rows else None


def worded(found: CompressionEconomics) -> CompressionEconomics:
    """The findings with sentences, and without break-evens of unresolved costs, made once there are intervals."""
    rows = tuple(_judged(row) for row in found.rows)
    advice = {
        name: level_advice([row for row in rows if row.content == name]) for name in {row.content for row in rows}
    }
    rows = tuple(row.model_copy(update={"level_advice": advice[row.content]}) for row in rows)
    return found.model_copy(update={"rows": rows, "says": compression_says(rows)})


def _judged(row: CompressionRow) -> CompressionRow:
    cost, even = row.cost_ns_per_byte_interval, row.break_even_bps_interval
    if not (row.resolved if cost is None else cost[0] > 0):
        nothing = {"break_even_bps": None, "break_even_bps_interval": None, "everywhere": False, "extrapolated": False}
        return row.model_copy(update={"resolved": False, **nothing})
    within_looked = None if even is None else (max(even[0], SLOWEST_BPS), min(even[1], FASTEST_BPS))
    return row.model_copy(update={"resolved": True, "break_even_bps_interval": within_looked})


def _contents(facts: Sequence[ArmFacts], workload: Mapping[str, Any]) -> list[_Content]:
    found = []
    modelled = [each for each in facts if is_modelled(each.arm.factors.get("path")) and each.level("tls") == "off"]
    for name in dict.fromkeys(each.level("content") for each in modelled):
        here = tuple(each for each in modelled if each.level("content") == name)
        plain = [one for one in series(here) if one.factors.get("compression", "off") == "off" and not one.local]
        if plain:
            best = max(plain, key=lambda one: one.top.tps.value)
            base = fit(best.arms, workload).model_copy(update={"compression": costs(here, name)})
            found.append(_Content(str(name), base, best.top, here))
    return found


def _rows(content: _Content, floors: Floors, again: bool) -> list[CompressionRow]:
    rates = sorted({each.rate_bps for each in content.facts if each.rate_bps is not None})
    rows = []
    for cost in content.base.compression:
        tried = list(pairs(content.facts, "compression", cost.algorithm))
        even_bps = break_even_bps(content, cost.algorithm)
        if again and even_bps is None:
            even_bps = SLOWEST_BPS  # it pays nowhere: the lowest rate examined stands for that
        rows.append(
            CompressionRow(
                content=content.name,
                algorithm=cost.algorithm,
                ratio_to_client=cost.ratio_to_client,
                ratio_to_server=cost.ratio_to_server,
                client_ns_per_byte=cost.client_byte_s * 1e9,
                server_ns_per_byte=cost.server_byte_s * 1e9,
                cost_ns_per_byte=median((pair.client_s + pair.server_s) / pair.payload for pair in tried) * 1e9,
                break_even_bps=even_bps,
                resolved=_is_resolved(tried),
                everywhere=even_bps == FASTEST_BPS,
                extrapolated=bool(rates) and even_bps is not None and not rates[0] <= even_bps <= rates[-1],
                measured=tuple(
                    each for pair in tried if (each := _tried(content, cost.algorithm, pair, tried, floors))
                ),
                gains=tuple(CompressionGain(rate_bps=rate, times=content.gain(rate, cost.algorithm)) for rate in rates),
                level_advice="",
                curve=tuple(
                    _point(content, cost.algorithm, step) for step in range(0 if again else _POINTS_A_DECADE * 4 + 1)
                ),
            )
        )
    return rows


def break_even_bps(content: _Content, algorithm: str) -> float | None:
    """The break-even, by halving on the logarithm; the fastest rate examined where it pays even there. None: it pays nowhere."""
    slow, fast = SLOWEST_BPS, FASTEST_BPS
    if content.gain(slow, algorithm) <= WORTH:
        return None
    if content.gain(fast, algorithm) > 1:
        return fast
    for _ in range(_HALVINGS):
        middle = math.sqrt(slow * fast)
        slow, fast = (middle, fast) if content.gain(middle, algorithm) > 1 else (slow, middle)
    return math.sqrt(slow * fast)


def _point(content: _Content, algorithm: str, step: int) -> BreakEvenPoint:
    rate = 1e7 * 10 ** (step / _POINTS_A_DECADE)
    return BreakEvenPoint(
        rate_bps=rate, plain_tps=content.tps(rate, "off"), compressed_tps=content.tps(rate, algorithm)
    )


def _tried(
    content: _Content, algorithm: str, pair: Pair, tried: Sequence[Pair], floors: Floors
) -> CompressionTried | None:
    """Comparison of a measured pair of cells with the prediction from cells at other rates. There is no prediction without such cells,
    nor where it would be right by construction."""
    ratio, rate_bps = pair.ratio, pair.plain.rate_bps
    if ratio is None:
        return None
    cost = _cost(algorithm, [each for each in tried if each.plain.rate_bps != rate_bps])
    predicted = None
    if cost is not None and not pair.only_bytes:
        predicted = content.gain(
            rate_bps, algorithm, content.base.model_copy(update={"compression": (cost,)}), pair.plain
        )
    undecided = ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
    return CompressionTried(
        rate_bps=rate_bps,
        threads=pair.plain.threads,
        ratio=ratio,
        predicted=predicted,
        invalid=not pair.valid,
        below_noise=pair.below_noise(floors),
        agrees=None if predicted is None else undecided or (predicted > 1) == (ratio.value > 1),
    )


# ---------------------------------------------------------------- sentences


def level_advice(rows: Sequence[CompressionRow]) -> str:
    """The best algorithm for each rate of the link, by the model, and where the intervals leave that open. For one content. Empty: not
    resolved."""
    known = [(gain, row.algorithm) for row in rows if row.resolved for gain in row.gains]
    rates = sorted({gain.rate_bps for gain, _ in known})
    return "; ".join(
        f"at {format_rate_bps(rate)} {_best_at([each for each in known if each[0].rate_bps == rate])}" for rate in rates
    )


def _best_at(gains: Sequence[tuple[CompressionGain, str]]) -> str:
    best, name = max(gains, key=lambda each: each[0].times)
    if best.times <= WORTH:
        may = [
            f"{algorithm} may, {_times(gain)}"
            for gain, algorithm in gains
            if gain.times_interval is not None and gain.times_interval[1] > WORTH
        ]
        return "none pays" + (f" ({'; '.join(may)})" if may else "")
    doubts = []
    if best.times_interval is not None:
        low = best.times_interval[0]
        if low <= 1:
            doubts.append("whether it pays is not resolved")
        rivals = [other for gain, other in gains if gain is not best and (gain.times_interval or (0.0, 0.0))[1] >= low]
        if rivals:
            doubts.append(f"not resolved from {', '.join(rivals)}")
    return f"{name} helps most ({'; '.join([_times(best), *doubts])})"


def _times(gain: CompressionGain) -> str:
    return f"{within(gain.times, gain.times_interval, '{:.2f}'.format)} times"


def compression_says(rows: Sequence[CompressionRow]) -> str:
    """The rate below which each algorithm pays, by content."""
    parts = []
    for content in dict.fromkeys(row.content for row in rows):
        named = ", ".join(f"{row.algorithm} {_pays(row)}" for row in rows if row.content == content)
        parts.append(f"{content}: {named}")
    tried = [each for row in rows for each in row.measured]
    decided = [each for each in tried if each.resolved]
    predicted = [each for each in decided if each.agrees is not None]
    text = f"Compression pays on this machine for {'; '.join(parts)}."
    if not decided:
        return f"{text} No difference is resolved in the {len(tried)} measured cells."
    text += f" A difference is resolved in {len(decided)} of {len(tried)} measured cells"
    if not predicted:
        return f"{text}; the model predicted none of these, because it had no cells at another rate."
    among = "these" if len(predicted) == len(decided) else f"the {len(predicted)} of these that it predicted"
    return f"{text}; the model has {sum(bool(each.agrees) for each in predicted)} of {among} right."


def _pays(row: CompressionRow) -> str:
    if not row.resolved:
        return NOT_RESOLVED
    if row.everywhere:
        return EVERYWHERE
    if row.break_even_bps is None:
        return "never"
    text = f"below {within(row.break_even_bps, row.break_even_bps_interval, _rough)}"
    low, high = row.break_even_bps_interval or (row.break_even_bps, row.break_even_bps)
    text += " or never" if low <= SLOWEST_BPS else ""
    text += f" or {EVERYWHERE}" if high >= FASTEST_BPS else ""
    return text + (", which is beyond the rates measured" if row.extrapolated else "")


def _rough(bps: float) -> str:
    return format_rate_bps(float(f"{bps:.2g}"))


def verdict(evidence: RunEvidence) -> str:
    """Answer for each link and kind of data: does the best algorithm help, and where is the limit then?"""
    found = with_plain(compared(evidence, "compression"), "compression", partial(ratio_of, evidence))
    return answer([_clause(evidence, plain, tried) for plain, tried in found], evidence, quoted=True)


def _clause(evidence: RunEvidence, plain: CellSummary, tried: Sequence[tuple[CellSummary, Estimate]]) -> str:
    """Clause about the best resolved algorithm; one that only looks better is not preferred to it."""
    here = f"{where(plain.factors)}, {level(plain, 'content')}"
    stayed = f" (limit without it: {thing(plain.limit)})" if plain.limit is not None else ""
    tried = [pair for pair in tried if about_the_path(plain, pair[0])]
    if not tried:
        return f"{here}: no figure describes the path{stayed}"
    readings = [resolved(evidence, *pair) for pair in tried]
    faster = [pair for pair, reading in zip(tried, readings, strict=True) if reading is Resolution.FASTER]
    best, ratio = max(faster or tried, key=lambda pair: pair[1].value)
    sentence = f"{level(best, 'compression')} reaches {interval_text(ratio)} times the throughput without it"
    if faster:
        return f"{here}: {sentence}{_moved(plain.limit, best.limit)}"
    if all(reading is Resolution.SLOWER for reading in readings):
        return f"{here}: no algorithm helps; at best {sentence}{stayed}"
    helps = "none is resolved to help" if Resolution.SLOWER in readings else "no difference is resolved"
    return f"{here}: {helps}{stayed}"


def _moved(before: Limit | None, after: Limit | None) -> str:
    if before is None or after is None:
        return ""
    if before.resource is after.resource:
        return f" (limit: {thing(before)}, with and without)"
    return f" (the limit moves from {thing(before)} to {thing(after)})"
