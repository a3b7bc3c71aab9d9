"""Encryption: the cost of TLS per byte and per connect, and its effect on throughput at each number of connections.

CPU time is that of both ends, from cells that differ only in TLS. The cost of a connect is the difference between cells with a
connection per transaction and cells with persistent connections. Its number of round trips is derived from time: the growth of a
single connection's cycle, less CPU time and waits for a CPU, divided by the RTT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median
from typing import NamedTuple

from pydantic import Field

from howfar.analysis.cells import CellSummary, NoiseFloors
from howfar.analysis.summary import RunEvidence
from howfar.contract.receipt_messages import Receipt
from howfar.experiments.network import what_if as model
from howfar.experiments.network.answer import compare, compared_cells, groups_with_factor_off, resolved_cpu_ratio
from howfar.experiments.network.arm_pairs import ArmPair, Tried, changed_levels, find_pairs
from howfar.experiments.network.encryption.texts import ECONOMICS
from howfar.experiments.network.fit import fit, series, settings_of
from howfar.experiments.network.what_if import is_known
from howfar.findings import Finding, Quantity, fill
from howfar.model.facts import ArmFacts
from howfar.paths import is_modelled
from howfar.plan.factors import CONNECT, PATH, TLS, level_of, tls_label
from howfar.plan.workload import Workload
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution
from howfar.stats.resample import PositiveInterval, SignedInterval
from howfar.stats.trials import other_factors

PER_TRANSACTION = "per-transaction"
MAX_WAIT = 0.2
"""Maximum share of a single connection's cycle spent waiting for a CPU. Beyond it, the rest of the cycle is not just round trips."""


class EncryptionTried(Tried):
    """Ratio of throughput to the same cell without TLS; `predicted` is from cells with other numbers of connections."""

    predicted_interval: PositiveInterval = None


class EncryptionRow(Part):
    """The costs of one TLS version compared with no TLS: CPU of both ends, round trips, and throughput."""

    version: str
    connect_us: float | None
    """CPU of a connect, both ends, in addition to that of a plain connect. None: not measured with a connection per transaction."""
    connect_us_interval: SignedInterval = None
    connect_turns: float | None
    """Round trips of a connect in addition to those of a plain connect."""
    connect_turns_interval: SignedInterval = None
    byte_ns: float | None
    """CPU per payload byte in addition to the plain session's, both ends. None: no persistent cells."""
    byte_ns_interval: SignedInterval = None
    persistent: tuple[EncryptionTried, ...]
    per_transaction: tuple[EncryptionTried, ...]
    resumed: bool | None
    retried: bool | None = None
    """Whether the server refused the first key share that it was offered, which takes another round trip. None: not known."""


class EncryptionEconomics(Part):
    rows: tuple[EncryptionRow, ...]
    text: str = Field(alias="says")


def analyse_encryption(
    facts: Sequence[ArmFacts], workload: Workload | None, floors: NoiseFloors
) -> EncryptionEconomics | None:
    """The economics of encryption; `with_sentences` completes them when intervals are known. None: no encrypted cell has its plain
    one."""
    pairs_by_version = [
        (str(version), list(find_pairs(facts, "tls", version))) for version in changed_levels(facts, "tls")
    ]
    rows = tuple(
        _make_row(facts, workload, version, version_pairs, floors)
        for version, version_pairs in pairs_by_version
        if version_pairs
    )
    return EncryptionEconomics(rows=rows, text="") if rows else None


def with_sentences(findings: EncryptionEconomics) -> EncryptionEconomics:
    """The findings with their sentences."""
    return findings.model_copy(update={"text": " ".join(map(encryption_sentence, findings.rows))})


