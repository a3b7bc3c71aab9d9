"""Loads whose commits may wait for other servers: single inserts, and updates of one row on one node or on two; and measurements in
which something is broken on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from howfar.contract.messages import LoadJob, UnixTarget, Workload
from howfar.contract.receipt import ReplicationReceipt, SecondWriter, TrialReceipt, WritersReceipt
from howfar.contract.server_receipt import SessionReceipt
from howfar.contract.violation import Violation, violation
from howfar.engine.run_load import LoadOutcome
from howfar.errors import EngineError, LabError
from howfar.experiments.replication.factors import CLUSTERS, FAULT, REPLICATION, ROW_BYTES, WRITERS
from howfar.experiments.replication.fault.crash import (
    CrashResult,
    FaultContext,
    fault_after_ns,
    replica_set_of,
    run_crash,
)
from howfar.experiments.replication.fault.fallback import FallbackResult, run_fallback
from howfar.experiments.replication.inserts import COUNTED, MAX_VARCHAR, single_row_inserts, single_row_updates
from howfar.experiments.replication.plan import INSERTS, UPDATES
from howfar.lab.servers.kinds import long_text
from howfar.plan.factors import has_fault
from howfar.plan.types import Plan
from howfar.runner.loads.load import Measure
from howfar.runner.loads.transactions import TransactionLoad
from howfar.runner.trial import Measurement, StartedTrial
from howfar.store.records import Arm
from howfar.testbed import CollectedReceipt, TrialEnvironment

_SECOND_WRITER_ROW = {"same-row": 1, "own-rows": 2}
"""The row that the second writer updates, by level of the factor. The first writer updates row 1."""
_CONFLICTS = (1180, 3101)
"""Errors with which Group Replication refuses a commit that conflicts with another member's; Galera's 1213 is retried anyway."""


class InsertsLoad(TransactionLoad):
    kind = INSERTS

    @classmethod
    def make_workload(cls, plan: Plan, arm: Arm) -> Workload:
        return single_row_inserts(ROW_BYTES.level_in(arm.factors))

    @classmethod
    def table_statements(cls, plan: Plan) -> tuple[str, ...]:
        row_bytes = max(plan.factors.row_bytes)
        text_type = long_text(plan.factors.server[0]) if row_bytes > MAX_VARCHAR else ""
        return single_row_inserts(row_bytes, text_type).prepare


class WritersLoad(TransactionLoad):
    """Updates of one row. In a cluster all commits are compared with the rows, and a second node may have clients too."""

    kind = UPDATES

    def __init__(self, job: LoadJob, second_row: int | None, environment: TrialEnvironment) -> None:
        super().__init__(job, commits_per_transaction=1)
        self._replica_set, self._launcher = replica_set_of(environment), environment.client
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

    @classmethod
    def make_workload(cls, plan: Plan, arm: Arm) -> Workload:
        return single_row_updates(1)

    @classmethod
    def table_statements(cls, plan: Plan) -> tuple[str, ...]:
        return single_row_updates(1).prepare

    @classmethod
    def prepare(cls, plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> TransactionLoad:
        job = cls.make_job(plan, arm, environment, seed)
        job = job.model_copy(update={"ignore_errors": (*job.ignore_errors, *_CONFLICTS)})
        if REPLICATION.level_in(arm.factors) not in CLUSTERS:
            return TransactionLoad(job, commits_per_transaction=1)
        return cls(job, _SECOND_WRITER_ROW.get(WRITERS.level_in(arm.factors)), environment)

    @contextmanager
    def run_alongside(self, measure: Measure) -> Iterator[None]:
        """Run the second load, if any, alongside the body, and wait for it afterwards. If both fail, the error names both causes."""
        if self._second_job is None:
            yield
            return
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(measure, self._second_job, self._launcher, lambda event: None)
            try:
                yield
            except EngineError as error:
                if isinstance(second_error := running.exception(), EngineError):
                    raise EngineError(f"{error.message}; the second load: {second_error.message}") from error
                raise
            self._second_outcome = running.result()

    def check(self, outcome: LoadOutcome) -> CollectedReceipt:
        """Also compares the commits with the rows of each node. Raises LabError."""
        checked, (writers, mismatches) = super().check(outcome), self._compare_with_rows(outcome)
        receipt = checked.receipt.updated(TrialReceipt(writers=writers))
        return CollectedReceipt(receipt, (*checked.violations, *mismatches))

    def _compare_with_rows(self, first_load: LoadOutcome) -> tuple[WritersReceipt, tuple[Violation, ...]]:
        """The counts for the receipt, and a violation for each node whose rows differ from the commits."""
        replica_set, loads = self._replica_set, [first_load, *([self._second_outcome] if self._second_outcome else [])]
        replica_set.wait_until_caught_up(replica_set.replicas[0])
        members = (replica_set.primary, replica_set.replicas[0])
        sums = [int(member.query(f"SELECT SUM(n) AS n FROM {COUNTED}")[0]["n"]) for member in members]
        commits = sum(load.measuring.warmup_transactions + load.finished.transactions for load in loads)
        # Clients continue for a moment after their windows. The engine's count of answers includes that; None if unknown.
        answer_counts = [load.finished.answered for load in loads]
        total_answered = None if None in answer_counts else sum(answers or 0 for answers in answer_counts)
        mismatches = tuple(
            violation("rows-differ", commits=commits, answers=str(total_answered), node=member.name, rows=count)
            for member, count in zip(members, sums, strict=True)
            if count < commits or (total_answered is not None and count > total_answered)
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
                cpu_ns=sum(cpu.cpu_ns for cpu in finished.cpu if cpu.role == "client"),
            )
        return receipt, mismatches


def _measure_with_fault(trial: StartedTrial) -> None:
    """Measure a trial in which something is broken. The engine's window extends beyond the fault; the record of the fault has the
    losses. Raises LabError, EngineError."""
    environment, load, results = trial.environment, trial.load, trial.results
    if mismatches := environment.precheck().violations:
        results.violations = mismatches
        return
    replica_set = replica_set_of(environment)
    links = [link.name for link in replica_set.links[: len(replica_set.replicas)]]
    rtt_ns = acknowledgement_rtt_ns(replica_set.facts.rtt_at_rest_ns, links, replica_set.spec.acknowledgements_needed)
    context = FaultContext(replica_set, environment.client, rtt_ns, trial.instruments.measure, trial.watch_machine())
    assert isinstance(load.job, LoadJob), f"a plan with a fault has the workload {INSERTS}"
    fault_result = _inject_fault(trial, context, load.job)
    session = fault_result.outcome.ready.receipt
    prechecked = environment.precheck(session)
    replication = (prechecked.receipt.replication or ReplicationReceipt()).updated(fault_result.receipt)
    results.receipt = TrialReceipt(session=SessionReceipt.from_engine(session)).updated(prechecked.receipt)
    results.receipt.replication = replication
    results.measured, results.fault = load.make_figures(fault_result.outcome), fault_result.record
    results.violations = (*prechecked.violations, *load.find_mismatches(fault_result.outcome))


def _inject_fault(trial: StartedTrial, context: FaultContext, job: LoadJob) -> CrashResult | FallbackResult:
    """Run the load with the cell's fault. Raises LabError, EngineError."""
    fault, slot = FAULT.level_in(trial.arm.factors), trial.slot
    if fault == "replica-leaves":
        return run_fallback(context, job)
    after_ns = fault_after_ns(trial.seed, slot.block, slot.attempt, trial.arm.name, trial.plan.timing.measure_ns)
    return run_crash(context, job, fault, after_ns)


def acknowledgement_rtt_ns(
    rtt_at_rest_ns: Mapping[str, int | None], replicas: Sequence[str], acknowledgements: int
) -> int:
    """RTT to the farthest of the nearest replicas that must acknowledge a commit; if none must, to the nearest one. `replicas`: names
    of the links to them. Raises LabError if the RTT of any is unknown."""
    rtts_ns = [rtt_at_rest_ns.get(name) for name in replicas]
    known = sorted(rtt_ns for rtt_ns in rtts_ns if rtt_ns is not None)
    if len(known) < len(rtts_ns):
        name = replicas[rtts_ns.index(None)]
        raise LabError(f"the unloaded RTT of the link to {name} is unknown", "Is the machine overloaded?")
    return known[max(acknowledgements, 1) - 1]


LOADS = (InsertsLoad, WritersLoad)
MEASUREMENTS = (Measurement(has_fault, _measure_with_fault),)
