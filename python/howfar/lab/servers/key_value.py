"""Redis, Valkey and Memcached: preparing, starting and querying one. Their differences are in their own files."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from howfar.errors import LabError, PlanError, ServerCrashed
from howfar.lab.network import LOOPBACK_ADDRESS, Host
from howfar.lab.servers import (
    SOCKET,
    CertificatePaths,
    Reach,
    Seer,
    Server,
    ServerContext,
    Store,
    ready,
)
from howfar.lab.servers.program import Program
from howfar.lab.servers.text_protocol import Lines
from howfar.lab.sockets import listening_paths, listening_ports
from howfar.plan.factors import Content

_GONE = 1024
"""Allowance for clients that have gone without the server having noticed. A higher limit costs a store nothing."""


@dataclass(frozen=True)
class StoreSettings:
    """Settings with which one server is started."""

    program: Path
    context: ServerContext
    socket: Path | None
    """The Unix socket; None without one."""
    port: int | None
    """The TCP port; None without TCP. With `tls` the port accepts only TLS."""
    tls: CertificatePaths | None = None

    @property
    def address(self) -> str | None:
        """The TCP address that the server listens on."""
        return None if self.port is None else self.context.listen_address

    @property
    def clients(self) -> int:
        """Number of clients that the server must accept. With a connection per transaction, a server that waits for a CPU still counts
        clients that have gone."""
        return 2 * self.context.connections + _GONE


class StoreDialect(Protocol):
    """The differences of one kind of store."""

    kind: str
    port: int
    """The usual port."""
    has_both: bool
    """Whether the server can listen on a Unix socket and on TCP at once."""

    def command_line(self, settings: StoreSettings) -> list[str]: ...

    def version(self, lines: Lines) -> str:
        """The version that the server reports. Raises LabError if it does not answer or speaks another protocol."""
        ...

    def counters(self, lines: Lines) -> dict[str, int]:
        """The present counters, in one request; see `servers.Server.snapshot`. `requests`, if the server counts them, includes this
        one."""
        ...

    def count_keys(self, lines: Lines) -> int:
        """Number of keys that the server holds now."""
        ...

    def others(self, lines: Lines) -> tuple[str, ...]:
        """The other clients as the server sees them: an address with its port, `localhost` over its socket."""
        ...

    def facts(self, lines: Lines) -> dict[str, str]:
        """Settings in force, for receipts."""
        ...

    def clients_allowed(self, facts: Mapping[str, str]) -> int: ...

    def unlike(self, facts: Mapping[str, str], counters: Mapping[str, int]) -> list[str]:
        """Reasons why a trial is invalid: evicted data, rejected clients, written files."""
        ...

    def has_tls(self, lines: Lines) -> bool:
        """Whether TLS was built in."""
        ...

    def view(self, lines: Lines, settings: StoreSettings) -> dict[str, Any]:
        """The server's view of this session: `host` (`localhost` over its socket), `ssl_version`, `ssl_cipher`, `listener`."""
        ...


_PATIENCE_S = 3.0
"""Time for an answer on the server's own host; a server that speaks TLS only may not answer plain text."""


@dataclass(frozen=True)
class Door:
    """One address where a server listens."""

    at: str
    """A socket's path, or an address with its port."""
    plain: bool
    """Whether it answers plain text."""
    tls: str | None
    """Version of TLS after a handshake with our certificate; None if not requested, or if the handshake failed."""


def try_door(
    dialect: StoreDialect, connection: Mapping[str, Any], host: Host, encrypted: ssl.SSLContext | None
) -> Door:
    """Try an address from `host`. `encrypted` is None to skip TLS: a plain Memcached would take the handshake for half a line."""
    at = str(connection.get("socket") or f"{connection['host']}:{connection['port']}")
    plain = _responds(dialect, connection, host, None) is not None
    tls = None if encrypted is None else _responds(dialect, connection, host, encrypted)
    return Door(at, plain, tls)


