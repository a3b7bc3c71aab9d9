"""Measures how the load generator scales over 1, 2, 4 … client hosts against a null server, and what controlling a trial costs.

Each block measures every number of clients once, in random order; ratios compare measurements of the same block. Each block also
compares a load from one client with the same number of connections divided over all clients. For this comparison the server has a
service time, so that no CPU is saturated, and p50 and p99 should be equal.
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

from howfar.bench.calibration import POINT_SELECT
from howfar.contract.messages import (
    Event,
    Finished,
    LoadJob,
    Measuring,
    NullJob,
    Observed,
    TcpListen,
    TcpTarget,
)
from howfar.contract.receipt import HostReport
from howfar.engine.null_server import run_null_server
from howfar.errors import EngineError
from howfar.fleet.clocks import Clocks, ClockServer, read_clocks
from howfar.fleet.load import LateStart, LoadHosts, measure
from howfar.fleet.ray_driver import cpus_of
from howfar.fleet.remote import RemoteHost, RemoteLauncher
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import judge_ratio, mean_interval

_WARMUP_NS = 500_000_000
SERVICE_NS = 5_000_000
"""Service time of the server when one client is compared with all."""
_MAX_ATTEMPTS = 4
"""Maximum number of attempts at one measurement if a host starts late."""
_AGENT_PREFIX = "ray::"
"""Prefix of the names that Ray gives to processes of actors."""


@dataclass(frozen=True)
class ScaleOutRequest:
    blocks: int = 6
    measure_ns: int = 3_000_000_000
    connections: int = 16
    """Connections of each client."""


_Arm = tuple[int, int]
"""The server's service time in ns, and the number of clients that share the load."""


@dataclass(frozen=True)
class _RemoteNullServer:
    """A running null server, and its process to observe, by host."""

    target: TcpTarget
    observed_by_host: Mapping[str, tuple[RemoteLauncher, tuple[Observed, ...]]]


@dataclass(frozen=True)
class ScaleOutLoad:
    """The results of one measurement."""

    queries_per_s: float
    p50_ns: int
    p99_ns: int
    client_busy: float
    """Share of the time that the busiest thread of any client was on a CPU."""
    server_busy: float
    """Share of the time that the null server's busiest thread was on a CPU."""
    late_ns: int
    """Lateness of the host that started last."""
    control_ns: int
    """Duration of the measurement less warm-up and window: the time to start engines, open connections, read clocks and fetch
    results."""
    ray_cpu: float | None
    """CPUs that Ray's own processes kept busy, on the busiest client host; None if they run outside howfar's sandbox."""
    agent_cpu: float
    """CPUs that howfar's agent kept busy in the window, on the busiest client host."""


@dataclass(frozen=True)
class Scale:
    """Results for one number of clients."""

    clients: int
    queries_per_s: Estimate
    over_one: Estimate
    """Ratio of the throughput to that of one client."""
    client_busy: float
    server_busy: float
    late_ns: int
    void: int
    """Number of measurements that were repeated because a host had started late."""
    control_ns: float
    ray_cpu: float | None
    agent_cpu: float


@dataclass(frozen=True)
class Division:
    """Latencies with the connections divided over all clients, as ratios to those with the same number from one client."""

    clients: int
    connections: int
    service_ns: int
    p50: Estimate
    p99: Estimate
    p50_ns: float
    """With one client; so is `p99_ns`."""
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
    """None if there is only one client."""


def client_counts(clients: int) -> tuple[int, ...]:
    """The numbers of clients to measure: powers of two, and all. `client_counts(6)` is 1, 2, 4, 6."""
    counts = [1]
    while counts[-1] * 2 <= clients:
        counts.append(counts[-1] * 2)
    return tuple(dict.fromkeys((*counts, clients)))


