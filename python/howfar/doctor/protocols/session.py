"""What every protocol provides: a session that can be pinged, and what its server reports about itself."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from howfar.doctor.findings import Cluster, Rates, address_text
from howfar.doctor.procfs import is_of_this_machine
from howfar.doctor.targets import Login

PATIENCE_S = 2.0
"""Time for a connect and for each answer."""
Tls = Literal["none", "offered", "always", "unknown"]


class Refused(Exception):
    """The server answered and refused a login or a request. The message is the server's."""


class NotThis(Exception):
    """Nobody answers, or the other end speaks another protocol."""


class Nobody(NotThis):
    """Nobody listens there."""


class Elsewhere(NotThis):
    """Another process listens there than the expected server. Nothing was sent."""


@dataclass(frozen=True)
class Owner:
    """The process expected at the other end of a Unix socket, as the kernel reports it (SO_PEERCRED)."""

    pid: int
    uid: int

    def matches(self, pid: int, uid: int) -> bool:
        """Whether the process is the owner; or, for root or its own account, PID 1 (socket activation) or PID 0 (another PID
        namespace)."""
        return pid == self.pid or (pid in (0, 1) and uid in (0, self.uid))


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of a server: the path of a socket, or an address and port; with TLS or without."""

    path: str | None
    host: str | None
    port: int | None
    tls: bool = False
    owner: Owner | None = None
    """Owner of the path: nothing is sent to any other process. None: the user named this path."""

    @property
    def where(self) -> str:
        return self.path or address_text(self.host, self.port)

    @property
    def is_here(self) -> bool:
        """Whether what is sent there is known to stay on this machine. A name may lead anywhere, but for `localhost`."""
        if self.path is not None or self.host is None or self.host == "localhost":
            return True
        try:
            return is_of_this_machine(self.host)
        except ValueError:
            return False


@dataclass(frozen=True)
class Greeting:
    """What a server sent at an endpoint."""

    name: str
    tls: Tls
    compression: str
    refused: str | None
    """Why the login was refused; None when it was not."""
    pid: int | None = None
    """The server's PID, as it reports it."""


@dataclass(frozen=True)
class ListedSession:
    """Another client's session, as the server lists it."""

    port: int | None
    """The client's port; None over a socket."""
    pid: int | None
    tls: bool | None
    compressed: bool | None


@dataclass(frozen=True)
class Counters:
    """Counts since the server started; None where it does not count."""

    connects: int
    statements: int
    tls_connects: int | None
    working_ms: float | None = None
    """Time of sessions running statements; PostgreSQL only, like the next."""
    waiting_ms: float | None = None
    """Time of sessions waiting for their client inside a transaction."""

    def rates(self, before: Counters, seconds: float, own_statements: int) -> Rates:
        def rate(now: float, then: float) -> float:
            return max(now - then, 0) / seconds

        def share(now: float | None, then: float | None) -> float | None:
            return rate(now / 1e3, then / 1e3) if now is not None and then is not None else None

        counted = self.tls_connects is not None and before.tls_connects is not None
        return Rates(
            connects=rate(self.connects, before.connects),
            statements=rate(self.statements, before.statements + own_statements),
            tls_connects=rate(self.tls_connects or 0, before.tls_connects or 0) if counted else None,
            working=share(self.working_ms, before.working_ms),
            waiting=share(self.waiting_ms, before.waiting_ms),
        )


@dataclass(frozen=True)
class SelfReport:
    """What the server reports about itself."""

    config_file: str | None
    sessions: tuple[ListedSession, ...]
    hidden: tuple[tuple[str, str, str], ...]
    """What the server did not report, why, and what would show it."""
    settings: dict[str, str]
    counted: tuple[int, int] | None = None
    """Number of the server's sessions, and how many of them are idle; PostgreSQL only."""
    cluster: Cluster | None = None


class Session(Protocol):
    """A session that is logged in. Its socket blocks, with PATIENCE_S for an answer."""

    statements_by_counters: int
    """Statements that one call of `counters` adds to those that the server counts."""

    def ping(self) -> None: ...

    def counters(self) -> Counters: ...

    def report(self) -> SelfReport: ...

    def close(self) -> None: ...


class SqlSession(Session, Protocol):
    """A session with a server that has tables."""

    def rows(self, statement: str) -> Sequence[Sequence[Any]]:
        """Rows of a statement. Raises Refused."""
        ...


class ServerProtocol(Protocol):
    def greet(self, endpoint: Endpoint, login: Login) -> Greeting:
        """Open one connection, log in if possible, and close it properly. Raises NotThis."""
        ...

    def open(self, endpoint: Endpoint, login: Login) -> Session:
        """Open a session. Raises NotThis, Refused."""
        ...


def dial(endpoint: Endpoint) -> socket.socket:
    """A blocking socket with kernel timeouts: Python's own would add a system call to each ping.

    Any certificate is accepted: the doctor looks at what is in force, and the caller has decided whom to trust with the login.
    Raises NotThis; Nobody or Elsewhere where that is known.
    """
    try:
        if endpoint.path is not None:
            made = _dial_path(endpoint.path, endpoint.owner)
        else:
            assert endpoint.host is not None and endpoint.port is not None, "an endpoint without a path has an address"
            made = socket.create_connection((endpoint.host, endpoint.port), PATIENCE_S)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise Nobody(error.strerror or str(error)) from error
    except OSError as error:
        raise NotThis(error.strerror or str(error)) from error
    if endpoint.tls:
        try:
            made = any_certificate().wrap_socket(made, server_hostname=endpoint.host)
        except OSError as error:
            made.close()
            raise NotThis(f"no TLS: {error.strerror or error}") from error
    make_blocking(made)
    return made


def _dial_path(path: str, owner: Owner | None) -> socket.socket:
    """Connect to a path. The kernel names the listener before a byte is sent: in a shared directory anybody may take the path."""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(PATIENCE_S)
        made.connect(path)
        pid, uid, _ = struct.unpack("iII", made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        made.close()
        raise
    if owner is not None and not owner.matches(pid, uid):
        made.close()
        raise Elsewhere(f"process {pid} listens there")
    return made


def make_blocking(made: socket.socket) -> None:
    seconds = int(PATIENCE_S)
    timeout = struct.pack("ll", seconds, int((PATIENCE_S - seconds) * 1e6))
    made.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        made.setsockopt(socket.SOL_SOCKET, option, timeout)


@cache
def any_certificate() -> ssl.SSLContext:
    """A TLS context that accepts every certificate, made once: a context for each connect is one of the doctor's findings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
