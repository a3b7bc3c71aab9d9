"""Whether this machine is quiet enough to measure: other programs' CPU time, steal, and how much the speed of its CPUs scatters.

The speed is the CPU time of a fixed piece of work. Start reading at `measure`.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event

from howfar.analysis.diagnostics import MAX_CPU_SCATTER, MAX_STEAL_SHARE, is_much_by_others
from howfar.contract.receipt import ProgramUse
from howfar.findings import Texts, fill, join, note
from howfar.lab.cpu_speed import MAX_CPUS, time_piece
from howfar.lab.environment import LoadWatch, machine_facts
from howfar.lab.programs import MIN_CPUS, PID_OF_INIT, watching_programs
from howfar.other_programs import are_busy, program_name
from howfar.plan.estimate import format_time
from howfar.plan.load import load_plan
from howfar.report import document as blocks
from howfar.report.document import AdviceBlock, Document, what_to_do
from howfar.stats.estimate import Described
from howfar.stats.intervals import t_quantile
from howfar.stats.trials import speed_scatter
from howfar.units import counted

MAX_S = 3.0
"""Maximum duration of a check."""
PLAN = "paths"
"""The plan whose blocks and time a quick and a full run have here."""
OWN_SCATTER = 0.02
"""Relative standard deviation of a trial from other causes than the speed of the CPUs, at least. With it, a quick run on a quiet
machine has ±2.6 %; those of `paths` had ±3 to ±5 %."""
_PAUSE_PER_WORK = 9
"""Pause after a round of pieces, relative to their CPU time: the check uses a tenth of a CPU."""
_MIN_PAUSE_S = 0.02
_MAX_NAMED = 3
"""Maximum number of programs that a sentence names."""


class Obstacle(StrEnum):
    """What makes this machine unfit to measure."""

    PROGRAMS = "programs"
    """Programs used CPUs, and can be named."""
    UNSEEN = "unseen"
    """CPUs were in use by what cannot be named: the kernel, short-lived processes, or those of other accounts or containers."""
    STEAL = "steal"
    """The hypervisor ran other guests."""
    SPEED = "speed"
    """The speed of the CPUs scatters, although nothing else is known to disturb them."""
    UNKNOWN = "unknown"
    """Whether other programs used CPUs cannot be seen."""


class ExpectedRun(Described):
    """What a run would measure on this machine."""

    blocks: int
    time_budget_ns: int
    half_width: float
    """Half-width of the 95 % interval of a ratio, as a share, if nothing but the CPUs' speed scatters more than on a quiet machine. It
    is a lower estimate: of nine recorded runs seven were wider, two of them more than four times."""


class QuietCheck(Described):
    """How quiet this machine was during a few seconds, and what a run would therefore measure."""

    watched_s: float
    cpus: int
    programs: tuple[ProgramUse, ...] | None
    """Other programs with at least 0.05 CPUs, the busiest first; null if processes cannot be seen."""
    others_cpus: float | None
    """CPUs that were in use, without howfar's own work; null if the kernel does not count it."""
    steal_share: float | None
    """Share of the CPU time that the hypervisor gave to other guests."""
    speed_scatter: float | None
    """Relative standard deviation of the CPU time of the same piece of work on the same CPU; null if there were too few pieces."""
    pieces: int
    """Number of pieces of work on all CPUs."""
    obstacle: Obstacle | None
    """What makes this machine unfit to measure; null if it is quiet."""
    quick: ExpectedRun | None
    """A quick run of the plan `paths`; null if the scatter is unknown."""
    full: ExpectedRun | None
    governor: str | None
    """What controls the clock frequency; null if the kernel does not report it, as on most virtual machines."""


# ---------------------------------------------------------------- the readings


@dataclass(frozen=True)
class PieceTimer:
    """What touches the clock and the CPUs. Tests replace it."""

    do_piece: Callable[[int], int | None]
    """Does the piece of work on a CPU; returns its CPU time in ns, None if this CPU cannot be used."""
    sleep: Callable[[float], object] = time.sleep
    """Sleeps for seconds; a true result ends the check."""
    monotonic_s: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class QuietReadings:
    """What was read during a check. None: unknown."""

    watched_s: float
    cpus: int
    programs: tuple[ProgramUse, ...] | None
    busy_cpus: float | None
    own_cpus: float
    steal_share: float | None
    governor: str | None
    pieces_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """CPU time of each piece, by CPU."""


def measure(seconds: float, sleep: Callable[[float], object] = time.sleep) -> QuietCheck:
    """Watch this machine for `seconds`, at most `MAX_S`, and judge it. A true result of `sleep` ends the check."""
    usable = sorted(os.sched_getaffinity(0))
    try:
        with watching_programs() as start_watch:
            watch, load, start_s, own_s = start_watch(), LoadWatch(), time.monotonic(), time.process_time()
            pieces_ns = time_pieces(usable[:MAX_CPUS], min(seconds, MAX_S), PieceTimer(time_piece, sleep))
            watched_s, own_s = max(time.monotonic() - start_s, 1e-6), time.process_time() - own_s
            machine_load, programs = load.finish(), None if watch is None else watch.finish()
    finally:
        with suppress(OSError):  # where pieces could not change it either
            os.sched_setaffinity(0, usable)
    return judge(
        QuietReadings(
            watched_s=watched_s,
            cpus=os.cpu_count() or 1,
            programs=programs,
            busy_cpus=machine_load.busy_cpus,
            own_cpus=own_s / watched_s,
            steal_share=machine_load.steal_share,
            governor=machine_facts().governor,
            pieces_ns=pieces_ns,
        )
    )


