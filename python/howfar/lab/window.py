"""Samples hosts, link and server during the measured window, in a separate thread, and returns the samples as a `Window`.

The thread reads open files four times a second and parses their contents only at the end, so that it hardly disturbs the measurement.
Values that cannot be read are omitted; a watch never makes a trial fail.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from howfar.errors import HowfarError
from howfar.lab.environment import CpuTicks, busy_cpus, cpu_ticks
from howfar.lab.link import Link
from howfar.lab.network import Host
from howfar.lab.servers import GAUGES
from howfar.lab.window_network import HostFiles, InterfaceKind, NetworkReading, ProcFile, network_samples
from howfar.store.records import TcpRecord, Window

_CPU_FIELD = 36
"""Index of the CPU on which a thread last ran, among the fields that follow the name in its `stat`."""


def busy_shares(before: bytes, after: bytes, elapsed_s: float, ticks_per_s: int) -> dict[int, float]:
    """Share of the time between two readings of /proc/stat during which each CPU was busy."""
    ticks_before, ticks_after = _ticks_by_cpu(before), _ticks_by_cpu(after)
    shares = {
        cpu: busy_cpus(ticks_before[cpu], ticks, elapsed_s, ticks_per_s, 1)
        for cpu, ticks in ticks_after.items()
        if cpu in ticks_before
    }
    return {cpu: share for cpu, share in shares.items() if share is not None}


def _ticks_by_cpu(stat: bytes) -> dict[int, CpuTicks]:
    ticks_by_cpu = {}
    for line in stat.decode().splitlines():
        name = line.partition(" ")[0]
        ticks = cpu_ticks(line)
        if name[:3] == "cpu" and name[3:].isdigit() and ticks is not None:
            ticks_by_cpu[int(name[3:])] = ticks
    return ticks_by_cpu


def last_cpu(stat: bytes) -> int:
    """The CPU on which a thread last ran, from its /proc/…/stat. The thread's name in it may contain any characters, also
    parentheses."""
    return int(stat.rpartition(b")")[2].split()[_CPU_FIELD])


class ThreadClocks:
    """Measures the CPU time of a process's threads, by CPU. The time between two samples counts for the CPU on which the thread is at
    the second sample. Measures nothing if `pid` is None."""

    def __init__(self, pid: int | None) -> None:
        self._files: list[tuple[ProcFile, ProcFile]] = []
        self._last_ns: list[int] = []
        self._used_ns: Counter[int] = Counter()
        if pid is None:
            return
        for task in Path(f"/proc/{pid}/task").iterdir():
            self._files.append((ProcFile(task / "schedstat"), ProcFile(task / "stat")))
            self._last_ns.append(self._cpu_ns(len(self._last_ns)))

    def _cpu_ns(self, index: int) -> int:
        return int(self._files[index][0].read().split()[0])

    def sample(self) -> None:
        """Add the CPU time of each thread since the previous sample to the CPU where the thread is now."""
        for index, (_, stat) in enumerate(self._files):
            with suppress(OSError):  # the thread has ended
                cpu_ns = self._cpu_ns(index)
                self._used_ns[last_cpu(stat.read())] += max(cpu_ns - self._last_ns[index], 0)
                self._last_ns[index] = cpu_ns

    def cpu_ns_by_cpu(self) -> Mapping[int, int]:
        return dict(sorted(self._used_ns.items()))

    def close(self) -> None:
        for files in self._files:
            for file in files:
                file.close()


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_NLMSG_DONE, _NLMSG_ERROR = 3, 2
_INET_DIAG_INFO = 2
"""INET_DIAG_INFO: the attribute that holds `struct tcp_info`."""
_ESTABLISHED = 1 << 1
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_DIAG_MESSAGE_BYTES = 72
"""Size of `struct inet_diag_msg`, which the attributes follow."""
_COOKIE_OFFSET = 44
_PEER_OFFSET, _LOOPBACK = 24, 127
"""Offset of the peer's IPv4 address in `struct inet_diag_msg`, and the first byte of loopback addresses."""
_BUFFER_BYTES = 1 << 18
_TIMEOUT_S = 5.0

