"""Datagrams with numbers and stamps from one host to the other: what crossed a link, in which order, and how long each took.

One process holds both ends and there is one clock: a way there is measured without a way back. The bench of the link judges loss and
jitter by it, and the conformance suite all that is random.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from howfar.lab.hosts import Host
from howfar.lab.network import SERVER_ADDRESS

_STAMP: Final = struct.Struct("=QQ")
_TIMESPEC: Final = struct.Struct("@ll")
_SO_TIMESTAMPNS: Final = 35
"""The receiving kernel says when a packet came, on the wall clock: how long this program then took to wake up is not the link's."""
QUIET_S: Final = 0.3
"""Nothing came for so long after what was sent last, and the longest delay: nothing will."""
PACE: Final = 40
"""Datagrams sent without a pause, where the pace is of no matter: less than any socket's buffer."""
_BUFFER_BYTES: Final = 4 * 2**20


@dataclass
class Arrivals:
    """In the order in which they came."""

    numbers: list[int] = field(default_factory=list)
    one_way_ns: list[int] = field(default_factory=list)
    sent_at_ns: list[int] = field(default_factory=list)


def _receive(sink: socket.socket, seen: Arrivals, ended: threading.Event) -> None:
    while True:
        try:
            data, notes, _, _ = sink.recvmsg(65536, 64)
        except TimeoutError:
            if ended.is_set():
                return
            continue
        seconds, ns = _TIMESPEC.unpack(notes[0][2])
        now_ns = seconds * 10**9 + ns
        number, sent_ns = _STAMP.unpack_from(data)
        seen.numbers.append(number)
        seen.sent_at_ns.append(sent_ns)
        seen.one_way_ns.append(now_ns - sent_ns)


@dataclass
class Datagrams:
    """From the client to the server."""

    source: socket.socket
    seen: Arrivals
    ended: threading.Event
    receiver: threading.Thread

    def send(self, number: int, payload: int) -> None:
        self.source.send(_STAMP.pack(number, time.time_ns()).ljust(payload, b"\0"))

    def send_all(self, count: int, payload: int = 100, pace: int = PACE) -> None:
        """In lots, with a pause after each in which the receiver's thread can follow: no buffer but the link's can be full."""
        for number in range(count):
            self.send(number, payload)
            if number % pace == pace - 1:
                time.sleep(0.001)

    def finish(self, longest_delay_s: float) -> Arrivals:
        time.sleep(longest_delay_s)
        self.ended.set()
        self.receiver.join()
        return self.seen


@contextmanager
def datagrams(client: Host, server: Host) -> Iterator[Datagrams]:
    """Sockets of either host, and a thread that receives. Raises OSError."""

    def bind() -> socket.socket:
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        sink.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sink.bind((SERVER_ADDRESS, 0))
        sink.settimeout(QUIET_S)
        return sink

    sink = server.within(bind)
    source = client.within(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    source.connect(sink.getsockname())
    seen, ended = Arrivals(), threading.Event()
    receiver = threading.Thread(target=_receive, args=(sink, seen, ended))
    receiver.start()
    try:
        yield Datagrams(source, seen, ended, receiver)
    finally:
        ended.set()
        receiver.join()
        source.close()
        sink.close()


def udp_errors(host: Host) -> dict[str, int]:
    """The counters of a host's UDP."""
    names, values = [
        line.split()[1:]
        for line in host.within(Path("/proc/thread-self/net/snmp").read_text).splitlines()
        if line.startswith("Udp:")
    ]
    return dict(zip(names, map(int, values), strict=True))
