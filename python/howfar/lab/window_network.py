"""Traffic of an interface and TCP's retransmissions, from files of /proc/net that are opened once, read often and parsed afterwards.

The link's own counters are in `crates/link`. Start reading at `network_samples`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from howfar.lab.network import Host
from howfar.store.records import NetworkSample

_MAX_FILE_BYTES = 1 << 16
"""Maximum bytes to read from a file of /proc. The files read here have hundreds or thousands of bytes."""
_ETHERNET_HEADER_BYTES = 14
_IP_AND_TCP_HEADER_BYTES = 52
"""Headers of a segment: IPv4 and TCP with time stamps."""

InterfaceKind = Literal["ethernet", "loopback"]
"""Kind of an interface, which determines the headers in its byte count. On the loopback every packet is a segment."""


class ProcFile:
    """An open file of /proc. A file of /proc/net always shows the network namespace in which it was opened."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The complete present content. Raises OSError."""
        return os.pread(self._descriptor, _MAX_FILE_BYTES, 0)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)


def open_net_file(host: Host, name: str) -> ProcFile:
    """Open `name` of the host's /proc/net. Raises OSError."""
    return host.run(lambda: ProcFile(Path("/proc/thread-self/net", name)))


@dataclass(frozen=True)
class Traffic:
    """Traffic of one interface since its creation. A super-packet counts as one packet, with one set of headers."""

    received_bytes: int
    received_packets: int
    sent_bytes: int
    sent_packets: int


@dataclass(frozen=True)
class Segments:
    """Segments that one host's TCP has sent since its network namespace was created."""

    sent: int
    """Segments sent, including retransmitted ones."""
    retransmitted: int


def parse_traffic(dev: bytes, interface: str) -> Traffic | None:
    """An interface's counters from /proc/net/dev; None if it does not exist."""
    for line in dev.decode().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            counts = [int(word) for word in numbers.split()]
            return Traffic(counts[0], counts[1], counts[8], counts[9])
    return None


def parse_segments(snmp: bytes) -> Segments:
    """Counters from /proc/net/snmp, in which a line of names precedes each line of values. OutSegs excludes retransmissions."""
    lines = [line.split()[1:] for line in snmp.decode().splitlines() if line.startswith("Tcp:")]
    values = dict(zip(lines[0], (int(word) for word in lines[1]), strict=False)) if len(lines) == 2 else {}
    retransmitted = values.get("RetransSegs", 0)
    return Segments(values.get("OutSegs", 0) + retransmitted, retransmitted)


def parse_timeouts(netstat: bytes) -> int | None:
    """Number of retransmission timeouts, from /proc/net/netstat, which has snmp's format; None if not reported."""
    lines = [line.split()[1:] for line in netstat.decode().splitlines() if line.startswith("TcpExt:")]
    values = dict(zip(lines[0], lines[1], strict=False)) if len(lines) == 2 else {}
    return int(values["TCPTimeouts"]) if "TCPTimeouts" in values else None


@dataclass(frozen=True)
class NetworkReading:
    """Raw file contents and counters at one moment."""

    at_ns: int
    dev: bytes
    server_snmp: bytes
    client_snmp: bytes | None
    """The client's file; None if client and server are one host."""
    to_server_queue_bytes: int | None = None
    to_client_queue_bytes: int | None = None
    client_dev: bytes | None = None
    """The client's interfaces; None if client and server are one host."""


@dataclass
class HostFiles:
    """Open files of both hosts, from which each `NetworkReading` is read."""

    dev: ProcFile
    server_snmp: ProcFile
    client_snmp: ProcFile | None
    client_dev: ProcFile | None
    netstats: tuple[ProcFile, ...]
    """One file for each host; empty if this kernel has none."""

    @staticmethod
    def open(server: Host, client: Host) -> HostFiles:
        """Open the files of both hosts. Raises OSError."""
        is_same_host = client.namespace_fd == server.namespace_fd
        return HostFiles(
            dev=open_net_file(server, "dev"),
            server_snmp=open_net_file(server, "snmp"),
            client_snmp=None if is_same_host else open_net_file(client, "snmp"),
            client_dev=None if is_same_host else open_net_file(client, "dev"),
            netstats=_open_netstats(server, client),
        )

    def read(self, at_ns: int, queues: tuple[int | None, int | None] | None) -> NetworkReading:
        to_server, to_client = queues or (None, None)
        client_snmp, client_dev = (
            None if file is None else file.read() for file in (self.client_snmp, self.client_dev)
        )
        dev, server_snmp = self.dev.read(), self.server_snmp.read()
        return NetworkReading(at_ns, dev, server_snmp, client_snmp, to_server, to_client, client_dev)

    def read_timeouts(self) -> int | None:
        """Retransmission timeouts of all hosts together; None if not reported."""
        counts = [parse_timeouts(file.read()) for file in self.netstats]
        return None if not counts or None in counts else sum(count or 0 for count in counts)

    def close(self) -> None:
        for file in (self.dev, self.server_snmp, self.client_snmp, self.client_dev, *self.netstats):
            if file is not None:
                file.close()


