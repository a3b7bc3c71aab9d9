"""Runs a load job or a tables job to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from howfar.contract.messages import (
    Event,
    FastCgi,
    Finished,
    Interval,
    LoadJob,
    Measuring,
    PageJob,
    Ready,
    TablesDone,
    TablesJob,
)
from howfar.contract.services import services_of
from howfar.engine.process import EngineProcess, Launcher, bounded
from howfar.errors import EngineError

_TIMEOUT_S = 30.0
"""Time in addition to the maximum that a job's own limits allow."""


MeasuredJob = LoadJob | PageJob
"""A job with a measured window of a load."""


@dataclass(frozen=True)
class LoadOutcome:
    """The events of a load or page job that ended without failure."""

    ready: Ready
    measuring: Measuring
    intervals: tuple[Interval, ...]
    finished: Finished


def _connect_phases(job: MeasuredJob) -> int:
    """How many times in a row the engine may wait for `connect_timeout_ns` before it measures."""
    if isinstance(job, LoadJob):
        return 1
    # Each service of a page script is opened twice for its receipt; then a worker opens one after the other.
    return 2 if isinstance(job.application, FastCgi) else 4 * len(services_of(job.application))


def max_duration_s(job: MeasuredJob) -> float:
    """Maximum duration of a job. The engine bounds each of its phases; this limit ends an engine whose own limits fail."""
    phases_ns = _connect_phases(job) * job.connect_timeout_ns + job.warmup_ns + job.measure_ns + job.stall_timeout_ns
    return phases_ns / 1e9 + _TIMEOUT_S


def run_load(job: MeasuredJob, launcher: Launcher, on_event: Callable[[Event], None] | None = None) -> LoadOutcome:
    """Run a load job, or load by pages, to its end. Raises EngineFailed, EngineError."""
    ready: Ready | None = None
    measuring: Measuring | None = None
    intervals: list[Interval] = []
    with EngineProcess(job, launcher) as engine, bounded(engine, max_duration_s(job)):
        for event in engine.events():
            if on_event is not None:
                on_event(event)
            if isinstance(event, Ready):
                ready = event
            elif isinstance(event, Measuring):
                measuring = event
            elif isinstance(event, Interval):
                intervals.append(event)
            elif isinstance(event, Finished):
                if ready is None or measuring is None:
                    raise EngineError(
                        f"howfar-engine {job.job} finished without having been ready", "Please report this."
                    )
                return LoadOutcome(ready, measuring, tuple(intervals), event)
    raise EngineError(f"howfar-engine {job.job} ended without a result", "Please report this.")


def run_tables(job: TablesJob, launcher: Launcher, on_event: Callable[[Event], None] | None = None) -> TablesDone:
    """Run a tables job to its end, however long: each of its waits is bounded by the engine. Raises EngineFailed, EngineError."""
    with EngineProcess(job, launcher) as engine:
        for event in engine.events():
            if on_event is not None:
                on_event(event)
            if isinstance(event, TablesDone):
                return event
    raise EngineError("howfar-engine tables ended without a result", "Please report this.")
