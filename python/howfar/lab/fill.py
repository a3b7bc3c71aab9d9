"""Key-value stores filled before a load: the engine sets every key, and the store's own count proves it."""

from __future__ import annotations

from howfar.engine.messages import (
    KeyValue,
    Session,
    TablesDone,
    TablesJob,
)
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LabError
from howfar.lab.stage import ServicePlace

_CONNECTIONS = 1
_STALL_NS = 30_000_000_000


def fill_keys(place: ServicePlace, keys: KeyValue, launcher: Launcher) -> int:
    """Set all `keys` in a store that is empty, by the stage's path from where `launcher` puts the engine; how many they are.

    A server that stores fewer than it was sent, as one short of memory does, raises LabError; so do those that fail, or EngineError.
    """
    assert place.count_keys is not None, f"{place.server_kind} has no keys to be set"
    service = place.service
    job = TablesJob(
        action="prepare",
        target=service.target,
        user=service.user,
        password=service.password,
        database=service.database,
        workload=keys,
        connections=_CONNECTIONS,
        seed=1,  # a value depends on its key's number alone
        session=Session(tls=service.tls),
        stall_timeout_ns=_STALL_NS,
    )
    with EngineProcess(job, launcher) as engine:
        done = list(engine.events())[-1]
    assert isinstance(done, TablesDone), "a tables job ends with it"
    held = place.count_keys()
    if held != keys.keys:
        raise LabError(
            f"{place.server_kind} holds {held} keys where {keys.keys} were set ({done.rows} by the engine's account)",
            "Does it have the memory for them?",
        )
    return held
