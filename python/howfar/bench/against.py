"""Our engine and sysbench in turn, on the same server, with the same statements and equal client work (rows fetched, not decoded).

The server is the laboratory's, on its Unix socket, without a sandbox: no rights are needed. What each client takes is metered from
outside (`meter.py`), in a window that begins when all its connections run: what starting costs would flatter us, who start fast.
"""

from __future__ import annotations

import os
import platform
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import howfar
from howfar.bench import comparison, meter
from howfar.bench.comparison import Comparison, Placement, Setting, Trial
from howfar.engine.messages import LoadJob, Ready, Sysbench, UnixTarget
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import EngineError, LabError, MissingError, PlanError
from howfar.lab.cache import work_directory
from howfar.lab.hosts import Host, format_cpus, share_cpus, usable_cpus
from howfar.lab.servers import DATABASE, USER, Ground, Server, Store, Tables, find_store
from howfar.lab.servers.kinds import STORES

Tool = Literal["ours", "peer"]
TOOLS: Final[tuple[Tool, ...]] = ("ours", "peer")
WORKLOAD: Final = Sysbench(kind="oltp_point_select", tables=1, table_size=10_000)
SETTLE_S: Final = 0.5
"""Between the first answers and the window."""
PATIENCE_S: Final = 60.0
_LONG_NS: Final = 3_600_000_000_000
"""No client ends by itself: it is ended after its window."""


@dataclass(frozen=True)
class Request:
    connections: tuple[int, ...] = (1, 64, 512, 2048)
    blocks: int = 8
    seconds: float = 4.0
    placement: Placement = "shared"
    server: str = "mariadb"
    driver: Literal["auto", "epoll", "io_uring"] = "auto"


@dataclass(frozen=True)
class Place:
    """A running server and where its clients go."""

    server: Server
    password: str
    launcher: Launcher
    options: Path
    """What sysbench is told in a file: a password on a command line is everybody's to read."""
    counters: meter.Counters
    driver: Literal["auto", "epoll", "io_uring"]


@dataclass(frozen=True)
class Client:
    """One that was started. `check` raises once it is gone."""

    pid: int
    check: Callable[[], None]
    driver: str | None = None


def compare(request: Request, on_trial: Callable[[int, int], None] = lambda done, of: None) -> Comparison:
    """Measure and reckon. Raises MissingError, LabError, EngineError."""
    peer = sysbench_version()
    _allow_files(max(request.connections))
    client, server = seats(request.placement)
    measured: dict[tuple[int, Tool], list[Trial]] = defaultdict(list)
    todo = [(connections, tool) for connections in request.connections for tool in TOOLS]
    order = random.Random(0)
    with _place(request, client, server) as place:
        for block in range(request.blocks):
            for number, (connections, tool) in enumerate(order.sample(todo, len(todo)), start=1):
                on_trial(block * len(todo) + number, request.blocks * len(todo))
                measured[connections, tool].append(_trial(tool, connections, request.seconds, place))
        setting = _setting(request, client, server, peer, place.server)
    rows = tuple(comparison.row(n, measured[n, "ours"], measured[n, "peer"]) for n in request.connections)
    return Comparison(setting=setting, rows=rows)


def seats(placement: Placement) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CPUs of client and server."""
    cpus = usable_cpus()
    if placement == "one-cpu":
        return cpus[-1:], cpus[-1:]  # the last: interrupts and other programs are more often on the first
    if placement == "apart":
        shares = share_cpus(cpus)
        return shares.client, shares.server
    return cpus, cpus


def sysbench_version() -> str:
    """`sysbench 1.0.20`. Raises MissingError."""
    program = shutil.which("sysbench")
    if program is None:
        raise MissingError("the program sysbench was not found", "Install Debian's package sysbench.")
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def many(connections: int) -> str:
    return f"{connections} connection{'' if connections == 1 else 's'}"


def _allow_files(connections: int) -> None:
    """A client has a descriptor for each connection; sysbench does not ask for more by itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise MissingError(
            f"{many(connections)} need{'s' if connections == 1 else ''} {wanted} open files, {hard} are allowed",
            "Raise `ulimit -Hn`.",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def _place(request: Request, client: Sequence[int], server: Sequence[int]) -> Iterator[Place]:
    store: Store = find_store(request.server, Tables(WORKLOAD.tables, WORKLOAD.table_size))
    if store.kind in STORES:
        raise PlanError(f"sysbench asks in SQL, and {store.kind} knows none", "Name a server that does.")
    with ExitStack() as stack:
        work = stack.enter_context(work_directory(store.data_bytes()))
        connections = max(request.connections)
        store.prepare(
            Ground(work=work, host=Host("here", None), cpus=tuple(server), connections=connections, namespaced=False)
        )
        running = store.start(networking=False)
        stack.callback(running.stop)
        counters = stack.enter_context(meter.Counters(running.socket, USER, store.password))
        options = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="howfar-bench-"))) / "sysbench.cnf"
        options.touch(mode=0o600)
        options.write_text(f"mysql-password={store.password}\n")
        # Neither gets a session of its own: both clients stay in ours, and so in one scheduling group.
        prefix = ("setpriv", "--pdeathsig", "KILL", "--", "taskset", "-c", format_cpus(client))
        yield Place(running, store.password, Launcher(prefix=prefix), options, counters, request.driver)


