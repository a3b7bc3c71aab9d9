"""The hosts and the wires between them, without any effect yet: interfaces, addresses, neighbours, routes, buffers.

    client [c0] ---- [lc]  base network of the sandbox  [ls] ---- [s0] server

The link emulator joins `lc` and `ls`. Nothing of the kernel's own stack may speak on those two: no address, no ARP, no IPv6. Which
wires there are is up to the link's back-end. A replica's host is joined to the server's in the same way, by names and addresses of
its own (`ends.py`): a `Network` of two hosts for each link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from howfar.errors import LabError, LinkFailed
from howfar.lab import kernel, sandbox
from howfar.lab.ends import FIRST, Ends, numbered
from howfar.lab.hosts import Host, Shares

LOOPBACK_ADDRESS = "127.0.0.1"
CLIENT_ADDRESS = FIRST.client_address
SERVER_ADDRESS = FIRST.server_address
SERVER_ADDRESS6 = FIRST.server_address6
MTU = 1500
CONGESTION_CONTROL = "cubic"
"""Debian's kernels' default; chosen per route because a child network may not set its own default."""
TcpPreset = Literal["stock", "tuned"]
TCP_PRESETS: tuple[TcpPreset, ...] = ("tuned", "stock")
"""`tuned`: TCP may hold four times what is in flight, up to 1 GiB; never less than the kernel's own maximum. `stock`: the kernel's
defaults, which at 10 Gb/s and 85 ms carry about 0.3 Gb/s: a finding, not a fault of the link."""
_BUFFER_MAX = 1 << 30
_LOCAL = "route replace local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1"
_QUIET6 = {"accept_ra": "0", "autoconf": "0", "accept_dad": "0", "router_solicitations": "0", "addr_gen_mode": "1"}
"""No packet of the kernel's own on the link: no solicitation, no detection of duplicates, no link-local address."""


@dataclass
class Network:
    """Two hosts of a sandbox; a link's back-end cables them."""

    base: Host
    client: Host
    server: Host
    mtu: int = MTU
    congestion_control: str = CONGESTION_CONTROL
    """In force."""
    by_route: bool = True
    """It is chosen for each route; else it is the kernel's own."""
    ipv6: bool = False
    """The present wires carry IPv6 too."""
    shares: Shares | None = None
    """CPUs of the hosts, for who carries packets between them; None: any."""
    ends: Ends = FIRST
    warnings: list[str] = field(default_factory=list)


def middle_batch(client_fd: int, server_fd: int, mtu: int = MTU, ends: Ends = FIRST) -> list[str]:
    """`ip -batch` lines for the base network: two cables, their outer ends given away."""
    client, server = ends.client_device, ends.server_device
    return [
        f"link add name {ends.client_middle} mtu {mtu} type veth peer name {client} mtu {mtu} address {ends.client_mac}",
        f"link add name {ends.server_middle} mtu {mtu} type veth peer name {server} mtu {mtu} address {ends.server_mac}",
        f"link set dev {client} netns /proc/self/fd/{client_fd}",
        f"link set dev {server} netns /proc/self/fd/{server_fd}",
        f"link set dev {ends.client_middle} arp off up",
        f"link set dev {ends.server_middle} arp off up",
    ]


def loopback_batch(congestion_control: str | None) -> list[str]:
    """`ip -batch` lines for a host's own loopback, with the same congestion control as on the link."""
    lines = ["link set dev lo up"]
    return [*lines, f"{_LOCAL} congctl {congestion_control}"] if congestion_control else lines


def host_batch(role: str, congestion_control: str | None, *, ipv6: bool = True, ends: Ends = FIRST) -> list[str]:
    """`ip -batch` lines for a host's end of the link: addresses, the one static neighbour, routes with their congestion control.

    Without ARP, and so without the groups that IPv6 joins to find neighbours: nothing asks, nothing is announced.
    """
    client = (ends.client_device, ends.client_address, ends.client_address6, ends.client_mac)
    server = (ends.server_device, ends.server_address, ends.server_address6, ends.server_mac)
    near, far = {"client": (client, server), "server": (server, client)}[role]
    device, own, own6, _ = near
    _, other, other6, mac = far
    chosen = f" congctl {congestion_control}" if congestion_control else ""
    lines = [
        f"link set dev {device} arp off up",
        f"addr replace {own}/30 dev {device} noprefixroute",
        f"neigh replace {other} lladdr {mac} dev {device} nud permanent",
        f"route replace {ends.subnet} dev {device} scope link src {own}{chosen}",
    ]
    if ipv6:
        lines += [
            f"addr replace {own6}/64 dev {device} nodad noprefixroute",
            f"neigh replace {other6} lladdr {mac} dev {device} nud permanent",
            f"route replace {ends.subnet6} dev {device} src {own6}{chosen}",
        ]
    return lines


def build_network(ledger: ExitStack, mtu: int = MTU, congestion_control: str = CONGESTION_CONTROL) -> Network:
    """Make both hosts, not cabled; call in the sandbox. The descriptors are closed with the ledger. Raises LinkFailed."""
    base = Host("base", None)
    _without_ipv6(base)
    client, server = _new_host("client", ledger), _new_host("server", ledger)
    network = Network(base, client, server, mtu, congestion_control)
    for host in (client, server):
        _open_loopback(network, host)
    return network


def join_replica(network: Network, ledger: ExitStack, number: int, shares: Shares | None) -> Network:
    """A further host, `replica1` and so on, for a link of its own to the server's; not cabled. There the replica is the client, for
    it is the one that dials: what the primary sends it goes `to_client`, acknowledgements go `to_server`. Raises LinkFailed."""
    replica = _new_host(f"replica{number}", ledger)
    joined = replace(network, client=replica, ipv6=False, shares=shares, warnings=[], ends=numbered(number))
    _open_loopback(joined, replica)
    return joined


