"""Measures what round trips cost on paths of the laboratory, and replays recorded pages there, with a server that does no work.

The present path and the target path stay open, and each block measures both in random order. A block in which the link was not as
requested is void and repeated. If both ends are on one machine, they run on the CPUs on which the application and its server ran.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Generic, TypeVar

from howfar.contract.messages import (
    AnswerJob,
    Replayed,
    ReplayJob,
    ReplayPage,
    ReplayStep,
    ServerTls,
    Speech,
    Target,
    TcpListen,
    Tls,
    UnixTarget,
)
from howfar.contract.receipt import TcpSettings
from howfar.contract.violation import Violation
from howfar.engine.null_server import run_null_server
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LinkFailed
from howfar.lab.connected_server import LabPathContext, PathEndpoints, endpoint_target
from howfar.lab.laboratory import Lab
from howfar.lab.link import Link
from howfar.lab.link.receipt import RUN_LIMITS, link_receipt
from howfar.lab.network import usable_cpus
from howfar.other_programs import MAX_LOST_SHARE, StartWatch
from howfar.paths import Path
from howfar.paths.path import Row
from howfar.plan.sessions import TlsVersion
from howfar.recording.calibration import Placement, Rhythm
from howfar.recording.costs import (
    SMALLEST,
    CostBlock,
    PathCosts,
    Sizes,
    measured_round_trips,
    trimmed_mean,
    warm_up_round_trips,
)
from howfar.recording.other_programs import BlockWatch, BusyPrograms
from howfar.recording.texts import phrase

_PORT = 3306
_ACCOUNT = "howfar"
"""Name of both the account and the database."""
_CONNECT_COUNT = 8
_SEED = 20_262
_MIN_WORK_NS, _MAX_WORK_NS = 20_000, 1_000_000
_TOTAL_WAIT_NS = 250_000_000
_MIN_WAITS, _MAX_WAITS = 8, 60
_MAX_SIZE, _MIN_MAX_SIZE, _MAX_SENDING_S = 1 << 26, 1 << 16, 0.25
"""Upper and lower limit of the largest size to measure, in bytes, and the maximum time to send it. Costs of larger sizes are
extrapolated linearly."""
_OBJECT_COUNT = 24_000
_OBJECTS_SEED = 20_264


@dataclass(frozen=True)
class _NullServer:
    """The server that does no work, with the attributes that a path expects of a server."""

    kind: str
    socket: FilePath
    port: int | None
    pid: int

    def query(self, sql: str) -> list[Row]:
        """Answer a path's query about an account: no account has a password."""
        return [{"rolpassword": None}]


@dataclass(frozen=True)
class OpenPath:
    """An open path of the laboratory, with its own server that does no work."""

    path: Path
    target: Target
    tls: Tls | None
    speech: Speech
    client: Launcher
    link: Link | None

    @property
    def rtt_ns(self) -> int:
        return self.link.spec.rtt_ns if self.link is not None else 0

    @property
    def waking_ns(self) -> float:
        """See `PathCosts.waking_ns`; 0 without a link."""
        return self.link.waking_ns if self.link is not None else 0.0

    @property
    def _rates_bps(self) -> tuple[float | None, float | None]:
        """Rates of the link to the server and to the client; None without a limit."""
        if self.link is None:
            return None, None
        return self.link.spec.mean_rate_bps("to_server"), self.link.spec.mean_rate_bps("to_client")

    def sending_ns(self, to_server: int, to_client: int) -> float:
        """Time to transmit these bytes at the link's rate; 0 without a rate limit."""
        sizes = (to_server, to_client)
        return sum(8e9 * size / rate for size, rate in zip(sizes, self._rates_bps, strict=True) if rate)

    @property
    def max_sizes(self) -> tuple[int, int]:
        """Largest sizes to measure, to the server and to the client: what the link sends in a quarter second, within limits."""
        to_server, to_client = (
            _MAX_SIZE if rate is None else max(_MIN_MAX_SIZE, min(_MAX_SIZE, round(rate / 8 * _MAX_SENDING_S)))
            for rate in self._rates_bps
        )
        return to_server, to_client

    def replay(self, pages: Sequence[ReplayPage]) -> list[Replayed]:
        """Replay pages on this path. Raises EngineError."""
        job = ReplayJob(target=self.target, tls=self.tls, speech=self.speech, pages=tuple(pages))
        with EngineProcess(job, self.client) as engine:
            events = [engine.read() for _ in pages]
        return [event for event in events if isinstance(event, Replayed)]

    def start_monitoring(self) -> Callable[[], tuple[Violation, ...]]:
        """Start to monitor the link. Returns a function that lists how the link has deviated from the request since then."""
        link = self.link
        if link is None:
            return tuple
        rtt_at_rest = link.measure_rtt_at_rest()
        if link.spec.has_effects:
            link.start_effects()
        link.counters(reset=True)
        return lambda: link_receipt(link, rtt_at_rest, link.counters(), TcpSettings()).violations(RUN_LIMITS)


