"""Hops, the programs on a path: the cost of each, from how many clients a pooler pays, and published figures. Response times follow,
as for any plan with rates. Costs are relative to the path without hops, paired by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal

from howfar.analysis.answer import UNRESOLVED
from howfar.analysis.cells import CellSummary, Metric, NoiseFloors
from howfar.analysis.published import PublishedCell, published_sets
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.network.hops.texts import (
    CONNECT_NOTE,
    COSTS_NOTE,
    HOP_CPU,
    OPPOSITE,
    POOLERS_AXIS,
    POOLERS_CAPTION,
    POOLERS_NOTE,
    PUBLISHED_NOTE,
    TEXTS,
)
from howfar.experiments.network.latency.analysis import Latency
from howfar.experiments.network.latency.report import chart_blocks, main_table
from howfar.experiments.paths.report import compared_cells, ratio_chart
from howfar.findings import Finding, Quantity, fill
from howfar.paths import PATHS
from howfar.plan.factors import CONNECT, LOAD, PATH, THREADS, level_of, offered_per_s
from howfar.plan.workload import Unit
from howfar.report import figures
from howfar.report.certainty import least_resolved
from howfar.report.charts import PHONE, Drawable, axis, labelled_lines
from howfar.report.document import Block, Cell, Chart, Column, Details, Document, Fields, Table, make_table
from howfar.report.drawing import alt
from howfar.report.figures import with_interval
from howfar.report.frame import frame
from howfar.report.sections import (
    Record,
    cell_records,
    cell_table,
    confirmation_blocks,
    csv_columns,
    csv_value,
    trial_blocks,
)
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, Threshold, excludes_one, judge_ratio, mean_interval
from howfar.stats.resample import PositiveInterval
from howfar.stats.trials import TrialTable, other_factors, quantile_ms, singular
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
    pays_from_interval: PositiveInterval = None


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
    texts = TEXTS
    findings: ClassVar[Keys] = {"hops": HopCosts}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"hops": hop_costs(evidence)}

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        costs = findings["hops"]
        return conclude(costs, evidence.table.unit) if isinstance(costs, HopCosts) else ()

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        costs = findings["hops"]
        if not isinstance(costs, HopCosts) or not costs.poolers:
            return super().explain(evidence, findings)
        return explain(costs)

    def document(self, summary: Summary) -> Document:
        costs, latency = summary.require_findings(HopCosts), summary.find_findings(Latency)
        has_answer = not summary.answer.is_missing
        answer_charts = [pooler_chart(summary, costs)] if costs.poolers else ratio_chart(summary, hop_cells(summary))
        first_blocks: tuple[Block, ...] = (
            *([poolers_table(costs, has_answer)] if costs.poolers else []),
            costs_table(costs, singular(summary.operation_unit)),
        )
        below: tuple[Block, ...] = (Details("All cells", (cell_table(summary, main=False),)),)
        if latency is not None:
            first_blocks, below = (*first_blocks, main_table(latency)), (*chart_blocks(latency), *below)
        if costs.elsewhere:
            first_blocks = (*first_blocks, elsewhere_table(costs))
        below = (*below, *trial_blocks(summary), *confirmation_blocks(summary))
        return frame(
            summary,
            first_blocks,
            answer_charts=answer_charts,
            more_blocks=below,
            records=records(summary, costs),
        )


_COLUMNS = "throughput_ratio added_p50_us added_p99_us cpu_us_per_query connect_us to_server"


def records(summary: Summary, costs: HopCosts) -> list[Record]:
    """The cells' records, with the costs of the hops of a cell's path, and the number of clients from which its pooler pays."""
    costs_by_path: dict[object, dict[str, object]] = {
        hop.path: {f"hops_{name}": value for name, value in csv_columns(hop, _COLUMNS).items()} for hop in costs.hops
    }
    pays_from = {(pooler.path, pooler.connect): csv_value(pooler.pays_from) for pooler in costs.poolers}
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
    paths = list(dict.fromkeys(str(PATH.level_or_none(arm.factors)) for arm in arms))
    baseline_path = next((str(PATH.level_or_none(arm.factors)) for arm in arms if arm.role is ArmRole.BASELINE), None)
    if baseline_path is None or not all(path in PATHS and PATHS[path].machines == 2 for path in paths):
        return None
    hop_paths = [path for path in paths if PATHS[path].hops]
    if PATHS[baseline_path].hops or not hop_paths:
        return None
    clients = next(THREADS.level_in(arm.factors) for arm in arms if arm.role is ArmRole.BASELINE)
    arms = [arm for arm in _comparable_arms(table, arms) if THREADS.level_in(arm.factors) == clients]
    sustained_arms = [arm for arm in arms if table.keeps_up(arm)]
    rates = [
        {offered_per_s(arm.factors) for arm in sustained_arms if PATH.level_or_none(arm.factors) == path}
        for path in paths
    ]
    per_s = max((rate for rate in set.intersection(*rates) if rate is not None), default=None)
    cells_by_arm = {cell.arm: cell for cell in evidence.cells}
    return HopCosts(
        baseline=baseline_path,
        per_s=per_s,
        hops=tuple(_hop_cost(path, per_s, arms, cells_by_arm, evidence) for path in hop_paths),
        connect_us=_connect_us(table, [arm for arm in arms if PATH.level_or_none(arm.factors) == baseline_path]),
        clients=clients,
        poolers=find_pooler_payoffs(table, baseline_path, evidence.floors),
        elsewhere=published_hops(table, arms),
    )


def _comparable_arms(table: TrialTable, arms: Sequence[Arm]) -> list[Arm]:
    """Arms that differ from the baseline only in the factors that this report compares, not in link, server or TLS version."""
    varied = ("path", CONNECT.name, LOAD.name, THREADS.name)
    baseline = table.baseline
    return [
        arm
        for arm in arms
        if baseline and other_factors(arm.factors, *varied) == other_factors(baseline.factors, *varied)
    ]


def _hop_cost(
    path: str, per_s: float | None, arms: list[Arm], cells_by_arm: dict[str, CellSummary], evidence: RunEvidence
) -> HopCost:
    table = evidence.table
    path_arms = [arm for arm in arms if PATH.level_or_none(arm.factors) == path]
    kept_arms = [arm for arm in path_arms if _keeps_connections(arm)]
    closed_loop_arm = next((arm for arm in kept_arms if offered_per_s(arm.factors) is None), None)
    closed_loop_cell = None if closed_loop_arm is None else cells_by_arm.get(closed_loop_arm.name)
    paced_arm = next((arm for arm in kept_arms if per_s is not None and offered_per_s(arm.factors) == per_s), None)
    reference_arm = None if paced_arm is None else table.compared_reference(paced_arm)
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
    return CONNECT.level_in(arm.factors) == "persistent"


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
    threads = THREADS.level_in(kept_arm.factors)
    return mean_interval([threads * extra for extra in extra_us]) if extra_us else None


def _differences_within_blocks(
    table: TrialTable, arm: Arm, reference: Arm, figure: Callable[[Measured], float | None]
) -> list[float]:
    """Differences of a figure from the reference in the same block."""
    arm_trials, reference_trials = table.trials[arm.name], table.trials[reference.name]
    pairs = (
        (arm_trials[block].measured, reference_trials[block].measured)
        for block in sorted(arm_trials.keys() & reference_trials.keys())
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


def conclude(costs: HopCosts, unit: Unit = "queries") -> tuple[Finding, ...]:
    """From how many clients poolers pay off, then the costs of other paths: those with a difference first."""
    pooled_paths = {pooler.path for pooler in costs.poolers}
    hops = [hop_finding(hop, costs, unit) for hop in costs.hops if hop.path not in pooled_paths]
    order = ("slower", "faster", "delay", "saves", UNRESOLVED, "unmeasured")
    return (
        *map(pooler_finding, costs.poolers),
        *sorted(hops, key=lambda finding: (order.index(finding.id), -float(finding.parameters.get("share", 0)))),
    )


def explain(costs: HopCosts) -> tuple[Finding, ...]:
    """The time of a connect, which a pooler saves. Empty: no pooler pays off, or the time is not known to be more than 0."""
    connect_us = costs.connect_us
    if connect_us is None or (connect_us.low or 0) <= 0:
        return ()
    if not any(pooler_finding(pooler).id.startswith("pays") for pooler in costs.poolers):
        return ()
    parameters = {"connect_ms": connect_us.value / 1e3}
    finding = Finding(
        id="connect", subject=costs.baseline, metric=Quantity.CONNECT, estimate=connect_us, parameters=parameters
    )
    return (finding,)


def hop_finding(hop: HopCost, costs: HopCosts, unit: Unit = "queries") -> Finding:
    """The finding about one path: its throughput; where that is not resolved, its added p50, if that is."""
    parameters: dict[str, str | int | float] = {"baseline": costs.baseline}
    figure, resolution, finding_id, metric = hop.throughput_ratio, hop.resolution, "slower", Quantity.THROUGHPUT
    differs = resolution is not None and resolution.is_difference
    if differs and figure is not None:
        finding_id = "slower" if figure.value < 1 else "faster"
        parameters |= {"share": abs(figure.value - 1), "units": unit}
    elif hop.p50_resolution is not None and hop.p50_resolution.is_difference and costs.per_s:
        figure, resolution, finding_id = hop.added_p50_us, hop.p50_resolution, "delay"
        parameters, metric = {"per_s": costs.per_s}, Quantity.ADDED_P50
        if figure is not None and figure.value < 0:
            finding_id, parameters["saved"] = "saves", -figure.value
    elif figure is None:
        finding_id = "unmeasured" if hop.added_p50_us is None else UNRESOLVED
        resolution = Resolution.NOT_RESOLVED
    else:
        finding_id = UNRESOLVED
    return Finding(
        id=finding_id,
        subject=hop.path,
        metric=None if figure is None else metric,
        estimate=figure,
        verdict=resolution,
        parameters=parameters,
    )


def hop_cells(summary: Summary) -> list[CellSummary]:
    """The cells whose ratio to the baseline is what a hop costs: they differ from it in nothing but the path."""
    baseline = next(cell for cell in summary.cells if cell.role is ArmRole.BASELINE)
    others = other_factors(baseline.factors, "path")
    return [cell for cell in compared_cells(summary) if other_factors(cell.factors, "path") == others]


def costs_table(costs: HopCosts, unit: str) -> Table:
    rate_text = "" if costs.per_s is None else f"at {costs.per_s:,.0f}/s"
    clients = costs.clients or figures.UNKNOWN
    has_connects = any(hop.connect_us is not None for hop in costs.hops)
    fields: Fields[HopCost] = {
        "path": lambda hop: hop.path,
        Column("programs", left_aligned=True): lambda hop: ", ".join(hop.programs),
        "connections\nclients / server": lambda hop: f"{clients} / {hop.to_server or figures.UNKNOWN}",
        f"throughput\nof {costs.baseline}'s": lambda hop: _marked(hop.throughput_ratio, hop.resolution),
        f"added p50 µs\n{rate_text}": lambda hop: _marked(hop.added_p50_us, hop.p50_resolution),
        f"added p99 µs\n{rate_text}": lambda hop: with_interval(hop.added_p99_us),
        fill(HOP_CPU, unit=unit): lambda hop: with_interval(hop.cpu_us_per_query),
        **({"per connect\nµs": lambda hop: with_interval(hop.connect_us)} if has_connects else {}),
    }
    ratios = [hop.throughput_ratio for hop in costs.hops]
    has_intervals = any(ratio is not None and ratio.low is not None for ratio in ratios)
    resolutions = [resolution for hop in costs.hops for resolution in (hop.resolution, hop.p50_resolution)]
    has_stars = any(resolution is not None and resolution.is_difference for resolution in resolutions)
    note = fill(COSTS_NOTE, baseline=costs.baseline, intervals=has_intervals, stars=has_stars)
    if has_connects:
        connect = fill(CONNECT_NOTE, baseline=costs.baseline, connect=f"{with_interval(costs.connect_us)} µs")
        note = f"{note} {connect}"
    return make_table("", costs.hops, fields, (note,), main=True, stack=True)


def _marked(estimate: Estimate | None, resolution: Resolution | None) -> str:
    """An estimate, with a star if its difference is resolved."""
    return with_interval(estimate) + (" *" if resolution and resolution.is_difference else "")


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
            key = (str(PATH.level_or_none(arm.factors)), CONNECT.level_in(arm.factors), THREADS.level_in(arm.factors))
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
                    path, connect, measured, floors.threshold(closed_loop_arms[path, connect, numbers[0]].factors)
                )
            )
    return tuple(payoffs)


def _pooler_ratio(table: TrialTable, arm: Arm, reference: Arm, threads: int) -> PoolerRatio | None:
    ratios = table.block_ratios(arm.name, reference.name)
    if not ratios:
        return None
    return PoolerRatio(threads=threads, ratio=judge_ratio(ratios).reported, to_server=connections_to_server(table, arm))


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


def pooler_finding(pooler: PoolerPays) -> Finding:
    kinds: dict[Always | None, str] = {"pays": "pays", "costs": "costs", "not told apart": "unclear"}
    kind = kinds.get(pooler.always, "pays-from")
    parameters: dict[str, str | int | float] = {"connect": pooler.connect}
    parameters |= {"fewest": pooler.ratios[0].threads, "most": pooler.ratios[-1].threads}
    estimate = None
    if kind == "pays-from" and pooler.pays_from is not None:
        low, high = pooler.pays_from_interval or (None, None)
        estimate = Estimate(value=pooler.pays_from, low=low, high=high)
    verdict = Resolution.NOT_RESOLVED if kind == "unclear" else None
    return Finding(
        id=f"{kind}/{pooler.connect}",
        subject=pooler.path,
        metric=None if estimate is None else Quantity.CLIENTS,
        estimate=estimate,
        verdict=verdict,
        parameters=parameters,
    )


_PAYOFFS: Mapping[Always, str] = {"pays": "always", "costs": "never", "not told apart": "unclear"}
"""Fields of a pooler whose ratio does not rise through 1."""
_CONNECT_LABELS = {"persistent": "persistent connections", "per-transaction": "one per transaction"}


def poolers_table(costs: HopCosts, has_answer: bool = True) -> Table:
    """Throughput by the number of clients. Without an answer, the number from which a pooler pays off is left out."""
    numbers = sorted({point.threads for pooler in costs.poolers for point in pooler.ratios})
    columns = (
        Column("path", left_aligned=True),
        Column("clients with", left_aligned=True),
        *([Column("pays off above", "clients")] if has_answer else []),
        *(Column(f"{clients} clients", f"of {costs.baseline}'s; connections") for clients in numbers),
    )
    rows = []
    for pooler in costs.poolers:
        point_by_clients = {point.threads: point for point in pooler.ratios}
        pays_from = _PAYOFFS[pooler.always] if pooler.always else with_interval(pooler_finding(pooler).estimate)
        cells = [
            Cell("" if clients not in point_by_clients else _ratio_cell(point_by_clients[clients]))
            for clients in numbers
        ]
        payoff = [Cell(pays_from)] if has_answer else []
        rows.append((Cell(pooler.path), Cell(_CONNECT_LABELS[pooler.connect]), *payoff, *cells))
    note = fill(POOLERS_NOTE, baseline=costs.baseline)
    return Table("Poolers, by the number of clients", columns, tuple(rows), (note,), main=True, stack=True)


def pooler_chart(summary: Summary, costs: HopCosts) -> Chart:
    """The picture of the answer."""
    return Chart(
        "poolers", summary.answer.sentence, POOLERS_CAPTION, partial(draw_poolers, costs, floor=least_resolved(summary))
    )


def draw_poolers(costs: HopCosts, width: int, floor: float = 0.0) -> Drawable:
    """The ratio of throughputs against the number of clients, a line for each pooler and kind of client. `floor`: the difference
    below which a ratio may be chance."""
    lines = {
        f"{pooler.path}, {_CONNECT_LABELS[pooler.connect]}": [(float(at.threads), at.ratio) for at in pooler.ratios]
        for pooler in costs.poolers
    }
    numbers = sorted({at.threads for pooler in costs.poolers for at in pooler.ratios})
    domain = numbers[0] / 1.3, numbers[-1] * (2 if width < PHONE else 8)
    x = axis(alt.X, "x", "clients (log scale)", domain, 2, values=numbers, format="d", grid=False)
    return labelled_lines(lines, x, fill(POOLERS_AXIS, baseline=costs.baseline), width, reference=1, band=1 + floor)


def _ratio_cell(point: PoolerRatio) -> str:
    return with_interval(point.ratio) + ("" if point.to_server is None else f"; {point.to_server}")


# ---------------------------------------------------------------- what others published


def published_hops(table: TrialTable, arms: Sequence[Arm]) -> tuple[HopElsewhere, ...]:
    """Published ratios of which this run has both cells, in a closed loop. `arms`: those with one number of clients."""
    info = table.run.info
    closed_loop_arms = [arm for arm in arms if offered_per_s(arm.factors) is None]
    published_ratios = []
    for entry in published_sets():
        if entry.plan != PLAN or entry.has_other_load(info.stored_plan.workload, info.server_kind):
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
                        path=PATH.level_in(arm.factors),
                        over=PATH.level_in(reference.factors),
                        connect=CONNECT.level_in(arm.factors),
                        theirs=cell.tps / baseline_cell.tps,
                        ours=judge_ratio(ratios).reported,
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
        Column("over", left_aligned=True): lambda row: row.over,
        Column("clients with", left_aligned=True): lambda row: _CONNECT_LABELS[row.connect],
        "published": lambda row: figures.number(row.theirs),
        "here\n[95 % interval]": lambda row: with_interval(row.ours),
        Column("source", left_aligned=True): lambda row: row.source,
    }
    setups = dict.fromkeys(f"{row.source}: {row.setup}." for row in costs.elsewhere)
    opposite = [
        fill(OPPOSITE, path=row.path, connect=_CONNECT_LABELS[row.connect])
        for row in costs.elsewhere
        if excludes_one(row.ours) and (row.ours.value > 1) != (row.theirs > 1)
    ]
    notes = (PUBLISHED_NOTE, *setups, *opposite)
    return make_table("Published elsewhere", costs.elsewhere, fields, notes, main=True, stack=True)
