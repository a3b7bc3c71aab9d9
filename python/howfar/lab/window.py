"""Samples hosts, link and server during the measured window, in a separate thread, and makes a `Window` of the samples.

It reads open files four times a second and defers all computing: sampling must not disturb what is measured. What cannot be
read is left out; a watch never makes a trial fail. Not here: the engine's view of its own connections, and whether a trial
counts.
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
from howfar.lab.window_network import HostFiles, Kind, Look, ProcFile, samples
from howfar.store.records import TcpRecord, Window

_PROCESSOR = 36
"""Index of the CPU on which a thread last ran, among the fields that follow the name in its `stat`."""


def busy_shares(before: bytes, after: bytes, elapsed_s: float, ticks_per_s: int) -> dict[int, float]:
    """Share of the time between two readings of /proc/stat during which each CPU was busy."""
    then, now = _ticks(before), _ticks(after)
    shares = {cpu: busy_cpus(then[cpu], ticks, elapsed_s, ticks_per_s, 1) for cpu, ticks in now.items() if cpu in then}
    return {cpu: share for cpu, share in shares.items() if share is not None}


def _ticks(stat: bytes) -> dict[int, CpuTicks]:
    found = {}
    for line in stat.decode().splitlines():
        name = line.partition(" ")[0]
        ticks = cpu_ticks(line)
        if name[:3] == "cpu" and name[3:].isdigit() and ticks is not None:
            found[int(name[3:])] = ticks
    return found


def processor(stat: bytes) -> int:
    """The CPU in a thread's /proc/…/stat. The thread's name may contain any characters, including parentheses."""
    return int(stat.rpartition(b")")[2].split()[_PROCESSOR])


class ThreadClocks:
    """CPU time of a process's threads, by the CPU that each thread was last on at each sample. Empty without a process."""

    def __init__(self, pid: int | None) -> None:
        self._files: list[tuple[ProcFile, ProcFile]] = []
        self._last: list[int] = []
        self._taken: Counter[int] = Counter()
        if pid is None:
            return
        for task in Path(f"/proc/{pid}/task").iterdir():
            self._files.append((ProcFile(task / "schedstat"), ProcFile(task / "stat")))
            self._last.append(self._cpu_ns(len(self._last)))

    def _cpu_ns(self, place: int) -> int:
        return int(self._files[place][0].read().split()[0])

    def look(self) -> None:
        """Add the CPU time of each thread since the previous sample to the CPU where the thread is now."""
        for place, (_, stat) in enumerate(self._files):
            with suppress(OSError):  # a thread that has ended took no more
                now = self._cpu_ns(place)
                self._taken[processor(stat.read())] += max(now - self._last[place], 0)
                self._last[place] = now

    def taken_ns(self) -> Mapping[int, int]:
        return dict(sorted(self._taken.items()))

    def close(self) -> None:
        for files in self._files:
            for file in files:
                file.close()


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
"""Size of `struct inet_diag_msg`, before the attributes."""
_COOKIE_AT = 44
_PEER_AT, _LOOPBACK = 24, 127
"""Offset of the peer's IPv4 address, and its first byte on the loopback."""
_BUFFER = 1 << 18
_PATIENCE_S = 5.0

_RTT_US, _TOTAL_RETRANS, _BYTES_ACKED, _BYTES_RECEIVED = 68, 100, 120, 128
_SEGS_OUT, _SEGS_IN, _MIN_RTT_US, _BUSY_US, _RWND_LIMITED_US, _SNDBUF_LIMITED_US = 136, 140, 148, 168, 176, 184
"""Offsets of fields of `struct tcp_info`; new kernels only append fields to it."""
_NO_MIN_RTT = 2**32 - 1
_FRAME_HEADERS = 66


@dataclass(frozen=True)
class Connection:
    """Counts of one TCP connection since it began; None if this kernel does not report them."""

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
"""Connections by the kernel's cookie, which no other socket of this boot has."""


class Diag:
    """Queries one host's kernel for established connections from or to `port`. Raises OSError where the kernel cannot be queried."""

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
    """`struct inet_diag_req_v2` for IPv4, with ports in network byte order; port 0 is any."""
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


