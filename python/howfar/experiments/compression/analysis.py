"""Compression: the share of bytes left, its CPU cost at both ends, and the links on which it pays.

The break-even is the link rate at which the model's throughput is the same with and without compression. It is not simply the rate at
which compressing a byte takes as long as sending it: with many connections, the processors and the link work at the same time, and the
slower of them determines throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from howfar.analysis.cells import CellSummary, NoiseFloors
from howfar.analysis.summary import RunEvidence
from howfar.bottleneck.limit import Limit
from howfar.experiments.answer import (
    answer,
    compared_cells,
    describe_the_path,
    level,
    limit_noun,
    pairs_with_factor_off,
    ratio_of,
    resolution_of,
    where_text,
)
from howfar.experiments.arm_pairs import ArmPair, Tried, levels, pairs
from howfar.model import what_if as model
from howfar.model.facts import ArmFacts
from howfar.model.fit import carried_payload, fit, series, settings_of
from howfar.model.what_if import WhatIf, WhatIfCompression
from howfar.paths import is_modelled
from howfar.plan.factors import Level
from howfar.plan.types import Workload
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, interval_text
from howfar.stats.resample import Derived, Difference, within
from howfar.units import format_rate_bps

SLOWEST_BPS, FASTEST_BPS = 1e6, 1e11
"""Rates between which a break-even is sought."""
_POINTS_PER_DECADE = 5
_BISECTIONS = 50
MIN_PAYING_RATIO = 1.01
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
    """Whether the model predicted correctly if compression gains or loses, or the measured interval includes 1. None: no
    prediction."""


class CompressionGain(Part):
    """Ratio of throughput with compression to throughput without, by the model, at one of the measured rates."""

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
    """CPU cost of both ends together. Noise may make it negative; the figures of the single ends are cut at 0."""
    cost_ns_per_byte_interval: Difference = None
    break_even_bps: float | None
    """Rate of a link below which it pays on this machine and data, if the link is the limit; None: never, or see `resolved`."""
    break_even_bps_interval: Derived = None
    """Interval, cut to the examined rates. A limit at an end of these rates means that compression may pay nowhere, or everywhere."""
    extrapolated: bool = False
    """Whether the break-even lies beyond the rates that were measured."""
    resolved: bool = True
    """Whether the interval of its CPU cost is above 0; without one, whether each pair of cells has a cost. If not, no break-even."""
    everywhere: bool = False
    """Whether compression pays at every examined rate; `break_even_bps` is then the fastest of them."""
    measured: tuple[CompressionTried, ...]
    gains: tuple[CompressionGain, ...] = ()
    level_advice: str
    curve: tuple[BreakEvenPoint, ...] = ()
    """Points by the model, by ascending rates, for the chart. The lines with and without compression cross at `break_even_bps`."""


class CompressionEconomics(Part):
    rows: tuple[CompressionRow, ...]
    says: str


def algorithm_costs(facts: Sequence[ArmFacts], content: Level | None) -> tuple[WhatIfCompression, ...]:
    """Costs of each algorithm on this content, over all its cells."""
    costs_or_none = (
        _median_cost(str(algorithm), _pairs_on_content(facts, algorithm, content))
        for algorithm in levels(facts, "compression")
    )
    return tuple(cost for cost in costs_or_none if cost is not None)


def _pairs_on_content(facts: Sequence[ArmFacts], algorithm: Level, content: Level | None) -> list[ArmPair]:
    return [pair for pair in pairs(facts, "compression", algorithm) if pair.plain.level("content") == content]


def _median_cost(algorithm: str, measured_pairs: Sequence[ArmPair]) -> WhatIfCompression | None:
    """Cost of an algorithm as the median over cells, at least 0. None: no cell over a link, whose counters show the compressed
    bytes."""
    ratios = [ratio for pair in measured_pairs if (ratio := _byte_ratios(pair)) is not None]
    if not ratios:
        return None
    return WhatIfCompression(
        algorithm=algorithm,
        ratio_to_client=median(to_client for to_client, _ in ratios),
        ratio_to_server=median(to_server for _, to_server in ratios),
        client_byte_s=max(median(pair.client_s / pair.payload for pair in measured_pairs), 0.0),
        server_byte_s=max(median(pair.server_s / pair.payload for pair in measured_pairs), 0.0),
    )


def _is_resolved(measured_pairs: Sequence[ArmPair]) -> bool:
    """Whether the cost is resolved. Compression takes CPU time, so cells in which both ends seem to have used no more show only
    noise."""
    return all(pair.client_s + pair.server_s > 0 for pair in measured_pairs)


def _byte_ratios(pair: ArmPair) -> tuple[float, float] | None:
    """Shares of bytes left in the directions to client and to server. Both cells use the same counters, so both include connects."""
    changed_bytes, plain_bytes = carried_payload(pair.changed), carried_payload(pair.plain)
    return (
        (changed_bytes[0] / plain_bytes[0], changed_bytes[1] / plain_bytes[1])
        if changed_bytes and plain_bytes
        else None
    )


@dataclass(frozen=True)
class _ContentModel:
    """One kind of data: the model without compression, and the cells."""

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


def analyse_compression(
    facts: Sequence[ArmFacts], workload: Workload | None, floors: NoiseFloors, *, is_resample: bool = False
) -> CompressionEconomics | None:
    """Costs and gains of compression; `with_sentences` completes them when intervals are known. `is_resample`: computed again for
    intervals, without curves. None: nothing was compressed, or no compressed cell has an uncompressed counterpart."""
    rows = tuple(
        row
        for content in _models_of_contents(facts, workload)
        for row in _compare_algorithms(content, floors, is_resample)
    )
    return CompressionEconomics(rows=rows, says="") if rows else None


def with_sentences(findings: CompressionEconomics) -> CompressionEconomics:
    """The findings with sentences, and without break-evens for unresolved costs. To be called when the intervals are known."""
    rows = tuple(_apply_intervals(row) for row in findings.rows)
    advice = {
        name: level_advice([row for row in rows if row.content == name]) for name in {row.content for row in rows}
    }
    rows = tuple(row.model_copy(update={"level_advice": advice[row.content]}) for row in rows)
    return findings.model_copy(update={"rows": rows, "says": compression_sentence(rows)})


def _apply_intervals(row: CompressionRow) -> CompressionRow:
    cost, break_even_interval = row.cost_ns_per_byte_interval, row.break_even_bps_interval
    if not (row.resolved if cost is None else cost[0] > 0):
        no_break_even = {
            "break_even_bps": None,
            "break_even_bps_interval": None,
            "everywhere": False,
            "extrapolated": False,
        }
        return row.model_copy(update={"resolved": False, **no_break_even})
    examined_interval = (
        None
        if break_even_interval is None
        else (max(break_even_interval[0], SLOWEST_BPS), min(break_even_interval[1], FASTEST_BPS))
    )
    return row.model_copy(update={"resolved": True, "break_even_bps_interval": examined_interval})


def _models_of_contents(facts: Sequence[ArmFacts], workload: Workload | None) -> list[_ContentModel]:
    models = []
    modelled_cells = [
        cell for cell in facts if is_modelled(cell.arm.factors.get("path")) and cell.level("tls") == "off"
    ]
    for name in dict.fromkeys(cell.level("content") for cell in modelled_cells):
        content_cells = tuple(cell for cell in modelled_cells if cell.level("content") == name)
        plain = [
            one_series
            for one_series in series(content_cells)
            if one_series.factors.get("compression", "off") == "off" and not one_series.local
        ]
        if plain:
            best_series = max(plain, key=lambda one_series: one_series.top.tps.value)
            base = fit(best_series.arms, workload).model_copy(
                update={"compression": algorithm_costs(content_cells, name)}
            )
            models.append(_ContentModel(str(name), base, best_series.top, content_cells))
    return models


def _compare_algorithms(content: _ContentModel, floors: NoiseFloors, is_resample: bool) -> list[CompressionRow]:
    rates = sorted({comparison.rate_bps for comparison in content.facts if comparison.rate_bps is not None})
    rows = []
    for cost in content.base.compression:
        algorithm_pairs = list(pairs(content.facts, "compression", cost.algorithm))
        crossover_bps = break_even_bps(content, cost.algorithm)
        if is_resample and crossover_bps is None:
            crossover_bps = SLOWEST_BPS  # it pays nowhere: the lowest rate examined stands for that
        rows.append(
            CompressionRow(
                content=content.name,
                algorithm=cost.algorithm,
                ratio_to_client=cost.ratio_to_client,
                ratio_to_server=cost.ratio_to_server,
                client_ns_per_byte=cost.client_byte_s * 1e9,
                server_ns_per_byte=cost.server_byte_s * 1e9,
                cost_ns_per_byte=median((pair.client_s + pair.server_s) / pair.payload for pair in algorithm_pairs)
                * 1e9,
                break_even_bps=crossover_bps,
                resolved=_is_resolved(algorithm_pairs),
                everywhere=crossover_bps == FASTEST_BPS,
                extrapolated=bool(rates) and crossover_bps is not None and not rates[0] <= crossover_bps <= rates[-1],
                measured=tuple(
                    comparison
                    for pair in algorithm_pairs
                    if (comparison := _compare_pair(content, cost.algorithm, pair, algorithm_pairs, floors))
                ),
                gains=tuple(CompressionGain(rate_bps=rate, times=content.gain(rate, cost.algorithm)) for rate in rates),
                level_advice="",
                curve=tuple(
                    _curve_point(content, cost.algorithm, step)
                    for step in range(0 if is_resample else _POINTS_PER_DECADE * 4 + 1)
                ),
            )
        )
    return rows


def break_even_bps(content: _ContentModel, algorithm: str) -> float | None:
    """The break-even, found by bisection of the logarithm. The fastest examined rate if compression pays even there. None: it pays
    nowhere."""
    slow_bps, fast_bps = SLOWEST_BPS, FASTEST_BPS
    if content.gain(slow_bps, algorithm) <= MIN_PAYING_RATIO:
        return None
    if content.gain(fast_bps, algorithm) > 1:
        return fast_bps
    for _ in range(_BISECTIONS):
        middle_bps = math.sqrt(slow_bps * fast_bps)
        slow_bps, fast_bps = (
            (middle_bps, fast_bps) if content.gain(middle_bps, algorithm) > 1 else (slow_bps, middle_bps)
        )
    return math.sqrt(slow_bps * fast_bps)


def _curve_point(content: _ContentModel, algorithm: str, step: int) -> BreakEvenPoint:
    rate_bps = 1e7 * 10 ** (step / _POINTS_PER_DECADE)
    return BreakEvenPoint(
        rate_bps=rate_bps, plain_tps=content.tps(rate_bps, "off"), compressed_tps=content.tps(rate_bps, algorithm)
    )


def _compare_pair(
    content: _ContentModel, algorithm: str, pair: ArmPair, algorithm_pairs: Sequence[ArmPair], floors: NoiseFloors
) -> CompressionTried | None:
    """Comparison of a measured pair of cells with the prediction from cells at other rates. There is no prediction without such cells,
    or if it would be right by construction."""
    ratio, rate_bps = pair.ratio, pair.plain.rate_bps
    if ratio is None:
        return None
    cost = _median_cost(algorithm, [other for other in algorithm_pairs if other.plain.rate_bps != rate_bps])
    predicted = None
    if cost is not None and not pair.only_bytes:
        predicted = content.gain(
            rate_bps, algorithm, content.base.model_copy(update={"compression": (cost,)}), pair.plain
        )
    includes_one = ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
    return CompressionTried(
        rate_bps=rate_bps,
        threads=pair.plain.threads,
        ratio=ratio,
        predicted=predicted,
        invalid=not pair.valid,
        below_noise=pair.below_noise(floors),
        agrees=None if predicted is None else includes_one or (predicted > 1) == (ratio.value > 1),
    )


# ---------------------------------------------------------------- sentences


def level_advice(rows: Sequence[CompressionRow]) -> str:
    """The best algorithm for each rate of the link, by the model, and the doubts that the intervals leave. `rows` are of one content.
    Empty: no cost is resolved."""
    gains = [(gain, row.algorithm) for row in rows if row.resolved for gain in row.gains]
    rates = sorted({gain.rate_bps for gain, _ in gains})
    return "; ".join(
        f"at {format_rate_bps(rate)} {_best_algorithm_text([entry for entry in gains if entry[0].rate_bps == rate])}"
        for rate in rates
    )


def _best_algorithm_text(gains: Sequence[tuple[CompressionGain, str]]) -> str:
    best, name = max(gains, key=lambda entry: entry[0].times)
    if best.times <= MIN_PAYING_RATIO:
        possible = [
            f"{algorithm} may, {_gain_text(gain)}"
            for gain, algorithm in gains
            if gain.times_interval is not None and gain.times_interval[1] > MIN_PAYING_RATIO
        ]
        return "none pays" + (f" ({'; '.join(possible)})" if possible else "")
    notes = []
    if best.times_interval is not None:
        low_limit = best.times_interval[0]
        if low_limit <= 1:
            notes.append("whether it pays is not resolved")
        unresolved_rivals = [
            other for gain, other in gains if gain is not best and (gain.times_interval or (0.0, 0.0))[1] >= low_limit
        ]
        if unresolved_rivals:
            notes.append(f"not resolved from {', '.join(unresolved_rivals)}")
    return f"{name} helps most ({'; '.join([_gain_text(best), *notes])})"


def _gain_text(gain: CompressionGain) -> str:
    return f"{within(gain.times, gain.times_interval, '{:.2f}'.format)} times"


def compression_sentence(rows: Sequence[CompressionRow]) -> str:
    """The rate below which each algorithm pays, by content."""
    content_clauses = []
    for content in dict.fromkeys(row.content for row in rows):
        algorithms = ", ".join(f"{row.algorithm} {_pays_text(row)}" for row in rows if row.content == content)
        content_clauses.append(f"{content}: {algorithms}")
    comparisons = [comparison for row in rows for comparison in row.measured]
    resolved_comparisons = [comparison for comparison in comparisons if comparison.resolved]
    predicted_comparisons = [comparison for comparison in resolved_comparisons if comparison.agrees is not None]
    text = f"Compression pays on this machine for {'; '.join(content_clauses)}."
    if not resolved_comparisons:
        return f"{text} No difference is resolved in the {len(comparisons)} measured cells."
    text += f" A difference is resolved in {len(resolved_comparisons)} of {len(comparisons)} measured cells"
    if not predicted_comparisons:
        return f"{text}; the model predicted none of these, because it had no cells at another rate."
    subject = (
        "these"
        if len(predicted_comparisons) == len(resolved_comparisons)
        else f"the {len(predicted_comparisons)} of these that it predicted"
    )
    return f"{text}; the model has {sum(bool(comparison.agrees) for comparison in predicted_comparisons)} of {subject} right."


def _pays_text(row: CompressionRow) -> str:
    if not row.resolved:
        return NOT_RESOLVED
    if row.everywhere:
        return EVERYWHERE
    if row.break_even_bps is None:
        return "never"
    text = f"below {within(row.break_even_bps, row.break_even_bps_interval, _rounded_rate_text)}"
    low, high = row.break_even_bps_interval or (row.break_even_bps, row.break_even_bps)
    text += " or never" if low <= SLOWEST_BPS else ""
    text += f" or {EVERYWHERE}" if high >= FASTEST_BPS else ""
    return text + (", which is beyond the rates measured" if row.extrapolated else "")


def _rounded_rate_text(bps: float) -> str:
    return format_rate_bps(float(f"{bps:.2g}"))


def verdict(evidence: RunEvidence) -> str:
    """The answer: for each link and kind of data, whether the best algorithm helps, and what the limit is then."""
    cells_and_compressed = pairs_with_factor_off(
        compared_cells(evidence, "compression"), "compression", partial(ratio_of, evidence)
    )
    return answer(
        [
            _content_clause(evidence, plain_cell, compressed_cells)
            for plain_cell, compressed_cells in cells_and_compressed
        ],
        evidence,
        quoted=True,
    )


def _content_clause(
    evidence: RunEvidence, plain_cell: CellSummary, compressed_cells: Sequence[tuple[CellSummary, Estimate]]
) -> str:
    """Clause about the best algorithm. One whose gain is resolved is preferred to one with a larger gain that is not."""
    location = f"{where_text(plain_cell.factors)}, {level(plain_cell, 'content')}"
    limit_note = f" (limit without it: {limit_noun(plain_cell.limit)})" if plain_cell.limit is not None else ""
    compressed_cells = [pair for pair in compressed_cells if describe_the_path(plain_cell, pair[0])]
    if not compressed_cells:
        return f"{location}: no figure describes the path{limit_note}"
    resolutions = [resolution_of(evidence, *pair) for pair in compressed_cells]
    faster = [pair for pair, outcome in zip(compressed_cells, resolutions, strict=True) if outcome is Resolution.FASTER]
    best_cell, ratio = max(faster or compressed_cells, key=lambda pair: pair[1].value)
    sentence = f"{level(best_cell, 'compression')} reaches {interval_text(ratio)} times the throughput without it"
    if faster:
        return f"{location}: {sentence}{_moved_limit_note(plain_cell.limit, best_cell.limit)}"
    if all(outcome is Resolution.SLOWER for outcome in resolutions):
        return f"{location}: no algorithm helps; at best {sentence}{limit_note}"
    outcome_text = "none is resolved to help" if Resolution.SLOWER in resolutions else "no difference is resolved"
    return f"{location}: {outcome_text}{limit_note}"


def _moved_limit_note(before: Limit | None, after: Limit | None) -> str:
    if before is None or after is None:
        return ""
    if before.resource is after.resource:
        return f" (limit: {limit_noun(before)}, with and without)"
    return f" (the limit moves from {limit_noun(before)} to {limit_noun(after)})"
