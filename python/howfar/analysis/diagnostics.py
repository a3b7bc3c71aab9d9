"""Warnings about figures that should be read with care, each with its threshold and the reason for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, stdev

from howfar.analysis.link_facts import LinkFacts
from howfar.plan.factors import has_fault
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, RatioJudgement, excludes_one, half_width, judge_ratio
from howfar.stats.trials import FigureReader, TrialTable, others_cpus, pieces_ns, speed_scatter
from howfar.store.records import MachineLoad, Measured

FEW_BLOCKS = 8
"""Intervals from fewer blocks missed the true value in more than 5 % of simulations; the report warns. A run may stop earlier."""

SATURATED_CLIENT_SHARE = 0.95
"""A thread that is on a CPU for this share of the window counts as saturated: the figure then describes the load generator."""

MAX_STEAL_SHARE = 0.02
"""The machine counts as busy if the hypervisor gave this share of the time to other guests: our clock ran while our CPUs did not."""

MAX_IO_PRESSURE_SHARE = 0.10
"""The machine counts as busy if programs waited for disks for this share of the time. Used only if the CPU use of other programs
was not recorded. Our data are in memory, so it must be other programs that wait for disks."""

MAX_LOAD_PER_CPU = 2.0
"""The machine counts as busy above this load average per CPU: more than our own load must be running."""

MAX_OTHER_PROGRAMS_SHARE = 0.10
"""The machine counts as busy if other programs used more than this share of its CPUs in the median trial. Our own main process,
kernel threads and the services of a quiet system use less. If others take a tenth of the CPUs, clients and servers have to wait."""

MIN_REPORTED_DRIFT = 0.03
"""A drift is reported if throughput changes from the first to the second half of a trial by more than this share, on average."""

MAX_CPU_SCATTER = 0.10
"""The report warns if the CPU time for the same work varies between trials by this relative standard deviation. In a virtual
machine it may be the only sign of a neighbour on the same core that made our work slower. A steady machine is within 3 %."""

MIN_SLICES = 4
"""Minimum number of slices that can show a drift."""

MIN_REPORTED_SHIFT = 0.02
"""An RTT that differs from the requested one is reported if it changes a figure by more than this share."""


class Diagnostic(StrEnum):
    """A warning about a figure. The set is closed, so that a report can explain each."""

    CONTAMINATED_BLOCKS = "contaminated blocks"
    NOT_STEADY = "not steady"
    CLIENT_LIMITED = "client limited"
    BUSY_MACHINE = "busy machine"
    UNEVEN_CPUS = "uneven CPUs"
    WIDE_INTERVAL = "wide interval"
    FEW_BLOCKS = "few blocks"
    AA_EXCLUDES_ONE = "A/A excludes 1"
    LINK_NOT_AS_REQUESTED = "link not as asked"
    CONTROL_MISSED = "control missed"
    DISTURBED = "disturbed"

    @property
    def id(self) -> str:
        """Its name in findings, without spaces: `aa-excludes-one`."""
        return self.name.lower().replace("_", "-")


class Spread(Part):
    """Spread of the baseline's trials: largest over smallest, at least 1."""

    qps: float
    cpu_per_query: float | None


@dataclass(frozen=True)
class Machine:
    """The machine during a run. None: unknown."""

    cpus: int | None
    others_cpus: float | None
    """CPUs that others used, median over trials."""
    loads: tuple[MachineLoad, ...]
    cpu_scatter: float | None
    speed_scatter: float | None

    @property
    def steal_share(self) -> float | None:
        """Share of the CPU time that the hypervisor gave to other guests, in the median trial. None: not reported by this kernel."""
        shares = [load.steal_share for load in self.loads if load.steal_share is not None]
        return median(shares) if shares else None


def describe_machine(table: TrialTable) -> Machine:
    """The machine during the trials of a run."""
    trials = table.run.trials
    return Machine(
        cpus=table.run.info.environment.cpu_count,
        others_cpus=others_cpus(trials),
        loads=tuple(trial.load for trial in trials if trial.load is not None),
        cpu_scatter=cpu_scatter(table),
        speed_scatter=speed_scatter(pieces_ns(trials)),
    )


def is_much_by_others(others_cpus: float, cpus: int) -> bool:
    """Whether other programs used more CPUs than those of a quiet machine do."""
    return others_cpus > MAX_OTHER_PROGRAMS_SHARE * cpus


def is_machine_busy(machine: Machine, connections: int) -> bool:
    """Whether other programs were at work in the median trial: by their CPU use, stolen time, or more runnable tasks than our own.
    In files that do not record the CPU use of other programs: by waits for a disk.

    CPU pressure is reported but not judged here: our own client and server on the same CPU cause just as much of it.
    """
    loads = machine.loads
    if not loads:
        return False
    io_share = median(load.psi_io_some_share or 0.0 for load in loads)
    load_average = median(load.load_average_1m for load in loads)
    # For each connection at most client, server and two forwarders are runnable; in addition, one link thread for each direction.
    cpus = machine.cpus
    others_active = cpus is not None and load_average > MAX_LOAD_PER_CPU * cpus + connections
    if cpus is not None and machine.others_cpus is not None:
        others_active = others_active or is_much_by_others(machine.others_cpus, cpus)
    elif all(load.busy_cpus is None for load in loads):
        others_active = others_active or io_share >= MAX_IO_PRESSURE_SHARE
    return (machine.steal_share or 0.0) >= MAX_STEAL_SHARE or others_active


