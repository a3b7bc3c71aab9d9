"""`socket`: the server's own Unix socket, client on the server's host."""

from __future__ import annotations

from contextlib import ExitStack

from howfar.engine.messages import UnixTarget
from howfar.lab.paths import Terrain, Way


class UnixSocketPath:
    NAME = "socket"
    LOCAL = True
    NETWORKING = True
    SOCKET = True
    LINK = False

    @staticmethod
    def open_way(terrain: Terrain, ledger: ExitStack) -> Way:
        socket = str(terrain.running.socket)
        return Way(
            target=UnixTarget(path=socket),
            connection={"socket": socket},
            forwarders=(),
            peer_pid=terrain.running.pid,
            seen_from="localhost",
            forwarder_facts={},
        )
