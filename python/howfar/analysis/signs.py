"""Warnings: signs that a figure should be read with care, each with its threshold and the reason for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, stdev

from howfar.analysis.link_facts import LinkFacts
from howfar.plan.factors import breaks
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, RatioJudgement, excludes_one, half_width, judge_ratio
from howfar.stats.trials import TrialTable, Value
from howfar.store.records import MachineLoad, Measured, Run

FEW_BLOCKS = 8
"""Intervals from fewer blocks missed the true value in more than 5 % of simulations; the report warns. A run may stop earlier."""

CLIENT_BUSY_SHARE = 0.95
"""Share of the window on a CPU from which a thread counts as saturated: the figure then describes the load generator."""

STEAL_SHARE = 0.02
"""Share of time that the hypervisor gave to other guests beyond which the machine is busy: our clock ran while our CPUs did not."""

IO_PRESSURE_SHARE = 0.10
"""Share of time waiting for disks. It is used only if the CPU use of other programs was not recorded: our data are in memory, so only
other programs wait for a disk, and take nothing from us by waiting."""

LOAD_PER_CPU = 2.0
"""Load average per CPU above which more than our own load must be running."""

OTHERS_SHARE = 0.10
"""Share of the machine's CPUs used by other programs in the median trial, above which it is busy. Less comes from our own main
process, kernel threads and the services of a quiet system; without a tenth of the CPUs, clients and servers do wait for others."""

DRIFT_SHARE = 0.03
"""Mean change of throughput from the first to the second half of a trial from which it is reported."""

CPU_SCATTER_SHARE = 0.10
"""Relative standard deviation, between trials, of the CPU time for the same work, from which the report warns. It may be the only sign
of a neighbour on the same core, invisible to a virtual machine, that made our work slower. A steady machine is within 3 %."""

MIN_INTERVALS = 4
"""Minimum number of slices that can show a drift."""


SHIFT_SHARE = 0.02
"""Shift of a figure, due to an RTT other than the requested one, from which it is reported, however few µs the RTT differs."""


class Warning(StrEnum):
    """A warning about a figure. The set is closed, so that a report can explain each."""

    CONTAMINATED_BLOCKS = "contaminated blocks"
    NOT_STEADY = "not steady"
    CLIENT_LIMITED = "client limited"
    BUSY_MACHINE = "busy machine"
    UNEVEN_CPUS = "uneven CPUs"
    WIDE_INTERVAL = "wide interval"
    FEW_BLOCKS = "few blocks"
    AA_EXCLUDES_ONE = "A/A excludes 1"
    LINK_NOT_AS_ASKED = "link not as asked"
    CONTROL_MISSED = "control missed"
    DISTURBED = "disturbed"


class Spread(Part):
    """Spread of the baseline's trials: largest over smallest, at least 1."""

    qps: float
    cpu_per_query: float | None


@dataclass(frozen=True)
class Machine:
    """Load of the machine. None: unknown."""

    cpus: int | None
    others_cpus: float | None
    """CPUs that others used, median over trials."""
    cpu_scatter: float | None = None


def machine_cpus(run: Run) -> int | None:
    """CPUs of the machine. None: not in the run file."""
    return next((v for k in ("cpu_count", "cpus") if isinstance(v := run.info.environment.get(k), int)), None)


def busy_machine(loads: Sequence[MachineLoad], machine: Machine, connections: int) -> bool:
    """Whether the median trial shows other programs at work: CPUs in use by them, stolen time, or more runnable tasks than our own. In
    files that do not record the CPU use of other programs: waits for a disk.

    CPU pressure is reported but not judged here: our own client and server on the same CPU cause just as much of it.
    """
    if not loads:
        return False
    steal = median(load.steal_share or 0.0 for load in loads)
    io = median(load.psi_io_some_share or 0.0 for load in loads)
    average = median(load.load_average_1m for load in loads)
    # At most client, server and two forwarders are runnable for each connection, and one link thread each way.
    cpus = machine.cpus
    others = cpus is not None and average > LOAD_PER_CPU * cpus + connections
    if cpus is not None and machine.others_cpus is not None:
        others = others or machine.others_cpus > OTHERS_SHARE * cpus
    elif all(load.busy_cpus is None for load in loads):
        others = others or io >= IO_PRESSURE_SHARE
    return steal >= STEAL_SHARE or others


def client_limited(trials: Sequence[Measured]) -> bool:
    """Whether the engine's busiest thread was on a CPU for all but 5 % of the median trial."""

    def share(trial: Measured) -> float:
        return max((cpu.busiest_thread_ns for cpu in trial.cpu if cpu.role == "client"), default=0) / trial.elapsed_ns

    return bool(trials) and median(share(trial) for trial in trials) >= CLIENT_BUSY_SHARE


