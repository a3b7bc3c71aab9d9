"""Good trials by arm and block, the figures by which arms are compared, and groups of arms that differ in one factor only."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median, pvariance
from typing import Any, TypeVar

from howfar.contract.receipt_messages import Histogram
from howfar.plan.factor import Level
from howfar.plan.factors import CONDITIONS, IMPLIED_LEVELS, offered_per_s
from howfar.plan.kinds import QUERY, Operation
from howfar.plan.types import StoredPlan
from howfar.plan.workload import OPERATIONS, WORKLOADS, Unit
from howfar.stats.histograms import merge_data, value_at
from howfar.store.records import Arm, ArmRole, Measured, Run, Trial, TrialStatus, is_repeated

PATH_ROLES = ("client", "application", "server", "redis", "memcached", "forwarder")
"""Roles whose CPU time is a cost of the path. The link emulator belongs to the instrument and is left out."""

SERVER_ROLES = ("server", "redis", "memcached")

FigureReader = Callable[[Measured], float | None]
"""Reads a figure, > 0, from a trial, to compare arms by it. None if the trial does not have it."""

KEEPS_UP = 0.99
"""Minimum share of the transactions due that an arm with a given rate must answer within the window to keep up with it. If fewer are
answered, response times grow with the length of the window."""

T = TypeVar("T")
OtherFactors = tuple[tuple[str, Level], ...]


def operation_unit_of(plan: StoredPlan) -> Unit:
    """The kind of operation that this plan's load counts."""
    return (WORKLOADS[plan.workload.kind].operation if plan.workload else QUERY).plural


def singular(unit: Unit) -> str:
    """`page` for `pages`."""
    return OPERATIONS[unit].singular


def operations_in(counts: Any, unit: Unit) -> int:
    """Number of operations in `counts`, which counts transactions and queries."""
    return int(counts.transactions if OPERATIONS[unit].is_composite else counts.queries)


@dataclass(frozen=True)
class TrialTable:
    """The good trials of a run, by arm and block in ascending order: as stored in `trials`, and their measurements in `good`."""

    run: Run
    unit: Unit
    trials: dict[str, dict[int, Trial]]
    good: dict[str, dict[int, Measured]]

    @property
    def operation(self) -> Operation:
        """What the load counts as done."""
        return OPERATIONS[self.unit]

    @property
    def main_arms(self) -> list[Arm]:
        """The baseline and the contenders, without duplicates, controls and confirmations."""
        return [arm for arm in self.run.info.arms if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]

    @property
    def baseline(self) -> Arm | None:
        return next((arm for arm in self.run.info.arms if arm.role is ArmRole.BASELINE), None)

    def reference(self, arm: Arm) -> Arm | None:
        """The arm that an arm is compared with: the baseline, or its copy under the arm's conditions of the machine if there is
        one."""
        baseline = self.baseline
        if baseline is None:
            return None
        reference_factors = {
            **baseline.factors,
            **{name: arm.factors[name] for name in CONDITIONS if name in arm.factors},
        }
        for other in self.run.info.arms:
            if other.role is ArmRole.CONTENDER and other.factors == reference_factors and other.name != arm.name:
                return other
        return baseline

    def compared_reference(self, arm: Arm) -> Arm | None:
        """The reference that an arm is compared with. None if the arm is the reference, or has a given rate (which is no
        result) that the reference does not have."""
        reference = self.reference(arm)
        if reference is None or reference.name == arm.name:
            return None
        return reference if offered_per_s(reference.factors) == offered_per_s(arm.factors) else None

    def answered_shares(self, arm: Arm) -> list[float]:
        """Share of the transactions due that were answered in time, for each good trial of an arm. Empty without a given rate."""
        arrivals = [trial.receipt.arrivals for trial in self.trials[arm.name].values()]
        return [receipt.answered / receipt.due for receipt in arrivals if receipt is not None and receipt.due]

    def keeps_up(self, arm: Arm) -> bool:
        """Whether an arm keeps up with its rate, as every closed loop does."""
        shares = self.answered_shares(arm)
        return not shares or fmean(shares) >= KEEPS_UP

    @property
    def blocks(self) -> int:
        """Number of good trials of the arm that has most of them."""
        return max((len(good) for good in self.good.values()), default=0)

    def measured(self, arm: str) -> list[Measured]:
        return list(self.good.get(arm, {}).values())

    def void_trials(self, arm: str) -> list[Trial]:
        """Trials of an arm that do not count, except those that were measured again because other programs disturbed them."""
        return [
            trial for trial in self.run.trials if trial.arm == arm and not is_good(trial) and not is_repeated(trial)
        ]

    def operations(self, measured: Measured) -> int:
        return operations_in(measured, self.unit)

    def rate(self, measured: Measured) -> float | None:
        """Operations per second."""
        return self.operations(measured) / (measured.elapsed_ns / 1e9)

    def role_cpu_us(self, measured: Measured, role: str) -> float | None:
        """CPU microseconds per operation of one role. None if this path has no such part."""
        cpu_ns = [cpu.cpu_ns for cpu in measured.cpu if cpu.role == role]
        operations = self.operations(measured)
        return sum(cpu_ns) / 1e3 / operations if cpu_ns and operations else None

    def path_cpu_us(self, measured: Measured) -> float | None:
        """CPU microseconds per operation of the whole path. None if unknown, as for a server that howfar did not start."""
        if not any(cpu.role in SERVER_ROLES for cpu in measured.cpu):
            return None
        return sum(self.role_cpu_us(measured, role) or 0.0 for role in PATH_ROLES) or None

    def block_ratios(self, arm: str, reference: str, read_figure: FigureReader | None = None) -> list[float]:
        """Ratios of `arm` to `reference` for each block in which both are good; of throughput, unless `read_figure` reads another
        figure."""
        read_figure = read_figure or self.rate
        ratios = []
        for block, measured in self.good.get(arm, {}).items():
            other = self.good.get(reference, {}).get(block)
            numerator = read_figure(measured)
            denominator = read_figure(other) if other is not None else None
            if numerator and denominator:
                ratios.append(numerator / denominator)
        return ratios


