"""The answer in one sentence of a plan that varies the link, the connections, compression or encryption: it names the limits.

Which of the three questions a run asks is told from what its cells differ in, not from a plan's name. A run that compares paths at
one number of connections asks none of them; `verdict.py` answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from howfar.analysis.alike import alike
from howfar.analysis.summary import NOT_THE_PATH, CellSummary, Limit, Resource
from howfar.analysis.trials import TrialTable, qps
from howfar.bottleneck.cycle import largest
from howfar.plan.factors import ORDINARY, tls_label
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, interval_text, judge_ratio, resolve
from howfar.store.records import ArmRole, FactorValue

MOST_CLAUSES = 6
"""A sentence of more is no answer; the rest is in the tables."""
_DETAILED = frozenset(
    {
        Resource.LINK_TO_CLIENT,
        Resource.LINK_TO_SERVER,
        Resource.SERVER_CPU,
        Resource.CLIENT_CPU,
        Resource.INSTRUMENT_CPU,
        Resource.ERRORS,
        Resource.INVALID,
    }
)
"""Their sentences have the figures behind a colon."""
_IS = {
    Resource.SERVER_CPU: "the server's CPU is the limit",
    Resource.CLIENT_CPU: "the load generator is the limit, and the figures are about it",
    Resource.FORWARDER_CPU: "the forwarder's CPU is the limit",
    Resource.INSTRUMENT_CPU: "the CPU of the link's emulator is the limit, which a larger machine would not have",
    Resource.ONE_THREAD: "one thread is the limit",
    Resource.LINK_TO_CLIENT: "the link to the client is full",
    Resource.LINK_TO_SERVER: "the link to the server is full",
    Resource.RECEIVE_WINDOW: "the receive window is the limit",
    Resource.SEND_BUFFER: "the send buffer is the limit",
    Resource.LOSS: "lost segments are the limit",
    Resource.COMMIT: "commits that wait for the disk are the limit",
    Resource.ACKNOWLEDGEMENT: "commits that wait for a replica are the limit",
    Resource.LOCK: "row locks are the limit",
    Resource.SERVER_WAIT: "a wait inside the server is the limit",
    Resource.LATENCY: "nothing is full: each connection waits for its own answers",
    Resource.ERRORS: "errors of the server are part of the figures",
    Resource.INVALID: "the figures are not about the path",
    Resource.NOT_ESTABLISHED: "no limit is established",
}

_THINGS = {
    Resource.SERVER_CPU: "the server's CPU",
    Resource.CLIENT_CPU: "the load generator",
    Resource.INSTRUMENT_CPU: "the CPU of the link's emulator",
    Resource.LATENCY: "each connection's own round",
    Resource.LOSS: "lost segments",
    Resource.ERRORS: "errors of the server",
    Resource.INVALID: "other programs",
    Resource.NOT_ESTABLISHED: "something not established",
    Resource.ONE_THREAD: "one thread",
    Resource.ACKNOWLEDGEMENT: "the wait for a replica",
    Resource.LOCK: "row locks",
}


@dataclass(frozen=True)
class Answer:
    """A sentence without its full stop."""

    text: str
    intervals: bool
    """Ratios are quoted in it, each with its interval."""


def answer(cells: Sequence[CellSummary], table: TrialTable, floor: float | None) -> Answer | None:
    """None: this run asks something else."""
    shown = [cell for cell in cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    say = _asked(shown)
    ratios = _Ratios(table, floor)
    clauses = say(shown, ratios) if say else []
    return Answer(_sentence(clauses), intervals=say is not _of_links) if clauses else None


def tops(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Of each curve over connections the cell with the highest throughput, where its limit binds most. Empty: this run asks
    something else than limits."""
    shown = [cell for cell in cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    return [max(curve, key=_tps) for curve in _groups(shown, "threads")] if _asked(shown) else []


def _asked(shown: Sequence[CellSummary]) -> Answerer | None:
    """Who answers what these cells differ in."""
    for varied, say in _QUESTIONS:
        if any(len({_level(cell, name) for cell in shown} - {None}) > 1 for name in varied):
            return say
    return None


def _sentence(clauses: Sequence[str]) -> str:
    left = len(clauses) - MOST_CLAUSES
    text = "; ".join(clauses[:MOST_CLAUSES]) + (f"; and {left} more in the table" if left > 0 else "")
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class _Ratios:
    """One arm over another of the same run, paired by block."""

    table: TrialTable
    floor: float | None

    def of(self, cell: CellSummary, reference: CellSummary) -> Estimate | None:
        ratios = self.table.block_ratios(cell.arm, reference.arm, qps)
        return judge_ratio(ratios).quoted if ratios else None

    def resolved(self, ratio: Estimate | None) -> Resolution:
        return resolve(ratio, self.floor)


Answerer = Callable[[Sequence[CellSummary], _Ratios], list[str]]


def _level(cell: CellSummary, name: str) -> FactorValue | None:
    return cell.factors.get(name, ORDINARY.get(name))


def _groups(cells: Sequence[CellSummary], without: str) -> list[list[CellSummary]]:
    """Cells that differ in nothing but one factor, in the order of the plan."""
    return alike(cells, lambda cell: cell.factors, without)


def _tps(cell: CellSummary) -> float:
    return cell.qps.value / cell.queries_per_txn


def rate_words(rate_bps: float) -> str:
    """`1 Gb/s`, `100 Mb/s`."""
    for unit, name in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if rate_bps >= unit:
            return f"{rate_bps / unit:g} {name}"
    return f"{rate_bps:g} b/s"


def _place(factors: Mapping[str, FactorValue]) -> str:
    """`at 1 Gb/s`; without a link the path."""
    rate = factors.get("rate_bps")
    if isinstance(rate, int | float):
        return f"at {rate_words(rate)}"
    return {"tcp": "on the loopback", "socket": "on the socket"}.get(str(factors.get("path")), "here")


# ---------------------------------------------------------------- bandwidth


def _of_links(cells: Sequence[CellSummary], ratios: _Ratios) -> list[str]:
    """For each link: what is the limit at its highest throughput, and from how many connections on."""
    clauses = []
    for curve in _groups(cells, "threads"):
        if all(cell.limit is not None for cell in curve):
            clauses.append(_curve_clause(sorted(curve, key=lambda cell: int(cell.factors.get("threads", 1)))))
    return clauses


def _curve_clause(curve: Sequence[CellSummary]) -> str:
    top = max(curve, key=_tps)
    assert top.limit is not None, "curves without limits say nothing"
    named = top.limit.resource not in _UNNAMED
    where = f" {_stretch(curve, top)}" if named and len(curve) > 1 else ""
    sure = ", as far as can be told" if named and top.limit.confidence == "low" else ""
    return f"{_place(top.factors)} {_is(top.limit)}{where} ({_figures(top, top.limit)}){sure}"


def _stretch(curve: Sequence[CellSummary], top: CellSummary) -> str:
    """The numbers of connections around the best at which its limit is the limit, all that were measured: `from 16 connections on`."""
    assert top.limit is not None, "only of a limit"
    bound = [cell.limit is not None and cell.limit.resource is top.limit.resource for cell in curve]
    first = last = curve.index(top)
    while first > 0 and bound[first - 1]:
        first -= 1
    while last < len(curve) - 1 and bound[last + 1]:
        last += 1
    low, high = (int(curve[place].factors.get("threads", 1)) for place in (first, last))
    begins, ends = first == 0, last == len(curve) - 1
    if top.limit.resource is Resource.LATENCY and begins:
        return f"up to {_connections(high)}"
    if ends:
        return f"from {_connections(low)} on"
    return f"at {_connections(low)}" if low == high else f"from {low} to {_connections(high)}"


def _connections(number: int) -> str:
    return f"{number} connection{'' if number == 1 else 's'}"


_UNNAMED = frozenset({Resource.NOT_ESTABLISHED, Resource.ERRORS, Resource.INVALID})


def _figures(cell: CellSummary, limit: Limit) -> str:
    tps = _tps(cell)
    shown = f"{tps:.1f}" if tps < 100 else f"{tps:,.0f}"
    detail = limit.says.partition(": ")[2].partition(";")[0] if limit.resource in _DETAILED else ""
    if limit.resource is Resource.LATENCY and cell.cycle is not None:
        first = largest(cell.cycle, 1)[0]
        detail = f"{first.us / cell.cycle.us * 100:.0f} % of a round {first.name}"
    return f"{shown} transactions/s{', ' if detail else ''}{detail}"


# ---------------------------------------------------------------- compression


def _of_compression(cells: Sequence[CellSummary], ratios: _Ratios) -> list[str]:
    """For each link and kind of data: does the best algorithm help, and where does the limit go?"""
    clauses = []
    for group in _groups(cells, "compression"):
        plain = next((cell for cell in group if _level(cell, "compression") == "off"), None)
        tried = [(cell, ratio) for cell in group if plain and cell is not plain and (ratio := ratios.of(cell, plain))]
        if plain is not None and tried:
            clauses.append(_compression_clause(plain, tried, ratios))
    return clauses


def _compression_clause(plain: CellSummary, tried: Sequence[_Tried], ratios: _Ratios) -> str:
    """Of those that are told from no change the best; what only looks best is not chosen over it."""
    where = f"{_place(plain.factors)}, {_level(plain, 'content')}"
    tried = [pair for pair in tried if _valid(plain, pair[0])]
    if not tried:
        return f"{where}: no figure is about the path{_stayed(plain.limit)}"
    faster = [pair for pair in tried if ratios.resolved(pair[1]) is Resolution.FASTER]
    best, ratio = max(faster or tried, key=lambda pair: pair[1].value)
    answers = f"{_level(best, 'compression')} answers {interval_text(ratio)}"
    if faster:
        return f"{where}: {answers} times the queries{_moved(plain.limit, best.limit)}"
    if all(ratios.resolved(ratio) is Resolution.SLOWER for _, ratio in tried):
        return f"{where}: none helps, at best {answers}{_stayed(plain.limit)}"
    if any(ratios.resolved(ratio) is Resolution.SLOWER for _, ratio in tried):
        return f"{where}: none is resolved to help{_stayed(plain.limit)}"
    return f"{where}: no difference is resolved{_stayed(plain.limit)}"


_Tried = tuple[CellSummary, Estimate]


def _valid(*cells: CellSummary) -> bool:
    """Figures about other programs or errors say nothing of what is compared, however narrow their intervals."""
    return all(cell.limit is None or cell.limit.resource not in NOT_THE_PATH for cell in cells)


def _moved(before: Limit | None, after: Limit | None) -> str:
    if before is None or after is None:
        return ""
    if before.resource is after.resource:
        return f" (limit: {_name(before)}, with and without)"
    return f" (the limit goes from {_name(before)} to {_name(after)})"


def _stayed(limit: Limit | None) -> str:
    return f" (limit without it: {_name(limit)})" if limit is not None else ""


def _is(limit: Limit) -> str:
    """A limit as a clause."""
    return "CPUs are the limit that nobody has most of" if limit.divided else _IS[limit.resource]


def _name(limit: Limit) -> str:
    """A limit as a thing, in a sentence."""
    if limit.divided:
        return "CPUs that nobody has most of"
    return _THINGS.get(limit.resource, f"the {limit.resource.value}")


# ---------------------------------------------------------------- encryption


def _of_encryption(cells: Sequence[CellSummary], ratios: _Ratios) -> list[str]:
    """For each way to connect: what TLS leaves of the throughput, over all numbers of connections and links."""
    clauses = []
    for connect, words in (
        ("persistent", "with persistent connections"),
        ("per-transaction", "with a connect a transaction"),
    ):
        here = [cell for cell in cells if _level(cell, "connect") == connect]
        found = _tls(here, ratios)
        if found:
            clauses.append(f"{words} {'; '.join(_of_version(*each) for each in found.items())}{_busiest(here)}")
    return clauses


def _tls(cells: Sequence[CellSummary], ratios: _Ratios) -> dict[str, list[Estimate | None]]:
    """By version a ratio for each pair of cells; None: not resolved."""
    found: dict[str, list[Estimate | None]] = {}
    for group in _groups(cells, "tls"):
        plain = next((cell for cell in group if _level(cell, "tls") == "off"), None)
        for cell in group:
            ratio = ratios.of(cell, plain) if plain is not None and cell is not plain else None
            if ratio is not None:
                told = (
                    ratios.resolved(ratio) is not Resolution.NOT_RESOLVED and plain is not None and _valid(plain, cell)
                )
                found.setdefault(str(_level(cell, "tls")), []).append(ratio if told else None)
    return found


def _of_version(version: str, found: Sequence[Estimate | None]) -> str:
    """The extremes of what is resolved, each with its own interval: between cells, which differ, and not of one figure."""
    told = sorted((ratio for ratio in found if ratio is not None), key=lambda ratio: ratio.value)
    if not told:
        return f"no difference of {tls_label(version)} is resolved"
    ends = list(dict.fromkeys(interval_text(ratio) for ratio in (told[0], told[-1])))
    between = " between cells" if len(ends) > 1 else ""
    missing = f" ({len(found) - len(told)} of {len(found)} cells not resolved)" if len(told) < len(found) else ""
    return f"{tls_label(version)} answers {' to '.join(ends)} of the plain session's queries{between}{missing}"


def _busiest(cells: Sequence[CellSummary]) -> str:
    """The limit where the encrypted sessions answer most."""
    top = max((cell for cell in cells if _level(cell, "tls") != "off"), key=_tps, default=None)
    if top is None or top.limit is None:
        return ""
    return f" (at most {_tps(top):,.0f} transactions/s: {_is(top.limit)})"


_QUESTIONS: tuple[tuple[tuple[str, ...], Answerer], ...] = (
    (("compression",), _of_compression),
    (("tls", "connect"), _of_encryption),
    (("threads", "rate_bps"), _of_links),
)
"""The most special first. What must differ between cells, and who then answers."""
