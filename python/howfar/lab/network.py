"""The wires between hosts, without any effect on them yet: interfaces, addresses, neighbours, routes, buffers.

    client [c0] ---- [lc]  base network of the sandbox  [ls] ---- [s0] server

The link emulator joins `lc` and `ls`. Nothing of the kernel's own stack may speak on those two: no address, no ARP, no IPv6.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from howfar.errors import LabError, LinkFailed
from howfar.lab import kernel
from howfar.lab.hosts import Host

CLIENT_ADDRESS = "10.77.0.1"
SERVER_ADDRESS = "10.77.0.2"
_SUBNET = "10.77.0.0/30"
_CLIENT_MAC = "02:00:0a:4d:00:01"
_SERVER_MAC = "02:00:0a:4d:00:02"
CLIENT_MIDDLE = "lc"
SERVER_MIDDLE = "ls"
MTU = 1500
CONGESTION_CONTROL = "cubic"
"""Debian's kernels' default; chosen per route because a child network may not set its own default."""
_BUFFER_MAX = 1 << 30
_LOCAL = "route replace local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1"


@dataclass(frozen=True)
class Network:
    """The hosts of a sandbox, cabled."""

    base: Host
    client: Host
    server: Host
    warnings: tuple[str, ...]


def middle_batch(client_fd: int, server_fd: int) -> list[str]:
    """`ip -batch` lines for the base network: two cables, their outer ends given away."""
    return [
        f"link add name {CLIENT_MIDDLE} mtu {MTU} type veth peer name c0 mtu {MTU} address {_CLIENT_MAC}",
        f"link add name {SERVER_MIDDLE} mtu {MTU} type veth peer name s0 mtu {MTU} address {_SERVER_MAC}",
        f"link set dev c0 netns /proc/self/fd/{client_fd}",
        f"link set dev s0 netns /proc/self/fd/{server_fd}",
        f"link set dev {CLIENT_MIDDLE} arp off up",
        f"link set dev {SERVER_MIDDLE} arp off up",
    ]


def host_batch(role: str, congestion_control: str | None) -> list[str]:
    """`ip -batch` lines for a host: loopback, address, the one static neighbour, a route with its congestion control."""
    device, own, other, mac = {
        "client": ("c0", CLIENT_ADDRESS, SERVER_ADDRESS, _SERVER_MAC),
        "server": ("s0", SERVER_ADDRESS, CLIENT_ADDRESS, _CLIENT_MAC),
    }[role]
    chosen = f" congctl {congestion_control}" if congestion_control else ""
    lines = [
        "link set dev lo up",
        f"link set dev {device} up",
        f"addr add {own}/30 dev {device} noprefixroute",
        f"neigh replace {other} lladdr {mac} dev {device} nud permanent",
        f"route replace {_SUBNET} dev {device} scope link src {own}{chosen}",
    ]
    return [*lines, f"{_LOCAL}{chosen}"] if congestion_control else lines


def build_network(ledger: ExitStack) -> Network:
    """Make both hosts and the cables; call in the sandbox. The descriptors are closed with the ledger. Raises LinkFailed."""
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
    try:
        base.ip(middle_batch(client.network, server.network), pass_fds=(client.network, server.network))
    except LabError as error:
        raise LinkFailed(
            error.message, "Is the kernel's veth module there? Paths without a link still work."
        ) from error
    warnings = []
    for host in (client, server):
        try:
            host.ip(host_batch(host.name, CONGESTION_CONTROL))
        except LabError as error:
            warnings.append(f"congestion control {CONGESTION_CONTROL} could not be chosen for a route: {error.message}")
            host.ip(host_batch(host.name, None))
    return Network(base, client, server, tuple(warnings))


def size_buffers(network: Network, bdp_bytes: int) -> dict[str, int]:
    """Let TCP hold four times what is in flight, never less than the kernel's own maximum. Returns the maxima in force."""
    maxima: dict[str, int] = {}
    for host in (network.client, network.server):
        for name in ("tcp_rmem", "tcp_wmem"):
            file = Path("/proc/sys/net/ipv4", name)
            low, middle, high = (int(word) for word in host.within(file.read_text).split())
            wanted = min(max(high, 4 * bdp_bytes), _BUFFER_MAX)
            if wanted > high and host.write_sysctl(f"net/ipv4/{name}", f"{low} {middle} {wanted}"):
                high = wanted
            maxima[f"{host.name}_{name}_max"] = high
    return maxima
