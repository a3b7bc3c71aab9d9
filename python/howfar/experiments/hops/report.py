"""Hops, the programs on a path: the cost of each, from how many clients a pooler pays, and what others published; then the response
times as for any plan with rates. Costs are relative to the same path without them, paired by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from howfar.analysis.cells import CellSummary, Figure, Floors
from howfar.analysis.published import PublishedCell, published_sets
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.answer import floor_clause
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.latency.analysis import Latency
from howfar.experiments.latency.report import charts, main_table, with_limits
from howfar.paths import PATHS
from howfar.plan.factors import CONNECT, LOAD, THREADS, level_of, offered_per_s
from howfar.report import figures
from howfar.report.document import Block, Cell, Column, Details, Document, Fields, Table, table_of
from howfar.report.frame import frame
from howfar.report.sections import Record, cell_records, cell_table, columns, confirmations, trials, written
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, Threshold, excludes_one, judge_ratio, mean_interval
from howfar.stats.resample import Derived, within
from howfar.stats.trials import ONE, TrialTable, quantile_ms, rest_of
from howfar.store.records import Arm, ArmRole, Measured
from howfar.store.server_metrics import server_metrics

PLAN = "hops"
"""Name of the plan that repeats what was published."""


class HopElsewhere(Part):
    """Ratio of the throughputs of two paths."""

    path: str
    over: str
    connect: str
    """How both connect."""
    theirs: float
    ours: Estimate
    source: str
    setup: str


Always = Literal["pays", "costs", "not told apart"]


class PoolerRatio(Part):
    """The throughput ratio of a pooler at one number of clients."""

    threads: int
    ratio: Estimate
    """Throughput over that of the path without it."""
    to_server: int | None
    """Maximum number of concurrent connections from the pooler to the server, over all trials. None: not reported."""


class PoolerPays(Part):
    """One pooler, with persistent connections or one per transaction."""

    path: str
    connect: str
    ratios: tuple[PoolerRatio, ...]
    """Ratios by ascending numbers of clients."""
    pays_from: float | None
    """Number of clients from which it pays. None: the ratio does not rise through 1 within the numbers that were measured."""
    always: Always | None
    """Whether the pooler pays at each number of clients, costs throughput at each, or is not resolved (together with `pays_from`: at
    none of them). None: `pays_from` is the answer."""
    pays_from_interval: Derived = None


class HopCost(Part):
    """The cost of a path with hops, relative to the baseline."""

    path: str
    programs: tuple[str, ...]
    throughput_ratio: Estimate | None
    """Ratio in a closed loop; None here and below: not measured, or in no block with the baseline."""
    resolution: Resolution | None = None
    """Resolution of `throughput_ratio`, against the noise floor. None: not measured, or an older run."""
    added_p50_us: Estimate | None
    """Added p50 at the rate `HopCosts.per_s`, from differences within blocks."""
    p50_resolution: Resolution | None = None
    """Judgement of the p50 over the baseline's at that rate. FASTER: it is longer. None: not measured."""
    added_p99_us: Estimate | None
    cpu_us_per_query: Estimate | None
    """CPU time of all its programs together, in the closed loop."""
    connect_us: Estimate | None = None
    """`HopCosts.connect_us` through this path."""
    to_server: int | None = None
    """Maximum number of concurrent connections to the server in the closed loop. None: reported by neither hop nor server."""


class HopCosts(Part):
    baseline: str
    """The path without a program."""
    per_s: float | None
    """The highest rate that every path sustained. None: there was no such rate."""
    hops: tuple[HopCost, ...]
    """Hops in the order of the plan."""
    connect_us: Estimate | None = None
    """Additional time of a transaction that opens a connection of its own, with the login, in the closed loop. None: not measured."""
    clients: int | None = None
    """Connections of the load, for all but `poolers`. None: an older run."""
    poolers: tuple[PoolerPays, ...] = ()
    """Where poolers pay. Empty: no path pools, or all were measured with one number of clients."""
    elsewhere: tuple[HopElsewhere, ...] = ()
    """Others' figures for these paths with this kind of server and workload."""


