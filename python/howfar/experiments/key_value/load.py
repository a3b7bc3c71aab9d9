"""The load of a key-value store alone."""

from __future__ import annotations

from howfar.contract.messages import KeyValue, LoadJob, ServiceUse, UnixTarget
from howfar.contract.services import is_redis
from howfar.contract.violation import Violation
from howfar.engine.process import EngineFailed, check_job
from howfar.engine.run_load import LoadOutcome
from howfar.errors import PlanError
from howfar.experiments.key_value.plan import KIND
from howfar.plan.factors import PATH
from howfar.plan.types import Plan
from howfar.runner.loads.key_stores import check_misses, fill_keys, key_value_workload, store_protocol
from howfar.runner.loads.load import make_load_job, make_measured
from howfar.runner.loads.transactions import TransactionLoad
from howfar.store.records import Arm, Measured
from howfar.testbed import TrialEnvironment


class KeyLoad(TransactionLoad):
    kind = KIND

    @classmethod
    def check_plan(cls, plan: Plan) -> None:
        """Check settings that may be too large in combination, which only this workload has. Raises PlanError."""
        job = LoadJob(
            target=UnixTarget(path="/"),
            user="",
            database="",
            workload=key_value_workload(plan.keys, "resp3"),
            connections=1,
            seed=0,
            warmup_ns=0,
            measure_ns=1,
        )
        try:
            check_job(job)
        except EngineFailed as refusal:
            raise PlanError(f"plan {plan.name}: {refusal.message}", "Change it in the plan.") from refusal

    @classmethod
    def prepare(cls, plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> KeyLoad:
        (name,) = environment.services
        workload = key_value_workload(plan.keys, store_protocol(name, PATH.level_in(arm.factors)))
        fill_keys(environment.services[name], workload, environment.client)
        environment.reset_counters()
        return cls(make_load_job(plan, arm, environment, seed, workload))

    def find_mismatches(self, outcome: LoadOutcome) -> tuple[Violation, ...]:
        lookups = outcome.finished.lookups
        miss_count = lookups.misses if lookups is not None else 0
        return (*super().find_mismatches(outcome), *check_misses(miss_count))

    def make_figures(self, outcome: LoadOutcome) -> Measured:
        """The figures, with the totals as the use of the only service."""
        finished = outcome.finished
        if finished.lookups is None:
            return make_measured(outcome)
        assert isinstance(self.job.workload, KeyValue), "a load of keys looks up keys"
        use = ServiceUse(
            service="redis" if is_redis(self.job.workload) else "memcached",
            connects=None,
            requests=finished.queries,
            round_trips=finished.round_trips,
            bytes=finished.bytes,
            hits=finished.lookups.hits,
            misses=finished.lookups.misses,
        )
        return make_measured(outcome, services=(use,))


LOADS = (KeyLoad,)
