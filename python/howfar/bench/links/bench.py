"""`howfar bench link`: measures how well our emulator, and a peer (another program), make requested links. Runs in the sandbox.

Every run measures each link once with our emulator and once with the peer, in random order, with the same probes. Ours is the
laboratory's link, calibrated as for any experiment. The peer works on a bare cable between two other hosts. Start at `measure_links`.

The extras, such as loss, are measured once per run, over our link and over the bare cable, or over the peer if it supports them.
"""

from __future__ import annotations

import contextlib
import csv
import os
import random
import secrets
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import howfar
from howfar.bench.links import figures
from howfar.bench.links.bars import (
    Verdict,
    judge_drops,
    judge_hogs,
    judge_jitter,
    judge_loss,
    judge_redis,
    judge_unlimited,
)
from howfar.bench.links.figures import (
    FULL_TIMES,
    Compared,
    Extra,
    ExtraName,
    LinkBench,
    LinkPoint,
    RepeatedFigure,
    Row,
    Run,
    RunsOn,
    Setting,
    Times,
)
from howfar.bench.links.peers import FoundPeer, Shape, find_peer
from howfar.bench.links.probes import (
    BareCable,
    ProbedLink,
    datagrams,
    measure,
    open_cable,
    ping,
    runs_on,
    timer_lateness_us,
    transfer,
    udp_errors,
    unmodelled_drops,
    with_counters,
)
from howfar.bench.meter import kernel, wait_until
from howfar.contract.messages import IndependentLoss, NormalJitter
from howfar.engine.process import Launcher
from howfar.errors import EngineError, LabError, MissingError
from howfar.lab import sandbox
from howfar.lab.awake import run_spinners
from howfar.lab.link import DirectionSpec, Link, LinkSpec, open_link
from howfar.lab.link.backends import SHAPING, backends
from howfar.lab.network import (
    SERVER_ADDRESS,
    Host,
    ManagedProcess,
    build_network,
    share_cpus,
    size_buffers,
    usable_cpus,
)


@dataclass(frozen=True)
class LinksRequest:
    links: tuple[LinkPoint, ...]
    against: str | None = None
    """Name of the peer."""
    backend: str = "packet"
    runs: int = 1
    times: Times = FULL_TIMES
    hogs: int = 2
    """Number of programs that keep a CPU busy in the extra measurement `hogs`."""
    extras: bool = True
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    """Seed of loss and jitter. A new one each time: with a fixed seed one correct link in a hundred would always fail."""


class OurLink:
    """The laboratory's link, ready to be probed."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def shape(self, point: LinkPoint) -> ProbedLink:
        """Shape the link, calibrating it the first time, and reset its counters. Raises LinkFailed, EngineError."""
        self.link.shape(point.link)
        self.link.counters(reset=True)
        return ProbedLink(SERVER_ADDRESS, self.link.echo_port, self.link.client, self.link.pid)

    def measure(self, point: LinkPoint, times: Times) -> Run:
        probed = self.shape(point)
        run = with_counters(measure(probed, point, times), self.link.counters())
        return run.model_copy(update={"compensate_us": self.link.compensate_ns / 1e3})


@dataclass(frozen=True)
class Setup:
    """All that is measured: our link, the bare cable and the peer, opened."""

    ours: OurLink
    cable: BareCable
    peer: FoundPeer
    shape: Shape | None
    """Shapes the peer's link. None if there is no peer."""


def measure_links(request: LinksRequest, on_step: Callable[[int, int], None] = lambda step, total: None) -> LinkBench:
    """Measure the requested links and the extras. Raises LabError, EngineError, MissingError."""
    assert sandbox.inside(), "hosts and cables live in a sandbox"
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        setup = _open_setup(request, stack)
        extras = Extras(setup, request.hogs, request.times, request.seed)
        grid = LinkGrid(setup, request.times)
        run_blocks(request, grid, extras.steps() if request.extras else (), on_step)
        setting = _describe_setting(request, setup, load_average, grid)
        return LinkBench(
            setting=setting,
            rows=tuple(grid.row(point, request.backend, setting.privileged) for point in request.links),
            extras=extras.results(request.backend, setting.privileged),
        )