class Hops(Experiment):
    name = "hops"
    findings: ClassVar[Keys] = {"hops": HopCosts}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"hops": hop_costs(evidence)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        found = findings["hops"]
        if not isinstance(found, HopCosts):
            return ""
        unit = ONE[evidence.table.unit]
        clauses = "; ".join(_clause(hop, found.per_s, unit) for hop in found.hops)
        against = f"Against {found.baseline}: {clauses}{floor_clause(evidence)}."
        return " ".join([*map(pays, found.poolers), against])

    def document(self, summary: Summary) -> Document:
        found, latency = summary.the(HopCosts), summary.found(Latency)
        shown: tuple[Block, ...] = (*([poolers(found)] if found.poolers else []), costs(found, ONE[summary.asked]))
        below: tuple[Block, ...] = (Details("All cells", (cell_table(summary, main=False),)),)
        if latency is not None:
            shown, below = (*shown, main_table(latency)), (*charts(latency), *below)
        if found.elsewhere:
            shown = (*shown, elsewhere(found))
        below = (*below, *trials(summary), *confirmations(summary))
        return frame(summary, shown, below=below, records=records(summary, found))


_COLUMNS = "throughput_ratio added_p50_us added_p99_us cpu_us_per_query connect_us to_server"


def records(summary: Summary, found: HopCosts) -> list[Record]:
    """The cells' records, with the costs of the hops of a cell's path, and the number of clients from which its pooler pays."""
    of_path: dict[object, dict[str, object]] = {
        hop.path: {f"hops_{name}": value for name, value in columns(hop, _COLUMNS).items()} for hop in found.hops
    }
    pays_from = {(pooler.path, pooler.connect): written(pooler.pays_from) for pooler in found.poolers}
    return [
        cell
        | of_path.get(cell.get("path"), {})
        | {"pays_from": pays_from.get((str(cell.get("path")), str(cell.get("connect"))), "")}
        for cell in cell_records(summary)
    ]


# ---------------------------------------------------------------- what each hop costs


def hop_costs(evidence: RunEvidence) -> HopCosts | None:
    """The cost of each hop; None unless the run compares a baseline without hops to paths with them over one link."""
    table = evidence.table
    arms = table.main_arms
    names = list(dict.fromkeys(str(arm.factors.get("path")) for arm in arms))
    base = next((str(arm.factors.get("path")) for arm in arms if arm.role is ArmRole.BASELINE), None)
    if base is None or not all(name in PATHS and PATHS[name].machines == 2 for name in names):
        return None
    with_hops = [name for name in names if PATHS[name].hops]
    if PATHS[base].hops or not with_hops:
        return None
    clients = next(THREADS.of(arm.factors) for arm in arms if arm.role is ArmRole.BASELINE)
    arms = [arm for arm in _alike(table, arms) if THREADS.of(arm.factors) == clients]
    held = [arm for arm in arms if table.sustains(arm)]
    rates = [{offered_per_s(arm.factors) for arm in held if arm.factors.get("path") == name} for name in names]
    per_s = max((rate for rate in set.intersection(*rates) if rate is not None), default=None)
    cells = {cell.arm: cell for cell in evidence.cells}
    return HopCosts(
        baseline=base,
        per_s=per_s,
        hops=tuple(_cost(name, per_s, arms, cells, evidence) for name in with_hops),
        connect_us=_connect_us(table, [arm for arm in arms if arm.factors.get("path") == base]),
        clients=clients,
        poolers=pooler_pays(table, base, evidence.floors),
        elsewhere=published_hops(table, arms),
    )


def _alike(table: TrialTable, arms: Sequence[Arm]) -> list[Arm]:
    """Arms that differ from the baseline only in the factors compared here; its link, server and TLS version are held."""
    varied = ("path", CONNECT.name, LOAD.name, THREADS.name)
    baseline = table.baseline
    return [arm for arm in arms if baseline and rest_of(arm.factors, *varied) == rest_of(baseline.factors, *varied)]


def _cost(
    path: str, per_s: float | None, arms: list[Arm], cells: dict[str, CellSummary], evidence: RunEvidence
) -> HopCost:
    table = evidence.table
    every = [arm for arm in arms if arm.factors.get("path") == path]
    own = [arm for arm in every if _keeps(arm)]
    looped = next((arm for arm in own if offered_per_s(arm.factors) is None), None)
    closed = None if looped is None else cells.get(looped.name)
    paced = next((arm for arm in own if per_s is not None and offered_per_s(arm.factors) == per_s), None)
    at_rate = None if paced is None else table.compared(paced)
    return HopCost(
        path=path,
        programs=PATHS[path].hops,
        throughput_ratio=closed.ratio if closed is not None else None,
        resolution=closed.resolution if closed is not None else None,
        added_p50_us=_added_us(table, paced, at_rate, 0.5),
        p50_resolution=None
        if paced is None or at_rate is None
        else evidence.floors.compare(table, paced.name, at_rate.name, Figure.P50),
        added_p99_us=_added_us(table, paced, at_rate, 0.99),
        cpu_us_per_query=closed.cpu_us_per_query.forwarder if closed is not None else None,
        connect_us=_connect_us(table, every),
        to_server=None if looped is None else connections_to_server(table, looped),
    )