def is_good(trial: Trial) -> bool:
    return trial.status is TrialStatus.OK and trial.measured is not None and trial.measured.transactions > 0


def trial_table(run: Run) -> TrialTable:
    trials: dict[str, dict[int, Trial]] = {arm.name: {} for arm in run.info.arms}
    for trial in sorted(run.trials, key=lambda t: (t.block, t.attempt)):
        if is_good(trial) and trial.arm in trials:
            trials[trial.arm][trial.block] = trial
    good = {arm: {block: t.measured for block, t in by_block.items() if t.measured} for arm, by_block in trials.items()}
    return TrialTable(run, operation_unit_of(run.info.stored_plan), trials, good)


def transaction_histogram(measured: Measured) -> Histogram | None:
    return next((h for h in measured.histograms if h.kind == "transaction"), None)


def median_latency_ns(measured: Measured) -> float | None:
    histogram = transaction_histogram(measured)
    return float(histogram.p50_ns) if histogram else None


_MIN_TRANSACTIONS_PER_CONNECTION = 200
"""Transactions per connection in a window: with fewer, those that the window's ends cut off make the count inaccurate."""


def closed_loop_per_s(measured: Measured, threads: int) -> float:
    """Transactions per second of a closed loop, counted over the window. If each connection made only a few, connections divided by
    the mean transaction time: without pauses that is the same, and it does not depend on where the window ends."""
    histogram = transaction_histogram(measured)
    if (
        histogram is not None
        and histogram.mean_ns > 0
        and measured.transactions < _MIN_TRANSACTIONS_PER_CONNECTION * threads
    ):
        return threads * 1e9 / histogram.mean_ns
    return measured.transactions / (measured.elapsed_ns / 1e9)


MIN_BEYOND_QUANTILE = 10
"""Minimum number of samples beyond a quantile in each trial: with fewer, a few transactions determine it."""


