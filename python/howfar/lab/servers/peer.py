"""A connection to an untrusted server: each of its answers is limited in bytes, time and parts.

Client libraries get a `Peer` instead of a socket; our own parsers read from it too. An exceeded limit, a broken connection and
unsolicited bytes all raise PeerError, which no library catches.
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

MOST_BYTES = 8 << 20
"""Longest answer: a list of ten thousand sessions is 3 MB."""
LONGEST_PART = 1 << 20
"""Longest part of an answer: decoded as text it takes up to four times its bytes, and it is copied several times while being read."""
LONGEST_LINE = 1 << 16
MOST_PARTS = 1 << 16
"""Maximum number of an answer's parts, each read separately: packet headers and bodies, lines."""
MOST_VALUES = 1 << 19
"""Maximum number of values in an answer's rows: a short one takes 20 times as much memory as on the wire."""
ANSWER_S = 4.0
"""Time allowed for a complete answer, and for a login."""
SILENCE_S = 2.0
"""Time allowed until the next bytes of an answer."""
_CHUNK = 1 << 16


class PeerError(LabError):
    """A fault of the peer: it sent too much or too little, took too long, or closed the connection."""


class Peer:
    """One connection. All reading counts towards the limits of one answer, until `expect` begins the next."""

    def __init__(
        self, made: socket.socket, name: str = "it", answer_s: float | None = None, silence_s: float | None = None
    ) -> None:
        """`name`: the peer's name in messages. The times default to ANSWER_S and SILENCE_S."""
        self.socket = made
        self._name = name
        self._answer_s = ANSWER_S if answer_s is None else answer_s
        self._silence_s = SILENCE_S if silence_s is None else silence_s
        self._held = bytearray()
        make_blocking(made, self._silence_s)
        self._blocks = True
        self.expect()

    def expect(self) -> None:
        """Begin a new answer, with new limits. Raises PeerError if unread bytes are left."""
        if self._held:
            raise PeerError(f"{self._name} sent more than was asked for")
        self._bytes, self._parts, self._values = MOST_BYTES, MOST_PARTS, MOST_VALUES
        self._until = time.monotonic() + self._answer_s

    def took(self, values: int) -> None:
        """Count values of the answer. Raises PeerError."""
        self._values -= values
        if self._values < 0:
            raise PeerError(f"{self._name} sent an answer of more than {MOST_VALUES:,} values")

    # ------------------------------------------------------------ reading

    def read(self, size: int = -1, longest: int = LONGEST_PART) -> bytes:
        """Read exactly `size` bytes, at most `longest`. Raises PeerError."""
        self._begin_part()
        if size > longest:
            raise PeerError(f"{self._name} announced more than {longest:,} bytes in one part")
        self._fill(size)
        return self._take(size)

    def line(self) -> bytes:
        """Read a line; returns it without its CR LF. Raises PeerError."""
        self._begin_part()
        searched = 0
        while (end := self._held.find(b"\r\n", searched)) < 0:
            searched = max(len(self._held) - 1, 0)
            if searched >= LONGEST_LINE:
                raise PeerError(f"{self._name} sent a line of more than {LONGEST_LINE:,} bytes")
            self._receive()
        line = self._take(end)
        del self._held[:2]
        return line

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, without consuming them. Raises PeerError."""
        self._fill(size)
        return bytes(self._held[:size])

    def _begin_part(self) -> None:
        self._parts -= 1
        if self._parts < 0:
            raise PeerError(f"{self._name} sent an answer of more than {MOST_PARTS:,} parts")

    def _take(self, size: int) -> bytes:
        with memoryview(self._held) as held:
            taken = bytes(held[:size])
        del self._held[:size]
        return taken

    def _fill(self, size: int) -> None:
        if not 0 <= size <= len(self._held) + self._bytes:
            raise self._too_long()
        while len(self._held) < size:
            self._receive()

    def _too_long(self) -> PeerError:
        return PeerError(f"{self._name} sent, or announced, an answer of more than {MOST_BYTES:,} bytes")

    def _receive(self) -> None:
        """Receive more bytes of the answer into the buffer. Raises PeerError."""
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise PeerError(f"{self._name} took longer than {self._answer_s:g} s for an answer")
        if not self._bytes:
            raise self._too_long()
        if left_s < self._silence_s or isinstance(self.socket, ssl.SSLSocket):
            # With TLS the kernel's timeout would apply to each read of a record, Python's applies to the complete record.
            self._limit(min(left_s, self._silence_s))
        try:
            got = self.socket.recv(min(_CHUNK, self._bytes))
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError) as error:
            raise PeerError(f"{self._name} did not answer within {min(left_s, self._silence_s):.2g} s") from error
        except OSError as error:
            raise PeerError(f"{self._name} did not answer: {error.strerror or error}") from error
        if not got:
            raise PeerError(f"{self._name} closed the connection")
        self._bytes -= len(got)
        self._held += got

    def _limit(self, seconds: float) -> None:
        self.socket.settimeout(seconds)
        self._blocks = False

    # ------------------------------------------------------------ sending

    def sendall(self, data: bytes) -> None:
        """Send. Raises PeerError, unless the peer sent something before it closed, which can then be read."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            with contextlib.suppress(PeerError):
                self._receive()
                return
            raise PeerError(f"{self._name} did not take a request: {error.strerror or error}") from error

    def exchange(self, request: bytes, at_most: int = 512) -> bytes:
        """Send once and receive once, as a ping. Only the kernel's timeout applies here, because Python's would add a system call;
        `ends_within` limits many pings together. Raises OSError."""
        if not self._blocks:
            self.socket.settimeout(None)
            self._blocks = True
        self.socket.sendall(request)
        return self.socket.recv(at_most)

    @contextlib.contextmanager
    def ends_within(self, seconds: float) -> Iterator[None]:
        """Shut the connection down once the block has taken `seconds`: this ends every wait for the peer, with TLS too."""
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
            # Not TLS's own shutdown, which would wait for the peer.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def encrypt(self, context: ssl.SSLContext, server_hostname: str | None) -> None:
        """Switch the connection to TLS. Raises PeerError."""
        if self._held:
            raise PeerError(f"{self._name} sent more than was asked for")
        self._limit(max(min(self._until - time.monotonic(), self._silence_s), 0.001))
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname=server_hostname)
        except OSError as error:
            raise PeerError(f"no TLS: {error.strerror or error}") from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()

    # ------------------------------------------------------------ the methods of a socket and its file that client libraries use

    def makefile(self, mode: str) -> Peer:
        return self

    def write(self, data: bytes) -> None:
        self.sendall(data)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: an answer's own limits apply, whatever timeout a library sets."""


def make_blocking(made: socket.socket, silence_s: float = SILENCE_S) -> None:
    """Set the kernel's timeouts on a socket: Python's own would add a system call to each operation."""
    seconds = int(silence_s)
    timeout = struct.pack("ll", seconds, int((silence_s - seconds) * 1e6))
    made.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        made.setsockopt(socket.SOL_SOCKET, option, timeout)
