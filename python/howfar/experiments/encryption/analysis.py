"""Encryption: what TLS costs a byte, what it costs a connect, and what of throughput that is at each number of connections.

Processor time is that of both ends, from cells that differ in nothing but TLS. A connect's is what cells with a connect a transaction
have beyond persistent ones. Round trips come from time: what a lone connection's cycle grew beyond the processors' part and the waits
for one, over the RTT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from statistics import median
from typing import Any

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import RunEvidence
from howfar.experiments.answer import (
    about_the_path,
    answer,
    compared,
    is_clause,
    level,
    ratio_of,
    resolved,
    tps_of,
    with_plain,
)
from howfar.experiments.pairs import Pair, Tried, levels, pairs
from howfar.model import what_if as model
from howfar.model.facts import ArmFacts
from howfar.model.fit import fit, series, settings_of
from howfar.model.what_if import is_known
from howfar.paths import is_modelled
from howfar.plan.factors import tls_label
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, interval_text

EACH = "per-transaction"
MOST_WAITED = 0.2
"""Of a lone connection's cycle: beyond, what is left of it after taking off the waits is not what round trips took."""
HARDLY = 0.05
"""A share of throughput that is called hardly anything."""
HALF_A_TURN = 0.5
"""Of a round trip: less is not said to be one."""


class EncryptionTried(Tried):
    """Throughput over the same cell without TLS; `predicted` from cells with other numbers of connections."""


class EncryptionRow(Part):
    """One TLS version against none, CPU of both ends and time."""

    version: str
    connect_us: float | None
    """CPU of a connect beyond the plain one's, both ends. None: not measured with a connect a transaction."""
    connect_turns: float | None
    """Round trips of a connect beyond the plain one's."""
    byte_ns: float | None
    """CPU per payload byte beyond the plain session's, both ends. None: no persistent cells."""
    persistent: tuple[EncryptionTried, ...]
    per_transaction: tuple[EncryptionTried, ...]
    resumed: bool | None
    retried: bool | None = None
    """The server did not take the first key share that it was offered: a round trip more. None: not known."""


class EncryptionEconomics(Part):
    rows: tuple[EncryptionRow, ...]
    says: str


def encryption(
    facts: Sequence[ArmFacts], workload: Mapping[str, Any], floor: float | None = None
) -> EncryptionEconomics | None:
    """`floor`: the run's noise floor. None: nothing was encrypted that has its plain cell."""
    rows = [row for version in levels(facts, "tls") if (row := _row(facts, workload, str(version), floor)) is not None]
    return EncryptionEconomics(rows=tuple(rows), says=" ".join(map(encryption_says, rows))) if rows else None


def _row(
    facts: Sequence[ArmFacts], workload: Mapping[str, Any], version: str, floor: float | None
) -> EncryptionRow | None:
    every = list(pairs(facts, "tls", version))
    persistent, each = _apart(every)
    if not every:
        return None
    forecast = _Forecast(facts, workload, every)
    connects = list(_beyond(each, persistent))
    byte_s = median((pair.client_s + pair.server_s) / pair.payload for pair in persistent) if persistent else None
    return EncryptionRow(
        version=tls_label(version),
        connect_us=median(found.client_s + found.server_s for found in connects) * 1e6 if connects else None,
        connect_turns=_turns(connects),
        byte_ns=None if byte_s is None else byte_s * 1e9,
        persistent=_tried(persistent, forecast, floor),
        per_transaction=_tried(each, forecast, floor),
        resumed=_always("tls_resumed", each or every),
        retried=_always("tls_retried", every),
    )


def _tried(found: Sequence[Pair], forecast: _Forecast, floor: float | None) -> tuple[EncryptionTried, ...]:
    """Where several cells have as many connections (other rates), each stands for itself."""
    return tuple(
        EncryptionTried(
            threads=pair.plain.threads,
            ratio=ratio,
            predicted=forecast.ratio(pair),
            invalid=not pair.valid,
            below_noise=pair.below_noise(floor),
        )
        for pair in sorted(found, key=lambda pair: pair.plain.threads)
        if (ratio := pair.ratio) is not None
    )


def _always(what: str, found: Sequence[Pair]) -> bool | None:
    """As the receipts say it. None: none does."""
    said = [value for pair in found if isinstance(value := pair.changed.session.get(what), bool)]
    return all(said) if said else None


@dataclass(frozen=True)
class _Connect:
    """What a connect a transaction adds at one number of connections."""

    threads: int
    client_s: float
    server_s: float
    time_s: float
    """Of the cycle, beyond processor time."""
    rtt_s: float
    quiet: bool
    """Strangers did not make it wait for processors more than the connect itself can take."""


def _turns(found: Sequence[_Connect]) -> float | None:
    """Only a lone connection's time is round trips; with more it is waiting, and on a machine that others keep busy too."""
    lone = [each for each in found if each.threads == 1 and each.rtt_s > 0 and each.quiet]
    return median(each.time_s / each.rtt_s for each in lone) if lone else None