def _make_row(
    facts: Sequence[ArmFacts],
    workload: Workload | None,
    version: str,
    version_pairs: Sequence[ArmPair],
    floors: NoiseFloors,
) -> EncryptionRow:
    persistent, per_transaction = _split_by_connect(version_pairs)
    effects = _connect_effects(per_transaction, persistent)
    byte_s = median((pair.client_s + pair.server_s) / pair.payload for pair in persistent) if persistent else None

    def compare_pairs(arm_pairs: Sequence[ArmPair]) -> tuple[EncryptionTried, ...]:
        """Comparisons of cells; several with the same number of connections (at different rates) stay separate."""
        return tuple(
            EncryptionTried(
                threads=pair.plain.threads,
                ratio=ratio,
                predicted=_predict_ratio(facts, workload, version_pairs, pair),
                invalid=not pair.is_valid,
                below_noise=pair.below_noise(floors),
            )
            for pair in sorted(arm_pairs, key=lambda pair: pair.plain.threads)
            if (ratio := pair.ratio) is not None
        )

    return EncryptionRow(
        version=tls_label(version),
        connect_us=median(effect.client_s + effect.server_s for effect in effects) * 1e6 if effects else None,
        connect_turns=_mean_round_trips(effects),
        byte_ns=None if byte_s is None else byte_s * 1e9,
        persistent=compare_pairs(persistent),
        per_transaction=compare_pairs(per_transaction),
        resumed=_all_receipts_report(lambda session: session.tls_resumed, per_transaction or version_pairs),
        retried=_all_receipts_report(lambda session: session.tls_retried, version_pairs),
    )


def _split_by_connect(all_pairs: Sequence[ArmPair]) -> tuple[list[ArmPair], list[ArmPair]]:
    """Pairs with persistent connections, and pairs with a connect for every transaction."""
    persistent = [pair for pair in all_pairs if CONNECT.level_in(pair.plain.arm.factors) != PER_TRANSACTION]
    return persistent, [pair for pair in all_pairs if CONNECT.level_in(pair.plain.arm.factors) == PER_TRANSACTION]


def _all_receipts_report(fact: Callable[[Receipt], bool | None], tls_pairs: Sequence[ArmPair]) -> bool | None:
    """Whether all receipts report a fact as true. None: no receipt reports it."""
    sessions = [pair.changed.session for pair in tls_pairs if pair.changed.session is not None]
    values = [value for session in sessions if (value := fact(session)) is not None]
    return all(values) if values else None


@dataclass(frozen=True)
class _ConnectEffect:
    """The effect of one connect per transaction. `twin`: the same change with persistent connections, which is subtracted."""

    pair: ArmPair
    twin: ArmPair | None = None

    @property
    def client_s(self) -> float:
        return self.pair.client_s - (self.twin.client_s if self.twin else 0.0)

    @property
    def server_s(self) -> float:
        return self.pair.server_s - (self.twin.server_s if self.twin else 0.0)

    @property
    def round_trips(self) -> float | None:
        """Additional round trips. None unless it is a lone connection on a quiet machine: otherwise the time includes waits."""
        plain, both_pairs = self.pair.plain, [pair for pair in (self.pair, self.twin) if pair is not None]
        cells = [cell for pair in both_pairs for cell in (pair.plain, pair.changed)]
        is_quiet = all(cell.runnable_s < MAX_WAIT * cell.cycle_s for cell in cells)
        if plain.threads != 1 or plain.rtt_s <= 0 or not is_quiet:
            return None
        growth_s, *twin_growth_s = (pair.changed.idle_s - pair.plain.idle_s for pair in both_pairs)
        return (growth_s - sum(twin_growth_s)) / plain.rtt_s


def _mean_round_trips(effects: Sequence[_ConnectEffect]) -> float | None:
    round_trip_counts = [round_trips for effect in effects if (round_trips := effect.round_trips) is not None]
    return median(round_trip_counts) if round_trip_counts else None


def _connect_effects(per_transaction: Sequence[ArmPair], persistent: Sequence[ArmPair]) -> list[_ConnectEffect]:
    """TLS's part of a connect: its effect on a transaction with a connect, less its effect on one without."""
    twins = {other_factors(pair.plain.arm.factors, "connect"): pair for pair in reversed(persistent)}
    matched_pairs = ((pair, twins.get(other_factors(pair.plain.arm.factors, "connect"))) for pair in per_transaction)
    return [_ConnectEffect(pair, twin) for pair, twin in matched_pairs if twin is not None]


