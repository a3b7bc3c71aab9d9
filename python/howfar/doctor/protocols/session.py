"""The interface of every protocol: a session that can be pinged, and the server's report about itself.

A server is a peer that may send anything. `GuardedProtocol` wraps each protocol, so that a new protocol need not handle that.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Protocol, TypeVar, cast

from howfar.address.server_address import format_host_port
from howfar.clients.peer import SILENCE_TIMEOUT_S, PeerConnection, PeerError
from howfar.doctor.findings import Cluster, Kind, Rates
from howfar.doctor.kind import Tls
from howfar.doctor.procfs import is_of_this_machine
from howfar.doctor.targets import TargetLogin
from howfar.errors import LabError
from howfar.passwords import without_passwords
from howfar.services import SERVICES

MAX_TEXT_CHARACTERS = 500
"""Maximum number of characters shown of a server's name or error."""
Result = TypeVar("Result")


class ServerRefused(Exception):
    """The server refused a login or a request, or a client library refused a demand of the server; with the message of either."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        """`remedy`: what the user can do; empty if no option of the doctor helps, None if another login may succeed."""
        super().__init__(without_passwords(message)[:MAX_TEXT_CHARACTERS])
        self.remedy = remedy


class NoValidAnswer(Exception):
    """No answer, or an answer that violates the protocol or its limits. The connection is not used again."""

    def __init__(self, message: str) -> None:
        super().__init__(without_passwords(message))


class NothingListens(NoValidAnswer):
    """No process listens at the endpoint."""


class UnexpectedListener(NoValidAnswer):
    """Another process than the expected server listens at the endpoint. Nothing was sent to it."""


@dataclass(frozen=True)
class Owner:
    """The process expected to listen on a Unix socket, to be compared with SO_PEERCRED."""

    pid: int
    uid: int

    def matches(self, pid: int, uid: int) -> bool:
        """Whether the process is the owner. PID 1 (socket activation) and PID 0 (another PID namespace) also match, if the account is
        root's or the owner's."""
        return pid == self.pid or (pid in (0, 1) and uid in (0, self.uid))


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of a server: the path of a socket, or an address and port, with or without TLS."""

    path: str | None
    host: str | None
    port: int | None
    tls: bool = False
    owner: Owner | None = None
    """Expected owner of the path: nothing is sent to any other process. None if the user named this path."""

    @property
    def where(self) -> str:
        return self.path or format_host_port(self.host, self.port)

    @property
    def is_local(self) -> bool:
        """Whether data sent to it certainly stays on this machine; a name other than `localhost` may resolve to any address."""
        if self.path is not None or self.host is None or self.host == "localhost":
            return True
        try:
            return is_of_this_machine(self.host)
        except ValueError:
            return False


@dataclass(frozen=True)
class Greeting:
    """Facts about a server from the greeting, and the first login, at an endpoint."""

    name: str
    tls: Tls
    compression: str
    refused: str | None
    """Why the login was refused; None if it was not."""
    pid: int | None = None
    """The server's PID, as reported by the server."""
    remedy: str | None = None
    """Remedy for the refusal, as in `ServerRefused`."""


@dataclass(frozen=True)
class ListedSession:
    """Another client's session, as listed by the server."""

    port: int | None
    """The client's port; None for a session over a socket."""
    pid: int | None
    tls: bool | None
    compressed: bool | None


@dataclass(frozen=True)
class Counters:
    """Counts since the server started; None for those that it does not count."""

    connects: int
    statements: int
    tls_connects: int | None
    working_ms: float | None = None
    """Time of sessions running statements; PostgreSQL only, like `waiting_ms`."""
    waiting_ms: float | None = None
    """Time of sessions waiting for their client inside a transaction."""

    def rates(self, before: Counters, seconds: float, own_statements: int) -> Rates:
        def rate(after: float, before_value: float) -> float:
            return max(after - before_value, 0) / seconds

        def share(after: float | None, before_value: float | None) -> float | None:
            return rate(after / 1e3, before_value / 1e3) if after is not None and before_value is not None else None

        tls_is_counted = self.tls_connects is not None and before.tls_connects is not None
        return Rates(
            connects=rate(self.connects, before.connects),
            statements=rate(self.statements, before.statements + own_statements),
            tls_connects=rate(self.tls_connects or 0, before.tls_connects or 0) if tls_is_counted else None,
            working=share(self.working_ms, before.working_ms),
            waiting=share(self.waiting_ms, before.waiting_ms),
        )


def parse_counter(reported: Mapping[str, str], name: str) -> int:
    """Parse a counter that the server reports. Raises ServerRefused if it is missing, NoValidAnswer if it is not a number."""
    if name not in reported:
        raise ServerRefused(f"it does not report {name}")
    if not reported[name].isdecimal():
        raise NoValidAnswer(f"its {name} is not a number")
    return int(reported[name])


@dataclass(frozen=True)
class SelfReport:
    """The server's report about itself."""

    config_file: str | None
    sessions: tuple[ListedSession, ...]
    hidden: tuple[tuple[str, str, str], ...]
    """For each fact that the server did not report: the fact, the reason, and what would make it visible."""
    settings: dict[str, str]
    counted: tuple[int, int] | None = None
    """Number of the server's sessions, and of its idle sessions; PostgreSQL only."""
    cluster: Cluster | None = None


class DoctorSession(Protocol):
    """A session that is logged in."""

    statements_by_counters: int
    """By how many statements a call of `counters` itself increases the server's count."""

    @property
    def peer(self) -> PeerConnection: ...

    def ping(self) -> None: ...

    def counters(self) -> Counters: ...

    def report(self) -> SelfReport: ...

    def close(self) -> None: ...