def _keeps(arm: Arm) -> bool:
    """Whether an arm keeps its connections."""
    return CONNECT.of(arm.factors) == "persistent"


def _connect_us(table: TrialTable, arms: list[Arm]) -> Estimate | None:
    """The cycle with one connection per transaction minus that with persistent connections, as a mean over blocks."""
    closed = [arm for arm in arms if offered_per_s(arm.factors) is None]
    kept, each = next(filter(_keeps, closed), None), next((arm for arm in closed if not _keeps(arm)), None)
    if kept is None or each is None:
        return None
    longer = _within_blocks(table, each, kept, lambda trial: trial.elapsed_ns / trial.transactions / 1e3)
    threads = THREADS.of(kept.factors)
    return mean_interval([threads * us for us in longer]) if longer else None


def _within_blocks(
    table: TrialTable, arm: Arm, reference: Arm, figure: Callable[[Measured], float | None]
) -> list[float]:
    """Differences of a figure from the reference in the same block."""
    here, there = table.trials[arm.name], table.trials[reference.name]
    pairs = ((here[block].measured, there[block].measured) for block in sorted(here.keys() & there.keys()))
    found = [(figure(one), figure(other)) for one, other in pairs if one is not None and other is not None]
    return [one - other for one, other in found if one is not None and other is not None]


def _added_us(table: TrialTable, arm: Arm | None, reference: Arm | None, share: float) -> Estimate | None:
    """A quantile's difference from the reference in the same block, in microseconds, as a mean over blocks."""
    if arm is None or reference is None:
        return None
    added = _within_blocks(table, arm, reference, lambda trial: quantile_ms(trial, share))
    return mean_interval([ms * 1e3 for ms in added]) if added else None


def _clause(hop: HopCost, per_s: float | None, unit: str) -> str:
    """The verdict's clause about one path."""
    parts = []
    if hop.throughput_ratio is not None:
        parts.append(f"leaves {with_limits(hop.throughput_ratio)} of the throughput{_doubt(hop.resolution)}")
    if hop.added_p50_us is not None and per_s is not None:
        parts.append(
            f"adds {with_limits(hop.added_p50_us)} µs to the p50 at {per_s:,.0f}/s{_doubt(hop.p50_resolution)}"
        )
    if hop.cpu_us_per_query is not None:
        parts.append(f"takes {with_limits(hop.cpu_us_per_query)} µs of CPU per {unit}")
    *most, last = parts or ["was not measured"]
    return f"{hop.path} {', '.join(most)}{' and ' if most else ''}{last}"


def _doubt(found: Resolution | None) -> str:
    return "" if found and found.is_difference else f" ({Resolution.NOT_RESOLVED.value})"


def costs(found: HopCosts, unit: str) -> Table:
    at = "" if found.per_s is None else f"at {found.per_s:,.0f}/s"
    clients = found.clients or figures.UNKNOWN
    fields: Fields[HopCost] = {
        "path": lambda hop: hop.path,
        Column("programs", left=True): lambda hop: ", ".join(hop.programs),
        "connections\nclients / server": lambda hop: f"{clients} / {hop.to_server or figures.UNKNOWN}",
        f"throughput\nof {found.baseline}'s": _throughput,
        f"added p50 µs\n{at}": lambda hop: with_limits(hop.added_p50_us),
        f"added p99 µs\n{at}": lambda hop: with_limits(hop.added_p99_us),
        f"hop CPU µs\nper {unit}": lambda hop: with_limits(hop.cpu_us_per_query),
        f"a connect µs\n{found.baseline}: {with_limits(found.connect_us)}": lambda hop: with_limits(hop.connect_us),
    }
    note = (
        f"Against {found.baseline}, within blocks, with 95 % intervals (below four blocks their own values instead). *: a difference "
        "from the baseline's throughput that is resolved. Throughput and CPU time: in a closed loop. CPU time is that "
        "of all programs of the path; on the same CPUs it is taken from the client or the server. Per connect: the extra time of a "
        "transaction that opens its own connection."
    )
    return table_of("", found.hops, fields, (note,), main=True, stack=True)


