"""A job of commands to Redis or Memcached alone, and the keys of a stage: they are set before its load."""

from __future__ import annotations

from typing import Literal

from howfar.engine.messages import (
    FixedSize,
    KeyValue,
    LoadJob,
)
from howfar.lab.fill import fill_keys
from howfar.lab.stage import Stage
from howfar.plan.page import MULTI, Keys
from howfar.plan.types import Plan
from howfar.runner.jobs.session import load_job
from howfar.store.records import Arm

Protocol = Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
_NEWEST: dict[str, Protocol] = {"redis": "resp3", "memcached": "memcached_meta"}
"""By what a service is called."""


def key_value(keys: Keys, protocol: Protocol) -> KeyValue:
    return KeyValue(
        protocol=protocol,
        keys=keys.count,
        value=FixedSize(bytes=keys.value_bytes),
        get=keys.get,
        set=keys.set,
        multi_get=keys.multi_get,
        keys_each=MULTI,
        pipeline=keys.pipeline,
    )


def keys_job(plan: Plan, arm: Arm, stage: Stage, seed: int) -> LoadJob:
    """Raises LabError, EngineError where the keys cannot be set."""
    (name,) = stage.services
    workload = key_value(plan.keys, _NEWEST[name])
    fill_keys(stage.services[name], workload, stage.client)
    return load_job(plan, arm, stage, seed, workload)
