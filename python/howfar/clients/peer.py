"""A connection to an untrusted server, with limits on the bytes, time and parts of each answer.

Client libraries get a `PeerConnection` instead of a socket; our own parsers read from it too. An exceeded limit, a broken connection
and unsolicited bytes all raise PeerError, which no library catches.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

from howfar.errors import LabError

MAX_BYTES = 8 << 20
"""Maximum size of an answer; a list of ten thousand sessions has 3 MB."""
MAX_PART_BYTES = 1 << 20
"""Maximum size of one part of an answer. Decoded to text, a part takes up to four times as much memory, and is copied several
times."""
MAX_LINE_BYTES = 1 << 16
MAX_PARTS = 1 << 16
"""Maximum number of parts of an answer. One read is one part: a packet's header or body, or a line."""
MAX_VALUES = 1 << 19
"""Maximum number of values in the rows of an answer. A short value takes 20 times as many bytes in memory as on the wire."""
ANSWER_TIMEOUT_S = 4.0
"""Time allowed for a complete answer, and for a login."""
SILENCE_TIMEOUT_S = 2.0
"""Maximum time between two receptions of bytes of an answer."""
_CHUNK_BYTES = 1 << 16


class PeerError(LabError):
    """A fault of the peer: it sent too much or too little, took too long, or closed the connection."""