def _beyond(each: Sequence[Pair], persistent: Sequence[Pair]) -> Iterator[_Connect]:
    """TLS's part of a connect: what it adds to a transaction that connects, less what it adds to one that does not."""
    for pair in each:
        twin = next((other for other in persistent if _same_place(other.plain, pair.plain)), None)
        if twin is not None:
            yield _Connect(
                threads=pair.plain.threads,
                client_s=pair.client_s - twin.client_s,
                server_s=pair.server_s - twin.server_s,
                time_s=_time_s(pair.plain, pair.changed) - _time_s(twin.plain, twin.changed),
                rtt_s=pair.plain.rtt_s,
                quiet=_quiet(pair.plain, pair.changed, twin.plain, twin.changed),
            )


def _time_s(before: ArmFacts, after: ArmFacts) -> float:
    """By how much the cycle grew beyond what its processors worked more, and were waited for."""
    return after.idle_s - before.idle_s


def _quiet(*cells: ArmFacts) -> bool:
    return all(each.runnable_s < MOST_WAITED * each.cycle_s for each in cells)


def _same_place(one: ArmFacts, other: ArmFacts) -> bool:
    return {**one.arm.factors, "connect": ""} == {**other.arm.factors, "connect": ""}


@dataclass(frozen=True)
class Connecting:
    """What the model's base needs to know of TLS and of connecting, by the names of its fields. None: not measured."""

    tls_byte_s: float | None = None
    connect_turns: float | None = None
    connect_client_s: float | None = None
    connect_server_s: float | None = None
    tls_connect_turns: float | None = None
    tls_connect_client_s: float | None = None
    tls_connect_server_s: float | None = None

    def for_base(self) -> dict[str, float | None]:
        return asdict(self)


def connecting(facts: Sequence[ArmFacts]) -> Connecting:
    """From the newest TLS version measured, with full handshakes if it was. What noise made less than nothing is nothing here."""
    version = max(
        (str(level) for level in levels(facts, "tls")), key=lambda level: (level[:3], -len(level)), default=None
    )
    plain = [
        _Connect(
            threads=pair.plain.threads,
            client_s=pair.client_s,
            server_s=pair.server_s,
            time_s=_time_s(pair.plain, pair.changed),
            rtt_s=pair.plain.rtt_s,
            quiet=_quiet(pair.plain, pair.changed),
        )
        for pair in pairs(facts, "connect", EACH)
        if pair.plain.level("tls") == "off"
    ]
    return replace(
        _of_tls(list(pairs(facts, "tls", version)) if version else []),
        connect_turns=_some(_turns(plain)),
        connect_client_s=_middle([each.client_s for each in plain]),
        connect_server_s=_middle([each.server_s for each in plain]),
    )


def _of_tls(every: Sequence[Pair]) -> Connecting:
    """What TLS costs by these cells; of connecting without it nothing."""
    persistent, each = _apart(every)
    connects = list(_beyond(each, persistent))
    return Connecting(
        tls_byte_s=_middle([(pair.client_s + pair.server_s) / pair.payload / 2 for pair in persistent]),
        tls_connect_turns=_some(_turns(connects)),
        tls_connect_client_s=_middle([found.client_s for found in connects]),
        tls_connect_server_s=_middle([found.server_s for found in connects]),
    )


