"""`forwarded-socket`: the server's Unix socket, forwarded to the client's host by a socat on each host; the server has no TCP port.

On each host socat starts one process per connection. The processes' CPU time counts as the path's.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache, partial
from pathlib import Path as FilePath

from howfar.paths.path import ClientEndpoint, Hop, Path, PathContext, find_program


class ForwardedSocketPath(Path):
    name = "forwarded-socket"
    label = "the socket forwarded to a second machine"
    machines = 2
    crosses_link = True
    networking = False
    by_socket = True
    hops = ("socat", "socat")
    works_between_hosts = True
    modelled = False

    def open(self, context: PathContext) -> ClientEndpoint:
        socket_path, port = context.work / "forward.sock", context.hop_port
        server_command = [
            context.run_on("server", partial(find_program, "socat")),
            f"TCP-LISTEN:{port},reuseaddr,fork,backlog=1024",
            f"UNIX-CONNECT:{_escape_for_socat(context.server_socket)}",
        ]
        client_command = [
            context.run_on("client", partial(find_program, "socat")),
            f"UNIX-LISTEN:{_escape_for_socat(socket_path)},fork,reuseaddr,unlink-early,backlog=1024",
            f"TCP:{context.server_address}:{port}",
        ]
        server_side = context.start("server", server_command, "socat-server.log")
        client_side = context.start("client", client_command, "socat-client.log")
        context.wait_until(server_side, "socat-server.log", lambda: context.listens(server_side, port))
        context.wait_until(client_side, "socat-client.log", lambda: context.listens(client_side, socket_path))
        return ClientEndpoint(
            socket=str(socket_path),
            peer_pid=client_side.pid,
            server_port=port,
            hops=(Hop("server_side", server_side, forks=True), Hop("client_side", client_side, forks=True)),
            facts={
                "program": context.run_on("client", _version),
                "port": port,
                "server_side": " ".join(server_command),
                "client_side": " ".join(client_command),
            },
        )


def _escape_for_socat(path: FilePath) -> str:
    """Escape the characters of a file name that are special in socat's syntax."""
    return re.sub(r"([\\,:!\"'(\[{])", r"\\\1", str(path))


@cache
def _version() -> str:
    """socat's version: `socat version 1.7.4.4 on 06 Nov 2022 08:15:51`."""
    output = subprocess.run([find_program("socat"), "-V"], capture_output=True, text=True).stdout
    return next((line for line in output.splitlines() if line.startswith("socat version")), "socat").strip()
