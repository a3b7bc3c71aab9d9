"""Compression: what it leaves of the bytes, what it costs both ends, and on which links that pays.

The break-even is where the model's throughput with and without is equal. It is not only the rate at which compressing a byte takes as
long as sending it: while many connections work, the processors and the link work at the same time, and the slower of them decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from howfar.analysis.economics.pairs import Pair, levels, pairs
from howfar.analysis.economics.sentences import WORTH, compression_says, level_advice
from howfar.analysis.summary import (
    BreakEvenPoint,
    CompressionEconomics,
    CompressionRow,
    CompressionTried,
    WhatIf,
    WhatIfCompression,
)
from howfar.model.facts import ArmFacts
from howfar.model.fit import carried_payload, fit, series, settings_of
from howfar.model.what_if import answer
from howfar.paths import is_modelled
from howfar.plan.factors import ORDINARY
from howfar.store.records import FactorValue

SLOWEST_BPS, FASTEST_BPS = 1e6, 1e11
"""Between these a break-even is looked for."""
_POINTS_A_DECADE = 5
_HALVINGS = 50


def costs(facts: Sequence[ArmFacts], content: FactorValue | None) -> tuple[WhatIfCompression, ...]:
    """Of each algorithm on this content, over all its cells."""
    found = []
    for algorithm in levels(facts, "compression"):
        tried = [pair for pair in pairs(facts, "compression", algorithm) if pair.plain.level("content") == content]
        cost = _cost(str(algorithm), tried)
        if cost is not None:
            found.append(cost)
    return tuple(found)


def _cost(algorithm: str, tried: Sequence[Pair]) -> WhatIfCompression | None:
    """The median over cells; what noise made less than nothing is nothing. None: no cell over a link, whose counters say what the
    bytes became."""
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
    """Compressing takes time: cells where both ends seem to have worked no more, or less, show noise and no cost."""
    return all(pair.client_s + pair.server_s > 0 for pair in tried)


def _ratios(pair: Pair) -> tuple[float, float] | None:
    """Both cells by the same counters, so that connects and prepares weigh on both."""
    after, before = carried_payload(pair.changed), carried_payload(pair.plain)
    return (after[0] / before[0], after[1] / before[1]) if after and before else None


@dataclass(frozen=True)
class _Content:
    """What is known of one kind of data: a base without compression, and the cells."""

    name: str
    base: WhatIf
    top: ArmFacts
    facts: tuple[ArmFacts, ...]


def compression(
    facts: Sequence[ArmFacts], workload: Mapping[str, Any], floor: float | None = None
) -> CompressionEconomics | None:
    """`floor`: the run's noise floor. None: nothing was compressed, or nothing that has its uncompressed cell."""
    rows: list[CompressionRow] = []
    for content in _contents(facts, workload):
        rows += _rows(content, floor)
    if not rows:
        return None
    return CompressionEconomics(rows=tuple(rows), says=compression_says(rows))


def _contents(facts: Sequence[ArmFacts], workload: Mapping[str, Any]) -> list[_Content]:
    found = []
    modelled = [each for each in facts if is_modelled(each.arm.factors.get("path")) and each.level("tls") == "off"]
    for name in dict.fromkeys(each.level("content") for each in modelled):
        here = tuple(each for each in modelled if each.level("content") == name)
        plain = [one for one in series(here) if one.factors.get("compression", "off") == "off" and not one.local]
        if plain:
            best = max(plain, key=lambda one: one.top.tps.value)
            found.append(_Content(str(name), fit(best.arms, workload), best.top, here))
    return found


