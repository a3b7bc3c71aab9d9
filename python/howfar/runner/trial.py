"""One trial: open the path, run the load, check the receipt. Any failure makes the trial void, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    Event,
    Finished,
    Measuring,
)
from howfar.contract.receipt import SpeedReceipt, TrialReceipt
from howfar.contract.server_receipt import SessionReceipt
from howfar.contract.violation import MAX_TEXT_CHARS, Violation, join_sentences, violation
from howfar.engine.run_load import run_load
from howfar.errors import EngineError, LabError
from howfar.other_programs import OtherPrograms, Programs, ProgramsInTrial
from howfar.plan.cells import stream_seed
from howfar.plan.factor import FactorLevels
from howfar.plan.types import Plan
from howfar.runner.loads import prepare_load
from howfar.runner.loads.load import Measure, TrialLoad
from howfar.runner.stopping import Slot
from howfar.slices import collect
from howfar.store.records import (
    Arm,
    FaultRecord,
    MachineLoad,
    Measured,
    Trial,
    TrialStatus,
    Window,
)
from howfar.testbed import Testbed, TrialEnvironment, WindowWatch


class Watch(Protocol):
    """Measures the machine's load from construction until `finish`."""

    def finish(self) -> MachineLoad: ...


@dataclass(frozen=True)
class Instruments:
    """The functions that use the engine and the clocks. Tests replace them with fakes."""

    measure: Measure = run_load
    watch: Callable[[], Watch | None] = lambda: None
    programs: Callable[[], Programs | None] = lambda: None
    measure_speed: Callable[[], dict[int, int]] = dict
    """Measures the speed of the CPUs: the CPU time of a piece of work in ns, by CPU. Empty: not measured."""
    waits: bool = True
    """Whether trials wait for other programs, and are repeated if these disturb them."""
    facts: Callable[[], RunEnvironment] = RunEnvironment
    """Facts about the programs and the boot, for the run file."""
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    unix_ns: Callable[[], int] = time.time_ns


@dataclass
class TrialResults:
    """Results of a trial so far. They are kept even if the trial fails."""

    measured: Measured | None = None
    receipt: TrialReceipt = field(default_factory=TrialReceipt)
    load: MachineLoad | None = None
    window: Window | None = None
    fault: FaultRecord | None = None
    violations: tuple[Violation, ...] = ()
    """Any makes the trial void."""
    speed_after_ns: dict[int, int] = field(default_factory=dict)
    """The CPU time of the piece of work after the window, by CPU."""

    def note_other_programs(self, in_trial: ProgramsInTrial) -> None:
        """Record what other programs did, and make the trial void if they disturbed it, whatever else went wrong meanwhile."""
        if in_trial.programs is not None:
            self.receipt.programs = in_trial.programs
        if in_trial.quiet is not None:
            flags = {"is_disturbed": in_trial.were_busy, "is_repeated": in_trial.why_repeated is not None}
            self.receipt.quiet = in_trial.quiet.model_copy(update=flags)
            if in_trial.why_repeated is not None:
                self.violations = (in_trial.why_repeated, *self.violations)


@dataclass(frozen=True)
class StartedTrial:
    """A trial whose environment and load are ready. The measurement fills in its `results`."""

    slot: Slot
    arm: Arm
    plan: Plan
    seed: int
    load: TrialLoad[Any]
    environment: TrialEnvironment
    instruments: Instruments
    on_event: Callable[[Event], None]
    results: TrialResults

    def watch_machine(self, on_event: Callable[[Event], None] | None = None) -> Callable[[Event], None]:
        """A receiver of the load's events, which watches the machine in the measured window only: starting a server is load too. It
        passes them to `on_event`; by default, to the trial's own receiver."""
        watch: Watch | None = None
        pass_on = self.on_event if on_event is None else on_event

        def note_event(event: Event) -> None:
            nonlocal watch
            if isinstance(event, Measuring):
                watch = self.instruments.watch()
            elif isinstance(event, Finished):
                self.results.load = watch.finish() if watch is not None else None
                self.results.speed_after_ns = self.instruments.measure_speed()
            pass_on(event)

        return note_event


@dataclass(frozen=True)
class Measurement:
    """A way to measure some cells that is not a plain window of load. A slice registers it in its module `load`."""

    applies: Callable[[FactorLevels], bool]
    """Whether the trials of this cell are measured in this way."""
    measure: Callable[[StartedTrial], None]
    """Measures a trial. Raises LabError, EngineError, which make the trial void."""


