"""The figures of one arm of a run, with all warnings about them. Start at `summarise_cell`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, stdev
from typing import Annotated

from pydantic import PlainSerializer

from howfar.analysis import diagnostics
from howfar.analysis.controls import SAME_OTHER_KIND, SAME_OVER_LINK, Control
from howfar.analysis.diagnostics import Diagnostic
from howfar.analysis.link_facts import LinkFacts, link_facts, numeric_level
from howfar.analysis.published import Published, find_published
from howfar.bottleneck import cycle as cycles
from howfar.bottleneck.cycle import ROUND_TRIPS, Cycle, part_us, setting_of
from howfar.bottleneck.evidence import connect_round_trips
from howfar.bottleneck.limit import Limit, find_limit
from howfar.bottleneck.traffic import NetworkSeries, network_series
from howfar.contract.receipt import MEAN_MAX_SHARE, TrialReceipt
from howfar.plan.factor import Level
from howfar.plan.factors import has_fault, offered_per_s, scatter_kind, waits_for_link
from howfar.plan.kinds import QUERY
from howfar.stats import histograms
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import CurvePoint, LatencyMs
from howfar.stats.intervals import (
    MIN_BLOCKS,
    RatioJudgement,
    Resolution,
    Threshold,
    blocks_needed,
    judge_ratio,
    mean_interval,
    noise_floor,
)
from howfar.stats.trials import FigureReader, TrialTable, median_latency_ns, p99_ms, transaction_histogram
from howfar.store.records import Arm, ArmRole, Measured, Run, Trial, TrialStatus

DEFAULT_TARGET = 0.02
"""Target half-width of an interval where a plan does not set one."""

IDENTITY = Estimate(value=1.0, low=1.0, high=1.0)
"""Ratio of the baseline to itself."""

LINK, REST = "link", cycles.REST
PARTS = (cycles.CLIENT_CPU, cycles.SERVER_CPU, cycles.FORWARDER_CPU, LINK, cycles.WAITING, REST)
"""Names and order of the parts of `time_split_us`."""


class CpuPerQuery(Part):
    """CPU microseconds per operation, by role. None if this path has no such part, or if it is unknown."""

    client: Estimate
    server: Estimate | None
    forwarder: Estimate | None
    link: Estimate | None
    """CPU of the link's emulator. It belongs to the instrument, not to the path, and is not part of any ratio."""


class BytesPerTxn(Part):
    """Bytes per transaction. None if a real application talks to the servers, because it does not count them."""

    to_server: float | None
    to_client: float | None


class KeyReads(Part):
    """Keys that were read from stores, over an arm's good trials."""

    hits: int
    misses: int
    """Keys without a value, which a server answers sooner."""


class Bound(StrEnum):
    """Relation of a measured CPU ratio to the true one. The kernel's receive processing for the link runs in the emulator's threads
    and is charged to no path; on loopback it is charged to the sender."""

    MEASURED = "measured"
    """Both arms pass the link, or neither does."""
    AT_LEAST = "at least"
    """Lower bound: this arm passes the link and the baseline does not, so that part of its CPU is not counted."""
    AT_MOST = "at most"
    """Upper bound: the baseline passes the link and this arm does not."""