def _throughput(hop: HopCost) -> str:
    resolved = " *" if hop.resolution and hop.resolution.is_difference else ""
    return f"{with_limits(hop.throughput_ratio)}{resolved}"


# ---------------------------------------------------------------- from how many clients a pooler pays


def pooler_pays(table: TrialTable, base: str, floors: Floors) -> tuple[PoolerPays, ...]:
    """Where each pooler pays: its throughput over that of `base`, the path without hops, by the number of clients, of which at least
    two are needed.

    The number from which a pooler pays is the first point at which the ratio rises through 1, on straight lines between the logarithms
    of ratio and number. Its interval comes from leaving out each block in turn.
    """
    closed: dict[tuple[str, str, int], Arm] = {}
    for arm in _alike(table, table.run.info.arms):
        if offered_per_s(arm.factors) is None:
            key = (str(arm.factors.get("path")), CONNECT.of(arm.factors), THREADS.of(arm.factors))
            closed.setdefault(key, arm)
    found = []
    for path, connect in dict.fromkeys(key[:2] for key in closed):
        if path not in PATHS or not PATHS[path].pools:
            continue
        numbers = sorted(key[2] for key in closed if key[:2] == (path, connect) and (base, connect, key[2]) in closed)
        measured = [
            ratio
            for number in numbers
            if (ratio := _pooled(table, closed[path, connect, number], closed[base, connect, number], number))
        ]
        if len(measured) > 1:
            found.append(_pays(path, connect, measured, floors.of(closed[path, connect, numbers[0]].factors)))
    return tuple(found)


def _pooled(table: TrialTable, arm: Arm, reference: Arm, threads: int) -> PoolerRatio | None:
    ratios = table.block_ratios(arm.name, reference.name)
    if not ratios:
        return None
    return PoolerRatio(threads=threads, ratio=judge_ratio(ratios).quoted, to_server=connections_to_server(table, arm))


def _pays(path: str, connect: str, measured: Sequence[PoolerRatio], threshold: Threshold) -> PoolerPays:
    crossing = _crossing([(one.threads, one.ratio.value) for one in measured])
    found = {threshold.resolve(one.ratio) for one in measured}
    anywhere = found == {Resolution.NOT_RESOLVED}  # noise alone may make the ratio rise through 1
    return PoolerPays(
        path=path,
        connect=connect,
        ratios=tuple(measured),
        pays_from=crossing,
        always=None if crossing is not None and not anywhere else _always(found),
    )


def _crossing(points: Sequence[tuple[int, float]]) -> float | None:
    for (few, below), (many, above) in pairwise(points):
        if below < 1 <= above:
            share = -math.log(below) / (math.log(above) - math.log(below))
            return math.exp(math.log(few) + share * (math.log(many) - math.log(few)))
    return None


def _always(found: set[Resolution]) -> Always:
    if found == {Resolution.FASTER}:
        return "pays"
    return "costs" if found == {Resolution.SLOWER} else "not told apart"


def connections_to_server(table: TrialTable, arm: Arm) -> int | None:
    """The peak over all trials as reported by the hop next to the server, or else by the server; None if unknown."""
    counts = []
    for trial in table.trials.get(arm.name, {}).values():
        receipt: Mapping[str, Mapping[str, Mapping[str, int]]] = trial.receipt.get("forwarder") or {}
        told = [hop["to_server"] for hop in receipt.get("at_once", {}).values() if "to_server" in hop]
        if told:
            counts.append(max(told))
        elif trial.window is not None and (clients := server_metrics(trial.window.server).clients) is not None:
            counts.append(clients)
    return max(counts, default=None)


def pays(pooler: PoolerPays) -> str:
    who = f"{pooler.path}, with clients that {_CLIENTS[pooler.connect]},"
    span = f"{pooler.ratios[0].threads} to {pooler.ratios[-1].threads} clients"
    if pooler.always == "not told apart":
        return f"The number of clients from which {pooler.path} pays, if clients {_CLIENTS[pooler.connect]}, is not resolved ({span})."
    if pooler.pays_from is not None:
        doubt = "" if pooler.pays_from_interval else " (no interval)"
        return f"{who} pays from {within(pooler.pays_from, pooler.pays_from_interval, figures.number)}{doubt} clients."
    return f"{who} {pooler.always} throughput at {span}." if pooler.always == "costs" else f"{who} pays at {span}."


