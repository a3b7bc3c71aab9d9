"""A running link between both hosts: a back-end's link, and the echo server that measures it.

It is at rest (no effects except rate and delay) during calibration and probes; `arm` turns all effects on for a load.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from howfar.engine.messages import (
    EchoJob,
    GoodputJob,
    GoodputResult,
    LinkReady,
    LinkStats,
    Listening,
    RttJob,
    RttResult,
)
from howfar.engine.process import EngineProcess, Launcher, run_probe
from howfar.errors import HowfarError, LabError, LinkFailed
from howfar.lab import sandbox
from howfar.lab.awake import awake
from howfar.lab.link.backends import DEFAULT, Backend, BackendLink, backends, find_backend
from howfar.lab.link.spec import DIRECTIONS, DirectionName, LinkSpec
from howfar.lab.network import Host, Network, build_network, share_cpus, usable_cpus

_ROUNDS = 4
_ROUNDS_AGAIN = 2
"""Maximum rounds of a calibration that starts from the result of an earlier one."""
ALIKE_SHARE = 0.1
"""Links whose RTTs differ by at most this share use the same correction: it is the cost of hosts and emulator, which does not depend
on the delay. So two such links, for example those of a control and its baseline, differ by exactly what was requested."""
_DAMPING = 2
"""The first round of each calibration subtracts the full excess, so that calibration errors are independent and show in the scatter
between blocks; each later round subtracts the remaining excess divided by this, so that one noisy round cannot undo the others."""
_PROBE_NS = 100_000_000
"""A probe of the RTT takes about this long, within 10 to 400 pings."""
_PROBES = 5
_PROBES_NS = 500_000_000
"""A round is the median of five probes, each with its own connection and process. Fewer if a probe takes long: at such an RTT the
microseconds of waking up do not matter."""
_WARMUP_NS, _WARMUP_MAX_NS = 1_000_000_000, 10_000_000_000
_WARMUP_RTTS = 70
"""A congestion window grows from 10 segments, and cubic needs time to recover from the first loss: with 0.2 s of warm-up the goodput
was up to 2 % off, with 1 s it was right; at 100 ms and 1 Gb/s it was at 91 % with 3 s, but right with 8 s."""
_GOODPUT_RTTS = 10
_GOODPUT_SEGMENTS = 100
"""A window with fewer full segments yields no goodput: one more or less at its ends is above 1 %, and the first may be late."""
_MOST_NS = 75_000
"""Maximum that is subtracted from each direction. The path to and from the emulator costs some tens of microseconds; any further
excess comes from a machine that was busy at that moment. Subtracting that permanently would leave a link that is too short once the
machine is quiet."""


def ping_count(rtt_ns: int) -> int:
    """The number of pings that fit in about 0.1 s."""
    return min(max(_PROBE_NS // max(rtt_ns, 1), 10), 400)


def probe_count(rtt_ns: int) -> int:
    """Number of probes in a round of calibration."""
    return min(max(_PROBES_NS // max(ping_count(rtt_ns) * rtt_ns, 1), 1), _PROBES)


def goodput_times_ns(rtt_ns: int, segment_ns: int = 0) -> tuple[int, int]:
    """Warm-up and measured window of a bulk transfer; `segment_ns`: transmission time of a full segment."""
    warmup_ns = min(_WARMUP_NS + _WARMUP_RTTS * rtt_ns, _WARMUP_MAX_NS)
    longest_of = max(_WARMUP_NS // 2, _GOODPUT_RTTS * rtt_ns, _GOODPUT_SEGMENTS * segment_ns)
    return warmup_ns, min(longest_of, _WARMUP_MAX_NS)


def can_count_goodput(segment_ns: int) -> bool:
    """Whether the longest window holds enough segments for a figure."""
    return _GOODPUT_SEGMENTS * segment_ns <= _WARMUP_MAX_NS


class Calibrated(Protocol):
    """The part of `Link` that `calibrate` needs."""

    def set_calm(self, spec: LinkSpec, compensate_ns: int) -> None: ...
    def rest_rtt_ns(self, spec: LinkSpec) -> int: ...
    def ping(self) -> RttResult: ...
    def ping_from_idle(self) -> RttResult: ...
    def goodput(self, to_server: bool) -> GoodputResult | None: ...
    def counters(self, *, reset: bool = False) -> LinkStats | None: ...


def compensation_ns(spec: LinkSpec, present_ns: int, excess_ns: int) -> int:
    """The new correction of each direction: `present_ns` plus half of the excess, at least 0, at most `_MOST_NS` and the delay."""
    return min(max(present_ns + excess_ns // 2, 0), _MOST_NS, *(spec.delay_ns(name) for name in DIRECTIONS))


def calibrate(
    link: Calibrated, spec: LinkSpec, *, with_goodput: bool, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Subtract half of the RTT's excess from each direction, until the RTT is right or no more may be subtracted.

    The last round measures the final setting. `with_goodput`: also one bulk transfer per direction, which takes seconds. `before`:
    the result of an earlier calibration to start from; results that do not change from block to block are taken from it.
    """
    compensate, rest_rtt_ns = int(before["compensate_ns"]) if before else 0, link.rest_rtt_ns(spec)
    most = _ROUNDS_AGAIN if before else _ROUNDS
    rounds: list[dict[str, Any]] = []
    while True:
        link.set_calm(spec, compensate)
        probes = [link.ping() for _ in range(probe_count(rest_rtt_ns))]
        rtt_ns = int(statistics.median(probe.p50_ns for probe in probes))
        rounds.append(
            {
                "compensate_ns": compensate,
                "rtt_p50_ns": rtt_ns,
                "rtt_p50s_ns": [probe.p50_ns for probe in probes],
            }
        )
        # Other activity can only lengthen a round trip, so the fastest probe is the best estimate of the path's own cost.
        excess = min(probe.p50_ns for probe in probes) - rest_rtt_ns
        better = compensation_ns(spec, compensate, excess if len(rounds) == 1 else excess // _DAMPING)
        right = not before and abs(excess) < spec.rtt_ns // 100
        if len(rounds) == most or better == compensate or right:
            break
        compensate = better
    found: dict[str, Any] = {
        "compensate_ns": compensate,
        "rest_rtt_ns": rest_rtt_ns,
        "rounds": rounds,
        "rtt_p50_ns": rtt_ns,
        "rtt_p99_ns": int(statistics.median(probe.p99_ns for probe in probes)),
    }
    if before:
        return {**before, **found}
    found |= {
        "rtt_from_idle_p50_ns": link.ping_from_idle().p50_ns,
    }
    return {**found, **measure_goodput(link, spec)} if with_goodput else found


def measure_goodput(link: Calibrated, spec: LinkSpec) -> dict[str, Any]:
    """Measure bulk transfers over the link at rest, one direction after the other. A direction that is too slow has no figure."""
    results = {name: link.goodput(name == "to_server") for name in DIRECTIONS}
    found = {name: result for name, result in results.items() if result is not None}
    one = next(iter(found.values()), None)
    expected = {name: spec.expected_goodput_bps(name) for name in DIRECTIONS}
    stats = link.counters(reset=True)
    drops = None
    if stats is not None:
        drops = {name: getattr(stats, name).drops.model_dump() for name in DIRECTIONS}
    return {
        "goodput_bps": {name: result.bits_per_second for name, result in found.items()},
        "expected_goodput_bps": expected["to_server"] if expected["to_server"] == expected["to_client"] else None,
        "expected_goodput_bps_each_way": expected,
        "goodput_ceiling": f"payload: {spec.payload_share:.2%} of the bytes on the wire",
        "retransmits": {name: result.retransmits for name, result in found.items()},
        "congestion_control": None if one is None else one.congestion_control,
        "mss": None if one is None else one.mss,
        "drops": drops,
    }


def _alike(one: LinkSpec, other: LinkSpec) -> bool:
    """Whether two links differ only in their RTTs, and those by at most `ALIKE_SHARE`."""
    near = abs(one.rtt_ns - other.rtt_ns) <= ALIKE_SHARE * min(one.rtt_ns, other.rtt_ns)
    return near and replace(one, rtt_ns=other.rtt_ns) == other


_PING_PATIENCE_NS = 10_000_000_000
"""Time allowed beyond the counted round trips: the probe makes some before them, the first of which is slow."""


@dataclass
class Link:
    """A link in use, with its calibrations. Made by `open_link`."""

    backend_link: BackendLink
    network: Network
    echo: EngineProcess
    client: Launcher
    echo_port: int
    spec: LinkSpec
    backend: str = DEFAULT
    with_goodput: bool = True
    """Calibration also measures the goodput."""
    compensate_ns: int = 0
    """Time subtracted from the delay of each direction; once `spec` is calibrated, the result of that calibration."""
    calibrations: dict[LinkSpec, dict[str, Any]] = field(default_factory=dict)
    """The latest calibration of each link, by the link at rest."""
    in_batch: set[LinkSpec] = field(default_factory=set)
    """Links at rest that were calibrated, or took over a calibration, since `begin_batch`."""
    armed: bool = False

    @property
    def pid(self) -> int | None:
        return self.backend_link.pid

    @property
    def ready(self) -> LinkReady | None:
        return self.backend_link.ready

    @property
    def calibration(self) -> dict[str, Any]:
        """The calibration of the link as now requested."""
        return self.calibrations[self.spec.calm()]

    @property
    def waking_ns(self) -> float:
        """Extra time of a round trip when the CPUs of both ends are asleep, according to the calibration."""
        found = self.calibration
        return float(max(found["rtt_from_idle_p50_ns"] - found["rtt_p50_ns"], 0))

    def alive(self) -> bool:
        """Whether both emulator and echo server run."""
        return self.backend_link.alive() and self.echo.alive()

    def begin_batch(self) -> None:
        """Start a batch: each link is calibrated again when it is next requested."""
        self.in_batch.clear()

    def shape(self, spec: LinkSpec) -> dict[str, Any]:
        """Set the link, at rest, to `spec`; calibrate it once per batch. Raises LinkFailed, EngineError."""
        calm = spec.calm()
        if calm not in self.in_batch:
            alike = next((other for other in self.in_batch if _alike(calm, other)), None)
            if alike is None:
                before = self.calibrations.get(calm)
                found = calibrate(self, calm, with_goodput=self.with_goodput, before=before)
            else:
                found = {**self.calibrations[alike], "of_rtt_ns": alike.rtt_ns}
            self.calibrations[calm] = found
            self.in_batch.add(calm)
        known = self.calibrations[calm]
        self.set_calm(spec, int(known["compensate_ns"]))
        return known

    def rest_rtt_ns(self, spec: LinkSpec) -> int:
        """Expected time of our ping over such a link at rest. If the back-end does not charge a lone packet for the rate, the ping's
        transmission takes no time."""
        return spec.rest_rtt_ns if backends()[self.backend].CHARGES_LONE_PACKETS else spec.rtt_ns

    def queue_bytes(self, name: DirectionName) -> int:
        """The actual length of the queue; the back-end refuses explicit requests below its minimum."""
        return max(self.spec.queue_bytes(name), backends()[self.backend].QUEUE_LEAST_BYTES)

    def measure_goodput(self) -> None:
        """Add the goodput to a calibration that was made without it. The link must be at rest."""
        if "goodput_bps" not in self.calibration:
            self.calibration.update(measure_goodput(self, self.spec.calm()))

    def arm(self) -> None:
        """Turn the effects on. Schedules begin now; random decisions continue their previous sequence."""
        self.backend_link.set(self.spec, self.compensate_ns, 0)
        self.armed = True

    def change(self, spec: LinkSpec, elapsed_ns: int) -> None:
        """Switch to another link now, `elapsed_ns` after `arm`, without losing a packet and without measuring. The correction is that
        of this link's calibration if it has one, else the present correction."""
        known = self.calibrations.get(spec.calm())
        compensate_ns = self.compensate_ns if known is None else int(known["compensate_ns"])
        self.backend_link.set(spec, min(compensate_ns, *(spec.delay_ns(name) for name in DIRECTIONS)), elapsed_ns)

    def set_calm(self, spec: LinkSpec, compensate_ns: int) -> None:
        """Set the link, at rest, with `compensate_ns` subtracted from the delay of each direction."""
        self.backend_link.set(spec.calm(), compensate_ns, 0)
        self.spec, self.compensate_ns, self.armed = spec, compensate_ns, False

    def ping(self) -> RttResult:
        """The present RTT with processors kept awake, so that it contains the link's time but no wake-ups."""
        with awake(usable_cpus()):
            return self.ping_from_idle()

    def ping_from_idle(self) -> RttResult:
        """The present RTT as any program finds it: if processors sleep, it includes waking both ends."""
        rest_rtt_ns = self.rest_rtt_ns(self.spec)
        count = ping_count(rest_rtt_ns)
        longest_ns = _PING_PATIENCE_NS + 4 * count * rest_rtt_ns
        job = RttJob(host=self.network.ends.server_address, port=self.echo_port, count=count, timeout_ns=longest_ns)
        result = run_probe(job, self.client)
        if not isinstance(result, RttResult):
            raise LinkFailed(f"the RTT probe answered {result.event!r} instead of an RTT")
        return result

    def goodput(self, to_server: bool) -> GoodputResult | None:
        """Run one bulk transfer, with a warm-up in which the congestion window opens. None if the rate is too low for a figure."""
        direction: DirectionName = "to_server" if to_server else "to_client"
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

    def at_rest(self) -> RttResult:
        """The RTT before a load, effects off. Measured once: waiting for a quiet moment would favour the paths that have a link."""
        if self.armed:
            self.set_calm(self.spec, self.compensate_ns)
        return self.ping()

    def counters(self, *, reset: bool = False) -> LinkStats | None:
        """Counters since the last reset; None if this back-end has none."""
        return self.backend_link.stats(reset=reset)

    def stats(self, *, reset: bool = False) -> LinkStats:
        """Counters of a back-end that must have them. Raises LinkFailed."""
        found = self.counters(reset=reset)
        if found is None:
            raise LinkFailed(f"the link back-end {self.backend} counts nothing", "Use --link-backend packet.")
        return found


@contextmanager
def open_link(
    network: Network,
    spec: LinkSpec,
    client: Launcher,
    server: Launcher,
    calibrations: Mapping[LinkSpec, dict[str, Any]] | None = None,
    *,
    backend: str = DEFAULT,
    with_goodput: bool = True,
) -> Iterator[Link]:
    """Cable the hosts, start emulator and echo server, shape and calibrate the link, beginning with `calibrations` of an earlier one.
    All of it is removed on leaving.

    Raises UsageError, LinkFailed, EngineError.
    """
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


_QDISCS = {
    "tbf": "tbf rate 1gbit burst 128kb limit 1mb",
    "htb": "htb default 1",
    "netem": "netem delay 1ms",
}
_SCRATCH = "scratch0"


@dataclass(frozen=True)
class Presence:
    name: str
    about: str
    works: bool
    notes: tuple[str, ...]
    """Findings, or the reason why it does not work."""


def try_all() -> tuple[Presence, ...]:
    """Try every back-end. Call in the sandbox."""
    assert sandbox.inside(), "a trial elsewhere would touch the machine's network"
    return tuple(_try(backend) for backend in backends().values())


def _try(backend: Backend) -> Presence:
    notes: list[str] = []
    try:
        with ExitStack() as ledger:
            network = build_network(ledger)
            shares = share_cpus(usable_cpus())
            bare = LinkSpec(rtt_ns=0, rate_bps=None)
            spec = bare if backend.NAME == "none" else replace(bare, rate_bps=10**9)
            client, server = network.client.launcher(shares.client), network.server.launcher(shares.server)
            known = {spec.calm(): {"compensate_ns": 0}}
            link = ledger.enter_context(open_link(network, spec, client, server, known, backend=backend.NAME))
            notes += _notes(link)
            if backend.NAME == "kernel":
                notes += _qdiscs()
    except HowfarError as error:
        return Presence(backend.NAME, backend.ABOUT, False, (error.message,))
    return Presence(backend.NAME, backend.ABOUT, True, tuple(notes))


def _notes(link: Link) -> list[str]:
    link.ping_from_idle()  # a packet crosses it in both directions
    ready = link.ready
    if ready is None:
        return []
    scheduling = (
        "real-time class" if ready.realtime else "short time slice" if ready.short_slice else "ordinary scheduling"
    )
    return [scheduling, "super-packets kept" if ready.offload else "no offload: slower"]


def _qdiscs() -> list[str]:
    missing = missing_qdiscs()
    return [f"{name} is not here ({missing[name]})" if name in missing else f"{name} works" for name in _QDISCS]


def missing_qdiscs() -> dict[str, str]:
    """Disciplines that this kernel lacks, with its error message: each is tried on a scratch interface. Call in the sandbox."""
    base = Host("base", None)
    missing: dict[str, str] = {}
    base.ip([f"link add name {_SCRATCH} type veth peer name {_SCRATCH}p"])
    try:
        for name, arguments in _QDISCS.items():
            try:
                base.tc([f"qdisc add dev {_SCRATCH} root {arguments}"])
            except LabError as error:
                missing[name] = error.message.rpartition("failed: ")[2].splitlines()[0]
                continue
            base.tc([f"qdisc del dev {_SCRATCH} root"])
    finally:
        base.ip([f"link del dev {_SCRATCH}"])
    return missing