def _responds(
    dialect: StoreDialect, connection: Mapping[str, Any], host: Host, encrypted: ssl.SSLContext | None
) -> str | None:
    """The server's response: the version of TLS, or `plain`; None without an answer."""

    def ask() -> str:
        with Lines.connect(connection, _PATIENCE_S, encrypted) as lines:
            dialect.version(lines)
            return lines.tls[0] or "plain"

    try:
        return host.within(ask)
    except LabError:
        return None


def door_violations(door: Door, encrypted: bool) -> tuple[str, ...]:
    """Differences between what a server speaks at the path's address and what was requested. `encrypted`: it must accept only TLS."""
    if not encrypted:
        return () if door.plain else (f"the server does not answer plain text at {door.at}",)
    found = []
    if door.tls is None:
        found.append(f"the server was to speak TLS at {door.at} and does not")
    if door.plain:
        found.append(f"the server speaks plain text at {door.at}, where it was to speak TLS only")
    return tuple(found)


_READY_TIMEOUT_S = 20.0
_ANSWER_S = 30.0
"""Time for an answer, also over a link that is slow or has just died."""
_WARNING = "WARNING"
_WARNINGS_KEPT = 5


_Answer = TypeVar("_Answer")


def _see(
    dialect: StoreDialect, settings: StoreSettings, connection: Mapping[str, Any], encrypted: ssl.SSLContext | None
) -> dict[str, Any]:
    """The server's view of a session; see `servers.Seer`."""
    with Lines.connect(connection, _ANSWER_S, encrypted) as lines:
        return dialect.view(lines, settings)


