"""One trial: stage the path, run the load, ask what was obtained. Whatever fails on the way makes it void, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from howfar.conduct.fault.crash import Ground, run_crash
from howfar.conduct.fault.fallback import run_fallback
from howfar.conduct.fault.moments import fault_after_ns
from howfar.conduct.schedule import Place
from howfar.engine.inserts import SINGLE_ROW_INSERTS
from howfar.engine.messages import Compression, Finished, LoadJob, Measuring, Session, Sysbench, Tls, Workload
from howfar.engine.process import Event, Launcher, LoadOutcome, run_load
from howfar.engine.receipt_check import mismatches
from howfar.errors import EngineError, LabError
from howfar.lab.stage import Laboratory, LoadFacts, Stage, Trust, WindowWatch
from howfar.plan.cells import stream_seed
from howfar.plan.sessions import SessionAsked, session_asked
from howfar.plan.types import Plan, breaks
from howfar.plan.workload import READ_ONLY
from howfar.results.records import (
    Arm,
    CpuRecord,
    CrashRecord,
    FallbackRecord,
    HistogramRecord,
    IntervalRecord,
    MachineLoad,
    Measured,
    Trial,
    TrialStatus,
    Window,
)

REASON_KEPT = 500
"""Characters of a void trial's reason; enough for a message, too few for a log."""


class Watch(Protocol):
    """Watches the machine from its making until asked."""

    def finish(self) -> MachineLoad: ...


Measure = Callable[[LoadJob, Launcher, Callable[[Event], None]], LoadOutcome]
"""Runs a load job. Raises EngineError."""


def _no_watch() -> Watch | None:
    return None


def _no_facts() -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Instruments:
    """What touches the engine and the clocks; the real ones by default."""

    measure: Measure = run_load
    watch: Callable[[], Watch | None] = _no_watch
    facts: Callable[[], dict[str, Any]] = _no_facts
    """Of the programs and the boot, for the run file."""
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    unix_ns: Callable[[], int] = time.time_ns


@dataclass
class _Seen:
    """What a trial has gathered when it ends, well or not."""

    measured: Measured | None = None
    receipt: dict[str, Any] = field(default_factory=dict)
    load: MachineLoad | None = None
    window: Window | None = None
    fault: CrashRecord | FallbackRecord | None = None
    void_reason: str | None = None


def run_trial(
    number: int,
    place: Place,
    arm: Arm,
    plan: Plan,
    seed: int,
    laboratory: Laboratory,
    instruments: Instruments,
    on_event: Callable[[Event], None],
) -> Trial:
    """Measure one arm once. LabError and EngineError make the trial void; every other error is the caller's."""
    started = instruments.unix_ns()
    seen = _Seen()
    try:
        with laboratory.stage(arm.factors) as stage:
            job = load_job(plan, arm, stage, stream_seed(seed, place.block))
            if breaks(arm.factors):
                after_ns = fault_after_ns(seed, place.block, place.attempt, arm.name, plan.timing.measure_ns)
                _break(job, str(arm.factors["fault"]), after_ns, stage, instruments, on_event, seen)
            else:
                _measure(job, stage, instruments, on_event, seen, writes=plan.workload.kind not in READ_ONLY)
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
    """What the engine tells is of the window until the fault and what followed; what was lost is in the record."""
    watch: Watch | None = None

    def hear(event: Event) -> None:
        nonlocal watch
        if isinstance(event, Measuring):
            watch = instruments.watch()
        elif isinstance(event, Finished) and watch is not None:
            seen.load = watch.finish()
        on_event(event)

    assert stage.pair is not None, "a fault is a pair's"
    if unlike := stage.begun().violations:
        raise LabError("; ".join(unlike))
    (rtt_ns, *_) = stage.pair.facts["rtt_at_rest_ns"].values()
    ground = Ground(stage.pair, stage.client, rtt_ns, instruments.measure, hear)
    broken = run_fallback(ground, job) if fault == "replica-leaves" else run_crash(ground, job, fault, after_ns)
    session = broken.outcome.ready.receipt.model_dump(mode="json")
    begun = stage.begun(session)
    replication = begun.receipt.get("replication", {}) | broken.receipt
    seen.receipt = {"session": session, **begun.receipt, "replication": replication}
    seen.measured, seen.fault = measured(broken.outcome), broken.record
    if unlike := (*begun.violations, *mismatches(job, broken.outcome.ready.receipt, must_resume=True)):
        seen.void_reason = "; ".join(unlike)


