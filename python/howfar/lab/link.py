"""The link as the laboratory sees it: the emulator started, and calibrated once against the asked RTT.

Calibration is a closed loop: the RTT at rest is probed with the asked delay set, what it has too much is taken off both ways,
and so on for a few rounds. What comes out is frozen: every trial of the session on this link runs with the same programmed
delays. A correction that followed each probe would follow the probe's noise, and the arms would be compared over different
links. Not here: what a trial's link is judged by, see `link_receipt.py`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from howfar.engine.messages import (
    AskStats,
    Direction,
    EchoJob,
    GoodputJob,
    GoodputResult,
    LinkJob,
    LinkReady,
    LinkStats,
    Listening,
    RttJob,
    RttResult,
    SetLink,
)
from howfar.engine.process import EngineProcess, Launcher, run_probe
from howfar.errors import LinkFailed
from howfar.lab.awake import awake
from howfar.lab.hosts import usable_cpus
from howfar.lab.network import CLIENT_MIDDLE, SERVER_ADDRESS, SERVER_MIDDLE, Network
from howfar.plan.tolerance import rtt_tolerance_ns

_QUEUE_AT_LEAST_NS = 10_000_000
_UNSHAPED_QUEUE_BYTES = 64 * 2**20
_ROUNDS = 4
_DAMPING = 2
"""The first round takes off all that is too much, each later one this part of what is left: one noisy round cannot undo the others."""
_PROBE_NS = 100_000_000
"""A probe of the RTT takes about this long, within 10 to 400 pings."""
_PROBES = 5
_PROBES_NS = 500_000_000
"""A round is the median of five probes, each a connection and a process of its own. Fewer where one takes long: at such an RTT the
microseconds of waking up do not show."""
_PAUSES_S = (0.1, 0.2, 0.4, 0.8)
"""Before a trial the RTT is measured, and again after each of these when it was off: a neighbour's burst passes in that time."""
_WARMUP_NS, _WARMUP_MAX_NS = 1_000_000_000, 10_000_000_000
_WARMUP_RTTS = 70
"""A window opens from 10 segments, and after the first loss cubic needs its time to come back: with 0.2 s the goodput was up to
2 % off, with 1 s it was right; at 100 ms and 1 Gb/s 3 s left it at 91 %, 8 s did not."""
_GOODPUT_RTTS = 10