class SqlSession(DoctorSession, Protocol):
    """A session with a server that has tables."""

    def rows(self, statement: str) -> Sequence[Sequence[Any]]:
        """Rows of a statement. Raises ServerRefused, NoValidAnswer."""
        ...


class ServerProtocol(Protocol):
    def greet(self, endpoint: Endpoint, login: TargetLogin) -> Greeting:
        """Open one connection, log in if possible, and close it properly. Raises NoValidAnswer."""
        ...

    def open(self, endpoint: Endpoint, login: TargetLogin) -> DoctorSession:
        """Open a session. Raises NoValidAnswer, ServerRefused."""
        ...


@dataclass(frozen=True)
class GuardedProtocol:
    """A protocol guarded against peers that may send anything: any exception of the code that reads an answer becomes
    NoValidAnswer, so at worst a peer ends its own examination."""

    kind: Kind
    protocol: ServerProtocol

    def greet(self, endpoint: Endpoint, login: TargetLogin) -> Greeting:
        with _translating_errors(self.kind):
            greeting = self.protocol.greet(endpoint, login)
        refused = greeting.refused[:MAX_TEXT_CHARACTERS] if greeting.refused is not None else None
        return replace(greeting, name=greeting.name[:MAX_TEXT_CHARACTERS], refused=refused)

    def open(self, endpoint: Endpoint, login: TargetLogin) -> GuardedSession:
        with _translating_errors(self.kind):
            return GuardedSession(self.kind, self.protocol.open(endpoint, login))


class GuardedSession:
    """A session that is closed at the first answer that violates the protocol or its limits."""

    def __init__(self, kind: Kind, session: DoctorSession) -> None:
        self._kind, self._session = kind, session
        self.statements_by_counters = session.statements_by_counters
        self.peer = session.peer
        self.is_closed = False
        self.ping = session.ping
        """Not guarded, because that would lengthen the measured time. It raises NoValidAnswer or OSError, and
        `PeerConnection.shut_down_after` bounds it."""

    def counters(self) -> Counters:
        counters = self._ask(self._session.counters)
        if all(_is_count(getattr(counters, field.name)) for field in fields(counters)):
            return counters
        self.close()
        raise NoValidAnswer("its counters are no numbers")

    def report(self) -> SelfReport:
        return self._ask(self._session.report)

    def rows(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._ask(lambda: cast(SqlSession, self._session).rows(statement))

    def close(self) -> None:
        self.is_closed = True
        self._session.close()
        self.peer.close()

    def _ask(self, question: Callable[[], Result]) -> Result:
        if self.is_closed:
            raise NoValidAnswer("its connection has been closed")
        try:
            with _translating_errors(self._kind):
                self.peer.begin_answer()
                return question()
        except NoValidAnswer:
            self.close()
            raise


def _is_count(value: float | None) -> bool:
    return value is None or (-(2**63) <= value < 2**64 and math.isfinite(value))


@contextlib.contextmanager
def _translating_errors(kind: Kind) -> Iterator[None]:
    """Translate any exception raised while reading a peer's answers into NoValidAnswer; ServerRefused passes unchanged."""
    try:
        yield
    except (ServerRefused, NoValidAnswer):
        raise
    except LabError as error:
        raise NoValidAnswer(error.message) from error
    except OSError as error:
        raise NoValidAnswer(error.strerror or str(error)) from error
    except Exception as error:  # a library may raise anything for an invalid answer
        raise NoValidAnswer(
            f"it sent an answer that is not {SERVICES[kind].label}'s ({type(error).__name__})"
        ) from error


def dial(endpoint: Endpoint) -> PeerConnection:
    """Connect to an endpoint. Every certificate is accepted: the doctor examines what is there, and its caller has decided which
    servers may receive a login. Raises NoValidAnswer, or its subclasses NothingListens and UnexpectedListener."""
    try:
        if endpoint.path is not None:
            connection = _dial_path(endpoint.path, endpoint.owner)
        else:
            assert endpoint.host is not None and endpoint.port is not None, (
                "an endpoint has a path, or a host and a port"
            )
            connection = socket.create_connection((endpoint.host, endpoint.port), SILENCE_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise NothingListens(error.strerror or str(error)) from error
    except OSError as error:
        raise NoValidAnswer(error.strerror or str(error)) from error
    peer = PeerConnection(connection)
    if endpoint.tls:
        encrypt(peer, endpoint)
    return peer


def encrypt(peer: PeerConnection, endpoint: Endpoint) -> PeerConnection:
    """Start TLS on a connection and return it; if that fails, the connection is closed. Raises NoValidAnswer."""
    try:
        peer.encrypt(unverified_context(), endpoint.host)
    except PeerError as error:
        peer.close()
        raise NoValidAnswer(error.message) from error
    return peer


def _dial_path(path: str, owner: Owner | None) -> socket.socket:
    """Connect to a path, and check by SO_PEERCRED which process listens before anything is sent: in a shared directory, any process
    may bind the path."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(SILENCE_TIMEOUT_S)
        connection.connect(path)
        pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        connection.close()
        raise
    if owner is not None and not owner.matches(pid, uid):
        connection.close()
        raise UnexpectedListener(f"process {pid} listens there")
    return connection


@cache
def unverified_context() -> ssl.SSLContext:
    """Return a TLS context that accepts every certificate. It is created only once, because that takes long."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
