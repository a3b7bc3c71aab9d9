"""Locates the other end of a connection: whether it is on this machine, which program listens there, and what forwards the
connection.

Only procfs and sysfs are read, and nothing is sent. Each fact has its evidence; what cannot be seen is unknown.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from howfar.address.server_address import format_host_port
from howfar.doctor import procfs
from howfar.doctor.procfs import ESTABLISHED, LISTEN, Address, Process, TcpRow
from howfar.lab.programs import NONE_MEASURED, MeasuredPrograms
from howfar.services import SERVICES

if TYPE_CHECKING:
    from howfar.contract.ping_messages import Target

FORWARDERS = (
    "socat", "haproxy", "proxysql", "maxscale", "stunnel", "stunnel4", "envoy", "docker-proxy", "ssh", "sshd", "sshd-session",
    "nginx", "twemproxy", "nutcracker", "mcrouter", "mysqlrouter", "pgbouncer", "odyssey", "pgcat", "systemd-socket-",
    "rootlessport",
)  # fmt: skip
"""Names of forwarding programs in the kernel, which truncates names to 15 characters, such as that of systemd-socket-proxyd."""
_SERVERS = frozenset(name for service in SERVICES.values() for name in service.programs)
NETWORKS = Path("/sys/class/net")
_SEARCH_S = 0.15
"""Limit of the CPU time for searching all processes for the owner of a socket."""


@dataclass(frozen=True)
class PeerFact:
    """One fact and its evidence."""

    is_true: bool | None
    """Whether it holds; None if unknown."""
    evidence: str


@dataclass(frozen=True)
class PeerLocation:
    """The location of the other end of a connection."""

    on_this_machine: PeerFact
    """Whether it is on this machine."""
    same_namespace: PeerFact
    """Whether it is in this process's network namespace; for a Unix socket, in its PID and network namespaces."""
    listener: Process | None
    """The program at the other end; None if it is not visible."""
    listener_description: str
    """Description of the listening program, or the reason why it is unknown."""
    forwarded_by: Literal["forwarder", "translation"] | None
    """What forwards the connection: a program, or the kernel's address translation; None if neither was found."""


def locate_tcp_peer(local: Address, peer: Address) -> PeerLocation:
    """Locate the peer of a connected TCP socket, from the numeric addresses of both ends."""
    local, peer = _normalize(local), _normalize(peer)
    on_this_machine = _locate_host(peer[0])
    if on_this_machine.is_true is not True:
        return PeerLocation(
            on_this_machine,
            PeerFact(None, on_this_machine.evidence),
            None,
            "unknown: it is not in this network namespace",
            None,
        )
    rows = procfs.tcp_rows()
    other_end = [row for row in rows if row.state == ESTABLISHED and (row.local, row.remote) == (peer, local)]
    listening = [row for row in rows if row.state == LISTEN and _listens_at(row, peer)]
    where = format_host_port(*peer)
    if not rows:
        return PeerLocation(
            on_this_machine, PeerFact(None, "the kernel's table of connections may not be read"), None, "unknown", None
        )
    if not other_end:
        evidence = f"the other end of the connection to {where} is not in this network namespace"
        delivery = "no program here listens there" if not listening else "the program that listens there did not get it"
        description = f"{delivery}: address translation passes it on, as to a container's published port"
        return PeerLocation(on_this_machine, PeerFact(False, evidence), None, description, "translation")
    same_namespace = PeerFact(True, f"both ends of the connection to {where} are in this network namespace")
    peer_rows = [row for row in (*other_end, *listening) if row.inode]
    owner = next(iter(find_socket_owners({row.inode for row in peer_rows}).values()), None)
    if owner is None:
        accounts = sorted({procfs.account(row.uid) for row in peer_rows})
        description = "a program that is not seen" + (f", of the account {', '.join(accounts)}" if accounts else "")
        return PeerLocation(on_this_machine, same_namespace, None, description, None)
    return PeerLocation(on_this_machine, same_namespace, owner, *_describe_listener(owner))


def locate_unix_peer(path: str, pid: int) -> PeerLocation:
    """Locate the listener of a Unix socket. `pid`: the listener's PID, as SO_PEERCRED gives it to a client."""
    on_this_machine = PeerFact(True, f"{path} is a Unix socket")
    if pid == 0:
        elsewhere_fact = PeerFact(
            False, "the kernel gives no process id for the listener: it is in another PID namespace, as in a container"
        )
        return PeerLocation(on_this_machine, elsewhere_fact, None, "a program in another PID namespace", None)
    listener = procfs.process(pid)
    if listener is None:
        evidence = f"process {pid}, which is not seen"
        return PeerLocation(on_this_machine, PeerFact(None, evidence), None, evidence, None)
    is_same_by_kind = {kind: _same_namespace(pid, kind) for kind in ("net", "pid")}
    differing = [kind for kind, is_same in is_same_by_kind.items() if is_same is False]
    if differing:
        same_namespace = PeerFact(
            False, f"process {pid} is in another {' and '.join(differing)} namespace, as in a container"
        )
    elif None in is_same_by_kind.values():
        same_namespace = PeerFact(None, f"{procfs.own_account()} may not read the namespaces of process {pid}")
    else:
        same_namespace = PeerFact(True, f"process {pid} is in this process's network and PID namespaces")
    return PeerLocation(on_this_machine, same_namespace, listener, *_describe_listener(listener))


