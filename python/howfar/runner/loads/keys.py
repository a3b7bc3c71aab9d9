"""Loads of key lookups, and the filling of key-value stores."""

from __future__ import annotations

from typing import Literal

from howfar.contract.messages import (
    FixedSize,
    KeyValue,
    LoadJob,
    ServiceUse,
    Session,
    TablesDone,
    TablesJob,
    UnixTarget,
)
from howfar.contract.services import is_redis
from howfar.engine.process import EngineFailed, EngineProcess, Launcher, check_job
from howfar.engine.run_load import LoadOutcome
from howfar.errors import LabError, PlanError
from howfar.paths import find_path
from howfar.plan.page import KEYS_PER_MULTI_GET, Keys
from howfar.plan.types import Plan
from howfar.runner.loads.load import make_load_job, make_measured
from howfar.runner.loads.transactions import TransactionLoad
from howfar.store.records import Arm, Measured
from howfar.testbed import ServiceEndpoint, TrialEnvironment


class KeyLoad(TransactionLoad):
    @classmethod
    def check_plan(cls, plan: Plan) -> None:
        """Only the key_value workload has settings that can be too large in combination."""
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
        workload = key_value_workload(plan.keys, store_protocol(name, str(arm.factors["path"])))
        fill_keys(environment.services[name], workload, environment.client)
        environment.reset_counters()
        return cls(make_load_job(plan, arm, environment, seed, workload))

    def find_mismatches(self, outcome: LoadOutcome) -> tuple[str, ...]:
        lookups = outcome.finished.lookups
        missed = lookups.misses if lookups is not None else 0
        return (*super().find_mismatches(outcome), *describe_misses(missed))

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
            turns=finished.turns,
            bytes=finished.bytes,
            hits=finished.lookups.hits,
            misses=finished.lookups.misses,
        )
        return make_measured(outcome, services=(use,))


def describe_misses(misses: int) -> tuple[str, ...]:
    """A sentence if keys were missed."""
    text = "1 key was" if misses == 1 else f"{misses} keys were"
    return (f"{text} not found, although all were set",) if misses else ()


Protocol = Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
_NEWEST_PROTOCOL: dict[str, Protocol] = {"redis": "resp3", "memcached": "memcached_meta"}
_OLDEST_PROTOCOL: dict[str, Protocol] = {"redis": "resp2", "memcached": "memcached_text"}
"""A store's oldest and newest protocol, by the name of its service."""


def store_protocol(service: str, path: str) -> Protocol:
    """The protocol that clients of a key-value store speak on a path."""
    return (_OLDEST_PROTOCOL if find_path(path).oldest_protocol_only else _NEWEST_PROTOCOL)[service]


def key_value_workload(keys: Keys, protocol: Protocol) -> KeyValue:
    return KeyValue(
        protocol=protocol,
        keys=keys.count,
        value=FixedSize(bytes=keys.value_bytes),
        get=keys.get,
        set=keys.set,
        multi_get=keys.multi_get,
        keys_each=KEYS_PER_MULTI_GET,
        pipeline=keys.pipeline,
    )


_FILL_CONNECTIONS = 1
_FILL_STALL_NS = 30_000_000_000


def fill_keys(endpoint: ServiceEndpoint, keys: KeyValue, launcher: Launcher) -> int:
    """Set all `keys` in an empty store, over the environment's path; returns their number. `launcher` runs the engine.

    Raises LabError if the server stores fewer keys than it was sent, for example for lack of memory. Raises LabError, EngineError if
    setting them fails.
    """
    assert endpoint.count_keys is not None, f"{endpoint.server_kind} has no keys to be set"
    service = endpoint.service
    job = TablesJob(
        action="prepare",
        target=service.target,
        user=service.user,
        password=service.password,
        database=service.database,
        workload=keys,
        connections=_FILL_CONNECTIONS,
        seed=1,  # not used: a value depends only on the number of its key
        session=Session(tls=service.tls),
        stall_timeout_ns=_FILL_STALL_NS,
    )
    with EngineProcess(job, launcher) as engine:
        last_event = list(engine.events())[-1]
    assert isinstance(last_event, TablesDone), "a tables job ends with the event tables_done"
    stored = endpoint.count_keys()
    if stored != keys.keys:
        raise LabError(
            f"{endpoint.server_kind} holds {stored} keys, but {keys.keys} were set ({last_event.rows} by the engine's account)",
            "Does it have the memory for them?",
        )
    return stored
