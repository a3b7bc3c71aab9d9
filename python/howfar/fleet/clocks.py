"""Measures the offset of another host's clocks from those of this one. The other host reads its clock between the sending of a ping
and the receipt of its answer, which bounds the error."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from howfar.errors import LabError

_ANSWER = struct.Struct("!qq")
PING_COUNT = 30
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Offset:
    """The other host's clock minus this one's, accurate to plus or minus `bound_ns`."""

    offset_ns: int
    bound_ns: int

    @property
    def is_significant(self) -> bool:
        """Whether the clocks are known to differ."""
        return abs(self.offset_ns) > self.bound_ns


@dataclass(frozen=True)
class Clocks:
    """The offsets of one host's clocks."""

    monotonic: Offset
    """The offset of the monotonic clock, by which a common start is scheduled: unlike the wall clock, it is never set."""
    unix: Offset
    """The offset of the wall clock, for logs."""


def choose_best_offset(pings: list[tuple[int, int, int]]) -> Offset:
    """Return the offset from the fastest ping, given as (sent, remote clock, received)."""
    sent_ns, remote_ns, received_ns = min(pings, key=lambda ping: ping[2] - ping[0])
    return Offset(remote_ns - (sent_ns + received_ns) // 2, (received_ns - sent_ns + 1) // 2)


class ClockServer:
    """Answers each byte with both clocks of its host, until it is closed."""

    def __init__(self, address: str, port: int = 0) -> None:
        self._listener = socket.create_server((address, port))
        self.port: int = self._listener.getsockname()[1]
        self.facts = self.port
        threading.Thread(target=self._serve, name="clock", daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(_TIMEOUT_S)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while client.recv(1):
                client.sendall(_ANSWER.pack(time.monotonic_ns(), time.time_ns()))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, which closing alone does not
        self._listener.close()


def read_clocks(
    address: str,
    port: int,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
    unix_ns: Callable[[], int] = time.time_ns,
) -> Clocks:
    """Read the clocks of a `ClockServer`. Raises LabError."""
    monotonic, unix = [], []
    try:
        with socket.create_connection((address, port), _TIMEOUT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(PING_COUNT):
                sent_ns, sent_unix_ns = monotonic_ns(), unix_ns()
                connection.sendall(b"?")
                answer = b""
                while len(answer) < _ANSWER.size:
                    chunk = connection.recv(_ANSWER.size - len(answer))
                    if not chunk:
                        raise LabError(f"the clock at {address} port {port} ended the connection")
                    answer += chunk
                received_ns, received_unix_ns = monotonic_ns(), unix_ns()
                remote_ns, remote_unix_ns = _ANSWER.unpack(answer)
                monotonic.append((sent_ns, remote_ns, received_ns))
                unix.append((sent_unix_ns, remote_unix_ns, received_unix_ns))
    except OSError as error:
        raise LabError(f"the clock at {address} port {port} cannot be read: {error}", "Is that port open?") from error
    return Clocks(choose_best_offset(monotonic), choose_best_offset(unix))
