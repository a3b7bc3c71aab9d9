"""Runs an agent in its own namespaces, for an actor of a Ray cluster that is not howfar's.

`python -m howfar.fleet.namespace_agent` reads requests from stdin and writes answers to stdout, each a length and a pickle. Its files
are in a tmpfs that only the agent can see. When the actor ends, for any reason, stdin ends too, and the kernel removes everything
that the agent started.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from ray import cloudpickle

import howfar
from howfar.errors import HowfarError, LabError
from howfar.fleet.node import MEMORY_DIRECTORY, WORK_DIRECTORY
from howfar.fleet.remote import Agent
from howfar.lab import sandbox
from howfar.lab.environment import memory_bytes

THREADS = 32
_LENGTH = struct.Struct("!I")
_Outcome = tuple[str, Any]
"""What a method of `remote.Agent` returns; see `remote._call_returning_errors`."""


class SandboxedAgent:
    """See `remote.Agent`; forwards all calls to a sandbox."""

    def __init__(self) -> None:
        package = str(Path(howfar.__file__).parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "howfar.fleet.namespace_agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": package, "PYTHONSAFEPATH": "1"},
        )
        self._request_numbers = itertools.count()
        self._pending: dict[int, Future[_Outcome]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="answers", daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        while (frame := _read(self._process.stdout)) is not None:
            number, outcome = pickle.loads(frame)
            self._pending.pop(number).set_result(outcome)
        self._process.wait()
        with self._lock:
            for pending in self._pending.values():
                pending.set_result(_ended_error(self._process.returncode))

    def _ask(self, method: str, *arguments: Any) -> _Outcome:
        number, answer = next(self._request_numbers), Future[_Outcome]()
        frame = cloudpickle.dumps((number, method, arguments))
        with self._lock:
            if self._process.poll() is not None:
                return _ended_error(self._process.returncode)
            self._pending[number] = answer
            assert self._process.stdin is not None
            _write(self._process.stdin, frame)
        return answer.result()

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Outcome:
        return self._ask("run", function, arguments)

    def create(self, key: str, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> _Outcome:
        return self._ask("create", key, factory, arguments)

    def call(self, key: str, method: str, arguments: tuple[Any, ...], starts: bool) -> _Outcome:
        return self._ask("call", key, method, arguments, starts)

    def drop(self, key: str) -> _Outcome:
        return self._ask("drop", key)


def _ended_error(code: int) -> _Outcome:
    advice = "Pods and containers need the capability SYS_ADMIN, or user namespaces: see docs/hosts.md."
    return LabError.__name__, (f"howfar's sandbox on the host ended with exit code {code}", advice)


def _read(stream: IO[bytes]) -> bytes | None:
    """Read one frame; None at the end of the stream."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    frame = stream.read(length)
    return frame if len(frame) == length else None


def _write(stream: IO[bytes], frame: bytes) -> None:
    stream.write(_LENGTH.pack(len(frame)) + frame)
    stream.flush()


def _serve() -> int:
    sandbox.mount_memory(MEMORY_DIRECTORY, memory_bytes("MemAvailable"), "1777")
    WORK_DIRECTORY.mkdir(mode=0o700)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write to the stream of answers
    agent, lock = Agent(), threading.Lock()

    def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            outcome = getattr(agent, method)(*arguments)
            frame = cloudpickle.dumps((number, outcome))
        except Exception as error:
            frame = pickle.dumps(
                (number, (LabError.__name__, (f"{type(error).__name__}: {error}", "Please report this.")))
            )
        with lock:
            _write(answers, frame)

    pool = ThreadPoolExecutor(THREADS)
    with os.fdopen(os.dup(0), "rb") as requests:
        while (frame := _read(requests)) is not None:
            pool.submit(answer, *pickle.loads(frame))
    os._exit(0)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return _serve() if sandbox.inside() else sandbox.run_inside(network=False)
    except HowfarError as error:
        sys.stderr.write(f"howfar: {error.message}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