class LinkGrid:
    """Measurements of the requested links."""

    def __init__(self, setup: Setup, times: Times) -> None:
        self.setup = setup
        self._times = times
        self.peer_runs_on: RunsOn | None = None
        self._ours: dict[LinkPoint, list[Run]] = defaultdict(list)
        self._peers: dict[LinkPoint, list[Run]] = defaultdict(list)
        self._notes: dict[LinkPoint, str] = {}
        self._failures: dict[LinkPoint, str] = {}

    def ours(self, point: LinkPoint) -> None:
        """Measure our link. Raises LinkFailed, EngineError: without our own figures there is no result."""
        self._ours[point].append(self.setup.ours.measure(point, self._times))

    def peer(self, point: LinkPoint) -> None:
        """Measure the peer's link. A peer that fails at a link has no figures for it and is not tried again."""
        assert self.setup.shape is not None, "there is a peer"
        if point in self._failures:
            return
        try:
            probed, self._notes[point] = self.setup.shape(point)
            self.peer_runs_on = runs_on(probed.pid)
            self._peers[point].append(measure(probed, point, self._times))
        except (LabError, EngineError) as error:
            self._failures[point] = error.message

    def congestion_control(self) -> str:
        """The congestion control that the kernel reports for our transfers."""
        return ", ".join(sorted({run.congestion_control for runs in self._ours.values() for run in runs}))

    def row(self, point: LinkPoint, backend: str, privileged: bool) -> Row:
        name, runs = self.setup.peer.name, self._peers[point]
        peer = (name, self._notes[point], runs) if runs and point not in self._failures else None
        row = figures.make_row(point, backend, self._ours[point], privileged, peer)
        return row.model_copy(update={"peer_failed": self._failures.get(point)})


def run_blocks(
    request: LinksRequest, grid: LinkGrid, extras: Sequence[Callable[[], None]], on_step: Callable[[int, int], None]
) -> None:
    """Take the same steps in each run, in random order; first the links, then the extras."""
    steps = [(grid.ours, point) for point in request.links]
    if grid.setup.shape is not None:
        steps += [(grid.peer, point) for point in request.links]
    steps_per_run, rng = len(steps) + len(extras), random.Random(0)
    for block in range(request.runs):
        for number, (step, point) in enumerate(rng.sample(steps, len(steps)), start=1):
            on_step(block * steps_per_run + number, request.runs * steps_per_run)
            step(point)
        for number, extra in enumerate(rng.sample(extras, len(extras)), start=len(steps) + 1):
            on_step(block * steps_per_run + number, request.runs * steps_per_run)
            extra()


def _open_setup(request: LinksRequest, stack: ExitStack) -> Setup:
    assert request.backend in SHAPING, "the command line was checked"
    first_point, *_ = request.links
    max_bdp_bytes = max(point.link.bdp_bytes for point in request.links)
    network, shares = build_network(stack), share_cpus(usable_cpus())
    network.shares = shares
    size_buffers(network, max_bdp_bytes)
    link = stack.enter_context(
        open_link(
            network,
            first_point.link,
            network.client.launcher(shares.client),
            network.server.launcher(shares.server),
            backend=request.backend,
            with_goodput=False,  # measured here, for longer
        )
    )
    cable = stack.enter_context(open_cable(max_bdp_bytes))
    peer = find_peer(request.against) if request.against else FoundPeer("")
    if peer.kind is None:
        return Setup(OurLink(link), cable, peer, None)
    try:
        return Setup(OurLink(link), cable, peer, stack.enter_context(peer.kind.open(cable)))
    except (MissingError, LabError) as error:
        skipped = f"{error.message} {error.advice}".strip()
        return Setup(OurLink(link), cable, FoundPeer(peer.name, version=peer.version, skipped=skipped), None)


def privileged() -> bool:
    """Whether we are root outside user namespaces: only then does the kernel grant real-time scheduling."""
    mapping = Path("/proc/self/uid_map").read_text().split()
    return os.geteuid() == 0 and mapping == ["0", "0", "4294967295"]


