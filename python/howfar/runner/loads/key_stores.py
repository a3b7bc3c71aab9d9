"""Key-value stores: their workloads, and setting all keys before a load."""

from __future__ import annotations

from typing import Literal

from howfar.contract.messages import (
    FixedSize,
    KeyValue,
    Session,
    TablesDone,
    TablesJob,
)
from howfar.contract.violation import Violation, violation
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LabError
from howfar.paths import find_path
from howfar.plan.kinds import KEYS_PER_MULTI_GET, Keys
from howfar.testbed import ServiceEndpoint


def check_misses(misses: int) -> tuple[Violation, ...]:
    """The violation if keys were missed."""
    return (violation("keys-not-found", keys=misses),) if misses else ()


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
