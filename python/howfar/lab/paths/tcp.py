"""`tcp`: TCP over the loopback of the server's host."""

from __future__ import annotations

from contextlib import ExitStack

from howfar.engine.messages import TcpTarget
from howfar.lab.paths import Terrain, Way

_LOOPBACK = "127.0.0.1"


class LoopbackPath:
    NAME = "tcp"
    LOCAL = True
    NETWORKING = True
    LINK = False

    @staticmethod
    def open_way(terrain: Terrain, ledger: ExitStack) -> Way:
        port = terrain.running.port
        assert port is not None, "this path asks for a server with a network"
        return Way(
            target=TcpTarget(host=_LOOPBACK, port=port),
            connection={"host": _LOOPBACK, "port": port},
            forwarders=(),
            peer_pid=None,
            seen_from=_LOOPBACK,
            forwarder_facts={},
        )
