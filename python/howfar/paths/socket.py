"""`socket`: the server's own Unix socket, client on the server's host."""

from __future__ import annotations

from howfar.paths.path import ClientEndpoint, Path, PathContext


class SocketPath(Path):
    name = "socket"
    label = "the Unix socket"
    machines = 1
    crosses_link = False
    networking = True
    by_socket = True
    works_between_hosts = True
    modelled = True

    def open(self, context: PathContext) -> ClientEndpoint:
        return ClientEndpoint(socket=str(context.server_socket), peer_pid=context.server_pid)
