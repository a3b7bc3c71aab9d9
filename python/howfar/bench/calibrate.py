"""Run the engine and the bare ping-pong against the null server, in interleaved blocks, and say what came out.

Needs no rights and no laboratory: plain processes on this machine, each tied to its CPUs. The arithmetic is in `calibration.py`.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import howfar
from howfar.bench import calibration
from howfar.bench.calibration import Calibration, Cpus, Exchange, Load, OverTransport, Setting, Transport
from howfar.engine.messages import (
    LoadJob,
    NullJob,
    NullReady,
    Observed,
    PingPong,
    PingPongJob,
    Sysbench,
    TcpListen,
    TcpTarget,
    UnixTarget,
)
from howfar.engine.process import EngineProcess, Launcher, LoadOutcome, run_load, run_probe
from howfar.errors import EngineError, MissingError
from howfar.lab.hosts import share_cpus, usable_cpus
from howfar.stats.estimate import Part

CONNECTIONS: Final = (1, 64, 512)
"""Where CPU per query is taken."""
CEILING: Final = 64
"""Connections at which the ceiling is."""
WARMUP_NS: Final = 100_000_000
ATTEMPTS: Final = 3
"""At a measurement; one in which nothing was answered tells of other programs only."""
LOOPBACK: Final = "127.0.0.1"
# What oltp_point_select sends: one prepared point select, no transaction around it.
WORKLOAD: Final = Sysbench(kind="oltp_read_only", point_selects=1, range_selects=False, skip_trx=True)


@dataclass(frozen=True)
class Request:
    transports: tuple[Transport, ...] = ("socket", "tcp")
    blocks: int = 8
    block_ns: int = 500_000_000


@dataclass(frozen=True)
class Seats:
    """CPUs of both ends."""

    client: tuple[int, ...]
    server: tuple[int, ...]

    @property
    def shared(self) -> bool:
        return bool(set(self.client) & set(self.server))


@dataclass(frozen=True)
class Arm:
    """One thing that every block measures; `connections` None: the ping-pong."""

    transport: Transport
    cpus: Cpus
    connections: int | None


@dataclass(frozen=True)
class _Server:
    target: UnixTarget | TcpTarget
    pid: int


def seatings() -> dict[Cpus, Seats]:
    """Both arrangements that this machine allows: on one CPU, and, with a second one, each on its half."""
    cpus = usable_cpus()
    shares = share_cpus(cpus)
    # The last CPU: interrupts and other programs are more often on the first.
    found: dict[Cpus, Seats] = {"together": Seats(client=cpus[-1:], server=cpus[-1:])}
    if not shares.shared:
        found["apart"] = Seats(client=shares.client, server=shares.server)
    return found


def arms(transport: Transport, apart: bool) -> tuple[Arm, ...]:
    """One connection in each arrangement, and many where client and server have CPUs of their own."""
    arrangements: tuple[Cpus, ...] = ("together", "apart") if apart else ("together",)
    lone = [Arm(transport, cpus, count) for cpus in arrangements for count in (None, 1)]
    many = [Arm(transport, arrangements[-1], count) for count in CONNECTIONS if count != 1]
    return (*lone, *many)


def calibrate(request: Request, on_block: Callable[[int], None] = lambda _: None) -> Calibration:
    """Measure and reckon. Raises EngineError, MissingError."""
    seats = seatings()
    todo = [arm for transport in request.transports for arm in arms(transport, "apart" in seats)]
    measured: dict[Arm, list[Part]] = defaultdict(list)
    order = random.Random(0)
    with _servers(request.transports, seats) as servers:
        for block in range(request.blocks):
            for arm in order.sample(todo, len(todo)):
                server = servers[arm.transport, arm.cpus]
                measured[arm].append(_measure(arm, server, seats[arm.cpus], request.block_ns))
            on_block(block + 1)
    return _reckon(request, seats, measured)


# ---------------------------------------------------------------- processes


def _on(cpus: tuple[int, ...]) -> Launcher:
    taskset = shutil.which("taskset")
    if taskset is None:
        raise MissingError("the program taskset was not found", "Install util-linux.")
    return Launcher(prefix=(taskset, "--cpu-list", ",".join(map(str, cpus))))


@contextmanager
def _servers(
    transports: tuple[Transport, ...], seats: dict[Cpus, Seats]
) -> Iterator[dict[tuple[Transport, Cpus], _Server]]:
    """A null server for each transport and arrangement; one that is not asked costs nothing."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="howfar-null-")))
        servers: dict[tuple[Transport, Cpus], _Server] = {}
        for transport in transports:
            for cpus, place in seats.items():
                path = str(folder / cpus)
                listen = UnixTarget(path=path) if transport == "socket" else TcpListen(host=LOOPBACK)
                job = NullJob(listen=listen, threads=len(place.server))
                process = stack.enter_context(EngineProcess(job, _on(place.server)))
                ready = process.read()
                if not isinstance(ready, NullReady):
                    raise EngineError(f"the null server said {ready!r} before it was ready", "Please report this.")
                target = UnixTarget(path=path) if ready.port is None else TcpTarget(host=LOOPBACK, port=ready.port)
                servers[transport, cpus] = _Server(target, process.pid)
        yield servers


