"""Facts about this machine for the run file, and what else it did during a trial."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from howfar.results.records import MachineLoad

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


_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7
"""Where they stand in the first line of /proc/stat. Guests are counted in user and nice already."""


def cpu_ticks(stat: str | None) -> tuple[int, int] | None:
    """Ticks of all CPUs since boot: at work (not idle, waiting for a disk, or stolen), and stolen. None: not said."""
    words = (stat or "").partition("\n")[0].split()[1:]
    if len(words) <= _STEAL:
        return None
    ticks = [int(word) for word in words]
    return sum(ticks[place] for place in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ)), ticks[_STEAL]


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

        busy, stolen = self._ticks or (None, None)
        busy_now, stolen_now = ticks or (None, None)
        return MachineLoad(
            psi_cpu_some_share=share(self._cpu, _pressure_us("cpu"), _US_PER_S),
            psi_io_some_share=share(self._io, _pressure_us("io"), _US_PER_S),
            steal_share=share(stolen, stolen_now, _TICKS * (os.cpu_count() or 1)),
            load_average_1m=os.getloadavg()[0],
            busy_cpus=share(busy, busy_now, _TICKS),
        )
