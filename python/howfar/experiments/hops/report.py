"""Hops, the programs on a path: the cost of each, from how many clients a pooler pays, and published figures. Response times follow,
as for any plan with rates. Costs are relative to the path without hops, paired by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from howfar.analysis.cells import CellSummary, Metric, NoiseFloors
from howfar.analysis.published import PublishedCell, published_sets
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.answer import floor_clause
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.latency.analysis import Latency
from howfar.experiments.latency.report import chart_blocks, main_table, with_limits
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
"""Name of the plan that repeats published measurements."""


class HopElsewhere(Part):
    """A published ratio of the throughputs of two paths, and the ratio of this run."""

    path: str
    over: str
    connect: str
    """How clients connect on both paths: a level of `connect`."""
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
    """Whether the pooler pays at each number of clients, costs throughput at each, or is not resolved. If `pays_from` is not None
    either, no number of clients is resolved. None: `pays_from` is the answer."""
    pays_from_interval: Derived = None


class HopCost(Part):
    """The cost of a path with hops, relative to the baseline."""

    path: str
    programs: tuple[str, ...]
    throughput_ratio: Estimate | None
    """Ratio in a closed loop. None, here and for the other figures: not measured, or not in the same block as the baseline."""
    resolution: Resolution | None = None
    """Resolution of `throughput_ratio`, against the noise floor. None: not measured, or an older run."""
    added_p50_us: Estimate | None
    """Added p50 at the rate `HopCosts.per_s`, from differences within blocks."""
    p50_resolution: Resolution | None = None
    """Resolution of the ratio of the p50 to the baseline's at that rate. FASTER: the p50 is longer. None: not measured."""
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
    """From how many clients poolers pay. Empty: no path pools, or all were measured with one number of clients."""
    elsewhere: tuple[HopElsewhere, ...] = ()
    """Others' figures for these paths with this kind of server and workload."""


class Hops(Experiment):
    name = "hops"
    findings: ClassVar[Keys] = {"hops": HopCosts}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"hops": hop_costs(evidence)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        costs = findings["hops"]
        if not isinstance(costs, HopCosts):
            return ""
        unit = ONE[evidence.table.unit]
        clauses = "; ".join(_hop_clause(hop, costs.per_s, unit) for hop in costs.hops)
        comparison = f"Against {costs.baseline}: {clauses}{floor_clause(evidence)}."
        return " ".join([*map(pooler_sentence, costs.poolers), comparison])

    def document(self, summary: Summary) -> Document:
        costs, latency = summary.the(HopCosts), summary.found(Latency)
        first_blocks: tuple[Block, ...] = (
            *([poolers_table(costs)] if costs.poolers else []),
            costs_table(costs, ONE[summary.operation_unit]),
        )
        below: tuple[Block, ...] = (Details("All cells", (cell_table(summary, main=False),)),)
        if latency is not None:
            first_blocks, below = (*first_blocks, main_table(latency)), (*chart_blocks(latency), *below)
        if costs.elsewhere:
            first_blocks = (*first_blocks, elsewhere_table(costs))
        below = (*below, *trials(summary), *confirmations(summary))
        return frame(summary, first_blocks, below=below, records=records(summary, costs))


_COLUMNS = "throughput_ratio added_p50_us added_p99_us cpu_us_per_query connect_us to_server"


def records(summary: Summary, costs: HopCosts) -> list[Record]:
    """The cells' records, with the costs of the hops of a cell's path, and the number of clients from which its pooler pays."""
    costs_by_path: dict[object, dict[str, object]] = {
        hop.path: {f"hops_{name}": value for name, value in columns(hop, _COLUMNS).items()} for hop in costs.hops
    }
    pays_from = {(pooler.path, pooler.connect): written(pooler.pays_from) for pooler in costs.poolers}
    return [
        record
        | costs_by_path.get(record.get("path"), {})
        | {"pays_from": pays_from.get((str(record.get("path")), str(record.get("connect"))), "")}
        for record in cell_records(summary)
    ]


# ---------------------------------------------------------------- what each hop costs


