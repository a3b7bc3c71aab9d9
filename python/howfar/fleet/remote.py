"""The driver's side of the agents: run functions, hold objects and start processes on a host as if it were local."""

from __future__ import annotations

import io
import itertools
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import GetTimeoutError, RayError

from howfar import errors
from howfar.engine.process import Launcher
from howfar.errors import HowfarError, LabError
from howfar.fleet.agent import ENGINE, Agent, HeldProcess
from howfar.fleet.hosts_file import HostSpec

_Result = TypeVar("_Result")
_PATIENCE_S = 120.0
_START_S = 60.0
_READ_S = 2.0
_THREADS = 32
_numbers = itertools.count(1)


class HostLost(LabError):
    """A host or its agent died or does not answer."""


@dataclass
class RemoteHost:
    """One host of the cluster, with its agent."""

    name: str
    spec: HostSpec
    _agent: Any = field(default=None, repr=False)

    def join(self) -> None:
        """Start an agent if there is none or the last one is dead. Raises HostLost."""
        if self._agent is not None and self.alive():
            return
        made = ray.remote(Agent).options(
            num_cpus=0,
            resources={f"host:{self.name}": 1.0},
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_THREADS,
        )
        self.leave()
        self._agent = made.remote()
        self.within(_answer, patience_s=_START_S)

    def leave(self) -> None:
        if self._agent is not None:
            with suppress(RayError):
                ray.kill(self._agent)
            self._agent = None

    def alive(self) -> bool:
        with suppress(HostLost):
            return bool(self.within(_answer, patience_s=_READ_S * 5))
        return False

    def _ask(self, method: str, *arguments: Any, patience_s: float = _PATIENCE_S) -> Any:
        if self._agent is None:
            raise HostLost(f"host {self.name} has no agent", "`howfar hosts show` says what is there.")
        try:
            kind, value = ray.get(getattr(self._agent, method).remote(*arguments), timeout=patience_s)
        except GetTimeoutError as error:
            raise HostLost(f"host {self.name} did not answer within {patience_s:.0f} s", "Is it overloaded?") from error
        except RayError as error:
            first = str(error).strip().splitlines()
            raise HostLost(
                f"host {self.name} was lost: {type(error).__name__}: {first[-1] if first else 'no reason given'}",
                "`howfar hosts show` says what is there; `howfar resume` continues the run.",
            ) from error
        if kind:
            known = getattr(errors, kind, LabError)
            message, advice = value
            assert issubclass(known, HowfarError), "an agent hands on errors of ours"
            raise known(f"host {self.name}: {message}", advice)
        return value

    def within(self, function: Callable[..., _Result], *arguments: Any, patience_s: float = _PATIENCE_S) -> _Result:
        """Run a function on the host. Raises howfar's errors that it raises, and HostLost."""
        return cast(_Result, self._ask("run", function, arguments, patience_s=patience_s))

    def hold(
        self, factory: Callable[..., Any], *arguments: Any, called: str = "object", patience_s: float = _PATIENCE_S
    ) -> Held:
        """Make an object on the host."""
        key = f"{called}-{next(_numbers)}"
        return Held(self, key, self._ask("hold", key, factory, arguments, patience_s=patience_s))

    def launcher(self, cpus: Sequence[int]) -> RemoteLauncher:
        """A launcher of processes on the host, on these CPUs."""
        return RemoteLauncher(prefix=_prefix(cpus), host=self)


def _answer() -> bool:
    return True


def _prefix(cpus: Sequence[int]) -> tuple[str, ...]:
    listed = ",".join(map(str, cpus))
    return ("setsid", "setpriv", "--pdeathsig", "KILL", "--", "taskset", "-c", listed)


@dataclass(frozen=True)
class Held:
    """An object on a host."""

    host: RemoteHost
    key: str
    facts: dict[str, Any] = field(repr=False)
    """Its public attributes, as they were when it was made."""

    def call(self, method: str, *arguments: Any, starts: bool = False, patience_s: float = _PATIENCE_S) -> Any:
        return self.host._ask("call", self.key, method, arguments, starts, patience_s=patience_s)

    def drop(self) -> None:
        """Close the object on the host; a lost host needs no closing."""
        with suppress(HostLost):
            self.host._ask("drop", self.key)


@dataclass(frozen=True)
class RemoteLauncher(Launcher):
    """An `engine.process.Launcher` for another host."""

    host: RemoteHost = field(kw_only=True)

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        first = ENGINE if Path(command[0]).name == ENGINE else command[0]
        held = self.host.hold(HeldProcess, [first, *command[1:]], self.prefix)
        return cast("subprocess.Popen[Any]", RemoteProcess(held))

    def background(self, command: Sequence[str], log: Path) -> RemoteProcess:
        """Start a process whose output nobody reads; it ends with its session. Raises LabError."""
        return RemoteProcess(self.host.hold(HeldProcess, list(command), self.prefix, str(log)))


class RemoteProcess:
    """The part of `subprocess.Popen` that the engine's boundary needs."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.pid = int(held.facts["pid"])
        self.returncode: int | None = None
        self.stdin = _Input(held)
        self.stdout = _Output(held)
        self.stderr = _Errors(held)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.held.call("poll")
        return self.returncode

    def alive(self) -> bool:
        with suppress(LabError):
            return self.poll() is None
        return False

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            patience_s = _PATIENCE_S if timeout is None else timeout
            try:
                self.returncode = self.held.call("wait", patience_s, patience_s=patience_s + _READ_S * 5)
            except HostLost:
                self.returncode = -9
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.held.key, timeout or _PATIENCE_S)
        return self.returncode

    def kill(self) -> None:
        """Kill the process and its session."""
        try:
            self.returncode = self.held.call("kill")
        except HostLost:
            self.returncode = -9
        self.held.drop()

    end = kill


class _Input:
    def __init__(self, held: Held) -> None:
        self._held = held

    def write(self, text: str) -> None:
        self._hand_on("write", text)

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def close(self) -> None:
        self._hand_on("end_input")

    def _hand_on(self, method: str, *arguments: Any) -> None:
        try:
            self._held.call(method, *arguments)
        except HostLost as error:
            raise BrokenPipeError(error.message) from error


class _Output:
    def __init__(self, held: Held) -> None:
        self._held = held
        self._lines: list[str] = []

    def readline(self) -> str:
        """Read a line; empty at the end or if the host is lost."""
        while not self._lines:
            try:
                self._lines = self._held.call("lines", _READ_S, patience_s=_READ_S * 5)
            except HostLost:
                return ""
        return self._lines.pop(0)


class _Errors(io.TextIOBase):
    def __init__(self, held: Held) -> None:
        self._held = held

    def read(self, size: int | None = -1, /) -> str:
        try:
            return str(self._held.call("stderr"))
        except HostLost as error:
            return error.message