class PeerConnection:
    """One connection. All reads count towards the limits of the current answer; `begin_answer` begins the next one."""

    def __init__(
        self,
        sock: socket.socket,
        name: str = "it",
        answer_timeout_s: float | None = None,
        silence_timeout_s: float | None = None,
    ) -> None:
        """`name`: the peer's name in messages. The time limits default to ANSWER_TIMEOUT_S and SILENCE_TIMEOUT_S."""
        self.socket = sock
        self._name = name
        self._answer_timeout_s = ANSWER_TIMEOUT_S if answer_timeout_s is None else answer_timeout_s
        self._silence_timeout_s = SILENCE_TIMEOUT_S if silence_timeout_s is None else silence_timeout_s
        self._buffer = bytearray()
        make_blocking(sock, self._silence_timeout_s)
        self._is_blocking = True
        self.begin_answer()

    def begin_answer(self) -> None:
        """Begin a new answer, with new limits. Raises PeerError if there are unread bytes of the previous one."""
        if self._buffer:
            raise PeerError(f"{self._name} sent more than was asked for")
        self._bytes_left, self._parts_left, self._values_left = MAX_BYTES, MAX_PARTS, MAX_VALUES
        self._deadline = time.monotonic() + self._answer_timeout_s

    def count_values(self, count: int) -> None:
        """Add `count` values to those of the answer. Raises PeerError if there are too many."""
        self._values_left -= count
        if self._values_left < 0:
            raise PeerError(f"{self._name} sent an answer of more than {MAX_VALUES:,} values")

    # ------------------------------------------------------------ reading

    def read(self, size: int = -1, max_size: int = MAX_PART_BYTES) -> bytes:
        """Read exactly `size` bytes, at most `max_size`. Raises PeerError."""
        self._begin_part()
        if size > max_size:
            raise PeerError(f"{self._name} announced more than {max_size:,} bytes in one part")
        self._fill(size)
        return self._take(size)

    def read_line(self) -> bytes:
        """Read a line; returns it without its CR LF. Raises PeerError."""
        self._begin_part()
        searched = 0
        while (end := self._buffer.find(b"\r\n", searched)) < 0:
            searched = max(len(self._buffer) - 1, 0)
            if searched >= MAX_LINE_BYTES:
                raise PeerError(f"{self._name} sent a line of more than {MAX_LINE_BYTES:,} bytes")
            self._receive()
        line = self._take(end)
        del self._buffer[:2]
        return line

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, without consuming them. Raises PeerError."""
        self._fill(size)
        return bytes(self._buffer[:size])

    def _begin_part(self) -> None:
        self._parts_left -= 1
        if self._parts_left < 0:
            raise PeerError(f"{self._name} sent an answer of more than {MAX_PARTS:,} parts")

    def _take(self, size: int) -> bytes:
        with memoryview(self._buffer) as buffer:
            first_bytes = bytes(buffer[:size])
        del self._buffer[:size]
        return first_bytes

    def _fill(self, size: int) -> None:
        if not 0 <= size <= len(self._buffer) + self._bytes_left:
            raise self._too_long_error()
        while len(self._buffer) < size:
            self._receive()

    def _too_long_error(self) -> PeerError:
        return PeerError(f"{self._name} sent, or announced, an answer of more than {MAX_BYTES:,} bytes")

    def _receive(self) -> None:
        """Receive more bytes of the answer into the buffer. Raises PeerError."""
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            raise PeerError(f"{self._name} took longer than {self._answer_timeout_s:g} s for an answer")
        if not self._bytes_left:
            raise self._too_long_error()
        if remaining_s < self._silence_timeout_s or isinstance(self.socket, ssl.SSLSocket):
            # With TLS the kernel's timeout would apply to each read of a part of a record; Python's applies to the complete record.
            self._set_timeout(min(remaining_s, self._silence_timeout_s))
        try:
            received = self.socket.recv(min(_CHUNK_BYTES, self._bytes_left))
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError) as error:
            raise PeerError(
                f"{self._name} did not answer within {min(remaining_s, self._silence_timeout_s):.2g} s"
            ) from error
        except OSError as error:
            raise PeerError(f"{self._name} did not answer: {error.strerror or error}") from error
        if not received:
            raise PeerError(f"{self._name} closed the connection")
        self._bytes_left -= len(received)
        self._buffer += received

    def _set_timeout(self, seconds: float) -> None:
        self.socket.settimeout(seconds)
        self._is_blocking = False

    # ------------------------------------------------------------ sending

    def sendall(self, data: bytes) -> None:
        """Send all bytes. Raises PeerError if that fails, unless the peer has sent something, such as an error message, which the
        caller can still read."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            with contextlib.suppress(PeerError):
                self._receive()
                return
            raise PeerError(f"{self._name} did not take a request: {error.strerror or error}") from error

    def exchange(self, request: bytes, max_bytes: int = 512) -> bytes:
        """Send once and receive once, for a ping. Only the kernel's timeout applies, because Python's would add a system call; use
        `shut_down_after` to limit a series of pings. Raises OSError."""
        if not self._is_blocking:
            self.socket.settimeout(None)
            self._is_blocking = True
        self.socket.sendall(request)
        return self.socket.recv(max_bytes)

    @contextlib.contextmanager
    def shut_down_after(self, seconds: float) -> Iterator[None]:
        """Shut the connection down if the block takes longer than `seconds`, which ends every wait for the peer, also with TLS."""
        timer = threading.Timer(max(seconds, 0), self._shut_down)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            # TLS's own shutdown would wait for the peer.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def encrypt(self, context: ssl.SSLContext, server_hostname: str | None) -> None:
        """Switch the connection to TLS. Raises PeerError."""
        if self._buffer:
            raise PeerError(f"{self._name} sent more than was asked for")
        self._set_timeout(max(min(self._deadline - time.monotonic(), self._silence_timeout_s), 0.001))
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname=server_hostname)
        except OSError as error:
            raise PeerError(f"no TLS: {error.strerror or error}") from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()

    # ------------------------------------------------------------ methods of sockets and socket files that client libraries call

    def makefile(self, mode: str) -> PeerConnection:
        return self

    def write(self, data: bytes) -> None:
        self.sendall(data)

    def flush(self) -> None:
        """Do nothing: sent data is not buffered."""

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: an answer's own limits apply, whatever timeout a library sets."""


def make_blocking(sock: socket.socket, timeout_s: float = SILENCE_TIMEOUT_S) -> None:
    """Make a socket blocking, with the kernel's timeouts; Python's own timeout would add a system call to each operation."""
    seconds = int(timeout_s)
    timeout = struct.pack("ll", seconds, int((timeout_s - seconds) * 1e6))
    sock.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, timeout)
