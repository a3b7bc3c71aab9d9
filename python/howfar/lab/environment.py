"""Facts about this machine for the run file, limits for many connections, and the machine's other load during a trial."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from howfar.errors import LabError
from howfar.lab.network import Host, Network
from howfar.store.records import MachineLoad

_TICKS = os.sysconf("SC_CLK_TCK")
_US_PER_S = 1_000_000


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _line(path: str, start: str, separator: str) -> str | None:
    """The part after `separator` of the first line that begins with `start`."""
    for line in (_read(path) or "").splitlines():
        if line.startswith(start):
            return line.partition(separator)[2].strip()
    return None


def memory_bytes(what: str) -> int:
    """The value of `what` in /proc/meminfo, in bytes; 0 if not reported."""
    value = _line("/proc/meminfo", f"{what}:", ":")
    return 0 if value is None else int(value.split()[0]) * 1024


def machine_facts() -> dict[str, Any]:
    """A fixed set of facts about the machine; None for a fact that this kernel does not report."""
    cpuinfo = _read("/proc/cpuinfo") or ""
    return {
        "kernel": platform.release(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "architecture": platform.machine(),
        "distribution": (_line("/etc/os-release", "PRETTY_NAME=", "=") or "").strip('"') or None,
        "cpu_model": _line("/proc/cpuinfo", "model name", ":"),
        "cpu_count": os.cpu_count(),
        "cpus_usable": sorted(os.sched_getaffinity(0)),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "virtual_machine": " hypervisor" in cpuinfo if cpuinfo else None,
        "memory_bytes": memory_bytes("MemTotal") or None,
        "congestion_control_default": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "python": platform.python_version(),
    }


def _pressure_us(resource: str) -> int | None:
    """Total of the `some` line of pressure stall information, in µs."""
    value = _line(f"/proc/pressure/{resource}", "some", "total=")
    return None if value is None else int(value)


_IDLE, _IOWAIT, _STEAL = 3, 4, 7
"""Positions of these counters in a line of /proc/stat."""


class CpuTicks(NamedTuple):
    """Counters of a line of /proc/stat, since boot. Busy time is not read but computed as the remaining time: most kernels measure
    idle time exactly, but sample busy time at timer ticks, which miss a process that wakes at a tick and sleeps before the next."""

    idle: int
    """Idle time, including waits for a disk."""
    stolen: int
    every: int
    """Ticks of all kinds. If this does not change, the kernel does not count."""


def cpu_ticks(stat: str | None) -> CpuTicks | None:
    """Counters of the first line of /proc/stat; None if not reported."""
    fields = (stat or "").partition("\n")[0].split()[1:]
    if len(fields) <= _STEAL:
        return None
    ticks = [int(word) for word in fields]
    return CpuTicks(ticks[_IDLE] + ticks[_IOWAIT], ticks[_STEAL], sum(ticks))


def busy_cpus(before: CpuTicks, after: CpuTicks, elapsed_s: float, ticks_per_s: int, cpus: int) -> float | None:
    """Number of busy CPUs of `cpus`: neither idle, nor waiting for a disk, nor stolen. None if the kernel counted nothing."""
    if after.every == before.every:
        return None
    away_s = (after.idle - before.idle + after.stolen - before.stolen) / ticks_per_s
    return min(max(cpus - away_s / elapsed_s, 0.0), float(cpus))


class LoadWatch:
    """Watches the machine during a trial, from construction on; `finish()` returns the machine's load since then."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._cpu, self._io = _pressure_us("cpu"), _pressure_us("io")
        self._ticks = cpu_ticks(_read("/proc/stat"))

    def finish(self) -> MachineLoad:
        elapsed_s = max(time.monotonic() - self._start, 1e-6)
        ticks = cpu_ticks(_read("/proc/stat"))

        def share(before: int | None, after: int | None, per_s: float) -> float | None:
            return None if before is None or after is None else (after - before) / per_s / elapsed_s

        cpus = os.cpu_count() or 1
        busy = busy_cpus(self._ticks, ticks, elapsed_s, _TICKS, cpus) if self._ticks and ticks else None
        return MachineLoad(
            psi_cpu_some_share=share(self._cpu, _pressure_us("cpu"), _US_PER_S),
            psi_io_some_share=share(self._io, _pressure_us("io"), _US_PER_S),
            steal_share=share(self._ticks and self._ticks.stolen, ticks and ticks.stolen, _TICKS * cpus),
            load_average_1m=os.getloadavg()[0],
            busy_cpus=busy,
        )


