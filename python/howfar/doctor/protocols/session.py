"""What every protocol gives: a session that can be pinged, and what its server says of itself. Speaks no protocol."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Literal, Protocol

from howfar.doctor.findings import Rates
from howfar.doctor.targets import Login

PATIENCE_S = 2.0
"""For a dial and for each answer. A server that is slower than this has other troubles than its transport."""
MOST_BYTES = 8 * 2**20
"""Of one answer; a list of sessions may be long."""

Tls = Literal["none", "offered", "always", "unknown"]


class Refused(Exception):
    """The server was reached and did not let us in, or does not do what was asked. The message is the server's."""


class NotThis(Exception):
    """Nobody answers, or whoever answers speaks something else."""


class Nobody(NotThis):
    """Nobody listens there."""


class Elsewhere(NotThis):
    """Somebody else listens there than the server that is meant. Nothing was sent."""


@dataclass(frozen=True)
class Owner:
    """The process that is to be at the other end of a Unix socket, as the kernel tells it (SO_PEERCRED)."""

    pid: int
    uid: int

    def is_seen_in(self, pid: int, uid: int) -> bool:
        """Itself; or whoever made its socket for it (PID 1) or is in another PID namespace (0), of root's account or its own."""
        return pid == self.pid or (pid in (0, 1) and uid in (0, self.uid))


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of a server: a socket's path, or an address and port; with TLS or without."""

    path: str | None
    host: str | None
    port: int | None
    tls: bool = False
    owner: Owner | None = None
    """Of a path: nothing is sent to anybody else. None: whoever is there was named."""


@dataclass(frozen=True)
class Greeting:
    """What a place where somebody listens answered."""

    name: str
    tls: Tls
    compression: str
    refused: str | None
    """Why it let nobody in; none when it did."""
    pid: int | None = None
    """Who listens, as the server says it."""


@dataclass(frozen=True)
class ListedSession:
    """Another client's session, as the server lists it."""

    port: int | None
    """The client's; none over a socket."""
    pid: int | None
    tls: bool | None
    compressed: bool | None


@dataclass(frozen=True)
class Counters:
    """Since the server started. Of what is not counted there is none."""

    connects: int
    statements: int
    tls_connects: int | None

    def rates(self, before: Counters, seconds: float, own_statements: int) -> Rates:
        def rate(now: int, then: int, own: int = 0) -> float:
            return max(now - then - own, 0) / seconds

        tls = None
        if self.tls_connects is not None and before.tls_connects is not None:
            tls = rate(self.tls_connects, before.tls_connects)
        statements = rate(self.statements, before.statements, own_statements)
        return Rates(connects=rate(self.connects, before.connects), statements=statements, tls_connects=tls)


@dataclass(frozen=True)
class SelfReport:
    """What the server says of itself."""

    config_file: str | None
    sessions: tuple[ListedSession, ...]
    hidden: tuple[tuple[str, str, str], ...]
    """What it did not tell, why, and what would show it."""
    settings: dict[str, str]


class Session(Protocol):
    """Logged in. Its socket blocks, with PATIENCE_S for an answer."""

    statements_by_counters: int
    """How many of the statements that the server counts one call of `counters` makes."""

    def ping(self) -> None: ...

    def counters(self) -> Counters: ...

    def said(self) -> SelfReport: ...

    def close(self) -> None: ...


class ServerProtocol(Protocol):
    def greet(self, endpoint: Endpoint, login: Login) -> Greeting:
        """One connection, logged in if that is allowed, and closed in good order. Raises NotThis."""
        ...

    def open(self, endpoint: Endpoint, login: Login) -> Session:
        """Raises NotThis, Refused."""
        ...


def dial(endpoint: Endpoint) -> socket.socket:
    """A blocking socket whose reads and writes end after PATIENCE_S: Python's own timeouts would add a system call to each.

    TLS is taken from anybody: this looks at what is in force, and sends nothing that a server's name would protect but the login,
    for which the caller has decided whom to trust. Raises NotThis; Nobody or Elsewhere where that is known.
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
    """The kernel tells who listens before a byte goes there: in a directory for all, anybody may have taken the path."""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(PATIENCE_S)
        made.connect(path)
        pid, uid, _ = struct.unpack("iII", made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        made.close()
        raise
    if owner is not None and not owner.is_seen_in(pid, uid):
        made.close()
        raise Elsewhere(f"process {pid} listens there")
    return made


def tries(endpoint: Endpoint) -> tuple[bool, ...]:
    """With TLS or without, as it is tried: a socket is never encrypted, and whoever asked for TLS is not answered in plain."""
    if endpoint.path is not None:
        return (False,)
    return (True,) if endpoint.tls else (False, True)


def make_blocking(made: socket.socket) -> None:
    seconds = int(PATIENCE_S)
    waits = struct.pack("ll", seconds, int((PATIENCE_S - seconds) * 1e6))
    made.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        made.setsockopt(socket.SOL_SOCKET, option, waits)


_CONTEXT: list[ssl.SSLContext] = []


def any_certificate() -> ssl.SSLContext:
    """Draft once: reading a bundle for each connect is one of the things that are looked for here."""
    if not _CONTEXT:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        _CONTEXT.append(context)
    return _CONTEXT[0]


class Lines:
    """Answers of a protocol made of lines that end in CR LF, with counted bytes between them."""

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self._held = b""

    @classmethod
    def greeted(
        cls, endpoint: Endpoint, question: bytes, answers: tuple[bytes, ...], otherwise: str
    ) -> tuple[Lines, bytes]:
        """Dial, ask, and the answer, which begins with one of `answers`. Raises NotThis, with `otherwise` where it does not."""
        lines = cls(dial(endpoint))
        try:
            with contextlib.suppress(NotThis):  # one that has too many clients says so and closes, without reading
                lines.send(question)
            answer = lines.line()
            if not answer.startswith(answers):
                raise NotThis(otherwise)
        except NotThis:
            lines.close()
            raise
        return lines, answer

    def send(self, request: bytes) -> None:
        try:
            self.socket.sendall(request)
        except OSError as error:
            raise NotThis(f"sending failed: {error.strerror or error}") from error

    def line(self) -> bytes:
        while b"\r\n" not in self._held:
            self._more()
        line, _, self._held = self._held.partition(b"\r\n")
        return line

    def exactly(self, count: int) -> bytes:
        if count > MOST_BYTES:
            raise NotThis(f"an answer of {count} bytes")
        while len(self._held) < count + 2:
            self._more()
        taken, self._held = self._held[:count], self._held[count + 2 :]
        return taken

    def _more(self) -> None:
        try:
            got = self.socket.recv(65_536)
        except BlockingIOError as error:
            raise NotThis(f"no answer for {PATIENCE_S:g} s") from error
        except OSError as error:
            raise NotThis(error.strerror or str(error)) from error
        if not got:
            raise NotThis("it closed the connection")
        self._held += got
        if len(self._held) > MOST_BYTES:
            raise NotThis(f"an answer of more than {MOST_BYTES} bytes")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()