def scale_out(
    server: RemoteHost, clients: Sequence[RemoteHost], request: ScaleOutRequest, on_block: Callable[[int], None]
) -> ScaleOut:
    """Measure each number of clients; repeat a measurement after a late start. Raises LateStart, EngineError, LabError."""
    loads: dict[_Arm, list[ScaleOutLoad]] = defaultdict(list)
    void_counts: Counter[_Arm] = Counter()
    random_order = random.Random(0)
    counts, max_clients = client_counts(len(clients)), len(clients)
    arms: list[_Arm] = [(0, count) for count in counts] + [
        (SERVICE_NS, count) for count in {1, max_clients} if max_clients > 1
    ]
    with ExitStack() as stack:
        null_servers = {service_ns: stack.enter_context(_null_server(server, service_ns)) for service_ns in dict(arms)}
        clocks = stack.enter_context(_clocks((server, *clients)))
        for block in range(request.blocks):
            for service_ns, count in random_order.sample(arms, len(arms)):
                connections = request.connections * (max_clients if service_ns else count)
                load, void_count = repeat_if_late(
                    partial(
                        _measure_load,
                        clients[:count],
                        connections,
                        null_servers[service_ns],
                        clocks,
                        request.measure_ns,
                    )
                )
                loads[service_ns, count].append(load)
                void_counts[service_ns, count] += void_count
            on_block(block + 1)
    rows = tuple(_summarise_scale(count, loads, void_counts[0, count]) for count in counts)
    division = (
        compare_division(max_clients, request.connections * max_clients, loads, void_counts)
        if max_clients > 1
        else None
    )
    return ScaleOut(request.connections, request.blocks, request.measure_ns, len(cpus_of(server)), rows, division)


def repeat_if_late(measure_once: Callable[[], ScaleOutLoad]) -> tuple[ScaleOutLoad, int]:
    """Repeat a measurement until every host starts in time; returns it and the number of void attempts. Raises LateStart."""
    for void in range(_MAX_ATTEMPTS - 1):
        try:
            return measure_once(), void
        except LateStart:
            continue
    return measure_once(), _MAX_ATTEMPTS - 1


@contextmanager
def _null_server(host: RemoteHost, service_ns: int) -> Iterator[_RemoteNullServer]:
    cpus = cpus_of(host)
    launcher = host.launcher(cpus)
    job = NullJob(listen=TcpListen(host=host.spec.address), threads=len(cpus), delay_ns=service_ns)
    with run_null_server(job, launcher) as server:
        assert isinstance(server.target, TcpTarget), "the server listens on TCP"
        observe = (Observed(role="server", pid=server.pid),)
        yield _RemoteNullServer(server.target, {host.name: (launcher, observe)})


@contextmanager
def _clocks(hosts: Sequence[RemoteHost]) -> Iterator[Callable[[RemoteHost], Clocks]]:
    with ExitStack() as stack:
        ports = {}
        for host in hosts:
            clock = host.create(ClockServer, host.spec.address)
            stack.callback(clock.drop)
            ports[host.name] = clock.facts(int)
        yield lambda host: read_clocks(host.spec.address, ports[host.name])


def _measure_load(
    clients: Sequence[RemoteHost],
    connections: int,
    server: _RemoteNullServer,
    clocks: Callable[[RemoteHost], Clocks],
    measure_ns: int,
) -> ScaleOutLoad:
    job = LoadJob(
        target=server.target,
        user="howfar",
        database="sbtest",
        workload=POINT_SELECT,
        connections=connections,
        seed=1,
        warmup_ns=_WARMUP_NS,
        measure_ns=measure_ns,
    )
    host_reports: dict[str, HostReport] = {}
    first, *other_launchers = (host.launcher(cpus_of(host)) for host in clients)
    client = LoadHosts(
        launcher=first,
        other_clients=tuple(other_launchers),
        clocks=clocks,
        observed_by_host=server.observed_by_host,
        host_reports=host_reports,
    )
    readings: list[tuple[int, list[tuple[int | None, int]]]] = []

    def note_cpu(event: Event) -> None:
        if isinstance(event, Measuring | Finished):
            readings.append((time.monotonic_ns(), [host.within(control_cpu_ns) for host in clients]))

    start_ns = time.monotonic_ns()
    finished = measure(job, client, note_cpu).finished
    duration_ns = time.monotonic_ns() - start_ns
    (window_start_ns, readings_before), (window_end_ns, readings_after) = readings
    window_ns = window_end_ns - window_start_ns
    ray_cpu_ns = [
        after[0] - before[0]
        for after, before in zip(readings_after, readings_before, strict=True)
        if after[0] is not None and before[0] is not None
    ]
    agent_cpu_ns = [after[1] - before[1] for after, before in zip(readings_after, readings_before, strict=True)]
    if not finished.queries:
        raise EngineError("the null server answered nothing", "Is a host overloaded?")
    busiest = {use.role: use.busiest_thread_ns / finished.elapsed_ns for use in finished.cpu}
    latency = next(histogram for histogram in finished.histograms if histogram.kind == "transaction")
    return ScaleOutLoad(
        queries_per_s=finished.queries / finished.elapsed_ns * 1e9,
        p50_ns=latency.p50_ns,
        p99_ns=latency.p99_ns,
        client_busy=busiest["client"],
        server_busy=busiest["server"],
        late_ns=max(report.late_ns or 0 for report in host_reports.values()),
        control_ns=duration_ns - _WARMUP_NS - measure_ns,
        ray_cpu=max(ray_cpu_ns) / window_ns if ray_cpu_ns else None,
        agent_cpu=max(agent_cpu_ns) / window_ns,
    )


