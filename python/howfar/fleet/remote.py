"""Agents on hosts, and the driver's interface to them: run functions, create objects and start processes on a host as if it were
local.

An agent is a Ray actor, one on each host. It is never restarted and its calls are never retried: a trial succeeds as a whole or
fails. Everything that an agent started ends with it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from howfar import errors
from howfar.engine.process import Launcher, find_engine, own_environment
from howfar.errors import HowfarError, LabError
from howfar.fleet.hosts_file import HostSpec
from howfar.fleet.node import clear_preload

ENGINE = "howfar-engine"
_MAX_QUEUED_LINES = 100_000
_MAX_STDERR_CHARACTERS = 4000


class HostedProcess:
    """Runs on a host: a process whose streams are read line by line or go to a log."""

    def __init__(self, command: Sequence[str], prefix: Sequence[str], log: str | None = None) -> None:
        if command[0] == ENGINE:
            command = [str(find_engine()), *command[1:]]
        with contextlib.ExitStack() as stack:
            output = subprocess.PIPE if log is None else stack.enter_context(Path(log).open("wb"))
            self._process = subprocess.Popen(
                [*prefix, *command],
                env=own_environment(),
                stdin=subprocess.PIPE if log is None else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.pid = self.facts = self._process.pid
        self._log = log
        self._lines: queue.Queue[str] = queue.Queue(_MAX_QUEUED_LINES)
        self._stderr = ""
        self._readers: list[threading.Thread] = []
        if log is None:
            self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_stderr)]
            for reader in self._readers:
                reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode())
        self._lines.put("")

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr = (self._stderr + line.decode(errors="replace"))[-_MAX_STDERR_CHARACTERS:]

    def lines(self, timeout_s: float) -> list[str]:
        """Wait for output and return all lines so far; an empty line marks the end. Returns an empty list after `timeout_s`."""
        try:
            lines = [self._lines.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        with contextlib.suppress(queue.Empty):
            while lines[-1]:
                lines.append(self._lines.get_nowait())
        return lines

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def stderr(self) -> str:
        for reader in self._readers:
            reader.join(1.0)
        return self._stderr

    def log(self) -> str:
        return Path(self._log).read_text(errors="replace") if self._log else ""

    def kill(self) -> int:
        """Kill the process's whole session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, 9)
        self._process.kill()
        return self._process.wait()

    close = kill


class Agent:
    """The class of the actor on each host. Its methods run concurrently in threads. A single thread, which lives as long as the
    actor, starts all processes, because a child process is killed when the thread that started it ends."""

    def __init__(self) -> None:
        clear_preload()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._objects: dict[str, object] = {}

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Run a function here."""
        return _call_returning_errors(lambda: function(*arguments))

    def create(self, key: str, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Make an object here and keep it; returns its attribute `facts`, or None if it has none."""

        def make() -> object:
            self._objects[key] = created = factory(*arguments)
            return getattr(created, "facts", None)

        return _call_returning_errors(lambda: self._starter.submit(make).result())

    def call(self, key: str, method: str, arguments: tuple[Any, ...], starts: bool) -> tuple[str, Any]:
        """Call a method of an object. `starts`: whether the method starts processes, and so must run in the starter thread."""

        def call_method() -> Any:
            if key not in self._objects:
                raise HostLost("its agent was lost with all that it held", "`howfar resume` continues the run.")
            return getattr(self._objects[key], method)(*arguments)

        return _call_returning_errors(lambda: self._starter.submit(call_method).result() if starts else call_method())

    def drop(self, key: str) -> tuple[str, Any]:
        """Close an object; an unknown one is not an error."""

        def close() -> None:
            hosted = self._objects.pop(key, None)
            if hasattr(hosted, "close"):
                hosted.close()

        return _call_returning_errors(close)


def _call_returning_errors(function: Callable[[], Any]) -> tuple[str, Any]:
    """Call a function; returns an empty text and the result, or the name of an error's type and its message and advice.
    Errors are returned, not raised, because an error that Ray raises means that the host is lost."""
    try:
        return "", function()
    except HowfarError as error:
        return type(error).__name__, (error.message, error.advice)
    except Exception as error:
        advice = "" if isinstance(error, OSError) else "Please report this."
        return LabError.__name__, (f"{type(error).__name__}: {error}", advice)


