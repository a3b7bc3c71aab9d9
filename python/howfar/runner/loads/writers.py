"""The load of a cluster whose clients update one row: on one node or on two, with all commits compared with the rows."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from howfar.contract.messages import LoadJob, UnixTarget
from howfar.contract.receipt import SecondWriter, TrialReceipt, WritersReceipt
from howfar.engine.inserts import COUNTED, single_row_updates
from howfar.engine.run_load import LoadOutcome
from howfar.errors import EngineError
from howfar.plan.factors import CLUSTERS, REPLICATION, WRITERS
from howfar.plan.types import Plan
from howfar.runner.fault.crash import Replicated
from howfar.runner.loads.load import Measure
from howfar.runner.loads.transactions import TransactionLoad, make_statements_job
from howfar.store.records import Arm
from howfar.testbed import CollectedReceipt, TrialEnvironment

_SECOND_WRITER_ROW = {"same-row": 1, "own-rows": 2}
"""The row that the second writer updates, by level of the factor. The first writer updates row 1."""
_CONFLICTS = (1180, 3101)
"""Errors with which Group Replication refuses a commit that conflicts with another member's; Galera's 1213 is retried anyway."""


class WritersLoad(TransactionLoad):
    def __init__(self, job: LoadJob, second_row: int | None, environment: TrialEnvironment) -> None:
        assert isinstance(environment, Replicated) and environment.replica_set is not None, "a cluster has replicas"
        super().__init__(job, commits_per_transaction=1)
        self._replica_set, self._launcher = environment.replica_set, environment.client
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
    def prepare(cls, plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> TransactionLoad:
        job = make_statements_job(plan, arm, environment, seed)
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

    def _compare_with_rows(self, first_load: LoadOutcome) -> tuple[WritersReceipt, tuple[str, ...]]:
        """The counts for the receipt, and a sentence for each node whose rows differ from the commits."""
        replica_set, loads = self._replica_set, [first_load, *([self._second_outcome] if self._second_outcome else [])]
        replica_set.wait_until_caught_up(replica_set.replicas[0])
        members = (replica_set.primary, replica_set.replicas[0])
        sums = [int(member.query(f"SELECT SUM(n) AS n FROM {COUNTED}")[0]["n"]) for member in members]
        commits = sum(load.measuring.warmup_transactions + load.finished.transactions for load in loads)
        # Clients continue for a moment after their windows. The engine's count of answers includes that; None if unknown.
        answer_counts = [load.finished.answered for load in loads]
        total_answered = None if None in answer_counts else sum(answers or 0 for answers in answer_counts)
        mismatches = tuple(
            f"clients saw {commits} commits and {total_answered} answers, and the rows of {member.name} count {count}"
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
