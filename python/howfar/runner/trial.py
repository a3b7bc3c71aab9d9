"""One trial: stage the path, run the load, check what was obtained. Any failure makes it void, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from howfar.engine.inserts import COUNTED, single_row_updates
from howfar.engine.messages import (
    Event,
    Finished,
    LoadJob,
    Measuring,
    PageJob,
    UnixTarget,
)
from howfar.engine.process import Launcher
from howfar.engine.rules import sql_of
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.errors import EngineError, LabError
from howfar.plan.cells import stream_seed
from howfar.plan.factors import CLUSTERS, REPLICATION, WRITERS, breaks
from howfar.plan.types import Plan
from howfar.runner.fault.crash import FaultContext, Replicated, fault_after_ns, run_crash
from howfar.runner.fault.fallback import run_fallback
from howfar.runner.jobs import (
    PageSpec,
    arrivals_receipt,
    commits_each,
    job_of,
    load_facts,
    measured,
    not_as_requested,
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
from howfar.testbed import Stage, Testbed, WindowWatch

REASON_KEPT = 500
"""Characters kept of a void trial's reason; enough for a message, too few for a log."""


class Watch(Protocol):
    """Observes the machine's load from construction until `finish`."""

    def finish(self) -> MachineLoad: ...


Measure = Callable[[LoadJob | PageJob, Launcher, Callable[[Event], None]], LoadOutcome]
"""Runs a load or page job. Raises EngineError."""


@dataclass(frozen=True)
class Instruments:
    """Functions that use the engine and the clocks; the real ones by default."""

    measure: Measure = run_load
    watch: Callable[[], Watch | None] = lambda: None
    facts: Callable[[], dict[str, Any]] = dict
    """Facts about the programs and the boot, for the run file."""
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    unix_ns: Callable[[], int] = time.time_ns


@dataclass
class _Seen:
    """Results of a trial so far, which are kept if it fails."""

    measured: Measured | None = None
    receipt: dict[str, Any] = field(default_factory=dict)
    load: MachineLoad | None = None
    window: Window | None = None
    fault: CrashRecord | FallbackRecord | None = None
    void_reason: str | None = None


def run_trial(
    number: int,
    place: Slot,
    arm: Arm,
    plan: Plan,
    seed: int,
    laboratory: Testbed,
    instruments: Instruments,
    on_event: Callable[[Event], None],
) -> Trial:
    """Measure one arm once. LabError and EngineError make the trial void; every other error propagates."""
    started = instruments.unix_ns()
    seen = _Seen()
    try:
        with laboratory.stage(arm.factors) as stage:
            job = job_of(plan, arm, stage, stream_seed(seed, place.block))
            if breaks(arm.factors):
                assert isinstance(job, LoadJob), "a plan with a fault is of single-row inserts"
                after_ns = fault_after_ns(seed, place.block, place.attempt, arm.name, plan.timing.measure_ns)
                _break(job, str(arm.factors["fault"]), after_ns, stage, instruments, on_event, seen)
            else:
                _measure(plan, arm, job, stage, instruments, on_event, seen)
    except (LabError, EngineError) as error:
        seen.void_reason = error.message
    return Trial(
        number=number,
        block=place.block,
        position=place.position,
        attempt=place.attempt,
        arm=arm.name,
        status=TrialStatus.OK if seen.void_reason is None else TrialStatus.VOID,
        void_reason=None if seen.void_reason is None else seen.void_reason[:REASON_KEPT],
        started_unix_ns=started,
        ended_unix_ns=instruments.unix_ns(),
        measured=seen.measured,
        receipt=seen.receipt,
        load=seen.load,
        window=seen.window,
        fault=seen.fault,
    )


def _break(
    job: LoadJob,
    fault: str,
    after_ns: int,
    stage: Stage,
    instruments: Instruments,
    on_event: Callable[[Event], None],
    seen: _Seen,
) -> None:
    """Measure an arm with a fault. The engine reports the window until the fault and what followed; losses are in the record."""
    watch: Watch | None = None

    def hear(event: Event) -> None:
        nonlocal watch
        if isinstance(event, Measuring):
            watch = instruments.watch()
        elif isinstance(event, Finished) and watch is not None:
            seen.load = watch.finish()
        on_event(event)

    assert isinstance(stage, Replicated) and stage.pair is not None, "a fault is a pair's"
    if unlike := stage.begun().violations:
        raise LabError("; ".join(unlike))
    pair = stage.pair
    ways = sorted([*pair.facts["rtt_at_rest_ns"].values()][: len(pair.replicas)])
    rtt_ns = ways[max(pair.spec.needed, 1) - 1]
    context = FaultContext(pair, stage.client, rtt_ns, instruments.measure, hear)
    broken = run_fallback(context, job) if fault == "replica-leaves" else run_crash(context, job, fault, after_ns)
    session = broken.outcome.ready.receipt.model_dump(mode="json")
    begun = stage.begun(session)
    replication = begun.receipt.get("replication", {}) | broken.receipt
    seen.receipt = {"session": session, **begun.receipt, "replication": replication}
    seen.measured, seen.fault = measured(job, broken.outcome), broken.record
    if unlike := (*begun.violations, *not_as_requested(job, broken.outcome)):
        seen.void_reason = "; ".join(unlike)


