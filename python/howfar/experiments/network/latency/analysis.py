"""Response times at given rates (open loop), counted from the moment at which each transaction was due.

A closed loop waits for a slow answer and sends less; users do not. In an open loop a stall delays all transactions that become due
during it, so the response times include the stall.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from howfar.analysis.cells import CellSummary, Metric, NoiseFloors
from howfar.analysis.summary import RunEvidence
from howfar.bottleneck.cycle import REST, largest_parts
from howfar.findings import Finding, Quantity
from howfar.plan.factor import Level
from howfar.plan.factors import LOAD, THREADS, offered_per_s
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import CurvePoint
from howfar.stats.intervals import Resolution, exponential, mean_interval
from howfar.stats.trials import KEEPS_UP, TrialTable, other_factors, quantile_ms
from howfar.store.records import Arm, Measured

QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


class RateResult(Part):
    """Results of one path at one rate."""

    arm: str
    per_s: float
    """Transactions due each second."""
    share: float | None
    """The rate as a share of the baseline's capacity in a closed loop, measured in this run or else before it. None: neither is
    known."""
    answered: Estimate
    """Share of the transactions due that were answered within the window; the mean of the blocks."""
    keeps_up: bool
    """Whether `answered` is at least `KEEPS_UP`. Its interval may allow the opposite: see `is_certain`."""
    p50_ms: Estimate | None
    """Geometric mean of the trials' quantiles. None: too few transactions for the quantile, or the path does not keep up."""
    p99_ms: Estimate | None
    p999_ms: Estimate | None
    p99_ratio: Estimate | None
    """p99 over that of the baseline's path at the same rate, paired by block."""
    resolution: Resolution
    """Resolution of `p99_ratio`. SLOWER: the response time is longer."""
    curve: tuple[CurvePoint, ...]

    @property
    def is_certain(self) -> bool:
        """Whether the interval of `answered` leaves no doubt that the path keeps up, or that it does not."""
        low, high = self.answered.low, self.answered.high
        return low is not None and high is not None and (low >= KEEPS_UP or high < KEEPS_UP)


class PathLatency(Part):
    """One path, with one combination of the other factors."""

    name: str
    capacity_per_s: Estimate | None
    """Throughput in a closed loop with the plan's connections; the path cannot keep up with a higher rate. None: not measured."""
    rates: tuple[RateResult, ...]
    """Results by rate, ascending."""

    @property
    def lowest_overload(self) -> RateResult | None:
        """The result at the lowest rate with which the path certainly does not keep up."""
        return next((result for result in self.rates if not result.keeps_up and result.is_certain), None)


class Latency(Part):
    """Response times at fixed rates, path by path in the order of the plan."""

    baseline: str
    paths: tuple[PathLatency, ...]


def summarise_latency(evidence: RunEvidence) -> Latency | None:
    """Response times of a run. None: no arm has a given rate."""
    table = evidence.table
    arms = table.main_arms
    paced_arms = [arm for arm in arms if offered_per_s(arm.factors) is not None and table.measured(arm.name)]
    if not paced_arms:
        return None
    cells = {cell.arm: cell for cell in evidence.cells}
    closed_loop_arms = {
        other_factors(arm.factors, LOAD.name): arm for arm in reversed(arms) if offered_per_s(arm.factors) is None
    }
    arms_by_path: dict[object, list[Arm]] = {}
    for arm in paced_arms:
        arms_by_path.setdefault(other_factors(arm.factors, LOAD.name), []).append(arm)
    baseline = table.baseline
    rate_summary = _RateSummary(table, cells, evidence.floors, _baseline_capacity(table, baseline))
    return Latency(
        baseline="" if baseline is None else _name_without_load(baseline.name, baseline.factors),
        paths=tuple(
            PathLatency(
                name=_name_without_load(path_arms[0].name, path_arms[0].factors),
                capacity_per_s=_closed_loop_per_s(table, closed_loop_arms.get(other_levels)),  # type: ignore[call-overload]
                rates=tuple(
                    rate_summary.summarise_rate(arm)
                    for arm in sorted(path_arms, key=lambda arm: offered_per_s(arm.factors) or 0.0)
                ),
            )
            for other_levels, path_arms in arms_by_path.items()
        ),
    )


def _closed_loop_per_s(table: TrialTable, arm: Arm | None) -> Estimate | None:
    """Transactions per second of a closed-loop arm. None: no arm, or no good trial."""
    trials = [] if arm is None else table.measured(arm.name)
    return mean_interval([_transactions_per_s(trial) for trial in trials]) if trials else None


def _baseline_capacity(table: TrialTable, baseline: Arm | None) -> float | None:
    """The baseline's capacity, from this run's blocks or else from the few trials before the first block."""
    if baseline is not None and offered_per_s(baseline.factors) is None:
        measured = _closed_loop_per_s(table, baseline)
        if measured is not None:
            return measured.value
    before = None if (capacity := table.run.info.environment.capacity) is None else capacity.per_s
    return float(before) if isinstance(before, int | float) else None


def _name_without_load(name: str, factors: Mapping[str, Level]) -> str:
    """The cell's name without its load."""
    label = LOAD.label(LOAD.level_in(factors))
    return ", ".join(part for part in name.split(", ") if part != label)


