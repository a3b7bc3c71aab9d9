"""The sentences of the economics. Figures come in; nothing is reckoned here but which of them to say."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from howfar.analysis.summary import (
    CompressionRow,
    CompressionTried,
    EncryptionRow,
    EncryptionTried,
    WhatIf,
    WhatIfSettings,
)
from howfar.model.what_if import answer
from howfar.stats.intervals import excludes_one
from howfar.units import format_rate_bps

HARDLY = 0.05
"""A share of throughput that is called hardly anything."""
WORTH = 1.01
"""Times the throughput without compression: less is not said to pay."""
HALF_A_TURN = 0.5
"""Of a round trip: less is not said to be one."""
NOT_RESOLVED = "cost not resolved"
"""Of an algorithm whose CPU noise hid."""
EVERYWHERE = "at every rate looked at"


def is_told(tried: CompressionTried | EncryptionTried) -> bool:
    """From no change: by its interval and the noise floor, of cells that are about the path."""
    return excludes_one(tried.ratio) and not tried.invalid and not tried.below_noise


def level_advice(base: WhatIf, settings: WhatIfSettings, rates: Sequence[float], told: Sequence[str]) -> str:
    """Which algorithm gives most, by the model, on each link tried; among `told`, those whose costs are known."""
    if not told:
        return ""
    parts = []
    for rate in rates:
        here = settings.model_copy(update={"rate_bps": rate, "compression": "off"})
        plain = answer(base, here).tps
        times, best = max((answer(base, _with(here, algorithm)).tps / plain, algorithm) for algorithm in told)
        what = f"{best} gives most ({times:.2f} times)" if times > WORTH else "none pays"
        parts.append(f"at {format_rate_bps(rate)} {what}")
    return "; ".join(parts)


def _with(settings: WhatIfSettings, algorithm: str) -> WhatIfSettings:
    return settings.model_copy(update={"compression": algorithm})


def compression_says(rows: Sequence[CompressionRow]) -> str:
    """By content: below which rate each algorithm pays."""
    parts = []
    for content in dict.fromkeys(row.content for row in rows):
        pays = [row for row in rows if row.content == content]
        named = ", ".join(f"{row.algorithm} {_pays(row)}" for row in pays)
        parts.append(f"{content}: {named}")
    tried = [each for row in rows for each in row.measured]
    decided = [each for each in tried if is_told(each)]
    foreseen = [each for each in decided if each.agrees is not None]
    said = f"Compression pays on this machine for {'; '.join(parts)}."
    if not decided:
        return f"{said} None of the {len(tried)} measured cells is told from no change."
    said += f" Of {len(tried)} measured cells {len(decided)} are told from no change"
    if not foreseen:
        return f"{said}; the model foresaw none of these, for it had no cells at another rate."
    among = "these" if len(foreseen) == len(decided) else f"the {len(foreseen)} of these that it foresaw"
    return f"{said}; the model has {sum(bool(each.agrees) for each in foreseen)} of {among} right."


def _pays(row: CompressionRow) -> str:
    if not row.resolved:
        return NOT_RESOLVED
    if row.everywhere:
        return EVERYWHERE
    bps = row.break_even_bps
    return "never" if bps is None else f"below {format_rate_bps(float(f'{bps:.2g}'))}"


def encryption_says(rows: Sequence[EncryptionRow]) -> str:
    return " ".join(_row_says(row) for row in rows)


def _row_says(row: EncryptionRow) -> str:
    costs = [] if row.byte_ns is None else [f"{row.byte_ns:.2f} ns of CPU a byte"]
    if row.connect_us is not None:
        costs.append(f"{row.connect_us:.0f} µs of CPU a connect{_round_trips(row)}")
    said = (
        f"{row.version} costs {' and '.join(costs)}"
        if costs
        else f"{row.version}: what a byte and a connect cost was not measured"
    )
    bytes_cost, churn_costs = _price(row.persistent), _price(row.per_transaction)
    if bytes_cost is None and churn_costs is None:
        return f"{said}."
    return f"{said}: {_verdict(bytes_cost, churn_costs)} ({_shares(row)}).{_model_says(row)}"


def _round_trips(row: EncryptionRow) -> str:
    told = row.connect_turns is not None and row.connect_turns >= HALF_A_TURN
    said = f" with {row.connect_turns:.1f} round trips" if told else ""
    if not row.retried:
        return said
    return (
        f"{said} ({'one of them because' if told else 'a round trip more, for'} the server asks for another key share)"
    )


def _model_says(row: EncryptionRow) -> str:
    """How far off the model was in the cells that it foresaw."""
    tried = [*row.persistent, *row.per_transaction]
    errors = [
        abs(each.predicted / each.ratio.value - 1) for each in tried if each.predicted is not None and not each.invalid
    ]
    if not errors:
        return ""
    mean, worst = sum(errors) / len(errors), max(errors)
    off = f"{mean:.1%} on average and {worst:.1%} at worst".replace("%", " %")
    return f" From other numbers of connections the model foresaw {len(errors)} of these {len(tried)} ratios, off by {off}."


class _Price(Enum):
    """What TLS takes of throughput, over all cells of a way to connect."""

    COSTS = "costs"
    HARDLY = "hardly"
    UNTOLD = "untold"
    """No cell shows a cost, and not all of them show that there is none."""


def _price(tried: Sequence[EncryptionTried]) -> _Price | None:
    """None: not measured."""
    if not tried:
        return None
    if any(is_told(each) and 1 - each.ratio.value >= HARDLY for each in tried):
        return _Price.COSTS
    return _Price.HARDLY if all(_shows_hardly(each) for each in tried) else _Price.UNTOLD


def _shows_hardly(tried: EncryptionTried) -> bool:
    """Told from no change and less than `HARDLY` from it, or the whole interval is."""
    low = tried.ratio.low
    return is_told(tried) or (not tried.invalid and low is not None and 1 - low < HARDLY)


def _verdict(bytes_cost: _Price | None, churn_costs: _Price | None) -> str:
    """`None`: not measured, and not spoken of."""
    known = {"churn": churn_costs, "bytes": bytes_cost}
    prices = {name: price for name, price in known.items() if price is not None}
    cost = [name for name, price in prices.items() if price is _Price.COSTS]
    hardly = [name for name, price in prices.items() if price is _Price.HARDLY]
    if len(cost) == 2:
        return "churn costs and so do bytes"
    if len(hardly) == 2:
        return "neither churn nor bytes cost much here"
    if cost and hardly:
        return f"{_costs(cost[0])}, {hardly[0]} hardly"
    untold = [name for name, price in prices.items() if price is _Price.UNTOLD]
    clauses = [_costs(name) for name in cost]
    clauses += [f"{_costs(name)} hardly anything" for name in hardly]
    clauses += [f"what {_costs(' and '.join(untold))} is not told from nothing"] if untold else []
    return ", ".join(clauses)


def _costs(name: str) -> str:
    return f"{name} {'costs' if name == 'churn' else 'cost'}"


def _shares(row: EncryptionRow) -> str:
    parts = []
    if row.persistent:
        parts.append(_throughput(row.persistent, "with persistent connections"))
    if row.per_transaction:
        parts.append(_throughput(row.per_transaction, "with a connect a transaction"))
    return ", ".join(parts)


def _throughput(tried: Sequence[EncryptionTried], how: str) -> str:
    """The worst of what is told from no change: of many noisy figures the worst is always bad."""
    told = [each.ratio.value - 1 for each in tried if is_told(each)]
    invalid = sum(each.invalid for each in tried)
    about = f", {invalid} of them not about the path" if invalid else ""
    if not told:
        return f"throughput {how} not told from no change in {_cells(len(tried))}{about}"
    among = "" if len(told) == len(tried) else f", {len(told)} of {len(tried)} cells told from no change{about}"
    return f"throughput {min(told):+.0%} at worst {how}{among}".replace("%", " %")


def _cells(number: int) -> str:
    return f"{number} cell{'' if number == 1 else 's'}"