_Result = TypeVar("_Result")
_Facts = TypeVar("_Facts")
_CALL_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 60.0
_READ_TIMEOUT_S = 2.0
_AGENT_THREADS = 32
_object_numbers = itertools.count(1)


class HostLost(LabError):
    """A host or its agent died or does not answer."""


@dataclass
class RemoteHost:
    """One host of the cluster, with its agent."""

    name: str
    spec: HostSpec
    actor: type[Any] = Agent
    own_resources: Mapping[str, float] | None = None
    """Ray resources that only this host has, so that its agent starts there; None for the resource with the host's name."""
    _agent: Any = field(default=None, repr=False)

    def join(self) -> None:
        """Start an agent if there is none or the last one is dead. Raises HostLost."""
        if self._agent is not None and self.alive():
            return
        created = ray.remote(self.actor).options(
            num_cpus=0,
            resources=dict(self.own_resources or {f"host:{self.name}": 1.0}),
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_AGENT_THREADS,
        )
        self.leave()
        self._agent = created.remote()
        self.within(_ping, timeout_s=_START_TIMEOUT_S)

    def leave(self) -> None:
        if self._agent is not None:
            with suppress(RayError):
                ray.kill(self._agent)
            self._agent = None

    def alive(self) -> bool:
        with suppress(HostLost):
            return bool(self.within(_ping, timeout_s=_READ_TIMEOUT_S * 5))
        return False

    def _ask(self, method: str, *arguments: Any, timeout_s: float = _CALL_TIMEOUT_S) -> Any:
        if self._agent is None:
            raise HostLost(f"host {self.name} has no agent", "`howfar hosts show` lists the hosts.")
        try:
            error_name, value = ray.get(getattr(self._agent, method).remote(*arguments), timeout=timeout_s)
        except GetTimeoutError as error:
            raise HostLost(f"host {self.name} did not answer within {timeout_s:.0f} s", "Is it overloaded?") from error
        except RayError as error:
            raise HostLost(
                f"host {self.name} was lost: {_reason(error)}",
                "`howfar hosts show` lists the hosts; `howfar resume` continues the run.",
            ) from error
        if error_name:
            error_type = HostLost if error_name == HostLost.__name__ else getattr(errors, error_name, LabError)
            message, advice = value
            assert issubclass(error_type, HowfarError), "an agent returns howfar's own errors"
            raise error_type(f"host {self.name}: {message}", advice)
        return value

    def within(self, function: Callable[..., _Result], *arguments: Any, timeout_s: float = _CALL_TIMEOUT_S) -> _Result:
        """Run a function on the host. Raises howfar's errors that it raises, and HostLost."""
        return cast(_Result, self._ask("run", function, arguments, timeout_s=timeout_s))

    def create(
        self,
        factory: Callable[..., object],
        *arguments: Any,
        called: str = "object",
        timeout_s: float = _CALL_TIMEOUT_S,
    ) -> RemoteObject:
        """Create an object on the host and keep it there. `called`: part of its key."""
        key = f"{called}-{next(_object_numbers)}"
        return RemoteObject(self, key, self._ask("create", key, factory, arguments, timeout_s=timeout_s))

    def launcher(self, cpus: Sequence[int]) -> RemoteLauncher:
        """A launcher of processes on the host, on these CPUs."""
        return RemoteLauncher(prefix=_command_prefix(cpus), host=self)


