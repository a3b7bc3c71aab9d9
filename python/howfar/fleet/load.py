"""A load from other hosts: engines start at one moment on each host's own clock, and CPU is measured where it is used.

The moment is set in advance, because a signal to a host 40 ms away would arrive 40 ms late. Each engine reports how late it started; a
late start voids the trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from howfar.engine.message import Message
from howfar.engine.messages import (
    Begin,
    Begun,
    CpuUse,
    Event,
    Finished,
    Interval,
    LoadJob,
    Measuring,
    Observed,
    PageJob,
    Ready,
    UsageJob,
    Used,
)
from howfar.engine.process import EngineFailed, EngineProcess, Launcher, LoadOutcome, bounded, longest_s
from howfar.errors import EngineError, LabError
from howfar.fleet.clocks import Clocks
from howfar.fleet.merge import divided, merged, merged_intervals
from howfar.fleet.remote import RemoteHost, RemoteLauncher

_LEAD_NS = 30_000_000
"""Beyond the way to the farthest host: the driver hands on one line to each."""
_LATE_SHARE = 0.01
"""Of the window: who begins later, or after the warm-up, has not warmed up as the others have."""


class LateStart(LabError):
    """A host began so late that its load was not that of the others: the trial is void, the next one may not be."""


@dataclass(frozen=True)
class Client(Launcher):
    """A host that runs a stage's load, with its clock offsets. Passed to `measure` as the stage's launcher."""

    launcher: RemoteLauncher = field(kw_only=True)
    others: tuple[RemoteLauncher, ...] = field(default=(), kw_only=True)
    """Further clients, which share the load."""
    clocks: Callable[[RemoteHost], Clocks] = field(kw_only=True)
    elsewhere: Mapping[str, tuple[RemoteLauncher, tuple[Observed, ...]]] = field(kw_only=True)
    """By host: processes whose CPU belongs to the stage, on hosts where the load is not."""
    told: dict[str, dict[str, Any]] = field(kw_only=True)
    """By host, for the receipt: offset of its clock with its bound, how late it began and, of a client, how it fared."""

    def popen(self, command: Any, **options: Any) -> Any:
        return self.launcher.popen(command, **options)


@dataclass
class _Heard:
    """The events of one client's engine so far."""

    ready: Ready
    measuring: list[Measuring] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


def measure(job: LoadJob | PageJob, launcher: Launcher, on_event: Callable[[Event], None]) -> LoadOutcome:
    """See `runner.trial.Measure`. Raises EngineError, LabError, PlanError."""
    assert isinstance(launcher, Client), "a stage of hosts has such a launcher"
    clients = (launcher.launcher, *launcher.others)
    jobs = [one.model_copy(update={"held": True}) for one in divided(job, len(clients))]
    jobs[1:] = [one.model_copy(update={"observe": ()}) for one in jobs[1:]]
    with ExitStack() as ledger, ThreadPoolExecutor(len(clients)) as pool:
        engines = [ledger.enter_context(EngineProcess(*each)) for each in zip(jobs, clients, strict=True)]
        for engine in engines:
            ledger.enter_context(bounded(engine, longest_s(job)))
        heard = [_Heard(ready) for ready in pool.map(_await_ready, engines)]
        _check_alike(clients, heard)
        on_event(heard[0].ready)
        meters = {}
        for name, (where, observe) in launcher.elsewhere.items():
            meters[name] = ledger.enter_context(EngineProcess(_usage(job, observe), where))
            ledger.enter_context(bounded(meters[name], longest_s(job)))
        hosts = {one.host.name: (one.host, engine) for one, engine in zip(clients, engines, strict=True)}
        hosts |= {name: (launcher.elsewhere[name][0].host, meter) for name, meter in meters.items()}
        _begin(hosts, launcher, job)
        names = [client.host.name for client in clients]
        others = [pool.submit(_listen, *each, _nobody) for each in zip(names[1:], engines[1:], heard[1:], strict=True)]
        _listen(names[0], engines[0], heard[0], on_event)
        for other in others:
            other.result()
        used = [one for meter in meters.values() for one in _used(meter)]
    if not all(one.finished and one.measuring for one in heard):
        raise EngineError(f"howfar-engine {job.job} ended without a result", "Please report this.")
    for client, one in zip(clients, heard, strict=True):
        launcher.told[client.host.name] |= _fared(one.finished[0])
    finished = merged([one.finished[0] for one in heard])
    finished = finished.model_copy(update={"cpu": (*finished.cpu, *used)})
    on_event(finished)
    warmup = sum(one.measuring[0].warmup_transactions for one in heard)
    measuring = heard[0].measuring[0].model_copy(update={"warmup_transactions": warmup})
    return LoadOutcome(heard[0].ready, measuring, merged_intervals([one.intervals for one in heard]), finished)


