"""One trial: open the path, run the load, check the receipt. Any failure makes the trial void, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    Event,
    Finished,
    LoadJob,
    Measuring,
    PageJob,
    UnixTarget,
)
from howfar.contract.receipt import ReplicationReceipt, SecondWriter, TrialReceipt, WritersReceipt
from howfar.contract.services import sql_of
from howfar.engine.inserts import COUNTED, single_row_updates
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.errors import EngineError, LabError
from howfar.plan.cells import stream_seed
from howfar.plan.factors import CLUSTERS, REPLICATION, WRITERS, has_fault
from howfar.plan.types import Plan
from howfar.runner.fault.crash import FaultContext, Replicated, fault_after_ns, run_crash
from howfar.runner.fault.fallback import run_fallback
from howfar.runner.jobs import (
    PageSpec,
    arrivals_receipt,
    commits_per_transaction,
    find_request_mismatches,
    load_facts,
    make_job,
    make_measured,
    page_facts,
    page_spec,
)
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


Measure = Callable[[LoadJob | PageJob, Launcher, Callable[[Event], None]], LoadOutcome]
"""Runs a load or page job. Raises EngineError."""


@dataclass(frozen=True)
class Instruments:
    """The functions that use the engine and the clocks. Tests replace them with fakes."""

    measure: Measure = run_load
    watch: Callable[[], Watch | None] = lambda: None
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
    started = instruments.unix_ns()
    results = _TrialResults()
    try:
        with laboratory.trial_environment(arm.factors) as environment:
            job = make_job(plan, arm, environment, stream_seed(seed, slot.block))
            if has_fault(arm.factors):
                assert isinstance(job, LoadJob), "a plan with a fault has the workload single_row_inserts"
                after_ns = fault_after_ns(seed, slot.block, slot.attempt, arm.name, plan.timing.measure_ns)
                _measure_with_fault(
                    job, str(arm.factors["fault"]), after_ns, environment, instruments, on_event, results
                )
            else:
                _measure(plan, arm, job, environment, instruments, on_event, results)
    except (LabError, EngineError) as error:
        results.void_reason = error.message
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
    job: LoadJob,
    fault: str,
    after_ns: int,
    environment: TrialEnvironment,
    instruments: Instruments,
    on_event: Callable[[Event], None],
    results: _TrialResults,
) -> None:
    """Measure an arm with a fault. The engine's window extends beyond the fault; the record of the fault has the losses."""
    watch: Watch | None = None

    def note_event(event: Event) -> None:
        nonlocal watch
        if isinstance(event, Measuring):
            watch = instruments.watch()
        elif isinstance(event, Finished) and watch is not None:
            results.load = watch.finish()
        on_event(event)

    assert isinstance(environment, Replicated) and environment.replica_set is not None, (
        "a cell with a fault has replicas"
    )
    if mismatches := environment.precheck().violations:
        raise LabError("; ".join(mismatches))
    replica_set = environment.replica_set
    rtts_ns = [rtt_ns for rtt_ns in replica_set.facts.rtt_at_rest_ns.values() if rtt_ns is not None]
    replica_rtts_ns = sorted(rtts_ns[: len(replica_set.replicas)])
    rtt_ns = replica_rtts_ns[max(replica_set.spec.acknowledgements_needed, 1) - 1]
    context = FaultContext(replica_set, environment.client, rtt_ns, instruments.measure, note_event)
    fault_result = run_fallback(context, job) if fault == "replica-leaves" else run_crash(context, job, fault, after_ns)
    session = fault_result.outcome.ready.receipt
    prechecked = environment.precheck(session)
    replication = (prechecked.receipt.replication or ReplicationReceipt()).updated(fault_result.receipt)
    results.receipt = TrialReceipt(session=session).updated(prechecked.receipt)
    results.receipt.replication = replication
    results.measured, results.fault = make_measured(job, fault_result.outcome), fault_result.record
    if mismatches := (*prechecked.violations, *find_request_mismatches(job, fault_result.outcome)):
        results.void_reason = "; ".join(mismatches)


