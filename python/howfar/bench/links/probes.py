"""Probes for any implementation of a link: the engine's RTT and goodput, CPU by the kernel's clocks, datagrams, a plain timer.

The bare cable joins two hosts that are set up like the laboratory's, without an emulator between them:

    client [c0] -------- [s0] server
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from howfar.bench.links.figures import LinkPoint, Run, RunsOn, Times
from howfar.bench.meter import cpu_clock_ns
from howfar.contract.messages import (
    EchoJob,
    GoodputJob,
    GoodputResult,
    LinkStats,
    Listening,
    RttJob,
    RttResult,
)
from howfar.engine.process import EngineProcess, Launcher, run_probe
from howfar.errors import EngineError, LabError, LinkFailed
from howfar.lab.awake import keep_cpus_awake
from howfar.lab.environment import LoadWatch
from howfar.lab.network import (
    SERVER_ADDRESS,
    Host,
    Shares,
    build_network,
    cable_directly,
    share_cpus,
    size_buffers,
    usable_cpus,
)


@dataclass(frozen=True)
class BareCable:
    """Two hosts joined by a cable, with an echo server on the server's host."""

    client_host: Host
    server_host: Host
    shares: Shares
    echo_port: int

    @property
    def client(self) -> Launcher:
        return self.client_host.launcher(self.shares.client)

    @property
    def server(self) -> Launcher:
        return self.server_host.launcher(self.shares.server)

    def probed_link(self, port: int | None = None, pid: int | None = None) -> ProbedLink:
        """Address of the echo, or of another `port` of the server's host, as a probed link."""
        return ProbedLink(SERVER_ADDRESS, self.echo_port if port is None else port, self.client, pid)


@contextmanager
def open_cable(bdp_bytes: int) -> Iterator[BareCable]:
    """A bare cable, in the sandbox. The hosts disappear when their descriptors are closed. Raises LinkFailed, EngineError."""
    with ExitStack() as stack:
        network = build_network(stack)
        stack.enter_context(cable_directly(network))
        size_buffers(network, bdp_bytes)
        shares = share_cpus(usable_cpus())
        launcher = network.server.launcher(shares.server)
        echo = stack.enter_context(EngineProcess(EchoJob(host=SERVER_ADDRESS), launcher))
        listening = echo.read()
        if not isinstance(listening, Listening):
            raise LinkFailed(f"the echo answered {listening.event!r}")
        yield BareCable(network.client, network.server, shares, listening.port)


_WINDOW_MARGIN_S: Final = 0.1
"""Time cut off at both ends of the CPU window, because the probe starts a little later."""
_IDLE_PINGS: Final = 30
_BASE_TIMEOUT_NS: Final = 10_000_000_000
_PING_TIMEOUT_NS: Final = 10_000_000
"""Time that a ping may take in addition to four times its RTT, because beside CPU hogs each end waits for a CPU."""
_SCHEDULING_NAMES: Final = {
    os.SCHED_FIFO: "real-time class",
    os.SCHED_RR: "real-time class",
    os.SCHED_OTHER: "ordinary",
}


@dataclass(frozen=True)
class ProbedLink:
    """Where a probe connects to, from which host, and the process that implements the link (None if the kernel does)."""

    host: str
    port: int
    client: Launcher
    pid: int | None = None


@dataclass(frozen=True)
class Transfer:
    """One bulk transfer, and the CPUs busy on average in its steady part."""

    result: GoodputResult
    process_cores: float | None
    machine_cores: float | None
    steal_share: float | None

    def per_gbit(self, cores: float | None) -> float | None:
        gbit = self.result.bits_per_second / 1e9
        return None if cores is None or gbit <= 0 else cores / gbit


def ping_timeout_ns(count: int, rtt_ns: int) -> int:
    """How long `count` pings may take together."""
    return _BASE_TIMEOUT_NS + count * (4 * rtt_ns + _PING_TIMEOUT_NS)


def runs_on(pid: int | None) -> RunsOn | None:
    """CPUs and scheduling classes of a process. None if there is no such process."""
    if pid is None:
        return None
    try:
        threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        cpus = set().union(*(os.sched_getaffinity(thread) for thread in threads))
        classes = {_SCHEDULING_NAMES.get(os.sched_getscheduler(thread), "another class") for thread in threads}
    except OSError:
        return None
    return RunsOn(cpus=tuple(sorted(cpus)), scheduling=tuple(sorted(classes)))