class KeyValueServer(Server):
    """A running Redis, Valkey or Memcached; see `servers.Server`."""

    def __init__(self, settings: StoreSettings, dialect: StoreDialect, reached_by: Reach) -> None:
        self.kind = dialect.kind
        self._settings = settings
        self._dialect = dialect
        self._reached_by = reached_by
        self._admin: Lines | None = None
        super().__init__(settings.program, settings.context, settings.port, dialect.command_line(settings))

    def become_ready(self) -> None:
        """Wait until the server answers. Raises ServerCrashed, LabError."""
        refused: list[LabError] = []

        def connected() -> bool:
            try:
                self._admin = self.context.host.within(self._open)
            except LabError as error:
                refused[:] = [error]
            return self._admin is not None

        self._wait_until(
            connected,
            time.monotonic() + _READY_TIMEOUT_S,
            lambda: ServerCrashed(
                f"{self.program} did not answer within {_READY_TIMEOUT_S:.0f} s: {refused[0].message}{self._last_output()}",
                "Is the machine overloaded?",
            ),
        )
        self.version = self._dialect.version(self._own_lines)
        self._check_capacity(self._dialect.clients_allowed(self._dialect.facts(self._own_lines)))

    def snapshot(self) -> dict[str, int]:
        return self._ask("its counters", self._dialect.counters)

    def count_keys(self) -> int:
        """Number of keys that the server holds now. Raises ServerCrashed, LabError."""
        return self._ask("its keys", self._dialect.count_keys)

    def others(self) -> tuple[str, ...]:
        """The clients as the server sees them, without the laboratory's own session. Raises ServerCrashed, LabError."""
        return self._ask("its clients", self._dialect.others)

    def _ask(self, what: str, question: Callable[[Lines], _Answer]) -> _Answer:
        try:
            return question(self._own_lines)
        except LabError:
            self._check_alive(f"when asked for {what}", lost=True)
            raise

    def query(self, sql: str) -> list[dict[str, Any]]:
        raise PlanError(
            f"{self.kind} does not support SQL: {sql[:60]!r}", "Name a server that does, such as --server mariadb."
        )

    def has_tls(self) -> bool:
        """Whether TLS was built in."""
        return self._dialect.has_tls(self._own_lines)

    def receipt(self, before: Mapping[str, int], commits: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
        self._check_alive("during the trial")
        after = self.snapshot()
        counters = {name: count - before.get(name, 0) for name, count in after.items()}
        facts = self._dialect.facts(self._own_lines)
        host, encrypted = self.context.host, self._settings.tls is not None
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
            "said": [line for line in self.log_lines() if _WARNING in line][:_WARNINGS_KEPT],
        }
        return receipt, tuple(found)

    def session_view(
        self, connection: Mapping[str, Any], host: Host, encrypted: ssl.SSLContext | None = None
    ) -> dict[str, Any]:
        # Try plain text first: a plain Redis would take our TLS handshake for half a line, and wait for the rest.
        if encrypted is not None and (door := try_door(self._dialect, connection, host, None)).plain:
            raise LabError(
                f"{self.kind} was to speak TLS at {door.at}, but it answers in plain text there",
                "It encrypts TCP only: its socket is always plain.",
            )
        return super().session_view(connection, host, encrypted)

    def seer(self) -> Seer:
        return partial(_see, self._dialect, self._settings)

    def disconnect(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    @property
    def _own_lines(self) -> Lines:
        assert self._admin is not None, "not ready yet"
        return self._admin

    def _own(self, reached_by: Reach) -> dict[str, Any]:
        """Connection to the server from its own host."""
        if reached_by == "socket":
            return {"socket": str(self.socket)}
        return {"host": LOOPBACK_ADDRESS, "port": self.port}

    def _open(self) -> Lines:
        """A session for the laboratory's queries: by the socket if there is one."""
        if self._settings.socket is not None:
            return Lines.connect(self._own("socket"), _ANSWER_S)
        return Lines.connect(self._own("tcp"), _ANSWER_S, self._context())

    def _context(self) -> ssl.SSLContext | None:
        tls = self._settings.tls
        return None if tls is None else ssl.create_default_context(cafile=str(tls.ca))

    def _misplaced(self, ports: tuple[int, ...], paths: tuple[str, ...]) -> list[str]:
        """Sockets and ports that the kernel lists but that were not requested, or vice versa."""
        expected_ports = () if self.port is None else (self.port,)
        expected_paths = () if self._settings.socket is None else (str(self._settings.socket),)
        found = []
        if ports != expected_ports:
            found.append(
                f"the server listens on the TCP ports {list(ports)}, it was to listen on {list(expected_ports)}"
            )
        if paths != expected_paths:
            found.append(f"the server listens on the sockets {list(paths)}, it was to listen on {list(expected_paths)}")
        return found


def _turned_away(counters: Mapping[str, int]) -> list[str]:
    """Data or clients that the server refused to keep."""
    found = []
    if evicted := counters.get("evicted_keys", 0):
        found.append(f"the server evicted {evicted} keys during the trial: its memory was too small for them")
    if rejected := counters.get("rejected_connections", 0):
        found.append(f"the server rejected {rejected} connections")
    return found


class KeyValueStore(Store):
    """A key-value store's program; it has no data until a load sets keys."""

    def __init__(self, program: Program, dialect: StoreDialect) -> None:
        assert program.kind == dialect.kind
        super().__init__(program)
        self._dialect = dialect

    def data_bytes(self) -> int:
        return 0

    def prepare(self, context: ServerContext) -> dict[str, Any]:
        self._context = context
        return {"data_file_system": None, "data_from_template": False, "tables": 0, "table_size": 0, "contents": []}

    def discard(self) -> None:
        """Do nothing: there are no files."""

    def start(
        self,
        *,
        networking: bool,
        tls: CertificatePaths | None = None,
        content: Content | None = None,
        reached_by: Reach = "socket",
    ) -> KeyValueServer:
        # A server that cannot listen on both listens where it is reached.
        context, both = self.context, self._dialect.has_both
        on_tcp = networking and (both or reached_by == "tcp")
        settings = StoreSettings(
            program=self.program.path,
            context=context,
            socket=context.work / SOCKET if both or reached_by == "socket" else None,
            port=context.port(self._dialect.port) if on_tcp else None,
            tls=tls,
        )
        return ready(KeyValueServer(settings, self._dialect, reached_by))
