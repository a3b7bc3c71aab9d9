"""`howfar bench calibrate`: measures the engine and a bare ping-pong against the null server, in interleaved blocks.

Plain processes on this machine, each pinned to its CPUs; no privileges and no laboratory are needed. The null server is no database,
so what is measured is the client and the transport.
"""

from __future__ import annotations

import math
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Final, Literal, TypeVar

import howfar
from howfar.bench.meter import kernel
from howfar.contract.messages import (
    LoadJob,
    NullJob,
    Observed,
    PingPong,
    PingPongJob,
    Sysbench,
    TcpListen,
    UnixTarget,
)
from howfar.engine.null_server import NullServer, run_null_server
from howfar.engine.process import Launcher, run_probe
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.errors import EngineError, MissingError
from howfar.lab.network import Shares, share_cpus, usable_cpus
from howfar.quiet_check import QuietCheck
from howfar.stats.estimate import Described, Estimate, Part
from howfar.stats.intervals import hodges_lehmann, judge_ratio

FLOOR_BAR: Final = 1.10
"""Limit for the p50 of an engine query, relative to the bare ping-pong."""
BUSY_SHARE: Final = 0.9
"""Share of a CPU from which the thread that uses it is the bottleneck."""
WAITING_SHARE: Final = 0.1
"""Share of the time waiting for a CPU from which other programs limit the rate."""
HISTOGRAM_BITS: Final = 11
"""Three significant digits are 2048 equal steps, then 1024 for each doubling."""


BlockT = TypeVar("BlockT", bound=Part)


class Limit(StrEnum):
    """What limited the rate."""

    CLIENT = "client"
    SERVER = "server"
    BOTH = "both"
    MACHINE = "machine"
    """Other programs limited it."""
    NEITHER = "neither"


# ---------------------------------------------------------------- measurements of one block


class Exchange(Described):
    """One block of the ping-pong."""

    p50_ns: int
    cpu_ns_per_round: float
    clock_step_ns: int
    clock_read_ns: float


class Load(Described):
    """One block of the engine."""

    p50_ns: int
    queries_per_s: float
    client_ns_per_query: float
    server_ns_per_query: float
    client_busy: float
    """Share of the window that the busiest client thread was on a CPU."""
    server_busy: float
    waiting: float
    """Time that threads of client or server waited for a CPU, relative to the window."""


# ---------------------------------------------------------------- results over all blocks

Transport = Literal["socket", "tcp"]
Cpus = Literal["together", "apart"]
"""Client and null server on one CPU, or on separate ones."""


class Floor(Described):
    """One connection: the shortest round trip, and what the engine adds to it."""

    cpus: Cpus
    ping_pong_p50_us: Estimate
    ping_pong_cpu_us: Estimate
    engine_p50_us: Estimate
    engine_cpu_us: Estimate
    engine_over_ping_pong: Estimate
    """Ratio of the p50s, block by block."""
    within_bar: bool
    """Whether the ratio is at most FLOOR_BAR, by the estimate."""


class Ceiling(Described):
    """Many connections: the highest rate of this client."""

    connections: int
    queries_per_s: Estimate
    client_busy: float
    server_busy: float
    waiting: float
    limit: Limit


class QueryCost(Described):
    """CPU per query at one number of connections."""

    connections: int
    client_us: Estimate
    server_us: Estimate


class OverTransport(Described):
    transport: Transport
    floors: tuple[Floor, ...]
    ceiling: Ceiling
    histogram_step_ns: int
    """Resolution of the histogram at the engine's lowest p50."""
    cpu_per_query: tuple[QueryCost, ...]


class Clock(Described):
    step_ns: int
    """The smallest step observed."""
    read_ns: float
    """The median cost of a reading."""


class Setting(Described):
    """Machine and settings of the measurement."""

    howfar: str
    kernel: str
    client_cpus: tuple[int, ...]
    server_cpus: tuple[int, ...]
    blocks: int
    block_ns: int


