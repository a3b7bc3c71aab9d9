"""Response times at given rates (open loop), counted from the moment at which each transaction was due.

A closed loop waits for a slow answer and sends less; users do not. Here, a stall delays all transactions that become due in it, and so
it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from howfar.analysis.cells import CellSummary, Figure, Floors
from howfar.analysis.summary import RunEvidence
from howfar.plan.factors import LOAD, offered_per_s
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import CurvePoint
from howfar.stats.intervals import Resolution, exponential, judge_ratio, mean_interval
from howfar.stats.trials import KEEPS_UP, TrialTable, p99_ms, quantile_ms, rest_of
from howfar.store.records import Arm, Measured

QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


class AtRate(Part):
    """One path at one rate."""

    arm: str
    per_s: float
    """Transactions due each second."""
    share: float | None
    """Share of the baseline's capacity in a closed loop: in this run, or as measured before it where the run has no closed loop.
    None: neither is known."""
    answered: Estimate
    """Share of the transactions due that were answered within the window; the mean of the blocks."""
    keeps_up: bool
    """Whether `answered` is at least `KEEPS_UP`; its interval may include the opposite, see `sure`."""
    p50_ms: Estimate | None
    """Geometric mean of the trials' quantiles. None: too few transactions for it, or the path does not keep up."""
    p99_ms: Estimate | None
    p999_ms: Estimate | None
    p99_ratio: Estimate | None
    """p99 over that of the baseline's path at the same rate, paired by block."""
    resolution: Resolution
    """Judgement of `p99_ratio`. SLOWER: the response time is longer."""
    curve: tuple[CurvePoint, ...]

    @property
    def sure(self) -> bool:
        """Whether the interval of `answered` leaves no doubt that the path keeps up, or that it does not."""
        low, high = self.answered.low, self.answered.high
        return low is not None and high is not None and (low >= KEEPS_UP or high < KEEPS_UP)


class PathLatency(Part):
    """One path, with one combination of the other factors."""

    name: str
    capacity_per_s: Estimate | None
    """Throughput in a closed loop with the plan's connections; the path cannot keep up with a higher rate. None: not measured."""
    rates: tuple[AtRate, ...]
    """Results by rate, ascending."""


class Latency(Part):
    """Response times at fixed rates, path by path in the order of the plan."""

    baseline: str
    paths: tuple[PathLatency, ...]


def latency(evidence: RunEvidence) -> Latency | None:
    """Response times of a run. None: no arm has a given rate."""
    table = evidence.table
    arms = table.main_arms
    paced = [arm for arm in arms if offered_per_s(arm.factors) is not None and table.measured(arm.name)]
    if not paced:
        return None
    cells = {cell.arm: cell for cell in evidence.cells}
    closed = {rest_of(arm.factors, LOAD.name): arm for arm in reversed(arms) if offered_per_s(arm.factors) is None}
    groups: dict[object, list[Arm]] = {}
    for arm in paced:
        groups.setdefault(rest_of(arm.factors, LOAD.name), []).append(arm)
    baseline = table.baseline
    reader = _Reader(table, cells, evidence.floors, _capacity(table, baseline))
    return Latency(
        baseline="" if baseline is None else _plain_name(baseline),
        paths=tuple(
            PathLatency(
                name=_plain_name(same[0]),
                capacity_per_s=_in_closed_loop(table, closed.get(rest)),  # type: ignore[call-overload]
                rates=tuple(reader.at(arm) for arm in sorted(same, key=lambda arm: offered_per_s(arm.factors) or 0.0)),
            )
            for rest, same in groups.items()
        ),
    )


def _in_closed_loop(table: TrialTable, arm: Arm | None) -> Estimate | None:
    """Transactions per second of an arm that is a closed loop."""
    trials = [] if arm is None else table.measured(arm.name)
    return mean_interval([_per_s(trial) for trial in trials]) if trials else None


