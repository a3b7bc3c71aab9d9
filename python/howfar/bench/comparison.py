"""`howfar bench engine --against sysbench|pgbench|bare`: runs both clients in turn on one server, with the same statements.

The server is the laboratory's, on its Unix socket, without a sandbox. Each client is measured from outside (`meter.py`) in a window
that begins when all its connections run, because the cost of starting would favour the engine. A block measures each client once
at each number of connections; a ratio is one number per block.
"""

from __future__ import annotations

import random
import resource
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

import howfar
from howfar.bench import meter
from howfar.bench.clients import ENGINE_PEERS, find_engine_peer
from howfar.bench.meter import Trial
from howfar.bench.peers import PeerProgram, ServerCounters
from howfar.contract.messages import (
    LoadJob,
    Ready,
    Sysbench,
    UnixTarget,
)
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import EngineError, LabError, MissingError, PlanError
from howfar.lab.cache import work_directory
from howfar.lab.network import Host, Shares, format_cpus, share_cpus, usable_cpus
from howfar.lab.servers import DATABASE, USER, ServerContext, ServerProcess, Store, Tables, find_store
from howfar.services import SERVICES
from howfar.stats.estimate import Described, Estimate
from howfar.stats.intervals import judge_ratio
from howfar.units import counted

Placement = Literal["shared", "apart", "one-cpu"]
"""Client and server on all CPUs, each on its half, or both on one."""
Driver = Literal["auto", "epoll", "io_uring"]
"""How our client waits; `auto`: the engine chooses."""


class Block(Described):
    """Both clients, one after the other in random order: everything else is computed from these."""

    ours: Trial
    peer: Trial


class Side(Described):
    """One client at one number of connections: medians of the blocks."""

    client_cpu_us_per_query: float
    whole_process_cpu_us_per_query: float
    """CPU of the whole process, including starting and connecting, which weigh more in a shorter block."""
    qps: float
    rss_mib: float
    context_switches_per_query: float


class Row(Described):
    connections: int
    ours: Side
    peer: Side
    cpu_ratio: Estimate
    qps_ratio: Estimate
    """Ratio of throughputs. If its whole interval is below 1, our client gets less throughput from the same server."""
    rss_ratio: float
    driver: str | None
    """How our client waits: `epoll` or `io_uring`."""
    cpu_bar: float | None = None
    memory_bar: float | None = None
    """Maximum of the ratio; None if there is no bar for this number of connections."""
    qps_bar: float | None = 1.0
    """Minimum of the ratio of throughputs; None against a bare loop, which no client can exceed."""
    blocks: tuple[Block, ...]

    @property
    def misses(self) -> tuple[str, ...]:
        """Bars that the whole interval of the ratio misses. Memory has no interval and is judged by its median."""
        cpu, memory = self.cpu_bar, self.memory_bar
        misses = []
        if cpu is not None and self.cpu_ratio.low is not None and self.cpu_ratio.low > cpu:
            misses.append(f"client CPU {self.cpu_ratio.value:.3f}, not {cpu:.2f}")
        if memory is not None and self.rss_ratio > memory:
            misses.append(f"memory {self.rss_ratio:.3f}, not {memory:.2f}")
        if self.qps_bar is not None and self.qps_ratio.high is not None and self.qps_ratio.high < self.qps_bar:
            misses.append(f"throughput {self.qps_ratio.value:.3f}, below the peer's")
        return tuple(misses)

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Bars that are neither met nor missed: inside the interval of their ratio, or with no interval."""
        bars = (("client CPU", self.cpu_ratio, self.cpu_bar), ("throughput", self.qps_ratio, self.qps_bar))
        return tuple(
            f"{name} {ratio.value:.3f}, bar {bar:g}"
            for name, ratio, bar in bars
            if bar is not None and within(ratio, bar)
        )


def within(ratio: Estimate, bar: float) -> bool:
    """Whether the bar lies in the ratio's interval, which must be longer than 0 and includes its ends; True without an interval."""
    if ratio.low is None or ratio.high is None:
        return True
    return ratio.low <= bar <= ratio.high and ratio.low < ratio.high


class Setting(Described):
    """Machine and settings of the measurement."""

    howfar: str
    peer: str
    server: str
    kernel: str
    placement: Placement
    client_cpus: tuple[int, ...]
    server_cpus: tuple[int, ...]
    autogroup: bool | None
    """Whether the kernel divides CPU time between sessions rather than threads; None if it does not support that."""
    sessions: Literal["clients together, server apart"] = "clients together, server apart"
    """Both clients run in the session of the bench, the server in another, as a service does."""
    workload: str
    blocks: int
    seconds: float


class Comparison(Described):
    version: Literal[1] = 1
    setting: Setting
    rows: tuple[Row, ...]