class Calibration(Described):
    version: Literal[1] = 1
    setting: Setting
    machine: QuietCheck | None = None
    """Whether this machine is quiet enough to measure; null in older results."""
    clock: Clock
    transports: tuple[OverTransport, ...]


# ---------------------------------------------------------------- arithmetic


def histogram_step_ns(value_ns: int) -> int:
    """The difference that the histogram resolves near `value_ns`: `histogram_step_ns(3371)` is 2."""
    return int(2 ** max(0, value_ns.bit_length() - HISTOGRAM_BITS))


def find_limit(client_busy: float, server_busy: float, waiting: float, *, shared: bool) -> Limit:
    """What limited the rate. If both share one CPU (`shared`), each waits for the other, and their sum counts."""
    if shared:
        return Limit.BOTH if client_busy + server_busy >= BUSY_SHARE else Limit.MACHINE
    if min(client_busy, server_busy) >= BUSY_SHARE:
        return Limit.BOTH
    if max(client_busy, server_busy) >= BUSY_SHARE:
        return Limit.CLIENT if client_busy > server_busy else Limit.SERVER
    return Limit.MACHINE if waiting >= WAITING_SHARE else Limit.NEITHER


def _microseconds(values_ns: Sequence[float]) -> Estimate:
    return hodges_lehmann([value / 1e3 for value in values_ns])


def make_floor(cpus: Cpus, ping_pong: Sequence[Exchange], engine: Sequence[Load]) -> Floor:
    """The floor from the blocks of ping-pong and engine, in the same order."""
    ratio = judge_ratio(
        [load.p50_ns / exchange.p50_ns for exchange, load in zip(ping_pong, engine, strict=True)]
    ).reported
    return Floor(
        cpus=cpus,
        ping_pong_p50_us=_microseconds([block.p50_ns for block in ping_pong]),
        ping_pong_cpu_us=_microseconds([block.cpu_ns_per_round for block in ping_pong]),
        engine_p50_us=_microseconds([block.p50_ns for block in engine]),
        engine_cpu_us=_microseconds([block.client_ns_per_query for block in engine]),
        engine_over_ping_pong=ratio,
        within_bar=ratio.value <= FLOOR_BAR,
    )


def make_ceiling(connections: int, blocks: Sequence[Load], *, shared: bool) -> Ceiling:
    client, server = median(block.client_busy for block in blocks), median(block.server_busy for block in blocks)
    waiting = median(block.waiting for block in blocks)
    return Ceiling(
        connections=connections,
        queries_per_s=hodges_lehmann([block.queries_per_s for block in blocks]),
        client_busy=client,
        server_busy=server,
        waiting=waiting,
        limit=find_limit(client, server, waiting, shared=shared),
    )


def make_query_cost(connections: int, blocks: Sequence[Load]) -> QueryCost:
    return QueryCost(
        connections=connections,
        client_us=_microseconds([block.client_ns_per_query for block in blocks]),
        server_us=_microseconds([block.server_ns_per_query for block in blocks]),
    )


def make_clock(blocks: Sequence[Exchange]) -> Clock:
    """Clock figures over all measurements, which share one clock."""
    steps = [block.clock_step_ns for block in blocks if block.clock_step_ns > 0]
    return Clock(step_ns=min(steps, default=0), read_ns=median(block.clock_read_ns for block in blocks))


def lowest_p50_ns(floors: Sequence[Floor]) -> int:
    """The engine's lowest p50, where resolution matters most."""
    return math.floor(min(floor.engine_p50_us.value for floor in floors) * 1e3)


CONNECTIONS: Final = (1, 64, 512)
"""Numbers of connections at which CPU per query is measured."""
CEILING_CONNECTIONS: Final = 64
"""Connections of the ceiling."""
WARMUP_NS: Final = 100_000_000
ATTEMPTS: Final = 3
"""Attempts per measurement: if one gets no answer, other programs used the CPUs, and it is repeated."""
LOOPBACK: Final = "127.0.0.1"
POINT_SELECT: Final = Sysbench(kind="oltp_read_only", point_selects=1, range_selects=False, skip_trx=True)
"""What oltp_point_select sends: one prepared point select, no transaction around it."""