_RTT_OFFSET, _TOTAL_RETRANS_OFFSET, _BYTES_ACKED_OFFSET, _BYTES_RECEIVED_OFFSET = 68, 100, 120, 128
_SEGS_OUT_OFFSET, _SEGS_IN_OFFSET, _MIN_RTT_OFFSET, _BUSY_OFFSET, _RWND_LIMITED_OFFSET, _SNDBUF_LIMITED_OFFSET = (
    136,
    140,
    148,
    168,
    176,
    184,
)
"""Offsets of fields of `struct tcp_info`, of which times are in µs; new kernels only append fields."""
_NO_MIN_RTT = 2**32 - 1
"""The kernel's minimum RTT before the first measurement."""
_FRAME_HEADER_BYTES = 66
"""Headers of a segment: Ethernet, IPv4, and TCP with time stamps."""


@dataclass(frozen=True)
class ConnectionCounts:
    """Counts of one TCP connection since it began; None for a count that this kernel does not report."""

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


Connections = Mapping[bytes, ConnectionCounts]
"""Connections by the kernel's socket cookie, which is unique since boot."""


class SocketDiag:
    """Queries a host's kernel (sock_diag) for the established connections to a server's `port`, on the host of the given side.
    Raises OSError if the kernel cannot be queried."""

    def __init__(self, host: Host, port: int, side: Literal["client", "server"]) -> None:
        source, destination = (port, 0) if side == "server" else (0, port)
        self._request = _build_request(source, destination)
        self._socket = host.run(
            lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        )
        self._socket.settimeout(_TIMEOUT_S)

    def query(self) -> tuple[bytes, ...]:
        """Query the kernel; returns the raw netlink messages of its reply. Raises OSError."""
        self._socket.send(self._request)
        parts = []
        while True:
            parts.append(self._socket.recv(_BUFFER_BYTES))
            last_type = _last_message_type(parts[-1])
            if last_type == _NLMSG_ERROR:
                raise OSError("the kernel does not report its TCP connections")
            if last_type == _NLMSG_DONE:
                return tuple(parts)

    def close(self) -> None:
        self._socket.close()


def _build_request(source: int, destination: int) -> bytes:
    """A netlink message with `struct inet_diag_req_v2` for IPv4; ports are in network byte order, and port 0 matches any."""
    body = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _ESTABLISHED)
    body += struct.pack("!HH", source, destination) + bytes(32) + bytes(4) + b"\xff" * 8
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body


def _align(length: int) -> int:
    return length + 3 & ~3


def _last_message_type(part: bytes) -> int:
    offset, message_type = 0, _NLMSG_DONE
    while offset + _HEADER.size <= len(part):
        length, message_type = _HEADER.unpack_from(part, offset)[:2]
        offset += max(_align(length), _HEADER.size)
    return message_type


def parse_connections(reply: tuple[bytes, ...], *, include_loopback: bool = True) -> dict[bytes, ConnectionCounts]:
    """The connections in a reply of `SocketDiag.query`, by cookie. `include_loopback`: include those of a host with itself."""
    connections = {}
    for part in reply:
        offset = 0
        while offset + _HEADER.size <= len(part):
            length, message_type = _HEADER.unpack_from(part, offset)[:2]
            if message_type == _SOCK_DIAG_BY_FAMILY:
                message = part[offset + _HEADER.size : offset + length]
                info = _find_attribute(message[_DIAG_MESSAGE_BYTES:], _INET_DIAG_INFO)
                if info is not None and (include_loopback or message[_PEER_OFFSET] != _LOOPBACK):
                    connections[message[_COOKIE_OFFSET : _COOKIE_OFFSET + 8]] = parse_tcp_info(info)
            offset += max(_align(length), _HEADER.size)
    return connections