def _new_host(name: str, ledger: ExitStack) -> Host:
    try:
        descriptor = kernel.new_network_namespace()
    except OSError as error:
        raise LinkFailed(f"a network for a host could not be made: {error}", "Run as root.") from error
    ledger.callback(os.close, descriptor)
    host = Host(name, descriptor)
    _without_ipv6(host)
    return host


def _without_ipv6(host: Host) -> None:
    for scope in ("all", "default"):
        host.write_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", "1")


def _open_loopback(network: Network, host: Host) -> None:
    chosen = network.congestion_control if network.by_route else None
    try:
        host.ip(loopback_batch(chosen))
    except LabError as error:
        if chosen is None:
            raise
        _not_chosen(network, chosen, error)
        host.ip(loopback_batch(None))


def _not_chosen(network: Network, asked: str, error: LabError) -> None:
    """The usual one is wished for: without it the kernel's own is in force, and that is said. Another one was asked for.

    Raises LinkFailed.
    """
    own = network.client.within(Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text).strip()
    why = error.message.splitlines()[0]
    if asked != CONGESTION_CONTROL:
        known = network.base.within(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text).strip()
        raise LinkFailed(
            f"congestion control {asked} cannot be chosen: {why}",
            f"This kernel knows {known}; the default here is {own}.",
        ) from error
    if network.congestion_control != own:
        network.warnings.append(f"congestion control is the kernel's own, {own}: {asked} could not be chosen ({why})")
    network.congestion_control = own
    network.by_route = False


@contextmanager
def cable_through_middle(network: Network) -> Iterator[None]:
    """A cable from each host to the base network. Taken away on leaving. Raises LinkFailed."""
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    ends = network.ends
    _cable(network, middle_batch(client_fd, server_fd, network.mtu, ends))
    with ExitStack() as ledger:
        ledger.callback(network.base.ip, [f"link del dev {ends.client_middle}", f"link del dev {ends.server_middle}"])
        _configure(network)
        yield


@contextmanager
def cable_directly(network: Network) -> Iterator[None]:
    """One cable from host to host. Taken away on leaving. Raises LinkFailed."""
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    mtu, ends = network.mtu, network.ends
    client, server = ends.client_device, ends.server_device
    peer = f"type veth peer name {server} mtu {mtu} address {ends.server_mac}"
    _cable(
        network,
        [
            f"link add name {client} mtu {mtu} address {ends.client_mac} {peer}",
            f"link set dev {client} netns /proc/self/fd/{client_fd}",
            f"link set dev {server} netns /proc/self/fd/{server_fd}",
        ],
    )
    with ExitStack() as ledger:
        ledger.callback(network.client.ip, [f"link del dev {client}"])
        _configure(network)
        yield


def _cable(network: Network, batch: list[str]) -> None:
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    try:
        network.base.ip(batch, pass_fds=(client_fd, server_fd))
    except LabError as error:
        raise LinkFailed(
            error.message, "Is the kernel's veth module there? Paths without a link still work."
        ) from error


def _configure(network: Network) -> None:
    """Addresses and routes of both ends."""
    ends = network.ends
    network.ipv6 = _allow_ipv6(network.client, ends.client_device) and _allow_ipv6(network.server, ends.server_device)
    for role, host in (("client", network.client), ("server", network.server)):
        chosen = network.congestion_control if network.by_route else None
        try:
            host.ip(host_batch(role, chosen, ipv6=network.ipv6, ends=ends))
        except LabError as error:
            if chosen is None:
                raise
            _not_chosen(network, chosen, error)
            host.ip(host_batch(role, None, ipv6=network.ipv6, ends=ends))


def _allow_ipv6(host: Host, device: str) -> bool:
    """On this one interface. False where the kernel has no IPv6."""
    quiet = [host.write_sysctl(f"net/ipv6/conf/{device}/{name}", value) for name, value in _QUIET6.items()]
    return all(quiet) and host.write_sysctl(f"net/ipv6/conf/{device}/disable_ipv6", "0")


def size_buffers(network: Network, bdp_bytes: int, preset: TcpPreset = "tuned") -> dict[str, int]:
    """`tuned`: let TCP hold four times what is in flight, never less than the kernel's own maximum. Returns the maxima in force."""
    maxima: dict[str, int] = {}
    for host in (network.client, network.server):
        for name in ("tcp_rmem", "tcp_wmem"):
            file = Path("/proc/sys/net/ipv4", name)
            low, middle, high = (int(word) for word in host.within(file.read_text).split())
            wanted = min(max(high, 4 * bdp_bytes), _BUFFER_MAX) if preset == "tuned" else high
            if wanted > high and host.write_sysctl(f"net/ipv4/{name}", f"{low} {middle} {wanted}"):
                high = wanted
            maxima[f"{host.name}_{name}_max"] = high
    return maxima


def tcp_memory_warning(bdp_bytes: int) -> str | None:
    """Where the kernel would take memory back from TCP before a link of this size is full: its limit is one for the whole machine."""
    try:
        _, pressure, _ = (int(word) for word in os.environ.get(sandbox.TCP_MEMORY, "").split())
    except ValueError:
        return None  # this kernel does not say
    limit = pressure * os.sysconf("SC_PAGE_SIZE")
    if 4 * bdp_bytes <= limit:
        return None
    return (
        f"net.ipv4.tcp_mem lets all TCP of this machine hold {limit / 2**20:.0f} MiB before it saves memory; this link may need "
        f"{4 * bdp_bytes / 2**20:.0f} MiB: its goodput may be lower for that"
    )