@contextmanager
def open_path(
    lab: Lab, path: Path, tls: TlsVersion | None, number: int, placement: Placement, speech: Speech = "sizes"
) -> Iterator[OpenPath]:
    """Start the server and open the path. `number` distinguishes the open paths; `placement` applies to a path on one machine.

    Raises LabError, MissingError.
    """
    with ExitStack() as stack:
        work = lab.work / f"null-{number}"
        work.mkdir(exist_ok=True)
        port = _PORT + 10 * number
        # The socket name that PostgreSQL clients expect.
        socket = work / f".s.PGSQL.{port}"
        certificates = lab.certificates() if tls else None
        server_tls = (
            ServerTls(cert_file=str(certificates.certificate), key_file=str(certificates.key), versions=tls)
            if certificates and tls
            else None
        )
        listen = UnixTarget(path=str(socket)) if path.by_socket else TcpListen(host="0.0.0.0", port=port)
        server_cpus, client_cpus = lab.shares.server, lab.shares.client
        if path.machines == 1:
            server_cpus, client_cpus = placement.server or usable_cpus(), placement.application or usable_cpus()
        launcher = lab.server_host.launcher(server_cpus)
        job = AnswerJob(listen=listen, tls=server_tls, speech=speech)
        server = stack.enter_context(run_null_server(job, launcher))
        client_host = lab.client_host_for(path)
        path_endpoints = PathEndpoints(
            work,
            client_host,
            lab.server_host,
            lab.client_host.launcher(lab.shares.client),
            lab.server_host.launcher(lab.shares.server),
            lab.certificates,
        )
        kind = "mariadb" if speech == "sizes" else speech
        running = _NullServer(kind, socket, None if path.by_socket and speech == "sizes" else port, server.pid)
        context = LabPathContext(
            running=running, stack=stack, endpoints=path_endpoints, user=_ACCOUNT, database=_ACCOUNT
        )
        endpoint = path.open(context)
        client_tls = (
            Tls(
                versions=tls,
                verify="full",
                ca_file=str(certificates.ca),
                server_name=endpoint.host or "localhost",
                resumption=False,
            )
            if certificates and tls
            else None
        )
        client = client_host.launcher(client_cpus)
        yield OpenPath(
            path, endpoint_target(endpoint), client_tls, speech, client, lab.link if path.crosses_link else None
        )


