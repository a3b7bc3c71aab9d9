"""Reads processes, their open files and sockets from /proc, and determines which accounts may use a socket's file.

A result of None means that a file may not be read. psutil is no replacement: it neither shows the inodes of sockets nor reads a
single table, and watching connections takes hundreds of samples per second.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

PROC = Path("/proc")
LISTEN, ESTABLISHED, TIME_WAIT = "0A", "01", "06"
_UNIX_LISTENING_FLAG = 0x10000
"""Flag of a Unix socket that listens (include/uapi/linux/net.h, SO_ACCEPTCON)."""
_UNIX_CONNECTED = "03"
_SCRIPT_SUFFIXES = (".py", ".rb", ".php", ".js", ".mjs", ".pl", ".jar", ".phar")
_BYTE_ORDER = "<" if sys.byteorder == "little" else ">"
CLEANED_DIRS = ("/tmp/", "/var/tmp/")
"""Directories whose old files are removed automatically, and which may be private to a service (PrivateTmp)."""

Address = tuple[str, int]


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    """Name in the kernel. A process can choose its own name, so the name proves nothing."""
    uid: int
    arguments: tuple[str, ...]
    """The command line. It may contain secrets, so it is never shown, only searched for options and programs."""
    parent: int = 0

    @property
    def shown(self) -> str:
        """Name of the process, with an interpreter's script; nothing else of the command line."""
        for argument in self.arguments[1:4]:
            file_name = argument.rpartition("/")[2]
            if (
                not argument.startswith("-")
                and file_name.endswith(_SCRIPT_SUFFIXES)
                and "=" not in argument
                and "@" not in argument
            ):
                return f"{self.name} {file_name}"
        return self.name


@dataclass(frozen=True)
class TcpRow:
    local: Address
    remote: Address
    state: str
    uid: int
    inode: int


@dataclass(frozen=True)
class UnixRow:
    path: str
    inode: int
    listens: bool
    connected: bool


def account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def own_account() -> str:
    """Name of the account of this process."""
    return account(os.geteuid())


def _read_lines(path: Path) -> list[str]:
    """Lines of a file; empty if it may not be read or is gone."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _status_of(pid: int) -> dict[str, list[str]]:
    return {
        name: rest.split()
        for name, _, rest in (line.partition(":") for line in _read_lines(PROC / str(pid) / "status"))
    }


def process(pid: int) -> Process | None:
    """One process; None if it is gone."""
    status = _status_of(pid)
    try:
        arguments = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    name_lines = _read_lines(PROC / str(pid) / "comm")
    if not name_lines or not status or status["State"][0] == "Z":
        return None
    # The owner of the /proc directory is not the UID: it is root for a server that dropped its privileges itself.
    return Process(pid, name_lines[0], int(status["Uid"][1]), tuple(arguments[:-1]), int(status["PPid"][0]))


def processes() -> Iterator[Process]:
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (visible := process(int(entry.name))) is not None:
            yield visible


def names() -> dict[int, str]:
    """Names of all processes, by PID."""
    entries = ((int(entry.name), _read_lines(entry / "comm")) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid: lines[0] for pid, lines in entries if lines}


def open_files(pid: int) -> list[str] | None:
    """Targets of a process's file descriptors; None if they may not be read or the process is gone."""
    targets = []
    try:
        entries = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return None
    for entry in entries:
        with suppress(OSError):
            targets.append(str(entry.readlink()))
    return targets


def socket_inodes(pid: int) -> set[int] | None:
    files = open_files(pid)
    if files is None:
        return None
    return {int(name[len("socket:[") : -1]) for name in files if name.startswith("socket:[")}


def tcp_rows() -> list[TcpRow]:
    """Read the TCP sockets of both families. IPv4-mapped IPv6 addresses become IPv4, so that both ends of a connection match."""
    return [parse_tcp(line) for name in ("tcp", "tcp6") for line in _read_lines(PROC / "net" / name)[1:]]


def parse_tcp(line: str) -> TcpRow:
    fields = line.split()
    return TcpRow(_address(fields[1]), _address(fields[2]), fields[3], int(fields[7]), int(fields[9]))


def _address(text: str) -> Address:
    """Parse an address from the kernel, which prints each 32-bit word in this machine's byte order."""
    digits, _, port = text.partition(":")
    numbers = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    packed = struct.pack(f"{_BYTE_ORDER}{len(numbers)}I", *numbers)
    if len(packed) == 4:
        return str(ipaddress.IPv4Address(packed)), int(port, 16)
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address), int(port, 16)


