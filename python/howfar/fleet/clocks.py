"""The offset of another host's clocks from ours, with a bound: they were read after a ping was sent and before its answer arrived."""

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
PINGS = 30
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Offset:
    """Their clock minus ours, accurate to plus or minus `bound_ns`."""

    offset_ns: int
    bound_ns: int

    @property
    def is_seen(self) -> bool:
        """Whether the clocks are known to differ."""
        return abs(self.offset_ns) > self.bound_ns


@dataclass(frozen=True)
class Clocks:
    """The offsets of one host's clocks."""

    monotonic: Offset
    """Used to schedule a common start; unlike the wall clock, it is never stepped."""
    unix: Offset
    """The wall clock, for logs."""


def best(pings: list[tuple[int, int, int]]) -> Offset:
    """Return the offset from the fastest ping, given as (sent, theirs, received)."""
    sent, theirs, received = min(pings, key=lambda ping: ping[2] - ping[0])
    return Offset(theirs - (sent + received) // 2, (received - sent + 1) // 2)


class ClockServer:
    """Answers each byte with both clocks of its host, until it is closed."""

    def __init__(self, address: str, port: int = 0) -> None:
        self._listening = socket.create_server((address, port))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, name="clock", daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                asking, _ = self._listening.accept()
                threading.Thread(target=self._answer, args=(asking,), daemon=True).start()

    def _answer(self, asking: socket.socket) -> None:
        with asking, contextlib.suppress(OSError):
            asking.settimeout(_PATIENCE_S)
            asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while asking.recv(1):
                asking.sendall(_ANSWER.pack(time.monotonic_ns(), time.time_ns()))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # it wakes the thread that accepts; closing alone does not
        self._listening.close()


def read_clocks(
    address: str,
    port: int,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
    unix_ns: Callable[[], int] = time.time_ns,
) -> Clocks:
    """Read the clocks of a `ClockServer`. Raises LabError."""
    monotonic, unix = [], []
    try:
        with socket.create_connection((address, port), _PATIENCE_S) as asked:
            asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(PINGS):
                sent, sent_unix = monotonic_ns(), unix_ns()
                asked.sendall(b"?")
                answer = b""
                while len(answer) < _ANSWER.size:
                    more = asked.recv(_ANSWER.size - len(answer))
                    if not more:
                        raise LabError(f"the clock at {address} port {port} ended the connection")
                    answer += more
                received, received_unix = monotonic_ns(), unix_ns()
                theirs, theirs_unix = _ANSWER.unpack(answer)
                monotonic.append((sent, theirs, received))
                unix.append((sent_unix, theirs_unix, received_unix))
    except OSError as error:
        raise LabError(f"the clock at {address} port {port} cannot be asked: {error}", "Is that port open?") from error
    return Clocks(best(monotonic), best(unix))
