"""Starts and queries Redis, Valkey and Memcached. Their differences are in `redis.py` and `memcached.py`."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from howfar.contract.environment import DataFacts
from howfar.contract.messages import Target, TcpTarget, UnixTarget
from howfar.contract.server_receipt import RequestedStore, ServerReceipt, SessionView, StoreAddress
from howfar.contract.violation import Violation
from howfar.errors import LabError, PlanError, ServerCrashed
from howfar.lab.network import LOOPBACK_ADDRESS, Host
from howfar.lab.servers import (
    SOCKET_NAME,
    CertificatePaths,
    ServerContext,
    ServerProcess,
    SessionProbe,
    Store,
    Transport,
    describe_address,
    wait_ready,
)
from howfar.lab.servers.program import Program
from howfar.lab.servers.text_protocol import LineConnection
from howfar.lab.sockets import listening_paths, listening_ports
from howfar.paths.path import Row
from howfar.plan.factors import Content

_MAX_STALE_CLIENTS = 1024
"""Additional clients, for disconnected ones that the server still counts. A higher limit costs a store nothing."""


@dataclass(frozen=True)
class StoreSettings:
    """Settings with which one server is started."""

    program: Path
    context: ServerContext
    socket: Path | None
    """Path of the Unix socket; None if the server does not listen on one."""
    port: int | None
    """The TCP port; None if the server does not listen on TCP. With `tls` the port accepts only TLS."""
    tls: CertificatePaths | None = None

    @property
    def address(self) -> str | None:
        """The TCP address that the server listens on."""
        return None if self.port is None else self.context.listen_address

    @property
    def max_clients(self) -> int:
        """Number of clients that the server must accept. With a connection per transaction, a server that waits for a CPU still counts
        disconnected clients."""
        return 2 * self.context.connections + _MAX_STALE_CLIENTS


class StoreDialect(Protocol):
    """The differences of one kind of store."""

    kind: str
    port: int
    """The usual port."""
    listens_on_both: bool
    """Whether the server can listen on a Unix socket and on TCP at once."""

    def command_line(self, settings: StoreSettings) -> list[str]: ...

    def version(self, connection: LineConnection) -> str:
        """The version that the server reports. Raises LabError if it does not answer or speaks another protocol."""
        ...

    def counters(self, connection: LineConnection) -> dict[str, int]:
        """The current counters, in one request; see `servers.ServerProcess.snapshot`. `requests` includes this request, if the server
        counts requests."""
        ...

    def count_keys(self, connection: LineConnection) -> int:
        """Number of keys that the server now has."""
        ...

    def other_clients(self, connection: LineConnection) -> tuple[str, ...]:
        """The other clients as the server sees them: address with port, or `localhost` if the client uses the Unix socket."""
        ...

    def facts(self, connection: LineConnection) -> dict[str, str]:
        """The settings in force, for receipts."""
        ...

    def clients_allowed(self, facts: Mapping[str, str]) -> int:
        """Maximum number of clients, from the settings in force."""
        ...

    def mismatches(self, facts: Mapping[str, str], counters: Mapping[str, int]) -> list[Violation]:
        """Reasons why a trial is invalid: evicted data, rejected clients, written files."""
        ...

    def has_tls(self, connection: LineConnection) -> bool:
        """Whether TLS was built in."""
        ...

    def view(self, connection: LineConnection, settings: StoreSettings) -> SessionView:
        """The server's view of the session `connection`."""
        ...


_PROBE_TIMEOUT_S = 3.0
"""Time limit for an answer on the server's own host. A server that accepts only TLS may never answer plain text."""


def probe_address(
    dialect: StoreDialect, target: Target, host: Host, tls_context: ssl.SSLContext | None
) -> StoreAddress:
    """Find out by trial whether a server answers plain text and TLS at an address, from `host`. `tls_context`: None to try only plain
    text, because a Memcached without TLS would take the handshake for the beginning of a line."""
    plain = _probe_protocol(dialect, target, host, None) is not None
    tls = None if tls_context is None else _probe_protocol(dialect, target, host, tls_context)
    return StoreAddress(at=describe_address(target), plain=plain, tls=tls)