class CellSummary(Part):
    """One arm. An operation is a query, a request or a page: `Summary.operation_unit`."""

    factors: dict[str, Level]
    arm: str
    role: ArmRole
    trials: int
    void_trials: int
    qps: Estimate
    """Operations per second."""
    ratio: Estimate | None
    """Ratio of operations per second to the baseline's, paired by block: the t estimate, or the rank estimate if
    CONTAMINATED_BLOCKS is set. None, here and in every other ratio, if no block has both, or if the baseline's path was not measured
    at the arm's given rate."""
    mean_ratio: Estimate | None
    """Ratio as exp(mean log ratio) with t limits."""
    rank_ratio: Estimate | None
    """Ratio by Hodges-Lehmann with signed-rank limits."""
    block_ratios: tuple[float, ...]
    blocks_needed: int | None
    """Blocks until the ratio's interval is as narrow as requested, with the observed scatter. None if unknown or out of reach."""
    resolution: Resolution
    cpu_resolution: Resolution
    """Judgement of `cpu_ratio`, against the noise floor of CPU. FASTER means less CPU."""
    cpu_us_per_query: CpuPerQuery
    cpu_ratio: Estimate | None
    """Client + server + forwarder CPU per operation over the baseline's, paired by block."""
    cpu_bound: Bound
    """Whether `cpu_ratio` is a bound. A lower bound is never resolved as less CPU, an upper bound never as more."""
    latency_ms: LatencyMs
    latency_curve: tuple[CurvePoint, ...]
    latency_ratio: Estimate | None
    """Median transaction latency over the baseline's, paired by block."""
    turns_per_txn: float
    queries_per_txn: float
    bytes_per_txn: BytesPerTxn
    time_split_us: dict[str, float]
    """A transaction's mean time by `PARTS`. Adds up to the cycle of a connection: connections x elapsed / transactions."""
    rest_rtt_ns: float | None
    """The link's unloaded RTT, median over trials. None if this path has no link, or if it was not measured."""
    receipt: Annotated[TrialReceipt, PlainSerializer(TrialReceipt.as_json)]
    published: Published | None
    warnings: tuple[Diagnostic, ...]
    settled_after: int | None = None
    """Number of blocks in which the arm was measured before it was paused because it is saturated. None if it was not paused."""
    cycle: Cycle | None = None
    """`time_split_us` with the parts that the window's counters add. None in an older run file."""
    limit: Limit | None = None
    network: NetworkSeries | None = None
    keys: KeyReads | None = None
    """Reads of keys. None without key-value stores."""
    scatter: Scatter | None = None
    """Components of the ratio's scatter. None without a link, or with too few blocks."""

    @property
    def tps(self) -> Estimate:
        """Transactions per second with their interval, from operations per second."""
        divisor = self.queries_per_txn or 1.0
        low, high = (None if limit is None else limit / divisor for limit in (self.qps.low, self.qps.high))
        return Estimate(value=self.qps.value / divisor, low=low, high=high)

    @property
    def link_used(self) -> float | None:
        """Share of the link's rate that its busier direction used, by the interface's count or else the protocol's bytes. None
        without a rate."""
        series = self.network
        if series is not None and series.interface_ceiling_bytes_per_s and series.at_s:
            directions = (series.to_client_bytes_per_s, series.to_server_bytes_per_s)
            return max(sum(values) / len(values) for values in directions) / series.interface_ceiling_bytes_per_s
        rate = numeric_level(self.factors, "rate_bps")
        counted = [
            values for values in (self.bytes_per_txn.to_client, self.bytes_per_txn.to_server) if values is not None
        ]
        if not rate or not self.queries_per_txn or not counted:
            return None
        return max(counted) * 8 * self.qps.value / self.queries_per_txn / rate


COMPARISONS_PER_CONTENDER = 3
"""Comparisons of each contender: with the baseline in throughput and CPU, and with the cell without the tested factor, or in p99."""


class Metric(StrEnum):
    """A quantity in which arms are compared."""

    THROUGHPUT = "throughput"
    CPU = "CPU"
    P50 = "p50"
    P99 = "p99"

    def reader(self, table: TrialTable) -> FigureReader:
        """The function that reads this quantity from a trial."""
        values: dict[Metric, FigureReader] = {
            Metric.THROUGHPUT: table.rate,
            Metric.CPU: table.path_cpu_us,
            Metric.P50: median_latency_ns,
            Metric.P99: p99_ms,
        }
        return values[self]


