"""Runs a load from several hosts: divides the job among them, starts all at the same time by their own clocks, and merges the
results. CPU time is measured on the host that uses it.

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

from howfar.contract.message import Message
from howfar.contract.messages import (
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
    Ready,
    SequenceValues,
    Sysbench,
    TcpFacts,
    UsageJob,
    Used,
    Workload,
)
from howfar.contract.receipt import HostReport
from howfar.engine.process import EngineFailed, EngineProcess, Launcher, bounded
from howfar.engine.run_load import LoadOutcome, MeasuredJob, max_duration_s
from howfar.errors import EngineError, LabError, PlanError
from howfar.fleet.clocks import Clocks
from howfar.stats.hdr import encode
from howfar.stats.histograms import merge, merge_data, value_at

if TYPE_CHECKING:  # Ray, which dividing and merging do not need
    from howfar.fleet.remote import RemoteHost, RemoteLauncher

_MessageType = TypeVar("_MessageType", bound=Message)
_START_LEAD_NS = 30_000_000
"""Time from now to the start, in addition to the delay to the farthest host; in this time the driver sends a line to each host."""
_MAX_LATENESS_SHARE = 0.01
"""Maximum lateness of a start, as a share of the window: a host that starts later is not as warm as the others."""


class LateStart(LabError):
    """A host began so late that its load differed from the others'. The trial is void, but another attempt may succeed."""


@dataclass(frozen=True)
class LoadHosts(Launcher):
    """The hosts that run an environment's load, and how to read their clocks. Passed to `measure` as the environment's launcher."""

    launcher: RemoteLauncher = field(kw_only=True)
    other_clients: tuple[RemoteLauncher, ...] = field(default=(), kw_only=True)
    """Further clients, which share the load."""
    clocks: Callable[[RemoteHost], Clocks] = field(kw_only=True)
    observed_by_host: Mapping[str, tuple[RemoteLauncher, tuple[Observed, ...]]] = field(kw_only=True)
    """By host: processes whose CPU time belongs to the environment, on hosts other than the first client's."""
    host_reports: dict[str, HostReport] = field(kw_only=True)
    """Filled by `measure`, by host, for the receipt: clock offset with its bound, lateness of the start and, for a client, its
    results."""

    def popen(self, command: Any, **options: Any) -> Any:
        return self.launcher.popen(command, **options)


@dataclass
class _ClientEvents:
    """The events of one client's engine so far."""

    ready: Ready
    measuring: list[Measuring] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


def measure(job: MeasuredJob, launcher: Launcher, on_event: Callable[[Event], None]) -> LoadOutcome:
    """See `runner.trial.Measure`. Raises EngineError, LabError, PlanError."""
    assert isinstance(launcher, LoadHosts), "the launcher of an environment of hosts is a LoadHosts"
    clients = (launcher.launcher, *launcher.other_clients)
    jobs = [client_job.model_copy(update={"waits_for_begin": True}) for client_job in divide_job(job, len(clients))]
    jobs[1:] = [client_job.model_copy(update={"observe": ()}) for client_job in jobs[1:]]
    with ExitStack() as stack, ThreadPoolExecutor(len(clients)) as pool:
        engines = [stack.enter_context(EngineProcess(*arguments)) for arguments in zip(jobs, clients, strict=True)]
        for engine in engines:
            stack.enter_context(bounded(engine, max_duration_s(job)))
        client_events = [_ClientEvents(ready) for ready in pool.map(_await_ready, engines)]
        _check_same_session(clients, client_events)
        on_event(client_events[0].ready)
        meters = {}
        for name, (usage_launcher, observe) in launcher.observed_by_host.items():
            usage = UsageJob(observe=observe, warmup_ns=job.warmup_ns, measure_ns=job.measure_ns)
            meters[name] = stack.enter_context(EngineProcess(usage, usage_launcher))
            stack.enter_context(bounded(meters[name], max_duration_s(job)))
        engines_by_host = {
            client.host.name: (client.host, engine) for client, engine in zip(clients, engines, strict=True)
        }
        engines_by_host |= {name: (launcher.observed_by_host[name][0].host, meter) for name, meter in meters.items()}
        _start_together(engines_by_host, launcher, job)
        names = [client.host.name for client in clients]
        pending_readers = [
            pool.submit(_read_events, *arguments, lambda _: None)
            for arguments in zip(names[1:], engines[1:], client_events[1:], strict=True)
        ]
        _read_events(names[0], engines[0], client_events[0], on_event)
        for reader in pending_readers:
            reader.result()
        observed_cpu = [use for meter in meters.values() for use in _read_usage(meter)]
    if not all(events.finished and events.measuring for events in client_events):
        raise EngineError(f"howfar-engine {job.job} ended without a result", "Please report this.")
    for client, events in zip(clients, client_events, strict=True):
        reports, name = launcher.host_reports, client.host.name
        reports[name] = reports[name].updated(_client_summary(events.finished[0]))
    finished = merge_results([events.finished[0] for events in client_events])
    finished = finished.model_copy(update={"cpu": (*finished.cpu, *observed_cpu)})
    on_event(finished)
    warmup_transactions = sum(events.measuring[0].warmup_transactions for events in client_events)
    measuring = client_events[0].measuring[0].model_copy(update={"warmup_transactions": warmup_transactions})
    return LoadOutcome(
        client_events[0].ready, measuring, merge_intervals([events.intervals for events in client_events]), finished
    )


