"""Compression: the share of bytes left, its CPU cost at both ends, and the links on which it pays.

The break-even is the link rate at which the model's throughput is the same with and without compression. It is not simply the rate at
which compressing a byte takes as long as sending it: with many connections, the processors and the link work at the same time, and the
slower of them determines throughput.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pydantic import Field

from howfar.analysis.cells import CellSummary, NoiseFloors
from howfar.analysis.summary import RunEvidence
from howfar.experiments.network import what_if as model
from howfar.experiments.network.answer import (
    compare,
    compared_cells,
    groups_with_factor_off,
    locations,
    resolved_cpu_ratio,
)
from howfar.experiments.network.arm_pairs import ArmPair, Tried, changed_levels, find_pairs
from howfar.experiments.network.compression.texts import CONTENTS, ECONOMICS
from howfar.experiments.network.factors import COMPRESSION
from howfar.experiments.network.fit import carried_payload, fit, series, settings_of
from howfar.experiments.network.what_if import WhatIf, WhatIfCompression
from howfar.findings import Finding, Quantity, fill
from howfar.model.facts import ArmFacts
from howfar.paths import is_modelled
from howfar.plan.factor import Level
from howfar.plan.factors import CONTENT, PATH, TLS, level_of
from howfar.plan.workload import Workload
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution
from howfar.stats.resample import PositiveInterval, SignedInterval, figure_text

SLOWEST_BPS, FASTEST_BPS = 1e6, 1e11
"""Rates between which a break-even is sought."""
_POINTS_PER_DECADE = 5
_BISECTIONS = 50
MIN_PAYING_RATIO = 1.01
"""Ratio of throughputs from which compression pays."""


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
    predicted_interval: PositiveInterval = None
    agrees: bool | None
    """Whether the model predicted correctly if compression gains or loses, or the measured interval includes 1. None: no
    prediction."""


class CompressionGain(Part):
    """Ratio of throughput with compression to throughput without, by the model, at one of the measured rates."""

    rate_bps: float
    times: float
    times_interval: PositiveInterval = None


class CompressionRow(Part):
    """One algorithm on one kind of data, compared with none."""

    content: str
    algorithm: str
    ratio_to_client: float
    """Bytes on the wire over bytes before compression, for replies."""
    ratio_to_server: float
    client_ns_per_byte: float
    """CPU in addition to the uncompressed session's, per uncompressed byte."""
    client_ns_per_byte_interval: SignedInterval = None
    server_ns_per_byte: float
    server_ns_per_byte_interval: SignedInterval = None
    cost_ns_per_byte: float | None = None
    """CPU cost of both ends together. Noise may make it negative; the figures of the single ends are cut at 0."""
    cost_ns_per_byte_interval: SignedInterval = None
    break_even_bps: float | None
    """Rate of a link below which it pays on this machine and data, if the link is the limit; None: never, or see `resolved`."""
    break_even_bps_interval: PositiveInterval = None
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
    text: str = Field(alias="says")


def algorithm_costs(facts: Sequence[ArmFacts], content: Level | None) -> tuple[WhatIfCompression, ...]:
    """Costs of each algorithm on this content, over all its cells."""
    costs_or_none = (
        _median_cost(str(algorithm), _pairs_on_content(facts, algorithm, content))
        for algorithm in changed_levels(facts, "compression")
    )
    return tuple(cost for cost in costs_or_none if cost is not None)


def _pairs_on_content(facts: Sequence[ArmFacts], algorithm: Level, content: Level | None) -> list[ArmPair]:
    return [
        pair
        for pair in find_pairs(facts, "compression", algorithm)
        if CONTENT.level_in(pair.plain.arm.factors) == content
    ]


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
    return CompressionEconomics(rows=rows, text="") if rows else None


def with_sentences(findings: CompressionEconomics) -> CompressionEconomics:
    """The findings with sentences, and without break-evens for unresolved costs. To be called when the intervals are known."""
    rows = tuple(_apply_intervals(row) for row in findings.rows)
    advice = {name: gains_text([row for row in rows if row.content == name]) for name in {row.content for row in rows}}
    rows = tuple(row.model_copy(update={"level_advice": advice[row.content]}) for row in rows)
    return findings.model_copy(update={"rows": rows, "text": compression_sentence(rows)})


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


def is_open_ended(row: CompressionRow) -> bool:
    """Whether the interval of the break-even reaches an end of the examined rates."""
    interval = row.break_even_bps_interval
    return interval is not None and (interval[0] <= SLOWEST_BPS or interval[1] >= FASTEST_BPS)


