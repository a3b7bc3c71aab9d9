"""`haproxy`: HAProxy in TCP mode on the client's host or a separate host. `sidecar`: HAProxy on each host, as in a service mesh.

HAProxy does not parse the protocol, so sessions, TLS and compression are between client and server. HAProxy's own counters show what
it carried, and its CPU time counts as the path's.
"""

from __future__ import annotations

import csv
import io
import resource
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path as FilePath

from howfar.errors import LabError
from howfar.paths.path import ClientEndpoint, Hop, Path, PathContext, Side, find_hop_placement, find_program

_OTHER_FILES = 200
"""Number of files that HAProxy opens in addition to two for each connection."""
_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.01
_CONFIGURATION = """\
global
    stats socket {control} mode 600 level user
    maxconn {max_connections}
defaults
    mode tcp
    timeout connect 10s
    # Nothing ends an idle connection but its client or server.
    timeout client 24h
    timeout server 24h
listen {name}
    bind {listen}
    maxconn {max_connections}
    server server {connect}
"""


class _Proxy:
    """One running HAProxy, with its addresses and counters."""

    def __init__(self, context: PathContext, side: Side, listen: tuple[str, int], connect: tuple[str, int]) -> None:
        self._context, self._side = context, side
        self._control, log = (context.work / f"haproxy-{side}.sock", f"haproxy-{side}.log")
        context.run_on(side, partial(self._control.unlink, missing_ok=True))
        configuration = _CONFIGURATION.format(
            control=self._control,
            max_connections=context.run_on(side, _max_connections),
            name=side,
            listen=_format_address(listen),
            connect=_format_address(connect),
        )
        file = context.write(side, f"haproxy-{side}.cfg", configuration)
        program = context.run_on(side, partial(find_program, "haproxy"))
        # -db: stay in the foreground, as one process.
        self.process = context.start(side, [program, "-db", "-f", str(file)], log)
        context.wait_until(self.process, log, lambda: context.listens(self.process, listen[1]))
        self.facts = f"listens at {_format_address(listen)}, connects to {_format_address(connect)}"
        self.hop = Hop(f"{side}_side", self.process, read_counters=self._read_counters)

    def _read_counters(self) -> Mapping[str, int]:
        """Read the counters: connections (total and maximum at once), and bytes to and from the server. Raises LabError.

        HAProxy counts a connection's bytes when the connection has ended on both sides, so this first waits until none is open.
        """
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while (
            int((counters := self._context.run_on(self._side, partial(_fetch_counters, self._control)))["scur"])
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_S)
        haproxy_names = {
            "connections": "stot",
            "connections_most": "smax",
            "bytes_to_server": "bin",
            "bytes_to_client": "bout",
        }
        return {name: int(counters[haproxy_name]) for name, haproxy_name in haproxy_names.items()}


def _fetch_counters(control: FilePath) -> Mapping[str, str]:
    """Fetch the counters of HAProxy's frontend, under HAProxy's names. Raises LabError."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.connect(str(control))
            connection.sendall(b"show stat -1 1 -1\n")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError as error:
        raise LabError(f"HAProxy does not answer on its control socket: {error}") from error
    rows = list(csv.DictReader(io.StringIO(answer.decode().removeprefix("# "))))
    if not rows:
        raise LabError(f"HAProxy's counters cannot be read: {answer[:200]!r}")
    return rows[0]


class HaproxyPath(Path):
    name = "haproxy"
    label = "TCP from a second machine through HAProxy beside the client"
    machines = 2
    crosses_link = True
    networking = True
    by_socket = False
    hops = ("haproxy",)
    movable = True
    works_between_hosts = True
    modelled = False

    def open(self, context: PathContext) -> ClientEndpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        host = find_hop_placement(context)
        listen = (host.listen_address, context.hop_port)
        proxy = _Proxy(context, host.side, listen, (context.server_address, context.server_port))
        return ClientEndpoint(
            host=listen[0],
            port=listen[1],
            expected_client_host=host.source_address,
            server_port=context.server_port,
            hops=(proxy.hop,),
            facts={"program": context.run_on(host.side, _version), proxy.hop.label: proxy.facts},
        )


class SidecarPath(Path):
    name = "sidecar"
    label = "TCP from a second machine through a HAProxy on each"
    machines = 2
    crosses_link = True
    networking = True
    by_socket = False
    hops = ("haproxy", "haproxy")
    works_between_hosts = True
    modelled = False

    def open(self, context: PathContext) -> ClientEndpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        server_listen = (context.server_address, context.hop_port)
        client_listen = (context.loopback_address, context.hop_port)
        server_side = _Proxy(context, "server", server_listen, (context.loopback_address, context.server_port))
        client_side = _Proxy(context, "client", client_listen, server_listen)
        return ClientEndpoint(
            host=client_listen[0],
            port=client_listen[1],
            expected_client_host=context.loopback_address,
            server_port=server_listen[1],
            hops=(server_side.hop, client_side.hop),
            facts={
                "program": context.run_on("client", _version),
                "server_side": server_side.facts,
                "client_side": client_side.facts,
            },
        )


def _max_connections() -> int:
    """The maximum number of connections that the file limit allows; HAProxy refuses to start with more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536) // 2 - _OTHER_FILES


def _format_address(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


@cache
def _version() -> str:
    """HAProxy's version: `HAProxy version 2.6.12-1+deb12u4`."""
    output = subprocess.run([find_program("haproxy"), "-v"], capture_output=True, text=True).stdout
    return " ".join(output.partition("\n")[0].split()[:3])
