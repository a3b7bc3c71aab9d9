"""`haproxy` and `sidecar`: HAProxy in TCP mode on the client's host or its own, or on each host as in a service mesh.

HAProxy reads no bytes of the protocol, so sessions, TLS and compression are those of the client and the server. Its own counters show
what it carried. Its CPU time is part of the path's.
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
from howfar.paths.path import Endpoint, Hop, Path, PathContext, Side, find_program, hop_place

_OWN_FILES = 200
"""Files in addition to two for each connection."""
_ANSWER_S = 5.0
_POLL_S = 0.01
_CONFIGURATION = """\
global
    stats socket {control} mode 600 level user
    maxconn {most}
defaults
    mode tcp
    timeout connect 10s
    # Nothing ends an idle connection but its client or server.
    timeout client 24h
    timeout server 24h
listen {name}
    bind {listen}
    maxconn {most}
    server server {connect}
"""


class _Proxy:
    """One HAProxy: its addresses and its counters."""

    def __init__(self, context: PathContext, side: Side, listen: tuple[str, int], connect: tuple[str, int]) -> None:
        self._context, self._side = context, side
        self._control, log = (context.work / f"haproxy-{side}.sock", f"haproxy-{side}.log")
        context.within(side, partial(self._control.unlink, missing_ok=True))
        made = _CONFIGURATION.format(
            control=self._control,
            most=context.within(side, _most_connections),
            name=side,
            listen=_address(listen),
            connect=_address(connect),
        )
        file = context.write(side, f"haproxy-{side}.cfg", made)
        # -db: in the foreground, one process.
        self.process = context.start(side, [context.within(side, _program), "-db", "-f", str(file)], log)
        context.wait_until(self.process, log, lambda: context.listens(self.process, listen[1]))
        self.facts = f"listens at {_address(listen)}, connects to {_address(connect)}"
        self.hop = Hop(f"{side}_side", self.process, carried=self._carried)

    def _carried(self) -> Mapping[str, int]:
        """Read connections (total and peak) and bytes to and from the server. Raises LabError.

        HAProxy counts the bytes of a connection when it has ended on both sides, so this waits for the last one.
        """
        until = time.monotonic() + _ANSWER_S
        while (
            int((counted := self._context.within(self._side, partial(_counters, self._control)))["scur"])
            and time.monotonic() < until
        ):
            time.sleep(_POLL_S)
        names = {"connections": "stot", "connections_most": "smax", "bytes_to_server": "bin", "bytes_to_client": "bout"}
        return {name: int(counted[theirs]) for name, theirs in names.items()}


def _counters(control: FilePath) -> Mapping[str, str]:
    """Read the frontend's counters, by HAProxy's names. Raises LabError."""
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_ANSWER_S)
            asking.connect(str(control))
            asking.sendall(b"show stat -1 1 -1\n")
            answer = b"".join(iter(lambda: asking.recv(65536), b""))
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
    between_hosts = True
    modelled = False

    def open(self, context: PathContext) -> Endpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        place = hop_place(context)
        near = (place.to_clients, context.hop_port)
        proxy = _Proxy(context, place.side, near, (context.server_address, context.server_port))
        return Endpoint(
            host=near[0],
            port=near[1],
            seen_from=place.to_server,
            server_port=context.server_port,
            hops=(proxy.hop,),
            facts={"program": context.within(place.side, _version), proxy.hop.label: proxy.facts},
        )


class SidecarPath(Path):
    name = "sidecar"
    label = "TCP from a second machine through a HAProxy on each"
    machines = 2
    crosses_link = True
    networking = True
    by_socket = False
    hops = ("haproxy", "haproxy")
    between_hosts = True
    modelled = False

    def open(self, context: PathContext) -> Endpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        far = (context.server_address, context.hop_port)
        near = (context.loopback_address, context.hop_port)
        server_side = _Proxy(context, "server", far, (context.loopback_address, context.server_port))
        client_side = _Proxy(context, "client", near, far)
        return Endpoint(
            host=near[0],
            port=near[1],
            seen_from=context.loopback_address,
            server_port=far[1],
            hops=(server_side.hop, client_side.hop),
            facts={
                "program": context.within("client", _version),
                "server_side": server_side.facts,
                "client_side": client_side.facts,
            },
        )


def _most_connections() -> int:
    """The connection limit that the file limit allows; HAProxy refuses to start with more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536) // 2 - _OWN_FILES


def _address(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}"


def _program() -> str:
    return find_program("haproxy")


@cache
def _version() -> str:
    """HAProxy's version: `HAProxy version 2.6.12-1+deb12u4`."""
    output = subprocess.run([find_program("haproxy"), "-v"], capture_output=True, text=True).stdout
    return " ".join(output.partition("\n")[0].split()[:3])
