"""Encryption: the cost of TLS per byte and per connect, and its effect on throughput at each number of connections.

CPU time is that of both ends, from cells that differ only in TLS. The cost of a connect is the difference between cells with a
connection per transaction and cells with persistent connections. Its number of round trips is derived from time: the growth of a
single connection's cycle, less CPU time and waits for a CPU, divided by the RTT.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from howfar.analysis.cells import CellSummary, NoiseFloors
from howfar.analysis.summary import RunEvidence
from howfar.contract.receipt_messages import Receipt
from howfar.experiments.answer import (
    answer,
    compared_cells,
    describe_the_path,
    level,
    limit_clause,
    pairs_with_factor_off,
    ratio_of,
    resolution_of,
    tps_of,
)
from howfar.experiments.arm_pairs import ArmPair, Tried, levels, pairs
from howfar.model import what_if as model
from howfar.model.facts import ArmFacts
from howfar.model.fit import fit, series, settings_of
from howfar.model.what_if import is_known
from howfar.paths import is_modelled
from howfar.plan.factors import tls_label
from howfar.plan.types import Workload
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, interval_text
from howfar.stats.resample import Derived, Difference, Interval, within
from howfar.stats.trials import rest_of
from howfar.units import counted

PER_TRANSACTION = "per-transaction"
MAX_WAIT = 0.2
"""Maximum share of a single connection's cycle spent waiting for a CPU. Beyond it, the rest of the cycle is not just round trips."""
MAX_NEGLIGIBLE_LOSS = 0.05
"""Loss of throughput below which the report says that throughput hardly changes."""
MIN_REPORTED_ROUND_TRIPS = 0.5
"""Number of round trips below which a connect's round trips are not reported."""


class EncryptionTried(Tried):
    """Ratio of throughput to the same cell without TLS; `predicted` is from cells with other numbers of connections."""

    predicted_interval: Derived = None


class EncryptionRow(Part):
    """The costs of one TLS version compared with no TLS: CPU of both ends, round trips, and throughput."""

    version: str
    connect_us: float | None
    """CPU of a connect, both ends, in addition to that of a plain connect. None: not measured with a connection per transaction."""
    connect_us_interval: Difference = None
    connect_turns: float | None
    """Round trips of a connect in addition to those of a plain connect."""
    connect_turns_interval: Difference = None
    byte_ns: float | None
    """CPU per payload byte in addition to the plain session's, both ends. None: no persistent cells."""
    byte_ns_interval: Difference = None
    persistent: tuple[EncryptionTried, ...]
    per_transaction: tuple[EncryptionTried, ...]
    resumed: bool | None
    retried: bool | None = None
    """Whether the server refused the first key share that it was offered, which takes another round trip. None: not known."""


class EncryptionEconomics(Part):
    rows: tuple[EncryptionRow, ...]
    says: str


def analyse_encryption(
    facts: Sequence[ArmFacts], workload: Workload | None, floors: NoiseFloors
) -> EncryptionEconomics | None:
    """The economics of encryption. None: no encrypted cell has its plain one."""
    pairs_by_version = [(str(version), list(pairs(facts, "tls", version))) for version in levels(facts, "tls")]
    rows = tuple(
        _make_row(facts, workload, version, version_pairs, floors)
        for version, version_pairs in pairs_by_version
        if version_pairs
    )
    return _with_sentences(rows) if rows else None


def with_sentences(findings: EncryptionEconomics) -> EncryptionEconomics:
    """The findings with their sentences. To be called when the intervals are known."""
    return _with_sentences(findings.rows)


def _with_sentences(rows: tuple[EncryptionRow, ...]) -> EncryptionEconomics:
    return EncryptionEconomics(rows=rows, says=" ".join(map(encryption_sentence, rows)))


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

    def tried(effect: Sequence[ArmPair]) -> tuple[EncryptionTried, ...]:
        """Comparisons of cells; several with the same number of connections (at different rates) stay separate."""
        return tuple(
            EncryptionTried(
                threads=pair.plain.threads,
                ratio=ratio,
                predicted=_predict_ratio(facts, workload, version_pairs, pair),
                invalid=not pair.valid,
                below_noise=pair.below_noise(floors),
            )
            for pair in sorted(effect, key=lambda pair: pair.plain.threads)
            if (ratio := pair.ratio) is not None
        )

    return EncryptionRow(
        version=tls_label(version),
        connect_us=median(effect.client_s + effect.server_s for effect in effects) * 1e6 if effects else None,
        connect_turns=_mean_round_trips(effects),
        byte_ns=None if byte_s is None else byte_s * 1e9,
        persistent=tried(persistent),
        per_transaction=tried(per_transaction),
        resumed=_all_receipts_report(lambda session: session.tls_resumed, per_transaction or version_pairs),
        retried=_all_receipts_report(lambda session: session.tls_retried, version_pairs),
    )


