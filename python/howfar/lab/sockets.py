"""Finds the sockets on which a process listens, as the kernel lists them. Call these functions on the process's host (`Host.run`)."""

from __future__ import annotations

import socket
from pathlib import Path

_LISTEN_STATE = "0A"
_ACCEPTING_FLAG = 1 << 16
"""Flag of a Unix socket that accepts connections."""


def listens(pid: int, port_or_socket: int | Path) -> bool:
    """Whether process `pid` listens on a TCP port or a Unix socket."""
    if isinstance(port_or_socket, Path):
        return str(port_or_socket) in listening_paths(pid)
    return port_or_socket in listening_ports(pid)


def find_free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _socket_inodes(pid: int) -> set[str]:
    """Inodes of all sockets that a process has open."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    return inodes


def listening_paths(pid: int) -> tuple[str, ...]:
    """Paths of the Unix sockets on which process `pid` listens, without abstract sockets."""
    inodes = _socket_inodes(pid)
    paths = set()
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if (
            len(fields) == 8
            and int(fields[3], 16) & _ACCEPTING_FLAG
            and fields[6] in inodes
            and fields[7].startswith("/")
        ):
            paths.add(fields[7])
    return tuple(sorted(paths))


def listening_ports(pid: int) -> tuple[int, ...]:
    """TCP ports on which process `pid` listens in its own network namespace, IPv4 and IPv6."""
    inodes = _socket_inodes(pid)
    ports = set()
    for table in ("tcp", "tcp6"):
        file = Path(f"/proc/{pid}/net/{table}")
        if not file.exists():
            continue
        for line in file.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN_STATE and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return tuple(sorted(ports))
