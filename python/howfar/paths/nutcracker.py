"""`nutcracker`: nutcracker (twemproxy) on the client's host or a separate host; all clients share its one connection to a store.

Nutcracker supports only a store's oldest protocol, and forwards only those Redis commands that have keys. So no client can ask the
server, through nutcracker, for its version or its view of a session; the server's view is that of nutcracker's own connection.
Nutcracker's counters show what it carried.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import cache, partial

from howfar.errors import LabError
from howfar.paths.path import ClientEndpoint, Hop, Path, PathContext, find_hop_placement, find_program

_PROGRAM = "nutcracker"
_LOG = "nutcracker.log"
_POOL = "howfar"
_ANSWER_TIMEOUT_S = 5.0
_COUNTER_INTERVAL_MS = 50
"""Interval at which nutcracker updates its counters; its default of 30 s is longer than a trial."""
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
    oldest_protocol_only = True
    movable = True
    works_between_hosts = True
    modelled = False

    def open(self, context: PathContext) -> ClientEndpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        port, counters_port = context.hop_port, context.hop_port + 1
        host = find_hop_placement(context)
        run_on_host = partial(context.run_on, host.side)
        configuration = _CONFIGURATION.format(
            pool=_POOL,
            listen=host.listen_address,
            port=port,
            redis=str(context.service == "redis").lower(),
            server=context.server_address,
            server_port=context.server_port,
        )
        file = context.write(host.side, "nutcracker.yml", configuration)
        counter_options = ["-a", context.loopback_address, "-s", str(counters_port), "-i", str(_COUNTER_INTERVAL_MS)]
        log_options = ["-o", str(context.work / "nutcracker.notes"), "-v", "4"]
        process = context.start(
            host.side,
            [run_on_host(partial(find_program, _PROGRAM)), "-c", str(file), *counter_options, *log_options],
            _LOG,
        )
        context.wait_until(process, _LOG, lambda: context.listens(process, port))
        fetch_counters = partial(_fetch_counters, context.loopback_address, counters_port)

        def read_counters() -> Mapping[str, int]:
            """Read the counters, which are updated only periodically, until they no longer change. Raises LabError."""
            deadline, previous = time.monotonic() + _ANSWER_TIMEOUT_S, run_on_host(fetch_counters)
            while True:
                time.sleep(3 * _COUNTER_INTERVAL_MS / 1e3)
                current = run_on_host(fetch_counters)
                if current == previous or time.monotonic() > deadline:
                    break
                previous = current
            return {
                "requests": current["requests"],
                "bytes_to_server": current["request_bytes"],
                "bytes_to_client": current["response_bytes"],
            }

        def count_connections() -> Mapping[str, int]:
            counters = run_on_host(fetch_counters)
            return {"to_clients": counters["client_connections"], "to_server": counters["server_connections"]}

        return ClientEndpoint(
            host=host.listen_address,
            port=port,
            expected_client_host=host.source_address,
            server_port=context.server_port,
            hops=(
                hop := Hop(
                    f"{host.side}_side", process, read_counters=read_counters, count_connections=count_connections
                ),
            ),
            facts={"program": run_on_host(_version), hop.label: "one connection to the server for all clients"},
        )


def _fetch_counters(address: str, port: int) -> dict[str, int]:
    """Fetch nutcracker's counters, of its clients and of its only server. Raises LabError."""
    try:
        with socket.create_connection((address, port), _ANSWER_TIMEOUT_S) as connection:
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        counters = json.loads(answer)[_POOL]
        return {**counters.pop("server"), **counters}
    except (OSError, ValueError, KeyError) as error:
        raise LabError(f"nutcracker does not report its counters: {error}") from error


@cache
def _version() -> str:
    """Nutcracker's version: `nutcracker-0.5.0`."""
    output = subprocess.run([find_program(_PROGRAM), "-V"], capture_output=True, text=True).stderr
    return next((line.rpartition(" ")[2] for line in output.splitlines() if "nutcracker-" in line), _PROGRAM)