def make_side(trials: Sequence[Trial]) -> Side:
    return Side(
        client_cpu_us_per_query=median(_cpu_us(trial) for trial in trials),
        whole_process_cpu_us_per_query=median(trial.whole_cpu_ns / 1e3 / trial.whole_queries for trial in trials),
        qps=median(_qps(trial) for trial in trials),
        rss_mib=median(trial.rss_bytes for trial in trials) / 2**20,
        context_switches_per_query=median(trial.context_switches / trial.queries for trial in trials),
    )


def make_row(
    connections: int, ours: Sequence[Trial], peer: Sequence[Trial], against: PeerProgram = ENGINE_PEERS["sysbench"]
) -> Row:
    """One row from the blocks of both clients, in the same order."""
    pairs = list(zip(ours, peer, strict=True))
    return Row(
        connections=connections,
        ours=make_side(ours),
        peer=make_side(peer),
        cpu_ratio=judge_ratio([_cpu_us(ours_trial) / _cpu_us(peer_trial) for ours_trial, peer_trial in pairs]).reported,
        qps_ratio=judge_ratio([_qps(ours_trial) / _qps(peer_trial) for ours_trial, peer_trial in pairs]).reported,
        rss_ratio=median(ours_trial.rss_bytes / peer_trial.rss_bytes for ours_trial, peer_trial in pairs),
        driver=ours[-1].driver,
        cpu_bar=against.cpu_bars.get(connections),
        memory_bar=against.memory_bars.get(connections),
        qps_bar=None if against.bare else 1.0,
        blocks=tuple(Block(ours=ours_trial, peer=peer_trial) for ours_trial, peer_trial in pairs),
    )


def _cpu_us(trial: Trial) -> float:
    return trial.cpu_ns / 1e3 / trial.queries


def _qps(trial: Trial) -> float:
    return trial.queries / trial.seconds


Tool = Literal["ours", "peer"]
TOOLS: Final[tuple[Tool, ...]] = ("ours", "peer")
SETTLE_S: Final = 0.5
"""Time between the first answers and the window."""
TIMEOUT_S: Final = 60.0
_MAX_RUN_NS: Final = 3_600_000_000_000
"""Length of a client's run, which never elapses: each client is stopped after its window."""


@dataclass(frozen=True)
class ComparisonRequest:
    connections: tuple[int, ...] = (1, 64, 512, 2048)
    blocks: int = 8
    seconds: float = 4.0
    placement: Placement = "shared"
    server: str | None = None
    """Kind of server. None means the kind that the peer is for."""
    driver: Driver = "auto"
    against: str = "sysbench"
    """Name of the peer, one of ENGINE_PEERS."""

    @property
    def peer(self) -> PeerProgram:
        return find_engine_peer(self.against, self.server)


@dataclass(frozen=True)
class BenchServer:
    """A running server, and how its clients are started."""

    server: ServerProcess
    password: str
    launcher: Launcher
    peer: PeerProgram
    folder: Path
    """Folder with the peer's file of options or passwords."""
    client_cpus: int
    counters: ServerCounters
    driver: Driver


@dataclass(frozen=True)
class RunningClient:
    """A running client. `check` raises if it has ended."""

    pid: int
    check: Callable[[], None]
    driver: str | None = None


def compare(request: ComparisonRequest, on_trial: Callable[[int, int], None] = lambda step, total: None) -> Comparison:
    """Measure both clients in all blocks, and compare them. Raises MissingError, LabError, EngineError."""
    peer = request.peer
    version = peer.version()
    _raise_file_limit(max(request.connections))
    cpus = cpu_shares(request.placement)
    measured: dict[tuple[int, Tool], list[Trial]] = defaultdict(list)
    measurements = [(connections, tool) for connections in request.connections for tool in TOOLS]
    rng = random.Random(0)
    with _testbed(request, cpus) as testbed:
        for block in range(request.blocks):
            for number, (connections, tool) in enumerate(rng.sample(measurements, len(measurements)), start=1):
                on_trial(block * len(measurements) + number, request.blocks * len(measurements))
                measured[connections, tool].append(_run_trial(tool, connections, request.seconds, testbed))
        setting = _describe_setting(request, cpus, version, testbed.server)
    rows = tuple(
        make_row(connections, measured[connections, "ours"], measured[connections, "peer"], peer)
        for connections in request.connections
    )
    return Comparison(setting=setting, rows=rows)


def cpu_shares(placement: Placement) -> Shares:
    cpus = usable_cpus()
    if placement == "apart":
        return share_cpus(cpus)
    shared = cpus[-1:] if placement == "one-cpu" else cpus  # the last: interrupts and other programs prefer the first
    return Shares(shared, shared)


