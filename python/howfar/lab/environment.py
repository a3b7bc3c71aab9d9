"""Facts about this machine for the run file, limits for many connections, the machine's load during a trial, and fsync times."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from howfar.contract.environment import MachineFacts
from howfar.contract.receipt import QuantilesNs
from howfar.errors import LabError
from howfar.lab.network import Host, Network
from howfar.store.records import MachineLoad

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_US_PER_S = 1_000_000


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _value_in_file(path: str, prefix: str, separator: str) -> str | None:
    """The text after `separator` in the first line that begins with `prefix`; None if no line does."""
    for line in (_read_text(path) or "").splitlines():
        if line.startswith(prefix):
            return line.partition(separator)[2].strip()
    return None


def memory_bytes(field: str) -> int:
    """The value of a field of /proc/meminfo, in bytes; 0 if it is not reported."""
    value = _value_in_file("/proc/meminfo", f"{field}:", ":")
    return 0 if value is None else int(value.split()[0]) * 1024


def machine_facts() -> MachineFacts:
    """Facts about the machine, always with the same keys; None for a fact that this kernel does not report."""
    cpuinfo = _read_text("/proc/cpuinfo") or ""
    return MachineFacts(
        kernel=platform.release(),
        boot_id=_read_text("/proc/sys/kernel/random/boot_id"),
        architecture=platform.machine(),
        distribution=(_value_in_file("/etc/os-release", "PRETTY_NAME=", "=") or "").strip('"') or None,
        cpu_model=_value_in_file("/proc/cpuinfo", "model name", ":"),
        cpu_count=os.cpu_count(),
        cpus_usable=sorted(os.sched_getaffinity(0)),
        governor=_read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        virtual_machine=" hypervisor" in cpuinfo if cpuinfo else None,
        memory_bytes=memory_bytes("MemTotal") or None,
        congestion_control_default=_read_text("/proc/sys/net/ipv4/tcp_congestion_control"),
        clock_source=_read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        python=platform.python_version(),
    )


def _pressure_us(resource: str) -> int | None:
    """Total time, in µs, in which some tasks waited for a resource: the `some` line of the kernel's pressure stall information."""
    value = _value_in_file(f"/proc/pressure/{resource}", "some", "total=")
    return None if value is None else int(value)


_IDLE, _IOWAIT, _STEAL = 3, 4, 7
"""Positions of these counters in a line of /proc/stat."""


class CpuTicks(NamedTuple):
    """Counters of a line of /proc/stat, since boot, in ticks. Busy time is computed from idle time: most kernels measure idle time
    exactly, but sample busy time at timer ticks, and so miss a process that wakes after one tick and sleeps before the next."""

    idle: int
    """Idle time, including waits for a disk."""
    stolen: int
    """Time in which the hypervisor did not run this CPU although it had work."""
    total: int
    """Sum of all counters; it does not grow if the kernel counts nothing."""


def cpu_ticks(stat: str | None) -> CpuTicks | None:
    """Counters of the first line of /proc/stat; None if not reported."""
    fields = (stat or "").partition("\n")[0].split()[1:]
    if len(fields) <= _STEAL:
        return None
    ticks = [int(word) for word in fields]
    return CpuTicks(ticks[_IDLE] + ticks[_IOWAIT], ticks[_STEAL], sum(ticks))


def busy_cpus(before: CpuTicks, after: CpuTicks, elapsed_s: float, ticks_per_s: int, cpus: int) -> float | None:
    """Mean number of busy CPUs among `cpus`: neither idle, nor waiting for a disk, nor stolen. None if the kernel counted nothing."""
    if after.total == before.total:
        return None
    not_busy_s = (after.idle - before.idle + after.stolen - before.stolen) / ticks_per_s
    return min(max(cpus - not_busy_s / elapsed_s, 0.0), float(cpus))