def _probe_protocol(
    dialect: StoreDialect, target: Target, host: Host, tls_context: ssl.SSLContext | None
) -> str | None:
    """The TLS version of an answer, or `plain`; None if there is no answer."""

    def query_version() -> str:
        with LineConnection.connect(target, _PROBE_TIMEOUT_S, tls_context) as connection:
            dialect.version(connection)
            return connection.tls[0] or "plain"

    try:
        return host.run(query_version)
    except LabError:
        return None


_READY_TIMEOUT_S = 20.0
_ANSWER_TIMEOUT_S = 30.0
"""Time limit for an answer, also over a slow or dead link."""
_WARNING_MARK = "WARNING"
_MAX_WARNINGS = 5


_Answer = TypeVar("_Answer")


def _view_session(
    dialect: StoreDialect, settings: StoreSettings, target: Target, tls_context: ssl.SSLContext | None
) -> SessionView:
    """The server's view of a session; see `servers.SessionProbe`."""
    with LineConnection.connect(target, _ANSWER_TIMEOUT_S, tls_context) as connection:
        return dialect.view(connection, settings)


class KeyValueServer(ServerProcess):
    """A running Redis, Valkey or Memcached; see `servers.ServerProcess`."""

    def __init__(self, settings: StoreSettings, dialect: StoreDialect, transport: Transport) -> None:
        self.kind = dialect.kind
        self._settings = settings
        self._dialect = dialect
        self._transport = transport
        self._admin_session: LineConnection | None = None
        super().__init__(settings.program, settings.context, settings.port, dialect.command_line(settings))

    def become_ready(self) -> None:
        """Wait until the server answers. Raises ServerCrashed, LabError."""
        last_errors: list[LabError] = []

        def try_connect() -> bool:
            try:
                self._admin_session = self.context.host.run(self._open_admin_session)
            except LabError as error:
                last_errors[:] = [error]
            return self._admin_session is not None

        self._wait_until(
            try_connect,
            time.monotonic() + _READY_TIMEOUT_S,
            lambda: ServerCrashed(
                f"{self.program} did not answer within {_READY_TIMEOUT_S:.0f} s: {last_errors[0].message}{self._last_output()}",
                "Is the machine overloaded?",
            ),
        )
        self.version = self._dialect.version(self._ready_session)
        self._check_capacity(self._dialect.clients_allowed(self._dialect.facts(self._ready_session)))

    def snapshot(self) -> dict[str, int]:
        return self._query_state("its counters", self._dialect.counters)

    def count_keys(self) -> int:
        """Number of keys that the server now has. Raises ServerCrashed, LabError."""
        return self._query_state("its keys", self._dialect.count_keys)

    def other_clients(self) -> tuple[str, ...]:
        """The clients as the server sees them, without the laboratory's own session. Raises ServerCrashed, LabError."""
        return self._query_state("its clients", self._dialect.other_clients)

    def _query_state(self, what: str, query_state: Callable[[LineConnection], _Answer]) -> _Answer:
        try:
            return query_state(self._ready_session)
        except LabError:
            self._check_alive(f"when asked for {what}", connection_lost=True)
            raise

    def query(self, sql: str) -> list[Row]:
        raise PlanError(
            f"{self.kind} does not support SQL: {sql[:60]!r}", "Name a server that does, such as --server mariadb."
        )

    def has_tls(self) -> bool:
        """Whether TLS was built in."""
        return self._dialect.has_tls(self._ready_session)

    def collect_receipt(
        self, before: Mapping[str, int], commits: int | None = None
    ) -> tuple[ServerReceipt, tuple[Violation, ...]]:
        self._check_alive("during the trial")
        after = self.snapshot()
        counters = {name: count - before.get(name, 0) for name, count in after.items()}
        facts = self._dialect.facts(self._ready_session)
        host = self.context.host
        ports, paths = host.run(lambda: (listening_ports(self.pid), listening_paths(self.pid)))
        listen_address = probe_address(self._dialect, self._local_target(self._transport), host, self._tls_context())
        receipt = ServerReceipt(
            content=None,
            kind=self.kind,
            pid=self.pid,
            facts={**facts},
            counters=counters,
            tcp_ports=list(ports),
            sockets=list(paths),
            listen_address=listen_address,
            listen_queue=self._listen_queue,
            warnings=[line for line in self.log_lines() if _WARNING_MARK in line][:_MAX_WARNINGS],
        )
        socket = self._settings.socket
        requested = RequestedStore(self.port, None if socket is None else str(socket), self._settings.tls is not None)
        return receipt, (*receipt.store_violations(requested), *self._dialect.mismatches(facts, counters))

    def session_view(self, target: Target, host: Host, encrypted: ssl.SSLContext | None = None) -> SessionView:
        # Try plain text first, because a Redis without TLS would take our handshake for the beginning of a line, and wait for the
        # rest.
        if encrypted is not None and (listen_address := probe_address(self._dialect, target, host, None)).plain:
            raise LabError(
                f"{self.kind} should accept only TLS at {listen_address.at}, but accepts unencrypted connections",
                "It encrypts only TCP: its socket is never encrypted.",
            )
        return super().session_view(target, host, encrypted)

    def session_probe(self) -> SessionProbe:
        return partial(_view_session, self._dialect, self._settings)

    def disconnect(self) -> None:
        if self._admin_session is not None:
            self._admin_session.close()
            self._admin_session = None

    @property
    def _ready_session(self) -> LineConnection:
        assert self._admin_session is not None, "the server is ready"
        return self._admin_session

    def _local_target(self, transport: Transport) -> Target:
        """The server's address on its own host."""
        if transport == "socket":
            return UnixTarget(path=str(self.socket))
        assert self.port is not None, "a server for TCP connections listens on TCP"
        return TcpTarget(host=LOOPBACK_ADDRESS, port=self.port)

    def _open_admin_session(self) -> LineConnection:
        """Open the laboratory's own session, over the socket if there is one."""
        if self._settings.socket is not None:
            return LineConnection.connect(self._local_target("socket"), _ANSWER_TIMEOUT_S)
        return LineConnection.connect(self._local_target("tcp"), _ANSWER_TIMEOUT_S, self._tls_context())

    def _tls_context(self) -> ssl.SSLContext | None:
        tls = self._settings.tls
        return None if tls is None else ssl.create_default_context(cafile=str(tls.ca))


class KeyValueStore(Store):
    """A key-value store's program; it has no data until a load sets keys."""

    def __init__(self, program: Program, dialect: StoreDialect) -> None:
        assert program.kind == dialect.kind
        super().__init__(program)
        self._dialect = dialect

    def data_bytes(self) -> int:
        return 0

    def prepare(self, context: ServerContext) -> DataFacts:
        self._context = context
        return DataFacts(data_file_system=None, data_from_template=False, tables=0, table_size=0, contents=[])

    def discard(self) -> None:
        """Do nothing: there are no files."""

    def start(
        self,
        *,
        networking: bool,
        tls: CertificatePaths | None = None,
        content: Content | None = None,
        transport: Transport = "socket",
    ) -> KeyValueServer:
        # A server that cannot listen on both listens only on the load's transport.
        context, listens_on_both = self.context, self._dialect.listens_on_both
        uses_tcp = networking and (listens_on_both or transport == "tcp")
        settings = StoreSettings(
            program=self.program.path,
            context=context,
            socket=context.work / SOCKET_NAME if listens_on_both or transport == "socket" else None,
            port=context.port(self._dialect.port) if uses_tcp else None,
            tls=tls,
        )
        return wait_ready(KeyValueServer(settings, self._dialect, transport))
