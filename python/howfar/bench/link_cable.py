"""A bare cable between two hosts of their own: what a link is compared with, and where the peers work.

    client [c0] -------- [s0] server

The hosts are set up as those of the laboratory are (addresses, neighbours, route with its congestion control): the emulator
between the cables is all that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from howfar.bench.link_meter import Road
from howfar.engine.messages import EchoJob, Listening
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LinkFailed
from howfar.lab.hosts import Host, Shares, share_cpus, usable_cpus
from howfar.lab.network import SERVER_ADDRESS, build_network, cable_directly, size_buffers


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
    """In the sandbox. The hosts go when their descriptors are closed. Raises LinkFailed, EngineError."""
    with ExitStack() as ledger:
        network = build_network(ledger)
        ledger.enter_context(cable_directly(network))
        size_buffers(network, bdp_bytes)
        shares = share_cpus(usable_cpus())
        launcher = network.server.launcher(shares.server)
        echo = ledger.enter_context(EngineProcess(EchoJob(host=SERVER_ADDRESS), launcher))
        listening = echo.read()
        if not isinstance(listening, Listening):
            raise LinkFailed(f"the echo answered {listening.event!r}")
        yield Cable(network.client, network.server, shares, listening.port)