def _reason(error: RayError) -> str:
    """Return the first sentence of the last line of Ray's message, with the word agent for actor."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    sentence = lines[-1].strip().split(". ")[0].rstrip(".")
    if isinstance(error, RayActorError):
        return sentence.replace("The actor", "its agent", 1)
    return f"{type(error).__name__}: {sentence}"


def _ping() -> bool:
    return True


def _command_prefix(cpus: Sequence[int]) -> tuple[str, ...]:
    cpu_list = ",".join(map(str, cpus))
    return ("setsid", "setpriv", "--pdeathsig", "KILL", "--", "taskset", "-c", cpu_list)


@dataclass(frozen=True)
class RemoteObject:
    """The driver's reference to an object on a host."""

    host: RemoteHost
    key: str
    _facts: object = field(repr=False)

    def facts(self, expected_type: type[_Facts]) -> _Facts:
        """Return the object's attribute `facts`, which must be of this type, as it was when the object was made."""
        assert isinstance(self._facts, expected_type), f"the facts of {self.key} are of another type"
        return self._facts

    def call(self, method: str, *arguments: Any, starts: bool = False, timeout_s: float = _CALL_TIMEOUT_S) -> Any:
        return self.host._ask("call", self.key, method, arguments, starts, timeout_s=timeout_s)

    def drop(self) -> None:
        """Close the object on the host; on a lost host it has ended already."""
        with suppress(HostLost):
            self.host._ask("drop", self.key)


@dataclass(frozen=True)
class RemoteLauncher(Launcher):
    """An `engine.process.Launcher` for another host."""

    host: RemoteHost = field(kw_only=True)

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        program = ENGINE if Path(command[0]).name == ENGINE else command[0]
        remote_object = self.host.create(HostedProcess, [program, *command[1:]], self.prefix)
        return cast("subprocess.Popen[Any]", RemoteProcess(remote_object))

    def background(self, command: Sequence[str], log: Path) -> RemoteProcess:
        """Start a process whose output goes to `log`; it ends with its session. Raises LabError."""
        return RemoteProcess(self.host.create(HostedProcess, list(command), self.prefix, str(log)))


class RemoteProcess:
    """A process on a host, with the part of the interface of `subprocess.Popen` that `engine.process` needs."""

    def __init__(self, remote_object: RemoteObject) -> None:
        self.remote_object = remote_object
        self.pid = remote_object.facts(int)
        self.returncode: int | None = None
        self.stdin = _Input(remote_object)
        self.stdout = _Output(remote_object)
        self.stderr = _Errors(remote_object)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.remote_object.call("poll")
        return self.returncode

    def alive(self) -> bool:
        with suppress(LabError):
            return self.poll() is None
        return False

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            timeout_s = _CALL_TIMEOUT_S if timeout is None else timeout
            try:
                self.returncode = self.remote_object.call("wait", timeout_s, timeout_s=timeout_s + _READ_TIMEOUT_S * 5)
            except HostLost:
                self.returncode = -9
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.remote_object.key, timeout or _CALL_TIMEOUT_S)
        return self.returncode

    def kill(self) -> None:
        """Kill the process and its session."""
        try:
            self.returncode = self.remote_object.call("kill")
            self.stderr.read()
        except HostLost:
            self.returncode = -9
        self.remote_object.drop()

    end = kill


class _Input:
    """The stdin of a process on a host."""

    def __init__(self, remote_object: RemoteObject) -> None:
        self._remote_object = remote_object

    def write(self, text: str) -> None:
        self._forward("write", text)

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def close(self) -> None:
        self._forward("close_input")

    def _forward(self, method: str, *arguments: Any) -> None:
        try:
            self._remote_object.call(method, *arguments)
        except HostLost as error:
            raise BrokenPipeError(error.message) from error


class _Output:
    """The stdout of a process on a host."""

    def __init__(self, remote_object: RemoteObject) -> None:
        self._remote_object = remote_object
        self._lines: list[str] = []

    def readline(self) -> str:
        """Read a line; empty at the end or if the host is lost."""
        while not self._lines:
            try:
                self._lines = self._remote_object.call("lines", _READ_TIMEOUT_S, timeout_s=_READ_TIMEOUT_S * 5)
            except HostLost:
                return ""
        return self._lines.pop(0)


class _Errors(io.TextIOBase):
    """The stderr of a process on a host. The first read keeps the text, because it may be read again after the process was dropped."""

    def __init__(self, remote_object: RemoteObject) -> None:
        self._remote_object = remote_object
        self._text: str | None = None

    def read(self, size: int | None = -1, /) -> str:
        if self._text is None:
            try:
                self._text = str(self._remote_object.call("stderr"))
            except HostLost:  # the next call to the host itself reports why
                self._text = f"host {self._remote_object.host.name} was lost"
        return self._text
