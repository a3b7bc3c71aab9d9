"""The base class of loads: an arm's job for the engine, what the run file keeps of its result, and how the result differs from the
request."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Generic, TypeVar

from howfar.contract.messages import (
    Arrivals,
    Event,
    IntervalFigures,
    LoadJob,
    ServiceName,
    Session,
    WindowFigures,
    Workload,
)
from howfar.contract.receipt import ArrivalsReceipt, TrialReceipt
from howfar.contract.violation import Violation, violation
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome, MeasuredJob
from howfar.plan.factors import THREADS, offered_per_s
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.plan.types import Plan
from howfar.store.records import Arm, Measured
from howfar.testbed import CollectedReceipt, LoadFacts, TrialEnvironment, Trust

Job = TypeVar("Job", bound=MeasuredJob)
Measure = Callable[[MeasuredJob, Launcher, Callable[[Event], None]], LoadOutcome]
"""Runs a job. Raises EngineError."""


class TrialLoad(ABC, Generic[Job]):
    """The load of one trial: its job, and the checks and figures of the job's outcome."""

    kind: ClassVar[str] = ""
    """The kind of workload that it is the load of. Empty: of several."""
    unit: ClassVar[str] = "transaction"
    """What the load counts as done."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @classmethod
    def check_plan(cls, plan: Plan) -> None:
        """Check the combination of the plan's settings, each of which is valid alone. Raises PlanError."""

    @classmethod
    def find_auxiliary_servers(cls, plan: Plan) -> tuple[str, ...]:
        """Kinds of the servers that the load needs in addition to the plan's. Raises ServerMissing, ServerCrashed."""
        return ()

    @classmethod
    def table_statements(cls, plan: Plan) -> tuple[str, ...]:
        """SQL that creates the load's own tables, before each trial. Empty: it uses the tables that were filled beforehand. Raises
        ServerMissing, ServerCrashed."""
        return ()

    @classmethod
    def find_application(cls, plan: Plan) -> str:
        """The real application that some cells need: a name in `lab.application.application_kinds()`. Empty: none."""
        return ""

    @classmethod
    def check_client(cls, plan: Plan, service: ServiceName) -> None:
        """Check that the programs of the client's host are installed. `service`: what the main server provides. Raises
        MissingError."""

    @classmethod
    @abstractmethod
    def prepare(cls, plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> TrialLoad[Job]:
        """The load of an arm, after filling stores and checking applications. Raises LabError, EngineError."""

    @abstractmethod
    def collect_facts(self, outcome: LoadOutcome) -> LoadFacts:
        """Collect the facts with which the servers' counters are compared."""

    @abstractmethod
    def find_mismatches(self, outcome: LoadOutcome) -> tuple[Violation, ...]:
        """Differences between the request and the engine's receipts and counts. Any of them makes a trial void."""

    def run_alongside(self, measure: Measure) -> AbstractContextManager[None]:
        """Run what accompanies the load, which the body runs. Raises EngineError."""
        return nullcontext()

    def check(self, outcome: LoadOutcome) -> CollectedReceipt:
        """The load's part of the receipt, and the differences from the request. Raises LabError."""
        receipt = TrialReceipt()
        if (arrivals := _arrivals_receipt(self.job, outcome)) is not None:
            receipt.arrivals = arrivals
        return CollectedReceipt(receipt, self.find_mismatches(outcome))

    def make_figures(self, outcome: LoadOutcome) -> Measured:
        """The figures that a run file keeps."""
        return make_measured(outcome)


def make_measured(outcome: LoadOutcome, **changed: object) -> Measured:
    """The figures of an outcome, with some `changed`."""
    figures = {name: getattr(outcome.finished, name) for name in WindowFigures.model_fields}
    return Measured(
        **(figures | changed),
        warmup_transactions=outcome.measuring.warmup_transactions,
        connect_ns=outcome.ready.connect_ns,
        intervals=tuple(
            IntervalFigures.model_validate(interval, from_attributes=True) for interval in outcome.intervals
        ),
    )


def make_load_job(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int, workload: Workload) -> LoadJob:
    return LoadJob(
        target=environment.target,
        user=environment.user,
        password=environment.password,
        database=environment.database,
        protocol=environment.protocol,
        session=make_session(session_spec(arm.factors), environment.trust, environment.fetches_server_key),
        workload=workload,
        connections=THREADS.level_in(arm.factors),
        arrivals=None if (per_s := offered_per_s(arm.factors)) is None else Arrivals(rate_per_s=per_s),
        seed=seed,
        warmup_ns=plan.timing.warmup_ns,
        measure_ns=plan.timing.measure_ns,
        observe=environment.observe,
    )


def make_session(spec: SessionSpec, trust: Trust | None, fetch_server_key: bool = True) -> Session:
    assert spec.tls is None or trust is not None, "the server of a cell with TLS has a certificate"
    assert spec.settings.keys() <= Session.model_fields.keys(), "settings are fields of the engine's session"
    session = Session(
        tls=trust.tls(spec) if trust else None,
        connect="per_transaction" if spec.per_transaction else "persistent",
        fetch_server_key=fetch_server_key,
    )
    return session.model_copy(update=spec.settings)


def _arrivals_receipt(job: MeasuredJob, outcome: LoadOutcome) -> ArrivalsReceipt | None:
    """The requests that were due in the window at the job's rate, and what became of them. None: closed loop."""
    arrivals = outcome.finished.open_loop
    if job.arrivals is None or arrivals is None:
        return None
    return ArrivalsReceipt(per_s=job.arrivals.rate_per_s, shape=job.arrivals.shape, **arrivals.model_dump())


_SIGMAS = 6
"""Number of standard deviations, plus one arrival, by which a window's number of Poisson arrivals may differ from its mean. If the
mean is in the thousands, one window in 500 million differs by more; if it is 1, one in a million."""


def rate_difference(job: LoadJob, outcome: LoadOutcome) -> tuple[Violation, ...]:
    """A violation if the number of transactions that were due does not fit the job's rate."""
    arrivals = outcome.finished.open_loop
    if job.arrivals is None or arrivals is None:
        return ()
    expected = job.arrivals.rate_per_s * outcome.finished.elapsed_ns / 1e9
    if abs(arrivals.due - expected) <= _SIGMAS * math.sqrt(expected) + 1:
        return ()
    return (violation("due-transactions", due=arrivals.due, expected=expected),)