@dataclass(frozen=True)
class CalibrationRequest:
    transports: tuple[Transport, ...] = ("socket", "tcp")
    blocks: int = 8
    block_ns: int = 500_000_000


@dataclass(frozen=True)
class CalibrationArm:
    """One measurement of every block; `connections` is None for the ping-pong."""

    transport: Transport
    cpus: Cpus
    connections: int | None


def cpu_splits() -> dict[Cpus, Shares]:
    """The CPUs of client and server that this machine allows: both on one CPU and, if there are more, each on its half of them."""
    cpus = usable_cpus()
    shares = share_cpus(cpus)
    # The last CPU, because interrupts and other programs prefer the first.
    splits: dict[Cpus, Shares] = {"together": Shares(client=cpus[-1:], server=cpus[-1:])}
    if not shares.overlap:
        splits["apart"] = shares
    return splits


def arms(transport: Transport, has_separate_cpus: bool) -> tuple[CalibrationArm, ...]:
    """The measurements of a block: one connection in each arrangement, and many connections on separate CPUs."""
    arrangements: tuple[Cpus, ...] = ("together", "apart") if has_separate_cpus else ("together",)
    single = [CalibrationArm(transport, cpus, count) for cpus in arrangements for count in (None, 1)]
    many = [CalibrationArm(transport, arrangements[-1], count) for count in CONNECTIONS if count != 1]
    return (*single, *many)


def calibrate(
    request: CalibrationRequest, machine: QuietCheck, on_block: Callable[[int], None] = lambda _: None
) -> Calibration:
    """Measure all blocks and summarize them. `machine`: how quiet it was just before. Raises EngineError, MissingError."""
    splits = cpu_splits()
    arms_to_measure = [arm for transport in request.transports for arm in arms(transport, "apart" in splits)]
    measured: dict[CalibrationArm, list[Part]] = defaultdict(list)
    rng = random.Random(0)
    with _null_servers(request.transports, splits) as servers:
        for block in range(request.blocks):
            for arm in rng.sample(arms_to_measure, len(arms_to_measure)):
                server = servers[arm.transport, arm.cpus]
                measured[arm].append(_measure(arm, server, splits[arm.cpus], request.block_ns))
            on_block(block + 1)
    return _summarize(request, splits, measured).model_copy(update={"machine": machine})


# ---------------------------------------------------------------- processes


def _pinned_launcher(cpus: tuple[int, ...]) -> Launcher:
    taskset = shutil.which("taskset")
    if taskset is None:
        raise MissingError("the program taskset was not found", "Install util-linux.")
    return Launcher(prefix=(taskset, "--cpu-list", ",".join(map(str, cpus))))