def connect_costs(facts: Sequence[ArmFacts]) -> dict[str, float | None]:
    """Costs of TLS and of connecting, by the model's names for them. They are from the newest TLS version measured, with full
    handshakes if these were measured. None: not measured."""
    versions = sorted(
        (str(level) for level in changed_levels(facts, "tls")), key=lambda level: (level[:3], -len(level))
    )
    plain_effects = [
        _ConnectEffect(pair)
        for pair in find_pairs(facts, "connect", PER_TRANSACTION)
        if TLS.level_in(pair.plain.arm.factors) == "off"
    ]
    return _tls_costs(list(find_pairs(facts, "tls", versions[-1])) if versions else []) | {
        "connect_turns": _median_cost([_mean_round_trips(plain_effects)]),
        "connect_client_s": _median_cost([effect.client_s for effect in plain_effects]),
        "connect_server_s": _median_cost([effect.server_s for effect in plain_effects]),
    }


def _tls_costs(all_pairs: Sequence[ArmPair]) -> dict[str, float | None]:
    persistent, per_transaction = _split_by_connect(all_pairs)
    effects = _connect_effects(per_transaction, persistent)
    return {
        "tls_byte_s": _median_cost([(pair.client_s + pair.server_s) / pair.payload / 2 for pair in persistent]),
        "tls_connect_turns": _median_cost([_mean_round_trips(effects)]),
        "tls_connect_client_s": _median_cost([effect.client_s for effect in effects]),
        "tls_connect_server_s": _median_cost([effect.server_s for effect in effects]),
    }


def _median_cost(values: Sequence[float | None]) -> float | None:
    """The median of costs, at least 0."""
    known_values = [value for value in values if value is not None]
    return max(median(known_values), 0.0) if known_values else None


def _predict_ratio(
    facts: Sequence[ArmFacts], workload: Workload | None, all_pairs: Sequence[ArmPair], pair: ArmPair
) -> float | None:
    """A pair's ratio by the model, with costs from cells with other numbers of connections. None: those do not determine it, or
    it would be right by construction."""
    if pair.only_bytes or not is_modelled(PATH.level_in(pair.plain.arm.factors)):
        return None
    costs = _tls_costs([other for other in all_pairs if other.plain.threads != pair.plain.threads])
    # The plain cells connect equally often, so their demands already include that cost.
    costs |= {"connect_turns": 0.0, "connect_client_s": 0.0, "connect_server_s": 0.0}
    curve_series = next(one_series for one_series in series(facts) if pair.plain in one_series.arms)
    base = fit(curve_series.arms, workload).model_copy(update=costs)
    connects_each_time = CONNECT.level_in(pair.plain.arm.factors) == PER_TRANSACTION
    if not is_known(base, tls=True, connect_each=connects_each_time):
        return None
    plain_settings = settings_of(pair.plain)
    encrypted_settings = plain_settings.model_copy(update={"tls": True, "connect_each": connects_each_time})
    return model.answer(base, encrypted_settings).tps / model.answer(base, plain_settings).tps


# ---------------------------------------------------------------- sentences


def encryption_sentence(row: EncryptionRow) -> str:
    """What the table of costs does not show of a version."""
    comparisons = [*row.persistent, *row.per_transaction]
    errors = [
        abs(comparison.predicted / comparison.ratio.value - 1) * 100
        for comparison in comparisons
        if comparison.predicted is not None and not comparison.invalid
    ]
    figures = {
        "version": row.version,
        "cells": len(comparisons),
        "resolved": sum(comparison.resolved for comparison in comparisons),
        "invalid": any(comparison.invalid for comparison in comparisons),
    }
    sentences = [fill(ECONOMICS["ratios"], **figures), *([ECONOMICS["retried"]] if row.retried else [])]
    if errors:
        figures |= {"predicted": len(errors), "mean": fmean(errors), "worst": max(errors)}
        sentences.append(fill(ECONOMICS["model"], **figures))
    return " ".join(sentences)