def _find_attribute(attributes: bytes, requested_type: int) -> bytes | None:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(attributes):
        length, attribute_type = _ATTRIBUTE.unpack_from(attributes, offset)
        if attribute_type == requested_type:
            return attributes[offset + _ATTRIBUTE.size : offset + length]
        offset += max(_align(length), _ATTRIBUTE.size)
    return None


def parse_tcp_info(info: bytes) -> ConnectionCounts:
    """A connection's counts from `struct tcp_info`, which may lack the last fields."""

    def read_count(offset: int, struct_format: Literal["=I", "=Q"], unit: int = 1) -> int | None:
        if offset + struct.calcsize(struct_format) > len(info):
            return None
        value: int = struct.unpack_from(struct_format, info, offset)[0]
        return value * unit

    min_rtt = read_count(_MIN_RTT_OFFSET, "=I")
    return ConnectionCounts(
        rtt_ns=read_count(_RTT_OFFSET, "=I", 1000) or 0,
        min_rtt_ns=None if min_rtt in (None, _NO_MIN_RTT) else min_rtt * 1000,
        retransmits=read_count(_TOTAL_RETRANS_OFFSET, "=I") or 0,
        segments_out=read_count(_SEGS_OUT_OFFSET, "=I"),
        segments_in=read_count(_SEGS_IN_OFFSET, "=I"),
        bytes_acked=read_count(_BYTES_ACKED_OFFSET, "=Q"),
        bytes_received=read_count(_BYTES_RECEIVED_OFFSET, "=Q"),
        busy_ns=read_count(_BUSY_OFFSET, "=Q", 1000),
        rwnd_limited_ns=read_count(_RWND_LIMITED_OFFSET, "=Q", 1000),
        sndbuf_limited_ns=read_count(_SNDBUF_LIMITED_OFFSET, "=Q", 1000),
    )


_CountField = Literal[
    "retransmits", "segments_out", "segments_in", "bytes_acked", "bytes_received", "busy_ns", "rwnd_limited_ns",
    "sndbuf_limited_ns",
]  # fmt: skip


def _count_growth(before: Connections, after: Connections, name: _CountField) -> int | None:
    """Growth of a count, summed over the connections that are open at the end; a connection that was not open at the beginning started
    at zero. None if unknown."""
    total = 0
    for cookie, connection in after.items():
        value_after, value_before = getattr(connection, name), getattr(before.get(cookie), name, 0)
        if value_after is None or value_before is None:
            return None
        total += max(value_after - value_before, 0)
    return total


def tcp_record(host: Literal["client", "server"], before: Connections, after: Connections) -> TcpRecord | None:
    """The record of one host's connections; None if no connection is open at the end."""
    if not after:
        return None
    min_rtts_ns = [connection.min_rtt_ns for connection in after.values() if connection.min_rtt_ns is not None]
    return TcpRecord(
        host=host,
        connections=len(after),
        rtt_p50_ns=round(statistics.median(connection.rtt_ns for connection in after.values())),
        min_rtt_ns=min(min_rtts_ns, default=None),
        retransmits=_count_growth(before, after, "retransmits") or 0,
        segments_out=_count_growth(before, after, "segments_out"),
        busy_ns=_count_growth(before, after, "busy_ns"),
        rwnd_limited_ns=_count_growth(before, after, "rwnd_limited_ns"),
        sndbuf_limited_ns=_count_growth(before, after, "sndbuf_limited_ns"),
    )


def share_to_server(before: Connections, after: Connections) -> float | None:
    """Share of the bytes, headers included, that went to the server, from the counts of its connections. None if there were no bytes
    or no counts."""
    names: tuple[_CountField, ...] = ("bytes_received", "segments_in", "bytes_acked", "segments_out")
    growths = [_count_growth(before, after, name) for name in names]
    if None in growths:
        return None
    received_bytes, received_segments, sent_bytes, sent_segments = (value or 0 for value in growths)
    to_server = received_bytes + _FRAME_HEADER_BYTES * received_segments
    to_client = sent_bytes + _FRAME_HEADER_BYTES * sent_segments
    return to_server / (to_server + to_client) if to_server + to_client else None