def _open_netstats(server: Host, client: Host) -> tuple[ProcFile, ...]:
    hosts = (server,) if client.namespace_fd == server.namespace_fd else (server, client)
    files: list[ProcFile] = []
    try:
        for host in hosts:
            files.append(open_net_file(host, "netstat"))
    except OSError:
        for file in files:
            file.close()
        return ()
    return tuple(files)


def network_samples(
    readings: Sequence[NetworkReading], interface: str, kind: InterfaceKind, share_to_server: float | None
) -> tuple[NetworkSample, ...]:
    """Growth of the counters from the first reading to each later one. The loopback counts both directions together: the share
    `share_to_server` of its bytes and packets is attributed to that direction; if it is None, a loopback yields no samples."""
    if kind == "loopback" and share_to_server is None:
        return ()
    read_row = _row_reader(interface, kind, share_to_server or 0.0)
    rows = [read_row(reading) for reading in readings]
    if None in rows:
        return ()
    first, *later = [row for row in rows if row is not None]
    return tuple(
        NetworkSample(
            at_ns=reading.at_ns - readings[0].at_ns,
            to_server_bytes=row[0] - first[0],
            to_client_bytes=row[1] - first[1],
            to_server_packets=row[2] - first[2],
            to_client_packets=row[3] - first[3],
            to_server_queue_bytes=reading.to_server_queue_bytes,
            to_client_queue_bytes=reading.to_client_queue_bytes,
            retransmits=row[4] - first[4],
        )
        for reading, row in zip(readings[1:], later, strict=True)
    )


_Row = tuple[int, int, int, int, int]
"""Bytes to the server and to the client, packets to the server and to the client, retransmitted segments."""


def _row_reader(interface: str, kind: InterfaceKind, share_to_server: float) -> Callable[[NetworkReading], _Row | None]:
    def read_row(reading: NetworkReading) -> _Row | None:
        traffic = parse_traffic(reading.dev, interface)
        if traffic is None:
            return None
        server = parse_segments(reading.server_snmp)
        client = server if reading.client_snmp is None else parse_segments(reading.client_snmp)
        if kind == "loopback":
            to_server_bytes = round(traffic.received_bytes * share_to_server)
            to_server_packets = round(traffic.received_packets * share_to_server)
            return (
                to_server_bytes,
                traffic.received_bytes - to_server_bytes,
                to_server_packets,
                traffic.received_packets - to_server_packets,
                server.retransmitted,
            )
        client_segments = client.sent - segments_to_self(reading.client_dev)
        server_segments = server.sent - segments_to_self(reading.dev)
        to_server_bytes, to_server_packets = count_frames(
            traffic.received_bytes, traffic.received_packets, client_segments
        )
        to_client_bytes, to_client_packets = count_frames(traffic.sent_bytes, traffic.sent_packets, server_segments)
        return (
            to_server_bytes,
            to_client_bytes,
            to_server_packets,
            to_client_packets,
            client.retransmitted + server.retransmitted,
        )

    return read_row


def segments_to_self(dev: bytes | None) -> int:
    """Number of segments that a host sent to itself, for example to a program on the path."""
    loopback = None if dev is None else parse_traffic(dev, "lo")
    return 0 if loopback is None else loopback.sent_packets


def count_frames(counted_bytes: int, counted_packets: int, sent_segments: int) -> tuple[int, int]:
    """Bytes and frames as a network card would count them, with headers for each of the `sent_segments`, computed from the counts of
    an interface that counts super-packets."""
    frames = max(sent_segments, counted_packets)
    return counted_bytes + (_ETHERNET_HEADER_BYTES + _IP_AND_TCP_HEADER_BYTES) * (frames - counted_packets), frames