# ---------------------------------------------------------------- findings


def conclude(evidence: RunEvidence) -> tuple[Finding, ...]:
    """For each version of TLS, and for each way to connect, the worst resolved ratio of throughput to that without TLS. The worst
    finding of each way to connect is first."""
    cells, findings = compared_cells(evidence, "tls", "connect"), []
    for connect in (PER_TRANSACTION, "persistent"):
        results = _results_by_version(evidence, cells, connect)
        found = [_version_finding(connect, version, compared) for version, compared in results.items()]
        findings.append(sorted(found, key=lambda finding: finding.estimate.value if finding.estimate else math.inf))
    everything = [*chain(*findings)]
    if not everything:
        return (Finding(id="invalid", verdict=Resolution.NOT_RESOLVED),) if groups_with_factor_off(cells, "tls") else ()
    if all(finding.estimate is None for finding in everything):
        compared = sum(int(finding.parameters["cells"]) for finding in everything)
        return (Finding(id="no-difference", verdict=Resolution.NOT_RESOLVED, parameters={"cells": compared}),)
    return (*chain(*(found[:1] for found in findings)), *chain(*(found[1:] for found in reversed(findings))))


def explain(evidence: RunEvidence) -> tuple[Finding, ...]:
    """The CPU time that TLS adds to a transaction, for each way to connect, where it costs most throughput. Only resolved figures."""
    cells, findings = compared_cells(evidence, "tls", "connect"), []
    for connect in (PER_TRANSACTION, "persistent"):
        results = chain(*_results_by_version(evidence, cells, connect).values())
        slower = [result for result in results if result.verdict is Resolution.SLOWER]
        worst = min(slower, key=lambda result: result.ratio.value, default=None)
        if worst is None:
            continue
        cpu_ratio = resolved_cpu_ratio(evidence, worst.cell, worst.plain)
        if cpu_ratio is not None and cpu_ratio.value > 1:
            version = tls_label(level_of(worst.cell.factors, "tls"))
            findings.append(Finding(id=f"cpu/{connect}", subject=version, metric=Quantity.CPU, estimate=cpu_ratio))
    return tuple(findings)


class _Result(NamedTuple):
    """An encrypted cell compared with the same one without TLS."""

    cell: CellSummary
    plain: CellSummary
    ratio: Estimate
    """Ratio of throughputs."""
    verdict: Resolution


def _results_by_version(evidence: RunEvidence, cells: Sequence[CellSummary], connect: str) -> dict[str, list[_Result]]:
    """The results of all cells that connect in this way and describe the path, by version."""
    results: dict[str, list[_Result]] = {}
    chosen = [cell for cell in cells if level_of(cell.factors, "connect") == connect]
    for plain, encrypted_cells in groups_with_factor_off(chosen, "tls"):
        for cell in encrypted_cells:
            ratio, verdict = compare(evidence, cell, plain) or (None, None)
            if ratio is not None and verdict is not None:
                results.setdefault(tls_label(level_of(cell.factors, "tls")), []).append(
                    _Result(cell, plain, ratio, verdict)
                )
    return results


def _version_finding(connect: str, version: str, results: Sequence[_Result]) -> Finding:
    resolved = sorted(
        (result for result in results if result.verdict.is_difference), key=lambda result: result.ratio.value
    )
    parameters: dict[str, str | int | float] = {"cells": len(results), "resolved": len(resolved)}
    if not resolved:
        return Finding(
            id=f"{connect}-unresolved", subject=version, verdict=Resolution.NOT_RESOLVED, parameters=parameters
        )
    worst, least = resolved[0], resolved[-1]
    parameters |= {"several": int(len(results) > 1), "least_ratio": least.ratio.value, "arm": worst.cell.arm}
    return Finding(
        id=connect,
        subject=version,
        metric=Quantity.THROUGHPUT,
        estimate=worst.ratio,
        verdict=worst.verdict,
        parameters=parameters,
    )