def _apart(every: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Those with persistent connections, and those with a connect for every transaction."""
    persistent = [pair for pair in every if pair.plain.level("connect") != EACH]
    return persistent, [pair for pair in every if pair.plain.level("connect") == EACH]


def _middle(values: Sequence[float]) -> float | None:
    return max(median(values), 0.0) if values else None


def _some(value: float | None) -> float | None:
    return None if value is None else max(value, 0.0)


# ---------------------------------------------------------------- predicted


@dataclass(frozen=True)
class _Forecast:
    """Ratios by the model, for cells that had no part in them: costs come from cells with other numbers of connections."""

    facts: Sequence[ArmFacts]
    workload: Mapping[str, Any]
    every: Sequence[Pair]
    """Of one TLS version."""

    def ratio(self, pair: Pair) -> float | None:
        """None: nothing else was measured that tells it, or the model does not know the path."""
        each = pair.plain.level("connect") == EACH
        costs = _of_tls([other for other in self.every if other.plain.threads != pair.plain.threads])
        # The plain cells connect as often: what that costs is in their demands.
        costs = replace(costs, connect_turns=0.0, connect_client_s=0.0, connect_server_s=0.0)
        if not is_modelled(pair.plain.level("path")):
            return None
        curve = next(one for one in series(self.facts) if pair.plain in one.arms)
        base = fit(curve.arms, self.workload).model_copy(update=costs.for_base())
        if not is_known(base, tls=True, connect_each=each):
            return None
        plain = settings_of(pair.plain)
        encrypted = plain.model_copy(update={"tls": True, "connect_each": each})
        return model.answer(base, encrypted).tps / model.answer(base, plain).tps


# ---------------------------------------------------------------- sentences


def encryption_says(row: EncryptionRow) -> str:
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
    return f"{said}: {_costs_clause(bytes_cost, churn_costs)} ({_shares(row)}).{_model_says(row)}"


def _round_trips(row: EncryptionRow) -> str:
    told = row.connect_turns is not None and row.connect_turns >= HALF_A_TURN
    said = f" with {row.connect_turns:.1f} round trips" if told else ""
    if not row.retried:
        return said
    return (
        f"{said} ({'one of them because' if told else 'a round trip more, for'} the server asks for another key share)"
    )


def _model_says(row: EncryptionRow) -> str:
    """How far off the model was in the cells that it predicted."""
    tried = [*row.persistent, *row.per_transaction]
    errors = [
        abs(each.predicted / each.ratio.value - 1) for each in tried if each.predicted is not None and not each.invalid
    ]
    if not errors:
        return ""
    mean, worst = sum(errors) / len(errors), max(errors)
    off = f"{mean:.1%} on average and {worst:.1%} at worst".replace("%", " %")
    return f" From other numbers of connections the model predicted {len(errors)} of these {len(tried)} ratios, off by {off}."


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
    if any(each.resolved and 1 - each.ratio.value >= HARDLY for each in tried):
        return _Price.COSTS
    return _Price.HARDLY if all(_shows_hardly(each) for each in tried) else _Price.UNTOLD


def _shows_hardly(tried: EncryptionTried) -> bool:
    """Resolved and less than `HARDLY` from it, or the whole interval is."""
    low = tried.ratio.low
    return tried.resolved or (not tried.invalid and low is not None and 1 - low < HARDLY)


def _costs_clause(bytes_cost: _Price | None, churn_costs: _Price | None) -> str:
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
    clauses += [f"what {_costs(' and '.join(untold))} is not resolved"] if untold else []
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
    """The worst of what is resolved: of many noisy figures the worst is always bad."""
    told = [each.ratio.value - 1 for each in tried if each.resolved]
    invalid = sum(each.invalid for each in tried)
    about = f", {invalid} of them not about the path" if invalid else ""
    if not told:
        return f"throughput {how} not resolved in {_cells(len(tried))}{about}"
    among = "" if len(told) == len(tried) else f", {len(told)} of {len(tried)} cells resolved{about}"
    return f"throughput {min(told):+.0%} at worst {how}{among}".replace("%", " %")


def _cells(number: int) -> str:
    return f"{number} cell{'' if number == 1 else 's'}"


def verdict(evidence: RunEvidence) -> str:
    """For persistent connections and for a connect a transaction: what TLS leaves of the throughput, over all cells."""
    cells, clauses = compared(evidence, "tls", "connect"), []
    for connect, name in (
        ("persistent", "with persistent connections"),
        (EACH, "with a connect a transaction"),
    ):
        here = [cell for cell in cells if level(cell, "connect") == connect]
        found = _by_version(evidence, here)
        if found:
            clauses.append(f"{name} {'; '.join(_of_version(*each) for each in found.items())}{_busiest(here)}")
    return answer(clauses, evidence, quoted=True)


def _by_version(evidence: RunEvidence, cells: Sequence[CellSummary]) -> dict[str, list[Estimate | None]]:
    """A ratio for each pair of cells; None: not resolved."""
    found: dict[str, list[Estimate | None]] = {}
    for plain, tried in with_plain(cells, "tls", partial(ratio_of, evidence)):
        for cell, ratio in tried:
            sure = resolved(evidence, ratio) is not Resolution.NOT_RESOLVED and about_the_path(plain, cell)
            found.setdefault(str(level(cell, "tls")), []).append(ratio if sure else None)
    return found


def _of_version(version: str, found: Sequence[Estimate | None]) -> str:
    """The extremes of what is resolved, each with its own interval: between cells, which differ, and not of one figure."""
    known = sorted((ratio for ratio in found if ratio is not None), key=lambda ratio: ratio.value)
    if not known:
        return f"no difference of {tls_label(version)} is resolved"
    ends = list(dict.fromkeys(interval_text(ratio) for ratio in (known[0], known[-1])))
    between = " between cells" if len(ends) > 1 else ""
    missing = f" ({len(found) - len(known)} of {len(found)} cells not resolved)" if len(known) < len(found) else ""
    return f"{tls_label(version)} answers {' to '.join(ends)} of the plain session's queries{between}{missing}"


def _busiest(cells: Sequence[CellSummary]) -> str:
    """The limit where the encrypted sessions answer most."""
    top = max((cell for cell in cells if level(cell, "tls") != "off"), key=tps_of, default=None)
    if top is None or top.limit is None:
        return ""
    return f" (at most {tps_of(top):,.0f} transactions/s: {is_clause(top.limit)})"
