"""One trial: open the path, run the load, check the receipt. Any failure makes the trial void, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    Event,
    Finished,
    LoadJob,
    Measuring,
)
from howfar.contract.receipt import ProgramUse, ReplicationReceipt, TrialReceipt
from howfar.engine.run_load import run_load
from howfar.errors import EngineError, LabError
from howfar.plan.cells import stream_seed
from howfar.plan.factors import has_fault
from howfar.plan.types import Plan
from howfar.runner.fault.crash import FaultContext, Replicated, fault_after_ns, run_crash
from howfar.runner.fault.fallback import run_fallback
from howfar.runner.loads import prepare_load
from howfar.runner.loads.load import Measure, TrialLoad
from howfar.runner.stopping import Slot
from howfar.store.records import (
    Arm,
    CrashRecord,
    FallbackRecord,
    MachineLoad,
    Measured,
    Trial,
    TrialStatus,
    Window,
)
from howfar.testbed import Testbed, TrialEnvironment, WindowWatch

MAX_REASON_CHARS = 500
"""Maximum length of a void trial's reason: enough for a message, too little for a log."""


class Watch(Protocol):
    """Measures the machine's load from construction until `finish`."""

    def finish(self) -> MachineLoad: ...


class Programs(Protocol):
    """Names the programs that use CPU time from construction until `finish`."""

    def finish(self) -> tuple[ProgramUse, ...] | None: ...


@dataclass(frozen=True)
class Instruments:
    """The functions that use the engine and the clocks. Tests replace them with fakes."""

    measure: Measure = run_load
    watch: Callable[[], Watch | None] = lambda: None
    programs: Callable[[], Programs | None] = lambda: None
    facts: Callable[[], RunEnvironment] = RunEnvironment
    """Facts about the programs and the boot, for the run file."""
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    unix_ns: Callable[[], int] = time.time_ns


@dataclass
class _TrialResults:
    """Results of a trial so far. They are kept even if the trial fails."""

    measured: Measured | None = None
    receipt: TrialReceipt = field(default_factory=TrialReceipt)
    load: MachineLoad | None = None
    window: Window | None = None
    fault: CrashRecord | FallbackRecord | None = None
    void_reason: str | None = None


def run_trial(
    number: int,
    slot: Slot,
    arm: Arm,
    plan: Plan,
    seed: int,
    laboratory: Testbed,
    instruments: Instruments,
    on_event: Callable[[Event], None],
) -> Trial:
    """Measure one arm once. LabError and EngineError make the trial void; every other error propagates."""
    started, used = instruments.unix_ns(), None
    results = _TrialResults()
    try:
        with laboratory.trial_environment(arm.factors) as environment:
            load = prepare_load(plan, arm, environment, stream_seed(seed, slot.block))
            # Looking at all processes takes CPU time, so it is done before the load and after it, warm-up included.
            programs = instruments.programs()
            try:
                if has_fault(arm.factors):
                    after_ns = fault_after_ns(seed, slot.block, slot.attempt, arm.name, plan.timing.measure_ns)
                    _measure_with_fault(
                        load, str(arm.factors["fault"]), after_ns, environment, instruments, on_event, results
                    )
                else:
                    _measure(load, environment, instruments, on_event, results)
            finally:
                used = None if programs is None else programs.finish()
    except (LabError, EngineError) as error:
        results.void_reason = error.message
    if used is not None:
        results.receipt.programs = used
    return Trial(
        number=number,
        block=slot.block,
        position=slot.position,
        attempt=slot.attempt,
        arm=arm.name,
        status=TrialStatus.OK if results.void_reason is None else TrialStatus.VOID,
        void_reason=None if results.void_reason is None else results.void_reason[:MAX_REASON_CHARS],
        started_unix_ns=started,
        ended_unix_ns=instruments.unix_ns(),
        measured=results.measured,
        receipt=results.receipt,
        load=results.load,
        window=results.window,
        fault=results.fault,
    )


