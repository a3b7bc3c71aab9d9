"""Facts about this machine for the run file, and what else it did during a trial."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

from howfar.store.records import MachineLoad

_TICKS = os.sysconf("SC_CLK_TCK")
_US_PER_S = 1_000_000


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cpu_model() -> str | None:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def _memory_bytes() -> int | None:
    for line in (_read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _distribution() -> str | None:
    for line in (_read("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return None


def machine_facts() -> dict[str, Any]:
    """Closed list of facts; None where this kernel does not say."""
    cpuinfo = _read("/proc/cpuinfo") or ""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "distribution": _distribution(),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpus_usable": sorted(os.sched_getaffinity(0)),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "virtual_machine": " hypervisor" in cpuinfo if cpuinfo else None,
        "memory_bytes": _memory_bytes(),
        "congestion_control_default": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "python": platform.python_version(),
    }


def _pressure_us(resource: str) -> int | None:
    """Total of the `some` line of pressure stall information, in µs."""
    for line in (_read(f"/proc/pressure/{resource}") or "").splitlines():
        if line.startswith("some"):
            return int(line.rpartition("total=")[2])
    return None


_IDLE, _IOWAIT, _STEAL = 3, 4, 7
"""Where they stand in a line of /proc/stat."""


class CpuTicks(NamedTuple):
    """Of a line of /proc/stat, since boot. What a CPU was at work is not read off the line but is the rest of the time: most kernels
    clock idle time exactly, and sample work at their timer's ticks, which miss whoever wakes at a tick and sleeps before the next."""

    idle: int
    """Waiting for a disk too."""
    stolen: int
    every: int
    """Of all kinds. Where it stands still, nobody counts."""


def cpu_ticks(stat: str | None) -> CpuTicks | None:
    """Of the first line. None: not said."""
    words = (stat or "").partition("\n")[0].split()[1:]
    if len(words) <= _STEAL:
        return None
    ticks = [int(word) for word in words]
    return CpuTicks(ticks[_IDLE] + ticks[_IOWAIT], ticks[_STEAL], sum(ticks))


def busy_cpus(before: CpuTicks, after: CpuTicks, elapsed_s: float, ticks_per_s: int, cpus: int) -> float | None:
    """How many of so many CPUs were at work: neither idle, nor waiting for a disk, nor stolen. None: nothing was counted."""
    if after.every == before.every:
        return None
    away_s = (after.idle - before.idle + after.stolen - before.stolen) / ticks_per_s
    return min(max(cpus - away_s / elapsed_s, 0.0), float(cpus))


class LoadWatch:
    """Started with the trial; `finish()` says what the machine did since."""

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
