"""`howfar bench link`: request links, measure what was obtained, ours and a peer's in turn. Only in the sandbox.

Every run measures each link once with either, in random order, with the same probes. Ours is the laboratory's link, calibrated as
for any experiment; the peer works on a bare cable between two other hosts. Start at `measure_links`.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import howfar
from howfar.bench.links import figures
from howfar.bench.links.extras import Extras, OpenPeer
from howfar.bench.links.figures import FULL_TIMES, LinkBench, LinkPoint, Row, Run, RunsOn, Setting, Times
from howfar.bench.links.peers import Found, Shape, find_peer
from howfar.bench.links.probes import BareCable, ProbedLink, measure, open_cable, runs_on, with_counters
from howfar.bench.meter import kernel
from howfar.errors import EngineError, LabError, MissingError
from howfar.lab import sandbox
from howfar.lab.link import Link, open_link
from howfar.lab.link.backends import SHAPING
from howfar.lab.network import SERVER_ADDRESS, build_network, share_cpus, size_buffers, usable_cpus


@dataclass(frozen=True)
class Request:
    links: tuple[LinkPoint, ...]
    against: str | None = None
    backend: str = "packet"
    runs: int = 1
    times: Times = FULL_TIMES
    hogs: int = 2
    extras: bool = True
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    """Of loss and jitter. A new one each time: with a fixed seed one correct link in a hundred would fail for ever."""


class OurLink:
    """The laboratory's link, ready to be probed."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def shape(self, point: LinkPoint) -> ProbedLink:
        """Calibrated the first time. Resets its counters. Raises LinkFailed, EngineError."""
        self.link.shape(point.link)
        self.link.counters(reset=True)
        return ProbedLink(SERVER_ADDRESS, self.link.echo_port, self.link.client, self.link.pid)

    def measure(self, point: LinkPoint, times: Times) -> Run:
        probed = self.shape(point)
        run = with_counters(measure(probed, point, times), self.link.counters())
        return run.model_copy(update={"compensate_us": self.link.compensate_ns / 1e3})


@dataclass(frozen=True)
class Setup:
    """Everything that measures, open."""

    ours: OurLink
    cable: BareCable
    peer: Found
    shape: Shape | None
    """None: no peer."""


def measure_links(request: Request, on_step: Callable[[int, int], None] = lambda done, of: None) -> LinkBench:
    """Measure and summarize. Raises LabError, EngineError, MissingError."""
    assert sandbox.inside(), "hosts and cables live in a sandbox"
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        setup = _open(request, stack)
        kind, shape = setup.peer.kind, setup.shape
        peer = OpenPeer(kind.NAME, shape, kind.DELAYS) if kind is not None and shape is not None else None
        extras = Extras(setup.ours, setup.cable, peer, request.hogs, request.times, request.seed)
        grid = Grid(setup, request.times)
        in_blocks(request, grid, extras.steps() if request.extras else (), on_step)
        setting = _setting(request, setup, load_average, grid)
        return LinkBench(
            setting=setting,
            rows=tuple(grid.row(point, request.backend, setting.privileged) for point in request.links),
            extras=extras.found(request.backend, setting.privileged),
        )


class Grid:
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
        """Raises LinkFailed, EngineError: without our own figures there is no result."""
        self._ours[point].append(self.setup.ours.measure(point, self._times))

    def peer(self, point: LinkPoint) -> None:
        """A peer that fails at a link has no figures for it and is not tried again."""
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
        """As the kernel reports it for our transfers."""
        return ", ".join(sorted({run.congestion_control for runs in self._ours.values() for run in runs}))

    def row(self, point: LinkPoint, backend: str, privileged: bool) -> Row:
        name, runs = self.setup.peer.name, self._peers[point]
        peer = (name, self._notes[point], runs) if runs and point not in self._failures else None
        row = figures.row(point, backend, self._ours[point], privileged, peer)
        return row.model_copy(update={"peer_failed": self._failures.get(point)})


def in_blocks(
    request: Request, grid: Grid, more: Sequence[Callable[[], None]], on_step: Callable[[int, int], None]
) -> None:
    """The same steps in each run, in random order; first the links, then the extras."""
    steps = [(grid.ours, point) for point in request.links]
    if grid.setup.shape is not None:
        steps += [(grid.peer, point) for point in request.links]
    each, order = len(steps) + len(more), random.Random(0)
    for block in range(request.runs):
        for number, (step, point) in enumerate(order.sample(steps, len(steps)), start=1):
            on_step(block * each + number, request.runs * each)
            step(point)
        for number, extra in enumerate(order.sample(more, len(more)), start=len(steps) + 1):
            on_step(block * each + number, request.runs * each)
            extra()


def _open(request: Request, stack: ExitStack) -> Setup:
    assert request.backend in SHAPING, "the command line was checked"
    first, *_ = request.links
    longest = max(point.link.bdp_bytes for point in request.links)
    network, shares = build_network(stack), share_cpus(usable_cpus())
    network.shares = shares
    size_buffers(network, longest)
    link = stack.enter_context(
        open_link(
            network,
            first.link,
            network.client.launcher(shares.client),
            network.server.launcher(shares.server),
            backend=request.backend,
            with_goodput=False,  # measured here, for longer
        )
    )
    cable = stack.enter_context(open_cable(longest))
    peer = find_peer(request.against) if request.against else Found("")
    if peer.kind is None:
        return Setup(OurLink(link), cable, peer, None)
    try:
        return Setup(OurLink(link), cable, peer, stack.enter_context(peer.kind.open(cable)))
    except (MissingError, LabError) as error:
        skipped = f"{error.message} {error.advice}".strip()
        return Setup(OurLink(link), cable, Found(peer.name, version=peer.version, skipped=skipped), None)


def privileged() -> bool:
    """Root outside user namespaces: only then does the kernel grant real-time scheduling."""
    mapping = Path("/proc/self/uid_map").read_text().split()
    return os.geteuid() == 0 and mapping == ["0", "0", "4294967295"]


def _setting(request: Request, setup: Setup, load_average: float, grid: Grid) -> Setting:
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