def is_client_limited(trials: Sequence[Measured]) -> bool:
    """Whether the engine's busiest thread was on a CPU for at least `SATURATED_CLIENT_SHARE` of the median trial."""

    def busiest_thread_share(trial: Measured) -> float:
        return max((cpu.busiest_thread_ns for cpu in trial.cpu if cpu.role == "client"), default=0) / trial.elapsed_ns

    return bool(trials) and median(busiest_thread_share(trial) for trial in trials) >= SATURATED_CLIENT_SHARE


def is_unsteady(trials: Sequence[Measured]) -> bool:
    """Whether throughput drifts: the ratio of the second to the first half of each trial, judged over all trials. The seconds of a
    single trial prove nothing."""
    drifts = []
    for trial in trials:
        rates = [interval.transactions / interval.length_ns for interval in trial.intervals if interval.length_ns]
        middle = len(rates) // 2
        first, second = sum(rates[:middle]), sum(rates[-middle:])
        if len(rates) >= MIN_SLICES and first > 0 and second > 0:
            drifts.append(second / first)
    if len(drifts) < FEW_BLOCKS:
        return False
    drift = judge_ratio(drifts).reported
    return excludes_one(drift) and abs(math.log(drift.value)) > math.log1p(MIN_REPORTED_DRIFT)


def ratio_warnings(judgement: RatioJudgement, target: float) -> list[Diagnostic]:
    """Warnings about a ratio. `target`: requested half-width of its interval."""
    width = half_width(judgement.reported)
    warnings = []
    if judgement.is_contaminated:
        warnings.append(Diagnostic.CONTAMINATED_BLOCKS)
    if width is not None and width > target:
        warnings.append(Diagnostic.WIDE_INTERVAL)
    if judgement.blocks < FEW_BLOCKS:
        warnings.append(Diagnostic.FEW_BLOCKS)
    return warnings


def arm_warnings(
    trials: Sequence[Measured], link: LinkFacts, shift: float, *, is_engine_load: bool
) -> list[Diagnostic]:
    """Warnings about an arm. `shift`: relative change of the figure due to a deviating RTT and late packets; `is_engine_load`: whether
    our engine makes all load."""
    warnings = []
    if is_unsteady(trials):
        warnings.append(Diagnostic.NOT_STEADY)
    if is_engine_load and is_client_limited(trials):
        warnings.append(Diagnostic.CLIENT_LIMITED)
    if not link.is_as_requested or abs(shift) > MIN_REPORTED_SHIFT:
        warnings.append(Diagnostic.LINK_NOT_AS_REQUESTED)
    return warnings


def session_warnings(
    repeat_ratios: Sequence[Estimate],
    control_missed: bool,
    machine: Machine,
    connections: int,
) -> list[Diagnostic]:
    """Warnings about a whole run. `repeat_ratios`: ratios of arms measured twice. `control_missed`: whether a control did not
    recover its known effect."""
    warnings = []
    if any(map(excludes_one, repeat_ratios)):
        warnings.append(Diagnostic.AA_EXCLUDES_ONE)
    if control_missed:
        warnings.append(Diagnostic.CONTROL_MISSED)
    if is_machine_busy(machine, connections):
        warnings.append(Diagnostic.BUSY_MACHINE)
    if (machine.cpu_scatter or 0.0) >= MAX_CPU_SCATTER:
        warnings.append(Diagnostic.UNEVEN_CPUS)
    return warnings


def baseline_spread(table: TrialTable) -> Spread | None:
    """Ratio of the largest to the smallest figure of the baseline's trials. The path is always the same, so differences are due to
    the machine."""
    trials = table.measured(table.baseline.name) if table.baseline else []

    def max_over_min(read_value: FigureReader) -> float | None:
        values = [value for trial in trials if (value := read_value(trial))]
        return max(values) / min(values) if len(values) > 1 else None

    qps = max_over_min(table.rate)
    return None if qps is None else Spread(qps=qps, cpu_per_query=max_over_min(table.path_cpu_us))


def cpu_scatter(table: TrialTable) -> float | None:
    """Relative standard deviation, between trials, of the CPU time per operation; for the median cell. None: too few trials."""
    scatters = []
    # A trial with a fault contains an outage of random length.
    for arm in (arm for arm in table.run.info.arms if not has_fault(arm.factors)):
        costs = [cost for trial in table.measured(arm.name) if (cost := table.path_cpu_us(trial))]
        if len(costs) >= MIN_BLOCKS:
            scatters.append(stdev(costs) / fmean(costs))
    return median(scatters) if scatters else None