def _describe_setting(request: LinksRequest, setup: Setup, load_average: float, grid: LinkGrid) -> Setting:
    link = setup.ours.link
    ready = link.ready
    return Setting(
        howfar=howfar.__version__,
        kernel=kernel(),
        cpus=usable_cpus(),
        privileged=privileged(),
        backend=request.backend,
        realtime=ready.realtime if ready else None,
        short_slice=ready.short_slice if ready else None,
        offload=ready.offload if ready else None,
        ours_runs_on=runs_on(link.pid),
        peer_runs_on=grid.peer_runs_on,
        congestion_control=grid.congestion_control(),
        peer=setup.peer.version,
        peer_skipped=setup.peer.skipped,
        runs=request.runs,
        seed=request.seed,
        load_average=load_average,
    )


LOSS_SHARE: Final = 0.01
DEVIATION_NS: Final = 2_000_000
_JITTERY_RTT_NS: Final = 20_000_000
"""RTT of a link with jitter. Half of it is five deviations, so no draw is cut off at zero delay."""
_PAUSE_S: Final = 0.001
"""Pause between datagrams that are timed individually."""


@dataclass(frozen=True)
class LossCount:
    """Datagrams that did not arrive, and all that were sent."""

    lost: int
    sent: int


@dataclass(frozen=True)
class MeasuredSpread:
    """Standard deviation of the one-way times of `count` datagrams."""

    deviation_ns: float
    count: int


def link_with_loss(seed: int) -> LinkSpec:
    return LinkSpec(0, None, to_server=DirectionSpec(loss=IndependentLoss(probability=LOSS_SHARE)), seed=seed)


def link_with_jitter(seed: int) -> LinkSpec:
    """A link with jitter. With `reorder` each datagram has its own draw; otherwise a late one delays those behind it."""
    direction = DirectionSpec(jitter=NormalJitter(deviation_ns=DEVIATION_NS), reorder=True)
    return LinkSpec(_JITTERY_RTT_NS, None, to_server=direction, seed=seed)


def count_lost(client: Host, server: Host, count: int) -> LossCount:
    """Count lost datagrams. Those that the receiver's socket had no room for count as not sent."""
    overflows_before = udp_errors(server)["RcvbufErrors"]
    with datagrams(client, server) as udp:
        udp.send_all(count)
        received = len(set(udp.finish(0.0).numbers))
    sent = count - (udp_errors(server)["RcvbufErrors"] - overflows_before)
    return LossCount(max(sent - received, 0), sent)


def measure_spread(client: Host, server: Host, count: int) -> MeasuredSpread:
    """Measure how much the one-way times of `count` datagrams vary, sent with pauses between them."""
    with datagrams(client, server) as udp:
        for number in range(count):
            udp.send(number, 100)
            time.sleep(_PAUSE_S)
        times = udp.finish(0.0).one_way_ns
    return MeasuredSpread(statistics.stdev(times) if len(times) > 1 else 0.0, len(times))


_REDIS_PROGRAMS: Final = ("redis-server", "redis-benchmark")
_REDIS_PORT: Final = 6379
_REDIS_CONNECTIONS: Final = 50
_REQUESTS, _REQUESTS_QUICK = 200_000, 20_000
_REDIS_START_TIMEOUT_S: Final = 20.0
_BENCHMARK_TIMEOUT_S: Final = 120.0