@contextmanager
def measuring(seconds: float) -> Iterator[Callable[[], QuietCheck]]:
    """Measure while the block runs; the block calls the given function for the result. If the block fails, the check ends early."""
    is_over = Event()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(measure, seconds, is_over.wait)
        try:
            yield result.result
        finally:
            is_over.set()


def time_pieces(cpus: Sequence[int], seconds: float, timer: PieceTimer) -> dict[int, list[int]]:
    """Do the piece of work on each CPU in turn, with pauses, for `seconds`; returns the CPU times by CPU."""
    end_s = timer.monotonic_s() + seconds
    pieces_ns: dict[int, list[int]] = defaultdict(list)
    while True:
        work_ns = 0
        for cpu in cpus:
            piece_ns = timer.do_piece(cpu) if timer.monotonic_s() < end_s else None
            if piece_ns is not None:
                pieces_ns[cpu].append(piece_ns)
                work_ns += piece_ns
        left_s = end_s - timer.monotonic_s()
        if left_s <= 0 or timer.sleep(min(max(_PAUSE_PER_WORK * work_ns / 1e9, _MIN_PAUSE_S), left_s)):
            return dict(pieces_ns)


# ---------------------------------------------------------------- the judgement


def judge(readings: QuietReadings) -> QuietCheck:
    """Find the obstacle, and what runs would measure."""
    scatter = speed_scatter(readings.pieces_ns)
    others_cpus = None if readings.busy_cpus is None else max(0.0, readings.busy_cpus - readings.own_cpus)
    return QuietCheck(
        watched_s=round(readings.watched_s, 3),
        cpus=readings.cpus,
        programs=readings.programs,
        others_cpus=others_cpus,
        steal_share=readings.steal_share,
        speed_scatter=scatter,
        pieces=sum(map(len, readings.pieces_ns.values())),
        obstacle=_find_obstacle(readings, others_cpus, scatter),
        quick=None if scatter is None else expect_run(scatter, quick=True),
        full=None if scatter is None else expect_run(scatter, quick=False),
        governor=readings.governor,
    )


def expect_run(scatter: float, *, quick: bool) -> ExpectedRun:
    """What a run of `PLAN` would measure if the speed scatters like this: a t interval of a ratio for each block."""
    timing = load_plan(PLAN, quick=quick).plan.timing
    blocks = timing.min_blocks if quick else timing.max_blocks
    return ExpectedRun(
        blocks=blocks,
        time_budget_ns=timing.time_budget_ns,
        half_width=math.expm1(t_quantile(blocks - 1) * ratio_scatter(scatter) / math.sqrt(blocks)),
    )


def ratio_scatter(scatter: float) -> float:
    """Standard deviation of the logarithm of the ratio of two trials, which has the scatter of both."""
    return math.sqrt(2 * (scatter**2 + OWN_SCATTER**2))


def _find_obstacle(readings: QuietReadings, others_cpus: float | None, scatter: float | None) -> Obstacle | None:
    if are_busy(readings.programs or (), readings.cpus):
        return Obstacle.PROGRAMS
    if others_cpus is not None and is_much_by_others(others_cpus, readings.cpus):
        return Obstacle.UNSEEN
    if (readings.steal_share or 0.0) >= MAX_STEAL_SHARE:
        return Obstacle.STEAL
    if (scatter or 0.0) >= MAX_CPU_SCATTER:
        return Obstacle.SPEED
    return Obstacle.UNKNOWN if readings.programs is None and others_cpus is None else None


# ---------------------------------------------------------------- the words

QUESTION = "Can this machine give answers?"
CAUSES: Texts = {
    Obstacle.PROGRAMS: "{programs} used {use:.1f} of {cpus:of CPU}",
    Obstacle.UNSEEN: "unnamed programs used {others:.1f} of {cpus:of CPU}",
    Obstacle.STEAL: "other virtual machines took {steal:share} of its CPU time",
    Obstacle.SPEED: "its speed varied by {scatter:share}",
    Obstacle.UNKNOWN: "other programs cannot be seen",
}
EXPECTED: Texts = {
    "quick": "in {time}, a quick run measures ratios to ±{width:share} at best",
    "full": "this is a lower estimate, from the speed of the CPUs alone; for a full run of at most {time} it is ±{width:share}",
    "unknown": "how well it measures ratios is unknown",
}
EVIDENCE: Texts = {
    "watched": "in {seconds:.1f} s, {seen}",
    "programs": "{programs} of {cpus:of CPU}",
    "none": "no other program used as much as {least} of {cpus:of CPU}",
    "hidden": "other programs could not be seen",
    "speed": "the speed of the CPUs varied by {scatter:share}",
}
STEPS: Texts = {
    Obstacle.PROGRAMS: "stop {programs} of {cpus:of CPU}, before you measure",
    "kept programs": "measure on another machine: here {programs} of {cpus:of CPU}",
    Obstacle.UNSEEN: "find the programs that use {others:.1f} of {cpus:of CPU}, with `top` as root, and stop them before you measure",
    Obstacle.STEAL: "measure on a machine that shares its CPUs with no other virtual machine",
    Obstacle.SPEED: "measure on a machine that shares its cores with no other virtual machine, or for longer with `howfar run --full`",
    Obstacle.UNKNOWN: "measure where other programs can be seen in /proc",
    "governor": "set the governor of the clock frequency from {governor} to performance before you measure",
}


