"""A load from other hosts: divided among them, started at the same time by each host's own clock, and merged again. CPU time is
measured on the host that uses it.

The start time is set in advance, because a signal to a host 40 ms away would arrive 40 ms late. Each engine reports how late it
started; a late start voids the trial. Percentiles are of all samples, never averages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from math import sqrt
from typing import TYPE_CHECKING, Any, TypeVar

from howfar.engine.message import Message
from howfar.engine.messages import (
    Account,
    Begin,
    Begun,
    Bytes,
    Classes,
    CpuUse,
    Custom,
    Event,
    Fairness,
    Finished,
    Histogram,
    Interval,
    LoadJob,
    Lookups,
    Measuring,
    Observed,
    PageJob,
    Ready,
    SequenceValues,
    Sysbench,
    TcpFacts,
    UsageJob,
    Used,
    Workload,
)
from howfar.engine.process import EngineFailed, EngineProcess, Launcher, bounded
from howfar.engine.run_load import LoadOutcome, longest_s
from howfar.errors import EngineError, LabError, PlanError
from howfar.fleet.clocks import Clocks
from howfar.stats.hdr import encode
from howfar.stats.histograms import merge, merge_data, value_at
from howfar.store.records import HistogramRecord

if TYPE_CHECKING:  # Ray, which dividing and merging do not need
    from howfar.fleet.remote import RemoteHost, RemoteLauncher

_M = TypeVar("_M", bound=Message)
_LEAD_NS = 30_000_000
"""Lead of the start, beyond the delay to the farthest host: the driver sends one line to each host."""
_LATE_SHARE = 0.01
"""Largest lateness, as a share of the window: a host that begins later, or after the warm-up, has not warmed up as the others have."""


class LateStart(LabError):
    """A host began so late that its load differed from the others': the trial is void, but the next one may be good."""


@dataclass(frozen=True)
class Client(Launcher):
    """A host that runs a stage's load, with its clock offsets. Passed to `measure` as the stage's launcher."""

    launcher: RemoteLauncher = field(kw_only=True)
    others: tuple[RemoteLauncher, ...] = field(default=(), kw_only=True)
    """Further clients, which share the load."""
    clocks: Callable[[RemoteHost], Clocks] = field(kw_only=True)
    elsewhere: Mapping[str, tuple[RemoteLauncher, tuple[Observed, ...]]] = field(kw_only=True)
    """By host: processes whose CPU time belongs to the stage, on hosts other than the first client's."""
    told: dict[str, dict[str, Any]] = field(kw_only=True)
    """By host, for the receipt: clock offset with its bound, lateness of the start and, for a client, its results."""

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
            usage = UsageJob(observe=observe, warmup_ns=job.warmup_ns, measure_ns=job.measure_ns)
            meters[name] = ledger.enter_context(EngineProcess(usage, where))
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
    """Read an engine's events to the end; the caller reports the end when all engines have ended."""
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
    """Check that all clients have the same session as the first, which the receipt shows. Raises LabError."""
    first = heard[0].ready.receipt
    for client, one in zip(clients, heard, strict=True):
        for what in ("peer_address", "address_family", "tls_client_version", "compression"):
            if getattr(one.ready.receipt, what) != getattr(first, what):
                raise LabError(
                    f"{what} of host {client.host.name} is {getattr(one.ready.receipt, what)}, not {getattr(first, what)}"
                )


def _await_ready(engine: EngineProcess) -> Ready:
    event = engine.read()
    if not isinstance(event, Ready):
        raise EngineError(f"howfar-engine said {event.event} before it was ready", "Please report this.")
    return event


def _fared(finished: Finished) -> dict[str, Any]:
    """Results of one client: its part of the load, and whether its own CPU or its own lateness limited it."""
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


# ---------------------------------------------------------------- the job, divided


