"""`nutcracker`: nutcracker (twemproxy) on the client's host or its own, through which all clients share one connection to a store.

It reads only the first protocol of a store, and of Redis passes only commands on keys: a server cannot be queried through it for its
version, or for how it sees a session. The server reports its one connection. Nutcracker's own counters show what it carried.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from howfar.errors import LabError
from howfar.paths.path import Endpoint, Hop, Path, PathContext, find_program, hop_place

_PROGRAM = "nutcracker"
_LOG = "nutcracker.log"
_POOL = "howfar"
_ANSWER_S = 5.0
_EVERY_MS = 50
"""Interval at which nutcracker sums its counters; its default of 30 s is longer than a trial."""
_CONFIGURATION = """\
{pool}:
  listen: {listen}:{port}
  hash: fnv1a_64
  distribution: modula
  redis: {redis}
  backlog: 4096
  preconnect: true
  servers:
   - {server}:{server_port}:1 server
"""


class NutcrackerPath(Path):
    name = "nutcracker"
    label = "TCP from a second machine through nutcracker beside the client"
    machines = 2
    crosses_link = True
    networking = True
    by_socket = False
    hops = (_PROGRAM,)
    protocols = ("redis", "memcached")
    pools = True
    passes_tls = False
    shows_sessions = False
    first_protocol = True
    movable = True
    between_hosts = True
    modelled = False

    def open(self, context: PathContext) -> Endpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        port, counters_port = context.hop_port, context.hop_port + 1
        place = hop_place(context)
        within = partial(context.within, place.side)
        made = _CONFIGURATION.format(
            pool=_POOL,
            listen=place.to_clients,
            port=port,
            redis=str(context.service == "redis").lower(),
            server=context.server_address,
            server_port=context.server_port,
        )
        file = context.write(place.side, "nutcracker.yml", made)
        counting = ["-a", context.loopback_address, "-s", str(counters_port), "-i", str(_EVERY_MS)]
        notes = ["-o", str(context.work / "nutcracker.notes"), "-v", "4"]
        process = context.start(place.side, [within(_program), "-c", str(file), *counting, *notes], _LOG)
        context.wait_until(process, _LOG, lambda: context.listens(process, port))
        ask = partial(_counters, context.loopback_address, counters_port)

        def carried() -> Mapping[str, int]:
            """Read the counters until they are stable, because they are updated periodically. Raises LabError."""
            until, before = time.monotonic() + _ANSWER_S, within(ask)
            while True:
                time.sleep(3 * _EVERY_MS / 1e3)
                now = within(ask)
                if now == before or time.monotonic() > until:
                    break
                before = now
            server = now["server"]
            return {
                "requests": server["requests"],
                "bytes_to_server": server["request_bytes"],
                "bytes_to_client": server["response_bytes"],
            }

        def at_once() -> Mapping[str, int]:
            told = within(ask)
            return {"to_clients": told["client_connections"], "to_server": told["server"]["server_connections"]}

        return Endpoint(
            host=place.to_clients,
            port=port,
            seen_from=place.to_server,
            server_port=context.server_port,
            hops=(hop := Hop(f"{place.side}_side", process, carried=carried, now=at_once),),
            facts={"program": within(_version), hop.label: "one connection to the server for all clients"},
        )


def _counters(address: str, port: int) -> Mapping[str, Any]:
    """Nutcracker's counters. Raises LabError."""
    try:
        with socket.create_connection((address, port), _ANSWER_S) as asking:
            answer = b"".join(iter(lambda: asking.recv(65536), b""))
        told: Mapping[str, Any] = json.loads(answer)[_POOL]
    except (OSError, ValueError, KeyError) as error:
        raise LabError(f"nutcracker does not tell its counters: {error}") from error
    return told


def _program() -> str:
    return find_program(_PROGRAM)


@cache
def _version() -> str:
    """Nutcracker's version: `nutcracker-0.5.0`."""
    output = subprocess.run([find_program(_PROGRAM), "-V"], capture_output=True, text=True).stderr
    return next((line.rpartition(" ")[2] for line in output.splitlines() if "nutcracker-" in line), _PROGRAM)