def _measure(
    job: LoadJob,
    stage: Stage,
    instruments: Instruments,
    on_event: Callable[[Event], None],
    seen: _Seen,
    *,
    writes: bool,
) -> None:
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
            outcome = instruments.measure(job, stage.client, hear)
        finally:  # before anything else is asked: the watch's thread and the stage have one connection to the server
            if around is not None:
                seen.window = around.finish()
    except EngineError as error:
        raise _blame(error, stage) from error
    session = outcome.ready.receipt.model_dump(mode="json")
    seen.measured = measured(outcome)
    seen.receipt = {"session": session}
    obtained = stage.obtained(session, load_facts(job, seen.measured, writes))
    seen.receipt |= obtained.receipt
    if obtained.violations:
        seen.void_reason = "; ".join(obtained.violations)
    elif unlike := mismatches(job, outcome.ready.receipt, must_resume=True):
        seen.void_reason = "; ".join(unlike)
    elif seen.measured.transactions == 0:
        seen.void_reason = "not one transaction ended in the measured window"


def load_facts(job: LoadJob, seen: Measured, writes: bool) -> LoadFacts:
    """`writes`: each transaction of the workload has something to commit."""
    turn_ns = job.connections * seen.elapsed_ns / max(seen.turns, 1)
    if not writes or not seen.transactions:
        return LoadFacts(turn_ns)
    by_kind = {histogram.kind: histogram for histogram in seen.histograms}
    commit = by_kind.get("commit") or by_kind.get("transaction")  # without BEGIN and COMMIT the statement commits
    return LoadFacts(turn_ns, seen.transactions, None if commit is None else commit.p50_ns)


def _blame(error: EngineError, stage: Stage) -> LabError | EngineError:
    """Whose fault it was: the engine only sees a connection that breaks when a server or a forwarder dies."""
    try:
        stage.obtained({})
    except LabError as cause:
        said, _, log = cause.message.partition("\n")
        if log:  # the sentence that announces a log goes with it: a reason is one line, and short
            said = said.rpartition(". ")[0] or said
        return LabError(f"{said}; the engine said: {error.message}", cause.advice)
    return error


def load_job(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob:
    """The engine's job for one arm on a staged path."""
    return LoadJob(
        target=stage.target,
        user=stage.user,
        password=stage.password,
        database=stage.database,
        session=_session(session_asked(arm.factors), stage.trust),
        workload=_workload(plan),
        connections=int(arm.factors["threads"]),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=stage.observe,
    )


def _workload(plan: Plan) -> Workload:
    if plan.workload.kind == "single_row_inserts":
        return SINGLE_ROW_INSERTS
    tables = {"tables": plan.data.tables, "table_size": plan.data.table_size}
    return Sysbench.model_validate(plan.workload.model_dump() | tables)


def _session(asked: SessionAsked, trust: Trust | None) -> Session:
    """The engine's session as a cell asks for it. The server's certificate is always checked."""
    tls = None
    if asked.tls is not None:
        assert trust is not None, "a stage for an encrypted cell has a server with a certificate"
        tls = Tls(
            versions=asked.tls,
            verify="full",
            ca_file=trust.ca_file,
            server_name=trust.server_name,
            resumption=asked.resumption,
        )
    return Session(
        tls=tls,
        compression=Compression(algorithm=asked.algorithm, level=asked.level) if asked.algorithm else None,
        connect="per_transaction" if asked.per_transaction else "persistent",
    )


def measured(outcome: LoadOutcome) -> Measured:
    """The engine's events as a record."""
    finished = outcome.finished
    return Measured(
        elapsed_ns=finished.elapsed_ns,
        transactions=finished.transactions,
        queries=finished.queries,
        turns=finished.turns,
        rows=finished.rows,
        bytes_to_server=finished.bytes.to_server,
        bytes_to_client=finished.bytes.to_client,
        errors=finished.errors,
        warmup_transactions=outcome.measuring.warmup_transactions,
        connect_ns=outcome.ready.connect_ns,
        cpu=tuple(CpuRecord(**use.model_dump()) for use in finished.cpu),
        intervals=tuple(
            IntervalRecord(**slice_.model_dump(include=set(IntervalRecord.model_fields)))
            for slice_ in outcome.intervals
        ),
        histograms=tuple(HistogramRecord(**histogram.model_dump()) for histogram in finished.histograms),
    )
