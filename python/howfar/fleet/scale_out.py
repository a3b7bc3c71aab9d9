"""How the load generator scales over hosts, against a null server, from 1, 2, 4 … clients; and what controlling a trial costs.

In each block every number of clients is measured once, in random order; a ratio compares measurements of one block. Each
block also compares all connections from one client with the same number divided over all, against a server with a service time:
nothing is full then, so p50 and p99 should be equal.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from howfar.bench.calibration import POINT_SELECT, null_server
from howfar.engine.messages import (
    Event,
    Finished,
    LoadJob,
    Measuring,
    NullJob,
    Observed,
    TcpListen,
    TcpTarget,
)
from howfar.errors import EngineError
from howfar.fleet.clocks import Clocks, ClockServer, read_clocks
from howfar.fleet.joined import cpus_of
from howfar.fleet.load import Client, LateStart, measure
from howfar.fleet.remote import RemoteHost, RemoteLauncher
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import judge_ratio, mean_interval

_WARMUP_NS = 500_000_000
SERVICE_NS = 5_000_000
"""Service time of the server for that comparison."""
_TRIES = 4
"""Attempts at one measurement, while a host begins late."""
_AGENT = "ray::"
"""Prefix of the names that Ray gives to processes of actors."""


@dataclass(frozen=True)
class Request:
    blocks: int = 6
    measure_ns: int = 3_000_000_000
    connections: int = 16
    """Connections of each client."""


_Arm = tuple[int, int]
"""The server's service time in nanoseconds, and how many clients share the load."""


@dataclass(frozen=True)
class _Null:
    """A null server that runs, and what is observed on its host."""

    target: TcpTarget
    elsewhere: Mapping[str, tuple[RemoteLauncher, tuple[Observed, ...]]]


@dataclass(frozen=True)
class Load:
    """One measurement."""

    queries_per_s: float
    p50_ns: int
    p99_ns: int
    client_busy: float
    """Share of the time that the busiest thread of any client was on a CPU."""
    server_busy: float
    """Share of the time that the null server's busiest thread was on a CPU."""
    late_ns: int
    """Lateness of the host that began last."""
    control_ns: int
    """Time taken beyond warm-up and window: to start engines, open connections, read clocks and fetch results."""
    ray_cpu: float | None
    """CPUs that Ray's own processes kept busy in the window, on the busiest load host. None: they are not in our sandbox."""
    agent_cpu: float
    """CPUs that howfar's agent used."""


@dataclass(frozen=True)
class Scale:
    """Results for one number of clients."""

    clients: int
    queries_per_s: Estimate
    over_one: Estimate
    """Throughput over that of one client."""
    client_busy: float
    server_busy: float
    late_ns: int
    void: int
    """Number of measurements that were repeated because a host had begun late."""
    control_ns: float
    ray_cpu: float | None
    agent_cpu: float


@dataclass(frozen=True)
class Division:
    """Ratios of latencies: with connections divided over all clients, over those with as many from one."""

    clients: int
    connections: int
    service_ns: int
    p50: Estimate
    p99: Estimate
    p50_ns: float
    """With one client, like `p99_ns`."""
    p99_ns: float
    client_busy: float
    void: int


@dataclass(frozen=True)
class ScaleOut:
    connections: int
    blocks: int
    measure_ns: int
    server_cpus: int
    rows: tuple[Scale, ...]
    division: Division | None
    """None: there is one client."""


def counts(clients: int) -> tuple[int, ...]:
    """1, 2, 4 … and all of them: `counts(6)` is 1, 2, 4, 6."""
    found = [1]
    while found[-1] * 2 <= clients:
        found.append(found[-1] * 2)
    return tuple(dict.fromkeys((*found, clients)))


def scale_out(
    server: RemoteHost, clients: Sequence[RemoteHost], request: Request, on_block: Callable[[int], None]
) -> ScaleOut:
    """Measure all numbers of clients. Raises EngineError, LabError; a late start is measured again, and only repeated ones raise."""
    found: dict[_Arm, list[Load]] = defaultdict(list)
    void: Counter[_Arm] = Counter()
    order = random.Random(0)
    levels, most = counts(len(clients)), len(clients)
    arms: list[_Arm] = [(0, count) for count in levels] + [(SERVICE_NS, count) for count in {1, most} if most > 1]
    with ExitStack() as ledger:
        nulls = {service_ns: ledger.enter_context(_null_server(server, service_ns)) for service_ns in dict(arms)}
        clocks = ledger.enter_context(_clocks((server, *clients)))
        for block in range(request.blocks):
            for service_ns, count in order.sample(arms, len(arms)):
                connections = request.connections * (most if service_ns else count)
                load, again = on_time(
                    partial(_load, clients[:count], connections, nulls[service_ns], clocks, request.measure_ns)
                )
                found[service_ns, count].append(load)
                void[service_ns, count] += again
            on_block(block + 1)
    rows = tuple(_row(count, found, void[0, count]) for count in levels)
    division = division_of(most, request.connections * most, found, void) if most > 1 else None
    return ScaleOut(request.connections, request.blocks, request.measure_ns, len(cpus_of(server)), rows, division)


def on_time(load: Callable[[], Load]) -> tuple[Load, int]:
    """The first measurement that every host began in time, and how many were void. Raises LateStart."""
    for void in range(_TRIES - 1):
        try:
            return load(), void
        except LateStart:
            continue
    return load(), _TRIES - 1


