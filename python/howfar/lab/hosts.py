"""Hosts: network namespaces with a share of the CPUs, and how a process is put on one.

Without a sandbox there is one network for all and every process is tied to our life by its own death signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from howfar.engine.process import Launcher
from howfar.errors import LabError
from howfar.lab import kernel

_Result = TypeVar("_Result")
Cpus = tuple[int, ...]


@dataclass(frozen=True)
class Shares:
    """CPUs of each host. One CPU is shared by both; an odd one is left to whatever else runs."""

    client: Cpus
    server: Cpus

    @property
    def shared(self) -> bool:
        return bool(set(self.client) & set(self.server))


def share_cpus(cpus: Sequence[int]) -> Shares:
    """Equal halves, in the order given; neighbours in that order stay together."""
    assert cpus, "a process always may run somewhere"
    if len(cpus) == 1:
        return Shares(client=tuple(cpus), server=tuple(cpus))
    half = len(cpus) // 2
    return Shares(server=tuple(cpus[:half]), client=tuple(cpus[half : 2 * half]))


def usable_cpus() -> Cpus:
    """CPUs that we may use, threads of one physical core side by side, so that hosts do not share a core needlessly."""

    def place(cpu: int) -> tuple[int, int, int]:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package = int((topology / "physical_package_id").read_text())
            core = int((topology / "core_id").read_text())
        except (OSError, ValueError):
            package, core = 0, cpu
        return package, core, cpu

    return tuple(sorted(os.sched_getaffinity(0), key=place))


def cpus_of(pid: int | None) -> list[int] | None:
    """On which a process may run, all of its threads together. None: it is gone, or there is none."""
    if pid is None:
        return None
    try:
        return sorted(
            {cpu for task in Path(f"/proc/{pid}/task").iterdir() for cpu in os.sched_getaffinity(int(task.name))}
        )
    except OSError:
        return None


def format_cpus(cpus: Sequence[int]) -> str:
    """`0,2,3`, as taskset takes it."""
    return ",".join(str(cpu) for cpu in cpus)


@dataclass(frozen=True)
class Host:
    """A network with a name. `network` is its descriptor; None: the network that we are in."""

    name: str
    network: int | None

    def launcher(self, cpus: Sequence[int], *, foreground: bool = False) -> Launcher:
        """Put a process here. `foreground`: it shares our terminal and its Ctrl-C; else it has a session of its own."""
        prefix: list[str] = [] if foreground else ["setsid"]
        if self.network is None:
            prefix += ["setpriv", "--pdeathsig", "KILL", "--"]
        else:
            prefix += ["nsenter", f"--net=/proc/self/fd/{self.network}", "--"]
        prefix += ["taskset", "-c", format_cpus(cpus)]
        return Launcher(prefix=tuple(prefix), pass_fds=() if self.network is None else (self.network,))

    def within(self, function: Callable[[], _Result]) -> _Result:
        """Run `function` in a thread that sees this network."""
        if self.network is None:
            return function()
        return kernel.in_network_namespace(self.network, function)

    def ip(self, batch: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
        """Run lines of `ip -batch` here. Raises LabError."""
        self._batch("ip", batch, pass_fds)

    def tc(self, batch: Sequence[str]) -> None:
        """Run lines of `tc -batch` here. Raises LabError."""
        self._batch("tc", batch, ())

    def _batch(self, program: str, batch: Sequence[str], pass_fds: Sequence[int]) -> None:
        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [program, "-batch", "-"],
                input="\n".join(batch) + "\n",
                capture_output=True,
                text=True,
                pass_fds=tuple(pass_fds),
            )

        try:
            tried = self.within(run)
        except FileNotFoundError as error:
            raise LabError(f"the program {program} was not found", "Install iproute2.") from error
        if tried.returncode != 0:
            raise LabError(f"setting up the network of host {self.name} failed: {tried.stderr.strip()}")

    def write_sysctl(self, name: str, value: str) -> bool:
        """Set `net/…` of this network; False when this kernel does not let us."""

        def write() -> bool:
            try:
                Path("/proc/sys", name).write_text(value)
            except OSError:
                return False
            return True

        return self.within(write)


class Companion:
    """A background process in a session of its own, ended with all its descendants in that session."""

    def __init__(self, launcher: Launcher, command: Sequence[str], **options: Any) -> None:
        self.process: subprocess.Popen[Any] = launcher.popen(command, **options)

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """SIGKILL to the whole session's group, then wait for every member that is ours to wait for."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self.pid, 0)