@dataclass(frozen=True)
class LinkAsked:
    """What the user asked of the link. `rtt_ns` is split evenly; `rate_bps` None: unshaped."""

    rtt_ns: int
    rate_bps: int | None

    @property
    def bdp_bytes(self) -> int:
        return (self.rate_bps or 10**10) * self.rtt_ns // 8 // 10**9

    @property
    def queue_bytes(self) -> int:
        """One bandwidth-delay product, but never less than 10 ms at the rate."""
        if self.rate_bps is None:
            return _UNSHAPED_QUEUE_BYTES
        return max(self.bdp_bytes, self.rate_bps * _QUEUE_AT_LEAST_NS // 8 // 10**9)

    def direction(self, compensate_ns: int) -> Direction:
        return Direction(
            rate_bps=self.rate_bps,
            delay_ns=self.rtt_ns // 2,
            compensate_ns=compensate_ns,
            queue_bytes=self.queue_bytes,
        )

    @property
    def expected_goodput_bps(self) -> float | None:
        """1448 bytes of payload in each 1538 on the wire: TCP with timestamps on Ethernet."""
        return None if self.rate_bps is None else self.rate_bps * 1448 / 1538


def ping_count(rtt_ns: int) -> int:
    """As many pings as fit in about 0.1 s."""
    return min(max(_PROBE_NS // max(rtt_ns, 1), 10), 400)


def probe_count(rtt_ns: int) -> int:
    """How many probes make a round of calibration."""
    return min(max(_PROBES_NS // max(ping_count(rtt_ns) * rtt_ns, 1), 1), _PROBES)


def goodput_times_ns(rtt_ns: int) -> tuple[int, int]:
    """Warm-up and measured window of a bulk transfer."""
    warmup_ns = min(_WARMUP_NS + _WARMUP_RTTS * rtt_ns, _WARMUP_MAX_NS)
    return warmup_ns, min(max(_WARMUP_NS // 2, _GOODPUT_RTTS * rtt_ns), _WARMUP_MAX_NS)


@dataclass
class Link:
    """A running link between both hosts."""

    engine: EngineProcess
    echo: EngineProcess
    network: Network
    client: Launcher
    echo_port: int
    ready: LinkReady
    asked: LinkAsked
    compensate_ns: int = 0
    """Taken off the delay of each direction: what calibration found for `asked`, and nothing else, once there is one."""
    calibrations: dict[LinkAsked, dict[str, Any]] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep

    @property
    def pid(self) -> int:
        return self.engine.pid

    def alive(self) -> bool:
        """Emulator and echo both."""
        return self.engine.alive() and self.echo.alive()

    def shape(self, asked: LinkAsked) -> dict[str, Any]:
        """Make the link what is asked, calibrating the first time only. Returns the calibration. Raises LinkFailed, EngineError."""
        known = self.calibrations.get(asked)
        if known is not None:
            self._set(asked, int(known["compensate_ns"]))
            return known
        calibration = self._calibrate(asked)
        self.calibrations[asked] = calibration
        return calibration

    def ping(self) -> RttResult:
        """RTT now, processors kept awake: what the link adds, not what waking up adds."""
        with awake(usable_cpus()):
            return self.ping_from_idle()

    def ping_from_idle(self) -> RttResult:
        """RTT now as any program finds it: where the processors sleep, waking both ends is part of it."""
        job = RttJob(host=SERVER_ADDRESS, port=self.echo_port, count=ping_count(self.asked.rtt_ns))
        result = run_probe(job, self.client)
        if not isinstance(result, RttResult):
            raise LinkFailed(f"the RTT probe answered {result.event!r} instead of an RTT")
        return result

    def goodput(self, to_server: bool) -> GoodputResult:
        """One bulk transfer; warm-up long enough for the window to open."""
        warmup_ns, measure_ns = goodput_times_ns(self.asked.rtt_ns)
        job = GoodputJob(
            host=SERVER_ADDRESS,
            port=self.echo_port,
            direction="to_server" if to_server else "to_client",
            warmup_ns=warmup_ns,
            measure_ns=measure_ns,
        )
        result = run_probe(job, self.client)
        if not isinstance(result, GoodputResult):
            raise LinkFailed(f"the goodput probe answered {result.event!r} instead of a goodput")
        return result

    def at_rest(self) -> tuple[RttResult, ...]:
        """The RTT before a load, measured only; again, a few times over some time, while it is off. The last one counts."""
        probes = [self.ping()]
        for pause_s in _PAUSES_S:
            if abs(probes[-1].p50_ns - self.asked.rtt_ns) <= rtt_tolerance_ns(self.asked.rtt_ns):
                break
            self.sleep(pause_s)
            probes.append(self.ping())
        return tuple(probes)

    def stats(self, *, reset: bool = False) -> LinkStats:
        """Counters since the last reset."""
        self.engine.send(AskStats(reset=reset))
        event = self.engine.read()
        if not isinstance(event, LinkStats):
            raise LinkFailed(f"the link answered {event.event!r} when asked for its counters")
        return event

    def _set(self, asked: LinkAsked, compensate_ns: int) -> None:
        direction = asked.direction(compensate_ns)
        self.engine.send(SetLink(to_server=direction, to_client=direction))
        self.asked, self.compensate_ns = asked, compensate_ns
        self.stats()  # answered in order: the new parameters are in force

    @staticmethod
    def _compensation(asked: LinkAsked, present: int, excess_ns: int) -> int:
        """Half of the excess each way; a delay is never negative."""
        return min(max(present + excess_ns // 2, 0), asked.rtt_ns // 2)

    def _calibrate(self, asked: LinkAsked) -> dict[str, Any]:
        """Take off both ways half of what the RTT has too much, until it is right or nothing is left to take.

        The last round measures what is then frozen.
        """
        compensate = 0
        rounds: list[dict[str, Any]] = []
        while True:
            self._set(asked, compensate)
            probes = [self.ping() for _ in range(probe_count(asked.rtt_ns))]
            rtt_ns = int(statistics.median(probe.p50_ns for probe in probes))
            rounds.append(
                {
                    "compensate_ns": compensate,
                    "rtt_p50_ns": rtt_ns,
                    "rtt_p50s_ns": [probe.p50_ns for probe in probes],
                }
            )
            excess = rtt_ns - asked.rtt_ns
            better = self._compensation(asked, compensate, excess if len(rounds) == 1 else excess // _DAMPING)
            if len(rounds) == _ROUNDS or better == compensate or abs(excess) < asked.rtt_ns // 100:
                break
            compensate = better
        from_idle = self.ping_from_idle()
        goodput = {name: self.goodput(name == "to_server") for name in ("to_server", "to_client")}
        stats = self.stats(reset=True)
        return {
            "compensate_ns": compensate,
            "rounds": rounds,
            "rtt_p50_ns": rtt_ns,
            "rtt_p99_ns": int(statistics.median(probe.p99_ns for probe in probes)),
            "rtt_from_idle_p50_ns": from_idle.p50_ns,
            "goodput_bps": {name: result.bits_per_second for name, result in goodput.items()},
            "expected_goodput_bps": asked.expected_goodput_bps,
            "retransmits": {name: result.retransmits for name, result in goodput.items()},
            "congestion_control": goodput["to_server"].congestion_control,
            "mss": goodput["to_server"].mss,
            "drops": {
                "to_server": stats.to_server.drops.model_dump(),
                "to_client": stats.to_client.drops.model_dump(),
            },
        }


@contextmanager
def open_link(
    network: Network,
    asked: LinkAsked,
    client: Launcher,
    server: Launcher,
    calibrations: Mapping[LinkAsked, dict[str, Any]] | None = None,
) -> Iterator[Link]:
    """Start emulator and echo, shape and calibrate (unless `calibrations` of a link before it say how). Ended on leaving.

    Raises LinkFailed, EngineError.
    """
    direction = asked.direction(0)
    job = LinkJob(
        client_interface=CLIENT_MIDDLE, server_interface=SERVER_MIDDLE, to_server=direction, to_client=direction
    )
    with (
        EngineProcess(job, Launcher(prefix=("setsid",))) as engine,
        EngineProcess(EchoJob(host=SERVER_ADDRESS), server) as echo,
    ):
        ready, listening = engine.read(), echo.read()
        if not isinstance(ready, LinkReady) or not isinstance(listening, Listening):
            raise LinkFailed(f"the link answered {ready.event!r}, its echo {listening.event!r}")
        link = Link(engine, echo, network, client, listening.port, ready, asked, calibrations=dict(calibrations or {}))
        link.shape(asked)
        yield link