def divided(job: LoadJob | PageJob, clients: int) -> list[LoadJob | PageJob]:
    """Divide connections and rate among clients. Raises PlanError."""
    if clients == 1:
        return [job]
    if isinstance(job, PageJob) or job.connections < clients or job.acknowledged is not None:
        raise PlanError(
            f"this load cannot be divided over {clients} clients",
            "It must be of statements, with a connection (--threads) for each client at the least.",
        )
    if _of_one_client(job.workload):
        raise PlanError(
            f"{job.workload.kind} cannot be divided over {clients} clients: it gives each connection rows of its own, by their number "
            "on one client",
            "Leave out --clients, or take another workload.",
        )
    shares = [job.connections // clients + (number < job.connections % clients) for number in range(clients)]
    found: list[LoadJob | PageJob] = []
    for number, share in enumerate(shares):
        arrivals = job.arrivals
        if arrivals is not None:
            arrivals = arrivals.model_copy(update={"rate_per_s": arrivals.rate_per_s * share / job.connections})
        alone = {"workload": _interleaved(job.workload, number, clients), "seed": job.seed ^ (number << 32)}
        found.append(job.model_copy(update={"connections": share, "arrivals": arrivals, **alone}))
    return found


_BY_CONNECTION = ("select_random_points", "select_random_ranges", "bulk_insert")
"""Workloads of sysbench whose rows depend on a connection's number."""


def _of_one_client(workload: Workload) -> bool:
    """Whether two clients with this workload would use each other's rows or keys."""
    if not isinstance(workload, Sysbench):
        return False
    return workload.kind in _BY_CONNECTION or (workload.kind == "oltp_insert" and not workload.auto_inc)


def _interleaved(workload: Workload, number: int, clients: int) -> Workload:
    """The workload of one of several clients: of each sequence it takes every n-th value for n clients, so that no key is used
    twice."""
    if not isinstance(workload, Custom):
        return workload
    statements = tuple(
        each.model_copy(
            update={
                "parameters": tuple(
                    one.model_copy(update={"first": one.first + number * one.step, "step": clients * one.step})
                    if isinstance(one, SequenceValues)
                    else one
                    for one in each.parameters
                )
            }
        )
        for each in workload.statements
    )
    return workload.model_copy(update={"statements": statements})


# ---------------------------------------------------------------- the results, merged


def merged_intervals(clients: Sequence[Sequence[Interval]]) -> tuple[Interval, ...]:
    """Merge the slices of the window, which are the same for all clients, because these have one start time. Raises LabError."""
    if len(clients) == 1:
        return tuple(clients[0])
    if len({tuple((one.start_ns, one.length_ns) for one in slices) for slices in clients}) > 1:
        raise LabError("the clients did not measure the same window", "Please report this.")
    found = []
    for slices in zip(*clients, strict=True):
        first = slices[0]
        sums = {
            name: sum(getattr(one, name) for one in slices)
            for name in ("transactions", "queries", "errors", "reconnects", "backlog")
        }
        together = merge_data(one.latencies for one in slices if one.latencies is not None)
        sums |= {f"p{share}_ns": round(value_at(together, share / 100)) for share in (50, 95, 99)}
        sums["max_ns"] = max(one.max_ns for one in slices)
        found.append(first.model_copy(update={**sums, "classes": _summed(Classes, [one.classes for one in slices])}))
    return tuple(found)


def merged(clients: Sequence[Finished]) -> Finished:
    """Merge the results of all clients."""
    if len(clients) == 1:
        return clients[0]
    first = clients[0]
    summed = {
        name: sum(getattr(one, name) for one in clients)
        for name in ("transactions", "queries", "turns", "rows", "reconnects", "starved_receives", "peak_memory_bytes")
    }
    errors = reduce(Counter.__add__, (Counter(one.errors) for one in clients), Counter[str]())
    accounts = [one.open_loop for one in clients if one.open_loop is not None]
    lookups = [one.lookups for one in clients if one.lookups is not None]
    lost = [one.lost for one in clients if one.lost is not None]
    return first.model_copy(
        update={
            **summed,
            "elapsed_ns": max(one.elapsed_ns for one in clients),
            "answered": _all_or_none([one.answered for one in clients]),
            "classes": _summed(Classes, [one.classes for one in clients]),
            "lookups": _summed(Lookups, lookups) if lookups else None,
            "bytes": _summed(Bytes, [one.bytes for one in clients]),
            "errors": dict(errors),
            "lost": lost[0].model_copy(update={"at_end": sum(one.at_end for one in lost)}) if lost else None,
            "open_loop": _summed(Account, accounts) if accounts else None,
            "fairness": _fairness([one.fairness for one in clients]),
            "tcp": _tcp([one.tcp for one in clients if one.tcp is not None]),
            "cpu": _cpu([use for one in clients for use in one.cpu]),
            "histograms": _histograms([each for one in clients for each in one.histograms]),
            "interrupted": next((one.interrupted for one in clients if one.interrupted), None),
        }
    )


def _all_or_none(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _summed(kind: type[_M], all_: Sequence[_M]) -> _M:
    """The sum of messages that only have counts."""
    return kind.model_validate({name: sum(getattr(one, name) for one in all_) for name in kind.model_fields})


def _fairness(all_: Sequence[Fairness]) -> Fairness:
    """Merge fairness; clients differ by at most one connection, so their means have equal weight."""

    def pooled(mean: str, deviation: str) -> tuple[float, float]:
        means = [getattr(one, mean) for one in all_]
        centre = sum(means) / len(means)
        spread = sum(getattr(one, deviation) ** 2 + (getattr(one, mean) - centre) ** 2 for one in all_) / len(all_)
        return centre, sqrt(spread)

    transactions, busy = pooled("transactions_mean", "transactions_stddev"), pooled("busy_mean_ns", "busy_stddev_ns")
    return Fairness(
        transactions_mean=transactions[0],
        transactions_stddev=transactions[1],
        busy_mean_ns=busy[0],
        busy_stddev_ns=busy[1],
    )


def _tcp(all_: Sequence[TcpFacts]) -> TcpFacts | None:
    """Merge TCP figures; a median is the worst client's."""
    if not all_:
        return None

    def known(name: str) -> list[int]:
        return [value for one in all_ if (value := getattr(one, name)) is not None]

    summed = {name: sum(known(name)) for name in ("connections", "retransmits")}
    times = {
        name: sum(known(name)) if known(name) else None for name in ("busy_ns", "rwnd_limited_ns", "sndbuf_limited_ns")
    }
    worst = {name: max(known(name)) for name in ("rtt_p50_ns", "rtt_max_ns")}
    return TcpFacts(**summed, **times, **worst, min_rtt_ns=min(known("min_rtt_ns"), default=None))


def _cpu(all_: Sequence[CpuUse]) -> tuple[CpuUse, ...]:
    """Sum CPU time by role; the busiest thread is the maximum."""
    found = []
    for role, group in groupby(sorted(all_, key=lambda use: use.role), key=lambda use: use.role):
        uses = list(group)
        names = ("cpu_ns", "runnable_wait_ns", "threads", "voluntary_switches", "involuntary_switches")
        sums = {name: sum(getattr(use, name) for use in uses) for name in names}
        found.append(CpuUse(role=role, busiest_thread_ns=max(use.busiest_thread_ns for use in uses), **sums))
    return tuple(found)


def _histograms(all_: Sequence[Histogram]) -> tuple[Histogram, ...]:
    """Add histograms; the counts are exact."""
    found = []
    for kind in dict.fromkeys(each.kind for each in all_):
        same = [each for each in all_ if each.kind == kind]
        count = sum(each.count for each in same)
        together = merge(HistogramRecord(**each.model_dump()) for each in same)
        percentiles = {f"p{share}_ns": round(value_at(together, share / 100)) for share in (50, 95, 99)}
        found.append(
            same[0].model_copy(
                update={
                    "count": count,
                    "min_ns": min((each.min_ns for each in same if each.count), default=0),
                    "max_ns": max(each.max_ns for each in same),
                    "mean_ns": sum(each.mean_ns * each.count for each in same) / count if count else 0.0,
                    **percentiles,
                    "data": encode(together),
                }
            )
        )
    return tuple(found)
