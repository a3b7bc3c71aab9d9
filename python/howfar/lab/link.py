"""The link as the laboratory sees it: the emulator started, calibrated against the asked RTT, and its receipt.

Calibration is a closed loop: the RTT at rest is probed with the asked delay set, what it has too much is taken off both ways,
and so on for a few rounds. A receipt states what was reached; nothing is promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from howfar.engine.messages import (
    AskStats,
    Direction,
    DirectionStats,
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
from howfar.lab.network import CLIENT_MIDDLE, CONGESTION_CONTROL, MTU, SERVER_ADDRESS, SERVER_MIDDLE, Network
from howfar.units import format_duration_ns, format_rate_bps

_QUEUE_AT_LEAST_NS = 10_000_000
_UNSHAPED_QUEUE_BYTES = 64 * 2**20
_ROUNDS = 4
_PROBE_NS = 200_000_000
"""A probe of the RTT takes about this long, within 10 to 400 pings."""
LATENESS_P99_MAX_NS, LATENESS_P99_MAX_SHARE = 100_000, 0.01
"""One packet in a hundred later than 100 µs (or 1 % of the RTT) adds 1 µs to the mean way: still below 1 % of the shortest RTT
that makes sense. More is a delay that nobody asked for, and moves throughput."""
LATENESS_P999_MAX_NS, LATENESS_P999_MAX_SHARE = 1_000_000, 0.1
"""A transaction of sixteen turns is 32 packets, so one packet in a thousand touches every thirtieth transaction: later than 1 ms
(or 10 % of the RTT) shows in its p99. A tighter bound would only measure that a small machine shares its CPUs with the link:
beside a load on two CPUs 0.1 to 0.2 ms were usual."""
RTT_OFF_MAX_NS = 30_000
RTT_OFF_MAX_SHARE = 0.03
"""What a first version of the emulator on a small virtual machine can hold; beyond it the asked RTT is not the measured one."""


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


GOODPUT_OFF_MAX_SHARE = 0.02


def rtt_tolerance_ns(rtt_ns: int) -> float:
    """How far the RTT at rest may be from the asked one."""
    return max(RTT_OFF_MAX_NS, RTT_OFF_MAX_SHARE * rtt_ns)


def ping_count(rtt_ns: int) -> int:
    """As many pings as fit in about 0.2 s."""
    return min(max(_PROBE_NS // max(rtt_ns, 1), 10), 400)


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
    """Taken off the delay of each direction now."""
    calibrations: dict[LinkAsked, dict[str, Any]] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.engine.pid

    def alive(self) -> bool:
        """Emulator and echo both."""
        return self.engine.alive() and self.echo.alive()

    def shape(self, asked: LinkAsked) -> dict[str, Any]:
        """Make the link what is asked, calibrating the first time. Returns the calibration. Raises LinkFailed, EngineError."""
        known = self.calibrations.get(asked)
        if known is not None:
            self._set(asked, int(known["compensate_ns"]))
            return known
        calibration = self._calibrate(asked)
        self.calibrations[asked] = calibration
        return calibration

    def ping(self, count: int | None = None) -> RttResult:
        """RTT now; at rest if nothing else runs."""
        job = RttJob(host=SERVER_ADDRESS, port=self.echo_port, count=count or ping_count(self.asked.rtt_ns))
        result = run_probe(job, self.client)
        if not isinstance(result, RttResult):
            raise LinkFailed(f"the RTT probe answered {result.event!r} instead of an RTT")
        return result

    def goodput(self, to_server: bool, measure_ns: int = 500_000_000) -> GoodputResult:
        """One bulk transfer; warm-up long enough for the window to open."""
        job = GoodputJob(
            host=SERVER_ADDRESS,
            port=self.echo_port,
            direction="to_server" if to_server else "to_client",
            warmup_ns=200_000_000 + 10 * self.asked.rtt_ns,
            measure_ns=max(measure_ns, 10 * self.asked.rtt_ns),
        )
        result = run_probe(job, self.client)
        if not isinstance(result, GoodputResult):
            raise LinkFailed(f"the goodput probe answered {result.event!r} instead of a goodput")
        return result

    def at_rest(self) -> RttResult:
        """RTT before a load. When the machine has changed since the calibration, the link is tuned again, a few times at most."""
        compensate = int(self.calibrations[self.asked]["compensate_ns"])
        result = self.ping()
        for _ in range(_ROUNDS):
            excess = result.p50_ns - self.asked.rtt_ns
            if abs(excess) <= rtt_tolerance_ns(self.asked.rtt_ns) / 2:
                break
            compensate = self._compensation(self.asked, compensate, excess)
            self._set(self.asked, compensate)
            result = self.ping()
        self.compensate_ns = compensate
        return result

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
        """Take off both ways half of what the RTT has too much, until it is right or nothing is left to take."""
        compensate = 0
        rounds = []
        self._set(asked, 0)
        for _ in range(_ROUNDS):
            at_rest = self.ping()
            rounds.append({"compensate_ns": compensate, "rtt_p50_ns": at_rest.p50_ns})
            excess = at_rest.p50_ns - asked.rtt_ns
            better = self._compensation(asked, compensate, excess)
            if better == compensate or abs(excess) < asked.rtt_ns // 200:
                break
            compensate = better
            self._set(asked, compensate)
        at_rest = self.ping()
        goodput = {name: self.goodput(name == "to_server") for name in ("to_server", "to_client")}
        stats = self.stats(reset=True)
        return {
            "compensate_ns": compensate,
            "rounds": rounds,
            "rtt_p50_ns": at_rest.p50_ns,
            "rtt_p99_ns": at_rest.p99_ns,
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


def goodput_warnings(asked: LinkAsked, calibration: Mapping[str, Any]) -> tuple[str, ...]:
    """Where a bulk transfer did not reach what the rate allows."""
    expected = asked.expected_goodput_bps
    if expected is None:
        return ()
    return tuple(
        f"goodput {name.replace('_', ' ')} was {format_rate_bps(got)} where the link allows {format_rate_bps(expected)}"
        for name, got in calibration["goodput_bps"].items()
        if abs(got - expected) > GOODPUT_OFF_MAX_SHARE * expected
    )


def link_receipt(link: Link, at_rest: RttResult, stats: LinkStats) -> dict[str, Any]:
    """What one trial's link was: asked, calibrated, at rest before the load, and its counters under it."""
    return {
        "asked": {"rtt_ns": link.asked.rtt_ns, "rate_bps": link.asked.rate_bps, "queue_bytes": link.asked.queue_bytes},
        "rtt_at_rest_ns": {
            "count": at_rest.count,
            "min": at_rest.min_ns,
            "p50": at_rest.p50_ns,
            "p99": at_rest.p99_ns,
        },
        "compensate_ns": link.compensate_ns,
        "calibration": link.calibrations[link.asked],
        "counters": stats.model_dump(exclude={"event"}),
        "mtu": MTU,
        "congestion_control_asked": CONGESTION_CONTROL,
        "realtime": link.ready.realtime,
        "offload": link.ready.offload,
    }


