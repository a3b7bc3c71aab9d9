"""Proxies that Debian does not package, as programs that the user provides (`--hop-binary NAME=PATH`): one entry per proxy.

Each runs on the client's host or its own, listens there on TCP and connects to the server over the link, with the configuration
below and its defaults. Envoy 1.40 was tested. The other configurations follow the manuals and are untested.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path as FilePath

from howfar.errors import LabError
from howfar.paths.path import Endpoint, Hop, Path, PathContext, find_program, hop_place

_ANSWER_S = 5.0
_POOL = 20
_NOBODY = 65534


@dataclass(frozen=True)
class Given:
    """One proxy. Braces in `configuration` and `arguments` are filled in; literal ones are doubled."""

    name: str
    label: str
    configuration: str
    arguments: tuple[str, ...]
    """Arguments after the program."""
    suffix: str = ".conf"
    """Suffix of the configuration's file."""
    version: str = "--version"
    protocols: tuple[str, ...] = ()
    pools: bool = False
    keeps_sessions: bool = True
    as_user: int = 0
    prepare: tuple[str, ...] = ()
    """Grants that the proxy's own account needs at the server."""


GIVEN = (
    Given(
        "envoy",
        "TCP from a second machine through Envoy beside the client",
        """\
admin: {{address: {{pipe: {{path: "{work}/envoy.sock"}}}}}}
static_resources:
  listeners:
  - address: {{socket_address: {{address: {listen}, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: howfar
          cluster: server
          idle_timeout: 0s
  clusters:
  - name: server
    type: STATIC
    connect_timeout: 10s
    circuit_breakers: {{thresholds: [{{max_connections: 100000, max_pending_requests: 100000}}]}}
    load_assignment:
      cluster_name: server
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: {server}, port_value: {server_port}}}}}}}
""",
        ("-c", "{file}", "--disable-hot-restart", "--log-level", "error"),
        suffix=".yaml",
    ),
    Given(
        "mysqlrouter",
        "TCP from a second machine through MySQL Router beside the client",
        """\
[DEFAULT]
logging_folder =
runtime_folder = {work}
data_folder = {work}
[routing:howfar]
bind_address = {listen}
bind_port = {port}
destinations = {server}:{server_port}
routing_strategy = first-available
protocol = classic
max_connections = 10000
client_ssl_mode = PASSTHROUGH
server_ssl_mode = AS_CLIENT
""",
        ("-c", "{file}"),
        protocols=("mysql",),
    ),
    Given(
        "proxysql",
        "TCP from a second machine through ProxySQL beside the client",
        """\
datadir = "{work}"
admin_variables = {{ mysql_ifaces = "{work}/proxysql.sock" }}
mysql_variables = {{
    interfaces = "{listen}:{port}"
    monitor_enabled = false
    max_connections = 10000
    default_schema = "{database}"
}}
mysql_servers = ( {{ address = "{server}", port = {server_port}, hostgroup = 0, max_connections = 10000 }} )
mysql_users = ( {{ username = "{user}", password = "{password}", default_hostgroup = 0, max_connections = 10000 }} )
""",
        ("-f", "--initial", "-c", "{file}", "-D", "{work}"),
        protocols=("mysql",),
        pools=True,
    ),
    Given(
        "maxscale",
        "TCP from a second machine through MaxScale beside the client",
        """\
[maxscale]
admin_enabled = false
datadir = {work}
cachedir = {work}
piddir = {work}
logdir = {work}
[server]
type = server
address = {server}
port = {server_port}
[monitor]
type = monitor
module = mariadbmon
servers = server
user = {user}
password = {password}
[service]
type = service
router = readconnroute
servers = server
user = {user}
password = {password}
[listener]
type = listener
service = service
address = {listen}
port = {port}
""",
        ("-d", "-f", "{file}"),
        protocols=("mysql",),
        as_user=_NOBODY,
        prepare=(
            "GRANT SELECT ON mysql.* TO '{user}'@'%'",
            "GRANT SHOW DATABASES, REPLICATION CLIENT ON *.* TO '{user}'@'%'",
        ),
    ),
    Given(
        "odyssey",
        "TCP from a second machine through Odyssey, which pools transactions, beside the client",
        """\
daemonize no
log_to_stdout yes
log_session no
listen {{
    host "{listen}"
    port {port}
}}
storage "server" {{
    type "remote"
    host "{server}"
    port {server_port}
}}
database "{database}" {{
    user "{user}" {{
        authentication "scram-sha-256"
        password "{password}"
        storage "server"
        storage_password "{password}"
        pool "transaction"
        pool_size {pool}
    }}
}}
""",
        ("{file}",),
        protocols=("postgresql",),
        pools=True,
        keeps_sessions=False,
    ),
    Given(
        "pgcat",
        "TCP from a second machine through PgCat, which pools transactions, beside the client",
        """\
[general]
host = "{listen}"
port = {port}
admin_username = "{user}"
admin_password = "{password}"
[pools.{database}]
pool_mode = "transaction"
[pools.{database}.users.0]
username = "{user}"
password = "{password}"
pool_size = {pool}
[pools.{database}.shards.0]
servers = [["{server}", {server_port}, "primary"]]
database = "{database}"
""",
        ("{file}",),
        suffix=".toml",
        protocols=("postgresql",),
        pools=True,
        keeps_sessions=False,
    ),
)


