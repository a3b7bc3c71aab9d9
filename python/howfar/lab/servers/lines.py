"""A session with a key-value store in Python, for what the laboratory asks of it: lines that end in CR LF, counted bytes between.

Never in a measured path; what is said over it is each protocol's own file.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from howfar.errors import LabError

MOST_BYTES = 16 * 2**20
"""Of one answer: a list of ten thousand sessions is 3 MB."""


class Lines:
    """One connection. All that goes wrong with it is a LabError."""

    def __init__(
        self, connection: Mapping[str, Any], patience_s: float, encrypted: ssl.SSLContext | None = None
    ) -> None:
        """`connection`: `socket`, or `host` and `port`. Raises LabError."""
        self._where = str(connection.get("socket") or f"{connection.get('host')}:{connection.get('port')}")
        self._held = b""
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
            raise LabError(f"{what} to {self._where} failed: {error}") from error
        self.socket = made

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tls(self) -> tuple[str | None, str | None]:
        """Version and cipher suite of this session; none when it is plain."""
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
        """So many bytes and the end of line after them."""
        if not 0 <= count <= MOST_BYTES:
            raise LabError(f"{self._where} announces an answer of {count} bytes")
        while len(self._held) < count + 2:
            self._more()
        taken, self._held = self._held[:count], self._held[count + 2 :]
        return taken.decode(errors="replace")

    def _more(self) -> None:
        try:
            got = self.socket.recv(65_536)
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