def not_steady(trials: Sequence[Measured]) -> bool:
    """Whether throughput drifts: second over first half of each trial, over all trials, because one trial's seconds prove nothing."""
    drifts = []
    for trial in trials:
        rates = [slice_.transactions / slice_.length_ns for slice_ in trial.intervals if slice_.length_ns]
        middle = len(rates) // 2
        first, second = sum(rates[:middle]), sum(rates[-middle:])
        if len(rates) >= MIN_INTERVALS and first > 0 and second > 0:
            drifts.append(second / first)
    if len(drifts) < FEW_BLOCKS:
        return False
    drift = judge_ratio(drifts).quoted
    return excludes_one(drift) and abs(math.log(drift.value)) > math.log1p(DRIFT_SHARE)


def ratio_warnings(judged: RatioJudgement, target: float) -> list[Warning]:
    width = half_width(judged.quoted)
    found = []
    if judged.contaminated:
        found.append(Warning.CONTAMINATED_BLOCKS)
    if width is not None and width > target:
        found.append(Warning.WIDE_INTERVAL)
    if judged.blocks < FEW_BLOCKS:
        found.append(Warning.FEW_BLOCKS)
    return found


def arm_warnings(trials: Sequence[Measured], link: LinkFacts, shift: float | None, *, is_load: bool) -> list[Warning]:
    """Warnings about an arm. `shift`: relative change of the figure due to a deviating RTT; `is_load`: all load is our engine's."""
    found = []
    if not_steady(trials):
        found.append(Warning.NOT_STEADY)
    if is_load and client_limited(trials):
        found.append(Warning.CLIENT_LIMITED)
    if not link.as_requested or abs(shift or 0.0) > SHIFT_SHARE:
        found.append(Warning.LINK_NOT_AS_ASKED)
    return found


def session_warnings(
    same: Sequence[Estimate], missed: bool, loads: Sequence[MachineLoad], machine: Machine, threads: int
) -> list[Warning]:
    """Warnings about a whole run. `same`: ratios of arms measured twice; `missed`: a control did not recover its known effect."""
    found = []
    if any(map(excludes_one, same)):
        found.append(Warning.AA_EXCLUDES_ONE)
    if missed:
        found.append(Warning.CONTROL_MISSED)
    if busy_machine(loads, machine, threads):
        found.append(Warning.BUSY_MACHINE)
    if (machine.cpu_scatter or 0.0) >= CPU_SCATTER_SHARE:
        found.append(Warning.UNEVEN_CPUS)
    return found


MEANING = {
    Warning.CONTAMINATED_BLOCKS: "the mean and the rank estimate disagree, so some blocks were disturbed; the rank estimate is quoted",
    Warning.NOT_STEADY: "throughput changed during the trials, so a longer warm-up is needed",
    Warning.CLIENT_LIMITED: "the load generator's busiest thread was fully busy, so the figure describes it, not the path",
    Warning.BUSY_MACHINE: "other programs used CPUs during the run, which distorts times more than CPU ratios",
    Warning.UNEVEN_CPUS: "the CPU time of the same work varied between trials, which widens all intervals; other guests of the host "
    "or the clock frequency may be the cause",
    Warning.WIDE_INTERVAL: "wider than requested; more blocks would narrow it",
    Warning.FEW_BLOCKS: f"fewer than {FEW_BLOCKS} blocks, so intervals may be too narrow",
    Warning.DISTURBED: "every block had a void trial, so the first ones are shown for the cells that were good in them, which favours "
    "paths over the link; run again on a quieter machine",
    Warning.AA_EXCLUDES_ONE: "the same path differs under two names, so effects of that size are not resolved; run again",
    Warning.LINK_NOT_AS_ASKED: "the link's measured RTT differs from the requested one, or, between hosts, from that before the run",
    Warning.CONTROL_MISSED: "the interval of a known effect excludes its true size (by chance in one of 20 runs), so do not trust "
    "effects of the link that are as small",
}
"""Warnings as clauses, for every report."""


def baseline_spread(table: TrialTable) -> Spread | None:
    """Largest over smallest of the baseline's trials: it is one path throughout, so that differences are due to the machine."""
    trials = table.measured(table.baseline.name) if table.baseline else []

    def spread(value: Value) -> float | None:
        found = [v for trial in trials if (v := value(trial))]
        return max(found) / min(found) if len(found) > 1 else None

    speed = spread(table.rate)
    return None if speed is None else Spread(qps=speed, cpu_per_query=spread(table.path_cpu_us))


def cpu_scatter(table: TrialTable) -> float | None:
    """Relative standard deviation, between trials, of a cell's CPU time per operation: the median cell's. None: too few trials."""
    found = []
    # Where something breaks, an outage of random length is a part of the trial.
    for arm in (arm for arm in table.run.info.arms if not breaks(arm.factors)):
        costs = [cost for trial in table.measured(arm.name) if (cost := table.path_cpu_us(trial))]
        if len(costs) >= MIN_BLOCKS:
            found.append(stdev(costs) / fmean(costs))
    return median(found) if found else None