_KEPT = {"persistent": "connected", "per-transaction": "connect each time"}
_CLIENTS = {"persistent": "keep their connections", "per-transaction": "connect for each transaction"}


def poolers(found: HopCosts) -> Table:
    numbers = sorted({one.threads for pooler in found.poolers for one in pooler.ratios})
    columns = (
        Column("path", left=True),
        Column("clients", left=True),
        Column("pays from", "clients"),
        *(Column(f"{number} clients", f"of {found.baseline}'s; connections") for number in numbers),
    )
    rows = []
    for pooler in found.poolers:
        at = {one.threads: one for one in pooler.ratios}
        begins = (
            f"({pooler.always})"
            if pooler.pays_from is None or pooler.always is not None
            else within(pooler.pays_from, pooler.pays_from_interval, figures.number)
        )
        cells = [Cell("" if number not in at else _ratio(at[number])) for number in numbers]
        rows.append((Cell(pooler.path), Cell(_KEPT[pooler.connect]), Cell(begins), *cells))
    note = (
        f"Throughput over {found.baseline}'s with as many clients, within blocks, and the connections to the server. A pooler pays "
        "from where the ratio rises through 1, on straight lines between the logarithms."
    )
    return Table("From how many clients a pooler pays", columns, tuple(rows), (note,), main=True, stack=True)


def _ratio(one: PoolerRatio) -> str:
    return with_limits(one.ratio) + ("" if one.to_server is None else f"; {one.to_server}")


# ---------------------------------------------------------------- what others published


def published_hops(table: TrialTable, arms: Sequence[Arm]) -> tuple[HopElsewhere, ...]:
    """Published ratios of which this run has both cells, in a closed loop. `arms`: those with one number of clients."""
    info = table.run.info
    looped = [arm for arm in arms if offered_per_s(arm.factors) is None]
    workload: Mapping[str, object] = info.plan["workload"]
    found = []
    for entry in published_sets():
        if entry.plan != PLAN or entry.differs(workload, info.server_kind):
            continue
        (base,) = (cell for cell in entry.cells if cell.factors == entry.baseline)
        reference = _arm_of(base, looped)
        for cell in entry.cells:
            arm = _arm_of(cell, looped)
            if cell is base or arm is None or reference is None or not cell.tps or not base.tps:
                continue
            if ratios := table.block_ratios(arm.name, reference.name):
                found.append(
                    HopElsewhere(
                        path=str(arm.factors["path"]),
                        over=str(reference.factors["path"]),
                        connect=CONNECT.of(arm.factors),
                        theirs=cell.tps / base.tps,
                        ours=judge_ratio(ratios).quoted,
                        source=entry.source,
                        setup=entry.setup,
                    )
                )
    return tuple(found)


def _arm_of(cell: PublishedCell, arms: Sequence[Arm]) -> Arm | None:
    levels = cell.factors.items()
    return next((arm for arm in arms if all(level_of(arm.factors, name) == level for name, level in levels)), None)


def elsewhere(found: HopCosts) -> Table:
    fields: Fields[HopElsewhere] = {
        "path": lambda one: one.path,
        Column("over", left=True): lambda one: one.over,
        Column("clients", left=True): lambda one: _KEPT[one.connect],
        "published": lambda one: figures.number(one.theirs),
        "here\n[95 % interval]": lambda one: with_limits(one.ours),
        Column("source", left=True): lambda one: one.source,
    }
    setups = dict.fromkeys(f"{one.source}: {one.setup}." for one in found.elsewhere)
    opposite = [
        f"{one.path}, clients {_KEPT[one.connect]}: the published ratio and ours lie on opposite sides of 1. The set-ups differ, and "
        "this run does not tell which difference is the cause."
        for one in found.elsewhere
        if excludes_one(one.ours) and (one.ours.value > 1) != (one.theirs > 1)
    ]
    note = "Throughput over that of the other path. Published: not our measurement, single runs on other machines, links and versions."
    notes = (note, *setups, *opposite)
    return table_of("Published elsewhere", found.elsewhere, fields, notes, main=True, stack=True)
