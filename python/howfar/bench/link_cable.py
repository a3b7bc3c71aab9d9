"""A bare cable between two hosts of their own: what a link is compared with, and where the peers work.

    client [c0] -------- [s0] server

The hosts are set up as those of the laboratory are (addresses, neighbours, route with its congestion control): the emulator
between the cables is all that is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from howfar.bench.link_meter import Road
from howfar.engine.messages import EchoJob, Listening
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LabError, LinkFailed
from howfar.lab import kernel
from howfar.lab.hosts import Host, Shares, share_cpus, usable_cpus
from howfar.lab.network import CONGESTION_CONTROL, MTU, SERVER_ADDRESS, Network, host_batch, size_buffers

CLIENT_MAC, SERVER_MAC = "02:00:0a:4d:00:01", "02:00:0a:4d:00:02"
"""As `host_batch` tells them to each other."""


@dataclass(frozen=True)
class Cable:
    """Both hosts, and an echo on the server's."""

    client_host: Host
    server_host: Host
    shares: Shares
    echo_port: int

    @property
    def client(self) -> Launcher:
        return self.client_host.launcher(self.shares.client)

    @property
    def server(self) -> Launcher:
        return self.server_host.launcher(self.shares.server)

    def road(self, port: int | None = None, pid: int | None = None) -> Road:
        """To the echo, or to whatever listens on `port` of the server's host."""
        return Road(SERVER_ADDRESS, self.echo_port if port is None else port, self.client, pid)


@contextmanager
def open_cable(bdp_bytes: int) -> Iterator[Cable]:
    """In the sandbox. The hosts go when the descriptors are closed. Raises LinkFailed, EngineError."""
    with ExitStack() as ledger:
        network = _build(ledger)
        size_buffers(network, bdp_bytes)
        shares = share_cpus(usable_cpus())
        launcher = network.server.launcher(shares.server)
        echo = ledger.enter_context(EngineProcess(EchoJob(host=SERVER_ADDRESS), launcher))
        listening = echo.read()
        if not isinstance(listening, Listening):
            raise LinkFailed(f"the echo answered {listening.event!r}")
        yield Cable(network.client, network.server, shares, listening.port)


def _build(ledger: ExitStack) -> Network:
    base = Host("base", None)
    try:
        client = Host("client", kernel.new_network_namespace())
        server = Host("server", kernel.new_network_namespace())
    except OSError as error:
        raise LinkFailed(f"a network for a host could not be made: {error}", "Run as root.") from error
    assert client.network is not None and server.network is not None
    ledger.callback(os.close, client.network)
    ledger.callback(os.close, server.network)
    for host in (client, server):
        for scope in ("all", "default"):
            host.write_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", "1")
    try:
        base.ip(cable_batch(client.network, server.network), pass_fds=(client.network, server.network))
        for host in (client, server):
            host.ip(host_batch(host.name, CONGESTION_CONTROL, ipv6=False))
    except LabError as error:
        raise LinkFailed(error.message, "Is the kernel's veth module there?") from error
    return Network(base, client, server)


def cable_batch(client_fd: int, server_fd: int) -> list[str]:
    """`ip -batch` lines for the base network: one cable, both of its ends given away."""
    return [
        f"link add name c0 mtu {MTU} address {CLIENT_MAC} type veth peer name s0 mtu {MTU} address {SERVER_MAC}",
        f"link set dev c0 netns /proc/self/fd/{client_fd}",
        f"link set dev s0 netns /proc/self/fd/{server_fd}",
    ]