_SAMPLE_INTERVAL_S = 0.25
_END_MARGIN_NS = 20_000_000
_END_MARGIN_SHARE = 0.01
"""The last sample precedes the window's end by this share of the window, or by `_END_MARGIN_NS` if that is less: after the window the
engine closes its connections, and the kernel discards their counts."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SIDES: tuple[Literal["client", "server"], ...] = ("client", "server")
SAMPLE_COUNTS = {"requests": 1, "running": 1}
"""The amounts by which a sample itself increases the server's counters."""


@dataclass(frozen=True)
class WatchTargets:
    """The hosts, port, link and server to watch. `port`: the main server's TCP port that the load uses; None without TCP. Connections
    to auxiliary servers are not watched individually, but the interface's counters include their bytes."""

    client: Host
    server: Host
    port: int | None
    link: Link | None
    snapshot: Callable[[], Mapping[str, int]]
    """The server's counters. Raises LabError."""

    @property
    def interface(self) -> str:
        if self.link is not None:
            return "s0"
        return "" if self.port is None else "lo"

    @property
    def interface_kind(self) -> InterfaceKind:
        return "loopback" if self.link is None else "ethernet"

    def host(self, side: Literal["client", "server"]) -> Host:
        return self.client if side == "client" else self.server


@dataclass
class _Readings:
    """Raw file contents and counters of all samples."""

    start_ns: int = 0
    end_ns: int = 0
    network: list[NetworkReading] = field(default_factory=list)
    stat: list[bytes] = field(default_factory=list)
    tcp: dict[str, list[tuple[bytes, ...]]] = field(default_factory=lambda: {side: [] for side in SIDES})
    server: list[Mapping[str, int]] = field(default_factory=list)
    timeouts: list[int | None] = field(default_factory=list)
    cost_ns: int = 0
    """CPU time of all samples, set at the end."""


class LabWindowWatch:
    """Watches a window, which begins at construction; implements `testbed.WindowWatch`."""

    def __init__(self, targets: WatchTargets, length_ns: int) -> None:
        self._targets = targets
        self._last_sample_ns = time.monotonic_ns() + length_ns - min(_END_MARGIN_NS, int(length_ns * _END_MARGIN_SHARE))
        self._stop = threading.Event()
        self._readings = _Readings()
        self._clocks: ThreadClocks | None = None
        self._thread = threading.Thread(target=self._watch, name="window", daemon=True)
        self._thread.start()

    def finish(self) -> Window | None:
        """End the watch if it has not ended by itself. Returns None if there are fewer than two samples."""
        self._stop.set()
        self._thread.join()
        return _build_window(
            self._targets, self._readings, {} if self._clocks is None else self._clocks.cpu_ns_by_cpu()
        )

    def _watch(self) -> None:
        # If a watched process dies meanwhile, this watch just ends early; the measurement itself reports the death.
        with suppress(HowfarError, OSError, ValueError), ExitStack() as stack:
            samplers = _Samplers(self._targets, stack)
            self._clocks = samplers.clocks
            self._readings.start_ns = time.monotonic_ns()
            samplers.sample_edge(self._readings)
            while (remaining_ns := self._last_sample_ns - time.monotonic_ns()) > 0:
                if self._stop.wait(min(remaining_ns / 1e9, _SAMPLE_INTERVAL_S)):
                    break
                if self._last_sample_ns > time.monotonic_ns():
                    samplers.sample(self._readings)
            self._readings.end_ns = time.monotonic_ns()
            samplers.sample_edge(self._readings)
        self._readings.cost_ns = time.thread_time_ns()


