"""The process of a server: started with a log, waited for, watched, ended. The same for every kind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from howfar.errors import HowfarError, LabError, ServerCrashed
from howfar.lab.environment import listen_queue
from howfar.lab.network import Companion
from howfar.lab.servers import ServerContext
from howfar.store.server_metrics import ServerMetrics, server_metrics

SOCKET = "s.sock"
SPARE_CONNECTIONS = 16
_POLL_S = 0.003
_DIES_S = 2.0
"""Long for the kernel to take a killed process apart, with its memory."""
_LOG_LINES = 8
_LOG_ERRORS = 3
"""Those before the last lines: a server that crashes writes pages about how after it has said why."""
_ERROR = "[ERROR]"
_LINE_CHARACTERS = 400
"""A statement in full may be megabytes."""
_SECRETS = ("PASSWORD", "IDENTIFIED")
"""Of statements that a server quotes when it crashes in one, or refuses one at its start."""
_WITHHELD = "(a line with a password)"


class ServerProcess:
    """What servers share; a subclass knows the protocol."""

    def __init__(self, program: Path, context: ServerContext, port: int | None, command: Sequence[str]) -> None:
        self.program = program
        self.context = context
        self.port = port
        self.address = None if port is None else context.listen_address
        self.socket = context.work / SOCKET
        self.version = "unknown"
        self._log = context.work / "server.log"
        self._listen_queue: int | None = None
        self.socket.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._companion = Companion(
                context.host.launcher(context.cpus),
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._companion.pid

    def snapshot(self) -> dict[str, int]:
        """Counters now, as the server names them."""
        raise NotImplementedError

    def metrics(self) -> ServerMetrics:
        return server_metrics(self.snapshot())

    def alive(self) -> bool:
        return self._companion.alive()

    def kill(self) -> None:
        """SIGKILL, and nothing else: its files stay as they are. It has ended on return."""
        self._companion.process.kill()
        self._wait_for_end()

    def stop(self) -> None:
        self.disconnect()
        self._companion.end()

    def disconnect(self) -> None:
        """Close the laboratory's own connection."""

    def log_lines(self) -> list[str]:
        """All that it has written."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace").strip().splitlines()
        return []

    def _wait_until(self, done: Callable[[], bool], deadline: float, late: Callable[[], HowfarError]) -> None:
        """Raises ServerCrashed when it ends meanwhile, and what `late` makes when the time is over."""
        while not done():
            self._check_alive("at start")
            if time.monotonic() > deadline:
                raise late()
            time.sleep(_POLL_S)

    def _check_capacity(self, connections_allowed: int) -> None:
        """Servers lower what they were told without failing. Raises LabError."""
        connections = self.context.connections
        if connections_allowed < connections + SPARE_CONNECTIONS:
            raise LabError(
                f"the server allows {connections_allowed} connections where {connections + SPARE_CONNECTIONS} are needed: "
                "it ran out of file descriptors",
                "Raise the hard limit of open files (`ulimit -Hn`) or use fewer threads.",
            )
        if self.port is None:
            return
        self._listen_queue = listen_queue(self.context.host, self.port)
        if self._listen_queue is not None and self._listen_queue < connections:
            raise LabError(
                f"{self._listen_queue} clients may wait to be accepted where {connections} connect at once: "
                "net.core.somaxconn is lower than the server's backlog",
                "Raise net.core.somaxconn, or use fewer threads.",
            )

    def _wait_for_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._companion.process.wait(_DIES_S)

    def _check_alive(self, when: str, *, lost: bool = False) -> None:
        """Raises ServerCrashed. A connection that was `lost` ends before the process has: it is waited for a little."""
        if lost:
            self._wait_for_end()
        code = self._companion.process.poll()
        if code is None:
            return
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        advice = "Does this server program work outside howfar, without a configuration file?"
        if code == -signal.SIGKILL:
            advice = "Somebody killed it. See if memory ran out: `dmesg` says so."
        raise ServerCrashed(f"{self.program} ended {when} ({how}){self._said()}", advice)

    def _said(self) -> str:
        lines = [_WITHHELD if any(word in line for word in _SECRETS) else line for line in self.log_lines()]
        last = [line[:_LINE_CHARACTERS] for line in lines[-_LOG_LINES:]]
        if not last:
            return ". It wrote no log."
        errors = [line[:_LINE_CHARACTERS] for line in lines[:-_LOG_LINES] if _ERROR in line][-_LOG_ERRORS:]
        first = ". Its log's last errors before its end:\n  " + "\n  ".join(errors) if errors else ""
        return first + ". Its log ends with:\n  " + "\n  ".join(last)
