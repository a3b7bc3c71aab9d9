"""Encryption: what TLS costs a byte, what it costs a connect, and what of throughput that is at each number of connections.

Processor time is that of both ends, from cells that differ in nothing but TLS. A connect's is what cells with a connect a transaction
have beyond persistent ones. Round trips come from time: what a lone connection's cycle grew beyond the processors' part and the waits
for one, over the RTT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from howfar.analysis.economics.pairs import Pair, levels, pairs
from howfar.analysis.economics.sentences import encryption_says
from howfar.analysis.summary import EncryptionEconomics, EncryptionRow, EncryptionTried
from howfar.model.facts import ArmFacts
from howfar.model.fit import fit, series, settings_of
from howfar.model.what_if import answer, is_known
from howfar.paths import is_modelled
from howfar.plan.factors import tls_label

EACH = "per-transaction"
MOST_WAITED = 0.2
"""Of a lone connection's cycle: beyond, what is left of it after taking off the waits is not what round trips took."""


def encryption(
    facts: Sequence[ArmFacts], workload: Mapping[str, Any], floor: float | None = None
) -> EncryptionEconomics | None:
    """`floor`: the run's noise floor. None: nothing was encrypted that has its plain cell."""
    rows = [row for version in levels(facts, "tls") if (row := _row(facts, workload, str(version), floor)) is not None]
    return EncryptionEconomics(rows=tuple(rows), says=encryption_says(rows)) if rows else None


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


# ---------------------------------------------------------------- foreseen


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
        return answer(base, encrypted).tps / answer(base, plain).tps
