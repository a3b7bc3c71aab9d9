"""Load jobs that log their keys, for tests: the workload of single-row inserts, a job's events, a server that can be ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from howfar.contract.messages import (
    AcknowledgementLog,
    Event,
    Failed,
    LoadJob,
    NullJob,
    NullReady,
    Session,
    Target,
    UnixTarget,
)
from howfar.engine.process import EngineFailed, EngineProcess
from howfar.experiments.replication.factors import SHORT_ROW
from howfar.experiments.replication.inserts import single_row_inserts

T = TypeVar("T")
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
INSERTS = single_row_inserts(SHORT_ROW)
TABLE = INSERTS.prepare[1]


def job(target: Target, log: Path | None, **changes: Any) -> LoadJob:
    """A short closed loop of inserts."""
    fields: dict[str, Any] = {
        "target": target,
        "user": "null",
        "database": "null",
        "workload": INSERTS,
        "connections": 4,
        "seed": 1,
        "warmup_ns": 0,
        "measure_ns": 300 * MILLISECOND,
        "acknowledged": None if log is None else str(log),
    }
    return LoadJob(**(fields | changes))


def ending(how: str) -> Session:
    """A session whose `on_disconnect` is `how`."""
    return Session.model_validate({"on_disconnect": how})


def run(wanted: LoadJob, at: Callable[[Event], None] | None = None) -> list[Event]:
    """All events of a job, even of one that fails; `at` is called with each as it arrives."""
    events: list[Event] = []
    with EngineProcess(wanted) as engine:
        try:
            for event in engine.events():
                events.append(event)
                if at is not None:
                    at(event)
        except EngineFailed as failed:
            events.append(Failed(code=failed.code, message=failed.message, advice=failed.advice))
    return events


def only(events: list[Event], kind: type[T]) -> T:
    """The one event of this kind."""
    (found,) = [event for event in events if isinstance(event, kind)]
    return found


def log_event(events: list[Event]) -> AcknowledgementLog:
    """The event about the log, which comes right before the last event."""
    assert isinstance(events[-2], AcknowledgementLog), events
    return events[-2]


@contextmanager
def null_server(work: Path, **changes: Any) -> Iterator[tuple[EngineProcess, UnixTarget]]:
    """A server that answers everything from memory; may be killed."""
    target = UnixTarget(path=str(work / "null.sock"))
    with EngineProcess(NullJob(listen=target, **changes)) as server:
        assert isinstance(server.read(), NullReady)
        yield server, target
