"""`stunnel` and `stunnel-socket`: TLS by a helper on each host, for a client and a server without TLS.

Compared with the server's own TLS it shows which of the two should encrypt. stunnel logs the bytes that each connection carried when
it ends: these are its counters. Its CPU time belongs to the path and is counted with it.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path as FilePath

from howfar.paths.path import Endpoint, Hop, Path, PathContext, Process, Side, find_program

_PROGRAM = "stunnel"
_ENDS_S = 5.0
_POLL_S = 0.01
_CONFIGURATION = """\
foreground = yes
pid =
# Notices: a line as a connection comes, and what it carried as it ends.
debug = notice
syslog = no
output = {output}
socket = l:TCP_NODELAY=1
socket = r:TCP_NODELAY=1
[{side}]
accept = {listen}
connect = {connect}
sslVersionMin = TLSv1.3
"""
_OF_CLIENT = """\
client = yes
CAfile = {ca}
verifyChain = yes
checkIP = {address}
"""
_OF_SERVER = """\
cert = {certificate}
key = {key}
"""
_CLOSED = re.compile(r"Connection (?:closed|reset): (\d+) byte\(s\) sent to TLS, (\d+) byte\(s\) sent to socket")


class StunnelPath(Path):
    """A path through stunnel. `socket`: from a Unix socket to the server's; else from TCP to TCP."""

    machines = 2
    crosses_link = True
    networking = True
    hops = (_PROGRAM, _PROGRAM)
    encrypts = True
    between_hosts = True
    modelled = False

    def __init__(self, name: str, label: str, *, socket: bool) -> None:
        self.name = name
        self.label = label
        self.by_socket = socket

    def open(self, context: PathContext) -> Endpoint:
        far = (context.server_address, context.hop_port)
        near = (context.loopback_address, context.hop_port)
        socket = context.work / "stunnel.sock"
        context.within("client", partial(socket.unlink, missing_ok=True))
        target = str(context.server_socket) if self.by_socket else f"{near[0]}:{context.server_port}"
        listen = str(socket) if self.by_socket else f"{near[0]}:{near[1]}"
        server_side = _Tunnel(context, "server", f"{far[0]}:{far[1]}", target)
        context.wait_until(server_side.process, server_side.log, lambda: context.listens(server_side.process, far[1]))
        client_side = _Tunnel(context, "client", listen, f"{far[0]}:{far[1]}")
        context.wait_until(
            client_side.process, client_side.log, lambda: client_side.listens(socket if self.by_socket else None)
        )
        return Endpoint(
            socket=listen if self.by_socket else None,
            host=None if self.by_socket else near[0],
            port=None if self.by_socket else near[1],
            peer_pid=client_side.process.pid if self.by_socket else None,
            seen_from="localhost" if self.by_socket else context.loopback_address,
            server_port=far[1],
            hops=(server_side.hop, client_side.hop),
            facts={
                "program": context.within("client", _version),
                "encryption": "TLSv1.3",
                "server_side": f"listens at {far[0]}:{far[1]}, connects to {target}",
                "client_side": f"listens at {listen}, connects to {far[0]}:{far[1]}",
            },
        )


STUNNEL_PATHS = (
    StunnelPath("stunnel", "TCP from a second machine through a stunnel on each", socket=False),
    StunnelPath("stunnel-socket", "the socket forwarded to a second machine by a stunnel on each", socket=True),
)


class _Tunnel:
    """One running stunnel."""

    def __init__(self, context: PathContext, side: Side, listen: str, connect: str) -> None:
        self._context, self._side = context, side
        self.log = f"stunnel-{side}.log"
        self._notices = context.work / f"stunnel-{side}.notices"
        context.within(side, partial(self._notices.unlink, missing_ok=True))
        trust = context.certificates()
        own = _OF_CLIENT if side == "client" else _OF_SERVER
        file = context.write(
            side,
            f"stunnel-{side}.conf",
            _CONFIGURATION.format(output=self._notices, side=side, listen=listen, connect=connect)
            + own.format(ca=trust.ca, certificate=trust.certificate, key=trust.key, address=context.server_address),
        )
        self.process: Process = context.start(side, [context.within(side, _program), str(file)], self.log)
        self.hop = Hop(f"{side}_side", self.process, carried=lambda: self._carried(side))

    def listens(self, socket: FilePath | None) -> bool:
        if socket is None:
            return self._context.listens(self.process, self._context.hop_port)
        return self._context.within(self._side, socket.is_socket)

    def _carried(self, side: Side) -> Mapping[str, int]:
        """Read the counters of ended connections, after waiting for the last one."""
        until = time.monotonic() + _ENDS_S
        while True:
            notices = self._context.within(self._side, partial(self._notices.read_text, errors="replace"))
            ended = [(int(found[1]), int(found[2])) for found in _CLOSED.finditer(notices)]
            accepted = notices.count(" accepted connection from ")
            if len(ended) >= accepted or time.monotonic() > until:
                break
            time.sleep(_POLL_S)
        to_tls, to_socket = sum(one[0] for one in ended), sum(one[1] for one in ended)
        outward = side == "client"
        return {
            "connections": accepted,
            "bytes_to_server": to_tls if outward else to_socket,
            "bytes_to_client": to_socket if outward else to_tls,
        }


def _program() -> str:
    return find_program(_PROGRAM)


@cache
def _version() -> str:
    """stunnel's version: `stunnel 5.68 on x86_64-pc-linux-gnu platform`."""
    output = subprocess.run([find_program(_PROGRAM), "-version"], capture_output=True, text=True).stderr
    return next((found[0] for line in output.splitlines() if (found := re.search(r"stunnel [0-9]\S*", line))), _PROGRAM)
