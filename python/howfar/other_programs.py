"""Other programs on this machine: waiting until they are quiet, and finding the trials that they disturbed.

The rule uses only the CPU time of processes outside howfar, which depends neither on a trial's result nor on its arm:

1. Programs are busy if those with at least `lab.programs.MIN_CPUS` used more than `MAX_QUIET_SHARE` of the machine's CPUs together.
2. Each trial waits until they are quiet for `SAMPLE_S`, but at most `MAX_WAIT_S`. Each wait in a row that ends without a quiet
   moment halves this limit, so a machine that is always busy costs little time.
3. A trial that began quiet and during which programs were busy is void, and measured again in its place in the block; after
   `MAX_REPEATS` repetitions its place stays empty in this block. A trial that did not begin quiet is not repeated, because a
   repetition would probably be no better.
4. When waits and repeated trials have taken as long as the time budget, there are no more of them. A run that may not exceed its
   budget spends a smaller part of it on them, see `runner.stopping.max_lost_ns`.

Trials that were disturbed and not repeated are left out later if they are few, see `store.records.disturbed_trials`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from howfar.contract.receipt import ProgramUse, QuietReceipt
from howfar.contract.violation import Violation, violation
from howfar.units import counted

MAX_QUIET_SHARE = 0.05
"""Other programs are quiet up to this share of the machine's CPUs: the services of an idle system use less, and a trial in which
programs used just as much is slowed by about as much as the target width of a quick run."""
NO_WAIT = "HOWFAR_NO_WAIT"
"""Environment variable: if it is set, nothing waits for other programs, and nothing is measured again because of them."""
SAMPLE_S = 0.1
"""Programs must be quiet for this long before a trial. The kernel counts their CPU time in steps of 10 ms."""
MAX_WAIT_S = 30.0
"""Maximum wait before a trial: many builds and test runs are shorter. Jobs that take longer are not waited for."""
MAX_REPEATS = 3
"""Maximum number of repetitions of a disturbed trial in a block."""
MAX_LOST_SHARE = 1.0
"""Maximum time for waits and repeated trials, as a share of the time budget."""


def are_busy(programs: Sequence[ProgramUse], machine_cpus: int | None = None) -> bool:
    """Whether these programs together used more CPU time than those of a quiet machine. `machine_cpus`: None for this machine."""
    return sum(program.cpus for program in programs) > MAX_QUIET_SHARE * _cpus(machine_cpus)


def busiest(
    programs: Sequence[ProgramUse], machine_cpus: int | None = None, *, at_most: bool = False, with_pid: bool = True
) -> str:
    """The program that used the most CPU time: `cargo (pid 4711) used 1.0 of 2 CPUs`. `at_most`: it used up to so much."""
    used = "used up to" if at_most else "used"
    name = program_name(programs[0].name, *([programs[0].pid] if with_pid else []))
    return f"{name} {used} {programs[0].cpus:.1f} of {counted(_cpus(machine_cpus), 'CPU')}"


def program_name(name: str, *pids: int) -> str:
    """`cargo (pid 4711)`; the name alone without a PID, or with several."""
    return f"{name} (pid {pids[0]})" if len(pids) == 1 else name


def _cpus(machine_cpus: int | None) -> int:
    return machine_cpus or os.cpu_count() or 1


class Programs(Protocol):
    """Names the programs that use CPU time from construction until `finish`."""

    def finish(self) -> tuple[ProgramUse, ...] | None: ...


StartWatch = Callable[[], Programs | None]
"""Starts to watch other programs. None: they cannot be seen."""


def waits_for_programs() -> bool:
    """Whether what is measured waits for other programs, and is measured again if they disturb it."""
    return not os.environ.get(NO_WAIT)


@dataclass(frozen=True)
class Waiting:
    """How `OtherPrograms` waits. Tests replace it."""

    sleep: Callable[[float], None] = time.sleep
    monotonic_ns: Callable[[], int] = time.monotonic_ns


@dataclass(frozen=True)
class ProgramsInTrial:
    """What other programs did in a trial. `programs` is None if they cannot be seen, `quiet` likewise."""

    programs: tuple[ProgramUse, ...] | None
    quiet: QuietReceipt | None

    @property
    def were_busy(self) -> bool:
        return are_busy(self.programs or ())

    @property
    def why_repeated(self) -> Violation | None:
        """The reason why the trial is measured again. None: it is not."""
        if not self.were_busy or self.quiet is None or not self.quiet.is_quiet:
            return None
        busiest_program = (self.programs or ())[0]
        return violation(
            "disturbed-by",
            program=program_name(busiest_program.name, busiest_program.pid),
            used_cpus=busiest_program.cpus,
            machine_cpus=_cpus(None),
        )


class OtherPrograms:
    """Watches other programs before and during trials. `start_watch` returns None if they cannot be seen; then nothing waits and no
    trial is repeated. `applies_rule=False`: they are named, and nothing else follows."""

    may_wait = True
    """Whether the next trial waits for them, and is repeated if they disturb it."""
    time_left_ns: float = math.inf
    """Maximum time of the next wait, besides `MAX_WAIT_S`."""

    def __init__(
        self,
        start_watch: StartWatch,
        applies_rule: bool = False,
        on_wait: Callable[[str], None] = lambda program: None,
        waiting: Waiting | None = None,
    ) -> None:
        self._start_watch = start_watch
        self._applies_rule = applies_rule
        self._on_wait = on_wait
        self._waiting = waiting or Waiting()
        self._watch: Programs | None = None
        self._quiet: QuietReceipt | None = None
        self._max_wait_ns = MAX_WAIT_S * 1e9

    def begin_trial(self) -> None:
        """Wait until other programs are quiet, if that is allowed; then watch them during the trial."""
        if self._applies_rule:
            self._quiet = self._wait() if self.may_wait else QuietReceipt(waited_ns=0, is_quiet=False)
        self._watch = self._start_watch()

    def _wait(self) -> QuietReceipt | None:
        began_ns: int | None = None
        while True:
            if (watch := self._start_watch()) is None:
                return None
            self._waiting.sleep(SAMPLE_S)
            programs, now_ns = watch.finish(), self._waiting.monotonic_ns()
            waited_ns = 0 if began_ns is None else now_ns - began_ns
            if programs is None:
                return None
            is_quiet = not are_busy(programs)
            if is_quiet or waited_ns >= min(self._max_wait_ns, self.time_left_ns):
                self._max_wait_ns = MAX_WAIT_S * 1e9 if is_quiet else self._max_wait_ns / 2
                return QuietReceipt(waited_ns=waited_ns, is_quiet=is_quiet)
            began_ns = now_ns if began_ns is None else began_ns
            self._on_wait(busiest(programs))

    def end_trial(self) -> ProgramsInTrial:
        """What they did during the trial."""
        programs = None if self._watch is None else self._watch.finish()
        return ProgramsInTrial(programs, None if programs is None else self._quiet)