@dataclass(frozen=True)
class NoiseFloors:
    """Ratios of the run's A/A arms in each metric, and the requested half-width of intervals."""

    baseline_ratios: Mapping[Metric, Estimate] = field(default_factory=dict)
    """The baseline's second measurement over its first."""
    link_ratios: Mapping[Metric, Estimate] = field(default_factory=dict)
    """Ratios of the A/A arm over the link. Empty if the run has no such arm."""
    ratios_by_kind: Mapping[tuple[object, ...], Mapping[Metric, Estimate]] = field(default_factory=dict)
    """A/A ratios by kind of scatter, other than the baseline's kind. A kind without A/A arm (older run files) uses the baseline's."""
    target: float = DEFAULT_TARGET
    comparisons: int = 1
    """Maximum number of comparisons that this run's report may call resolved."""

    def noise_floor(
        self, metric: Metric = Metric.THROUGHPUT, *, over_link: bool = False, kind: tuple[object, ...] = ()
    ) -> float | None:
        """The noise floor that the report states; over a link, the larger of the baseline's and the link's. None if unknown."""
        ratios = self.ratios_by_kind.get(kind, self.baseline_ratios)
        if kind in self.ratios_by_kind and (metric not in ratios or noise_floor(ratios[metric]) is None):
            return None
        sources = (ratios, self.link_ratios) if over_link else (ratios,)
        known = (noise_floor(source[metric]) for source in sources if metric in source)
        return max((floor for floor in known if floor is not None), default=None)

    def threshold(self, cell: Mapping[str, Level], metric: Metric = Metric.THROUGHPUT) -> Threshold:
        """The threshold that a ratio of a cell with these factors must exceed."""
        floor = self.noise_floor(metric, over_link=waits_for_link(cell), kind=scatter_kind(cell))
        return Threshold(floor, self.comparisons)

    def compare(self, table: TrialTable, arm: str, reference: str, metric: Metric = Metric.THROUGHPUT) -> Resolution:
        """Resolution of the ratio of one arm to another, paired by block. SLOWER means that the metric is smaller."""
        ratio_and_resolution = self.ratio(table, arm, reference, metric)
        return Resolution.NOT_RESOLVED if ratio_and_resolution is None else ratio_and_resolution[1]

    def ratio(
        self, table: TrialTable, arm: str, reference: str, metric: Metric = Metric.THROUGHPUT
    ) -> tuple[Estimate, Resolution] | None:
        """The ratio of one arm to another, paired by block, and its resolution. None if no block has both."""
        ratios = table.block_ratios(arm, reference, metric.reader(table))
        if not ratios:
            return None
        ratio = judge_ratio(ratios).reported
        factors = next(other.factors for other in table.run.info.arms if other.name == arm)
        return ratio, self.threshold(factors, metric).resolve(ratio)


def measure_noise_floors(table: TrialTable, controls: Sequence[Control] = ()) -> NoiseFloors:
    """The noise floors of a run. `table`: including the control arms."""
    duplicate = next((arm for arm in table.run.info.arms if arm.role is ArmRole.DUPLICATE), None)
    reference = None if duplicate is None else table.reference(duplicate)
    timing = table.run.info.stored_plan.timing
    over_link = next((control for control in controls if control.name == SAME_OVER_LINK), None)
    factors = {arm.name: arm.factors for arm in table.run.info.arms}
    return NoiseFloors(
        baseline_ratios=_repeat_ratios(table, duplicate.name, reference.name) if duplicate and reference else {},
        link_ratios=_repeat_ratios(table, over_link.arm, over_link.reference) if over_link else {},
        ratios_by_kind={
            scatter_kind(factors[control.arm]): _repeat_ratios(table, control.arm, control.reference)
            for control in controls
            if control.name == SAME_OTHER_KIND
        },
        target=timing.target_half_width if timing else DEFAULT_TARGET,
        comparisons=count_comparisons(table),
    )


def _repeat_ratios(table: TrialTable, repeated: str, first: str) -> dict[Metric, Estimate]:
    """Ratios of an arm's second measurement to its first, in each figure that its trials have."""
    ratios = {metric: table.block_ratios(repeated, first, metric.reader(table)) for metric in Metric}
    return {metric: judge_ratio(block_ratios).reported for metric, block_ratios in ratios.items() if block_ratios}