def hop_costs(evidence: RunEvidence) -> HopCosts | None:
    """The cost of each hop; None unless the run compares a baseline without hops to paths with them over one link."""
    table = evidence.table
    arms = table.main_arms
    paths = list(dict.fromkeys(str(arm.factors.get("path")) for arm in arms))
    baseline_path = next((str(arm.factors.get("path")) for arm in arms if arm.role is ArmRole.BASELINE), None)
    if baseline_path is None or not all(path in PATHS and PATHS[path].machines == 2 for path in paths):
        return None
    hop_paths = [path for path in paths if PATHS[path].hops]
    if PATHS[baseline_path].hops or not hop_paths:
        return None
    clients = next(THREADS.of(arm.factors) for arm in arms if arm.role is ArmRole.BASELINE)
    arms = [arm for arm in _comparable_arms(table, arms) if THREADS.of(arm.factors) == clients]
    sustained_arms = [arm for arm in arms if table.sustains(arm)]
    rates = [
        {offered_per_s(arm.factors) for arm in sustained_arms if arm.factors.get("path") == path} for path in paths
    ]
    per_s = max((rate for rate in set.intersection(*rates) if rate is not None), default=None)
    cells_by_arm = {cell.arm: cell for cell in evidence.cells}
    return HopCosts(
        baseline=baseline_path,
        per_s=per_s,
        hops=tuple(_hop_cost(path, per_s, arms, cells_by_arm, evidence) for path in hop_paths),
        connect_us=_connect_us(table, [arm for arm in arms if arm.factors.get("path") == baseline_path]),
        clients=clients,
        poolers=find_pooler_payoffs(table, baseline_path, evidence.floors),
        elsewhere=published_hops(table, arms),
    )


def _comparable_arms(table: TrialTable, arms: Sequence[Arm]) -> list[Arm]:
    """Arms that differ from the baseline only in the factors that this report compares, not in link, server or TLS version."""
    varied = ("path", CONNECT.name, LOAD.name, THREADS.name)
    baseline = table.baseline
    return [arm for arm in arms if baseline and rest_of(arm.factors, *varied) == rest_of(baseline.factors, *varied)]


def _hop_cost(
    path: str, per_s: float | None, arms: list[Arm], cells_by_arm: dict[str, CellSummary], evidence: RunEvidence
) -> HopCost:
    table = evidence.table
    path_arms = [arm for arm in arms if arm.factors.get("path") == path]
    kept_arms = [arm for arm in path_arms if _keeps_connections(arm)]
    closed_loop_arm = next((arm for arm in kept_arms if offered_per_s(arm.factors) is None), None)
    closed_loop_cell = None if closed_loop_arm is None else cells_by_arm.get(closed_loop_arm.name)
    paced_arm = next((arm for arm in kept_arms if per_s is not None and offered_per_s(arm.factors) == per_s), None)
    reference_arm = None if paced_arm is None else table.compared(paced_arm)
    return HopCost(
        path=path,
        programs=PATHS[path].hops,
        throughput_ratio=closed_loop_cell.ratio if closed_loop_cell is not None else None,
        resolution=closed_loop_cell.resolution if closed_loop_cell is not None else None,
        added_p50_us=_added_us(table, paced_arm, reference_arm, 0.5),
        p50_resolution=None
        if paced_arm is None or reference_arm is None
        else evidence.floors.compare(table, paced_arm.name, reference_arm.name, Metric.P50),
        added_p99_us=_added_us(table, paced_arm, reference_arm, 0.99),
        cpu_us_per_query=closed_loop_cell.cpu_us_per_query.forwarder if closed_loop_cell is not None else None,
        connect_us=_connect_us(table, path_arms),
        to_server=None if closed_loop_arm is None else connections_to_server(table, closed_loop_arm),
    )


def _keeps_connections(arm: Arm) -> bool:
    """Whether an arm keeps its connections."""
    return CONNECT.of(arm.factors) == "persistent"


def _connect_us(table: TrialTable, arms: list[Arm]) -> Estimate | None:
    """The cycle with one connection per transaction minus that with persistent connections, as a mean over blocks."""
    closed_loop_arms = [arm for arm in arms if offered_per_s(arm.factors) is None]
    kept_arm, connecting_arm = (
        next(filter(_keeps_connections, closed_loop_arms), None),
        next((arm for arm in closed_loop_arms if not _keeps_connections(arm)), None),
    )
    if kept_arm is None or connecting_arm is None:
        return None
    extra_us = _differences_within_blocks(
        table, connecting_arm, kept_arm, lambda trial: trial.elapsed_ns / trial.transactions / 1e3
    )
    threads = THREADS.of(kept_arm.factors)
    return mean_interval([threads * extra for extra in extra_us]) if extra_us else None