def find_measured_programs(target: Target) -> MeasuredPrograms:
    """The programs that are measured with a server: none if it is on another machine, its own process if that is seen. If not, or if
    that passes connections on, all programs with the name of a server or of a forwarder."""
    from howfar.contract.ping_messages import TcpTarget  # pydantic, which a list of servers need not import

    if isinstance(target, TcpTarget):
        if _locate_host(target.host).is_true is False:
            return NONE_MEASURED
        peer = _normalize((target.host, target.port))
        inodes = {row.inode for row in procfs.tcp_rows() if row.state == LISTEN and _listens_at(row, peer)}
    else:
        path = os.path.realpath(target.path)
        inodes = {row.inode for row in procfs.unix_rows() if row.listens and os.path.realpath(row.path) == path}
    owners = {process.pid: process.name for process in find_socket_owners(inodes - {0}).values()}
    if owners and _SERVERS.issuperset(owners.values()):
        return MeasuredPrograms(frozenset(owners))
    return MeasuredPrograms(frozenset(owners), _SERVERS.union(FORWARDERS))


def find_socket_owners(inodes: Iterable[int]) -> dict[int, Process]:
    """Find the processes that have these sockets open, by inode. The search is short, and begins with forwarders."""
    missing = set(inodes)
    owner_by_inode: dict[int, Process] = {}
    deadline_s = time.thread_time() + _SEARCH_S
    name_by_pid = procfs.names() if missing else {}
    for pid in sorted(name_by_pid, key=lambda pid: name_by_pid[pid] not in FORWARDERS):
        if not missing or time.thread_time() > deadline_s:
            break
        held_inodes = (procfs.socket_inodes(pid) or set()) & missing
        if held_inodes and (holder := procfs.process(pid)) is not None:
            owner_by_inode |= dict.fromkeys(held_inodes, holder)
            missing -= held_inodes
    return owner_by_inode


def _normalize(address: Address) -> Address:
    """Normalize an address as in `procfs`: an IPv4-mapped address becomes IPv4, and the zone is removed."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    return str(getattr(ip, "ipv4_mapped", None) or ip), address[1]


def _listens_at(row: TcpRow, peer: Address) -> bool:
    return row.local[1] == peer[1] and row.local[0] in (peer[0], "0.0.0.0", "::")


def _describe_listener(process: Process) -> tuple[str, Literal["forwarder"] | None]:
    """Describe a listener; returns the description, and "forwarder" if it forwards connections."""
    if process.name in FORWARDERS:
        return f"{process.shown} (pid {process.pid}), which passes connections on", "forwarder"
    if process.name == "systemd":
        return f"{process.shown} (pid {process.pid}), which starts the server at the first connection", None
    return f"{process.shown} (pid {process.pid})", None


def _locate_host(host: str) -> PeerFact:
    ip = ipaddress.ip_address(host)
    if ip.is_loopback:
        return PeerFact(True, f"{host} is an address of the loopback")
    if procfs.is_of_this_machine(host):
        return PeerFact(True, f"{host} is an address of this machine")
    bridge = _bridge_to(ip) if ip.version == 4 else None
    if bridge is not None:
        return PeerFact(
            None, f"{host} is reached over the bridge {bridge}: it may be a container or virtual machine here"
        )
    return PeerFact(False, f"{host} is not an address of this machine")


def _bridge_to(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str | None:
    """Return the bridge of this machine that is directly on the address's network; None if the address has another route."""
    longest_match: tuple[int, str] | None = None
    for name, network, gateway in procfs.routes():
        if address in network and (longest_match is None or network.prefixlen >= longest_match[0]):
            longest_match = (network.prefixlen, "" if gateway else name)
    return (
        longest_match[1]
        if longest_match is not None and longest_match[1] and (NETWORKS / longest_match[1] / "bridge").is_dir()
        else None
    )


def _same_namespace(pid: int, kind: str) -> bool | None:
    own_namespace, other_namespace = procfs.namespace(None, kind), procfs.namespace(pid, kind)
    return own_namespace == other_namespace if own_namespace is not None and other_namespace is not None else None