def _measure(
    plan: Plan,
    arm: Arm,
    job: LoadJob | PageJob,
    stage: Stage,
    instruments: Instruments,
    on_event: Callable[[Event], None],
    seen: _Seen,
) -> None:
    """Measure an arm in which nothing is broken."""
    writers = counted_rows(plan, arm, job, stage)
    watch: Watch | None = None
    around: WindowWatch | None = None

    def hear(event: Event) -> None:
        nonlocal watch, around
        if isinstance(event, Measuring):  # of the measured window only: starting a server is load too
            watch, around = instruments.watch(), stage.watch(job.measure_ns)
        elif isinstance(event, Finished) and watch is not None:
            seen.load = watch.finish()
        on_event(event)

    try:
        try:
            with writers.beside(instruments.measure) if writers else nullcontext():
                outcome = instruments.measure(job, stage.client, hear)
        finally:  # before any other query: the watch's thread and the stage share one connection to the server
            if around is not None:
                seen.window = around.finish()
    except EngineError as error:
        raise _blame(error, stage) from error
    session = outcome.ready.receipt.model_dump(mode="json")
    seen.measured = measured(job, outcome)
    seen.receipt = {"session": session}
    page: PageSpec | None = None
    if isinstance(job, PageJob):
        page = page_spec(plan, arm, sql_of(stage.services) or "mysql")
        facts = page_facts(outcome, page)
    else:
        facts = load_facts(outcome, job, commits_each(plan))
    obtained = stage.obtained(session, facts)
    seen.receipt |= obtained.receipt
    if (account := arrivals_receipt(job, outcome)) is not None:
        seen.receipt["arrivals"] = account
    miscounted: tuple[str, ...] = ()
    if writers is not None:
        seen.receipt["writers"], miscounted = writers.counted(outcome)
    if unlike := (*obtained.violations, *not_as_requested(job, outcome, page), *miscounted):
        seen.void_reason = "; ".join(unlike)
    elif seen.measured.transactions == 0:
        seen.void_reason = (
            f"not one {'page' if isinstance(job, PageJob) else 'transaction'} ended in the measured window"
        )


def _blame(error: EngineError, stage: Stage) -> LabError | EngineError:
    """The cause of a failure: the engine only sees a connection that breaks when a server or a forwarder dies."""
    try:
        stage.obtained({})
    except LabError as cause:
        message, _, log = cause.message.partition("\n")
        if log:  # the sentence that announces a log is dropped too: a reason is one short line
            message = message.rpartition(". ")[0] or message
        return LabError(f"{message}; the engine said: {error.message}", cause.advice)
    return error


_ROW = {"same-row": 1, "own-rows": 2}
"""Row of the second writer, by level of the factor; the first has row 1."""


def counted_rows(plan: Plan, arm: Arm, job: LoadJob | PageJob, stage: Stage) -> CountedRows | None:
    """Writers whose commits are counted by rows. None: the arm has none."""
    if plan.workload.kind != "single_row_updates" or REPLICATION.of(arm.factors) not in CLUSTERS:
        return None
    launcher = stage.client
    assert isinstance(job, LoadJob) and isinstance(stage, Replicated)
    return CountedRows(job, _ROW.get(WRITERS.of(arm.factors)), launcher, stage)


class CountedRows:
    """Clients on one or two nodes of a cluster: runs the second load alongside the first, and compares all commits with the rows."""

    def __init__(self, job: LoadJob, second_row: int | None, launcher: Launcher, stage: Replicated) -> None:
        assert stage.pair is not None, "a cluster replicates"
        self._pair, self._launcher = stage.pair, launcher
        self._second: LoadJob | None = None
        self._theirs: LoadOutcome | None = None
        if second_row is not None:
            node = self._pair.replicas[0].server
            more = {
                "target": UnixTarget(path=str(node.socket)),
                "password": node.password,
                "workload": single_row_updates(second_row),
                "observe": (),
            }
            self._second = job.model_copy(update=more)

    @contextmanager
    def beside(self, measure: Measure) -> Iterator[None]:
        """Run the second load, if any, alongside the body, and wait for it afterwards. Raises EngineError."""
        if self._second is None:
            yield
            return
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(measure, self._second, self._launcher, lambda event: None)
            yield
            self._theirs = running.result()

    def counted(self, mine: LoadOutcome) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The counts for the receipt, and sentences where commits and rows differ. Raises LabError."""
        pair, loads = self._pair, [mine, *([self._theirs] if self._theirs else [])]
        pair.await_caught_up(pair.replicas[0])
        members = (pair.primary, pair.replicas[0])
        sums = [int(member.ask(f"SELECT SUM(n) AS n FROM {COUNTED}")[0]["n"]) for member in members]
        commits = sum(load.measuring.warmup_transactions + load.finished.transactions for load in loads)
        # Clients continue for a moment after their windows; the engine's count of answers includes that. None: unknown.
        answered = [load.finished.answered for load in loads]
        most = None if None in answered else sum(count or 0 for count in answered)
        unlike = tuple(
            f"clients saw {commits} commits and {most} answers, and the rows of {member.name} count {found}"
            for member, found in zip(members, sums, strict=True)
            if found < commits or (most is not None and found > most)
        )
        receipt: dict[str, Any] = {
            "commits": commits,
            "answered": most,
            "rows": dict(zip((m.name for m in members), sums, strict=True)),
        }
        if self._theirs is not None:
            finished = self._theirs.finished
            receipt["second"] = finished.model_dump(include={"elapsed_ns", "transactions", "errors"}) | {
                "p50_ns": next((one.p50_ns for one in finished.histograms if one.kind == "transaction"), None)
            }
        return receipt, unlike