def _differences_within_blocks(
    table: TrialTable, arm: Arm, reference: Arm, figure: Callable[[Measured], float | None]
) -> list[float]:
    """Differences of a figure from the reference in the same block."""
    trials, reference_trials = table.trials[arm.name], table.trials[reference.name]
    pairs = (
        (trials[block].measured, reference_trials[block].measured)
        for block in sorted(trials.keys() & reference_trials.keys())
    )
    value_pairs = [
        (figure(value), figure(reference_value))
        for value, reference_value in pairs
        if value is not None and reference_value is not None
    ]
    return [
        value - reference_value
        for value, reference_value in value_pairs
        if value is not None and reference_value is not None
    ]


def _added_us(table: TrialTable, arm: Arm | None, reference: Arm | None, share: float) -> Estimate | None:
    """A quantile's difference from the reference in the same block, in microseconds, as a mean over blocks."""
    if arm is None or reference is None:
        return None
    added = _differences_within_blocks(table, arm, reference, lambda trial: quantile_ms(trial, share))
    return mean_interval([ms * 1e3 for ms in added]) if added else None


def _hop_clause(hop: HopCost, per_s: float | None, unit: str) -> str:
    """The verdict's clause about one path."""
    clauses = []
    if hop.throughput_ratio is not None:
        clauses.append(
            f"leaves {with_limits(hop.throughput_ratio)} of the throughput{_unresolved_note(hop.resolution)}"
        )
    if hop.added_p50_us is not None and per_s is not None:
        clauses.append(
            f"adds {with_limits(hop.added_p50_us)} µs to the p50 at {per_s:,.0f}/s{_unresolved_note(hop.p50_resolution)}"
        )
    if hop.cpu_us_per_query is not None:
        clauses.append(f"takes {with_limits(hop.cpu_us_per_query)} µs of CPU per {unit}")
    *others, last = clauses or ["was not measured"]
    return f"{hop.path} {', '.join(others)}{' and ' if others else ''}{last}"


def _unresolved_note(resolution: Resolution | None) -> str:
    return "" if resolution and resolution.is_difference else f" ({Resolution.NOT_RESOLVED.value})"


def costs_table(costs: HopCosts, unit: str) -> Table:
    rate_text = "" if costs.per_s is None else f"at {costs.per_s:,.0f}/s"
    clients = costs.clients or figures.UNKNOWN
    fields: Fields[HopCost] = {
        "path": lambda hop: hop.path,
        Column("programs", left=True): lambda hop: ", ".join(hop.programs),
        "connections\nclients / server": lambda hop: f"{clients} / {hop.to_server or figures.UNKNOWN}",
        f"throughput\nof {costs.baseline}'s": _throughput_cell,
        f"added p50 µs\n{rate_text}": lambda hop: with_limits(hop.added_p50_us),
        f"added p99 µs\n{rate_text}": lambda hop: with_limits(hop.added_p99_us),
        f"hop CPU µs\nper {unit}": lambda hop: with_limits(hop.cpu_us_per_query),
        f"a connect µs\n{costs.baseline}: {with_limits(costs.connect_us)}": lambda hop: with_limits(hop.connect_us),
    }
    note = (
        f"Against {costs.baseline}, within blocks, with 95 % intervals (below four blocks their own values instead). *: a difference "
        "from the baseline's throughput that is resolved. Throughput and CPU time: in a closed loop. CPU time is that "
        "of all programs of the path; on the same CPUs it is taken from the client or the server. Per connect: the extra time of a "
        "transaction that opens its own connection."
    )
    return table_of("", costs.hops, fields, (note,), main=True, stack=True)


def _throughput_cell(hop: HopCost) -> str:
    resolved = " *" if hop.resolution and hop.resolution.is_difference else ""
    return f"{with_limits(hop.throughput_ratio)}{resolved}"


# ---------------------------------------------------------------- from how many clients a pooler pays


