"""The sentences of the economics. Figures come in; nothing is reckoned here but which of them to say."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.findings import CompressionRow, EncryptionRow, EncryptionTried, WhatIf, WhatIfSettings
from howfar.analysis.intervals import excludes_one
from howfar.analysis.model.what_if import answer
from howfar.units import format_rate_bps

HARDLY = 0.05
"""A share of throughput that is called hardly anything."""


def level_advice(base: WhatIf, settings: WhatIfSettings, rates: Sequence[float]) -> str:
    """Which of the algorithms tried gives most, by the model, on each link tried."""
    parts = []
    for rate in rates:
        here = settings.model_copy(update={"rate_bps": rate, "compression": "off"})
        plain = answer(base, here).tps
        best = max(base.compression, key=lambda how: answer(base, _with(here, how.algorithm)).tps)
        times = answer(base, _with(here, best.algorithm)).tps / plain
        what = f"{best.algorithm} gives most ({times:.2f} times)" if times > 1 else "none pays"
        parts.append(f"at {format_rate_bps(rate)} {what}")
    return "; ".join(parts)


def _with(settings: WhatIfSettings, algorithm: str) -> WhatIfSettings:
    return settings.model_copy(update={"compression": algorithm})


def compression_says(rows: Sequence[CompressionRow]) -> str:
    """By content: below which rate each algorithm pays."""
    parts = []
    for content in dict.fromkeys(row.content for row in rows):
        pays = [row for row in rows if row.content == content]
        named = ", ".join(f"{row.algorithm} {_below(row.break_even_bps)}" for row in pays)
        parts.append(f"{content}: {named}")
    tried = [each for row in rows for each in row.measured]
    decided = [each for each in tried if excludes_one(each.ratio)]
    foreseen = sum(each.agrees for each in decided)
    said = f"Compression pays on this machine for {'; '.join(parts)}."
    if not decided:
        return f"{said} None of the {len(tried)} measured cells is told from no change."
    return f"{said} Of {len(tried)} measured cells {len(decided)} are told from no change; the model has {foreseen} of these right."


def _below(rate_bps: float | None) -> str:
    return "never" if rate_bps is None else f"below {format_rate_bps(float(f'{rate_bps:.2g}'))}"


def encryption_says(rows: Sequence[EncryptionRow]) -> str:
    return " ".join(_row_says(row) for row in rows)


def _row_says(row: EncryptionRow) -> str:
    said = f"{row.version} costs {row.byte_ns:.2f} ns of CPU a byte"
    if row.connect_us is not None:
        said += f" and {row.connect_us:.0f} µs a connect"
        if row.connect_turns is not None and row.connect_turns >= 0.5:
            said += f" with {row.connect_turns:.1f} round trips"
        if row.retried:
            said += " (the server asks for another key share: one of them)"
    bytes_cost, churn_costs = _most_lost(row.persistent), _most_lost(row.per_transaction)
    if bytes_cost is None and churn_costs is None:
        return said + "."
    verdict = _verdict(bytes_cost, churn_costs)
    return f"{said}: {verdict} ({_shares(bytes_cost, churn_costs)})."


def _verdict(bytes_cost: float | None, churn_costs: float | None) -> str:
    if churn_costs is None:
        return "bytes cost hardly anything" if (bytes_cost or 0.0) < HARDLY else "bytes cost"
    if bytes_cost is None:
        return "churn costs hardly anything" if churn_costs < HARDLY else "churn costs"
    if max(bytes_cost, churn_costs) < HARDLY:
        return "neither churn nor bytes cost much here"
    if bytes_cost < HARDLY:
        return "churn costs, bytes hardly"
    if churn_costs < HARDLY:
        return "bytes cost, churn hardly"
    return "churn costs and so do bytes"


def _most_lost(tried: Sequence[EncryptionTried]) -> float | None:
    """The largest share of throughput that TLS took; below nothing: none."""
    return max((1 - each.ratio.value for each in tried), default=None)


def _shares(bytes_cost: float | None, churn_costs: float | None) -> str:
    parts = []
    if bytes_cost is not None:
        parts.append(f"throughput {-bytes_cost:+.0%} at worst with persistent connections")
    if churn_costs is not None:
        parts.append(f"{-churn_costs:+.0%} with a connect a transaction")
    return ", ".join(parts).replace("%", " %")