def link_violations(asked: LinkAsked, at_rest: RttResult, stats: LinkStats) -> tuple[str, ...]:
    """Where the link was not what was asked."""
    found = []
    off = at_rest.p50_ns - asked.rtt_ns
    if abs(off) > rtt_tolerance_ns(asked.rtt_ns):
        found.append(
            f"the link's RTT at rest was {format_duration_ns(at_rest.p50_ns)}, asked {format_duration_ns(asked.rtt_ns)}"
        )
    for name, way in (("to server", stats.to_server), ("to client", stats.to_client)):
        found += _direction_violations(asked, name, way)
    return tuple(found)


def _direction_violations(asked: LinkAsked, name: str, way: DirectionStats) -> list[str]:
    found = []
    drops = way.drops
    unmodelled = drops.arena + drops.socket + drops.transmit
    if unmodelled:
        found.append(
            f"the link {name} lost {unmodelled} packets that no queue explains "
            f"(arena {drops.arena}, socket {drops.socket}, transmit {drops.transmit})"
        )
    limits = (
        ("p99", way.lateness_p99_ns, max(LATENESS_P99_MAX_NS, LATENESS_P99_MAX_SHARE * asked.rtt_ns)),
        ("p99.9", way.lateness_p999_ns, max(LATENESS_P999_MAX_NS, LATENESS_P999_MAX_SHARE * asked.rtt_ns)),
    )
    for name_of_limit, late_ns, limit_ns in limits:
        if late_ns > limit_ns:
            found.append(
                f"the link {name} was late by {format_duration_ns(late_ns)} ({name_of_limit}, "
                f"allowed {format_duration_ns(limit_ns)}): the machine was too busy"
            )
    return found


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