def count_comparisons(table: TrialTable) -> int:
    """Maximum number of comparisons that the report of this run may call resolved."""
    return COMPARISONS_PER_CONTENDER * max(sum(arm.role is ArmRole.CONTENDER for arm in table.run.info.arms), 1)


def judge_against_reference(table: TrialTable, arm: Arm, read_figure: FigureReader) -> RatioJudgement | None:
    """Judge the ratio of an arm to its reference, see `TrialTable.compared_reference`. None if the arm has no reference, or if no
    block has both."""
    reference = table.compared_reference(arm)
    ratios = table.block_ratios(arm.name, reference.name, read_figure) if reference else []
    return judge_ratio(ratios) if ratios else None


def summarise_cell(
    table: TrialTable, arm: Arm, floors: NoiseFloors, is_paused: bool, acknowledgement_s: float | None
) -> CellSummary:
    """Summarise an arm. `acknowledgement_s`: how long its commits wait for another machine; None if they do not."""
    trials, is_baseline = table.measured(arm.name), arm.role is ArmRole.BASELINE
    has_outage = has_fault(arm.factors)  # trials differ by chance in their outage, so their ratios are no results
    has_given_rate = offered_per_s(arm.factors) is not None  # so the rate is the only limit
    is_composite = table.operation.is_composite
    judgement = None if is_baseline or has_outage else judge_against_reference(table, arm, table.rate)
    transactions = sum(trial.transactions for trial in trials)
    records = [record for trial in trials if (record := transaction_histogram(trial))]
    merged = histograms.merge(records)
    receipts = [trial.receipt for trial in table.run.trials if trial.arm == arm.name and trial.status is TrialStatus.OK]
    link = link_facts(arm.factors, receipts)
    all_trials = list(table.trials[arm.name].values())
    rest_rtt_s = link.rest_rtt_ns / 1e9 if link.rest_rtt_ns is not None else None
    hosts_rtt_s = link.hosts_rtt_ns / 1e9 if link.hosts_rtt_ns is not None else None
    setting = setting_of(table.run.info, arm, threads_of(arm), rest_rtt_s, acknowledgement_s, hosts_rtt_s)
    _, cycle, limit = find_limit(all_trials, setting)
    reference = table.reference(arm)
    bound = _cpu_bound(arm, reference)
    paired_arm = reference if is_baseline else table.compared_reference(arm)
    ratio = IDENTITY if is_baseline else judgement.reported if judgement else None
    cpu_ratio = None if has_outage else _ratio_to_reference(table, arm, table.path_cpu_us)
    scatter_parts = scatter(all_trials, judgement, part_us(cycle, ROUND_TRIPS) / cycle.us, link)
    shifts = (scatter_parts.shift, scatter_parts.late) if scatter_parts else ()
    shift = sum(part for part in shifts if part is not None)
    warnings = diagnostics.arm_warnings(trials, link, shift, is_engine_load=not is_composite)
    warnings += diagnostics.ratio_warnings(judgement, floors.target) if judgement else []
    return CellSummary(
        factors=arm.factors,
        arm=arm.name,
        role=arm.role,
        trials=len(trials),
        void_trials=len(table.void_trials(arm.name)),
        qps=mean_interval([value for trial in trials if (value := table.rate(trial)) is not None]),
        ratio=ratio,
        mean_ratio=IDENTITY if is_baseline else judgement.mean if judgement else None,
        rank_ratio=IDENTITY if is_baseline else judgement.rank if judgement else None,
        block_ratios=tuple(table.block_ratios(arm.name, paired_arm.name)) if paired_arm else (),
        blocks_needed=blocks_needed(judgement.sd_log, floors.target)
        if judgement and judgement.sd_log is not None
        else None,
        resolution=Resolution.BASELINE if is_baseline else floors.threshold(arm.factors).resolve(ratio),
        cpu_resolution=_cpu_resolution(cpu_ratio, floors.threshold(arm.factors, Metric.CPU), bound, is_baseline),
        cpu_us_per_query=_cpu_per_query(table, trials),
        cpu_ratio=cpu_ratio,
        cpu_bound=bound,
        latency_ms=histograms.latency_ms(merged, records),
        latency_curve=histograms.curve(merged),
        latency_ratio=_ratio_to_reference(table, arm, median_latency_ns),
        turns_per_txn=sum(trial.round_trips for trial in trials) / transactions
        + connect_round_trips(receipts, arm.factors),
        queries_per_txn=sum(table.operations(trial) for trial in trials) / transactions,
        bytes_per_txn=_bytes_per_txn(trials, transactions, counted=arm.factors.get("application") != "php"),
        time_split_us={} if is_composite or has_given_rate else time_split_us(cycle),
        rest_rtt_ns=link.rest_rtt_ns,
        receipt=receipts[-1] if receipts else TrialReceipt(),
        published=_published_figure(table.run, arm),
        settled_after=len(trials) if is_paused else None,
        warnings=tuple(warnings),
        # With a fault, half of the window may be an outage, which then is the only limit.
        cycle=None if has_outage or is_composite or has_given_rate else cycle,
        limit=None if has_outage or is_composite or has_given_rate else limit,
        network=network_series(all_trials[-1], arm.factors),
        keys=_key_reads(table, trials),
        scatter=scatter_parts,
    )