class _RateSummary:
    def __init__(
        self, table: TrialTable, cells: Mapping[str, CellSummary], floors: NoiseFloors, capacity: float | None
    ) -> None:
        self.table, self.cells, self.floors, self.capacity = table, cells, floors, capacity

    def summarise_rate(self, arm: Arm) -> RateResult:
        per_s = offered_per_s(arm.factors) or 0.0
        answered = mean_interval(self.table.answered_shares(arm) or [0.0])
        keeps_up = answered.value >= KEEPS_UP
        compared = self._compare_p99(arm) if keeps_up else None
        ratio, throughput_sense = compared or (None, Resolution.NOT_RESOLVED)
        inverted = {Resolution.FASTER: Resolution.SLOWER, Resolution.SLOWER: Resolution.FASTER}
        return RateResult(
            arm=arm.name,
            per_s=per_s,
            share=per_s / self.capacity if self.capacity else None,
            answered=answered,
            keeps_up=keeps_up,
            **{name: self._quantile(arm, share) if keeps_up else None for name, share in QUANTILES.items()},
            p99_ratio=ratio,
            resolution=inverted.get(throughput_sense, throughput_sense),
            curve=self.cells[arm.name].latency_curve,
        )

    def _quantile(self, arm: Arm, share: float) -> Estimate | None:
        values_ms = [ms for trial in self.table.measured(arm.name) if (ms := quantile_ms(trial, share)) is not None]
        return exponential(mean_interval([math.log(ms) for ms in values_ms])) if values_ms else None

    def _compare_p99(self, arm: Arm) -> tuple[Estimate, Resolution] | None:
        """Ratio of its p99 to its reference's, in the sense of throughput. None: the arm is itself the reference, or the reference
        queues, so that its p99 grows with the trial's length."""
        reference = self.table.compared_reference(arm)
        if reference is None or not self.table.keeps_up(reference):
            return None
        return self.floors.ratio(self.table, arm.name, reference.name, Metric.P99)


def _transactions_per_s(measured: Measured) -> float:
    return measured.transactions * 1e9 / measured.elapsed_ns


# ---------------------------------------------------------------- the answer

ORDER = ("too-high-of", "too-high", "unclear", "sustained")
"""Ids of the findings about rates, the most important first."""


def conclude(latency: Latency) -> tuple[Finding, ...]:
    """Whether a rate is too high for each path, then the p99 of each at the highest rate at which all have one."""
    findings = [_rate_finding(path) for path in latency.paths]
    return (*sorted(findings, key=lambda finding: ORDER.index(finding.id)), *_p99_findings(latency))


def explain(latency: Latency, cells: Iterable[CellSummary]) -> tuple[Finding, ...]:
    """How long a transaction occupies a connection of the paths for which a rate is too high, and the largest part of that time.
    `cells`: those of the run."""
    closed_loop = {
        _name_without_load(cell.arm, cell.factors): cell for cell in cells if offered_per_s(cell.factors) is None
    }
    return tuple(
        _capacity_finding(path, closed_loop.get(path.name))
        for path in latency.paths
        if path.lowest_overload is not None and path.capacity_per_s is not None
    )


def _capacity_finding(path: PathLatency, cell: CellSummary | None) -> Finding:
    """`cell`: the path in a closed loop, with the parts of a transaction's time. None: unknown."""
    if cell is None or cell.cycle is None or (part := largest_parts(cell.cycle, 1)[0]).name == REST:
        return Finding(id="capacity", subject=path.name, metric=Quantity.CAPACITY, estimate=path.capacity_per_s)
    parameters: dict[str, str | int | float] = {
        "connections": THREADS.level_in(cell.factors),
        "time_ms": cell.cycle.us / 1e3,
        "part": part.name,
        "part_ms": part.us / 1e3,
    }
    return Finding(
        id="occupied",
        subject=path.name,
        metric=Quantity.CAPACITY,
        estimate=path.capacity_per_s,
        parameters=parameters,
    )


def _rate_finding(path: PathLatency) -> Finding:
    """The lowest rate that is too high for a path; or the lowest of which that is unclear; or the highest, which it sustains."""
    too_high = path.lowest_overload
    unclear = next((result for result in path.rates if not result.is_certain), None)
    result = too_high or unclear or path.rates[-1]
    parameters: dict[str, str | int | float] = {"per_s": result.per_s}
    finding_id = "too-high" if too_high else "unclear" if unclear else "sustained"
    if too_high and path.capacity_per_s:
        finding_id, parameters["capacity"] = "too-high-of", path.capacity_per_s.value
    verdict = Resolution.NOT_RESOLVED if finding_id == "unclear" else None
    return Finding(
        id=finding_id,
        subject=path.name,
        metric=Quantity.ANSWERED,
        estimate=result.answered,
        verdict=verdict,
        parameters=parameters,
    )


def _p99_findings(latency: Latency) -> list[Finding]:
    rates = [{result.per_s for result in path.rates if result.p99_ms is not None} for path in latency.paths]
    per_s = max(set.intersection(*rates), default=None)
    return [
        Finding(
            id="p99",
            subject=path.name,
            metric=Quantity.P99,
            estimate=result.p99_ms,
            parameters={"per_s": per_s},
        )
        for path in latency.paths
        for result in path.rates
        if per_s is not None and result.per_s == per_s
    ]