def _models_of_contents(facts: Sequence[ArmFacts], workload: Workload | None) -> list[_ContentModel]:
    models = []
    modelled_cells = [
        cell
        for cell in facts
        if is_modelled(PATH.level_or_none(cell.arm.factors)) and TLS.level_in(cell.arm.factors) == "off"
    ]
    for name in dict.fromkeys(CONTENT.level_in(cell.arm.factors) for cell in modelled_cells):
        content_cells = tuple(cell for cell in modelled_cells if CONTENT.level_in(cell.arm.factors) == name)
        plain = [
            one_series
            for one_series in series(content_cells)
            if COMPRESSION.level_in(one_series.factors) == "off" and not one_series.is_local
        ]
        if plain:
            best_series = max(plain, key=lambda one_series: one_series.top.tps.value)
            base = fit(best_series.arms, workload).model_copy(
                update={"compression": algorithm_costs(content_cells, name)}
            )
            models.append(_ContentModel(str(name), base, best_series.top, content_cells))
    return models


def _compare_algorithms(content: _ContentModel, floors: NoiseFloors, is_resample: bool) -> list[CompressionRow]:
    rates = sorted({arm.rate_bps for arm in content.facts if arm.rate_bps is not None})
    rows = []
    for cost in content.base.compression:
        algorithm_pairs = list(find_pairs(content.facts, "compression", cost.algorithm))
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
        invalid=not pair.is_valid,
        below_noise=pair.below_noise(floors),
        agrees=None if predicted is None else includes_one or (predicted > 1) == (ratio.value > 1),
    )


# ---------------------------------------------------------------- sentences


def gains_text(rows: Sequence[CompressionRow]) -> str:
    """The gains of algorithms at each rate of the link, by the model, the largest first. `rows` are of one content. Empty: no cost is
    resolved."""
    gains = [(gain, row.algorithm) for row in rows if row.resolved for gain in row.gains]
    gains.sort(key=lambda entry: (entry[0].rate_bps, -entry[0].times))
    texts: dict[float, list[str]] = {}
    for gain, algorithm in gains:
        times = figure_text(gain.times, gain.times_interval, "{:.2f}".format)
        texts.setdefault(gain.rate_bps, []).append(fill(ECONOMICS["gain"], algorithm=algorithm, times=times))
    return "; ".join(fill(ECONOMICS["gains"], rate=rate, gains=", ".join(found)) for rate, found in texts.items())


def compression_sentence(rows: Sequence[CompressionRow]) -> str:
    """How often the model predicted correctly whether compression gains or loses. A cell without cells at another rate has no
    prediction."""
    comparisons = [comparison for row in rows for comparison in row.measured]
    resolved = [comparison for comparison in comparisons if comparison.resolved]
    predicted = [comparison for comparison in resolved if comparison.agrees is not None]
    return fill(
        ECONOMICS["resolved"],
        resolved=len(resolved),
        cells=len(comparisons),
        predicted=len(predicted),
        right=sum(bool(comparison.agrees) for comparison in predicted),
    )


# ---------------------------------------------------------------- findings


_ORDER = ("helps", "slower", "no-gain", "no-difference", "invalid")
"""Ids of findings, the most important first."""


def conclude(evidence: RunEvidence) -> tuple[Finding, ...]:
    """For each link and kind of data, the algorithm with the largest gain; one finding for a link over which none helps with any
    data."""
    findings_by_location: dict[str, list[Finding]] = {}
    for place, plain, compared in _compared_groups(evidence):
        findings_by_location.setdefault(place, []).append(_content_finding(place, plain, compared))
    findings = [finding for place, found in findings_by_location.items() for finding in _merge_contents(place, found)]
    return tuple(sorted(findings, key=_importance))


def explain(evidence: RunEvidence) -> tuple[Finding, ...]:
    """What compression saves on the wire, by the interface's counters, and its effect on CPU time, where it helps most. Each only
    where it is known and, of CPU time, resolved."""
    faster = [
        (ratio.value, place, plain, cell)
        for place, plain, compared in _compared_groups(evidence)
        for cell, ratio, verdict in compared
        if verdict is Resolution.FASTER
    ]
    if not faster:
        return _explain_losses(evidence)
    _, place, plain, cell = max(faster, key=lambda result: result[0])
    cpu_ratio = resolved_cpu_ratio(evidence, cell, plain)
    parameters: dict[str, str | int | float] = {
        "algorithm": str(level_of(cell.factors, "compression")),
        "content": str(level_of(plain.factors, "content")),
    }
    sent, plain_sent = _bytes_sent(cell), _bytes_sent(plain)
    if sent is not None and plain_sent:
        parameters["bytes"] = sent / plain_sent
    known = [name for name, value in (("bytes", parameters.get("bytes")), ("cpu", cpu_ratio)) if value is not None]
    if not known:
        return ()
    metric = None if cpu_ratio is None else Quantity.CPU
    finding = Finding(id="-and-".join(known), subject=place, metric=metric, estimate=cpu_ratio, parameters=parameters)
    return (finding,)