def _split_by_connect(all_pairs: Sequence[ArmPair]) -> tuple[list[ArmPair], list[ArmPair]]:
    """Pairs with persistent connections, and pairs with a connect for every transaction."""
    persistent = [pair for pair in all_pairs if pair.plain.level("connect") != PER_TRANSACTION]
    return persistent, [pair for pair in all_pairs if pair.plain.level("connect") == PER_TRANSACTION]


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
        plain, pair_and_twin = self.pair.plain, [pair for pair in (self.pair, self.twin) if pair is not None]
        cells = [cell for pair in pair_and_twin for cell in (pair.plain, pair.changed)]
        is_quiet = all(cell.runnable_s < MAX_WAIT * cell.cycle_s for cell in cells)
        if plain.threads != 1 or plain.rtt_s <= 0 or not is_quiet:
            return None
        growth_s, *twin_growth_s = (pair.changed.idle_s - pair.plain.idle_s for pair in pair_and_twin)
        return (growth_s - sum(twin_growth_s)) / plain.rtt_s


def _mean_round_trips(effects: Sequence[_ConnectEffect]) -> float | None:
    round_trip_counts = [round_trips for effect in effects if (round_trips := effect.round_trips) is not None]
    return median(round_trip_counts) if round_trip_counts else None


def _connect_effects(per_transaction: Sequence[ArmPair], persistent: Sequence[ArmPair]) -> list[_ConnectEffect]:
    """TLS's part of a connect: its effect on a transaction with a connect, less its effect on one without."""
    twins = {rest_of(pair.plain.arm.factors, "connect"): pair for pair in reversed(persistent)}
    pairs_and_twins = ((pair, twins.get(rest_of(pair.plain.arm.factors, "connect"))) for pair in per_transaction)
    return [_ConnectEffect(pair, twin) for pair, twin in pairs_and_twins if twin is not None]