class GivenPath(Path):
    """One entry of the table, as a path."""

    machines = 2
    crosses_link = True
    networking = True
    by_socket = False
    movable = True
    between_hosts = True
    modelled = False

    def __init__(self, given: Given) -> None:
        self.name = given.name
        self.label = given.label
        self.hops = (given.name,)
        self.protocols = given.protocols
        self.pools = given.pools
        self.passes_tls = not given.protocols
        self.keeps_sessions = given.keeps_sessions
        self._given = given

    def open(self, context: PathContext) -> Endpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        given, place, port = self._given, hop_place(context), context.hop_port
        name = f"{self.name}{given.suffix}"
        facts = {
            "file": str(context.work / name),
            "work": str(context.work),
            "listen": place.to_clients,
            "port": str(port),
            "server": context.server_address,
            "server_port": str(context.server_port),
            "user": context.user,
            "password": context.password,
            "database": context.database,
            "pool": str(_POOL),
        }
        for statement in given.prepare:
            context.query(statement.format(**facts))
        context.write(place.side, name, given.configuration.format(**facts))
        within = partial(context.within, place.side)
        program = within(partial(find_program, self.name))
        command = [program, *(word.format(**facts) for word in given.arguments)]
        process = context.start(place.side, command, log := f"{self.name}.log", as_user=given.as_user)
        context.wait_until(process, log, lambda: context.listens(process, port))
        envoys = partial(_envoys, context.work / "envoy.sock")
        carried = partial(within, envoys) if self.name == "envoy" else None
        return Endpoint(
            host=place.to_clients,
            port=port,
            seen_from=place.to_server,
            server_port=context.server_port,
            hops=(Hop(f"{place.side}_side", process, carried=carried),),
            facts={"program": within(partial(_version, program, given.version)) or self.name},
        )


GIVEN_PATHS = tuple(map(GivenPath, GIVEN))


_ASK = b"GET /stats?filter=^tcp.howfar.downstream_cx HTTP/1.1\r\nHost: howfar\r\nConnection: close\r\n\r\n"


def _envoys(where: FilePath) -> Mapping[str, int]:
    """Read Envoy's own counters. Raises LabError."""
    names = {
        "connections": "downstream_cx_total",
        "bytes_to_server": "downstream_cx_rx_bytes_total",
        "bytes_to_client": "downstream_cx_tx_bytes_total",
    }
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_ANSWER_S)
            asking.connect(str(where))
            asking.sendall(_ASK)
            answer = b"".join(iter(lambda: asking.recv(65536), b"")).decode()
    except OSError as error:
        raise LabError(f"Envoy does not tell its counters: {error}") from error
    told = dict(re.findall(r"^tcp\.howfar\.(\w+): (\d+)\r?$", answer, re.MULTILINE))
    if missing := [name for name in names.values() if name not in told]:
        raise LabError(f"Envoy does not tell its counters: {missing[0]} is not in {answer[:200]!r}")
    return {ours: int(told[theirs]) for ours, theirs in names.items()}


@cache
def _version(program: str, option: str) -> str:
    """The first line of the program's version output, or empty."""
    try:
        told = subprocess.run([program, option], capture_output=True, text=True, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((line.strip() for line in (told.stdout + told.stderr).splitlines() if line.strip()), "")