def run_trial(
    number: int,
    slot: Slot,
    arm: Arm,
    plan: Plan,
    seed: int,
    laboratory: Testbed,
    instruments: Instruments,
    on_event: Callable[[Event], None],
    others: OtherPrograms | None = None,
) -> Trial:
    """Measure one arm once. LabError and EngineError make the trial void; every other error propagates.

    `others`: decides whether the trial waits for other programs, and whether it is void because of them. None: they are only watched.
    """
    started, others = instruments.unix_ns(), others or OtherPrograms(instruments.programs)
    in_trial: ProgramsInTrial | None = None
    results, speed_before_ns = TrialResults(), {}
    try:
        with laboratory.trial_environment(arm.factors) as environment:
            load = prepare_load(plan, arm, environment, stream_seed(seed, slot.block))
            # Looking at all processes takes CPU time, so it is done before the load and after it, warm-up included.
            others.begin_trial()
            speed_before_ns = instruments.measure_speed()
            trial = StartedTrial(slot, arm, plan, seed, load, environment, instruments, on_event, results)
            try:
                _measure(trial)
            finally:
                in_trial = others.end_trial()
    except (LabError, EngineError) as error:
        results.violations = (violation(error.id, message=error.message),)
    if in_trial is not None:
        results.note_other_programs(in_trial)
    if speed_before_ns and results.speed_after_ns:
        results.receipt.speed = SpeedReceipt(before_ns=speed_before_ns, after_ns=results.speed_after_ns)
    void_reason = join_sentences(results.violations)[:MAX_TEXT_CHARS] or None
    return Trial(
        number=number,
        block=slot.block,
        position=slot.position,
        attempt=slot.attempt,
        repetition=slot.repetition,
        arm=arm.name,
        status=TrialStatus.VOID if results.violations else TrialStatus.OK,
        void_reason=void_reason,
        violations=results.violations,
        started_unix_ns=started,
        ended_unix_ns=instruments.unix_ns(),
        measured=results.measured,
        receipt=results.receipt,
        load=results.load,
        window=results.window,
        fault=results.fault,
    )


def _measure(trial: StartedTrial) -> None:
    """Measure a trial as a slice has registered, or in a plain window. Raises LabError, EngineError."""
    cell = trial.arm.factors
    measure = next((each.measure for each in _measurements() if each.applies(cell)), _measure_window)
    measure(trial)


@cache
def _measurements() -> tuple[Measurement, ...]:
    """The slices' measurements. Collected when first needed, because the slices' modules import this one."""
    return collect("load", "MEASUREMENTS", Measurement)


def _measure_window(trial: StartedTrial) -> None:
    """Measure a window of load, during which nothing else happens."""
    load, environment, results = trial.load, trial.environment, trial.results
    window_watch: WindowWatch | None = None

    def note_event(event: Event) -> None:
        nonlocal window_watch
        if isinstance(event, Measuring):
            window_watch = environment.watch(load.job.measure_ns)
        trial.on_event(event)

    measure = trial.instruments.measure
    try:
        try:
            with load.run_alongside(measure):
                outcome = measure(load.job, environment.client, trial.watch_machine(note_event))
        finally:  # before any other query: the watch's thread and the environment share one connection to the server
            if window_watch is not None:
                results.window = window_watch.finish()
    except EngineError as error:
        raise _find_cause(error, environment) from error
    session = outcome.ready.receipt
    results.measured = load.make_figures(outcome)
    results.receipt = TrialReceipt(session=SessionReceipt.from_engine(session))
    collected = environment.collect_receipt(session, load.collect_facts(outcome))
    results.receipt = results.receipt.updated(collected.receipt)
    checked = load.check(outcome)
    results.receipt = results.receipt.updated(checked.receipt)
    results.violations = (*collected.violations, *checked.violations)
    if not results.violations and results.measured.transactions == 0:
        results.violations = (violation("nothing-measured", unit=load.unit),)


def _find_cause(error: EngineError, environment: TrialEnvironment) -> LabError | EngineError:
    """The cause of a failure. When a server or a forwarder dies, the engine only sees a broken connection."""
    try:
        environment.collect_receipt(None)
    except LabError as cause:
        message, _, log = cause.message.partition("\n")
        if log:  # a reason is one short line, so the sentence that announces the log is dropped too
            message = message.rpartition(". ")[0] or message
        return LabError(f"{message}; the engine said: {error.message}", cause.advice)
    return error
