"""`remote`: TCP over the link, client on its own host."""

from __future__ import annotations

from contextlib import ExitStack

from howfar.engine.messages import TcpTarget
from howfar.lab.network import CLIENT_ADDRESS, SERVER_ADDRESS
from howfar.lab.paths import Terrain, Way


class RemotePath:
    NAME = "remote"
    LOCAL = False
    NETWORKING = True
    SOCKET = False
    LINK = True

    @staticmethod
    def open_way(terrain: Terrain, ledger: ExitStack) -> Way:
        port = terrain.running.port
        assert port is not None, "this path asks for a server with a network"
        return Way(
            target=TcpTarget(host=SERVER_ADDRESS, port=port),
            connection={"host": SERVER_ADDRESS, "port": port},
            forwarders=(),
            peer_pid=None,
            seen_from=CLIENT_ADDRESS,
            forwarder_facts={},
        )
