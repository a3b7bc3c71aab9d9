"""Encryption: the cost of TLS per byte and per connect, and its effect on throughput at each number of connections.

CPU time is that of both ends, from cells that differ only in TLS. The cost of a connect is the difference between cells with a
connection per transaction and persistent ones. Its round trips are derived from time: the growth of a lone connection's cycle, without
CPU time and waits for a CPU, over the RTT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from howfar.analysis.cells import CellSummary, Floors
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
from howfar.stats.resample import Derived, Difference, Interval, within
from howfar.stats.trials import rest_of
from howfar.units import counted

EACH = "per-transaction"
MOST_WAITED = 0.2
"""Share of a lone connection's cycle spent waiting for a CPU beyond which the rest of the cycle is not the time of round trips."""
HARDLY = 0.05
"""Loss of throughput below which the report says that throughput hardly changes."""
HALF_A_ROUND_TRIP = 0.5
"""Number of round trips below which a cost is not reported in round trips."""


class EncryptionTried(Tried):
    """Throughput over the same cell without TLS; `predicted` from cells with other numbers of connections."""

    predicted_interval: Derived = None


class EncryptionRow(Part):
    """One TLS version compared with none, CPU of both ends and time."""

    version: str
    connect_us: float | None
    """CPU of a connect in addition to the plain one's, both ends. None: not measured with a connection per transaction."""
    connect_us_interval: Difference = None
    connect_turns: float | None
    """Round trips of a connect in addition to the plain one's."""
    connect_turns_interval: Difference = None
    byte_ns: float | None
    """CPU per payload byte in addition to the plain session's, both ends. None: no persistent cells."""
    byte_ns_interval: Difference = None
    persistent: tuple[EncryptionTried, ...]
    per_transaction: tuple[EncryptionTried, ...]
    resumed: bool | None
    retried: bool | None = None
    """Whether the server refused the first key share that it was offered, which takes a round trip more. None: not known."""


class EncryptionEconomics(Part):
    rows: tuple[EncryptionRow, ...]
    says: str


def encryption(facts: Sequence[ArmFacts], workload: Mapping[str, Any], floors: Floors) -> EncryptionEconomics | None:
    """The economics of encryption. None: no encrypted cell has its plain one."""
    found = [(str(version), list(pairs(facts, "tls", version))) for version in levels(facts, "tls")]
    rows = tuple(_row(facts, workload, version, every, floors) for version, every in found if every)
    return _says(rows) if rows else None


def worded(found: EncryptionEconomics) -> EncryptionEconomics:
    """The findings with their sentences, made once there are intervals."""
    return _says(found.rows)


def _says(rows: tuple[EncryptionRow, ...]) -> EncryptionEconomics:
    return EncryptionEconomics(rows=rows, says=" ".join(map(encryption_says, rows)))


def _row(
    facts: Sequence[ArmFacts], workload: Mapping[str, Any], version: str, every: Sequence[Pair], floors: Floors
) -> EncryptionRow:
    persistent, each = _apart(every)
    connects = _connects(each, persistent)
    byte_s = median((pair.client_s + pair.server_s) / pair.payload for pair in persistent) if persistent else None

    def tried(found: Sequence[Pair]) -> tuple[EncryptionTried, ...]:
        """Comparisons of cells; several with the same number of connections (at different rates) stay separate."""
        return tuple(
            EncryptionTried(
                threads=pair.plain.threads,
                ratio=ratio,
                predicted=_predicted(facts, workload, every, pair),
                invalid=not pair.valid,
                below_noise=pair.below_noise(floors),
            )
            for pair in sorted(found, key=lambda pair: pair.plain.threads)
            if (ratio := pair.ratio) is not None
        )

    return EncryptionRow(
        version=tls_label(version),
        connect_us=median(found.client_s + found.server_s for found in connects) * 1e6 if connects else None,
        connect_turns=_mean_round_trips(connects),
        byte_ns=None if byte_s is None else byte_s * 1e9,
        persistent=tried(persistent),
        per_transaction=tried(each),
        resumed=_always("tls_resumed", each or every),
        retried=_always("tls_retried", every),
    )