def measure(
    paths: Sequence[OpenPath],
    labels: Sequence[str],
    sizes: Sizes,
    rhythm: Rhythm,
    blocks: int,
    say: Callable[[str], None],
    start_watch: StartWatch = lambda: None,
) -> tuple[list[PathCosts], BusyPrograms | None]:
    """Measure the costs of each path in blocks, leaving out blocks in which the link was not as requested, or that other programs
    disturbed if these are few. Also returns what other programs did. `say` reports progress.

    Raises LinkFailed if no block is left.
    """
    computations = (Computation(rhythm.gap_ns), Computation(rhythm.server_ns))
    rng = random.Random(_SEED)

    def measure_block() -> dict[int, CostBlock]:
        return {
            path_index: with_resuming_cost(
                run_until_valid(paths[path_index], lambda path: _measure_block(path, sizes, rhythm)),
                computations,
                rhythm,
            )
            for path_index in rng.sample(range(len(paths)), len(paths))
        }

    expected_s = max(sum(_expected_ns(path, sizes, rhythm) for path in paths) / 1e9, 1.0)
    title = phrase("say/costs", seconds=expected_s)
    watch = BlockWatch(start_watch, lambda lost_s: lost_s < MAX_LOST_SHARE * blocks * expected_s, say)
    try:
        results = run_in_blocks(blocks, lambda: watch.run(measure_block), title, say)
    except LinkFailed as failed:
        if (found := watch.found()) is not None and found.disturbed:
            failed.advice = phrase("error/link/others", program=found.name)
        raise
    counted = watch.without_disturbed(results.blocks)
    costs = [
        PathCosts(
            label=label,
            sizes=sizes,
            blocks=tuple(block[path_index] for block in counted),
            link_rtt_ns=path.rtt_ns,
            encrypted=path.tls is not None,
            waking_ns=path.waking_ns,
            by_socket=path.path.by_socket,
            void=results.void,
        )
        for path_index, (path, label) in enumerate(zip(paths, labels, strict=True))
    ]
    return costs, watch.found()