def _read_events(
    host: str, engine: EngineProcess, client_events: _ClientEvents, on_event: Callable[[Event], None]
) -> None:
    """Read an engine's events up to `Finished`, which the caller reports when all engines have ended."""
    for event in _events_of(host, engine):
        if isinstance(event, Measuring):
            client_events.measuring.append(event)
        elif isinstance(event, Interval):
            client_events.intervals.append(event)
        elif isinstance(event, Finished):
            client_events.finished.append(event)
            return
        on_event(event)


def _events_of(host: str, engine: EngineProcess) -> Iterator[Event]:
    """Yield an engine's events. Raises EngineError with the host's name."""
    try:
        yield from engine.events()
    except EngineFailed:
        raise
    except EngineError as error:
        raise EngineError(f"host {host}: {error.message}", error.advice) from error


def _check_same_session(clients: tuple[RemoteLauncher, ...], client_events: list[_ClientEvents]) -> None:
    """Check that all clients have the same session as the first, which the receipt shows. Raises LabError."""
    first = client_events[0].ready.receipt
    for client, events in zip(clients, client_events, strict=True):
        for field_name in ("peer_address", "address_family", "tls_client_version", "compression"):
            if getattr(events.ready.receipt, field_name) != getattr(first, field_name):
                raise LabError(
                    f"{field_name} of host {client.host.name} is {getattr(events.ready.receipt, field_name)}, "
                    f"not {getattr(first, field_name)}"
                )


def _await_ready(engine: EngineProcess) -> Ready:
    event = engine.read()
    if not isinstance(event, Ready):
        raise EngineError(f"howfar-engine sent `{event.event}` before `ready`", "Please report this.")
    return event


def _client_summary(finished: Finished) -> HostReport:
    """Summarise the results of one client: its part of the load, and figures that show whether its own CPU or lateness limited it."""
    cpu_use = next(use for use in finished.cpu if use.role == "client")
    lateness = next((histogram for histogram in finished.histograms if histogram.kind == "lateness"), None)
    busy_share = round(cpu_use.busiest_thread_ns / finished.elapsed_ns, 3)
    summary = HostReport(transactions=finished.transactions, busiest_thread_share=busy_share)
    if lateness is not None:
        summary.lateness_p99_ns = lateness.p99_ns
    if finished.open_loop is not None:
        summary.unanswered = finished.open_loop.unanswered
    return summary


def _start_together(
    engines_by_host: Mapping[str, tuple[RemoteHost, EngineProcess]], load_hosts: LoadHosts, job: MeasuredJob
) -> None:
    """Start the engines, given by host, at the same time. Raises LateStart, EngineError."""
    with ThreadPoolExecutor(len(engines_by_host)) as pool:
        clocks = dict(
            zip(
                engines_by_host,
                pool.map(lambda host_and_engine: load_hosts.clocks(host_and_engine[0]), engines_by_host.values()),
                strict=True,
            )
        )
        max_bound_ns = max(clock.monotonic.bound_ns for clock in clocks.values())
        at_ns = time.monotonic_ns() + _START_LEAD_NS + 4 * max_bound_ns

        def start(name: str) -> Begun:
            engine = engines_by_host[name][1]
            engine.send(Begin(at_ns=at_ns + clocks[name].monotonic.offset_ns))
            begun = engine.read()
            if not isinstance(begun, Begun):
                raise EngineError(f"howfar-engine sent `{begun.event}` before `begun`", "Please report this.")
            return begun

        begun = dict(zip(engines_by_host, pool.map(start, engines_by_host), strict=True))
    for name, engine_start in begun.items():
        clock = clocks[name].monotonic
        load_hosts.host_reports[name] = HostReport(
            clock_offset_ns=clock.offset_ns, clock_bound_ns=clock.bound_ns, late_ns=engine_start.late_ns
        )
        if engine_start.late_ns > min(_MAX_LATENESS_SHARE * job.measure_ns, job.warmup_ns):
            raise LateStart(
                f"host {name} began {engine_start.late_ns / 1e6:.1f} ms late",
                "Is that host, or the network to it, overloaded?",
            )


