"""`remote`: TCP over the link, client on its own host."""

from __future__ import annotations

from howfar.paths.path import ClientEndpoint, Path, PathContext


class RemotePath(Path):
    name = "remote"
    label = "TCP from a second machine"
    machines = 2
    crosses_link = True
    networking = True
    by_socket = False
    works_between_hosts = True
    modelled = True

    def open(self, context: PathContext) -> ClientEndpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        return ClientEndpoint(
            host=context.server_address,
            port=context.server_port,
            expected_client_host=context.client_address,
            server_port=context.server_port,
        )