class Computation:
    """A computation that takes `work_ns` with warm caches, and longer after a wait. It traverses objects, as scripting languages do.

    During the wait, other programs (on a virtual machine, also those of other guests) use the CPU's caches. A recording does not show
    how much longer the application therefore computes.
    """

    def __init__(self, work_ns: int) -> None:
        objects = [(number, f"name {number}", [number] * 5) for number in range(_OBJECT_COUNT)]
        random.Random(_OBJECTS_SEED).shuffle(objects)
        self._objects = objects[: _OBJECT_COUNT // 100]
        work_ns = min(max(work_ns, _MIN_WORK_NS), _MAX_WORK_NS)
        object_ns = min(self._time_once_ns() for _ in range(20)) / len(self._objects)
        self._objects = objects[: max(round(work_ns / object_ns), 1)]

    def _time_once_ns(self) -> int:
        # The thread's CPU time, which excludes waiting for a CPU.
        began_ns, total = time.thread_time_ns(), 0
        for number, name, tags in self._objects:
            total += number + len(name) + sum(tags)
        return time.thread_time_ns() - began_ns

    def slowdown_ns(self, wait_ns: float) -> float:
        """How much longer the computation takes after a wait of `wait_ns` than without one."""
        slowdowns_ns = []
        for _ in range(max(_MIN_WAITS, min(_MAX_WAITS, int(_TOTAL_WAIT_NS / max(wait_ns, 1))))):
            warm_ns = min(self._time_once_ns() for _ in range(3))
            time.sleep(wait_ns / 1e9)
            slowdowns_ns.append(self._time_once_ns() - warm_ns)
        return max(trimmed_mean(slowdowns_ns), 0.0)


def with_resuming_cost(block: CostBlock, computations: tuple[Computation, Computation], rhythm: Rhythm) -> CostBlock:
    """The block, with the slower computing after waits added to its costs: application and server each wait for the other."""
    application, server = computations
    added_ns = application.slowdown_ns(block.cost_ns[0] + rhythm.server_ns)
    added_ns += server.slowdown_ns(block.cost_ns[0] + rhythm.gap_ns)
    return block.model_copy(
        update={"cost_ns": tuple(cost + added_ns for cost in block.cost_ns), "resuming_ns": added_ns}
    )


_MAX_LINK_ATTEMPTS = 4
"""Maximum number of attempts to measure a block while the link is as requested."""
_MAX_LATE_ATTEMPTS, _ACCEPTABLE_LATE_SHARE = 3, 0.03
"""Maximum number of attempts to measure a block in which client and server wait for a CPU for at most this share of the time."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Blocks(Generic[_Result]):
    """The results of blocks, and the reason for each block that has none."""

    blocks: list[_Result]
    void: tuple[str, ...]


def run_in_blocks(
    count: int, run_block: Callable[[], _Result], title: str, say: Callable[[str], None]
) -> Blocks[_Result]:
    """Call `run_block` once per block, leaving out blocks for which the link could not be set up as requested. `title`: for messages.

    Raises LinkFailed if no block is left."""
    results: list[_Result] = []
    void: list[LinkFailed] = []
    for block_number in range(1, count + 1):
        say(phrase("say/block/of", title=title, number=block_number, count=count))
        try:
            results.append(run_block())
        except LinkFailed as failed:
            void.append(failed)
            say(phrase("say/block/left-out", number=block_number, reason=failed.message))
    if not results:
        raise void[-1]
    return Blocks(results, tuple(failed.message for failed in void))


def run_until_valid(path: OpenPath, run: Callable[[OpenPath], _Result]) -> _Result:
    """Return the result of `run` from an attempt in which the link was as requested.

    Raises LinkFailed after a limited number of attempts.
    """
    violations: tuple[Violation, ...] = ()
    for _ in range(_MAX_LINK_ATTEMPTS):
        end_monitoring = path.start_monitoring()
        result = run(path)
        violations = end_monitoring()
        if not violations:
            return result
    raise LinkFailed(
        phrase("error/link", attempts=_MAX_LINK_ATTEMPTS, reason=violations[0].sentence),
        "Try again when less runs on this machine.",
    )


def _measure_block(path: OpenPath, sizes: Sizes, rhythm: Rhythm) -> CostBlock:
    """Measure at most a few times. Returns the measurement with the shortest waits of client and server for a CPU, which are not part
    of the path's time."""
    least_late: tuple[float, CostBlock] | None = None
    for _ in range(_MAX_LATE_ATTEMPTS):
        late_share, block = _measure_once(path, sizes, rhythm)
        if least_late is None or late_share < least_late[0]:
            least_late = late_share, block
        if late_share <= _ACCEPTABLE_LATE_SHARE:
            break
    assert least_late is not None, "the loop ran at least once"
    return least_late[1]


def _expected_round_trips(path: OpenPath, sizes: Sizes, rhythm: Rhythm) -> list[tuple[int, float]]:
    """For each pair of sizes, the number of round trips to measure and the expected time of one in ns."""
    round_trip_times_ns = [path.rtt_ns + rhythm.pause_and_server_ns + path.sending_ns(*pair) for pair in sizes.pairs]
    return [(measured_round_trips(round_trip_ns), round_trip_ns) for round_trip_ns in round_trip_times_ns]


def _expected_ns(path: OpenPath, sizes: Sizes, rhythm: Rhythm) -> float:
    """Expected duration of a block that is measured only once."""
    warm_up = warm_up_round_trips(path.rtt_ns)
    return _CONNECT_COUNT * 2 * path.rtt_ns + sum(
        (warm_up + count) * round_trip_ns for count, round_trip_ns in _expected_round_trips(path, sizes, rhythm)
    )


def _measure_once(path: OpenPath, sizes: Sizes, rhythm: Rhythm) -> tuple[float, CostBlock]:
    """Measure each pair of sizes on its own warm connection, and a few connects. Returns the share of time that client and server
    waited for a CPU, and the block."""
    warm_up = warm_up_round_trips(path.rtt_ns)
    pages = [
        ReplayPage(steps=(rhythm.step(to_server, to_client, connection_number),) * (warm_up + count))
        for connection_number, ((to_server, to_client), (count, _)) in enumerate(
            zip(sizes.pairs, _expected_round_trips(path, sizes, rhythm), strict=True)
        )
    ]
    connect = ReplayStep(connection=len(pages), opens=True, bytes_to_server=SMALLEST[0], bytes_to_client=SMALLEST[1])
    pages.append(ReplayPage(steps=(connect,) * _CONNECT_COUNT))
    *measured, connects = path.replay(pages)
    block = CostBlock(
        cost_ns=tuple(trimmed_mean(page.round_trips_ns[warm_up:]) - rhythm.server_ns for page in measured),
        connect_ns=trimmed_mean(connects.opened_ns[1:]),
    )
    late_ns = sum(page.client_late_ns + page.server_late_ns for page in measured)
    return late_ns / sum(page.took_ns for page in measured), block
