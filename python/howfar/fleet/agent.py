"""The Ray actor on each host: runs functions, holds objects and forwards the streams of processes for the driver.

An actor is never restarted and never retries: a trial is all or nothing. What it started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from howfar.engine.process import find_engine, own_environment
from howfar.errors import HowfarError

ENGINE = "howfar-engine"
_LINES_KEPT = 100_000
_STDERR_KEPT = 4000


class HeldProcess:
    """A process whose streams are read line by line or go to a log."""

    def __init__(self, command: Sequence[str], prefix: Sequence[str], log: str | None = None) -> None:
        if command[0] == ENGINE:
            command = [str(find_engine()), *command[1:]]
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with contextlib.ExitStack() as opened:
            if log is not None:
                file = opened.enter_context(Path(log).open("wb"))
                streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            self._process = subprocess.Popen([*prefix, *command], env=own_environment(), **streams)
        self.pid = self._process.pid
        self._log = log
        self._lines: queue.Queue[str] = queue.Queue(_LINES_KEPT)
        self._stderr = ""
        self._readers: list[threading.Thread] = []
        if log is None:
            self._readers = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_stderr)]
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
            self._stderr = (self._stderr + line.decode(errors="replace"))[-_STDERR_KEPT:]

    def lines(self, patience_s: float) -> list[str]:
        """Wait for output and return all lines so far; an empty line is the end. Returns an empty list after `patience_s`."""
        try:
            found = [self._lines.get(timeout=patience_s)]
        except queue.Empty:
            return []
        with contextlib.suppress(queue.Empty):
            while found[-1]:
                found.append(self._lines.get_nowait())
        return found

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def end_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, patience_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_s)
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
    """The actor's class. Methods run side by side in threads; what starts processes does so in one thread that lives as long as the
    actor, for a child dies with the thread that made it."""

    def __init__(self) -> None:
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._held: dict[str, Any] = {}

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Run a function once."""
        return _outcome(lambda: function(*arguments))

    def hold(self, key: str, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Make an object here and keep it; returns its public plain attributes."""

        def make() -> dict[str, Any]:
            self._held[key] = made = factory(*arguments)
            return {name: value for name, value in vars(made).items() if not name.startswith("_")}

        return _outcome(lambda: self._starter.submit(make).result())

    def call(self, key: str, method: str, arguments: tuple[Any, ...], starts: bool) -> tuple[str, Any]:
        """Call a method of a held object. `starts`: it starts processes."""

        def ask() -> Any:
            return getattr(self._held[key], method)(*arguments)

        return _outcome(lambda: self._starter.submit(ask).result() if starts else ask())

    def drop(self, key: str) -> tuple[str, Any]:
        """Close a held object; an unknown one is not an error."""

        def close() -> None:
            held = self._held.pop(key, None)
            if held is not None:
                held.close()

        return _outcome(close)


def _outcome(what: Callable[[], Any]) -> tuple[str, Any]:
    """Call a function; return howfar's own errors as values, with their advice."""
    try:
        return "", what()
    except HowfarError as error:
        return type(error).__name__, (error.message, error.advice)