def _explain_losses(evidence: RunEvidence) -> tuple[Finding, ...]:
    """The CPU time that compression adds where it costs most throughput. Empty: none is resolved."""
    losses = [
        (ratio.value, place, cell, cpu_ratio)
        for place, plain, compared in _compared_groups(evidence)
        for cell, ratio, verdict in compared
        if verdict is Resolution.SLOWER
        and (cpu_ratio := resolved_cpu_ratio(evidence, cell, plain)) is not None
        and cpu_ratio.value > 1
    ]
    if not losses:
        return ()
    _, place, cell, cpu_ratio = min(losses, key=lambda loss: loss[0])
    parameters: dict[str, str | int | float] = {"algorithm": str(level_of(cell.factors, "compression"))}
    return (Finding(id="cpu", subject=place, metric=Quantity.CPU, estimate=cpu_ratio, parameters=parameters),)


_Compared = tuple[CellSummary, Estimate, Resolution | None]
"""A compressed cell, and its ratio of throughput to the same one without compression, with what that shows."""


def _compared_groups(evidence: RunEvidence) -> Iterator[tuple[str, CellSummary, list[_Compared]]]:
    """Each cell without compression that has others to compare: where it was measured, the cell, and the others."""
    groups = groups_with_factor_off(compared_cells(evidence, "compression"), "compression")
    places = locations([plain for plain, _ in groups], "compression", "content")
    for place, (plain, compressed) in zip(places, groups, strict=True):
        compared = [(cell, *result) for cell in compressed if (result := compare(evidence, cell, plain))]
        if compared:
            yield place, plain, compared


def _bytes_sent(cell: CellSummary) -> float | None:
    """Bytes per transaction in the busier direction, as the link's interface counted them. None: not counted."""
    series = cell.network
    if series is None or not series.at_s:
        return None
    return max(fmean(series.to_client_bytes_per_s), fmean(series.to_server_bytes_per_s)) / cell.tps.value


def _content_finding(location: str, plain: CellSummary, compared: Sequence[_Compared]) -> Finding:
    """The finding about the best algorithm. One whose gain is resolved is preferred to one with a larger gain that is not."""
    valid = [result for result in compared if result[2] is not None]
    faster = [result for result in valid if result[2] is Resolution.FASTER]
    best, ratio, verdict = max(faster or valid or compared, key=lambda result: result[1].value)
    verdicts = {result[2] for result in valid}
    outcomes = {
        "invalid": not valid,
        "helps": bool(faster),
        "slower": verdicts == {Resolution.SLOWER},
        "no-gain": Resolution.SLOWER in verdicts,
    }
    content = str(level_of(plain.factors, "content"))
    parameters: dict[str, str | int | float] = {
        "location": location,
        "content": content,
        "algorithm": str(level_of(best.factors, "compression")),
        "transactions_per_s": best.tps.value,
        "plain_transactions_per_s": plain.tps.value,
    }
    limits = {"limit": best.limit, "plain_limit": plain.limit}
    return Finding(
        id=next((name for name, applies in outcomes.items() if applies), "no-difference"),
        subject=f"{CONTENTS.get(content, content)} {location}",
        metric=Quantity.THROUGHPUT,
        estimate=ratio,
        verdict=verdict if valid else Resolution.NOT_RESOLVED,
        parameters=parameters | {name: limit.resource.value for name, limit in limits.items() if limit is not None},
    )


def _merge_contents(location: str, findings: Sequence[Finding]) -> list[Finding]:
    """One finding for the location if no algorithm helps there, whatever the data."""
    if len({finding.id for finding in findings}) == 1 and findings[0].id != "helps":
        best = max(findings, key=_ratio)
        return [best.model_copy(update={"subject": location, "parameters": best.parameters | {"content": "all"}})]
    return [
        finding if finding.id == "helps" else finding.model_copy(update={"subject": f"for {finding.subject}"})
        for finding in findings
    ]


def _importance(finding: Finding) -> tuple[int, bool, float]:
    """Key for sorting findings, the most important first: the largest gains, then links over which nothing helps."""
    return _ORDER.index(finding.id), finding.parameters["content"] != "all", -_ratio(finding)


def _ratio(finding: Finding) -> float:
    return finding.estimate.value if finding.estimate else 0.0
