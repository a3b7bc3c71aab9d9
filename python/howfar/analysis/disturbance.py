"""Trials in which other programs used CPUs: how many, how much, which programs, and what the ratios are without these blocks.

A trial is judged by the CPUs that others used in its window, not by its result. These are the CPUs in use minus those of the
trial's own processes, so the kernel's work for a link may be among them. A median over trials would hide a disturbance of
fewer than half of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from howfar.analysis.cells import CellSummary, NoiseFloors
from howfar.analysis.diagnostics import is_much_by_others
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution
from howfar.stats.trials import TrialTable, others_cpus_in_trial
from howfar.store.records import ArmRole, Run, Trial, disturbed_trials, is_repeated

MUCH_DISTURBED_SHARE = 0.25
"""Share of disturbed trials from which a run should be repeated. From there on, in simulations in which programs slow arms
unequally, 95 % intervals contain the true ratio less often."""

MIN_WAITED_S = 1.0
"""Waits that are shorter in all are not reported."""


class DisturbingProgram(Part):
    name: str
    pids: tuple[int, ...]
    """PIDs of its busiest process in each of these trials."""
    trials: int
    """Disturbed trials in which it was one of the largest users of CPU time."""
    max_cpus: float
    share: float
    """Its share of the CPU time of other programs, over all disturbed trials."""


class QuietRatio(Part):
    """A ratio without disturbed blocks."""

    ratio: Estimate
    reference: str
    """The arm that it is relative to."""
    resolution: Resolution


class Disturbance(Part):
    """What other programs did during a run."""

    trials: int
    """Number of disturbed good trials, in which others used more than a tenth of the machine's CPUs."""
    of: int
    """Number of good trials in which the CPUs that others used are known."""
    max_cpus: float
    machine_cpus: int
    blocks: tuple[int, ...]
    """Blocks with a disturbed trial."""
    programs: tuple[DisturbingProgram, ...]
    """Programs, the one with the most CPU time first."""
    are_seen: bool
    """Whether names of programs were recorded. If so and `programs` is empty, the kernel or short-lived processes used the CPUs."""
    quiet_ratios: dict[str, QuietRatio]
    """Ratios without the disturbed blocks, by arm, if their interval does not contain the ratio of all blocks."""

    def figures(self) -> dict[str, str | int | float]:
        """Parameters of the sentences about a disturbance."""
        return {"most": self.max_cpus, "cpus": self.machine_cpus, "disturbed": self.trials, "known": self.of}

    @property
    def is_much(self) -> bool:
        """Whether so many trials were disturbed that the run should be repeated."""
        return self.trials >= MUCH_DISTURBED_SHARE * self.of


class UnusedTrials(Part):
    """Trials that do not count because other programs disturbed them, and waits until these were quiet."""

    repeated: int
    """Number of disturbed trials that were measured again."""
    left_out: int
    """Number of disturbed trials that were not measured again."""
    of: int
    """Number of all trials."""
    waited_s: float
    """Sum of the waits before trials."""
    machine_cpus: int | None
    programs: tuple[DisturbingProgram, ...]
    """Programs in the disturbed trials, the one with the most CPU time first."""


def find_unused(run: Run) -> UnusedTrials | None:
    """Find the trials that do not count because of other programs. None: there are none, and no trial waited for long."""
    numbers = disturbed_trials(run)
    disturbed = [trial for trial in run.trials if is_repeated(trial) or trial.number in numbers]
    places = {_place(trial) for trial in run.trials}
    repeated = sum(_place(trial, repetition=trial.repetition + 1) in places for trial in disturbed)
    waited_s = sum(trial.receipt.quiet.waited_ns for trial in run.trials if trial.receipt.quiet is not None) / 1e9
    if not disturbed and waited_s < MIN_WAITED_S:
        return None
    others_cpus = sum(program.cpus for trial in disturbed for program in trial.receipt.programs or ())
    return UnusedTrials(
        repeated=repeated,
        left_out=len(disturbed) - repeated,
        of=len(run.trials),
        waited_s=waited_s,
        machine_cpus=run.info.environment.cpu_count,
        programs=_programs(disturbed, others_cpus),
    )


def _place(trial: Trial, repetition: int | None = None) -> tuple[int, int, int, int]:
    """The place of a trial in its run, or that of another `repetition` of it."""
    return trial.block, trial.position, trial.attempt, trial.repetition if repetition is None else repetition


def find_disturbance(
    table: TrialTable,
    floors: NoiseFloors,
    cells: Sequence[CellSummary],
    machine_cpus: int | None,
    without_blocks: Callable[[frozenset[int]], TrialTable],
) -> Disturbance | None:
    """Find what other programs did during a run. None if no trial was disturbed, or if that is unknown."""
    if machine_cpus is None:
        return None
    trials = [trial for by_block in table.trials.values() for trial in by_block.values()]
    known = [(trial, cpus) for trial in trials if (cpus := others_cpus_in_trial(trial)) is not None]
    disturbed = [(trial, cpus) for trial, cpus in known if is_much_by_others(cpus, machine_cpus)]
    if not disturbed:
        return None
    blocks = frozenset(trial.block for trial, _ in disturbed)
    return Disturbance(
        trials=len(disturbed),
        of=len(known),
        max_cpus=max(cpus for _, cpus in disturbed),
        machine_cpus=machine_cpus,
        blocks=tuple(sorted(blocks)),
        programs=_programs([trial for trial, _ in disturbed], sum(cpus for _, cpus in disturbed)),
        are_seen=any(trial.receipt.programs is not None for trial, _ in disturbed),
        quiet_ratios=_quiet_ratios(without_blocks(blocks), floors, cells),
    )


def _programs(trials: Sequence[Trial], others_cpus: float) -> tuple[DisturbingProgram, ...]:
    uses_by_program = defaultdict(list)
    for trial in trials:
        for program in trial.receipt.programs or ():
            uses_by_program[program.name].append((trial.number, program))
    by_use = sorted(uses_by_program.items(), key=lambda entry: -sum(program.cpus for _, program in entry[1]))
    return tuple(
        DisturbingProgram(
            name=name,
            pids=tuple(dict.fromkeys(program.pid for _, program in program_uses)),
            trials=len({number for number, _ in program_uses}),
            max_cpus=max(program.cpus for _, program in program_uses),
            share=sum(program.cpus for _, program in program_uses) / others_cpus,
        )
        for name, program_uses in by_use
    )


def _quiet_ratios(
    undisturbed_table: TrialTable, floors: NoiseFloors, cells: Sequence[CellSummary]
) -> dict[str, QuietRatio]:
    arms, ratios = {arm.name: arm for arm in undisturbed_table.run.info.arms}, {}
    for cell in cells:
        reference = undisturbed_table.compared_reference(arms[cell.arm])
        if reference is None or cell.role is not ArmRole.CONTENDER or cell.ratio is None:
            continue
        compared = floors.ratio(undisturbed_table, cell.arm, reference.name)
        if compared is None:
            continue
        ratio, resolution = compared
        if ratio.low is not None and ratio.high is not None and not ratio.low <= cell.ratio.value <= ratio.high:
            ratios[cell.arm] = QuietRatio(ratio=ratio, reference=reference.name, resolution=resolution)
    return ratios