def _nobody(_: Event) -> None:
    """Ignore an event: those of further clients are handled when all have finished."""


def _listen(host: str, engine: EngineProcess, heard: _Heard, on_event: Callable[[Event], None]) -> None:
    """Read an engine's events to the end; the caller reports the end when it has all engines."""
    for event in _named(host, engine):
        if isinstance(event, Measuring):
            heard.measuring.append(event)
        elif isinstance(event, Interval):
            heard.intervals.append(event)
        elif isinstance(event, Finished):
            heard.finished.append(event)
            return
        on_event(event)


def _named(host: str, engine: EngineProcess) -> Iterator[Event]:
    """An engine's events. Raises EngineError with the host's name."""
    try:
        yield from engine.events()
    except EngineFailed:
        raise
    except EngineError as error:
        raise EngineError(f"host {host}: {error.message}", error.advice) from error


def _check_alike(clients: tuple[RemoteLauncher, ...], heard: list[_Heard]) -> None:
    """Check that all clients have the session of the first, which the receipt proves. Raises LabError."""
    first = heard[0].ready.receipt
    for client, one in zip(clients, heard, strict=True):
        for what in ("peer_address", "address_family", "tls_client_version", "compression"):
            if getattr(one.ready.receipt, what) != getattr(first, what):
                raise LabError(
                    f"{what} of host {client.host.name} is {getattr(one.ready.receipt, what)}, not {getattr(first, what)}"
                )


def _usage(job: LoadJob | PageJob, observe: tuple[Observed, ...]) -> Message:
    return UsageJob(observe=observe, warmup_ns=job.warmup_ns, measure_ns=job.measure_ns)


def _await_ready(engine: EngineProcess) -> Ready:
    event = engine.read()
    if not isinstance(event, Ready):
        raise EngineError(f"howfar-engine said {event.event} before it was ready", "Please report this.")
    return event


def _fared(finished: Finished) -> dict[str, Any]:
    """Of one client: its part of the load, and whether its own CPU or its own lateness held it back."""
    own = next(use for use in finished.cpu if use.role == "client")
    late = next((one.p99_ns for one in finished.histograms if one.kind == "lateness"), None)
    return {
        "transactions": finished.transactions,
        "busiest_thread_share": round(own.busiest_thread_ns / finished.elapsed_ns, 3),
        **({} if late is None else {"lateness_p99_ns": late}),
        **({} if finished.open_loop is None else {"unanswered": finished.open_loop.unanswered}),
    }


def _begin(hosts: Mapping[str, tuple[RemoteHost, EngineProcess]], client: Client, job: LoadJob | PageJob) -> None:
    """Set one start for all clients. Raises LateStart."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        clocks = dict(zip(hosts, pool.map(lambda one: client.clocks(one[0]), hosts.values()), strict=True))
        farthest_ns = max(clock.monotonic.bound_ns for clock in clocks.values())
        at_ns = time.monotonic_ns() + _LEAD_NS + 4 * farthest_ns

        def start(name: str) -> Begun:
            engine = hosts[name][1]
            engine.send(Begin(at_ns=at_ns + clocks[name].monotonic.offset_ns))
            begun = engine.read()
            if not isinstance(begun, Begun):
                raise EngineError(f"howfar-engine said {begun.event} before it began", "Please report this.")
            return begun

        begun = dict(zip(hosts, pool.map(start, hosts), strict=True))
    for name, one in begun.items():
        clock = clocks[name].monotonic
        client.told[name] = {
            "clock_offset_ns": clock.offset_ns,
            "clock_bound_ns": clock.bound_ns,
            "late_ns": one.late_ns,
        }
        if one.late_ns > min(_LATE_SHARE * job.measure_ns, job.warmup_ns):
            raise LateStart(
                f"host {name} began {one.late_ns / 1e6:.1f} ms late", "Is it, or the way to it, overloaded?"
            )


def _used(meter: EngineProcess) -> tuple[CpuUse, ...]:
    event = meter.read()
    if not isinstance(event, Used):
        raise EngineError(f"howfar-engine usage said {event.event}", "Please report this.")
    return tuple(event.cpu)
