"""What a host's kernel knows of the load's TCP connections: all of them asked at once through sock_diag, as `ss -ti` does.

Only the answer is fetched while the load runs; `parse` reads it afterwards. Not here: the engine's own look at its sockets.
"""

from __future__ import annotations

import socket
import statistics
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from howfar.lab.network import Host
from howfar.store.records import TcpRecord

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_INFO = 2
"""INET_DIAG_INFO: the attribute that holds `struct tcp_info`."""
_ESTABLISHED = 1 << 1
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_DIAG_BYTES = 72
"""Of `struct inet_diag_msg`, before the attributes."""
_COOKIE_AT = 44
_BUFFER = 1 << 18
_PATIENCE_S = 5.0

_RTT_US, _TOTAL_RETRANS, _BYTES_ACKED, _BYTES_RECEIVED = 68, 100, 120, 128
_SEGS_OUT, _SEGS_IN, _MIN_RTT_US, _BUSY_US, _RWND_LIMITED_US, _SNDBUF_LIMITED_US = 136, 140, 148, 168, 176, 184
"""Where fields of `struct tcp_info` lie. It only ever grows at its end."""
_NO_MIN_RTT = 2**32 - 1
_FRAME_HEADERS = 66


@dataclass(frozen=True)
class Connection:
    """Since it began. None: this kernel does not say."""

    rtt_ns: int
    min_rtt_ns: int | None
    retransmits: int
    segments_out: int | None
    segments_in: int | None
    bytes_acked: int | None
    bytes_received: int | None
    busy_ns: int | None
    rwnd_limited_ns: int | None
    sndbuf_limited_ns: int | None


Connections = Mapping[bytes, Connection]
"""By the kernel's cookie, which no other socket of this boot has."""


class Diag:
    """Asks one host about its established connections from or to `port`. Raises OSError where the kernel cannot be asked."""

    def __init__(self, host: Host, port: int, side: Literal["client", "server"]) -> None:
        source, destination = (port, 0) if side == "server" else (0, port)
        self._request = _request(source, destination)
        self._socket = host.within(
            lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        )
        self._socket.settimeout(_PATIENCE_S)

    def ask(self) -> tuple[bytes, ...]:
        """The messages of the answer. Raises OSError."""
        self._socket.send(self._request)
        answer = []
        while True:
            answer.append(self._socket.recv(_BUFFER))
            last = _last_kind(answer[-1])
            if last == _ERROR:
                raise OSError("the kernel does not tell about its TCP connections")
            if last == _DONE:
                return tuple(answer)

    def close(self) -> None:
        self._socket.close()


def _request(source: int, destination: int) -> bytes:
    """`struct inet_diag_req_v2` for IPv4, with ports in the order of the network; port 0 is any."""
    body = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
    body += struct.pack("!HH", source, destination) + bytes(32) + bytes(4) + b"\xff" * 8
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body


def _aligned(length: int) -> int:
    return length + 3 & ~3


def _last_kind(part: bytes) -> int:
    at, kind = 0, _DONE
    while at + _HEADER.size <= len(part):
        length, kind = _HEADER.unpack_from(part, at)[:2]
        at += max(_aligned(length), _HEADER.size)
    return kind


def parse(answer: tuple[bytes, ...]) -> dict[bytes, Connection]:
    """An answer of `Diag.ask`."""
    found = {}
    for part in answer:
        at = 0
        while at + _HEADER.size <= len(part):
            length, kind = _HEADER.unpack_from(part, at)[:2]
            if kind == _SOCK_DIAG_BY_FAMILY:
                message = part[at + _HEADER.size : at + length]
                info = _attribute(message[_DIAG_BYTES:], _INFO)
                if info is not None:
                    found[message[_COOKIE_AT : _COOKIE_AT + 8]] = connection(info)
            at += max(_aligned(length), _HEADER.size)
    return found


def _attribute(rest: bytes, wanted: int) -> bytes | None:
    at = 0
    while at + _ATTRIBUTE.size <= len(rest):
        length, kind = _ATTRIBUTE.unpack_from(rest, at)
        if kind == wanted:
            return rest[at + _ATTRIBUTE.size : at + length]
        at += max(_aligned(length), _ATTRIBUTE.size)
    return None


def connection(info: bytes) -> Connection:
    """`struct tcp_info`, as much of it as this kernel fills."""

    def number(at: int, form: Literal["=I", "=Q"], unit: int = 1) -> int | None:
        if at + struct.calcsize(form) > len(info):
            return None
        value: int = struct.unpack_from(form, info, at)[0]
        return value * unit

    min_rtt = number(_MIN_RTT_US, "=I")
    return Connection(
        rtt_ns=number(_RTT_US, "=I", 1000) or 0,
        min_rtt_ns=None if min_rtt in (None, _NO_MIN_RTT) else min_rtt * 1000,
        retransmits=number(_TOTAL_RETRANS, "=I") or 0,
        segments_out=number(_SEGS_OUT, "=I"),
        segments_in=number(_SEGS_IN, "=I"),
        bytes_acked=number(_BYTES_ACKED, "=Q"),
        bytes_received=number(_BYTES_RECEIVED, "=Q"),
        busy_ns=number(_BUSY_US, "=Q", 1000),
        rwnd_limited_ns=number(_RWND_LIMITED_US, "=Q", 1000),
        sndbuf_limited_ns=number(_SNDBUF_LIMITED_US, "=Q", 1000),
    )


_COUNTED = Literal[
    "retransmits", "segments_out", "segments_in", "bytes_acked", "bytes_received", "busy_ns", "rwnd_limited_ns",
    "sndbuf_limited_ns",
]  # fmt: skip


def _growth(before: Connections, after: Connections, name: _COUNTED) -> int | None:
    """Of all that are there at the end; one that was not there at the beginning began at zero."""
    total = 0
    for cookie, now in after.items():
        value, then = getattr(now, name), getattr(before.get(cookie), name, 0)
        if value is None or then is None:
            return None
        total += max(value - then, 0)
    return total


def record(host: Literal["client", "server"], before: Connections, after: Connections) -> TcpRecord | None:
    """None: no connection is there at the end."""
    if not after:
        return None
    least = [one.min_rtt_ns for one in after.values() if one.min_rtt_ns is not None]
    return TcpRecord(
        host=host,
        connections=len(after),
        rtt_p50_ns=round(statistics.median(one.rtt_ns for one in after.values())),
        min_rtt_ns=min(least, default=None),
        retransmits=_growth(before, after, "retransmits") or 0,
        segments_out=_growth(before, after, "segments_out"),
        busy_ns=_growth(before, after, "busy_ns"),
        rwnd_limited_ns=_growth(before, after, "rwnd_limited_ns"),
        sndbuf_limited_ns=_growth(before, after, "sndbuf_limited_ns"),
    )


def share_to_server(before: Connections, after: Connections) -> float | None:
    """Of all bytes with their headers, by the server's connections. None: nothing crossed, or this kernel does not say."""
    names: tuple[_COUNTED, ...] = ("bytes_received", "segments_in", "bytes_acked", "segments_out")
    grown = [_growth(before, after, name) for name in names]
    if None in grown:
        return None
    in_bytes, in_segments, out_bytes, out_segments = (value or 0 for value in grown)
    to_server, to_client = in_bytes + _FRAME_HEADERS * in_segments, out_bytes + _FRAME_HEADERS * out_segments
    return to_server / (to_server + to_client) if to_server + to_client else None