@contextmanager
def _null_server(host: RemoteHost, service_ns: int) -> Iterator[_Null]:
    cpus = cpus_of(host)
    launcher = host.launcher(cpus)
    job = NullJob(listen=TcpListen(host=host.spec.address), threads=len(cpus), delay_ns=service_ns)
    with null_server(job, launcher) as (pid, port):
        assert port is not None, "it listens on TCP"
        observe = (Observed(role="server", pid=pid),)
        yield _Null(TcpTarget(host=host.spec.address, port=port), {host.name: (launcher, observe)})


@contextmanager
def _clocks(hosts: Sequence[RemoteHost]) -> Iterator[Callable[[RemoteHost], Clocks]]:
    with ExitStack() as ledger:
        ports = {}
        for host in hosts:
            held = host.hold(ClockServer, host.spec.address)
            ledger.callback(held.drop)
            ports[host.name] = int(held.facts["port"])
        yield lambda host: read_clocks(host.spec.address, ports[host.name])


def _load(
    clients: Sequence[RemoteHost],
    connections: int,
    null: _Null,
    clocks: Callable[[RemoteHost], Clocks],
    measure_ns: int,
) -> Load:
    job = LoadJob(
        target=null.target,
        user="howfar",
        database="sbtest",
        workload=POINT_SELECT,
        connections=connections,
        seed=1,
        warmup_ns=_WARMUP_NS,
        measure_ns=measure_ns,
    )
    told: dict[str, dict[str, Any]] = {}
    first, *others = (host.launcher(cpus_of(host)) for host in clients)
    client = Client(launcher=first, others=tuple(others), clocks=clocks, elsewhere=null.elsewhere, told=told)
    seen: list[tuple[int, list[tuple[int | None, int]]]] = []

    def look(event: Event) -> None:
        if isinstance(event, Measuring | Finished):
            seen.append((time.monotonic_ns(), [host.within(control_cpu_ns) for host in clients]))

    began = time.monotonic_ns()
    finished = measure(job, client, look).finished
    took_ns = time.monotonic_ns() - began
    (begun_ns, before), (ended_ns, after) = seen
    window_ns = ended_ns - begun_ns
    ray = [
        now[0] - then[0] for now, then in zip(after, before, strict=True) if now[0] is not None and then[0] is not None
    ]
    agent = [now[1] - then[1] for now, then in zip(after, before, strict=True)]
    if not finished.queries:
        raise EngineError("the null server answered nothing", "Is a host overloaded?")
    busiest = {use.role: use.busiest_thread_ns / finished.elapsed_ns for use in finished.cpu}
    times = next(each for each in finished.histograms if each.kind == "transaction")
    return Load(
        queries_per_s=finished.queries / finished.elapsed_ns * 1e9,
        p50_ns=times.p50_ns,
        p99_ns=times.p99_ns,
        client_busy=busiest["client"],
        server_busy=busiest["server"],
        late_ns=max(one["late_ns"] for one in told.values()),
        control_ns=took_ns - _WARMUP_NS - measure_ns,
        ray_cpu=max(ray) / window_ns if ray else None,
        agent_cpu=max(agent) / window_ns,
    )


def control_cpu_ns() -> tuple[int | None, int]:
    """Run on a host: on-CPU time of Ray's processes in its sandbox, and of howfar's agent."""
    ray: int | None = None
    agent = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, command = (process / "comm").read_text().strip(), (process / "cmdline").read_bytes()
            spent = sum(int(task.read_text().split()[0]) for task in process.glob("task/*/schedstat"))
        except (OSError, IndexError):
            continue
        if name.startswith(_AGENT) or b"howfar.fleet.inner" in command:
            agent += spent
        elif name in ("raylet", "gcs_server") or name.startswith("ray"):
            ray = (ray or 0) + spent
    return ray, agent


def _row(count: int, found: Mapping[_Arm, Sequence[Load]], void: int) -> Scale:
    loads = found[0, count]
    return Scale(
        clients=count,
        queries_per_s=mean_interval([one.queries_per_s for one in loads]),
        over_one=_over(loads, found[0, 1], "queries_per_s"),
        client_busy=_middle(loads, "client_busy"),
        server_busy=_middle(loads, "server_busy"),
        late_ns=max(one.late_ns for one in loads),
        void=void,
        control_ns=_middle(loads, "control_ns"),
        ray_cpu=None if any(one.ray_cpu is None for one in loads) else _middle(loads, "ray_cpu"),
        agent_cpu=_middle(loads, "agent_cpu"),
    )


def division_of(
    most: int, connections: int, found: Mapping[_Arm, Sequence[Load]], void: Mapping[_Arm, int]
) -> Division:
    alone, together = found[SERVICE_NS, 1], found[SERVICE_NS, most]
    return Division(
        clients=most,
        connections=connections,
        service_ns=SERVICE_NS,
        p50=_over(together, alone, "p50_ns"),
        p99=_over(together, alone, "p99_ns"),
        p50_ns=_middle(alone, "p50_ns"),
        p99_ns=_middle(alone, "p99_ns"),
        client_busy=_middle(alone, "client_busy"),
        void=void[SERVICE_NS, 1] + void[SERVICE_NS, most],
    )


def _over(loads: Sequence[Load], others: Sequence[Load], name: str) -> Estimate:
    """Ratio of the figure `name`, paired by block."""
    return judge_ratio(
        [getattr(one, name) / getattr(other, name) for one, other in zip(loads, others, strict=True)]
    ).quoted


def _middle(loads: Sequence[Load], name: str) -> Any:
    return median(getattr(one, name) for one in loads)