def _apart(every: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Pairs with persistent connections, and pairs with a connect for every transaction."""
    persistent = [pair for pair in every if pair.plain.level("connect") != EACH]
    return persistent, [pair for pair in every if pair.plain.level("connect") == EACH]


def _always(what: str, found: Sequence[Pair]) -> bool | None:
    """Whether all receipts report `what` as true. None: no receipt reports it."""
    values = [value for pair in found if isinstance(value := pair.changed.session.get(what), bool)]
    return all(values) if values else None


@dataclass(frozen=True)
class _Connect:
    """The effect of one connect per transaction. `twin`: the same change with persistent connections, which is subtracted."""

    pair: Pair
    twin: Pair | None = None

    @property
    def client_s(self) -> float:
        return self.pair.client_s - (self.twin.client_s if self.twin else 0.0)

    @property
    def server_s(self) -> float:
        return self.pair.server_s - (self.twin.server_s if self.twin else 0.0)

    @property
    def round_trips(self) -> float | None:
        """Additional round trips. None unless it is a lone connection on a quiet machine: otherwise the time includes waits."""
        here, both = self.pair.plain, [each for each in (self.pair, self.twin) if each is not None]
        cells = [cell for each in both for cell in (each.plain, each.changed)]
        quiet = all(cell.runnable_s < MOST_WAITED * cell.cycle_s for cell in cells)
        if here.threads != 1 or here.rtt_s <= 0 or not quiet:
            return None
        grown, *less = (each.changed.idle_s - each.plain.idle_s for each in both)
        return (grown - sum(less)) / here.rtt_s


def _mean_round_trips(found: Sequence[_Connect]) -> float | None:
    known = [round_trips for each in found if (round_trips := each.round_trips) is not None]
    return median(known) if known else None


def _connects(each: Sequence[Pair], persistent: Sequence[Pair]) -> list[_Connect]:
    """TLS's part of a connect: its effect on a transaction that connects, less that on one that does not."""
    twins = {rest_of(pair.plain.arm.factors, "connect"): pair for pair in reversed(persistent)}
    found = ((pair, twins.get(rest_of(pair.plain.arm.factors, "connect"))) for pair in each)
    return [_Connect(pair, twin) for pair, twin in found if twin is not None]


def connecting(facts: Sequence[ArmFacts]) -> dict[str, float | None]:
    """Costs of TLS and of connecting, by the model's names; None: not measured. From the newest TLS version measured, with full
    handshakes if it was."""
    versions = sorted((str(level) for level in levels(facts, "tls")), key=lambda level: (level[:3], -len(level)))
    plain = [_Connect(pair) for pair in pairs(facts, "connect", EACH) if pair.plain.level("tls") == "off"]
    return _of_tls(list(pairs(facts, "tls", versions[-1])) if versions else []) | {
        "connect_turns": _cost([_mean_round_trips(plain)]),
        "connect_client_s": _cost([each.client_s for each in plain]),
        "connect_server_s": _cost([each.server_s for each in plain]),
    }


def _of_tls(every: Sequence[Pair]) -> dict[str, float | None]:
    persistent, each = _apart(every)
    connects = _connects(each, persistent)
    return {
        "tls_byte_s": _cost([(pair.client_s + pair.server_s) / pair.payload / 2 for pair in persistent]),
        "tls_connect_turns": _cost([_mean_round_trips(connects)]),
        "tls_connect_client_s": _cost([found.client_s for found in connects]),
        "tls_connect_server_s": _cost([found.server_s for found in connects]),
    }


def _cost(values: Sequence[float | None]) -> float | None:
    """The median of costs, at least 0."""
    known = [value for value in values if value is not None]
    return max(median(known), 0.0) if known else None


def _predicted(
    facts: Sequence[ArmFacts], workload: Mapping[str, Any], every: Sequence[Pair], pair: Pair
) -> float | None:
    """A cell's ratio by the model, with costs from cells with other numbers of connections. None: those do not determine it, or
    it would be right by construction."""
    if pair.only_bytes or not is_modelled(pair.plain.level("path")):
        return None
    costs = _of_tls([other for other in every if other.plain.threads != pair.plain.threads])
    # The plain cells connect equally often, so that cost is in their demands already.
    costs |= {"connect_turns": 0.0, "connect_client_s": 0.0, "connect_server_s": 0.0}
    curve = next(one for one in series(facts) if pair.plain in one.arms)
    base = fit(curve.arms, workload).model_copy(update=costs)
    each = pair.plain.level("connect") == EACH
    if not is_known(base, tls=True, connect_each=each):
        return None
    plain = settings_of(pair.plain)
    encrypted = plain.model_copy(update={"tls": True, "connect_each": each})
    return model.answer(base, encrypted).tps / model.answer(base, plain).tps


# ---------------------------------------------------------------- sentences


def encryption_says(row: EncryptionRow) -> str:
    costs = []
    if row.byte_ns is not None:
        costs.append(
            f"{within(row.byte_ns, row.byte_ns_interval, '{:.2f}'.format)} ns of CPU per byte{_doubt(row.byte_ns_interval)}"
        )
    if row.connect_us is not None:
        cost = within(row.connect_us, row.connect_us_interval, "{:.0f}".format)
        costs.append(f"{cost} µs of CPU per connect{_doubt(row.connect_us_interval)}{_round_trips(row)}")
    what = f"costs {' and '.join(costs)}" if costs else "has costs per byte and connect that were not measured"
    sentences = (
        (row.persistent, "With persistent connections"),
        (row.per_transaction, "With a connection per transaction"),
    )
    shares = [f"{how} {_throughput(tried)}." for tried, how in sentences if tried]
    return " ".join([f"{row.version} {what}.", *shares, *_model_says([*row.persistent, *row.per_transaction])])


def _doubt(interval: Interval | None) -> str:
    """Note for a cost whose interval includes 0."""
    return " (not resolved)" if interval is not None and interval[0] <= 0 <= interval[1] else ""


def _round_trips(row: EncryptionRow) -> str:
    known = row.connect_turns is not None and row.connect_turns >= HALF_A_ROUND_TRIP
    count = within(row.connect_turns or 0.0, row.connect_turns_interval, "{:.1f}".format)
    text = f" with {count} round trips" if known else ""
    if not row.retried:
        return text
    which = "one of them because" if known else "one more round trip, because"
    return f"{text} ({which} the server asks for another key share)"


def _throughput(tried: Sequence[EncryptionTried]) -> str:
    """Clause on the worst resolved ratio; the worst of many noisy figures would always be bad."""
    known = [each.ratio.value - 1 for each in tried if each.resolved]
    cells = counted(len(tried), "cell")
    invalid = sum(each.invalid for each in tried)
    about = f", {invalid} of which do not describe the path" if invalid else ""
    if all(_costs_hardly_anything(each) for each in tried):
        return f"throughput hardly changes ({cells})"
    if not known:
        return f"no change of throughput is resolved ({cells}{about})"
    among = "" if len(known) == len(tried) else f" ({len(known)} of {cells} resolved{about})"
    return f"throughput changes by {min(known):+.0%} at worst{among}".replace("%", " %")


def _costs_hardly_anything(tried: EncryptionTried) -> bool:
    """Whether the loss is resolved as less than `HARDLY`, or the whole interval is."""
    low = tried.ratio.low
    if tried.resolved:
        return 1 - tried.ratio.value < HARDLY
    return not tried.invalid and low is not None and 1 - low < HARDLY


def _model_says(tried: Sequence[EncryptionTried]) -> list[str]:
    """Error of the model in the cells that it predicted."""
    errors = [
        abs(each.predicted / each.ratio.value - 1) for each in tried if each.predicted is not None and not each.invalid
    ]
    if not errors:
        return []
    off = f"{sum(errors) / len(errors):.1%} on average and {max(errors):.1%} at worst".replace("%", " %")
    return [
        f"From other numbers of connections, the model predicted {len(errors)} of these {len(tried)} ratios, off by {off}."
    ]


def verdict(evidence: RunEvidence) -> str:
    """Answer for persistent connections and for a connect per transaction: the share of throughput with TLS, over all cells."""
    cells, clauses = compared(evidence, "tls", "connect"), []
    for connect, name in (
        ("persistent", "with persistent connections"),
        (EACH, "with a connection per transaction"),
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
            sure = resolved(evidence, cell, ratio) is not Resolution.NOT_RESOLVED and about_the_path(plain, cell)
            found.setdefault(str(level(cell, "tls")), []).append(ratio if sure else None)
    return found


def _of_version(version: str, found: Sequence[Estimate | None]) -> str:
    """The extremes of the resolved ratios, each with its own interval; they are of different cells, not of one figure."""
    known = sorted((ratio for ratio in found if ratio is not None), key=lambda ratio: ratio.value)
    if not known:
        return f"no difference of {tls_label(version)} is resolved"
    ends = list(dict.fromkeys(interval_text(ratio) for ratio in (known[0], known[-1])))
    between = " between cells" if len(ends) > 1 else ""
    missing = f" ({len(found) - len(known)} of {len(found)} cells not resolved)" if len(known) < len(found) else ""
    return f"{tls_label(version)} reaches {' to '.join(ends)} times the throughput without TLS{between}{missing}"


def _busiest(cells: Sequence[CellSummary]) -> str:
    """The limit at the highest throughput of the encrypted sessions."""
    top = max((cell for cell in cells if level(cell, "tls") != "off"), key=tps_of, default=None)
    if top is None or top.limit is None:
        return ""
    return f" (at most {tps_of(top):,.0f} transactions/s: {is_clause(top.limit)})"