def _capacity(table: TrialTable, baseline: Arm | None) -> float | None:
    """The baseline's capacity, from this run's blocks or else from the few trials before the first block."""
    if baseline is not None and offered_per_s(baseline.factors) is None:
        measured = _in_closed_loop(table, baseline)
        if measured is not None:
            return measured.value
    before = table.run.info.environment.get("capacity", {}).get("per_s")
    return float(before) if isinstance(before, int | float) else None


def _plain_name(arm: Arm) -> str:
    """The cell's name without its load."""
    label = LOAD.label(LOAD.of(arm.factors))
    return ", ".join(part for part in arm.name.split(", ") if part != label)


class _Reader:
    def __init__(
        self, table: TrialTable, cells: Mapping[str, CellSummary], floors: Floors, capacity: float | None
    ) -> None:
        self.table, self.cells, self.floors, self.capacity = table, cells, floors, capacity

    def at(self, arm: Arm) -> AtRate:
        per_s = offered_per_s(arm.factors) or 0.0
        answered = mean_interval(self.table.answered(arm) or [0.0])
        keeps_up = answered.value >= KEEPS_UP
        ratio = self._ratio(arm) if keeps_up else None
        found = self.floors.of(arm.factors, Figure.P99).resolve(ratio)
        turned = {Resolution.FASTER: Resolution.SLOWER, Resolution.SLOWER: Resolution.FASTER}
        return AtRate(
            arm=arm.name,
            per_s=per_s,
            share=per_s / self.capacity if self.capacity else None,
            answered=answered,
            keeps_up=keeps_up,
            **{name: self._quantile(arm, share) if keeps_up else None for name, share in QUANTILES.items()},
            p99_ratio=ratio,
            resolution=turned.get(found, found),
            curve=self.cells[arm.name].latency_curve,
        )

    def _quantile(self, arm: Arm, share: float) -> Estimate | None:
        found = [ms for trial in self.table.measured(arm.name) if (ms := quantile_ms(trial, share)) is not None]
        return exponential(mean_interval([math.log(ms) for ms in found])) if found else None

    def _ratio(self, arm: Arm) -> Estimate | None:
        reference = self.table.compared(arm)
        if reference is None or not self.table.sustains(reference):
            return (
                None  # it is itself the reference; or the reference queues, and its p99 grows with the trial's length
            )
        ratios = self.table.block_ratios(arm.name, reference.name, p99_ms)
        return judge_ratio(ratios).quoted if ratios else None


def _per_s(measured: Measured) -> float:
    return measured.transactions * 1e9 / measured.elapsed_ns


# ---------------------------------------------------------------- the answer


def verdict(found: Latency, text: Callable[[Estimate], str]) -> str:
    """The answer: the p99 at the highest rate that every path keeps up with, and the rate beyond which each no longer does."""
    common = _common(found)
    clauses = []
    if common is not None:
        reads = [(path.name, at) for path in found.paths for at in path.rates if at.per_s == common and at.p99_ms]
        share = next(
            (f" ({at.share * 100:.0f} % of what {found.baseline} can do)" for _, at in reads if at.share is not None),
            "",
        )
        named = ", ".join(f"{name} {text(at.p99_ms)} ms" for name, at in reads if at.p99_ms is not None)
        open_ones = [name for name, at in reads if not at.sure]
        doubt = f" (whether {' and '.join(open_ones)} can keep up with that is not resolved)" if open_ones else ""
        clauses.append(f"At {common:,.0f} transactions/s{share}, 99 of 100 are answered within: {named}{doubt}")
    ends = [(path.name, path.capacity_per_s) for path in found.paths if path.capacity_per_s is not None]
    if ends:
        clauses.append(
            "the most in a closed loop, beyond which transactions queue: "
            + ", ".join(f"{name} {text(end)}/s" for name, end in ends)
        )
    return "; ".join(clauses) + "." if clauses else ""


def _common(found: Latency) -> float | None:
    """The highest rate at which every path has a p99."""
    rates = [{at.per_s for at in path.rates if at.p99_ms is not None} for path in found.paths]
    shared = set.intersection(*rates) if rates else set()
    return max(shared, default=None)