@contextmanager
def _null_servers(
    transports: tuple[Transport, ...], splits: dict[Cpus, Shares]
) -> Iterator[dict[tuple[Transport, Cpus], NullServer]]:
    """A null server for each transport and arrangement; an idle one costs nothing."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="howfar-null-")))
        servers: dict[tuple[Transport, Cpus], NullServer] = {}
        for transport in transports:
            for cpus, split in splits.items():
                listen = UnixTarget(path=str(folder / cpus)) if transport == "socket" else TcpListen(host=LOOPBACK)
                job = NullJob(listen=listen, threads=len(split.server))
                server = run_null_server(job, _pinned_launcher(split.server))
                servers[transport, cpus] = stack.enter_context(server)
        yield servers


def _measure(arm: CalibrationArm, server: NullServer, split: Shares, block_ns: int) -> Part:
    for _ in range(ATTEMPTS):
        measured = _measure_once(arm, server, _pinned_launcher(split.client), block_ns)
        if measured is not None:
            return measured
    raise EngineError(
        f"nothing was answered in {block_ns / 1e9:g} s, {ATTEMPTS} times: other programs occupy the CPUs",
        "Wait until the machine is quieter, or measure for longer (--seconds).",
    )


def _measure_once(arm: CalibrationArm, server: NullServer, launcher: Launcher, block_ns: int) -> Part | None:
    if arm.connections is None:
        job = PingPongJob(target=server.target, warmup_ns=WARMUP_NS, measure_ns=block_ns)
        result = run_probe(job, launcher)
        assert isinstance(result, PingPong), "the engine answers PingPongJob with PingPong"
        return _make_exchange(result)
    load = LoadJob(
        target=server.target,
        user="howfar",
        database="sbtest",
        workload=POINT_SELECT,
        connections=arm.connections,
        seed=1,
        warmup_ns=WARMUP_NS,
        measure_ns=block_ns,
        observe=(Observed(role="server", pid=server.pid),),
    )
    return _make_load(run_load(load, launcher))


def _make_exchange(result: PingPong) -> Exchange:
    return Exchange(
        p50_ns=result.histogram.p50_ns,
        cpu_ns_per_round=result.cpu_ns / result.rounds,
        clock_step_ns=result.clock_step_ns,
        clock_read_ns=result.clock_read_ns,
    )


def _make_load(outcome: LoadOutcome) -> Load | None:
    finished = outcome.finished
    if not finished.queries:
        return None
    cpu_by_role = {record.role: record for record in finished.cpu}
    client, server = cpu_by_role["client"], cpu_by_role["server"]
    point_select = next(record for record in finished.histograms if record.kind == "point_select")
    return Load(
        p50_ns=point_select.p50_ns,
        queries_per_s=finished.queries / finished.elapsed_ns * 1e9,
        client_ns_per_query=client.cpu_ns / finished.queries,
        server_ns_per_query=server.cpu_ns / finished.queries,
        client_busy=client.busiest_thread_ns / finished.elapsed_ns,
        server_busy=server.busiest_thread_ns / finished.elapsed_ns,
        waiting=(client.runnable_wait_ns + server.runnable_wait_ns) / finished.elapsed_ns,
    )


# ---------------------------------------------------------------- the summary


def _summarize(
    request: CalibrationRequest, splits: dict[Cpus, Shares], measured: dict[CalibrationArm, list[Part]]
) -> Calibration:
    widest_split: Cpus = "apart" if "apart" in splits else "together"
    shares = splits[widest_split]

    def blocks_of(kind: type[BlockT], arm: CalibrationArm) -> list[BlockT]:
        return [block for block in measured[arm] if isinstance(block, kind)]

    def summarize_transport(transport: Transport) -> OverTransport:
        loads = {count: blocks_of(Load, CalibrationArm(transport, widest_split, count)) for count in CONNECTIONS}
        floors = tuple(
            make_floor(
                cpus,
                blocks_of(Exchange, CalibrationArm(transport, cpus, None)),
                blocks_of(Load, CalibrationArm(transport, cpus, 1)),
            )
            for cpus in splits
        )
        return OverTransport(
            transport=transport,
            floors=floors,
            ceiling=make_ceiling(CEILING_CONNECTIONS, loads[CEILING_CONNECTIONS], shared=shares.overlap),
            histogram_step_ns=histogram_step_ns(lowest_p50_ns(floors)),
            cpu_per_query=tuple(make_query_cost(count, blocks) for count, blocks in loads.items()),
        )

    return Calibration(
        setting=Setting(
            howfar=howfar.__version__,
            kernel=kernel(),
            client_cpus=shares.client,
            server_cpus=shares.server,
            blocks=request.blocks,
            block_ns=request.block_ns,
        ),
        clock=make_clock([block for arm in measured for block in blocks_of(Exchange, arm)]),
        transports=tuple(summarize_transport(transport) for transport in request.transports),
    )