def _measure(
    plan: Plan,
    arm: Arm,
    job: LoadJob | PageJob,
    environment: TrialEnvironment,
    instruments: Instruments,
    on_event: Callable[[Event], None],
    results: _TrialResults,
) -> None:
    """Measure an arm without a fault."""
    writers = make_cluster_writers(plan, arm, job, environment)
    watch: Watch | None = None
    window_watch: WindowWatch | None = None

    def note_event(event: Event) -> None:
        nonlocal watch, window_watch
        if isinstance(event, Measuring):  # of the measured window only: starting a server is load too
            watch, window_watch = instruments.watch(), environment.watch(job.measure_ns)
        elif isinstance(event, Finished) and watch is not None:
            results.load = watch.finish()
        on_event(event)

    try:
        try:
            with writers.run_second_load(instruments.measure) if writers else nullcontext():
                outcome = instruments.measure(job, environment.client, note_event)
        finally:  # before any other query: the watch's thread and the environment share one connection to the server
            if window_watch is not None:
                results.window = window_watch.finish()
    except EngineError as error:
        raise _find_cause(error, environment) from error
    session = outcome.ready.receipt
    results.measured = make_measured(job, outcome)
    results.receipt = TrialReceipt(session=session)
    spec: PageSpec | None = None
    if isinstance(job, PageJob):
        spec = page_spec(plan, arm, sql_of(environment.services) or "mysql")
        facts = page_facts(outcome, spec)
    else:
        facts = load_facts(outcome, job, commits_per_transaction(plan))
    collected = environment.collect_receipt(session, facts)
    results.receipt = results.receipt.updated(collected.receipt)
    if (arrivals := arrivals_receipt(job, outcome)) is not None:
        results.receipt.arrivals = arrivals
    miscounted: tuple[str, ...] = ()
    if writers is not None:
        results.receipt.writers, miscounted = writers.compare_with_rows(outcome)
    if mismatches := (*collected.violations, *find_request_mismatches(job, outcome, spec), *miscounted):
        results.void_reason = "; ".join(mismatches)
    elif results.measured.transactions == 0:
        results.void_reason = (
            f"not one {'page' if isinstance(job, PageJob) else 'transaction'} ended in the measured window"
        )


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


_SECOND_WRITER_ROW = {"same-row": 1, "own-rows": 2}
"""The row that the second writer updates, by level of the factor. The first writer updates row 1."""


def make_cluster_writers(
    plan: Plan, arm: Arm, job: LoadJob | PageJob, environment: TrialEnvironment
) -> ClusterWriters | None:
    """The writers whose commits are compared with the rows. None: the arm has no such writers."""
    if plan.workload.kind != "single_row_updates" or REPLICATION.level_in(arm.factors) not in CLUSTERS:
        return None
    launcher = environment.client
    assert isinstance(job, LoadJob) and isinstance(environment, Replicated)
    return ClusterWriters(job, _SECOND_WRITER_ROW.get(WRITERS.level_in(arm.factors)), launcher, environment)


class ClusterWriters:
    """Clients on one or two nodes of a cluster. Runs the second load alongside the first, and compares all commits with the rows."""

    def __init__(self, job: LoadJob, second_row: int | None, launcher: Launcher, environment: Replicated) -> None:
        assert environment.replica_set is not None, "a cluster has replicas"
        self._replica_set, self._launcher = environment.replica_set, launcher
        self._second_job: LoadJob | None = None
        self._second_outcome: LoadOutcome | None = None
        if second_row is not None:
            node = self._replica_set.replicas[0].server
            changes = {
                "target": UnixTarget(path=str(node.socket)),
                "password": node.password,
                "workload": single_row_updates(second_row),
                "observe": (),
            }
            self._second_job = job.model_copy(update=changes)

    @contextmanager
    def run_second_load(self, measure: Measure) -> Iterator[None]:
        """Run the second load, if any, alongside the body, and wait for it afterwards. Raises EngineError."""
        if self._second_job is None:
            yield
            return
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(measure, self._second_job, self._launcher, lambda event: None)
            yield
            self._second_outcome = running.result()

    def compare_with_rows(self, first_load: LoadOutcome) -> tuple[WritersReceipt, tuple[str, ...]]:
        """The counts for the receipt, and a sentence for each node whose rows differ from the commits. Raises LabError."""
        replica_set, loads = self._replica_set, [first_load, *([self._second_outcome] if self._second_outcome else [])]
        replica_set.wait_until_caught_up(replica_set.replicas[0])
        members = (replica_set.primary, replica_set.replicas[0])
        sums = [int(member.query(f"SELECT SUM(n) AS n FROM {COUNTED}")[0]["n"]) for member in members]
        commits = sum(load.measuring.warmup_transactions + load.finished.transactions for load in loads)
        # Clients continue for a moment after their windows. The engine's count of answers includes that; None if unknown.
        answer_counts = [load.finished.answered for load in loads]
        total_answered = None if None in answer_counts else sum(count or 0 for count in answer_counts)
        mismatches = tuple(
            f"clients saw {commits} commits and {total_answered} answers, and the rows of {member.name} count {rows}"
            for member, rows in zip(members, sums, strict=True)
            if rows < commits or (total_answered is not None and rows > total_answered)
        )
        rows = dict(zip((member.name for member in members), sums, strict=True))
        receipt = WritersReceipt(commits=commits, answered=total_answered, rows=rows)
        if self._second_outcome is not None:
            finished = self._second_outcome.finished
            medians_ns = (histogram.p50_ns for histogram in finished.histograms if histogram.kind == "transaction")
            receipt.second = SecondWriter(
                elapsed_ns=finished.elapsed_ns,
                transactions=finished.transactions,
                errors={**finished.errors},
                p50_ns=next(medians_ns, None),
            )
        return receipt, mismatches
