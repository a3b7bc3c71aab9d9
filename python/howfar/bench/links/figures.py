"""The result of the bench of links, from single measurements; its JSON form is `howfar bench link --json`. No I/O.

Each bar has the median and the best of the runs: on a shared machine the best shows what the link is capable of, and the median
what to expect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal, Self

from howfar.bench.links.bars import LONG_FAT, LONG_FAT_AFTER_NS, Verdict, judge_link
from howfar.lab.link import goodput_times_ns
from howfar.lab.link.backends import backends
from howfar.lab.link.spec import LinkSpec
from howfar.stats.estimate import Described

BUSY_LOAD = 0.5


class LinkPoint(Described):
    rtt_ms: float
    rate_gbit: float | None
    """Rate of the link. None if unshaped."""

    @property
    def rtt_ns(self) -> int:
        return round(self.rtt_ms * 1e6)

    @property
    def rate_bps(self) -> int | None:
        return None if self.rate_gbit is None else round(self.rate_gbit * 1e9)

    @property
    def link(self) -> LinkSpec:
        """The point as a link of the laboratory."""
        return LinkSpec(self.rtt_ns, self.rate_bps)

    def rest_rtt_ms(self, backend: str) -> float:
        """Expected time of a one-byte ping: the RTT, plus its time on the wire if this back-end charges that."""
        return (self.link.rest_rtt_ns if backends()[backend].CHARGES_LONE_PACKETS else self.rtt_ns) / 1e6

    @property
    def expected_gbit(self) -> float | None:
        """The maximum payload rate of such a link."""
        bps = self.link.expected_goodput_bps("to_server")
        return None if bps is None else bps / 1e9


class Run(Described):
    """One measurement of one link."""

    rtt_ms_p50: float
    """Unloaded RTT, with the CPUs kept awake."""
    rtt_ms_p99: float
    rtt_ms_min: float
    rtt_ms_p50_from_idle: float
    """RTT with CPUs that may sleep: includes waking both ends."""
    goodput_gbit: float
    cpu_core_per_gbit: float | None
    """CPU time of the emulator's or proxy's process, by the kernel's clock. None if the kernel does the work, not a process."""
    machine_core_per_gbit: float | None
    """CPU time of the whole machine during the transfer: both ends and the kernel."""
    lateness_us_p999: float | None = None
    """How late packets left, by the emulator's count, in the worse direction. None for a peer."""
    drops: int | None = None
    """Segments lost for no modelled reason."""
    compensate_us: float | None = None
    """Time that calibration subtracted from the delay, each way: no RTT is shorter than requested by more than twice this."""
    retransmits: int | None = None
    congestion_control: str
    """Congestion control of the transfer's sender."""
    steal_share: float | None = None
    """CPU time taken by the hypervisor."""
    load_average: float
    """Load average of the last minute, at the end. The measurement itself adds up to two or three."""


class Obtained(Described):
    """Medians of the runs."""

    rtt_ms_p50: float
    rtt_ms_p99: float
    rtt_ms_p50_from_idle: float
    goodput_gbit: float
    goodput_ratio: float | None
    """Goodput as a share of what the rate allows. None if no rate was requested."""


class Peer(Obtained):
    """The same link made by another program: medians."""

    name: str
    cpu_core_per_gbit: float | None
    machine_core_per_gbit: float | None
    note: str
    """What was requested of the peer instead, if it does not support the same link; empty if it does."""
    runs: tuple[Run, ...]


class Row(Described):
    asked: LinkPoint
    rest_rtt_ms: float
    """The expected ping: the requested RTT plus the ping's time on the wire."""
    backend: str
    obtained: Obtained
    cpu_core_per_gbit: float | None
    machine_core_per_gbit: float | None
    lateness_us_p999: float | None
    drops: int | None
    """Drops of all runs together."""
    steal_share: float | None
    bars: tuple[Verdict, ...]
    runs: tuple[Run, ...]
    peer: Peer | None
    peer_failed: str | None = None
    """Why the peer has no figures for this link although it was available."""


class RepeatedFigure(Described):
    """One figure over several runs."""

    median: float
    best: float
    runs: tuple[float, ...]

    @classmethod
    def from_runs(cls, runs: Sequence[float], best: Callable[[Sequence[float]], float] = max) -> Self:
        return cls(median=median(runs), best=best(runs), runs=tuple(runs))


class Compared(Described):
    name: str
    figure: RepeatedFigure


ExtraName = Literal["unlimited", "redis", "hogs", "loss", "jitter"]


class Extra(Described):
    """A measurement in addition to the grid of links; `skipped`: why there is no figure."""

    name: ExtraName
    what: str
    unit: str
    ours: RepeatedFigure | None = None
    beside: tuple[Compared, ...] = ()
    """The same measurement over a bare cable, or over the peer."""
    bars: tuple[Verdict, ...] = ()
    skipped: str | None = None


class RunsOn(Described):
    """CPUs and scheduling classes of all threads of a process, from the kernel."""

    cpus: tuple[int, ...]
    scheduling: tuple[str, ...]