def quantile_ms(measured: Measured, share: float) -> float | None:
    """A quantile of one trial. None if fewer than `MIN_BEYOND_QUANTILE` transactions lie beyond it."""
    histogram = transaction_histogram(measured)
    if histogram is None or histogram.count * (1 - share) < MIN_BEYOND_QUANTILE:
        return None
    return _quantile_ns(histogram.data, share) / 1e6


@lru_cache(maxsize=4096)
def _quantile_ns(data: str, share: float) -> float:
    """Cached, because the stop rule needs it after every trial, for all trials so far."""
    return value_at(merge_data([data]), share)


def p99_ms(measured: Measured) -> float | None:
    """The 99th percentile of one trial, see `quantile_ms`."""
    return quantile_ms(measured, 0.99)


def others_cpus_in_trial(trial: Trial) -> float | None:
    """CPUs kept busy by other processes than client, server, forwarder, link and howfar's own sampling. None for a void trial, or
    if not recorded, as for a server that dies in the trial."""
    window = trial.window
    if window is not None and window.cpus_busy:
        busy: float | None = sum(
            window.cpus_busy.values()
        )  # `trial.load` would include the time until the last answers arrived
    else:
        busy = None if trial.load is None else trial.load.busy_cpus
    if trial.measured is None or busy is None or not trial.measured.elapsed_ns:
        return None
    if trial.fault is not None and not any(cpu.role in SERVER_ROLES for cpu in trial.measured.cpu):
        return None
    own_cpus = sum(cpu.cpu_ns for cpu in trial.measured.cpu) / trial.measured.elapsed_ns + second_writer_cpus(trial)
    sampling = window.sampling_cpu_ns / window.length_ns if window is not None else 0.0
    return max(0.0, busy - own_cpus - sampling)  # the clocks' resolution may make it negative


def second_writer_cpus(trial: Trial) -> float:
    """CPUs that howfar's load on a second node of a cluster used. 0 if there is none, or if an older file does not record it."""
    second = trial.receipt.writers.second if trial.receipt.writers is not None else None
    return (second.cpu_ns or 0) / second.elapsed_ns if second is not None and second.elapsed_ns else 0.0


def others_cpus(trials: Sequence[Trial]) -> float | None:
    """Median over trials of the CPUs that other processes used, see `others_cpus_in_trial`. None if no trial reports it."""
    known = [others for trial in trials if (others := others_cpus_in_trial(trial)) is not None]
    return median(known) if known else None


MIN_PIECES = 5
"""Minimum number of pieces of work on a CPU that show the scatter of its speed."""


def speed_scatter(pieces_ns: Mapping[int, Sequence[int]]) -> float | None:
    """Relative standard deviation of the CPU time of a fixed piece of work on the same CPU, over CPUs that may differ in speed. None:
    too few pieces."""
    variances = [pvariance(pieces) / fmean(pieces) ** 2 for pieces in pieces_ns.values() if len(pieces) >= MIN_PIECES]
    return math.sqrt(fmean(variances)) if variances else None


def pieces_ns(trials: Sequence[Trial]) -> dict[int, list[int]]:
    """CPU times of the pieces at both ends of trials, by CPU."""
    by_cpu: dict[int, list[int]] = defaultdict(list)
    for trial in trials:
        if (speed := trial.receipt.speed) is not None:
            for cpu, piece_ns in (*speed.before_ns.items(), *speed.after_ns.items()):
                by_cpu[cpu].append(piece_ns)
    return by_cpu


def other_factors(factors: Mapping[str, Level], *excluded: str) -> OtherFactors:
    """All factors except `excluded`, in a form that can be compared. Missing factors have their default level."""
    return tuple(sorted((name, level) for name, level in {**IMPLIED_LEVELS, **factors}.items() if name not in excluded))


def group_by_other_factors(
    items: Sequence[T], read_factors: Callable[[T], Mapping[str, Level]], excluded: str
) -> list[list[T]]:
    """Group items that differ only in the factor `excluded`. The groups are in the order of their first members."""
    groups: dict[OtherFactors, list[T]] = {}
    for item in items:
        groups.setdefault(other_factors(read_factors(item), excluded), []).append(item)
    return list(groups.values())