def _ratio_to_reference(table: TrialTable, arm: Arm, read_figure: FigureReader) -> Estimate | None:
    if arm.role is ArmRole.BASELINE:
        return IDENTITY
    judgement = judge_against_reference(table, arm, read_figure)
    return judgement.reported if judgement else None


def time_split_us(cycle: Cycle) -> dict[str, float]:
    """Split a transaction's time into six parts, in microseconds. REST is neither CPU, round trips nor waiting for a CPU."""
    split = dict.fromkeys(PARTS, 0.0)
    for part in cycle.parts:
        split[LINK if part.name == cycles.ROUND_TRIPS else part.name if part.name in PARTS else REST] += part.us
    return split


def _published_figure(run: Run, arm: Arm) -> Published | None:
    if arm.role not in (ArmRole.BASELINE, ArmRole.CONTENDER):
        return None
    return find_published(run.info.plan_name, arm.factors, run.info.stored_plan.workload, run.info.server_kind)


def _bytes_per_txn(trials: Sequence[Measured], transactions: int, counted: bool) -> BytesPerTxn:
    if not counted:  # the engine sees only FastCGI
        return BytesPerTxn(to_server=None, to_client=None)
    return BytesPerTxn(
        to_server=sum(trial.bytes.to_server for trial in trials) / transactions,
        to_client=sum(trial.bytes.to_client for trial in trials) / transactions,
    )


def _key_reads(table: TrialTable, trials: Sequence[Measured]) -> KeyReads | None:
    """Reads of keys as counted by the engine, or as an application reported. None if there were none."""
    if table.operation is QUERY:
        return None
    reads = [(service.hits, service.misses) for trial in trials for service in trial.services]
    reads += [
        (trial.app_counters.get("hits", 0), trial.app_counters.get("misses", 0))
        for trial in trials
        if trial.app_counters
    ]
    return KeyReads(hits=sum(hits for hits, _ in reads), misses=sum(misses for _, misses in reads)) if reads else None


def _crosses_link(arm: Arm) -> bool:
    """Whether an arm's path crosses the link; only then does the arm have the link's factors."""
    return "rtt_ns" in arm.factors or "rate_bps" in arm.factors


def _cpu_bound(arm: Arm, baseline: Arm | None) -> Bound:
    if baseline is None or _crosses_link(arm) == _crosses_link(baseline):
        return Bound.MEASURED
    return Bound.AT_LEAST if _crosses_link(arm) else Bound.AT_MOST