def ping(link: ProbedLink, count: int, rtt_ns: int, *, keep_awake: bool = True) -> RttResult:
    """RTT over one connection; the time limit depends on `rtt_ns`. Raises EngineError."""
    limit_ns = ping_timeout_ns(count, rtt_ns)
    with ExitStack() as stack:
        if keep_awake:
            stack.enter_context(keep_cpus_awake(usable_cpus(), max_duration_s=limit_ns // 10**9))
        result = run_probe(RttJob(host=link.host, port=link.port, count=count, timeout_ns=limit_ns), link.client)
    if not isinstance(result, RttResult):
        raise EngineError(f"the RTT probe answered {result.event!r}", "Please report this.")
    return result


def transfer(link: ProbedLink, warmup_ns: int, measure_ns: int) -> Transfer:
    """A bulk transfer to the server. Raises EngineError."""
    job = GoodputJob(host=link.host, port=link.port, direction="to_server", warmup_ns=warmup_ns, measure_ns=measure_ns)
    with EngineProcess(job, link.client) as probe:
        time.sleep(warmup_ns / 1e9 + _WINDOW_MARGIN_S)
        watch, begin = LoadWatch(), _clocks(link.pid)
        time.sleep(max(measure_ns / 1e9 - 2 * _WINDOW_MARGIN_S, _WINDOW_MARGIN_S))
        end, machine_load = _clocks(link.pid), watch.finish()
        result = probe.read()
    if not isinstance(result, GoodputResult):
        raise EngineError(f"the goodput probe answered {result.event!r}", "Please report this.")
    return Transfer(
        result=result,
        process_cores=None if link.pid is None else (end[1] - begin[1]) / (end[0] - begin[0]),
        machine_cores=machine_load.busy_cpus,
        steal_share=machine_load.steal_share,
    )


def _clocks(pid: int | None) -> tuple[int, int]:
    """The time, and the CPU time of a process."""
    return time.monotonic_ns(), 0 if pid is None else cpu_clock_ns(pid)


def measure(link: ProbedLink, point: LinkPoint, times: Times) -> Run:
    """Measure the RTT, without load with CPUs awake and from idle, then a bulk transfer."""
    watch, count = LoadWatch(), times.pings(point.rtt_ns)
    at_rest = ping(link, count, point.rtt_ns)
    from_idle = ping(link, min(count, _IDLE_PINGS), point.rtt_ns, keep_awake=False)
    bulk_transfer = transfer(link, *times.transfer(point))
    return Run(
        rtt_ms_p50=at_rest.p50_ns / 1e6,
        rtt_ms_p99=at_rest.p99_ns / 1e6,
        rtt_ms_min=min(at_rest.min_ns, from_idle.min_ns) / 1e6,
        rtt_ms_p50_from_idle=from_idle.p50_ns / 1e6,
        goodput_gbit=bulk_transfer.result.bits_per_second / 1e9,
        cpu_core_per_gbit=bulk_transfer.per_gbit(bulk_transfer.process_cores),
        machine_core_per_gbit=bulk_transfer.per_gbit(bulk_transfer.machine_cores),
        retransmits=bulk_transfer.result.retransmits,
        congestion_control=bulk_transfer.result.congestion_control,
        steal_share=bulk_transfer.steal_share,
        load_average=watch.finish().load_average_1m,
    )


def with_counters(run: Run, stats: LinkStats | None) -> Run:
    """Add the emulator's counts to a run. `stats` is None without an emulator."""
    if stats is None:
        return run
    directions = (stats.to_server, stats.to_client)
    return run.model_copy(
        update={
            "lateness_us_p999": max(direction.lateness_p999_ns for direction in directions) / 1e3,
            "drops": unmodelled_drops(stats),
        }
    )


def unmodelled_drops(stats: LinkStats) -> int | None:
    """Segments (packets, if a socket was full) lost for no modelled reason. None if none is known, but not all are counted."""
    drops = [direction.drops for direction in (stats.to_server, stats.to_client)]
    known = sum(
        direction_drops.arena + (direction_drops.socket or 0) + direction_drops.transmit for direction_drops in drops
    )
    return None if known == 0 and any(direction_drops.socket is None for direction_drops in drops) else known


_TIMER_SLEEP_S: Final = 500e-6
_TIMER_TIMEOUT_S: Final = 60.0
_TIMER_PROGRAM: Final = f"""
import json, os, sys, time
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    realtime = True
except OSError:
    realtime = False
late = []
for _ in range(int(sys.argv[1])):
    due = time.monotonic_ns() + {int(_TIMER_SLEEP_S * 1e9)}
    time.sleep({_TIMER_SLEEP_S})
    late.append(time.monotonic_ns() - due)
late.sort()
print(json.dumps({{"p999_us": late[min(int(len(late) * 0.999), len(late) - 1)] / 1e3, "realtime": realtime}}))
"""


def timer_lateness_us(count: int) -> float:
    """How late, at p99.9, a bare thread of the link's scheduling class wakes from `count` sleeps of 0.5 ms.

    No link can be more punctual, so this shows whether a bar was missed because a hypervisor took the CPU away. Raises LabError.
    """
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _TIMER_PROGRAM, str(count)],
            capture_output=True,
            text=True,
            timeout=_TIMER_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"the timer that measures this machine's lateness failed: {error}") from error
    return float(json.loads(completed.stdout)["p999_us"])