def find_pooler_payoffs(table: TrialTable, baseline_path: str, floors: NoiseFloors) -> tuple[PoolerPays, ...]:
    """From how many clients each pooler pays, by its throughput over that of `baseline_path`, the path without hops. At least two
    numbers of clients are needed.

    The number is where the ratio first rises through 1, interpolated linearly between the logarithms of ratios and numbers of clients.
    Its interval comes from leaving out each block in turn.
    """
    closed_loop_arms: dict[tuple[str, str, int], Arm] = {}
    for arm in _comparable_arms(table, table.run.info.arms):
        if offered_per_s(arm.factors) is None:
            key = (str(arm.factors.get("path")), CONNECT.of(arm.factors), THREADS.of(arm.factors))
            closed_loop_arms.setdefault(key, arm)
    payoffs = []
    for path, connect in dict.fromkeys(key[:2] for key in closed_loop_arms):
        if path not in PATHS or not PATHS[path].pools:
            continue
        numbers = sorted(
            key[2]
            for key in closed_loop_arms
            if key[:2] == (path, connect) and (baseline_path, connect, key[2]) in closed_loop_arms
        )
        measured = [
            ratio
            for clients in numbers
            if (
                ratio := _pooler_ratio(
                    table,
                    closed_loop_arms[path, connect, clients],
                    closed_loop_arms[baseline_path, connect, clients],
                    clients,
                )
            )
        ]
        if len(measured) > 1:
            payoffs.append(
                _summarise_pooler(
                    path, connect, measured, floors.of(closed_loop_arms[path, connect, numbers[0]].factors)
                )
            )
    return tuple(payoffs)


def _pooler_ratio(table: TrialTable, arm: Arm, reference: Arm, threads: int) -> PoolerRatio | None:
    ratios = table.block_ratios(arm.name, reference.name)
    if not ratios:
        return None
    return PoolerRatio(threads=threads, ratio=judge_ratio(ratios).quoted, to_server=connections_to_server(table, arm))


def _summarise_pooler(path: str, connect: str, measured: Sequence[PoolerRatio], threshold: Threshold) -> PoolerPays:
    crossing = _crossing([(point.threads, point.ratio.value) for point in measured])
    resolutions = {threshold.resolve(point.ratio) for point in measured}
    all_unresolved = resolutions == {Resolution.NOT_RESOLVED}  # noise alone may make the ratio rise through 1
    return PoolerPays(
        path=path,
        connect=connect,
        ratios=tuple(measured),
        pays_from=crossing,
        always=None if crossing is not None and not all_unresolved else _constant_outcome(resolutions),
    )


def _crossing(points: Sequence[tuple[int, float]]) -> float | None:
    for (few_clients, below), (many_clients, above) in pairwise(points):
        if below < 1 <= above:
            share = -math.log(below) / (math.log(above) - math.log(below))
            return math.exp(math.log(few_clients) + share * (math.log(many_clients) - math.log(few_clients)))
    return None


def _constant_outcome(resolutions: set[Resolution]) -> Always:
    if resolutions == {Resolution.FASTER}:
        return "pays"
    return "costs" if resolutions == {Resolution.SLOWER} else "not told apart"


def connections_to_server(table: TrialTable, arm: Arm) -> int | None:
    """The peak over all trials as reported by the hop next to the server, or else by the server; None if unknown."""
    counts = []
    for trial in table.trials.get(arm.name, {}).values():
        hops = {} if trial.receipt.forwarder is None else trial.receipt.forwarder.at_once
        reported = [hop["to_server"] for hop in hops.values() if "to_server" in hop]
        if reported:
            counts.append(max(reported))
        elif trial.window is not None and (clients := server_metrics(trial.window.server).clients) is not None:
            counts.append(clients)
    return max(counts, default=None)


def pooler_sentence(pooler: PoolerPays) -> str:
    subject = f"{pooler.path}, with clients that {_CONNECT_CLAUSES[pooler.connect]},"
    span = f"{pooler.ratios[0].threads} to {pooler.ratios[-1].threads} clients"
    if pooler.always == "not told apart":
        return (
            f"The number of clients from which {pooler.path} pays, if clients {_CONNECT_CLAUSES[pooler.connect]}, is not "
            f"resolved ({span})."
        )
    if pooler.pays_from is not None:
        doubt = "" if pooler.pays_from_interval else " (no interval)"
        return (
            f"{subject} pays from {within(pooler.pays_from, pooler.pays_from_interval, figures.number)}{doubt} clients."
        )
    return (
        f"{subject} {pooler.always} throughput at {span}." if pooler.always == "costs" else f"{subject} pays at {span}."
    )


