"""A running link between two hosts: a back-end's link, and the echo server for measuring it.

The link is at rest (without effects except rate and delay) during calibration and probes. `Link.start_effects` turns all effects on
for a load.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from howfar.contract.messages import (
    EchoJob,
    GoodputJob,
    GoodputResult,
    LinkReady,
    LinkStats,
    Listening,
    RttJob,
    RttResult,
)
from howfar.contract.receipt import ByDirection, CalibrationRound, LinkCalibration
from howfar.engine.process import EngineProcess, Launcher, run_probe
from howfar.errors import HowfarError, LabError, LinkFailed
from howfar.lab import sandbox
from howfar.lab.awake import keep_cpus_awake
from howfar.lab.link.backends import DEFAULT, Backend, BackendLink, backends, find_backend
from howfar.lab.link.spec import DIRECTIONS, DirectionName, LinkSpec
from howfar.lab.network import Host, Network, build_network, share_cpus, usable_cpus

_MAX_ROUNDS = 4
_MAX_ROUNDS_WITH_PREVIOUS = 2
"""Maximum number of rounds of a calibration that starts from the result of a previous one."""
SIMILAR_RTT_SHARE = 0.1
"""Links whose RTTs differ by at most this share use the same correction, because the cost of hosts and emulator does not depend on the
delay. So the difference of two such links, for example those of a control and its baseline, is exactly the requested one."""
_DAMPING = 2
"""Divisor of the excess that each round after the first subtracts, so that one noisy round cannot undo the others. The first round
subtracts the full excess, so that the errors of calibrations are independent and show in the scatter between blocks."""
_PROBE_DURATION_NS = 100_000_000
"""Approximate duration of a probe of the RTT, which has between 10 and 400 pings."""
_MAX_PROBES = 5
_ROUND_DURATION_NS = 500_000_000
"""Approximate duration of a round. Its result is the median of up to five probes, each with its own connection and process. With a
long RTT there are fewer probes, because the microseconds of waking a CPU hardly matter."""
_WARMUP_NS, _MAX_PHASE_NS = 1_000_000_000, 10_000_000_000
_WARMUP_RTTS = 70
"""Warm-up in RTTs, in addition to `_WARMUP_NS`. A congestion window grows from 10 segments, and cubic needs time to recover from the
first loss. With a warm-up of 0.2 s the measured goodput was up to 2 % off, with 1 s it was right. At 100 ms and 1 Gb/s, 3 s gave 91 %
of the right goodput, and 8 s the right one."""
_GOODPUT_RTTS = 10
_GOODPUT_SEGMENTS = 100
"""Minimum number of full segments in a window. With fewer segments, one segment at the window's ends changes the goodput by over 1 %,
and the first segment may be late."""
_MAX_COMPENSATION_NS = 75_000
"""Maximum time that is subtracted from the delay of each direction. The path to and from the emulator takes some tens of microseconds;
any further excess comes from a machine that was busy during calibration. Subtracting it would make the RTT too short once the machine
is idle."""


def ping_count(rtt_ns: int) -> int:
    """The number of pings that fit in about 0.1 s."""
    return min(max(_PROBE_DURATION_NS // max(rtt_ns, 1), 10), 400)


def probe_count(rtt_ns: int) -> int:
    """The number of probes in a round of calibration."""
    return min(max(_ROUND_DURATION_NS // max(ping_count(rtt_ns) * rtt_ns, 1), 1), _MAX_PROBES)


def goodput_times_ns(rtt_ns: int, segment_ns: int = 0) -> tuple[int, int]:
    """Durations of the warm-up and the measured window of a bulk transfer. `segment_ns`: transmission time of a full segment."""
    warmup_ns = min(_WARMUP_NS + _WARMUP_RTTS * rtt_ns, _MAX_PHASE_NS)
    window_ns = max(_WARMUP_NS // 2, _GOODPUT_RTTS * rtt_ns, _GOODPUT_SEGMENTS * segment_ns)
    return warmup_ns, min(window_ns, _MAX_PHASE_NS)


def can_count_goodput(segment_ns: int) -> bool:
    """Whether the longest possible window holds enough segments to measure a goodput."""
    return _GOODPUT_SEGMENTS * segment_ns <= _MAX_PHASE_NS


class CalibratableLink(Protocol):
    """The part of `Link` that `calibrate` needs."""

    def set_without_effects(self, spec: LinkSpec, compensate_ns: int) -> None: ...
    def rest_rtt_ns(self, spec: LinkSpec) -> int: ...
    def ping(self) -> RttResult: ...
    def ping_from_idle(self) -> RttResult: ...
    def goodput(self, direction: DirectionName) -> GoodputResult | None: ...
    def counters(self, *, reset: bool = False) -> LinkStats | None: ...


def compensation_ns(spec: LinkSpec, current_ns: int, excess_ns: int) -> int:
    """The new correction of each direction: the present one plus half of the RTT's excess. It is at least 0, and at most
    `_MAX_COMPENSATION_NS` and the delay."""
    return min(max(current_ns + excess_ns // 2, 0), _MAX_COMPENSATION_NS, *(spec.delay_ns(name) for name in DIRECTIONS))


def calibrate(
    link: CalibratableLink, spec: LinkSpec, *, with_goodput: bool, previous: LinkCalibration | None = None
) -> LinkCalibration:
    """Calibrate a link: subtract half of the RTT's excess from the delay of each direction, until the RTT is right or no more may be
    subtracted. The last round measures the final setting. `with_goodput`: also run one bulk transfer per direction, which takes
    seconds. `previous`: the result of an earlier calibration, from which this one starts; results that are not measured again are
    copied from it."""
    compensate_ns, rest_rtt_ns = previous.compensate_ns if previous else 0, link.rest_rtt_ns(spec)
    max_rounds = _MAX_ROUNDS_WITH_PREVIOUS if previous else _MAX_ROUNDS
    rounds: list[CalibrationRound] = []
    while True:
        link.set_without_effects(spec, compensate_ns)
        probes = [link.ping() for _ in range(probe_count(rest_rtt_ns))]
        rtt_ns = int(statistics.median(probe.p50_ns for probe in probes))
        rtts_ns = [probe.p50_ns for probe in probes]
        rounds.append(CalibrationRound(compensate_ns=compensate_ns, rtt_p50_ns=rtt_ns, rtt_p50s_ns=rtts_ns))
        # Other activity can only lengthen a round trip, so the fastest probe estimates the path's own cost best.
        excess_ns = min(probe.p50_ns for probe in probes) - rest_rtt_ns
        next_compensate_ns = compensation_ns(
            spec, compensate_ns, excess_ns if len(rounds) == 1 else excess_ns // _DAMPING
        )
        is_accurate = not previous and abs(excess_ns) < spec.rtt_ns // 100
        if len(rounds) == max_rounds or next_compensate_ns == compensate_ns or is_accurate:
            break
        compensate_ns = next_compensate_ns
    calibration = LinkCalibration(
        compensate_ns=compensate_ns,
        rest_rtt_ns=rest_rtt_ns,
        rounds=rounds,
        rtt_p50_ns=rtt_ns,
        rtt_p99_ns=int(statistics.median(probe.p99_ns for probe in probes)),
    )
    if previous:
        return previous.updated(calibration)
    calibration.rtt_from_idle_p50_ns = link.ping_from_idle().p50_ns
    return calibration.updated(measure_goodput(link, spec)) if with_goodput else calibration


def measure_goodput(link: CalibratableLink, spec: LinkSpec) -> LinkCalibration:
    """Measure the goodput by bulk transfers over the link at rest, one direction after the other; returns a partial calibration. A
    direction whose rate is too low has no result."""
    measured = {name: result for name in DIRECTIONS if (result := link.goodput(name)) is not None}
    first_result = next(iter(measured.values()), None)
    expected = {name: spec.expected_goodput_bps(name) for name in DIRECTIONS}
    stats = link.counters(reset=True)
    return LinkCalibration(
        goodput_bps=ByDirection(**{name: result.bits_per_second for name, result in measured.items()}),
        expected_goodput_bps=expected["to_server"] if expected["to_server"] == expected["to_client"] else None,
        expected_goodput_bps_each_way=ByDirection(**expected),
        goodput_ceiling=f"payload: {spec.payload_share:.2%} of the bytes on the wire",
        retransmits=ByDirection(**{name: result.retransmits for name, result in measured.items()}),
        congestion_control=None if first_result is None else first_result.congestion_control,
        mss=None if first_result is None else first_result.mss,
        drops=None if stats is None else {"to_server": stats.to_server.drops, "to_client": stats.to_client.drops},
    )


def _differ_only_in_rtt(first: LinkSpec, second: LinkSpec) -> bool:
    """Whether two links differ only in their RTTs, and by at most `SIMILAR_RTT_SHARE`."""
    are_similar = abs(first.rtt_ns - second.rtt_ns) <= SIMILAR_RTT_SHARE * min(first.rtt_ns, second.rtt_ns)
    return are_similar and replace(first, rtt_ns=second.rtt_ns) == second


_PING_TIMEOUT_NS = 10_000_000_000
"""Time allowed in addition to four times the measured round trips: the probe warms up first, and its first round trip is slow."""


@dataclass
class Link:
    """A link in use, with its calibrations. Created by `open_link`."""

    backend_link: BackendLink
    network: Network
    echo: EngineProcess
    client: Launcher
    echo_port: int
    spec: LinkSpec
    backend: str = DEFAULT
    with_goodput: bool = True
    """Whether calibration also measures the goodput."""
    compensate_ns: int = 0
    """Time subtracted from the delay of each direction: the result of the calibration of `spec`."""
    calibrations: dict[LinkSpec, LinkCalibration] = field(default_factory=dict)
    """The latest calibration of each specification that this link has had, by `LinkSpec.without_effects`."""
    calibrated_in_batch: set[LinkSpec] = field(default_factory=set)
    """Keys of `calibrations` that were measured, or taken from a similar link, since `begin_batch`."""
    effects_on: bool = False
    """Whether the effects are on."""

    @property
    def pid(self) -> int | None:
        return self.backend_link.pid

    @property
    def ready(self) -> LinkReady | None:
        return self.backend_link.ready

    @property
    def calibration(self) -> LinkCalibration:
        """The calibration of `spec`."""
        return self.calibrations[self.spec.without_effects()]

    @property
    def measured_rtt_ns(self) -> int:
        """The unloaded RTT, as calibrated."""
        rtt_ns = self.calibration.rtt_p50_ns
        assert rtt_ns is not None, "each round of a calibration measures the RTT"
        return rtt_ns

    @property
    def waking_ns(self) -> float:
        """See `LinkCalibration.waking_ns`."""
        return float(self.calibration.waking_ns or 0)

    def alive(self) -> bool:
        """Whether emulator and echo server are both running."""
        return self.backend_link.alive() and self.echo.alive()

    def begin_batch(self) -> None:
        """Start a batch: each specification is calibrated again when it is next requested."""
        self.calibrated_in_batch.clear()

    def shape(self, spec: LinkSpec) -> LinkCalibration:
        """Set the link to `spec`, at rest, and calibrate it unless this batch has already done so; returns the calibration. Raises
        LinkFailed, EngineError."""
        rest_spec = spec.without_effects()
        if rest_spec not in self.calibrated_in_batch:
            similar = next((other for other in self.calibrated_in_batch if _differ_only_in_rtt(rest_spec, other)), None)
            if similar is None:
                previous = self.calibrations.get(rest_spec)
                result = calibrate(self, rest_spec, with_goodput=self.with_goodput, previous=previous)
            else:
                result = self.calibrations[similar].model_copy()
                result.of_rtt_ns = similar.rtt_ns
            self.calibrations[rest_spec] = result
            self.calibrated_in_batch.add(rest_spec)
        calibration = self.calibrations[rest_spec]
        self.set_without_effects(spec, calibration.compensate_ns)
        return calibration

    def rest_rtt_ns(self, spec: LinkSpec) -> int:
        """Expected RTT of a ping over a link of this specification at rest. It includes the ping's transmission time, unless the
        back-end does not delay a single packet by its transmission time."""
        return spec.rest_rtt_ns if backends()[self.backend].CHARGES_LONE_PACKETS else spec.rtt_ns

    def queue_bytes(self, name: DirectionName) -> int:
        """The actual length of the queue: a default below the back-end's minimum is raised to it; explicit requests below it are
        refused."""
        return max(self.spec.queue_bytes(name), backends()[self.backend].MIN_QUEUE_BYTES)

    def measure_goodput(self) -> None:
        """Add the goodput to a calibration that was made without it. The link must be at rest."""
        if self.calibration.goodput_bps is None:
            rest_spec = self.spec.without_effects()
            self.calibrations[rest_spec] = self.calibration.updated(measure_goodput(self, rest_spec))

    def start_effects(self) -> None:
        """Turn the effects on. Outages and rate traces begin now; random decisions continue their previous sequence."""
        self.backend_link.set(self.spec, self.compensate_ns, 0)
        self.effects_on = True

    def change(self, spec: LinkSpec, elapsed_ns: int) -> None:
        """Switch to another specification now, `elapsed_ns` after `start_effects`, without losing a packet and without a new
        calibration: the correction is that of an earlier calibration with `spec` if there is one, else the present one."""
        calibration = self.calibrations.get(spec.without_effects())
        compensate_ns = self.compensate_ns if calibration is None else calibration.compensate_ns
        self.backend_link.set(spec, min(compensate_ns, *(spec.delay_ns(name) for name in DIRECTIONS)), elapsed_ns)

    def set_without_effects(self, spec: LinkSpec, compensate_ns: int) -> None:
        """Set the link to `spec`, at rest, with `compensate_ns` subtracted from the delay of each direction."""
        self.backend_link.set(spec.without_effects(), compensate_ns, 0)
        self.spec, self.compensate_ns, self.effects_on = spec, compensate_ns, False

    def ping(self) -> RttResult:
        """Measure the present RTT while the CPUs are kept awake, so that it includes no wake-ups."""
        with keep_cpus_awake(usable_cpus()):
            return self.ping_from_idle()

    def ping_from_idle(self) -> RttResult:
        """Measure the present RTT as any program would: if the CPUs are idle, it includes waking them at both ends."""
        rest_rtt_ns = self.rest_rtt_ns(self.spec)
        count = ping_count(rest_rtt_ns)
        timeout_ns = _PING_TIMEOUT_NS + 4 * count * rest_rtt_ns
        job = RttJob(host=self.network.ends.server_address, port=self.echo_port, count=count, timeout_ns=timeout_ns)
        result = run_probe(job, self.client)
        if not isinstance(result, RttResult):
            raise LinkFailed(f"the RTT probe answered {result.event!r} instead of an RTT")
        return result

    def goodput(self, direction: DirectionName) -> GoodputResult | None:
        """Measure the goodput of one bulk transfer, after a warm-up in which the congestion window opens; None if the rate is too low
        for that."""
        segment_ns = self.spec.segment_ns(direction)
        if not can_count_goodput(segment_ns):
            return None
        warmup_ns, measure_ns = goodput_times_ns(self.spec.rtt_ns, segment_ns)
        job = GoodputJob(
            host=self.network.ends.server_address,
            port=self.echo_port,
            direction=direction,
            warmup_ns=warmup_ns,
            measure_ns=measure_ns,
        )
        result = run_probe(job, self.client)
        if not isinstance(result, GoodputResult):
            raise LinkFailed(f"the goodput probe answered {result.event!r} instead of a goodput")
        return result

    def measure_rtt_at_rest(self) -> RttResult:
        """Measure the RTT before a load, with the effects off. It is measured only once: repeating the measurement until the machine
        is idle would favour the paths that have a link."""
        if self.effects_on:
            self.set_without_effects(self.spec, self.compensate_ns)
        return self.ping()

    def counters(self, *, reset: bool = False) -> LinkStats | None:
        """Counters since the last reset; None if this back-end has none."""
        return self.backend_link.stats(reset=reset)


@contextmanager
def open_link(
    network: Network,
    spec: LinkSpec,
    client: Launcher,
    server: Launcher,
    calibrations: Mapping[LinkSpec, LinkCalibration] | None = None,
    *,
    backend: str = DEFAULT,
    with_goodput: bool = True,
) -> Iterator[Link]:
    """Cable the hosts, start emulator and echo server, set the link to `spec` and calibrate it, starting from the `calibrations` of an
    earlier link. Leaving removes everything. Raises UsageError, LinkFailed, EngineError."""
    with (
        find_backend(backend, spec).connect(network, spec) as backend_link,
        EngineProcess(EchoJob(host=network.ends.server_address), server) as echo,
    ):
        listening = echo.read()
        if not isinstance(listening, Listening):
            raise LinkFailed(f"the link's echo answered {listening.event!r}")
        link = Link(
            backend_link,
            network,
            echo,
            client,
            listening.port,
            spec,
            backend=backend,
            with_goodput=with_goodput,
            calibrations=dict(calibrations or {}),
        )
        link.shape(spec)
        yield link


_QDISCS = {"tbf": "tbf rate 1gbit burst 128kb limit 1mb", "htb": "htb default 1", "netem": "netem delay 1ms"}
_SCRATCH_DEVICE = "scratch0"


@dataclass(frozen=True)
class BackendStatus:
    """Whether a back-end works on this machine."""

    name: str
    about: str
    works: bool
    notes: tuple[str, ...]
    """Findings about the back-end, or the reason why it does not work."""


def try_backends() -> tuple[BackendStatus, ...]:
    """Find out which back-ends work, by using each one. Call in the sandbox."""
    assert sandbox.inside(), "back-ends are tried in the sandbox, not in the machine's own network"
    return tuple(_try_backend(backend) for backend in backends().values())


def _try_backend(backend: Backend) -> BackendStatus:
    notes: list[str] = []
    try:
        with ExitStack() as stack:
            network = build_network(stack)
            shares = share_cpus(usable_cpus())
            bare_spec = LinkSpec(rtt_ns=0, rate_bps=None)
            spec = bare_spec if backend.NAME == "none" else replace(bare_spec, rate_bps=10**9)
            client, server = network.client.launcher(shares.client), network.server.launcher(shares.server)
            calibrations = {spec.without_effects(): LinkCalibration(compensate_ns=0)}
            link = stack.enter_context(open_link(network, spec, client, server, calibrations, backend=backend.NAME))
            notes += _describe_emulator(link)
            if backend.NAME == "kernel":
                notes += _describe_qdiscs()
    except HowfarError as error:
        return BackendStatus(backend.NAME, backend.ABOUT, False, (error.message,))
    return BackendStatus(backend.NAME, backend.ABOUT, True, tuple(notes))


def _describe_emulator(link: Link) -> list[str]:
    link.ping_from_idle()  # check that packets cross the link in both directions
    ready = link.ready
    if ready is None:
        return []
    scheduling = (
        "real-time class" if ready.realtime else "short time slice" if ready.short_slice else "ordinary scheduling"
    )
    return [scheduling, "super-packets kept" if ready.offload else "no offload: slower"]


def _describe_qdiscs() -> list[str]:
    missing = missing_qdiscs()
    return [f"{name} is not here ({missing[name]})" if name in missing else f"{name} works" for name in _QDISCS]


def missing_qdiscs() -> dict[str, str]:
    """Find the queueing disciplines that this kernel lacks, by adding each to a scratch interface; returns the kernel's error message
    for each that is missing. Call in the sandbox."""
    base = Host("base", None)
    missing: dict[str, str] = {}
    base.ip([f"link add name {_SCRATCH_DEVICE} type veth peer name {_SCRATCH_DEVICE}p"])
    try:
        for name, arguments in _QDISCS.items():
            try:
                base.tc([f"qdisc add dev {_SCRATCH_DEVICE} root {arguments}"])
            except LabError as error:
                missing[name] = error.message.rpartition("failed: ")[2].splitlines()[0]
                continue
            base.tc([f"qdisc del dev {_SCRATCH_DEVICE} root"])
    finally:
        base.ip([f"link del dev {_SCRATCH_DEVICE}"])
    return missing