def parse(answer: tuple[bytes, ...], *, loopback: bool = True) -> dict[bytes, Connection]:
    """The connections in an answer of `Diag.ask`. `loopback`: include those of a host with itself."""
    found = {}
    for part in answer:
        at = 0
        while at + _HEADER.size <= len(part):
            length, kind = _HEADER.unpack_from(part, at)[:2]
            if kind == _SOCK_DIAG_BY_FAMILY:
                message = part[at + _HEADER.size : at + length]
                info = _attribute(message[_DIAG_BYTES:], _INFO)
                if info is not None and (loopback or message[_PEER_AT] != _LOOPBACK):
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
    """One connection from `struct tcp_info`, with the fields that this kernel fills."""

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
    """Growth of a count over all connections open at the end; one that was not open at the beginning started at zero."""
    total = 0
    for cookie, now in after.items():
        value, then = getattr(now, name), getattr(before.get(cookie), name, 0)
        if value is None or then is None:
            return None
        total += max(value - then, 0)
    return total


def record(host: Literal["client", "server"], before: Connections, after: Connections) -> TcpRecord | None:
    """The record of one host's connections; None if none is open at the end."""
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
    """Share of all bytes, headers included, that went to the server, from its connections. None if there were none, or no counts."""
    names: tuple[_COUNTED, ...] = ("bytes_received", "segments_in", "bytes_acked", "segments_out")
    grown = [_growth(before, after, name) for name in names]
    if None in grown:
        return None
    in_bytes, in_segments, out_bytes, out_segments = (value or 0 for value in grown)
    to_server, to_client = in_bytes + _FRAME_HEADERS * in_segments, out_bytes + _FRAME_HEADERS * out_segments
    return to_server / (to_server + to_client) if to_server + to_client else None


_EVERY_S = 0.25
_EARLY_NS = 20_000_000
_EARLY_SHARE = 0.01
"""The last sample precedes the window's end by this share of the window, or `_EARLY_NS` if that is less: once the engine has reported
its result it closes its connections, and the kernel forgets their counts."""
_TICKS = os.sysconf("SC_CLK_TCK")
SIDES: tuple[Literal["client", "server"], ...] = ("client", "server")
OWN = {"requests": 1, "running": 1}
"""What a sample itself adds to the server's counters."""


@dataclass(frozen=True)
class Scene:
    """What to watch. `port`: the main server's TCP port that the load uses; None if the load does not use TCP. Connections to other
    servers are not watched one by one; the interface's counters include their bytes."""

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
    def kind(self) -> Kind:
        return "loopback" if self.link is None else "ethernet"

    def host(self, side: Literal["client", "server"]) -> Host:
        return self.client if side == "client" else self.server


@dataclass
class _Seen:
    """The raw readings."""

    began_ns: int = 0
    ended_ns: int = 0
    looks: list[Look] = field(default_factory=list)
    stat: list[bytes] = field(default_factory=list)
    tcp: dict[str, list[tuple[bytes, ...]]] = field(default_factory=lambda: {side: [] for side in SIDES})
    server: list[Mapping[str, int]] = field(default_factory=list)
    timeouts: list[int | None] = field(default_factory=list)
    cost_ns: int = 0
    """CPU time of all samples, set at the end."""


class WindowWatch:
    """Watches a window from its own construction on; see `testbed.WindowWatch`."""

    def __init__(self, scene: Scene, length_ns: int) -> None:
        self._scene = scene
        self._last_ns = time.monotonic_ns() + length_ns - min(_EARLY_NS, int(length_ns * _EARLY_SHARE))
        self._enough = threading.Event()
        self._seen = _Seen()
        self._clocks: ThreadClocks | None = None
        self._thread = threading.Thread(target=self._watch, name="window", daemon=True)
        self._thread.start()

    def finish(self) -> Window | None:
        """End the watch if it has not ended by itself. Returns None without samples of two moments."""
        self._enough.set()
        self._thread.join()
        return _window(self._scene, self._seen, {} if self._clocks is None else self._clocks.taken_ns())

    def _watch(self) -> None:
        # Whatever is watched may die meanwhile. The measurement reports that; a watch that stops early has seen less.
        with suppress(HowfarError, OSError, ValueError), ExitStack() as ledger:
            eyes = _Eyes(self._scene, ledger)
            self._clocks = eyes.clocks
            self._seen.began_ns = time.monotonic_ns()
            eyes.look_closely(self._seen)
            while (left_ns := self._last_ns - time.monotonic_ns()) > 0:
                if self._enough.wait(min(left_ns / 1e9, _EVERY_S)):
                    break
                if self._last_ns > time.monotonic_ns():
                    eyes.look(self._seen)
            self._seen.ended_ns = time.monotonic_ns()
            eyes.look_closely(self._seen)
        self._seen.cost_ns = time.thread_time_ns()