def _measure(arm: Arm, server: _Server, seats: Seats, block_ns: int) -> Part:
    for _ in range(ATTEMPTS):
        measured = _attempt(arm, server, _on(seats.client), block_ns)
        if measured is not None:
            return measured
    raise EngineError(
        f"nothing was answered in {block_ns / 1e9:g} s, {ATTEMPTS} times: other programs have the CPUs",
        "Wait until the machine is quieter, or measure for longer (--seconds).",
    )


def _attempt(arm: Arm, server: _Server, launcher: Launcher, block_ns: int) -> Part | None:
    if arm.connections is None:
        job = PingPongJob(target=server.target, warmup_ns=WARMUP_NS, measure_ns=block_ns)
        result = run_probe(job, launcher)
        assert isinstance(result, PingPong), "the engine answers a job with its own result"
        return _exchange(result)
    load = LoadJob(
        target=server.target,
        user="howfar",
        database="sbtest",
        workload=WORKLOAD,
        connections=arm.connections,
        seed=1,
        warmup_ns=WARMUP_NS,
        measure_ns=block_ns,
        observe=(Observed(role="server", pid=server.pid),),
    )
    return _load(run_load(load, launcher))


def _exchange(result: PingPong) -> Exchange:
    return Exchange(
        p50_ns=result.histogram.p50_ns,
        cpu_ns_per_round=result.cpu_ns / result.rounds,
        clock_step_ns=result.clock_step_ns,
        clock_read_ns=result.clock_read_ns,
    )


def _load(outcome: LoadOutcome) -> Load | None:
    finished = outcome.finished
    if not finished.queries:
        return None
    use = {one.role: one for one in finished.cpu}
    client, server = use["client"], use["server"]
    point_select = next(one for one in finished.histograms if one.kind == "point_select")
    return Load(
        p50_ns=point_select.p50_ns,
        queries_per_s=finished.queries / finished.elapsed_ns * 1e9,
        client_ns_per_query=client.cpu_ns / finished.queries,
        server_ns_per_query=server.cpu_ns / finished.queries,
        client_busy=client.busiest_thread_ns / finished.elapsed_ns,
        server_busy=server.busiest_thread_ns / finished.elapsed_ns,
        waiting=(client.runnable_wait_ns + server.runnable_wait_ns) / finished.elapsed_ns,
    )


# ---------------------------------------------------------------- the answer


def _reckon(request: Request, seats: dict[Cpus, Seats], measured: dict[Arm, list[Part]]) -> Calibration:
    def exchanges(arm: Arm) -> list[Exchange]:
        return [one for one in measured[arm] if isinstance(one, Exchange)]

    def loads(arm: Arm) -> list[Load]:
        return [one for one in measured[arm] if isinstance(one, Load)]

    widest = seats.get("apart", seats["together"])
    most: Cpus = "apart" if "apart" in seats else "together"

    def over(transport: Transport) -> OverTransport:
        floors = tuple(
            calibration.floor(cpus, exchanges(Arm(transport, cpus, None)), loads(Arm(transport, cpus, 1)))
            for cpus in seats
        )
        return OverTransport(
            transport=transport,
            floors=floors,
            ceiling=calibration.ceiling(CEILING, loads(Arm(transport, most, CEILING)), shared=widest.shared),
            histogram_step_ns=calibration.histogram_step_ns(calibration.lowest_p50_ns(floors)),
            cpu_per_query=tuple(
                calibration.query_cost(count, loads(Arm(transport, most, count))) for count in CONNECTIONS
            ),
        )

    return Calibration(
        setting=Setting(
            howfar=howfar.__version__,
            kernel=f"{os.uname().sysname} {platform.release()}",
            client_cpus=widest.client,
            server_cpus=widest.server,
            blocks=request.blocks,
            block_ns=request.block_ns,
        ),
        clock=calibration.clock([one for arm in measured for one in exchanges(arm)]),
        transports=tuple(over(transport) for transport in request.transports),
    )
