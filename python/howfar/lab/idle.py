"""CPU idle states: what a CPU does while nothing runs on it, and how to keep CPUs out of the states that take time to leave.

In a closed loop of small messages CPUs go idle between two messages, and each message is then delayed by waking a CPU: 1 to 100 µs,
longest on virtual machines, where an idle CPU exits to the hypervisor. That is a property of the machine and its settings, so it is a
factor of a plan, recorded in each trial.
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
_SYSTEM = Path("/sys/devices/system/cpu")
_LIMIT = struct.Struct("=i")
_POLL = "POLL"
"""The name of the state in which a CPU does not sleep (drivers/cpuidle/poll_state.c)."""


def cannot_poll() -> str | None:
    """The reason why idle CPUs cannot be kept polling on this machine; None if they can."""
    states = [_states(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    if not all(states):
        return "this kernel has no idle driver whose states a limit could forbid (/sys/devices/system/cpu/cpuidle)"
    if not all(_POLL in names.values() for names in states):
        return "this kernel's idle driver has no state in which a CPU polls"
    try:
        os.close(os.open(DEVICE, os.O_WRONLY))
    except FileNotFoundError:
        return f"{DEVICE} is not here; a container needs `--device {DEVICE}`"
    except OSError:
        return f"{DEVICE} may be opened by root only"
    return None


@contextmanager
def polling() -> Iterator[None]:
    """Make idle CPUs poll during the block. Even after SIGKILL the limit ends, together with the descriptor. Raises LabError."""
    try:
        descriptor = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(
            f"idle CPUs cannot be kept polling: {cannot_poll() or error}", 'Measure with idle = "as-found".'
        ) from error
    try:
        os.write(descriptor, _LIMIT.pack(0))
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Halts:
    """How often each CPU has halted since boot, as of one moment: entered a state from which it must be woken."""

    at_ns: int
    counts: Mapping[int, int]

    @classmethod
    def now(cls, cpus: Sequence[int]) -> Halts:
        """The counts at this moment, without the CPUs whose halts the kernel does not count."""
        counts: dict[int, int] = {}
        for cpu in cpus:
            with suppress(OSError, ValueError):
                usage = [int((state / "usage").read_text()) for state, name in _states(cpu).items() if name != _POLL]
                if usage:
                    counts[cpu] = sum(usage)
        return cls(time.monotonic_ns(), counts)

    def per_s(self, before: Halts) -> dict[int, float]:
        """Halts per second of each CPU since `before`."""
        elapsed_s = (self.at_ns - before.at_ns) / 1e9
        return {
            cpu: round((count - before.counts[cpu]) / elapsed_s, 1)
            for cpu, count in self.counts.items()
            if cpu in before.counts and elapsed_s > 0
        }


class IdleWatch:
    """Records one trial's idle states: call `begin` when the load begins, and `receipt` when it has ended."""

    def __init__(self, level: str, cpus: Sequence[int]) -> None:
        self._level = level
        self._cpus = cpus
        self._before = Halts.now(cpus)

    def begin(self) -> None:
        self._before = Halts.now(self._cpus)

    def receipt(self) -> IdleReceipt:
        halts = Halts.now(self._cpus).per_s(self._before)
        driver, governor = idle_driver()
        return IdleReceipt(
            level=self._level,
            driver=driver,
            governor=governor,
            limit_us=_limit_us(),
            halts_per_s={str(cpu): rate for cpu, rate in halts.items()},
        )


def idle_driver() -> tuple[str | None, str | None]:
    """The kernel's driver and governor of idle states; None if it has none or does not report it."""

    def read(file: str) -> str | None:
        with suppress(OSError):
            text = (_SYSTEM / "cpuidle" / file).read_text().strip()
            return None if text == "none" else text
        return None

    return read("current_driver"), read("current_governor")


def _states(cpu: int) -> dict[Path, str]:
    """Directory and name of each idle state of `cpu`."""
    states = {}
    with suppress(OSError):
        for state in sorted((_SYSTEM / f"cpu{cpu}" / "cpuidle").iterdir()):
            states[state] = (state / "name").read_text().strip()
    return states


def _limit_us() -> int | None:
    """The limit now in force, the smallest of all programs; None if it cannot be read."""
    try:
        descriptor = os.open(DEVICE, os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(_LIMIT.unpack(os.read(descriptor, _LIMIT.size))[0])
    finally:
        os.close(descriptor)
