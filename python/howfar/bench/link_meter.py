"""One measurement of one road between two hosts, whoever makes the road: the engine's own probes, and CPU by the kernel's clocks.

The same for our link, for a bare cable and through a proxy. What a peer says of itself is not asked.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from howfar.bench.link_figures import Asked, Run, RunsOn
from howfar.bench.link_grid import Times
from howfar.bench.meter import cpu_clock_ns
from howfar.engine.messages import GoodputJob, GoodputResult, LinkStats, RttJob, RttResult
from howfar.engine.process import EngineProcess, Launcher, run_probe
from howfar.errors import EngineError
from howfar.lab.awake import awake
from howfar.lab.environment import LoadWatch
from howfar.lab.hosts import usable_cpus

_EDGE_S: Final = 0.1
"""Cut off both ends of the window in which CPU is taken: the probe's clock began a little later than ours."""
_IDLE_PINGS: Final = 30
_PATIENCE_NS: Final = 10_000_000_000
_PING_PATIENCE_NS: Final = 10_000_000
"""A ping may take four times its RTT and this: beside hogs each end waits for a processor."""
_CLASSES: Final = {os.SCHED_FIFO: "real-time class", os.SCHED_RR: "real-time class", os.SCHED_OTHER: "ordinary"}


@dataclass(frozen=True)
class Road:
    """Where a probe of the client's host goes, and the process that makes the road what it is (None: the kernel)."""

    host: str
    port: int
    client: Launcher
    pid: int | None = None


@dataclass(frozen=True)
class Transfer:
    """One bulk transfer, and what it took in its steady part: CPUs busy on average."""

    result: GoodputResult
    process_cores: float | None
    machine_cores: float | None
    steal_share: float | None

    def per_gbit(self, cores: float | None) -> float | None:
        gbit = self.result.bits_per_second / 1e9
        return None if cores is None or gbit <= 0 else cores / gbit


def ping_patience_ns(count: int, rtt_ns: int) -> int:
    """How long so many pings may take together."""
    return _PATIENCE_NS + count * (4 * rtt_ns + _PING_PATIENCE_NS)


def runs_on(pid: int | None) -> RunsOn | None:
    """As the kernel has it, of all threads. None: no such process."""
    if pid is None:
        return None
    try:
        threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        cpus = set().union(*(os.sched_getaffinity(thread) for thread in threads))
        classes = {_CLASSES.get(os.sched_getscheduler(thread), "another class") for thread in threads}
    except OSError:
        return None
    return RunsOn(cpus=tuple(sorted(cpus)), scheduling=tuple(sorted(classes)))


def ping(road: Road, count: int, rtt_ns: int, *, keep_awake: bool = True) -> RttResult:
    """RTT over one connection; `rtt_ns` says how long that may take. Raises EngineError."""
    longest_ns = ping_patience_ns(count, rtt_ns)
    with ExitStack() as stack:
        if keep_awake:
            stack.enter_context(awake(usable_cpus(), longest_s=longest_ns // 10**9))
        result = run_probe(RttJob(host=road.host, port=road.port, count=count, timeout_ns=longest_ns), road.client)
    if not isinstance(result, RttResult):
        raise EngineError(f"the RTT probe answered {result.event!r}", "Please report this.")
    return result


def transfer(road: Road, warmup_ns: int, measure_ns: int) -> Transfer:
    """A bulk transfer to the server. Raises EngineError."""
    job = GoodputJob(host=road.host, port=road.port, direction="to_server", warmup_ns=warmup_ns, measure_ns=measure_ns)
    with EngineProcess(job, road.client) as probe:
        time.sleep(warmup_ns / 1e9 + _EDGE_S)
        watch, begin = LoadWatch(), _clocks(road.pid)
        time.sleep(max(measure_ns / 1e9 - 2 * _EDGE_S, _EDGE_S))
        end, machine = _clocks(road.pid), watch.finish()
        result = probe.read()
    if not isinstance(result, GoodputResult):
        raise EngineError(f"the goodput probe answered {result.event!r}", "Please report this.")
    return Transfer(
        result=result,
        process_cores=None if road.pid is None else (end[1] - begin[1]) / (end[0] - begin[0]),
        machine_cores=machine.busy_cpus,
        steal_share=machine.steal_share,
    )


def _clocks(pid: int | None) -> tuple[int, int]:
    """Now, and the CPU time of a process."""
    return time.monotonic_ns(), 0 if pid is None else cpu_clock_ns(pid)


def measure(road: Road, asked: Asked, times: Times) -> Run:
    """RTT at rest with processors awake and from idle, then a bulk transfer."""
    watch, count = LoadWatch(), times.pings(asked.rtt_ns)
    at_rest = ping(road, count, asked.rtt_ns)
    from_idle = ping(road, min(count, _IDLE_PINGS), asked.rtt_ns, keep_awake=False)
    moved = transfer(road, *times.transfer(asked))
    return Run(
        rtt_ms_p50=at_rest.p50_ns / 1e6,
        rtt_ms_p99=at_rest.p99_ns / 1e6,
        rtt_ms_min=min(at_rest.min_ns, from_idle.min_ns) / 1e6,
        rtt_ms_p50_from_idle=from_idle.p50_ns / 1e6,
        goodput_gbit=moved.result.bits_per_second / 1e9,
        cpu_core_per_gbit=moved.per_gbit(moved.process_cores),
        machine_core_per_gbit=moved.per_gbit(moved.machine_cores),
        retransmits=moved.result.retransmits,
        congestion_control=moved.result.congestion_control,
        steal_share=moved.steal_share,
        load_average=watch.finish().load_average_1m,
    )


def with_counters(run: Run, stats: LinkStats | None) -> Run:
    """What our emulator counted meanwhile; None: there is none."""
    if stats is None:
        return run
    ways = (stats.to_server, stats.to_client)
    return run.model_copy(
        update={
            "lateness_us_p999": max(way.lateness_p999_ns for way in ways) / 1e3,
            "drops": unmodelled_drops(stats),
        }
    )


def unmodelled_drops(stats: LinkStats) -> int | None:
    """Segments, and of a full socket packets, lost for a reason that nobody asked for, both ways. None: none is known of, but not
    everything is known."""
    drops = [way.drops for way in (stats.to_server, stats.to_client)]
    known = sum(way.arena + (way.socket or 0) + way.transmit for way in drops)
    return None if known == 0 and any(way.socket is None for way in drops) else known
