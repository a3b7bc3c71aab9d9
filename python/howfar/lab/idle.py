"""CPU idle states: what a CPU does while nothing runs on it, and how to keep CPUs out of the states that take time to leave.

A closed loop of small messages lets CPUs go idle between two messages, and each message then pays for waking one: 1 to 100 µs,
longest on virtual machines, where an idle CPU exits to the hypervisor. That is a property of the machine and its settings, so it is
a factor of a plan, recorded in each trial.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from howfar.errors import LabError

DEVICE = Path("/dev/cpu_dma_latency")
"""The kernel's limit on the exit latency of idle states, in µs (Documentation/power/pm_qos_interface.rst). A limit holds while its
writer keeps the file open; the smallest limit of all programs applies."""
_SYSTEM = Path("/sys/devices/system/cpu")
_LIMIT = struct.Struct("=i")
_POLL = "POLL"
"""The name of the state in which a CPU does not sleep (drivers/cpuidle/poll_state.c)."""
MOST_HALTS_PER_S = 10.0
"""Maximum rate of halts of a polling CPU. The limit applies from a CPU's next idle period; no halts are expected after that."""


def cannot_poll() -> str | None:
    """The reason why idle CPUs cannot be kept polling here; None if they can."""
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
    """Make idle CPUs poll inside. Even SIGKILL leaves nothing behind: the limit ends with the descriptor. Raises LabError."""
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
    """Number of times since boot that each CPU had entered a state that it must be woken from, at one moment."""

    at_ns: int
    counts: Mapping[int, int]

    @classmethod
    def now(cls, cpus: Sequence[int]) -> Halts:
        """The counts at this moment; empty where the kernel does not count."""
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
    """One trial's idle states: `begin` when its load does, `receipt` at its end."""

    def __init__(self, level: str, cpus: Sequence[int]) -> None:
        self._level = level
        self._cpus = cpus
        self._before = Halts.now(cpus)

    def begin(self) -> None:
        self._before = Halts.now(self._cpus)

    def receipt(self) -> dict[str, Any]:
        """What was requested and what was in force. `limit_us` is None where only root may read it."""
        halts = Halts.now(self._cpus).per_s(self._before)
        return {"level": self._level, **idle_driver(), "limit_us": _limit_us(), "halts_per_s": halts}


def idle_driver() -> dict[str, Any]:
    """The kernel's driver and governor of idle states; None if it has none or does not report it."""
    found: dict[str, Any] = {"driver": None, "governor": None}
    for name, file in (("driver", "current_driver"), ("governor", "current_governor")):
        with suppress(OSError):
            text = (_SYSTEM / "cpuidle" / file).read_text().strip()
            found[name] = None if text == "none" else text
    return found


def idle_violations(receipt: Mapping[str, Any]) -> tuple[str, ...]:
    """Violations: a trial's idle states differ from polling although it was requested."""
    if "hosts" in receipt:  # each with its own receipt
        hosts = receipt["hosts"].items()
        return tuple(f"host {name}: {sentence}" for name, host in hosts for sentence in idle_violations(host))
    if receipt["level"] != "polling":
        return ()
    found = []
    if receipt["limit_us"] not in (0, None):
        found.append(f"idle CPUs were not kept polling: the kernel's limit is {receipt['limit_us']} µs")
    for cpu, rate in receipt["halts_per_s"].items():
        if rate > MOST_HALTS_PER_S:
            found.append(f"CPU {cpu} was to poll while idle and slept {rate:.0f} times a second")
    return tuple(found)


def _states(cpu: int) -> dict[Path, str]:
    """Directory and name of each idle state of `cpu`."""
    found = {}
    with suppress(OSError):
        for state in sorted((_SYSTEM / f"cpu{cpu}" / "cpuidle").iterdir()):
            found[state] = (state / "name").read_text().strip()
    return found


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