_CONNECT_LABELS = {"persistent": "connected", "per-transaction": "connect each time"}
_CONNECT_CLAUSES = {"persistent": "keep their connections", "per-transaction": "connect for each transaction"}


def poolers_table(costs: HopCosts) -> Table:
    numbers = sorted({point.threads for pooler in costs.poolers for point in pooler.ratios})
    columns = (
        Column("path", left=True),
        Column("clients", left=True),
        Column("pays from", "clients"),
        *(Column(f"{clients} clients", f"of {costs.baseline}'s; connections") for clients in numbers),
    )
    rows = []
    for pooler in costs.poolers:
        point_by_clients = {point.threads: point for point in pooler.ratios}
        pays_from = (
            f"({pooler.always})"
            if pooler.pays_from is None or pooler.always is not None
            else within(pooler.pays_from, pooler.pays_from_interval, figures.number)
        )
        cells = [
            Cell("" if clients not in point_by_clients else _ratio_cell(point_by_clients[clients]))
            for clients in numbers
        ]
        rows.append((Cell(pooler.path), Cell(_CONNECT_LABELS[pooler.connect]), Cell(pays_from), *cells))
    note = (
        f"Throughput over {costs.baseline}'s with as many clients, within blocks, and the connections to the server. A pooler pays "
        "from where the ratio rises through 1, on straight lines between the logarithms."
    )
    return Table("From how many clients a pooler pays", columns, tuple(rows), (note,), main=True, stack=True)


def _ratio_cell(point: PoolerRatio) -> str:
    return with_limits(point.ratio) + ("" if point.to_server is None else f"; {point.to_server}")


# ---------------------------------------------------------------- what others published


def published_hops(table: TrialTable, arms: Sequence[Arm]) -> tuple[HopElsewhere, ...]:
    """Published ratios of which this run has both cells, in a closed loop. `arms`: those with one number of clients."""
    info = table.run.info
    closed_loop_arms = [arm for arm in arms if offered_per_s(arm.factors) is None]
    published_ratios = []
    for entry in published_sets():
        if entry.plan != PLAN or entry.differs(info.stored_plan.workload, info.server_kind):
            continue
        (baseline_cell,) = (cell for cell in entry.cells if cell.factors == entry.baseline)
        reference = _matching_arm(baseline_cell, closed_loop_arms)
        for cell in entry.cells:
            arm = _matching_arm(cell, closed_loop_arms)
            if cell is baseline_cell or arm is None or reference is None or not cell.tps or not baseline_cell.tps:
                continue
            if ratios := table.block_ratios(arm.name, reference.name):
                published_ratios.append(
                    HopElsewhere(
                        path=str(arm.factors["path"]),
                        over=str(reference.factors["path"]),
                        connect=CONNECT.of(arm.factors),
                        theirs=cell.tps / baseline_cell.tps,
                        ours=judge_ratio(ratios).quoted,
                        source=entry.source,
                        setup=entry.setup,
                    )
                )
    return tuple(published_ratios)


def _matching_arm(cell: PublishedCell, arms: Sequence[Arm]) -> Arm | None:
    levels = cell.factors.items()
    return next((arm for arm in arms if all(level_of(arm.factors, name) == level for name, level in levels)), None)


def elsewhere_table(costs: HopCosts) -> Table:
    fields: Fields[HopElsewhere] = {
        "path": lambda row: row.path,
        Column("over", left=True): lambda row: row.over,
        Column("clients", left=True): lambda row: _CONNECT_LABELS[row.connect],
        "published": lambda row: figures.number(row.theirs),
        "here\n[95 % interval]": lambda row: with_limits(row.ours),
        Column("source", left=True): lambda row: row.source,
    }
    setups = dict.fromkeys(f"{row.source}: {row.setup}." for row in costs.elsewhere)
    opposite = [
        f"{row.path}, clients {_CONNECT_LABELS[row.connect]}: the published ratio and ours lie on opposite sides of 1. The "
        "set-ups differ, and "
        "this run does not tell which difference is the cause."
        for row in costs.elsewhere
        if excludes_one(row.ours) and (row.ours.value > 1) != (row.theirs > 1)
    ]
    note = "Throughput over that of the other path. Published: not our measurement, single runs on other machines, links and versions."
    notes = (note, *setups, *opposite)
    return table_of("Published elsewhere", costs.elsewhere, fields, notes, main=True, stack=True)