def _raise_file_limit(connections: int) -> None:
    """Raise the limit on open files: a client has a descriptor per connection, and sysbench does not raise its limit itself."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + 256
    if hard_limit != resource.RLIM_INFINITY and hard_limit < needed:
        raise MissingError(
            f"{counted(connections, 'connection')} need{'s' if connections == 1 else ''} {needed} open files, "
            f"{hard_limit} are allowed",
            "Raise `ulimit -Hn`.",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


@contextmanager
def _testbed(request: ComparisonRequest, cpus: Shares) -> Iterator[BenchServer]:
    peer = request.peer
    tables = (
        Tables(peer.workload.tables, peer.workload.table_size) if isinstance(peer.workload, Sysbench) else Tables(0, 1)
    )
    store: Store = find_store(request.server or peer.server, tables)
    protocol = SERVICES[peer.protocol]
    if store.kind not in protocol.kinds:
        kinds = " and ".join(protocol.kinds)
        raise PlanError(
            f"this comparison with {peer.program} is for {kinds}, not for {store.kind}",
            f"Leave --server out: {peer.server}.",
        )
    with ExitStack() as stack:
        work = stack.enter_context(work_directory(store.data_bytes()))
        connections = max(request.connections)
        store.prepare(
            ServerContext(
                work=work, host=Host("here", None), cpus=cpus.server, connections=connections, namespaced=False
            )
        )
        server = store.start(networking=False)
        stack.callback(server.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="howfar-bench-")))
        peer.prepare(server, store.password, folder)
        counters = stack.enter_context(closing(peer.counters(server, store.password)))
        # Both clients stay in this session, and so in one scheduling group.
        prefix = ("setpriv", "--pdeathsig", "KILL", "--", "taskset", "-c", format_cpus(cpus.client))
        launcher = Launcher(prefix=prefix)
        yield BenchServer(server, store.password, launcher, peer, folder, len(cpus.client), counters, request.driver)


# ---------------------------------------------------------------- one client, once


def _run_trial(tool: Tool, connections: int, seconds: float, testbed: BenchServer) -> Trial:
    run_client = _run_ours if tool == "ours" else _run_peer
    counters = testbed.counters
    meter.wait_until(lambda: counters.connected() == 0, "the sessions of the previous client to end", TIMEOUT_S)
    executed_before = counters.executed()
    with run_client(connections, testbed) as client:

        def has_answered() -> bool:
            client.check()
            return counters.executed() > executed_before

        # Both clients send queries only when all their connections are open and prepared.
        meter.wait_until(has_answered, f"the first answers on {counted(connections, 'connection')}", TIMEOUT_S)
        time.sleep(SETTLE_S)
        connected = counters.connected()
        if connected != connections:
            raise LabError(f"{counted(connected, 'connection')} open, {connections} requested")
        trial = meter.measure(client.pid, counters, seconds, executed_before, counters.align)
        client.check()
        return trial.model_copy(update={"driver": client.driver})


@contextmanager
def _run_ours(
    connections: int, testbed: BenchServer, subcommand: Literal["load", "bare"] = "load"
) -> Iterator[RunningClient]:
    job = LoadJob(
        target=UnixTarget(path=str(testbed.server.socket)),
        user=USER,
        password=testbed.password,
        database=DATABASE,
        protocol=testbed.peer.protocol,
        workload=testbed.peer.workload,
        connections=connections,
        seed=1,
        warmup_ns=0,
        measure_ns=_MAX_RUN_NS,
        interval_ns=_MAX_RUN_NS,
        client_work="touch",
        driver=testbed.driver,
        connect_timeout_ns=round(TIMEOUT_S * 1e9),
    )
    with EngineProcess(job, testbed.launcher, subcommand) as engine:
        ready = engine.read()
        if not isinstance(ready, Ready):
            raise EngineError(f"the engine reported {ready!r} before it was ready", "Please report this.")

        def check() -> None:
            if not engine.alive():
                for _ in engine.events():  # raises the engine's last message as an exception
                    pass
                raise EngineError("the engine ended before its window did", "Please report this.")

        try:
            yield RunningClient(engine.pid, check, ready.receipt.driver)
        finally:
            engine.kill()


@contextmanager
def _run_peer(connections: int, testbed: BenchServer) -> Iterator[RunningClient]:
    peer, server = testbed.peer, testbed.server
    if peer.bare:
        with _run_ours(connections, testbed, "bare") as client:
            yield client
        return
    command = peer.command(server, testbed.folder, connections, testbed.client_cpus)
    environment = peer.environment(server, testbed.folder)
    with tempfile.TemporaryFile("w+") as output:
        process = testbed.launcher.popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )

        def check() -> None:
            if process.poll() is not None:
                output.seek(0)
                raise LabError(f"{peer.program} ended before its window did: {output.read()[-2000:].strip()}")

        try:
            yield RunningClient(process.pid, check)
        finally:
            process.kill()
            process.wait()


# ---------------------------------------------------------------- the setting


def _describe_setting(request: ComparisonRequest, cpus: Shares, peer: str, server: ServerProcess) -> Setting:
    return Setting(
        howfar=howfar.__version__,
        peer=peer,
        server=server.version,
        kernel=meter.kernel(),
        placement=request.placement,
        client_cpus=cpus.client,
        server_cpus=cpus.server,
        autogroup=_autogroup(),
        workload=request.peer.description,
        blocks=request.blocks,
        seconds=request.seconds,
    )


def _autogroup() -> bool | None:
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return None
