"""The parts of Redis's RESP2 and of Memcached's text protocol that queries of a server's state need."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from howfar.clients.peer import MAX_BYTES, MAX_PARTS, PeerConnection, PeerError
from howfar.contract.messages import Target, UnixTarget
from howfar.errors import LabError
from howfar.lab.servers import describe_address


class ServerError(LabError):
    """A server answered with an error, whose text is `reply`."""

    def __init__(self, request: str, reply: str) -> None:
        super().__init__(f"the server answered {request!r} with {reply[:200]!r}")
        self.reply = reply


class LineConnection:
    """A connection whose protocol consists of lines that end in CR LF, and of counted bytes between them. Errors are LabErrors."""

    def __init__(self, peer: PeerConnection) -> None:
        self.peer = peer

    @classmethod
    def connect(cls, target: Target, timeout_s: float, tls_context: ssl.SSLContext | None = None) -> LineConnection:
        """Connect; `timeout_s` limits connecting and each answer. Raises LabError."""
        address = describe_address(target)
        sock: socket.socket | None = None
        try:
            if isinstance(target, UnixTarget):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(timeout_s)
                sock.connect(target.path)
            else:
                sock = socket.create_connection((target.host, target.port), timeout_s)
        except OSError as error:
            if sock is not None:
                sock.close()
            raise LabError(f"connecting to {address} failed: {error}") from error
        peer = PeerConnection(sock, address, timeout_s, timeout_s)
        try:
            if tls_context is not None:
                peer.encrypt(tls_context, "localhost" if isinstance(target, UnixTarget) else target.host)
        except PeerError as error:
            peer.close()
            raise LabError(f"connecting with TLS to {address} failed: {error}") from error
        return cls(peer)

    def __enter__(self) -> LineConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tls(self) -> tuple[str | None, str | None]:
        """TLS version and cipher suite of this session; None for both if it is not encrypted."""
        if not isinstance(self.peer.socket, ssl.SSLSocket):
            return None, None
        cipher = self.peer.socket.cipher()
        return self.peer.socket.version(), cipher[0] if cipher else None

    def send(self, request: bytes) -> None:
        """Send a request, and begin a new answer."""
        self.peer.begin_answer()
        self.peer.sendall(request)

    def read_line(self) -> str:
        """Read a line; returns it without its end. Raises LabError."""
        return self.peer.read_line().decode(errors="replace")

    def read_exactly(self, count: int) -> str:
        """Read `count` bytes, which CR LF must follow; returns the bytes as text. Raises ValueError, LabError."""
        text = self.peer.read(count, MAX_BYTES).decode(errors="replace")
        if self.peer.read(2) != b"\r\n":
            raise ValueError("the text is longer than was announced")
        return text

    def close(self) -> None:
        self.peer.close()


def send_command(connection: LineConnection, *arguments: str) -> Any:
    """Send a command in RESP; returns the answer. Raises ServerError with the server's error, LabError."""
    encoded = [word.encode() for word in arguments]
    connection.send(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded))
    try:
        line = connection.read_line()
        if line.startswith("-"):
            raise ServerError(arguments[0], line[1:])
        return _parse_answer(connection, line)
    except (ValueError, RecursionError) as error:
        raise LabError(f"the server's answer to {arguments[0]} is not RESP") from error


def _parse_answer(connection: LineConnection, line: str) -> Any:
    """Parse the answer that begins with this line. Raises ValueError, RecursionError, LabError."""
    kind, rest = line[:1], line[1:]
    match kind:
        case "+":
            return rest
        case ":":
            return int(rest)
        case "$":
            return None if rest == "-1" else connection.read_exactly(int(rest))
        case "*":
            return [_parse_answer(connection, connection.read_line()) for _ in range(max(int(rest), 0))]
    raise ValueError(line[:200])


def split_parts(text: str, delimiter: str) -> list[str]:
    """Split a text. Raises LabError if it has more parts than an answer may have."""
    parts = text.split(delimiter, MAX_PARTS)
    if len(parts) > MAX_PARTS:
        raise LabError(f"the server sent an answer of more than {MAX_PARTS:,} parts")
    return parts


def parse_pairs(text: str, delimiter: str, equals: str) -> dict[str, str]:
    """Parse names and values from a text such as `a=1 b=2`, in which `delimiter` is the space and `equals` is `=`. Raises LabError."""
    words = (word.partition(equals) for word in split_parts(text, delimiter))
    return {name.strip(): value for name, separator, value in words if separator}


_ERROR_REPLIES = ("ERROR", "CLIENT_ERROR", "SERVER_ERROR")


def query_stats(connection: LineConnection, section: str = "") -> dict[str, str]:
    """Query Memcached's statistics; returns them by name. Raises ServerError, LabError."""
    request = f"stats {section}".strip()
    connection.send(request.encode() + b"\r\n")
    statistics: dict[str, str] = {}
    while (line := connection.read_line()) != "END":
        kind, _, rest = line.partition(" ")
        name, _, value = rest.partition(" ")
        if kind in _ERROR_REPLIES:
            raise ServerError(request, line)
        if kind != "STAT" or not name:
            raise LabError(f"the server's answer to {request!r} is not Memcached's")
        statistics[name] = value
    return statistics