def unix_rows() -> list[UnixRow]:
    """Read the Unix sockets with a path, as passed to bind(): it may be relative to the process's working directory."""
    return [row for line in _read_lines(PROC / "net" / "unix")[1:] if (row := parse_unix(line)) is not None]


def parse_unix(line: str) -> UnixRow | None:
    fields = line.split(None, 7)
    if len(fields) < 8 or fields[7].startswith("@"):
        return None
    try:
        listens = bool(int(fields[3], 16) & _UNIX_LISTENING_FLAG)
        return UnixRow(fields[7], int(fields[6]), listens, fields[5] == _UNIX_CONNECTED)
    except ValueError:  # the rest of a path with a line break in it
        return None


def is_of_this_machine(address: str) -> bool:
    """Whether an address is a loopback address or belongs to an interface of this machine."""
    return ipaddress.ip_address(address).is_loopback or address in _own_addresses()


@cache
def _own_addresses() -> set[str]:
    """Addresses of this machine, from the kernel's tables."""
    line_pairs = pairwise(_read_lines(PROC / "net" / "fib_trie"))
    ipv4 = {
        line.split("|-- ")[1].strip()
        for line, next_line in line_pairs
        if "/32 host LOCAL" in next_line and "|-- " in line
    }
    ipv6 = (bytes.fromhex(line.split()[0]) for line in _read_lines(PROC / "net" / "if_inet6"))
    return ipv4 | {str(ipaddress.IPv6Address(packed)) for packed in ipv6}


def routes() -> Iterator[tuple[str, ipaddress.IPv4Network, bool]]:
    """IPv4 routes: interface, network, and whether it is reached through a gateway."""
    for line in _read_lines(PROC / "net" / "route")[1:]:
        name, network, gateway, *_, mask = line.split()[:8]
        numbers = [int.from_bytes(bytes.fromhex(field), sys.byteorder) for field in (network, mask)]
        yield name, ipaddress.IPv4Network((numbers[0], bin(numbers[1]).count("1")), strict=False), int(gateway, 16) != 0


def namespace(pid: int | None, kind: str) -> str | None:
    """Identify a namespace of a process (`pid` None: of this process); None if it may not be read."""
    try:
        return str((PROC / (str(pid) if pid is not None else "self") / "ns" / kind).readlink())
    except OSError:
        return None


def root(pid: int) -> str | None:
    """Return the root directory of a process: `/`, its chroot, or empty for another file system; None if it may not be read."""
    try:
        target = (PROC / str(pid) / "root").readlink()
        is_same = os.path.samestat((PROC / str(pid) / "root").stat(), target.stat())
    except OSError:
        return None
    return str(target) if is_same else ""


def sees_same_file(pid: int, path: str) -> bool:
    """Whether a process finds the same file at a path as this process; also True if that may not be read."""
    own_path = Path(path)
    try:
        return os.path.samestat(own_path.stat(), Path(f"{PROC}/{pid}/root{path}").stat())
    except FileNotFoundError:
        return root(pid) is None or not own_path.exists()
    except OSError:
        return True


def may_connect(path: str, uid: int, pid: int | None) -> bool | None:
    """Whether an account may connect to a socket, by file modes; None if unknown. ACLs and confinement are not considered."""
    if uid == 0:
        return True
    groups = _group_ids(pid, uid)
    try:
        return all(_is_permitted(directory, uid, groups, 0o1) for directory in Path(path).parents) and _is_permitted(
            Path(path), uid, groups, 0o2
        )
    except OSError:
        return None


def _is_permitted(path: Path, uid: int, groups: set[int], permission: int) -> bool:
    status = path.stat()
    class_shift = 6 if status.st_uid == uid else 3 if status.st_gid in groups else 0
    return bool(status.st_mode & permission << class_shift)


def _group_ids(pid: int | None, uid: int) -> set[int]:
    """Groups of the process, or of its account if the process cannot be read."""
    status = _status_of(pid) if pid is not None else {}
    if status:
        return {int(status["Gid"][1]), *map(int, status["Groups"])}
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return set()
    return set(os.getgrouplist(entry.pw_name, entry.pw_gid))