class LoadWatch:
    """Measures the machine's load from its construction until `finish()`, which returns it."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._cpu_pressure_us, self._io_pressure_us = _pressure_us("cpu"), _pressure_us("io")
        self._ticks = cpu_ticks(_read_text("/proc/stat"))

    def finish(self) -> MachineLoad:
        elapsed_s = max(time.monotonic() - self._start_s, 1e-6)
        ticks = cpu_ticks(_read_text("/proc/stat"))

        def share(before: int | None, after: int | None, units_per_s: float) -> float | None:
            return None if before is None or after is None else (after - before) / units_per_s / elapsed_s

        cpus = os.cpu_count() or 1
        busy = busy_cpus(self._ticks, ticks, elapsed_s, _TICKS_PER_S, cpus) if self._ticks and ticks else None
        return MachineLoad(
            psi_cpu_some_share=share(self._cpu_pressure_us, _pressure_us("cpu"), _US_PER_S),
            psi_io_some_share=share(self._io_pressure_us, _pressure_us("io"), _US_PER_S),
            steal_share=share(self._ticks and self._ticks.stolen, ticks and ticks.stolen, _TICKS_PER_S * cpus),
            load_average_1m=os.getloadavg()[0],
            busy_cpus=busy,
        )


WRITE_SIZES = (512, 16_384)
"""Sizes of the timed writes, in bytes: a block of a log, and a page."""
_FILE_BYTES = 1 << 20
_MAX_WRITES = 48
_MAX_DURATION_NS = 1_000_000_000
"""Maximum time to spend on each size; on a slow disk, fewer than `_MAX_WRITES` writes are timed."""


def measure_fsync_ns(directory: Path) -> dict[str, QuantilesNs] | None:
    """Time writes with fsync in `directory`; returns number, median and p99 for each size. None if that is not possible there."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix="fsync-", buffering=0) as file:
            file.write(bytes(_FILE_BYTES))
            os.fsync(file.fileno())
            return {str(size): _summarize(_time_writes(file.fileno(), size)) for size in WRITE_SIZES}
    except OSError:
        return None


def _time_writes(descriptor: int, size: int) -> list[int]:
    block, start_ns, times_ns = os.urandom(size), time.monotonic_ns(), list[int]()
    while len(times_ns) < _MAX_WRITES and time.monotonic_ns() - start_ns < _MAX_DURATION_NS:
        write_start_ns = time.monotonic_ns()
        os.pwrite(descriptor, block, len(times_ns) * size)
        os.fsync(descriptor)
        times_ns.append(time.monotonic_ns() - write_start_ns)
    return sorted(times_ns)


def _summarize(times_ns: list[int]) -> QuantilesNs:
    return QuantilesNs(
        count=len(times_ns),
        p50=times_ns[len(times_ns) // 2],
        p99=times_ns[min(len(times_ns) * 99 // 100, len(times_ns) - 1)],
    )


_OTHER_DESCRIPTORS = 8192
"""Descriptors that a server needs besides those for its clients, for logs and tables, which may be open more than once."""
MIN_QUEUE = 4096
"""The default somaxconn of current kernels; older kernels have 128."""
_PORT_RANGE = "10000 65535"
"""Local port range of clients; the servers' ports are below it."""


def allow_descriptors(connections: int) -> int:
    """Raise the limit of file descriptors per process as far as needed for this number of connections. Returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = 2 * connections + _OTHER_DESCRIPTORS
    if soft >= target:
        return soft
    for limit in ((target, max(target, hard)), (min(target, hard), hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        except (ValueError, OSError):
            continue  # only root may raise the hard limit
        break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def lengthen_queues(network: Network, connections: int) -> dict[str, int | str]:
    """Lengthen the hosts' listen queues so that `connections` clients can connect at once, and let clients reuse ports soon after
    closing. Returns the settings in force. Raises LabError if the queues stay too short."""
    queue_length = max(MIN_QUEUE, connections)
    facts: dict[str, int | str] = {}
    for host in (network.client, network.server):
        for name in ("net/core/somaxconn", "net/ipv4/tcp_max_syn_backlog"):
            if int(_read_sysctl(host, name)) < queue_length:
                host.write_sysctl(name, str(queue_length))
            facts[f"{host.name}_{Path(name).name}"] = int(_read_sysctl(host, name))
        # A closed connection's port stays in TIME_WAIT for a minute; with one connection per transaction, ports would soon run out.
        host.write_sysctl("net/ipv4/ip_local_port_range", _PORT_RANGE)
        host.write_sysctl("net/ipv4/tcp_tw_reuse", "1")
        facts[f"{host.name}_ports"] = " ".join(_read_sysctl(host, "net/ipv4/ip_local_port_range").split())
        facts[f"{host.name}_tcp_tw_reuse"] = int(_read_sysctl(host, "net/ipv4/tcp_tw_reuse"))
    shortest = min(int(value) for name, value in facts.items() if name.endswith("somaxconn"))
    if shortest < min(queue_length, connections):
        raise LabError(
            f"this kernel lets only {shortest} clients wait to be accepted, but {connections} connect at once (net.core.somaxconn)",
            "Raise net.core.somaxconn, or use fewer threads.",
        )
    return facts


def _read_sysctl(host: Host, name: str) -> str:
    try:
        return host.run(Path("/proc/sys", name).read_text).strip()
    except OSError:
        return "0"


def read_listen_queue(host: Host, port: int) -> int | None:
    """Maximum number of connections that may wait to be accepted at `port`, according to the kernel; None if not reported."""

    def run_ss() -> str:
        command = ["ss", "--no-header", "--listening", "--tcp", "--numeric", f"sport = :{port}"]
        return subprocess.run(command, capture_output=True, text=True).stdout

    try:
        fields = host.run(run_ss).split()
    except OSError:
        return None
    return int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else None
