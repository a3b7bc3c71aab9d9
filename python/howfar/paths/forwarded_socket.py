"""`forwarded-socket`: the server's Unix socket carried to the client's host by a socat on each; the server does not listen on TCP.

socat starts one process per connection on each side. That cost belongs to the path and is counted with it.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path as FilePath

from howfar.paths.path import Endpoint, Hop, Path, PathContext, find_program


class ForwardedSocketPath(Path):
    name = "forwarded-socket"
    label = "the socket forwarded to a second machine"
    machines = 2
    crosses_link = True
    networking = False
    by_socket = True
    hops = ("socat", "socat")
    between_hosts = True
    modelled = False

    def open(self, context: PathContext) -> Endpoint:
        near, port = context.work / "forward.sock", context.hop_port
        to_server = [
            context.within("server", partial(find_program, "socat")),
            f"TCP-LISTEN:{port},reuseaddr,fork,backlog=1024",
            f"UNIX-CONNECT:{_escaped(context.server_socket)}",
        ]
        to_client = [
            context.within("client", partial(find_program, "socat")),
            f"UNIX-LISTEN:{_escaped(near)},fork,reuseaddr,unlink-early,backlog=1024",
            f"TCP:{context.server_address}:{port}",
        ]
        far_end = context.start("server", to_server, "socat-server.log")
        near_end = context.start("client", to_client, "socat-client.log")
        context.wait_until(far_end, "socat-server.log", lambda: context.listens(far_end, port))
        context.wait_until(near_end, "socat-client.log", lambda: context.listens(near_end, near))
        return Endpoint(
            socket=str(near),
            peer_pid=near_end.pid,
            server_port=port,
            hops=(Hop("server_side", far_end, forks=True), Hop("client_side", near_end, forks=True)),
            facts={
                "program": _version(context),
                "port": port,
                "server_side": " ".join(to_server),
                "client_side": " ".join(to_client),
            },
        )


def _escaped(path: FilePath) -> str:
    """Escape the special characters of socat's syntax in a name."""
    return re.sub(r"([\\,:!\"'(\[{])", r"\\\1", str(path))


def _version(context: PathContext) -> str:
    output = context.output("client", [context.within("client", partial(find_program, "socat")), "-V"])
    return next((line for line in output.splitlines() if line.startswith("socat version")), "socat").strip()
