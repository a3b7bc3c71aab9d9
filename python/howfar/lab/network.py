"""The hosts and the wires between them, without any effect yet: interfaces, addresses, neighbours, routes, buffers.

    client [c0] ---- [lc]  base network of the sandbox  [ls] ---- [s0] server

The link emulator joins `lc` and `ls`. Nothing of the kernel's own stack may speak on those two: no address, no ARP, no IPv6. Which
wires there are is up to the link's back-end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from howfar.errors import LabError, LinkFailed
from howfar.lab import kernel, sandbox
from howfar.lab.hosts import Host, Shares

LOOPBACK_ADDRESS = "127.0.0.1"
CLIENT_ADDRESS = "10.77.0.1"
SERVER_ADDRESS = "10.77.0.2"
CLIENT_ADDRESS6 = "fd00:77::1"
SERVER_ADDRESS6 = "fd00:77::2"
_SUBNET = "10.77.0.0/30"
_SUBNET6 = "fd00:77::/64"
_CLIENT_MAC = "02:00:0a:4d:00:01"
_SERVER_MAC = "02:00:0a:4d:00:02"
CLIENT_MIDDLE = "lc"
SERVER_MIDDLE = "ls"
MTU = 1500
CONGESTION_CONTROL = "cubic"
"""Debian's kernels' default; chosen per route because a child network may not set its own default."""
TcpPreset = Literal["stock", "tuned"]
TCP_PRESETS: tuple[TcpPreset, ...] = ("tuned", "stock")
"""`tuned`: TCP may hold four times what is in flight, up to 1 GiB; never less than the kernel's own maximum. `stock`: the kernel's
defaults, which at 10 Gb/s and 85 ms carry about 0.3 Gb/s: a finding, not a fault of the link."""
_BUFFER_MAX = 1 << 30
_TUN_QUEUE = 10_000
"""Packets. A TUN device whose queue is full drops without a word; its default of 500 is full within a millisecond."""
_LOCAL = "route replace local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1"
_QUIET6 = {"accept_ra": "0", "autoconf": "0", "accept_dad": "0", "router_solicitations": "0", "addr_gen_mode": "1"}
"""No packet of the kernel's own on the link: no solicitation, no detection of duplicates, no link-local address."""


@dataclass
class Network:
    """The hosts of a sandbox; a link's back-end cables them."""

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
    warnings: list[str] = field(default_factory=list)


def middle_batch(client_fd: int, server_fd: int, mtu: int = MTU) -> list[str]:
    """`ip -batch` lines for the base network: two cables, their outer ends given away."""
    return [
        f"link add name {CLIENT_MIDDLE} mtu {mtu} type veth peer name c0 mtu {mtu} address {_CLIENT_MAC}",
        f"link add name {SERVER_MIDDLE} mtu {mtu} type veth peer name s0 mtu {mtu} address {_SERVER_MAC}",
        f"link set dev c0 netns /proc/self/fd/{client_fd}",
        f"link set dev s0 netns /proc/self/fd/{server_fd}",
        f"link set dev {CLIENT_MIDDLE} arp off up",
        f"link set dev {SERVER_MIDDLE} arp off up",
    ]


def loopback_batch(congestion_control: str | None) -> list[str]:
    """`ip -batch` lines for a host's own loopback, with the same congestion control as on the link."""
    lines = ["link set dev lo up"]
    return [*lines, f"{_LOCAL} congctl {congestion_control}"] if congestion_control else lines


def host_batch(role: str, congestion_control: str | None, *, ethernet: bool = True, ipv6: bool = True) -> list[str]:
    """`ip -batch` lines for a host's end of the link: addresses, the one static neighbour, routes with their congestion control.

    Without ARP, and so without the groups that IPv6 joins to find neighbours: nothing asks, nothing is announced.
    """
    device, own, other, own6, other6, mac = {
        "client": ("c0", CLIENT_ADDRESS, SERVER_ADDRESS, CLIENT_ADDRESS6, SERVER_ADDRESS6, _SERVER_MAC),
        "server": ("s0", SERVER_ADDRESS, CLIENT_ADDRESS, SERVER_ADDRESS6, CLIENT_ADDRESS6, _CLIENT_MAC),
    }[role]
    chosen = f" congctl {congestion_control}" if congestion_control else ""
    up = f"link set dev {device} arp off up" if ethernet else f"link set dev {device} txqueuelen {_TUN_QUEUE} up"
    lines = [up, f"addr replace {own}/30 dev {device} noprefixroute"]
    if ethernet:
        lines.append(f"neigh replace {other} lladdr {mac} dev {device} nud permanent")
    lines.append(f"route replace {_SUBNET} dev {device} scope link src {own}{chosen}")
    if ipv6:
        lines.append(f"addr replace {own6}/64 dev {device} nodad noprefixroute")
        if ethernet:
            lines.append(f"neigh replace {other6} lladdr {mac} dev {device} nud permanent")
        lines.append(f"route replace {_SUBNET6} dev {device} src {own6}{chosen}")
    return lines