def connect_costs(facts: Sequence[ArmFacts]) -> dict[str, float | None]:
    """Costs of TLS and of connecting, by the model's names for them. They are from the newest TLS version measured, with full
    handshakes if these were measured. None: not measured."""
    versions = sorted((str(level) for level in levels(facts, "tls")), key=lambda level: (level[:3], -len(level)))
    plain_effects = [
        _ConnectEffect(pair) for pair in pairs(facts, "connect", PER_TRANSACTION) if pair.plain.level("tls") == "off"
    ]
    return _tls_costs(list(pairs(facts, "tls", versions[-1])) if versions else []) | {
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
    if pair.only_bytes or not is_modelled(pair.plain.level("path")):
        return None
    costs = _tls_costs([other for other in all_pairs if other.plain.threads != pair.plain.threads])
    # The plain cells connect equally often, so their demands already include that cost.
    costs |= {"connect_turns": 0.0, "connect_client_s": 0.0, "connect_server_s": 0.0}
    curve_series = next(one_series for one_series in series(facts) if pair.plain in one_series.arms)
    base = fit(curve_series.arms, workload).model_copy(update=costs)
    connects_each_time = pair.plain.level("connect") == PER_TRANSACTION
    if not is_known(base, tls=True, connect_each=connects_each_time):
        return None
    plain_settings = settings_of(pair.plain)
    encrypted_settings = plain_settings.model_copy(update={"tls": True, "connect_each": connects_each_time})
    return model.answer(base, encrypted_settings).tps / model.answer(base, plain_settings).tps


# ---------------------------------------------------------------- sentences


def encryption_sentence(row: EncryptionRow) -> str:
    costs = []
    if row.byte_ns is not None:
        costs.append(
            f"{within(row.byte_ns, row.byte_ns_interval, '{:.2f}'.format)} ns of CPU per byte{_unresolved_note(row.byte_ns_interval)}"
        )
    if row.connect_us is not None:
        cost = within(row.connect_us, row.connect_us_interval, "{:.0f}".format)
        costs.append(f"{cost} µs of CPU per connect{_unresolved_note(row.connect_us_interval)}{_round_trips_text(row)}")
    costs_clause = f"costs {' and '.join(costs)}" if costs else "has costs per byte and connect that were not measured"
    comparisons_by_connect = (
        (row.persistent, "With persistent connections"),
        (row.per_transaction, "With a connection per transaction"),
    )
    throughput_sentences = [
        f"{connect_text} {_throughput_clause(comparisons)}."
        for comparisons, connect_text in comparisons_by_connect
        if comparisons
    ]
    return " ".join(
        [
            f"{row.version} {costs_clause}.",
            *throughput_sentences,
            *_model_sentences([*row.persistent, *row.per_transaction]),
        ]
    )


def _unresolved_note(interval: Interval | None) -> str:
    """Note for a cost whose interval includes 0."""
    return " (not resolved)" if interval is not None and interval[0] <= 0 <= interval[1] else ""


def _round_trips_text(row: EncryptionRow) -> str:
    is_reported = row.connect_turns is not None and row.connect_turns >= MIN_REPORTED_ROUND_TRIPS
    count = within(row.connect_turns or 0.0, row.connect_turns_interval, "{:.1f}".format)
    text = f" with {count} round trips" if is_reported else ""
    if not row.retried:
        return text
    reason = "one of them because" if is_reported else "one more round trip, because"
    return f"{text} ({reason} the server asks for another key share)"


def _throughput_clause(comparisons: Sequence[EncryptionTried]) -> str:
    """Clause on the worst resolved ratio. Unresolved ones are excluded, because the worst of many noisy figures is always bad."""
    changes = [comparison.ratio.value - 1 for comparison in comparisons if comparison.resolved]
    cells_text = counted(len(comparisons), "cell")
    invalid = sum(comparison.invalid for comparison in comparisons)
    invalid_text = f", {invalid} of which do not describe the path" if invalid else ""
    if all(_is_loss_negligible(comparison) for comparison in comparisons):
        return f"throughput hardly changes ({cells_text})"
    if not changes:
        return f"no change of throughput is resolved ({cells_text}{invalid_text})"
    resolved_text = (
        "" if len(changes) == len(comparisons) else f" ({len(changes)} of {cells_text} resolved{invalid_text})"
    )
    return f"throughput changes by {min(changes):+.0%} at worst{resolved_text}".replace("%", " %")


def _is_loss_negligible(comparison: EncryptionTried) -> bool:
    """Whether the loss is resolved and less than `MAX_NEGLIGIBLE_LOSS`, or all of its interval is less."""
    low = comparison.ratio.low
    if comparison.resolved:
        return 1 - comparison.ratio.value < MAX_NEGLIGIBLE_LOSS
    return not comparison.invalid and low is not None and 1 - low < MAX_NEGLIGIBLE_LOSS


def _model_sentences(comparisons: Sequence[EncryptionTried]) -> list[str]:
    """Error of the model in the cells that it predicted."""
    errors = [
        abs(comparison.predicted / comparison.ratio.value - 1)
        for comparison in comparisons
        if comparison.predicted is not None and not comparison.invalid
    ]
    if not errors:
        return []
    errors_text = f"{sum(errors) / len(errors):.1%} on average and {max(errors):.1%} at worst".replace("%", " %")
    return [
        (
            f"From other numbers of connections, the model predicted {len(errors)} of these {len(comparisons)} ratios, off by "
            f"{errors_text}."
        )
    ]


def verdict(evidence: RunEvidence) -> str:
    """The answer: for persistent connections and for a connect per transaction, the ratio of throughput with TLS to that without."""
    cells, clauses = compared_cells(evidence, "tls", "connect"), []
    for connect, name in (
        ("persistent", "with persistent connections"),
        (PER_TRANSACTION, "with a connection per transaction"),
    ):
        connect_cells = [cell for cell in cells if level(cell, "connect") == connect]
        ratios_by_version = _ratios_by_version(evidence, connect_cells)
        if ratios_by_version:
            clauses.append(
                f"{name} "
                f"{'; '.join(_version_clause(*version_and_ratios) for version_and_ratios in ratios_by_version.items())}"
                f"{_limit_at_top(connect_cells)}"
            )
    return answer(clauses, evidence, quoted=True)


def _ratios_by_version(evidence: RunEvidence, cells: Sequence[CellSummary]) -> dict[str, list[Estimate | None]]:
    """The ratios of all pairs of cells, by TLS version. None: not resolved."""
    ratios_by_version: dict[str, list[Estimate | None]] = {}
    for plain, encrypted_cells in pairs_with_factor_off(cells, "tls", partial(ratio_of, evidence)):
        for cell, ratio in encrypted_cells:
            is_certain = resolution_of(evidence, cell, ratio) is not Resolution.NOT_RESOLVED and describe_the_path(
                plain, cell
            )
            ratios_by_version.setdefault(str(level(cell, "tls")), []).append(ratio if is_certain else None)
    return ratios_by_version


def _version_clause(version: str, ratios: Sequence[Estimate | None]) -> str:
    """Clause with the smallest and the largest resolved ratio. They are of different cells, so each has its own interval."""
    resolved_ratios = sorted((ratio for ratio in ratios if ratio is not None), key=lambda ratio: ratio.value)
    if not resolved_ratios:
        return f"no difference of {tls_label(version)} is resolved"
    extremes = list(dict.fromkeys(interval_text(ratio) for ratio in (resolved_ratios[0], resolved_ratios[-1])))
    between_text = " between cells" if len(extremes) > 1 else ""
    missing_text = (
        f" ({len(ratios) - len(resolved_ratios)} of {len(ratios)} cells not resolved)"
        if len(resolved_ratios) < len(ratios)
        else ""
    )
    return f"{tls_label(version)} reaches {' to '.join(extremes)} times the throughput without TLS{between_text}{missing_text}"


def _limit_at_top(cells: Sequence[CellSummary]) -> str:
    """The limit at the highest throughput of the encrypted sessions."""
    top = max((cell for cell in cells if level(cell, "tls") != "off"), key=tps_of, default=None)
    if top is None or top.limit is None:
        return ""
    return f" (at most {tps_of(top):,.0f} transactions/s: {limit_clause(top.limit)})"
