"""Loads of SQL transactions: those of sysbench, and the base class of others."""

from __future__ import annotations

from howfar.contract.messages import Finished, KeyValue, LoadJob, Sysbench, Workload
from howfar.contract.services import is_redis
from howfar.contract.violation import Violation
from howfar.engine.receipt_check import mismatches
from howfar.engine.run_load import LoadOutcome
from howfar.plan.types import Plan
from howfar.plan.workload import WORKLOADS
from howfar.runner.loads.load import TrialLoad, make_load_job, rate_difference
from howfar.store.records import Arm
from howfar.testbed import LoadFacts, TrialEnvironment


class TransactionLoad(TrialLoad[LoadJob]):
    def __init__(self, job: LoadJob, commits_per_transaction: int = 0) -> None:
        super().__init__(job)
        self._commits = commits_per_transaction

    @classmethod
    def prepare(cls, plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> TransactionLoad:
        return cls(cls.make_job(plan, arm, environment, seed), int(not WORKLOADS[plan.workload.kind].reads_only))

    @classmethod
    def make_job(cls, plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> LoadJob:
        return make_load_job(plan, arm, environment, seed, cls.make_workload(plan, arm))

    @classmethod
    def make_workload(cls, plan: Plan, arm: Arm) -> Workload:
        """The engine's workload of an arm."""
        tables = {"tables": plan.data.tables, "table_size": plan.data.table_size}
        return Sysbench.model_validate(plan.workload.model_dump() | tables)

    def collect_facts(self, outcome: LoadOutcome) -> LoadFacts:
        return load_facts(outcome, self.job, self._commits)

    def find_mismatches(self, outcome: LoadOutcome) -> tuple[Violation, ...]:
        return (
            *mismatches(self.job, outcome.ready.receipt, must_resume=True),
            *rate_difference(self.job, outcome),
        )


def load_facts(outcome: LoadOutcome, job: LoadJob, commits_per_transaction: int) -> LoadFacts:
    """Facts about a load. `commits_per_transaction`: commits that change data per SQL transaction."""
    finished = outcome.finished
    by_kind = {histogram.kind: histogram for histogram in finished.histograms}
    round_trip_ns = job.connections * finished.elapsed_ns / max(finished.round_trips, 1)
    if job.arrivals is not None and (service := by_kind.get("service")) is not None:
        # Connections also wait until a transaction is due; that time is not part of a round trip.
        round_trip_ns = service.mean_ns * service.count / max(finished.round_trips, 1)
    answered = _count_answered(finished, job)
    ended = _count_ended(finished, answered)
    if not commits_per_transaction or not finished.transactions:
        return LoadFacts(round_trip_ns, answered_statements=answered, ended_transactions=ended)
    commit = by_kind.get("commit") or by_kind.get("transaction")  # without BEGIN and COMMIT the statement commits
    return LoadFacts(
        round_trip_ns,
        commits_per_transaction * finished.transactions,
        answered_statements=answered,
        ended_transactions=ended,
        commit_p50_ns=None if commit is None else commit.p50_ns,
    )


def _count_answered(finished: Finished, job: LoadJob) -> int | None:
    """Number of answered statements or keys. None if unknown: after a disconnect, statements may have been executed whose answers were
    lost."""
    if finished.answered is None or finished.reconnects or finished.interrupted:
        return None
    if not isinstance(job.workload, KeyValue):
        return finished.answered
    # Memcached counts keys, and it is unknown how many requests were for several keys.
    unknown = job.workload.multi_get and not is_redis(job.workload)
    return None if unknown else finished.answered * job.workload.pipeline


def _count_ended(finished: Finished, answered: int | None) -> int | None:
    """Number of transactions that the answered statements formed. Each statement is a transaction, unless there are BEGIN and COMMIT.
    These are recognised as at least two statements per transaction that neither read nor write."""
    if answered is None or finished.classes.other < 2 * finished.transactions:
        return answered
    return answered * finished.transactions // max(finished.queries, 1)
