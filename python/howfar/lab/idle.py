"""CPU idle states: measures them, and keeps CPUs out of the states that take time to leave.

In a closed loop of small messages CPUs go idle between two messages. Waking them delays each message by 1 to 100 µs, most on virtual
machines, where an idle CPU exits to the hypervisor. The delay depends on the machine and its settings, so the use of idle states is a
factor of a plan, and each trial records it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from howfar.contract.receipt import IdleReceipt
from howfar.errors import LabError

DEVICE = Path("/dev/cpu_dma_latency")
"""The kernel's file for limits on the exit latency of idle states, in µs (Documentation/power/pm_qos_interface.rst). A limit holds
while its writer keeps the file open; the smallest limit of all programs applies."""
_CPU_DIRECTORY = Path("/sys/devices/system/cpu")
_LIMIT_FORMAT = struct.Struct("=i")
_POLLING_STATE = "POLL"
"""The kernel's name for the idle state in which a CPU polls and does not sleep (drivers/cpuidle/poll_state.c)."""


def polling_obstacle() -> str | None:
    """The reason why idle CPUs cannot be kept polling on this machine; None if they can."""
    states_by_cpu = [_idle_states(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    if not all(states_by_cpu):
        return "this kernel has no idle driver whose states a limit could forbid (/sys/devices/system/cpu/cpuidle)"
    if not all(_POLLING_STATE in states.values() for states in states_by_cpu):
        return "this kernel's idle driver has no state in which a CPU polls"
    try:
        os.close(os.open(DEVICE, os.O_WRONLY))
    except FileNotFoundError:
        return f"{DEVICE} is not here; a container needs `--device {DEVICE}`"
    except OSError:
        return f"{DEVICE} may be opened by root only"
    return None


@contextmanager
def keep_polling() -> Iterator[None]:
    """Make idle CPUs poll during the block, by a limit that ends when its descriptor is closed, even by SIGKILL. Raises LabError."""
    try:
        descriptor = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(
            f"idle CPUs cannot be kept polling: {polling_obstacle() or error}", 'Measure with idle = "as-found".'
        ) from error
    try:
        os.write(descriptor, _LIMIT_FORMAT.pack(0))
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class HaltCounts:
    """Number of halts of each CPU since boot, at one moment. A CPU halts when it enters a state from which it must be woken."""

    at_ns: int
    counts: Mapping[int, int]

    @classmethod
    def sample(cls, cpus: Sequence[int]) -> HaltCounts:
        """The present counts, without the CPUs whose halts the kernel does not count."""
        counts: dict[int, int] = {}
        for cpu in cpus:
            with suppress(OSError, ValueError):
                usage = [
                    int((state / "usage").read_text())
                    for state, name in _idle_states(cpu).items()
                    if name != _POLLING_STATE
                ]
                if usage:
                    counts[cpu] = sum(usage)
        return cls(time.monotonic_ns(), counts)

    def rates_per_s(self, before: HaltCounts) -> dict[int, float]:
        """Halts per second of each CPU since the sample `before`."""
        elapsed_s = (self.at_ns - before.at_ns) / 1e9
        return {
            cpu: round((count - before.counts[cpu]) / elapsed_s, 1)
            for cpu, count in self.counts.items()
            if cpu in before.counts and elapsed_s > 0
        }


class IdleWatch:
    """Records a trial's idle states: call `begin` when the load begins, and `collect_receipt` when it has ended."""

    def __init__(self, level: str, cpus: Sequence[int]) -> None:
        self._level = level
        self._cpus = cpus
        self._before = HaltCounts.sample(cpus)

    def begin(self) -> None:
        self._before = HaltCounts.sample(self._cpus)

    def collect_receipt(self) -> IdleReceipt:
        halts = HaltCounts.sample(self._cpus).rates_per_s(self._before)
        driver, governor = idle_driver()
        return IdleReceipt(
            level=self._level,
            driver=driver,
            governor=governor,
            limit_us=_read_limit_us(),
            halts_per_s={str(cpu): rate for cpu, rate in halts.items()},
        )


def idle_driver() -> tuple[str | None, str | None]:
    """The kernel's driver and governor of idle states; None if it has none or does not report it."""

    def read_name(file: str) -> str | None:
        with suppress(OSError):
            text = (_CPU_DIRECTORY / "cpuidle" / file).read_text().strip()
            return None if text == "none" else text
        return None

    return read_name("current_driver"), read_name("current_governor")


def _idle_states(cpu: int) -> dict[Path, str]:
    """Directory and name of each idle state of `cpu`."""
    states = {}
    with suppress(OSError):
        for state in sorted((_CPU_DIRECTORY / f"cpu{cpu}" / "cpuidle").iterdir()):
            states[state] = (state / "name").read_text().strip()
    return states


def _read_limit_us() -> int | None:
    """The limit now in force, the smallest of all programs; None if it cannot be read."""
    try:
        descriptor = os.open(DEVICE, os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(_LIMIT_FORMAT.unpack(os.read(descriptor, _LIMIT_FORMAT.size))[0])
    finally:
        os.close(descriptor)