def build_network(ledger: ExitStack, mtu: int = MTU, congestion_control: str = CONGESTION_CONTROL) -> Network:
    """Make both hosts, not cabled; call in the sandbox. The descriptors are closed with the ledger. Raises LinkFailed."""
    base = Host("base", None)
    try:
        client = Host("client", kernel.new_network_namespace())
        server = Host("server", kernel.new_network_namespace())
    except OSError as error:
        raise LinkFailed(f"a network for a host could not be made: {error}", "Run as root.") from error
    assert client.network is not None and server.network is not None
    ledger.callback(os.close, client.network)
    ledger.callback(os.close, server.network)
    for host in (base, client, server):
        for scope in ("all", "default"):
            host.write_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", "1")
    network = Network(base, client, server, mtu, congestion_control)
    for host in (client, server):
        try:
            host.ip(loopback_batch(congestion_control))
        except LabError as error:
            _not_chosen(network, congestion_control, error)
            host.ip(loopback_batch(None))
    return network


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
    _cable(network, middle_batch(client_fd, server_fd, network.mtu))
    with ExitStack() as ledger:
        ledger.callback(network.base.ip, [f"link del dev {CLIENT_MIDDLE}", f"link del dev {SERVER_MIDDLE}"])
        _configure(network, ethernet=True)
        yield


@contextmanager
def cable_directly(network: Network) -> Iterator[None]:
    """One cable from host to host. Taken away on leaving. Raises LinkFailed."""
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    mtu = network.mtu
    _cable(
        network,
        [
            f"link add name c0 mtu {mtu} address {_CLIENT_MAC} type veth peer name s0 mtu {mtu} address {_SERVER_MAC}",
            f"link set dev c0 netns /proc/self/fd/{client_fd}",
            f"link set dev s0 netns /proc/self/fd/{server_fd}",
        ],
    )
    with ExitStack() as ledger:
        ledger.callback(network.client.ip, ["link del dev c0"])
        _configure(network, ethernet=True)
        yield


def adopt_devices(network: Network) -> None:
    """Move the two devices that somebody made in the base network to their hosts. They end with who made them. Raises LinkFailed."""
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    try:
        network.base.ip(
            [
                f"link set dev {CLIENT_MIDDLE} mtu {network.mtu}",
                f"link set dev {SERVER_MIDDLE} mtu {network.mtu}",
                f"link set dev {CLIENT_MIDDLE} netns /proc/self/fd/{client_fd} name c0",
                f"link set dev {SERVER_MIDDLE} netns /proc/self/fd/{server_fd} name s0",
            ],
            pass_fds=(client_fd, server_fd),
        )
    except LabError as error:
        raise LinkFailed(error.message, "Use --link-backend packet.") from error
    _configure(network, ethernet=False)


def _cable(network: Network, batch: list[str]) -> None:
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    try:
        network.base.ip(batch, pass_fds=(client_fd, server_fd))
    except LabError as error:
        raise LinkFailed(
            error.message, "Is the kernel's veth module there? Paths without a link still work."
        ) from error


def _configure(network: Network, *, ethernet: bool) -> None:
    """Addresses and routes of both ends."""
    network.ipv6 = _allow_ipv6(network.client, "c0") and _allow_ipv6(network.server, "s0")
    for host in (network.client, network.server):
        chosen = network.congestion_control if network.by_route else None
        try:
            host.ip(host_batch(host.name, chosen, ethernet=ethernet, ipv6=network.ipv6))
        except LabError as error:
            if chosen is None:
                raise
            _not_chosen(network, chosen, error)
            host.ip(host_batch(host.name, None, ethernet=ethernet, ipv6=network.ipv6))


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
