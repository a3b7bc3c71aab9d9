"""Redis's RESP2 and Memcached's text protocol, as much of them as examining a server takes. Every answer is bounded."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from howfar.errors import LabError

MOST_BYTES = 16 * 2**20
"""Longest answer: a list of ten thousand sessions is 3 MB."""


class ServerError(LabError):
    """The server answered with an error, `reply`."""

    def __init__(self, request: str, reply: str) -> None:
        super().__init__(f"the server answered {request!r} with {reply[:200]!r}")
        self.reply = reply


class Lines:
    """One connection: lines that end in CR LF, with counted bytes between them. All its errors are LabErrors."""

    def __init__(self, made: socket.socket, where: str) -> None:
        self.socket, self._where, self._held = made, where, b""

    @classmethod
    def connect(
        cls, connection: Mapping[str, Any], patience_s: float, encrypted: ssl.SSLContext | None = None
    ) -> Lines:
        """Connect. `connection`: `socket`, or `host` and `port`. Raises LabError."""
        where = str(connection.get("socket") or f"{connection.get('host')}:{connection.get('port')}")
        made: socket.socket | None = None
        try:
            if "socket" in connection:
                made = socket.socket(socket.AF_UNIX)
                made.settimeout(patience_s)
                made.connect(str(connection["socket"]))
            else:
                made = socket.create_connection((connection["host"], connection["port"]), patience_s)
            if encrypted is not None:
                made = encrypted.wrap_socket(made, server_hostname=str(connection.get("host", "localhost")))
        except OSError as error:
            if made is not None:
                made.close()
            what = "connecting" if encrypted is None else "connecting with TLS"
            raise LabError(f"{what} to {where} failed: {error}") from error
        return cls(made, where)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tls(self) -> tuple[str | None, str | None]:
        """TLS version and cipher suite of this session; None when it is plain."""
        if not isinstance(self.socket, ssl.SSLSocket):
            return None, None
        cipher = self.socket.cipher()
        return self.socket.version(), cipher[0] if cipher else None

    def send(self, request: bytes) -> None:
        try:
            self.socket.sendall(request)
        except OSError as error:
            raise LabError(f"sending to {self._where} failed: {error}") from error

    def line(self) -> str:
        while b"\r\n" not in self._held:
            self._more()
        line, _, self._held = self._held.partition(b"\r\n")
        return line.decode(errors="replace")

    def exactly(self, count: int) -> str:
        """This many bytes, and the end of line after them."""
        if not 0 <= count <= MOST_BYTES:
            raise LabError(f"{self._where} announces an answer of {count} bytes")
        while len(self._held) < count + 2:
            self._more()
        taken, self._held = self._held[:count], self._held[count + 2 :]
        return taken.decode(errors="replace")

    def _more(self) -> None:
        try:
            got = self.socket.recv(65_536)
        except (BlockingIOError, TimeoutError) as error:
            raise LabError(f"{self._where} did not answer in time") from error
        except OSError as error:
            raise LabError(f"{self._where} did not answer: {error}") from error
        if not got:
            raise LabError(f"{self._where} closed the connection")
        self._held += got
        if len(self._held) > MOST_BYTES:
            raise LabError(f"{self._where} gives an answer of more than {MOST_BYTES} bytes")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


def ask(lines: Lines, *arguments: str) -> Any:
    """The answer to a request in RESP. Raises ServerError with the server's error, LabError."""
    encoded = [word.encode() for word in arguments]
    lines.send(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded))
    try:
        return _answer(lines, arguments[0])
    except (ValueError, RecursionError) as error:
        raise LabError(f"the server's answer to {arguments[0]} is not RESP") from error


def _answer(lines: Lines, request: str) -> Any:
    line = lines.line()
    kind, rest = line[:1], line[1:]
    match kind:
        case "-":
            raise ServerError(request, rest)
        case "+":
            return rest
        case ":":
            return int(rest)
        case "$":
            return None if rest == "-1" else lines.exactly(int(rest))
        case "*":
            return [_answer(lines, request) for _ in range(max(int(rest), 0))]
    raise ValueError(line[:200])


def pairs(text: str, between: str, middle: str) -> dict[str, str]:
    """Names and values of a text like `a=1 b=2`, as in INFO and CLIENT LIST, with their separators."""
    split = (word.partition(middle) for word in text.split(between))
    return {name.strip(): value for name, separator, value in split if separator}


def stats(lines: Lines, about: str = "") -> dict[str, str]:
    """Memcached's statistics. Raises ServerError, LabError."""
    request = f"stats {about}".strip()
    lines.send(request.encode() + b"\r\n")
    found: dict[str, str] = {}
    while (line := lines.line()) != "END":
        kind, _, rest = line.partition(" ")
        name, _, value = rest.partition(" ")
        if kind != "STAT" or not name:
            raise ServerError(request, line)
        found[name] = value
    return found
