"""`tcp`: TCP over the loopback of the server's host."""

from __future__ import annotations

from contextlib import ExitStack

from howfar.engine.messages import TcpTarget
from howfar.lab.network import LOOPBACK_ADDRESS
from howfar.lab.paths import Terrain, Way


class LoopbackPath:
    NAME = "tcp"
    LOCAL = True
    NETWORKING = True
    SOCKET = False
    LINK = False

    @staticmethod
    def open_way(terrain: Terrain, ledger: ExitStack) -> Way:
        port = terrain.running.port
        assert port is not None, "this path asks for a server with a network"
        return Way(
            target=TcpTarget(host=LOOPBACK_ADDRESS, port=port),
            connection={"host": LOOPBACK_ADDRESS, "port": port},
            forwarders=(),
            peer_pid=None,
            seen_from=LOOPBACK_ADDRESS,
            forwarder_facts={},
        )
