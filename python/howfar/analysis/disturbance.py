"""Trials in which other programs used CPUs: how many, how much, which programs, and what the ratios are without these blocks.

A trial is judged by the CPUs that others used in its window, which depend neither on its result nor on its arm. A median over trials
would hide what disturbs fewer than half of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from howfar.analysis.cells import CellSummary
from howfar.analysis.diagnostics import MAX_OTHER_PROGRAMS_SHARE
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, judge_ratio
from howfar.stats.trials import TrialTable, others_cpus_in_trial
from howfar.store.records import ArmRole, Trial


class DisturbingProgram(Part):
    name: str
    pids: tuple[int, ...]
    trials: int
    """Disturbed trials in which it was one of the largest users of CPU time."""
    max_cpus: float


class Disturbance(Part):
    """What other programs did during a run."""

    trials: int
    """Disturbed trials: others used more than a tenth of the machine's CPUs."""
    of: int
    """Trials in which the CPUs that others used are known."""
    max_cpus: float
    machine_cpus: int
    blocks: tuple[int, ...]
    """Blocks with a disturbed trial."""
    programs: tuple[DisturbingProgram, ...]
    """The one in most trials first. Empty: names were not recorded, or a program ended too soon to be seen."""
    quiet_ratios: dict[str, Estimate]
    """Ratios without these blocks, by arm, where they differ from those of all blocks by more than both intervals hold."""


def find_disturbance(
    table: TrialTable,
    cells: Sequence[CellSummary],
    machine_cpus: int | None,
    without_blocks: Callable[[frozenset[int]], TrialTable],
) -> Disturbance | None:
    """None: no trial was disturbed, or it is not known."""
    if machine_cpus is None:
        return None
    known = [(trial, cpus) for trial in table.run.trials if (cpus := others_cpus_in_trial(trial)) is not None]
    disturbed = [(trial, cpus) for trial, cpus in known if cpus > MAX_OTHER_PROGRAMS_SHARE * machine_cpus]
    if not disturbed:
        return None
    blocks = frozenset(trial.block for trial, _ in disturbed)
    return Disturbance(
        trials=len(disturbed),
        of=len(known),
        max_cpus=max(cpus for _, cpus in disturbed),
        machine_cpus=machine_cpus,
        blocks=tuple(sorted(blocks)),
        programs=_programs([trial for trial, _ in disturbed]),
        quiet_ratios=_quiet_ratios(without_blocks(blocks), cells),
    )


def _programs(trials: Sequence[Trial]) -> tuple[DisturbingProgram, ...]:
    uses = defaultdict(list)
    for trial in trials:
        for program in trial.receipt.programs or ():
            uses[program.name].append((trial.number, program))
    programs = [
        DisturbingProgram(
            name=name,
            pids=tuple(dict.fromkeys(program.pid for _, program in found)),
            trials=len({number for number, _ in found}),
            max_cpus=max(program.cpus for _, program in found),
        )
        for name, found in uses.items()
    ]
    return tuple(sorted(programs, key=lambda program: (-program.trials, -program.max_cpus)))


def _quiet_ratios(quiet: TrialTable, cells: Sequence[CellSummary]) -> dict[str, Estimate]:
    baseline = next((cell.arm for cell in cells if cell.role is ArmRole.BASELINE), None)
    ratios = {}
    for cell in cells:
        blocks = [] if baseline in (None, cell.arm) else quiet.block_ratios(cell.arm, str(baseline))
        if cell.ratio is None or len(blocks) < MIN_BLOCKS:
            continue
        ratio = judge_ratio(blocks).reported
        if not _holds(cell.ratio, ratio.value) or not _holds(ratio, cell.ratio.value):
            ratios[cell.arm] = ratio
    return ratios


def _holds(interval: Estimate, value: float) -> bool:
    return interval.low is None or interval.high is None or interval.low <= value <= interval.high
