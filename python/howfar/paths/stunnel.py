"""`stunnel` and `stunnel-socket`: TLS by an stunnel on each host, for a client and a server without TLS.

A comparison with the server's own TLS shows whether stunnel or the server should encrypt. stunnel has no counters, but when a
connection ends, stunnel logs the bytes that it carried. stunnel's CPU time counts as the path's.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path as FilePath

from howfar.paths.path import ClientEndpoint, Hop, Path, PathContext, PathProcess, Side, find_program

_PROGRAM = "stunnel"
_END_TIMEOUT_S = 5.0
_POLL_S = 0.01
_CONFIGURATION = """\
foreground = yes
pid =
# Log a line when a connection opens, and its byte counts when it closes.
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
_CLIENT_OPTIONS = """\
client = yes
CAfile = {ca}
verifyChain = yes
checkIP = {address}
"""
_SERVER_OPTIONS = """\
cert = {certificate}
key = {key}
"""
_CLOSED_NOTICE = re.compile(r"Connection (?:closed|reset): (\d+) byte\(s\) sent to TLS, (\d+) byte\(s\) sent to socket")


class StunnelPath(Path):
    """A path through stunnel. `by_socket`: from a Unix socket to the server's socket; otherwise from a TCP port to the server's
    port."""

    machines = 2
    crosses_link = True
    networking = True
    hops = (_PROGRAM, _PROGRAM)
    encrypts = True
    works_between_hosts = True
    modelled = False

    def __init__(self, name: str, label: str, *, by_socket: bool) -> None:
        self.name = name
        self.label = label
        self.by_socket = by_socket

    def open(self, context: PathContext) -> ClientEndpoint:
        server_listen = (context.server_address, context.hop_port)
        client_listen = (context.loopback_address, context.hop_port)
        socket_path = context.work / "stunnel.sock"
        context.run_on("client", partial(socket_path.unlink, missing_ok=True))
        server_target = str(context.server_socket) if self.by_socket else f"{client_listen[0]}:{context.server_port}"
        client_address = str(socket_path) if self.by_socket else f"{client_listen[0]}:{client_listen[1]}"
        server_side = _Tunnel(context, "server", f"{server_listen[0]}:{server_listen[1]}", server_target)
        context.wait_until(
            server_side.process, server_side.log, lambda: context.listens(server_side.process, server_listen[1])
        )
        client_side = _Tunnel(context, "client", client_address, f"{server_listen[0]}:{server_listen[1]}")
        context.wait_until(
            client_side.process, client_side.log, lambda: client_side.listens(socket_path if self.by_socket else None)
        )
        return ClientEndpoint(
            socket=client_address if self.by_socket else None,
            host=None if self.by_socket else client_listen[0],
            port=None if self.by_socket else client_listen[1],
            peer_pid=client_side.process.pid if self.by_socket else None,
            expected_client_host="localhost" if self.by_socket else context.loopback_address,
            server_port=server_listen[1],
            hops=(server_side.hop, client_side.hop),
            facts={
                "program": context.run_on("client", _version),
                "encryption": "TLSv1.3",
                "server_side": f"listens at {server_listen[0]}:{server_listen[1]}, connects to {server_target}",
                "client_side": f"listens at {client_address}, connects to {server_listen[0]}:{server_listen[1]}",
            },
        )


STUNNEL_PATHS = (
    StunnelPath("stunnel", "TCP from a second machine through a stunnel on each", by_socket=False),
    StunnelPath("stunnel-socket", "the socket forwarded to a second machine by a stunnel on each", by_socket=True),
)


class _Tunnel:
    """One running stunnel, with its log and counters."""

    def __init__(self, context: PathContext, side: Side, listen: str, connect: str) -> None:
        self._context, self._side = context, side
        self.log = f"stunnel-{side}.log"
        self._notices = context.work / f"stunnel-{side}.notices"
        context.run_on(side, partial(self._notices.unlink, missing_ok=True))
        certificates = context.certificates()
        side_options = _CLIENT_OPTIONS if side == "client" else _SERVER_OPTIONS
        file = context.write(
            side,
            f"stunnel-{side}.conf",
            _CONFIGURATION.format(output=self._notices, side=side, listen=listen, connect=connect)
            + side_options.format(
                ca=certificates.ca,
                certificate=certificates.certificate,
                key=certificates.key,
                address=context.server_address,
            ),
        )
        program = context.run_on(side, partial(find_program, _PROGRAM))
        self.process: PathProcess = context.start(side, [program, str(file)], self.log)
        self.hop = Hop(f"{side}_side", self.process, read_counters=self._read_counters)

    def listens(self, socket: FilePath | None) -> bool:
        if socket is None:
            return self._context.listens(self.process, self._context.hop_port)
        return self._context.run_on(self._side, socket.is_socket)

    def _read_counters(self) -> Mapping[str, int]:
        """Sum up the logged bytes of all connections, after waiting until the last connection has ended."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while True:
            notices = self._context.run_on(self._side, partial(self._notices.read_text, errors="replace"))
            byte_counts = [(int(match[1]), int(match[2])) for match in _CLOSED_NOTICE.finditer(notices)]
            accepted_count = notices.count(" accepted connection from ")
            if len(byte_counts) >= accepted_count or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        to_tls, to_socket = sum(counts[0] for counts in byte_counts), sum(counts[1] for counts in byte_counts)
        is_client = self._side == "client"
        return {
            "connections": accepted_count,
            "bytes_to_server": to_tls if is_client else to_socket,
            "bytes_to_client": to_socket if is_client else to_tls,
        }


@cache
def _version() -> str:
    """stunnel's version: `stunnel 5.68 on x86_64-pc-linux-gnu platform`."""
    output = subprocess.run([find_program(_PROGRAM), "-version"], capture_output=True, text=True).stderr
    return next((match[0] for line in output.splitlines() if (match := re.search(r"stunnel [0-9]\S*", line))), _PROGRAM)