_STAMP_FORMAT: Final = struct.Struct("=QQ")
_TIMESPEC: Final = struct.Struct("@ll")
_SO_TIMESTAMPNS: Final = 35
"""Option for the receiving kernel's timestamp, on the wall clock, which excludes the waking of this program."""
SILENCE_S: Final = 0.3
"""Silence, after the last datagram and the longest delay, after which no more datagrams are expected."""
BATCH_DATAGRAMS: Final = 40
"""Datagrams sent without a pause; fewer than any socket buffer holds."""
_BUFFER_BYTES: Final = 4 * 2**20


@dataclass
class ReceivedDatagrams:
    """Datagrams that arrived, in order of arrival."""

    numbers: list[int] = field(default_factory=list)
    one_way_ns: list[int] = field(default_factory=list)
    sent_at_ns: list[int] = field(default_factory=list)


def _receive(sink: socket.socket, arrivals: ReceivedDatagrams, stop: threading.Event) -> None:
    while True:
        try:
            data, ancillary, _, _ = sink.recvmsg(65536, 64)
        except TimeoutError:
            if stop.is_set():
                return
            continue
        seconds, ns = _TIMESPEC.unpack(ancillary[0][2])
        received_ns = seconds * 10**9 + ns
        number, sent_ns = _STAMP_FORMAT.unpack_from(data)
        arrivals.numbers.append(number)
        arrivals.sent_at_ns.append(sent_ns)
        arrivals.one_way_ns.append(received_ns - sent_ns)


@dataclass
class Datagrams:
    """Numbered, timestamped datagrams from client to server. One process holds both ends, so one clock gives one-way times."""

    source: socket.socket
    arrivals: ReceivedDatagrams
    stop: threading.Event
    receiver: threading.Thread

    def send(self, number: int, payload: int) -> None:
        self.source.send(_STAMP_FORMAT.pack(number, time.time_ns()).ljust(payload, b"\0"))

    def send_all(self, count: int, payload: int = 100, batch_size: int = BATCH_DATAGRAMS) -> None:
        """Send datagrams in batches with pauses in which the receiver can follow, so that only the link's buffer can be full."""
        for number in range(count):
            self.send(number, payload)
            if number % batch_size == batch_size - 1:
                time.sleep(0.001)

    def finish(self, longest_delay_s: float) -> ReceivedDatagrams:
        """Wait until no more datagrams arrive, and return those that did."""
        time.sleep(longest_delay_s)
        self.stop.set()
        self.receiver.join()
        return self.arrivals


@contextmanager
def datagrams(client: Host, server: Host) -> Iterator[Datagrams]:
    """Sockets on both hosts, and a receiving thread. Raises OSError."""

    def bind() -> socket.socket:
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        sink.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sink.bind((SERVER_ADDRESS, 0))
        sink.settimeout(SILENCE_S)
        return sink

    sink = server.run(bind)
    source = client.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    source.connect(sink.getsockname())
    arrivals, stop = ReceivedDatagrams(), threading.Event()
    receiver = threading.Thread(target=_receive, args=(sink, arrivals, stop))
    receiver.start()
    try:
        yield Datagrams(source, arrivals, stop, receiver)
    finally:
        stop.set()
        receiver.join()
        source.close()
        sink.close()


def udp_errors(host: Host) -> dict[str, int]:
    """A host's UDP counters."""
    names, values = [
        line.split()[1:]
        for line in host.run(Path("/proc/thread-self/net/snmp").read_text).splitlines()
        if line.startswith("Udp:")
    ]
    return dict(zip(names, map(int, values), strict=True))