def _read_usage(meter: EngineProcess) -> tuple[CpuUse, ...]:
    event = meter.read()
    if not isinstance(event, Used):
        raise EngineError(f"howfar-engine usage sent `{event.event}`, not `used`", "Please report this.")
    return tuple(event.cpu)


# ---------------------------------------------------------------- the job, divided


def divide_job(job: MeasuredJob, clients: int) -> list[MeasuredJob]:
    """Divide connections and rate among clients. Raises PlanError."""
    if clients == 1:
        return [job]
    if not isinstance(job, LoadJob) or job.connections < clients or job.acknowledged is not None:
        raise PlanError(
            f"this load cannot be divided over {clients} clients",
            "Only a load of statements can be, with at least one connection (--threads) for each client.",
        )
    if _needs_one_client(job.workload):
        raise PlanError(
            f"{job.workload.kind} cannot be divided over {clients} clients: it assigns rows to connections by their number, which "
            "would be the same on each client",
            "Leave out --clients, or take another workload.",
        )
    shares = [job.connections // clients + (number < job.connections % clients) for number in range(clients)]
    jobs: list[MeasuredJob] = []
    for number, share in enumerate(shares):
        arrivals = job.arrivals
        if arrivals is not None:
            arrivals = arrivals.model_copy(update={"rate_per_s": arrivals.rate_per_s * share / job.connections})
        workload, seed = _interleave_sequences(job.workload, number, clients), job.seed ^ (number << 32)
        update = {"connections": share, "arrivals": arrivals, "workload": workload, "seed": seed}
        jobs.append(job.model_copy(update=update))
    return jobs


_ROWS_BY_CONNECTION = ("select_random_points", "select_random_ranges", "bulk_insert")
"""Sysbench workloads in which a connection's number determines its rows."""


def _needs_one_client(workload: Workload) -> bool:
    """Whether two clients with this workload would use each other's rows or keys."""
    if not isinstance(workload, Sysbench):
        return False
    return workload.kind in _ROWS_BY_CONNECTION or (workload.kind == "oltp_insert" and not workload.auto_inc)


def _interleave_sequences(workload: Workload, number: int, clients: int) -> Workload:
    """Return the workload of client `number` (from 0): of n clients, each takes every n-th value of a sequence, so that no key
    is used twice."""
    if not isinstance(workload, Custom):
        return workload
    statements = tuple(
        statement.model_copy(
            update={
                "parameters": tuple(
                    parameter.model_copy(
                        update={"first": parameter.first + number * parameter.step, "step": clients * parameter.step}
                    )
                    if isinstance(parameter, SequenceValues)
                    else parameter
                    for parameter in statement.parameters
                )
            }
        )
        for statement in workload.statements
    )
    return workload.model_copy(update={"statements": statements})


# ---------------------------------------------------------------- the results, merged


def merge_intervals(clients: Sequence[Sequence[Interval]]) -> tuple[Interval, ...]:
    """Merge the clients' intervals, which have the same bounds, because all clients start at the same time. Raises LabError."""
    if len(clients) == 1:
        return tuple(clients[0])
    bounds = {tuple((interval.start_ns, interval.length_ns) for interval in intervals) for intervals in clients}
    if len(bounds) > 1:
        raise LabError("the clients did not measure the same window", "Please report this.")
    merged = []
    for intervals in zip(*clients, strict=True):
        first = intervals[0]
        sums = {
            name: sum(getattr(interval, name) for interval in intervals)
            for name in ("transactions", "queries", "errors", "reconnects", "backlog")
        }
        histogram = merge_data(interval.latencies for interval in intervals if interval.latencies is not None)
        sums |= {f"p{share}_ns": round(value_at(histogram, share / 100)) for share in (50, 95, 99)}
        sums["max_ns"] = max(interval.max_ns for interval in intervals)
        merged.append(
            first.model_copy(
                update={**sums, "classes": _sum_messages(Classes, [interval.classes for interval in intervals])}
            )
        )
    return tuple(merged)


def merge_results(clients: Sequence[Finished]) -> Finished:
    """Merge the results of all clients."""
    if len(clients) == 1:
        return clients[0]
    first = clients[0]
    summed = {
        name: sum(getattr(client, name) for client in clients)
        for name in (
            "transactions",
            "queries",
            "round_trips",
            "rows",
            "reconnects",
            "starved_receives",
            "peak_memory_bytes",
        )
    }
    errors = reduce(Counter.__add__, (Counter(client.errors) for client in clients), Counter[str]())
    accounts = [client.open_loop for client in clients if client.open_loop is not None]
    lookups = [client.lookups for client in clients if client.lookups is not None]
    lost = [client.lost for client in clients if client.lost is not None]
    return first.model_copy(
        update={
            **summed,
            "elapsed_ns": max(client.elapsed_ns for client in clients),
            "answered": _sum_if_all_known([client.answered for client in clients]),
            "classes": _sum_messages(Classes, [client.classes for client in clients]),
            "lookups": _sum_messages(Lookups, lookups) if lookups else None,
            "bytes": _sum_messages(Bytes, [client.bytes for client in clients]),
            "errors": dict(errors),
            "lost": lost[0].model_copy(update={"at_end": sum(client_lost.at_end for client_lost in lost)})
            if lost
            else None,
            "open_loop": _sum_messages(Account, accounts) if accounts else None,
            "fairness": _merge_fairness([client.fairness for client in clients]),
            "tcp": _merge_tcp([client.tcp for client in clients if client.tcp is not None]),
            "cpu": _sum_cpu([use for client in clients for use in client.cpu]),
            "histograms": _merge_histograms([histogram for client in clients for histogram in client.histograms]),
            "interrupted": next((client.interrupted for client in clients if client.interrupted), None),
        }
    )


def _sum_if_all_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _sum_messages(kind: type[_MessageType], messages: Sequence[_MessageType]) -> _MessageType:
    """Sum messages, field by field; all fields of their type are counts."""
    return kind.model_validate(
        {name: sum(getattr(message, name) for message in messages) for name in kind.model_fields}
    )


def _merge_fairness(messages: Sequence[Fairness]) -> Fairness:
    """Merge fairness. Clients differ by at most one connection, so their means get equal weights."""

    def pooled(mean: str, deviation: str) -> tuple[float, float]:
        means = [getattr(message, mean) for message in messages]
        pooled_mean = sum(means) / len(means)
        variance = sum(
            getattr(message, deviation) ** 2 + (getattr(message, mean) - pooled_mean) ** 2 for message in messages
        ) / len(messages)
        return pooled_mean, sqrt(variance)

    transactions, busy = pooled("transactions_mean", "transactions_stddev"), pooled("busy_mean_ns", "busy_stddev_ns")
    return Fairness(
        transactions_mean=transactions[0],
        transactions_stddev=transactions[1],
        busy_mean_ns=busy[0],
        busy_stddev_ns=busy[1],
    )


def _merge_tcp(messages: Sequence[TcpFacts]) -> TcpFacts | None:
    """Merge TCP figures: counts are summed; of the median and maximum RTT the worst client's is kept."""
    if not messages:
        return None

    def values(name: str) -> list[int]:
        return [value for message in messages if (value := getattr(message, name)) is not None]

    summed = {name: sum(values(name)) for name in ("connections", "retransmits")}
    times = {
        name: sum(values(name)) if values(name) else None
        for name in ("busy_ns", "rwnd_limited_ns", "sndbuf_limited_ns")
    }
    maxima = {name: max(values(name)) for name in ("rtt_p50_ns", "rtt_max_ns")}
    return TcpFacts(**summed, **times, **maxima, min_rtt_ns=min(values("min_rtt_ns"), default=None))


def _sum_cpu(messages: Sequence[CpuUse]) -> tuple[CpuUse, ...]:
    """Sum CPU time by role; the busiest thread is the maximum."""
    totals = []
    for role, group in groupby(sorted(messages, key=lambda use: use.role), key=lambda use: use.role):
        uses = list(group)
        names = ("cpu_ns", "runnable_wait_ns", "threads", "voluntary_switches", "involuntary_switches")
        sums = {name: sum(getattr(use, name) for use in uses) for name in names}
        totals.append(CpuUse(role=role, busiest_thread_ns=max(use.busiest_thread_ns for use in uses), **sums))
    return tuple(totals)


def _merge_histograms(messages: Sequence[Histogram]) -> tuple[Histogram, ...]:
    """Add histograms; the counts are exact."""
    merged = []
    for kind in dict.fromkeys(histogram.kind for histogram in messages):
        histograms = [histogram for histogram in messages if histogram.kind == kind]
        count = sum(histogram.count for histogram in histograms)
        total_ns = sum(histogram.mean_ns * histogram.count for histogram in histograms)
        merged_data = merge(histograms)
        percentiles = {f"p{share}_ns": round(value_at(merged_data, share / 100)) for share in (50, 95, 99)}
        merged.append(
            histograms[0].model_copy(
                update={
                    "count": count,
                    "min_ns": min((histogram.min_ns for histogram in histograms if histogram.count), default=0),
                    "max_ns": max(histogram.max_ns for histogram in histograms),
                    "mean_ns": total_ns / count if count else 0.0,
                    **percentiles,
                    "data": encode(merged_data),
                }
            )
        )
    return tuple(merged)