def _measure_with_fault(
    load: TrialLoad[Any],
    fault: str,
    after_ns: int,
    environment: TrialEnvironment,
    instruments: Instruments,
    on_event: Callable[[Event], None],
    results: _TrialResults,
) -> None:
    """Measure an arm with a fault. The engine's window extends beyond the fault; the record of the fault has the losses."""
    assert isinstance(environment, Replicated) and environment.replica_set is not None, (
        "a cell with a fault has replicas"
    )
    if mismatches := environment.precheck().violations:
        raise LabError("; ".join(mismatches))
    replica_set = environment.replica_set
    links = [link.name for link in replica_set.links[: len(replica_set.replicas)]]
    rtt_ns = acknowledgement_rtt_ns(replica_set.facts.rtt_at_rest_ns, links, replica_set.spec.acknowledgements_needed)
    watch = _watch_machine(instruments, on_event, results)
    context = FaultContext(replica_set, environment.client, rtt_ns, instruments.measure, watch)
    assert isinstance(load.job, LoadJob), "a plan with a fault has the workload single_row_inserts"
    is_fallback = fault == "replica-leaves"
    fault_result = run_fallback(context, load.job) if is_fallback else run_crash(context, load.job, fault, after_ns)
    session = fault_result.outcome.ready.receipt
    prechecked = environment.precheck(session)
    replication = (prechecked.receipt.replication or ReplicationReceipt()).updated(fault_result.receipt)
    results.receipt = TrialReceipt(session=session).updated(prechecked.receipt)
    results.receipt.replication = replication
    results.measured, results.fault = load.make_figures(fault_result.outcome), fault_result.record
    if mismatches := (*prechecked.violations, *load.find_mismatches(fault_result.outcome)):
        results.void_reason = "; ".join(mismatches)


def acknowledgement_rtt_ns(
    rtt_at_rest_ns: Mapping[str, int | None], replicas: Sequence[str], acknowledgements: int
) -> int:
    """RTT to the farthest of the nearest replicas that must acknowledge a commit; if none must, to the nearest one. `replicas`: names
    of the links to them. Raises LabError if the RTT of any is unknown."""
    rtts_ns = [rtt_at_rest_ns.get(name) for name in replicas]
    known = sorted(rtt_ns for rtt_ns in rtts_ns if rtt_ns is not None)
    if len(known) < len(rtts_ns):
        name = replicas[rtts_ns.index(None)]
        raise LabError(f"the RTT at rest of the link to {name} is unknown", "Is the machine overloaded?")
    return known[max(acknowledgements, 1) - 1]


def _watch_machine(
    instruments: Instruments, on_event: Callable[[Event], None], results: _TrialResults
) -> Callable[[Event], None]:
    """A receiver of a load's events, which watches the machine in the measured window only: starting a server is load too."""
    watch: Watch | None = None

    def note_event(event: Event) -> None:
        nonlocal watch
        if isinstance(event, Measuring):
            watch = instruments.watch()
        elif isinstance(event, Finished) and watch is not None:
            results.load = watch.finish()
        on_event(event)

    return note_event


def _measure(
    load: TrialLoad[Any],
    environment: TrialEnvironment,
    instruments: Instruments,
    on_event: Callable[[Event], None],
    results: _TrialResults,
) -> None:
    """Measure an arm without a fault."""
    window_watch: WindowWatch | None = None

    def note_event(event: Event) -> None:
        nonlocal window_watch
        if isinstance(event, Measuring):
            window_watch = environment.watch(load.job.measure_ns)
        on_event(event)

    try:
        try:
            with load.run_alongside(instruments.measure):
                outcome = instruments.measure(
                    load.job, environment.client, _watch_machine(instruments, note_event, results)
                )
        finally:  # before any other query: the watch's thread and the environment share one connection to the server
            if window_watch is not None:
                results.window = window_watch.finish()
    except EngineError as error:
        raise _find_cause(error, environment) from error
    session = outcome.ready.receipt
    results.measured = load.make_figures(outcome)
    results.receipt = TrialReceipt(session=session)
    collected = environment.collect_receipt(session, load.collect_facts(outcome))
    results.receipt = results.receipt.updated(collected.receipt)
    checked = load.check(outcome)
    results.receipt = results.receipt.updated(checked.receipt)
    if mismatches := (*collected.violations, *checked.violations):
        results.void_reason = "; ".join(mismatches)
    elif results.measured.transactions == 0:
        results.void_reason = f"not one {load.unit} ended in the measured window"


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
