"""`tcp`: TCP over the loopback of the server's host."""

from __future__ import annotations

from howfar.paths.path import ClientEndpoint, Path, PathContext


class TcpPath(Path):
    name = "tcp"
    label = "TCP on the same machine"
    machines = 1
    crosses_link = False
    networking = True
    by_socket = False
    works_between_hosts = True
    modelled = True

    def open(self, context: PathContext) -> ClientEndpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        address = context.loopback_address
        return ClientEndpoint(
            host=address, port=context.server_port, expected_client_host=address, server_port=context.server_port
        )