def _cpu_resolution(cpu_ratio: Estimate | None, threshold: Threshold, bound: Bound, is_baseline: bool) -> Resolution:
    """Resolution of CPU: more per operation is slower. A bound limits the claim, because "at least 0.9" may be more than 1."""
    if is_baseline:
        return Resolution.BASELINE
    resolution = threshold.resolve(cpu_ratio)
    inverse = {Resolution.FASTER: Resolution.SLOWER, Resolution.SLOWER: Resolution.FASTER}
    cpu_resolution = inverse.get(resolution, resolution)
    unprovable = {Bound.AT_LEAST: Resolution.FASTER, Bound.AT_MOST: Resolution.SLOWER}
    return Resolution.NOT_RESOLVED if cpu_resolution is unprovable.get(bound) else cpu_resolution


def threads_of(arm: Arm) -> int:
    """Number of connections of an arm; 1 if its factors have none."""
    return numeric_level(arm.factors, "threads") or 1


def max_connections(run: Run) -> int:
    """Number of connections of the arm that has most."""
    return max(map(threads_of, run.info.arms), default=1)


def _cpu_per_query(table: TrialTable, trials: Sequence[Measured]) -> CpuPerQuery:
    def mean_of_role(role: str) -> Estimate | None:
        values = [value for trial in trials if (value := table.role_cpu_us(trial, role)) is not None]
        return mean_interval(values) if values else None

    return CpuPerQuery(
        client=mean_of_role("client") or Estimate(value=0.0, low=None, high=None),
        server=mean_of_role("server"),
        forwarder=mean_of_role("forwarder"),
        link=mean_of_role("link"),
    )


class Scatter(Part):
    """Components of the scatter of a link arm's blocks, as standard deviations of the logarithm of a block's ratio: 0.02 is 2 %.

    The link is calibrated again in each block, so the calibration error differs between blocks. Its contribution follows from the
    unloaded round trip that each trial measured: if round trips are a share s of the cycle, a relative error e of the RTT becomes a
    relative error s x e of the throughput.
    """

    blocks: int
    total: float
    calibration: float
    """Scatter from the error of the link's calibration; at most `total`."""
    other: float
    """Rest of `total`: total² = calibration² + other²."""
    rtt: float
    """Relative standard deviation of the unloaded RTT from block to block."""
    rtt_off: float | None = None
    """Relative difference of the mean unloaded RTT from the requested one: 0.01 is 1 % too long. None if unknown."""
    shift: float | None = None
    """Relative change of the figure due to `rtt_off`. Interval and controls refer to the link's actual RTT, not the requested one."""
    late: float | None = None
    """Relative change of the figure due to late packets. None if unknown, or if they lengthen the RTT by at most 2 %."""


def scatter(
    trials: Sequence[Trial],
    judgement: RatioJudgement | None,
    round_trips_share: float,
    link: LinkFacts,
) -> Scatter | None:
    """Scatter of an arm's good trials. None without a link, or with too few blocks. `round_trips_share`: share of round trips in the
    cycle."""
    rtts_ns = {
        trial.block: rtt_ns
        for trial in trials
        if trial.receipt.link is not None and (rtt_ns := trial.receipt.link.rest_rtt_ns) is not None
    }
    if judgement is None or judgement.sd_log is None or len(rtts_ns) < MIN_BLOCKS:
        return None
    mean_ns = fmean(rtts_ns.values())
    rtt_off = None if link.emulated_rtt_ns is None else mean_ns / link.emulated_rtt_ns - 1
    late = None if link.late_ns is None else link.late_ns / (mean_ns + link.late_ns)
    rtt_scatter = stdev(rtts_ns.values()) / mean_ns
    calibration = min(round_trips_share * rtt_scatter, judgement.sd_log)
    remaining = max(judgement.sd_log**2 - calibration**2, 0.0) ** 0.5
    return Scatter(
        blocks=len(rtts_ns),
        total=judgement.sd_log,
        calibration=calibration,
        other=remaining,
        rtt=rtt_scatter,
        rtt_off=rtt_off,
        shift=None if rtt_off is None else -round_trips_share * rtt_off / (1 + rtt_off),
        late=None if late is None or late <= MEAN_MAX_SHARE else -round_trips_share * late,
    )