def control_cpu_ns() -> tuple[int | None, int]:
    """Run on a host: return the CPU time in ns of Ray's processes in its sandbox (None without any), and of howfar's agent."""
    ray_ns: int | None = None
    agent_ns = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, command = (process / "comm").read_text().strip(), (process / "cmdline").read_bytes()
            on_cpu_ns = sum(int(task.read_text().split()[0]) for task in process.glob("task/*/schedstat"))
        except (OSError, IndexError):
            continue
        if name.startswith(_AGENT_PREFIX) or b"howfar.fleet.namespace_agent" in command:
            agent_ns += on_cpu_ns
        elif name in ("raylet", "gcs_server") or name.startswith("ray"):
            ray_ns = (ray_ns or 0) + on_cpu_ns
    return ray_ns, agent_ns


def _summarise_scale(count: int, loads_by_arm: Mapping[_Arm, Sequence[ScaleOutLoad]], void: int) -> Scale:
    loads = loads_by_arm[0, count]
    return Scale(
        clients=count,
        queries_per_s=mean_interval([load.queries_per_s for load in loads]),
        over_one=_judge_ratio(loads, loads_by_arm[0, 1], "queries_per_s"),
        client_busy=_median(loads, "client_busy"),
        server_busy=_median(loads, "server_busy"),
        late_ns=max(load.late_ns for load in loads),
        void=void,
        control_ns=_median(loads, "control_ns"),
        ray_cpu=None if any(load.ray_cpu is None for load in loads) else _median(loads, "ray_cpu"),
        agent_cpu=_median(loads, "agent_cpu"),
    )


def compare_division(
    max_clients: int, connections: int, loads_by_arm: Mapping[_Arm, Sequence[ScaleOutLoad]], void: Mapping[_Arm, int]
) -> Division:
    one_client, divided = loads_by_arm[SERVICE_NS, 1], loads_by_arm[SERVICE_NS, max_clients]
    return Division(
        clients=max_clients,
        connections=connections,
        service_ns=SERVICE_NS,
        p50=_judge_ratio(divided, one_client, "p50_ns"),
        p99=_judge_ratio(divided, one_client, "p99_ns"),
        p50_ns=_median(one_client, "p50_ns"),
        p99_ns=_median(one_client, "p99_ns"),
        client_busy=_median(one_client, "client_busy"),
        void=void[SERVICE_NS, 1] + void[SERVICE_NS, max_clients],
    )


def _judge_ratio(loads: Sequence[ScaleOutLoad], baseline_loads: Sequence[ScaleOutLoad], name: str) -> Estimate:
    """Return the ratio of the figure `name`, paired by block."""
    return judge_ratio(
        [getattr(load, name) / getattr(baseline, name) for load, baseline in zip(loads, baseline_loads, strict=True)]
    ).reported


def _median(loads: Sequence[ScaleOutLoad], name: str) -> Any:
    return median(getattr(load, name) for load in loads)