def _rows(content: _Content, floor: float | None) -> list[CompressionRow]:
    known = costs(content.facts, content.name)
    if not known:
        return []
    base = content.base.model_copy(update={"compression": known})
    tried_of = {cost.algorithm: list(pairs(content.facts, "compression", cost.algorithm)) for cost in known}
    told = [cost.algorithm for cost in known if _is_resolved(tried_of[cost.algorithm])]
    advice = level_advice(base, settings_of(content.top), _rates(content.facts), told)
    rows = []
    for cost in known:
        tried, resolved = tried_of[cost.algorithm], cost.algorithm in told
        even_bps = break_even_bps(base, content.top, cost.algorithm) if resolved else None
        rows.append(
            CompressionRow(
                content=content.name,
                algorithm=cost.algorithm,
                ratio_to_client=cost.ratio_to_client,
                ratio_to_server=cost.ratio_to_server,
                client_ns_per_byte=cost.client_byte_s * 1e9,
                server_ns_per_byte=cost.server_byte_s * 1e9,
                break_even_bps=even_bps,
                resolved=resolved,
                everywhere=even_bps == FASTEST_BPS,
                measured=tuple(each for pair in tried if (each := _tried(content, cost.algorithm, pair, tried, floor))),
                level_advice=advice,
                curve=_curve(base, content.top, cost.algorithm),
            )
        )
    return rows


def _rates(facts: Sequence[ArmFacts]) -> list[float]:
    return sorted({each.rate_bps for each in facts if each.rate_bps is not None})


def gain(base: WhatIf, top: ArmFacts, algorithm: str, rate_bps: float | None) -> float:
    """Throughput with over throughput without, by the model, at `top`'s connections."""
    plain = settings_of(top).model_copy(update={"rate_bps": rate_bps, "compression": ORDINARY["compression"]})
    return answer(base, plain.model_copy(update={"compression": algorithm})).tps / answer(base, plain).tps


def break_even_bps(base: WhatIf, top: ArmFacts, algorithm: str) -> float | None:
    """By halving on the logarithm. The fastest rate looked at where it pays even there. None: it pays nowhere."""
    slow, fast = SLOWEST_BPS, FASTEST_BPS
    if gain(base, top, algorithm, slow) <= WORTH:
        return None
    if gain(base, top, algorithm, fast) > 1:
        return fast
    for _ in range(_HALVINGS):
        middle = math.sqrt(slow * fast)
        slow, fast = (middle, fast) if gain(base, top, algorithm, middle) > 1 else (slow, middle)
    return math.sqrt(slow * fast)


def _curve(base: WhatIf, top: ArmFacts, algorithm: str) -> tuple[BreakEvenPoint, ...]:
    now = settings_of(top)
    points = []
    for step in range(_POINTS_A_DECADE * 4 + 1):
        rate = 1e7 * 10 ** (step / _POINTS_A_DECADE)
        plain = now.model_copy(update={"rate_bps": rate, "compression": ORDINARY["compression"]})
        packed = plain.model_copy(update={"compression": algorithm})
        points.append(
            BreakEvenPoint(rate_bps=rate, plain_tps=answer(base, plain).tps, compressed_tps=answer(base, packed).tps)
        )
    return tuple(points)


def _tried(
    content: _Content, algorithm: str, pair: Pair, tried: Sequence[Pair], floor: float | None
) -> CompressionTried | None:
    """What was foreseen comes from cells at other rates; without any, nothing was."""
    ratio = pair.ratio
    if ratio is None:
        return None
    elsewhere = [each for each in tried if each.plain.rate_bps != pair.plain.rate_bps]
    cost = _cost(algorithm, elsewhere)
    predicted = None
    if cost is not None:
        base = content.base.model_copy(update={"compression": (cost,)})
        predicted = gain(base, pair.plain, algorithm, pair.plain.rate_bps)
    inside = ratio.low is not None and ratio.high is not None
    undecided = inside and (ratio.low or 0.0) <= 1 <= (ratio.high or 0.0)
    return CompressionTried(
        rate_bps=pair.plain.rate_bps,
        threads=pair.plain.threads,
        ratio=ratio,
        predicted=predicted,
        invalid=not pair.valid,
        below_noise=pair.below_noise(floor),
        agrees=None if predicted is None else undecided or (predicted > 1) == (ratio.value > 1),
    )