# ---------------------------------------------------------------- one client, once


def _trial(tool: Tool, connections: int, seconds: float, place: Place) -> Trial:
    start = _ours if tool == "ours" else _sysbench
    counters = place.counters
    meter.wait_until(lambda: counters.connected() == 0, "the sessions of the client before to end", PATIENCE_S)
    began = counters.executed()
    with start(connections, place) as client:

        def under_way() -> bool:
            client.check()
            return counters.executed() > began

        # Both begin only when all connections are open and everything is prepared.
        meter.wait_until(under_way, f"the first answers on {many(connections)}", PATIENCE_S)
        time.sleep(SETTLE_S)
        open_now = counters.connected()
        if open_now != connections:
            raise LabError(f"{many(open_now)} open, asked for: {connections}")
        trial = meter.measure(client.pid, counters, seconds, began)
        client.check()
        return trial.model_copy(update={"driver": client.driver})


@contextmanager
def _ours(connections: int, place: Place) -> Iterator[Client]:
    job = LoadJob(
        target=UnixTarget(path=str(place.server.socket)),
        user=USER,
        password=place.password,
        database=DATABASE,
        workload=WORKLOAD,
        connections=connections,
        seed=1,
        warmup_ns=0,
        measure_ns=_LONG_NS,
        interval_ns=_LONG_NS,
        client_work="touch",
        driver=place.driver,
        connect_timeout_ns=round(PATIENCE_S * 1e9),
    )
    with EngineProcess(job, place.launcher) as engine:
        ready = engine.read()
        if not isinstance(ready, Ready):
            raise EngineError(f"the engine said {ready!r} before it was ready", "Please report this.")

        def check() -> None:
            if not engine.alive():
                for _ in engine.events():  # which raises what it said last
                    pass
                raise EngineError("the engine ended before its window did", "Please report this.")

        try:
            yield Client(engine.pid, check, ready.receipt.driver)
        finally:
            engine.kill()


@contextmanager
def _sysbench(connections: int, place: Place) -> Iterator[Client]:
    command = [
        "sysbench",
        f"--config-file={place.options}",
        WORKLOAD.kind,
        f"--mysql-socket={place.server.socket}",
        f"--mysql-user={USER}",
        f"--mysql-db={DATABASE}",
        f"--tables={WORKLOAD.tables}",
        f"--table-size={WORKLOAD.table_size}",
        f"--threads={connections}",
        "--time=3600",
        "run",
    ]
    with tempfile.TemporaryFile("w+") as said:
        process = place.launcher.popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)

        def check() -> None:
            if process.poll() is not None:
                said.seek(0)
                raise LabError(f"sysbench ended before its window did: {said.read()[-2000:].strip()}")

        try:
            yield Client(process.pid, check)
        finally:
            process.kill()
            process.wait()


# ---------------------------------------------------------------- the setting


def _setting(request: Request, client: Sequence[int], server: Sequence[int], peer: str, running: Server) -> Setting:
    return Setting(
        howfar=howfar.__version__,
        peer=peer,
        server=running.version,
        kernel=f"{os.uname().sysname} {platform.release()}",
        placement=request.placement,
        client_cpus=tuple(client),
        server_cpus=tuple(server),
        autogroup=_autogroup(),
        workload=f"{WORKLOAD.kind}, {WORKLOAD.tables} table of {WORKLOAD.table_size} rows, prepared, Unix socket",
        blocks=request.blocks,
        seconds=request.seconds,
    )


def _autogroup() -> bool | None:
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return None