class _Samplers:
    """The files and sockets that a watch reads, opened once. Raises OSError."""

    def __init__(self, targets: WatchTargets, stack: ExitStack) -> None:
        self._targets = targets
        self._stat = ProcFile(Path("/proc/stat"))
        stack.callback(self._stat.close)
        self.clocks = ThreadClocks(None if targets.link is None else targets.link.pid)
        stack.callback(self.clocks.close)
        self._files: HostFiles | None = None
        self._diags: dict[str, SocketDiag] = {}
        if targets.port is None:
            return
        self._files = HostFiles.open(targets.server, targets.client)
        stack.callback(self._files.close)
        for side in SIDES:
            with suppress(OSError):  # a kernel without sock_diag
                self._diags[side] = SocketDiag(targets.host(side), targets.port, side)
                stack.callback(self._diags[side].close)

    def sample(self, readings: _Readings) -> None:
        """Take one sample: interface, queues, and CPU time of the emulator's threads."""
        at_ns = time.monotonic_ns()
        if self._files is not None:
            readings.network.append(self._files.read(at_ns, self._queue_bytes()))
        self.clocks.sample()

    def sample_edge(self, readings: _Readings) -> None:
        """Take the first or the last sample, which also reads connections, CPUs, timeouts and the server's counters. The server comes
        last, because it may be slow."""
        for side, diag in list(self._diags.items()):
            try:
                readings.tcp[side].append(diag.query())
            except OSError:
                del self._diags[side]
        readings.stat.append(self._stat.read())
        readings.timeouts.append(None if self._files is None else self._files.read_timeouts())
        self.sample(readings)
        readings.server.append(self._targets.snapshot())

    def _queue_bytes(self) -> tuple[int | None, int | None] | None:
        stats = None if self._targets.link is None else self._targets.link.counters()
        return None if stats is None else (stats.to_server.queue_bytes_lately, stats.to_client.queue_bytes_lately)


def _build_window(targets: WatchTargets, readings: _Readings, link_cpu_ns: Mapping[int, int]) -> Window | None:
    length_ns = readings.end_ns - readings.start_ns
    if length_ns <= 0 or len(readings.stat) < 2:
        return None
    # With a link, ignore connections over the loopback, on which a program on the path may use the server's port number too.
    tcp, share_to_server = _tcp_records(readings, include_loopback=targets.link is None)
    return Window(
        length_ns=length_ns,
        interface=targets.interface,
        network=network_samples(readings.network, targets.interface, targets.interface_kind, share_to_server)
        if len(readings.network) > 1
        else (),
        tcp=tcp,
        server=server_growth(*readings.server) if len(readings.server) == 2 else {},
        cpus_busy=busy_shares(readings.stat[0], readings.stat[-1], length_ns / 1e9, _TICKS_PER_S),
        link_cpu_ns=dict(link_cpu_ns),
        sampling_cpu_ns=readings.cost_ns,
        timeouts=_growth_or_none(readings.timeouts),
    )


def _growth_or_none(counts: Sequence[int | None]) -> int | None:
    first, last = (counts[0], counts[-1]) if len(counts) > 1 else (None, None)
    return None if first is None or last is None else last - first


def _tcp_records(readings: _Readings, *, include_loopback: bool) -> tuple[tuple[TcpRecord, ...], float | None]:
    """The record of each host, and the share of the bytes that went to the server (None if unknown)."""
    records, share = [], None
    for side in SIDES:
        if len(readings.tcp[side]) != 2:
            continue
        before, after = (parse_connections(reply, include_loopback=include_loopback) for reply in readings.tcp[side])
        record = tcp_record(side, before, after)
        if record is not None:
            records.append(record)
        if side == "server":
            # On a busy machine the load may close its connections before the last sample; then use the counts of the first sample.
            share = share_to_server(before, after)
            share = share_to_server({}, before) if share is None else share
    return tuple(records), share


def server_growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Growth of each counter, minus the amount that our own samples added; for a gauge, its value at the end."""
    return {
        name: max(value - (0 if name in GAUGES else before[name]) - SAMPLE_COUNTS.get(name, 0), 0)
        for name, value in after.items()
        if name in GAUGES or name in before
    }
