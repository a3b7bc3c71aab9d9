"""One running Redis, Valkey or Memcached: readiness, counters, receipt, end. What differs is in each one's `StoreDialect`."""

from __future__ import annotations

import contextlib
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from howfar.errors import LabError, PlanError, ServerCrashed
from howfar.lab.capacity import listen_queue
from howfar.lab.hosts import Companion, Host
from howfar.lab.network import LOOPBACK_ADDRESS
from howfar.lab.servers import Reach
from howfar.lab.servers.doors import door_violations, try_door
from howfar.lab.servers.lines import Lines
from howfar.lab.servers.store_dialect import StoreDialect, StoreSettings
from howfar.lab.sockets import listening_paths, listening_ports

SOCKET = "s.sock"
_READY_TIMEOUT_S = 20.0
_PATIENCE_S = 30.0
"""For an answer, also over a link that is slow or has just died."""
_POLL_S = 0.003
_DIES_S = 2.0
"""Long for the kernel to take a killed process apart, with its memory."""
_LOG_LINES = 8
_WARNING = "WARNING"
_WARNINGS_KEPT = 5


class KeyValueServer:
    """See `servers.Server`."""

    def __init__(self, settings: StoreSettings, dialect: StoreDialect, reached_by: Reach) -> None:
        self.kind = dialect.kind
        self._settings = settings
        self._dialect = dialect
        self._reached_by = reached_by
        work = settings.ground.work
        self.socket = work / SOCKET
        self.port = settings.port
        self.address = settings.address
        self.version = "unknown"
        self._log = work / "server.log"
        self._listen_queue: int | None = None
        self._admin: Lines | None = None
        self.socket.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._companion = Companion(
                settings.ground.host.launcher(settings.ground.cpus),
                dialect.command_line(settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._companion.pid

    def become_ready(self) -> None:
        """Until it answers. Raises ServerCrashed, LabError."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while self._admin is None:
            self._check_alive("at start")
            try:
                self._admin = self._settings.ground.host.within(self._open)
            except LabError as error:
                if time.monotonic() > deadline:
                    raise ServerCrashed(
                        f"{self._settings.program} did not answer within {_READY_TIMEOUT_S:.0f} s: {error.message}{self._said()}",
                        "Is the machine overloaded?",
                    ) from error
                time.sleep(_POLL_S)
        self.version = self._dialect.version(self._admin)
        self._check_capacity()

    def snapshot(self) -> dict[str, int]:
        try:
            return self._dialect.counters(self._asked)
        except LabError:
            self._check_alive("when asked for its counters", lost=True)
            raise

    def count_keys(self) -> int:
        """That it holds now. Raises ServerCrashed, LabError."""
        try:
            return self._dialect.count_keys(self._asked)
        except LabError:
            self._check_alive("when asked for its keys", lost=True)
            raise

    def others(self) -> tuple[str, ...]:
        """Where it sees its clients, the laboratory's own session left out. Raises ServerCrashed, LabError."""
        try:
            return self._dialect.others(self._asked)
        except LabError:
            self._check_alive("when asked for its clients", lost=True)
            raise

    def query(self, sql: str) -> list[dict[str, Any]]:
        raise PlanError(f"{self.kind} knows no SQL: {sql[:60]!r}", "Name a server that does, like --server mariadb.")

    def has_tls(self) -> bool:
        """Whether TLS was built in."""
        return self._dialect.has_tls(self._asked)

    def receipt(self, before: Mapping[str, int], commits: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
        self._check_alive("during the trial")
        after = self.snapshot()
        counters = {name: count - before.get(name, 0) for name, count in after.items()}
        facts = self._dialect.facts(self._asked)
        host, encrypted = self._settings.ground.host, self._settings.tls is not None
        ports, paths = host.within(lambda: (listening_ports(self.pid), listening_paths(self.pid)))
        door = try_door(self._dialect, self._own(self._reached_by), host, self._context())
        found = [*self._misplaced(ports, paths), *door_violations(door, encrypted)]
        found += [*_turned_away(counters), *self._dialect.unlike(facts, counters)]
        receipt = {
            "kind": self.kind,
            "content": None,
            "pid": self.pid,
            "facts": facts,
            "counters": counters,
            "tcp_ports": list(ports),
            "sockets": list(paths),
            "door": asdict(door),
            "listen_queue": self._listen_queue,
            "said": [line for line in self._log_lines() if _WARNING in line][:_WARNINGS_KEPT],
        }
        return receipt, tuple(found)

    def session_view(
        self, connection: Mapping[str, Any], host: Host, encrypted: ssl.SSLContext | None = None
    ) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            with Lines(connection, _PATIENCE_S, encrypted) as lines:
                return self._dialect.view(lines, self._settings)

        # Plain text first: Redis would wait for the end of what is a handshake to us and half a line to it.
        if encrypted is not None and (door := try_door(self._dialect, connection, host, None)).plain:
            raise LabError(
                f"{self.kind} was to speak TLS at {door.at}, and it answers plain text there",
                "It encrypts TCP only: its socket is plain whatever it is told.",
            )
        try:
            return host.within(ask)
        except LabError as error:
            self._check_alive("when asked how it sees its client", lost=True)
            raise LabError(f"the server did not say how it sees a client: {error.message}") from error

    def stop(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        self._companion.end()

    @property
    def _asked(self) -> Lines:
        assert self._admin is not None, "not ready yet"
        return self._admin

    def _own(self, reached_by: Reach) -> dict[str, Any]:
        """How it is reached from its own host."""
        if reached_by == "socket":
            return {"socket": str(self.socket)}
        return {"host": LOOPBACK_ADDRESS, "port": self.port}

    def _open(self) -> Lines:
        """To ask it for its state: by its socket if it has one."""
        if self._settings.socket is not None:
            return Lines(self._own("socket"), _PATIENCE_S)
        return Lines(self._own("tcp"), _PATIENCE_S, self._context())

    def _context(self) -> ssl.SSLContext | None:
        tls = self._settings.tls
        return None if tls is None else ssl.create_default_context(cafile=str(tls.ca))

    def _check_capacity(self) -> None:
        """Redis lowers what it was told without failing. Raises LabError."""
        wanted, allowed = self._settings.clients, self._dialect.clients_allowed(self._dialect.facts(self._asked))
        if allowed < wanted:
            raise LabError(
                f"the server allows {allowed} connections where {wanted} are needed: it ran out of file descriptors",
                "Raise the hard limit of open files (`ulimit -Hn`) or use fewer threads.",
            )
        if self.port is None:
            return
        ground = self._settings.ground
        self._listen_queue = listen_queue(ground.host, self.port)
        if self._listen_queue is not None and self._listen_queue < ground.connections:
            raise LabError(
                f"{self._listen_queue} clients may wait to be accepted where {ground.connections} connect at once: "
                "net.core.somaxconn is lower than the server's backlog",
                "Raise net.core.somaxconn, or use fewer threads.",
            )

    def _misplaced(self, ports: tuple[int, ...], paths: tuple[str, ...]) -> list[str]:
        """Where the kernel says that it listens, and it was not to, or the other way round."""
        asked_ports = () if self.port is None else (self.port,)
        asked_paths = () if self._settings.socket is None else (str(self._settings.socket),)
        found = []
        if ports != asked_ports:
            found.append(f"the server listens on the TCP ports {list(ports)}, it was to listen on {list(asked_ports)}")
        if paths != asked_paths:
            found.append(f"the server listens on the sockets {list(paths)}, it was to listen on {list(asked_paths)}")
        return found

    def _check_alive(self, when: str, *, lost: bool = False) -> None:
        """Raises ServerCrashed. Its connections end before it has: one that was `lost` is waited for a little."""
        process = self._companion.process
        if lost:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DIES_S)
        code = process.poll()
        if code is None:
            return
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        advice = "Does this server program work outside howfar, without a configuration?"
        if code == -signal.SIGKILL:
            advice = "Somebody killed it. See if memory ran out: `dmesg` says so."
        raise ServerCrashed(f"{self._settings.program} ended {when} ({how}){self._said()}", advice)

    def _log_lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace").strip().splitlines()
        return []

    def _said(self) -> str:
        last = self._log_lines()[-_LOG_LINES:]
        return ". Its log ends with:\n  " + "\n  ".join(last) if last else ". It wrote no log."


def _turned_away(counters: Mapping[str, int]) -> list[str]:
    """Data or clients that the server refused to keep."""
    found = []
    if evicted := counters.get("Evicted", 0):
        found.append(f"the server threw {evicted} keys out during the trial: its memory was too small for them")
    if rejected := counters.get("Rejected_connections", 0):
        found.append(f"the server turned {rejected} connections away")
    return found
