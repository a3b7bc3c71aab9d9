"""Both ends of a link in one process, for the conformance suite: sockets on either host, datagrams with numbers and stamps.

One process and one clock: a way there is measured without a way back.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from howfar.lab.hosts import Host
from howfar.lab.link import Link
from howfar.lab.network import CLIENT_ADDRESS, SERVER_ADDRESS

_STAMP = struct.Struct("=QQ")
_TIMESPEC = struct.Struct("@ll")
_SO_TIMESTAMPNS = 35
"""The receiving kernel says when a packet came, on the wall clock: how long this program then took to wake up is not the link's."""
FRAME_BYTES = 28 + 38
"""What UDP over IPv4 over Ethernet has on the wire beside its payload."""
QUIET_S = 0.3
"""Nothing came for so long after what was sent last, and the longest delay: nothing will."""
PACE = 40
"""Datagrams sent without a pause, where the pace is of no matter: less than any socket's buffer."""


@dataclass
class Arrivals:
    """In the order in which they came."""

    numbers: list[int] = field(default_factory=list)
    one_way_ns: list[int] = field(default_factory=list)
    sent_at_ns: list[int] = field(default_factory=list)


def receive(sink: socket.socket, seen: Arrivals, ended: threading.Event) -> None:
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

    link: Link
    source: socket.socket
    seen: Arrivals
    ended: threading.Event
    receiver: threading.Thread

    def send(self, number: int, payload: int) -> None:
        self.source.send(_STAMP.pack(number, time.time_ns()).ljust(payload, b"\0"))

    def send_all(self, count: int, payload: int = 100, pace: int = PACE) -> None:
        """In lots, each awaited at the receiver's thread: no buffer but the link's can be full."""
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
def datagrams(link: Link) -> Iterator[Datagrams]:
    def bind() -> socket.socket:
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 2**20)
        sink.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sink.bind((SERVER_ADDRESS, 0))
        sink.settimeout(QUIET_S)
        return sink

    sink = link.network.server.within(bind)
    source = link.network.client.within(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 2**20)
    source.connect(sink.getsockname())
    seen, ended = Arrivals(), threading.Event()
    receiver = threading.Thread(target=receive, args=(sink, seen, ended))
    receiver.start()
    try:
        yield Datagrams(link, source, seen, ended, receiver)
    finally:
        ended.set()
        receiver.join()
        source.close()
        sink.close()


@contextmanager
def stream(link: Link) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection: the client's end and the server's."""
    listener = link.network.server.within(lambda: socket.create_server((SERVER_ADDRESS, 0)))
    address = listener.getsockname()

    def connect() -> socket.socket:
        client = socket.create_connection(address, timeout=20, source_address=(CLIENT_ADDRESS, 0))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    client = link.network.client.within(connect)
    server, _ = listener.accept()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.settimeout(20)
    try:
        yield client, server
    finally:
        for one in (client, server, listener):
            with contextlib.suppress(OSError):
                one.close()


def udp_errors(host: Host) -> dict[str, int]:
    """The counters of a host's UDP."""
    names, values = [
        line.split()[1:]
        for line in host.within(Path("/proc/thread-self/net/snmp").read_text).splitlines()
        if line.startswith("Udp:")
    ]
    return dict(zip(names, map(int, values), strict=True))