class Setting(Described):
    """Machine and settings of the measurement."""

    howfar: str
    kernel: str
    cpus: tuple[int, ...]
    privileged: bool
    """Root outside user namespaces, for which the bars are stricter."""
    backend: str
    realtime: bool | None
    short_slice: bool | None
    offload: bool | None
    """Whether offload is used, as the emulator reports; None if the back-end has none."""
    ours_runs_on: RunsOn | None
    """The emulator; None if there is none."""
    peer_runs_on: RunsOn | None
    """The peer's process; None if it has none, or was not available."""
    congestion_control: str
    peer: str | None
    peer_skipped: str | None
    """Why the requested peer has no figures."""
    runs: int
    seed: int
    """Seed of loss and jitter in the first run; each later run has one more."""
    load_average: float
    """Load average of the last minute, before the bench began: other programs."""

    @property
    def busy(self) -> bool:
        """Whether other programs used half a CPU or more, which affects wall-clock figures."""
        return self.load_average >= BUSY_LOAD


class LinkBench(Described):
    version: Literal[1] = 1
    setting: Setting
    rows: tuple[Row, ...]
    extras: tuple[Extra, ...]


def _median(values: Sequence[float | None]) -> float | None:
    """Median of the known values."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _goodput_share(gbit: float, point: LinkPoint) -> float | None:
    return None if point.expected_gbit is None else gbit / point.expected_gbit


def _make_medians(runs: Sequence[Run], point: LinkPoint) -> Obtained:
    gbit = median(run.goodput_gbit for run in runs)
    return Obtained(
        rtt_ms_p50=median(run.rtt_ms_p50 for run in runs),
        rtt_ms_p99=median(run.rtt_ms_p99 for run in runs),
        rtt_ms_p50_from_idle=median(run.rtt_ms_p50_from_idle for run in runs),
        goodput_gbit=gbit,
        goodput_ratio=_goodput_share(gbit, point),
    )


def make_row(
    point: LinkPoint, backend: str, ours: Sequence[Run], privileged: bool, peer: tuple[str, str, Sequence[Run]] | None
) -> Row:
    """A row from the runs of both; `peer` is its name, note and runs."""
    drops = [run.drops for run in ours if run.drops is not None]
    rest_rtt_ms = point.rest_rtt_ms(backend)
    return Row(
        asked=point,
        rest_rtt_ms=rest_rtt_ms,
        backend=backend,
        obtained=_make_medians(ours, point),
        cpu_core_per_gbit=_median([run.cpu_core_per_gbit for run in ours]),
        machine_core_per_gbit=_median([run.machine_core_per_gbit for run in ours]),
        lateness_us_p999=_median([run.lateness_us_p999 for run in ours]),
        drops=sum(drops) if drops else None,
        steal_share=_median([run.steal_share for run in ours]),
        bars=judge_link(
            point.rtt_ms,
            point.rate_gbit,
            rest_rtt_ms=rest_rtt_ms,
            rtt_p50_ms=[run.rtt_ms_p50 for run in ours],
            rtt_p99_ms=[run.rtt_ms_p99 for run in ours],
            goodput_share=[share for run in ours if (share := _goodput_share(run.goodput_gbit, point)) is not None],
            cpu_core_per_gbit=[run.cpu_core_per_gbit for run in ours if run.cpu_core_per_gbit is not None],
            drops=drops,
            privileged=privileged,
        ),
        runs=tuple(ours),
        peer=None if peer is None else _make_peer(*peer, point),
    )


def _make_peer(name: str, note: str, runs: Sequence[Run], point: LinkPoint) -> Peer:
    return Peer(
        **_make_medians(runs, point).model_dump(),
        name=name,
        cpu_core_per_gbit=_median([run.cpu_core_per_gbit for run in runs]),
        machine_core_per_gbit=_median([run.machine_core_per_gbit for run in runs]),
        note=note,
        runs=tuple(runs),
    )


RTTS_MS: Final = (0.2, 1.0, 10.0, 85.0)
RATES_GBIT: Final = (0.1, 1.0, 10.0)
QUICK: Final = (LinkPoint(rtt_ms=1.0, rate_gbit=1.0), LinkPoint(rtt_ms=10.0, rate_gbit=10.0))
"""Links for a quick bench, a common one and a hard one; toxiproxy supports both."""


@dataclass(frozen=True)
class Times:
    """Bounds of the pings and the transfer of one measurement."""

    pings_ns: int
    min_pings: int
    max_pings: int
    transfer_ns: int

    def pings(self, rtt_ns: int) -> int:
        """Number of pings: as many as fit into `pings_ns`, within the two limits; at least enough for a p99 below the maximum."""
        return min(max(self.pings_ns // max(rtt_ns, 1), self.min_pings), self.max_pings)

    def transfer(self, point: LinkPoint) -> tuple[int, int]:
        """Warm-up and window: the laboratory's, the window at least `transfer_ns`; a bar may prescribe the warm-up."""
        warmup_ns, measure_ns = goodput_times_ns(point.rtt_ns)
        if (point.rtt_ms, point.rate_gbit) == LONG_FAT:
            warmup_ns = LONG_FAT_AFTER_NS
        return warmup_ns, max(measure_ns, self.transfer_ns)


FULL_TIMES: Final = Times(pings_ns=2_000_000_000, min_pings=100, max_pings=2000, transfer_ns=2_000_000_000)
QUICK_TIMES: Final = Times(pings_ns=300_000_000, min_pings=50, max_pings=300, transfer_ns=1_000_000_000)


def grid(rtts_ns: Sequence[int], rates_bps: Sequence[int]) -> tuple[LinkPoint, ...]:
    """Points with every RTT and every rate, each once."""
    return tuple(
        LinkPoint(rtt_ms=rtt / 1e6, rate_gbit=rate / 1e9)
        for rtt in dict.fromkeys(rtts_ns)
        for rate in dict.fromkeys(rates_bps)
    )