class _Eyes:
    """The files and sockets that a watch reads, opened once. Raises OSError."""

    def __init__(self, scene: Scene, ledger: ExitStack) -> None:
        self._scene = scene
        self._stat = ProcFile(Path("/proc/stat"))
        ledger.callback(self._stat.close)
        self.clocks = ThreadClocks(None if scene.link is None else scene.link.pid)
        ledger.callback(self.clocks.close)
        self._files: HostFiles | None = None
        self._diags: dict[str, Diag] = {}
        if scene.port is None:
            return
        self._files = HostFiles.open(scene.server, scene.client)
        ledger.callback(self._files.close)
        for side in SIDES:
            with suppress(OSError):  # a kernel without sock_diag
                self._diags[side] = Diag(scene.host(side), scene.port, side)
                ledger.callback(self._diags[side].close)

    def look(self, seen: _Seen) -> None:
        """Read what every sample reads."""
        at_ns = time.monotonic_ns()
        if self._files is not None:
            seen.looks.append(self._files.look(at_ns, self._queues()))
        self.clocks.look()

    def look_closely(self, seen: _Seen) -> None:
        """Read what only the first and last samples read, always in the same order; the server last, as it may be slow."""
        for side, diag in list(self._diags.items()):
            try:
                seen.tcp[side].append(diag.ask())
            except OSError:
                del self._diags[side]
        seen.stat.append(self._stat.read())
        seen.timeouts.append(None if self._files is None else self._files.timeouts())
        self.look(seen)
        seen.server.append(self._scene.snapshot())

    def _queues(self) -> tuple[int | None, int | None] | None:
        stats = None if self._scene.link is None else self._scene.link.counters()
        return None if stats is None else (stats.to_server.queue_bytes_lately, stats.to_client.queue_bytes_lately)


def _window(scene: Scene, seen: _Seen, link_cpu_ns: Mapping[int, int]) -> Window | None:
    length_ns = seen.ended_ns - seen.began_ns
    if length_ns <= 0 or len(seen.stat) < 2:
        return None
    # A program on the path may use the server's port number on the client's loopback too.
    tcp, share = _connections(seen, loopback=scene.link is None)
    return Window(
        length_ns=length_ns,
        interface=scene.interface,
        network=samples(seen.looks, scene.interface, scene.kind, share) if len(seen.looks) > 1 else (),
        tcp=tcp,
        server=server_growth(*seen.server) if len(seen.server) == 2 else {},
        cpus_busy=busy_shares(seen.stat[0], seen.stat[-1], length_ns / 1e9, _TICKS),
        link_cpu_ns=dict(link_cpu_ns),
        looks_cpu_ns=seen.cost_ns,
        timeouts=_grown(seen.timeouts),
    )


def _grown(counts: Sequence[int | None]) -> int | None:
    first, last = (counts[0], counts[-1]) if len(counts) > 1 else (None, None)
    return None if first is None or last is None else last - first


def _connections(seen: _Seen, *, loopback: bool) -> tuple[tuple[TcpRecord, ...], float | None]:
    """The record of each host, and the share of the bytes that went to the server."""
    records, share = [], None
    for side in SIDES:
        if len(seen.tcp[side]) != 2:
            continue
        before, after = (parse(answer, loopback=loopback) for answer in seen.tcp[side])
        found = record(side, before, after)
        if found is not None:
            records.append(found)
        if side == "server":
            # On a busy machine the load may have closed its connections before the last sample: use the share before the first one.
            share = share_to_server(before, after)
            share = share_to_server({}, before) if share is None else share
    return tuple(records), share


def server_growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Growth of each counter, without what the samples added; for a gauge, its value at the end."""
    return {
        name: max(value - (0 if name in GAUGES else before[name]) - OWN.get(name, 0), 0)
        for name, value in after.items()
        if name in GAUGES or name in before
    }