def missing_program() -> str | None:
    """Why redis cannot be measured: which of its programs are missing. None if both are installed."""
    missing = [name for name in _REDIS_PROGRAMS if shutil.which(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} not found (Debian's packages redis-server, redis-tools)"


def gets_per_s(host: Host, server: Launcher, client: Launcher, *, quick: bool) -> float:
    """Measure how many GET requests per second a redis server answers. Raises LabError."""
    devnull = subprocess.DEVNULL
    with tempfile.TemporaryDirectory(prefix="howfar-redis-") as folder:
        command = ["redis-server", "--bind", SERVER_ADDRESS, "--port", str(_REDIS_PORT), "--protected-mode", "no"]
        command += ["--save", "", "--appendonly", "no", "--dir", folder]
        redis = ManagedProcess(server, command, stdin=devnull, stdout=devnull, stderr=devnull)
        try:
            wait_until(lambda: _responds(host, redis), "redis-server to answer", _REDIS_START_TIMEOUT_S)
            return _benchmark(client, _REQUESTS_QUICK if quick else _REQUESTS)
        finally:
            redis.end()


def _responds(host: Host, server: ManagedProcess) -> bool:
    def ping() -> bytes:
        with socket.create_connection((SERVER_ADDRESS, _REDIS_PORT), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64)

    if not server.alive():
        raise LabError("redis-server ended before it answered", "Try to start it by hand.")
    with contextlib.suppress(OSError):
        return host.run(ping).startswith(b"+PONG")
    return False


def _benchmark(client: Launcher, requests: int) -> float:
    command = ["redis-benchmark", "-h", SERVER_ADDRESS, "-p", str(_REDIS_PORT), "-c", str(_REDIS_CONNECTIONS)]
    command += ["-n", str(requests), "-t", "get", "--csv"]
    process = client.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, error_output = process.communicate(timeout=_BENCHMARK_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"redis-benchmark did not end within {_BENCHMARK_TIMEOUT_S:.0f} s") from error
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise LabError(f"redis-benchmark failed: {error_output.strip()[-300:]}")
    return read_rate(output)


def read_rate(text: str) -> float:
    """Requests per second in the benchmark's CSV, with or without a header. Raises LabError."""
    for fields in csv.reader(text.splitlines()):
        if len(fields) >= 2 and fields[0] == "GET":
            with contextlib.suppress(ValueError):
                return float(fields[1])
    raise LabError(f"redis-benchmark reported no rate: {text[-300:]!r}")


UNLIMITED: Final = LinkPoint(rtt_ms=0, rate_gbit=None)
LINK_WITH_HOGS: Final = LinkPoint(rtt_ms=1, rate_gbit=1)
_HOG_LIFETIME_S: Final = 120
"""Time after which a hog ends by itself if nothing ends it."""
_PINGS: Final = 3000
"""Number of pings: each adds two packets and their acknowledgements to the count of lateness, so its p99.9 is of several packets."""
_PINGS_QUICK: Final = 300
_LOSS_DATAGRAMS, _LOSS_DATAGRAMS_QUICK = 10_000, 3_000
_SPREAD_DATAGRAMS, _SPREAD_DATAGRAMS_QUICK = 1_000, 300
VETH: Final = "veth"
"""Name of the bare cable in the results."""


class Extras:
    """The extra measurements: `steps` returns the functions that measure them, and `results` summarizes."""

    def __init__(self, setup: Setup, hogs: int, times: Times, seed: int) -> None:
        """`hogs`: number of CPU hogs. `seed`: seed of loss and jitter in the first run."""
        self._setup, self._ours, self._times, self._hogs = setup, setup.ours, times, hogs
        self._shape_delaying_peer = setup.shape if setup.peer.kind is not None and setup.peer.kind.DELAYS else None
        """Shapes the peer's link, if the peer can delay."""
        self._first_seed = seed
        self._rng = random.Random(1)
        self._drops: dict[str, list[int]] = defaultdict(list)
        self._runs: dict[tuple[str, str], list[float]] = defaultdict(list)
        """Measured figures, by name of the extra and of what was measured."""
        self._redis_obstacle = missing_program()
        self._lost: list[LossCount] = []
        self._spreads: list[MeasuredSpread] = []
        self._unsupported: dict[ExtraName, str] = {}
        """Why our back-end does not support an extra."""

    def steps(self) -> Sequence[Callable[[], None]]:
        steps: list[Callable[[], None]] = [self._unlimited]
        if self._redis_obstacle is None:
            steps.append(self._redis)
        if self._hogs:
            steps.append(self._with_hogs)
        steps += [self._loss, self._jitter]
        return tuple(steps)

    def results(self, backend: str, privileged: bool) -> tuple[Extra, ...]:
        """The results; empty if extras were not requested."""
        if not self._runs:
            return ()
        unlimited = self._runs["unlimited", "ours"]
        extras = [self._make_extra("unlimited", "one stream, no rate", "Gb/s", judge_unlimited(backend, unlimited))]
        if self._redis_obstacle is None:
            rate_pairs = zip(self._runs["redis", "ours"], self._runs["redis", VETH], strict=True)
            bars = judge_redis([ours / bare for ours, bare in rate_pairs])
            extras.append(self._make_extra("redis", "redis GET, 50 connections, no delay", "requests/s", bars))
        else:
            what = "redis GET, 50 connections, no delay"
            extras.append(Extra(name="redis", what=what, unit="requests/s", skipped=self._redis_obstacle))
        if self._hogs:
            lateness_us = self._runs["hogs", "ours"]
            bars = judge_hogs(lateness_us, privileged) if lateness_us else ()
            what = f"lateness p99.9 beside {self._hogs} CPU hogs, RTT {LINK_WITH_HOGS.rtt_ms:g} ms"
            extras.append(self._make_extra("hogs", what, "µs", bars, best=min))
        return (*extras, *self._effect_results())

    def _effect_results(self) -> Sequence[Extra]:
        def nearest_to(target: float) -> Callable[[Sequence[float]], float]:
            return lambda runs: min(runs, key=lambda value: abs(value - target))

        percent, expected_ms = LOSS_SHARE * 100, DEVIATION_NS / 1e6
        loss_bars = judge_loss([run.lost for run in self._lost], [run.sent for run in self._lost], LOSS_SHARE)
        jitter_bars = judge_jitter(self._runs["jitter", "ours"], [run.count for run in self._spreads], expected_ms)
        return (
            self._make_extra(
                "loss", f"datagrams lost of a loss of {percent:g} %", "%", loss_bars, best=nearest_to(percent)
            ),
            self._make_extra(
                "jitter",
                f"standard deviation of the one-way time, of a normal jitter of {expected_ms:g} ms",
                "ms",
                jitter_bars,
                best=nearest_to(expected_ms),
            ),
        )

    def _make_extra(
        self,
        name: ExtraName,
        what: str,
        unit: str,
        bars: tuple[Verdict, ...],
        best: Callable[[Sequence[float]], float] = max,
    ) -> Extra:
        figures_by_side = {
            side: RepeatedFigure.from_runs(runs, best)
            for (kind, side), runs in self._runs.items()
            if kind == name and runs
        }
        ours = figures_by_side.pop("ours", None)
        others = tuple(Compared(name=side, figure=figure) for side, figure in figures_by_side.items())
        skipped = None if ours is not None else self._unsupported.get(name, "this back-end counts none")
        return Extra(
            name=name,
            what=what,
            unit=unit,
            ours=ours,
            beside=others,
            bars=(*bars, *judge_drops(self._drops[name])),
            skipped=skipped,
        )

    def _unshaped_cable(self) -> BareCable:
        """The cable without a peer's shaping."""
        if self._setup.shape is not None:
            self._setup.shape(UNLIMITED)
        return self._setup.cable

    def _count_drops(self, name: str) -> None:
        stats = self._ours.link.counters()
        drops = None if stats is None else unmodelled_drops(stats)
        if drops is not None:
            self._drops[name].append(drops)

    def _unlimited(self) -> None:
        window = self._times.transfer(UNLIMITED)
        links = {"ours": self._ours.shape(UNLIMITED), VETH: self._unshaped_cable().probed_link()}
        if self._shape_delaying_peer is not None:
            links[self._setup.peer.name], _ = self._shape_delaying_peer(UNLIMITED)
        for side in self._rng.sample(list(links), len(links)):
            gbit = transfer(links[side], *window).result.bits_per_second / 1e9
            self._runs["unlimited", side].append(gbit)
        self._count_drops("unlimited")

    def _redis(self) -> None:
        """Measure redis. If it fails, its failure is reported, and the other extras are still measured."""
        if self._redis_obstacle is not None:
            return
        try:
            self._measure_redis()
        except LabError as error:
            self._redis_obstacle = error.message

    def _measure_redis(self) -> None:
        self._ours.shape(UNLIMITED)
        ours, bare, shares = self._ours.link.network, self._unshaped_cable(), share_cpus(usable_cpus())
        hosts = {"ours": (ours.client, ours.server), VETH: (bare.client_host, bare.server_host)}
        measured = {}
        for side in self._rng.sample(list(hosts), len(hosts)):
            client, server = hosts[side]
            launchers = server.launcher(shares.server), client.launcher(shares.client)
            measured[side] = gets_per_s(server, *launchers, quick=self._times != FULL_TIMES)
        self._count_drops("redis")
        for side, rate in measured.items():  # both or neither: the ratio is formed within a run
            self._runs["redis", side].append(rate)

    def _with_hogs(self) -> None:
        """Read the emulator's count of lateness over our link; a peer has no such count, so the RTTs of both are reported too."""
        count = self._full_or_quick(_PINGS, _PINGS_QUICK)
        probed = self._ours.shape(LINK_WITH_HOGS)
        with hogs(self._hogs):
            excess_us = _rtt_p99_excess_us(probed, count)
            timer_us = timer_lateness_us(count)
        stats = self._ours.link.counters()
        if stats is not None:
            lateness_ns = max(stats.to_server.lateness_p999_ns, stats.to_client.lateness_p999_ns)
            self._runs["hogs", "ours"].append(lateness_ns / 1e3)
        self._count_drops("hogs")
        self._runs["hogs", "RTT p99 excess of ours"].append(excess_us)
        self._runs["hogs", "a timer of its class beside them"].append(timer_us)
        self._runs["hogs", "that timer alone"].append(timer_lateness_us(count))
        bare = ping(self._unshaped_cable().probed_link(), count, UNLIMITED.rtt_ns)
        self._runs["hogs", "RTT p99 - p50 of the bare cable, alone"].append((bare.p99_ns - bare.p50_ns) / 1e3)
        if self._shape_delaying_peer is not None:
            probed, _ = self._shape_delaying_peer(LINK_WITH_HOGS)
            with hogs(self._hogs):
                self._runs["hogs", f"RTT p99 excess of {self._setup.peer.name}"].append(
                    _rtt_p99_excess_us(probed, count)
                )

    def _loss(self) -> None:
        if self._start_effect("loss", link_with_loss(self._seed(len(self._lost)))):
            network = self._ours.link.network
            loss = count_lost(
                network.client, network.server, self._full_or_quick(_LOSS_DATAGRAMS, _LOSS_DATAGRAMS_QUICK)
            )
            self._lost.append(loss)
            self._runs["loss", "ours"].append(loss.lost / max(loss.sent, 1) * 100)
            self._count_drops("loss")

    def _jitter(self) -> None:
        """Measure jitter, over the bare cable as well, which shows the machine's own scatter."""
        if self._start_effect("jitter", link_with_jitter(self._seed(len(self._spreads)))):
            network, bare = self._ours.link.network, self._unshaped_cable()
            count = self._full_or_quick(_SPREAD_DATAGRAMS, _SPREAD_DATAGRAMS_QUICK)
            spread = measure_spread(network.client, network.server, count)
            self._spreads.append(spread)
            self._runs["jitter", "ours"].append(spread.deviation_ns / 1e6)
            self._count_drops("jitter")
            self._runs["jitter", VETH].append(
                measure_spread(bare.client_host, bare.server_host, count).deviation_ns / 1e6
            )

    def _start_effect(self, name: ExtraName, spec: LinkSpec) -> bool:
        """Start loss or jitter, with counters at 0, or note why this back-end does not support it. Raises LinkFailed, EngineError."""
        link = self._ours.link
        reason = backends()[link.backend].refusal_reason(spec)
        if reason is not None:
            self._unsupported[name] = reason
            return False
        link.shape(spec)
        link.counters(reset=True)
        link.start_effects()
        return True

    def _seed(self, run: int) -> int:
        """A new seed for each run. The kernel's back-end takes no seed."""
        return 0 if self._ours.link.ready is None else self._first_seed + run

    def _full_or_quick(self, full: int, quick: int) -> int:
        return full if self._times == FULL_TIMES else quick


def _rtt_p99_excess_us(probed: ProbedLink, count: int) -> float:
    return (ping(probed, count, LINK_WITH_HOGS.rtt_ns, keep_awake=False).p99_ns - LINK_WITH_HOGS.rtt_ns) / 1e3


def hogs(count: int) -> AbstractContextManager[None]:
    """Run `count` ordinary programs that each keep a CPU busy, until the context ends."""
    return run_spinners([()] * count, _HOG_LIFETIME_S)