SIZES = (512, 16_384)
"""Sizes of writes to time: a block of a log, and a page."""
_ROOM = 1 << 20
_COUNT = 48
_LONGEST_NS = 1_000_000_000
"""Maximum time to spend on each size; on a slow disk, fewer writes are timed."""


def data_fsync_ns(directory: Path) -> dict[str, dict[str, int]] | None:
    """For each size of a write: number of timed writes, median and p99 of write plus fsync. None if not possible in `directory`."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix="fsync-", buffering=0) as file:
            file.write(bytes(_ROOM))
            os.fsync(file.fileno())
            return {str(size): _summary(_timed(file.fileno(), size)) for size in SIZES}
    except OSError:
        return None


def _timed(descriptor: int, size: int) -> list[int]:
    block, began, found = os.urandom(size), time.monotonic_ns(), list[int]()
    while len(found) < _COUNT and time.monotonic_ns() - began < _LONGEST_NS:
        before = time.monotonic_ns()
        os.pwrite(descriptor, block, len(found) * size)
        os.fsync(descriptor)
        found.append(time.monotonic_ns() - before)
    return sorted(found)


def _summary(times: list[int]) -> dict[str, int]:
    return {
        "count": len(times),
        "p50": times[len(times) // 2],
        "p99": times[min(len(times) * 99 // 100, len(times) - 1)],
    }


_OTHER_DESCRIPTORS = 8192
"""Descriptors of a server in addition to its clients': tables and their logs, each table open more than once."""
LEAST_QUEUE = 4096
"""The default somaxconn of current kernels; older ones have 128."""
_PORTS = "10000 65535"
"""Local port range of clients; the servers' ports are below it."""


def allow_descriptors(connections: int) -> int:
    """Raise the limit of file descriptors per process for this number of connections and more; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _OTHER_DESCRIPTORS
    if soft >= wanted:
        return soft
    for limit in ((wanted, max(wanted, hard)), (min(wanted, hard), hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        except (ValueError, OSError):
            continue  # only root may raise the hard limit
        break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_queues(network: Network, connections: int) -> dict[str, int | str]:
    """Let `connections` clients connect to each host at once, and reconnect soon after closing. Returns the settings in force.

    Raises LabError if the queues stay shorter.
    """
    wanted = max(LEAST_QUEUE, connections)
    facts: dict[str, int | str] = {}
    for host in (network.client, network.server):
        for name in ("net/core/somaxconn", "net/ipv4/tcp_max_syn_backlog"):
            if int(_capacity_read(host, name)) < wanted:
                host.write_sysctl(name, str(wanted))
            facts[f"{host.name}_{Path(name).name}"] = int(_capacity_read(host, name))
        # A closed connection's port stays in TIME_WAIT for a minute; with one connection per transaction, all ports would be.
        host.write_sysctl("net/ipv4/ip_local_port_range", _PORTS)
        host.write_sysctl("net/ipv4/tcp_tw_reuse", "1")
        facts[f"{host.name}_ports"] = " ".join(_capacity_read(host, "net/ipv4/ip_local_port_range").split())
        facts[f"{host.name}_tcp_tw_reuse"] = int(_capacity_read(host, "net/ipv4/tcp_tw_reuse"))
    shortest = min(int(value) for name, value in facts.items() if name.endswith("somaxconn"))
    if shortest < min(wanted, connections):
        raise LabError(
            f"this kernel lets only {shortest} clients wait to be accepted, but {connections} connect at once (net.core.somaxconn)",
            "Raise net.core.somaxconn, or use fewer threads.",
        )
    return facts


def _capacity_read(host: Host, name: str) -> str:
    try:
        return host.within(Path("/proc/sys", name).read_text).strip()
    except OSError:
        return "0"


def listen_queue(host: Host, port: int) -> int | None:
    """Maximum number of connections that may wait to be accepted at `port`, according to the kernel; None if not reported."""

    def ask() -> str:
        command = ["ss", "--no-header", "--listening", "--tcp", "--numeric", f"sport = :{port}"]
        return subprocess.run(command, capture_output=True, text=True).stdout

    try:
        fields = host.within(ask).split()
    except OSError:
        return None
    return int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else None