def answer(check: QuietCheck) -> str:
    """The answer to `QUESTION` in one sentence."""
    verdict = "yes, it is quiet" if check.obstacle is None else f"not now: {_cause(check)}"
    return note("{verdict}; {expected}", verdict=verdict, expected=_expected(check))


def in_short(check: QuietCheck) -> str:
    """Whether this machine is quiet, what was seen, and what a run would measure, in one sentence."""
    state = "quiet" if check.obstacle is None else "not quiet"
    return note(
        "this machine is {state}: {seen}; {expected}", state=state, seen=_evidence(check), expected=_expected(check)
    )


def step(check: QuietCheck, is_kept: Callable[[ProgramUse], bool] = lambda _: False) -> AdviceBlock | None:
    """What to do before a measurement. None: the machine is quiet. `is_kept`: whether a program must not be stopped."""
    if check.obstacle is None:
        return None
    programs = check.programs or ()
    to_keep = [program for program in programs if program.pid == PID_OF_INIT or is_kept(program)]
    to_stop = [program for program in programs if program not in to_keep]
    name: str = check.obstacle
    if name == Obstacle.PROGRAMS and (are_busy(to_keep, check.cpus) or not to_stop):
        name, text = "kept programs", _name_use(to_keep, " uses", " use")
    else:
        text = _name_use(to_stop, ", which uses", ", which use")
    if name == Obstacle.SPEED and check.governor not in (None, "performance"):
        name = "governor"
    return AdviceBlock(
        note(STEPS[name], programs=text, others=check.others_cpus, cpus=check.cpus, governor=check.governor),
        note("as it is, {expected}", expected=_expected(check)),
    )


def document(check: QuietCheck) -> Document:
    """The check as a document."""
    to_do = step(check)
    certainty = "" if check.full is None else note(EXPECTED["full"], **_run_figures(check.full))
    return Document(
        QUESTION,
        (
            blocks.Answer(answer(check), why=note("{seen}", seen=_evidence(check)), certainty=certainty),
            *what_to_do([to_do] if to_do is not None else []),
        ),
        question=QUESTION,
    )


def _cause(check: QuietCheck) -> str:
    assert check.obstacle is not None, "a quiet machine has no obstacle"
    programs = check.programs or ()
    return fill(
        CAUSES[check.obstacle],
        programs=_join_few([program.name for program in programs]),
        use=sum(program.cpus for program in programs),
        others=check.others_cpus,
        cpus=check.cpus,
        steal=check.steal_share,
        scatter=check.speed_scatter,
    )


def _evidence(check: QuietCheck) -> str:
    if check.programs:
        seen = fill(EVIDENCE["programs"], programs=_name_use(check.programs, " used", " used"), cpus=check.cpus)
    elif check.obstacle is Obstacle.UNSEEN:
        seen = _cause(check)
    else:
        seen = fill(EVIDENCE["hidden" if check.programs is None else "none"], least=MIN_CPUS, cpus=check.cpus)
    clauses = [fill(EVIDENCE["watched"], seconds=check.watched_s, seen=seen)]
    if check.obstacle is Obstacle.STEAL:
        clauses.append(_cause(check))
    if check.speed_scatter is not None:
        clauses.append(fill(EVIDENCE["speed"], scatter=check.speed_scatter))
    return "; ".join(clauses)


def _expected(check: QuietCheck) -> str:
    return EXPECTED["unknown"] if check.quick is None else fill(EXPECTED["quick"], **_run_figures(check.quick))


def _run_figures(run: ExpectedRun) -> dict[str, str | float]:
    return {"time": format_time(run.time_budget_ns), "width": run.half_width}


def _name_use(programs: Sequence[ProgramUse], verb_for_one: str, verb: str) -> str:
    """`cargo (pid 4711) used 0.9`; `cargo (pid 4711) and rustc (pid 4720), which use 1.2`."""
    names = _join_few([program_name(program.name, program.pid) for program in programs])
    return f"{names}{verb_for_one if len(programs) == 1 else verb} {sum(program.cpus for program in programs):.1f}"


def _join_few(names: Sequence[str]) -> str:
    """All names, or two and the number of others: `a, b and 2 others`."""
    if len(names) <= _MAX_NAMED:
        return join(names)
    return join([*names[: _MAX_NAMED - 1], counted(len(names) - _MAX_NAMED + 1, "other")])
