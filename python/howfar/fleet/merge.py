"""One load on several clients: divide a job and merge the results. Percentiles are of all samples, never averages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from math import sqrt

from howfar.engine.messages import (
    Account,
    Bytes,
    Classes,
    CpuUse,
    Custom,
    Fairness,
    Finished,
    Histogram,
    Interval,
    LoadJob,
    Lookups,
    PageJob,
    SequenceValues,
    Sysbench,
    TcpFacts,
    Workload,
)
from howfar.errors import LabError, PlanError
from howfar.stats.histograms import merge, merge_data, value_at
from howfar.store.records import HistogramRecord


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
"""Of sysbench's workloads: those whose rows depend on a connection's number."""


def _of_one_client(workload: Workload) -> bool:
    """Whether two clients with this workload would take each other's rows or keys."""
    if not isinstance(workload, Sysbench):
        return False
    return workload.kind in _BY_CONNECTION or (workload.kind == "oltp_insert" and not workload.auto_inc)


def _interleaved(workload: Workload, number: int, clients: int) -> Workload:
    """The workload of one of several clients: of each sequence it takes every n-th value of n, so that no key is taken twice."""
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


def merged_intervals(clients: Sequence[Sequence[Interval]]) -> tuple[Interval, ...]:
    """Merge the slices of the window, which are the same for all: one moment was set for them. Raises LabError."""
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
        found.append(first.model_copy(update={**sums, "classes": _classes([one.classes for one in slices])}))
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
    to_server, to_client = (sum(getattr(one.bytes, to) for one in clients) for to in ("to_server", "to_client"))
    return first.model_copy(
        update={
            **summed,
            "elapsed_ns": max(one.elapsed_ns for one in clients),
            "answered": _all_or_none([one.answered for one in clients]),
            "classes": _classes([one.classes for one in clients]),
            "lookups": _lookups([one.lookups for one in clients if one.lookups is not None]),
            "bytes": Bytes(to_server=to_server, to_client=to_client),
            "errors": dict(errors),
            "open_loop": _account(accounts) if accounts else None,
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


def _classes(all_: Sequence[Classes]) -> Classes:
    return Classes(**{name: sum(getattr(one, name) for one in all_) for name in ("read", "write", "other")})


def _lookups(all_: Sequence[Lookups]) -> Lookups | None:
    return Lookups(**{name: sum(getattr(one, name) for one in all_) for name in Lookups.model_fields}) if all_ else None


def _account(all_: Sequence[Account]) -> Account:
    return Account(**{name: sum(getattr(one, name) for one in all_) for name in Account.model_fields})


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
                    "data": together.encode().decode(),
                }
            )
        )
    return tuple(found)
